"""Keeps many connections to a broker of Kafka's protocol open, a tenth of which produce::

    python -m appliance.bench.connection_crowd ADDRESS TOPIC CONNECTIONS REQUESTS_PER_S

Every connection asks ApiVersions first.  "ready" is printed when all have their answers.  Then each tenth one, in turn,
produces one message of 200 bytes to partition 0 (acks=1), REQUESTS_PER_S together.  One that has no answer yet is not
asked again, so a slow broker gets fewer.  When standard input ends, the outstanding answers are awaited and a line of
JSON says how many messages were acknowledged.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import struct
import sys
import time

from ..records.encode import encode_values
from .brokers import API_VERSIONS

ACTIVE_PART = 10
SIZE = 200
PATIENCE_S = 60
PRODUCE, PRODUCE_VERSION = 0, 7
HEAD = struct.Struct(">ihhih")
"""Size, API, version, correlation id, client id (none)."""


class BadReply(Exception):
    """A broker closed a connection, did not answer, or answered with an error."""


def produce_request(topic: str) -> bytes:
    """A Produce request, version 7, of one message for partition 0."""
    batch = encode_values([bytes(SIZE)], int(time.time() * 1000))
    name = topic.encode()
    body = struct.pack(">hhiih", -1, 1, 30_000, 1, len(name)) + name + struct.pack(">iii", 1, 0, len(batch)) + batch
    return HEAD.pack(HEAD.size - 4 + len(body), PRODUCE, PRODUCE_VERSION, 0, -1) + body


def error_of(reply: bytes, topic: str) -> int:
    """The error code in the answer to :func:`produce_request`, which begins with the correlation id."""
    return int.from_bytes(reply[4 + 4 + 2 + len(topic.encode()) + 4 + 4 :][:2], "big", signed=True)


def receive(sock: socket.socket) -> bytes:
    """The next answer, without its size.

    Raises:
        BadReply: there is none.
    """
    size = int.from_bytes(_exactly(sock, 4), "big")
    return _exactly(sock, size)


def _exactly(sock: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        got = sock.recv(count - len(received))
        if not got:
            raise BadReply("a connection was closed")
        received += got
    return received


class ConnectionCrowd:
    """The connections.  ``acknowledged`` counts messages."""

    def __init__(self, address: str, topic: str, connections: int) -> None:
        host, port = address.rsplit(":", 1)
        self._topic, self._request = topic, produce_request(topic)
        self._poll = select.epoll()
        self._busy: dict[int, socket.socket] = {}
        self.acknowledged = 0
        self.socks = [socket.create_connection((host, int(port)), PATIENCE_S) for _ in range(connections)]
        for sock in self.socks:
            sock.sendall(API_VERSIONS)
        for sock in self.socks:
            receive(sock)

    def run(self, requests_per_s: int) -> None:
        """Produce until standard input ends."""
        active = self.socks[::ACTIVE_PART]
        start, sent = time.perf_counter(), 0
        self._poll.register(sys.stdin, select.EPOLLIN)
        while True:
            due_s = start + sent / requests_per_s - time.perf_counter()
            if due_s <= 0:
                self._send(active[sent % len(active)])
                sent += 1
            if self._receive(max(due_s, 0)):
                break
        deadline = time.perf_counter() + PATIENCE_S
        while self._busy and time.perf_counter() < deadline:
            self._receive(1)

    def _send(self, sock: socket.socket) -> None:
        if sock.fileno() not in self._busy:
            sock.sendall(self._request)
            self._busy[sock.fileno()] = sock
            self._poll.register(sock, select.EPOLLIN)

    def _receive(self, timeout_s: float) -> bool:
        """Take answers that have come; whether standard input has ended."""
        ended = False
        for number, _ in self._poll.poll(timeout_s):
            if number == sys.stdin.fileno():
                ended = True
                continue
            sock = self._busy.pop(number)
            self._poll.unregister(sock)
            if error := error_of(receive(sock), self._topic):
                raise BadReply(f"a message was refused with error {error}")
            self.acknowledged += 1
        return ended


def main(arguments: list[str]) -> None:
    address, topic, connections, requests_per_s = arguments
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    crowd = ConnectionCrowd(address, topic, int(connections))
    print("ready", flush=True)
    crowd.run(int(requests_per_s))
    print(json.dumps({"acknowledged": crowd.acknowledged}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
