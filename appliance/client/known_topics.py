"""Keeps metadata of the topics that a producer sends to; requests those of unknown topics."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from ..errors import ApplianceError, NotLeader, UnknownPartition
from ..records.batch import HEADER_BYTES
from ..records.partitioner import partition_for
from .cluster_client import NO_BROKER, Cluster, TopicSnapshot
from .producer_options import ProducerOptions

MESSAGE_BYTES_MAX_DEFAULT: Final = 1_048_588
KEYS_CACHED_MAX: Final = 10_000
PAUSE_S_MIN: Final = 0.01
PAUSE_S_MAX: Final = 1.0


class KnownTopic:
    """A topic's partitions and the limits of its batches, from one snapshot of the cluster."""

    def __init__(self, snapshot: TopicSnapshot, batch_bytes_max: int, codec: str) -> None:
        self.snapshot = snapshot
        self.count = len(snapshot.leaders)
        self.message_bytes_max = int(snapshot.settings.get("max.message.bytes", MESSAGE_BYTES_MAX_DEFAULT))
        # The size of a compressed batch is not known before: limits apply to the size without compression.
        self.batch_bytes_max = min(batch_bytes_max, self.message_bytes_max) - HEADER_BYTES
        self.lone_bytes_max = self.message_bytes_max - HEADER_BYTES if codec == "none" else None
        """Size of the largest message; None with compression, where only the broker can check it."""
        self._keys: dict[bytes, int] = {}
        live = [partition for partition, leader in enumerate(snapshot.leaders) if leader != NO_BROKER]
        self.live: Sequence[int] = live or range(self.count)

    def partition_of(self, key: bytes) -> int:
        partition = self._keys.get(key)
        if partition is None:
            if len(self._keys) >= KEYS_CACHED_MAX:
                self._keys.clear()
            partition = self._keys[key] = partition_for(key, self.count)
        return partition


class KnownTopics:
    """The topics of one producer.  ``prepare`` is called before metadata of a topic are requested; it may block."""

    def __init__(
        self,
        cluster: Cluster,
        options: ProducerOptions,
        *,
        clock: Callable[[], float],
        prepare: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._clock = clock
        self._prepare = prepare
        self._topics: dict[str, KnownTopic] = {}

    def current(self, name: str) -> KnownTopic | None:
        """The topic; None when it is not known or the cluster has a newer snapshot."""
        topic = self._topics.get(name)
        if topic is None or self._cluster.snapshot.topics.get(name) is not topic.snapshot:
            return None
        return topic

    def learn(self, name: str) -> KnownTopic:
        """Request a topic's metadata until they are known.  The appliance may create a topic that does not exist.

        Raises:
            ApplianceError: the topic cannot be used, or was not known within ``block_ms_max``.
        """
        cluster = self._cluster
        deadline_s = self._clock() + self._options.block_s_max
        pause_s = PAUSE_S_MIN
        while True:
            try:
                self._prepare()
                snapshot = cluster.snapshot.topics.get(name) or cluster.refresh([name]).topics[name]
                if snapshot.error == UnknownPartition.code:
                    cluster.admin("ensure_topic", {"name": name})
                    cluster.refresh([name])
                snapshot = cluster.topic(name)
                if not snapshot.leaders:
                    raise NotLeader(f"topic {name!r} has no partitions yet")
                break
            except ApplianceError as error:
                if not error.retriable or self._clock() + pause_s > deadline_s:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
        topic = self._topics[name] = KnownTopic(snapshot, self._options.batch_bytes_max, self._options.codec)
        return topic
