"""How fast is a log compacted, in which memory, and what does a producer beside it lose?

    python perf/compaction.py [--smoke] [--mb 256] [--seconds 10]

A log of messages of 200 bytes, 80 in a batch, whose keys come again or are all different, is compacted in a process of
its own, as the compactor does it.  *MB/s of a core* is the size of the log before, divided by the CPU of all passes
that it took (one pass knows ``KEYS_MAX`` keys); *memory* is the largest of that process.  *producer* is the rate of
a producer of an appliance beside it, divided by its rate without one, both as long as a compaction takes.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from _bench import PAYLOAD_BYTES, appliance, headline, row
from confluent_kafka import Producer

from appliance.config import TopicSettings
from appliance.log import Log
from appliance.log.compaction import CompactionState, Policy, run_pass
from appliance.processes.supervisor.scrubber import take_lowest_priority
from appliance.records.batch import check_batch, place
from appliance.records.encode import encode_batch

SETTINGS = TopicSettings(segment_bytes=64 << 20)
PER_BATCH = 80
KEY_BYTES = 16


def fill(path: Path, size: int, keys: int) -> int:
    """Write a log of ``size`` bytes; return its number of messages."""
    log = Log.open(path, SETTINGS, lambda: 0)
    random, value, count = Random(1), bytes(PAYLOAD_BYTES - KEY_BYTES), 0
    while log.end_offset < size:
        records = [(b"%0*d" % (KEY_BYTES, random.randrange(keys)), value, (), 1_000) for _ in range(PER_BATCH)]
        view = memoryview(bytearray(encode_batch(records)))
        header = check_batch(view, 0, len(view), 1 << 24)
        place(view, 0, log.end_offset, header.size, header.count)
        if log.end_offset - log.bases[-1] + len(view) > SETTINGS.segment_bytes:
            log.roll()
        log.append([(view, header)])
        count += PER_BATCH
    log.roll()
    log.flush()
    log.raise_high_watermark(log.end_offset)
    log.close()
    return count


def compact(path: Path) -> None:
    """Compact a log until all of it is, and print what that took."""
    take_lowest_priority()
    log = Log.open(path, SETTINGS, lambda: 0)
    limit, began_s, passes = log.bases[-1], time.process_time(), 0
    while CompactionState.load(path).dirty_start < limit:
        passes += 1
        policy = Policy(limit, -1, passes, 1 << 20, SETTINGS.index_interval_bytes)
        run_pass(path, log.bases, log.end_offset, policy, log.swap, lambda _: None)
    cpu_s = time.process_time() - began_s
    log.close()
    print(json.dumps([passes, cpu_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))


def produced(address: str, goes_on: Callable[[], bool]) -> float:
    """Messages per second that a producer gets acknowledged while ``goes_on``."""
    producer = Producer({"bootstrap.servers": address, "acks": "all", "linger.ms": 5})
    value, count, began_s = bytes(PAYLOAD_BYTES), 0, time.monotonic()
    while goes_on():
        for _ in range(1_000):
            producer.produce("beside", value)
        producer.flush()
        count += 1_000
    return count / (time.monotonic() - began_s)


def measure(name: str, size: int, keys: int, address: str, alone_s: float) -> None:
    with tempfile.TemporaryDirectory(prefix="perf-") as directory:
        path = Path(directory) / "log"
        count = fill(path, size, keys)
        until_s = time.monotonic() + alone_s
        alone = produced(address, lambda: time.monotonic() < until_s)
        command = [sys.executable, __file__, "--compact", str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            beside = produced(address, lambda: process.poll() is None)
            assert process.stdout is not None
            passes, cpu_s, memory_kb = json.loads(process.stdout.read())
    figures = {"MB/s of a core": size / cpu_s / 1e6, "messages/s of a core": count / cpu_s}
    row(name, **figures, passes=passes, memory=f"{memory_kb >> 10} MB", producer=beside / alone)


def measure_all(megabytes: int, seconds: float) -> None:
    size = megabytes << 20
    messages = size // PAYLOAD_BYTES
    headline("Compaction of messages of 200 bytes", mb=megabytes)
    with appliance() as broker:
        produced(broker.address, iter([True, False]).__next__)  # makes the topic
        for name, keys in (("each key 10 times", messages // 10), ("each key once or twice", messages)):
            measure(name, size, keys, broker.address, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=256, help="size of each log")
    parser.add_argument("--seconds", type=float, default=10, help="how long the producer is measured alone")
    parser.add_argument("--smoke", action="store_true", help="a small size that only shows that it works")
    parser.add_argument("--compact", metavar="DIRECTORY", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compact:
        compact(options.compact)
    else:
        measure_all(*((2, 0.2) if options.smoke else (options.mb, options.seconds)))


if __name__ == "__main__":
    main()
