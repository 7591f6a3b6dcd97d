"""A TLS connection of the client, with the methods of a non-blocking socket."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence

from ..wire.transport import PIECE_BYTES, TlsTransport


class TlsSocket:
    """Has what :class:`.broker_connection.BrokerConnection` needs of a socket, and the handshake."""

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
