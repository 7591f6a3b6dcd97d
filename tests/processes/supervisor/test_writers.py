"""Writers of many idle partitions at once, on a real appliance.

A writer is held while it opens its log by a lease of the clean-shutdown marker, which it is to read.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import confluent_kafka

from appliance.client import Admin, Producer
from appliance.config import WRITER_BYTES, WRITERS_MIN, WRITERS_SHARE, Config, load
from appliance.log.recovery import MARKER_NAME
from appliance.processes.supervisor.children import DELAY_MS_FIRST, state_of
from appliance.processes.supervisor.writers import OPENING_MAX
from appliance.records.encode import encode_values
from appliance.wire import native

from ...support.leases import held
from ...support.native_peer import Peer
from ...support.server import Server, children_of, comm, wait_for
from ...support.sockets import open_files

PARTITIONS = 100
START_S_MAX = 60
COUNT_MAX = 20
BATCH = encode_values([b"one"], 1_000)


def writers(server: Server) -> set[int]:
    """Pids of the writers of topic t that have not ended, also of those that state.json does not have yet."""
    assert server.process is not None
    pids = [pid for nursery in children_of(server.process.pid) for pid in children_of(nursery)]
    return {pid for pid in pids if comm(pid).startswith("wr t-") and state_of(pid) != "Z"}


def descriptors(pid: int) -> Counter[str]:
    """The open files of a process, by kind: file, socket, pidfd."""
    return Counter(
        file.split(":")[-1].strip("[]") if "pidfd" in file else file.split(":")[0] for file in open_files(pid)
    )


def test_a_produce_to_many_idle_partitions_is_answered_by_all_of_them(make_appliance: Callable[..., Server]) -> None:
    """As a client's sticky or keyed producer does it that comes back in the morning."""
    server = make_appliance()
    with Admin(server.native) as admin:
        admin.create_topic("t", PARTITIONS)
    errors: list[object] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": server.kafka, "message.timeout.ms": START_S_MAX * 1000})
    for partition in range(PARTITIONS):
        producer.produce("t", b"x", partition=partition, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(START_S_MAX) == 0
    assert errors == [None] * PARTITIONS
    found = wait_for(lambda: len(pids := writers(server)) == PARTITIONS and pids, "the writers")
    for pid in (min(found), max(found)):
        assert descriptors(pid)["pidfd"] == 0
        assert descriptors(pid)["socket"] == 1 + 2, "a control channel, and one to each worker"


def test_so_many_open_at_a_time_and_the_others_follow(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**{"liveness.timeout_ms": 300_000})
    count = OPENING_MAX + 4
    markers = [server.data_dir / f"t-{partition}" / MARKER_NAME for partition in range(count)]
    with Admin(server.native) as admin, Producer(server.native, acks=-1) as producer:
        admin.create_topic("t", count)
        with held(markers):
            for partition in range(count):
                producer.send("t", b"x", partition=partition)
            wait_for(lambda: len(writers(server)) == OPENING_MAX, "as many as may open")
            admin.create_topic("other")  # the supervisor has handled all needs when it has handled this order
            first = writers(server)
            assert len(first) == OPENING_MAX
            os.kill(min(first), signal.SIGKILL)
            wait_for(lambda: len(writers(server) - first) == 1, "one that waited, in place of one that was killed")
            assert len(writers(server)) == OPENING_MAX
        producer.flush(START_S_MAX)
        assert producer.delivered == count
    assert len(writers(server)) == count


def test_who_needs_the_writer_of_a_partition_that_is_repaired_gets_the_next_one(
    make_appliance: Callable[..., Server],
) -> None:
    """A worker asks once: also where the writer was still opening its log, or had not been started for lack of room."""
    server = make_appliance(**{"liveness.timeout_ms": 300_000})
    opening, queued = 0, OPENING_MAX
    markers = [server.data_dir / f"t-{partition}" / MARKER_NAME for partition in range(OPENING_MAX)]
    with Peer(server.native) as peer, Peer(server.native) as second, Peer(server.native) as third:
        peer.create("t", OPENING_MAX + 1)
        with held(markers):
            storm(peer, OPENING_MAX + 1)
            wait_for(lambda: len(writers(server)) == OPENING_MAX, "as many as may open")
            second.create("other")  # the supervisor has handled all needs when it has handled this order
            third.send([native.ADMIN, 1, "repair", {"name": "t", "partition": opening}])
            header, _ = second.call([native.ADMIN, 1, "repair", {"name": "t", "partition": queued}])
            assert "nothing to repair" in header[2]
            wait_for(lambda: "t-0" in server.state["offline"], "the one that opens to be out of service")
        assert Counter(peer.receive()[0][1] for _ in range(OPENING_MAX + 1)) == {0: OPENING_MAX + 1}


def test_a_writer_that_keeps_dying_is_slowed_down_although_a_producer_needs_it(
    make_appliance: Callable[..., Server],
) -> None:
    """The producer asks for one as soon as it is told that the last one is gone; one that died once is back at once."""
    server = make_appliance(**{"network.workers": 1})
    took_s = []
    with Peer(server.native) as peer:
        peer.create("t")
        assert peer.produce("t", BATCH)[0] == 0
        for _ in range(5):
            (pid,) = writers(server)
            began_s = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: peer.produce("t", BATCH)[0] == 0, "another writer")
            took_s.append(time.monotonic() - began_s)
    assert took_s[4] >= 8 * DELAY_MS_FIRST / 1000, took_s
    assert took_s[3] >= 4 * DELAY_MS_FIRST / 1000, took_s


