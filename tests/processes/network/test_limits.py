"""What one client, or many, cannot take from the others of a worker: memory, descriptors, a writer's time."""

from __future__ import annotations

import os
import resource
import select
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import pytest

from appliance.records.encode import encode_batch, encode_values
from appliance.wire import native

from ...support.measures import cpu_s
from ...support.native_peer import Peer
from ...support.ready import readable
from ...support.server import Server, stopped, wait_for
from ...support.sockets import open_files

BATCH = encode_values([b"one", b"two", b"three"], 1_000)
SMALL = {
    "network.workers": 1,
    "network.arena_bytes": 1 << 20,
    "network.frame_bytes_max": 1 << 19,
    "topics.max.message.bytes": 400_000,
}

WAKE_CPU_S_MAX = 2.0
"""Of the worker, for five messages and 2,020 replies: about 0.3 s."""


@contextmanager
def many(server: Server, count: int) -> Iterator[list[Peer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Peer(server.native)) for _ in range(count)]


def test_many_that_have_sent_almost_nothing_starve_nobody(make_appliance: Callable[..., Server]) -> None:
    """Four bytes each, and more of them than the arena has blocks: a size, and nothing of what it announces."""
    server = make_appliance(**SMALL)
    with many(server, 60) as slow, Peer(server.native) as peer:
        for one in slow:
            one.sock.sendall(b"\0\0\1\0")
        peer.create("t")
        for number in range(50):
            assert peer.produce("t", BATCH)[:3] == (0, (number + 1) * len(BATCH) - 3, (number + 1) * len(BATCH))
        for one in slow:  # and they are served too, once they go on
            one.sock.sendall(bytes(256))
            assert one.hung_up()


LARGE: Final = encode_values([bytes(350_000)], 1_000)


UPLOAD: Final = native.encode_frame([native.PRODUCE, 2, "t", 0, 1, 10_000], len(LARGE)) + LARGE


def test_slow_uploads_of_more_than_all_memory_are_all_completed(make_appliance: Callable[..., Server]) -> None:
    """Goal: who comes on a slow link is not cut, and keeps nobody waiting."""
    server = make_appliance(**SMALL)
    with many(server, 20) as slow, Peer(server.native) as peer:
        peer.create("t")
        rest = {}
        for one in slow:
            one.sock.setblocking(False)
            rest[one.sock] = UPLOAD[one.sock.send(UPLOAD[:100_000]) :]
        for _ in range(20):
            assert peer.produce("t", BATCH)[0] == 0
        waits_until = time.monotonic() + 60
        while rest:
            assert time.monotonic() < waits_until
            for one in select.select([], list(rest), [], 1)[1]:
                rest[one] = rest[one][one.send(rest[one][:20_000]) :]
            rest = {one: left for one, left in rest.items() if left}
        for one in slow:
            one.sock.setblocking(True)
            assert one.receive()[0][1] == 0


def test_unfinished_requests_that_do_not_go_on_are_closed_for_starved_connections(
    make_appliance: Callable[..., Server],
) -> None:
    server = make_appliance(**SMALL, **{"network.frame_ms_max": 5_000})
    with many(server, 8) as slow, Peer(server.native) as peer:
        peer.create("t")
        for one in slow:
            one.sock.sendall(UPLOAD[:100_000])
        for _ in range(20):
            assert peer.produce("t", BATCH)[0] == 0
        assert peer.produce("t", LARGE)[0] == 0
        closed, _, _ = select.select([one.sock for one in slow], [], [], 0)
        assert 0 < len(closed) < len(slow)
        assert all(one.hung_up() for one in slow if one.sock in closed)


def test_no_producer_waits_for_memory_until_the_time_of_a_flush(make_appliance: Callable[..., Server]) -> None:
    """Goal: whoever waits for memory waits for one flush, not for ``flush.ms``.

    Method: two partitions that are flushed every hour, and more large requests at once than the arena holds.  Two of
    each partition may stay unanswered at the end, since nobody waits for their memory any more.
    """
    server = make_appliance(**SMALL)
    with many(server, 12) as producers:
        producers[0].create("t", 2, flush_messages=1_000_000, flush_ms=3_600_000)
        for number, one in enumerate(producers):
            one.send([native.PRODUCE, number, "t", number % 2, -1, 10_000], LARGE)
        waiting = {one.sock: one for one in producers}
        while len(waiting) > 4:
            answered = select.select(list(waiting), [], [], 30)[0]
            assert answered, f"{len(waiting)} of {len(producers)} are not answered"
            for sock in answered:
                assert waiting.pop(sock).receive()[0][1] == 0


