"""appliance.processes.coordinator.peers: brokers log in to each other, whatever listeners ask of clients, and with TLS.

Nobody else gets their rights, or the password of the ensemble.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from typing import Any, TypeVar

import pytest

from appliance.client import Admin
from appliance.client.cluster_client import Cluster
from appliance.errors import BadCredentials, BrokerAway, GroupNotPermitted, InvalidRequest, NotPermitted, Unavailable
from appliance.groups.group_coordinator import coordinator_of
from appliance.processes.coordinator import peers as peers_module
from appliance.processes.coordinator.peers import KEPT_MAX, BrokerIdentity, PeerConnections
from appliance.security.configuration import Tls
from appliance.security.login_exchange import BROKER_LOGIN
from appliance.security.scram import ScramClient
from appliance.wire import native
from appliance.wire.kafka.metadata_reply import Broker
from appliance.wire.requests import LATEST, OffsetsPart, OffsetsResult
from appliance.zookeeper import transaction_nodes as nodes
from appliance.zookeeper.ensemble import Ensemble

from ...support.broker_requests import BROKER_ID, as_broker
from ...support.certificates import make_certificates
from ...support.command_line import succeeding
from ...support.native_peer import Peer
from ...support.server import Server, secret_in, wait_for
from ...support.zookeeper_fixture import ACCESS, LOGIN, fresh_connect

SASL = "SASL_SSL"
T = TypeVar("T")


class Pair:
    """Two appliances of one cluster that check rights: one whose native listener has TLS and a login, one without."""

    topic: str
    authority: str
    tls: ssl.SSLContext

    def __init__(self, servers: list[Server]) -> None:
        self.servers = servers
        self.addresses = [servers[0].native, servers[1].address("native", SASL)]
        self.secret = secret_in(servers[0].data_dir)

    def local(self, number: int) -> Admin:
        """An administrator."""
        return Admin(self.servers[number].state["listeners"]["local"])

    def ask(self, number: int, verb: str, **arguments: object) -> Any:
        """An admin verb, as clients ask that have transactions."""
        with closing(Cluster(self.servers[number].state["listeners"]["local"], client_name="test")) as cluster:
            return cluster.admin(verb, arguments)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, standalone: Ensemble) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("pair")
    both = ACCESS | {"zookeeper.connect": fresh_connect(standalone), "security.authorizer": "acl", "network.workers": 1}
    make_certificates(directory, "ca")
    make_certificates(directory, "server", "localhost", "127.0.0.1")
    both |= {"tls.certificate": f"{directory}/server.pem", "tls.key": f"{directory}/server.key"}
    both |= {"tls.ca": f"{directory}/ca.pem"}
    password = directory / "password"
    password.touch(0o600)
    password.write_text("correct horse\n")
    open_one: dict[str, Any] = both | {"broker.id": 1}
    with_login: dict[str, Any] = both | {"broker.id": 2, "native.listen": f"{SASL}://127.0.0.1:0"}
    with Server(directory / "1", **open_one) as one, Server(directory / "2", **with_login) as two:
        succeeding("users", "add", "alice", "--password-file", str(password), "--data", str(one.data_dir))
        wait_for(lambda: secret_in(one.data_dir) == secret_in(two.data_dir), "they share a secret")
        made = Pair([one, two])
        made.authority = f"{directory}/ca.pem"
        made.tls = ssl.create_default_context(cafile=made.authority)
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


def answer(ask: Callable[[], T]) -> T | None:
    """None: it is to be asked again."""
    try:
        return ask()
    except Unavailable:
        return None


@pytest.mark.parametrize("here", [0, 1])
def test_transactions_go_between_brokers_that_check_rights(pair: Pair, here: int) -> None:
    """Method: an administrator of each has a transaction of the other's; it has partitions and a group of both."""
    brokers, there = [Broker(1, "", 0), Broker(2, "", 0)], 1 - here
    names = (f"tx-{here}-{number}" for number in itertools.count())
    name = next(name for name in names if coordinator_of(nodes.slot_path(nodes.slot_of(name)), brokers).id == there + 1)
    with pair.local(here) as admin, pair.local(there) as other:
        for asked in (admin, other):
            wait_for(lambda asked=asked: answer(asked.transactions) is not None, "it knows the transactions of both")
        producer = {"id": name} | pair.ask(here, "init_transactions", id=name, timeout_ms=60_000)
        pair.ask(here, "add_partitions", **producer, partitions=[(pair.topic, 0), (pair.topic, 1)])
        assert sorted(admin.transaction(name)["parts"]) == [[pair.topic, 0], [pair.topic, 1]]
        for asked in (admin, other):
            assert name in {row["id"] for row in asked.transactions()}
        pair.ask(here, "end_transaction", **producer, committed=True)
        wait_for(lambda: admin.transaction(name)["state"] == "CompleteCommit", "all markers")


