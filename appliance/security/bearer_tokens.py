"""Checks the tokens of SASL/OAUTHBEARER (RFC 7628): JSON Web Tokens (RFC 7519) that an identity provider has signed.

The client's message is ``n,,\\x01auth=Bearer TOKEN\\x01\\x01``; extensions of Kafka's clients in it mean nothing here.
A token is good when all of this holds::

    signature   by a key of the provider that the token's ``kid`` names, with an algorithm of ALGORITHMS; without a
                ``kid`` by its only key.  All of them are asymmetric: nobody who knows a public key can sign
    iss         is ``oauth.issuer``
    aud         is or has ``oauth.audience``
    exp         lies ahead: it also ends the session (KIP-368)
    nbf, iat    do not lie ahead, by more than LEEWAY_S
    scope, scp  has each word of ``oauth.scope``
    the claim   that ``oauth.claim`` names is a name that a user may have: the principal is ``User:`` and that name

What fails is answered with the JSON of RFC 7628, 3.2.2: ``{"status": "invalid_token"}`` or ``insufficient_scope``, with
the scope that is needed.  The client then sends one byte, 0x01, and gets the refusal with the reason in words.  Tokens
are neither logged nor part of an error.

Bounds: TOKEN_BYTES_MAX of a token, KEYS_MAX keys.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from ..errors import BadCredentials, InvalidRequest
from .user_changes import check_login

if TYPE_CHECKING:
    from joserfc.jwk import Key

    from .configuration import OAuth

OAUTHBEARER: Final = "OAUTHBEARER"
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
TOKEN_BYTES_MAX: Final = 16 * 1024
KEYS_MAX: Final = 100
RSA_BITS_MIN: Final = 2048
LEEWAY_S: Final = 30
"""By how much the clocks of provider and appliance may differ."""
TIME_S_MAX: Final = 2**53
"""Bound of a time in a token: JSON has integers that no float can hold, and infinite floats."""
GIVEN_UP: Final = b"\x01"
_MESSAGE: Final = re.compile(rb"[ny],(?:a=([^,\x01]{0,1000}))?,\x01([^\x00]*)\x01\x01", re.DOTALL)
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")

Keys = Mapping[str, "Key"]
"""The public keys of a provider by their ``kid``."""


class InvalidToken(BadCredentials):
    """A token is not good; ``answer`` is the JSON that the client gets first."""

    def __init__(self, message: str, answer: bytes = b'{"status":"invalid_token"}') -> None:
        super().__init__(message)
        self.answer = answer


class Bearer(NamedTuple):
    """Who a token is about, and when it ends, in seconds since 1970."""

    user: str
    expires_s: float


def parse_keys(text: bytes) -> Keys:
    """The keys of a JSON Web Key Set (RFC 7517) that can sign tokens; others in it are left out.

    Raises:
        ValueError: it is none, or has no such key.
    """
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, RSAKey

    try:
        rows = msgspec.json.decode(text)["keys"]
        rows = [row for row in rows if isinstance(row, dict)]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError, KeyError) as error:
        raise ValueError("is no JSON Web Key Set") from error
    if len(rows) > KEYS_MAX:
        raise ValueError(f"has {len(rows)} keys, more than {KEYS_MAX}")
    keys: dict[str, Key] = {}
    for number, row in enumerate(rows):
        public = {name: row[name] for name in ("kty", "n", "e", "crv", "x", "y") if name in row}
        if row.get("use", "sig") != "sig":
            continue
        try:
            if row.get("kty") == "RSA" and _bits(row["n"]) >= RSA_BITS_MIN:
                key: Key = RSAKey.import_key(public)
            elif row.get("kty") == "EC":
                key = ECKey.import_key(public)
            else:
                continue
            _ = key.raw_value  # which is made of the numbers only now
        except (JoseError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
            continue
        keys[str(row.get("kid", f"\0{number}"))] = key
    if not keys:
        raise ValueError("has no public key, RSA of 2048 bits or more or EC, that could have signed a token")
    return keys


def _bits(text: str) -> int:
    """The size of a number in base64url."""
    return int.from_bytes(_decoded(text)).bit_length()


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class BearerTokens:
    """Checks tokens by the rules of the configuration.

    ``keys``: those that are known now; ``wall_s``: seconds since 1970.
    """

    def __init__(self, oauth: OAuth, keys: Callable[[], Keys], wall_s: Callable[[], float]) -> None:
        self._issuer, self._audience, self._claim = oauth.issuer, oauth.audience, oauth.claim
        self._scope = frozenset(oauth.scope.split())
        self._keys, self._wall_s = keys, wall_s

    def lacks_key(self, message: bytes) -> bool:
        """Whether a client's message has a token that names a key which is not known now, or none while none is."""
        try:
            kid = _header(_parts(message)[1]).get("kid")
        except InvalidToken:
            return False
        keys = self._keys()
        return kid not in keys if isinstance(kid, str) else not keys

    def check(self, message: bytes) -> Bearer:
        """Who the client's message is from.

        Raises:
            InvalidToken: see the message.
        """
        identity, token = _parts(message)
        claims = self._verified(token)
        expires_s = self._check_times(claims)
        if claims.get("iss") != self._issuer:
            raise InvalidToken("the token is of another issuer")
        audience = claims.get("aud")
        if self._audience not in (audience if isinstance(audience, list) else [audience]):
            raise InvalidToken("the token is for another audience")
        if not self._scope <= _scopes(claims):
            needed = " ".join(sorted(self._scope))
            answer = {"status": "insufficient_scope", "scope": needed}
            raise InvalidToken(f"the token lacks the scope {needed}", msgspec.json.encode(answer))
        user = claims.get(self._claim)
        if not isinstance(user, str):
            raise InvalidToken(f"the token has no text in the claim {self._claim}")
        try:
            check_login(user)
        except InvalidRequest:
            raise InvalidToken(f"the claim {self._claim} of the token is no name of a user") from None
        if identity not in ("", user):
            raise InvalidToken("the token is of another user than the one named beside it")
        return Bearer(user, expires_s)

    def _verified(self, token: str) -> Mapping[str, Any]:
        """The claims of a token whose signature is right."""
        from joserfc import jws
        from joserfc.errors import JoseError

        header = _header(token)
        if header.get("alg") not in ALGORITHMS:
            raise InvalidToken("the token is not signed with an algorithm that is accepted")
        try:
            signed = jws.deserialize_compact(token, self._key(header), algorithms=list(ALGORITHMS))
            claims = msgspec.json.decode(signed.payload)
        except (JoseError, ValueError, TypeError, RecursionError):
            raise InvalidToken("the signature of the token is wrong") from None
        if not isinstance(claims, dict):
            raise InvalidToken("the token has no claims")
        return claims

    def _key(self, header: Mapping[str, Any]) -> Key:
        keys, kid = self._keys(), header.get("kid")
        if kid is None and len(keys) == 1:
            return next(iter(keys.values()))
        if not isinstance(kid, str) or kid not in keys:
            raise InvalidToken("the token is signed with a key that is not known")
        return keys[kid]

    def _check_times(self, claims: Mapping[str, Any]) -> float:
        """When the token ends.  Raises InvalidToken: it is not valid now."""
        now_s = self._wall_s()
        expires_s = claims.get("exp", -1)
        if not _is_time(expires_s):
            raise InvalidToken("the token has no end")
        if expires_s <= now_s:
            raise InvalidToken("the token has expired")
        for name in ("nbf", "iat"):
            since_s = claims.get(name, 0)
            if not _is_time(since_s) or since_s > now_s + LEEWAY_S:
                raise InvalidToken("the token is not valid yet")
        return float(expires_s)


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= TIME_S_MAX


