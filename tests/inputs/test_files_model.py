"""What identifies a file, and when it is over: programs do anything to files, and each line is read or in a gap."""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from ..support.long import LONG
from .files_rig import Rig, RigMachine

NAMES = st.sampled_from(["app.log", "web.log"])
TICK = b"tick"
"""A line that programs write again and again."""


class Written(NamedTuple):
    """A line, and where it is in its file."""

    name: str
    start: int
    stop: int


class AnythingHappens(RigMachine):
    """The files are real, so a new one has the inode of the one that was removed before it.

    Nobody can know of what was written and went away before anybody has looked, so the input looks then.
    """

    include = "*.log"

    def __init__(self) -> None:
        super().__init__()
        self._base, self._store = tempfile.TemporaryDirectory(), tempfile.TemporaryDirectory(dir="/dev/shm")
        self.rig = Rig(Path(self._base.name), self.include, Path(self._store.name))
        self.rig.look()
        self.lines: dict[bytes, list[Written]] = defaultdict(list)
        self.sizes: Counter[str] = Counter()
        self.has_lost: set[str] = set()  # names of files of which something may be lost
        self.removed: set[str] = set()  # names of files that only the descriptors of the input have
        self.begins_anew: set[str] = set()  # files that were truncated: else nobody could tell
        self.numbers = iter(range(10**6))

    # ---- the programs

    def _write(self, name: str, ticks: list[bool]) -> None:
        path = self.rig.path(name)
        if name in self.begins_anew:
            self.begins_anew.remove(name)
            ticks = [False, *ticks]
        at = path.stat().st_size if path.exists() else 0
        for is_tick in ticks:
            line = TICK if is_tick else b"%d of %s" % (next(self.numbers), name.encode())
            self.lines[line].append(Written(self._of(name), at, at + len(line) + 1))
            self.rig.append(name, line + b"\n")
            at += len(line) + 1

    @staticmethod
    def _of(name: str) -> str:
        return name.removesuffix(".1").removesuffix(".2")

    def _exists(self, name: str) -> bool:
        return self.rig.path(name).exists()

    def _observe(self) -> None:
        self.rig.look(3_000)  # later than it tries again what has failed
        self.rig.commit()

    @rule(name=NAMES, ticks=st.lists(st.sampled_from([True, True, False]), min_size=1, max_size=3))
    def write(self, name: str, ticks: list[bool]) -> None:
        self._write(name, ticks)

    @rule(name=NAMES, ticks=st.lists(st.booleans(), min_size=1, max_size=2))
    def write_late(self, name: str, ticks: list[bool]) -> None:
        """A program that has not opened the new file yet goes on in the one that was renamed."""
        if self._exists(f"{name}.1"):
            self._write(f"{name}.1", ticks)

    def _make_room(self, name: str) -> None:
        if self._exists(f"{name}.2"):
            self._remove(f"{name}.2")
        with suppress(FileNotFoundError):
            self.rig.path(f"{name}.1").rename(self.rig.path(f"{name}.2"))

    @rule(name=NAMES)
    def rename(self, name: str) -> None:
        if self._exists(name):
            self._make_room(name)
            self.rig.path(name).rename(self.rig.path(f"{name}.1"))
            self.rig.wait_for_tick()
            self.begins_anew.discard(name)

    def _remove(self, name: str) -> None:
        self._observe()
        self.removed.add(self._of(name))
        self.begins_anew.discard(name)
        self.rig.remove(name)

    @rule()
    def kill(self) -> None:
        self.has_lost |= self.removed
        super().kill()

    @rule()
    def stop(self) -> None:
        self.has_lost |= self.removed
        super().stop()

    @rule(name=NAMES, is_same=st.booleans())
    def remove(self, name: str, is_same: bool) -> None:
        """And perhaps begin it again, with the same lines as the one before."""
        if self._exists(name):
            ticks = [line == TICK for line in self.rig.path(name).read_bytes().splitlines()]
            self._remove(name)
            self._write(name, ticks if is_same else [])

    @rule(name=NAMES, unseen=st.lists(st.booleans(), max_size=2), ticks=st.lists(st.booleans(), max_size=4))
    def truncate(self, name: str, unseen: list[bool], ticks: list[bool]) -> None:
        """``unseen``: lines that are written before, while nobody looks."""
        if self._exists(name) and self.rig.path(name).stat().st_size:
            self._observe()
            self._write(name, unseen)
            self.has_lost.add(name)
            self.rig.truncate(name)
            self.begins_anew.add(name)
            if ticks:
                self._write(name, ticks)

    @rule(name=NAMES, looks=st.booleans(), ticks=st.lists(st.booleans(), max_size=4))
    def copy_and_truncate(self, name: str, looks: bool, ticks: list[bool]) -> None:
        if self._exists(name) and self.rig.path(name).stat().st_size:
            self._observe()
            self._make_room(name)
            self.rig.copy(name, f"{name}.1")
            if looks:
                self.rig.look(10)
            self.rig.truncate(name)
            self.begins_anew.add(name)
            if ticks:
                self._write(name, ticks)

    # ---- the input

    @rule(after_ms=st.sampled_from([0, 300, 6_000, 20_000]), scan=st.booleans())
    def look(self, after_ms: int, scan: bool) -> None:
        for name in ("app.log", "web.log"):
            self.rig.mark(self.rig.path(name))
        self.rig.look(after_ms, scan=scan)

    @rule()
    def wait(self) -> None:
        """So long that what is gone is over."""
        for _ in range(4):
            self.rig.look(20_000)

    # ---- what must hold

    def _is_in_gap(self, line: Written) -> bool:
        return any(
            self._of(Path(path).name) == line.name and line.stop > start and (stop is None or line.start < stop)
            for path, start, stop, _ in self.rig.gaps
        )

    def check(self) -> None:
        counts = self.rig.counts()
        for line, places in self.lines.items():
            missing = len(places) - counts[line]
            assert missing <= sum(map(self._is_in_gap, places)), f"{line!r} is missing {missing} times, and in no gap"
            assert missing >= 0 or line == TICK, f"{line!r} is there {counts[line]} times"
        assert {self._of(Path(path).name) for path, *_ in self.rig.gaps} <= self.has_lost

    def teardown(self) -> None:
        try:
            self.rig.settle()
            self.check()
        finally:
            self.rig.close()
            self._base.cleanup()
            self._store.cleanup()


class AnythingHappensToNamedFiles(AnythingHappens):
    """The patterns name the rotated files, too."""

    include = "*.log*"


TestAnythingHappens = AnythingHappens.TestCase
TestAnythingHappensToNamedFiles = AnythingHappensToNamedFiles.TestCase
for of in (TestAnythingHappens, TestAnythingHappensToNamedFiles):
    of.settings = settings(max_examples=1_000 if LONG else 100, stateful_step_count=15, deadline=None, derandomize=True)
