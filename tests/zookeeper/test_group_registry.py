"""appliance.zookeeper.group_registry: groups are listed, and pruned when nothing is in them."""

from __future__ import annotations

from appliance.names import TopicPartition
from appliance.zookeeper import claims
from appliance.zookeeper.group_registry import GroupRegistry
from appliance.zookeeper.paths import CommittedOffset, Subscription

from ..support.zookeeper_fixture import Tree, register_member, write_offsets

GROUP = "team/a"
PART = TopicPartition("logs", 0)


def test_groups_are_listed_and_pruned_when_nothing_is_in_them() -> None:
    tree, groups = Tree(), GroupRegistry()
    tree.run(register_member(GROUP, "c-1", Subscription({"logs": 1})))
    assert tree.run(groups.groups()) == [GROUP]
    assert tree.run(groups.members(GROUP)) == {"c-1": Subscription({"logs": 1})}
    tree.run(groups.prune(GROUP))
    assert tree.run(groups.members(GROUP)), "members stay"
    tree.run(write_offsets(GROUP, {PART: CommittedOffset(1)}))
    tree.expire(1)
    tree.run(groups.prune(GROUP))
    assert tree.run(claims.read(GROUP, None)), "and so do positions"
    tree.run(register_member("left", "c-1", Subscription({"logs": 1})))
    tree.expire(1)
    tree.run(groups.prune("left"))
    assert tree.run(groups.groups()) == [GROUP]
