"""The remover, which frees the names of deleted partitions, and the cleaner, which deletes their files.

:mod:`.removal` explains why there are two, and what follows when either dies.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ...errors import ApplianceError, disk_fault
from ...log import partition_directory
from ...log.files import sync_directory
from ...names import TopicPartition
from ..child import become_child
from ..control import Channel
from ..messages import Outcome, PartitionsRemoved

logger = logging.getLogger(__name__)

ROWS_PER_MESSAGE: Final = 50


def remove(data_dir: Path, partitions: dict[TopicPartition, str], control: Channel, supervisor_pid: int) -> int:
    """The remover: free the names of partitions whose writers have ended, and report like an opener."""
    become_child("remover", supervisor_pid)
    outcomes: list[Outcome] = [
        (partition, *_set_aside(data_dir, partition, topic_id)) for partition, topic_id in partitions.items()
    ]
    try:
        sync_directory(data_dir)
    except OSError as error:
        fault = disk_fault(error, data_dir)
        outcomes = [(partition, type(fault).__name__, str(fault)) for partition, *_ in outcomes]
    for start in range(0, len(outcomes), ROWS_PER_MESSAGE):
        control.send(PartitionsRemoved(outcomes[start : start + ROWS_PER_MESSAGE]))
    return 0


def _set_aside(data_dir: Path, partition: TopicPartition, topic_id: str) -> tuple[str, str]:
    try:
        partition_directory.set_aside(data_dir, *partition, topic_id)
    except OSError as error:
        fault = disk_fault(error, partition_directory.directory_of(data_dir, *partition))
        return type(fault).__name__, str(fault)
    except ApplianceError as error:
        return type(error).__name__, str(error)
    return "", ""


def clean(directories: Sequence[Path], supervisor_pid: int) -> int:
    """The cleaner: delete the directories of removed partitions; return 1 when some files are left."""
    become_child("cleaner", supervisor_pid)
    status = 0
    for directory in directories:
        try:
            partition_directory.discard(directory)
        except OSError as error:
            logger.error("a deleted partition still takes room: %s: %s", error.filename or directory, error.strerror)
            status = 1
    return status
