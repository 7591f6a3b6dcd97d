"""appliance.groups.snapshot_writes: what members are told is stored before, in any order of events; and a coordinator
that dies at any of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from appliance.errors import ApplianceError, InvalidRequest, NotCoordinator, ZooKeeperAway
from appliance.groups import snapshot_writes
from appliance.groups.messages import Joined, Synced
from appliance.groups.snapshot_writes import SnapshotWrites
from appliance.wire.kafka.codes import Code

from ..support.kafka_apis_fixture import ASSIGNMENT, Client, FakeCluster, run
from ..support.kafka_group import codes, commit, stable


class SlowStore(FakeCluster):
    """Stores when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[bytes | None, asyncio.Future[None]]] = []

    async def save(self, group: str, snapshot: bytes | None) -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.asked.append((snapshot, answer))
        await answer

    async def asks(self, count: int) -> None:
        while len(self.asked) < count:
            await asyncio.sleep(0)


def writes_to(store: SlowStore) -> tuple[SnapshotWrites, list[tuple[Any, Any]]]:
    answers: list[tuple[Any, Any]] = []
    return SnapshotWrites(store, lambda token, reply: answers.append((token, reply))), answers


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_answers_wait_for_the_write_before_them_and_only_for_that() -> None:
    async def scenario() -> None:
        store = SlowStore()
        writes, answers = writes_to(store)
        writes.give("g", 0, Synced(Code.NONE))
        writes.begin("g", b"1")
        writes.give("g", 1, Synced(Code.NONE))
        writes.give("other", 2, Synced(Code.NONE))
        await store.asks(1)
        writes.begin("g", b"2")
        writes.give("g", 3, Synced(Code.NONE))
        writes.begin("g", b"3")
        settled = asyncio.ensure_future(writes.settle("g"))
        await turn()
        assert [token for token, _ in answers] == [0, 2] and len(store.asked) == 1, "one write at a time"
        store.asked[0][1].set_result(None)
        await store.asks(2)
        assert [token for token, _ in answers] == [0, 2, 1] and store.asked[1][0] == b"3", (
            "the newest of those that came"
        )
        assert not settled.done()
        store.asked[1][1].set_result(None)
        await settled
        assert [token for token, _ in answers] == [0, 2, 1, 3]
        await writes.settle("g")
        writes.begin("g", None)
        await store.asks(3)
        writes.close()

    run(scenario())


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("error", [ZooKeeperAway("away"), NotCoordinator("gone"), InvalidRequest("too large")])
def test_what_cannot_be_stored_is_told_all_the_same(
    monkeypatch: pytest.MonkeyPatch, error: ApplianceError, again: bool
) -> None:
    """And stored later, if it may be then; the newest of what there is by that time."""
    monkeypatch.setattr(snapshot_writes, "AGAIN_S", 0)

    async def scenario() -> None:
        store = SlowStore()
        writes, answers = writes_to(store)
        writes.begin("g", b"1")
        writes.give("g", 1, Synced(Code.NONE))
        await store.asks(1)
        store.asked[0][1].set_exception(error)
        assert await writes.settle("g") is Code.NONE
        assert answers == [(1, Synced(Code.NONE))]
        if again:
            writes.begin("g", b"2")
        if again or isinstance(error, ZooKeeperAway):
            await store.asks(2)
            assert store.asked[1][0] == (b"2" if again else b"1")
            store.asked[1][1].set_result(None)
        await turn()
        assert len(store.asked) <= 2
        writes.begin("g", None)  # it is not on its way any more
        await store.asks(len(store.asked) + 1)
        writes.close()

    run(scenario())


def test_a_store_that_does_not_answer_holds_nobody_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_writes, "WRITE_MS_MAX", 1)

    async def scenario() -> None:
        store = SlowStore()
        writes, answers = writes_to(store)
        writes.begin("g", b"1")
        writes.give("g", 1, Synced(Code.NONE))
        await writes.settle("g")
        assert answers == [(1, Synced(Code.NONE))]
        writes.close()

    run(scenario())


def test_who_does_not_lead_any_more_says_so() -> None:
    """The lease was there when the request came; meanwhile another broker may have the group."""

    async def scenario() -> None:
        store = SlowStore()
        writes, answers = writes_to(store)
        writes.begin("g", b"1")
        writes.give("g", 1, Synced(Code.NONE))
        await store.asks(1)
        store.leased = False
        store.asked[0][1].set_result(None)
        assert await writes.settle("g") is Code.NOT_COORDINATOR
        assert answers == [(1, Synced(Code.NOT_COORDINATOR))]

    run(scenario())


