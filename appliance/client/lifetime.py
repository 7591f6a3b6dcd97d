"""Closes the producers of a process at exit, and disables all clients in forked children.

Closing at exit delivers the messages of a program that did not close its producer.  In a forked child every call of an
inherited client raises InvalidRequest, because messages, positions and replies cannot be shared.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import weakref
from typing import Any, Final, Protocol

from ..errors import ApplianceError, InvalidRequest
from .threads import fresh

logger = logging.getLogger(__name__)

CLOSE_AT_EXIT_S: Final = 10.0


class Inheritable(Protocol):
    def disown(self) -> None:
        """In a forked child: refuse every later call."""
        ...


class Closable(Inheritable, Protocol):
    foreign: bool

    def close(self, timeout: float | None = None) -> None: ...


def inherited(client: str, pid: int) -> InvalidRequest:
    """The error of a client ("producer") that is used in a child of its process."""
    return InvalidRequest(f"this {client} belongs to process {pid}: make one after forking")


class ForeignLock(contextlib.nullcontext[Any]):
    """Replaces the lock of an inherited client, which a thread may have held at the fork."""

    def __init__(self, refusal: ApplianceError) -> None:
        super().__init__()
        self._refusal = refusal

    def __enter__(self) -> Any:
        raise fresh(self._refusal)


class _Living:
    """Holds all clients of this process."""

    def __init__(self) -> None:
        self._producers: weakref.WeakSet[Closable] = weakref.WeakSet()
        self._clients: weakref.WeakSet[Inheritable] = weakref.WeakSet()
        self._hooked = False

    def add_producer(self, producer: Closable) -> None:
        self.add(producer)
        self._producers.add(producer)

    def add(self, client: Inheritable) -> None:
        if not self._hooked:
            self._hooked = True
            atexit.register(self._close_all)
            os.register_at_fork(after_in_child=self._disown_all)
        self._clients.add(client)

    def _close_all(self) -> None:
        for producer in list(self._producers):
            if not producer.foreign:
                try:
                    producer.close(CLOSE_AT_EXIT_S)
                except ApplianceError as error:
                    logger.error("%s", error)

    def _disown_all(self) -> None:
        for client in list(self._clients):
            client.disown()


_living = _Living()


def register(producer: Closable) -> None:
    """Close this producer at exit, and disown it in a forked child."""
    _living.add_producer(producer)


def refuse_in_children(client: Inheritable) -> None:
    """Disown this client in a forked child."""
    _living.add(client)
