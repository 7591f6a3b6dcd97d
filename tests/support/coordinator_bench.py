"""The parts of a coordinator in one process, over a registry of dictionaries and a table of integers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from appliance import config as configs
from appliance.catalog import Catalog, Topic
from appliance.errors import ZooKeeperAway
from appliance.groups.messages import Limits
from appliance.partition_states import ONLINE
from appliance.processes.coordinator.configured_groups import ConfiguredGroups
from appliance.processes.coordinator.live_brokers import LiveBrokers
from appliance.processes.coordinator.measurements import Measurements
from appliance.processes.coordinator.partitions import Partitions
from appliance.processes.coordinator.registered_groups import RegisteredGroups
from appliance.processes.coordinator.security_registry import SecurityRegistry
from appliance.processes.coordinator.this_broker import ThisBroker
from appliance.processes.coordinator.topic_steps import TopicSteps
from appliance.processes.coordinator.topic_sync import TopicSync
from appliance.processes.coordinator.topics import Topics
from appliance.processes.messages import DeletePartitions, OrderDone, ToSupervisor
from appliance.shared.table import ROWS, SegmentTable
from appliance.zookeeper.broker_registry import BrokerRegistry
from appliance.zookeeper.group_registry import GroupRegistry
from appliance.zookeeper.operations import Operation
from appliance.zookeeper.paths import BrokerInfo

from .zookeeper_fixture import Tree

T = TypeVar("T")


class DictionaryRegistry:
    """In place of ``processes.registry.Registry``: answers at once, out of a dictionary."""

    enabled = True
    state = "connected"
    connect_string = "zk:2181"
    revision = 0
    session_id = 1

    def __init__(self) -> None:
        self.tree = Tree()
        self.away = False
        self.brokers: dict[int, BrokerInfo] = {}
        self.topics, self.groups = BrokerRegistry(), GroupRegistry()

    leased = True
    instance = "this"

    async def ask(self, operation: Operation[T], *, session_id: int | None = None) -> T:
        if self.away:
            operation.close()
            raise ZooKeeperAway("away")
        result: T = self.tree.run(operation, self.session_id)
        return result

    async def live_brokers(self) -> set[int]:
        return {0, *self.brokers}

    def announce(self) -> None:
        pass


def dictionary_registry() -> Any:
    return DictionaryRegistry()


class Bench:
    """A cluster of one broker with one topic of two partitions, the first of them open."""

    def __init__(self, data_dir: Path, *settings: str) -> None:
        self.sent: list[ToSupervisor] = []
        self.spawned: list[Coroutine[Any, Any, None]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.registry = registry = dictionary_registry()
        config = configs.load(overrides=settings)
        self.partitions = Partitions(self._take)
        catalog = Catalog(data_dir / "catalog.json", {"logs": Topic("logs", {0: [0], 1: [0], 2: [8]}, {}, "b" * 32)})
        clock_ms = lambda: 1_000_000  # noqa: E731
        self.brokers = LiveBrokers(config, registry, lambda: self.security.state.secret)
        self.steps = steps = TopicSteps(
            *(0, catalog, self.partitions, registry, config.topic_defaults, config.topics.trash_ms),
            deletion_ms=lambda: 1_000_000,
            on_change=lambda: None,
        )
        sync = TopicSync(0, steps, self.partitions, registry, self.spawn, clock_ms)
        self.topics = Topics(config, steps, self.partitions, registry, sync.synchronise_one)
        self.security = SecurityRegistry(data_dir, registry, self.spawn, lambda: None)
        configured = ConfiguredGroups(registry, Limits(), self.spawn, lambda own: None)
        self.broker = ThisBroker(
            *(config, data_dir, self.brokers, self.topics, self.partitions, registry, self.security, configured)
        )
        self.groups = RegisteredGroups(
            *(registry, self.brokers, self.broker.topics, lambda: self.topics.revision, self.spawn, clock_ms),
            offsets_max=config.committed_max,
            limits=Limits(),
            restored_ms=config.zookeeper.session_timeout_ms,
        )
        self.measurements = Measurements(data_dir, self.partitions, self.topics, self.brokers, clock_ms)
        self.table = SegmentTable([0] * (ROWS + 8))
        self.table.publish([0, 100, 200], 0, 250, 25)
        self.table.set_state(ONLINE)
        self.partitions._tables["logs", 0] = self.table

    def _take(self, message: ToSupervisor) -> None:
        """The supervisor: nothing of what is to be removed is here."""
        self.sent.append(message)
        if isinstance(message, DeletePartitions):
            done = OrderDone(message.token, [(partition, "", "") for partition in message.partitions])
            asyncio.get_running_loop().call_soon(self.partitions.on_order_done, done)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Beside what runs now, or with what runs next."""
        try:
            self.tasks.append(asyncio.get_running_loop().create_task(work))
        except RuntimeError:
            self.spawned.append(work)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """A coroutine, and what it has spawned."""

        async def all_of_it() -> T:
            while self.spawned:
                self.spawn(self.spawned.pop(0))
            result = await work
            while self.tasks:
                await self.tasks.pop(0)
            return result

        return asyncio.run(all_of_it())
