"""appliance.groups.group_lookup_api: groups are described, listed and deleted in every version."""

from __future__ import annotations

import pytest

from appliance.groups.store import Commit, RegisteredGroup, RegisteredMember
from appliance.wire.kafka.apis import APIS
from appliance.wire.kafka.codes import Code

from ..support.kafka_apis_fixture import ASSIGNMENT, KEY, SUBSCRIPTION, run
from ..support.kafka_group import stable


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
        assert [group.error_code for group in groups] == [0, 0, 0, Code.GROUP_ID_NOT_FOUND if version >= 6 else 0]
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
