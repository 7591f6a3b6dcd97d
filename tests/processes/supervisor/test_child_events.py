"""appliance.processes.supervisor.child_events: every role has its case, and what comes from the wrong one is a bug."""

from __future__ import annotations

import logging
import re
import select
import signal
from pathlib import Path
from typing import Any, get_args

import pytest

from appliance.machine_limits import DISK
from appliance.names import TopicPartition
from appliance.processes import supervisor
from appliance.processes.control import Channel
from appliance.processes.messages import (
    GivenBack,
    Lacking,
    PartitionTable,
    ProcessMessage,
    Unreceivable,
)
from appliance.processes.supervisor import roles
from appliance.processes.supervisor.actions import Actions
from appliance.processes.supervisor.child_events import ChildEvents
from appliance.processes.supervisor.children import ChildEnd, Children
from appliance.processes.supervisor.fork import Child, RoleName, SideRole
from appliance.processes.supervisor.opening import Opening
from appliance.processes.supervisor.status_report import RefusalCounts
from appliance.shared.heartbeats import Heart

from ...support.server import wait_for


class Rig:
    """The events of real children, without the other parts of a supervisor: none of them is to be called."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        nothing: Any = None
        actions = Actions(lambda: None)
        self.children = Children(self._epoll, 60_000, actions, on_change=lambda: None)
        parts = [nothing, self.children, nothing, nothing, nothing]
        opening = Opening(*[nothing] * 4, self.children, actions, *[nothing] * 3)
        self.refusals = RefusalCounts()
        self.events = ChildEvents(*parts, opening, *[nothing] * 7, lambda: None, self.refusals)

    def take_from(self, role: RoleName, message: ProcessMessage) -> ChildEnd:
        """Handle what a child of this role sends, which never ends by itself; return its end."""

        def send(control: Channel, heart: Heart) -> int:
            control.send(message)
            while True:
                signal.pause()

        self.children.fork(role, "", send)
        ends: list[ChildEnd] = []

        def ended() -> bool:
            for fd, event in self._epoll.poll(0):
                for child, what in self.children.on_event(fd, event):
                    if isinstance(what, ChildEnd):
                        ends.append(what)
                    else:
                        self.events.handle(child, what)
            return bool(ends)

        wait_for(ended, "the end of the child")
        return ends[0]


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ("scrubber", Lacking("no room", DISK)),
        ("scrubber", Unreceivable(PartitionTable(TopicPartition("t", 0), "x"))),
        ("network", Unreceivable(GivenBack(1))),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_message_that_a_role_does_not_send_is_a_bug_of_that_child_which_is_killed(
    role: RoleName, message: ProcessMessage, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        assert Rig().take_from(role, message).status == -signal.SIGKILL
    assert re.search(rf"{role} .*: killed", caplog.text)


def test_an_unknown_role_is_a_bug_that_is_named() -> None:
    channel: Any = None
    stoker: Any = "stoker"
    with pytest.raises(AssertionError, match="stoker"):
        Rig().events.handle(Child(stoker, "", 1, -1, channel, 0), ChildEnd(0))


NAMES: set[str] = {name for part in get_args(RoleName) for name in (get_args(part) or [part])}


def test_every_role_has_a_row_in_the_table_of_what_its_death_leaves() -> None:
    assert set(get_args(SideRole)) < NAMES
    rows = roles.__doc__ or ""
    table = rows[rows.index("    role  ") :].partition("\n\n")[0]
    assert set(re.findall(r"^    ([a-z]+)", table, re.MULTILINE)) - {"role"} == NAMES


def test_every_role_has_its_place_in_an_ordered_stop() -> None:
    page = (Path(supervisor.__file__).parents[2] / "README.md").read_text()
    rows = re.findall(r"^\| (?:\d/\d|all of it) \| ([^|]*) \|", page, re.MULTILINE)
    stopped = [word.removesuffix("s") for row in rows for word in re.findall(r"[a-z]+", row)]
    assert sorted(word for word in stopped if word in {name.removesuffix("s") for name in NAMES}) == sorted(
        name.removesuffix("s") for name in NAMES
    )
