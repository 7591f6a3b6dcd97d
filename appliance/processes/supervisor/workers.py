"""Starts the network workers, each with the listeners, a doorbell and an arena, and again when they die."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from ... import connected_clients
from ...addresses import Listener
from ...clock import now_ms, wall_s
from ...config import Config
from ...machine_limits import DESCRIPTORS, descriptors_of
from ...shared import memory
from ...shared.counters import PAGE_BYTES
from ...shared.doorbell import MarkedDoorbell
from ...shared.heartbeats import Heart
from ...shared.table import WORKERS_MAX
from .. import network
from ..control import Channel
from ..messages import ClientsCounted, LimitReached, SnapshotChange, ToWorker, WorkerStats
from ..tls_files import TlsFiles
from .actions import Actions
from .children import LISTENERS, Children
from .fork import Child
from .hosted import Hosted
from .roles import Process, Role
from .state_file import StateFile

CLIENTS_MS: Final = 200
"""clients.json is written at most this often."""


class Workers:
    """All network workers, by index.  ``on_started(index)`` is called to connect a new one with other children."""

    def __init__(
        self,
        config: Config,
        data_dir: Path,
        instance: str,
        hosted: Hosted,
        children: Children,
        actions: Actions,
        on_started: Callable[[int], None],
    ) -> None:
        self._config, self._data_dir, self._instance = config, data_dir, instance
        self._hosted, self._children, self._on_worker_started = hosted, children, on_started
        self._pid = os.getpid()
        self._arenas: dict[int, str] = {}
        self._unused_arenas: set[int] = set()
        self._pages: dict[int, str] = {}
        self._stats: dict[int, dict[str, int]] = {}
        self._limits: dict[int, list[dict[str, Any]]] = {}
        self._clients: dict[int, ClientsCounted] = {}
        self._listeners: list[tuple[Listener, socket.socket]] = []
        self._tls: TlsFiles | None = None
        self.snapshot: Sequence[SnapshotChange] = ()
        """What workers begin with; empty once the coordinator has sent them its own, since this one is older then."""
        self._count = min(config.network.workers or os.cpu_count() or 1, WORKERS_MAX)
        self.doorbells: list[MarkedDoorbell] = []
        self.role = Role(
            *("network", "start network workers", children, actions, self._prepare),
            stays=True,
            on_started=self._on_started,
        )
        self._clients_file = StateFile(data_dir / connected_clients.CLIENTS_FILE)
        self._save_clients = actions.define("write clients.json", lambda _: self._write_clients())

    def __iter__(self) -> Iterator[int]:
        return iter(self.role)

    def __len__(self) -> int:
        """How many workers run now."""
        return len(self.role)

    # ---- starting

    def prepare(self, listeners: list[tuple[Listener, socket.socket]], tls: TlsFiles | None) -> None:
        """Take the listeners with their certificate, and create the doorbells; called before the first fork."""
        self._listeners, self._tls = listeners, tls
        for _, sock in listeners:
            self._children.close_in_child(sock.close, LISTENERS)
        self.doorbells = [MarkedDoorbell() for _ in range(self._count)]

    def make_arenas(self) -> None:
        """Reserve the memory of all arenas, ahead of starting the workers.

        Raises:
            OutOfResources: there is no room in /dev/shm.
        """
        for index in range(self._count):
            self._make_arena(index)

    def start(self) -> None:
        for index in range(self._count):
            self.role.start(index)

    def reload(self, config: Config) -> None:
        """Start later workers with another configuration."""
        self._config = config

    def _prepare(self, index: int) -> Process:
        """Prepare a worker with an arena of its own: writers may still read the arena of the worker before."""
        if index not in self._unused_arenas:
            self._make_arena(index)
        arguments = network.WorkerArguments(
            self._config,
            self._data_dir,
            index,
            self._arenas[index],
            self._listeners,
            self.doorbells[index],
            self._tls,
            self._pages[index],
            tables=self._hosted.announcements(),
            snapshot=self.snapshot,
        )

        def run(channel: Channel, heart: Heart) -> int:
            return network.run(arguments._replace(heart=heart), channel)

        return Process(run, f"net {index}", {LISTENERS})

    def _on_started(self, index: int) -> None:
        self._unused_arenas.discard(index)
        self._on_worker_started(index)

    def _make_arena(self, index: int) -> None:
        """Create a worker's arena, and once the page of its counters.

        An old arena is unlinked first: its pages are free once no writer maps it.
        """
        if index not in self._pages:
            self._pages[index], page = memory.create(self._instance, f"counters{index}", PAGE_BYTES)
            page.close()
        if index in self._arenas:
            memory.unlink(self._arenas.pop(index))
        self._arenas[index], mapped = memory.create(self._instance, f"arena{index}", self._config.network.arena_bytes)
        mapped.close()
        self._unused_arenas.add(index)

    def on_end(self, child: Child) -> None:
        self._limits.pop(child.key, None)
        self.on_clients(child.key, ClientsCounted([], 0))
        self.role.on_end(child)

    # ---- messages and status

    def send(self, index: int, message: ToWorker, fds: tuple[int, ...] = ()) -> None:
        """Raises OSError: the descriptors could not be sent."""
        self.role.send(index, message, fds)

    def send_all(self, message: ToWorker) -> None:
        self.role.send_all(message)

    def stop(self) -> None:
        """Let all workers answer their started requests, and end; start no other."""
        self.role.stop()

    def arena(self, index: int) -> str:
        """The name of a worker's arena."""
        return self._arenas[index]

    @property
    def pages(self) -> dict[str, str]:
        """The names of the pages of counters, by process."""
        return {f"network {index}": name for index, name in self._pages.items()}

    def index_of(self, arena: str) -> int | None:
        """The worker that has this arena; None when it is an earlier worker's."""
        return next((index for index, name in self._arenas.items() if name == arena), None)

    def on_stats(self, index: int, stats: WorkerStats) -> None:
        self._stats[index] = msgspec.structs.asdict(stats)

    def stats(self, index: int) -> dict[str, int]:
        """The numbers that the worker has sent: connections, and how many were refused."""
        return self._stats.get(index, {})

    def on_clients(self, index: int, counted: ClientsCounted) -> None:
        """Take what a worker says of its clients, and write that of all workers soon."""
        self._clients[index] = counted
        if "" not in self._save_clients:
            self._save_clients.want(delay_ms=CLIENTS_MS)

    def _write_clients(self) -> None:
        """Raises OSError: the disk is full."""
        counted = self._clients.values()
        rows = [row for told in counted for row in told.rows]
        others = sum(told.others for told in counted)
        self._clients_file.replace(connected_clients.encode(rows, others, self._pid, now_ms(), wall_s()))

    def on_limits(self, index: int, reached: list[LimitReached]) -> None:
        """Note all limits that a worker has reached now: each with its value, and how much of it is in use."""
        since = {row["limit"]: row["since"] for row in self._limits.get(index, [])}
        self._limits[index] = [
            {
                **{"limit": limit, "process": f"network {index}", "value": value, "in_use": in_use},
                "since": since.get(limit) or wall_s(),
            }
            for limit, value, in_use in (self._measured(index, row) for row in reached)
        ]

    def _measured(self, index: int, reached: LimitReached) -> LimitReached:
        """A worker that lacks descriptors cannot count its own: it has none to read /proc with."""
        worker = self.role.child(index)
        if reached.limit != DESCRIPTORS or worker is None:
            return reached
        return LimitReached(DESCRIPTORS, *descriptors_of(worker.pid))

    def limits(self) -> list[dict[str, Any]]:
        """For status: limit, process, value, in_use, since."""
        return [row for rows in self._limits.values() for row in rows]
