"""Starts a partition's writer when a request needs it, connects it with the workers, and ends it when it is idle.

Many writers may be needed at once, when a client produces to a thousand idle partitions.  At most OPENING_MAX of them
open their logs at a time.  So the first ones have answered while others wait, and between two of them this process
handles everything else.  States of a partition::

    state       until                                                       then
    no writer   a worker needs one, or the coordinator has an order         queued, or opening
    queued      one of those that open has opened its log, or has ended;    opening
                the nursery (:mod:`.nursery`), which forks them, runs
    opening     it has opened its log, lacks a resource, is offline, ends   open, or no writer
    open        it is idle, or ends                                         no writer

When a writer retires, the workers close their channels once it has answered them, so no message is on its way to it
when it closes its log.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

from ...config import Config
from ...names import TopicPartition
from ..control import Channel
from .actions import UNDER_WAY, Actions
from .children import Children
from .fork import Child
from .hosted import Hosted
from .nursery_child import NurseryChild
from .workers import Workers

OPENING_MAX: Final = 16
"""Writers that open their logs at a time: enough for their flushes to share the journal's."""


class Writers:
    """All writers, by partition.  Most of its methods are events that take a partition from state to state."""

    def __init__(
        self, config: Config, data_dir: Path, hosted: Hosted, children: Children, actions: Actions, workers: Workers
    ) -> None:
        self._hosted, self._children, self._workers = hosted, children, workers
        self._nursery = NurseryChild(config, data_dir, children, actions, workers, self._start_queued)
        self._by_partition: dict[TopicPartition, Child] = {}
        self._needed: set[TopicPartition] = set()
        """Partitions that a worker has asked for since their last writer was started."""
        self._opening: set[TopicPartition] = set()
        self._queued: dict[TopicPartition, None] = {}
        """Partitions whose writers are started when fewer are opening, in the order of their needs."""
        self._ends = False
        """All writers are retired, after the workers have drained: none is started any more."""
        self._start = actions.define("start writers", self._fork)
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
        """Start a writer, if there is none and one can be started."""
        self._start.want(partition)

    def on_need(self, partition: TopicPartition) -> None:
        """Start a writer for a worker's append requests, if need be after the present one has ended."""
        if partition in self._hosted:
            self._needed.add(partition)
            self.want(partition)

    def on_partition_opened(self, partition: TopicPartition) -> None:
        if partition in self._needed:
            self.want(partition)

    def _fork(self, partition: TopicPartition) -> object:
        """Start a writer, which reports whether it could open its log."""
        if self._ends or partition in self._by_partition or not self._hosted.is_writable(partition):
            return None
        if not self._nursery.runs or len(self._opening) >= OPENING_MAX:
            self._queued[partition] = None
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
            self._workers.send(index, ["writer", *partition], (workers_end.fileno(),))
            self._children.send(child, ["worker", self._workers.arena(index)], (writers_end.fileno(),))
        finally:
            workers_end.close()
            writers_end.close()

    # ---- events of a writer

    def on_opened(self, child: Child) -> None:
        self._start.done(child.key)
        self._on_opening_over(child)

    def on_lacking(self, child: Child, reason: str, limit: str) -> None:
        """Note that the machine lacks a resource to open the log: the writer ends, and another one tries again."""
        child.stopping = True
        self._start.refuse(child.key, reason, limit)
        self._on_opening_over(child)

    def on_offline(self, child: Child, reason: str) -> None:
        """Note that the log cannot be trusted: the writer ends, and none is started until the appliance restarts."""
        child.stopping = True
        if child.key in self._hosted:
            self._hosted[child.key].offline = reason

    def _on_opening_over(self, child: Child) -> None:
        """One fewer is opening its log."""
        self._opening.discard(child.key)
        self._start_queued()

    def _start_queued(self) -> None:
        """Start as many of the queued writers as may open their logs now."""
        while self._queued and self._nursery.runs and len(self._opening) < OPENING_MAX and not self._ends:
            partition = next(iter(self._queued))
            del self._queued[partition]
            self.want(partition)

    def on_end(self, child: Child) -> None:
        partition: TopicPartition = child.key
        del self._by_partition[partition]
        self._nursery.reap(child.pid)
        self._on_opening_over(child)
        self._stop_nursery()
        if self._children.stopping or not self._hosted.is_writable(partition):
            return
        if not child.stopping:
            self._children.start_again(child, self._start, partition)
        elif partition in self._needed:
            self.want(partition)

    def on_nursery_end(self, child: Child) -> None:
        self._nursery.on_end(child)

    # ---- messages and ends

    def send(self, partition: TopicPartition, message: list[Any]) -> None:
        self._children.send(self._by_partition.get(partition), message)

    def reload(self, config: Config, settings: Any) -> None:
        """``settings``: the configuration as plain values."""
        self._nursery.reload(config, settings)
        for child in self._by_partition.values():
            self._children.send(child, ["reload", settings])

    def retire(self, child: Child) -> None:
        if child.stopping:
            return
        child.stopping = True
        self._workers.send_all(["retire", *child.key])
        self._children.send(child, ["retire"])

    def stop(self) -> None:
        """Retire all writers, and start no other; the nursery ends after them."""
        self._ends = True
        for child in list(self._by_partition.values()):
            self.retire(child)
        self._stop_nursery()

    def _stop_nursery(self) -> None:
        if self._ends and not self._by_partition:
            self._nursery.stop()

    def drop(self, partition: TopicPartition) -> None:
        """Retire the writer of a deleted partition, and start no other."""
        self._start.drop(partition)
        self._needed.discard(partition)
        self._queued.pop(partition, None)
        if partition in self._by_partition:
            self.retire(self._by_partition[partition])
