"""Starts a partition's writer when a request needs it, connects it with the workers, and ends it when it is idle.

Many writers may be needed at once, when a client produces to a thousand idle partitions.  At most OPENING_MAX of them
open their logs at a time.  So the first ones have answered while others wait, and between two of them this process
handles everything else.  At most so many run at a time as memory and descriptors allow (:attr:`Writers.count_max`): for
one more, the one that is idle longest retires, after it has served somebody.  The queue is in the order of the needs,
and a worker asks for few at a time (:mod:`appliance.processes.network.produce_requests`): everybody is served in turn.
States of a partition::

    state       until                                                       then
    no writer   a worker needs one, or the coordinator has an order         queued, or opening
    queued      one of those that open has opened its log, or has ended;    opening
                fewer than count_max run;
                the nursery (:mod:`.nursery`), which forks them, runs
    opening     it has opened its log, lacks a resource, is offline, ends   open, or no writer
    open        it is idle, or idle longest while others are queued         retiring
                it dies                                                     opening again (or queued): at once, but
                                                                            later each time while it dies young,
                                                                            whoever needs it meanwhile
    retiring    it has ended; what has come for it meanwhile needs another  no writer, or queued

When a writer retires, the workers close their channels once it has answered them, so no message is on its way to it
when it closes its log.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from ...clock import now_ms, wall_s
from ...config import Config
from ...errors import StorageFault, UnknownPartition, WriterGone
from ...machine_limits import DESCRIPTORS, WRITERS_MAX, descriptors_granted, descriptors_of, memory_bytes
from ...names import TopicPartition
from ..control import Channel
from ..messages import (
    AbortHanging,
    OpenTransaction,
    Reload,
    Retire,
    ToWriter,
    WorkerChannel,
    WriteMarker,
    WriterChannel,
    WriterRetires,
)
from .actions import UNDER_WAY, Actions
from .children import Children
from .fork import Child
from .hosted import Hosted
from .nursery import NurseryChild
from .workers import Workers

OPENING_MAX: Final = 16
"""Writers that open their logs at a time: enough for their flushes to share the journal's."""
TENURE_MS: Final = 1_000
"""A writer that has served nobody keeps its place so long: what it was started for is on its way to it."""
ROOM_RETRY_MS: Final = 50
"""How soon to look again for one that can retire, while others are queued."""
COUNT_MIN: Final = 4
DESCRIPTORS_KEPT: Final = 64
"""Of this process and of each worker, for other things than channels to writers, which get half of the others."""
FULL_MS: Final = 5_000
"""How long the limit is shown after a writer had to retire for another one."""


