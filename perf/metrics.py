"""What counting costs a request, and what a scrape costs: time, size, share of a core at one scrape every 15 s.

    python perf/metrics.py [--partitions 1000] [--topics 100] [--smoke]

Tables and pages are real shared memory with every number in use; the endpoint's code runs in this process.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.addresses import Listener
from appliance.metrics.exposition import Exposition, ReadingCollector, Watched
from appliance.metrics.readings import Reader
from appliance.partition_states import ONLINE
from appliance.shared import memory
from appliance.shared.counters import CELL_COUNT, GAUGE_NAMES, PAGE_BYTES, Counters
from appliance.shared.table import TABLE_BYTES, SegmentTable

SCRAPE_S = 15
SCRAPE_MS_MAX = 50
CORE_PERCENT_MAX = 1
WORKERS = 2
LISTENERS = [Listener("kafka", "PLAINTEXT", "h:1"), Listener("native", "PLAINTEXT", "h:1")]
APIS = (0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 18)


@contextmanager
def appliance(partitions: int, topics: int) -> Iterator[Path]:
    """The data directory of an appliance with these partitions, all in use."""
    with tempfile.TemporaryDirectory() as name:
        data_dir = Path(name)
        instance = memory.instance_of(data_dir)
        try:
            tables = {f"topic-{index % topics:04}-{index // topics}": _table(instance) for index in range(partitions)}
            pages = {f"network {index}": _page(instance) for index in range(WORKERS)}
            state = {"pid": os.getpid(), "state": "serving", "tables": tables, "pages": pages}
            (data_dir / "state.json").write_text(json.dumps(state))
            with (data_dir / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                lock.write(str(os.getpid()))
                lock.flush()
                yield data_dir
        finally:
            memory.unlink_all(instance)


def _table(instance: str) -> str:
    name, mapped = memory.create(instance, "table", TABLE_BYTES)
    with mapped, memoryview(mapped) as view, view.cast("Q") as cells:
        table = SegmentTable(cells)
        table.publish([0], 0, 1 << 20, 4_000)
        table.set_log_end_offset(1 << 20)
        table.set_state(ONLINE)
        table.count_group(100, 1 << 20)
        table.count_parts(100)
        table.count_flush(1_000_000)
        table.count_fetched(1, 1 << 20)
        table.handed_over(4).answered(0, 100, 0)
    return name


def _page(instance: str) -> str:
    name, mapped = memory.create(instance, "counters", PAGE_BYTES)
    with mapped, memoryview(mapped) as view, view.cast("Q") as cells:
        counters = Counters(cells)
        counters.set_gauges(range(len(GAUGE_NAMES)))
        for listener in LISTENERS:
            for api in APIS:
                counters.listener_counters(listener).answered(api, 3, time.monotonic_ns() - 1_000_000)
    return name


def cost_of_a_request_ns(rounds: int) -> float:
    """Of everything that is counted for one request and its reply, in this process."""
    counters = Counters(memoryview(bytearray(CELL_COUNT * 8)).cast("Q")).listener_counters(LISTENERS[0])
    began = time.perf_counter_ns()
    for _ in range(rounds):
        counters.received(100)
        counters.answered(0, 1, began)
        counters.sent(60)
    counted = time.perf_counter_ns() - began
    began = time.perf_counter_ns()
    for _ in range(rounds):
        pass
    return (counted - (time.perf_counter_ns() - began)) / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--topics", type=int, default=100)
    parser.add_argument("--smoke", action="store_true", help="a small size that only shows that it works")
    options = parser.parse_args()
    partitions, rounds, scrapes = (20, 1_000, 2) if options.smoke else (options.partitions, 200_000, 20)
    with appliance(partitions, min(options.topics, partitions)) as data_dir:
        reader, exposition = Reader(data_dir), Exposition()
        times, cpu, size = [], [], 0
        for _ in range(scrapes + 1):  # the first one maps the memory
            began, began_cpu = time.perf_counter(), time.process_time()
            size = len(exposition.write(ReadingCollector(reader.read(), Watched())))
            times.append(1000 * (time.perf_counter() - began))
            cpu.append(1000 * (time.process_time() - began_cpu))
        first_ms, scrape_ms, cpu_ms = times[0], statistics.median(times[1:]), statistics.median(cpu[1:])
        readings_ms = _milliseconds(reader)
    percent = cpu_ms / (10 * SCRAPE_S)
    print(f"{partitions} partitions: scrape {scrape_ms:.1f} ms (reading {readings_ms:.1f}, the first {first_ms:.1f})")
    print(f"{size:,} bytes, {percent:.2f} % of a core at a scrape every {SCRAPE_S} s")
    print(f"counting: {cost_of_a_request_ns(rounds):.0f} ns for a request with its reply, received and sent alone")
    if not options.smoke and (scrape_ms >= SCRAPE_MS_MAX or percent >= CORE_PERCENT_MAX):
        raise SystemExit(f"more than {SCRAPE_MS_MAX} ms, or {CORE_PERCENT_MAX} % of a core")


def _milliseconds(reader: Reader) -> float:
    began = time.perf_counter()
    reader.read()
    return 1000 * (time.perf_counter() - began)


if __name__ == "__main__":
    main()
