"""The nodes of the local ensemble as children of the supervisor: started, watched by pidfd, started again, listed.

How a node is started and how long to wait before starting it again is :class:`~appliance.zookeeper.ensemble.Ensemble`'s
business; with an external ensemble, or none, there are no nodes.
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...config import ZooKeeper
from ...zookeeper.ensemble import Ensemble
from ..clock import now_ms, wall_s

logger = logging.getLogger(__name__)


class Nodes:
    """``later(delay ms, action)`` is the supervisor's timer.  ``connect`` is what clients are given."""

    def __init__(
        self, config: ZooKeeper, data_dir: Path, epoll: select.epoll, later: Callable[[int, Callable[[], None]], None]
    ) -> None:
        """Raises ConfigFault: Java or ZooKeeper's jars are missing; says what to install."""
        self._epoll = epoll
        self._later = later
        self._by_pidfd: dict[int, int] = {}
        self._started_s: dict[int, float] = {}
        self._restarts: dict[int, int] = {}
        self._ensemble: Ensemble | None = None
        self.connect = config.connect
        if not config.connect and config.nodes:
            self._ensemble = Ensemble(config, data_dir)
            self._ensemble.prepare()
            self.connect = self._ensemble.connect

    def __contains__(self, fd: int) -> bool:
        return fd in self._by_pidfd

    def __bool__(self) -> bool:
        """Whether any runs."""
        return bool(self._by_pidfd)

    def start(self) -> None:
        if self._ensemble is not None:
            for node in range(self._ensemble.count):
                self._start(node)

    def _start(self, node: int) -> None:
        assert self._ensemble is not None
        process = self._ensemble.start_node(node)
        pidfd = os.pidfd_open(process.pid)
        self._by_pidfd[pidfd] = node
        self._started_s[node] = wall_s()
        self._epoll.register(pidfd, select.EPOLLIN)

    def bury(self, pidfd: int, stopping: bool) -> None:
        """A node has ended: reap it, and start it again unless all are to end."""
        assert self._ensemble is not None
        node = self._by_pidfd.pop(pidfd)
        self._epoll.unregister(pidfd)
        os.close(pidfd)
        status = self._ensemble.processes[node].wait()
        now = now_ms()
        self._ensemble.node_ended(node, now)
        if not stopping:
            logger.warning("ZooKeeper node %d ended with status %d", node + 1, status)
            self._restarts[node] = self._restarts.get(node, 0) + 1
            self._later(self._ensemble.next_restart_ms(node, now) or 0, lambda: self._start(node))

    def ask_to_end(self) -> None:
        if self._ensemble is not None:
            self._ensemble.signal_nodes()

    def end(self) -> None:
        """Kill what still runs."""
        if self._ensemble is not None:
            self._ensemble.stop(0)

    def close_in_child(self) -> None:
        """In a forked child: let go of what is the supervisor's."""
        for pidfd in self._by_pidfd:
            os.close(pidfd)

    def rows(self) -> list[dict[str, Any]]:
        """For status: role, pid, started, restarts, node (from 1)."""
        if self._ensemble is None:
            return []
        return [
            {
                "role": "zookeeper",
                "pid": self._ensemble.processes[node].pid,
                "started": self._started_s[node],
                "restarts": self._restarts.get(node, 0),
                "node": node + 1,
            }
            for node in self._by_pidfd.values()
        ]
