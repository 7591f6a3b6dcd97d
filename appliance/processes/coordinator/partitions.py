"""Reads the tables of the partitions stored on this broker, and sends orders about them to the supervisor.

The supervisor owns the tables and the writers.  It sends the coordinator the name of each table when the partition
exists, and a message when it is gone.  The coordinator reads the tables like any
network worker and never stores.  Orders (create, delete) carry a token, which is in the
answer.  Long orders are split into messages that fit the control channel.  An order of which no message is answered
for ORDER_MS_MAX fails with :class:`RequestTimedOut`, so no request waits for ever for a supervisor that is stopping.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from ...errors import RequestTimedOut, StorageFault, UnknownPartition, named
from ...kafka_apis.appliance import OffsetSpan
from ...machine_limits import limit_of_map
from ...names import TopicPartition
from ...partition_states import OFFLINE, STATE_NAMES
from ...shared import memory
from ...shared.table import SegmentTable
from ..messages import (
    ChangeSettings,
    CleanUp,
    CompactLog,
    CreatePartitions,
    DamagedPlace,
    DeleteBefore,
    DeletePartitions,
    Judged,
    LookAt,
    NewPartition,
    OrderDone,
    PartitionOutcome,
    PartitionTable,
    RepairDone,
    RepairLog,
    Roll,
    StoreProducers,
    ToSupervisor,
    Unreceivable,
)

ORDER_MS_MAX: Final = 15_000
REPAIR_MS_MAX: Final = 3_600_000
"""A repair reads the whole log of a partition."""
ORDER_ROWS_MAX: Final = 50
"""A row holds a name of 249 bytes and all settings, well below 2 KiB: 50 rows fit a message of 128 KiB."""

Send = Callable[[ToSupervisor], None]


Row = TypeVar("Row")
Answer = TypeVar("Answer")


class Partitions:
    """The partitions by name.  ``send`` queues one control message to the supervisor."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._tables: dict[TopicPartition, SegmentTable] = {}
        self._orders: dict[int, asyncio.Future[list[PartitionOutcome]]] = {}
        self._repairs: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reports: dict[int, asyncio.Future[list[DamagedPlace]]] = {}
        # Tokens differ between incarnations: an answer to an order of a killed coordinator is dropped.
        self._tokens = itertools.count(os.getpid() << 32)

    # ---- messages of the supervisor

    def attach(self, partition: TopicPartition, name: str) -> None:
        """Map a partition's table; if the name is gone, the partition was dropped: its message follows."""
        try:
            mapped = memory.attach(name, writable=False)
        except FileNotFoundError:
            return
        except OSError as error:
            self._send(Unreceivable(PartitionTable(partition, name), limit_of_map(error)))
            return
        self._tables[partition] = SegmentTable(memoryview(mapped).cast("Q"))

    def drop(self, partition: TopicPartition) -> None:
        self._tables.pop(partition, None)

    def on_order_done(self, answer: OrderDone) -> None:
        order = self._orders.pop(answer.token, None)
        if order is not None and not order.done():
            order.set_result(answer.outcomes)

    def on_repair_done(self, answer: RepairDone) -> None:
        repair = self._repairs.pop(answer.token, None)
        if repair is not None and not repair.done():
            if answer.error:
                repair.set_exception(named(answer.error, answer.message))
            else:
                repair.set_result(answer.result)

    def on_judged(self, answer: Judged) -> None:
        report = self._reports.pop(answer.token, None)
        if report is not None and not report.done():
            if answer.error:
                report.set_exception(named(answer.error, answer.message))
            else:
                report.set_result(answer.places)

    # ---- reading

    def __contains__(self, key: TopicPartition) -> bool:
        return key in self._tables

    def stored(self) -> list[TopicPartition]:
        return sorted(self._tables)

    def table(self, topic: str, partition: int) -> SegmentTable:
        """Raises UnknownPartition when the partition is not stored here."""
        try:
            return self._tables[TopicPartition(topic, partition)]
        except KeyError:
            raise UnknownPartition(f"{topic}-{partition} is not stored on this broker") from None

    def extent(self, topic: str, partition: int) -> OffsetSpan:
        """The log start offset and the log end offset.

        Raises:
            UnknownPartition: the partition is not stored here.
            WriterGone: it is being opened.
            StorageFault: it is offline.
        """
        table = self.table(topic, partition)
        if table.state == OFFLINE:
            raise StorageFault(f"{topic}-{partition} is offline: see `appliance status`, then `appliance log verify`")
        view = table.snapshot()
        return OffsetSpan(view.start, max(view.high_watermark, table.log_end_offset))

    def state(self, topic: str, partition: int) -> str:
        table = self._tables.get(TopicPartition(topic, partition))
        return STATE_NAMES[table.state] if table is not None else STATE_NAMES[0]

    # ---- orders

    async def create(
        self, keys: Iterable[TopicPartition], topic_id: str, settings: Mapping[str, str], *, new: bool = True
    ) -> None:
        """Open partitions of the topic with this id; one that is open is no error.

        ``new``: make those that have no directory; else they have lost it.

        Raises:
            ApplianceError: the error of the first partition that could not be opened.
        """
        rows = [NewPartition(key, topic_id, dict(settings), new) for key in keys]
        orders = [CreatePartitions(next(self._tokens), some) for some in _chunks(rows)]
        await self._carry_out("create", orders)

    async def delete(self, keys: Iterable[TopicPartition], topic_id: str, *, trash: bool = False) -> None:
        """Close partitions of the topic with this id, and free their names; one that is gone is no error.

        Partitions of another topic with the same name stay.  ``trash``: the files are kept.

        Raises:
            ApplianceError: the error of the first partition whose name is not free.
        """
        orders = [DeletePartitions(next(self._tokens), some, topic_id, trash) for some in _chunks(list(keys))]
        await self._carry_out("delete", orders)

    def clean_up(self) -> None:
        """Let the files of partitions that have left the trash be deleted."""
        self._send(CleanUp())

    def set(self, keys: Iterable[TopicPartition], settings: Mapping[str, str]) -> None:
        """Send the settings of a topic to the writers of these partitions."""
        for some in _chunks(list(keys)):
            self._send(ChangeSettings(some, dict(settings)))

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Move the log start offset to ``offset``; segments wholly before it are removed."""
        self._send(DeleteBefore(TopicPartition(topic, partition), offset))

    def roll(self, topic: str, partition: int) -> None:
        """Seal the active segment, so that it can be removed."""
        self._send(Roll(TopicPartition(topic, partition)))

    def compact(self, order: CompactLog) -> None:
        """Compact the log of a partition, unless another one is being compacted."""
        self._send(order)

    def store_producers(self, topic: str, partition: int) -> None:
        """Store what the partition's writer knows of its producers now."""
        self._send(StoreProducers(TopicPartition(topic, partition)))

    async def repair(self, topic: str, partition: int, cut: bool) -> dict[str, Any]:
        """Take a partition out of service, repair its log and let it come back; see ``supervisor/outages.py``.

        Returns:
            The fields of :class:`~appliance.log.repair.Repaired`.

        Raises:
            InvalidRequest: there is nothing to repair.
            ApplianceError: it could not be repaired; the partition is as it was, or offline.
        """
        return await self._ask(
            self._repairs,
            lambda token: RepairLog(token, TopicPartition(topic, partition), cut),
            REPAIR_MS_MAX,
            f"{topic}-{partition} is still being repaired: see `appliance status`",
        )

    async def report(self, topic: str, partition: int, start: int, stop: int) -> list[DamagedPlace]:
        """Let the inspector read offsets in which somebody has met damage; see ``supervisor/inspection.py``.

        Returns:
            The damage of the partition: start, stop, file, position, reason.

        Raises:
            WriterGone, OutOfResources: try again.
            StorageFault: the partition is offline.
        """
        self.table(topic, partition)
        return await self._ask(
            self._reports,
            lambda token: LookAt(token, TopicPartition(topic, partition), start, stop),
            ORDER_MS_MAX,
            f"{topic}-{partition} is still being looked at: see `appliance status`",
        )

    async def _ask(
        self,
        answers: dict[int, asyncio.Future[Answer]],
        order: Callable[[int], RepairLog | LookAt],
        ms_max: int,
        late: str,
    ) -> Answer:
        """Send an order with a token of its own, and return the answer, which comes into ``answers``.

        Raises:
            RequestTimedOut: it has not come in time; the text is ``late``.
            ApplianceError: that of the answer.
        """
        token = next(self._tokens)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        answers[token] = answer
        self._send(order(token))
        try:
            async with asyncio.timeout(ms_max / 1000):
                return await answer
        except TimeoutError:
            raise RequestTimedOut(late) from None
        finally:
            answers.pop(token, None)

    async def _carry_out(self, verb: str, orders: Sequence[CreatePartitions | DeletePartitions]) -> None:
        answers: list[asyncio.Future[list[PartitionOutcome]]] = []
        for order in orders:
            answers.append(asyncio.get_running_loop().create_future())
            self._orders[order.token] = answers[-1]
            self._send(order)
        outcomes: list[PartitionOutcome] = []
        try:
            for answer in answers:  # each has its time: how long all take depends on the disk, and on their number
                async with asyncio.timeout(ORDER_MS_MAX / 1000):
                    outcomes += await answer
        except TimeoutError:
            raise RequestTimedOut(f"the supervisor did not {verb} in {ORDER_MS_MAX} ms: try again") from None
        finally:
            for order in orders:
                self._orders.pop(order.token, None)
        for (topic, partition), error, message in outcomes:
            if error:
                raise named(error, f"{topic}-{partition}: {message}")


def _chunks(rows: list[Row]) -> Iterable[list[Row]]:
    for start in range(0, len(rows), ORDER_ROWS_MAX):
        yield rows[start : start + ORDER_ROWS_MAX]
