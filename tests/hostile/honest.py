"""Honest clients that measure: ``python -m tests.hostile.honest NATIVE KAFKA TOPIC``, until a line comes on stdin.

Each does its work some hundred times a second and remembers the longest that it had to wait, in ms:

    producer    from sending to the acknowledgement, acks=all
    consumer    from sending to receiving, a fetch that waits
    group       the same for a member of a group at the Kafka listener, and of its commits
    newcomer    from connecting to the answer, metadata of the Kafka listener

Prints one line when all have begun, and their figures as JSON at the end.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from appliance.records.encode import encode_values
from tests.support.native_peer import Peer

BEGIN_S_MAX = 60
EVERY_S = 0.01


class Honest:
    def __init__(self, native: str, kafka: str, topic: str) -> None:
        self.native, self.kafka, self.topic = native, kafka, topic
        self.stopped = threading.Event()
        self.worst_ms: dict[str, float] = {}
        self.done: dict[str, int] = {}
        self.faults: list[str] = []

    def measured(self, name: str, started_ns: int) -> None:
        self.worst_ms[name] = max(self.worst_ms.get(name, 0.0), (time.monotonic_ns() - started_ns) / 1e6)
        self.done[name] = self.done.get(name, 0) + 1

    def producer(self) -> None:
        with Peer(self.native) as peer:
            while not self.stopped.wait(EVERY_S):
                started_ns = time.monotonic_ns()
                answer = peer.produce(self.topic, encode_values([b"%d" % started_ns], 1_000), acks=-1)
                assert answer[0] == 0, answer
                self.measured("producer", started_ns)

    def consumer(self) -> None:
        from appliance.records.decode import decode_values

        with Peer(self.native) as peer:
            offset = peer.end(self.topic)
            while not self.stopped.is_set():
                (error, *_), data = peer.fetch(self.topic, offset, wait_ms=200)
                assert error == 0, error
                at = 0
                while at < len(data):
                    values, offset = decode_values(data, at)
                    for value in values:
                        self.measured("consumer", int(value or b""))
                    at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")

    def group(self) -> None:
        from confluent_kafka import Consumer

        settings = {"bootstrap.servers": self.kafka, "group.id": f"{self.topic}-group", "enable.auto.commit": False}
        consumer = Consumer(settings | {"auto.offset.reset": "latest", "fetch.wait.max.ms": 100})
        consumer.subscribe([self.topic])
        count = 0
        while not self.stopped.is_set():
            message = consumer.poll(0.2)
            if message is None or message.error():
                continue
            self.measured("group", int(message.value() or b"0"))
            count += 1
            if count % 50 == 0:
                started_ns = time.monotonic_ns()
                consumer.commit(message=message, asynchronous=False)
                self.measured("commit", started_ns)
        consumer.close()

    def newcomer(self) -> None:
        from confluent_kafka.admin import AdminClient

        while not self.stopped.wait(0.5):
            started_ns = time.monotonic_ns()
            AdminClient({"bootstrap.servers": self.kafka}).list_topics(self.topic, timeout=60)
            self.measured("newcomer", started_ns)

    def run(self) -> dict[str, Any]:
        roles = (self.producer, self.consumer, self.group, self.newcomer)
        threads = [threading.Thread(target=self._guarded, args=(role,), daemon=True) for role in roles]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + BEGIN_S_MAX
        wanted = {"producer", "consumer", "group", "commit", "newcomer"}
        while not wanted <= self.done.keys() and time.monotonic() < deadline and not self.faults:
            self.stopped.wait(0.05)
        self.worst_ms.clear()  # of a group that has just been made, and a machine that was starting an appliance
        print("begun", flush=True)
        sys.stdin.readline()
        self.stopped.set()
        for thread in threads:
            thread.join(BEGIN_S_MAX)
        missing = wanted - self.done.keys()
        return {"worst_ms": self.worst_ms, "done": self.done, "faults": self.faults + sorted(missing)}

    def _guarded(self, role: Callable[[], None]) -> None:
        try:
            role()
        except Exception as error:
            self.faults.append(f"{role.__name__}: {error!r}")


if __name__ == "__main__":
    print(json.dumps(Honest(*sys.argv[1:]).run()), flush=True)
