"""appliance.transactions.lookup_api: what tools see, and the marker that they may write."""

from __future__ import annotations

import pytest

from appliance.wire.kafka.codes import Code

from ..support.kafka_apis_fixture import Client, FakeCluster, run
from .test_transaction_api import Producer, versions


def test_a_transaction_is_described() -> None:
    async def scenario() -> None:
        producer = Producer()
        await producer.begin()
        await producer.add(("t", 0), ("t", 1))
        reply = await producer.client.ask("DescribeTransactions", transactional_ids=["tx", "other", ""])
        one, *others = reply.transaction_states
        assert (one.transaction_state, one.transaction_timeout_ms, one.producer_epoch) == ("Ongoing", 60_000, 0)
        assert (one.producer_id, one.transaction_start_time_ms) == (producer.id, producer.cluster.transactions.now_ms)
        assert [(each.topic, each.partitions) for each in one.topics] == [("t", [0, 1])]
        assert [each.error_code for each in others] == [Code.TRANSACTIONAL_ID_NOT_FOUND, Code.INVALID_REQUEST]
        await producer.end()
        (one,) = (await producer.client.ask("DescribeTransactions", transactional_ids=["tx"])).transaction_states
        assert (one.transaction_state, one.transaction_start_time_ms, one.topics) == ("CompleteCommit", -1, [])

    run(scenario())


@pytest.mark.parametrize("version", versions("ListTransactions"))
def test_transactions_are_listed(version: int) -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        first, second = Producer(cluster, "a1"), Producer(cluster, "b2")
        await first.begin()
        await second.begin()
        await first.add(("t", 0))
        cluster.transactions.now_ms += 1_000

        async def listed(**values: object) -> list[str]:
            reply = await first.client.ask("ListTransactions", version, **values)
            assert reply.error_code == 0
            return [each.transactional_id for each in reply.transaction_states]

        assert await listed() == ["a1", "b2"]
        assert await listed(state_filters=["Ongoing"]) == ["a1"]
        assert await listed(producer_id_filters=[second.id]) == ["b2"]
        if version >= 1:
            assert await listed(duration_filter=999) == ["a1"] and await listed(duration_filter=1_000) == []
        if version >= 2:
            assert await listed(transactional_id_pattern="b.*") == ["b2"]
            wrong = await first.client.ask("ListTransactions", version, transactional_id_pattern="(")
            assert wrong.error_code == Code.INVALID_REGULAR_EXPRESSION

    run(scenario())


@pytest.mark.parametrize("version", versions("ListTransactions"))
def test_without_transactions(version: int) -> None:
    cluster = FakeCluster()
    cluster.transactions.serves = False
    reply = run(Client(cluster).ask("ListTransactions", version, state_filters=["Ongoing", "Bogus"]))
    assert (reply.error_code, reply.unknown_state_filters, reply.transaction_states) == (0, ["Bogus"], [])
    (one,) = run(Client(cluster).ask("DescribeTransactions", transactional_ids=["tx"])).transaction_states
    assert one.error_code == Code.TRANSACTIONAL_ID_NOT_FOUND


def test_a_marker_by_hand() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        cluster.add("t", 2)
        marker = {"producer_id": 7, "producer_epoch": 0, "transaction_result": False, "coordinator_epoch": 0}
        topics = [{"name": "t", "partition_indexes": [0, 9]}]
        reply = await Client(cluster).ask("WriteTxnMarkers", markers=[marker | {"topics": topics}])
        (row,) = reply.markers
        codes = [each.error_code for topic in row.topics for each in topic.partitions]
        assert (row.producer_id, codes) == (7, [0, Code.UNKNOWN_TOPIC_OR_PARTITION])
        assert cluster.transactions.done == [("abort", 0)]

    run(scenario())
