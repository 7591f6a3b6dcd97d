"""Decides where a pipeline continues.  Pure: no files, no sockets, no clock.

The tables are the truth: their last record says which offsets their rows come from.  Spark's checkpoint is not read at
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

A plan, the micro-batch that a crash has interrupted, is repeated with the same ranges if it follows the record: it has
the next number, and if each range that it reads continues where the tables end (of a partition that they lack: lies in
its log), has the same id, lies within the log, and is of a topic that is a source now.  Any other plan is dropped.

Delta commits the tables one after another, ``events`` last.  If a totals table has the micro-batch already and
``events`` has not, the micro-batch is *unfinished*, and its plan comes from the record of the totals.  If that cannot
be repeated, it is a conflict that nothing resolves but restoring the tables.

"Accepted": what ``appliance pipeline accept`` records, and a run with ``input.fail_on_data_loss = false``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ...names import TopicPartition
from ..stream_offsets import Positions, advance
from .batch_record import BEGINNING, BatchRecord, TopicRead, topics_read

NO_LOG: Final = (0, 0)


class TopicLog(NamedTuple):
    """A topic as the appliance has it; ``bounds``: the start and the end of each partition's log."""

    id: str
    bounds: Mapping[int, tuple[int, int]]


class Conflict(NamedTuple):
    """A partition whose log does not continue what the tables have.  ``resumed``: the accepted offset, or None."""

    topic: str
    partition: int
    stored: int
    log: tuple[int, int]
    what: str
    resumed: int | None

    def __str__(self) -> str:
        start, end = self.log
        return (
            f"{self.topic}-{self.partition}: the tables have it up to offset {self.stored}, "
            f"its log has {start} to {end}: {self.what}"
        )


class Resumption(NamedTuple):
    """``begun``: where the next micro-batch starts; with conflicts: after these are accepted.

    ``replay``: the plan to repeat.  ``first``: nothing was ever read.
    """

    begun: BatchRecord
    replay: BatchRecord | None
    first: bool
    conflicts: tuple[Conflict, ...]

    @property
    def acceptable(self) -> bool:
        return all(each.resumed is not None for each in self.conflicts)


def decide(
    record: BatchRecord | None,
    plan: BatchRecord | None,
    unfinished: BatchRecord | None,
    logs: Mapping[str, TopicLog],
    latest: bool,
) -> Resumption:
    """See the module's docstring.  ``logs``: all topics that are sources; ``latest``: begin at the end."""
    known = record.read if record is not None else {}
    ids: dict[str, str] = {}
    ranges: dict[TopicPartition, tuple[int, int]] = {}
    conflicts: list[Conflict] = []
    for topic, log in logs.items():
        read = known.get(topic)
        ids[topic] = log.id or (read.id if read is not None else "")
        was_read = read.ranges if read is not None and _same(read.id, log.id) else {}
        for partition in sorted({*log.bounds, *was_read}):
            bounds = log.bounds.get(partition, NO_LOG)
            at = bounds[1] if record is None and latest else bounds[0]
            if read is not None and partition in read.ranges:
                conflict = _conflict(topic, partition, read, log)
                conflicts += [conflict] if conflict is not None else []
                at = read.ranges[partition][1] if conflict is None else conflict.resumed or 0
            ranges[TopicPartition(topic, partition)] = (at, at)
    kept = {topic: _continued(read) for topic, read in known.items() if topic not in logs}
    begun = BatchRecord(
        record.batch if record is not None else BEGINNING,
        record.run if record is not None else "",
        record.cores if record is not None else 0,
        {**kept, **topics_read(ids, ranges)},
        record.tables if record is not None else {},
        record.dead if record is not None else None,
    )
    found = unfinished or plan
    replay = _repeated(found, record, begun, logs) if found is not None and record is not None else None
    if unfinished is not None and replay is None:
        conflicts += _not_repeatable(unfinished, logs)
    return Resumption(begun, replay, record is None, tuple(conflicts))


def _same(known: str, now: str) -> bool:
    return known == now or not known or not now


def _conflict(topic: str, partition: int, read: TopicRead, log: TopicLog) -> Conflict | None:
    stored = read.ranges[partition][1]
    start, end = bounds = log.bounds.get(partition, NO_LOG)
    if not _same(read.id, log.id):
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


def _repeated(
    plan: BatchRecord, record: BatchRecord, begun: BatchRecord, logs: Mapping[str, TopicLog]
) -> BatchRecord | None:
    """The plan, with the present ranges of what it does not read; None if it cannot be repeated."""
    if plan.batch != record.batch + 1:
        return None
    known, ends = record.ends, begun.ends
    ranges = dict(begun.ranges())
    for key, (first, end) in plan.ranges():
        if first == end:
            continue
        log = logs.get(key[0])
        start, stop = log.bounds.get(key[1], NO_LOG) if log is not None else NO_LOG
        if log is None or not _same(plan.read[key[0]].id, log.id) or not start <= first <= end <= stop:
            return None
        if key in known and first != ends[key]:
            return None
        ranges[key] = (first, end)
    ids = {topic: read.id for topic, read in begun.read.items()}
    return BatchRecord(plan.batch, plan.run, plan.cores, topics_read(ids, ranges), dead=plan.dead)


def _not_repeatable(unfinished: BatchRecord, logs: Mapping[str, TopicLog]) -> list[Conflict]:
    what = (
        f"micro-batch {unfinished.batch} is in some of the Delta tables and not in events, and its lines are gone: "
        f"restore all tables to their versions before it, or begin another output"
    )
    return [
        Conflict(
            topic, partition, end, logs[topic].bounds.get(partition, NO_LOG) if topic in logs else NO_LOG, what, None
        )
        for (topic, partition), (first, end) in unfinished.ranges()
        if first < end
    ]


def next_plan(last: BatchRecord, heads: Positions, bytes_max: int, run: str) -> BatchRecord | None:
    """The next micro-batch: at most ``bytes_max`` bytes (0: no limit) up to ``heads``.  None: there is nothing to read.

    ``last``: what :func:`decide` returns as ``begun``, so it has every partition of ``heads``.
    """
    starts = last.ends
    reached = advance(starts, {key: max(starts[key], head) for key, head in heads.items()}, bytes_max)
    if reached == starts:
        return None
    ids = {topic: read.id for topic, read in last.read.items()}
    return BatchRecord(last.batch + 1, run, 0, topics_read(ids, {key: (starts[key], reached[key]) for key in starts}))
