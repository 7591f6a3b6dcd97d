"""One bad sender never stops the others, holds no memory, and leaves no traceback; TLS and certificates; no room."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import os
import signal
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.bench.accounts import pss_bytes
from appliance.client import Admin

from ..support.certificates import make_certificates
from ..support.server import stopped, wait_for
from .http_box import Box, box, make_identities

TABLES = """
[inputs.web]
type = "http"
listen = ["127.0.0.1:0"]
topic = "web"
body_bytes_max = 1048576
connections_max = 50
[inputs.secure]
type = "http"
listen = ["https://127.0.0.1:0"]
topic = "secure"
[inputs.strange]
type = "http"
listen = ["127.0.0.1:0"]
topic = "strange"
[tls]
certificate = "{directory}/server.pem"
key = "{directory}/server.key"
ca = "{directory}/ca.pem"
client_auth = "required"
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_identities(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="module")
def web(directory: Path) -> Iterator[Box]:
    with box(directory, TABLES.format(directory=directory)) as found:
        yield found
        assert "Traceback" not in found.server.log()


def connect(web: Box, name: str = "web") -> socket.socket:
    return socket.create_connection(web.address(name), 60)


def read_all(sock: socket.socket) -> bytes:
    """What comes until the other side closes."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := sock.recv(65536):
            data += piece
    return data


GARBAGE = {
    "no HTTP": b"\x16\x03\x01\x02\0\1\0\1\xfc\x03\x03" * 20,
    "a native frame": struct.pack(">I", 1 << 30) + b"x" * 100,
    "no path": b"POST\r\n\r\n",
    "a method that is none": b"PO\xffST / HTTP/1.1\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
    "a length and chunks": b"POST / HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a negative length": b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
    "a huge length": b"POST / HTTP/1.1\r\ncontent-length: 99999999999999999999999999\r\n\r\n",
    "a chunk of no size": b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    "a head without end": b"POST / HTTP/1.1\r\nx: " + b"y" * 400_000,
    "headers without end": b"POST / HTTP/1.1\r\n" + b"x: y\r\n" * 60_000,
    "trailers without end": b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n" + b"x: y\r\n" * 60_000,
    "an odd path": b"POST /%ff%00/\xe2\x82 HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
    "CONNECT": b"CONNECT x:443 HTTP/1.1\r\nhost: x\r\n\r\n",
    "an upgrade": b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
    "many requests at once": b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\nx" * 2_000,
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_what_is_no_request_ends_its_own_connection_only(web: Box, kind: str) -> None:
    with connect(web) as good, connect(web) as bad:
        with contextlib.suppress(OSError):  # it may be closed before all was sent
            bad.sendall(GARBAGE[kind])
            bad.shutdown(socket.SHUT_WR)
        read_all(bad)
        good.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
        assert read_all(good).startswith(b"HTTP/1.1 200 ")


def test_a_sender_that_goes_away_leaves_nothing_in_the_topic(web: Box) -> None:
    web.send("web", "first")
    before = len(web.values("web"))
    for _ in range(20):
        with connect(web) as sock:
            sock.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nhalf a li")
    assert web.send("web", "whole").status == 200
    assert web.values("web")[before:] == [b"whole"]


def test_who_holds_all_places_without_a_request_loses_them_to_others(web: Box) -> None:
    with contextlib.ExitStack() as held:
        for number in range(200):
            sock = held.enter_context(connect(web))
            with contextlib.suppress(ConnectionError):
                sock.sendall(b"POST / HTTP/1.1\r\nhost: x\r\n" + b"content-length: 9\r\n\r\n1" * (number % 2))
        for _ in range(20):
            assert web.send("web", "ok").status == 200


def test_connections_that_have_sent_something_once_give_way_too(web: Box) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(60):
            sock = held.enter_context(connect(web))
            sock.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nok")
            assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert web.send("web", "ok").status == 200


@settings(max_examples=20)
@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1, max_size=20), min_size=1),
    st.lists(st.integers(1, 300), max_size=8),
    st.booleans(),
    st.booleans(),
)
def test_a_request_is_the_same_in_whatever_pieces_it_comes(
    web: Box, lines: list[str], cuts: list[int], is_packed: bool, is_chunked: bool
) -> None:
    web.send("web", "first")
    before = len(web.values("web"))
    body = "\n".join(lines).encode()
    sent = gzip.compress(body) if is_packed else body
    head = b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + b"content-encoding: gzip\r\n" * is_packed
    if is_chunked:
        pieces = [sent[at : at + (cuts or [7])[0]] for at in range(0, len(sent), (cuts or [7])[0])]
        head += b"transfer-encoding: chunked\r\n\r\n"
        request = head + b"".join(b"%x;x=y\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\nt: u\r\n\r\n"
    else:
        request = head + b"content-length: %d\r\n\r\n" % len(sent) + sent
    with connect(web) as sock:
        for cut in [*cuts, len(request)]:
            sock.sendall(request[:cut])
            request = request[cut:]
        assert read_all(sock).startswith(b"HTTP/1.1 200 ")
    assert web.values("web")[before:] == [line.encode() for line in lines]


def test_a_head_and_a_body_that_trickle_are_ended(web: Box) -> None:
    with connect(web) as head, connect(web) as body:
        head.sendall(b"POST / HT")
        body.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nx")
        assert read_all(head) == b""
        assert read_all(body).startswith(b"HTTP/1.1 408 ")


def test_an_early_answer_is_read_by_a_sender_that_sends_all_first(web: Box) -> None:
    with connect(web) as sock:
        sock.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3000000\r\n\r\n" + b"x\n" * 1_500_000)
        assert read_all(sock).startswith(b"HTTP/1.1 413 ")


def test_a_sender_that_waits_to_be_asked_is_refused_before_it_sends(web: Box) -> None:
    head = b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n"
    with connect(web) as sock:
        sock.sendall(head % (1 << 30))
        assert sock.recv(65536).startswith(b"HTTP/1.1 413 ")
    with connect(web) as sock:
        sock.sendall(head % 2)
        assert sock.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"ok")
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_what_many_records_share_does_not_fill_the_disk(web: Box) -> None:
    """32 KiB of labels, and 10,000 lines with them: 300 MB of a body of 200 KB."""
    labels = {f"label_{number}": "x" * 8_000 for number in range(4)}
    push = {"streams": [{"stream": labels, "values": [["1", "x"]] * 10_000}]}
    reply = web.send("web", msgspec.json.encode(push), "/loki/api/v1/push", content_type="application/json")
    assert (reply.status, "smaller requests" in reply.text) == (413, True)
    before = len(web.values("web"))
    assert web.send("web", "x\n" * 20_000, f"/?app={'y' * 50_000}").status == 200
    assert sum(len(value or b"") for _, value in web.messages("web")[before].headers) < 1_000


# ---- TLS


def context(directory: Path, client: str = "") -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(directory / "ca.pem"))
    if client:
        made.load_cert_chain(directory / f"{client}.pem", directory / f"{client}.key")
    return made


def test_a_sender_needs_a_certificate_where_they_are_required(web: Box, directory: Path) -> None:
    assert web.send("secure", "x", tls=context(directory, "shipper")).status == 200
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
        web.send("secure", "x", tls=context(directory))
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        web.send("secure", "x")
    assert web.values("secure") == [b"x"]


def test_handshakes_that_never_end_keep_nobody_out(web: Box, directory: Path) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(100):
            held.enter_context(connect(web, "secure")).sendall(b"\x16\x03\x01")
        assert web.send("secure", "x", tls=context(directory, "shipper")).status == 200


def test_a_new_certificate_is_used_without_a_restart(web: Box, directory: Path) -> None:
    def serial() -> int:
        sock = connect(web, "secure")
        with context(directory, "shipper").wrap_socket(sock, server_hostname="127.0.0.1") as secured:
            return int(str((secured.getpeercert() or {})["serialNumber"]), 16)

    before = serial()
    for name in ("server.pem", "server.key"):
        (directory / name).unlink()
    assert make_certificates(directory, "server", "127.0.0.1", "localhost").returncode == 0
    wait_for(lambda: serial() != before, "the new certificate")


# ---- no room, no topic


def test_senders_to_a_topic_that_is_not_writable_are_told_that_there_is_no_room(web: Box) -> None:
    assert web.send("strange", "first").status == 200
    pid = web.pid("strange")
    before = pss_bytes(pid)
    body = b"".join(b"%199d\n" % number for number in range(40_000))
    statuses: list[int] = []

    def send() -> None:
        statuses.append(web.send("strange", body).status)

    threads = [threading.Thread(target=send) for _ in range(8)]
    supervisor = next(row["pid"] for row in web.server.processes("supervisor"))
    with contextlib.ExitStack() as held:  # else it would replace a writer that stands still
        for process in (supervisor, *web.server.pids("writer")):
            held.enter_context(stopped(process))
        for thread in threads:
            thread.start()
        wait_for(lambda: len(statuses) == 4, "senders to be told that there is no room")
        assert set(statuses) == {429}
        assert pss_bytes(pid) - before < 200 << 20
    for thread in threads:
        thread.join()
    assert statuses[4:] == [200] * 4
    wait_for(lambda: web.send("strange", "x").status == 200, "room again")


@pytest.mark.long  # 30 s: a producer waits for a topic that it has known
def test_a_topic_that_was_deleted_is_made_again(web: Box) -> None:
    assert web.send("strange", "x").status == 200
    with Admin(web.server.native) as admin:
        admin.delete_topic("strange")
    wait_for(lambda: web.send("strange", "again").status == 200, "the topic to be there again")
    assert b"again" in web.values("strange")


def test_an_input_survives_what_came_to_it(web: Box) -> None:
    """At the end: none of the processes was started again but those that a test killed."""
    counts = {row["pid"]: row["restarts"] for row in web.server.processes("input")}
    assert set(counts.values()) == {0}
    os.kill(web.pid("web"), signal.SIGKILL)
    assert web.send("web", "x").status == 200
