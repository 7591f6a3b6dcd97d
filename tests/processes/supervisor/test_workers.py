"""appliance.processes.supervisor.workers: a worker that is started again answers for what exists at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from appliance.errors import UnknownPartition
from appliance.records.encode import encode_values
from appliance.wire import native

from ...support.kafka_peer import KafkaPeer
from ...support.long import LONG
from ...support.native_peer import Peer
from ...support.server import Server, wait_for

PARTITIONS = 5_000 if LONG else 1_000
ROUNDS = 3
ANSWERS = 200
"""In each round: the first of them come while a worker that learns of partitions one by one knows few."""
BATCH = encode_values([b"one"], 1_000)


def ask_everything(server: Server, partition: int) -> list[int]:
    """The error of one answer of each kind about a partition, by both listeners, on new connections."""
    codes = []
    with Peer(server.native) as peer:
        codes.append(peer.produce("wide", BATCH, partition)[0])
        peer.send([native.FETCH, 3, 0, 1, 1 << 20, [["wide", partition, 0, 1 << 20]]])
        codes.append(peer.receive()[0][2][0][0])
        peer.send([native.OFFSETS, 4, [["wide", partition, -1, -1]]])
        codes.append(peer.receive()[0][2][0][0])
    with KafkaPeer(server.kafka) as kafka:
        topic = kafka.ask("Metadata", 8, topics=[{"name": "wide"}]).topics[0]
        codes += [topic.error_code, topic.partitions[partition].error_code]
    return [int(code) for code in codes]


def test_no_partition_that_exists_is_unknown_after_all_workers_were_killed(
    make_appliance: Callable[..., Server],
) -> None:
    server = make_appliance(**{"topics.partitions_max": PARTITIONS})
    with Peer(server.native) as peer:
        peer.create("wide", PARTITIONS)
    server.wait_for_tables("wide", PARTITIONS)
    seen: Counter[int] = Counter()
    for _ in range(ROUNDS):
        killed = set(server.pids("network"))
        for pid in killed:
            server.kill(pid)
        answers = 0
        while answers < ANSWERS:
            with suppress(OSError, EOFError):  # of a connection that a worker had which was just killed
                codes = ask_everything(server, (PARTITIONS - 1, PARTITIONS // 2)[answers % 2])
                seen.update(codes)
                answers += len(codes)
        wait_for(lambda: not killed & set(server.pids("network")), "others to be shown")  # noqa: B023
    assert UnknownPartition.code not in seen, seen
    assert seen[0] > sum(seen.values()) / 2, "they are served"
