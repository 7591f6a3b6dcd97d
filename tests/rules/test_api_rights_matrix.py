"""The matrix: every API of both listeners, without its rights, with all but one, and with all of them.

It is made from the rows of APIs and verbs.  Clients of one appliance have no login here; they differ by
their address: the super client, at 127.0.0.2, gives rights to clients at 127.0.0.1.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from appliance.errors import GroupNotPermitted
from appliance.names import member_suffix
from appliance.records.encode import encode_values
from appliance.security.acls import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType, word
from appliance.security.api_rights import How, NeededRights, Right
from appliance.security.audit_log import Reason
from appliance.security.principals import ANONYMOUS
from appliance.wire import native, native_admin
from appliance.wire.kafka.apis import API_KEYS, APIS

from ..support.kafka_peer import KafkaPeer
from ..support.native_peer import Peer
from ..support.server import Server, wait_for

CLIENT, SUPER = "127.0.0.1", "127.0.0.2"
TOPIC, GROUP, TRANSACTIONAL_ID = "seen", "readers", "tx"
REFUSED = {29, 30, 31, 53}
NAMES = {
    ResourceType.TOPIC: TOPIC,
    ResourceType.GROUP: GROUP,
    ResourceType.CLUSTER: CLUSTER_NAME,
    ResourceType.TRANSACTIONAL_ID: TRANSACTIONAL_ID,
}
CHECKED = (How.WHOLE, How.EACH)
BATCH = bytes(encode_values([b"value"], 1_000))

ALTERED = {"resource_type": 2, "resource_name": TOPIC, "configs": []}
ACL_FILTER: dict[str, Any] = {"resource_type_filter": 5, "resource_name_filter": "none", "pattern_type_filter": 3}
ACL_FILTER |= {"principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1}
PARTS = [{"partition_index": 0}]
REQUESTS: dict[str, dict[str, Any]] = {
    "Produce": {
        "transactional_id": None,
        "acks": 1,
        "timeout_ms": 9_000,
        "topic_data": [{"name": TOPIC, "partition_data": [{"index": 0, "records": BATCH}]}],
    },
    "Fetch": {
        "max_bytes": 1 << 20,
        "topics": [{"topic": TOPIC, "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 999}]}],
    },
    "ListOffsets": {"topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "timestamp": -2}]}]},
    "Metadata": {"topics": [{"topic_id": None, "name": TOPIC}], "allow_auto_topic_creation": False},
    "OffsetCommit": {
        "group_id": GROUP,
        "generation_id_or_member_epoch": -1,
        "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
    },
    "OffsetFetch": {"groups": [{"group_id": GROUP, "topics": [{"name": TOPIC, "partition_indexes": [0]}]}]},
    "FindCoordinator": {"key_type": 0, "coordinator_keys": [GROUP]},
    "JoinGroup": {"group_id": GROUP, "session_timeout_ms": 10_000, "protocol_type": "consumer"},
    "Heartbeat": {"group_id": GROUP, "member_id": "m"},
    "LeaveGroup": {"group_id": GROUP, "members": [{"member_id": "m", "group_instance_id": None}]},
    "SyncGroup": {"group_id": GROUP, "member_id": "m"},
    "ConsumerGroupHeartbeat": {
        "group_id": GROUP,
        "member_id": "m",
        "rebalance_timeout_ms": 1_000,
        "subscribed_topic_names": [TOPIC],
        "topic_partitions": [],
    },
    "ConsumerGroupDescribe": {"group_ids": [GROUP]},
    "ShareGroupHeartbeat": {"group_id": GROUP, "member_id": "m"},
    "DescribeGroups": {"groups": [GROUP]},
    "ListGroups": {},
    "ApiVersions": {"client_software_name": "test", "client_software_version": "1"},
    "CreateTopics": {"topics": [{"name": TOPIC, "num_partitions": 1, "replication_factor": 1}], "timeout_ms": 9_000},
    "DeleteTopics": {"topics": [{"name": TOPIC, "topic_id": None}], "timeout_ms": 9_000},
    "DeleteRecords": {"topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "offset": 0}]}]},
    "InitProducerId": {"transactional_id": None, "transaction_timeout_ms": 1_000},
    "OffsetForLeaderEpoch": {
        "replica_id": -2,
        "topics": [{"topic": TOPIC, "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]}],
    },
    "DescribeAcls": ACL_FILTER,
    "CreateAcls": {
        "creations": [
            {"resource_type": 5, "resource_name": "other", "resource_pattern_type": 3, "principal": "User:nobody"}
            | {"host": "*", "operation": 2, "permission_type": 3}
        ]
    },
    "DeleteAcls": {"filters": [ACL_FILTER]},
    "DescribeConfigs": {"resources": [{"resource_type": 2, "resource_name": TOPIC, "configuration_keys": None}]},
    "AlterConfigs": {"resources": [ALTERED]},
    "DescribeLogDirs": {"topics": None},
    "CreatePartitions": {"topics": [{"name": TOPIC, "count": 1, "assignments": None}], "timeout_ms": 9_000},
    "DeleteGroups": {"groups_names": [GROUP]},
    "ElectLeaders": {"election_type": 0, "topic_partitions": None, "timeout_ms": 9_000},
    "IncrementalAlterConfigs": {"resources": [ALTERED]},
    "AlterPartitionReassignments": {"timeout_ms": 9_000, "topics": []},
    "ListPartitionReassignments": {"timeout_ms": 9_000, "topics": None},
    "OffsetDelete": {"group_id": GROUP, "topics": [{"name": TOPIC, "partitions": PARTS}]},
    "DescribeClientQuotas": {"components": [], "strict": False},
    "AlterClientQuotas": {
        "entries": [{"entity": [{"entity_type": "user", "entity_name": "nobody"}], "ops": []}],
        "validate_only": True,
    },
    "DescribeUserScramCredentials": {"users": None},
    "AlterUserScramCredentials": {"deletions": [{"name": "nobody", "mechanism": 1}], "upsertions": []},
    "DescribeCluster": {"endpoint_type": 1, "include_cluster_authorized_operations": True},
    "DescribeProducers": {"topics": [{"name": TOPIC, "partition_indexes": [0]}]},
    "AddPartitionsToTxn": {
        "v3_and_below_transactional_id": TRANSACTIONAL_ID,
        "v3_and_below_topics": [{"name": TOPIC, "partitions": [0]}],
    },
    "AddOffsetsToTxn": {"transactional_id": TRANSACTIONAL_ID, "group_id": GROUP},
    "EndTxn": {"transactional_id": TRANSACTIONAL_ID, "committed": True},
    "WriteTxnMarkers": {
        "markers": [
            {"producer_id": 7, "producer_epoch": 0, "transaction_result": False, "coordinator_epoch": 0}
            | {"topics": [{"name": TOPIC, "partition_indexes": [0]}]}
        ]
    },
    "TxnOffsetCommit": {
        "transactional_id": TRANSACTIONAL_ID,
        "group_id": GROUP,
        "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
    },
    "DescribeTransactions": {"transactional_ids": [TRANSACTIONAL_ID]},
    "ListTransactions": {"state_filters": [], "producer_id_filters": []},
    "ListConfigResources": {"resource_types": []},
    "DescribeTopicPartitions": {
        "topics": [{"name": TOPIC}],
        "response_partition_limit": 10,
        "cursor": None,
    },
}
"""A request of each API that names the topic, the group and so on of NAMES, as far as it names any."""
LOGINS = {"SaslHandshake", "SaslAuthenticate"}
"""Answered on listeners with a login only, which tests of logins see."""
OTHERS: dict[tuple[str, ResourceType], dict[str, Any]] = {
    ("FindCoordinator", ResourceType.TRANSACTIONAL_ID): {"key_type": 1, "coordinator_keys": [TRANSACTIONAL_ID]},
    ("Produce", ResourceType.TRANSACTIONAL_ID): {"transactional_id": TRANSACTIONAL_ID},
    ("InitProducerId", ResourceType.TRANSACTIONAL_ID): {"transactional_id": TRANSACTIONAL_ID},
    **{
        (api, resource): {"resources": [{"resource_type": number, "resource_name": name} | rest]}
        for api, rest in (
            ("DescribeConfigs", {"configuration_keys": None}),
            ("AlterConfigs", {"configs": []}),
            ("IncrementalAlterConfigs", {"configs": []}),
        )
        for resource, number, name in ((ResourceType.GROUP, 32, GROUP), (ResourceType.CLUSTER, 4, "0"))
    },
}
"""Another request where an API asks different rights for different resources: it needs that right alone."""
WITHOUT_GROUPS = {(api, ResourceType.TOPIC) for api in ("OffsetFetch", "OffsetDelete", "ConsumerGroupDescribe")}
"""This appliance has no ZooKeeper, so there are no groups to ask about topics of: see the tests of these APIs."""

SECRET = "0" * 32
PASSED = ["", 1, 1]
MEMBER = {"group": GROUP, "member": f"{GROUP}_host{member_suffix(SECRET)}", "secret": SECRET, "sequence": 1}
VERBS: dict[str, dict[str, Any]] = {
    "create_topic": {"name": TOPIC},
    "ensure_topic": {"name": TOPIC},
    "alter_topic": {"name": TOPIC, "settings": {"retention.ms": "1000000"}, "partitions": 9},
    "delete_topic": {"name": "gone"},
    "trash": {},
    "undelete_topic": {"name": "gone"},
    "restore_topic": {"name": "gone", "id": "a" * 32, "partitions": 1},
    "repair": {"name": "gone", "partition": 0},
    "report_damage": {"name": TOPIC, "partition": 0, "start": 0, "stop": 1},
    "delete_records": {"name": TOPIC, "partition": 0, "offset": 0},
    "topics": {"names": [TOPIC]},
    "init_producer": {},
    "status": {},
    "clients": {},
    "groups": {},
    "group_names": {},
    "group": {"group": GROUP},
    "alter_group": {"group": GROUP, "settings": {"consumer.session.timeout.ms": 60_000}},
    "offsets": {"group": GROUP},
    "commit": {"group": GROUP, "offsets": [[TOPIC, 0, 1]]},
    "delete_offsets": {"group": GROUP, "partitions": [[TOPIC, 0]]},
    "group_coordinator": {"group": GROUP},
    "join_group": {**MEMBER, "session_ms": 6_000, "topics": {TOPIC: 1}},
    "group_registry": {**MEMBER, "epoch": ""},
    "claim_partitions": {**MEMBER, "epoch": "", "partitions": [[TOPIC, 0, 0]]},
    "release_partitions": {**MEMBER, "epoch": "", "partitions": [[TOPIC, 0]]},
    "commit_owned": {**MEMBER, "epoch": "", "offsets": [[TOPIC, 0, 1, ""]]},
    "await_change": {**MEMBER, "epoch": "", "revision": 0, "wait_ms": 0},
    "leave_group": {**MEMBER, "epoch": ""},
    "transactions": {},
    "transaction": {"id": TRANSACTIONAL_ID},
    "abort_transaction": {"id": TRANSACTIONAL_ID},
    "hanging_transactions": {"name": "gone", "partition": 0},
    "abort_hanging": {"name": "gone", "partition": 0},
    "init_transactions": {"id": TRANSACTIONAL_ID, "timeout_ms": 1_000},
    "add_partitions": {"id": TRANSACTIONAL_ID, "producer_id": 0, "epoch": 0, "partitions": [[TOPIC, 0]]},
    "add_offsets": {
        "id": TRANSACTIONAL_ID,
        "producer_id": 0,
        "epoch": 0,
        **{name: MEMBER[name] for name in ("group", "member", "secret")},
        "offsets": [[TOPIC, 0, 1]],
    },
    "end_transaction": {"id": TRANSACTIONAL_ID, "producer_id": 0, "epoch": 0, "committed": False},
    "begin_passing": {},
    "transaction_steps": {"passed": PASSED, "producer": [0, 0], "lead": [0, 0], "parts": []},
    "open_at": {"partitions": []},
    "pending_offsets": {"groups": [GROUP]},
    "announce_pending": {"group": GROUP, "id": TRANSACTIONAL_ID},
    "pass_offsets": {
        "passed": PASSED,
        "id": TRANSACTIONAL_ID,
        "producer": [0, 0],
        "consumer": [GROUP, "", None, -1],
        "offsets": [],
    },
    "may_commit": {"consumer": [GROUP, "", None, -1]},
    "take_offsets": {"id": TRANSACTIONAL_ID, "group": GROUP, "gone": []},
    "pass_verb": {"passed": PASSED, "verb": "transactions", "arguments": {}},
    "deleted_at_peer": {"id": "f" * 32},
    "users": {},
    "put_user": {"name": "nobody", "verifiers": {"SCRAM-SHA-256": "wrong"}, "new": True},
    "alter_user": {"name": "nobody", "locked": True},
    "delete_user": {"name": "nobody"},
    "quotas": {},
    "put_quota": {"user": "nobody", "limits": {"request_rate": None}},
    "accept_clock": {},
    "acls": {},
    "add_acls": {"acls": []},
    "delete_acls": {"name": "none", "dry_run": True},
    "roles": {},
    "create_role": {"name": "no name"},
    "alter_role": {"name": "nothing"},
    "delete_role": {"name": "nothing"},
}


KAFKA_RIGHTS: dict[str, NeededRights] = {api.name: api.rights for api in APIS.values()}
VERB_RIGHTS: dict[str, NeededRights] = {verb.name: verb.rights for verb in native_admin.VERBS.values()}


def acl(right: Right, host: str = CLIENT, name: str = "") -> Acl:
    kind = right.resource
    named = name or NAMES[kind]
    return Acl(kind, named, PatternType.LITERAL, ANONYMOUS, host, right.operation, Permission.ALLOW)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An appliance where the super client may do everything, and nobody else anything."""
    data_dir = tmp_path_factory.mktemp("matrix") / "data"
    data_dir.mkdir(mode=0o700)
    kinds = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID, ResourceType.CLUSTER)
    rules = [
        acl(Right(Operation.ALL, kind, How.WHOLE), SUPER, CLUSTER_NAME if kind is ResourceType.CLUSTER else "*")
        for kind in kinds
    ]
    state = {"state": {"acls": sorted(rules)}}
    path: Path = data_dir / "security.json"
    path.write_bytes(msgspec.json.encode(state))
    path.chmod(0o600)
    both = "127.0.0.1:0, SASL_PLAINTEXT://127.0.0.1:0"
    settings = {"kafka.listen": both, "native.listen": both, "security.authorizer": "acl"}
    with Server(data_dir, None, **settings) as started:
        with Peer(started.native) as peer:  # a client without rights
            assert peer.call([native.ADMIN, 1, "create_topic", {"name": TOPIC}])[0][1] == 29
        with super_peer(started) as peer:
            peer.create(TOPIC)
        yield started


