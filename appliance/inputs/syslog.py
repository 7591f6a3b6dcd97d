"""Takes syslog in: over UDP, TCP, TLS, RELP, and Unix datagram sockets such as /dev/log.

==========  =======================  ===================================================================================
listener    answers                  when there is no room
==========  =======================  ===================================================================================
udp, unix   nothing                  nothing is read: the buffer of the kernel holds what comes.  What UDP loses there
                                     is counted by the kernel, and is a gap of the ledger; senders of Unix sockets wait
tcp, tls    nothing                  a connection is not read: TCP slows its sender down
relp        each message, flushed    likewise
==========  =======================  ===================================================================================

Each connection has up to FLOW_BYTES_MAX on their way, in order.  What a topic refuses for good is counted by reason;
what it cannot take now is sent again and again.  At an ordered end listeners take what the kernel holds for them, for
up to DRAIN_S: senders that get no answers believe it has arrived.

Bounds: ``connections_max``; READ_BYTES, what is received at a time, a message, and FLOW_BYTES_MAX a connection;
``tls.handshake_ms_max``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import ssl
import struct
from collections.abc import Iterable, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from ..addresses import MAPPED, parse_networks
from ..errors import ApplianceError, BadValue, ClientBroken, InvalidTopic, MessageTooLarge, NotPermitted, StorageFault
from ..input_settings import Address, Syslog, parse_address
from ..processes.clock import now_ms, wall_s
from ..processes.tls_files import TlsFiles
from .intake import Intake, Message
from .ledger import Ledger
from .machinery import Input, Machinery, Topics
from .positions import Source
from .relp import SERVER_CLOSE, TAKEN, Answer, RelpReader, rsp
from .relp import Syslog as RelpMessage
from .syslog_format import Frames, Framing, Parser, in_parts, with_part, without_terminator

READ_BYTES: Final = 64 * 1024
FLOW_BYTES_MAX: Final = 1 << 20
DATAGRAM_FLOW_BYTES_MAX: Final = 8 << 20
DATAGRAMS_MAX: Final = 512
"""Read before others have their turn."""
DATAGRAM_BYTES_MAX: Final = 64 * 1024
UNIX_DATAGRAM_BYTES_MAX: Final = 1 << 20
"""Above what net.core.wmem_max usually lets senders send."""
ANSWERS_MAX: Final = 16
"""Reads of a RELP connection whose messages are not answered yet."""
ADDRESSES_MAX: Final = 10_000
"""Of which it is known whether they may send."""
LOSSES_MS: Final = 60_000
MESSAGES_MAX: Final = 1_000
"""Of a connection that are objects before there is room for them; of other messages their bytes wait."""
MESSAGE_BYTES: Final = 200
"""What a message takes beside its value."""
RETRY_S: Final = 1.0
TLS_LOOK_S: Final = 10.0
DRAIN_S: Final = 2.0
LOCAL: Final = "local"
"""The source of what comes over a Unix socket."""
SO_MEMINFO: Final = 55
_MEMINFO: Final = struct.Struct("9I")
_DROPS: Final = 8  # SK_MEMINFO_DROPS


def syslog_input(settings: Syslog, machinery: Machinery) -> Input:
    return _SyslogInput(settings, machinery)


class _SyslogInput:
    """All listeners of an input."""

    def __init__(self, settings: Syslog, machinery: Machinery) -> None:
        self._settings, self._machinery, self._ledger = settings, machinery, machinery.ledger
        known = {row.name for row in machinery.store.sources()}
        machinery.store.add_sources((text, 0, 1, b"") for text in machinery.sockets if text not in known)
        self._intake = Intake(machinery)
        self._parser = Parser(Topics(settings.topic, settings.topics_max), settings.key, wall_s)
        self._allowed = _Allowed(settings.allow)
        self._delivery = _Delivery(self._intake, machinery.ledger)
        self._host_name = socket.gethostname()
        self._is_stopping = False
        self._waiting: set[asyncio.Event] = set()  # of listeners that have nothing to read
        self._connections: dict[asyncio.Task[None], _Stream] = {}
        self._listening: list[asyncio.Task[None]] = []
        self._tls = machinery.config.tls
        self._tls_files: TlsFiles | None = None
        self._watching_tls: asyncio.Task[None] | None = None

    async def run(self) -> None:
        for text, sock in self._machinery.sockets.items():
            address = parse_address(text)
            take = self._receive if address.is_datagram else self._accept
            self._listening.append(asyncio.create_task(take(text, address, sock)))
        ends = [self._delivery.broken, *self._listening]
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)  # only an error ends one
        for end in done:
            end.result()

    async def drain(self) -> None:
        self._is_stopping = True
        for ready in self._waiting:
            ready.set()
        for stream in self._connections.values():
            stream.end_reading()
        await _wait(self._listening, DRAIN_S)
        await _wait(self._connections, DRAIN_S)
        for serving, stream in self._connections.items():
            if stream.is_connected:
                stream.abort()  # its sender never pauses, or does not read answers
            else:
                serving.cancel()  # in its handshake
        await _wait([*self._listening, *self._connections], None)
        await self._delivery.drain()

    # ---- datagrams

    async def _receive(self, text: str, address: Address, sock: socket.socket) -> None:
        losses = _Losses(text, sock, self._machinery)
        flow = _Flow(self._delivery, DATAGRAM_FLOW_BYTES_MAX)
        loop = asyncio.get_running_loop()
        deadline_s = inf
        while loop.time() < deadline_s:
            by_host = self._read_local(sock) if address.path else self._read_datagrams(sock)
            wait_s = losses.look()
            for host, frames in by_host.items():
                await self._take(text, address, host, frames, flow)
            await flow.room()
            await asyncio.sleep(0)
            if self._is_stopping:
                deadline_s = min(deadline_s, loop.time() + DRAIN_S) if by_host else 0
            elif not by_host:
                await self._readable(sock, wait_s)
        losses.look(is_last=True)

    async def _take(self, text: str, address: Address, host: str, frames: list[Frames], flow: _Flow) -> None:
        """Send what one sender has sent, if it may."""
        source = host.removeprefix(MAPPED)
        if not address.path and not self._allowed.admits(source):
            self._delivery.refuse(text, source, "not in allow", sum(len(some.values) for some in frames))
            return
        messages = _Messages(self._parser, self._host_name if address.path else source)
        for some in frames:
            await flow.send(source, messages.of(some))

    async def _readable(self, sock: socket.socket, timeout_s: float | None = None) -> None:
        """Wait until there is something to read, the time is over, or the input stops."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        timer = loop.call_later(timeout_s, ready.set) if timeout_s is not None else None
        loop.add_reader(sock, ready.set)
        self._waiting.add(ready)
        try:
            await ready.wait()
        finally:
            if timer is not None:
                timer.cancel()
            self._waiting.discard(ready)
            loop.remove_reader(sock)

    def _read_datagrams(self, sock: socket.socket) -> dict[str, list[Frames]]:
        """What the kernel holds, up to DATAGRAMS_MAX, by the address of its sender."""
        found: dict[str, list[Frames]] = {}
        receive, size_max = sock.recvfrom, self._settings.message_bytes_max
        try:
            for _ in range(DATAGRAMS_MAX):
                data, address = receive(DATAGRAM_BYTES_MAX)
                frames = found.get(address[0])
                if frames is None:
                    frames = found[address[0]] = [Frames([])]
                if data[-1:] > b"\n" and len(data) <= size_max:
                    frames[-1].values.append(data)
                else:
                    _add(frames, data, size_max)
        except BlockingIOError:
            pass
        return found

    def _read_local(self, sock: socket.socket) -> dict[str, list[Frames]]:
        frames = [Frames([])]
        found: dict[str, list[Frames]] = {}
        try:
            for _ in range(DATAGRAMS_MAX):
                data = sock.recv(UNIX_DATAGRAM_BYTES_MAX)
                found[LOCAL] = frames
                _add(frames, data, self._settings.message_bytes_max)
        except BlockingIOError:
            pass
        return found

    # ---- connections

    async def _accept(self, text: str, address: Address, sock: socket.socket) -> None:
        while True:
            try:
                if address.is_secured:
                    self._load_tls()
                connection, peer = sock.accept()
            except BlockingIOError:
                if self._is_stopping:
                    return
                await self._readable(sock)
            except (OSError, ApplianceError) as error:  # no descriptor is left, or the files of [tls] cannot be used
                self._ledger.trouble(0, text, str(error))
                if self._is_stopping:
                    return
                await asyncio.sleep(RETRY_S)
            else:
                self._admit(connection, str(peer[0]).removeprefix(MAPPED), text, address)
                await asyncio.sleep(0)

    def _admit(self, connection: socket.socket, host: str, text: str, address: Address) -> None:
        if not self._allowed.admits(host):
            self._delivery.refuse(text, host, "not in allow", 1)
            connection.close()
        elif len(self._connections) >= self._settings.connections_max:
            self._delivery.refuse(text, host, "connections_max", 1)
            connection.close()
        else:
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            stream = _TlsStream() if address.is_secured else _PlainStream()
            if self._is_stopping:
                stream.end_reading()
            serving = asyncio.create_task(self._serve(stream, connection, host, text, address))
            self._connections[serving] = stream
            serving.add_done_callback(self._connections.pop)

    def _load_tls(self) -> None:
        """Raises BadValue."""
        if self._tls_files is None:
            self._tls_files = TlsFiles(self._tls)
            self._watching_tls = asyncio.create_task(self._watch_tls(self._tls_files))

    async def _watch_tls(self, files: TlsFiles) -> None:
        while True:
            await asyncio.sleep(TLS_LOOK_S)
            if files.have_changed():
                try:
                    files.load(self._tls)
                except ApplianceError as error:
                    self._ledger.trouble(0, "tls", str(error))

    async def _serve(self, stream: _Stream, connection: socket.socket, host: str, text: str, address: Address) -> None:
        tls = self._tls_files.context if address.is_secured and self._tls_files is not None else None
        timeout_s = self._tls.handshake_ms_max / 1000 if tls is not None else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: stream, connection, ssl=tls, ssl_handshake_timeout=timeout_s
            )
        except OSError as error:  # ssl.SSLError, too
            connection.close()
            self._delivery.refuse(text, host, "TLS handshake", 1, f"TLS handshake: {_why(error)}")
            return
        try:
            flow = _Flow(self._delivery, FLOW_BYTES_MAX)
            if address.scheme == "relp":
                await self._read_relp(stream, flow, host)
            else:
                await self._read_stream(stream, flow, host)
        finally:
            stream.close()

    async def _read_stream(self, stream: _Stream, flow: _Flow, host: str) -> None:
        framing = Framing(self._settings.message_bytes_max)
        messages = _Messages(self._parser, host)
        while not framing.is_broken and (data := await stream.read()):
            for values, part in framing.feed(data):
                for start in range(0, len(values), MESSAGES_MAX):
                    await flow.room()
                    await flow.send(host, messages.of(Frames(values[start : start + MESSAGES_MAX], part)))
        if framing.is_broken:
            self._ledger.trouble(0, host, "octet counting: no length where a message begins: the connection is closed")
        for frames in framing.finish():
            await flow.send(host, messages.of(frames))

    async def _read_relp(self, stream: _Stream, flow: _Flow, host: str) -> None:
        reader = RelpReader(self._settings.message_bytes_max)
        answers: asyncio.Queue[_Unanswered | None] = asyncio.Queue(ANSWERS_MAX)
        answering = asyncio.create_task(_answer(stream, answers))
        messages = _Messages(self._parser, host)
        while not reader.is_closed and reader.fault is None and (data := await stream.read()):
            await flow.room()
            await answers.put(await _send_events(reader.feed(data), flow, host, messages))
        if reader.fault is not None:
            self._delivery.refuse(host, host, "RELP", 1, str(reader.fault))
        await answers.put(None)
        await answering


