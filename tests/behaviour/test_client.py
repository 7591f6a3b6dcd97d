"""The client against a real appliance whose processes are killed under load: no loss, no repeat, order kept."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from appliance.client import Admin, Consumer, Producer

from ..support.server import Server, wait_for

TIMEOUT_S = 60
MESSAGES = 40_000
KILL_AT = (5_000, 15_000, 25_000)


class Killer:
    """Kills processes of one role, each once: state.json is a moment behind."""

    def __init__(self, server: Server, role: str) -> None:
        self.server, self.role = server, role
        self.killed: set[int] = set()

    def kill_one(self) -> None:
        alive = wait_for(lambda: set(self.server.pids(self.role)) - self.killed, f"a {self.role} runs")
        victim = min(alive)
        self.killed.add(victim)
        self.server.kill(victim)


def read(server: Server, topic: str, partition: int, count: int) -> list[bytes | None]:
    """``count`` messages, and what else there is by then.  With acks=1 they become readable after the answer."""
    with Consumer(server.native) as consumer:
        consumer.assign([(topic, partition)])
        values: list[bytes | None] = []
        while len(values) < count and (batches := consumer.fetch_batches(TIMEOUT_S)):
            values += itertools.chain.from_iterable(batch.values for batch in batches)
        return values + [message.value for message in consumer.messages(0)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_goes_in_comes_out(appliance: Server, topic: str, codec: str) -> None:
    values = [b"line %d of some length" % i for i in range(20_000)]
    with Producer(appliance.native, codec=codec, batch_messages_max=777) as producer:
        producer.send_many(topic, values)
        last = producer.send(topic, b"last").result(TIMEOUT_S)
    assert read(appliance, topic, 0, len(values) + 1) == [*values, b"last"]
    with Consumer(appliance.native) as consumer:
        consumer.assign({(topic, 0): last.offset})
        assert [message.value for message in consumer.poll(TIMEOUT_S)] == [b"last"]


@pytest.mark.parametrize("acks", [1, "all"])
@pytest.mark.parametrize("role", ["writer", "network"])
def test_kill_under_load(make_appliance: Callable[..., Server], role: str, acks: Any) -> None:
    """kill -9 again and again while batches are in flight; an acknowledged message is there once, in its place."""
    server = make_appliance()
    with Admin(server.native) as admin:
        admin.create_topic("load", 2)
    failures: list[Any] = []
    killer = Killer(server, role)
    with Producer(server.native, acks=acks, batch_messages_max=20, linger_ms=1, retry_backoff_ms=5) as producer:
        for i in range(MESSAGES):
            producer.send("load", b"%d" % i, partition=i % 2, on_delivery=lambda *a: a[0] and failures.append(a))
            if i in KILL_AT:
                killer.kill_one()
        producer.flush(TIMEOUT_S)
    assert not failures
    for partition in (0, 1):
        expected = [b"%d" % i for i in range(partition, MESSAGES, 2)]
        assert read(server, "load", partition, len(expected)) == expected


def test_a_consumer_reads_on_while_workers_are_killed(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance()
    values = [b"%d" % i for i in range(MESSAGES)]
    with Producer(server.native, batch_messages_max=100) as producer:
        producer.send_many("load", values)
    killer = Killer(server, "network")
    with Consumer(server.native, partition_bytes_max=20_000) as consumer:
        consumer.assign([("load", 0)])
        messages = consumer.messages(TIMEOUT_S)
        got = []
        for number, stop in itertools.pairwise([0, *KILL_AT, MESSAGES]):
            got += [message.value for message in itertools.islice(messages, stop - number)]
            if stop != MESSAGES:
                killer.kill_one()
    assert got == values
