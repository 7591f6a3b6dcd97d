"""appliance.security.scram: the examples of the RFCs, and no message that is not exactly right gets through."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import BadCredentials, ProtocolFault
from appliance.security.scram import (
    MECHANISMS,
    ScramClient,
    ScramServer,
    Verifier,
    decode_verifier,
    encode_verifier,
    make_verifier,
)

NONCE = "rOprNGfwEbeRWgbNEkqO"
EXAMPLES = {  # RFC 7677, section 3, and the same with SHA-512 as computed by PostgreSQL's and Kafka's formula
    "SCRAM-SHA-256": (
        b"dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
}
USERS = {
    mechanism: {
        "user": make_verifier(mechanism, b"pencil", 4096, base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")),
        "a,b=c": make_verifier(mechanism, "Schlüssel".encode(), 4096),
    }
    for mechanism in MECHANISMS
}
DECOY = make_verifier("SCRAM-SHA-256", b"nobody's", 4096)


def server(mechanism: str = "SCRAM-SHA-256", nonce: str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0") -> ScramServer:
    def find(user: str) -> tuple[Verifier, bool]:
        found = USERS[mechanism].get(user)
        return (found, True) if found else (DECOY, False)

    return ScramServer(mechanism, find, lambda: nonce)


@pytest.mark.parametrize("mechanism", EXAMPLES)
def test_the_example_of_the_rfc(mechanism: str) -> None:
    proof, signature = EXAMPLES[mechanism]
    ours = server(mechanism)
    client = ScramClient(mechanism, "user", b"pencil", lambda: NONCE)
    first = client.first()
    assert first == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    answer = ours.first(first)
    assert answer == (b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    final = client.final(answer)
    assert final == b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=" + proof
    last = ours.final(final)
    assert last == signature
    client.check_last_message(last)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("user", "password"), [("user", b"pencil"), ("a,b=c", "Schlüssel".encode())])
def test_the_right_password_gets_in_and_no_other(mechanism: str, user: str, password: bytes) -> None:
    for given_password, right in ((password, True), (password + b"x", False), (b"", False)):
        ours, client = server(mechanism), ScramClient(mechanism, user, given_password)
        final = client.final(ours.first(client.first()))
        if right:
            client.check_last_message(ours.final(final))
            assert ours.user == user
        else:
            with pytest.raises(BadCredentials):
                ours.final(final)


def test_an_unknown_user_is_refused_even_with_the_password_of_the_decoy() -> None:
    ours, client = server(), ScramClient("SCRAM-SHA-256", "mallory", b"nobody's")
    final = client.final(ours.first(client.first()))
    with pytest.raises(BadCredentials, match="wrong password or unknown user"):
        ours.final(final)


@given(st.data())
def test_no_other_message_gets_in(data: st.DataObject) -> None:
    """Method: the right messages with one byte changed, lost, or put in."""
    ours, client = server(), ScramClient("SCRAM-SHA-256", "user", b"pencil", lambda: NONCE)
    first = mutated(data, client.first()) if data.draw(st.booleans()) else client.first()
    try:
        answer = ours.first(first)
        final = client.final(answer)
        wrong = mutated(data, final)
    except (BadCredentials, ProtocolFault):
        return
    if first == client.first() and wrong == final:
        return
    with pytest.raises(BadCredentials):
        ours.final(wrong)


def mutated(data: st.DataObject, message: bytes) -> bytes:
    at = data.draw(st.integers(0, len(message) - 1))
    put, lost = data.draw(st.binary(max_size=2)), data.draw(st.integers(0, 2))
    return message[:at] + put + message[at + lost :]


@given(st.binary(max_size=80))
def test_any_bytes_are_refused(message: bytes) -> None:
    with pytest.raises(BadCredentials):
        server().first(b"p=tls-unique,," + message)
    ours = server()
    ours.first(b"n,,n=user,r=" + NONCE.encode())
    with pytest.raises(BadCredentials):
        ours.final(message)


@pytest.mark.parametrize(
    "first",
    [
        b"p=tls-unique,,n=user,r=abc",
        b"n,a=other,n=user,r=abc",
        b"n,,m=x,n=user,r=abc",
        b"n,,n=user,r=abc,tokenauth=true",
        b"n,,n=us=er,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=user,r=",
        b"n,,r=abc,n=user",
        b"n,,n=" + b"u" * 300 + b",r=abc",
        b"n,,n=user,r=" + b"a" * 513,
        b"n,,n=user,r=" + b"a" * 5000,
        b"n,,n=user,r=a c",
        b"n,,n=user,r=abc\n",
        b"n,,n=user,r=abc\x7f",
        "n,,n=user,r=abç".encode(),
    ],
)
def test_what_is_not_supported_is_refused(first: bytes) -> None:
    with pytest.raises(BadCredentials):
        server().first(first)


@pytest.mark.parametrize("nonce", ["!", "~" * 512, "a=b"])
def test_a_nonce_is_any_printable_text(nonce: str) -> None:
    assert server().first(f"n,,n=user,r={nonce}".encode()).startswith(f"r={nonce}%".encode())


@pytest.mark.parametrize(
    "answer",
    [
        b"r=other,s=QQ==,i=4096",
        b"r=rOprNGfwEbeRWgbNEkqO,s=QQ==,i=4096",  # no nonce of the server
        b"r=rOprNGfwEbeRWgbNEkqOx,s=QQ==,i=1",
        b"r=rOprNGfwEbeRWgbNEkqOx,s=QQ==,i=99999999",
        b"e=other-error",
        b"\xff",
    ],
)
def test_the_client_refuses_a_server_that_cheats(answer: bytes) -> None:
    client = ScramClient("SCRAM-SHA-256", "user", b"pencil", lambda: NONCE)
    with pytest.raises(ProtocolFault):
        client.final(answer)


def test_the_client_checks_that_the_server_knows_the_user() -> None:
    ours, client = server(), ScramClient("SCRAM-SHA-256", "user", b"pencil")
    ours.final(client.final(ours.first(client.first())))
    with pytest.raises(ProtocolFault):
        client.check_last_message(b"v=" + base64.b64encode(bytes(32)))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_verifier_is_kept_as_text_and_never_shown(mechanism: str) -> None:
    verifier = USERS[mechanism]["user"]
    text = encode_verifier(verifier)
    assert decode_verifier(mechanism, text) == verifier
    assert text.startswith("salt=W22ZaJ0SNY7soEsUEjb6gQ==,stored_key=") and text.endswith(",iterations=4096")
    assert "W22Za" not in repr(verifier) and str(verifier) == "<Verifier, 4096 iterations>"
    for wrong in (text[:-4] + "1", text.replace("salt=", "salz="), text + ",x", "", text.replace("salt=W", "salt=")):
        with pytest.raises(ValueError) as raised:
            decode_verifier(mechanism, wrong)
        assert "W22Z" not in str(raised.value)
