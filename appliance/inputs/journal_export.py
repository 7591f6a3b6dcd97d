"""Reads the Journal Export Format, as ``journalctl --output=export`` writes it.

An entry is a sequence of fields and an empty line.  A field is ``NAME=value`` and a line break, or, if its value has
line breaks or is binary, ``NAME``, a line break, its length as 64 bits little-endian, the value, and a line break.
Source: systemd.io/JOURNAL_EXPORT_FORMATS.

Bounds: the values of an entry have ``entry_bytes_max`` bytes together; one that does not fit is None, whatever its
length, and takes no memory.  FIELDS_MAX fields of an entry are kept.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ..errors import ApplianceError

FIELDS_MAX: Final = 2_048
"""Fields of an entry; journald takes 1,024."""
NAME_BYTES_MAX: Final = 64
_NAME: Final = re.compile(rb"[!-<>-~]{1,%d}" % NAME_BYTES_MAX)
_LENGTH_BYTES: Final = 8


class ExportFault(ApplianceError):
    """What is read is not in this format."""


class JournalEntry(NamedTuple):
    """``fields``: in their order, names may come more than once; ``left_out``: fields beyond FIELDS_MAX."""

    fields: list[tuple[str, bytes | None]]
    left_out: int

    def first(self, name: str) -> bytes:
        """The first value of a field; b"" if it has none."""
        return next((value for key, value in self.fields if key == name and value is not None), b"")


class ExportReader:
    """Takes bytes in pieces of any length, and gives whole entries."""

    def __init__(self, entry_bytes_max: int) -> None:
        self._entry_bytes_max = entry_bytes_max
        self._buffer = bytearray()
        self._seen = 0  # bytes of the buffer that have no line break
        self._skip = 0  # bytes that are still to come of a value that is not kept, with its line break
        self._in_line = False  # what comes belongs to a line that is not kept, up to its line break
        self._begin()

    def _begin(self) -> None:
        self._fields: list[tuple[str, bytes | None]] = []
        self._left_out, self._room = 0, self._entry_bytes_max

    @property
    def held_bytes(self) -> int:
        """Memory for what may go on: the buffer, and the values of the entry that is open."""
        return len(self._buffer) + self._entry_bytes_max - self._room

    @property
    def is_within_entry(self) -> bool:
        """Whether what was fed ends before the empty line of an entry."""
        return bool(self._buffer or self._fields or self._left_out or self._skip or self._in_line)

    def feed(self, data: bytes) -> list[JournalEntry]:
        """Raises ExportFault: the reader is of no use any more."""
        self._buffer += data
        entries: list[JournalEntry] = []
        at = 0
        while True:
            after = self._step(at, entries)
            if after < 0:
                break
            at = after
        del self._buffer[:at]
        return entries

    def _step(self, at: int, entries: list[JournalEntry]) -> int:
        """Read what is at ``at``; return where the next begins, -1: more bytes are needed."""
        buffer = self._buffer
        if self._skip:
            count = min(self._skip, len(buffer) - at)
            self._skip -= count
            if not self._skip and buffer[at + count - 1] != 10:
                raise ExportFault("a value does not end with a line break")
            return at + count if count else -1
        end = buffer.find(b"\n", at + self._seen)
        if self._in_line:
            self._in_line = end < 0
            return end + 1 if end >= 0 else len(buffer) if at < len(buffer) else -1
        if end < 0:
            self._seen = len(buffer) - at
            if self._seen <= NAME_BYTES_MAX + 1 + self._entry_bytes_max:
                return -1
            self._seen, self._in_line = 0, True
            self._add(bytes(buffer[at : at + NAME_BYTES_MAX + 1]).partition(b"=")[0], None)
            return len(buffer)
        line = bytes(buffer[at:end])
        name, separator, value = line.partition(b"=")
        if line and not separator:
            return self._binary(name, at, end + 1)
        self._seen = 0
        if separator:
            self._add(name, value)
        else:
            entries.append(JournalEntry(self._fields, self._left_out))
            self._begin()
        return end + 1

    def _binary(self, name: bytes, at: int, start: int) -> int:
        """A value with its length, which is at ``start``."""
        buffer = self._buffer
        self._seen = start - 1 - at
        value_at = start + _LENGTH_BYTES
        if len(buffer) < value_at:
            return -1
        length = int.from_bytes(buffer[start:value_at], "little")
        stop = value_at + length
        if length <= self._room:
            if len(buffer) <= stop:
                return -1
            if buffer[stop] != 10:
                raise ExportFault("a value does not end with a line break")
            self._add(name, bytes(buffer[value_at:stop]))
            value_at = stop + 1
        else:
            self._add(name, None)
            self._skip = length + 1
        self._seen = 0
        return value_at

    def _add(self, name: bytes, value: bytes | None) -> None:
        if not _NAME.fullmatch(name):
            raise ExportFault(f"no name of a field: {name[:64]!r}")
        if len(self._fields) >= FIELDS_MAX:
            self._left_out += 1
            return
        if value is not None and len(value) > self._room:
            value = None
        self._room -= len(value or b"")
        self._fields.append((name.decode(), value))
