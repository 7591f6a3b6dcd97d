"""appliance.processes.supervisor.roles: the life of children, through each state, with either side dying in it."""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.processes.control import Channel
from appliance.processes.messages import TO_COMPACTOR, ProcessMessage, Stop
from appliance.processes.supervisor.actions import Action, Actions
from appliance.processes.supervisor.children import ChildEnd, Children
from appliance.processes.supervisor.roles import ChildState, Process, Role, interruptible
from appliance.shared.heartbeats import Heart, alone

from ...support.server import wait_for

GONE, STARTING, RUNNING, RETIRING = ChildState.GONE, ChildState.STARTING, ChildState.RUNNING, ChildState.RETIRING
RESTART_MS = 1_000


@dataclass(eq=False)
class NotedChild:
    key: str
    stopping: bool = False
    sent: list[ProcessMessage] = field(default_factory=list)

    def kill(self) -> None:
        self.sent.append(Stop())


class NotedChildren:
    """Stands for the supervisor's children: forks nothing."""

    def __init__(self) -> None:
        self.refuses = False

    def fork(self, role: str, key: str, *_: object, work: bool) -> NotedChild:
        if self.refuses:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return NotedChild(key)

    def send(self, child: NotedChild | None, message: ProcessMessage, fds: tuple[int, ...] = ()) -> None:
        if child is not None:
            child.sent.append(message)

    def start_again(self, child: NotedChild, start: Action, key: str) -> None:
        if not child.stopping:
            start.want(key, RESTART_MS)


class Model:
    """The table of the module's docstring, for one key."""

    def __init__(self, stays: bool) -> None:
        self.stays, self.stops = stays, False
        self.state, self.due_ms, self.again = GONE, 0, False

    def start(self, now_ms: int, delay_ms: int = 0) -> None:
        if self.stops:
            return
        match self.state:
            case ChildState.GONE | ChildState.STARTING:
                self.state, self.due_ms = STARTING, now_ms + delay_ms
            case ChildState.RETIRING:
                self.again = True

    def may_fork(self, now_ms: int, allowed: bool, needed: bool) -> None:
        if self.state is STARTING and self.due_ms <= now_ms and allowed:
            self.state = RUNNING if needed else GONE

    def retire(self) -> None:
        self.again = False
        self.state = {STARTING: GONE, RUNNING: RETIRING}.get(self.state, self.state)

    def end(self, now_ms: int) -> None:
        if self.state is RUNNING and self.stays:
            self.state, self.due_ms = STARTING, now_ms + RESTART_MS
        elif self.again:
            self.state, self.due_ms, self.again = STARTING, now_ms, False
        else:
            self.state = GONE


STEPS = ["start", "start later", "retire", "kill", "stop", "end", "refuse", "allow", "need", "need not", "wait"]


@given(st.booleans(), st.lists(st.sampled_from(STEPS), max_size=25))
def test_each_state_is_left_as_the_table_says(stays: bool, steps: list[str]) -> None:
    now, needed = 0, True
    children, model = NotedChildren(), Model(stays)
    actions = Actions(lambda: None, lambda: now)

    def prepare(key: str) -> Process | None:
        if needed:
            return Process(lambda *_: 0, "t")
        children.fork("t", key, work=False)  # a machine that refuses is asked first
        return None

    role = Role("t", "start it", children, actions, prepare, stays=stays)  # type: ignore[arg-type]
    for step in steps:
        child: Any = role.child("k")
        match step:
            case "start":
                role.start("k")
                model.start(now)
            case "start later":
                role.start("k", 500)
                model.start(now, 500)
            case "retire" | "kill" | "stop":
                role.stop() if step == "stop" else getattr(role, step)("k")
                model.retire()
                model.stops = model.stops or step == "stop"
            case "end" if child is not None:
                role.on_end(child)
                model.end(now)
            case "refuse" | "allow":
                children.refuses = step == "refuse"
            case "need" | "need not":
                needed = step == "need"
        now += 10_000 if step == "wait" else 0
        actions.run_due()
        model.may_fork(now, not children.refuses, needed)
        if role.state("k") is STARTING and model.state in (RUNNING, GONE):  # what was refused is tried again later
            now += 10_000
            actions.run_due()
        assert role.state("k") is model.state, steps
        assert role.all_gone == (model.state is GONE)
        assert ("k" in role) == (model.state in (RUNNING, RETIRING))
        if (child := role.child("k")) is not None:
            assert child.sent == [Stop()] * len(child.sent) and bool(child.sent) == (model.state is RETIRING)


