"""Synchronises the catalog with the topics registered in ZooKeeper, and opens the partitions that the catalog has.

Changes by other brokers come one by one (:meth:`TopicSync.on_topic`); after every (re)connection all topics are
compared (:meth:`TopicSync.synchronise`).  For the same id, the registration in ZooKeeper wins.  A topic that is *not*
registered is deleted here only if ZooKeeper has a mark of its deletion (see ``zookeeper/cluster_identity.py``).
Otherwise ZooKeeper has lost it, or never had it, and it is registered again.

A coordinator that is killed between opening partitions and storing their topic leaves directories that no topic of the
catalog has.  If that topic is deleted before the next comparison, nothing else would remove them, and a later topic of
its name could not be opened here (:meth:`TopicSync._remove_strays`).

:meth:`TopicSync.reconcile` repeats unfinished changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Set
from pathlib import Path
from typing import Any
from uuid import uuid4

from ...catalog import Topic
from ...errors import ApplianceError, TopicExists, Unavailable, ZooKeeperAway
from ...log import partition_directory
from ...names import TopicPartition
from ...zookeeper import cluster_identity
from ...zookeeper.paths import TopicInfo
from ...zookeeper.session import SessionState
from .partitions import Partitions
from .registry_session import RegistrySession
from .topic_steps import TopicSteps, info_of, topic_of

Spawn = Callable[[Coroutine[Any, Any, None]], None]
log = logging.getLogger(__name__)


class TopicSync:
    """Compares and adopts topics.  ``spawn`` runs work in the background."""

    def __init__(
        self,
        broker_id: int,
        steps: TopicSteps,
        partitions: Partitions,
        registry: RegistrySession,
        spawn: Spawn,
        clock_ms: Callable[[], int],
    ) -> None:
        self._broker_id = broker_id
        self._steps = steps
        self._catalog = steps.catalog
        self._partitions = partitions
        self._registry = registry
        self._spawn = spawn
        self._clock_ms = clock_ms
        self._lost = not self._catalog.path.exists() and partition_directory.exist_in(self._catalog.path.parent)
        """The catalog is gone and logs are there: topics of the first comparison are not new here."""
        self._compared = False  # the catalog was compared with ZooKeeper at least once
        self._stale = registry.enabled  # the catalog has to be compared again

    def found_cluster(self) -> None:
        """Give this broker's cluster an id, if it has none and no ensemble of others is configured.

        A local ensemble takes this id, unless it has one already; that one wins.
        """
        if not self._registry.enabled and self._catalog.topics and not self._catalog.hosted(self._broker_id):
            log.error("%s has no partition of broker %d: was broker.id changed?", self._catalog.path, self._broker_id)
        if not self._catalog.cluster:
            self._catalog.cluster = uuid4().hex
            self._steps.changed()
            try:
                self._catalog.store()
            except ApplianceError as error:  # a full disk keeps nobody from reading
                log.error("%s", error)

    async def reconcile(self) -> None:
        """Repeat unfinished changes: carry out noted removals, open partitions of the catalog that are not open."""
        if self._catalog.in_doubt:
            self._catalog.store()
        for removal in list(self._catalog.removals):
            await self._attempt(removal.name, lambda removal=removal: self._steps.finish(removal))  # type: ignore[misc]
        for topic in list(self._catalog.topics.values()):
            if any(key not in self._partitions for key in self._steps.hosted(topic)):
                await self._attempt(topic.name, lambda name=topic.name: self._open_known(name))  # type: ignore[misc]
        if self._stale and self._registry.state == SessionState.CONNECTED.value:
            await self.synchronise()

    async def _attempt(self, name: str, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run one step of :meth:`reconcile`; an error is logged, and the next run repeats the step."""
        try:
            async with self._steps.changing(name):
                await step()
        except Unavailable as error:  # a long recovery, for example, which will end
            log.info("topic %s: %s", name, error)
        except ApplianceError as error:
            log.error("topic %s: %s", name, error)

    async def _open_known(self, name: str) -> None:
        if name in self._catalog.topics:
            await self._steps.open(self._catalog.topics[name])

    def on_topic(self, name: str, info: TopicInfo | None) -> None:
        """A topic's registration in ZooKeeper has changed; None: it is gone."""
        mine = self._catalog.topics.get(name)
        if not self._compared:
            return  # the first synchronise compares all topics
        if (mine is None) != (info is None) or (mine and info and info_of(mine) != info):
            self._spawn(self._try_synchronise(name))

    async def synchronise(self) -> None:
        """Compare the whole catalog with ZooKeeper, after changes may have been missed.

        Raises:
            BadValue: another appliance has our id.
            ZooKeeperAway: try again.
        """
        registry = self._registry
        self._stale = True
        await registry.live_brokers()  # raises when another appliance is registered under our id
        cluster = await registry.ask(cluster_identity.cluster_id(self._catalog.cluster or uuid4().hex))
        if cluster != self._catalog.cluster:
            if self._catalog.cluster and self._catalog.topics:
                log.warning("this data directory was in cluster %s, now in %s", self._catalog.cluster, cluster)
            self._catalog.cluster = cluster
            self._steps.changed()
            self._catalog.store()
        self._stale, self._compared = False, True
        registered = await registry.ask(registry.topics.topics())
        await self._remove_strays({info.id for info in registered.values()})
        for name in sorted(registered.keys() | self._catalog.topics.keys()):
            mine, info = self._catalog.topics.get(name), registered.get(name)
            if mine is None or info is None or info_of(mine) != info:
                await self._try_synchronise(name)
        self._lost = self._lost and self._stale
        await registry.ask(cluster_identity.drop_marks(self._clock_ms() - cluster_identity.MARK_MS))

    async def _remove_strays(self, registered: Set[str]) -> None:
        """Remove the partitions here of topics that the catalog does not have, and that were deleted in the cluster."""
        hosted = self._catalog.hosted(self._broker_id)
        settled = {key for key in hosted if key in self._partitions}
        directories = await asyncio.to_thread(_directories, self._catalog.path.parent, settled)
        named = registered | {topic.id for topic in self._catalog.topics.values()} | {""}
        named |= {removal.id for removal in self._catalog.removals}
        strays: dict[tuple[str, str], list[int]] = {}
        for (name, partition), topic_id in directories.items():
            if topic_id not in named:
                strays.setdefault((name, topic_id), []).append(partition)
        for (name, topic_id), partitions in strays.items():
            if await self._registry.ask(cluster_identity.is_deleted(topic_id)):
                log.info("topic %s was deleted in the cluster before it was stored here", name)
                topic = Topic(name, {partition: [self._broker_id] for partition in partitions}, {}, topic_id)
                await self._attempt(name, lambda topic=topic: self._remove(topic))  # type: ignore[misc]

    async def _remove(self, topic: Topic) -> None:
        await self._steps.finish(await self._steps.decide_deletion(topic))

    async def _try_synchronise(self, name: str) -> None:
        try:
            await self.synchronise_one(name)
        except ZooKeeperAway:
            self._stale = True  # the next connection compares all topics
        except ApplianceError as error:
            self._stale = True
            log.error("topic %s is not in step with ZooKeeper: %s", name, error)

    async def synchronise_one(self, name: str) -> None:
        """Compare one topic with its present registration, and adopt it."""
        registry = self._registry
        async with self._steps.changing(name):
            for removal in self._steps.removals(name):
                await self._steps.finish(removal)
            info = (await registry.ask(registry.topics.topics([name]))).get(name)
            mine = self._catalog.topics.get(name)
            if mine is not None and (info is None or info.id != mine.id):
                if await registry.ask(cluster_identity.is_deleted(mine.id)):
                    log.info("topic %s was deleted in the cluster", name)
                    await self._remove(mine)
                elif info is None:
                    log.warning("topic %s is not registered in ZooKeeper: registering it again", name)
                    await registry.ask(registry.topics.create_topic(name, info_of(mine)))
                else:
                    raise TopicExists(
                        f"another topic of this name (id {info.id}) is registered, and ours (id {mine.id}) was not"
                        " deleted: delete one of them"
                    )
            if info is not None:
                await self._steps.adopt(topic_of(name, info), new=not self._lost)


def _directories(data_dir: Path, settled: Set[TopicPartition]) -> dict[TopicPartition, str]:
    """The partitions, other than the settled ones, that have a directory, and the id of the topic in each."""
    topic_ids: dict[TopicPartition, str] = {}
    for key in partition_directory.partitions_in(data_dir):
        if key not in settled:
            try:
                topic_ids[key] = partition_directory.topic_id_of(partition_directory.directory_of(data_dir, *key))
            except ApplianceError as error:  # whoever opens it says the same, and marks it
                log.error("%s", error)
    return topic_ids
