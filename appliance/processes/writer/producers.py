"""Keeps the state of a partition's idempotent producers, always equal to the state that follows from the log.

Every batch in the log carries its producer, epoch and sequence.  A snapshot (``producers`` in the partition's
directory) saves reading the whole log, and keeps the state of batches that retention has removed.  It holds the state
after every batch below its ``end``, and is stored only when the log is flushed up to there: written to another name,
synced, renamed, and the directory synced.  So the disk never holds a snapshot of batches that the log lacks.

When a writer opens its partition, with ``base`` the first segment and ``written`` the log end offset::

    snapshot                          state
    --------------------------------  ------------------------------------------
    base <= its end <= written        the snapshot, and the headers from its end
    none, damaged, another version    the headers
    its end > written: (a)            the headers
    its end < base: (b)               the headers

(a) ``log repair`` has truncated the log.  The snapshot is removed before the log can grow up to its end.
(b) There was no room to store a newer one.  The batches between may have changed any producer.

A producer that neither has may go on anywhere: a live one whose state is gone must not fail.  In all cases a batch is
acknowledged as a repeat only if the headers or the snapshot contain it (``broker.sequences``).

A snapshot is due every ``SNAPSHOT_BYTES`` of log (so opening reads about that much), before retention removes a segment
that the last one does not cover, and when the writer retires.  A snapshot that cannot be stored costs time at the next
start, or at worst makes producers unknown whose batches retention has removed; the state is never wrong.

The transactions that are open follow from the same, and so do the entries of the index of aborted ones
(``log.transactions``) for markers behind the snapshot's end: those before it are on the disk before it is.

Threads: the loop makes snapshots, the flusher stores them once the log is flushed (:meth:`Producers.take_snapshot`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ...broker.sequences import NOT_OPEN, SNAPSHOT_NAME, ProducersSnapshot, Sequences
from ...durable_files import SYSTEM, System, remove_file, replace_file, sync_directory
from ...errors import StorageFault, disk_fault
from ...log import FileCache, Log
from ...log.segment_list import headers_from, marker_at
from ...log.transactions import Aborted, LogTransactions
from ...records.batch import TRANSACTIONAL
from ...records.markers import is_marker

logger = logging.getLogger(__name__)

SNAPSHOT_BYTES: Final = 64 << 20


class Producers:
    """The producers of one partition: ``sequences``, and their snapshot on the disk."""

    def __init__(self, log: Log, ids_max: int, system: System = SYSTEM) -> None:
        """Restore the state for a log that has just been opened.

        Raises:
            StorageFault: the disk fails.
        """
        self.sequences: Sequences
        self._ids_max = ids_max
        self._log = log
        self._path: Path = log.path / SNAPSHOT_NAME
        self._system = system
        self.stored_end = -1
        """The end of the snapshot on the disk; -1 without one."""
        self._frozen_end = 0  # of the last one that was made
        self._frozen: ProducersSnapshot | None = None
        self._restore()

    def _restore(self) -> None:
        log = self._log
        snapshot = load(log.path)
        self.sequences, start, aborted = recovered(log.path, log.bases, log.end_offset, snapshot, self._ids_max)
        log.transactions = LogTransactions(self.sequences.open_transactions())
        try:
            log.aborted.restore(log.bases, log.end_offset, start, aborted)
        except OSError as error:
            raise disk_fault(error, log.path) from error
        if snapshot is not None and start == snapshot.end:
            self.stored_end = start
        self._frozen_end = start
        if snapshot is not None and snapshot.end > log.end_offset:
            self._remove()
        if log.end_offset - start > SNAPSHOT_BYTES:
            self.store_all()

    def _remove(self) -> None:
        """Remove the snapshot durably: once the log is as long again, it would be restored, and be wrong."""
        logger.warning("%s: reaches beyond the log's end %d: removed", self._path, self._log.end_offset)
        try:
            remove_file(self._path, self._system)
            sync_directory(self._path.parent, self._system)
        except OSError as error:
            raise StorageFault(f"{self._path}: {error.strerror}") from error

    # ---- storing

    @property
    def due(self) -> bool:
        return self._log.end_offset - self._frozen_end > SNAPSHOT_BYTES

    @property
    def frozen(self) -> bool:
        """Whether a snapshot waits for the log to be flushed."""
        return self._frozen is not None

    def freeze(self) -> None:
        """Make a snapshot of the present state, to be stored when the log is flushed up to its end offset."""
        self._frozen = self.sequences.snapshot(self._log.end_offset)
        self._frozen_end = self._frozen.end

    def take_snapshot(self) -> ProducersSnapshot | None:
        """Take the snapshot if it may be stored now.  Call it and :meth:`freeze` with the flusher's lock held."""
        frozen = self._frozen
        if frozen is None or frozen.end > self._log.flushed:
            return None
        self._frozen = None
        return frozen

    def store(self, snapshot: ProducersSnapshot) -> None:
        """Replace the snapshot on the disk; if that fails, the old one stays.

        Raises:
            StorageFault: the index of aborted transactions cannot be flushed.
        """
        try:
            self._replace(snapshot)
        except OSError as error:
            logger.warning("%s: producer snapshot not stored: %s", self._path, error.strerror)

    def _replace(self, snapshot: ProducersSnapshot) -> None:
        assert snapshot.end <= self._log.flushed
        self._log.aborted.sync()
        replace_file(self._path, snapshot.encode(), system=self._system)
        self.stored_end = snapshot.end

    def store_all(self) -> None:
        """Store the present state; everything written must be flushed, and the flusher idle.  Else as :meth:`store`."""
        self.store(self._present())

    def store_before_removal(self) -> None:
        """Store the present state as :meth:`store_all`, before batches go of which a part of it is not stored yet.

        Raises:
            DiskFull, StorageFault: the old one stays.
        """
        try:
            self._replace(self._present())
        except OSError as error:
            raise disk_fault(error, self._path) from error

    def _present(self) -> ProducersSnapshot:
        self._frozen = None
        self._frozen_end = self._log.end_offset
        return self.sequences.snapshot(self._log.end_offset)

    def covers(self, base: int) -> bool:
        """Whether the snapshot on the disk covers all segments before the one at ``base``."""
        return self.covers_to(base) or base <= self._log.bases[0]

    def covers_to(self, offset: int) -> bool:
        """Whether the snapshot on the disk has what all batches before ``offset`` tell."""
        return self.stored_end >= offset


