"""SCRAM-SHA-256 and SCRAM-SHA-512: verifiers, and the exchange from both sides.  Bytes in, bytes out.

The messages (RFC 5802, RFC 7677), c from the client, s from the server::

    c  n,,n=<user>,r=<client nonce>
    s  r=<client nonce><server nonce>,s=<salt>,i=<iterations>
    c  c=biws,r=<both nonces>,p=<proof>
    s  v=<server signature>

A server keeps a :class:`Verifier` for each user and mechanism, never a password.  Whoever reads a verifier cannot log
in with it, but can guess passwords against it, and can act as the server.  Not supported, and refused: channel binding
(``p=``), extensions, another identity than the user's own.  Names are compared as they come, without SASLprep, as in
Kafka.

Bounds: MESSAGE_BYTES_MAX a message, ITERATIONS_MAX iterations.  Verifying a proof takes a few microseconds: only who
has the password, not the verifier, runs all iterations.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from ..errors import BadCredentials, InvalidRequest, ProtocolFault
from .principals import USER_CHARACTERS_MAX

MECHANISMS: Final[Mapping[str, str]] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The hash function of each mechanism."""
ITERATIONS_MIN: Final = 4096
ITERATIONS_DEFAULT: Final = 16384
ITERATIONS_MAX: Final = 16384
"""As Kafka's: what a client, and a server for PLAIN, has to compute."""
ITERATIONS_OF_SERVERS_MAX: Final = 1_000_000
"""Most iterations that a server may ask of our client."""
MESSAGE_BYTES_MAX: Final = 4096
SALT_BYTES: Final = 24
NONCE_BYTES: Final = 24
PASSWORD_BYTES_MAX: Final = 1024
PASSWORD_CHARACTERS_MIN: Final = 8
"""As PostgreSQL's passwordcheck: what one computer tries in a day has fewer."""
_NONCE: Final = re.compile("[!-~]{1,512}")
"""Printable characters of ASCII; a comma would end it."""


class Verifier(Struct, frozen=True):
    """What a server needs to check a password, without the password.  Its text shows none of it."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return f"<Verifier, {self.iterations} iterations>"


def salted_password(mechanism: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    """PBKDF2: about 0.4 us an iteration, without Python's lock."""
    return hashlib.pbkdf2_hmac(MECHANISMS[mechanism], password, salt, iterations)


