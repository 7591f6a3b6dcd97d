"""appliance.groups.member_api: members join, sync, beat and leave in every version."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from appliance.groups.store import RegisteredGroup, RegisteredMember
from appliance.wire.kafka.apis import APIS
from appliance.wire.kafka.codes import Code

from ..support.kafka_apis_fixture import KEY, Client, FakeCluster, run
from ..support.kafka_group import stable


@pytest.mark.parametrize("version", range(APIS[KEY["JoinGroup"]].version_max + 1))
def test_join_and_sync_in_every_version(version: int) -> None:
    cluster, _, member_id = run(stable(version))
    shown = cluster.shown["g"]
    assert shown == [RegisteredMember(member_id, "me", "/10.0.0.7", ("t",), (("t", 0), ("t", 1)))]


def test_heartbeat_and_leave_in_every_version() -> None:
    async def scenario(version: int) -> None:
        cluster, client, member_id = await stable()
        beat: dict[str, Any] = {"group_id": "g", "generation_id": 1, "member_id": member_id}
        assert (await client.ask("Heartbeat", min(version, 4), **beat)).error_code == 0
        late = await client.ask("Heartbeat", min(version, 4), **(beat | {"generation_id": 0}))
        assert late.error_code == Code.ILLEGAL_GENERATION
        if version < 3:
            left = await client.ask("LeaveGroup", version, group_id="g", member_id=member_id)
            assert left.error_code == 0
        else:
            members = [{"member_id": member_id}, {"member_id": "stranger"}]
            left = await client.ask("LeaveGroup", version, group_id="g", members=members)
            assert [each.error_code for each in left.members] == [0, Code.UNKNOWN_MEMBER_ID]
        assert cluster.shown["g"] == []
        assert not client.coordinator.groups()
        again = await client.ask("Heartbeat", **beat)
        assert again.error_code == Code.UNKNOWN_MEMBER_ID

    for version in range(APIS[KEY["LeaveGroup"]].version_max + 1):
        run(scenario(version))


def test_members_of_both_listeners_do_not_mix() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        native = RegisteredMember("n", "", "host", ("t",), (("t", 0),))
        cluster.native["g"] = RegisteredGroup("g", True, (native,))
        client = Client(cluster)
        assert (await client.join()).error_code == Code.INCONSISTENT_GROUP_PROTOCOL
        cluster.away = True
        assert (await client.join()).error_code == Code.COORDINATOR_NOT_AVAILABLE, "nobody knows"

    run(scenario())


def test_however_many_join_a_new_group_together_it_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        look, looks = cluster.group, []

        async def slow(name: str) -> RegisteredGroup | None:
            looks.append(name)
            await asyncio.sleep(0)
            return await look(name)

        monkeypatch.setattr(cluster, "group", slow)
        client = Client(cluster, initial_delay_ms=50)
        joined = await asyncio.gather(*(client.join(version=2) for _ in range(20)))
        assert {reply.error_code for reply in joined} == {Code.NONE} and looks == ["g"]

    run(scenario())
