"""The supervisor's list of the partitions stored here: topic id, settings, segment table, state.

It holds values only.  :mod:`.opening` changes them; workers, writers and the coordinator are started with them.
"""

from __future__ import annotations

from ...names import TopicPartition
from ..messages import DamagedPlace, PartitionTable, RangesDamaged, ToWorker


class HostedPartition:
    """One partition.

    ``table`` is the name of its segment table in /dev/shm, "" while it has none.  ``offline`` is the reason why it
    cannot be written, "" when it can.  ``full``: what its writer says about the disk that has no room now, or "".
    ``damaged``: ranges that are not served, as :mod:`.inspection` finds them: start, stop, file, position, reason.
    """

    __slots__ = ("damaged", "full", "offline", "settings", "table", "topic_id", "writer")

    def __init__(self, topic_id: str, settings: dict[str, str]) -> None:
        self.topic_id = topic_id
        self.settings = settings
        self.table = self.offline = self.full = ""
        self.damaged: list[DamagedPlace] = []
        self.writer = 0
        """The pid of the writer that has its log open; 0: none."""

    def damage_message(self, partition: TopicPartition) -> RangesDamaged:
        """The message to workers about offsets that they must not serve."""
        return RangesDamaged(partition, [(start, stop) for start, stop, *_ in self.damaged])


class Hosted(dict[TopicPartition, HostedPartition]):
    """All partitions stored here.  A deleted one is removed at once, although its files may still exist."""

    def __init__(self) -> None:
        super().__init__()
        self.opening: dict[TopicPartition, int] = {}
        """The number of attempts to open each partition that is being opened.  It may have been deleted since."""

    def tables(self) -> list[tuple[TopicPartition, str]]:
        """The partitions that have a table, and its name."""
        return [(partition, row.table) for partition, row in self.items() if row.table]

    def announcements(self) -> list[ToWorker]:
        """The messages that tell a worker of all partitions: tables, and offsets that it must not serve."""
        messages: list[ToWorker] = []
        for partition, table in self.tables():
            messages.append(PartitionTable(partition, table))
            if self[partition].damaged:
                messages.append(self[partition].damage_message(partition))
        return messages

    def on_full(self, partition: TopicPartition, reason: str) -> None:
        """Note that the disk has no room for a log; "" when it has room again, or its writer has ended."""
        if partition in self:
            self[partition].full = reason

    def is_writable(self, partition: TopicPartition) -> bool:
        """Whether a writer can be started for it."""
        row = self.get(partition)
        return row is not None and bool(row.table) and not row.offline and partition not in self.opening
