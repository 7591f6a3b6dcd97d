"""appliance.log.files: names, and descriptors that close themselves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.log.files import (
    File,
    System,
    base_of,
    copy,
    index_path,
    log_path,
    remove,
    replace,
    sizes,
    sync_directory,
    write_at,
)

from ..support.log_batches import batch, open_log, place_all


@pytest.mark.parametrize("base", [0, 1, 1 << 30, (1 << 63) - 1])
def test_names(tmp_path: Path, base: int) -> None:
    path = log_path(tmp_path, base)
    assert len(path.name) == 24 and base_of(path.name, ".log") == base
    assert base_of(index_path(tmp_path, base).name, ".index") == base
    assert base_of(path.name, ".index") is None


@pytest.mark.parametrize(
    "name",
    ["1.log", f"{0:020d}", f"{0:020d}.log.broken", f"{0:021d}.log", "-" + "0" * 19 + ".log", "²" * 20 + ".log", ".log"],
)
def test_other_names_are_no_segments(name: str) -> None:
    assert base_of(name, ".log") is None


def test_sizes_are_ascending_and_ignore_other_files(tmp_path: Path) -> None:
    for base in (500, 0, 90):
        log_path(tmp_path, base).write_bytes(b"x" * (base + 1))
    index_path(tmp_path, 90).write_bytes(b"xx")
    (tmp_path / "recovery-point").touch()
    (tmp_path / f"{7:020d}.log.cut-0").touch()
    logs, indexes = sizes(tmp_path)
    assert list(logs.items()) == [(0, 1), (90, 91), (500, 501)]
    assert indexes == {90: 2}


def test_a_file_is_closed_with_its_last_reference(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    file = File(tmp_path / "file")
    fd = file.fd
    other = file
    del file
    os.fstat(fd)
    assert not os.get_inheritable(fd)
    del other
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


def test_a_file_that_is_missing_leaves_nothing_open(tmp_path: Path) -> None:
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    with pytest.raises(FileNotFoundError):
        File(tmp_path / "nothing")
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before


def test_write_at_writes_all_however_little_is_taken(tmp_path: Path) -> None:
    file = File(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    slow = System(pwrite=lambda fd, data, position: os.pwrite(fd, memoryview(data)[:2], position))
    write_at(file.fd, b"abcdef", 3, slow)
    assert (tmp_path / "file").read_bytes() == b"\0\0\0abcdef"
    sync_directory(tmp_path)


def test_only_the_owner_may_read_what_is_made_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        log = open_log(tmp_path / "t-0")
        log.append(place_all(0, [batch([b"x" * 900])] * 4))
        log.close()
        replace(tmp_path / "t-0" / "producers", b"state")
        copy(File(tmp_path / "t-0" / "producers"), 1, 4, tmp_path / "t-0" / "copy")
    finally:
        os.umask(old)
    assert (tmp_path / "t-0").stat().st_mode & 0o777 == 0o700
    modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "t-0").iterdir()}
    assert set(modes.values()) == {0o600} and len(modes) > 6, modes


def test_replace_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace(path, b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for system in (System(pwrite=fail), System(fsync=fail), System(rename=fail)):  # type: ignore[arg-type]
        with pytest.raises(OSError, match="No space"):
            replace(path, b"new", system)
        assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
    replace(path, b"new")
    assert path.read_bytes() == b"new"
    assert remove(path) and not remove(path)


def test_copy(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(range(256)) * 9000)
    copy(File(tmp_path / "file"), 5, 2_000_000, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "file").read_bytes()[5:2_000_000]
