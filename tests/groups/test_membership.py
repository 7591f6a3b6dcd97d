"""appliance.groups.membership: any interleaving of clients and clocks keeps the invariants."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from appliance.groups.group_state import GroupState
from appliance.groups.members import Member, Members
from appliance.groups.membership import EMPTY_MS, ClassicGroups
from appliance.groups.messages import MEMBER_BYTES, Join, Joined, Limits, Metadata, Sync
from appliance.groups.snapshots import ClassicSnapshot, decode, encode
from appliance.wire.kafka.codes import Code

LIMITS = Limits(groups_max=2, members_max=3, metadata_bytes_max=64, bytes_max=5_000, initial_delay_ms=100)
OFFERS = [
    (Metadata("range", b"r"),),
    (Metadata("sticky", b"s"), Metadata("range", b"r2")),
    (Metadata("sticky", b"s"),),
]


def membership(limits: Limits = LIMITS) -> ClassicGroups:
    ids = count(1)
    return ClassicGroups(limits, lambda: str(next(ids)))


def a_join(member_id: str = "", **more: object) -> Join:
    join = Join(member_id, None, "c", "/h", 6_000, 10_000, "consumer", OFFERS[0], False)
    return join._replace(**more)  # type: ignore[arg-type]


def first_error(members: ClassicGroups, join: Join, group: str = "g") -> Code:
    members.join("t", group, join, 0)
    ((*_, reply),) = members.take_replies()
    return reply.error


@pytest.mark.parametrize(
    "join, error",
    [
        (a_join(session_ms=LIMITS.session_ms_min - 1), Code.INVALID_SESSION_TIMEOUT),
        (a_join(session_ms=LIMITS.session_ms_max + 1), Code.INVALID_SESSION_TIMEOUT),
        (a_join("of an earlier life"), Code.UNKNOWN_MEMBER_ID),
        (a_join(protocols=(Metadata("range", bytes(64)),)), Code.GROUP_MAX_SIZE_REACHED),
        (a_join(protocols=OFFERS[0] * 33), Code.GROUP_MAX_SIZE_REACHED),
    ],
)
def test_what_is_refused_before_any_group_exists(join: Join, error: Code) -> None:
    members = membership()
    assert first_error(members, join) is error
    assert members.names() == []


def test_a_request_does_not_look_at_all_members_of_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a rebalance costs in proportion to its members.  Method: count how often all deadlines are collected."""
    collected: list[int] = []
    deadlines_ms = Members.deadlines_ms

    def counted(roster: Members) -> list[int]:
        collected.append(len(roster.by_id))
        return deadlines_ms(roster)

    monkeypatch.setattr(Members, "deadlines_ms", counted)
    members = membership(Limits(initial_delay_ms=100))
    for number in range(200):
        members.join(number, "g", a_join(client_id=str(number)), number)
    members.tick(299)
    joined = [reply for *_, reply in members.take_replies()]
    assert len(joined) == 200
    for reply in joined:
        assert isinstance(reply, Joined) and reply.error is Code.NONE
        given = tuple((id, b"a") for id, *_ in reply.members)
        members.sync("t", "g", Sync(reply.member_id, None, 1, None, None, given), 300)
    group = members.get("g")
    assert group is not None and group.state is GroupState.STABLE
    assert len(collected) < 10


def test_groups_and_bytes_are_bounded() -> None:
    members = membership(Limits(groups_max=2, bytes_max=3_000))
    members.join(1, "one", a_join(), 0)
    members.join(2, "two", a_join(), 0)
    assert first_error(members, a_join(), "three") is Code.GROUP_MAX_SIZE_REACHED
    assert (
        first_error(members, a_join(protocols=(Metadata("range", bytes(600)),)), "two") is Code.GROUP_MAX_SIZE_REACHED
    )
    members.tick(LIMITS.initial_delay_ms)
    ((*_, reply), _) = members.take_replies()
    assert isinstance(reply, Joined)
    members.sync(3, "one", Sync(reply.member_id, None, 1, None, None, ((reply.member_id, bytes(1_000)),)), 100)
    assert members.take_replies()[0][2].error is Code.GROUP_MAX_SIZE_REACHED


def test_ids_that_nobody_joins_with_are_bounded_too() -> None:
    members = membership(Limits(groups_max=1_000, bytes_max=100_000))
    for number in range(200):
        members.join(number, f"g{number}", a_join(client_id="c" * 1_000, id_wanted=True), 0)
    codes = [reply.error for *_, reply in members.take_replies()]
    assert codes.count(Code.MEMBER_ID_REQUIRED) < 50 and codes[-1] is Code.GROUP_MAX_SIZE_REACHED
    members.tick(10_000)
    assert first_error(members, a_join(id_wanted=True), "g") is Code.MEMBER_ID_REQUIRED


