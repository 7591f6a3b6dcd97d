"""appliance.log.index: building, keeping what is right, and finding an entry in any file."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.errors import CorruptLog
from appliance.log.index import BLOCK_ENTRIES, ENTRY_BYTES, Builder, IndexEntry, IndexFile, ends, pack

batches = st.lists(st.tuples(st.integers(61, 900), st.integers(1, 9), st.integers(-1, 50)), max_size=40)


def entries_of(
    given: list[tuple[int, int, int]], base: int, records: int, interval: int, sealed: bool
) -> list[IndexEntry]:
    """The index by its definition."""
    offset, timestamp, last = base, -1, base - interval
    entries = []
    for size, count, stamp in given:
        if offset >= last + interval:
            entries.append(IndexEntry(offset, timestamp, records))
            last = offset
        offset, timestamp, records = offset + size, max(timestamp, stamp), records + count
    if sealed or not entries:
        entries.append(IndexEntry(offset, timestamp, records))
    return entries


def build(old: bytes, path: Path, given: list[tuple[int, int, int]], sealed: bool) -> Builder:
    path.write_bytes(old)
    builder = Builder(old, 1000, 7, 256)
    for size, count, stamp in given:
        builder.batch(size, count, stamp)
    builder.finish(sealed)
    builder.store(path)
    assert builder.size == path.stat().st_size
    return builder


@settings(max_examples=300, suppress_health_check=list(HealthCheck), deadline=None)
@given(given=batches, sealed=st.booleans(), data=st.data())
def test_whatever_was_there_the_index_is_what_the_batches_say(
    tmp_path: Path, given: list[tuple[int, int, int]], sealed: bool, data: st.DataObject
) -> None:
    right = pack(entries_of(given, 1000, 7, 256, sealed))
    path = tmp_path / "index"
    builder = build(b"", path, given, sealed)
    assert path.read_bytes() == right
    assert (builder.offset, builder.records) == (1000 + sum(b[0] for b in given), 7 + sum(b[1] for b in given))
    # Any damage to one entry, any length: what comes out is the same again.
    damaged = bytearray(right[: data.draw(st.integers(0, len(right)))])
    if damaged:
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    damaged += data.draw(st.binary(max_size=30))
    builder = build(bytes(damaged), path, given, sealed)
    assert path.read_bytes() == right
    assert (builder.wrong_at is None) == (bytes(damaged) == right)


def test_what_is_right_is_not_written_again(tmp_path: Path) -> None:
    """Readers look at it meanwhile: a right prefix is left as it is, whatever interval it was made with."""
    batches_said = [(100, 1, 5)] * 10
    dense = pack(IndexEntry(1000 + 100 * number, 5 if number else -1, 7 + number) for number in range(10))
    build(dense[:96] + b"\xff" * 24, tmp_path / "index", batches_said, sealed=False)
    assert (tmp_path / "index").read_bytes() == dense[:96] + pack([IndexEntry(1600, 5, 13), IndexEntry(1900, 5, 16)])


def test_ends(tmp_path: Path) -> None:
    path = tmp_path / "index"
    assert ends(path) is None
    path.write_bytes(bytes(23))
    assert ends(path) is None
    path.write_bytes(pack([IndexEntry(1, -1, 3), IndexEntry(4, 5, 6)]) + b"torn")
    assert ends(path) == (IndexEntry(1, -1, 3), IndexEntry(4, 5, 6))


# ---- reading


def write(path: Path, offsets: list[int]) -> IndexFile:
    path.write_bytes(pack(IndexEntry(offset, number * 10 - 1, number) for number, offset in enumerate(offsets)))
    return IndexFile(path)


@settings(max_examples=200, suppress_health_check=list(HealthCheck), deadline=None)
@given(
    steps=st.lists(st.integers(256, 5000), min_size=1, max_size=60),
    lookups=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=20),
    block=st.sampled_from([2, 3, 5, BLOCK_ENTRIES]),
)
def test_floor(tmp_path: Path, steps: list[int], lookups: list[tuple[float, float]], block: int) -> None:
    """Goal: the last entry at or below an offset, with blocks of any size and an end that grows."""
    offsets = [1000]
    for step in steps:
        offsets.append(offsets[-1] + step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("appliance.log.index.BLOCK_ENTRIES", block)
        index = write(tmp_path / "index", offsets)
        end = 1000
        for part, at in lookups:
            end = max(end, 1000 + int(part * (offsets[-1] - 1000)))
            offset = 1000 + int(at * (end - 1000))
            number = bisect_right(offsets, offset) - 1
            assert index.floor(offset, end) == (number, offsets[number])
            assert all(kept <= end for kept in index._block)
            assert index.count_up_to(end) == bisect_right(offsets, end)


def test_floor_of_an_uneven_index_larger_than_a_block(tmp_path: Path) -> None:
    """Even spacing is a guess; here it is wrong by far."""
    offsets = [*range(0, 5000 * 256, 256), *range(1 << 30, (1 << 30) + 3000 * 4096, 4096)]
    index = write(tmp_path / "index", offsets)
    for offset in (0, 1, 5000 * 256 - 1, 5000 * 256, (1 << 30) - 1, 1 << 30, 700 * 256 + 3, (1 << 30) + 2999 * 4096):
        number = bisect_right(offsets, offset) - 1
        assert index.floor(offset, 1 << 40) == (number, offsets[number])


def test_floor_sees_entries_that_come_later(tmp_path: Path) -> None:
    path = tmp_path / "index"
    index = write(path, [0])
    assert index.floor(500, 600) == (0, 0)
    with path.open("ab") as file:
        file.write(pack([IndexEntry(300, 0, 1), IndexEntry(600, 0, 2), IndexEntry(900, 0, 3)]))
    assert index.floor(500, 600) == (1, 300)
    assert index.floor(600, 700) == (2, 600)


def test_an_empty_index_has_no_floor(tmp_path: Path) -> None:
    assert write(tmp_path / "index", []).floor(5, 10) == (-1, -1)


def test_reached(tmp_path: Path) -> None:
    index = write(tmp_path / "index", [0, 300, 600])  # timestamps -1, 9, 19
    assert [index.reached(timestamp, 3) for timestamp in (-1, 0, 9, 10, 19, 20)] == [0, 1, 1, 2, 2, 3]


def test_an_entry_that_is_gone_is_named(tmp_path: Path) -> None:
    index = write(tmp_path / "index", [0])
    with pytest.raises(CorruptLog) as caught:
        index.entry(3)
    assert caught.value.position == 3 * ENTRY_BYTES
