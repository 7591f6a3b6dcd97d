"""Logins of real clients: each mechanism with the right password, a wrong one, and unknown users."""

from __future__ import annotations

import itertools
import os
import re
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from appliance.client import Admin, ClientSecurity, Consumer
from appliance.client import Producer as NativeProducer
from appliance.client.broker_connection import BrokerConnection
from appliance.client.client_login import ClientLogin
from appliance.errors import BadCredentials, BadValue, LoginOutOfOrder
from appliance.wire.native import FETCH

from ..support.command_line import run
from ..support.server import Server, wait_for
from .adapters import DEADLINE_S, aiokafka_produces, java, kafka_python_produces, new_topic

PASSWORD, WRONG = "correct horse", "battery staple"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_names = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    both = "127.0.0.1:0, SASL_PLAINTEXT://127.0.0.1:0"
    settings: dict[str, Any] = {"kafka.listen": both, "native.listen": both}
    with Server(tmp_path_factory.mktemp("logins") / "data", None, **settings) as running:
        yield running


@pytest.fixture(scope="module")
def passwords(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    files = {}
    for password in (PASSWORD, WRONG):
        files[password] = tmp_path_factory.mktemp("passwords") / "password"
        files[password].write_text(f"{password}\n")
        files[password].chmod(0o600)
    return files


@pytest.fixture(scope="module")
def alice(server: Server, passwords: dict[str, Path]) -> str:
    added = run("users", "add", "alice", "--password-file", str(passwords[PASSWORD]), "--data", str(server.data_dir))
    assert added.status == 0, added.err
    return "alice"


def sasl(server: Server) -> str:
    return server.address("kafka", "SASL_PLAINTEXT")


def confluent(bootstrap: str, mechanism: str, user: str, password: str) -> bool:
    """Whether a message was delivered; else the login was refused."""
    refused: list[Any] = []
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "log_level": 0}
    producer = Producer(
        {"bootstrap.servers": bootstrap, "sasl.username": user, "sasl.password": password, "error_cb": refused.append}
        | settings
    )
    delivered: list[Any] = []
    producer.produce(new_topic(), b"x", on_delivery=lambda error, message: delivered.append(error))
    until = perf_counter() + DEADLINE_S
    while perf_counter() < until and not delivered:
        producer.poll(0.05)
        if any(error.name() == "_AUTHENTICATION" for error in refused):
            assert "wrong password or unknown user" in refused[0].str()
            producer.purge()
            return False
    return delivered == [None]


def kafka_python(bootstrap: str, mechanism: str, user: str, password: str) -> bool:
    login = {"sasl_mechanism": mechanism, "sasl_plain_username": user, "sasl_plain_password": password}
    return kafka_python_produces(bootstrap, **login)


def aiokafka(bootstrap: str, mechanism: str, user: str, password: str) -> bool:
    login = {"sasl_mechanism": mechanism, "sasl_plain_username": user, "sasl_plain_password": password}
    return aiokafka_produces(bootstrap, **login)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", [confluent, kafka_python, aiokafka])
def test_the_right_password_gets_in_and_no_other(
    server: Server, alice: str, client: Callable[[str, str, str, str], bool], mechanism: str
) -> None:
    assert client(sasl(server), mechanism, alice, PASSWORD)
    assert not client(sasl(server), mechanism, alice, WRONG)
    if client is confluent:
        assert not client(sasl(server), mechanism, "mallory", PASSWORD)


def test_users_are_administrated_by_kafkas_clients(server: Server) -> None:
    admin = AdminClient({"bootstrap.servers": server.kafka})
    user = f"user-{next(_names)}"
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192)
    changes = [UserScramCredentialUpsertion(user, info, PASSWORD.encode())]
    assert admin.alter_user_scram_credentials(changes)[user].result(DEADLINE_S) is None
    (found,) = admin.describe_user_scram_credentials([user])[user].result(DEADLINE_S).scram_credential_infos
    assert (found.mechanism, found.iterations) == (ScramMechanism.SCRAM_SHA_512, 8192)
    assert confluent(sasl(server), "SCRAM-SHA-512", user, PASSWORD)
    assert not confluent(sasl(server), "SCRAM-SHA-256", user, PASSWORD)
    gone = [UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_512)]
    assert admin.alter_user_scram_credentials(gone)[user].result(DEADLINE_S) is None
    assert not confluent(sasl(server), "SCRAM-SHA-512", user, PASSWORD)


