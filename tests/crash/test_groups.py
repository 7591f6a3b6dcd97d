"""kill -9 around a group that reads under load: its members, and every process of the appliance that serves it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from appliance.client import Admin, Producer

from ..support.group_readers import ROOT, Member
from ..support.native_peer import Peer
from ..support.server import Server, wait_for
from .group_load import Group, twice
from .load import Load

PARTITIONS = 4
KILLS = 2
UP_S_MAX = 60
LOCAL: dict[str, Any] = {"zookeeper.nodes": 1, "zookeeper.session_timeout_ms": 20_000}
"""The session of the coordinator outlives its restart, also on a busy machine; those of members are shorter."""
GENTLE = 50
"""Messages in flight: consumers on the same two cores keep up with that."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("groups") / "data", **LOCAL) as running:
        running.wait_for_zookeeper()
        yield running


def group_on(server: Server, topic: str) -> Group:
    with Peer(server.native) as peer:
        peer.create(topic, PARTITIONS)
    return Group(server.native, topic, topic, PARTITIONS)


def load_on(server: Server, topic: str) -> Load:
    return Load(server.native, topic, PARTITIONS, in_flight_max=GENTLE)


def test_members_are_killed_and_replaced(server: Server, topic: str) -> None:
    """Each time the others take over, and read again at most what the killed one had not committed."""
    with group_on(server, topic) as group:
        alive = group.start(3)
        with load_on(server, topic) as load:
            group.wait_reading(*alive)
            for _ in range(KILLS):
                before = group.wait_committing()
                known = twice(group.members)
                alive.pop(0).kill()
                alive += group.start()
                group.wait_reading(*alive)
                group.wait_committing()
                for partition, offset in twice(group.members) - known:
                    assert offset >= before[partition], "committed, and delivered again"
        group.wait_caught_up()
        group.check(load)


HOLDING = """
import sys, threading
from appliance.client import GroupConsumer
address, group, topic, way = sys.argv[1:]
consumer = GroupConsumer(address, group, session_timeout_ms=1000, auto_commit_ms=50)
def read(stream):
    for got in getattr(stream, way)():
        if b"stop" in (getattr(got, "value", None), *getattr(got, "values", ())):
            threading.Event().wait()
for stream in consumer.create_message_streams({topic: 2})[topic]:
    threading.Thread(target=read, args=(stream,)).start()
"""


@pytest.mark.parametrize("way", ["messages", "batches"])
def test_what_a_killed_member_had_in_hand_is_delivered_again(server: Server, topic: str, way: str) -> None:
    """Goal: what a reader has not finished is never committed, however long it takes.

    Method: one of two streams holds on to a message while positions of the other are seen to be committed twice.
    """
    with Peer(server.native) as peer:
        peer.create(topic, 2)
    command = [sys.executable, "-c", HOLDING, server.native, topic, topic, way]
    with (
        Producer(server.native, linger_ms=0) as producer,
        Admin(server.native) as admin,
        subprocess.Popen(command, cwd=ROOT) as child,
    ):

        def committed(partition: int) -> int:
            return admin.offsets(topic).get((topic, partition), 0)

        def publish(value: bytes, partition: int) -> int:
            return producer.send(topic, value, partition=partition).result(60).offset

        try:
            before, held, _ = (publish(value, 0) for value in (b"first", b"stop", b"behind"))
            for _ in range(2):
                offset = publish(b"other", 1)
                wait_for(lambda: committed(1) > offset, "a commit of the other stream")  # noqa: B023
                wait_for(lambda: committed(0) > before, "a commit in front of what is held")
            assert before < committed(0) <= held
        finally:
            child.kill()
        with Member(server.native, topic, topic) as heir:
            wait_for(lambda: len(heir.seen) == 2, "the rest is delivered", UP_S_MAX)
        assert heir.values() == [b"stop", b"behind"]


@pytest.mark.parametrize("role", ["coordinator", "writer", "network"])
def test_the_group_reads_on_when_processes_of_the_appliance_are_killed(server: Server, topic: str, role: str) -> None:
    """The members' sessions live: nothing is read twice."""
    killed: set[int] = set()

    def alive() -> set[int]:
        """state.json is a moment behind."""
        return {row["pid"] for row in server.processes(role) if row.get("topic") in (None, topic)} - killed

    with group_on(server, topic) as group:
        members = group.start(2)
        with load_on(server, topic) as load:
            group.wait_reading(*members)
            for _ in range(KILLS):
                victim = wait_for(alive, f"a {role}").pop()
                server.kill(victim)
                killed.add(victim)
                load.wait_for_more(100)
                group.wait_reading(*members)
        group.wait_caught_up()
        assert twice(members) == set()
        group.check(load)


def test_a_group_that_died_as_a_whole_goes_on_where_it_was(server: Server, topic: str) -> None:
    with group_on(server, topic) as group:
        with load_on(server, topic) as load:
            members = group.start(2)
            group.wait_reading(*members)
            before = group.wait_committing()
            for member in members:
                member.kill()
            heirs = group.start(2)
            group.wait_reading(*heirs)
        group.wait_caught_up()
        for partition in range(PARTITIONS):
            first = min(entry.offset for heir in heirs for entry in heir.seen if entry.partition == partition)
            assert first >= before[partition], "committed, and delivered again"
        group.check(load)


def test_a_frozen_member_is_replaced_and_does_no_harm_when_it_thaws(server: Server, topic: str) -> None:
    """Its session ends while it sleeps.  When it wakes, what it had in hand is somebody else's, and not to commit."""
    with group_on(server, topic) as group:
        sleeper, other = group.start(2)
        with load_on(server, topic) as load:
            group.wait_reading(sleeper, other)
            sleeper.freeze()
            mark = len(other.seen)
            wait_for(lambda: len({entry.partition for entry in other.seen[mark:]}) == PARTITIONS, "the other has all")
            group.wait_committing()
            sleeper.thaw()
            group.wait_reading(sleeper, other)
            group.wait_committing()
        group.wait_caught_up()
        group.check(load, may_go_back=[sleeper])


def test_a_killed_appliance_comes_back_with_its_groups(make_appliance: Callable[..., Server]) -> None:
    """Supervisor, broker and ensemble die at once; members wait, and go on with the next instance."""
    server = make_appliance(**LOCAL)
    server.wait_for_zookeeper()
    address = server.native
    with group_on(server, "t") as group:
        members = group.start(2)
        with load_on(server, "t") as load:
            group.wait_reading(*members)
            group.wait_committing()
            server.kill_supervisor()
            server = make_appliance(**LOCAL, **{"native.listen": address})
            load.wait_for_more(100)
            group.wait_reading(*members)
        group.wait_caught_up()
        group.check(load, may_go_back=members)
    assert server.stop() == 0
    assert server.leftovers() == []
