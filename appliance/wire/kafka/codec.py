"""Decodes Kafka frames in network workers, answers ApiVersions, and marks other requests as forwarded.

ApiVersions: the reply header is version 0 in all versions, since the client does not know our versions yet.  An unknown
version is answered in the layout of version 0, with error 35 and our table, so that the client can choose::

    i16 error  [api { i16 key  i16 version min  i16 version max }]  i32 throttle ms = 0 (1+)

(from 3 on with a compact count, and tagged fields at the ``}`` and at the end).  The request::

    client software name (3+)  version (3+)  cluster id or null (5+)  i32 node id or -1 (5+)

A client that means another cluster or broker, since an address has been given to somebody else, gets
REBOOTSTRAP_REQUIRED and looks for its brokers anew (KIP-1242); one that gives only one of the two is refused.

A connection that has to log in begins with a :class:`KafkaLoginCodec`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from ...errors import FrameTooLarge, InvalidRequest, ProtocolFault, UnsupportedVersion
from ...records.varints import unsigned
from ..bounds import WireLimits
from ..requests import (
    Fetch,
    FetchResult,
    FileRange,
    Forwarded,
    Local,
    Login,
    LoginReply,
    Offsets,
    OffsetsResult,
    Produce,
    ProduceResult,
    Request,
    SessionReply,
)
from . import fetch, list_offsets, produce, sasl
from .apis import (
    ADVERTISED,
    API_VERSIONS,
    APIS,
    FETCH,
    LIST_OFFSETS,
    OFFSET_COMMIT,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from .new_leaders import NOT_KNOWN, Leaders
from .primitives import NO_NAMES, read_varint, skip_tags
from .throttle import with_throttle

LOGIN_FRAME_BYTES_MAX: Final = 2 * sasl.MESSAGE_BYTES_MAX
COMMITS: Final = "commit"
"""OffsetCommits of one connection overlap: the coordinator keeps those of one partition in order."""
_SOFTWARE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
IDENTITY_FROM: Final = 5
"""Version of ApiVersions in which a client says which broker of which cluster it means."""
REBOOTSTRAP_REQUIRED: Final = 129
NO_NODE: Final = -1
Identity: TypeAlias = Callable[[], tuple[str, int]]
NOBODY: Final[Identity] = lambda: ("", NO_NODE)  # noqa: E731
_HEADER = struct.Struct(">hhih")
_REPLY_HEAD = struct.Struct(">Ii")
assert _HEADER.size == 10


class KafkaCodec:
    """Implements :class:`appliance.wire.requests.Codec`.  Has no state.

    ``topic_names``: by topic id, 16 bytes; ``identity``: the ids of the cluster, "" while it is not known, and of this
    broker, for clients that say whom they mean.
    """

    __slots__ = ("_forwarded_bytes_max", "_identity", "_leaders", "_parts_max", "_topic_names", "first_bytes_max")

    def __init__(
        self,
        limits: WireLimits,
        topic_names: Mapping[bytes, str] = NO_NAMES,
        identity: Identity = NOBODY,
        leaders: Leaders = NOT_KNOWN,
    ) -> None:
        self._topic_names, self._identity, self._leaders = topic_names, identity, leaders
        self.first_bytes_max, self._forwarded_bytes_max, self._parts_max = limits

    advertised: Final[dict[int, tuple[int, int]]] = ADVERTISED

    def decode(self, frame: memoryview) -> Request:
        """Raises ProtocolFault when the frame cannot be answered: close the connection."""
        try:
            key, version, correlation_id, client_id_size = _HEADER.unpack_from(frame)
            parts_max = self._parts_max
            if key == PRODUCE:
                if produce.VERSION_SERVED_MIN <= version < produce.FLEXIBLE_FROM:
                    position = _HEADER.size + client_id_size if client_id_size > 0 else _HEADER.size
                    return produce.decode_one(frame, position, correlation_id, version, parts_max)
                position = _body(frame, client_id_size, version >= produce.FLEXIBLE_FROM)
                if produce.FLEXIBLE_FROM <= version < produce.IDS_FROM:
                    return produce.decode_one_flexible(frame, position, correlation_id, version, parts_max)
                if version == produce.IDS_FROM:
                    names = self._topic_names
                    return produce.decode_one_by_id(frame, position, correlation_id, version, parts_max, names)
                return produce.decode(frame, position, correlation_id, version, parts_max)
            if key == FETCH:
                position = _body(frame, client_id_size, version >= fetch.FLEXIBLE_FROM)
                return fetch.decode(frame, position, correlation_id, version, parts_max, self._topic_names)
            if key in (SASL_HANDSHAKE, SASL_AUTHENTICATE):
                return sasl.decode(frame, _body(frame, client_id_size, False), key, correlation_id, version)
            if key == LIST_OFFSETS:
                position = _body(frame, client_id_size, version >= list_offsets.FLEXIBLE_FROM)
                return list_offsets.decode(frame, position, correlation_id, version, parts_max)
        except (struct.error, IndexError) as error:
            raise ProtocolFault(f"malformed Kafka request: {error}") from error
        if key in APIS and key != API_VERSIONS:
            if len(frame) > self._forwarded_bytes_max:
                raise FrameTooLarge(len(frame), self._forwarded_bytes_max)
            return Forwarded((key, version), COMMITS if key == OFFSET_COMMIT else "", key)
        if key == API_VERSIONS:
            reply = _API_VERSIONS.get(version, _API_VERSIONS_UNKNOWN)
            if version == IDENTITY_FROM:
                code = self._misrouted(frame, client_id_size)
                reply = _api_versions_reply(version, code, {}) if code else reply
        else:
            raise ProtocolFault(f"Kafka API {key} version {version} is not served: see ApiVersions")
        return Local(_REPLY_HEAD.pack(4 + len(reply), correlation_id) + reply, free=True)

    def _misrouted(self, frame: memoryview, client_id_size: int) -> int:
        """The error if the client means another broker or cluster (KIP-1242); 0 also if it does not say whom."""
        try:
            position = _body(frame, client_id_size, True)
            for _ in range(2):  # its software
                size, position = read_varint(frame, position)
                position += max(size - 1, 0)
            size, position = read_varint(frame, position)
            stop = position + max(size - 1, 0)
            (node_id,) = struct.unpack_from(">i", frame, stop)
        except (struct.error, IndexError) as error:
            raise ProtocolFault(f"malformed Kafka request: {error}") from error
        if (size == 0) != (node_id == NO_NODE):
            return InvalidRequest.code
        own_cluster, own_node = self._identity()
        meant = bytes(frame[position:stop]), node_id
        says_whom = size > 0 and own_cluster != ""
        return REBOOTSTRAP_REQUIRED if says_whom and meant != (own_cluster.encode(), own_node) else 0

    def join(self, request: Produce, first: memoryview, frame: memoryview, shift: int) -> bool:
        try:
            return produce.join(request, frame, shift)
        except (struct.error, IndexError, ProtocolFault):
            return False  # decode() will report the error

    def logged_in(self) -> KafkaCodec:
        return self

    def client_id(self, frame: memoryview) -> bytes:
        size = _HEADER.unpack_from(frame)[3]
        return bytes(frame[_HEADER.size : _HEADER.size + max(size, 0)])

    def software(self, frame: memoryview) -> str:
        key, version, _, client_id_size = _HEADER.unpack_from(frame)
        if key != API_VERSIONS or not APIS[API_VERSIONS].flexible_from <= version <= APIS[API_VERSIONS].version_max:
            return ""
        try:
            name, position = _compact_text(frame, _body(frame, client_id_size, True))
            return f"{name} {_compact_text(frame, position)[0]}".strip()
        except (IndexError, ProtocolFault):
            return ""  # the request is answered whatever it says of its sender

    def with_throttle(self, request: Request, reply: bytes, throttle_ms: int) -> bytes:
        match request:
            case Produce(context=(_, version, *_)):
                return with_throttle(reply, PRODUCE, version, throttle_ms) if reply else reply
            case Fetch(context=(_, version, *_)):
                return with_throttle(reply, FETCH, version, throttle_ms)
            case Offsets(context=(_, version, *_)):
                return with_throttle(reply, LIST_OFFSETS, version, throttle_ms)
            case Forwarded(context=(key, version)):
                return with_throttle(reply, key, version, throttle_ms)
        return reply

    def encode_produce(self, request: Produce, results: list[ProduceResult]) -> bytes:
        return produce.encode(request, results, self._leaders)

    def encode_fetch(
        self, request: Fetch, results: list[FetchResult], session: SessionReply | None = None
    ) -> list[bytes | FileRange]:
        return fetch.encode(request, results, session, self._leaders)

    def refuse_fetch(self, request: Fetch, error: int) -> bytes:
        return fetch.refuse(request, error)

    def encode_offsets(self, request: Offsets, results: list[OffsetsResult]) -> bytes:
        if any(result.error for result in results):
            by_part = zip(request.parts, results, strict=True)
            leaders = self._leaders
            results = [
                result._replace(error=leaders.refusal(result.error, part.topic, part.partition))
                for part, result in by_part
            ]
        return list_offsets.encode(request, results)

    def encode_login(self, request: Login, reply: LoginReply) -> bytes:
        return sasl.encode(request, reply)


class KafkaLoginCodec(KafkaCodec):
    """The codec of a connection until its client is logged in: frames are small, and may be raw tokens."""

    __slots__ = ("_limits", "_raw")

    def __init__(
        self,
        limits: WireLimits,
        topic_names: Mapping[bytes, str] = NO_NAMES,
        identity: Identity = NOBODY,
        leaders: Leaders = NOT_KNOWN,
    ) -> None:
        super().__init__(limits, topic_names, identity, leaders)
        self._limits = limits
        self.first_bytes_max = min(self.first_bytes_max, LOGIN_FRAME_BYTES_MAX)
        self._raw = False

    def decode(self, frame: memoryview) -> Request:
        return Login(None, None, bytes(frame)) if self._raw else super().decode(frame)

    def logged_in(self) -> KafkaCodec:
        return KafkaCodec(self._limits, self._topic_names, self._identity, self._leaders)

    def encode_login(self, request: Login, reply: LoginReply) -> bytes:
        if request.context is None:
            self._raw = not (reply.over or reply.error)
            return sasl.encode_raw(reply)
        key, _, version = request.context
        self._raw = key == SASL_HANDSHAKE and version == 0 and not reply.error
        return super().encode_login(request, reply)


def _body(frame: memoryview, client_id_size: int, flexible: bool) -> int:
    """The start of the request's own fields.  The reader of these fields finds a negative version or size."""
    position = _HEADER.size + client_id_size if client_id_size > 0 else _HEADER.size
    return skip_tags(frame, position) if flexible else position


