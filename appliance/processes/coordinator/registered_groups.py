"""The groups in the registry, and their committed offsets, for both listeners.

:class:`RegisteredGroups` is the coordinator's ``groups.store.GroupStore``.  The members of Kafka groups are registered
as ephemeral nodes of the coordinator's session (:mod:`.member_registration`): they come back after a lost session, and
go when the coordinator is gone for good.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final
from uuid import uuid4

from ...addresses import Listener
from ...catalog import Topic
from ...errors import ApplianceError, BadValue, NotCoordinator, UnknownGroup, UnknownPartition
from ...groups.store import Commit, RegisteredGroup, RegisteredMember
from ...names import TopicPartition
from ...wire.kafka.metadata_reply import Broker
from ...zookeeper import operations, paths
from ...zookeeper.claims import Claimant, GroupInfo, decode_info
from ...zookeeper.paths import CommittedOffset, Subscription
from .committed_offsets import CommittedOffsets
from .live_brokers import LiveBrokers
from .member_registration import MemberRegistration
from .peers import ask_admin
from .registry_session import RegistrySession
from .topic_sync import Spawn

PAGE_GROUPS: Final = 100
"""Groups that are asked for at once: some 40 ms of the coordinator's loop."""


class RegisteredGroups:
    """Lists, changes and registers groups.  ``offsets``: of the groups that this broker coordinates.

    ``topics``: those that exist; ``revision`` grows with every change of them.
    """

    def __init__(
        self,
        registry: RegistrySession,
        brokers: LiveBrokers,
        topics: Callable[[], Mapping[str, Topic]],
        revision: Callable[[], int],
        spawn: Spawn,
        clock_ms: Callable[[], int],
        *,
        offsets_max: int,
    ) -> None:
        self.topics = topics
        self.pending_in_transactions: Callable[[str], Collection[TopicPartition] | None] = lambda _: ()
        self._revision = revision
        self.offsets = CommittedOffsets(
            registry,
            Claimant(brokers.broker_id, registry.instance),
            spawn,
            offsets_max=offsets_max,
            coordinates=brokers.coordinates,
            new_epoch=lambda: uuid4().hex,
            clock_ms=clock_ms,
        )
        self._registry = registry
        self._brokers = brokers
        self._members = MemberRegistration(registry, topics, spawn, self.offsets.left)

    @property
    def broker_id(self) -> int:
        return self._brokers.broker_id

    def brokers(self, listener: Listener) -> list[Broker]:
        return self._brokers.brokers(listener)

    @property
    def revision(self) -> int:
        return self._revision()

    @property
    def leads(self) -> bool:
        return self.offsets.claims.leads

    async def carried_out_elsewhere(
        self, group: str, verb: str, arguments: Mapping[str, object], forwarded: bool
    ) -> bool:
        """Let another broker carry an admin verb out, if it coordinates the group; False if this broker does.

        Raises:
            NotCoordinator: another broker forwarded the verb to us, but we do not coordinate the group; try again.
            ApplianceError: the other broker's answer.
        """
        broker_id = self._brokers.coordinator(group)
        if broker_id == self._brokers.broker_id:
            return False
        if forwarded:
            raise NotCoordinator(f"broker {broker_id} coordinates group {group!r}: try again")
        address = self._brokers.native_address(broker_id)
        if not address:
            raise NotCoordinator(f"broker {broker_id}, which cannot be reached from here, coordinates group {group!r}")
        await ask_admin(address, self._brokers.identity, verb, {**arguments, "forwarded": True})
        return True

    async def claim(self, group: str) -> None:
        await self.offsets.claim(group)

    async def commit(
        self, group: str, offsets: Mapping[TopicPartition, Commit | None], protocol_type: str = ""
    ) -> Mapping[TopicPartition, ApplianceError]:
        """Store offsets, or (None) delete them; the result names those that were refused, and why."""
        known: dict[TopicPartition, CommittedOffset | None] = {}
        refused: dict[TopicPartition, ApplianceError] = {}
        for key, commit in offsets.items():
            described = self.topics().get(key.topic)
            if commit is None:
                known[key] = None
            elif described is not None and key.partition in described.partitions:
                known[key] = CommittedOffset(commit.offset, commit.metadata, described.id, commit.leader_epoch)
            else:
                refused[key] = UnknownPartition(f"there is no partition {key.topic}-{key.partition}")
        if known:
            refused |= await self.offsets.commit(group, known, protocol_type)
        return refused

    async def committed(
        self, group: str, partitions: Sequence[TopicPartition] | None
    ) -> Mapping[TopicPartition, Commit]:
        """Committed offsets of ``partitions``, or (None) all of the group; partitions without one are left out."""
        stored = await self.offsets.read(group, partitions)
        return {key: Commit(at.offset, at.metadata, at.leader_epoch) for key, at in stored.items()}

    def pending(self, group: str) -> Collection[TopicPartition] | None:
        """See :meth:`groups.store.GroupStore.pending`."""
        return self.pending_in_transactions(group)

    async def forget(self, group: str) -> None:
        """Delete the whole group from the registry, if it has no live members."""
        if not await self.offsets.remove(group):
            raise UnknownGroup(f"there is no group {group!r}")

    async def groups(self) -> Sequence[RegisteredGroup]:
        """All groups in the registry, with their members but not with what these own.

        They are asked for in pages, each within the time for one question, and the loop serves others in between.
        """
        found: list[RegisteredGroup] = []
        names = await self._registry.ask(self._registry.groups.groups())
        for start in range(0, len(names), PAGE_GROUPS):
            page = await self._registry.ask(_overview(names[start : start + PAGE_GROUPS]))
            found += [_group(name, info, members, {}) for name, (info, members) in sorted(page.items())]
        return found

    async def names(self) -> Sequence[str]:
        """The names of all groups in the registry, sorted; those that no reply can carry are left out."""
        found = []
        for name in await self._registry.ask(self._registry.groups.groups()):
            with suppress(UnicodeError):
                name.encode()
                found.append(name)
        return found

    async def group(self, name: str) -> RegisteredGroup | None:
        """One group with its members and what they own; None when there is no such group."""
        registered = self._registry.groups
        (node,) = await self._registry.ask(operations.ask([operations.get(paths.group(name))]))
        if not isinstance(node, operations.Node):
            return None
        members = await self._registry.ask(registered.members(name))
        owners = await self._registry.ask(registered.owners(name))
        return _group(name, decode_info(node.value), members, owners)

    def register(self, group: str, members: Callable[[], Sequence[RegisteredMember]]) -> None:
        """Register these as the group's members, once ZooKeeper is there; none: unregister them."""
        if self._registry.enabled:
            self._members.register(group, members)

    async def reconnected(self) -> None:
        """ZooKeeper is back, perhaps with a new session: register the members that are not registered."""
        self._members.reconnected()


