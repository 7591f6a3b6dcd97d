"""Compresses and decompresses record batches with gzip, snappy, lz4 and zstd, up to a size that the caller sets.

A few kilobytes can declare gigabytes, so a declared size is never used for an allocation.  Output buffers start small
and grow while the codec fills them.  Output above ``bytes_max`` is a :class:`~appliance.errors.MessageTooLarge`.
Input that a codec cannot read is a :class:`~appliance.errors.CorruptBatch`.

Snappy has two forms.  Kafka's Java client frames it as xerial's snappy-java does: magic, two version words, then blocks
of u32 size and raw snappy.  librdkafka writes one raw block.  Both forms are read, the framed one is written.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import cramjam

from ..errors import BadValue, CorruptBatch, MessageTooLarge, UnsupportedVersion
from .batch import CODECS

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

_XERIAL = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_LZ4_FRONT = bytes.fromhex("04224d18 60 40 82")  # magic; version 1, independent blocks; of 64 KiB; header hash
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_STORED = 1 << 31
_LZ4_END = bytes(4)
_GZIP_WINDOW = 31  # zlib: the largest window, with gzip's header
_GZIP_MEMBERS_MAX = 100
_GUESS_BYTES_MIN = 64 * 1024
_GROWTH = 16


def codec_number(name: str) -> int:
    try:
        return CODECS.index(name)
    except ValueError:
        raise BadValue(f"compression codec {name!r}: use one of {', '.join(CODECS)}") from None


def compress(codec: int, data: bytes) -> bytes:
    if codec == NONE:
        return data
    if codec == GZIP:
        worker = zlib.compressobj(wbits=_GZIP_WINDOW)
        return worker.compress(data) + worker.flush()
    if codec == SNAPPY:
        pieces = [_XERIAL]
        for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
            block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
            pieces += (len(block).to_bytes(4, "big"), block)
        return b"".join(pieces)
    if codec == LZ4:
        return _lz4_frame(data)
    return bytes(cramjam.zstd.compress(data, level=3))


def _lz4_frame(data: bytes) -> bytes:
    """Make a frame of independent blocks: the Java client reads no others, and cramjam's frames chain their blocks."""
    pieces = [_LZ4_FRONT]
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        plain = data[start : start + _LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            pieces += (len(block).to_bytes(4, "little"), block)
        else:
            pieces += ((len(plain) | _LZ4_STORED).to_bytes(4, "little"), plain)
    pieces.append(_LZ4_END)
    return b"".join(pieces)


def decompress(codec: int, data: bytes, bytes_max: int) -> bytes:
    """Decompress ``data``.

    Raises:
        MessageTooLarge: the output has more than ``bytes_max`` bytes.
        CorruptBatch: the codec cannot read ``data``.
        UnsupportedVersion: there is no such codec.
    """
    if codec == NONE:
        return data
    if codec == GZIP:
        return _gunzip(data, bytes_max)
    if codec == SNAPPY:
        return _unsnap(data, bytes_max)
    if codec == LZ4:
        return _grow("lz4", cramjam.lz4.decompress_into, data, bytes_max)
    if codec == ZSTD:
        return _grow("zstd", cramjam.zstd.decompress_into, data, bytes_max)
    raise UnsupportedVersion(f"codec {codec} is none of {', '.join(CODECS)}")


def _too_large(codec: str, size_bytes: int, bytes_max: int) -> MessageTooLarge:
    return MessageTooLarge(
        f"{size_bytes} bytes of {codec} unpack to more than {bytes_max} bytes: raise the limit or send smaller batches"
    )


def _gunzip(data: bytes, bytes_max: int) -> bytes:
    pieces: list[bytes] = []
    room, rest = bytes_max, data
    try:
        while rest:  # several members may follow one another; each step copies the rest
            if len(pieces) == _GZIP_MEMBERS_MAX:
                raise CorruptBatch(f"more than {_GZIP_MEMBERS_MAX} members of gzip in one batch")
            worker = zlib.decompressobj(_GZIP_WINDOW)
            piece = worker.decompress(rest, room + 1)
            if len(piece) > room:
                raise _too_large("gzip", len(data), bytes_max)
            if not worker.eof:
                raise CorruptBatch(f"{len(data)} bytes of gzip end too early")
            pieces.append(piece)
            room -= len(piece)
            rest = worker.unused_data
    except zlib.error as error:
        raise CorruptBatch(f"gzip: {error}") from error
    return b"".join(pieces)


def _unsnap(data: bytes, bytes_max: int) -> bytes:
    if not data.startswith(_XERIAL[:8]):
        return _unsnap_block(data, bytes_max, len(data), bytes_max)
    pieces: list[bytes] = []
    room, position = bytes_max, len(_XERIAL)
    while position < len(data):
        stop = position + 4 + int.from_bytes(data[position : position + 4], "big")
        if stop > len(data):
            raise CorruptBatch(f"snappy block at {position} ends at {stop}, but there are {len(data)} bytes")
        piece = _unsnap_block(data[position + 4 : stop], room, len(data), bytes_max)
        pieces.append(piece)
        room -= len(piece)
        position = stop
    return b"".join(pieces)


def _unsnap_block(block: bytes, room: int, size_bytes: int, bytes_max: int) -> bytes:
    try:
        if cramjam.snappy.decompress_raw_len(block) > room:
            raise _too_large("snappy", size_bytes, bytes_max)
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"snappy: {error}") from error


def _grow(codec: str, unpack: Callable[[bytes, bytearray], int], data: bytes, bytes_max: int) -> bytes:
    """Unpack into larger and larger buffers: cramjam does not write beyond the end of its buffer."""
    if not data:
        raise CorruptBatch(f"{codec}: no data")
    room = min(bytes_max, max(_GUESS_BYTES_MIN, _GROWTH * len(data)))
    while True:
        buffer = bytearray(room)
        try:
            size = unpack(data, buffer)
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):  # in the message for a full buffer
                raise CorruptBatch(f"{codec}: {error}") from error
        else:
            return bytes(memoryview(buffer)[:size])
        if room >= bytes_max:
            raise _too_large(codec, len(data), bytes_max)
        room = min(bytes_max, room * _GROWTH)
