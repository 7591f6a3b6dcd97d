"""What forwarded requests are answered from: one object that both listeners share.

:class:`Cluster` composes the topics, the partitions stored here, the registry and the producer ids.  It implements
``kafka_apis.appliance`` and ``groups.store``, with the native questions beside them: both listeners use the same
operations on the same topics and the same committed offsets.

The groups of the Kafka door are shown in the registry as ephemeral nodes of the coordinator's session
(:mod:`.shown`): they come back after a lost session, and go when the coordinator is gone for good.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

from ...catalog import Topic
from ...config import Config, TopicSettings
from ...errors import (
    ApplianceError,
    BadValue,
    NotCoordinator,
    OffsetOutOfRange,
    RequestTimedOut,
    StorageFault,
    Unavailable,
    UnknownGroup,
    UnknownPartition,
)
from ...groups.group_coordinator import coordinator_of
from ...groups.store import Commit, RegisteredGroup, RegisteredMember
from ...kafka_apis.appliance import Extent
from ...log.reader import FileCache, LogReader
from ...names import TopicPartition
from ...wire.kafka.metadata_reply import NO_LEADER, Broker
from ...wire.requests import EARLIEST, LATEST, OffsetsPart
from ...zookeeper import operations, paths
from ...zookeeper.claims import Claimant, GroupInfo, decode_info
from ...zookeeper.paths import CommittedOffset, Subscription
from .. import snapshot
from .partitions import Partitions
from .peers import ask_admin, ask_offsets
from .positions import Positions
from .producer_ids import ProducerIds
from .registry import Registry
from .shown import ShownMembers
from .topics import Spawn, Topics

FILES_MAX: Final = 64
CUT_MS_MAX: Final = 10_000
CUT_POLL_S: Final = 0.02
SHOWN_MS_MAX: Final = 50
"""How long a lag waits for the flush of what acks=1 has acknowledged, as the workers' ListOffsets does."""
SHOWN_POLL_S: Final = 0.005


class Lag(NamedTuple):
    """How far a position is behind the end of its partition; 0 everywhere when it is caught up.

    ``seconds``: how long ago the next message to be read was stamped.
    """

    messages: int
    bytes: int
    seconds: float


class Measured(NamedTuple):
    """What can be read of a partition: offsets [start, end), ``messages`` in all (None: the log is damaged)."""

    start: int
    end: int
    messages: int | None
    lag: Lag | None = None


