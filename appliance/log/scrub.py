"""Reads a log slowly and compares all checksums, to find damage before a consumer does.

Data that is not in the page cache is read from the disk, and is dropped from the cache again: scrubbing costs neither
consumers their cached data nor other programs their memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ..errors import CorruptLog
from ..records.batch import BatchInfo
from .files import File, log_path
from .segment import find_valid, scan

WINDOW_BYTES: Final = 1 << 20
"""Bytes between two calls of ``pace``; a batch that is larger is checked in one piece."""


class DamagedRange(NamedTuple):
    """Offsets [start, stop) that are not whole batches, and where their bytes are: file name and position."""

    start: int
    stop: int
    file: str
    position: int
    reason: str


Pace = Callable[[int], None]
"""Called after each piece with its number of bytes: waits as long as the rate demands."""


OnBatch = Callable[[int, BatchInfo], None]
"""Called for each sound batch, with the offset at which it begins."""


def scrub(
    directory: Path,
    bases: Sequence[int],
    start: int,
    stop: int,
    pace: Pace,
    on_batch: OnBatch = lambda start, info: None,
) -> Iterator[DamagedRange]:
    """Yields the damage in the batches from offset ``start`` on, where a batch begins, up to ``stop``.

    ``bases`` and ``stop`` come from one snapshot of the log.  Segments that retention removes meanwhile are left out.

    Raises:
        StorageFault, OSError: a file cannot be read.
    """
    for base, following in zip(bases, [*bases[1:], stop], strict=True):
        if following > start:
            try:
                yield from _segment(log_path(directory, base), base, max(start, base), following, pace, on_batch)
            except FileNotFoundError:
                continue


def still_damaged(directory: Path, found: DamagedRange) -> bool:
    """Read a damaged range again, from the disk.  False also when it was removed."""
    base = found.start - found.position
    try:
        again = _segment(log_path(directory, base), base, found.start, found.stop, lambda _: None, lambda *_: None)
        return next(again, None) is not None
    except FileNotFoundError:
        return False


def _segment(path: Path, base: int, start: int, stop: int, pace: Pace, on_batch: OnBatch) -> Iterator[DamagedRange]:
    file = File(path)
    position, end = start - base, stop - base
    while position < end:
        window = min(end, position + WINDOW_BYTES)
        cached = _is_cached(file, position)
        if not cached:
            os.posix_fadvise(file.fd, position, window - position, os.POSIX_FADV_DONTNEED)
        first = position
        try:
            for at, info, _ in scan(file, base, position, end):
                on_batch(base + at, info)
                position = at + info.size
                if position >= window:
                    break
        except CorruptLog as error:
            after = find_valid(file, base, error.position, end)
            position = end if after is None else after
            yield DamagedRange(base + error.position, base + position, path.name, error.position, error.reason)
        if not cached:
            os.posix_fadvise(file.fd, first, position - first, os.POSIX_FADV_DONTNEED)
        pace(position - first)


def _is_cached(file: File, position: int) -> bool:
    """Whether the page cache has the byte at ``position``."""
    try:
        return os.preadv(file.fd, [bytearray(1)], position, os.RWF_NOWAIT) == 1
    except OSError:  # it is not there, or the file system cannot say
        return False
