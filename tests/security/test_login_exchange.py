"""appliance.security.login_exchange: whatever the order of messages, only who proves a password is logged in."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from appliance.errors import BadCredentials, LoginFault, LoginOutOfOrder
from appliance.security.credentials import Credentials
from appliance.security.login_exchange import BROKER_LOGIN, PASSWORD_MECHANISMS, PLAIN, Exchange, LoginState, PlainCheck
from appliance.security.scram import MECHANISMS, ScramClient, make_verifier

PASSWORDS = {"alice": b"alice's", "bob": b"bob's"}
USERS = {
    user: {mechanism: make_verifier(mechanism, password, 4096) for mechanism in MECHANISMS}
    for user, password in PASSWORDS.items()
}
CREDENTIALS = Credentials(USERS, b"secret")
NAMES = st.sampled_from(["alice", "bob", "mallory"])
GIVEN = st.sampled_from([b"alice's", b"bob's", b"nobody's"])


class Machine(RuleBasedStateMachine):
    """A client that may be right, wrong or malicious.  ``proven`` is set by the right messages in the right order."""

    def __init__(self) -> None:
        super().__init__()
        self.exchange = Exchange(PASSWORD_MECHANISMS, CREDENTIALS)
        self.client: ScramClient | None = None
        self.answer: bytes | None = None
        self.said = ("", b"")
        self.proven = self.faulty = False

    def send(self, message: bytes) -> Any:
        """The answer; None when it was refused."""
        try:
            answer = self.exchange.respond(message)
        except LoginFault:
            self.faulty = True
            return None
        assert not self.faulty, "nothing is answered after a fault"
        return answer

    @rule(mechanism=st.sampled_from([*PASSWORD_MECHANISMS, "GSSAPI", ""]))
    def choose(self, mechanism: str) -> None:
        fresh = self.exchange.state is LoginState.NEW
        try:
            self.exchange.choose(mechanism)
            assert fresh and mechanism in PASSWORD_MECHANISMS
        except LoginFault as error:
            self.faulty = True
            assert isinstance(error, LoginOutOfOrder) != fresh

    @rule(user=NAMES, password=GIVEN)
    def first(self, user: str, password: bytes) -> None:
        self.client = ScramClient(
            self.exchange.mechanism if self.exchange.mechanism in MECHANISMS else "SCRAM-SHA-256", user, password
        )
        self.said = user, password
        answer = self.send(self.client.first())
        self.answer = answer if isinstance(answer, bytes) else None

    @precondition(lambda self: self.client is not None and self.answer is not None)
    @rule()
    def final(self) -> None:
        assert self.client is not None and self.answer is not None
        final = self.client.final(self.answer)
        waited = self.exchange.state is LoginState.ANSWERED
        answer = self.send(final)
        self.answer = None
        right = waited and PASSWORDS.get(self.said[0]) == self.said[1]
        self.proven = self.proven or right
        assert (answer is not None) == right
        if answer is not None:
            self.client.check_last_message(answer)

    @rule(user=NAMES, password=GIVEN)
    def plain(self, user: str, password: bytes) -> None:
        answer = self.send(b"\0" + user.encode() + b"\0" + password)
        if not isinstance(answer, PlainCheck):
            return
        right = answer.run()
        assert right == (PASSWORDS.get(user) == password) and self.exchange.state is LoginState.CHECKING
        try:
            self.exchange.checked(right)
            self.proven = True
        except LoginFault:
            self.faulty = True

    @rule(message=st.binary(max_size=40))
    def anything(self, message: bytes) -> None:
        answer = self.send(message)
        assert not isinstance(answer, PlainCheck) or not answer.run()
        if isinstance(answer, PlainCheck):
            try:
                self.exchange.checked(False)
            except LoginFault:
                self.faulty = True

    @invariant()
    def only_who_has_proven_is_in(self) -> None:
        if self.exchange.state is LoginState.DONE:
            assert self.proven and self.exchange.user in PASSWORDS and not self.faulty
        if self.faulty:
            assert self.exchange.state is LoginState.FAILED


TestExchange = Machine.TestCase


def test_a_decoy_stays_the_same_and_looks_like_a_real_user() -> None:
    users = {
        "a": {"SCRAM-SHA-256": make_verifier("SCRAM-SHA-256", b"x", 4096)},
        "b": {"SCRAM-SHA-256": make_verifier("SCRAM-SHA-256", b"x", 8192, b"1bbnyqs8ho4pi8qzmnyvknxyz6")},
    }
    one, again, other = Credentials(users, b"1"), Credentials(users, b"1"), Credentials(users, b"2")
    looks = set()
    for number in range(50):
        user = f"nobody{number}"
        decoy, known = one.find("SCRAM-SHA-256", user)
        assert not known and (decoy, known) == again.find("SCRAM-SHA-256", user)
        assert decoy.salt != other.find("SCRAM-SHA-256", user)[0].salt
        looks.add((decoy.iterations, len(decoy.salt), decoy.salt.isalnum()))
        mechanism, _, known = one.find_any(user)
        assert (mechanism, known) == ("SCRAM-SHA-256", False)
    assert looks == {(4096, 24, False), (8192, 26, True)}


def test_a_user_without_a_mechanism_is_unknown_to_it() -> None:
    users = {"a": {"SCRAM-SHA-512": USERS["alice"]["SCRAM-SHA-512"]}}
    credentials = Credentials(users, b"1")
    assert credentials.find("SCRAM-SHA-256", "a")[1] is False
    assert credentials.find_any("a") == ("SCRAM-SHA-512", users["a"]["SCRAM-SHA-512"], True)
    assert Credentials({}, b"1").find_any("a")[2] is False


def test_a_password_is_in_no_text() -> None:
    exchange = Exchange(PASSWORD_MECHANISMS, CREDENTIALS)
    exchange.choose("PLAIN")
    check = exchange.respond(b"\0alice\0alice's")
    assert "alice's" not in f"{check!r} {check} {exchange!r}"


@pytest.mark.parametrize("mechanism", [*PASSWORD_MECHANISMS, BROKER_LOGIN])
def test_an_exchange_is_gone_with_its_last_reference(mechanism: str) -> None:
    """The collector of garbage runs seldom in a worker: what a client has sent must not stay until then."""
    exchange = Exchange(PASSWORD_MECHANISMS, CREDENTIALS, brokers=True)
    exchange.choose(mechanism)
    exchange.respond(b"\0alice\0alice's" if mechanism == "PLAIN" else b"n,,n=alice,r=nonce")
    seen = weakref.ref(exchange)
    gc.disable()
    try:
        del exchange
        assert seen() is None
    finally:
        gc.enable()


def logged_in(mechanism: str) -> Exchange:
    """A login of alice that is done, as far as its own messages say."""
    exchange = Exchange(PASSWORD_MECHANISMS, CREDENTIALS)
    exchange.choose(mechanism)
    if mechanism == PLAIN:
        check = exchange.respond(b"\0alice\0alice's")
        assert isinstance(check, PlainCheck)
        exchange.checked(check.run())
    else:
        client = ScramClient(mechanism, "alice", PASSWORDS["alice"])
        answer = exchange.respond(client.first())
        assert isinstance(answer, bytes)
        exchange.respond(client.final(answer))
    assert exchange.state is LoginState.DONE
    return exchange


@pytest.mark.parametrize("mechanism", PASSWORD_MECHANISMS)
def test_a_login_holds_only_with_the_verifiers_of_its_end(mechanism: str) -> None:
    """The user is the same, has another password, the same one set anew, or was deleted."""
    logged_in(mechanism).check_present(CREDENTIALS)
    for password in (b"another", PASSWORDS["alice"]):
        anew = {name: make_verifier(name, password, 4096) for name in MECHANISMS}
        with pytest.raises(BadCredentials):
            logged_in(mechanism).check_present(Credentials(USERS | {"alice": anew}, b"secret"))
    exchange = logged_in(mechanism)
    with pytest.raises(BadCredentials):
        exchange.check_present(Credentials({"bob": USERS["bob"]}, b"secret"))
    assert exchange.state is LoginState.FAILED
