"""Enforces retention: measures the logs, lets :mod:`appliance.retention` decide, and orders deletions from the writers.

Sizes come from the tables, times and disk blocks from ``stat`` of the segment files.  A sealed segment never changes,
so it is measured once.  One run orders at most ORDERS_MAX deletions, those that make room on the disk first: each may
fork a writer, and the next run orders the others.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from ... import reserve
from ...config import Config
from ...errors import Unavailable
from ...log import partition_directory
from ...log.files import log_path
from ...names import TopicPartition
from ...partition_states import OFFLINE
from ...retention import REASONS, PartitionUse, SegmentUse, TrashUse, aged_bytes, plan
from ...shared.table import TableSnapshot
from .partitions import Partitions
from .topics import Topics
from .trash import Trash
from .trusted_clock import TrustedClock
from .unread import UnreadBytes, unread_fields

ORDERS_MAX: Final = 100
STATS_PER_TURN: Final = 500
"""Files measured before the loop serves others."""
log = logging.getLogger(__name__)


class RetentionEnforcer:
    """Checks all partitions stored here, and the disk, in one :meth:`run`.

    ``on_removed`` is called with the bytes of logs that it has had removed since its start, by reason.
    """

    def __init__(
        self,
        data_dir: Path,
        topics: Topics,
        partitions: Partitions,
        trash: Trash,
        clock: TrustedClock,
        unread_bytes: UnreadBytes,
        on_removed: Callable[[dict[str, int]], None],
    ) -> None:
        self._data_dir = data_dir
        self._topics = topics
        self._partitions = partitions
        self._trash = trash
        self._clock = clock
        self._unread_bytes = unread_bytes
        self._sealed: dict[TopicPartition, dict[int, SegmentUse]] = {}
        self.measured: dict[TopicPartition, list[SegmentUse]] = {}
        """The segments of all partitions, as the last run has found them."""
        self._ends: dict[TopicPartition, int] = {}
        """Log end offsets at the last run, which was at ``_run_ms``."""
        self._run_ms = 0
        self._on_removed = on_removed
        self._removed_bytes = dict.fromkeys(REASONS, 0)
        self._ordered: dict[TopicPartition, int] = {}
        """The last offset that each partition was told to delete before: an order may have to be repeated."""
        self._lacking = self._warned = False

    def forget(self, key: TopicPartition) -> None:
        """Measure the segments of a partition again: they are others now."""
        self._sealed.pop(key, None)

    async def run(self, config: Config) -> None:
        """Measure all partitions stored here, and order deletions."""
        disk = config.disk
        self._watch_disk(disk.free_bytes_warn)
        uses = await self._uses()
        sizes = await self._trash.disk_bytes()
        trash = [TrashUse(trashed.id, sizes.get(trashed.id, 0)) for trashed in self._trash.topics()]
        lacking = disk.free_bytes_min - _free_bytes(self._data_dir) if disk.free_bytes_min else 0
        if lacking > 0:
            lacking -= await asyncio.to_thread(partition_directory.leaving_bytes, self._data_dir)
        now_ms = self._clock.judging_ms()
        deletions, lacking, rolls, empties = plan(
            uses, now_ms, bytes_max=disk.bytes_max, lacking_bytes=lacking, trash=trash
        )
        await self._trash.empty(empties, "the logs take more room than they may")
        self._ends = {key: end for key, end in self._ends.items() if key in self._sealed}
        self._ordered = {key: offset for key, offset in self._ordered.items() if offset <= self._ends.get(key, -1)}
        self._run_ms = now_ms
        if self._clock.jump_ms:
            self._clock.kept_bytes = max(0, aged_bytes(uses, self._clock.wall_ms()) - aged_bytes(uses, now_ms))
            self._clock.report(disk.clock_jump_hold_ms)
        starts = {(use.topic, use.partition): use.segments[0].base for use in uses}
        removed: dict[str, dict[int, tuple[int, int]]] = {}
        for deletion in sorted(deletions, key=lambda deletion: deletion.reason != "room")[:ORDERS_MAX]:
            topic, partition, offset, reason = deletion
            log.info("%s-%d: removing what lies before %d (%s)", topic, partition, offset, reason)
            self._partitions.delete_before(topic, partition, offset)
            key = TopicPartition(topic, partition)
            start = max(starts[key], self._ordered.get(key, 0))  # the order may be a repeated one
            if offset > start:
                self._count(key, start, offset, reason)
                removed.setdefault(topic, {})[partition] = start, offset
        for topic, partition in rolls[:ORDERS_MAX]:
            self._partitions.roll(topic, partition)
        if lacking and not self._lacking:
            log.warning(
                "the logs take %d bytes more than they should, and no more segments can go yet: make room on %s,"
                " or change disk.bytes_max or disk.free_bytes_min",
                lacking,
                self._data_dir,
            )
        self._lacking = bool(lacking)
        await self._tell_unread(removed)  # last: no order waits for ZooKeeper

    async def _tell_unread(self, removed: Mapping[str, Mapping[int, tuple[int, int]]]) -> None:
        """Name the groups that have not read what is removed: by topic, the first and last offset by partition."""
        for name, spans in removed.items():
            topic = self._topics.catalog.topics.get(name)
            if topic is None:
                continue
            unread = await self._unread_bytes.ask(topic, spans)
            if fields := unread_fields(unread):
                text = " ".join(f"{field}={value}" for field, value in fields.items())
                log.warning("%s: retention removes what groups have not read, in bytes: %s", name, text)
            if unread is None:  # nor would it be known of the other topics
                return

    def _count(self, key: TopicPartition, start: int, offset: int, reason: str) -> None:
        """Count the bytes of a deletion."""
        self._ordered[key] = offset
        self._removed_bytes[reason] += offset - start
        self._on_removed(dict(self._removed_bytes))

    def _watch_disk(self, warn_bytes: int) -> None:
        """Warn early of a disk that fills up, and keep room for deletions while there is plenty."""
        reserve.fill(self._data_dir)
        system = os.statvfs(self._data_dir)
        free = system.f_bavail * system.f_frsize
        warned, self._warned = self._warned, free < warn_bytes
        if self._warned and not warned:
            log.warning(
                "the disk of %s has %d bytes free, less than %d (disk.free_bytes_warn): make room, or keep less",
                *(self._data_dir, free, warn_bytes),
            )
        elif warned and not self._warned:
            log.warning("the disk of %s has %d bytes free again", self._data_dir, free)

    def _note_growth(self, key: TopicPartition, segments: list[SegmentUse]) -> None:
        """Correct the times of segments, whose files have them from the wall clock of that moment.

        What has grown since the last run was not written before it, whatever the clock said for a moment.
        """
        before, sealed = self._ends.get(key), self._sealed[key]
        for index, segment in enumerate(segments):
            if before is not None and segment.base + segment.bytes > before and segment.modified_ms < self._run_ms:
                segment = segment._replace(modified_ms=self._run_ms)
                if segment.base in sealed:
                    sealed[segment.base] = segment
            segments[index] = segment._replace(modified_ms=self._clock.written_ms(segment.modified_ms))
        self._ends[key] = segments[-1].base + segments[-1].bytes

    async def _uses(self) -> list[PartitionUse]:
        uses: list[PartitionUse] = []
        looked = 0
        sealed_before, self._sealed = self._sealed, {}
        self.measured = {}
        for key in self._partitions.stored():
            topic, partition = key
            if topic not in self._topics.catalog.topics:
                continue
            table = self._partitions.table(topic, partition)
            try:
                view = table.snapshot()
            except Unavailable:  # being opened
                continue
            if table.state == OFFLINE:
                continue
            sealed = self._sealed[key] = sealed_before.get(key, {})
            looked += len(view.bases) - len(sealed)
            segments = _segments(self._data_dir / f"{topic}-{partition}", view, table.log_end_offset, sealed)
            if segments:
                self._note_growth(key, segments)
                self.measured[key] = segments
                settings = self._topics.settings(self._topics.catalog.topics[topic])
                may_go = "delete" in settings.cleanup_policy
                limits = (settings.retention_ms, settings.retention_bytes) if may_go else (-1, -1)
                uses.append(PartitionUse(topic, partition, segments, *limits, may_go, view.stable))
            if looked > STATS_PER_TURN:
                looked = 0
                await asyncio.sleep(0)
        return uses


def _segments(path: Path, view: TableSnapshot, written: int, sealed: dict[int, SegmentUse]) -> list[SegmentUse]:
    """Measure the segments of one partition; ``sealed`` caches those that cannot change."""
    for base in sealed.keys() - set(view.bases):
        del sealed[base]
    segments: list[SegmentUse] = []
    stops = [*view.bases[1:], max(written, view.high_watermark)]
    for base, stop in zip(view.bases, stops, strict=True):
        segment = sealed.get(base)
        if segment is None:
            try:
                status = log_path(path, base).stat()
            except FileNotFoundError:  # removed since the snapshot was taken
                continue
            segment = SegmentUse(base, stop - base, status.st_blocks * 512, status.st_mtime_ns // 1_000_000)
            if base != view.bases[-1]:
                sealed[base] = segment
        segments.append(segment)
    return segments


def _free_bytes(path: Path) -> int:
    system = os.statvfs(path)
    return system.f_bavail * system.f_frsize
