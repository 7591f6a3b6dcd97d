"""Rebalances a group as the paper does: its consumers divide the partitions among themselves, through ZooKeeper alone.

:class:`Rebalancer` is the algorithm.  It has no thread, no clock and no session.  Its owner calls
:meth:`Rebalancer.due_ms`, runs the operation that :meth:`Rebalancer.begin` returns, and reports the result.
:class:`GroupMember` does this with a :class:`~.session.Session`, sets the watches and keeps the registration;
consumers use it.

One attempt, for this consumer C (paper, algorithm 1; improvements are marked +):

1. Read the members of the group and the partitions of the topics that C subscribes to; sort; compute the assignment
   (``assignment.group_assignment``), which all members compute alike.
2. Stop the streams of the partitions that C loses, commit their offsets, delete their owner nodes (+ only of those:
   partitions that stay with the same stream are not interrupted).
3. Create the owner nodes of the partitions that C gains.  If somebody else still owns one of them, delete those just
   created: the attempt has failed.
4. Read the committed offsets of the gained partitions, start their streams.

Triggers are changes of members, brokers and subscribed topics, and a new session.  Any number of them before or during
an attempt lead to one more attempt.  A failed attempt is repeated after the synchronisation time (+ or as soon as an
owner node that was in the way is gone); after ``attempts_max`` failures, at the next trigger.

No partition is consumed twice at a time.  An owner node is created before its stream starts and deleted after it has
stopped.  When the session's lease ends, all streams stop (:meth:`Rebalancer.lost`) before ZooKeeper can have expired
the session.  Deliveries are at least once: the next owner reads again what was read but not committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ..errors import ApplianceError, InvalidRequest, ZooKeeperAway
from ..names import TopicPartition
from . import paths
from .assignment import Stream, group_assignment
from .broker_registry import BrokerRegistry, CancellableWatch, WatchSet
from .group_registry import GroupRegistry
from .offset_registry import OffsetRegistry, StoredOffset
from .operations import Node, Operation, ask, get
from .paths import CommittedOffset, Subscription
from .session import Session, SessionState
from .tasks import Task

log = logging.getLogger(__name__)

SYNC_MS = 2_000  # the paper's zk.synctime.ms: how far one ZooKeeper node may be behind another
ATTEMPTS_MAX = 4
RETRY_MS_MIN = 20  # a trigger after a failure waits RETRY_MS_MIN * 2^failures, at most the synchronisation time


class Gained(NamedTuple):
    """A gained partition.  Its stream starts at ``stored``; None: where the consumer's policy starts."""

    topic: str
    partition: int
    stream: int  # number of the consumer's stream on this topic
    stored: StoredOffset | None


