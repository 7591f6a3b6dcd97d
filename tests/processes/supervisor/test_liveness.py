"""What does not answer is found, killed and replaced; what is merely slow, or was not looked at, is not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.processes.supervisor.children import Liveness, state_of
from appliance.processes.supervisor.fork import Child
from appliance.records.encode import encode_values
from appliance.shared.heartbeats import Heart, Heartbeats

from ...support.native_peer import Peer
from ...support.server import Server, stopped, wait_for
from ...support.sockets import open_files, tcp_sockets

BATCH = encode_values([b"one"], 1_000)
TIMEOUT_MS = 2_000
CHECK_MS = TIMEOUT_MS // 4
FIRST_PID = 100


class Watch:
    """A supervisor's view of some children, on a clock of the test's."""

    def __init__(self, count: int = 1) -> None:
        self.now_ms = 0
        self.states: dict[int, str] = {}
        self.beats = Heartbeats(8, TIMEOUT_MS)
        self.liveness = Liveness(self.beats, TIMEOUT_MS, lambda: self.now_ms, lambda pid: self.states.get(pid, "S"))
        self.hearts: list[Heart] = []
        self.children: list[Child] = []
        for number in range(count):
            self.children.append(Child("network", number, FIRST_PID + number, -1, None, 0))  # type: ignore[arg-type]
            self.hearts.append(self.beats.take_cell())
            self.liveness.watch(self.children[-1], self.hearts[-1])

    def check(self, after_ms: int) -> list[Child]:
        self.now_ms += after_ms
        return list(self.liveness.overdue())


def test_who_has_not_moved_for_the_timeout_is_named_and_nobody_else() -> None:
    watch = Watch(2)
    for _ in range(3):
        watch.hearts[1].beat()
        assert watch.check(CHECK_MS) == []
    watch.hearts[1].beat()
    assert watch.check(CHECK_MS) == [watch.children[0]]
    watch.liveness.forget(watch.children[0])
    watch.hearts[1].beat()
    assert watch.check(CHECK_MS) == []


@given(stalls=st.lists(st.one_of(st.integers(CHECK_MS, CHECK_MS + 50), st.integers(CHECK_MS, 10_000_000)), max_size=40))
def test_no_stall_of_the_supervisor_costs_anybody_who_moves(stalls: list[int]) -> None:
    """Method: the child moves at every third check, however long the supervisor takes to come to it."""
    watch = Watch()
    for number, stall_ms in enumerate(stalls):
        if number % 3 == 0:
            watch.hearts[0].beat()
        assert watch.check(stall_ms) == []


def test_a_device_that_is_slow_is_no_hanging() -> None:
    watch = Watch()
    watch.states[FIRST_PID] = "D"
    for _ in range(100):
        assert watch.check(CHECK_MS) == []
    watch.states[FIRST_PID] = "T"
    assert watch.check(CHECK_MS) == watch.children
    watch.hearts[0].beat()
    assert watch.check(CHECK_MS) == []


def test_the_time_of_a_writer_counts_from_when_its_pid_is_known() -> None:
    watch = Watch()
    watch.children[0].pid = 0
    for _ in range(100):
        assert watch.check(CHECK_MS) == []
    watch.children[0].pid = FIRST_PID
    assert [watch.check(CHECK_MS) for _ in range(4)] == [[], [], [], watch.children]


def test_the_state_of_a_process_is_read_from_the_system() -> None:
    assert state_of(os.getpid()) == "R"
    assert state_of(2**22 + 1) == ""


@pytest.mark.parametrize("role", ["network", "writer", "coordinator"])
def test_a_stopped_process_is_found_and_replaced(make_appliance: Callable[..., Server], role: str) -> None:
    server = make_appliance(**{"network.workers": 1, "liveness.timeout_ms": TIMEOUT_MS})
    with Peer(server.native) as peer:
        peer.create("t")
        peer.produce("t", BATCH, acks=-1)
        pid = server.pid_of(role)
        with stopped(pid, may_die=True):
            wait_for(
                lambda: f"(pid {pid}) has not moved for 2000 ms (liveness.timeout_ms): killed" in server.log(), "it"
            )
            wait_for(lambda: set(server.pids(role)) - {pid}, "another one")
    with Peer(server.native) as peer:
        wait_for(lambda: peer.produce("t", BATCH, acks=-1)[0] == 0, "produce to go on")
        peer.admin("topics")
        peer.create("u")
    assert server.log().count("has not moved") == 1, "nobody else was taken for hanging"


def test_whoever_waits_for_what_hangs_is_answered(make_appliance: Callable[..., Server]) -> None:
    """A produce that a stopped writer has taken is refused with a retriable error once that one is killed."""
    server = make_appliance(**{"network.workers": 1, "liveness.timeout_ms": TIMEOUT_MS})
    with Peer(server.native) as peer:
        peer.create("t")
        peer.produce("t", BATCH, acks=-1)
        pid = server.pid_of("writer")
        with stopped(pid, may_die=True):
            answers = [peer.produce("t", BATCH, acks=-1)[0] for _ in range(2)]
    assert set(answers) <= {0, 5}


def test_nobody_hangs_because_the_supervisor_did(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance(**{"liveness.timeout_ms": TIMEOUT_MS})
    assert server.process is not None
    with Peer(server.native) as peer:
        peer.create("t")
        peer.produce("t", BATCH, acks=-1)
        wait_for(lambda: server.pids("writer"), "the writer to be shown")
        pids = [row["pid"] for row in server.state["processes"]]
        for all_stop in (False, True):
            started = time.monotonic()
            with ExitStack() as stack:
                for pid in pids if all_stop else [server.process.pid]:
                    stack.enter_context(stopped(pid))
                wait_for(lambda started=started: time.monotonic() - started > 2 * TIMEOUT_MS / 1000, "a long stop")
            started = time.monotonic()
            wait_for(lambda started=started: time.monotonic() - started > 1.2 * TIMEOUT_MS / 1000, "several checks")
            assert peer.produce("t", BATCH, acks=-1)[0] == 0
    assert [row["pid"] for row in server.state["processes"]] == pids
    assert "has not moved" not in server.log()


def test_an_idle_appliance_beats_and_sleeps(make_appliance: Callable[..., Server]) -> None:
    """Nothing but the beats wakes it: a few a second with a timeout of two."""
    server = make_appliance(**{"network.workers": 2, "liveness.timeout_ms": TIMEOUT_MS})
    with Peer(server.native) as peer:
        peer.admin("topics")  # the coordinator has been imported
    pids = [row["pid"] for row in server.state["processes"]]
    before = {pid: switches(pid) for pid in pids}
    started = time.monotonic()
    wait_for(lambda: time.monotonic() - started > 2, "two seconds")
    for pid in pids:
        assert switches(pid) - before[pid] < 40, server.state["processes"]


def switches(pid: int) -> int:
    """How often a process went to sleep."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("voluntary_ctxt_switches:")[1].split()[0])


def test_a_retiring_writer_does_not_wait_for_a_worker_that_hangs(make_appliance: Callable[..., Server]) -> None:
    """Method: the worker that serves nobody is stopped, and may be so for long; the writer retires beside it."""
    server = make_appliance(**{"network.workers": 2, "liveness.timeout_ms": 60_000, "writer.idle_ms": 200})
    with Peer(server.native) as peer:
        peer.create("t")
        peer.produce("t", BATCH, acks=-1)
        other = next(pid for pid in server.pids("network") if not holds(pid, peer))
        with stopped(other):
            wait_for(lambda: not server.pids("writer"), "the writer to retire")
            assert peer.produce("t", BATCH, acks=-1)[0] == 0


def holds(pid: int, peer: Peer) -> bool:
    """Whether a process has the other end of a connection."""
    port = peer.sock.getsockname()[1]
    return not {each.file for each in tcp_sockets() if each.peer_port == port}.isdisjoint(open_files(pid))
