"""Who flushes: the flusher's thread, asleep, flushing or guarding, and the writer's loop beside it."""

from __future__ import annotations

import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from appliance.errors import StorageFault
from appliance.processes.writer.unflushed import Flusher
from appliance.records.encode import encode_values
from appliance.shared.heartbeats import Heart

from ...support.native_peer import Peer
from ...support.server import Server

STEP_S_MAX = 10
TIMEOUT_MS = 1_000
HANG_MS = 3 * TIMEOUT_MS
PRODUCED_MAX = 10_000
BATCH = encode_values([b"one", b"two"], 1_000)


class Gate:
    """The flusher's gate, at which the thread waits until the test lets the time pass or the loop opens it."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._answers: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.timed = False

    def acquire(self, timeout: float = -1) -> bool:
        self.timed = timeout > 0
        self._report("waits")
        return self._answers.get(timeout=STEP_S_MAX)

    def release(self) -> None:
        self._answers.put(True)

    def let_time_pass(self) -> None:
        assert self.timed
        self._answers.put(False)


class Ticket:
    """A flush that ends when the test says so."""

    def __init__(self, machine: Flushing, number: int) -> None:
        self._machine, self.number = machine, number
        self.go_on = threading.Event()
        self.fails = False

    def sync(self) -> None:
        """Fails once, if at all: whoever flushes again after a failure succeeds, and is found out."""
        self._machine.started(self)
        assert self.go_on.wait(STEP_S_MAX)
        if self.fails:
            self.fails = False
            raise StorageFault("the disk")
        self._machine.synced.append(self.number)


class Flushing(RuleBasedStateMachine):
    """The thread and a loop make their steps in any order; each step is over when both wait for the test again."""

    def __init__(self) -> None:
        super().__init__()
        self._forget()

    def _forget(self) -> None:
        self.steps: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.running: list[Ticket] = []
        self.pending = False
        """The thread flushes, and has been handed what is to follow."""
        self.synced: list[int] = []
        self.answered: list[int] = []
        self.last = 0
        self.failed_after: list[int] | None = None
        """What had been answered when a flush failed."""
        self.cells = [0]
        self.loop: threading.Thread | None = None
        """The loop, within a flush of its own."""
        self.blocked: threading.Thread | None = None
        """The loop, within ``drain`` or ``stop``."""
        self.stopping = False
        self.thread_waits = True
        self.since_flush_here = False

    @initialize()
    def start(self) -> None:
        self.flusher = Flusher(self.flushed, self.failed, Heart(self.cells, 0, TIMEOUT_MS))
        self.gate = Gate(self.steps.put)
        self.flusher._gate = self.gate  # type: ignore[assignment]
        self.flusher.start()
        self.until("waits")

    def until(self, step: str) -> None:
        assert self.steps.get(timeout=STEP_S_MAX) == step

    def started(self, ticket: Ticket) -> None:
        self.running.append(ticket)
        self.steps.put("syncs")

    def flushed(self, ticket: Ticket, waiting: list[Any]) -> None:
        self.running.remove(ticket)
        assert self.flusher.lock.locked()
        assert self.synced[-1] == ticket.number
        self.answered += waiting

    def failed(self, error: Exception) -> None:
        self.steps.put(str(error))

    def ticket(self) -> Ticket:
        self.last += 1
        return Ticket(self, self.last)

    @property
    def loop_is_free(self) -> bool:
        return self.loop is None and self.blocked is None and not self.stopping

    # ---- what the loop does

    @precondition(lambda self: self.loop_is_free)
    @rule()
    def hand_over(self) -> None:
        ticket = self.ticket()
        with self.flusher.lock:
            self.flusher.hand_over(ticket, [ticket.number])
        if self.failed_after is not None:
            return
        self.pending = not self.thread_waits
        if self.thread_waits:
            self.until("syncs")
            self.thread_waits = False

    @precondition(lambda self: self.loop_is_free and self.flusher.may_flush_here)
    @rule()
    def flush_here(self) -> None:
        ticket = self.ticket()
        self.loop = threading.Thread(target=self._flush_here, args=(ticket,))
        self.loop.start()
        self.until("syncs")
        self.since_flush_here = True

    def _flush_here(self, ticket: Ticket) -> None:
        try:
            with self.flusher.lock:
                self.flusher.flush_here(ticket, [ticket.number])
        except StorageFault:
            pass
        self.steps.put("flushed here")

    @precondition(lambda self: self.loop_is_free)
    @rule()
    def drain(self) -> None:
        self._block(self.flusher.drain)

    @precondition(lambda self: self.loop_is_free)
    @rule()
    def stop(self) -> None:
        self.stopping = True
        self._block(self.flusher.stop)

    def _block(self, method: Callable[[], None]) -> None:
        self.blocked = threading.Thread(target=method)
        self.blocked.start()
        if self.thread_waits or self.failed_after is not None:
            self._unblocked()

    def _unblocked(self) -> None:
        if self.blocked is not None:
            self.blocked.join(STEP_S_MAX)
            assert not self.blocked.is_alive()
            self.blocked = None
        self.thread_waits = self.thread_waits and not self.stopping

    # ---- what the disk and the time do

    @precondition(lambda self: self.running)
    @rule()
    def a_flush_ends(self) -> None:
        here = self.loop is not None
        self.running[0].go_on.set()
        if here:
            self._loop_goes_on()
        elif self.pending:
            self.until("syncs")
            self.pending = False
        else:
            if not self.stopping:
                self.until("waits")
            self.thread_waits = True
            self._unblocked()

    def _loop_goes_on(self) -> None:
        self.until("flushed here")
        assert self.loop is not None
        self.loop.join(STEP_S_MAX)
        self.loop = None

    @precondition(lambda self: self.running and not self.stopping)
    @rule()
    def a_flush_fails(self) -> None:
        (ticket,) = self.running
        self.failed_after = list(self.answered)
        ticket.fails = True
        ticket.go_on.set()
        if self.loop is not None:
            self._loop_goes_on()
            self.stopping = True  # the process ends: nothing is called any more
        else:
            self.until("the disk")
            self._unblocked()
        self.running.clear()

    @precondition(lambda self: self.thread_waits and self.gate.timed and self.failed_after is None)
    @rule()
    def time_passes(self) -> None:
        beats, hangs = self.cells[0], self.loop is not None
        self.gate.let_time_pass()
        self.until("waits")
        assert self.cells[0] - beats == hangs, "it beats for a loop that flushes, and for no other"
        assert self.gate.timed == (hangs or self.since_flush_here), "it guards while the loop flushes, and once more"
        self.since_flush_here = hangs

    @precondition(lambda self: self.loop_is_free and self.thread_waits and self.gate.timed)
    @rule()
    def time_passes_while_the_loop_is_about_to_flush(self) -> None:
        with self.flusher.lock:
            self.gate.let_time_pass()
            self.until("waits")
        assert self.gate.timed, "it looks again soon, since it cannot know what the loop does"

    # ---- what holds

    @invariant()
    def one_flush_at_a_time(self) -> None:
        assert len(self.running) <= 1

    @invariant()
    def answers_follow_their_flush(self) -> None:
        assert self.answered == sorted(self.answered)
        assert not self.answered or self.answered[-1] <= self.synced[-1]

    @invariant()
    def nothing_is_answered_after_a_failure(self) -> None:
        assert self.failed_after is None or self.answered == self.failed_after

    @invariant()
    def whoever_flushes_is_guarded(self) -> None:
        if self.loop is not None:
            assert self.thread_waits and self.gate.timed

    @precondition(lambda self: self.stopping and not self.running and self.blocked is None)
    @rule()
    def another_process_starts(self) -> None:
        self._end()
        self._forget()
        self.start()

    def teardown(self) -> None:
        while self.running:
            self.a_flush_ends()
        self._end()

    def _end(self) -> None:
        ended = threading.Thread(target=self.flusher.stop)
        ended.start()
        ended.join(STEP_S_MAX)
        assert not ended.is_alive()
        assert self.failed_after is not None or self.answered == list(range(1, self.last + 1)), (
            "each answer once, in order"
        )


TestFlushing = Flushing.TestCase


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace, to make a flush slow")
def test_a_writer_whose_loop_waits_for_the_disk_is_not_taken_for_hanging(tmp_path: Path) -> None:
    """Goal: a disk that stops for longer than ``liveness.timeout_ms`` costs time, and no process.

    Method: in memory flushes are quick, and so the loop's.  strace sees the loop's thread only, and keeps one of its.
    """
    calls = tmp_path / "calls"
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as directory,
        Server(Path(directory) / "data", **{"liveness.timeout_ms": TIMEOUT_MS}) as server,
        Peer(server.native) as peer,
    ):
        peer.create("t")
        assert peer.produce("t", BATCH, acks=-1)[0] == 0
        writer = server.pid_of("writer")
        inject = f"inject=fdatasync:delay_exit={HANG_MS * 1000}:when=1"
        tracer = subprocess.Popen(
            ["strace", "-o", str(calls), "-p", str(writer), "-e", "trace=fdatasync", "-e", inject],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert tracer.stderr is not None
        try:
            tracer.stderr.readline()  # "attached"
            for _ in range(PRODUCED_MAX):
                assert peer.produce("t", BATCH, acks=-1)[0] == 0
                if "DELAYED" in calls.read_text():
                    break
            else:
                pytest.fail("the loop did not flush")
        finally:
            tracer.kill()
            tracer.communicate()
        assert server.pid_of("writer") == writer
        assert peer.produce("t", BATCH, acks=-1)[0] == 0
