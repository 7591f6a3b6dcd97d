"""The state machine of one Kafka group: members, generation, waiting requests.  No I/O; the clock is an argument.

States and transitions::

    EMPTY ──join──▶ PREPARING ──all joined, or time is up──▶ COMPLETING ──leader's sync──▶ STABLE
      ▲                │  ▲                                     │                            │
      └──nobody left───┘  └──── join, leave, a death, a new subscription, no sync in time ───┘

A *generation* begins when PREPARING ends.  In PREPARING every member has to join (``joining`` holds the token of its
unanswered JoinGroup).  Members that do not come in time are removed, static members only when their session ends.  In
COMPLETING the members wait for the leader's assignment (``syncing`` holds the token of SyncGroup).  The eager and the
cooperative protocol are the same here; only a static member that comes back makes a difference (:func:`_owes_a_join`).

There are three deadlines, all in ms of the caller's clock: a member's session (``expires_ms``, which counts only while
none of its requests waits), the rebalance (PREPARING ends), the sync (COMPLETING ends: members that have not synced are
removed).  Besides, an empty group delays its first rebalance by ``initial_delay_ms`` after its first member, so that
members started together share one generation.  That is short, so that a single member starts at once; where a second
one has come, more are likely, and the delay is at least ``newcomer_delay_ms`` after each.  And a client that was given
its id (MEMBER_ID_REQUIRED) and does not come back delays others by at most ``id_wait_ms``.

Invariants: one leader and one generation for all; every token is answered once, before its deadline; all members share
a protocol; a member never gets a generation of which it was not part.

Rules and error codes are those of Kafka's classic group coordinator (checked against Kafka 3.x's GroupCoordinator and
franz-go's kfake).  There are three differences.  A member that rejoins alone may change its protocols at will.  Commits
are accepted in COMPLETING; Kafka answers REBALANCE_IN_PROGRESS or ILLEGAL_GENERATION, which applications see that
commit while a cooperative group rebalances.  And a static member that dies before it has given up what it was told to
causes the rebalance that it owed when it comes back; in Kafka those partitions have no reader until another one comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from ..errors import BadValue
from ..wire.kafka.codes import Code
from .consumer_protocol import decode_assignment, decode_subscription
from .members import Member, Members
from .messages import Join, Joined, Limits, MemberReply, Metadata, Sync, Synced, Token
from .snapshots import ClassicMember, ClassicSnapshot
from .standstill import MemberHeard

GENERATION_MAX = 2**31 - 1


@dataclass(slots=True)
class Deadlines:
    """The deadlines of a group as a whole, in ms of the caller's clock; those of its members are in ``members``.

    When the present rebalance ends (PREPARING), and when all members must have synced (COMPLETING).

    ``delay_ms``: the end of the delay of an empty group's first rebalance; None while there is none.
    """

    rebalance_ms: int = 0
    sync_ms: int = 0
    delay_ms: int | None = None

    def begin_rebalance(self, now_ms: int, rebalance_ms: int, initial_delay_ms: int) -> None:
        """Begin a rebalance, which waits at least ``initial_delay_ms`` and at most ``rebalance_ms``."""
        self.rebalance_ms = now_ms + rebalance_ms
        delay_ms = min(now_ms + initial_delay_ms, self.rebalance_ms)
        self.delay_ms = delay_ms if delay_ms > now_ms else None

    def begin_sync(self, now_ms: int, rebalance_ms: int) -> None:
        self.sync_ms = now_ms + max(rebalance_ms, 1)

    def prolong_delay(self, now_ms: int, newcomer_delay_ms: int) -> None:
        """Have the delay, if there is one, last at least so long from now on, since another member has come."""
        if self.delay_ms is not None:
            self.delay_ms = min(max(self.delay_ms, now_ms + newcomer_delay_ms), self.rebalance_ms)

    def end_delay(self, now_ms: int) -> None:
        if self.delay_ms is not None and self.delay_ms <= now_ms:
            self.delay_ms = None

    def prolong(self, now_ms: int, rebalance_ms: int) -> None:
        """Put the deadlines off, as if the waits had begun now."""
        self.rebalance_ms = max(self.rebalance_ms, now_ms + rebalance_ms)
        self.sync_ms = max(self.sync_ms, now_ms + rebalance_ms)


class GroupState(Enum):
    """The value is the name that DescribeGroups and ListGroups show."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True)
