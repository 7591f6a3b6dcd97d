"""Deleting and making topics on a real appliance while its processes are killed at every step, and disks refuse.

A step is held by what it must pass: a stopped writer (it is to end), a named pipe in place of a directory's identity
(the remover is to read it), a file in the place that a directory is to be renamed to.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from appliance.catalog import Catalog, CatalogChange, Removal
from appliance.errors import DiskFull, RequestTimedOut, StorageFault, UnknownPartition, WriterGone
from appliance.log import partition_directory
from appliance.log.files import log_path
from appliance.names import TopicPartition
from appliance.processes.control import Channel
from appliance.processes.supervisor.actions import Actions
from appliance.processes.supervisor.children import Restarts
from appliance.processes.supervisor.fork import Child
from appliance.processes.supervisor.hosted import Hosted
from appliance.processes.supervisor.removal import Removals
from appliance.records.encode import encode_values
from appliance.wire import native

from ...support.leases import held
from ...support.native_peer import Peer
from ...support.server import NotServing, Server, children, wait_for

OLD, NEW = encode_values([b"old"], 1_000), encode_values([b"new"], 2_000)
BODY = 16
"""What a broker stamps into a batch, its offset and its leader epoch, ends here."""
QUICK: dict[str, Any] = {
    "network.workers": 1,
    "disk.check_ms": 100,
    "liveness.timeout_ms": 300_000,
    "topics.trash_ms": 0,
}
"""Whoever is stopped here is not to be taken for hanging."""


def kill_coordinator(server: Server) -> None:
    """Returns when its successor has been forked."""
    (pid,) = children(server, "coordinator")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: any(other != pid for other in children(server, "coordinator")), "the next coordinator")


def make(peer: Peer) -> None:
    """A topic x with one message, OLD."""
    peer.create("x")
    assert peer.produce("x", OLD, acks=-1)[0] == 0


def holds(peer: Peer, batch: bytes) -> bool:
    """Whether this is the first message of x."""
    return bool(peer.fetch("x", 0)[1][BODY:] == batch[BODY:])


class Held:
    """A topic x with one message, whose deletion has begun and has come to a certain step."""

    def __init__(self, server: Server, step: str) -> None:
        self.server = server
        with Peer(server.native) as peer:
            make(peer)
            (self.writer,) = wait_for(lambda: children(server, "wr x-0"), "the writer")
        self.directory = server.data_dir / "x-0"
        self.topic_id = partition_directory.topic_id_of(self.directory)
        self.metadata = (self.directory / partition_directory.METADATA_NAME).read_bytes()
        if step == "writer":
            os.kill(self.writer, signal.SIGSTOP)
        else:
            (self.directory / partition_directory.METADATA_NAME).unlink()
            os.mkfifo(self.directory / partition_directory.METADATA_NAME)
        self.step = step
        self.peer = Peer(server.native)
        self.peer.send([native.ADMIN, 1, "delete_topic", {"name": "x"}])
        if step == "writer":
            wait_for(lambda: Catalog.load(server.data_dir).removals, "the deletion to be decided")
        else:
            wait_for(lambda: children(server, "remover"), "the remover")

    def go_on(self) -> None:
        self.peer.close()
        if self.step == "writer":
            os.kill(self.writer, signal.SIGCONT)
            return
        answer(self.directory / partition_directory.METADATA_NAME, self.metadata)


def answer(pipe: Path, content: bytes) -> None:
    """Let one who reads a named pipe go on; from now on a file is in its place."""
    fd = os.open(pipe, os.O_WRONLY)  # waits for the reader
    pipe.unlink()
    pipe.write_bytes(content)
    os.write(fd, content)
    os.close(fd)


def refusal(server: Server, verb: str, **arguments: Any) -> int:
    """The code with which a verb is refused; 0 when it is not."""
    with Peer(server.native) as peer:
        header, _ = peer.call([native.ADMIN, 1, verb, arguments])
        return int(header[1])


def made_anew(server: Server) -> None:
    """Goal: the name is free in the end, the new topic is empty, nothing that is late touches it."""
    wait_for(lambda: refusal(server, "create_topic", name="x") == 0, "the name to be free")
    with Peer(server.native) as peer:
        assert peer.produce("x", NEW, acks=-1)[:2] == (0, len(NEW) - 1)
    wait_for(lambda: not partition_directory.deleted(server.data_dir), "the old files to be gone")
    wait_for(lambda: not children(server, "remover"), "the removers to be gone")
    for _ in range(2):
        assert not Catalog.load(server.data_dir).removals
        with Peer(server.native) as peer:
            assert holds(peer, NEW)
        server.stop()
        server.start()


@pytest.mark.parametrize("step", [pytest.param("writer", marks=pytest.mark.long), "remover"])
def test_a_coordinator_killed_in_a_deletion_orders_it_again_and_nothing_of_the_next_topic(
    make_appliance: Callable[..., Server], step: str
) -> None:
    server = make_appliance(**QUICK)
    held = Held(server, step)
    for _ in range(2):
        kill_coordinator(server)
    assert refusal(server, "create_topic", name="x") in (WriterGone.code, RequestTimedOut.code)
    held.go_on()
    made_anew(server)


@pytest.mark.parametrize("step", ["writer", "remover"])
def test_a_supervisor_killed_in_a_deletion_leaves_it_to_the_next(tmp_path: Path, step: str) -> None:
    server = Server(tmp_path / "data", **QUICK).start()
    held = Held(server, step)
    held.peer.close()
    if step == "remover":  # what a power loss leaves: the identity is a file again
        server.kill_supervisor()
        (held.directory / partition_directory.METADATA_NAME).unlink()
        (held.directory / partition_directory.METADATA_NAME).write_bytes(held.metadata)
    else:
        server.kill_supervisor()
        held.go_on()
    with server:
        made_anew(server)


def test_a_remover_that_is_killed_is_told_of_and_another_goes_on(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**QUICK)
    held = Held(server, "remover")
    (remover,) = children(server, "remover")
    os.kill(remover, signal.SIGKILL)
    header, _ = held.peer.receive()
    assert header[1] == RequestTimedOut.code and "interrupted" in header[2]
    wait_for(lambda: [pid for pid in children(server, "remover") if pid != remover], "another remover")
    held.go_on()
    made_anew(server)


def test_a_repair_ends_with_its_topic_and_does_nothing_to_the_next_one(make_appliance: Callable[..., Server]) -> None:
    """Method: the repairer waits for a lease of the segment, which it is to read."""
    server = make_appliance(**QUICK, **{"writer.idle_ms": 100, "scrub.bytes_per_second": 0})
    with Peer(server.native) as peer, Peer(server.native) as other:
        make(peer)
        wait_for(lambda: not children(server, "wr x-0"), "the writer to end")
        with held([log_path(server.data_dir / "x-0", 0)]):
            peer.send([native.ADMIN, 1, "repair", {"name": "x", "partition": 0}])
            wait_for(lambda: children(server, "repairer"), "the repairer")
            other.admin("delete_topic", name="x")
            assert not children(server, "repairer")
            header, _ = peer.receive()
            assert header[1] == UnknownPartition.code and "deleted" in header[2]
            made_anew(server)


@pytest.mark.parametrize(
    "left", ["old name", pytest.param("new name", marks=pytest.mark.long), "half deleted", "nothing"]
)
def test_whatever_a_power_loss_leaves_of_a_deletion_the_next_start_finishes(tmp_path: Path, left: str) -> None:
    with Server(tmp_path / "data", **QUICK) as server, Peer(server.native) as peer:
        make(peer)
    catalog = Catalog.load(server.data_dir)
    topic_id = catalog.topics["x"].id
    catalog.change(CatalogChange(drop="x", note=Removal("x", topic_id, [0])))
    if left != "old name":
        partition_directory.set_aside(server.data_dir, "x", 0, topic_id)
    if left == "half deleted":
        (
            partition_directory.deleted_directory(server.data_dir, topic_id, 0) / partition_directory.METADATA_NAME
        ).unlink()
    if left == "nothing":
        partition_directory.discard(partition_directory.deleted_directory(server.data_dir, topic_id, 0))
    with server:
        made_anew(server)


@contextmanager
def full_disk(pid: int) -> Iterator[None]:
    """One process cannot write to files any more (EFBIG is as good as ENOSPC)."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    yield
    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def test_a_deletion_that_is_refused_leaves_the_topic_whole_also_at_the_next_start(
    make_appliance: Callable[..., Server],
) -> None:
    server = make_appliance(**QUICK)
    with Peer(server.native) as peer:
        make(peer)
        with full_disk(server.pid_of("coordinator")):
            assert refusal(server, "delete_topic", name="x") == DiskFull.code
            assert refusal(server, "create_topic", name="y") == DiskFull.code
        assert [row["name"] for row in peer.admin("topics")] == ["x"]
        assert holds(peer, OLD)
    server.stop()
    server.start()
    with Peer(server.native) as peer:
        assert [row["name"] for row in peer.admin("topics")] == ["x"]
        assert holds(peer, OLD)
    assert not (server.data_dir / "y-0").exists()


