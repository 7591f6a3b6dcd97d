"""appliance.records.compression: what other implementations write is read, and no bomb goes off."""

from __future__ import annotations

import gzip
import struct
import zlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import ApplianceError, BadValue, CorruptBatch, MessageTooLarge, UnsupportedVersion
from appliance.records.compression import (
    CODECS,
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    codec_number,
    compress,
    decompress,
)

from ..support.spending import spent_by

BYTES_MAX = 1 << 22
PACKED = [GZIP, SNAPPY, LZ4, ZSTD]


@pytest.mark.parametrize("codec", range(5), ids=CODECS)
@given(
    data=st.binary(max_size=200)
    | st.builds(lambda piece, times: piece * times, st.binary(max_size=9), st.integers(0, 40_000))
)
def test_round_trip(codec: int, data: bytes) -> None:
    assert decompress(codec, compress(codec, data), BYTES_MAX) == data


@pytest.mark.parametrize("codec", PACKED, ids=CODECS[1:])
def test_the_limit_is_inclusive_and_named(codec: int) -> None:
    packed = compress(codec, b"ab" * 100_000)
    assert len(decompress(codec, packed, 200_000)) == 200_000
    with pytest.raises(MessageTooLarge, match="more than 199999 bytes"):
        decompress(codec, packed, 199_999)


def test_a_bomb_takes_no_more_memory_than_the_limit() -> None:
    bombs = [(codec, compress(codec, bytes(64 << 20)), 1 << 20) for codec in PACKED]
    for (codec, packed, _), spent in zip(bombs, spent_by(decompress, bombs), strict=True):
        assert spent.error == MessageTooLarge.__name__, CODECS[codec]
        assert spent.peak_bytes < (6 << 20) + len(packed), CODECS[codec]


def test_sizes_that_are_only_announced_allocate_nothing() -> None:
    raw_snappy = b"\xff\xff\xff\xff\x0f" + b"\0"
    with pytest.raises(MessageTooLarge):
        decompress(SNAPPY, raw_snappy, BYTES_MAX)
    framed = b"\x82SNAPPY\0" + struct.pack(">iiI", 1, 1, 0xFFFFFFFF)
    with pytest.raises(CorruptBatch):
        decompress(SNAPPY, framed, BYTES_MAX)
    zstd_header = bytes.fromhex("28b52ffd e0") + struct.pack("<Q", 1 << 40)
    with pytest.raises(CorruptBatch):
        decompress(ZSTD, zstd_header, BYTES_MAX)


@pytest.mark.parametrize("codec", PACKED, ids=CODECS[1:])
def test_every_truncation_and_every_flipped_byte_is_a_named_error_or_harmless(codec: int) -> None:
    data = bytes(range(64)) * 8
    packed = compress(codec, data)
    for stop in range(len(packed)):
        try:
            assert decompress(codec, packed[:stop], BYTES_MAX) != data
        except ApplianceError as error:
            assert isinstance(error, CorruptBatch)
    for position in range(len(packed)):
        broken = bytearray(packed)
        broken[position] ^= 0xFF
        try:
            decompress(codec, bytes(broken), BYTES_MAX)
        except ApplianceError as error:
            assert isinstance(error, CorruptBatch | MessageTooLarge)


def test_forms_that_other_clients_write() -> None:
    data = b"GET /index.html 200\n" * 5000
    assert decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(data)), BYTES_MAX) == data
    assert decompress(GZIP, gzip.compress(data[:50]) + gzip.compress(data[50:]), BYTES_MAX) == data
    assert decompress(LZ4, bytes(cramjam.lz4.compress(data)), BYTES_MAX) == data
    streamed = cramjam.zstd.Compressor()
    streamed.compress(data)
    assert decompress(ZSTD, bytes(streamed.finish()), BYTES_MAX) == data


def test_many_members_of_gzip_are_refused() -> None:
    """Reading them takes time that grows with their number and their bytes."""
    member = gzip.compress(b"x")
    assert decompress(GZIP, member * 100, BYTES_MAX) == b"x" * 100
    with pytest.raises(CorruptBatch, match="more than 100 members"):
        decompress(GZIP, member * 50_000, BYTES_MAX)


def test_lz4_blocks_are_independent_as_java_demands() -> None:
    packed = compress(LZ4, b"x" * 200_000)
    assert packed[4] & 0x20
    assert bytes(cramjam.lz4.decompress(packed)) == b"x" * 200_000


def test_unknown_codecs() -> None:
    with pytest.raises(UnsupportedVersion):
        decompress(5, b"", BYTES_MAX)
    with pytest.raises(BadValue, match=r"'lzma'.*zstd"):
        codec_number("lzma")
    assert codec_number("none") == NONE
    assert zlib.decompress(compress(GZIP, b""), 31) == b""
