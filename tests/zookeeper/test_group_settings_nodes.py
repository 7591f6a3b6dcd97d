"""appliance.zookeeper.group_settings_nodes: what is stored is found again, changes do not collide, and are bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import InvalidRequest
from appliance.zookeeper.group_settings_nodes import GROUPS, SettingTexts, alter_settings, read_settings
from appliance.zookeeper.operations import Operation, ask, create

from ..support.zookeeper_fixture import Tree

names = st.text(min_size=1, max_size=8) | st.sampled_from([".", "..", "a/b", "<default>", "%2E", "\ud800"])
settings = st.dictionaries(st.sampled_from(["a.ms", "b.ms"]), st.integers(0, 9).map(str), max_size=2)


@given(st.lists(st.tuples(names, settings), max_size=8))
def test_what_the_last_change_has_left_is_read(changes: list[tuple[str, SettingTexts]]) -> None:
    tree, expected = Tree(), {}
    for name, after in changes:
        expected[name] = after
        stored = tree.run(alter_settings(name, lambda _, after=after: after, 1_000))
        assert stored == tree.run(read_settings()) == {name: held for name, held in expected.items() if held}


def test_a_change_says_so_and_one_that_is_made_already_does_not() -> None:
    tree = Tree()
    assert tree.run(read_settings()) == {} and not tree.nodes
    tree.run(alter_settings("g", lambda before: before | {"a.ms": "1"}, 9))
    announced = tree.nodes[GROUPS].value
    tree.run(alter_settings("g", lambda before: before | {"a.ms": "1"}, 9))
    assert tree.nodes[GROUPS].value == announced
    tree.run(alter_settings("g", lambda before: {}, 9))
    assert tree.nodes[GROUPS].value != announced and list(tree.nodes) == ["/config", GROUPS]


def test_two_changes_at_once_are_both_made() -> None:
    tree, met = Tree(), []

    def change(before: SettingTexts) -> SettingTexts:
        if not met:
            met.append(tree.run(alter_settings("g", lambda other: other | {"b.ms": "2"}, 9)))
        return before | {"a.ms": "1"}

    assert tree.run(alter_settings("g", change, 9)) == {"g": {"a.ms": "1", "b.ms": "2"}}


def test_so_many_groups_have_settings() -> None:
    tree = Tree()
    for name in ("g", "h"):
        tree.run(alter_settings(name, lambda _: {"a.ms": "1"}, 2))
    with pytest.raises(InvalidRequest, match="2 groups have settings"):
        tree.run(alter_settings("i", lambda _: {"a.ms": "1"}, 2))
    tree.run(alter_settings("g", lambda _: {"a.ms": "2"}, 2))
    tree.run(alter_settings("h", lambda _: {}, 2))
    assert tree.run(alter_settings("i", lambda _: {"a.ms": "1"}, 2)) == {"g": {"a.ms": "2"}, "i": {"a.ms": "1"}}


def test_a_node_that_cannot_be_read_is_said_and_can_be_replaced(caplog: pytest.LogCaptureFixture) -> None:
    def junk() -> Operation[None]:
        yield from ask([create(f"{GROUPS}/g", b"junk")])

    tree = Tree()
    tree.run(junk())
    assert tree.run(read_settings()) == {} and f"{GROUPS}/g" in caplog.text
    assert tree.run(alter_settings("g", lambda before: before | {"a.ms": "1"}, 9)) == {"g": {"a.ms": "1"}}
