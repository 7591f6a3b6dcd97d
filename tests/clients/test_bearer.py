"""SASL/OAUTHBEARER with real clients and tokens that a provider on this host has signed."""

from __future__ import annotations

import json
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer as ConfluentProducer
from joserfc.jwk import RSAKey
from kafka.net.sasl.oauth import AbstractTokenProvider

from appliance.client import Admin
from appliance.processes.network.logins import FAILED_LOGIN_DELAY_MS

from ..support.identity_provider import SECRET, IdentityProvider
from ..support.kafka_peer import KafkaPeer
from ..support.server import Server, wait_for
from .adapters import DEADLINE_S, aiokafka_produces, kafka_python_produces, new_topic

SASL = "SASL_PLAINTEXT"
GOOD_S = 300


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as provider:
        yield provider


@pytest.fixture(scope="module")
def server(provider: IdentityProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Alice may write; she logs in with a token."""
    rights = {"security.authorizer": "acl"}
    listen = {"kafka.listen": f"127.0.0.1:0, {SASL}://127.0.0.1:0", "network.workers": 1}
    data = tmp_path_factory.mktemp("bearer") / "data"
    with Server(data, None, **listen, **rights, **provider.settings()) as running:
        with Admin(running.state["listeners"]["local"]) as admin:
            rule = {"resource": "Topic", "name": "*", "principal": "User:alice", "operation": "All"}
            admin.add_acls([rule])
        yield running


def sasl(server: Server) -> str:
    return server.address("kafka", SASL)


def confluent(bootstrap: str, tokens: Callable[[], str]) -> bool:
    """Whether a message was delivered; False: the login was refused."""
    refused: list[Any] = []
    producer = ConfluentProducer(
        {
            "bootstrap.servers": bootstrap,
            "security.protocol": SASL,
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: (tokens(), time.time() + GOOD_S),
            "error_cb": refused.append,
            "log_level": 0,
        }
    )
    delivered: list[Any] = []
    producer.produce(new_topic(), b"x", on_delivery=lambda error, message: delivered.append(error))
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until and not delivered:
        producer.poll(0.05)
        if any(error.name() == "_AUTHENTICATION" for error in refused):
            producer.purge()
            return False
    return delivered == [None]


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, make: Callable[[], str]) -> None:
        self._make = make

    def token(self) -> str:
        return self._make()


def kafka_python(bootstrap: str, tokens: Callable[[], str]) -> bool:
    return kafka_python_produces(bootstrap, sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=Tokens(tokens))


def aiokafka(bootstrap: str, tokens: Callable[[], str]) -> bool:
    from aiokafka.abc import AbstractTokenProvider as AioTokens

    class Given(AioTokens):  # type: ignore[misc]
        async def token(self) -> str:
            return tokens()

    return aiokafka_produces(bootstrap, sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=Given())


CLIENTS = [confluent, kafka_python, aiokafka]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_logs_in_with_a_token(
    server: Server, provider: IdentityProvider, client: Callable[[str, Callable[[], str]], bool]
) -> None:
    def ask_the_provider() -> str:
        form = {"grant_type": "client_credentials", "client_id": "alice", "client_secret": SECRET}
        with urllib.request.urlopen(provider.token_url, urllib.parse.urlencode(form).encode(), 60) as answer:
            return str(json.load(answer)["access_token"])

    assert client(sasl(server), ask_the_provider)
    line = "logged in: who=User:alice from=127.0.0.1:"
    wait_for(lambda: line in server.log() and "mechanism=OAUTHBEARER" in server.log(), "a line of the audit log")


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_understands_the_refusal(
    server: Server, provider: IdentityProvider, client: Callable[[str, Callable[[], str]], bool]
) -> None:
    assert not client(sasl(server), lambda: provider.token(seconds=-5))


def log_in(peer: KafkaPeer, token: str) -> Any:
    """The last answer of a login."""
    assert peer.ask("SaslHandshake", mechanism="OAUTHBEARER").error_code == 0
    return peer.ask("SaslAuthenticate", auth_bytes=f"n,,\x01auth=Bearer {token}\x01\x01".encode())


def test_what_is_refused_is_said_in_json_and_then_in_words(server: Server, provider: IdentityProvider) -> None:
    with KafkaPeer(sasl(server)) as peer:
        first = log_in(peer, provider.token(aud="others"))
        assert (first.error_code, bytes(first.auth_bytes)) == (0, b'{"status":"invalid_token"}')
        last = peer.ask("SaslAuthenticate", auth_bytes=b"\x01")
        assert last.error_code == 58 and "another audience" in last.error_message
        assert peer.hung_up()
    assert provider.token().partition(".")[0] not in server.log(), "no token is logged"


def refusals(server: Server) -> list[str]:
    lines = server.log().splitlines()
    return [line for line in lines if 'refused: reason="bad credentials"' in line and "what=OAUTHBEARER" in line]


def test_a_refused_token_costs_as_much_as_a_wrong_password(server: Server, provider: IdentityProvider) -> None:
    """Also when its client goes away without the byte that asks for the reason; with it, it costs that once."""
    before = len(refusals(server))
    for number in (1, 2):
        with KafkaPeer(sasl(server)) as peer:
            since_s = time.monotonic()
            assert log_in(peer, provider.token(aud="others")).error_code == 0
            assert time.monotonic() - since_s > 0.9 * FAILED_LOGIN_DELAY_MS / 1000
            wait_for(lambda number=number: len(refusals(server)) == before + number, "a line of the audit log")
            if number == 2:
                assert peer.ask("SaslAuthenticate", auth_bytes=b"\x01").error_code == 58
                assert peer.hung_up()
    assert len(refusals(server)) == before + 2


def test_the_session_ends_with_the_token(server: Server, provider: IdentityProvider) -> None:
    """KIP-368: the client is told how long, may log in again with another token, and is closed if it does not."""
    with KafkaPeer(sasl(server)) as peer:
        lifetime_ms = log_in(peer, provider.token(seconds=3)).session_lifetime_ms
        assert 0 < lifetime_ms <= 3_000
        assert peer.ask("Metadata", topics=[]).throttle_time_ms == 0
        again = log_in(peer, provider.token(seconds=GOOD_S))
        assert again.error_code == 0 and 3_000 < again.session_lifetime_ms <= GOOD_S * 1000
        other = log_in(peer, provider.token(sub="bob"))
        assert other.error_code == 58, "a client logs in again as the same user"
    with KafkaPeer(sasl(server)) as peer:
        log_in(peer, provider.token(seconds=2))

        def ended() -> bool:
            try:
                peer.ask("Metadata", topics=[])
            except (EOFError, OSError, AssertionError):
                return True
            return False

        wait_for(ended, "the end of the session")


def test_a_token_with_a_new_key_waits_for_it(server: Server, provider: IdentityProvider) -> None:
    """Not refused: the keys are asked for once.  With a key that nobody has, it is refused after that."""
    provider.keys["rotated"] = RSAKey.generate_key(2048)
    with KafkaPeer(sasl(server)) as peer:
        answer = log_in(peer, provider.token("rotated"))
        assert (answer.error_code, bytes(answer.auth_bytes)) == (0, b"") and answer.session_lifetime_ms > 0
    provider.keys["never shown"] = provider.keys["rotated"]
    token = provider.token("never shown")
    del provider.keys["never shown"]
    asked = provider.answers
    with KafkaPeer(sasl(server)) as peer, KafkaPeer(sasl(server)) as other:
        assert log_in(other, provider.token()).error_code == 0, "others do not wait"
        assert bytes(log_in(peer, token).auth_bytes) == b'{"status":"invalid_token"}'
    assert provider.answers <= asked + 1


def test_a_provider_that_is_away_stops_nobody_else(
    make_appliance: Callable[..., Server], provider: IdentityProvider
) -> None:
    """A worker that begins without it serves passwords and others; tokens are good once it is there."""
    provider.going_on.clear()
    try:
        listen = {"kafka.listen": f"127.0.0.1:0, {SASL}://127.0.0.1:0", "network.workers": 1}
        server = make_appliance(**{**listen, **provider.settings(), "security.login_ms_max": 60_000})
        with KafkaPeer(server.kafka) as peer:
            assert peer.ask("Metadata", topics=[]).throttle_time_ms == 0
        with KafkaPeer(sasl(server)) as peer:
            assert peer.ask("SaslHandshake", mechanism="OAUTHBEARER").error_code == 0
            message = f"n,,\x01auth=Bearer {provider.token()}\x01\x01".encode()
            provider.going_on.set()
            assert peer.ask("SaslAuthenticate", auth_bytes=message).session_lifetime_ms > 0
    finally:
        provider.going_on.set()
