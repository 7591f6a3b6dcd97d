"""Frames that no client sends, at the real Kafka door: others go on, nothing restarts, nothing grows."""

from __future__ import annotations

import os
import random
import socket
import struct
from contextlib import suppress
from pathlib import Path

import pytest

from appliance.wire.kafka.apis import APIS
from tests.kafka_messages import decode_response, message, random_values, request_frame
from tests.test_wire_kafka_forwarded import mutated

from .conftest import Door

FRAMES = int(os.environ.get("FUZZ_MUTATIONS", "4000"))
GROWTH_BYTES_MAX = 64 * 2**20
CLOSE_TIMEOUT_S = 10.0


def connect(door: Door) -> socket.socket:
    host, port = door.kafka.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=CLOSE_TIMEOUT_S)


def receive(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        assert part, "the connection was closed"
        data += part
    return data


def ask(sock: socket.socket, key: int, version: int, frame: bytes) -> object:
    sock.sendall(struct.pack(">i", len(frame)) + frame)
    head = receive(sock, 4)
    return decode_response(key, version, head + receive(sock, int.from_bytes(head, "big")))


def check_served(sock: socket.socket) -> None:
    """Metadata of all topics, over a connection that was there before."""
    reply = ask(sock, 3, 1, struct.pack(">hhih", 3, 1, 7, -1) + struct.pack(">i", -1))
    assert reply.brokers  # type: ignore[attr-defined]


def memory_bytes(door: Door) -> int:
    """What the workers and the coordinator hold for themselves."""
    total = 0
    for role in ("network", "coordinator"):
        for pid in door.pids(role):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Private_Dirty"):
                    total += int(line.split()[1]) * 1024
    return total


@pytest.mark.timeout(300)
def test_mutated_frames_of_every_api(door: Door) -> None:
    rng = random.Random(29)
    frames = [
        request_frame(key, version, harmless(random_values(message(key, "Request")._struct, version, rng)))
        for key, api in APIS.items()
        for version in range(max(api.version_min, 3 if key == 0 else 0), api.version_max + 1)
    ]
    pids = door.pids("network") + door.pids("coordinator")
    before = 0
    with connect(door) as witness:
        for turn in range(0, FRAMES, 20):
            with connect(door) as sock, suppress(ConnectionError):
                for step in range(20):
                    frame = mutated(bytearray(frames[(turn + step) % len(frames)]), rng)
                    sock.sendall(struct.pack(">i", len(frame)) + frame)
            if turn % 400 == 0:
                check_served(witness)
            if turn == FRAMES // 4 // 20 * 20:
                before = memory_bytes(door)
        check_served(witness)
    assert door.pids("network") + door.pids("coordinator") == pids
    assert memory_bytes(door) - before < GROWTH_BYTES_MAX


def harmless(values: dict[str, object]) -> dict[str, object]:
    """A random Metadata or CreateTopics would otherwise make thousands of topics."""
    return values | {"allow_auto_topic_creation": False, "validate_only": True}


@pytest.mark.parametrize(
    "start",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        struct.pack(">i", 0),
        struct.pack(">ihhih", 10, 999, 0, 1, -1),
    ],
    ids=["negative size", "2 GB", "HTTP", "TLS", "empty frame", "unknown API"],
)
def test_what_is_not_kafka_is_hung_up_on_at_once(door: Door, start: bytes) -> None:
    with connect(door) as sock:
        sock.sendall(start)
        with suppress(ConnectionResetError):
            assert sock.recv(100) == b""


def test_a_version_that_is_not_served_gets_a_code(door: Door) -> None:
    with connect(door) as sock:
        for key, version, known in ((18, 99, 0), (11, 30, 7), (1, 15, 15), (12, 9, 4)):
            body = struct.pack(">hhih", key, version, 7, -1) + bytes(40)
            reply = ask(sock, key, known, body)
            assert reply.error_code == 35  # type: ignore[attr-defined]
        check_served(sock)
