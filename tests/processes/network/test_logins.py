"""appliance.processes.network.logins: who logs in again is the same user, by the same mechanism, or nobody."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from appliance.errors import BadCredentials
from appliance.security import scram
from appliance.wire import native

from ...support.kafka_peer import KafkaPeer
from ...support.native_peer import Peer
from ...support.quick_scram import quickly
from ...support.server import Server

__all__ = ["quickly"]  # a fixture

SASL = "SASL_PLAINTEXT"
NUMBERS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
PASSWORD = b"correct horse"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    both = f"127.0.0.1:0, {SASL}://127.0.0.1:0"
    settings = {"kafka.listen": both, "native.listen": both, "network.workers": 1}
    with Server(tmp_path_factory.mktemp("logging-in") / "data", None, **settings) as running:
        salt, iterations = b"0123456789abcdef", scram.ITERATIONS_MIN
        changes = [
            {"name": user, "mechanism": number, "iterations": iterations, "salt": salt}
            | {"salted_password": scram.salted_password(mechanism, PASSWORD, salt, iterations)}
            for user in ("alice", "bob")
            for mechanism, number in NUMBERS.items()
        ]
        with KafkaPeer(running.kafka) as peer:
            reply = peer.ask("AlterUserScramCredentials", deletions=[], upsertions=changes)
            assert [row.error_code for row in reply.results] == [0, 0]
        yield running


def kafka_login(peer: KafkaPeer, user: str, mechanism: str) -> int:
    """Log in; the error."""
    chosen = peer.ask("SaslHandshake", mechanism=mechanism).error_code
    if chosen:
        return int(chosen)
    client = scram.ScramClient(mechanism, user, PASSWORD)
    challenge = peer.ask("SaslAuthenticate", auth_bytes=client.first())
    if challenge.error_code:
        return int(challenge.error_code)
    return int(peer.ask("SaslAuthenticate", auth_bytes=client.final(bytes(challenge.auth_bytes))).error_code)


def native_login(peer: Peer, user: str, mechanism: str) -> int:
    client = scram.ScramClient(mechanism, user, PASSWORD)
    challenge = peer.call([native.LOGIN, 1, mechanism, client.first()])[0]
    return int(challenge[1] or peer.call([native.LOGIN, 2, None, client.final(challenge[3])])[0][1])


@pytest.mark.parametrize(
    ("user", "mechanism"), [("bob", "SCRAM-SHA-256"), ("alice", "SCRAM-SHA-512"), ("nobody", "SCRAM-SHA-256")]
)
def test_nobody_logs_in_again_as_another(server: Server, user: str, mechanism: str) -> None:
    """With the right password, too; the connection is closed (KIP-368)."""
    with KafkaPeer(server.address("kafka", SASL)) as kafka:
        assert kafka_login(kafka, "alice", "SCRAM-SHA-256") == 0
        assert kafka_login(kafka, "alice", "SCRAM-SHA-256") == 0, "as before: it may"
        assert kafka.ask("Metadata", topics=[]).throttle_time_ms == 0
        assert kafka_login(kafka, user, mechanism) == BadCredentials.code
        assert kafka.hung_up()
    with Peer(server.address("native", SASL)) as peer:
        assert native_login(peer, "alice", "SCRAM-SHA-256") == 0
        assert native_login(peer, "alice", "SCRAM-SHA-256") == 0
        assert native_login(peer, user, mechanism) == BadCredentials.code
        assert peer.hung_up()
    assert "logged in: who=User:bob" not in server.log()


def test_nothing_is_served_while_a_client_logs_in_again(server: Server) -> None:
    with KafkaPeer(server.address("kafka", SASL)) as peer:
        assert kafka_login(peer, "alice", "SCRAM-SHA-256") == 0
        assert peer.ask("SaslHandshake", mechanism="SCRAM-SHA-256").error_code == 0
        peer.send("Metadata", topics=[])
        assert peer.hung_up()
