"""Syslog as bytes: cuts streams into messages, and takes headers from each: RFC 3164, RFC 5424, RFC 6587.

Framing of a stream is decided by its first bytes, once (:class:`Framing`)::

    digits and a space        octet counting: ``LENGTH SP MESSAGE``; terminators between messages are skipped
    anything else             every message ends with LF, CR LF or NUL

What a message says in its first fields becomes headers (:class:`SyslogParser`); the message itself stays as it came,
but for one terminator at its end, which some senders also count, and put into datagrams.  Nothing between two
terminators is no message.

==========  ============================================================================================================
header      value
==========  ============================================================================================================
host        the name in the message, else the address of its sender
app         APP-NAME, or TAG without its process id
facility    ``kern``, ``user``, ..., ``local7``
severity    ``emerg``, ``alert``, ``crit``, ``err``, ``warning``, ``notice``, ``info``, ``debug``
time        as RFC 3339; that of RFC 3164 has no year and no zone: the last one that is not AHEAD_S from now, and ours
part        the number of the part, from 1 on, of a message that was too long; all have the headers of the first
format      ``raw``: it is neither of the two formats
==========  ============================================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, NamedTuple, TypeVar

from ..errors import BadValue
from ..records.encode import encode_headers, put_header_first
from .intake import InputMessage
from .lines import Block, LineReader, utf8_cut
from .machinery import InputTopics

K = TypeVar("K")
V = TypeVar("V")

FACILITIES: Final = (
    *("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp"),
    *("ntp", "audit", "alert", "clock", *(f"local{number}" for number in range(8))),
)
SEVERITIES: Final = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
UNKNOWN: Final = "unknown"
"""Stands in a topic for a field that a message does not have."""
KNOWN_MAX: Final = 10_000
"""Entries of what is known of first fields."""
AHEAD_S: Final = 30 * 86_400
"""A clock of a sender may be so far ahead."""

_PRI: Final = rb"<(1[0-8]\d|19[01]|\d{1,2})>"
_ISO: Final = (
    rb"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])T(?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)(?:\.\d{1,9})?"
    rb"(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
)
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_BSD: Final = rb"[A-Z][a-z]{2} [ \d]?\d (?:\d{4} )?\d\d:\d\d:\d\d(?:\.\d{1,9})?"
_PRINTED: Final = rb"[!-~]"
# Every repetition is bounded or ends at a space, so no message takes long to refuse.
match_5424: Final = re.compile(
    rb"%b[1-9]\d{0,2} (?:-|(%b)) (?:-|(%b{1,255})) (?:-|(%b{1,48})) %b{1,128} %b{1,32} (?:-(?![^ ])|\[)"
    % (_PRI, _ISO, _PRINTED, _PRINTED, _PRINTED, _PRINTED)
).match
match_3164: Final = re.compile(
    rb"%b ?(?:(?:(%b)|(%b)):? (?:([^\s\[\]]{1,255})(?<!:) )?)?"
    rb"(?:([A-Za-z_/%%(][^\s:\[\]]{0,47})(?:\[[^\]\s]{0,64}\])?:(?![:/\\]))?" % (_PRI, _BSD, _ISO)
).match
# The usual first fields: of RFC 3164 as one group, of RFC 5424 as three, the second one the time.  What the patterns
# above find depends on nothing else of these messages.
_usual: Final = re.compile(
    rb"(%b[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [^\s:\[\]]{1,255} [A-Za-z_/%%(][^\s:\[\]]{0,47})"
    rb"(?:\[[^\]\s]{0,64}\])?:(?![:/\\])"
    rb"|(%b[1-9]\d{0,2} )(%b)( [!-,.-~]%b{0,254} %b{1,48}) %b{1,128} %b{1,32} (?:-(?![^ ])|\[)"
    % (_PRI.replace(b"(", b"(?:", 1), _PRI.replace(b"(", b"(?:", 1), _ISO, _PRINTED, _PRINTED, _PRINTED, _PRINTED)
).match
_begins_5424: Final = re.compile(rb"<\d{1,3}>[1-9]\d{0,2} ").match
_BSD_FIELDS: Final = re.compile(r"(\w{3})  ?(\d+) (?:(\d{4}) )?(\d\d):(\d\d):(\d\d)(\.\d+)?")


# ---- framing


class Frames(NamedTuple):
    """Messages that follow each other; ``part``: 0: whole ones, else the number of the part of a long one."""

    values: list[bytes]
    part: int = 0


Counted = tuple[tuple[bytes, ...], bytes, int, bool]
"""A message, or a part of one, behind a header that has its length.

