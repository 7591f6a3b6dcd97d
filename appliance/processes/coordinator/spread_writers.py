"""The writers of all appliances of the ensemble, as the coordinator of transactions sees them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple

from ...catalog import Topic
from ...errors import ApplianceError, StaleProducerEpoch, UnknownPartition
from ...names import TopicPartition
from ...transactions.store import Lead
from ...transactions.transaction import ProducerIdentity, TransactionPart
from .peer_transactions import PeerTransactions
from .transaction_writers import TransactionWriters


class _Step(NamedTuple):
    """A step that goes to one appliance, of one transaction."""

    broker_id: int
    producer: ProducerIdentity
    lead: Lead
    marker: tuple[bool, int, bool] | None


class SpreadWriters:
    """The coordinator's ``transactions.store.MarkerWriters``: ``local`` ones, and those of others, through ``peers``.

    Steps of one transaction at one appliance that come in one turn of the loop go there together.
    """

    def __init__(
        self,
        broker_id: int,
        local: TransactionWriters,
        peers: PeerTransactions,
        topics: Callable[[], Mapping[str, Topic]],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._broker_id, self._local, self._peers = broker_id, local, peers
        self._topics, self._spawn = topics, spawn
        self._steps: dict[_Step, list[tuple[TransactionPart, asyncio.Future[None]]]] = defaultdict(list)

    async def open(self, part: TransactionPart, producer: ProducerIdentity, lead: Lead) -> None:
        broker_id = self._leader(part)
        if broker_id == self._broker_id:
            await self._local.open(part, producer, lead)
        else:
            await self._elsewhere(_Step(broker_id, producer, lead, None), part)

    async def mark(
        self,
        part: TransactionPart,
        producer: ProducerIdentity,
        lead: Lead,
        committed: bool,
        decided_ms: int,
        inherited: bool,
    ) -> None:
        broker_id = self._leader(part)
        if broker_id == self._broker_id:
            await self._local.mark(part, producer, lead, committed, decided_ms, inherited)
        else:
            step = _Step(broker_id, producer, lead, (committed, decided_ms, inherited))
            try:
                await self._elsewhere(step, part)
            except StaleProducerEpoch:
                pass  # as of a local one

    async def abort_hanging(self, partition: TopicPartition) -> None:
        await self._local.abort_hanging(partition)

    def _leader(self, part: TransactionPart) -> int:
        topic = self._topics().get(part.topic)
        if topic is None or topic.id != part.topic_id or part.partition not in topic.partitions:
            raise UnknownPartition(f"there is no partition {part.topic}-{part.partition}")
        return topic.leader(part.partition)

    async def _elsewhere(self, step: _Step, part: TransactionPart) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if step not in self._steps:
            self._spawn(self._send(step))
        self._steps[step].append((part, done))
        await done

    async def _send(self, step: _Step) -> None:
        await asyncio.sleep(0)  # the others of this turn
        taken = self._steps.pop(step)
        errors: list[ApplianceError | None]
        try:
            parts = [part for part, _ in taken]
            errors = await self._peers.step(step.broker_id, parts, step.producer, step.lead, step.marker)
        except ApplianceError as error:
            errors = [error] * len(taken)
        for (_, done), fault in zip(taken, errors, strict=True):
            if done.done():  # who waited was cancelled
                continue
            if fault is None:
                done.set_result(None)
            else:
                done.set_exception(fault)
