"""Reads a log slowly and compares all checksums, to find damage before a consumer does.

Data that is not in the page cache is read from the disk, and is dropped from the cache again: scrubbing costs neither
consumers their cached data nor other programs their memory.

Damage is known by offsets only.  A name or a position in a file may belong to another log by now: a topic made again
under its name, a log that repair has cut and that has grown again.  So whoever has kept a range looks at it again
(:func:`look_again`) before it is believed, from the batch that contains its first offset, and only between the log
start offset and the high watermark.  :func:`place_of` says in which file an offset is at that moment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ..durable_files import File
from ..errors import CorruptLog, OffsetOutOfRange, StorageFault, UnreadableLog, is_lack, not_permitted
from ..records.batch import BatchHeader
from .files import log_path
from .reader import FileCache, LogReader
from .recovery import is_retired
from .segment import find_valid, scan

WINDOW_BYTES: Final = 1 << 20
"""Bytes between two calls of ``pace``; a batch that is larger is checked in one piece."""
PAGE_BYTES: Final = 4096
"""What a disk cannot read is looked for in steps of a page, and of twice as much each time."""
STEP_BYTES_MAX: Final = 16 << 20


class DamagedRange(NamedTuple):
    """Offsets [start, stop) that are not whole batches, or cannot be read, and why."""

    start: int
    stop: int
    reason: str


ScrubPace = Callable[[int], None]
"""Called after each piece with its number of bytes: waits as long as the rate demands."""


OnBatch = Callable[[int, BatchHeader], None]
"""Called for each sound batch, with the offset at which it begins."""


def scrub(
    directory: Path,
    bases: Sequence[int],
    end: int,
    start: int,
    stop: int,
    pace: ScrubPace,
    on_batch: OnBatch = lambda start, header: None,
) -> Iterator[DamagedRange]:
    """Yields the damage from the batch that contains offset ``start`` to the one that contains ``stop`` - 1.

    ``bases`` and ``end``, the high watermark, come from one snapshot of the log; ``stop`` is at most ``end``.  Segments
    that retention removes meanwhile are left out.  A range may reach beyond ``stop``.

    Raises:
        StorageFault: the machine lacks something to read with.
    """
    for base, following in zip(bases, [*bases[1:], end], strict=True):
        if base < stop and following > start:
            yield from _segment(directory, base, following, max(start, base), min(stop, following), pace, on_batch)


def look_again(
    directory: Path,
    bases: Sequence[int],
    first: int,
    end: int,
    earlier: Sequence[DamagedRange],
    pace: ScrubPace = lambda _: None,
) -> list[DamagedRange]:
    """What is damaged now in the known ranges, from ``first``, the log start offset, to ``end``, the high watermark.

    Raises:
        StorageFault: see :func:`scrub`.
    """
    damaged: list[DamagedRange] = []
    for start, stop, _ in earlier:
        start, stop = max(start, first, bases[0]), min(stop, end)
        if start < stop:
            damaged += scrub(directory, bases, end, start, stop, pace)
    return sorted(set(damaged))  # damage before a range may hide where its first batch begins: it is found for both


def joined(ranges: Sequence[DamagedRange], count_max: int) -> list[DamagedRange]:
    """The ranges, ascending; those that touch, and beyond ``count_max`` those that are nearest, become one.

    So a range may have whole batches in it, and go over several segments.
    """
    apart: list[DamagedRange] = []
    for damaged in sorted(set(ranges)):
        if apart and damaged.start <= apart[-1].stop:
            apart[-1] = _united(apart[-1], damaged)
        else:
            apart.append(damaged)
    while len(apart) > count_max:
        at = min(range(1, len(apart)), key=lambda number: apart[number].start - apart[number - 1].stop)
        apart[at - 1 : at + 1] = [_united(apart[at - 1], apart[at])]
    return apart


def _united(first: DamagedRange, second: DamagedRange) -> DamagedRange:
    reason = first.reason if first.reason == second.reason else f"{first.reason.removesuffix(MORE)}{MORE}"
    return DamagedRange(first.start, max(first.stop, second.stop), reason)


MORE: Final = ", and more behind it"
"""At the end of the reason of a range that several have become."""


def place_of(bases: Sequence[int], offset: int) -> tuple[str, int]:
    """Name of the segment file and position of an offset, as the log is now."""
    base = max((base for base in bases if base <= offset), default=bases[0])
    return log_path(Path(), base).name, max(0, offset - base)


def _segment(
    directory: Path, base: int, limit: int, start: int, stop: int, pace: ScrubPace, on_batch: OnBatch
) -> Iterator[DamagedRange]:
    """The damage of the segment [base, limit) from the batch that contains ``start`` on, up to ``stop``."""
    path = log_path(directory, base)
    try:
        file = File(path)
    except OSError as error:
        if is_lack(error):
            raise StorageFault(f"{path}: {error.strerror}") from error
        if not is_retired(directory, limit):
            yield DamagedRange(base, limit, _why_closed(path, error))
        return
    position = _batch_at(directory, base, limit, start) - base
    while position < stop - base:
        window = min(stop - base, position + WINDOW_BYTES)
        cached = _is_cached(file, position)
        if not cached:
            os.posix_fadvise(file.fd, position, window - position, os.POSIX_FADV_DONTNEED)
        first = position
        try:
            for at, header, _ in scan(file, base, position, limit - base):
                on_batch(base + at, header)
                position = at + header.size
                if position >= window:
                    break
        except CorruptLog as error:
            position = _behind(file, base, error.position, limit - base)
            size = os.fstat(file.fd).st_size
            short = f"the file has {size} of its {limit - base} bytes" if size < position == limit - base else ""
            yield DamagedRange(base + error.position, base + position, short or error.reason)
        except UnreadableLog as error:
            damaged = _last_whole(file, base, position, error.position)
            position = _behind(file, base, error.position, limit - base)
            yield DamagedRange(base + damaged, base + position, error.reason)
        if not cached:
            os.posix_fadvise(file.fd, first, position - first, os.POSIX_FADV_DONTNEED)
        pace(position - first)


def _why_closed(path: Path, error: OSError) -> str:
    """Why a segment cannot be opened; with the remedy, where it is no damage."""
    if isinstance(error, PermissionError):
        return str(not_permitted(path))
    return "the file is missing" if isinstance(error, FileNotFoundError) else f"cannot be opened: {error.strerror}"


def _batch_at(directory: Path, base: int, limit: int, offset: int) -> int:
    """Where the batch begins that contains ``offset``, or the damage that hides it; at most ``offset``."""
    if offset == base:
        return base
    try:
        piece = LogReader(directory, FileCache(2)).locate([base], limit, offset, 1)
    except (CorruptLog, UnreadableLog) as error:
        return min(offset, base + error.position)
    except (StorageFault, OffsetOutOfRange):  # it is gone since, or cannot be opened
        return base
    return base if piece is None else base + piece.position


def _last_whole(file: File, base: int, position: int, stop: int) -> int:
    """The end of the last whole batch in [position, stop), where a batch begins at ``position``."""
    try:
        for at, header, _ in scan(file, base, position, stop):
            position = at + header.size
    except StorageFault:
        pass
    return position


def _behind(file: File, base: int, position: int, end: int) -> int:
    """The position of the first whole batch behind damage at ``position``; ``end`` without one."""
    step = PAGE_BYTES
    while position < end:
        try:
            after = find_valid(file, base, position, end)
            return end if after is None else after
        except UnreadableLog as error:
            position = error.position + step - error.position % PAGE_BYTES
            step = min(2 * step, STEP_BYTES_MAX)
    return end


def _is_cached(file: File, position: int) -> bool:
    """Whether the page cache has the byte at ``position``."""
    try:
        return os.preadv(file.fd, [bytearray(1)], position, os.RWF_NOWAIT) == 1
    except OSError:  # it is not there, or the file system cannot say
        return False
