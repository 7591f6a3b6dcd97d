"""appliance.groups.consumer_groups, consumer_group, consumer_member: clients of the consumer protocol against a model.

The clients of the model do what Kafka's do: they own what they were told, give up what they are told no more, and say
so in their next heartbeat.  Answers get lost, members die and come back, topics come, grow and go.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from appliance.catalog import Topic
from appliance.groups.assignors import IdAndNumber
from appliance.groups.consumer_group import LEAVE, Beat, Beaten, ConsumerState, TopicsView
from appliance.groups.consumer_groups import ConsumerGroups
from appliance.groups.consumer_member import LEFT, Matching
from appliance.groups.group_settings import HEARTBEAT, SESSION
from appliance.groups.messages import Limits
from appliance.groups.snapshots import ConsumerSnapshot, decode, encode
from appliance.wire.kafka.codes import Code

LIMITS = Limits(groups_max=2, members_max=4, bytes_max=100_000)
SESSION_MS, REBALANCE_MS = LIMITS.consumer_session_ms, 20_000
NAMES = ["a", "b", "c"]
SUBSCRIPTIONS = st.sampled_from(["a", "a", "ab", "bc", ""])
WHICH = st.integers(0, LIMITS.members_max - 1)
REJOIN = (Code.UNKNOWN_MEMBER_ID, Code.FENCED_MEMBER_EPOCH)


def topics(**partitions: int) -> dict[str, Topic]:
    return {name: Topic(name, {n: [0] for n in range(count)}, {}, f"{name:0>32}") for name, count in partitions.items()}


def a_beat(member_id: str = "m", epoch: int = 0, **more: object) -> Beat:
    joins = epoch == 0
    beat = Beat(
        member_id=member_id,
        epoch=epoch,
        instance=None,
        rack=None,
        client_id="c",
        client_host="/h",
        rebalance_ms=REBALANCE_MS if joins else -1,
        topics=frozenset("a") if joins else None,
        matching=None,
        assignor=None,
        owned=frozenset() if joins else None,
        full=joins,
    )
    return beat._replace(**more)  # type: ignore[arg-type]


def parts(name: str, *numbers: int) -> frozenset[IdAndNumber]:
    return frozenset((f"{name:0>32}", number) for number in numbers)


@dataclass
class Simulated:
    """A client of the consumer protocol.  ``owned``: what it reads; ``assigned``: what it was told last.

    Before it takes anything it gives up what it has to, which takes it a while.
    """

    id: str
    topics: frozenset[str]
    instance: str | None = None
    assignor: str | None = None
    epoch: int = 0
    owned: frozenset[IdAndNumber] = frozenset()
    assigned: frozenset[IdAndNumber] = frozenset()
    told_all: bool = False
    """Whether the coordinator knows all of it; False after a lost answer, as in librdkafka."""
    said_owned: frozenset[IdAndNumber] | None = None

    def beat(self) -> Beat:
        full = not self.told_all
        owned = self.owned if full or self.owned != self.said_owned else None
        self.said_owned = self.owned
        return a_beat(
            self.id,
            self.epoch,
            instance=self.instance,
            assignor=self.assignor if full else None,
            rebalance_ms=REBALANCE_MS if full else -1,
            topics=self.topics if full else None,
            owned=owned,
            full=full,
        )

    def take(self, answer: Beaten) -> None:
        """Own what is given, if nothing is to be given up.  Fenced: give all up, and join again."""
        if answer.error in REJOIN:
            self.epoch, self.owned, self.assigned, self.told_all = 0, frozenset(), frozenset(), False
            return
        assert answer.error is Code.NONE, answer
        assert answer.epoch >= self.epoch, "an epoch never goes back"
        self.told_all = True
        if answer.assignment is not None:
            self.assigned = answer.assignment
        self.epoch = answer.epoch
        if self.owned <= self.assigned:
            self.owned = self.assigned

    def give_up(self) -> None:
        """Give up what it was told no more, after which it takes what it was given."""
        self.owned = self.assigned


class Clients(RuleBasedStateMachine):
    """One group, its clients, and the topics."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = ConsumerGroups(LIMITS, lambda name, now_ms: None)
        self.now_ms = 0
        self.view = TopicsView(1, topics(a=3, b=2))
        self.clients: list[Simulated] = []
        self.away: list[Simulated] = []
        self.made = 0
        self.epochs = (0, 0)
        self.life = 0
        self.stored: bytes | None = None

    def exchange(self, client: Simulated, lost: bool = False) -> None:
        answer = self.groups.beat("g", client.beat(), self.view, self.now_ms)
        self.look()
        if lost:
            client.told_all = False
        else:
            client.take(answer)

    def look(self) -> None:
        """What has changed is stored before anybody is told."""
        group = self.groups.get("g")
        if self.groups.take_unsaved():
            snapshot = group.snapshot() if group is not None else None
            self.stored = None if snapshot is None else encode(snapshot)
        if group is None:
            self.epochs = (0, 0)
            return
        now = (group.epoch, group.assignment_epoch)
        assert now >= self.epochs and group.assignment_epoch <= group.epoch
        self.epochs = now

    @initialize()
    def two_come(self) -> None:
        self.come("ab", None)
        self.come("ab", None, "one")

    @rule(
        names=SUBSCRIPTIONS,
        assignor=st.sampled_from([None, "uniform", "range"]),
        instance=st.sampled_from([None, None, "one", "two"]),
    )
    def come(self, names: str, assignor: str | None, instance: str | None = None) -> None:
        taken = {client.instance for client in self.clients} | self.dead_instances()
        if len(self.clients) < LIMITS.members_max and (instance is None or instance not in taken):
            self.made += 1
            client = Simulated(f"m{self.made}", frozenset(names), instance, assignor)
            self.clients.append(client)
            group = self.groups.get("g")
            if group is None or len(group.members) < LIMITS.members_max:
                self.exchange(client)
            else:
                self.clients.remove(client)

    @rule(which=WHICH, lost=st.booleans())
    def beat(self, which: int, lost: bool) -> None:
        if self.clients:
            client = self.clients[which % len(self.clients)]
            if client.epoch or client.id in self.members() or len(self.members()) < LIMITS.members_max:
                self.exchange(client, lost)

    @rule(lost=st.sets(WHICH, max_size=1))
    def all_beat(self, lost: set[int]) -> None:
        for number in range(len(self.clients)):
            self.beat(number, number in lost)

    @rule(unanswered=st.none() | WHICH)
    def the_coordinator_dies(self, unanswered: int | None) -> None:
        """Another one has what was stored; maybe not what an unanswered heartbeat has changed."""
        if unanswered is not None and self.clients:
            client = self.clients[unanswered % len(self.clients)]
            if client.id in self.members():
                self.groups.beat("g", client.beat(), self.view, self.now_ms)
                client.told_all = False
        self.groups = ConsumerGroups(LIMITS, lambda name, now_ms: None)
        if self.stored is not None:
            snapshot = decode(self.stored)
            assert isinstance(snapshot, ConsumerSnapshot)
            self.groups.restore("g", snapshot, self.now_ms)
        self.look()

    @rule(which=WHICH)
    def give_up(self, which: int) -> None:
        if self.clients:
            self.clients[which % len(self.clients)].give_up()

    @rule(which=WHICH, names=SUBSCRIPTIONS)
    def subscribe(self, which: int, names: str) -> None:
        if self.clients:
            client = self.clients[which % len(self.clients)]
            client.topics, client.told_all = frozenset(names), False

    def say_goodbye(self, client: Simulated, epoch: int) -> None:
        answer = self.groups.beat("g", a_beat(client.id, epoch, instance=client.instance), self.view, self.now_ms)
        assert answer.error in (Code.NONE, Code.UNKNOWN_MEMBER_ID)
        self.look()

    @rule()
    def go_away(self) -> None:
        """A static member stops reading for a while."""
        for client in self.clients:
            if client.instance is not None:
                self.say_goodbye(client, LEFT)
                self.clients.remove(client)
                self.away.append(client)
                return

    @rule(names=SUBSCRIPTIONS)
    def come_back(self, names: str) -> None:
        """Its process is another one now."""
        if self.away and len(self.clients) < LIMITS.members_max:
            self.come(names, None, self.away.pop().instance)

    @rule(which=WHICH, dies=st.booleans())
    def leave(self, which: int, dies: bool) -> None:
        """It reads no more; if it dies, the coordinator learns of it when its session ends."""
        if self.clients:
            client = self.clients.pop(which % len(self.clients))
            if dies:
                return
            self.say_goodbye(client, LEAVE)

    @rule(name=st.sampled_from(NAMES), count=st.integers(0, 5))
    def change_topic(self, name: str, count: int) -> None:
        """Make, grow or delete a topic; one that is made again has another id."""
        changed = dict(self.view.topics)
        if not count:
            changed.pop(name, None)
        elif name not in changed:
            self.life += 1
            changed[name] = topics(**{name: count})[name]
            changed[name].id = f"{self.life:x}{name:0>30}"[-32:].rjust(32, "0")
        elif count > len(changed[name].partitions):
            changed[name] = Topic(name, {n: [0] for n in range(count)}, {}, changed[name].id)
        self.view = TopicsView(self.view.revision + 1, changed)

    @rule(passed_ms=st.sampled_from([1, 5_000, REBALANCE_MS, SESSION_MS]))
    def pass_time(self, passed_ms: int) -> None:
        """Time passes; a client whose session is over stops reading, as clients do by their own clock."""
        self.now_ms += passed_ms
        gone_before = self.members()
        self.groups.tick(self.now_ms)
        for client in self.clients:
            if client.id in gone_before - self.members():
                client.take(Beaten(Code.UNKNOWN_MEMBER_ID))
        self.look()

    def dead_instances(self) -> set[str | None]:
        """Instance names of members that are neither here nor away: nobody may take them before their session ends."""
        group = self.groups.get("g")
        here = {client.id for client in self.clients}
        members = group.members.values() if group is not None else ()
        return {member.instance for member in members if member.id not in here and member.epoch != LEFT}

    def members(self) -> set[str]:
        group = self.groups.get("g")
        return set(group.members) if group is not None else set()

    @invariant()
    def what_members_were_told_is_stored(self) -> None:
        group = self.groups.get("g")
        snapshot = group.snapshot() if group is not None else None
        assert self.stored == (None if snapshot is None else encode(snapshot))

    @invariant()
    def no_partition_has_two_readers(self) -> None:
        owned = [part for client in self.clients for part in client.owned]
        assert len(owned) == len(set(owned)), "two clients read the same partition"

    @invariant()
    def the_group_is_consistent(self) -> None:
        group = self.groups.get("g")
        if group is None:
            assert self.groups._size == 0
            return
        held = {part: m.id for m in group.members.values() for part in (*m.assigned, *m.revoking)}
        assert held == group.owners
        assert sum(len(m.assigned) + len(m.revoking) for m in group.members.values()) == len(held)
        assert group._members_bytes == sum(m.size for m in group.members.values())
        assert self.groups._size == group.size <= LIMITS.bytes_max
        assert group.static == {m.instance: m.id for m in group.members.values() if m.instance is not None}
        counted = {name for m in group.members.values() for name in m.subscription}
        assert counted == set(group._subscribed)
        assert self.groups.next_deadline_ms() is not None

    def teardown(self) -> None:
        """Without further changes all converges: every partition has the reader that it should have."""
        self.pass_time(SESSION_MS)
        for _ in range(10):
            self.pass_time(1)
            for client in self.clients:
                self.exchange(client)
                client.give_up()
            self.no_partition_has_two_readers()
        group = self.groups.get("g")
        if not self.clients:
            assert group is None
            return
        assert group is not None and group.state is ConsumerState.STABLE
        wanted = {
            (topic.id, number)
            for name, topic in self.view.topics.items()
            for number in topic.partitions
            if any(name in client.topics for client in self.clients)
        }
        assert {part for client in self.clients for part in client.owned} == wanted
        for client in self.clients:
            assert client.owned == group.members[client.id].target