def super_peer(server: Server) -> Peer:
    """A native client at the address that may do everything."""
    peer = Peer.__new__(Peer)
    peer.sock = socket.create_connection(("127.0.0.1", int(server.native.rpartition(":")[2])), 20, (SUPER, 0))
    peer._received = b""
    assert peer.call([native.HELLO, 0, native.MAGIC, native.VERSION, "super"])[0][1] == 0
    return peer


@pytest.fixture
def grant(server: Server) -> Iterator[Callable[..., None]]:
    """Give the clients at 127.0.0.1 these rights, and no others."""
    with super_peer(server) as peer:

        def give(*rights: Right) -> None:
            peer.admin("delete_acls", host=CLIENT)
            rows = [acl(right) for right in dict.fromkeys(rights)]
            names = ("resource", "operation", "pattern", "permission")
            peer.admin(
                "add_acls",
                acls=[
                    {"name": row.name, "principal": row.principal, "host": row.host}
                    | {name: word(getattr(row, name)) for name in names}
                    for row in rows
                ],
            )

        yield give
        give()


def codes(reply: Any) -> set[int]:
    """All error codes of a reply, at any depth."""
    found = set()
    for name in reply.__slots__ if hasattr(reply, "__slots__") else vars(reply):
        value = getattr(reply, name)
        if name in ("error_code", "partition_error_code"):  # the latter in AddPartitionsToTxn
            found.add(value)
        for each in value if isinstance(value, list) else ():
            if hasattr(each, "__dict__") or hasattr(each, "__slots__"):
                found |= codes(each)
    return found


