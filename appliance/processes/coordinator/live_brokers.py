"""The brokers that live, how clients reach them, and which of them leads a partition or coordinates a group."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Final

from ...addresses import parse_addresses
from ...catalog import Topic
from ...config import Config
from ...groups.group_coordinator import coordinator_of
from ...names import TopicPartition
from ...wire.kafka.metadata_reply import NO_LEADER, Broker
from ...zookeeper.paths import BrokerInfo
from .. import snapshot
from .registry_session import RegistrySession

WILDCARDS: Final = ("0.0.0.0", "::")
PROTOCOLS: Final = ("native", "kafka")


class LiveBrokers:
    """``listening``: by protocol, "host:port" where this broker listens; empty before it serves."""

    def __init__(self, config: Config, registry: RegistrySession) -> None:
        self.listening: dict[str, str] = {}
        self.broker_id = config.broker.id
        self._config = config
        self._registry = registry

    def reload(self, config: Config) -> None:
        """Take new advertised addresses."""
        self._config = config

    @property
    def revision(self) -> int:
        """Another number after every change of another broker."""
        return self._registry.revision

    # ---- as clients see them

    def brokers(self, listener: str, protocol: str = "kafka") -> list[Broker]:
        """See :meth:`appliance.broker.metadata_answers.Directory.brokers`."""
        own = self.advertised[protocol] or listener
        return snapshot.brokers(self.broker_id, own, self.peers(), protocol)

    @property
    def advertised(self) -> dict[str, str]:
        """By protocol, the address that clients get instead of the one that they came to; "" for that one."""
        return {protocol: getattr(self._config, protocol).advertised for protocol in PROTOCOLS}

    def peers(self) -> dict[int, dict[str, str]]:
        """The other brokers: by id and protocol, the address of each listener."""
        found = self._registry.brokers.items()
        return {peer: {"native": info.native, "kafka": info.kafka} for peer, info in found if peer != self.broker_id}

    def leader(self, topic: Topic, partition: int) -> int:
        """The live broker that serves a partition, NO_LEADER while none can."""
        leader = topic.leader(partition)
        alive = leader == self.broker_id or leader in self._registry.brokers
        return leader if alive else NO_LEADER

    # ---- among themselves

    def native_address(self, broker_id: int) -> str:
        """Where another broker's native listener is; "" when it has none, or is not known."""
        peer = self._registry.brokers.get(broker_id)
        return "" if peer is None else peer.native

    def coordinator(self, group: str) -> int:
        """The id of the broker that coordinates a group, by the brokers that live as far as we know."""
        others = [broker_id for broker_id, info in self._registry.brokers.items() if info.kafka]
        closed = bool(others and self.listening and not self.listening.get("kafka"))
        candidates = {*others, self.broker_id} - ({self.broker_id} if closed else set())
        return coordinator_of(group, [Broker(broker_id, "", 0) for broker_id in sorted(candidates)]).id

    def coordinates(self, group: str) -> bool:
        return self.coordinator(group) == self.broker_id

    def registration(self, hosted: Iterable[TopicPartition]) -> BrokerInfo | None:
        """What this broker is registered as, with the partitions stored here; None before it serves."""
        if not self.listening:
            return None
        stored: dict[str, list[int]] = {}
        for topic, partition in hosted:
            stored.setdefault(topic, []).append(partition)
        host = self._config.broker.host or socket.gethostname()
        native, kafka = (self._address(protocol, host) for protocol in PROTOCOLS)
        return BrokerInfo(self._registry.instance, host, native, kafka, stored)

    def _address(self, protocol: str, host: str) -> str:
        """Where others reach a listener: as configured, else where it listens; "" when it is closed."""
        listening = parse_addresses(self.listening.get(protocol, ""))
        advertised = self.advertised[protocol]
        if advertised or not listening:
            return advertised
        bound, port = listening[0]
        reached = host if bound in WILDCARDS else bound
        return f"[{reached}]:{port}" if ":" in reached else f"{reached}:{port}"
