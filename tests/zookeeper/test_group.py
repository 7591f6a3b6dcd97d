"""appliance.zookeeper.rebalance over a real ensemble: members join, leave, die and lose ZooKeeper."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from appliance.errors import ApplianceError, InvalidRequest, ZooKeeperAway
from appliance.names import TopicPartition
from appliance.zookeeper.assignment import group_assignment
from appliance.zookeeper.broker_registry import BrokerRegistry
from appliance.zookeeper.ensemble import Ensemble
from appliance.zookeeper.group_registry import GroupRegistry
from appliance.zookeeper.offset_registry import OffsetRegistry
from appliance.zookeeper.paths import Subscription, TopicInfo
from appliance.zookeeper.rebalance import Gained, GroupMember
from appliance.zookeeper.session import Session, SessionState

from ..support.zookeeper_fixture import (
    ACCESS,
    LOGIN,
    Sessions,
    end_on_server,
    fresh_connect,
    now_ms,
    running,
    sessions,
    wait_serving,
    wait_until,
)

GROUP = "team a"


class Reader:
    """A consumer's streams that read nothing: positions are set by the test."""

    def __init__(self) -> None:
        self.positions: dict[TopicPartition, int] = {}

    def stop(self, parts: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {part: self.positions.pop(part) for part in parts}

    def start(self, gained: Sequence[Gained]) -> None:
        for each in gained:
            assert (each.topic, each.partition) not in self.positions
            self.positions[TopicPartition(each.topic, each.partition)] = each.stored.offset if each.stored else 0


class Group:
    """Members in one thread, polled in turn."""

    def __init__(self, opened: Sessions) -> None:
        self.opened = opened
        self.members: list[tuple[GroupMember, Reader]] = []
        self.failures: list[ApplianceError] = []
        self.sync_ms = 500
        self.control = opened.open()

    def join(self, name: str, subscription: Subscription, timeout_ms: int = 2_000) -> tuple[GroupMember, Reader]:
        reader = Reader()
        session = Session(self.opened.connect, timeout_ms, name=name, login=LOGIN)
        session.start()
        member = GroupMember(
            session, GROUP, name, subscription, reader,
            clock_ms=now_ms, sync_ms=self.sync_ms, failed=self.failures.append,
        )  # fmt: skip
        member.join()
        self.members.append((member, reader))
        return member, reader

    def poll(self) -> None:
        for member, _ in self.members:
            member.poll(2)
        self.control.run(1)

    def until(self, condition: Callable[[], object], what: str) -> int:
        return wait_until(condition, self.poll, what)

    def settled(self, topics: Mapping[str, int]) -> bool:
        """Does everybody read what the paper's assignment says, and no more?"""
        live = {member.consumer: member.subscription for member, _ in self.members}
        expected = group_assignment(live, {name: range(count) for name, count in topics.items()})
        shares = {member.consumer: member.owned for member, _ in self.members}
        running = [part for _, reader in self.members for part in reader.positions]
        assert len(running) == len(set(running)), f"read twice: {running}"
        return all(
            shares[member.consumer]
            == {part: stream for part, stream in expected.items() if stream[0] == member.consumer}
            and reader.positions.keys() == shares[member.consumer].keys()
            for member, reader in self.members
        )

    def topic(self, name: str, partitions: int) -> None:
        info = TopicInfo({i: [0] for i in range(partitions)}, id=name.encode().hex().zfill(32))
        self.control.call(BrokerRegistry().create_topic(name, info))

    def close(self) -> None:
        for member, _ in self.members:
            member.session.close()


@pytest.fixture
def group(ensemble: Ensemble) -> Iterator[Group]:
    with sessions(fresh_connect(ensemble)) as opened:
        made = Group(opened)
        yield made
        made.close()


def test_members_join_leave_and_die(group: Group) -> None:
    group.sync_ms = 600_000  # nobody waits for a back-off when nobody is slow
    group.topic("logs", 5)
    topics = {"logs": 5}
    _, first_reader = group.join("c1", Subscription({"logs": 1}))
    group.until(lambda: group.settled(topics), "one reads all")
    first_reader.positions = {part: 100 + part.partition for part in first_reader.positions}
    _, second_reader = group.join("c2", Subscription({"logs": 2}))
    group.until(lambda: group.settled(topics), "two share")
    assert second_reader.positions == {("logs", 2): 102, ("logs", 3): 103, ("logs", 4): 104}
    group.join("c3", Subscription(pattern="l.*"))
    group.until(lambda: group.settled(topics), "three share")
    member, _ = group.members.pop(1)
    member.leave()
    group.until(lambda: group.settled(topics), "one has left")
    member.session.close()
    assert group.control.call(GroupRegistry().members(GROUP)).keys() == {"c1", "c3"}


def test_what_a_killed_process_read_is_taken_over(group: Group) -> None:
    group.topic("logs", 4)
    command = [
        sys.executable,
        "-m",
        "tests.support.zookeeper_member",
        group.opened.connect,
        ACCESS["zookeeper.password_file"],
        GROUP,
    ]
    command += ["a", "logs"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "0 1 2 3\n"
        _, reader = group.join("b", Subscription({"logs": 1}))
        group.until(lambda: len(reader.positions) == 2, "shared")
        assert process.stdout.readline() == "0 1\n"
        process.kill()
    group.until(lambda: group.settled({"logs": 4}), "taken over")


def test_new_topics_and_partitions_are_taken_up(group: Group) -> None:
    group.topic("a", 1)
    group.join("c1", Subscription(pattern="[ab]"))
    group.join("c2", Subscription({"a": 1, "b": 1}))
    group.until(lambda: group.settled({"a": 1}), "settled")
    group.topic("b", 4)
    group.topic("c", 4)
    group.until(lambda: group.settled({"a": 1, "b": 4}), "the new topic")
    grown = TopicInfo({i: [0] for i in range(3)}, id="61".zfill(32))
    group.control.call(BrokerRegistry().alter_topic("a", lambda _: grown))
    group.until(lambda: group.settled({"a": 3, "b": 4}), "the new partitions")


def test_a_lost_session_stops_the_streams_and_gets_them_back(group: Group) -> None:
    group.topic("logs", 4)
    first, reader = group.join("c1", Subscription({"logs": 1}))
    group.join("c2", Subscription({"logs": 1}))
    group.until(lambda: group.settled({"logs": 4}), "settled")
    part = TopicPartition("logs", 0)
    assert first.commit({part: 7}) == []
    before = first.session.session_id
    states: list[SessionState] = []
    first.session.on_state(states.append)
    end_on_server(first.session)
    group.until(lambda: SessionState.LOST in states, "lost")
    assert not reader.positions
    group.until(lambda: group.settled({"logs": 4}), "back")
    assert first.session.session_id != before and reader.positions[part] == 7


def test_commits_are_refused_without_a_session_and_for_what_another_owns(group: Group) -> None:
    group.topic("logs", 2)
    first, _ = group.join("c1", Subscription({"logs": 1}))
    with pytest.raises(ZooKeeperAway, match="after the next rebalance"):
        first.commit({TopicPartition("logs", 0): 1})
    group.until(lambda: group.settled({"logs": 2}), "settled")
    part = TopicPartition("logs", 1)
    assert first.commit({part: 5}) == []
    second, _ = group.join("c2", Subscription({"logs": 1}))
    group.until(lambda: group.settled({"logs": 2}), "settled")
    assert second.commit({part: 9}) == []
    assert first.commit({part: 6}) == [part]
    assert group.control.call(OffsetRegistry().read(GROUP))[part].offset == 9


def test_a_group_of_the_kafka_listener_is_refused(group: Group) -> None:
    group.topic("logs", 1)
    member = Subscription({"logs": 1}, protocol="kafka")
    group.control.call(GroupRegistry().join(GROUP, "k", member, group.control.session_id))
    group.join("c1", Subscription({"logs": 1}))
    group.until(lambda: group.failures, "told")
    assert isinstance(group.failures[0], InvalidRequest)


@pytest.mark.long
def test_streams_go_on_while_zookeeper_changes_its_leader(tmp_path: Path) -> None:
    """Goal: kill -9 of any one node disturbs nobody; of all three, only until they are back.  Then offsets are kept."""
    with running(tmp_path, 3) as own, sessions(own.connect) as opened:
        group = Group(opened)
        group.topic("logs", 4)
        members = [group.join(f"c{i}", Subscription({"logs": 1}), timeout_ms=10_000) for i in range(2)]
        group.until(lambda: group.settled({"logs": 4}), "settled")
        before = [dict(reader.positions) for _, reader in members]
        for i in range(3):
            own.processes[i].kill()
            own.processes[i].wait()
            part = TopicPartition("logs", 0)
            assert members[0][0].commit({part: i + 1}, timeout_ms=20_000) == []
            own.start_node(i)
            wait_serving(own)
        group.until(lambda: group.settled({"logs": 4}), "still settled")
        assert [dict(reader.positions) for _, reader in members] == before, "no stream was stopped"
        for i in range(3):
            own.processes[i].kill()
            own.processes[i].wait()
        for i in range(3):
            own.start_node(i)
        wait_serving(own)
        group.until(lambda: all(member.session.state is SessionState.CONNECTED for member, _ in members), "back")
        group.until(lambda: group.settled({"logs": 4}), "settled again")
        assert group.control.call(OffsetRegistry().read(GROUP), timeout_ms=20_000)[part].offset == 3
        group.close()
