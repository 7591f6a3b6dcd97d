"""Defines the values that both protocols decode requests to and encode replies from.

A protocol's codec turns one frame into one of the requests below and a list of results into the pieces of a reply.
It neither reads sockets nor opens files.  A reply is a list of ``bytes`` and :class:`FileRange`, which the network
worker sends with ``send`` and ``sendfile`` (like h11's ``send_with_data_passthrough``).  ``context`` holds what the
codec needs to encode the reply, such as correlation id and API version.  Only the codec reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple, Protocol

NO_OFFSET: Final = -1
"""An offset that no log has: a part with it is answered at once, with OFFSET_OUT_OF_RANGE."""
EARLIEST = -2
LATEST = -1
MAX_TIMESTAMP = -3
"""Special values of :attr:`OffsetsPart.timestamp`; values >= 0 are milliseconds since 1970."""


ADMIN_API: Final = 79
"""Stands for the native admin verbs among Kafka's API keys, none of which is as high."""

NONE_DENIED: Final[frozenset[int]] = frozenset()


class OpenFile(Protocol):
    """An open segment file.  The last reference closes its descriptor.

    So a range that waits for a slow reader keeps its file, even when retention has unlinked it.
    """

    fd: int

    def read(self, count: int, position: int) -> bytes | bytearray: ...

    def sendable_bytes(self, position: int, count: int) -> int: ...


class FileRange(NamedTuple):
    """``count`` bytes at ``position`` of an open file, to be sent with ``sendfile``."""

    file: OpenFile
    position: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not needed here


class ProducePart(NamedTuple):
    """Record batches for one partition: ``frame[start:stop]``, not copied."""

    topic: str
    partition: int
    start: int
    stop: int


class FetchPart(NamedTuple):
    """``topic_id``: the 16 bytes that the request names the topic by; b"": it names it by its name.

    The topic of an id that is not known is "".
    """

    topic: str
    partition: int
    offset: int
    bytes_max: int
    topic_id: bytes = b""


class OffsetsPart(NamedTuple):
    """``timestamp``: EARLIEST, LATEST, MAX_TIMESTAMP or ms; ``offset`` >= 0 selects that offset instead."""

    topic: str
    partition: int
    timestamp: int
    offset: int = -1


@dataclass(slots=True)
class Produce:
    """One produce request, or ``count`` requests of one part each that :meth:`Codec.join` has joined.

    ``overlap``, here and below: requests of one connection with the same value may be in progress together.  Any other
    request starts when all before it have taken effect.  "" overlaps with nothing.

    ``api``, here and below: Kafka's key of the API, also of the native request that does the same.

    ``denied``, here and below: the numbers of the parts that the client has no right to; the handler refuses them.

    ``id_denied``: whether it is the transactional id that the client has no right to.

    ``topic_ids``: the ids that the request names its topics by, 16 bytes each, by topic; None: it names them by their
    names.  The topic of an id that is not known is "".
    """

    overlap: ClassVar[str] = "produce"
    api: ClassVar[int] = 0
    context: Any
    acks: int
    timeout_ms: int
    parts: list[ProducePart]
    count: int = 1
    denied: frozenset[int] = NONE_DENIED
    transactional_id: str | None = None
    id_denied: bool = False
    topic_ids: dict[str, bytes] | None = None


class SessionStep(NamedTuple):
    """What a fetch says of its session (KIP-227).

    ``epoch``: NEW_SESSION asks for one, NO_SESSION for none, and both end the one with this ``id`` if there is one.
    Any other continues it: the fetch names only the parts that are new or changed, and those to be ``forgotten``, by
    topic's name or id and number.  ``by_id``: the fetch names topics by their ids.
    """

    id: int
    epoch: int
    forgotten: list[tuple[str | bytes, int]]
    by_id: bool = False

    @property
    def is_full(self) -> bool:
        """Whether the fetch names all its parts."""
        return self.epoch in (NEW_SESSION, NO_SESSION)


NEW_SESSION: Final = 0
NO_SESSION: Final = -1
WITHOUT_SESSION: Final = SessionStep(0, NO_SESSION, [])


@dataclass(slots=True)
class Fetch:
    """A fetch.  ``refused``: the errors of parts, by number, that name another leader epoch.

    Such a part has NO_OFFSET; its error applies if the partition exists.  ``committed``: only messages that are not, or
    not any more, part of an open transaction; the result says which are of an aborted one.
    """

    overlap: ClassVar[str] = ""
    api: ClassVar[int] = 1
    context: Any
    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    parts: list[FetchPart]
    denied: frozenset[int] = NONE_DENIED
    refused: dict[int, int] = field(default_factory=dict)
    session: SessionStep = WITHOUT_SESSION
    committed: bool = False

    @property
    def bytes_enough(self) -> int:
        """``bytes_min`` of the request, with which a reply is sent at once.  Without time to wait, 1 byte is enough.

        As in Kafka, it is at most what a reply may have.
        """
        return min(self.bytes_min, self.bytes_max if self.wait_ms_max > 0 else 1)


@dataclass(slots=True)
class Offsets:
    """``counted``: the answers include the number of records before each offset.  ``committed``: see :class:`Fetch`."""

    overlap: ClassVar[str] = ""
    api: ClassVar[int] = 2
    context: Any
    parts: list[OffsetsPart]
    counted: bool = True
    denied: frozenset[int] = NONE_DENIED
    committed: bool = False


