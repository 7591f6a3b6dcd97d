"""The members of one group: by id, by instance name, and the ids that were given to clients that have not joined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ..wire.kafka.codes import Code
from .messages import MEMBER_BYTES, SESSION_MS_MAX, Join, Metadata, Token, metadata_bytes


@dataclass(slots=True)
class Member:
    """One member.  ``joining`` and ``syncing``: the tokens of its unanswered requests.

    ``size``: bytes kept for it.  ``offered``: the names of its protocols.  Only :class:`Members` may change a member
    that it has, since it keeps sums of both.
    """

    id: str
    instance: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocols: tuple[Metadata, ...]
    expires_ms: int
    assignment: bytes = b""
    joining: Token = None
    syncing: Token = None
    size: int = field(init=False)
    offered: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self._measure()

    @classmethod
    def from_join(cls, member_id: str, join: Join, now_ms: int) -> Member:
        """Make a member from its first request."""
        return cls(
            id=member_id,
            instance=join.instance,
            client_id=join.client_id,
            client_host=join.client_host,
            session_ms=join.session_ms,
            rebalance_ms=join.rebalance_ms,
            protocols=join.protocols,
            expires_ms=now_ms + join.session_ms,
        )

    def update(self, join: Join) -> None:
        self.client_id, self.client_host = join.client_id, join.client_host
        self.session_ms, self.rebalance_ms = join.session_ms, join.rebalance_ms
        self.protocols = join.protocols
        self._measure()

    def _measure(self) -> None:
        names = len(self.id) + len(self.instance or "") + len(self.client_id)
        self.size = MEMBER_BYTES + names + len(self.assignment) + metadata_bytes(self.protocols)
        self.offered = frozenset(offer.protocol for offer in self.protocols)

    def assign(self, assignment: bytes) -> None:
        self.size += len(assignment) - len(self.assignment)
        self.assignment = assignment

    def renew(self, now_ms: int) -> None:
        """Begin the member's session anew, after a request of it."""
        self.expires_ms = now_ms + self.session_ms

    @property
    def waits(self) -> bool:
        return self.joining is not None or self.syncing is not None

    def metadata(self, protocol: str) -> bytes:
        return next((offer.data for offer in self.protocols if offer.protocol == protocol), b"")


@dataclass(slots=True)
class Members:
    """All members.  ``static``: the id of each instance name; ``expected``: given ids, with their deadlines.

    ``size``: bytes kept for all.  ``session_ms_min``: no member's session, and no given id's, is shorter.  Requests of
    a thousand members ask for these, so that they are kept, and not looked for in all members.
    """

    by_id: dict[str, Member] = field(default_factory=dict)
    static: dict[str, str] = field(default_factory=dict)
    expected: dict[str, int] = field(default_factory=dict)
    size: int = 0
    session_ms_min: int = SESSION_MS_MAX
    _offered: Counter[str] = field(default_factory=Counter)
    """How many members offer each protocol."""

    @property
    def rebalance_ms(self) -> int:
        """The longest time that a member wants for a rebalance."""
        return max((member.rebalance_ms for member in self.by_id.values()), default=0)

    def deadlines_ms(self) -> list[int]:
        """The deadlines of given ids, and of the sessions of members without a waiting request."""
        resting = [
            member.expires_ms for member in self.by_id.values() if member.joining is None and member.syncing is None
        ]
        return [*self.expected.values(), *resting]

    def late(self, now_ms: int) -> set[str]:
        """Forget given ids whose time is over; return the members whose sessions have ended."""
        for member_id in [id for id, ends_ms in self.expected.items() if ends_ms <= now_ms]:
            self.forget_expected(member_id)
        return {member.id for member in self.by_id.values() if not member.waits and member.expires_ms <= now_ms}

    def check_member(self, member_id: str, instance: str | None) -> Code:
        """Whether this is a member, and the present one of its instance name."""
        if instance is not None:
            holder = self.static.get(instance)
            if holder is None:
                return Code.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return Code.FENCED_INSTANCE_ID
        return Code.NONE if member_id in self.by_id else Code.UNKNOWN_MEMBER_ID

    def expect(self, member_id: str, session_ms: int, ends_ms: int) -> None:
        """Note an id that was given to a client, until it joins with it."""
        self.expected[member_id] = ends_ms
        self.size += MEMBER_BYTES + len(member_id)
        self.session_ms_min = min(self.session_ms_min, session_ms)

    def forget_expected(self, member_id: str) -> bool:
        """Whether such an id was given."""
        if self.expected.pop(member_id, None) is None:
            return False
        self.size -= MEMBER_BYTES + len(member_id)
        return True

    def add_member(self, member: Member) -> None:
        self.forget_expected(member.id)
        self.by_id[member.id] = member
        if member.instance is not None:
            self.static[member.instance] = member.id
        self._count(member, 1)

    def remove_member(self, member: Member) -> None:
        del self.by_id[member.id]
        if member.instance is not None:
            del self.static[member.instance]
        self._count(member, -1)

    def update_member(self, member: Member, join: Join) -> None:
        """Take what a member that joins again has said."""
        self._count(member, -1)
        member.update(join)
        self._count(member, 1)

    def assign(self, member: Member, assignment: bytes) -> None:
        self.size -= member.size
        member.assign(assignment)
        self.size += member.size

    def _count(self, member: Member, sign: int) -> None:
        self.size += sign * member.size
        self.session_ms_min = min(self.session_ms_min, member.session_ms)
        for protocol in member.offered:
            self._offered[protocol] += sign
            if not self._offered[protocol]:  # names that a client invents are not remembered
                del self._offered[protocol]

    # -- the protocol that all share ------------------------------------------------------------------

    def offers_fit(self, join: Join, own_id: str, protocol_type: str) -> bool:
        """Whether all members would share a protocol.  ``own_id``: the member whose offers these replace."""
        if not join.protocol_type or not join.protocols:
            return False
        own = self.by_id.get(own_id)
        others = len(self.by_id) - (own is not None)
        if not others:
            return True
        own_offers = own.offered if own is not None else frozenset()
        return join.protocol_type == protocol_type and any(
            self._offered[offer.protocol] - (offer.protocol in own_offers) == others for offer in join.protocols
        )

    def elect_protocol(self) -> str:
        """Elect a protocol: every member votes for its first offer that all share; the most votes win."""
        return elected([member.protocols for member in self.by_id.values()])


def elected(offers: Collection[Iterable[Metadata]]) -> str:
    """The protocol that most want of those that all offer.

    Raises:
        StopIteration: they have none in common.
    """
    common = common_protocols(offers)
    votes = Counter(next(offer.protocol for offer in own if offer.protocol in common) for own in offers)
    return votes.most_common(1)[0][0]


def common_protocols(offers: Iterable[Iterable[Metadata]]) -> set[str]:
    """The protocols that all offer."""
    named = [{offer.protocol for offer in own} for own in offers]
    return set.intersection(*named) if named else set()
