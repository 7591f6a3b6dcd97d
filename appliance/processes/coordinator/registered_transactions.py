"""The transactions of this appliance: their coordinator, with its store in ZooKeeper and the writers of partitions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final
from uuid import uuid4

from ...broker.sequences import new_producer_id
from ...errors import Unavailable
from ...transactions.transaction_coordinator import TransactionCoordinator
from ...zookeeper.claims import Claimant
from ..messages import ToSupervisor
from .live_brokers import LiveBrokers
from .peer_transactions import PeerTransactions
from .registered_groups import RegisteredGroups
from .registry_session import RegistrySession
from .stored_transactions import StoredTransactions
from .transaction_writers import SpreadWriters, TransactionWriters

RETRY_S: Final = 1.0

log = logging.getLogger(__name__)


class RegisteredTransactions:
    """Loads the transactions when a session of ZooKeeper begins, and when others are ours by the brokers that live."""

    def __init__(
        self,
        registry: RegistrySession,
        groups: RegisteredGroups,
        brokers: LiveBrokers,
        ids_max: int,
        clock_ms: Callable[[], int],
        *,
        send: Callable[[ToSupervisor], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self.peers = PeerTransactions(brokers, spawn)
        self.store = StoredTransactions(
            *(registry, Claimant(brokers.broker_id, registry.instance), groups.offsets, groups.topics, self.peers),
            new_epoch=lambda: uuid4().hex,
            coordinates=brokers.coordinates,
            spawn=spawn,
            on_lost=lambda: spawn(self._load_again()),
        )
        self.writers = TransactionWriters(send, lambda partitions: self.coordinator.all_at(partitions), spawn)
        self.coordinator = TransactionCoordinator(
            *(self.store, SpreadWriters(brokers.broker_id, self.writers, self.peers, groups.topics, spawn)),
            ids_max=ids_max,
            new_id=new_producer_id,
            clock_ms=clock_ms,
            spawn=spawn,
        )
        self._registry = registry
        self._reviewed_session = 0
        self._loading = asyncio.Lock()
        self._clock_ms = clock_ms

    def review(self) -> None:
        """A session of ZooKeeper works, perhaps a new one, or other brokers live: our slots may be another's now."""
        if self.store.stale:
            self.coordinator.unload()
        if self._reviewed_session != self._registry.session_id:
            self._reviewed_session = self._registry.session_id
            self.writers.forget_epochs()

    async def _load_again(self) -> None:
        self.coordinator.unload()
        await self.load()

    def report(self, late_ms: int) -> dict[str, Any]:
        """What ``status.py`` shows; ``late_ms``: the transactions that have been open for longer are late."""
        opened = self.coordinator.open()
        before_ms = self._clock_ms() - late_ms
        late = sorted(
            (transaction.started_ms, name) for name, transaction in opened.items() if transaction.started_ms < before_ms
        )
        oldest = None
        if late:
            started_ms, name = late[0]
            oldest = {"id": name, "state": opened[name].state.value, "since": started_ms / 1000}
        return {"ids": len(self.coordinator.all()), "open": len(opened), "late": len(late), "oldest": oldest}

    async def load(self) -> None:
        """Take over what is stored, unless this session has done so; tries until it succeeds."""
        async with self._loading:
            while self.store.serves and (self.store.stale or not self.coordinator.loaded):
                self.coordinator.unload()
                try:
                    self.coordinator.load(await self.store.load())
                except Unavailable as error:
                    log.info("transactions are not known yet: %s", error)
                    await asyncio.sleep(RETRY_S)
            self.writers.tell_waiting()
