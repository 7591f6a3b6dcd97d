"""appliance.records.encode and decode against each other and, byte for byte, against kafka-python.

kafka-python brings no codec but gzip, so aiokafka reads the compressed batches.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder

from appliance.errors import InvalidRequest
from appliance.records import encode
from appliance.records.batch import ATTRIBUTES_AT, CODECS, CRC_AT, LOG_APPEND_TIME, check_batch, place
from appliance.records.compression import codec_number
from appliance.records.decode import Record, decode_batch, decode_values
from appliance.records.encode import Fields, encode_batch, encode_values, varint

small = st.none() | st.binary(max_size=70) | st.just(b"v" * 300)
fields = st.lists(
    st.tuples(
        small,
        small,
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2),
        st.integers(0, 1 << 42) | st.integers(1_700_000_000_000, 1_700_000_000_200),
    ),
    min_size=1,
    max_size=70,
)


def by_kafka_python(records: Sequence[Fields], producer: tuple[int, int, int] = (-1, -1, -1)) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        batch_size=1 << 30,
    )
    for delta, (key, value, headers, timestamp) in enumerate(records):
        assert builder.append(delta, timestamp, key, value, list(headers)) is not None
    return bytes(builder.build())


def covered(data: bytes) -> bytes:
    """What the checksum covers: kafka-python puts another leader epoch in front of it."""
    return data[CRC_AT:]


def read(data: bytes) -> list[Fields]:
    return [(r.key, r.value, list(r.headers), r.timestamp) for r in decode_batch(data)]


@given(fields)
@settings(deadline=None)
def test_the_bytes_are_those_of_kafka_python(records: list[Fields]) -> None:
    ours = encode_batch(records, producer_id=77, producer_epoch=3, base_sequence=12)
    theirs = by_kafka_python(records, (77, 3, 12))
    assert covered(ours) == covered(theirs)
    assert read(theirs) == records


@pytest.mark.parametrize("codec", CODECS)
@given(records=fields)
@settings(deadline=None, max_examples=40)
def test_round_trip_and_aiokafka_reads_the_same(codec: str, records: list[Fields]) -> None:
    data = encode_batch(records, codec=codec)
    assert read(data) == records
    assert list(decode_values(data)[0]) == [value for _, value, _, _ in records]
    theirs = [(r.key, r.value, list(r.headers), r.timestamp) for r in DefaultRecordBatch(data)]
    assert theirs == records


@pytest.mark.parametrize("codec", CODECS)
@given(values=st.lists(st.binary(max_size=300), min_size=1, max_size=70))
@settings(deadline=None, max_examples=40)
def test_plain_values(codec: str, values: list[bytes]) -> None:
    data = encode_values(values, 1_700_000_000_000, codec=codec)
    assert data == encode_batch([(None, value, (), 1_700_000_000_000) for value in values], codec=codec)
    assert list(decode_values(data)[0]) == values


@pytest.mark.parametrize(
    "length", [0, 1, 57, 58, 59, 60, 61, 62, 63, 64, 65, 200, 8180, 8184, 8190, 8192, 8200, 1 << 20]
)
@pytest.mark.parametrize("count", [1, 3, 4, 64, 65, 100])
def test_plain_values_of_every_width(length: int, count: int) -> None:
    """Lengths and indexes around each place where a varint becomes longer, equal and mixed."""
    if length * count > 1 << 23:
        count = 4
    value = b"x" * length
    for values in ([value] * count, [value] * (count - 1) + [b"odd"]):
        data = encode_values(values, 5)
        assert covered(data) == covered(by_kafka_python([(None, v, (), 5) for v in values]))
        assert decode_values(data) == (values, count)
        assert [record.value for record in decode_batch(data)] == values


@pytest.mark.parametrize("count", [8191, 8192, 8193, 110_000])
def test_many_values(count: int) -> None:
    for values in ([b"abc"] * count, [b"abcd", *[b"abc"] * (count - 1)]):
        data = encode_values(values, 5)
        assert decode_values(data) == (values, count)
        assert check_batch(memoryview(data), 0, len(data), len(data)).count == count
    assert covered(data) == covered(encode_batch([(None, value, (), 5) for value in values]))


def test_a_value_that_looks_like_records_is_not_split() -> None:
    inner = encode_values([b"abc"] * 10, 5)[61:]
    values = [inner] * 6
    assert list(decode_values(encode_values(values, 5))[0]) == values


def test_offsets_are_those_that_were_placed() -> None:
    data = bytearray(encode_values([b"a", b"b", b"c"], 7))
    place(memoryview(data), 0, 1000, len(data), 3)
    end = 1000 + len(data)
    assert [record.offset for record in decode_batch(data)] == [end - 3, end - 2, end - 1]
    assert decode_values(b"x" + data, 1) == ([b"a", b"b", b"c"], end)
    assert decode_values(data, check_crc=False) == ([b"a", b"b", b"c"], end)


def test_log_append_time_is_the_time_of_every_record() -> None:
    data = bytearray(encode_batch([(None, b"a", (), 10), (None, b"b", (), 99)]))
    data[ATTRIBUTES_AT + 1] |= LOG_APPEND_TIME
    data[CRC_AT:ATTRIBUTES_AT] = struct.pack(">I", crc32c(data[ATTRIBUTES_AT:]))
    assert decode_batch(data) == [Record(0, 99, None, b"a", ()), Record(1, 99, None, b"b", ())]


def test_negative_and_distant_timestamp_deltas() -> None:
    times = [1_700_000_000_000, 0, 1_700_000_000_001, -1, 1 << 60, -(1 << 40)]
    data = encode_batch([(None, b"", (), time) for time in times])
    assert [record.timestamp for record in decode_batch(data)] == times
    assert check_batch(memoryview(data), 0, len(data), 1 << 20).max_timestamp == 1 << 60


@pytest.mark.parametrize("codec", CODECS)
def test_no_batch_has_more_records_than_bytes(codec: str) -> None:
    """10,000 equal bytes shrink under zstd to fewer bytes than records, so they stay as they are."""
    values = [b"x"] * 10_000
    data = encode_values(values, 5, codec=codec)
    info = check_batch(memoryview(data), 0, len(data), 1 << 20)
    assert info.count <= info.size
    assert info.attributes == (0 if codec == "zstd" else codec_number(codec))
    assert decode_values(data)[0] == values


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        encode_values([], 5)
    with pytest.raises(InvalidRequest):
        encode_batch([])


def test_the_caches_stay_small() -> None:
    for length in range(1, 400):
        encode_values([b"x" * length] * 1000, 5)
    assert sum(map(len, encode._prefixes.values())) <= encode._PREFIXES_MAX
    for length in range(20_000):
        encode_values([bytes(length % 7), bytes(length)], 5)
    assert len(encode._tails) <= encode._LENGTHS_MAX


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_varints_of_64_bits(number: int) -> None:
    encoded = varint(number)
    assert len(encoded) <= 10
    unsigned = sum((byte & 0x7F) << 7 * index for index, byte in enumerate(encoded))
    assert (unsigned >> 1) ^ -(unsigned & 1) == number
