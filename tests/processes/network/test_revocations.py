"""appliance.processes.network.revocations: who is locked, kicked, deleted or has expired is not connected any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from appliance.cli.users_commands import parse_expiry
from appliance.clock import wall_ms
from appliance.errors import BadCredentials, BadValue
from appliance.records.encode import encode_values
from appliance.security import scram
from appliance.security.accounts import Account
from appliance.wire import native

from ...support.command_line import run, succeeding
from ...support.kafka_peer import KafkaPeer
from ...support.native_peer import Peer
from ...support.quick_scram import quickly
from ...support.server import Server, wait_for

__all__ = ["quickly"]  # a fixture

SASL = "SASL_PLAINTEXT"
PASSWORD = "correct horse"
BATCH = encode_values([b"one"], 1_000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    both = f"127.0.0.1:0, {SASL}://127.0.0.1:0"
    settings = {"kafka.listen": both, "native.listen": both, "network.workers": 1, "zookeeper.nodes": 0}
    with Server(tmp_path_factory.mktemp("revoking") / "data", None, **settings) as running:
        yield running


@pytest.fixture
def users(server: Server, tmp_path: Path) -> Callable[..., str]:
    """``appliance users`` with these words, at the running appliance; returns what it says."""
    file = tmp_path / "password"
    file.touch(0o600)
    file.write_text(f"{PASSWORD}\n")

    def command(*words: str) -> str:
        more = ("--password-file", str(file)) if words[0] == "add" else ()
        return succeeding("users", *words, *more, "--data", str(server.data_dir)).out

    return command


def logged_in(peer: Peer, user: str) -> tuple[int, str]:
    """Log in; code and text of the answer."""
    client = scram.ScramClient("SCRAM-SHA-256", user, PASSWORD.encode())
    challenge = peer.call([native.LOGIN, 1, "SCRAM-SHA-256", client.first()])[0]
    answer = peer.call([native.LOGIN, 2, None, client.final(challenge[3])])[0]
    return answer[1], str(answer[2])


def handed_over(server: Server, peer: Peer, topic: str) -> None:
    """Let a writer serve the connection, as it does when a client produces and does nothing else."""
    with Peer(server.native) as other:
        other.create(topic)
    for _ in range(200):
        assert peer.produce(topic, BATCH)[0] == 0


def ends(peer: Peer) -> bool:
    """Whether the connection ends, also one that is being handed back to be closed."""
    try:
        return peer.hung_up()
    except (ConnectionError, EOFError):
        return True


@pytest.mark.parametrize("order", ["lock", "kick", "delete", "expire"])
def test_all_connections_of_a_user_end_and_no_others(server: Server, users: Callable[..., str], order: str) -> None:
    """One that is idle at the worker, and one that a writer serves; those of another user and without a login stay."""
    user, other = f"{order}-one", f"{order}-other"
    for name in (user, other):
        users("add", name)
    words = {"expire": ("expire", user, "--after", "1ms")}.get(order, (order, user))
    with ExitStack() as stack:
        peers = [stack.enter_context(Peer(server.address("native", SASL))) for _ in range(3)]
        assert [logged_in(peer, name)[0] for peer, name in zip(peers, (user, user, other), strict=True)] == [0, 0, 0]
        unknown = stack.enter_context(Peer(server.native))
        handed_over(server, peers[1], f"{order}-topic")
        users(*words)
        assert ends(peers[0]) and ends(peers[1])
        assert peers[2].admin("topics") is not None and unknown.admin("topics") is not None


def test_a_locked_user_is_told_so_only_with_the_right_password(server: Server, users: Callable[..., str]) -> None:
    users("add", "sleeper")
    users("lock", "sleeper")
    with KafkaPeer(server.address("kafka", SASL)) as kafka:
        kafka.ask("SaslHandshake", mechanism="PLAIN")
        refused = kafka.ask("SaslAuthenticate", auth_bytes=f"\0sleeper\0{PASSWORD}".encode())
        assert (refused.error_code, refused.error_message) == (BadCredentials.code, "this user is locked")
    with KafkaPeer(server.address("kafka", SASL)) as kafka:
        kafka.ask("SaslHandshake", mechanism="PLAIN")
        refused = kafka.ask("SaslAuthenticate", auth_bytes=b"\0sleeper\0another one")
        assert refused.error_message == "wrong password or unknown user"
    with Peer(server.address("native", SASL)) as peer:
        assert logged_in(peer, "sleeper") == (BadCredentials.code, "this user is locked")
    wait_for(lambda: "reason=locked who=User:sleeper" in server.log(), "the audit line")
    assert "user=sleeper locked=yes" in server.log()
    shown = {row["name"]: row for row in run("users", "list", "--json", "--data", str(server.data_dir)).json}
    assert (shown["sleeper"]["locked"], shown["sleeper"]["expires_ms"]) == (True, None)
    assert "locked" in users("list")
    users("unlock", "sleeper")
    with Peer(server.address("native", SASL)) as peer:
        assert logged_in(peer, "sleeper")[0] == 0


def test_a_user_who_expires_later_may_log_in_until_then(server: Server, users: Callable[..., str]) -> None:
    users("add", "guest")
    assert "expires at" in users("expire", "guest", "--after", "90d")
    with Peer(server.address("native", SASL)) as peer:
        assert logged_in(peer, "guest")[0] == 0
        users("expire", "guest", "--after", "2001-01-01")
        assert ends(peer)
    with Peer(server.address("native", SASL)) as peer:
        assert logged_in(peer, "guest") == (BadCredentials.code, "this user has expired")
    assert "expired at 2001-01-01" in users("list")
    assert "never expires: guest" in users("expire", "guest", "--after", "never")
    with Peer(server.address("native", SASL)) as peer:
        assert logged_in(peer, "guest")[0] == 0


@pytest.mark.parametrize("order", ["delete", "lock and delete"])
def test_a_login_that_has_begun_ends_with_its_user(server: Server, users: Callable[..., str], order: str) -> None:
    user = order.replace(" ", "-")
    users("add", user)
    with Peer(server.address("native", SASL)) as peer, KafkaPeer(server.address("kafka", SASL)) as kafka:
        client = scram.ScramClient("SCRAM-SHA-256", user, PASSWORD.encode())
        challenge = peer.call([native.LOGIN, 1, "SCRAM-SHA-256", client.first()])[0]
        kafka.ask("SaslHandshake", mechanism="PLAIN")
        for word in order.split(" and "):
            users(word, user)
        assert peer.call([native.LOGIN, 2, None, client.final(challenge[3])])[0][1] == BadCredentials.code
        refused = kafka.ask("SaslAuthenticate", auth_bytes=f"\0{user}\0{PASSWORD}".encode())
        assert refused.error_code == BadCredentials.code


def test_who_is_not_known_is_named(server: Server, users: Callable[..., str]) -> None:
    at = ("--data", str(server.data_dir))
    refused = run("users", "lock", "CN=nobody", *at)
    assert refused.status == 66 and "--without-password" in refused.err
    users("lock", "CN=nobody", "--without-password")
    assert "CN=nobody" in users("list")
    refused = run("users", "delete", "CN=nobody", *at)
    assert refused.status == 66 and "users unlock CN=nobody" in refused.err
    users("unlock", "CN=nobody")
    assert "CN=nobody" not in users("list")


def test_a_short_password_is_refused_with_a_remedy(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "short"
    file.touch(0o600)
    file.write_text("1234567\n")
    refused = run("users", "add", "eve", "--password-file", str(file), "--data", str(server.data_dir))
    assert refused.status != 0
    assert "at least 8 characters, this one 7" in refused.err and "openssl rand" in refused.err


@pytest.mark.parametrize(
    ("account", "says"),
    [
        (Account(), ""),
        (Account(locked=True), "locked"),
        (Account(expires_ms=10), "expired"),
        (Account(expires_ms=11), ""),
        (Account(locked=True, expires_ms=11), "locked"),
    ],
)
def test_what_is_against_a_user(account: Account, says: str) -> None:
    assert says in account.refusal(10) and bool(says) == bool(account.refusal(10))


@pytest.mark.parametrize("text", ["", "soon", "90", "0x10", "2026-13-01", "99999999999999999d"])
def test_a_time_to_expire_that_is_none_is_named(text: str) -> None:
    from datetime import UTC, datetime

    with pytest.raises(BadValue, match="must be a time such as"):
        parse_expiry(text, datetime.now(UTC))
    assert parse_expiry("1d", datetime.fromtimestamp(wall_ms() / 1000, UTC)) > wall_ms()
