"""appliance.client.group_member and appliance.processes.coordinator.native_groups: the two machines of native groups.

Whatever is lost, repeated or late, whoever is killed or paused: no partition is handed out by two members, no committed
offset goes back, and in the end each partition is owned as the paper says.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from appliance.catalog import Topic
from appliance.client.group_member import MemberIdentity, MemberSession
from appliance.client.rebalance import Calls, CoordinatorCall, Gained
from appliance.errors import (
    ApplianceError,
    GroupNotPermitted,
    IllegalGeneration,
    InvalidRequest,
    OutOfResources,
    RequestTimedOut,
    Unavailable,
    UnknownMember,
    ZooKeeperAway,
)
from appliance.groups.store import Commit
from appliance.names import TopicPartition
from appliance.processes.coordinator import native_groups
from appliance.processes.coordinator.committed_offsets import CommittedOffsets
from appliance.processes.coordinator.native_groups import NativeGroups
from appliance.wire.kafka.codes import Code
from appliance.zookeeper import claims, paths
from appliance.zookeeper.assignment import group_assignment
from appliance.zookeeper.broker_registry import BrokerRegistry
from appliance.zookeeper.claims import Claimant
from appliance.zookeeper.group_registry import GroupRegistry
from appliance.zookeeper.operations import Operation, Request, ask, delete
from appliance.zookeeper.paths import CommittedOffset, Subscription, TopicInfo

from ..support.zookeeper_fixture import Tree

T = TypeVar("T")
GROUP = "g"
ZOOKEEPER_MS = 3_000
SESSION_MS = 2_000
SYNC_MS = 1_000
LIFE = 1_000_000
"""A topic that was made again begins at a multiple of this, so that a position tells which one it is in."""
PARTITIONS_MAX = 6
CHANGING = ("commit_owned", "release_partitions", "claim_partitions", "leave_group")
STEP = 100
"""Positions are multiples of this; what a member commits has its number besides, so that it tells who has."""


class Instant(selectors.DefaultSelector):  # type: ignore[valid-type,misc]
    def select(self, timeout: float | None = None) -> Any:
        return super().select(0)


class Loop(asyncio.SelectorEventLoop):
    """Its clock is set by the test, so that nothing waits."""

    def __init__(self) -> None:
        self.now_ms = 0
        super().__init__(Instant())

    def time(self) -> float:
        return self.now_ms / 1000

    def turns(self, number: int) -> None:
        async def pass_turns() -> None:
            for _ in range(number):
                await asyncio.sleep(0)

        self.run_until_complete(pass_turns())


class WatchedTree(Tree):
    """Looks at each write of a committed offset.

    It never goes back, is of nobody while another one owns the partition, and was accepted under the present claim.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[int, str] = {}
        """The members by their numbers."""
        self.depth = 0
        self.highest: dict[TopicPartition, int] = {}
        """Of each partition, the highest offset that was ever stored."""
        self.accepted: dict[tuple[TopicPartition, int], set[str]] = {}
        """Under which claims a coordinator has accepted an offset."""

    def answer(self, request: Request, session_id: int = 1) -> Any:
        self.depth += 1  # the parts of a multi come here, too, and may be taken back
        reply = super().answer(request, session_id)
        self.depth -= 1
        if not self.depth and request.verb in ("multi", "create", "set"):
            self.look()
        return reply

    def look(self) -> None:
        for part, at in self.stored().items():
            highest = self.highest.get(part, 0)
            assert at.offset >= highest, f"{part}: {at.offset} is stored behind {highest}"
            if at.offset > highest:
                self.highest[part] = at.offset
                owner = self.nodes.get(paths.owner(GROUP, part))
                by = self.names.get(at.offset % STEP, "")  # "": it has only been where its topic begins
                assert owner is None or owner.value.startswith(by.encode()), f"{part} is {owner}'s, but {by} commits"
                assert not self.accepted[part, at.offset].isdisjoint(self.nodes), f"{part}: accepted by another claim"

    def stored(self) -> Mapping[TopicPartition, CommittedOffset]:
        values = {
            part: node.value
            for part in (TopicPartition(name, number) for name in "ab" for number in range(PARTITIONS_MAX))
            if (node := self.nodes.get(paths.offset(GROUP, part))) is not None
        }
        return claims.decoded(GROUP, values)


