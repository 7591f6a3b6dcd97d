"""appliance.log.segment: scan and headers over buffers of every size, and looking for what is valid."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.durable_files import File, System
from appliance.errors import CorruptLog, StorageFault
from appliance.log import segment
from appliance.log.files import index_path, log_path
from appliance.log.segment import Segment, find_valid, has_header, headers, read_into, scan

from ..support.log_batches import batch, place_all, placed

BASE = 4000
raws = st.lists(st.builds(lambda size, count: batch([b"x" * size] * count), st.integers(0, 900), st.integers(1, 4)))


def written(path: Path, given: list[bytes]) -> tuple[File, bytes, list[int]]:
    """A segment file at BASE, its bytes, and where its batches start."""
    data = b"".join(bytes(view) for view, _ in place_all(BASE, given))
    file = path / "segment"
    file.write_bytes(data)
    starts = [sum(map(len, given[:number])) for number in range(len(given))]
    return File(file, os.O_RDWR), data, starts


@settings(max_examples=150, suppress_health_check=list(HealthCheck), deadline=None)
@given(given=raws, window=st.integers(61, 3000))
def test_scan_and_headers_with_windows_of_every_size(tmp_path: Path, given: list[bytes], window: int) -> None:
    file, data, starts = written(tmp_path, given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "SCAN_BYTES", window)
        patch.setattr(segment, "HOP_BYTES_MIN", window)
        for first in [*starts[:3], len(data)]:
            expected = [start for start in starts if start >= first]
            scanned = [(at, bytes(view), info.size) for at, info, view in scan(file, BASE, first, len(data))]
            assert [at for at, _, _ in scanned] == expected
            assert b"".join(view for _, view, _ in scanned) == data[first:]
            assert [at for at, _ in headers(file, BASE, first, len(data))] == expected


@settings(max_examples=150, suppress_health_check=list(HealthCheck), deadline=None)
@given(given=raws.filter(len), data=st.data())
def test_scan_stops_where_the_damage_is(tmp_path: Path, given: list[bytes], data: st.DataObject) -> None:
    file, whole, starts = written(tmp_path, given)
    at = data.draw(st.integers(0, len(whole) - 1))
    number = max(number for number, start in enumerate(starts) if start <= at)
    if at - starts[number] in range(12, 16):
        return  # partitionLeaderEpoch: nobody's
    os.pwrite(file.fd, bytes([whole[at] ^ data.draw(st.integers(1, 255))]), at)
    seen = []
    with pytest.raises(CorruptLog) as caught:
        for position, _, _ in scan(file, BASE, 0, len(whole)):
            seen.append(position)
    assert (caught.value.position, seen) == (starts[number], starts[:number])
    following = find_valid(file, BASE, starts[number], len(whole))
    assert following == (starts[number + 1] if number + 1 < len(starts) else None)


@pytest.mark.parametrize("cut", [0, 1, 60, 61, 100])
def test_scan_of_a_file_that_ends_early(tmp_path: Path, cut: int) -> None:
    file, data, starts = written(tmp_path, [batch(), batch([b"x" * 100])])
    os.truncate(file.path, starts[1] + cut)
    for walk in (scan, headers):
        with pytest.raises(CorruptLog) as caught:
            list(walk(file, BASE, 0, len(data) if not cut else starts[1] + cut))
        assert caught.value.position == starts[1]


def test_a_batch_of_another_place_is_no_batch(tmp_path: Path) -> None:
    """Goal: a forged batch in a payload, or bytes of another file, are never taken for a batch of the log."""
    file, data, _ = written(tmp_path, [batch()])
    for base in (BASE - 1, BASE + 1, 0):
        assert not has_header(file, base, 0, len(data))
        for walk in (scan, headers):
            with pytest.raises(CorruptLog):
                list(walk(file, base, 0, len(data)))
    assert has_header(file, BASE, 0, len(data))
    assert not has_header(file, BASE, 0, len(data) - 1)
    assert not has_header(file, BASE, -1, len(data))
    assert not has_header(file, BASE, len(data), len(data) + 500)


def test_find_valid_across_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = batch([b"x" * 50])
    for gap in range(1, 400, 7):
        path = tmp_path / str(gap)
        path.write_bytes(b"\2" * gap + bytes(placed(raw, BASE + gap)[0]))
        monkeypatch.setattr(segment, "SCAN_BYTES", 150)
        assert find_valid(File(path), BASE, 0, gap + len(raw)) == gap
        assert find_valid(File(path), BASE, gap, gap + len(raw)) is None


def test_a_disk_that_cannot_be_read_is_a_storage_fault(tmp_path: Path) -> None:
    directory = File(tmp_path)  # reading a directory fails
    with pytest.raises(StorageFault, match="cannot be read"):
        read_into(directory, memoryview(bytearray(10)), 0, 10)
    with pytest.raises(StorageFault, match="cannot be read"):
        list(headers(directory, 0, 0, 100))
    with pytest.raises(StorageFault, match="cannot be read"):
        has_header(directory, 0, 0, 100)


def test_create_refuses_to_write_over_a_segment(tmp_path: Path) -> None:
    Segment.create(tmp_path, 0, 0, 0, System())
    log_path(tmp_path, 0).write_bytes(b"data")
    with pytest.raises(FileExistsError):
        Segment.create(tmp_path, 0, 0, 0, System())
    assert log_path(tmp_path, 0).read_bytes() == b"data"


def test_sealing_twice_adds_one_entry(tmp_path: Path) -> None:
    active = Segment.create(tmp_path, 0, 0, 0, System())
    active.append(place_all(0, [batch()]), 4096)
    active.seal()
    size = index_path(tmp_path, 0).stat().st_size
    active.seal()
    assert index_path(tmp_path, 0).stat().st_size == size == 48