The groups of the header; the value; 0 for a whole message, else the number of the part; whether it ends here.
"""


def without_terminator(message: bytes) -> bytes:
    """A message without the one terminator that some senders put at its end, also where its length is known."""
    if message[-1:] > b"\n":
        return message
    if message.endswith(b"\r\n"):
        return message[:-2]
    return message[:-1] if message.endswith((b"\0", b"\n")) else message


class CountedReader:
    """Cuts a stream of headers with a length and so many bytes behind each.  Sans I/O."""

    def __init__(self, header: re.Pattern[bytes], header_bytes_max: int, message_bytes_max: int) -> None:
        """``header``: its last group is the length."""
        self._match, self._header_bytes_max, self._message_bytes_max = header.match, header_bytes_max, message_bytes_max
        self._held = b""
        self._fields: tuple[bytes, ...] = ()
        self._left = 0  # bytes of a long message that are in no part yet
        self._part = 0
        self.is_broken = False
        """What follows cannot be cut: nothing more is taken."""

    def feed(self, data: bytes) -> list[Counted]:
        """Take the bytes that follow; return the messages that are complete, and parts of a long one."""
        data = self._held + data if self._held else data
        messages: list[Counted] = []
        at = self._add_parts(data, 0, messages) if self._left else 0
        while not self._left and not self.is_broken:
            at = self._add_whole(data, at, messages)
            header = self._match(data, at)
            if header is None:
                self.is_broken = len(data) - at > self._header_bytes_max
                break
            fields = header.groups()
            size = int(fields[-1])
            if size <= self._message_bytes_max:
                break
            self._fields, self._left, self._part = fields, size, 0
            at = self._add_parts(data, header.end(), messages)
        self._held = data[at:]
        return messages

    def _add_whole(self, data: bytes, at: int, messages: list[Counted]) -> int:
        """Return the messages that are complete; say where the next one begins."""
        match, size_max, end = self._match, self._message_bytes_max, len(data)
        while (header := match(data, at)) is not None:
            fields, start = header.groups(), header.end()
            size = int(fields[-1])
            stop = start + size
            if size > size_max or stop > end:
                break
            value = data[start:stop]
            if value[-1:] <= b"\n":
                value = without_terminator(value)
            messages.append((fields, value, 0, True))
            at = stop
        return at

    def _add_parts(self, data: bytes, at: int, messages: list[Counted]) -> int:
        """Return parts of a long message; say where the bytes begin that wait."""
        size_max = self._message_bytes_max
        while self._left and (len(data) - at > size_max or len(data) - at >= self._left):
            size = self._left if self._left <= size_max else utf8_cut(data[at : at + size_max + 1], size_max)
            self._left -= size
            self._part += 1
            value = data[at : at + size]
            value = value if self._left else without_terminator(value)
            messages.append((self._fields, value, self._part, not self._left))
            at += size
        return at

    def finish(self) -> list[Counted]:
        """The stream has ended, or cannot be cut: return what is left of it."""
        held, self._held = self._held, b""
        fields, part = (self._fields, self._part + 1) if self._left else ((), 0)
        header = None if self._left or self.is_broken else self._match(held)
        if header is not None:
            fields, held = header.groups(), held[header.end() :]
        self._left = 0
        if len(held) > self._message_bytes_max:
            part = max(part, 1)
        messages: list[Counted] = []
        while held:
            size = utf8_cut(held, self._message_bytes_max) if len(held) > self._message_bytes_max else len(held)
            messages.append((fields, held[:size], part, size == len(held)))
            held, part = held[size:], part + 1
        return messages


OCTETS: Final = re.compile(rb"[\r\n\0]{0,3}([1-9]\d{0,8}) ")
OCTETS_HEADER_BYTES_MAX: Final = 13
"""A length, its space, and terminators of the message before."""
_may_be_octets: Final = re.compile(rb"[1-9]\d{0,8} ?\Z").match


class Framing:
    """Cuts the stream of one connection; see the module's docstring.  Sans I/O."""

    def __init__(self, message_bytes_max: int) -> None:
        self._message_bytes_max = message_bytes_max
        self._first = b""
        self._octets: CountedReader | None = None
        self._lines: LineReader | None = None

    @property
    def is_broken(self) -> bool:
        """Octet counting does not fit: nothing more is taken."""
        return self._octets is not None and self._octets.is_broken

    def feed(self, data: bytes) -> list[Frames]:
        """Take the bytes that follow; return the messages that are complete, and parts of a long one."""
        if self._lines is None and self._octets is None:
            data = self._first + data
            if not data or (_may_be_octets(data) and data[-1:] != b" "):  # more digits, or a space, decide
                self._first = data
                return []
            self._first = b""
            self._decide(data)
        if self._lines is not None:
            return self._frames_of_lines(self._lines, data)
        assert self._octets is not None
        return _grouped(self._octets.feed(data))

    def finish(self) -> list[Frames]:
        """The stream has ended, or cannot be cut: return what is left of it."""
        blocks: list[Frames] = []
        if self._first:
            first, self._first = self._first, b""
            self._decide(b"")
            assert self._lines is not None
            blocks += self._frames_of_lines(self._lines, first)
        if self._lines is not None:
            blocks += _without_empty(self._lines.finish())
        elif self._octets is not None:
            rest = self._octets.finish()
            blocks += _grouped([counted for counted in rest if counted[0] or counted[1].strip(b"\r\n\0")])
        return blocks

    def _decide(self, data: bytes) -> None:
        size = self._message_bytes_max
        if OCTETS.match(data) and data[:1].isdigit():
            self._octets = CountedReader(OCTETS, OCTETS_HEADER_BYTES_MAX, size)
        else:
            # A block of this reader is what is read at a time: the intake makes its own.
            self._lines = LineReader(0, 1, message_bytes_max=size, block_bytes_max=1 << 40, record_bytes=0)

    def _frames_of_lines(self, lines: LineReader, data: bytes) -> list[Frames]:
        if b"\0" in data:
            data = data.replace(b"\0", b"\n")
        return _without_empty(lines.feed(data))


