"""appliance.processes.coordinator.cluster: groups in the registry, and what lies before an offset given up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance import config as configs
from appliance.catalog import Catalog, Topic
from appliance.errors import InvalidRequest, OffsetOutOfRange, UnknownPartition, ZooKeeperAway
from appliance.groups.store import Commit, RegisteredMember
from appliance.names import TopicPartition as Part
from appliance.processes.coordinator import shown
from appliance.processes.coordinator.cluster import Cluster
from appliance.processes.coordinator.partitions import Partitions
from appliance.processes.coordinator.producer_ids import ProducerIds
from appliance.processes.coordinator.topics import Topics
from appliance.shared.table import ONLINE, ROWS, SegmentTable
from appliance.zookeeper.operations import Operation
from appliance.zookeeper.paths import BrokerInfo, TopicInfo, consumer, owner
from appliance.zookeeper.registry import BrokerRegistry, GroupRegistry

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
        self.sent: list[Any] = []
        self.spawned: list[Coroutine[Any, Any, None]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.registry = registry = dictionary_registry()
        config = configs.load(overrides=settings)
        self.partitions = Partitions(self._take)
        catalog = Catalog(data_dir / "catalog.json", {"logs": Topic("logs", {0: [0], 1: [0], 2: [8]}, {}, "b" * 32)})
        self.topics = Topics(config, catalog, self.partitions, registry, self.spawn, lambda: 1_000_000)
        ids = ProducerIds(data_dir, 0, lambda below: 0)
        self.cluster = Cluster(
            config,
            data_dir,
            self.topics,
            self.partitions,
            registry,
            ids,
            self.spawn,
            lambda: 1_000_000,
        )
        self.table = SegmentTable([0] * (ROWS + 8))
        self.table.publish([0, 100, 200], 0, 250, 25)
        self.table.set_state(ONLINE)
        self.partitions._tables["logs", 0] = self.table

    def _take(self, message: Any) -> None:
        """The supervisor: nothing of what is to be removed is here."""
        self.sent.append(message)
        if message[0] == "delete":
            rows = [[*row[:2], "", ""] for row in message[2]]
            asyncio.get_running_loop().call_soon(self.partitions.done, message[1], rows)

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


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def member(name: str, *partitions: tuple[str, int]) -> RegisteredMember:
    return RegisteredMember(name, "client", "/192.0.2.1", ("logs",), tuple(Part(*one) for one in partitions))


async def nothing() -> None:
    pass


def show(bench: Bench, group: str, *members: RegisteredMember) -> None:
    bench.cluster.register(group, lambda: members)


def test_members_of_the_kafka_door_are_shown_moved_and_taken_away(bench: Bench) -> None:
    nodes = bench.registry.tree.nodes
    show(bench, "g", member("a", ("logs", 0), ("logs", 1)), member("b"))
    bench.run(nothing())
    group = bench.run(bench.cluster.group("g"))
    assert group is not None and not group.native
    assert group.members == (member("a", ("logs", 0), ("logs", 1)), member("b"))
    assert [row.name for row in bench.run(bench.cluster.groups())] == ["g"]

    show(bench, "g", member("b", ("logs", 1)))
    bench.run(nothing())
    assert consumer("g", "a") not in nodes and owner("g", Part("logs", 0)) not in nodes
    assert nodes[owner("g", Part("logs", 1))].value == b"b-0"

    show(bench, "g")
    bench.run(nothing())
    assert bench.run(bench.cluster.group("g")) is None, "who leaves without a commit leaves nothing"
    assert not any(path.startswith("/consumers/") for path in nodes)


def test_what_could_not_be_shown_while_zookeeper_was_away_is_shown_later(bench: Bench) -> None:
    nodes = bench.registry.tree.nodes
    show(bench, "g", member("a"), member("b"))
    bench.run(nothing())
    bench.registry.away = True
    show(bench, "g", member("b"))
    show(bench, "h", member("c"))
    bench.run(nothing())
    assert consumer("g", "a") in nodes
    bench.registry.away = False
    bench.run(bench.cluster.reconnected())
    assert consumer("g", "a") not in nodes and {consumer("g", "b"), consumer("h", "c")} <= set(nodes)


def test_in_a_new_session_everything_is_shown_again(bench: Bench) -> None:
    nodes = bench.registry.tree.nodes
    show(bench, "g", member("a", ("logs", 0)), member("b"))
    bench.run(nothing())
    bench.registry.session_id = 2
    bench.run(bench.cluster.reconnected())
    assert {nodes[path].owner for path in nodes if "/ids/" in path or path.endswith("logs/0")} == {2}
    bench.registry.tree.expire(1)
    group = bench.run(bench.cluster.group("g"))
    assert group is not None and len(group.members) == 2


ANY_TEXT = st.text(st.characters(), max_size=30)
PARTITION = st.tuples(ANY_TEXT | st.just("logs") | st.just(".."), st.integers(-3, 10))
MEMBER = st.builds(
    RegisteredMember, ANY_TEXT, ANY_TEXT | st.just("x" * 5_000), ANY_TEXT, st.lists(ANY_TEXT, max_size=3).map(tuple),
    st.lists(PARTITION, max_size=5).map(tuple),
)  # fmt: skip


@given(st.lists(st.tuples(ANY_TEXT, st.lists(MEMBER, max_size=3)), max_size=4))
@settings(deadline=None)
def test_whatever_members_are_called_showing_them_never_fails(shown: list[tuple[str, list[RegisteredMember]]]) -> None:
    with TemporaryDirectory() as data_dir:
        bench = Bench(Path(data_dir))
        for group, members in shown:
            show(bench, group, *members)
            bench.run(nothing())
        show(bench, "last", member("a", ("logs", 0)))
        bench.run(nothing())
        assert consumer("last", "a") in bench.registry.tree.nodes
        for group in [*dict(shown), "last"]:
            show(bench, group)
            bench.run(nothing())
        assert not any(path.startswith("/consumers/") for path in bench.registry.tree.nodes)


def test_what_is_shown_is_bounded_and_members_come_before_what_they_own(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown, "SHOWN_BYTES_MAX", 7 * 400)
    nodes = bench.registry.tree.nodes
    show(bench, "g", *(member(f"m{n}", ("logs", 0), ("logs", 1), ("logs", 9), ("x", 0)) for n in range(2)))
    show(bench, "h", *(member(f"m{n}") for n in range(50)))
    bench.run(nothing())
    assert {consumer("g", f"m{n}") for n in range(2)} <= set(nodes)
    assert 2 <= sum(path.startswith("/consumers/h/ids/") for path in nodes) <= 4
    show(bench, "h")
    bench.run(nothing())
    show(bench, "i", member("c"))
    bench.run(nothing())
    assert consumer("i", "c") in nodes, "what was taken away makes room"


def test_commits_name_the_partitions_that_do_not_exist(bench: Bench) -> None:
    refused = bench.run(
        bench.cluster.commit(
            "g", {Part("logs", 0): Commit(7, "note"), Part("logs", 9): Commit(1), Part("x", 0): Commit(1)}
        )
    )
    assert {key: type(error) for key, error in refused.items()} == {
        Part("logs", 9): UnknownPartition,
        Part("x", 0): UnknownPartition,
    }
    assert bench.run(bench.cluster.committed("g", None)) == {Part("logs", 0): Commit(7, "note")}
    assert bench.run(bench.cluster.committed("g", [Part("logs", 1)])) == {}


def test_a_group_with_live_members_is_not_forgotten(bench: Bench) -> None:
    show(bench, "g", member("a"))
    bench.run(nothing())
    with pytest.raises(InvalidRequest):
        bench.run(bench.cluster.forget("g"))


def test_leaders_and_brokers_are_those_that_live(bench: Bench) -> None:
    topic = bench.cluster.topics()["logs"]
    assert [bench.cluster.leader(topic, partition) for partition in range(3)] == [0, 0, -1]
    bench.registry.brokers[8] = BrokerInfo("i", "h", native="h:9091", kafka="[::1]:9092")
    bench.registry.brokers[9] = BrokerInfo("i", "h", native="h:9091", kafka="")
    assert bench.cluster.leader(topic, 2) == 8
    assert [tuple(row) for row in bench.cluster.brokers("a:1")] == [(0, "a", 1), (8, "::1", 9092)]
    assert [row.id for row in bench.cluster.brokers("a:1", "native")] == [0, 8, 9]


def test_deleting_records_waits_for_the_cut_and_says_where_the_log_starts_now(bench: Bench) -> None:
    async def cut_by_writer() -> int:
        asking = asyncio.ensure_future(bench.cluster.delete_records("logs", 0, 150))
        while not bench.sent:
            await asyncio.sleep(0)
        assert bench.sent == [["delete_before", "logs", 0, 150]]
        bench.table.retire_before(150)
        return await asking

    assert bench.run(cut_by_writer()) == 150
    assert bench.run(bench.cluster.delete_records("logs", 0, 150)) == 150  # nothing more to remove
    assert len(bench.sent) == 1
    for offset in (50, 251):
        with pytest.raises(OffsetOutOfRange):
            bench.run(bench.cluster.delete_records("logs", 0, offset))
    with pytest.raises(UnknownPartition):
        bench.run(bench.cluster.delete_records("logs", 1, 0))


def test_what_acks_1_has_acknowledged_is_in_the_log_for_whoever_asks(bench: Bench) -> None:
    bench.table.set_written(300)  # and readers see 250
    assert bench.cluster.extent("logs", 0) == (0, 300)

    async def cut_by_writer() -> int:
        asking = asyncio.ensure_future(bench.cluster.delete_records("logs", 0, 300))
        while not bench.sent:
            await asyncio.sleep(0)
        assert bench.sent == [["delete_before", "logs", 0, 300]]
        bench.table.publish_end(300, 30)
        await asyncio.sleep(0)
        assert not asking.done(), "the start has not moved"
        bench.table.retire_before(300)
        return await asking

    assert bench.run(cut_by_writer()) == 300


def test_a_lag_waits_for_the_flush_of_what_acks_1_has_acknowledged(bench: Bench) -> None:
    bench.table.set_written(300)

    async def flushed_meanwhile() -> int:
        asking = asyncio.ensure_future(bench.cluster.measure({Part("logs", 0): None}))
        await asyncio.sleep(0)
        assert not asking.done()
        bench.table.publish_end(300, 30)
        return (await asking)["logs", 0].end

    assert bench.run(flushed_meanwhile()) == 300
    bench.table.set_written(350)
    assert bench.run(bench.cluster.measure({Part("logs", 0): None}))["logs", 0].end == 300  # its flush takes longer


def test_a_catalog_that_cannot_be_stored_changes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from appliance.errors import DiskFull

    def full(path: Path, content: bytes) -> None:
        raise DiskFull("no room")

    monkeypatch.setattr("appliance.catalog.replace_file", full)
    with pytest.raises(DiskFull):
        bench.run(bench.topics.create("more"))
    with pytest.raises(DiskFull):
        bench.run(bench.topics.delete("logs"))
    assert list(bench.cluster.topics()) == ["logs"] and not bench.topics.catalog.removals and not bench.sent


def test_a_topic_that_is_registered_already_is_adopted(bench: Bench) -> None:
    """By a broker that was first, or by ourselves, when ZooKeeper's answer to the creation was lost."""
    registered = TopicInfo({0: [8]}, {"retention.ms": "5"}, "a" * 32)
    bench.run(bench.registry.ask(bench.registry.topics.create_topic("later", registered)))
    assert bench.run(bench.topics.ensure("later")) == Topic("later", {0: [8]}, {"retention.ms": "5"}, "a" * 32)
