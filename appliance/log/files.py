"""Files of a log: their names, and descriptors that close themselves.

``position`` is a byte in a file, ``offset`` a byte in the log: ``offset = base + position``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
NAME_DIGITS: Final = 20
FILE_MODE: Final = 0o644


@dataclass(frozen=True, slots=True)
class System:
    """The calls that can fail for reasons outside; tests pass others to fail at a chosen point."""

    writev: Callable[[int, Sequence[memoryview]], int] = os.writev
    pwrite: Callable[[int, bytes | memoryview, int], int] = os.pwrite
    fdatasync: Callable[[int], None] = os.fdatasync


class File:
    """An open file whose descriptor is closed when the last reference goes.

    So a range that waits for a slow reader, or a flush under way in another thread, keeps its file.
    """

    __slots__ = ("fd", "path")

    def __init__(self, path: Path | str, flags: int = os.O_RDONLY) -> None:
        self.fd = -1
        self.fd = os.open(path, flags | os.O_CLOEXEC, FILE_MODE)
        self.path = path

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


def log_path(directory: Path, base: int) -> Path:
    return directory / f"{base:0{NAME_DIGITS}d}{LOG_SUFFIX}"


def index_path(directory: Path, base: int) -> Path:
    return directory / f"{base:0{NAME_DIGITS}d}{INDEX_SUFFIX}"


def base_of(name: str, suffix: str) -> int | None:
    """The base in a file's name, None when it is another kind of file."""
    digits = name.removesuffix(suffix)
    if len(digits) != NAME_DIGITS or digits == name or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)


def sizes(directory: Path) -> tuple[dict[int, int], dict[int, int]]:
    """Sizes in bytes of the segment files and of the index files by base, ascending; opens none of them."""
    logs: dict[int, int] = {}
    indexes: dict[int, int] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            for suffix, found in ((LOG_SUFFIX, logs), (INDEX_SUFFIX, indexes)):
                base = base_of(entry.name, suffix)
                if base is not None:
                    found[base] = entry.stat().st_size
    return dict(sorted(logs.items())), dict(sorted(indexes.items()))


def write_at(
    fd: int,
    data: bytes | memoryview,
    position: int,
    pwrite: Callable[[int, bytes | memoryview, int], int] = os.pwrite,
) -> None:
    """Write all of ``data``, however many calls that takes."""
    rest = memoryview(data)
    while rest:
        written = pwrite(fd, rest, position)
        position += written
        rest = rest[written:]


def sync_directory(directory: Path) -> None:
    """Make names in it (created, renamed, unlinked) durable: ``fdatasync`` of a file does not."""
    file = File(directory, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(file.fd)