# ---- more partitions than writers may run


def has_memory(pid: int) -> bool:
    """Not one that is ending: it gives back its memory before its channel closes."""
    try:
        return not Path(f"/proc/{pid}/statm").read_text().startswith("0 ")
    except OSError:
        return False


class Highest(threading.Thread):
    """The highest number of writers that has run at any time that was looked at."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self._server, self._over = server, threading.Event()
        self.number = 0

    def run(self) -> None:
        while not self._over.wait(0.002):
            self.number = max(self.number, sum(map(has_memory, writers(self._server))))

    def __enter__(self) -> Highest:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def storm(peer: Peer, partitions: int, batch: bytes = BATCH) -> None:
    """Produce to many partitions, without waiting for an answer."""
    for partition in range(partitions):
        peer.send([native.PRODUCE, partition, "t", partition, 1, 60_000], batch)


def test_a_storm_over_more_partitions_than_writers_is_answered_by_all_within_the_bound(
    make_appliance: Callable[..., Server],
) -> None:
    """Twice, by two clients in opposite order; nothing is refused, and each message is there once."""
    partitions = 6 * COUNT_MAX
    server = make_appliance(**{"writer.count_max": COUNT_MAX})
    with Peer(server.native) as first, Peer(server.native) as second, Highest(server) as highest:
        first.create("t", partitions)
        for _ in range(2):
            storm(first, partitions)
            for partition in reversed(range(partitions)):
                second.send([native.PRODUCE, partition, "t", partition, -1, 60_000], BATCH)
            for peer in (first, second):
                assert Counter(peer.receive()[0][1] for _ in range(partitions)) == {0: partitions}
        row = next(row for row in server.state["limits"] if row["limit"] == "writer.count_max")
        assert row["value"] == COUNT_MAX >= row["in_use"] and "raise it" in row["advice"]
        assert {first.end("t", partition) for partition in range(partitions)} == {4 * len(BATCH)}
    assert COUNT_MAX // 2 < highest.number <= COUNT_MAX
    wait_for(lambda: not server.state["limits"], "nobody has to make room any more")
    assert "ended with status" not in server.log()


def test_a_storm_keeps_no_other_client_from_its_partition(make_appliance: Callable[..., Server]) -> None:
    """Neither one that is busy nor one that comes back is served behind the whole storm."""
    partitions = 15 * COUNT_MAX
    server = make_appliance(**{"writer.count_max": COUNT_MAX, "network.workers": 1})
    with Peer(server.native) as stormy, Peer(server.native) as busy, Peer(server.native) as comes_back:
        stormy.create("t", partitions)
        busy.create("busy")
        busy.create("other")
        assert busy.produce("busy", BATCH)[0] == comes_back.produce("other", BATCH)[0] == 0
        storm(stormy, partitions)
        answers = 0
        while answers < partitions // 3:
            assert busy.produce("busy", BATCH)[0] == 0
            assert stormy.receive()[0][1] == 0
            answers += 1
        wait_for(lambda: "other" not in {row["topic"] for row in server.processes("writer")}, "the idle one to retire")
        assert comes_back.produce("other", BATCH)[0] == 0
        server.wait_for_tables("t", partitions)
        assert comes_back.end("t", partitions - 1) == 0, "the storm is not over"
        assert Counter(stormy.receive()[0][1] for _ in range(partitions - answers)) == {0: partitions - answers}


def test_those_that_are_idle_longest_retire_first(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**{"writer.count_max": COUNT_MAX})
    with Peer(server.native) as peer:
        peer.create("t", COUNT_MAX + 5)
        for partition in [*range(COUNT_MAX), 0, 1]:
            assert peer.produce("t", BATCH, partition)[0] == 0
        for partition in range(COUNT_MAX, COUNT_MAX + 5):
            assert peer.produce("t", BATCH, partition)[0] == 0
        kept = {0, 1, *range(7, COUNT_MAX + 5)}
        wait_for(lambda: {row["partition"] for row in server.processes("writer")} == kept, "those that were used last")


def test_the_bound_follows_from_the_memory() -> None:
    assert Config().writers_max(1 << 30) == (1 << 30) // WRITERS_SHARE // WRITER_BYTES == 64
    assert Config().writers_max(1 << 26) == WRITERS_MIN
    assert load(overrides=["writer.count_max=7"]).writers_max(1 << 40) == 7
