"""Removes partitions that the coordinator has ordered to delete, and survives a crash of any process in between.

A *remover* frees the names of partitions, a *cleaner* deletes their files behind it (both in :mod:`.remover`).

A removal is decided by the coordinator, durably, before it orders anything (``catalog.Removal``).  What a crash leaves
after each step, and who goes on (C the coordinator, S the supervisor, R the remover, L the cleaner):

    step                                         C dies    S dies, or power fails     R or L dies
    1 C notes the removal in the catalog         C'        C' at the next start
    2 S drops the table, retires the writer      C' (a)    C' at the next start (b)
    3 R renames the directory, syncs             C' (a)    C' at the next start (c)   C tries again (d)
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
a ZooKeeper that is away for 4, leaves it pending, as the answer to the client and the log say.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Final

from ...errors import WriterGone
from ...log import partition_directory
from ...names import TopicPartition
from . import remover
from .actions import Actions
from .children import LOCK, Children
from .hosted import Hosted
from .opening import Outcome
from .writers import Writers

CLEAN_AGAIN_MS: Final = 60_000
"""Delay of the next try to remove deleted files after one that failed."""


class Removals:
    """Partitions between an order to delete them and their free names, with the ids of their topics."""

    def __init__(self, data_dir: Path, hosted: Hosted, children: Children, actions: Actions, writers: Writers) -> None:
        self._data_dir = data_dir
        self._hosted, self._children, self._writers = hosted, children, writers
        self._pid = os.getpid()
        self._ids: dict[TopicPartition, str] = {}
        self._under_way: set[TopicPartition] = set()
        """What the remover has not reported yet."""
        self._removes = self._cleans = False
        """Whether there is a remover, a cleaner."""
        self._start_remover = actions.define("start removers", self._fork_remover)
        self._start_cleaner = actions.define("delete the files of deleted topics", lambda _: self._clean())

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._ids

    def id_of(self, partition: TopicPartition) -> str:
        """The id of the topic that is being removed under this name, "" when none is."""
        return self._ids.get(partition, "")

    # ---- freeing names

    def add(self, partition: TopicPartition, topic_id: str) -> None:
        """Have it removed once its writer has ended; its table has been dropped."""
        assert self._ids.get(partition, topic_id) == topic_id
        self._ids[partition] = topic_id

    def start_remover(self) -> None:
        """Free the names of all partitions that nobody has open any more, by one remover at a time.

        Called in every turn.
        """
        if self._removes or not self._ids:
            return
        ready = {
            partition: topic_id
            for partition, topic_id in self._ids.items()
            if partition not in self._writers and partition not in self._hosted.opening
        }
        if ready:
            self._under_way = set(ready)
            self._removes = True
            self._start_remover.want(tuple(ready.items()))

    def _fork_remover(self, ids: tuple[tuple[TopicPartition, str], ...]) -> None:
        run = partial(remover.remove, self._data_dir, dict(ids), supervisor_pid=self._pid)
        partitions = tuple(partition for partition, _ in ids)
        self._children.fork("remover", partitions, lambda channel, _: run(channel), {LOCK}, work=True)

    def on_removed(self, outcomes: Iterable[Outcome]) -> None:
        for partition, *_ in outcomes:
            self._under_way.discard(partition)
            self._ids.pop(partition, None)
            self._children.restarts.forget("writer", partition)

    def on_remover_end(self) -> list[Outcome]:
        """Returns the outcomes that a killed remover has not reported; what it has set aside is to be deleted."""
        self._removes = False
        interrupted = sorted(self._under_way)
        outcomes = [(partition, WriterGone.__name__, "removing it was interrupted") for partition in interrupted]
        self.on_removed(outcomes)
        self.clean()
        return outcomes

    # ---- deleting files

    def clean(self, delay_ms: int = 0) -> None:
        """Delete what has been set aside, now or after a delay."""
        self._start_cleaner.want(delay_ms=delay_ms)

    def _clean(self) -> None:
        """Start a cleaner.  There is one at a time; another one follows for what comes meanwhile."""
        if self._cleans or self._children.stopping:
            return
        directories = partition_directory.deleted(self._data_dir)
        if directories:
            run = partial(remover.clean, directories, self._pid)
            self._children.fork("cleaner", 0, lambda *_: run(), work=True)
            self._cleans = True

    def on_cleaner_end(self, status: int) -> None:
        self._cleans = False
        self.clean(CLEAN_AGAIN_MS if status else 0)
