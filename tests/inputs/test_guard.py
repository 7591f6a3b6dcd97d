"""Which files an input reads, where others may put links among the logs."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.errors import FileNotPermitted
from appliance.inputs import guard as module
from appliance.inputs.guard import OF_THE_DATA, SECRET, Guard

from .files_rig import Rig

OTHER, SERVICE = 2_001, 2_002
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")


@pytest.fixture(params=["*.log*", "*.log"])
def rig(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Rig]:
    """An application of another user writes logs, with a link to a file of this user among them."""
    made = Rig(tmp_path, request.param)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "security.json").write_bytes(b"the secret\n")
    (tmp_path / "mine.txt").write_bytes(b"mine\n")
    yield made
    made.close()


def link(path: Path, target: Path, owner: int = OTHER) -> None:
    path.symlink_to(target)
    os.chown(path, owner, owner, follow_symlinks=False)


def read(guard: Guard, path: Path) -> bytes:
    fd = guard.open(str(path))
    try:
        return os.read(fd, 1_000)
    finally:
        os.close(fd)


@as_root
@pytest.mark.parametrize("target", ["data/security.json", "mine.txt"])
def test_a_link_of_another_user_to_a_file_that_is_not_his_is_not_followed(rig: Rig, target: str) -> None:
    link(rig.path("evil.log"), rig.directory.parent / target)
    rig.write("app.log", 3)
    rig.settle()
    assert rig.log.values == rig.written
    assert f"{rig.path('evil.log')}: is a symbolic link of the user 2001 to a file of root" in rig.told.unread


@as_root
def test_a_service_that_is_not_root_does_not_read_its_secrets_into_a_topic() -> None:
    """It may open them, so that only the guard is in the way."""
    base = Path(tempfile.mkdtemp())
    try:
        secret = base / "security.json"
        secret.write_bytes(b"the secret")
        secret.chmod(0o600)
        link(base / "evil.log", secret)
        link(base / "own.log", secret, SERVICE)
        for path in (base, secret):
            os.chown(path, SERVICE, SERVICE)
        child = os.fork()
        if not child:
            status = 1
            try:
                os.setgid(SERVICE)
                os.setuid(SERVICE)
                with contextlib.suppress(FileNotPermitted):
                    Guard().open(str(base / "evil.log"))
                    status = 2
                if status == 1 and read(Guard(), base / "own.log") == b"the secret":
                    status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        shutil.rmtree(base)


@as_root
def test_a_link_of_another_user_keeps_no_file_from_being_read(tmp_path: Path) -> None:
    """It comes first by its name, and leads to a file that another pattern names."""
    rig = Rig(tmp_path)
    rig.write("app.log", 3)
    link(rig.path("a.log"), rig.path("app.log"))
    rig.settle()
    assert (rig.lost(), rig.doubled()) == ([], [])
    rig.close()


@pytest.fixture
def open_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where others reach the directory: pytest's own is closed to them, and root acts as they do."""
    monkeypatch.setattr(module, "acting_as_owner", lambda _: contextlib.nullcontext())