class Streams(Protocol):
    """The consumer's side of a rebalance.  The thread that polls the member calls it.

    Neither method may wait for a broker or for ZooKeeper.
    """

    def stop(self, parts: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Stop reading these partitions and drop their queued messages.

        After it has returned, no message of them is handed out any more.  Returns the offset of the next message, to be
        committed, for each partition that has handed out any.
        """

    def start(self, gained: Sequence[Gained]) -> None:
        """Start to read these partitions, which are ours now."""


class Rebalancer:
    """See the module's docstring.  Not thread-safe, except ``trigger``.

    ``running``: the partitions that the streams read.  ``_nodes``: the partitions that may have our owner node.  It is
    changed before a node is created and after one is deleted, so it misses none, wherever an attempt ends.
    """

    def __init__(
        self,
        group: str,
        consumer: str,
        streams: Streams,
        *,
        groups: GroupRegistry,
        offsets: OffsetRegistry,
        brokers: BrokerRegistry,
        sync_ms: int = SYNC_MS,
        attempts_max: int = ATTEMPTS_MAX,
    ) -> None:
        self.group, self.consumer = group, consumer
        self.running: dict[TopicPartition, Stream] = {}
        self.in_the_way: list[TopicPartition] = []  # owned by others at the last, failed, attempt
        self.failures = 0  # attempts failed in a row
        self._streams = streams
        self._groups, self._offsets, self._brokers = groups, offsets, brokers
        self._sync_ms, self._attempts_max = sync_ms, attempts_max
        self._nodes: dict[TopicPartition, Stream] = {}
        self._uncommitted: dict[TopicPartition, int] = {}
        self._topic_ids: dict[str, str] = {}  # of the topics whose partitions are running
        self._wanted = False
        self._busy = False
        self._not_before_ms = 0
        self._retry_at_ms: int | None = None

    # --- when

    def trigger(self) -> None:
        """Request a rebalance.  Cheap; any thread may call it."""
        self._wanted = True

    def due_ms(self, now_ms: int) -> int | None:
        """Milliseconds until ``begin`` should be called; None: not before the next trigger."""
        if self._busy:
            return None
        if self._wanted:
            return max(0, self._not_before_ms - now_ms)
        return None if self._retry_at_ms is None else max(0, self._retry_at_ms - now_ms)

    def begin(self, session_id: int) -> Operation[bool]:
        """The operation of one attempt.  Run it within ``session_id``, then call ``finished``."""
        assert not self._busy, "one attempt at a time"
        self._busy, self._wanted, self._retry_at_ms = True, False, None
        return self._attempt(session_id)

    def finished(self, result: bool | ApplianceError, now_ms: int) -> None:
        """Note the attempt's result: True, False (others still own partitions), or an error (ZooKeeper is away)."""
        self._busy = False
        if result is True:
            self.failures = 0
            self._not_before_ms = 0
            return
        self.failures += 1
        self._not_before_ms = now_ms + min(self._sync_ms, RETRY_MS_MIN << min(self.failures, 16))
        if self.failures % self._attempts_max:
            self._retry_at_ms = now_ms + self._sync_ms
        else:
            log.error(
                "group %s: %s could not rebalance in %d attempts (%s); waiting for the next change",
                self.group,
                self.consumer,
                self.failures,
                result or f"others own {self.in_the_way}",
            )

    def lost(self) -> None:
        """Stop everything: the session's lease is over.  The attempt, if any, must have been cancelled."""
        self._busy = False
        self._retry_at_ms = None
        stopping = sorted(self.running)
        self.running.clear()
        self._uncommitted.clear()  # _nodes stay: if the session lives, a request to create one may still arrive
        self.in_the_way = []
        if stopping:
            self._streams.stop(stopping)  # nothing is committed: the partitions may be somebody else's by now

    # --- what

    def _attempt(self, session_id: int) -> Operation[bool]:
        self.in_the_way = []
        members = yield from self._groups.members(self.group)
        own = members.get(self.consumer)
        if own is None:
            raise ZooKeeperAway(f"{self.consumer} is not registered in group {self.group}")
        self._check_protocol(members)
        names = sorted(own.topics) if not own.pattern else (yield from self._brokers.topic_names())
        topics = yield from self._brokers.topics([name for name in names if own.streams_of(name)])
        everybody = group_assignment(members, {name: info.partitions for name, info in topics.items()})
        desired = {part: stream for part, stream in everybody.items() if stream.consumer == self.consumer}
        leaving = {
            part: stream
            for part, stream in self.running.items()
            if desired.get(part) != stream or self._topic_ids[part.topic] != topics[part.topic].id  # made again
        }
        yield from self.give_up(leaving, keeping=desired, session_id=session_id)
        self._topic_ids = {name: info.id for name, info in topics.items()}
        gained = {part: stream for part, stream in desired.items() if part not in self.running}
        self._nodes.update(gained)
        self.in_the_way = yield from self._groups.own(self.group, gained, session_id)
        for part in self.in_the_way:
            del self._nodes[part]
        if self.in_the_way:
            yield from self.give_up({}, keeping=self.running, session_id=session_id)
            return False
        stored = yield from self._offsets.read(self.group, gained)
        if gained:
            self.running.update(gained)
            self._streams.start(
                [Gained(*part, stream.number, stored.get(part)) for part, stream in sorted(gained.items())]
            )
        return True

    def give_up(
        self, stopping: Mapping[TopicPartition, Stream], *, keeping: Mapping[TopicPartition, Stream], session_id: int
    ) -> Operation[None]:
        """Stop these partitions' streams, commit, and delete every owner node of ours that is not in ``keeping``."""
        if stopping:
            for part in stopping:
                del self.running[part]
            self._uncommitted.update(self._streams.stop(sorted(stopping)))
        waiting = {part: offset for part, offset in self._uncommitted.items() if part in self._nodes}
        if waiting:
            yield from self.commit(waiting, session_id)  # offsets that another owner has stored meanwhile stay
        self._uncommitted.clear()
        leaving = {part: stream for part, stream in self._nodes.items() if keeping.get(part) != stream}
        yield from self._groups.release(self.group, leaving)
        for part in leaving:
            del self._nodes[part]

    def commit(self, offsets: Mapping[TopicPartition, int], session_id: int) -> Operation[list[TopicPartition]]:
        """Commit offsets.  Returns the partitions that another consumer owns by now: theirs were not stored."""
        ids = self._topic_ids
        values = {part: CommittedOffset(at, topic_id=ids.get(part.topic, "")) for part, at in offsets.items()}
        refused = yield from self._offsets.commit(self.group, values)
        if not refused:
            return []
        # A former owner's last commit may have come late, or an operator changed the offset: the owner's one wins.
        nodes = yield from ask([get(paths.owner(self.group, part)) for part in refused])
        ours = {
            part: values[part]
            for part, node in zip(refused, nodes, strict=True)
            if isinstance(node, Node) and node.owner == session_id
        }
        yield from self._offsets.commit(self.group, ours, overwrite=True)
        return [part for part in refused if part not in ours]

    def _check_protocol(self, members: Mapping[str, Subscription]) -> None:
        foreign = {member.protocol for member in members.values()} - {"native"}
        if foreign:
            raise InvalidRequest(
                f"group {self.group!r} has members that came through another listener: "
                f"{', '.join(sorted(foreign))}; choose another group name"
            )


class GroupMember:
    """One consumer in a group: registration, watches, rebalancing and commits over one session.

    The owner's thread calls ``poll`` again and again, which does all the work.  Any thread may call ``commit``::

        member = GroupMember(session, "group", consumer_id, Subscription({"topic": 2}), streams)
        member.join()
        while not closing:
            member.poll(wait_ms=100)
        member.leave()

    ``consumer`` must be unique in the group for ever (the paper: ``<group>_<host>-<ms>-<8 hex digits>``).
    ``failed`` is called with an error that is not retriable (the group has members of the other listener).
    """

    def __init__(
        self,
        session: Session,
        group: str,
        consumer: str,
        subscription: Subscription,
        streams: Streams,
        *,
        clock_ms: Callable[[], int],
        sync_ms: int = SYNC_MS,
        failed: Callable[[ApplianceError], None] | None = None,
    ) -> None:
        self.session, self.group, self.consumer, self.subscription = session, group, consumer, subscription
        self.groups, self.offsets, self.brokers = GroupRegistry(), OffsetRegistry(), BrokerRegistry()
        self.rebalancer = Rebalancer(
            group,
            consumer,
            streams,
            groups=self.groups,
            offsets=self.offsets,
            brokers=self.brokers,
            sync_ms=sync_ms,
        )
        self._clock_ms, self._failed = clock_ms, failed
        self._attempt: Task | None = None
        self._watches: list[CancellableWatch | WatchSet] = []
        self._owner_watches: list[CancellableWatch] = []

    @property
    def owned(self) -> dict[TopicPartition, Stream]:
        """The partitions that the streams read now."""
        return dict(self.rebalancer.running)

    def join(self) -> None:
        """Register, set the watches, and rebalance from now on.  Returns at once, also while ZooKeeper is away."""
        self.session.on_state(self._state_changed)
        path = paths.consumer(self.group, self.consumer)
        self.session.keep(path, paths.encode_subscription(self.subscription), lambda _: True)
        changed = self._changed
        self._watches = [
            self.session.watch_children(paths.consumers(self.group), changed),
            self.session.watch_children(paths.BROKER_IDS, changed),
            self.session.watch_children(paths.TOPICS, self._topics_listed),
        ]
        self._watches += [self.session.watch_value(paths.topic(name), changed) for name in self.subscription.topics]
        if self.subscription.pattern:
            self._watches.append(self.brokers.watch_topics(self.session, lambda name, info: self._topic(name)))
        self.rebalancer.trigger()

    def poll(self, wait_ms: int) -> None:
        """Do what is due, and wait for events for up to ``wait_ms``."""
        self._begin_if_due()
        due_ms = self.rebalancer.due_ms(self._clock_ms())
        self.session.run(wait_ms if due_ms is None or not self._may_begin() else min(wait_ms, due_ms))
        self._begin_if_due()

    def commit(self, offsets: Mapping[TopicPartition, int], *, timeout_ms: int = 5_000) -> list[TopicPartition]:
        """Commit offsets and wait for it.  Returns the partitions that another consumer owns by now: not stored.

        Raises:
            ZooKeeperAway: no reply in time, or the session was lost.  Some offsets may have been stored.
        """
        session_id = self.session.session_id
        if not session_id or not self.session.lease_left_ms:
            raise ZooKeeperAway("the ZooKeeper session was lost; offsets can be committed after the next rebalance")
        operation = self.rebalancer.commit(offsets, session_id)
        return self.session.call(operation, timeout_ms=timeout_ms, session_id=session_id)

    def leave(self, timeout_ms: int = 5_000) -> None:
        """Stop the streams, commit, and leave the group, so that the others need not wait for the session's end."""
        for watch in [*self._watches, *self._owner_watches]:
            watch.cancel()
        if self._attempt is not None:
            self._attempt.cancel()
        self.session.unkeep(paths.consumer(self.group, self.consumer))
        session_id = self.session.session_id
        try:
            if not session_id or not self.session.lease_left_ms:
                raise ZooKeeperAway("the ZooKeeper session was lost")
            self.session.call(self._leave(session_id), timeout_ms=timeout_ms, session_id=session_id)
        except ZooKeeperAway as error:
            log.warning("group %s: %s leaves without ZooKeeper: %s", self.group, self.consumer, error)
        self.rebalancer.lost()

    def _leave(self, session_id: int) -> Operation[None]:
        yield from self.rebalancer.give_up(dict(self.rebalancer.running), keeping={}, session_id=session_id)
        yield from self.groups.leave(self.group, self.consumer)

    # --- events, all within poll

    def _changed(self, _: object = None) -> None:
        self.rebalancer.trigger()

    def _topics_listed(self, _: list[str] | None) -> None:
        if self.subscription.pattern:
            self.rebalancer.trigger()

    def _topic(self, name: str) -> None:
        if self.subscription.streams_of(name):
            self.rebalancer.trigger()

    def _state_changed(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            if self._attempt is not None:
                self._attempt.cancel()
                self._attempt = None
            self.rebalancer.lost()
        elif state is SessionState.CONNECTED:
            self.rebalancer.trigger()

    def _may_begin(self) -> bool:
        registered = self.session.holds(paths.consumer(self.group, self.consumer))
        return registered and self.session.state is SessionState.CONNECTED

    def _begin_if_due(self) -> None:
        if self.rebalancer.due_ms(self._clock_ms()) != 0 or not self._may_begin():
            return
        for watch in self._owner_watches:
            watch.cancel()
        self._owner_watches = []
        session_id = self.session.session_id
        try:
            self._attempt = self.session.submit(
                self.rebalancer.begin(session_id), self._finished, session_id=session_id
            )
        except ZooKeeperAway as error:
            self.rebalancer.finished(error, self._clock_ms())

    def _finished(self, result: bool | ApplianceError) -> None:
        self._attempt = None
        self.rebalancer.finished(result, self._clock_ms())
        for part in self.rebalancer.in_the_way:
            watch = self.session.watch_value(paths.owner(self.group, part), self._owner_changed)
            self._owner_watches.append(watch)
        if isinstance(result, ApplianceError) and not result.retriable and self._failed is not None:
            self._failed(result)

    def _owner_changed(self, value: bytes | None) -> None:
        if value is None:
            self.rebalancer.trigger()
