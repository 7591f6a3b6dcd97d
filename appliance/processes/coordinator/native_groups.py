"""Groups of the native listener.  Their members rebalance by themselves, as in the paper; the coordinator keeps for
them what the paper keeps in ZooKeeper, so that nobody else talks to ZooKeeper.

What is kept, where, and who changes it::

    what                     in memory here        in ZooKeeper (ephemeral)      changed by
    a member, what it reads  NativeGroup.members   /consumers/<group>/ids/…      its join and leave; its session's end
    who owns a partition     NativeGroup.owners    /consumers/<group>/owners/…   its owner's claim and release, and the
                                                                                 end of its owner
    a committed offset       -                     /consumers/<group>/offsets/…  its owner's commit (and administrators)
    whose group it is        the claim             /consumers/<group>/claim-…    the brokers (:mod:`.committed_offsets`)

A member is *unknown* before it joins, *joined* while its session lives, and *unknown* again after leave, after its
session's end, and under every new coordinator.  There it counts as *restored*, if its node is still there: it keeps
what it owns until it joins again, or as long as its session can have lasted.  What it owns then it has owned all the
time, since nobody else claims in its name: its streams go on, however long nobody has answered.

======================  ================================================================  ===========================
message                 what happens                                                      refused
======================  ================================================================  ===========================
join                    node, then member; renews; answers the epoch, and what it owns    Kafka's members are there
registry                answers members and topics                                        unknown member
claim                   owner, then node: a partition has one owner, whatever arrives     others own some: nothing done
commit                  stored under the claim, of partitions that the member owns        of others: named in the answer
release                 node, then owner                                                  -
await change            renews; answers when the revision is another one                  unknown member
leave, session's end    as release of everything; then the member's node                  -
======================  ================================================================  ===========================

A member proves who it is by its secret: its id ends with the beginning of the secret's SHA-256, so every coordinator
can check it, and nothing has to be stored.  Requests may be lost, repeated and late.  So each carries a ``sequence``
that grows, and the ``epoch`` that the join has answered, which no other coordinator accepts.  A join, claim, release or
leave that comes behind a newer one is refused.  A commit that comes behind a newer one, or behind the claim of its
partition, is not stored.  Requests of one member that change something are carried out one by one.

Each answer has ``lease_ms``: for so long after it was *asked for* the member's nodes are certain to stay: no longer
than its session here, and than the lease of our session with ZooKeeper.  After that the member hands out nothing.
So when a coordinator dies, its successor finds the nodes of all who still read, or nobody reads any more.  For the same
reason a coordinator that is stopped leaves its session with ZooKeeper to its end (:meth:`NativeGroups.keeps`).

What a dead member had in a group that has moved to another broker stays until somebody joins there, or until the end
of the session of the broker before.

Kafka's members and native ones are never in one group: both are added in one step with the look at the others, by the
one process that has the claim.

Bounds: GROUPS_MAX groups, MEMBERS_MAX members of one, ALL_MEMBERS_MAX of all, of which each waits with one request at
most; NODES_BYTES_MAX for their nodes, which the ensemble's heap allows for.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol, TypeVar

from ...catalog import Topic
from ...errors import (
    ApplianceError,
    GroupNotPermitted,
    IllegalGeneration,
    InvalidRequest,
    NotCoordinator,
    OutOfResources,
    Unavailable,
    UnknownMember,
    ZooKeeperAway,
    from_code,
)
from ...groups.consumer_protocol import TYPE
from ...groups.standstill import MemberHeard
from ...groups.store import Commit
from ...names import TopicPartition, member_suffix
from ...wire.kafka.codes import Code
from ...zookeeper import native_nodes, paths
from ...zookeeper.operations import Operation
from ...zookeeper.paths import Subscription
from .committed_offsets import CommittedOffsets, GroupQueue

GROUPS_MAX: Final = 10_000
MEMBERS_MAX: Final = 1_000
ALL_MEMBERS_MAX: Final = 4_096
"""Half of the requests of one worker that may wait for an answer."""
SESSION_MS_MIN: Final = 100
SESSION_MS_MAX: Final = 30 * 60_000
NODES_BYTES_MAX: Final = 32 << 20
NODE_BYTES: Final = 300
"""Heap of ZooKeeper that a node takes besides path and value, rounded up."""
RETRY_MS: Final = 1_000
LATE_MS: Final = 1_000
"""An alarm that is later than this shows that the process has slept, and its members' requests with it."""

