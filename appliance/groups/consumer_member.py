"""One member of a group of the consumer protocol, and how it is brought from one assignment to the next (KIP-848).

Each member is reconciled by itself, in its own heartbeats::

    holds what it should ──a new target──▶ REVOKING ──its heartbeat owns none of it──▶ given what is free
            ▲                   │                                                         │
            └───────────────────┴────────────── all of the target is given ◀── WAITING ◀──┘ the rest is others' still

While it has to give something up (``revoking``) its epoch stays.  It gets the epoch of the target together with the
first partitions of it.  A partition belongs to its member until that says that it does not own it any more, leaves, or
is removed: so it never has two owners.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from .assignors import Part
from .messages import MEMBER_BYTES

LEFT: Final = -2
"""The epoch of a static member that is away; it keeps its partitions until its session ends."""


class Matching(NamedTuple):
    """A regular expression, and the topics that it matched.  ``of``: what these depend on, to be compared."""

    pattern: str
    topics: frozenset[str]
    of: object


NO_MATCHING: Final = Matching("", frozenset(), None)


@dataclass(slots=True)
class ConsumerMember:
    """One member.  ``topics``: names; ``assigned`` and ``revoking``: partition → epoch since which it is the member's.

    ``previous_epoch`` is accepted, too, as long as the answer with the present one may have been lost.
    ``revoke_by_ms``: the end of its time to give up ``revoking``, None while there is none.
    """

    id: str
    instance: str | None
    client_id: str
    client_host: str
    rack: str | None = None
    rebalance_ms: int = 0
    topics: frozenset[str] = frozenset()
    matching: Matching = NO_MATCHING
    assignor: str = ""
    epoch: int = 0
    previous_epoch: int = 0
    assigned: dict[Part, int] = field(default_factory=dict)
    revoking: dict[Part, int] = field(default_factory=dict)
    target: frozenset[Part] = frozenset()
    waits: bool = False
    """Whether others still have something of its target."""
    expires_ms: int = 0
    revoke_by_ms: int | None = None

    @property
    def subscription(self) -> frozenset[str]:
        return self.topics | self.matching.topics if self.matching.topics else self.topics

    @property
    def deadline_ms(self) -> int:
        return self.expires_ms if self.revoke_by_ms is None else min(self.expires_ms, self.revoke_by_ms)

    @property
    def size(self) -> int:
        """Bytes kept for this member, without its partitions."""
        names = (self.id, self.instance or "", self.client_id, self.rack or "", self.matching.pattern)
        return MEMBER_BYTES + sum(map(len, names)) + subscription_bytes(self.topics) + 8 * len(self.matching.topics)

    def accepts(self, epoch: int, owned: Set[Part] | None) -> bool:
        """Whether a heartbeat with this epoch is of this life of the member.

        The epoch before is, if the member owns nothing but what it was assigned: the answer was lost (KAFKA-14462).
        """
        if epoch == self.epoch:
            return True
        return epoch == self.previous_epoch and epoch < self.epoch and (owned or set()) <= self.assigned.keys()

    def has_since(self, part: Part, epoch: int) -> bool:
        """Whether the partition has been the member's from ``epoch`` on, without a break."""
        since = self.assigned.get(part, self.revoking.get(part))
        return since is not None and since <= epoch

    def is_settled(self, epoch: int) -> bool:
        """Whether it has all of the target of this epoch, and nothing else."""
        return self.epoch == epoch and not self.revoking and not self.waits

    def reconcile(self, epoch: int, owned: Set[Part] | None, is_free: Callable[[Part], bool]) -> None:
        """Take the next step to ``target``, whose epoch is given.

        ``owned``: what the client says it owns, None: as before.  ``is_free``: nobody has the partition.
        """
        if self.is_settled(epoch) or _owns(owned, self.revoking):
            return
        kept = {part: since for part, since in self.assigned.items() if part in self.target}
        given_up = {part: since for part, since in self.assigned.items() if part not in self.target}
        if _owns(owned, given_up):
            self.previous_epoch = self.epoch  # a late repetition of an older heartbeat gives nothing up
            self.assigned, self.revoking = kept, given_up
            return
        missing = [part for part in self.target if part not in kept]
        gained = [part for part in missing if part in self.revoking or is_free(part)]
        if epoch != self.epoch:
            self.previous_epoch, self.epoch = self.epoch, epoch
        self.assigned = kept | dict.fromkeys(gained, epoch)
        self.revoking = {}
        self.waits = len(gained) < len(missing)


def _owns(owned: Set[Part] | None, parts: dict[Part, int]) -> bool:
    """Whether the client still has some of ``parts``; yes, if it has not said."""
    return bool(parts) and (owned is None or not owned.isdisjoint(parts))


def subscription_bytes(topics: Set[str]) -> int:
    """Bytes kept for names, with what an object takes."""
    return sum(64 + len(name) for name in topics)
