"""Dumps and verifies a log for an operator, from its files alone.  Returns values, prints and changes nothing.

Both work while the log is being written.  A bad batch above the trusted point may be a write in progress: it is called
*torn* and is no fault.  :mod:`.repair` mends what is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Final, NamedTuple

from ..durable_files import File
from ..errors import CorruptLog
from ..records.batch import CONTROL, EMPTIED, BatchHeader
from ..records.markers import is_marker
from . import files
from .aborted_check import AbortedCheck
from .files import index_path, log_path
from .index import ANY_INTERVAL, Builder, ends
from .reader import FileCache, LogReader
from .recovery import (
    BORN_MS,
    HIGH_WATERMARK,
    MARKER_NAME,
    POINT_NAME,
    CleanMarker,
    Derived,
    Point,
    boot_id,
    counts_before,
    read_index,
)
from .segment import SegmentState, find_valid, scan
from .transactions import aborted_path

CORRUPT: Final = "corrupt"
TORN: Final = "torn"
INDEX: Final = "index"
DERIVED: Final = "derived"


class DumpedBatch(NamedTuple):
    """A valid batch: its place and its bytes.  The next step of the iteration may overwrite the bytes."""

    path: Path
    position: int
    offset: int  # of its first record
    header: BatchHeader
    data: memoryview

    @property
    def is_hole(self) -> bool:
        """Whether repair has put it in the place of a damaged one (``records.holes``)."""
        return self.header.attributes == CONTROL

    @property
    def is_marker(self) -> bool:
        """Whether it ends a transaction (``records.markers``)."""
        return is_marker(self.header)

    @property
    def is_emptied(self) -> bool:
        """Whether compaction has left it in the place of messages."""
        return self.header.attributes == EMPTIED


class Damage(NamedTuple):
    """Bytes in [position, stop) that are not valid batches."""

    path: Path
    position: int
    stop: int
    reason: str


class Problem(NamedTuple):
    """A problem of a log.

    ``kind``: CORRUPT: the log cannot be served; TORN: truncated at the next start; INDEX: rebuilt by repair; DERIVED:
    what is known of the log contradicts its batches, and is derived again by repair.
    """

    kind: str
    path: Path
    position: int
    reason: str


class Report(NamedTuple):
    path: Path
    segments: int
    start: int
    end: int  # offset up to which the log is valid without a gap
    batches: int  # found, with holes
    records: int  # found, without markers
    holes: int  # batches that repair has put in the place of damaged ones
    problems: list[Problem]

    @property
    def sound(self) -> bool:
        """Whether repair has nothing to do: the next start truncates a torn tail."""
        return all(problem.kind == TORN for problem in self.problems)


def go_through(path: Path, base: int, position: int, stop: int) -> Iterator[DumpedBatch | Damage]:
    """Yields every batch in [position, stop) of the segment at ``path``, and the damage between them."""
    file = File(path)
    while position < stop:
        try:
            for at, header, data in scan(file, base, position, stop):
                yield DumpedBatch(path, at, base + at + header.size - header.span, header, data)
            return
        except CorruptLog as error:
            following = find_valid(file, base, error.position, stop)
            yield Damage(path, error.position, stop if following is None else following, error.reason)
            position = stop if following is None else following


def dump(directory: Path, offset: int = 0) -> Iterator[DumpedBatch | Damage]:
    """Yields every batch, from the one that contains ``offset`` on, and the damage between them."""
    logs, _ = files.sizes(directory)
    for base, size in logs.items():
        if base + size > offset:
            position = _batch_at(directory, base, base + size, offset) if offset > base else 0
            yield from go_through(log_path(directory, base), base, position, size)


def _batch_at(directory: Path, base: int, end: int, offset: int) -> int:
    """Position of the batch that contains ``offset``; 0 when damage hides it."""
    try:
        piece = LogReader(directory, FileCache(2)).locate([base], end, offset, 1)
    except CorruptLog:
        return 0
    return piece.position if piece is not None else 0


def is_partition(directory: Path) -> bool:
    """Whether the directory holds a log, or files of one."""
    names = {path.name for path in directory.iterdir()}
    return bool(names & {POINT_NAME, MARKER_NAME}) or any(Path(name).suffix == files.LOG_SUFFIX for name in names)


# ---- verify


def verify(directory: Path, derived: Derived | None = None, interval_bytes: int = ANY_INTERVAL) -> Report:
    """Check every byte of the log and of its index files, and compare what is known of it with what its files give.

    Args:
        derived: what the writer of the log knows of it, which writes nothing meanwhile; by default what the
            clean-shutdown marker says, if there is one.
        interval_bytes: the ``index.interval.bytes`` of all that was appended, if there was only one: then missing index
            entries are noticed, too.

    Raises:
        FileNotFoundError: there is no such directory.
        StorageFault: a file cannot be read.
    """
    retired = () if derived is None else derived.retired
    bases = [base for base in files.sizes(directory)[0] if base not in retired]
    trusted = trusted_end(directory)
    start = Point.read(directory).start
    if start is None:
        start = bases[0] if bases else 0
    problems: list[Problem] = []
    if bases[0] > start if bases else trusted:
        problems.append(Problem(CORRUPT, log_path(directory, start), 0, "this segment is missing"))
    end, whole = bases[0] if bases else 0, True
    batches, records, holes, before = 0, 0, 0, 0
    state: SegmentState | None = None
    check = AbortedCheck()
    for base, following in zip_longest(bases, bases[1:]):
        if not whole or base == bases[0]:
            first = ends(index_path(directory, base))
            if first is not None and first[0].offset == base and counts_before(directory, base):
                before = first[0].records
        seen = _verify_segment(directory, base, following, before, trusted, interval_bytes, check)
        problems += seen.problems
        batches, records, holes = batches + seen.batches, records + seen.records, holes + seen.holes
        before, state = seen.state.records, seen.state
        if whole:
            end = seen.end
        whole = whole and seen.end == following
    if bases and trusted is not None and end < trusted and all(problem.kind != CORRUPT for problem in problems):
        reason = f"the log ends at offset {end}, but was valid up to {trusted}"
        problems.append(Problem(CORRUPT, log_path(directory, bases[-1]), end - bases[-1], reason))
    if state is not None and not problems:
        problems += _contradictions(directory, bases, state, derived)
        problems += _check_transactions(directory, bases, state.end, check, derived is None and not holes)
    return Report(directory, len(bases), min(max([start, *bases[:1]]), end), end, batches, records, holes, problems)


def _contradictions(
    directory: Path, bases: list[int], state: SegmentState, derived: Derived | None
) -> Iterator[Problem]:
    """Compare what is known of a log without other problems with ``bases`` and ``state``, which its files give."""
    if derived is None:
        marker = CleanMarker.load(directory)
        if marker is None or marker.state.end != state.end:  # the log was written to meanwhile
            return
        if marker.state._replace(born_ms=0) != state:
            reason = f"it says {marker.state}, but the batches say {state}"
            yield Problem(DERIVED, directory / MARKER_NAME, 0, reason)
        return
    indexes = [base for base in files.sizes(directory)[1] if base not in derived.retired]
    point = Point.read(directory)
    stored = point.start, point.cells[HIGH_WATERMARK], point.flushed, point.cells[BORN_MS]
    for what, ours, theirs in (
        ("the segments are", list(derived.bases), bases),
        ("the index files are", list(derived.bases), indexes),
        ("the state is", derived.state._replace(born_ms=0), state),
        (
            "start, high watermark, flushed offset and creation are",
            (derived.start, derived.high_watermark, derived.flushed, derived.state.born_ms),
            stored,
        ),
        ("the log starts, is read up to, and ends at", *_ascending_offsets(bases[0], derived)),
    ):
        if ours != theirs:
            yield Problem(DERIVED, directory, 0, f"{what} {ours}, but {theirs} by the files")


def _check_transactions(
    directory: Path, bases: list[int], end: int, check: AbortedCheck, is_whole: bool
) -> Iterator[Problem]:
    """Compare the indexes of aborted transactions, and the marker's last stable offset, with the batches.

    ``is_whole``: no marker of a transaction has become a hole.
    """
    for base, limit in pairwise([*bases, end]):
        path = aborted_path(directory, base)
        entries, right = check.compare(path, base, limit, is_last=base == bases[-1])
        if entries != right:
            yield Problem(DERIVED, path, 0, f"it says {entries}, but the batches say {right}")
    stopped = CleanMarker.load(directory)
    if is_whole and stopped is not None and stopped.state.end == end:
        stable = check.transactions.stable(end)
        if stopped.stable > stable:
            reason = f"it says that the last stable offset is {stopped.stable}, but the batches say {stable}"
            yield Problem(DERIVED, directory / MARKER_NAME, 0, reason)


def _ascending_offsets(base: int, derived: Derived) -> tuple[list[int], list[int]]:
    """Offsets that must ascend, and the same sorted; the flushed offset may be anywhere below the end."""
    offsets = [base, derived.start, derived.high_watermark, derived.state.end]
    return [*offsets, derived.flushed], [*sorted(offsets), min(derived.flushed, derived.state.end)]


def trusted_end(directory: Path) -> int | None:
    """Offset up to which the log must be valid; None when it is not known."""
    marker, trusted = CleanMarker.load(directory), Point.read(directory).trusted(boot_id())
    return trusted if marker is None else max(trusted or 0, marker.state.end)


class _Seen(NamedTuple):
    problems: list[Problem]
    end: int  # offset up to which the segment is valid
    batches: int
    records: int
    holes: int
    state: SegmentState  # of an active segment with these batches; records are counted as in indexes: also of holes


def _verify_segment(
    directory: Path,
    base: int,
    following: int | None,
    before: int,
    trusted: int | None,
    interval_bytes: int,
    check: AbortedCheck,
) -> _Seen:
    """Check the segment at ``base``; ``before`` records come before it."""
    path = log_path(directory, base)
    # The index is read before the log, so all its entries are in the log.
    builder = Builder(read_index(directory, base), base, before, interval_bytes)
    size = path.stat().st_size
    stop = size if following is None else min(size, following - base)
    problems: list[Problem] = []
    batches = records = holes = 0
    for item in go_through(path, base, 0, stop):
        if isinstance(item, DumpedBatch):
            batches += 1
            if item.is_hole:
                holes += 1
            elif not (item.is_emptied or item.is_marker):
                records += item.header.count
            check.batch(base + item.position, item.header, item.data)
            builder.batch(item.header.size, item.header.count, item.header.max_timestamp)
        else:
            kind = TORN if is_torn(item, base, stop, following, trusted) else CORRUPT
            problems.append(Problem(kind, path, item.position, item.reason))
    end = base + min([stop, *(problem.position for problem in problems)])
    if not problems and (following is None or size >= stop):
        builder.finish(sealed=following is not None)
        if builder.wrong_at is not None:
            reason = "missing, short, or in contradiction to the log"
            problems.append(Problem(INDEX, index_path(directory, base), builder.wrong_at, reason))
    if following is not None and size != following - base:
        reason = f"the file has {size} bytes, but the next segment starts at {following - base}"
        torn = size == stop and trusted is not None and base + size >= trusted
        problems.append(Problem(TORN if torn else CORRUPT, path, stop, reason))
    state = SegmentState(builder.offset, builder.timestamp, builder.records, builder.size, builder.last, 0)
    return _Seen(problems, end, batches, records, holes, state)


def is_torn(damage: Damage, base: int, stop: int, following: int | None, trusted: int | None) -> bool:
    """Whether recovery would truncate the damage as a torn write."""
    if trusted is not None:
        return base + damage.position >= trusted
    return following is None and damage.stop == stop
