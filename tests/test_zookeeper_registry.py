"""appliance.zookeeper.registry: what is registered is found again, and no commit is ever undone by an older one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from appliance.errors import BadValue, TopicExists, UnknownPartition
from appliance.names import TopicPartition
from appliance.zookeeper import cluster_identity, paths
from appliance.zookeeper.deletion import retire_topic
from appliance.zookeeper.operations import Operation, Request, ask, create, delete, hold_ephemeral
from appliance.zookeeper.paths import BrokerInfo, CommittedOffset, Subscription, TopicInfo
from appliance.zookeeper.registry import BrokerRegistry, GroupRegistry, OffsetRegistry, StoredOffset

from .zookeeper_fixture import Tree

GROUP = "team/a"
PART = TopicPartition("logs", 0)
LOGS = TopicInfo({0: [0], 1: [0]}, {"retention.ms": "5"}, id="1" * 32)


def write(path: str, value: bytes) -> Operation[None]:
    yield from ask([create(path, value)])


def delete_by_hand(path: str) -> Operation[None]:
    yield from ask([delete(path)])


def test_topics_are_created_read_and_altered() -> None:
    tree, registry = Tree(), BrokerRegistry()
    tree.run(registry.create_topic("logs", LOGS))
    assert tree.run(registry.topics()) == tree.run(registry.topics(["logs", "none"])) == {"logs": LOGS}
    after = tree.run(registry.alter_topic("logs", lambda info: TopicInfo(info.partitions, {}, info.id)))
    assert tree.run(registry.topics()) == {"logs": after} and after.settings == {}
    with pytest.raises(UnknownPartition):
        tree.run(registry.alter_topic("none", lambda info: info))


def test_a_deletion_takes_what_is_of_that_topic_and_nothing_of_a_later_one() -> None:
    """Goal: whoever repeats a deletion, however late, touches nothing of a topic that was made under the name since."""
    tree, registry, offsets = Tree(), BrokerRegistry(), OffsetRegistry()
    old, new = LOGS.id, "2" * 32
    other = TopicPartition("logs", 1)
    tree.run(registry.create_topic("logs", LOGS))
    tree.run(offsets.commit(GROUP, {PART: CommittedOffset(7, "m", old), other: CommittedOffset(8, "", old)}))
    tree.run(retire_topic("logs", old))
    assert not [path for path in tree.nodes if "logs" in path] and tree.run(cluster_identity.is_deleted(old))
    tree.run(offsets.commit(GROUP, {other: CommittedOffset(9, "", old)}))  # by a member that has not noticed
    tree.run(registry.create_topic("logs", TopicInfo({0: [0], 1: [0]}, id=new)))
    assert tree.run(OffsetRegistry().read(GROUP)) == {}
    tree.run(offsets.commit(GROUP, {PART: CommittedOffset(3, "", new)}))
    tree.run(retire_topic("logs", old))
    assert list(tree.run(registry.topics())) == ["logs"]
    assert {part: at.offset for part, at in tree.run(OffsetRegistry().read(GROUP)).items()} == {PART: 3}
    assert len([path for path in tree.nodes if "/offsets/logs/" in path]) == 1


def test_a_plain_number_is_a_position_in_whatever_topic_has_the_name() -> None:
    tree = Tree()
    tree.run(BrokerRegistry().create_topic("logs", LOGS))
    tree.run(write(paths.offset(GROUP, PART), b"42"))
    assert tree.run(OffsetRegistry().read(GROUP))[PART].offset == 42


def test_a_topic_is_created_once_but_our_own_lost_reply_is_success() -> None:
    tree, registry = Tree(), BrokerRegistry()
    tree.run(registry.create_topic("logs", LOGS))
    tree.run(registry.create_topic("logs", LOGS))  # as after a reply that was lost
    with pytest.raises(TopicExists):
        tree.run(registry.create_topic("logs", TopicInfo(LOGS.partitions, id="2" * 32)))


def test_two_who_alter_a_topic_both_succeed() -> None:
    tree, registry = Tree(), BrokerRegistry()
    tree.run(registry.create_topic("logs", LOGS))

    def add(key: str) -> Operation[TopicInfo]:
        return registry.alter_topic("logs", lambda i: TopicInfo(i.partitions, {**i.settings, key: "1"}, i.id))

    slow = add("a")
    (question,) = next(slow)
    reply = tree.answer(question)
    tree.run(add("b"))
    with pytest.raises(StopIteration) as finished:
        requests = slow.send([reply])
        while True:
            requests = slow.send([tree.answer(request) for request in requests])
    assert finished.value.value.settings.keys() == {"retention.ms", "a", "b"}


def test_junk_in_the_registries_is_left_out_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    tree = Tree()
    for path in ("/brokers/topics/t", "/brokers/ids/1", "/consumers/g/ids/c", "/consumers/g/owners/t/0"):
        tree.run(write(path, b"junk"))
    tree.run(write("/consumers/g/offsets/t/0", b"junk"))
    assert tree.run(BrokerRegistry().topics()) == tree.run(BrokerRegistry().brokers()) == {}
    assert tree.run(GroupRegistry().members("g")) == tree.run(GroupRegistry().owners("g")) == {}
    assert tree.run(OffsetRegistry().read("g")) == {}
    assert len(caplog.records) == 6 and "/brokers/topics/t" in caplog.text
    with pytest.raises(BadValue, match="/brokers/topics/t"):
        tree.run(BrokerRegistry().alter_topic("t", lambda info: info))


class Kept:
    def __init__(self) -> None:
        self.nodes: dict[str, Any] = {}

    def keep(self, path: str, value: bytes, ours: Any = None) -> None:
        self.nodes[path] = (value, ours)


def test_a_restarted_broker_takes_its_registration_over_and_leaves_anothers() -> None:
    tree, kept = Tree(), Kept()
    info = BrokerInfo("me", native="h:1")
    BrokerRegistry().register(kept, 5, info)
    value, ours = kept.nodes[paths.broker(5)]
    path = paths.broker(5)
    assert tree.run(hold_ephemeral(path, paths.encode_broker(BrokerInfo("me")), 1, ours), 1)
    assert tree.run(hold_ephemeral(path, value, 2, ours), 2)  # while session 1 has not expired yet
    tree.expire(1)
    assert tree.run(BrokerRegistry().brokers()) == {5: info}
    BrokerRegistry().register(kept, 5, BrokerInfo("other"))
    value, ours = kept.nodes[path]
    assert not tree.run(hold_ephemeral(path, value, 3, ours), 3)
    assert tree.run(BrokerRegistry().brokers()) == {5: info}
    tree.run(BrokerRegistry().deregister(5))
    assert tree.run(BrokerRegistry().brokers()) == {}


def test_a_broker_with_more_partitions_than_zookeeper_takes_is_registered_all_the_same() -> None:
    kept = Kept()
    info = BrokerInfo("me", "h", "h:1", "h:2", {f"{n:04}" + "x" * 245: [0] for n in range(4_100)})
    BrokerRegistry().register(kept, 5, info)
    value, ours = kept.nodes[paths.broker(5)]
    assert paths.decode_broker("/x", value) == BrokerInfo("me", "h", "h:1", "h:2") and ours(value)


def test_groups_are_listed_and_pruned_when_nothing_is_in_them() -> None:
    tree, groups, offsets = Tree(), GroupRegistry(), OffsetRegistry()
    tree.run(groups.join(GROUP, "c-1", Subscription({"logs": 1}), 1))
    assert tree.run(groups.groups()) == [GROUP]
    assert tree.run(groups.members(GROUP)) == {"c-1": Subscription({"logs": 1})}
    tree.run(groups.prune(GROUP))
    assert tree.run(groups.members(GROUP)), "members stay"
    tree.run(offsets.commit(GROUP, {PART: CommittedOffset(1)}))
    tree.run(groups.leave(GROUP, "c-1"))
    tree.run(groups.prune(GROUP))
    assert tree.run(offsets.read(GROUP)), "and so do positions"
    tree.run(groups.join("left", "c-1", Subscription({"logs": 1}), 1))
    tree.run(groups.claim("left", {PART: ("c-1", 0)}, 1))
    tree.run(groups.release("left", {PART: ("c-1", 0)}))
    tree.run(groups.leave("left", "c-1"))
    tree.run(groups.prune("left"))
    assert tree.run(groups.groups()) == [GROUP]


def test_who_claims_gets_what_is_free_and_is_told_the_rest() -> None:
    tree, groups = Tree(), GroupRegistry()
    parts = [TopicPartition("logs", i) for i in range(3)]
    assert tree.run(groups.claim(GROUP, {parts[0]: ("a", 0), parts[1]: ("a", 1)}, 1), 1) == []
    assert tree.run(groups.claim(GROUP, {part: ("b", 0) for part in parts[1:]}, 2), 2) == [parts[1]]
    assert tree.run(groups.claim(GROUP, {parts[0]: ("a", 0)}, 1), 1) == []  # again, after a lost reply
    tree.run(groups.release(GROUP, {part: ("b", 0) for part in parts}))
    assert tree.run(groups.owners(GROUP)) == {parts[0]: ("a", 0), parts[1]: ("a", 1)}


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