def test_a_deletion_that_the_disk_refuses_half_way_is_told_and_done_when_it_can_be(
    make_appliance: Callable[..., Server],
) -> None:
    server = make_appliance(**QUICK)
    with Peer(server.native) as peer:
        make(peer)
    in_the_way = partition_directory.deleted_directory(
        server.data_dir, partition_directory.topic_id_of(server.data_dir / "x-0"), 0
    )
    in_the_way.write_text("")
    for _ in range(2):
        assert refusal(server, "delete_topic", name="x") == RequestTimedOut.code
        assert refusal(server, "create_topic", name="x") == WriterGone.code
    assert "is not complete" in server.log()
    in_the_way.unlink()
    made_anew(server)


@pytest.mark.parametrize("growing", [False, True])
def test_a_creation_that_is_refused_leaves_nothing(make_appliance: Callable[..., Server], growing: bool) -> None:
    """Method: one of the new partitions finds the log of another topic in its place."""
    server = make_appliance(**QUICK)
    foreign = server.data_dir / "x-2"
    partition_directory.claim(foreign, "a" * 32)
    (foreign / "file").write_text("data")
    with Peer(server.native) as peer:
        if growing:
            make(peer)
            assert refusal(server, "alter_topic", name="x", partitions=5) == StorageFault.code
        else:
            assert refusal(server, "create_topic", name="x", partitions=5) == StorageFault.code
        kept = ["x-0", "x-2"] if growing else ["x-2"]
        for _ in range(2):
            wait_for(lambda: not partition_directory.deleted(server.data_dir), "what was made is removed")
            assert sorted(path.name for path in server.data_dir.glob("x-*")) == kept
            assert (foreign / "file").read_text() == "data"
            catalog = Catalog.load(server.data_dir)
            assert [len(topic.partitions) for topic in catalog.topics.values()] == ([1] if growing else [])
            assert not catalog.removals
            server.stop()
            server.start()
    (foreign / "file").unlink()
    (foreign / partition_directory.METADATA_NAME).unlink()
    foreign.rmdir()
    with Peer(server.native) as peer:
        if growing:
            peer.admin("alter_topic", name="x", partitions=5)
            assert holds(peer, OLD)
        else:
            peer.create("x", partitions=5)
        assert peer.produce("x", NEW, partition=2, acks=-1)[0] == 0


