"""appliance.log.files: names of the files of a log."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.log.files import base_of, index_path, log_path, sizes


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
