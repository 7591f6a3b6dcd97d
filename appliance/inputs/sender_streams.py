"""Connections of senders as streams that are read as fast as what they bring goes on, with TLS or without."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import ClassVar, Final

READ_BYTES: Final = 64 * 1024


class SenderStream(asyncio.BaseProtocol):
    """A connection that is read as fast as its reader takes: READ_BYTES wait, and what is received at a time.

    ``is_answered``: whether its sender keeps what it has sent until an answer comes.
    """

    def __init__(self, *, is_answered: bool) -> None:
        self.is_answered = is_answered
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
        """Read what the kernel has received already, then see the end; at once if its sender waits for answers."""
        self._is_ending = True
        if self.is_answered:
            self._end()  # what comes later is dropped: its sender, without an answer, sends it again
            return
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
        if self._is_ended:
            return
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


class PlainStream(SenderStream, asyncio.BufferedProtocol):
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


class TlsStream(SenderStream, asyncio.Protocol):
    """One with TLS.  No BufferedProtocol: at the end of a connection asyncio fills its buffer once, and that is all.

    There is no half of such a connection: nothing can be written behind its end.
    """

    def data_received(self, data: bytes) -> None:
        self._receive(data)
