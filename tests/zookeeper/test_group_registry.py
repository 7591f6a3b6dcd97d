"""appliance.zookeeper.group_registry: groups are listed and pruned, and each partition has one owner."""

from __future__ import annotations

from appliance.names import TopicPartition
from appliance.zookeeper.group_registry import GroupRegistry
from appliance.zookeeper.offset_registry import OffsetRegistry
from appliance.zookeeper.paths import CommittedOffset, Subscription

from ..support.zookeeper_fixture import Tree

GROUP = "team/a"
PART = TopicPartition("logs", 0)


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
    tree.run(groups.own("left", {PART: ("c-1", 0)}, 1))
    tree.run(groups.release("left", {PART: ("c-1", 0)}))
    tree.run(groups.leave("left", "c-1"))
    tree.run(groups.prune("left"))
    assert tree.run(groups.groups()) == [GROUP]


def test_who_wants_partitions_gets_the_free_ones_and_is_told_the_rest() -> None:
    tree, groups = Tree(), GroupRegistry()
    parts = [TopicPartition("logs", i) for i in range(3)]
    assert tree.run(groups.own(GROUP, {parts[0]: ("a", 0), parts[1]: ("a", 1)}, 1), 1) == []
    assert tree.run(groups.own(GROUP, {part: ("b", 0) for part in parts[1:]}, 2), 2) == [parts[1]]
    assert tree.run(groups.own(GROUP, {parts[0]: ("a", 0)}, 1), 1) == []  # again, after a lost reply
    tree.run(groups.release(GROUP, {part: ("b", 0) for part in parts}))
    assert tree.run(groups.owners(GROUP)) == {parts[0]: ("a", 0), parts[1]: ("a", 1)}
