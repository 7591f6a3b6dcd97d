"""The HTTP API of the page.  JSON in and out; an error is ``{"error": text}``::

    GET   /                         the page, and its files
    GET   /api/session              who is logged in
    POST  /api/login                {user, password}: begins a session
    POST  /api/logout               {}
    GET   /api/events?topic&group   server-sent events: see live_events
    GET   /api/messages?...         one step of a search: see message_search.Query
    GET   /api/download?...         a file of what a search finds: see download.Download; X-Messages says how many there
                                    are, X-Cursor where the search goes on, if that is not all
    GET   /api/message?topic&partition&offset       one message, up to MESSAGE_BYTES_MAX of its value
    GET   /api/history?topic or group               points of the last hours: see history
    POST  /api/produce              see changes.NewMessage
    POST  /api/offsets              see changes.NewOffsets
    POST  /api/act                  {verb, arguments, confirm}: see administration
    GET   /api/list?what&text&page  a page of a list: see administration.ListQuery
    GET   /api/settings?topic       the settings that hold for a topic, and where each comes from
    POST  /api/sql                  {query}: columns and rows, see sql_queries
    GET   /api/inputs               the inputs and their states: see input_ledgers
    GET   /api/ledger?input&hours   what the sources of an input gave, by the ledger: likewise

What a visitor may not see is 403, or 401 where a login is needed first; what does not exist 404; a request or a message
that is too large 413; what exists already 409; another wrong request 400; too many requests, or an appliance that is
away, 503 with Retry-After; any other error 500.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ..addresses import address_text
from ..config import Config
from ..errors import (
    ApplianceError,
    BadCredentials,
    BufferFull,
    ClientFault,
    InvalidRequest,
    LoginOutOfOrder,
    MessageTooLarge,
    NotPermitted,
    TopicExists,
    Unavailable,
    UnknownGroup,
    UnknownPartition,
    UnknownUser,
    UserExists,
)
from ..names import TOPIC_PATTERN
from ..security.acls import Operation, ResourceType
from ..security.audit_log import Audit
from ..security.field_masks import FieldMasks
from ..value_faults import in_words
from . import administration, input_ledgers
from .changes import NewMessage, NewOffsets, move_offsets, produce
from .download import MEDIA_TYPES, Download, DownloadFile, make_file
from .history import PointsQuery, Recorder
from .live_events import LiveEvents, StreamPlaces
from .message_search import (
    ConsumedLog,
    CursorOffset,
    PartitionNumber,
    Query,
    Search,
    SearchedLog,
    StepResult,
    chosen_topics,
    shown,
)
from .observer import Observer, own_address
from .page_files import PageFiles
from .sql_queries import SqlQueries, SqlQuery
from .value_decoding import MessageViews
from .visitors import Visitor, Visitors

BODY_BYTES_MAX: Final = 2 * 1024 * 1024
LOGIN_BYTES_MAX: Final = 8 * 1024
"""Bytes of the body of a login: whoever sends one has not logged in yet."""
BODY_S_MAX: Final = 10.0
SEARCHES_MAX: Final = 2
SEARCHES_WAITING_MAX: Final = 16
DOWNLOADS_MAX: Final = 4
"""Files that are asked for and not yet made: one is made at a time."""
ASKING_MAX: Final = 4
"""Changes and lists that are asked for at a time, each with a connection."""
ASKING_WAITING_MAX: Final = 32
SEARCHES_WAITING_RESERVED: Final = 8
"""Of them for visitors who are logged in."""
PREVIEW_BYTES_MAX: Final = 2 * 1024
MESSAGE_BYTES_MAX: Final = 1024 * 1024
ERROR_CHARACTERS_MAX: Final = 2_000
FAILED_LOGIN_S: Final = 0.1
NO_STORE: Final = {"cache-control": "no-store"}
STATUSES: Final[tuple[tuple[type[ApplianceError], int], ...]] = (
    (BadCredentials, 401),
    (LoginOutOfOrder, 401),
    (NotPermitted, 403),
    (UnknownPartition, 404),
    (UnknownGroup, 404),
    (UnknownUser, 404),
    (MessageTooLarge, 413),
    (BufferFull, 503),
    (Unavailable, 503),
    (TopicExists, 409),
    (UserExists, 409),
    (ClientFault, 400),
)

T = TypeVar("T", bound=msgspec.Struct)


class LoginForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    user: str
    password: str

    def __repr__(self) -> str:
        return f"<Login of {self.user!r}>"


class MessagePlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: Annotated[str, msgspec.Meta(pattern=TOPIC_PATTERN)]
    partition: PartitionNumber
    offset: CursorOffset


def reply(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    body = msgspec.json.encode(value)
    return Response(body, status, {**NO_STORE, **(headers or {})}, media_type="application/json")


def fault_reply(error: ApplianceError) -> Response:
    """The answer to a request that failed."""
    status = next((status for kind, status in STATUSES if isinstance(error, kind)), 500)
    return reply({"error": _showable(str(error))}, status, {"retry-after": "5"} if status == 503 else None)


def _showable(text: str) -> str:
    """A text for people; what a request has brought into it may be long, or turn or hide what stands behind it."""
    shown = "".join(one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in text)
    if len(shown) > ERROR_CHARACTERS_MAX:
        shown = f"{shown[: ERROR_CHARACTERS_MAX - 1]}\N{HORIZONTAL ELLIPSIS}"
    return shown


class ConsoleHandlers:
    """The handlers.

    ``cookie``: the name of the session's cookie; ``ledger_topic``: where inputs publish; ``views``: how messages
    are shown; ``recorder``: has the points of the charts.
    """

    def __init__(
        self,
        data_dir: Path,
        observer: Observer,
        visitors: Visitors,
        clock: Callable[[], float],
        cookie: str,
        ledger_topic: str,
        views: MessageViews,
        recorder: Recorder,
    ) -> None:
        self._recorder = recorder
        self.stopping = asyncio.Event()
        self._views = views
        self._download = asyncio.Lock()
        self._downloads = 0
        self._data_dir, self._observer, self._visitors = data_dir, observer, visitors
        self._clock, self._cookie, self._ledger_topic = clock, cookie, ledger_topic
        self._streams = StreamPlaces()
        self._queries = SqlQueries(views)
        self._searches = asyncio.Semaphore(SEARCHES_MAX)
        self._waiting = 0
        self._asking = asyncio.Semaphore(ASKING_MAX)
        self._asking_waiting = 0

    def reload(self, config: Config, *, login_first: bool) -> None:
        """Take from a new configuration what a reload changes for the page."""
        self._views.change(config.console.decode, FieldMasks(config.console.masks))
        self._visitors.admit(login_first=login_first, anonymous=config.console.anonymous)

    def application(self) -> Starlette:
        """Raises OSError: the files of the page cannot be read."""
        files = PageFiles()
        routes = [Route(path, files.answer) for path in files.paths]
        for method, path, handler in (
            ("GET", "/api/session", self._session),
            ("POST", "/api/login", self._log_in),
            ("POST", "/api/logout", self._log_out),
            ("GET", "/api/messages", self._messages),
            ("GET", "/api/message", self._message),
            ("GET", "/api/history", self._history),
            ("GET", "/api/download", self._file),
            ("POST", "/api/produce", self._produce),
            ("POST", "/api/offsets", self._offsets),
            ("POST", "/api/act", self._act),
            ("GET", "/api/list", self._list),
            ("GET", "/api/settings", self._settings),
            ("POST", "/api/sql", self._sql),
            ("GET", "/api/inputs", self._inputs),
            ("GET", "/api/ledger", self._ledger),
        ):
            routes.append(Route(path, self._answering(handler), methods=[method]))
        routes.append(Route("/api/events", self._events, methods=["GET"]))
        return Starlette(routes=routes, lifespan=self._lifespan, exception_handlers={404: _not_found, 405: _not_found})

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        observing = asyncio.create_task(self._observer.run())
        try:
            yield
        finally:
            observing.cancel()

    # ---- shared by the handlers

    def _answering(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except ApplianceError as error:
                return fault_reply(error)

        return answer

    def _token(self, request: Request) -> str:
        return request.cookies.get(self._cookie, "")[:200]

    def _visitor(self, request: Request) -> Visitor:
        """Raises LoginOutOfOrder: nothing may be seen before a login."""
        visitor = self._visitors.find(self._token(request), _peer(request))
        if visitor is None:
            raise LoginOutOfOrder("log in first")
        if visitor.session is not None and (connection := getattr(request.state, "connection", None)) is not None:
            connection.logged_in = True
        return visitor

    def _changing(self, request: Request) -> Visitor:
        """The visitor of a request that changes something.  Raises LoginOutOfOrder."""
        visitor = self._visitor(request)
        visitor.check_logged_in(request.headers.get("x-csrf-token", ""))
        return visitor

    # ---- logins

    async def _session(self, request: Request) -> Response:
        visitor = self._visitors.find(self._token(request), _peer(request))
        session = visitor.session if visitor else None
        return reply(
            {
                "user": session.user if session else None,
                "csrf": session.csrf if session else None,
                "login_first": visitor is None,
                "has_users": self._visitors.has_users,
            }
        )

    async def _log_in(self, request: Request) -> Response:
        login = await _body(request, LoginForm, LOGIN_BYTES_MAX)
        try:
            token = await self._visitors.log_in(login.user, login.password, _peer(request))
        except BadCredentials:
            await asyncio.sleep(FAILED_LOGIN_S)
            raise
        self._visitors.log_out(self._token(request))
        answer = reply({})
        # The guard has compared the page's Origin. It says whether TLS is in use, also where the proxy does not.
        secure = request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")
        answer.set_cookie(self._cookie, token, httponly=True, samesite="strict", secure=secure, path="/")
        return answer

    async def _log_out(self, request: Request) -> Response:
        self._changing(request)
        self._visitors.log_out(self._token(request))
        answer = reply({})
        answer.delete_cookie(self._cookie, httponly=True, samesite="strict", path="/")
        return answer

    # ---- what a visitor sees

    async def _events(self, request: Request) -> Any:
        try:
            place = self._streams.take(self._visitor(request))
        except ApplianceError as error:
            return fault_reply(error)
        topic, group = (request.query_params.get(name, "")[:1_000] for name in ("topic", "group"))
        token, peer = self._token(request), _peer(request)
        return LiveEvents(
            self._observer, lambda: self._visitors.find(token, peer), topic, group, self._clock, self.stopping, place
        )

    async def _messages(self, request: Request) -> Response:
        query, visitor = _query(request, Query), self._visitor(request)
        page = await self._search(query, visitor)
        return reply(
            {
                **page._asdict(),
                "messages": [shown(message, PREVIEW_BYTES_MAX) for message in page.messages],
                "unreadable": {f"{topic}-{number}": why for (topic, number), why in page.unreadable.items()},
            }
        )

    async def _message(self, request: Request) -> Response:
        place, visitor = _query(request, MessagePlace), self._visitor(request)
        query = Query(topics=place.topic, partition=place.partition, offset=place.offset, order="oldest", limit=1)
        page = await self._search(query, visitor)
        if not page.messages or page.messages[0].offset != place.offset:
            raise UnknownPartition("there is no message at this offset any more")
        return reply(shown(page.messages[0], MESSAGE_BYTES_MAX))

    async def _history(self, request: Request) -> Response:
        query, visitor = _query(request, PointsQuery), self._visitor(request)
        resource, name = query.resource
        if resource == ResourceType.TOPIC or not visitor.access.may(Operation.DESCRIBE, ResourceType.CLUSTER):
            visitor.check_right(Operation.DESCRIBE, resource, name, audit=self._visitors.audit, what="history")
        return reply(self._recorder.points_of(resource, name))

    async def _file(self, request: Request) -> Response:
        """Raises BufferFull: too many are made already."""
        download, visitor = _query(request, Download), self._visitor(request)
        self._check_names(download, visitor)
        if self._downloads >= DOWNLOADS_MAX:
            raise BufferFull("too many files are made: try again")
        self._downloads += 1
        try:
            async with self._download:
                made = await asyncio.to_thread(self._make_file, download, visitor)
        finally:
            self._downloads -= 1
        name = "messages" if "," in download.topics or "*" in download.topics else download.topics
        headers = {
            "content-disposition": f'attachment; filename="{name}.{download.format}"',
            **{"x-messages": str(made.messages), "x-cursor": made.cursor},
        }
        return Response(made.content, headers=NO_STORE | headers, media_type=MEDIA_TYPES[download.format])

    def _make_file(self, download: Download, visitor: Visitor) -> DownloadFile:
        with ConsumedLog(own_address(self._data_dir), self._clock) as log:
            topics = self._readable_topics(download, log, visitor, download=download.format)
            return make_file(download, topics, log, self._clock, self._views.view_of_topic)

    def _check_names(self, query: Query, visitor: Visitor) -> None:
        """Check that a visitor may read the topics that a query names.

        Raises:
            NotPermitted: the audit log has it.
        """
        for name in query.names:
            if "*" not in name:
                self._check_reading(name, visitor)

    def _check_reading(self, topic: str, visitor: Visitor) -> None:
        visitor.check_right(Operation.READ, ResourceType.TOPIC, topic, audit=self._visitors.audit, what="read")

    def _readable_topics(self, query: Query, log: SearchedLog, visitor: Visitor, **details: object) -> list[str]:
        """The topics that a query searches; the audit log has each reading, and what was masked, or the refusal.

        Raises:
            NotPermitted: one of them, in the query or the cursor, may not be read.
            InvalidRequest: see :func:`.message_search.chosen_topics`.
        """
        access, audit = visitor.access, self._visitors.audit
        topics = chosen_topics(query, log, lambda topic: access.describable[topic] and access.readable[topic])
        for topic in topics:
            self._check_reading(topic, visitor)
        for topic in topics:
            mask = self._views.view_of_topic(topic).mask
            masked = {"masked": ",".join(mask.names)} if mask is not None else {}
            audit.read(access.principal, visitor.peer, "console", topic=topic, **details, **masked)
        return topics

    async def _search(self, query: Query, visitor: Visitor) -> StepResult:
        """One step of a search, in a thread.

        Raises:
            BufferFull: too many searches wait already.
            NotPermitted: the visitor may not read.
        """
        self._check_names(query, visitor)
        if self._waiting >= SEARCHES_WAITING_MAX - (0 if visitor.session else SEARCHES_WAITING_RESERVED):
            raise BufferFull("too many searches: try again")
        self._waiting += 1
        try:
            async with self._searches:
                return await asyncio.to_thread(self._step, query, visitor)
        finally:
            self._waiting -= 1

    def _step(self, query: Query, visitor: Visitor) -> StepResult:
        with ConsumedLog(own_address(self._data_dir), self._clock) as log:
            topics = self._readable_topics(query, log, visitor)
            return Search(query, topics, log, self._clock, self._views.view_of_topic).step()

    # ---- what a visitor changes

    async def _produce(self, request: Request) -> Response:
        visitor, new_message = self._changing(request), await _body(request, NewMessage)
        return reply(await self._ask(produce, new_message, visitor))

    async def _offsets(self, request: Request) -> Response:
        visitor, new_offsets = self._changing(request), await _body(request, NewOffsets)
        return reply(await self._ask(move_offsets, new_offsets, visitor))

    async def _act(self, request: Request) -> Response:
        visitor, act = self._changing(request), await _body(request, administration.Act)
        return reply({"result": await self._ask(administration.carry_out, act, visitor)})

    async def _list(self, request: Request) -> Response:
        query, visitor = _query(request, administration.ListQuery), self._visitor(request)
        return reply(await self._ask(administration.listed, query, visitor))

    async def _settings(self, request: Request) -> Response:
        query, visitor = _query(request, administration.TopicQuery), self._visitor(request)
        return reply({"settings": await self._ask(administration.settings_of, query, visitor)})

    async def _sql(self, request: Request) -> Response:
        """A page that is closed ends its query."""
        visitor, query = self._visitor(request), await _body(request, SqlQuery)
        address, audit = own_address(self._data_dir), self._visitors.audit
        tasks = [
            asyncio.ensure_future(task)
            for task in (self._queries.run(query, address, visitor, audit), _gone(request), self.stopping.wait())
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not tasks[0].done():
                raise Unavailable("the page has gone, or the console ends")
            return reply(tasks[0].result())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _inputs(self, request: Request) -> Response:
        visitor = self._visitor(request)
        return reply(
            {"inputs": await asyncio.to_thread(input_ledgers.states, self._data_dir, visitor, self._visitors.audit)}
        )

    async def _ledger(self, request: Request) -> Response:
        query, visitor = _query(request, input_ledgers.LedgerQuery), self._visitor(request)
        return reply(await self._ask(partial(input_ledgers.account, self._ledger_topic), query, visitor))

    async def _ask(self, ask: Callable[[T, str, Visitor, Audit], Any], body: T, visitor: Visitor) -> Any:
        """Ask the appliance in a thread.

        Raises:
            BufferFull: too many wait already.
        """
        if self._asking_waiting >= ASKING_WAITING_MAX:
            raise BufferFull("too much is asked for at once: try again")
        address, audit = own_address(self._data_dir), self._visitors.audit
        self._asking_waiting += 1
        try:
            async with self._asking:
                return await asyncio.to_thread(ask, body, address, visitor, audit)
        finally:
            self._asking_waiting -= 1


async def _not_found(request: Request, _: Exception) -> Response:
    return reply({"error": "there is nothing at this address"}, 404)


async def _gone(request: Request) -> None:
    """Waits until the client has closed the connection; the body was read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _peer(request: Request) -> str:
    return address_text(request.client) if request.client else "unknown:0"


def _query(request: Request, kind: type[T]) -> T:
    """The query of an address.  Raises InvalidRequest."""
    parameters = {name: value for name, value in request.query_params.items() if value}
    try:
        return msgspec.convert(parameters, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(in_words(error)) from None


async def _body(request: Request, kind: type[T], bytes_max: int = BODY_BYTES_MAX) -> T:
    """The body of a request, bounded in size and time.

    Raises:
        InvalidRequest, MessageTooLarge: see the message.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S_MAX):
            async for piece in request.stream():
                body += piece
                if len(body) > bytes_max:
                    raise MessageTooLarge(f"this request has at most {bytes_max} bytes")
        return msgspec.json.decode(body, type=kind)
    except TimeoutError:
        raise InvalidRequest(f"the request was not complete after {BODY_S_MAX:g} s") from None
    except ClientDisconnect:
        raise InvalidRequest("the page has gone") from None
    except RecursionError:
        raise InvalidRequest("the request is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRequest(in_words(error)) from None
