"""appliance.processes.coordinator.trash: a crash after any step loses nothing, ages are by the trusted time, and more.

The parts of a coordinator run over a dictionary for ZooKeeper; the supervisor is a few lines over real directories.
The process "crashes" at a numbered step: before or after a store of the catalog, a change of ZooKeeper, a rename.
Nothing happens after it; the next coordinator begins with what is on the disk and in ZooKeeper.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from appliance import catalog as catalogs
from appliance import config as configs
from appliance.catalog import Catalog, Removal, TrashedTopic
from appliance.errors import (
    ApplianceError,
    BrokerAway,
    DiskFull,
    InvalidPartitions,
    InvalidRequest,
    StorageFault,
    TopicExists,
    UnknownPartition,
    ZooKeeperAway,
)
from appliance.log import partition_directory
from appliance.names import TopicPartition
from appliance.processes.coordinator.live_brokers import LiveBrokers
from appliance.processes.coordinator.partitions import Partitions
from appliance.processes.coordinator.topic_steps import TopicSteps
from appliance.processes.coordinator.topic_sync import TopicSync
from appliance.processes.coordinator.topics import Topics
from appliance.processes.coordinator.trash import GONE, REMOVED, SERVED, TRASHED, Trash
from appliance.processes.coordinator.trusted_clock import TrustedClock
from appliance.processes.messages import (
    CleanUp,
    CreatePartitions,
    DeletePartitions,
    OrderDone,
    PartitionOutcome,
    ToSupervisor,
)
from appliance.shared.table import ROWS, SegmentTable
from appliance.zookeeper import claims, cluster_identity, deletion
from appliance.zookeeper.operations import Operation
from appliance.zookeeper.paths import CommittedOffset, TopicInfo

from ...support.coordinator_bench import DictionaryRegistry
from ...support.zookeeper_fixture import write_offsets
from .test_trusted_clock import DAY, HOLD, HOUR, START, Machine

T = TypeVar("T")
PARTS = range(2)
GROUP = "g/ü"


class Crash(KeyboardInterrupt):
    """The event loop lets nothing else pass."""


class Steps:
    """Counts the steps, and crashes at one of them and at all later ones."""

    def __init__(self) -> None:
        self.taken, self.last = 0, -1

    def step(self) -> None:
        self.taken += 1
        if 0 <= self.last < self.taken:
            raise Crash

    def begin(self, last: int) -> None:
        self.taken, self.last = 0, last


class Registry(DictionaryRegistry):
    """``steps`` before and after each change."""

    def __init__(self, steps: Steps, enabled: bool = True) -> None:
        super().__init__()
        self.steps, self.enabled = steps, enabled
        self.tree.clock_ms = START

    async def ask(self, operation: Operation[T], *, session_id: int | None = None) -> T:
        def stepping() -> Operation[T]:
            replies: Any = None
            while True:
                try:
                    requests = operation.send(replies)
                except StopIteration as stopped:
                    return stopped.value  # type: ignore[no-any-return]
                replies = []
                for request in requests:
                    if request.verb not in ("get", "exists", "children", "sync"):
                        self.steps.step()
                    replies += yield [request]

        return await super().ask(stepping(), session_id=session_id)


class Life:
    """One life of a broker's processes over a data directory, with what the earlier ones have left."""

    def __init__(self, data_dir: Path, registry: Registry, machine: Machine, *settings: str) -> None:
        self.data_dir, self.registry, self.steps_taken = data_dir, registry, registry.steps
        self.config = config = configs.load(overrides=settings)
        self.catalog = catalog = Catalog.load(data_dir)
        self.partitions = Partitions(self._take)
        clock = TrustedClock(data_dir, lambda _: None, machine)
        clock.begin(0, HOLD)
        self.clock, self.machine = clock, machine
        registered: Any = registry
        self.steps = steps = TopicSteps(
            *(0, catalog, self.partitions, registered, config.topic_defaults, config.topics.trash_ms),
            deletion_ms=clock.judging_ms,
            on_change=lambda: None,
        )
        self.sync = TopicSync(0, steps, self.partitions, registered, self._spawn, clock.judging_ms)
        self.topics = Topics(config, steps, self.partitions, registered, self.sync.synchronise_one)
        brokers = LiveBrokers(config, registered, lambda: b"")
        self.trash = Trash(
            *(data_dir, self.topics, steps, self.partitions, registered, brokers, clock),
            steady_ms=lambda: machine.boot_ms,
            on_change=lambda _: None,
            on_back=lambda _: None,
        )
        for topic in catalog.topics.values():  # as the supervisor does at a start
            for key in steps.hosted(topic):
                self._open(key, topic.id, new=False)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        raise AssertionError("nothing changes at other brokers")

    def _take(self, message: ToSupervisor) -> None:
        loop = asyncio.get_running_loop()
        if isinstance(message, CleanUp):
            loop.call_soon(self._clean)
        elif isinstance(message, CreatePartitions | DeletePartitions):
            loop.call_soon(self._carry_out, message)

    def _carry_out(self, message: CreatePartitions | DeletePartitions) -> None:
        outcomes: list[PartitionOutcome] = []
        if isinstance(message, CreatePartitions):
            for key, topic_id, _, new in message.rows:
                outcomes.append((key, *self._open(key, topic_id, new)))
        else:
            for key in message.partitions:
                self.steps_taken.step()
                self.partitions.drop(key)
                partition_directory.set_aside(self.data_dir, *key, message.topic_id, trash=message.trash)
                outcomes.append((key, "", ""))
            self.steps_taken.step()
        self.partitions.on_order_done(OrderDone(message.token, outcomes))

    def _open(self, key: TopicPartition, topic_id: str, new: bool) -> tuple[str, str]:
        self.steps_taken.step()
        partition_directory.take_back(self.data_dir, *key, topic_id)
        self.steps_taken.step()
        directory = partition_directory.directory_of(self.data_dir, *key)
        if not new and not directory.exists():
            return "StorageFault", f"{directory} is lost"
        try:
            partition_directory.claim(directory, topic_id)
        except ApplianceError as error:
            return type(error).__name__, str(error)
        self.partitions._tables[key] = SegmentTable([0] * (ROWS + 8))
        return "", ""

    def _clean(self) -> None:
        for directory in partition_directory.deleted(self.data_dir):
            partition_directory.discard(directory)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        async def with_rest() -> T:
            result = await work
            await asyncio.sleep(0)
            return result

        return asyncio.run(with_rest())

    async def begin(self) -> None:
        """What a coordinator does first."""
        await self.sync.reconcile()
        if self.registry.enabled:
            await self.sync.synchronise()
        await self.trash.empty_old(self.config)

    # ---- what the topic is

    def make(self, name: str) -> str:
        """A topic with a message in each partition, and a group that has read some."""
        topic = self.run(self.topics.create(name, len(PARTS), {"retention.ms": "5"}))
        for number in PARTS:
            (partition_directory.directory_of(self.data_dir, name, number) / "0.log").write_text(topic.id)
        if self.registry.enabled:
            offsets = {TopicPartition(name, number): CommittedOffset(7 + number, "", topic.id) for number in PARTS}
            self.run(self.registry.ask(write_offsets(GROUP, offsets)))
        return topic.id

    def is_whole(self, name: str, topic_id: str) -> bool:
        """Whether the topic is there under this name: registered, stored, open, with its messages and offsets."""
        topic = self.catalog.topics.get(name)
        if topic is None or topic.id != topic_id or Catalog.load(self.data_dir).topics.get(name) != topic:
            return False
        assert topic.settings == {"retention.ms": "5"} and self.steps.trashed(topic_id) is None
        for number in PARTS:
            directory = partition_directory.directory_of(self.data_dir, name, number)
            assert (directory / "0.log").read_text() == topic_id
            assert (name, number) in self.partitions
        if self.registry.enabled:
            registered = self.run(self.registry.ask(self.registry.topics.topics([name])))
            assert registered[name].id == topic_id
            parts = [TopicPartition(name, number) for number in PARTS]
            found = self.run(self.registry.ask(claims.read(GROUP, None)))
            assert [found[part].offset for part in parts] == [7, 8]
        return True

    def left(self) -> list[str]:
        return sorted(path.name for path in self.data_dir.iterdir() if path.is_dir())


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    made = Steps()
    replace, soon = catalogs.replace_data_file, partition_directory._discard_soon

    def replace_file(path: Path, content: bytes) -> None:
        made.step()
        replace(path, content)
        made.step()

    def discard_soon(data_dir: Path, directory: Path) -> None:
        made.step()
        soon(data_dir, directory)
        made.step()

    monkeypatch.setattr("appliance.catalog.replace_data_file", replace_file)
    monkeypatch.setattr("appliance.log.partition_directory._discard_soon", discard_soon)

    async def at_once(do: Callable[..., T], *arguments: Any) -> T:  # a crash in a thread would stay there
        return do(*arguments)

    monkeypatch.setattr("appliance.processes.coordinator.trash.asyncio.to_thread", at_once)
    return made


