"""Reads the bodies of requests that send lines or JSON values, and has what the readers of all bodies share.  No I/O.

A reader yields :class:`RecordBatch` after batch, each with some records of one application on one host; so what a
request takes in memory beside its body is bounded.  The value of a record is what the sender wrote, byte by byte.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, wraps
from typing import Final, NamedTuple, ParamSpec, Protocol, TypeVar, cast

import msgspec

from ..errors import ApplianceError, ClientFault
from ..records.compression import NONE
from ..records.encode import Headers, encode_headers, varint

BATCH_BYTES: Final = 1 << 20
BATCH_RECORDS: Final = 10_000
"""A batch ends with the record that reaches one of them."""
VALUES_MAX: Final = 2_000_000
"""Values of a request: each is an object of Python, so many small ones take more memory than the body."""
RECORDS_MAX: Final = 500_000
"""Records of a request whose answer says of each one whether it was taken."""
NAME_CHARS_MAX: Final = 200
"""Characters of the name of a host or application; the rest is cut off."""
HEADERS_MAX: Final = 40
"""Headers that a sender gives a message; others come to it, and the encoding counts up to 63 in one byte."""
HEADER_BYTES_MAX: Final = 64 * 1024
TIME_BYTES_MAX: Final = 64
SEVERITY_CHARS_MAX: Final = 40
CACHED_BYTES_MAX: Final = 8_192
RESERVED: Final = frozenset({"origin", "part", "format", "time", "host", "app", "facility", "severity"})
"""Names of headers that have a meaning of their own: what senders call so gets a prefix."""
_SEVERITIES: Final = {
    "emerg": "emerg fatal panic emergency",
    "alert": "alert",
    "crit": "crit critical",
    "err": "err error",
    "warning": "warning warn",
    "notice": "notice",
    "info": "info information informational",
    "debug": "debug trace verbose",
}
_TIME: Final = varint(4) + b"time"
SEVERITY_OF: Final = {word: name for name, words in _SEVERITIES.items() for word in words.split()}
"""syslog's names of severities, by the words that others have."""

CROWDED: Final = "all connections that this input takes (connections_max) are in use"
RETRY_AFTER_S: Final = {408: 1, 429: 1, 503: 5}
_NDJSON: Final = frozenset(
    {
        "application/x-ndjson",
        "application/ndjson",
        "application/jsonl",
        "application/x-jsonlines",
        "application/jsonlines",
    }
)

P = ParamSpec("P")
R = TypeVar("R")

decode_raw = msgspec.json.Decoder(msgspec.Raw)
_decode_array = msgspec.json.Decoder(list[msgspec.Raw])
JSON_FAULTS: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""What msgspec raises for JSON that is wrong, or nested too deeply."""


class BodyFault(ClientFault):
    """A body that is not what it should be: nothing of it was taken."""


class BodyTooLarge(BodyFault):
    """A body that could never be taken as one: its records have to be sent in smaller requests."""


class RecordBatch(NamedTuple):
    """``tails``: the encoded headers of each value; ``numbers``: which records of the request they are, from 0 on."""

    host: str
    app: str
    values: list[bytes]
    tails: list[bytes]
    numbers: Sequence[int]


class HttpAnswer(NamedTuple):
    """An answer; ``headers``: others than those that every one has."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Rejected(ApplianceError):
    """A request that gets another answer than 2xx."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class HttpRequest(NamedTuple):
    """``host``: the sender's address; ``query``: the last value of each name."""

    host: str
    path: str
    content_type: str
    query: dict[str, str]
    message_bytes_max: int


class RequestOutcome:
    """What became of the records of a request; ``refused``: status and reason, by the number of the record."""

    def __init__(self) -> None:
        self.taken = 0
        self.refused: dict[int, tuple[int, str]] = {}

    def refuse(self, number: int, status: int, reason: str) -> None:
        self.refused[number] = status, reason


