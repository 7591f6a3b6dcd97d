"""Closes the producers of a process at exit, and disables them in forked children.

Closing at exit delivers the messages of a program that did not close its producer.  In a forked child every call of an
inherited producer raises InvalidRequest, because messages and replies cannot be shared.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import weakref
from typing import Any, Final, Protocol

from ..errors import ApplianceError, InvalidRequest

logger = logging.getLogger(__name__)

CLOSE_AT_EXIT_S: Final = 10.0


class Closable(Protocol):
    foreign: bool

    def close(self, timeout: float | None = None) -> None: ...

    def disown(self) -> None:
        """In a forked child: refuse every later call."""
        ...


class ForeignLock(contextlib.nullcontext[Any]):
    """Replaces the lock of an inherited producer, which a thread may have held at the fork."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._pid = pid

    def __enter__(self) -> Any:
        raise InvalidRequest(f"this producer belongs to process {self._pid}: make one after forking")


class _Living:
    """Holds all producers of this process."""

    def __init__(self) -> None:
        self._producers: weakref.WeakSet[Closable] = weakref.WeakSet()
        self._hooked = False

    def add(self, producer: Closable) -> None:
        if not self._hooked:
            self._hooked = True
            atexit.register(self._close_all)
            os.register_at_fork(after_in_child=self._disown_all)
        self._producers.add(producer)

    def _close_all(self) -> None:
        for producer in list(self._producers):
            if not producer.foreign:
                try:
                    producer.close(CLOSE_AT_EXIT_S)
                except ApplianceError as error:
                    logger.error("%s", error)

    def _disown_all(self) -> None:
        for producer in list(self._producers):
            producer.disown()


_living = _Living()


def register(producer: Closable) -> None:
    """Close this producer at exit, and disown it in a forked child."""
    _living.add(producer)
