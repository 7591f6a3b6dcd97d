"""What both doors ask of topics: create, alter, delete, look up.  The coordinator's, and nobody else's.

A change goes through in one order, so that a crash at any point is made good by :meth:`Topics.reconcile` when
the coordinator is back: the catalog is stored, then the supervisor is told to open or remove partitions, then
the client gets its answer.  A deletion is noted in the catalog until the files are gone; a name that is being
deleted cannot be taken again before that, so old data never shows up in a new topic.

Changes of one topic happen one after another; every step has a deadline, so nobody waits for long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final
from uuid import uuid4
from weakref import WeakValueDictionary

from ..catalog import Catalog, Topic, check_name
from ..config import KIB, Config, TopicSettings
from ..errors import (
    ApplianceError,
    InvalidPartitions,
    InvalidSetting,
    TopicExists,
    UnknownPartition,
    WriterGone,
)
from .partitions import Key, Partitions

DEFAULT_PARTITIONS: Final = -1
log = logging.getLogger(__name__)


class Topics:
    """``revision`` grows with every change of what :attr:`catalog` says."""

    def __init__(self, config: Config, catalog: Catalog, partitions: Partitions) -> None:
        self.catalog = catalog
        self.partitions = partitions
        self.revision = 0
        self._config = config
        self._broker_id = config.broker.id
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

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

    def settings(self, name: str) -> TopicSettings:
        """What holds for a topic: its own settings over the defaults."""
        return TopicSettings.parse(self.get(name).settings, self.defaults)

    def hosted(self, topic: Topic) -> list[Key]:
        return [
            (topic.name, p) for p, brokers in sorted(topic.partitions.items()) if self._broker_id in brokers
        ]

    # ---- changes

    async def create(
        self, name: str, partitions: int = DEFAULT_PARTITIONS, settings: Mapping[str, str | int] | None = None
    ) -> Topic:
        """Make a topic; when this returns its partitions can be produced to.

        Raises:
            InvalidTopic, TopicExists, InvalidPartitions, InvalidSetting: see the message.
            Unavailable: try again.
        """
        check_name(name)
        async with self._lock(name):
            if name in self.catalog.topics:
                raise TopicExists(f"there is a topic {name!r} already")
            if any(topic == name for topic, _ in self.catalog.deleting):
                raise WriterGone(f"the topic {name!r} is being deleted: try again")
            own = self._check_settings(settings or {})
            count = self._config.topics.partitions if partitions == DEFAULT_PARTITIONS else partitions
            self._check_count(count, 0)
            topic = Topic(
                name, {partition: [self._broker_id] for partition in range(count)}, own, uuid4().hex
            )
            try:
                await self._adopt(topic)
            except ApplianceError:
                if name in self.catalog.topics:
                    await self._discard(name)
                raise
            return topic

    async def ensure(self, name: str) -> Topic:
        """The topic of that name, made with the defaults where topics are created automatically.

        Raises:
            UnknownPartition: there is none and it is not made.
        """
        if name in self.catalog.topics or not self.auto_create:
            return self.get(name)
        try:
            return await self.create(name)
        except TopicExists:  # somebody else wanted it too and was first
            return self.get(name)

    async def alter(
        self, name: str, settings: Mapping[str, str | int | None], partitions: int | None = None
    ) -> Topic:
        """Set, or with None take back, single settings; raise the number of partitions.

        Raises:
            UnknownPartition, InvalidPartitions, InvalidSetting: see the message; nothing is changed.
        """
        async with self._lock(name):
            old = self.get(name)
            wanted: dict[str, str | int] = dict(old.settings)
            for key, value in settings.items():
                if value is None:
                    self._check_settings({key: self.defaults.as_kafka().get(key, "")})
                    wanted.pop(key, None)
                else:
                    wanted[key] = value
            placed = dict(old.partitions)
            if partitions is not None:
                self._check_count(partitions, len(placed))
                for partition in range(len(placed), partitions):
                    placed[partition] = [self._broker_id]
            topic = Topic(name, placed, self._check_settings(wanted), old.id)
            await self._adopt(topic)
            return topic

    async def delete(self, name: str) -> None:
        """Remove a topic and its data.

        Raises:
            UnknownPartition: there is none.
        """
        async with self._lock(name):
            self.get(name)
            await self._discard(name)

    async def reconcile(self) -> None:
        """Finish what a killed coordinator had begun: open what is missing, remove what was given up."""
        for topic in list(self.catalog.topics.values()):
            async with self._lock(topic.name):
                missing = [key for key in self.hosted(topic) if key not in self.partitions]
                if self.catalog.topics.get(topic.name) is topic and missing:
                    await self._try_open(topic, missing)
        if self.catalog.deleting:
            await self._remove(set(self.catalog.deleting))

    async def reload(self, config: Config) -> None:
        """Take new defaults; writers learn what now holds for their topic."""
        self._config = config
        self.revision += 1
        for topic in list(self.catalog.topics.values()):
            self.partitions.set(self.hosted(topic), self.settings(topic.name).as_kafka())

    # ---- steps

    async def _adopt(self, topic: Topic) -> None:
        """Make the catalog and the partitions here agree with ``topic``."""
        old = self.catalog.topics.get(topic.name)
        self.catalog.topics[topic.name] = topic
        try:
            self.catalog.store()
        except ApplianceError:
            if old is None:
                del self.catalog.topics[topic.name]
            else:
                self.catalog.topics[topic.name] = old
            raise
        self.revision += 1
        here = self.hosted(topic)
        if old is not None and old.settings != topic.settings:
            self.partitions.set(self.hosted(old), self.settings(topic.name).as_kafka())
        missing = [key for key in here if key not in self.partitions]
        await self.partitions.create(missing, self.settings(topic.name).as_kafka())

    async def _discard(self, name: str) -> None:
        topic = self.catalog.topics.pop(name)
        keys = set(self.hosted(topic))
        self.catalog.deleting |= keys
        try:
            self.catalog.store()
        except ApplianceError:
            self.catalog.topics[name] = topic
            self.catalog.deleting -= keys
            raise
        self.revision += 1
        await self._remove(keys)

    async def _remove(self, keys: set[Key]) -> None:
        await self.partitions.delete(sorted(keys))
        self.catalog.deleting -= keys
        self.catalog.store()

    async def _try_open(self, topic: Topic, keys: list[Key]) -> None:
        try:
            await self.partitions.create(keys, self.settings(topic.name).as_kafka())
        except ApplianceError as error:
            log.error("topic %s: %s", topic.name, error)

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    # ---- checks

    def _check_settings(self, given: Mapping[str, str | int]) -> dict[str, str]:
        """The settings in their canonical text."""
        parsed = TopicSettings.parse(given, self.defaults)
        room = self._config.network.frame_bytes_max - 4 * KIB
        if "max.message.bytes" in given and parsed.max_message_bytes > room:
            raise InvalidSetting(
                f"max.message.bytes = {parsed.max_message_bytes}: requests carry at most {room}"
                " (network.frame_bytes_max)"
            )
        values = parsed.as_kafka()
        return {name: values[name] for name in sorted(given)}

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
