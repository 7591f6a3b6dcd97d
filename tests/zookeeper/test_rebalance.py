"""appliance.zookeeper.rebalance: whatever happens in whatever order, the group ends as the paper says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from appliance.errors import InvalidRequest, ZooKeeperAway
from appliance.names import TopicPartition
from appliance.zookeeper import paths
from appliance.zookeeper.assignment import group_assignment
from appliance.zookeeper.broker_registry import BrokerRegistry
from appliance.zookeeper.deletion import retire_topic
from appliance.zookeeper.group_registry import GroupRegistry
from appliance.zookeeper.offset_registry import OffsetRegistry
from appliance.zookeeper.operations import Operation, Request, ask, delete, hold_ephemeral
from appliance.zookeeper.paths import CommittedOffset, Subscription, TopicInfo
from appliance.zookeeper.rebalance import Gained, Rebalancer

from ..support.zookeeper_fixture import Tree

GROUP = "g"
SYNC_MS = 2_000
LIFE = 1_000_000
"""A topic that was made again begins at a multiple of this, so that a position tells which one it is in."""


class Consumer:
    """A consumer whose operations are carried out one request at a time, and which can be cut off between any two."""

    def __init__(
        self, tree: Tree, name: str, subscription: Subscription, session_id: int, lives: Mapping[str, int] | None = None
    ) -> None:
        self.tree, self.name, self.subscription, self.session_id = tree, name, subscription, session_id
        self.lives = {} if lives is None else lives
        self.positions: dict[TopicPartition, int] = {}  # what runs, and how far it has come
        self.operation: Operation[Any] | None = None
        self.leaving = self.fenced = False
        self._requests: list[Request] = []
        self._replies: list[Any] = []
        self.on_their_way: list[Request] = []  # sent in an attempt that was cut off
        self.rebalancer = Rebalancer(
            GROUP, name, self,
            groups=GroupRegistry(), offsets=OffsetRegistry(), brokers=BrokerRegistry(), sync_ms=SYNC_MS,
        )  # fmt: skip

    def stop(self, parts: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {part: self.positions.pop(part) for part in parts}

    def start(self, gained: Sequence[Gained]) -> None:
        for each in gained:
            part = TopicPartition(each.topic, each.partition)
            assert part not in self.positions, "started twice"
            self.positions[part] = each.stored.offset if each.stored else self.lives.get(each.topic, 0) * LIFE

    def register(self) -> None:
        value = paths.encode_subscription(self.subscription)
        self.tree.run(hold_ephemeral(paths.consumer(GROUP, self.name), value, self.session_id, lambda _: True),
                      self.session_id)  # fmt: skip
        self.rebalancer.trigger()

    def begin(self, operation: Operation[Any], now_ms: int) -> None:
        self.operation = operation
        self._proceed(None, now_ms)

    def step(self, now_ms: int) -> None:
        """Carry out one request; when it was the last of its round, go on to the next."""
        assert self.operation is not None
        for late in self.on_their_way:  # what a session sent earlier arrives earlier
            self.tree.answer(late, self.session_id)
        self.on_their_way = []
        if len(self._replies) < len(self._requests):
            self._replies.append(self.tree.answer(self._requests[len(self._replies)], self.session_id))
        if len(self._replies) == len(self._requests):
            self._proceed(self._replies, now_ms)

    def cut_off(self) -> None:
        """The operation is given up; of its last requests, any first part has arrived, the others may still."""
        if self.operation is not None:
            self.operation.close()
            self.operation = None
            self.on_their_way += self._requests[len(self._replies) :]

    def _proceed(self, replies: list[Any] | None, now_ms: int) -> None:
        assert self.operation is not None
        try:
            self._requests = self.operation.send(replies)  # type: ignore[arg-type]
            self._replies = []
            while not self._requests:
                self._requests = self.operation.send([])
        except StopIteration as finished:
            self._over(finished.value, now_ms)
        except ZooKeeperAway as error:
            self._over(error, now_ms)

    def _over(self, result: Any, now_ms: int) -> None:
        self.operation = None
        if not self.leaving:
            self.rebalancer.finished(result, now_ms)


class GroupMachine(RuleBasedStateMachine):
    """Members join, leave, are killed, lose their sessions and come back; topics grow, or are deleted and made again;
    every request interleaves.

    ZooKeeper's promises are modelled as they are: requests of one session arrive in order; one that was sent may
    arrive after its sender gave it up, or never; a session expires only after its owner's lease is over.
    """

    @initialize(partitions=st.integers(1, 5))
    def prepare(self, partitions: int) -> None:
        self.tree, self.now_ms, self.sessions, self.names = Tree(), 0, 0, 0
        self.consumers: list[Consumer] = []
        self.expiring: list[int] = []  # sessions of the dead
        self.sizes = {"a": partitions, "b": 2}
        self.lives = dict.fromkeys(self.sizes, 0)
        for name in self.sizes:
            self.write_topic(name)

    def write_topic(self, name: str) -> None:
        info = TopicInfo({i: [0] for i in range(self.sizes[name])})
        self.tree.run(ask([delete(paths.topic(name))]))
        self.tree.run(BrokerRegistry().create_topic(name, TopicInfo(info.partitions, id=self.topic_id(name))))
        self.changed()

    def topic_id(self, name: str) -> str:
        return f"{self.lives[name]:032x}"

    def changed(self) -> None:
        for consumer in self.consumers:
            consumer.rebalancer.trigger()

    def new_session(self) -> int:
        self.sessions += 1
        return self.sessions

    def one(self, data: st.DataObject) -> Consumer:
        return data.draw(st.sampled_from(self.consumers))

    subscriptions = st.sampled_from(
        [Subscription({"a": 1}), Subscription({"a": 2, "b": 1}), Subscription(pattern=".*", streams=1)]
    )

    @precondition(lambda self: len(self.consumers) < 4)
    @rule(subscription=subscriptions)
    def join(self, subscription: Subscription) -> None:
        self.names += 1
        consumer = Consumer(self.tree, f"c{self.names}", subscription, self.new_session(), self.lives)
        consumer.register()
        self.consumers.append(consumer)
        self.changed()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), steps=st.integers(1, 12))
    def run_on(self, data: st.DataObject, steps: int) -> None:
        consumer = self.one(data)
        for _ in range(steps):
            if consumer in self.consumers:
                self.step(consumer)

    def step(self, consumer: Consumer) -> bool:
        """One request of this consumer; False when it has nothing to do now."""
        if consumer.operation is None:
            if consumer.fenced or consumer.rebalancer.due_ms(self.now_ms) != 0:
                return False
            consumer.begin(consumer.rebalancer.begin(consumer.session_id), self.now_ms)
        else:
            consumer.step(self.now_ms)
        if consumer.leaving and consumer.operation is None:
            self.consumers.remove(consumer)
            self.expiring.append(consumer.session_id)
            self.changed()
        return True

    @rule()
    def come_to_rest(self) -> None:
        """As far as the dead and the fenced, whose nodes are still there, let the others."""
        self.settle()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def consume(self, data: st.DataObject) -> None:
        for part in (consumer := self.one(data)).positions:
            consumer.positions[part] += 1

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        consumer = self.one(data)
        if consumer.leaving or consumer.fenced:
            return
        consumer.cut_off()
        consumer.leaving = True

        def leave() -> Operation[None]:
            running = dict(consumer.rebalancer.running)
            yield from consumer.rebalancer.give_up(running, keeping={}, session_id=consumer.session_id)
            yield from GroupRegistry().leave(GROUP, consumer.name)

        consumer.begin(leave(), self.now_ms)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), arrives=st.booleans())
    def kill(self, data: st.DataObject, arrives: bool) -> None:
        consumer = self.one(data)
        consumer.cut_off()
        for request in consumer.on_their_way if arrives else []:
            self.tree.answer(request, consumer.session_id)
        self.consumers.remove(consumer)
        self.expiring.append(consumer.session_id)

    @precondition(lambda self: self.expiring)
    @rule()
    def expire(self) -> None:
        self.tree.expire(self.expiring.pop(0))
        self.changed()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def lease_is_over(self, data: st.DataObject) -> None:
        consumer = self.one(data)
        if not consumer.leaving:
            consumer.cut_off()
            consumer.rebalancer.lost()
            consumer.fenced = True

    @precondition(lambda self: any(consumer.fenced for consumer in self.consumers))
    @rule(data=st.data(), survived=st.booleans(), arrives=st.booleans())
    def reconnect(self, data: st.DataObject, survived: bool, arrives: bool) -> None:
        consumer = data.draw(st.sampled_from([consumer for consumer in self.consumers if consumer.fenced]))
        if not arrives:
            consumer.on_their_way = []
        if not survived:
            for request in consumer.on_their_way:
                self.tree.answer(request, consumer.session_id)
            consumer.on_their_way = []
            self.tree.expire(consumer.session_id)
            consumer.session_id = self.new_session()
        consumer.fenced = False
        consumer.register()
        self.changed()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def no_answer(self, data: st.DataObject) -> None:
        """ZooKeeper takes too long: the attempt is given up, the streams go on."""
        consumer = self.one(data)
        if consumer.operation is not None and not consumer.leaving:
            consumer.cut_off()
            consumer.rebalancer.finished(ZooKeeperAway("too slow"), self.now_ms)

    @rule(name=st.sampled_from(["a", "b"]))
    def grow(self, name: str) -> None:
        self.sizes[name] += 1
        self.write_topic(name)

    @rule(name=st.sampled_from(["a", "b"]), all_done=st.booleans())
    def make_again(self, name: str, all_done: bool) -> None:
        """A deletion that does not get to the positions of groups, and one that does: both before the next topic."""
        deletion = retire_topic(name, self.topic_id(name))
        if all_done:
            self.tree.run(deletion)
        self.lives[name] += 1
        self.write_topic(name)

    @rule(ms=st.integers(1, 3_000))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @invariant()
    def no_partition_is_read_twice(self) -> None:
        running = [part for consumer in getattr(self, "consumers", []) for part in consumer.positions]
        assert len(running) == len(set(running)), running

    def teardown(self) -> None:
        if not hasattr(self, "tree"):
            return
        for session_id in self.expiring:
            self.tree.expire(session_id)
        for consumer in self.consumers:
            if consumer.fenced:
                consumer.fenced = False
                consumer.register()
        self.changed()
        self.settle()
        live = {consumer.name: consumer.subscription for consumer in self.consumers}
        expected = group_assignment(live, {name: range(size) for name, size in self.sizes.items()})
        assert self.tree.run(GroupRegistry().owners(GROUP)) == {p: tuple(s) for p, s in expected.items()}
        for consumer in self.consumers:
            own = {part for part, stream in expected.items() if stream.consumer == consumer.name}
            assert consumer.positions.keys() == own
            for part, position in consumer.positions.items():
                assert position >= self.lives[part.topic] * LIFE, "a position in an earlier topic of this name"

    def settle(self) -> None:
        """Everybody goes on, a request each in turn, the clock with them, until nobody has anything to do."""
        for _ in range(5_000):
            if any([self.step(consumer) for consumer in list(self.consumers)]):
                continue
            due = [one.rebalancer.due_ms(self.now_ms) for one in self.consumers if not one.fenced]
            if all(ms is None for ms in due):
                return
            self.now_ms += min(ms for ms in due if ms is not None)
        raise AssertionError("the group does not come to rest")


TestGroup = GroupMachine.TestCase
TestGroup.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


# --- single properties, in so many words


def group_of(tree: Tree, *names: str, partitions: int = 4) -> list[Consumer]:
    tree.run(BrokerRegistry().create_topic("a", TopicInfo({i: [0] for i in range(partitions)}, id="1" * 32)))
    consumers = [Consumer(tree, name, Subscription({"a": 1}), i) for i, name in enumerate(names, 1)]
    for consumer in consumers:
        consumer.register()
    return consumers


def attempt(consumer: Consumer, now_ms: int = 0) -> None:
    consumer.begin(consumer.rebalancer.begin(consumer.session_id), now_ms)
    while consumer.operation is not None:
        consumer.step(now_ms)


def test_positions_are_committed_before_partitions_change_hands() -> None:
    tree = Tree()
    (first,) = group_of(tree, "c1")
    attempt(first)
    first.positions = dict.fromkeys(first.positions, 42)
    second = Consumer(tree, "c2", Subscription({"a": 1}), 2)
    second.register()
    attempt(first)
    attempt(second)
    assert first.positions == {("a", 0): 42, ("a", 1): 42}
    assert second.positions == {("a", 2): 42, ("a", 3): 42}


def test_who_finds_an_owner_in_the_way_takes_nothing_and_tries_again_after_the_sync_time() -> None:
    tree = Tree()
    (first,) = group_of(tree, "c1")
    attempt(first)
    second = Consumer(tree, "c2", Subscription({"a": 1}), 2)
    second.register()
    for failures in range(1, 4):
        attempt(second, now_ms=100)
        assert second.rebalancer.in_the_way == [("a", 2), ("a", 3)] and not second.positions
        assert second.rebalancer.failures == failures and second.rebalancer.due_ms(100) == SYNC_MS
    attempt(second, now_ms=100)
    assert second.rebalancer.due_ms(100) is None  # the fourth was the last
    second.rebalancer.trigger()
    assert second.rebalancer.due_ms(100) is not None  # until something changes
    attempt(first)
    attempt(second)
    assert len(second.positions) == 2 and second.rebalancer.failures == 0


def test_triggers_are_coalesced() -> None:
    (consumer,) = group_of(Tree(), "c1")
    operation = consumer.rebalancer.begin(1)
    for _ in range(5):
        consumer.rebalancer.trigger()
    assert consumer.rebalancer.due_ms(0) is None  # one at a time
    consumer.begin(operation, 0)
    while consumer.operation is not None:
        consumer.step(0)
    assert consumer.rebalancer.due_ms(0) == 0
    attempt(consumer)
    assert consumer.rebalancer.due_ms(0) is None


def test_what_stays_is_not_disturbed() -> None:
    tree = Tree()
    first, second = group_of(tree, "c1", "c2")
    attempt(first)
    attempt(second)
    first.stop = second.stop = None  # type: ignore[assignment,method-assign]
    first.rebalancer.trigger()
    attempt(first)
    assert len(first.positions) == 2


def test_a_former_owners_late_commit_does_not_stop_the_owner_from_committing() -> None:
    tree = Tree()
    (first,) = group_of(tree, "c1", partitions=1)
    attempt(first)
    part = TopicPartition("a", 0)
    tree.run(OffsetRegistry().commit(GROUP, {part: CommittedOffset(7)}))  # behind the owner's back
    assert tree.run(first.rebalancer.commit({part: 9}, session_id=1), 1) == []
    assert tree.run(OffsetRegistry().read(GROUP))[part].offset == 9


def test_who_lost_a_partition_cannot_commit_to_it() -> None:
    tree = Tree()
    (first,) = group_of(tree, "c1", partitions=1)
    attempt(first)
    tree.expire(1)
    second = Consumer(tree, "c2", Subscription({"a": 1}), 2)
    second.register()
    attempt(second)
    part = TopicPartition("a", 0)
    assert tree.run(second.rebalancer.commit({part: 9}, session_id=2), 2) == []
    assert tree.run(first.rebalancer.commit({part: 5}, session_id=1), 1) == [part]
    assert tree.run(OffsetRegistry().read(GROUP))[part].offset == 9


def test_a_group_of_the_other_listener_is_refused() -> None:
    tree = Tree()
    (consumer,) = group_of(tree, "c1")
    kafka = Subscription({"a": 1}, protocol="kafka")
    tree.run(GroupRegistry().join(GROUP, "member", kafka, 9), 9)
    with pytest.raises(InvalidRequest, match="another group name"):
        tree.run(consumer.rebalancer.begin(1))


def test_an_owner_who_comes_back_does_not_release_what_another_owns_by_now() -> None:
    tree = Tree()
    (first,) = group_of(tree, "c1", partitions=2)
    attempt(first)
    first.rebalancer.lost()
    tree.expire(1)
    second = Consumer(tree, "c2", Subscription({"a": 1}), 2)
    second.register()
    attempt(second)
    first.session_id = 3
    first.register()
    attempt(first)
    assert first.rebalancer.in_the_way == [("a", 0)]
    assert tree.run(GroupRegistry().owners(GROUP)) == {("a", 0): ("c2", 0), ("a", 1): ("c2", 0)}
    attempt(second)
    attempt(first)
    assert first.positions.keys() == {("a", 0)} and second.positions.keys() == {("a", 1)}