def test_a_writer_that_stands_still_stops_nobody_but_its_own(make_appliance: Callable[..., Server]) -> None:
    """Its producers fill a quarter of the arena and are not read any more; those of another topic go on."""
    server = make_appliance(**SMALL)
    with many(server, 30) as stuck, Peer(server.native) as peer:
        peer.create("stuck")
        peer.create("t")
        assert peer.produce("stuck", BATCH)[0] == peer.produce("t", BATCH)[0] == 0
        writers = lambda: [row["pid"] for row in server.processes("writer") if row["topic"] == "stuck"]  # noqa: E731
        (pid,) = wait_for(writers, "the writer to be shown")
        with stopped(pid):
            for one in stuck:
                one.send([native.PRODUCE, 1, "stuck", 0, 1, 10_000], BATCH)
            for _ in range(50):
                assert peer.produce("t", BATCH)[0] == 0
        assert sorted(one.receive()[0][1] for one in stuck) == [0] * len(stuck)


def sockets(pid: int) -> int:
    """How many a process has open."""
    return sum(file.startswith("socket:") for file in open_files(pid))


def test_a_client_that_is_not_read_any_more_and_closes_is_noticed(make_appliance: Callable[..., Server]) -> None:
    """Method: the writer stands still, so that all of its requests stay unanswered; then the client's end comes."""
    server = make_appliance(
        **{"network.workers": 1, "network.requests_max": 10, "liveness.timeout_ms": 600_000, "writer.idle_ms": 600_000}
    )
    with Peer(server.native) as peer:
        peer.create("t")
        assert peer.produce("t", BATCH)[0] == 0
        writer = server.pid_of("writer")
        worker = server.pid_of("network")
        before = sockets(worker)
        with stopped(writer):
            client = Peer(server.native)
            assert sockets(worker) == before + 1
            for _ in range(100):
                client.send([native.PRODUCE, 1, "t", 0, 1, 10_000], BATCH)
            client.close()
            wait_for(lambda: sockets(worker) == before, "the worker to close its end")
        assert peer.produce("t", BATCH)[0] == 0


def test_questions_about_a_log_whose_writer_stands_still_are_bounded(make_appliance: Callable[..., Server]) -> None:
    """Each asks for a flush that nobody makes; the worker goes on, and the questions are answered after a while."""
    server = make_appliance(**{"network.workers": 1})
    with many(server, 2) as (peer, other):
        peer.create("t", flush_messages=1_000, flush_ms=60_000)
        assert peer.produce("t", BATCH)[0] == 0
        pid = server.pid_of("writer")
        worker = server.pid_of("network")
        with stopped(pid):
            parts = [["t", 0, -1, -1]] * 1_000
            for _ in range(300):
                peer.send([native.OFFSETS, 1, parts])
            peer.receive()
            assert other.admin("topics") is not None
        assert server.pids("network") == [worker]


def test_out_of_descriptors_new_clients_are_refused_and_the_others_served(
    make_appliance: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    popen = subprocess.Popen
    limited = lambda *args, **named: popen(  # noqa: E731
        *args, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (640, 640)), **named
    )
    monkeypatch.setattr(subprocess, "Popen", limited)
    server = make_appliance(**{"network.workers": 1})
    monkeypatch.undo()
    with Peer(server.native) as peer, ExitStack() as stack:
        peer.create("t")
        assert peer.produce("t", BATCH)[0] == 0
        host, _, port = server.native.rpartition(":")
        crowd = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(700)]
        wait_for(lambda: any(row.get("refused") for row in server.processes("network")), "a refusal")
        (limit,) = wait_for(lambda: server.state["limits"], "the limit to be shown")
        assert (limit["limit"], limit["process"]) == ("descriptors", "network 0")
        assert limit["value"] == 640 and 400 < limit["in_use"] < 640, "as measured; some are kept"
        assert "refused: descriptors reached: raise LimitNOFILE" in server.log()
        assert "LimitNOFILE" in limit["advice"] and limit["since"] > 1e9
        before = cpu_s(server.pid_of("network"))
        started = time.monotonic()
        assert peer.produce("t", BATCH)[0] == 0
        peer.create("later")
        assert peer.produce("later", BATCH)[0] == 0
        wait_for(lambda: time.monotonic() - started > 0.5, "some time")
        assert cpu_s(server.pid_of("network")) - before < 0.7 * (time.monotonic() - started)
        for one in crowd:
            one.close()
        wait_for(lambda: answers(server), "a new client to be served")
        wait_for(lambda: not server.state["limits"], "the limit to be gone")


