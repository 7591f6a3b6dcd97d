"""Compacts logs of topics with ``cleanup.policy=compact``, one at a time, in a process of its own.

The coordinator orders it (:mod:`..coordinator.compaction_enforcer`).  The compactor writes each segment anew beside the
old one, and the partition's writer, which owns the files, puts it in place (:mod:`appliance.log.compaction`)::

    state       until                                            then
    none        an order of the coordinator                      writing
    writing     a segment is written: SegmentCompacted           swapping
                the log is done, or cannot be: LogCompacted      none
    swapping    the writer has put it in place: SegmentSwapped   writing

Whoever dies: the compactor takes nothing with it but files that nobody uses, which the next one removes.  Without an
answer of the writer, which may have died, the compactor asks again after ASK_MS; a writer that is asked twice has
nothing to do.  Where the log is repaired or deleted meanwhile (:meth:`Compactions.drop`), the compactor is killed:
what it has read is not what is there then.  It has the lowest priority of processor and disk.
"""

from __future__ import annotations

import logging
import select
import time
from bisect import bisect_right
from functools import partial
from pathlib import Path
from typing import Any, Final, assert_never

import msgspec

from ...clock import wall_s
from ...errors import ApplianceError, CorruptLog, UnreadableLog, WriterGone, disk_fault
from ...log import partition_directory
from ...log.compaction import Policy, run_pass
from ...log.files import offset_at
from ...names import TopicPartition
from ...shared import memory
from ...shared.table import SegmentTable
from ..control import Channel
from ..messages import (
    TO_COMPACTOR,
    CompactLog,
    DamageSuspected,
    FilesChanged,
    LogCompacted,
    SegmentCompacted,
    SegmentSwapped,
    Stop,
    SwapSegment,
)
from .actions import Actions
from .children import Children
from .coordinator_child import CoordinatorChild
from .fork import Child
from .hosted import Hosted
from .roles import Process, Role
from .scrubber import take_lowest_priority
from .workers import Workers
from .writers import Writers

logger = logging.getLogger(__name__)

ASK_MS: Final = 2_000
SWAP_S_MAX: Final = 120.0
"""How long the compactor asks for one segment: a writer that cannot open its log does not answer."""


class Compactions:
    """The compactor as a child, and the order that it carries out."""

    def __init__(
        self,
        data_dir: Path,
        hosted: Hosted,
        children: Children,
        actions: Actions,
        workers: Workers,
        coordinator: CoordinatorChild,
        writers: Writers,
    ) -> None:
        self._data_dir = data_dir
        self._hosted = hosted
        self._workers, self._coordinator, self._writers = workers, coordinator, writers
        self._order: CompactLog | None = None
        self._failed: dict[TopicPartition, tuple[float, str]] = {}
        """The logs whose last pass has failed: since when, and why."""
        self.role = Role("compactor", "start the compactor", children, actions, self._prepare)

    def compact(self, order: CompactLog) -> None:
        """Carry out an order, unless another one is carried out: the coordinator repeats it."""
        if self._order is None and not self.role.stops and self._hosted.is_writable(order.partition):
            self._order = order
            self.role.start(order.partition)

    def _prepare(self, partition: TopicPartition) -> Process | None:
        order = self._order
        if order is None or not self._hosted.is_writable(partition):
            self._order = None
            return None
        run = partial(compact_log, self._data_dir, order, self._hosted[partition].table)
        return Process(lambda channel, _: run(channel), "compactor", works=True)

    def on_compacted(self, child: Child, message: SegmentCompacted) -> None:
        """Let the writer put a segment in place, which is started for it."""
        if not child.stopping:
            self._writers.want(message.partition)
            self._writers.send(message.partition, SwapSegment(message.partition, message.base))

    def on_swapped(self, message: SegmentSwapped) -> None:
        """Let readers forget the old file, and the compactor go on."""
        self._workers.send_all(FilesChanged(message.partition))
        self._coordinator.send(FilesChanged(message.partition))
        self.role.send(message.partition, message)

    def on_done(self, child: Child, message: LogCompacted) -> None:
        if child.stopping:  # killed: the log it speaks of is another one by now, or is none
            return
        if message.error:
            logger.error("%s-%d cannot be compacted: %s", *message.partition, message.error)
            since_s = self._failed.get(message.partition, (wall_s(),))[0]
            self._failed[message.partition] = since_s, message.error
        else:
            self._failed.pop(message.partition, None)
            logger.info("%s-%d was compacted: %s", *message.partition, message.counts)

    def on_end(self, child: Child) -> None:
        """Take the next order, however the compactor has ended."""
        self._order = None
        self.role.on_end(child)

    def failures(self) -> list[dict[str, Any]]:
        """The logs that cannot be compacted, for ``status``; not those whose topics are not compacted any more."""
        compacted = self._coordinator.shown["compaction"]
        named = sorted((str(partition), row) for partition, row in self._failed.items())
        return [{"log": name, "since": since_s, "reason": why} for name, (since_s, why) in named if name in compacted]

    def drop(self, partition: TopicPartition) -> None:
        """End the compaction of a partition whose files are about to change."""
        self._failed.pop(partition, None)
        if self._order is not None and self._order.partition == partition:
            self.role.kill(partition)
            if partition not in self.role:
                self._order = None