def ask(server: Server, api: str, **values: Any) -> Any:
    """One request on a connection of its own: the rules before it were answered, so that it sees them."""
    with KafkaPeer(server.kafka) as peer:
        peer.ask("Metadata", topics=[])  # a worker reads its snapshot before it answers this
        return peer.ask(api, **values)


def rows_with(how: tuple[How, ...], table: dict[str, tuple[Right, ...]]) -> list[str]:
    return sorted(api for api, row in table.items() if any(right.how in how for right in row))


OF_MEMBERS = [verb.name for verb in native_admin.VERBS.values() if "member" in verb.arguments.__struct_fields__]


@pytest.mark.parametrize("verb", OF_MEMBERS)
def test_who_knows_a_members_id_and_not_its_secret_can_do_nothing_in_its_name(server: Server, verb: str) -> None:
    """Whatever rights they have: ids of members are shown to all who may describe their group."""
    with super_peer(server) as peer:
        for stolen in ({"secret": "another"}, {"secret": ""}, {"member": f"{GROUP}_another"}):
            reply = peer.call([native.ADMIN, 1, verb, VERBS[verb] | stolen])[0]
            assert reply[1] == GroupNotPermitted.code and "another member" in reply[2], stolen


def test_there_is_a_request_of_every_api() -> None:
    """A new API without a request here, or without a row in the table, fails."""
    assert KAFKA_RIGHTS.keys() - LOGINS == REQUESTS.keys()
    assert native_admin.VERBS.keys() == VERBS.keys()
    assert native.RIGHTS.keys() == {frame[0] for frame in NATIVE.values()}


