"""appliance.durable_files: descriptors that close themselves, and files that are replaced whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.durable_files import File, System, copy_range, remove_file, replace_file, sync_directory, write_at

from .support.log_batches import batch, open_log, place_all


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
        replace_file(tmp_path / "t-0" / "producers", b"state")
        copy_range(File(tmp_path / "t-0" / "producers"), 1, 4, tmp_path / "t-0" / "copy")
    finally:
        os.umask(old)
    assert (tmp_path / "t-0").stat().st_mode & 0o777 == 0o700
    modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "t-0").iterdir()}
    assert set(modes.values()) == {0o600} and len(modes) > 6, modes


def test_replace_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for system in (System(pwrite=fail), System(fsync=fail), System(rename=fail)):  # type: ignore[arg-type]
        with pytest.raises(OSError, match="No space"):
            replace_file(path, b"new", system=system)
        assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert remove_file(path) and not remove_file(path)


def test_copy(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(range(256)) * 9000)
    copy_range(File(tmp_path / "file"), 5, 2_000_000, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "file").read_bytes()[5:2_000_000]


def test_a_check_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "state"
    replace_file(path, b"old")

    def check(new: Path) -> None:
        raise ValueError(new.read_bytes())

    with pytest.raises(ValueError, match="new"):
        replace_file(path, b"new", check=check)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_of_several_that_make_a_fresh_file_one_succeeds(tmp_path: Path) -> None:
    path = tmp_path / "state"
    replace_file(path, b"first", fresh=True)
    with pytest.raises(FileExistsError):
        replace_file(path, b"second", fresh=True)
    assert path.read_bytes() == b"first" and list(tmp_path.iterdir()) == [path]


def test_what_others_leave_under_the_temporary_name_is_not_written_to(tmp_path: Path) -> None:
    path, other = tmp_path / "state", tmp_path / "other"
    other.write_bytes(b"kept")
    for leave in (os.symlink, os.link):
        leave(other, tmp_path / "state.tmp")
        replace_file(path, b"new")
        assert other.read_bytes() == b"kept" and path.read_bytes() == b"new" and not path.is_symlink()


@pytest.mark.parametrize(("mode", "expected"), [(0o600, 0o600), (0o644, 0o644), (None, 0o640)])
def test_a_new_file_has_the_mode_that_was_asked_for_or_that_the_umask_leaves(
    tmp_path: Path, mode: int | None, expected: int
) -> None:
    before = os.umask(0o027)
    try:
        replace_file(tmp_path / "state", b"", mode=mode)
    finally:
        os.umask(before)
    assert (tmp_path / "state").stat().st_mode & 0o777 == expected