def test_an_unknown_group_answers_like_a_restarted_coordinator() -> None:
    members = membership()
    assert members.heartbeat("g", "m", None, 3, 0) is Code.UNKNOWN_MEMBER_ID
    assert members.leave("g", [("m", None), ("n", "i")], 0) == [Code.UNKNOWN_MEMBER_ID] * 2
    assert members.may_commit("g", "m", None, 3, 0) is Code.ILLEGAL_GENERATION
    assert members.may_commit("g", "", None, -1, 0) is Code.NONE
    assert members.delete("g", 0) is Code.GROUP_ID_NOT_FOUND
    members.sync(1, "g", Sync("m", None, 3, None, None, ()), 0)
    assert members.take_replies()[0][2].error is Code.UNKNOWN_MEMBER_ID


def test_changes_are_told_once_they_can_be_shown() -> None:
    members = membership()
    members.join(1, "g", a_join(), 0)
    members.tick(100)
    ((*_, reply),) = members.take_replies()
    assert isinstance(reply, Joined)
    assert members.take_changed() == set(), "nothing is owned before the leader has assigned"
    members.sync(2, "g", Sync(reply.member_id, None, 1, None, None, ((reply.member_id, b"a"),)), 100)
    assert members.take_changed() == {"g"}
    members.heartbeat("g", reply.member_id, None, 1, 200)
    assert members.take_changed() == set()
    members.leave("g", [(reply.member_id, None)], 300)
    assert members.take_changed() == {"g"} and members.get("g") is None


def test_dissolve_answers_and_forgets() -> None:
    members = membership()
    members.join(1, "g", a_join(), 0)
    assert members.delete("g", 0) is Code.NON_EMPTY_GROUP
    members.dissolve("g", Code.NOT_COORDINATOR)
    assert members.take_replies()[0][2].error is Code.NOT_COORDINATOR
    assert members.names() == [] and members.emptied(0) == {}


def emptied_at(members: ClassicGroups, group: str, now_ms: int) -> None:
    """Let a member join the group, and leave it at this time."""
    members.join("t", group, a_join(), now_ms)
    (member_id,) = members.get(group).members  # type: ignore[union-attr]
    members.leave(group, [(member_id, None)], now_ms)
    members.take_replies()


def test_an_emptied_group_is_known_for_a_while() -> None:
    members = membership()
    emptied_at(members, "g", 100)
    assert members.emptied(100 + EMPTY_MS - 1)["g"].protocol_type == "consumer" and members.names() == []
    assert members.emptied(100 + EMPTY_MS) == {}
    assert members.delete("g", 100 + EMPTY_MS) is Code.GROUP_ID_NOT_FOUND


def test_an_emptied_group_can_be_joined_and_deleted() -> None:
    members = membership()
    emptied_at(members, "g", 0)
    members.join("t", "g", a_join(), 1)
    assert members.emptied(1) == {} and members.names() == ["g"]
    emptied_at(members, "h", 1)
    assert members.delete("h", 2) is Code.NONE and members.emptied(2) == {}


def test_only_the_groups_emptied_last_are_known() -> None:
    members = membership()
    for number in range(LIMITS.groups_max + 2):
        emptied_at(members, f"g{number}", number)
    assert list(members.emptied(10)) == ["g2", "g3"]


def test_a_refused_join_makes_no_group_known() -> None:
    members = membership()
    assert first_error(members, a_join(protocols=())) is Code.INCONSISTENT_GROUP_PROTOCOL
    assert members.emptied(0) == {}


def test_a_group_that_has_only_given_ids_can_be_deleted() -> None:
    members = membership()
    members.join("t", "g", a_join(id_wanted=True), 0)
    ((*_, given),) = members.take_replies()
    assert members.delete("g", 1) is Code.NONE and members.names() == []
    assert first_error(members, a_join(given.member_id)) is Code.UNKNOWN_MEMBER_ID


