"""Reads what the topics of a pipeline have now, to be compared with what it has read.  It needs no Spark."""

from __future__ import annotations

from ...log_access.access import LogAccess
from ...names import TopicPartition
from ...wire.requests import EARLIEST, LATEST
from .resume import TopicLog


def read_logs(access: LogAccess, topics: list[str]) -> dict[str, TopicLog]:
    """The topics with the extents of their partitions."""
    described = access.topics(topics)
    keys = [
        TopicPartition(name, partition) for name, topic in described.items() for partition in range(len(topic.leaders))
    ]
    starts = access.offsets(dict.fromkeys(keys, EARLIEST))
    ends = access.offsets(dict.fromkeys(keys, LATEST))
    bounds: dict[str, dict[int, tuple[int, int]]] = {name: {} for name in described}
    for key in keys:
        # They were not read at the same time: retention may have come between.
        bounds[key.topic][key.partition] = starts[key], max(starts[key], ends[key])
    return {name: TopicLog(topic.id, bounds[name]) for name, topic in described.items()}
