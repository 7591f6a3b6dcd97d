"""appliance.processes.network.acceptor: no client takes all connections, and nobody those of the administrator."""

from __future__ import annotations

import functools
import resource
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from appliance.addresses import Listener
from appliance.config import NetworkSection
from appliance.processes.network.acceptor import PLACES_SHARE, AcceptedConnection, ConnectionPlaces, giving_way
from appliance.processes.network.turn import Turn
from appliance.processes.network.worker_connection import ClientSession
from appliance.records.encode import encode_values
from appliance.security import scram
from appliance.wire import native

from ...support.certificates import make_certificates
from ...support.command_line import run, succeeding
from ...support.long import LONG
from ...support.native_peer import TIMEOUT_S, Peer
from ...support.ready import readable
from ...support.server import Server, wait_for

SASL = "SASL_PLAINTEXT"
IDLE, CONNECTIONS_MAX = (9_000, 4_096) if LONG else (90, 40)
"""Connections of one user; those that a worker takes."""
BOTH = f"127.0.0.1:0, {SASL}://127.0.0.1:0"
PER_ADDRESS, PER_USER = 8, 3
PASSWORD = "correct horse"
BATCH = encode_values([b"one"], 1_000)


class SlowlyMade(Peer):
    """A native client from an address of this host, without its hello."""

    def __init__(self, address: str, source: str = "127.0.0.1") -> None:
        host, port = address.rsplit(":", 1)
        self.sock = socket.create_connection((host, int(port)), TIMEOUT_S, (source, 0))
        self._received = b""


