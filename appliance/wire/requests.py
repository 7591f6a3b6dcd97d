"""The values that both protocols decode requests to, and encode replies from.

A protocol's codec turns one frame into one of the requests below and a list of results into the pieces of a reply.
It neither reads sockets nor opens files: a reply is a list of ``bytes`` and :class:`FileRange` that the network
worker writes and sendfiles in order (h11's ``send_with_data_passthrough``).  ``context`` is whatever the codec
needs to encode the reply (correlation id, API version); nobody else looks into it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

EARLIEST = -2
LATEST = -1
MAX_TIMESTAMP = -3
"""Special values of :attr:`OffsetsPart.timestamp`; values >= 0 are milliseconds since 1970."""


class OpenFile(Protocol):
    """An open segment file.  Its descriptor is closed when the last reference goes.

    So a range that is still queued for a slow reader keeps its file although retention has unlinked it.
    """

    fd: int


class FileRange(NamedTuple):
    """``count`` bytes at ``position`` of an open file: what ``sendfile`` takes."""

    file: OpenFile
    position: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here


class ProducePart(NamedTuple):
    """Record batches for one partition: ``frame[start:stop]``, nothing copied."""

    topic: str
    partition: int
    start: int
    stop: int


class FetchPart(NamedTuple):
    topic: str
    partition: int
    offset: int
    bytes_max: int


class OffsetsPart(NamedTuple):
    """``timestamp``: EARLIEST, LATEST, MAX_TIMESTAMP or ms; ``offset`` >= 0 asks about that offset instead."""

    topic: str
    partition: int
    timestamp: int
    offset: int = -1


@dataclass(slots=True)
class Produce:
    """One request, or ``count`` of one part each that :meth:`Codec.join` has made one.

    ``overlap``, here and below: requests of one connection that have the same may be in progress together; any other
    request starts when all before it have taken effect.  "" overlaps with nothing.
    """

    overlap: ClassVar[str] = "produce"
    context: Any
    acks: int
    timeout_ms: int
    parts: list[ProducePart]
    count: int = 1


@dataclass(slots=True)
class Fetch:
    overlap: ClassVar[str] = ""
    context: Any
    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    parts: list[FetchPart]

    @property
    def bytes_enough(self) -> int:
        """What a reply must hold to be sent at once: without time to wait, anything will do."""
        return self.bytes_min if self.wait_ms_max > 0 else min(self.bytes_min, 1)


@dataclass(slots=True)
class Offsets:
    """``counted``: the answers are to say how many records come before each offset."""

    overlap: ClassVar[str] = ""
    context: Any
    parts: list[OffsetsPart]
    counted: bool = True


@dataclass(slots=True)
class Forwarded:
    """Anything else: the frame goes to the coordinator as it is and its reply frame comes back as bytes."""

    context: Any
    overlap: str = ""


@dataclass(slots=True)
class Local:
    """The codec knows the answer itself (hello, ApiVersions, a request it refuses); then maybe hang up."""

    overlap: ClassVar[str] = ""
    reply: bytes
    close: bool = False


Request = Produce | Fetch | Offsets | Forwarded | Local


class ProduceResult(NamedTuple):
    """``base``: offset of the first record; ``end``: offset after the last; both -1 on error.

    ``append_ms``: the time that the records were given, -1 when they keep their own.  It means nothing on error.
    """

    error: int
    base: int
    end: int
    log_start: int
    message: str = ""
    append_ms: int = -1


class FetchResult(NamedTuple):
    """``pieces`` together hold ``size`` bytes of whole record batches."""

    error: int
    log_start: int
    high_watermark: int
    size: int
    pieces: tuple[bytes | FileRange, ...]


class OffsetsResult(NamedTuple):
    """``records``: how many records the log has had before ``offset`` (differences give lag in messages)."""

    error: int
    offset: int
    timestamp: int
    records: int


class Codec(Protocol):
    """One listener.  Nothing here reads or writes a socket; ``frame`` is the frame without its u32 size prefix."""

    first_bytes_max: int
    """Of the next frame: less than of all others until the client has introduced itself."""

    def decode(self, frame: memoryview) -> Request:
        """Raises ProtocolFault when the frame cannot be answered: close the connection."""

    def join(self, request: Produce, first: memoryview, frame: memoryview, shift: int) -> bool:
        """Whether ``frame`` asks what ``request`` asks but for its correlation and its record batches.

        Then it is part of it from now on and answered with it, in a fraction of the time.  ``first`` is the frame of
        ``request``; ``frame`` begins ``shift`` bytes after it, and so are its parts counted.
        """

    def encode_produce(self, request: Produce, results: list[ProduceResult]) -> bytes: ...

    def encode_fetch(self, request: Fetch, results: list[FetchResult]) -> list[bytes | FileRange]: ...

    def encode_offsets(self, request: Offsets, results: list[OffsetsResult]) -> bytes: ...


def decode_frames(
    codec: Codec, memory: memoryview, frames: Sequence[tuple[int, int]]
) -> Iterator[tuple[Request, int, memoryview]]:
    """The requests in ``frames`` of ``memory``, in order; produce requests alike that follow each other become one.

    Yields:
        Each request, where its (first) frame begins, and that frame.

    Raises:
        ProtocolFault: the next frame cannot be answered.  What comes before it has been yielded.
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
