"""Runs the fetching thread of a group consumer, which fetches the owned partitions and no others."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from ..errors import ApplianceError
from .cluster_client import Cluster
from .fetcher import Fetcher
from .streams import OwnedPartition, OwnedPartitions

FETCH_WAIT_S: Final = 0.5
RETRY_S: Final = 0.1


class NewlyOwned(NamedTuple):
    """A partition that is owned now.  ``stored``: its committed offset; None: it begins at the consumer's ``start``.

    ``goes_on``: it has begun before, and is read from ``stored`` on, whatever is committed.
    """

    owned: OwnedPartition
    stored: int | None
    goes_on: bool = False


class GroupFetching:
    """Fetches.  ``start``: the time (or EARLIEST, LATEST) at which partitions without a committed offset begin.

    ``stable``: the committed offsets of partitions, once no transaction may change them, or None: those that are stored
    may be used (KIP-447).

    The membership thread calls :meth:`begin` and :meth:`drop`; :meth:`run` is the fetching thread.
    """

    def __init__(
        self,
        cluster: Cluster,
        fetcher: Fetcher,
        owned: OwnedPartitions,
        start: int,
        closing: threading.Event,
        stable: Callable[[Sequence[tuple[str, int]]], Mapping[tuple[str, int], int]] | None,
    ) -> None:
        self._cluster = cluster
        self._fetcher = fetcher
        self._owned = owned
        self._start = start
        self._stable = stable
        self._closing = closing
        self._changes: deque[Callable[[], None]] = deque()
        self._waiting: list[NewlyOwned] = []  # not begun yet

    def begin(self, partitions: Sequence[NewlyOwned]) -> None:
        """Start to fetch these partitions."""
        self._change(lambda: self._waiting.extend(partitions))

    def restart(self, partitions: Sequence[NewlyOwned]) -> None:
        """Fetch these partitions anew."""

        def change() -> None:
            for newly_owned in partitions:
                self._fetcher.remove_partition(newly_owned.owned.topic_partition)
            self._waiting.extend(partitions)

        self._change(change)

    def stop(self, parts: Sequence[tuple[str, int]]) -> None:
        """Stop fetching these partitions, which stay ours."""

        def change() -> None:
            for part in parts:
                self._fetcher.remove_partition(part)

        self._change(change)

    def drop(self, revoked: Sequence[OwnedPartition]) -> None:
        """Stop fetching these partitions."""
        self._change(lambda: self._remove(revoked))

    def _change(self, change: Callable[[], None]) -> None:
        self._changes.append(change)
        if not self._closing.is_set():
            self._fetcher.wake()

    def run(self) -> None:
        troubles = self._fetcher.troubles
        while not self._closing.is_set():
            while self._changes:
                self._changes.popleft()()
            try:
                self._begin_waiting()
                self._owned.put_chunks(self._fetcher.poll(FETCH_WAIT_S))
                troubles.note_progress("fetching")
            except ApplianceError as error:
                # The next rebalance removes a topic that is gone; everything else passes.
                troubles.note_trouble("fetching", error)
                self._closing.wait(FETCH_WAIT_S)

    def _remove(self, revoked: Sequence[OwnedPartition]) -> None:
        for partition in revoked:
            if partition.topic_partition not in self._owned.partitions:
                self._fetcher.remove_partition(partition.topic_partition)

    def _begin_waiting(self) -> None:
        """Fetch the partitions that wait, from their committed offsets, or from ``start``."""
        troubles = self._fetcher.troubles
        for newly_owned in self._waiting:
            if newly_owned.owned.revoked:
                troubles.forget(newly_owned.owned.topic_partition)
        self._waiting = [newly_owned for newly_owned in self._waiting if not newly_owned.owned.revoked]
        if not self._waiting:
            return
        try:
            self._cluster.refresh({newly_owned.owned.topic_partition[0] for newly_owned in self._waiting})
            self._read_stable()
        except ApplianceError as error:
            troubles.note_trouble("metadata", error)
            self._closing.wait(FETCH_WAIT_S)
            return
        unknown = [newly_owned.owned.topic_partition for newly_owned in self._waiting if newly_owned.stored is None]
        starts, failed = self._cluster.try_offsets(dict.fromkeys(unknown, self._start))
        for partition, stored, goes_on in self._waiting:
            part = partition.topic_partition
            if part in failed:
                troubles.note_trouble(part, failed[part])
                continue
            offset = starts[part] if stored is None else stored
            if self._note_start(partition, offset, stored, goes_on):
                troubles.note_progress(part)
                self._fetcher.seek(part, offset)
        if failed:
            self._closing.wait(RETRY_S)
        self._waiting = [newly_owned for newly_owned in self._waiting if newly_owned.owned.topic_partition in failed]

    def _read_stable(self) -> None:
        """Begin where the last transaction ended: what was stored when a partition was gained may be older.

        Raises:
            UnstableOffsets: wait for the end of a transaction.
        """
        if self._stable is not None:
            stable = self._stable(
                [newly_owned.owned.topic_partition for newly_owned in self._waiting if not newly_owned.goes_on]
            )
            self._waiting = [
                newly_owned
                if newly_owned.goes_on
                else newly_owned._replace(stored=stable.get(newly_owned.owned.topic_partition, newly_owned.stored))
                for newly_owned in self._waiting
            ]

    def _note_start(self, partition: OwnedPartition, offset: int, stored: int | None, goes_on: bool) -> bool:
        """Store the partition's first offset.  False if it was revoked meanwhile."""
        with self._owned.changed:
            if partition.revoked:
                return False
            partition.fetching = True
            if goes_on:
                return True
            partition.begun = offset
            if stored is None:
                # To be committed although nothing was read: the next owner must not start later than we did.
                partition.handed_out = partition.processed = offset
            else:
                partition.committed = offset
            return True
