"""appliance.groups.assignors: everything is assigned once, evenly, and moves no more than it must."""

from __future__ import annotations

from math import ceil, floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.groups.assignors import (
    ASSIGNORS,
    Subscriber,
    Subscribers,
    Targets,
    TopicParts,
    TopicsToAssign,
    assign_ranges,
    assign_uniformly,
)

NAMES = ("a", "b", "c")


def numbered(**counts: int) -> dict[str, TopicParts]:
    return {name: TopicParts(name.upper(), tuple(range(count))) for name, count in counts.items()}


def subscribers(*ids: str, topics: str = "a") -> dict[str, Subscriber]:
    return {id: Subscriber(None, frozenset(topics), frozenset()) for id in ids}


def again(members: Subscribers, targets: Targets) -> dict[str, Subscriber]:
    """The same members, with what they were assigned."""
    return {id: member._replace(held=targets.get(id, frozenset())) for id, member in members.items()}


MEMBERS = st.dictionaries(
    st.sampled_from([f"m{number}" for number in range(6)]),
    st.builds(Subscriber, st.none(), st.frozensets(st.sampled_from([*NAMES, "none"])), st.just(frozenset())),
    max_size=6,
)
TOPICS = st.fixed_dictionaries({name: st.integers(0, 9) for name in NAMES}).map(lambda counts: numbered(**counts))


@pytest.mark.parametrize("assignor", ASSIGNORS)
@given(members=MEMBERS, topics=TOPICS)
def test_each_partition_has_one_subscriber(assignor: str, members: Subscribers, topics: TopicsToAssign) -> None:
    targets = ASSIGNORS[assignor](members, topics)
    assert targets.keys() == members.keys()
    owned = [part for parts in targets.values() for part in parts]
    wanted = {
        (topics[name].id, number)
        for name in topics
        for number in topics[name].numbers
        if any(name in member.topics for member in members.values())
    }
    assert len(owned) == len(set(owned)) and set(owned) == wanted
    for id, parts in targets.items():
        assert {topic for topic, _ in parts} <= {topics[name].id for name in members[id].topics if name in topics}


@given(members=MEMBERS, topics=TOPICS)
def test_uniform_is_as_even_as_moves_can_make_it_and_then_stays(members: Subscribers, topics: TopicsToAssign) -> None:
    targets = assign_uniformly(members, topics)
    name_of = {topic.id: name for name, topic in topics.items()}
    for parts in targets.values():
        for id, _ in parts:
            loads = [len(targets[other]) for other in members if name_of[id] in members[other].topics]
            assert len(parts) <= min(loads) + 1
    assert assign_uniformly(again(members, targets), topics) == targets


@given(before=st.integers(1, 6), after=st.integers(1, 6), count=st.integers(0, 20))
def test_uniform_moves_only_what_it_must(before: int, after: int, count: int) -> None:
    topics = numbered(a=count)
    first = assign_uniformly(subscribers(*(f"m{number}" for number in range(before))), topics)
    second = assign_uniformly(again(subscribers(*(f"m{number}" for number in range(after))), first), topics)
    loads = [len(parts) for parts in second.values()]
    assert max(loads) <= ceil(count / after) and min(loads) >= floor(count / after)
    moved = sum(len(parts - first.get(id, frozenset())) for id, parts in second.items())
    least = sum(len(parts) for id, parts in first.items() if id not in second)
    if after > before:
        least = sum(loads[number] for number in range(before, after))
    assert moved <= least + before, "at most one more for each that has one more than others"


def test_range_gives_consecutive_numbers_and_the_same_ones_of_topics_alike() -> None:
    targets = assign_ranges(subscribers("n", "m", topics="ab"), numbered(a=5, b=5))
    assert targets["m"] == {("A", 0), ("A", 1), ("A", 2), ("B", 0), ("B", 1), ("B", 2)}
    assert targets["n"] == {("A", 3), ("A", 4), ("B", 3), ("B", 4)}


def test_a_static_member_keeps_its_place_in_a_range() -> None:
    topics = numbered(a=4)
    one, two = (Subscriber(instance, frozenset("a"), frozenset()) for instance in ("one", "two"))
    assert assign_ranges({"x": one, "m": two}, topics)["x"] == assign_ranges({"a": two, "z": one}, topics)["z"]


def test_a_thousand_members_are_assigned_within_a_moment() -> None:
    """Goal: the coordinator serves others meanwhile; the loads are found without looking at all members."""
    members = subscribers(*(f"m{number}" for number in range(1_000)), topics="abc")
    topics = numbered(a=2_000, b=2_000, c=1_000)
    targets = assign_uniformly(members, topics)
    assert {len(parts) for parts in targets.values()} == {5}
