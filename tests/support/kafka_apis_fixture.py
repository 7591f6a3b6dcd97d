"""The forwarded Kafka APIs over dictionaries, and a client that speaks to them in frames."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Final
from uuid import UUID

from appliance.addresses import PLAINTEXT, Listener
from appliance.catalog import Topic, new_id
from appliance.config import Config, TopicDefaults, TopicSettings
from appliance.errors import (
    ApplianceError,
    InvalidPartitions,
    TopicExists,
    UnknownGroup,
    UnknownPartition,
    ZooKeeperAway,
)
from appliance.groups.group_coordinator import GroupCoordinator
from appliance.groups.group_settings import OwnSettings, altered
from appliance.groups.messages import Limits
from appliance.groups.store import Commit, ListedGroup, RegisteredGroup, RegisteredMember
from appliance.kafka_apis.appliance import OffsetSpan, ProducerInLog
from appliance.kafka_apis.handlers import KafkaApis
from appliance.names import TopicPartition, check_topic
from appliance.security.authorizer import Authorizer
from appliance.security.principals import Origin
from appliance.security.security_state import SecurityState
from appliance.wire.kafka.apis import APIS
from appliance.wire.kafka.metadata_reply import NO_LEADER, Broker

from .fake_transactions import FakeTransactions
from .kafka_messages import decode_response, fill, message, request_frame
from .kafka_peer import NAMED, version_of

KEY = {api.name: key for key, api in APIS.items()}
LISTENER, PEER = Listener("kafka", PLAINTEXT, "127.0.0.1:9092"), "10.0.0.7:5000"
ORIGIN = Origin(LISTENER, PEER)


class FakeSecurity:
    def __init__(self, reach: Callable[[], None]) -> None:
        self.state = SecurityState()
        self._reach = reach

    async def alter(self, change: Callable[[SecurityState], SecurityState]) -> None:
        self._reach()
        self.state = change(change(self.state))  # a reply was lost: the same change is made again


class FakeGroupSettings:
    def __init__(self, reach: Callable[[], None]) -> None:
        self.own: dict[str, OwnSettings] = {}
        self.limits = Limits()
        self._reach = reach

    def settings_after(self, group: str, changes: Mapping[str, str | int | None]) -> OwnSettings:
        return altered(self.own.get(group, {}), changes, self.limits)

    async def alter(self, group: str, changes: Mapping[str, str | int | None]) -> None:
        self._reach()
        self.own[group] = self.settings_after(group, changes)


class FakeTopics:
    auto_create = True

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    @property
    def defaults(self) -> TopicDefaults:
        return self._cluster.config.topic_defaults

    def check_creation(self, name: str, partitions: int | None, settings: Mapping[str, str]) -> None:
        check_topic(name)
        self.defaults.held_by(name, settings)
        if name in self._cluster.all:
            raise TopicExists(f"{name} exists")
        if partitions is not None and partitions < 1:
            raise InvalidPartitions(f"{partitions} partitions")

    async def create(self, name: str, partitions: int | None, settings: Mapping[str, str]) -> None:
        self._cluster.reach()
        self.check_creation(name, partitions, settings)
        self._cluster.add(name, partitions or 1)
        self._cluster.all[name].settings.update(settings)

    def check_settings(self, settings: Mapping[str, str]) -> None:
        TopicSettings.parse(settings, self._cluster.config.topics.defaults)

    async def alter(self, name: str, settings: Mapping[str, str | None], partitions: int | None = None) -> None:
        self._cluster.reach()
        if partitions is not None:
            self._cluster.calls.append(("alter", name, partitions))
        topic = self._cluster.all[name]
        own = {**topic.settings, **{key: value for key, value in settings.items() if value is not None}}
        own = {key: value for key, value in own.items() if settings.get(key, value) is not None}
        self.defaults.held_by(name, own)
        topic.settings = own


class FakeCluster:
    """``kafka_apis.appliance.Appliance`` and ``groups.store.GroupStore``; ``away``: ZooKeeper cannot be reached."""

    broker_id = 1
    cluster_id = "cluster"
    data_dir = "/data"
    config = Config()
    listening = "127.0.0.1:9092"

    def __init__(self) -> None:
        self.live = [Broker(1, "here", 9092)]
        self.all: dict[str, Topic] = {}
        self.extents: dict[TopicPartition, OffsetSpan | ApplianceError] = {}
        self.positions: dict[str, dict[TopicPartition, Commit]] = {}
        self.snapshots: dict[str, bytes] = {}
        self.unread: dict[str, bytes] = {}
        self.native: dict[str, RegisteredGroup] = {}
        self.shown: dict[str, Sequence[RegisteredMember]] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.away = False
        self.leased = True
        self.types: dict[str, str] = {}
        self.revision = 0
        self.authorizes = False
        self.group_settings = FakeGroupSettings(self.reach)
        self.security = FakeSecurity(self.reach)
        self.topic_store = FakeTopics(self)
        self.known_producers: dict[tuple[str, int], list[ProducerInLog]] = {}
        self.transactions = FakeTransactions(self.all, self.positions)

    def add(self, name: str, partitions: int = 1, **settings: str) -> None:
        own = {key.replace("_", "."): value for key, value in settings.items()}
        self.all[name] = Topic(name, {number: [1] for number in range(partitions)}, own, new_id())
        for number in range(partitions):
            self.extents[name, number] = OffsetSpan(100, 1_000)
        self.revision += 1

    # the appliance

    def brokers(self, listener: Listener) -> Sequence[Broker]:
        assert listener == LISTENER
        return self.live

    def disk_space(self) -> tuple[int, int]:
        return 1_000_000, 400_000

    async def producers(self, topic: str, partition: int) -> Sequence[ProducerInLog]:
        self.extent(topic, partition)
        return self.known_producers.get((topic, partition), [])

    def topics(self) -> Mapping[str, Topic]:
        return self.all

    def leader(self, topic: Topic, partition: int) -> int:
        leader = topic.leader(partition)
        return leader if leader in {broker.id for broker in self.live} else NO_LEADER

    def settings(self, topic: Topic) -> TopicSettings:
        return self.config.topic_defaults.held_by(topic.name, topic.settings)

    def extent(self, topic: str, partition: int) -> OffsetSpan:
        extent = self.extents.get((topic, partition), UnknownPartition("not here"))
        if isinstance(extent, ApplianceError):
            raise extent
        return extent

    async def delete_topic(self, name: str) -> None:
        self.reach()
        if name not in self.all:
            raise UnknownPartition(f"no {name}")
        del self.all[name]

    async def delete_records(self, topic: str, partition: int, offset: int) -> int:
        self.calls.append(("delete_records", topic, partition, offset))
        return offset - 10

    # groups

    @property
    def leads(self) -> bool:
        return self.leased

    def is_native(self, group: str) -> bool:
        return False

    async def claim(self, group: str, *, make: bool = True) -> bytes:
        self.reach()
        return self.unread.pop(group, b"")

    async def save(self, group: str, snapshot: bytes | None) -> None:
        self.reach()
        if snapshot is None:
            self.snapshots.pop(group, None)
        else:
            self.snapshots[group] = snapshot

    def die(self) -> None:
        """The coordinator goes; another one claims its groups anew."""
        self.unread = dict(self.snapshots)

    async def commit(
        self, group: str, offsets: Mapping[TopicPartition, Commit | None], protocol_type: str = ""
    ) -> Mapping[TopicPartition, ApplianceError]:
        self.reach()
        stored = self.positions.setdefault(group, {})
        for key, to in offsets.items():
            if to is None:
                stored.pop(key, None)
            else:
                stored[key] = to
        if protocol_type:
            self.types[group] = protocol_type
        return {}

    async def committed(
        self, group: str, partitions: Sequence[TopicPartition] | None
    ) -> Mapping[TopicPartition, Commit]:
        self.reach()
        stored = self.positions.get(group, {})
        return {key: stored[key] for key in (stored if partitions is None else partitions) if key in stored}

    async def forget(self, group: str) -> None:
        self.reach()
        if group not in self.positions:
            raise UnknownGroup(group)
        del self.positions[group]

    async def groups(self, selects: Callable[[str], bool]) -> Sequence[ListedGroup]:
        self.reach()
        registered = [self._resting(name) for name in self.positions] + list(self.native.values())
        return [
            ListedGroup(one.name, one.native, len(one.members), one.protocol_type)
            for one in registered
            if selects(one.name)
        ]

    async def group(self, name: str) -> RegisteredGroup | None:
        self.reach()
        if name in self.native:
            return self.native[name]
        return self._resting(name) if name in self.positions else None

    def _resting(self, name: str) -> RegisteredGroup:
        return RegisteredGroup(name, False, (), self.types.get(name, ""))

    def register(self, group: str, members: Callable[[], Sequence[RegisteredMember]]) -> None:
        self.shown[group] = members()

    def reach(self) -> None:
        if self.away:
            raise ZooKeeperAway("no ZooKeeper")


NO_TOPIC: Final = UUID(int=7)


class Client:
    """Asks in the version that it is given, by default the highest one that names topics.

    Use within one event loop.
    """

    def __init__(self, cluster: FakeCluster, **limits: int) -> None:
        ids = count(1)
        self.cluster = cluster
        self.coordinator = GroupCoordinator(
            cluster, Limits(**({"initial_delay_ms": 0} | limits)), lambda: str(next(ids))
        )
        self.authorizer = Authorizer("acl" if cluster.authorizes else "", "", False)
        self.apis = KafkaApis(
            *(cluster, self.coordinator, cluster, cluster.transactions.coordinator, self.authorizer),
            on_answer=lambda api, call, answer: None,
            on_errors=lambda origin, api, count: None,
        )

    async def frame(self, name: str, version: int | None = None, **values: Any) -> bytes:
        key = KEY[name]
        self.authorizer.enforce(self.cluster.security.state)
        version = version_of(key, version)
        if version > NAMED.get(key, version):
            values = self._with_ids(values)
        filled = fill(message(key, "Request")._struct, version, values)
        return await self.apis.answer(request_frame(key, version, filled, client_id="me"), ORIGIN)

    async def ask(self, name: str, version: int | None = None, **values: Any) -> Any:
        """The reply as kafka-python reads it.  Fields that are not given get the definition's defaults."""
        version = version_of(KEY[name], version)
        frame = await self.frame(name, version, **values)
        return decode_response(KEY[name], version, frame)

    def _with_ids(self, values: dict[str, Any]) -> dict[str, Any]:
        """Topics with the ids that their names stand for, NO_TOPIC for others."""

        def with_id(topic: dict[str, Any]) -> dict[str, Any]:
            known = self.cluster.all.get(topic.get("name", ""))
            return {"topic_id": NO_TOPIC if known is None else UUID(known.id)} | topic

        found = dict(values)
        if "groups" in values:
            found["groups"] = [self._with_ids(group) for group in values["groups"]]
        if values.get("topics") is not None:
            found["topics"] = [with_id(topic) for topic in values["topics"]]
        return found

    async def join(self, member_id: str = "", version: int | None = None, **values: Any) -> Any:
        given: dict[str, Any] = {
            "group_id": "g",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
            "member_id": member_id,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
        }
        reply = await self.ask("JoinGroup", version, **(given | values))
        if reply.error_code == 79 and not member_id:
            return await self.join(reply.member_id, version, **values)
        return reply


SUBSCRIPTION = b"\0\1" + b"\0\0\0\1" + b"\0\1t" + b"\xff\xff\xff\xff" + b"\0\0\0\0"
"""Of the topic "t", version 1: with the partitions owned, none."""
ASSIGNMENT = b"\0\1" + b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\2" + b"\0\0\0\0" + b"\0\0\0\1" + b"\xff\xff\xff\xff"
"""Partitions 0 and 1 of "t"."""


def run(scenario: Any) -> Any:
    """Run an async scenario to its end, for at most a minute."""

    async def bounded() -> Any:
        async with asyncio.timeout(60):
            return await scenario

    return asyncio.run(bounded())