class Writers:
    """All writers, by partition.  Most of its methods are events that take a partition from state to state."""

    def __init__(
        self,
        config: Config,
        data_dir: Path,
        hosted: Hosted,
        children: Children,
        actions: Actions,
        workers: Workers,
        on_change: Callable[[], None],
    ) -> None:
        """``on_change`` is called when :meth:`limits` has changed."""
        self._on_change = on_change
        self._hosted, self._children, self._workers = hosted, children, workers
        self._nursery = NurseryChild(config, data_dir, children, actions, workers, self._start_queued)
        self._by_partition: dict[TopicPartition, Child] = {}
        self._needed: set[TopicPartition] = set()
        """Partitions that a worker has asked for since their last writer was started."""
        self._opening: set[TopicPartition] = set()
        self._queued: dict[TopicPartition, None] = {}
        """Partitions whose writers are started when fewer are opening, in the order of their needs."""
        self._retiring: set[Child] = set()
        self._full_until_ms, self._full_since_s = 0, 0.0
        self._ends = False
        """All writers are retired, after the workers have drained: none is started any more."""
        self._config, self._memory_bytes = config, memory_bytes()
        self._start = actions.define("start writers", self._fork)
        self._make_room = actions.define("make room for writers", lambda _: self._retire_idlest())
        self._show = actions.define("show the number of writers", lambda _: on_change())
        self._connect = actions.define("connect workers and writers", lambda pair: self._join(*pair))

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._by_partition

    @property
    def stopped(self) -> bool:
        return not self._by_partition and not self._nursery.runs

    # ---- starting

    def start(self) -> None:
        """Start the nursery, which forks writers."""
        self._nursery.start()

    def want(self, partition: TopicPartition) -> None:
        """Start a writer, if there is none and one can be started; one that keeps dying, after its delay."""
        if partition not in self._start:  # else it would start at once, as often as it dies
            self._start.want(partition)

    def on_need(self, partition: TopicPartition) -> None:
        """Start a writer for a worker's append requests, if need be after the present one has ended."""
        if partition in self._hosted:
            self._needed.add(partition)
            self.want(partition)

    def on_step(self, message: OpenTransaction | WriteMarker | AbortHanging) -> str:
        """Send the writer a step of a transaction, and start it if need be; return why that cannot be, or ""."""
        partition = message.partition
        row = self._hosted.get(partition)
        if row is None:
            return UnknownPartition.__name__
        if row.offline:
            return StorageFault.__name__
        if not self._is_served(partition):
            self.on_need(partition)
        if not self._is_served(partition):
            return WriterGone.__name__
        self.send(partition, message)
        return ""

    def _is_served(self, partition: TopicPartition) -> bool:
        child = self._by_partition.get(partition)
        return child is not None and not child.stopping

    def on_partition_opened(self, partition: TopicPartition) -> None:
        if partition in self._needed:
            self.want(partition)

    def _fork(self, partition: TopicPartition) -> object:
        """Start a writer, which reports whether it could open its log."""
        if self._ends or partition in self._by_partition or not self._hosted.is_writable(partition):
            return None
        if not self._may_start:
            self._queued[partition] = None
            self._retire_idlest()
            return UNDER_WAY
        self._needed.discard(partition)
        order = partial(self._nursery.order, partition, self._hosted[partition])
        self._by_partition[partition] = self._children.expect("writer", partition, order)
        self._opening.add(partition)
        for index in self._workers:
            self.connect(partition, index)
        return UNDER_WAY

    def connect(self, partition: TopicPartition, index: int, delay_ms: int = 0) -> None:
        """Connect a writer with a worker, now or after a delay."""
        self._connect.want((partition, index), delay_ms)

    def connect_worker(self, index: int) -> None:
        """Connect all writers with a new worker."""
        for partition, child in self._by_partition.items():
            if not child.stopping:
                self.connect(partition, index)

    def _join(self, partition: TopicPartition, index: int) -> None:
        child = self._by_partition.get(partition)
        if child is None or child.stopping or index not in self._workers:
            return
        workers_end, writers_end = Channel.pair()
        try:
            self._workers.send(index, WriterChannel(partition), (workers_end.fileno(),))
            self._children.send(child, WorkerChannel(self._workers.arena(index)), (writers_end.fileno(),))
        finally:
            workers_end.close()
            writers_end.close()

    # ---- how many

    @property
    def count_max(self) -> int:
        """Largest number of writers at a time: by the configuration, or memory, and by descriptors."""
        return min(self._config.writers_max(self._memory_bytes), self._channels_max)

    @property
    def _channels_max(self) -> int:
        return max(COUNT_MIN, (descriptors_granted() - DESCRIPTORS_KEPT) // 2)

    @property
    def _may_start(self) -> bool:
        room = len(self._opening) < OPENING_MAX and len(self._by_partition) < self.count_max
        return room and self._nursery.runs

    def _retire_idlest(self) -> None:
        """Retire as many writers as others are queued that could be opened then, the one that is idle longest first."""
        waiting = min(len(self._queued), OPENING_MAX - len(self._opening))
        missing = len(self._by_partition) + waiting - len(self._retiring) - self.count_max
        if missing <= 0 or self._ends:
            return
        self._note_full()
        self._retire(missing)
        self._make_room.want(delay_ms=ROOM_RETRY_MS)

    def make_room_for_channel(self) -> None:
        """Retire the idlest writer: a worker has no descriptor for a channel to another one."""
        if len(self._by_partition) > COUNT_MIN:
            self._retire(1)

    def _retire(self, count: int) -> None:
        """Retire the writers that are idle longest, but none that may still have to serve those it was started for."""
        now = now_ms()
        idle_since = {
            child: served_ms or child.started_ms
            for partition, child in self._by_partition.items()
            if not (child.stopping or partition in self._opening or self._awaits_channel(partition))
            and ((served_ms := self._children.served_ms(child)) or now - child.started_ms >= TENURE_MS)
        }
        for child in heapq.nsmallest(count, idle_since, key=lambda child: idle_since[child]):
            self.retire(child)

    def _awaits_channel(self, partition: TopicPartition) -> bool:
        return any((partition, index) in self._connect for index in self._workers)

    def _note_full(self) -> None:
        now = now_ms()
        if now >= self._full_until_ms:
            self._full_since_s = wall_s()
            self._on_change()
        self._full_until_ms = now + FULL_MS
        self._show.want(delay_ms=FULL_MS)

    def limits(self) -> list[dict[str, Any]]:
        """For status: the limit that has let writers retire for others."""
        if now_ms() >= self._full_until_ms:
            return []
        use: dict[str, Any] = {"limit": WRITERS_MAX, "value": self.count_max, "in_use": len(self._by_partition)}
        if self.count_max == self._channels_max:
            use = {"limit": DESCRIPTORS, **descriptors_of(os.getpid())._asdict()}
        return [{**use, "process": "", "since": self._full_since_s}]

    # ---- events of a writer

    def on_opened(self, child: Child) -> None:
        self._start.done(child.key)
        if child.key in self._hosted:
            self._hosted[child.key].writer = child.pid
        self._on_opening_over(child)

    def on_lacking(self, child: Child, reason: str, limit: str) -> None:
        """Note that the machine lacks a resource to open the log: the writer ends, and another one tries again."""
        child.stopping = True
        self._start.refuse(child.key, reason, limit)
        self._on_opening_over(child)

    def on_offline(self, child: Child, reason: str) -> None:
        """Note that the log cannot be trusted: the writer ends; an opener tries again (:mod:`.outages`)."""
        child.stopping = True
        if child.key in self._hosted:
            self._hosted[child.key].offline = reason

    def _on_opening_over(self, child: Child) -> None:
        """One fewer is opening its log."""
        self._opening.discard(child.key)
        self._start_queued()

    def _start_queued(self) -> None:
        """Start as many of the queued writers as may open their logs now."""
        while self._queued and self._may_start and not self._ends:
            partition = next(iter(self._queued))
            del self._queued[partition]
            self.want(partition)
        self._retire_idlest()

    def on_end(self, child: Child) -> None:
        partition: TopicPartition = child.key
        del self._by_partition[partition]
        if partition in self._hosted:
            self._hosted[partition].writer = 0
        self._retiring.discard(child)
        self._nursery.reap(child.pid)
        self._on_opening_over(child)
        self._stop_nursery()
        if self._ends or not self._hosted.is_writable(partition):
            return
        if not child.stopping:
            self._children.start_again(child, self._start, partition)
        elif partition in self._needed:
            self.want(partition)

    def on_status(self, partition: TopicPartition, status: int) -> None:
        """Note how a writer has ended, as the nursery says."""
        self._children.restarts.note_status("writer", partition, status)

    def on_nursery_end(self, child: Child) -> None:
        self._nursery.role.on_end(child)

    # ---- messages and ends

    def send(self, partition: TopicPartition, message: ToWriter) -> None:
        self._children.send(self._by_partition.get(partition), message)

    def reload(self, config: Config) -> None:
        self._config, self._memory_bytes = config, memory_bytes()
        self._nursery.reload(config)
        for child in self._by_partition.values():
            self._children.send(child, Reload(config))

    def retire(self, child: Child) -> None:
        if child.stopping:
            return
        child.stopping = True
        self._retiring.add(child)
        self._workers.send_all(WriterRetires(child.key))
        self._children.send(child, Retire())

    def stop(self) -> None:
        """Retire all writers, and start no other; the nursery ends after them."""
        self._ends = True
        self._nursery.role.start_no_more()
        for child in list(self._by_partition.values()):
            self.retire(child)
        self._stop_nursery()

    def _stop_nursery(self) -> None:
        if self._ends and not self._by_partition:
            self._nursery.role.stop()

    def set_aside(self, partition: TopicPartition) -> None:
        """Retire the writer of a partition that goes out of service; one that is to start does so when it is back."""
        is_wanted = partition in self._start or partition in self._queued or partition in self._opening
        is_needed = is_wanted or partition in self._needed
        self.drop(partition)
        if is_needed:  # workers that wait for it do not ask again
            self._needed.add(partition)

    def drop(self, partition: TopicPartition) -> None:
        """Retire the writer of a deleted partition, and start no other."""
        self._start.drop(partition)
        self._needed.discard(partition)
        self._queued.pop(partition, None)
        if partition in self._by_partition:
            self.retire(self._by_partition[partition])