def _scopes(claims: Mapping[str, Any]) -> set[str]:
    scopes: set[str] = set()
    for name in ("scope", "scp"):
        value = claims.get(name, "")
        rows = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
        scopes |= {scope for scope in rows if isinstance(scope, str)}
    return scopes


def _parts(message: bytes) -> tuple[str, str]:
    """The identity that a client's message names, "" for none, and its token.

    Raises:
        InvalidToken: it is no such message, or too long.
    """
    if len(message) > TOKEN_BYTES_MAX:
        raise InvalidToken(f"the token has more than {TOKEN_BYTES_MAX} bytes")
    message_match = _MESSAGE.fullmatch(message)
    if message_match is None:
        raise InvalidToken("not a message of OAUTHBEARER")
    pairs = dict(pair.partition(b"=")[::2] for pair in message_match[2].split(b"\x01"))
    scheme, _, token = pairs.get(b"auth", b"").decode("latin-1").partition(" ")
    if scheme.lower() != "bearer" or not _TOKEN.fullmatch(token.strip(" ")):
        raise InvalidToken("the message has no token that is signed")
    identity = (message_match[1] or b"").decode("utf-8", "replace").replace("=2C", ",").replace("=3D", "=")
    return identity, token.strip(" ")


def _header(token: str) -> Mapping[str, Any]:
    """The header of a token, which nobody has proved yet."""
    text = token.partition(".")[0]
    try:
        header = msgspec.json.decode(_decoded(text))
    except (ValueError, RecursionError):
        raise InvalidToken("the token has no header") from None
    if not isinstance(header, dict):
        raise InvalidToken("the token has no header")
    return header
