"""Identifies idempotent producers, and finds their repeated batches in a partition (KIP-98).

A producer numbers its records per partition.  For each producer id the partition's writer keeps its epoch, the next
sequence, the offsets of its last ``RECENT_MAX`` batches, the number of consecutive records before the next one that it
has admitted (``admitted``), and the timestamp of the last one.  The rules are those of Kafka 4 (``ProducerAppendInfo``,
``ProducerStateEntry``), which ``tests/clients/test_as_kafka.py`` compares case by case.  A batch may be::

    the next one                         appended
    one of the recent ones               a repeat, answered with its first offsets: a Kafka producer keeps at most
                                         five requests in flight
    wholly among those admitted          refused as a duplicate: it is in the log, at an offset that is not kept.  The
                                         native producer keeps many more in flight and takes it for delivered; Kafka's
                                         clients are told that it is out of order, as Kafka's brokers tell them
    any other                            refused as out of order: it may never have been written

A producer that is not known may start anywhere: its topic was made again, its records were removed, or the log is a
restored one.  One whose first batches were refused only because nothing could be written, or because it was not known
yet whether it is in a transaction, is not unknown: it has to send the first of these again, or begin a new epoch.
Otherwise what it has sent behind them would enter before them.  (When a writer dies, workers end the connections whose
batches it had: ``network.produce_requests``.)

A producer is *in a transaction* from its first transactional batch on, to its next marker (``records.markers``), and is
not forgotten meanwhile.  A marker with a newer epoch begins that epoch.

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
"""The file in a partition's directory with the last stored :class:`ProducersSnapshot`."""
RECENT_MAX: Final = 5
KNOWN_MAX: Final = SEQUENCE_MASK >> 1
VERSION: Final = 5

Recent = tuple[int, int, int]  # first sequence, first record's offset, offset after the last
ProducerEntry = tuple[int, int, int, tuple[Recent, ...], int, int, int, int, int]
"""Epoch, next sequence, known, recent batches, largest timestamp of the last batch or marker in ms, where that ends,
where the first batch of its open transaction begins (-1: none is open), coordinator epoch of its last marker and the
timestamp of that in ms (both -1: there is none)."""
NO_MARKER: Final = -1
NOT_OPEN: Final = -1


def new_producer_id(random_bytes: Callable[[int], bytes] = os.urandom) -> int:
    """An id for a new producer, which no other one has: it is drawn from the system's randomness.

    There is no counter that could go back when a data directory is restored, cloned or lost, when a virtual machine
    returns to a snapshot or the clock is set, and nobody has to be asked.  A producer can be taken for another one only
    by a partition that remembers that one: of at most ``producers.ids_max`` ids.  With 10,000 of these that happens to
    a new producer with a probability of 10**4 / 2**62, so to one of 10**9 producers with 2 in a million.
    """
    return int.from_bytes(random_bytes(8), "big") >> 64 - PRODUCER_ID_BITS


class ProducersSnapshot(NamedTuple):
    """The state of the producers after every batch below offset ``end``; immutable."""

    end: int
    entries: tuple[tuple[int, ProducerEntry], ...]

    def encode(self) -> bytes:
        """Encode to a checksum and a msgpack array: version, end, entries (the one silent longest first)."""
        body: bytes = msgpack.packb([VERSION, *self])
        return crc32c(body).to_bytes(4, "big") + body

    @classmethod
    def decode(cls, data: bytes) -> ProducersSnapshot | None:
        """Decode a snapshot; None when it is damaged, or of another version."""
        if len(data) < 5 or crc32c(data[4:]) != int.from_bytes(data[:4], "big"):
            return None
        version, *fields = msgpack.unpackb(data[4:], use_list=False, strict_map_key=False)
        return cls(*fields) if version == VERSION and len(fields) == len(cls._fields) else None


