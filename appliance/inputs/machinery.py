"""What all inputs share, and what the process of an input (:mod:`.process`) wants of each."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from .ledger import Ledger
from .outlet import Outlet
from .positions import PositionStore


class Machinery(NamedTuple):
    """What all inputs share."""

    name: str
    store: PositionStore
    outlet: Outlet
    ledger: Ledger
    sockets: Mapping[str, socket.socket]


class Input(Protocol):
    """What takes logs in.  An input is made by a function of its settings and the :class:`Machinery`."""

    async def run(self) -> None:
        """Take logs in until it is cancelled.  An error ends the process, which is started again."""

    async def drain(self) -> None:
        """After :meth:`run`: wait until everything that was taken is flushed."""

    def commit(self) -> None:
        """Note in the store what is flushed.  Raises StorageFault: it is tried again."""
