"""Files through rotations, faults and kills in an order that a test decides: every line once, or in a gap."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from .files_rig import NO_TOPIC, Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


def test_a_copy_that_is_being_made_is_not_read_as_another_file(rig: Rig) -> None:
    rig.write("app.log", 50, width=100)
    rig.look()
    for part in (0.0, 0.1, 0.5, 1.0):
        rig.copy("app.log", "app.log.1", part)
        rig.look(20_000)
    rig.truncate("app.log")
    rig.write("app.log", 3)
    rig.settle()
    assert (rig.lost(), rig.doubled(), rig.gaps) == ([], [], [])


def test_a_copy_at_an_inode_that_another_copy_had_is_known_as_a_copy(rig: Rig) -> None:
    rig.write("app.log", 10)
    rig.look()
    rig.copy("app.log", "app.log.1")
    rig.look()
    inode = rig.path("app.log.1").stat().st_ino
    rig.path("app.log.1").unlink()
    rig.look(600_000)
    rig.copy("app.log", "app.log.1")
    if rig.path("app.log.1").stat().st_ino != inode:
        pytest.skip("this file system gave it another inode")
    rig.look()
    rig.truncate("app.log")
    rig.settle()
    assert (rig.lost(), rig.doubled(), rig.gaps) == ([], [], [])


def test_a_file_that_is_replaced_while_its_topic_cannot_be_written_is_not_taken_for_the_same(rig: Rig) -> None:
    rig.write("app.log", 5)
    rig.look()
    rig.write("app.log", 5)
    rig.log.fault = NO_TOPIC
    rig.look()
    rig.truncate("app.log")
    rig.write("app.log", 30)
    rig.log.fault = None
    rig.settle()
    assert (rig.lost(), rig.doubled()) == (rig.written[5:10], [])
    ((_, start, stop, _),) = rig.gaps
    assert (start, stop) == (15, 30)


def unreadable(monkeypatch: pytest.MonkeyPatch, names: set[str]) -> None:
    """Root can read every file: tests cannot take its rights away."""
    open_file = os.open

    def guarded(path: Any, *more: Any) -> int:
        if Path(path).name in names:
            raise PermissionError(errno.EACCES, "Permission denied")
        return open_file(path, *more)

    monkeypatch.setattr(os, "open", guarded)


def test_a_file_at_a_bad_place_of_the_disk_keeps_no_other_from_being_read(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.pread
    bad = True

    def guarded(fd: int, count: int, position: int) -> bytes:
        if bad and Path(f"/proc/self/fd/{fd}").readlink().name == "bad.log":
            raise OSError(errno.EIO, "Input/output error")
        return read(fd, count, position)

    rig.write("bad.log", 5)
    rig.look()
    rig.write("bad.log", 5)
    rig.write("good.log", 5)
    monkeypatch.setattr(os, "pread", guarded)
    rig.settle()
    rig.stop()
    rig.settle()
    assert rig.lost() == rig.written[5:10]
    assert "Input/output error" in rig.told.unread
    bad = False
    rig.settle()
    assert (rig.lost(), rig.doubled(), rig.gaps) == ([], [], [])


@pytest.mark.parametrize("grows", [False, True])
def test_a_file_that_cannot_be_read_after_a_start_goes_on_once_it_can(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, grows: bool
) -> None:
    rig.write("app.log", 5)
    rig.look()
    rig.stop()
    names = {"app.log"}
    unreadable(monkeypatch, names)
    if grows:
        rig.write("app.log", 5)
    rig.settle()
    assert "Permission denied" in rig.told.unread
    rig.stop()
    rig.settle()
    names.clear()
    rig.settle()
    assert (rig.lost(), rig.doubled(), rig.gaps) == ([], [], [])


def test_files_of_a_directory_that_cannot_be_read_for_a_while_go_on_where_they_were(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.write("app.log", 5)
    rig.look()
    hidden = rig.directory.with_name("hidden")
    rig.directory.rename(hidden)
    rig.directory.symlink_to(rig.directory)  # what is in it cannot be looked at: ELOOP, as EACCES for others than root
    rig.settle()
    rig.directory.unlink()
    hidden.rename(rig.directory)
    rig.write("app.log", 5)
    rig.settle()
    assert (rig.lost(), rig.doubled(), rig.gaps) == ([], [], [])


@pytest.mark.parametrize("is_read", [True, False])
def test_what_a_program_writes_between_the_copy_and_the_truncation(rig: Rig, is_read: bool) -> None:
    """It is in the topic if the input was faster, else a gap with its bytes, as far as it was seen."""
    rig.write("app.log", 8)
    rig.look()
    rig.copy("app.log", "app.log.1")
    rig.write("app.log", 2)
    rig.log.fault = None if is_read else NO_TOPIC
    rig.look()
    rig.truncate("app.log")
    rig.settle()
    assert rig.doubled() == []
    assert rig.lost() == ([] if is_read else rig.written[8:])
    assert [gap[1:3] for gap in rig.gaps] == ([] if is_read else [(24, 30)])


def test_sources_of_another_type_that_the_input_had_before_are_left_alone(rig: Rig) -> None:
    rig.store.add_sources([("10.0.0.1", 17, 18, b""), ("journal", 3, 4, b"s=1;i=2;b=3")])
    rig.write("app.log", 5)
    rig.stop()
    rig.settle()
    assert (rig.lost(), rig.doubled(), rig.gaps) == ([], [], [])


def test_links_give_a_file_once_and_loops_give_none(rig: Rig) -> None:
    rig.path("loop.log").symlink_to("loop.log")
    rig.path("directory.log").symlink_to(rig.directory)
    rig.path("first.log").symlink_to("app.log")
    rig.write("app.log", 5)
    rig.path("hard.log").hardlink_to(rig.path("app.log"))
    rig.settle()
    rig.path("first.log").unlink()
    rig.write("app.log", 5)
    rig.kill()
    rig.settle()
    assert "more files" in rig.told.unread
    assert (rig.lost(), rig.doubled(), rig.gaps) == ([], [], [])


def test_a_line_of_megabytes_comes_in_parts_whenever_the_input_is_killed(rig: Rig) -> None:
    data = b"".join(b"%07d" % at for at in range(300_000))
    for start in range(0, len(data), 500_000):
        rig.append("app.log", data[start : start + 500_000])
        rig.look(20_000)
        rig.kill()
    rig.append("app.log", b"\n")
    rig.settle()
    assert b"".join(rig.log.values) == data
    assert rig.gaps == []


def test_two_inputs_read_one_file_without_regard_to_each_other(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Rig(tmp_path / "other")
    other.directory.rmdir()
    other.directory.symlink_to(rig.directory)
    for turn in range(4):
        rig.write("app.log", 5)
        (rig if turn % 2 else other).look(20_000)
        rig.copy("app.log", f"app.log.{turn}")
        rig.truncate("app.log")
        (other if turn % 2 else rig).kill()
    for one in (rig, other):
        one.settle()
    other.written = rig.written
    assert (rig.lost(), rig.doubled(), other.lost(), other.doubled()) == ([], [], [], [])
    other.close()


class AnyOrder(RuleBasedStateMachine):
    """A program writes and rotates its file, while the input looks, is killed, and cannot write, in any order.

    Every line is in the log once, but those that go away before anybody can read them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._base = tempfile.TemporaryDirectory()
        self.rig = Rig(Path(self._base.name))
        self.rotated = 0
        self.late: list[bytes] = []
        self.rest = b""  # of the line that is being written

    def _rotate(self) -> str:
        """Make room for ``app.log.1``."""
        self._end_line()
        for number in range(self.rotated, 0, -1):
            self.rig.path(f"app.log.{number}").rename(self.rig.path(f"app.log.{number + 1}"))
        self.rotated += 1
        return "app.log.1"

    @rule(count=st.integers(1, 5), width=st.sampled_from([0, 30, 2_000]))
    def write(self, count: int, width: int) -> None:
        self._end_line()
        self.rig.write("app.log", count, width)

    @precondition(lambda self: not self.rest)
    @rule()
    def begin_line(self) -> None:
        self.rest = self.rig.begin_line("app.log")

    def _end_line(self) -> None:
        if self.rest:
            self.rig.append("app.log", self.rest)
            self.rest = b""

    @precondition(lambda self: self.rotated)
    @rule(count=st.integers(1, 3))
    def write_to_the_renamed_file(self, count: int) -> None:
        self.rig.write("app.log.1", count)

    @precondition(lambda self: self.rig.path("app.log").exists())
    @rule()
    def rename(self) -> None:
        self.rig.path("app.log").rename(self.rig.path(self._rotate()))

    @precondition(lambda self: self.rig.path("app.log").exists())
    @rule(parts=st.lists(st.floats(0, 1), max_size=2), late=st.sampled_from([0, 0, 2]), looks=st.booleans())
    def copy_and_truncate(self, parts: list[float], late: int, looks: bool) -> None:
        """``late``: lines that are written after the copy was made, and lost: the input does not look meanwhile."""
        self.rig.look(0)  # a file that nobody has seen has no copies
        name = self._rotate()
        for part in sorted(parts):
            self.rig.copy("app.log", name, part)
            self.rig.look(10)
        self.rig.copy("app.log", name)
        if late:
            self.rig.write("app.log", late)
            self.late += self.rig.written[-late:]
        elif looks:
            self.rig.look(10)
        self.rig.truncate("app.log")

    @rule(after_ms=st.sampled_from([0, 300, 6_000, 20_000]), scan=st.booleans())
    def look(self, after_ms: int, scan: bool) -> None:
        self.rig.mark(self.rig.path("app.log"))
        self.rig.look(after_ms, scan=scan)

    @rule()
    def kill(self) -> None:
        self.rig.kill()

    @rule()
    def stop(self) -> None:
        self.rig.stop()

    @rule(works=st.booleans())
    def change_the_topic(self, works: bool) -> None:
        self.rig.log.fault = None if works else NO_TOPIC

    @rule()
    def answer_late(self) -> None:
        if self.rig.log.held is None:
            self.rig.log.held = []
        else:
            self.rig.log.answer()

    def teardown(self) -> None:
        try:
            self._end_line()
            self.rig.settle()
            assert (set(self.rig.lost()) - set(self.late), self.rig.doubled()) == (set(), [])
            assert self.late or not self.rig.gaps
        finally:
            self.rig.close()
            self._base.cleanup()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=40, stateful_step_count=20, deadline=None, derandomize=True)
