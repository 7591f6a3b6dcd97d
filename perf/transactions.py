"""What does a transaction cost, beside Apache Kafka?

    python perf/transactions.py [--smoke] [--seconds 10] [--peer kafka]

Kafka is measured as it comes, and with ``log.flush.interval.messages=1``, so that what it has committed survives a
loss of power, as ours does.  A producer of librdkafka sends transactions of so many messages of 200 bytes to three
partitions, one after another, for some seconds.  *messages/s* are those of committed transactions; *commit p50* and
*p99* are what the call that commits takes, in ms; *cpu/transaction* is that of all the broker's processes, in ms.  With
*offsets*, each transaction also has the offset of a group.  *ids/s*: new transactional ids, of as many producers, 20 at
a time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _bench import PAYLOAD_BYTES, headline, row
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from appliance.bench import brokers

PARTITIONS = 3
SIZES = (1, 100, 1_000)
IDS = 400
WAIT_S = 60.0


def producer(address: str, name: str, **settings: Any) -> Producer:
    made = Producer({"bootstrap.servers": address, "transactional.id": name, "linger.ms": 5, **settings})
    made.init_transactions(WAIT_S)
    return made


def measure(broker: brokers.MeasuredBroker, size: int, seconds: float, offsets: bool) -> None:
    """Transactions of ``size`` messages."""
    address, topic = broker.address, f"tx-{size}-{offsets}"
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(WAIT_S)
    transactional = producer(address, topic)
    reader = Consumer({"bootstrap.servers": address, "group.id": topic})
    payload = bytes(PAYLOAD_BYTES)
    commits: list[float] = []

    def transaction(number: int) -> None:
        transactional.begin_transaction()
        for number in range(size):
            transactional.produce(topic, payload, partition=number % PARTITIONS)
        if offsets:
            transactional.send_offsets_to_transaction(
                [TopicPartition(topic, 0, number)], reader.consumer_group_metadata()
            )
        assert transactional.flush(WAIT_S) == 0
        start = time.perf_counter()
        transactional.commit_transaction(WAIT_S)
        commits.append((time.perf_counter() - start) * 1000)

    for number in range(5):
        transaction(number)
    commits.clear()
    cpu_s, start = broker.cpu_s(), time.perf_counter()
    while time.perf_counter() - start < seconds:
        transaction(len(commits))
    took_s, cpu_s = time.perf_counter() - start, broker.cpu_s() - cpu_s
    reader.close()
    row(
        f"{broker.name}, {size} messages{', offsets' if offsets else ''}",
        **{
            "messages/s": float(len(commits) * size / took_s),
            "transactions/s": float(len(commits) / took_s),
            "commit p50": statistics.median(commits),
            "p99": statistics.quantiles(commits, n=100)[98] if len(commits) > 1 else commits[0],
            "cpu/transaction": cpu_s / len(commits) * 1000,
        },
    )


def measure_ids(broker: brokers.MeasuredBroker, count: int) -> None:
    """New transactional ids, in requests of their own."""
    start = time.perf_counter()
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda number: producer(broker.address, f"id-{number}"), range(count)))
    row(f"{broker.name}, new ids", **{"ids/s": float(count / (time.perf_counter() - start))})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--peer", choices=["kafka"], help="measure Kafka, too")
    parser.add_argument("--smoke", action="store_true", help="a small size that only shows that it works")
    options = parser.parse_args()
    seconds, ids = (0.5, 20) if options.smoke else (options.seconds, IDS)
    headline("Transactions of a producer, one after another", seconds=seconds, ids=ids)
    sides: list[Callable[[Path], brokers.MeasuredBroker]] = [
        lambda directory: brokers.OurBroker(directory, {"zookeeper.nodes": 1})
    ]
    if options.peer:
        sides += [brokers.KafkaBroker, lambda directory: brokers.KafkaBroker(directory, flushed=True)]
    for make in sides:
        with tempfile.TemporaryDirectory(prefix="perf-") as directory:
            broker = make(Path(directory))
            try:
                for size in SIZES:
                    measure(broker, size, seconds, offsets=False)
                measure(broker, 100, seconds, offsets=True)
                measure_ids(broker, ids)
            finally:
                broker.stop()


if __name__ == "__main__":
    main()
