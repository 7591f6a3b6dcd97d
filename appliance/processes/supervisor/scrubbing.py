"""Runs the scrubber; what it finds the inspector looks at (:mod:`.inspection`).

A scrubber that dies is started again and goes on where it was.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from ...config import Config
from ...names import TopicPartition
from ...shared.heartbeats import Heart
from ..control import Channel
from ..messages import Reload, ScrubSoon, Stop
from . import scrubber
from .actions import Actions
from .children import Children
from .fork import Child


class Scrubbing:
    """The scrubber as a child."""

    def __init__(self, config: Config, data_dir: Path, children: Children, actions: Actions) -> None:
        self._config, self._data_dir, self._children = config, data_dir, children
        self._pid = os.getpid()
        self._child: Child | None = None
        self._start = actions.define("start the scrubber", lambda _: self._fork())

    @property
    def runs(self) -> bool:
        return self._child is not None

    def start(self) -> None:
        self._start.want()

    def _fork(self) -> None:
        run = partial(scrubber.run, self._config, self._data_dir, supervisor_pid=self._pid)

        def target(channel: Channel, heart: Heart) -> int:
            return run(control=channel, heart=heart)

        self._child = self._children.fork("scrubber", 0, target)

    def on_end(self, child: Child) -> None:
        self._child = None
        self._children.start_again(child, self._start)

    def scrub_soon(self, partition: TopicPartition) -> None:
        """Let the scrubber read a partition before all others: some of it is damaged."""
        self._children.send(self._child, ScrubSoon(partition))

    def reload(self, config: Config) -> None:
        self._config = config
        self._children.send(self._child, Reload(config))

    def stop(self) -> None:
        self._start.drop()
        if self._child is not None:
            self._child.stopping = True
            self._children.send(self._child, Stop())
