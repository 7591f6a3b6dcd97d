"""Makes the rows of topics and partitions for the page, from the catalog, the tables and the indexes of this appliance.

The coordinator is asked only for topics with partitions that other brokers store.

An appliance may have ten thousand topics, and this process stays small.  So of each topic only what a list shows is
made and kept, and texts, settings and partitions that many topics have in common are kept once; the rows of partitions
are made for the topics that pages look at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from sys import intern
from typing import Any, Final, NamedTuple

import msgspec

from ..catalog import FILE_NAME, Catalog, Topic
from ..errors import OffsetOutOfRange, StorageFault, WriterGone
from ..log import FileCache, LogReader
from ..machine_limits import open_files_max
from ..metrics.readings import Readings, open_table
from ..names import TopicPartition
from ..partition_states import ELSEWHERE, ONLINE, OPENING, STATE_NAMES
from ..shared.table import TableCounts

FILES_MAX: Final = 16
NOT_KNOWN_YET: Final = (STATE_NAMES[OPENING], "")
ALL_WELL: Final = (STATE_NAMES[ONLINE], "")

AskTopics = Callable[[list[str]], list[dict[str, Any]]]


class PartitionRow(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A partition, as the admin verb ``topics`` shows it; None is what is not known."""

    partition: int
    leader: int
    start: int | None
    end: int | None
    bytes: int | None
    messages: int | None
    state: str
    reason: str = ""


class TopicRow(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A topic in the list.  ``own``: settings of its own; the rates are 0 for what is idle, or not known yet."""

    partitions: int
    messages: int | None
    bytes: int
    state: str
    own: Mapping[str, str]
    bytes_per_s: int = 0
    messages_per_s: float = 0


class PlacedPartition(NamedTuple):
    """A partition of the catalog.  ``own``: whether this broker stores it."""

    number: int
    leader: int
    own: bool


class PlacedTopic(NamedTuple):
    """A topic of the catalog."""

    partitions: tuple[PlacedPartition, ...]
    settings: Mapping[str, str]


class PartitionsNow(NamedTuple):
    """The partitions of all topics, as of one poll.

    ``troubles``: state and reason of those that are not online, by name.  ``retired``: the log start offset, and the
    number of messages before it, of those from which retention has removed some; -1 when that cannot be read now.
    """

    topics: Mapping[str, PlacedTopic] = {}
    counts: Mapping[TopicPartition, TableCounts] = {}
    troubles: Mapping[str, tuple[str, str]] = {}
    retired: Mapping[TopicPartition, tuple[int, int]] = {}
    elsewhere: Mapping[TopicPartition, PartitionRow] = {}

    def rows(self, topic: str) -> list[PartitionRow]:
        """The partitions of a topic; none if there is no such topic."""
        if topic not in self.topics:
            return []
        return [self._row(TopicPartition(topic, place.number), place) for place in self.topics[topic].partitions]

    def changed_since(self, before: PartitionsNow) -> Collection[str]:
        """The topics that may have other rows than before."""
        if self.topics is not before.topics or len(self.counts) != len(before.counts):
            return self.topics.keys()
        names = {key.topic for key, counts in self.counts.items() if before.counts.get(key) is not counts}
        names.update(name.rpartition("-")[0] for name in self.troubles.keys() | before.troubles.keys())
        names.update(key.topic for key in self.elsewhere)
        return names & self.topics.keys()

    def _row(self, key: TopicPartition, place: PlacedPartition) -> PartitionRow:
        if not place.own:
            row = self.elsewhere.get(key)
            return row or PartitionRow(place.number, place.leader, None, None, None, None, ELSEWHERE)
        counts = self.counts.get(key)
        state, reason = NOT_KNOWN_YET if counts is None else ALL_WELL
        if self.troubles:
            state, reason = self.troubles.get(f"{key.topic}-{key.partition}", (state, reason))
        if counts is None:
            return PartitionRow(place.number, place.leader, None, None, None, None, state, reason)
        start, end = counts.start, counts.high_watermark
        gone = self.retired[key][1] if key in self.retired else 0
        messages = None if gone < 0 else max(0, counts.records - gone)
        return PartitionRow(place.number, place.leader, start, end, end - start, messages, state, reason)


class TopicRows:
    """The partitions, poll after poll.  ``ask``: the admin verb ``topics``, for topics by their names."""

    def __init__(self, data_dir: Path, broker_id: int, ask: AskTopics) -> None:
        self._data_dir, self._broker_id = data_dir.absolute(), broker_id
        self._ask = ask
        self._files = FileCache(open_files_max(FILES_MAX))
        self._stamp: tuple[int, int, int] | None = None
        self._topics: dict[str, PlacedTopic] = {}
        self._retired: dict[TopicPartition, tuple[int, int]] = {}
        self._elsewhere: dict[TopicPartition, PartitionRow] = {}

    def take(self, readings: Readings) -> PartitionsNow:
        """The partitions now.

        Raises:
            StorageFault: the catalog cannot be read.
        """
        self._load()
        retired = {}
        for key, counts in readings.partitions.items():
            if counts.start and key.topic in self._topics:
                earlier = self._retired.get(key)
                if earlier is None or earlier[0] != counts.start or earlier[1] < 0:
                    earlier = counts.start, self._messages_before(key, counts.start, readings.state or {"tables": {}})
                retired[key] = earlier
        self._retired = retired
        self._files.drop_unlinked()
        return PartitionsNow(self._topics, readings.partitions, readings.not_online, retired, self._elsewhere)

    def ask_others(self) -> None:
        """Ask for the partitions that other brokers store, if there are any.

        Raises:
            ApplianceError: the coordinator does not answer; the last rows are kept.
        """
        names = [
            name for name, topic in self._topics.items() if not all(partition.own for partition in topic.partitions)
        ]
        if names:
            self._elsewhere = {
                TopicPartition(topic["name"], row["partition"]): msgspec.convert(row, PartitionRow)
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
            self._topics = dict(self._placed(Catalog.load(self._data_dir).topics))
            self._stamp = stamp

    def _placed(self, topics: Mapping[str, Topic]) -> Iterator[tuple[str, PlacedTopic]]:
        """The topics, sorted by name; those that are alike are one object."""
        alike: dict[tuple[Any, ...], PlacedTopic] = {}
        for name, topic in sorted(topics.items()):
            partitions = tuple(
                PlacedPartition(number, topic.leader(number), self._broker_id in brokers)
                for number, brokers in sorted(topic.partitions.items())
            )
            key = partitions, tuple(sorted(topic.settings.items()))
            yield intern(name), alike.setdefault(key, PlacedTopic(partitions, topic.settings))

    def _messages_before(self, key: TopicPartition, start: int, state: Mapping[str, Any]) -> int:
        """The number of messages before the log start offset; -1 when the index cannot be read now."""
        try:
            with open_table(state, key) as table:
                bases, _, end, _ = table.snapshot()
            return LogReader(self._data_dir / f"{key.topic}-{key.partition}", self._files).time_and_count(
                bases, end, start
            )[1]
        except (WriterGone, StorageFault, OffsetOutOfRange, OSError):
            return -1