@pytest.mark.parametrize("api", rows_with(CHECKED, KAFKA_RIGHTS))
def test_every_right_is_needed(server: Server, grant: Callable[..., None], api: str) -> None:
    row = KAFKA_RIGHTS[api]
    apart = {right for right in row if (api, right.resource) in OTHERS}
    needed = [right for right in dict.fromkeys(row) if right.how in CHECKED and right not in apart]
    if api == "Metadata":  # to create a topic needs more: see below
        needed = needed[:1]
    grant()
    assert codes(ask(server, api, **REQUESTS[api])) & REFUSED, "without any right"
    if len(needed) > 1:
        for missing in needed:
            if (api, missing.resource) in WITHOUT_GROUPS:
                continue
            grant(*(right for right in needed if right is not missing))
            assert codes(ask(server, api, **REQUESTS[api])) & REFUSED, f"without {missing}"
    grant(*needed)
    assert not codes(ask(server, api, **REQUESTS[api])) & REFUSED, "with all rights"
    for right in apart:
        grant(*(one for one in row if one.resource is not right.resource))
        request = REQUESTS[api] | OTHERS[api, right.resource]
        assert codes(ask(server, api, **request)) & REFUSED, f"without {right}"
        grant(right, *(needed if api == "Produce" else ()))  # it names topics as well
        assert not codes(ask(server, api, **request)) & REFUSED, f"with {right}"
    if api == "DeleteTopics":
        with super_peer(server) as peer:
            peer.create(TOPIC)


