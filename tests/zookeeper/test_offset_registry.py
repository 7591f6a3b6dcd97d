"""appliance.zookeeper.offset_registry: what is committed is read again, and no commit is undone by an older one."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from appliance.names import TopicPartition
from appliance.zookeeper import paths
from appliance.zookeeper.broker_registry import BrokerRegistry
from appliance.zookeeper.offset_registry import OffsetRegistry, StoredOffset
from appliance.zookeeper.operations import Operation, Request, ask, create, delete
from appliance.zookeeper.paths import CommittedOffset, TopicInfo

from ..support.zookeeper_fixture import Tree

GROUP = "team/a"
PART = TopicPartition("logs", 0)
LOGS = TopicInfo({0: [0], 1: [0]}, {"retention.ms": "5"}, id="1" * 32)


def write(path: str, value: bytes) -> Operation[None]:
    yield from ask([create(path, value)])


def delete_by_hand(path: str) -> Operation[None]:
    yield from ask([delete(path)])


def test_a_plain_number_is_a_position_in_whatever_topic_has_the_name() -> None:
    tree = Tree()
    tree.run(BrokerRegistry().create_topic("logs", LOGS))
    tree.run(write(paths.offset(GROUP, PART), b"42"))
    assert tree.run(OffsetRegistry().read(GROUP))[PART].offset == 42


def test_offsets_are_committed_and_read() -> None:
    tree, offsets = Tree(), OffsetRegistry()
    other = TopicPartition("logs", 1)
    assert tree.run(offsets.commit(GROUP, {PART: CommittedOffset(7, "m"), other: CommittedOffset(8)})) == []
    stored = tree.run(offsets.read(GROUP))
    assert [stored[PART][:2], stored[other][:2]] == [(7, "m"), (8, "")]
    assert tree.run(offsets.read(GROUP, [other])) == {other: stored[other]}
    tree.run(delete_by_hand(paths.offset(GROUP, PART)))
    assert tree.run(offsets.read(GROUP)).keys() == {other}
    assert tree.run(offsets.commit(GROUP, {PART: CommittedOffset(1)})) == []


def test_a_members_commit_gives_way_to_anothers_and_a_deciders_does_not() -> None:
    tree, member, other = Tree(), OffsetRegistry(), OffsetRegistry()
    tree.run(member.commit(GROUP, {PART: CommittedOffset(5)}))
    tree.run(other.commit(GROUP, {PART: CommittedOffset(9)}))
    assert tree.run(member.commit(GROUP, {PART: CommittedOffset(6)})) == [PART]
    assert tree.run(member.read(GROUP))[PART].offset == 9
    tree.run(other.commit(GROUP, {PART: CommittedOffset(3)}))
    assert tree.run(member.commit(GROUP, {PART: CommittedOffset(6)}, overwrite=True)) == []
    assert tree.run(member.read(GROUP))[PART].offset == 6


class Commit:
    def __init__(self, offset: int, operation: Operation[Any]) -> None:
        self.offset, self.operation = offset, operation
        self.requests: list[Request] = next(operation)
        self.done = False


class CommitMachine(RuleBasedStateMachine):
    """One process commits ever larger offsets, several at a time; some are given up and land whenever they like.

    Goal: the stored offset never falls below one whose commit was reported as done.
    """

    @initialize()
    def prepare(self) -> None:
        self.tree, self.offsets = Tree(), OffsetRegistry()
        self.next = self.acknowledged = 0
        self.running: list[Commit] = []
        self.late: list[Request] = []

    @precondition(lambda self: len(self.running) < 3)
    @rule(overwrite=st.booleans())
    def commit(self, overwrite: bool) -> None:
        self.next += 1
        operation = self.offsets.commit(GROUP, {PART: CommittedOffset(self.next)}, overwrite=overwrite)
        self.running.append(Commit(self.next, operation))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), lost=st.booleans())
    def step(self, data: st.DataObject, lost: bool) -> None:
        """The next request of a commit; if its reply is lost, the session sends the request again."""
        one = data.draw(st.sampled_from(self.running))
        if lost:
            [self.tree.answer(request) for request in one.requests]
        self.advance(one)

    def advance(self, one: Commit) -> None:
        try:
            one.requests = one.operation.send([self.tree.answer(request) for request in one.requests])
            while not one.requests:
                one.requests = one.operation.send([])
        except StopIteration as finished:
            assert finished.value == [], "there is nobody else"
            self.running.remove(one)
            self.acknowledged = max(self.acknowledged, one.offset)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.running))
        one.operation.close()
        self.running.remove(one)
        self.late += one.requests

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def land(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.late))
        self.late.remove(request)
        self.tree.answer(request)

    @rule()
    def finish_all(self) -> None:
        while self.running:
            self.advance(self.running[0])

    @invariant()
    def nothing_acknowledged_is_undone(self) -> None:
        if getattr(self, "acknowledged", 0):
            stored: dict[TopicPartition, StoredOffset] = self.tree.run(OffsetRegistry().read(GROUP))
            assert stored[PART].offset >= self.acknowledged


TestCommits = CommitMachine.TestCase
TestCommits.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