class Sequences:
    """Checks and records the sequences of the producers of one partition, at most ``ids_max`` of them."""

    def __init__(self, ids_max: int) -> None:
        self._ids_max = ids_max
        self._entries: OrderedDict[int, ProducerEntry] = OrderedDict()
        """The producers with batches in the log or in this turn, the one silent longest first."""
        self._undo: dict[int, ProducerEntry | None] = {}
        """What the producers that have changed since the last commit were then; None: unknown."""
        self._began: list[tuple[int, int]] = []
        """The transactions that batches of this turn have begun: producer id, where the first begins."""
        self._refused: OrderedDict[int, tuple[int, int]] = OrderedDict()
        """Epoch and sequence of the first refused batch of producers that have none in the log."""

    def __len__(self) -> int:
        return len(self._entries)

    def check_sequence(self, producer_id: int, epoch: int, sequence: int, count: int) -> tuple[int, int] | None:
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
        known_epoch, next_sequence, admitted, recent, *_ = entry
        if epoch == known_epoch:
            if sequence == next_sequence:
                return None
            for first, base, end in recent:
                if first == sequence and end - base == count:
                    return base, end
            if count <= (next_sequence - sequence) & SEQUENCE_MASK <= admitted:
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
                f"producer {producer_id}: sequence {sequence}, expected {expected}, which was refused"
            )

    def record(
        self,
        producer_id: int,
        epoch: int,
        sequence: int,
        count: int,
        base: int,
        end: int,
        timestamp_ms: int,
        begins: int = NOT_OPEN,
    ) -> None:
        """Record an admitted batch of ``count`` records at offsets ``base`` to ``end`` - 1.

        ``begins``: where a transactional batch begins.
        """
        entry = self._entries.get(producer_id)
        first, coordinator_epoch, ended_ms = (NOT_OPEN, NO_MARKER, NO_MARKER) if entry is None else entry[6:]
        if begins != first == NOT_OPEN:
            first = begins
            self._began.append((producer_id, begins))
        if entry is not None and entry[0] == epoch and entry[1] == sequence:
            admitted, recent = min(entry[2] + count, KNOWN_MAX), entry[3][1 - RECENT_MAX :]
        else:
            admitted, recent = min(count, KNOWN_MAX), ()
        self._undo.setdefault(producer_id, entry)
        self._entries[producer_id] = (
            epoch,
            (sequence + count) & SEQUENCE_MASK,
            admitted,
            (*recent, (sequence, base, end)),
            timestamp_ms,
            end,
            first,
            coordinator_epoch,
            ended_ms,
        )
        # At once, as recovery does: who is forgotten does not depend on where a turn ends.
        self._entries.move_to_end(producer_id)
        self._forget_one()

    def record_marker(self, producer_id: int, epoch: int, coordinator_epoch: int, end: int, timestamp_ms: int) -> None:
        """Record a marker that is in the log and ends at ``end``."""
        assert not self._undo
        entry = self._entries.get(producer_id)
        following, admitted, recent = (0, 0, ()) if entry is None or epoch > entry[0] else entry[1:4]
        marker = coordinator_epoch, timestamp_ms
        self._entries[producer_id] = epoch, following, admitted, recent, timestamp_ms, end, NOT_OPEN, *marker
        self._entries.move_to_end(producer_id)
        self._forget_one()
        self._undo.clear()

    def _forget_one(self) -> None:
        """With too many producers, forget the one that is silent longest and in no transaction."""
        if len(self._entries) <= self._ids_max:
            return
        silent_longest = next(
            (producer_id for producer_id, entry in self._entries.items() if entry[6] == NOT_OPEN), None
        )
        if silent_longest is not None:
            self._undo.setdefault(silent_longest, self._entries.pop(silent_longest))

    def check_epoch(self, producer_id: int, epoch: int) -> int:
        """The epoch of the coordinator that has ended the last transaction of a producer, or NO_MARKER.

        Raises:
            StaleProducerEpoch: a newer incarnation of the producer has written.
        """
        entry = self._entries.get(producer_id)
        if entry is None:
            return NO_MARKER
        if epoch < entry[0]:
            raise StaleProducerEpoch(f"producer {producer_id}: epoch {epoch}, but {entry[0]} has written")
        return entry[7]

    def ended_ms(self, producer_id: int) -> int:
        """When the end was decided that the last marker of a producer has, in ms since 1970; -1: it has none."""
        entry = self._entries.get(producer_id)
        return NO_MARKER if entry is None else entry[8]

    def is_open(self, producer_id: int, epoch: int | None = None) -> bool:
        """Whether a producer, with this epoch, is in a transaction, of which batches are in the log or in this turn."""
        entry = self._entries.get(producer_id)
        return entry is not None and entry[6] != NOT_OPEN and epoch in (None, entry[0])

    def open_transactions(self) -> list[tuple[int, int]]:
        """The producers that are in a transaction, and where its first batch begins."""
        return [(producer_id, entry[6]) for producer_id, entry in self._entries.items() if entry[6] != NOT_OPEN]

    def producers_in_transactions(self) -> list[tuple[int, int, int]]:
        """Id and epoch of the producers that are in a transaction, and what a marker has as coordinator epoch."""
        return [
            (producer_id, entry[0], max(0, entry[7]))
            for producer_id, entry in self._entries.items()
            if entry[6] != NOT_OPEN
        ]

    def commit(self) -> list[tuple[int, int]]:
        """Keep the records since the last commit: their batches are in the log; return what they have begun."""
        if self._refused:
            for producer_id in self._undo:
                self._refused.pop(producer_id, None)
        self._undo.clear()
        began, self._began = self._began, []
        return began

    def rollback(self) -> None:
        """Undo the records since the last commit: their batches are not in the log."""
        for producer_id, before in self._undo.items():
            if before is not None:
                self._entries[producer_id] = before
            elif (entry := self._entries.pop(producer_id, None)) is not None:
                epoch, next_sequence, admitted, *_ = entry
                self.note_refused(producer_id, epoch, (next_sequence - admitted) & SEQUENCE_MASK)
        # The one silent longest comes first again: its last batch or marker ends at the lowest offset.
        self._entries = OrderedDict(sorted(self._entries.items(), key=lambda item: item[1][5]))
        self._undo.clear()
        self._began.clear()

    def note_refused(self, producer_id: int, epoch: int, sequence: int) -> None:
        """Note a batch that is to come again, and before all that follow it; of several the first is noted."""
        if producer_id not in self._entries and self._refused.get(producer_id, (-1, 0))[0] != epoch:
            self._refused[producer_id] = epoch, sequence
            if len(self._refused) > self._ids_max:
                self._refused.popitem(last=False)

    def snapshot(self, end: int) -> ProducersSnapshot:
        """Take a snapshot after every batch below offset ``end``.  Everything must be committed."""
        assert not self._undo
        return ProducersSnapshot(end, tuple(self._entries.items()))

    def restore(self, snapshot: ProducersSnapshot) -> None:
        """Replace the state by that of a snapshot."""
        excess = len(snapshot.entries) - self._ids_max
        self._entries = OrderedDict(
            item for number, item in enumerate(snapshot.entries) if number >= excess or item[1][6] != NOT_OPEN
        )
        self._undo.clear()
        self._refused.clear()
