"""appliance.processes.coordinator.trusted_clock: states and transitions, and a simulated machine whose clock jumps.

The simulation has a real time that only grows.  The wall clock is away from it by what the jumps say.  Files get the
wall clock's time, and their judged age is compared with their real one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from appliance.processes.coordinator.trusted_clock import (
    FILE_NAME,
    FOLLOWED_PART,
    JUMP_MS,
    STRETCHES_MAX,
    ClockLook,
    Now,
    TrustedClock,
    first_look,
    look_again,
    newest_log_ms,
    written_ms,
)

from ...support.long import LONG

S, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
START = 1_800_000_000_000
HOLD = DAY


class Machine:
    """A machine with a wall clock that can be set, and a clock of its boot that cannot."""

    def __init__(self) -> None:
        self.real_ms, self.boot_ms, self.skew_ms, self.boots = START, 5 * HOUR, 0, 1

    def __call__(self) -> Now:
        return Now(self.wall_ms, self.boot_ms, f"boot-{self.boots}")

    @property
    def wall_ms(self) -> int:
        return self.real_ms + self.skew_ms

    def run(self, ms: int) -> None:
        self.real_ms += ms
        self.boot_ms += ms

    def reboot(self, off_ms: int, up_ms: int = MINUTE) -> None:
        self.real_ms += off_ms + up_ms
        self.boot_ms = up_ms
        self.boots += 1


class Told(list[dict[str, Any] | None]):
    def last(self) -> Any:
        return self[-1] if self else None


def clock(tmp_path: Path, machine: Machine, told: Told | None = None, newest_ms: int = 0) -> TrustedClock:
    made = TrustedClock(tmp_path, (told if told is not None else Told()).append, machine)
    made.begin(newest_ms, HOLD)
    return made


def test_nothing_is_old_before_the_first_look(tmp_path: Path) -> None:
    """A coordinator may reach ZooKeeper, and judge the ages of its nodes, before it has found its newest log."""
    machine = Machine()
    judged = TrustedClock(tmp_path, Told().append, machine)
    assert judged.judging_ms() == 0
    judged.begin(0, HOLD)
    assert judged.judging_ms() == machine.real_ms


@pytest.mark.parametrize("days", [-10, 10])
def test_a_jump_is_told_and_moves_nothing_until_it_has_lasted(tmp_path: Path, days: int) -> None:
    machine, told = Machine(), Told()
    judged = clock(tmp_path, machine, told)
    machine.run(30 * S)
    machine.skew_ms = days * DAY
    judged.look_again(HOLD)
    assert judged.jump_ms == days * DAY and abs(judged.now_ms() - machine.real_ms) <= S
    assert told.last()["jump_ms"] == days * DAY and told.last()["believed"] * 1000 - machine.wall_ms == pytest.approx(
        HOLD, abs=MINUTE
    )
    machine.run(HOLD - MINUTE)
    judged.look_again(HOLD)
    assert judged.jump_ms == days * DAY and judged.now_ms() == machine.real_ms
    machine.run(2 * MINUTE)
    judged.look_again(HOLD)
    assert judged.jump_ms == 0 and judged.now_ms() == machine.wall_ms and told.last() is None


@pytest.mark.parametrize("days", [-10, 10])
def test_a_clock_that_comes_back_is_no_jump_any_more(tmp_path: Path, days: int) -> None:
    machine, told = Machine(), Told()
    judged = clock(tmp_path, machine, told)
    machine.skew_ms = days * DAY
    judged.look_again(HOLD)
    machine.run(HOUR)
    machine.skew_ms = 0
    judged.look_again(HOLD)
    assert (judged.jump_ms, judged.now_ms(), told.last()) == (0, machine.real_ms, None)


def test_an_operator_may_say_so(tmp_path: Path) -> None:
    machine = Machine()
    judged = clock(tmp_path, machine)
    assert judged.believe(HOLD) == 0
    machine.skew_ms = 3 * DAY
    assert judged.believe(HOLD) == 3 * DAY and judged.now_ms() == machine.wall_ms and judged.jump_ms == 0


def test_another_jump_begins_to_last_anew(tmp_path: Path) -> None:
    machine = Machine()
    judged = clock(tmp_path, machine)
    machine.skew_ms = 10 * DAY
    judged.look_again(HOLD)
    machine.run(HOLD - HOUR)
    machine.skew_ms = 20 * DAY
    judged.look_again(HOLD)
    machine.run(HOLD - HOUR)
    judged.look_again(HOLD)
    assert judged.jump_ms == 20 * DAY and judged.now_ms() == machine.real_ms


def test_without_a_hold_every_jump_is_believed_at_once(tmp_path: Path) -> None:
    machine = Machine()
    judged = clock(tmp_path, machine)
    machine.skew_ms = 10 * DAY
    judged.look_again(0)
    assert judged.jump_ms == 0 and judged.now_ms() == machine.wall_ms


@pytest.mark.parametrize("skew_ms", [JUMP_MS - S, S - JUMP_MS])
def test_a_small_difference_is_followed_slowly(tmp_path: Path, skew_ms: int) -> None:
    machine = Machine()
    judged = clock(tmp_path, machine)
    machine.run(MINUTE)
    machine.skew_ms = skew_ms
    judged.look_again(HOLD)
    assert judged.jump_ms == 0 and abs(judged.now_ms() - machine.real_ms) <= MINUTE // FOLLOWED_PART
    for _ in range(FOLLOWED_PART * JUMP_MS // MINUTE):
        machine.run(MINUTE)
        judged.look_again(HOLD)
    assert judged.now_ms() == machine.wall_ms


def test_many_small_steps_are_a_jump_in_the_end(tmp_path: Path) -> None:
    machine = Machine()
    judged = clock(tmp_path, machine)
    for _ in range(100):
        machine.run(30 * S)
        machine.skew_ms += 5 * MINUTE
        judged.look_again(HOLD)
    assert judged.jump_ms > 0 and judged.now_ms() - machine.real_ms <= 100 * 30 * S // FOLLOWED_PART


# ---- restarts and reboots


def test_a_stopped_service_is_no_jump_in_the_same_boot(tmp_path: Path) -> None:
    machine = Machine()
    clock(tmp_path, machine)
    machine.run(30 * DAY)
    judged = clock(tmp_path, machine, newest_ms=START)
    assert (judged.jump_ms, judged.now_ms()) == (0, machine.real_ms)


@pytest.mark.parametrize("days", [-10, 10])
def test_a_jump_while_the_service_is_stopped_or_killed(tmp_path: Path, days: int) -> None:
    machine = Machine()
    clock(tmp_path, machine)
    machine.run(HOUR)
    machine.skew_ms = days * DAY
    judged = clock(tmp_path, machine, newest_ms=START)
    assert (judged.jump_ms, judged.now_ms()) == (days * DAY, machine.real_ms)


def test_a_jump_lasts_through_restarts_and_is_believed_by_the_sum(tmp_path: Path) -> None:
    machine = Machine()
    clock(tmp_path, machine)
    machine.skew_ms = 10 * DAY
    for _ in range(6):
        assert clock(tmp_path, machine).jump_ms == 10 * DAY
        machine.run(HOLD // 4)
        judged = clock(tmp_path, machine)
        if not judged.jump_ms:
            break
    assert judged.now_ms() == machine.wall_ms and machine.real_ms - START >= HOLD


@pytest.mark.parametrize("off_ms, held", [(MINUTE, False), (20 * HOUR, False), (3 * DAY, True)])
def test_a_machine_that_was_off(tmp_path: Path, off_ms: int, held: bool) -> None:
    machine = Machine()
    clock(tmp_path, machine)
    machine.reboot(off_ms)
    judged = clock(tmp_path, machine, newest_ms=START)
    assert bool(judged.jump_ms) == held
    assert judged.now_ms() == (START + MINUTE if held else machine.real_ms)


@pytest.mark.parametrize("skew_ms", [10 * DAY, -10 * DAY, -START])
def test_a_reboot_with_a_dead_clock(tmp_path: Path, skew_ms: int) -> None:
    """It comes up in another year, and a time server sets it later.  ``-START``: it begins in 1970 again."""
    machine = Machine()
    clock(tmp_path, machine)
    machine.skew_ms = skew_ms
    machine.reboot(5 * MINUTE)
    judged = clock(tmp_path, machine, newest_ms=START)
    assert judged.jump_ms and 0 <= machine.real_ms - judged.now_ms() <= 10 * MINUTE
    fresh_ms = machine.wall_ms
    machine.run(HOUR)
    machine.skew_ms = 0
    judged.look_again(HOLD)
    assert abs(judged.now_ms() - machine.real_ms) <= JUMP_MS
    assert judged.now_ms() - judged.written_ms(fresh_ms) <= HOUR + JUMP_MS


def test_a_dead_clock_that_nobody_sets_for_long(tmp_path: Path) -> None:
    """The jump back to 1970 is believed after a day, the one ahead a day after that: nothing of it looks old."""
    machine = Machine()
    clock(tmp_path, machine)
    machine.skew_ms = -START
    machine.reboot(MINUTE)
    judged = clock(tmp_path, machine, newest_ms=START)
    machine.run(HOLD + MINUTE)
    judged.look_again(HOLD)
    assert judged.jump_ms == 0 and judged.now_ms() == machine.wall_ms
    fresh_ms, born_ms = machine.wall_ms, machine.real_ms
    machine.run(HOUR)
    machine.skew_ms = 0
    judged.look_again(HOLD)
    machine.run(HOLD + MINUTE)
    judged.look_again(HOLD)
    assert judged.jump_ms == 0 and judged.now_ms() == machine.real_ms
    assert judged.now_ms() - judged.written_ms(fresh_ms) <= machine.real_ms - born_ms + JUMP_MS


@pytest.mark.parametrize("held", [False, True])
def test_a_reboot_during_a_jump(tmp_path: Path, held: bool) -> None:
    """With the clock as wrong as before the jump goes on; with the right one it is over."""
    machine = Machine()
    judged = clock(tmp_path, machine)
    machine.skew_ms = 10 * DAY
    judged.look_again(HOLD)
    machine.skew_ms = 10 * DAY if held else 0
    machine.reboot(HOUR)
    judged = clock(tmp_path, machine, newest_ms=START + 10 * DAY)
    assert bool(judged.jump_ms) == held and judged.now_ms() == machine.real_ms


# ---- the newest log is a witness


def test_without_a_file_no_log_was_written_in_the_future(tmp_path: Path) -> None:
    machine = Machine()
    machine.skew_ms = -10 * DAY
    judged = clock(tmp_path, machine, newest_ms=START)
    assert (judged.jump_ms, judged.now_ms()) == (-10 * DAY, START)


def test_a_file_of_an_old_backup_is_corrected_by_newer_logs(tmp_path: Path) -> None:
    machine = Machine()
    clock(tmp_path, machine)
    machine.reboot(40 * DAY)
    judged = clock(tmp_path, machine, newest_ms=machine.real_ms - HOUR)
    assert (judged.jump_ms, judged.now_ms()) == (0, machine.real_ms)


def test_a_damaged_file_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"{")
    machine = Machine()
    assert clock(tmp_path, machine).now_ms() == machine.real_ms
    assert FILE_NAME in caplog.text


def test_the_newest_log_is_looked_for_among_the_last_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(2):
            (tmp_path / name / f"{number:020}.log").write_bytes(b"")
    newest = max((tmp_path / name / f"{1:020}.log").stat().st_mtime_ns for name in ("a", "b"))
    assert newest_log_ms([tmp_path / "a", tmp_path / "b", tmp_path / "none"]) == newest // 1_000_000


def test_the_file_is_written_when_something_changes_and_now_and_then(tmp_path: Path) -> None:
    machine = Machine()
    judged = clock(tmp_path, machine)
    path = tmp_path / FILE_NAME
    first = path.read_bytes()
    machine.run(MINUTE)
    judged.look_again(HOLD)
    assert path.read_bytes() == first
    machine.run(HOUR)
    judged.look_again(HOLD)
    assert path.read_bytes() != first
    path.unlink()
    machine.skew_ms = DAY
    judged.look_again(HOLD)
    assert path.exists()


@given(st.lists(st.integers(-30, 30).filter(bool), min_size=STRETCHES_MAX + 1, max_size=3 * STRETCHES_MAX))
@settings(max_examples=50)
def test_stretches_are_bounded_and_lose_no_correction(days: list[int]) -> None:
    machine = Machine()
    look = first_look(machine(), 0)
    files: list[tuple[int, int]] = []
    for one in days:
        machine.run(HOUR)
        machine.skew_ms = one * DAY
        look = look_again(look, machine(), HOLD)
        machine.run(MINUTE)
        files.append((machine.real_ms, machine.wall_ms))
        machine.skew_ms = 0
        machine.run(MINUTE)
        look = look_again(look, machine(), HOLD)
    assert len(look.stretches) <= STRETCHES_MAX
    for real_ms, modified_ms in files:
        assert written_ms(look, modified_ms) >= real_ms - JUMP_MS


# ---- a machine


class JumpingClock(RuleBasedStateMachine):
    """No jump lasts as long as the hold, so nothing may look older than it is, whatever comes after what.

    Looks come now and then, at least one between two jumps.  Whoever judges looks first, as retention does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.machine = Machine()
        self.look: ClockLook = first_look(self.machine(), 0)
        self.saved = self.look
        self.files: list[tuple[int, int]] = []
        self.newest_ms = 0
        self.jumped_ms = 0

    @property
    def seen(self) -> bool:
        """Whether the last look was after the last jump."""
        return abs(self.look.jump_ms - self.machine.skew_ms) <= DAY // 2

    @rule(ms=st.sampled_from([30 * S, 10 * MINUTE, HOUR]))
    def run(self, ms: int) -> None:
        if self.machine.skew_ms and self.machine.real_ms + ms - self.jumped_ms >= HOLD - HOUR:
            self.look_now()
            self.machine.skew_ms = 0
        self.machine.run(ms)

    @rule()
    def look_now(self) -> None:
        self.look = look_again(self.look, self.machine(), HOLD)

    @precondition(lambda self: self.seen)
    @rule(days=st.integers(-400, 400).filter(bool))
    def jump(self, days: int) -> None:
        self.machine.skew_ms, self.jumped_ms = days * DAY, self.machine.real_ms

    @precondition(lambda self: self.machine.skew_ms and self.seen)
    @rule()
    def jump_back(self) -> None:
        self.machine.skew_ms = 0

    @rule()
    def write(self) -> None:
        self.files.append((self.machine.real_ms, self.machine.wall_ms))
        self.newest_ms = max(self.newest_ms, self.machine.wall_ms)

    @rule()
    def save(self) -> None:
        self.saved = self.look

    @rule()
    def restart(self) -> None:
        """A killed process has what was saved last; transitions are saved at once."""
        last = self.saved if self.saved.stretches == self.look.stretches else self.look
        self.look = self.saved = look_again(last, self.machine(), HOLD, self.newest_ms)

    @precondition(lambda self: not self.machine.skew_ms and not self.look.jump_ms)
    @rule(off_ms=st.sampled_from([0, MINUTE, 10 * HOUR]), days=st.sampled_from([0, 0, 3, -3, 400, -20_000]))
    def reboot(self, off_ms: int, days: int) -> None:
        """The machine is off for up to a day; its clock may be dead afterwards.  What is not seen cannot count."""
        before_ms = self.machine.real_ms
        self.machine.reboot(off_ms)
        if days:
            self.machine.skew_ms, self.jumped_ms = days * DAY, self.machine.real_ms
        self.look = self.saved = look_again(self.look, self.machine(), HOLD, min(self.newest_ms, before_ms))

    @invariant()
    def nothing_looks_older_than_it_is(self) -> None:
        look = look_again(self.look, self.machine(), HOLD)
        assert look.time_ms <= self.machine.real_ms + 2 * JUMP_MS
        for real_ms, modified_ms in self.files:
            judged_ms, real_age_ms = look.time_ms - written_ms(look, modified_ms), self.machine.real_ms - real_ms
            assert judged_ms <= real_age_ms + 2 * JUMP_MS, (real_ms, modified_ms)


TestJumpingClock = JumpingClock.TestCase
TestJumpingClock.settings = settings(
    max_examples=2_000 if LONG else 150, stateful_step_count=60 if LONG else 30, deadline=None
)