Clients.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestAnyInterleaving = Clients.TestCase


def test_a_member_that_does_not_give_up_in_time_is_removed() -> None:
    groups, view = ConsumerGroups(LIMITS, lambda name, now_ms: None), TopicsView(1, topics(a=2))
    first = groups.beat("g", a_beat("m"), view, 0)
    assert first.assignment == parts("a", 0, 1)
    second = groups.beat("g", a_beat("n"), view, 1)
    assert (second.error, second.epoch, second.assignment) == (Code.NONE, 2, frozenset())
    told = groups.beat("g", a_beat("m", 1), view, 2)
    assert (told.epoch, len(told.assignment or ())) == (1, 1)
    assert groups.beat("g", a_beat("n", 2), view, REBALANCE_MS + 1).assignment is None, "it waits"
    groups.tick(2 + REBALANCE_MS)
    assert groups.beat("g", a_beat("m", 1), view, REBALANCE_MS + 2).error is Code.UNKNOWN_MEMBER_ID
    assert groups.beat("g", a_beat("n", 2), view, REBALANCE_MS + 3).assignment == parts("a", 0, 1)


def test_a_lost_answer_costs_nobody_a_place() -> None:
    """The epoch before is taken, as long as the member owns nothing but what it was assigned (KAFKA-14462)."""
    groups, view = ConsumerGroups(LIMITS, lambda name, now_ms: None), TopicsView(1, topics(a=2))
    groups.beat("g", a_beat("m"), view, 0)
    more = TopicsView(2, topics(a=3))
    first = groups.beat("g", a_beat("m", 1), more, 0)
    again = groups.beat("g", a_beat("m", 1, owned=parts("a", 0, 1)), more, 0)
    assert (first.epoch, first.assignment) == (again.epoch, again.assignment) == (2, parts("a", 0, 1, 2))
    foreign = groups.beat("g", a_beat("m", 1, owned=parts("a", 0, 7)), more, 0)
    assert foreign.error is groups.beat("g", a_beat("m", 3), more, 0).error is Code.FENCED_MEMBER_EPOCH
    back = groups.beat("g", a_beat("m"), more, 0)
    assert (back.error, back.epoch, back.assignment) == (Code.NONE, 2, parts("a", 0, 1, 2)), "it joins again, as itself"


