"""Stores the states of transactional ids in ZooKeeper (:mod:`appliance.zookeeper.transaction_nodes`).

:class:`StoredTransactions` is the coordinator's ``transactions.store.TransactionStore``.  States that are to be stored
at the same time go together: while one round trip is under way the next ones collect.  An end with offsets is a request
by itself, since it needs the claims of groups.

Slots are claimed when the states are loaded, or when the first id of a slot is stored.  A claim lasts as long as the
session of ZooKeeper; after that all has to be loaded again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from ...catalog import Topic
from ...errors import ApplianceError, RequestTimedOut
from ...names import TopicPartition
from ...transactions.transaction import Transaction, decode, encode
from ...zookeeper import transaction_nodes as nodes
from ...zookeeper.claims import Claimant, Claimed
from ...zookeeper.paths import CommittedOffset
from ...zookeeper.transaction_nodes import ABSENT, NodeChange
from .committed_offsets import CommittedOffsets
from .registry_session import RegistrySession

STORE_MS_MAX: Final = 10_000
"""How long a state waits to be stored."""

log = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    transactional_id: str
    value: bytes | None
    done: asyncio.Future[None]


class StoredTransactions:
    """See the module's docstring.

    Args:
        topics: those that exist.
        new_epoch: a text that is never used again.
        alone: whether no other appliance is in the ensemble.
    """

    def __init__(
        self,
        registry: RegistrySession,
        claimant: Claimant,
        offsets: CommittedOffsets,
        topics: Callable[[], Mapping[str, Topic]],
        *,
        new_epoch: Callable[[], str],
        alone: Callable[[], bool],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.topics = topics
        self._registry, self._claimant, self._offsets = registry, claimant, offsets
        self._new_epoch, self._alone, self._spawn, self._on_lost = new_epoch, alone, spawn, on_lost
        self._session_id = 0
        self._claims: dict[int, Claimed] = {}
        self._claiming = asyncio.Lock()
        self._versions: dict[str, int] = {}
        self._queue: list[_Waiting] = []
        self._writing = False

    @property
    def serves(self) -> bool:
        return self._registry.enabled and self._alone()

    @property
    def leads(self) -> bool:
        return self._registry.leased

    @property
    def stale(self) -> bool:
        """Whether the claims are those of an earlier session, or there are none yet."""
        return self._session_id != self._registry.session_id

    def epoch(self, transactional_id: str) -> int:
        return self._claims[nodes.slot_of(transactional_id)].version

    async def load(self) -> dict[str, Transaction]:
        """Claim all slots that are used, and read them.

        Raises:
            ZooKeeperAway: it cannot be reached, or another coordinator has one.
        """
        session_id = self._registry.session_id
        self._claims, self._versions, self._session_id = {}, {}, 0
        loaded: dict[str, Transaction] = {}
        for slot in await self._registry.ask(nodes.used(), session_id=session_id):
            await self._claim(slot, session_id)
            for name, node in (await self._registry.ask(nodes.read(slot), session_id=session_id)).items():
                self._versions[name] = node.version
                try:
                    loaded[name] = decode(node.value)
                except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                    log.error("ZooKeeper node %s cannot be read and is left out: %s", nodes.id_path(name), error)
        self._session_id = session_id
        return loaded

    async def _claim(self, slot: int, session_id: int) -> Claimed:
        async with self._claiming:
            if slot not in self._claims:
                taking = nodes.take(slot, self._claimant, self._new_epoch())
                self._claims[slot] = await self._registry.ask(taking, session_id=session_id)
            return self._claims[slot]

    # ---- storing

    async def put(self, transactional_id: str, transaction: Transaction | None) -> None:
        value = None if transaction is None else encode(transaction)
        waiting = _Waiting(transactional_id, value, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        if not self._writing:
            self._writing = True
            self._spawn(self._write_all())
        try:
            async with asyncio.timeout(STORE_MS_MAX / 1000):
                await waiting.done
        except TimeoutError:
            raise RequestTimedOut(f"ZooKeeper did not store a transaction within {STORE_MS_MAX} ms") from None

    async def _write_all(self) -> None:
        try:
            while self._queue:
                taken, self._queue = self._queue, []
                slots: dict[int, list[_Waiting]] = defaultdict(list)
                for write in taken:
                    if not write.done.done():  # done: it was given up
                        slots[nodes.slot_of(write.transactional_id)].append(write)
                await asyncio.gather(*(self._write(slot, waiting) for slot, waiting in slots.items()))
        finally:
            self._writing = False

    async def _write(self, slot: int, waiting: list[_Waiting]) -> None:
        try:
            claim = await self._claim(slot, self._session_id)
            changes = [
                NodeChange(nodes.id_path(name), value, self._versions.get(name, ABSENT)) for name, value, _ in waiting
            ]
            versions = await self._registry.ask(nodes.write(claim, changes), session_id=self._session_id)
        except ApplianceError as error:
            self._note_loss(error)
            for write in waiting:
                if not write.done.done():
                    write.done.set_exception(error)
            return
        for write, version in zip(waiting, versions, strict=True):
            self._note(write.transactional_id, version)
            if not write.done.done():
                write.done.set_result(None)

    def _note(self, transactional_id: str, version: int) -> None:
        if version == ABSENT:
            self._versions.pop(transactional_id, None)
        else:
            self._versions[transactional_id] = version

    def _note_loss(self, error: ApplianceError) -> None:
        """Whoever lost a slot without losing the session has to load again."""
        if isinstance(error, nodes.SlotLost):
            log.warning("%s", error)
            self._session_id = 0
            self._on_lost()

    async def complete(self, transactional_id: str, before: Transaction, after: Transaction) -> None:
        groups: dict[str, dict[TopicPartition, CommittedOffset]] = defaultdict(dict)
        topics = self.topics()
        for pending in before.offsets:
            topic = topics.get(pending.part.topic)
            if topic is not None and topic.id == pending.part.topic_id:
                committed = CommittedOffset(
                    pending.offset, pending.metadata, pending.part.topic_id, pending.leader_epoch
                )
                groups[pending.group][pending.part.key] = committed
        if not groups:
            await self.put(transactional_id, after)
            return
        claim = self._claims[nodes.slot_of(transactional_id)]
        end = NodeChange(nodes.id_path(transactional_id), encode(after), self._versions[transactional_id])
        try:
            version = await self._offsets.commit_with(groups, lambda offsets: nodes.commit(claim, end, offsets))
        except ApplianceError as error:
            self._note_loss(error)
            raise
        self._note(transactional_id, version)
