"""Starts the coordinator, connects it with the workers, and starts it again when it dies."""

from __future__ import annotations

import logging
import socket
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

from ...config import Config
from ...errors import StorageFault
from ...libc import give_back_memory
from ...shared import memory
from ...shared.counters import PAGE_BYTES
from ...shared.heartbeats import Heart
from ...status import NOTHING
from ..control import Channel
from ..messages import (
    CannotStart,
    ConnectZooKeeper,
    CoordinatorStreamOpened,
    Listening,
    PartitionTable,
    Reload,
    ShownKey,
    ToCoordinator,
    WorkerStreamOpened,
    WriterStarted,
)
from .actions import Actions
from .children import Children
from .hosted import Hosted
from .roles import Process, Role
from .workers import Workers

logger = logging.getLogger(__name__)

ZOOKEEPER_WAIT_MS: Final = 8_000
"""How long READY waits for ZooKeeper, so that topics can be created right after it; clients are served before."""


class CoordinatorChild:
    """The coordinator as a child.  ``zookeeper``: the state of ZooKeeper that it has sent last, for status."""

    def __init__(
        self,
        config: Config,
        data_dir: Path,
        instance: str,
        hosted: Hosted,
        children: Children,
        actions: Actions,
        workers: Workers,
    ) -> None:
        self._config, self._data_dir, self._instance = config, data_dir, instance
        self._hosted, self._workers = hosted, workers
        self.page = ""
        """The name of the page of its counters; "" before its first start."""
        self._listeners: dict[str, str] = {}
        self.zookeeper = {"connect": "", "state": "off"}
        if config.zookeeper.connect or config.zookeeper.nodes:
            self.zookeeper = {"connect": config.zookeeper.connect, "state": "connecting"}
        self.shown: dict[str, Any] = {key: NOTHING[key] for key in get_args(ShownKey)}
        """What it has sent for status, by its key there."""
        self._fault: tuple[str, str] | None = None
        """Why it could not start, and what to do."""
        self.published = False
        """Whether a coordinator has sent the workers what they answer metadata from."""
        self.role = Role(
            *("coordinator", "start the coordinator", children, actions, self._prepare),
            stays=True,
            on_started=self._on_started,
        )
        self._connect = actions.define("connect workers and the coordinator", self._join)
        self._waits = True
        self._give_up_waiting = actions.define("wait for ZooKeeper", lambda _: self._serve_without_zookeeper())

    # ---- starting

    def start(self, listeners: dict[str, str]) -> None:
        """Start it; ``listeners`` are the addresses that clients connect to."""
        self._listeners = listeners
        self.role.start("")

    def _prepare(self, _: str) -> Process:
        if not self.page:
            self.page, mapped = memory.create(self._instance, "counters", PAGE_BYTES)
            mapped.close()

        return Process(partial(run_coordinator, self._config, self._data_dir, self._instance, self.page), "coordinator")

    def _on_started(self, _: str) -> None:
        """Tell it all that it would have been told."""
        for partition, table in self._hosted.tables():
            if partition not in self._hosted.opening:
                self.send(PartitionTable(partition, table))
        for partition, row in self._hosted.items():
            if row.writer:
                self.send(WriterStarted(partition, row.writer))
        for index in self._workers:
            self.connect(index)
        self.send_listeners()
        if self.zookeeper["connect"]:
            self.send(ConnectZooKeeper(self.zookeeper["connect"]))

    def on_fault(self, reason: str, todo: str) -> None:
        """Note why it cannot start; it is tried again and again, until somebody has mended that."""
        self._fault = (reason, todo)

    def on_published(self) -> None:
        """A worker has its first snapshot: it works."""
        self.published, self._fault = True, None

    def faults(self) -> list[dict[str, str]]:
        """For status: why it cannot start."""
        if self._fault is None:
            return []
        reason, todo = self._fault
        return [{"role": "coordinator", "reason": reason, "todo": todo}]

    def connect(self, index: int, delay_ms: int = 0) -> None:
        """Connect it with a worker, now or after a delay."""
        self._connect.want(index, delay_ms)

    def _join(self, index: int) -> None:
        if "" not in self.role or index not in self._workers:
            return
        workers_end, coordinators_end = socket.socketpair()
        with workers_end, coordinators_end:
            self._workers.send(index, CoordinatorStreamOpened(), (workers_end.fileno(),))
            self.send(WorkerStreamOpened(index), (coordinators_end.fileno(),))

    # ---- messages

    def send(self, message: ToCoordinator, fds: tuple[int, ...] = ()) -> None:
        """Raises OSError: the descriptors could not be sent."""
        self.role.send("", message, fds)

    def send_listeners(self) -> None:
        """Send the listeners, after the tables: now it registers this broker and orders missing partitions."""
        self.send(Listening(self._listeners))

    def reload(self, config: Config) -> None:
        self._config = config
        self.send(Reload(config))

    def stop(self) -> None:
        """Let it end its session with ZooKeeper, and end; workers keep what they would forward."""
        self._give_up_waiting.drop()
        self.role.stop()

    # ---- ZooKeeper

    def use_zookeeper(self, connect: str) -> None:
        """Send the addresses of the local ensemble."""
        self.zookeeper = {"connect": connect, "state": "connecting"}
        self.send(ConnectZooKeeper(connect))

    @property
    def awaits_zookeeper(self) -> bool:
        """Whether the start still waits for ZooKeeper."""
        return self._waits and self.zookeeper["state"] not in ("off", "connected")

    def begin_wait(self) -> None:
        """Begin the time that READY waits at most: the local nodes are started now."""
        if self._waits:
            self._give_up_waiting.want(delay_ms=ZOOKEEPER_WAIT_MS)

    def end_wait(self) -> None:
        self._waits = False
        self._give_up_waiting.drop()

    def _serve_without_zookeeper(self) -> None:
        """End the wait: partitions are served; groups and new topics have to wait for the ensemble."""
        if self.awaits_zookeeper:
            logger.warning("ZooKeeper (%s) does not answer yet", self.zookeeper["connect"])
        self._waits = False


def run_coordinator(config: Config, data_dir: Path, instance: str, page: str, channel: Channel, heart: Heart) -> int:
    """Run the process, from fork to exit; return its exit status."""
    with heart.working():
        from .. import coordinator  # asyncio, kazoo and codecs of forwarded requests: 25 MB, needed only here

        give_back_memory()  # of the bytes that were imported: 1.6 MB

    try:
        coordinator.run(config, data_dir, instance, channel, heart, page)
    except StorageFault as error:
        logger.error("the coordinator cannot start: %s", error)
        channel.send(CannotStart(str(error), error.remedy))
        return error.exit_status
    return 0
