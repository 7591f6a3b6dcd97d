"""Repairs a damaged log so that it opens again, and keeps everything that is not damaged, with its offsets.

What is done with a stretch of damaged bytes, in this order::

    one bit of a batch is flipped                   it is put back (``mending``)
    a write that a crash tore, behind the trusted   left to recovery, which truncates it
    point
    anything else                                   holes take its place (``records.holes``): batches without messages
                                                    that have the same length, so all offsets behind it stay
    the same, with ``cut``                          the log ends there

Bytes that are missing count as damaged: those of a lost segment, and those of a file that became shorter.  Where the
first segments are lost, nothing stands before them, and the log starts later.

The damaged bytes are kept beside the segment before they are changed, as ``<name>.damaged-<position>``, and what is
cut off as ``<name>.cut-<position>``.  Repairing needs the log for itself: no writer may have it open.  It may be
interrupted at any instruction and run again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Final, NamedTuple

from ..durable_files import File, System, copy_range, sync_directory, write_at
from ..errors import InvalidRequest
from ..records.batch import EMPTIED, HEADER_BYTES, LENGTH_AT, LENGTH_END, read_header
from ..records.holes import emptied, holes
from . import files
from .aborted_check import AbortedCheck
from .compaction import CompactionState
from .files import COMPACTION_STATE, index_path, log_path
from .index import ENTRY_BYTES
from .mending import mended
from .partition_directory import claim
from .recovery import BORN_MS, MARKER_NAME, Point, Recovered, RecoveryPoint, loss_of, recover, truncated_path
from .segment import Segment, has_header, read_into
from .tools import INDEX, Damage, DumpedBatch, Report, go_through, is_torn, trusted_end, verify
from .transactions import SUFFIX as ABORTED_SUFFIX
from .transactions import Aborted, AbortedIndex, aborted_path, read_aborted

INTERVAL_BYTES: Final = 4096
MISSING_BYTES_MAX: Final = 1 << 36
"""More missing bytes than these are not filled: then rather the recovery point is wrong."""
_NOWHERE: Final = (0, 0)
"""No boot of a machine."""


class Repaired(NamedTuple):
    """What was done, or would be: ``actions`` as texts; offsets of the log; how many bytes became holes, were cut."""

    actions: list[str]
    start: int
    end: int
    hole_bytes: int
    cut_bytes: int


def repair(
    directory: Path, interval_bytes: int = INTERVAL_BYTES, *, cut: bool = False, dry_run: bool = False
) -> Repaired:
    """Repair the log in ``directory``; see the module's docstring.

    Args:
        interval_bytes: the distance between new index entries.
        cut: end the log at the first damage that cannot be mended, instead of filling it.
        dry_run: only say what would be done.

    Raises:
        InvalidRequest: there is nothing to repair, or too much is missing.
        StorageFault, OSError: the disk fails.
    """
    report = verify(directory)
    if report.sound:
        raise InvalidRequest(f"{directory}: nothing to repair")
    return _Repair(directory, report, cut, dry_run).run(interval_bytes)


def begin_again(directory: Path, topic_id: str, base: int, born_ms: int, *, dry_run: bool = False) -> Repaired:
    """Make an empty log in the place of one that is lost as a whole (:func:`.recovery.loss_of`).

    Args:
        base: its first offset: not below the end that the lost one had, where that is known, so that no offset of a
            reader leads to other messages.

    Raises:
        StorageFault, OSError: the disk fails.
    """
    before = f"all messages before offset {base}" if base else "all its messages"
    action = f"{directory}: {loss_of(directory)}: {before} are lost; an empty log begins at offset {base}"
    if not dry_run:
        claim(directory, topic_id)
        Segment.create(directory, base, 0, born_ms, System())
        point = RecoveryPoint(directory)
        point.begin(_NOWHERE, base, base, born_ms)
        point.sync()
        point.close()
        sync_directory(directory)
    return Repaired([action], base, base, 0, 0)


class _Repair:
    """One run.  With ``dry_run`` it takes the same decisions, from the same reads, and changes nothing."""

    def __init__(self, directory: Path, report: Report, cut: bool, dry_run: bool) -> None:
        self._directory = directory
        self._report = report
        self._cut = cut
        self._dry_run = dry_run
        self._trusted = trusted_end(directory)
        self._actions: list[str] = []
        self._hole_bytes = self._cut_bytes = 0

    def run(self, interval_bytes: int) -> Repaired:
        directory = self._directory
        point = Point.read(directory)
        born_ms = point.cells[BORN_MS] if point.valid else 0
        bases = list(files.sizes(directory)[0]) or [self._make_segment(born_ms)]
        self._remove(directory / MARKER_NAME)
        if self._cut and not self._dry_run and (directory / COMPACTION_STATE).exists():
            state = CompactionState.load(directory)
            state.cut(self._report.end)
            state.store(directory)
        start = max(point.start or 0, bases[0])
        if bases[0] > (point.start or 0):
            self._actions.append(f"{directory}: the log starts at offset {bases[0]}")
        for problem in self._report.problems:
            if problem.kind == INDEX:
                self._shorten_index(problem.path)
                self._actions.append(f"{problem.path}: is rebuilt")
            elif problem.path.suffix == ABORTED_SUFFIX:
                self._actions.append(f"{problem.path}: is written again")
        end = bases[0]
        for base, following in zip_longest(bases, bases[1:]):
            if base != end:  # cut before
                self._set_aside(base)
            else:
                end = self._segment(base, following)
        if not self._dry_run:
            log = self._reopen(min(start, end), end, born_ms, interval_bytes)
            start, end = log.start, log.state.end
            self._write_aborted(log.bases, end)
        return Repaired(self._actions, min(start, end), end, self._hole_bytes, self._cut_bytes)

    def _make_segment(self, born_ms: int) -> int:
        base = max(self._report.start, self._trusted or 0)
        self._actions.append(f"{log_path(self._directory, base)}: is made, empty: no segment was left")
        if not self._dry_run:
            Segment.create(self._directory, base, 0, born_ms, System())
        return base

    def _reopen(self, start: int, end: int, born_ms: int, interval_bytes: int) -> Recovered:
        """Set the trusted point to ``end`` and run recovery."""
        directory = self._directory
        point = RecoveryPoint(directory)
        point.begin(_NOWHERE, end, start, born_ms)
        recovered = recover(directory, point, _NOWHERE, interval_bytes, born_ms)
        for file in recovered.touched:
            os.fdatasync(file.fd)
        sync_directory(directory)
        point.begin(_NOWHERE, recovered.state.end, recovered.start, born_ms)
        point.sync()
        point.close()
        return recovered

    def _write_aborted(self, bases: list[int], end: int) -> None:
        """Let the indexes of aborted transactions say what the batches say."""
        directory, check = self._directory, AbortedCheck()
        for base, limit in pairwise([*bases, end]):
            for item in go_through(log_path(directory, base), base, 0, limit - base):
                if isinstance(item, DumpedBatch):
                    check.batch(base + item.position, item.header, item.data)
        right: list[Aborted] = []
        for base, limit in pairwise([*bases, end]):
            right += check.right(base, limit, read_aborted(aborted_path(directory, base)))
        index = AbortedIndex(directory)
        index.restore(bases, end, 0, right)
        index.sync()

    # ---- one segment

    def _segment(self, base: int, following: int | None) -> int:
        """Repair the segment at ``base``.  Returns the offset up to which it is valid."""
        path = log_path(self._directory, base)
        size = path.stat().st_size if path.exists() else 0  # a dry run has not made it
        stop = size if following is None else min(size, following - base)
        position = 0
        for damage in self._damages(path, base, stop) if stop else ():
            position = damage.position
            if is_torn(damage, base, stop, following, self._trusted):
                return base + position
            if self._cut:
                return base + self._truncate(path, position, size, damage.reason)
            if damage.stop == stop:
                break  # as far as the end of the file, or of the log
            self._fill(path, base, damage.position, damage.stop, size, damage.reason)
        else:
            damage = Damage(path, stop, stop, "the file ends before its next segment starts")
        return self._end(path, base, damage, size, following)

    def _damages(self, path: Path, base: int, stop: int) -> Iterator[Damage]:
        """The damage of a segment, in order, without what can be mended: that is mended first."""
        position: int | None = 0
        while position is not None:
            damages = (item for item in go_through(path, base, position, stop) if isinstance(item, Damage))
            damage, position = next(damages, None), None
            if damage is not None:
                mended_bytes = self._mend(path, base, damage, stop)
                position = damage.position + mended_bytes if mended_bytes else damage.stop
                if not mended_bytes:
                    yield damage

    def _end(self, path: Path, base: int, damage: Damage, size: int, following: int | None) -> int:
        """Let the segment end where the next one starts, or where the log has to end."""
        end = base + (size if following is None else following - base)
        if following is None and self._trusted is not None:
            end = max(end, self._trusted)
        position = damage.position
        if size > end - base:
            self._actions.append(f"{path}: is cut at {end - base}, where the next segment starts")
            if not self._dry_run:
                self._keep(path, end - base, size, "cut")
                self._own(path)
                os.truncate(path, end - base)
        if base + position == end:
            return end
        if self._cut:
            return base + self._truncate(path, position, size, damage.reason)
        reason = damage.reason
        if following is None and position == size:
            reason = f"the log ended at offset {base + position}, but was valid up to {end}"
        end = max(end, base + position + HEADER_BYTES) if following is None else end
        self._fill(path, base, position, end - base, size, reason)
        return end

    def _mend(self, path: Path, base: int, damage: Damage, stop: int) -> int:
        """Correct a damaged batch in the file.  Returns its size, 0 when that is not possible."""
        file = File(path)
        position = damage.position
        header = os.pread(file.fd, HEADER_BYTES, position)
        own_size = LENGTH_END + int.from_bytes(header[LENGTH_AT:LENGTH_END], "big", signed=True)
        for size in dict.fromkeys((own_size, damage.stop - position)):
            if not HEADER_BYTES <= size <= stop - position:
                continue
            data = memoryview(bytearray(size))
            if read_into(file, data, position, stop) == size and mended(data, base + position):
                self._actions.append(f"{path}: one bit of the batch at {position} is put back: {damage.reason}")
                if not self._dry_run:
                    self._keep(path, position, position + size, "damaged")
                    self._own(path)
                    # Nobody has compared it: what it has to say was not sure while the segment was damaged.
                    self._shorten_index(index_path(self._directory, base))
                    target = File(path, os.O_RDWR)
                    write_at(target.fd, data, position)
                    os.fsync(target.fd)
                return size
        return 0

    def _fill(self, path: Path, base: int, position: int, stop: int, size: int, reason: str) -> None:
        """Put holes into [position, stop) of a segment file of ``size`` bytes."""
        if stop - max(size, position) > MISSING_BYTES_MAX:
            raise InvalidRequest(
                f"{path}: the {stop - size} bytes from offset {base + size} on are missing, which is too much to fill:"
                " put the missing files back, or end the log there with --cut"
            )
        if stop - position < HEADER_BYTES:
            raise InvalidRequest(f"{path}: {stop - position} bytes at {position} are too few for a batch: use --cut")
        self._hole_bytes += stop - position
        self._actions.append(f"{path}: {stop - position} bytes at {position} become a hole: {reason}")
        if self._dry_run:
            return
        self._keep(path, position, min(stop, size), "damaged")
        self._own(path)
        self._shorten_index(index_path(self._directory, base))
        if stop > size:
            os.truncate(path, stop)
        file = File(path, os.O_RDWR)
        gap = _gap(file, base, position, stop)
        fill = holes(base + position, stop - position, reason)
        if gap is not None:
            fill = emptied(base + position, stop - position, gap, reason)
        for batch in fill:
            # The zeros at the end of a hole that is behind the end of the file need no blocks on the disk.
            write_at(file.fd, batch if position < size else batch.rstrip(b"\0"), position)
            position += len(batch)
        os.fsync(file.fd)

    def _truncate(self, path: Path, position: int, size: int, reason: str) -> int:
        self._cut_bytes += size - position
        self._actions.append(f"{path}: is cut at {position}, {size - position} bytes go: {reason}")
        if not self._dry_run:
            self._keep(path, position, size, "cut")
            self._own(path)
            self._shorten_index(path.with_suffix(files.INDEX_SUFFIX))
            os.truncate(path, position)
        return position

    # ---- files

    def _set_aside(self, base: int) -> None:
        path = log_path(self._directory, base)
        kept = _free_name(truncated_path(self._directory, base, 0))
        self._cut_bytes += path.stat().st_size
        self._actions.append(f"{path}: leaves the log, which is cut before it; kept as {kept.name}")
        if not self._dry_run:
            path.rename(kept)
            self._remove(index_path(self._directory, base))

    def _keep(self, path: Path, position: int, stop: int, why: str) -> None:
        """Copy the bytes [position, stop) of a segment file to an unused name, durably."""
        if stop > position:
            kept = _free_name(path.with_name(f"{path.name}.{why}-{position}"))
            copy_range(File(path), position, stop, kept)
            sync_directory(self._directory)
            self._actions.append(f"{path}: the bytes {position} to {stop} are kept as {kept.name}")

    def _own(self, path: Path) -> None:
        """Take a copy of a file that a backup shares with the log, before it is changed."""
        if path.stat().st_nlink > 1:
            temporary = path.with_name(f"{path.name}.tmp")
            copy_range(File(path), 0, path.stat().st_size, temporary)
            temporary.rename(path)
            sync_directory(self._directory)

    def _shorten_index(self, path: Path) -> None:
        """Truncate an index to its first entry.  Recovery can rebuild all but that: the number of records before."""
        if not self._dry_run and path.exists() and path.stat().st_size > ENTRY_BYTES:
            self._own(path)
            os.truncate(path, ENTRY_BYTES)

    def _remove(self, path: Path) -> None:
        if not self._dry_run:
            path.unlink(missing_ok=True)


def _gap(file: File, base: int, position: int, stop: int) -> int | None:
    """The offset of holes in [position, stop), if those of the batch behind them reach into it; None if they do not.

    Compaction has emptied bytes there.  Readers go on behind the offset of a hole, so it has to be before the others.
    """
    if not has_header(file, base, stop, os.fstat(file.fd).st_size):
        return None
    header = os.pread(file.fd, HEADER_BYTES, stop)
    first = int.from_bytes(header[:LENGTH_AT], "big")
    if first >= base + stop:
        return None
    is_emptied = read_header(header, 0).attributes == EMPTIED  # of the same gap
    return min(base + position, first if is_emptied else max(base, first - 1))


def _free_name(path: Path) -> Path:
    name, number = path, 2
    while name.exists():
        name, number = path.with_name(f"{path.name}-{number}"), number + 1
    return name
