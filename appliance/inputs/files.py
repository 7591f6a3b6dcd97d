"""Reads log files as they grow, through rotation of every kind, each line once.

A *generation* is one life of one file: it begins when the file is made, and ends when it is removed, or when its
content is replaced.  Which generation a path shows is decided by what the file says, never by its name:

==========================  ========================================================================================
seen at a scan              then
==========================  ========================================================================================
device and inode known,     the same generation: its new bytes are read.  *Fits*: it has at least ``position`` bytes,
content fits                the same first bytes (:class:`Identity`), and the same bytes before ``position``
device and inode known,     truncated or replaced: that generation ends, a new one begins at byte 0.  Bytes that were
content does not fit        seen and not read are a gap, unless a copy has them
unknown inode, content      a copy that rotation made, or a file that was moved to another disk: its generation goes
fits an ended generation    on there
of this or a like path
unknown inode, may be a     it waits, up to SHADOW_MS after it has grown: the file that it is a copy of may be truncated
copy of one that is read    then
unknown inode, has less of  a copy that was made before the last lines were written, and read: its end is the position
an ended one than was read
unknown inode               a new generation, from the beginning; in the first scan of all from ``start``
known, and cannot be        the same generation, which waits: a file, or its directory, without rights for now
looked at or opened
known, and not found any    removed or renamed: what its descriptor still gives is read, then it ends, ``rotate_ms``
more                        after its last byte: programs go on writing to a renamed file
==========================  ========================================================================================

A file is looked at by ``fstat`` and its content.  inotify only says when to look sooner than ``scan_ms``.

Bounds: ``files_max`` generations; FILES_OPEN_MAX descriptors, of those that had new bytes last; READ_BYTES at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import glob
import hashlib
import itertools
import logging
import os
import re
import stat
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from inotify_simple import INotify, flags

from ..errors import ApplianceError
from ..input_settings import Files, event_starts
from ..owners import acting_as_owner
from ..processes.clock import now_ms
from ..records.encode import Headers, encode_headers
from .in_order import InOrder
from .ledger import Ledger
from .lines import Block, Encoding, LineReader
from .machinery import Machinery, Topics
from .outlet import ORIGIN_BYTES, Outlet, Placed
from .positions import ORIGIN, Origin, PositionStore, Source, Span

logger = logging.getLogger(__name__)

READ_BYTES: Final = 256 * 1024
TURN_BYTES: Final = 4 * READ_BYTES
"""How much of one file is read before others have their turn."""
MARKS_MAX: Final = 4
"""Of a file, by which its copies are known."""
FILES_OPEN_MAX: Final = 1_000
HEAD_BYTES: Final = 1_024
TAIL_BYTES: Final = 64
SHADOW_MS: Final = 60_000
"""How long a file that begins like another one, under a name that rotation gives, may be its copy."""
RETRY_MS: Final = 2_000
IS_COMPRESSED: Final = "is compressed"
"""Which is as it should be: what it has was read before."""
COMPRESSED: Final = (b"\x1f\x8b", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"BZh")
_ROTATED: Final = re.compile(r"([.-]\d+)+$")
_BOMS: Final[tuple[tuple[bytes, Encoding], ...]] = ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))


BUSY_MS: Final = 200
"""How soon to look at files that end, or have an event that may go on."""
HINT_S: Final = 0.05
ENDED_MAX: Final = 10_000
"""Files that were read to their end, and are known not to be new."""
WATCHES_MAX: Final = 10_000
HINTS_MAX: Final = 10_000
WATCHED: Final = flags.MODIFY | flags.CREATE | flags.MOVED_FROM | flags.MOVED_TO | flags.DELETE


class FilesSettings(NamedTuple):
    """What the engine needs to know; times in ms.

    ``topic_of``: the topic of a path; ``headers_of``: the headers of its messages; ``starts``: see
    :class:`.lines.LineReader`.
    """

    include: Sequence[str]
    exclude: Sequence[str]
    topic_of: Callable[[str], str]
    headers_of: Callable[[str], Headers]
    from_end: bool = False
    encoding: str = "utf-8"
    starts: Callable[[bytes], bool] | None = None
    event_ms: int = 5_000
    message_bytes_max: int = 1 << 20
    scan_ms: int = 10_000
    rotate_ms: int = 5_000
    files_max: int = 10_000
    follow: bool = True


class Identity(NamedTuple):
    """How a generation is known again: hashes of its first bytes, and of those before its position."""

    device: int
    inode: int
    head_bytes: int
    head: bytes
    tail_stop: int
    """Where the bytes end that ``tail`` is of: at the position, or before it when a file was replaced meanwhile."""
    tail_bytes: int
    tail: bytes

    @classmethod
    def of(cls, fd: int, position: int) -> Identity:
        """Raises OSError."""
        status = os.fstat(fd)
        head = os.pread(fd, min(HEAD_BYTES, position), 0)
        tail = os.pread(fd, min(TAIL_BYTES, position), max(0, position - TAIL_BYTES))
        return cls(status.st_dev, status.st_ino, len(head), _digest(head), position, len(tail), _digest(tail))

    def fits(self, fd: int, position: int) -> bool:
        """Whether a file's content is that of this generation, at least up to ``position``.  Raises OSError."""
        if os.fstat(fd).st_size < position:
            return False
        tail = os.pread(fd, self.tail_bytes, self.tail_stop - self.tail_bytes)
        return self.has_head(fd) and _digest(tail) == self.tail

    def has_head(self, fd: int) -> bool:
        """Whether a file begins as this generation does.  Raises OSError."""
        return _digest(os.pread(fd, self.head_bytes, 0)) == self.head

    def encode(self) -> bytes:
        return b",".join(part.hex().encode() if isinstance(part, bytes) else str(part).encode() for part in self)

    @classmethod
    def decode(cls, row: bytes) -> Identity | None:
        """None: the source is no file, but one of an input of another type that had this name."""
        words = row.decode().split(",")
        if len(words) != len(cls._fields):
            return None
        device, inode, head_bytes, head, tail_stop, tail_bytes, tail = words
        return cls(
            *(int(device), int(inode), int(head_bytes), bytes.fromhex(head)),
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
        self.looked = -1, -1  # size and time of change, as seen last
        self.seen_bytes = position  # the size that it had at most
        self.in_flight: InOrder[tuple[Block, Identity]] | None = None  # None: nothing was sent yet
        self.retry_ms = 0.0
        self.changed_ms = 0.0  # when it was seen to grow
        self.replaced = self.is_dirty = False

    @property
    def key(self) -> tuple[int, int]:
        return self.identity.device, self.identity.inode

    @property
    def is_drained(self) -> bool:
        """Whether all that was read is flushed, and nothing is held back."""
        return not self.in_flight and (self.reader is None or not self.reader.held_bytes)

    def is_source_of(self, fd: int, size: int) -> bool:
        """Whether a file of this size is a copy of this one, made when it had as much.  Raises OSError."""
        return any(0 < one.tail_stop <= size and one.fits(fd, one.tail_stop) for one in (self.identity, *self.marks))

    def goes_on_in(self, fd: int, size: int) -> bool:
        """Whether a file of this size has all that was flushed of this one, or is its copy.  Raises OSError."""
        if not self.committed:
            return self.is_source_of(fd, size)
        return self.identity.tail_stop > 0 and self.identity.fits(fd, self.committed)

    def may_become(self, fd: int, size: int) -> bool:
        """Whether a file may be a copy of this one, which is being made.  Raises OSError."""
        known = self.marks[-1]
        if self.is_source_of(fd, size):
            return True
        if size >= known.tail_stop > 0:
            return False
        if self.fd < 0:
            return known.tail_stop > 0 and (size < known.head_bytes or known.has_head(fd))
        count = min(size, HEAD_BYTES)
        mine = os.pread(self.fd, count, 0)
        if len(mine) < count:  # it was truncated in this moment
            return known.tail_stop > 0
        return self.seen_bytes > 0 and os.pread(fd, count, 0) == mine

    def row(self, ended: bool) -> Source:
        return Source(self.source, self.path, self.committed, self.committed_line, self.identity.encode(), ended)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class FilesInput:
    """The engine.  :meth:`scan` and :meth:`work` are its two steps; :meth:`run` repeats them."""

    def __init__(
        self,
        settings: FilesSettings,
        store: PositionStore,
        outlet: Outlet,
        ledger: Ledger,
        clock_ms: Callable[[], float],
    ) -> None:
        self._settings, self._store, self._outlet, self._ledger = settings, store, outlet, ledger
        self._clock_ms = clock_ms
        self._by_inode: dict[tuple[int, int], Generation] = {}
        self._ending: list[Generation] = []  # gone or replaced: they are drained
        self._lost: list[Generation] = []  # known from the store, and no file fits yet
        self._shadows: dict[tuple[int, int], tuple[float, int]] = {}  # possible copies: since when, and their size
        self._ended: OrderedDict[tuple[int, int], None] = OrderedDict()  # the last ones
        self._scanned_ms = 0.0
        self._odd: dict[str, str] = {}  # paths that are not read, and why
        self._barred: set[tuple[int, int]] = set()  # files that could not be opened in this scan
        self._first = not store.sources() and not store.partitions()
        for row in store.sources():
            identity = Identity.decode(row.identity)
            if identity is not None:
                self._lost.append(Generation(row.number, row.name, identity, row.position, row.line))
        self.wake = asyncio.Event()
        self.wake_scan = False

    async def run(self) -> None:
        """Read until it is cancelled: all files every ``scan_ms``, those that inotify names at once."""
        with _Hints(self._settings.include, self.wake) as hints:
            while True:
                self.scan()
                hints.watch(os.path.dirname(one.path) for one in self._by_inode.values())
                scan_ms = self._clock_ms() + self._settings.scan_ms
                self.wake_scan = False
                while (now := self._clock_ms()) < scan_ms and not hints.has_new_names and not self.wake_scan:
                    while await self.work() and self._clock_ms() < scan_ms:
                        pass
                    self.wake.clear()
                    late_ms = BUSY_MS if self.busy else scan_ms - now
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self.wake.wait(), late_ms / 1000)
                    await asyncio.sleep(HINT_S)  # what comes meanwhile is read with it
                    self._mark(hints.take())

    async def read_all(self) -> None:
        """Read what the files have now, also a last line without a break, and return when it is flushed."""
        self.scan()
        while True:
            while await self.work():
                pass
            generations = [*self._by_inode.values(), *self._ending]
            if not any(one.is_dirty for one in generations):
                for one in generations:
                    if one.reader is not None and one.reader.held_bytes:
                        self._send(one, one.reader.finish())
                await self.drain()
                if not any(one.is_dirty for one in generations):
                    return
            await asyncio.sleep(BUSY_MS / 1000)

    def _mark(self, paths: set[str]) -> None:
        for one in self._by_inode.values():
            if one.path in paths:
                one.is_dirty = True

    async def drain(self) -> None:
        """Wait until everything that was read is flushed, or has failed."""
        while True:
            generations = (*self._by_inode.values(), *self._ending)
            waiting = [future for one in generations if one.in_flight for future in one.in_flight.waiting()]
            if not waiting:
                return
            await asyncio.wait(waiting)
            await asyncio.sleep(0)  # their callbacks

    # ---- which files there are

    def scan(self) -> None:
        """Find new, renamed, replaced and removed files."""
        now = self._clock_ms()
        found: dict[tuple[int, int], str] = {}
        self._barred.clear()
        for path in expand(self._settings.include, self._settings.exclude):
            try:
                status = os.stat(path)
            except OSError as error:
                self._note_odd(path, error.strerror or "cannot be looked at")
                continue
            if not stat.S_ISREG(status.st_mode):
                self._note_odd(path, "is no regular file")
                continue
            key = status.st_dev, status.st_ino
            if key in found:  # a hard or symbolic link to a file that is in the list
                continue
            found[key] = path
            generation = self._by_inode.get(key)
            if generation is not None:
                generation.path = path
                if generation.fd >= 0:
                    self._odd.pop(path, "")
                if (status.st_size, status.st_mtime_ns) != generation.looked:
                    generation.is_dirty = True
        for key, generation in list(self._by_inode.items()):
            if key not in found and not self._is_hidden(generation.path):
                del self._by_inode[key]
                generation.is_dirty = True
                generation.changed_ms = now
                self._ending.append(generation)
                self._take_newer(generation, generation.path)
        self._take_new({key: path for key, path in found.items() if key not in self._by_inode}, now)
        for one in list(self._lost):
            path = one.path
            if one not in self._lost:  # adopted with another one
                continue
            if not self._seek(one):
                if one.key not in self._barred and not self._is_hidden(path):
                    self._tell_lost(one)
            elif one.path != path:
                self._take_newer(one, path)
        self._first = False
        self._shadows = {key: row for key, row in self._shadows.items() if key in found}
        self._scanned_ms = self._clock_ms()
        self._ledger.note_sources(len(self._by_inode))
        for path in [path for path in self._odd if not os.path.lexists(path) and not self._is_hidden(path)]:
            del self._odd[path]
        unread = [f"{path}: {reason}" for path, reason in self._odd.items() if reason != IS_COMPRESSED]
        more = f", and {len(unread) - 1} more files" if unread[1:] else ""
        self._ledger.note_unread(f"{unread[0]}{more}" if unread else "")

    def _take_new(self, found: dict[tuple[int, int], str], now: float) -> None:
        """Begin, or go on with, the generations of files that are not known by their inode."""
        fresh: list[tuple[str, int, int, Identity, int]] = []
        rotated: list[tuple[Generation, str]] = []
        for key, path in found.items():
            if len(self._by_inode) + len(fresh) >= self._settings.files_max:
                self._note_odd(path, f"files_max = {self._settings.files_max} is reached")
                continue
            fd = self._open(path, key)
            if fd < 0:
                continue
            try:
                known = self._generation_of(fd, key, path)
                waits = known is None and self._is_shadow(fd, key, path, now)
                is_old = (self._first and self._settings.from_end) or self._was_read(fd, path)
                position = os.fstat(fd).st_size if is_old else 0
                identity = Identity.of(fd, position)
            except OSError as error:
                self._note_odd(path, error.strerror or "cannot be read")
                self._barred.add(key)
                os.close(fd)
                continue
            if known is not None:
                before = known.path
                self._adopt(known, fd, path)
                if before != path:
                    rotated.append((known, before))
            elif waits:
                os.close(fd)
            else:
                fresh.append((path, position, 1, identity, fd))
        numbers = self._store.add_sources((path, at, line, one.encode()) for path, at, line, one, _ in fresh)
        for number, (path, position, line, identity, fd) in zip(numbers, fresh, strict=True):
            self._adopt(Generation(number, path, identity, position, line), fd, path)
        for known, before in rotated:
            self._take_newer(known, before)

    def _open(self, path: str, key: tuple[int, int]) -> int:
        """Raises nothing: what cannot be read is noted; -1 then."""
        fd = -1
        try:
            with acting_as_owner(Path(path)):  # root follows no link that another user has put there
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            status = os.fstat(fd)
            reason = ""
            if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) != key:
                reason = "was replaced in this moment"
            elif os.pread(fd, 6, 0).startswith(COMPRESSED):
                reason = IS_COMPRESSED
        except OSError as error:
            self._barred.add(key)
            reason = error.strerror or "cannot be read"
        if reason:
            self._note_odd(path, reason)
            if fd >= 0:
                os.close(fd)
            return -1
        if self._odd.pop(path, ""):
            logger.info("%s can be read", path)
        return fd

    def _note_odd(self, path: str, reason: str) -> None:
        if self._odd.get(path) != reason and len(self._odd) < 2 * self._settings.files_max:
            self._odd[path] = reason
            logger.warning("%s is not read: %s", path, reason)

    def _is_hidden(self, path: str) -> bool:
        """Whether it cannot be known if there is such a file, as in a directory that cannot be read now."""
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            self._note_odd(path, error.strerror or "cannot be looked at")
            return True
        return False

    def _generation_of(self, fd: int, key: tuple[int, int], path: str) -> Generation | None:
        """The generation that lost its file, and goes on in this one."""
        size = os.fstat(fd).st_size
        same = [one for one in self._lost if one.key == key]
        like = [one for one in (*self._lost, *self._drained_of_replaced()) if one.key != key]
        for one in (*same, *(one for one in like if _is_like(path, one.path))):
            if one.goes_on_in(fd, size):
                return one
        return next((one for one in same if not one.committed), None)

    def _drained_of_replaced(self) -> list[Generation]:
        """Those that lost their content, and are not on their way any more."""
        return [one for one in self._ending if one.replaced and not one.in_flight]

    def _was_read(self, fd: int, path: str) -> bool:
        """Whether a file is a copy of one that was replaced, and has less than what was read of it."""
        size = os.fstat(fd).st_size
        return any(
            size < one.committed and _is_like(path, one.path) and one.is_source_of(fd, size)
            for one in self._drained_of_replaced()
        )

    def _is_shadow(self, fd: int, key: tuple[int, int], path: str, now: float) -> bool:
        """Whether a file may be a copy of one that is about to be truncated: it is not read for now."""
        size = os.fstat(fd).st_size
        for one in (*self._by_inode.values(), *(one for one in self._ending if one.replaced and one.in_flight)):
            if _is_like(path, one.path) and one.may_become(fd, size):
                since, last_size = self._shadows.get(key, (now, size))
                # A copy grows while it is made, and never after.  One that outgrows the file is none.
                if size != last_size and size <= one.seen_bytes:
                    since = now
                self._shadows[key] = since, size
                return now - since < SHADOW_MS
        self._shadows.pop(key, None)
        return False

    def _adopt(self, generation: Generation, fd: int, path: str) -> None:
        """Read a generation in the file that is open as ``fd``."""
        if generation in self._lost:
            self._lost.remove(generation)
        if generation in self._ending:  # what rotation has copied: it goes on in the copy
            self._ending.remove(generation)
            logger.info("%s goes on in its copy %s", generation.path, path)
        generation.close()
        generation.path, generation.fd = path, fd
        status = os.fstat(fd)
        if status.st_size < generation.seen_bytes:
            lost = status.st_size, generation.seen_bytes
            self._ledger.gap(generation.source, path, *lost, "bytes", "written after the copy was made, and truncated")
        generation.seen_bytes = status.st_size
        generation.replaced = False
        generation.is_dirty = True
        generation.identity = generation.identity._replace(device=status.st_dev, inode=status.st_ino)
        generation.changed_ms = self._clock_ms()
        self._by_inode[generation.key] = generation
        self._shadows.pop(generation.key, None)
        self._rewind(generation)

    def _seek(self, generation: Generation) -> bool:
        """Look for the file of a generation under the names that rotation gives, also where ``include`` has none."""
        with contextlib.suppress(OSError):
            for path, status in _beside(generation.path, _is_like):
                key = status.st_dev, status.st_ino
                if key in self._by_inode or (fd := self._open(path, key)) < 0:
                    continue
                if generation.goes_on_in(fd, status.st_size) or (not generation.committed and key == generation.key):
                    self._adopt(generation, fd, path)
                    return True
                os.close(fd)
        return False

    def _take_newer(self, generation: Generation, path: str) -> None:
        """Begin the files that rotation has made of ``path`` after this one, also those that no ``include`` matches.

        A file may come and be rotated away between two scans, or while this input does not run.
        """
        modified_ns = os.fstat(generation.fd).st_mtime_ns if generation.fd >= 0 else generation.looked[1]
        newer: list[tuple[int, str, tuple[int, int]]] = []
        with contextlib.suppress(OSError):
            for other, status in _beside(path, _is_rotation_of):
                if status.st_mtime_ns > modified_ns:
                    newer.append((status.st_mtime_ns, other, (status.st_dev, status.st_ino)))
        found = {key: other for _, other, key in sorted(newer)}
        known = {one.key for one in self._ending} | self._by_inode.keys() | self._ended.keys()
        self._take_new({key: other for key, other in found.items() if key not in known}, self._clock_ms())

    def _tell_lost(self, generation: Generation) -> None:
        """Tell of a generation of the store that no file has: what it had unread cannot be known any more."""
        self._lost.remove(generation)
        if generation.committed or generation.key not in self._by_inode:  # else it is read from its beginning
            lost = (generation.committed, None, "bytes", "removed or replaced while it was not read")
            self._ledger.gap(generation.source, generation.path, *lost)
        self._store.note(generation.row(ended=True))

    # ---- reading

    @property
    def busy(self) -> bool:
        """Whether something is to be read now."""
        return any(one.is_dirty for one in self._by_inode.values()) or bool(self._ending)

    async def work(self) -> bool:
        """Read what is new, of each file some in turn, as far as there is room in the outlet; whether there is more."""
        now = self._clock_ms()
        has_more = False
        for generation in [*(one for one in self._by_inode.values() if one.is_dirty), *self._ending]:
            if now >= generation.retry_ms and await self._read(generation):
                has_more = True
        self._end_drained()
        self._close_idle()
        return has_more

    async def _read(self, generation: Generation) -> bool:
        """Read up to TURN_BYTES of a file; whether it may have more."""
        if generation.replaced or (generation.reader is None and generation.in_flight):
            return False
        if generation.fd < 0 and not self._reopen(generation):
            return False
        if generation.reader is None and not await self._prepare(generation):
            return False
        reader = generation.reader
        assert reader is not None
        for _ in range(TURN_BYTES // READ_BYTES):
            await self._outlet.room()
            if generation.reader is not reader or not self._is_whole(generation):
                return False
            if generation.in_flight and generation.in_flight.has_failed:
                return False
            try:
                data = os.pread(generation.fd, READ_BYTES, generation.read_at)
            except OSError as error:
                self._fail(generation, f"cannot be read: {error.strerror}")
                return False
            if not data:
                generation.is_dirty = False
                self._end_event_when_late(generation)
                return False
            generation.read_at += len(data)
            generation.last_bytes = (generation.last_bytes + data)[-TAIL_BYTES:]
            generation.changed_ms = self._clock_ms()
            blocks = reader.feed(data)
            if not blocks:  # the beginning of a line: its file, or a copy, is to be known by it
                self._mark_content(generation, generation.read_at)
            self._send(generation, blocks)
        return True

    async def _prepare(self, generation: Generation) -> bool:
        """Learn the topic, and make the reader; False: not now."""
        settings = self._settings
        try:
            topic = settings.topic_of(generation.path)
            block_bytes_max = await self._outlet.learn(topic)
            generation.partition = self._outlet.partition_of(topic, generation.path.encode("utf-8", "surrogateescape"))
            await self._ledger.begin_partition(topic, generation.partition)
        except ApplianceError as error:
            self._fail(generation, str(error))
            return False
        generation.topic = topic
        generation.tail = encode_headers(settings.headers_of(generation.path))
        record_bytes = 24 + len(generation.tail)
        room = block_bytes_max - record_bytes - ORIGIN_BYTES
        generation.reader = LineReader(
            generation.committed,
            generation.committed_line,
            encoding=self._encoding(generation),
            message_bytes_max=min(settings.message_bytes_max, room - record_bytes),
            block_bytes_max=room,
            record_bytes=record_bytes,
            starts=settings.starts,
        )
        generation.read_at, generation.last_bytes = generation.committed, b""
        return True

    def _encoding(self, generation: Generation) -> Encoding:
        if self._settings.encoding == "utf-16":
            head = os.pread(generation.fd, 2, 0)
            return next((encoding for bom, encoding in _BOMS if head == bom), "utf-16-le")
        return self._settings.encoding  # type: ignore[return-value]  # checked with the settings

    def _is_whole(self, generation: Generation) -> bool:
        """Whether the file still is what was read of it; else the generation ends, and another one begins."""
        try:
            status = os.fstat(generation.fd)
            looked = status.st_size, status.st_mtime_ns
            if looked == generation.looked:
                return True
            count = len(generation.last_bytes)
            is_whole = status.st_size >= generation.read_at and (
                os.pread(generation.fd, count, generation.read_at - count) == generation.last_bytes
                if count
                else generation.identity.fits(generation.fd, generation.committed)
            )
        except OSError as error:
            self._fail(generation, f"cannot be read: {error.strerror}")
            return False
        if is_whole:
            generation.looked = looked
            generation.seen_bytes = max(generation.seen_bytes, status.st_size)
        else:
            self._replace(generation)
        return is_whole

    def _replace(self, generation: Generation) -> None:
        """The file was truncated, or has other content: end this generation, and begin another one."""
        logger.info("%s was truncated or replaced; it is read from its beginning", generation.path)
        self._by_inode.pop(generation.key, None)
        fd, generation.fd = generation.fd, -1
        generation.replaced = True
        generation.changed_ms = self._clock_ms()
        self._ending.append(generation)
        identity = Identity.of(fd, 0)
        (number,) = self._store.add_sources([(generation.path, 0, 1, identity.encode())])
        self._adopt(Generation(number, generation.path, identity, 0, 1), fd, generation.path)
        self.wake.set()

    def _send(self, generation: Generation, blocks: list[Block]) -> None:
        for block in blocks:
            if block.skipped:
                self._ledger.gap(
                    generation.source, generation.path, block.start, block.stop, "bytes", "NUL bytes at the beginning"
                )
            if generation.fd >= 0:
                self._mark_content(generation, block.stop)
            future: asyncio.Future[Placed] = asyncio.get_running_loop().create_future()
            if block.values:
                identity = generation.marks[-1].encode().decode()
                origin = Origin(self._store.id, generation.source, *block[1:5], identity).encode()
                headers = [*self._settings.headers_of(generation.path)]
                if block.part:
                    headers.append(("part", b"%d" % block.part))
                first = encode_headers([(ORIGIN, origin), *headers])
                tails = [generation.tail] * len(block.values)
                tails[0] = first
                try:
                    future = self._outlet.send(generation.topic, generation.partition, block.values, tails)
                except ApplianceError as error:
                    future.set_exception(error)
            else:
                future.set_result(Placed("", 0, 0, 0))
            if generation.in_flight is None:
                generation.in_flight = InOrder(
                    partial(self._take, generation), lambda error: self._fail(generation, str(error))
                )
            generation.in_flight.add((block, generation.marks[-1]), future)

    @staticmethod
    def _mark_content(generation: Generation, stop: int) -> None:
        device, inode = generation.key
        generation.marks.append(Identity.of(generation.fd, stop)._replace(device=device, inode=inode))

    def _take(self, generation: Generation, sent: tuple[Block, Identity], placed: Placed) -> None:
        """A block is flushed, and so is all before it."""
        block, identity = sent
        generation.committed, generation.committed_line = block.stop, block.first_line + block.lines
        device, inode = generation.key  # it may go on in a copy since
        generation.identity = identity._replace(device=device, inode=inode)
        row = generation.row(ended=False)
        if placed.messages:
            span = Span(generation.source, *placed, *block[1:5], self._ledger.minute())
            self._ledger.note(span)
            self._store.note(row, span)
        else:
            self._store.note(row)

    def _fail(self, generation: Generation, reason: str) -> None:
        """Read it again later, from what is flushed on."""
        self._ledger.trouble(generation.source, generation.path, reason)
        generation.retry_ms = self._clock_ms() + RETRY_MS
        generation.is_dirty = True
        if not generation.in_flight:
            self._rewind(generation)

    def _rewind(self, generation: Generation) -> None:
        generation.reader = None
        generation.read_at = generation.committed
        generation.last_bytes = b""
        generation.looked = -1, -1

    # ---- the end of generations

    def _end_event_when_late(self, generation: Generation) -> None:
        reader = generation.reader
        if reader is not None and reader.awaits_event:
            if self._clock_ms() - generation.changed_ms >= self._settings.event_ms:
                self._send(generation, reader.end_event())
            else:
                generation.is_dirty = True

    def _end_drained(self) -> None:
        """End generations that are gone, once nothing has come for ``rotate_ms`` and everything is flushed."""
        now = self._clock_ms()
        for generation in list(self._ending):
            if generation.replaced and generation.in_flight:
                generation.changed_ms = now  # only then it is known how far it was read
            if now - generation.changed_ms < self._settings.rotate_ms and self._settings.follow:
                continue
            if generation.replaced and self._scanned_ms <= generation.changed_ms:
                self.wake_scan = True  # a copy that rotation has made has to be known as one, before it is read as new
                continue
            held = 0 if generation.reader is None else generation.reader.held_bytes
            is_whole = generation.seen_bytes <= generation.read_at and not held
            if generation.replaced and not is_whole and self._seek(generation):
                continue
            if held and generation.reader is not None:
                self._send(generation, generation.reader.finish())  # without its end
            if not generation.is_drained:
                continue
            if generation.seen_bytes > generation.read_at:
                self._ledger.gap(
                    *(generation.source, generation.path, generation.read_at, generation.seen_bytes),
                    *("bytes", "truncated or replaced before it was read"),
                )
            self._ending.remove(generation)
            generation.close()
            self._ended[generation.key] = None
            while len(self._ended) > ENDED_MAX:
                self._ended.popitem(last=False)
            self._store.note(generation.row(ended=True))

    def _reopen(self, generation: Generation) -> bool:
        fd = self._open(generation.path, generation.key)
        if fd < 0:
            if generation in self._ending:
                generation.reader = None  # it was read to its end before it was closed
            generation.is_dirty = False
            return False
        generation.fd = fd
        return True

    def _close_idle(self) -> None:
        """Close the files that have not grown for longest."""
        open_ones = [one for one in self._by_inode.values() if one.fd >= 0]
        if len(open_ones) > FILES_OPEN_MAX:
            open_ones.sort(key=lambda one: one.changed_ms)
            for one in open_ones[: len(open_ones) - FILES_OPEN_MAX]:
                if not one.is_dirty and one.is_drained:
                    one.close()


class _Hints:
    """Says by inotify in which directories and files something has happened; nothing relies on it."""

    def __init__(self, include: Iterable[str], wake: asyncio.Event) -> None:
        self._wake = wake
        self._paths: set[str] = set()
        self.has_new_names = False
        self._directories: dict[int, str] = {}
        self._fixed = {os.path.dirname(pattern) for pattern in include if not glob.has_magic(os.path.dirname(pattern))}
        self._inotify: INotify | None = None
        try:
            self._inotify = INotify(nonblocking=True)
        except OSError as error:  # no instance is left: fs.inotify.max_user_instances
            logger.warning("inotify: %s: new lines are seen every scan_ms", error.strerror)

    def __enter__(self) -> _Hints:
        if self._inotify is not None:
            asyncio.get_running_loop().add_reader(self._inotify.fileno(), self._read)
        return self

    def __exit__(self, *_: object) -> None:
        if self._inotify is not None:
            asyncio.get_running_loop().remove_reader(self._inotify.fileno())
            self._inotify.close()

    def watch(self, directories: Iterable[str]) -> None:
        """Watch these, at most WATCHES_MAX."""
        self.has_new_names = False
        if self._inotify is None:
            return
        known = set(self._directories.values())
        for directory in itertools.islice((self._fixed | set(directories)) - known, WATCHES_MAX - len(known)):
            with contextlib.suppress(OSError):  # gone, or fs.inotify.max_user_watches is reached
                self._directories[self._inotify.add_watch(directory, WATCHED)] = directory

    def _read(self) -> None:
        assert self._inotify is not None
        for event in self._inotify.read(timeout=0):
            if event.mask & flags.IGNORED:
                self._directories.pop(event.wd, None)
            elif event.mask & (flags.Q_OVERFLOW | flags.CREATE | flags.MOVED_FROM | flags.MOVED_TO | flags.DELETE):
                self.has_new_names = True
            if event.name and event.wd in self._directories and len(self._paths) < HINTS_MAX:
                self._paths.add(os.path.join(self._directories[event.wd], event.name))
        self._wake.set()

    def take(self) -> set[str]:
        """The paths that were named since the last call."""
        paths, self._paths = self._paths, set()
        return paths


def _beside(path: str, is_one: Callable[[str, str], bool]) -> Iterator[tuple[str, os.stat_result]]:
    """The files beside ``path`` with a name that fits its name.  Raises OSError."""
    directory, name = os.path.split(path)
    with os.scandir(directory or ".") as entries:
        for entry in entries:
            if is_one(entry.name, name) and entry.is_file():
                yield entry.path, entry.stat()


def _is_rotation_of(path: str, base: str) -> bool:
    """Whether a name is one that rotation gives: ``app.log.1``, ``app.log-20261125``, ``app-20261125.log``."""
    stem, suffix = os.path.splitext(base)
    return path != base and (
        path.startswith((f"{base}.", f"{base}-"))
        or (path.startswith((f"{stem}-", f"{stem}.")) and path.endswith(suffix))
    )


def _is_like(path: str, other: str) -> bool:
    """Whether rotation may give one name to what had the other, also after it was rotated: ``app.log.2``, ``.1``."""
    return path != other and (_is_rotation_of(path, other) or _is_rotation_of(path, _ROTATED.sub("", other)))


def expand(include: Iterable[str], exclude: Iterable[str]) -> list[str]:
    """The paths that match a pattern and no exclusion, each once, in order.  ``**`` follows no symbolic links."""
    found: dict[str, None] = {}
    for pattern in include:
        if "**" in pattern:
            found |= dict.fromkeys(_walk(pattern))
        else:
            found |= dict.fromkeys(glob.glob(pattern))
    patterns = list(exclude)
    names = [pattern for pattern in patterns if "/" not in pattern]
    return sorted(
        path
        for path in found
        if not any(fnmatch.fnmatch(path, pattern) for pattern in patterns)
        and not any(fnmatch.fnmatch(os.path.basename(path), pattern) for pattern in names)
    )


def _walk(pattern: str) -> Iterable[str]:
    top, _, rest = pattern.partition("**")
    for directory, _, names in os.walk(top or "."):
        for name in names:
            path = os.path.join(directory, name)
            if fnmatch.fnmatch(path[len(top) :], "*" + rest.lstrip("/") if rest.strip("/") else "*"):
                yield path


def files_input(settings: Files, machinery: Machinery) -> FilesInput:
    """The engine with the settings of a table of the configuration."""
    topics = Topics(settings.topic, settings.topics_max)

    def topic_of(path: str) -> str:
        directory, name = os.path.split(path)
        return topics.of({"file": name.split(".")[0] or name, "directory": os.path.basename(directory)})

    wanted = FilesSettings(
        settings.include,
        settings.exclude,
        topic_of=topic_of,
        headers_of=lambda path: [("file", path.encode("utf-8", "surrogateescape"))],
        from_end=settings.start == "end",
        encoding=settings.encoding,
        starts=event_starts(settings.event_start) if settings.event_start else None,
        event_ms=settings.event_ms,
        message_bytes_max=settings.message_bytes_max,
        scan_ms=settings.scan_ms,
        rotate_ms=settings.rotate_ms,
        files_max=settings.files_max,
    )
    return FilesInput(wanted, machinery.store, machinery.outlet, machinery.ledger, now_ms)
