"""Starts the nodes of the local ZooKeeper ensemble, watches them by pidfd, and starts them again.

:class:`~appliance.zookeeper.ensemble.Ensemble` prepares and starts a node; with an external ensemble, or none, there
are no nodes.  Preparing the nodes' files, starting a node and noting its pid are actions: they are retried, for example
after a full disk.
"""

from __future__ import annotations

import logging
import os
import select
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...clock import now_ms, wall_s
from ...config import ZooKeeperSection
from ...errors import ConfigFault, OutOfResources
from ...zookeeper.ensemble import Ensemble
from .actions import Actions
from .children import Restarts

logger = logging.getLogger(__name__)


class Nodes:
    """The nodes.

    ``on_prepared(connect)`` is called with the address of the ensemble once it is known, ``on_change`` when a node has
    started or ended.
    """

    def __init__(
        self,
        config: ZooKeeperSection,
        data_dir: Path,
        epoll: select.epoll,
        actions: Actions,
        on_prepared: Callable[[str], None],
        on_change: Callable[[], None],
    ) -> None:
        self._epoll = epoll
        self._on_prepared, self._on_change = on_prepared, on_change
        self._by_pidfd: dict[int, int] = {}
        self._started: dict[int, tuple[int, float]] = {}  # node -> monotonic ms, seconds since 1970
        self._restarts = Restarts()
        self._ensemble = Ensemble(config, data_dir) if config.nodes and not config.connect else None
        self._refused = self._may_start = self._stopping = False
        self._prepare = actions.define("prepare the local ZooKeeper", lambda _: self._prepare_files())
        self._start = actions.define("start ZooKeeper nodes", self._start_node)
        self._note_pid = actions.define("note the pids of ZooKeeper nodes", self._write_pid)

    def __contains__(self, fd: int) -> bool:
        return fd in self._by_pidfd

    def __bool__(self) -> bool:
        """Whether any runs."""
        return bool(self._by_pidfd)

    def awaits(self, pid: int) -> bool:
        """Whether a child of this process is reaped here."""
        running = self._ensemble.processes.values() if self._ensemble is not None else ()
        return any(process.pid == pid and process.returncode is None for process in running)

    def prepare(self) -> None:
        """Write the nodes' files, now or when the machine allows.

        Raises:
            ConfigFault: Java or ZooKeeper's jars are missing; says what to install.
        """
        if self._ensemble is not None:
            self._prepare.want()

    def _prepare_files(self) -> None:
        assert self._ensemble is not None
        try:
            self._ensemble.prepare()
        except ConfigFault as error:
            if not self._refused:
                raise
            raise OutOfResources(str(error)) from error  # it was there at the first attempt, and may come back
        except OSError:
            self._refused = True
            raise
        self._on_prepared(self._ensemble.connect)
        if self._may_start:
            self.start()

    def start(self) -> None:
        """Start all nodes, now or once they are prepared."""
        self._may_start = True
        if self._ensemble is not None and self._ensemble.commands:
            for node in range(self._ensemble.count):
                self._start.want(node)

    def _start_node(self, node: int) -> None:
        assert self._ensemble is not None
        process = self._ensemble.start_node(node)
        try:
            pidfd = os.pidfd_open(process.pid)
            try:
                self._epoll.register(pidfd, select.EPOLLIN)
            except OSError:
                os.close(pidfd)
                raise
        except OSError:
            _end(process)
            raise
        self._by_pidfd[pidfd] = node
        self._started[node] = (now_ms(), wall_s())
        self._note_pid.want(node)
        self._on_change()

    def _write_pid(self, node: int) -> None:
        if node in self._by_pidfd.values():
            assert self._ensemble is not None
            self._ensemble.note_pid(node)

    def on_end(self, pidfd: int) -> None:
        """Reap a node that has ended, and start it again unless it was stopped."""
        assert self._ensemble is not None
        node = self._by_pidfd.pop(pidfd)
        self._epoll.unregister(pidfd)
        os.close(pidfd)
        status = self._ensemble.processes[node].wait()
        if not self._stopping:
            logger.warning("ZooKeeper node %d ended with status %d", node + 1, status)
            self._ensemble.warn_of_taken_ports(node)
            lived_ms = now_ms() - self._started[node][0]
            self._start.want(node, self._restarts.note_death("zookeeper", node, lived_ms, status))
        self._on_change()

    def stop(self) -> None:
        """Ask the nodes to end, and start none any more."""
        self._stopping = True
        self._prepare.drop()
        if self._ensemble is not None:
            for node in range(self._ensemble.count):
                self._start.drop(node)
            self._ensemble.signal_nodes()

    def end(self) -> None:
        """Kill the nodes that still run."""
        if self._ensemble is not None:
            self._ensemble.stop(0)

    def close_in_child(self) -> None:
        """In a forked child: close the supervisor's descriptors."""
        for pidfd in self._by_pidfd:
            os.close(pidfd)

    def deaths(self) -> list[dict[str, Any]]:
        """For status: nodes that have ended lately: role, node (from 1), times, status."""
        return [
            {"role": role, "node": node + 1, "times": list(deaths.times_s), "status": deaths.status}
            for role, node, deaths in self._restarts.recent()
        ]

    def rows(self) -> list[dict[str, Any]]:
        """For status: role, pid, started, restarts, node (from 1)."""
        if self._ensemble is None:
            return []
        return [
            {
                "role": "zookeeper",
                "pid": self._ensemble.processes[node].pid,
                "started": self._started[node][1],
                "restarts": self._restarts.count("zookeeper", node),
                "node": node + 1,
            }
            for node in self._by_pidfd.values()
        ]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
