"""appliance.log.mending: one flipped bit is found, two are not taken for one."""

from __future__ import annotations

import random

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from appliance.log import mending
from appliance.log.mending import flipped_bit, mended

from ..support.log_batches import batch, placed


@given(data=st.binary(min_size=1, max_size=300), at=st.integers(0, 1 << 20))
def test_flipped_bit(data: bytes, at: int) -> None:
    at %= 8 * len(data)
    damaged = bytearray(data)
    damaged[at // 8] ^= 1 << at % 8
    assert flipped_bit(crc32c(data) ^ crc32c(damaged), len(data)) == divmod(at, 8)


def test_two_flipped_bits_are_not_taken_for_one() -> None:
    dice = random.Random(5)
    raw = bytes(placed(batch([b"x" * 100]), 0)[0])
    for _ in range(200):
        damaged = bytearray(raw)
        for at in dice.sample(range(8 * 21, 8 * len(raw)), 2):
            damaged[at // 8] ^= 1 << at % 8
        assert not mended(memoryview(damaged), 0)


def test_a_batch_too_large_to_search_is_not_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = bytearray(placed(batch([b"x" * 100]), 0)[0])
    raw[100] ^= 8
    monkeypatch.setattr(mending, "MEND_BYTES_MAX", 100)
    assert not mended(memoryview(raw), 0)
