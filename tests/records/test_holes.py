"""appliance.records.holes: batches of any size without messages, which readers of batches step over."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from appliance.errors import CorruptBatch, InvalidRequest
from appliance.records.batch import HEADER_BYTES, check_batch
from appliance.records.decode import decode_batch, decode_values
from appliance.records.encode import encode_values
from appliance.records.holes import HOLE_BYTES_MAX, HOLE_BYTES_MIN, check_hole, hole, holes, reason_of

SIZES = st.integers(HEADER_BYTES, 9000) | st.integers(HEADER_BYTES, HOLE_BYTES_MAX)


@given(size=SIZES, offset=st.integers(0, 1 << 50), reason=st.text(max_size=100).filter(lambda text: "\0" not in text))
@example(size=HEADER_BYTES, offset=0, reason="")
@example(size=HOLE_BYTES_MIN - 1, offset=0, reason="x")
@example(size=HOLE_BYTES_MIN, offset=0, reason="x")
@example(size=126, offset=9, reason="no record of this size has lengths of the fewest bytes")
def test_a_hole_of_any_size(size: int, offset: int, reason: str) -> None:
    batch = memoryview(hole(offset, size, reason))
    info = check_hole(batch, 0, size)
    assert info is not None and (len(batch), info.size) == (size, size)
    assert int.from_bytes(batch[:8], "big") + info.count == offset + size
    assert info.count == (size >= HOLE_BYTES_MIN)
    assert reason.startswith(reason_of(batch))
    if size > 1000:
        assert reason_of(batch) == reason
    with pytest.raises(InvalidRequest):
        check_batch(batch, 0, size, 1 << 20)  # from a client
    for decode in (decode_batch, decode_values):
        with pytest.raises((InvalidRequest, CorruptBatch)):
            decode(batch, check_crc=False)  # type: ignore[operator]


@given(size=st.integers(HEADER_BYTES, 1 << 20))
def test_holes_fill_any_number_of_bytes(size: int) -> None:
    position, found = 77, list(holes(77, size, "why"))
    for batch in found:
        info = check_hole(memoryview(batch), 0, len(batch))
        assert info is not None and len(batch) <= HOLE_BYTES_MAX
        assert info.count == 1 or size < HOLE_BYTES_MIN
        assert int.from_bytes(batch[:8], "big") + info.count == position + len(batch)
        position += len(batch)
    assert position == 77 + size


@given(at=st.integers(0, 299), bit=st.integers(0, 7))
def test_a_damaged_hole_is_none(at: int, bit: int) -> None:
    batch = bytearray(hole(0, 300, "why"))
    batch[at] ^= 1 << bit
    epoch_or_base_offset = at < 8 or 12 <= at < 16  # which no checksum covers
    assert (check_hole(memoryview(batch), 0, 300) is None) != epoch_or_base_offset


def test_messages_are_no_hole() -> None:
    batch = memoryview(encode_values([b"a message"] * 9, 1000))
    assert check_hole(batch, 0, len(batch)) is None
    assert check_hole(batch, 0, 10) is None