TopicVersions = dict[str, tuple[str, int]]
"""By name: the id of a topic, and how many partitions it had."""
T = TypeVar("T")
log = logging.getLogger(__name__)


class NativeMember:
    """``lock`` is held while a request of this member changes something; ``sequence`` is that of the newest such one.

    ``subscription`` is None until it is registered.  ``waiting``: the request of this member that waits for a change.
    """

    def __init__(self, id: str, subscription: Subscription | None, session_ms: int, deadline_ms: int) -> None:
        self.id = id
        self.subscription = subscription
        self.session_ms = session_ms
        self.deadline_ms = deadline_ms
        self.joined = False
        """Whether it has joined under this coordinator; else it was restored from its nodes."""
        self.ends = False
        """Its session is over, and its nodes are being removed: nobody promises it anything."""
        self.sequence = 0
        self.bytes = 0
        self.lock = asyncio.Lock()
        self.waiting: asyncio.Future[None] | None = None

    def renew(self, now_ms: int) -> None:
        self.deadline_ms = max(self.deadline_ms, now_ms + self.session_ms)


class PartitionOwner:
    """``sequence``: of the newest request of the member that has claimed the partition or committed its offset."""

    def __init__(self, member: str, stream: int, sequence: int = 0) -> None:
        self.member, self.stream, self.sequence = member, stream, sequence


