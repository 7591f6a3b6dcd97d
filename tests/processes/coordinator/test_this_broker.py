"""appliance.processes.coordinator.this_broker: leaders and listeners of brokers, records before an offset deleted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from appliance.addresses import PLAINTEXT, Listener, parse_listeners
from appliance.config import BrokerSection, Config, KafkaSection
from appliance.errors import OffsetOutOfRange, UnknownPartition
from appliance.names import TopicPartition
from appliance.processes.coordinator.live_brokers import LiveBrokers
from appliance.processes.messages import DeleteBefore
from appliance.zookeeper.paths import BrokerInfo

from ...support.coordinator_bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_leaders_and_brokers_are_those_that_live(bench: Bench) -> None:
    topic = bench.broker.topics()["logs"]
    assert [bench.broker.leader(topic, partition) for partition in range(3)] == [0, 0, -1]
    bench.registry.brokers[8] = BrokerInfo("i", "h", native="h:9091", kafka="[::1]:9092")
    bench.registry.brokers[9] = BrokerInfo("i", "h", native="h:9091", kafka="")
    assert bench.broker.leader(topic, 2) == 8
    kafka, native = (Listener(protocol, PLAINTEXT, "a:1") for protocol in ("kafka", "native"))
    assert [tuple(row) for row in bench.broker.brokers(kafka)] == [(0, "a", 1), (8, "::1", 9092)]
    assert [row.id for row in bench.broker.brokers(native)] == [0, 8, 9]


def test_clients_get_addresses_of_listeners_like_their_own(bench: Bench) -> None:
    """Method: a peer with a plain and a TLS listener; this broker advertises one of both, and listens everywhere."""
    bench.registry.brokers[8] = BrokerInfo("i", "h", native="h:1", kafka="h:2,SSL://h:3")
    config = Config(broker=BrokerSection(host="us"), kafka=KafkaSection(advertised="SSL://name:9"))
    brokers = LiveBrokers(config, cast(Any, bench.registry), lambda: b"secret")
    told = {
        security: [tuple(row) for row in brokers.brokers(Listener("kafka", security, "here:4"))]
        for security in ("PLAINTEXT", "SSL", "SASL_SSL")
    }
    assert told == {
        "PLAINTEXT": [(0, "here", 4), (8, "h", 2)],
        "SSL": [(0, "name", 9), (8, "h", 3)],
        "SASL_SSL": [(0, "here", 4)],
    }
    brokers.listening = {"native": "127.0.0.1:5,unix:/s", "kafka": "0.0.0.0:6,[::1]:7,SSL://[::]:8,SASL_SSL://[::1]:9"}
    own = brokers.registration([])
    assert own is not None and own.native == "127.0.0.1:5"
    assert parse_listeners("kafka", own.kafka) == [
        Listener("kafka", "SSL", "name:9"),
        Listener("kafka", "PLAINTEXT", "us:6"),
        Listener("kafka", "SASL_SSL", "[::1]:9"),
    ]


def test_deleting_records_waits_for_the_writer_and_says_where_the_log_starts_now(bench: Bench) -> None:
    async def deleted_by_writer() -> int:
        asking = asyncio.ensure_future(bench.broker.delete_records("logs", 0, 150))
        while not bench.sent:
            await asyncio.sleep(0)
        assert bench.sent == [DeleteBefore(TopicPartition("logs", 0), 150)]
        bench.table.retire_before(150)
        return await asking

    assert bench.run(deleted_by_writer()) == 150
    assert bench.run(bench.broker.delete_records("logs", 0, 150)) == 150  # nothing more to remove
    assert len(bench.sent) == 1
    for offset in (50, 251):
        with pytest.raises(OffsetOutOfRange):
            bench.run(bench.broker.delete_records("logs", 0, offset))
    with pytest.raises(UnknownPartition):
        bench.run(bench.broker.delete_records("logs", 1, 0))


def test_what_acks_1_has_acknowledged_is_in_the_log_for_whoever_asks(bench: Bench) -> None:
    bench.table.set_log_end_offset(300)  # and readers see 250
    assert bench.broker.extent("logs", 0) == (0, 300)

    async def deleted_by_writer() -> int:
        asking = asyncio.ensure_future(bench.broker.delete_records("logs", 0, 300))
        while not bench.sent:
            await asyncio.sleep(0)
        assert bench.sent == [DeleteBefore(TopicPartition("logs", 0), 300)]
        bench.table.publish_high_watermark(300, 30)
        await asyncio.sleep(0)
        assert not asking.done(), "the start has not moved"
        bench.table.retire_before(300)
        return await asking

    assert bench.run(deleted_by_writer()) == 300