def test_a_static_member_that_is_back_has_what_it_had_and_nobody_else_moves() -> None:
    groups, view = ConsumerGroups(LIMITS, lambda name, now_ms: None), TopicsView(1, topics(a=4))
    one = a_beat("m", instance="one")
    assert groups.beat("g", one, view, 0).assignment == parts("a", 0, 1, 2, 3)
    groups.beat("g", a_beat("n"), view, 0)
    kept = groups.beat("g", a_beat("m", 1), view, 0).assignment
    groups.beat("g", a_beat("m", 1, owned=kept), view, 0)
    other = groups.beat("g", a_beat("n", 2), view, 0).assignment
    assert kept is not None and other is not None and kept | other == parts("a", 0, 1, 2, 3)
    taken = groups.beat("g", a_beat("m2", instance="one"), view, 0)
    assert taken.error is Code.UNRELEASED_INSTANCE_ID
    assert groups.beat("g", a_beat("m", LEFT, instance="one"), view, 0).epoch == LEFT
    assert groups.beat("g", a_beat("n", 2), view, 0).assignment is None, "the others keep what they have"
    back = groups.beat("g", a_beat("m2", instance="one"), view, 0)
    assert (back.error, back.epoch, back.assignment) == (Code.NONE, 2, kept)
    assert groups.beat("g", a_beat("m", 2, instance="one"), view, 0).error is Code.FENCED_INSTANCE_ID
    groups.beat("g", a_beat("m2", LEFT, instance="one"), view, 0)
    groups.tick(SESSION_MS)
    assert groups.names() == []


