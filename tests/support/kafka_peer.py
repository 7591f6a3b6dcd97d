"""A peer of the Kafka listener that can send any request, in a given version."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Any

from appliance.wire.kafka.apis import APIS

from .kafka_messages import decode_response, fill, message, request_frame

TIMEOUT_S = 60
KEYS = {api.name: key for key, api in APIS.items()}
NAMED = {KEYS["Fetch"]: 12, KEYS["Produce"]: 12, KEYS["OffsetCommit"]: 9, KEYS["OffsetFetch"]: 9}
"""The last versions that name topics by their names, as most tests do."""


def version_of(key: int, version: int | None) -> int:
    return NAMED.get(key, APIS[key].version_max) if version is None else version


class KafkaPeer:
    """``version``: by default the highest that names topics by names; ``values``: defaults for what is not given."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.sock = socket.create_connection((host, int(port)), TIMEOUT_S)

    def ask(self, name: str, version: int | None = None, /, *, client_id: str = "test", **values: Any) -> Any:
        """The reply as kafka-python reads it.

        Raises:
            EOFError: the server has closed the connection.
        """
        self.send(name, version, client_id=client_id, **values)
        return self.receive(name, version)

    def send(self, name: str, version: int | None = None, /, *, client_id: str = "test", **values: Any) -> None:
        key = KEYS[name]
        version = version_of(key, version)
        filled = fill(message(key, "Request")._struct, version, values)
        self.send_frame(request_frame(key, version, filled, client_id=client_id))

    def send_frame(self, frame: bytes) -> None:
        self.sock.sendall(len(frame).to_bytes(4, "big") + frame)

    def receive(self, name: str, version: int | None = None) -> Any:
        key = KEYS[name]
        size = self._receive(4)
        frame = size + self._receive(int.from_bytes(size, "big"))
        return decode_response(key, version_of(key, version), frame)

    def hung_up(self) -> bool:
        """Wait until the server closes; False when it sends something instead."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            if not more:
                raise EOFError("the server has hung up")
            data += more
        return data

    def __enter__(self) -> KafkaPeer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sock.close()
