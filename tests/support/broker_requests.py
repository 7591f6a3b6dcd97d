"""Asks an appliance what its peers ask it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from appliance.processes.coordinator.peers import BrokerIdentity, PeerConnections
from appliance.security.configuration import Tls

T = TypeVar("T")
BROKER_ID = 7


def as_broker(secret: bytes, ask: Callable[[PeerConnections], Awaitable[T]], tls: Tls | None = None) -> T:
    """Ask over connections of broker BROKER_ID, which are closed then."""

    async def work() -> T:
        connections = PeerConnections(lambda: BrokerIdentity(BROKER_ID, secret, tls or Tls()))
        try:
            return await ask(connections)
        finally:
            connections.close()

    return asyncio.run(work())
