"""The supervisor and a machine that refuses: every system call of its own that may fail, at every moment that needs it.

Method: strace makes the calls of the real supervisor fail while something happens that needs them.  Whenever a call was
refused, the supervisor must live, must say what it is being refused, and must have made good for everything once the
refusal ends.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from appliance.errors import OutOfResources
from appliance.records.encode import encode_values
from appliance.wire import native

from ...support.native_peer import Peer
from ...support.server import Server, wait_for

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace, to refuse system calls")

BATCH = encode_values([b"one"], 1_000)

CALLS = {
    "no process": "clone,clone3,fork,vfork:error=EAGAIN",
    "no descriptors for a channel": "socketpair:error=EMFILE",
    "no descriptors on the machine": "socketpair,openat,pidfd_open:error=ENFILE",
    "no descriptor for a child": "pidfd_open:error=EMFILE",
    "no room for a watch": "epoll_ctl:error=ENOSPC:when=1",
    "no room in /dev/shm": "fallocate:error=ENOSPC",
    "no room on the disk": "pwrite64,openat,fallocate:error=ENOSPC",
    "descriptors not taken": "sendmsg:error=ETOOMANYREFS",
}


class Moments:
    """What may happen to an appliance with the topics ``busy`` (which has a writer) and ``idle-0``, ``idle-1``..."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.peer = Peer(server.native)
        self.unanswered: list[Peer] = []
        self.idle = 0
        self.expected: list[str] = ["busy"]

    def writer_killed(self) -> None:
        self.server.kill(next(row["pid"] for row in self.server.processes("writer") if row["topic"] == "busy"))

    def coordinator_killed(self) -> None:
        self.server.kill(self.server.pid_of("coordinator"))

    def writer_needed(self) -> None:
        """Somebody produces to a partition that has no writer."""
        name = f"idle-{self.idle}"
        self.idle += 1
        self.expected.append(name)
        self._send([native.PRODUCE, 7, name, 0, -1, 30_000], BATCH)

    def topic_created(self) -> None:
        self._send([native.ADMIN, 8, "create_topic", {"name": "new", "partitions": 2, "settings": {}}])

    def configuration_reloaded(self) -> None:
        assert self.server.process is not None
        self.server.process.send_signal(signal.SIGHUP)

    def worker_killed(self) -> None:
        self.server.kill(self.server.pid_of("network"))

    def _send(self, header: list[Any], payload: bytes = b"") -> None:
        peer = Peer(self.server.native)
        peer.send(header, payload)
        self.unanswered.append(peer)

    def all_made_good(self) -> bool:
        """Whether everything can be used again."""
        if (
            trying(self.server)
            or self.server.state["refused"]
            or not self.server.pids("network")
            or not self.server.pids("coordinator")
        ):
            return False
        try:
            with Peer(self.server.native) as peer:
                return all(peer.produce(name, BATCH, acks=-1)[0] == 0 for name in self.expected)
        except OSError:
            return False

    def creation_answered(self) -> None:
        """A creation that met a refusal is done, or refused as a whole with a retriable error that says why."""
        header, _ = self.unanswered[-1].receive()
        with Peer(self.server.native) as peer:
            if header[1]:
                assert header[1] == OutOfResources.code and "/dev/" in str(header), header
                assert "new" not in {topic["name"] for topic in peer.admin("topics")}
                peer.create("new", partitions=2)
            assert peer.produce("new", BATCH, partition=1, acks=-1)[0] == 0

    def close(self) -> None:
        for peer in (*self.unanswered, self.peer):
            peer.sock.close()


MOMENTS: list[Callable[[Moments], None]] = [
    Moments.writer_needed,
    Moments.topic_created,
    Moments.configuration_reloaded,
    Moments.coordinator_killed,
    Moments.writer_killed,
    Moments.worker_killed,
]


WATCHING = [Moments.writer_needed, Moments.topic_created]
"""The moments at which the first watch is added; the others take one away before, which cannot fail."""


@contextmanager
def refusing(pid: int, inject: str, output: Path) -> Iterator[None]:
    """These calls of this process fail while the block runs."""
    names = inject.split(":")[0]
    command = ["strace", "-o", str(output), "-e", f"trace={names}", "-e", f"inject={inject}", "-p", str(pid)]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert tracer.stderr is not None
    try:
        if "attached" not in (line := tracer.stderr.readline()):
            pytest.skip(f"strace cannot attach here: {line.strip()}")
        yield
    finally:
        tracer.terminate()
        tracer.wait()
        tracer.stderr.close()


@pytest.mark.parametrize("call", CALLS)
def test_a_refusal_is_survived_told_and_made_good(
    make_appliance: Callable[..., Server], call: str, tmp_path: Path
) -> None:
    server = make_appliance(**{"network.workers": 1})
    assert server.process is not None
    moments = Moments(server)
    moments.peer.create("busy")
    for number in range(len(MOMENTS)):
        moments.peer.create(f"idle-{number}")
    moments.peer.produce("busy", BATCH, acks=-1)
    wait_for(lambda: server.pids("writer"), "the writer to be shown")
    refused = 0
    for moment in WATCHING if "epoll_ctl" in CALLS[call] else MOMENTS:
        what = f"{call}, {moment.__name__}"
        output = tmp_path / "strace"
        said = server.log().count("refused: ")
        with refusing(server.process.pid, CALLS[call], output):
            moment(moments)
            if call_is_needed(output):
                refused += 1
                wait_for(lambda said=said: server.log().count("refused: ") > said, f"{what}: to be told")
                if "pwrite64" not in CALLS[call] and "openat" not in CALLS[call]:
                    wait_for(lambda: server.state["refused"] or not trying(server), f"{what}: to be shown")
            assert server.process.poll() is None, what
        wait_for(moments.all_made_good, f"{what}: to be made good")
        if moment is Moments.topic_created:
            moments.creation_answered()
        assert server.process.poll() is None, what
    moments.close()
    assert refused, "no moment needs this call: the table is out of date"


def call_is_needed(output: Path) -> bool:
    """Whether a call is refused within some time of a moment."""
    try:
        wait_for(lambda: "INJECTED" in output.read_text(), "a call", seconds_max=0.4)
    except AssertionError:
        return False
    return True


def trying(server: Server) -> bool:
    """Whether an action is being refused, as the log has it."""
    lines = re.findall(r"supervisor\.actions: (no longer )?refused: ([^:\n]+)", server.log())
    return any({name: not over for over, name in lines}.values())


def test_a_refusal_of_the_nursery_is_told_in_the_place_of_the_writer(
    make_appliance: Callable[..., Server], tmp_path: Path
) -> None:
    server = make_appliance(**{"network.workers": 1})
    moments = Moments(server)
    moments.peer.create("busy")
    moments.peer.create("idle-0")
    nursery = server.pid_of("nursery")
    with refusing(nursery, CALLS["no process"], tmp_path / "strace"):
        moments.writer_needed()
        (row,) = wait_for(lambda: server.state["refused"], "to be told")
        assert row["action"] == "start writers" and "TasksMax" in row["reason"]
    wait_for(moments.all_made_good, "to be made good")
    assert server.pids("nursery") == [nursery]
    moments.close()
