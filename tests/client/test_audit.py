"""Audit: what is counted is what was delivered, in the window that its timestamp says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.client import Audit, Consumer, Producer
from appliance.client.delivery import Delivery, ProducerBatch
from appliance.errors import ApplianceError, BadValue, MessageTooLarge
from appliance.wire.requests import EARLIEST

from ..support.server import Server, wait_for

MINUTE = 60_000


@pytest.fixture
def producer(appliance: Server) -> Iterator[Producer]:
    with Producer(appliance.native) as made:
        yield made


def counts(server: Server, topic: str, messages: int) -> tuple[Counter[tuple[str, int]], list[dict[str, Any]]]:
    with Consumer(server.native) as consumer:
        consumer.assign({(topic, 0): EARLIEST})
        found: list[Any] = []
        wait_for(lambda: found.extend(consumer.poll(timeout=1)) or len(found) >= messages, "counts")
    rows = [json.loads(message.value) for message in found]
    total: Counter[tuple[str, int]] = Counter()
    for row in rows:
        total[row["topic"], row["window_start_ms"]] += row["count"]
    return total, rows


def test_counts_by_topic_and_window(appliance: Server, producer: Producer, topic: str) -> None:
    now = iter(range(10 * MINUTE, 12 * MINUTE, MINUTE // 2))
    with Audit(producer, f"{topic}-audit", server="web-1", clock_ms=lambda: 10 * MINUTE + 1) as audit:
        for moment in now:
            audit.send(f"{topic}-a", b"x", timestamp=moment, key=b"k", headers=[("h", b"v")])
        last = audit.send_many(f"{topic}-b", [b"1", b"2", b"3"])
    assert last is not None and last.result().topic == f"{topic}-b"
    found, rows = counts(appliance, f"{topic}-audit", 3)
    assert found == {(f"{topic}-a", 10 * MINUTE): 2, (f"{topic}-a", 11 * MINUTE): 2, (f"{topic}-b", 10 * MINUTE): 3}
    assert {(row["server"], row["window_ms"]) for row in rows} == {("web-1", MINUTE)}


def test_the_timestamp_that_was_counted_is_the_one_that_is_stored(
    appliance: Server, producer: Producer, topic: str
) -> None:
    clock = iter(range(10**6, 10**9, 7919)).__next__
    with Audit(producer, f"{topic}-audit", window_ms=10_000, clock_ms=clock) as audit:
        for number in range(500):
            audit.send(topic, b"%d" % number)
    arrived: Counter[int] = Counter()
    with Consumer(appliance.native) as consumer:
        consumer.assign({(topic, 0): EARLIEST})
        messages: list[Any] = []
        wait_for(lambda: messages.extend(consumer.poll(timeout=1)) or len(messages) >= 500, "messages")
    for message in messages:
        arrived[message.timestamp - message.timestamp % 10_000] += 1
    total, _ = counts(appliance, f"{topic}-audit", len(arrived))
    assert {start: count for (_, start), count in total.items()} == arrived


def test_counts_are_published_while_messages_are_sent(appliance: Server, producer: Producer, topic: str) -> None:
    now = [0]
    audit = Audit(producer, f"{topic}-audit", publish_ms=1000, clock_ms=lambda: now[0])
    for _ in range(3):
        audit.send(topic, b"x").result()
        now[0] += 1000
    total, _ = counts(appliance, f"{topic}-audit", 1)
    assert sum(total.values()) >= 1, "before it was closed"
    audit.close()
    audit.close()
    total, _ = counts(appliance, f"{topic}-audit", 3)
    assert sum(total.values()) == 3


class Refusing(Producer):
    """A producer whose batches, of one message each, fail on command."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []
        self.fails: ApplianceError | None = None

    def send(self, topic: str, value: bytes | None, **options: Any) -> Delivery:
        batch = ProducerBatch(self, topic, 0, 100, 0, 0, 0.0, 0.0)
        batch.complete(self.fails, 0)
        if self.fails is None:
            self.sent.append((topic, value or b""))
        return Delivery((batch, 0))

    def flush(self, timeout: float | None = None) -> None:
        pass


def test_what_failed_is_not_counted() -> None:
    producer = Refusing()
    with Audit(producer, "audit", clock_ms=lambda: 0) as audit:
        audit.send("logs", b"good")
        producer.fails = MessageTooLarge("no")
        audit.send("logs", b"bad")
        producer.fails = None
    (count,) = [json.loads(value)["count"] for topic, value in producer.sent if topic == "audit"]
    assert count == 1


def test_counts_that_cannot_be_published_are_kept() -> None:
    producer = Refusing()
    audit = Audit(producer, "audit", clock_ms=lambda: 0)
    audit.send("logs", b"good")
    producer.fails = MessageTooLarge("no")
    with pytest.raises(MessageTooLarge):
        audit.close()
    producer.fails = None
    audit.close()
    assert [json.loads(value)["count"] for topic, value in producer.sent if topic == "audit"] == [1]


def test_arguments(producer: Producer) -> None:
    with pytest.raises(BadValue, match="window_ms=0"):
        Audit(producer, "audit", window_ms=0)
    with pytest.raises(BadValue, match="not counted itself"):
        Audit(producer, "audit").send("audit", b"x")
