"""appliance.data_directory.data_format: an older release refuses the directory of a newer one, and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance import __version__
from appliance.data_directory import FORMAT, check_format, data_format, take_format
from appliance.errors import ConfigFault, DiskFull, StorageFault

from ..support.command_line import run
from ..support.server import NotServing, Server


def note(directory: Path, **keys: object) -> Path:
    path = directory / "format.json"
    path.write_text(json.dumps(keys))
    return path


def test_a_directory_gets_the_format_and_the_release(tmp_path: Path) -> None:
    take_format(tmp_path)
    assert json.loads((tmp_path / "format.json").read_text()) == {"format": FORMAT, "release": __version__}
    note(tmp_path, format=FORMAT, release="0.0.9")
    check_format(tmp_path)
    take_format(tmp_path)
    assert json.loads((tmp_path / "format.json").read_text())["release"] == __version__


def test_a_start_after_the_first_writes_nothing(tmp_path: Path) -> None:
    take_format(tmp_path)
    before = (tmp_path / "format.json").stat()
    take_format(tmp_path)
    after = (tmp_path / "format.json").stat()
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns), "it was written"  # it may be read


@pytest.mark.parametrize("number", [0, -1, FORMAT + 1, 99])
def test_another_format_is_refused_with_what_to_do(tmp_path: Path, number: int) -> None:
    path = note(tmp_path, format=number, release="9.1.0")
    before = path.read_bytes()
    for refuse in (check_format, take_format):
        with pytest.raises(ConfigFault, match=r"9\.1\.0 or newer again, or restore a backup") as raised:
            refuse(tmp_path)
        assert raised.value.exit_status == 78 and str(tmp_path) in str(raised.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content", [b"", b"1\n", b'{"format": "1", "release": "0.1.0"}', b'{"format": 1}', b"\xff\xfe"]
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "format.json").write_bytes(content)
    with pytest.raises(StorageFault, match=r"format\.json"):
        take_format(tmp_path)


def test_a_full_disk_does_not_prevent_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, content: bytes) -> None:
        raise DiskFull("no room")

    monkeypatch.setattr(data_format, "replace_data_file", refuse)
    take_format(tmp_path)
    assert not (tmp_path / "format.json").exists()


def test_a_start_and_a_backup_refuse_a_newer_directory(make_appliance: Callable[..., Server], tmp_path: Path) -> None:
    server = make_appliance()
    server.stop()
    note(server.data_dir, format=FORMAT + 1, release="0.9.0")
    kept = {path: path.read_bytes() for path in server.data_dir.rglob("*") if path.is_file() and path.name != "lock"}
    with pytest.raises(NotServing, match=r"exit status 78(.|\n)*install 0\.9\.0 or newer again"):
        server.start()
    assert {path: path.read_bytes() for path in kept} == kept
    said = run("backup", str(tmp_path / "copy"), "--data", str(server.data_dir))
    assert said.status == 78 and "0.9.0" in said.err and not (tmp_path / "copy").exists()
