"""The native protocol, both directions: this page is its specification.

A frame is ``u32 size | u32 header size | msgpack array header | payload``, big-endian; ``size`` counts what follows
it.  Record batches travel in the payload exactly as they lie in the log.  The first request of a connection is
``hello``; requests may be pipelined; replies leave in the order of the requests.  A header that is not an array of
the shape below, or an unknown api number, ends the connection: nothing behind it can be trusted.

    request header [api, correlation id, ...]                     reply header [correlation id, error, ...]

    0 produce   [0, c, topic, partition, acks, timeout_ms]        [c, error, base, end, log start, message]
                + record batches of that partition                no reply when acks = 0
    1 fetch     [1, c, wait_ms_max, bytes_min, bytes_max,         [c, 0, [[error, log start, end, size]...]]
                 [[topic, partition, offset, bytes_max]...]]      + the partitions' bytes, one after another
    2 offsets   [2, c, [[topic, partition, timestamp, offset]...]]
                                                                  [c, 0, [[error, offset, timestamp, records]...]]
    3 metadata  [3, c, [topic...] or nil]              [c, error, {cluster, broker, zookeeper, brokers, topics}]
    4 admin     [4, c, verb, {arguments}]                         [c, error, message, result]
    9 hello     [9, c, "appliance", version, client name]         [c, error, version, broker id, {limits}]

``acks``: 0 none, 1 written, -1 flushed to the disk.  ``base`` is the offset of the first record, ``end`` the offset
after the last.  ``timestamp``: EARLIEST, LATEST, MAX_TIMESTAMP or ms; a non-negative ``offset`` asks about that offset
instead.  ``records`` counts the records before ``offset`` since the log began: differences are lag in messages.
Errors are the numbers of :mod:`appliance.errors`; 0 is none.  Metadata and admin are answered by the coordinator.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import msgpack

from ..errors import ProtocolFault, UnsupportedVersion
from .requests import (
    Cold,
    Fetch,
    FetchPart,
    FetchResult,
    FileRange,
    Local,
    Offsets,
    OffsetsPart,
    OffsetsResult,
    Produce,
    ProducePart,
    ProduceResult,
    Request,
)

PRODUCE, FETCH, OFFSETS, METADATA, ADMIN, HELLO = 0, 1, 2, 3, 4, 9
VERSION: Final = 1
MAGIC: Final = "appliance"
PARTS_MAX: Final = 10_000
"""Most partitions in one fetch or offsets request."""

SIZE_BYTES: Final = 4
"""Of either size in front of a header; a picture of thousands of partitions does not fit 64 KiB."""

_PREFIX = struct.Struct(">II")
assert _PREFIX.size == 2 * SIZE_BYTES
_pack = msgpack.Packer().pack


def encode_frame(header: Sequence[Any], payload_bytes: int = 0) -> bytes:
    """Size prefix and header of a frame; ``payload_bytes`` of payload are to follow."""
    packed: bytes = _pack(header)
    return _PREFIX.pack(SIZE_BYTES + len(packed) + payload_bytes, len(packed)) + packed


_PRODUCE_FRONT = struct.Struct(">IIBBBI")
_ARRAY_OF_6, _UINT32 = 0x96, 0xCE
_CORRELATION = struct.Struct(">I")
_CORRELATION_AT: Final = _PRODUCE_FRONT.size - SIZE_BYTES - _CORRELATION.size
_HEAD_AT: Final = _PRODUCE_FRONT.size - SIZE_BYTES
"""In a frame without its size, as :class:`ProduceHead` packs it."""


class ProduceHead:
    """What goes in front of the record batches of one partition's produce requests, packed but for two numbers."""

    __slots__ = ("_header_bytes", "_rest", "bytes")

    def __init__(self, topic: str, partition: int, acks: int, timeout_ms: int) -> None:
        self._rest: bytes = b"".join(map(_pack, (topic, partition, acks, timeout_ms)))
        self._header_bytes = _PRODUCE_FRONT.size - _PREFIX.size + len(self._rest)
        self.bytes = _PRODUCE_FRONT.size + len(self._rest)

    def frame(self, correlation: int, payload_bytes: int) -> bytes:
        """As :func:`encode_frame`."""
        header_bytes = self._header_bytes
        front = _PRODUCE_FRONT.pack(
            SIZE_BYTES + header_bytes + payload_bytes, header_bytes, _ARRAY_OF_6, PRODUCE, _UINT32, correlation
        )
        return front + self._rest