def verifier_of(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> Verifier:
    """The verifier that belongs to a salted password, which Kafka's tools compute themselves."""
    name = MECHANISMS[mechanism]
    stored_key = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
    return Verifier(salt, iterations, stored_key, hmac.digest(salted, b"Server Key", name))


def make_verifier(
    mechanism: str, password: bytes, iterations: int = ITERATIONS_DEFAULT, salt: bytes | None = None
) -> Verifier:
    """Make the verifier of a new password; ``salt``: only for tests."""
    salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
    return verifier_of(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)


def is_password(mechanism: str, password: bytes, verifier: Verifier) -> bool:
    """Whether a password belongs to a verifier: as slow as PBKDF2 with its iterations."""
    salted = salted_password(mechanism, password, verifier.salt, verifier.iterations)
    derived = verifier_of(mechanism, salted, verifier.salt, verifier.iterations)
    return hmac.compare_digest(derived.stored_key, verifier.stored_key)


def make_nonce() -> str:
    return base64.b64encode(secrets.token_bytes(NONCE_BYTES)).decode()


def _fields(message: bytes) -> dict[str, str]:
    """The attributes of a message: their order is checked by whoever knows it.

    Raises:
        ValueError: not a message of SCRAM.
    """
    if len(message) > MESSAGE_BYTES_MAX:
        raise ValueError("too long")
    fields: dict[str, str] = {}
    for part in message.decode().split(","):
        if part[1:2] != "=" or not part[0].isalpha() or part[0] in fields:
            raise ValueError("not an attribute")
        fields[part[0]] = part[2:]
    return fields


def _decode_base64(text: str) -> bytes:
    return binascii.a2b_base64(text, strict_mode=True)


def _encode_name(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _decode_name(text: str) -> str:
    if text.count("=") != text.count("=2C") + text.count("=3D"):
        raise ValueError("= in a name")
    return text.replace("=2C", ",").replace("=3D", "=")


class ScramServer:
    """The server's side of one exchange: :meth:`first`, then :meth:`final`.

    ``find`` returns the verifier of a user: a decoy for an unknown one, whom :meth:`final` refuses after the same work.
    ``verifier`` is set by the first message.
    """

    def __init__(
        self, mechanism: str, find: Callable[[str], tuple[Verifier, bool]], nonce: Callable[[], str] = make_nonce
    ) -> None:
        self.user = ""
        self._hash = MECHANISMS[mechanism]
        self._find, self._make_nonce = find, nonce

    def first(self, message: bytes) -> bytes:
        """The answer to the client's first message.

        Raises:
            BadCredentials: not a message of SCRAM.
        """
        try:
            binding, identity, bare = message.decode().split(",", 2)
            fields = _fields(bare.encode())
            if binding not in ("n", "y") or list(fields)[:2] != ["n", "r"]:
                raise ValueError("channel binding, or no name and nonce")
            self.user = _decode_name(fields["n"])
            if (identity and _decode_name(identity.removeprefix("a=")) != self.user) or set(fields) - {"n", "r"}:
                raise ValueError("another identity, or an extension")
            if not 0 < len(self.user) <= USER_CHARACTERS_MAX or not _NONCE.fullmatch(fields["r"]):
                raise ValueError("a name or nonce of the wrong length")
        except (ValueError, KeyError):
            raise BadCredentials("not a first message of SCRAM") from None
        self.verifier, self._known = self._find(self.user)
        self._binding = base64.b64encode(f"{binding},{identity},".encode()).decode()
        self._nonce = fields["r"] + self._make_nonce()
        salt = base64.b64encode(self.verifier.salt).decode()
        reply = f"r={self._nonce},s={salt},i={self.verifier.iterations}"
        self._said = f"{bare},{reply}"
        return reply.encode()

    def final(self, message: bytes) -> bytes:
        """The answer to the client's second message, with which the client is logged in.

        Raises:
            BadCredentials: wrong password, unknown user, or not a message of SCRAM.
        """
        try:
            fields = _fields(message)
            proof = _decode_base64(fields["p"])
            fits = list(fields) == ["c", "r", "p"] and fields["c"] == self._binding
            # librdkafka until November 2024, as in Debian 12, puts its own nonce before it once more.  Kafka accepts
            # that: what ends with our nonce of this exchange can be no replay.
            fits = fits and fields["r"].endswith(self._nonce)
        except (ValueError, KeyError):
            raise BadCredentials("not a second message of SCRAM") from None
        if not fits:
            raise BadCredentials("not the second message of this exchange")
        verifier, said = self.verifier, f"{self._said},{message.decode().rpartition(',p=')[0]}".encode()
        signature = hmac.digest(verifier.stored_key, said, self._hash)
        client_key = _xor(proof, signature)
        right = hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), verifier.stored_key)
        reply = b"v=" + base64.b64encode(hmac.digest(verifier.server_key, said, self._hash))
        if not (right and self._known and len(proof) == len(signature)):
            raise BadCredentials("wrong password or unknown user")
        return reply


def _xor(first: bytes, other: bytes) -> bytes:
    """XOR of two byte strings, as long as the shorter one."""
    size = min(len(first), len(other))
    return (int.from_bytes(first[:size]) ^ int.from_bytes(other[:size])).to_bytes(size)


