"""Dumps, verifies and repairs a log for an operator, from its files alone.  Returns values and prints nothing.

:func:`dump` and :func:`verify` only read, and work while the log is being written.  A bad batch above the trusted point
may be a write in progress: it is called *torn* and is no fault.  :func:`repair` needs the log for itself.

Repair mends a batch only where no guess is needed.  A batch is redundant: its position gives its base offset, the start
of the next batch gives its length, and its checksum covers the rest.  So a single flipped bit anywhere in it is found
and corrected (CRC32C distinguishes all errors of one and of two bits).  The log is truncated at a batch that cannot be
mended, since offsets are positions.  A segment file is kept as ``<name>.broken``
before it is changed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from ..errors import ClientFault, CorruptLog, InvalidRequest
from ..records.batch import (
    ATTRIBUTES_AT,
    COUNT_AT,
    CRC_AT,
    HEADER_BYTES,
    LENGTH_AT,
    LENGTH_END,
    MAGIC,
    MAGIC_AT,
    BatchInfo,
    check,
    place,
)
from . import files
from .files import File, System, index_path, log_path
from .index import ENTRY_BYTES, Builder, ends
from .reader import FileCache, LogReader
from .recovery import (
    BORN_MS,
    MARKER_NAME,
    POINT_NAME,
    Marker,
    Point,
    Recovered,
    RecoveryPoint,
    boot_id,
    read_index,
    recover,
)
from .segment import SIZE_MAX, Segment, find_valid, read_into, scan

CORRUPT: Final = "corrupt"
TORN: Final = "torn"
INDEX: Final = "index"
MEND_BYTES_MAX: Final = 4 << 20
"""Largest batch in which a flipped bit is searched: the search takes a second per MiB."""
POLYNOMIAL: Final = 0x82F63B78
"""The reflected polynomial of CRC32C."""
INTERVAL_BYTES: Final = 4096


class Batch(NamedTuple):
    """A valid batch: its place and its bytes.  The next step of the iteration may overwrite the bytes."""

    path: Path
    position: int
    offset: int  # of its first record
    info: BatchInfo
    data: memoryview


class Damage(NamedTuple):
    """Bytes in [position, stop) that are not valid batches."""

    path: Path
    position: int
    stop: int
    reason: str


class Problem(NamedTuple):
    """A problem of a log.

    ``kind``: CORRUPT: the log cannot be served; TORN: truncated at the next start; INDEX: rebuilt by repair.
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
    batches: int
    records: int  # found
    problems: list[Problem]

    @property
    def sound(self) -> bool:
        """Whether :func:`repair` has nothing to do: the next start truncates a torn tail."""
        return all(problem.kind == TORN for problem in self.problems)


class Repaired(NamedTuple):
    actions: list[str]
    start: int
    end: int


def go_through(path: Path, base: int, position: int, stop: int) -> Iterator[Batch | Damage]:
    """Yields every batch in [position, stop) of the segment at ``path``, and the damage between them."""
    file = File(path)
    while position < stop:
        try:
            for at, info, data in scan(file, base, position, stop):
                yield Batch(path, at, base + at + info.size - info.count, info, data)
            return
        except CorruptLog as error:
            following = find_valid(file, base, error.position, stop)
            yield Damage(path, error.position, stop if following is None else following, error.reason)
            position = stop if following is None else following


def dump(directory: Path, offset: int = 0) -> Iterator[Batch | Damage]:
    """Yields every batch, from the one that contains ``offset`` on, and the damage between them."""
    logs, _ = files.sizes(directory)
    for base, size in logs.items():
        if base + size > offset:
            position = _batch_at(directory, base, base + size, offset) if offset > base else 0
            yield from go_through(log_path(directory, base), base, position, size)


def _batch_at(directory: Path, base: int, end: int, offset: int) -> int:
    """Position of the batch that contains ``offset``; 0 when damage hides it."""
    try:
        found = LogReader(directory, FileCache(2)).locate([base], end, offset, 1)
    except CorruptLog:
        return 0
    return found.position if found is not None else 0


def is_partition(directory: Path) -> bool:
    """Whether the directory holds a log, or files of one."""
    names = {path.name for path in directory.iterdir()}
    return bool(names & {POINT_NAME, MARKER_NAME}) or any(Path(name).suffix == files.LOG_SUFFIX for name in names)


# ---- verify