def test_a_lost_claim_answers_everybody_and_what_comes_later_is_another_write() -> None:
    async def scenario() -> None:
        store = SlowStore()
        writes, answers = writes_to(store)
        writes.begin("g", b"1")
        writes.give("g", 1, Joined(Code.NONE, "m"))
        settled = asyncio.ensure_future(writes.settle("g"))
        await store.asks(1)
        writes.lose("g")
        assert await settled is Code.NOT_COORDINATOR
        assert answers == [(1, Joined(Code.NOT_COORDINATOR, "m"))]
        writes.begin("g", b"2")
        writes.give("g", 2, Joined(Code.NONE, "n"))
        await store.asks(2)
        store.asked[1][1].set_result(None)
        await writes.settle("g")
        assert answers[1:] == [(2, Joined(Code.NONE, "n"))]

    run(scenario())


# ---- the next coordinator, as members see it


def next_coordinator(cluster: FakeCluster) -> Client:
    cluster.die()
    return Client(cluster)


def test_members_go_on_with_the_next_coordinator() -> None:
    async def scenario() -> None:
        cluster, _, member = await stable()
        for first in ("Heartbeat", "OffsetCommit", "SyncGroup", "JoinGroup"):
            client = next_coordinator(cluster)
            if first == "OffsetCommit":
                assert codes(await client.ask("OffsetCommit", 8, **commit(member, 1))) == [0]
            elif first == "SyncGroup":
                synced = await client.ask("SyncGroup", group_id="g", generation_id=1, member_id=member)
                assert (synced.error_code, bytes(synced.assignment)) == (0, ASSIGNMENT)
            elif first == "JoinGroup":
                joined = await client.join(member_id=member)
                assert (joined.error_code, joined.generation_id) == (0, 2), "it is the leader, who begins another one"
            beat = await client.ask("Heartbeat", group_id="g", generation_id=1, member_id=member)
            assert beat.error_code == (Code.ILLEGAL_GENERATION if first == "JoinGroup" else 0), first
            client.coordinator.close()

    run(scenario())


def test_whoever_left_before_is_not_there_afterwards() -> None:
    async def scenario() -> None:
        cluster, client, member = await stable()
        await client.ask("LeaveGroup", group_id="g", members=[{"member_id": member}])
        await client.coordinator.settle("g")
        assert cluster.snapshots == {}
        client = next_coordinator(cluster)
        beat = await client.ask("Heartbeat", group_id="g", generation_id=1, member_id=member)
        assert beat.error_code == Code.UNKNOWN_MEMBER_ID

    run(scenario())


def test_members_that_do_not_come_back_go_when_their_sessions_end() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        client = Client(cluster, session_ms_min=1)
        joined = await client.join(session_timeout_ms=20)
        own = [{"member_id": joined.member_id, "assignment": b""}]
        await client.ask("SyncGroup", group_id="g", generation_id=1, member_id=joined.member_id, assignments=own)
        client.coordinator.close()
        client = next_coordinator(cluster)
        joined = await client.join()
        assert joined.error_code == 0 and len(joined.members) == 1
        client.coordinator.close()

    run(scenario())


@pytest.mark.parametrize("stored", [b"", b"\xc1", b"garbage", b"\x93\xa7classic\x01"])
def test_what_is_no_snapshot_is_a_group_without_members(stored: bytes) -> None:
    async def scenario() -> None:
        cluster, client, member = await stable()
        client.coordinator.close()
        cluster.snapshots["g"] = stored
        client = next_coordinator(cluster)
        beat = await client.ask("Heartbeat", group_id="g", generation_id=1, member_id=member)
        assert beat.error_code == Code.UNKNOWN_MEMBER_ID
        assert (await client.join()).error_code == 0
        client.coordinator.close()

    run(scenario())


def test_without_zookeeper_a_member_tries_again() -> None:
    async def scenario() -> None:
        cluster, _, member = await stable()
        client = next_coordinator(cluster)
        cluster.away = True
        beat = await client.ask("Heartbeat", group_id="g", generation_id=1, member_id=member)
        assert beat.error_code == Code.COORDINATOR_NOT_AVAILABLE
        assert codes(await client.ask("OffsetCommit", 8, **commit(member, 1))) == [Code.NOT_COORDINATOR]
        cluster.away = False
        beat = await client.ask("Heartbeat", group_id="g", generation_id=1, member_id=member)
        assert beat.error_code == 0
        client.coordinator.close()

    run(scenario())
