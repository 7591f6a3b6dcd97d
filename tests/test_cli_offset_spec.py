"""appliance.cli.offset_spec: where to begin, as people say it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer import BadParameter

from appliance.cli.offset_spec import OffsetSpec, parse_offset_spec
from appliance.wire.requests import EARLIEST, LATEST

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("earliest", OffsetSpec(timestamp=EARLIEST)),
        ("latest", OffsetSpec(timestamp=LATEST)),
        ("0", OffsetSpec(offset=0)),
        ("4711", OffsetSpec(offset=4711)),
        ("-15m", OffsetSpec(timestamp=NOW_MS - 15 * 60_000)),
        ("-7d", OffsetSpec(timestamp=NOW_MS - 7 * 86_400_000)),
        ("2026-11-20T06:00Z", OffsetSpec(timestamp=NOW_MS - 6 * 3_600_000)),
        ("2026-11-20T06:00+01:00", OffsetSpec(timestamp=NOW_MS - 7 * 3_600_000)),
        ("1960-01-01T00:00Z", OffsetSpec(timestamp=0)),
    ],
)
def test_forms(text: str, expected: OffsetSpec) -> None:
    assert parse_offset_spec(text, NOW) == expected


def test_times_without_day_or_zone_are_of_here_and_today() -> None:
    here = datetime.now().astimezone().replace(hour=12, minute=0, second=0, microsecond=0)
    wanted = int(here.replace(hour=6).timestamp() * 1000)
    assert parse_offset_spec("06:00", here).timestamp == wanted
    assert parse_offset_spec("6:00", here).timestamp == wanted
    assert parse_offset_spec("06:00:01", here).timestamp == wanted + 1000
    assert parse_offset_spec(f"{here:%Y-%m-%d}T06:00", here).timestamp == wanted


@given(st.text())
def test_anything_else_is_refused_with_the_forms(text: str) -> None:
    try:
        parse_offset_spec(text, NOW)
    except BadParameter as error:
        assert "earliest, latest" in str(error)
