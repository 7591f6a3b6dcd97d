"""A process for tests that copies a topic exactly once: a member of a native group, and a transactional producer.

    python -m tests.support.transactional_copier '{"server": …, "group": …, "source": …, "target": …, "id": …}'

It copies every message, with the partition that it has, in transactions of at most AT_ONCE messages, of which it aborts
some.  One line a transaction on standard output: ``committed N`` or ``aborted N``.  Closed standard input ends it.
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import threading

from appliance.client import LATEST, Admin, Consumer, GroupConsumer, Producer
from appliance.errors import ApplianceError, ProducerFenced, ZooKeeperAway

from .server import Server, wait_for

AT_ONCE = 10
ABORTED_SHARE = 0.1
TRANSACTION_TIMEOUT_MS = 4_000
SESSION_TIMEOUT_MS = 2_000
IDLE_S = 0.2
DEADLINE_S = 120


class Refused(Exception):
    """Raised in the middle of a transaction, to abort it."""


def copy(server: str, group: str, source: str, target: str, transactional_id: str, ended: threading.Event) -> None:
    """Copy until ``ended``; begins anew when it is fenced, as a service does that is started again."""
    consumer = GroupConsumer(
        server, group, auto_commit=False, isolation="read_committed", session_timeout_ms=SESSION_TIMEOUT_MS
    )
    producer = Producer(
        server, transactional_id=transactional_id, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS, linger_ms=0
    )
    with consumer, producer:
        (stream,) = consumer.create_message_streams({source: 1})[source]
        while not ended.is_set():
            count, result = 0, "committed"
            try:
                with producer.transaction(consumer):
                    for message in itertools.islice(stream.messages(timeout=IDLE_S), AT_ONCE):
                        producer.send(target, message.value, partition=message.partition)
                        count += 1
                    if count and random.random() < ABORTED_SHARE:
                        raise Refused
            except Refused:
                result = "aborted"
            except ProducerFenced:
                raise
            except ApplianceError as error:
                result = f"aborted ({error})"
            if count:
                print(result, count, flush=True)


def main(given: dict[str, str]) -> None:
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.readline()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    while not ended.is_set():
        try:
            copy(given["server"], given["group"], given["source"], given["target"], given["id"], ended)
        except ApplianceError as error:  # fenced: it was stopped for longer than its transaction may take
            print("begins anew", error, flush=True)


class Copier:
    """A process of ``support/transactional_copier.py``; what it says goes to a file."""

    def __init__(self, server: Server, topic: str, number: int, target: str) -> None:
        self.id = f"{topic}-{number}"
        self._output = server.data_dir.parent / f"{self.id}.out"
        self._given = {
            "server": server.native,
            "group": topic,
            "source": topic,
            "target": target,
            "id": self.id,
        }
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.support.transactional_copier", json.dumps(self._given)]
        with self._output.open("ab") as output:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output)

    def committed(self) -> int:
        """Transactions that it has said to be committed."""
        return self._output.read_bytes().count(b"committed")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()


def read_all(
    server: Server, topic: str, partitions: int, isolation: str = "read_committed"
) -> list[tuple[tuple[int, int], bytes]]:
    """(partition, offset) and value of all that is there now, partition by partition."""
    with Consumer(server.native, isolation=isolation) as consumer:
        found: list[tuple[tuple[int, int], bytes]] = []
        for partition in range(partitions):
            consumer.assign([(topic, partition)])
            end = consumer.offsets_at(LATEST)[topic, partition]
            while consumer.position(topic, partition) < end:
                found += [((partition, message.offset), message.value) for message in consumer.poll(1)]
        return found


def wait_for_markers(server: Server) -> None:
    """A commit or abort is answered when it is decided: readers see it a moment later, when its markers are written."""

    def all_written() -> bool:
        with Admin(server.native) as admin:
            try:
                return not any(row["state"].startswith("Prepare") for row in admin.transactions())
            except ZooKeeperAway:  # a coordinator has just been started
                return False

    wait_for(all_written, "the markers", DEADLINE_S)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
