"""Counts the committed offsets of all groups, and refuses those for which ZooKeeper's heap has no room."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ...errors import OffsetsFull
from ...names import TopicPartition
from ...zookeeper import paths
from ...zookeeper.claims import Held
from .commit_queue import Changes, Refusals

UNIT_BYTES: Final = 512
"""An offset counts once, and once more for each UNIT_BYTES of path and value: ZooKeeper keeps both in memory."""
PATH_REST_BYTES: Final = 16
"""Bytes of an offset's path besides the group's path and the topic."""


class OffsetCount:
    """The count of the last check of all groups, corrected with every write of this broker since.

    Writes of other brokers count at the next check.
    """

    def __init__(self, offsets_max: int) -> None:
        self.offsets_max = offsets_max
        self.total = 0
        self._by_group: dict[str, int] = {}

    def __contains__(self, group: str) -> bool:
        return group in self._by_group

    def replace(self, sizes: Mapping[str, Mapping[TopicPartition, int]], held: Iterable[tuple[str, Held]]) -> None:
        """Take the result of a check of all groups; for those in ``held`` our own claim is more recent."""
        self._by_group = {
            group: sum(_units(paths.group(group), part, size) for part, size in offsets.items())
            for group, offsets in sizes.items()
        }
        self._by_group |= {group: units(claim, claim.sizes) for group, claim in held}
        self.total = sum(self._by_group.values())

    def set(self, group: str, held: Held) -> None:
        self.add(group, units(held, held.sizes) - self._by_group.get(group, 0))

    def add(self, group: str, more: int) -> None:
        self._by_group[group] = self._by_group.get(group, 0) + more
        self.total += more

    def drop(self, group: str) -> None:
        """Forget a group that was removed."""
        self.total -= self._by_group.pop(group, 0)

    def refuse(self, held: Held, changes: Changes) -> Refusals:
        """The changes for which there is no room.  A change that needs no more units is never refused."""
        errors: Refusals = {}
        room = self.offsets_max - self.total
        for part, to in changes.items():
            after = 0 if to is None else _units(held.group_path, part, len(paths.encode_offset(to)))
            more = after - units(held, [part])
            if more > 0 and more > room:
                errors[part] = OffsetsFull(
                    f"there is room for {self.offsets_max} committed offsets of all groups: delete unused groups,"
                    " or raise offsets.committed_max"
                )
            else:
                room -= more
        return errors


def units(held: Held, parts: Iterable[TopicPartition]) -> int:
    """The units of those of these offsets that the group has."""
    return sum(_units(held.group_path, part, held.sizes[part]) for part in parts if part in held.sizes)


def _units(group_path: str, part: TopicPartition, size: int) -> int:
    return 1 + (len(group_path) + len(part.topic) + PATH_REST_BYTES + size) // UNIT_BYTES