def served(peer: Peer, user: str = "") -> bool:
    """Whether a client is served: it says hello and, as a user, logs in; False when it is closed instead."""
    with suppress(EOFError, ConnectionError):
        peer.call([native.HELLO, 0, native.MAGIC, native.VERSION, "test"])
        if user:
            client = scram.ScramClient("SCRAM-SHA-256", user, PASSWORD.encode())
            answer = peer.call([native.LOGIN, 1, "SCRAM-SHA-256", client.first()])[0][3]
            assert peer.call([native.LOGIN, 2, None, client.final(answer)])[0][1] == 0
        return True
    return False


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client computes the iterations of a password once."""
    monkeypatch.setattr(scram, "salted_password", functools.cache(scram.salted_password))


@pytest.fixture(scope="module")
def password(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("password") / "password"
    file.touch(0o600)
    file.write_text(f"{PASSWORD}\n")
    return file


@pytest.fixture
def descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("descriptors")
def test_the_command_line_gets_in_whatever_others_hold(make_appliance: Callable[..., Server], password: Path) -> None:
    """Method: one user logs in as often as it is let in, and stays idle.  Then commands of the administrator run."""
    server = make_appliance(**{"native.listen": BOTH, "network.workers": 2, "network.connections_max": CONNECTIONS_MAX})
    data = ("--data", str(server.data_dir))
    succeeding("users", "add", "crowd", "--password-file", str(password), *data)
    with ExitStack() as stack:
        held, refused = 0, 0
        for _ in range(IDLE):
            peer = stack.enter_context(SlowlyMade(server.address("native", SASL)))
            if served(peer, "crowd"):
                held += 1
            else:
                refused += 1
                peer.close()
        assert held == 2 * CONNECTIONS_MAX and refused == IDLE - held
        with SlowlyMade(server.native) as other:
            assert not served(other)
        succeeding("topics", "create", "t", *data)
        assert '"t"' in succeeding("topics", "list", "--json", *data).out
        succeeding("users", "delete", "crowd", *data)
        assert '"serving"' in run("status", "--json", *data).out  # with 75: a limit is reached


def test_connections_of_an_address_and_of_a_user_are_bounded(
    make_appliance: Callable[..., Server], password: Path
) -> None:
    """Method: fill both bounds, also with a connection that a writer serves; each that ends makes room for one."""
    server = make_appliance(
        **{
            "native.listen": BOTH,
            "network.workers": 1,
            "network.connections_per_address_max": PER_ADDRESS,
            "network.connections_per_user_max": PER_USER,
        }
    )
    for user in ("alice", "bob"):
        succeeding("users", "add", user, "--password-file", str(password), "--data", str(server.data_dir))
    with_login = server.address("native", SASL)
    with ExitStack() as stack:
        new = lambda address=with_login, source="127.0.0.1": stack.enter_context(SlowlyMade(address, source))  # noqa: E731
        alices = [new() for _ in range(PER_USER)]
        assert all(served(one, "alice") for one in alices)
        assert not served(new(), "alice") and served(new(), "bob")
        alices.pop().close()
        wait_for(lambda: served(new(), "alice"), "there is room for alice again")
        producer = new(server.native)
        assert served(producer)
        producer.create("t")
        for _ in range(200):  # it is handed over to the writer meanwhile
            assert producer.produce("t", BATCH)[0] == 0
        others = [new(server.native) for _ in range(PER_ADDRESS)]
        assert sum(map(served, others)) == PER_ADDRESS - PER_USER - 2
        assert served(new(server.native, "127.0.0.2")), "another address"
        producer.close()
        wait_for(lambda: served(new(server.native)), "there is room for the address again")
    refusals = wait_for(
        lambda: server.state.get("refusals", {}).get("connections per address") and server.state["refusals"], "counts"
    )
    assert refusals["connections per user"] >= 1
    assert 'reason="connections per user" who=User:alice' in server.log()


def server_of_few_places(make_appliance: Callable[..., Server], password: Path, directory: Path) -> Server:
    """It has listeners with and without TLS, certificates in ``directory``, and PER_ADDRESS places of an address."""
    for words in (("ca",), ("server", "127.0.0.1")):
        make_certificates(directory, *words)
    files = {"tls.certificate": directory / "server.pem", "tls.key": directory / "server.key"}
    listen = {"native.listen": f"{BOTH}, SASL_SSL://127.0.0.1:0", "network.workers": 1}
    server = make_appliance(**listen, **files, **{"network.connections_per_address_max": PER_ADDRESS})
    succeeding("users", "add", "alice", "--password-file", str(password), "--data", str(server.data_dir))
    return server


def test_who_does_not_log_in_keeps_nobody_of_its_own_address_away(
    make_appliance: Callable[..., Server], password: Path, tmp_path: Path
) -> None:
    """As behind a NAT: one host floods a stage of the login, and another one of the same address logs in through TLS.

    What needs no login counts, but pushes nobody out: it may take all places that are left, of this address only.
    """
    server = server_of_few_places(make_appliance, password, tmp_path)
    secured, context = server.address("native", "SASL_SSL"), ssl.create_default_context(cafile=tmp_path / "ca.pem")
    with ExitStack() as stack:

        def new(address: str, source: str = "127.0.0.1") -> SlowlyMade:
            return stack.enter_context(SlowlyMade(address, source))

        def logs_in(source: str = "127.0.0.1") -> bool:
            peer = new(secured, source)
            try:
                peer.sock = context.wrap_socket(peer.sock, server_hostname="127.0.0.1")
            except (ConnectionError, ssl.SSLError):
                return False
            return served(peer, "alice")

        idle: list[SlowlyMade] = []
        for flooded in (server.address("native", SASL), secured):
            flood = [new(flooded) for _ in range(2 * PER_ADDRESS)]
            idle += flood
            gone = lambda flood=flood: [peer for peer in flood if readable(peer.sock)]  # noqa: E731
            wait_for(lambda gone=gone: len(gone()) >= PER_ADDRESS, "those that are too many to give way")
            assert all(map(Peer.hung_up, gone()))
            assert logs_in(), f"behind idle connections to {flooded}"
        plain = [new(server.native) for _ in range(2 * PER_ADDRESS)]
        assert not any(map(served, plain)), "the idle ones, which may log in, are not pushed out by these"
        for peer in idle:
            peer.close()
        wait_for(lambda: served(new(server.native)), "a place to be free")
        wait_for(lambda: not served(new(server.native)), "all to be taken")
        assert not logs_in() and logs_in("127.0.0.2"), "the places of one address are taken, those of others are not"


def test_who_does_not_log_in_keeps_nobody_away(make_appliance: Callable[..., Server], password: Path) -> None:
    """Method: more idle connections than there are places for all, from two addresses; others log in all the while.

    Those of the younger half give way, of the address that has more.
    """
    server = make_appliance(**{"native.listen": BOTH, "network.workers": 1, "network.connections_max": CONNECTIONS_MAX})
    succeeding("users", "add", "alice", "--password-file", str(password), "--data", str(server.data_dir))
    with_login = server.address("native", SASL)
    strangers = CONNECTIONS_MAX // PLACES_SHARE
    few = strangers // 4
    kept = (strangers - few) // 2
    with ExitStack() as stack:
        others = [stack.enter_context(SlowlyMade(with_login, "127.0.0.2")) for _ in range(few)]
        idle = [stack.enter_context(SlowlyMade(with_login)) for _ in range(CONNECTIONS_MAX)]
        assert all(map(Peer.hung_up, idle[kept : kept + few]))
        for _ in range(3):
            idle += [stack.enter_context(SlowlyMade(with_login)) for _ in range(CONNECTIONS_MAX)]
            assert served(stack.enter_context(SlowlyMade(with_login, "127.0.0.3")), "alice")
        assert served(stack.enter_context(SlowlyMade(server.native))), "a listener without a login"
        assert all(served(peer, "alice") for peer in others)


@pytest.mark.parametrize("stage", ["login", "handshake"])
def test_who_is_slow_gets_through_though_many_come_after_it(
    make_appliance: Callable[..., Server], password: Path, tmp_path: Path, stage: str
) -> None:
    """As on a slow link behind a NAT: it has begun, and three times as many as there are places come meanwhile."""
    server = server_of_few_places(make_appliance, password, tmp_path)
    address = server.address("native", SASL if stage == "login" else "SASL_SSL")
    with ExitStack() as stack:
        slow, *flood = [stack.enter_context(SlowlyMade(address)) for _ in range(1 + 3 * PER_ADDRESS)]
        wait_for(lambda: sum(readable(peer.sock) for peer in flood) > 2 * PER_ADDRESS, "others to have given way")
        if stage == "handshake":
            context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
            slow.sock = context.wrap_socket(slow.sock, server_hostname="127.0.0.1")
        assert served(slow, "alice")


@pytest.mark.parametrize("seed", range(20))
def test_no_flood_keeps_who_comes_later_away_for_ever(seed: int) -> None:
    """Goal: who needs the time in which a flood fills all places three times gets through, after some attempts.

    Method: a tick is one connection that comes; those of the flood stay as long as a login may take, 20 times as long
    as they need to fill all places.  Who needs less than half of all places is through with its first attempt.
    """
    random, places, stay = Random(seed), 20, 400

    def attempts(needs: int) -> int:
        crowd: dict[int, int] = {}  # since when; -1 is the one that is to get through
        count = 0
        for tick in range(100_000):
            crowd = {one: since for one, since in crowd.items() if tick - since < stay}
            if count and -1 in crowd and tick - crowd[-1] >= needs:
                return count
            comes = -1 if tick > stay and -1 not in crowd and random.random() < 0.1 else tick
            count += comes == -1
            if len(crowd) >= places:
                del crowd[giving_way(crowd)]
            crowd[comes] = tick
        raise AssertionError(f"not within {count} attempts")

    assert attempts(needs=3 * places) < 1_000
    assert attempts(needs=places // 2 - 1) == 1


def test_an_address_has_a_part_of_the_places_by_default() -> None:
    places = ConnectionPlaces(Turn(), NetworkSection(connections_max=40))

    def admitted(peer: str) -> int:
        accepted = AcceptedConnection(cast(Any, None), Listener("kafka", "PLAINTEXT", "h:1"), peer)
        for count in range(100):
            if not places.admits_address(accepted, 0):
                return count
            places.enter(ClientSession(host=accepted.host))
        return 100

    assert admitted("10.0.0.7:1") == admitted("[2001:db8::1]:1") == 40 // PLACES_SHARE
    assert admitted("10.0.0.8:1") == 40 // PLACES_SHARE and admitted("10.0.0.7:2") == 0
    assert admitted("[2001:db8::2]:1") == 0, "of the same host"
    assert admitted("127.0.0.1:1") == admitted("[::1]:1") == 40
