"""A fetch, what each of its parts gets, and where it waits for more."""

from __future__ import annotations

from collections.abc import Iterable

from ...broker.plan import FetchPlan
from ...wire.requests import Fetch, FetchResult, SessionReply
from .known_partitions import KnownPartitions, Partition
from .wait_lists import Awaited, WaitList, WaitLists, Watch

Reply = tuple[Iterable[int], list[FetchResult], SessionReply | None]
"""The numbers of the parts that a reply names, their results, and its session."""


class Reading(Watch):
    """A fetch.  ``kept``: it belongs to a session, and watches on when it is answered."""

    __slots__ = ("_numbers", "kept", "partitions", "plan", "request")

    def __init__(self, request: Fetch, partitions: list[Partition | None]) -> None:
        super().__init__()
        self.request, self.partitions, self.kept = request, partitions, False
        self.plan = FetchPlan(request, partitions)
        self._numbers: dict[WaitList, dict[int, None]] = {}
        """The numbers of the parts that read a partition."""

    def to_await(self) -> Iterable[int]:
        """The parts, at which it has looked, for which it does not wait yet."""
        return range(len(self.partitions))

    def awaited_by(self, parts: Iterable[int]) -> list[Awaited]:
        """The high watermarks that it awaits for these parts, at which it has looked."""
        awaited: list[Awaited] = []
        for index in parts:
            if (partition := self.partitions[index]) is None:
                continue
            part = self.request.parts[index]
            if len(self.partitions) == 1:
                end = part.offset + max(1, min(self.request.bytes_enough, part.bytes_max))
            if len(self.partitions) > 1 or self.request.committed:  # the last stable offset grows with it
                end = max(part.offset, self.plan.results[index].high_watermark) + 1
            self._numbers.setdefault(partition.wait_list, {})[index] = None
            awaited.append((partition.wait_list, end))
        return awaited

    def take_moved(self, partitions: KnownPartitions) -> list[int]:
        """Look again at the parts whose partition has moved, or is another one now; their numbers."""
        moved = [index for wait_list in self.moved for index in self._numbers.pop(wait_list)]
        self.moved.clear()
        for index in moved:
            self.partitions[index] = partitions.at(self.request.parts[index])
        self.plan.look(moved)
        return moved

    def look_at_cold(self, partitions: KnownPartitions) -> list[int]:
        """Look again at the parts for which something was brought into memory; their numbers.

        Meanwhile topics may have been deleted, or made again: what was found of their partitions is looked up anew.
        """
        parts = dict.fromkeys(self.plan.cold)
        for index, known in enumerate(self.partitions):
            if known is not None and (partition := partitions.at(self.request.parts[index])) is not known:
                self.partitions[index] = partition
                parts[index] = None
        self.plan.look(sorted(parts))
        return list(parts)

    def look_once_more(self) -> None:
        """Look at what has come without being awaited, since it is less than enough."""
        if len(self.partitions) == 1:
            self.plan.look((0,))

    def unflushed(self, parts: Iterable[int]) -> list[Partition]:
        """The partitions, of these parts, that have something above the fetched offset that is not readable yet."""
        return [
            partition
            for index in parts
            if (partition := self.partitions[index]) is not None
            and max(self.request.parts[index].offset, partition.table.high_watermark) < partition.table.log_end_offset
        ]

    def reply(self) -> Reply:
        """Find what the parts get."""
        return range(len(self.partitions)), self.plan.find(), None

    def finish(self, wait_lists: WaitLists) -> None:
        """It is answered."""
        wait_lists.release(self)