@pytest.fixture
def life(tmp_path: Path, steps: Steps) -> Life:
    return Life(tmp_path, Registry(steps), Machine())


ACTS: dict[str, Callable[[Life, str], Coroutine[Any, Any, Any]]] = {
    "delete": lambda life, _: life.topics.delete("x"),
    "undelete": lambda life, _: life.trash.undelete("x"),
    "undelete as": lambda life, _: life.trash.undelete("x", "y"),
    "empty": lambda life, topic_id: life.trash.empty([topic_id], "a test wants it"),
}


@pytest.mark.parametrize("zookeeper", [True, False], ids=["zookeeper", "alone"])
@pytest.mark.parametrize("act", ACTS)
def test_after_a_crash_at_any_step_the_topic_is_whole_or_in_the_trash(
    tmp_path: Path, steps: Steps, act: str, zookeeper: bool
) -> None:
    """Goal: never both, never neither, unless the trash was to be emptied; what is in the trash can come back."""
    last, crashed = 0, True
    while crashed:
        directory = tmp_path / str(last)
        directory.mkdir()
        steps.begin(-1)
        life = Life(directory, Registry(steps, zookeeper), Machine())
        life.run(life.begin())
        topic_id = life.make("x")
        if act != "delete":
            life.run(life.topics.delete("x"))
        steps.begin(last)
        try:
            life.run(ACTS[act](life, topic_id))
            crashed = False
        except Crash:
            pass
        steps.begin(-1)
        again = Life(directory, life.registry, life.machine)
        again.run(again.begin())
        at = f"{act}, step {last}"
        assert not again.catalog.removals, at
        name = "y" if act == "undelete as" else "x"
        whole = [one for one in {"x", name} if again.is_whole(one, topic_id)]
        trashed = again.steps.trashed(topic_id) is not None
        assert len(again.catalog.topics) == len(whole), at
        kept = [topic_id for topic_id, _ in partition_directory.trashed_directories(directory)]
        if act == "empty":  # a part of it may be left, under its id, and goes later
            assert not whole and set(kept) == ({topic_id} if trashed else set()), at
            again.machine.run(DAY)
            again.run(again.trash.empty_old(again.config))
            again._clean()
            assert again.left() == [] and not again.catalog.trash, at
        elif trashed:
            assert whole == [] and kept == [topic_id] * len(PARTS), at
            assert again.run(again.trash.undelete(topic_id, name))["name"] == name
            assert again.is_whole(name, topic_id), at
        else:
            assert len(whole) == 1 and again.left() == [f"{whole[0]}-{number}" for number in PARTS], at
        if not crashed:
            expected = {"delete": (0, True), "empty": (0, False)}.get(act, (1, False))
            assert (len(whole), trashed) == expected
        last += 1
    assert last > 5


