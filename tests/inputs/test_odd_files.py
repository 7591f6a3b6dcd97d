"""What a pattern names and is no file, or none that ends: it is told, not waited for, and other files are read."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.inputs.outlet import Placed

from ..support.spending import spent_by
from .files_rig import Rig


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        here = Path.cwd()
        os.chdir(path.parent)  # the names of sockets are short
        try:
            sock.bind(path.name)
        finally:
            os.chdir(here)


def make_device(path: Path) -> None:
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))  # as /dev/zero
    except PermissionError:
        pytest.skip("needs root, to make a device")


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


KINDS: dict[str, tuple[Callable[[Path], None], str]] = {
    "FIFO": (make_fifo, "is no regular file"),
    "socket": (make_socket, "is no regular file"),
    "device": (make_device, "is no regular file"),
    "link to a device": (lambda path: path.symlink_to("/dev/zero"), "is no regular file"),
    "link to a terminal": (lambda path: path.symlink_to("/dev/tty"), "is no regular file"),
    "directory": (Path.mkdir, "is no regular file"),
    "loop": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
    "loop of two": (
        lambda path: (path.symlink_to("back"), path.with_name("back").symlink_to(path.name))[0],
        "Too many levels of symbolic links",
    ),
    "link to nothing": (lambda path: path.symlink_to("nothing"), "No such file or directory"),
}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_told_and_not_waited_for(rig: Rig, kind: str) -> None:
    make, reason = KINDS[kind]
    make(rig.path("odd.log"))
    rig.write("app.log", 3)
    rig.settle()
    assert (rig.lost(), rig.doubled(), rig.gaps) == ([], [], [])
    assert rig.told.unread == f"{rig.path('odd.log')}: {reason}"


@pytest.mark.parametrize("kind", KINDS)
def test_what_takes_the_name_of_a_file_and_gives_it_back(rig: Rig, kind: str) -> None:
    """The file goes on under the name that it got, and the one after it from its beginning."""
    rig.write("app.log", 3)
    rig.settle()
    rig.path("app.log").rename(rig.path("app.log.1"))
    KINDS[kind][0](rig.path("app.log"))
    rig.write("app.log.1", 3)
    rig.settle()
    assert rig.told.unread.startswith(f"{rig.path('app.log')}: ")
    rig.kill()
    rig.settle()
    odd = rig.path("app.log")
    odd.rmdir() if odd.is_dir() else odd.unlink()
    rig.write("app.log", 3)
    rig.settle()
    assert (rig.lost(), rig.doubled(), rig.gaps, rig.told.unread) == ([], [], [], "")


def test_a_file_that_grows_as_fast_as_it_is_read_keeps_no_other_from_being_read(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.append("a-endless.log", b"first\n")
    send = rig.log.send

    def send_and_write(*block: Any) -> asyncio.Future[Placed]:
        rig.append("a-endless.log", b"and another one" * 20_000 + b"\n")
        return send(*block)

    monkeypatch.setattr(rig.log, "send", send_and_write)
    rig.look()
    before = len(rig.log.values)
    rig.write("app.log", 3)
    rig.look(20_000)
    assert len(rig.log.values) > before + 3, "both are read"
    assert rig.lost() == []


def read_beside_a_hole() -> None:
    with tempfile.TemporaryDirectory() as directory, contextlib.closing(Rig(Path(directory))) as rig:
        with rig.path("a-sparse.log").open("wb") as file:
            file.truncate(1 << 40)
        rig.write("app.log", 3)
        rig.look()
        assert (rig.lost(), len(rig.log.values)) == ([], 3)


def test_a_file_of_nothing_but_a_hole_keeps_no_other_from_being_read_and_takes_no_memory() -> None:
    (spent,) = spent_by(read_beside_a_hole, [()])
    assert spent.error == "" and spent.peak_bytes < 16 << 20


def test_a_hole_that_truncation_has_left_is_skipped_whatever_its_size_and_whenever_the_input_is_killed(
    rig: Rig,
) -> None:
    """As of a program that does not append: copytruncate leaves it as many NUL bytes as it had written."""
    size = 10_000_000
    with rig.path("app.log").open("wb") as file:
        file.truncate(size)
    rig.look()
    rig.kill()
    with rig.path("app.log").open("r+b") as file:
        file.truncate(2 * size)
    rig.write("app.log", 3)
    rig.settle()
    assert (rig.lost(), rig.log.values) == ([], rig.written)
    ends = [gap[1:3] for gap in rig.gaps]
    assert [stop for _, stop in ends] == [start for start, _ in ends[1:]] + [2 * size]
