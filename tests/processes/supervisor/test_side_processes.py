"""Side processes, with ``metrics`` as the example: bound before the start, replaced at the same address, stopped."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.addresses import address_text
from appliance.config import load
from appliance.errors import BadValue

from ...support.server import NotServing, Server, wait_for


def get(server: Server, path: str) -> bytes:
    with urllib.request.urlopen(f"http://{server.state['listeners']['metrics']}{path}", timeout=60) as answer:
        body: bytes = answer.read()
        return body


def test_it_serves_is_replaced_and_stops(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**{"metrics.listen": "127.0.0.1:0"})
    assert get(server, "/live") == b"live\n"
    first = server.pid_of("metrics")
    server.kill(first)
    assert get(server, "/live") == b"live\n"  # the socket is the supervisor's: nobody is refused meanwhile
    wait_for(lambda: server.pids("metrics") not in ([], [first]), "another process")
    assert server.processes("metrics")[0]["restarts"] == 1
    assert server.stop() == 0
    assert "did not stop in time" not in server.log()


def test_an_address_that_is_taken_fails_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = Server(tmp_path / "data", **{"metrics.listen": address_text(taken.getsockname())})
        with pytest.raises(NotServing, match=r"(?s)exit status 75.*metrics\.listen.*choose another address"):
            server.start()


def test_it_listens_at_one_address() -> None:
    with pytest.raises(BadValue, match=r"metrics\.listen.*one address"):
        load(None, ["metrics.listen=127.0.0.1:1,127.0.0.1:2"])
