"""Coordinates the Kafka groups of this appliance: passes requests to the state machine, and carries out its decisions.

A group is read when it is asked for and has no members here (:meth:`GroupCoordinator.load`): the coordinator before
this one has stored what its members were told.  What they are told here is stored before (``snapshot_writes``).

JoinGroup and SyncGroup wait: the token that :class:`ClassicGroups` keeps for them is an asyncio future.
:meth:`GroupCoordinator.carry_out` resolves it, registers changed members, and sets the alarm for the next deadline.

A group changes its protocol while its members go on (:mod:`.migration`): to the consumer protocol by
:meth:`GroupCoordinator.upgrade`, back in :meth:`~GroupCoordinator.carry_out`, when the last such member has gone.

With several appliances in a cluster, rendezvous hashing over the live brokers chooses the coordinator of each group.
So all agree without messages, and few groups move when a broker comes or goes.  A request for a group of another broker
is answered NOT_COORDINATOR, which sends the client to FindCoordinator, and our members of the group are dissolved.  A
join waits until no other broker can coordinate the group (:meth:`GroupStore.claim`).  While the lease of our ZooKeeper
session is over, nothing is coordinated and no member's time runs.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence

from ..addresses import Listener
from ..errors import ApplianceError
from ..names import GROUP_CHARACTERS_MAX, TopicPartition
from ..wire.kafka.call import retriable
from ..wire.kafka.codes import Code
from ..wire.kafka.metadata_reply import Broker
from . import consumer_protocol, snapshots
from .consumer_group import ConsumerGroup
from .consumer_groups import ConsumerGroups
from .group_settings import OwnSettings
from .group_state import Group
from .membership import ClassicGroups, Emptied
from .messages import Limits, MemberReply
from .migration import Migration
from .snapshot_writes import SnapshotWrites
from .snapshots import ClassicSnapshot
from .standstill import MemberHeard
from .store import GroupStore, RegisteredGroup, RegisteredMember

WITHOUT_LEASE_S = 0.1
"""How often the lease is checked while it is over and members' deadlines may not be enforced."""

log = logging.getLogger(__name__)


def coordinator_of(group: str, brokers: Sequence[Broker]) -> Broker:
    """The live broker that coordinates a group: the one whose hash with the group's name is highest."""

    def weight(broker: Broker) -> bytes:
        return hashlib.blake2b(f"{broker.id} {group}".encode("utf-8", "surrogatepass"), digest_size=8).digest()

    return max(brokers, key=weight)


