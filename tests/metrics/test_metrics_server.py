"""The endpoint of a real appliance: what clients did is in /metrics, and /ready says whether they are served."""

from __future__ import annotations

import contextlib
import http.client
import re
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from appliance.addresses import parse_addresses
from appliance.client import Consumer, Producer
from appliance.health.conditions import REQUEST_ERRORS, SLOW_FLUSHES, Condition
from appliance.metrics.metrics_server import CONNECTIONS_MAX
from appliance.metrics.readings import Reader
from appliance.records.encode import encode_values

from ..crash.beds import traced
from ..support.native_peer import Peer
from ..support.server import Server, stopped, wait_for

VALUES = [b"one", b"two", b"three"]
BATCH = encode_values(VALUES, 1_000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(
        tmp_path_factory.mktemp("metrics") / "data", **{"metrics.listen": "127.0.0.1:0", "metrics.hosts": "box.example"}
    ) as server:
        yield server


def ask(server: Server, path: str, method: str = "GET") -> tuple[int, str]:
    ((host, port),) = parse_addresses(server.state["listeners"]["metrics"])
    connection = http.client.HTTPConnection(host, port, timeout=60)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def samples(server: Server) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every sample by its name and the values of its labels, in the order of the labels' names."""
    status, text = ask(server, "/metrics")
    assert status == 200
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_clients_did_is_counted(server: Server) -> None:
    with Peer(server.native) as peer:
        peer.create("counted", partitions=2)
        before = samples(server)
        for _ in range(4):
            assert peer.produce("counted", BATCH, acks=-1)[0] == 0
        assert peer.produce("nowhere", BATCH)[0]
        assert peer.fetch("counted", 0)
        server.wait_for_tables("counted", 2)
        after = samples(server)

    def grown(name: str, *labels: str) -> float:
        return after.get((name, labels), 0) - before.get((name, labels), 0)

    produce = ("Produce", "native")
    assert grown("appliance_requests_total", *produce) == 5
    assert grown("appliance_request_errors_total", *produce) == 1
    assert grown("appliance_request_seconds_count", *produce) == 5
    assert 0 < grown("appliance_request_seconds_sum", *produce) < 60
    assert grown("appliance_requests_total", "Fetch", "native") == 1
    assert grown("appliance_topic_messages_total", "counted") == 4 * len(VALUES)
    assert grown("appliance_topic_batches_total", "counted") == 4
    assert grown("appliance_topic_produce_requests_total", "counted") == 4
    assert grown("appliance_topic_received_bytes_total", "counted") == 4 * len(BATCH)
    assert grown("appliance_topic_fetched_bytes_total", "counted") >= len(BATCH)
    assert grown("appliance_listener_received_bytes_total", "native") > 5 * len(BATCH)
    assert grown("appliance_listener_sent_bytes_total", "native") > len(BATCH)
    assert grown("appliance_flush_seconds_count") >= 1
    assert after["appliance_topic_log_bytes", ("counted",)] == 4 * len(BATCH)
    assert after["appliance_topic_partitions", ("counted",)] == 2
    assert after["appliance_state", ("serving",)] == 1
    assert after["appliance_disk_free_bytes", ()] > 0


def rule_of(condition: Condition, pattern: str) -> tuple[str, float]:
    """The metric that an alert's rule looks at, and its bound."""
    assert condition.rule is not None
    told = re.fullmatch(pattern, condition.rule.expr)
    assert told is not None, condition.rule
    return told[1], float(told[2])


def test_a_client_that_is_refused_again_and_again_is_judged_by_its_rate(server: Server) -> None:
    name, bound = rule_of(REQUEST_ERRORS, r"rate\((\w+)\[5m\]\) > (\d+)")

    def errors() -> float:
        return samples(server).get((name, ("Produce", "native")), 0)

    begun_s, before = time.monotonic(), errors()
    with Peer(server.native) as peer:
        for _ in range(200):
            assert peer.produce("nowhere", BATCH)[0]
    after = errors()
    assert (after - before) / (time.monotonic() - begun_s) > bound
    assert errors() == after, "it ends with the client"


def quantile(share: float, buckets: list[tuple[float, float]]) -> float:
    """``histogram_quantile`` of Prometheus; ``buckets``: upper bounds, and how much has come up to each."""
    rank, low, below = share * buckets[-1][1], 0.0, 0.0
    for bound, count in buckets:
        if count >= rank:
            return low + (bound - low) * (rank - below) / (count - below)
        low, below = bound, count
    raise AssertionError(buckets)


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace, to make a disk slow")
def test_a_slow_disk_is_judged_by_the_times_of_its_flushes(server: Server) -> None:
    pattern = r"histogram_quantile\(0\.99, sum by \(instance, le\) \(rate\((\w+)\[5m\]\)\)\) > (\d+)"
    name, bound = rule_of(SLOW_FLUSHES, pattern)

    def flushed_until_then() -> list[tuple[float, float]]:
        rows = samples(server).items()
        return sorted((float(labels[0]), count) for (sample, labels), count in rows if sample == name)

    def writer_pids() -> list[int]:
        return [row["pid"] for row in server.state["processes"] if row.get("topic") == "slow"]

    with Peer(server.native) as peer:
        peer.create("slow")

        def judged() -> float:
            before = flushed_until_then()

            def grown() -> list[tuple[float, float]]:  # counted behind the acknowledgement
                rows = [(le, now - then) for (le, now), (_, then) in zip(flushed_until_then(), before, strict=True)]
                return rows if rows[-1][1] else []

            assert peer.produce("slow", BATCH, acks=-1)[0] == 0
            return quantile(0.99, wait_for(grown, "the flush to be counted"))

        wait_for(lambda: judged() < bound, "a flush that takes no longer than the disk needs")
        (pid,) = wait_for(writer_pids, "the writer to be shown")
        with traced(pid, "-e", "trace=fdatasync", "-e", "inject=fdatasync:delay_enter=1200000"):
            assert judged() > bound
        wait_for(lambda: judged() < bound, "it ends with the cause")


def test_connections_that_writers_serve_are_counted_like_others(server: Server) -> None:
    before = samples(server)
    sent = 0
    with Peer(server.native) as peer:
        peer.create("handed")

        def produce_until_handed_over() -> bool:
            nonlocal sent
            for _ in range(100):
                assert peer.produce("handed", BATCH)[0] == 0
            sent += 100
            counts = Reader(server.data_dir).read().partitions
            return any(counts[key].handed_over for key in counts if key.topic == "handed")

        wait_for(produce_until_handed_over, "a handoff")
        after = samples(server)
    key = ("appliance_requests_total", ("Produce", "native"))
    assert after[key] - before.get(key, 0) == sent
    messages = ("appliance_topic_messages_total", ("handed",))
    wait_for(lambda: samples(server)[messages] == sent * len(VALUES), "the flush of the last ones")


def test_a_killed_worker_loses_no_count(server: Server) -> None:
    with Peer(server.native) as peer:
        peer.create("killed")
        assert peer.produce("killed", BATCH)[0] == 0
    key = ("appliance_requests_total", ("Produce", "native"))
    before = samples(server)
    for pid in server.pids("network"):
        server.kill(pid)
    wait_for(lambda: samples(server)["appliance_process_restarts_total", ("network",)] >= 2, "both to be replaced")
    wait_for(lambda: len(server.pids("network")) == 2, "both to run")
    with Peer(server.native) as peer:
        assert peer.produce("killed", BATCH)[0] == 0
    assert samples(server)[key] == before[key] + 1


def test_names_of_topics_cannot_break_the_format(server: Server) -> None:
    with Producer(server.native) as producer:
        producer.send("a.b_c-D", b"x").result(60)
    with Consumer(server.native) as consumer:
        assert consumer is not None
    key = ("appliance_topic_messages_total", ("a.b_c-D",))
    wait_for(lambda: samples(server).get(key) == 1, "the topic to be shown")


def test_health_by_http(server: Server) -> None:
    assert ask(server, "/live") == (200, "live\n")
    assert ask(server, "/ready") == (200, "ready\n")
    assert ask(server, "/ready", "HEAD") == (200, "")
    assert ask(server, "/nothing")[0] == 404
    assert ask(server, "/live", "POST")[0] == 501


def test_it_answers_while_the_workers_stand_still(server: Server) -> None:
    """A scrape asks nobody: it reads shared memory."""
    with stopped(server.pid_of("network")), stopped(server.pid_of("coordinator")):
        assert ask(server, "/ready")[0] == 200
        assert samples(server)["appliance_state", ("serving",)] == 1


def test_silent_clients_do_not_keep_others_away(server: Server) -> None:
    ((host, port),) = parse_addresses(server.state["listeners"]["metrics"])
    silent = [socket.create_connection((host, port)) for _ in range(5 * CONNECTIONS_MAX)]
    try:
        for one in silent:
            with contextlib.suppress(OSError):  # the oldest have given way already
                one.sendall(b"GET /")
        for _ in range(4):
            assert ask(server, "/live")[0] == 200
    finally:
        for one in silent:
            one.close()


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:1", 200), ("10.0.0.1", 200), ("[::1]:9", 200), ("box.example:1", 200), (None, 200),
     ("evil.example", 421), ("a b", 421)],
)  # fmt: skip
def test_names_that_somebody_else_can_point_here_read_nothing(server: Server, host: str | None, status: int) -> None:
    ((address, port),) = parse_addresses(server.state["listeners"]["metrics"])
    connection = http.client.HTTPConnection(address, port, timeout=60)
    with contextlib.closing(connection):
        connection.putrequest("GET", "/metrics", skip_host=True)
        if host is not None:
            connection.putheader("Host", host)
        connection.endheaders()
        assert connection.getresponse().status == status


def test_a_reader_of_a_stopped_appliance_finds_nothing(tmp_path: Path) -> None:
    readings = Reader(tmp_path).read()
    assert readings.state is None
    assert readings.topics == {}
