"""What of a file is in memory: for loops that must not wait for a disk.

cachestat(2) (Linux 6.5) counts the pages that the page cache has of a range, and starts no reading.  It counts those,
too, that a disk is reading just now.  So what was asked for ahead is not believed to be there until it has been read;
and for what others read, the last byte is read with RWF_NOWAIT (preadv2(2)), which refuses to wait.  An older kernel, a
filter of system calls, and an overlay, whose pages belong to another file, do not count: then one byte of each
SAMPLE_BYTES is read so, and nothing tells of a page in between.

Names, which opening a file needs, are another matter: the kernel can be asked to look up only those that are in memory
(openat2(2), Linux 5.12).  What is read of a file when its names are known, such as where its blocks are, is waited for.

Warm, to try a byte takes 0.8 us, to count 1 MiB 5 us, less if it is in large pages; the sendfile of 1 MiB that follows
takes 125 us.  mincore(2) takes 16 us, and a map of the file.
"""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from typing import Final, NamedTuple

from .. import libc
from ..durable_files import SYSTEM, File, System
from ..wire.requests import FileRange

SAMPLE_BYTES: Final = 64 * 1024
WINDOW_BYTES_MAX: Final = 1 << 20
"""Bytes that are looked for together; if they are not all in memory, a quarter of them, down to WINDOW_BYTES_MIN."""
WINDOW_BYTES_MIN: Final = 4 * 1024
AHEAD_MAX: Final = 64
"""Ranges of a file that are remembered as being on their way: as many as readers of it that need the disk."""
TO_OPEN_MAX: Final = 1_000
_CANNOT_TELL: Final = (errno.ENOSYS, errno.EPERM, errno.EINVAL)
"""Errors of a kernel, or of a filter of system calls, that does not know the question."""
TRUSTED: Final = 16
"""Trying costs less than counting, but where it fails, the kernel begins to read."""
_byte = [bytearray(1)]


class NotInMemory(Exception):
    """The bytes ``cold`` would have to be read from the disk, for which this process must not wait."""

    def __init__(self, cold: FileRange) -> None:
        super().__init__()
        self.cold = cold


class LogFile(File):
    """A file of a log, for those who read it.

    ``memory``: what of it is in memory, in a process that must not wait for the disk; None: reads wait.
    """

    __slots__ = ("memory",)

    def __init__(self, path: Path | str, system: System = SYSTEM) -> None:
        super().__init__(path, system=system)
        self.memory: Memory | None = None

    def do_not_wait(self) -> None:
        """Read only what is in memory.

        The kernel reads nothing ahead any more: that would begin in the loop, and what is ahead would be in the page
        cache before it can be read.  Whoever brings a part into memory asks for what follows, too.
        """
        self.memory = Memory()
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM)

    def read(self, count: int, position: int) -> bytes | bytearray:
        """Read as pread(2) does: fewer bytes only at the end of the file.

        Raises:
            NotInMemory: the caller has to come again when the bytes have been brought.
            OSError: the disk fails.
        """
        if self.memory is None:
            return super().read(count, position)
        try:
            data = self.memory.read(self.fd, count, position)
        except OSError as error:
            self._unless_it_cannot_say(error)
            return super().read(count, position)
        if data is None:
            raise NotInMemory(FileRange(self, position, count))
        return data

    def sendable_bytes(self, position: int, count: int) -> int:
        """How many bytes of a range, from its beginning on, can be sent without waiting for the disk; 0: none.

        What is not in the file can be: whoever sends it finds that out.

        Raises:
            OSError: the disk fails.
        """
        if self.memory is None:
            return count
        start, stop = self.memory.brought
        if start <= position < stop:
            return min(count, stop - position)
        size = min(count, WINDOW_BYTES_MAX)
        try:
            while not self.memory.has(self.fd, position, size):
                size //= 4
                if size < WINDOW_BYTES_MIN:
                    break
            else:
                return size
        except OSError as error:
            self._unless_it_cannot_say(error)
            return count
        in_file = os.fstat(self.fd).st_size - position
        if in_file <= 0:
            return count
        return self.sendable_bytes(position, in_file) if in_file < count else 0

    def _unless_it_cannot_say(self, error: OSError) -> None:
        """Wait for the disk from now on where the file system cannot say what is in memory."""
        if error.errno != errno.EOPNOTSUPP:
            raise error
        self.memory = None


class FileToOpen(LogFile):
    """A file that is not open, since names of its path are not in memory.  ``tried``: a thread has looked them up."""

    __slots__ = ("tried",)

    def __init__(self, path: Path | str) -> None:
        self.fd, self.path, self.memory, self.tried = -1, path, None, False

    def look_up(self) -> None:
        """Bring the names into memory: for a thread, since that waits for the disk.

        Raises:
            OSError: the file cannot be opened.
        """
        try:
            os.close(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC))
        finally:
            self.tried = True


