"""Takes logs in by HTTP: lines, JSON, and the protocols that shippers have for OpenTelemetry, Loki and Elasticsearch.

==============================  =====================================================================================
request                         is
==============================  =====================================================================================
POST /v1/logs                   OTLP/HTTP logs (:mod:`.otlp_logs`)
POST /loki/api/v1/push          Loki push (:mod:`.loki_push`)
POST /_bulk, /INDEX/_bulk       Elasticsearch bulk (:mod:`.elastic_bulk`); GET / and others that its clients ask first
POST /upload                    the journal of a host, as systemd-journal-upload sends it (:mod:`.journal_upload`)
POST to other paths             lines, NDJSON or a JSON array (:mod:`.bodies`), by content type; without a clear one an
                                array if it is one, else lines.  ``?app=`` and ``?host=`` say whose they are
==============================  =====================================================================================

An answer of 2xx comes once everything is flushed.  401, 403, 404, 405, 415: such a request is not taken.  400:
the body is wrong, and nothing of it was taken.  413: it never fits.  408, 429 and 503, with Retry-After: not now; what
comes again may be in the log twice.

Bounds: ``connections_max`` connections; when there is no place, the oldest that waits for its sender gives way, of the
address that has most, and if none does, what comes is answered 503.  A head has HEAD_BYTES_MAX and comes within
HEAD_MS_MAX; a connection has PIPELINE_MAX requests that wait for their turn.  A body comes with RATE_BYTES_MIN a second
after BODY_S and has ``body_bytes_max``, packed and unpacked; all bodies in hand have BODIES_FACTOR times that, of which
WORK_BYTES_MAX are parsed at a time (:mod:`.work_room`).  What is on its way to a topic stays counted, also when its
sender was told to send it again.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import importlib.util
import ipaddress
import re
import ssl
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from .. import extras
from ..addresses import IpNetwork, host_of_peer, parse_networks
from ..errors import ApplianceError, BadValue, BufferFull, CorruptBatch, InvalidTopic, MessageTooLarge
from ..input_settings import Http, secured_addresses
from ..processes.tls_files import TlsFiles
from ..records.batch import CODECS
from ..records.compression import GZIP, NONE, ZSTD, decompress
from ..security.secret_files import read_secret_file
from .bodies import (
    CROWDED,
    RETRY_AFTER_S,
    BodyFault,
    BodyReader,
    BodyTooLarge,
    HttpAnswer,
    HttpRequest,
    LinesReader,
    RecordBatch,
    Rejected,
    RequestOutcome,
)
from .elastic_bulk import BULK_PATH, ElasticBulk, preparation
from .intake import InputMessage, Intake
from .journal_upload import CONTENT_TYPE, UPLOAD_PATH, JournalUploads, Upload
from .ledger import TROUBLE_S
from .machinery import InputTopics, Machinery
from .work_room import WorkRoom

if TYPE_CHECKING:
    from .http_connection import SenderConnection

PACKAGES: Final = ("uvicorn", "httptools", "google.protobuf", "opentelemetry.proto")
UPLOAD_IDLE_MS_MAX: Final = 60_000
"""How long an upload of a journal, which has no end, may be silent."""
KEEP_S: Final = 75
"""How long a connection may be idle between requests."""
BODY_S: Final = 10.0
RATE_BYTES_MIN: Final = 16 * 1024
ANSWER_MS_MAX: Final = 30_000
"""How long a request waits until what it has sent is flushed: senders wait longer."""
LINGER_S: Final = 2.0
"""How long the rest of a body is read and dropped after an early answer, which the sender would not see otherwise."""
STOP_LINGER_S: Final = 0.3
"""Likewise when the input stops, which has little time: a sender that sees no answer sends again, as after a 503."""
CHECK_S: Final = 2.0
BODIES_FACTOR: Final = 4
EXPANSION_MAX: Final = 32
"""How many times ``body_bytes_max`` the records of a request may have: each has headers that they share in the body."""
REFUSED_SOURCES_MAX: Final = 1_000
"""Addresses whose refusals are counted separately in a minute; all others count as one."""
STOPPING: Final = "this input stops, or starts again"
TOO_MUCH: Final = "too much is on its way: send it again"
NO_APP: Final = "unknown"
"""What the name of a topic has in place of an application that is not named."""
GROUP_BYTES: Final = 2 << 20
GROUP_RECORDS: Final = 20_000
"""How much of a request is put at a time: a group ends with the batch that reaches one of them."""
OTLP_PATH: Final = "/v1/logs"
LOKI_PATH: Final = "/loki/api/v1/push"
OTHER_APIS: Final = re.compile(r"/v1/(traces|metrics|profiles)$|/v1development/|/loki/|/_|/[^/]+/_")
"""Paths of protocols for other things than logs: what comes there is not read as lines."""
_ENCODINGS: Final = {b"gzip": GZIP, b"x-gzip": GZIP, b"zstd": ZSTD}


class Gone(ApplianceError):
    """The sender closed the connection before its body was complete."""


LINES: Final = LinesReader()


def http_input(settings: Http, machinery: Machinery) -> HttpInput:
    """Raises BadValue: packages are missing, or a file cannot be used."""
    missing = [name for name in PACKAGES if not _is_there(name)]
    if missing:
        packages = " and ".join(missing)
        raise BadValue(f"inputs.{machinery.name}: {packages} missing: {extras.install('inputs')}")
    return HttpInput(settings, machinery)


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # not even what it is in
        return False


class HttpInput:
    """Serves the requests of the module's docstring, and puts their records into topics."""

    def __init__(self, settings: Http, machinery: Machinery) -> None:
        self._settings, self._machinery, self._ledger = settings, machinery, machinery.ledger
        self._intake = Intake(machinery)
        self._topics = InputTopics(settings.topic, settings.topics_max)
        self._uploads = JournalUploads(
            self._intake,
            machinery.ledger,
            entry_bytes_max=settings.message_bytes_max,
            has_all=settings.whole_journals,
        )
        self._access = _Access(settings, machinery)
        self._bodies = _Bodies(BODIES_FACTOR * settings.body_bytes_max)
        self._work = WorkRoom()
        self._expanded_bytes_max = EXPANSION_MAX * settings.body_bytes_max
        self._reading: set[asyncio.Timeout] = set()
        self._lingering: set[asyncio.Timeout] = set()
        self._refused_sources: Counter[str] = Counter()
        self._refused_minute = 0
        self._stopping = asyncio.Event()
        self._served: asyncio.Task[None] | None = None
        self._clock_s = asyncio.get_running_loop().time
        names = secured_addresses(settings)
        self._tls = TlsFiles(machinery.config.tls) if names else None
        self._secured = [machinery.sockets[name] for name in names]

    async def run(self) -> None:
        import uvicorn

        from ..web.server import HttpServer
        from .http_connection import SenderConnection, SenderPlaces

        bounds = {
            "places": SenderPlaces(self._settings.connections_max),
            "on_fault": staticmethod(self._note_fault),
            "on_crowded": staticmethod(self._note_crowded),
        }
        settings = uvicorn.Config(
            self._serve,
            http=type("BoundedConnection", (SenderConnection,), bounds),
            interface="asgi3",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_S,
        )
        server = HttpServer(
            settings,
            self._stopping,
            name=f"inputs.{self._machinery.name}",
            stop_s_max=ANSWER_MS_MAX / 1000,
            tls=dict.fromkeys(self._secured, self._context),
            handshake_s_max=self._machinery.config.tls.handshake_ms_max / 1000,
        )
        self._served = asyncio.create_task(server.serve(list(self._machinery.sockets.values())))
        while not self._served.done():
            await asyncio.wait({self._served}, timeout=CHECK_S)
            for connection in list(server.server_state.connections):
                if isinstance(connection, SenderConnection):
                    connection.check(self._clock_s())
            self._reload_tls()
        await self._served

    async def drain(self) -> None:
        """Answer the requests that have come whole, and refuse the others: they are sent again."""
        self._stopping.set()
        for scope in self._reading:
            scope.reschedule(0)
        for scope in self._lingering:
            scope.reschedule(self._clock_s() + STOP_LINGER_S)
        if self._served is not None:
            await self._served
        await self._intake.drain()

    # ---- one request

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI application."""
        connection: SenderConnection = scope["state"]["connection"]
        connection.is_answering = False
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request = _request_of(scope, headers, self._settings.message_bytes_max)
        exchange = _Exchange(scope, receive, send, connection)
        held = self._bodies.hold(request.host)
        reader: BodyReader = LINES
        try:
            self._access.check(request.host, headers.get(b"authorization", b""))
            if (answer := _greeting(scope["method"], request.path)) is None:
                is_upload = request.path.rstrip("/") == UPLOAD_PATH
                reader = LINES if is_upload else self._reader_of(request)
                if connection.is_in_lobby and connection.places.is_crowded:
                    raise Rejected(503, CROWDED)
                if scope["method"] not in ("POST", "PUT"):
                    raise Rejected(405, f"{scope['method']} {request.path[:100]}: logs are sent by POST")
                if is_upload:
                    answer = await self._take_upload(request, exchange, headers, held)
            if answer is None:
                body = await self._read_body(exchange, reader.packed, headers, held)
                connection.is_answering = True
                outcome = await self._take(request, reader, body, held)
                self._note_refused_records(request, outcome)
                answer = reader.accepted(request, outcome)
        except Gone:
            return
        except Rejected as rejected:
            self._note_rejected(request.host, rejected)
            answer = reader.fault(request, rejected.status, str(rejected))
        finally:
            held.release()
            connection.is_answering = False
        await exchange.answer(answer, self._linger)

    async def _linger(self, pieces: AsyncIterator[bytes]) -> None:
        """Read and drop the rest of a body for a while: closing at once would take the answer from the sender."""
        try:
            async with asyncio.timeout(STOP_LINGER_S if self._stopping.is_set() else LINGER_S) as scope:
                self._lingering.add(scope)
                async for _ in pieces:
                    pass
        except (TimeoutError, Gone):
            pass
        finally:
            self._lingering.discard(scope)

    def _reader_of(self, request: HttpRequest) -> BodyReader:
        """Raises Rejected: 404."""
        path = request.path.rstrip("/")
        if path == OTLP_PATH:
            from .otlp_logs import OtlpLogs

            return OtlpLogs()
        if path == LOKI_PATH:
            from .loki_push import LokiPush

            return LokiPush(request.content_type)
        if BULK_PATH.fullmatch(path):
            return ElasticBulk()
        if OTHER_APIS.match(path):
            raise Rejected(
                404, f"{path[:100]}: nothing is taken here; logs go to {OTLP_PATH}, {LOKI_PATH}, /_bulk or /"
            )
        return LINES

    async def _read_body(self, exchange: _Exchange, packed: int, headers: dict[bytes, bytes], held: _Held) -> bytes:
        """The body as the sender has it, unpacked.

        Raises:
            Rejected, Gone.
        """
        bytes_max = self._settings.body_bytes_max
        too_large = f"the body has more than {bytes_max} bytes (body_bytes_max): send less at a time"
        encoding = headers.get(b"content-encoding", b"").strip().lower()
        codec = packed if encoding in (b"", b"identity", CODECS[packed].encode()) else _ENCODINGS.get(encoding)
        if codec is None:
            raise Rejected(415, f"Content-Encoding {encoding.decode('latin-1')[:40]}: must be gzip, zstd or identity")
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > bytes_max:
            raise Rejected(413, too_large)
        if self._stopping.is_set():
            raise Rejected(503, STOPPING)
        begun = self._clock_s()
        pieces: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_S) as scope:
                self._reading.add(scope)
                async for piece in exchange.pieces():
                    pieces.append(piece)
                    size += len(piece)
                    if size > bytes_max:
                        raise Rejected(413, too_large)
                    if not held.grow(len(piece)):
                        raise Rejected(429, TOO_MUCH)
                    if not self._stopping.is_set():
                        scope.reschedule(begun + BODY_S + size / RATE_BYTES_MIN)
        except TimeoutError:
            if self._stopping.is_set():
                raise Rejected(503, STOPPING) from None
            raise Rejected(408, f"the body comes too slowly: {size} bytes in {self._clock_s() - begun:.0f} s") from None
        finally:
            self._reading.discard(scope)
        body = b"".join(pieces)
        return self._unpack(body, codec, held) if body and codec != NONE else body

    async def _take_upload(
        self, request: HttpRequest, exchange: _Exchange, headers: dict[bytes, bytes], held: _Held
    ) -> HttpAnswer:
        """Put the entries of a journal as they come; return when the body is complete and all are flushed.

        Raises:
            Rejected, Gone.
        """
        if request.content_type != CONTENT_TYPE:
            raise Rejected(415, f"Content-Type {request.content_type[:40]}: must be {CONTENT_TYPE}")
        if headers.get(b"content-encoding", b"").strip().lower() not in (b"", b"identity"):
            raise Rejected(415, "an upload of a journal must not be packed")
        upload = Upload(self._uploads, request.host, self._place)
        pieces = exchange.pieces()
        while True:
            if self._stopping.is_set():
                raise Rejected(503, STOPPING)
            try:
                async with asyncio.timeout(UPLOAD_IDLE_MS_MAX / 1000) as scope:
                    self._reading.add(scope)
                    piece = await anext(pieces, b"")
            except TimeoutError:
                if self._stopping.is_set():
                    raise Rejected(503, STOPPING) from None
                raise Rejected(408, f"nothing has come for {UPLOAD_IDLE_MS_MAX} ms") from None
            finally:
                self._reading.discard(scope)
            exchange.connection.is_answering = not piece
            if not held.resize(upload.held_bytes + len(piece)):
                raise Rejected(429, TOO_MUCH)
            try:
                await (upload.feed(piece) if piece else upload.finish())
            except ApplianceError as error:
                raise error if isinstance(error, Rejected) else _rejected_of(error) from None
            if not piece:
                return HttpAnswer(202, "text/plain; charset=utf-8", b"OK.\n")

    def _place(self, app: str, host: str) -> tuple[str, bytes | None]:
        """Topic and key of messages of an application on a host.

        Raises:
            Rejected: there would be too many topics.
        """
        key = {"": None, "app": app or NO_APP, "host": host}[self._settings.key]
        try:
            topic = self._topics.topic_for({"app": _topic_field(app or NO_APP), "host": _topic_field(host)})
        except BadValue as error:
            raise Rejected(429, str(error)) from None
        return topic, None if key is None else key.encode("utf-8", "replace")

    def _unpack(self, body: bytes, codec: int, held: _Held) -> bytes:
        bytes_max = self._settings.body_bytes_max
        room = min(bytes_max, held.room)
        try:
            unpacked = decompress(codec, body, room)
        except MessageTooLarge:
            if room < bytes_max:
                raise Rejected(429, TOO_MUCH) from None
            raise Rejected(413, f"the body unpacks to more than {bytes_max} bytes (body_bytes_max)") from None
        except CorruptBatch as error:
            raise Rejected(400, f"the body cannot be unpacked: {error}") from None
        held.grow(len(unpacked))
        return unpacked

    async def _take(self, request: HttpRequest, reader: BodyReader, body: bytes, held: _Held) -> RequestOutcome:
        """Put the records of a body; return when all are flushed.

        Raises:
            Rejected: not all are.  What is still on its way stays counted in ``held``.
        """
        outcome = RequestOutcome()
        deadline = self._clock_s() + ANSWER_MS_MAX / 1000
        try:
            async with asyncio.timeout(ANSWER_MS_MAX / 1000):
                await self._work.enter(len(body))
        except TimeoutError:
            raise Rejected(503, f"not begun within {ANSWER_MS_MAX} ms: send it again") from None
        held.on_release(partial(self._work.leave, len(body)))
        try:
            for batches in _groups(reader.batches(request, body, outcome), self._expanded_bytes_max):
                record_outcome = outcome if reader.per_record else None
                puts = [asyncio.create_task(self._put_batch(request.host, batch, record_outcome)) for batch in batches]
                done, late = await asyncio.wait(puts, timeout=max(0.0, deadline - self._clock_s()))
                if late:
                    held.keep(late)
                for error in [put.exception() for put in done]:
                    if error is not None:
                        raise error
                if late:
                    raise Rejected(503, f"not flushed within {ANSWER_MS_MAX} ms: send it again; some may be in the log")
                if record_outcome is None:
                    outcome.taken += sum(len(batch.values) for batch in batches)
        except BodyTooLarge as error:
            raise Rejected(413, str(error)) from None
        except BodyFault as error:
            raise Rejected(400, str(error)) from None
        return outcome

    async def _put_batch(self, source: str, batch: RecordBatch, outcome: RequestOutcome | None) -> None:
        """Put the records of a batch.  ``outcome``: notes those that are refused; None: the first one is an error.

        Raises:
            Rejected.
        """
        try:
            topic, key = self._place(batch.app, batch.host)
        except Rejected as rejected:
            if outcome is None:
                raise
            _refuse_all(outcome, batch.numbers, rejected)
            return
        messages = [InputMessage(value, tail, key) for value, tail in zip(batch.values, batch.tails, strict=True)]
        await self._put(source, topic, messages, batch.numbers, outcome)

    async def _put(
        self,
        source: str,
        topic: str,
        messages: list[InputMessage],
        numbers: Sequence[int],
        outcome: RequestOutcome | None,
    ) -> None:
        try:
            await self._intake.put(source, topic, messages)
        except MessageTooLarge as error:
            if outcome is None:
                raise Rejected(413, str(error)) from None
            if len(messages) == 1:
                outcome.refuse(numbers[0], 413, str(error))
                return
            half = len(messages) // 2
            await self._put(source, topic, messages[:half], numbers[:half], outcome)
            await self._put(source, topic, messages[half:], numbers[half:], outcome)
        except ApplianceError as error:
            rejected = _rejected_of(error)
            if outcome is None:
                raise rejected from None
            _refuse_all(outcome, numbers, rejected)
        else:
            if outcome is not None:
                outcome.taken += len(messages)

    # ---- what is counted

    def _note_rejected(self, host: str, rejected: Rejected) -> None:
        if rejected.status in RETRY_AFTER_S:
            self._note_answered(host, rejected.status, f"answered {rejected.status}: {rejected}")
        else:
            self._note_refused(host, _REASONS.get(rejected.status, "malformed"), 1, str(rejected))

    def _note_answered(self, host: str, status: int, told: str) -> None:
        """A sender was told to come again: nothing is lost.  One that does not come must not be waited for."""
        if status == 503:
            self._ledger.note_trouble(0, host, told, lasting_s=TROUBLE_S)
        else:
            self._ledger.note_turned_away(host, told)

    def _note_refused_records(self, request: HttpRequest, outcome: RequestOutcome) -> None:
        counts = Counter(status for status, _ in outcome.refused.values())
        reasons = dict(outcome.refused.values())
        for status, count in counts.items():
            if status in RETRY_AFTER_S:
                self._note_answered(request.host, status, f"answered {status} for records: {reasons[status]}")
            else:
                self._note_refused(request.host, _REASONS.get(status, "malformed"), count, reasons[status])

    def _note_refused(self, host: str, reason: str, records: int, told: str) -> None:
        minute = self._ledger.minute()
        if minute != self._refused_minute:
            self._refused_minute = minute
            self._refused_sources.clear()
        if host not in self._refused_sources and len(self._refused_sources) >= REFUSED_SOURCES_MAX:
            host = "others"
        self._refused_sources[host] += records
        self._ledger.note_refused(0, host, reason, records, told=told)

    def _note_crowded(self, host: str) -> None:
        self._ledger.note_turned_away(host, CROWDED)

    def _note_fault(self, host: str) -> None:
        """Count bytes that are no HTTP."""
        self._note_refused(host, "no HTTP request", 1, "what it sends is no request")

    # ---- files

    def _context(self) -> ssl.SSLContext:
        assert self._tls is not None
        return self._tls.context

    def _reload_tls(self) -> None:
        if self._tls is not None and self._tls.have_changed():
            try:
                self._tls.load(self._machinery.config.tls)
            except BadValue as error:
                self._ledger.note_trouble(0, self._machinery.name, f"the certificates stay the earlier ones: {error}")


_REASONS: Final = {
    401: "no valid token",
    403: "address not allowed",
    404: "no such path",
    405: "method not allowed",
    413: "too large",
    415: "unknown encoding",
}


def _rejected_of(error: ApplianceError) -> Rejected:
    """What a sender is told when its messages cannot be flushed."""
    if isinstance(error, InvalidTopic):
        return Rejected(400, str(error))
    if isinstance(error, BufferFull):
        return Rejected(429, str(error))
    return Rejected(503, str(error))  # also what only an operator can mend: the sender keeps its logs until then


def _refuse_all(outcome: RequestOutcome, numbers: Sequence[int], rejected: Rejected) -> None:
    for number in numbers:
        outcome.refuse(number, rejected.status, str(rejected))


def _topic_field(value: str) -> str:
    return value[:100].strip(".") or "_"


def _groups(batches: Iterator[RecordBatch], bytes_max: int) -> Iterator[list[RecordBatch]]:
    """Batches that are put together: those of many applications need not wait for each other.

    Raises:
        BodyTooLarge: all of them have more than ``bytes_max``, after some were yielded.
    """
    group: list[RecordBatch] = []
    size = records = 0
    for batch in batches:
        group.append(batch)
        records += len(batch.values)
        batch_bytes = sum(map(len, batch.values)) + sum(map(len, batch.tails))
        size += batch_bytes
        bytes_max -= batch_bytes
        if bytes_max < 0:
            raise BodyTooLarge("the records repeat too much of what they share: send smaller requests")
        if size >= GROUP_BYTES or records >= GROUP_RECORDS:
            yield group
            group, size, records = [], 0, 0
    if group:
        yield group


def _request_of(scope: Any, headers: dict[bytes, bytes], message_bytes_max: int) -> HttpRequest:
    return HttpRequest(
        host_of_peer(scope["client"]),
        scope["path"],
        headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower(),
        dict(parse_qsl(scope["query_string"].decode("latin-1"), max_num_fields=None, errors="replace")),
        message_bytes_max,
    )


def _greeting(method: str, path: str) -> HttpAnswer | None:
    """The answer to a request that asks whether, or what, this is; None: it does not."""
    if path in ("/ready", "/health") and method in ("GET", "HEAD"):
        return HttpAnswer(200, "text/plain", b"ready\n")
    return preparation(method, path)


class _Exchange:
    """The body of one request, and the answer to it."""

    def __init__(self, scope: Any, receive: Any, send: Any, connection: SenderConnection) -> None:
        self._scope, self._receive, self._send, self.connection = scope, receive, send, connection
        self._is_read = False

    async def pieces(self) -> AsyncIterator[bytes]:
        """Raises Gone."""
        while not self._is_read:
            event = await self._receive()
            if event["type"] != "http.request":
                raise Gone
            self._is_read = not event["more_body"]
            if event["body"]:
                yield event["body"]

    async def answer(self, answer: HttpAnswer, linger: Callable[[AsyncIterator[bytes]], Awaitable[None]]) -> None:
        """``linger``: reads what is left of the body behind an answer that came before its end."""
        status, content_type, body, more = answer
        headers = [(b"content-type", content_type.encode()), *more]
        if status != 204:
            headers.append((b"content-length", b"%d" % len(body)))
        if status in RETRY_AFTER_S:
            headers.append((b"retry-after", b"%d" % RETRY_AFTER_S[status]))
        if status == 401:
            headers.append((b"www-authenticate", b'Bearer realm="logs"'))
        is_get = self._scope["method"] in ("GET", "HEAD")
        if not self._is_read and not is_get:
            headers.append((b"connection", b"close"))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        if not self._is_read and not is_get:
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
            await linger(self.pieces())
            body = b""
        await self._send({"type": "http.response.body", "body": body, "more_body": False})


class _Bodies:
    """Counts the bytes of all bodies in hand.  One address gets at most half of them."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.total = 0
        self.by_host: Counter[str] = Counter()

    def hold(self, host: str) -> _Held:
        return _Held(self, host)


