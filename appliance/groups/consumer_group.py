"""The state machine of one group of the consumer protocol (KIP-848).  No I/O; the clock and the topics are arguments.

Members say in heartbeats what they subscribe to and what they own, and are told what to own.  Epochs order all of it::

    group epoch        grows when a member comes, leaves or is removed, or when subscriptions or their topics change
    assignment epoch   that of the last target assignment; the next heartbeat of anybody makes the next one
    member epoch       that of the target which a member has reached; 0 joins, -1 leaves, -2 leaves for a while

Members are brought to the target one by one (:mod:`.consumer_member`); nobody waits for all.  ``owners`` has who may
read a partition; nobody else is given it before.  A member goes when its session ends, or when it does not give up in
time what it has to.

Members of the classic protocol may share the group, so that its clients can be changed one after the other
(:mod:`.classic_members`, :mod:`.migration`).

A static member that leaves for a while keeps its partitions, until its session ends; whoever comes with its instance
name takes its place, without a new target.

Rules and error codes are those of Kafka 4's GroupMetadataManager, but for one thing: the session of a group's members
begins anew after the coordinator could not act (``prolong``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from ..catalog import Topic
from ..wire.kafka.codes import Code
from .assignors import ASSIGNORS, DEFAULT, IdAndNumber, Subscriber, TopicParts
from .consumer_member import LEFT, NO_MATCHING, Classic, ConsumerMember, Matching, subscription_bytes
from .messages import MEMBER_BYTES, PART_BYTES, Limits, metadata_bytes
from .snapshots import ConsumerSnapshot
from .standstill import MemberHeard

JOIN, LEAVE = 0, -1
"""Epochs of heartbeats, with :data:`LEFT`."""
ASSIGNED_PER_MS = 10
"""Members and partitions for which a target is made in one ms: it takes 3 us for each, so 3 % of a core, however fast
members come.  A group of 1,000 members and 5,000 partitions has a new target after 0.6 s, a small one at once."""


class ConsumerState(Enum):
    """The value is the name that ConsumerGroupDescribe and ListGroups show."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class TopicsView(NamedTuple):
    """The topics that there are.  ``revision`` grows with every change of them."""

    revision: int
    topics: Mapping[str, Topic]


class Beat(NamedTuple):
    """A ConsumerGroupHeartbeat; None, -1: as before.

    ``matching``: of the regular expression; "" is none.  ``full``: the client has said all of itself, and wants to know
    all of its assignment.  ``classic``: it is a JoinGroup of a member of the classic protocol.
    """

    member_id: str
    epoch: int
    instance: str | None
    rack: str | None
    client_id: str
    client_host: str
    rebalance_ms: int
    topics: frozenset[str] | None
    matching: Matching | None
    assignor: str | None
    owned: frozenset[IdAndNumber] | None
    full: bool
    classic: Classic | None = None

    @property
    def size(self) -> int:
        """Bytes kept for this request, at most, without partitions."""
        names = (self.member_id, self.instance or "", self.client_id, self.rack or "", self.assignor or "")
        matching = self.matching or NO_MATCHING
        more = len(matching.pattern) + 8 * len(matching.topics)
        if self.classic is not None:
            more += metadata_bytes(self.classic.protocols)
        return MEMBER_BYTES + sum(map(len, names)) + subscription_bytes(self.topics or frozenset()) + more


class Beaten(NamedTuple):
    """The reply.  ``assignment``: None if it is as before."""

    error: Code
    message: str | None = None
    member_id: str = ""
    epoch: int = 0
    assignment: frozenset[IdAndNumber] | None = None


