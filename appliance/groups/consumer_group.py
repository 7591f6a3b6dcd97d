"""The state machine of one group of the consumer protocol (KIP-848).  No I/O; the clock and the topics are arguments.

Members say in heartbeats what they subscribe to and what they own, and are told what to own.  Epochs order all of it::

    group epoch        grows when a member comes, leaves or is removed, or when subscriptions or their topics change
    assignment epoch   that of the last target assignment; the next heartbeat of anybody makes the next one
    member epoch       that of the target which a member has reached; 0 joins, -1 leaves, -2 leaves for a while

Members are brought to the target one by one (:mod:`.consumer_member`); nobody waits for all.  ``owners`` has who may
read a partition; nobody else is given it before.  A member goes when its session ends, or when it does not give up in
time what it has to.

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
from .assignors import ASSIGNORS, DEFAULT, Part, Subscriber, TopicParts
from .consumer_member import LEFT, NO_MATCHING, ConsumerMember, Matching, subscription_bytes
from .messages import MEMBER_BYTES, PART_BYTES, Limits

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


class View(NamedTuple):
    """The topics that there are.  ``revision`` grows with every change of them."""

    revision: int
    topics: Mapping[str, Topic]


class Beat(NamedTuple):
    """A ConsumerGroupHeartbeat; None, -1: as before.

    ``matching``: of the regular expression; "" is none.  ``full``: the client has said all of itself, and wants to know
    all of its assignment.
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
    owned: frozenset[Part] | None
    full: bool

    @property
    def size(self) -> int:
        """Bytes kept for this request, at most, without partitions."""
        names = (self.member_id, self.instance or "", self.client_id, self.rack or "", self.assignor or "")
        matching = self.matching or NO_MATCHING
        more = len(matching.pattern) + 8 * len(matching.topics)
        return MEMBER_BYTES + sum(map(len, names)) + subscription_bytes(self.topics or frozenset()) + more


class Beaten(NamedTuple):
    """The reply.  ``assignment``: None if it is as before."""

    error: Code
    message: str | None = None
    member_id: str = ""
    epoch: int = 0
    assignment: frozenset[Part] | None = None


