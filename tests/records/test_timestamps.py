"""appliance.records.timestamps: the same times that decoding finds, from bytes that may be anything, within bounds."""

from __future__ import annotations

from bisect import bisect_left
from contextlib import suppress
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import ClientFault, CorruptBatch, MessageTooLarge
from appliance.records.batch import ATTRIBUTES_AT, CODECS, HEADER_BYTES, LOG_APPEND_TIME
from appliance.records.decode import decode_batch
from appliance.records.encode import encode_batch
from appliance.records.timestamps import largest_times

from .test_decode import forge

BOUNDS = {"bytes_max": 1 << 20, "records_max": 10_000}
times = st.lists(st.integers(-5, 2**40), min_size=1, max_size=90)


def made(stamps: list[int], codec: str = "none") -> bytes:
    return encode_batch([(b"k" * (stamp % 70), b"v" * (stamp % 200), [], stamp) for stamp in stamps], codec=codec)


@pytest.mark.parametrize("codec", CODECS)
@given(times, st.integers(-5, 2**40))
def test_the_first_record_that_is_young_enough(codec: str, stamps: list[int], wanted: int) -> None:
    found, unpacked = largest_times(made(stamps, codec), **BOUNDS)
    assert list(found.times) == list(accumulate(stamps, max)) and unpacked > 0
    young = [number for number, stamp in enumerate(stamps) if stamp >= wanted]
    number = bisect_left(found.times, wanted)
    assert number == (young[0] if young else len(stamps))
    assert not young or found.times[number] == stamps[number]


def test_times_of_the_broker_are_those_of_all_records() -> None:
    batch = bytearray(made([5, 7, 9], "zstd"))
    batch[ATTRIBUTES_AT + 1] |= LOG_APPEND_TIME
    assert list(largest_times(forge(bytes(batch)), **BOUNDS)[0].times) == [9]


def test_bounds() -> None:
    batch = made([1] * 1_000, "zstd")
    with pytest.raises(MessageTooLarge, match="1000 records"):
        largest_times(batch, bytes_max=1 << 20, records_max=999)
    with pytest.raises(MessageTooLarge, match="more than 5000 bytes"):
        largest_times(batch, bytes_max=5_000, records_max=1_000)


def test_a_forged_count_or_time_is_a_named_error_or_a_number() -> None:
    plain = made([1, 2, 3])
    with pytest.raises(CorruptBatch):
        largest_times(forge(plain, plain[HEADER_BYTES:], 4), **BOUNDS)
    far = b"\x14\0" + b"\xff" * 9 + b"\x01" + b"\0" * 8  # a record of 2^63 ms more than the first
    assert largest_times(forge(plain, far, 1), **BOUNDS)[0].times[0] in (2**63 - 1, -(2**63) + 1)


@given(st.binary(min_size=1, max_size=60), st.integers(1, 9))
def test_no_payload_does_anything_else(payload: bytes, count: int) -> None:
    with suppress(ClientFault):
        found, _ = largest_times(forge(made([1]), payload, count), **BOUNDS)
        assert len(found.times) == count
        with suppress(CorruptBatch):
            assert decode_batch(forge(made([1]), payload, count))[0].timestamp == found.times[0]
