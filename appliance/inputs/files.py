"""Reads log files as they grow, through rotation of every kind, each line once.

A *generation* is one life of one file: it begins when the file is made, and ends when it is removed, or when its
content is replaced.  Which generation a path shows is decided by the file, never by its name.  *Its file* is the one
with the same device, inode and time of birth (:class:`.generation.FileKey`); what is made anew with the inode of a
removed one is another file.  Content *fits*: it has at least ``position`` bytes, the same first bytes
(:class:`.generation.Identity`), and the same bytes before ``position``.

==========================  ========================================================================================
seen at a scan              then
==========================  ========================================================================================
its file, content fits      the same generation: its new bytes are read.  Also under another number of the device, with
                            the same path, as after a start or another mount; and with what numbers its descriptor has
                            by now, as in an overlay after the first write
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
known, and not found any    removed or renamed: what its descriptor still gives is read, however long its topic takes
more                        nothing; then it is over, ``rotate_ms`` after its last byte.  What a program writes later to
                            a removed one nobody can read
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

========================  ==========================================================================================
which files there are     :mod:`.rotation` (names), :mod:`.rotated_files`, :mod:`.file_access` (what may be opened)
which generations         :mod:`.generations`, :mod:`.generation` (one of them, and its identity)
which one a file is       :mod:`.recognition`; :mod:`.packed`, of a compressed one
how one is read           :mod:`.generation_reader`; :mod:`.topic_lookup` (where it goes)
========================  ==========================================================================================

Bounds: ``files_max`` generations; FILES_OPEN_MAX descriptors, of those that had new bytes last.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import stat
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from ..clock import file_clock_ns, now_ms
from ..errors import StorageFault
from ..input_settings import Files
from ..shared.heartbeats import Heart
from .file_access import FileAccess, fits_or_close
from .files_settings import FilesSettings, files_settings
from .generation import MARKS_MAX, NOT_SEEN, FileKey, FileState, Generation, Identity
from .generation_reader import RETRY_MS, GenerationReader, ReadOutcome
from .generations import Generations
from .guard import Guard
from .hints import Hints
from .ledger import Ledger
from .machinery import Machinery
from .outlet import Outlet
from .packed import Heir, PackedFiles
from .positions import Looked, PositionStore
from .recognition import Recognizer
from .rotated_files import RotatedFiles
from .rotation import Directories, Looks, Patterns

logger = logging.getLogger(__name__)

FILES_OPEN_MAX: Final = 1_000
BUSY_MS: Final = 200
"""How soon to look at files that end, or have an event that may go on."""
HINT_S: Final = 0.05
TICK_MS: Final = 20
"""By how much the time of a file may be behind: that of the kernel's last tick."""


