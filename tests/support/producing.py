"""A partition as its writer uses it, without sockets and threads, and what it has promised so far.

:class:`Partition` checks, appends, flushes and removes batches of idempotent producers in the writer's order;
:class:`Promises` remembers what clients were told, and :func:`check_promises` compares a log that was opened again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from appliance.config import TopicSettings
from appliance.durable_files import System
from appliance.errors import DiskFull, DuplicateSequence, OutOfOrderSequence
from appliance.log import Log
from appliance.processes.writer.producers import Producers
from appliance.processes.writer.writer import delete_before
from appliance.records.batch import BatchHeader, check_batch, place
from appliance.records.encode import encode_batch

from .log_batches import headers_of

SETTINGS = TopicSettings(segment_bytes=1024, index_interval_bytes=256)
IDS_MAX = 100
Boot = tuple[int, int]


@dataclass(frozen=True)
class Sent:
    """One batch of a producer, where it was placed, and its bytes there."""

    producer: int
    sequence: int
    count: int
    start: int
    data: bytes

    @property
    def end(self) -> int:
        return self.start + len(self.data)


@dataclass
class Promises:
    """``batches``: what is in the log, by ascending offsets.  ``other``: what was placed, but refused or lost.

    ``lacked_room``: some snapshot may not have been stored, so that producers may have been forgotten.
    """

    batches: list[Sent] = field(default_factory=list)
    other: list[Sent] = field(default_factory=list)
    flushed: int = 0
    start: int = 0
    start_asked: int = 0
    lacked_room: bool = False

    def copy(self) -> Promises:
        return dataclasses.replace(self, batches=list(self.batches), other=list(self.other))

    def come_back(self, log: Log) -> None:
        """What is in the log that was opened again is what there is now."""
        there = {(start, data) for start, data, _ in contents(log)}
        every = [*self.batches, *self.other]
        found = {(sent.start, sent.data): sent for sent in every if (sent.start, sent.data) in there}
        removed = [sent for sent in self.batches if sent.end <= log.bases[0]]
        self.batches = [*removed, *sorted(found.values(), key=lambda sent: sent.start)]
        self.other = [sent for sent in every if sent not in self.batches]


def contents(log: Log) -> Iterator[tuple[int, bytes, BatchHeader]]:
    """Where each batch of the files starts, its bytes, its header."""
    data = b"".join((log.path / f"{base:020d}.log").read_bytes() for base in log.bases)
    for info, _, end in headers_of(log, log.bases[0]):
        start = end - info.size
        yield start, data[start - log.bases[0] : end - log.bases[0]], info


def count_of(producer: int, sequence: int) -> int:
    """How many records a batch has: a producer sends the same one again when it was refused."""
    return 1 + (3 * producer + sequence) % 4


def encoded(producer: int, sequence: int, count: int, size: int) -> memoryview:
    records = [(None, bytes([97 + sequence % 26]) * size, (), 1_000 + sequence) for _ in range(count)]
    identity = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
    return memoryview(bytearray(encode_batch(records, **identity)))  # type: ignore[arg-type]


class Partition:
    """Opens the log at ``path``.

    Raises:
        ApplianceError: it does not open.
    """

    def __init__(self, path: Path, promises: Promises, system: System, boot: Boot, segments_max: int = 2000) -> None:
        self.promises = promises
        self.log = Log.open(path, SETTINGS, lambda: 5_000, segments_max, boot=boot, system=system)
        self.producers = Producers(self.log, IDS_MAX, system)

    def next_sequence(self, producer: int) -> int:
        """What a producer sends next that was told of all that is in the log."""
        own = [batch for batch in self.promises.batches if batch.producer == producer]
        return own[-1].sequence + own[-1].count if own else 0

    def append(self, producer: int, size: int = 50) -> bool:
        """What a live producer sends next; false: the disk is full."""
        log, sequences = self.log, self.producers.sequences
        sequence = self.next_sequence(producer)
        count = count_of(producer, sequence)
        view = encoded(producer, sequence, count, size)
        info: BatchHeader = check_batch(view, 0, len(view), 1 << 24)
        assert sequences.check_sequence(producer, 0, sequence, count) is None
        start, end = log.end_offset, log.end_offset + info.size
        sequences.record(producer, 0, sequence, count, end - count, end, info.max_timestamp)
        place(view, 0, start, info.size, count)
        sent = Sent(producer, sequence, count, start, bytes(view))
        self.promises.other.append(sent)  # it may be on the disk as soon as it is written, or tried to
        try:
            log.append([(view, info)])
        except DiskFull:
            self.promises.lacked_room = True
            sequences.rollback()
            return False
        sequences.commit()
        self.promises.other.pop()
        self.promises.batches.append(sent)
        return True

    def flush(self) -> None:
        """Flush, show, and store the snapshot that waits for it."""
        self.log.flush()
        self.log.raise_high_watermark(self.log.end_offset)
        self.promises.flushed = self.log.flushed
        snapshot = self.producers.take_snapshot()
        if snapshot is not None:
            self.producers.store(snapshot)

    def delete_before(self, offset: int) -> None:
        self.promises.start_asked = max(self.promises.start_asked, min(offset, self.log.end_offset))
        delete_before(self.log, self.producers, offset, self.flush, lambda: None)
        self.promises.start = self.log.start
        assert self.log.start >= min(offset, self.log.end_offset)

    def close(self) -> None:
        self.flush()
        self.producers.store_all()
        self.log.close(clean=True)


def check_promises(promises: Promises, reopened: Partition) -> None:
    """Assert that nothing promised is missing, and nothing is taken for written that never was."""
    log = reopened.log
    there: set[tuple[int, int]] = set()
    assert log.flushed == log.end_offset >= promises.flushed, "flushed, and gone"
    assert promises.start <= log.start <= max(promises.start_asked, promises.start), "the start has moved"
    known = {(batch.start, batch.data) for batch in promises.batches + promises.other}
    flushed = {batch.start: batch.data for batch in promises.batches if batch.end <= promises.flushed}
    for start, data, info in contents(log):
        assert (start, data) in known, f"nobody wrote what stands at {start}"
        assert flushed.get(start, data) == data
        there.add((info.producer_id, info.base_sequence))
    _check_producers(promises, reopened, there)


def _check_producers(promises: Promises, reopened: Partition, there: set[tuple[int, int]]) -> None:
    log = reopened.log
    removed = {(batch.producer, batch.sequence) for batch in promises.batches if batch.end <= log.bases[0]}
    every = promises.batches + promises.other
    for batch in every:
        try:
            known = _is_known(reopened, batch.producer, batch.sequence, batch.count)
        except OutOfOrderSequence:
            continue
        if known:
            assert (batch.producer, batch.sequence) in there | removed, f"never written, but a repeat: {batch}"
    for producer in {batch.producer for batch in every}:
        acknowledged = [b for b in promises.batches if b.producer == producer and b.end <= promises.flushed]
        sequence = 0
        if acknowledged:
            last = acknowledged[-1]
            sequence = last.sequence + last.count
            if not promises.lacked_room:  # its answer may have got lost, so it may come again
                assert _is_known(reopened, producer, last.sequence, last.count), "forgotten"
        known = _is_known(reopened, producer, sequence, count_of(producer, sequence))  # raises: a live one is refused
        assert not known or (producer, sequence) in there


def _is_known(reopened: Partition, producer: int, sequence: int, count: int) -> bool:
    """Whether a batch is taken for a repeat; a producer with many in flight is told so by DuplicateSequence."""
    try:
        return reopened.producers.sequences.check_sequence(producer, 0, sequence, count) is not None
    except DuplicateSequence:
        return True
