"""Keeps the segments of a log for its writer, and rolls the active one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..config import TopicSettings
from ..durable_files import File, System, remove_file
from ..records.batch import BatchHeader
from ..records.markers import MARKER_BYTES, Marker, read_marker
from .files import index_path, log_path
from .flush_ticket import Unsynced
from .page_cache import LogFile
from .reader import FileCache, LogReader
from .recovery import RecoveryPoint
from .segment import Batches, Segment, headers


class SegmentList:
    """The segments of a log: their ``bases``, ascending, and the ``active`` one, which is the last.

    ``clock_ms`` is the time of day, ``steady_ms`` a clock that cannot be set.  With ``segments_max`` segments, the
    active one is not rolled any more and grows.
    """

    def __init__(
        self,
        path: Path,
        bases: list[int],
        active: Segment,
        *,
        directory: File,
        unsynced: Unsynced,
        point: RecoveryPoint,
        system: System,
        clock_ms: Callable[[], int],
        steady_ms: Callable[[], int],
        segments_max: int,
    ) -> None:
        self.bases = bases
        self.active = active
        self._path = path
        self._directory = directory
        self._unsynced = unsynced
        self._point = point
        self._system = system
        self._clock_ms, self._steady_ms = clock_ms, steady_ms
        self._segments_max = segments_max
        self._born_steady_ms = steady_ms() - max(0, clock_ms() - active.state.born_ms)
        """Creation time of the active segment, by the clock that cannot be set."""

    def append(self, batches: Batches, size: int, settings: TopicSettings) -> None:
        """Append batches of ``size`` bytes in all: all of them or none.

        Raises:
            OSError, StorageFault: nothing has changed, or the disk fails.
        """
        if self._has_room(size, settings):
            self.active.append(batches, settings.index_interval_bytes)
        else:
            self._append_rolling(batches, settings)

    def _has_room(self, size: int, settings: TopicSettings) -> bool:
        """Whether the active segment has room for ``size`` bytes and is younger than ``segment.ms``."""
        active = self.active
        return (
            active.end + size - active.base <= settings.segment_bytes
            and self._steady_ms() - self._born_steady_ms < settings.segment_ms
        )

    def make_room(self, size: int, settings: TopicSettings) -> None:
        """Roll the active segment, where :meth:`append` would for one batch of ``size`` bytes.

        Raises:
            OSError: nothing has changed.
        """
        if len(self.bases) < self._segments_max and not self._has_room(size, settings):
            self.roll()

    def _append_rolling(self, batches: Batches, settings: TopicSettings) -> None:
        """Append in pieces, each to a segment with room for it.  Undo all pieces when one fails."""
        active, state, count, unsynced = self.active, self.active.state, len(self.bases), self._unsynced.files()
        born_steady_ms = self._born_steady_ms
        interval_bytes = settings.index_interval_bytes
        try:
            first = 0
            while first < len(batches):
                full = len(self.bases) >= self._segments_max
                if not full and not self._has_room(batches[first][1].size, settings):
                    self.roll()  # an empty one stays: a batch larger than a segment gets its own segment
                room = settings.segment_bytes - (self.active.end - self.active.base)
                stop = first
                while stop < len(batches) and (full or stop == first or batches[stop][1].size <= room):
                    room -= batches[stop][1].size
                    stop += 1
                self.active.append(batches[first:stop], interval_bytes)
                first = stop
        except OSError:
            for base in self.bases[count:]:
                remove_file(log_path(self._path, base), self._system)
                remove_file(index_path(self._path, base), self._system)
            del self.bases[count:]
            self._unsynced.keep_only(unsynced)
            self.active = active
            active.restore(state)
            self._born_steady_ms = born_steady_ms
            self._point.set_born_ms(state.born_ms)
            self._system.fsync(self._directory.fd)  # see roll
            raise

    def roll(self) -> None:
        """Seal the active segment and start the next one.  An empty segment stays; its age restarts at 0.

        Raises:
            OSError: nothing has changed.
            StorageFault: the disk fails.
        """
        sealed, born_ms = self.active, self._clock_ms()
        state = sealed.state
        if sealed.end == sealed.base:
            sealed.state = state._replace(born_ms=born_ms)
            self._born_steady_ms = self._steady_ms()
            self._point.set_born_ms(born_ms)
            return
        if sealed.was_cut:  # the next segment would contradict what a power loss may bring back behind this end
            self._unsynced.ticket(sealed, self._point, self._system).sync()
            sealed.was_cut = False
        sealed.seal()
        try:
            self.active = Segment.create(self._path, sealed.end, state.records, born_ms, self._system)
        except OSError:
            sealed.restore(state)
            # The active segment grows on.  A next segment that came back after a power loss would contradict it.
            self._system.fsync(self._directory.fd)
            raise
        # The new index too: when the older ones are retired, only its first entry has the number of records before.
        self._unsynced.on_rolled((sealed.log, sealed.index, self.active.index))
        self.bases.append(sealed.end)
        self._born_steady_ms = self._steady_ms()
        self._point.set_born_ms(born_ms)


def marker_at(files: FileCache, path: Path, bases: Sequence[int], offset: int) -> Marker:
    """What the marker of a log says that begins at ``offset``; ``files`` keeps its segment open for the next one."""
    base = bases[bisect_right(bases, offset) - 1]
    return read_marker(files.get(str(log_path(path, base)), LogFile).read(MARKER_BYTES, offset - base))


def headers_from(path: Path, bases: Sequence[int], end: int, offset: int) -> Iterator[tuple[BatchHeader, int, int]]:
    """Yields header, base offset and end offset of each batch of a log, from the one that contains ``offset`` on.

    ``bases`` are those of its segments, ``end`` its log end offset.
    """
    offset = max(offset, bases[0])
    piece = LogReader(path, FileCache(2)).locate(bases, end, offset, 1)
    first = 0 if piece is None else piece.position
    for base, following in zip(bases, [*bases[1:], end], strict=True):
        if following > offset:
            file = File(log_path(path, base))
            for position, header in headers(file, base, first if base <= offset else 0, following - base):
                stop = base + position + header.size
                yield header, stop - header.span, stop
