"""The live brokers: their addresses, and which of them leads a partition or coordinates a group."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Final

from ...addresses import (
    Listener,
    address_text,
    listeners_text,
    parse_addresses,
    parse_listeners,
)
from ...catalog import Topic
from ...config import Config
from ...groups.group_coordinator import coordinator_of
from ...names import TopicPartition
from ...wire.kafka.metadata_reply import NO_LEADER, Broker
from ...zookeeper.paths import BrokerInfo
from .. import snapshot
from .peers import BrokerIdentity, PeerConnections
from .registry_session import RegistrySession

WILDCARDS: Final = ("0.0.0.0", "::")
LISTENERS_KEPT_MAX: Final = 100
"""Listeners whose brokers are kept in memory: each request of a group asks for them."""
COORDINATORS_KEPT_MAX: Final = 10_000
"""Groups and slots of transactions whose coordinator is kept in memory: each is asked for with every request."""


@lru_cache(COORDINATORS_KEPT_MAX)
def _coordinator(name: str, candidates: tuple[int, ...]) -> int:
    return coordinator_of(name, [Broker(broker_id, "", 0) for broker_id in candidates]).id


class LiveBrokers:
    """Answers from the registered brokers.

    ``listening``: by protocol, this broker's listeners as text; empty at first.  ``secret``: returns the secret that
    brokers log in to each other with.
    """

    def __init__(self, config: Config, registry: RegistrySession, secret: Callable[[], bytes]) -> None:
        self.listening: dict[str, str] = {}
        self.broker_id = config.broker.id
        self._config = config
        self._registry = registry
        self._secret = secret
        self._brokers_of: dict[Listener, tuple[Broker, ...]] = {}
        self._brokers_as_of = -1
        self._present_candidates: tuple[int, ...] = ()
        self._candidates_as_of: tuple[int, bool, bool] | None = None
        self.connections = PeerConnections(lambda: self.identity)

    def reload(self, config: Config) -> None:
        """Take new advertised addresses."""
        self._config = config
        self._brokers_of.clear()

    @property
    def revision(self) -> int:
        """Grows with every change of a broker."""
        return self._registry.revision

    # ---- as clients see them

    def brokers(self, listener: Listener) -> Sequence[Broker]:
        """See :meth:`appliance.broker.metadata_answers.Directory.brokers`."""
        if self._brokers_as_of != self._registry.revision or len(self._brokers_of) > LISTENERS_KEPT_MAX:
            self._brokers_of.clear()
            self._brokers_as_of = self._registry.revision
        brokers = self._brokers_of.get(listener)
        if brokers is None:
            brokers = tuple(snapshot.brokers(self.broker_id, self.advertised, self.peers(), listener))
            self._brokers_of[listener] = brokers
        return brokers

    @property
    def advertised(self) -> dict[str, str]:
        """By protocol, as text, the listeners that clients get instead of those that they connected to."""
        return snapshot.advertised(self._config)

    def peers(self) -> dict[int, dict[str, str]]:
        """The other brokers: by id and protocol, their listeners as text."""
        brokers = self._registry.brokers.items()
        return {peer: {"native": info.native, "kafka": info.kafka} for peer, info in brokers if peer != self.broker_id}

    def leader(self, topic: Topic, partition: int) -> int:
        """The live broker that serves a partition; NO_LEADER when it is not alive."""
        leader = topic.leader(partition)
        alive = leader == self.broker_id or leader in self._registry.brokers
        return leader if alive else NO_LEADER

    # ---- between brokers

    def native_address(self, broker_id: int) -> str:
        """Another broker's native listener, as text; "" when it has none, or is not known."""
        peer = self._registry.brokers.get(broker_id)
        listeners = parse_listeners("native", peer.native) if peer is not None else []
        return next((str(listener) for listener in sorted(listeners, key=lambda listener: listener.tls)), "")

    @property
    def identity(self) -> BrokerIdentity:
        """How this broker logs in as a client of another one."""
        return BrokerIdentity(self.broker_id, self._secret(), self._config.tls)

    def coordinator(self, group: str) -> int:
        """The id of the broker that coordinates a group, chosen from the live brokers that this one knows."""
        return _coordinator(group, self._candidates())

    def _candidates(self) -> tuple[int, ...]:
        """The brokers that may coordinate: looked for again when a broker has changed, or we have begun to listen."""
        as_of = self._registry.revision, bool(self.listening), bool(self.listening.get("kafka"))
        if self._candidates_as_of != as_of:
            brokers = self._registry.brokers.items()  # and perhaps an earlier registration of our own
            others = [broker_id for broker_id, info in brokers if info.kafka and broker_id != self.broker_id]
            closed = bool(others and self.listening and not self.listening.get("kafka"))
            candidates = {*others, self.broker_id} - ({self.broker_id} if closed else set())
            self._present_candidates, self._candidates_as_of = tuple(sorted(candidates)), as_of
        return self._present_candidates

    def coordinates(self, group: str) -> bool:
        return self.coordinator(group) == self.broker_id

    def registration(self, hosted: Iterable[TopicPartition]) -> BrokerInfo | None:
        """This broker's registration, with the partitions stored here; None before it listens."""
        if not self.listening:
            return None
        stored: dict[str, list[int]] = {}
        for topic, partition in hosted:
            stored.setdefault(topic, []).append(partition)
        host = self._config.broker.host or socket.gethostname()
        native, kafka = (self._reachable_listeners(protocol, host) for protocol in snapshot.PROTOCOLS)
        return BrokerInfo(self._registry.instance, host, native, kafka, stored)

    def _reachable_listeners(self, protocol: str, host: str) -> str:
        """The listeners that others can reach, one of each security: the advertised one, else its own address."""
        advertised = parse_listeners(protocol, self.advertised[protocol])
        listening = parse_listeners(protocol, self.listening.get(protocol, ""))
        by_security = {listener.security: listener for listener in advertised}
        for listener in listening:
            if not listener.unix and listener.security not in by_security:
                bound, port = parse_addresses(listener.address)[0]
                reached = address_text((host if bound in WILDCARDS else bound, port))
                by_security[listener.security] = listener._replace(address=reached)
        return listeners_text(by_security.values())
