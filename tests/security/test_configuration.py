"""appliance.security.configuration: what other hosts reach is safe, or refused, or said aloud."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.addresses import Listener
from appliance.config import load
from appliance.errors import BadValue
from appliance.security.configuration import Tls, is_insecure, is_loopback

from ..support.command_line import run, succeeding
from ..support.server import NotServing, Server

FILES = ["tls.certificate=/c", "tls.key=/k", "tls.ca=/a"]


@pytest.mark.parametrize(
    "address, loopback",
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("unix:/s", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("[fe80::1%lo]:1", False),
        ("10.0.0.1:1", False),
        ("logs.example.net:1", False),
        ("localhost.example.net:1", False),
    ],
)
def test_which_addresses_other_hosts_reach(address: str, loopback: bool) -> None:
    assert is_loopback(Listener("native", "PLAINTEXT", address)) is loopback


@pytest.mark.parametrize("client_auth", ["none", "requested", "required"])
def test_tls_and_authentication_are_needed_both(client_auth: str) -> None:
    tls = Tls(client_auth=client_auth)  # type: ignore[arg-type]
    insecure = {
        security: is_insecure(Listener("kafka", security, "10.0.0.1:1"), tls)
        for security in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
    }
    mutual = client_auth == "required"
    assert insecure == {"PLAINTEXT": True, "SSL": not mutual, "SASL_PLAINTEXT": True, "SASL_SSL": False}


def test_what_is_safe_may_be_open_to_other_hosts() -> None:
    load(overrides=["kafka.listen=SSL://0.0.0.0:1", "tls.client_auth=required", *FILES])
    load(overrides=["kafka.listen=0.0.0.0:1", "security.allow_insecure=true"])
    with pytest.raises(BadValue, match="must be SASL_SSL"):
        load(overrides=["kafka.listen=SSL://0.0.0.0:1", "tls.client_auth=requested", *FILES])


def test_a_start_that_is_not_safe_is_refused(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", **{"kafka.listen": "0.0.0.0:0"})
    with pytest.raises(NotServing, match=r"exit status 78(?s:.)*whoever does may do everything(?s:.)*allow_insecure"):
        server.start()


def test_one_that_is_allowed_all_the_same_says_so_aloud(make_appliance: Callable[..., Server], tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"{tmp_path}/notify")
        manager.settimeout(60)
        environment = {"NOTIFY_SOCKET": f"{tmp_path}/notify"}
        settings = {"kafka.listen": "0.0.0.0:0", "security.allow_insecure": "true"}
        server = make_appliance(environment=environment, **settings)
        assert f"INSECURE: kafka {server.kafka}" in manager.recv(4096).decode()
    assert server.state["insecure"] == [f"kafka {server.kafka}"]
    assert f"INSECURE: kafka {server.kafka}: whoever reaches this address may do everything" in server.log()
    assert "INSECURE" in succeeding("status", "--data", str(server.data_dir)).out
    assert server.stop() == 0
    assert "INSECURE" not in run("status", "--data", str(server.data_dir)).out


@pytest.mark.parametrize(
    "text", ["admin", "user:admin", "Role:admins", "User:a,User:b", "User:a; b", "User:CN=a,O=b;Broker:1"]
)
def test_a_super_user_that_nobody_is_is_refused(text: str) -> None:
    """He would have no right, and nothing would say so."""
    with pytest.raises(BadValue, match=r"security\.super_users: nobody is called"):
        load(None, [f"security.super_users={text}"])
    whole = "User:admin; User:CN=ops,O=example ;"
    assert load(None, [f"security.super_users={whole}"]).security.super_users == whole