def _overview(groups: Sequence[str]) -> operations.Operation[dict[str, tuple[GroupInfo, dict[str, Subscription]]]]:
    """These groups, of which some may be gone, and their members, in two round trips."""
    found = yield from operations.ask(
        [
            request
            for group in groups
            for request in (operations.get(paths.group(group)), operations.children(paths.consumers(group)))
        ]
    )
    overview: dict[str, tuple[GroupInfo, dict[str, Subscription]]] = {}
    members: list[tuple[str, str]] = []
    for group, node, listed in zip(groups, found[::2], found[1::2], strict=True):
        if isinstance(node, operations.Node):
            overview[group] = decode_info(node.value), {}
            if not isinstance(listed, operations.Refused):
                members += [(group, name) for name in paths.decode_names(listed)]
    nodes = yield from operations.ask([operations.get(paths.consumer(*member)) for member in members])
    for (group, member), node in zip(members, nodes, strict=True):
        if isinstance(node, operations.Node):
            try:
                subscription = paths.decode_subscription(paths.consumer(group, member), node.value)
            except BadValue:
                subscription = Subscription()
            overview[group][1][member] = subscription
    return overview


def _group(
    name: str,
    info: GroupInfo,
    members: Mapping[str, Subscription],
    owners: Mapping[TopicPartition, tuple[str, int]],
) -> RegisteredGroup:
    owned: dict[str, list[TopicPartition]] = {}
    for part, (member, _) in sorted(owners.items()):
        owned.setdefault(member, []).append(part)
    native = any(subscription.protocol == "native" for subscription in members.values())
    rows = [
        RegisteredMember(
            member,
            subscription.client,
            subscription.host,
            tuple(sorted(subscription.topics)),
            tuple(owned.get(member, ())),
        )
        for member, subscription in sorted(members.items())
    ]
    return RegisteredGroup(name, native, tuple(rows), info.protocol_type)
