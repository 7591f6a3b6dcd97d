"""appliance.log.page_cache and File.read: only what is in memory is read, and a reader always goes on."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from appliance import libc
from appliance.durable_files import System
from appliance.log.page_cache import (
    AHEAD_MAX,
    SAMPLE_BYTES,
    TO_OPEN_MAX,
    Brought,
    FileToOpen,
    LogFile,
    NamesInMemory,
    NotInMemory,
)

from ..support.cold_files import drop
from ..support.server import wait_for

SIZE = 3 << 20
DATA = os.urandom(SIZE)


@pytest.fixture(params=["counted", pytest.param("sampled", marks=pytest.mark.long)])
def cold(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LogFile:
    """A file of which nothing is in memory; the kernel counts its pages, or does not.

    Where it does not, a byte is tried with RWF_NOWAIT: the kernel begins to read it, and a fast disk may have it at
    once.  So now and then one is there that should not be, and these run with ``LONG=1`` only.
    """
    path = tmp_path / "log"
    path.write_bytes(DATA)
    if request.param == "sampled":
        monkeypatch.setattr(libc, "pages_counted", lambda *_: -1)
    drop([path])
    file = LogFile(path)
    file.do_not_wait()
    return file


def bring(file: LogFile, start: int, stop: int) -> None:
    """As a thread and the loop do, and the next turn."""
    assert file.memory is not None
    assert os.pread(file.fd, stop - start, start) == DATA[start:stop]
    file.memory.bring(file.fd, Brought(start, stop, stop, None))
    file.memory.brought = 0, 0


def test_what_was_brought_can_be_read_and_nothing_else(cold: LogFile) -> None:
    for position, count in ((0, 1), (SIZE - 1, 1), (1 << 20, 1 << 20)):
        assert cold.sendable_bytes(position, count) == 0
        with pytest.raises(NotInMemory) as missing:
            cold.read(count, position)
        assert missing.value.cold == (cold, position, count)
    bring(cold, 0, 1 << 20)
    assert cold.sendable_bytes(0, SIZE) == 1 << 20
    assert cold.sendable_bytes(5_000, 100_000) == 100_000
    assert cold.sendable_bytes(1 << 20, 4096) == 0
    for position, count in ((0, 1 << 20), (1, 61), (SAMPLE_BYTES, 2 * SAMPLE_BYTES)):
        assert cold.read(count, position) == DATA[position : position + count]


def test_some_of_a_range_is_found_where_the_first_of_it_is_in_memory(cold: LogFile) -> None:
    bring(cold, 0, 80_000)
    bytes_there = cold.sendable_bytes(100, SIZE)
    assert bytes_there >= 4096
    assert cold.sendable_bytes(70_000, SIZE) > 0


def test_a_file_ends_where_it_ends(cold: LogFile) -> None:
    bring(cold, SIZE - 8192, SIZE)
    assert cold.read(100_000, SIZE - 61) == DATA[-61:]
    assert cold.read(10, SIZE) == cold.read(10, SIZE + 4096) == b""
    assert cold.sendable_bytes(SIZE - 10, 100_000) in (10, 100_000)
    assert cold.sendable_bytes(SIZE, 7) == 7, "sendfile finds out"


def test_a_fault_is_told_once_to_who_reads_there(cold: LogFile) -> None:
    assert cold.memory is not None
    fault = OSError(errno.EIO, "the disk fails")
    bring(cold, 0, 8192)
    cold.memory.bring(cold.fd, Brought(0, 8192, 8192, fault))
    cold.memory.brought = 0, 0
    assert cold.read(100, 0) == DATA[:100], "before it all is well"
    for ask in (lambda: cold.read(100, 8150), lambda: cold.sendable_bytes(8192, 100_000)):
        cold.memory.bring(cold.fd, Brought(0, 8192, 8192, fault))
        cold.memory.brought = 0, 0
        with pytest.raises(OSError, match="the disk fails"):
            ask()
        assert cold.sendable_bytes(8192, 100) in (0, 100), "the disk may be well again"


def test_what_is_on_its_way_is_not_there_before_it_was_read(cold: LogFile) -> None:
    """Goal: nobody waits for pages that the kernel has begun to read, though it counts them."""
    assert cold.memory is not None
    bring(cold, 0, SIZE)
    cold.memory.bring(cold.fd, Brought(0, 8192, 1 << 20, None))
    cold.memory.bring(cold.fd, Brought(2 << 20, 2 << 20, SIZE, None))
    cold.memory.brought = 0, 0
    assert (
        cold.sendable_bytes(0, SIZE) == 4096
        and cold.sendable_bytes(8192, 1) == cold.sendable_bytes((1 << 20) - 1, 1) == 0
    )
    assert cold.sendable_bytes(1 << 20, SIZE) == 1 << 20
    with pytest.raises(NotInMemory):
        cold.read(61, 2 << 20)
    cold.memory.bring(cold.fd, Brought(100_000, 200_000, 300_000, None))
    cold.memory.brought = 0, 0
    assert [cold.sendable_bytes(at, 1) for at in (50_000, 150_000, 250_000, 350_000, 1 << 20, SIZE - 1)] == [
        0,
        1,
        0,
        0,
        1,
        0,
    ]
    bring(cold, 8192, SIZE)
    assert cold.sendable_bytes(0, SIZE) == 1 << 20


def test_what_is_on_its_way_for_many_readers_is_bounded(cold: LogFile) -> None:
    assert cold.memory is not None
    for number in range(2 * AHEAD_MAX):
        cold.memory.bring(cold.fd, Brought(8192 * number, 8192 * number, 8192 * number + 4096, None))
    assert len(cold.memory._ahead) == AHEAD_MAX


@pytest.mark.long  # it tries bytes, too
def test_what_was_read_just_now_is_believed(cold: LogFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a reader goes on where the kernel does not say what it has, as in an overlay, or drops it at once."""
    assert cold.memory is not None
    monkeypatch.setattr(libc, "pages_counted", lambda *_: 0)
    cold.memory.bring(cold.fd, Brought(4096, 12288, 12288, None))
    assert cold.sendable_bytes(4096, SIZE) == 8192 and cold.sendable_bytes(0, 1) == 0
    assert cold.read(8192, 4096) == DATA[4096:12288]
    cold.memory.brought = 0, 0
    assert cold.sendable_bytes(4096, 8192) == 8192, (
        "from now on bytes are tried: the kernel counted none of what was read"
    )
    assert cold.sendable_bytes(1 << 20, 100) == 0