async def _wait(tasks: Iterable[asyncio.Task[None]], timeout_s: float | None) -> None:
    if tasks := list(tasks):
        await asyncio.wait(tasks, timeout=timeout_s)


def _add(frames: list[Frames], data: bytes, message_bytes_max: int) -> None:
    """Add the message of a datagram; ``frames`` ends with whole ones."""
    value = without_terminator(data)
    if len(value) > message_bytes_max:
        frames += [*in_parts(value, message_bytes_max), Frames([])]
    elif value:
        frames[-1].values.append(value)


class _Allowed:
    """Which addresses may send."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks = parse_networks(",".join(networks))
        self._known: dict[str, bool] = {}

    def admits(self, host: str) -> bool:
        if not self._networks:
            return True
        if (known := self._known.get(host)) is None:
            if len(self._known) >= ADDRESSES_MAX:
                self._known.clear()
            address = ipaddress.ip_address(host.partition("%")[0])
            known = self._known[host] = any(address in network for network in self._networks)
        return known


class _Losses:
    """What the kernel drops of a socket, since it was bound: datagrams for which its buffer had no room.

    SO_MEMINFO has the counter that SO_RXQ_OVFL puts beside datagrams; it also tells of a loss that no datagram follows.
    How many were told is a position of the store, so neither a restart of this process forgets any, nor tells twice.
    """

    def __init__(self, text: str, sock: socket.socket, machinery: Machinery) -> None:
        self._text, self._sock, self._store, self._ledger = text, sock, machinery.store, machinery.ledger
        row = next(row for row in self._store.sources() if row.name == text)
        self._number = row.number
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._identity = f"{boot} {os.fstat(sock.fileno()).st_ino}".encode()
        self._told = row.position if row.identity == self._identity else 0
        self._told_ms = now_ms() - LOSSES_MS

    def look(self, *, is_last: bool = False) -> float | None:
        """Tell what was dropped, at most every LOSSES_MS; return in how many seconds there is something to tell."""
        counters = self._sock.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, _MEMINFO.size)
        count = (_MEMINFO.unpack(counters)[_DROPS] - self._told) & 0xFFFFFFFF  # the kernel counts in 32 bits
        if not count:
            return None
        left_ms = self._told_ms + LOSSES_MS - now_ms()
        if left_ms > 0 and not is_last:
            return left_ms / 1000
        start, self._told, self._told_ms = self._told, self._told + count, now_ms()
        reason = "the receive buffer of the socket was full"
        self._ledger.gap(self._number, self._text, start, self._told, "messages", reason)
        self._store.note(Source(self._number, self._text, self._told, 1, self._identity, False))
        return None


class _Messages:
    """The messages of one connection; the parts of a long one have the headers of its first part."""

    def __init__(self, parser: Parser, host: str) -> None:
        self._parser, self._host = parser, host
        self._first: tuple[str, Message] | None = None

    def of(self, frames: Frames) -> dict[str, list[Message]]:
        """By topic; those under "" belong to one topic too many."""
        if not frames.part:
            return self._parser.parse(frames.values, self._host)
        (value,) = frames.values
        if frames.part == 1 or self._first is None:
            ((topic, (message,)),) = self._parser.parse([value], self._host).items()
            self._first = topic, message
        topic, message = self._first
        return {topic: [with_part(message._replace(value=value), frames.part)]}


Refusals = dict[int, str]
"""Why messages were refused, by their index."""


class _Delivery:
    """Sends messages until they are flushed, or refused for good."""

    def __init__(self, intake: Intake, ledger: Ledger) -> None:
        self._intake, self._ledger = intake, ledger
        self._tasks: set[asyncio.Task[Refusals]] = set()
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Has the error after which nothing can be sent by this process."""

    async def begin(self, source: str, topic: str, messages: list[Message]) -> asyncio.Task[Refusals]:
        """Send messages; return when they have their place in the order.  The result comes when they are flushed."""
        begun = await self._begin(source, topic, messages)
        task = asyncio.create_task(self._see_through(source, topic, messages, begun))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def room(self) -> None:
        await self._intake.room()

    async def drain(self) -> None:
        """Wait until everything that was begun is flushed or refused."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def _begin(self, source: str, topic: str, messages: list[Message]) -> asyncio.Future[None] | ApplianceError:
        if not topic:
            return BadValue("one more topic than topics_max")
        try:
            return await self._intake.begin(source, topic, messages)
        except ApplianceError as error:
            return error

    async def _see_through(
        self, source: str, topic: str, messages: list[Message], begun: asyncio.Future[None] | ApplianceError
    ) -> Refusals:
        while True:
            try:
                if isinstance(begun, ApplianceError):
                    raise begun
                await begun
                return {}
            except MessageTooLarge as error:
                if len(messages) > 1:
                    return await self._one_by_one(source, topic, messages)
                return self._refuse(source, messages, "larger than the topic takes", error)
            except (BadValue, InvalidTopic, NotPermitted) as error:
                return self._refuse(source, messages, "the topic is refused", error)
            except ClientBroken as error:
                if not self.broken.done():
                    self.broken.set_exception(error)
                raise
            except ApplianceError as error:
                self._ledger.trouble(self._number_of(source), source, str(error))
            await asyncio.sleep(RETRY_S)
            begun = await self._begin(source, topic, messages)

    async def _one_by_one(self, source: str, topic: str, messages: list[Message]) -> Refusals:
        refusals: Refusals = {}
        for index, message in enumerate(messages):
            begun = await self._begin(source, topic, [message])
            for reason in (await self._see_through(source, topic, [message], begun)).values():
                refusals[index] = reason
        return refusals

    def refuse(self, name: str, host: str, reason: str, count: int, told: str = "") -> None:
        """Count what is refused under ``name``: a listener, of which there are few, or a source."""
        self._ledger.refused(self._number_of(name), name, reason, count)
        self._ledger.trouble(self._number_of(name), host, told or reason)

    def _number_of(self, source: str) -> int:
        try:
            return self._intake.number_of(source)
        except StorageFault:  # it is new, and cannot be stored: whatever it sends waits
            return 0

    def _refuse(self, source: str, messages: list[Message], reason: str, error: ApplianceError) -> Refusals:
        self.refuse(source, source, reason, len(messages), str(error))
        return dict.fromkeys(range(len(messages)), reason)


class _Flow:
    """What one connection has on its way: up to ``bytes_max`` and what was read at a time."""

    def __init__(self, delivery: _Delivery, bytes_max: int) -> None:
        self._delivery, self._bytes_max = delivery, bytes_max
        self._bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()

    async def room(self) -> None:
        """Wait until something may be sent.  Then make messages of what was read, and send them."""
        await self._has_room.wait()
        await self._delivery.room()

    async def send(self, source: str, messages: dict[str, list[Message]]) -> None:
        for topic, some in messages.items():
            await self.send_topic(source, topic, some)

    async def send_topic(self, source: str, topic: str, messages: list[Message]) -> asyncio.Task[Refusals]:
        size = sum([len(message.value) for message in messages]) + MESSAGE_BYTES * len(messages)
        self._bytes += size
        if self._bytes >= self._bytes_max:
            self._has_room.clear()
        task = await self._delivery.begin(source, topic, messages)
        task.add_done_callback(partial(self._give_back, size))
        return task

    def _give_back(self, size: int, _: asyncio.Task[Refusals]) -> None:
        self._bytes -= size
        if self._bytes < self._bytes_max:
            self._has_room.set()


# ---- RELP


class _Sent(NamedTuple):
    """Messages of one topic on their way; ``numbers``: their transactions."""

    refusals: asyncio.Task[Refusals]
    numbers: list[bytes]


class _Unanswered(NamedTuple):
    """What one read brought: messages on their way, and the answers to be sent once all are flushed.

    ``answers``: frames for other commands, and the numbers of transactions, in their order.
    """

    sent: list[_Sent]
    answers: list[Answer | bytes]


async def _send_events(
    events: Sequence[RelpMessage | Answer], flow: _Flow, host: str, messages: _Messages
) -> _Unanswered:
    unanswered = _Unanswered([], [])
    for event in events:
        if isinstance(event, Answer):
            unanswered.answers.append(event)
        elif event.is_last:
            unanswered.answers.append(event.number)
    by_topic: dict[str, tuple[list[Message], list[bytes]]] = {}
    whole = [event for event in events if not isinstance(event, Answer) and event.value and not event.part]
    if len(whole) == len(events):  # nearly always
        parsed = messages.of(Frames([event.value for event in whole]))
        if len(parsed) == 1:
            ((topic, rows),) = parsed.items()
            by_topic[topic] = rows, [event.number for event in whole]
    if not by_topic:
        _add_one_by_one(events, messages, by_topic)
    for topic, (rows, numbers) in by_topic.items():
        unanswered.sent.append(_Sent(await flow.send_topic(host, topic, rows), numbers))
    return unanswered


def _add_one_by_one(
    events: Sequence[RelpMessage | Answer], messages: _Messages, by_topic: dict[str, tuple[list[Message], list[bytes]]]
) -> None:
    for event in events:
        if not isinstance(event, Answer) and event.value:
            ((topic, (message,)),) = messages.of(Frames([event.value], event.part)).items()
            rows, numbers = by_topic.setdefault(topic, ([], []))
            rows.append(message)
            numbers.append(event.number)


async def _answer(stream: _Stream, queue: asyncio.Queue[_Unanswered | None]) -> None:
    """Answer transactions in their order, each when it is flushed."""
    refused: dict[bytes, str] = {}
    while (unanswered := await queue.get()) is not None:
        for sent in unanswered.sent:
            refused |= {sent.numbers[index]: reason for index, reason in (await sent.refusals).items()}
        frames: list[bytes] = []
        for one in unanswered.answers:
            if isinstance(one, Answer):
                frames.append(one.frame)
            elif refused and one in refused:
                frames.append(rsp(one, f"500 {refused.pop(one)}".encode()))
            else:
                frames.append(one + TAKEN)
        await stream.write(b"".join(frames))
    await stream.write(SERVER_CLOSE)


# ---- streams


class _Stream(asyncio.BaseProtocol):
    """A connection that is read as fast as its reader takes: READ_BYTES wait, and what is received at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._is_paused = False
        self._is_ended = False
        self._is_lost = False
        self._wake = asyncio.Event()
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._is_ending = False

    @property
    def is_connected(self) -> bool:
        return self._transport is not None

    async def read(self) -> bytes:
        """What was received since the last read, as soon as there is something; empty at the end."""
        while not self._pieces and not self._is_ended:
            self._wake.clear()
            await self._wake.wait()
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._bytes = 0
        if self._is_paused and not self._is_ended and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        """Write; return when the peer reads.  Nothing is written after the end of the connection."""
        if self._transport is not None and not self._is_lost:
            self._transport.write(data)
            await self._may_write.wait()

    def end_reading(self) -> None:
        """Read what the kernel has received already, then see the end."""
        self._is_ending = True
        if self._transport is None:
            return  # connection_made does it
        with contextlib.suppress(OSError):  # the peer has closed it
            self._transport.get_extra_info("socket").shutdown(socket.SHUT_RD)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # ---- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._is_ending:
            self.end_reading()

    def _receive(self, data: bytes) -> None:
        self._pieces.append(data)
        self._bytes += len(data)
        if self._bytes >= READ_BYTES and self._transport is not None and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake.set()

    def eof_received(self) -> bool:
        self._end()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._end()
        self._may_write.set()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def _end(self) -> None:
        self._is_ended = True
        self._wake.set()


class _PlainStream(_Stream, asyncio.BufferedProtocol):
    """One without TLS."""

    _received: ClassVar = memoryview(bytearray(READ_BYTES))
    """Of all connections: what one has received is copied before another one receives."""

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        self._receive(bytes(self._received[:nbytes]))

    def eof_received(self) -> bool:
        super().eof_received()
        return True  # answers may follow; with TLS there is no half of a connection


class _TlsStream(_Stream, asyncio.Protocol):
    """One with TLS.  No BufferedProtocol: at the end of a connection asyncio fills its buffer once, and that is all."""

    def data_received(self, data: bytes) -> None:
        self._receive(data)


def _why(error: OSError) -> str:
    reason = getattr(error, "reason", None) if isinstance(error, ssl.SSLError) else None
    return str(reason).lower().replace("_", " ") if reason else str(error.strerror or error)
