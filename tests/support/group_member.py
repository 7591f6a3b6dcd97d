"""A group member for tests: one process around one client library, told to on its standard input.

    python -m tests.support.group_member '{"client": "confluent", "server": …, "group": …, "topic": …, …}'

Commands, one a line: ``stop`` (leave the group and exit).  Events, one JSON array a line on standard output:
``["owns", [partitions]]`` after each change, ``["got", partition, offset, text]`` for each message, ``["stopped"]``.
A message is committed, synchronously, before the next one is taken; a commit that a rebalance overtakes is let go.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from typing import Any

SESSION_MS = 4_000
HEARTBEAT_MS = 200
CONSUMER_PROTOCOL = "confluent, consumer protocol"
"""The client whose group is of the consumer protocol (KIP-848); those of the others are of the classic one."""


def tell(*event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def listen() -> threading.Event:
    stopping = threading.Event()

    def wait() -> None:
        sys.stdin.readline()
        stopping.set()

    threading.Thread(target=wait, daemon=True).start()
    return stopping


def run_confluent(given: dict[str, Any]) -> None:
    from confluent_kafka import Consumer, KafkaException

    settings = {
        "bootstrap.servers": given["server"],
        "group.id": given["group"],
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    if given["client"] == CONSUMER_PROTOCOL:
        settings["group.protocol"] = "consumer"
    else:
        settings |= {
            "session.timeout.ms": given.get("session_ms", SESSION_MS),
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "partition.assignment.strategy": given.get("strategy", "range"),
        }
    if given.get("instance"):
        settings["group.instance.id"] = given["instance"]
    consumer = Consumer(settings)
    owned: set[int] = set()

    def gained(_: Any, parts: list[Any]) -> None:
        owned.update(part.partition for part in parts)
        tell("owns", sorted(owned))

    def lost(_: Any, parts: list[Any]) -> None:
        owned.difference_update(part.partition for part in parts)
        tell("owns", sorted(owned))

    consumer.subscribe([given["topic"]], on_assign=gained, on_revoke=lost, on_lost=lost)
    stopping = listen()
    while not stopping.is_set():
        message = consumer.poll(0.1)
        if message is None or message.error() is not None:
            continue
        tell("got", message.partition(), message.offset(), (message.value() or b"").decode())
        try:
            consumer.commit(message=message, asynchronous=False)
        except KafkaException as error:
            print(f"commit: {error}", file=sys.stderr)
    consumer.close()


def run_kafka_python(given: dict[str, Any]) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.errors import KafkaError

    consumer = KafkaConsumer(
        bootstrap_servers=given["server"],
        group_id=given["group"],
        group_instance_id=given.get("instance"),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=given.get("session_ms", SESSION_MS),
        heartbeat_interval_ms=HEARTBEAT_MS,
        max_poll_records=10,
        partition_assignment_strategy=[RangePartitionAssignor],
    )

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            tell("owns", [])

        def on_partitions_assigned(self, assigned: Any) -> None:
            tell("owns", sorted(part.partition for part in assigned))

    consumer.subscribe([given["topic"]], listener=Listener())
    stopping = listen()
    while not stopping.is_set():
        # A poll that ends before its member has joined lets it join again, which costs the others a rebalance.
        for records in consumer.poll(timeout_ms=100 if consumer.assignment() else 5_000).values():
            for record in records:
                tell("got", record.partition, record.offset, record.value.decode())
            try:
                consumer.commit()
            except KafkaError as error:
                print(f"commit: {error}", file=sys.stderr)
    consumer.close()


async def run_aiokafka(given: dict[str, Any]) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.errors import KafkaError

    consumer = AIOKafkaConsumer(
        bootstrap_servers=given["server"],
        group_id=given["group"],
        group_instance_id=given.get("instance"),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=given.get("session_ms", SESSION_MS),
        heartbeat_interval_ms=HEARTBEAT_MS,
        partition_assignment_strategy=[RangePartitionAssignor],
    )

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_revoked(self, revoked: Any) -> None:
            tell("owns", [])

        async def on_partitions_assigned(self, assigned: Any) -> None:
            tell("owns", sorted(part.partition for part in assigned))

    await consumer.start()
    consumer.subscribe([given["topic"]], listener=Listener())
    stopping = listen()
    while not stopping.is_set():
        for records in (await consumer.getmany(timeout_ms=100, max_records=10)).values():
            for record in records:
                tell("got", record.partition, record.offset, record.value.decode())
            try:
                await consumer.commit()
            except KafkaError as error:
                print(f"commit: {error}", file=sys.stderr)
    await consumer.stop()


def main() -> None:
    given = json.loads(sys.argv[1])
    if given["client"] in ("confluent", CONSUMER_PROTOCOL):
        run_confluent(given)
    elif given["client"] == "kafka-python":
        run_kafka_python(given)
    else:
        asyncio.run(run_aiokafka(given))
    tell("stopped")


if __name__ == "__main__":
    main()
