"""Removes partitions that the coordinator has ordered to delete; every step survives a crash of any process.

A *remover* frees the names of partitions (:func:`free_names`), then a *cleaner* deletes their files
(:func:`delete_files`), unless they are kept in the trash (``coordinator.trash``).  It is not Kafka's log cleaner, which
compacts topics: that is the compactor (:mod:`.compactions`).

The coordinator notes a removal durably before it orders anything (``catalog.Removal``).  The table shows who continues
after a crash at each step (C the coordinator, S the supervisor, R the remover, L the cleaner; C' and L' their
successors)::

    step                                         C dies    S dies, or power fails     R or L dies
    1 C notes the removal in the catalog         C'        C' at the next start
    2 S drops the table, retires the writer,     C' (a)    C' at the next start (b)
      kills who repairs or compacts the log
    3 when all who write to it have ended,       C' (a)    C' at the next start (c)   C tries again (d)
      R renames the directory, syncs
    4 C removes registration and offsets         C'        C' at the next start (e)
    5 C drops the removal from the catalog:      -         C' at the next start (e)
      the name is free
    6 L deletes the files, unless they are       -         L' at the next start       L', later
      kept in the trash

    (a) S continues by itself, and its answer to the dead coordinator is dropped; C' orders the same again.  An order
        for a partition that is being removed joins that removal, an order for one that is gone is done at once.  There
        is one remover at a time, and it checks the id of the topic in the directory.  So no order and no remover of an
        earlier topic ever changes a later one of the same name.
    (b) The next start opens only partitions that the catalog names; writers of the killed supervisor have ended,
        since they share its lock.
    (c) The directory has its old name or the new one.  With the old one step 3 is repeated, with the new one it is
        done already.
    (d) The client gets the answer that the deletion goes on; C orders again within ``disk.check_ms``.
    (e) Both are repeated; neither changes a later topic of that name, since both compare the id.

A refused step 1 leaves the topic whole.  After it the deletion is decided: a disk that refuses step 3 or 5, or
a ZooKeeper that is away for 4, leaves it pending, and the answer to the client and the log say so.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Final

from ...durable_files import sync_directory
from ...errors import ApplianceError, WriterGone, disk_fault
from ...log import partition_directory
from ...names import TopicPartition
from ..control import Channel
from ..messages import OUTCOMES_PER_MESSAGE, PartitionOutcome, PartitionsRemoved
from .actions import Actions
from .children import LOCK, Children
from .fork import Child
from .hosted import Hosted
from .roles import Process, Role, interruptible
from .writers import Writers

CLEAN_AGAIN_MS: Final = 60_000
"""Delay of the next cleaner after one that could not delete all files."""
logger = logging.getLogger(__name__)


class Removals:
    """Partitions between an order to delete them and their free names, with the ids of their topics."""

    def __init__(
        self,
        data_dir: Path,
        hosted: Hosted,
        children: Children,
        actions: Actions,
        writers: Writers,
        rewriters: Sequence[Role[TopicPartition]],
    ) -> None:
        """``rewriters``: whose children change files of one partition, as writers and openers do."""
        self._data_dir = data_dir
        self._hosted, self._children, self._writers, self._rewriters = hosted, children, writers, rewriters
        self._ids: dict[TopicPartition, str] = {}
        self._to_trash: set[TopicPartition] = set()
        """Those of them whose files are kept."""
        self._under_way: set[TopicPartition] = set()
        """Partitions that the remover has not reported yet."""
        self.removers = Role("remover", "start removers", children, actions, self._prepare_remover)
        self.cleaners = Role("cleaner", "delete the files of deleted topics", children, actions, self._prepare_cleaner)

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._ids

    def id_of(self, partition: TopicPartition) -> str:
        """The id of the topic that is being removed under this name, "" when none is."""
        return self._ids.get(partition, "")

    # ---- freeing names

    def remove_partition(self, partition: TopicPartition, topic_id: str, trash: bool = False) -> None:
        """Remove a partition once nobody writes to its files; its table has been dropped.  ``trash``: keep them."""
        assert self._ids.get(partition, topic_id) == topic_id
        self._ids[partition] = topic_id
        if trash:
            self._to_trash.add(partition)
        else:
            self._to_trash.discard(partition)

    def start_remover(self) -> None:
        """Start a remover for all partitions that no process writes to; one at a time.  Called in every turn."""
        if self.removers.stops or not self.removers.all_gone or not self._ids:
            return
        ready = [partition for partition in self._ids if not self._is_written(partition)]
        if ready:
            self._under_way = set(ready)
            self.removers.start(tuple(ready))

    def _is_written(self, partition: TopicPartition) -> bool:
        """Whether a process may write by the path of a partition, which a later topic of this name has, too."""
        is_open = partition in self._writers or partition in self._hosted.opening
        return is_open or any(partition in role for role in self._rewriters)

    def _prepare_remover(self, partitions: tuple[TopicPartition, ...]) -> Process:
        ids = {partition: self._ids[partition] for partition in partitions}
        run = partial(free_names, self._data_dir, ids, self._to_trash.intersection(partitions))
        return Process(interruptible(run), "remover", {LOCK}, works=True)

    def on_removed(self, outcomes: Iterable[PartitionOutcome]) -> None:
        for partition, *_ in outcomes:
            self._under_way.discard(partition)
            self._ids.pop(partition, None)
            self._to_trash.discard(partition)
            self._children.restarts.forget("writer", partition)

    def on_remover_end(self, child: Child) -> list[PartitionOutcome]:
        """Start a cleaner; return the outcomes of partitions that a killed remover has not reported."""
        self.removers.on_end(child)
        interrupted = sorted(self._under_way)
        outcomes = [(partition, WriterGone.__name__, "removing it was interrupted") for partition in interrupted]
        self.on_removed(outcomes)
        self.clean()
        return outcomes

    # ---- deleting files

    def clean(self, delay_ms: int = 0) -> None:
        """Delete the files of removed partitions, now or after a delay."""
        self.cleaners.start("", delay_ms)

    def _prepare_cleaner(self, _: str) -> Process | None:
        """A cleaner, if there is anything to delete; another one follows when it ends."""
        directories = partition_directory.deleted(self._data_dir)
        run = interruptible(lambda _: delete_files(directories))
        return Process(run, "cleaner", works=True) if directories else None

    def on_cleaner_end(self, child: Child, status: int | None) -> None:
        self.cleaners.on_end(child)
        self.clean(CLEAN_AGAIN_MS if status else 0)


def free_names(
    data_dir: Path,
    partitions: dict[TopicPartition, str],
    kept: Set[TopicPartition],
    control: Channel,
) -> int:
    """The remover: free the names of partitions whose writers have ended, and report like an opener.

    Args:
        kept: partitions whose files are not to be deleted.
    """
    outcomes: list[PartitionOutcome] = [
        (partition, *_set_aside(data_dir, partition, topic_id, partition in kept))
        for partition, topic_id in partitions.items()
    ]
    try:
        sync_directory(data_dir)
    except OSError as error:
        fault = disk_fault(error, data_dir)
        outcomes = [(partition, type(fault).__name__, str(fault)) for partition, *_ in outcomes]
    for start in range(0, len(outcomes), OUTCOMES_PER_MESSAGE):
        control.send(PartitionsRemoved(outcomes[start : start + OUTCOMES_PER_MESSAGE]))
    return 0


def _set_aside(data_dir: Path, partition: TopicPartition, topic_id: str, trash: bool) -> tuple[str, str]:
    try:
        partition_directory.set_aside(data_dir, *partition, topic_id, trash=trash)
    except OSError as error:
        fault = disk_fault(error, partition_directory.directory_of(data_dir, *partition))
        return type(fault).__name__, str(fault)
    except ApplianceError as error:
        return type(error).__name__, str(error)
    return "", ""


def delete_files(directories: Sequence[Path]) -> int:
    """The cleaner: delete the directories of removed partitions; return 1 when some files are left."""
    status = 0
    for directory in directories:
        try:
            partition_directory.discard(directory)
        except OSError as error:
            logger.error("a deleted partition still takes room: %s: %s", error.filename or directory, error.strerror)
            status = 1
    return status
