"""A process that is killed at one of its system calls: what it had done until then is done, and nothing follows."""

from __future__ import annotations

import dataclasses
from typing import Any

from appliance.durable_files import System

NAMES = ("writev", "pwrite", "fdatasync", "open", "ftruncate", "rename", "unlink", "mkdir", "fsync", "msync")
"""Calls that change the disk, or make a change durable."""
WRITES = ("writev", "pwrite")


class Killed(BaseException):
    """SIGKILL.  No ``except`` or ``finally`` of the code under test changes anything after it."""


class KilledCalls:
    """The calls of a :class:`System`, one of which is the last; :meth:`kill_before` says which."""

    def __init__(self, system: System) -> None:
        self._calls_left: int | None = None
        self._torn_bytes = 0
        self._of = system
        self.system = dataclasses.replace(system, **{name: self._guarded(name) for name in NAMES})

    def kill_before(self, calls: int, torn_bytes: int = 0) -> None:
        """Kill before the call after the next ``calls``; of a write, ``torn_bytes`` at most are done before."""
        self._calls_left, self._torn_bytes = calls, torn_bytes

    def spare(self) -> None:
        """Kill no more: another process goes on."""
        self._calls_left = None

    def _guarded(self, name: str) -> Any:
        call = getattr(self._of, name)

        def guarded(*arguments: Any) -> Any:
            if self._calls_left is None:
                return call(*arguments)
            if self._calls_left:
                self._calls_left -= 1
                return call(*arguments)
            if name in WRITES and self._torn_bytes:
                fd, data, *position = arguments
                data = (data if name == "pwrite" else b"".join(data))[: self._torn_bytes]
                call(fd, data if name == "pwrite" else [memoryview(data)], *position)
                self._torn_bytes = 0
            raise Killed

        return guarded
