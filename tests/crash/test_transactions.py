"""What is read is written exactly once, by transactions, whatever dies meanwhile; and no open transaction stays."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from appliance.client import Admin

from ..support.server import Server, wait_for

FAULTS = 12
AT_ONCE = 10
ABORTED_SHARE = 0.2
DEADLINE_S = 120.0
ROLES = ("writer", "writer", "network", "network", "coordinator", "zookeeper")
"""A process that dies again and again is started later each time: writers and workers are many."""
IN, OUT = "in", "out"
OF_ONE_BROKER = {"metadata.recovery.strategy": "none"}
"""librdkafka 2.16 forgets a broker when no other is connected, and with it what a transaction was waiting for there."""


class Copier(threading.Thread):
    """Copies IN to OUT by transactions, of which it aborts some; begins anew after each error.

    ``copied``: how many messages it believes to have copied; ``seed``: decides which transactions are aborted.
    """

    def __init__(self, address: str, count: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.copied = 0
        self.lives = 0
        self.bug: BaseException | None = None
        self._address, self._count, self._random = address, count, random.Random(seed)

    def run(self) -> None:
        try:
            while self.copied < self._count:
                self.lives += 1
                with contextlib.suppress(KafkaException):  # whatever it is: the next one fences this one, and goes on
                    self._live()
        except BaseException as bug:
            self.bug = bug

    def _live(self) -> None:
        settings = {"bootstrap.servers": self._address, "log_level": 0, **OF_ONE_BROKER}
        producer = Producer({**settings, "transactional.id": "copier", "transaction.timeout.ms": 10_000})
        producer.init_transactions(DEADLINE_S)
        reader = Consumer({**settings, "group.id": "copier", "enable.auto.commit": False})
        try:
            while self.copied < self._count:
                (at,) = reader.committed([TopicPartition(IN, 0)], DEADLINE_S)
                self.copied = max(at.offset, 0) and self._before(at.offset)
                reader.assign([TopicPartition(IN, 0, max(at.offset, 0))])
                found = [each for each in reader.consume(AT_ONCE, 1.0) if each.error() is None]
                if found:
                    self._copy(producer, reader, found)
        finally:
            reader.close()

    def _copy(self, producer: Producer, reader: Consumer, found: list[Any]) -> None:
        aborted = self._random.random() < ABORTED_SHARE
        producer.begin_transaction()
        for each in found:
            value = each.value()
            producer.produce(OUT, (b"aborted " if aborted else b"") + value, partition=0)
        producer.send_offsets_to_transaction(
            reader.position([TopicPartition(IN, 0)]), reader.consumer_group_metadata(), DEADLINE_S
        )
        (producer.abort_transaction if aborted else producer.commit_transaction)(DEADLINE_S)

    def _before(self, offset: int) -> int:
        return sum(1 for each in self.offsets if each < offset)

    offsets: tuple[int, ...] = ()
    """Where the messages of IN are."""


def killed(server: Server, role: str) -> None:
    pids = [row["pid"] for row in server.processes(role) if row["pid"]]
    if pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(random.choice(pids), signal.SIGKILL)


def read(address: str, topic: str) -> Iterator[tuple[int, bytes]]:
    """Offsets and values, up to the last stable offset of this moment."""
    reader = Consumer({"bootstrap.servers": address, "group.id": "reader", "isolation.level": "read_committed"})
    part = TopicPartition(topic, 0, 0)
    try:
        _, end = reader.get_watermark_offsets(part, DEADLINE_S)
        reader.assign([part])
        while end and reader.position([part])[0].offset < end:
            for each in reader.consume(100, 0.5):
                if each.error() is None:
                    yield each.offset(), each.value()
    finally:
        reader.close()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_copies_are_exact_whatever_dies(make_appliance: Callable[..., Server], seed: int) -> None:
    server = make_appliance(**{"zookeeper.nodes": 1})
    server.wait_for_zookeeper()
    count = FAULTS * 3 * AT_ONCE
    with Admin(server.native) as admin:
        admin.create_topic(IN, 1)
        admin.create_topic(OUT, 1)
    source = Producer({"bootstrap.servers": server.kafka, "linger.ms": 0, "batch.num.messages": 7})
    for number in range(count):
        source.produce(IN, b"%d" % number, partition=0)
    assert source.flush(DEADLINE_S) == 0
    copier = Copier(server.kafka, count, seed)
    copier.offsets = tuple(offset for offset, _ in read(server.kafka, IN))
    assert len(copier.offsets) == count
    copier.start()
    chance = random.Random(seed)
    for _ in range(FAULTS):
        before = copier.copied
        wait_for(lambda before=before: copier.copied > before or not copier.is_alive(), "progress", DEADLINE_S)
        killed(server, chance.choice(ROLES))
    copier.join(3 * DEADLINE_S)
    assert copier.bug is None and not copier.is_alive(), copier.bug
    wait_for(lambda: len(list(read(server.kafka, OUT))) >= count, "the last stable offset", DEADLINE_S)
    assert [value for _, value in read(server.kafka, OUT)] == [b"%d" % number for number in range(count)]
    with Admin(server.native) as admin:
        (row,) = admin.transactions()
        assert row["open_ms"] is None, row
