"""Keeps the topics here in step with the cluster: with what is registered in ZooKeeper, and with what is open.

Changes that other brokers registered come in one by one (:meth:`TopicSync.on_topic`), and wholesale after every
(re)connection (:meth:`TopicSync.synchronise`).  What is registered wins, for the same id.  A topic that is *not*
registered is deleted here only if ZooKeeper says that it was deleted (see ``zookeeper/cluster_identity.py``); otherwise
ZooKeeper has lost it, or never had it, and it is registered again.

What could not be finished is tried again by :meth:`TopicSync.reconcile`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

from ...errors import ApplianceError, TopicExists, Unavailable, ZooKeeperAway
from ...zookeeper import cluster_identity
from ...zookeeper.paths import TopicInfo
from ...zookeeper.session import SessionState
from .partitions import Partitions
from .registry_session import RegistrySession
from .topic_steps import TopicSteps, info_of, topic_of

Spawn = Callable[[Coroutine[Any, Any, None]], None]
log = logging.getLogger(__name__)


class TopicSync:
    """``spawn`` runs work in the background."""

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
        self._compared = False  # what is registered was compared with the catalog once
        self._stale = registry.enabled  # and is to be compared again

    def found_cluster(self) -> None:
        """Give this broker's cluster an id, once: without an ensemble of others it is a cluster of its own.

        A local ensemble takes this id; should it have another one, that one holds.
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
        """Do what was left undone: remove what is noted, open what the catalog has and is not open."""
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
        """One step of reconciling; what fails is logged, and tried again the next time."""
        try:
            async with self._steps.changing(name):
                await step()
        except Unavailable as error:  # a long recovery, say: it will be there in the end
            log.info("topic %s: %s", name, error)
        except ApplianceError as error:
            log.error("topic %s: %s", name, error)

    async def _open_known(self, name: str) -> None:
        if name in self._catalog.topics:
            await self._steps.open(self._catalog.topics[name])

    def on_topic(self, name: str, info: TopicInfo | None) -> None:
        """ZooKeeper has this about a topic now (None: nothing any more)."""
        mine = self._catalog.topics.get(name)
        if not self._compared:
            return  # everything will be, once that is possible
        if (mine is None) != (info is None) or (mine and info and info_of(mine) != info):
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
        cluster = await registry.ask(cluster_identity.cluster_id(self._catalog.cluster or uuid4().hex))
        if cluster != self._catalog.cluster:
            if self._catalog.cluster and self._catalog.topics:
                log.warning("this data directory was in cluster %s, now in %s", self._catalog.cluster, cluster)
            self._catalog.cluster = cluster
            self._steps.changed()
            self._catalog.store()
        self._stale, self._compared = False, True
        found = await registry.ask(registry.topics.topics())
        for name in sorted(found.keys() | self._catalog.topics.keys()):
            mine, info = self._catalog.topics.get(name), found.get(name)
            if mine is None or info is None or info_of(mine) != info:
                await self._try_synchronise(name)
        await registry.ask(cluster_identity.drop_marks(self._clock_ms() - cluster_identity.MARK_MS))

    async def _try_synchronise(self, name: str) -> None:
        try:
            await self.synchronise_one(name)
        except ZooKeeperAway:
            self._stale = True  # the next connection brings everything in step
        except ApplianceError as error:
            self._stale = True
            log.error("topic %s is not in step with ZooKeeper: %s", name, error)

    async def synchronise_one(self, name: str) -> None:
        """Bring one topic in step with what is registered at this moment."""
        registry = self._registry
        async with self._steps.changing(name):
            for removal in self._steps.removals(name):
                await self._steps.finish(removal)
            info = (await registry.ask(registry.topics.topics([name]))).get(name)
            mine = self._catalog.topics.get(name)
            if mine is not None and (info is None or info.id != mine.id):
                if await registry.ask(cluster_identity.is_deleted(mine.id)):
                    log.info("topic %s was deleted in the cluster", name)
                    await self._steps.finish(await self._steps.decide_deletion(mine))
                elif info is None:
                    log.warning("topic %s is not registered in ZooKeeper: registering it again", name)
                    await registry.ask(registry.topics.create_topic(name, info_of(mine)))
                else:
                    raise TopicExists(
                        f"another topic of this name (id {info.id}) is registered, and ours (id {mine.id}) was not"
                        " deleted: delete one of them"
                    )
            if info is not None:
                await self._steps.adopt(topic_of(name, info))