@pytest.mark.parametrize("api", rows_with((How.SUFFICES,), KAFKA_RIGHTS))
def test_one_right_of_the_cluster_suffices(server: Server, grant: Callable[..., None], api: str) -> None:
    suffices = [right for right in KAFKA_RIGHTS[api] if right.how is How.SUFFICES]
    others = [right for right in KAFKA_RIGHTS[api] if right.operation is Operation.DESCRIBE and right not in suffices]
    grant(*suffices, *others)
    assert not codes(ask(server, api, **REQUESTS[api])) & REFUSED


def test_listings_leave_out_what_may_not_be_described(server: Server, grant: Callable[..., None]) -> None:
    listings = set(rows_with((How.LISTED,), KAFKA_RIGHTS))
    everywhere = {"Metadata", "ListGroups", "ListTransactions", "DescribeTopicPartitions"}
    assert listings == everywhere | {"OffsetFetch", "ConsumerGroupHeartbeat", "DescribeTransactions"}, (
        "these three: see their tests"
    )
    everything = {
        "Metadata": {"topics": None},
        "DescribeTopicPartitions": REQUESTS["DescribeTopicPartitions"] | {"topics": []},
    }
    for api, request in everything.items():
        grant()
        reply = ask(server, api, **request)
        assert not codes(reply) & REFUSED and [topic.name for topic in reply.topics] == [], api
        grant(Right(Operation.DESCRIBE, ResourceType.TOPIC, How.LISTED))
        assert [topic.name for topic in ask(server, api, **request).topics] == [TOPIC], api


