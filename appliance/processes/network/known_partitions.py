"""The partitions that the supervisor has announced to a network worker: tables, files and links to their writers."""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ...clock import now_ms
from ...durable_files import File
from ...errors import StorageFault
from ...log import FileCache, LogReader
from ...log.files import offset_at
from ...log.partition_directory import topic_id_of
from ...machine_limits import open_files_max
from ...names import TopicPartition
from ...shared import memory
from ...shared.doorbell import slot_of
from ...shared.table import TABLE_BYTES, SegmentTable
from ...wire.requests import Fetch, FetchPart, FileRange, Offsets, Produce
from .wait_lists import WaitList
from .writer_link import WriterLink

SuspectTeller = Callable[[TopicPartition, int, int], None]

SUSPECT_MS: Final = 1_000
"""How often at most a worker reports that it cannot read a partition."""
OPEN_FILES_MAX: Final = 512
"""Segment files that a worker keeps open, where enough descriptors are granted."""
WRITER_SHARE: Final = 4
"""Once half of the arena is taken, at most a quarter of the arena waits for one writer."""


class WorkerPartition:
    """A partition in this worker: its table, its files, its writer, and the requests that wait at it.

    ``damaged``: ranges of offsets that are not served, ascending.
    """

    __slots__ = (
        *("_directory", "_suspect", "_suspected_ms", "_topic_id"),
        *("damaged", "key", "link", "reader", "table", "wait_list"),
    )

    def __init__(
        self,
        key: TopicPartition,
        table: SegmentTable,
        reader: LogReader,
        link: WriterLink,
        suspect: SuspectTeller,
        directory: Path,
    ) -> None:
        self.key = key
        self._directory, self._topic_id = directory, b""
        self._suspect, self._suspected_ms = suspect, -SUSPECT_MS
        self.table = table
        self.reader = reader
        self.link = link
        self.damaged: list[tuple[int, int]] = []
        self.wait_list = WaitList(table, slot_of(*key))

    @property
    def topic_id(self) -> bytes:
        """The id of the topic whose log this is, 16 bytes; b"": not known yet.  It is read when asked for."""
        if not self._topic_id:
            with suppress(StorageFault):
                self._topic_id = bytes.fromhex(topic_id_of(self._directory))
        return self._topic_id

    def suspect(self, start: int, stop: int) -> None:
        """Let the inspector look at offsets that cannot be read."""
        now = now_ms()
        if now - self._suspected_ms >= SUSPECT_MS:
            self._suspected_ms = now
            self._suspect(self.key, start, stop)

    def ask_for_flush(self, now: bool) -> None:
        """Ask the writer to flush messages above the high watermark: see :meth:`WriterLink.ask_for_flush`."""
        if (written := self.table.log_end_offset) > self.table.high_watermark:
            self.link.ask_for_flush(written, now)


class KnownPartitions:
    """All partitions of one worker, by topic and number.

    ``number``: the worker's.  ``changes``: another number when a partition was added or is gone.  ``arena_bytes``: the
    size of its arena; each writer may use a share of it.  ``suspect(key, start, stop)`` reports offsets that cannot be
    read.
    """

    def __init__(
        self, data_dir: Path, number: int, arena_bytes: int, epoll: select.epoll, suspect: SuspectTeller
    ) -> None:
        self._data_dir, self.number, self._epoll, self._suspect = data_dir, number, epoll, suspect
        self._in_hand_bytes_max = arena_bytes // WRITER_SHARE
        self._by_key: dict[tuple[str, int], WorkerPartition] = {}  # requests look up with plain tuples
        self.changes = 0
        self.open_files_max = open_files_max(OPEN_FILES_MAX)
        self.files = FileCache(self.open_files_max, waits=False)
        self.get = self._by_key.get

    def add_partition(self, key: TopicPartition, table_name: str) -> None:
        """Map the partition's table.

        Raises:
            FileNotFoundError: the partition was dropped meanwhile; that message follows.
            OSError: the machine has no memory or descriptor for it now.  Clients are told that it is being opened.
        """
        try:
            table = SegmentTable(memoryview(memory.attach(table_name)).cast("Q"))
        except FileNotFoundError:
            raise
        except OSError:
            if key not in self._by_key:
                self._put(key, SegmentTable(memoryview(bytearray(TABLE_BYTES)).cast("Q")))
            raise
        table.set_wait(self.number, 0)  # a killed worker may have left its cell set
        self._put(key, table)

    def _put(self, key: TopicPartition, table: SegmentTable) -> None:
        partition = self._by_key.get(key)
        if partition is not None:  # it has its own table now: nobody waits at the one that it had before
            partition.table = partition.wait_list.table = table
            return
        name = str(key)
        link = WriterLink(name, self._in_hand_bytes_max, self._epoll)
        directory = self._data_dir / name
        reader = LogReader(directory, self.files)
        self.changes += 1
        self._by_key[key] = WorkerPartition(key, table, reader, link, self._suspect, directory)

    def remove_partition(self, key: TopicPartition) -> WorkerPartition | None:
        """Forget a partition and its files: a new partition may get the same name."""
        partition = self._by_key.pop(key, None)
        if partition is not None:
            self.changes += 1
            partition.reader.forget()
        return partition

    def suspect_range(self, piece: FileRange) -> None:
        """Report a part of a segment file that could not be sent."""
        assert isinstance(piece.file, File)
        path = Path(piece.file.path)
        topic, _, number = path.parent.name.rpartition("-")
        partition, start = self.get((topic, int(number))), offset_at(path, piece.position)
        if partition is not None and start is not None:
            partition.suspect(start, start + piece.count)

    def partition_of(self, part: FetchPart) -> WorkerPartition | None:
        """The partition of a part; None: unknown, or that of another topic of this name."""
        partition = self.get((part.topic, part.partition))
        if part.topic_id and partition is not None and partition.topic_id != part.topic_id:
            return None
        return partition

    def partitions_of(self, request: Produce | Fetch | Offsets) -> list[WorkerPartition | None]:
        """The partition of each part of a request; None: unknown, or not for this client.

        Equal parts follow each other.
        """
        if type(request) is Fetch and request.session.by_id:
            return [
                None if index in request.denied else self.partition_of(part) for index, part in enumerate(request.parts)
            ]
        parts: Sequence[tuple[Any, ...]] = request.parts
        topic_ids = request.topic_ids if type(request) is Produce else None
        get = self.get
        partitions: list[WorkerPartition | None] = []
        last: tuple[Any, ...] | None = None
        partition: WorkerPartition | None = None
        for part in parts:
            key = part[:2]
            if key != last:
                last, partition = key, get(key)
                if topic_ids is not None and partition is not None and partition.topic_id != topic_ids[key[0]]:
                    partition = None  # that of another topic of this name
            partitions.append(partition)
        for index in request.denied:
            partitions[index] = None
        return partitions
