"""What a life of a file is known by, and how far it was read: a *generation*, of which :mod:`.files` has the rules."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from .. import libc
from .in_order import InOrder
from .lines import Block, LineReader
from .positions import Source

if TYPE_CHECKING:
    from .unpacking import Unpacker

HEAD_BYTES: Final = 1_024
"""First bytes of a file, by which it is known."""
TAIL_BYTES: Final = 64
MARKS_MAX: Final = 4
"""Earlier positions of a file, by whose hashes its copies are known."""


class FileState(NamedTuple):
    """By what it is seen that a file may have changed.  ``changed_ns`` cannot be set back, as its time can."""

    size: int
    time_ns: int
    changed_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileState:
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns)


NOT_SEEN: Final = FileState(-1, -1, -1)


class FileKey(NamedTuple):
    """Which file it is, whatever its names are: no other one has had the same.

    A file system gives the inode of a removed file to the next one, often at once; only ``born_ns`` tells them apart.
    It is 0 where the file system does not keep when a file was made, as NFS 3.
    """

    device: int
    inode: int
    born_ns: int

    @classmethod
    def of_fd(cls, fd: int) -> FileKey:
        """Of an open file.  Raises OSError."""
        return cls(*libc.file_numbers(fd))

    def is_on_another_device(self, other: FileKey) -> bool:
        """Whether only the number of the device differs, as after a start of the machine it may."""
        return 0 < self.born_ns == other.born_ns and self.inode == other.inode and self.device != other.device

    def is_copied_up_as(self, other: FileKey, fd: int) -> bool:
        """Whether this file is the other one, open as ``fd``: an overlay copies it with the first write, and it is
        born anew then."""
        is_same = self[:2] == other[:2] and 0 < self.born_ns < other.born_ns
        return is_same and libc.is_in_overlay(fd)

    def may_be_copy_of(self, other: FileKey) -> bool:
        """Not if it was made before."""
        return not 0 < self.born_ns < other.born_ns

    @classmethod
    def of_path(cls, path: str) -> FileKey:
        """Of what has this name, a link itself and not what it leads to.  Raises OSError."""
        return cls(*libc.file_numbers(path=path))


class Identity(NamedTuple):
    """How a generation is known again: hashes of its first bytes, and of those before its position."""

    key: FileKey
    head_bytes: int
    head: bytes
    tail_stop: int
    """Where the bytes end that ``tail`` is of: at the position, or before it when a file was replaced meanwhile."""
    tail_bytes: int
    tail: bytes

    @classmethod
    def at_position(cls, fd: int, position: int) -> Identity:
        """Of one that was read up to ``position``.  Raises OSError."""
        head = os.pread(fd, min(HEAD_BYTES, position), 0)
        tail = os.pread(fd, min(TAIL_BYTES, position), max(0, position - TAIL_BYTES))
        return cls(FileKey.of_fd(fd), len(head), _digest(head), position, len(tail), _digest(tail))

    @classmethod
    def begun(cls, fd: int) -> Identity:
        """Of one of which nothing was read yet: it begins with what the file has now.  Raises OSError."""
        head = os.pread(fd, HEAD_BYTES, 0)
        return cls.of_head(FileKey.of_fd(fd), head)

    @classmethod
    def of_head(cls, key: FileKey, head: bytes) -> Identity:
        """Of one that begins so, and of which nothing was read yet."""
        return cls(key, len(head), _digest(head), 0, 0, _digest(b""))

    def fits(self, fd: int, position: int) -> bool:
        """Whether a file's content is that of this generation, at least up to ``position``.  Raises OSError."""
        if os.fstat(fd).st_size < position:
            return False
        tail = os.pread(fd, self.tail_bytes, self.tail_stop - self.tail_bytes)
        return self.has_head(fd) and _digest(tail) == self.tail

    def has_tail(self, recent: bytes) -> bool:
        """Whether what was read up to ``tail_stop`` may be of this generation; ``recent``: its last TAIL_BYTES."""
        return _digest(recent[-self.tail_bytes :] if self.tail_bytes else b"") == self.tail

    def has_head(self, fd: int) -> bool:
        """Whether a file begins as this generation does.  Raises OSError."""
        return _digest(os.pread(fd, self.head_bytes, 0)) == self.head

    def is_head_of(self, head: bytes) -> bool:
        """Whether what begins so may be this generation; not known of one that had nothing yet."""
        return 0 < self.head_bytes <= len(head) and _digest(head[: self.head_bytes]) == self.head

    def encode(self) -> bytes:
        words = *self.key, *self[1:]
        return b",".join(word.hex().encode() if isinstance(word, bytes) else str(word).encode() for word in words)

    @classmethod
    def decode(cls, row: bytes) -> Identity | None:
        """None: the source is no file, but one of an input of another type that had this name."""
        words = row.decode().split(",")
        if len(words) != len(FileKey._fields) + len(cls._fields) - 1:
            return None
        device, inode, born_ns, head_bytes, head, tail_stop, tail_bytes, tail = words
        return cls(
            *(FileKey(int(device), int(inode), int(born_ns)), int(head_bytes), bytes.fromhex(head)),
            *(int(tail_stop), int(tail_bytes), bytes.fromhex(tail)),
        )


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


