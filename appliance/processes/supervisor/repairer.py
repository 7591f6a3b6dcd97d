"""The repairer repairs the log of one partition that no other process writes, and exits (:mod:`.repairs`)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

from ...errors import ApplianceError, disk_fault
from ...log import partition_directory
from ...names import TopicPartition
from ...partition_states import OFFLINE
from ...shared import memory
from ...shared.table import SegmentTable
from ..child import become_child
from ..control import Channel

logger = logging.getLogger(__name__)

ACTIONS_MAX: Final = 200
"""Actions that are reported; all are logged."""


def run(
    data_dir: Path, partition: TopicPartition, table_name: str, cut: bool, control: Channel, supervisor_pid: int
) -> int:
    """Repair the log and report ``["repaired", topic, partition, error, message, result]``."""
    become_child("repairer", supervisor_pid)
    with memory.attach(table_name) as mapped, memoryview(mapped) as view, view.cast("Q") as cells:
        SegmentTable(cells).set_state(OFFLINE)
    path = partition_directory.directory_of(data_dir, *partition)
    try:
        control.send(["repaired", *partition, "", "", _repair(path, cut)])
    except ApplianceError as error:
        control.send(["repaired", *partition, type(error).__name__, str(error), {}])
    except OSError as error:
        fault = disk_fault(error, path)
        control.send(["repaired", *partition, type(fault).__name__, str(fault), {}])
    return 0


def _repair(path: Path, cut: bool) -> dict[str, Any]:
    from ...log.repair import repair

    repaired = repair(path, cut=cut)
    for action in repaired.actions:
        logger.warning("repair: %s", action)
    left = len(repaired.actions) - ACTIONS_MAX
    shown = [*repaired.actions[:ACTIONS_MAX], *([f"and {left} more: see the journal"] if left > 0 else [])]
    return repaired._replace(actions=shown)._asdict()
