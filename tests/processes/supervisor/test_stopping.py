"""An ordered stop waits for nobody who does not move: only an answer to a produce request is worth a wait.

What would wait does so until the stop's time is over, and is killed then, which the journal has.
"""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from appliance.addresses import parse_addresses
from appliance.metrics.readings import Reader
from appliance.records.encode import encode_values
from appliance.wire import native

from ...support.certificates import make_certificates
from ...support.kafka_peer import KafkaPeer
from ...support.native_peer import Peer
from ...support.ready import readable, writable
from ...support.server import Server, stopped, wait_for

BIG = encode_values([bytes(900_000)], 1_000)
SMALL = encode_values([b"one"], 1_000)
TOPIC = "t"
FILL = 30

Client = Callable[[Server, ExitStack], None]


def fill(server: Server) -> None:
    with Peer(server.native) as peer:
        peer.create(TOPIC)
        for _ in range(FILL):
            assert peer.produce(TOPIC, BIG)[0] == 0


def unread(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)


def reader_that_does_not_read(server: Server, stack: ExitStack) -> None:
    """27 MB wait for it, as for a pager behind a consumer."""
    peer = stack.enter_context(KafkaPeer(server.kafka))
    unread(peer.sock)
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 60 << 20}
    topics = [{"topic": TOPIC, "partitions": [partition]}]
    peer.send("Fetch", 11, max_wait_ms=0, min_bytes=1, max_bytes=60 << 20, topics=topics)
    assert readable(peer.sock, 60)


def reader_over_tls_that_does_not_read(server: Server, stack: ExitStack) -> None:
    context = ssl.create_default_context(cafile=str(server.data_dir.parent / "ca.pem"))
    peer = stack.enter_context(Peer(server.address("native", "SSL"), tls=context))
    unread(peer.sock)
    peer.send([native.FETCH, 1, 0, 1, 60 << 20, [[TOPIC, 0, 0, 60 << 20]]])
    assert readable(peer.sock, 60)


def reader_that_reads_slowly(server: Server, stack: ExitStack) -> None:
    """Its bytes move all the time, and would for minutes."""
    peer = stack.enter_context(Peer(server.native))
    unread(peer.sock)
    peer.send([native.FETCH, 1, 0, 1, 60 << 20, [[TOPIC, 0, 0, 60 << 20]]])
    over = threading.Event()

    def read() -> None:
        with suppress(OSError):
            while not over.wait(0.05) and peer.sock.recv(1 << 12):
                pass

    thread = threading.Thread(target=read)
    thread.start()
    stack.callback(thread.join)
    stack.callback(over.set)


def fetch_that_waits(server: Server, stack: ExitStack) -> None:
    peer = stack.enter_context(Peer(server.native))
    peer.send([native.FETCH, 1, 300_000, 1, 1 << 20, [[TOPIC, 0, FILL * len(BIG), 1 << 20]]])


def look_ups_of_a_large_log(server: Server, stack: ExitStack) -> None:
    peer = stack.enter_context(Peer(server.native))
    parts = [[TOPIC, 0, timestamp, -1] for timestamp in range(1, 5_000)]
    for correlation in range(20):
        peer.send([native.OFFSETS, correlation, parts])


def _handed_over(server: Server, peer: Peer, writer: int) -> None:
    """Produce, and read the answers, until a writer serves the connection."""

    def handed_over() -> bool:
        for _ in range(100):
            assert peer.produce(TOPIC, SMALL)[0] == 0
        counts = Reader(server.data_dir).read().partitions
        return any(counts[key].handed_over for key in counts)

    wait_for(handed_over, "a handoff")


def _flood(peer: Peer, stack: ExitStack) -> None:
    """Produce without reading an answer, until the appliance takes no more."""
    unread(peer.sock)
    frame = native.encode_frame([native.PRODUCE, 2, TOPIC, 0, 1, 10_000], len(SMALL)) + SMALL

    def send() -> None:
        with suppress(OSError):
            while True:
                peer.sock.sendall(frame * 100)

    thread = threading.Thread(target=send)
    thread.start()
    stack.callback(thread.join)
    wait_for(lambda: not writable(peer.sock, 0.2), "nothing more is taken")


def producer_at_a_writer_that_does_not_read(server: Server, stack: ExitStack) -> None:
    peer = stack.enter_context(Peer(server.native))
    _handed_over(server, peer, server.pid_of("writer"))
    _flood(peer, stack)


def producer_over_tls_that_does_not_read(server: Server, stack: ExitStack) -> None:
    context = ssl.create_default_context(cafile=str(server.data_dir.parent / "ca.pem"))
    peer = stack.enter_context(Peer(server.address("native", "SSL"), tls=context))
    _handed_over(server, peer, server.pid_of("writer"))
    _flood(peer, stack)


def half_a_frame(server: Server, stack: ExitStack) -> None:
    sock = stack.enter_context(socket.create_connection(parse_addresses(server.kafka)[0]))
    sock.sendall((1_000).to_bytes(4, "big") + bytes(10))


def half_a_handshake(server: Server, stack: ExitStack) -> None:
    stack.enter_context(socket.create_connection(parse_addresses(server.address("kafka", "SSL"))[0]))