class _Held:
    """What one request has in hand of it."""

    def __init__(self, bodies: _Bodies, host: str) -> None:
        self._bodies, self._host = bodies, host
        self._bytes = 0
        self._late: set[asyncio.Task[None]] = set()
        self._is_over = False
        self._release: Callable[[], None] | None = None

    @property
    def room(self) -> int:
        bodies = self._bodies
        return max(0, min(bodies.bytes_max - bodies.total, bodies.bytes_max // 2 - bodies.by_host[self._host]))

    def grow(self, size: int) -> bool:
        """Take so much more; False: there is no room."""
        if size > self.room:
            return False
        self._bytes += size
        self._bodies.total += size
        self._bodies.by_host[self._host] += size
        return True

    def resize(self, size: int) -> bool:
        """Have so much in hand instead; False: there is no room."""
        more = size - self._bytes
        if more > 0:
            return self.grow(more)
        self._bytes += more
        self._bodies.total += more
        self._bodies.by_host[self._host] += more
        return True

    def on_release(self, call: Callable[[], None]) -> None:
        """Call this when everything is given back."""
        self._release = call

    def keep(self, tasks: set[asyncio.Task[None]]) -> None:
        """The request ends without them; what it holds is given back when they have ended, too."""
        self._late |= tasks
        for task in tasks:
            task.add_done_callback(self._on_late)

    def _on_late(self, task: asyncio.Task[None]) -> None:
        self._late.discard(task)
        if not task.cancelled():
            task.exception()  # nobody waits for it any more
        if self._is_over and not self._late:
            self._give_back()

    def release(self) -> None:
        self._is_over = True
        if not self._late:
            self._give_back()

    def _give_back(self) -> None:
        if self._release is not None:
            self._release()
        bodies = self._bodies
        bodies.total -= self._bytes
        bodies.by_host[self._host] -= self._bytes
        if not bodies.by_host[self._host]:
            del bodies.by_host[self._host]
        self._bytes = 0


class _Access:
    """Who may send: networks, and tokens in a file that is read again when it changes."""

    def __init__(self, settings: Http, machinery: Machinery) -> None:
        """Raises BadValue: the file cannot be used."""
        self._networks: list[IpNetwork] = parse_networks(",".join(settings.allow))
        self._path = Path(settings.token_file) if settings.token_file else None
        self._key, self._machinery = f"inputs.{machinery.name}.token_file", machinery
        self._digests: list[bytes] = []
        self._fault = ""
        self._seen: tuple[int, ...] = ()
        if self._path is not None:
            self._seen = self._signature(self._path)
            self._load(self._path)

    def check(self, host: str, authorization: bytes) -> None:
        """Raises Rejected."""
        if self._networks:
            address = ipaddress.ip_address(host)
            if not any(address in network for network in self._networks):
                raise Rejected(403, f"{host} is in none of the networks that may send (allow)")
        if self._path is None:
            return
        self._reload(self._path)
        if self._fault:
            raise Rejected(503, self._fault)
        digest_sent = hashlib.sha256(_token_of(authorization)).digest()
        is_known = False
        for digest in self._digests:  # all of them: the time tells nothing
            is_known |= hmac.compare_digest(digest, digest_sent)
        if not is_known:
            raise Rejected(401, "no token that this input knows: Authorization: Bearer TOKEN")

    def _reload(self, path: Path) -> None:
        seen = self._signature(path)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._load(path)
        except BadValue as error:
            self._machinery.ledger.note_trouble(0, self._machinery.name, str(error))
            self._fault = "the tokens of this input cannot be read"  # not 401: senders drop what they have then
        else:
            self._fault = ""

    def _load(self, path: Path) -> None:
        lines = [line.strip() for line in read_secret_file(path, self._key).splitlines()]
        digests = [hashlib.sha256(line).digest() for line in lines if line and not line.startswith(b"#")]
        if not digests:
            raise BadValue(f"{self._key} = {path}: must have a token on a line")
        self._digests = digests

    @staticmethod
    def _signature(path: Path) -> tuple[int, ...]:
        try:
            status = path.stat()
        except OSError:
            return ()
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode


def _token_of(authorization: bytes) -> bytes:
    """The token of ``Bearer TOKEN``, of ``Basic`` as its password, of Elasticsearch's ``ApiKey`` as its key."""
    kind, _, value = authorization.strip().partition(b" ")
    kind, value = kind.lower(), value.strip()
    if kind in (b"basic", b"apikey"):
        try:
            return b64decode(value, validate=True).partition(b":")[2]
        except ValueError:
            return b""
    return value if kind == b"bearer" else b""
