"""The opener opens partitions that have no writer, publishes them in their tables, and exits.

At start the partitions of a data directory are divided among a few openers, so that a thousand quiet partitions cost
a thousand tables and not a thousand processes.  A cleanly stopped log is published from its marker and file names; any
other log is recovered.  :mod:`.removal` is the counterpart.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ...config import Config, TopicSettings
from ...errors import ApplianceError, OutOfResources, StorageFault, is_lack
from ...log import Log, check_kept, partition_directory, peek
from ...machine_limits import limit_of
from ...names import TopicPartition
from ...partition_states import OFFLINE, ONLINE
from ...shared import memory
from ...shared.table import SEGMENTS_MAX, SegmentTable
from ..child import become_child
from ..clock import wall_ms
from ..control import Channel
from ..messages import Lacking, Outcome, PartitionsOpened

logger = logging.getLogger(__name__)

ROWS_PER_MESSAGE = 50


class Job(NamedTuple):
    topic: str
    partition: int
    topic_id: str
    settings: dict[str, str]
    table_name: str
    new: bool
    """Nobody has opened it before: its directory may have to be made."""
    known_fault: str
    """Why it could not be opened before: is not logged again."""


def run(config: Config, data_dir: Path, jobs: Sequence[Job], control: Channel, supervisor_pid: int) -> int:
    """Open every partition and report what has become of it.

    The error is OutOfResources when a later attempt may succeed, for example after a full disk.
    """
    become_child("opener", supervisor_pid)
    outcomes: list[Outcome] = []
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
        if len(outcomes) >= ROWS_PER_MESSAGE:
            control.send(PartitionsOpened(outcomes))
            outcomes = []
    control.send(PartitionsOpened(outcomes))
    return 0


def open_partition(config: Config, data_dir: Path, job: Job) -> None:
    """Publish one partition in its table; its state becomes ONLINE, or OFFLINE when its log cannot be opened.

    Raises:
        ApplianceError, OSError: the reason why it is offline.
    """
    path = partition_directory.directory_of(data_dir, job.topic, job.partition)
    with memory.attach(job.table_name) as mapped, memoryview(mapped) as view, view.cast("Q") as cells:
        table = SegmentTable(cells)
        try:
            if not job.new:
                check_kept(path)
            partition_directory.claim(path, job.topic_id)
            summary = peek(path)
            if summary is None:
                settings = TopicSettings.parse(job.settings, config.topics.defaults)
                log = Log.open(path, settings, wall_ms, SEGMENTS_MAX)
                log.close(clean=True)
                table.publish(log.bases, log.start, log.end_offset, log.records)
                table.set_log_end_offset(log.end_offset)
            else:
                table.publish(summary.bases, summary.start, summary.end, summary.records)
                table.set_log_end_offset(summary.end)
        except (ApplianceError, OSError):
            table.set_state(OFFLINE)
            raise
        table.set_state(ONLINE)
