"""appliance.cli.acl_commands, against a real appliance, whose administrator comes through the Unix socket."""

from __future__ import annotations

from collections.abc import Callable

from ..support.command_line import run, succeeding
from ..support.server import Server


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


def test_without_an_authorizer_a_rule_is_refused(appliance: Server) -> None:
    at = ("--data", str(appliance.data_dir))
    said = run("acl", "add", "--principal", "User:bob", "--operation", "Read", "--topic", "web", *at)
    assert said.status == 65 and "security.authorizer" in said.err
