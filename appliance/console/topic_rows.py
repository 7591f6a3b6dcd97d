"""Makes the rows of topics and partitions for the page, from the catalog, the tables and the indexes of this appliance.

The coordinator is asked only for topics with partitions that other brokers store.  A partition whose numbers have not
changed keeps its row, so that a poll costs little for idle ones.  The rows are those of the admin verb ``topics``,
without ``settings`` and with ``reason`` where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from ..catalog import FILE_NAME, Catalog, Topic
from ..errors import OffsetOutOfRange, StorageFault, WriterGone
from ..log import FileCache, LogReader
from ..machine_limits import open_files_max
from ..metrics.readings import Reader, Readings
from ..names import TopicPartition
from ..partition_states import ELSEWHERE, OPENING, STATE_NAMES
from ..shared.table import TableCounts

FILES_MAX: Final = 16
NOT_KNOWN: Final = dict.fromkeys(("start", "end", "bytes", "messages"))

TopicRow = dict[str, Any]
AskTopics = Callable[[list[str]], list[TopicRow]]


class TopicRows:
    """The rows, poll after poll.  ``ask``: the admin verb ``topics``, for topics by their names."""

    def __init__(self, data_dir: Path, broker_id: int, reader: Reader, ask: AskTopics) -> None:
        self._data_dir, self._broker_id = data_dir.absolute(), broker_id
        self._reader, self._ask = reader, ask
        self._files = FileCache(open_files_max(FILES_MAX))
        self._stamp: tuple[int, int, int] | None = None
        self._topics: dict[str, Topic] = {}
        self._known: dict[TopicPartition, tuple[TableCounts, tuple[str, str], TopicRow]] = {}
        self._retired: dict[TopicPartition, tuple[int, int]] = {}
        """The log start offset, and the number of messages before it."""
        self._elsewhere: dict[TopicPartition, TopicRow] = {}

    def make(self, readings: Readings) -> Iterator[TopicRow]:
        """Yields the rows now, one by one: all of them together would take more memory than what is kept of them.

        Raises:
            StorageFault: the catalog cannot be read.
        """
        self._load()
        states, rows_before = readings.states, self._known
        self._known = {}
        for name, topic in self._topics.items():
            parts = []
            for number, brokers in topic.partitions.items():
                key = TopicPartition(name, number)
                if self._broker_id not in brokers:
                    parts.append(self._elsewhere.get(key) or self._row(topic, number, NOT_KNOWN, (ELSEWHERE, "")))
                    continue
                state = states.get(f"{name}-{number}", (STATE_NAMES[OPENING], ""))
                counts, before = readings.partitions.get(key), rows_before.get(key)
                if counts is None:
                    parts.append(self._row(topic, number, NOT_KNOWN, state))
                elif before is not None and before[0] is counts and before[1] == state:
                    self._known[key] = before
                    parts.append(before[2])
                else:
                    row = self._row(topic, number, self._extent(key, counts), state)
                    self._known[key] = (counts, state, row)
                    parts.append(row)
            yield {"name": name, "own": topic.settings, "partitions": parts}
        for key in self._retired.keys() - self._known.keys():
            del self._retired[key]
        self._files.drop_unlinked()

    def ask_others(self) -> None:
        """Ask for the partitions that other brokers store, if there are any.

        Raises:
            ApplianceError: the coordinator does not answer; the last rows are kept.
        """
        names = [
            topic.name
            for topic in self._topics.values()
            if any(self._broker_id not in brokers for brokers in topic.partitions.values())
        ]
        if names:
            self._elsewhere = {
                TopicPartition(topic["name"], row["partition"]): row
                for topic in self._ask(names)
                for row in topic["partitions"]
            }

    def _load(self) -> None:
        """Read the catalog again if the file has changed since the last poll."""
        try:
            status = (self._data_dir / FILE_NAME).stat()
            stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
        except OSError:
            stamp = None
        if stamp is None or stamp != self._stamp:
            topics = Catalog.load(self._data_dir).topics.values()
            self._topics = {
                topic.name: Topic(topic.name, dict(sorted(topic.partitions.items())), topic.settings, topic.id)
                for topic in sorted(topics, key=lambda topic: topic.name)
            }
            self._known.clear()
            self._stamp = stamp

    def _row(self, topic: Topic, number: int, extent: TopicRow, state: tuple[str, str]) -> TopicRow:
        row = {"partition": number, "leader": topic.leader(number), **extent, "state": state[0]}
        return row | {"reason": state[1]} if state[1] else row

    def _extent(self, key: TopicPartition, counts: TableCounts) -> TopicRow:
        start, end = counts.start, counts.high_watermark
        retired = self._retired.get(key, (0, 0))
        if retired[0] != start:
            retired = (start, self._messages_before(key, start))
        self._retired[key] = retired
        messages = None if retired[1] < 0 else max(0, counts.records - retired[1])
        return {"start": start, "end": end, "bytes": end - start, "messages": messages}

    def _messages_before(self, key: TopicPartition, start: int) -> int:
        """The number of messages before the log start offset; -1 when the index cannot be read now."""
        table = self._reader.table(key)
        if not start or table is None:
            return 0
        try:
            bases, _, end, _ = table.snapshot()
            return LogReader(self._data_dir / f"{key.topic}-{key.partition}", self._files).time_and_count(
                bases, end, start
            )[1]
        except (WriterGone, StorageFault, OffsetOutOfRange, OSError):
            return -1
