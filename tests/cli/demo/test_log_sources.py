"""appliance.cli.demo.log_sources: which lines the demo ships."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer import BadParameter

from appliance.cli.demo import log_sources
from appliance.cli.demo.log_sources import find, plan, read_lines, shipped


def test_find_takes_text_and_leaves_the_rest(tmp_path: Path) -> None:
    (tmp_path / "apt").mkdir()
    (tmp_path / "apt" / "big.log").write_bytes(b"x" * 4095 + "é".encode() + b"\n")  # a character cut by the probe
    (tmp_path / "small.log").write_text("one line\n")
    (tmp_path / "empty.log").touch()
    (tmp_path / "packed.xz").write_bytes(b"\xfd7zXZ\0\0")
    (tmp_path / "link").symlink_to(tmp_path / "small.log")
    assert [path.name for path in find(tmp_path)] == ["small.log", "big.log"]


def test_small_logs_are_repeated_and_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("1\n2\n")
    made = plan([path], lines_min=5)
    assert (made.lines, made.size, len(made.sources)) == (6, 6, 3)
    assert "3 times over" in made.remark
    assert [source.name for source in made.sources] == [str(path), f"{path}#2", f"{path}#3"]
    assert sum(1 for _ in shipped(made.sources)) == 6


def test_large_logs_are_cut_and_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_sources, "LINES_MAX", 10)
    path = tmp_path / "a.log"
    path.write_text("line\n" * 100)
    made = plan([path], lines_min=5)
    assert (made.lines, made.remark) == (10, "the first 10 of their 11 lines")


def test_every_source_keeps_its_order_and_numbers(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text("".join(f"{name}{number}\n" for number in range(1, 1800)))
    sources = plan([tmp_path / "a", tmp_path / "b"], lines_min=1).sources
    seen: dict[str, list[int]] = {}
    for source, number, line in shipped(sources):
        assert line == f"{source.path.name}{number}".encode()
        seen.setdefault(source.name, []).append(number)
    assert list(seen.values()) == [list(range(1, 1800))] * 2


def test_lines_are_shipped_as_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"windows\r\n\n\xff\xfe\nno end")
    assert list(read_lines(path)) == [b"windows\r", b"", b"\xff\xfe", b"no end"]


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        plan([tmp_path / "none"], lines_min=1)
    (tmp_path / "empty").touch()
    with pytest.raises(BadParameter, match="not one line"):
        plan([tmp_path / "empty"], lines_min=1)
