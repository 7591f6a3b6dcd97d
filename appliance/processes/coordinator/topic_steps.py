"""Creates, changes and deletes topics in steps, so that a failed change leaves the topic whole or removes it wholly.

Every topic has an id, made at its creation (``catalog``); the catalog, ZooKeeper and the data directory store it.

A creation is first noted in the catalog as a removal (:meth:`TopicSteps.making`); the store that adds the topic drops
the note.  Where a step is refused, or a process dies, the noted removal is carried out.  So the topic exists as a
whole, or there is nothing of it in the catalog, in ZooKeeper and on the disk.

One store of the catalog decides a deletion: it drops the topic and notes its removal
(:meth:`TopicSteps.decide_deletion`).  :meth:`TopicSteps.finish` carries out the rest (``supervisor.removal`` has the
table), and is repeated until it succeeds.  The name is free when the removal has left the catalog: old data, and old
offsets of groups, never appear in a new topic.  The files, and the offsets, are kept in the trash (:mod:`.trash`).

Changes of one topic happen one after another (:meth:`TopicSteps.changing`); every step has a deadline.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from ...catalog import Catalog, CatalogChange, Removal, Topic, TrashedTopic
from ...config import TopicDefaults, TopicSettings
from ...errors import ApplianceError, RequestTimedOut
from ...names import TopicPartition
from ...zookeeper.assignment import place_partitions
from ...zookeeper.deletion import retire_topic
from ...zookeeper.paths import TopicInfo
from .partitions import Partitions
from .registry_session import RegistrySession

QUEUE_MS_MAX: Final = 10_000
"""How long a change of a topic waits for others of the same topic."""
log = logging.getLogger(__name__)


class TopicSteps:
    """The steps.  ``defaults``: the settings of topics that do not set their own.

    ``trash_ms``: how long deleted topics are kept, 0 = not at all; ``deletion_ms``: the time that they get.

    ``revision`` grows with every change of :attr:`catalog`; ``on_change`` is called then.
    """

    def __init__(
        self,
        broker_id: int,
        catalog: Catalog,
        partitions: Partitions,
        registry: RegistrySession,
        defaults: TopicDefaults,
        trash_ms: int,
        deletion_ms: Callable[[], int],
        on_change: Callable[[], None],
    ) -> None:
        self.catalog = catalog
        self.defaults = defaults
        self.trash_ms = trash_ms
        self._deletion_ms = deletion_ms
        self.revision = 0
        self._on_change = on_change
        self._partitions = partitions
        self._registry = registry
        self._broker_id = broker_id
        self._changes: list[tuple[CatalogChange, asyncio.Future[None]]] = []
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def changed(self) -> None:
        self.revision += 1
        self._on_change()

    def settings(self, topic: Topic) -> TopicSettings:
        """The settings of a topic: its own over the defaults."""
        return self.defaults.held_by(topic.name, topic.settings)

    def hosted(self, topic: Topic) -> list[TopicPartition]:
        """The partitions of a topic that are stored here."""
        return [
            TopicPartition(topic.name, p)
            for p, brokers in sorted(topic.partitions.items())
            if self._broker_id in brokers
        ]

    def removals(self, name: str) -> list[Removal]:
        return [removal for removal in self.catalog.removals if removal.name == name]

    def trashed(self, topic_id: str) -> TrashedTopic | None:
        """The topic with this id, if it is in the trash."""
        return next((trashed for trashed in self.catalog.trash if trashed.id == topic_id), None)

    @asynccontextmanager
    async def changing(self, name: str) -> AsyncIterator[None]:
        """Allow one change of a topic at a time.

        Raises:
            RequestTimedOut: earlier changes took longer than QUEUE_MS_MAX.
        """
        lock = self._locks.setdefault(name, asyncio.Lock())
        try:
            async with asyncio.timeout(QUEUE_MS_MAX / 1000):
                await lock.acquire()
        except TimeoutError:
            raise RequestTimedOut(f"others are changing the topic {name!r}: try again") from None
        try:
            yield
        finally:
            lock.release()

    # ---- steps, each within ``changing``

    async def place(self, partitions: range) -> dict[int, list[int]]:
        """Choose the broker that is to store each of some new partitions."""
        live = {self._broker_id}
        if self._registry.enabled:
            live |= await self._registry.live_brokers()
        return place_partitions(partitions, live, self.catalog.partition_counts, prefer=[self._broker_id])

    async def adopt(self, topic: Topic, *, new: bool = True) -> None:
        """Open the partitions of ``topic`` here, and store it in the catalog.

        They are opened first: at a start, a partition of the catalog without a directory is one that is lost.  A topic
        that comes back from the trash is stored first: openers find its directories there.

        ``new``: partitions without a directory are made.

        Raises:
            ApplianceError: the topic is stored all the same, unless that has failed.
        """
        old = self.catalog.topics.get(topic.name)
        if topic == old and all(key in self._partitions for key in self.hosted(topic)):
            return
        if self.trashed(topic.id) is not None:
            new = False
            await self.finish_trashing(topic.id)
            await self.commit(CatalogChange(put=topic))
            self.changed()
        failure: ApplianceError | None = None
        try:
            await self.open(topic, new=new)
        except ApplianceError as error:
            failure = error
        await self.commit(CatalogChange(put=topic))
        self.changed()
        self._registry.announce()
        if old is not None:
            self.set_settings(old, topic)
        if failure is not None:
            raise failure

    def set_settings(self, old: Topic, topic: Topic) -> None:
        if old.settings != topic.settings:
            self._partitions.set(self.hosted(topic), self.settings(topic).as_kafka())

    async def open(self, topic: Topic, *, new: bool = True) -> None:
        """Open the partitions of a topic here; ``new``: make those that have no directory."""
        missing = [key for key in self.hosted(topic) if key not in self._partitions]
        await self._partitions.create(missing, topic.id, self.settings(topic).as_kafka(), new=new)
        self._registry.announce()

    @asynccontextmanager
    async def making(self, removal: Removal) -> AsyncIterator[Removal]:
        """Note a removal, and carry it out if the block fails; the block drops the note when it succeeds."""
        await self.commit(CatalogChange(note=removal))
        try:
            yield removal
        except ApplianceError as error:
            log.warning("topic %s could not be made or grown: %s: taking it back", removal.name, error)
            try:
                await self.finish(removal)
            except ApplianceError as left:
                log.error("topic %s: what is left of it will be removed: %s", removal.name, left)
            raise

    async def decide_deletion(self, topic: Topic) -> Removal:
        """Drop a topic from the catalog, unless a later one has its name, and note its removal."""
        if self._registry.enabled:  # without ZooKeeper it could not be unregistered: do not begin
            await self._registry.ask(self._registry.topics.topics([topic.name]))
        here = [partition for _, partition in self.hosted(topic)]
        removal = Removal(topic.name, topic.id, here, trash=self.trash_ms > 0)
        trashed = TrashedTopic(topic.name, topic.id, topic.partitions, topic.settings, self._deletion_ms())
        present = self.catalog.topics.get(topic.name)
        drop = topic.name if present is not None and present.id == topic.id else ""
        await self.commit(CatalogChange(drop=drop, note=removal, trash=trashed if removal.trash else None))
        self.changed()
        return removal

    async def finish(self, removal: Removal) -> None:
        """Carry out a removal noted in the catalog, and drop the note; each step may be repeated.

        Raises:
            ApplianceError: it stays noted; try again.
        """
        if removal not in self.catalog.removals:
            return
        keys = [TopicPartition(removal.name, partition) for partition in removal.partitions]
        await self._partitions.delete(keys, removal.id, trash=removal.trash)
        if removal.whole and self._registry.enabled:
            await self._registry.ask(retire_topic(removal.name, removal.id, trash=removal.trash))
        await self.commit(CatalogChange(done=removal))
        self._registry.announce()

    async def finish_trashing(self, topic_id: str) -> None:
        """Carry out the removals that have put a topic into the trash.

        Raises:
            ApplianceError: one stays noted; try again.
        """
        for removal in [removal for removal in self.catalog.removals if removal.id == topic_id]:
            await self.finish(removal)

    async def leave_trash(self, trashed: TrashedTopic) -> None:
        """Let a topic leave the trash for good; a removal that goes on keeps nothing of it."""
        going = [removal for removal in self.catalog.removals if removal.id == trashed.id and removal.trash]
        final = [CatalogChange(done=removal, note=msgspec.structs.replace(removal, trash=False)) for removal in going]
        await asyncio.gather(*(self.commit(change) for change in (*final, CatalogChange(forget=trashed.id))))

    # ---- the catalog

    async def commit(self, change: CatalogChange) -> None:
        """Change the catalog.  Changes of one turn of the loop are stored together, so many topics cost few stores.

        Raises:
            DiskFull, StorageFault: nothing is changed.
        """
        loop = asyncio.get_running_loop()
        stored: asyncio.Future[None] = loop.create_future()
        self._changes.append((change, stored))
        if len(self._changes) == 1:
            loop.call_soon(self._store_changes)
        await stored

    def _store_changes(self) -> None:
        waiting, self._changes = self._changes, []
        error: ApplianceError | None = None
        try:
            self.catalog.change(*[change for change, _ in waiting])
        except ApplianceError as refused:
            error = refused
        for _, stored in waiting:
            if stored.done():  # the caller was cancelled
                continue
            if error is None:
                stored.set_result(None)
            else:
                stored.set_exception(error)


def info_of(topic: Topic) -> TopicInfo:
    return TopicInfo(topic.partitions, topic.settings, topic.id)


def topic_of(name: str, info: TopicInfo) -> Topic:
    return Topic(name, dict(info.partitions), dict(info.settings), info.id)
