"""Measures partitions: what is in them, and how far a group's committed offsets are behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ...errors import OffsetOutOfRange, StorageFault, Unavailable
from ...log.reader import FileCache, LogReader
from ...names import TopicPartition
from ...wire.kafka.metadata_reply import NO_LEADER
from ...wire.requests import EARLIEST, LATEST, OffsetsPart
from .live_brokers import LiveBrokers
from .partitions import Partitions
from .peers import ask_offsets
from .topics import Topics

FILES_MAX: Final = 64
FLUSH_WAIT_MS_MAX: Final = 50
"""How long a lag waits for the flush of what acks=1 has acknowledged, as the workers' ListOffsets does."""
FLUSH_POLL_S: Final = 0.005


class Lag(NamedTuple):
    """How far a position is behind the end of its partition; 0 everywhere when it is caught up.

    ``seconds``: how long ago the next message to be read was stamped.
    """

    messages: int
    bytes: int
    seconds: float


class Measured(NamedTuple):
    """What can be read of a partition: offsets [start, end), ``messages`` in all (None: the log is damaged)."""

    start: int
    end: int
    messages: int | None
    lag: Lag | None = None


class Measurements:
    """Reads the partitions that are stored here, and asks the other brokers about theirs."""

    def __init__(
        self, data_dir: Path, partitions: Partitions, topics: Topics, brokers: LiveBrokers, clock_ms: Callable[[], int]
    ) -> None:
        self._data_dir = data_dir.absolute()
        self._partitions = partitions
        self._topics = topics
        self._brokers = brokers
        self._clock_ms = clock_ms
        self._files = FileCache(FILES_MAX)

    async def measure(self, offsets: Mapping[TopicPartition, int | None]) -> dict[TopicPartition, Measured]:
        """What is in these partitions, wherever they are stored, and how far the offsets (if any) are behind.

        A partition that cannot be read now, or whose broker does not answer soon, is left out.
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
        for found in await asyncio.gather(
            *(self._measure_there(address, keys, offsets) for address, keys in elsewhere.items())
        ):
            measured |= found
        return measured

    async def _wait_until_flushed(self, keys: Iterable[TopicPartition]) -> None:
        """Wait until readers may read what is written by now, but at most FLUSH_WAIT_MS_MAX."""
        tables = [self._partitions.table(*key) for key in keys]
        behind = [(table, table.log_end_offset) for table in tables if table.high_watermark < table.log_end_offset]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_WAIT_MS_MAX / 1000):
                while behind := [(table, end) for table, end in behind if table.high_watermark < end]:
                    await asyncio.sleep(FLUSH_POLL_S)

    def _measure_here(self, key: TopicPartition, offset: int | None) -> Measured:
        table = self._partitions.table(*key)
        bases, start, end = table.snapshot()
        if start == end:
            return Measured(start, end, 0, Lag(0, 0, 0.0))
        reader = LogReader(self._data_dir / f"{key.topic}-{key.partition}", self._files)
        try:
            messages = table.records - reader.at(bases, end, start)[1]
            if offset is None:
                return Measured(start, end, messages)
            at = min(max(offset, start), end)
            timestamp, before = reader.at(bases, end, at)
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
        answers = iter(await ask_offsets(address, asked))
        measured: dict[TopicPartition, Measured] = {}
        for key, start, end, at in zip(keys, answers, answers, answers, strict=False):
            if not (start.error or end.error or at.error):
                lag = self._lag(at.offset, end.offset, end.records - at.records, at.timestamp)
                behind = None if offsets[key] is None else lag
                measured[key] = Measured(start.offset, end.offset, end.records - start.records, behind)
        return measured

    def _lag(self, offset: int, end: int, messages: int, timestamp: int) -> Lag:
        if offset >= end:
            return Lag(0, 0, 0.0)
        return Lag(messages, end - offset, max(0, self._clock_ms() - timestamp) / 1000)

    # ---- files that are kept open

    def forget_files(self, topic: str, partition: int) -> None:
        """Close the files of a partition that was deleted: another may come under its name."""
        self._files.drop(f"{self._data_dir / f'{topic}-{partition}'}/")

    def forget_unlinked_files(self) -> None:
        """Close segments that retention has unlinked since they were looked at."""
        self._files.drop_unlinked()
