"""The repairer repairs the log of one partition that no other process writes, and exits (:mod:`.outages`)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...errors import ApplianceError, InvalidRequest, disk_fault
from ...log import partition_directory
from ...log.recovery import Point, loss_of
from ...names import TopicPartition
from ...partition_states import OFFLINE
from ...shared import memory
from ...shared.table import SegmentTable
from ..child import become_child
from ..clock import wall_ms
from ..control import Channel
from ..messages import LogRepaired

logger = logging.getLogger(__name__)

ACTIONS_MAX: Final = 200
"""Actions that are reported; all are logged."""


class Job(NamedTuple):
    """``was_offline``: it was not served before the order either, so a sound log needs no more than to be opened."""

    partition: TopicPartition
    topic_id: str
    table_name: str
    cut: bool
    was_offline: bool


def run(data_dir: Path, job: Job, control: Channel, supervisor_pid: int) -> int:
    """Repair the log and report what was done."""
    become_child("repairer", supervisor_pid)
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


def _repair(path: Path, job: Job, known_end: int) -> dict[str, Any]:
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
    left = len(repaired.actions) - ACTIONS_MAX
    shown = [*repaired.actions[:ACTIONS_MAX], *([f"and {left} more: see the journal"] if left > 0 else [])]
    return repaired._replace(actions=shown)._asdict()
