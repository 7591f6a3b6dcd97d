"""appliance.processes.coordinator.registered_groups: members and offsets of groups in the registry."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import InvalidRequest, RequestTimedOut, UnknownPartition, ZooKeeperAway
from appliance.groups.store import Commit, ListedGroup, RegisteredMember
from appliance.names import TopicPartition as Part
from appliance.processes.coordinator import member_registration
from appliance.processes.coordinator.registered_groups import PAGE_GROUPS
from appliance.zookeeper import operations
from appliance.zookeeper.operations import Operation, Request
from appliance.zookeeper.paths import Subscription, consumer, owner

from ...support.coordinator_bench import Bench
from ...support.zookeeper_fixture import register_member, watched


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def member(name: str, *partitions: tuple[str, int]) -> RegisteredMember:
    return RegisteredMember(name, "client", "/192.0.2.1", ("logs",), tuple(Part(*one) for one in partitions))


async def nothing() -> None:
    pass


def register(bench: Bench, group: str, *members: RegisteredMember) -> None:
    bench.groups.register(group, lambda: members)


def test_members_of_kafka_groups_are_registered_moved_and_taken_away(bench: Bench) -> None:
    nodes = bench.registry.tree.nodes
    register(bench, "g", member("a", ("logs", 0), ("logs", 1)), member("b"))
    bench.run(nothing())
    group = bench.run(bench.groups.group("g"))
    assert group is not None and not group.native
    assert group.members == (member("a", ("logs", 0), ("logs", 1)), member("b"))
    assert bench.run(bench.groups.groups(lambda _: True)) == [ListedGroup("g", False, 2)]

    register(bench, "g", member("b", ("logs", 1)))
    bench.run(nothing())
    assert consumer("g", "a") not in nodes and owner("g", Part("logs", 0)) not in nodes
    assert nodes[owner("g", Part("logs", 1))].value == b"b-0"

    register(bench, "g")
    bench.run(nothing())
    assert bench.run(bench.groups.group("g")) is None, "who leaves without a commit leaves nothing"
    assert not any(path.startswith("/consumers/") for path in nodes)


def test_a_list_asks_for_no_group_that_is_claimed_here_and_twice_for_a_page_of_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: all groups are claimed here at first; one of them had a member before that nobody here has met."""
    count = 3 * PAGE_GROUPS
    native = Subscription({"logs": 1}, protocol="native")
    bench.registry.tree.run(register_member("g0002", "n", native), 7)
    for number in range(count):
        bench.run(bench.groups.commit(f"g{number:04d}", {Part("logs", 0): Commit(1)}, "consumer"))
    register(bench, "g0001", member("a"), member("b"))
    bench.run(nothing())
    requests: list[list[Request]] = []
    ask = operations.ask

    def counted(some: Sequence[Request]) -> Operation[list[Any]]:
        requests.append(list(some))
        return (yield from ask(some))

    monkeypatch.setattr(operations, "ask", counted)
    listed = bench.run(bench.groups.groups(lambda _: True))
    assert listed[:3] == [
        ListedGroup("g0000", False, 0, "consumer"),
        ListedGroup("g0001", False, 2, "consumer"),
        ListedGroup("g0002", True, 1, "consumer"),
    ]
    assert len(listed) == count and sum(map(len, requests)) == 2, "the members of one group, and the value of one"
    requests.clear()
    assert bench.run(bench.groups.groups("g0001".__eq__)) == [listed[1]] and not requests
    requests.clear()
    monkeypatch.setattr(bench.registry, "leased", False)
    assert bench.run(bench.groups.groups(lambda _: True)) == listed and sum(map(len, requests)) == 2 * count + 2


def test_what_could_not_be_registered_while_zookeeper_was_away_is_registered_later(bench: Bench) -> None:
    nodes = bench.registry.tree.nodes
    register(bench, "g", member("a"), member("b"))
    bench.run(nothing())
    bench.registry.away = True
    register(bench, "g", member("b"))
    register(bench, "h", member("c"))
    bench.run(nothing())
    assert consumer("g", "a") in nodes
    bench.registry.away = False
    bench.run(bench.groups.reconnected())
    assert consumer("g", "a") not in nodes and {consumer("g", "b"), consumer("h", "c")} <= set(nodes)


