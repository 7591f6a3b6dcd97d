"""What is read of a partition: the records of a range of its offsets.  Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import OffsetOutOfRange
from ..names import TopicPartition

Positions = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Range:
    """The records of one partition with offsets from ``first`` to before ``end``.

    ``log_end``: the high watermark when this was planned, which is the end of a batch.
    """

    topic: str
    partition: int
    first: int
    end: int
    log_end: int

    @property
    def key(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


def lost(key: TopicPartition, offset: int, log_start: int, fail: bool) -> None:
    """Handle the loss of the records between ``offset`` and ``log_start``.

    Raises:
        OffsetOutOfRange: ``fail`` is set.
    """
    if fail:
        raise OffsetOutOfRange(
            f"{key.topic}-{key.partition}: offset {offset} is gone, the log starts at {log_start}: retention was "
            f"faster than this reader, or the topic was created again meanwhile"
        )