class NativeGroup:
    """One group as its coordinator keeps it: who is a member, and who owns what.  No I/O, no clock.

    ``claim_path``: of the claim that it lives under; ``epoch``: a text that is never used again.
    """

    def __init__(self, name: str, claim_path: str, epoch: str) -> None:
        self.name, self.claim_path, self.epoch = name, claim_path, epoch
        self.members: dict[str, NativeMember] = {}
        self.owners: dict[TopicPartition, PartitionOwner] = {}
        self.revision = 1
        self.alarm: asyncio.TimerHandle | None = None
        self.alarm_ms = 0
        """When the alarm should go off."""
        self._awaited: set[TopicPartition] = set()
        """Partitions that a member could not claim: it waits for their release."""
        self._seen_topics: TopicVersions = {}

    # ---- members

    def add_member(self, id: str, subscription: Subscription | None, session_ms: int, deadline_ms: int) -> NativeMember:
        member = self.members[id] = NativeMember(id, subscription, session_ms, deadline_ms)
        return member

    def remove_member(self, id: str) -> None:
        member = self.members.pop(id)
        self.release(self.owned_by(id))
        self.changed()
        _wake(member)

    def expired(self, now_ms: int) -> list[NativeMember]:
        return [member for member in self.members.values() if member.deadline_ms <= now_ms]

    def deadline_ms(self) -> int | None:
        return min((member.deadline_ms for member in self.members.values()), default=None)

    def prolong(self, now_ms: int) -> None:
        """Begin every session anew: the coordinator could not listen."""
        for member in self.members.values():
            member.renew(now_ms)

    # ---- owners

    def owned_by(self, id: str) -> list[TopicPartition]:
        return sorted(part for part, owner in self.owners.items() if owner.member == id)

    def note_taken(self, id: str, parts: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return those of these partitions that others own; from now on a release of one of them is a change."""
        taken = [part for part in parts if part in self.owners and self.owners[part].member != id]
        self._awaited.update(taken)
        return taken

    def claim(self, id: str, streams: Mapping[TopicPartition, int], sequence: int) -> None:
        for part, stream in streams.items():
            self.owners[part] = PartitionOwner(id, stream, sequence)

    def release(self, parts: Sequence[TopicPartition]) -> None:
        for part in parts:
            self.owners.pop(part, None)
        if not self._awaited.isdisjoint(parts):
            self._awaited.difference_update(parts)
            self.changed()

    # ---- changes

    def changed(self) -> None:
        """Wake all members that wait for a change."""
        self.revision += 1
        for member in self.members.values():
            _wake(member)

    def look_at(self, topics: Mapping[str, Topic]) -> None:
        """The topics have changed, perhaps those that a member subscribes to."""
        subscriptions = [member.subscription for member in self.members.values() if member.subscription is not None]
        names: Iterable[str] = topics
        if not any(subscription.pattern for subscription in subscriptions):
            names = {name for subscription in subscriptions for name in subscription.topics if name in topics}
        topic_versions = {name: (topics[name].id, len(topics[name].partitions)) for name in names}
        if topic_versions != self._seen_topics:
            self._seen_topics = topic_versions
            self.changed()

    def close(self) -> None:
        """The group is lost: members that wait are told."""
        if self.alarm is not None:
            self.alarm.cancel()
        for member in self.members.values():
            _wake(member)

    # ---- nodes in ZooKeeper

    def member_node(self, member: NativeMember) -> str:
        return paths.consumer(self.name, member.id)

    def bytes_of(self, member: NativeMember) -> int:
        """What the member and all that it owns take in ZooKeeper."""
        nodes = [self.member_node(member), *(paths.owner(self.name, part) for part in self.owned_by(member.id))]
        return sum(NODE_BYTES + len(path) for path in nodes)

    def owner_nodes(self, id: str, streams: Mapping[TopicPartition, int]) -> dict[str, bytes]:
        return {paths.owner(self.name, part): paths.encode_owner(id, stream) for part, stream in streams.items()}


def _wake(member: NativeMember) -> None:
    if member.waiting is not None and not member.waiting.done():
        member.waiting.set_result(None)


class KafkaGroups(Protocol):
    """The groups of the Kafka listener: :class:`appliance.groups.group_coordinator.GroupCoordinator`."""

    async def load(self, group: str, *, make: bool = False) -> Code: ...

    def has_members(self, group: str) -> bool: ...


class Registry(Protocol):
    """The part of :class:`.registry_session.RegistrySession` that is needed here."""

    enabled: bool

    @property
    def lease_left_ms(self) -> int: ...


class NativeGroups:
    """
    Args:
        commit: stores offsets of members under the claim; the result names those that were refused.
        committed: reads them, without those in earlier topics of the same names.
        topics: those that exist now.
        restored_ms: for how long after a coordinator's end its members may go on reading.
        clock_ms: steady.
    """

    def __init__(
        self,
        registry: Registry,
        offsets: CommittedOffsets,
        commit: Callable[
            [str, Mapping[TopicPartition, Commit | None], str],
            Coroutine[Any, Any, Mapping[TopicPartition, ApplianceError]],
        ],
        committed: Callable[
            [str, Sequence[TopicPartition] | None], Coroutine[Any, Any, Mapping[TopicPartition, Commit]]
        ],
        topics: Callable[[], Mapping[str, Topic]],
        kafka: KafkaGroups,
        *,
        restored_ms: int,
        clock_ms: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        new_epoch: Callable[[], str],
    ) -> None:
        self._registry, self._claims, self._offsets = registry, offsets.claims, offsets
        self._commit, self._committed = commit, committed
        self._topics, self._kafka = topics, kafka
        self._restored_ms, self._clock_ms, self._spawn, self._new_epoch = restored_ms, clock_ms, spawn, new_epoch
        self._groups: dict[str, NativeGroup] = {}
        self._loading: dict[str, asyncio.Lock] = {}
        self._bytes = 0

    # ---- events

    @property
    def keeps(self) -> bool:
        """Whether there are members, whose nodes have to outlive this process: they go on reading for a while."""
        return bool(self._groups)

    def has_members(self, group: str) -> bool:
        return group in self._groups

    def count(self, group: str) -> int:
        """The number of native members that are known here."""
        native = self._groups.get(group)
        return 0 if native is None else len(native.members)

    def heard(self, name: str) -> dict[str, MemberHeard]:
        """When the members of a group that is here were heard last."""
        native, now_ms = self._groups.get(name), self._clock_ms()
        return {
            member.id: MemberHeard.by_session(member.deadline_ms - now_ms, member.session_ms)
            for member in (native.members.values() if native is not None else ())
        }

    def lose(self, name: str) -> None:
        """The claim on the group is over.  Its members find its next coordinator; their nodes stay as they are."""
        lost = self._groups.pop(name, None)
        if lost is not None:
            self._bytes -= sum(member.bytes for member in lost.members.values())
            lost.close()

    def on_topics(self) -> None:
        """Let members that subscribe to a topic that has changed look again."""
        topics = self._topics() if self._groups else {}
        for group in self._groups.values():
            group.look_at(topics)

    def on_brokers(self) -> None:
        """The live brokers have changed: as in the paper, all members look again."""
        for group in self._groups.values():
            group.changed()

    # ---- requests

    async def join(
        self, name: str, member_id: str, secret: str, sequence: int, subscription: Subscription, session_ms: int
    ) -> dict[str, Any]:
        check_secret(name, member_id, secret)
        if not SESSION_MS_MIN <= session_ms <= SESSION_MS_MAX:
            raise InvalidRequest(f"a session of {session_ms} ms: give {SESSION_MS_MIN} to {SESSION_MS_MAX}")
        group = await self._load(name)
        if self._kafka.has_members(name):
            raise InvalidRequest(f"group {name!r} has members of the Kafka listener: choose another group name")
        member = group.members.get(member_id) or self._add(group, member_id, session_ms)
        member.session_ms = session_ms
        member.renew(self._clock_ms())
        self._set_alarm(group)
        async with self._changing(group, member, sequence):
            if not member.joined or member.subscription != subscription:
                nodes = {group.member_node(member): paths.encode_subscription(subscription)}
                await self._put(group, member, nodes)
                member.subscription, member.joined = subscription, True
                group.look_at(self._topics())
                group.changed()
            kept = [list(part) for part in group.owned_by(member_id)]
        return self._lease(group, member) | {"epoch": group.epoch, "kept": kept}

    async def registry(self, name: str, member_id: str, secret: str, epoch: str) -> dict[str, Any]:
        group, member = self._renew(name, member_id, secret, epoch)
        own = member.subscription or Subscription()
        rows = [
            [subscriber.id, subscriber.subscription.topics, *subscriber.subscription[1:4]]
            for subscriber in group.members.values()
            if subscriber.subscription is not None
        ]
        topics = {
            name: [topic.id, len(topic.partitions)] for name, topic in self._topics().items() if own.streams_of(name)
        }
        return self._lease(group, member) | {"revision": group.revision, "members": rows, "topics": topics}

    async def claim(
        self, name: str, member_id: str, secret: str, epoch: str, sequence: int, streams: Mapping[TopicPartition, int]
    ) -> dict[str, Any]:
        group, member = self._renew(name, member_id, secret, epoch)
        async with self._changing(group, member, sequence):
            topics = self._topics()
            gone = [part for part in streams if not _exists(part, topics)]
            refused = gone or group.note_taken(member_id, streams)
            if refused:
                return self._lease(group, member) | {"refused": [list(part) for part in refused], "offsets": []}
            group.claim(member_id, streams, sequence)  # now nobody else gets them
            await self._put(group, member, group.owner_nodes(member_id, streams))
            stored = await self._committed(name, list(streams))
        rows = [[*part, at.offset] for part, at in sorted(stored.items()) if at.offset >= 0]
        return self._lease(group, member) | {"refused": [], "offsets": rows}

    async def commit(
        self,
        name: str,
        member_id: str,
        secret: str,
        epoch: str,
        sequence: int,
        offsets: Mapping[TopicPartition, tuple[int, str]],
    ) -> dict[str, Any]:
        """``offsets``: each with the id of its topic."""
        group, member = self._renew(name, member_id, secret, epoch)
        async with member.lock:
            self._check_joined(group, member)
            topics = self._topics()
            refused, stored, owners = [], {}, []
            for part, (offset, topic_id) in offsets.items():
                owner = group.owners.get(part)
                if owner is None or owner.member != member_id or not _exists(part, topics, topic_id):
                    refused.append(list(part))
                elif owner.sequence < sequence:
                    stored[part] = Commit(offset)
                    owners.append(owner)
            if stored:
                for error in (await self._commit(name, stored, TYPE)).values():
                    raise error
            for owner in owners:  # not before: a request that failed is repeated
                owner.sequence = sequence
        return self._lease(group, member) | {"refused": refused}

    async def release(
        self, name: str, member_id: str, secret: str, epoch: str, sequence: int, parts: Sequence[TopicPartition]
    ) -> dict[str, Any]:
        group, member = self._renew(name, member_id, secret, epoch)
        async with self._changing(group, member, sequence):
            owned = [part for part in parts if part in group.owners and group.owners[part].member == member_id]
            await self._release(group, member, owned)
        return self._lease(group, member)

    async def await_change(
        self, name: str, member_id: str, secret: str, epoch: str, revision: int, wait_ms: int
    ) -> dict[str, Any]:
        group, member = self._renew(name, member_id, secret, epoch)
        if group.revision == revision and wait_ms:
            if member.waiting is not None and not member.waiting.done():
                member.waiting.set_result(None)  # its client does not wait for that answer any more
            member.waiting = asyncio.get_running_loop().create_future()
            await asyncio.wait([member.waiting], timeout=wait_ms / 1000)
            group, member = self._renew(name, member_id, secret, epoch)
        return self._lease(group, member) | {"revision": group.revision}

    async def leave(self, name: str, member_id: str, secret: str, epoch: str, sequence: int) -> None:
        group, member = self._renew(name, member_id, secret, epoch)
        async with self._changing(group, member, sequence):
            await self._end(group, member)

    # ---- groups

    async def _load(self, name: str) -> NativeGroup:
        """The group, with what the coordinator before has left of it; after that nothing is awaited."""
        if not self._registry.enabled:
            raise InvalidRequest("this appliance runs without ZooKeeper (zookeeper.nodes = 0): it has no groups")
        lock = self._loading.setdefault(name, asyncio.Lock())
        try:
            async with lock:
                code = await self._kafka.load(name, make=True)
                if code:
                    raise from_code(code, about=f"group {name!r}")
                entry = self._held(name)
                if name in self._groups:
                    return self._groups[name]
                if len(self._groups) >= GROUPS_MAX:
                    raise OutOfResources(f"this broker keeps {GROUPS_MAX} native groups already")
                assert entry.held is not None
                claim = entry.held.path
                stored = await self._claims.carry_out(entry, native_nodes.read(name))
                if entry.held is None or entry.held.path != claim or self._claims.get(name) is not entry:
                    raise NotCoordinator(f"the claim on group {name!r} was lost: try again")
                self._held(name)
                group = NativeGroup(name, claim, self._new_epoch())
                self._restore(group, stored)
        finally:
            if not lock.locked():
                self._loading.pop(name, None)
        return group

    def _restore(self, group: NativeGroup, stored: native_nodes.Registered) -> None:
        now_ms = self._clock_ms()
        for part, (id, stream) in stored.owners.items():
            group.claim(id, {part: stream}, 0)
        for id, subscription in stored.members.items():
            member = group.add_member(id, subscription, 0, now_ms + self._restored_ms)
            self._count(member, group.bytes_of(member))
        if stored.members:
            log.info("group %r: %d native members restored", group.name, len(stored.members))
            self._groups[group.name] = group
            self._set_alarm(group)

    def _held(self, name: str) -> GroupQueue:
        entry = self._claims.get(name)
        if entry is None or entry.held is None:
            raise NotCoordinator(f"this broker does not coordinate group {name!r} now: try again")
        if not self._claims.is_held(entry):
            raise ZooKeeperAway("the lease of the ZooKeeper session is over: try again")
        return entry

    # ---- members

    def _add(self, group: NativeGroup, member: str, session_ms: int) -> NativeMember:
        everybody = sum(len(native.members) for native in self._groups.values())
        if len(group.members) >= MEMBERS_MAX or everybody >= ALL_MEMBERS_MAX:
            raise OutOfResources(f"a group has at most {MEMBERS_MAX} native members, all of them {ALL_MEMBERS_MAX}")
        self._groups[group.name] = group
        return group.add_member(member, None, session_ms, self._clock_ms() + session_ms)

    def _renew(self, name: str, member_id: str, secret: str, epoch: str) -> tuple[NativeGroup, NativeMember]:
        """Find a member that has joined, and begin its session anew, also while ZooKeeper is away."""
        check_secret(name, member_id, secret)
        group = self._groups.get(name)
        member = group.members.get(member_id) if group is not None else None
        if group is None or member is None or member.ends or group.epoch != epoch:
            raise UnknownMember(f"{member_id} is no member of group {name!r} here: join it again")
        member.renew(self._clock_ms())
        self._held(name)
        return group, member

    def _check_joined(self, group: NativeGroup, member: NativeMember) -> None:
        if self._groups.get(group.name) is not group or group.members.get(member.id) is not member:
            raise UnknownMember(f"{member.id} is no member of group {group.name!r} any more: join it again")

    @asynccontextmanager
    async def _changing(self, group: NativeGroup, member: NativeMember, sequence: int) -> AsyncIterator[None]:
        """Carry out a request that changes something of a member, if no newer one has come before."""
        async with member.lock:
            self._check_joined(group, member)
            if sequence <= member.sequence:
                raise IllegalGeneration("this request comes behind a newer one of its member: it is not carried out")
            member.sequence = sequence
            yield

    def _lease(self, group: NativeGroup, member: NativeMember) -> dict[str, Any]:
        self._check_joined(group, member)
        return {"lease_ms": min(member.session_ms, self._registry.lease_left_ms)}

    async def _end(self, group: NativeGroup, member: NativeMember) -> None:
        """Remove a member with all that it owns."""
        nodes = [paths.owner(group.name, part) for part in group.owned_by(member.id)]
        await self._carry_out(group, native_nodes.remove(group.claim_path, [*nodes, group.member_node(member)]))
        self._check_joined(group, member)
        group.remove_member(member.id)
        self._count(member, 0)
        if not group.members:
            self.lose(group.name)
            self._spawn(self._offsets.note_emptied(group.name))

    async def _release(self, group: NativeGroup, member: NativeMember, parts: Sequence[TopicPartition]) -> None:
        nodes = [paths.owner(group.name, part) for part in parts]
        await self._carry_out(group, native_nodes.remove(group.claim_path, nodes))
        self._check_joined(group, member)
        group.release(parts)
        self._count(member, group.bytes_of(member))

    async def _put(self, group: NativeGroup, member: NativeMember, nodes: Mapping[str, bytes]) -> None:
        self._count(member, group.bytes_of(member))
        if self._bytes > NODES_BYTES_MAX:
            raise OutOfResources(f"native groups take {NODES_BYTES_MAX >> 20} MiB in ZooKeeper already")
        entry = self._held(group.name)
        await self._carry_out(group, native_nodes.put(group.claim_path, nodes, entry.session_id))
        self._check_joined(group, member)

    def _count(self, member: NativeMember, size: int) -> None:
        """What the nodes of a member take now, also those that may not be written yet."""
        self._bytes += size - member.bytes
        member.bytes = size

    async def _carry_out(self, group: NativeGroup, operation: Operation[None]) -> None:
        await self._claims.carry_out(self._held(group.name), operation)

    # ---- sessions

    def _set_alarm(self, group: NativeGroup) -> None:
        deadline_ms = group.deadline_ms()
        if deadline_ms is None or self._groups.get(group.name) is not group:
            return
        if group.alarm is not None:
            if group.alarm_ms <= deadline_ms:
                return
            group.alarm.cancel()
        self._call_at(group, deadline_ms)

    def _call_at(self, group: NativeGroup, at_ms: int) -> None:
        delay_s = max(0, at_ms + 1 - self._clock_ms()) / 1000
        group.alarm_ms = at_ms
        group.alarm = asyncio.get_running_loop().call_later(delay_s, self._look_at_sessions, group)

    def _look_at_sessions(self, group: NativeGroup) -> None:
        group.alarm = None
        now_ms = self._clock_ms()
        if self._groups.get(group.name) is not group:
            return
        if now_ms - group.alarm_ms > LATE_MS:
            group.prolong(now_ms)
        expired = group.expired(now_ms)
        for member in expired:
            self._spawn(self._expire(group, member))
        if expired:  # some may not be gone at once
            self._call_at(group, now_ms + RETRY_MS)
        else:
            self._set_alarm(group)

    async def _expire(self, group: NativeGroup, member: NativeMember) -> None:
        async with member.lock:
            gone = self._groups.get(group.name) is not group or group.members.get(member.id) is not member
            if gone or member.deadline_ms > self._clock_ms():
                return
            log.info("group %r: the session of %s is over", group.name, member.id)
            member.ends = True
            try:
                await self._end(group, member)
            except (Unavailable, UnknownMember) as error:  # the next look tries again
                member.ends = False
                log.info("group %r: %s is not removed yet: %s", group.name, member.id, error)


def _exists(part: TopicPartition, topics: Mapping[str, Topic], topic_id: str | None = None) -> bool:
    topic = topics.get(part.topic)
    return topic is not None and part.partition in topic.partitions and topic_id in (None, topic.id)


def check_secret(group: str, member: str, secret: str) -> None:
    """
    Raises:
        GroupNotPermitted: whoever asks is not this member.
    """
    named, suffix = member.startswith(f"{group}_"), member_suffix(secret)
    if not named or not hmac.compare_digest(member[-len(suffix) :].encode(), suffix.encode()):
        raise GroupNotPermitted(f"not permitted: {member!r} is another member of group {group!r}", group)
