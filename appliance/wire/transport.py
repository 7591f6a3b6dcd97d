"""Moves the bytes of one connection: as they are, or encrypted with TLS.

A transport has what a connection needs of its socket::

    receive_into          as socket.recv_into
    send                  as socket.send
    send_file             as os.sendfile: file descriptor, position, count
    pending               received bytes wait inside, which epoll does not report
    may_be_handed_over    the descriptor alone is the connection: another process can serve it

:class:`PlainTransport` calls the system directly.  :class:`TlsTransport` keeps OpenSSL apart from the socket, with two
memory BIOs: one ``recv`` takes many TLS records, one ``send`` sends several, and OpenSSL never waits::

    socket ── recv ──► incoming ── decrypt ──► target
    socket ◄── send ── unsent ◄── outgoing ◄── encrypt ── data, or a piece of a file

What ``send`` returns are bytes whose encrypted form the socket has taken.  While it has not, ``send`` raises
BlockingIOError, and the caller repeats the same bytes: they are not encrypted again.  This is the rule of SSL_write.

Bounds of a connection with TLS: RECEIVE_BYTES of encrypted bytes that were received and not decrypted, one record of
16 KiB that was decrypted and not taken, PIECE_BYTES that were encrypted and not sent, CONTROL_BYTES_MAX for answers to
messages of TLS itself.  Peers may not renegotiate (TLS 1.2), and keys are not updated faster than the peer takes the
answers (TLS 1.3).
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from functools import partial
from typing import Any, Final, Protocol

RECEIVE_BYTES: Final = 256 * 1024
PIECE_BYTES: Final = 64 * 1024
"""Bytes that are encrypted at once.  A connection whose client does not read keeps as many."""
HELD_BYTES_MAX: Final = 16 * 1024
"""Encrypted bytes that wait for the next piece."""
RECORD_BYTES: Final = 16 * 1024
"""The largest plain text of one TLS record."""
CONTROL_BYTES_MAX: Final = 16 * 1024
RECORD_OVERHEAD_BYTES: Final = {"TLSv1.2": 29, "TLSv1.3": 22}
"""Bytes of a record beside its plain text, with AES-GCM; records with more or less are only read more slowly."""
MORE: Final = int(socket.MSG_MORE)
"""As a plain number: an operation on a flag of an enum takes as long as a system call."""
HANDSHAKE_READ_BYTES: Final = 16 * 1024
HANDSHAKE_RECORD: Final = 0x16
"""The first byte of a client of TLS."""

_received = memoryview(bytearray(RECEIVE_BYTES))
"""Encrypted bytes on their way from a socket into OpenSSL; used within one call only."""


class PlainOnTls(OSError):
    """The peer does not speak TLS."""


class Transport(Protocol):
    """See the module's docstring.  ``fault``: why the peer must go, if it broke a rule of TLS."""

    sock: socket.socket
    pending: bool
    fault: str
    may_be_handed_over: bool

    def receive_into(self, target: memoryview, /) -> int: ...
    def send(self, data: bytes | bytearray, flags: int = 0, /) -> int: ...
    def send_file(self, file_fd: int, position: int, count: int, /) -> int: ...
    def close(self) -> None: ...


class PlainTransport:
    """The socket itself."""

    __slots__ = ("close", "receive_into", "send", "send_file", "sock")
    pending = False
    fault = ""
    may_be_handed_over = True

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.receive_into = sock.recv_into
        self.send = sock.send
        self.send_file = partial(os.sendfile, sock.fileno())
        self.close = sock.close


