"""Opens, writes, replaces and removes files such that a power loss leaves what a caller was told.

All calls that change files of the data directory go through a :class:`System`, which tests replace.  A file is durable
after ``fsync`` of itself, its name after ``fsync`` of its directory; no file system promises more.

What is made here only its owner can read, whatever the umask, unless the caller says otherwise.
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

from . import libc
from .errors import NO_ROOM, disk_fault

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
COPY_BYTES: Final = 1 << 20
TEMPORARY_SUFFIX: Final = ".tmp"
"""Of a file that is to replace another one.  What an interrupted call leaves, the next one removes."""


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

    def __init__(
        self, path: Path | str, flags: int = os.O_RDONLY, system: System = SYSTEM, mode: int = FILE_MODE
    ) -> None:
        self.fd = -1
        self.fd = system.open(path, flags | os.O_CLOEXEC, mode)
        self.path = path

    def read(self, count: int, position: int) -> bytes | bytearray:
        """Read as pread(2) does: fewer bytes only at the end of the file."""
        return os.pread(self.fd, count, position)

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


def write_at(fd: int, data: bytes | memoryview, position: int, system: System = SYSTEM) -> None:
    """Write all of ``data``, with several calls if necessary."""
    rest = memoryview(data)
    while rest:
        written = system.pwrite(fd, rest, position)
        position += written
        rest = rest[written:]


def remove_file(path: Path, system: System = SYSTEM) -> bool:
    """Unlink a file.  Returns whether it existed."""
    with contextlib.suppress(FileNotFoundError):
        system.unlink(path)
        return True
    return False


def replace_file(
    path: Path,
    content: bytes,
    *,
    mode: int | None = FILE_MODE,
    owner: tuple[int, int] | None = None,
    check: Callable[[Path], object] | None = None,
    fresh: bool = False,
    system: System | None = None,
) -> None:
    """Replace the content of a file, durably.  After a power loss it is the old or the new file.

    Args:
        mode: of the new file; None: as the umask leaves it.
        owner: user and group of the new file; None: those of this process.
        check: is called with the path of the new file before it takes the place of the old one; what it raises leaves
            the old one.
        fresh: the file must not exist yet.  Of several processes that try one succeeds.
        system: None: SYSTEM.

    Raises:
        OSError: it may be either file.
        FileExistsError: with ``fresh``; nothing has changed.
    """
    system = system or SYSTEM
    own = f".{os.getpid()}" if fresh else ""  # several may try at a time
    temporary = path.with_name(f"{path.name}{own}{TEMPORARY_SUFFIX}")
    has_replaced = False
    try:
        file = _create(temporary, FILE_MODE if mode is not None else 0o666, system)
        write_at(file.fd, content, 0, system)
        system.fsync(file.fd)
        if check is not None:
            check(temporary)
        if owner is not None:
            os.fchown(file.fd, *owner)
        if mode not in (None, FILE_MODE):
            os.fchmod(file.fd, mode)
        if fresh:
            os.link(temporary, path)
        else:
            system.rename(temporary, path)
            has_replaced = True
    finally:
        if not has_replaced:
            with contextlib.suppress(OSError):
                remove_file(temporary, system)  # on a full disk it would take room
    sync_directory(path.parent, system)


def _create(path: Path, mode: int, system: System) -> File:
    """Make a file that has this name alone: one that an interrupted call, or somebody else, left is unlinked first."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        return File(path, flags, system, mode)
    except FileExistsError:
        remove_file(path, system)
        return File(path, flags, system, mode)


def replace_data_file(path: Path, content: bytes) -> None:
    """:func:`replace_file`, for a file of the data directory.

    Raises:
        DiskFull: no room; the old file remains.
        StorageFault: the disk fails; the file may be the new one already.
    """
    try:
        replace_file(path, content)
    except OSError as error:
        raise disk_fault(error, path) from error


def copy_range(source: File, position: int, stop: int, path: Path, system: System = SYSTEM) -> None:
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
