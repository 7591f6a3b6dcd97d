"""A store and writers for transactions in memory, and the coordinator between them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping, Sequence
from itertools import count
from typing import Any

from appliance.catalog import Topic
from appliance.errors import UnknownPartition, ZooKeeperAway
from appliance.groups.store import Commit
from appliance.names import TopicPartition
from appliance.transactions.store import Committer, Lead, OpenProducer
from appliance.transactions.transaction import (
    ENDING,
    PendingOffset,
    ProducerIdentity,
    Transaction,
    TransactionPart,
    TransactionState,
)
from appliance.transactions.transaction_coordinator import TransactionCoordinator
from appliance.wire.kafka.codes import Code

TOPIC_ID = "0123456789abcdef" * 2
MINUTE_MS = 60_000


class FakeTransactions:
    """A store, writers, and the coordinator between them.  ``done``: what has happened, in order.

    ``away``: the store fails; ``mute``: it stores and fails; ``offline``: partitions whose writers fail;
    ``elsewhere``: ids and groups that another appliance coordinates; ``unreachable``: it does not answer;
    ``opened_elsewhere``, ``waiting_elsewhere``: the transactions, and by group the offsets, that are open there.
    """

    broker_id = 1

    def __init__(
        self,
        known: Mapping[str, Topic] | None = None,
        positions: dict[str, dict[TopicPartition, Commit]] | None = None,
        ids_max: int = 100,
    ) -> None:
        self.serves = self.leads = True
        self.away = self.mute = self.unreachable = False
        self.elsewhere: set[str] = set()
        self.opened_elsewhere: list[OpenProducer] = []
        self.waiting_elsewhere: dict[str, set[TopicPartition]] = {}
        self.offline: set[TransactionPart] = set()
        self.stored: dict[str, Transaction] = {}
        self.committed: list[PendingOffset] = []
        self.done: list[Any] = []
        self.announced: list[tuple[str, str]] = []
        self.known = {"a": Topic("a", {0: [1], 1: [1]}, {}, TOPIC_ID)} if known is None else known
        self.positions = {} if positions is None else positions
        self.now_ms = 1_000
        self.tasks: list[asyncio.Task[None]] = []
        self._ids_max = ids_max
        self._ids = count(100)
        self.start()

    def start(self) -> None:
        """A coordinator, after the death of the one before."""
        self.coordinator = TransactionCoordinator(
            self,
            self,
            ids_max=self._ids_max,
            new_id=lambda: next(self._ids),
            clock_ms=lambda: self.now_ms,
            spawn=self.spawn,
        )
        self.coordinator.load(dict(self.stored))

    def kill(self) -> None:
        self.coordinator.unload()
        for task in self.tasks:
            task.cancel()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    # -- the store

    def owner_of(self, transactional_id: str) -> str:
        return transactional_id

    def coordinates(self, transactional_id: str) -> bool:
        return transactional_id not in self.elsewhere

    def lead(self, transactional_id: str) -> Lead:
        return Lead(0, 3)

    async def open_elsewhere(self, partitions: Collection[TopicPartition]) -> list[OpenProducer]:
        self.check_known()
        return [row for row in self.opened_elsewhere if row.partition in partitions]

    async def pending_elsewhere(self, group: str) -> Collection[TopicPartition]:
        self.check_known()
        return self.waiting_elsewhere.get(group, ())

    def check_known(self) -> None:
        if not self.coordinator.loaded or self.unreachable:
            raise ZooKeeperAway("not all that is open is known")

    async def announce_pending(self, group: str, transactional_id: str) -> None:
        self.announced.append((group, transactional_id))

    def groups_elsewhere(self, transaction: Transaction) -> list[str]:
        return list(dict.fromkeys(offset.group for offset in transaction.offsets if offset.group in self.elsewhere))

    async def hand_over(self, transactional_id: str, transaction: Transaction, group: str) -> None:
        if self.unreachable:
            raise ZooKeeperAway("away")
        before = self.stored[transactional_id]
        if before.state is TransactionState.PREPARE_COMMIT:
            self.committed += [offset for offset in before.offsets if offset.group == group]
            await self.put(transactional_id, before.without(group))

    async def add_offsets_elsewhere(
        self, transactional_id: str, producer: ProducerIdentity, consumer: Committer, offsets: Sequence[PendingOffset]
    ) -> Code:
        if self.unreachable:
            raise ZooKeeperAway("away")
        self.done.append(("passed on", transactional_id, consumer.group))
        return Code.NONE

    def topics(self) -> Mapping[str, Topic]:
        return self.known

    async def put(self, transactional_id: str, transaction: Transaction | None) -> None:
        await asyncio.sleep(0)
        if self.away and not self.mute:
            raise ZooKeeperAway("away")
        if transaction is None:
            del self.stored[transactional_id]
        else:
            self.stored[transactional_id] = transaction
        self.done.append(transaction and transaction.state)
        if self.away:
            raise ZooKeeperAway("it may be stored")

    async def complete(self, transactional_id: str, before: Transaction, after: Transaction) -> None:
        known = self.stored.get(transactional_id) == after
        await self.put(transactional_id, after)
        if not known:
            self.committed += before.offsets
            for each in before.offsets:
                self.positions.setdefault(each.group, {})[each.part.key] = Commit(each.offset, each.metadata)

    # -- the writers

    async def open(self, part: TransactionPart, producer: ProducerIdentity, lead: Lead) -> None:
        await self._step("open", part)

    async def mark(
        self,
        part: TransactionPart,
        producer: ProducerIdentity,
        lead: Lead,
        committed: bool,
        decided_ms: int,
        inherited: bool,
    ) -> None:
        await self._step("commit" if committed else "abort", part)

    async def abort_hanging(self, partition: TopicPartition) -> None:
        known = await self.coordinator.known_at(partition)
        self.done.append(("abort hanging", partition.partition, sorted(known)))

    async def _step(self, what: str, part: TransactionPart) -> None:
        await asyncio.sleep(0)
        if part in self.offline:
            raise ZooKeeperAway("no writer")
        if part.topic_id != self.known[part.topic].id:
            raise UnknownPartition("made again")
        self.done.append((what, part.partition))

    # -- shorter ways

    async def begin(self, *parts: TransactionPart, name: str = "x", timeout_ms: int = MINUTE_MS) -> ProducerIdentity:
        one = await self.coordinator.initialise(name, timeout_ms, None)
        assert isinstance(one, Transaction), one
        if parts:
            assert await self.coordinator.add_partitions(name, one.producer, parts) is Code.NONE
        return one.producer

    async def settled(self) -> None:
        """Wait until no transaction ends any more."""
        while any(one.state in ENDING for one in self.coordinator.all().values()):
            await asyncio.sleep(0)

    async def ends_stored(self) -> None:
        """Wait until that is stored, too."""
        while any(one.state in ENDING for one in self.stored.values()):
            await asyncio.sleep(0)

    def state(self, name: str = "x") -> TransactionState:
        return self.coordinator.all()[name].state
