"""appliance.zookeeper.broker_registry: what is registered is found again, and nobody overwrites what is not theirs."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.errors import BadValue, TopicExists, UnknownPartition
from appliance.names import TopicPartition
from appliance.zookeeper import claims, cluster_identity, paths
from appliance.zookeeper.broker_registry import BrokerRegistry
from appliance.zookeeper.deletion import retire_topic
from appliance.zookeeper.group_registry import GroupRegistry
from appliance.zookeeper.operations import Operation, ask, create, hold_ephemeral
from appliance.zookeeper.paths import BrokerInfo, CommittedOffset, TopicInfo

from ..support.zookeeper_fixture import Tree, write_offsets

GROUP = "team/a"
PART = TopicPartition("logs", 0)
LOGS = TopicInfo({0: [0], 1: [0]}, {"retention.ms": "5"}, id="1" * 32)


def write(path: str, value: bytes) -> Operation[None]:
    yield from ask([create(path, value)])


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
    tree, registry = Tree(), BrokerRegistry()
    old, new = LOGS.id, "2" * 32
    other = TopicPartition("logs", 1)
    tree.run(registry.create_topic("logs", LOGS))
    tree.run(write_offsets(GROUP, {PART: CommittedOffset(7, "m", old), other: CommittedOffset(8, "", old)}))
    tree.run(retire_topic("logs", old))
    assert not [path for path in tree.nodes if "logs" in path] and tree.run(cluster_identity.is_deleted(old))
    tree.run(write_offsets(GROUP, {other: CommittedOffset(9, "", old)}))  # by a member that has not noticed
    tree.run(registry.create_topic("logs", TopicInfo({0: [0], 1: [0]}, id=new)))
    assert {at.topic_id for at in tree.run(claims.read(GROUP, None)).values()} == {old}, "which nobody reads"
    tree.run(write_offsets(GROUP, {PART: CommittedOffset(3, "", new)}))
    tree.run(retire_topic("logs", old))
    assert list(tree.run(registry.topics())) == ["logs"]
    assert {part: at.offset for part, at in tree.run(claims.read(GROUP, None)).items()} == {PART: 3}
    assert len([path for path in tree.nodes if "/offsets/logs/" in path]) == 1


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
    assert tree.run(claims.read("g", None)) == {}
    assert len(caplog.records) == 5 and "/brokers/topics/t" in caplog.text
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
    tree.expire(2)
    assert tree.run(BrokerRegistry().brokers()) == {}


def test_a_registration_is_never_missing_while_it_is_taken_over() -> None:
    """Goal: peers do not see a broker leave that is only restarted.  Method: look after every request."""
    tree, path = Tree(), paths.broker(5)
    assert tree.run(hold_ephemeral(path, b"old", 1, bool), 1)
    takeover, replies = hold_ephemeral(path, b"new", 2, bool), None
    with pytest.raises(StopIteration) as finished:
        while True:
            requests = takeover.send(replies)
            replies = [tree.answer(request, 2) for request in requests]
            assert path in tree.nodes
    assert finished.value.value and tree.nodes[path][:3] == (b"new", 0, 2)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_takeover_whose_reply_was_lost_is_repeated(lost: int) -> None:
    """Method: one of its requests is carried out twice, as a session does that never saw the first reply."""
    tree, path = Tree(), paths.broker(5)
    assert tree.run(hold_ephemeral(path, b"old", 1, bool), 1)
    takeover, replies, turn = hold_ephemeral(path, b"new", 2, bool), None, 0
    with pytest.raises(StopIteration) as finished:
        while True:
            requests = takeover.send(replies)
            replies = [tree.answer(request, 2) for request in requests]
            if turn == lost:
                replies = [tree.answer(request, 2) for request in requests]
            turn += 1
    assert turn > lost
    assert finished.value.value and tree.nodes[path][:3] == (b"new", 0, 2)


def test_a_broker_with_more_partitions_than_zookeeper_takes_is_registered_all_the_same() -> None:
    kept = Kept()
    info = BrokerInfo("me", "h", "h:1", "h:2", {f"{n:04}" + "x" * 245: [0] for n in range(4_100)})
    BrokerRegistry().register(kept, 5, info)
    value, ours = kept.nodes[paths.broker(5)]
    assert paths.decode_broker("/x", value) == BrokerInfo("me", "h", "h:1", "h:2") and ours(value)
