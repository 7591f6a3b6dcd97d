"""Remembers which slots of other appliances may have offsets of a group in an open transaction.

Nearly no group has any, and a consumer asks for stable offsets at each start.  So the coordinator of a group asks all
other appliances once.  Then it asks only those that coordinate a slot which had offsets of the group at that time, or
has got some since: clients send them to the group's coordinator, which passes them on, and the coordinator of a native
producer says that it has some (``announce_pending``).

Both need that all appliances agree who coordinates the group.  So what was asked holds for one session and for the
brokers as they are, and nothing is remembered while these have changed just now.  What was noted is kept beyond that: a
request that was passed on may be carried out late.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Final

GROUPS_MAX: Final = 10_000
"""Groups of each kind that are remembered.  Of one that is forgotten all are asked again."""


class SlotsOfGroups:
    """See the module's docstring.

    Args:
        as_of: what changes when others may coordinate; None: it has changed just now.
    """

    def __init__(self, as_of: Callable[[], Hashable | None]) -> None:
        self._current = as_of
        self._as_of: Hashable | None = None
        self._asked: dict[str, frozenset[int]] = {}
        """The slots that had offsets of a group when all were asked."""
        self._noted: dict[str, set[int]] = {}
        """Those that have got some; the group that was noted last is the last."""
        self._evicted = 0
        """How many notes had to go: who asked before then may not have heard of what was noted."""

    @property
    def as_of(self) -> Hashable | None:
        """For :meth:`learn`, as it is before others are asked."""
        current = self._current()
        if current != self._as_of:
            self._as_of = current
            self._asked.clear()
        return None if current is None else (current, self._evicted)

    def get(self, group: str) -> Collection[int] | None:
        """The slots that may have offsets of a group; None: each may."""
        if self.as_of is None or group not in self._asked:
            return None
        return self._asked[group] | self._noted.get(group, set())

    def learn(self, group: str, as_of: Hashable | None, slots: Collection[int]) -> None:
        """All were asked after ``as_of``, and these slots had offsets of the group."""
        if as_of is not None and as_of == self.as_of:
            self._asked[group] = frozenset(slots)
            if len(self._asked) > GROUPS_MAX:
                del self._asked[next(iter(self._asked))]

    def note(self, group: str, slot: int) -> None:
        """A slot gets offsets of a group; called before it has them."""
        slots = self._noted.pop(group, set())
        self._noted[group] = slots | {slot}
        if len(self._noted) > GROUPS_MAX:
            evicted = next(iter(self._noted))
            del self._noted[evicted]
            self._asked.pop(evicted, None)
            self._evicted += 1

    def ask_all_again(self, group: str) -> None:
        """Somebody did not answer.  What was noted stays: it may be on its way to one who has answered already."""
        self._asked.pop(group, None)
