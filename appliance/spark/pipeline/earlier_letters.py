"""Finds dead letters that were sent before, so that none is sent twice after tables were restored from an older copy.

A repeated micro-batch repeats its producers, too, and the appliance leaves out what it has.  After tables were restored
that does not help: the lines since then are in other micro-batches now.  So each dead letter has its origin in its
headers, and the topic of dead letters is looked through:

- Each plan has a range of this topic (``BatchRecord.dead``).  Dead letters of lines behind those that the tables of
  this plan will have are behind the start of this range.  It is committed with the tables.
- A run looks, once, from there to the topic's present end.  Where it finds dead letters of lines that the tables do not
  have, its plans keep this range until these lines are read.  Tasks read it, and leave out what is there.
- All other plans have an empty range, at the end that the topic had when they were made.

The range is part of the plan because a repetition must leave out the same dead letters: its producers count them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from ...errors import CorruptBatch
from ...names import TopicPartition
from ..access import Access
from ..arrow import Decoder
from ..stream_offsets import Positions, Range
from .batch_record import BatchRecord, TopicRead
from .resume import TopicLog
from .settings import Settings

FETCH_BYTES_MAX: Final = 4 * 1024 * 1024
ORIGIN: Final = ("topic", "topic_id", "partition", "offset")
"""The headers that say from which line a dead letter comes."""


class Origin(NamedTuple):
    topic: str
    topic_id: str
    partition: int
    offset: int
    value: bytes | None
    """Of the line: a log that has lost its end has another line at the same offset."""


class LetterTopic:
    """The topic of dead letters of a pipeline."""

    def __init__(self, settings: Settings) -> None:
        self._name = settings.dead_letters.topic
        self._pipeline = settings.pipeline.name.encode()
        self._access = settings.pipeline.bootstrap, settings.input.retry_ms

    def origins(self, wanted: TopicRead) -> Iterator[Origin]:
        """The origins of this pipeline's dead letters in these ranges.  Those without a whole origin are left out."""
        for batch in self._read(wanted):
            letters = zip(batch.column("headers").to_pylist(), batch.column("value").to_pylist(), strict=True)
            for headers, value in letters:
                found = {each["key"]: each["value"] or b"" for each in headers or ()}
                if found.get("pipeline") != self._pipeline:
                    continue
                try:
                    topic, topic_id, partition, offset = (found[name].decode() for name in ORIGIN)
                    yield Origin(topic, topic_id, int(partition), int(offset), value)
                except (KeyError, ValueError):
                    continue

    def _read(self, wanted: TopicRead) -> Iterator[pa.RecordBatch]:
        access = Access(*self._access)
        try:
            for partition, (first, end) in wanted.ranges.items():
                if first < end:
                    decoder = Decoder(self._name, partition, first, end, headers=True, on_corrupt=_skip)
                    part = Range(self._name, partition, first, end, end)
                    for start, data in access.read(part, None, FETCH_BYTES_MAX, False, _skip):
                        yield from decoder.decode(data, start)
        finally:
            access.close()


def _skip(_: int, __: CorruptBatch) -> None:
    """A dead letter that cannot be read is sent again."""


class Earlier(msgspec.Struct, frozen=True):
    """What a run has found: ``ranges`` of the topic, and the highest offsets of lines whose dead letters are there."""

    ranges: TopicRead
    highest: dict[str, dict[int, int]] = {}

    def ahead_of(self, ends: Positions) -> bool:
        """Whether there are dead letters of lines from these offsets on."""
        return any(
            offset >= ends.get(TopicPartition(topic, partition), 0)
            for topic, partitions in self.highest.items()
            for partition, offset in partitions.items()
        )

    def of_plan(self, starts: Positions, log: TopicLog) -> TopicRead:
        """``dead`` of a plan that begins at these offsets; ``log``: the topic of dead letters now."""
        return self.ranges if self.ahead_of(starts) else at_end(log)


def at_end(log: TopicLog) -> TopicRead:
    return TopicRead(log.id, {partition: (end, end) for partition, (_, end) in log.bounds.items()})


def fits(dead: TopicRead | None, log: TopicLog) -> bool:
    """Whether the topic, as it is now, has these ranges: it was not created again, and has not lost its end."""
    return (
        dead is not None
        and dead.id == log.id
        and all(end <= log.bounds.get(partition, (0, 0))[1] for partition, (_, end) in dead.ranges.items())
    )


def since(known: TopicRead | None, log: TopicLog) -> TopicRead:
    """The ranges in which dead letters of lines can be that the tables with this ``dead`` do not have."""
    if known is None:
        return at_end(log)  # nothing is known of an earlier time
    firsts = {partition: first for partition, (first, _) in known.ranges.items()} if known.id == log.id else {}
    ranges = {
        partition: (min(max(firsts.get(partition, start), start), end), end)
        for partition, (start, end) in log.bounds.items()
    }
    return TopicRead(log.id, ranges)


def look(topic: LetterTopic, record: BatchRecord, log: TopicLog) -> Earlier:
    """Look for dead letters of lines that tables with this record do not have."""
    ranges, ends = since(record.dead, log), record.ends
    highest: dict[str, dict[int, int]] = {}
    for origin in topic.origins(ranges):
        read = record.read.get(origin.topic)
        unread = origin.offset >= ends.get(TopicPartition(origin.topic, origin.partition), 0)
        if unread and read is not None and read.id == origin.topic_id:
            known = highest.setdefault(origin.topic, {})
            known[origin.partition] = max(origin.offset, known.get(origin.partition, 0))
    return Earlier(ranges, highest)


class Unsent:
    """Leaves out the dead letters of a plan that were sent before."""

    def __init__(self, topic: LetterTopic, plan: BatchRecord | None) -> None:
        self.ids: Mapping[str, str] = {name: read.id for name, read in plan.read.items()} if plan is not None else {}
        wanted = plan.dead if plan is not None else None
        ranges = dict(plan.ranges()) if plan is not None else {}
        self._sent: set[tuple[str, int, int, int]] = set()
        for origin in topic.origins(wanted) if wanted is not None else ():
            first, end = ranges.get(TopicPartition(origin.topic, origin.partition), (0, 0))
            if first <= origin.offset < end and self.ids[origin.topic] == origin.topic_id:
                self._sent.add((origin.topic, origin.partition, origin.offset, hash(origin.value)))

    def of(self, dead: pa.Table) -> pa.Table:
        if not self._sent:
            return dead
        columns = (dead.column(name).to_pylist() for name in ("topic", "partition", "offset", "value"))
        fresh = [(*place, hash(value)) not in self._sent for *place, value in zip(*columns, strict=True)]
        return dead.filter(pa.array(fresh, pa.bool_()))
