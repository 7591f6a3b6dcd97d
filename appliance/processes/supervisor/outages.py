"""Takes partitions out of service for a while: to repair them, or because somebody has touched their files.

Each comes back through an opener (:mod:`.opening`), which judges what is there, so all that is sound is served again
without a restart.  One repairer (:func:`repair_log`) runs at a time, so that reading whole logs takes one core and one
queue of the disk at most.  The states of a partition that is out of service::

    state      begins when                    its table    readers            writers         next
    ordered    there is a cause (below)       as it was    served as before   the writer is   repairing, or opening,
                                                                              retired         when the writer has ended
    repairing  no process has the log open:   OFFLINE      served from what   none            opening
               a repairer is forked                        is readable
    opening    the repairer has ended,        from the     as at the start    none            online, or offline; an
               however, or the writer has;    opener                                          order is answered; ordered
               readers forget what they know                                                  if an order came
               of the files                                                                   meanwhile
    deleted    the topic is, in any of these  none         UnknownPartition   none            none: orders are answered,
               states: a repairer is killed                                                   the name is free when the
                                                                                              repairer has ended

Causes::

    an order of the coordinator                             ``appliance log repair``
    the inspector has found the log gone                    the opener finds what is left, and says what is lost
    ... the files of an offline partition changed           somebody has put them back
    a partition is offline                                  tried again after AGAIN_MS_MIN, then twice as late each
                                                            time: a disk may have recovered

The partition comes back by itself, whoever dies: a repairer that was killed is followed by the opener, which finds the
log sound or offline; a supervisor that was killed by its successor, which opens all logs.  Repairing may be interrupted
at any instruction (``log/repair.py``).  The answer to a coordinator that has died meanwhile is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...clock import wall_ms
from ...errors import (
    ApplianceError,
    InvalidRequest,
    OutOfResources,
    StorageFault,
    UnknownPartition,
    WriterGone,
    disk_fault,
)
from ...log import partition_directory
from ...log.recovery import Point, loss_of
from ...names import TopicPartition
from ...partition_states import OFFLINE
from ...shared import memory
from ...shared.table import SegmentTable
from ..control import Channel
from ..messages import LogRepaired, PartitionOutcome, RepairDone
from .actions import Actions
from .children import LOCK, Children
from .compactions import Compactions
from .coordinator_child import CoordinatorChild
from .fork import Child
from .hosted import Hosted
from .inspection import Inspection
from .opening import Opening
from .roles import Process, Role, interruptible
from .workers import Workers
from .writers import Writers

logger = logging.getLogger(__name__)

REASON: Final = "it is being repaired (appliance log repair)"
INTERRUPTED: Final = "repairing was interrupted: try again"
DELETED: Final = "the topic was deleted meanwhile"
AGAIN_MS_MIN: Final = 2_000
AGAIN_MS_MAX: Final = 600_000
ACTIONS_MAX: Final = 200
"""Actions that are reported; all are logged."""


class Outage:
    """One partition out of service.

    ``repairs``: a repairer runs before the opener, for an order with ``token``.  ``was_offline``: also before.
    """

    def __init__(self, repairs: bool = False, token: int = 0, cut: bool = False, was_offline: bool = False) -> None:
        self.repairs, self.token, self.cut, self.was_offline = repairs, token, cut, was_offline
        self.opens = False
        """No repairer is needed any more: the log is being opened."""
        self.error, self.message = (StorageFault.__name__, INTERRUPTED) if repairs else ("", "")
        self.following: Outage | None = None
        """An order that came while the log was being opened, which is not interrupted."""
        self.result: dict[str, Any] = {}
        """What the repairer has reported (:class:`~appliance.log.repair.Repaired`)."""


class Outages:
    """The partitions that are out of service and will be opened again."""

    def __init__(
        self,
        data_dir: Path,
        hosted: Hosted,
        children: Children,
        actions: Actions,
        workers: Workers,
        coordinator: CoordinatorChild,
        before_answer: Callable[[], None],
        writers: Writers,
        opening: Opening,
        inspection: Inspection,
        compactions: Compactions,
    ) -> None:
        self._data_dir = data_dir
        self._hosted, self._writers = hosted, writers
        self._opening, self._workers, self._coordinator = opening, workers, coordinator
        self._inspection, self._compactions = inspection, compactions
        self._before_answer = before_answer
        self._outages: dict[TopicPartition, Outage] = {}
        self._delays_ms: dict[TopicPartition, int] = {}
        """How late the last attempt to open an offline partition was made."""
        self.repairers = Role("repairer", "start the repair of a partition", children, actions, self._prepare)
        self._try_again = actions.define("open an offline partition again", self._on_try_again)

    # ---- causes

    def repair(self, token: int, partition: TopicPartition, cut: bool) -> None:
        """Take a partition out of service and repair it."""
        row = self._hosted.get(partition)
        if row is None or not row.table:
            self._answer(token, UnknownPartition.__name__, f"{partition} is not stored on this broker", {})
            return
        order = Outage(True, token, cut, was_offline=bool(row.offline))
        outage = self._outages.get(partition)
        if outage is None:
            logger.info("%s: out of service, to be repaired", partition)
            self._begin(partition, order, REASON)
        elif outage.repairs or outage.following is not None:
            self._answer(token, WriterGone.__name__, f"{partition} is being repaired already: try again", {})
        elif outage.opens:
            outage.following = order
        else:
            self._begin(partition, order, REASON)

    def on_gone(self, partition: TopicPartition, topic_id: str, reason: str) -> None:
        """Open a partition again whose files are not those that were opened."""
        row = self._hosted.get(partition)
        if row is not None and row.topic_id == topic_id and row.table and partition not in self._outages:
            logger.error("%s-%d is opened again: %s", *partition, reason)
            self._begin(partition, Outage(), reason)

    def on_back(self, partition: TopicPartition, topic_id: str) -> None:
        """Open an offline partition again: its files have changed."""
        row = self._hosted.get(partition)
        if row is not None and row.topic_id == topic_id:
            self._delays_ms.pop(partition, None)
            self._on_try_again(partition)

    def on_offline(self, partition: TopicPartition) -> None:
        """Note that a writer could not go on with a log: its disk may recover."""
        if partition in self._hosted:
            self._inspection.inspect(partition)
            self._want_again(partition)

    def _want_again(self, partition: TopicPartition) -> None:
        delay_ms = min(2 * self._delays_ms.get(partition, AGAIN_MS_MIN // 2), AGAIN_MS_MAX)
        self._delays_ms[partition] = delay_ms
        self._try_again.want(partition, delay_ms)

    def _on_try_again(self, partition: TopicPartition) -> None:
        row = self._hosted[partition]
        if row.offline and row.table and partition not in self._outages and partition not in self._hosted.opening:
            self._begin(partition, Outage(), row.offline)

    # ---- out of service

    def _begin(self, partition: TopicPartition, outage: Outage, reason: str) -> None:
        self._outages[partition] = outage
        self._hosted[partition].offline = reason
        self._inspection.leave(partition)
        self._compactions.drop(partition)
        self._writers.set_aside(partition)

    def drop(self, partition: TopicPartition) -> None:
        """Give up a deleted partition.  A repairer works by path, where a later topic of this name may have its log."""
        self.repairers.kill(partition)
        self._try_again.drop(partition)
        self._delays_ms.pop(partition, None)
        outage = self._outages.pop(partition, None)
        for order in () if outage is None else (outage, outage.following):
            if order is not None and order.repairs:
                self._answer(order.token, UnknownPartition.__name__, DELETED, {})

    def go_on(self) -> None:
        """Go on with the partitions that no process has open any more.  Called in every turn."""
        if self.repairers.stops:
            return
        for partition, outage in list(self._outages.items()):
            if not outage.opens and partition not in self._writers and partition not in self._hosted.opening:
                if not outage.repairs:
                    self._open(partition)
                elif self.repairers.all_gone:
                    self.repairers.start(partition)

    def _prepare(self, partition: TopicPartition) -> Process:
        row, outage = self._hosted[partition], self._outages[partition]
        job = RepairJob(partition, row.topic_id, row.table, outage.cut, outage.was_offline)
        run = partial(repair_log, self._data_dir, job)
        return Process(interruptible(run), "repairer", {LOCK}, works=True)

    def on_repaired(self, partition: TopicPartition, error: str, message: str, result: dict[str, Any]) -> None:
        """Note what the repairer has reported; it ends now."""
        outage = self._outages.get(partition)
        if outage is not None:  # not deleted meanwhile
            outage.error, outage.message, outage.result = error, message, result

    def on_repairer_end(self, child: Child) -> None:
        """Let the partition come back, however the repairer has ended."""
        self.repairers.on_end(child)
        partition: TopicPartition = child.key
        outage = self._outages.get(partition)
        if outage is None:  # deleted meanwhile
            return
        if not outage.error:
            self._hosted[partition].damaged = []
            self._workers.send_all(self._hosted[partition].damage_message(partition))
        self._open(partition)

    def _open(self, partition: TopicPartition) -> None:
        self._outages[partition].opens = True
        self._inspection.on_files(partition)
        self._opening.open_all([partition])

    def on_opened(self, outcomes: list[PartitionOutcome]) -> None:
        """Answer the orders for partitions that an opener has tried to open, and try again what is offline."""
        for partition, error, reason in outcomes:
            self._inspection.inspect(partition)
            if not error:
                self._delays_ms.pop(partition, None)
            elif error != OutOfResources.__name__:  # which is tried again elsewhere
                self._want_again(partition)
            outage = self._outages.get(partition)
            if outage is not None and outage.opens:
                if error and not outage.error:
                    outage.error, outage.message = error, f"repaired, but it does not open: {reason}"
                self._end(partition)

    def _end(self, partition: TopicPartition) -> None:
        outage = self._outages.pop(partition)
        if outage.repairs:
            if outage.error:
                logger.error("%s-%d: not repaired: %s", *partition, outage.message)
            else:
                logger.info("%s-%d: repaired: %s", *partition, outage.message or outage.result)
            self._before_answer()
            self._answer(outage.token, outage.error, outage.message, outage.result)
        if outage.following is not None:
            self._begin(partition, outage.following, REASON)

    def _answer(self, token: int, error: str, message: str, result: dict[str, Any]) -> None:
        self._coordinator.send(RepairDone(token, error, message, result))


class RepairJob(NamedTuple):
    """``was_offline``: it was not served before the order either, so a sound log needs no more than to be opened."""

    partition: TopicPartition
    topic_id: str
    table_name: str
    cut: bool
    was_offline: bool


def repair_log(data_dir: Path, job: RepairJob, control: Channel) -> int:
    """Repair the log and report what was done."""
    with memory.attach(job.table_name) as mapped, memoryview(mapped) as view, view.cast("Q") as cells:
        table = SegmentTable(cells)
        table.set_state(OFFLINE)
        known_end = max(table.high_watermark, table.log_end_offset)
    path = partition_directory.directory_of(data_dir, *job.partition)
    try:
        control.send(LogRepaired(job.partition, "", "", _repair(path, job, known_end)))
    except ApplianceError as error:
        control.send(LogRepaired(job.partition, type(error).__name__, str(error), {}))
    except OSError as error:
        fault = disk_fault(error, path)
        control.send(LogRepaired(job.partition, type(fault).__name__, str(fault), {}))
    return 0


def _repair(path: Path, job: RepairJob, known_end: int) -> dict[str, Any]:
    from ...log.repair import Repaired, begin_again, repair

    if loss_of(path):
        repaired = begin_again(path, job.topic_id, known_end, wall_ms())
    else:
        try:
            repaired = repair(path, cut=job.cut)
        except InvalidRequest:
            if not job.was_offline:
                raise
            point = Point.read(path)
            repaired = Repaired([f"{path}: is sound, and opened again"], point.start or 0, point.flushed, 0, 0)
    for action in repaired.actions:
        logger.warning("repair: %s", action)
    actions_left = len(repaired.actions) - ACTIONS_MAX
    rest = [f"and {actions_left} more: see the journal"] if actions_left > 0 else []
    shown = [*repaired.actions[:ACTIONS_MAX], *rest]
    return repaired._replace(actions=shown)._asdict()