class Cluster:
    """``doors``: door → "host:port" where it listens, as the supervisor told; empty before it serves."""

    def __init__(
        self,
        config: Config,
        data_dir: Path,
        topics: Topics,
        partitions: Partitions,
        registry: Registry,
        producer_ids: ProducerIds,
        spawn: Spawn,
        clock_ms: Callable[[], int],
    ) -> None:
        self.doors: dict[str, str] = {}
        self.topic_operations = topics
        self.partitions = partitions
        self.registry = registry
        self._config = config
        self._data_dir = data_dir.absolute()
        self._producer_ids = producer_ids
        self._clock_ms = clock_ms
        self._files = FileCache(FILES_MAX)
        self.positions = Positions(
            registry,
            Claimant(config.broker.id, registry.instance),
            spawn,
            positions_max=config.positions_max,
            coordinates=self.coordinates,
            new_epoch=lambda: uuid4().hex,
            clock_ms=clock_ms,
        )
        self._shown = ShownMembers(registry, self.topics, spawn, self.positions.left)

    def reload(self, config: Config) -> None:
        self._config = config
        self.positions.count.positions_max = config.positions_max

    # ---- the appliance and its peers

    @property
    def broker_id(self) -> int:
        return self._config.broker.id

    @property
    def cluster_id(self) -> str:
        return self.topic_operations.catalog.cluster

    @property
    def config(self) -> Config:
        return self._config

    @property
    def listening(self) -> str:
        return self.doors.get("kafka", "")

    @property
    def data_dir(self) -> str:
        return str(self._data_dir)

    @property
    def zookeeper(self) -> str:
        return self.registry.connect_string

    def brokers(self, listener: str, protocol: str = "kafka") -> list[Broker]:
        own = getattr(self._config, protocol).advertised or listener
        return snapshot.brokers(self.broker_id, own, self._peers(), protocol)

    def _peers(self) -> dict[int, dict[str, str]]:
        found = self.registry.brokers.items()
        return {peer: {"native": info.native, "kafka": info.kafka} for peer, info in found if peer != self.broker_id}

    @property
    def state(self) -> tuple[Any, ...]:
        """Another value whenever the facts or the topics may have changed; cheap to compare."""
        return self.revision, self.zookeeper, self.cluster_id, self.topic_operations.catalog.topics

    @property
    def facts(self) -> snapshot.Facts:
        """What network workers are told, besides the topics."""
        return snapshot.Facts(
            self.cluster_id,
            self.broker_id,
            self.auto_create,
            self.zookeeper,
            {door: getattr(self._config, door).advertised for door in ("native", "kafka")},
            self._peers(),
            self.default_settings(),
        )

    def forget_unlinked_files(self) -> None:
        """Close segments that retention has unlinked since they were looked at."""
        self._files.drop_unlinked()

    def disk_space(self) -> tuple[int, int]:
        system = os.statvfs(self._data_dir)
        return system.f_blocks * system.f_frsize, system.f_bavail * system.f_frsize

    def producer_id(self) -> int:
        return self._producer_ids.take()

    # ---- topics

    @property
    def revision(self) -> int:
        return self.topic_operations.revision + self.registry.revision

    def topics(self) -> Mapping[str, Topic]:
        return self.topic_operations.catalog.topics

    def leader(self, topic: Topic, partition: int) -> int:
        """The live broker that serves a partition, NO_LEADER while none can."""
        leader = topic.leader(partition)
        alive = leader == self.broker_id or leader in self.registry.brokers
        return leader if alive else NO_LEADER

    def settings(self, topic: Topic) -> TopicSettings:
        return self.topic_operations.settings(topic)

    def default_settings(self) -> TopicSettings:
        return self.topic_operations.defaults

    def extent(self, topic: str, partition: int) -> Extent:
        view = self.partitions.view(topic, partition)
        return Extent(view.start, max(view.end, self.partitions.table(topic, partition).written))

    async def measure(self, positions: Mapping[TopicPartition, int | None]) -> dict[TopicPartition, Measured]:
        """What is in these partitions, wherever they are stored, and how far the positions (if any) are
        behind.

        A partition that cannot be read now, or whose broker does not answer soon, is left out.
        """
        measured: dict[TopicPartition, Measured] = {}
        elsewhere: dict[str, list[TopicPartition]] = {}
        await self._wait_until_shown(key for key in positions if key in self.partitions)
        for key, position in positions.items():
            topic = self.topics().get(key[0])
            leader = topic.leader(key[1]) if topic is not None else NO_LEADER
            peer = self.registry.brokers.get(leader)
            if key in self.partitions:
                with contextlib.suppress(Unavailable):
                    measured[key] = self._measure_here(key, position)
                await asyncio.sleep(0)  # there may be thousands, each with a look into its index
            elif leader != self.broker_id and peer is not None and peer.native:
                elsewhere.setdefault(peer.native, []).append(key)
        for found in await asyncio.gather(
            *(self._measure_there(address, keys, positions) for address, keys in elsewhere.items())
        ):
            measured |= found
        return measured

    async def _wait_until_shown(self, keys: Iterable[TopicPartition]) -> None:
        """Let readers see what is written by now, if they do within SHOWN_MS_MAX."""
        tables = [self.partitions.table(*key) for key in keys]
        behind = [(table, table.written) for table in tables if table.end < table.written]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SHOWN_MS_MAX / 1000):
                while behind := [(table, end) for table, end in behind if table.end < end]:
                    await asyncio.sleep(SHOWN_POLL_S)

    def _measure_here(self, key: TopicPartition, position: int | None) -> Measured:
        table = self.partitions.table(*key)
        bases, start, end = table.view()
        if start == end:
            return Measured(start, end, 0, Lag(0, 0, 0.0))
        reader = LogReader(self._data_dir / f"{key[0]}-{key[1]}", self._files)
        try:
            messages = table.records - reader.at(bases, end, start)[1]
            if position is None:
                return Measured(start, end, messages)
            offset = min(max(position, start), end)
            timestamp, before = reader.at(bases, end, offset)
        except (StorageFault, OffsetOutOfRange):  # damaged; or retention was faster than we
            return Measured(start, end, None)
        return Measured(start, end, messages, self._lag(offset, end, table.records - before, timestamp))

    async def _measure_there(
        self, address: str, keys: Sequence[TopicPartition], positions: Mapping[TopicPartition, int | None]
    ) -> dict[TopicPartition, Measured]:
        questions = [
            OffsetsPart(*key, timestamp, offset)
            for key in keys
            for timestamp, offset in ((EARLIEST, -1), (LATEST, -1), (EARLIEST, positions[key] or 0))
        ]
        answers = iter(await ask_offsets(address, questions))
        measured: dict[TopicPartition, Measured] = {}
        for key, start, end, at in zip(keys, answers, answers, answers, strict=False):
            if not (start.error or end.error or at.error):
                lag = self._lag(at.offset, end.offset, end.records - at.records, at.timestamp)
                shown = None if positions[key] is None else lag
                measured[key] = Measured(start.offset, end.offset, end.records - start.records, shown)
        return measured

    def _lag(self, offset: int, end: int, messages: int, timestamp: int) -> Lag:
        if offset >= end:
            return Lag(0, 0, 0.0)
        return Lag(messages, end - offset, max(0, self._clock_ms() - timestamp) / 1000)

    def forget_files(self, topic: str, partition: int) -> None:
        """The partition was dropped: another may come under its name."""
        self._files.drop(f"{self._data_dir / f'{topic}-{partition}'}/")

    @property
    def auto_create(self) -> bool:
        return self.topic_operations.auto_create

    def check_topic(self, name: str, partitions: int | None, settings: Mapping[str, str]) -> None:
        self.topic_operations.check(name, partitions, settings)

    async def create_topic(self, name: str, partitions: int | None, settings: Mapping[str, str]) -> None:
        await self.topic_operations.create(name, partitions, settings)

    def check_settings(self, settings: Mapping[str, str]) -> None:
        self.topic_operations.check_settings(settings)

    async def delete_topic(self, name: str) -> None:
        await self.topic_operations.delete(name)

    async def alter_topic(self, name: str, settings: Mapping[str, str | None]) -> None:
        await self.topic_operations.alter(name, settings)

    async def add_partitions(self, name: str, count: int) -> None:
        await self.topic_operations.alter(name, {}, count)

    async def delete_records(self, topic: str, partition: int, offset: int) -> int:
        """Give up what lies before ``offset``; the new start, once readers are told of it.

        The writer flushes what is not flushed yet before it moves the start.  Files go by whole segments.
        """
        start, end = self.extent(topic, partition)
        if not start <= offset <= end:
            raise OffsetOutOfRange(f"offset {offset} of {topic}-{partition} is not in {start} to {end}")
        if offset > start:
            self.partitions.cut(topic, partition, offset)
            try:
                async with asyncio.timeout(CUT_MS_MAX / 1000):
                    while self.extent(topic, partition).start < offset:
                        await asyncio.sleep(CUT_POLL_S)
            except TimeoutError:
                raise RequestTimedOut(f"{topic}-{partition} was not cut in {CUT_MS_MAX} ms: look again") from None
        return self.extent(topic, partition).start

    # ---- groups in the registry

    @property
    def leads(self) -> bool:
        return self.positions.leads

    def coordinator(self, group: str) -> int:
        """The id of the broker that coordinates a group, by the brokers that live as far as we know."""
        others = [broker_id for broker_id, info in self.registry.brokers.items() if info.kafka]
        closed = bool(others and self.doors and not self.doors.get("kafka"))
        candidates = {*others, self.broker_id} - ({self.broker_id} if closed else set())
        return coordinator_of(group, [Broker(broker_id, "", 0) for broker_id in sorted(candidates)]).id

    def coordinates(self, group: str) -> bool:
        return self.coordinator(group) == self.broker_id

    async def elsewhere(self, group: str, verb: str, arguments: Mapping[str, object], forwarded: bool) -> bool:
        """Have the group's coordinator carry an admin verb out, if that is another broker; was it?

        Raises:
            NotCoordinator: another broker takes us for it; they will agree soon.
            ApplianceError: what it answers.
        """
        broker_id = self.coordinator(group)
        if broker_id == self.broker_id:
            return False
        if forwarded:
            raise NotCoordinator(f"broker {broker_id} coordinates group {group!r}: try again")
        await ask_admin(self.registry.brokers[broker_id].native, verb, {**arguments, "forwarded": True})
        return True

    async def claim(self, group: str) -> None:
        await self.positions.claim(group)

    async def commit(
        self, group: str, offsets: Mapping[TopicPartition, Commit | None], protocol_type: str = ""
    ) -> Mapping[TopicPartition, ApplianceError]:
        """Store positions, or (None) drop them; the result names those that were refused, and why."""
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
            refused |= await self.positions.commit(group, known, protocol_type)
        return refused

    async def committed(
        self, group: str, partitions: Sequence[TopicPartition] | None
    ) -> Mapping[TopicPartition, Commit]:
        """Positions of ``partitions``, or (None) of all that the group has; those without are left out."""
        stored = await self.positions.read(group, partitions)
        return {key: Commit(at.offset, at.metadata, at.leader_epoch) for key, at in stored.items()}

    async def forget(self, group: str) -> None:
        """The whole group goes from the registry, if it has no live members."""
        if not await self.positions.remove(group):
            raise UnknownGroup(f"there is no group {group!r}")

    async def groups(self) -> Sequence[RegisteredGroup]:
        """All groups in the registry, with their members but not with what these own."""
        found = await self.registry.ask(_overview())
        return [_group(name, info, members, {}) for name, (info, members) in sorted(found.items())]

    async def group(self, name: str) -> RegisteredGroup | None:
        """One group with its members and what they own; None when there is no such group."""
        registered = self.registry.groups
        (node,) = await self.registry.ask(operations.ask([operations.get(paths.group(name))]))
        if not isinstance(node, operations.Node):
            return None
        members = await self.registry.ask(registered.members(name))
        owners = await self.registry.ask(registered.owners(name))
        return _group(name, decode_info(node.value), members, owners)

    def register(self, group: str, members: Callable[[], Sequence[RegisteredMember]]) -> None:
        """Show these as the group's members in the registry, when ZooKeeper permits; none: take them away."""
        if self.registry.enabled:
            self._shown.show(group, members)

    async def reconnected(self) -> None:
        """ZooKeeper is back, perhaps with a new session: show what could not be shown, or is gone."""
        self._shown.reconnected()


def _overview() -> operations.Operation[dict[str, tuple[GroupInfo, dict[str, Subscription]]]]:
    """All groups and their members, in three round trips however many there are."""
    names = yield from operations.list_children(paths.CONSUMERS)
    groups = [paths.decode_name(name) for name in names]
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
                members += [(group, paths.decode_name(name)) for name in sorted(listed)]
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
