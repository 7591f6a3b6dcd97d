"""appliance.cli.roles_commands, against a real appliance, whose administrator comes through the Unix socket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..support.command_line import run, succeeding
from ..support.server import Server


def test_a_role_is_made_given_shown_taken_and_deleted(make_appliance: Callable[..., Server], tmp_path: Path) -> None:
    server = make_appliance(**{"security.authorizer": "acl"})
    at = ("--data", str(server.data_dir))
    password = tmp_path / "password"
    password.touch(0o600)
    password.write_text("correct horse\n")
    succeeding("users", "add", "alice", "--password-file", str(password), *at)
    assert "created readers" in succeeding("roles", "create", "readers", *at).out
    succeeding("acl", "add", "--principal", "Role:readers", "--operation", "Read", "--topic", "web", *at)
    assert "gave readers to alice" in succeeding("roles", "grant", "readers", "alice", *at).out
    assert run("roles", "grant", "readers", "bob", *at).status != 0, "there is no bob"
    succeeding("roles", "grant", "readers", "CN=bob,O=x", "--without-password", *at)
    listed = succeeding("roles", "list", *at).out.splitlines()
    assert listed == ["name\tusers\trules", "readers\tCN=bob,O=x alice\t1"]
    assert "\treaders\t" in succeeding("users", "list", *at).out
    (through,) = succeeding("acl", "list", "--principal", "User:alice", "--json", *at).json
    assert (through["operation"], through["name"], through["role"]) == ("Read", "web", "readers")
    said = run("acl", "delete", "--principal", "User:alice", "--yes", *at)
    assert said.status == 65 and "appliance roles revoke readers alice" in said.err
    succeeding("roles", "revoke", "readers", "alice", *at)
    assert succeeding("acl", "list", "--principal", "User:alice", "--json", *at).json == []
    assert run("roles", "delete", "readers", *at).status == 2, "nobody can be asked"
    assert "would delete readers, which 1 user had" in succeeding("roles", "delete", "readers", "--dry-run", *at).out
    assert succeeding("roles", "delete", "readers", "--yes", "--json", *at).json["users"] == ["CN=bob,O=x"]
    assert succeeding("roles", "list", "--json", *at).json == succeeding("acl", "list", "--json", *at).json == []


def test_without_an_authorizer_a_role_is_refused(appliance: Server) -> None:
    said = run("roles", "create", "readers", "--data", str(appliance.data_dir))
    assert said.status == 65 and "security.authorizer" in said.err
