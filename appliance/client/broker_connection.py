"""Sends requests over one connection to an appliance and receives the replies.

Everything in this package that talks to a broker uses :class:`BrokerConnection`.  The socket is always non-blocking.

- :meth:`BrokerConnection.post` queues a request and returns its correlation id.
- :meth:`~BrokerConnection.flush` writes whatever the socket takes, up to :data:`PIECES_MAX` pieces in one ``sendmsg``.
- :meth:`~BrokerConnection.receive` returns all replies that have arrived.
- :meth:`~BrokerConnection.call` makes one request and blocks until its reply has come.

So one system call sends many requests, and one receives many replies.  A large reply (a fetch) is received into a
buffer of its own size; callers get a memoryview of it.

Replies arrive in the order of the requests; a correlation id out of order raises
:class:`~appliance.errors.ProtocolFault`.  The constructor posts the hello that opens a connection, and a login follows
it where the listener wants one.  Their replies are handled here; callers never see them.  What is posted before waits
until the login is over.  Where sessions end, the connection logs in again before that (KIP-368), with the next request
after RENEW_AFTER of the time; what is posted meanwhile waits.

Not thread-safe: an owner that is shared between threads holds its own lock.  A connection must not cross a ``fork``:
each of the processes would read replies of the other.

Errors:

- :class:`~appliance.errors.BrokerAway`: there is no connection, or no more.  Retriable, on a new connection.
- :class:`~appliance.errors.RequestTimedOut`: a reply did not come in time.  The connection cannot be used any more.
- :class:`~appliance.errors.ProtocolFault`: the peer does not speak this protocol.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..addresses import Listener, parse_addresses, parse_listeners, unix_path
from ..errors import BadValue, BrokerAway, LoginOutOfOrder, ProtocolFault, RequestTimedOut, from_code
from ..owners import acting_as_owner
from ..wire.frames import SIZE_BYTES, frame_bytes, split
from ..wire.native import HELLO, LOGIN, MAGIC, VERSION, ProduceHead, decode_header, encode_frame
from ..wire.sockets import set_options, short_path
from ..wire.transport import PIECE_BYTES, TlsTransport
from .arguments import shown
from .client_login import ClientLogin, LoginSteps

RECEIVE_BYTES: Final = 64 * 1024
PIECES_MAX: Final = 512
"""Most pieces handed to one ``sendmsg``; the kernel refuses more than IOV_MAX = 1024."""
REPLY_BYTES_MAX: Final = 512 * 1024 * 1024
"""Largest reply that is accepted.  No appliance sends a larger one."""

RENEW_AFTER: Final = 0.85
"""The part of a session after which it is renewed."""

_KAFKA_VERSIONS: Final = bytes.fromhex("0000000a 0012 0000 6b61666b ffff")
"""ApiVersions, version 0: size, key, version, correlation id, no client id."""

Address = tuple[str, int]
"""Host and port; the path of a Unix socket and 0."""


class ConnectionReply(NamedTuple):
    """One reply.  ``header[0]`` is the correlation id; ``payload`` is the rest of the frame."""

    header: list[Any]
    payload: memoryview


def parse_bootstrap(bootstrap: str | Sequence[str]) -> list[Listener]:
    """Listeners from ``"a:1,b:2"``, ``"SSL://a:1"`` or ``"unix:/path"``, or a sequence of such texts."""
    if isinstance(bootstrap, bytes) or not isinstance(bootstrap, Sequence) or not all(map(_is_text, bootstrap)):
        raise BadValue(f"bootstrap {shown(bootstrap)}: give host:port, or several in a list")
    text = bootstrap if isinstance(bootstrap, str) else ",".join(bootstrap)
    try:
        listeners = parse_listeners("native", text)
    except ValueError as error:
        raise BadValue(f"bootstrap {error}") from None
    if not listeners:
        raise BadValue("no address given: name at least one appliance as host:port")
    if len({listener.security for listener in listeners}) > 1:
        raise BadValue(f"bootstrap {text!r}: all addresses must have the same protocol: that of the whole cluster")
    return listeners


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def address_of(listener: Listener) -> Address:
    """The address to connect to."""
    return (unix_path(listener.address)[0], 0) if listener.unix else parse_addresses(listener.address)[0]


def is_path(address: tuple[str, int]) -> bool:
    """Whether an address is the path of a Unix socket."""
    return address[0].startswith("/")


def _connect_unix(path: Path) -> socket.socket:
    with contextlib.ExitStack() as closed_on_failure:
        sock = closed_on_failure.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        sock.setblocking(False)
        try:
            with acting_as_owner(path), short_path(path) as short:
                sock.connect(short)
        except OSError as error:
            raise BrokerAway(f"no connection to the appliance at {path}: {error}") from None
        closed_on_failure.pop_all()
    return sock


def start_connect(address: tuple[str, int]) -> tuple[socket.socket, bool]:
    """A non-blocking socket, and whether it is still connecting."""
    if is_path(address):
        return _connect_unix(Path(address[0])), False
    where = f"{address[0]}:{address[1]}"
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise BrokerAway(f"the name {address[0]!r} of an appliance cannot be resolved: {error}") from None
    connecting = False
    with contextlib.ExitStack() as closed_on_failure:
        sock = closed_on_failure.enter_context(socket.socket(family, kind, protocol))
        try:
            sock.setblocking(False)
            try:
                sock.connect(target)
            except BlockingIOError:
                connecting = True
            set_options(sock, str(target[0]))
        except OSError as error:
            raise BrokerAway(f"no connection to the appliance at {where}: {error}") from None
        closed_on_failure.pop_all()
    return sock, connecting


class TlsSocket:
    """A TLS connection, with what :class:`BrokerConnection` needs of a non-blocking socket, and the handshake."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_name: str) -> None:
        self._transport = TlsTransport(sock, context, server_name)
        self.handshake = self._transport.handshake
        self.recv_into = self._transport.receive_into
        self.fileno, self.shutdown, self.getsockopt = sock.fileno, sock.shutdown, sock.getsockopt
        self.close = self._transport.close

    @property
    def pending(self) -> bool:
        """Whether received bytes wait inside, which poll does not report."""
        return self._transport.pending

    @property
    def wants_write(self) -> bool:
        return self._transport.wants_write

    def recv(self, size: int) -> bytes:
        buffer = bytearray(size)
        return bytes(buffer[: self.recv_into(memoryview(buffer))])

    def send(self, data: bytes | memoryview) -> int:
        return self._transport.send(bytes(data[:PIECE_BYTES]))

    def sendmsg(self, pieces: Sequence[bytes | memoryview]) -> int:
        """Send the first pieces, joined: a record of TLS for each would be slow."""
        joined: list[bytes | memoryview] = []
        size = 0
        for piece in pieces:
            joined.append(piece[: PIECE_BYTES - size])
            size += len(joined[-1])
            if size == PIECE_BYTES:
                break
        return self._transport.send(b"".join(joined))


