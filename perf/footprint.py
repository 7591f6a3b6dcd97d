"""How much does an idle appliance cost?  Start, idle CPU, memory, and a thousand partitions.

    python perf/footprint.py [--smoke]

Start is from exec to the first answer (serving) and to the line that says it serves (ready).  Idle CPU is measured over
30 s with 20 partitions whose writers run.  Memory is PSS of all processes (with ZooKeeper where it runs), and private
memory per writer.  The rate of one partition is measured alone, and beside a thousand idle ones in the same run; then
these get one message each, so that all of their writers start.  Start after a clean stop is measured with an empty log
and with one of 50 GB (sparse files).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from _bench import PAYLOAD_BYTES, appliance, appliance_in, headline, row

from appliance.bench.accounts import private_bytes
from appliance.client import Producer
from appliance.client.admin import Admin
from appliance.config_keys import GIB, MIB
from appliance.log import files
from appliance.log.recovery import Marker

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


def ran_s(pid: int) -> float:
    """CPU of the main thread of a process, also if that is less than a tick of the clock."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except FileNotFoundError:
        return 0.0


def start_times(rounds: int) -> None:
    for name, nodes in (("no ZooKeeper", 0), ("one node", 1), ("three nodes", 3)):
        serving, ready, memory, java = [], [], 0, 0
        for _ in range(rounds):
            with appliance(**{"zookeeper.nodes": nodes}) as started:
                serving.append(started.start_s)
                ready.append(started.ready_s)
                memory = started.server.pss_bytes()
                java = started.server.pss_bytes("zookeeper")
        row(f"start, {name}", serving_s=statistics.median(serving), ready_s=statistics.median(ready),
            pss_mib=memory / MIB, of_it_zookeeper_mib=java / MIB)  # fmt: skip


def idle(partitions: int, seconds: int, nodes: int) -> None:
    with appliance(**{"zookeeper.nodes": nodes}) as started:
        server = started.server
        Admin(server.native).create_topic("t", partitions)
        produce(server.native, "t", 1000, partitions)
        time.sleep(2)
        cpu, java = server.cpu_s(), server.cpu_s("zookeeper")
        time.sleep(seconds)
        used = (server.cpu_s() - cpu) / seconds
        by_java = (server.cpu_s("zookeeper") - java) / seconds
        private = [private_bytes(pid) for pid in server.pids("writer")]
        row(f"idle, {partitions} partitions, {nodes} nodes", cpu_percent=used * 100,
            of_it_zookeeper=by_java * 100, writers=len(private),
            private_mib_per_writer=statistics.median(private) / MIB, pss_mib=server.pss_bytes() / MIB)  # fmt: skip


def many(partitions: int, count: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="perf-") as directory:
        with appliance_in(Path(directory)) as started:
            server = started.server
            admin = Admin(server.native)
            admin.create_topic("lone", 1)
            produce(server.native, "lone", count)
            alone = [produce(server.native, "lone", count) for _ in range(rounds)]
            start = time.perf_counter()
            admin.create_topic("many", partitions)
            created_s = time.perf_counter() - start
            among = [produce(server.native, "lone", count) for _ in range(rounds)]
            memory = server.pss_bytes()
            start, cpu = time.perf_counter(), server.cpu_s("supervisor")
            produce(server.native, "many", 0, partitions)
            seconds = time.perf_counter() - start
            row(f"{partitions} writers", per_s=partitions / seconds,
                supervisor_ms_each=(server.cpu_s("supervisor") - cpu) / partitions * 1000,
                writer_ms_each=sum(map(ran_s, server.pids("writer"))) / partitions * 1000)  # fmt: skip
        with appliance_in(Path(directory)) as started:
            row(f"{partitions} partitions", created_s=created_s, start_s=started.start_s, pss_mib=memory / MIB,
                rate_ratio=statistics.median(among) / statistics.median(alone))  # fmt: skip


def long_log(segments: int) -> None:
    """Start after a clean stop, with a nearly empty log and with one of ``segments`` GiB."""
    with tempfile.TemporaryDirectory(prefix="perf-") as directory:
        data = Path(directory) / "data"
        with appliance_in(Path(directory)) as started:
            server = started.server
            Admin(server.native).create_topic("t", 1)
            produce(server.native, "t", 1000)
        with appliance_in(Path(directory)) as started:
            empty_s, empty = started.start_s, started.server.pss_bytes()
        grow(data / "t-0", segments)
        with appliance_in(Path(directory)) as started:
            server = started.server
            size = Admin(server.native).topics(["t"])[0]["partitions"][0]["bytes"]
            row(f"start with {size / 1e9:.0f} GB", seconds=started.start_s, with_none=empty_s,
                pss_mib=server.pss_bytes() / MIB, pss_with_none_mib=empty / MIB)  # fmt: skip


def grow(path: Path, segments: int) -> None:
    """Put sparse segments of 1 GiB before the records of a cleanly stopped log."""
    marker = Marker.load(path)
    assert marker is not None
    shift = segments * GIB
    active, index = files.log_path(path, 0).read_bytes(), files.index_path(path, 0).read_bytes()
    for number in range(segments):
        with files.log_path(path, number * GIB).open("wb") as file:
            file.truncate(GIB)
        files.index_path(path, number * GIB).write_bytes(b"")
    files.log_path(path, shift).write_bytes(active)
    files.index_path(path, shift).write_bytes(index)
    logs, indexes = files.sizes(path)
    state = marker.state._replace(end=marker.state.end + shift, last_entry=marker.state.last_entry + shift)
    Marker(list(logs), list(indexes.values()), 0, state).store(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="small sizes, once")
    small = parser.parse_args().smoke
    rounds, partitions = (1, 20) if small else (5, 1000)
    headline("footprint", rounds=rounds, partitions=partitions)
    start_times(rounds)
    for nodes in (0, 3):
        idle(20, 1 if small else 30, nodes)
    many(partitions, 20_000 if small else 1_000_000, 1 if small else 3)
    long_log(2 if small else 50)


if __name__ == "__main__":
    main()
