"""Brings parts of log files into memory, in threads, while the loop of a worker serves others.

A loop sends and reads only what is in memory (``log.page_cache``).  Who needs more asks for it here, and goes on when
it has come::

    state      what happens                             whose it is          what ends the state
    queued     waits for a thread, in turn              nobody's             a thread takes it; or it is forgotten
    read       one stretch of it is read                the thread's         the stretch is read, or cannot be
    queued     it has more: it waits behind all others  nobody's             as above
    brought    all is in memory, or a disk has failed,  the loop's, for the  its reader was called: it sends, or looks
               which the file says to who reads there   rest of the turn     again, and may ask again
    forgotten  its connection was closed: its reader    the thread's, if it  the thread has read the stretch; nothing
               is never called                          was being read       comes of it

Two requests of a connection may wait at a time: the reply that it sends, and the next request, which has started.  Each
asks again only when it has been called.  A segment that retention unlinks meanwhile stays readable, since what was
asked for keeps its file open.  A partition that is deleted meanwhile is looked up again by whoever is called.

A file of which not even the names are in memory is a range of no bytes (:class:`.FileToOpen`), in the same queue.

After a stretch a thread asks the kernel for AHEAD times as much of what follows, without waiting for it: most who need
a stretch need the next one, and the disk reads that while the client takes this one.

Bounds: THREADS_MAX threads, each with STRETCH_BYTES of memory; they begin when they are needed.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Final

from ...log.page_cache import Brought, FileToOpen, LogFile
from ...wire.requests import FileRange, OpenFile
from ..connection import Lifetime

THREADS_MAX: Final = 4
"""Threads of a worker that wait for disks."""
STRETCH_BYTES: Final = 512 * 1024
"""What a thread reads for one reader before the others have their turn."""
AHEAD: Final = 2
READ_BYTES_MIN: Final = 64 * 1024
"""A header or a part of an index is read with what follows."""


class ColdRead:
    """What one reader waits for: the ``ranges`` that are left of it, and whom to call ``then``."""

    __slots__ = ("connection", "done", "ranges", "reader", "then")

    def __init__(
        self, reader: Hashable, connection: Lifetime, ranges: deque[FileRange], then: Callable[[], None]
    ) -> None:
        self.reader, self.connection, self.ranges, self.then = reader, connection, ranges, then
        self.done: list[tuple[LogFile, Brought]] = []

    def note_read(self, file: LogFile, brought: Brought) -> None:
        """Note what was read: stretches that follow each other as one."""
        if self.done and self.done[-1][0] is file and self.done[-1][1].stop == brought.start:
            brought = brought._replace(start=self.done.pop()[1].start)
        self.done.append((file, brought))


class ColdReads:
    """The queue of one worker, and its threads.  ``fd`` is readable when something has been brought."""

    def __init__(self, threads_max: int = THREADS_MAX) -> None:
        self._threads_max = threads_max
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._asked: dict[Hashable, ColdRead] = {}
        self._threads = self._idle = 0
        self._lock = threading.Condition()
        self._queue: dict[ColdRead, None] = {}
        self._brought: deque[ColdRead] = deque()
        self._believed: list[LogFile] = []

    @property
    def waiting(self) -> int:
        """How many readers wait."""
        return len(self._asked)

    def bring(
        self, reader: Hashable, connection: Lifetime, ranges: Iterable[FileRange], then: Callable[[], None]
    ) -> None:
        """Bring ranges into memory, and call ``then`` in the loop, unless the connection ends before.

        A reader asks again only when it has been called.
        """
        assert reader not in self._asked
        asked = self._asked[reader] = ColdRead(reader, connection, deque(map(_enough, ranges)), then)
        connection.own(asked, partial(self._forget, asked))
        with self._lock:
            self._queue[asked] = None
            if len(self._queue) > self._idle and self._threads < self._threads_max:
                self._threads += 1
                threading.Thread(target=self._run, name="cold reads", daemon=True).start()
            self._lock.notify()

    def _forget(self, asked: ColdRead) -> None:
        """Do not call anybody for this reader any more."""
        del self._asked[asked.reader]
        with self._lock:
            self._queue.pop(asked, None)
            asked.ranges.clear()

    def on_event(self) -> None:
        """Call those for whom all has been brought."""
        os.eventfd_read(self.fd)
        while self._brought:
            asked = self._brought.popleft()
            if self._asked.get(asked.reader) is not asked:
                continue
            del self._asked[asked.reader]
            asked.connection.disown(asked)
            for file, brought in asked.done:
                if file.memory is not None:
                    file.memory.bring(file.fd, brought)
                    self._believed.append(file)
            asked.then()

    def end_turn(self) -> None:
        """From now on nothing is believed: what has not been sent may be dropped by the kernel."""
        while self._believed:
            file = self._believed.pop()
            if file.memory is not None:
                file.memory.brought = 0, 0

    # ---- in the threads

    def _run(self) -> None:
        buffer = memoryview(bytearray(STRETCH_BYTES))
        while True:
            with self._lock:
                self._idle += 1
                while not self._queue:
                    self._lock.wait()
                self._idle -= 1
                asked, stretch = self.take_stretch()
            self.put(asked, stretch.file, read_stretch(stretch, buffer))
            del asked, stretch  # a file that nobody else needs is closed now, not when the next one is read

    def take_stretch(self) -> tuple[ColdRead, FileRange]:
        """Take the next stretch that is to be read."""
        asked = next(iter(self._queue))
        del self._queue[asked]
        piece = asked.ranges.popleft()
        if piece.count > STRETCH_BYTES:
            rest = piece.position + STRETCH_BYTES, piece.count - STRETCH_BYTES
            asked.ranges.appendleft(FileRange(piece.file, *rest))
            piece = piece._replace(count=STRETCH_BYTES)
        return asked, piece

    def put(self, asked: ColdRead, file: OpenFile, brought: Brought) -> None:
        """A stretch was read, as :func:`read_stretch` says."""
        assert isinstance(file, LogFile)
        with self._lock:
            asked.note_read(file, brought)
            if asked.ranges and brought.fault is None:
                self._queue[asked] = None
                self._lock.notify()
                return
            self._brought.append(asked)
        os.eventfd_write(self.fd, 1)


def _enough(piece: FileRange) -> FileRange:
    """A range of which reading is worth a turn of the disk; nothing stays nothing: that file is to be opened."""
    return piece if piece.count >= READ_BYTES_MIN or not piece.count else piece._replace(count=READ_BYTES_MIN)


def read_stretch(piece: FileRange, buffer: memoryview) -> Brought:
    """Read a range, as far as the file goes, and let the kernel begin to read what follows; or look up names."""
    file, start, position, stop = piece.file, piece.position, piece.position, piece.position + piece.count
    try:
        if isinstance(file, FileToOpen):
            file.look_up()
            return Brought(start, start, start, None)
        fd = file.fd
        while position < stop:
            count = os.preadv(fd, [buffer[: stop - position]], position)
            if not count:  # the file ends here
                break
            position += count
        ahead_stop = min(position + AHEAD * piece.count, os.fstat(fd).st_size)
        if ahead_stop > position:
            os.posix_fadvise(fd, position, ahead_stop - position, os.POSIX_FADV_WILLNEED)
    except OSError as error:
        return Brought(start, position, position, error)
    return Brought(start, position, max(position, ahead_stop), None)