def test_users_are_administrated_by_kafkas_tools(server: Server) -> None:
    """kafka-configs as its documentation shows it."""
    user = f"user-{next(_names)}"
    config = ["org.apache.kafka.tools.ConfigCommand", "--bootstrap-server", server.kafka, "--entity-type", "users"]
    credential = f"SCRAM-SHA-512=[password={WRONG.split()[0]}]"
    java(*config, "--entity-name", user, "--alter", "--add-config", credential)
    described = java(*config, "--entity-name", user, "--describe")
    assert "SCRAM-SHA-512=iterations=4096" in described
    assert kafka_python(sasl(server), "SCRAM-SHA-512", user, WRONG.split()[0])


def test_native_clients_log_in(server: Server, alice: str, passwords: dict[str, Path]) -> None:
    bootstrap = f"SASL_PLAINTEXT://{server.address('native', 'SASL_PLAINTEXT')}"
    right = ClientSecurity(user=alice, password_file=str(passwords[PASSWORD]))
    topic = new_topic()
    with Admin(bootstrap, security=right) as admin:
        admin.create_topic(topic)
    with NativeProducer(bootstrap, security=right) as producer:
        assert producer.send(topic, b"x").result(DEADLINE_S)
    with Consumer(bootstrap, security=right) as consumer:
        consumer.assign([(topic, 0)])
        assert [message.value for message in consumer.poll(DEADLINE_S)] == [b"x"]
    for user, password in ((alice, WRONG), ("mallory", PASSWORD)):
        wrong = ClientSecurity(user=user, password_file=str(passwords[password]))
        with (
            Admin(bootstrap, security=wrong) as admin,
            pytest.raises(BadCredentials, match="wrong password or unknown"),
        ):
            admin.topics()
    with pytest.raises(BadValue, match="APPLIANCE_USER"):
        Admin(bootstrap, security=ClientSecurity())
    gated = server.address("native", "SASL_PLAINTEXT")
    with Admin(gated) as admin, pytest.raises(LoginOutOfOrder, match="wants a login"):
        admin.topics()
    with Admin(f"SASL_PLAINTEXT://{server.native}", security=right) as admin, pytest.raises(LoginOutOfOrder):
        admin.topics()


def test_no_password_is_in_logs_status_or_arguments(server: Server, alice: str) -> None:
    """Goal: neither passwords nor what is kept of them show anywhere.  Method: after logins of all kinds, look."""
    for mechanism in MECHANISMS:
        assert confluent(sasl(server), mechanism, alice, PASSWORD)
    kept = (server.data_dir / "security.json").read_text()
    keys = [line.split('"')[3] for line in kept.splitlines() if "_key" in line or '"salt"' in line]
    assert keys and (server.data_dir / "security.json").stat().st_mode & 0o777 == 0o600
    shown = [server.log(), (server.data_dir / "state.json").read_text()]
    shown.append(run("status", "--data", str(server.data_dir), "--json").out)
    shown.append(run("users", "list", "--data", str(server.data_dir), "--json").out)
    for row in server.state["processes"]:
        with suppress(FileNotFoundError, ProcessLookupError):  # an idle writer has ended since
            shown += [Path(f"/proc/{row['pid']}/{name}").read_text(errors="replace") for name in ("cmdline", "environ")]
    for secret in (PASSWORD, *keys):
        assert not any(secret in text for text in shown), secret[:4]
    assert alice in server.log()


# ---- without a client, byte by byte