def load(directory: Path) -> ProducersSnapshot | None:
    """The snapshot in a partition's directory; None without a valid one.

    Raises:
        StorageFault: it cannot be read.
    """
    path = directory / SNAPSHOT_NAME
    try:
        return ProducersSnapshot.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageFault(f"{path}: {error.strerror}") from error


def recovered(
    directory: Path, bases: Sequence[int], end: int, snapshot: ProducersSnapshot | None, ids_max: int
) -> tuple[Sequences, int, list[Aborted]]:
    """The state that follows from a log and the snapshot beside it; the offset from which headers were read; and the
    transactions that were aborted from there on.

    ``bases`` are those of the log's segments, ``end`` its log end offset.
    """
    sequences = Sequences(ids_max)
    if snapshot is not None and bases[0] <= snapshot.end <= end:
        sequences.restore(snapshot)
        start = snapshot.end
    else:
        start = bases[0]
    transactions, aborted = LogTransactions(sequences.open_transactions()), list[Aborted]()
    files = FileCache()
    for header, base, stop in headers_from(directory, bases, end, start):
        producer_id, epoch = header.producer_id, header.producer_epoch
        if is_marker(header):
            committed, coordinator_epoch = marker_at(files, directory, bases, stop - header.size)
            entry = None if committed else transactions.aborted(producer_id, stop)
            aborted += [] if entry is None else [entry]
            transactions.note_marker(producer_id, stop)
            sequences.record_marker(producer_id, epoch, coordinator_epoch, stop, header.max_timestamp)
        elif producer_id >= 0:
            begins = stop - header.size if header.attributes & TRANSACTIONAL else NOT_OPEN
            numbers = header.base_sequence, header.count
            sequences.record(producer_id, epoch, *numbers, base, stop, header.max_timestamp, begins)
            for producer in sequences.commit():
                transactions.note_batch(*producer)
    return sequences, start, aborted
