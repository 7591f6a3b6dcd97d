"""Rebalances a group as the paper does: its consumers divide the partitions among themselves.

:class:`Rebalancer` is the algorithm.  It has no thread, no clock and no connection: it yields each
:class:`CoordinatorCall` of a verb that the group's coordinator answers, which keeps members, owners and offsets in
ZooKeeper for it (``processes/coordinator/native_groups.py``).  :mod:`.group_member` makes the calls.

One attempt, for this consumer C (paper, algorithm 1; improvements are marked +):

1. Read the members of the group and the partitions of the topics that C subscribes to; sort; compute the assignment
   (``assignment.group_assignment``), which all members compute alike.
2. Stop the streams of the partitions that C loses, commit their offsets, release them (+ only those: partitions that
   stay with the same stream are not interrupted).
3. Claim the partitions that C gains (+ all or none).  If somebody else still owns one of them, the attempt has failed.
4. Start the streams of the gained partitions at their committed offsets.

Triggers are changes of members, brokers and subscribed topics, and a new coordinator.  Any number of them before or
during an attempt lead to one more attempt.  A failed attempt is repeated after the synchronisation time (+ or as soon
as a partition that was in the way is released); after ``attempts_max`` failures, at the next trigger.

No partition is consumed twice at a time.  It is claimed before its stream starts and released after that has stopped.
While the lease is over, the streams hand out nothing; the coordinator gives partitions away only after that.
Deliveries are at least once: the next owner reads again what was read but not committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from ..errors import ApplianceError, OffsetsFull
from ..names import TopicPartition
from ..zookeeper.assignment import Stream, group_assignment
from ..zookeeper.paths import Subscription

T = TypeVar("T")
log = logging.getLogger(__name__)

SYNC_MS: Final = 2_000
"""The paper's zk.synctime.ms: when an attempt that others were in the way of is repeated at the latest."""
ATTEMPTS_MAX: Final = 4
RETRY_MS_MIN: Final = 20
"""A trigger after a failure waits RETRY_MS_MIN * 2^failures, at most the synchronisation time."""


class CoordinatorCall(NamedTuple):
    """A request to the group's coordinator, without what says which member asks."""

    verb: str
    arguments: dict[str, Any]


Calls: TypeAlias = Generator[CoordinatorCall, dict[str, Any], T]
"""Yields calls, receives their results, returns its own."""


class Gained(NamedTuple):
    """A gained partition.  Its stream starts at ``offset``; None: where the consumer's policy starts."""

    topic: str
    partition: int
    stream: int  # number of the consumer's stream on this topic
    offset: int | None


class Streams(NamedTuple):
    """The consumer's side of a rebalance.  The thread that polls the member calls it; neither may wait for a broker.

    ``start`` begins to read these partitions, which are ours now.

    ``stop`` stops reading these partitions and drops their queued messages: after it has returned, no message of them
    is handed out any more.  It returns the offset of the next message, to be committed, for each partition that has
    handed out any.
    """

    start: Callable[[Sequence[Gained]], None]
    stop: Callable[[Sequence[TopicPartition]], Mapping[TopicPartition, int]]