class BrokerConnection:
    """See the module's docstring.  The constructor starts to connect; requests posted meanwhile follow the hello.

    ``connecting`` ends with the handshake of TLS, if there is one.
    """

    def __init__(
        self,
        address: Address,
        *,
        client_name: str = "",
        tls: ssl.SSLContext | None = None,
        login: ClientLogin | None = None,
    ) -> None:
        """``login``: who to log in as; None where the listener wants no login."""
        self.address = address
        self.greeted = False
        """Whether requests are answered: the peer has answered the hello, and the login is over."""
        self._login = login
        self._steps: LoginSteps | None = None
        """The login in progress."""
        self._login_correlation, self._renew_s = -1, 0.0
        """The last message of a login; when to log in again by the monotonic clock, 0: never, or it is being done."""
        self.broker_id = -1
        self.frame_bytes_max = 0
        """Largest frame that the peer accepts; 0 until it has answered the hello."""
        self.out_bytes = 0
        """Bytes posted and not yet written to the socket."""
        self.awaited: deque[int] = deque()
        """Correlation ids of the requests without a reply, in order."""
        self._out: deque[bytes | memoryview] = deque()
        self._posted = self._out
        """Where requests are queued: apart from ``_out`` until the login is over."""
        self._correlation = 0
        self._partial = b""
        self._large: bytearray | None = None
        self._large_filled = 0
        hello = self._next_correlation()
        self._enqueue(self._out, encode_frame([HELLO, hello, MAGIC, VERSION, client_name]))
        self.awaited.append(hello)
        if login is not None:
            self._posted = deque()
        self._tls: TlsSocket | None = None
        self._reached = False
        """Whether there is a connection, with its handshake or without."""
        self._socket: socket.socket | TlsSocket
        self._socket, self.connecting = start_connect(address)
        if tls is not None:
            self._begin_tls(self._socket, tls)

    def __repr__(self) -> str:
        return f"<Connection to {self}>"

    def __str__(self) -> str:
        return self.address[0] if is_path(self.address) else f"{self.address[0]}:{self.address[1]}"

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        if self.connecting and self._reached and self._tls is not None:
            return self._tls.wants_write
        return self.connecting or bool(self._out)

    def close(self) -> None:
        self._socket.close()

    def shutdown(self) -> None:
        """Wake every thread that waits for this connection; it finds the connection closed."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # closed already, or never connected

    def _begin_tls(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._reached = not self.connecting
        with contextlib.ExitStack() as closed_on_failure:
            closed_on_failure.callback(sock.close)
            self._socket = self._tls = TlsSocket(sock, context, self.address[0])
            closed_on_failure.pop_all()
        self.connecting = True

    # Posting

    def post(self, api: int, *arguments: Any) -> int:
        """Queue one request; :meth:`flush` sends it."""
        self._renew_if_due()
        correlation = self._next_correlation()
        self._enqueue(self._posted, encode_frame([api, correlation, *arguments]))
        self.awaited.append(correlation)
        return correlation

    def post_batch(self, head: ProduceHead, encoded: bytes, expects_reply: bool) -> None:
        """Queue one produce request."""
        if self._renew_s:
            self._renew_if_due()
        correlation = self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        front = head.frame(correlation, len(encoded))
        self._posted.append(front)
        self._posted.append(encoded)
        self.out_bytes += len(front) + len(encoded)
        if expects_reply:
            self.awaited.append(correlation)

    def flush(self) -> bool:
        """Write as much as the socket takes.

        Returns:
            Whether everything posted has been written.

        Raises:
            BrokerAway: the peer is gone.
        """
        if self.connecting and not self._finish_connect():
            return False
        out = self._out
        while out:
            try:
                self.out_bytes -= _send_some(self._socket, out)
            except BlockingIOError:
                return False
            except OSError as error:
                raise self._away(error) from None
        return True

    def _next_correlation(self) -> int:
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        return self._correlation

    def _enqueue(self, queue: deque[bytes | memoryview], frame: bytes) -> None:
        queue.append(frame)
        self.out_bytes += len(frame)

    # Receiving

    def receive(self) -> list[ConnectionReply]:
        """All replies that have arrived; an empty list when there are none.

        Raises:
            BrokerAway: the peer closed the connection.  Earlier calls have returned all replies that came before.
            ProtocolFault: the received bytes are not a reply of this protocol.
        """
        if self.connecting and not self._finish_connect():
            return []
        replies: list[ConnectionReply] = []
        try:
            while self._receive_once(replies):
                pass
        except BlockingIOError:
            pass
        except BrokerAway:
            if not replies:  # else the next call raises it
                raise
        except OSError as error:
            if not replies:
                raise self._away(error) from None
        return replies

    def _receive_once(self, replies: list[ConnectionReply]) -> bool:
        """Make one system call.  False when another one would probably find nothing."""
        large = self._large
        if large is not None:
            count = self._socket.recv_into(memoryview(large)[self._large_filled :])
            if not count:
                raise self._away("it closed the connection")
            self._large_filled += count
            if self._large_filled == len(large):
                self._large = None
                self._take(memoryview(large)[SIZE_BYTES:], replies)
                return self._tls is not None and self._tls.pending
            return True
        data = self._socket.recv(RECEIVE_BYTES)
        if not data:
            raise self._away("it closed the connection")
        full = len(data) == RECEIVE_BYTES
        if self._partial:
            data = self._partial + data
        view = memoryview(data)
        frames, rest = split(view, 0, len(data), REPLY_BYTES_MAX)
        for start, stop in frames:
            self._take(view[start:stop], replies)
        self._partial = b""
        need = frame_bytes(view, rest, len(data))
        if need > SIZE_BYTES + RECEIVE_BYTES:
            self._large = bytearray(need)
            self._large_filled = len(data) - rest
            self._large[: self._large_filled] = view[rest:]
            return True
        self._partial = data[rest:]
        return full

    def _take(self, frame: memoryview, replies: list[ConnectionReply]) -> None:
        header, start = decode_header(frame)
        if not self.awaited or header[0] != self.awaited[0]:
            raise ProtocolFault(f"{self} answered request {header[0]}, which is not the next one awaited")
        self.awaited.popleft()
        if self.greeted and header[0] != self._login_correlation:
            replies.append(ConnectionReply(header, frame[start:]))
            return
        if header[1]:
            raise from_code(header[1], header[2] if self._steps else "", about=f"{self} refuses the connection")
        if self._steps is not None:
            self._go_on_with_login(self._steps.next(header[3], header[5]), lifetime_s=header[4] / 1000)
            return
        self.broker_id = header[3]
        self.frame_bytes_max = header[4].get("frame_bytes_max", 0) or REPLY_BYTES_MAX
        self._begin_login(header[4].get("mechanisms", []))

    # Logging in

    def _begin_login(self, mechanisms: Sequence[str]) -> None:
        """Begin the login that the listener wants; nothing when it wants none.

        Raises:
            LoginOutOfOrder: only one of the two sides wants a login.
        """
        if self._login is None:
            if mechanisms:
                raise LoginOutOfOrder(f"{self} wants a login: begin the address with SASL_SSL:// or SASL_PLAINTEXT://")
            self.greeted = True
        elif not mechanisms:
            raise LoginOutOfOrder(f"{self} has no login: begin the address with SSL://, or with no protocol")
        else:
            self._steps = self._login.begin(mechanisms)
            self._post_login(self._steps.mechanism, self._steps.first())

    def _renew_if_due(self) -> None:
        """Log in again when it is time, behind what was posted before."""
        if not self._renew_s or self._login is None or time.monotonic() < self._renew_s:
            return
        self._renew_s, self._steps = 0.0, self._login.begin()
        self.awaited.append(self._enqueue_login(self._steps.mechanism, self._steps.first()))
        self._posted = deque()

    def _go_on_with_login(self, message: bytes | None, lifetime_s: float) -> None:
        if message is not None:
            self._post_login(None, message)
            return
        self._renew_s = time.monotonic() + RENEW_AFTER * lifetime_s if lifetime_s else 0.0
        self._steps = None
        self.greeted = True
        self._out += self._posted
        self._posted = self._out
        self.flush()

    def _post_login(self, mechanism: str | None, message: bytes) -> None:
        """Send a message of the login, before all that was posted."""
        self.awaited.appendleft(self._enqueue_login(mechanism, message))
        self.flush()

    def _enqueue_login(self, mechanism: str | None, message: bytes) -> int:
        correlation = self._login_correlation = self._next_correlation()
        self._enqueue(self._out, encode_frame([LOGIN, correlation, mechanism, message]))
        return correlation

    # Blocking

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until :meth:`receive` or :meth:`flush` can make progress; False when time is up."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | (select.POLLOUT if self.wants_write else 0))
        return bool(poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000))

    def greet(self, timeout_s: float) -> None:
        """Wait for the answer to the hello."""
        deadline = time.monotonic() + timeout_s
        while not self.greeted:
            self.flush()
            self.receive()
            if not self.greeted and not self.wait(deadline - time.monotonic()):
                raise RequestTimedOut(f"{self} did not answer within {timeout_s:g} s")

    def call(self, api: int, *arguments: Any, timeout_s: float) -> ConnectionReply:
        """Post one request and wait for its reply.  No other request may be in flight."""
        assert len(self.awaited) == (0 if self.greeted else 1), "call() on a connection with requests in flight"
        deadline = time.monotonic() + timeout_s
        self.post(api, *arguments)
        while True:
            self.flush()
            replies = self.receive()
            if replies:
                return replies[0]
            if not self.wait(deadline - time.monotonic()):
                raise RequestTimedOut(f"{self} did not answer within {timeout_s:g} s")

    def _finish_connect(self) -> bool:
        """Go on with connecting, and with the handshake; whether both are complete."""
        try:
            self._reached = self._reached or _is_connected(self._socket)
            if not self._reached:
                return False
            self.connecting = self._tls is not None and not self._tls.handshake()
        except OSError as error:  # ssl.SSLError, too
            raise self._away(error) from None
        return not self.connecting

    def _away(self, reason: OSError | str) -> BrokerAway:
        return BrokerAway(f"no connection to the appliance at {self}: {reason}")


def _send_some(sock: socket.socket | TlsSocket, out: deque[bytes | memoryview]) -> int:
    """Send as many pieces as one call takes, remove them from ``out``, and return how many bytes were sent."""
    single = len(out) == 1
    sent = remaining = sock.send(out[0]) if single else sock.sendmsg([out[i] for i in range(min(len(out), PIECES_MAX))])
    while out and remaining >= len(out[0]):
        remaining -= len(out.popleft())
    if remaining:
        out[0] = memoryview(out[0])[remaining:]
    return sent


def speaks_kafka(address: Address, timeout_s: float = 2.0) -> bool:
    """Whether a server at ``address`` speaks Kafka's protocol: it answers an ApiVersions request."""
    try:
        with socket.create_connection(address, timeout_s) as sock:
            sock.sendall(_KAFKA_VERSIONS)
            reply = sock.recv(SIZE_BYTES + 4, socket.MSG_WAITALL)
    except OSError:
        return False
    return reply[SIZE_BYTES:] == _KAFKA_VERSIONS[8:12]


def _is_connected(sock: socket.socket | TlsSocket) -> bool:
    """Whether a socket has connected.  Raises OSError when that failed."""
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    if not poll.poll(0):
        return False
    error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error:
        raise OSError(error, f"connect failed: {os.strerror(error)}")
    return True