def _without_empty(blocks: Sequence[Block]) -> list[Frames]:
    kept: list[Frames] = []
    for block in blocks:
        values = [value for value in block.values if value] if b"" in block.values else block.values
        if values:
            kept.append(Frames(values, block.part))
    return kept


def _grouped(counted: Sequence[Counted]) -> list[Frames]:
    """Whole messages that follow each other together."""
    blocks: list[Frames] = []
    whole: list[bytes] | None = None
    for _, value, part, _ in counted:
        if not value:
            continue
        if part:
            blocks.append(Frames([value], part))
            whole = None
        elif whole is None:
            whole = [value]
            blocks.append(Frames(whole))
        else:
            whole.append(value)
    return blocks


def split_message(value: bytes, message_bytes_max: int) -> list[Frames]:
    """A message that is too long, in parts."""
    parts: list[Frames] = []
    while value:
        size = utf8_cut(value, message_bytes_max) if len(value) > message_bytes_max else len(value)
        parts.append(Frames([value[:size]], len(parts) + 1))
        value = value[size:]
    return parts


# ---- headers


class _Sort(NamedTuple):
    """What messages have in common whose first fields are equal but for the time.

    Its headers are ``head`` + time + ``rest``.  ``topic`` is empty if there would be too many.
    """

    topic: str
    key: bytes | None
    head: bytes
    rest: bytes


