"""Time stamps of logs, against what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.spark.pipeline.times import ANY, FORMATS, Times

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
TEN = datetime(2026, 11, 20, 10, tzinfo=UTC)


def parsed(texts: list[str | None], formats: Sequence[str] = ANY, zone: str = "UTC") -> list[datetime | None]:
    found: list[datetime | None] = Times(formats, zone).parse(pa.array(texts, pa.string()), NOW).to_pylist()
    return found


@pytest.mark.parametrize(
    ("style", "zone", "text", "meant"),
    [
        ("iso", "UTC", "2026-11-20T10:00:00Z", TEN),
        ("iso", "UTC", "2026-11-20 10:00:00.5+02:00", datetime(2026, 11, 20, 8, 0, 0, 500_000, tzinfo=UTC)),
        ("iso", "UTC", "2026-11-20 10:00:00,250", datetime(2026, 11, 20, 10, 0, 0, 250_000, tzinfo=UTC)),
        ("iso", "UTC", "2026-11-20 11:00:00 +0100", TEN),
        ("iso", "Europe/Berlin", "2026-11-20 10:00:00 UTC", TEN),
        ("iso", "Europe/Berlin", "2026-11-20 11:00:00.000 CET", TEN),
        ("iso", "Europe/Berlin", "2026-11-20 11:00:00.000 EST", None),
        ("iso", "UTC", "2026-11-20 10:00:00.123456789 +0000 UTC", TEN.replace(microsecond=123_456)),
        ("iso", "UTC", "2016-12-31T23:59:60Z", datetime(2017, 1, 1, tzinfo=UTC)),
        ("iso", "UTC", "2016-12-31 23:59:60.5Z", datetime(2017, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)),
        ("clf", "UTC", "31/Dec/2016:23:59:60 +0000", datetime(2017, 1, 1, tzinfo=UTC)),
        ("%Y%m%d-%H:%M:%S:%f", "UTC", "20261120-10:00:29:606", TEN.replace(second=29, microsecond=606_000)),
        ("iso", "UTC", "2026-11-20 07:00:00.123 -03", TEN.replace(microsecond=123_000)),
        ("iso", "UTC", "2026-11-20 13:00:00 +03", TEN),
        ("iso", "Europe/Berlin", "2026-07-01 10:00:00", datetime(2026, 7, 1, 8, tzinfo=UTC)),
        ("epoch", "UTC", "1763632800", datetime(2025, 11, 20, 10, tzinfo=UTC)),
        ("epoch", "UTC", "1763632800.25", datetime(2025, 11, 20, 10, 0, 0, 250_000, tzinfo=UTC)),
        ("epoch", "UTC", "1763632800123", datetime(2025, 11, 20, 10, 0, 0, 123_000, tzinfo=UTC)),
        ("epoch_s", "UTC", "5.5", datetime(1970, 1, 1, 0, 0, 5, 500_000, tzinfo=UTC)),
        ("epoch_s", "UTC", "-5.5", datetime(1969, 12, 31, 23, 59, 54, 500_000, tzinfo=UTC)),
        ("epoch_ns", "UTC", "-1500", datetime(1969, 12, 31, 23, 59, 59, 999_998, tzinfo=UTC)),
        ("epoch", "UTC", "-1700000000000", datetime(1916, 2, 18, 1, 46, 40, tzinfo=UTC)),
        ("iso", "UTC", "1969-12-31T23:59:59.9Z", datetime(1969, 12, 31, 23, 59, 59, 900_000, tzinfo=UTC)),
        ("epoch_ms", "UTC", "5", datetime(1970, 1, 1, 0, 0, 0, 5000, tzinfo=UTC)),
        ("epoch_us", "UTC", "1763632800123456", datetime(2025, 11, 20, 10, 0, 0, 123_456, tzinfo=UTC)),
        ("epoch_ns", "UTC", "1763632800123456789", datetime(2025, 11, 20, 10, 0, 0, 123_456, tzinfo=UTC)),
        ("clf", "UTC", "10/Oct/2026:13:55:36 -0700", datetime(2026, 10, 10, 20, 55, 36, tzinfo=UTC)),
        ("rfc1123", "Europe/Berlin", "Fri, 20 Nov 2026 10:00:00 GMT", TEN),
        ("rfc1123", "UTC", "20 Nov 2026 12:00:00 +0200", TEN),
        ("nginx_error", "Europe/Berlin", "2026/11/20 11:00:00", TEN),
        ("apache_error", "UTC", "Fri Nov 20 10:00:00.123456 2026", TEN.replace(microsecond=123_456)),
        ("rfc3164", "UTC", "Nov  2 01:02:03", datetime(2026, 11, 2, 1, 2, 3, tzinfo=UTC)),
        ("rfc3164", "UTC", "Dec 31 23:59:59", datetime(2025, 12, 31, 23, 59, 59, tzinfo=UTC)),
        ("rfc3164", "UTC", "Nov 21 01:00:00", datetime(2026, 11, 21, 1, tzinfo=UTC)),
        ("rfc3164", "UTC", "Feb 29 01:00:00", datetime(2024, 2, 29, 1, tzinfo=UTC)),
        ("rfc3164", "UTC", "Foo 29 01:00:00", None),
        ("%d.%m.%Y %H:%M", "Europe/Berlin", "20.11.2026 11:00", TEN),
        ("%d %b %H:%M", "UTC", "31 Dec 10:00", datetime(2025, 12, 31, 10, tzinfo=UTC)),
        ("%d %b %H:%M", "UTC", "29 Feb 10:00", datetime(2024, 2, 29, 10, tzinfo=UTC)),
        ("%H:%M:%S.%f", "UTC", "10:00:00.000", TEN),
        ("%H:%M:%S", "UTC", "13:30:00", datetime(2026, 11, 19, 13, 30, tzinfo=UTC)),
        ("%d.%m.%Y %H:%M %Z", "Europe/Berlin", "20.11.2026 11:00 CET", TEN),
        ("%d.%m.%Y %H:%M %Z", "Europe/Berlin", "20.11.2026 10:00 UTC", TEN),
        ("%d.%m.%Y %H:%M %z", "Europe/Berlin", "20.11.2026 12:00 +0200", TEN),
    ],
)
def test_known_texts(style: str, zone: str, text: str, meant: datetime) -> None:
    assert parsed([text, None, text], (style,), zone) == [meant, None, meant]
    if style in ANY:
        assert parsed([text], ANY, zone) == [meant], "no other format takes it for something else"


def test_formats_are_tried_in_their_order() -> None:
    texts: list[str | None] = ["11/10/26", "2026-11-20T10:00:00Z"]
    assert parsed(texts, ("%d/%m/%y", "iso")) == [datetime(2026, 10, 11, tzinfo=UTC), TEN]
    assert parsed(texts, ("%m/%d/%y", "%d/%m/%y")) == [datetime(2026, 11, 10, tzinfo=UTC), None]


@pytest.mark.parametrize("unknown", ["rfc9999", "%Q", "%Z %d", ""])
def test_formats_that_cannot_be(unknown: str) -> None:
    with pytest.raises(ValueError):
        Times((unknown,), "UTC")


@pytest.mark.parametrize("style", ["epoch", "epoch_s", "epoch_ms", "epoch_us", "epoch_ns"])
def test_many_different_numbers_are_the_same_as_one_by_one(style: str) -> None:
    step = {"epoch_ms": 1_000_003, "epoch_us": 1_000_000_003, "epoch_ns": 10**15 + 3}.get(style, 10_007)
    texts: list[str | None] = [str(10**9 * (step // 1000 or 1) + number * step) for number in range(1000)]
    assert parsed(texts, (style,)) == [parsed([text], (style,))[0] for text in texts]


@given(st.lists(st.text(max_size=30) | st.from_regex(r"\d{1,4}-\d\d-\d\d.\d\d:\d\d", fullmatch=True), max_size=5))
def test_nothing_is_raised_for_what_is_no_time(texts: list[str]) -> None:
    for style in (*FORMATS, "%d %b %H:%M %Z", "%H:%M"):
        assert len(parsed([*texts], (style,))) == len(texts)


@given(
    st.datetimes(datetime(1900, 1, 2), datetime(8999, 1, 1)),
    st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)
def test_any_iso_time_comes_back(moment: datetime, zone: timezone) -> None:
    moment = moment.replace(tzinfo=zone)
    assert parsed([moment.isoformat()]) == [moment]


def test_many_different_times_are_parsed_as_a_whole_and_one_bad_one_spoils_nothing() -> None:
    moments = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(milliseconds=number) for number in range(2000)]
    texts: list[str | None] = [moment.isoformat() for moment in moments]
    assert parsed(texts) == moments
    assert parsed([*texts, "2026-02-31T00:00:00+00:00"]) == [*moments, None]


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+10:00", "9999-12-31T23:59:59-10:00", "1899-12-31T23:59:59Z"])
def test_times_that_nobody_can_reckon_with_are_none(text: str) -> None:
    many: list[str | None] = [f"2026-01-01T00:00:00.{number:06d}Z" for number in range(2000)]
    assert parsed([text]) == [None] and parsed([*many, text])[-1] is None


@pytest.mark.parametrize(
    ("style", "lack"),
    [
        *((style, "tells no day") for style in ("%Y w%W", "%Y-%U %H:%M", "%d %H:%M:%S", "%Y %d %H:%M", "%m %H:%M")),
        *((style, "tells no day") for style in ("%Y-%m", "%y %H:%M", "%Y %a %H:%M", "%A %H:%M:%S")),
        *((style, "tells no hour") for style in ("%Y-%m-%d %I:%M:%S", "%I:%M", "%d %b %M:%S", "%S.%f")),
        *((style, "there twice") for style in ("%H:%M %H", "%d.%m.%Y %d")),
    ],
)
def test_a_format_that_leaves_the_time_to_be_guessed_is_refused(style: str, lack: str) -> None:
    with pytest.raises(ValueError, match=lack):
        Times([style], "UTC")


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("%d %b %Y %I:%M %p", "20 Nov 2026 10:00 AM"),
        ("%a %d %b %H:%M", "Fri 20 Nov 10:00"),
        ("%Y-%j %H", "2026-324 10"),
        ("%c", "Fri Nov 20 10:00:00 2026"),
        ("%x %X", "11/20/26 10:00:00"),
    ],
)
def test_a_format_that_tells_day_and_hour_is_read(style: str, text: str) -> None:
    assert parsed([text], [style]) == [TEN]


def test_a_format_with_a_week_and_its_day_is_read() -> None:
    assert parsed(["2026 w46 5"], ["%Y w%W %u"]) == [datetime(2026, 11, 20, tzinfo=UTC)]
    assert parsed(["2026-W47-5"], ["%G-W%V-%u"]) == [datetime(2026, 11, 20, tzinfo=UTC)]
