"""Kazoo's thread with fewer calls of the kernel, and with our login.

kazoo makes an epoll object for each wait, waits before each call of the socket, and reads a reply in two pieces: 17
waits for one transaction, whose thread needs the interpreter's lock after each, while the coordinator's loop wants it.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from logging import getLogger
from socket import socket
from typing import Any, Final

from kazoo.exceptions import AuthFailedError, ConnectionDropped
from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import SASL

from .login import DigestMd5, ZooKeeperLogin

log = getLogger(__name__)

RECEIVE_BYTES: Final = 1 << 16
SIZE_BYTES: Final = 4
"""Of the size in front of each message."""


class _DirectResult(AsyncResult):  # type: ignore[misc]  # kazoo has no types
    def _do_callbacks(self) -> None:
        for callback in self._callbacks:
            callback(self)


class DirectHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Has answers told in the thread that has read them, where kazoo wakes up another one for that.

    Whoever is told must neither wait nor raise: ours only hand over.  Watches stay in a thread of their own.
    """

    def async_result(self) -> _DirectResult:
        return _DirectResult(self)

    def select(
        self, read: Sequence[socket], write: Sequence[socket], _: Sequence[socket], timeout: float | None = None
    ) -> tuple[list[socket], list[socket], list[socket]]:
        poller = select.poll()
        for sock in read:
            poller.register(sock, select.POLLIN)
        for sock in write:
            poller.register(sock, select.POLLOUT)
        ready = {fd for fd, _ in poller.poll(None if timeout is None else timeout * 1000)}
        return [sock for sock in read if sock.fileno() in ready], [sock for sock in write if sock.fileno() in ready], []


class Connection(ConnectionHandler):  # type: ignore[misc]
    """kazoo's connection, without TLS; it takes all that has arrived at once.

    ``_received`` has what follows the last message that was handled, after a connection is made: a part of one.
    """

    _received: bytearray

    def _connect(self, host: str, hostip: str, port: int) -> tuple[float, float]:
        self._received = bytearray()
        timeouts: tuple[float, float] = super()._connect(host, hostip, port)
        return timeouts

    def _read_socket(self, read_timeout: float) -> Any:
        """Handle all messages that have come; called when the socket has something to read."""
        with self._socket_error_handling():
            data = self._socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionDropped("socket connection broken")
        self._received += data
        closed = None
        while closed is None and self._has_message:
            closed = super()._read_socket(read_timeout)
        return closed

    @property
    def _has_message(self) -> bool:
        received = self._received
        return len(received) >= SIZE_BYTES + int.from_bytes(received[:SIZE_BYTES], "big")

    def _read(self, length: int, timeout: float) -> bytes:
        received = self._received
        if not received:  # while the connection is made
            return bytes(super()._read(length, timeout))
        data = bytes(received[:length])
        del received[:length]
        return data

    def _write(self, msg: bytes, timeout: float) -> None:
        with self._socket_error_handling():
            try:
                sent = self._socket.send(msg)
            except BlockingIOError:
                sent = 0
        if sent < len(msg):
            super()._write(msg[sent:], timeout)


class SaslConnection(Connection):
    """With our DIGEST-MD5: the library that kazoo would use is not maintained.

    kazoo calls :meth:`_authenticate_with_sasl` when a connection has a session, before any other request.  When the
    connection ends meanwhile, since its node ends, kazoo connects again; a refused login ends its thread.
    """

    login: ZooKeeperLogin

    def _authenticate_with_sasl(self, host: str, timeout: float) -> None:
        exchange, response, xid = DigestMd5(self.login), b"", 0
        while not exchange.complete:
            xid += 1
            self._submit(SASL(response), timeout, xid)
            header, buffer, offset = self._read_header(timeout)
            try:
                if header.err or header.xid != xid:
                    raise ValueError(f"the server answers with error {header.err}")
                challenge, _ = SASL.deserialize(buffer, offset)
                response = exchange.respond(challenge or b"")
            except ValueError as error:
                log.error("login to ZooKeeper as %s: %s", self.login.user, error)
                raise AuthFailedError(str(error)) from error