class World:
    """ZooKeeper, the topics, the clock, and the sessions that nobody keeps alive any more."""

    def __init__(self, partitions: Mapping[str, int]) -> None:
        self.loop, self.tree = Loop(), WatchedTree()
        self.sizes, self.lives = dict(partitions), dict.fromkeys(partitions, 0)
        self.dying: dict[int, int] = {}
        self.sessions, self.epochs, self.numbers = count(1), count(1), count(1)
        for name in partitions:
            self.write_topic(name)

    @property
    def now_ms(self) -> int:
        return self.loop.now_ms

    def topics(self) -> dict[str, Topic]:
        return {
            name: Topic(name, {number: [0] for number in range(size)}, id=f"{self.lives[name]:032x}")
            for name, size in self.sizes.items()
        }

    def write_topic(self, name: str) -> None:
        self.tree.run(ask([delete(paths.topic(name))]))
        info = TopicInfo({i: [0] for i in range(self.sizes[name])}, id=f"{self.lives[name]:032x}")
        self.tree.run(BrokerRegistry().create_topic(name, info))

    def pass_time(self, ms: int) -> None:
        self.loop.now_ms += ms
        for session_id, at_ms in list(self.dying.items()):
            if self.now_ms >= at_ms:
                self.tree.expire(session_id)
                del self.dying[session_id]


class Session:
    """A session with ZooKeeper: each request takes a turn of the loop.  ``cut_ms``: since when it has no connection.

    ``sent``: requests that are on their way; False: it was carried out, and its answer is lost.
    """

    enabled = True

    def __init__(self, world: World) -> None:
        self.world, self.groups = world, GroupRegistry()
        self.session_id = next(world.sessions)
        self.cut_ms: int | None = None
        self.dead = False
        self.sent: dict[object, Request | None] = {}

    @property
    def lease_left_ms(self) -> int:
        if self.dead:
            return 0
        return ZOOKEEPER_MS if self.cut_ms is None else max(0, self.cut_ms + ZOOKEEPER_MS - self.world.now_ms)

    @property
    def leased(self) -> bool:
        return self.lease_left_ms > 0

    async def ask(self, operation: Operation[T], *, session_id: int | None = None) -> T:
        own = self.session_id
        try:
            requests = next(operation)
            while True:
                replies = []
                for request in requests:
                    way = object()
                    self.sent[way] = request
                    try:
                        await asyncio.sleep(0)
                    finally:
                        arrives = self.sent.pop(way) is not None
                    away = self.dead or self.cut_ms is not None or own != self.session_id
                    if not arrives or away or session_id not in (None, own):
                        raise ZooKeeperAway("away")
                    replies.append(self.world.tree.answer(request, own))
                requests = operation.send(replies)
        except StopIteration as finished:
            result: T = finished.value
            return result
        finally:
            operation.close()

    def lose_answers(self, arriving: int) -> None:
        """So many requests that are on their way are carried out, and nobody hears of it."""
        if self.cut_ms is None:
            for way, request in list(self.sent.items())[:arriving]:
                if request is not None:
                    self.world.tree.answer(request, self.session_id)
                    self.sent[way] = None

    def end(self) -> None:
        """Nobody keeps it alive any more; ZooKeeper notices later."""
        since = self.world.now_ms if self.cut_ms is None else self.cut_ms
        self.world.dying[self.session_id] = since + ZOOKEEPER_MS


class Kafka:
    """No group of the Kafka listener has members, unless the test says so."""

    def __init__(self, offsets: CommittedOffsets) -> None:
        self.offsets, self.members = offsets, False

    async def load(self, group: str, *, make: bool = False) -> Code:
        try:
            await self.offsets.claim(group, make=make)
        except ApplianceError as error:
            return Code(error.code)
        return Code.NONE

    def has_members(self, group: str) -> bool:
        return self.members


