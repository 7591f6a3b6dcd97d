"""appliance.cli.target: commands reach an appliance that has no other listener through its Unix socket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ..support.command_line import run, succeeding
from ..support.server import Server


def test_data_finds_the_unix_socket_and_needs_no_other_listener(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance("d" * 90, **{"native.listen": "", "kafka.listen": ""})
    assert set(server.state["listeners"]) == {"local"}
    data = ("--data", str(server.data_dir))
    succeeding("topics", "create", "t", "--partitions", "2", *data)
    succeeding("produce", "t", *data, stdin=b"one\ntwo\n")
    said = succeeding("consume", "t", "--from", "earliest", "--timeout", "1", *data)
    assert sorted(said.out.split()) == ["one", "two"]
    connected = succeeding("topics", "list", "--json", "--connect", f"unix:{server.data_dir}/native.sock")
    assert [row["name"] for row in connected.json] == ["t"]
    assert server.stop() == 0
    assert not (server.data_dir / "native.sock").exists()
    assert run("topics", "list", *data).status == 75


def test_another_user_gets_the_listener_instead(
    make_appliance: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    from appliance.cli import target

    server = make_appliance(**{"native.listen": "[::1]:0,127.0.0.1:0"})
    assert target.address(server.data_dir, None) == f"unix:{server.data_dir}/native.sock"
    monkeypatch.setattr(target.os, "access", lambda path, mode, **_: False)
    assert target.address(server.data_dir, None) == server.native and server.native.startswith("[::1]:")


def test_a_socket_of_a_killed_appliance_is_replaced(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance()
    server.kill_supervisor()
    assert (server.data_dir / "native.sock").exists()
    server.start()
    succeeding("topics", "list", "--data", str(server.data_dir))


def test_what_is_no_address(tmp_path: Path) -> None:
    said = run("topics", "list", "--connect", "TLS://host:1")
    assert said.status == 2 and "PLAINTEXT, SSL" in said.err
    assert said.err.count("TLS://host:1") == 1, "the value is named once"


def test_a_login_that_nobody_asks_for_is_told(
    appliance: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    """Else who has made a user, and gives its name, takes the user for who has written."""
    password = tmp_path / "password"
    password.touch(0o600)
    password.write_text("a long password\n")
    at = ("--connect", appliance.native)
    made = succeeding("users", "add", topic, "--password-file", str(password), *at)
    assert made.out == f"added {topic}\n" and made.err.startswith("no listener asks clients for a login yet: ")
    assert succeeding("users", "password", topic, "--password-file", str(password), *at).err == ""
    monkeypatch.setenv("APPLIANCE_USER", topic)
    monkeypatch.setenv("APPLIANCE_PASSWORD_FILE", str(password))
    told = succeeding("topics", "list", "--json", *at)
    assert told.err == f"APPLIANCE_USER is not used: {appliance.native} asks for no login, SASL_SSL://HOST:PORT would\n"
    assert isinstance(told.json, list)
    assert succeeding("topics", "list", "--data", str(appliance.data_dir)).err == ""
