"""What does an appliance cost that has little to do?  Start, idle CPU, memory, and a thousand partitions.

    python perf/footprint.py [--smoke]

Start is from exec to the line that says it serves.  Idle CPU is over some seconds with 20 partitions whose writers
live.  Memory is PSS of all processes (with ZooKeeper where it runs), and private memory per writer.  The thousand
partitions are quiet but for one, whose produce rate is compared with that of a lone one in the same run.  Start after
a clean stop is measured with an empty log and with one of 50 GB (sparse files).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from _bench import PAYLOAD_BYTES, Appliance, appliance, headline, private_bytes, pss_bytes, row

from appliance.client import Producer
from appliance.client.admin import Admin
from appliance.config import GIB, MIB, TopicSettings
from appliance.log import Log
from appliance.records.batch import check, place
from appliance.records.encode import encode_values

VALUE = bytes(PAYLOAD_BYTES)


def produce(address: str, topic: str, count: int, partitions: int = 1) -> float:
    """Messages per second."""
    start = time.perf_counter()
    with Producer(address, acks=1, batch_messages_max=1000, batch_bytes_max=1 << 20) as producer:
        for partition in range(partitions):
            producer.send(topic, VALUE, partition=partition)
        for _ in range(count // 1000):
            producer.send_many(topic, [VALUE] * 1000)
        producer.flush()
    return count / (time.perf_counter() - start)


def start_times(rounds: int) -> None:
    for name, nodes in (("no ZooKeeper", 0), ("one node", 1), ("three nodes", 3)):
        seconds, memory = [], 0
        for _ in range(rounds):
            with appliance(**{"zookeeper.nodes": nodes}) as server:
                seconds.append(server.serving_s)
                memory = server.pss_bytes()
                java = sum(pss_bytes(pid) for pid in server.pids("zookeeper"))
        row(f"start, {name}", seconds=statistics.median(seconds), pss_mib=memory / MIB, of_it_zookeeper_mib=java / MIB)


def idle(partitions: int, seconds: int) -> None:
    with appliance() as server:
        Admin(server.native).create_topic("t", partitions)
        produce(server.native, "t", 1000, partitions)
        time.sleep(2)
        cpu = server.cpu_s()
        time.sleep(seconds)
        used = (server.cpu_s() - cpu) / seconds
        private = [private_bytes(pid) for pid in server.pids("writer")]
        row(f"idle, {partitions} partitions", cpu_percent=used * 100, writers=len(private),
            private_mib_per_writer=statistics.median(private) / MIB, pss_mib=server.pss_bytes() / MIB)  # fmt: skip


def many(partitions: int, count: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="perf-") as directory:
        data = Path(directory) / "data"
        with Appliance(data) as server:
            admin = Admin(server.native)
            admin.create_topic("lone", 1)
            produce(server.native, "lone", count)
            alone = [produce(server.native, "lone", count) for _ in range(rounds)]
            start = time.perf_counter()
            admin.create_topic("many", partitions)
            created_s = time.perf_counter() - start
            among = [produce(server.native, "lone", count) for _ in range(rounds)]
            memory = server.pss_bytes()
        with Appliance(data) as server:
            row(f"{partitions} partitions", created_s=created_s, start_s=server.serving_s, pss_mib=memory / MIB,
                rate_ratio=statistics.median(among) / statistics.median(alone))  # fmt: skip


def long_log(segments: int) -> None:
    """Start after a clean stop, with an empty log and with ``segments`` GB of it."""
    with tempfile.TemporaryDirectory(prefix="perf-") as directory:
        data = Path(directory) / "data"
        with Appliance(data) as server:
            Admin(server.native).create_topic("t", 1)
        with Appliance(data) as server:
            empty_s, empty = server.serving_s, server.pss_bytes()
        grow(data / "t-0", segments)
        with Appliance(data) as server:
            size = Admin(server.native).topics(["t"])[0]["partitions"][0]["bytes"]
            row(f"start with {size / 1e9:.0f} GB", seconds=server.serving_s, with_none=empty_s,
                pss_mib=server.pss_bytes() / MIB, pss_with_none_mib=empty / MIB)  # fmt: skip


def grow(path: Path, segments: int) -> None:
    """Append sealed segments of 1 GiB that are holes but for their first batch's header and their last batch."""
    log = Log.open(path, TopicSettings(), lambda: 1_000)
    batch = encode_values([bytes(1 << 20)] * 100, 1_000)
    for _ in range(segments * GIB // len(batch)):
        view = memoryview(bytearray(batch))
        info = check(view, 0, len(view), GIB)
        place(view, 0, log.written, info.size, info.count)
        log.append([(view, info)])
    log.close(clean=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="small sizes, once")
    small = parser.parse_args().smoke
    rounds, partitions = (1, 20) if small else (5, 1000)
    headline("footprint", rounds=rounds, partitions=partitions)
    start_times(rounds)
    idle(20, 1 if small else 20)
    many(partitions, 20_000 if small else 1_000_000, 1 if small else 3)
    long_log(1 if small else 50)


if __name__ == "__main__":
    main()