class Broker:
    """One life of a coordinator."""

    def __init__(self, world: World, number: int, coordinates: Any) -> None:
        self.world, self.number, self.tasks = world, number, set[asyncio.Task[Any]]()
        self.session = Session(world)
        self.offsets = CommittedOffsets(
            self.session, Claimant(number, str(number)), self.spawn,
            offsets_max=1_000, coordinates=coordinates,
            new_epoch=lambda: str(next(world.epochs)), clock_ms=lambda: world.now_ms, members=self,
        )  # fmt: skip
        self.kafka = Kafka(self.offsets)
        self.groups = NativeGroups(
            self.session, self.offsets, self.commit, self.committed, world.topics, self.kafka,
            restored_ms=ZOOKEEPER_MS, clock_ms=lambda: world.now_ms, spawn=self.spawn,
            new_epoch=lambda: str(next(world.epochs)),
        )  # fmt: skip

    def has_members(self, group: str) -> bool:
        return self.groups.has_members(group)

    def lose(self, group: str) -> None:
        self.groups.lose(group)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        async def contained() -> Any:
            try:
                return await work
            except Unavailable:
                return None

        task = self._keep(contained())
        task.add_done_callback(lambda _: work.close())  # it may be cancelled before it has begun
        return task

    def _keep(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.world.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        task.add_done_callback(_seen)
        return task

    async def commit(
        self, group: str, offsets: Mapping[TopicPartition, Commit | None], protocol_type: str
    ) -> Mapping[TopicPartition, ApplianceError]:
        topics = self.world.topics()
        known = {part: CommittedOffset(at.offset, "", topics[part.topic].id) for part, at in offsets.items() if at}
        claim = self.groups._groups[group].claim_path
        for part, at in known.items():
            self.world.tree.accepted.setdefault((part, at.offset), set()).add(claim)
        return await self.offsets.commit(group, known, protocol_type)

    async def committed(self, group: str, parts: Sequence[TopicPartition] | None) -> Mapping[TopicPartition, Commit]:
        stored, topics = await self.offsets.read(group, parts, anew=True), self.world.topics()
        return {
            part: Commit(at.offset, at.metadata) for part, at in stored.items() if at.topic_id == topics[part.topic].id
        }

    def serve(self, call: CoordinatorCall) -> asyncio.Task[Any]:
        """Begin to answer a call, as ``native_members_api`` does."""
        given = dict(call.arguments)
        if call.verb == "join_group":
            about = {name: given.pop(name) for name in ("topics", "pattern", "streams", "exclude") if name in given}
            who = (given[name] for name in ("group", "member", "secret", "sequence"))
            return self._keep(self.groups.join(*who, Subscription(**about), given["session_ms"]))
        who = [given[name] for name in ("group", "member", "secret", "epoch")]
        sequence = given["sequence"]
        match call.verb:
            case "group_registry":
                return self._keep(self.groups.registry(*who))
            case "claim_partitions":
                streams = {TopicPartition(topic, number): stream for topic, number, stream in given["partitions"]}
                return self._keep(self.groups.claim(*who, sequence, streams))
            case "release_partitions":
                parts = [TopicPartition(*part) for part in given["partitions"]]
                return self._keep(self.groups.release(*who, sequence, parts))
            case "commit_owned":
                offsets = {TopicPartition(topic, number): (at, id) for topic, number, at, id in given["offsets"]}
                return self._keep(self.groups.commit(*who, sequence, offsets))
            case "await_change":
                return self._keep(self.groups.await_change(*who, given["revision"], given["wait_ms"]))
        assert call.verb == "leave_group"
        return self._keep(self.groups.leave(*who, sequence))

    def die(self) -> None:
        self.session.end()
        self.session.dead = True
        for group in list(self.groups._groups):
            self.groups.lose(group)  # its alarms; nothing is stored any more
        for task in list(self.tasks):
            task.cancel()


class Consumer:
    """A member, and streams that hand out nothing but positions.  It can be cut off at every call."""

    def __init__(self, world: World, name: str, subscription: Subscription) -> None:
        self.world, self.subscription = world, subscription
        self.identity = MemberIdentity(GROUP, name)
        self.name = self.identity.member
        self.number = next(world.numbers) % STEP
        world.tree.names[self.number] = self.name
        self.positions: dict[TopicPartition, int] = {}
        self.membership = MemberSession(
            self.identity, subscription, self, session_ms=SESSION_MS, clock_ms=lambda: world.now_ms, sync_ms=SYNC_MS
        )
        self.calls: Calls[Any] | None = None
        self.call: CoordinatorCall | None = None
        self.answer: asyncio.Task[Any] | None = None
        self.leaving = self.gone = False

    def stop(self, parts: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {part: self.positions.pop(part) for part in parts}

    def start(self, gained: Sequence[Gained]) -> None:
        for topic, partition, _, offset in gained:
            part = TopicPartition(topic, partition)
            assert part not in self.positions, "started twice"
            self.positions[part] = self.world.lives[topic] * LIFE if offset is None else offset
            committed = self.world.tree.highest.get(part, 0)
            behind = committed // LIFE == self.world.lives[topic] and self.positions[part] < committed
            assert not (behind and self.membership.lease_left_ms), f"{part} is started behind what is committed"

    def read_on(self, part: TopicPartition) -> None:
        self.positions[part] = (self.positions[part] // STEP + 1) * STEP + self.number

    @property
    def reads(self) -> set[TopicPartition]:
        """What it hands out at this moment."""
        return set(self.positions) if self.membership.lease_left_ms else set()

    def proceed(self, result: Any = None, error: ApplianceError | None = None) -> None:
        """Give the machine what has become of its call, and take the next one."""
        if self.calls is None:
            if self.gone:
                return
            self.calls = self.membership.leave() if self.leaving else self.membership.turn(500)
            result, error = None, None
        self.answer = self.call = None
        try:
            self.call = self.calls.throw(error) if error is not None else self.calls.send(result)
        except StopIteration:
            self.calls = None
        except ApplianceError as failed:
            assert self.leaving or failed.retriable or isinstance(failed, IllegalGeneration), failed
            self.calls = None
        self.gone = self.leaving and self.calls is None
        if self.gone:
            self.membership.rebalancer.lost()

    def step(self, broker: Broker) -> None:
        """Send the call, or take its answer if it is there."""
        if self.answer is not None:
            if self.answer.done():
                failed = asyncio.CancelledError() if self.answer.cancelled() else self.answer.exception()
                if isinstance(failed, ApplianceError):
                    self.proceed(error=failed)
                elif failed is not None:
                    assert isinstance(failed, asyncio.CancelledError), failed
                    self.proceed(error=RequestTimedOut("killed"))
                else:
                    self.proceed(self.answer.result())
        elif self.call is not None:
            self.answer = broker.serve(self.call)
        else:
            self.proceed()


class GroupMachine(RuleBasedStateMachine):
    """Two brokers, of which one coordinates the group, and up to three members."""

    @initialize(partitions=st.integers(1, 4), members=st.integers(0, 2))
    def prepare(self, partitions: int, members: int) -> None:
        self.world = World({"a": partitions, "b": 2})
        self.active = 0
        self.brokers = [self.live(number) for number in range(2)]
        self.consumers: list[Consumer] = []
        self.old_calls: list[CoordinatorCall] = []
        self.names = count(1)
        for _ in range(members):
            self.come(Subscription({"a": 1}))
        if members:
            self.others_go_on(None, 40)

    def live(self, number: int) -> Broker:
        return Broker(self.world, number, lambda _: self.active == number)

    @property
    def coordinator(self) -> Broker:
        return self.brokers[self.active]

    # ---- members

    subscriptions = st.sampled_from(
        [Subscription({"a": 1}), Subscription({"a": 2, "b": 1}), Subscription(pattern=".*", streams=1)]
    )

    @precondition(lambda self: len(self.consumers) < 3)
    @rule(subscription=subscriptions)
    def come(self, subscription: Subscription) -> None:
        self.consumers.append(Consumer(self.world, f"host-{next(self.names)}", subscription))

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), steps=st.integers(1, 8), turns=st.integers(0, 12))
    def run_on(self, data: st.DataObject, steps: int, turns: int) -> None:
        consumer = data.draw(st.sampled_from(self.consumers))
        for _ in range(steps):
            consumer.step(self.coordinator)
            self.world.loop.turns(turns)
            if consumer.call is not None and consumer.call.verb != "join_group":
                self.old_calls.append(consumer.call)
        self.bury()

    @precondition(lambda self: self.consumers)
    @rule(rounds=st.sampled_from([2, 10, 40, 120]), turns=st.sampled_from([1, 2, 8]), data=st.data())
    def go_on(self, rounds: int, turns: int, data: st.DataObject) -> None:
        """All but one, or all, so long that most of what has begun ends; they read and commit."""
        self.others_go_on(data.draw(st.none() | st.sampled_from(self.consumers)), rounds, turns)

    def others_go_on(self, silent: Consumer | None, rounds: int, turns: int = 8) -> None:
        """All but the silent one, which reads on as long as it may.  A round takes 20 ms."""
        for number in range(rounds):
            for consumer in self.consumers:
                if consumer is not silent:
                    consumer.step(self.coordinator)
                    if number % 8 == 7:
                        self.send_commit(consumer)
            self.world.loop.turns(turns)
            self.world.pass_time(20)
            self.no_partition_is_handed_out_by_two()
        self.bury()

    @precondition(lambda self: self.consumers)
    @rule(
        how=st.sampled_from(["killed", "moved", "cut off"]),
        data=st.data(),
        before_ms=st.sampled_from([0, 1_500, 2_800]),
        after_ms=st.sampled_from([0, 300]),
    )
    def coordinator_is_replaced(self, how: str, data: st.DataObject, before_ms: int, after_ms: int) -> None:
        """The others go on with the next one; one member has heard nothing of it, and reads as long as it may."""
        silent = data.draw(st.sampled_from(self.consumers))
        before = self.active
        if how == "killed":
            self.kill(before, 0, 1)
        elif how == "cut off":
            self.cut(before, 1)
            self.world.pass_time(before_ms)
            for _ in range(3):
                silent.step(self.coordinator)
                self.world.loop.turns(4)
            self.world.pass_time(after_ms)
        if how != "killed":
            self.move()
        self.others_go_on(silent, 60)
        self.reconnect(before)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), arrives=st.booleans())
    def no_answer(self, data: st.DataObject, arrives: bool) -> None:
        """A request or its answer is lost; the request may still arrive, later."""
        consumer = data.draw(st.sampled_from(self.consumers))
        if consumer.call is not None:
            if arrives and consumer.answer is None:
                self.coordinator.serve(consumer.call)
            self.old_calls.append(consumer.call)
            consumer.proceed(error=RequestTimedOut("no answer"))
            self.bury()

    @precondition(lambda self: self.old_calls)
    @rule(data=st.data(), verb=st.sampled_from(CHANGING), turns=st.integers(0, 12))
    def late(self, data: st.DataObject, verb: str, turns: int) -> None:
        """An old request arrives, once more or at last."""
        calls = [call for call in self.old_calls if call.verb == verb]
        if calls:
            call = data.draw(st.sampled_from(calls[-6:]))
            self.coordinator.serve(call)
            self.world.loop.turns(turns)
            sender = [consumer for consumer in self.consumers if consumer.name == call.arguments["member"]]
            self.others_go_on(sender[0] if sender else None, 20)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), part=st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, PARTITIONS_MAX - 1)))
    def commit_of_others(self, data: st.DataObject, part: TopicPartition) -> None:
        """A member commits where it owns nothing, far ahead."""
        consumer = data.draw(st.sampled_from(self.consumers))
        group = self.coordinator.groups._groups.get(GROUP)
        owner = group.owners.get(part) if group is not None else None
        if consumer.membership.epoch and owner is not None and owner.member != consumer.name:
            offset = self.world.lives[part.topic] * LIFE + STEP * (LIFE // STEP - 1) + consumer.number
            about = {"epoch": consumer.membership.epoch, "offsets": [[*part, offset, self.topic_id(part.topic)]]}
            self.coordinator.serve(CoordinatorCall("commit_owned", {**consumer.identity.arguments(), **about}))
            self.world.loop.turns(12)

    def topic_id(self, name: str) -> str:
        return self.world.topics()[name].id

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), turns=st.integers(0, 3))
    def is_heard_while_its_end_waits(self, data: st.DataObject, turns: int) -> None:
        """A slow commit keeps a member's end waiting; meanwhile it is heard again."""
        consumer = data.draw(st.sampled_from(self.consumers))
        self.send_commit(consumer)
        self.world.loop.turns(turns)
        self.world.pass_time(SESSION_MS + 100)
        self.world.loop.turns(1)
        for _ in range(3):
            consumer.step(self.coordinator)
            self.world.loop.turns(1)
            self.no_partition_is_handed_out_by_two()
        self.bury()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), turns=st.integers(0, 12))
    def commit(self, data: st.DataObject, turns: int) -> None:
        """From another thread, whatever the membership is doing."""
        self.send_commit(data.draw(st.sampled_from(self.consumers)))
        self.world.loop.turns(turns)

    def send_commit(self, consumer: Consumer) -> None:
        for part in consumer.reads:
            consumer.read_on(part)
        if consumer.reads and consumer.membership.epoch:
            calls = consumer.membership.commit(dict(consumer.positions))
            call = next(calls)
            self.old_calls.append(call)
            self.coordinator.serve(call)
            calls.close()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from(self.consumers))
        if not consumer.leaving:
            consumer.leaving = True
            if consumer.calls is not None:
                consumer.calls.close()
                consumer.calls = consumer.call = consumer.answer = None

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def kill_member(self, data: st.DataObject) -> None:
        self.consumers.remove(data.draw(st.sampled_from(self.consumers)))

    def bury(self) -> None:
        self.consumers = [consumer for consumer in self.consumers if not consumer.gone]

    # ---- coordinators

    @rule(number=st.integers(0, 1), turns=st.integers(0, 3), arriving=st.integers(0, 2))
    def kill(self, number: int, turns: int, arriving: int) -> None:
        self.world.loop.turns(turns)
        self.brokers[number].session.lose_answers(arriving)
        self.brokers[number].die()
        self.world.loop.turns(1)
        self.brokers[number] = self.live(number)

    @rule()
    def move(self) -> None:
        """The live brokers have changed: another one coordinates the group."""
        self.active = 1 - self.active
        for broker in self.brokers:
            broker.spawn(broker.offsets.claims.review())
            broker.groups.on_brokers()

    @rule(number=st.integers(0, 1), arriving=st.integers(0, 2))
    def cut(self, number: int, arriving: int) -> None:
        """A coordinator and ZooKeeper do not reach each other."""
        session = self.brokers[number].session
        session.lose_answers(arriving)
        if session.cut_ms is None:
            session.cut_ms = self.world.now_ms

    @rule(number=st.integers(0, 1))
    def reconnect(self, number: int) -> None:
        broker, session = self.brokers[number], self.brokers[number].session
        if session.cut_ms is None:
            return
        if not session.leased:
            session.end()
            session.session_id = next(self.world.sessions)
        session.cut_ms = None
        broker.offsets.claims.new_session()

    @rule(number=st.integers(0, 1), ends=st.booleans())
    def lose_session(self, number: int, ends: bool) -> None:
        """A coordinator gets another session with ZooKeeper, which may have noticed the end of the one before."""
        self.cut(number, 1)
        self.world.pass_time(ZOOKEEPER_MS)
        self.reconnect(number)
        if ends:
            self.world.pass_time(1)

    @rule(turns=st.integers(1, 40))
    def coordinators_go_on(self, turns: int) -> None:
        self.world.loop.turns(turns)

    # ---- the rest

    @rule(name=st.sampled_from(["a", "b"]))
    def grow(self, name: str) -> None:
        self.world.sizes[name] = min(self.world.sizes[name] + 1, PARTITIONS_MAX)
        self.topics_changed(name)

    @rule(name=st.sampled_from(["a", "b"]))
    def make_again(self, name: str) -> None:
        self.world.lives[name] += 1
        self.topics_changed(name)

    def topics_changed(self, name: str) -> None:
        self.world.write_topic(name)
        for broker in self.brokers:
            broker.groups.on_topics()

    @rule(ms=st.sampled_from([1, 100, 700, 2_500, 5_000]))
    def time_passes(self, ms: int) -> None:
        self.world.pass_time(ms)

    # ---- what must hold

    @invariant()
    def no_partition_is_handed_out_by_two(self) -> None:
        reads = [part for consumer in getattr(self, "consumers", []) for part in consumer.reads]
        assert len(reads) == len(set(reads)), reads

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            for number in range(2):
                self.reconnect(number)
            self.settle()
        finally:
            for broker in self.brokers:
                broker.die()
            self.world.loop.turns(3)
            self.world.loop.close()

    def settle(self) -> None:
        """Everybody goes on, and the clock with them."""
        for _ in range(600):
            for consumer in self.consumers:
                consumer.step(self.coordinator)
            self.world.loop.turns(15)
            self.world.pass_time(30)
            self.no_partition_is_handed_out_by_two()
            self.bury()
            if self.at_rest():
                return
        raise AssertionError(f"not at rest: {self.owners()}, {[consumer.positions for consumer in self.consumers]}")

    def owners(self) -> Any:
        return self.world.tree.run(GroupRegistry().owners(GROUP))

    def at_rest(self) -> bool:
        live = {consumer.name: consumer.subscription for consumer in self.consumers}
        if not live:
            return True  # nobody asks for the group: what the dead had may stay as long as a broker that had it
        expected = group_assignment(live, {name: range(size) for name, size in self.world.sizes.items()})
        owners = {part: (owner.member, owner.stream) for part, owner in self.owners().items()}
        if owners != {part: tuple(stream) for part, stream in expected.items()}:
            return False
        if sorted(self.world.tree.run(GroupRegistry().members(GROUP))) != sorted(live):
            return False
        for consumer in self.consumers:
            own = {part for part, stream in expected.items() if stream.consumer == consumer.name}
            if consumer.reads != own:
                return False
        positions = [item for consumer in self.consumers for item in consumer.positions.items()]
        return all(position >= self.world.lives[part.topic] * LIFE for part, position in positions)


