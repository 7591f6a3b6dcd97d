"""Names, opens and changes the files of a log: all calls that change the disk are here.

``position`` is a byte in a file, ``offset`` a byte in the log: ``offset = base + position``.

Only their owner can read the files and directories of a log, whatever the umask.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .. import libc
from ..errors import NO_ROOM

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
COMPACTED_SUFFIX: Final = ".compacted"
COMPACTION_STATE: Final = "compaction"
"""The file that says how far compaction is."""
NAME_DIGITS: Final = 20
FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
COPY_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class System:
    """The system calls that change a disk, or make a change durable.

    Tests replace them, to fail at a chosen point, or to record the states that a power loss may leave.
    """

    writev: Callable[[int, Sequence[memoryview]], int] = os.writev
    pwrite: Callable[[int, bytes | memoryview, int], int] = os.pwrite
    fdatasync: Callable[[int], None] = os.fdatasync
    open: Callable[[Path | str, int, int], int] = os.open
    ftruncate: Callable[[int, int], None] = os.ftruncate
    rename: Callable[[Path, Path], None] = os.rename
    unlink: Callable[[Path], None] = os.unlink
    mkdir: Callable[[Path, int], None] = os.mkdir
    fsync: Callable[[int], None] = os.fsync
    msync: Callable[[mmap.mmap], object] = mmap.mmap.flush
    begin_write_back: Callable[[int, int, int], None] = libc.begin_write_back


SYSTEM: Final = System()


class File:
    """An open file.  The last reference closes its descriptor.

    So a range that waits for a slow reader keeps its file, and so does a flush in another thread.
    """

    __slots__ = ("fd", "path")

    def __init__(self, path: Path | str, flags: int = os.O_RDONLY, system: System = SYSTEM) -> None:
        self.fd = -1
        self.fd = system.open(path, flags | os.O_CLOEXEC, FILE_MODE)
        self.path = path

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


def has_room(directory: Path, size: int) -> bool:
    """Whether the disk of a directory can take a file of so many bytes now, within any quota; leaves nothing there."""
    try:
        fd = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, FILE_MODE)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            return error.errno not in NO_ROOM
        system = os.statvfs(directory)  # a file system without files that have no name
        return system.f_bavail * system.f_frsize >= size
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        return error.errno not in NO_ROOM
    finally:
        os.close(fd)
    return True


def log_path(directory: Path, base: int) -> Path:
    return directory / f"{base:0{NAME_DIGITS}d}{LOG_SUFFIX}"


def index_path(directory: Path, base: int) -> Path:
    return directory / f"{base:0{NAME_DIGITS}d}{INDEX_SUFFIX}"


def compacted_path(path: Path) -> Path:
    """The name of a file that compaction has written, until it takes the place of the one at ``path``."""
    return path.with_name(path.name + COMPACTED_SUFFIX)


def base_of(name: str, suffix: str) -> int | None:
    """The base in the name of a file; None for another kind of file."""
    digits = name.removesuffix(suffix)
    if len(digits) != NAME_DIGITS or digits == name or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)


def offset_at(path: Path | str, position: int) -> int | None:
    """The offset of a position in a segment file; None for another kind of file."""
    base = base_of(Path(path).name, LOG_SUFFIX)
    return None if base is None else base + position


def sizes(directory: Path) -> tuple[dict[int, int], dict[int, int]]:
    """Sizes in bytes of the segment files and of the index files, by base, ascending.  Opens no file.

    An index that is no file, such as a directory or a link that leads nowhere, has the size -1.
    """
    logs: dict[int, int] = {}
    indexes: dict[int, int] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            for suffix, found in ((LOG_SUFFIX, logs), (INDEX_SUFFIX, indexes)):
                base = base_of(entry.name, suffix)
                if base is not None:
                    found[base] = entry.stat().st_size if found is logs or _is_file(entry) else -1
    return dict(sorted(logs.items())), dict(sorted(indexes.items()))


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link that leads to itself
        return False


def write_at(fd: int, data: bytes | memoryview, position: int, system: System = SYSTEM) -> None:
    """Write all of ``data``, with several calls if necessary."""
    rest = memoryview(data)
    while rest:
        written = system.pwrite(fd, rest, position)
        position += written
        rest = rest[written:]


def remove(path: Path, system: System = SYSTEM) -> bool:
    """Unlink a file.  Returns whether it existed."""
    with contextlib.suppress(FileNotFoundError):
        system.unlink(path)
        return True
    return False


def replace(path: Path, data: bytes, system: System = SYSTEM) -> None:
    """Replace the content of ``path`` by ``data``, durably.  After a power loss it is the old or the new file.

    Raises:
        OSError: it may be either file.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        file = File(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, system)
        write_at(file.fd, data, 0, system)
        system.fsync(file.fd)
        system.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            remove(temporary, system)
        raise
    sync_directory(path.parent, system)


def copy(source: File, position: int, stop: int, path: Path, system: System = SYSTEM) -> None:
    """Copy the bytes [position, stop) of the source to ``path``, durably.  The caller syncs the name."""
    target = File(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, system)
    start = position
    while position < stop:
        data = os.pread(source.fd, min(COPY_BYTES, stop - position), position)
        if not data:
            break
        write_at(target.fd, data, position - start, system)
        position += len(data)
    system.fsync(target.fd)


def sync_directory(directory: Path, system: System = SYSTEM) -> None:
    """Make changes of names in a directory durable (created, renamed, unlinked): ``fdatasync`` of a file does not."""
    file = File(directory, os.O_RDONLY | os.O_DIRECTORY, system)
    system.fsync(file.fd)
