"""Kafka requests that are wrong in every way, written from kafka-python's definitions of the messages.

Every API in every version that is advertised, and versions and APIs that are not.  Values are extreme, counts and
lengths may lie, frames may be chopped, prolonged or mutated.  What is created is called after :data:`NAMES`, so that
nobody else's topics and groups are hit but by name.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import Any

from appliance.records.encode import encode_batch
from appliance.wire.kafka.apis import APIS, SERVED_BY_WORKERS
from tests.support.kafka_messages import message

NAMES = [f"hostile-{number}" for number in range(8)]
ODD_NAMES = [
    "",
    ".",
    "..",
    "a/b",
    "/",
    "ü",
    "\0",
    "\x1b]0;x\x07",
    "n" * 249,
    "n" * 250,
    "n" * 255,
    "n" * 256,
]
ODD_NAMES += ["../../etc", "hostile-0/../x", "%2e%2e", "\u202e", "__consumer_offsets", "a.b", "a_b", " ", "\n"]
COUNTS = (0, 1, 1, 1, 2, 3, 17)
LARGE_COUNTS = (1_000, 10_000, 40_000, 100_001)
FRAME_BYTES_MAX = 1_500_000
"""About where a frame ends that would become larger."""
LIES = (-2, -1, 0, 1, 127, 128, 2**15 - 1, 2**16, 2**24, 2**31 - 1)
VERSIONS = [(key, version) for key, api in APIS.items() for version in range(api.version_min, api.version_max + 1)]
WORKER_VERSIONS = [(key, version) for key, version in VERSIONS if key in SERVED_BY_WORKERS]
TIMES_MS = (0, 1, 100, 1_000, 6_000, -1, 2**31 - 1, -(2**31))
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Writer:
    """Writes one request; ``flaw`` is what is wrong with it."""

    def __init__(self, rng: Random, version: int, flexible: bool, flaw: str) -> None:
        self._rng = rng
        self._version = version
        self._flexible = flexible
        self._flaw = flaw
        self._large = flaw == "large"
        self.out = bytearray()

    def struct(self, definition: Any) -> None:
        for field in definition.untagged_fields(self._version):
            if len(self.out) > FRAME_BYTES_MAX:
                return
            self._field(field)
        self.tags()

    def tags(self) -> None:
        if not self._flexible:
            return
        count = 0
        if self._flaw == "tags" and self._rng.random() < 0.5:
            count = self._rng.choice((1, 8, 9, 100, 5_000))
        self._varint(count)
        for number in range(count):
            data = self._rng.randbytes(self._rng.choice((0, 1, 20)))
            self._varint(self._rng.choice((number, 0, 2**31 - 1)))
            self._varint(len(data))
            self.out += data

    def _field(self, field: Any) -> None:
        rng = self._rng
        if field.is_struct():
            present = rng.choice((1, 1, 255, 0))
            self.out.append(present)
            if present != 255:
                self.struct(field)
            return
        null = 0.9 if field.name == "transactional_id" else 0.1
        if field.nullable_for_version_q(self._version) and rng.random() < null:
            self._length(-1, 4 if field.is_array() else 2 if field.type_str == "string" else 4)
        elif field.is_array():
            inner = field.array_of
            count = self._count(struct_array=field.is_struct_array())
            self._length(self._lied(count), 4)
            for _ in range(count):
                if len(self.out) > FRAME_BYTES_MAX:
                    return
                if field.is_struct_array():
                    self.struct(inner)
                else:
                    self._leaf(inner.type_str if hasattr(inner, "type_str") else str(inner), field.name)
        else:
            self._leaf(field.type_str, field.name)

    def _count(self, *, struct_array: bool) -> int:
        if self._large:
            self._large = self._rng.random() < 0.3  # one or two large arrays, not a tree of them
            return self._rng.choice(LARGE_COUNTS[: 2 if struct_array else None])
        return self._rng.choice(COUNTS)

    def _leaf(self, kind: str, name: str) -> None:
        rng = self._rng
        kind = kind.removeprefix("[]")
        if kind == "string":
            data = self._text(name)
            self._length(self._lied(len(data)), 2)
            self.out += data
        elif kind in ("bytes", "records"):
            data = self._records() if kind == "records" else self._bytes(name)
            self._length(self._lied(len(data)), 4)
            self.out += data
        elif kind == "bool":
            # Validations change nothing; what is created as by accident would only fill the limit of partitions.
            harmless = {"validate_only": True, "allow_auto_topic_creation": False}.get(name, rng.random() < 0.5)
            self.out.append(harmless if rng.random() < 0.7 else rng.choice((0, 1, 2, 255)))
        elif kind == "uuid":
            self.out += rng.choice((bytes(16), b"\xff" * 16, rng.randbytes(16)))
        elif kind == "float64":
            self.out += rng.choice((struct.pack(">d", 0.0), b"\x7f\xf8" + bytes(6), rng.randbytes(8)))
        else:
            self._number(kind, name)

    def _number(self, kind: str, name: str) -> None:
        size = int(kind.removeprefix("u").removeprefix("int")) // 8
        top = 2 ** (8 * size - 1)
        value = self._rng.choice((0, 0, 1, 1, 2, -1, -2, -3, 5, top - 1, -top, self._rng.randrange(-top, top)))
        if name.endswith("_ms"):
            value = self._rng.choice(TIMES_MS)
        elif name == "acks":
            value = self._rng.choice((1, -1, 0, 2))
        elif name == "replication_factor":
            value = self._rng.choice((1, -1, 0, 3))
        elif name in ("num_partitions", "count"):
            value = self._rng.choice((1, -1, 0, 3, 10_000, top - 1))
        self.out += (value % (2 * top)).to_bytes(size, "big")

    def _text(self, name: str) -> bytes:
        rng = self._rng
        if name == "protocol_type":
            return rng.choice((b"consumer", b"connect", b"", b"p" * 300))
        if rng.random() < 0.6:
            return rng.choice(NAMES).encode()
        if rng.random() < 0.02:
            return b"n" * 32_767
        if rng.random() < 0.02:
            return rng.choice((b"\xff\xfe", rng.randbytes(9)))
        return rng.choice(ODD_NAMES).encode()

    def _bytes(self, name: str) -> bytes:
        rng = self._rng
        if name in ("metadata", "assignment") and rng.random() < 0.7:
            return membership(rng, self._flaw == "large")
        return rng.randbytes(rng.choice((0, 1, 100, 300_000 if self._flaw == "large" else 3_000)))

    def _records(self) -> bytes:
        rng = self._rng
        number = rng.choice((1, 3, 200))
        stamps = [rng.choice((1_000, 2**41, 0)) for _ in range(number)]
        size = rng.choice((0, 10, 1_000)) if number < 200 else rng.choice((0, 0, 0, 5_000))
        raw = bytearray(encode_batch([(None, bytes(size), (), stamp) for stamp in stamps], codec=rng.choice(CODECS)))
        if rng.random() < 0.3:
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        return bytes(raw) * (rng.choice((1, 1, 2, 30)) if len(raw) < 10_000 else 1)

    def _lied(self, length: int) -> int:
        return self._rng.choice(LIES) if self._flaw == "lie" and self._rng.random() < 0.2 else length

    def _length(self, length: int, size: int) -> None:
        if self._flexible:
            self._varint((length + 1) % 2**32)
        else:
            self.out += (length % 2 ** (8 * size)).to_bytes(size, "big")

    def _varint(self, value: int) -> None:
        if self._flaw == "lie" and self._rng.random() < 0.02:
            self.out += b"\x80" * self._rng.choice((3, 5, 11))
        while value >= 0x80:
            self.out.append(value & 0x7F | 0x80)
            value >>= 7
        self.out.append(value)


def membership(rng: Random, large: bool) -> bytes:
    """What consumers write into JoinGroup and SyncGroup: topics, and perhaps partitions that nobody has."""
    count = rng.choice((10_000, 60_000)) if large else rng.choice((0, 1, 3))
    topics = b"".join(struct.pack(">h", len(name)) + name for name in (rng.choice(NAMES).encode() for _ in range(2)))
    numbers = struct.pack(">i", count) + struct.pack(f">{count}i", *range(count))
    parts = b"".join(struct.pack(">h", 9) + rng.choice(NAMES).encode() + numbers for _ in range(2))
    head = struct.pack(">hi", rng.choice((0, 1, 3, -1)), rng.choice((2, 2, 2, 2**31 - 1, -5)))
    return head + rng.choice((topics, parts)) + rng.choice((b"\xff" * 4, b"", bytes(8)))


FLAWS = ("none", "lie", "tags", "chop", "more", "mutate", "header", "large")
WEIGHTS = (40, 15, 5, 10, 8, 15, 5, 2)


def kafka_frame(rng: Random) -> bytes:
    """One request with its size prefix."""
    key, version = rng.choice(WORKER_VERSIONS if rng.random() < 0.3 else VERSIONS)
    (flaw,) = rng.choices(FLAWS, WEIGHTS)
    flexible = version >= APIS[key].flexible_from
    writer = Writer(rng, version, flexible, flaw)
    client = b"hostile"
    if rng.random() < 0.1:
        client = rng.choice((b"", b"c" * 300, b"c" * 32_767, b"\xff", b"\x1b[2J"))
    writer.out += struct.pack(">hhih", key, version, rng.randrange(-(2**31), 2**31), len(client)) + client
    writer.tags()
    writer.struct(message(key, "Request")._struct)
    frame = FLAW[flaw](writer.out, rng) if flaw in FLAW else writer.out
    return struct.pack(">I", len(frame)) + frame


def _chop(frame: bytearray, rng: Random) -> bytearray:
    return frame[: rng.randrange(len(frame) + 1)]


def _more(frame: bytearray, rng: Random) -> bytearray:
    return frame + rng.randbytes(rng.choice((1, 4, 1_000, 1_000, 200_000)))


def _mutate(frame: bytearray, rng: Random) -> bytearray:
    for _ in range(rng.randint(1, 6)):
        at = min(len(frame) - 1, int(rng.expovariate(1 / 30)))
        frame[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return frame


def _header(frame: bytearray, rng: Random) -> bytearray:
    key = rng.choice((*APIS, 17, 24, 26, 28, 55, 68, 999, -1, 2**15 - 1))
    struct.pack_into(">hh", frame, 0, key, rng.choice((-1, 0, 13, 17, 99, 2**15 - 1)))
    return frame


FLAW: dict[str, Callable[[bytearray, Random], bytearray]] = {
    "chop": _chop,
    "more": _more,
    "mutate": _mutate,
    "header": _header,
}
