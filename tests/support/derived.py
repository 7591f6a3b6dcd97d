"""Compares what is derived of a partition with what its files give: derived is what recovery derives.

:func:`compare` reads all batches.  The model of a partition calls it after each operation (``test_derived.py``), and
every test that closes a log (``conftest.py``) or stops an appliance (``server.py``) in order does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from appliance.broker.sequences import ProducersSnapshot
from appliance.errors import ClientFault
from appliance.log import FileCache, Log, LogReader
from appliance.log.compaction import CompactionState, batches
from appliance.log.files import COMPACTION_STATE
from appliance.log.index import ANY_INTERVAL
from appliance.log.recovery import CleanMarker
from appliance.log.segment_list import headers_from
from appliance.log.tools import CORRUPT, verify
from appliance.processes.writer.producers import Producers, load, recovered
from appliance.records.batch import CONTROL
from appliance.records.holes import is_hole
from appliance.records.keyed import keyed_batch
from appliance.shared.table import SegmentTable


class Opened(NamedTuple):
    """A partition as its writer has it."""

    log: Log
    producers: Producers
    table: SegmentTable


def compare(
    directory: Path,
    opened: Opened | None = None,
    *,
    interval_bytes: int = ANY_INTERVAL,
    ids_max: int | None = None,
) -> list[str]:
    """All that is derived otherwise than recovery derives it, of a partition that is open or was closed in order.

    Nothing is compared where a log was not closed in order: what holds is what recovery will derive.

    Args:
        interval_bytes: the ``index.interval.bytes`` of all that was appended, if there was only one.
        ids_max: ``producers.ids_max``; None: not known.
    """
    marker = CleanMarker.load(directory)
    if opened is not None:
        known = opened.log.derived
        report = verify(directory, known, interval_bytes)
        bases, end = known.bases, known.state.end
    elif marker is not None:
        report = verify(directory, None, interval_bytes)
        bases, end = tuple(marker.bases), marker.state.end
    else:
        return []
    if opened is None and any(problem.kind == CORRUPT for problem in report.problems):
        return []  # somebody has harmed it: that is for its test to see
    found = [f"{problem.path}:{problem.position}: {problem.kind}: {problem.reason}" for problem in report.problems]
    if found:  # the rest follows from it
        return found
    found += _of_producers(directory, bases, end, opened, ids_max)
    found += _of_compaction(directory, bases, end)
    if opened is not None:
        found += _in_table(opened)
    return found


def _of_producers(
    directory: Path, bases: tuple[int, ...], end: int, opened: Opened | None, ids_max: int | None
) -> Iterator[str]:
    """What is known of idempotent producers in memory, or, when the partition is closed, in the snapshot."""
    stored = load(directory)
    if opened is not None:
        ours = opened.producers.sequences.snapshot(end)
        stored_end = -1 if stored is None else stored.end
        if stored_end < opened.producers.stored_end:  # a newer one may be there, if its name was not made durable
            yield f"the snapshot of producers ends at {stored_end}, not {opened.producers.stored_end}"
    elif stored is not None and stored.end == end:
        ours = stored
    else:
        return  # an older one is right, too: what is behind it is in the log
    if ids_max is None:
        ids_max = max(len(ours.entries), 1)  # if one was ever forgotten, there are as many as there may be
    sources: list[ProducersSnapshot | None] = []
    if stored is not None and stored.end >= bases[0]:
        sources.append(stored)
    holes = (is_hole(info) for info, _, _ in headers_from(directory, bases, end, bases[0]))
    if bases[0] == 0 and not (directory / COMPACTION_STATE).exists() and not any(holes):
        sources.append(None)  # no batch is gone, and none is a hole: the log alone says all
    for source in sources:
        theirs = recovered(directory, bases, end, source, ids_max)[0].snapshot(end)
        if ours != theirs:
            yield f"the producers are {ours}, but {theirs} by {'their snapshot and ' if source else ''}the log"


def _of_compaction(directory: Path, bases: tuple[int, ...], end: int) -> Iterator[str]:
    """What is kept of passes.  Nobody orders the pass that removes tombstones if there are said to be none."""
    state = CompactionState.load(directory)
    seen = [offset for offset, _ in state.passes]
    if seen != sorted(set(seen)) or not 0 <= max([0, *seen]) <= state.dirty_start <= end:
        yield f"compaction has come to {state.dirty_start} in passes that ended at {seen}, and the log ends at {end}"
    if state.tombstones:
        return
    for offset, header, data in batches(directory, bases, bases[0], min(state.dirty_start, bases[-1])):
        with suppress(ClientFault):  # no pass has read them, either
            valueless = keyed_batch(data, header, offset + header.size - header.span, 1 << 26).valueless
            if valueless and not header.attributes & CONTROL:
                yield f"compaction counts no tombstones, but the batch at {offset} has {len(valueless)}"


def _in_table(opened: Opened) -> Iterator[str]:
    """What readers see."""
    log, seen, counts = opened.log, opened.table.snapshot(), opened.table.counts()
    high_watermark = log.high_watermark
    _, records = LogReader(log.path, FileCache(2)).time_and_count(log.bases, high_watermark, high_watermark)
    ours = (*seen, counts.log_end, counts.records)
    stable = max(log.start, log.transactions.stable(high_watermark))
    theirs = (tuple(log.bases), log.start, high_watermark, stable, log.end_offset, records)
    if ours != theirs:
        yield f"the table has bases, start, high watermark, last stable offset, end, records {ours}, the log {theirs}"
