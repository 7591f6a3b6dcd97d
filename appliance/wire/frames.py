"""Splits a buffer of received bytes into length-prefixed frames.

Both protocols have the same frames: a big-endian u32 size, then that many bytes.  A frame that is too large is refused
as soon as its four size bytes are there.  So a connection holds at most one frame and one ``recv``.
"""

from __future__ import annotations

import struct

from ..errors import FrameTooLarge, TlsOnPlain

_SIZE = struct.Struct(">I")
SIZE_BYTES = _SIZE.size


def split(
    buffer: memoryview, start: int, stop: int, frame_bytes_max: int, first_bytes_max: int | None = None
) -> tuple[list[tuple[int, int]], int]:
    """Find the whole frames in ``buffer[start:stop]``.

    Returns:
        The frames as (start, stop) without their size prefixes, and the start of the first incomplete frame.

    Raises:
        FrameTooLarge: a frame has more than ``frame_bytes_max`` bytes, or the first of these frames more than
            ``first_bytes_max``.  Close the connection.
        TlsOnPlain: its size is the beginning of a TLS handshake.
    """
    frames: list[tuple[int, int]] = []
    bytes_max = frame_bytes_max if first_bytes_max is None else first_bytes_max
    while stop - start >= SIZE_BYTES:
        body = start + SIZE_BYTES
        (size,) = _SIZE.unpack_from(buffer, start)
        if size > bytes_max:
            raise (TlsOnPlain if size >> 16 == TlsOnPlain.FIRST_BYTES else FrameTooLarge)(size, bytes_max)
        if body + size > stop:
            break
        frames.append((body, body + size))
        bytes_max = frame_bytes_max
        start = body + size
    return frames, start


def frame_bytes(buffer: bytes | bytearray | memoryview, start: int, stop: int) -> int:
    """The size of the frame at ``start`` with its size prefix; that of the prefix while ``stop`` is within it."""
    return SIZE_BYTES + _SIZE.unpack_from(buffer, start)[0] if stop - start >= SIZE_BYTES else SIZE_BYTES
