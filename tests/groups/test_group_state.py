"""appliance.groups.group_state: the rules of one group, step by step, with the clock in hand."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

import pytest

from appliance.groups import members
from appliance.groups.group_state import Group, GroupState
from appliance.groups.messages import Join, Joined, Limits, MemberReply, Metadata, Sync, Synced, metadata_bytes
from appliance.groups.standstill import MemberHeard
from appliance.wire.kafka.codes import Code

RANGE = (Metadata("range", b"r"),)
BOTH = (Metadata("sticky", b"s"), Metadata("range", b"r"))
SESSION_MS, REBALANCE_MS = 10_000, 60_000


class Table:
    """A group with its replies by token, and short ways to play its members."""

    def __init__(self, **limits: int) -> None:
        self.replies: dict[Any, MemberReply] = {}
        self.now_ms = 0
        ids = count(1)
        self.group = Group("g", Limits(**limits), self.answer, lambda: str(next(ids)))

    def answer(self, token: Any, reply: MemberReply) -> None:
        assert token not in self.replies, f"{token} answered twice"
        self.replies[token] = reply

    def join(self, token: str, member_id: str = "", **more: Any) -> None:
        fields: dict[str, Any] = {
            "instance": None,
            "client_id": "c",
            "client_host": "/127.0.0.1",
            "session_ms": SESSION_MS,
            "rebalance_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": RANGE,
            "id_wanted": False,
        }
        self.group.join(token, Join(member_id=member_id, **(fields | more)), self.now_ms)

    def sync(self, token: str, member_id: str, *assignments: tuple[str, bytes], **more: Any) -> None:
        generation = more.get("generation", self.group.generation)
        told = more.get("protocol_type"), more.get("protocol")
        self.group.sync(token, Sync(member_id, more.get("instance"), generation, *told, assignments), self.now_ms)

    def wait(self, ms: int) -> None:
        """Let time pass, acting on each deadline when it comes."""
        end_ms = self.now_ms + ms
        while (deadline_ms := self.group.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(deadline_ms, self.now_ms)
            self.group.tick(self.now_ms)
        self.now_ms = end_ms

    def joined(self, token: str) -> Joined:
        reply = self.replies[token]
        assert isinstance(reply, Joined)
        return reply

    def synced(self, token: str) -> Synced:
        reply = self.replies[token]
        assert isinstance(reply, Synced)
        return reply

    def settle(self, *names: str, **more: Any) -> list[str]:
        """A stable group of so many members; their ids, the leader's first."""
        for name in names:
            self.join(f"join {name}", **more)
        self.wait(max(self.group.limits.initial_delay_ms, self.group.limits.newcomer_delay_ms))
        ids = [self.joined(f"join {name}").member_id for name in names]
        for name, member_id in zip(names, ids, strict=True):
            assignments = [(other, other.encode()) for other in ids] if member_id == self.group.leader else []
            self.sync(f"sync {name}", member_id, *assignments)
        assert self.group.state is GroupState.STABLE
        return ids


def test_a_single_member_starts_after_the_initial_delay() -> None:
    table = Table(initial_delay_ms=100)
    table.join("j")
    table.wait(99)
    assert not table.replies
    table.wait(1)
    reply = table.joined("j")
    assert reply == Joined(Code.NONE, "c-1", 1, "consumer", "range", "c-1", members=(("c-1", None, b"r"),))
    table.sync("s", "c-1", ("c-1", b"all of it"))
    assert table.synced("s") == Synced(Code.NONE, "consumer", "range", b"all of it")
    assert table.group.heartbeat("c-1", None, 1, table.now_ms) is Code.NONE


def test_members_that_start_together_share_the_first_generation() -> None:
    table = Table(initial_delay_ms=100)
    table.join("a")
    table.wait(60)
    table.join("b")
    table.wait(60)
    assert not table.replies, "each newcomer prolongs the delay"
    table.wait(40)
    assert table.joined("a").generation == table.joined("b").generation == 1
    assert {member[0] for member in table.joined("a").members} == {"c-1", "c-2"}
    assert table.joined("b").members == (), "only the leader learns who is there"


def test_a_second_member_prolongs_a_short_delay_and_never_shortens_a_long_one() -> None:
    """Goal: one member alone does not wait for others for long; where a second one has come, more are waited for."""
    for initial_ms, rest_ms in ((20, 100), (1_000, 990)):
        table = Table(initial_delay_ms=initial_ms, newcomer_delay_ms=100)
        table.join("a")
        table.wait(10)
        table.join("b")
        table.wait(rest_ms - 1)
        assert not table.replies
        table.wait(1)
        assert table.joined("a").generation == table.joined("b").generation == 1


