"""Reads log files as they grow, through rotation of every kind, each line once.

A *generation* is one life of one file: it begins when the file is made, and ends when it is removed, or when its
content is replaced.  Which generation a path shows is decided by the file, never by its name.  *Its file* is the one
with the same device, inode and time of birth (:class:`.generation.FileKey`); what is made anew with the inode of a
removed one is another file.  Content *fits*: it has at least ``position`` bytes, the same first bytes
(:class:`.generation.Identity`), and the same bytes before ``position``.

==========================  ========================================================================================
seen at a scan              then
==========================  ========================================================================================
its file, content fits      the same generation: its new bytes are read.  After a start also under another number of
                            the device, with the same path
its file, content does not  truncated or replaced: that generation ends, a new one begins at byte 0.  Without a copy
fit                         what was seen and not read is a gap, and so is what may have been written after the last
                            look, whose end is not known
unknown file of a like      a copy that rotation made: the generation goes on there.  Only of one whose file is there
name, content fits          still, and was made before: else two small files that say the same are taken for one
unknown file, may be a      it waits, up to SHADOW_MS after it has grown: the file that it is a copy of may be
copy of one that is read    truncated then.  If it was, until all that was read of that one is flushed
unknown file, has less of   a copy that was made before the last lines were written, and read: its end is the position
an ended one than was read
unknown file                a new generation, from the beginning; in the first scan of all from ``start``
unknown, under a name that  as above, though no ``include`` matches: it came and was rotated away between two scans, or
rotation gives, and newer   while nothing ran.  As long as it is a copy of one that is read, it waits
than the last scans
such a one, compressed      unpacked, to see which generation it is (:mod:`.packed`): one that has no file any more goes
                            on there, and an unknown one begins there; of one that was read nothing follows.  Damaged or
                            half-written, it waits up to PACKED_WAIT_MS; then what cannot be unpacked is a gap
known, and cannot be        the same generation, which waits: a file, or its directory, without rights for now
looked at or opened
known, and not found any    removed or renamed: what its descriptor still gives is read, then it is over, ``rotate_ms``
more                        after its last byte.  What a program writes later to a removed one nobody can read
over, and found again       the same generation goes on: a file whose directory was away.  Under a name that rotation
                            gives, also in a copy that has more
over, and its file has      the same generation goes on, however late: programs write to a renamed file until they open
grown under such a name     the new one
known from before a start,  a gap from its position, whose end is not known; not before the compressed files that may be
and not found               this one are judged
==========================  ========================================================================================

Nobody can know of what comes and goes between two scans: of a file that was made and removed, or that was truncated and
has the very bytes again that were read, by the first HEAD_BYTES and the last TAIL_BYTES of them; or that was
compressed, and has no more than those of one that was read before it.

A file is looked at by ``fstat`` and its content.  inotify only says when to look sooner than ``scan_ms``.

Bounds: ``files_max`` generations; FILES_OPEN_MAX descriptors, of those that had new bytes last; READ_BYTES at a time;
PACKED_OPEN_MAX compressed files that are read at a time, and one that is judged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import stat
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from ..errors import ApplianceError, FileNotPermitted, StorageFault
from ..input_settings import Files, event_starts
from ..processes.clock import file_clock_ns, now_ms
from ..records.encode import Headers, encode_headers
from ..shared.heartbeats import Heart
from .generation import HEAD_BYTES, MARKS_MAX, TAIL_BYTES, FileKey, Generation, Identity
from .guard import Guard
from .hints import Hints
from .in_order import InOrder
from .ledger import Ledger
from .lines import Block, Encoding, LineReader
from .machinery import Machinery, Topics
from .outlet import ORIGIN_BYTES, Outlet, Placed
from .packed import PACKED_WAIT_MS, Claim, Examination, Packed, PackedFiles
from .positions import ENDED_MAX, ORIGIN, Looked, Origin, PositionStore, Span
from .rotation import (
    Directories,
    LikeNames,
    Looks,
    Patterns,
    Rotated,
    key_of,
)
from .unpacking import Unpacker, has_compressed_name, is_compressed, unpacked_head

logger = logging.getLogger(__name__)

READ_BYTES: Final = 256 * 1024
TURN_BYTES: Final = 4 * READ_BYTES
"""How much of one file is read before others have their turn."""
FILES_OPEN_MAX: Final = 1_000
SHADOW_MS: Final = 60_000
"""How long a file that begins like another one, under a name that rotation gives, may be its copy."""
RETRY_MS: Final = 2_000
IS_COMPRESSED: Final = "is compressed"
"""Which is as it should be: what it has was read before, or is read there."""
PACKED_OPEN_MAX: Final = 4
"""Compressed files that are unpacked at a time."""
_BOMS: Final[tuple[tuple[bytes, Encoding], ...]] = ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))


BUSY_MS: Final = 200
"""How soon to look at files that end, or have an event that may go on."""
HINT_S: Final = 0.05
NEVER_READ: Final = 0
"""In place of the line: of a file that was there before the first scan, or is a copy."""
TICK_MS: Final = 20
"""By how much the time of a file may be behind: that of the kernel's last tick."""


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


class _Shadow(NamedTuple):
    """A possible copy: since when it has not grown, its size, and what it is a copy of."""

    since_ms: float
    size: int
    of: Generation


