"""Idempotent producers: which batches of a partition have been written before (KIP-98, without transactions).

A producer numbers its records per partition.  For each producer id the partition's writer remembers its epoch, the
sequence that must come next, and where its last ``RECENT_MAX`` batches went: a Kafka producer keeps at most five
requests in flight, so a repeat is one of these and is answered with its first offsets.  The native producer keeps
many more; a repeat from further back is known by its number, and answered as written at an unknown offset.

The memory is bounded: beyond ``ids_max`` producers the one that was silent longest is forgotten.  Until that has
happened a producer that is not known must start at sequence 0: otherwise its second batch could enter before its
first, when the first died with a writer.  Afterwards it may start anywhere, as with Kafka's brokers.

Each entry is an immutable tuple, so a group of batches is undone by putting the old entries back.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgpack
from crc32c import crc32c

from ..errors import OutOfOrderSequence, StaleProducerEpoch

RECENT_MAX: Final = 5
UNKNOWN: Final = -1
SEQUENCE_MASK: Final = 0x7FFF_FFFF
"""Sequences wrap from 2**31 - 1 to 0."""

Recent = tuple[int, int, int]  # first sequence, first record's offset, offset after the last
Entry = tuple[int, int, tuple[Recent, ...]]  # epoch, next sequence, recent batches


class Sequences:
    """The producers of one partition."""

    def __init__(self, ids_max: int) -> None:
        self._ids_max = ids_max
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._undo: dict[int, Entry | None] = {}
        self._forgetful = False

    def __len__(self) -> int:
        return len(self._entries)

    def check(self, producer_id: int, epoch: int, sequence: int) -> tuple[int, int] | None:
        """Whether a batch may be appended.

        Returns:
            None: append it, then :meth:`record` it.  Otherwise it is a repeat, and these are its (base, end),
            UNKNOWN where they are no longer remembered.

        Raises:
            OutOfOrderSequence: batches before this one are missing: send them first.
            StaleProducerEpoch: a newer incarnation of this producer has written.
        """
        entry = self._entries.get(producer_id)
        if entry is None:
            if sequence and not self._forgetful:
                raise OutOfOrderSequence(f"producer {producer_id}: starts at sequence {sequence}, expected 0")
            return None
        known_epoch, next_sequence, recent = entry
        if epoch == known_epoch:
            if sequence == next_sequence:
                return None
            for first, base, end in recent:
                if first == sequence:
                    return base, end
            if (sequence - next_sequence) & SEQUENCE_MASK > SEQUENCE_MASK >> 1:
                return UNKNOWN, UNKNOWN  # behind: numbers are consecutive, so it was admitted before
            raise OutOfOrderSequence(f"producer {producer_id}: sequence {sequence}, expected {next_sequence}")
        if epoch < known_epoch:
            raise StaleProducerEpoch(f"producer {producer_id}: epoch {epoch}, but {known_epoch} has written")
        if sequence:
            raise OutOfOrderSequence(f"producer {producer_id}: a new epoch starts at sequence 0, not {sequence}")
        return None

    def record(self, producer_id: int, epoch: int, sequence: int, count: int, base: int, end: int) -> None:
        """Remember an admitted batch of ``count`` records at offsets ``base`` to ``end`` - 1."""
        entry = self._entries.get(producer_id)
        if producer_id not in self._undo:
            self._undo[producer_id] = entry
        recent = entry[2][1 - RECENT_MAX :] if entry is not None and entry[0] == epoch else ()
        self._entries[producer_id] = (
            epoch,
            (sequence + count) & SEQUENCE_MASK,
            (*recent, (sequence, base, end)),
        )
        self._entries.move_to_end(producer_id)
        if len(self._entries) > self._ids_max:
            self._entries.popitem(last=False)
            self._forgetful = True

    def commit(self) -> None:
        """What was recorded since the last commit is in the log."""
        self._undo.clear()

    def rollback(self) -> None:
        """What was recorded since the last commit is not in the log."""
        for producer_id, entry in self._undo.items():
            if entry is None:
                self._entries.pop(producer_id, None)
            else:
                self._entries[producer_id] = entry
        self._undo.clear()

    def snapshot(self, end: int) -> bytes:
        """The state after every batch below offset ``end``, with a checksum in front."""
        body: bytes = msgpack.packb([end, self._forgetful, list(self._entries.items())])
        return crc32c(body).to_bytes(4, "big") + body

    def restore(self, snapshot: bytes) -> int | None:
        """Take the state from a snapshot and return its ``end``; None, and nothing taken, when it is damaged."""
        if len(snapshot) < 5 or crc32c(snapshot[4:]) != int.from_bytes(snapshot[:4], "big"):
            return None
        end, forgetful, entries = msgpack.unpackb(snapshot[4:], use_list=False, strict_map_key=False)
        self._entries = OrderedDict(entries[-self._ids_max :])
        self._forgetful = forgetful or len(entries) > self._ids_max
        self._undo.clear()
        return int(end)
