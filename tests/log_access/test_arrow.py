"""appliance.log_access.arrow against appliance.records.decode, which reads records one by one."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.config import TopicSettings
from appliance.errors import CorruptBatch
from appliance.log.compaction import Policy, run_pass
from appliance.log.files import log_path
from appliance.log_access import arrow
from appliance.log_access.arrow import SCHEMA, SCHEMA_WITH_HEADERS, Decoder
from appliance.log_access.record_starts import equal_starts, scan, starts_at_zeros
from appliance.records.batch import (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    CODECS,
    COUNT_AT,
    CRC_AT,
    HEADER_BYTES,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    LOG_APPEND_TIME,
    check_batch,
    place,
    walk,
)
from appliance.records.decode import decode_batch
from appliance.records.encode import Fields, encode_batch, encode_values
from appliance.records.holes import check_hole, hole

from ..support.log_batches import open_log, place_all
from ..support.long import LONG

EVERYTHING = 1 << 62
small = st.none() | st.binary(max_size=70) | st.just(b"v" * 9000)
headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2)
fields = st.tuples(small, small, headers, st.integers(0, 1 << 42))
batches_of_fields = st.lists(
    st.tuples(st.lists(fields, min_size=1, max_size=20), st.sampled_from(CODECS)), min_size=1, max_size=6
)


def log(batches: Sequence[bytes]) -> bytearray:
    """The batches as they lie in a log."""
    data = bytearray()
    for batch in batches:
        view = memoryview(bytearray(batch))
        place(view, 0, len(data), len(view), check_batch(view, 0, len(view), len(view)).count)
        data += view
    return data


def reseal(batch: bytearray) -> bytearray:
    batch[CRC_AT:ATTRIBUTES_AT] = struct.pack(">I", crc32c(batch[ATTRIBUTES_AT:]))
    return batch


def rows(data: bytes | bytearray, first: int = 0, end: int = EVERYTHING, **keywords: object) -> list[dict[str, object]]:
    decoder = Decoder("logs", 3, first, end, headers=True, **keywords)  # type: ignore[arg-type]
    out: list[dict[str, object]] = []
    for batch in decoder.decode(data, 0):
        assert batch.schema.equals(SCHEMA_WITH_HEADERS)
        batch.validate(full=True)
        batch = batch.set_column(5, "timestamp", batch.column(5).view(pa.int64()))
        out += batch.to_pylist()
    return out


def expected(data: bytes | bytearray, first: int = 0, end: int = EVERYTHING, start: int = 0) -> list[dict[str, object]]:
    out: list[dict[str, object]] = []
    while start < len(data):
        for record in decode_batch(data, start):
            if first <= record.offset < end:
                named = [{"key": name, "value": value} for name, value in record.headers]
                row = {"key": record.key, "value": record.value, "topic": "logs", "partition": 3}
                row |= {"offset": record.offset, "timestamp": record.timestamp * 1000}
                row |= {"timestampType": data[start + ATTRIBUTES_AT + 1] >> 3 & 1, "headers": named or None}
                out.append(row)
        start += int.from_bytes(data[start + LENGTH_AT : start + LENGTH_AT + 4], "big") + 12
    return out


@given(batches_of_fields)
@settings(deadline=None, max_examples=150 if LONG else 60)
def test_every_field_of_every_record(batches: list[tuple[list[Fields], str]]) -> None:
    data = log([encode_batch(records, codec=codec) for records, codec in batches])
    assert rows(data) == expected(data)


@given(
    st.lists(
        st.tuples(st.lists(st.binary(max_size=150), min_size=1, max_size=150), st.sampled_from(CODECS)), max_size=5
    )
)
@settings(deadline=None, max_examples=60)
def test_plain_values(batches: list[tuple[list[bytes], str]]) -> None:
    data = log([encode_values(values, 1_700_000_000_000, codec=codec) for values, codec in batches])
    assert rows(data) == expected(data)


@pytest.mark.parametrize("length", [0, 1, 58, 59, 60, 61, 63, 64, 200, 8184, 8190])
@pytest.mark.parametrize("count", [1, 64, 65, 130])
def test_records_of_one_shape(length: int, count: int) -> None:
    """Around each place where a varint becomes longer; they are found by arithmetic."""
    data = log([encode_values([b"x" * length] * count, 5), encode_values([b"y" * length] * count, 6)])
    assert rows(data) == expected(data)
    assert equal_starts(bytes(data[HEADER_BYTES : len(data) // 2]), count) is not None or length > 8180


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_texts_of_many_lengths(codec: str) -> None:
    """They are found by the zero bytes between them, also where lengths and numbers have more bytes."""
    texts = [b"x" * (2 + 7 * number % 300) for number in range(9000)]
    texts[10:10] = [b"y" * length for length in (53, 54, 55, 56, 57, 8180, 8184, 8190)]
    records = [(b"key" if number % 3 else None, text, (), number // 5) for number, text in enumerate(texts)]
    batch = encode_batch(records, codec=codec)
    data = log([batch, encode_values(texts, 5, codec=codec)])
    assert rows(data) == expected(data)
    plain = bytes(encode_batch(records)[HEADER_BYTES:])
    found = starts_at_zeros(plain, len(records))
    assert found is not None and found.tolist() == scan(plain, len(records))


def test_records_that_are_not_where_their_zeros_are() -> None:
    """As many pairs of zeros as records end, but in a value, while headers hide the end of a record."""
    records = [(None, b"one" * 9, (), 0), (None, b"a\0bc\0defgh", (), 0), (None, b"two" * 9, [("h", b"v")], 0)]
    records.append((None, b"three" * 9, (), 0))
    batch = encode_batch(records)
    payload = bytes(batch[HEADER_BYTES:])
    found = starts_at_zeros(payload, len(records))
    assert found is not None and found.tolist() != scan(payload, len(records))
    data = log([encode_values([b"x", b"yy"], 5), batch])
    assert rows(data) == expected(data)


def test_ten_thousand_records_of_one_shape() -> None:
    data = log([encode_values([b"abc"] * 10_000, 5)])
    assert rows(data) == expected(data)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_many_small_batches_are_walked_in_step(codec: str) -> None:
    """Also when some have far more records than the others, which leaves few batches to walk."""
    source = random.Random(7)
    batches = []
    for index in range(300):
        count = 700 if index % 100 == 3 else source.randrange(1, 30)
        values = [bytes(source.randrange(0, 200)) for _ in range(count)]
        batches.append(encode_values(values, index, codec=codec))
    data = log(batches)
    assert rows(data) == expected(data)


def test_groups_do_not_change_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    data = log([encode_values([b"x" * index] * 9, index) for index in range(1, 60)])
    whole = rows(data)
    monkeypatch.setattr(arrow, "GROUP_BYTES", 500)
    assert rows(data) == whole == expected(data)


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_any_cut_gives_every_record_to_one_side(draw: st.DataObject) -> None:
    data = log([encode_values([b"abc"] * 7, 5), encode_values([b"d" * 90] * 3, 6, codec="gzip")])
    cut = draw.draw(st.integers(0, len(data)))
    left, right = rows(data, 0, cut), rows(data, cut)
    assert left == expected(data, 0, cut)
    assert left + right == expected(data)


@pytest.mark.parametrize("cut", [1, 10, 70])
def test_bytes_that_are_no_whole_batch_are_corrupt(cut: int) -> None:
    """Whoever serves them serves whole batches, so a rest means that a length is wrong."""
    data = log([encode_values([b"abc"] * 7, 5), encode_values([b"abc"] * 3, 6)])
    with pytest.raises(CorruptBatch, match="appliance log verify"):
        rows(data[:-cut])
    assert rows(data[:-cut], on_corrupt=lambda *_: None) == expected(data)[:7]
    assert rows(b"") == []


def test_log_append_time() -> None:
    first = bytearray(encode_batch([(None, b"a", (), 10), (None, b"b", (), 99)]))
    first[ATTRIBUTES_AT + 1] |= LOG_APPEND_TIME
    data = log([bytes(reseal(first)), encode_values([b"c"], 7)])
    assert [(row["timestamp"], row["timestampType"]) for row in rows(data)] == [(99_000, 1), (99_000, 1), (7000, 0)]


def test_absurd_timestamps_do_not_wrap() -> None:
    data = log([encode_values([b"a"], 1 << 62), encode_values([b"a"], -(1 << 62))])
    assert [row["timestamp"] > 0 for row in rows(data)] == [True, False]  # type: ignore[operator]


def test_without_headers_the_columns_are_those_of_the_connector() -> None:
    data = log([encode_batch([(None, b"a", [("h", b"x")], 10)])])
    (batch,) = Decoder("logs", 3, 0, EVERYTHING).decode(data, 0)
    assert batch.schema.equals(SCHEMA)
    assert batch.num_rows == 1


def broken_in_the_middle(codec: str) -> tuple[bytearray, int, int]:
    """Three batches, the second of which is damaged; where it starts and stops."""
    good = [encode_values([b"good"] * 5, 5, codec=codec) for _ in range(3)]
    data = log(good)
    start = len(good[0])
    return data, start, start + len(good[1])


@pytest.mark.parametrize("codec", CODECS)
def test_a_corrupt_batch_fails_or_is_skipped(codec: str) -> None:
    data, start, stop = broken_in_the_middle(codec)
    data[stop - 1] ^= 1
    with pytest.raises(CorruptBatch, match=rf"logs-3: batch at offset {start}: .*CRC"):
        rows(data)
    reported: list[CorruptBatch] = []
    kept = rows(data, on_corrupt=lambda _, error: reported.append(error))
    assert kept == expected(data[:start]) + expected(data[stop:])
    assert f"offset {start}" in str(reported[0]) and len(reported) == 1


def test_a_batch_with_a_good_checksum_and_bad_records_is_found_among_others() -> None:
    data, start, stop = broken_in_the_middle("none")
    data[start:stop] = forged = data[start:stop]
    forged[HEADER_BYTES + 4] = 40  # key length
    data[start:stop] = reseal(forged)
    reported: list[CorruptBatch] = []
    kept = rows(data, on_corrupt=lambda _, error: reported.append(error))
    assert kept == expected(data[:start]) + expected(data[stop:])
    assert len(reported) == 1


@pytest.mark.parametrize("bit", range(64))
def test_a_flipped_bit_of_a_base_offset_is_noticed(bit: int) -> None:
    """It is outside of the checksum."""
    data, start, stop = broken_in_the_middle("none")
    data[start + bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptBatch, match="says that it is another one"):
        rows(data)
    assert rows(data, on_corrupt=lambda *_: None) == expected(data[:start]) + expected(data[stop:])


@pytest.mark.parametrize("length", [-1, 3, 48, 100_000])
def test_a_batch_without_a_length_takes_those_behind_it_along(length: int) -> None:
    data, start, _ = broken_in_the_middle("none")
    data[start + LENGTH_AT : start + LENGTH_AT + 4] = struct.pack(">i", length)
    with pytest.raises(CorruptBatch, match=rf"logs-3: batch at offset {start}: its length is wrong"):
        rows(data)
    reported: list[CorruptBatch] = []
    assert rows(data, on_corrupt=lambda _, error: reported.append(error)) == expected(data[:start])
    assert len(reported) == 1


@pytest.mark.parametrize("codec", CODECS[1:])
def test_bombs_are_corrupt(codec: str) -> None:
    data = log([encode_values([b"x" * 100_000] * 40, 5, codec=codec)])
    with pytest.raises(CorruptBatch, match="more than 1000000 bytes"):
        rows(data, bytes_max=1_000_000)


@pytest.mark.parametrize("repeat", [1, 100])
@pytest.mark.parametrize("headers_too", [False, True])
def test_every_forged_byte_gives_what_the_slow_reader_gives(repeat: int, headers_too: bool) -> None:
    """Under a right checksum; ``repeat``: alone, and among enough others to be walked in step."""
    records: list[Fields] = [
        (b"key", b"value" * 20, [("name", b"content")] if headers_too else [], 1000),
        (None, None, [], 999),
        *[(None, b"line", [], 1000)] * (4 if repeat == 1 else 1),
    ]
    batch = encode_batch(records)
    before = log([batch] * (repeat - 1))
    wanted_before = expected(before)
    for position in range(HEADER_BYTES, len(batch)):
        for flip in (0x01, 0x80, 0xFF) if repeat == 1 else (0x03,):
            forged = bytearray(batch)
            forged[position] ^= flip
            data = log([*[batch] * (repeat - 1), bytes(reseal(forged))])
            try:
                wanted = wanted_before + expected(data, start=len(before))
            except CorruptBatch:
                with pytest.raises(CorruptBatch):
                    rows(data)
            else:
                # Attributes of records are unused, and the slow reader takes longer numbers than it must.
                assert rows(data) == wanted


@given(st.binary(min_size=1, max_size=200), st.integers(1, 60))
@settings(max_examples=300, deadline=None)
def test_any_payload_is_survived(payload: bytes, count: int) -> None:
    data = bytearray(encode_values([b"x"], 5)[:HEADER_BYTES] + payload)
    data[LENGTH_AT : LENGTH_AT + 4] = struct.pack(">i", len(data) - 12)
    data[ATTRIBUTES_AT + 2 : ATTRIBUTES_AT + 6] = struct.pack(">i", count - 1)
    data[COUNT_AT:HEADER_BYTES] = struct.pack(">i", count)
    reseal(data)
    with suppress(CorruptBatch):
        rows(data)


@pytest.mark.parametrize("size", [HEADER_BYTES, 68, 300])
def test_holes_have_no_rows_and_what_stands_behind_keeps_its_offsets(size: int) -> None:
    first = log([encode_values([b"one", b"two"], 5)])
    later = bytearray(encode_values([b"three"], 6))
    place(memoryview(later), 0, len(first) + size, len(later), 1)
    data = first + hole(len(first), size, "why") + later
    found = [(row["offset"], row["value"]) for row in rows(data)]
    end = len(data)
    assert found == [(len(first) - 2, b"one"), (len(first) - 1, b"two"), (end - 1, b"three")]


def compacted(path: Path, codec: str) -> bytearray:
    """The bytes of a compacted log: batches of which some records are gone, joined ones, and gaps between them."""
    log = open_log(path, TopicSettings(segment_bytes=1 << 20, index_interval_bytes=256))
    random_ = random.Random(5)
    for number in range(300):
        keys = [b"%d" % random_.randrange(400) for _ in range(1 + number % 7)]
        raw = encode_batch([(key, random_.randbytes(number % 60), (), 1000 + number) for key in keys], codec=codec)
        log.append(place_all(log.end_offset, [raw]))
        if number in (0, 150):  # the first one is in a segment without gaps
            log.roll()
    log.roll()
    log.raise_high_watermark(log.end_offset)
    policy = Policy(log.bases[-1], -1, 0, 1 << 20, 256)
    counts = run_pass(path, log.bases, log.end_offset, policy, log.swap, lambda _: None)
    assert counts.removed > 300
    log.close()
    return bytearray(b"".join(log_path(path, base).read_bytes() for base in log.bases[:-1]))


def behind_gaps(data: bytearray) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for start, size, _ in walk(memoryview(data), 0, len(data)):
        if check_hole(memoryview(data), start, start + size) is None:
            found += expected(data[: start + size], start=start)
    return found


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_compacted_log_has_all_that_stayed_wherever_it_is_cut(tmp_path: Path, codec: str) -> None:
    """Also in a gap: the first offsets of the batch behind it lie there."""
    data = compacted(tmp_path, codec)
    every = behind_gaps(data)
    assert rows(data) == every
    for cut in range(1, len(data), len(data) // 150):
        assert rows(data, 0, cut) + rows(data, cut) == every


def test_a_compacted_batch_with_bad_deltas_is_corrupt() -> None:
    """Two records of a batch of ten offsets."""
    for deltas, sound in (((0, 1), True), ((3, 9), True), ((9, 3), False), ((3, 3), False), ((3, 10), False)):
        batch = bytearray(encode_values([b"x", b"y"], 5))
        for number, delta in enumerate(deltas):
            batch[HEADER_BYTES + 8 * number + 3] = 2 * delta
        batch[LAST_OFFSET_DELTA_AT:BASE_TIMESTAMP_AT] = struct.pack(">i", 9)
        place(memoryview(batch), 0, 100, len(batch), 10)
        decoder, first = Decoder("logs", 3, 0, EVERYTHING), 100 + len(batch) - 10
        if sound:
            found = [one for part in decoder.decode(reseal(batch), 100) for one in part.column("offset").to_pylist()]
            assert found == [first + delta for delta in deltas]
        else:
            with pytest.raises(CorruptBatch, match="out of step"):
                list(decoder.decode(reseal(batch), 100))
