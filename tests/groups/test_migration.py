"""appliance.groups.migration, classic_members: a group whose clients change their protocol while all go on.

The clients of the model do what Kafka's do.  Those of the classic protocol drop all before they join if they are eager;
if they are cooperative they read on, say so, and give up what they are told no more.  Answers get lost, members die,
the coordinator is killed, topics come and grow.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from appliance.catalog import Topic
from appliance.errors import BadValue
from appliance.groups.assignors import IdAndNumber, Subscriber, TopicParts, assign_uniformly
from appliance.groups.consumer_group import LEAVE, Beaten, TopicsView
from appliance.groups.consumer_groups import ConsumerGroups
from appliance.groups.consumer_protocol import (
    TYPE,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from appliance.groups.membership import ClassicGroups
from appliance.groups.messages import Join, Joined, Limits, MemberReply, Metadata, Sync, Synced
from appliance.groups.migration import Migration, to_consumer
from appliance.groups.snapshots import ClassicMember, ClassicSnapshot, decode, encode
from appliance.wire.kafka.codes import Code

from .test_consumer_groups import REBALANCE_MS, Simulated, a_beat, topics

LIMITS = Limits(groups_max=2, members_max=6, bytes_max=100_000, initial_delay_ms=0)
SESSION_MS = 10_000
WHICH = st.integers(0, LIMITS.members_max - 1)
SUBSCRIPTIONS = st.sampled_from(["a", "ab", "b"])
CLIENTS_MAX = 4
LOSING = (Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION, Code.FENCED_INSTANCE_ID)
"""What ends a member.  The last one ends its process, which is started again; one that took its instance name in the
middle of a rebalance is told so by a coordinator that has not heard of it."""
CONVERGED_AFTER = 40
"""Turns in which every client acts, until nothing changes any more."""


def encode_subscription(names: Collection[str], owned: Collection[tuple[str, int]]) -> bytes:
    """Version 1."""
    listed = struct.pack(">hi", 1, len(names)) + b"".join(
        struct.pack(">h", len(name)) + name.encode() for name in names
    )
    return listed + struct.pack(">i", -1) + encode_assignment(owned)[2:-4]


@dataclass
class Classic:
    """A client of the classic protocol.  ``told``: an assignment that it has got and not looked at yet."""

    topics: frozenset[str]
    cooperative: bool
    instance: str | None = None
    id: str = ""
    generation: int = -1
    owned: frozenset[IdAndNumber] = frozenset()
    told: frozenset[IdAndNumber] | None = None
    wants_to_join: bool = True
    waits_for: int = 0
    """The token of its JoinGroup or SyncGroup that is not answered; 0: there is none."""
    joined: Joined | None = None

    def lose(self) -> None:
        """What it had is another's."""
        self.id, self.generation, self.owned, self.told = "", -1, frozenset(), None
        self.wants_to_join, self.waits_for, self.joined = True, 0, None

    def take(self) -> None:
        """Read what it was told, and nothing else."""
        assert self.told is not None
        gives_up = self.owned - self.told
        self.owned, self.told = self.told, None
        self.wants_to_join = self.wants_to_join or (self.cooperative and bool(gives_up))