class Rig:
    """A role with real children, each of which says that it runs, and ends when it is told to, or never."""

    def __init__(self, *, stays: bool, obeys: bool) -> None:
        self._epoll = select.epoll()
        self._actions = Actions(lambda: None)
        self._children = Children(
            self._epoll,
            60_000,
            self._actions,
            on_change=lambda: None,
        )
        self._obeys = obeys
        self.role: Role[str] = Role("t", "start it", self._children, self._actions, self._prepare, stays=stays)

    def _prepare(self, _: str) -> Process:
        return Process(self._run, "t")

    def _run(self, control: Channel, heart: Heart) -> int:
        poll = select.poll()
        poll.register(control.fileno(), select.POLLIN)
        while not self._obeys:
            signal.pause()
        while poll.poll():
            if any(isinstance(message, Stop) for message, _ in control.receive(TO_COMPACTOR)):
                break
        return 0

    @property
    def pid(self) -> int:
        child = self.role.child("k")
        return 0 if child is None else child.pid

    def turn_until(self, condition: Callable[[], bool], what: str) -> None:
        def turned() -> bool:
            for fd, event in self._epoll.poll(0):
                for child, what in self._children.on_event(fd, event):
                    assert isinstance(what, ChildEnd)
                    self.role.on_end(child)
            self._actions.run_due()
            return condition()

        wait_for(turned, what)


@pytest.mark.parametrize("stays", [True, False])
def test_a_child_that_is_killed_is_followed_by_another_if_its_role_stays(stays: bool) -> None:
    rig = Rig(stays=stays, obeys=True)
    rig.role.start("k")
    first = rig.pid
    os.kill(first, signal.SIGKILL)
    rig.turn_until(lambda: rig.pid != first, "its end")
    if stays:
        rig.turn_until(lambda: rig.role.state("k") is RUNNING, "another one")
    else:
        assert rig.role.state("k") is GONE
    rig.role.stop()
    rig.turn_until(lambda: rig.role.all_gone, "the end of all")


def test_a_child_that_is_killed_while_it_retires_is_gone_or_followed_by_the_one_that_is_wanted() -> None:
    rig = Rig(stays=True, obeys=False)
    for wanted, then in ((True, RUNNING), (False, GONE)):
        rig.role.start("k")
        first = rig.pid
        rig.role.retire("k")
        if wanted:
            rig.role.start("k")
        assert rig.role.state("k") is RETIRING and rig.pid == first
        os.kill(first, signal.SIGKILL)
        rig.turn_until(lambda first=first: rig.pid != first, "its end")  # type: ignore[misc]
        assert rig.role.state("k") is then


@pytest.mark.parametrize("retires", [False, True])
def test_a_supervisor_that_is_killed_takes_its_children_along_in_whatever_state(retires: bool) -> None:
    reader, writer = os.pipe()
    supervisor = os.fork()
    if supervisor == 0:
        rig = Rig(stays=True, obeys=False)
        rig.role.start("k")
        if retires:
            rig.role.retire("k")
        os.write(writer, rig.pid.to_bytes(8, "big"))
        signal.pause()
        os._exit(0)
    child = os.pidfd_open(int.from_bytes(os.read(reader, 8), "big"))
    os.kill(supervisor, signal.SIGKILL)
    os.waitpid(supervisor, 0)
    poll = select.poll()
    poll.register(child, select.POLLIN)
    assert poll.poll(10_000), "the child has ended"
    for fd in (reader, writer, child):
        os.close(fd)


@pytest.mark.parametrize("stays", [True, False])
def test_a_role_that_has_been_asked_to_stop_forks_nobody(stays: bool) -> None:
    """Whoever wants a child, whether one runs or not, and however it ends."""
    for obeys in (True, False):
        rig = Rig(stays=stays, obeys=obeys)
        rig.role.start("k")
        pid = rig.pid
        rig.role.stop()
        rig.role.start("k")
        if not obeys:
            os.kill(pid, signal.SIGKILL)
        rig.turn_until(lambda rig=rig: rig.role.all_gone, "the end")  # type: ignore[misc]
        rig.role.start("k")
        rig.role.start("other")
        assert rig.role.all_gone and not len(rig.role)


def test_nobody_follows_a_child_that_dies_when_no_more_are_to_be_started() -> None:
    rig = Rig(stays=True, obeys=True)
    rig.role.start("k")
    rig.role.start_no_more()
    assert rig.role.state("k") is RUNNING
    os.kill(rig.pid, signal.SIGKILL)
    rig.turn_until(lambda: rig.role.all_gone, "its end")


@pytest.mark.parametrize("ends", ["stop", "the end of the channel"])
def test_work_that_waits_is_cut_off_at_once(ends: str) -> None:
    """Method: the work is in a system call that does not come back, as on a disk that hangs."""
    ours, theirs = Channel.pair()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        ours.close()
        interruptible(lambda _: len(os.read(reader, 1)))(theirs, alone())
        os._exit(1)
    theirs.close()
    if ends == "stop":
        ours.send(Stop())
    else:
        ours.close()
    assert os.waitpid(pid, 0)[1] == 0
    ours.close()
    os.close(reader)
    os.close(writer)
