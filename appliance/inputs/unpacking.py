"""Unpacks compressed files piece by piece: gzip, xz, bzip2 and zstd, as those who rotate logs write them.

Whoever may write logs may write such a file, too, and make it a bomb: a call takes in PACKED_BYTES at most and returns
no more than it is asked for, a file may unpack to RATIO_MAX times its size, and a decoder takes MEMORY_BYTES_MAX.
"""

from __future__ import annotations

import bz2
import contextlib
import lzma
import os
import re
import threading
import zlib
from typing import Any, Final, Protocol

import cramjam

from .generation import HEAD_BYTES, TAIL_BYTES, FileKey

GZIP: Final = b"\x1f\x8b"
XZ: Final = b"\xfd7zXZ\0"
ZSTD: Final = b"\x28\xb5\x2f\xfd"
BZIP2: Final = b"BZh"
_GZIP_WINDOW: Final = 31
_GZIP_BYTES_MIN: Final = 18
_SUFFIX: Final = re.compile(r"\.(gz|xz|zst|bz2)$")

PACKED_BYTES: Final = 64 * 1024
"""What is read of a compressed file at a time."""
RATIO_MAX: Final = 1_000
"""What gzip reaches at most; xz and bzip2 more, of nothing but the same line."""
ALWAYS_BYTES: Final = 64 << 20
"""What a file may unpack to, however small it is."""
MEMORY_BYTES_MAX: Final = 80 << 20
"""Of a decoder of xz: ``xz -9`` needs 65 MiB, xz without an option 9."""
ZSTD_BYTES_MAX: Final = 32 << 20
"""Of a compressed file of zstd: its decoder wants all of it."""


class _Decoder(Protocol):
    """As the decompressors of the standard library have it."""

    @property
    def needs_input(self) -> bool: ...
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Gzip:
    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(_GZIP_WINDOW)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    @property
    def unused_data(self) -> bytes:
        return self._decoder.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        out = self._decoder.decompress(self._decoder.unconsumed_tail + data, max_length)
        self.needs_input = not self._decoder.unconsumed_tail and len(out) < max_length
        return out


def _decoder_of(head: bytes) -> _Decoder | None:
    if head.startswith(GZIP):
        return _Gzip()
    if head.startswith(XZ):
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY_BYTES_MAX)
    if head.startswith(BZIP2):
        return bz2.BZ2Decompressor()
    return None


class _Zstd:
    """Its decoder writes to a pipe, in a thread that waits until somebody reads there: so memory is bounded."""

    def __init__(self, data: bytes) -> None:
        self._reading, writing = os.pipe2(os.O_CLOEXEC)
        self._fault = ""
        self._thread = threading.Thread(target=self._run, args=(data, writing), daemon=True)
        self._thread.start()

    def _run(self, data: bytes, writing: int) -> None:
        try:
            sink: Any = cramjam.File(f"/proc/self/fd/{writing}", read=False, write=False, truncate=False, append=True)
            cramjam.zstd.decompress_into(data, sink)
        except (cramjam.DecompressionError, OSError) as error:  # OSError: nobody reads any more
            self._fault = str(error) or type(error).__name__
        finally:
            os.close(writing)

    def read(self, count: int) -> tuple[bytes, str]:
        """Some bytes; none at the end, and why there are no more if it is no good one."""
        data = os.read(self._reading, count)
        if data:
            return data, ""
        self._thread.join()
        return b"", self._fault

    def close(self) -> None:
        os.close(self._reading)


