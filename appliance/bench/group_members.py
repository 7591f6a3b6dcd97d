"""Runs the members of one consumer group, and measures how long they take until all have an assignment::

    python -m appliance.bench.group_members ADDRESS TOPIC PARTITIONS MEMBERS

All but the last member join together (formed_s), then the last one joins (join_s), then it leaves (leave_s).  Each time
counts until every member has been given partitions and all together have each partition once.  The members are clients
of confluent-kafka, polled in turn by one thread.  Prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, TopicPartition

PATIENCE_S = 60
HEARTBEAT_MS = 100
"""A member learns of a rebalance from the answer to a heartbeat; with the default of 3 s, this would be measured."""
SETTINGS = {
    "partition.assignment.strategy": "range", "heartbeat.interval.ms": HEARTBEAT_MS, "session.timeout.ms": 6_000,
    "enable.auto.commit": False, "log_level": 0, "reconnect.backoff.ms": 5, "retry.backoff.ms": 5,
}  # fmt: skip


class TimedMember:
    """One consumer, of the group that has the topic's name.  ``fresh``: it got partitions since :meth:`expect`."""

    def __init__(self, address: str, topic: str) -> None:
        self.owned: set[int] = set()
        self.fresh = False
        self.consumer = Consumer({"bootstrap.servers": address, "group.id": topic} | SETTINGS)
        self.consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def expect(self) -> None:
        self.fresh = False

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.owned, self.fresh = {place.partition for place in partitions}, True
        consumer.assign([TopicPartition(place.topic, place.partition, OFFSET_END) for place in partitions])

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.owned = set()
        consumer.unassign()


def settled(members: Sequence[TimedMember], partitions: int) -> float:
    """Poll until all have an assignment; the time at which they have."""
    deadline = time.perf_counter() + PATIENCE_S
    while time.perf_counter() < deadline:
        for member in members:
            member.consumer.poll(0)
        if all(member.fresh for member in members):
            owned = sorted(number for member in members for number in member.owned)
            if owned == list(range(partitions)):
                return time.perf_counter()
        time.sleep(0.001)
    raise SystemExit(f"not all of {len(members)} members have an assignment after {PATIENCE_S} s")


def measure(address: str, topic: str, partitions: int, count: int) -> dict[str, float]:
    seconds = {}
    start = time.perf_counter()
    members = [TimedMember(address, topic) for _ in range(count - 1)]
    if members:
        seconds["formed_s"] = settled(members, partitions) - start
    start = _expect(members)
    last = TimedMember(address, topic)
    seconds["join_s"] = settled([*members, last], partitions) - start
    if members:
        start = _expect(members)
        closing = threading.Thread(target=last.consumer.close)
        closing.start()
        seconds["leave_s"] = settled(members, partitions) - start
        closing.join()
    return seconds


def _expect(members: Sequence[TimedMember]) -> float:
    for member in members:
        member.expect()
    return time.perf_counter()


def main(arguments: list[str]) -> None:
    address, topic, partitions, count = arguments
    seconds: dict[str, Any] = measure(address, topic, int(partitions), int(count))
    print(json.dumps(seconds), flush=True)
    os._exit(0)  # dozens of clients need not be closed one after the other


if __name__ == "__main__":
    main(sys.argv[1:])
