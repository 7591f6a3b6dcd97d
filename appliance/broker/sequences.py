"""Identifies idempotent producers, and finds their repeated batches in a partition (KIP-98, without transactions).

A producer numbers its records per partition.  For each producer id the partition's writer keeps its epoch, the next
sequence, the offsets of its last ``RECENT_MAX`` batches, the number of consecutive records before the next one that it
has admitted (``known``), and the timestamp of the last one.  The rules are those of Kafka 4 (``ProducerAppendInfo``,
``ProducerStateEntry``), which ``tests/clients/test_as_kafka.py`` compares case by case.  A batch may be::

    the next one                         appended
    one of the recent ones               a repeat, answered with its first offsets: a Kafka producer keeps at most
                                         five requests in flight
    wholly among the ``known`` records   refused as a duplicate: it is in the log, at an offset that is not kept.  The
                                         native producer keeps many more in flight and takes it for delivered; Kafka's
                                         clients are told that it is out of order, as Kafka's brokers tell them
    any other                            refused as out of order: it may never have been written

A producer that is not known may start anywhere: its topic was made again, its records were removed, or the log is a
restored one.  One whose first batches were refused only because nothing could be written is not unknown: it has to send
the first of these again, or begin a new epoch.  Otherwise what it has sent behind them would enter before them.  (When
a writer dies, workers end the connections whose batches it had: ``network.producing``.)

The batches of a turn are recorded at once, and :meth:`Sequences.rollback` undoes it if they do not get into the log.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

import msgpack
from crc32c import crc32c

from ..errors import DuplicateSequence, OutOfOrderSequence, StaleProducerEpoch
from ..records.batch import SEQUENCE_MASK

PRODUCER_ID_BITS: Final = 62
"""Tasks of the Spark sink have ids of their own, from 2**62 on (``spark.sink``)."""
SNAPSHOT_NAME: Final = "producers"
"""The file in a partition's directory with the last stored :class:`Snapshot`."""
RECENT_MAX: Final = 5
KNOWN_MAX: Final = SEQUENCE_MASK >> 1
VERSION: Final = 3

Recent = tuple[int, int, int]  # first sequence, first record's offset, offset after the last
Entry = tuple[int, int, int, tuple[Recent, ...], int]
"""Epoch, next sequence, known, recent batches, largest timestamp of the last batch in ms."""


def new_producer_id(random_bytes: Callable[[int], bytes] = os.urandom) -> int:
    """An id for a new producer, which no other one has: it is drawn from the system's randomness.

    There is no counter that could go back when a data directory is restored, cloned or lost, when a virtual machine
    returns to a snapshot or the clock is set, and nobody has to be asked.  A producer can be taken for another one only
    by a partition that remembers that one: of at most ``producers.ids_max`` ids.  With 10,000 of these that happens to
    a new producer with a probability of 10**4 / 2**62, so to one of 10**9 producers with 2 in a million.
    """
    return int.from_bytes(random_bytes(8), "big") >> 64 - PRODUCER_ID_BITS


class Snapshot(NamedTuple):
    """The state of the producers after every batch below offset ``end``; immutable."""

    end: int
    entries: tuple[tuple[int, Entry], ...]

    def encode(self) -> bytes:
        """Encode to a checksum and a msgpack array: version, end, entries (the one silent longest first)."""
        body: bytes = msgpack.packb([VERSION, *self])
        return crc32c(body).to_bytes(4, "big") + body

    @classmethod
    def decode(cls, data: bytes) -> Snapshot | None:
        """Decode a snapshot; None when it is damaged, or of another version."""
        if len(data) < 5 or crc32c(data[4:]) != int.from_bytes(data[:4], "big"):
            return None
        version, *fields = msgpack.unpackb(data[4:], use_list=False, strict_map_key=False)
        return cls(*fields) if version == VERSION and len(fields) == len(cls._fields) else None


