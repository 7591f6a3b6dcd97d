"""appliance.records.decode: bytes that may be anything end in records or in a named error, never in
another one.
"""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import ClientFault, CorruptBatch, MessageTooLarge
from appliance.records.batch import (
    ATTRIBUTES_AT,
    CODECS,
    COUNT_AT,
    CRC_AT,
    HEADER_BYTES,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
)
from appliance.records.decode import decode_batch, decode_values
from appliance.records.encode import Fields, encode_batch, encode_values

RECORDS: list[Fields] = [
    (b"key", b"value" * 20, [("name", b"content"), ("none", None)], 1000),
    (None, None, [], 999),
    (b"", b"", [("", b"")], 5_000_000),
    *[(None, b"line", [], 1000)] * 70,
]


def forge(data: bytes, payload: bytes | None = None, count: int | None = None) -> bytes:
    """``data`` with another payload or count and a checksum that holds."""
    forged = bytearray(data if payload is None else data[:HEADER_BYTES] + payload)
    forged[LENGTH_AT : LENGTH_AT + 4] = struct.pack(">i", len(forged) - 12)
    if count is not None:
        forged[LAST_OFFSET_DELTA_AT : LAST_OFFSET_DELTA_AT + 4] = struct.pack(">i", count - 1)
        forged[COUNT_AT:HEADER_BYTES] = struct.pack(">i", count)
    forged[CRC_AT:ATTRIBUTES_AT] = struct.pack(">I", crc32c(forged[ATTRIBUTES_AT:]))
    return bytes(forged)


def survives(data: bytes) -> None:
    for decode in (decode_batch, decode_values):
        with suppress(ClientFault):
            decode(data, bytes_max=1 << 20)


@pytest.mark.parametrize("codec", CODECS)
def test_every_truncation_and_flipped_bit_is_noticed(codec: str) -> None:
    data = encode_batch(RECORDS, codec=codec)
    for stop in range(len(data)):
        for decode in (decode_batch, decode_values):
            with pytest.raises(CorruptBatch):
                decode(data[:stop])
    for position in range(16, len(data)):
        broken = bytearray(data)
        broken[position] ^= 1 << position % 8
        with pytest.raises(ClientFault):
            decode_batch(broken)


@pytest.mark.parametrize("codec", CODECS)
def test_every_forged_byte_under_a_right_checksum_is_survived(codec: str) -> None:
    data = encode_batch(RECORDS, codec=codec)
    for position in range(ATTRIBUTES_AT, len(data)):
        for flip in (0x01, 0x80, 0xFF):
            broken = bytearray(data)
            broken[position] ^= flip
            survives(forge(bytes(broken)))


@pytest.mark.parametrize("values", [[b"abc"] * 70, [b"abc", *[b"abcd"] * 70]])
def test_plain_values_are_proved(values: list[bytes]) -> None:
    """Whatever byte is forged, the fast ways give what the reader of all fields gives, or nothing."""
    data = encode_values(values, 5)
    for position in range(HEADER_BYTES, len(data)):
        broken = bytearray(data)
        broken[position] ^= 0x02
        forged = forge(bytes(broken))
        try:
            expected = [record.value for record in decode_batch(forged)]
        except CorruptBatch:
            with pytest.raises(CorruptBatch):
                decode_values(forged)
        else:
            assert list(decode_values(forged)[0]) == expected


@given(st.binary(max_size=200), st.integers(1, 9))
@settings(max_examples=300)
def test_any_payload_is_survived(payload: bytes, count: int) -> None:
    survives(forge(encode_values([b"x"], 5), payload, count))


def test_forged_counts() -> None:
    data = encode_values([b"abc"] * 70, 5)
    for count in (69, 71, 300):
        with pytest.raises(CorruptBatch):
            decode_batch(forge(data, count=count))
        with pytest.raises(CorruptBatch):
            decode_values(forge(data, count=count))
    many_headers = b"\x1a\0\0\0\1\1" + b"\xfe\xff\xff\xff\xff\xff\xff\x01"
    with pytest.raises(CorruptBatch):
        decode_batch(forge(data, many_headers, 1))


def test_offsets_out_of_step_are_corrupt() -> None:
    payload = bytearray(encode_values([b"abc"] * 5, 5)[HEADER_BYTES:])
    payload[3] = 2
    for decode in (decode_batch, decode_values):
        with pytest.raises(CorruptBatch, match="offset delta"):
            decode(forge(encode_values([b"abc"] * 5, 5), bytes(payload)))


def test_endless_varint() -> None:
    with pytest.raises(CorruptBatch):
        decode_batch(forge(encode_values([b"x"], 5), b"\xff" * 50))


@pytest.mark.parametrize("codec", CODECS[1:])
def test_bombs_are_refused(codec: str) -> None:
    data = encode_values([b"x" * 100_000] * 40, 5, codec=codec)
    with pytest.raises(MessageTooLarge):
        decode_values(data, bytes_max=1 << 20)
    with pytest.raises(MessageTooLarge):
        decode_batch(data, bytes_max=1 << 20)


def test_an_unchecked_batch_still_cannot_lead_out_of_its_buffer() -> None:
    data = encode_values([b"abc"] * 5, 5)
    for broken in (
        data[:30],
        data[:-1],
        data[:8] + b"\x7f\xff\xff\xff" + data[12:],
        data[:16] + b"\1" + data[17:],
    ):
        with pytest.raises(CorruptBatch):
            decode_values(broken, check_crc=False)
    altered = bytearray(data)
    altered[CRC_AT] ^= 1
    assert decode_values(altered, check_crc=False)[0] == [b"abc"] * 5
