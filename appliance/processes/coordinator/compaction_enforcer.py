"""Decides which log is compacted next, and orders that from the supervisor.

As in Kafka, the log is due that has the largest part which is new since its last pass (*dirty*), if that is at least
``min.cleanable.dirty.ratio``; sooner if its oldest new message is older than ``max.compaction.lag.ms``.  A pass also is
due when messages without a value, which the last one has left, may go.  What is younger than ``min.compaction.lag.ms``
is left alone, and so is the active segment.  When that is older than ``max.compaction.lag.ms``, it is rolled.

A log whose passes fail stays due: a segment is damaged, or the disk has no room.  So the one that was ordered least
often since its last pass comes first (:class:`Turns`).

Times are the trusted ones (:mod:`.trusted_clock`): no jump of the clock lets a deletion be forgotten.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...config import TopicSettings
from ...log.compaction import CompactionState
from ...log.partition_directory import directory_of
from ...log.recovery import BORN_MS, Point
from ...names import OFFSET_MAX, TopicPartition
from ...retention import SegmentUse
from ..messages import CompactLog
from .partitions import Partitions
from .retention_enforcer import RetentionEnforcer
from .topics import Topics
from .trusted_clock import TrustedClock

SHOWN_MAX: Final = 100
"""Partitions that are shown in ``status``: those with the largest dirty part."""
log = logging.getLogger(__name__)


class Dirt(NamedTuple):
    """How much of a partition is to be compacted.

    ``limit``: the offset before which its segments may be compacted.  ``oldest_ms``: when the first dirty segment was
    written; None without one.
    """

    limit: int
    dirty_bytes: int
    clean_bytes: int
    oldest_ms: int | None

    @property
    def ratio(self) -> float:
        return self.dirty_bytes / max(1, self.dirty_bytes + self.clean_bytes)


def measure(segments: Sequence[SegmentUse], dirty_start: int, young_ms: int) -> Dirt:
    """Measure a partition: its segments, the last of which is active; what was written after ``young_ms`` is young."""
    limit, dirty_bytes, clean_bytes, oldest_ms = segments[0].base, 0, 0, None
    for segment in segments[:-1]:
        if segment.modified_ms > young_ms:
            break
        limit = segment.base + segment.bytes
        if limit <= dirty_start:
            clean_bytes += segment.disk_bytes
        else:
            dirty_bytes += segment.disk_bytes
            oldest_ms = segment.modified_ms if oldest_ms is None else oldest_ms
    return Dirt(limit, dirty_bytes, clean_bytes, oldest_ms)


def is_due(dirt: Dirt, state: CompactionState, settings: TopicSettings, now_ms: int) -> bool:
    """Whether a pass has something to do."""
    if dirt.oldest_ms is not None:
        overdue = now_ms - dirt.oldest_ms >= settings.max_compaction_lag_ms
        return overdue or dirt.ratio >= settings.min_cleanable_dirty_ratio
    if not state.tombstones or not state.passes:
        return False
    may_go_ms = state.passes[-1][1] + max(1, settings.delete_retention_ms)  # not in the pass that sees them first
    return state.ended_ms < may_go_ms <= now_ms


class Due(NamedTuple):
    """A log that is due; ``ended_ms``: of its last pass."""

    order: CompactLog
    ratio: float
    ended_ms: int


class Turns:
    """Chooses among the logs that are due, so that one that cannot be compacted does not keep the others waiting."""

    def __init__(self) -> None:
        self._orders: dict[TopicPartition, tuple[int, int]] = {}
        """When the last pass ended, and how often another one was ordered since."""

    def choose(self, due: Sequence[Due]) -> CompactLog:
        orders: dict[TopicPartition, tuple[int, int]] = {}
        for candidate in due:
            ended_ms, count = self._orders.get(candidate.order.partition, (0, 0))
            orders[candidate.order.partition] = candidate.ended_ms, count if ended_ms == candidate.ended_ms else 0
        chosen = min(due, key=lambda candidate: (orders[candidate.order.partition][1], -candidate.ratio))
        ended_ms, count = orders[chosen.order.partition]
        orders[chosen.order.partition] = ended_ms, count + 1
        self._orders = orders
        return chosen.order


class CompactionEnforcer:
    """Looks at all partitions stored here whose topics are compacted, in one :meth:`run`."""

    def __init__(
        self,
        data_dir: Path,
        topics: Topics,
        partitions: Partitions,
        retention: RetentionEnforcer,
        clock: TrustedClock,
        show: Callable[[dict[str, Any]], None],
    ) -> None:
        self._data_dir = data_dir
        self._topics, self._partitions = topics, partitions
        self._retention, self._clock = retention, clock
        self._show = show
        self._turns = Turns()
        self.rows: dict[str, dict[str, Any]] = {}
        """What the last look has found, by the name of the partition."""

    async def run(self) -> None:
        """Measure the partitions that :class:`RetentionEnforcer` has measured just now, and order one compaction."""
        now_ms = self._clock.judging_ms()
        due: list[Due] = []
        rows: dict[str, dict[str, Any]] = {}
        for key, segments in self._retention.measured.items():
            topic = self._topics.catalog.topics.get(key.topic)
            if topic is None:
                continue
            settings = self._topics.settings(topic)
            if not settings.compacts:
                continue
            state, born_ms = await asyncio.to_thread(_read, directory_of(self._data_dir, *key))
            dirt = measure(segments, state.dirty_start, now_ms - settings.min_compaction_lag_ms)
            rows[f"{key.topic}-{key.partition}"] = _row(dirt, state)
            if is_due(dirt, state, settings, now_ms):
                due.append(Due(_order(key, dirt, settings, now_ms), dirt.ratio, state.ended_ms))
            if _has_old_active(segments, self._clock.written_ms(born_ms), settings, now_ms):
                self._partitions.roll(*key)
        before, self.rows = self.rows, rows
        if due:
            self._partitions.compact(self._turns.choose(due))
        if rows or before:
            by_ratio = sorted(rows, key=lambda name: -rows[name]["dirty_ratio"])[:SHOWN_MAX]
            self._show({name: rows[name] for name in by_ratio})


def _read(directory: Path) -> tuple[CompactionState, int]:
    """The state of compaction, and when the active segment was made."""
    try:
        point = Point.read(directory)
        born_ms = point.cells[BORN_MS] if point.valid else 0
    except OSError:
        born_ms = 0
    return CompactionState.load(directory), born_ms


def _has_old_active(segments: Sequence[SegmentUse], born_ms: int, settings: TopicSettings, now_ms: int) -> bool:
    if settings.max_compaction_lag_ms == OFFSET_MAX or not born_ms:
        return False
    return segments[-1].bytes > 0 and now_ms - born_ms >= settings.max_compaction_lag_ms


def _order(key: TopicPartition, dirt: Dirt, settings: TopicSettings, now_ms: int) -> CompactLog:
    tombstones_ms = max(-1, now_ms - settings.delete_retention_ms)
    sizes = settings.max_message_bytes, settings.index_interval_bytes
    return CompactLog(key, dirt.limit, tombstones_ms, now_ms, *sizes)


def _row(dirt: Dirt, state: CompactionState) -> dict[str, Any]:
    """For ``status``."""
    return {
        "dirty_ratio": round(dirt.ratio, 3),
        "dirty_bytes": dirt.dirty_bytes,
        "compacted_to": state.dirty_start,
        "last_ms": state.ended_ms,
        "kept_back": state.kept_back,
        "unreadable_batches": state.unreadable,
    }