class BodyReader(Protocol):
    """One of the protocols that a request may have."""

    per_record: bool
    """Whether the answer says of each record whether it was taken; else all are refused if one is."""
    packed: int
    """How bodies are packed that have no Content-Encoding."""

    def batches(self, request: HttpRequest, body: bytes, outcome: RequestOutcome) -> Iterator[RecordBatch]:
        """The records of a body.  Raises BodyFault before anything is yielded."""

    def accepted(self, request: HttpRequest, outcome: RequestOutcome) -> HttpAnswer:
        """The answer after everything was flushed."""

    def fault(self, request: HttpRequest, status: int, reason: str) -> HttpAnswer:
        """Another answer."""


class Front(NamedTuple):
    """Headers that many records share: their number, and how they are encoded."""

    headers: int
    encoded: bytes

    def tail(self, *more: bytes) -> bytes:
        """The end of a record with these headers and others (:func:`encode_header`)."""
        return bytes((2 * (self.headers + len(more)),)) + self.encoded + b"".join(more)

    @property
    def plain(self) -> bytes:
        return self.tail()


def small_cache(entries: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """As :func:`functools.lru_cache`, of calls whose arguments are small: senders choose them."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        cached = cast(Callable[P, R], lru_cache(entries)(function))

        @wraps(function)
        def call(*args: P.args, **named: P.kwargs) -> R:
            size = sum(len(argument) if isinstance(argument, str | bytes) else 0 for argument in args)
            return cached(*args, **named) if size <= CACHED_BYTES_MAX else function(*args, **named)

        return call

    return decorate


def encode_header(name: str, value: str) -> bytes:
    """A header as it stands in a record; a name is cut to NAME_CHARS_MAX."""
    return encode_headers([(name[:NAME_CHARS_MAX], _header_bytes(value))])[1:]


def time_header(time: str) -> bytes:
    """The header ``time``: nearly every record has one of its own."""
    value = time.encode("utf-8", "replace")[:TIME_BYTES_MAX]
    return _TIME + varint(len(value)) + value


@lru_cache(1_024)
def severity_header(severity: str) -> bytes:
    """The header ``severity``, of one that was cut to SEVERITY_CHARS_MAX."""
    return encode_header("severity", severity)


def severity_of(word: str) -> str:
    """syslog's name of a severity; one that is not known stays as it is."""
    return SEVERITY_OF.get(word.lower(), word[:SEVERITY_CHARS_MAX])


def _header_bytes(value: str) -> bytes:
    return value.encode("utf-8", "replace")[:HEADER_BYTES_MAX]


@small_cache(1_024)
def front(host: str, app: str, *more: str) -> Front:
    """The headers ``host`` and ``app``, and ``more``: names that are not reserved, each with its value behind it."""
    headers: Headers = [
        ("host", _header_bytes(host)),
        *([("app", _header_bytes(app))] if app else []),
        *((name[:NAME_CHARS_MAX], _header_bytes(value)) for name, value in zip(more[::2], more[1::2], strict=True)),
    ]
    return Front(len(headers), encode_headers(headers)[1:])


def open_name(name: str) -> str:
    """A sender's name for a header, which must not be taken for one that has a meaning."""
    return f"label_{name}" if name in RESERVED else name


TIME_DIGITS_MAX: Final = 19
"""Of a time in ns since 1970, as 64 bits have them."""


def is_time_ns(text: str) -> bool:
    """Whether a sender's text is a time in ns since 1970."""
    return text.isascii() and text.isdecimal() and len(text) <= TIME_DIGITS_MAX


def rfc3339(time_ns: int) -> str:
    """A time in ns since 1970, as RFC 3339 with as many digits as it needs; "" if it has none, or too many years."""
    if not 0 < time_ns < 253_402_300_800 * 10**9:
        return ""
    seconds, rest = divmod(time_ns, 10**9)
    return f"{_second(seconds)}.{rest:09d}".rstrip("0").rstrip(".") + "Z"


@lru_cache(1_024)
def _second(seconds: int) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S")


# ---- protobuf


def submessages(data: bytes, at: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """The fields of a message of protobuf that have a length: number, start and stop of each; others are stepped over.

    Reading records one by one this way bounds what they take in memory: some bytes become objects of hundreds.

    Raises:
        BodyFault: it is no message.
    """
    while at < stop:
        tag, at = _varint(data, at, stop)
        kind = tag & 7
        if kind == 2:
            size, at = _varint(data, at, stop)
            if at + size > stop:
                raise BodyFault(f"a field at byte {at} ends after its message")
            yield tag >> 3, at, at + size
            at += size
        elif kind == 0:
            _, at = _varint(data, at, stop)
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise BodyFault(f"a field at byte {at} has the unknown type {kind}")
    if at > stop:
        raise BodyFault(f"a field ends after its message, at byte {stop}")


def _varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """A number, and where it ends."""
    number = shift = 0
    while at < stop and shift < 70:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    raise BodyFault(f"the number at byte {at} has no end")


# ---- lines


def line_batches(body: bytes, host: str, app: str, message_bytes_max: int) -> Iterator[RecordBatch]:
    """The lines of a body; one with more than ``message_bytes_max`` bytes becomes several, with a header ``part``."""
    shared = front(host, app)
    tail = shared.plain
    number = 0
    for chunk in _chunks(body):
        lines = chunk.split(b"\n")
        if b"\r" in chunk:
            lines = [line.removesuffix(b"\r") for line in lines]
        tails = [tail] * len(lines)
        numbers: Sequence[int] = range(number, number + len(lines))
        number += len(lines)
        if len(chunk) > message_bytes_max and len(max(lines, key=len)) > message_bytes_max:
            lines, tails, numbers = _with_parts(lines, shared, numbers, message_bytes_max)
        yield RecordBatch(host, app, lines, tails, numbers)


def _chunks(body: bytes) -> Iterator[bytes]:
    """Some lines after the other: at least one, or as many as a batch may have; without the last line break."""
    at = 0
    while at < len(body):
        stop = body.rfind(b"\n", at, at + BATCH_BYTES)
        if stop < 0:
            stop = body.find(b"\n", at + BATCH_BYTES)
        if stop < 0 or len(body) - at <= BATCH_BYTES:
            stop = len(body) - body.endswith(b"\n")
        if body.count(b"\n", at, stop) >= BATCH_RECORDS:
            stop = _nth_break(body, at, BATCH_RECORDS)
        yield body[at:stop]
        at = stop + 1


def _nth_break(body: bytes, at: int, count: int) -> int:
    stop = at - 1
    for _ in range(count):
        stop = body.index(b"\n", stop + 1)
    return stop


def _with_parts(
    lines: list[bytes], shared: Front, numbers: Sequence[int], bytes_max: int
) -> tuple[list[bytes], list[bytes], list[int]]:
    values: list[bytes] = []
    tails: list[bytes] = []
    owners: list[int] = []
    for line, number in zip(lines, numbers, strict=True):
        parts = split_line(line, bytes_max)
        values += parts
        tails += part_tails(shared, len(parts))
        owners += [number] * len(parts)
    return values, tails, owners


def part_tails(shared: Front, parts: int, *more: bytes) -> list[bytes]:
    if parts == 1:
        return [shared.tail(*more)]
    return [shared.tail(*more, encode_header("part", str(number))) for number in range(1, parts + 1)]


def split_line(line: bytes, bytes_max: int) -> list[bytes]:
    """A line in parts of at most ``bytes_max``, none of which ends within a character of UTF-8."""
    parts: list[bytes] = []
    at = 0
    while len(line) - at > bytes_max:
        stop = at + bytes_max
        back = next((count for count in range(4) if line[stop - count] & 0xC0 != 0x80), 0)
        parts.append(line[at : stop - back])
        at = stop - back
    return [*parts, line[at:]]


# ---- JSON


def json_batches(body: bytes, host: str, app: str, message_bytes_max: int) -> Iterator[RecordBatch]:
    """The elements of a JSON array, or the one value that a body is, or one on each line.

    Raises:
        BodyFault: it is none of them.  BodyTooLarge: one of the values is too long.  Nothing is yielded before.
    """
    first = body.lstrip()[:1]
    if first == b"[":
        return _value_batches(_array_values(body), host, app, message_bytes_max)
    try:
        value = decode_raw.decode(body)
    except JSON_FAULTS:
        return ndjson_batches(body, host, app, message_bytes_max)
    return _value_batches([value], host, app, message_bytes_max)


def is_json_array(body: bytes) -> bool:
    """Whether a body of no stated type is an array: lines of logs begin with ``[``, too."""
    if body[:1] != b"[" or body.rstrip()[-1:] != b"]":
        return False
    try:
        decode_raw.decode(body)
    except JSON_FAULTS:
        return False
    return True


def _array_values(body: bytes) -> list[msgspec.Raw]:
    if body.count(b",") > VALUES_MAX:
        raise BodyTooLarge(f"more than {VALUES_MAX} commas: send smaller arrays")
    try:
        return _decode_array.decode(body)
    except JSON_FAULTS as error:
        raise BodyFault(f"no JSON array: {error}") from None


def _value_batches(values: list[msgspec.Raw], host: str, app: str, bytes_max: int) -> Iterator[RecordBatch]:
    for value in values:
        if memoryview(value).nbytes > bytes_max:
            raise BodyTooLarge(f"a value has more than {bytes_max} bytes (message_bytes_max)")
    tail = front(host, app).plain

    def batches() -> Iterator[RecordBatch]:
        number, size, some = 0, 0, list[bytes]()
        for value in values:
            some.append(bytes(value))
            size += len(some[-1])
            if size >= BATCH_BYTES or len(some) >= BATCH_RECORDS:
                yield RecordBatch(host, app, some, [tail] * len(some), range(number, number + len(some)))
                number, size, some = number + len(some), 0, []
        if some:
            yield RecordBatch(host, app, some, [tail] * len(some), range(number, number + len(some)))

    return batches()


def ndjson_batches(body: bytes, host: str, app: str, message_bytes_max: int) -> Iterator[RecordBatch]:
    """A JSON value on each line; empty lines are skipped.

    Raises:
        BodyFault, BodyTooLarge: as :func:`json_batches`.
    """
    if body.count(b"\n") > VALUES_MAX:
        raise BodyTooLarge(f"more than {VALUES_MAX} lines: send smaller requests")
    line = 1
    for chunk in _chunks(body):
        if len(chunk) > message_bytes_max and max(map(len, chunk.split(b"\n"))) > message_bytes_max:
            raise BodyTooLarge(f"a line has more than {message_bytes_max} bytes (message_bytes_max)")
        _lines_of_values(chunk, line)
        line += chunk.count(b"\n") + 1
    tail = front(host, app).plain

    def batches() -> Iterator[RecordBatch]:
        number = 0
        for chunk in _chunks(body):
            values = list(map(bytes, _lines_of_values(chunk, 1)))
            if values:
                yield RecordBatch(host, app, values, [tail] * len(values), range(number, number + len(values)))
            number += len(values)

    return batches()


def _lines_of_values(chunk: bytes, first_line: int) -> list[msgspec.Raw]:
    """The values of some lines.  Raises BodyFault, with the number of the line."""
    decode = decode_raw.decode
    lines = chunk.split(b"\n")
    try:
        return [decode(line) for line in lines if line.strip()]
    except JSON_FAULTS:
        pass
    for number, line in enumerate(lines, first_line):
        try:
            decode(line if line.strip() else b"0")
        except JSON_FAULTS as error:
            raise BodyFault(f"line {number} is no JSON: {error}") from None
    raise AssertionError("one of the lines was no JSON")


class LinesReader:
    """Lines, NDJSON and JSON."""

    per_record = False
    packed = NONE

    def batches(self, request: HttpRequest, body: bytes, outcome: RequestOutcome) -> Iterator[RecordBatch]:
        host = request.query.get("host", "")[:NAME_CHARS_MAX] or request.host
        app = request.query.get("app", "")[:NAME_CHARS_MAX]
        rest = host, app, request.message_bytes_max
        kind = request.content_type
        if kind in _NDJSON:
            return ndjson_batches(body, *rest)
        is_json = kind == "application/json" or kind.endswith("+json")
        if is_json or (not kind.startswith("text/") and is_json_array(body)):
            return json_batches(body, *rest)
        return line_batches(body, *rest)

    def accepted(self, request: HttpRequest, outcome: RequestOutcome) -> HttpAnswer:
        return HttpAnswer(200, "application/json", b'{"messages":%d}\n' % outcome.taken)

    def fault(self, request: HttpRequest, status: int, reason: str) -> HttpAnswer:
        return HttpAnswer(status, "text/plain; charset=utf-8", f"{reason}\n".encode("utf-8", "replace"))
