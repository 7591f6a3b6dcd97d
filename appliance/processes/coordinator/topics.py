"""What both doors ask of topics: create, alter, delete, look up; and keeping in step with the cluster.

Every topic has an id, made here at its creation (``catalog``); whatever is kept of it somewhere carries the id.

A creation is first noted in the catalog as a removal, then registered in ZooKeeper (unless the configuration has
none), then opened by the supervisor; the store that makes the topic known takes the note back.  Where a step is
refused, or somebody dies, the removal that is noted clears everything away: the topic is there as a whole, or there
is nothing of it in the catalog, in ZooKeeper and on the disk.  Partitions are added in the same way.

A deletion is decided by one store of the catalog, which drops the topic and notes its removal; refused, the topic
stays whole.  What is left to do then (``supervisor.removal`` has the table) is done at once, and what cannot be
done now is tried again by :meth:`Topics.reconcile`; whoever asked is told that the deletion goes on.  The name is
free when the removal has left the catalog: old data, and old positions of groups, never show up in a new topic.

Changes that other brokers registered come in through :meth:`Topics.told`, and wholesale after every
(re)connection. What is registered wins, for the same id.  A topic that is *not* registered is deleted here only
if ZooKeeper says that it was deleted (see ``zookeeper/cluster_identity.py``); otherwise ZooKeeper has lost it, or never
had it, and it is registered again.

Changes of one topic happen one after another; every step has a deadline, so nobody waits for long.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Set
from contextlib import asynccontextmanager
from typing import Any, Final
from uuid import uuid4
from weakref import WeakValueDictionary

from ...catalog import Catalog, Change, Removal, Topic, new_id
from ...config import TOPIC_KEYS, Config, TopicSettings
from ...config_keys import KIB
from ...errors import (
    ApplianceError,
    InvalidPartitions,
    InvalidSetting,
    InvalidTopic,
    RequestTimedOut,
    TopicExists,
    Unavailable,
    UnknownPartition,
    WriterGone,
    ZooKeeperAway,
)
from ...kafka_settings import ACCEPTED
from ...names import TopicPartition, check_topic, collides, is_reserved
from ...zookeeper import cluster_identity
from ...zookeeper.assignment import place_partitions
from ...zookeeper.deletion import retire_topic
from ...zookeeper.paths import TopicInfo
from ...zookeeper.session import State
from .partitions import Partitions
from .registry import Registry

QUEUE_MS_MAX: Final = 10_000
"""How long a change of a topic waits for others of the same topic."""
Spawn = Callable[[Coroutine[Any, Any, None]], None]
log = logging.getLogger(__name__)


class Topics:
    """``revision`` grows with every change of what :attr:`catalog` says; ``on_change`` is called then."""

    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        partitions: Partitions,
        registry: Registry,
        spawn: Spawn,
        clock_ms: Callable[[], int],
    ) -> None:
        self.catalog = catalog
        self.revision = 0
        self.on_change: Callable[[], None] = lambda: None
        self._clock_ms = clock_ms
        self._compared = False  # what is registered was compared with the catalog once
        self._stale = registry.enabled  # and is to be compared again
        self._partitions = partitions
        self._registry = registry
        self._spawn = spawn
        self._config = config
        self._broker_id = config.broker.id
        self._changes: list[tuple[Change, asyncio.Future[None]]] = []
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def _changed(self) -> None:
        self.revision += 1
        self.on_change()

    @property
    def defaults(self) -> TopicSettings:
        """What holds where a topic does not set it."""
        return self._config.topics.defaults

    @property
    def auto_create(self) -> bool:
        return self._config.topics.auto_create

    def get(self, name: str) -> Topic:
        topic = self.catalog.topics.get(name)
        if topic is None:
            raise UnknownPartition(f"there is no topic {name!r}")
        return topic

    def settings(self, topic: Topic) -> TopicSettings:
        """What holds for a topic: its own settings over the defaults."""
        return TopicSettings.parse(topic.settings, self.defaults)

    def hosted(self, topic: Topic) -> list[TopicPartition]:
        """The partitions of a topic that are stored here."""
        return [
            TopicPartition(topic.name, p)
            for p, brokers in sorted(topic.partitions.items())
            if self._broker_id in brokers
        ]

    # ---- changes that clients ask for

    def check(
        self, name: str, partitions: int | None = None, settings: Mapping[str, str | int] | None = None
    ) -> tuple[int, dict[str, str]]:
        """Raise what :meth:`create` would raise at once; else the number of partitions and the settings'
        text.

        Raises:
            InvalidTopic, TopicExists, InvalidPartitions, InvalidSetting: see the message.
            WriterGone: the name is not free yet.
        """
        check_topic(name)
        if name in self.catalog.topics:
            raise TopicExists(f"there is a topic {name!r} already")
        if "." in name or "_" in name:
            for other in self.catalog.topics:
                if collides(name, other):
                    raise InvalidTopic(f"topic {name!r} collides with {other!r}: metrics have one name for both")
        if any(removal.whole for removal in self._removals(name)):
            raise WriterGone(f"the earlier topic {name!r} is still being deleted: try again")
        own = self.check_settings(settings or {})
        count = self._config.topics.partitions if partitions is None else partitions
        self._check_count(count, 0)
        return count, own

    def check_settings(self, given: Mapping[str, str | int]) -> dict[str, str]:
        """The settings in their canonical text.

        Raises:
            InvalidSetting: see the message.
        """
        parsed = TopicSettings.parse(given, self.defaults)
        room = self._config.network.frame_bytes_max - 4 * KIB
        if "max.message.bytes" in given and parsed.max_message_bytes > room:
            raise InvalidSetting(
                f"max.message.bytes = {parsed.max_message_bytes}: requests carry at most {room}"
                " (network.frame_bytes_max)"
            )
        return TopicSettings.texts(given, self.defaults)

    async def create(
        self, name: str, partitions: int | None = None, settings: Mapping[str, str | int] | None = None
    ) -> Topic:
        """Make a topic, with as many partitions as configured by default, spread over the live brokers.

        When this returns, the partitions here can be produced to; those on other brokers can be a moment
        later.

        Raises:
            What :meth:`check` raises.
            Unavailable: try again.
        """
        async with self._changing(name):
            count, own = self.check(name, partitions, settings)
            topic = Topic(name, await self._place(range(count)), own, new_id())
            async with self._making(Removal(name, topic.id, [p for _, p in self.hosted(topic)])) as removal:
                if self._registry.enabled:
                    await self._registry.ask(self._registry.topics.create_topic(name, _info(topic)))
                await self._open(topic)
                await self._commit(Change(put=topic, done=removal))
            self._changed()
            self._registry.announce()
            return topic

    async def ensure(self, name: str) -> Topic:
        """The topic of that name, made with the defaults where topics are created automatically.

        Raises:
            UnknownPartition: there is none and it is not made; names that are reserved never are.
        """
        if name in self.catalog.topics or not self.auto_create or is_reserved(name):
            return self.get(name)
        try:
            return await self.create(name)
        except TopicExists:  # somebody else was first, or we were, and lost ZooKeeper before it could say so
            if name not in self.catalog.topics:
                await self._synchronise_one(name)
            return self.get(name)

    async def alter(self, name: str, settings: Mapping[str, str | int | None], partitions: int | None = None) -> Topic:
        """Set, or with None take back, single settings; raise the number of partitions.

        Raises:
            UnknownPartition, InvalidPartitions, InvalidSetting: see the message; nothing is changed.
        """
        async with self._changing(name):
            old = self.get(name)
            given = self.check_settings({key: value for key, value in settings.items() if value is not None})
            taken_back = {key for key, value in settings.items() if value is None}
            unknown = taken_back - TOPIC_KEYS.keys() - ACCEPTED.keys()
            self.check_settings(dict.fromkeys(unknown, ""))  # refuses their names
            if partitions is None:
                return await self._alter(old, given, taken_back, {}, None)
            self._check_count(partitions, len(old.partitions))
            for removal in self._removals(name):  # of partitions that could not be added before
                await self._finish(removal)
            placed = await self._place(range(len(old.partitions), partitions))
            here = [partition for partition, brokers in placed.items() if self._broker_id in brokers]
            async with self._making(Removal(name, old.id, here, whole=False)) as removal:
                keys = [TopicPartition(name, partition) for partition in here]
                await self._partitions.create(keys, old.id, self.settings(old).as_kafka())
                return await self._alter(old, given, taken_back, placed, removal)

    async def _alter(
        self,
        old: Topic,
        given: Mapping[str, str],
        taken_back: Set[str],
        placed: Mapping[int, list[int]],
        removal: Removal | None,
    ) -> Topic:
        """Register a change, then adopt what is registered; ``removal`` notes the new partitions that are open here."""

        def change(info: TopicInfo) -> TopicInfo:
            if info.id != old.id:
                raise UnknownPartition(f"the topic {old.name!r} was deleted and made again: ask again")
            kept = {key: value for key, value in info.settings.items() if key not in taken_back}
            return TopicInfo(dict(placed) | info.partitions, kept | dict(given), info.id)

        if self._registry.enabled:
            info = await self._registry.ask(self._registry.topics.alter_topic(old.name, change))
        else:
            info = change(_info(old))
        topic = _topic(old.name, info)
        if removal is not None:  # others may have placed the same partitions elsewhere in the meantime
            elsewhere = [p for p in removal.partitions if self._broker_id not in topic.partitions[p]]
            note = Removal(old.name, old.id, elsewhere, whole=False) if elsewhere else None
            await self._commit(Change(put=topic, done=removal, note=note))
            self._changed()
            self._set(old, topic)
        await self._adopt(topic)
        return topic

    async def delete(self, name: str) -> None:
        """Remove a topic and its data; when this returns, the name is free.

        Raises:
            UnknownPartition: there is none.
            ZooKeeperAway, DiskFull, StorageFault: nothing is changed.
            RequestTimedOut: the topic is gone, and the deletion goes on; the message says what it waits for.
        """
        async with self._changing(name):
            pending = [removal for removal in self._removals(name) if removal.whole]
            if name in self.catalog.topics or not pending:
                pending.append(await self._decide_deletion(self.get(name)))
            try:
                for removal in pending:
                    await self._finish(removal)
            except ApplianceError as error:
                log.warning("the deletion of topic %s is not complete: %s", name, error)
                raise RequestTimedOut(
                    f"topic {name!r} is deleted, what is left of it goes by itself: {error}"
                ) from error

    async def _decide_deletion(self, topic: Topic) -> Removal:
        if self._registry.enabled:  # who cannot ask cannot unregister: nothing is begun then
            await self._registry.ask(self._registry.topics.topics([topic.name]))
        removal = Removal(topic.name, topic.id, [partition for _, partition in self.hosted(topic)])
        await self._commit(Change(drop=topic.name, note=removal))
        self._changed()
        return removal

    def reload(self, config: Config) -> None:
        """Take new defaults; writers learn what now holds for their topic."""
        self._config = config
        self._changed()
        for topic in list(self.catalog.topics.values()):
            self._partitions.set(self.hosted(topic), self.settings(topic).as_kafka())

    # ---- keeping in step

    def found_cluster(self) -> None:
        """Give this broker's cluster an id, once: without an ensemble of others it is a cluster of its own.

        A local ensemble takes this id; should it have another one, that one holds.
        """
        if not self._registry.enabled and self.catalog.topics and not self.catalog.hosted(self._broker_id):
            log.error("%s has no partition of broker %d: was broker.id changed?", self.catalog.path, self._broker_id)
        if not self.catalog.cluster:
            self.catalog.cluster = uuid4().hex
            self._changed()
            try:
                self.catalog.store()
            except ApplianceError as error:  # a full disk keeps nobody from reading
                log.error("%s", error)

    async def reconcile(self) -> None:
        """Do what was left undone: remove what is noted, open what the catalog has and is not open."""
        if self.catalog.in_doubt:
            self.catalog.store()
        for removal in list(self.catalog.removals):
            await self._attempt(removal.name, lambda removal=removal: self._finish(removal))  # type: ignore[misc]
        for topic in list(self.catalog.topics.values()):
            if any(key not in self._partitions for key in self.hosted(topic)):
                await self._attempt(topic.name, lambda name=topic.name: self._open_known(name))  # type: ignore[misc]
        if self._stale and self._registry.state == State.CONNECTED.value:
            await self.synchronise()

    async def _attempt(self, name: str, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """One step of reconciling; what fails is logged, and tried again the next time."""
        try:
            async with self._changing(name):
                await step()
        except Unavailable as error:  # a long recovery, say: it will be there in the end
            log.info("topic %s: %s", name, error)
        except ApplianceError as error:
            log.error("topic %s: %s", name, error)

    async def _open_known(self, name: str) -> None:
        if name in self.catalog.topics:
            await self._open(self.catalog.topics[name])

    def told(self, name: str, info: TopicInfo | None) -> None:
        """ZooKeeper has this about a topic now (None: nothing any more)."""
        mine = self.catalog.topics.get(name)
        if not self._compared:
            return  # everything will be, once that is possible
        if (mine is None) != (info is None) or (mine and info and _info(mine) != info):
            self._spawn(self._try_synchronise(name))

    async def synchronise(self) -> None:
        """Compare the whole catalog with what is registered, after changes may have been missed.

        Raises:
            BadValue: another appliance has our id.
            ZooKeeperAway: try again.
        """
        registry = self._registry
        self._stale = True
        await registry.live_brokers()  # raises when what is registered for our id is not meant for us
        cluster = await registry.ask(cluster_identity.cluster_id(self.catalog.cluster or uuid4().hex))
        if cluster != self.catalog.cluster:
            if self.catalog.cluster and self.catalog.topics:
                log.warning("this data directory was in cluster %s, now in %s", self.catalog.cluster, cluster)
            self.catalog.cluster = cluster
            self._changed()
            self.catalog.store()
        self._stale, self._compared = False, True
        found = await registry.ask(registry.topics.topics())
        for name in sorted(found.keys() | self.catalog.topics.keys()):
            mine, info = self.catalog.topics.get(name), found.get(name)
            if mine is None or info is None or _info(mine) != info:
                await self._try_synchronise(name)
        await registry.ask(cluster_identity.drop_marks(self._clock_ms() - cluster_identity.MARK_MS))

    async def _try_synchronise(self, name: str) -> None:
        try:
            await self._synchronise_one(name)
        except ZooKeeperAway:
            self._stale = True  # the next connection brings everything in step
        except ApplianceError as error:
            self._stale = True
            log.error("topic %s is not in step with ZooKeeper: %s", name, error)

    async def _synchronise_one(self, name: str) -> None:
        """Bring one topic in step with what is registered at this moment."""
        registry = self._registry
        async with self._changing(name):
            for removal in self._removals(name):
                await self._finish(removal)
            info = (await registry.ask(registry.topics.topics([name]))).get(name)
            mine = self.catalog.topics.get(name)
            if mine is not None and (info is None or info.id != mine.id):
                if await registry.ask(cluster_identity.is_deleted(mine.id)):
                    log.info("topic %s was deleted in the cluster", name)
                    await self._finish(await self._decide_deletion(mine))
                elif info is None:
                    log.warning("topic %s is not registered in ZooKeeper: registering it again", name)
                    await registry.ask(registry.topics.create_topic(name, _info(mine)))
                else:
                    raise TopicExists(
                        f"another topic of this name (id {info.id}) is registered, and ours (id {mine.id}) was not"
                        " deleted: delete one of them"
                    )
            if info is not None:
                await self._adopt(_topic(name, info))

    # ---- steps, each with the topic's lock held

    async def _place(self, partitions: range) -> dict[int, list[int]]:
        """Which broker is to store each of some new partitions."""
        live = {self._broker_id}
        if self._registry.enabled:
            live |= await self._registry.live_brokers()
        hosted = Counter(
            broker
            for topic in self.catalog.topics.values()
            for brokers in topic.partitions.values()
            for broker in brokers
        )
        return place_partitions(partitions, live, hosted, prefer=[self._broker_id])

    async def _adopt(self, topic: Topic) -> None:
        """Make the catalog, then the partitions here, agree with ``topic``."""
        old = self.catalog.topics.get(topic.name)
        if topic == old and all(key in self._partitions for key in self.hosted(topic)):
            return
        await self._commit(Change(put=topic))
        self._changed()
        if old is not None:
            self._set(old, topic)
        await self._open(topic)

    def _set(self, old: Topic, topic: Topic) -> None:
        if old.settings != topic.settings:
            self._partitions.set(self.hosted(topic), self.settings(topic).as_kafka())

    async def _open(self, topic: Topic) -> None:
        missing = [key for key in self.hosted(topic) if key not in self._partitions]
        await self._partitions.create(missing, topic.id, self.settings(topic).as_kafka())
        self._registry.announce()

    @asynccontextmanager
    async def _making(self, removal: Removal) -> AsyncIterator[Removal]:
        """Note what is to be removed unless the block, which makes it, succeeds and takes the note back."""
        await self._commit(Change(note=removal))
        try:
            yield removal
        except ApplianceError as error:
            log.warning("topic %s could not be made or grown: %s: taking it back", removal.name, error)
            try:
                await self._finish(removal)
            except ApplianceError as left:
                log.error("topic %s: what is left of it will be removed: %s", removal.name, left)
            raise

    def _removals(self, name: str) -> list[Removal]:
        return [removal for removal in self.catalog.removals if removal.name == name]

    async def _finish(self, removal: Removal) -> None:
        """Do what a removal noted in the catalog asks for, and forget it; each step may be repeated.

        Raises:
            ApplianceError: it stays noted; try again.
        """
        if removal not in self.catalog.removals:
            return
        keys = [TopicPartition(removal.name, partition) for partition in removal.partitions]
        await self._partitions.delete(keys, removal.id)
        if removal.whole and self._registry.enabled:
            await self._registry.ask(retire_topic(removal.name, removal.id))
        await self._commit(Change(done=removal))
        self._registry.announce()

    async def _commit(self, change: Change) -> None:
        """Change the catalog.  What comes together is stored together, so that many topics cost few stores.

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
            if stored.done():  # who waited has been cancelled
                continue
            if error is None:
                stored.set_result(None)
            else:
                stored.set_exception(error)

    @asynccontextmanager
    async def _changing(self, name: str) -> AsyncIterator[None]:
        """One change of a topic at a time; who has waited too long for the others is told so."""
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

    # ---- checks

    def _check_count(self, count: int, present: int) -> None:
        if count <= present:
            raise InvalidPartitions(
                f"{count} partitions: ask for more than the {present} there are"
                if present
                else f"{count} partitions: at least 1 is needed"
            )
        hosted = len(self.catalog.hosted(self._broker_id))
        if hosted + count - present > self._config.topics.partitions_max:
            raise InvalidPartitions(
                f"{count} partitions: this appliance has {hosted} and takes at most"
                f" {self._config.topics.partitions_max} (topics.partitions_max)"
            )


def _info(topic: Topic) -> TopicInfo:
    return TopicInfo(topic.partitions, topic.settings, topic.id)


def _topic(name: str, info: TopicInfo) -> Topic:
    return Topic(name, dict(info.partitions), dict(info.settings), info.id)
