"""appliance.processes.coordinator.change_log: administrative changes of both listeners in the audit log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from appliance.addresses import PLAINTEXT, Listener
from appliance.errors import UnknownUser, ZooKeeperAway
from appliance.processes.coordinator.change_log import KAFKA_CHANGES, ChangeLog
from appliance.records.encode import encode_values
from appliance.security.acls import Operation
from appliance.security.audit_log import Audit
from appliance.security.principals import Origin
from appliance.security.verb_changes import VERB_CHANGES
from appliance.wire import native
from appliance.wire.kafka.apis import APIS, Api
from appliance.wire.native_admin import VERBS, Verb

from ...support.kafka_peer import KafkaPeer
from ...support.native_peer import Peer
from ...support.server import Server, wait_for


def changes(server: Server) -> list[str]:
    """What the log says of changes, without the addresses of clients."""
    lines = [line.partition("changed: ")[2] for line in server.log().splitlines() if " audit: changed: " in line]
    return [" ".join(word for word in line.split(" ") if not word.startswith("from=")) for line in lines]


def test_each_change_has_a_line_and_what_is_refused_has_none(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance()
    with Peer(server.native) as peer:
        peer.admin("create_topic", name="web", settings={"retention.ms": "1h"})
        peer.call([native.ADMIN, 1, "create_topic", {"name": "web"}])  # is there already
        peer.admin("topics")
        peer.admin("delete_topic", name="web")
    admin = AdminClient({"bootstrap.servers": server.kafka})
    created = admin.create_topics([NewTopic("logs", 2), NewTopic("bad name", 1)])
    assert created["logs"].result(60) is None and created["bad name"].exception(60) is not None
    admin.create_topics([NewTopic("tried", 1)], validate_only=True)["tried"].result(60)
    assert admin.delete_topics(["none"])["none"].exception(60) is not None
    assert admin.delete_topics(["logs"])["logs"].result(60) is None
    expected = [
        "who=User:ANONYMOUS what=create_topic topic=web partitions=1 settings=retention.ms=1h",
        "who=User:ANONYMOUS what=delete_topic topic=web",
        "who=User:ANONYMOUS what=CreateTopics topic=logs partitions=2",
        "who=User:ANONYMOUS what=DeleteTopics topic=logs",
    ]
    wait_for(lambda: len(changes(server)) >= len(expected), "the lines are written")
    assert changes(server) == expected


def test_changes_of_rules_users_and_quotas_over_kafka_have_lines(make_appliance: Callable[..., Server]) -> None:
    """What was read, refused, or the password itself, is not there."""
    server = make_appliance(**{"security.authorizer": "acl", "security.super_users": "User:ANONYMOUS"})
    admin = AdminClient({"bootstrap.servers": server.kafka})
    named = (ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "User:a", "*", AclOperation.READ)
    binding = AclBinding(*named, AclPermissionType.ALLOW)
    admin.create_acls([binding])[binding].result(60)
    chosen = AclBindingFilter(*named, AclPermissionType.ALLOW)
    assert len(admin.describe_acls(chosen).result(60)) == 1
    assert len(admin.delete_acls([chosen])[chosen].result(60)) == 1
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    admin.alter_user_scram_credentials([UserScramCredentialUpsertion("u", info, b"secret")])["u"].result(60)
    gone = UserScramCredentialDeletion("none", ScramMechanism.SCRAM_SHA_256)
    assert admin.alter_user_scram_credentials([gone])["none"].exception(60) is not None
    with KafkaPeer(server.kafka) as peer:
        ops = [{"key": "producer_byte_rate", "value": 1024.0, "remove": False}]
        entry = {"entity": [{"entity_type": "user", "entity_name": "u"}], "ops": ops}
        assert peer.ask("AlterClientQuotas", entries=[entry], validate_only=False).entries[0].error_code == 0
    rule_of_a = "permission=Allow principal=User:a host=* operation=Read resource=Topic pattern=Literal name=t"
    expected = [
        f"who=User:ANONYMOUS what=CreateAcls {rule_of_a}",
        f"who=User:ANONYMOUS what=DeleteAcls {rule_of_a}",
        "who=User:ANONYMOUS what=AlterUserScramCredentials user=u set=SCRAM-SHA-256 iterations=4096",
        "who=User:ANONYMOUS what=AlterClientQuotas user=u producer_byte_rate=1024.0",
    ]
    rule = {"resource": "topic", "name": "n", "principal": "User:b", "operation": "Write"}
    with Peer(server.native) as peer:
        peer.admin("add_acls", acls=[rule | {"pattern": "Prefixed", "host": "10.0.0.7", "permission": "Deny"}])
        assert len(peer.admin("delete_acls", name="n", dry_run=True)) == 1
        peer.admin("delete_acls", name="n")
        peer.admin("add_acls", acls=[])
    deny = "permission=Deny principal=User:b host=10.0.0.7 operation=Write"
    expected += [
        f"who=User:ANONYMOUS what=add_acls {deny} resource=topic pattern=Prefixed name=n",
        f"who=User:ANONYMOUS what=delete_acls {deny} resource=Topic pattern=Prefixed name=n",
    ]
    wait_for(lambda: len(changes(server)) >= len(expected), "the lines are written")
    assert changes(server) == expected
    assert "secret" not in server.log()


def line_of(server: Server, *words: str) -> str:
    """The line of the audit log with all of these words, as soon as it is there."""

    def found() -> list[str]:
        return [line for line in changes(server) if set(words) <= set(line.split(" "))]

    lines: list[str] = wait_for(found, f"a line with {words}")
    assert len(lines) == 1, lines
    return lines[0]


NAMES = [letter * 240 for letter in "abcdefghijklm"] + ["victim"]
"""Long ones first."""


def test_topics_do_not_take_the_room_of_others(make_appliance: Callable[..., Server]) -> None:
    """Each of many topics that one request changes has a line, with all of the change."""
    server = make_appliance()
    configs = [{"name": "retention.bytes", "value": "1"}, {"name": "segment.ms", "value": "5000"}]
    new = [{"name": name, "num_partitions": 1, "replication_factor": 1, "configs": configs} for name in NAMES]
    ops = [
        {"name": "retention.bytes", "config_operation": 0, "value": "7"},
        {"name": "segment.ms", "config_operation": 1, "value": None},
    ]
    everything = [{"partition_index": 2, "offset": -1}]
    with KafkaPeer(server.kafka) as peer, Peer(server.native) as native_peer:
        peer.ask("CreateTopics", topics=new, timeout_ms=60_000)
        resources = [{"resource_type": 2, "resource_name": name, "configs": ops} for name in NAMES]
        peer.ask("IncrementalAlterConfigs", resources=resources)
        whole = [{"resource_type": 2, "resource_name": name, "configs": configs[:1]} for name in NAMES]
        peer.ask("AlterConfigs", resources=whole)
        peer.ask("CreatePartitions", topics=[{"name": name, "count": 3} for name in NAMES], timeout_ms=60_000)
        peer.ask("DeleteRecords", topics=[{"name": name, "partitions": everything} for name in NAMES])
        native_peer.admin("alter_topic", name="victim", settings={"retention.bytes": "1", "retention.ms": None})
        native_peer.admin("delete_records", name="victim", partition=1, offset=0)
        peer.ask("DeleteTopics", 5, topic_names=NAMES, timeout_ms=60_000)
    for name in (NAMES[0], "victim"):
        one = f"topic={name}"
        line_of(server, "what=CreateTopics", one, "partitions=1", 'settings="retention.bytes=1', 'segment.ms=5000"')
        line_of(server, "what=IncrementalAlterConfigs", one, 'settings="retention.bytes=7', 'segment.ms=default"')
        line_of(server, "what=AlterConfigs", one, "settings=retention.bytes=1", "others=default")
        line_of(server, "what=CreatePartitions", one, "partitions=3")
        line_of(server, "what=DeleteRecords", one, "partition=2", "before=0")
        line_of(server, "what=DeleteTopics", one)
    line_of(server, "what=alter_topic", "topic=victim", 'settings="retention.bytes=1', 'retention.ms=default"')
    line_of(server, "what=delete_records", "topic=victim", "partition=1", "offset=0")


def test_rules_and_limits_do_not_take_the_room_of_others(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**{"security.authorizer": "acl", "security.super_users": "User:ANONYMOUS"})
    rule = {"resource": "Topic", "operation": "All", "host": "10.0.0.7", "pattern": "Prefixed"}
    ops = [
        {"key": "producer_byte_rate", "value": 5.0, "remove": False},
        {"key": "request_rate", "value": 0.0, "remove": True},
    ]
    entities = [
        [{"entity_type": "user", "entity_name": name}, {"entity_type": "client-id", "entity_name": None}]
        for name in NAMES
    ]
    with KafkaPeer(server.kafka) as peer, Peer(server.native) as native_peer:
        native_peer.admin("add_acls", acls=[{**rule, "name": name, "principal": f"User:{name}"} for name in NAMES])
        native_peer.admin("delete_acls", principal="User:victim")
        entries = [{"entity": entity, "ops": ops} for entity in entities]
        peer.ask("AlterClientQuotas", entries=entries, validate_only=False)
    for name in (NAMES[0], "victim"):
        shown = ("host=10.0.0.7", "operation=All", "pattern=Prefixed", f"name={name}")
        line_of(server, "what=add_acls", f"principal=User:{name}", *shown)
        limits = ("producer_byte_rate=5.0", "request_rate=none")
        line_of(server, "what=AlterClientQuotas", f"user={name}", 'client-id="<default>"', *limits)
    line_of(server, "what=delete_acls", "principal=User:victim", "host=10.0.0.7")


def test_topics_that_are_made_on_demand_have_a_line(make_appliance: Callable[..., Server]) -> None:
    """Once, when they are made."""
    server = make_appliance()
    asked = [{"name": "by-kafka", "topic_id": None}]
    with KafkaPeer(server.kafka) as peer, Peer(server.native) as native_peer:
        for _ in range(2):
            peer.ask("Metadata", topics=asked, allow_auto_topic_creation=True)
            native_peer.admin("ensure_topic", name="by-native")
        peer.ask("Metadata", topics=asked, allow_auto_topic_creation=False)
        native_peer.admin("create_topic", name="last")
    line_of(server, "what=create_topic", "topic=last")
    for name in ("by-kafka", "by-native"):
        line_of(server, 'what="create', "topic", "on", 'demand"', f"topic={name}", "partitions=1")


CHANGING = {Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS}
WITHOUT_EFFECT = {"ElectLeaders", "AlterPartitionReassignments"}


def test_whatever_changes_something_has_lines() -> None:
    """Method: its row says so, and so does whatever needs a right to change something."""
    rows: list[Api | Verb] = [*APIS.values(), *VERBS.values()]
    changing = {row.name for row in rows if row.changes}
    assert changing == KAFKA_CHANGES.keys() | VERB_CHANGES.keys()
    needed = {row.name for row in rows if CHANGING & {right.operation for right in row.rights}}
    assert needed - WITHOUT_EFFECT <= changing


@pytest.mark.parametrize(
    ("verb", "given", "result", "expected"),
    [
        (
            "repair",
            {"name": "web", "partition": 1, "cut": True},
            {"actions": [], "start": 0, "end": 5, "hole_bytes": 6, "cut_bytes": 7},
            ["topic=web partition=1 cut=yes end=5 hole_bytes=6 cut_bytes=7"],
        ),
        ("abort_hanging", {"name": "web", "partition": 1}, None, ["topic=web partition=1"]),
        (
            "commit",
            {"group": "g", "offsets": [["web", 0, 5], ["web", 1, 6]]},
            None,
            ["group=g topic=web partition=0 offset=5", "group=g topic=web partition=1 offset=6"],
        ),
        (
            "alter_group",
            {"group": "g", "settings": {"consumer.session.timeout.ms": "60s", "consumer.heartbeat.interval.ms": None}},
            None,
            ['group=g settings="consumer.session.timeout.ms=60s consumer.heartbeat.interval.ms=default"'],
        ),
        ("delete_offsets", {"group": "g"}, None, ["group=g partitions=all"]),
        ("delete_offsets", {"group": "g", "partitions": [["web", 0]]}, None, ["group=g topic=web partition=0"]),
        (
            "put_user",
            {"name": "u", "verifiers": {"SCRAM-SHA-512": "the verifier"}, "new": True},
            None,
            ["user=u set=SCRAM-SHA-512 new=yes"],
        ),
        ("alter_user", {"name": "u", "locked": True}, None, ["user=u locked=yes"]),
        (
            "alter_user",
            {"name": "u", "locked": False, "expires_ms": 5, "kick": True},
            None,
            ["user=u expires_ms=5 kick=yes locked=no"],
        ),
        ("delete_user", {"name": "u"}, None, ["user=u"]),
        (
            "put_quota",
            {"user": "u", "client_id": "", "limits": {"request_rate": 5.0, "producer_byte_rate": None}},
            None,
            ['user=u client-id="<default>" request_rate=5.0 producer_byte_rate=none'],
        ),
        ("create_role", {"name": "r"}, None, ["role=r"]),
        (
            "alter_role",
            {"name": "r", "grant": ["u", "v"], "revoke": ["w"]},
            None,
            ["role=r granted=u", "role=r granted=v", "role=r revoked=w"],
        ),
        ("delete_role", {"name": "r"}, {"users": ["u"], "rules": []}, ["role=r", "role=r revoked=u"]),
        ("undelete_topic", {"name": "t"}, {"name": "t", "partitions": 2}, ["topic=t as=t partitions=2"]),
        ("undelete_topic", {"name": "t", "new_name": "n"}, None, ["topic=t as=n"]),
    ],
)
def test_the_lines_of_verbs(
    verb: str, given: dict[str, Any], result: Any, expected: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "appliance.audit")
    frame = native.encode_frame([native.ADMIN, 1, verb, given])[4:]
    origin = Origin(Listener("native", PLAINTEXT, "127.0.0.1:1"), "10.0.0.7:5", "User:a")
    ChangeLog(Audit(lambda: 0), lambda *_, **__: {}).on_native(origin, frame, native.encode_frame([1, 0, "", result]))
    start = f"changed: who=User:a from=10.0.0.7:5 what={verb}"
    assert caplog.messages == [f"{start} {line}".rstrip() for line in expected]


@pytest.mark.parametrize(("code", "lines"), [(ZooKeeperAway.code, 1), (UnknownUser.code, 0)])
def test_what_may_have_been_done_has_a_line(code: int, lines: int, caplog: pytest.LogCaptureFixture) -> None:
    """A reply that did not come in time does not say that nothing was done."""
    caplog.set_level(logging.INFO, "appliance.audit")
    frame = native.encode_frame([native.ADMIN, 1, "delete_user", {"name": "u"}])[4:]
    origin = Origin(Listener("native", PLAINTEXT, "127.0.0.1:1"), "10.0.0.7:5", "User:a")
    ChangeLog(Audit(lambda: 0), lambda *_, **__: {}).on_native(
        origin, frame, native.encode_frame([1, code, "away", None])
    )
    assert [f"error={code}" in line for line in caplog.messages] == [True] * lines


def test_the_line_of_a_deletion_names_the_groups_that_had_not_read_what_goes(
    make_appliance: Callable[..., Server],
) -> None:
    """By each of the four ways; groups that have read it, or never committed, have no part in it."""
    server = make_appliance(**{"zookeeper.nodes": 1})
    server.wait_for_zookeeper()
    batch = encode_values([b"unread"], 1_000)
    size = len(batch)
    kafka = AdminClient({"bootstrap.servers": server.kafka})
    with Peer(server.native) as peer:
        for topic in ("a", "b"):
            peer.create(topic, 2)
            for number in range(8):
                assert peer.produce(topic, batch, number % 2, acks=-1)[0] == 0
            peer.admin("commit", group="has not", offsets=[[topic, 0, size], [topic, 1, 0]])
            peer.admin("commit", group="slower", offsets=[[topic, 0, 0], [topic, 1, 0]])
            peer.admin("commit", group="has", offsets=[[topic, 0, 4 * size], [topic, 1, 4 * size]])
        peer.admin("delete_records", name="a", partition=0, offset=3 * size)
        trimmed = Position("b", 0, 3 * size)
        kafka.delete_records([trimmed])[trimmed].result(60)
        peer.admin("delete_topic", name="a")
    kafka.delete_topics(["b"])["b"].result(60)
    trims = f'unread="slower={3 * size} has%20not={2 * size}"'
    deletes = f'unread="has%20not={5 * size} slower={5 * size}"'
    expected = {
        f"what=delete_records topic=a partition=0 offset={3 * size} {trims}",
        f"what=DeleteRecords topic=b partition=0 before={3 * size} {trims}",
        f"what=delete_topic topic=a {deletes}",
        f"what=DeleteTopics topic=b {deletes}",
    }

    def lines() -> set[str]:
        found = {line.removeprefix("who=User:ANONYMOUS ") for line in changes(server)}
        return {line for line in found if "elete" in line.split()[0]}

    wait_for(lambda: len(lines()) == len(expected), "the lines are written")
    assert lines() == expected


def test_retention_names_the_groups_that_had_not_read_what_goes(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**{"zookeeper.nodes": 1, "disk.check_ms": 100})
    server.wait_for_zookeeper()
    batch = encode_values([bytes(1 << 19)], 1_000)
    size = len(batch)
    with Peer(server.native) as peer:
        peer.create("t", segment_bytes=1 << 20)
        for _ in range(4):
            assert peer.produce("t", batch, acks=-1)[0] == 0
        peer.admin("commit", group="has not", offsets=[["t", 0, size]])
        peer.admin("commit", group="has", offsets=[["t", 0, 4 * size]])
        peer.admin("alter_topic", name="t", settings={"retention.bytes": size + 1})
        wait_for(lambda: "retention removes" in server.log(), "the line of the deletion")
    (line,) = [line for line in server.log().splitlines() if "retention removes" in line]
    lost, _, more = line.partition("has%20not=")[2].partition(" ")
    assert line.count("=") == 2 and int(lost) in (size, 2 * size) and not more


def test_groups_that_nobody_can_ask_for_are_said_to_be_unknown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "appliance.audit")
    origin = Origin(Listener("native", PLAINTEXT, "127.0.0.1:1"), "10.0.0.7:5", "User:a")
    frame = native.encode_frame([native.ADMIN, 1, "delete_topic", {"name": "t"}])[4:]
    groups = {f"g{number}": 100 - number for number in range(12)}
    for unread in (None, groups):
        log = ChangeLog(Audit(lambda: 0), lambda *_, found=unread: found)
        log.on_native(origin, frame, native.encode_frame([1, 0, "", {"trash_ms": 0}]))
    first, second = caplog.messages
    assert first.endswith("topic=t unread=unknown")
    assert 'unread="g0=100 g1=99 ' in second and second.endswith("more_unread=2")