def _console(server: Server, stack: ExitStack, path: str) -> socket.socket:
    host, port = parse_addresses(server.state["listeners"]["console"])[0]
    sock = stack.enter_context(socket.create_connection((host, port)))
    unread(sock)
    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
    return sock


def page_that_does_not_read(server: Server, stack: ExitStack) -> None:
    """Nor does the coordinator answer what the page's poll asks it: it stands still, and is killed itself."""
    stack.enter_context(stopped(server.pid_of("coordinator"), may_die=True))
    for _ in range(3):
        sock = _console(server, stack, "/api/events?topic=t")
    assert readable(sock, 60)


def search_that_goes_on(server: Server, stack: ExitStack) -> None:
    for _ in range(8):
        _console(server, stack, f"/api/messages?topic={TOPIC}&text=nowhere")


def scrape_that_is_not_read(server: Server, stack: ExitStack) -> None:
    address = parse_addresses(server.state["listeners"]["metrics"])[0]
    for head in (b"GET /metrics HTTP/1.1\r\n\r\n", b"GET /met"):
        sock = stack.enter_context(socket.create_connection(address))
        unread(sock)
        sock.sendall(head)


def member_that_waits_for_others(server: Server, stack: ExitStack) -> None:
    """The second one joins; the first does not come, and has an hour for that."""
    times = {"session_timeout_ms": 60_000, "rebalance_timeout_ms": 3_600_000}
    protocols = [{"name": "range", "metadata": bytes.fromhex("0000000000010001740000ffffffff")}]
    first, second = (stack.enter_context(KafkaPeer(server.kafka)) for _ in range(2))
    for peer in (first, second):
        peer.send("JoinGroup", 3, group_id="g", member_id="", protocol_type="consumer", protocols=protocols, **times)
        assert peer is second or readable(first.sock, 60), "it is a member"


CLIENTS: list[Client] = [
    reader_that_does_not_read,
    reader_over_tls_that_does_not_read,
    reader_that_reads_slowly,
    fetch_that_waits,
    look_ups_of_a_large_log,
    producer_at_a_writer_that_does_not_read,
    producer_over_tls_that_does_not_read,
    half_a_frame,
    half_a_handshake,
    page_that_does_not_read,
    search_that_goes_on,
    scrape_that_is_not_read,
    member_that_waits_for_others,
]
ESTABLISHED = "01"
STOP_MS = 40_000
"""Workers are killed after half of it, what is beside the data path after a quarter, if they have not ended."""


def settings(files: Path) -> dict[str, Any]:
    each = "127.0.0.1:0,SSL://127.0.0.1:0"
    return {
        **{"kafka.listen": each, "native.listen": each, "tls.certificate": files / "server.pem"},
        **{"tls.key": files / "server.key", "metrics.listen": "127.0.0.1:0", "console.listen": "127.0.0.1:0"},
        **{"stop.timeout_ms": STOP_MS},
    }


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
def test_nobody_who_does_not_move_delays_a_stop(
    client: Client, tmp_path: Path, make_appliance: Callable[..., Server]
) -> None:
    make_certificates(tmp_path, "ca")
    make_certificates(tmp_path, "server", "localhost", "127.0.0.1")
    nodes = 1 if client is member_that_waits_for_others else 0
    server = make_appliance(**settings(tmp_path), **{"zookeeper.nodes": nodes})
    if nodes:
        server.wait_for_zookeeper()
    fill(server)
    wait_for(lambda: server.pids("console") and server.pids("metrics"), "the side processes")
    with ExitStack() as stack:
        client(server, stack)
        assert server.stop() == 0
    delayed = re.findall(r"(\w+) \w+ \(pid \d+\) did not stop in time", server.log())
    assert set(delayed) <= ({"coordinator"} if client is page_that_does_not_read else set())


def closed_by_server(sock: socket.socket) -> bool:
    """Whether the server has closed its side, also while it has bytes to send that this side does not take."""
    ends = [f"{port:04X}" for port in (sock.getpeername()[1], sock.getsockname()[1])]
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    states = [row[3] for row in rows if [end.rpartition(":")[2] for end in row[1:3]] == ends]
    return ESTABLISHED not in states


def test_an_answer_to_a_produce_request_is_waited_for(make_appliance: Callable[..., Server]) -> None:
    """Method: the writer stands still for longer than those who do not move are given."""
    server = make_appliance(**{"stop.timeout_ms": 120_000})
    assert server.process is not None
    fill(server)
    with Peer(server.native) as peer, Peer(server.native) as reader:
        unread(reader.sock)
        reader.send([native.FETCH, 1, 0, 1, 60 << 20, [[TOPIC, 0, 0, 60 << 20]]])
        assert readable(reader.sock, 60)
        with stopped(server.pid_of("writer")):
            peer.send([native.PRODUCE, 7, TOPIC, 0, -1, 60_000], SMALL)
            server.process.terminate()
            wait_for(lambda: server.state["state"] == "stopping", "the stop")
            wait_for(lambda: closed_by_server(reader.sock), "the reader is given up")
            assert not readable(peer.sock)
        assert peer.receive()[0][:2] == [7, 0]
    assert server.stop() == 0