class Group:
    """One group.  ``answer`` takes (token, reply); ``new_id`` returns a text that is unique for ever, for member ids.

    ``registered`` becomes false when members or owned partitions change, ``saved`` when members are told what a new
    coordinator must know (:meth:`snapshot`); the caller sets both.

    It has more than 20 methods: all transitions are in this one class, because each of them touches the state, the
    deadlines and the waiting tokens.
    """

    name: str
    limits: Limits
    answer: Callable[[Token, MemberReply], None]
    new_id: Callable[[], str]
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    roster: Members = field(default_factory=Members)
    registered: bool = True
    saved: bool = True
    _deadlines: Deadlines = field(default_factory=Deadlines)
    _unsynced: set[str] = field(default_factory=set)

    def heard(self, now_ms: int) -> dict[str, MemberHeard]:
        """When the members were heard last, and which of them a rebalance waits for to join.

        One whose request waits is there as long as its connection is.
        """
        preparing = self.state is GroupState.PREPARING
        return {
            member.id: MemberHeard.by_session(
                member.session_ms if member.waits else member.expires_ms - now_ms,
                member.session_ms,
                awaited=preparing and member.joining is None,
            )
            for member in self.members.values()
        }

    @property
    def members(self) -> dict[str, Member]:
        return self.roster.by_id

    @property
    def idle(self) -> bool:
        """Whether the group has no members and expects none."""
        return not self.members and not self.roster.expected

    @property
    def size(self) -> int:
        return self.roster.size

    def next_deadline_ms(self) -> int | None:
        return min([*self.roster.deadlines_ms(), *self._own_deadlines_ms()], default=None)

    def earliest_new_ms(self, now_ms: int) -> int:
        """No deadline that was set now is before this; unlike the next one, it is found without asking all members."""
        new_ms = [now_ms + self.roster.session_ms_min, *self._own_deadlines_ms()]
        return min([*new_ms, now_ms + self.limits.id_wait_ms] if self.roster.expected else new_ms)

    def _own_deadlines_ms(self) -> list[int]:
        """Those of the group as a whole."""
        if self.state is GroupState.PREPARING:
            delay_ms = self._deadlines.delay_ms
            return [self._deadlines.rebalance_ms] + ([] if delay_ms is None else [delay_ms])
        return [self._deadlines.sync_ms] if self.state is GroupState.COMPLETING else []

    # -- what survives the coordinator ----------------------------------------------------------------

    def snapshot(self) -> ClassicSnapshot | None:
        """The generation; None while none has an assignment, or nobody is in it."""
        if self.state is not GroupState.STABLE or not self.members:
            return None
        return ClassicSnapshot(
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            tuple(
                ClassicMember(
                    *(member.id, member.instance, member.client_id, member.client_host),
                    *(member.session_ms, member.rebalance_ms, member.protocols, member.assignment),
                )
                for member in self.members.values()
            ),
        )

    def restore(self, snapshot: ClassicSnapshot, now_ms: int) -> None:
        """Be as a group was of which this is the snapshot; this one is new.  All sessions begin now."""
        for stored in snapshot.members:
            protocols = tuple(Metadata(*offer) for offer in stored.protocols)
            self.roster.add_member(
                Member(
                    *(stored.id, stored.instance, stored.client_id, stored.client_host),
                    *(stored.session_ms, stored.rebalance_ms, protocols, now_ms + stored.session_ms),
                    assignment=stored.assignment,
                )
            )
        self.generation, self.leader = snapshot.generation, snapshot.leader
        self.protocol_type, self.protocol = snapshot.protocol_type, snapshot.protocol
        self.state, self.registered = GroupState.STABLE, False

    # -- requests -------------------------------------------------------------------------------------

    def join(self, token: Token, join: Join, now_ms: int) -> None:
        replaced = None
        if join.instance is not None and not join.member_id:
            replaced = self.roster.static.get(join.instance)
        if not self.roster.offers_fit(join, replaced or join.member_id, self.protocol_type):
            self.answer(token, Joined(Code.INCONSISTENT_GROUP_PROTOCOL, join.member_id))
        elif replaced is not None:
            self._replace_static(token, join, self.members[replaced], now_ms)
        elif not join.member_id:
            self._join_unnamed(token, join, now_ms)
        elif join.member_id in self.roster.expected and join.instance is None:
            self._add(join.member_id, token, join, now_ms)
        else:
            self._rejoin(token, join, now_ms)
        self._complete_if_ready(now_ms)

    def sync(self, token: Token, sync: Sync, now_ms: int) -> None:
        error = self.roster.check_member(sync.member_id, sync.instance) or self._check_generation(sync.generation)
        told = ((sync.protocol_type, self.protocol_type), (sync.protocol, self.protocol))
        if not error and any(theirs not in (None, ours) for theirs, ours in told):
            error = Code.INCONSISTENT_GROUP_PROTOCOL
        if not error and self.state is GroupState.PREPARING:
            error = Code.REBALANCE_IN_PROGRESS
        if error:
            self.answer(token, Synced(error))
            return
        member = self.members[sync.member_id]
        if self.state is GroupState.STABLE:
            member.renew(now_ms)
            self.answer(token, _synced(self, member))
            return
        assert self.state is GroupState.COMPLETING, self.state
        if member.syncing is not None:  # the client gave that request up and sent another one
            self.answer(member.syncing, Synced(Code.REBALANCE_IN_PROGRESS))
        member.syncing = token
        self._unsynced.discard(member.id)
        if member.id == self.leader:
            self._assign(dict(sync.assignments), now_ms)

    def heartbeat(self, member_id: str, instance: str | None, generation: int, now_ms: int) -> Code:
        error = self.roster.check_member(member_id, instance) or self._check_generation(generation)
        if error:
            return error
        member = self.members[member_id]
        member.renew(now_ms)
        return Code.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING else Code.NONE

    def leave(self, member_id: str, instance: str | None, now_ms: int) -> Code:
        """Remove a member; an administrator names a static member by its instance alone (``member_id`` empty)."""
        if instance is None and self.roster.forget_expected(member_id):
            self._complete_if_ready(now_ms)
            return Code.NONE
        if instance is not None and not member_id:
            member_id = self.roster.static.get(instance, "")
        error = self.roster.check_member(member_id, instance)
        if not error:
            self._remove(self.members[member_id], Code.UNKNOWN_MEMBER_ID)
            self.rebalance(now_ms)
        return error

    def may_commit(self, member_id: str, instance: str | None, generation: int, now_ms: int) -> Code:
        """Whether a commit is accepted: from a member of this generation, or from any client while there is no member.

        Until the leader has assigned, partitions have no new owners, so a member may still commit with the generation
        before.
        """
        if generation < 0 and not self.members:
            return Code.NONE
        if generation < 0 and not member_id and instance is None:
            return Code.UNKNOWN_MEMBER_ID
        error = self.roster.check_member(member_id, instance)
        if not error and not (self.state is GroupState.COMPLETING and generation == self.generation - 1):
            error = self._check_generation(generation)
        if not error:
            member = self.members[member_id]
            member.renew(now_ms)
        return error

    def prolong(self, now_ms: int) -> None:
        """Put every deadline off, as if every wait had begun now."""
        self.roster.expected = {id: now_ms + self.limits.id_wait_ms for id in self.roster.expected}
        for member in self.members.values():
            member.renew(now_ms)
        self._deadlines.prolong(now_ms, self.roster.rebalance_ms)

    def tick(self, now_ms: int) -> None:
        """Enforce every deadline that is over."""
        late = self.roster.late(now_ms)
        if self.state is GroupState.COMPLETING and self._deadlines.sync_ms <= now_ms:
            late |= self._unsynced
        for member_id in late:
            self._remove(self.members[member_id], Code.UNKNOWN_MEMBER_ID)
        if late:
            self.rebalance(now_ms)
        self._deadlines.end_delay(now_ms)
        if self.state is GroupState.PREPARING and self._deadlines.rebalance_ms <= now_ms:
            self._begin_generation(now_ms)
        else:
            self._complete_if_ready(now_ms)

    def dissolve(self, error: Code) -> None:
        """Remove all members, and answer their waiting requests with ``error``; the group is deleted, or has moved."""
        for member in list(self.members.values()):
            self._remove(member, error)
        for member_id in list(self.roster.expected):
            self.roster.forget_expected(member_id)
        self.state = GroupState.DEAD

    # -- joining --------------------------------------------------------------------------------------

    def _join_unnamed(self, token: Token, join: Join, now_ms: int) -> None:
        if len(self.members) + len(self.roster.expected) >= self.limits.members_max:
            self.answer(token, Joined(Code.GROUP_MAX_SIZE_REACHED, ""))
            return
        member_id = join.new_member_id(self.new_id())
        if join.id_wanted and join.instance is None:
            ends_ms = now_ms + min(join.session_ms, self.limits.id_wait_ms)
            self.roster.expect(member_id, join.session_ms, ends_ms)
            self.answer(token, Joined(Code.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(member_id, token, join, now_ms)

    def _add(self, member_id: str, token: Token, join: Join, now_ms: int) -> None:
        if not self.members:
            self.protocol_type = join.protocol_type
        member = Member.from_join(member_id, join, now_ms)
        member.joining = token
        self.roster.add_member(member)
        self._deadlines.prolong_delay(now_ms, self.limits.newcomer_delay_ms)
        self.rebalance(now_ms)

    def _rejoin(self, token: Token, join: Join, now_ms: int) -> None:
        error = self.roster.check_member(join.member_id, join.instance)
        if error:
            self.answer(token, Joined(error, join.member_id))
            return
        member = self.members[join.member_id]
        unchanged = member.protocols == join.protocols
        member.renew(now_ms)
        if unchanged and (
            self.state is GroupState.COMPLETING or (self.state is GroupState.STABLE and member.id != self.leader)
        ):
            self.answer(token, _joined(self, member))
            return
        self._update(member, token, join)
        self.rebalance(now_ms)

    def _update(self, member: Member, token: Token, join: Join) -> None:
        if len(self.members) == 1:
            self.protocol_type = join.protocol_type
        self.roster.update_member(member, join)
        if member.joining is not None:  # the client gave that request up and sent another one
            self.answer(member.joining, Joined(Code.REBALANCE_IN_PROGRESS, member.id))
        member.joining = token

    def _replace_static(self, token: Token, join: Join, old: Member, now_ms: int) -> None:
        """Let a restarted process replace its instance's member, without a rebalance if the same protocol is elected.

        The offers are not compared: Java's consumers write owned partitions into them, which differ after a restart.
        It is no use to answer with the old assignment if the old process owed the others a rebalance.

        The reply names the *old* id as leader, so that a restarted leader does not assign anew.
        """
        led_by = self.leader
        self._remove(old, Code.FENCED_INSTANCE_ID)
        member_id = join.new_member_id(self.new_id())
        member = Member.from_join(member_id, join, now_ms)
        member.assign(old.assignment)
        if not self.members:
            self.protocol_type = join.protocol_type
        self.roster.add_member(member)
        if led_by == old.id:
            self.leader = member_id
        same_protocol = self.state is GroupState.STABLE and self.roster.elect_protocol() == self.protocol
        if same_protocol and not _owes_a_join(old.metadata(self.protocol), old.assignment):
            self.saved = False
            self.answer(token, _joined(self, member)._replace(leader=led_by, members=()))
        else:
            member.joining = token
            self.rebalance(now_ms)

    # -- from one generation to the next --------------------------------------------------------------

    def rebalance(self, now_ms: int) -> None:
        """Begin a rebalance, unless one is in progress."""
        if self.state is not GroupState.PREPARING:
            for member in self.members.values():
                if self.state is GroupState.COMPLETING:
                    self.roster.assign(member, b"")
                if member.syncing is not None:
                    self._answer_sync(member, Synced(Code.REBALANCE_IN_PROGRESS), now_ms)
            delay_ms = self.limits.initial_delay_ms if self.state is GroupState.EMPTY else 0
            self._deadlines.begin_rebalance(now_ms, self.roster.rebalance_ms, delay_ms)
            self.state = GroupState.PREPARING
            self._unsynced.clear()
        self._complete_if_ready(now_ms)

    def _complete_if_ready(self, now_ms: int) -> None:
        if self.state is not GroupState.PREPARING:
            return
        if self.members and (self._deadlines.delay_ms is not None or self.roster.expected):
            return
        if all(member.joining is not None for member in self.members.values()):
            self._begin_generation(now_ms)

    def _begin_generation(self, now_ms: int) -> None:
        for member in [member for member in self.members.values() if member.joining is None]:
            if member.instance is None:
                self._remove(member, Code.UNKNOWN_MEMBER_ID)
        present = [member for member in self.members.values() if member.joining is not None]
        if self.members and not present:  # only absent static members are left, until their sessions end
            self._deadlines.begin_rebalance(now_ms, max(self.roster.rebalance_ms, 1), 0)
            return
        self._deadlines.delay_ms = None
        self.generation = self.generation % GENERATION_MAX + 1
        if not present:
            self.state, self.protocol, self.leader = GroupState.EMPTY, "", ""
            self.registered = self.saved = False
            return
        self.protocol = self.roster.elect_protocol()
        if self.leader not in self.members or self.members[self.leader].joining is None:
            self.leader = present[0].id
        self.state = GroupState.COMPLETING
        self._unsynced = set(self.members)
        self._deadlines.begin_sync(now_ms, self.roster.rebalance_ms)
        for member in self.members.values():
            self.roster.assign(member, b"")
        for member in present:
            token, member.joining = member.joining, None
            member.renew(now_ms)
            self.answer(token, _joined(self, member))

    def _assign(self, assignments: dict[str, bytes], now_ms: int) -> None:
        self.state, self.registered, self.saved = GroupState.STABLE, False, False
        for member in self.members.values():
            self.roster.assign(member, assignments.get(member.id, b""))
            if member.syncing is not None:
                self._answer_sync(member, _synced(self, member), now_ms)

    def _remove(self, member: Member, error: Code) -> None:
        if member.joining is not None:
            self.answer(member.joining, Joined(error, member.id))
        if member.syncing is not None:
            self.answer(member.syncing, Synced(error))
        self.roster.remove_member(member)
        if self.leader == member.id:
            self.leader = ""
        self.registered = False

    # -- replies --------------------------------------------------------------------------------------

    def _check_generation(self, generation: int) -> Code:
        return Code.NONE if generation == self.generation else Code.ILLEGAL_GENERATION

    def _answer_sync(self, member: Member, reply: Synced, now_ms: int) -> None:
        token, member.syncing = member.syncing, None
        member.renew(now_ms)
        self.answer(token, reply)


def _owes_a_join(subscription: bytes, assignment: bytes) -> bool:
    """Whether a member read partitions when it joined that it is told no more (KIP-429).

    It gives them up and joins again, and with that generation others get them.
    """
    try:
        offered = decode_subscription(subscription)
        return not set(offered.owned) <= set(decode_assignment(assignment, offered.user_data))
    except BadValue:  # of another protocol type, or of an assignor of its own
        return False


def _joined(group: Group, member: Member) -> Joined:
    everybody = group.members.values() if member.id == group.leader else ()
    return Joined(
        Code.NONE,
        member.id,
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader,
        tuple((other.id, other.instance, other.metadata(group.protocol)) for other in everybody),
    )


def _synced(group: Group, member: Member) -> Synced:
    return Synced(Code.NONE, group.protocol_type, group.protocol, member.assignment)