def verify(directory: Path) -> Report:
    """Check every byte of the log and of its index files.

    Raises:
        FileNotFoundError: there is no such directory.
        StorageFault: a file cannot be read.
    """
    bases = list(files.sizes(directory)[0])
    trusted = _trusted(directory)
    start = Point.read(directory).start
    if start is None:
        start = bases[0] if bases else 0
    problems: list[Problem] = []
    if bases[0] > start if bases else trusted:
        problems.append(Problem(CORRUPT, log_path(directory, start), 0, "this segment is missing"))
    end, whole = bases[0] if bases else 0, True
    batches, records, before = 0, 0, 0
    for base, following in zip_longest(bases, bases[1:]):
        if not whole or base == bases[0]:
            first = ends(index_path(directory, base))
            before = first[0].records if base and first is not None and first[0].offset == base else before
        seen = _verify_segment(directory, base, following, before, trusted)
        problems += seen.problems
        batches, records, before = batches + seen.batches, records + seen.records, before + seen.records
        if whole:
            end = seen.end
        whole = whole and seen.end == following
    if bases and trusted is not None and end < trusted and all(problem.kind != CORRUPT for problem in problems):
        reason = f"the log ends at offset {end}, but was valid up to {trusted}"
        problems.append(Problem(CORRUPT, log_path(directory, bases[-1]), end - bases[-1], reason))
    return Report(directory, len(bases), min(max([start, *bases[:1]]), end), end, batches, records, problems)


def _trusted(directory: Path) -> int | None:
    """Offset up to which the log must be valid; None when it is not known."""
    marker = Marker.load(directory)
    return marker.state.end if marker is not None else Point.read(directory).trusted(boot_id())


class _Seen(NamedTuple):
    problems: list[Problem]
    end: int  # offset up to which the segment is valid
    batches: int
    records: int


def _verify_segment(directory: Path, base: int, following: int | None, before: int, trusted: int | None) -> _Seen:
    """Check the segment at ``base``; ``before`` records come before it."""
    path = log_path(directory, base)
    # The index is read before the log, so all its entries are in the log.  Only existing entries are checked.
    builder = Builder(read_index(directory, base), base, before, 1 << 62)
    size = path.stat().st_size
    stop = size if following is None else min(size, following - base)
    problems: list[Problem] = []
    batches = records = 0
    for found in go_through(path, base, 0, stop):
        if isinstance(found, Batch):
            batches += 1
            records += found.info.count
            builder.batch(found.info.size, found.info.count, found.info.max_timestamp)
        else:
            kind = TORN if _is_torn(found, base, stop, following, trusted) else CORRUPT
            problems.append(Problem(kind, path, found.position, found.reason))
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
    return _Seen(problems, end, batches, records)


def _is_torn(damage: Damage, base: int, stop: int, following: int | None, trusted: int | None) -> bool:
    """Whether recovery would truncate the damage as a torn write."""
    if trusted is not None:
        return base + damage.position >= trusted
    return following is None and damage.stop == stop


# ---- repair


def repair(directory: Path, interval_bytes: int = INTERVAL_BYTES) -> Repaired:
    """Mend damaged batches, or truncate the log where that is not possible, so that it opens again.

    ``interval_bytes`` is the distance between new index entries.

    Raises:
        InvalidRequest: there is nothing to repair.
        StorageFault: the disk fails.
    """
    report = verify(directory)
    if report.sound:
        raise InvalidRequest(f"{directory}: nothing to repair")
    point, trusted = Point.read(directory), _trusted(directory)
    born_ms = point.cells[BORN_MS] if point.valid else 0
    actions: list[str] = []
    (directory / MARKER_NAME).unlink(missing_ok=True)
    bases = list(files.sizes(directory)[0])
    if not bases:
        bases = [max(report.start, trusted or 0)]
        Segment.create(directory, bases[0], 0, born_ms, System())
        actions.append(f"{log_path(directory, bases[0])}: made, empty: no segment was left")
    start = max(point.start or 0, bases[0])
    if bases[0] > (point.start or 0):
        actions.append(f"{directory}: now starts at offset {bases[0]}")
    for problem in report.problems:
        if problem.kind == INDEX:
            _shorten_index(problem.path)
            actions.append(f"{problem.path}: rebuilt")
    end = bases[0]
    for number, base in enumerate(bases):
        if base != end:
            for later in bases[number:]:
                actions.append(_set_aside(directory, later))
            break
        following = bases[number + 1] if number + 1 < len(bases) else None
        end = _repair_segment(directory, base, following, trusted, actions)
    found = _reopen(directory, min(start, end), end, born_ms, interval_bytes)
    return Repaired(actions, found.start, found.state.end)


def _reopen(directory: Path, start: int, end: int, born_ms: int, interval_bytes: int) -> Recovered:
    """Set the trusted point to ``end`` and run recovery."""
    nowhere = (0, 0)
    point = RecoveryPoint(directory)
    point.begin(nowhere, end, start, born_ms)
    found = recover(directory, point, nowhere, interval_bytes, born_ms)
    for file in found.touched:
        os.fdatasync(file.fd)
    files.sync_directory(directory)
    point.begin(nowhere, found.state.end, found.start, born_ms)
    point.sync()
    point.close()
    return found


