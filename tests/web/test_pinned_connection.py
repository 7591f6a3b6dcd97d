"""appliance.web.pinned_connection: an exchange ends in its time, whatever the server does."""

from __future__ import annotations

import socket
import threading
from typing import Any
from urllib.parse import urlsplit

import pytest

from appliance.web import pinned_connection
from appliance.web.pinned_connection import PinnedConnection

HEAD = b"HTTP/1.1 200 OK\r\n"
DRIPS = {
    "TLS": ("https", b"\x16\x03\x03\x40\x00", b"\x02"),
    "a head": ("http", HEAD, b"x"),
    "a body": ("http", HEAD + b"content-length: 100000\r\n\r\n", b"x"),
    "a body that ends with the connection": ("http", HEAD + b"connection: close\r\n\r\n", b"x"),
    "an answer before the answer": ("http", b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
}
PIECES_MAX = 200


@pytest.mark.parametrize("name", DRIPS)
def test_what_comes_in_drips_is_ended(name: str) -> None:
    """Each piece comes in time; all of them would take 30 times as long as the exchange may."""
    scheme, first, piece = DRIPS[name]
    over, left = threading.Event(), PIECES_MAX

    def drip() -> None:
        nonlocal left
        sock, _ = listening.accept()
        with sock:
            sock.sendall(first)
            try:
                while left and not over.wait(0.05):
                    left -= 1
                    sock.sendall(piece)
            except OSError:
                pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=drip)
        thread.start()
        try:
            url = urlsplit(f"{scheme}://127.0.0.1:{listening.getsockname()[1]}/")
            with pytest.raises(TimeoutError, match=r"has not answered in 0\.3 s"):
                PinnedConnection(url, 0.3).exchange("GET", "/", {}, 200_000)
            assert left, "it was ended before the server did"
        finally:
            over.set()
            thread.join()


@pytest.mark.parametrize(
    ("taken_s", "shares_s"), [([3, 3, 3], [3, 3, 3]), ([0, 0, 9], [3, 4.5, 9]), ([1, 4, 4], [3, 4, 4])]
)
def test_addresses_share_the_time_that_is_left(
    monkeypatch: pytest.MonkeyPatch, taken_s: list[float], shares_s: list[float]
) -> None:
    """One that is silent leaves the others their shares; one that refuses at once leaves them all of its own."""
    passed_s, given = 0.0, []

    def connect(address: Any, timeout_s: float) -> socket.socket:
        nonlocal passed_s
        passed_s += taken_s[len(given)]
        given.append(timeout_s)
        raise TimeoutError

    monkeypatch.setattr(pinned_connection, "addresses_of", lambda host, port: ["192.0.2.1", "192.0.2.2", "192.0.2.3"])
    monkeypatch.setattr(pinned_connection, "now_ms", lambda: int(passed_s * 1000))
    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(TimeoutError):
        PinnedConnection(urlsplit("http://keys.example/"), 9).exchange("GET", "/", {}, 1)
    assert given == shares_s
