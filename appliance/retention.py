"""Plans retention: decides which old segments to delete, from sizes and times.  Does no I/O.

Three rules, in this order, each delete whole segments from the old end:

1. age: segments whose file was last written more than ``retention.ms`` ago, as in the paper; also the active (last)
   one, as in Kafka;
2. size: the oldest segments of a partition while ``retention.bytes`` remain without them, as in Kafka; never the
   active one;
3. room: when all logs together exceed their limit, or the disk has too little free space: first the topics in the
   trash, in the order of their deletions; then repeatedly the oldest segment of the topic that is largest then, until
   there is enough room; never the active one, and none of a topic that is only compacted.

If that is not enough, large active segments are rolled.  The next run can delete them and keep the newest messages.

Sizes: ``bytes`` is the segment's part of the log, ``disk_bytes`` the space of its file (less if the file is sparse).  A
segment's time is its file's modification time in ms, since a sealed segment is never written again; later, if the clock
was behind then (``processes/coordinator/trusted_clock.py``, which also gives the time).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from .names import OFFSET_MAX, TopicPartition

ROLL_BYTES_MIN: Final = 1 << 20
"""Smallest active segment to roll.  So at least this much of each partition is kept."""


class SegmentUse(NamedTuple):
    base: int
    bytes: int
    disk_bytes: int
    modified_ms: int


class PartitionUse(NamedTuple):
    """The segments of a partition, by ascending base (the last one is active), and its limits; -1: no limit.

    ``may_go``: they may be deleted to make room.  Those of a topic that is only compacted may not.  ``stable``: the
    last stable offset; nothing is deleted that is not below it, since a transaction is open that may have begun there.
    """

    topic: str
    partition: int
    segments: Sequence[SegmentUse]
    retention_ms: int
    retention_bytes: int
    may_go: bool = True
    stable: int = OFFSET_MAX

    @property
    def count_max(self) -> int:
        """How many of the oldest segments may be deleted at most."""
        return sum(segment.base + segment.bytes <= self.stable for segment in self.segments)


REASONS: Final = ("age", "size", "room")


class LogDeletion(NamedTuple):
    """A deletion before ``offset``, where a segment starts or the log ends; ``reason``: one of REASONS."""

    topic: str
    partition: int
    offset: int
    reason: str


class TrashUse(NamedTuple):
    """A deleted topic in the trash."""

    topic_id: str
    disk_bytes: int


class RetentionPlan(NamedTuple):
    """The deletions; ``rolls``: the partitions whose active segments are to be rolled.

    ``lacking_bytes``: bytes that are still missing after all deletions.  ``empties``: the ids of deleted topics that
    leave the trash.
    """

    deletions: list[LogDeletion]
    lacking_bytes: int
    rolls: list[TopicPartition]
    empties: list[str]


def plan(
    uses: Iterable[PartitionUse],
    now_ms: int,
    *,
    bytes_max: int = 0,
    lacking_bytes: int = 0,
    trash: Sequence[TrashUse] = (),
) -> RetentionPlan:
    """Decide what to delete.

    Args:
        uses: every partition stored here.
        now_ms: the time, by the clock of the segments' times.
        bytes_max: most bytes of all logs together on the disk; 0 for no limit.
        lacking_bytes: bytes of free space that the disk lacks; <= 0 when there is enough.
        trash: the deleted topics in the trash, the oldest first; ``bytes_max`` holds for them, too.
    """
    uses = list(uses)
    gone = [0] * len(uses)
    reasons = [""] * len(uses)
    freed = 0
    for index, use in enumerate(uses):
        aged = _aged(use, now_ms)
        gone[index] = min(max(aged, _oversized(use)), use.count_max)
        reasons[index] = "age" if gone[index] <= aged else "size"
        freed += sum(segment.disk_bytes for segment in use.segments[: gone[index]])
    if bytes_max:
        total = sum(segment.disk_bytes for use in uses for segment in use.segments)
        total += sum(deleted_topic.disk_bytes for deleted_topic in trash)
        lacking_bytes = max(lacking_bytes, total - bytes_max)
    lacking_bytes -= freed
    empties: list[str] = []
    for deleted_topic in trash:
        if lacking_bytes <= 0:
            break
        lacking_bytes -= deleted_topic.disk_bytes
        empties.append(deleted_topic.topic_id)
    for index in _make_room(uses, gone):
        if lacking_bytes <= 0:
            break
        lacking_bytes -= uses[index].segments[gone[index]].disk_bytes
        gone[index] += 1
        reasons[index] = "room"
    deletions = [
        LogDeletion(use.topic, use.partition, _base(use, count), reason)
        for use, count, reason in zip(uses, gone, reasons, strict=True)
        if count
    ]
    return RetentionPlan(
        deletions, max(0, lacking_bytes), list(_partitions_to_roll(uses, gone, lacking_bytes)), empties
    )


def _base(use: PartitionUse, count: int) -> int:
    """Log start offset of a partition without its first ``count`` segments."""
    return use.segments[count].base if count < len(use.segments) else use.segments[-1].base + use.segments[-1].bytes


def _partitions_to_roll(
    uses: Sequence[PartitionUse], gone: Sequence[int], lacking_bytes: int
) -> Iterator[TopicPartition]:
    """Yields the partitions with the largest active segments, until these make enough room."""
    large = [
        (-use.segments[-1].disk_bytes, use.topic, use.partition)
        for use, count in zip(uses, gone, strict=True)
        if use.may_go and count < len(use.segments) and use.segments[-1].bytes >= ROLL_BYTES_MIN
    ]
    for size, topic, partition in sorted(large):
        if lacking_bytes <= 0:
            return
        lacking_bytes += size
        yield TopicPartition(topic, partition)


def _aged(use: PartitionUse, now_ms: int) -> int:
    """How many segments at the old end are older than ``retention.ms``."""
    if use.retention_ms < 0:
        return 0
    count = 0
    for segment in use.segments:
        if segment.modified_ms >= now_ms - use.retention_ms or not segment.bytes:
            break
        count += 1
    return count


def aged_bytes(uses: Iterable[PartitionUse], now_ms: int) -> int:
    """Bytes of the logs that are too old at this time."""
    return sum(segment.bytes for use in uses for segment in use.segments[: _aged(use, now_ms)])


def lost_bytes(committed: int | None, start: int) -> int:
    """What a log that starts at this offset has lost before the group that committed the other one has read it.

    It needs no memory of what was removed, and stays until the group commits an offset beyond.
    """
    return max(0, start - committed) if committed is not None and committed >= 0 else 0


def _oversized(use: PartitionUse) -> int:
    """The number of segments at the old end that ``retention_bytes`` does not need."""
    if use.retention_bytes < 0:
        return 0
    sizes = [min(segment.bytes, segment.disk_bytes) for segment in use.segments]  # compaction leaves holes
    surplus = sum(sizes) - use.retention_bytes
    count = 0
    for size in sizes[:-1]:
        surplus -= size
        if surplus < 0:
            break
        count += 1
    return count


def _make_room(uses: Sequence[PartitionUse], gone: Sequence[int]) -> Iterator[int]:
    """Yields the index of the partition whose oldest remaining segment is to be deleted next.

    The caller counts ``gone`` up between two steps.  Segments counted in it before the first step do not count in the
    sizes.
    """
    lasts = [min(len(use.segments) - 1, use.count_max) for use in uses]
    sizes: dict[str, int] = {}
    oldest: dict[str, list[tuple[int, int]]] = {}  # per topic a heap of (time of the next segment, index)
    for index, (use, count) in enumerate(zip(uses, gone, strict=True)):
        sizes[use.topic] = sizes.get(use.topic, 0) + sum(segment.disk_bytes for segment in use.segments[count:])
        if use.may_go and count < lasts[index]:
            oldest.setdefault(use.topic, []).append((use.segments[count].modified_ms, index))
    for heap in oldest.values():
        heapq.heapify(heap)
    largest = [(-sizes[topic], topic) for topic in oldest]
    heapq.heapify(largest)
    while largest:
        size, topic = heapq.heappop(largest)
        heap = oldest[topic]
        _, index = heapq.heappop(heap)
        segments = uses[index].segments
        size += segments[gone[index]].disk_bytes
        yield index
        if gone[index] < lasts[index]:
            heapq.heappush(heap, (segments[gone[index]].modified_ms, index))
        if heap:
            heapq.heappush(largest, (size, topic))