def test_a_commit_counts_while_its_partition_was_the_members_all_the_time() -> None:
    groups, view = ConsumerGroups(LIMITS, lambda name, now_ms: None), TopicsView(1, topics(a=2))
    assert groups.commit_code("g", "", -1) is Code.NONE
    assert groups.commit_code("g", "m", 1) is Code.UNKNOWN_MEMBER_ID
    groups.beat("g", a_beat("m"), view, 0)
    groups.beat("g", a_beat("n"), view, 0)
    kept = groups.beat("g", a_beat("m", 1), view, 0).assignment or frozenset()
    (gone,) = parts("a", 0, 1) - kept
    assert groups.commit_code("g", "m", 1, gone) is Code.NONE, "it has not given it up yet"
    assert groups.beat("g", a_beat("m", 1, owned=kept), view, 0).epoch == 2
    assert [groups.commit_code("g", "m", 1, part) for part in (*kept, gone)] == [Code.NONE, Code.STALE_MEMBER_EPOCH]
    assert groups.commit_code("g", "m", 1) is groups.commit_code("g", "m", 3) is Code.STALE_MEMBER_EPOCH
    assert groups.commit_code("g", "", -1) is Code.UNKNOWN_MEMBER_ID, "somebody else, while there are members"


def test_a_session_follows_what_the_group_sets() -> None:
    """A longer one holds at once, since the member may be told to beat less often; a shorter one from its next beat."""
    groups, view = ConsumerGroups(LIMITS, lambda name, now_ms: None), TopicsView(1, topics(a=2))
    for name in ("g", "other"):
        groups.beat(name, a_beat("m"), view, 0)
    groups.set_own({"g": {SESSION: 2 * SESSION_MS, HEARTBEAT: 700}, "later": {SESSION: 10}}, 0)
    assert groups.limits_of("g").consumer_heartbeat_ms == 700
    assert groups.limits_of("other") == LIMITS
    assert groups.next_deadline_ms() == SESSION_MS
    groups.tick(SESSION_MS)
    assert groups.names() == ["g"]
    groups.beat("later", a_beat("m"), view, SESSION_MS)
    groups.tick(SESSION_MS + 10)
    assert groups.names() == ["g"], "a group that came after its settings has them, too"

    groups.set_own({"g": {SESSION: 10}}, SESSION_MS + 10)
    groups.tick(2 * SESSION_MS - 1)
    assert groups.names() == ["g"], "nobody has told the member"
    assert groups.beat("g", a_beat("m", 1), view, 2 * SESSION_MS - 1).error is Code.NONE
    groups.tick(2 * SESSION_MS + 9)
    assert groups.names() == []

    groups.set_own({}, 0)
    assert groups.limits_of("g") == LIMITS


