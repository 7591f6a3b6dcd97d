"""What the doors' cold requests are answered from: one object that both doors share.

It composes the topics, the partitions stored here, the other brokers and the producer ids; it owns nothing
else.
"""

from __future__ import annotations

from typing import NamedTuple

from ..catalog import Topic
from ..config import Config, parse_addresses
from ..shared.table import View
from .partitions import Partitions
from .producer_ids import ProducerIds
from .topics import Topics


class Broker(NamedTuple):
    """A live broker, and where the door that was asked for is."""

    id: int
    host: str
    port: int


class Cluster:
    def __init__(
        self, config: Config, topics: Topics, partitions: Partitions, producer_ids: ProducerIds
    ) -> None:
        self.config = config
        self.broker_id = config.broker.id
        self.topics = topics
        self.partitions = partitions
        self.producer_ids = producer_ids
        self.doors: dict[str, str] = {}
        self.zookeeper_connect = ""

    @property
    def id(self) -> str:
        return self.topics.catalog.cluster

    def brokers(self, door: str, listener: str) -> list[Broker]:
        """Live brokers by id, this one always among them.

        ``listener`` is our address that the client connected to: a client that came through one network is
        not sent to an address of another, unless the configuration says what to tell.
        """
        advertised = getattr(self.config, door).advertised or listener
        (host, port), *_ = parse_addresses(advertised)
        return [Broker(self.broker_id, host, port)]

    def leader(self, topic: Topic, partition: int) -> int:
        """The broker that serves a partition; -1 when nobody can."""
        return topic.leader(partition)

    def messages(self, topic: str, partition: int, view: View) -> int:
        return self.partitions.table(topic, partition).records
