"""The example of appliance/README.md, "Killed between write and publish", is what the code does."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from appliance.config import TopicSettings
from appliance.errors import CorruptLog
from appliance.log import Log
from appliance.log.recovery import HIGH_WATERMARK, Point

from ..support.log_batches import batch, open_log, place_all

PAGE = Path(__file__).parents[2] / "appliance" / "README.md"
SECTION = PAGE.read_text().split("## Killed between write and publish")[1].split("\n## ")[0]
LOG = f"{0:020d}.log"
A, B = batch([b"GET /", b"GET /a"]), batch([b"GET /b"])


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return open_log(tmp_path / "web-0", TopicSettings())


def row(number: int) -> list[int]:
    """Bytes of the file, FLUSHED, HIGH_WATERMARK and the table's HIGH_WATERMARK in a step of the page's table."""
    (line,) = (line for line in SECTION.splitlines() if line.startswith(f"| {number}. "))
    return [int(digits) for digits in re.findall(r"\d+", line.split("|", 2)[2])]


def found(log: Log, shown: int) -> list[int]:
    point = Point.read(log.path)
    return [(log.path / LOG).stat().st_size, point.flushed, point.cells[HIGH_WATERMARK], shown]


def killed_in_step_5(log: Log) -> Path:
    """The directory after A was published and B was written."""
    assert found(log, 0) == row(1)
    log.append(place_all(log.end_offset, [A]))
    assert found(log, 0) == row(2)
    log.flush()
    assert found(log, 0) == row(3)
    log.raise_high_watermark(log.end_offset)
    assert found(log, log.high_watermark) == row(4)
    log.append(place_all(log.end_offset, [B]))
    assert found(log, log.high_watermark) == row(5)
    return log.path


def reopened(directory: Path, tmp_path: Path, content: bytes) -> Log:
    copy = tmp_path / "copy" / "web-0"
    shutil.copytree(directory, copy)
    (copy / LOG).write_bytes(content)
    return open_log(copy, TopicSettings())


def test_the_bytes_are_those_of_the_page(log: Log) -> None:
    written = (killed_in_step_5(log) / LOG).read_bytes()
    assert f"A has {len(A)} bytes and B {len(B)}" in SECTION
    assert int.from_bytes(written[:8], "big") == 84 and "84 and 85" in SECTION
    shown = re.findall(r"^((?:[0-9a-f]{2} )+) ", SECTION, re.MULTILINE)
    listed = bytes.fromhex("".join(shown))
    assert len(listed) == 21 and written[len(A) :].startswith(listed)


def test_a_whole_batch_stays(log: Log, tmp_path: Path) -> None:
    directory = killed_in_step_5(log)
    after = reopened(directory, tmp_path, (directory / LOG).read_bytes())
    assert (after.end_offset, after.flushed, after.records) == (160, 160, 3)


def test_a_torn_batch_is_truncated(log: Log, tmp_path: Path) -> None:
    directory = killed_in_step_5(log)
    after = reopened(directory, tmp_path, (directory / LOG).read_bytes()[:140])
    assert (after.end_offset, after.flushed, after.records) == (86, 86, 2)
    assert (after.path / LOG).stat().st_size == 86


def test_damage_below_the_trusted_point_is_refused(log: Log, tmp_path: Path) -> None:
    directory = killed_in_step_5(log)
    content = bytearray((directory / LOG).read_bytes())
    content[70] ^= 1
    with pytest.raises(CorruptLog, match="CRC32C"):
        reopened(directory, tmp_path, bytes(content))
    assert (tmp_path / "copy" / "web-0" / LOG).stat().st_size == 160
