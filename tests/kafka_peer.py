"""A peer of the Kafka listener that asks one request at a time, in the version that it is told."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Any

from appliance.wire.kafka.apis import APIS

from .kafka_messages import decode_response, fill, message, request_frame

TIMEOUT_S = 20
KEYS = {api.name: key for key, api in APIS.items()}


class KafkaPeer:
    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._sock = socket.create_connection((host, int(port)), TIMEOUT_S)

    def ask(self, name: str, version: int | None = None, **values: Any) -> Any:
        """The reply as kafka-python reads it; the highest version by default, and defaults for what is not given.

        Raises:
            EOFError: the server has closed the connection.
        """
        key = KEYS[name]
        version = APIS[key].version_max if version is None else version
        frame = request_frame(key, version, fill(message(key, "Request")._struct, version, values))
        self._sock.sendall(len(frame).to_bytes(4, "big") + frame)
        size = self._receive(4)
        return decode_response(key, version, size + self._receive(int.from_bytes(size, "big")))

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._sock.recv(size - len(data))
            if not more:
                raise EOFError("the server has hung up")
            data += more
        return data

    def __enter__(self) -> KafkaPeer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sock.close()