def test_a_restored_member_has_the_session_of_its_group_once_that_is_known() -> None:
    groups, view = ConsumerGroups(LIMITS, lambda name, now_ms: None), TopicsView(1, topics(a=2))
    groups.beat("g", a_beat("m"), view, 0)
    group = groups.get("g")
    assert group is not None
    snapshot = group.snapshot()
    assert snapshot is not None
    restored = ConsumerGroups(LIMITS, lambda name, now_ms: None)
    restored.restore("g", snapshot, 0)
    restored.set_own({"g": {SESSION: 3 * SESSION_MS}}, 5)
    restored.tick(SESSION_MS)
    assert restored.names() == ["g"] and restored.next_deadline_ms() == 3 * SESSION_MS + 5


def test_groups_members_and_bytes_are_bounded() -> None:
    groups, view = ConsumerGroups(LIMITS, lambda name, now_ms: None), TopicsView(1, topics(a=2))
    for number in range(LIMITS.members_max):
        assert groups.beat("g", a_beat(f"m{number}"), view, 0).error is Code.NONE
    assert groups.beat("g", a_beat("one more"), view, 0).error is Code.GROUP_MAX_SIZE_REACHED
    assert groups.beat("h", a_beat(), view, 0).error is Code.NONE
    assert groups.beat("i", a_beat(), view, 0).error is Code.GROUP_MAX_SIZE_REACHED
    large = frozenset(f"{number:0>200}" for number in range(400))
    assert groups.beat("h", a_beat("n", topics=large), view, 0).error is Code.GROUP_MAX_SIZE_REACHED
    assert groups.beat("h", a_beat("m", LEAVE), view, 0).epoch == LEAVE
    assert groups.names() == ["g"]


def test_a_large_group_gets_a_new_target_only_now_and_then() -> None:
    """Goal: however fast members come, targets take a small part of the coordinator's time."""
    groups, view = ConsumerGroups(Limits(), lambda name, now_ms: None), TopicsView(1, topics(a=2_000))
    assert len(groups.beat("g", a_beat("m"), view, 0).assignment or ()) == 2_000
    early = groups.beat("g", a_beat("n"), view, 199)
    group = groups.get("g")
    assert group is not None and group.state is ConsumerState.ASSIGNING
    assert (early.error, early.epoch, early.assignment) == (Code.NONE, 1, frozenset())
    assert groups.beat("g", a_beat("n", 1), view, 200).epoch == 2
    assert len(groups.beat("g", a_beat("m", 1), view, 200).assignment or ()) == 1_000


def test_who_says_nothing_new_is_answered_however_full_it_is() -> None:
    groups, view = ConsumerGroups(Limits(bytes_max=1_500), lambda name, now_ms: None), TopicsView(1, topics(a=2))
    assert groups.beat("g", a_beat("m"), view, 0).error is Code.NONE
    assert groups.beat("g", a_beat("n"), view, 0).error is Code.GROUP_MAX_SIZE_REACHED
    assert groups.beat("g", a_beat("m", 1), view, 0).error is Code.NONE


def test_topics_of_a_pattern_count_like_names() -> None:
    groups, view = ConsumerGroups(LIMITS, lambda name, now_ms: None), TopicsView(1, topics(a=1, b=1))
    matching = Matching("[ab]", frozenset("ab"), 1)
    joined = groups.beat("g", a_beat(topics=frozenset(), matching=matching), view, 0)
    assert joined.assignment == parts("a", 0) | parts("b", 0)
    group = groups.get("g")
    assert group is not None and group.subscribes("b")
    without = groups.beat("g", a_beat("m", 1, matching=Matching("a", frozenset("a"), 1)), view, 0)
    assert without.assignment == parts("a", 0)