def test_connections_max_is_shown_while_it_is_reached(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**{"network.workers": 1, "network.connections_max": 3})
    with many(server, 3) as peers:
        for peer in peers:
            peer.admin("topics")
        (limit,) = wait_for(lambda: server.state["limits"], "the limit to be shown")
        assert (limit["limit"], limit["process"]) == ("network.connections_max", "network 0")
        assert (limit["value"], limit["in_use"]) == (3, 3)
        peers[0].sock.close()
        wait_for(lambda: not server.state["limits"], "the limit to be gone")


def answers(server: Server) -> bool:
    try:
        with Peer(server.native) as peer:
            return peer.produce("t", BATCH)[0] == 0
    except (EOFError, OSError):
        return False


def test_a_reader_that_drains_slowly_but_steadily_is_not_idle(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**{"network.workers": 1, "network.idle_ms": 4_000})
    batch = encode_values([os.urandom(900_000)], 1_000)
    with Peer(server.native) as peer:
        peer.create("t")
        for _ in range(30):
            assert peer.produce("t", batch, acks=-1)[0] == 0
        peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        peer.send([native.FETCH, 3, 0, 1, 1 << 26, [["t", 0, 0, 1 << 26]]])
        left, started = 30 * len(batch), time.monotonic()
        while left > 0:
            due = started + 6 * (1 - left / 30 / len(batch))
            wait_for(lambda due=due: time.monotonic() > due, "its time")  # type: ignore[misc]
            data = peer.sock.recv(1 << 18)
            assert data, f"cut off with {left} bytes to come"
            left -= len(data)


def test_a_long_question_about_offsets_lets_others_have_their_turn(make_appliance: Callable[..., Server]) -> None:
    """Thousands of look-ups in one frame take as many turns, and each of these serves everybody."""
    server = make_appliance(**{"network.workers": 1, "network.look_bytes_max": 1 << 16})
    batch = encode_batch([(None, bytes(100), (), 5_000 + number) for number in range(1_000)], codec="zstd")
    with Peer(server.native) as asker, Peer(server.native) as other:
        other.create("t")
        base = other.produce("t", batch, acks=-1)[1]
        other.end("t")
        asker.send([native.OFFSETS, 4, [["t", 0, 5_000 + number % 1_000, -1] for number in range(8_000)]])
        for _ in range(5):
            other.end("t")
        assert not readable(asker.sock), "they did not wait for the whole of it"
        rows = asker.receive()[0][2]
    assert rows == [[0, base + number % 1_000, 5_000 + number % 1_000, number % 1_000] for number in range(8_000)]


def test_one_message_wakes_all_who_wait_at_many_partitions_and_keeps_nobody_waiting(
    make_appliance: Callable[..., Server],
) -> None:
    """Method: 20 consumers with 100 fetches each in their pipelines, and 20 at the ends of 100 partitions each."""
    server = make_appliance(**{"network.workers": 1})
    with many(server, 20) as deep, many(server, 20) as wide, Peer(server.native) as peer:
        peer.create("t", partitions=100)
        peer.create("other")
        assert peer.produce("t", BATCH, acks=-1)[0] == peer.produce("other", BATCH, acks=-1)[0] == 0
        end = peer.end("t")
        one = native.encode_frame([native.FETCH, 3, 300_000, 1, 1_000, [["t", 0, end, 1_000]]])
        parts = [["t", partition, end if partition == 0 else 0, 1_000] for partition in range(100)]
        for consumer in deep:
            consumer.sock.sendall(one * 100)
        for consumer in wide:
            consumer.send([native.FETCH, 3, 300_000, 1, 1_000, parts])
        worker = server.pid_of("network")
        peer.end("other")
        before_s = cpu_s(worker)
        for _ in range(5):
            assert peer.produce("t", BATCH, acks=-1)[0] == 0
            peer.end("other")
        assert cpu_s(worker) - before_s < WAKE_CPU_S_MAX
        for consumer in wide:
            rows = consumer.receive()[0][2]
            assert rows[0][0] == 0 and rows[0][3] > 0 and not any(row[3] for row in rows[1:])
        for consumer in deep:
            assert consumer.receive()[0][2][0][3] > 0