@dataclass(slots=True)
class Forwarded:
    """Any other request: its frame is forwarded to the coordinator, and the reply frame comes back as bytes."""

    context: Any
    overlap: str = ""
    api: int = ADMIN_API


@dataclass(slots=True)
class Login:
    """A message of a login: the choice of a mechanism, a message of its exchange, or both (None: not in this one).

    Its text does not show the message, which may be a password.
    """

    overlap: ClassVar[str] = ""
    api: ClassVar[int] = 36
    context: Any
    mechanism: str | None
    message: bytes | None = field(repr=False)


@dataclass(slots=True)
class Local:
    """A request that the codec answers (hello, ApiVersions, a refusal).

    ``close``: then close the connection.  ``free``: it is answered before a login, too.
    """

    overlap: ClassVar[str] = ""
    api: ClassVar[int] = 18
    reply: bytes
    close: bool = False
    free: bool = False


Request = Produce | Fetch | Offsets | Forwarded | Login | Local


class ProduceResult(NamedTuple):
    """``base``: offset of the first record; ``end``: offset after the last; both -1 on error.

    ``append_ms``: append time of the records, -1 when they keep their own timestamps.  Undefined on error.
    """

    error: int
    base: int
    end: int
    log_start: int
    message: str = ""
    append_ms: int = -1


class FetchResult(NamedTuple):
    """``pieces`` together hold ``size`` bytes of whole record batches.

    ``stable``: the last stable offset.  ``aborted``: producer id and first offset of the aborted transactions that the
    pieces may have messages of, by ascending offset of their markers.
    """

    error: int
    log_start: int
    high_watermark: int
    size: int
    pieces: tuple[bytes | FileRange, ...]
    stable: int = -1
    aborted: Sequence[tuple[int, int]] = ()


class SessionReply(NamedTuple):
    """The session of a reply to a fetch; ``parts``: those that the reply names, None: all of the request."""

    id: int
    parts: list[FetchPart] | None = None


class OffsetsResult(NamedTuple):
    """``records``: number of records before ``offset`` since the log began (differences give lag in messages)."""

    error: int
    offset: int
    timestamp: int
    records: int


class LoginReply(NamedTuple):
    """The answer to a :class:`Login`.

    ``error`` and ``text``: 0 and "" while all is well; ``mechanisms``: those that are accepted; ``lifetime_ms``: after
    this time the client has to log in again, 0: never; ``over``: the client is logged in.
    """

    error: int
    text: str = ""
    message: bytes = b""
    mechanisms: Sequence[str] = ()
    lifetime_ms: int = 0
    over: bool = False


class Codec(Protocol):
    """The codec of a listener.  Does no I/O.  ``frame`` is a frame without its u32 size prefix."""

    first_bytes_max: int
    """Largest size of the next frame.  It is smaller before hello."""

    def decode(self, frame: memoryview) -> Request:
        """Raises ProtocolFault when the frame cannot be answered: close the connection."""

    def join(self, request: Produce, first: memoryview, frame: memoryview, shift: int) -> bool:
        """Join the request in ``frame`` to ``request``, if they differ only in correlation id and record batches.

        Joined requests are answered together, in a fraction of the time.  ``first`` is the frame of ``request``;
        ``frame`` begins ``shift`` bytes after it.  Positions of all parts are in ``first``.

        Returns:
            Whether it was joined.
        """

    def logged_in(self) -> Codec:
        """The codec of the connection from now on: its client is logged in."""

    def client_id(self, frame: memoryview) -> bytes:
        """The name that the client of a request has given itself."""

    def software(self, frame: memoryview) -> str:
        """Name and version of the client's software, if this request says them; else ""."""

    def with_throttle(self, request: Request, reply: bytes, throttle_ms: int) -> bytes:
        """The beginning of an encoded reply, telling the client for how long it is throttled, where it can."""

    def encode_produce(self, request: Produce, results: list[ProduceResult]) -> bytes: ...

    def encode_fetch(
        self, request: Fetch, results: list[FetchResult], session: SessionReply | None = None
    ) -> list[bytes | FileRange]:
        """Encode the results of all parts, or those of the parts that a session names."""

    def refuse_fetch(self, request: Fetch, error: int) -> bytes:
        """The reply to a fetch that has an error as a whole."""

    def encode_offsets(self, request: Offsets, results: list[OffsetsResult]) -> bytes: ...

    def encode_login(self, request: Login, reply: LoginReply) -> bytes: ...


def decode_frames(
    codec: Codec, memory: memoryview, frames: Sequence[tuple[int, int]]
) -> Iterator[tuple[Request, int, memoryview]]:
    """Decode the requests in ``frames`` of ``memory``, in order, and join similar produce requests in sequence.

    Yields:
        Each request, the start of its (first) frame, and that frame.

    Raises:
        ProtocolFault: the next frame cannot be answered.  All requests before it have been yielded.
    """
    joined: Produce | None = None
    first, first_start = memory, 0
    for start, stop in frames:
        frame = memory[start:stop]
        if joined is not None:
            if codec.join(joined, first, frame, start - first_start):
                continue
            yield joined, first_start, first
            joined = None
        request = codec.decode(frame)
        if isinstance(request, Produce):
            joined, first, first_start = request, frame, start
        else:
            yield request, start, frame
    if joined is not None:
        yield joined, first_start, first