def _compact_text(frame: memoryview, position: int) -> tuple[str, int]:
    """A compact string, and the position after it; "" for one that is no name or version of a software (KIP-511)."""
    size, position = read_varint(frame, position)
    stop = position + max(size - 1, 0)
    if stop > len(frame):
        raise IndexError(stop)
    text = str(frame[position:stop], "utf-8", "replace")
    return text if _SOFTWARE.fullmatch(text) else "", stop


def _api_versions_reply(version: int, error: int, table: Mapping[int, tuple[int, int]] = ADVERTISED) -> bytes:
    ranges = [struct.pack(">hhh", key, *window) for key, window in sorted(table.items())]
    code = struct.pack(">h", error)
    if version >= APIS[API_VERSIONS].flexible_from:
        return b"".join((code, unsigned(len(ranges) + 1), *(row + b"\0" for row in ranges), b"\0\0\0\0", b"\0"))
    throttle = b"\0\0\0\0" if version >= 1 else b""
    return b"".join((code, struct.pack(">i", len(ranges)), *ranges, throttle))


_API_VERSIONS: Final = {
    version: _api_versions_reply(version, 0) for version in range(APIS[API_VERSIONS].version_max + 1)
}
_API_VERSIONS_UNKNOWN: Final = _api_versions_reply(0, UnsupportedVersion.code)