class TlsTransport:
    """A TLS connection, at either end.  :meth:`handshake` comes first, until it returns True."""

    __slots__ = (
        "_incoming",
        "_outgoing",
        "_overhead",
        "_serves",
        "_taken",
        "_tls",
        "_unsent",
        "fault",
        "pending",
        "received_bytes",
        "sock",
    )
    may_be_handed_over = False

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_name: str | None = None) -> None:
        """``server_name``: that of the server, which its certificate must have; None: this is the server."""
        self.sock = sock
        self._serves = server_name is None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, self._serves, server_name)
        self._overhead = 0
        """Bytes of a record beside its plain text: with them it knows, nearly always, which record is the last."""
        self._unsent = b""
        self._taken = 0
        """Bytes whose encrypted form is in ``_unsent``: the caller gives them again."""
        self.received_bytes = 0
        """Bytes of the handshake."""
        self.pending = False
        self.fault = ""

    @property
    def wants_write(self) -> bool:
        """Whether the handshake waits until the socket takes more."""
        return bool(self._unsent)

    def handshake(self) -> bool:
        """Go on with the handshake after the socket became ready; return whether it is complete.

        Raises:
            PlainOnTls: the peer does not speak TLS.
            ssl.SSLError: the handshake failed; the peer was sent an alert.
            OSError: the connection is gone.
        """
        with contextlib.suppress(BlockingIOError):
            self._flush()
        try:
            count = self.sock.recv_into(_received[:HANDSHAKE_READ_BYTES])
        except BlockingIOError:
            count = -1
        if count == 0:
            raise ConnectionResetError("the peer closed the connection")
        if count > 0:
            if self._serves and not self.received_bytes and _received[0] != HANDSHAKE_RECORD:
                raise PlainOnTls("the first bytes are not those of TLS")
            self.received_bytes += count
            self._incoming.write(_received[:count])
        done = False
        try:
            self._tls.do_handshake()
            done = True
        except ssl.SSLWantReadError:
            pass
        finally:
            self._unsent += self._outgoing.read()
            with contextlib.suppress(BlockingIOError):
                self._flush()
        if done and not self._unsent:
            self.pending = self._incoming.pending > 0
            self._overhead = RECORD_OVERHEAD_BYTES.get(self._tls.version() or "", 0)
            return True
        return False

    def certificate(self) -> dict[str, Any]:
        """What ``ssl`` says of the peer's certificate, once the handshake is complete; empty without one.

        Raises:
            ValueError, ssl.SSLError: it cannot be read.
        """
        return self._tls.getpeercert() or {}

    # ---- receiving

    def receive_into(self, target: memoryview, /) -> int:
        """Receive and decrypt; 0 at the end of the stream.

        Raises:
            BlockingIOError: no whole record has arrived.
            OSError: the connection is gone, or the peer broke a rule of TLS.
        """
        if not self.pending:
            received = self.sock.recv_into(_received)
            if not received:
                return 0  # without an end of TLS: frames have lengths, so a truncated one is noticed
            self._incoming.write(_received[:received])
        filled, room = 0, len(target)
        read, incoming, overhead = self._tls.read, self._incoming, self._overhead
        bytes_left = incoming.pending
        self.pending = False
        try:
            while True:
                count = int(read(room - filled, target[filled:] if filled else target))
                if not count:  # the peer ends the stream: the next call returns 0
                    self.pending = filled > 0
                    return filled
                filled += count
                if filled == room:
                    self.pending = self._tls.pending() > 0 or incoming.pending > 0
                    break
                bytes_left -= count + overhead
                # OpenSSL reads nothing ahead; to tell that, it raises: 7 us
                if bytes_left <= 0 and not incoming.pending:
                    break
        except ssl.SSLWantReadError:
            if not filled and not self._outgoing.pending:
                raise BlockingIOError from None
        if self._outgoing.pending:
            self._answer_control()
            if not filled and not self.pending:
                raise BlockingIOError
        return filled

    def _answer_control(self) -> None:
        """Send what OpenSSL answers to a message of TLS itself.

        Raises:
            OSError: the peer wants to renegotiate, or does not take the answers.
        """
        if self._tls.version() == "TLSv1.2":
            self.fault = "it wants to renegotiate"
            raise OSError(self.fault)
        if len(self._unsent) + self._outgoing.pending > PIECE_BYTES + CONTROL_BYTES_MAX:
            self.fault = "it updates keys faster than it takes the answers"
            raise OSError(self.fault)
        self._unsent += self._outgoing.read()
        with contextlib.suppress(BlockingIOError):
            self._flush()

    # ---- sending

    def send(self, data: bytes | bytearray, flags: int = 0, /) -> int:
        """Encrypt and send a piece of ``data``; with MSG_MORE a small one is sent with the next, which must follow."""
        if self._unsent:
            self._flush()
        if self._taken:
            taken, self._taken = self._taken, 0
            return taken
        taken = self._encrypt(data)
        if flags & MORE and self._outgoing.pending < HELD_BYTES_MAX:
            return taken
        return self._send_encrypted(taken)

    def send_file(self, file_fd: int, position: int, count: int, /) -> int:
        """Read, encrypt and send a piece of a file; 0 at its end."""
        if self._unsent:
            self._flush()
        if self._taken:
            taken, self._taken = self._taken, 0
            return taken
        data = os.pread(file_fd, min(count, PIECE_BYTES), position)
        return self._send_encrypted(self._encrypt(data)) if data else 0

    def _encrypt(self, data: bytes | bytearray) -> int:
        """Encrypt a piece of ``data``; return its size."""
        if len(data) <= RECORD_BYTES:
            return self._tls.write(data)
        view = memoryview(data)[:PIECE_BYTES]
        taken = 0
        while taken < len(view):
            taken += self._tls.write(view[taken:])
        return taken

    def _send_encrypted(self, taken: int) -> int:
        """Send what was encrypted.

        Raises:
            BlockingIOError: the socket has not taken all of it; the caller gives the same bytes again.
        """
        self._unsent += self._outgoing.read()
        self._taken = taken
        self._flush()
        self._taken = 0
        return taken

    def _flush(self) -> None:
        """Send what is encrypted.

        Raises:
            BlockingIOError: the socket has not taken all of it.
        """
        unsent = self._unsent
        if unsent:
            sent = self.sock.send(unsent)
            self._unsent = unsent[sent:]
            if sent < len(unsent):
                raise BlockingIOError

    def close(self) -> None:
        """Tell the peer that the stream ends here, if the socket takes it, and close the socket."""
        if not self._unsent:
            with contextlib.suppress(OSError, ValueError):
                self._tls.unwrap()
            with contextlib.suppress(OSError):
                self.sock.send(self._outgoing.read())
        self.sock.close()
