"""appliance.wire.frames: the answer must not depend on how TCP splits the bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import FrameTooLarge
from appliance.wire.frames import SIZE_BYTES, split

STREAM = b"\0\0\0\3abc" + b"\0\0\0\0" + b"\0\0\0\2hi"
FRAMES = [b"abc", b"", b"hi"]


def frames_of(stream: bytes, sizes: list[int]) -> tuple[list[bytes], int]:
    """Feed a stream in pieces, as a connection does, and collect the frames and where the rest starts."""
    buffer, filled, parsed, found = memoryview(bytearray(stream)), 0, 0, []
    for size in [*sizes, len(stream)]:
        filled = min(filled + size, len(stream))
        frames, parsed = split(buffer, parsed, filled, frame_bytes_max=1_000)
        found += [bytes(buffer[start:stop]) for start, stop in frames]
    return found, parsed


@pytest.mark.parametrize("size", range(1, len(STREAM) + 1))
def test_any_chopping_gives_the_same_frames(size: int) -> None:
    assert frames_of(STREAM, [size] * len(STREAM)) == (FRAMES, len(STREAM))


@given(st.lists(st.binary(max_size=50), max_size=20), st.binary(max_size=3), st.lists(st.integers(0, 30), max_size=50))
def test_frames_come_whole_and_the_rest_stays(bodies: list[bytes], rest: bytes, sizes: list[int]) -> None:
    stream = b"".join(len(body).to_bytes(SIZE_BYTES, "big") + body for body in bodies)
    assert frames_of(stream + rest, sizes) == (bodies, len(stream))


def test_an_oversized_frame_is_refused_on_its_first_four_bytes() -> None:
    with pytest.raises(FrameTooLarge, match="1001 bytes, limit 1000"):
        split(memoryview(b"\0\0\3\xe9"), 0, 4, frame_bytes_max=1_000)
    assert split(memoryview(b"\0\0\3"), 0, 3, frame_bytes_max=1_000) == ([], 0)