def _repair_segment(directory: Path, base: int, following: int | None, trusted: int | None, actions: list[str]) -> int:
    """Mend or truncate the segment at ``base``.  Returns the offset up to which it is valid."""
    path = log_path(directory, base)
    size = path.stat().st_size
    stop = size if following is None else min(size, following - base)
    position, kept = 0, False
    while (damage := _first_damage(path, base, position, stop)) is not None:
        position = damage.position
        if _is_torn(damage, base, stop, following, trusted):
            return base + position
        if not kept:
            actions.append(f"{path}: kept as {_keep(path).name}")
            kept = True
        if not _mend(path, base, damage, stop):
            actions.append(f"{path}: truncated at {position}, {size - position} bytes removed: {damage.reason}")
            _shorten_index(index_path(directory, base))
            os.truncate(path, position)
            return base + position
        actions.append(f"{path}: mended the batch at {position}: {damage.reason}")
    if size > stop:
        if not kept:
            actions.append(f"{path}: kept as {_keep(path).name}")
        actions.append(f"{path}: truncated at {stop}, where the next segment starts")
        os.truncate(path, stop)
    return base + stop


def _first_damage(path: Path, base: int, position: int, stop: int) -> Damage | None:
    return next((found for found in go_through(path, base, position, stop) if isinstance(found, Damage)), None)


def _mend(path: Path, base: int, damage: Damage, stop: int) -> bool:
    """Correct a damaged batch in the file.  Returns whether that was possible."""
    file = File(path, os.O_RDWR)
    position = damage.position
    header = os.pread(file.fd, HEADER_BYTES, position)
    own_size = LENGTH_END + int.from_bytes(header[LENGTH_AT:LENGTH_END], "big", signed=True)
    for size in dict.fromkeys((own_size, damage.stop - position)):
        if not HEADER_BYTES <= size <= stop - position:
            continue
        data = memoryview(bytearray(size))
        if read_into(file, data, position, stop) == size and mended(data, base + position):
            files.write_at(file.fd, data, position)
            os.fsync(file.fd)
            return True
    return False


def mended(batch: memoryview, offset: int) -> bool:
    """Correct ``batch``, of this length and at ``offset`` of its log, if at most one bit is flipped.

    Errors in base offset, length and magic are corrected in any case: these follow from the place of the batch.

    Returns:
        Whether ``batch`` is valid now.
    """
    size = len(batch)
    batch[LENGTH_AT:LENGTH_END] = (size - LENGTH_END).to_bytes(4, "big")
    batch[MAGIC_AT] = MAGIC
    actual = crc32c(batch[ATTRIBUTES_AT:])
    difference = actual ^ int.from_bytes(batch[CRC_AT:ATTRIBUTES_AT], "big")
    if difference.bit_count() == 1:  # in the checksum itself
        batch[CRC_AT:ATTRIBUTES_AT] = actual.to_bytes(4, "big")
    elif difference:
        flipped = flipped_bit(difference, size - ATTRIBUTES_AT) if size <= MEND_BYTES_MAX else None
        if flipped is None:
            return False
        batch[ATTRIBUTES_AT + flipped[0]] ^= 1 << flipped[1]
    count = int.from_bytes(batch[COUNT_AT:HEADER_BYTES], "big")
    if not 1 <= count <= size:
        return False
    place(batch, 0, offset, size, count)
    try:
        check(batch, 0, size, SIZE_MAX)
    except ClientFault:
        return False
    return True


def flipped_bit(difference: int, size: int) -> tuple[int, int] | None:
    """Find the bit whose flip changes the CRC32C of ``size`` bytes by ``difference``.

    The checksum is linear.  So the flip of a bit changes it by the value of a register that starts at 1 and takes one
    step for each bit that follows.

    Returns:
        The index of the byte and of the bit in it; None when there is no such bit.
    """
    register = 1
    for steps in range(1, 8 * size + 1):
        register = register >> 1 ^ POLYNOMIAL if register & 1 else register >> 1
        if register == difference:
            byte = size - (steps + 7) // 8
            return byte, 8 * (size - byte) - steps
    return None


def _keep(path: Path) -> Path:
    """Copy a file to an unused name."""
    kept = _free_name(path)
    shutil.copyfile(path, kept)
    return kept


def _set_aside(directory: Path, base: int) -> str:
    path = log_path(directory, base)
    kept = _free_name(path)
    path.rename(kept)
    index_path(directory, base).unlink(missing_ok=True)
    return f"{path}: removed from the log, since bytes before it are missing; kept as {kept.name}"


def _free_name(path: Path) -> Path:
    name, number = path.with_name(path.name + ".broken"), 2
    while name.exists():
        name, number = path.with_name(f"{path.name}.broken-{number}"), number + 1
    return name


def _shorten_index(path: Path) -> None:
    """Truncate an index to its first entry.  Recovery can rebuild all but that: the number of records before."""
    if path.exists() and path.stat().st_size > ENTRY_BYTES:
        os.truncate(path, ENTRY_BYTES)