@dataclass(slots=True)
class ConsumerGroup:
    """One group.  ``registered`` becomes false when members or what they own change; the caller sets it."""

    name: str
    limits: Limits
    epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = DEFAULT
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    static: dict[str, str] = field(default_factory=dict)
    """Member id by instance name."""
    owners: dict[Part, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """Name by id of the topics that somebody subscribes to or has partitions of."""
    registered: bool = True
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
        return self._members_bytes + PART_BYTES * self._parts_count

    def subscribes(self, topic: str) -> bool:
        return topic in self._subscribed

    def next_deadline_ms(self) -> int | None:
        return min((member.deadline_ms for member in self.members.values()), default=None)

    # -- requests -------------------------------------------------------------------------------------

    def beat(self, beat: Beat, view: View, now_ms: int) -> Beaten:
        """Answer a heartbeat, after the next step of its member."""
        if beat.epoch < JOIN:
            return self._leave(beat)
        refused = self._refusal(beat)
        if refused is not None:
            return refused
        member = self.members.get(beat.member_id)
        if member is not None and beat.instance not in (None, member.instance):
            self._remove(member)  # it joins anew, under another instance name
            member = None
        came = member is None
        if member is None:
            member = self._come(beat)
        elif member.epoch == LEFT:
            member.epoch = member.previous_epoch = JOIN
        told_all = beat.full or beat.epoch != member.epoch or beat.epoch == JOIN
        changed = self._update(member, beat)
        self._aim(view, changed or (came and not member.target), now_ms)
        before = member.assigned.keys()
        self._reconcile(member, beat, now_ms)
        member.expires_ms = now_ms + self.limits.consumer_session_ms
        told = told_all or member.assigned.keys() != before
        return Beaten(Code.NONE, None, member.id, member.epoch, frozenset(member.assigned) if told else None)

    def commit_code(self, member_id: str, epoch: int, part: Part | None) -> Code:
        """Whether a commit for ``part`` is accepted; with None, what is said of all parts.

        One with an older epoch is, if the partition has been the member's since then: nobody else has read it
        meanwhile (KIP-1251).
        """
        if epoch < 0 and not self.members:
            return Code.NONE
        member = self.members.get(member_id)
        if member is None:
            return Code.UNKNOWN_MEMBER_ID
        if epoch == member.epoch or (part is not None and 0 < epoch < member.epoch and member.has_since(part, epoch)):
            return Code.NONE
        return Code.STALE_MEMBER_EPOCH

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
            member.expires_ms = now_ms + self.limits.consumer_session_ms
            if member.revoke_by_ms is not None:
                member.revoke_by_ms = now_ms + member.rebalance_ms

    def tick(self, now_ms: int) -> None:
        """Remove the members whose time is over."""
        for member in [member for member in self.members.values() if member.deadline_ms <= now_ms]:
            self._remove(member)

    # -- who is who -----------------------------------------------------------------------------------

    def _refusal(self, beat: Beat) -> Beaten | None:
        """The reply to a heartbeat that is not of a member, or of a new one that may not join."""
        member = self.members.get(beat.member_id)
        holder = self.static.get(beat.instance) if beat.instance is not None else None
        if beat.epoch == JOIN:
            if holder is not None and holder != beat.member_id and self.members[holder].epoch != LEFT:
                return Beaten(Code.UNRELEASED_INSTANCE_ID, f"instance {beat.instance!r} is still used by {holder!r}")
            if member is None and holder is None and len(self.members) >= self.limits.members_max:
                return Beaten(Code.GROUP_MAX_SIZE_REACHED, f"a group has at most {self.limits.members_max} members")
            return None
        if holder is not None and holder != beat.member_id:
            return Beaten(Code.FENCED_INSTANCE_ID, f"instance {beat.instance!r} is another member now")
        if member is None or (beat.instance is not None and holder is None):
            return Beaten(Code.UNKNOWN_MEMBER_ID, f"there is no member {beat.member_id!r}: join with epoch 0")
        if not member.accepts(beat.epoch, beat.owned):
            return Beaten(Code.FENCED_MEMBER_EPOCH, f"epoch {beat.epoch}, but the member's is {member.epoch}")
        return None

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
        self.registered = False
        return member

    def _update(self, member: ConsumerMember, beat: Beat) -> bool:
        """Take what the member says of itself; whether its subscription has changed."""
        said = beat.topics, beat.matching, beat.assignor, beat.rack
        if beat.rebalance_ms < 0 and all(each is None for each in said):
            return False
        before, assignor = member.subscription, member.assignor
        self._members_bytes -= member.size
        member.rack = beat.rack if beat.rack is not None else member.rack
        if beat.rebalance_ms >= 0:
            member.rebalance_ms = min(beat.rebalance_ms, self.limits.rebalance_ms_max)
        member.topics = beat.topics if beat.topics is not None else member.topics
        member.matching = beat.matching if beat.matching is not None else member.matching
        member.assignor = beat.assignor if beat.assignor is not None else member.assignor
        self._members_bytes += member.size
        after = member.subscription
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
            member.epoch, member.revoke_by_ms = LEFT, None
            self._own(member, member.assigned, {})
        return Beaten(Code.NONE, None, beat.member_id, beat.epoch)

    def _remove(self, member: ConsumerMember) -> None:
        self._forget(member)
        self.epoch += 1

    def _forget(self, member: ConsumerMember) -> None:
        self._own(member, {}, {})
        self._members_bytes -= member.size
        self._unsubscribe(member.subscription)
        del self.members[member.id]
        if member.instance is not None and self.static.get(member.instance) == member.id:
            del self.static[member.instance]
        self.registered = False

    # -- what they should have, and what they have ----------------------------------------------------

    def _aim(self, view: View, changed: bool, now_ms: int) -> None:
        """Make a new target, if anything has changed that it depends on, and the last one is long enough ago."""
        if changed or view.revision != self._revision:
            self._revision = view.revision
            found = {name: _parts_of(view.topics[name]) for name in self._subscribed if name in view.topics}
            if changed or found != self._topics:
                self.epoch += 1
            self._topics = found
            self._parts_count = sum(len(topic.numbers) for topic in found.values())
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
            member.revoke_by_ms = None
        elif member.revoke_by_ms is None or member.revoking != revoking:
            member.revoke_by_ms = now_ms + member.rebalance_ms

    def _own(self, member: ConsumerMember, assigned: dict[Part, int], revoking: dict[Part, int]) -> None:
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
        self.registered = False


def _parts_of(topic: Topic) -> TopicParts:
    return TopicParts(topic.id, tuple(sorted(topic.partitions)))
