"""Runs the scrubber, and takes the damaged ranges that it finds out of service.

States of a range of offsets of a partition, and who changes them::

    state      known to                         fetches get                       changed by
    sound      -                                its batches                       the scrubber, which finds it damaged
    damaged    supervisor (hosted), workers,    StorageFault (Kafka's             repair: the partition is opened again;
               ``scrub.json``, ``status``       KAFKA_STORAGE_ERROR), as of       retention: the scrubber finds it
                                                an offline partition              gone at its next look
    unknown    ``scrub.json``: the appliance    its batches                       the scrubber, which looks at it first
               has just been started

Everything before and behind the range is served: a consumer reads up to it, and waits there until it is repaired.  A
worker that is started later is told with the tables.  A scrubber that dies is started again and goes on where it was.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...config import Config
from ...names import TopicPartition
from ...shared.heartbeats import Heart
from ..control import Channel
from . import scrubber
from .actions import Actions
from .children import Children
from .fork import Child
from .hosted import Hosted
from .workers import Workers

logger = logging.getLogger(__name__)


class Scrubbing:
    """The scrubber as a child."""

    def __init__(
        self, config: Config, data_dir: Path, hosted: Hosted, children: Children, actions: Actions, workers: Workers
    ) -> None:
        self._config, self._data_dir = config, data_dir
        self._hosted, self._children, self._workers = hosted, children, workers
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

    def on_damaged(self, partition: TopicPartition, ranges: Sequence[Sequence[Any]]) -> None:
        """Take these ranges of a partition out of service, and all others back."""
        row = self._hosted.get(partition)
        if row is None or row.offline or partition in self._hosted.opening:
            return
        known = {tuple(one) for one in row.damaged}
        for start, stop, file, position, reason in ranges:
            if (start, stop, file, position, reason) not in known:
                logger.error(
                    "%s-%d is damaged: %s:%d: %s: the offsets %d to %d are not served until `appliance log repair`",
                    *(*partition, file, position, reason, start, stop),
                )
        row.damaged = [list(one) for one in ranges]
        self._workers.send_all(row.damage_message(partition))

    def reload(self, config: Config, values: Any) -> None:
        """``values``: the configuration as plain values."""
        self._config = config
        self._children.send(self._child, ["reload", values])

    def stop(self) -> None:
        self._start.drop()
        if self._child is not None:
            self._child.stopping = True
            self._children.send(self._child, ["stop"])