def test_a_topic_comes_back_from_the_trash_of_brokers_that_check_rights(pair: Pair) -> None:
    with pair.local(0) as admin:
        names = (f"trashed-{number}" for number in itertools.count())
        name = wait_for(lambda: _spread(admin, next(names)), "a topic is spread over both")
        admin.delete_topic(name)
        wait_for(lambda: answer(lambda: admin.undelete_topic(name)), "it is in the trash of both, and comes back")
        assert admin.topics([name])


def test_a_role_reaches_every_broker(pair: Pair) -> None:
    with pair.local(0) as one, pair.local(1) as two:
        one.create_role("readers")
        one.alter_role("readers", grant=["alice"])
        readers = {"name": "readers", "users": ["alice"], "rules": []}
        wait_for(lambda: two.roles() == [readers], "the other knows the role")
        two.delete_role("readers")
        wait_for(lambda: one.roles() == [], "and the one that it has gone")


@pytest.mark.parametrize("number", [0, 1])
def test_only_who_has_the_secret_is_a_broker(pair: Pair, number: int) -> None:
    address = pair.addresses[number] if number == 0 else f"{SASL}://{pair.addresses[number]}"
    tls = Tls(ca=pair.authority)

    async def ask_ends(peers: PeerConnections) -> list[OffsetsResult]:
        return await peers.ask_offsets(address, [OffsetsPart("none", 0, LATEST)])

    assert len(as_broker(pair.secret, ask_ends, tls)) == 1
    assert as_broker(b"x" * 32, ask_ends, tls) == []
    with pytest.raises(BrokerAway, match="login of a broker is refused"):
        as_broker(b"", lambda peers: peers.ask_admin(address, "delete_offsets", {"group": "g"}), tls)


@pytest.mark.parametrize("verb", ["users", "acls", "status", "create_topic"])
def test_a_broker_has_the_rights_that_it_needs_and_no_others(pair: Pair, verb: str) -> None:
    arguments = {"name": "x"} if verb == "create_topic" else {}
    with pytest.raises(NotPermitted):
        as_broker(pair.secret, lambda peers: peers.ask_admin(pair.addresses[0], verb, arguments))


def test_a_connection_is_kept_for_the_next_request(pair: Pair) -> None:
    """Goal: as many logins as requests are under way at once; no connection whose answer could be that of another."""
    secret, address = [pair.secret], pair.addresses[0]

    def logins() -> int:
        return pair.servers[0].log().count(f"logged in: who=Broker:{BROKER_ID} ")

    async def ask() -> None:
        peers = PeerConnections(lambda: BrokerIdentity(BROKER_ID, secret[0], Tls()))

        def ask_session() -> Coroutine[Any, Any, Any]:
            return peers.ask_admin(address, "begin_passing", {})

        before = logins()
        for _ in range(20):
            assert await ask_session()
        assert await peers.ask_offsets(address, [OffsetsPart("none", 0, LATEST)])
        assert logins() == before + 1
        given_up = asyncio.ensure_future(ask_session())
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait([given_up])
        assert not any(peers._kept.values()), "its answer comes behind that of no other request"
        await asyncio.gather(*(ask_session() for _ in range(KEPT_MAX + 4)))
        assert len(peers._kept[address]) == KEPT_MAX and logins() == before + 1 + KEPT_MAX + 4
        peers._kept[address][-1]._reader.feed_eof()  # the peer has closed it
        await ask_session()
        secret[0] = b"x" * 32
        with pytest.raises(BrokerAway, match="login of a broker is refused"):
            await ask_session()
        assert not any(peers._kept.values())
        secret[0] = pair.secret
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(peers_module, "KEPT_S", 0.01)
            await ask_session()
            while peers._kept:
                await asyncio.sleep(0.01)
        peers.close()

    asyncio.run(asyncio.wait_for(ask(), 60))


def login(peer: Peer, mechanism: str, user: str, password: bytes) -> int:
    """The error of a login; 0 when it succeeds."""
    scram = ScramClient("SCRAM-SHA-512", user, password)
    header = peer.call([native.LOGIN, 1, mechanism, scram.first()])[0]
    if header[1]:
        return int(header[1])
    return int(peer.call([native.LOGIN, 2, None, scram.final(header[3])])[0][1])


def test_users_are_not_taken_for_brokers(pair: Pair) -> None:
    """A user, even one who is called like a broker, by the mechanism of brokers; a listener without logins stays so."""
    for number, tls in enumerate((None, pair.tls)):
        with Peer(pair.addresses[number], tls=tls) as peer:
            assert login(peer, BROKER_LOGIN, "alice", b"correct horse") == BadCredentials.code
    with Peer(pair.addresses[1], tls=pair.tls) as peer:
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
    local = plain.state["listeners"]["local"]
    with Admin(local) as admin, closing(Cluster(local, client_name="test")) as cluster:
        with pytest.raises(InvalidRequest, match="install the client of this version"):
            cluster.admin("zookeeper_login", {})
        assert LOGIN.password not in json.dumps([admin.status(), admin.clients()])
