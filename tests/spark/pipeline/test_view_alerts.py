"""Alerts of views: a webhook is told of each window once, whatever is refreshed, killed or away; without Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from appliance.errors import ApplianceError, BadValue
from appliance.spark.pipeline.pipeline_status import of_alerts
from appliance.spark.pipeline.settings import Alert, Settings, parse
from appliance.spark.pipeline.startup import check_from, raise_refused
from appliance.spark.pipeline.view_alerts import TOLD, ViewAlerts
from appliance.spark.pipeline.view_definitions import View
from appliance.spark.pipeline.view_states import view_of
from appliance.spark.pipeline.view_table import Basis, ViewTable

from ...support.webhook import Receiver, receiver

__all__ = ["receiver"]

NOW = datetime(2026, 11, 20, 12, 0, 30, tzinfo=UTC)
WINDOW = timedelta(minutes=1)
SQL = "-- window: 1m\n-- keys: host\nselect start, host, count(*) as n from events group by all"


class Errors:
    """A view whose rows the test writes, and its alerts."""

    def __init__(self, base: Path, webhook: str, **alert: Any) -> None:
        (base / "views").mkdir()
        (base / "views" / "errors.sql").write_text(SQL)
        self.settings: Settings = parse(
            {
                "pipeline": {"name": "p"},
                "source": [{"topics": ["t"], "parsers": ["logfmt"]}],
                "output": {"path": "out"},
                "views": {"path": "views"},
                "alert": [{"view": "errors", "when": "n > 5 -- many", "webhook": webhook} | alert],
            },
            base,
        )
        self.view: View = view_of(self.settings, "errors")
        self._version = 0

    def write(self, *rows: tuple[int, str, int]) -> None:
        """All rows of the view: of windows that began so many minutes before now, of a host, with so many lines."""
        starts = [NOW.replace(second=0) - timedelta(minutes=ago) for ago, _, _ in rows]
        columns = {
            "date": pa.array([f"{start:%Y-%m-%d}" for start in starts], pa.string()),
            "start": pa.array(starts, pa.timestamp("us", tz="UTC")),
            "host": pa.array([host for _, host, _ in rows], pa.string()),
            "n": pa.array([n for _, _, n in rows], pa.int64()),
        }
        table = pa.table(columns)
        basis = Basis(self._version, "entry", self.view.meaning)
        ViewTable(self.settings.output, "errors").replace(table.to_reader(), None, basis)
        self._version += 1

    def tell(self, now: datetime = NOW) -> int:
        return ViewAlerts(self.settings, self.view).tell(now)


def test_a_window_is_told_once(tmp_path: Path, receiver: Receiver) -> None:
    errors = Errors(tmp_path, receiver.url)
    errors.write((0, "a", 6), (0, "b", 9), (1, "a", 5), (3, "a", 7), (500, "old", 99))
    assert errors.tell() == 2
    (_, first), (_, second) = receiver.got
    assert first["text"] == "p: errors: n > 5 -- many at 2026-11-20 11:57:00 UTC: host = a, n = 7"
    assert (first["start"], first["end"]) == ("2026-11-20T11:57:00+00:00", "2026-11-20T11:58:00+00:00")
    assert (second["count"], second["text"].count("(and 1 more)"), second["view"]) == (2, 1, "errors")
    assert {row["host"]: row["n"] for row in second["rows"]} == {"a": 6, "b": 9}
    assert errors.tell() == 0
    errors.write((0, "a", 60), (0, "b", 9), (1, "a", 6), (3, "a", 7))
    assert errors.tell() == 1, "only the window that meets it now"
    assert receiver.got[-1][1]["start"] == "2026-11-20T11:59:00+00:00"
    assert len({body["id"] for _, body in receiver.got}) == 3
    (said,) = of_alerts(errors.settings)
    assert said == "alert: errors: 3 windows with n > 5 -- many, last 2026-11-20 12:00:00 UTC"


def test_a_webhook_that_is_away_is_told_later_or_never(tmp_path: Path, receiver: Receiver) -> None:
    errors = Errors(tmp_path, receiver.url, within_ms="10m")
    receiver.answers = [500, 404]
    errors.write((0, "a", 6), (1, "a", 7))
    with pytest.raises(ApplianceError, match=r"of 2026-11-20 11:59:00 UTC has n > 5 .*nobody is told: answered with 5"):
        errors.tell()
    (said,) = of_alerts(errors.settings)
    assert said.endswith("; nobody is told of 2 of them yet")
    with pytest.raises(ApplianceError, match="answered with 404"):
        errors.tell()
    assert errors.tell(NOW + timedelta(minutes=10)) == 1, "the older window is too old by then"
    assert [body["start"][-14:-9] for _, body in receiver.got] == ["11:59", "11:59", "12:00"]


def test_a_window_that_another_refresh_has_mended_is_not_told(tmp_path: Path, receiver: Receiver) -> None:
    errors = Errors(tmp_path, receiver.url)
    receiver.answers = [500]
    errors.write((1, "a", 7))
    with pytest.raises(ApplianceError):
        errors.tell()
    errors.write((1, "a", 5))
    assert errors.tell() == 0 and len(receiver.got) == 1
    assert (tmp_path / "out/views/errors" / TOLD).exists()


def test_one_webhook_that_is_away_keeps_no_other_waiting(tmp_path: Path, receiver: Receiver) -> None:
    errors = Errors(tmp_path, "http://127.0.0.1:1/")
    other = Alert("errors", "n > 6", receiver.url)
    errors.settings = msgspec.structs.replace(errors.settings, alert=(*errors.settings.alert, other))
    errors.write((0, "a", 7))
    with pytest.raises(ApplianceError, match="ConnectionRefusedError"):
        errors.tell()
    assert [body["when"] for _, body in receiver.got] == ["n > 6"]


@pytest.mark.parametrize(
    "alert, said",
    [
        ({"view": "eros"}, "there is no view 'eros': there are errors"),
        ({"when": "lines > 5"}, "No field named lines"),
        ({"when": "n +"}, "alert n +: view cannot be asked"),
    ],
)
def test_an_alert_that_cannot_be_told_is_refused_by_a_check(tmp_path: Path, alert: dict[str, str], said: str) -> None:
    errors = Errors(tmp_path, "https://chat.example.net/hook", **alert)
    errors.write((0, "a", 7))
    with pytest.raises(BadValue, match=said.replace("+", r"\+")):
        raise_refused(check_from(errors.settings, {}))
    (tmp_path / "views" / "errors.sql").write_text(SQL.replace("as n", "as lines"))
    if alert.get("when") == "lines > 5":
        assert not check_from(errors.settings, {}).with_effect("refused"), "the next refresh gives that column"


@pytest.mark.parametrize("webhook", ["http://chat.example.net/", "https://chat.example.net/?token=1", "ftp://h/"])
def test_where_nobody_may_be_told_is_refused(tmp_path: Path, webhook: str) -> None:
    with pytest.raises(BadValue, match=r"pipeline: alert\.webhook (=|has a query|must be a URL)"):
        Errors(tmp_path, webhook)


def test_a_secret_webhook_is_in_a_file_beside_that_of_the_pipeline(tmp_path: Path, receiver: Receiver) -> None:
    (tmp_path / "hook").write_text(receiver.url)
    (tmp_path / "hook").chmod(0o600)
    errors = Errors(tmp_path, "hook")
    errors.write((0, "a", 7))
    assert errors.tell() == 1
