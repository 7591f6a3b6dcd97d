"""Measures the end-to-end latency at a given rate, from the time at which each message was due.

The producer has a fixed timetable.  The latency of a message that is sent late counts from its due time, so a stall
shows in all the messages that it delayed.  Producer and consumer are separate processes; both read CLOCK_MONOTONIC,
which is the same clock for all processes.
"""

from __future__ import annotations

import multiprocessing
import struct
import time
from collections.abc import Sequence
from typing import Any

from _bench import PAYLOAD_BYTES
from confluent_kafka import Consumer, Producer, TopicPartition

DUE = struct.Struct("<q")
FILL = bytes(PAYLOAD_BYTES - DUE.size)
WARM_UP_S = 1


def at_rate(address: str, topic: str, rate: int, seconds: int, percentiles: Sequence[float]) -> list[float]:
    """Latencies in ms at these percentiles, over ``seconds`` after a second of warming up."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    ready = context.Event()
    count = rate * (seconds + WARM_UP_S)
    reader = context.Process(target=_read, args=(address, topic, count, rate * WARM_UP_S, percentiles, queue, ready))
    writer = context.Process(target=_write, args=(address, topic, rate, count))
    reader.start()
    assert ready.wait(60)
    writer.start()
    result: list[float] = queue.get(timeout=120 + seconds)
    writer.join()
    reader.join()
    return result


def _write(address: str, topic: str, rate: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": address, "acks": "1", "linger.ms": 0})
    producer.list_topics(topic, 30)
    interval_ns = 1_000_000_000 // rate
    start = time.monotonic_ns() + 100_000_000
    for number in range(count):
        due = start + number * interval_ns
        wait_ns = due - time.monotonic_ns()
        if wait_ns > 0:
            time.sleep(wait_ns / 1e9)
        producer.produce(topic, DUE.pack(due) + FILL, partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0


def _read(
    address: str, topic: str, count: int, skip: int, percentiles: Sequence[float], queue: Any, ready: Any
) -> None:
    consumer = Consumer({
        "bootstrap.servers": address, "group.id": "latency", "enable.auto.commit": False, "fetch.wait.max.ms": 500,
        "fetch.error.backoff.ms": 1, "auto.offset.reset": "earliest",
    })  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    consumer.poll(1.0)
    ready.set()
    latencies: list[int] = []
    while len(latencies) < count:
        message = consumer.poll(30)
        assert message is not None, f"only {len(latencies)} of {count} messages arrived"
        if message.error() is None:
            latencies.append(time.monotonic_ns() - DUE.unpack_from(message.value())[0])
    consumer.close()
    counted = sorted(latencies[skip:])
    queue.put([counted[min(len(counted) - 1, int(len(counted) * p / 100))] / 1e6 for p in percentiles])