@pytest.mark.parametrize("victim", ["coordinator", "supervisor"])
def test_a_creation_that_a_crash_interrupts_is_taken_back(tmp_path: Path, victim: str) -> None:
    """Method: the opener of a new partition waits for a named pipe."""
    server = Server(tmp_path / "data", **QUICK).start()
    (server.data_dir / "x-1").mkdir()
    pipe = server.data_dir / "x-1" / partition_directory.METADATA_NAME
    os.mkfifo(pipe)
    with Peer(server.native) as peer:
        peer.send([native.ADMIN, 1, "create_topic", {"name": "x", "partitions": 2}])
        wait_for(lambda: (server.data_dir / "x-0" / partition_directory.METADATA_NAME).exists(), "the first partition")
    with Peer(server.native):  # the worker knows by now that nobody waits for the creation any more
        (note,) = Catalog.load(server.data_dir).removals
    assert (note.name, note.partitions) == ("x", [0, 1])
    if victim == "coordinator":
        kill_coordinator(server)
    else:
        server.kill_supervisor()
    if victim == "coordinator":
        answer(pipe, f"topic_id: {note.id}\n".encode())
    else:
        pipe.unlink()
        server.start()
    made_anew(server)
    assert not (server.data_dir / "x-1").exists()
    server.stop()


def test_the_log_of_another_topic_is_not_served(make_appliance: Callable[..., Server]) -> None:
    """A catalog that does not go with the directories, say from a backup: offline and told, nothing is touched."""
    server = make_appliance(**QUICK)
    with Peer(server.native) as peer:
        make(peer)
    server.stop()
    path = server.data_dir / "x-0" / partition_directory.METADATA_NAME
    ours = path.read_bytes()
    path.write_text(f"version: 0\ntopic_id: {'a' * 32}\n")
    try:
        server.start()
    except NotServing:
        pytest.fail("one partition must not keep the appliance from starting")
    assert "holds the log of a topic with id aaaa" in server.state["offline"]["x-0"]
    server.stop()
    path.write_bytes(ours)
    server.start()
    with Peer(server.native) as peer:
        assert holds(peer, OLD)


class Forked:
    """Stands for the supervisor's children: notes what is forked."""

    def __init__(self) -> None:
        self.restarts = Restarts()
        self.keys: list[object] = []

    def fork(self, role: str, key: object, *_: object, work: bool) -> Child:
        self.keys.append(key)
        ours, theirs = Channel.pair()
        ours.close()
        theirs.close()
        self.last = Child(role, key, 1, -1, ours, 0)
        return self.last

    def start_again(self, *_: object) -> None:
        raise AssertionError("a remover does not stay")


def test_a_deletion_ordered_before_the_remover_has_ended_waits_for_the_next_one(tmp_path: Path) -> None:
    """Goal: the end of the first remover does not count as an interruption of what the second one is to do."""
    children = Forked()
    removals = Removals(tmp_path, Hosted(), children, Actions(lambda: None), set(), [])  # type: ignore[arg-type]
    first, second = TopicPartition("a", 0), TopicPartition("b", 0)
    removals.remove_partition(first, "a" * 32)
    removals.start_remover()
    removals.on_removed([(first, "", "")])
    removals.remove_partition(second, "b" * 32)
    removals.start_remover()
    assert children.keys == [(first,)]
    assert removals.on_remover_end(children.last) == []
    removals.start_remover()
    assert children.keys == [(first,), (second,)]
    assert removals.on_remover_end(children.last) == [(second, "WriterGone", "removing it was interrupted")]