class ScramClient:
    """The client's side of one exchange: :meth:`first`, :meth:`final`, :meth:`check_last_message`."""

    def __init__(self, mechanism: str, user: str, password: bytes, nonce: Callable[[], str] = make_nonce) -> None:
        self._mechanism, self._hash = mechanism, MECHANISMS[mechanism]
        self._password = password
        self._nonce = nonce()
        self._bare = f"n={_encode_name(user)},r={self._nonce}"

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, message: bytes) -> bytes:
        """The answer to the server's first message.

        Raises:
            ProtocolFault: not a message of SCRAM, or one that asks for too few or too many iterations.
        """
        try:
            fields = _fields(message)
            salt, iterations = _decode_base64(fields["s"]), int(fields["i"])
            fits = list(fields)[:3] == ["r", "s", "i"] and fields["r"].startswith(self._nonce)
            fits = fits and len(fields["r"]) > len(self._nonce)
        except (ValueError, KeyError):
            raise ProtocolFault("the server's first message is not one of SCRAM") from None
        if not fits or not ITERATIONS_MIN <= iterations <= ITERATIONS_OF_SERVERS_MAX:
            raise ProtocolFault(f"the server answers with another nonce, or asks for {iterations} iterations")
        salted = salted_password(self._mechanism, self._password, salt, iterations)
        own = f"c=biws,r={fields['r']}"
        said = f"{self._bare},{message.decode()},{own}".encode()
        client_key = hmac.digest(salted, b"Client Key", self._hash)
        stored_key = hashlib.new(self._hash, client_key).digest()
        proof = _xor(client_key, hmac.digest(stored_key, said, self._hash))
        self._signature = hmac.digest(hmac.digest(salted, b"Server Key", self._hash), said, self._hash)
        return f"{own},p={base64.b64encode(proof).decode()}".encode()

    def check_last_message(self, message: bytes) -> None:
        """Check the server's last message: only who has the verifier can make it.

        Raises:
            ProtocolFault: the server does not know the password's verifier.
        """
        if not hmac.compare_digest(message, b"v=" + base64.b64encode(self._signature)):
            raise ProtocolFault("the server cannot prove that it knows this user: is it the right one?")


def encode_verifier(verifier: Verifier) -> str:
    """As Kafka keeps it: ``salt=...,stored_key=...,server_key=...,iterations=...``."""
    parts = {
        "salt": base64.b64encode(verifier.salt).decode(),
        "stored_key": base64.b64encode(verifier.stored_key).decode(),
        "server_key": base64.b64encode(verifier.server_key).decode(),
        "iterations": verifier.iterations,
    }
    return ",".join(f"{name}={value}" for name, value in parts.items())


def check_password(password: str) -> None:
    """Raises InvalidRequest: the password is short enough to be guessed, or longer than clients may send."""
    if len(password) < PASSWORD_CHARACTERS_MIN:
        raise InvalidRequest(
            f"a password has at least {PASSWORD_CHARACTERS_MIN} characters, this one {len(password)}:"
            " `openssl rand -base64 18` makes a good one"
        )
    if len(password.encode("utf-8", "surrogatepass")) > PASSWORD_BYTES_MAX:
        raise InvalidRequest(f"a password has at most {PASSWORD_BYTES_MAX} bytes")


def encode_verifiers(password: bytes) -> dict[str, str]:
    """New verifiers of a password for all mechanisms, each as :func:`encode_verifier`."""
    return {mechanism: encode_verifier(make_verifier(mechanism, password)) for mechanism in MECHANISMS}


def decode_verifier(mechanism: str, text: str) -> Verifier:
    """Raises ValueError, which does not quote the text."""
    try:
        fields = dict(part.split("=", 1) for part in text.split(","))
        salt, stored_key, server_key = (_decode_base64(fields[name]) for name in ("salt", "stored_key", "server_key"))
        iterations = int(fields["iterations"])
        size = hashlib.new(MECHANISMS[mechanism]).digest_size
        if len(stored_key) != size or len(server_key) != size or not salt:
            raise ValueError("keys of the wrong length")
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise ValueError(f"{iterations} iterations")
    except (ValueError, KeyError):
        raise ValueError(
            f"no verifier of {mechanism} with {ITERATIONS_MIN} to {ITERATIONS_MAX} iterations: set the password again"
        ) from None
    return Verifier(salt, iterations, stored_key, server_key)
