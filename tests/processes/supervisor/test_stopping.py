"""An ordered stop waits for nobody who does not move: only an answer to a produce request is worth a wait.

What would wait does so until the stop's time is over, and is killed then, which the journal has.  Those who do one
piece of work are cut off in the middle of it, and it is done after the next start.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from appliance.addresses import parse_addresses
from appliance.bench.local_appliance import LocalAppliance
from appliance.errors import WriterGone
from appliance.log import partition_directory
from appliance.log.recovery import MARKER_NAME
from appliance.metrics.readings import Reader
from appliance.records.encode import encode_values
from appliance.wire import native

from ...support.certificates import make_certificates
from ...support.kafka_peer import KafkaPeer
from ...support.native_peer import Peer
from ...support.ready import readable, writable
from ...support.server import Server, children, stopped, wait_for
from ...support.sockets import ESTABLISHED, tcp_sockets

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
        _console(server, stack, f"/api/messages?topics={TOPIC}&text=nowhere")


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
    ends = sock.getpeername()[1], sock.getsockname()[1]
    return ESTABLISHED not in {each.state for each in tcp_sockets() if (each.port, each.peer_port) == ends}


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


FAR_MS = 3_600_000
"""A stop that waits for any part of it takes longer than a test waits for a stop."""
LOG = "did not stop in time", "was not asked to stop", "interrupted", "ended with status"
"""What nobody may say of those who were asked, and have ended."""


@contextmanager
def pipe_in_place_of(path: Path) -> Iterator[None]:
    """Who reads this file waits for ever; afterwards it is a file again."""
    content = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    try:
        yield
    finally:
        path.unlink()
        path.write_bytes(content)


def stop_at_once(server: Server) -> None:
    """Not :meth:`Server.stop`, which reads the logs, too."""
    assert LocalAppliance.stop(server) == 0
    assert not [line for line in server.log().splitlines() if any(text in line for text in LOG)]


def test_a_remover_is_cut_off_by_a_stop_and_the_topic_is_gone_after_the_next_start(
    make_appliance: Callable[..., Server],
) -> None:
    server = make_appliance(**{"stop.timeout_ms": FAR_MS, "topics.trash_ms": 0, "disk.check_ms": 100})
    with Peer(server.native) as peer:
        peer.create(TOPIC)
        metadata = server.data_dir / f"{TOPIC}-0" / partition_directory.METADATA_NAME
        with pipe_in_place_of(metadata):
            peer.send([native.ADMIN, 1, "delete_topic", {"name": TOPIC}])
            wait_for(lambda: children(server, "remover"), "the remover")
            stop_at_once(server)
    server.start()
    wait_for(lambda: not metadata.parent.exists(), "the name to be free")
    wait_for(lambda: not partition_directory.deleted(server.data_dir), "the files to be gone")
    with Peer(server.native) as peer:
        wait_for(lambda: peer.create(TOPIC) is None, "a topic of that name")


def test_an_opener_is_cut_off_by_a_stop_and_who_waits_for_the_log_is_told_to_send_again(
    make_appliance: Callable[..., Server],
) -> None:
    server = make_appliance(**{"stop.timeout_ms": FAR_MS, "network.workers": 1})
    with Peer(server.native) as peer:
        peer.create(TOPIC)
        assert peer.produce(TOPIC, SMALL)[0] == 0
    assert server.stop() == 0
    with pipe_in_place_of(server.data_dir / f"{TOPIC}-0" / MARKER_NAME):
        server.launch()
        wait_for(lambda: server.state["state"] == "starting" and children(server, "opener"), "the opener")
        with Peer(server.native) as peer, Peer(server.native) as other:
            peer.send([native.PRODUCE, 7, TOPIC, 0, -1, 600_000], SMALL)
            other.call([native.METADATA, 1, []])  # the same worker has received what was sent before this
            assert not readable(peer.sock)
            assert server.process is not None
            server.process.terminate()
            assert peer.receive()[0][:2] == [7, WriterGone.code]
        stop_at_once(server)
    server.start()
    with Peer(server.native) as peer:
        assert peer.produce(TOPIC, SMALL)[0] == 0
    assert server.stop() == 0


def test_a_cleaner_is_cut_off_by_a_stop_and_the_next_one_deletes_the_rest(
    make_appliance: Callable[..., Server],
) -> None:
    """Method: the cleaner stands still from somewhere in 30,000 files until it has been asked."""
    server = make_appliance(**{"stop.timeout_ms": FAR_MS})
    assert server.stop() == 0
    directory = partition_directory.deleted_directory(server.data_dir, "a" * 32, 0)
    directory.mkdir()
    first = directory / "0"
    first.touch()
    for number in range(1, 30_000):
        os.link(first, directory / str(number))
    server.start()
    assert server.process is not None
    (cleaner,) = wait_for(lambda: children(server, "cleaner"), "the cleaner")
    with stopped(cleaner):
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: not server.pids("inspector"), "those who are asked with it to have ended")
    stop_at_once(server)
    assert any(directory.iterdir()), "it was cut off"
    server.start()
    wait_for(lambda: not directory.exists(), "the rest to be deleted")
