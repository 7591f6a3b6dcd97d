"""Files through rotations, faults and kills in an order that a test decides: every line once, or in a gap."""

from __future__ import annotations

import asyncio
import errno
import gzip
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from appliance.errors import StorageFault
from appliance.inputs import files

from ..support.places import open_place
from .files_rig import NO_TOPIC, PACKERS, Rig, RigMachine


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Rig]:
    """No pattern of the input names what rotation makes."""
    made = Rig(tmp_path, "*.log")
    yield made
    made.close()


def test_a_directory_that_cannot_be_looked_into_is_named_as_long_as_that_is_so() -> None:
    if os.geteuid():
        pytest.skip("needs root, to be another user")
    with open_place() as tmp_path:
        rig = Rig(tmp_path, "*/app.log")
        for name in ("open", "closed"):
            rig.path(name).mkdir()
            rig.write(f"{name}/app.log", 1)
        rig.path("closed").chmod(0o700)
        os.seteuid(65534)
        try:
            rig.look()
            assert rig.told.unread == f"{rig.path('closed')}: Permission denied"
            assert len(rig.lost()) == 1
        finally:
            os.seteuid(0)
        rig.look(20_000)
        assert (rig.told.unread, rig.lost(), rig.doubled(), rig.gaps) == ("", [], [], [])
        rig.close()