def test_a_group_that_is_left_while_zookeeper_goes_away_is_tidied_up_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its nodes are taken away, then ZooKeeper is gone: looking at the group again ended the coordinator."""
    nodes = bench.registry.tree.nodes
    register(bench, "g", member("a"))
    bench.run(nothing())
    tidy_up = bench.groups._registration._emptied

    async def away(group: str) -> None:
        monkeypatch.setattr(bench.groups._registration, "_emptied", tidy_up)
        raise ZooKeeperAway("away")

    monkeypatch.setattr(bench.groups._registration, "_emptied", away)
    register(bench, "g")
    bench.run(nothing())
    assert consumer("g", "a") not in nodes
    bench.run(bench.groups.reconnected())
    bench.run(nothing())
    assert not any(path.startswith("/consumers/") for path in nodes) and not bench.groups._registration._members


def test_in_a_new_session_everything_is_registered_again(bench: Bench) -> None:
    nodes = bench.registry.tree.nodes
    register(bench, "g", member("a", ("logs", 0)), member("b"))
    bench.run(nothing())
    bench.registry.session_id = 2
    bench.run(bench.groups.reconnected())
    assert {nodes[path].owner for path in nodes if "/ids/" in path or path.endswith("logs/0")} == {2}
    bench.registry.tree.expire(1)
    group = bench.run(bench.groups.group("g"))
    assert group is not None and len(group.members) == 2


def test_the_nodes_of_a_hundred_members_are_written_in_one_request(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(bench, "g", member("first"))  # makes the nodes above
    bench.run(nothing())
    writes: list[str] = []
    ask = bench.registry.ask

    def note(requests: Sequence[Request]) -> None:
        writes.extend(request.verb for request in requests if request.verb != "get")

    async def counted(operation: Operation[Any], **options: Any) -> Any:
        return await ask(watched(operation, note), **options)

    monkeypatch.setattr(bench.registry, "ask", counted)
    register(bench, "g", *(member(f"m{number}") for number in range(member_registration.WINDOW)))
    bench.run(nothing())
    assert writes == ["multi", "multi"], "the first member is taken away, and the others are written"
    assert consumer("g", "m99") in bench.registry.tree.nodes and consumer("g", "first") not in bench.registry.tree.nodes


ANY_TEXT = st.text(st.characters(), max_size=30)
PARTITION = st.tuples(ANY_TEXT | st.just("logs") | st.just(".."), st.integers(-3, 10))
MEMBER = st.builds(
    RegisteredMember, ANY_TEXT, ANY_TEXT | st.just("x" * 5_000), ANY_TEXT, st.lists(ANY_TEXT, max_size=3).map(tuple),
    st.lists(PARTITION, max_size=5).map(tuple),
)  # fmt: skip


@given(st.lists(st.tuples(ANY_TEXT, st.lists(MEMBER, max_size=3)), max_size=4))
@settings(deadline=None)
def test_whatever_members_are_called_registering_them_never_fails(
    groups: list[tuple[str, list[RegisteredMember]]],
) -> None:
    with TemporaryDirectory() as data_dir:
        bench = Bench(Path(data_dir))
        for group, members in groups:
            register(bench, group, *members)
            bench.run(nothing())
        register(bench, "last", member("a", ("logs", 0)))
        bench.run(nothing())
        assert consumer("last", "a") in bench.registry.tree.nodes
        for group in [*dict(groups), "last"]:
            register(bench, group)
            bench.run(nothing())
        assert not any(path.startswith("/consumers/") for path in bench.registry.tree.nodes)


def test_what_is_registered_is_bounded_and_members_come_before_what_they_own(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_registration, "NODES_BYTES_MAX", 7 * 400)
    nodes = bench.registry.tree.nodes
    register(bench, "g", *(member(f"m{n}", ("logs", 0), ("logs", 1), ("logs", 9), ("x", 0)) for n in range(2)))
    register(bench, "h", *(member(f"m{n}") for n in range(50)))
    bench.run(nothing())
    assert {consumer("g", f"m{n}") for n in range(2)} <= set(nodes)
    assert 2 <= sum(path.startswith("/consumers/h/ids/") for path in nodes) <= 4
    register(bench, "h")
    bench.run(nothing())
    register(bench, "i", member("c"))
    bench.run(nothing())
    assert consumer("i", "c") in nodes, "what was taken away makes room"


def test_commits_name_the_partitions_that_do_not_exist(bench: Bench) -> None:
    refused = bench.run(
        bench.groups.commit(
            "g", {Part("logs", 0): Commit(7, "note"), Part("logs", 9): Commit(1), Part("x", 0): Commit(1)}
        )
    )
    assert {key: type(error) for key, error in refused.items()} == {
        Part("logs", 9): UnknownPartition,
        Part("x", 0): UnknownPartition,
    }
    assert bench.run(bench.groups.committed("g", None)) == {Part("logs", 0): Commit(7, "note")}
    assert bench.run(bench.groups.committed("g", [Part("logs", 1)])) == {}


def test_a_group_is_forgotten_whose_members_have_just_left(bench: Bench) -> None:
    """They are taken out of the registry in the background; the group was refused as one with live members."""
    register(bench, "g", member("a"), member("b"))
    bench.run(bench.groups.commit("g", {Part("logs", 0): Commit(5, "")}))
    assert consumer("g", "a") in bench.registry.tree.nodes
    register(bench, "g")
    bench.run(bench.groups.forget("g"))
    assert not any(path.startswith("/consumers/g") for path in bench.registry.tree.nodes)


def test_members_are_taken_away_whose_registration_was_never_answered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stayed registered for as long as the session, and their group could not be deleted."""
    ask = bench.registry.ask

    async def mute(operation: Any, **arguments: Any) -> Any:
        await ask(operation, **arguments)
        raise ZooKeeperAway("no answer")

    monkeypatch.setattr(bench.registry, "ask", mute)
    register(bench, "g", member("a", ("logs", 0)))
    bench.run(nothing())
    monkeypatch.undo()
    assert consumer("g", "a") in bench.registry.tree.nodes
    register(bench, "g")
    bench.run(nothing())
    assert not any(path.startswith("/consumers/g") for path in bench.registry.tree.nodes)


