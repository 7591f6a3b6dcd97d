"""Converts timestamps of log lines to microseconds since 1970, a column at a time.

Lines of a log share timestamps, so Python parses each different text once and caches the result; Arrow builds the
column.  Columns with many different ISO texts, or numbers, are first given to Arrow's own parsers.

The formats::

    iso                 2026-11-20T10:00:00.123+01:00, also with a blank, a comma, UTC or a zone's own abbreviation
    epoch               seconds, milliseconds, microseconds or nanoseconds since 1970, by their size; - is before it
    epoch_s, _ms, _us, _ns      one of these
    clf                 20/Nov/2026:10:00:00 +0100, as access logs have it
    rfc1123             Fri, 20 Nov 2026 10:00:00 GMT
    rfc3164             Nov 20 10:00:00, as syslog has it
    nginx_error         2026/11/20 10:00:00
    apache_error        Fri Nov 20 10:00:00.123456 2026
    %d.%m.%Y %H:%M:%S   a format of strptime; %Z only at its end

A text without a zone is in the zone of its source.  One without a year is in the latest year that puts it at most a day
after its record, one without a date on the latest day that puts it at most an hour after.  A 61st second is the first
one of the next minute.

A text that is no time raises no error.  It becomes null.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Final
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

MICROS: Final = pa.timestamp("us", tz="UTC")
MICROS_MIN: Final = -2_208_988_800_000_000
MICROS_MAX: Final = 221_845_392_000_000_000
"""The years 1900 and 9000.  Times outside of these are invalid: clocks that nobody has set say 0001 or 1601, and
windows must end within 9999, as Python's dates."""
CACHED_MAX: Final = 100_000
VECTOR_MIN: Final = 256
"""From so many different texts Arrow's own parsers are tried."""
DAY: Final = timedelta(days=1)
HOUR: Final = timedelta(hours=1)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
UNITS: Final = {"epoch_s": 1_000_000, "epoch_ms": 1000, "epoch_us": 1, "epoch_ns": 0.001}
"""Microseconds of each."""
MONTHS: Final = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1
    )
}
_MONTH = "|".join(MONTHS)
_CLF = re.compile(rf"(\d\d)/({_MONTH})/(\d{{4}}):(\d\d):(\d\d):(\d\d) ([+-]\d{{4}})")
_RFC1123 = re.compile(
    rf"(?:[A-Z][a-z]{{2}}, )?(\d\d?) ({_MONTH}) (\d{{4}}) (\d\d):(\d\d):(\d\d) (GMT|UTC|Z|[+-]\d{{4}})"
)
_RFC3164 = re.compile(rf"({_MONTH}) ([ \d]\d) (\d\d):(\d\d):(\d\d)(\.\d{{1,6}})?")
_NGINX = re.compile(r"(\d{4})/(\d\d)/(\d\d) (\d\d):(\d\d):(\d\d)")
_APACHE = re.compile(rf"[A-Z][a-z]{{2}} ({_MONTH}) ([ \d]?\d) (\d\d):(\d\d):(\d\d)(\.\d{{1,6}})? (\d{{4}})")
_NUMBER = re.compile(r"(-?)(\d{1,19})(?:\.(\d*))?")
_NAMED = re.compile(r"(\d{4}-?\d\d-?\d\d[T ][\d:.,]+) ?(?:([+-]\d\d:?\d\d) )?([A-Z]{1,5})")
"""ISO with a zone that ISO does not have: a blank before it, or an abbreviation, as PostgreSQL and Go write it."""
_BLANK = re.compile(r"(\d{4}-\d\d-\d\d[T ][\d:.,]+) ([+-]\d\d(?::?\d\d)?)")
"""A blank before a zone of hours and minutes, or of hours alone, as PostgreSQL writes most of them."""
_LEAP = re.compile(r"(?:(?<![\d:])|(?<=\d{4}:))(\d\d:\d\d):60(?!\d)")
"""Where the seconds stand: behind a day or, in access logs, a year and a colon, and before a fraction at most."""
_ZONED = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:?\d\d)$"
_PLAIN = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?$"
_DATES: Final = frozenset("YyGmbBdjaAwuUWVcx")
"""Directives of strptime that say something about the day."""
Parse = Callable[[str, datetime, ZoneInfo], datetime | None]


