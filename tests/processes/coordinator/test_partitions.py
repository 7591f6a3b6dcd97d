"""appliance.processes.coordinator.partitions: orders to the supervisor, whole, refused, or never answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from appliance.errors import CorruptLog, DiskFull, OutOfResources, RequestTimedOut, StorageFault, UnknownPartition
from appliance.names import TopicPartition
from appliance.processes.coordinator import partitions as module
from appliance.processes.coordinator.partitions import ORDER_ROWS_MAX, Partitions
from appliance.processes.messages import CreatePartitions, DeletePartitions, OrderDone, ToSupervisor

ID = "5f" * 16


class Supervisor:
    """Answers each order with what ``verdict`` says about a partition: (error, message)."""

    def __init__(self, verdict: Callable[[int], tuple[str, str]] | None) -> None:
        self.orders: list[CreatePartitions | DeletePartitions] = []
        self.verdict = verdict
        self.partitions = Partitions(self.take)

    def take(self, order: ToSupervisor) -> None:
        assert isinstance(order, CreatePartitions | DeletePartitions)
        self.orders.append(order)
        if self.verdict is not None:
            ordered = [row.partition for row in order.rows] if isinstance(order, CreatePartitions) else order.partitions
            done = OrderDone(order.token, [(key, *self.verdict(key.partition)) for key in ordered])
            asyncio.get_running_loop().call_soon(self.partitions.on_order_done, done)


def keys(count: int) -> list[TopicPartition]:
    return [TopicPartition("logs", partition) for partition in range(count)]


def test_a_long_order_is_cut_into_messages_and_answered_as_one() -> None:
    supervisor = Supervisor(lambda partition: ("", ""))
    asyncio.run(supervisor.partitions.create(keys(2 * ORDER_ROWS_MAX + 1), ID, {"retention.ms": "1"}))
    orders = [order for order in supervisor.orders if isinstance(order, CreatePartitions)]
    assert [len(order.rows) for order in orders] == [ORDER_ROWS_MAX, ORDER_ROWS_MAX, 1]
    assert orders[0].rows[0] == (("logs", 0), ID, {"retention.ms": "1"}, True)


ERRORS = [StorageFault("rotten"), DiskFull("full"), OutOfResources("no room"), RequestTimedOut("slow")]


@pytest.mark.parametrize("error", ERRORS)
def test_the_first_refusal_is_raised_by_its_name(error: Any) -> None:
    """Three of these have Kafka's code 56; a client may repeat after two of them, never after the other."""
    supervisor = Supervisor(lambda partition: (type(error).__name__, str(error)) if partition == 60 else ("", ""))
    with pytest.raises(type(error), match=f"logs-60: {error}"):
        asyncio.run(supervisor.partitions.delete(keys(100), ID))


def test_a_damaged_log_is_a_storage_fault() -> None:
    supervisor = Supervisor(lambda partition: (CorruptLog.__name__, "bad checksum"))
    with pytest.raises(StorageFault, match="bad checksum"):
        asyncio.run(supervisor.partitions.create(keys(1), ID, {}))


def test_an_order_that_nobody_answers_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ORDER_MS_MAX", 20)
    supervisor = Supervisor(None)
    with pytest.raises(RequestTimedOut, match="supervisor"):
        asyncio.run(supervisor.partitions.create(keys(3), ID, {}))
    (order,) = supervisor.orders
    supervisor.partitions.on_order_done(
        OrderDone(order.token, [(TopicPartition("logs", 0), "", "")])
    )  # an answer that comes too late is nobody's


def test_a_long_order_may_take_long_if_its_messages_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[Any] = []
    partitions = Partitions(orders.append)

    async def order() -> None:
        loop = asyncio.get_running_loop()
        now = [loop.time()]
        monkeypatch.setattr(loop, "time", lambda: now[0])
        creating = asyncio.create_task(partitions.create(keys(5 * ORDER_ROWS_MAX), ID, {}))
        await asyncio.sleep(0)
        for sent in orders:
            now[0] += 0.9 * module.ORDER_MS_MAX / 1000
            partitions.on_order_done(OrderDone(sent.token, []))
            for _ in range(3):
                await asyncio.sleep(0)
        await creating

    asyncio.run(order())
    assert len(orders) == 5


def test_an_answer_to_an_earlier_coordinator_is_ignored() -> None:
    Partitions(lambda message: None).on_order_done(OrderDone(1, [(TopicPartition("logs", 0), "WriterGone", "x")]))


def test_a_table_that_is_gone_already_is_no_error() -> None:
    partitions = Partitions(lambda message: None)
    partitions.attach(TopicPartition("logs", 0), "/appliance.nothing.table0")
    partitions.drop(TopicPartition("logs", 0))
    with pytest.raises(UnknownPartition):
        partitions.extent("logs", 0)