def delete(life: Life, name: str = "x") -> str:
    topic_id = life.make(name)
    life.run(life.topics.delete(name))
    return topic_id


def look(life: Life) -> list[str]:
    """What is in the trash after a look at the clock, and one at the trash."""
    life.clock.look_again(HOLD)
    life.run(life.trash.empty_old(life.config))
    return [one.name for one in life.trash.topics()]


def test_a_topic_stays_as_long_as_was_said(life: Life) -> None:
    delete(life, "x")
    life.machine.run(HOUR)
    delete(life, "y")
    life.machine.run(DAY - HOUR - 1)
    assert look(life) == ["x", "y"]
    life.machine.run(1)
    assert look(life) == ["y"]
    life.machine.run(HOUR)
    assert look(life) == [] and not partition_directory.trashed_directories(life.data_dir)


@pytest.mark.parametrize("days", [10, -10])
def test_a_jump_of_the_clock_does_not_empty_the_trash(life: Life, days: int) -> None:
    """Neither when it is seen, nor when it is believed, nor when the clock is back; a day of real time does."""
    delete(life)
    life.machine.run(HOUR)
    assert look(life) == ["x"]
    life.machine.skew_ms = days * DAY
    life.machine.run(HOUR)
    assert look(life) == ["x"]
    assert life.clock.believe(HOLD)
    assert look(life) == ["x"]
    life.machine.skew_ms = 0
    life.machine.run(HOUR)
    assert look(life) == ["x"]
    life.machine.run(DAY)
    assert look(life) == []


