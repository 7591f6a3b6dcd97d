"""The groups in the registry, and their committed offsets, for both listeners.

:class:`RegisteredGroups` is the coordinator's ``groups.store.GroupStore``.  The members of Kafka groups are registered
as ephemeral nodes of the coordinator's session (:mod:`.member_registration`): they come back after a lost session, and
go when the coordinator is gone for good.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final
from uuid import uuid4

from ...addresses import Listener
from ...catalog import Topic
from ...errors import ApplianceError, BadValue, NotCoordinator, UnknownGroup, UnknownPartition
from ...groups.group_coordinator import GroupCoordinator
from ...groups.messages import Limits
from ...groups.store import Commit, ListedGroup, RegisteredGroup, RegisteredMember
from ...names import TopicPartition
from ...wire.kafka.metadata_reply import Broker
from ...zookeeper import operations, paths
from ...zookeeper.claims import Claimant, GroupInfo, decode_info, offset_nodes
from ...zookeeper.group_registry import GroupRegistry, RegisteredOwner
from ...zookeeper.lease import boot_clock_ms
from ...zookeeper.paths import CommittedOffset, Subscription
from .committed_offsets import CommittedOffsets
from .live_brokers import LiveBrokers
from .member_registration import MemberRegistration
from .native_groups import NativeGroups
from .registry_session import RegistrySession
from .topic_sync import Spawn

PAGE_GROUPS: Final = operations.WINDOW // 2
"""Groups that are asked for at once, with two reads each: some 5 ms of the coordinator's loop."""


