"""The demo's accounts: every line that went in, every line that came out, per partition and in order.

Both sides write a line down as 12 bytes: CRC32 of its key (its file), its number in the file, CRC32 of its
text.  What went into a partition is the sequence of these in the order of sending.  What came out is the same
sequence, ordered by offset, each offset counted once: delivery is at least once, so a consumer that was
killed between writing down and committing makes its successor read some messages again, and these must be the
same messages.

Consumers are other processes, and killed on the way; so each writes a *spool*, a file of 24-byte entries,
before it commits.  What has been committed is in a spool, whatever happens to the consumer.
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

Partition = tuple[int, int]


def line_bytes(key: bytes, number: int, text: bytes) -> bytes:
    return LINE.pack(crc32(key), number, crc32(text))


class Account(NamedTuple):
    """One partition at the end; ``fault`` is "" when what came out is what went in."""

    lines: int
    bytes: int
    repeats: int
    checksum_in: str
    checksum_out: str
    fault: str


class Spool:
    """Reads what one consumer has written down so far; ``count`` includes repeats."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0

    def news(self) -> list[tuple[int, int, int, bytes]]:
        """Entries that have come since the last call; the incomplete end of a killed consumer is no entry."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.count * ENTRY.size)
            data = file.read()
        data = data[: len(data) - len(data) % ENTRY.size]
        self.count += len(data) // ENTRY.size
        return list(ENTRY.iter_unpack(data))


class Ledger:
    """``lines_out`` counts each offset once."""

    def __init__(self) -> None:
        self._sent: dict[Partition, bytearray] = {}
        self._bytes: dict[Partition, int] = {}
        self._received: dict[Partition, dict[int, bytes]] = {}
        self._repeats: dict[Partition, int] = {}
        self._altered: dict[Partition, int] = {}
        self.lines_in = 0
        self.lines_out = 0

    def sent(self, place: Partition, line: bytes, size: int) -> None:
        self._sent.setdefault(place, bytearray()).extend(line)
        self._bytes[place] = self._bytes.get(place, 0) + size
        self.lines_in += 1

    def received(self, topic: int, partition: int, offset: int, line: bytes) -> None:
        place = (topic, partition)
        seen = self._received.setdefault(place, {})
        if offset not in seen:
            seen[offset] = line
            self.lines_out += 1
            return
        self._repeats[place] = self._repeats.get(place, 0) + 1
        if seen[offset] != line:
            self._altered[place] = offset

    def accounts(self) -> dict[Partition, Account]:
        places = sorted(self._sent.keys() | self._received.keys())
        return {place: self._account(place) for place in places}

    def _account(self, place: Partition) -> Account:
        sent = bytes(self._sent.get(place, b""))
        seen = self._received.get(place, {})
        came = b"".join(seen[offset] for offset in sorted(seen))
        fault = "" if came == sent else _difference(sent, came)
        if place in self._altered:
            fault = f"offset {self._altered[place]} was delivered twice with different content"
        return Account(
            lines=len(sent) // LINE.size,
            bytes=self._bytes.get(place, 0),
            repeats=self._repeats.get(place, 0),
            checksum_in=_checksum(sent),
            checksum_out=_checksum(came),
            fault=fault,
        )


def _checksum(lines: bytes) -> str:
    return hashlib.blake2b(lines, digest_size=6).hexdigest()


def _difference(sent: bytes, came: bytes) -> str:
    """What is wrong with ``came``, in words."""
    wanted, got = _lines(sent), _lines(came)
    if sorted(wanted) == sorted(got):
        first = next(index for index, pair in enumerate(zip(wanted, got, strict=True)) if pair[0] != pair[1])
        return f"out of order from line {first + 1} on"
    missing = len(set(wanted) - set(got))
    foreign = len(set(got) - set(wanted))
    return f"{len(wanted)} lines went in and {len(got)} came out: {missing} missing, {foreign} never sent"


def _lines(data: bytes) -> list[bytes]:
    return [data[at : at + LINE.size] for at in range(0, len(data), LINE.size)]
