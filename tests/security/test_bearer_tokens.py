"""appliance.security.bearer_tokens: only a token that the provider has signed, for us and for now, says who it is."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jws
from joserfc.jwk import ECKey, OctKey, RSAKey

from appliance.errors import BadCredentials, LoginOutOfOrder
from appliance.security.bearer_tokens import (
    ALGORITHMS,
    KEYS_MAX,
    LEEWAY_S,
    OAUTHBEARER,
    TOKEN_BYTES_MAX,
    Bearer,
    BearerTokens,
    InvalidToken,
    parse_keys,
)
from appliance.security.configuration import OAuth
from appliance.security.credentials import Credentials
from appliance.security.login_exchange import Exchange, LoginState

NOW_S = 1_800_000_000
RSA, OTHER, EC = RSAKey.generate_key(2048), RSAKey.generate_key(2048), ECKey.generate_key("P-256")
RULES = OAuth("/keys", "https://id.example", "logs", "write read", "sub")
CLAIMS = {"iss": RULES.issuer, "aud": "logs", "sub": "alice", "exp": NOW_S + 60, "scope": "read other write"}


def jwk(key: RSAKey | ECKey, kid: str | None, **more: Any) -> dict[str, Any]:
    return {**key.as_dict(private=False), **({} if kid is None else {"kid": kid}), **more}


def key_set(*rows: Any) -> bytes:
    return json.dumps({"keys": list(rows)}).encode()


KEYS = parse_keys(key_set(jwk(RSA, "rsa"), jwk(EC, "ec")))


def checker(rules: OAuth = RULES, keys: Any = KEYS) -> BearerTokens:
    return BearerTokens(rules, lambda: keys, lambda: float(NOW_S))


def signed(claims: Any = CLAIMS, kid: str | None = "rsa", key: Any = RSA, algorithm: str = "RS256", **more: Any) -> str:
    header = {"alg": algorithm, **({} if kid is None else {"kid": kid}), **more}
    return jws.serialize_compact(header, json.dumps(claims).encode(), key, algorithms=[algorithm])


def message(token: str, identity: str = "") -> bytes:
    return f"n,{identity},\x01auth=Bearer {token}\x01\x01".encode()


def part(value: Any) -> str:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def refused(given: bytes, tokens: BearerTokens | None = None) -> InvalidToken:
    with pytest.raises(InvalidToken) as caught:
        (tokens or checker()).check(given)
    assert isinstance(json.loads(caught.value.answer)["status"], str)
    return caught.value


def test_a_good_token_says_who_and_until_when() -> None:
    assert checker().check(message(signed())) == Bearer("alice", NOW_S + 60)
    assert checker().check(message(signed(), "a=alice")) == Bearer("alice", NOW_S + 60)
    assert checker().check(b"n,,\x01auth=bearer " + signed().encode() + b"\x01traceId=1\x01\x01").user == "alice"
    assert checker().check(message(signed(kid="ec", key=EC, algorithm="ES256"))).user == "alice"
    assert checker().check(message(signed({**CLAIMS, "aud": ["other", "logs"]}))).user == "alice"
    assert checker().check(message(signed({**CLAIMS, "scope": None, "scp": ["read", "write"]}))).user == "alice"
    assert checker().check(message(signed({**CLAIMS, "nbf": NOW_S + LEEWAY_S}))).user == "alice"
    named = OAuth("/keys", RULES.issuer, "logs", "", "preferred_username")
    assert checker(named).check(message(signed({**CLAIMS, "preferred_username": "ä b"}))).user == "ä b"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_algorithm_is_checked(algorithm: str) -> None:
    curve = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}.get(algorithm)
    key, other = (ECKey.generate_key(curve), ECKey.generate_key(curve)) if curve else (RSA, OTHER)
    tokens = checker(keys=parse_keys(key_set(jwk(key, "k"))))
    assert tokens.check(message(signed(kid="k", key=key, algorithm=algorithm))).user == "alice"
    assert "signature" in str(refused(message(signed(kid="k", key=other, algorithm=algorithm)), tokens))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"exp": NOW_S}, "expired"),
        ({"exp": 0}, "expired"),
        ({"exp": None}, "no end"),
        ({"exp": "2100-01-01"}, "no end"),
        ({"exp": True}, "no end"),
        ({"exp": -1}, "no end"),
        ({"exp": 10**400}, "no end"),
        ({"exp": float("nan")}, "signature"),
        ({"nbf": 10**400}, "not valid yet"),
        ({"iat": 10**400}, "not valid yet"),
        ({"nbf": NOW_S + LEEWAY_S + 1}, "not valid yet"),
        ({"iat": NOW_S + 3600}, "not valid yet"),
        ({"nbf": "soon"}, "not valid yet"),
        ({"iss": "https://id.example/"}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"aud": "log"}, "another audience"),
        ({"aud": ["other"]}, "another audience"),
        ({"aud": {"logs": 1}}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"scope": "read"}, "lacks the scope read write"),
        ({"scope": None}, "lacks the scope"),
        ({"scope": [["read"], 7]}, "lacks the scope"),
        ({"sub": None}, "no text in the claim sub"),
        ({"sub": 7}, "no text"),
        ({"sub": ""}, "no name of a user"),
        ({"sub": "a\nb"}, "no name of a user"),
        ({"sub": "x" * 300}, "no name of a user"),
    ],
    ids=str,
)
def test_what_is_wrong_in_a_token_refuses_it(change: dict[str, Any], why: str) -> None:
    kept = {name: value for name, value in {**CLAIMS, **change}.items() if value is not None}
    error = refused(message(signed(kept)))
    assert why in str(error)
    answer = json.loads(error.answer)
    if "scope" in why:
        assert answer == {"status": "insufficient_scope", "scope": "read write"}
    else:
        assert answer == {"status": "invalid_token"}


def public_pem() -> bytes:
    return RSA.as_pem(private=False)


def forged_with(secret: bytes, algorithm: str = "HS256") -> str:
    """A token whose MAC is made with something that everybody knows."""
    text = f"{part({'alg': algorithm, 'kid': 'rsa'})}.{part(CLAIMS)}"
    return f"{text}.{part(hmac.digest(secret, text.encode(), hashlib.sha256))}"


def with_part(number: int, value: Any) -> str:
    """A good token, of which one part is another."""
    parts = signed().split(".")
    parts[number] = part(value)
    return ".".join(parts)


HOSTILE: dict[str, Callable[[], str]] = {
    "alg none": lambda: f"{part({'alg': 'none', 'kid': 'rsa'})}.{part(CLAIMS)}.",
    "alg none with a signature": lambda: f"{part({'alg': 'none', 'kid': 'rsa'})}.{part(CLAIMS)}.{part(b'x')}",
    "alg None": lambda: f"{part({'alg': 'None', 'kid': 'rsa'})}.{part(CLAIMS)}.{part(b'x')}",
    "HS256 with the public key": lambda: forged_with(public_pem()),
    "HS256 with the key set": lambda: forged_with(key_set(jwk(RSA, "rsa"))),
    "RS256 in name, a MAC in truth": lambda: forged_with(public_pem(), "RS256"),
    "another key": lambda: signed(key=OTHER),
    "another key of the set": lambda: signed(kid="ec", key=RSA),
    "unknown kid": lambda: signed(kid="none"),
    "kid of a wrong type": lambda: f"{part({'alg': 'RS256', 'kid': ['rsa']})}.{part(CLAIMS)}.{part(b'x')}",
    "no kid, two keys": lambda: signed(kid=None),
    "its own key in the header": lambda: signed(kid=None, key=OTHER, jwk=jwk(OTHER, "mine")),
    "a URL of its own": lambda: signed(key=OTHER, jku="https://evil.example/jwks"),
    "another payload": lambda: with_part(1, {**CLAIMS, "sub": "root"}),
    "another header": lambda: with_part(0, {"alg": "RS256", "kid": "rsa", "x": 1}),
    "crit": lambda: f"{part({'alg': 'RS256', 'kid': 'rsa', 'crit': ['exp']})}.{part(CLAIMS)}.{part(b'x')}",
    "a list for claims": lambda: signed([CLAIMS]),
    "an ECDSA signature of zeros": lambda: f"{part({'alg': 'ES256', 'kid': 'ec'})}.{part(CLAIMS)}.{part(bytes(64))}",
    "no signature": lambda: signed().rpartition(".")[0],
    "five parts": lambda: f"{signed()}.a.b",
    "padding": lambda: signed() + "=",
    "deep": lambda: f"{part(b'[' * 5000)}.{part(CLAIMS)}.{part(b'x')}",
    "deep claims": lambda: jws.serialize_compact(
        {"alg": "RS256", "kid": "rsa"}, b'{"a":' * 3000, RSA, algorithms=["RS256"]
    ),
    "huge": lambda: signed({**CLAIMS, "x": "y" * TOKEN_BYTES_MAX}),
    "empty": lambda: "",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_forged_token_is_refused(name: str) -> None:
    error = refused(message(HOSTILE[name]()))
    assert "eyJ" not in str(error), "no part of a token is in an error"


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"\x01",
        b"n,,\x01auth=Basic eDp5\x01\x01",
        b"n,,\x01auth=\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer a.b.c\x01\x01",
        b"n,,auth=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01",
        b"\xff" * 100,
    ],
)
def test_what_is_no_message_is_refused(given: bytes) -> None:
    refused(given)
    assert not checker().lacks_key(given)


def test_nobody_logs_in_as_another_than_the_token_says() -> None:
    assert "another user" in str(refused(message(signed(), "a=root")))


@given(st.binary(max_size=200), st.integers(0, 800))
def test_no_byte_of_a_token_can_be_another(noise: bytes, at: int) -> None:
    whole = message(signed())
    changed = whole[:at] + noise + whole[at + len(noise) :]
    try:
        assert checker().check(changed).user == "alice" and changed.strip() != b""
        assert signed().encode() in changed, "the token itself is whole"
    except InvalidToken:
        assert changed != whole


def test_only_keys_that_can_sign_tokens_are_taken() -> None:
    weak = {"kty": "RSA", "n": part(((1 << 1023) + 1).to_bytes(128)), "e": "AQAB", "kid": "weak"}
    rows = [
        OctKey.generate_key(256).as_dict(private=True) | {"kid": "oct"},
        weak,
        jwk(OTHER, "encryption", use="enc"),
        {"kty": "RSA", "kid": "empty"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "no point"},
        {"kty": "unknown"},
        "no key",
        jwk(RSA, "good"),
        jwk(EC, None),
    ]
    found = parse_keys(key_set(*rows))
    assert "good" in found and len(found) == 2
    private = parse_keys(json.dumps({"keys": [RSA.as_dict(private=True) | {"kid": "p"}]}).encode())
    assert not private["p"].is_private, "what should not be there is not kept"
    for text in (b"", b"{}", b"[]", b'{"keys": 5}', b'{"keys": []}', b"\xff", key_set(*rows[:6]), b"[" * 100_000):
        with pytest.raises(ValueError, match=r"[Kk]ey"):
            parse_keys(text)
    with pytest.raises(ValueError, match="more than"):
        parse_keys(key_set(*[jwk(RSA, str(number)) for number in range(KEYS_MAX + 1)]))


def test_one_key_needs_no_name() -> None:
    tokens = checker(keys=parse_keys(key_set(jwk(RSA, None))))
    assert tokens.check(message(signed(kid=None))).user == "alice"
    assert not tokens.lacks_key(message(signed(kid=None)))
    assert tokens.lacks_key(message(signed(kid="new"))) and checker(keys={}).lacks_key(message(signed(kid=None)))


def test_the_exchange_says_why_in_two_steps() -> None:
    """RFC 7628, 3.2.3: the JSON first, then the refusal; nothing is answered after it."""
    exchange = Exchange([OAUTHBEARER], Credentials({}, b""), tokens=checker())
    exchange.choose(OAUTHBEARER)
    assert exchange.respond(message(signed({**CLAIMS, "exp": 1}))) == b'{"status":"invalid_token"}'
    assert exchange.state is LoginState.REFUSED and exchange.user == ""
    with pytest.raises(BadCredentials, match="expired"):
        exchange.respond(b"\x01")
    with pytest.raises(LoginOutOfOrder):
        exchange.respond(message(signed()))
    again = Exchange([OAUTHBEARER], Credentials({}, b""), tokens=checker())
    again.choose(OAUTHBEARER)
    again.respond(message(signed(key=OTHER)))
    with pytest.raises(BadCredentials):
        again.respond(message(signed()))
    good = Exchange([OAUTHBEARER], Credentials({}, b""), tokens=checker())
    good.choose(OAUTHBEARER)
    assert good.respond(message(signed())) == b"" and good.state is LoginState.DONE
    assert (good.principal, good.expires_s) == ("User:alice", NOW_S + 60)
