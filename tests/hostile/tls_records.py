"""Records of TLS that no handshake can begin or go on with, and what is no TLS at all.

A real ClientHello, as OpenSSL makes it, is cut, mutated and announced with another length; alerts, heartbeats,
messages of later steps and plain requests come in its place.
"""

from __future__ import annotations

import ssl
import struct
from functools import cache
from random import Random

from .kafka_frames import kafka_frame

CHANGE_CIPHER_SPEC, ALERT, HANDSHAKE, APPLICATION_DATA, HEARTBEAT = 20, 21, 22, 23, 24
TYPES = (CHANGE_CIPHER_SPEC, ALERT, HANDSHAKE, APPLICATION_DATA, HEARTBEAT, 0, 255)
VERSIONS = (0x0301, 0x0303, 0x0303, 0x0300, 0x0304, 0x0002, 0xFFFF)
RECORD_BYTES_MAX = 1 << 14


@cache
def client_hello(versions: str) -> bytes:
    """The first flight of a client; ``versions``: "1.2" or "1.3", the newest that it speaks."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.maximum_version = ssl.TLSVersion.TLSv1_2 if versions == "1.2" else ssl.TLSVersion.TLSv1_3
    sent = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return sent.read()


def tls_record(rng: Random) -> bytes:
    """Some bytes for a TLS listener."""
    hello = bytearray(client_hello(rng.choice(("1.2", "1.3"))))
    match rng.randrange(10):
        case 0:
            return bytes(hello)
        case 1 | 2 | 3:
            for _ in range(rng.choice((1, 1, 2, 20))):
                hello[rng.randrange(len(hello))] = rng.randrange(256)
            return bytes(hello)
        case 4:
            return bytes(hello[: rng.randrange(len(hello))])
        case 5:  # a message of a handshake in many records, which is allowed, or announced as huge
            body = hello[5:]
            if rng.random() < 0.5:
                body[1:4] = rng.choice((2**24 - 1, 2**17, 0, 1)).to_bytes(3, "big")
            step = rng.choice((1, 7, 100))
            pieces = [body[at : at + step] for at in range(0, len(body), step)]
            return b"".join(_record(HANDSHAKE, 0x0301, bytes(piece)) for piece in pieces)
        case 6:
            return _record(ALERT, 0x0303, bytes([rng.choice((1, 2, 3)), rng.randrange(256)])) * rng.choice((1, 1, 500))
        case 7:
            return kafka_frame(rng)
        case 8:
            return rng.choice((b"GET / HTTP/1.1\r\n\r\n", b"\x80\x2e\x01\0\x02", b"\x16\x03", b"SSH-2.0-x\r\n"))
        case _:
            size = rng.choice((0, 1, 100, RECORD_BYTES_MAX, RECORD_BYTES_MAX + 300))
            return _record(rng.choice(TYPES), rng.choice(VERSIONS), rng.randbytes(size)) * rng.choice((1, 1, 30))


def _record(kind: int, version: int, body: bytes) -> bytes:
    return struct.pack(">BHH", kind, version, len(body)) + body