class Times:
    """Parses timestamps of these formats, tried in this order.  ``zone``: the time zone of texts without one.

    Raises:
        ValueError: an unknown format, or one that cannot be.
        KeyError, ValueError, OSError: an unknown time zone.
    """

    def __init__(self, formats: Sequence[str], zone: str) -> None:
        self._zone = ZoneInfo(zone)
        self._formats = tuple(formats)
        self._parsers = [FORMATS.get(form) or _strptime(form) for form in formats]
        self._known: dict[str, int | None] = {}
        self._received = EPOCH

    def parse(self, texts: pa.Array, received: datetime) -> pa.Array:
        """Timestamps; null for null and for invalid texts.  ``received``: about when the lines were written."""
        if isinstance(texts, pa.ChunkedArray):
            texts = texts.combine_chunks()
        encoded = texts.dictionary_encode()
        distinct = encoded.dictionary
        if len(distinct) >= VECTOR_MIN and (whole := self._at_once(distinct)) is not None and within(whole):
            return whole.take(encoded.indices)
        # Dates that are guessed depend on the day, and those without a date on the hour.
        if abs(received - self._received) > HOUR or len(self._known) > CACHED_MAX:
            self._known.clear()
            self._received = received
        times, parse = self._known, self._one
        micros = [times[text] if text in times else parse(text) for text in distinct.to_pylist()]
        return pa.array(micros, pa.int64()).cast(MICROS).take(encoded.indices)

    def _at_once(self, texts: pa.Array) -> pa.Array | None:
        """All of them, if they are ISO times or whole numbers; None if they are not."""
        named = list(takewhile(FORMATS.__contains__, self._formats))  # no text fits two of these, but for numbers
        numbers = next((form for form in named if form.startswith("epoch")), "")
        try:
            if "iso" in named and _all(texts, _ZONED):
                return texts.cast(MICROS)
            if "iso" in named and _all(texts, _PLAIN):
                return self._in_zone(texts.cast(pa.timestamp("us")))
            if numbers and _all(texts, r"^\d{10,18}$"):
                since = texts.cast(pa.int64())
                factor = UNITS.get(numbers) or _unit(pc.min_max(since))
                micros = pc.multiply_checked(since, int(factor)) if factor >= 1 else pc.divide(since, 1000)
                return micros.cast(MICROS)
        except (pa.ArrowInvalid, ValueError):
            pass  # one of them is invalid, such as the 31st of February: parse them one by one
        return None

    def _in_zone(self, times: pa.Array) -> pa.Array:
        """Raises ArrowInvalid if one of the times is twice, or not at all, in the zone."""
        if self._zone.key == "UTC":
            return times.cast(MICROS)
        return pc.assume_timezone(times, self._zone.key).cast(MICROS)

    def _one(self, text: str) -> int | None:
        leap = _LEAP.search(text)
        plain = text if leap is None else text[: leap.end() - 2] + "59" + text[leap.end() :]
        micros = None
        for parse in self._parsers:
            try:
                moment = parse(plain, self._received, self._zone)
                if moment is not None:
                    micros = (moment - EPOCH) // timedelta(microseconds=1) + (0 if leap is None else 1_000_000)
                    break
            except (ValueError, OverflowError):
                pass
        if micros is not None and not MICROS_MIN <= micros <= MICROS_MAX:
            micros = None
        self._known[text] = micros
        return micros


def _all(texts: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, pattern)).as_py())


def within(times: pa.Array, first_us: int = MICROS_MIN) -> bool:
    """Whether all times are between this one and MICROS_MAX."""
    ends = pc.min_max(times.cast(pa.int64()))
    least, most = ends["min"].as_py(), ends["max"].as_py()
    return least is None or (least >= first_us and most <= MICROS_MAX)