def _seen(task: asyncio.Task[Any]) -> None:
    """Nobody waits for this answer any more."""
    if not task.cancelled():
        error = task.exception()
        assert error is None or isinstance(error, ApplianceError), error


TestGroup = GroupMachine.TestCase
TestGroup.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


# --- single properties, in so many words


class Bench:
    """A coordinator and members in turn: each call is answered before the next one."""

    def __init__(self, *names: str, partitions: int = 4) -> None:
        self.world = World({"a": partitions})
        self.broker = Broker(self.world, 0, lambda _: True)
        self.consumers = [self.join(name) for name in names]

    def join(self, name: str, subscription: Subscription = Subscription({"a": 1})) -> Consumer:  # noqa: B008
        consumer = Consumer(self.world, name, subscription)
        self.turn(consumer)
        return consumer

    def turn(self, consumer: Consumer) -> ApplianceError | None:
        """One turn of a membership; what it has failed with."""
        return self.drive(consumer.membership.turn(0))

    def attempt(self, consumer: Consumer) -> None:
        consumer.membership.rebalancer.trigger()
        consumer.membership.rebalancer._not_before_ms = 0
        assert self.turn(consumer) is None

    def commit(self, consumer: Consumer, part: TopicPartition, offset: int) -> Any:
        return self.drive(consumer.membership.commit({part: offset}))

    def drive(self, calls: Calls[Any]) -> Any:
        """The result, or the error."""
        try:
            call = next(calls)
            while True:
                try:
                    result = self.answer(call)
                except ApplianceError as error:
                    call = calls.throw(error)
                else:
                    call = calls.send(result)
        except StopIteration as finished:
            return finished.value
        except ApplianceError as error:
            return error

    def answer(self, call: CoordinatorCall) -> Any:
        task = self.broker.serve(call)
        for _ in range(1_000):
            if task.done():
                return task.result()
            self.world.loop.turns(1)
        raise AssertionError(f"{call.verb} is not answered")

    def owners(self) -> Any:
        return self.world.tree.run(GroupRegistry().owners(GROUP))

    def stored(self) -> dict[TopicPartition, int]:
        return {part: at.offset for part, at in self.world.tree.run(claims.read(GROUP, None)).items()}

    def expire(self, *staying: Consumer) -> None:
        """The sessions of all others end."""
        for _ in range(4):
            self.world.pass_time(SESSION_MS // 2)
            for consumer in staying:
                self.turn(consumer)
            self.world.loop.turns(60)

    def close(self) -> None:
        self.broker.die()
        self.world.loop.turns(3)
        self.world.loop.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def part(number: int) -> TopicPartition:
    return TopicPartition("a", number)


def test_positions_are_committed_before_partitions_change_hands(bench: Bench) -> None:
    first = bench.join("c1")
    bench.attempt(first)
    first.positions = dict.fromkeys(first.positions, 42)
    second = bench.join("c2")
    bench.attempt(first)
    bench.attempt(second)
    ahead, behind = sorted([first, second], key=lambda one: one.name)
    assert ahead.positions == {part(0): 42, part(1): 42}
    assert behind.positions == {part(2): 42, part(3): 42}


def test_who_finds_an_owner_in_the_way_takes_nothing_and_tries_again_after_the_sync_time(bench: Bench) -> None:
    first = bench.join("c1")
    bench.attempt(first)
    second = bench.join("c2")
    for failures in range(1, 4):
        bench.attempt(second)
        rebalancer = second.membership.rebalancer
        assert rebalancer.in_the_way and not second.positions
        assert rebalancer.failures == failures and rebalancer.due_ms(bench.world.now_ms) == SYNC_MS
    bench.attempt(second)
    assert rebalancer.due_ms(bench.world.now_ms) is None  # the fourth was the last
    bench.attempt(first)
    assert bench.turn(second) is None, "it is told that what was in the way is released"
    assert rebalancer.due_ms(bench.world.now_ms) is not None
    bench.attempt(second)
    assert len(second.positions) == 2 and rebalancer.failures == 0


def test_what_stays_is_not_disturbed(bench: Bench) -> None:
    first, second = bench.join("c1"), bench.join("c2")
    bench.attempt(first)
    bench.attempt(second)
    first.stop = second.stop = None  # type: ignore[assignment,method-assign]
    bench.attempt(first)
    assert len(first.positions) == 2


def test_who_lost_a_partition_cannot_commit_to_it(bench: Bench) -> None:
    first = bench.join("c1")
    bench.attempt(first)
    second = bench.join("c2")
    bench.expire(second)
    bench.attempt(second)
    assert bench.commit(second, part(0), 9) == []
    assert isinstance(bench.commit(first, part(0), 5), UnknownMember)
    assert bench.turn(first) is None and bench.turn(first) is None
    assert not first.reads, "it begins anew"
    assert bench.commit(first, part(0), 5) in ([], [part(0)])
    assert bench.stored()[part(0)] == 9


def test_a_commit_that_failed_is_stored_when_it_is_repeated(bench: Bench) -> None:
    """With the same sequence, as a client does whose request was not answered in time."""
    consumer = bench.join("c1")
    bench.attempt(consumer)
    call = next(consumer.membership.commit({part(0): 7}))
    commit, failed = bench.broker.groups._commit, RequestTimedOut("ZooKeeper did not store offsets")

    async def fails(*_: Any) -> Mapping[TopicPartition, ApplianceError]:
        raise failed

    bench.broker.groups._commit = fails
    with pytest.raises(RequestTimedOut):
        bench.answer(call)
    bench.broker.groups._commit = commit
    assert bench.answer(call)["refused"] == [] and bench.stored()[part(0)] == 7
    assert bench.commit(consumer, part(0), 8) == []
    assert bench.answer(call)["refused"] == [] and bench.stored()[part(0)] == 8, "a late one changes nothing"


def test_a_member_outlives_its_coordinator_with_what_it_reads(bench: Bench) -> None:
    """Killed while nothing goes on: the member joins the next one, and no stream is stopped."""
    consumer = bench.join("c1")
    bench.attempt(consumer)
    assert bench.commit(consumer, part(0), 7) == []
    consumer.stop = None  # type: ignore[assignment,method-assign]
    bench.broker.die()
    bench.world.loop.turns(3)
    bench.broker = Broker(bench.world, 0, lambda _: True)
    bench.world.pass_time(100)
    for _ in range(4):
        bench.turn(consumer)
        bench.world.pass_time(100)
    bench.world.pass_time(ZOOKEEPER_MS - 500)
    bench.turn(consumer)
    assert consumer.reads == {part(number) for number in range(4)}
    assert bench.owners().keys() == consumer.reads, "also when ZooKeeper has ended the first session"
    assert bench.commit(consumer, part(0), 8) == [] and bench.stored()[part(0)] == 8


def test_a_member_that_is_silent_for_longer_than_its_session_is_replaced(bench: Bench) -> None:
    first, second = bench.join("c1"), bench.join("c2")
    bench.attempt(first)
    bench.attempt(second)
    bench.expire(second)
    assert not first.reads
    bench.attempt(second)
    assert len(second.reads) == 4 and bench.owners().keys() == second.reads


def test_a_change_that_comes_behind_a_newer_one_is_not_carried_out(bench: Bench) -> None:
    consumer = bench.join("c1")
    bench.attempt(consumer)
    late, newer = (
        CoordinatorCall(
            "release_partitions",
            {**consumer.identity.arguments(), "epoch": consumer.membership.epoch, "partitions": partitions},
        )
        for partitions in ([["a", 0]], [])
    )
    bench.answer(newer)
    with pytest.raises(IllegalGeneration):
        bench.answer(late)
    assert len(bench.owners()) == 4


def test_a_lease_is_no_longer_than_the_members_session_and_the_coordinators(bench: Bench) -> None:
    consumer = bench.join("c1")
    bench.attempt(consumer)
    assert consumer.membership.lease_left_ms == SESSION_MS < ZOOKEEPER_MS
    bench.broker.session.cut_ms = bench.world.now_ms
    for passed_ms in (1_500, 1_000):
        bench.world.pass_time(passed_ms)
        bench.turn(consumer)
    assert 0 < consumer.membership.lease_left_ms <= ZOOKEEPER_MS - 2_500


def test_a_member_that_is_heard_again_while_it_is_removed_gets_no_lease(bench: Bench) -> None:
    """ZooKeeper takes its time to remove the nodes; then others have what it would read."""
    consumer = bench.join("c1")
    bench.attempt(consumer)
    call = next(consumer.membership.turn(0))
    bench.world.pass_time(SESSION_MS + 1)
    bench.world.loop.turns(4)
    assert len(bench.owners()) == 4, "it is not removed yet"
    with pytest.raises(UnknownMember):
        bench.answer(call)
    bench.world.loop.turns(60)
    assert bench.owners() == {}


@pytest.mark.parametrize("secret", ["", "0" * 32])
def test_nobody_else_can_ask_in_a_members_name(bench: Bench, secret: str) -> None:
    """Whoever sees its id in ``groups describe`` can neither commit, nor release, nor throw it out."""
    consumer = bench.join("c1")
    bench.attempt(consumer)
    stolen = {"group": GROUP, "member": consumer.name, "secret": secret, "sequence": 99}
    stolen["epoch"] = consumer.membership.epoch
    for verb, more in [
        ("commit_owned", {"offsets": [["a", 0, 5, f"{0:032x}"]]}),
        ("release_partitions", {"partitions": [["a", 0]]}),
        ("claim_partitions", {"partitions": [["a", 0, 0]]}),
        ("group_registry", {}),
        ("await_change", {"revision": 0, "wait_ms": 0}),
        ("leave_group", {}),
    ]:
        with pytest.raises(GroupNotPermitted, match="another member"):
            bench.answer(CoordinatorCall(verb, stolen | more))
    del stolen["epoch"]
    with pytest.raises(GroupNotPermitted, match="another member"):
        bench.answer(CoordinatorCall("join_group", stolen | {"session_ms": SESSION_MS, "topics": {"a": 1}}))
    assert len(bench.owners()) == 4 and bench.stored() == {}


def test_a_group_with_members_of_kafka_is_refused_and_nothing_is_registered(bench: Bench) -> None:
    bench.broker.kafka.members = True
    consumer = Consumer(bench.world, "c1", Subscription({"a": 1}))
    assert isinstance(bench.turn(consumer), InvalidRequest)
    assert not bench.broker.groups.has_members(GROUP)
    assert bench.world.tree.run(GroupRegistry().members(GROUP)) == {}


def test_members_and_their_nodes_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_groups, "MEMBERS_MAX", 1)
    first = bench.join("c1")
    refused = Consumer(bench.world, "c2", Subscription({"a": 1}))
    bench.turn(refused)
    assert isinstance(refused.membership.trouble, OutOfResources)
    monkeypatch.setattr(native_groups, "NODES_BYTES_MAX", 1_000)
    first.membership.rebalancer.trigger()
    bench.turn(first)
    assert isinstance(first.membership.trouble, OutOfResources) and not first.positions
    monkeypatch.undo()
    bench.attempt(first)
    assert len(first.positions) == 4
    bench.drive(first.membership.leave())
    assert bench.broker.groups._bytes == 0 and not bench.broker.groups.keeps


def test_while_zookeeper_is_away_the_lease_ends_and_the_streams_go_on_when_it_is_back(bench: Bench) -> None:
    consumer = bench.join("c1")
    bench.attempt(consumer)
    bench.broker.session.cut_ms = bench.world.now_ms
    bench.world.pass_time(ZOOKEEPER_MS)
    bench.turn(consumer)
    assert isinstance(consumer.membership.trouble, ZooKeeperAway) and not consumer.reads
    bench.broker.session.cut_ms = None  # before ZooKeeper has ended the session
    bench.turn(consumer)
    assert len(consumer.reads) == 4