class AnyInterleaving(RuleBasedStateMachine):
    """Clients that join, sync, beat, leave and fall silent in any order, with ids and generations right or
    stale.

    Goal: one leader, one protocol and one set of members per generation; every token answered exactly once
    and within its longest wait; nothing grows beyond the limits; when all fall silent nothing is left.

    The coordinator may die at any moment.  What it has stored is what its members were told, and what the next one has.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ids = count()
        self.members = self.coordinator()
        self.stored: dict[str, bytes] = {}
        self.now_ms = 0
        self.tokens = count()
        self.pending: dict[int, int] = {}  # token → when it was sent
        self.known: list[tuple[str, str | None, int]] = [("nobody", None, 1)]  # id, instance, generation told
        self.sent: dict[int, str | None] = {}  # join token → instance

    def coordinator(self) -> ClassicGroups:
        return ClassicGroups(LIMITS, lambda: str(next(self.ids)))

    def token(self, instance: str | None = None) -> int:
        token = next(self.tokens)
        self.pending[token] = self.now_ms
        self.sent[token] = instance
        return token

    def collect(self) -> None:
        for name in self.members.take_unsaved():
            group = self.members.get(name)
            snapshot = group.snapshot() if group is not None else None
            if snapshot is None:
                self.stored.pop(name, None)
            else:
                self.stored[name] = encode(snapshot)
        for _, token, reply in self.members.take_replies():
            sent_ms = self.pending.pop(token)  # KeyError: answered twice
            assert self.now_ms - sent_ms <= 2 * 10_000, "answered too late"
            if isinstance(reply, Joined) and reply.error in (Code.NONE, Code.MEMBER_ID_REQUIRED):
                self.known.append((reply.member_id, self.sent[token], reply.generation))
            if isinstance(reply, Joined) and reply.error is Code.NONE and reply.members:
                ids = [member[0] for member in reply.members]
                assert reply.leader == reply.member_id in ids and len(ids) == len(set(ids))

    def at_most_waits(self) -> None:
        for token, sent_ms in self.pending.items():
            assert self.now_ms - sent_ms <= 2 * 10_000, f"{token} hangs"

    @initialize(instances=st.lists(st.sampled_from([None, "one", "two"]), max_size=3), settled=st.booleans())
    def begin(self, instances: list[str | None], settled: bool) -> None:
        for instance in instances:
            self.join_new("g", instance, OFFERS[1], False, 10_000)
        if settled:
            self.all_settle("g")

    groups = st.sampled_from(["g", "g", "g", "g", "h", "i"])
    instances = st.sampled_from([None, None, "one", "two"])
    offers = st.sampled_from(OFFERS)

    @rule(
        group=groups,
        instance=instances,
        offers=offers,
        id_wanted=st.booleans(),
        rebalance_ms=st.sampled_from([0, 1_000, 10_000]),
    )
    def join_new(
        self,
        group: str,
        instance: str | None,
        offers: tuple[Metadata, ...],
        id_wanted: bool,
        rebalance_ms: int,
    ) -> None:
        join = a_join(instance=instance, protocols=offers, id_wanted=id_wanted, rebalance_ms=rebalance_ms)
        self.members.join(self.token(instance), group, join, self.now_ms)
        self.collect()

    @rule(group=groups, which=st.integers(0, 10), offers=offers)
    def join_again(self, group: str, which: int, offers: tuple[Metadata, ...]) -> None:
        member_id, instance, _ = self.known[-1 - which % len(self.known)]
        join = a_join(member_id, instance=instance, protocols=offers)
        self.members.join(self.token(instance), group, join, self.now_ms)
        self.collect()

    @rule(group=groups, which=st.integers(0, 10))
    def sync(self, group: str, which: int) -> None:
        member_id, instance, generation = self.known[-1 - which % len(self.known)]
        assignments = [(known[0], b"a" * 10) for known in self.known[-3:]]
        self.members.sync(
            self.token(), group, Sync(member_id, instance, generation, None, None, tuple(assignments)), self.now_ms
        )
        self.collect()

    @rule(group=groups, which=st.integers(0, 10))
    def beat(self, group: str, which: int) -> None:
        member_id, instance, generation = self.known[-1 - which % len(self.known)]
        code = self.members.heartbeat(group, member_id, instance, generation, self.now_ms)
        here = self.members.get(group)
        if code in (Code.NONE, Code.REBALANCE_IN_PROGRESS):
            assert here is not None and member_id in here.members and generation == here.generation
        self.collect()

    @rule(group=groups, which=st.integers(0, 10))
    def leave(self, group: str, which: int) -> None:
        member_id, instance, _ = self.known[-1 - which % len(self.known)]
        self.members.leave(group, [(member_id, instance)], self.now_ms)
        self.collect()

    @rule(group=st.sampled_from(["h", "i"]))
    def dissolve(self, group: str) -> None:
        self.members.dissolve(group, Code.NOT_COORDINATOR)
        self.collect()
        self.stored.pop(group, None)  # it is another coordinator's now
        assert self.members.get(group) is None

    @rule()
    def die(self) -> None:
        """Another coordinator has the groups; nobody answers what waits."""
        self.pending.clear()
        self.members = self.coordinator()
        for name, stored in self.stored.items():
            snapshot = decode(stored)
            assert isinstance(snapshot, ClassicSnapshot)
            self.members.restore(name, snapshot, self.now_ms)

    def some_of(self, name: str, which: int) -> list[Member]:
        """Members of a group, by the bits of ``which``."""
        group = self.members.get(name)
        return [m for i, m in enumerate(group.members.values()) if which >> i & 1] if group else []

    @rule(group=groups, which=st.integers(1, 7))
    def some_sync(self, group: str, which: int) -> None:
        """What well-behaved clients do, so that every state is reached often; likewise below."""
        for member in self.some_of(group, which):
            here = self.members.get(group)
            assert here is not None
            generation = here.generation
            self.members.sync(
                self.token(), group, Sync(member.id, member.instance, generation, None, None, ()), self.now_ms
            )
        self.collect()

    @rule(group=groups, which=st.integers(1, 7))
    def some_join_again(self, group: str, which: int) -> None:
        for member in self.some_of(group, which):
            join = a_join(member.id, instance=member.instance, protocols=member.protocols)
            self.members.join(self.token(member.instance), group, join, self.now_ms)
        self.collect()

    @rule(group=groups)
    def all_settle(self, group: str) -> None:
        here = self.members.get(group)
        if here is not None and here.state is not GroupState.STABLE:
            if here.state is GroupState.PREPARING:
                self.some_join_again(group, 7)
                self.pass_time(LIMITS.initial_delay_ms)
            self.some_sync(group, 7)

    @rule(group=groups, which=st.integers(1, 7))
    def some_beat(self, group: str, which: int) -> None:
        for member in self.some_of(group, which):
            here = self.members.get(group)
            assert here is not None
            self.members.heartbeat(group, member.id, member.instance, here.generation, self.now_ms)

    @rule(ms=st.sampled_from([1, 100, 100, 500, 1_000, 3_000, 6_000, 10_000]))
    def pass_time(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        for _ in range(1_000):
            deadline_ms = self.members.next_deadline_ms()
            if deadline_ms is None or deadline_ms > end_ms:
                break
            self.now_ms = max(self.now_ms, deadline_ms)
            self.members.tick(self.now_ms)
            self.collect()
        else:
            raise AssertionError("the clock does not get on: a deadline is set again and again")
        self.now_ms = end_ms
        self.at_most_waits()

    @invariant()
    def tokens_are_held_once(self) -> None:
        held = []
        for name in self.members.names():
            group = self.members.get(name)
            assert group is not None
            held += [m.joining for m in group.members.values() if m.joining is not None]
            held += [m.syncing for m in group.members.values() if m.syncing is not None]
        assert sorted(held) == sorted(self.pending)

    @invariant()
    def what_members_were_told_is_stored(self) -> None:
        assert not self.members.take_unsaved()
        groups = {name: group for name in self.members.names() if (group := self.members.get(name))}
        assert all(group.members for name, group in groups.items() if name in self.stored)
        assert self.stored.keys() <= groups.keys()
        for name, group in groups.items():
            if group.state is GroupState.STABLE:
                snapshot = group.snapshot()
                assert snapshot is not None and encode(snapshot) == self.stored[name]

    @invariant()
    def states_mean_what_they_say(self) -> None:
        for name in self.members.names():
            group = self.members.get(name)
            assert group is not None and group.state is not GroupState.DEAD
            members = group.members.values()
            assert (group.state is GroupState.EMPTY) == (not members)
            if group.state in (GroupState.COMPLETING, GroupState.STABLE):
                assert group.leader in group.members and group.protocol
                assert all(group.protocol in {offer.protocol for offer in m.protocols} for m in members)
                assert not any(m.joining is not None for m in members)
            if group.state is not GroupState.COMPLETING:
                assert not any(m.syncing is not None for m in members)
            assert group.roster.static == {m.instance: m.id for m in members if m.instance is not None}

    @invariant()
    def everything_is_bounded(self) -> None:
        names = self.members.names()
        assert len(names) <= LIMITS.groups_max
        groups = [group for name in names if (group := self.members.get(name))]
        assert all(len(g.members) + len(g.roster.expected) <= LIMITS.members_max for g in groups)
        assert self.members._size == sum(g.size for g in groups) <= LIMITS.bytes_max
        for member in [member for group in groups for member in group.members.values()]:
            measured = replace(member)
            assert (member.size, member.offered) == (measured.size, measured.offered)
        for group in groups:
            members, expected = group.members.values(), group.roster.expected
            assert group.size == sum(m.size for m in members) + sum(MEMBER_BYTES + len(id) for id in expected)
            assert group.roster._offered == Counter(protocol for m in members for protocol in m.offered)
            assert all(group.roster.session_ms_min <= m.session_ms for m in members)
            alarm_ms, deadline_ms = self.members._alarms.get(group.name), group.next_deadline_ms()
            assert alarm_ms is not None and deadline_ms is not None and alarm_ms <= deadline_ms
        assert len(self.members._alarms) <= 2 * LIMITS.groups_max + 64

    def teardown(self) -> None:
        for _ in range(10):
            self.pass_time(10_000)
        assert not self.pending and not self.members.names() and self.members._size == 0
        assert self.members.next_deadline_ms() is None or not self.members._alarm_of


TestAnyInterleaving = AnyInterleaving.TestCase
TestAnyInterleaving.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