def test_creating_by_metadata_needs_the_right_to_create(server: Server, grant: Callable[..., None]) -> None:
    describe = Right(Operation.DESCRIBE, ResourceType.TOPIC, How.EACH)
    create = Right(Operation.CREATE, ResourceType.TOPIC, How.EACH)
    request = {"topics": [{"topic_id": None, "name": "auto"}], "allow_auto_topic_creation": True}
    names = NAMES.copy()
    try:
        NAMES[ResourceType.TOPIC] = "auto"
        for rights, error in (((), 29), ((describe,), 29), ((describe, create), 0)):
            grant(*rights)
            assert ask(server, "Metadata", **request).topics[0].error_code == error, rights
    finally:
        NAMES.update(names)


def test_the_cluster_shows_its_operations_to_those_who_may_describe_it(
    server: Server, grant: Callable[..., None]
) -> None:
    request = REQUESTS["DescribeCluster"]
    grant(Right(Operation.ALTER, ResourceType.CLUSTER, How.SHOWN))  # implies Describe
    assert set(ask(server, "DescribeCluster", **request).authorized_operations) == {7, 8}
    grant()
    assert not ask(server, "DescribeCluster", **request).authorized_operations


@pytest.mark.parametrize("verb", rows_with(CHECKED, VERB_RIGHTS))
def test_every_right_of_a_verb_is_needed(server: Server, grant: Callable[..., None], verb: str) -> None:
    needed = [right for right in dict.fromkeys(VERB_RIGHTS[verb]) if right.how in CHECKED]
    if verb == "ensure_topic":  # of a topic that exists
        needed = needed[:1]
    names = NAMES.copy()
    try:
        NAMES[ResourceType.TOPIC] = VERBS[verb].get("name", TOPIC)
        grant()
        assert code(server, verb) in REFUSED, "without any right"
        if len(needed) > 1:
            for missing in needed:
                grant(*(right for right in needed if right is not missing))
                assert code(server, verb) in REFUSED, f"without {missing}"
        grant(*needed)
        assert code(server, verb) not in REFUSED, "with all rights"
    finally:
        NAMES.update(names)


@pytest.mark.parametrize("verb", rows_with(CHECKED, VERB_RIGHTS))
def test_a_verb_that_asks_for_little_tells_nothing(server: Server, grant: Callable[..., None], verb: str) -> None:
    """With none of the arguments that may be left out."""
    required = {
        field.encode_name for field in msgspec.structs.fields(native_admin.VERBS[verb].arguments) if field.required
    }
    grant()
    with Peer(server.native) as peer:
        arguments = {name: value for name, value in VERBS[verb].items() if name in required}
        reply = peer.call([native.ADMIN, 1, verb, arguments])[0]
    assert reply[1] in REFUSED or reply[3] == [], reply


def code(server: Server, verb: str) -> int:
    with Peer(server.native) as peer:
        return int(peer.call([native.ADMIN, 1, verb, VERBS[verb]])[0][1])