@as_root
@pytest.mark.usefixtures("open_way")
def test_links_of_root_and_to_files_of_their_owner_are_followed(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    for name, owner in (("theirs", OTHER), ("roots", 0)):
        (tmp_path / name).write_bytes(name.encode() + b"\n")
        os.chown(tmp_path / name, owner, owner)
        link(rig.path(f"{name}.log"), tmp_path / name, owner)
    link(rig.path("both.log"), rig.path("theirs.log"), 0)
    rig.settle()
    assert (sorted(rig.log.values), rig.told.unread) == ([b"roots", b"theirs"], "")
    rig.close()


@as_root
@pytest.mark.usefixtures("open_way")
def test_a_link_to_a_directory_is_judged_by_the_file_that_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for name, owner in (("mine.txt", 0), ("theirs.txt", OTHER)):
        (tmp_path / "mine" / name).write_bytes(b"x")
        os.chown(tmp_path / "mine" / name, owner, owner)
    link(tmp_path / "link", tmp_path / "mine")
    assert read(Guard(), tmp_path / "link" / "theirs.txt") == b"x"
    with pytest.raises(FileNotPermitted, match="symbolic link of the user 2001"):
        Guard().open(str(tmp_path / "link" / "mine.txt"))


@as_root
@pytest.mark.parametrize("kind", ["rotated", "compressed"])
def test_a_link_under_a_name_that_rotation_gives_is_not_followed(rig: Rig, kind: str) -> None:
    """Also where the engine looks beside a file for what it has become."""
    rig.write("app.log", 3)
    rig.look()
    rig.commit()
    name = "app.log.1" if kind == "rotated" else "app.log.1.gz"
    rig.path("app.log").rename(rig.directory.parent / "gone")
    link(rig.path(name), rig.directory.parent / "gone")
    rig.append("../gone", b"appended\n")
    rig.kill()
    rig.settle()
    assert b"appended" not in rig.log.values


def test_files_of_the_data_directory_are_not_read_whoever_links_to_them(rig: Rig) -> None:
    data = rig.directory.parent / "data" / "security.json"
    rig.path("soft.log").symlink_to(data)
    rig.path("hard.log").hardlink_to(data)
    (rig.directory.parent / "way").symlink_to(data.parent)
    rig.path("way.log").symlink_to("../way/security.json")
    rig.write("app.log", 3)
    rig.settle()
    assert rig.log.values == rig.written
    assert OF_THE_DATA in rig.told.unread
    for name in ("soft.log", "hard.log", "way.log"):
        with pytest.raises(FileNotPermitted, match=OF_THE_DATA):
            rig.guard.open(str(rig.path(name)))


def test_a_hard_link_to_a_new_file_of_the_data_directory_is_known_at_the_next_scan(rig: Rig) -> None:
    rig.append("first", b"x")
    rig.path("first.log").hardlink_to(rig.path("first"))
    rig.settle()
    fresh = rig.directory.parent / "data" / "fresh"
    fresh.write_bytes(b"also secret\n")
    rig.path("fresh.log").hardlink_to(fresh)
    rig.settle()
    assert b"also secret" not in rig.log.values


def test_files_of_tls_are_not_read(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_bytes(b"private")
    guard = Guard(secrets=[str(key), "", str(tmp_path / "none.pem")])
    (tmp_path / "a.log").symlink_to(key)
    (tmp_path / "b.log").hardlink_to(key)
    for name in ("key.pem", "a.log", "b.log"):
        with pytest.raises(FileNotPermitted) as fault:
            guard.open(str(tmp_path / name))
        assert str(fault.value) == SECRET


@as_root
def test_a_file_that_becomes_a_link_once_it_was_judged_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, secret = tmp_path / "app.log", tmp_path / "secret"
    log.write_bytes(b"a line")
    secret.write_bytes(b"the secret")
    judge = module._check_links

    def judged_and_exchanged(found: module._Found) -> None:
        judge(found)
        log.unlink()
        link(log, secret)

    monkeypatch.setattr(module, "_check_links", judged_and_exchanged)
    with pytest.raises(OSError, match="symbolic links"):
        Guard().open(str(log))


@pytest.mark.parametrize("way", ["/", "..", "a/../a/x.log", "loop", "none", "a/" * 300 + "x"])
def test_odd_paths_are_errors_of_the_system(tmp_path: Path, way: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.log").write_bytes(b"x")
    (tmp_path / "loop").symlink_to("loop")
    if way.endswith("x.log"):
        assert read(Guard(), tmp_path / way) == b"x"
        return
    (tmp_path / "a" / "a").symlink_to("../a")
    with pytest.raises((OSError, FileNotPermitted)):
        Guard().open(str(tmp_path / way))


def test_nothing_stays_open(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_bytes(b"x")
    (tmp_path / "way.log").symlink_to("x.log")
    guard = Guard(tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for name in ("x.log", "way.log", "none.log"):
        with pytest.raises((OSError, FileNotPermitted)):
            guard.open(str(tmp_path / name))
    assert len(list(Path("/proc/self/fd").iterdir())) == before
