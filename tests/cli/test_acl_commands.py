"""appliance.cli.acl_commands, against a real appliance, whose administrator comes through the Unix socket."""

from __future__ import annotations

from collections.abc import Callable

from appliance.zookeeper.ensemble import Ensemble

from ..support.command_line import run, succeeding
from ..support.server import Server
from ..support.zookeeper_fixture import ACCESS, fresh_connect


def test_rules_are_added_listed_and_deleted(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**{"security.authorizer": "acl"})
    at = ("--data", str(server.data_dir))
    bob = ("--principal", "User:bob")
    added = succeeding("acl", "add", *bob, "--operation", "Read", "--topic", "web", "--group", "g", "--json", *at).json
    assert [(row["resource"], row["name"]) for row in added] == [("Topic", "web"), ("Group", "g")]
    succeeding("acl", "add", *bob, "--operation", "write", "--topic", "we", "--prefixed", "--deny", *at)
    about = succeeding("acl", "list", "--topic", "web", "--json", *at).json
    assert [(row["pattern"], row["permission"]) for row in about] == [("Prefixed", "Deny"), ("Literal", "Allow")]
    assert run("acl", "delete", *bob, *at).status == 2, "nobody can be asked"
    assert len(succeeding("acl", "delete", *bob, "--dry-run", "--json", *at).json) == 3
    assert len(succeeding("acl", "delete", *bob, "--group", "g", "--yes", "--json", *at).json) == 1
    assert len(succeeding("acl", "list", "--json", *at).json) == 2
    assert run("acl", "add", *bob, "--operation", "IdempotentWrite", "--topic", "web", *at).status == 2


def test_what_was_done_is_said_and_what_is_not_there_yet(
    make_appliance: Callable[..., Server], standalone: Ensemble
) -> None:
    """A rule for a name that nothing has is a typing error, or comes before the first message: one is told."""
    server = make_appliance(**{"security.authorizer": "acl", "zookeeper.connect": fresh_connect(standalone)}, **ACCESS)
    server.wait_for_zookeeper()
    at = ("--data", str(server.data_dir))
    succeeding("topics", "create", "web-access", *at)
    rule = ("--principal", "User:bob", "--operation", "Read")
    there = succeeding("acl", "add", *rule, "--topic", "web-access", *at)
    assert there.err.splitlines() == ["added 1 rule:"]
    absent = succeeding("acl", "add", *rule, "--topic", "web-acces", "--group", "reports", *at)
    assert absent.err.splitlines() == [
        "added 2 rules:",
        "there is no topic 'web-acces' yet: the rule applies when it is made",
        "there is no group 'reports' yet: the rule applies when it is made",
    ]
    assert "yet" not in succeeding("acl", "add", *rule, "--topic", "web-", "--prefixed", *at).err
    assert "yet" not in succeeding("acl", "add", *rule, "--topic", "*", *at).err
    beginning = succeeding("acl", "add", *rule, "--topic", "app-", "--prefixed", *at)
    assert "no topic begins with 'app-' yet: the rule applies to those that are made" in beginning.err
    words = ("acl", "delete", *rule, "--group", "reports", *at)
    assert succeeding(*words, "--dry-run").err == "would delete 1 rule:\n"
    assert succeeding(*words, "--yes").err == "deleted 1 rule:\n"
    assert succeeding(*words, "--yes").err.startswith("no rule has all of this, nothing is deleted: ")


def test_a_principal_that_is_none_is_told_in_our_words(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**{"security.authorizer": "acl"})
    for principal, says in {
        "bob": "nobody is called 'bob': a principal is User:NAME, or Role:NAME",
        "user:bob": "nobody is called 'user:bob': a principal is User:NAME, or Role:NAME",
        "": "nobody is called ''",
        "User:" + 1_100 * "b": "acls[0].principal: must have at most 1000 characters",
    }.items():
        words = ("--principal", principal, "--operation", "Read", "--topic", "web")
        said = run("acl", "add", *words, "--data", str(server.data_dir))
        assert said.status == 65 and says in said.err and "regex" not in said.err, said


def test_without_an_authorizer_a_rule_is_refused(appliance: Server) -> None:
    at = ("--data", str(appliance.data_dir))
    said = run("acl", "add", "--principal", "User:bob", "--operation", "Read", "--topic", "web", *at)
    assert said.status == 65 and "security.authorizer" in said.err
