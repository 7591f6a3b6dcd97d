"""Measures the extent of partitions, and the lag of a group's committed offsets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ...errors import OffsetOutOfRange, StorageFault, Unavailable
from ...log.reader import FileCache, LogReader
from ...machine_limits import open_files_max
from ...names import TopicPartition
from ...wire.kafka.metadata_reply import NO_LEADER
from ...wire.requests import EARLIEST, LATEST, OffsetsPart
from .live_brokers import LiveBrokers
from .partitions import Partitions
from .topics import Topics

FILES_MAX: Final = 64
FLUSH_WAIT_MS_MAX: Final = 50
"""How long a lag waits for the flush of messages acknowledged with acks=1, like ListOffsets in the workers."""
FLUSH_POLL_S: Final = 0.005


class GroupLag(NamedTuple):
    """The distance of a committed offset from the high watermark; all 0 when there is nothing left to read.

    ``seconds``: the age of the next message to be read, by its timestamp; 0 when it has none (-1).
    """

    messages: int
    bytes: int
    seconds: float


class Measured(NamedTuple):
    """The readable part of a partition: offsets [start, end), and its ``messages`` (None: the log is damaged)."""

    start: int
    end: int
    messages: int | None
    lag: GroupLag | None = None


class Measurements:
    """Measures the partitions that are stored here, and asks the other brokers about theirs."""

    def __init__(
        self, data_dir: Path, partitions: Partitions, topics: Topics, brokers: LiveBrokers, clock_ms: Callable[[], int]
    ) -> None:
        self._data_dir = data_dir.absolute()
        self._partitions = partitions
        self._topics = topics
        self._brokers = brokers
        self._clock_ms = clock_ms
        self._files = FileCache(open_files_max(FILES_MAX))

    async def measure(self, offsets: Mapping[TopicPartition, int | None]) -> dict[TopicPartition, Measured]:
        """Measure partitions, wherever they are stored, and the lag of the given offsets.

        The result lacks partitions that cannot be read now, or whose broker does not answer within PEER_MS_MAX.
        """
        measured: dict[TopicPartition, Measured] = {}
        elsewhere: dict[str, list[TopicPartition]] = {}
        await self._wait_until_flushed(key for key in offsets if key in self._partitions)
        for key, offset in offsets.items():
            topic = self._topics.catalog.topics.get(key.topic)
            leader = topic.leader(key.partition) if topic is not None else NO_LEADER
            address = self._brokers.native_address(leader)
            if key in self._partitions:
                with contextlib.suppress(Unavailable):
                    measured[key] = self._measure_here(key, offset)
                await asyncio.sleep(0)  # there may be thousands, each with a look into its index
            elif leader != self._brokers.broker_id and address:
                elsewhere.setdefault(address, []).append(key)
        for measured_there in await asyncio.gather(
            *(self._measure_there(address, keys, offsets) for address, keys in elsewhere.items())
        ):
            measured |= measured_there
        return measured

    async def _wait_until_flushed(self, keys: Iterable[TopicPartition]) -> None:
        """Wait until the high watermark reaches the present log end offset, but at most FLUSH_WAIT_MS_MAX."""
        tables = [self._partitions.table(*key) for key in keys]
        behind = [(table, table.log_end_offset) for table in tables if table.high_watermark < table.log_end_offset]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_WAIT_MS_MAX / 1000):
                while behind := [(table, end) for table, end in behind if table.high_watermark < end]:
                    await asyncio.sleep(FLUSH_POLL_S)

    def _measure_here(self, key: TopicPartition, offset: int | None) -> Measured:
        table = self._partitions.table(*key)
        bases, start, end, _ = table.snapshot()
        if start == end:
            return Measured(start, end, 0, GroupLag(0, 0, 0.0))
        reader = LogReader(self._data_dir / f"{key.topic}-{key.partition}", self._files)
        try:
            messages = table.records - reader.time_and_count(bases, end, start)[1]
            if offset is None:
                return Measured(start, end, messages)
            at = min(max(offset, start), end)
            timestamp, before = reader.time_and_count(bases, end, at)
        except (StorageFault, OffsetOutOfRange):  # damaged; or retention was faster than we
            return Measured(start, end, None)
        return Measured(start, end, messages, self._lag(at, end, table.records - before, timestamp))

    async def _measure_there(
        self, address: str, keys: Sequence[TopicPartition], offsets: Mapping[TopicPartition, int | None]
    ) -> dict[TopicPartition, Measured]:
        asked = [
            OffsetsPart(*key, timestamp, offset)
            for key in keys
            for timestamp, offset in ((EARLIEST, -1), (LATEST, -1), (EARLIEST, offsets[key] or 0))
        ]
        answers = iter(await self._brokers.connections.ask_offsets(address, asked))
        measured: dict[TopicPartition, Measured] = {}
        for key, start, end, at in zip(keys, answers, answers, answers, strict=False):
            if not (start.error or end.error or at.error):
                lag = self._lag(at.offset, end.offset, end.records - at.records, at.timestamp)
                behind = None if offsets[key] is None else lag
                measured[key] = Measured(start.offset, end.offset, end.records - start.records, behind)
        return measured

    def _lag(self, offset: int, end: int, messages: int, timestamp: int) -> GroupLag:
        if offset >= end:
            return GroupLag(0, 0, 0.0)
        age_ms = max(0, self._clock_ms() - timestamp) if timestamp >= 0 else 0
        return GroupLag(messages, end - offset, age_ms / 1000)

    # ---- files that are kept open

    def forget_files(self, topic: str, partition: int) -> None:
        """Close the files of a deleted partition: a new one may have the same name."""
        self._files.drop(f"{self._data_dir / f'{topic}-{partition}'}/")

    def forget_unlinked_files(self) -> None:
        """Close files of segments that retention has unlinked."""
        self._files.drop_unlinked()
