"""Says which groups have not read what is about to be deleted, for the lines of deletions in the audit log and journal.

Retention, a trim, and a deleted topic take messages from groups that are behind; from then on their lag looks like
progress.  So each of these names the groups, with the bytes that they have not read.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Final

from ...catalog import Topic
from ...errors import ApplianceError
from ...retention import lost_bytes
from ...zookeeper.deletion import committed_in
from ...zookeeper.paths import encode_name
from .registry_session import RegistrySession

UNREAD_MS_MAX: Final = 2_000
"""How long a deletion waits for what groups have not read."""
NAMED_MAX: Final = 10
"""Groups that a line names."""

Unread = Mapping[str, int]
"""Bytes that a group has not read, by its name."""


class UnreadBytes:
    """Asks ZooKeeper, where groups commit."""

    def __init__(self, registry: RegistrySession) -> None:
        self._registry = registry

    async def ask(self, topic: Topic, spans: Mapping[int, tuple[int, int]]) -> Unread | None:
        """The groups that have not read all between two offsets of partitions; None: ZooKeeper does not say it in time.

        ``spans``: the first offset, and one past the last, by partition.
        """
        if not self._registry.enabled or all(start == stop for start, stop in spans.values()):
            return {}
        try:
            async with asyncio.timeout(UNREAD_MS_MAX / 1000):
                committed = await self._registry.ask(committed_in(topic.name, topic.id))
        except (ApplianceError, TimeoutError):
            return None
        unread: Counter[str] = Counter()
        for (group, number), offset in committed.items():
            start, stop = spans.get(number, (0, 0))
            unread[group] += lost_bytes(offset, stop) - lost_bytes(offset, start)
        return {group: count for group, count in unread.items() if count}


def unread_fields(groups: Unread | None) -> dict[str, object]:
    """``unread``: GROUP=BYTES of each, those that lose most first; names as in paths of ZooKeeper, without blanks."""
    if groups is None:
        return {"unread": "unknown"}
    worst = sorted(groups.items(), key=lambda row: (-row[1], row[0]))
    texts = [f"{encode_name(group)}={count}" for group, count in worst[:NAMED_MAX]]
    more = {"more_unread": len(worst) - NAMED_MAX} if len(worst) > NAMED_MAX else {}
    return {"unread": " ".join(texts), **more} if texts else {}
