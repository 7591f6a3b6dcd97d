"""appliance.transactions.transaction_api: every request in every version, and Kafka's errors."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.transactions.transaction import PARTITIONS_MAX, TransactionState
from appliance.wire.kafka.apis import APIS
from appliance.wire.kafka.codes import Code

from ..support.kafka_apis_fixture import KEY, Client, FakeCluster, run


def versions(name: str) -> range:
    api = APIS[KEY[name]]
    return range(api.version_min, api.version_max + 1)


class Producer:
    """A client with a transactional id, in one version of an API."""

    def __init__(self, cluster: FakeCluster | None = None, name: str = "tx") -> None:
        self.cluster = cluster or FakeCluster()
        if "t" not in self.cluster.all:
            self.cluster.add("t", 2)
        self.client, self.name = Client(self.cluster), name
        self.id, self.epoch = -1, -1

    async def begin(self, version: int | None = None, **values: Any) -> int:
        asked = {"transactional_id": self.name, "transaction_timeout_ms": 60_000} | values
        reply = await self.client.ask("InitProducerId", version, **asked)
        if not reply.error_code:
            self.id, self.epoch = reply.producer_id, reply.producer_epoch
        return int(reply.error_code)

    async def add(self, *parts: tuple[str, int], version: int | None = None) -> list[int]:
        topics: dict[str, list[int]] = {}
        for topic, number in parts:
            topics.setdefault(topic, []).append(number)
        reply = await self.client.ask(
            "AddPartitionsToTxn",
            version,
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[{"name": name, "partitions": numbers} for name, numbers in topics.items()],
        )
        rows = reply.results_by_topic_v3_and_below
        return [each.partition_error_code for topic in rows for each in topic.results_by_partition]

    async def add_group(self, group: str = "g", version: int | None = None) -> int:
        return int((await self.client.ask("AddOffsetsToTxn", version, **self.me(), group_id=group)).error_code)

    async def end(self, committed: bool = True, version: int | None = None) -> int:
        reply = await self.client.ask("EndTxn", version, **self.me(), committed=committed)
        await self.cluster.transactions.settled()
        return int(reply.error_code)

    def me(self) -> dict[str, Any]:
        return {"transactional_id": self.name, "producer_id": self.id, "producer_epoch": self.epoch}


@pytest.mark.parametrize("version", versions("InitProducerId"))
def test_producer_ids_in_every_version(version: int) -> None:
    async def scenario() -> None:
        client = Client(FakeCluster())
        ids = [await client.ask("InitProducerId", version, transactional_id=None) for _ in range(2)]
        assert [(each.error_code, each.producer_epoch) for each in ids] == [(0, 0)] * 2
        assert ids[0].producer_id != ids[1].producer_id
        producer = Producer()
        assert await producer.begin(version) == 0 and producer.epoch == 0
        first = producer.id
        assert await producer.begin(version) == 0 and (producer.id, producer.epoch) == (first, 1)
        for name in ("", "x" * 10_000):
            assert await producer.begin(version, transactional_id=name) == Code.INVALID_REQUEST
        for timeout_ms in (0, -1, 900_001):
            refused = await producer.begin(version, transaction_timeout_ms=timeout_ms)
            assert refused == Code.INVALID_TRANSACTION_TIMEOUT

    run(scenario())


def test_a_producer_that_goes_on_says_who_it_was() -> None:
    async def scenario() -> None:
        producer = Producer()
        await producer.begin()
        was = {"producer_id": producer.id, "producer_epoch": producer.epoch}
        assert await producer.begin(**was) == 0 and producer.epoch == 1
        assert await producer.begin() == 0 and producer.epoch == 2
        assert await producer.begin(**was) == Code.PRODUCER_FENCED
        assert await producer.begin(3, **was) == Code.INVALID_PRODUCER_EPOCH
        assert await producer.begin(producer_id=5) == Code.INVALID_REQUEST, "without an epoch"
        assert await producer.begin(producer_id=-7, producer_epoch=-1) == Code.INVALID_REQUEST

    run(scenario())


@pytest.mark.parametrize("version", versions("AddPartitionsToTxn"))
def test_partitions_are_added_all_or_none(version: int) -> None:
    async def scenario() -> None:
        producer = Producer()
        await producer.begin()
        none, unknown = Code.OPERATION_NOT_ATTEMPTED, Code.UNKNOWN_TOPIC_OR_PARTITION
        assert await producer.add(("t", 0), ("t", 9), ("u", 0), version=version) == [none, unknown, unknown]
        assert not producer.cluster.transactions.coordinator.open()
        assert await producer.add(("t", 0), ("t", 1), version=version) == [0, 0]
        producer.epoch += 1
        fenced = Code.PRODUCER_FENCED if version >= 2 else Code.INVALID_PRODUCER_EPOCH
        assert await producer.add(("t", 0), version=version) == [fenced]
        producer.id += 1
        assert await producer.add(("t", 0), version=version) == [Code.INVALID_PRODUCER_ID_MAPPING]

    run(scenario())


@pytest.mark.parametrize("version", versions("AddOffsetsToTxn"))
def test_groups_are_added(version: int) -> None:
    async def scenario() -> None:
        producer = Producer()
        await producer.begin()
        assert await producer.add_group("", version) == Code.INVALID_GROUP_ID
        assert await producer.add_group("g" * 256, version) == Code.INVALID_GROUP_ID
        assert await producer.add_group("g", version) == 0
        producer.epoch += 1
        fenced = Code.PRODUCER_FENCED if version >= 2 else Code.INVALID_PRODUCER_EPOCH
        assert await producer.add_group("g", version) == fenced

    run(scenario())


@pytest.mark.parametrize("version", versions("EndTxn"))
def test_a_transaction_ends_once(version: int) -> None:
    async def scenario() -> None:
        producer = Producer()
        assert await producer.end(version=version) == Code.INVALID_PRODUCER_ID_MAPPING
        await producer.begin()
        assert await producer.end(version=version) == Code.INVALID_TXN_STATE
        await producer.add(("t", 0))
        assert await producer.end(version=version) == 0
        assert producer.cluster.transactions.coordinator.all()["tx"].state is TransactionState.COMPLETE_COMMIT
        assert await producer.end(version=version) == 0, "its answer was lost"
        assert await producer.end(False, version) == Code.INVALID_TXN_STATE
        producer.epoch += 1
        fenced = Code.PRODUCER_FENCED if version >= 2 else Code.INVALID_PRODUCER_EPOCH
        assert await producer.end(version=version) == fenced

    run(scenario())


def test_more_partitions_than_a_transaction_may_have() -> None:
    async def scenario() -> None:
        producer = Producer()
        producer.cluster.add("wide", PARTITIONS_MAX + 1)
        await producer.begin()
        parts = [("wide", number) for number in range(PARTITIONS_MAX + 1)]
        assert set(await producer.add(*parts)) == {Code.POLICY_VIOLATION}
        assert set(await producer.add(*parts[1:])) == {0}

    run(scenario())


def test_a_topic_that_was_made_again_is_another_one() -> None:
    async def scenario() -> None:
        producer = Producer()
        await producer.begin()
        await producer.add(("t", 0))
        producer.cluster.add("t", 2)
        assert await producer.add(("t", 0)) == [0]
        producer.cluster.transactions.done.clear()
        assert await producer.end() == 0
        assert producer.cluster.transactions.done.count(("commit", 0)) == 1, "only the topic that there is"

    run(scenario())