class GroupCoordinator:
    """Runs :class:`ClassicGroups` in an event loop, with its clock.  ``new_id`` returns a text that is unique for ever.

    The handlers of this package use :attr:`membership`, and :attr:`consumers`, which has the groups of the consumer
    protocol; after a call that may change one of them they call :meth:`carry_out`.  A group with members is in one.
    """

    def __init__(self, store: GroupStore, limits: Limits, new_id: Callable[[], str]) -> None:
        self.membership = ClassicGroups(limits, new_id)
        self.consumers = ConsumerGroups(
            limits, lambda name, now_ms: self.membership.remember(name, consumer_protocol.TYPE, now_ms)
        )
        self._migration = Migration(self.membership, self.consumers, limits)
        self.limits, self.new_id = limits, new_id
        self._store = store
        self._writes = SnapshotWrites(store, _answer)
        self._looks: dict[str, asyncio.Future[RegisteredGroup | None]] = {}
        self._waits_max = limits.waits_max
        self._waiting = 0
        self._led = True
        self._alarm: asyncio.TimerHandle | None = None

    def groups(self) -> Mapping[str, Group]:
        """The groups of the classic protocol that have members here; do not change them."""
        return {name: group for name in self.membership.names() if (group := self.membership.get(name))}

    def emptied(self) -> Mapping[str, Emptied]:
        """The groups here whose last member has left lately, by name."""
        return self.membership.emptied(self.now_ms())

    def has_members(self, group: str) -> bool:
        """Whether the group has members, or expects some, at this listener."""
        return self.membership.get(group) is not None or self.consumers.get(group) is not None

    def is_native(self, group: str) -> bool:
        """Whether this appliance knows native members of a group."""
        return self._store.is_native(group)

    def state(self, group: str) -> str:
        """Kafka's name of the state of a group that has members here, else ""."""
        classic, consumers = self.membership.get(group), self.consumers.get(group)
        if classic is not None:
            return classic.state.value
        return consumers.state.value if consumers is not None else ""

    def set_own(self, own: Mapping[str, OwnSettings]) -> None:
        """See :meth:`ConsumerGroups.set_own`."""
        self.consumers.set_own(own, self.now_ms())
        self.carry_out()

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._writes.close()

    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    # -- whose group it is ----------------------------------------------------------------------------

    def refuse(
        self,
        group: str,
        listener: Listener,
        *,
        nameless: bool = False,
        without_lease: Code = Code.COORDINATOR_NOT_AVAILABLE,
    ) -> Code:
        """The error if this appliance does not serve a group of that name, else NONE.

        Args:
            nameless: allow the name "", as in Kafka for OffsetCommit, OffsetFetch, DescribeGroups and DeleteGroups.
            without_lease: the answer while other brokers may have taken our groups.
        """
        if not (group or nameless) or len(group) > GROUP_CHARACTERS_MAX:
            return Code.INVALID_GROUP_ID
        if not self.coordinates(group, self._store.brokers(listener)):
            self.lose(group)
            return Code.NOT_COORDINATOR
        return Code.NONE if self._look_at_lease() else without_lease

    def _look_at_lease(self) -> bool:
        """Whether we may coordinate now.  When the lease is back, every member's session begins anew."""
        leads = self._store.leads
        if leads and not self._led:
            self.membership.prolong(self.now_ms())
            self.consumers.prolong(self.now_ms())
        self._led = leads
        return leads

    async def load(self, group: str, *, make: bool = False, unavailable: Code = Code.COORDINATOR_NOT_AVAILABLE) -> Code:
        """Have the group's members here, if an earlier coordinator has stored some.  It claims a group for that.

        What follows without another await finds them.

        Args:
            make: claim a group that does not exist, too, for a member that joins it.
            unavailable: the answer while it cannot be claimed, on which clients of this API retry.
        """
        if not make and self.has_members(group):
            return Code.NONE
        try:
            stored = await self._store.claim(group, make=make)
        except ApplianceError as error:
            if error.code == Code.NOT_COORDINATOR:
                return Code.NOT_COORDINATOR
            return Code(retriable(error, unavailable))
        if stored and not self.has_members(group):
            self._restore(group, stored)
        return Code.NONE

    async def has_native_members(self, group: str) -> bool:
        """Whether members at the native listener use the group: both they and Kafka's would assign its partitions.

        However many ask at the same time, the store is asked once: a thousand members may join a new group together.

        Raises:
            ApplianceError: it cannot be looked up now.
        """
        look = self._looks.get(group)
        if look is None:
            look = self._looks[group] = asyncio.ensure_future(self._store.group(group))
            look.add_done_callback(lambda _: self._looks.pop(group))
        registered = await asyncio.shield(look)
        return registered is not None and registered.native and bool(registered.members)

    def _restore(self, group: str, stored: bytes) -> None:
        """A group that cannot be restored has no members: they are told so, and join again."""
        try:
            snapshot = snapshots.decode(stored)
            if isinstance(snapshot, ClassicSnapshot):
                self.membership.restore(group, snapshot, self.now_ms())
            else:
                self.consumers.restore(group, snapshot, self.now_ms())
        except ApplianceError as error:
            log.warning("the members of group %r are forgotten: %s", group, error)
        else:
            log.info("group %r: %d members restored", group, len(snapshot.members))
        self.carry_out()

    def upgrade(self, name: str, instance: str | None) -> tuple[Code, str]:
        """See :meth:`Migration.upgrade`."""
        return self._migration.upgrade(name, instance, self._store.topics(), self.now_ms())

    async def settle(self, group: str) -> Code:
        """See :meth:`SnapshotWrites.settle`."""
        return await self._writes.settle(group)

    def delete(self, group: str) -> Code:
        """Delete a group without members: see :meth:`ClassicGroups.delete`."""
        if self.consumers.get(group) is not None:
            return Code.NON_EMPTY_GROUP
        code = self.membership.delete(group, self.now_ms())
        self.carry_out()
        return code

    def lose(self, group: str) -> None:
        """Dissolve a group that another broker coordinates: its members are answered NOT_COORDINATOR at once."""
        self.membership.dissolve(group, Code.NOT_COORDINATOR)
        self.consumers.dissolve(group)
        self._writes.lose(group)
        self.carry_out()

    def coordinates(self, group: str, brokers: Sequence[Broker]) -> bool:
        """Whether this broker coordinates the group, by ``brokers``."""
        return len(brokers) == 1 or coordinator_of(group, brokers).id == self._store.broker_id

    # -- waiting --------------------------------------------------------------------------------------

    async def wait_for(
        self, refusal: MemberReply, ask: Callable[[asyncio.Future[MemberReply], int], None]
    ) -> MemberReply:
        """The reply to a request that may have to wait for other members.

        ``refusal`` is the reply while ``waits_max`` others wait, since waiting requests take room from all others.
        """
        if self._waiting >= self._waits_max:
            return refusal
        answer: asyncio.Future[MemberReply] = asyncio.get_running_loop().create_future()
        self._waiting += 1
        try:
            ask(answer, self.now_ms())
            self.carry_out()
            return await answer
        finally:
            self._waiting -= 1

    def carry_out(self) -> None:
        """Carry out the decisions of the membership: store them, answer, register members, set the alarm."""
        for name, snapshot in self._migration.downgrade(self.now_ms()).items():
            self._writes.begin(name, snapshots.encode(snapshot))
        for name in self.membership.take_unsaved() | self.consumers.take_unsaved():
            self._writes.begin(name, self.snapshot(name))
        for name, token, reply in self.membership.take_replies():
            self._writes.give(name, token, reply)
        for name in self.membership.take_changed() | self.consumers.take_changed():
            self._store.register(name, functools.partial(self.registration, name))
        deadlines = (self.membership.next_deadline_ms(), self.consumers.next_deadline_ms())
        deadline_ms = min((deadline for deadline in deadlines if deadline is not None), default=None)
        loop = asyncio.get_running_loop()
        if self._alarm is not None and (deadline_ms is None or self._alarm.when() * 1000 > deadline_ms + 1):
            self._alarm.cancel()
            self._alarm = None
        if self._alarm is None and deadline_ms is not None:
            self._alarm = loop.call_at((deadline_ms + 1) / 1000, self._tick)  # our clock is in whole ms

    def _tick(self) -> None:
        self._alarm = None
        if not self._look_at_lease():
            self._alarm = asyncio.get_running_loop().call_later(WITHOUT_LEASE_S, self._tick)
            return
        try:
            self.membership.tick(self.now_ms())
            self.consumers.tick(self.now_ms())
        finally:
            self.carry_out()

    def snapshot(self, name: str) -> bytes | None:
        """What a new coordinator has to know of the group; None: it has no members, or none was told anything yet."""
        group = self.consumers.get(name) or self.membership.get(name)
        snapshot = group.snapshot() if group is not None else None
        return None if snapshot is None else snapshots.encode(snapshot)

    def heard(self, name: str) -> dict[str, MemberHeard]:
        """When the members of a group that are here were heard last."""
        now_ms = self.now_ms()
        classic, consumers = self.membership.get(name), self.consumers.get(name)
        if classic is not None:
            return classic.heard(now_ms)
        return consumers.heard(now_ms) if consumers is not None else {}

    def registration(self, name: str) -> list[RegisteredMember]:
        """A group's members as they are registered."""
        consumer_group = self.consumers.get(name)
        if consumer_group is not None:
            return _registered(consumer_group)
        group = self.membership.get(name)
        if group is None:
            return []
        consumers = group.protocol_type == consumer_protocol.TYPE  # the bytes of other types are opaque
        return [
            RegisteredMember(
                member.id,
                member.client_id,
                member.client_host,
                consumer_protocol.subscribed_topics(member.metadata(group.protocol)) if consumers else (),
                consumer_protocol.assigned_partitions(member.assignment) if consumers else (),
            )
            for member in group.members.values()
        ]


def _answer(token: asyncio.Future[MemberReply], reply: MemberReply) -> None:
    if not token.done():  # done: its request was cancelled, since the process is stopping
        token.set_result(reply)


def _registered(group: ConsumerGroup) -> list[RegisteredMember]:
    """The members of a group of the consumer protocol; partitions of deleted topics are left out."""
    names = group.names
    return [
        RegisteredMember(
            member.id,
            member.client_id,
            member.client_host,
            tuple(sorted(member.subscription)),
            tuple(TopicPartition(names[id], number) for id, number in sorted(member.assigned) if id in names),
        )
        for member in group.members.values()
    ]
