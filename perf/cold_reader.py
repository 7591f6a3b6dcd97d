"""Does a consumer of data that is not in memory delay the clients beside it?

    python perf/cold_reader.py [--smoke] [--rates 2,20,100] [--workers 1,2] [--seconds 10] [--peer kafka]

All processes of a broker read from a disk that is slowed down to so many MB/s (a cgroup of the blkio controller, so
this needs root and cgroups of version 1; else the disk is as quick as it is).  A producer sends one message after the
other, with acks=all: *alone* is the p99 of its acknowledgements in ms, *beside* the same while a consumer reads a topic
of which nothing is in memory, *worst* its largest.  *of disk* is the rate of that consumer, as a share of the disk's.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _bench import headline, row
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from appliance.bench import accounts, brokers

MB = 1_000_000
MESSAGE_BYTES = 1_000
PAUSE_S = 0.005
"""Between two messages of the producer."""
BLKIO = Path("/sys/fs/cgroup/blkio")
LIMIT = "blkio.throttle.read_bps_device"
FILL_MB_MAX = 1_500
LIBRDKAFKA: dict[str, Any] = {"log_level": 0, "group.id": "cold", "enable.auto.commit": False}


def fill(address: str, topic: str, size_mb: int) -> None:
    """Produce so much to a topic; a quarter of the bytes of a message is random."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 20, "batch.size": 1_000_000})
    value = os.urandom(MESSAGE_BYTES)
    for number in range(size_mb * MB // MESSAGE_BYTES):
        while True:
            try:
                producer.produce(topic, value, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
        if not number % 1_000:
            producer.poll(0)
    assert not producer.flush(120)


def latencies_ms(address: str, topic: str, seconds: float) -> list[float]:
    """How long each message of a producer with acks=all takes, ascending."""
    producer = Producer({"bootstrap.servers": address, "acks": "all", "linger.ms": 0})
    latencies: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done: list[Any] = []
        begun = time.perf_counter()
        producer.produce(topic, bytes(100), partition=0, callback=lambda error, _, done=done: done.append(error))
        while not done:
            producer.poll(0.05)
        assert done == [None], done
        latencies.append(1e3 * (time.perf_counter() - begun))
        time.sleep(PAUSE_S)
    return sorted(latencies)


def p99(ascending: list[float]) -> float:
    return ascending[int(0.99 * (len(ascending) - 1))]


def consume(address: str, topic: str, stop: Any, read: Any) -> None:
    """Read a topic from its beginning until ``stop``: in a process of its own.  ``read``: bytes, and seconds."""
    consumer = Consumer({**LIBRDKAFKA, "bootstrap.servers": address})
    consumer.assign([TopicPartition(topic, 0, 0)])
    begun = time.monotonic()
    while not stop.is_set():
        for message in consumer.consume(1_000, 0.1):
            assert message.error() is None, message.error()
            read[0] += MESSAGE_BYTES
            read[1] = time.monotonic() - begun
    consumer.close()


def drop(data_dir: Path, topic: str) -> None:
    """Let the kernel forget the log of a topic."""
    for path in data_dir.glob(f"**/{topic}-0/*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


@contextmanager
def slow_disk(pid: int, directory: Path) -> Iterator[Callable[[float], None]]:
    """Lets the caller slow down what a process and its children read; 0 MB/s: as quick as it is."""
    group = BLKIO / f"cold_reader_{pid}"
    device = directory.stat().st_dev
    group.mkdir()

    def join(where: Path) -> None:
        for descendant in accounts.tree(pid):
            (where / "cgroup.procs").write_text(str(descendant))

    try:
        join(group)
        yield lambda rate_mb: (
            (group / LIMIT).write_text(f"{os.major(device)}:{os.minor(device)} {int(rate_mb * MB)}"),
            None,
        )[1]
    finally:
        (group / LIMIT).write_text(f"{os.major(device)}:{os.minor(device)} 0")
        join(BLKIO)
        group.rmdir()


def measure(broker: brokers.MeasuredBroker, pid: int, name: str, rates: list[float], seconds: float) -> None:
    admin = brokers.admin_of(broker.address)
    topics = ["hot", *(f"cold-{rate:g}" for rate in rates)]
    for future in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
        future.result(60)
    can_slow = BLKIO.is_dir() and os.access(BLKIO, os.W_OK)
    for rate in rates:
        topic = f"cold-{rate:g}"
        fill(broker.address, topic, min(FILL_MB_MAX, int(rate * seconds * 1.5) + 1))
    fill(broker.address, "hot", 1)
    time.sleep(1)
    for rate in rates:
        if not can_slow:
            beside(broker, f"{name}, a disk that is not slowed down", rate, seconds)
            continue
        with slow_disk(pid, broker.data_dir) as slow_down:
            slow_down(rate)
            beside(broker, f"{name}, {rate:g} MB/s", rate, seconds)
            slow_down(0)


def beside(broker: brokers.MeasuredBroker, name: str, rate: float, seconds: float) -> None:
    """Measure a producer alone, and beside a consumer of what is not in memory."""
    topic = f"cold-{rate:g}"
    alone = latencies_ms(broker.address, "hot", seconds / 2)
    drop(broker.data_dir, topic)
    context = multiprocessing.get_context("spawn")
    stop, read = context.Event(), context.Array("d", 2)
    reader = context.Process(target=consume, args=(broker.address, topic, stop, read))
    reader.start()
    while not read[0] and reader.is_alive():
        time.sleep(0.05)
    both = latencies_ms(broker.address, "hot", seconds)
    stop.set()
    reader.join(60)
    share = read[0] / max(read[1], 1e-3) / (rate * MB)
    row(name, alone=p99(alone), beside=p99(both), worst=both[-1], **{"of disk": share})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="2,20,100", help="MB/s of the disk")
    parser.add_argument("--workers", default="1,2", help="network workers of the appliance")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--peer", choices=["kafka"], help="measure Kafka, too")
    parser.add_argument("--smoke", action="store_true", help="a small size that only shows that it works")
    options = parser.parse_args()
    rates = [2.0] if options.smoke else [float(rate) for rate in options.rates.split(",")]
    workers = ["1"] if options.smoke else options.workers.split(",")
    seconds = 1 if options.smoke else options.seconds
    headline("p99 in ms of a producer beside a consumer of a slow disk", seconds=seconds)
    for count in workers:
        with tempfile.TemporaryDirectory(prefix="perf-") as directory:
            ours = brokers.OurBroker(Path(directory), {"network.workers": int(count)})
            try:
                process = ours.server.process
                assert process is not None
                measure(ours, process.pid, f"{ours.name}, {count} worker(s)", rates, seconds)
            finally:
                ours.stop()
    if options.peer:
        with tempfile.TemporaryDirectory(prefix="perf-") as directory:
            peer = brokers.KafkaBroker(Path(directory))
            try:
                measure(peer, peer.process.pid, peer.name, rates, seconds)
            finally:
                peer.stop()


if __name__ == "__main__":
    main()