def test_every_refusal_is_counted(server: Server, grant: Callable[..., None]) -> None:
    """Those of the coordinator, too: what the audit log has no room for in this second is in its numbers."""
    grant()
    apis = rows_with(CHECKED, KAFKA_RIGHTS)
    verbs = rows_with(CHECKED, VERB_RIGHTS)
    before = server.state["refusals"].get(Reason.DENIED.value, 0)
    with KafkaPeer(server.kafka) as peer, Peer(server.native) as native_peer:
        for api in apis:
            assert codes(peer.ask(api, **REQUESTS[api])) & REFUSED, api
        for verb in verbs:
            assert native_peer.call([native.ADMIN, 1, verb, VERBS[verb]])[0][1] in REFUSED, verb
    wanted = before + len(apis) + len(verbs)
    wait_for(lambda: server.state["refusals"].get(Reason.DENIED.value, 0) >= wanted, "they are counted")


def test_the_native_requests_to_topics(server: Server, grant: Callable[..., None]) -> None:
    def asked() -> list[int]:
        with Peer(server.native) as peer:
            metadata = peer.call([native.METADATA, 1, [TOPIC]])[0][2]["topics"][0]["error"]
            every = peer.call([native.METADATA, 2, None])[0][2]["topics"]
            produced = peer.produce(TOPIC, BATCH)[0]
            fetched = peer.fetch(TOPIC, 0)[0][0]
            offsets = peer.call([native.OFFSETS, 4, [[TOPIC, 0, -1, -1]]])[0][2][0][0]
            return [metadata, len(every), produced, fetched, offsets]

    grant()
    assert asked() == [29, 0, 29, 29, 29]
    for kind, seen in (
        (native.PRODUCE, [0, 1, 0, 29, 0]),
        (native.FETCH, [0, 1, 29, 0, 0]),
        (native.METADATA, [0, 1, 29, 29, 0]),
        (native.OFFSETS, [0, 1, 29, 29, 0]),
    ):
        grant(*native.RIGHTS[kind])
        assert asked() == seen, kind


def test_a_change_empties_what_a_connection_remembers(server: Server, grant: Callable[..., None]) -> None:
    """Also that of a connection which its partition's writer serves."""
    write = Right(Operation.WRITE, ResourceType.TOPIC, How.EACH)
    with KafkaPeer(server.kafka) as peer:
        for _ in range(2):
            grant(write)
            peer.ask("Metadata", topics=[])
            for _ in range(100):  # more than it takes to hand the connection over
                assert codes(peer.ask("Produce", **REQUESTS["Produce"])) == {0}
            grant()
            refused = (codes(peer.ask("Produce", **REQUESTS["Produce"])) for _ in range(10_000))
            assert any(found == {29} for found in refused)