def test_a_deletion_before_the_clock_is_known_gets_the_time_of_the_first_look(tmp_path: Path, steps: Steps) -> None:
    life = Life(tmp_path, Registry(steps), Machine())
    life.clock._look = None
    delete(life)
    assert life.catalog.trash[0].deleted_ms == 0
    life.run(life.trash.empty_old(life.config))
    assert life.catalog.trash[0].deleted_ms == 0  # nothing is judged yet
    life.clock.begin(0, HOLD)
    assert look(life) == ["x"] and life.catalog.trash[0].deleted_ms == life.machine.real_ms


def test_a_shorter_time_holds_for_what_is_in_the_trash(life: Life) -> None:
    delete(life)
    life.config = configs.load(overrides=["topics.trash_ms=0"])
    assert look(life) == []


def test_no_more_topics_are_kept_than_there_is_a_bound_for(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.processes.coordinator.trash.TOPICS_MAX", 2)
    for name in ("a", "b", "c"):
        delete(life, name)
        life.machine.run(1)
    assert look(life) == ["b", "c"]


def test_a_topic_whose_files_are_gone_is_forgotten(life: Life) -> None:
    """As after a backup was restored: it has the catalog, and nothing of the trash."""
    topic_id = delete(life)
    life.run(life.trash.empty_old(life.config))
    partition_directory.throw_away(life.data_dir, topic_id)
    with pytest.raises(InvalidRequest, match="not in the trash"):
        life.run(life.trash.undelete("x"))
    again = Life(life.data_dir, life.registry, life.machine)
    again.run(again.begin())
    assert again.catalog.trash == []


def test_what_cannot_come_back_changes_nothing(life: Life) -> None:
    topic_id = delete(life)
    life.make("taken")
    before = dict(life.registry.tree.nodes), life.left()
    (life.data_dir / "strange-0").mkdir()
    with pytest.raises(InvalidRequest, match="strange-0 is in the way"):
        life.run(life.trash.undelete("x", "strange"))
    (life.data_dir / "strange-0").rmdir()
    with pytest.raises(UnknownPartition, match="topics trash"):
        life.run(life.trash.undelete("other"))
    with pytest.raises(TopicExists, match="under another name"):
        life.run(life.trash.undelete("x", "taken"))
    life.topics._config = configs.load(overrides=["topics.partitions_max=3"])
    with pytest.raises(InvalidPartitions, match="partitions_max"):
        life.run(life.trash.undelete(topic_id))
    assert (life.registry.tree.nodes, life.left()) == before and life.steps.trashed(topic_id) is not None


def test_a_topic_of_several_brokers_waits_for_all_of_them(life: Life) -> None:
    topic_id = delete(life)
    life.catalog.trash = [TrashedTopic("x", topic_id, {0: [0], 1: [8]})]
    with pytest.raises(BrokerAway, match=r"broker 8 .* start it first"):
        life.run(life.trash.undelete("x"))
    assert life.steps.trashed(topic_id) is not None


def test_a_broker_that_has_not_heard_of_a_deletion_yet_is_not_one_that_emptied_its_trash(life: Life) -> None:
    """Another broker asks for the parts that this one has."""
    topic_id = life.make("x")
    assert life.trash.find_deleted(topic_id) == SERVED
    delete_topic = Removal("x", topic_id, [0], whole=True, trash=True)
    life.catalog.removals.append(delete_topic)
    del life.catalog.topics["x"]
    life.catalog.trash = [TrashedTopic("x", topic_id, {0: [0]})]
    assert life.trash.find_deleted(topic_id) == REMOVED
    life.catalog.removals.remove(delete_topic)
    assert life.trash.find_deleted(topic_id) == TRASHED
    life.catalog.trash = []
    assert life.trash.find_deleted(topic_id) == GONE


def test_a_full_disk_lets_no_topic_come_back_and_loses_none(
    tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise DiskFull("no room")

    life = Life(tmp_path, Registry(steps, enabled=False), Machine())
    topic_id = delete(life)
    with monkeypatch.context() as broken:
        broken.setattr("appliance.catalog.replace_data_file", full)
        with pytest.raises(DiskFull):
            life.run(life.trash.undelete("x"))
    life.run(life.trash.undelete("x"))
    assert life.is_whole("x", topic_id)


def test_another_broker_that_knows_the_deletion_takes_the_topic_back_under_its_new_name(life: Life) -> None:
    """It was put into the trash here, and is undeleted by somebody else: the registration says so."""
    topic_id = delete(life)
    life.run(life.registry.ask(deletion.put_offsets_back(topic_id, "y")))
    trashed = life.catalog.trash[0]
    life.run(
        life.registry.ask(
            life.registry.topics.create_topic("y", TopicInfo(trashed.partitions, trashed.settings, topic_id))
        )
    )
    life.run(life.sync.synchronise_one("y"))
    assert life.is_whole("y", topic_id)


def test_the_mark_of_a_deletion_goes_only_if_the_name_is_the_same(life: Life) -> None:
    """A broker that was away meanwhile finds its topic, or deletes it under the old name."""
    for name, marked in [("x", False), ("y", True)]:
        topic_id = delete(life)
        life.run(life.trash.undelete("x", name))
        assert life.run(life.registry.ask(cluster_identity.is_deleted(topic_id))) == marked
        assert not [path for path in life.registry.tree.nodes if path.startswith(f"/brokers/deleted/{topic_id}/")]
        life.run(life.topics.delete(name))


def test_a_disk_that_cannot_be_read_is_an_error_and_not_the_end(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(data_dir: Path) -> dict[str, int]:
        raise OSError(errno.EIO, "Input/output error")

    delete(life)
    monkeypatch.setattr("appliance.log.partition_directory.trash_bytes", broken)
    for look_at in (life.trash.rows, life.trash.disk_bytes):
        with pytest.raises(StorageFault, match="Input/output error"):
            life.run(look_at())


def test_the_trash_is_emptied_while_zookeeper_is_away(life: Life) -> None:
    """Its copies of offsets go with the mark of the deletion."""
    topic_id = delete(life)
    life.registry.away, life.registry.state = True, "suspended"
    life.run(life.trash.empty([topic_id], "a test wants it"))
    assert life.catalog.trash == [] and not partition_directory.trashed_directories(life.data_dir)
    life.registry.away, life.registry.state = False, "connected"
    life.run(life.registry.ask(cluster_identity.drop_marks(START + 10 * DAY)))
    assert not [path for path in life.registry.tree.nodes if topic_id in path]


def test_a_deletion_that_waits_for_zookeeper_does_not_keep_its_room(life: Life) -> None:
    """The directory is in the trash or has its name still: both go when room is wanted."""
    topic_id = life.make("x")
    life.run(life.steps.decide_deletion(life.catalog.topics["x"]))
    life.registry.away = True
    (removal,) = life.catalog.removals
    with pytest.raises(ZooKeeperAway):
        life.run(life.steps.finish(removal))
    life.run(life.trash.empty([topic_id], "a test wants it"))
    assert life.catalog.trash == [] and life.catalog.removals == [msgspec.structs.replace(removal, trash=False)]
    life.registry.away = False
    life.run(life.begin())
    life._clean()
    assert life.left() == [] and not life.catalog.removals
