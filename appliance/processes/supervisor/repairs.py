"""Repairs the log of one partition while all others serve, on an order of the coordinator.

One repairer (:mod:`.repairer`) runs at a time, so that reading whole logs takes one core and one queue of the disk at
most.  The states of a partition that is repaired::

    state      begins when                    its table    readers            writers         next
    asked      the order has come             as it was    served as before   the writer is   repairing, when the
                                                                              retired         writer has ended
    repairing  no process has the log open:   OFFLINE      served from what   none            opening
               a repairer is forked                        is readable
    opening    the repairer has ended,        from the     as at the start    none            online, or offline:
               however; readers forget what   opener                                          the order is answered
               they know of the files

The partition comes back by itself, whoever dies: a repairer that was killed is followed by the opener, which finds the
log sound or offline; a supervisor that was killed by its successor, which opens all logs.  Repairing may be interrupted
at any instruction (``log/repair.py``).  The answer to a coordinator that has died meanwhile is dropped.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from ...errors import InvalidRequest, StorageFault, UnknownPartition
from ...names import TopicPartition
from . import repairer
from .actions import UNDER_WAY, Actions
from .children import LOCK, Children
from .coordinator_child import CoordinatorChild
from .hosted import Hosted
from .opening import Opening, Outcome
from .workers import Workers
from .writers import Writers

logger = logging.getLogger(__name__)

REASON: Final = "it is being repaired (appliance log repair)"
INTERRUPTED: Final = "repairing was interrupted: try again"


class Repair:
    """One order.  ``result``: what the repairer has reported (:class:`~appliance.log.repair.Repaired`)."""

    def __init__(self, token: int, cut: bool) -> None:
        self.token = token
        self.cut = cut
        self.repaired = False
        """The repairer has ended, and the log is being opened."""
        self.error, self.message = StorageFault.__name__, INTERRUPTED
        self.result: dict[str, Any] = {}


class Repairs:
    """The orders that have not been answered, by partition."""

    def __init__(
        self,
        data_dir: Path,
        hosted: Hosted,
        children: Children,
        actions: Actions,
        writers: Writers,
        opening: Opening,
        workers: Workers,
        coordinator: CoordinatorChild,
        before_answer: Callable[[], None],
    ) -> None:
        self._data_dir = data_dir
        self._hosted, self._children, self._writers = hosted, children, writers
        self._opening, self._workers, self._coordinator = opening, workers, coordinator
        self._before_answer = before_answer
        self._pid = os.getpid()
        self._repairs: dict[TopicPartition, Repair] = {}
        self._runs = False
        self._start_repairer = actions.define("start the repair of a partition", self._fork)

    def order(self, token: int, partition: TopicPartition, cut: bool) -> None:
        """Take a partition out of service and repair it."""
        row = self._hosted.get(partition)
        name = f"{partition.topic}-{partition.partition}"
        if row is None or not row.table:
            self._answer(token, UnknownPartition.__name__, f"{name} is not stored on this broker", {})
        elif partition in self._repairs:
            self._answer(token, InvalidRequest.__name__, f"{name} is being repaired already", {})
        else:
            self._repairs[partition] = Repair(token, cut)
            row.offline = REASON
            logger.info("%s: out of service, to be repaired", name)
            self._writers.drop(partition)

    def start(self) -> None:
        """Start a repairer for the next partition that no process has open.  Called in every turn."""
        if self._runs or self._children.stopping:
            return
        for partition, order in list(self._repairs.items()):
            if partition not in self._hosted:  # deleted meanwhile
                self._end(partition)
            elif not order.repaired and partition not in self._writers and partition not in self._hosted.opening:
                self._runs = True
                self._start_repairer.want(partition)
                return

    def _fork(self, partition: TopicPartition) -> object:
        row = self._hosted.get(partition)
        if row is None or self._children.stopping:
            self._runs = False
            return None
        run = partial(
            repairer.run,
            self._data_dir,
            partition,
            row.table,
            self._repairs[partition].cut,
            supervisor_pid=self._pid,
        )
        self._children.fork("repairer", partition, lambda channel, _: run(channel), {LOCK}, work=True)
        return UNDER_WAY

    def on_repaired(self, partition: TopicPartition, error: str, message: str, result: dict[str, Any]) -> None:
        """Note what the repairer has reported; it ends now."""
        order = self._repairs[partition]
        order.error, order.message, order.result = error, message, result

    def on_repairer_end(self, partition: TopicPartition) -> None:
        """Let the partition come back, however the repairer has ended."""
        self._runs = False
        self._start_repairer.done(partition)
        if partition in self._hosted:
            self._repairs[partition].repaired = True
            self._hosted[partition].damaged = []
            self._workers.send_all(self._hosted[partition].damage_message(partition))
            self._workers.send_all(["forget", *partition])
            self._coordinator.send(["forget", *partition])
            self._opening.open_all([partition])
        else:
            self._end(partition)

    def on_opened(self, outcomes: list[Outcome]) -> None:
        """Answer the orders for partitions that an opener has tried to open."""
        for partition, error, reason in outcomes:
            order = self._repairs.get(partition)
            if order is not None and order.repaired:
                if error and not order.error:
                    order.error, order.message = error, f"repaired, but it does not open: {reason}"
                self._end(partition)

    def _end(self, partition: TopicPartition) -> None:
        order = self._repairs.pop(partition)
        logger.info("%s-%d: repaired: %s", *partition, order.message or order.result)
        self._before_answer()
        self._answer(order.token, order.error, order.message, order.result)

    def _answer(self, token: int, error: str, message: str, result: dict[str, Any]) -> None:
        self._coordinator.send(["repaired", token, error, message, result])