class Unpacker:
    """What a compressed file has, from its beginning to its end.

    ``position``: how much was read, of ``packed_at`` bytes of the file; ``head``: the first HEAD_BYTES, as far as they
    were ever read; ``recent``: the last TAIL_BYTES before the position; ``is_over``: there is no more; ``fault``: since
    it cannot be unpacked, and why.
    """

    def __init__(self, fd: int, path: str = "") -> None:
        """``fd``: it is closed with this; ``path``: for messages."""
        self._fd, self.path = fd, path
        self._zstd: _Zstd | None = None
        self.head = b""
        self._begin()

    def _begin(self) -> None:
        self.position, self.recent = 0, b""
        self.is_over, self.fault = False, ""
        self.packed_at = 0
        self._is_first = True  # of the members that it may have, one behind the other
        self._decoder: _Decoder | None = None
        self._pending = b""  # that was read, and is not decoded yet

    @property
    def key(self) -> FileKey:
        return FileKey.of_fd(self._fd)

    def restart(self) -> None:
        """From the beginning again."""
        self._stop_zstd()
        self._begin()

    def close(self) -> None:
        self._stop_zstd()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _stop_zstd(self) -> None:
        if self._zstd is not None:
            self._zstd.close()
            self._zstd = None

    def read(self, count: int) -> bytes:
        """At most so many of the bytes that follow; b"": none yet, or ``is_over``.  Raises OSError."""
        assert count > 0  # 0 is no bound for zlib
        if self.is_over:
            return b""
        if self._zstd is None and self._decoder is None and not self._begin_member():
            return b""
        data = self._read_zstd(count) if self._zstd is not None else self._decode(count)
        if self.position == len(self.head) < HEAD_BYTES:
            self.head += data[: HEAD_BYTES - len(self.head)]
        self.position += len(data)
        self.recent = (self.recent + data[-TAIL_BYTES:])[-TAIL_BYTES:]
        if self.position > ALWAYS_BYTES + RATIO_MAX * self.packed_at:
            self._end(f"it unpacks to more than {RATIO_MAX:,} times its size")
        return data

    def skip_to(self, position: int, count: int) -> None:
        """Read at most ``count`` bytes of those before another position.  Raises OSError."""
        if position < self.position:
            self.restart()
        if position > self.position:
            self.read(min(count, position - self.position))

    def _end(self, fault: str = "") -> None:
        self.is_over, self.fault = True, self.fault or fault

    def _fill(self) -> bool:
        data = os.pread(self._fd, PACKED_BYTES, self.packed_at)
        self.packed_at += len(data)
        self._pending += data
        return bool(data)

    def _begin_member(self) -> bool:
        """False: there is none.  What else is behind the members is padding."""
        if len(self._pending) < len(XZ):
            self._fill()
        if self._is_first and self._pending.startswith(ZSTD):
            self._begin_zstd()
            return not self.is_over
        if not self._is_first:
            self._pending = self._pending.lstrip(b"\0")
        self._decoder = _decoder_of(self._pending)
        if self._decoder is None:
            self._end("it is not compressed" if self._is_first else "")
        return self._decoder is not None

    def _decode(self, count: int) -> bytes:
        decoder = self._decoder
        assert decoder is not None
        if decoder.needs_input and not self._pending and not self._fill():
            self._end("it ends before its end")
            return b""
        data, self._pending = self._pending, b""
        try:
            out = decoder.decompress(data, count)
        except (zlib.error, lzma.LZMAError, OSError, EOFError) as error:
            self._end(str(error))
            return b""
        if decoder.eof:
            self._pending, self._decoder = decoder.unused_data, None
            self._is_first = False
        return out

    def _begin_zstd(self) -> None:
        size = os.fstat(self._fd).st_size
        if size > ZSTD_BYTES_MAX:
            self._end(f"it is of zstd, and has more than {ZSTD_BYTES_MAX >> 20} MiB")
            return
        data = os.pread(self._fd, size, 0)
        self.packed_at = len(data)
        self._zstd = _Zstd(data)

    def _read_zstd(self, count: int) -> bytes:
        assert self._zstd is not None
        data, fault = self._zstd.read(count)
        if not data:
            self._end(fault)
        return data


def has_compressed_name(path: str) -> bool:
    return _SUFFIX.search(path) is not None


def without_suffix(path: str) -> str:
    """The name that a file had before it was compressed."""
    return _SUFFIX.sub("", path)


def is_compressed(head: bytes) -> bool:
    return head.startswith((GZIP, XZ, ZSTD, BZIP2))


def unpacked_size(fd: int) -> int | None:
    """How much a file of gzip unpacks to, as its end says modulo 4 GiB; None: of another kind.  Raises OSError."""
    size = os.fstat(fd).st_size
    if size < _GZIP_BYTES_MIN or not os.pread(fd, 2, 0).startswith(GZIP):
        return None
    return int.from_bytes(os.pread(fd, 4, size - 4), "little")


def unpacked_head(fd: int) -> bytes:
    """The first HEAD_BYTES, or fewer, of what a compressed file has; b"" if it cannot be unpacked.  Raises OSError."""
    with contextlib.closing(Unpacker(os.dup(fd))) as unpacker:
        packed_max = 16 * PACKED_BYTES  # a block of bzip2 has 900 kB
        while not unpacker.is_over and len(unpacker.head) < HEAD_BYTES and unpacker.packed_at < packed_max:
            unpacker.read(HEAD_BYTES)
        return unpacker.head
