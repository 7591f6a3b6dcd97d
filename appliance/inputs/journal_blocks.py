"""Makes blocks of messages of the entries of a journal, and says which entries are missing.

``journalctl`` is begun *at* the entry that was taken last, and writes that one again: so it is known whether it still
is there.

==============================  ====================================================================================
an entry that comes             then
==============================  ====================================================================================
first, up to the one that was   it was read before
taken last
with the next sequence number   nothing is missing before it
with a later one                those between are a gap: removed before they were read, or damaged
first, is not the one that was  a gap of unknown length: what was taken last is not there any more
taken last, and none of above
==============================  ====================================================================================

journald numbers the entries of all files of a host in one sequence, so numbers tell nothing when only some entries are
asked for, or some files cannot be read.

The value of a message is the entry as JSON, as ``journalctl --output=json --all`` has it; a field that does not fit is
null, or left out.  Headers, where the entry has them:

==========  ========================================================================================================
host        ``_HOSTNAME``
app         ``SYSLOG_IDENTIFIER``, else ``_COMM``
unit        ``_SYSTEMD_UNIT``
facility    ``SYSLOG_FACILITY`` by its name: ``kern``, ``user``, ..., ``local7``
severity    ``PRIORITY`` by its name: ``emerg``, ..., ``debug``
time        ``__REALTIME_TIMESTAMP``, as RFC 3339
cut         names of fields that did not fit
==========  ========================================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from ..client.outgoing import PLAIN_BYTES
from ..records.encode import encode_headers
from .journal_export import ExportFault, ExportReader, JournalEntry
from .syslog_format import FACILITIES, SEVERITIES

START: Final = "-"
"""Stands for a cursor before the first entry."""
CURSOR_BYTES_MAX: Final = 160
HEADER_BYTES_MAX: Final = 200
"""Bytes of the value of a header."""
TAIL_BYTES_MAX: Final = 1_500
"""Upper bound of what a message takes beside its value."""
SEQUENCES_MAX: Final = 1_000
"""Hosts, or lives of a journal, whose numbers are followed at a time."""
REMOVED: Final = "removed from the journal, or damaged, before they were read"
GONE: Final = "what was read last is not in the journal any more"
_PLAIN_HEADERS: Final = (
    ("host", ("_HOSTNAME",)),
    ("app", ("SYSLOG_IDENTIFIER", "_COMM")),
    ("unit", ("_SYSTEMD_UNIT",)),
)
_NAMED_HEADERS: Final = (("facility", "SYSLOG_FACILITY", FACILITIES), ("severity", "PRIORITY", SEVERITIES))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_US_MAX: Final = 253_402_300_799_999_999
_SEQUENCE_NUMBER: Final = re.compile(r"[0-9a-fA-F]{1,16}")
"""64 bits in hexadecimal, as journald writes them.  ``int`` also takes signs, blanks, ``_``, ``0x`` and any length; a
number beyond 64 bits could not be written to the ledger."""
_AROUND_BYTES: Final = 6
"""Bytes of JSON around a name and a value."""

_encode_json = msgspec.json.Encoder().encode


class JournalGap(NamedTuple):
    """As :meth:`.ledger.Ledger.note_gap` wants it."""

    start: int
    stop: int | None
    unit: str
    reason: str


class JournalBlock:
    """The entries [start, stop) of a source, for one batch.

    ``cursor``: of the last one; ``gaps``: before one of them; ``cut``: how many have not all of their fields.
    """

    def __init__(self, start: int) -> None:
        self.start, self.stop, self.cursor = start, start, ""
        self.values: list[bytes] = []
        self.tails: list[bytes] = []
        self.gaps: list[JournalGap] = []
        self.bytes = self.cut = 0

    @property
    def units(self) -> tuple[int, int, int, int]:
        """Start, stop, number of the first one, how many: as :class:`.positions.BlockOrigin` has them."""
        return self.start, self.stop, self.start + 1, self.stop - self.start


class JournalReader:
    """Takes what one ``journalctl`` writes, in pieces of any length."""

    def __init__(
        self, cursor: str, position: int, *, block_bytes_max: int, entry_bytes_max: int, has_all: bool
    ) -> None:
        """``cursor``, ``position``: of what was taken last; ``has_all``: every entry of the journal will come."""
        self._export = ExportReader(entry_bytes_max)
        self._cursor, self._position, self._has_all = cursor, position, has_all
        self._block_bytes_max, self._entry_bytes_max = block_bytes_max, entry_bytes_max
        self._joined = cursor == START  # whether what comes follows what was taken
        self._numbers: dict[str, int] = {}  # the last sequence number, by the id of the sequence
        if number := sequence_number_of(cursor):
            self._numbers[number[0]] = number[1]

    def feed(self, data: bytes) -> list[JournalBlock]:
        """Raises ExportFault."""
        blocks: list[JournalBlock] = []
        for entry in self._export.feed(data):
            cursor = cursor_of(entry)
            was_read, gap = self._compare(cursor)
            if was_read:
                continue
            value, cut = json_of(entry, self._entry_bytes_max)
            tail = encode_headers(headers_of(entry, cut))
            size = len(value) + len(tail) + PLAIN_BYTES
            if not blocks or blocks[-1].bytes + size > self._block_bytes_max:
                blocks.append(JournalBlock(self._position))
            block = blocks[-1]
            self._position += 1
            block.stop, block.cursor = self._position, cursor
            block.bytes += size
            block.cut += bool(cut)
            block.values.append(value)
            block.tails.append(tail)
            if gap is not None:
                block.gaps.append(gap)
        return blocks

    def _compare(self, cursor: str) -> tuple[bool, JournalGap | None]:
        """Whether an entry was read before, else what is missing before it."""
        if not self._joined and cursor == self._cursor:
            self._joined = True
            return True, None
        number = sequence_number_of(cursor)
        last = self._numbers.get(number[0]) if number else None
        gap = None
        if number and last is not None:
            if not self._joined and number[1] <= last:
                return True, None
            if number[1] > last + 1 and self._has_all:
                gap = JournalGap(last + 1, number[1], "sequence numbers", REMOVED)
        if not self._joined and gap is None and not (number and last is not None and number[1] == last + 1):
            gap = JournalGap(self._position, None, "entries", GONE)
        self._joined = True
        if number:
            if len(self._numbers) >= SEQUENCES_MAX and number[0] not in self._numbers:
                del self._numbers[next(iter(self._numbers))]
            self._numbers[number[0]] = max(number[1], last or 0)
        return False, gap


def cursor_of(entry: JournalEntry) -> str:
    """Raises ExportFault: it has none that can be a position."""
    cursor = entry.first("__CURSOR").decode("ascii", "replace")
    if not cursor.isascii() or not cursor.isprintable() or " " in cursor or not 1 < len(cursor) <= CURSOR_BYTES_MAX:
        raise ExportFault(f"an entry with the cursor {cursor[:CURSOR_BYTES_MAX]!r}")
    return cursor


def sequence_number_of(cursor: str) -> tuple[str, int] | None:
    """The id of a sequence and the number in it, which a cursor of journald begins with: ``s=ID;i=NUMBER;``."""
    if len(cursor) > CURSOR_BYTES_MAX:
        return None
    words = dict(word.partition("=")[::2] for word in cursor.split(";"))
    number = words.get("i", "")
    return (words["s"], int(number, 16)) if "s" in words and _SEQUENCE_NUMBER.fullmatch(number) else None


def json_of(entry: JournalEntry, bytes_max: int) -> tuple[bytes, list[str]]:
    """An entry as JSON, and the names of fields that did not fit.

    Text is a string, other bytes a list of numbers; a field that comes more than once is a list.
    """
    room = bytes_max - 2
    values_by_name: dict[str, list[bytes]] = {}
    cut = ["..."] if entry.left_out else []
    for name, value in entry.fields:
        around = len(name) + _AROUND_BYTES
        encoded = None if value is None or len(value) + around > room else _value(value, room - around)
        if encoded is None or len(encoded) + around > room:
            cut.append(name)
            encoded = b"null"
        if len(encoded) + around <= room:
            room -= len(encoded) + around
            values_by_name.setdefault(name, []).append(encoded)
    pairs = [
        b'"%s":%s' % (_escaped(name), values[0] if len(values) == 1 else b"[%s]" % b",".join(values))
        for name, values in values_by_name.items()
    ]
    return b"{%s}" % b",".join(pairs), cut


def _escaped(name: str) -> bytes:
    return _encode_json(name)[1:-1]


def _value(value: bytes, room: int) -> bytes | None:
    try:
        return _encode_json(value.decode())
    except UnicodeDecodeError:
        return _encode_json(list(value)) if 2 * len(value) <= room else None


def headers_of(entry: JournalEntry, cut: Sequence[str]) -> list[tuple[str, bytes | None]]:
    """As the module's docstring has them."""
    headers: list[tuple[str, bytes | None]] = []
    for header, names in _PLAIN_HEADERS:
        value = next((value for name in names if (value := entry.first(name))), b"")
        if value:
            headers.append((header, value[:HEADER_BYTES_MAX]))
    for header, name, words in _NAMED_HEADERS:
        digits = entry.first(name)
        if digits.isdigit() and len(digits) < 3 and int(digits) < len(words):
            headers.append((header, words[int(digits)].encode()))
    digits = entry.first("__REALTIME_TIMESTAMP")
    if digits.isdigit() and len(digits) < 20 and int(digits) <= _TIME_US_MAX:
        moment = _EPOCH + timedelta(microseconds=int(digits))
        headers.append(("time", f"{moment.isoformat(timespec='microseconds')[:26]}Z".encode()))
    if cut:
        headers.append(("cut", ",".join(cut).encode()[:HEADER_BYTES_MAX]))
    return headers
