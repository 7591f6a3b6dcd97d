"""One member of a group of the consumer protocol, and how it is brought from one assignment to the next (KIP-848).

Each member is reconciled by itself, in its own heartbeats::

    holds what it should ──a new target──▶ REVOKING ──its heartbeat owns none of it──▶ given what is free
            ▲                   │                                                         │
            └───────────────────┴────────────── all of the target is given ◀── WAITING ◀──┘ the rest is others' still

The heartbeats of a member of the classic protocol are its JoinGroups, in which it says what it owns; the epoch is its
generation (:mod:`.classic_members`).

While it has to give something up (``revoking``) its epoch stays.  It gets the epoch of the target together with the
first partitions of it.  A partition belongs to its member until that says that it does not own it any more, leaves, or
is removed: so it never has two owners.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from .assignors import IdAndNumber
from .messages import MEMBER_BYTES, Metadata, metadata_bytes
from .snapshots import ConsumerMemberSnapshot

LEFT: Final = -2
"""The epoch of a static member that is away; it keeps its partitions until its session ends."""


class Matching(NamedTuple):
    """A regular expression, and the topics that it matched.  ``of``: what these depend on, to be compared."""

    pattern: str
    topics: frozenset[str]
    of: object


NO_MATCHING: Final = Matching("", frozenset(), None)


class Classic(NamedTuple):
    """What a member of the classic protocol has besides: its session and its offers, as in JoinGroup."""

    session_ms: int
    protocols: tuple[Metadata, ...]


@dataclass(slots=True)
class ConsumerMember:
    """One member.  ``topics``: names; ``assigned`` and ``revoking``: partition → epoch since which it is the member's.

    ``previous_epoch`` is accepted, too, as long as the answer with the present one may have been lost.
    ``act_by_ms``: the end of its time for what it has to do: give up ``revoking``, and if it is ``classic``, join again
    or sync.  None while there is nothing.
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
    assigned: dict[IdAndNumber, int] = field(default_factory=dict)
    revoking: dict[IdAndNumber, int] = field(default_factory=dict)
    target: frozenset[IdAndNumber] = frozenset()
    waits: bool = False
    """Whether others still have something of its target."""
    expires_ms: int = 0
    act_by_ms: int | None = None
    classic: Classic | None = None

    def snapshot(self) -> ConsumerMemberSnapshot:
        return ConsumerMemberSnapshot(
            *(self.id, self.instance, self.client_id, self.client_host, self.rack, self.rebalance_ms),
            *(tuple(sorted(self.topics)), self.matching.pattern, tuple(sorted(self.matching.topics))),
            *(self.assignor, self.epoch, self.previous_epoch),
            *(tuple(sorted(self.assigned.items())), tuple(sorted(self.revoking.items()))),
            *(tuple(sorted(self.target)), self.waits),
            *(self.classic or (0, ())),
        )

    @classmethod
    def restored(cls, stored: ConsumerMemberSnapshot) -> ConsumerMember:
        """The member of which this is the snapshot, with no deadlines yet."""
        return cls(
            *(stored.id, stored.instance, stored.client_id, stored.client_host, stored.rack, stored.rebalance_ms),
            frozenset(stored.topics),
            Matching(stored.pattern, frozenset(stored.matched), None) if stored.pattern else NO_MATCHING,
            stored.assignor,
            stored.epoch,
            stored.previous_epoch,
            dict(stored.assigned),
            dict(stored.revoking),
            frozenset(stored.target),
            stored.waits,
            act_by_ms=0 if stored.revoking else None,
            classic=Classic(stored.session_ms, tuple(Metadata(*offer) for offer in stored.protocols))
            if stored.protocols
            else None,
        )

    @property
    def subscription(self) -> frozenset[str]:
        return self.topics | self.matching.topics if self.matching.topics else self.topics

    @property
    def said(self) -> tuple[object, ...]:
        """All that a heartbeat can change: equal values mean that nothing has changed."""
        matching = self.matching
        of_client = self.rack, self.rebalance_ms, self.assignor, self.classic
        return *of_client, self.topics, matching.pattern, matching.topics

    @property
    def progress(self) -> tuple[int, int, bool]:
        """How far it is on its way to the target, without its partitions."""
        return self.epoch, self.previous_epoch, self.waits

    @property
    def deadline_ms(self) -> int:
        return self.expires_ms if self.act_by_ms is None else min(self.expires_ms, self.act_by_ms)

    @property
    def size(self) -> int:
        """Bytes kept for this member, without its partitions."""
        names = (self.id, self.instance or "", self.client_id, self.rack or "", self.matching.pattern)
        offered = metadata_bytes(self.classic.protocols) if self.classic is not None else 0
        topics = subscription_bytes(self.topics) + 8 * len(self.matching.topics)
        return MEMBER_BYTES + sum(map(len, names)) + topics + offered

    def accepts(self, epoch: int, owned: Set[IdAndNumber] | None) -> bool:
        """Whether a heartbeat with this epoch is of this life of the member.

        The epoch before is, if the member owns nothing but what it was assigned: the answer was lost (KAFKA-14462).
        """
        if epoch == self.epoch:
            return True
        return epoch == self.previous_epoch and epoch < self.epoch and (owned or set()) <= self.assigned.keys()

    def has_since(self, part: IdAndNumber, epoch: int) -> bool:
        """Whether the partition has been the member's from ``epoch`` on, without a break."""
        since = self.assigned.get(part, self.revoking.get(part))
        return since is not None and since <= epoch

    def is_settled(self, epoch: int) -> bool:
        """Whether it has all of the target of this epoch, and nothing else."""
        return self.epoch == epoch and not self.revoking and not self.waits

    def reconcile(self, epoch: int, owned: Set[IdAndNumber] | None, is_free: Callable[[IdAndNumber], bool]) -> None:
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


def _owns(owned: Set[IdAndNumber] | None, parts: dict[IdAndNumber, int]) -> bool:
    """Whether the client still has some of ``parts``; yes, if it has not said."""
    return bool(parts) and (owned is None or not owned.isdisjoint(parts))


def subscription_bytes(topics: Set[str]) -> int:
    """Bytes kept for names, with what an object takes."""
    return sum(64 + len(name) for name in topics)