class Rebalancer:
    """See the module's docstring.  Not thread-safe, except ``trigger``.

    ``running``: the partitions that the streams read.  ``_claimed``: the partitions that may be ours at the
    coordinator.  It is changed before they are claimed and after they are released, so it misses none, wherever an
    attempt ends.
    """

    def __init__(
        self, group: str, consumer: str, streams: Streams, *, sync_ms: int = SYNC_MS, attempts_max: int = ATTEMPTS_MAX
    ) -> None:
        self.group, self.consumer = group, consumer
        self.running: dict[TopicPartition, Stream] = {}
        self.in_the_way: list[TopicPartition] = []  # owned by others at the last, failed, attempt
        self.failures = 0  # attempts failed in a row
        self.revision = 0
        """Of the registry that the last attempt has read."""
        self._streams = streams
        self._sync_ms, self._attempts_max = sync_ms, attempts_max
        self._claimed: dict[TopicPartition, Stream] = {}
        self._uncommitted: dict[TopicPartition, int] = {}
        self._topic_ids: dict[str, str] = {}  # of the topics whose partitions are running
        self._triggered = False
        self._confirms = False
        self._not_before_ms = 0
        self._retry_at_ms: int | None = None

    # --- when

    def trigger(self) -> None:
        """Request a rebalance.  Cheap; any thread may call it."""
        self._triggered = True

    def joined(self, kept: Collection[TopicPartition]) -> None:
        """A coordinator knows this member anew, as the owner of ``kept`` all the time: claim those again."""
        self._stop_without_commit([part for part in sorted(self.running) if part not in kept])
        self._uncommitted = {part: offset for part, offset in self._uncommitted.items() if part in kept}
        self._confirms = self._triggered = True

    def due_ms(self, now_ms: int) -> int | None:
        """Milliseconds until ``attempt`` should be carried out; None: not before the next trigger."""
        if self._triggered:
            return max(0, self._not_before_ms - now_ms)
        return None if self._retry_at_ms is None else max(0, self._retry_at_ms - now_ms)

    def finished(self, result: bool | ApplianceError, now_ms: int) -> None:
        """Note the result of an attempt: True, False (others still own partitions), or the error that ended it."""
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
                *(self.group, self.consumer, self.failures, result or f"others own {self.in_the_way}"),
            )

    def lost(self) -> None:
        """Stop everything: others may have the partitions by now."""
        self._retry_at_ms = None
        self._uncommitted.clear()  # _claimed stays: a request of an earlier attempt may still arrive
        self.in_the_way = []
        self._stop_without_commit(sorted(self.running))

    # --- what

    def attempt(self) -> Calls[bool]:
        """One attempt.  Its caller calls ``finished`` with the result or the error."""
        self._triggered, self._retry_at_ms = False, None
        self.in_the_way = []
        registry = yield CoordinatorCall("group_registry", {})
        self.revision = registry["revision"]
        topics = {name: (id, range(count)) for name, (id, count) in registry["topics"].items()}
        members = {id: Subscription(*subscription) for id, *subscription in registry["members"]}
        everybody = group_assignment(members, {name: parts for name, (_, parts) in topics.items()})
        desired = {part: stream for part, stream in everybody.items() if stream.consumer == self.consumer}
        leaving = {
            part: stream
            for part, stream in self.running.items()
            if desired.get(part) != stream or self._topic_ids[part.topic] != topics[part.topic][0]  # made again
        }
        yield from self.give_up(leaving, keeping=desired)
        self._topic_ids = {name: id for name, (id, _) in topics.items()}
        gained = {part: stream for part, stream in desired.items() if part not in self.running}
        return (yield from self._claim(desired if self._confirms else gained, gained))

    def _claim(self, claimed: Mapping[TopicPartition, Stream], gained: Mapping[TopicPartition, Stream]) -> Calls[bool]:
        if not claimed:
            self._confirms = False
            return True
        self._claimed.update(claimed)
        rows = [[*part, stream.number] for part, stream in sorted(claimed.items())]
        answer = yield CoordinatorCall("claim_partitions", {"partitions": rows})
        refused = [TopicPartition(*part) for part in answer["refused"]]
        if refused:
            self._stop_without_commit([part for part in refused if part in self.running])
            self.in_the_way = refused
            for part in refused:
                del self._claimed[part]
            yield from self.give_up({}, keeping=self.running)
            return False
        self._confirms = False
        offsets = {TopicPartition(topic, partition): offset for topic, partition, offset in answer["offsets"]}
        if gained:
            self.running.update(gained)
            self._streams.start(
                [Gained(*part, stream.number, offsets.get(part)) for part, stream in sorted(gained.items())]
            )
        return True

    def leave(self) -> Calls[None]:
        """Stop everything, commit and release it, and leave the group."""
        yield from self.give_up(dict(self.running), keeping={})
        yield CoordinatorCall("leave_group", {})

    def give_up(
        self, stopping: Mapping[TopicPartition, Stream], *, keeping: Mapping[TopicPartition, Stream]
    ) -> Calls[None]:
        """Stop these partitions' streams, commit, and release all that may be ours and is not in ``keeping``."""
        if stopping:
            for part in stopping:
                del self.running[part]
            self._uncommitted.update(self._streams.stop(sorted(stopping)))
        waiting = {part: offset for part, offset in self._uncommitted.items() if part in self._claimed}
        if waiting:
            try:
                yield from self.commit(waiting)
            except OffsetsFull as error:  # the next owner reads that again
                log.warning("group %s: the offsets of %s are not stored: %s", self.group, self.consumer, error)
        self._uncommitted.clear()
        leaving = {part: stream for part, stream in self._claimed.items() if keeping.get(part) != stream}
        if leaving:
            yield CoordinatorCall("release_partitions", {"partitions": [list(part) for part in sorted(leaving)]})
        for part in leaving:
            del self._claimed[part]

    def commit(self, offsets: Mapping[TopicPartition, int]) -> Calls[list[TopicPartition]]:
        """Commit offsets.  Returns the partitions that are not ours any more: theirs were not stored."""
        ids = self._topic_ids
        rows = [[*part, offset, ids.get(part.topic, "")] for part, offset in sorted(offsets.items())]
        answer = yield CoordinatorCall("commit_owned", {"offsets": rows})
        return [TopicPartition(*part) for part in answer["refused"]]

    def _stop_without_commit(self, parts: Sequence[TopicPartition]) -> None:
        for part in parts:
            del self.running[part]
        if parts:
            self._streams.stop(parts)