class Generation:
    """One life of one file.

    ``source``: its number in the store.  ``committed``: position and line up to which everything is flushed.
    """

    def __init__(self, source: int, path: str, identity: Identity, position: int, line: int) -> None:
        self.source, self.path = source, path
        self.identity, self.committed, self.committed_line = identity, position, line
        self.marks = deque([identity], MARKS_MAX)  # what it was at the ends of what was sent or read last
        self.topic = ""
        self.tail = b""  # encoded headers of its messages
        self.partition = -1
        self.fd = -1
        self.reader: LineReader | None = None
        self.read_at = position  # the next byte to read
        self.last_bytes = b""  # those before read_at
        self.head = b""  # the first HEAD_BYTES, as far as they were read
        self.looked = NOT_SEEN  # as seen last
        self.seen_bytes = position  # the size that it had at most
        self.in_flight: InOrder[tuple[Block, Identity]] | None = None  # None: nothing was sent yet
        self.retry_ms = 0.0
        self.changed_ms = 0.0  # when it was seen to grow
        self.replaced = self.is_dirty = False
        self.is_at_end = False  # when it was looked at last, all its bytes had been read, and none has failed since
        self.fault = ""  # of the file, when it was read last
        self.unpacker: Unpacker | None = None  # of the compressed file that it goes on in

    @property
    def key(self) -> FileKey:
        return self.identity.key

    @property
    def is_drained(self) -> bool:
        """Whether all that was read is flushed, and nothing is held back."""
        return not self.in_flight and (self.reader is None or not self.reader.held_bytes)

    def is_source_of(self, fd: int, size: int) -> bool:
        """Whether a file of this size is a copy of this one, made when it had as much.  Raises OSError."""
        return any(
            0 < mark.tail_stop <= size and mark.fits(fd, mark.tail_stop) for mark in (self.identity, *self.marks)
        )

    def goes_on_in(self, fd: int, size: int) -> bool:
        """Whether a file of this size has all that was flushed of this one, or is its copy.  Raises OSError."""
        if not self.committed:
            return self.is_source_of(fd, size) or (self.identity.head_bytes > 0 and self.identity.has_head(fd))
        return self.identity.tail_stop > 0 and self.identity.fits(fd, self.committed)

    def may_become(self, fd: int, size: int) -> bool:
        """Whether a file may be a copy of this one, which is being made.  Raises OSError."""
        last_mark = self.marks[-1]
        if self.is_source_of(fd, size):
            return True
        if size >= last_mark.tail_stop > 0:
            return False
        if self.fd < 0:
            return last_mark.tail_stop > 0 and (size < last_mark.head_bytes or last_mark.has_head(fd))
        count = min(size, HEAD_BYTES)
        mine = os.pread(self.fd, count, 0)
        if len(mine) < count:  # it was truncated in this moment
            return last_mark.tail_stop > 0 or (0 < last_mark.head_bytes <= size and last_mark.has_head(fd))
        return self.seen_bytes > 0 and os.pread(fd, count, 0) == mine

    def may_go_on_in(self, fd: int, size: int) -> bool:
        """As :meth:`goes_on_in`, of its own file, which may have had nothing yet.  Raises OSError."""
        return self.goes_on_in(fd, size) or (not self.committed and self.identity.has_head(fd))

    def has_end(self, head: bytes, size: int, recent: bytes) -> bool:
        """Whether it has all of ``size`` bytes that begin and end so, as far as it is open and that can be seen."""
        if self.fd < 0:
            return False
        try:
            end = os.pread(self.fd, len(recent), size - len(recent))
            return end == recent and os.pread(self.fd, len(head), 0) == head
        except OSError:
            return False

    def begins_with(self, fd: int, size: int) -> bool:
        """Whether it has all that a file of this size has, by the first and last bytes.  Raises OSError."""
        if self.fd < 0:
            return False
        ends = (0, min(size, HEAD_BYTES)), (max(0, size - TAIL_BYTES), min(size, TAIL_BYTES))
        return all(os.pread(self.fd, count, at) == os.pread(fd, count, at) for at, count in ends)

    def mark(self, stop: int, recent: bytes) -> None:
        """Mark what was read up to ``stop``; ``recent``: bytes up to ``read_at``.  Raises OSError.

        Of what was read, not of the file: that may have been truncated, and written to, in this moment.
        """
        head, end = self.head[: min(stop, HEAD_BYTES)], len(recent) - (self.read_at - stop)
        tail = recent[max(0, end - TAIL_BYTES) : max(0, end)]
        if len(head) < min(stop, HEAD_BYTES) or len(tail) < min(stop, TAIL_BYTES):
            if self.unpacker is not None:
                return  # the one before does, too
            self.marks.append(Identity.at_position(self.fd, stop)._replace(key=self.key))
        else:
            self.marks.append(Identity(self.key, len(head), _digest(head), stop, len(tail), _digest(tail)))

    def row(self, ended: bool) -> Source:
        return Source(self.source, self.path, self.committed, self.committed_line, self.identity.encode(), ended)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        if self.unpacker is not None:
            self.unpacker.close()
