"""One Kafka group: who is in it, which generation, who waits for what.  Pure state, the clock is an argument.

States and what moves between them::

    EMPTY ──join──▶ PREPARING ──all joined, or time is up──▶ COMPLETING ──leader's sync──▶ STABLE
      ▲                │  ▲                                     │                            │
      └──nobody left───┘  └──── join, leave, a death, a new subscription, no sync in time ───┘

A *generation* begins when PREPARING ends.  In PREPARING every member is awaited (``joining`` holds the
token of its unanswered JoinGroup); whoever does not come in time is out, static members excepted until
their session ends.  In COMPLETING the members wait for the leader's assignment (``syncing`` holds the token
of SyncGroup); the broker never looks into it, so the eager and the cooperative protocol are the same here.

Three deadlines, all in ms of the caller's clock: a member's session (``expires_ms``, counts only while it
awaits nothing of us), the rebalance (PREPARING ends), the sync (COMPLETING ends: members that have not
synced are out). Two waits are ours: an empty group holds its first rebalance for ``initial_delay_ms`` after
each newcomer, so that members started together share one generation (short, so that a single member starts
at once); and a client that was told its id (MEMBER_ID_REQUIRED) and does not come back holds others for at
most ``id_wait_ms``.

Invariants: one leader and one generation for all; every token is answered once, before its deadline; all
members share a protocol; a member is never answered a generation that it was not part of.

Rules and error codes are those of Kafka's classic group coordinator (checked against Kafka 3.x's GroupCoordinator and
franz-go's kfake).  Two differences, both more lenient: a member that rejoins alone may change its protocols at will,
and commits are taken in COMPLETING (Kafka answers REBALANCE_IN_PROGRESS or ILLEGAL_GENERATION, which applications
that commit while a cooperative group rebalances get to see).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from .codes import Code

Token = Any
"""Whatever the caller wants back with the reply; None is not a token."""

GENERATION_MAX = 2**31 - 1
MEMBER_BYTES = 1024
"""What a member costs besides the bytes that it sends, rounded up; an id that nobody has joined with counts as one."""


class State(Enum):
    """The value is the name that DescribeGroups and ListGroups show."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the group coordinator.  A join or an assignment beyond one is answered
    GROUP_MAX_SIZE_REACHED.

    ``groups_max`` live groups; ``members_max`` per group; ``protocols_max`` and ``metadata_bytes_max`` per
    member (all protocols together); ``bytes_max`` for everything that members sent, in all groups together;
    ``waits_max`` requests that wait for other members (half of what one worker may have unanswered), beyond which
    they are answered COORDINATOR_LOAD_IN_PROGRESS.
    """

    groups_max: int = 10_000
    members_max: int = 1_000
    protocols_max: int = 32
    metadata_bytes_max: int = 1024 * 1024
    bytes_max: int = 128 * 1024 * 1024
    waits_max: int = 4_096
    session_ms_min: int = 1_000
    session_ms_max: int = 30 * 60_000
    rebalance_ms_max: int = 60 * 60_000
    initial_delay_ms: int = 100
    id_wait_ms: int = 3_000


class Metadata(NamedTuple):
    """One protocol that a member offers, in order of preference, with its subscription."""

    protocol: str
    data: bytes


class Join(NamedTuple):
    """A JoinGroup request.  ``id_wanted``: the client can take an id first and join with it (version 4 on)."""

    member_id: str
    instance: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: tuple[Metadata, ...]
    id_wanted: bool

    @property
    def size(self) -> int:
        """Bytes that this request makes us keep, at most."""
        names = 2 * len(self.client_id) + 2 * len(self.instance or "") + len(self.member_id)
        return MEMBER_BYTES + names + metadata_bytes(self.protocols)


class Joined(NamedTuple):
    """``members`` (id, instance, metadata of the chosen protocol) is filled for the leader only."""

    error: Code
    member_id: str
    generation: int = -1
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()


class Synced(NamedTuple):
    error: Code
    protocol_type: str = ""
    protocol: str = ""
    assignment: bytes = b""


Reply = Joined | Synced


@dataclass(slots=True)
class Member:
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

    @property
    def waits(self) -> bool:
        return self.joining is not None or self.syncing is not None

    @property
    def size(self) -> int:
        """Bytes that the peer made us keep."""
        names = len(self.id) + len(self.instance or "") + len(self.client_id)
        return MEMBER_BYTES + names + len(self.assignment) + metadata_bytes(self.protocols)

    def metadata(self, protocol: str) -> bytes:
        return next((offer.data for offer in self.protocols if offer.protocol == protocol), b"")


def metadata_bytes(protocols: Iterable[Metadata]) -> int:
    return sum(len(offer.protocol) + len(offer.data) for offer in protocols)


@dataclass(slots=True)
class Group:
    """``answer`` takes (token, reply); ``new_id`` gives a text that is unique for ever, to make member ids
    of.

    ``expected``: ids told to clients that have not joined with them, until when.  ``shown`` turns false
    whenever the members or what they own have changed since the caller last set it."""

    name: str
    limits: Limits
    answer: Callable[[Token, Reply], None]
    new_id: Callable[[], str]
    state: State = State.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: dict[str, Member] = field(default_factory=dict)
    static: dict[str, str] = field(default_factory=dict)
    expected: dict[str, int] = field(default_factory=dict)
    shown: bool = True
    _delay_ends_ms: int | None = None
    _rebalance_ends_ms: int = 0
    _sync_ends_ms: int = 0
    _unsynced: set[str] = field(default_factory=set)

    # -- views ----------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Nobody is in it and nobody is expected."""
        return not self.members and not self.expected

    @property
    def size(self) -> int:
        told = sum(MEMBER_BYTES + len(member_id) for member_id in self.expected)
        return told + sum(member.size for member in self.members.values())

    def next_deadline_ms(self) -> int | None:
        deadlines = list(self.expected.values())
        deadlines += [member.expires_ms for member in self.members.values() if not member.waits]
        if self.state is State.PREPARING:
            deadlines.append(self._rebalance_ends_ms)
            if self._delay_ends_ms is not None:
                deadlines.append(self._delay_ends_ms)
        elif self.state is State.COMPLETING:
            deadlines.append(self._sync_ends_ms)
        return min(deadlines, default=None)

    def check(self, member_id: str, instance: str | None) -> Code:
        """Is this one of our members, and still the one that holds its instance name?"""
        if instance is not None:
            holder = self.static.get(instance)
            if holder is None:
                return Code.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return Code.FENCED_INSTANCE_ID
        return Code.NONE if member_id in self.members else Code.UNKNOWN_MEMBER_ID

    # -- requests -------------------------------------------------------------------------------------

    def join(self, token: Token, join: Join, now_ms: int) -> None:
        replaced = None
        if join.instance is not None and not join.member_id:
            replaced = self.static.get(join.instance)
        if not self._offers_fit(join, replaced or join.member_id):
            self.answer(token, Joined(Code.INCONSISTENT_GROUP_PROTOCOL, join.member_id))
        elif replaced is not None:
            self._replace_static(token, join, self.members[replaced], now_ms)
        elif not join.member_id:
            self._join_unnamed(token, join, now_ms)
        elif join.member_id in self.expected and join.instance is None:
            self._add(join.member_id, token, join, now_ms)
        else:
            self._rejoin(token, join, now_ms)
        self._complete_if_ready(now_ms)

    def sync(
        self,
        token: Token,
        member_id: str,
        instance: str | None,
        generation: int,
        protocol_type: str | None,
        protocol: str | None,
        assignments: Sequence[tuple[str, bytes]],
        now_ms: int,
    ) -> None:
        """``protocol_type`` and ``protocol``: what the client believes (version 5 on), None when it does
        not say.
        """
        error = self.check(member_id, instance) or self._check_generation(generation)
        if not error and (protocol_type not in (None, self.protocol_type) or protocol not in (None, self.protocol)):
            error = Code.INCONSISTENT_GROUP_PROTOCOL
        if not error and self.state is State.PREPARING:
            error = Code.REBALANCE_IN_PROGRESS
        if error:
            self.answer(token, Synced(error))
            return
        member = self.members[member_id]
        if self.state is State.STABLE:
            member.expires_ms = now_ms + member.session_ms
            self.answer(token, self._synced(member))
            return
        assert self.state is State.COMPLETING, self.state
        self._supersede_sync(member)
        member.syncing = token
        self._unsynced.discard(member_id)
        if member_id == self.leader:
            self._assign(dict(assignments), now_ms)

    def heartbeat(self, member_id: str, instance: str | None, generation: int, now_ms: int) -> Code:
        error = self.check(member_id, instance) or self._check_generation(generation)
        if error:
            return error
        member = self.members[member_id]
        member.expires_ms = now_ms + member.session_ms
        return Code.REBALANCE_IN_PROGRESS if self.state is State.PREPARING else Code.NONE

    def leave(self, member_id: str, instance: str | None, now_ms: int) -> Code:
        """An administrator may remove a static member by its instance name alone (``member_id`` empty)."""
        if instance is None and self.expected.pop(member_id, None) is not None:
            self._complete_if_ready(now_ms)
            return Code.NONE
        if instance is not None and not member_id:
            member_id = self.static.get(instance, "")
        error = self.check(member_id, instance)
        if not error:
            self._remove(self.members[member_id], Code.UNKNOWN_MEMBER_ID)
            self._rebalance(now_ms)
        return error

    def may_commit(self, member_id: str, instance: str | None, generation: int, now_ms: int) -> Code:
        """Positions may come from a member of this generation, or from anybody while there are no members.

        Before the leader has assigned, nothing has a new owner yet, so what a member read in the generation before is
        its own still, and so is a commit that was under way when this generation began.
        """
        if generation < 0 and not self.members:
            return Code.NONE
        if generation < 0 and not member_id and instance is None:
            return Code.UNKNOWN_MEMBER_ID
        error = self.check(member_id, instance)
        if not error and not (self.state is State.COMPLETING and generation == self.generation - 1):
            error = self._check_generation(generation)
        if not error:
            member = self.members[member_id]
            member.expires_ms = now_ms + member.session_ms
        return error

    def prolong(self, now_ms: int) -> None:
        """Put every deadline off, as if all that is awaited had begun now."""
        self.expected = {id: now_ms + self.limits.id_wait_ms for id in self.expected}
        for member in self.members.values():
            member.expires_ms = now_ms + member.session_ms
        self._rebalance_ends_ms = max(self._rebalance_ends_ms, now_ms + self._rebalance_ms())
        self._sync_ends_ms = max(self._sync_ends_ms, now_ms + self._rebalance_ms())

    def tick(self, now_ms: int) -> None:
        """Act on every deadline that is over."""
        self.expected = {id: ends_ms for id, ends_ms in self.expected.items() if ends_ms > now_ms}
        late = {member.id for member in self.members.values() if not member.waits and member.expires_ms <= now_ms}
        if self.state is State.COMPLETING and self._sync_ends_ms <= now_ms:
            late |= self._unsynced
        for member_id in late:
            self._remove(self.members[member_id], Code.UNKNOWN_MEMBER_ID)
        if late:
            self._rebalance(now_ms)
        if self._delay_ends_ms is not None and self._delay_ends_ms <= now_ms:
            self._delay_ends_ms = None
        if self.state is State.PREPARING and self._rebalance_ends_ms <= now_ms:
            self._begin_generation(now_ms)
        else:
            self._complete_if_ready(now_ms)

    def dissolve(self, error: Code) -> None:
        """Everybody out, whoever waits is told ``error``: the group is deleted or another broker's from now
        on.
        """
        for member in list(self.members.values()):
            self._remove(member, error)
        self.expected.clear()
        self.state = State.DEAD

    # -- joining --------------------------------------------------------------------------------------

    def _offers_fit(self, join: Join, own_id: str) -> bool:
        """Would all members still have a protocol in common?  ``own_id``: the member whose offers these
        replace.
        """
        if not join.protocol_type or not join.protocols:
            return False
        others = [member for member in self.members.values() if member.id != own_id]
        if not others:
            return True
        return join.protocol_type == self.protocol_type and bool(
            self._common_protocols(others) & {offer.protocol for offer in join.protocols}
        )

    @staticmethod
    def _common_protocols(members: Iterable[Member]) -> set[str]:
        offers = [{offer.protocol for offer in member.protocols} for member in members]
        return set.intersection(*offers) if offers else set()

    def _join_unnamed(self, token: Token, join: Join, now_ms: int) -> None:
        if len(self.members) + len(self.expected) >= self.limits.members_max:
            self.answer(token, Joined(Code.GROUP_MAX_SIZE_REACHED, ""))
            return
        member_id = f"{join.client_id if join.instance is None else join.instance}-{self.new_id()}"
        if join.id_wanted and join.instance is None:
            self.expected[member_id] = now_ms + min(join.session_ms, self.limits.id_wait_ms)
            self.answer(token, Joined(Code.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(member_id, token, join, now_ms)

    def _add(self, member_id: str, token: Token, join: Join, now_ms: int) -> None:
        self.expected.pop(member_id, None)
        if not self.members:
            self.protocol_type = join.protocol_type
        member = Member(
            id=member_id,
            instance=join.instance,
            client_id=join.client_id,
            client_host=join.client_host,
            session_ms=join.session_ms,
            rebalance_ms=join.rebalance_ms,
            protocols=join.protocols,
            expires_ms=now_ms + join.session_ms,
            joining=token,
        )
        self.members[member_id] = member
        if join.instance is not None:
            self.static[join.instance] = member_id
        if self._delay_ends_ms is not None:
            self._delay_ends_ms = min(now_ms + self.limits.initial_delay_ms, self._rebalance_ends_ms)
        self._rebalance(now_ms)

    def _rejoin(self, token: Token, join: Join, now_ms: int) -> None:
        error = self.check(join.member_id, join.instance)
        if error:
            self.answer(token, Joined(error, join.member_id))
            return
        member = self.members[join.member_id]
        unchanged = member.protocols == join.protocols
        member.expires_ms = now_ms + member.session_ms
        if unchanged and (self.state is State.COMPLETING or (self.state is State.STABLE and member.id != self.leader)):
            self.answer(token, self._joined(member))
            return
        self._update(member, token, join)
        self._rebalance(now_ms)

    def _update(self, member: Member, token: Token, join: Join) -> None:
        if len(self.members) == 1:
            self.protocol_type = join.protocol_type
        member.client_id, member.client_host = join.client_id, join.client_host
        member.session_ms, member.rebalance_ms = join.session_ms, join.rebalance_ms
        member.protocols = join.protocols
        if member.joining is not None:  # the client gave that request up and sent another one
            self.answer(member.joining, Joined(Code.REBALANCE_IN_PROGRESS, member.id))
        member.joining = token

    def _replace_static(self, token: Token, join: Join, old: Member, now_ms: int) -> None:
        """A restarted process takes its instance's place.  While the same protocol is elected, nobody else notices.

        Not the offers are compared: Java's consumers write what they owned into them, which differs after a restart.

        The reply then names the *old* id as leader, so that a restarted leader does not assign anew.
        """
        assert join.instance is not None
        led_by = self.leader
        self._remove(old, Code.FENCED_INSTANCE_ID)
        member_id = f"{join.instance}-{self.new_id()}"
        member = Member(
            id=member_id,
            instance=join.instance,
            client_id=join.client_id,
            client_host=join.client_host,
            session_ms=join.session_ms,
            rebalance_ms=join.rebalance_ms,
            protocols=join.protocols,
            expires_ms=now_ms + join.session_ms,
            assignment=old.assignment,
        )
        if not self.members:
            self.protocol_type = join.protocol_type
        self.members[member_id] = member
        self.static[join.instance] = member_id
        if led_by == old.id:
            self.leader = member_id
        if self.state is State.STABLE and self._elect_protocol() == self.protocol:
            self.answer(token, self._joined(member)._replace(leader=led_by, members=()))
        else:
            member.joining = token
            self._rebalance(now_ms)

    # -- from one generation to the next --------------------------------------------------------------

    def _rebalance(self, now_ms: int) -> None:
        """Call everybody in, unless that is under way already."""
        if self.state is not State.PREPARING:
            for member in self.members.values():
                member.assignment = b"" if self.state is State.COMPLETING else member.assignment
                if member.syncing is not None:
                    self._answer_sync(member, Synced(Code.REBALANCE_IN_PROGRESS), now_ms)
            first = self.state is State.EMPTY
            self.state = State.PREPARING
            self._unsynced.clear()
            self._rebalance_ends_ms = now_ms + self._rebalance_ms()
            delay_ends_ms = min(now_ms + self.limits.initial_delay_ms, self._rebalance_ends_ms)
            self._delay_ends_ms = delay_ends_ms if first and delay_ends_ms > now_ms else None
        self._complete_if_ready(now_ms)

    def _rebalance_ms(self) -> int:
        return max((member.rebalance_ms for member in self.members.values()), default=0)

    def _complete_if_ready(self, now_ms: int) -> None:
        if self.state is not State.PREPARING:
            return
        awaited = any(member.joining is None for member in self.members.values()) or self.expected
        if not self.members or (not awaited and self._delay_ends_ms is None):
            self._begin_generation(now_ms)

    def _begin_generation(self, now_ms: int) -> None:
        for member in [member for member in self.members.values() if member.joining is None]:
            if member.instance is None:
                self._remove(member, Code.UNKNOWN_MEMBER_ID)
        present = [member for member in self.members.values() if member.joining is not None]
        if self.members and not present:  # only static members that are away: their sessions decide
            self._rebalance_ends_ms = now_ms + max(self._rebalance_ms(), 1)
            return
        self._delay_ends_ms = None
        self.generation = self.generation % GENERATION_MAX + 1
        if not present:
            self.state, self.protocol, self.leader, self.shown = State.EMPTY, "", "", False
            return
        self.protocol = self._elect_protocol()
        if self.leader not in self.members or self.members[self.leader].joining is None:
            self.leader = present[0].id
        self.state = State.COMPLETING
        self._unsynced = set(self.members)
        self._sync_ends_ms = now_ms + max(self._rebalance_ms(), 1)
        for member in self.members.values():
            member.assignment = b""
        for member in present:
            token, member.joining = member.joining, None
            member.expires_ms = now_ms + member.session_ms
            self.answer(token, self._joined(member))

    def _elect_protocol(self) -> str:
        """Every member votes for the first of its offers that all share; the first of the most voted wins."""
        common = self._common_protocols(self.members.values())
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes[next(offer.protocol for offer in member.protocols if offer.protocol in common)] += 1
        return votes.most_common(1)[0][0]

    def _assign(self, assignments: dict[str, bytes], now_ms: int) -> None:
        self.state, self.shown = State.STABLE, False
        for member in self.members.values():
            member.assignment = assignments.get(member.id, b"")
            if member.syncing is not None:
                self._answer_sync(member, self._synced(member), now_ms)

    def _remove(self, member: Member, error: Code) -> None:
        if member.joining is not None:
            self.answer(member.joining, Joined(error, member.id))
        if member.syncing is not None:
            self.answer(member.syncing, Synced(error))
        del self.members[member.id]
        if member.instance is not None:
            del self.static[member.instance]
        if self.leader == member.id:
            self.leader = ""
        self.shown = False

    # -- replies --------------------------------------------------------------------------------------

    def _check_generation(self, generation: int) -> Code:
        return Code.NONE if generation == self.generation else Code.ILLEGAL_GENERATION

    def _joined(self, member: Member) -> Joined:
        everybody = self.members.values() if member.id == self.leader else ()
        return Joined(
            Code.NONE,
            member.id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            tuple((other.id, other.instance, other.metadata(self.protocol)) for other in everybody),
        )

    def _synced(self, member: Member) -> Synced:
        return Synced(Code.NONE, self.protocol_type, self.protocol, member.assignment)

    def _answer_sync(self, member: Member, reply: Synced, now_ms: int) -> None:
        token, member.syncing = member.syncing, None
        member.expires_ms = now_ms + member.session_ms
        self.answer(token, reply)

    def _supersede_sync(self, member: Member) -> None:
        if member.syncing is not None:  # the client gave that request up and sent another one
            self.answer(member.syncing, Synced(Code.REBALANCE_IN_PROGRESS))