class RegisteredGroups:
    """Lists, changes and registers groups.

    ``members``: those of Kafka groups at this broker, which it keeps the store of; ``native``: those of native ones;
    ``offsets``: of the groups that this broker coordinates.  ``topics``: those that exist; ``revision`` grows with each
    change of them.  ``restored_ms``: for how long after a coordinator's end native members may go on reading.
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
        limits: Limits,
        restored_ms: int,
    ) -> None:
        self.topics = topics
        self._revision = revision
        self.members = GroupCoordinator(self, limits, lambda: uuid4().hex)
        self.offsets = CommittedOffsets(
            registry,
            Claimant(brokers.broker_id, registry.instance),
            spawn,
            offsets_max=offsets_max,
            coordinates=brokers.coordinates,
            new_epoch=lambda: uuid4().hex,
            clock_ms=clock_ms,
            members=self,
        )
        self.native = NativeGroups(
            *(registry, self.offsets, self.commit, self.committed, topics, self.members),
            restored_ms=restored_ms,
            clock_ms=boot_clock_ms,
            spawn=spawn,
            new_epoch=lambda: uuid4().hex,
        )
        self._registry = registry
        self._brokers = brokers
        self._registration = MemberRegistration(registry, topics, spawn, self.offsets.note_emptied)

    @property
    def broker_id(self) -> int:
        return self._brokers.broker_id

    def brokers(self, listener: Listener) -> Sequence[Broker]:
        return self._brokers.brokers(listener)

    @property
    def revision(self) -> int:
        return self._revision()

    def has_members(self, group: str) -> bool:
        """Whether a group has members of either listener here."""
        return self.members.has_members(group) or self.native.has_members(group)

    def is_native(self, group: str) -> bool:
        return self.native.has_members(group)

    def lose(self, group: str) -> None:
        """The claim on a group is over."""
        self.members.lose(group)
        self.native.lose(group)

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
        await self._brokers.connections.ask_admin(address, verb, {**arguments, "forwarded": True})
        return True

    async def claim(self, group: str, *, make: bool = True) -> bytes:
        return await self.offsets.claim(group, make=make)

    async def save(self, group: str, snapshot: bytes | None) -> None:
        await self.offsets.save(group, snapshot)

    async def commit(
        self, group: str, offsets: Mapping[TopicPartition, Commit | None], protocol_type: str = ""
    ) -> Mapping[TopicPartition, ApplianceError]:
        """Store offsets, or (None) delete them; the result names those that were refused, and why."""
        accepted: dict[TopicPartition, CommittedOffset | None] = {}
        refused: dict[TopicPartition, ApplianceError] = {}
        for key, commit in offsets.items():
            described = self.topics().get(key.topic)
            if commit is None:
                accepted[key] = None
            elif described is not None and key.partition in described.partitions:
                accepted[key] = CommittedOffset(commit.offset, commit.metadata, described.id, commit.leader_epoch)
            else:
                refused[key] = UnknownPartition(f"there is no partition {key.topic}-{key.partition}")
        if accepted:
            refused |= await self.offsets.commit(group, accepted, protocol_type)
        return refused

    async def committed(
        self, group: str, partitions: Sequence[TopicPartition] | None
    ) -> Mapping[TopicPartition, Commit]:
        """Committed offsets of ``partitions``, or (None) all of the group; partitions without one are left out.

        Also those in an earlier topic of the same name: see ``CommittedOffset``.
        """
        stored, topics = await self.offsets.read(group, partitions, self.revision), self.topics()
        if any(key.topic not in topics for key in stored):  # of a topic whose end may be on its way
            stored = await self.offsets.read(group, partitions, self.revision, anew=True)
        return {
            key: Commit(at.offset, at.metadata, at.leader_epoch)
            for key, at in stored.items()
            if not at.topic_id or key.topic not in topics or at.topic_id == topics[key.topic].id
        }

    async def committed_ms(self, group: str) -> dict[TopicPartition, int]:
        """When each offset of the group was committed last, in ms since 1970, by ZooKeeper's clock.

        Raises:
            ZooKeeperAway: it cannot be reached.
        """
        nodes = await self._registry.ask(offset_nodes(group))
        return {part: node.modified_ms for part, node in nodes.items()}

    async def owned_by(self, group: str, member: str) -> set[TopicPartition]:
        """What a member of a native group owns, as ZooKeeper has it after all that was written before.

        Raises:
            ZooKeeperAway: it cannot be reached.
        """
        owners = await self._registry.ask(_owners(self._registry.groups, group))
        return {part for part, owner in owners.items() if owner.member == member}

    async def forget(self, group: str) -> None:
        """Delete the whole group from the registry, if it has no live members.

        Those that have just left are still registered for a moment.
        """
        await self._registration.settled(group)
        if not await self.offsets.remove(group):
            raise UnknownGroup(f"there is no group {group!r}")

    async def groups(self, selects: Callable[[str], bool]) -> Sequence[ListedGroup]:
        """The groups in the registry that ``selects`` chooses by name: of those that are claimed here, from memory.

        Others are asked for in pages, each within the time for one question, and the loop serves others in between.
        """
        names = [name for name in await self._registry.ask(self._registry.groups.groups()) if selects(name)]
        infos = self.offsets.infos()
        listed = {name: self._known(name, infos[name]) for name in names if name in infos and self._knows_members(name)}
        unknown = [name for name in names if name not in listed]
        for start in range(0, len(unknown), PAGE_GROUPS):
            page = await self._registry.ask(_overview(unknown[start : start + PAGE_GROUPS], infos))
            listed |= {group.name: group for group in page}
        return [listed[name] for name in names if name in listed]

    def _knows_members(self, group: str) -> bool:
        """Whether all members of a group that is claimed here are in memory; only its coordinator registers any."""
        return self.native.has_members(group) or not self.offsets.claims.had_members(group)

    def _known(self, group: str, info: GroupInfo) -> ListedGroup:
        natives = self.native.count(group)
        return ListedGroup(group, natives > 0, natives or self._registration.count(group), info.protocol_type)

    async def names(self) -> Sequence[str]:
        """The names of all groups in the registry, sorted; those that no reply can carry are left out."""
        encodable = []
        for name in await self._registry.ask(self._registry.groups.groups()):
            with suppress(UnicodeError):
                name.encode()
                encodable.append(name)
        return encodable

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
            self._registration.register(group, members)

    async def reconnected(self) -> None:
        """ZooKeeper is back, perhaps with a new session: register the members that are not registered."""
        self._registration.reconnected()


def _owners(groups: GroupRegistry, group: str) -> operations.Operation[dict[TopicPartition, RegisteredOwner]]:
    yield [operations.sync()]
    return (yield from groups.owners(group))


def _overview(groups: Sequence[str], infos: Mapping[str, GroupInfo]) -> operations.Operation[list[ListedGroup]]:
    """These groups, of which some may be gone, in two round trips; ``infos``: what is known of some, and not asked."""
    asked = [group for group in groups if group not in infos]
    answers = yield from operations.ask(
        [
            *(operations.get(paths.group(group)) for group in asked),
            *(operations.children(paths.consumers(group)) for group in groups),
        ]
    )
    stored = {
        group: decode_info(node.value)
        for group, node in zip(asked, answers, strict=False)
        if isinstance(node, operations.Node)
    }
    members = {
        group: paths.decode_names(listed)
        for group, listed in zip(groups, answers[len(asked) :], strict=True)
        if not isinstance(listed, operations.Refused)
    }
    natives = yield from _native([(group, ids[0]) for group, ids in members.items() if ids])
    return [
        ListedGroup(group, group in natives, len(members.get(group, ())), info.protocol_type)
        for group in groups
        if (info := infos.get(group) or stored.get(group)) is not None
    ]


def _native(members: Sequence[tuple[str, str]]) -> operations.Operation[set[str]]:
    """The groups of those of these members, one of each, that use the native listener: all of its group do."""
    nodes = yield from operations.ask([operations.get(paths.consumer(*member)) for member in members])
    natives = set()
    for (group, member), node in zip(members, nodes, strict=True):
        if isinstance(node, operations.Node):
            with suppress(BadValue):
                if paths.decode_subscription(paths.consumer(group, member), node.value).protocol == "native":
                    natives.add(group)
    return natives


def _group(
    name: str,
    info: GroupInfo,
    members: Mapping[str, Subscription],
    owners: Mapping[TopicPartition, RegisteredOwner],
) -> RegisteredGroup:
    owned: dict[str, list[TopicPartition]] = {}
    for part, owner in sorted(owners.items()):
        owned.setdefault(owner.member, []).append(part)
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
    owned_ms = {part: owner.since_ms for part, owner in owners.items()}
    return RegisteredGroup(name, native, tuple(rows), info.protocol_type, owned_ms)
