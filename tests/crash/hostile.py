"""Clients that do harm, beside honest ones: what is no protocol, frames that never end, and frames that lie.

Every connection is closed at the end of a turn; what comes back is not read, or not all of it.
"""

from __future__ import annotations

import random
import socket
import struct
from contextlib import ExitStack, suppress
from typing import Final

from appliance.wire import native
from appliance.wire.kafka.apis import APIS

from ..kafka_messages import message, random_values, request_frame
from ..test_wire_kafka_forwarded import mutated

CONNECTIONS: Final = 40
FRAMES: Final = 10
U64_MAX: Final = (1 << 64) - 1
HARMLESS: Final = {"allow_auto_topic_creation": False, "validate_only": True}


def _kafka_frames(rng: random.Random) -> list[bytes]:
    """One request of each API, with random values and a few bytes changed."""
    frames = []
    for key, api in APIS.items():
        version = rng.randrange(max(api.version_min, 3 if key == 0 else 0), api.version_max + 1)
        values = random_values(message(key, "Request")._struct, version, rng) | HARMLESS
        frame = mutated(bytearray(request_frame(key, version, values)), rng)
        frames.append(struct.pack(">i", len(frame)) + frame)
    return frames


def _native_frames(rng: random.Random) -> list[bytes]:
    hello = native.encode_frame([native.HELLO, 0, native.MAGIC, native.VERSION, "hostile"], 0)
    number = rng.choice([-1, 0, 1 << 31, 1 << 62, U64_MAX])
    lies = [
        [native.FETCH, 1, number, U64_MAX, U64_MAX, [["first", 0, 0, U64_MAX]]],
        [native.FETCH, 1, 1_000, 1, 1, [["first", number, number, number]] * 20],
        [native.OFFSETS, 2, [["second", 0, number, number]] * 20],
        [native.PRODUCE, 3, "first", number, 1, number],
        [native.METADATA, 4, ["..", "first" * 1_000, ""]],
        [native.ADMIN, 5, "offsets", {"group": "../.."}],
        [native.ADMIN, 6, "commit", {"group": "hostile", "offsets": [["..", 0, number]]}],
    ]
    return [hello + native.encode_frame(lie, 0) for lie in lies]


_TRIFLES: Final = [
    b"\x00\x00\xff\xf0",
    b"\x00\x10\x00\x00" + bytes(1_000),
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    struct.pack(">i", -1),
]


def attack(addresses: list[str], rng: random.Random) -> int:
    """One turn against all of these listeners; how many connections it took."""
    made = 0
    with ExitStack() as stack:
        for address in addresses:
            host, _, port = address.rpartition(":")
            frames = [*_TRIFLES, *_kafka_frames(rng), *_native_frames(rng)]
            for _ in range(CONNECTIONS):
                with suppress(OSError):
                    sock = stack.enter_context(socket.create_connection((host, int(port)), 1))
                    made += 1
                    if rng.random() < 0.5:
                        sock.sendall(rng.choice(_TRIFLES[:2]))
                        continue
                    for frame in rng.choices(frames, k=FRAMES):
                        sock.sendall(frame if rng.random() < 0.7 else frame[: rng.randrange(len(frame) + 1)])
    return made
