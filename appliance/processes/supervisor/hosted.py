"""The partitions that are stored here, as the supervisor knows them: topic id, settings, segment table, state.

Values only: :mod:`.opening` changes them, and the workers, the writers and the coordinator are forked with them.
"""

from __future__ import annotations

from ...names import TopicPartition


class HostedPartition:
    """One partition.

    ``table`` is the name of its segment table in /dev/shm, "" while it has none.  ``offline`` says why nothing can be
    written to it, "" when something can.
    """

    __slots__ = ("offline", "settings", "table", "topic_id")

    def __init__(self, topic_id: str, settings: dict[str, str]) -> None:
        self.topic_id = topic_id
        self.settings = settings
        self.table = self.offline = ""


class Hosted(dict[TopicPartition, HostedPartition]):
    """All of them.  A partition that is deleted leaves at once, although its files may still be there."""

    def __init__(self) -> None:
        super().__init__()
        self.opening: dict[TopicPartition, int] = {}
        """How often each partition that is being opened has been tried.  It may have been deleted since."""

    def tables(self) -> list[tuple[TopicPartition, str]]:
        """The partitions that have a table, and its name."""
        return [(partition, row.table) for partition, row in self.items() if row.table]

    def is_writable(self, partition: TopicPartition) -> bool:
        """Whether a writer can be started for it."""
        row = self.get(partition)
        return row is not None and bool(row.table) and not row.offline and partition not in self.opening
