"""The time by which ages are judged before anything is deleted: it does not follow a jump of the wall clock at once.

A host with a dead battery, a restored virtual machine or one bad answer of a time server sets the wall clock by days.
What is deleted by such a reading is gone.  So ages are not measured with the wall clock but with the *trusted time*: it
goes on with CLOCK_BOOTTIME, which nobody can set, and stays with the wall clock as long as both agree::

    state         the trusted time                     it ends when
    in step       goes with CLOCK_BOOTTIME, and        both differ by more than JUMP_MS: a jump
                  follows the wall clock by a tenth
                  of the time that passes
    jumped by D   goes with CLOCK_BOOTTIME             the wall clock is back: in step;
                                                       D has lasted for disk.clock_jump_hold_ms, or an
                                                       operator says so: it is believed, and in step;
                                                       the wall clock is elsewhere: another jump

A jump that is believed moves the trusted time to the wall clock.

**Restarts.**  ``clock.json`` has the last look: the boot of the machine, both times, and the jump (:class:`ClockLook`).
In the same boot CLOCK_BOOTTIME says how much time has passed, however long the appliance was stopped.  After a reboot
only the wall clock knows for how long the machine was off: up to DOWN_MS_MAX is believed.  More, or a clock that has
gone back, is a jump.  Without the file, or after a reboot, the newest file of a log is a second witness: no log was
written in the future.

**Files that were written while the clock was behind** look older than they are, also when the clock is right again.
So the stretches of time in which it was behind are kept, as the wall clock showed them (:class:`Stretch`), and
:meth:`TrustedClock.written_ms` takes a file whose time lies in one for as young as it may be.  The clock of a jump back
that was believed may have been wrong all the same (no time server for days): its stretch stays open, and a jump ahead
that is believed later closes it.

A jump ahead leaves files with times in the future: they are kept longer, by as much as the jump at most.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from ...durable_files import replace_data_file
from ...errors import ApplianceError
from ...log.recovery import boot_id
from ...units import duration

FILE_NAME: Final = "clock.json"
JUMP_MS: Final = 600_000
"""The wall clock and the trusted time may differ by this without a jump."""
FOLLOWED_PART: Final = 10
"""The trusted time follows the wall clock by at most this part of the time that passes: programs that correct a clock
without a jump are slower."""
DOWN_MS_MAX: Final = 86_400_000
"""For so long a machine may have been off, when only the wall clock says so."""
SAVE_MS: Final = 600_000
STRETCHES_MAX: Final = 16
log = logging.getLogger(__name__)


class Now(NamedTuple):
    """One reading of both clocks, and the boot of the machine that ``boot_ms`` counts from."""

    wall_ms: int
    boot_ms: int
    boot: str


def read_clocks() -> Now:
    boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return Now(time.time_ns() // 1_000_000, boot_ns // 1_000_000, "{:x}-{:x}".format(*boot_id()))


class Stretch(msgspec.Struct, frozen=True):
    """A time in which the wall clock was behind: it showed ``start_ms`` to ``stop_ms``, ``behind_ms`` too little.

    ``stop_ms`` is None while it lasts.
    """

    start_ms: int
    stop_ms: int | None
    behind_ms: int


class ClockLook(msgspec.Struct, frozen=True):
    """A look.  ``time_ms``: the trusted time.  ``jump_ms``: the wall clock minus it in a jump, which has lasted for
    ``lasted_ms``; 0 in step.
    """

    boot: str
    boot_ms: int
    time_ms: int
    jump_ms: int = 0
    lasted_ms: int = 0
    stretches: tuple[Stretch, ...] = ()


def first_look(now: Now, newest_ms: int) -> ClockLook:
    """The first look of a data directory, in which the newest log was written at ``newest_ms``."""
    if newest_ms <= now.wall_ms + JUMP_MS:
        return ClockLook(now.boot, now.boot_ms, now.wall_ms)
    return _begin(ClockLook(now.boot, now.boot_ms, newest_ms), newest_ms, now.wall_ms - newest_ms)


def look_again(last: ClockLook, now: Now, hold_ms: int, newest_ms: int = 0) -> ClockLook:
    """What a look shows after the last one.

    Args:
        hold_ms: how long a jump must last until it is believed.
        newest_ms: when the newest log was written, for the first look after a restart.
    """
    expected_ms, elapsed_ms = _expected(last, now, newest_ms)
    differs_ms = now.wall_ms - expected_ms
    seen = msgspec.structs.replace(last, boot=now.boot, boot_ms=now.boot_ms, time_ms=expected_ms)
    if abs(differs_ms) <= JUMP_MS:
        if last.jump_ms:
            seen = _close(seen, expected_ms)
        most_ms = elapsed_ms // FOLLOWED_PART
        follows_ms = max(-most_ms, min(differs_ms, most_ms))
        return msgspec.structs.replace(seen, time_ms=expected_ms + follows_ms, jump_ms=0, lasted_ms=0)
    if last.jump_ms and abs(differs_ms - last.jump_ms) <= JUMP_MS:
        lasted_ms = last.lasted_ms + elapsed_ms
        seen = msgspec.structs.replace(seen, lasted_ms=lasted_ms)
    else:
        if last.jump_ms:
            seen = _close(seen, expected_ms)
        seen, lasted_ms = _begin(seen, last.time_ms, differs_ms), 0
    return believe(seen, now) if lasted_ms >= hold_ms else seen


def believe(seen: ClockLook, now: Now) -> ClockLook:
    """Move the trusted time to the wall clock; ``seen`` is a look of this moment."""
    stretches = seen.stretches
    if seen.jump_ms < 0:  # what was written since then has the right time, unless this clock is wrong, too
        stretches = tuple(
            Stretch(stretch.start_ms, None, 0) if stretch.stop_ms is None else stretch for stretch in stretches
        )
    elif seen.jump_ms > 0:
        stretches = tuple(
            Stretch(stretch.start_ms, seen.time_ms, seen.jump_ms) if stretch.stop_ms is None else stretch
            for stretch in stretches
        )
    return msgspec.structs.replace(seen, time_ms=now.wall_ms, jump_ms=0, lasted_ms=0, stretches=stretches)


def _expected(last: ClockLook, now: Now, newest_ms: int) -> tuple[int, int]:
    """The trusted time without another jump, and how much time is known to have passed since the last look."""
    if now.boot == last.boot and now.boot_ms >= last.boot_ms:
        elapsed_ms = now.boot_ms - last.boot_ms
        return last.time_ms + elapsed_ms, elapsed_ms
    earliest_ms = last.time_ms + now.boot_ms
    if not last.jump_ms and newest_ms <= now.wall_ms + JUMP_MS:
        earliest_ms = max(earliest_ms, newest_ms)
    for jump_ms in {0, last.jump_ms}:
        off_ms = now.wall_ms - jump_ms - earliest_ms
        if -JUMP_MS <= off_ms <= DOWN_MS_MAX:
            return earliest_ms + max(0, off_ms), now.boot_ms
    return earliest_ms, now.boot_ms


def _begin(seen: ClockLook, last_ms: int, jump_ms: int) -> ClockLook:
    """Begin a jump; at ``last_ms`` of the trusted time the clock was not there yet."""
    stretches = seen.stretches
    if jump_ms < 0:
        stretches = _bounded((*stretches, Stretch(last_ms + jump_ms, None, -jump_ms)))
    return msgspec.structs.replace(seen, jump_ms=jump_ms, lasted_ms=0, stretches=stretches)


def _close(seen: ClockLook, expected_ms: int) -> ClockLook:
    """End the stretch of a jump back.  One whose clock was believed, with ``behind_ms`` 0, stays open."""
    return msgspec.structs.replace(
        seen,
        stretches=tuple(
            Stretch(stretch.start_ms, expected_ms - stretch.behind_ms, stretch.behind_ms)
            if stretch.stop_ms is None and stretch.behind_ms
            else stretch
            for stretch in seen.stretches
        ),
    )


def _bounded(stretches: tuple[Stretch, ...]) -> tuple[Stretch, ...]:
    """At most STRETCHES_MAX: the two oldest become one that has both, with the larger correction."""
    if len(stretches) <= STRETCHES_MAX:
        return stretches
    oldest, second, *rest = stretches
    stops = [stretch.stop_ms for stretch in (oldest, second)]
    stop_ms = None if None in stops else max(stop for stop in stops if stop is not None)
    joined = Stretch(min(oldest.start_ms, second.start_ms), stop_ms, max(oldest.behind_ms, second.behind_ms))
    return (joined, *rest)


def written_ms(look: ClockLook, modified_ms: int) -> int:
    """The latest time at which a file with this time may have been written, by the trusted time."""
    behind_ms = [
        stretch.behind_ms
        for stretch in look.stretches
        if stretch.start_ms <= modified_ms and (stretch.stop_ms is None or modified_ms <= stretch.stop_ms)
    ]
    return modified_ms + max(behind_ms, default=0)


def newest_log_ms(directories: Iterable[Path]) -> int:
    """When the newest of the logs in these directories was written, ms since 1970; 0 without any."""
    newest_ms = 0
    for directory in directories:
        with suppress(OSError):  # who opens the log reports it
            last = max(directory.glob("*.log"), default=None)
            if last is not None:
                newest_ms = max(newest_ms, last.stat().st_mtime_ns // 1_000_000)
    return newest_ms


class TrustedClock:
    """Keeps the trusted time of a data directory.  ``on_change`` gets the report for ``status`` when it has changed.

    Before :meth:`begin` it is the wall clock; what deletes takes :meth:`judging_ms`.
    """

    def __init__(
        self,
        data_dir: Path,
        on_change: Callable[[dict[str, Any] | None], None],
        clocks: Callable[[], Now] = read_clocks,
    ) -> None:
        self._path = data_dir / FILE_NAME
        self._on_change, self._clocks = on_change, clocks
        self._look: ClockLook | None = None
        self._saved: ClockLook | None = None
        self._report: dict[str, Any] | None = None
        self.kept_bytes = 0
        """Bytes of logs that are old by the wall clock, and not by the trusted time."""

    @property
    def begun(self) -> bool:
        return self._look is not None

    @property
    def jump_ms(self) -> int:
        """The wall clock minus the trusted time while a jump is not believed; else 0."""
        return 0 if self._look is None else self._look.jump_ms

    def begin(self, newest_ms: int, hold_ms: int) -> None:
        """Look for the first time since the start, with the time of the newest log."""
        now, last = self._clocks(), self._load()
        seen = first_look(now, newest_ms) if last is None else look_again(last, now, hold_ms, newest_ms)
        self._take(last, seen, now, hold_ms)

    def look_again(self, hold_ms: int) -> None:
        """Look again.  Call it before each decision about ages."""
        assert self._look is not None
        now = self._clocks()
        self._take(self._look, look_again(self._look, now, hold_ms), now, hold_ms)

    def believe(self, hold_ms: int) -> int:
        """Believe the wall clock, since an operator says so.  Returns by how much it has jumped, 0 for not at all."""
        self.look_again(hold_ms)
        assert self._look is not None
        jump_ms, now = self._look.jump_ms, self._clocks()
        if jump_ms:
            self._take(self._look, believe(self._look, now), now, hold_ms)
        return jump_ms

    def now_ms(self) -> int:
        """The trusted time, in ms since 1970; that of the wall clock before the first look."""
        now = self._clocks()
        return now.wall_ms if self._look is None else _expected(self._look, now, 0)[0]

    def judging_ms(self) -> int:
        """The time to judge ages by: the trusted time, or 0 before the first look, when nothing is old yet."""
        return self.now_ms() if self.begun else 0

    def wall_ms(self) -> int:
        return self._clocks().wall_ms

    def written_ms(self, modified_ms: int) -> int:
        """When a file or a node with this time was written, at the latest."""
        return modified_ms if self._look is None else written_ms(self._look, modified_ms)

    def report(self, hold_ms: int) -> None:
        """Tell ``on_change`` of the jump, and of what is kept because of it."""
        look = self._look
        report = None
        if look is not None and look.jump_ms:
            left_ms = max(0, hold_ms - look.lasted_ms)
            report = {
                "jump_ms": look.jump_ms,
                "believed": round((self._clocks().wall_ms + left_ms) / 60_000) * 60,
                "kept_bytes": self.kept_bytes,
            }
        if report != self._report:
            self._report = report
            self._on_change(report)

    def save(self) -> None:
        """Store the last look; a failure is logged, and the next look tries again."""
        if self._look is None or self._look == self._saved:
            return
        try:
            replace_data_file(self._path, msgspec.json.encode(self._look))
        except ApplianceError as error:
            log.error("the time of the last look at the clock is not stored: %s", error)
            return
        self._saved = self._look

    def _take(self, last: ClockLook | None, seen: ClockLook, now: Now, hold_ms: int) -> None:
        self._look = seen
        before_ms = last.jump_ms if last is not None else 0
        if seen.jump_ms and (not before_ms or abs(seen.jump_ms - before_ms) > JUMP_MS):
            wait = f"for {duration(hold_ms / 1000)}, or until `appliance accept-clock`"
            log.warning("the clock has jumped %s: nothing is deleted by it %s", jump_text(seen.jump_ms), wait)
        elif last is not None and before_ms and not seen.jump_ms:
            believed = abs(now.wall_ms - _expected(last, now, 0)[0]) > JUMP_MS
            log.warning(
                "the clock had jumped %s: it is %s", jump_text(before_ms), "believed now" if believed else "back"
            )
        if not seen.jump_ms:
            self.kept_bytes = 0
        if self._is_due(seen):
            self.save()
        self.report(hold_ms)

    def _is_due(self, seen: ClockLook) -> bool:
        """Whether the file has to be written: because something has changed, or it is old."""
        saved = self._saved
        return (
            saved is None
            or (saved.boot, saved.stretches, saved.jump_ms != 0) != (seen.boot, seen.stretches, seen.jump_ms != 0)
            or seen.boot_ms - saved.boot_ms >= SAVE_MS
        )

    def _load(self) -> ClockLook | None:
        try:
            self._saved = msgspec.json.decode(self._path.read_bytes(), type=ClockLook)
        except FileNotFoundError:
            self._saved = None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.error("%s: %s: the clock is compared with the newest log only", self._path, error)
            self._saved = None
        return self._saved


def jump_text(jump_ms: int) -> str:
    """``ahead by 10 d``, ``back by 10 d``."""
    return f"{'ahead' if jump_ms > 0 else 'back'} by {duration(abs(jump_ms) / 1000)}"
