"""Takes syslog in: over UDP, TCP, TLS, RELP also with TLS, and Unix datagram sockets such as /dev/log.

==========  =======================  ===================================================================================
listener    answers                  when there is no room
==========  =======================  ===================================================================================
udp, unix   nothing                  nothing is read: the buffer of the kernel holds what comes.  What UDP loses there
                                     is counted by the kernel, and is a gap of the ledger; senders of Unix sockets wait
tcp, tls    nothing                  a connection is not read: TCP slows its sender down
relp,       each message, flushed    likewise
relps
==========  =======================  ===================================================================================

Each connection has up to FLOW_BYTES_MAX on their way, in order.  What a topic refuses for good is counted by reason;
what it cannot take now is sent again and again.  At an ordered end listeners take what the kernel holds for them, for
up to DRAIN_S: senders that get no answers believe it has arrived.  What others have sent is answered, however long the
flush takes.

Bounds: ``connections_max``; READ_BYTES, what is received at a time, a message, and FLOW_BYTES_MAX a connection;
``tls.handshake_ms_max``.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Iterable, Sequence
from math import inf
from typing import Final

from ..addresses import MAPPED, parse_networks
from ..clock import wall_s
from ..errors import ApplianceError
from ..input_settings import InputAddress, Syslog, parse_address
from ..processes.supervisor.inputs import text_of
from ..processes.tls_files import TlsFiles
from .intake import Intake
from .machinery import Input, InputTopics, Machinery
from .relp import RelpReader
from .relp_answers import ANSWERS_MAX, Unanswered, answer, send_events
from .sender_streams import PlainStream, SenderStream, TlsStream
from .syslog_datagrams import Losses, read_datagrams, read_local
from .syslog_delivery import RETRY_S, Flow, SyslogDelivery, SyslogMessages
from .syslog_format import Frames, Framing, SyslogParser

FLOW_BYTES_MAX: Final = 1 << 20
DATAGRAM_FLOW_BYTES_MAX: Final = 8 << 20
ADDRESSES_MAX: Final = 10_000
"""Addresses for which it is remembered whether they may send."""
MESSAGES_MAX: Final = 1_000
"""Messages of a connection that are objects before there is room for them; the others wait as bytes."""
TLS_LOOK_S: Final = 10.0
DRAIN_S: Final = 2.0


def syslog_input(settings: Syslog, machinery: Machinery) -> Input:
    return _SyslogInput(settings, machinery)


class _SyslogInput:
    """Reads all listeners of an input, and sends what comes."""

    def __init__(self, settings: Syslog, machinery: Machinery) -> None:
        self._settings, self._machinery, self._ledger = settings, machinery, machinery.ledger
        names = {row.name for row in machinery.store.sources()}
        machinery.store.add_sources((text, 0, 1, b"") for text in machinery.sockets if text not in names)
        self._intake = Intake(machinery)
        self._parser = SyslogParser(InputTopics(settings.topic, settings.topics_max), settings.key, wall_s)
        self._allowed = _Allowed(settings.allow)
        self._delivery = SyslogDelivery(self._intake, machinery.ledger)
        self._host_name = socket.gethostname()
        self._is_stopping = False
        self._waiting: set[asyncio.Event] = set()  # of listeners that have nothing to read
        self._connections: dict[asyncio.Task[None], SenderStream] = {}
        self._listening: list[asyncio.Task[None]] = []
        self._tls = machinery.config.tls
        self._tls_files: TlsFiles | None = None
        self._watching_tls: asyncio.Task[None] | None = None

    async def run(self) -> None:
        for text, sock in self._machinery.sockets.items():
            address = parse_address(text_of(text))
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
            if not stream.is_connected:
                serving.cancel()  # in its handshake
            elif not stream.is_answered:
                stream.abort()  # its sender never pauses
        while self._delivery.is_waiting:  # for a slow disk, say: what is not answered would be sent again
            await self._delivery.drain()
            await _wait(self._connections, DRAIN_S)
        for stream in self._connections.values():
            stream.abort()  # its sender does not read answers
        await _wait([*self._listening, *self._connections], None)
        await self._delivery.drain()

    # ---- datagrams

    async def _receive(self, text: str, address: InputAddress, sock: socket.socket) -> None:
        losses = Losses(text, sock, self._machinery)
        flow = Flow(self._delivery, DATAGRAM_FLOW_BYTES_MAX)
        loop = asyncio.get_running_loop()
        read = read_local if address.path else read_datagrams
        deadline_s = inf
        while loop.time() < deadline_s:
            by_host = read(sock, self._settings.message_bytes_max)
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

    async def _take(self, text: str, address: InputAddress, host: str, frames: list[Frames], flow: Flow) -> None:
        """Send what one sender has sent, if it may."""
        source = host.removeprefix(MAPPED)
        if not address.path and not self._allowed.admits(source):
            self._delivery.refuse(text, source, "not in allow", sum(len(some.values) for some in frames))
            return
        messages = SyslogMessages(self._parser, self._host_name if address.path else source)
        for some in frames:
            await flow.send(source, messages.split_by_topic(some))

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

    # ---- connections

    async def _accept(self, text: str, address: InputAddress, sock: socket.socket) -> None:
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
                self._ledger.note_trouble(0, text, str(error))
                if self._is_stopping:
                    return
                await asyncio.sleep(RETRY_S)
            else:
                self._admit(connection, str(peer[0]).removeprefix(MAPPED), text, address)
                await asyncio.sleep(0)

    def _admit(self, connection: socket.socket, host: str, text: str, address: InputAddress) -> None:
        if not self._allowed.admits(host):
            self._delivery.refuse(text, host, "not in allow", 1)
            connection.close()
        elif len(self._connections) >= self._settings.connections_max:
            self._delivery.refuse(text, host, "connections_max", 1)
            connection.close()
        else:
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            stream = (TlsStream if address.is_secured else PlainStream)(is_answered=address.is_relp)
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
                    self._ledger.note_trouble(0, "tls", str(error))

    async def _serve(
        self, stream: SenderStream, connection: socket.socket, host: str, text: str, address: InputAddress
    ) -> None:
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
            flow = Flow(self._delivery, FLOW_BYTES_MAX)
            if address.is_relp:
                await self._read_relp(stream, flow, host)
            else:
                await self._read_stream(stream, flow, host)
        finally:
            stream.close()

    async def _read_stream(self, stream: SenderStream, flow: Flow, host: str) -> None:
        framing = Framing(self._settings.message_bytes_max)
        messages = SyslogMessages(self._parser, host)
        while not framing.is_broken and (data := await stream.read()):
            for values, part in framing.feed(data):
                for start in range(0, len(values), MESSAGES_MAX):
                    await flow.room()
                    await flow.send(host, messages.split_by_topic(Frames(values[start : start + MESSAGES_MAX], part)))
        if framing.is_broken:
            self._ledger.note_turned_away(
                host, "octet counting: no length where a message begins: the connection is closed"
            )
        for frames in framing.finish():
            await flow.send(host, messages.split_by_topic(frames))

    async def _read_relp(self, stream: SenderStream, flow: Flow, host: str) -> None:
        reader = RelpReader(self._settings.message_bytes_max)
        answers: asyncio.Queue[Unanswered | None] = asyncio.Queue(ANSWERS_MAX)
        answering = asyncio.create_task(answer(stream, answers))
        messages = SyslogMessages(self._parser, host)
        while not reader.is_closed and reader.fault is None and (data := await stream.read()):
            await flow.room()
            await answers.put(await send_events(reader.feed(data), flow, host, messages))
        if reader.fault is not None:
            self._delivery.refuse(host, host, "RELP", 1, str(reader.fault))
        await answers.put(None)
        await answering


async def _wait(tasks: Iterable[asyncio.Task[None]], timeout_s: float | None) -> None:
    if tasks := list(tasks):
        await asyncio.wait(tasks, timeout=timeout_s)


class _Allowed:
    """Which addresses may send."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks = parse_networks(",".join(networks))
        self._known: dict[str, bool] = {}

    def admits(self, host: str) -> bool:
        if not self._networks:
            return True
        if (is_admitted := self._known.get(host)) is None:
            if len(self._known) >= ADDRESSES_MAX:
                self._known.clear()
            address = ipaddress.ip_address(host.partition("%")[0])
            is_admitted = self._known[host] = any(address in network for network in self._networks)
        return is_admitted


def _why(error: OSError) -> str:
    reason = getattr(error, "reason", None) if isinstance(error, ssl.SSLError) else None
    return str(reason).lower().replace("_", " ") if reason else str(error.strerror or error)