def test_a_file_system_that_cannot_say_is_waited_for(cold: LogFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def preadv(fd: int, buffers: Sequence[Any], position: int, flags: int = 0) -> int:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(libc, "pages_counted", lambda *_: -1)
    bring(cold, 0, 4096)
    monkeypatch.setattr(os, "preadv", preadv)
    assert cold.sendable_bytes(0, SIZE) == SIZE
    assert cold.memory is None
    assert cold.read(SIZE, 0) == DATA


def test_nobody_else_is_kept_from_waiting(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(DATA)
    drop([path])
    file = LogFile(path)
    assert file.sendable_bytes(0, SIZE) == SIZE and file.read(SIZE, 0) == DATA


# ---- names


@pytest.fixture
def unnamed() -> Iterator[Path]:
    """A file whose name nobody has looked up yet: that of a process which began just now."""
    with subprocess.Popen(["sleep", "60"]) as child:
        stat = Path(f"/proc/{child.pid}/stat")
        wait_for(lambda: "(sleep)" in stat.read_text(), "the process to be called so, a moment after its exec")
        yield Path(f"/proc/{child.pid}/task/{child.pid}/comm")
        child.kill()


def test_a_file_is_opened_only_if_its_names_are_in_memory(unnamed: Path, tmp_path: Path) -> None:
    """Goal: whoever must not wait asks for a look-up, once however many ask, and goes on whatever came of it."""
    known = tmp_path / "log"
    known.touch()
    system = System(open=NamesInMemory().open)
    LogFile(known, system)
    asked = []
    for _ in range(2):
        with pytest.raises(NotInMemory) as missing:
            LogFile(unnamed, system)
        asked.append(missing.value.cold)
    (to_open, position, count), other = asked
    assert isinstance(to_open, FileToOpen) and to_open is other.file and position == count == 0
    to_open.look_up()
    assert LogFile(unnamed, system).read(10, 0) == b"sleep\n"


def test_a_file_that_cannot_be_opened_is_told_of_behind_its_look_up(unnamed: Path) -> None:
    system = System(open=NamesInMemory().open)
    missing_file = unnamed.with_name("missing")
    with pytest.raises(NotInMemory) as missing:
        LogFile(missing_file, system)
    to_open = missing.value.cold.file
    assert isinstance(to_open, FileToOpen)
    with pytest.raises(FileNotFoundError):
        to_open.look_up()
    with pytest.raises(FileNotFoundError):
        LogFile(missing_file, system)


def test_files_that_nobody_comes_back_for_are_forgotten(unnamed: Path) -> None:
    names = NamesInMemory()
    for number in range(2 * TO_OPEN_MAX):
        with pytest.raises(NotInMemory):
            names.open(unnamed.with_name(f"missing-{number}"), os.O_RDONLY, 0)
    assert len(names._to_open) == TO_OPEN_MAX


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM, errno.EINVAL])
def test_a_kernel_that_cannot_be_asked_for_names_is_waited_for(
    unnamed: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, "refused")

    monkeypatch.setattr(libc, "open_without_waiting", refuse)
    assert LogFile(unnamed, System(open=NamesInMemory().open)).read(10, 0) == b"sleep\n"