class NamesInMemory:
    """Opens files whose names are in memory.  What others wait for is bounded: TO_OPEN_MAX files."""

    def __init__(self) -> None:
        self._to_open: dict[str, FileToOpen] = {}

    def open(self, path: Path | str, flags: int, mode: int) -> int:
        """As os.open.

        Raises:
            NotInMemory: a thread has to look up the names first (:meth:`FileToOpen.look_up`).
            OSError: the file cannot be opened.
        """
        to_open = self._to_open.get(str(path))
        if to_open is not None and to_open.tried:  # whatever came of that: nobody waits for the same twice
            del self._to_open[str(path)]
            return os.open(path, flags, mode)
        try:
            return libc.open_without_waiting(path, flags)
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno not in _CANNOT_TELL:
                raise
            return os.open(path, flags, mode)
        if to_open is None:
            if len(self._to_open) == TO_OPEN_MAX:
                del self._to_open[next(iter(self._to_open))]
            to_open = self._to_open[str(path)] = FileToOpen(path)
        raise NotInMemory(FileRange(to_open, 0, 0))


class Brought(NamedTuple):
    """What was read of a file in a thread: positions [start, stop), and no more because of ``fault``.

    After that the kernel was asked to read [stop, ahead_stop), too, some time.
    """

    start: int
    stop: int
    ahead_stop: int
    fault: OSError | None


class Memory:
    """What the loop of a process knows of one open file.  Only its thread calls it.

    ``brought``: positions [start, stop) that were read just now; they are believed to be in memory, so that a reader
    goes on whatever the kernel drops, or does not say.
    """

    __slots__ = ("_ahead", "_counts", "_fault", "_hits", "brought")

    def __init__(self) -> None:
        self.brought = 0, 0
        self._ahead: list[tuple[int, int]] = []
        """Positions [start, stop) that may be on their way; the last asked for is last."""
        self._counts = True
        """Whether the kernel counts the pages of this file."""
        self._hits = 0
        """How many reads in a row have found all in memory, up to TRUSTED: then the next one tries without counting."""
        self._fault: tuple[int, OSError] | None = None

    def bring(self, fd: int, brought: Brought) -> None:
        """Take in what was read in a thread."""
        start, stop, ahead_stop, fault = brought
        self.brought = start, stop
        ahead = self._ahead
        self._ahead = [(begin, min(end, start)) for begin, end in ahead if begin < start]
        self._ahead += [(max(begin, ahead_stop), end) for begin, end in ahead if end > ahead_stop]
        if ahead_stop > stop:
            self._ahead.append((stop, ahead_stop))
        del self._ahead[:-AHEAD_MAX]
        if fault is not None:
            self._fault = stop, fault
        elif start < stop and self._counts:
            self._counts = libc.pages_counted(fd, start, stop - start) > 0

    def has(self, fd: int, position: int, count: int) -> bool:
        """Whether all of a range that lies in the file is in memory.

        Raises:
            OSError: a disk could not read it; EOPNOTSUPP, the file system cannot say.
        """
        start, stop = self.brought
        if start <= position and position + count <= stop:
            return True
        if self._ahead and any(begin < position + count and position < end for begin, end in self._ahead):
            self._raise_fault(position, count)
            return False
        last = position + count - 1
        pages = last // mmap.PAGESIZE - position // mmap.PAGESIZE + 1
        if self._counts and libc.pages_counted(fd, position, count) < pages:
            self._raise_fault(position, count)
            return False
        samples = () if self._counts else range(position, last, SAMPLE_BYTES)
        if all(_has_byte(fd, at) for at in samples) and _has_byte(fd, last):
            return True
        self._raise_fault(position, count)
        return False

    def read(self, fd: int, count: int, position: int) -> bytearray | bytes | None:
        """Read as pread(2) does, fewer bytes at the end of the file; None: not all of it is in memory.

        Raises:
            OSError: as :meth:`has`.
        """
        if self._hits == TRUSTED:
            data = bytearray(count)
            try:
                size = os.preadv(fd, [data], position, os.RWF_NOWAIT)
            except BlockingIOError:
                size = -1
            if size == count:
                return data
        size = min(count, os.fstat(fd).st_size - position)
        if size <= 0:
            return b""
        if not self.has(fd, position, size):
            self._hits = 0
            return None
        self._hits = min(TRUSTED, self._hits + 1)
        return os.pread(fd, size, position)

    def _raise_fault(self, position: int, count: int) -> None:
        """Tell once of a fault: who reads there again tries again."""
        if self._fault is not None and position <= self._fault[0] < position + count:
            (_, fault), self._fault = self._fault, None
            raise fault


def _has_byte(fd: int, position: int) -> bool:
    try:
        os.preadv(fd, _byte, position, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    return True