@pytest.mark.parametrize("exclude", ["*.gz", "none"])
@pytest.mark.parametrize("include", ["*.log", "*.log*"])
def test_what_is_being_compressed_is_neither_read_nor_a_gap_when_all_was_read(
    tmp_path: Path, include: str, exclude: str
) -> None:
    """Its packer has made the file, and then a part of it, when a scan comes."""
    rig = Rig(tmp_path, include, exclude=exclude)
    for name in ("app.log.1", "app.log"):
        rig.write("app.log", 2_000, width=50)
        rig.settle()
        rig.path("app.log").rename(rig.path("app.log.1"))
        data, packed = gzip.compress(rig.path("app.log.1").read_bytes()), f"{name}.gz"
        if name == "app.log":
            rig.settle()
            rig.path("app.log.1").unlink()
            rig.settle()
        for part in (0, len(data) // 2, len(data)):
            rig.path(packed).write_bytes(data[:part])
            rig._touch(rig.path(packed))
            rig.look(2_000)
        rig.path("app.log.1").unlink(missing_ok=True)
        rig.settle()
    assert (rig.lost(), rig.doubled(), rig.gaps) == ([], [], [])
    assert rig.log.values == rig.written
    rig.close()


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


@pytest.mark.parametrize("away_ms", [100, 100_000])
@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_file_that_is_away_and_comes_back_is_read_once(tmp_path: Path, away_ms: int, is_stopped: bool) -> None:
    """Renamed; in a directory that was; or behind a link that shows another file meanwhile."""
    rig = Rig(tmp_path, "*/app.log")
    for name in ("a", "b", "c"):
        rig.path(name).mkdir()
    rig.path("a/app.log").symlink_to(rig.path("one"))
    for name in ("one", "b/app.log", "c/app.log"):
        rig.write(name, 10)
    rig.look(100)
    rig.path("b/app.log").rename(rig.path("b/hidden"))
    rig.path("c").rename(rig.path("d.away"))
    rig.path("a/app.log").unlink()
    rig.write("two", 10)
    rig.path("a/app.log").symlink_to(rig.path("two"))
    for _ in range(5):
        rig.look(away_ms / 5)
    if is_stopped:
        rig.stop()
    rig.path("b/hidden").rename(rig.path("b/app.log"))
    rig.path("d.away").rename(rig.path("c"))
    rig.path("a/app.log").unlink()
    rig.path("a/app.log").symlink_to(rig.path("one"))
    rig.look(100)
    for name in ("one", "b/app.log", "c/app.log"):
        rig.write(name, 2)
    rig.settle()
    of_two = rig.gaps if is_stopped else []  # which the link did not show any more after the start
    assert (rig.lost(), rig.doubled(), rig.gaps, len(of_two) < 2) == ([], [], of_two, True)
    rig.close()


def test_a_file_that_was_there_at_first_and_comes_back_is_not_read(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "app.log", from_end=True)
    rig.append("app.log", b"old\n")
    rig.look(100)
    rig.path("app.log").rename(rig.path("hidden"))
    rig.settle()
    rig.path("hidden").rename(rig.path("app.log"))
    rig.settle()
    assert rig.log.values == []
    rig.close()


@pytest.mark.parametrize("is_stopped", [False, True])
def test_what_rotation_does_with_a_file_that_is_over_is_read_once(tmp_path: Path, is_stopped: bool) -> None:
    """A copy of it and a compressed one are no news; of a late line only that is read."""
    rig = Rig(tmp_path, "app.log")
    rig.append("app.log.9", b"there before\n")
    rig.write("app.log", 30, 100)
    rig.look(100)
    rig.look(20_000)
    rig.path("app.log").rename(rig.path("app.log.1"))
    rig.write("app.log")
    rig.settle()
    if is_stopped:
        rig.stop()
        rig.look(100)
    rig.copy("app.log.1", "app.log.2")
    rig.settle()
    rig.path("app.log.3.gz").write_bytes(gzip.compress(rig.path("app.log.1").read_bytes()))
    rig._touch(rig.path("app.log.3.gz"))
    rig.settle()
    rig.write("app.log.1")
    rig.path("other").touch()
    rig.settle()
    assert (rig.lost(), rig.doubled(), rig.gaps) == ([], [], [])
    assert b"there before" not in rig.log.values
    rig.close()


@pytest.mark.parametrize(
    ("name", "is_read"),
    [
        ("app-2.log", False),
        ("app.2.log", False),
        ("app.log.2", True),
        ("app-20261125.log", True),
        ("app.log.3", False),
        ("app-old.log", True),
    ],
)
def test_other_logs_and_excluded_ones_are_not_read_as_rotated(tmp_path: Path, name: str, is_read: bool) -> None:
    rig = Rig(tmp_path, "app.log", exclude="*.3")
    rig.write("app.log", 3)
    rig.look(100)
    rig.look(20_000)
    rig.append(name, b"of this one\n")
    rig.settle()
    assert (b"of this one" in rig.log.values) == is_read
    rig.close()


def test_nul_bytes_at_the_beginning_are_told_once_also_after_a_kill(rig: Rig) -> None:
    rig.append("app.log", b"\0" * 10)
    rig.write("app.log", 3)
    rig.look(100)
    rig.kill()
    rig.write("app.log", 3)
    rig.settle()
    assert (rig.lost(), rig.doubled(), [gap[1:3] for gap in rig.gaps]) == ([], [], [(0, 10)])


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
    assert [gap[1:3] for gap in rig.gaps] == [(15, 30), (30, None)]


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_file_that_was_rewritten_to_its_size_and_has_its_time_again_is_another_one(
    rig: Rig, is_stopped: bool
) -> None:
    """As a program does that copies a file and its times over another one."""
    rig.write("app.log", 5, width=100)
    rig.settle()
    path = rig.path("app.log")
    times, read = path.stat(), rig.written
    if is_stopped:
        rig.stop()
    rig.wait_for_tick()
    path.write_bytes(b"")
    rig.written = []
    rig.write("app.log", 5, width=100)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (times.st_size, times.st_mtime_ns)
    rig.settle()
    assert (rig.lost(), rig.doubled(), rig.log.values) == ([], [], read + rig.written)


def test_a_file_that_was_rewritten_to_its_size_and_ends_as_before_is_another_one(rig: Rig) -> None:
    """As a program does whose lines have one length, and end alike."""
    rig.write("app.log", width=100)
    rig.look()
    rig.copy("app.log", "app.log.1")
    rig.truncate("app.log")
    rig.write("app.log", width=100)
    rig.settle()
    assert (rig.lost(), rig.doubled(), rig.gaps) == ([], [], [])


def test_a_file_that_is_truncated_while_it_is_read_goes_on_in_its_copy(
    narrow: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept to know it again is of what was read, not of what the file has a moment later."""
    read, path = os.pread, narrow.path("app.log")
    is_cut = False

    def cut_behind(fd: int, count: int, position: int) -> bytes:
        nonlocal is_cut
        data = read(fd, count, position)
        if count > 10_000 and len(data) > 100 and not is_cut and Path(f"/proc/self/fd/{fd}").readlink() == path:
            is_cut = True
            narrow.copy("app.log", "app.log.1")
            narrow.truncate("app.log")
            narrow.write("app.log", 2)
        return data

    narrow.look()
    narrow.write("app.log", 50)
    monkeypatch.setattr(os, "pread", cut_behind)
    narrow.settle()
    assert is_cut and (narrow.lost(), narrow.doubled(), narrow.gaps) == ([], [], [])


def unreadable(monkeypatch: pytest.MonkeyPatch, names: set[str]) -> None:
    """Root can read every file: tests cannot take its rights away."""
    open_file = os.open

    def guarded(path: Any, *more: Any, **how: Any) -> int:
        if Path(path).name in names:
            raise PermissionError(errno.EACCES, "Permission denied")
        return open_file(path, *more, **how)

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


def full(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def add_sources(rows: Any) -> list[int]:
        if list(rows):
            raise StorageFault("database or disk is full")
        return []

    monkeypatch.setattr(rig.store, "add_sources", add_sources)


def test_a_new_file_waits_while_the_disk_of_the_store_is_full(narrow: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is rotated away meanwhile; and no descriptor is left."""
    narrow.write("old.log", 3)
    narrow.settle()
    before = len(list(Path("/proc/self/fd").iterdir()))
    with monkeypatch.context() as patched:
        full(narrow, patched)
        narrow.write("app.log", 3)
        for _ in range(3):
            with pytest.raises(StorageFault):
                narrow.look(20_000)
        assert len(list(Path("/proc/self/fd").iterdir())) == before
        narrow.path("app.log").rename(narrow.path("app.log.1"))
    narrow.settle()
    assert (narrow.lost(), narrow.doubled(), narrow.gaps) == ([], [], [])


def test_a_file_that_is_truncated_waits_while_the_disk_of_the_store_is_full(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.write("app.log", 10)
    rig.write("other.log", 1)
    rig.settle()
    with monkeypatch.context() as patched:
        full(rig, patched)
        rig.truncate("app.log")
        rig.write("app.log", 3)
        rig.write("other.log", 1)
        rig.look(20_000)
        rig.look(20_000)
    rig.settle()
    assert (rig.lost(), rig.doubled(), [gap[1:3] for gap in rig.gaps]) == ([], [], [(30, None)])


def test_an_input_of_files_goes_on_once_the_disk_of_its_store_has_room(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "RETRY_MS", 10)
    rig.write("app.log", 3)

    async def run() -> None:
        with monkeypatch.context() as patched:
            full(rig, patched)
            running = asyncio.create_task(rig.engine.run())
            await asyncio.sleep(0.1)
        async with asyncio.timeout(60):
            while rig.lost():
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait({running})

    rig.run(run())
    assert (rig.lost(), rig.doubled(), rig.gaps) == ([], [], [])


def test_an_input_ends_also_when_it_is_called_as_it_is_cancelled(rig: Rig) -> None:
    """Both in one turn of the loop: a delivery, or a name from inotify, and the end of the service."""
    asleep = asyncio.Event()

    class Call(asyncio.Event):
        async def wait(self) -> Literal[True]:
            asleep.set()
            return await super().wait()

    async def run() -> None:
        rig.engine.wake = Call()
        running = asyncio.create_task(rig.engine.run())
        await asleep.wait()
        await asyncio.sleep(0)
        rig.engine.wake.set()
        running.cancel()
        await asyncio.wait({running}, timeout=60)
        assert running.cancelled()

    rig.run(run())


@pytest.mark.parametrize("include", ["*.log", "*.log*"])
@pytest.mark.parametrize("looks", range(1, 9))
def test_a_file_that_was_copied_and_truncated_before_it_was_read_is_read_once_whoever_is_killed(
    tmp_path: Path, include: str, looks: int
) -> None:
    """A full disk, or another file that fills the outlet, kept the file from being read when rotation copied it."""
    rig = Rig(tmp_path, include)
    rig.look()
    rig.write("app.log", 30, width=100)
    rig.engine.scan()
    copy_and_truncate(rig, "app.log")
    rig.write("app.log", 30, width=100)
    for _ in range(looks):
        rig.look(1_000)
    rig.commit()
    rig.kill()
    rig.settle()
    assert (rig.lost(), rig.doubled(), rig.gaps) == ([], [], [])
    rig.close()


ODD_NAMES = ["b\udcff.log", "new\nline.log", "\x1b[31m.log", 'quote".log', "\u2028.log"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_file_of_any_name_is_read_as_others_are(rig: Rig, name: str) -> None:
    """Any bytes are the name of a file, such as what an old archive has unpacked."""
    rig.write("app.log", 3)
    rig.write(name, 3)
    rig.settle()
    rig.stop()
    rig.write(name, 3)
    rig.settle()
    rig.path(name).rename(rig.path(f"{name}.1"))
    rig.write(name, 3)
    rig.kill()
    rig.settle()
    assert (rig.lost(), rig.doubled(), rig.gaps) == ([], [], [])
    assert str(rig.path(name)) in rig.store.names().values()


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


class AnyOrder(RigMachine):
    """A program writes and rotates its file, while the input looks, is killed, and cannot write, in any order.

    Every line is in the log once, but those that go away before anybody can read them.
    """

    include = "*.log*"

    def __init__(self) -> None:
        super().__init__()
        self._base = tempfile.TemporaryDirectory()
        self.rig = Rig(Path(self._base.name), self.include)
        self.rotated = 0
        self.late: list[bytes] = []
        self.rest = b""  # of the line that is being written
        self.seen: dict[int, BinaryIO] = {}  # files by their inodes, open, so that no other one gets these

    def _note_seen(self) -> None:
        for path in self.rig.path("app.log").parent.glob("app.log*"):
            if path.stat().st_ino not in self.seen:
                self.seen[path.stat().st_ino] = path.open("rb")

    def _forget_seen(self) -> None:
        for file in self.seen.values():
            file.close()
        self.seen = {}

    def _rotate(self) -> str:
        """Make room for ``app.log.1``."""
        self._end_line()
        for number in range(self.rotated, 0, -1):
            for suffix in ("", *(f".{kind}" for kind in PACKERS)):
                with suppress(FileNotFoundError):  # of another name
                    older = self.rig.path(f"app.log.{number + 1}{suffix}")
                    self.rig.path(f"app.log.{number}{suffix}").rename(older)
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

    @precondition(lambda self: self.rig.path("app.log.1").exists())
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

    @precondition(lambda self: self.rotated)
    @rule(kind=st.sampled_from(sorted(PACKERS)), number=st.integers(1, 3))
    def compress(self, kind: str, number: int) -> None:
        path = self.rig.path(f"app.log.{number}")
        if path.exists():
            if path.stat().st_ino not in self.seen:  # nobody can know what of a compressed file was read elsewhere
                self.look(0, scan=True)
            self.rig.compress(path.name, kind)

    @rule(after_ms=st.sampled_from([0, 300, 6_000, 20_000]), scan=st.booleans())
    def look(self, after_ms: int, scan: bool) -> None:
        self.rig.mark(self.rig.path("app.log"))
        self.rig.look(after_ms, scan=scan)
        if scan:
            self._note_seen()

    @rule()
    def commit(self) -> None:
        self.rig.commit()

    @rule()
    def lose_power(self) -> None:
        self.rig.lose_power()
        self._forget_seen()

    def check(self) -> None:
        assert (set(self.rig.lost()) - set(self.late), self.rig.doubled()) == (set(), [])
        assert self.late or not self.rig.gaps

    def teardown(self) -> None:
        try:
            self._end_line()
            self.rig.settle()
            self.check()
        finally:
            self._forget_seen()
            self.rig.close()
            self._base.cleanup()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=40, stateful_step_count=20, deadline=None, derandomize=True)


@pytest.mark.parametrize("again", [False, True])
def test_a_file_that_comes_and_is_rotated_between_two_scans_is_read(narrow: Rig, again: bool) -> None:
    narrow.look()
    narrow.write("new.log", 3)
    narrow.path("new.log").rename(narrow.path("new.log.1"))
    if again:
        narrow.write("new.log", 2)
    narrow.settle()
    assert (narrow.lost(), narrow.doubled(), narrow.gaps) == ([], [], [])


def test_files_that_were_written_in_one_tick_of_the_clock_are_read(narrow: Rig) -> None:
    narrow.write("app.log", 3)
    narrow.look()
    narrow.path("app.log").rename(narrow.path("app.log.2"))
    narrow.write("app.log", 3)
    now = narrow.path("app.log").stat().st_mtime_ns
    os.utime(narrow.path("app.log.2"), ns=(now, now))
    narrow.path("app.log").rename(narrow.path("app.log.1"))
    narrow.write("app.log", 3)
    narrow.settle()
    assert (narrow.lost(), narrow.doubled(), narrow.gaps) == ([], [], [])


def test_what_was_written_between_the_last_look_and_the_copy_is_read_in_the_copy(narrow: Rig) -> None:
    narrow.write("app.log", 3)
    narrow.look()
    narrow.write("app.log", 3)
    narrow.copy("app.log", "app.log.1")
    narrow.truncate("app.log")
    narrow.write("app.log")
    narrow.settle()
    assert (narrow.lost(), narrow.doubled(), narrow.gaps) == ([], [], [])


def test_a_file_of_the_inode_of_one_that_has_ended_is_another_one(narrow: Rig) -> None:
    narrow.write("app.log", 3)
    narrow.look()
    narrow.path("app.log").rename(narrow.path("app.log.1"))
    for _ in range(3):
        narrow.look(20_000)
    inode = narrow.path("app.log.1").stat().st_ino
    narrow.path("app.log.1").unlink()
    narrow.write("app.log", 3)
    if narrow.path("app.log").stat().st_ino != inode:
        pytest.skip("this file system gave it another inode")
    narrow.path("app.log").rename(narrow.path("app.log.1"))
    narrow.settle()
    assert (narrow.lost(), narrow.doubled(), narrow.gaps) == ([], [], [])


@pytest.mark.parametrize("runs", [True, False])
def test_a_new_file_with_the_inode_and_the_lines_of_one_that_is_over_is_read(narrow: Rig, runs: bool) -> None:
    """As of a program that says the same each day: only the time of birth tells the files apart."""
    for _ in range(3):
        narrow.append("job.log", b"done\n")
        narrow.settle()
        if not runs:
            narrow.stop()
        narrow.remove("job.log")
        if runs:
            narrow.settle()
    assert narrow.log.values == [b"done"] * 3
    assert len(narrow.gaps) == (0 if runs else 2), "what it had when it was removed is not known"


@pytest.mark.parametrize("runs", [True, False])
def test_a_line_that_is_written_long_after_a_file_was_renamed_is_read(narrow: Rig, runs: bool) -> None:
    """Of a program that goes on in the file that it has open; nothing else changes in the directory."""
    narrow.write("app.log", 3)
    narrow.look()
    narrow.path("app.log").rename(narrow.path("app.log.1"))
    for _ in range(2):
        narrow.settle()
        if not runs:
            narrow.stop()
        narrow.write("app.log.1", 2)
    narrow.path("app.log.1").rename(narrow.path("app.log.2"))
    narrow.settle()
    narrow.write("app.log.2", 2)
    narrow.settle()
    assert (narrow.lost(), narrow.doubled(), narrow.gaps) == ([], [], [])


def test_what_may_have_been_written_before_a_file_was_truncated_without_a_copy_is_a_gap(narrow: Rig) -> None:
    narrow.write("app.log", 3)
    narrow.settle()
    narrow.write("app.log", 2)
    narrow.truncate("app.log")
    narrow.settle()
    assert [(gap[1:3], "not known" in gap[3]) for gap in narrow.gaps] == [((9, None), True)]


def test_files_go_on_where_they_were_when_their_device_has_another_number(rig: Rig) -> None:
    """As after a start of the machine, which numbers what it mounts."""
    for name in ("app.log", "web.log"):
        rig.write(name, 3)
    rig.append("empty.log", b"")
    rig.settle()
    rig.stop()
    for row in rig.store.sources():
        device, _, rest = row.identity.partition(b",")
        rig.store.note(row._replace(identity=b"%d,%s" % (int(device) + 1, rest)))
    rig.stop()
    for name in ("app.log", "web.log", "empty.log"):
        rig.write(name, 2)
    rig.settle()
    assert (rig.lost(), rig.doubled(), rig.gaps) == ([], [], [])


def test_files_that_come_and_are_removed_while_nothing_can_be_sent_are_read_later(tmp_path: Path) -> None:
    """The outlet is full for a while, and the input goes on looking for files."""
    rig = Rig(tmp_path, "*.log", scan_ms=10)
    rig.look()
    rig.log.has_room = False
    rig.clock_ms = lambda: 1e3 * asyncio.get_running_loop().time()
    rig.write("first.log", 3)

    async def run() -> None:
        running = asyncio.create_task(rig.engine.run())
        async with asyncio.timeout(60):
            for name in ("first.log", "second.log", "third.log"):
                while str(rig.path(name)) not in rig.store.names().values():
                    await asyncio.sleep(0.01)
                if name != "third.log":
                    rig.write(name.replace("first", "second") if name == "first.log" else "third.log", 3)
                rig.path(name).unlink()
            rig.log.open_room()
            while rig.lost():
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait({running})

    rig.run(run())
    assert (rig.lost(), rig.doubled(), rig.gaps) == ([], [], [])
    rig.close()


def fail_to_send(rig: Rig) -> None:
    rig.log.fault = NO_TOPIC


def fail_to_learn_the_topic(rig: Rig) -> None:
    rig.log.unknown = NO_TOPIC


def leave_no_room(rig: Rig) -> None:
    rig.log.has_room = False
    rig.engine._scan_due_ms = 0  # nobody waits for it


def leave_questions_without_an_answer(rig: Rig) -> None:
    rig.log.is_silent = True


def let_blocks_fail_late(rig: Rig) -> None:
    rig.log.held = []


def remove(rig: Rig, name: str) -> None:
    rig.remove(name)


def rename(rig: Rig, name: str) -> None:
    rig.path(name).rename(rig.path(f"moved-{name}.away"))


def rotate_twice(rig: Rig, name: str) -> None:
    rig.path(name).rename(rig.path(f"{name}.1"))
    rig.write(name, 2)
    rig.look(10)
    rig.remove(f"{name}.1")
    rig.path(name).rename(rig.path(f"{name}.1"))


def copy_and_truncate(rig: Rig, name: str) -> None:
    rig.copy(name, f"{name}.1")
    rig.truncate(name)


@pytest.mark.parametrize("rotate", [remove, rename, rotate_twice, copy_and_truncate])
@pytest.mark.parametrize(
    "impede",
    [fail_to_send, fail_to_learn_the_topic, leave_no_room, leave_questions_without_an_answer, let_blocks_fail_late],
)
def test_what_is_rotated_away_while_its_topic_takes_nothing_is_read_however_late(
    tmp_path: Path, impede: Callable[[Rig], None], rotate: Callable[[Rig, str], None]
) -> None:
    """Far longer than ``rotate_ms``: the descriptor has it, so nothing of it is a gap."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as store:
        rig = Rig(tmp_path, "*.log", Path(store), rotate_ms=0)
        rig.write("app.log", 3)
        rig.look()
        rig.stop()
        impede(rig)
        rig.look()
        for name in ("app.log", "new.log"):
            rig.write(name, 3)
            rig.look()
            rotate(rig, name)
        for _ in range(10):
            rig.look(10_000)
        held, rig.log.held = rig.log.held or [], None
        for done, placed in reversed(held):
            done.set_exception(NO_TOPIC)
            del rig.log.values[placed.offset :]
        rig.log.has_room = True
        rig.log.end_silence()
        rig.settle()
        assert (rig.lost(), rig.doubled(), rig.gaps) == ([], [], [])
        rig.close()


def test_a_topic_whose_answer_stays_away_keeps_neither_scans_nor_other_files_waiting(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "*.log")
    rig.topics["slow.log"] = "slow"
    rig.log.is_silent = True
    rig.write("slow.log", 1)
    rig.look()
    rig.log.is_silent = False
    rig.write("app.log", 3)
    rig.look()
    assert rig.lost() == rig.written[:1]
    rig.log.end_silence()
    rig.settle()
    assert (rig.lost(), rig.doubled(), rig.gaps) == ([], [], [])
    rig.close()


def test_a_removed_file_whose_disk_fails_is_a_gap_with_the_reason(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.write("app.log", 3)
    rig.look()
    rig.write("app.log", 3)
    rig.remove("app.log")

    def fail_to_read(fd: int, count: int, at: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", fail_to_read)
        for _ in range(3):
            rig.look(20_000)
    assert rig.gaps == [(str(rig.path("app.log")), 9, None, f"{rig.path('app.log')} cannot be read: {os.strerror(5)}")]


def test_a_file_that_comes_and_is_rotated_while_nothing_runs_is_read(narrow: Rig) -> None:
    narrow.write("app.log", 3)
    narrow.look()
    for number, end in enumerate((narrow.stop, narrow.kill)):
        narrow.write("new.log", 3)
        narrow.path("new.log").rename(narrow.path(f"new.log.{number}"))
        end()
        narrow.settle()
    assert (narrow.lost(), narrow.doubled(), narrow.gaps) == ([], [], [])


def test_rotated_files_that_were_there_at_first_are_not_read_whatever_is_written_to_them(narrow: Rig) -> None:
    narrow.append("app.log.1", b"long ago\n")
    for _ in range(3):
        narrow.look(20_000)
    narrow.append("app.log.1", b"and again\n")
    narrow.write("app.log", 3)
    narrow.path("app.log.1").rename(narrow.path("app.log.2"))
    narrow.settle()
    assert (narrow.log.values, narrow.gaps) == (narrow.written, [])


def test_a_copy_that_somebody_has_made_is_not_read(narrow: Rig) -> None:
    narrow.write("app.log", 3)
    narrow.look()
    narrow.copy("app.log", "app.log.2026")
    for _ in range(6):
        narrow.look(20_000)
    narrow.write("app.log", 3)
    narrow.path("app.log").rename(narrow.path("app.log.1"))
    narrow.settle()
    assert (narrow.lost(), narrow.doubled(), narrow.gaps) == ([], [], [])


def test_a_file_that_begins_as_the_one_before_it_is_read(narrow: Rig) -> None:
    """As programs write that begin each file with a page about themselves."""
    banner = b"# about me\n" * 200
    narrow.append("app.log", banner)
    narrow.write("app.log", 300)
    narrow.look()
    narrow.append("app.log.1", banner)
    narrow.write("app.log.1", 3)
    for _ in range(6):
        narrow.look(20_000)
    assert narrow.lost() == []


def test_lines_of_a_rotated_file_stay_in_its_partition_after_a_kill(narrow: Rig) -> None:
    narrow.write("app.log", 3)
    narrow.look()
    narrow.path("app.log").rename(narrow.path("app.log.1"))
    narrow.write("app.log.1", 3)
    narrow.kill()
    narrow.settle()
    assert narrow.log.keys == [str(narrow.path("app.log")).encode()] * 2
    assert (narrow.lost(), narrow.doubled(), narrow.gaps) == ([], [], [])


class FasterThanScans(AnyOrder):
    """No pattern names what rotation makes; files come and are rotated between any two looks."""

    include = "*.log"

    def __init__(self) -> None:
        super().__init__()
        self.rig.look()  # what rotation made before the first scan of all is not read

    @precondition(lambda self: self.rotated)
    @rule(count=st.integers(1, 3))
    def write_to_the_renamed_file(self, count: int) -> None:
        """Only at once: what comes ``rotate_ms`` after its end is not read."""

    @rule(name=st.sampled_from(["new.log", "other.log"]), count=st.integers(1, 3))
    def come_and_go(self, name: str, count: int) -> None:
        self._end_line()
        self.rig.write(name, count)
        self.rotated += 1
        self.rig.path(name).rename(self.rig.path(f"{name}.{self.rotated}"))


TestFasterThanScans = FasterThanScans.TestCase
TestFasterThanScans.settings = AnyOrder.TestCase.settings
