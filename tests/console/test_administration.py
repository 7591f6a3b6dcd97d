"""What the page changes and lists, over HTTP: with the rights of who is logged in, the name typed, an audit line."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.client import Producer
from appliance.client.cluster_client import Cluster
from appliance.console.administration import KINDS, ROWS_MAX
from appliance.security.api_rights import How
from appliance.security.scram import encode_verifier, make_verifier
from appliance.wire import native_admin
from appliance.zookeeper.ensemble import Ensemble

from ..support.server import Server, wait_for
from ..support.zookeeper_fixture import ACCESS, fresh_connect
from .test_application import Ask, asker, log_in

HOSTILE = "x\x1b]0;t\x07\u202eé\"'\n who=User:root<b>"
RULE = {"resource": "Topic", "name": "hers", "principal": "User:eve", "operation": "Read", "host": "*"}
RULE |= {"pattern": "Literal", "permission": "Allow"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, standalone: Ensemble) -> Iterator[Server]:
    """An appliance with access rules: root may do everything, alice something with topics "her*", bob nothing."""
    rights = {"security.authorizer": "acl", "security.super_users": "User:root"}
    settings = {"console.listen": "127.0.0.1:0", "zookeeper.connect": fresh_connect(standalone), **rights} | ACCESS
    with Server(tmp_path_factory.mktemp("administration") / "data", **settings) as server:
        with contextlib.closing(Cluster(server.state["listeners"]["local"])) as cluster:
            for user in ("root", "alice", "bob"):
                verifier = encode_verifier(make_verifier("SCRAM-SHA-256", user.encode(), 4096))
                cluster.admin("put_user", {"name": user, "verifiers": {"SCRAM-SHA-256": verifier}, "new": True})
            rows = [
                {"resource": kind, "name": "her", "pattern": "Prefixed", "principal": "User:alice", "operation": one}
                for kind, one in (("Topic", "Create"), ("Topic", "AlterConfigs"), ("Topic", "Read"), ("Topic", "Write"))
            ]
            cluster.admin("add_acls", {"acls": rows})
        yield server


def act(ask: Ask, token: dict[str, str], verb: str, confirm: str = "", **arguments: Any) -> tuple[int, Any]:
    return ask("/api/act", {"verb": verb, "arguments": arguments, "confirm": confirm}, **token)


@pytest.fixture
def root(server: Server) -> tuple[Ask, dict[str, str]]:
    ask = asker(server)
    return ask, log_in(ask, "root", "root")


@pytest.fixture
def alice(server: Server) -> tuple[Ask, dict[str, str]]:
    ask = asker(server)
    return ask, log_in(ask, "alice", "alice")


def local(server: Server) -> Cluster:
    return Cluster(server.state["listeners"]["local"])


SAMPLES: dict[str, tuple[dict[str, Any], str]] = {
    "create_topic": ({"name": "new"}, ""),
    "alter_topic": ({"name": "kept", "settings": {"retention.ms": "1h"}, "partitions": 9}, ""),
    "delete_topic": ({"name": "kept"}, "kept"),
    "undelete_topic": ({"name": "kept"}, ""),
    "trim": ({"name": "kept", "to": "latest"}, "kept"),
    "alter_group": ({"group": "kept", "settings": {"consumer.session.timeout.ms": "50000"}}, ""),
    "delete_offsets": ({"group": "kept"}, "kept"),
    "put_user": ({"name": "eve", "password": "long enough", "new": True}, ""),
    "alter_user": ({"name": "bob", "locked": True}, ""),
    "delete_user": ({"name": "bob"}, "bob"),
    "create_role": ({"name": "readers"}, ""),
    "alter_role": ({"name": "readers", "grant": ["bob"]}, ""),
    "delete_role": ({"name": "readers"}, "readers"),
    "add_acls": ({"acls": [RULE]}, ""),
    "delete_acls": (RULE, "User:eve"),
    "put_quota": ({"user": "eve", "limits": {"request_rate": 5}}, ""),
}
"""Each change, and what is typed for it."""


def test_every_change_has_a_sample_and_a_row_of_rights() -> None:
    assert SAMPLES.keys() == KINDS.keys()
    for kind in KINDS.values():
        assert any(right.how in (How.WHOLE, How.EACH, How.SUFFICES) for right in native_admin.VERBS[kind.verb].rights)


@pytest.mark.parametrize("verb", SAMPLES)
def test_nobody_changes_anything_without_login_token_and_right(server: Server, verb: str) -> None:
    arguments, typed = SAMPLES[verb]
    ask = asker(server)
    assert act(ask, {}, verb, typed, **arguments)[0] == 401
    token = log_in(ask, "bob", "bob")
    assert act(ask, {}, verb, typed, **arguments)[0] == 401, "without the token of the page"
    status, said = act(ask, token, verb, typed, **arguments)
    assert status == 403 and said["error"].startswith("not permitted: "), said
    native = KINDS[verb].verb
    wait_for(lambda: "who=User:bob from=127.0.0.1:" in server.log() and f'what="{native} ' in server.log(), "a line")


@pytest.mark.parametrize("verb", [verb for verb, (_, typed) in SAMPLES.items() if typed])
@pytest.mark.parametrize("typed", ["", "KEPT", "kept ", "*"])
def test_what_cannot_be_undone_needs_the_name(root: tuple[Ask, dict[str, str]], verb: str, typed: str) -> None:
    status, said = act(*root, verb, typed, **SAMPLES[verb][0])
    assert status == 400 and "to confirm, type its name" in said["error"]


def test_topics_are_made_changed_emptied_deleted_and_brought_back(
    server: Server, root: tuple[Ask, dict[str, str]], alice: tuple[Ask, dict[str, str]]
) -> None:
    assert act(*alice, "create_topic", name="hers", partitions=2, settings={"retention.ms": "1d"})[0] == 200
    assert act(*alice, "create_topic", name="hers")[0] == 409
    assert act(*alice, "create_topic", name="his")[0] == 403
    assert act(*alice, "create_topic", name="her/x")[0] == 400
    assert act(*alice, "alter_topic", name="hers", settings={"retention.ms": None, "flush.messages": "7"})[0] == 200
    assert act(*alice, "alter_topic", name="hers", partitions=3)[0] == 403, "that needs Alter"
    assert act(*alice, "alter_topic", name="hers", settings={"nothing": "1"})[0] == 400
    assert act(*alice, "delete_topic", "hers", name="hers")[0] == 403
    found = {row["name"]: row for row in alice[0]("/api/settings?topic=hers")[1]["settings"]}
    assert found["flush.messages"] == {"name": "flush.messages", "value": "7", "source": "topic"}
    assert found["retention.ms"]["source"] == "default"
    with Producer(server.state["listeners"]["local"]) as producer:
        for partition in (0, 1):
            producer.send("hers", b"x" * 100, partition=partition).result(60)
    ask, token = root
    status, gone = act(ask, token, "trim", "hers", name="hers", to="latest")
    assert status == 200 and gone["result"]["bytes"] > 200
    assert ask("/api/messages?topics=hers")[1]["messages"] == []
    assert act(ask, token, "delete_topic", "hers", name="hers")[1]["result"]["trash_ms"] > 0
    assert act(ask, token, "delete_topic", "hers", name="hers")[0] == 404
    assert [row["name"] for row in ask("/api/list?what=trash")[1]["rows"]] == ["hers"]
    assert act(ask, token, "undelete_topic", name="hers", new_name="again")[1]["result"]["partitions"] == 2
    lines = [line for line in server.log().splitlines() if "changed: who=User:root from=127.0.0.1:" in line]
    for words in (
        "what=delete_records topic=hers partition=1",
        "what=delete_topic topic=hers",
        "what=undelete_topic topic=hers as=again partitions=2",
    ):
        assert any(words in line for line in lines), words
    assert "changed: who=User:alice from=127.0.0.1:" in server.log()


def test_groups_are_reset_and_deleted(server: Server, root: tuple[Ask, dict[str, str]]) -> None:
    ask, token = root
    with contextlib.closing(local(server)) as cluster:
        cluster.admin("create_topic", {"name": "read"})
        cluster.admin("commit", {"group": HOSTILE, "offsets": [["read", 0, 0]]})
        wanted = {"group": HOSTILE, "topic": "read", "to": "latest"}
        assert ask("/api/offsets", {**wanted, "confirm": ""}, **token)[0] == 400
        assert ask("/api/offsets", {**wanted, "confirm": HOSTILE}, **token) == (200, {"partitions": 1})
        assert act(ask, token, "delete_offsets", HOSTILE, group=HOSTILE)[0] == 200
        assert HOSTILE not in cluster.admin("group_names", {})
    assert act(ask, token, "delete_offsets", HOSTILE, group=HOSTILE)[0] == 404
    assert act(ask, token, "delete_offsets", "g", group="g", forwarded=True)[0] == 400, "no field of brokers"


def test_users_log_in_with_what_was_typed(server: Server, root: tuple[Ask, dict[str, str]]) -> None:
    ask, token = root
    assert act(ask, token, "put_user", name="carol", password="first one", new=True)[0] == 200
    assert act(ask, token, "put_user", name="carol", password="first one", new=True)[0] == 409
    assert act(ask, token, "put_user", name="dave", password="not there", new=False)[0] == 404
    assert act(ask, token, "put_user", name="erin", password="too few", new=True)[0] == 400
    wait_for(lambda: asker(server)("/api/login", {"user": "carol", "password": "first one"})[0] == 200, "the login")
    assert act(ask, token, "put_user", name="carol", password="another one", new=False)[0] == 200
    assert "first one" not in server.log() and "another one" not in server.log()
    rows = ask("/api/list?what=users&text=CAR")[1]["rows"]
    assert [row["name"] for row in rows] == ["carol"] and set(rows[0]["mechanisms"]) == {
        "SCRAM-SHA-256",
        "SCRAM-SHA-512",
    }
    carol = asker(server)
    wait_for(lambda: carol("/api/login", {"user": "carol", "password": "another one"})[0] == 200, "the new password")
    assert carol("/api/session")[1]["user"] == "carol"
    assert act(ask, token, "alter_user", name="carol", locked=True)[0] == 200
    wait_for(lambda: carol("/api/session")[1]["user"] is None, "the end of the session of who is locked")
    refused = carol("/api/login", {"user": "carol", "password": "another one"})
    assert (refused[0], "locked" in str(refused[1])) == (401, True)
    assert ask("/api/list?what=users&text=CAR")[1]["rows"][0]["locked"]
    assert act(ask, token, "delete_user", "carol", name="carol")[0] == 200
    (kept,) = ask("/api/list?what=users&text=carol")[1]["rows"]
    assert kept["locked"] and not kept["mechanisms"], "a lock outlives the password"
    assert act(ask, token, "alter_user", name="carol", locked=False)[0] == 200
    assert ask("/api/list?what=users&text=carol")[1] == {"rows": [], "total": 0, "page_rows": ROWS_MAX, "others": 0}


def test_rules_and_quotas(server: Server, root: tuple[Ask, dict[str, str]]) -> None:
    ask, token = root
    assert act(ask, token, "add_acls", acls=[RULE, RULE | {"operation": "Write"}])[0] == 200
    assert act(ask, token, "add_acls", acls=[RULE | {"operation": "Fly"}])[0] == 400
    assert act(ask, token, "delete_acls", "")[0] == 400, "never all rules of all"
    assert act(ask, token, "delete_acls", "User:eve", **RULE)[1]["result"] == [RULE]
    left = ask("/api/list?what=acls&text=eve")[1]["rows"]
    assert [row["operation"] for row in left] == ["Write"]
    assert act(ask, token, "put_quota", user="eve", client_id=HOSTILE, limits={"request_rate": 5})[0] == 200
    assert act(ask, token, "put_quota", limits={"request_rate": 5})[0] == 400
    assert act(ask, token, "put_quota", user="eve", limits={"light": 5})[0] == 400
    (row,) = ask("/api/list?what=quotas")[1]["rows"]
    assert row == {"user": "eve", "client_id": HOSTILE, "limits": {"request_rate": 5.0}}
    assert act(ask, token, "put_quota", user="eve", client_id=HOSTILE, limits={"request_rate": None})[0] == 200
    assert ask("/api/list?what=quotas")[1]["rows"] == []
    assert "\x1b" not in server.log() and "\u202e" not in server.log()


def test_roles(server: Server, root: tuple[Ask, dict[str, str]]) -> None:
    """Who has one through it sees at once what it allows."""
    ask, token = root
    bob = asker(server)
    log_in(bob, "bob", "bob")
    assert act(ask, token, "create_role", name="lookers")[0] == 200
    assert act(ask, token, "create_role", name="look ers")[0] == 400
    rule = RULE | {"principal": "Role:lookers", "resource": "Cluster", "name": "kafka-cluster", "operation": "Describe"}
    assert act(ask, token, "add_acls", acls=[rule])[0] == 200
    assert act(ask, token, "add_acls", acls=[rule | {"principal": "Role:none"}])[0] == 400
    assert bob("/api/list?what=roles")[0] == 403
    assert act(ask, token, "alter_role", name="lookers", grant=["nobody"])[0] == 404
    assert act(ask, token, "alter_role", name="lookers", grant=["bob"])[0] == 200
    wait_for(lambda: bob("/api/list?what=roles")[0] == 200, "the right")
    assert bob("/api/list?what=roles&text=BOB")[1]["rows"] == [{"name": "lookers", "users": ["bob"], "rules": 1}]
    (through,) = [row for row in bob("/api/list?what=acls&text=lookers")[1]["rows"] if "role" in row]
    assert through == rule | {"principal": "User:bob", "role": "lookers"}
    assert act(ask, token, "delete_role", "lookers", name="lookers")[0] == 200
    wait_for(lambda: bob("/api/list?what=roles")[0] == 403, "the end of the right")
    assert "what=delete_role role=lookers revoked=bob" in server.log()


def test_connections_are_those_of_the_command(server: Server, root: tuple[Ask, dict[str, str]]) -> None:
    with contextlib.closing(Cluster(server.native, client_name="somebody")) as cluster:
        cluster.refresh([])
        seen = wait_for(lambda: root[0]("/api/list?what=clients&text=somebody")[1]["rows"], "the client")
        assert seen[0]["host"] == "127.0.0.1" and seen[0]["user"] == "User:ANONYMOUS"


@pytest.mark.parametrize("what", ["trash", "users", "roles", "acls", "quotas", "clients"])
def test_lists_need_their_right(server: Server, what: str) -> None:
    ask = asker(server)
    assert ask(f"/api/list?what={what}")[0] == 401
    log_in(ask, "bob", "bob")
    assert ask(f"/api/list?what={what}")[0] == 403
    assert ask("/api/settings?topic=hers")[0] == 403


def test_no_page_is_longer_than_its_bound(server: Server, root: tuple[Ask, dict[str, str]]) -> None:
    ask = root[0]
    rules = [RULE | {"name": f"many-{number}", "principal": "User:many"} for number in range(ROWS_MAX + 50)]
    with contextlib.closing(local(server)) as cluster:
        cluster.admin("add_acls", {"acls": rules})
        pages = [ask(f"/api/list?what=acls&text=many-&page={number}")[1] for number in range(3)]
        cluster.admin("delete_acls", {"principal": "User:many"})
    assert [len(page["rows"]) for page in pages] == [ROWS_MAX, 50, 0]
    assert {page["total"] for page in pages} == {ROWS_MAX + 50}
    names = [row["name"] for page in pages for row in page["rows"]]
    assert len(set(names)) == ROWS_MAX + 50


@pytest.mark.parametrize(
    "body",
    [
        {"verb": "status", "arguments": {}},
        {"verb": "accept_clock", "arguments": {}},
        {"verb": "", "arguments": {}},
        {"verb": "create_topic", "arguments": []},
        {"verb": "create_topic", "arguments": {"name": 5}},
        {"verb": "create_topic", "arguments": {"name": "x", "wrong": 1}},
        {"verb": "put_user", "arguments": {"name": "u", "password": "", "new": True}},
        {"verb": "put_user", "arguments": {"name": "\n", "password": "long enough", "new": True}},
        {"verb": "trim", "arguments": {"name": "x", "to": "earliest"}},
        {"verb": "delete_acls", "arguments": {"dry_run": True}},
        {"verb": "create_topic"},
        {},
        [],
        "x",
    ],
    ids=json.dumps,
)
def test_wrong_changes_are_answered(root: tuple[Ask, dict[str, str]], body: Any) -> None:
    assert root[0]("/api/act", body, **root[1])[0] == 400


def test_only_verbs_that_are_written_down_change_something() -> None:
    """The table names no verb that the protocol lacks."""
    assert {kind.verb for kind in KINDS.values()} <= native_admin.VERBS.keys() - {"accept_clock"}
