"""What a client may send before it is logged in: SASL in every wrong way, in both protocols' frames and without any.

Kafka's exchange is ApiVersions, SaslHandshake with a mechanism, then SaslAuthenticate with the mechanism's messages
(KIP-43, KIP-152).  Here each of these comes in any order, repeated, too large, cut and mutated, with messages of PLAIN
(RFC 4616) and SCRAM (RFC 5802) that are nearly right.
"""

from __future__ import annotations

import base64
import struct
from random import Random

from appliance.security.login_exchange import BROKER_LOGIN
from appliance.wire import native

from .kafka_frames import ODD_NAMES, kafka_frame
from .native_frames import native_frame

API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36
MECHANISMS = (
    "PLAIN",
    "SCRAM-SHA-256",
    "SCRAM-SHA-512",
    "SCRAM-SHA-1",
    "GSSAPI",
    "OAUTHBEARER",
    "plain",
    "",
    "x" * 32_767,
)
USERS = ["alice", "nobody", "", "a=2Cb", "=", ",", "a,b", "\0", "\ud7ff", "u" * 249, "u" * 100_000, *ODD_NAMES]
NONCES = ("fyko+d2lbbFgONRv9qkxdawL", "", ",", "\0", "n" * 50_000, "ü")
NUMBERS = ("4096", "0", "-1", "1", str(2**31), "9" * 5_000, "x", "")


def login_frame(rng: Random) -> bytes:
    """One frame of the Kafka listener, or something that only looks like one."""
    match rng.randrange(12):
        case 0:
            return _request(rng, API_VERSIONS, rng.choice((0, 2, 99)), b"")
        case 1 | 2 | 3:
            name = rng.choice(MECHANISMS).encode()
            return _request(rng, SASL_HANDSHAKE, rng.choice((0, 1, 1, 2)), struct.pack(">h", len(name)) + name)
        case 4:
            return kafka_frame(rng)
        case 5:  # version 0 of the handshake: messages without a request around them
            token = _token(rng)
            return struct.pack(">i", len(token)) + token
        case 6:
            return rng.randbytes(rng.choice((1, 3, 50, 5_000)))
        case _:
            token = _token(rng)
            version = rng.choice((0, 1, 1, 1, 2, 3))
            body = struct.pack(">i", rng.choice((len(token),) * 9 + (-1, 2**31 - 1, len(token) + 1))) + token
            if version >= 2:
                body = b"\0" + _varint(len(token) + 1) + token + b"\0"
            return _request(rng, SASL_AUTHENTICATE, version, body)


def native_login_frame(rng: Random) -> bytes:
    """One request of the native listener before a login: a message of one, or any other."""
    if rng.random() < 0.15:
        return native_frame(rng)
    mechanism = rng.choice((None, BROKER_LOGIN, *MECHANISMS))
    frame = bytearray(native.encode_frame([native.LOGIN, rng.randrange(2**32), mechanism, _token(rng)]))
    if rng.random() < 0.1:
        frame[rng.randrange(min(len(frame), 40))] = rng.randrange(256)
    return bytes(frame)


def _request(rng: Random, key: int, version: int, body: bytes) -> bytes:
    client = b"hostile"
    frame = bytearray(struct.pack(">hhih", key, version, rng.randrange(2**31), len(client)) + client + body)
    if rng.random() < 0.1:
        frame[rng.randrange(min(len(frame), 40))] = rng.randrange(256)
    if rng.random() < 0.05:
        del frame[rng.randrange(len(frame)) :]
    return struct.pack(">i", len(frame)) + frame


def _token(rng: Random) -> bytes:
    user, nonce = rng.choice(USERS), rng.choice(NONCES)
    proof = base64.b64encode(rng.randbytes(rng.choice((0, 20, 32, 64, 10_000)))).decode()
    flag = rng.choice(("n", "n", "n", "y", "p=tls-unique", "z", ""))
    text = rng.choice(
        (
            f"{rng.choice(('', user))}\0{user}\0{rng.choice(USERS)}",
            f"\0{user}",
            f"{flag},{rng.choice(('', '', 'a=' + user))},n={user},r={nonce}",
            f"{flag},,n={user},r={nonce},tokenauth=true",
            f"{flag},,m=ext,n={user},r={nonce}",
            f"{flag},,r={nonce},n={user}",
            f"c=biws,r={nonce}server,p={proof}",
            f"c={proof},r={nonce},p={rng.choice(('!', proof, ''))}",
            f"r={nonce},s={proof},i={rng.choice(NUMBERS)}",
            "n,,", ",", "", "=" * rng.choice((1, 60_000)),
        )
    )  # fmt: skip
    token = bytearray(text.encode("utf-8", "surrogatepass"))
    if token and rng.random() < 0.3:
        token[rng.randrange(len(token))] = rng.randrange(256)
    return bytes(token)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
