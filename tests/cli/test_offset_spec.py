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
        ("now", OffsetSpec(timestamp=NOW_MS)),
        ("0", OffsetSpec(offset=0)),
        (str(2**63 - 1), OffsetSpec(offset=2**63 - 1)),
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
    assert parse_offset_spec("6:00:01", here).timestamp == wanted + 1000
    assert parse_offset_spec(f"{here:%Y-%m-%d}T06:00", here).timestamp == wanted


digits = st.from_regex(r"[0-9]{1,25}|\d{1,3}", fullmatch=True)  # \d: also those of other scripts


@given(
    st.text()
    | digits
    | st.builds("-{}{}".format, digits, st.sampled_from(["ms", "s", "m", "min", "h", "d", "w", "y"]))
    | st.builds("{}:{}".format, digits, digits)
    | st.datetimes().map(lambda moment: moment.isoformat())
)
def test_a_form_is_a_number_that_a_request_has_room_for_and_all_else_is_refused(text: str) -> None:
    try:
        spec = parse_offset_spec(text, NOW)
    except BadParameter as error:
        assert "earliest, latest, now" in str(error) or "the largest offset" in str(error)
    else:
        assert spec.timestamp in (EARLIEST, LATEST) or 0 <= spec.timestamp < 2**63
        assert spec.offset is None or 0 <= spec.offset < 2**63