class SyslogParser:
    """Makes messages with headers of the messages of syslog; one for all senders of an input."""

    def __init__(self, topics: InputTopics, key: str, clock_s: Callable[[], float]) -> None:
        """``key``: the field that is the key, or empty."""
        self._topics, self._key, self._clock_s = topics, key, clock_s
        self._sorts: dict[tuple[str, bytes, bytes | None, bytes | None, int], _Sort] = {}
        self._times: dict[bytes, bytes] = {}
        self._whole: dict[bytes, tuple[str, bytes | None, bytes]] = {}
        self._framed: dict[tuple[bytes, int, bytes], _Sort] = {}
        self._hour = 0

    def parse(self, values: Sequence[bytes], host: str) -> dict[str, list[InputMessage]]:
        """Messages by topic; those under "" belong to one topic too many.  ``host``: the address of their sender."""
        self._forget_times()
        whole, framed = self._whole, self._framed
        by_topic: dict[str, list[InputMessage]] = {}
        for value in values:
            usual = _usual(value)
            if usual is not None and usual.lastindex == 1:
                remembered = whole.get(usual[1])
                if remembered is None:
                    sort, time = self._parse(value, host)
                    remembered = _remember(whole, usual[1], (sort.topic, sort.key, sort.head + time + sort.rest))
                topic, key, tail = remembered
            else:
                if usual is None:
                    sort, time = self._parse(value, host)
                else:
                    _, front, time, back = usual.groups()
                    framed_key = front, len(time), back
                    sort = framed.get(framed_key) or _remember(framed, framed_key, self._parse(value, host)[0])
                topic, key, head, rest = sort
                tail = head + time + rest
            message = InputMessage(value, tail, key)
            if topic in by_topic:
                by_topic[topic].append(message)
            else:
                by_topic[topic] = [message]
        return by_topic

    def _parse(self, value: bytes, host: str) -> tuple[_Sort, bytes]:
        """What a message has in common with others, and its time."""
        fields = match_5424(value)
        if fields is not None:
            pri, time, name, app = fields.groups()
        elif (fields := match_3164(value)) is not None:
            pri, bsd, time, name, app = fields.groups()
            if bsd is not None:
                time = self._times.get(bsd)
                if time is None:
                    time = self._add_time(bsd)
            elif app is None and time is None and _begins_5424(value):
                name = b""
        else:
            pri, time, name, app = b"", b"", b"", None
        time = time or b""
        sort = self._sorts.get((host, pri, name, app, len(time)))
        if sort is None:
            made = self._make_sort(host, pri, name, app, len(time))
            sort = _remember(self._sorts, (host, pri, name, app, len(time)), made)
        return sort, time

    def _make_sort(self, host: str, pri: bytes, name: bytes | None, app: bytes | None, time_bytes: int) -> _Sort:
        """``name``: None: the message has none; empty: it has neither of the formats."""
        shown = name or host.encode("utf-8", "surrogateescape")
        headers: list[tuple[str, bytes | None]] = [("host", shown)]
        fields = {"host": shown.decode("utf-8", "replace"), "app": UNKNOWN, "facility": UNKNOWN, "severity": UNKNOWN}
        if app:
            headers.append(("app", app))
            fields["app"] = app.decode("utf-8", "replace")
        if pri:
            facility, severity = FACILITIES[int(pri) >> 3], SEVERITIES[int(pri) & 7]
            headers += [("facility", facility.encode()), ("severity", severity.encode())]
            fields |= {"facility": facility, "severity": severity}
        if name == b"":
            headers.append(("format", b"raw"))
        head, rest = encode_headers(headers), b""
        if time_bytes:
            mark = b"\xff" * time_bytes
            head, _, rest = put_header_first(head, "time", mark).partition(mark)
        try:
            topic = self._topics.topic_for(fields)
        except BadValue:
            topic = ""
        key = shown if self._key == "host" else app if self._key == "app" else None
        return _Sort(topic, key, head, rest)

    # ---- times of RFC 3164

    def _forget_times(self) -> None:
        """Those of an hour ago: the year and the zone that they got may be others now."""
        hour = int(self._clock_s()) // 3600
        if hour != self._hour:
            self._hour = hour
            self._times.clear()
            self._whole.clear()

    def _add_time(self, text: bytes) -> bytes:
        return _remember(self._times, text, time_of_3164(text, self._clock_s()).encode())


def _remember(memory: dict[K, V], key: K, value: V) -> V:
    """Add to what is known, of which there is at most KNOWN_MAX."""
    if len(memory) >= KNOWN_MAX:
        memory.clear()
    memory[key] = value
    return value


def with_part(message: InputMessage, part: int) -> InputMessage:
    return message._replace(tail=put_header_first(message.tail, "part", str(part).encode()))


def time_of_3164(text: bytes, now_s: float) -> str:
    """``Oct 11 22:14:15`` as RFC 3339, in our zone; "" if there is no such time."""
    match = _BSD_FIELDS.fullmatch(text.decode("ascii", "replace"))
    if match is None:
        return ""
    month, day = _MONTHS.index(match[1]) + 1 if match[1] in _MONTHS else 0, int(match[2])
    this_year = datetime.fromtimestamp(now_s).year
    times: list[datetime] = []
    for year in [int(match[3])] if match[3] else [this_year - 1, this_year, this_year + 1]:
        try:
            times.append(datetime(year, month, day, int(match[4]), int(match[5]), int(match[6])).astimezone())
        except (ValueError, OverflowError):  # no such day in that year, or no such year
            continue
    if not times:
        return ""
    latest = max([time for time in times if time.timestamp() <= now_s + AHEAD_S], default=times[0])
    text_of = latest.isoformat()
    return f"{text_of[:19]}{match[7] or ''}{text_of[19:]}"