@dataclass(slots=True)
class ConsumerGroup:
    """One group.

    ``registered`` becomes false when members or what they own change, ``saved`` when members are told what a new
    coordinator must know (:meth:`snapshot`); the caller sets both.
    """

    name: str
    limits: Limits
    epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = DEFAULT
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    static: dict[str, str] = field(default_factory=dict)
    """Member id by instance name."""
    owners: dict[IdAndNumber, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """Name by id of the topics that somebody subscribes to or has partitions of."""
    expected: dict[str, int] = field(default_factory=dict)
    """Ids that clients of the classic protocol were given, with the ends of their time to join."""
    registered: bool = True
    saved: bool = True
    _members_bytes: int = 0
    _subscribed: Counter[str] = field(default_factory=Counter)
    """How many members subscribe to a topic, whether it exists or not."""
    _topics: dict[str, TopicParts] = field(default_factory=dict)
    """The subscribed topics that exist, as of the last target."""
    _parts_count: int = 0
    _next_target_ms: int = 0
    _revision: int = -1

    @property
    def state(self) -> ConsumerState:
        if not self.members:
            return ConsumerState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerState.ASSIGNING
        settled = all(member.is_settled(self.epoch) or member.epoch == LEFT for member in self.members.values())
        return ConsumerState.STABLE if settled else ConsumerState.RECONCILING

    @property
    def size(self) -> int:
        """Bytes kept for this group."""
        return self._members_bytes + MEMBER_BYTES * len(self.expected) + PART_BYTES * self._parts_count

    @property
    def is_full(self) -> bool:
        return len(self.members) + len(self.expected) >= self.limits.members_max

    def subscribes(self, topic: str) -> bool:
        return topic in self._subscribed

    def next_deadline_ms(self) -> int | None:
        return min((member.deadline_ms for member in self.members.values()), default=None)

    # -- what survives the coordinator ----------------------------------------------------------------

    def snapshot(self) -> ConsumerSnapshot | None:
        """All that members were told; None when there are none."""
        if not self.members:
            return None
        return ConsumerSnapshot(
            self.epoch,
            self.assignment_epoch,
            self.assignor,
            self.names,
            tuple((name, topic.id, topic.numbers) for name, topic in sorted(self._topics.items())),
            tuple(member.snapshot() for member in self.members.values()),
        )

    def restore(self, snapshot: ConsumerSnapshot, now_ms: int) -> None:
        """Be as a group was of which this is the snapshot; this one is new.  All sessions begin now."""
        self.epoch, self.assignment_epoch = snapshot.epoch, snapshot.assignment_epoch
        self.assignor, self.names = snapshot.assignor, dict(snapshot.names)
        self._topics = {name: TopicParts(id, numbers) for name, id, numbers in snapshot.subscribed}
        self._parts_count = sum(len(topic.numbers) for topic in self._topics.values())
        for stored in snapshot.members:
            member = self.members[stored.id] = ConsumerMember.restored(stored)
            self._members_bytes += member.size
            self._subscribed.update(member.subscription)
            if member.instance is not None:
                self.static[member.instance] = member.id
            self.owners |= dict.fromkeys((*member.assigned, *member.revoking), member.id)
        self.prolong(now_ms)
        self.registered = False

    # -- requests -------------------------------------------------------------------------------------

    def beat(self, beat: Beat, view: TopicsView, now_ms: int) -> Beaten:
        """Answer a heartbeat, after the next step of its member."""
        if beat.epoch < JOIN:
            return self._leave(beat)
        refused = self._refusal(beat)
        if refused is not None:
            return refused
        member = self.members.get(beat.member_id)
        if member is not None and (beat.instance not in (None, member.instance) or _changes_protocol(member, beat)):
            self._remove(member)  # it joins anew, under another instance name or by the other protocol
            member = None
        came = member is None
        if member is None:
            member = self._come(beat)
        elif member.epoch == LEFT:
            member.epoch = member.previous_epoch = JOIN
        stood = self.epoch, self.assignment_epoch, member.progress
        told_all = beat.full or beat.epoch != member.epoch or beat.epoch == JOIN
        changed = self._update(member, beat)
        self._aim(view, changed or (came and not member.target), now_ms)
        before = member.assigned.keys()
        self._reconcile(member, beat, now_ms)
        self.renew(member, now_ms)
        if stood != (self.epoch, self.assignment_epoch, member.progress):
            self.saved = False
        told = told_all or member.assigned.keys() != before
        return Beaten(Code.NONE, None, member.id, member.epoch, frozenset(member.assigned) if told else None)

    def commit_code(self, member_id: str, epoch: int, part: IdAndNumber | None) -> Code:
        """Whether a commit for ``part`` is accepted; with None, what is said of all parts.

        One with an older epoch is, if the partition has been the member's since then: nobody else has read it
        meanwhile (KIP-1251).  STALE_MEMBER_EPOCH, of a member of the classic protocol ILLEGAL_GENERATION: it is older,
        and ``part`` has not, or is not said.
        """
        if epoch < 0 and not self.members:
            return Code.NONE
        member = self.members.get(member_id)
        if member is None:
            return Code.UNKNOWN_MEMBER_ID
        if epoch == member.epoch or (part is not None and 0 < epoch < member.epoch and member.has_since(part, epoch)):
            return Code.NONE
        return Code.STALE_MEMBER_EPOCH if member.classic is None else Code.ILLEGAL_GENERATION

    def renew(self, member: ConsumerMember, now_ms: int) -> None:
        """Begin the member's session anew, after a request of it."""
        member.expires_ms = now_ms + self._session_ms(member)

    def heard(self, now_ms: int) -> dict[str, MemberHeard]:
        """When the members were heard last.  No rebalance waits for one: each is reconciled by itself."""
        return {
            member.id: MemberHeard.by_session(member.expires_ms - now_ms, self._session_ms(member))
            for member in self.members.values()
        }

    def lengthen(self, now_ms: int) -> None:
        """Let the sessions of all members last as long as ``limits`` has it now, if that is longer."""
        for member in self.members.values():
            member.expires_ms = max(member.expires_ms, now_ms + self._session_ms(member))

    def _session_ms(self, member: ConsumerMember) -> int:
        return self.limits.consumer_session_ms if member.classic is None else member.classic.session_ms

    def leave_classic(self, member_id: str, instance: str | None) -> Code:
        """Remove a member of the classic protocol, or a static member, as an administrator does (no ``member_id``)."""
        if not member_id:
            return self.remove_instance(instance)
        member = self.members.get(member_id)
        if instance is not None and self.static.get(instance, member_id) != member_id:
            return Code.FENCED_INSTANCE_ID
        if member is None or member.classic is None or instance not in (None, member.instance):
            return Code.UNKNOWN_MEMBER_ID
        self._remove(member)
        return Code.NONE

    @property
    def can_be_classic(self) -> bool:
        """Whether the members are all of the classic protocol, and hold what they were told with the same epoch.

        Kafka does not wait for the latter; members whose generation is older would lose what they read.
        """
        return (
            self.limits.downgrades
            and bool(self.members)
            and all(
                member.classic is not None and member.epoch == self.epoch and not member.revoking
                for member in self.members.values()
            )
        )

    def remove_instance(self, instance: str | None) -> Code:
        """Remove a static member, as an administrator does by LeaveGroup."""
        member = self.members.get(self.static.get(instance or "", ""))
        if member is None:
            return Code.UNKNOWN_MEMBER_ID
        self._remove(member)
        return Code.NONE

    def prolong(self, now_ms: int) -> None:
        """Put every deadline off, as if every wait had begun now."""
        for member in self.members.values():
            self.renew(member, now_ms)
            if member.act_by_ms is not None:
                member.act_by_ms = now_ms + member.rebalance_ms

    def tick(self, now_ms: int) -> None:
        """Remove the members whose time is over, and forget ids that nobody has joined with."""
        self.expected = {id: ends_ms for id, ends_ms in self.expected.items() if ends_ms > now_ms}
        for member in [member for member in self.members.values() if member.deadline_ms <= now_ms]:
            self._remove(member)

    # -- who is who -----------------------------------------------------------------------------------

    def _refusal(self, beat: Beat) -> Beaten | None:
        """The reply to a heartbeat that is not of a member, or of a new one that may not join."""
        member = self.members.get(beat.member_id)
        holder = self.static.get(beat.instance) if beat.instance is not None else None
        if beat.epoch == JOIN:
            if holder is not None and holder != beat.member_id and not self._gives_way(self.members[holder], beat):
                return Beaten(Code.UNRELEASED_INSTANCE_ID, f"instance {beat.instance!r} is still used by {holder!r}")
            if member is None and holder is None and self.is_full:
                return Beaten(Code.GROUP_MAX_SIZE_REACHED, f"a group has at most {self.limits.members_max} members")
            return None
        if holder is not None and holder != beat.member_id:
            return Beaten(Code.FENCED_INSTANCE_ID, f"instance {beat.instance!r} is another member now")
        if member is None or (beat.instance is not None and holder is None) or _changes_protocol(member, beat):
            return Beaten(Code.UNKNOWN_MEMBER_ID, f"there is no member {beat.member_id!r}: join with epoch 0")
        if not member.accepts(beat.epoch, beat.owned):
            return Beaten(Code.FENCED_MEMBER_EPOCH, f"epoch {beat.epoch}, but the member's is {member.epoch}")
        return None

    @staticmethod
    def _gives_way(holder: ConsumerMember, beat: Beat) -> bool:
        """Whether the present holder of an instance name has to make room: members of the classic protocol, which do
        not say when they go, always do, and to them everybody."""
        return holder.epoch == LEFT or holder.classic is not None or beat.classic is not None

    def _come(self, beat: Beat) -> ConsumerMember:
        """Add a new member, or one in the place of a static member that is away."""
        member = ConsumerMember(beat.member_id, beat.instance, beat.client_id, beat.client_host)
        old = self.members.get(self.static.get(beat.instance, "")) if beat.instance is not None else None
        if old is not None:
            member.topics, member.matching, member.assignor = old.topics, old.matching, old.assignor
            member.rack, member.rebalance_ms, member.target = old.rack, old.rebalance_ms, old.target
            member.assigned = old.assigned
            self._subscribed.update(member.subscription)
            self._forget(old)
            for part in member.assigned:
                self.owners[part] = member.id
        self.members[member.id] = member
        self._members_bytes += member.size
        if member.instance is not None:
            self.static[member.instance] = member.id
        self.registered = self.saved = False
        return member

    def _update(self, member: ConsumerMember, beat: Beat) -> bool:
        """Take what the member says of itself; whether its subscription has changed."""
        said = beat.topics, beat.matching, beat.assignor, beat.rack
        if beat.rebalance_ms < 0 and all(field is None for field in said):
            return False
        before, assignor = member.subscription, member.assignor
        said_before = member.said
        self._members_bytes -= member.size
        member.rack = beat.rack if beat.rack is not None else member.rack
        if beat.rebalance_ms >= 0:
            member.rebalance_ms = min(beat.rebalance_ms, self.limits.rebalance_ms_max)
        member.topics = beat.topics if beat.topics is not None else member.topics
        member.matching = beat.matching if beat.matching is not None else member.matching
        member.assignor = beat.assignor if beat.assignor is not None else member.assignor
        member.classic = beat.classic
        self._members_bytes += member.size
        after = member.subscription
        if member.said != said_before:
            self.saved = False
        if after != before:
            self._subscribed.update(after)
            self._unsubscribe(before)
            self.registered = False
        return after != before or member.assignor != assignor

    def _unsubscribe(self, topics: Iterable[str]) -> None:
        for name in topics:
            self._subscribed[name] -= 1
            if not self._subscribed[name]:
                del self._subscribed[name]

    def _leave(self, beat: Beat) -> Beaten:
        member = self.members.get(beat.member_id)
        holder = self.static.get(beat.instance) if beat.instance is not None else None
        if holder is not None and holder != beat.member_id:
            return Beaten(Code.FENCED_INSTANCE_ID, f"instance {beat.instance!r} is another member now")
        if member is None or (beat.instance is not None and holder is None):
            return Beaten(Code.UNKNOWN_MEMBER_ID, f"there is no member {beat.member_id!r}")
        if beat.epoch == LEAVE or member.instance is None:
            self._remove(member)
        else:
            member.epoch, member.act_by_ms = LEFT, None
            self.saved = False
            self._own(member, member.assigned, {})
        return Beaten(Code.NONE, None, beat.member_id, beat.epoch)

    def _remove(self, member: ConsumerMember) -> None:
        self._forget(member)
        if not self.can_be_classic:  # else those that are left elect a leader, who assigns
            self.epoch += 1

    def _forget(self, member: ConsumerMember) -> None:
        self._own(member, {}, {})
        self._members_bytes -= member.size
        self._unsubscribe(member.subscription)
        del self.members[member.id]
        if member.instance is not None and self.static.get(member.instance) == member.id:
            del self.static[member.instance]
        self.registered = self.saved = False

    # -- what they should have, and what they have ----------------------------------------------------

    def _aim(self, view: TopicsView, changed: bool, now_ms: int) -> None:
        """Make a new target, if anything has changed that it depends on, and the last one is long enough ago."""
        if changed or view.revision != self._revision:
            self._revision = view.revision
            topics = {name: _parts_of(view.topics[name]) for name in self._subscribed if name in view.topics}
            if changed or topics != self._topics:
                self.epoch += 1
            self._topics = topics
            self._parts_count = sum(len(topic.numbers) for topic in topics.values())
        if self.epoch == self.assignment_epoch or now_ms < self._next_target_ms:
            return
        self._next_target_ms = now_ms + (self._parts_count + len(self.members)) // ASSIGNED_PER_MS
        named = Counter(member.assignor for member in self.members.values() if member.assignor)
        self.assignor = max(sorted(named), key=lambda name: named[name], default=DEFAULT)
        subscribers = {
            member.id: Subscriber(member.instance, member.subscription, member.target)
            for member in self.members.values()
        }
        for member_id, target in ASSIGNORS[self.assignor](subscribers, self._topics).items():
            self.members[member_id].target = target
        self.assignment_epoch = self.epoch
        used = {part[0] for part in self.owners}
        self.names = {id: name for id, name in self.names.items() if id in used}
        self.names |= {topic.id: name for name, topic in self._topics.items()}

    def _reconcile(self, member: ConsumerMember, beat: Beat, now_ms: int) -> None:
        assigned, revoking = member.assigned, member.revoking
        member.reconcile(self.assignment_epoch, beat.owned, lambda part: part not in self.owners)
        after = member.assigned, member.revoking
        member.assigned, member.revoking = assigned, revoking
        self._own(member, *after)
        if not member.revoking:
            member.act_by_ms = None
        elif member.act_by_ms is None or member.revoking != revoking:
            member.act_by_ms = now_ms + member.rebalance_ms

    def _own(self, member: ConsumerMember, assigned: dict[IdAndNumber, int], revoking: dict[IdAndNumber, int]) -> None:
        """Let the member have these partitions, and no others."""
        if member.assigned.keys() == assigned.keys() and member.revoking.keys() == revoking.keys():
            return
        for part in (*member.assigned, *member.revoking):
            if part not in assigned and part not in revoking:
                del self.owners[part]
        for part in (*assigned, *revoking):
            assert self.owners.get(part, member.id) == member.id, f"{part} has an owner"
            self.owners[part] = member.id
        member.assigned, member.revoking = assigned, revoking
        self.registered = self.saved = False


def _changes_protocol(member: ConsumerMember, beat: Beat) -> bool:
    return (member.classic is None) is not (beat.classic is None)


def _parts_of(topic: Topic) -> TopicParts:
    return TopicParts(topic.id, tuple(sorted(topic.partitions)))
