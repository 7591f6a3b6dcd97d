"""appliance.log.scrub: every damaged batch below the high watermark is found, in steps of bounded size."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.log import Log
from appliance.log import scrub as scrub_module
from appliance.log.files import log_path
from appliance.log.scrub import DamagedRange, scrub, still_damaged

from .log_batches import batch, filled

RAWS = [batch([b"%d" % number * 60] * (number % 3 + 1), number) for number in range(20)]


def boundaries() -> list[int]:
    ends = [0]
    for raw in RAWS:
        ends.append(ends[-1] + len(raw))
    return ends


def damage(log: Log, offset: int) -> None:
    base = max(base for base in log.bases if base <= offset)
    with log_path(log.path, base).open("r+b") as file:
        file.seek(offset - base)
        byte = file.read(1)
        file.seek(offset - base)
        file.write(bytes([byte[0] ^ 0x55]))


def found(log: Log, start: int = 0, paces: list[int] | None = None) -> list[DamagedRange]:
    pace = (lambda size: None) if paces is None else paces.append
    return list(scrub(log.path, log.bases, start, log.high_watermark, pace))


@given(data=st.data())
def test_every_damaged_batch_is_found_and_no_other(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = filled(tmp_path_factory.mktemp("log"), RAWS)
    numbers = data.draw(st.lists(st.integers(0, len(RAWS) - 1), unique=True, max_size=4))
    for number in numbers:
        damage(log, boundaries()[number] + data.draw(st.sampled_from([16, 18, 40, 70])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scrub_module, "WINDOW_BYTES", data.draw(st.sampled_from([1, 500, 1 << 20])))
        paces: list[int] = []
        ranges = found(log, 0, paces)
    harmed = set(numbers)
    for number, (start, stop) in enumerate(pairwise(boundaries())):
        assert any(one.start <= start and stop <= one.stop for one in ranges) == (number in harmed)
    assert sum(paces) == log.end_offset
    for one in ranges:
        assert log_path(log.path, one.start - one.position).name == one.file
        assert still_damaged(log.path, one)
    log.close(clean=False)


def test_it_goes_on_at_an_offset_and_leaves_out_what_is_gone(tmp_path: Path) -> None:
    log = filled(tmp_path, RAWS)
    first, second, third = log.bases
    for base in log.bases:
        damage(log, base + 70)
    assert [one.start for one in found(log, len(RAWS[0]))] == [second, third]
    log_path(tmp_path, second).unlink()
    ranges = found(log)
    assert [one.start for one in ranges] == [first, third]
    log_path(tmp_path, first).unlink()
    assert [still_damaged(tmp_path, one) for one in ranges] == [False, True]