def _unit(ends: pa.Scalar) -> float:
    """The unit of all these numbers.

    Raises:
        ValueError: they have several.
    """
    least, most = (_size(ends[name].as_py()) for name in ("min", "max"))
    if least != most:
        raise ValueError("several units")
    return least


def _size(number: float) -> float:
    """Microseconds of the unit of a time since 1970, which its size shows."""
    for limit, factor in ((1e11, 1e6), (1e14, 1e3), (1e17, 1.0)):
        if number < limit:
            return factor
    return 0.001


# ---- the formats, a text at a time


def _iso(text: str, _: datetime, zone: ZoneInfo) -> datetime | None:
    if text.isdecimal():
        return None
    if blank := _BLANK.fullmatch(text):
        text = blank[1] + blank[2]
    elif named := _NAMED.fullmatch(text):
        plain, offset, name = named.groups()
        if offset or name in ("UTC", "GMT", "Z"):
            text = plain + (offset or "Z")
        else:
            moment = datetime.fromisoformat(plain).replace(tzinfo=zone)
            return _abbreviated(moment, name)
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)


def _abbreviated(time: datetime, name: str) -> datetime | None:
    """The time if its zone is abbreviated so then, in summer or in winter; abbreviations alone are ambiguous."""
    return next(
        (candidate for candidate in (time.replace(fold=fold) for fold in (0, 1)) if candidate.tzname() == name), None
    )


def _epoch(text: str, _: datetime, __: ZoneInfo) -> datetime | None:
    return _since(text, 0)


def _since(text: str, factor: float) -> datetime | None:
    """``factor``: microseconds of the unit; 0: by the size of the number."""
    number = _NUMBER.fullmatch(text)
    if number is None:
        return None
    sign, digits, fraction = number.groups()
    factor, whole = factor or _size(float(digits)), int(sign + digits)
    micros = whole * int(factor) if factor >= 1 else whole // 1000
    return EPOCH + timedelta(microseconds=micros + round(float(f"{sign}0.{fraction or 0}") * factor))


def _epoch_of(name: str) -> Parse:
    return lambda text, _, __: _since(text, UNITS[name])


def _clf(text: str, _: datetime, __: ZoneInfo) -> datetime | None:
    if (match := _CLF.fullmatch(text)) is None:
        return None
    day, month, year, *clock, zone = match.groups()
    return _moment(year, MONTHS[month], day, clock, _zone_of(zone))


def _rfc1123(text: str, _: datetime, __: ZoneInfo) -> datetime | None:
    if (match := _RFC1123.fullmatch(text)) is None:
        return None
    day, month, year, *clock, zone = match.groups()
    return _moment(year, MONTHS[month], day, clock, _zone_of(zone if zone[0] in "+-" else "+0000"))


def _rfc3164(text: str, received: datetime, zone: ZoneInfo) -> datetime | None:
    if (match := _RFC3164.fullmatch(text)) is None:
        return None
    month, day, *clock, fraction = match.groups()
    return _in_a_year(lambda year: _moment(year, MONTHS[month], day, [*clock, fraction], zone), received)


def _nginx(text: str, _: datetime, zone: ZoneInfo) -> datetime | None:
    if (match := _NGINX.fullmatch(text)) is None:
        return None
    year, month, day, *clock = match.groups()
    return _moment(year, int(month), day, clock, zone)


def _apache(text: str, _: datetime, zone: ZoneInfo) -> datetime | None:
    if (match := _APACHE.fullmatch(text)) is None:
        return None
    month, day, *clock, year = match.groups()
    return _moment(year, MONTHS[month], day, clock, zone)


def _moment(year: str | int, month: int, day: str, clock: Sequence[str | None], zone: ZoneInfo | timedelta) -> datetime:
    """``clock``: hour, minute, second, and perhaps a fraction as ``.123`` or None; ``zone`` may be an offset."""
    hour, minute, second = (int(part or 0) for part in clock[:3])
    fraction = (clock[3] if len(clock) > 3 else None) or "."
    micros = int(f"{fraction[1:]:0<6}")
    if isinstance(zone, timedelta):
        return datetime(int(year), month, int(day), hour, minute, second, micros, UTC) - zone
    return datetime(int(year), month, int(day), hour, minute, second, micros, zone)