class _NewFile(NamedTuple):
    """A file that is of no known generation, open as ``fd``."""

    path: str
    position: int
    identity: Identity
    fd: int


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
        self._settings, self._store, self._ledger, self._heart = settings, store, ledger, heart
        self._clock_ms, self._file_clock_ns = clock_ms, file_clock_ns
        self._is_first = not store.looked.since_ns
        self._looks = Looks(None if self._is_first else store.looked.since_ns)
        self._patterns = Patterns(tuple(settings.include), tuple(settings.exclude))
        self._directories = Directories()
        self._access = FileAccess(guard, unread_max=2 * settings.files_max)
        self._generations = Generations(store)
        self._recognizer = Recognizer(self._generations, self._directories, self._access, clock_ms)
        self._packed = PackedFiles(self._generations, self._directories, self._access, store, settings.files_max)
        self._rotated = RotatedFiles(
            self._patterns,
            self._looks,
            self._access,
            self._generations,
            self._recognizer,
            self._packed,
            waiting=store.looked.waiting,
        )
        self._reader = GenerationReader(settings, store, outlet, ledger, clock_ms)
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
                    self._ledger.note_trouble(0, self._settings.include[0], str(error))
                    await asyncio.sleep(RETRY_MS / 1000)
                    continue
                hints.watch(os.path.dirname(generation.path) for generation in self._generations.present.values())
                self._scan_due_ms = due_ms = self._clock_ms() + self._settings.scan_ms
                self.wake_scan = False
                while (now := self._clock_ms()) < due_ms and not hints.has_new_names and not self.wake_scan:
                    while await self.work() and self._clock_ms() < due_ms:
                        pass
                    self.wake.clear()
                    late_ms = BUSY_MS if self.busy else due_ms - now
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(late_ms / 1000):
                            await self.wake.wait()
                    await asyncio.sleep(HINT_S)  # what comes meanwhile is read with it
                    self.mark(hints.take_paths())

    async def read_all(self, *, is_last: bool) -> None:
        """Read what the files have now, and return when it is flushed.

        ``is_last``: nobody goes on from there, so a last line without a break is sent as it is.  Else it waits in its
        file (:meth:`unfinished`), unless that is gone or compressed, for the rest of the line may come.
        """
        self.scan()
        while True:
            while await self.work():
                pass
            generations = self._generations.read
            if not any(generation.is_dirty for generation in generations):
                for generation in generations:
                    if is_last or generation.unpacker is not None or not self._generations.has_file(generation):
                        self._reader.send_rest(generation)
                await self.drain()
                if not any(generation.is_dirty for generation in generations) and not self._packed:
                    return
            await asyncio.sleep(BUSY_MS / 1000)
            if self._packed:  # they are judged when they have not changed for two scans
                self.scan()

    def unfinished(self) -> dict[str, int]:
        """The bytes of lines without a break that were read and not sent, by file."""
        held = {
            generation.path: 0 if generation.reader is None else generation.reader.held_bytes
            for generation in self._generations.present.values()
        }
        return {path: count for path, count in held.items() if count}

    def mark(self, paths: set[str]) -> None:
        """Look at the files of these paths in the next :meth:`work`."""
        for generation in self._generations.present.values():
            if generation.path in paths:
                generation.is_dirty = True

    async def drain(self) -> None:
        """Wait until everything that was read is flushed and noted, or has failed."""
        while sent := [generation.in_flight for generation in self._generations.read if generation.in_flight]:
            for blocks in sent:
                await blocks.drain()

    # ---- which files there are

    def scan(self) -> None:
        """Find new, renamed, replaced and removed files.  Raises StorageFault: the store is full."""
        now = self._clock_ms()
        generations = self._generations
        self._looks.begin(now, self._file_clock_ns())
        self._directories.forget()
        paths = self._find()
        self._follow_numbers(paths)
        self._take_back(paths)
        for key, generation in list(generations.present.items()):
            if key not in paths and not self._access.is_hidden(generation.path):
                del generations.present[key]
                generation.is_dirty = True
                generation.changed_ms = now
                generations.ending.append(generation)
        if self._is_first:
            self._store.looked = Looked(self._looks.since_ns, ())
        self._take_new({key: path for key, path in paths.items() if key not in generations.present})
        missing = [
            generation
            for generation in generations.lost
            if generations.is_lost(generation)  # else adopted with another one
            and not self._go_on_beside(generation)
            and not self._access.is_barred(generation.key)
            and not self._access.is_hidden(generation.path)
        ]
        self._packed.look_again(now)
        self._take_new(self._rotated.files_to_read(paths, now, is_first=self._is_first))
        self._rotated.forget_read()
        for generation in missing:
            if generations.is_lost(generation) and not self._packed.may_have(generation, now):
                self._tell_lost(generation)
        self._recognizer.keep_shadows(paths.keys() | self._rotated.keys())
        self._looks.end()
        unpacked = [generation.unpacker.key for generation in generations.ending if generation.unpacker is not None]
        self._store.looked = Looked(self._looks.since_ns, (*self._rotated.keys(), *self._packed.keys(), *unpacked))
        if self._is_first:
            self._is_first = False
            self._store.commit_look()
        self._ledger.note_sources(len(generations.present))
        self._ledger.note_unread(self._access.end_scan())

    def _find(self) -> dict[FileKey, str]:
        """The files that the patterns name, each once; what has changed of those that are read is marked."""
        paths: dict[FileKey, str] = {}
        self._access.begin_scan(self._patterns.closed())
        for path in self._patterns.paths():
            look = self._access.look(path)
            if look is None:
                continue
            status, key = look
            if not stat.S_ISREG(status.st_mode):
                self._access.note_unread(path, "is no regular file")
                continue
            if key in paths:  # a hard or symbolic link to a file that is in the list
                continue
            paths[key] = path
            generation = self._generations.present.get(key)
            if generation is not None:
                generation.path = path
                if generation.fd >= 0:
                    self._access.note_read(path)
                if FileState.of(status) != generation.looked:
                    generation.is_dirty = True
        return paths

    def _follow_numbers(self, paths: Mapping[FileKey, str]) -> None:
        """Go on with files that have other numbers than before, and are the same."""
        unread = {key: path for key, path in paths.items() if key not in self._generations.present}
        keys = {path: key for key, path in unread.items()}
        for generation in self._generations.read if unread else ():
            key = generation.key
            if key in paths or generation.replaced or generation.unpacker is not None:
                continue
            with contextlib.suppress(OSError):
                own_key = FileKey.of_fd(generation.fd) if generation.fd >= 0 else key
                path_key = keys.get(generation.path, key)
                if own_key != key and own_key in unread:  # an overlay has copied it with the first write
                    fd = os.dup(generation.fd)
                elif path_key in unread and key.is_on_another_device(path_key):  # its file system was mounted again
                    fd = self._access.open(generation.path, path_key)
                else:
                    continue
                if fd < 0:
                    continue
                if not fits_or_close(generation.may_go_on_in, fd, os.fstat(fd).st_size):
                    continue
                self._generations.forget_present(generation)
                self._adopt(generation, fd, paths[FileKey.of_fd(fd)])
                self._store.note(generation.row(ended=False))  # it may be stopped before there is another line

    def _take_back(self, paths: Mapping[FileKey, str]) -> None:
        """Go on with files that were gone, and came back before they had ended; their content is looked at anew."""
        present, ending = self._generations.present, self._generations.ending
        back = [
            generation
            for generation in ending
            if not generation.replaced and generation.unpacker is None and generation.key in paths
        ]
        for generation in back:
            if generation.key not in present:
                ending.remove(generation)
                present[generation.key] = generation
                generation.path, generation.looked, generation.is_dirty = paths[generation.key], NOT_SEEN, True

    def _take_new(self, paths: Mapping[FileKey, str]) -> None:
        """Begin, or go on with, the generations of files that are not known by their inode."""
        new_files: list[_NewFile] = []
        self._generations.index_names(self._generations.read if paths else ())
        for key, path in paths.items():
            if len(self._generations) + len(new_files) >= self._settings.files_max:
                self._access.note_unread(path, f"files_max = {self._settings.files_max} is reached")
                continue
            fd = self._access.open(path, key)
            if fd < 0:
                continue
            try:
                new_file = self._recognize(fd, key, path)
            except OSError as error:
                self._access.note_unread(path, error.strerror or "cannot be read")
                self._access.bar(key)
                os.close(fd)
                continue
            if new_file is not None:
                new_files.append(new_file)
        try:
            numbers = self._store.add_sources((path, at, 1, identity.encode()) for path, at, identity, _ in new_files)
        except StorageFault:
            for new_file in new_files:
                os.close(new_file.fd)
            raise
        for number, (path, position, identity, fd) in zip(numbers, new_files, strict=True):
            self._adopt(Generation(number, path, identity, position, 1), fd, path)

    def _recognize(self, fd: int, key: FileKey, path: str) -> _NewFile | None:
        """Go on with the generation of a file; if it has none, the file, or None if it waits.  Raises OSError."""
        earlier = self._recognizer.lost_generation(fd, key, path)
        waits = earlier is None and self._recognizer.is_shadow(fd, key, path)
        if earlier is None and not waits:
            is_rotated = self._rotated.waits(key)
            earlier = self._recognizer.over_generation(fd, key, path, is_rotated=is_rotated)
        is_old = (self._is_first and self._settings.from_end) or self._recognizer.was_read(fd, path)
        position = os.fstat(fd).st_size if is_old else 0
        identity = Identity.at_position(fd, position) if position else Identity.begun(fd)
        if earlier is not None:
            self._adopt(earlier, fd, path)
        elif waits:
            os.close(fd)
        else:
            return _NewFile(path, position, identity, fd)
        return None

    def _adopt(self, generation: Generation, fd: int, path: str) -> None:
        """Read a generation in the file that is open as ``fd``."""
        self._generations.recall(generation)
        if generation in self._generations.ending:  # what rotation has copied: it goes on in the copy
            self._generations.ending.remove(generation)
            logger.info("%s goes on in its copy %s", generation.path, path)
        generation.close()
        generation.path, generation.fd = path, fd
        status = os.fstat(fd)
        if status.st_size < generation.seen_bytes:
            lost = status.st_size, generation.seen_bytes
            self._ledger.note_gap(
                generation.source, path, *lost, "bytes", "written after the copy was made, and truncated"
            )
        generation.seen_bytes = status.st_size
        generation.replaced = False
        generation.is_dirty = True
        generation.identity = generation.identity._replace(key=FileKey.of_fd(fd))
        generation.marks = deque([generation.identity], MARKS_MAX)  # others may be of what only the copied file had
        generation.changed_ms = self._clock_ms()
        self._generations.note_present(generation)
        self._recognizer.forget_shadow(generation.key)
        self._reader.rewind(generation)

    def _adopt_packed(self, heir: Heir) -> None:
        """Read a generation in the compressed file that was examined."""
        generation, unpacker = heir
        logger.info("%s goes on in %s", generation.path, unpacker.path)
        self._generations.recall(generation)
        if generation in self._generations.ending:
            self._generations.ending.remove(generation)
        generation.close()
        size = unpacker.position
        if size < generation.seen_bytes:
            lost = size, generation.seen_bytes
            self._ledger.note_gap(
                generation.source, generation.path, *lost, "bytes", f"{unpacker.path} does not have it"
            )
        generation.seen_bytes, generation.replaced, generation.is_dirty = size, False, True
        generation.marks = deque([generation.identity], MARKS_MAX)
        generation.changed_ms = self._clock_ms()
        unpacker.restart()
        generation.unpacker = unpacker
        self._generations.ending.append(generation)
        self._reader.rewind(generation)
        self.wake.set()

    def _go_on_beside(self, generation: Generation) -> bool:
        """Go on in a file that rotation made of the one that a generation had; whether there is one."""
        file = self._recognizer.open_file_of(generation)
        if file is None:
            return False
        fd, path = file
        self._adopt(generation, fd, path)
        return True

    def _replace(self, generation: Generation) -> None:
        """The file was truncated, or has other content: end this generation, and begin another one."""
        identity = Identity.begun(generation.fd)
        try:
            (number,) = self._store.add_sources([(generation.path, 0, 1, identity.encode())])
        except StorageFault as error:
            self._reader.fail(generation, str(error))
            return
        logger.info("%s was truncated or replaced; it is read from its beginning", generation.path)
        self._generations.present.pop(generation.key, None)
        fd, generation.fd = generation.fd, -1
        generation.replaced = True
        generation.changed_ms = self._clock_ms()
        if generation not in self._generations.ending:  # as a renamed one is
            self._generations.ending.append(generation)
        self._adopt(Generation(number, generation.path, identity, 0, 1), fd, generation.path)
        self.wake.set()

    # ---- reading

    @property
    def busy(self) -> bool:
        """Whether something is to be read now."""
        is_dirty = any(generation.is_dirty for generation in self._generations.present.values())
        return is_dirty or bool(self._generations.ending) or self._packed.is_examining

    async def work(self) -> bool:
        """Read what is new, of each file some in turn, as far as there is room in the outlet; whether there is more."""
        now = self._clock_ms()
        has_more = False
        for generation in [
            *(generation for generation in self._generations.present.values() if generation.is_dirty),
            *self._generations.ending,
        ]:
            if now >= generation.retry_ms and await self._read(generation):
                has_more = True
        self._end_drained()
        self._close_idle()
        is_examining, heir = self._packed.examine(self._clock_ms(), self._looks.since_ns)
        if heir is not None:
            self._adopt_packed(heir)
        if is_examining:
            has_more = True
            await asyncio.sleep(0)
        return has_more

    async def _read(self, generation: Generation) -> bool:
        """Read some of a file, until a scan is due: files come and go also while nothing can be sent; whether it may
        have more."""
        if generation.replaced or (generation.reader is None and generation.in_flight):
            return False
        if generation.unpacker is None and generation.fd < 0 and not self._reopen(generation):
            return False
        outcome = await self._reader.read(generation, self._scan_due_ms)
        if outcome is ReadOutcome.REPLACED:
            self._replace(generation)
        return outcome is ReadOutcome.MORE

    def _reopen(self, generation: Generation) -> bool:
        fd = self._access.open(generation.path, generation.key)
        if fd < 0:
            if generation in self._generations.ending:
                generation.reader = None  # it was read to its end before it was closed
                generation.is_at_end = True
            generation.is_dirty = False
            return False
        generation.fd = fd
        return True

    def _close_idle(self) -> None:
        """Close the files that have not grown for longest."""
        open_ones = [generation for generation in self._generations.present.values() if generation.fd >= 0]
        if len(open_ones) > FILES_OPEN_MAX:
            open_ones.sort(key=lambda generation: generation.changed_ms)
            for generation in open_ones[: len(open_ones) - FILES_OPEN_MAX]:
                if not generation.is_dirty and generation.is_drained:
                    generation.close()

    # ---- the end of generations

    def _end_drained(self) -> None:
        """End generations that are gone, once nothing has come for ``rotate_ms`` and everything is flushed."""
        now = self._clock_ms()
        for generation in list(self._generations.ending):
            if generation.replaced:
                awaits_more = bool(generation.in_flight)  # only then it is known how far it was read
            else:  # however long its topic cannot be learned, or written to: its descriptor has it all
                awaits_more = not generation.is_at_end and not generation.fault
            if awaits_more:
                generation.changed_ms = now
                continue
            if now - generation.changed_ms < self._settings.rotate_ms and self._settings.follow:
                continue
            if self._settings.follow and self._looks.since_ms <= generation.changed_ms + TICK_MS:
                # A copy that rotation has made has to be known as one, before it is read as new; and what has ended
                # must be older than what is looked for after a start.
                self.wake_scan = True
                continue
            held = 0 if generation.reader is None else generation.reader.held_bytes
            is_whole = generation.seen_bytes <= generation.read_at and not held
            if generation.replaced and not is_whole and self._go_on_beside(generation):
                continue
            if generation.replaced and self._packed.may_have(generation, now):
                continue
            self._reader.send_rest(generation)
            if not generation.is_drained:
                continue
            self._tell_unread(generation)
            self._generations.ending.remove(generation)
            generation.close()
            self._generations.note_over(
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
            self._ledger.note_gap(*of, generation.read_at, None, "bytes", lost)
            return
        if generation.fault:
            self._ledger.note_gap(*of, generation.read_at, None, "bytes", generation.fault)
            return
        if self._recognizer.is_read_as_copy(generation):
            return
        if seen_bytes > generation.read_at:
            lost = "truncated or replaced before it was read"
            self._ledger.note_gap(*of, generation.read_at, seen_bytes, "bytes", lost)
        if generation.replaced and not self._recognizer.has_copy(generation):
            lost = "truncated or replaced: what was written after the last look is not known"
            self._ledger.note_gap(*of, max(seen_bytes, generation.read_at), None, "bytes", lost)

    def _tell_lost(self, generation: Generation) -> None:
        """Tell of a generation of the store that no file has: what it had unread cannot be known any more."""
        self._generations.forget_lost(generation)
        was_empty = not generation.committed and not generation.identity.head_bytes
        is_read_anew = was_empty and generation.key in self._generations.present
        if not is_read_anew and not self._recognizer.is_read_as_copy(generation):
            lost = (generation.committed, None, "bytes", "removed or replaced while it was not read")
            self._ledger.note_gap(generation.source, generation.path, *lost)
        self._generations.note_over(generation)
        self._store.note(generation.row(ended=True))


def files_input(settings: Files, machinery: Machinery) -> FilesInput:
    """The engine with the settings of a table of the configuration."""
    return FilesInput(
        files_settings(settings),
        machinery.store,
        machinery.outlet,
        machinery.ledger,
        now_ms,
        file_clock_ns,
        machinery.guard,
        machinery.heart,
    )
