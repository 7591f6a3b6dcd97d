"""Compares, per partition and in order, the lines that were shipped with the lines that were consumed.

Both sides note a line as 12 bytes: CRC32 of its key (its file and block), its number in the file, CRC32 of its text.
The input of a partition is the sequence of these notes in the order of sending.  The output must be the same sequence,
ordered by offset, each offset counted once.  Delivery is at least once: when a consumer is killed between its note and
its commit, its successor reads some messages again.  These must be the same messages.

A consumer is another process, and may be killed.  It writes each note to its *spool*, a file of 24-byte entries,
before it commits.  So every committed message is in a spool, whenever the consumer is killed.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

LINE = struct.Struct(">III")
ENTRY = struct.Struct(">HHQ12s")  # topic (index), partition, offset, line
assert (LINE.size, ENTRY.size) == (12, 24)

DemoPartition = tuple[int, int]


def line_bytes(key: bytes, number: int, text: bytes) -> bytes:
    return LINE.pack(crc32(key), number, crc32(text))


class PartitionAccount(NamedTuple):
    """The result of one partition; ``fault`` is "" when output and input are the same."""

    lines: int
    bytes: int
    repeats: int
    checksum_in: str
    checksum_out: str
    fault: str


class Spool:
    """Reads the spool of one consumer; ``count``: entries read so far, repeats included."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0

    def news(self) -> list[tuple[int, int, int, bytes]]:
        """The entries since the last call.  An incomplete entry, of a killed consumer, is left out."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.count * ENTRY.size)
            data = file.read()
        data = data[: len(data) - len(data) % ENTRY.size]
        self.count += len(data) // ENTRY.size
        return list(ENTRY.iter_unpack(data))


class DemoLedger:
    """Input and output of all partitions.  ``lines_out`` counts each offset once."""

    def __init__(self) -> None:
        self._sent: dict[DemoPartition, bytearray] = {}
        self._bytes: dict[DemoPartition, int] = {}
        self._received: dict[DemoPartition, dict[int, bytes]] = {}
        self._repeats: dict[DemoPartition, int] = {}
        self._altered: dict[DemoPartition, int] = {}
        self.lines_in = 0
        self.lines_out = 0

    def sent(self, partition: DemoPartition, line: bytes, size: int) -> None:
        self._sent.setdefault(partition, bytearray()).extend(line)
        self._bytes[partition] = self._bytes.get(partition, 0) + size
        self.lines_in += 1

    def received(self, topic: int, number: int, offset: int, line: bytes) -> None:
        partition = (topic, number)
        seen = self._received.setdefault(partition, {})
        if offset not in seen:
            seen[offset] = line
            self.lines_out += 1
            return
        self._repeats[partition] = self._repeats.get(partition, 0) + 1
        if seen[offset] != line:
            self._altered[partition] = offset

    def accounts(self) -> dict[DemoPartition, PartitionAccount]:
        partitions = sorted(self._sent.keys() | self._received.keys())
        return {partition: self._account(partition) for partition in partitions}

    def _account(self, partition: DemoPartition) -> PartitionAccount:
        sent = bytes(self._sent.get(partition, b""))
        seen = self._received.get(partition, {})
        received = b"".join(seen[offset] for offset in sorted(seen))
        fault = "" if received == sent else _difference(sent, received)
        if partition in self._altered:
            fault = f"offset {self._altered[partition]} was delivered twice with different content"
        return PartitionAccount(
            lines=len(sent) // LINE.size,
            bytes=self._bytes.get(partition, 0),
            repeats=self._repeats.get(partition, 0),
            checksum_in=_checksum(sent),
            checksum_out=_checksum(received),
            fault=fault,
        )


def _checksum(lines: bytes) -> str:
    return hashlib.blake2b(lines, digest_size=6).hexdigest()


def _difference(sent: bytes, received: bytes) -> str:
    """Describes how ``received`` differs from ``sent``."""
    lines_sent, lines_received = _lines(sent), _lines(received)
    if sorted(lines_sent) == sorted(lines_received):
        first = next(
            index for index, pair in enumerate(zip(lines_sent, lines_received, strict=True)) if pair[0] != pair[1]
        )
        return f"out of order from line {first + 1} on"
    missing = len(set(lines_sent) - set(lines_received))
    foreign = len(set(lines_received) - set(lines_sent))
    return (
        f"{len(lines_sent)} lines went in and {len(lines_received)} came out: {missing} missing, {foreign} never sent"
    )


def _lines(data: bytes) -> list[bytes]:
    return [data[at : at + LINE.size] for at in range(0, len(data), LINE.size)]
