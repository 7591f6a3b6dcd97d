"""A peer of the native listener that can send anything, right or wrong: for tests of what the server does then."""

from __future__ import annotations

import socket
import ssl
from types import TracebackType
from typing import Any

from appliance.wire import native

TIMEOUT_S = 60


class Peer:
    def __init__(self, address: str, *, hello: bool = True, tls: ssl.SSLContext | None = None) -> None:
        host, port = address.rsplit(":", 1)
        self.sock = socket.create_connection((host, int(port)), TIMEOUT_S)
        if tls is not None:
            self.sock = tls.wrap_socket(self.sock, server_hostname=host)
        self._received = b""
        if hello:
            assert self.call([native.HELLO, 0, native.MAGIC, native.VERSION, "test"])[0][1] == 0

    def send(self, header: list[Any], payload: bytes = b"") -> None:
        self.sock.sendall(native.encode_frame(header, len(payload)) + payload)

    def receive(self) -> tuple[list[Any], bytes]:
        while len(self._received) < 4 or len(self._received) < 4 + int.from_bytes(self._received[:4], "big"):
            data = self.sock.recv(1 << 20)
            if not data:
                raise EOFError("the server has hung up")
            self._received += data
        size = int.from_bytes(self._received[:4], "big")
        frame, self._received = self._received[4 : 4 + size], self._received[4 + size :]
        header, stop = native.decode_header(memoryview(frame))
        return header, frame[stop:]

    def call(self, header: list[Any], payload: bytes = b"") -> tuple[list[Any], bytes]:
        self.send(header, payload)
        return self.receive()

    def hung_up(self) -> bool:
        """Wait until the server closes; False when it sends something instead."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def admin(self, verb: str, **arguments: Any) -> Any:
        header, _ = self.call([native.ADMIN, 1, verb, arguments])
        assert header[1] == 0, header
        return header[3]

    def create(self, topic: str, partitions: int = 1, **settings: Any) -> None:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        self.admin("create_topic", name=topic, partitions=partitions, settings=named)

    def produce(self, topic: str, batch: bytes, partition: int = 0, acks: int = 1) -> tuple[int, int, int, str]:
        """(error, base, end, message)"""
        header, _ = self.call([native.PRODUCE, 2, topic, partition, acks, 10_000], batch)
        return header[1], header[2], header[3], header[5]

    def fetch(
        self, topic: str, offset: int, partition: int = 0, wait_ms: int = 0, bytes_max: int = 1 << 20
    ) -> tuple[list[int], bytes]:
        """([error, log start, end, size], batches)"""
        parts = [[topic, partition, offset, bytes_max]]
        header, payload = self.call([native.FETCH, 3, wait_ms, 1, bytes_max, parts])
        return header[2][0], payload

    def end(self, topic: str, partition: int = 0) -> int:
        header, _ = self.call([native.OFFSETS, 4, [[topic, partition, -1, -1]]])
        return int(header[2][0][1])

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
