"""appliance.groups.group_lookup_api: groups are found, described, listed and deleted in every version."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.groups.store import Commit, RegisteredGroup, RegisteredMember
from appliance.wire.kafka.apis import APIS
from appliance.wire.kafka.codes import Code

from ..support.kafka_apis_fixture import ASSIGNMENT, KEY, LISTENER, SUBSCRIPTION, Client, FakeCluster, run
from ..support.kafka_group import stable


@pytest.mark.parametrize("version", range(APIS[KEY["FindCoordinator"]].version_max + 1))
def test_find_coordinator_in_every_version(version: int) -> None:
    client = Client(FakeCluster())

    async def find(key: str, key_type: int = 0) -> Any:
        if version >= 4:
            (found,) = (await client.ask("FindCoordinator", coordinator_keys=[key], key_type=key_type)).coordinators
            return found
        more = {"key_type": key_type} if version >= 1 else {}
        return await client.ask("FindCoordinator", version, key=key, **more)

    found = run(find("g"))
    assert (found.error_code, found.node_id, found.host, found.port) == (0, 1, "here", 9092)
    assert run(find("")).error_code == 0, "as in Kafka: joining it is what is refused"
    assert run(find("g" * 256)).error_code == Code.INVALID_GROUP_ID
    if version >= 1:
        refused = run(find("tx", 1))
        repeats = version == 2  # librdkafka asks so, and repeats the request at any other code
        wanted = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if repeats else Code.UNSUPPORTED_VERSION
        assert refused.error_code == wanted
        assert "not supported" in refused.error_message
        assert run(find("x", 2)).error_code == Code.INVALID_REQUEST


@pytest.mark.parametrize("version", range(APIS[KEY["DescribeGroups"]].version_max + 1))
def test_describe_in_every_version(version: int) -> None:
    async def scenario() -> None:
        cluster, client, member_id = await stable()
        cluster.positions["resting"] = {("t", 0): Commit(1)}
        native = RegisteredMember("n", "app", "host", ("t",), (("t", 0), ("t", 1)))
        cluster.native["paper"] = RegisteredGroup("paper", True, (native,))
        names = ["g", "resting", "paper", "nobody"]
        more = {"include_authorized_operations": True} if version >= 3 else {}
        groups = (await client.ask("DescribeGroups", version, groups=names, **more)).groups
        assert [group.group_state for group in groups] == ["Stable", "Empty", "Stable", "Dead"]
        assert [group.protocol_data for group in groups] == ["range", "", "range", ""]
        (member,) = groups[0].members
        assert (member.member_id, member.client_id, member.client_host) == (member_id, "me", "/10.0.0.7")
        assert (bytes(member.member_metadata), bytes(member.member_assignment)) == (SUBSCRIPTION, ASSIGNMENT)
        (shown,) = groups[2].members
        assert (shown.member_id, shown.client_host) == ("n", "host")
        assert bytes(shown.member_assignment)[2:] == ASSIGNMENT[2:], "as Kafka's own consumers write it"

    run(scenario())


def test_list_in_every_version() -> None:
    async def scenario(version: int) -> None:
        cluster, client, _ = await stable()
        cluster.positions["resting"] = {}
        cluster.native["paper"] = RegisteredGroup("paper", True, (RegisteredMember("n", "", "", (), ()),))
        reply = await client.ask("ListGroups", version)
        assert [group.group_id for group in reply.groups] == ["g", "paper", "resting"]
        if version >= 4:
            some = await client.ask("ListGroups", version, states_filter=["stable"])
            assert [group.group_id for group in some.groups] == ["g", "paper"]
        if version >= 5:
            assert {group.group_type for group in reply.groups} == {"classic"}
            for types, count in ((["Classic", "share"], 3), (["consumer"], 0)):
                assert len((await client.ask("ListGroups", version, types_filter=types)).groups) == count
        cluster.away = True
        partly = await client.ask("ListGroups", version)
        assert partly.error_code == Code.COORDINATOR_LOAD_IN_PROGRESS
        assert [group.group_id for group in partly.groups] == ["g"], "what we know, and that there may be more"

    for version in range(APIS[KEY["ListGroups"]].version_max + 1):
        run(scenario(version))


def test_delete_groups() -> None:
    async def scenario() -> None:
        cluster, client, member_id = await stable()
        cluster.positions |= {"g": {}, "resting": {}}
        names = ["g", "resting", "nobody"]
        reply = await client.ask("DeleteGroups", groups_names=names)
        assert [each.error_code for each in reply.results] == [Code.NON_EMPTY_GROUP, 0, Code.GROUP_ID_NOT_FOUND]
        assert list(cluster.positions) == ["g"]
        await client.ask("LeaveGroup", group_id="g", members=[{"member_id": member_id}])
        cluster.away = True
        away = await client.ask("DeleteGroups", groups_names=["g"])
        assert away.results[0].error_code == Code.COORDINATOR_LOAD_IN_PROGRESS

    run(scenario())


def test_the_listener_decides_what_a_client_is_told() -> None:
    cluster = FakeCluster()
    found = run(Client(cluster).ask("FindCoordinator", 3, key_type=0, key="g"))
    assert (found.node_id, found.host, found.port) == (1, "here", 9092), f"asked through {LISTENER}"
