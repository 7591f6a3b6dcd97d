"""The program of ``c/kafka_client.c`` in Python, with confluent-kafka: the same arguments, the same line of JSON.

No callback is called for each message that is produced, which would measure Python; the consumer counts them all.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition, libversion

from . import stamps

PATIENCE_S = 60
CONSUMED_AT_ONCE = 10_000


def produce(settings: dict[str, str], topic: str, partitions: int, count: int, size: int) -> dict[str, Any]:
    producer = Producer(settings)
    producer.list_topics(topic, PATIENCE_S)
    send, poll, pack, fill = producer.produce, producer.poll, stamps.STAMP.pack, bytes(size - stamps.STAMP.size)
    start = time.perf_counter()
    for number in range(count):
        while True:
            try:
                send(topic, pack(number) + fill, partition=number % partitions)
                break
            except BufferError:
                poll(0.01)
        if not number % 10_000:
            poll(0)
    assert producer.flush(PATIENCE_S) == 0, "not everything was delivered"
    return {"count": count, "seconds": time.perf_counter() - start, "check": stamps.check(range(count))}


def timed(settings: dict[str, str], topic: str, rate: int, count: int, size: int) -> dict[str, Any]:
    producer = Producer(settings)
    producer.list_topics(topic, PATIENCE_S)
    start = time.monotonic_ns() + 100_000_000
    due = start
    for number in range(count):
        due = start + number * 1_000_000_000 // rate
        wait_ns = due - time.monotonic_ns()
        if wait_ns > 0:
            time.sleep(wait_ns / 1e9)
        producer.produce(topic, stamps.message(due, size), partition=0)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0, "not everything was delivered"
    check = stamps.check(start + number * 1_000_000_000 // rate for number in range(count))
    return {"count": count, "seconds": (time.monotonic_ns() - start) / 1e9, "check": check}


def consume(settings: dict[str, str], topic: str, partitions: int, count: int, size: int) -> dict[str, Any]:
    consumer = _assigned(settings, topic, partitions)
    seen: list[Any] = []
    start = arrived = time.perf_counter()
    while len(seen) < count and time.perf_counter() < arrived + PATIENCE_S:
        messages = consumer.consume(CONSUMED_AT_ONCE, 1.0)
        if messages:
            arrived = time.perf_counter()
            seen += [(message.partition(), message.value()) for message in messages if message.error() is None]
    last = [-1] * partitions
    disorder = 0
    for partition, value in seen:
        assert len(value) == size, "a message has another size"
        stamp = stamps.stamp_of(value)
        disorder += stamp <= last[partition]
        last[partition] = stamp
    check = stamps.check(stamps.stamp_of(value) for _, value in seen)
    return {"count": len(seen), "seconds": arrived - start, "check": check, "disorder": disorder}


def delays(settings: dict[str, str], topic: str, skip: int, count: int, size: int) -> dict[str, Any]:
    consumer = _assigned(settings, topic, 1)
    consumer.poll(1.0)
    print("ready", flush=True)
    start = time.perf_counter()
    delays_ns: list[int] = []
    seen: list[int] = []
    while len(delays_ns) < count:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, f"only {len(delays_ns)} of {count} messages arrived"
        if message.error() is None:
            stamp = stamps.stamp_of(message.value() or b"")
            delays_ns.append(time.monotonic_ns() - stamp)
            seen.append(stamp)
    counted = sorted(delays_ns[skip:])
    at = {"p50_ms": 50, "p99_ms": 99, "p999_ms": 99.9, "max_ms": 100}
    values = {name: counted[min(len(counted) - 1, int(len(counted) * part / 100))] / 1e6 for name, part in at.items()}
    return {"count": count, "seconds": time.perf_counter() - start, "check": stamps.check(seen), **values}


def _assigned(settings: dict[str, str], topic: str, partitions: int) -> Consumer:
    alone = {"group.id": "bench", "enable.auto.commit": "false", "auto.offset.reset": "earliest"}
    consumer = Consumer(alone | settings)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    return consumer


def main(arguments: list[str]) -> None:
    what, address, topic, number, count, size, *assignments = arguments
    settings = {"bootstrap.servers": address} | dict(setting.split("=", 1) for setting in assignments)
    program = {"produce": produce, "timed": timed, "consume": consume, "delays": delays}[what]
    cpu = time.process_time()
    figures = program(settings, topic, int(number), int(count), int(size))
    print(json.dumps(figures | {"client_cpu_s": time.process_time() - cpu, "version": libversion()[0]}))


if __name__ == "__main__":
    main(sys.argv[1:])