def test_initial_delay_of_zero_starts_at_once() -> None:
    table = Table(initial_delay_ms=0)
    table.join("j")
    assert table.joined("j").generation == 1


def test_a_client_that_can_is_told_its_id_first() -> None:
    table = Table()
    table.join("j", id_wanted=True)
    assert table.joined("j").error is Code.MEMBER_ID_REQUIRED
    table.join("k", table.joined("j").member_id, id_wanted=True)
    table.wait(200)
    assert table.joined("k").generation == 1


def test_an_id_that_nobody_joins_with_holds_the_others_for_a_bounded_time() -> None:
    table = Table(id_wait_ms=3_000)
    (first,) = table.settle("a")
    table.join("lost", id_wanted=True)
    table.join("again", first)  # the leader rejoins: a rebalance
    table.wait(2_999)
    assert "again" not in table.replies
    table.wait(1)
    assert table.joined("again").generation == 2
    table.join("late", table.joined("lost").member_id)
    assert table.joined("late").error is Code.UNKNOWN_MEMBER_ID


def test_a_newcomer_calls_everybody_in() -> None:
    table = Table()
    (first,) = table.settle("a")
    table.join("b")
    assert table.group.heartbeat(first, None, 1, table.now_ms) is Code.REBALANCE_IN_PROGRESS
    table.sync("s", first)
    assert table.synced("s").error is Code.REBALANCE_IN_PROGRESS
    table.join("a2", first)
    assert table.joined("a2").generation == table.joined("b").generation == 2
    assert table.joined("a2").leader == first, "the leader stays while it is there"


def test_who_a_rebalance_waits_for_is_known_and_when_each_was_heard() -> None:
    table = Table(initial_delay_ms=0)
    (first,) = table.settle("a")
    table.wait(3_000)
    assert table.group.heard(table.now_ms) == {first: MemberHeard(3.0, SESSION_MS / 1000)}
    table.join("j b")
    heard = table.group.heard(table.now_ms)
    assert heard.pop(first) == MemberHeard(3.0, SESSION_MS / 1000, awaited=True)
    assert list(heard.values()) == [MemberHeard(0.0, SESSION_MS / 1000)], "its request waits"


