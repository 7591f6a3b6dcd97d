"""appliance.processes.supervisor.actions: whatever is refused, whenever: it is done in the end, once, and reported."""

from __future__ import annotations

import errno
import logging
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import StorageFault, WriterGone
from appliance.processes.supervisor.actions import (
    DELAY_MS_MAX,
    DELAY_MS_MIN,
    REFUSED_KEYS_MAX,
    UNDER_WAY,
    Actions,
    reason_of,
    surviving,
)

REFUSALS = [OSError(number, os.strerror(number)) for number in (errno.EAGAIN, errno.EMFILE, errno.ENOMEM, errno.ENOSPC)]
REFUSALS += [MemoryError(), WriterGone("gone"), StorageFault("rotten")]  # type: ignore[list-item]


class Machine:
    """Refuses as scripted, on a clock of its own."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.refuse: list[BaseException | None] = []
        self.done: list[object] = []
        self.tried = 0
        self.changes = 0
        self.actions = Actions(self._changed, lambda: self.now_ms)
        self.action = self.actions.define("start writers", self._do)

    def _changed(self) -> None:
        self.changes += 1

    def _do(self, key: object) -> None:
        self.tried += 1
        error = self.refuse.pop(0) if self.refuse else None
        if error is not None:
            raise error
        self.done.append(key)

    def step(self) -> bool:
        """Go to when something is due and do it; False when nothing is wanted."""
        when = self.actions.next_ms()
        if when is None:
            return False
        self.now_ms = max(self.now_ms, when)
        self.actions.run_due()
        return True


@given(
    keys=st.lists(st.integers(0, 20), unique=True, min_size=1),
    delays=st.lists(st.integers(0, 300), min_size=20, max_size=20),
    refusals=st.lists(st.one_of(st.none(), st.sampled_from(REFUSALS)), max_size=60),
)
def test_every_key_is_done_once_whatever_is_refused(
    keys: list[int], delays: list[int], refusals: list[BaseException | None]
) -> None:
    machine = Machine()
    machine.refuse = list(refusals)
    for key, delay_ms in zip(keys, delays, strict=False):
        machine.action.want(key, delay_ms)
    steps = 0
    while machine.step():
        steps += 1
        assert steps < 500, "it never ends"
    assert sorted(map(str, machine.done)) == sorted(map(str, keys[: len(delays)]))
    assert machine.actions.rows() == []


def test_it_rests_twice_as_long_each_time_up_to_a_bound_and_forgets_that_once_done() -> None:
    machine = Machine()
    machine.refuse = [REFUSALS[0]] * 10
    machine.action.want("a")
    rests = []
    while machine.actions.rows():
        rests.append((machine.actions.next_ms() or 0) - machine.now_ms)
        machine.step()
    assert rests[:4] == [DELAY_MS_MIN, 2 * DELAY_MS_MIN, 4 * DELAY_MS_MIN, 8 * DELAY_MS_MIN]
    assert max(rests) == rests[-1] == DELAY_MS_MAX
    machine.refuse = [REFUSALS[0]]
    machine.action.want("b")
    assert (machine.actions.next_ms() or 0) - machine.now_ms == DELAY_MS_MIN


def test_a_thousand_keys_cost_no_more_than_a_few_and_none_keeps_the_others_back() -> None:
    machine = Machine()
    machine.refuse = [REFUSALS[0]] * 1_000
    for key in range(1_000):
        machine.action.want(key)
    assert machine.tried == 1, "it rests"
    for _ in range(5):
        before = machine.tried
        machine.step()
        assert machine.tried - before == REFUSED_KEYS_MAX
    assert machine.actions.rows()[0]["waiting"] == 5 * REFUSED_KEYS_MAX

    machine = Machine()  # one key that never works
    machine.action = machine.actions.define("x", lambda key: machine.done.append(key) if key else refuse())
    machine.action.want(0)
    for key in range(1, 10):
        machine.action.want(key)
    machine.step()
    assert machine.done == list(range(1, 10))
    assert 0 in machine.action and machine.actions.rows()[0]["waiting"] == 1


def refuse() -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def test_it_is_said_once_per_change_and_shown_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    machine = Machine()
    machine.refuse = [REFUSALS[0]] * 5 + [REFUSALS[1]] * 5
    machine.action.want(("t", 0))
    while machine.actions.rows():
        (row,) = machine.actions.rows()
        assert row["action"] == "start writers" and row["waiting"] == 1 and "raise " in row["reason"]
        assert machine.actions.limits() == {"processes" if "TasksMax" in row["reason"] else "descriptors": row["since"]}
        machine.step()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3 and machine.changes == 3
    assert "start writers: t-0: " in said[0] and "TasksMax" in said[0]
    assert "LimitNOFILE" in said[1]
    assert said[2] == "no longer refused: start writers"
    assert machine.actions.limits() == {}


def test_what_is_dropped_is_not_done_and_not_shown() -> None:
    machine = Machine()
    machine.refuse = [REFUSALS[0]]
    machine.action.want("a")
    machine.action.drop("a")
    assert not machine.step() and machine.done == [] and machine.actions.rows() == []
    machine.action.want("b", 1_000)
    assert "b" in machine.action
    machine.step()
    assert machine.done == ["b"]


def test_what_an_action_wants_of_itself_is_done_too() -> None:
    machine = Machine()
    action = machine.actions.define("again", lambda key: action.want(key - 1) if key else machine.done.append(key))
    action.want(3)
    while machine.step():
        pass
    assert machine.done == [0]


def test_what_others_do_for_it_is_refused_and_done_when_they_say_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    machine = Machine()
    tried: list[object] = []

    def begin(key: object) -> object:
        tried.append(key)
        return UNDER_WAY

    action = machine.actions.define("open partitions", begin)
    action.want("a")
    for attempt in range(1, 4):
        assert tried == ["a"] * attempt and "a" not in action
        action.refuse("a", "the disk is full")
        assert machine.actions.rows()[0]["attempts"] == attempt
        machine.step()
    action.done("a")
    assert machine.actions.rows() == [] and not machine.step()
    assert len(caplog.records) == 2, "said once, and once that it is over"


def test_a_bug_is_no_refusal() -> None:
    action = Actions(lambda: None).define("x", lambda key: {}[key])  # type: ignore[misc]
    with pytest.raises(KeyError):
        action.want("a")


def test_reasons_say_what_is_lacking_and_where() -> None:
    assert reason_of(OSError(errno.ENOSPC, "No space left on device", "/data/x")).startswith("/data/x: No space")
    assert reason_of(MemoryError()) == "out of memory"
    with surviving("stopping"):
        raise OSError(errno.EIO, "Input/output error")
