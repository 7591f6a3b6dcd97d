"""Watches what can be wrong in a cluster, and tells the supervisor, for whoever judges: see ``cluster`` in ``status``.

::

    leaderless     [{"broker", "host", "partitions", "names", "since"}]      brokers that lead partitions, and are away
    rival          {"broker", "host", "native", "since"} | null              who else has our broker.id, for long
    offsets_lost   {"at", "count", "groups", "cluster", "found", "local"} | null   see :mod:`.known_groups`
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from ...catalog import Catalog
from ...zookeeper.session import SessionState
from .known_groups import KnownGroups
from .registry_session import RegistrySession

DELAY_S: Final = 0.2
"""How long a change waits for others, so that a burst of them is one message."""
AWAY_S: Final = 3.0
"""A broker that leads partitions is away for so long before that is told: its registration may just be on its way."""
NAMES_MAX: Final = 10
BROKERS_MAX: Final = 100


class ClusterWatch:
    """``send`` takes the facts to the supervisor, whenever they have changed."""

    def __init__(
        self,
        broker_id: int,
        catalog: Catalog,
        registry: RegistrySession,
        groups: KnownGroups,
        clock_s: Callable[[], float],
        send: Callable[[dict[str, Any]], None],
    ) -> None:
        self._broker_id, self._catalog, self._registry, self._groups = broker_id, catalog, registry, groups
        self._clock_s, self._send = clock_s, send
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._since_s: dict[int, float] = {}
        """By broker: since when it leads partitions and is away."""
        self._told: dict[str, Any] = {"leaderless": [], "rival": None, "offsets_lost": None}

    def look_soon(self, delay_s: float = DELAY_S) -> None:
        """Something has changed: brokers, topics, or groups."""
        if self._timer is None:
            self._timer = self._loop.call_later(delay_s, self._look)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        facts = {"leaderless": self._leaderless(), "rival": self._rival(), "offsets_lost": self._offsets_lost()}
        if facts != self._told:
            self._told = facts
            self._send(facts)

    def _leaderless(self) -> list[dict[str, Any]]:
        """What was last known while ZooKeeper is away."""
        if self._registry.state != SessionState.CONNECTED.value:
            leaderless: list[dict[str, Any]] = self._told["leaderless"]
            return leaderless
        present, now_s = self._registry.brokers, self._clock_s()
        away: dict[int, list[str]] = {}
        for topic in self._catalog.topics.values():
            for number, brokers in topic.partitions.items():
                if brokers[0] != self._broker_id and brokers[0] not in present:
                    away.setdefault(brokers[0], []).append(f"{topic.name}-{number}")
        self._since_s = {broker: self._since_s.get(broker, now_s) for broker in away}
        young = [since_s for since_s in self._since_s.values() if now_s - since_s < AWAY_S]
        if young:
            self.look_soon(AWAY_S)
        return [
            {
                **{"broker": broker, "host": self._registry.hosts.get(broker, ""), "partitions": len(names)},
                **{"names": sorted(names)[:NAMES_MAX], "since": self._since_s[broker]},
            }
            for broker, names in sorted(away.items())[:BROKERS_MAX]
            if now_s - self._since_s[broker] >= AWAY_S
        ]

    def _rival(self) -> dict[str, Any] | None:
        rival = self._registry.rival
        if rival is None:
            return None
        info, since_s = rival
        return {"broker": self._broker_id, "host": info.host, "native": info.native, "since": since_s}

    def _offsets_lost(self) -> dict[str, Any] | None:
        lost = self._groups.lost
        return None if lost is None else lost | {"local": not self._registry.external}