def test_a_member_that_does_not_rejoin_in_time_is_out() -> None:
    table = Table()
    ids = table.settle("a", "b")
    table.join("a2", ids[0])
    for _ in range(REBALANCE_MS // 5_000):
        assert "a2" not in table.replies
        table.group.heartbeat(ids[1], None, 1, table.now_ms)  # alive, but it does not come
        table.wait(5_000)
    assert table.joined("a2").generation == 2
    assert table.group.heartbeat(ids[1], None, 1, table.now_ms) is Code.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_out_when_its_session_ends() -> None:
    table = Table()
    ids = table.settle("a", "b")
    table.wait(SESSION_MS - 1)
    table.group.heartbeat(ids[0], None, 1, table.now_ms)
    table.wait(1)
    assert list(table.group.members) == [ids[0]]
    assert table.group.state is GroupState.PREPARING
    table.join("a2", ids[0])
    assert table.joined("a2").generation == 2


def test_a_member_that_waits_for_us_is_not_silent() -> None:
    table = Table()
    ids = table.settle("a", "b")
    table.join("a2", ids[0])
    table.wait(SESSION_MS)
    assert ids[0] in table.group.members
    assert table.joined("a2").error is Code.NONE, "the other one's session ended, so nobody is missing"


def test_a_member_that_joins_and_never_syncs_is_out() -> None:
    table = Table()
    table.join("a")
    table.join("b")
    table.wait(100)
    leader, other = table.joined("a").member_id, table.joined("b").member_id
    table.sync("s", other)
    for _ in range(REBALANCE_MS // 5_000):
        assert "s" not in table.replies
        table.group.heartbeat(leader, None, 1, table.now_ms)
        table.wait(5_000)
    assert table.synced("s").error is Code.REBALANCE_IN_PROGRESS
    assert list(table.group.members) == [other]


def test_a_leader_that_dies_before_it_assigns_is_replaced() -> None:
    table = Table()
    table.join("a")
    table.join("b")
    table.wait(100)
    other = table.joined("b").member_id
    table.sync("s", other)
    table.wait(SESSION_MS)
    assert table.synced("s").error is Code.REBALANCE_IN_PROGRESS
    table.join("b2", other)
    assert table.joined("b2").leader == other


def test_the_last_one_to_leave_empties_the_group() -> None:
    table = Table()
    (only,) = table.settle("a")
    assert table.group.leave(only, None, table.now_ms) is Code.NONE
    assert (table.group.state, table.group.idle) == (GroupState.EMPTY, True)
    assert table.group.leave(only, None, table.now_ms) is Code.UNKNOWN_MEMBER_ID


def test_leaving_answers_what_the_member_waits_for() -> None:
    table = Table()
    ids = table.settle("a", "b")
    table.join("a2", ids[0])
    table.group.leave(ids[0], None, table.now_ms)
    assert table.joined("a2").error is Code.UNKNOWN_MEMBER_ID


def test_an_id_that_was_told_can_be_given_back() -> None:
    table = Table()
    table.join("j", id_wanted=True)
    assert table.group.leave(table.joined("j").member_id, None, 0) is Code.NONE
    assert table.group.idle


@pytest.mark.parametrize(
    "generation, error", [(0, Code.ILLEGAL_GENERATION), (1, Code.NONE), (2, Code.ILLEGAL_GENERATION)]
)
def test_only_the_present_generation_counts(generation: int, error: Code) -> None:
    table = Table()
    (only,) = table.settle("a")
    assert table.group.heartbeat(only, None, generation, 0) is error
    assert table.group.may_commit(only, None, generation, 0) is error
    table.sync("s2", only, generation=generation)
    assert table.synced("s2").error is error


def test_a_repeated_join_is_answered_from_what_is() -> None:
    table = Table()
    ids = table.settle("a", "b")
    table.join("b2", ids[1])
    assert table.joined("b2").generation == 1, "a follower that changes nothing disturbs nobody"
    table.join("b3", ids[1], protocols=BOTH)
    assert "b3" not in table.replies and table.group.state is GroupState.PREPARING


def test_a_join_sent_again_supersedes_the_first() -> None:
    table = Table()
    ids = table.settle("a", "b")
    table.join("a2", ids[0])
    table.join("a3", ids[0])
    assert table.joined("a2").error is Code.REBALANCE_IN_PROGRESS
    table.join("b2", ids[1])
    assert table.joined("a3").generation == table.joined("b2").generation == 2


def test_a_sync_sent_again_supersedes_the_first() -> None:
    table = Table()
    table.join("a")
    table.join("b")
    table.wait(100)
    table.sync("s", "c-2")
    table.sync("s2", "c-2")
    assert table.synced("s").error is Code.REBALANCE_IN_PROGRESS
    table.sync("l", "c-1", ("c-2", b"x"))
    assert table.synced("s2").assignment == b"x"


def test_protocols_are_elected_by_votes_among_those_that_all_have() -> None:
    table = Table()
    table.join("a", protocols=(Metadata("new", b""), *BOTH))
    table.join("b", protocols=BOTH)
    table.join("c", protocols=tuple(reversed(BOTH)))
    table.wait(100)
    assert table.joined("a").protocol == "sticky"


@pytest.mark.parametrize(
    "offer",
    [
        {"protocols": (Metadata("other", b""),)},
        {"protocols": ()},
        {"protocol_type": "connect"},
        {"protocol_type": ""},
    ],
)
def test_offers_that_do_not_fit_are_refused(offer: dict[str, Any]) -> None:
    table = Table()
    table.settle("a")
    table.join("b", **offer)
    assert table.joined("b").error is Code.INCONSISTENT_GROUP_PROTOCOL
    assert table.group.state is GroupState.STABLE


def test_sync_names_the_protocol_that_was_elected() -> None:
    table = Table()
    (only,) = table.settle("a")
    table.sync("s2", only, protocol="sticky")
    table.sync("s3", only, protocol_type="connect")
    table.sync("s4", only, protocol="range", protocol_type="consumer")
    errors = [table.synced(token).error for token in ("s2", "s3", "s4")]
    assert errors == [Code.INCONSISTENT_GROUP_PROTOCOL, Code.INCONSISTENT_GROUP_PROTOCOL, Code.NONE]


def test_a_full_group_refuses() -> None:
    table = Table(members_max=2)
    table.join("a")
    table.join("b", id_wanted=True)
    table.join("c")
    assert table.joined("c").error is Code.GROUP_MAX_SIZE_REACHED


# Static members


def test_a_static_member_that_comes_back_disturbs_nobody() -> None:
    table = Table()
    table.join("a", instance="one")
    table.join("b", instance="two")
    table.wait(100)
    a, b = table.joined("a").member_id, table.joined("b").member_id
    table.sync("sa", a, (a, b"A"), (b, b"B"), instance="one")
    table.sync("sb", b, instance="two")
    table.join("a2", instance="one", id_wanted=True)
    reply = table.joined("a2")
    assert (reply.error, reply.generation) == (Code.NONE, 1)
    assert reply.leader == a != reply.member_id, "it shall not assign anew"
    table.sync("sa2", reply.member_id, instance="one")
    assert table.synced("sa2").assignment == b"A"
    assert table.group.heartbeat(b, "two", 1, table.now_ms) is Code.NONE
    assert table.group.heartbeat(a, "one", 1, table.now_ms) is Code.FENCED_INSTANCE_ID
    assert table.group.may_commit(a, "one", 1, table.now_ms) is Code.FENCED_INSTANCE_ID


@pytest.mark.parametrize("bytes_differ", [False, True])
def test_a_static_member_rebalances_the_others_only_when_another_protocol_would_be_elected(bytes_differ: bool) -> None:
    """As Kafka: names are compared, not offers.  Java's consumers write what they owned into theirs."""
    table = Table()
    range_first = (Metadata("range", b"owned before"), Metadata("roundrobin", b""))
    robin_first = (Metadata("roundrobin", b""), Metadata("range", b""))
    table.settle("a", instance="one", protocols=range_first)
    again = (Metadata("range", b"nothing owned"), Metadata("roundrobin", b"x")) if bytes_differ else range_first
    table.join("a2", instance="one", protocols=again)
    assert table.joined("a2").generation == 1
    table.join("a3", instance="one", protocols=robin_first)
    assert table.joined("a3").generation == 2


def test_a_second_process_of_one_instance_fences_the_first() -> None:
    table = Table()
    ids = table.settle("a")
    table.join("one", instance="one")
    table.join("other", instance="one")
    assert table.joined("one").error is Code.FENCED_INSTANCE_ID
    table.join("a2", ids[0])
    assert table.joined("other").generation == 2
    table.join("one2", table.joined("one").member_id, instance="one")
    assert table.joined("one2").error is Code.FENCED_INSTANCE_ID


def test_a_static_member_that_is_away_keeps_its_place_until_its_session_ends() -> None:
    table = Table()
    table.join("a", instance="one", session_ms=90_000)
    table.join("b", instance="two")
    table.wait(100)
    a, b = table.joined("a").member_id, table.joined("b").member_id
    table.sync("sa", a, instance="one")
    table.sync("sb", b, instance="two")
    table.join("b2", b, instance="two", protocols=BOTH)
    table.wait(REBALANCE_MS)
    assert table.joined("b2").leader == b, "somebody who is there leads"
    assert len(table.joined("b2").members) == 2, "and assigns to the absent one, too"
    table.sync("sb2", b, (a, b"A"), (b, b"B"), instance="two")
    table.join("a2", instance="one")
    table.sync("sa2", table.joined("a2").member_id, instance="one")
    assert table.synced("sa2").assignment == b"A"


def test_an_administrator_removes_a_static_member_by_name() -> None:
    table = Table()
    table.settle("a", instance="one")
    assert table.group.leave("", "nobody", 0) is Code.UNKNOWN_MEMBER_ID
    assert table.group.leave("", "one", 0) is Code.NONE
    assert table.group.idle


def test_what_a_member_keeps_is_measured_with_its_own_requests_and_not_with_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: a rebalance costs in proportion to its members, and not to their square."""
    measured: list[int] = []

    def measure(protocols: Iterable[Metadata]) -> int:
        measured.append(1)
        return metadata_bytes(protocols)

    monkeypatch.setattr(members, "metadata_bytes", measure)
    table = Table()
    for number in range(300):
        table.join(f"join {number}")
        assert table.group.size > number, "asked after each request, for the bound of all groups"
    assert len(measured) <= 2 * 300


# Positions


def test_who_may_commit() -> None:
    table = Table()
    assert table.group.may_commit("", None, -1, 0) is Code.NONE, "nobody is there to mind"
    (only,) = table.settle("a")
    assert table.group.may_commit("", None, -1, 0) is Code.UNKNOWN_MEMBER_ID
    assert table.group.may_commit("stranger", None, 1, 0) is Code.UNKNOWN_MEMBER_ID
    table.join("b")
    assert table.group.may_commit(only, None, 1, table.now_ms) is Code.NONE, "before it rejoins"
    table.join("a2", only)
    assert table.group.state is GroupState.COMPLETING
    codes = [table.group.may_commit(only, None, generation, table.now_ms) for generation in (0, 1, 2)]
    assert codes == [Code.ILLEGAL_GENERATION, Code.NONE, Code.NONE], "nobody else has its partitions yet"
    table.sync("s2", only)
    codes = [table.group.may_commit(only, None, generation, table.now_ms) for generation in (1, 2)]
    assert codes == [Code.ILLEGAL_GENERATION, Code.NONE]


def test_dissolving_answers_everybody() -> None:
    table = Table()
    ids = table.settle("a", "b")
    table.join("a2", ids[0])
    table.group.dissolve(Code.NOT_COORDINATOR)
    assert table.joined("a2").error is Code.NOT_COORDINATOR
    assert (table.group.state, table.group.idle, table.group.size) == (GroupState.DEAD, True, 0)
