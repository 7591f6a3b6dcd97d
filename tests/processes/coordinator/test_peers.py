"""appliance.processes.coordinator.peers: brokers log in to each other, whatever listeners ask of clients.

Nobody else gets their rights, or the password of the ensemble.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from appliance.client import Admin
from appliance.errors import BadCredentials, BrokerAway, GroupNotPermitted, InvalidRequest, NotPermitted
from appliance.processes.coordinator.peers import BrokerIdentity, ask_admin, ask_offsets
from appliance.security.configuration import Tls
from appliance.security.login_exchange import BROKER_LOGIN
from appliance.security.scram import ScramClient
from appliance.wire import native
from appliance.wire.requests import LATEST, OffsetsPart
from appliance.zookeeper.ensemble import Ensemble

from ...support.command_line import succeeding
from ...support.native_peer import Peer
from ...support.server import Server, secret_in, wait_for
from ...support.zookeeper_fixture import ACCESS, LOGIN, fresh_connect

SASL = "SASL_PLAINTEXT"


class Pair:
    """Two appliances of one cluster that check rights: one whose native listener has a login, one without."""

    topic: str

    def __init__(self, servers: list[Server]) -> None:
        self.servers = servers
        self.addresses = [servers[0].native, servers[1].address("native", SASL)]
        self.secret = secret_in(servers[0].data_dir)

    def local(self, number: int) -> Admin:
        """An administrator."""
        return Admin(self.servers[number].state["listeners"]["local"])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, standalone: Ensemble) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("pair")
    both = ACCESS | {"zookeeper.connect": fresh_connect(standalone), "security.authorizer": "acl", "network.workers": 1}
    password = directory / "password"
    password.touch(0o600)
    password.write_text("correct horse\n")
    open_one: dict[str, Any] = both | {"broker.id": 1}
    with_login: dict[str, Any] = both | {"broker.id": 2, "native.listen": f"{SASL}://127.0.0.1:0"}
    with Server(directory / "1", **open_one) as one, Server(directory / "2", **with_login) as two:
        succeeding("users", "add", "alice", "--password-file", str(password), "--data", str(one.data_dir))
        wait_for(lambda: secret_in(one.data_dir) == secret_in(two.data_dir), "they share a secret")
        made = Pair([one, two])
        with made.local(0) as admin:
            names = (f"spread-{number}" for number in itertools.count())
            made.topic = wait_for(lambda: _spread(admin, next(names)), "a topic is spread over both")
        yield made


def _spread(admin: Admin, name: str) -> str:
    """The name of a new topic, if both brokers lead a partition of it; else ""."""
    admin.create_topic(name, 2)
    (found,) = admin.topics([name])
    return name if {row["leader"] for row in found["partitions"]} == {1, 2} else ""


def test_offsets_and_commits_go_between_brokers_that_check_rights(pair: Pair) -> None:
    """Method: the administrator of each asks for the ends of a topic of both, and changes offsets of groups of both."""

    def ends(admin: Admin) -> list[int | None]:
        return [row["end"] for found in admin.topics([pair.topic]) for row in found["partitions"]]

    for number in (0, 1):
        with pair.local(number) as admin:
            wait_for(lambda: pair.topic in {row["name"] for row in admin.topics()}, "the topic is known")
            wait_for(lambda: ends(admin) == [0, 0], "each answers for its partition")
            for group in ("a", "b", "c", "d"):
                admin.commit(group, {(pair.topic, 0): number})
                assert admin.offsets(group) == {(pair.topic, 0): number}
                admin.delete_offsets(group, [(pair.topic, 0)])
    logged_in = [line for line in pair.servers[0].log().splitlines() if "logged in: who=Broker:2" in line]
    assert logged_in and f"mechanism={BROKER_LOGIN}" in logged_in[0]


def test_a_role_reaches_every_broker(pair: Pair) -> None:
    with pair.local(0) as one, pair.local(1) as two:
        one.create_role("readers")
        one.alter_role("readers", grant=["alice"])
        readers = {"name": "readers", "users": ["alice"], "rules": []}
        wait_for(lambda: two.roles() == [readers], "the other knows the role")
        two.delete_role("readers")
        wait_for(lambda: one.roles() == [], "and the one that it has gone")


def identity(secret: bytes) -> BrokerIdentity:
    return BrokerIdentity(7, secret, Tls())


@pytest.mark.parametrize("number", [0, 1])
def test_only_who_has_the_secret_is_a_broker(pair: Pair, number: int) -> None:
    address = pair.addresses[number] if number == 0 else f"{SASL}://{pair.addresses[number]}"
    parts = [OffsetsPart("none", 0, LATEST)]
    assert len(asyncio.run(ask_offsets(address, identity(pair.secret), parts))) == 1
    assert asyncio.run(ask_offsets(address, identity(b"x" * 32), parts)) == []
    with pytest.raises(BrokerAway, match="login of a broker is refused"):
        asyncio.run(ask_admin(address, identity(b""), "delete_offsets", {"group": "g"}))


@pytest.mark.parametrize("verb", ["users", "acls", "status", "create_topic"])
def test_a_broker_has_the_rights_that_it_needs_and_no_others(pair: Pair, verb: str) -> None:
    arguments = {"name": "x"} if verb == "create_topic" else {}
    with pytest.raises(NotPermitted):
        asyncio.run(ask_admin(pair.addresses[0], identity(pair.secret), verb, arguments))


def login(peer: Peer, mechanism: str, user: str, password: bytes) -> int:
    """The error of a login; 0 when it succeeds."""
    scram = ScramClient("SCRAM-SHA-512", user, password)
    header = peer.call([native.LOGIN, 1, mechanism, scram.first()])[0]
    if header[1]:
        return int(header[1])
    return int(peer.call([native.LOGIN, 2, None, scram.final(header[3])])[0][1])


def test_users_are_not_taken_for_brokers(pair: Pair) -> None:
    """A user, even one who is called like a broker, by the mechanism of brokers; a listener without logins stays so."""
    for number in (0, 1):
        with Peer(pair.addresses[number]) as peer:
            assert login(peer, BROKER_LOGIN, "alice", b"correct horse") == BadCredentials.code
    with Peer(pair.addresses[1]) as peer:
        assert login(peer, "SCRAM-SHA-512", "alice", b"correct horse") == 0
        assert peer.call([native.ADMIN, 3, "offsets", {"group": "g"}])[0][1] == GroupNotPermitted.code
    for mechanism in ("SCRAM-SHA-512", "PLAIN"):
        with Peer(pair.addresses[0]) as peer:
            assert login(peer, mechanism, "alice", b"correct horse") != 0


def test_the_password_of_the_ensemble_is_for_nobody(
    pair: Pair, make_appliance: Callable[..., Server], standalone: Ensemble
) -> None:
    """Neither over TCP nor through the Unix socket; a client of an earlier version learns what to do."""
    with Peer(pair.addresses[0]) as peer:
        assert peer.call([native.ADMIN, 1, "zookeeper_login", {}])[0][1] == InvalidRequest.code
    plain = make_appliance(
        **ACCESS | {"zookeeper.connect": fresh_connect(standalone), "security.super_users": "User:ANONYMOUS;User:x"}
    )
    with Admin(plain.state["listeners"]["local"]) as admin:
        with pytest.raises(InvalidRequest, match="install the client of this version"):
            admin._ask("zookeeper_login")
        assert LOGIN.password not in json.dumps([admin.status(), admin._ask("clients")])
