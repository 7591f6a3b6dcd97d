"""appliance.transactions.offsets_api: offsets wait for the end of the transaction, and for members only."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.wire.kafka.apis import APIS
from appliance.wire.kafka.codes import Code

from ..support.kafka_apis_fixture import KEY, run
from ..support.kafka_group import stable
from .test_transaction_api import Producer

VERSIONS = range(APIS[KEY["TxnOffsetCommit"]].version_max + 1)


async def commit(producer: Producer, offset: int, version: int | None = None, **values: Any) -> list[int]:
    """Commit an offset of t-0, unless other topics are given; the error codes."""
    row = {"partition_index": 0, "committed_offset": offset, "committed_metadata": "note"}
    asked = {"group_id": "g", "topics": [{"name": "t", "partitions": [row]}]} | values
    reply = await producer.client.ask("TxnOffsetCommit", version, **producer.me(), **asked)
    return [each.error_code for topic in reply.topics for each in topic.partitions]


async def committed(producer: Producer, *, stable: bool = False, numbers: list[int] | None = None) -> list[Any]:
    """Offset and error code of partitions of t, by default of partition 0."""
    topics = [{"name": "t", "partition_indexes": numbers or [0]}]
    groups = [{"group_id": "g", "topics": topics, "member_id": None, "member_epoch": -1}]
    reply = await producer.client.ask("OffsetFetch", groups=groups, require_stable=stable)
    (group,) = reply.groups
    if group.error_code:
        return [group.error_code]
    return [(each.committed_offset, each.error_code) for topic in group.topics for each in topic.partitions]


@pytest.mark.parametrize("version", VERSIONS)
def test_offsets_are_committed_with_the_transaction(version: int) -> None:
    async def scenario() -> None:
        producer = Producer()
        await producer.begin()
        assert await commit(producer, 5, version) == [Code.INVALID_TXN_STATE], "its group was not added"
        await producer.add_group()
        assert await commit(producer, 5, version) == [0]
        assert await committed(producer) == [(-1, 0)]
        unstable = Code.UNSTABLE_OFFSET_COMMIT
        assert await committed(producer, stable=True, numbers=[0, 1]) == [(-1, unstable), (-1, 0)]
        assert await producer.end() == 0
        assert await committed(producer, stable=True) == [(5, 0)]

    run(scenario())


def test_offsets_of_an_aborted_transaction_are_gone() -> None:
    async def scenario() -> None:
        producer = Producer()
        await producer.begin()
        await producer.add_group()
        await commit(producer, 5)
        assert await producer.end(False) == 0
        assert await committed(producer, stable=True) == [(-1, 0)]

    run(scenario())


def test_while_nobody_knows_what_is_open_no_offset_is_stable() -> None:
    async def scenario() -> None:
        producer = Producer()
        producer.cluster.transactions.coordinator.unload()
        assert await committed(producer, stable=True) == [Code.COORDINATOR_LOAD_IN_PROGRESS]
        assert await committed(producer) == [(-1, 0)]

    run(scenario())


def test_what_is_refused() -> None:
    async def scenario() -> None:
        producer = Producer()
        await producer.begin()
        await producer.add_group()
        row = {"partition_index": 0, "committed_offset": 1, "committed_metadata": "x" * 5_000}
        rows = [{"partition_index": 9, "committed_offset": 1, "committed_metadata": None}, row]
        assert await commit(producer, 0, topics=[{"name": "t", "partitions": rows}]) == [
            Code.UNKNOWN_TOPIC_OR_PARTITION,
            Code.OFFSET_METADATA_TOO_LARGE,
        ]
        assert await commit(producer, 5, group_id="") == [Code.INVALID_GROUP_ID]
        producer.epoch += 1
        assert await commit(producer, 5) == [Code.INVALID_PRODUCER_EPOCH]
        producer.id += 1
        assert await commit(producer, 5) == [Code.INVALID_PRODUCER_ID_MAPPING]

    run(scenario())


def test_only_a_member_of_this_generation_may_commit() -> None:
    async def scenario() -> None:
        cluster, client, member_id = await stable()
        producer = Producer(cluster)
        producer.client = client
        await producer.begin()
        await producer.add_group()
        group = client.coordinator.membership.get("g")
        assert group is not None
        member = {"member_id": member_id, "generation_id": group.generation}
        assert await commit(producer, 5, **member) == [0]
        assert await commit(producer, 6, **member | {"generation_id": 77}) == [Code.ILLEGAL_GENERATION]
        assert await commit(producer, 6, **member | {"member_id": "stranger"}) == [Code.UNKNOWN_MEMBER_ID]
        assert await commit(producer, 7) == [0], "who says nothing, as before KIP-447"

    run(scenario())