def test_a_request_is_refused_for_the_denied_topics_only(server: Server, grant: Callable[..., None]) -> None:
    with super_peer(server) as peer:
        peer.create("hidden")
    grant(*KAFKA_RIGHTS["Fetch"], *KAFKA_RIGHTS["Produce"], *KAFKA_RIGHTS["OffsetCommit"])
    parts = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 999}
    topics = [{"topic": name, "partitions": [parts]} for name in ("hidden", TOPIC, "none")]
    reply = ask(server, "Fetch", max_bytes=1 << 20, topics=topics)
    assert [topic.partitions[0].error_code for topic in reply.responses] == [29, 0, 29]
    catalog = json.loads((server.data_dir / "catalog.json").read_text())
    ids = {name: UUID(topic["id"]) for name, topic in catalog["topics"].items()}
    topics = [{"topic_id": ids.get(name, UUID(int=7)), "partitions": [parts]} for name in ("hidden", TOPIC, "none")]
    with KafkaPeer(server.kafka) as peer:
        peer.ask("Metadata", topics=[])
        reply = peer.ask("Fetch", 17, max_bytes=1 << 20, topics=topics)
        assert [topic.partitions[0].error_code for topic in reply.responses] == [29, 0, 100]
        data = [{"topic_id": topic["topic_id"], "partition_data": [{"index": 0, "records": BATCH}]} for topic in topics]
        reply = peer.ask("Produce", 13, **(REQUESTS["Produce"] | {"topic_data": data}))
        assert [topic.partition_responses[0].error_code for topic in reply.responses] == [29, 0, 100]
        offset = {"partition_index": 0, "committed_offset": 1}
        commits = [{"topic_id": topic["topic_id"], "partitions": [offset]} for topic in topics]
        reply = peer.ask("OffsetCommit", 10, **(REQUESTS["OffsetCommit"] | {"topics": commits}))
        assert [topic.partitions[0].error_code for topic in reply.topics] == [29, 42, 100], "42: it has no groups"
    data = [{"name": name, "partition_data": [{"index": 0, "records": BATCH}]} for name in ("hidden", TOPIC)]
    reply = ask(server, "Produce", **(REQUESTS["Produce"] | {"topic_data": data}))
    assert [topic.partition_responses[0].error_code for topic in reply.responses] == [29, 0]
    offsets = [{"name": name, "partitions": [{"partition_index": 0, "timestamp": -2}]} for name in ("hidden", TOPIC)]
    reply = ask(server, "ListOffsets", topics=offsets)
    assert [topic.partitions[0].error_code for topic in reply.topics] == [29, 0]


# ---- no login

LOGGED_IN_NOT = LOGINS | {"ApiVersions"}
"""What a listener with a login answers before one."""
SASL = "SASL_PLAINTEXT"
BEFORE: dict[str, dict[str, Any]] = {
    "SaslHandshake": {"mechanism": "SCRAM-SHA-512"},
    "SaslAuthenticate": {"auth_bytes": b"out of order"},
}
NATIVE: dict[str, list[Any]] = {
    "produce": [native.PRODUCE, 1, TOPIC, 0, 1, 9_000],
    "fetch": [native.FETCH, 1, 0, 1, 999, [[TOPIC, 0, 0, 999]]],
    "offsets of partitions": [native.OFFSETS, 1, [[TOPIC, 0, -1, -1]]],
    "metadata": [native.METADATA, 1, None],
    "hello": [native.HELLO, 1, native.MAGIC, native.VERSION, "test"],
    "login": [native.LOGIN, 1, "SCRAM-SHA-512", b"n,,n=nobody,r=nonce"],
}
"""The native requests that are no verbs."""


@pytest.mark.parametrize("api", sorted({api.name for api in APIS.values()}))
def test_without_a_login_nothing_else_is_answered(server: Server, grant: Callable[..., None], api: str) -> None:
    """Even with all rights of who is anonymous; in the lowest and the highest version of each API."""
    grant(*KAFKA_RIGHTS[api])
    key = API_KEYS[api]
    for version in {APIS[key].version_min, APIS[key].version_max}:
        with KafkaPeer(server.address("kafka", SASL)) as peer:
            if api in LOGGED_IN_NOT:
                reply = peer.ask(api, version, **(REQUESTS | BEFORE)[api])
                assert reply.error_code == (34 if api == "SaslAuthenticate" else 0)
            else:
                peer.send(api, version)
                assert peer.hung_up(), version


@pytest.mark.parametrize("name", [*NATIVE, *VERBS])
def test_without_a_login_no_native_request_is_answered(server: Server, grant: Callable[..., None], name: str) -> None:
    grant(*(native.RIGHTS[NATIVE[name][0]] if name in NATIVE else VERB_RIGHTS[name]))
    with Peer(server.address("native", SASL)) as peer:
        header = NATIVE[name] if name in NATIVE else [native.ADMIN, 1, name, VERBS[name]]
        if name == "login":
            assert peer.call(header)[0][1] == 0
        else:  # also a second hello
            peer.send(header, BATCH if name == "produce" else b"")
            assert peer.hung_up()


def test_refusals_are_counted(server: Server) -> None:
    assert server.state["refusals"]["denied"] > 0
    assert "reason=denied who=User:ANONYMOUS" in server.log()
