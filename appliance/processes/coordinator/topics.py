"""Looks up, creates, alters and deletes topics for clients of both listeners.

:mod:`.topic_steps` has the steps of each change, and what follows when one fails.  A new topic is registered in
ZooKeeper (unless the configuration has none), opened by the supervisor, and then stored in the catalog.  Partitions are
added in the same way.  A deletion that is refused leaves the topic whole.  One that cannot be completed now is answered
with a timeout, and goes on in the background.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Set

from ...catalog import Catalog, CatalogChange, Removal, Topic, new_id
from ...config import TOPIC_KEYS, Config, TopicDefaults, TopicSettings
from ...config_keys import KIB
from ...errors import (
    ApplianceError,
    InvalidPartitions,
    InvalidSetting,
    InvalidTopic,
    RequestTimedOut,
    TopicExists,
    UnknownPartition,
    WriterGone,
)
from ...kafka_settings import ACCEPTED
from ...names import TopicPartition, check_topic, is_reserved
from ...zookeeper.paths import TopicInfo
from .partitions import Partitions
from .registry_session import RegistrySession
from .topic_steps import TopicSteps, info_of, topic_of

log = logging.getLogger(__name__)


class Topics:
    """Requests about topics.  ``look_up`` compares one topic with its present registration, and adopts it."""

    def __init__(
        self,
        config: Config,
        steps: TopicSteps,
        partitions: Partitions,
        registry: RegistrySession,
        look_up: Callable[[str], Awaitable[None]],
    ) -> None:
        self._steps = steps
        self._partitions = partitions
        self._registry = registry
        self._look_up = look_up
        self._config = config
        self._broker_id = config.broker.id

    @property
    def catalog(self) -> Catalog:
        return self._steps.catalog

    @property
    def revision(self) -> int:
        """Grows with every change of :attr:`catalog`."""
        return self._steps.revision

    @property
    def defaults(self) -> TopicDefaults:
        """The settings of topics that do not set their own."""
        return self._steps.defaults

    @property
    def auto_create(self) -> bool:
        return self._config.topics.auto_create

    def get(self, name: str) -> Topic:
        topic = self.catalog.topics.get(name)
        if topic is None:
            raise UnknownPartition(f"there is no topic {name!r}")
        return topic

    def settings(self, topic: Topic) -> TopicSettings:
        """The settings of a topic: its own over the defaults."""
        return self._steps.settings(topic)

    # ---- changes that clients ask for

    def check_creation(
        self, name: str, partitions: int | None = None, settings: Mapping[str, str | int] | None = None
    ) -> tuple[int, dict[str, str]]:
        """Check the arguments of :meth:`create`; return the number of partitions and the settings as text.

        Raises:
            InvalidTopic, TopicExists, InvalidPartitions, InvalidSetting: see the message.
            WriterGone: the name is not free yet.
        """
        self.check_name(name)
        own = self.check_settings(settings or {})
        count = self._config.partitions_of(name) if partitions is None else partitions
        self._check_count(count, 0)
        return count, own

    def check_name(self, name: str) -> None:
        """Check that there can be a new topic of this name.

        Raises:
            InvalidTopic, TopicExists, WriterGone: as :meth:`check_creation`.
        """
        check_topic(name)
        if name in self.catalog.topics:
            raise TopicExists(f"there is a topic {name!r} already")
        if (other := self.catalog.namesake(name)) is not None:
            raise InvalidTopic(f"topic {name!r} collides with {other!r}: metrics have one name for both")
        if any(removal.whole for removal in self._steps.removals(name)):
            raise WriterGone(f"the earlier topic {name!r} is still being deleted: try again")

    def check_settings(self, settings: Mapping[str, str | int]) -> dict[str, str]:
        """The settings as canonical text.

        Raises:
            InvalidSetting: see the message.
        """
        parsed = TopicSettings.parse(settings, self.defaults.of_all)
        room = self._config.network.frame_bytes_max - 4 * KIB
        if "max.message.bytes" in settings and parsed.max_message_bytes > room:
            raise InvalidSetting(
                f"max.message.bytes = {parsed.max_message_bytes}: requests carry at most {room}"
                " (network.frame_bytes_max)"
            )
        return TopicSettings.texts(settings, self.defaults.of_all)

    async def create(
        self, name: str, partitions: int | None = None, settings: Mapping[str, str | int] | None = None
    ) -> Topic:
        """Create a topic, by default with the configured number of partitions, spread over the live brokers.

        When this returns, clients can produce to the partitions here; to those on other brokers a moment later.

        Raises:
            InvalidTopic, TopicExists, InvalidPartitions, InvalidSetting, WriterGone: see :meth:`check_creation`.
            Unavailable: try again.
        """
        async with self._steps.changing(name):
            count, own = self.check_creation(name, partitions, settings)
            topic = Topic(name, await self._steps.place(range(count)), own, new_id())
            async with self._steps.making(
                Removal(name, topic.id, [p for _, p in self._steps.hosted(topic)])
            ) as removal:
                if self._registry.enabled:
                    await self._registry.ask(self._registry.topics.create_topic(name, info_of(topic)))
                await self._steps.open(topic)
                await self._steps.commit(CatalogChange(put=topic, done=removal))
            self._steps.changed()
            self._registry.announce()
            return topic

    async def ensure(self, name: str) -> tuple[Topic, bool]:
        """The topic of that name, created with the defaults if ``topics.auto_create`` is set; whether it was created.

        Raises:
            UnknownPartition: there is none and it is not made; names that are reserved never are.
        """
        if name in self.catalog.topics or not self.auto_create or is_reserved(name):
            return self.get(name), False
        try:
            return await self.create(name), True
        except TopicExists:  # another request was first, or ours was, and the answer of ZooKeeper was lost
            if name not in self.catalog.topics:
                await self._look_up(name)
            return self.get(name), False

    async def alter(self, name: str, settings: Mapping[str, str | int | None], partitions: int | None = None) -> Topic:
        """Set single settings, or (None) reset them; raise the number of partitions.

        Raises:
            UnknownPartition, InvalidPartitions, InvalidSetting: see the message; nothing is changed.
        """
        async with self._steps.changing(name):
            old = self.get(name)
            checked = self.check_settings({key: value for key, value in settings.items() if value is not None})
            taken_back = {key for key, value in settings.items() if value is None}
            unknown = taken_back - TOPIC_KEYS.keys() - ACCEPTED.keys()
            self.check_settings(dict.fromkeys(unknown, ""))  # refuses their names
            if partitions is None:
                return await self._alter(old, checked, taken_back, {}, None)
            self._check_count(partitions, len(old.partitions))
            for removal in self._steps.removals(name):  # of partitions that could not be added before
                await self._steps.finish(removal)
            placed = await self._steps.place(range(len(old.partitions), partitions))
            here = [partition for partition, brokers in placed.items() if self._broker_id in brokers]
            async with self._steps.making(Removal(name, old.id, here, whole=False)) as removal:
                keys = [TopicPartition(name, partition) for partition in here]
                await self._partitions.create(keys, old.id, self.settings(old).as_kafka())
                return await self._alter(old, checked, taken_back, placed, removal)

    async def _alter(
        self,
        old: Topic,
        settings: Mapping[str, str],
        taken_back: Set[str],
        placed: Mapping[int, list[int]],
        removal: Removal | None,
    ) -> Topic:
        """Register a change, then adopt the registration; ``removal`` notes the new partitions that are open here."""

        def change(info: TopicInfo) -> TopicInfo:
            if info.id != old.id:
                raise UnknownPartition(f"the topic {old.name!r} was deleted and made again: ask again")
            kept = {key: value for key, value in info.settings.items() if key not in taken_back}
            return TopicInfo(dict(placed) | info.partitions, kept | dict(settings), info.id)

        if self._registry.enabled:
            info = await self._registry.ask(self._registry.topics.alter_topic(old.name, change))
        else:
            info = change(info_of(old))
        topic = topic_of(old.name, info)
        if removal is not None:  # others may have placed the same partitions elsewhere in the meantime
            elsewhere = [p for p in removal.partitions if self._broker_id not in topic.partitions[p]]
            note = Removal(old.name, old.id, elsewhere, whole=False) if elsewhere else None
            await self._steps.commit(CatalogChange(put=topic, done=removal, note=note))
            self._steps.changed()
            self._steps.set_settings(old, topic)
        await self._steps.adopt(topic)
        return topic

    async def delete(self, name: str) -> None:
        """Remove a topic, and its data unless the trash keeps it; when this returns, the name is free.

        Raises:
            UnknownPartition: there is none.
            ZooKeeperAway, DiskFull, StorageFault: nothing is changed.
            RequestTimedOut: the topic is gone, and the deletion goes on; the message has the reason.
        """
        async with self._steps.changing(name):
            pending = [removal for removal in self._steps.removals(name) if removal.whole]
            if name in self.catalog.topics or not pending:
                pending.append(await self._steps.decide_deletion(self.get(name)))
            try:
                for removal in pending:
                    await self._steps.finish(removal)
            except ApplianceError as error:
                log.warning("the deletion of topic %s is not complete: %s", name, error)
                raise RequestTimedOut(
                    f"topic {name!r} is deleted, what is left of it goes by itself: {error}"
                ) from error

    def reload(self, config: Config) -> None:
        """Take new defaults, and send the writers the settings of their topics."""
        self._config = config
        self._steps.defaults, self._steps.trash_ms = config.topic_defaults, config.topics.trash_ms
        self._steps.changed()
        for topic in list(self.catalog.topics.values()):
            self._partitions.set(self._steps.hosted(topic), self.settings(topic).as_kafka())

    def _check_count(self, count: int, present: int) -> None:
        if count <= present:
            raise InvalidPartitions(
                f"{count} partitions: ask for more than the {present} there are"
                if present
                else f"{count} partitions: at least 1 is needed"
            )
        self.check_room(count - present)

    def check_room(self, count: int) -> None:
        """Check that so many more partitions can be stored here.

        Raises:
            InvalidPartitions: they cannot.
        """
        hosted = self.catalog.partition_counts[self._broker_id]
        if hosted + count > self._config.topics.partitions_max:
            raise InvalidPartitions(
                f"{count} more partitions: this appliance has {hosted} and takes at most"
                f" {self._config.topics.partitions_max} (topics.partitions_max)"
            )