class FilesInput:
    """The engine.  :meth:`scan` and :meth:`work` are its two steps; :meth:`run` repeats them."""

    def __init__(
        self,
        settings: FilesSettings,
        store: PositionStore,
        outlet: Outlet,
        ledger: Ledger,
        clock_ms: Callable[[], float],
        file_clock_ns: Callable[[], int],
        guard: Guard,
        heart: Heart,
    ) -> None:
        """``file_clock_ns``: the time that a file has which changes now."""
        self._heart = heart
        self._settings, self._store, self._outlet, self._ledger = settings, store, outlet, ledger
        self._clock_ms, self._file_clock_ns, self._guard = clock_ms, file_clock_ns, guard
        self._patterns = Patterns(tuple(settings.include), tuple(settings.exclude))
        self._by_inode: dict[FileKey, Generation] = {}
        self._ending: list[Generation] = []  # gone or replaced: they are drained
        self._lost: dict[Generation, None] = {}  # known from the store, and no file fits yet
        self._lost_by_key: dict[FileKey, list[Generation]] = {}
        self._lost_by_path: dict[str, list[Generation]] = {}
        self._lost_names: LikeNames[Generation] = LikeNames()
        self._read_names: LikeNames[Generation] = LikeNames()  # while new files are taken: of those read or ending
        self._directories = Directories()
        self._shadows: dict[FileKey, _Shadow] = {}
        self._rotated: dict[FileKey, Rotated] = {}  # that no include matches, and that wait
        self._places: dict[FileKey, Rotated] = {}  # of files that are over, under the names that rotation gave them
        self._packed = PackedFiles(self._open_packed)
        self._examination: Examination | None = None
        self._passed: OrderedDict[FileKey, Generation] = OrderedDict()  # that are over: the last ones
        self._passed_names: LikeNames[Generation] = LikeNames()
        self._unnumbered: list[Generation] = []  # of them, those that the store does not have yet
        self._odd: dict[str, str] = {}  # paths that are not read, and why
        self._closed: dict[str, str] = {}  # directories that cannot be looked into, and why
        self._barred: set[FileKey] = set()  # files that could not be opened in this scan
        self._first = not store.looked.since_ns
        self._has_scanned = False  # this process
        self._looks = Looks(None if self._first else store.looked.since_ns)
        self._waiting = set(store.looked.waiting)  # files of rotated names, of which an earlier process knew
        last: dict[FileKey, Generation] = {}
        for row in store.sources():
            identity = Identity.decode(row.identity)
            if identity is not None:
                generation = Generation(row.number, row.name, identity, row.position, row.line)
                if identity.key in last:
                    last[identity.key].replaced = True
                last[identity.key] = generation
                self._lost[generation] = None
                self._lost_by_key.setdefault(identity.key, []).append(generation)
                self._lost_by_path.setdefault(row.name, []).append(generation)
                self._lost_names.add(generation, row.name)
        for row in store.ended():
            identity = Identity.decode(row.identity)
            if identity is not None:
                self._note_passed(Generation(row.number, row.name, identity, row.position, row.line))
        self.wake = asyncio.Event()
        self.wake_scan = False
        self._scan_due_ms = math.inf

    async def run(self) -> None:
        """Read until it is cancelled: all files every ``scan_ms``, those that inotify names at once."""
        with Hints(self._settings.include, self.wake) as hints:
            while True:
                try:
                    with self._heart.working():  # thousands of files after a start, or on a slow disk
                        self.scan()
                except StorageFault as error:  # the disk of the store is full: the next scan sees what this one has
                    self._ledger.trouble(0, self._settings.include[0], str(error))
                    await asyncio.sleep(RETRY_MS / 1000)
                    continue
                hints.watch(os.path.dirname(generation.path) for generation in self._by_inode.values())
                self._scan_due_ms = due_ms = self._clock_ms() + self._settings.scan_ms
                self.wake_scan = False
                while (now := self._clock_ms()) < due_ms and not hints.has_new_names and not self.wake_scan:
                    while await self.work() and self._clock_ms() < due_ms:
                        pass
                    self.wake.clear()
                    late_ms = BUSY_MS if self.busy else due_ms - now
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
            if not any(generation.is_dirty for generation in generations):
                for generation in generations:
                    if generation.reader is not None and generation.reader.held_bytes:
                        self._send(generation, generation.reader.finish())
                await self.drain()
                if not any(generation.is_dirty for generation in generations) and not self._packed:
                    return
            await asyncio.sleep(BUSY_MS / 1000)
            if self._packed:  # they are judged when they have not changed for two scans
                self.scan()

    def _mark(self, paths: set[str]) -> None:
        for generation in self._by_inode.values():
            if generation.path in paths:
                generation.is_dirty = True

    async def drain(self) -> None:
        """Wait until everything that was read is flushed, or has failed."""
        while True:
            generations = (*self._by_inode.values(), *self._ending)
            waiting = [
                future
                for generation in generations
                if generation.in_flight
                for future in generation.in_flight.waiting()
            ]
            if not waiting:
                return
            await asyncio.wait(waiting)
            await asyncio.sleep(0)  # their callbacks

    # ---- which files there are

    def scan(self) -> None:
        """Find new, renamed, replaced and removed files."""
        now = self._clock_ms()
        self._looks.begin(now, self._file_clock_ns())
        self._guard.begin_scan()
        self._directories.forget()
        paths = self._find()
        self._take_back(paths)
        for key, generation in list(self._by_inode.items()):
            if key not in paths and not self._is_hidden(generation.path):
                del self._by_inode[key]
                generation.is_dirty = True
                generation.changed_ms = now
                self._ending.append(generation)
        if self._first:
            self._store.looked = Looked(self._looks.since_ns, ())
        self._take_new({key: path for key, path in paths.items() if key not in self._by_inode}, now)
        missing = [
            generation
            for generation in list(self._lost)
            if generation in self._lost  # else adopted with another one
            and not self._seek(generation)
            and generation.key not in self._barred
            and not self._is_hidden(generation.path)
        ]
        self._packed.look_again(now)
        self._take_rotated(paths, now)
        for generation in missing:
            if generation in self._lost and not self._awaits_packed(generation):
                self._tell_lost(generation)
        self._shadows = {key: row for key, row in self._shadows.items() if key in paths or key in self._rotated}
        self._looks.end()
        unpacked = [generation.unpacker.key for generation in self._ending if generation.unpacker is not None]
        self._store.looked = Looked(self._looks.since_ns, (*self._rotated, *self._packed.keys(), *unpacked))
        if self._first:
            self._first = False
            self._store.commit_look()
        self._ledger.note_sources(len(self._by_inode))
        for path in [path for path in self._odd if not os.path.lexists(path) and not self._is_hidden(path)]:
            del self._odd[path]
        odd = {**self._closed, **self._odd}.items()
        unread = [f"{path}: {reason}" for path, reason in odd if reason != IS_COMPRESSED]
        more = f", and {len(unread) - 1} more files" if unread[1:] else ""
        self._ledger.note_unread(f"{unread[0]}{more}" if unread else "")

    def _find(self) -> dict[FileKey, str]:
        """The files that the patterns name, each once; what has changed of those that are read is marked."""
        paths: dict[FileKey, str] = {}
        self._barred.clear()
        closed = self._patterns.closed()
        for path in closed.keys() - self._closed.keys():
            logger.warning("%s is not read: %s", path, closed[path])
        self._closed = closed
        for path in self._patterns.paths():
            try:
                status, key = self._guard.look(path)
            except OSError as error:
                self._note_odd(path, error.strerror or "cannot be looked at")
                continue
            except FileNotPermitted as error:
                self._note_odd(path, str(error))
                continue
            if not stat.S_ISREG(status.st_mode):
                self._note_odd(path, "is no regular file")
                continue
            if key in paths:  # a hard or symbolic link to a file that is in the list
                continue
            paths[key] = path
            generation = self._by_inode.get(key)
            if generation is not None:
                generation.path = path
                if generation.fd >= 0:
                    self._odd.pop(path, "")
                if (status.st_size, status.st_mtime_ns) != generation.looked:
                    generation.is_dirty = True
        return paths

    def _take_back(self, paths: dict[FileKey, str]) -> None:
        """Go on with files that were gone, and came back before they had ended; their content is looked at anew."""
        there = [
            generation
            for generation in self._ending
            if not generation.replaced and generation.unpacker is None and generation.key in paths
        ]
        for generation in there:
            if generation.key not in self._by_inode:
                self._ending.remove(generation)
                self._by_inode[generation.key] = generation
                generation.path, generation.looked, generation.is_dirty = paths[generation.key], (-1, -1), True

    def _take_new(self, paths: dict[FileKey, str], now: float) -> None:
        """Begin, or go on with, the generations of files that are not known by their inode."""
        fresh: list[tuple[str, int, int, Identity, int]] = []
        self._read_names = LikeNames()
        for generation in (*self._by_inode.values(), *self._ending) if paths else ():
            self._read_names.add(generation, generation.path)
        for key, path in paths.items():
            if len(self._by_inode) + len(self._ending) + len(fresh) >= self._settings.files_max:
                self._note_odd(path, f"files_max = {self._settings.files_max} is reached")
                continue
            fd = self._open(path, key)
            if fd < 0:
                continue
            try:
                earlier = self._generation_of(fd, key, path)
                waits = earlier is None and self._is_shadow(fd, key, path, now)
                earlier = self._passed_of(fd, key, path) if earlier is None and not waits else earlier
                is_old = (self._first and self._settings.from_end) or self._was_read(fd, path)
                position = os.fstat(fd).st_size if is_old else 0
                identity = Identity.of(fd, position) if position else Identity.begun(fd)
            except OSError as error:
                self._note_odd(path, error.strerror or "cannot be read")
                self._barred.add(key)
                os.close(fd)
                continue
            if earlier is not None:
                self._adopt(earlier, fd, path)
            elif waits:
                os.close(fd)
            else:
                fresh.append((path, position, 1, identity, fd))
        try:
            numbers = self._store.add_sources(
                (path, at, line, identity.encode()) for path, at, line, identity, _ in fresh
            )
        except StorageFault:
            for *_, fd in fresh:
                os.close(fd)
            raise
        for number, (path, position, line, identity, fd) in zip(numbers, fresh, strict=True):
            self._adopt(Generation(number, path, identity, position, line), fd, path)

    # ---- what rotation has made between two scans, or while nothing ran

    def _take_rotated(self, paths: dict[FileKey, str], now: float) -> None:
        """Begin files that were rotated away before a scan has seen them, under names that no ``include`` matches.

        In the first scan of all, whatever has such a name was there before.
        """
        rotated = {key: file for key, file in self._rotated.items() if file.is_there}
        is_known = self._rotated.keys() | self._waiting
        for file in self._patterns.rotated(self._looks.since_ns if self._has_scanned else 0):
            if file.key in is_known or self._first or file.status.st_mtime_ns >= self._looks.since_ns:
                rotated[file.key] = file
            if not has_compressed_name(file.path):
                self._places[file.key] = file
        self._has_scanned = True
        self._waiting.clear()
        rotated |= self._grown()
        named = {key for key, path in paths.items() if self._odd.get(path) != IS_COMPRESSED}
        known_keys = named | self._by_inode.keys() | {generation.key for generation in self._ending}
        self._rotated = {
            key: file
            for key, file in sorted(rotated.items(), key=lambda row: row[1].status.st_mtime_ns)
            if key not in known_keys and stat.S_ISREG(file.status.st_mode) and not self._pass(file)
        }
        self._number_passed()
        self._take_new({key: file.path for key, file in self._rotated.items()}, now)
        self._rotated = {key: file for key, file in self._rotated.items() if key not in self._by_inode}

    def _grown(self) -> dict[FileKey, Rotated]:
        """Files that are over and have more than was read of them: programs go on writing to one that was renamed."""
        ending = {generation.key for generation in self._ending}
        grown: dict[FileKey, Rotated] = {}
        for key, place in list(self._places.items()):
            passed = self._passed.get(key)
            if key in self._by_inode or (passed is None and key not in ending):
                del self._places[key]
                continue
            try:
                status = os.lstat(place.path)
            except OSError:
                status = None
            if status is None or (status.st_dev, status.st_ino) != key[:2]:  # its directory has changed: seen then
                del self._places[key]
            elif passed and passed.committed_line != NEVER_READ and status.st_size > passed.identity.tail_stop:
                grown[key] = place._replace(status=status)
        return grown

    def _pass(self, file: Rotated) -> bool:
        """Whether a file of a rotated name is not to be read: it was before, there at first, or is compressed."""
        fd, reason = self._try_open(file.path, file.key)
        if fd < 0:
            return self._first
        with contextlib.closing(os.fdopen(fd, "rb", buffering=0)), contextlib.suppress(OSError):
            if reason == IS_COMPRESSED:
                if not self._first:
                    self._packed.add(file, self._clock_ms(), fd, is_new=True)
                return True
            if self._patterns.is_excluded(file.path):  # what is compressed is read, though patterns exclude it
                return True
            size = os.fstat(fd).st_size
            for generation in self._fitting(fd, file.key, file.path):
                if generation.identity.tail_stop == size or generation.committed_line == NEVER_READ:
                    return True
            if self._first or self._is_mere_copy(fd, self._shadows.get(file.key)):
                self._unnumbered.append(Generation(0, file.path, Identity.of(fd, size), size, NEVER_READ))
                return True
        return False

    def _is_mere_copy(self, fd: int, shadow: _Shadow | None) -> bool:
        """Whether somebody has made a copy of a file, and did not truncate it then.  Raises OSError."""
        if shadow is None:
            return False
        of, size = shadow.of, os.fstat(fd).st_size
        if self._by_inode.get(of.key) is of or of in self._ending:
            return self._clock_ms() - shadow.since_ms >= SHADOW_MS and of.begins_with(fd, size)
        return of.is_source_of(fd, size)

    def _fitting(self, fd: int, key: FileKey, path: str) -> Iterator[Generation]:
        """Those that are over, and that a file has the content of: by its inode, or by its name.  Raises OSError."""
        same = [self._passed[key]] if key in self._passed else []
        others = reversed(self._passed_names.of(path))
        for generation in (
            *same,
            *(generation for generation in others if generation.key != key and key.may_be_copy_of(generation.key)),
        ):
            fits = generation.identity.tail_stop > 0 and generation.identity.fits(fd, generation.identity.tail_stop)
            if fits and (generation.key == key or self._is_there(generation)):
                yield generation

    def _passed_of(self, fd: int, key: FileKey, path: str) -> Generation | None:
        """The generation that was over, and goes on in this file: it came back, or has more.  Raises OSError.

        Under a name that ``include`` has, only its own file, and only one that was read: others may begin as it does.
        """
        is_named = key not in self._rotated
        for generation in self._fitting(fd, key, path):
            if not is_named or (generation.key == key and generation.committed_line != NEVER_READ):
                return generation
        return None

    def _number_passed(self) -> None:
        """Have the store know what was passed without being read, for the next process."""
        rows = [
            (generation.path, generation.committed, generation.committed_line, generation.identity.encode())
            for generation in self._unnumbered
        ]
        for number, generation in zip(
            self._store.add_sources(rows, ended=True) if rows else (), self._unnumbered, strict=True
        ):
            generation.source = number
            self._note_passed(generation)
        self._unnumbered.clear()

    def _note_passed(self, generation: Generation) -> None:
        if generation.key in self._passed:
            self._passed_names.discard(self._passed[generation.key])
        self._passed[generation.key] = generation
        self._passed.move_to_end(generation.key)
        self._passed_names.add(generation, generation.path)
        while len(self._passed) > ENDED_MAX:
            self._passed_names.discard(self._passed.popitem(last=False)[1])

    # ---- what was compressed before it was read

    def _open_packed(self, path: str, key: FileKey) -> int:
        fd, reason = self._try_open(path, key)
        if fd >= 0 and reason != IS_COMPRESSED:
            os.close(fd)
            return -1
        return fd

    def _awaits_packed(self, generation: Generation) -> bool:
        """Whether a compressed file beside it may have what is not read of one that has no file any more."""
        with contextlib.suppress(OSError):
            for path, status in self._directories.beside(generation.path):
                if has_compressed_name(path):
                    file = Rotated(path, generation.path, status, FileKey.at(path))
                    if self._packed.wants(file):
                        self._packed.add_for(generation, file, self._clock_ms())
        return self._packed.may_have(generation)

    def _examine(self) -> bool:
        """Unpack a piece of the compressed file that is judged now; whether there is more to do."""
        examination = self._examination = self._examination or self._next_examination()
        if examination is None:
            return False
        try:
            if examination.step(READ_BYTES):
                return True
            self._judge(examination)
        except (OSError, StorageFault) as error:  # a bad place of the disk, or one that is full
            examination.unpacker.close()
            examination.packed.note_fault(str(error), self._clock_ms())
        self._examination = None
        return True

    def _next_examination(self) -> Examination | None:
        now = self._clock_ms()
        reading = [one for one in self._ending if one.unpacker is not None and not one.unpacker.is_over]
        if len(reading) >= PACKED_OPEN_MAX or len(self._by_inode) + len(self._ending) >= self._settings.files_max:
            return None
        for packed in self._packed.waiting():
            if not packed.is_ripe(now, self._looks.since_ns):
                continue
            claims = self._claims(packed)
            if any(claim.generation.replaced and claim.generation.in_flight for claim in claims):
                continue  # how far it was read is known once all of it is flushed
            if any(packed.size == claim.identity.tail_stop % 2**32 and self._is_over(claim) for claim in claims):
                self._packed.end(packed)
                continue
            unpacker = self._packed.open(packed)
            if unpacker is not None:
                return Examination(packed, unpacker, claims)
        return None

    def _claims(self, packed: Packed) -> list[Claim]:
        claims = [
            Claim(generation, identity)
            for generation in (*self._lost, *self._by_inode.values(), *self._ending)
            for identity in (generation.identity, *generation.marks)
        ]
        claims += [Claim(generation, generation.identity) for generation in self._passed.values()]
        return [claim for claim in claims if packed.is_claimed(claim)]

    def _is_over(self, claim: Claim) -> bool:
        return self._passed.get(claim.generation.key) is claim.generation

    def _judge(self, examination: Examination) -> None:
        """Read a compressed file from where its generation was read, or from its beginning, if there is more.

        Raises:
            StorageFault: a new generation cannot be stored.
        """
        packed, unpacker, now = examination.packed, examination.unpacker, self._clock_ms()
        if unpacker.fault and now - packed.changed_ms < PACKED_WAIT_MS:
            unpacker.close()
            packed.fault = unpacker.fault
            return
        heir = None
        if not self._was_unpacked_read(examination):
            heir = self._heir_of(examination)
            if heir is None and packed.is_new:
                identity = Identity.of_head(packed.file.key, unpacker.head)
                (number,) = self._store.add_sources([(packed.file.base, 0, 1, identity.encode())])
                heir = Generation(number, packed.file.base, identity, 0, 1)
        self._packed.end(packed)
        if heir is None:
            unpacker.close()
        else:
            self._adopt_packed(heir, packed.file.path, unpacker)

    def _was_unpacked_read(self, examination: Examination) -> bool:
        """Whether all that a compressed file has was read elsewhere, or is read there."""
        unpacker = examination.unpacker
        size, packed_size = unpacker.position, examination.packed.file.status.st_size
        if not size and not (unpacker.fault and packed_size):
            return True
        for generation in (*self._by_inode.values(), *self._ending):
            if not generation.replaced and generation.has_end(unpacker.head, size, unpacker.recent):
                return True
        for claim in examination.fits:
            generation = claim.generation
            if self._is_over(claim):
                if generation.committed_line == NEVER_READ or claim.identity.tail_stop == size:
                    return True
            elif size < generation.committed and (generation.replaced or generation in self._lost):
                return True  # the copy was made before the last lines were written, and read
        beyond = (claim for claim in self._claims(examination.packed) if claim.identity.tail_stop > size)
        return bool(unpacker.fault) and any(map(self._is_over, beyond))  # what is damaged was read

    def _heir_of(self, examination: Examination) -> Generation | None:
        """The generation that has no file any more, and goes on in a compressed one."""
        packed = examination.packed
        missing = [*self._lost, *(generation for generation in self._ending if generation.replaced)]
        for claim in reversed(examination.fits):
            generation = claim.generation
            if claim.identity is generation.identity and (generation in missing or self._is_over(claim)):
                return generation
        begun = [one for one in missing if not one.committed and packed.may_be(one)]
        begun.sort(key=lambda one: -one.identity.head_bytes)  # of an empty one only the name is known
        return begun[0] if begun and packed.head else None

    def _adopt_packed(self, generation: Generation, path: str, unpacker: Unpacker) -> None:
        """Read a generation in the compressed file that was examined."""
        logger.info("%s goes on in %s", generation.path, path)
        self._recall(generation)
        if generation in self._ending:
            self._ending.remove(generation)
        generation.close()
        size = unpacker.position
        if size < generation.seen_bytes:
            lost = size, generation.seen_bytes
            self._ledger.gap(generation.source, generation.path, *lost, "bytes", f"{path} does not have it")
        generation.seen_bytes, generation.replaced, generation.is_dirty = size, False, True
        generation.marks = deque([generation.identity], MARKS_MAX)
        generation.changed_ms = self._clock_ms()
        unpacker.restart()
        generation.unpacker = unpacker
        self._ending.append(generation)
        self._rewind(generation)
        self.wake.set()

    def _open(self, path: str, key: FileKey) -> int:
        """Raises nothing: what cannot be read is noted; -1 then."""
        fd, reason = self._try_open(path, key)
        if reason:
            self._note_odd(path, reason)
            if fd >= 0:
                os.close(fd)
            return -1
        if self._odd.pop(path, ""):
            logger.info("%s can be read", path)
        return fd

    def _try_open(self, path: str, key: FileKey) -> tuple[int, str]:
        """The descriptor, if it could be opened, and why it is not to be read."""
        fd = -1
        try:
            fd = self._guard.open(path)
            if FileKey.of(fd) != key:
                return fd, "was replaced in this moment"
            head = os.pread(fd, 6, 0)
            is_packed = is_compressed(head) or (not head and has_compressed_name(path))  # or will be, in a moment
            return fd, IS_COMPRESSED if is_packed else ""
        except FileNotPermitted as error:
            return fd, str(error)
        except OSError as error:
            self._barred.add(key)
            return fd, error.strerror or "cannot be read"

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

    def _generation_of(self, fd: int, key: FileKey, path: str) -> Generation | None:
        """The generation that lost its file, and goes on in this one."""
        size = os.fstat(fd).st_size
        same = [generation for generation in self._lost_by_key.get(key, ()) if generation in self._lost]
        of_path = (generation for generation in self._lost_by_path.get(path, ()) if generation in self._lost)
        same += [generation for generation in of_path if generation.key.is_on_another_device(key)]
        others = [
            generation
            for generation in (*self._lost_names.of(path), *self._drained_like(path))
            if generation not in same
        ]
        for generation in (*same, *(generation for generation in others if key.may_be_copy_of(generation.key))):
            if generation.goes_on_in(fd, size) and (
                generation in same or generation.replaced or self._is_there(generation)
            ):
                return generation
        return next((generation for generation in same if generation.may_go_on_in(fd, size)), None)

    def _is_there(self, generation: Generation) -> bool:
        """Whether its file is, perhaps with other content by now: else what has the same lines was not copied from it,
        or cannot be told from what was not."""
        if generation.key in self._by_inode:
            return True
        with contextlib.suppress(OSError):
            return any(FileKey.at(path) == generation.key for path, _ in self._directories.beside(generation.path))
        return False

    def _drained_like(self, path: str) -> list[Generation]:
        """Those that lost their content, are not on their way any more, and that ``path`` may be a copy of."""
        return [
            generation for generation in self._read_names.of(path) if generation.replaced and not generation.in_flight
        ]

    def _was_read(self, fd: int, path: str) -> bool:
        """Whether a file is a copy of one that was replaced, and has less than what was read of it."""
        size = os.fstat(fd).st_size
        return any(
            size < generation.committed and generation.is_source_of(fd, size) for generation in self._drained_like(path)
        )

    def _is_shadow(self, fd: int, key: FileKey, path: str, now: float) -> bool:
        """Whether a file may be a copy of one that is about to be truncated: it is not read for now."""
        size = os.fstat(fd).st_size
        read = (
            generation for generation in self._read_names.of(path) if not generation.replaced or generation.in_flight
        )
        for generation in read:
            if key.may_be_copy_of(generation.key) and generation.may_become(fd, size):
                since, last_size, _ = self._shadows.get(key, (now, size, generation))
                # A copy grows while it is made, and never after.  One that outgrows the file is none.
                if size != last_size and size <= generation.seen_bytes:
                    since = now
                self._shadows[key] = _Shadow(since, size, generation)
                # How far one was read that was truncated is known once all of it is flushed.
                return now - since < SHADOW_MS or generation.replaced
        self._shadows.pop(key, None)
        return False

    def _adopt(self, generation: Generation, fd: int, path: str) -> None:
        """Read a generation in the file that is open as ``fd``."""
        self._recall(generation)
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
        generation.identity = generation.identity._replace(key=FileKey.of(fd))
        generation.marks = deque([generation.identity], MARKS_MAX)  # others may be of what only the copied file had
        generation.changed_ms = self._clock_ms()
        self._by_inode[generation.key] = generation
        self._read_names.add(generation, path)
        self._shadows.pop(generation.key, None)
        self._rewind(generation)

    def _recall(self, generation: Generation) -> None:
        """It is neither lost nor over any more."""
        self._forget_lost(generation)
        if self._passed.get(generation.key) is generation:
            del self._passed[generation.key]
            self._passed_names.discard(generation)
            generation.committed_line = max(generation.committed_line, 1)
            self._store.note(generation.row(ended=False))

    def _seek(self, generation: Generation) -> bool:
        """Look for the file of a generation under the names that rotation gives, also where ``include`` has none."""
        read = self._by_inode.keys() | {generation.key for generation in self._ending if not generation.replaced}
        if not generation.committed:  # its first bytes are all that is known of it, which others may have as well
            read |= self._passed.keys()
        with contextlib.suppress(OSError):
            beside_it = [(path, status, FileKey.at(path)) for path, status in self._directories.beside(generation.path)]
            if not generation.replaced and generation.key not in (key for _, _, key in beside_it):
                return False
            for path, status, key in beside_it:
                if key in read or not key.may_be_copy_of(generation.key):
                    continue
                fd, reason = self._try_open(path, key)
                is_own = key == generation.key and not generation.replaced
                fits = generation.may_go_on_in if is_own else generation.goes_on_in
                if not reason and fits(fd, status.st_size):
                    self._adopt(generation, fd, path)
                    return True
                if fd >= 0:
                    os.close(fd)
        return False

    def _forget_lost(self, generation: Generation) -> None:
        if generation in self._lost:
            del self._lost[generation]
            self._lost_names.discard(generation)

    def _tell_lost(self, generation: Generation) -> None:
        """Tell of a generation of the store that no file has: what it had unread cannot be known any more."""
        self._forget_lost(generation)
        was_empty = not generation.committed and not generation.identity.head_bytes
        if not was_empty or generation.key not in self._by_inode:  # else it is read from its beginning
            lost = (generation.committed, None, "bytes", "removed or replaced while it was not read")
            self._ledger.gap(generation.source, generation.path, *lost)
        self._note_passed(generation)
        self._store.note(generation.row(ended=True))

    # ---- reading

    @property
    def busy(self) -> bool:
        """Whether something is to be read now."""
        is_dirty = any(generation.is_dirty for generation in self._by_inode.values())
        return is_dirty or bool(self._ending) or self._examination is not None

    async def work(self) -> bool:
        """Read what is new, of each file some in turn, as far as there is room in the outlet; whether there is more."""
        now = self._clock_ms()
        has_more = False
        for generation in [
            *(generation for generation in self._by_inode.values() if generation.is_dirty),
            *self._ending,
        ]:
            if now >= generation.retry_ms and await self._read(generation):
                has_more = True
        self._end_drained()
        self._close_idle()
        if self._examine():
            has_more = True
            await asyncio.sleep(0)
        return has_more

    async def _read(self, generation: Generation) -> bool:
        """Read up to TURN_BYTES of a file; whether it may have more."""
        if generation.replaced or (generation.reader is None and generation.in_flight):
            return False
        if generation.unpacker is not None:
            return await self._read_packed(generation, generation.unpacker)
        if generation.fd < 0 and not self._reopen(generation):
            return False
        if generation.reader is None and not await self._prepare(generation):
            return False
        reader = generation.reader
        assert reader is not None
        for _ in range(TURN_BYTES // READ_BYTES):
            if not await self._has_room():
                return False
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
            self._feed(generation, reader, data)
        return True

    def _feed(self, generation: Generation, reader: LineReader, data: bytes) -> None:
        if generation.read_at == len(generation.head):
            generation.head += data[: HEAD_BYTES - len(generation.head)]
        generation.read_at += len(data)
        recent = generation.last_bytes + data
        generation.last_bytes = recent[-TAIL_BYTES:]
        generation.changed_ms = self._clock_ms()
        blocks = reader.feed(data)
        if not blocks:  # the beginning of a line: its file, or a copy, is to be known by it
            generation.mark(generation.read_at, recent)
        self._send(generation, blocks, recent)

    async def _read_packed(self, generation: Generation, unpacker: Unpacker) -> bool:
        """As :meth:`_read`, of a compressed file, whose bytes before the position are unpacked first."""
        if generation.reader is None and not await self._prepare(generation):
            return False
        reader = generation.reader
        assert reader is not None
        for _ in range(TURN_BYTES // READ_BYTES):
            if not await self._has_room():
                return False
            if generation.reader is not reader or (generation.in_flight and generation.in_flight.has_failed):
                return False
            try:
                data = b""
                if unpacker.position == generation.read_at:
                    data = unpacker.read(READ_BYTES)
                else:
                    unpacker.skip_to(generation.read_at, READ_BYTES)
                    generation.last_bytes = unpacker.recent
            except OSError as error:
                self._fail(generation, f"{unpacker.path} cannot be read: {error.strerror}")
                return False
            if data:
                self._feed(generation, reader, data)
            elif unpacker.is_over:
                generation.is_dirty = False
                self._end_event_when_late(generation)
                return False
            await asyncio.sleep(0)
        return True

    async def _has_room(self) -> bool:
        """Wait for room in the outlet, until a scan is due: files come and go also while nothing can be sent."""
        if self._outlet.has_room:
            return True
        left_ms = self._scan_due_ms - self._clock_ms()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if left_ms == math.inf else max(0, left_ms) / 1000):
                await self._outlet.room()
                return True
        return False

    async def _prepare(self, generation: Generation) -> bool:
        """Learn the topic, and make the reader; False: not now."""
        settings = self._settings
        try:
            topic = settings.topic_of(generation.path)
            block_bytes_max = await self._outlet.learn(topic)
            generation.partition = self._outlet.partition_of(topic, key_of(generation.path))
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
        generation.head = b""
        if generation.unpacker is not None:
            generation.head = generation.unpacker.head[: generation.committed]
            return True
        with contextlib.suppress(OSError):
            generation.head = os.pread(generation.fd, min(HEAD_BYTES, generation.committed), 0)
        return True

    def _encoding(self, generation: Generation) -> Encoding:
        if self._settings.encoding == "utf-16":
            head = os.pread(generation.fd, 2, 0) if generation.unpacker is None else generation.unpacker.head[:2]
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
            is_whole = (
                status.st_size >= generation.read_at
                and generation.marks[-1].has_head(generation.fd)  # also of what was read, and could not be sent
                and (
                    os.pread(generation.fd, count, generation.read_at - count) == generation.last_bytes
                    if count
                    else generation.identity.fits(generation.fd, generation.committed)
                )
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
        identity = Identity.begun(generation.fd)
        try:
            (number,) = self._store.add_sources([(generation.path, 0, 1, identity.encode())])
        except StorageFault as error:
            self._fail(generation, str(error))
            return
        logger.info("%s was truncated or replaced; it is read from its beginning", generation.path)
        self._by_inode.pop(generation.key, None)
        fd, generation.fd = generation.fd, -1
        generation.replaced = True
        generation.changed_ms = self._clock_ms()
        if generation not in self._ending:  # as a renamed one is
            self._ending.append(generation)
        self._adopt(Generation(number, generation.path, identity, 0, 1), fd, generation.path)
        self.wake.set()

    def _send(self, generation: Generation, blocks: list[Block], recent: bytes = b"") -> None:
        """``recent``: bytes up to where the file was read; those that are known, if not given."""
        for block in blocks:
            if generation.fd >= 0 or generation.unpacker is not None:
                generation.mark(block.stop, recent or generation.last_bytes)
            if block.skipped:
                self._skip(generation, block)
                continue
            future: asyncio.Future[Placed] = asyncio.get_running_loop().create_future()
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
            if generation.in_flight is None:
                generation.in_flight = InOrder(
                    partial(self._take, generation), lambda error: self._fail(generation, str(error))
                )
            generation.in_flight.add((block, generation.marks[-1]), future)

    def _skip(self, generation: Generation, block: Block) -> None:
        """Tell of the first bytes of a file that are in no message, and commit that before anything behind them is
        sent: the log has no origin that a recovery could go on from."""
        at = generation.source, generation.path, block.start, block.stop
        self._ledger.gap(*at, "bytes", "NUL bytes at the beginning")
        self._take(generation, (block, generation.marks[-1]), Placed("", 0, 0, 0))
        with contextlib.suppress(StorageFault):  # it stays noted, and the process tells when it tries again
            self._store.commit()

    def _take(self, generation: Generation, sent: tuple[Block, Identity], placed: Placed) -> None:
        """A block is flushed, and so is all before it."""
        block, identity = sent
        generation.committed, generation.committed_line = block.stop, block.first_line + block.lines
        generation.identity = identity._replace(key=generation.key)  # it may go on in a copy since
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
            is_unpacked = generation.unpacker is not None and not generation.unpacker.is_over
            if is_unpacked or (generation.replaced and generation.in_flight):
                generation.changed_ms = now  # only then it is known how far it was read
            if now - generation.changed_ms < self._settings.rotate_ms and self._settings.follow:
                continue
            if self._settings.follow and self._looks.since_ms <= generation.changed_ms + TICK_MS:
                # A copy that rotation has made has to be known as one, before it is read as new; and what has ended
                # must be older than what is looked for after a start.
                self.wake_scan = True
                continue
            held = 0 if generation.reader is None else generation.reader.held_bytes
            is_whole = generation.seen_bytes <= generation.read_at and not held
            if generation.replaced and not is_whole and self._seek(generation):
                continue
            if generation.replaced and self._awaits_packed(generation):
                continue
            if held and generation.reader is not None:
                self._send(generation, generation.reader.finish())  # without its end
            if not generation.is_drained:
                continue
            self._tell_unread(generation)
            self._ending.remove(generation)
            generation.close()
            self._note_passed(
                Generation(
                    *(generation.source, generation.path, generation.identity),
                    *(generation.committed, generation.committed_line),
                )
            )
            self._store.note(generation.row(ended=True))

    def _tell_unread(self, generation: Generation) -> None:
        """Tell what was not read of one that is over, as far as that is known."""
        of, seen_bytes = (generation.source, generation.path), generation.seen_bytes
        if generation.unpacker is not None and generation.unpacker.fault:
            lost = f"{generation.unpacker.path} cannot be unpacked: {generation.unpacker.fault}"
            self._ledger.gap(*of, generation.read_at, None, "bytes", lost)
            return
        if seen_bytes > generation.read_at:
            lost = "truncated or replaced before it was read"
            self._ledger.gap(*of, generation.read_at, seen_bytes, "bytes", lost)
        if generation.replaced and not self._has_copy(generation):
            lost = "truncated or replaced: what was written after the last look is not known"
            self._ledger.gap(*of, max(seen_bytes, generation.read_at), None, "bytes", lost)

    def _has_copy(self, generation: Generation) -> bool:
        """Whether a file beside it is a copy of one that was truncated, compressed or not."""
        with contextlib.suppress(OSError):
            for path, _ in self._directories.beside(generation.path):
                fd, reason = self._try_open(path, FileKey.at(path))
                if fd < 0:
                    continue
                with contextlib.closing(os.fdopen(fd, "rb", buffering=0)):
                    if reason == IS_COMPRESSED and generation.identity.is_head_of(unpacked_head(fd)):
                        return True
                    if not reason and generation.is_source_of(fd, os.fstat(fd).st_size):
                        return True
        return False

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
        open_ones = [generation for generation in self._by_inode.values() if generation.fd >= 0]
        if len(open_ones) > FILES_OPEN_MAX:
            open_ones.sort(key=lambda generation: generation.changed_ms)
            for generation in open_ones[: len(open_ones) - FILES_OPEN_MAX]:
                if not generation.is_dirty and generation.is_drained:
                    generation.close()


def files_input(settings: Files, machinery: Machinery) -> FilesInput:
    """The engine with the settings of a table of the configuration."""
    topics = Topics(settings.topic, settings.topics_max)

    def topic_of(path: str) -> str:
        directory, name = os.path.split(path)
        return topics.of({"file": name.split(".")[0] or name, "directory": os.path.basename(directory)})

    files_settings = FilesSettings(
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
    return FilesInput(
        files_settings,
        machinery.store,
        machinery.outlet,
        machinery.ledger,
        now_ms,
        file_clock_ns,
        machinery.guard,
        machinery.heart,
    )