class Changing(RuleBasedStateMachine):
    """One group, clients of both protocols, and the coordinator's part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.view = TopicsView(1, topics(a=3, b=2))
        self.classics: list[Classic] = []
        self.consumers: list[Simulated] = []
        self.cooperative = False
        self.made = 0
        self.stored: bytes | None = None
        self.begin()

    def begin(self) -> None:
        """A coordinator that knows nothing."""
        self.membership = ClassicGroups(LIMITS, self.new_id)
        self.groups = ConsumerGroups(LIMITS, lambda name, now_ms: None)
        self.migration = Migration(self.membership, self.groups, LIMITS)
        self.asked: dict[int, Classic] = {}

    def new_id(self) -> str:
        self.made += 1
        return str(self.made)

    @initialize(cooperative=st.booleans())
    def two_come(self, cooperative: bool) -> None:
        self.cooperative = cooperative
        self.come_classic("ab", "one")
        self.come_classic("ab", None)
        self.all_act_for_a_while(8)

    # -- what the coordinator does ----------------------------------------------------------------------

    def carry_out(self, lost: bool = False) -> None:
        """As GroupCoordinator does; what is stored is so before anybody is told."""
        for snapshot in self.migration.downgrade(self.now_ms).values():
            self.stored = encode(snapshot)
        if self.membership.take_unsaved() | self.groups.take_unsaved():
            group = self.groups.get("g") or self.membership.get("g")
            content = group.snapshot() if group is not None else None
            self.stored = None if content is None else encode(content)
        for _, token, reply in self.membership.take_replies():
            client = self.asked.pop(token)
            if client.waits_for == token and not lost:
                self.hear(client, reply)
            elif client.waits_for == token:
                client.waits_for, client.wants_to_join = 0, True

    def members(self) -> set[str]:
        group = self.groups.get("g") or self.membership.get("g")
        return set(group.members) if group is not None else set()

    # -- clients of the classic protocol ----------------------------------------------------------------

    def join(self, client: Classic, lost: bool) -> None:
        if not client.cooperative:
            client.owned = frozenset()
        client.told = client.joined = None
        names = {topic.id: name for name, topic in self.view.topics.items()}
        owned = [(names[id], number) for id, number in sorted(client.owned) if id in names]
        offer = Metadata("sticky", encode_subscription(sorted(client.topics), owned))
        join = Join(
            *(client.id, client.instance, "c", "/h", SESSION_MS, REBALANCE_MS, TYPE, (offer,), client.instance is None)
        )
        if self.groups.get("g") is not None:
            reply = self.groups.join("g", join, self.new_id, self.view, self.now_ms)
            self.carry_out()
            if not lost:
                self.hear(client, reply)
        else:
            self.ask(client)
            self.membership.join(self.made, "g", join, self.now_ms)
            self.carry_out(lost)

    def sync(self, client: Classic, lost: bool) -> None:
        assert client.joined is not None
        leads = client.joined.leader == client.id
        assignments = self.assign(client.joined) if leads else ()
        sync = Sync(client.id, client.instance, client.generation, TYPE, "sticky", assignments)
        client.joined = None
        if self.groups.get("g") is not None:
            reply = self.groups.sync("g", sync, self.now_ms)
            self.carry_out()
            if lost:
                client.wants_to_join = True
            else:
                self.hear(client, reply)
        else:
            self.ask(client)
            self.membership.sync(self.made, "g", sync, self.now_ms)
            self.carry_out(lost)

    def ask(self, client: Classic) -> None:
        self.made += 1
        client.waits_for = self.made
        self.asked[self.made] = client

    def hear(self, client: Classic, reply: MemberReply) -> None:
        client.waits_for = 0
        if reply.error is Code.MEMBER_ID_REQUIRED and isinstance(reply, Joined):
            client.id = reply.member_id
        elif reply.error in LOSING:
            client.lose()
        elif reply.error in (Code.REBALANCE_IN_PROGRESS, Code.GROUP_MAX_SIZE_REACHED):
            client.wants_to_join = True
        elif isinstance(reply, Joined):
            assert reply.error is Code.NONE, reply
            client.id, client.generation = reply.member_id, reply.generation
            client.joined, client.wants_to_join = reply, False
        else:
            assert reply.error is Code.NONE, reply
            partitions = decode_assignment(reply.assignment)
            client.told = frozenset((self.view.topics[name].id, number) for name, number in partitions)

    def assign(self, joined: Joined) -> tuple[tuple[str, bytes], ...]:
        """As an assignor of the client does; a cooperative one gives nobody what another one still has."""
        said = {id: decode_subscription(data) for id, _, data in joined.members}
        held = {
            id: frozenset((self.view.topics[name].id, number) for name, number in one.owned) for id, one in said.items()
        }
        subscribers = {id: Subscriber(None, frozenset(one.topics), held[id]) for id, one in said.items()}
        parts = {name: TopicParts(topic.id, tuple(topic.partitions)) for name, topic in self.view.topics.items()}
        names = {topic.id: name for name, topic in parts.items()}
        taken = {part: id for id, owned in held.items() for part in owned}
        return tuple(
            (id, encode_assignment((names[part[0]], part[1]) for part in target if taken.get(part, id) == id))
            for id, target in assign_uniformly(subscribers, parts).items()
        )

    def act(self, client: Classic, lost: bool) -> None:
        """The next thing that the client does."""
        if client.told is not None:
            client.take()
        elif client.waits_for:
            return
        elif client.wants_to_join:
            self.join(client, lost)
        elif client.joined is not None:
            self.sync(client, lost)
        else:
            keeper = self.membership if self.groups.get("g") is None else self.groups
            code = keeper.heartbeat("g", client.id, client.instance, client.generation, self.now_ms)
            self.carry_out()
            if code in LOSING:
                client.lose()
            else:
                assert code in (Code.NONE, Code.REBALANCE_IN_PROGRESS), code
                client.wants_to_join = code is Code.REBALANCE_IN_PROGRESS and not lost

    # -- clients of the consumer protocol ---------------------------------------------------------------

    def exchange(self, client: Simulated, lost: bool) -> None:
        if client.epoch == 0:
            error, _ = self.migration.upgrade("g", client.instance, self.view.topics, self.now_ms)
            if error:
                assert error in (Code.COORDINATOR_LOAD_IN_PROGRESS, Code.GROUP_MAX_SIZE_REACHED)
                return
        answer = self.groups.beat("g", client.beat(), self.view, self.now_ms)
        self.carry_out()
        if lost or answer.error is Code.GROUP_MAX_SIZE_REACHED:
            client.told_all = False
        else:
            client.take(answer)

    # -- rules ------------------------------------------------------------------------------------------

    def is_free(self, instance: str | None) -> bool:
        """Whether nobody has this instance name, alive or dead."""
        group = self.groups.get("g")
        held = group.static if group is not None else self.membership_static()
        mine = {client.instance for client in (*self.classics, *self.consumers)}
        return instance is None or (instance not in held and instance not in mine)

    def membership_static(self) -> dict[str, str]:
        group = self.membership.get("g")
        return group.roster.static if group is not None else {}

    @precondition(lambda self: len(self.classics) + len(self.consumers) < CLIENTS_MAX)
    @rule(names=SUBSCRIPTIONS, instance=st.sampled_from([None, "one", "two"]))
    def come_classic(self, names: str, instance: str | None) -> None:
        if self.is_free(instance):
            self.classics.append(Classic(frozenset(names), self.cooperative, instance))

    @precondition(lambda self: len(self.classics) + len(self.consumers) < CLIENTS_MAX)
    @rule(names=SUBSCRIPTIONS, instance=st.sampled_from([None, "one", "two"]))
    def come_consumer(self, names: str, instance: str | None) -> None:
        if self.is_free(instance):
            self.made += 1
            self.consumers.append(Simulated(f"m{self.made}", frozenset(names), instance))

    @precondition(lambda self: self.classics)
    @rule(which=WHICH)
    def change_to_consumer(self, which: int) -> None:
        """A process is restarted with the other protocol; a static member does not say that it goes."""
        client = self.classics.pop(which % len(self.classics))
        client.waits_for = 0
        if client.instance is None:
            self.leave_classic(client)
        self.made += 1
        self.consumers.append(Simulated(f"m{self.made}", client.topics, client.instance))

    @precondition(lambda self: any(client.instance is not None for client in self.classics))
    @rule(which=WHICH)
    def restart_static(self, which: int) -> None:
        """A process ends without a word, and begins again with the same instance name."""
        static = [client for client in self.classics if client.instance is not None]
        static[which % len(static)].lose()

    @precondition(lambda self: self.consumers)
    @rule(which=WHICH)
    def change_to_classic(self, which: int) -> None:
        client = self.consumers.pop(which % len(self.consumers))
        self.leave_consumer(client)
        self.classics.append(Classic(client.topics, self.cooperative, client.instance))

    @precondition(lambda self: self.classics)
    @rule(which=WHICH, lost=st.booleans(), times=st.integers(1, 3))
    def classic_acts(self, which: int, lost: bool, times: int) -> None:
        for _ in range(times):
            self.act(self.classics[which % len(self.classics)], lost)

    @precondition(lambda self: self.consumers)
    @rule(which=WHICH, lost=st.booleans())
    def consumer_beats(self, which: int, lost: bool) -> None:
        self.exchange(self.consumers[which % len(self.consumers)], lost)

    @precondition(lambda self: self.consumers)
    @rule(which=WHICH)
    def consumer_gives_up(self, which: int) -> None:
        self.consumers[which % len(self.consumers)].give_up()

    @rule(lost=st.sets(WHICH, max_size=1))
    def all_act(self, lost: set[int]) -> None:
        for number, client in enumerate(list(self.classics)):
            self.act(client, number in lost)
        for number, consumer in enumerate(list(self.consumers)):
            self.exchange(consumer, number + len(self.classics) in lost)

    @rule(turns=st.integers(2, 12))
    def all_act_for_a_while(self, turns: int) -> None:
        """So long that most rebalances end."""
        for _ in range(turns):
            self.turn()

    @rule(which=WHICH, dies=st.booleans())
    def go(self, which: int, dies: bool) -> None:
        everybody = [*self.classics, *self.consumers]
        if not everybody:
            return
        client = everybody[which % len(everybody)]
        if isinstance(client, Classic):
            self.classics.remove(client)
            client.waits_for = 0
            if not dies:
                self.leave_classic(client)
        else:
            self.consumers.remove(client)
            if not dies:
                self.leave_consumer(client)

    def leave_classic(self, client: Classic) -> None:
        keeper = self.membership if self.groups.get("g") is None else self.groups
        if client.id:
            keeper.leave("g", [(client.id, client.instance)], self.now_ms)
            self.carry_out()

    def leave_consumer(self, client: Simulated) -> None:
        self.groups.beat("g", a_beat(client.id, LEAVE, instance=client.instance), self.view, self.now_ms)
        self.carry_out()

    @rule()
    def the_coordinator_dies(self) -> None:
        for client in self.asked.values():
            if client.waits_for:
                client.waits_for, client.wants_to_join = 0, True
        self.begin()
        if self.stored is not None:
            snapshot = decode(self.stored)
            if isinstance(snapshot, ClassicSnapshot):
                self.membership.restore("g", snapshot, self.now_ms)
            else:
                self.groups.restore("g", snapshot, self.now_ms)
        self.carry_out()

    @rule(name=st.sampled_from(["a", "b"]))
    def a_topic_grows(self, name: str) -> None:
        count = len(self.view.topics[name].partitions)
        if count < 5:
            sizes = {other: len(topic.partitions) for other, topic in self.view.topics.items()} | {name: count + 1}
            self.view = TopicsView(self.view.revision + 1, topics(**sizes))

    @rule(passed_ms=st.sampled_from([1, 3_000, SESSION_MS, REBALANCE_MS]))
    def pass_time(self, passed_ms: int) -> None:
        """Clients whose session is over stop reading by their own clocks."""
        self.now_ms += passed_ms
        before = self.members()
        self.membership.tick(self.now_ms)
        self.groups.tick(self.now_ms)
        gone = before - self.members()
        self.carry_out()
        for client in self.classics:
            if client.id in gone:
                client.lose()
        for consumer in self.consumers:
            if consumer.id in gone:
                consumer.take(Beaten(Code.UNKNOWN_MEMBER_ID))

    # -- what always holds ------------------------------------------------------------------------------

    @invariant()
    def no_partition_has_two_readers(self) -> None:
        read = [part for client in (*self.classics, *self.consumers) for part in client.owned]
        assert len(read) == len(set(read)), "two clients read the same partition"

    @invariant()
    def the_group_is_of_one_protocol(self) -> None:
        group = self.groups.get("g")
        assert group is None or self.membership.get("g") is None
        assert (
            group is None
            or any(member.classic is None for member in group.members.values())
            or (not group.can_be_classic)
        )

    @invariant()
    def all_bytes_are_counted(self) -> None:
        assert self.membership._size == sum(self.membership._sizes.values())
        assert self.groups._size == sum(self.groups._sizes.values())
        for keeper in (self.membership, self.groups):
            if keeper.get("g") is not None:
                assert keeper.next_deadline_ms() is not None

    def teardown(self) -> None:
        """All converges: each partition has one reader, in the protocol that the clients have left."""
        for passed_ms in (REBALANCE_MS, LIMITS.consumer_session_ms):
            for _ in range(passed_ms // 2_000 + 1):
                self.pass_time(2_000)
                self.turn()
        for _ in range(CONVERGED_AFTER):
            self.pass_time(1)
            self.turn()
        wanted = {
            (topic.id, number)
            for name, topic in self.view.topics.items()
            for number in topic.partitions
            if any(name in client.topics for client in (*self.classics, *self.consumers))
        }
        read = {part for client in (*self.classics, *self.consumers) for part in client.owned}
        if self.consumers or not self.grew():
            assert read == wanted
        assert (self.groups.get("g") is not None) == bool(self.consumers)
        assert (self.membership.get("g") is not None) == (bool(self.classics) and not self.consumers)

    def grew(self) -> bool:
        """In the classic protocol it is the leader who looks for new partitions, which the clients here do not."""
        return self.view.revision > 1

    def turn(self) -> None:
        self.all_act(set())
        for consumer in self.consumers:
            consumer.give_up()
        self.no_partition_has_two_readers()


def test_a_static_member_that_comes_back_causes_the_rebalance_that_it_owed() -> None:
    """Found by the model: a new coordinator has the generation before, in which "one" is told to give some up."""
    state = Changing()
    state.two_come(cooperative=True)
    state.all_act({1})
    state.all_act({1})
    state.the_coordinator_dies()
    state.teardown()


Changing.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestClientsThatChangeTheirProtocol = Changing.TestCase


def test_what_a_leader_with_librdkafka_sends_back_to_each_member_is_nothing_that_an_assignor_tells() -> None:
    """The user data of the member's own subscription, which its sticky assignor has put there."""
    sticky = struct.pack(">i", 3) + b"own"
    subscription = struct.pack(">hih", 0, 1, 1) + b"a" + sticky
    assignment = encode_assignment([("a", 0)])[:-4] + sticky
    member = ClassicMember("m", None, "c", "/h", 1_000, 1_000, (("sticky", subscription),), assignment)
    there = {"a": Topic("a", {0: [0]}, {}, "0" * 32)}
    (moved,) = to_consumer(ClassicSnapshot(1, TYPE, "sticky", "m", (member,)), there).members
    assert [part for part, _ in moved.assigned] == [("0" * 32, 0)]
    assert decode_subscription(subscription).user_data == b"own"
    with pytest.raises(BadValue, match="more than their partitions"):
        decode_assignment(assignment, b"other")


def test_a_group_whose_assignor_tells_more_than_partitions_stays() -> None:
    """Such as that of Kafka Streams, whose members are consumers, too."""
    assignment = encode_assignment([("a", 0)])[:-4] + struct.pack(">i", 1) + b"x"
    with pytest.raises(BadValue, match="more than their partitions"):
        decode_assignment(assignment)
    with pytest.raises(BadValue, match="of the type 'connect'"):
        to_consumer(ClassicSnapshot(1, "connect", "p", "", ()), {})
    with pytest.raises(BadValue, match="no subscription"):
        decode_subscription(b"\0\1\0")
    with pytest.raises(BadValue, match="no assignment"):
        decode_assignment(b"\0\1\0")
    assert Synced(Code.NONE).assignment == b"" and decode_assignment(b"") == ()
