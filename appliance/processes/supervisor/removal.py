"""Removing partitions: which are on their way out, the remover that frees their names, the cleaner behind it.

A removal is decided by the coordinator, durably, before it orders anything (``catalog.Removal``).  What a crash leaves
after each step, and who goes on (C the coordinator, S the supervisor, R the remover, L the cleaner):

    step                                         C dies    S dies, or power fails     R or L dies
    1 C notes the removal in the catalog         C'        C' at the next start
    2 S drops the table, retires the writer      C' (a)    C' at the next start (b)
    3 R renames the directory, syncs             C' (a)    C' at the next start (c)   C is told, tries again (d)
    4 C takes registration and positions away    C'        C' at the next start (e)
    5 C takes the removal out of the catalog:    -         C' at the next start (e)
      the name is free
    6 L deletes the files                        -         L' at the next start       L', later

    (a) S goes on by itself and answers an order of a dead coordinator to nobody; C' orders the same again.  An order
        for what is being removed joins the removal under way, one for what is gone is done at once: there is one
        remover at a time, and it looks at the id of the topic in the directory.  So no order and no remover of an
        earlier topic ever touches a later one of the same name.
    (b) The next start does not open what the catalog does not name; writers of the killed supervisor have ended,
        since they share its lock.
    (c) The directory has its old name or the new one.  Under the old one step 3 is repeated, under the new one
        there is nothing left to do.
    (d) Whoever asked for the deletion is answered that it goes on; C orders again within ``disk.check_ms``.
    (e) Both are repeated; neither touches a later topic of the name, since both compare the id.

A refused step 1 leaves the topic whole.  After it the deletion is decided: a disk that refuses step 3 or 5, or
a ZooKeeper that is away for 4, leaves it pending, which the one who asked and the log are told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ...errors import ApplianceError, disk_fault
from ...log import partition_directory
from ...log.files import sync_directory
from ..child import settle
from ..control import Channel

logger = logging.getLogger(__name__)

ROWS_PER_MESSAGE: Final = 50

Key = tuple[str, int]


class Removals:
    """Partitions between an order to delete them and their free names, with the ids of their topics."""

    def __init__(self) -> None:
        self._ids: dict[Key, str] = {}
        self._under_way: set[Key] = set()

    def __contains__(self, key: Key) -> bool:
        return key in self._ids

    def id_of(self, key: Key) -> str:
        """The id of the topic that is being removed under this name, "" when none is."""
        return self._ids.get(key, "")

    def add(self, key: Key, topic_id: str) -> None:
        assert self._ids.get(key, topic_id) == topic_id
        self._ids[key] = topic_id

    def begin(self, is_open: Callable[[Key], bool]) -> dict[Key, str]:
        """What one remover is to do now: all that nobody has open any more; nothing while there is a remover."""
        if not self._under_way:
            self._under_way = {key for key in self._ids if not is_open(key)}
            return {key: self._ids[key] for key in self._under_way}
        return {}

    def finish(self, key: Key) -> None:
        self._under_way.discard(key)
        self._ids.pop(key, None)

    @property
    def unreported(self) -> list[Key]:
        return sorted(self._under_way)


def remove(data_dir: Path, partitions: dict[Key, str], control: Channel, supervisor_pid: int) -> int:
    """The remover: free the names of partitions whose writers have ended, and report like an opener."""
    settle("remover", supervisor_pid)
    rows = [[*key, *_set_aside(data_dir, key, topic_id)] for key, topic_id in partitions.items()]
    try:
        sync_directory(data_dir)
    except OSError as error:
        fault = disk_fault(error, data_dir)
        rows = [[*row[:2], type(fault).__name__, str(fault)] for row in rows]
    for start in range(0, len(rows), ROWS_PER_MESSAGE):
        control.send(["removed", rows[start : start + ROWS_PER_MESSAGE]])
    return 0


def _set_aside(data_dir: Path, key: Key, topic_id: str) -> tuple[str, str]:
    try:
        partition_directory.set_aside(data_dir, *key, topic_id)
    except OSError as error:
        fault = disk_fault(error, partition_directory.directory_of(data_dir, *key))
        return type(fault).__name__, str(fault)
    except ApplianceError as error:
        return type(error).__name__, str(error)
    return "", ""


def clean(directories: Sequence[Path], supervisor_pid: int) -> int:
    """The cleaner: delete the files of what has been set aside; 1 when some are still there."""
    settle("cleaner", supervisor_pid)
    status = 0
    for directory in directories:
        try:
            partition_directory.discard(directory)
        except OSError as error:
            logger.error("a deleted partition still takes room: %s: %s", error.filename or directory, error.strerror)
            status = 1
    return status
