"""Gives the forwarded requests of both listeners this broker's topics, partitions and settings.

:class:`ThisBroker` is the coordinator's ``kafka_apis.appliance.Appliance``.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ...addresses import Listener
from ...broker.sequences import SNAPSHOT_NAME, ProducersSnapshot
from ...catalog import Topic
from ...config import Config, TopicSettings
from ...errors import ApplianceError, OffsetOutOfRange, RequestTimedOut, StorageFault
from ...kafka_apis.appliance import OffsetSpan, ProducerInLog
from ...records.batch import SEQUENCE_MASK
from ...wire.kafka.metadata_reply import Broker
from ..messages import Facts
from .configured_groups import ConfiguredGroups
from .live_brokers import LiveBrokers
from .partitions import Partitions
from .registry_session import RegistrySession
from .security_registry import SecurityRegistry
from .topics import Topics
from .unread import Unread, UnreadBytes

WHOLE: Final = -1
"""All partitions of a topic."""
DELETE_RECORDS_MS_MAX: Final = 10_000
DELETE_RECORDS_POLL_S: Final = 0.02
PRODUCERS_MS_MAX: Final = 10_000
PRODUCERS_POLL_S: Final = 0.02
ORDER_EVERY: Final = 50
"""Polls after which an order is repeated."""


def _read_producers(path: Path) -> ProducersSnapshot | None:
    """
    Raises:
        StorageFault: the file cannot be read.
    """
    try:
        return ProducersSnapshot.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageFault(f"{path}: {error.strerror}") from error


class ThisBroker:
    """Answers from memory; only deletions of topics and records wait for the supervisor.

    ``security``, ``group_settings`` and ``topic_store`` are the stores that the interface names.
    """

    def __init__(
        self,
        config: Config,
        data_dir: Path,
        brokers: LiveBrokers,
        topics: Topics,
        partitions: Partitions,
        registry: RegistrySession,
        security: SecurityRegistry,
        configured: ConfiguredGroups,
    ) -> None:
        self._config = config
        self._data_dir = data_dir.absolute()
        self._brokers = brokers
        self.topic_store = topics
        self._partitions = partitions
        self._registry = registry
        self.security = security
        self.group_settings = configured
        self._unread_bytes = UnreadBytes(registry)
        self._unread: dict[tuple[str, int], Unread | None] = {}
        """Of each deletion until it is in the audit log."""

    def reload(self, config: Config) -> None:
        self._config = config

    # ---- the broker and its peers

    @property
    def broker_id(self) -> int:
        return self._brokers.broker_id

    @property
    def cluster_id(self) -> str:
        return self.topic_store.catalog.cluster

    @property
    def config(self) -> Config:
        return self._config

    @property
    def listening(self) -> str:
        return self._brokers.listening.get("kafka", "")

    @property
    def data_dir(self) -> str:
        return str(self._data_dir)

    @property
    def zookeeper(self) -> str:
        return self._registry.connect_string

    def brokers(self, listener: Listener) -> Sequence[Broker]:
        return self._brokers.brokers(listener)

    @property
    def state(self) -> tuple[Any, ...]:
        """Changes whenever the facts, the topics or the security state may have changed; cheap to compare."""
        return self.revision, self.security.revision, self.zookeeper, self.cluster_id, self.topic_store.catalog.topics

    @property
    def facts(self) -> Facts:
        """The part of the workers' snapshot besides the topics."""
        return Facts(
            self.cluster_id,
            self.broker_id,
            self.topic_store.auto_create,
            self.zookeeper,
            self._brokers.advertised,
            self._brokers.peers(),
            self.topic_store.defaults,
        )

    # ---- security

    @property
    def authorizes(self) -> bool:
        return bool(self._config.security.authorizer)

    def disk_space(self) -> tuple[int, int]:
        system = os.statvfs(self._data_dir)
        return system.f_blocks * system.f_frsize, system.f_bavail * system.f_frsize

    # ---- topics

    @property
    def revision(self) -> int:
        return self.topic_store.revision + self._brokers.revision

    def topics(self) -> Mapping[str, Topic]:
        return self.topic_store.catalog.topics

    def leader(self, topic: Topic, partition: int) -> int:
        return self._brokers.leader(topic, partition)

    def settings(self, topic: Topic) -> TopicSettings:
        return self.topic_store.settings(topic)

    def extent(self, topic: str, partition: int) -> OffsetSpan:
        return self._partitions.extent(topic, partition)

    async def delete_topic(self, name: str) -> None:
        """As :meth:`.topics.Topics.delete`; notes who had not read what goes."""
        topic = self.topic_store.catalog.topics.get(name)
        if topic is not None:
            spans: dict[int, tuple[int, int]] = {}
            for number in topic.partitions:
                with suppress(ApplianceError):  # stored elsewhere, or not to be read now
                    spans[number] = self.extent(name, number)
            self._unread[name, WHOLE] = await self._unread_bytes.ask(topic, spans)
        await self.topic_store.delete(name)

    def take_unread(self, topic: str, partition: int = WHOLE) -> Unread | None:
        """Who had not read what the last deletion has removed, of a topic or a partition; see :mod:`.unread`."""
        return self._unread.pop((topic, partition), {})

    async def producers(self, topic: str, partition: int) -> list[ProducerInLog]:
        """The idempotent producers of a partition stored here, from what its writer has stored up to the present end.

        A writer is asked, and forked if there is none, only if the stored state is older.

        Raises:
            RequestTimedOut: it was not stored in time: the disk is full, or slow.
        """
        path = self._data_dir / f"{topic}-{partition}" / SNAPSHOT_NAME
        end = self.extent(topic, partition).end
        try:
            async with asyncio.timeout(PRODUCERS_MS_MAX / 1000):
                for attempt in itertools.count():
                    stored = await asyncio.to_thread(_read_producers, path) if end else ProducersSnapshot(0, ())
                    if stored is not None and stored.end >= end:
                        break
                    if attempt % ORDER_EVERY == 0:  # an order is lost with its writer
                        self._partitions.store_producers(topic, partition)
                    await asyncio.sleep(PRODUCERS_POLL_S)
                    self.extent(topic, partition)
        except TimeoutError:
            raise RequestTimedOut(
                f"the producers of {topic}-{partition} were not stored within {PRODUCERS_MS_MAX} ms: try again"
            ) from None
        assert stored is not None
        return [
            ProducerInLog(
                id, epoch, (following - 1) & SEQUENCE_MASK if has_sequence else -1, time_ms, coordinator_epoch, first
            )
            for id, (epoch, following, has_sequence, _, time_ms, _, first, coordinator_epoch, _) in stored.entries
        ]

    async def delete_records(self, topic: str, partition: int, offset: int) -> int:
        """Delete the records before ``offset``; return the new log start offset, once readers have it.

        The writer flushes unflushed records before it moves the start.  Files are removed by whole segments.
        """
        start, end = self.extent(topic, partition)
        if not start <= offset <= end:
            raise OffsetOutOfRange(f"offset {offset} of {topic}-{partition} is not in {start} to {end}")
        if offset > start:
            spans = {partition: (start, offset)}
            self._unread[topic, partition] = await self._unread_bytes.ask(self.topic_store.get(topic), spans)
            self._partitions.delete_before(topic, partition, offset)
            try:
                async with asyncio.timeout(DELETE_RECORDS_MS_MAX / 1000):
                    while self.extent(topic, partition).start < offset:
                        await asyncio.sleep(DELETE_RECORDS_POLL_S)
            except TimeoutError:
                raise RequestTimedOut(
                    f"{topic}-{partition} does not start at {offset} within {DELETE_RECORDS_MS_MAX} ms: look again"
                ) from None
        return self.extent(topic, partition).start
