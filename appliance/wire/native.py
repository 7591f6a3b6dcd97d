"""Encodes and decodes the native protocol, and specifies it.

A frame is ``u32 size | u32 header size | msgpack array header | payload``, big-endian; ``size`` counts the bytes
after it.  The payload holds record batches as they are in the log.  The first request of a connection is ``hello``.
Requests may be pipelined; replies have the order of the requests.  A header with another shape than below, with a
number out of bounds or with an unknown api number closes the connection: the bytes after it cannot be trusted::

    request header [api, correlation id, ...]                     reply header [correlation id, error, ...]

    0 produce   [0, c, topic, partition, acks, timeout_ms]        [c, error, base, end, log start, message]
                + record batches of that partition                no reply when acks = 0
    1 fetch     [1, c, wait_ms_max, bytes_min, bytes_max,         [c, 0, [[error, log start, end, size]...]]
                 [[topic, partition, offset, bytes_max]...],      + the partitions' bytes, one after another
                 committed]
    2 offsets   [2, c, [[topic, partition, timestamp, offset]...],
                 committed]                                       [c, 0, [[error, offset, timestamp, records]...]]
    3 metadata  [3, c, [topic...] or nil]              [c, error, {cluster, broker, zookeeper, brokers, topics}]
    4 admin     [4, c, verb, {arguments}]                         [c, error, message, result]
    5 login     [5, c, mechanism or nil, message]                 [c, error, text, message, lifetime_ms, over]
    9 hello     [9, c, "appliance", version, client name]         [c, error, version, broker id, {limits}]

``bytes_min`` is Kafka's: a fetch that finds less waits for more, for at most ``wait_ms_max``.
``committed`` (false, where it is left out): read up to the last stable offset, which is then LATEST.  Behind the size
of a partition comes ``last stable offset, [[producer id, first offset]...]``, the transactions that were aborted and
that the batches may have messages of.  A transactional batch of such a producer, from the first offset to the marker,
is not for readers.
``acks``: 0 none, 1 written, -1 flushed to the disk.  ``base`` is the offset of the first record, ``end`` the offset
after the last.  Errors are the numbers of :mod:`appliance.errors`; 0 is none.  46 says that a batch of an idempotent
producer is in the log already, at an offset that is not kept.  The coordinator answers metadata and admin, or a worker
does from its snapshot of metadata.

What offsets asks for, by ``timestamp``, while ``offset`` is -1 (else: that offset itself, or the nearest in the log)::

    ms since 1970       the first record that is not older
    -1 LATEST           the high watermark
    -2 EARLIEST         the log start offset
    -3 MAX_TIMESTAMP    the record with the largest timestamp

Its reply has ``offset`` -1 where there is no such record.  ``records`` counts the records before ``offset`` since the
log began, so differences are lag in messages.

The maps in replies::

    cluster, broker     id of the cluster, "" while it is not known; id of the broker that answers
    zookeeper           address of the ensemble; "" without one, then there are no groups
    brokers             [[id, host, port]...]: brokers that are alive, with their native listeners
    topics              [{name, error, id, settings: {name: value}, partitions: [[partition, broker id or -1]...]}...]
    limits              {frame_bytes_max, mechanisms?}: size of the largest request; how to log in, where it is needed

A topic's ``id`` is another one when the topic was deleted and created again; "" for a topic that is answered with an
error.

``login`` has a message of SASL (:mod:`appliance.security.scram`); the first one of a login names its mechanism.
``over`` says that the client is logged in; after ``lifetime_ms``, unless it is 0, it has to log in again.  Where
``limits`` has ``mechanisms``, nothing else is answered before.

The bounds are checked while a header is decoded.  Correlation ids are u32.
Partitions, times in ms and counts of bytes are 0 to 2^31 - 1, offsets and timestamps i64, a topic has at most
:data:`~appliance.names.TOPIC_CHARACTERS_MAX` characters, a request at most ``parts_max`` partitions.  ``hello`` has at
most :data:`HELLO_BYTES_MAX` bytes, metadata and admin ``forwarded_bytes_max``.  Only the coordinator decodes the
arguments of a verb (``wire/native_admin.py``).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgpack
from msgspec import Meta, Raw, Struct
from msgspec.msgpack import Decoder

from ..errors import FrameTooLarge, InvalidRequest, ProtocolFault, UnsupportedVersion
from ..names import CLIENT_ID_CHARACTERS_MAX, PARTITION_MAX, TOPIC_CHARACTERS_MAX
from ..security.acls import Operation, ResourceType
from ..security.api_rights import NO_RIGHTS, SEEN_TOPICS_RIGHTS, NeededRights, each_rights
from .bounds import FETCH_BYTES_MAX, PARTS_MAX_MAX, WireLimits
from .frames import SIZE_BYTES
from .requests import (
    ADMIN_API,
    Fetch,
    FetchPart,
    FetchResult,
    FileRange,
    Forwarded,
    Local,
    Login,
    LoginReply,
    Offsets,
    OffsetsPart,
    OffsetsResult,
    Produce,
    ProducePart,
    ProduceResult,
    Request,
    SessionReply,
)

PRODUCE, FETCH, OFFSETS, METADATA, ADMIN, LOGIN, HELLO = 0, 1, 2, 3, 4, 5, 9
RIGHTS: Final[dict[int, NeededRights]] = {
    PRODUCE: each_rights(Operation.WRITE, ResourceType.TOPIC),
    FETCH: each_rights(Operation.READ, ResourceType.TOPIC),
    OFFSETS: each_rights(Operation.DESCRIBE, ResourceType.TOPIC),
    METADATA: SEEN_TOPICS_RIGHTS,
    LOGIN: NO_RIGHTS,
    HELLO: NO_RIGHTS,
}
"""The rights that each request needs; those of an admin verb are in its row (``native_admin.py``)."""
VERSION: Final = 1
MAGIC: Final = "appliance"
HELLO_BYTES_MAX: Final = 4096

_PREFIX = struct.Struct(">II")
assert _PREFIX.size == 2 * SIZE_BYTES
_pack = msgpack.Packer().pack


def encode_frame(header: Sequence[Any], payload_bytes: int = 0) -> bytes:
    """Encode size prefix and header of a frame; ``payload_bytes`` of payload follow."""
    packed: bytes = _pack(header)
    return _PREFIX.pack(SIZE_BYTES + len(packed) + payload_bytes, len(packed)) + packed


_PRODUCE_FRONT = struct.Struct(">IIBBBI")
_ARRAY_OF_6, _UINT32 = 0x96, 0xCE
_CORRELATION = struct.Struct(">I")
_CORRELATION_AT: Final = _PRODUCE_FRONT.size - SIZE_BYTES - _CORRELATION.size
_HEAD_AT: Final = _PRODUCE_FRONT.size - SIZE_BYTES
"""Positions in a frame without its size, as :class:`ProduceHead` packs it."""


class ProduceHead:
    """Encodes the headers of produce requests to one partition: all but two numbers are packed once."""

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
    """Decode the header of a reply, which is given without its size prefix, and find the start of its payload.

    Raises:
        ProtocolFault: not a frame of this protocol.
    """
    stop = _header_end(frame)
    try:
        header = msgpack.unpackb(frame[SIZE_BYTES:stop])
    except (ValueError, TypeError) as error:
        raise ProtocolFault(f"header is not msgpack: {error}") from None
    if type(header) is not list or len(header) < 2 or type(header[1]) is not int:
        raise ProtocolFault("header is not an array of at least two")
    return header, stop


# The types that headers of requests are decoded to, by their first number.

_Correlation = Annotated[int, Meta(ge=0, le=2**32 - 1)]
_Topic = Annotated[str, Meta(max_length=TOPIC_CHARACTERS_MAX)]
_Partition = Annotated[int, Meta(ge=0, le=PARTITION_MAX)]
_Ms = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Bytes = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_I64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Parts = Meta(max_length=PARTS_MAX_MAX)


class _Produce(Struct, array_like=True, forbid_unknown_fields=True, gc=False, tag=PRODUCE):
    correlation: _Correlation
    topic: _Topic
    partition: _Partition
    acks: Literal[-1, 0, 1]
    timeout_ms: _Ms


class _Fetch(Struct, array_like=True, forbid_unknown_fields=True, tag=FETCH):
    correlation: _Correlation
    wait_ms_max: _Ms
    bytes_min: _Bytes
    bytes_max: _Bytes
    parts: Annotated[list[tuple[_Topic, _Partition, _I64, _Bytes]], _Parts]
    committed: bool = False


class _Offsets(Struct, array_like=True, forbid_unknown_fields=True, tag=OFFSETS):
    correlation: _Correlation
    parts: Annotated[list[tuple[_Topic, _Partition, _I64, _I64]], _Parts]
    committed: bool = False


class MetadataRequest(Struct, array_like=True, forbid_unknown_fields=True, tag=METADATA):
    correlation: _Correlation
    topics: Annotated[list[_Topic], _Parts] | None


class AdminRequest(Struct, array_like=True, forbid_unknown_fields=True, tag=ADMIN):
    correlation: _Correlation
    verb: Annotated[str, Meta(max_length=249)]
    arguments: Raw
    """Refers to the memory of the frame: decode it before that is reused."""


class _Login(Struct, array_like=True, forbid_unknown_fields=True, tag=LOGIN):
    correlation: _Correlation
    mechanism: Annotated[str, Meta(max_length=64)] | None
    message: Annotated[bytes, Meta(max_length=HELLO_BYTES_MAX)]


class _Hello(Struct, array_like=True, tag=HELLO):
    """Fields of other versions are skipped, so that clients of these get an answer with our version."""

    correlation: _Correlation
    magic: Literal["appliance"]
    version: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    client: str


assert MAGIC == "appliance", "as in _Hello"
_decode_hello = Decoder(_Hello).decode
_decode_request = Decoder(_Produce | _Fetch | _Offsets | MetadataRequest | AdminRequest | _Login).decode
_forwarded: Final[Decoder[MetadataRequest | AdminRequest]] = Decoder(MetadataRequest | AdminRequest)
_new = tuple.__new__  # twice as fast as the constructor of a NamedTuple


def check_request(api: int, arguments: Sequence[Any]) -> None:
    """Check a request before it is sent: an appliance closes the connection of one that it cannot decode.

    Raises:
        InvalidRequest: an argument has no encoding, or is out of bounds.
    """
    try:
        _decode_request(_pack([api, 0, *arguments]))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidRequest(f"it cannot be requested: {error}") from None


def decode_forwarded(frame: memoryview) -> MetadataRequest | AdminRequest:
    """Decode a forwarded request.

    Raises:
        ProtocolFault: the frame is not one.
    """
    try:
        return _forwarded.decode(frame[SIZE_BYTES : _header_end(frame)])
    except (ValueError, RecursionError) as error:
        raise ProtocolFault(f"not a request of this protocol: {error}") from None


def _header_end(frame: memoryview) -> int:
    """Raises ProtocolFault when the header is not within its frame."""
    if len(frame) <= SIZE_BYTES:
        raise ProtocolFault("frame too short for a header")
    stop = SIZE_BYTES + int.from_bytes(frame[:SIZE_BYTES], "big")
    if stop > len(frame):
        raise ProtocolFault("header is longer than its frame")
    return stop


class NativeCodec:
    """The server's side of one connection.  Its state is what the client has said: its hello, and its name in it.

    ``mechanisms``: those of which the client has to use one to log in; none: it need not.
    """

    def __init__(
        self, broker_id: int, limits: WireLimits, greeted: bool = False, mechanisms: Sequence[str] = ()
    ) -> None:
        self._mechanisms = mechanisms
        self._broker_id = broker_id
        self._limits = limits
        self._greeted, self._client = greeted, b""
        self.first_bytes_max = limits.frame_bytes_max if greeted else HELLO_BYTES_MAX

    def decode(self, frame: memoryview) -> Request:
        stop = _header_end(frame)
        try:
            if not self._greeted:
                return self._hello(_decode_hello(frame[SIZE_BYTES:stop]))
            header = _decode_request(frame[SIZE_BYTES:stop])
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            expected = "a request of this protocol" if self._greeted else "hello, which must be first"
            raise ProtocolFault(f"not {expected}: {error}") from None
        kind = type(header)
        if kind is _Produce:
            part = _new(ProducePart, (header.topic, header.partition, stop, len(frame)))
            return Produce([header.correlation], header.acks, header.timeout_ms, [part])
        if kind is _Fetch:
            self._check_count(header.parts)
            parts = [_new(FetchPart, (*part, b"")) for part in header.parts]
            bytes_max = min(header.bytes_max, FETCH_BYTES_MAX)
            return Fetch(
                header.correlation,
                header.wait_ms_max,
                header.bytes_min,
                bytes_max,
                parts,
                committed=header.committed,
            )
        if kind is _Offsets:
            self._check_count(header.parts)
            asked = [_new(OffsetsPart, part) for part in header.parts]
            return Offsets(header.correlation, asked, committed=header.committed)
        if kind is _Login:
            return Login(header.correlation, header.mechanism, header.message)
        if len(frame) > self._limits.forwarded_bytes_max:
            raise FrameTooLarge(len(frame), self._limits.forwarded_bytes_max)
        return Forwarded(header.correlation, api=METADATA if kind is MetadataRequest else ADMIN_API)

    def _check_count(self, parts: list[Any]) -> None:
        if len(parts) > self._limits.parts_max:
            raise ProtocolFault(f"{len(parts)} partitions in one request, limit {self._limits.parts_max}")

    def _hello(self, hello: _Hello) -> Request:
        if hello.version != VERSION:
            error = UnsupportedVersion.code
            return Local(encode_frame([hello.correlation, error, VERSION, self._broker_id, {}]), close=True, free=True)
        self._greeted, self._client = True, hello.client[:CLIENT_ID_CHARACTERS_MAX].encode("utf-8", "replace")
        limits: dict[str, Any] = {"frame_bytes_max": self._limits.frame_bytes_max}
        if self._mechanisms:
            limits["mechanisms"] = list(self._mechanisms)
        else:
            self.first_bytes_max = self._limits.frame_bytes_max
        return Local(encode_frame([hello.correlation, 0, VERSION, self._broker_id, limits]), free=True)

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

    def logged_in(self) -> NativeCodec:
        self.first_bytes_max = self._limits.frame_bytes_max
        return self

    def client_id(self, frame: memoryview) -> bytes:
        return self._client

    def software(self, frame: memoryview) -> str:
        return ""

    def with_throttle(self, request: Request, reply: bytes, throttle_ms: int) -> bytes:
        return reply  # its connection is not read meanwhile, which is all that this client notices

    def encode_produce(self, request: Produce, results: list[ProduceResult]) -> bytes:
        rows = zip(request.context, results, strict=True)
        replies = [encode_frame([context, *result[:5]]) for context, result in rows]
        return b"".join(replies)

    def encode_fetch(
        self, request: Fetch, results: list[FetchResult], session: SessionReply | None = None
    ) -> list[bytes | FileRange]:
        assert session is None, "only Kafka's protocol has fetch sessions"
        rows = [(*result[:4], *result[5:]) if request.committed else result[:4] for result in results]
        size = sum(result.size for result in results)
        reply: list[bytes | FileRange] = [encode_frame([request.context, 0, rows], size)]
        for result in results:
            reply += result.pieces
        return reply

    def refuse_fetch(self, request: Fetch, error: int) -> bytes:
        raise AssertionError("only Kafka's protocol has fetch sessions")

    def encode_offsets(self, request: Offsets, results: list[OffsetsResult]) -> bytes:
        return encode_frame([request.context, 0, results])

    def encode_login(self, request: Login, reply: LoginReply) -> bytes:
        return encode_frame([request.context, reply.error, reply.text, reply.message, reply.lifetime_ms, reply.over])