def test_a_group_whose_members_cannot_be_taken_away_is_forgotten_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_registration, "SETTLED_S_MAX", 0.01)
    register(bench, "g", member("a"))
    bench.run(nothing())
    bench.registry.away = True
    register(bench, "g")
    with pytest.raises(RequestTimedOut):
        bench.run(bench.groups.forget("g"))


@pytest.mark.parametrize("settled_s", [0.01, 5.0])
def test_a_group_is_forgotten_after_a_question_without_an_answer_in_a_session_that_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, settled_s: float
) -> None:
    """Whoever asks next starts it, or it is tried again after a pause."""
    monkeypatch.setattr(member_registration, "SETTLED_S_MAX", settled_s)
    monkeypatch.setattr(member_registration, "RETRY_S", 0.05 if settled_s > 1 else 60)

    async def unanswered() -> None:
        bench.registry.away = True
        register(bench, "g")
        await asyncio.sleep(0.01)
        if settled_s > 1:
            asyncio.get_running_loop().call_later(0.02, setattr, bench.registry, "away", False)
        else:
            with pytest.raises(RequestTimedOut):
                await bench.groups.forget("g")
            bench.registry.away = False
            monkeypatch.setattr(member_registration, "SETTLED_S_MAX", 5.0)
        await bench.groups.forget("g")

    register(bench, "g", member("a"))
    bench.run(bench.groups.commit("g", {Part("logs", 0): Commit(5, "")}))
    assert consumer("g", "a") in bench.registry.tree.nodes
    bench.run(unanswered())
    assert not any(path.startswith("/consumers/g") for path in bench.registry.tree.nodes)


def test_a_group_with_live_members_is_not_forgotten(bench: Bench) -> None:
    register(bench, "g", member("a"))
    bench.run(nothing())
    with pytest.raises(InvalidRequest):
        bench.run(bench.groups.forget("g"))
