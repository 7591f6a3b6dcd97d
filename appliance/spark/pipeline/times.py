"""Converts timestamps of log lines to microseconds since 1970, a column at a time.

Lines of a log share timestamps, so Python parses each different text once and caches the result; Arrow builds the
column.  Columns with many different ISO texts are first given to Arrow's own parser.

A text that is no time raises no error.  It becomes null, and its line a dead letter.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, Literal
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

Style = Literal["any", "rfc3164", "clf"]
MICROS: Final = pa.timestamp("us", tz="UTC")
MICROS_MAX: Final = 221_845_392_000_000_000
"""The year 9000.  Later times, and those before 1970, are invalid: windows must end within 9999, as Python's dates."""
CACHED_MAX: Final = 100_000
DAY: Final = timedelta(days=1)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MONTHS: Final = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1
    )
}
_CLF = re.compile(r"(\d\d)/([A-Z][a-z]{2})/(\d{4}):(\d\d):(\d\d):(\d\d) ([+-])(\d\d)(\d\d)")
_RFC3164 = re.compile(r"([A-Z][a-z]{2}) ([ \d]\d) (\d\d):(\d\d):(\d\d)(\.\d{1,6})?")
_NUMBER = re.compile(r"\d{1,19}(\.\d*)?")
_ZONED = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:?\d\d)$"


class Times:
    """Parses timestamps of one style.  ``zone``: the time zone of texts without one."""

    def __init__(self, style: Style, zone: str) -> None:
        self._zone = ZoneInfo(zone)
        self._iso = style == "any"
        self._parse: Callable[[str, datetime], datetime | None] = {
            "any": self._any,
            "rfc3164": self._rfc3164,
            "clf": _clf,
        }[style]
        self._known: dict[str, int | None] = {}
        self._year = 0

    def parse(self, texts: pa.Array, received: datetime) -> pa.Array:
        """Timestamps; null for null and for invalid texts.  ``received``: about when the lines were written."""
        if isinstance(texts, pa.ChunkedArray):
            texts = texts.combine_chunks()
        encoded = texts.dictionary_encode()
        distinct = encoded.dictionary
        if self._iso and len(distinct) > 1000 and pc.all(pc.match_substring_regex(distinct, _ZONED)).as_py():
            try:
                whole = distinct.cast(MICROS)
            except pa.ArrowInvalid:
                pass  # one of them is invalid, such as the 31st of February: parse them one by one
            else:
                if within(whole):
                    return whole.take(encoded.indices)
        if received.year != self._year or len(self._known) > CACHED_MAX:
            self._known.clear()
            self._year = received.year
        known, parse = self._known, self._one
        micros = [known[text] if text in known else parse(text, received) for text in distinct.to_pylist()]
        return pa.array(micros, pa.int64()).cast(MICROS).take(encoded.indices)

    def _one(self, text: str, received: datetime) -> int | None:
        try:
            found = self._parse(text, received)
            micros = None if found is None else (found - EPOCH) // timedelta(microseconds=1)
        except (ValueError, OverflowError):
            micros = None
        if micros is not None and not 0 <= micros <= MICROS_MAX:
            micros = None
        self._known[text] = micros
        return micros

    def _any(self, text: str, received: datetime) -> datetime | None:
        """ISO 8601, or seconds, milliseconds, microseconds or nanoseconds since 1970."""
        if _NUMBER.fullmatch(text):
            value = float(text)
            for limit, unit in ((1e11, 1), (1e14, 1e3), (1e17, 1e6), (1e20, 1e9)):
                if value < limit:
                    return EPOCH + timedelta(seconds=value / unit)
        found = datetime.fromisoformat(text)
        return found if found.tzinfo is not None else found.replace(tzinfo=self._zone)

    def _rfc3164(self, text: str, received: datetime) -> datetime | None:
        """Parse a time without a year: in the latest year that puts it at most a day after ``received``."""
        match = _RFC3164.fullmatch(text)
        if match is None:
            return self._any(text, received)
        month, day, *clock, fraction = match.groups()
        hour, minute, second = map(int, clock)
        micros = int(f"{(fraction or '.')[1:]:0<6}")
        for year in range(min(received.year + 1, 9999), received.year - 5, -1):
            if day == "29" and month == "Feb" and not _leap(year):
                continue
            found = datetime(year, MONTHS[month], int(day), hour, minute, second, micros, self._zone)
            if found <= received + DAY:
                return found
        return None


def within(times: pa.Array) -> bool:
    """Whether all times are between 1970 and MICROS_MAX."""
    ends = pc.min_max(times.cast(pa.int64()))
    least, most = ends["min"].as_py(), ends["max"].as_py()
    return least is None or (least >= 0 and most <= MICROS_MAX)


def _leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _clf(text: str, _: datetime) -> datetime | None:
    """Parses ``10/Oct/2026:13:55:36 +0200``."""
    match = _CLF.fullmatch(text)
    if match is None or match[2] not in MONTHS:
        return None
    day, month, year, hour, minute, second, sign, hours, minutes = match.groups()
    ahead = timedelta(hours=int(hours), minutes=int(minutes))
    found = datetime(int(year), MONTHS[month], int(day), int(hour), int(minute), int(second), tzinfo=UTC)
    return found - ahead if sign == "+" else found + ahead