def decode_header(frame: memoryview) -> tuple[list[Any], int]:
    """The header of a frame (without its size prefix) and where its payload starts.

    Raises:
        ProtocolFault: not a frame of this protocol.
    """
    if len(frame) <= SIZE_BYTES:
        raise ProtocolFault("frame too short for a header")
    stop = SIZE_BYTES + int.from_bytes(frame[:SIZE_BYTES], "big")
    if stop > len(frame):
        raise ProtocolFault("header is longer than its frame")
    try:
        header = msgpack.unpackb(frame[SIZE_BYTES:stop])
    except (ValueError, TypeError) as error:
        raise ProtocolFault(f"header is not msgpack: {error}") from None
    if type(header) is not list or len(header) < 2 or type(header[1]) is not int:
        raise ProtocolFault("header is not an array of at least two")
    return header, stop


class NativeCodec:
    """The server's side of one connection; remembers only whether the client has said hello."""

    def __init__(self, broker_id: int, frame_bytes_max: int, greeted: bool = False) -> None:
        self._broker_id = broker_id
        self._frame_bytes_max = frame_bytes_max
        self._greeted = greeted

    def decode(self, frame: memoryview) -> Request:
        header, stop = decode_header(frame)
        api = header[0]
        if not self._greeted:
            return self._hello(header)
        try:
            if api == PRODUCE:
                _, context, topic, partition, acks, timeout_ms = header
                _expect(type(topic) is str and type(partition) is int and acks in (0, 1, -1))
                _expect(type(timeout_ms) is int)
                return Produce([context], acks, timeout_ms, [ProducePart(topic, partition, stop, len(frame))])
            if api == FETCH:
                _, context, wait_ms_max, bytes_min, bytes_max, parts = header
                _expect(type(wait_ms_max) is int and type(bytes_min) is int and type(bytes_max) is int)
                _expect(len(parts) <= PARTS_MAX)
                return Fetch(context, wait_ms_max, bytes_min, bytes_max, [_fetch_part(p) for p in parts])
            if api == OFFSETS:
                _, context, parts = header
                _expect(len(parts) <= PARTS_MAX)
                return Offsets(context, [_offsets_part(p) for p in parts])
        except (ValueError, TypeError) as error:
            raise ProtocolFault(f"request of api {api} has the wrong shape: {error}") from None
        if api in (METADATA, ADMIN):
            return Cold(header[1])
        raise ProtocolFault(f"unknown api {api!r}")

    def _hello(self, header: list[Any]) -> Request:
        if header[0] != HELLO or len(header) != 5 or header[2] != MAGIC:
            raise ProtocolFault("the first request must be hello")
        if header[3] != VERSION:
            error = UnsupportedVersion.code
            return Local(encode_frame([header[1], error, VERSION, self._broker_id, {}]), close=True)
        self._greeted = True
        limits = {"frame_bytes_max": self._frame_bytes_max}
        return Local(encode_frame([header[1], 0, VERSION, self._broker_id, limits]))

    def join(self, request: Produce, first: memoryview, frame: memoryview, shift: int) -> bool:
        topic, partition, stop, _ = request.parts[0]
        if (
            bytes(frame[:_CORRELATION_AT]) != bytes(first[:_CORRELATION_AT])
            or frame[_CORRELATION_AT - 1] != _UINT32
            or bytes(frame[_HEAD_AT:stop]) != bytes(first[_HEAD_AT:stop])
        ):
            return False
        request.context += _CORRELATION.unpack_from(frame, _CORRELATION_AT)
        request.parts.append(ProducePart(topic, partition, shift + stop, shift + len(frame)))
        request.count += 1
        return True

    def encode_produce(self, request: Produce, results: list[ProduceResult]) -> bytes:
        rows = zip(request.context, results, strict=True)
        replies = [encode_frame([context, *result[:5]]) for context, result in rows]
        return b"".join(replies)

    def encode_fetch(self, request: Fetch, results: list[FetchResult]) -> list[bytes | FileRange]:
        rows = [result[:4] for result in results]
        size = sum(result.size for result in results)
        reply: list[bytes | FileRange] = [encode_frame([request.context, 0, rows], size)]
        for result in results:
            reply += result.pieces
        return reply

    def encode_offsets(self, request: Offsets, results: list[OffsetsResult]) -> bytes:
        return encode_frame([request.context, 0, results])


def _expect(condition: bool) -> None:
    if not condition:
        raise ValueError("unexpected type or value")


def _fetch_part(part: Any) -> FetchPart:
    topic, partition, offset, bytes_max = part
    _expect(type(topic) is str and type(partition) is type(offset) is type(bytes_max) is int)
    return FetchPart(topic, partition, offset, bytes_max)


def _offsets_part(part: Any) -> OffsetsPart:
    topic, partition, timestamp, offset = part
    _expect(type(topic) is str and type(partition) is type(timestamp) is type(offset) is int)
    return OffsetsPart(topic, partition, timestamp, offset)
