"""The nursery as a child: orders of writers, and its restarts.  :mod:`.nursery` has the states and messages."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ...config import Config
from ...names import TopicPartition
from ...shared.heartbeats import Heart
from ..control import Channel
from ..messages import ForkWriter, Reap, Reload, Stop
from .actions import Actions
from .children import LOCK, Children
from .fork import Child
from .hosted import HostedPartition
from .nursery import Nursery
from .workers import Workers


class NurseryChild:
    """The nursery.  ``on_started`` is called when it has been forked, and takes orders."""

    def __init__(
        self,
        config: Config,
        data_dir: Path,
        children: Children,
        actions: Actions,
        workers: Workers,
        on_started: Callable[[], None],
    ) -> None:
        self._config, self._data_dir = config, data_dir
        self._children, self._workers, self._on_started = children, workers, on_started
        self._pid = os.getpid()
        self._child: Child | None = None
        self._start = actions.define("start the nursery", lambda _: self._fork())

    @property
    def runs(self) -> bool:
        return self._child is not None

    def start(self) -> None:
        """Call it early: the less this process has then, the less each fork copies."""
        self._start.want()

    def _fork(self) -> None:
        config, doorbells, heart_at = self._config, self._workers.doorbells, self._children.heart_at

        def target(channel: Channel, heart: Heart) -> int:
            return Nursery(config, self._data_dir, doorbells, heart_at, channel, heart).run(self._pid)

        self._child = self._children.fork("nursery", "", target, {LOCK})
        self._on_started()

    def order(self, partition: TopicPartition, row: HostedPartition, cell: int, fd: int) -> None:
        """Order a writer that beats in ``cell``; ``fd``: its end of its control channel.

        Raises:
            OSError: the descriptor could not be sent.
        """
        self._children.send(self._child, ForkWriter(partition, row.settings, row.table, cell), (fd,))

    def reap(self, pid: int) -> None:
        """Let it reap a writer that has ended."""
        self._children.send(self._child, Reap(pid))

    def reload(self, config: Config) -> None:
        self._config = config
        self._children.send(self._child, Reload(config))

    def stop(self) -> None:
        """Stop it, and start no other."""
        self._start.drop()
        if self._child is not None and not self._child.stopping:
            self._child.stopping = True
            self._children.send(self._child, Stop())

    def on_end(self, child: Child) -> None:
        self._child = None
        self._children.start_again(child, self._start)
