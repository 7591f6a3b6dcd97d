"""Time stamps of logs, against what they mean."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.spark.pipeline.times import Style, Times

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def parsed(texts: list[str | None], style: Style = "any", zone: str = "UTC") -> list[datetime | None]:
    found: list[datetime | None] = Times(style, zone).parse(pa.array(texts, pa.string()), NOW).to_pylist()
    return found


@pytest.mark.parametrize(
    ("style", "zone", "text", "meant"),
    [
        ("any", "UTC", "2026-11-20T10:00:00Z", datetime(2026, 11, 20, 10, tzinfo=UTC)),
        ("any", "UTC", "2026-11-20 10:00:00.5+02:00", datetime(2026, 11, 20, 8, 0, 0, 500_000, tzinfo=UTC)),
        ("any", "Europe/Berlin", "2026-07-01 10:00:00", datetime(2026, 7, 1, 8, tzinfo=UTC)),
        ("any", "UTC", "1763632800", datetime(2025, 11, 20, 10, tzinfo=UTC)),
        ("any", "UTC", "1763632800.25", datetime(2025, 11, 20, 10, 0, 0, 250_000, tzinfo=UTC)),
        ("any", "UTC", "1763632800123", datetime(2025, 11, 20, 10, 0, 0, 123_000, tzinfo=UTC)),
        ("clf", "UTC", "10/Oct/2026:13:55:36 -0700", datetime(2026, 10, 10, 20, 55, 36, tzinfo=UTC)),
        ("rfc3164", "UTC", "Nov  2 01:02:03", datetime(2026, 11, 2, 1, 2, 3, tzinfo=UTC)),
        ("rfc3164", "UTC", "Dec 31 23:59:59", datetime(2025, 12, 31, 23, 59, 59, tzinfo=UTC)),
        ("rfc3164", "UTC", "Nov 21 01:00:00", datetime(2026, 11, 21, 1, tzinfo=UTC)),
        ("rfc3164", "UTC", "Feb 29 01:00:00", datetime(2024, 2, 29, 1, tzinfo=UTC)),
        ("rfc3164", "UTC", "2026-11-20T10:00:00.123456+01:00", datetime(2026, 11, 20, 9, 0, 0, 123_456, tzinfo=UTC)),
    ],
)
def test_known_texts(style: Style, zone: str, text: str, meant: datetime) -> None:
    assert parsed([text, None, text], style, zone) == [meant, None, meant]


@given(st.lists(st.text(max_size=30) | st.from_regex(r"\d{1,4}-\d\d-\d\d.\d\d:\d\d", fullmatch=True), max_size=5))
def test_nothing_is_raised_for_what_is_no_time(texts: list[str]) -> None:
    styles: tuple[Style, ...] = ("any", "clf", "rfc3164")
    for style in styles:
        assert len(parsed([*texts], style)) == len(texts)


@given(
    st.datetimes(datetime(1970, 1, 2), datetime(8999, 1, 1)),
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


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+10:00", "9999-12-31T23:59:59-10:00", "1969-12-31T23:00:00Z"])
def test_times_that_nobody_can_reckon_with_are_none(text: str) -> None:
    many: list[str | None] = [f"2026-01-01T00:00:00.{number:06d}Z" for number in range(2000)]
    assert parsed([text]) == [None] and parsed([*many, text])[-1] is None