class _Stopped(Exception):
    """The appliance stops."""


def compact_log(data_dir: Path, order: CompactLog, table_name: str, control: Channel) -> int:
    """The compactor: compact a log and report what was done."""
    take_lowest_priority()
    path = partition_directory.directory_of(data_dir, *order.partition)
    link = _WriterLink(control, order.partition)
    try:
        with memory.attach(table_name) as mapped, memoryview(mapped) as view, view.cast("Q") as cells:
            seen = SegmentTable(cells).snapshot()
        limit = seen.bases[bisect_right(seen.bases, min(order.limit, seen.stable)) - 1]
        policy = Policy(limit, order.tombstones_ms, order.now_ms, order.batch_bytes_max, order.interval_bytes)
        counts = run_pass(path, seen.bases, seen.high_watermark, policy, link.swap, link.pace)
        control.send(LogCompacted(order.partition, "", msgspec.structs.asdict(counts)))
    except _Stopped:
        pass
    except ApplianceError as error:
        if isinstance(error, CorruptLog | UnreadableLog):
            offset = offset_at(error.path, error.position)
            if offset is not None:
                control.send(DamageSuspected(order.partition, offset, offset + 1))
        control.send(LogCompacted(order.partition, str(error), {}))
    except OSError as error:
        control.send(LogCompacted(order.partition, str(disk_fault(error, path)), {}))
    return 0


class _WriterLink:
    """Asks the partition's writer, through the supervisor."""

    def __init__(self, control: Channel, partition: TopicPartition) -> None:
        self._control, self._partition = control, partition
        self._poll = select.poll()
        self._poll.register(control.fileno(), select.POLLIN)

    def pace(self, size: int) -> None:
        """Look whether the appliance stops."""
        self._receive(0)

    def swap(self, base: int) -> bool:
        """Let the writer put a segment in place; False if it is not there any more.

        Raises:
            WriterGone: there is no answer.
        """
        deadline_s = time.monotonic() + SWAP_S_MAX
        while time.monotonic() < deadline_s:
            self._control.send(SegmentCompacted(self._partition, base))
            asked_s = time.monotonic()
            while (left_ms := ASK_MS - 1000 * (time.monotonic() - asked_s)) > 0:
                for message in self._receive(left_ms):
                    if message.base == base:
                        return message.done
        raise WriterGone(f"{self._partition}: its writer has not answered")

    def _receive(self, wait_ms: float) -> list[SegmentSwapped]:
        swapped: list[SegmentSwapped] = []
        self._poll.poll(wait_ms)
        for message, _ in self._control.receive(TO_COMPACTOR):
            match message:
                case SegmentSwapped():
                    swapped.append(message)
                case Stop():
                    raise _Stopped
                case _:
                    assert_never(message)
        if self._control.closed:
            raise _Stopped
        return swapped