class Peer:
    """A connection to the Kafka listener with a login."""

    def __init__(self, server: Server) -> None:
        host, port = sasl(server).rsplit(":", 1)
        self.sock = socket.create_connection((host, int(port)), DEADLINE_S)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, key: int, version: int, body: bytes) -> None:
        self.send_raw(struct.pack(">hhih", key, version, 1, -1) + body)

    def send_raw(self, content: bytes) -> None:
        self.sock.sendall(struct.pack(">I", len(content)) + content)

    def receive(self) -> bytes:
        """The content of a frame; b"" at the end of the connection."""
        size = self.sock.recv(4, socket.MSG_WAITALL)
        return self.sock.recv(int.from_bytes(size), socket.MSG_WAITALL) if size else b""

    def choose(self, mechanism: str, version: int = 1) -> bytes:
        self.send(HANDSHAKE, version, struct.pack(">h", len(mechanism)) + mechanism.encode())
        return self.receive()[4:]

    def authenticate(self, message: bytes) -> bytes:
        self.send(AUTHENTICATE, 1, struct.pack(">i", len(message)) + message)
        return self.receive()[4:]

    @property
    def ended(self) -> bool:
        return self.receive() == b""


HANDSHAKE, AUTHENTICATE, METADATA = 17, 36, 3


def refusals(server: Server, reason: str) -> int:
    return int(server.state.get("refusals", {}).get(reason, 0))


def test_an_unknown_mechanism_is_told_which_there_are(server: Server, alice: str) -> None:
    with Peer(server) as peer:
        reply = peer.choose("GSSAPI")
        assert reply[:2] == b"\0\x21" and all(mechanism.encode() in reply for mechanism in MECHANISMS)
        assert peer.ended


@pytest.mark.parametrize("steps", ["token first", "two choices", "request", "request meanwhile"])
def test_what_is_out_of_order_ends_the_connection(server: Server, alice: str, steps: str) -> None:
    with Peer(server) as peer:
        if steps == "token first":
            assert peer.authenticate(b"n,,n=alice,r=abc")[:2] == b"\0\x22"
        elif steps == "two choices":
            peer.choose("PLAIN")
            assert peer.choose("PLAIN")[:2] == b"\0\x22"
        else:
            if steps == "request meanwhile":
                peer.choose("PLAIN")
            peer.send(METADATA, 1, struct.pack(">i", -1))
        assert peer.ended


def test_old_clients_send_raw_tokens(server: Server, alice: str) -> None:
    with Peer(server) as peer:
        assert peer.choose("PLAIN", 0)[:2] == b"\0\0"
        peer.send_raw(f"\0{alice}\0{PASSWORD}".encode())
        assert peer.sock.recv(4, socket.MSG_WAITALL) == b"\0\0\0\0"
        peer.send(METADATA, 1, struct.pack(">i", 0))
        assert peer.receive()[:4] == b"\0\0\0\1"
    with Peer(server) as peer:
        peer.choose("PLAIN", 0)
        peer.send_raw(f"\0{alice}\0{WRONG}".encode())
        assert peer.ended


def test_a_wrong_password_and_an_unknown_user_take_the_same_time_and_get_the_same(server: Server, alice: str) -> None:
    def attempt(user: str) -> tuple[float, bytes]:
        with Peer(server) as peer:
            peer.choose("PLAIN")
            begun = perf_counter()
            reply = peer.authenticate(f"\0{user}\0{WRONG}".encode())
            return perf_counter() - begun, reply

    both = [(attempt(alice), attempt("mallory")) for _ in range(9)]
    assert len({reply for pair in both for _, reply in pair}) == 1
    # The quickest of each: others have waited for a processor.
    known, unknown = (min(pair[which][0] for pair in both) for which in (0, 1))
    assert known >= 0.1 and unknown >= 0.1, "an answer that is worth nothing is not worth hurrying"
    assert 0.5 < known / unknown < 2


