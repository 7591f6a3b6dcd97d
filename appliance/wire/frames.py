"""Splits a buffer, which somebody else fills, into length-prefixed frames.

Both protocols frame alike: a big-endian u32 size, then that many bytes.  An oversized frame is refused as soon as
its four size bytes are in, so a peer can never make us hold more than one frame and one ``recv``.
"""

from __future__ import annotations

import struct

from ..errors import FrameTooLarge

_SIZE = struct.Struct(">I")
SIZE_BYTES = _SIZE.size


def split(
    buffer: memoryview, start: int, stop: int, frame_bytes_max: int, first_bytes_max: int | None = None
) -> tuple[list[tuple[int, int]], int]:
    """Find the whole frames in ``buffer[start:stop]``.

    Returns:
        The frames as (start, stop) without their size prefixes, and where the first unfinished frame starts.

    Raises:
        FrameTooLarge: a peer announced more than ``frame_bytes_max`` bytes, or for the first of these frames more than
            ``first_bytes_max``; drop the connection.
    """
    frames: list[tuple[int, int]] = []
    bytes_max = frame_bytes_max if first_bytes_max is None else first_bytes_max
    while stop - start >= SIZE_BYTES:
        body = start + SIZE_BYTES
        (size,) = _SIZE.unpack_from(buffer, start)
        if size > bytes_max:
            raise FrameTooLarge(size, bytes_max)
        if body + size > stop:
            break
        frames.append((body, body + size))
        bytes_max = frame_bytes_max
        start = body + size
    return frames, start
