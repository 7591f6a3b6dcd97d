"""Finds repeated batches of idempotent producers in a partition (KIP-98, without transactions).

A producer numbers its records per partition.  For each producer id the partition's writer keeps its epoch, the next
sequence, the offsets of its last ``RECENT_MAX`` batches, and the number of consecutive records before the next one that
it has admitted (``known``).  A batch may be::

    the next one                         appended
    one of the recent ones               a repeat, answered with its first offsets: a Kafka producer keeps at most
                                         five requests in flight
    wholly among the ``known`` records   a repeat, answered as written at an unknown offset: the native producer
                                         keeps many more in flight
    any other                            refused as out of order: it may never have been written

An unknown producer must start at sequence 0.  Otherwise its second batch could be appended before its first, when the
first was lost with a writer.  Once ``forgotten`` is set, an unknown producer may start anywhere, as with Kafka's
brokers: its earlier batches may have been written.  It is set when there were more than ``ids_max`` producers (the one
silent longest is forgotten first), and when the stored state and part of the log are gone.  Earlier batches of such a
producer are not ``known``, so they are never taken for repeats.

Each entry is an immutable tuple, so putting the old entries back undoes a group of batches.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

import msgpack
from crc32c import crc32c

from ..errors import OutOfOrderSequence, StaleProducerEpoch
from ..records.batch import SEQUENCE_MASK

RECENT_MAX: Final = 5
UNKNOWN: Final = -1
KNOWN_MAX: Final = SEQUENCE_MASK >> 1
VERSION: Final = 2

Recent = tuple[int, int, int]  # first sequence, first record's offset, offset after the last
Entry = tuple[int, int, int, tuple[Recent, ...]]  # epoch, next sequence, known, recent batches


class Snapshot(NamedTuple):
    """The state of the producers after every batch below offset ``end``; immutable."""

    end: int
    forgotten: bool
    entries: tuple[tuple[int, Entry], ...]

    def encode(self) -> bytes:
        """Encode to a checksum and a msgpack array: version, end, forgotten, entries (the one silent longest first)."""
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
    """Checks and records the sequences of the producers of one partition."""

    def __init__(self, ids_max: int) -> None:
        self._ids_max = ids_max
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._undo: dict[int, Entry | None] = {}
        """What the producers that have changed since the last commit were then; None: unknown."""
        self.forgotten = self._was_forgotten = False

    def __len__(self) -> int:
        return len(self._entries)

    def check(self, producer_id: int, epoch: int, sequence: int, count: int) -> tuple[int, int] | None:
        """Check whether a batch of ``count`` records may be appended.

        Returns:
            None: append it, then :meth:`record` it.  Otherwise the (base, end) of a repeat, UNKNOWN when they are no
            longer kept.

        Raises:
            OutOfOrderSequence: batches before this one are missing: send them first.
            StaleProducerEpoch: a newer incarnation of this producer has written.
        """
        entry = self._entries.get(producer_id)
        if entry is None:
            if sequence and not self.forgotten:
                raise OutOfOrderSequence(f"producer {producer_id}: starts at sequence {sequence}, expected 0")
            return None
        known_epoch, next_sequence, known, recent = entry
        if epoch == known_epoch:
            if sequence == next_sequence:
                return None
            for first, base, end in recent:
                if first == sequence and end - base == count:
                    return base, end
            if count <= (next_sequence - sequence) & SEQUENCE_MASK <= known:
                return UNKNOWN, UNKNOWN
            raise OutOfOrderSequence(f"producer {producer_id}: sequence {sequence}, expected {next_sequence}")
        if epoch < known_epoch:
            raise StaleProducerEpoch(f"producer {producer_id}: epoch {epoch}, but {known_epoch} has written")
        if sequence:
            raise OutOfOrderSequence(f"producer {producer_id}: a new epoch starts at sequence 0, not {sequence}")
        return None

    def record(self, producer_id: int, epoch: int, sequence: int, count: int, base: int, end: int) -> None:
        """Record an admitted batch of ``count`` records at offsets ``base`` to ``end`` - 1."""
        entry = self._entries.get(producer_id)
        if producer_id not in self._undo:
            self._undo[producer_id] = entry
        if entry is not None and entry[0] == epoch and entry[1] == sequence:
            known, recent = min(entry[2] + count, KNOWN_MAX), entry[3][1 - RECENT_MAX :]
        else:
            known, recent = min(count, KNOWN_MAX), ()
        self._entries[producer_id] = (
            epoch,
            (sequence + count) & SEQUENCE_MASK,
            known,
            (*recent, (sequence, base, end)),
        )
        self._entries.move_to_end(producer_id)
        if len(self._entries) > self._ids_max:
            silent_longest, entry = self._entries.popitem(last=False)
            self._undo.setdefault(silent_longest, entry)
            self.forgotten = True

    def commit(self) -> None:
        """Keep the records since the last commit: their batches are in the log."""
        self._undo.clear()
        self._was_forgotten = self.forgotten

    def rollback(self) -> None:
        """Undo the records since the last commit: their batches are not in the log."""
        for producer_id, entry in self._undo.items():
            if entry is None:
                self._entries.pop(producer_id, None)
            else:
                self._entries[producer_id] = entry
        # The one silent longest comes first again: its last batch ends at the lowest offset.
        self._entries = OrderedDict(sorted(self._entries.items(), key=lambda item: item[1][3][-1][2]))
        self.forgotten = self._was_forgotten
        self._undo.clear()

    def snapshot(self, end: int) -> Snapshot:
        """Take a snapshot after every batch below offset ``end``.  Everything must be committed."""
        assert not self._undo
        return Snapshot(end, self.forgotten, tuple(self._entries.items()))

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the state by that of a snapshot."""
        entries = snapshot.entries[-self._ids_max :]
        self._entries = OrderedDict(entries)
        self.forgotten = self._was_forgotten = snapshot.forgotten or len(entries) < len(snapshot.entries)
        self._undo.clear()
