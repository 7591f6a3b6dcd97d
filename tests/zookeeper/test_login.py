"""appliance.zookeeper.login: the example of RFC 2831, a server that does not know the password, and a real ensemble."""

from __future__ import annotations

from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoAuthError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import make_digest_acl

from appliance.config import ZooKeeperSection
from appliance.durable_files import replace_file
from appliance.errors import BadValue
from appliance.zookeeper.ensemble import Ensemble
from appliance.zookeeper.kazoo_link import kazoo_client
from appliance.zookeeper.login import LOCAL_USER, DigestMd5, ZooKeeperLogin, login_of

from ..support.zookeeper_fixture import LOGIN, running

CHALLENGE = b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8'
URI = b"imap/elwood.innosoft.com"


def exchange() -> DigestMd5:
    return DigestMd5(ZooKeeperLogin("sasl", "chris", "secret"), b"OA6MHXh6VqTrRk")


def test_the_example_of_the_rfc() -> None:
    client = exchange()
    response = client.respond(CHALLENGE, URI)
    assert b"response=d388dad90d4bbd760a152321f2143af7" in response and b'realm="elwood.innosoft.com"' in response
    assert b"secret" not in response and not client.complete
    assert client.respond(b"rspauth=ea40f60335c427b5527b84dbabcdfffd") == b"" and client.complete


@pytest.mark.parametrize("proof", [b"rspauth=ea40f60335c427b5527b84dbabcdfffe", b"", b"x" * 100_000])
def test_a_server_that_does_not_know_the_password_is_not_believed(proof: bytes) -> None:
    client = exchange()
    client.respond(CHALLENGE, URI)
    with pytest.raises(ValueError, match="does not know"):
        client.respond(proof)
    assert not client.complete


@pytest.mark.parametrize("challenge", [b"", b"hello", b'nonce="x",qop="auth-conf"', b'realm="\\', b"=" * 10_000])
def test_what_is_no_challenge_is_refused(challenge: bytes) -> None:
    with pytest.raises(ValueError, match="no challenge"):
        exchange().respond(challenge)


def test_the_password_is_in_no_text() -> None:
    login = ZooKeeperLogin("sasl", "alice", "hidden-secret")
    assert "hidden-secret" not in f"{login} {login!r}"


def test_who_we_are(tmp_path: Path) -> None:
    file = tmp_path / "password"
    external = ZooKeeperSection(connect="zk:2181", user="us", password_file=str(file), scheme="digest")
    with pytest.raises(BadValue, match=r"zookeeper\.password_file = .*No such file"):
        login_of(external, tmp_path)
    replace_file(file, b"word\n")
    assert login_of(external, tmp_path) == ZooKeeperLogin("digest", "us", "word")
    with pytest.raises(BadValue, match="name it in"):
        login_of(ZooKeeperSection(connect="zk:2181", user="us"), tmp_path)
    assert login_of(ZooKeeperSection(connect="zk:2181"), tmp_path) is None
    assert login_of(ZooKeeperSection(nodes=0), tmp_path) is None


def connected(login: ZooKeeperLogin | None, ensemble: Ensemble) -> KazooClient:
    client = kazoo_client(ensemble.connect, login, timeout=3)
    client.start(20)
    return client


def test_only_who_knows_the_password_gets_in(ensemble: Ensemble) -> None:
    """Neither an unknown user, nor a wrong password, nor one of ZooKeeper's digest users, whom it does not check."""
    insider = connected(LOGIN, ensemble)
    insider.ensure_path("/inside/secret")
    acl, _ = insider.get_acls("/inside/secret")
    assert [(one.id.scheme, one.id.id, one.perms) for one in acl] == [("sasl", LOCAL_USER, 31)]
    strangers = [None, ZooKeeperLogin("digest", LOCAL_USER, LOGIN.password)]
    strangers += [ZooKeeperLogin("sasl", LOCAL_USER, "wrong"), ZooKeeperLogin("sasl", "root", LOGIN.password)]
    for stranger in strangers:
        client = kazoo_client(ensemble.connect, stranger, timeout=3)
        with pytest.raises((KazooException, KazooTimeoutError)):
            client.start(3)
            client.get_children("/")
        client.stop()
        client.close()
    insider.stop()
    insider.close()


def test_an_open_ensemble_of_an_earlier_release_is_taken_over(tmp_path: Path) -> None:
    """Its nodes are open to all; whoever has the password uses them as before, and nobody else gets in."""
    with running(tmp_path, 1) as ensemble:
        before = connected(LOGIN, ensemble)
        open_to_all = [acl._replace(perms=31, id=acl.id._replace(scheme="world", id="anyone")) for acl in any_acl()]
        before.create("/brokers", b"old", acl=open_to_all)
        before.stop()
        before.close()
        after = connected(LOGIN, ensemble)
        assert after.get("/brokers")[0] == b"old"
        after.set("/brokers", b"new")
        after.create("/brokers/ids")
        after.stop()
        after.close()


def test_nodes_of_an_external_ensemble_belong_to_the_digest_user(standalone: Ensemble) -> None:
    """ZooKeeper's own digest.  Here on top of SASL, without which this ensemble serves nobody."""
    ours = connected(LOGIN, standalone)
    ours.add_auth("digest", "us:word")
    acl = make_digest_acl("us", "word", all=True)
    ours.create("/of-digest-user", b"", acl=[acl])
    other = connected(LOGIN, standalone)
    with pytest.raises(NoAuthError):
        other.set("/of-digest-user", b"x")
    ours.set("/of-digest-user", b"y")
    for client in (ours, other):
        client.stop()
        client.close()


def any_acl() -> list[object]:
    return [make_digest_acl("x", "x", all=True)]