def _zone_of(text: str) -> timedelta:
    """The offset that ``+0130`` means."""
    ahead = timedelta(hours=int(text[1:3]), minutes=int(text[3:]))
    return ahead if text[0] == "+" else -ahead


def _in_a_year(in_year: Callable[[int], datetime], received: datetime) -> datetime | None:
    """The latest of these times that is at most a day after ``received``."""
    for year in range(min(received.year + 1, 9999), received.year - 8, -1):
        try:
            moment = in_year(year)
        except ValueError:
            continue  # the 29th of February
        if moment <= received + DAY:
            return moment
    return None


def _ambiguity(directives: set[str]) -> str:
    """What a format with these directives does not tell, although it begins to; strptime would guess it."""
    numbered, weekday = directives & set("UWV"), directives & set("aAwu")
    whole_day = directives & set("jcx") or ("d" in directives and directives & set("mbB")) or (numbered and weekday)
    if numbered and not whole_day:
        return "the number of a week tells no day: add that of the week, as %u, %a or %w"
    if directives & _DATES and not whole_day:
        return "it tells no day: that takes a month and its day, as %m and %d, or the day of the year, %j"
    if "I" in directives and "p" not in directives:
        return "%I tells no hour: add %p, or write %H for hours up to 23"
    if directives & set("MSf") and not directives & set("HIcX"):
        return "it tells no hour: add %H, or %I and %p"
    return ""


def _strptime(form: str) -> Parse:
    """A parser of this format.

    Raises:
        ValueError: it is no format.
    """
    if "%" not in form:
        raise ValueError(f"{form!r}: use one of {', '.join(FORMATS)}, or a format of strptime, as %Y-%m-%d %H:%M")
    abbreviated = form.endswith("%Z")
    plain = form.removesuffix("%Z").rstrip()
    if "%Z" in plain:
        raise ValueError(f"{form!r}: %Z is understood at the end only")
    directives = set(re.findall(r"%[-]?(.)", plain))
    if lack := _ambiguity(directives):
        raise ValueError(f"{form!r}: {lack}")
    has_year, has_day = directives & set("YyGcx"), directives & _DATES
    tried = plain if has_year else f"%Y {plain}"
    try:
        datetime.strptime(EPOCH.strftime(tried), tried)  # raises ValueError for what is no format
    except re.error:
        raise ValueError(f"{form!r}: a directive is there twice") from None

    def parse(text: str, received: datetime, zone: ZoneInfo) -> datetime | None:
        name = ""
        if abbreviated:
            text, _, name = text.rpartition(" ")
        tz = ZoneInfo("UTC") if name in ("UTC", "GMT", "Z") else zone

        def read(prefix: str, prefix_form: str) -> datetime:
            moment = datetime.strptime(prefix + text, prefix_form + plain)
            return moment if moment.tzinfo is not None else moment.replace(tzinfo=tz)

        if has_year:
            moment: datetime | None = read("", "")
        elif has_day:
            moment = _in_a_year(lambda year: read(f"{year} ", "%Y "), received)
        else:
            today = received.astimezone(tz).date()
            days = [str(today + step * DAY) for step in (1, 0, -1)]
            near = (read(f"{day} ", "%Y-%m-%d ") for day in days)
            moment = next((candidate for candidate in near if candidate <= received + HOUR), None)
        return moment if not name or tz is not zone or moment is None else _abbreviated(moment, name)

    return parse


FORMATS: Final[dict[str, Parse]] = {
    "epoch": _epoch,
    "iso": _iso,
    **{name: _epoch_of(name) for name in UNITS},
    "clf": _clf,
    "rfc1123": _rfc1123,
    "rfc3164": _rfc3164,
    "nginx_error": _nginx,
    "apache_error": _apache,
}
ANY: Final = tuple(name for name in FORMATS if name not in UNITS)
"""The formats that lines are tried with when none is given."""