def test_large_frames_are_refused_before_a_login(server: Server) -> None:
    with Peer(server) as peer:
        peer.sock.sendall(struct.pack(">I", 1 << 20))
        assert peer.ended


def test_users_log_in_while_the_coordinator_hangs(server: Server, alice: str) -> None:
    pid = server.pid_of("coordinator")
    os.kill(pid, signal.SIGSTOP)
    try:
        with Peer(server) as peer:
            peer.choose("PLAIN")
            assert peer.authenticate(f"\0{alice}\0{PASSWORD}".encode())[:2] == b"\0\0"
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_session_ends_and_clients_log_in_again(
    make_appliance: Callable[..., Server], passwords: dict[str, Path]
) -> None:
    """KIP-368: librdkafka logs in again on the same connection, before the end; who does not is cut off."""
    server = make_appliance(**{"kafka.listen": "SASL_PLAINTEXT://127.0.0.1:0", "security.sessions_ms_max": 1_500})
    added = run("users", "add", "alice", "--password-file", str(passwords[PASSWORD]), "--data", str(server.data_dir))
    assert added.status == 0, added.err
    with Peer(server) as peer:
        peer.choose("PLAIN")
        reply = peer.authenticate(f"\0alice\0{PASSWORD}".encode())
        assert int.from_bytes(reply[-8:]) == 1_500
        again = [line for line in _relogins(server)]
        assert again, "librdkafka has logged in again"

        def is_cut_off() -> bool:
            peer.send(METADATA, 1, struct.pack(">i", -1))
            return peer.ended

        wait_for(is_cut_off, "its session to end")


def test_native_clients_log_in_again_before_their_session_ends(
    make_appliance: Callable[..., Server], passwords: dict[str, Path]
) -> None:
    """Method: requests go on through several sessions on one connection, and while it logs in again."""
    server = make_appliance(
        **{"native.listen": "SASL_PLAINTEXT://127.0.0.1:0", "kafka.listen": "", "security.sessions_ms_max": 400}
    )
    added = run("users", "add", "alice", "--password-file", str(passwords[PASSWORD]), "--data", str(server.data_dir))
    assert added.status == 0, added.err
    host, port = server.address("native", "SASL_PLAINTEXT").rsplit(":", 1)
    connection = BrokerConnection((host, int(port)), login=ClientLogin("alice", PASSWORD))
    connection.greet(DEADLINE_S)
    own = f"from=127.0.0.1:{connection._socket.getsockname()[1]}"
    until, answered, posted = perf_counter() + DEADLINE_S, 0, 0
    while sum(own in line for line in server.log().splitlines() if "logged in" in line) < 4:
        assert perf_counter() < until, "it has logged in again and again"
        for _ in range(3):  # the last one waits a while, for messages that do not come
            connection.post(FETCH, 30, 1, 1 << 20, [["none", 0, 0, 1 << 20]])
            posted += 1
        while answered < posted:
            connection.flush()
            replies = connection.receive()
            answered += len(replies)
            assert replies or connection.wait(DEADLINE_S)
    assert not [line for line in server.log().splitlines() if "session expired" in line]
    connection.close()


def _relogins(server: Server) -> list[str]:
    """Ports from which alice has logged in more than once, while a producer went on producing."""
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "log_level": 0}
    login = {"sasl.username": "alice", "sasl.password": PASSWORD}
    producer = Producer({"bootstrap.servers": sasl(server), **settings, **login})
    errors: list[Any] = []
    topic, until = new_topic(), perf_counter() + DEADLINE_S
    while perf_counter() < until:
        producer.produce(topic, b"x", on_delivery=lambda error, message: errors.append(error))
        producer.flush(DEADLINE_S)
        producer.poll(0.05)
        ports = re.findall(r"logged in: who=User:alice from=\S+:(\d+)", server.log())
        again = sorted({port for port in ports if ports.count(port) > 1})
        if again and perf_counter() > until - DEADLINE_S + 3:
            assert set(errors) == {None}
            return again
    return []
