"""Writers of many idle partitions at once, on a real appliance.

A writer is held while it opens its log by a lease of the clean-shutdown marker, which it is to read.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka

from appliance.client import Admin, Producer
from appliance.log.recovery import MARKER_NAME
from appliance.processes.supervisor.liveness import state_of
from appliance.processes.supervisor.writers import OPENING_MAX

from .server import Server, wait_for

PARTITIONS = 100
START_S_MAX = 60


def writers(server: Server) -> set[int]:
    """Pids of the writers of topic t that have not ended, also of those that state.json does not have yet."""
    assert server.process is not None
    pids = [pid for nursery in children(server.process.pid) for pid in children(nursery)]
    return {pid for pid in pids if name_of(pid).startswith("wr t-") and state_of(pid) != "Z"}


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def descriptors(pid: int) -> Counter[str]:
    """The open files of a process, by kind: file, socket, pidfd."""
    targets = [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    return Counter(
        target.split(":")[-1].strip("[]") if "pidfd" in target else target.split(":")[0] for target in targets
    )


@contextmanager
def held(files: list[Path]) -> Iterator[None]:
    """Whoever opens one of these files waits until the block ends (or Linux's lease-break-time is over, 45 s)."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # which asks for the lease
    handles = [os.open(file, os.O_RDWR) for file in files]
    try:
        for handle in handles:
            fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield
    finally:
        for handle in handles:
            os.close(handle)
        signal.signal(signal.SIGIO, before)


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
