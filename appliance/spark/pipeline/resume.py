"""Decides where a pipeline continues.  Pure: no files, no sockets, no clock.

The table is the truth: its last record says which offsets its rows come from.  Spark's checkpoint is not read at
all, every run begins with a new one.  So a checkpoint that was lost, deleted or restored changes nothing.

:func:`decide` compares the record with the topics as the appliance has them now.  For each partition: ``s`` is the
offset up to which the tables have read it, ``a`` the start and ``b`` the end of its log::

    ==========================  =================  =====================================================
    tables                      log                decision
    ==========================  =================  =====================================================
    nothing was ever read       a to b             begin at a, or at b if ``input.starting = "latest"``
    other partitions were read  a to b             begin at a: the partition, or the topic, is new
    id A, up to s               id A, a <= s <= b  continue at s
    id A, up to s               id A, s < a        conflict: retention deleted s to a.     Accepted: a
    id A, up to s               id A, b < s        conflict: the log has lost b to s.      Accepted: b
    id A, up to s               id A, no such one  as with a = b = 0
    id A, up to s               id B               conflict: topic created again.          Accepted: a
    any                         not a source now   keep the range: the topic may become a source again
    ==========================  =================  =====================================================

A topic that was never given an id has "", which equals every id.

"Accepted": what ``appliance pipeline accept`` records, and a run with ``input.fail_on_data_loss = false``.

What the log has before the offset at which reading began, which is in the record, too, is nobody's loss:
:func:`lines_before` finds it, and :func:`next_back` plans how ``appliance pipeline backfill`` brings it in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ...log_access.ranges import Positions
from ...names import TopicPartition
from ..stream_offsets import advance
from .batch_record import BEGINNING, BatchRecord, TopicRead, topics_read

NO_LOG: Final = (0, 0)


class TopicLog(NamedTuple):
    """A topic as the appliance has it; ``bounds``: the start and the end of each partition's log."""

    id: str
    bounds: Mapping[int, tuple[int, int]]


class Conflict(NamedTuple):
    """A partition whose log does not continue what the table has.  ``resumed``: the accepted offset."""

    topic: str
    partition: int
    stored: int
    log: tuple[int, int]
    what: str
    resumed: int

    def __str__(self) -> str:
        start, end = self.log
        return (
            f"{self.topic}-{self.partition}: the tables have it up to offset {self.stored}, "
            f"its log has {start} to {end}: {self.what}"
        )


class Resumption(NamedTuple):
    """``begun``: where the next micro-batch starts; with conflicts: after these are accepted.

    ``first``: nothing was ever read.
    """

    begun: BatchRecord
    first: bool
    conflicts: tuple[Conflict, ...]


def decide(
    record: BatchRecord | None,
    logs: Mapping[str, TopicLog],
    latest: bool,
) -> Resumption:
    """See the module's docstring.  ``logs``: all topics that are sources; ``latest``: begin at the end."""
    recorded = record.read if record is not None else {}
    ids: dict[str, str] = {}
    ranges: dict[TopicPartition, tuple[int, int]] = {}
    conflicts: list[Conflict] = []
    since = dict(record.since) if record is not None else {}
    since |= {topic: {} for topic in logs}
    for topic, log in logs.items():
        read = recorded.get(topic)
        ids[topic] = log.id or (read.id if read is not None else "")
        was_read = read.ranges if read is not None and is_same(read.id, log.id) else {}
        for partition in sorted({*log.bounds, *was_read}):
            bounds = log.bounds.get(partition, NO_LOG)
            at = bounds[1] if record is None and latest else bounds[0]
            begun_at = None
            if read is not None and partition in read.ranges:
                conflict = _conflict(topic, partition, read, log)
                conflicts += [conflict] if conflict is not None else []
                at = read.ranges[partition][1] if conflict is None else conflict.resumed
                if record is not None and is_same(read.id, log.id):
                    begun_at = record.since[topic][partition]
            ranges[TopicPartition(topic, partition)] = (at, at)
            since.setdefault(topic, {})[partition] = at if begun_at is None else min(at, begun_at)
    kept = {topic: _continued(read) for topic, read in recorded.items() if topic not in logs}
    begun = BatchRecord(
        record.batch if record is not None else BEGINNING,
        record.run if record is not None else "",
        {**kept, **topics_read(ids, ranges)},
        record.parsing if record is not None else "",
        since,
    )
    return Resumption(begun, record is None, tuple(conflicts))