class Sequences:
    """Checks and records the sequences of the producers of one partition, at most ``ids_max`` of them."""

    def __init__(self, ids_max: int) -> None:
        self._ids_max = ids_max
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        """The producers with batches in the log or in this turn, the one silent longest first."""
        self._undo: dict[int, Entry | None] = {}
        """What the producers that have changed since the last commit were then; None: unknown."""
        self._refused: OrderedDict[int, tuple[int, int]] = OrderedDict()
        """Epoch and sequence of the first refused batch of producers that have none in the log."""

    def __len__(self) -> int:
        return len(self._entries)

    def check(self, producer_id: int, epoch: int, sequence: int, count: int) -> tuple[int, int] | None:
        """Check whether a batch of ``count`` records may be appended.

        Returns:
            None: append it, then :meth:`record` it.  Otherwise the (base, end) of a repeat.

        Raises:
            DuplicateSequence: it is in the log, where is not known.
            OutOfOrderSequence: batches before this one are missing: send them first.
            StaleProducerEpoch: a newer incarnation of this producer has written.
        """
        entry = self._entries.get(producer_id)
        if entry is None:
            if self._refused:
                self._check_refused(producer_id, epoch, sequence)
            return None
        known_epoch, next_sequence, known, recent, _ = entry
        if epoch == known_epoch:
            if sequence == next_sequence:
                return None
            for first, base, end in recent:
                if first == sequence and end - base == count:
                    return base, end
            if count <= (next_sequence - sequence) & SEQUENCE_MASK <= known:
                raise DuplicateSequence(f"producer {producer_id}: sequence {sequence} is in the log already")
            raise OutOfOrderSequence(f"producer {producer_id}: sequence {sequence}, expected {next_sequence}")
        if epoch < known_epoch:
            raise StaleProducerEpoch(f"producer {producer_id}: epoch {epoch}, but {known_epoch} has written")
        if sequence:
            raise OutOfOrderSequence(f"producer {producer_id}: a new epoch starts at sequence 0, not {sequence}")
        return None

    def _check_refused(self, producer_id: int, epoch: int, sequence: int) -> None:
        refused_epoch, expected = self._refused.get(producer_id, (epoch, sequence))
        if epoch == refused_epoch and sequence != expected:
            raise OutOfOrderSequence(
                f"producer {producer_id}: sequence {sequence}, expected {expected}, which could not be written"
            )

    def record(
        self, producer_id: int, epoch: int, sequence: int, count: int, base: int, end: int, timestamp_ms: int
    ) -> None:
        """Record an admitted batch of ``count`` records at offsets ``base`` to ``end`` - 1."""
        entry = self._entries.get(producer_id)
        if entry is not None and entry[0] == epoch and entry[1] == sequence:
            known, recent = min(entry[2] + count, KNOWN_MAX), entry[3][1 - RECENT_MAX :]
        else:
            known, recent = min(count, KNOWN_MAX), ()
        self._undo.setdefault(producer_id, entry)
        self._entries[producer_id] = (
            epoch,
            (sequence + count) & SEQUENCE_MASK,
            known,
            (*recent, (sequence, base, end)),
            timestamp_ms,
        )
        # At once, as recovery does: who is forgotten does not depend on where a turn ends.
        self._entries.move_to_end(producer_id)
        if len(self._entries) > self._ids_max:
            silent_longest, forgotten = self._entries.popitem(last=False)
            self._undo.setdefault(silent_longest, forgotten)

    def commit(self) -> None:
        """Keep the records since the last commit: their batches are in the log."""
        if self._refused:
            for producer_id in self._undo:
                self._refused.pop(producer_id, None)
        self._undo.clear()

    def rollback(self) -> None:
        """Undo the records since the last commit: their batches are not in the log."""
        for producer_id, before in self._undo.items():
            if before is not None:
                self._entries[producer_id] = before
            elif (entry := self._entries.pop(producer_id, None)) is not None:
                epoch, next_sequence, known, *_ = entry
                self._refused[producer_id] = epoch, (next_sequence - known) & SEQUENCE_MASK
                if len(self._refused) > self._ids_max:
                    self._refused.popitem(last=False)
        # The one silent longest comes first again: its last batch ends at the lowest offset.
        self._entries = OrderedDict(sorted(self._entries.items(), key=lambda item: item[1][3][-1][2]))
        self._undo.clear()

    def snapshot(self, end: int) -> Snapshot:
        """Take a snapshot after every batch below offset ``end``.  Everything must be committed."""
        assert not self._undo
        return Snapshot(end, tuple(self._entries.items()))

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the state by that of a snapshot."""
        self._entries = OrderedDict(snapshot.entries[-self._ids_max :])
        self._undo.clear()
        self._refused.clear()
