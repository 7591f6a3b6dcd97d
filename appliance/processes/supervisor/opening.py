"""Gives each partition its segment table in /dev/shm, lets openers open it, and announces it to the other processes.

Openers (:func:`open_partitions`) are children that open many partitions each, and exit; there are at most as many at a
time as cores.  So a thousand quiet partitions cost a thousand tables and not a thousand processes.  A cleanly stopped
log is published from its marker and file names; any other log is recovered.  Failed attempts are repeated::

    cause                                meanwhile the partition is              repeated
    no room in /dev/shm for its table    offline, in a table that all of         as an action (:mod:`.actions`)
                                         these share
    no room on the disk, no descriptors  offline, in its own table               as an action
    its opener was killed                as it was                               at once, ATTEMPTS_MAX attempts in all
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal, NamedTuple, assert_never

from ...clock import wall_ms
from ...config import Config
from ...errors import ApplianceError, OutOfResources, StorageFault, is_lack
from ...log import Log, check_kept, partition_directory, peek
from ...machine_limits import ADVICE, MAPS, limit_of, partitions_mappable
from ...names import TopicPartition
from ...partition_states import OFFLINE, ONLINE
from ...shared import memory
from ...shared.table import SEGMENTS_MAX, TABLE_BYTES, SegmentTable
from ..control import Channel
from ..messages import (
    OUTCOMES_PER_MESSAGE,
    Lacking,
    PartitionDropped,
    PartitionOutcome,
    PartitionsOpened,
    PartitionTable,
    UnknownMessage,
)
from ..writer.producers import Producers
from .actions import REFUSALS, UNDER_WAY, Actions, reason_of
from .children import LOCK, Children
from .coordinator_child import CoordinatorChild
from .fork import Child
from .hosted import Hosted, HostedPartition
from .inspection import Inspection
from .roles import Process, Role, interruptible
from .workers import Workers

logger = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 3
"""Attempts to open a partition whose openers are killed."""


@dataclass(frozen=True, slots=True)
class OpenerBatch:
    """The partitions that one opener opens; ``number`` tells it from an earlier one for the same partitions."""

    number: int
    partitions: tuple[TopicPartition, ...]

    def __str__(self) -> str:
        (topic, partition), *others = self.partitions
        return f"{topic}-{partition}" + (f" and {len(others)} more" if others else "")


class Opening:
    """Tables and openers of the partitions of ``hosted``."""

    def __init__(
        self,
        config: Config,
        data_dir: Path,
        instance: str,
        hosted: Hosted,
        children: Children,
        actions: Actions,
        workers: Workers,
        coordinator: CoordinatorChild,
        inspection: Inspection,
    ) -> None:
        self._config, self._data_dir, self._instance = config, data_dir, instance
        self._hosted = hosted
        self._workers, self._coordinator, self._inspection = workers, coordinator, inspection
        self._unplaced: set[TopicPartition] = set()
        """Partitions without a table of their own."""
        self._unshown: set[TopicPartition] = set()
        """New partitions: workers get the name of the table once it has been opened."""
        self._unmade: set[TopicPartition] = set()
        """Those of them that have never been opened: only their directories are made."""
        self._starting = False
        """Not all partitions of the catalog have been tried yet."""
        self._offline_table = ""
        self._to_open: list[TopicPartition] = []
        self._batches = 0
        self._opened_by: dict[TopicPartition, OpenerBatch] = {}
        """Which opener is to report a partition."""
        self._lacking: set[TopicPartition] = set()
        """Partitions that could not be opened for lack of disk space or descriptors."""
        self._limit = ""
        """The limit of the machine that the last of these attempts has reached."""
        self._place_all = actions.define("place partitions in /dev/shm", lambda _: self._place())
        self._open_again = actions.define("open partitions", lambda _: self._reopen())
        self.openers = Role("opener", "start openers", children, actions, self._prepare_opener)
        self._show_again = actions.define("show partitions", lambda where: self._show_to(*where))

    # ---- tables

    def start(self) -> None:
        """Place and open the partitions of the catalog."""
        self._unplaced.update(self._hosted)
        self._starting = bool(self._unplaced)
        if self._unplaced:
            self._place_all.want()

    def make_offline_table(self) -> None:
        """Make the table that shows partitions without one of their own as offline.

        Raises:
            OutOfResources: there is no room in /dev/shm.
        """
        self._offline_table, mapped = memory.create(self._instance, "offline", TABLE_BYTES)
        with mapped, memoryview(mapped) as view, view.cast("Q") as cells:
            SegmentTable(cells).set_state(OFFLINE)

    def _make_table(self) -> str:
        name, mapped = memory.create(self._instance, "table", TABLE_BYTES)
        mapped.close()
        return name

    def _place(self) -> None:
        """Give every partition a table, or as many as there is room for; the others are offline until there is more.

        Raises:
            OutOfResources: there is no room for all.
        """
        placed: list[TopicPartition] = []
        try:
            for partition in sorted(self._unplaced):
                self._hosted[partition].table = self._make_table()
                placed.append(partition)
        except REFUSALS as error:
            unplaced = len(self._unplaced) - len(placed)
            raise OutOfResources(f"{unplaced} partitions are offline: {reason_of(error)}") from error
        finally:
            self._unplaced -= set(placed)
            for partition in placed:
                self._hosted[partition].offline = ""
                self._workers.send_all(PartitionTable(partition, self._hosted[partition].table))
            for partition in self._unplaced:
                self._show_as_offline(partition)
            if placed:
                self.open_all(placed)

    def _show_as_offline(self, partition: TopicPartition) -> None:
        row = self._hosted[partition]
        row.offline = "no room for its table in /dev/shm: enlarge it, or delete topics"
        if self._offline_table and not row.table:
            row.table = self._offline_table
            self._send_all(PartitionTable(partition, row.table))

    def add_partition(self, partition: TopicPartition, topic_id: str, settings: dict[str, str], new: bool) -> None:
        """Add a partition: give it a table, and let an opener open it, or make it if it is ``new``.

        Raises:
            OutOfResources: there is no room in /dev/shm, or no process could map its table; nothing is left of the
                partition.
        """
        if (mappable := partitions_mappable()) is not None and len(self._hosted) >= mappable:
            text = f"a process can map the tables of {mappable:,} partitions, which there are already ({MAPS}): "
            raise OutOfResources(text + ADVICE[MAPS])
        table = self._make_table()
        row = self._hosted[partition] = HostedPartition(topic_id, settings)
        row.table = table
        self._unshown.add(partition)
        if new:
            self._unmade.add(partition)
        self.open_all([partition])
        self._inspection.inspect(partition)

    def drop(self, partition: TopicPartition) -> None:
        """Remove a partition and its table; the next attempt to place other partitions finds the freed room."""
        row = self._hosted.pop(partition, None)
        if row is not None and row.table:
            self._send_all(PartitionDropped(partition))
            if row.table != self._offline_table:
                memory.unlink(row.table)
        self._inspection.drop(partition)
        for waiting in (self._unplaced, self._unshown, self._unmade, self._lacking):
            waiting.discard(partition)
        if not self._unplaced:
            self._place_all.drop()

    def _send_all(self, message: PartitionTable | PartitionDropped) -> None:
        self._workers.send_all(message)
        self._coordinator.send(message)

    def show_again(self, child: Child, partition: TopicPartition, delay_ms: int) -> None:
        """Send the name of a table again after a delay, because a worker or the coordinator could not map it.

        Raises:
            UnknownMessage: it is neither.
        """
        match child.role:
            case "network" | "coordinator":
                self._show_again.want((child.role, child.key, partition), delay_ms)
            case role:
                raise UnknownMessage(f"a {role} is shown no table")

    def _show_to(self, role: Literal["network", "coordinator"], index: int, partition: TopicPartition) -> None:
        row = self._hosted.get(partition)
        if row is None or not row.table:
            return
        message = PartitionTable(partition, row.table)
        match role:
            case "network":
                self._workers.send(index, message)
            case "coordinator":
                self._coordinator.send(message)
            case _:
                assert_never(role)

    # ---- openers

    def reload(self, config: Config) -> None:
        """Start later openers with another configuration."""
        self._config = config

    def open_all(self, partitions: list[TopicPartition]) -> None:
        """Note partitions to be opened at the end of this turn, together with all others."""
        for partition in partitions:
            self._hosted.opening[partition] = self._hosted.opening.get(partition, 0) + 1
        self._to_open += partitions

    def start_openers(self) -> None:
        """Divide the partitions to be opened among openers, at most one per core.  Called in every turn."""
        partitions, self._to_open = self._to_open, []
        count = min(os.cpu_count() or 1, len(partitions))
        for index in range(count):
            self._batches += 1
            self.openers.start(OpenerBatch(self._batches, tuple(partitions[index::count])))

    def _prepare_opener(self, batch: OpenerBatch) -> Process | None:
        jobs = []
        for partition in batch.partitions:
            row = self._hosted.get(partition)
            if row is not None and row.table:
                self._opened_by[partition] = batch
                new = partition in self._unmade
                jobs.append(OpeningJob(*partition, row.topic_id, row.settings, row.table, new, row.offline))
        for partition in set(batch.partitions) - self._hosted.keys():  # deleted while the machine refused the opener
            self._hosted.opening.pop(partition, None)
        run = partial(open_partitions, self._config, self._data_dir, jobs)
        return Process(interruptible(run), "opener", {LOCK}, works=True) if jobs else None

    def on_opened(self, outcomes: Sequence[PartitionOutcome]) -> list[PartitionOutcome]:
        """Take the outcomes of an opener; return them without those of partitions that were deleted meanwhile."""
        hosted_outcomes: list[PartitionOutcome] = []
        for partition, error, reason in outcomes:
            self._hosted.opening.pop(partition, None)
            self._opened_by.pop(partition, None)
            row = self._hosted.get(partition)
            if row is None:
                continue
            row.offline = reason if error else ""
            if not error:
                self._unmade.discard(partition)
            if error == OutOfResources.__name__:
                self._lacking.add(partition)
            if partition in self._unshown:
                self._unshown.discard(partition)
                self._workers.send_all(PartitionTable(partition, row.table))
            self._coordinator.send(PartitionTable(partition, row.table))
            hosted_outcomes.append((partition, error, reason))
        if not self._hosted.opening:
            self._report_lacking()
            if self._starting:
                self._starting = False
                self._coordinator.send_listeners()
        return hosted_outcomes

    def on_lacking(self, limit: str) -> None:
        """Note the limit of the machine that an opener has reached; its outcomes follow."""
        self._limit = limit

    def on_opener_end(self, child: Child) -> list[PartitionOutcome]:
        """Let another opener open the partitions that a killed one has not reported.

        Returns the outcomes of partitions that have used ATTEMPTS_MAX attempts.
        """
        self.openers.on_end(child)
        partitions = [partition for partition in child.key.partitions if self._opened_by.get(partition) == child.key]
        again = [partition for partition in partitions if self._hosted.opening[partition] < ATTEMPTS_MAX]
        given_up = [
            (partition, StorageFault.__name__, "opening it was interrupted")
            for partition in partitions
            if partition not in again
        ]
        if again and not self.openers.stops:
            self.open_all(again)
        return self.on_opened(given_up) if given_up else []

    def _reopen(self) -> object:
        """Repeat the opening of partitions that failed for a lack."""
        lacking, self._lacking = self._lacking, set()
        if not lacking:
            return None
        self.open_all(sorted(lacking))
        return UNDER_WAY

    def _report_lacking(self) -> None:
        if self._lacking:
            self._open_again.refuse("", self._hosted[min(self._lacking)].offline, self._limit)
        else:
            self._open_again.done()


class OpeningJob(NamedTuple):
    topic: str
    partition: int
    topic_id: str
    settings: dict[str, str]
    table_name: str
    new: bool
    """Nobody has opened it before: its directory may have to be made."""
    known_fault: str
    """Why it could not be opened before: is not logged again."""


def open_partitions(config: Config, data_dir: Path, jobs: Sequence[OpeningJob], control: Channel) -> int:
    """Open every partition and report what has become of it.

    The error is OutOfResources when a later attempt may succeed, for example after a full disk.
    """
    outcomes: list[PartitionOutcome] = []
    for job in jobs:
        partition = TopicPartition(job.topic, job.partition)
        try:
            open_partition(config, data_dir, job)
            outcomes.append((partition, "", ""))
        except (ApplianceError, OSError) as error:
            kind = OutOfResources if is_lack(error) else StorageFault
            if kind is OutOfResources:
                control.send(Lacking(str(error), limit_of(error)))
            elif str(error) != job.known_fault:  # the supervisor logs a lack, and tries again
                logger.error("%s-%d is offline: %s", job.topic, job.partition, error)
            outcomes.append((partition, kind.__name__, str(error)))
        if len(outcomes) >= OUTCOMES_PER_MESSAGE:
            control.send(PartitionsOpened(outcomes))
            outcomes = []
    control.send(PartitionsOpened(outcomes))
    return 0


def open_partition(config: Config, data_dir: Path, job: OpeningJob) -> None:
    """Publish one partition in its table; its state becomes ONLINE, or OFFLINE when its log cannot be opened.

    Raises:
        ApplianceError, OSError: the reason why it is offline.
    """
    path = partition_directory.directory_of(data_dir, job.topic, job.partition)
    with memory.attach(job.table_name) as mapped, memoryview(mapped) as view, view.cast("Q") as cells:
        table = SegmentTable(cells)
        try:
            partition_directory.take_back(data_dir, job.topic, job.partition, job.topic_id)
            if not job.new:
                check_kept(path)
            partition_directory.claim(path, job.topic_id)
            summary = peek(path)
            if summary is None:
                settings = config.topic_defaults.held_by(job.topic, job.settings)
                log = Log.open(path, settings, wall_ms, SEGMENTS_MAX)
                Producers(log, config.producers.ids_max)  # know which transactions are open
                log.close(clean=True)
                summary = log.summary
            table.publish(*summary)
            table.set_log_end_offset(summary.end)
        except (ApplianceError, OSError):
            table.set_state(OFFLINE)
            raise
        table.set_state(ONLINE)
