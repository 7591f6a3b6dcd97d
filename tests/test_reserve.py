"""appliance.reserve: on a disk that is full to the last block, deletions are still noted, and nothing else is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance import catalog as catalogs
from appliance import reserve
from appliance.catalog import Catalog, CatalogChange, Removal, Topic, new_id
from appliance.errors import DiskFull
from appliance.reserve import RESERVE_BYTES, RESERVE_NAME, with_reserve

from .support.command_line import run, succeeding
from .support.server import wait_for
from .support.small_machine import fill, small_machine


def test_the_reserve_is_made_once_and_only_where_there_is_plenty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reserve, "PLENTY", 1 << 40)
    reserve.fill(tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(reserve, "PLENTY", 1)
    reserve.fill(tmp_path)
    made = (tmp_path / RESERVE_NAME).stat()
    assert (made.st_size, made.st_blocks * 512 >= RESERVE_BYTES, made.st_mode & 0o77) == (RESERVE_BYTES, True, 0)
    reserve.fill(tmp_path)
    assert (tmp_path / RESERVE_NAME).stat().st_ino == made.st_ino

    def no_room(*_: int) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / RESERVE_NAME).unlink()
    monkeypatch.setattr(os, "posix_fallocate", no_room)
    reserve.fill(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_it_is_spent_by_what_finds_no_room_and_only_once(tmp_path: Path) -> None:
    tries: list[bool] = []

    def do() -> str:
        tries.append((tmp_path / RESERVE_NAME).exists())
        if tries[-1]:
            raise DiskFull("full")
        return "done"

    (tmp_path / RESERVE_NAME).write_bytes(b"room")
    assert with_reserve(tmp_path, do) == "done" and tries == [True, False]

    def refused() -> None:
        raise DiskFull("full")

    with pytest.raises(DiskFull):
        with_reserve(tmp_path, refused)


def test_the_catalog_spends_it_for_removals_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = Catalog.load(tmp_path)
    topic = Topic("web", {0: [0]}, {}, new_id())
    catalog.change(CatalogChange(put=topic))
    room = tmp_path / RESERVE_NAME
    room.write_bytes(b"room")
    replace = catalogs.replace_data_file

    def replace_file(path: Path, content: bytes) -> None:
        if room.exists():
            raise DiskFull("full")
        replace(path, content)

    monkeypatch.setattr(catalogs, "replace_data_file", replace_file)
    with pytest.raises(DiskFull):
        catalog.change(CatalogChange(put=Topic("more", {0: [0]}, {}, new_id())))
    assert room.exists() and list(catalog.topics) == ["web"]
    catalog.change(CatalogChange(drop="web", note=Removal("web", topic.id, [0])))
    assert not room.exists() and Catalog.load(tmp_path).topics == {}


def test_a_topic_is_deleted_on_a_full_disk_and_makes_room_at_once(tmp_path: Path) -> None:
    with (
        small_machine(tmp_path, disk="160m") as machine,
        machine.server(tmp_path / "log", **{"disk.check_ms": 100}) as server,
    ):
        at = ("--data", str(server.data_dir))
        for topic in ("big", "small"):
            succeeding("topics", "create", topic, *at)
            succeeding("produce", topic, *at, stdin=b"x" * 999 + b"\n" + (b"y" * 999 + b"\n") * 20_000)
        wait_for(lambda: (server.data_dir / RESERVE_NAME).exists(), "the reserve")
        fill(machine.path / "other")
        assert "DiskFull" in {row["condition"] for row in run("doctor", "--json", *at).json}
        said = run("topics", "create", "more", *at)
        assert said.status == 75
        assert succeeding("topics", "list", "--json", *at).json[0]["name"] == "big"
        succeeding("topics", "delete", "big", "--yes", *at)
        assert not (server.data_dir / "big-0").exists()
        names = [row["name"] for row in succeeding("topics", "list", "--json", *at).json]
        assert names == ["small"]
        wait_for(lambda: not list(server.data_dir.glob("*.deleted")), "the files to be deleted")
        succeeding("produce", "small", *at, stdin=b"there is room\n")