def is_same(recorded: str, now: str) -> bool:
    """Whether these are ids of one topic."""
    return recorded == now or not recorded or not now


def _conflict(topic: str, partition: int, read: TopicRead, log: TopicLog) -> Conflict | None:
    stored = read.ranges[partition][1]
    start, end = bounds = log.bounds.get(partition, NO_LOG)
    if not is_same(read.id, log.id):
        what = f"the topic was created again (its id was {read.id}, now it is {log.id})"
        return Conflict(topic, partition, stored, bounds, what, start)
    if partition not in log.bounds:
        return Conflict(topic, partition, stored, bounds, "there is no such partition any more", 0) if stored else None
    if stored < start:
        return Conflict(topic, partition, stored, bounds, f"retention has deleted {stored} to {start}", start)
    if end < stored:
        return Conflict(topic, partition, stored, bounds, f"the log has lost {end} to {stored}", end)
    return None


def _continued(read: TopicRead) -> TopicRead:
    return TopicRead(read.id, {partition: (end, end) for partition, (_, end) in read.ranges.items()})


def next_batch(last: BatchRecord, heads: Positions, bytes_max: int, run: str) -> BatchRecord | None:
    """The next micro-batch: at most ``bytes_max`` bytes (0: no limit) up to ``heads``.  None: there is nothing to read.

    ``last``: what :func:`decide` returns as ``begun``, so it has every partition of ``heads``.
    """
    starts = last.ends
    reached = advance(starts, {key: max(starts[key], head) for key, head in heads.items()}, bytes_max)
    if reached == starts:
        return None
    ids = {topic: read.id for topic, read in last.read.items()}
    ranges = {key: (starts[key], reached[key]) for key in starts}
    return BatchRecord(last.batch + 1, run, topics_read(ids, ranges), since=last.since)


def lines_before(begun: BatchRecord, logs: Mapping[str, TopicLog]) -> dict[TopicPartition, tuple[int, int]]:
    """The ranges of the logs that come before all that the table has read; ``begun``: as :func:`decide` returns it."""
    bounds = {TopicPartition(topic, part): bounds for topic, log in logs.items() for part, bounds in log.bounds.items()}
    before = {key: (bounds[key][0], end) for key, end in sorted(begun.beginnings.items()) if key in bounds}
    return {key: (first, end) for key, (first, end) in before.items() if first < end}


def floors_now(floors: Mapping[str, Mapping[int, int]], before: Mapping[TopicPartition, tuple[int, int]]) -> Positions:
    """The offsets down to which there are lines still: retention may have removed some since these were chosen."""
    return {
        key: max(first, floors[key.topic][key.partition])
        for key, (first, _) in before.items()
        if key.partition in floors.get(key.topic, {})
    }


def next_back(last: BatchRecord, floors: Positions, bytes_max: int, run: str, counts: str) -> BatchRecord | None:
    """The next micro-batch that goes back, from where reading began: the newest of these lines, down to ``floors``.

    So what the table has of a partition is one range all the time, whenever somebody stops.  ``counts``: the topic of
    counts of messages, which comes last: they would be compared with messages that are not there yet.  None: there is
    nothing left.  Otherwise as :func:`next_batch`.
    """
    beginnings = {key: at for key, at in last.beginnings.items() if floors.get(key, at) < at}
    starts = {key: at for key, at in beginnings.items() if key.topic != counts} or beginnings
    # Whoever goes back goes on, with the signs turned.
    reached = advance({key: -at for key, at in starts.items()}, {key: -floors[key] for key in starts}, bytes_max)
    if not starts:
        return None
    since = {topic: dict(parts) for topic, parts in last.since.items()}
    back: dict[str, dict[int, tuple[int, int]]] = {}
    for (topic, partition), at in starts.items():
        first = since[topic][partition] = -reached[TopicPartition(topic, partition)]
        if first < at:
            back.setdefault(topic, {})[partition] = (first, at)
    read = {topic: _continued(topic_read) for topic, topic_read in last.read.items()}
    return BatchRecord(last.batch + 1, run, read, since=since, back=back)
