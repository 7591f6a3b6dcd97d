"""The page: what its numbers say, that axes fit, that texts of messages stay texts, and how a real browser shows it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from appliance.errors import BadValue
from appliance.spark.pipeline.event_questions import questions
from appliance.spark.pipeline.report import write, zone_of
from appliance.spark.pipeline.report_panels import Asked
from appliance.spark.pipeline.settings import Settings, parse
from appliance.spark.pipeline.state_directory import Progress, State
from appliance.spark.pipeline.svg_charts import Span, duration, label_of, number, step_for, time_ticks

from .test_pipeline_sink import micro_batch, records

HOSTILE = '<img src=x onerror="document.title=1"><script>document.title="owned"</script>\x1b[31m'
DAY = datetime(2026, 11, 20, tzinfo=UTC)
NOW = datetime(2026, 11, 21, 1, tzinfo=UTC)
HOUR_US = 3_600_000_000
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def pipeline(base: Path, **tables: Any) -> Settings:
    given = {
        "pipeline": {"name": "p"},
        "source": [{"topics": ["web", "app"], "parsers": ["own"]}],
        "parser": {"own": {"kind": "json", "columns": {"ms": "int"}}},
        "output": {"path": "out"},
    }
    return parse(given | tables, base)


def line(at: datetime, **fields: Any) -> bytes:
    return json.dumps({"time": at.isoformat(), "message": "m"} | fields).encode()


def lines(hours: float = 24, each_s: int = 60) -> list[bytes]:
    """A line each minute, each tenth of them an error, of a host with a hostile name and another one."""
    count = int(hours * 3600 / each_s)
    return [
        line(
            DAY + timedelta(seconds=place * each_s),
            host=HOSTILE if place % 3 else "web-1",
            level="error" if place % 10 == 0 else "info",
            ms=place % 100,
        )
        for place in range(count)
    ]


def written(base: Path, values: Sequence[bytes], **tables: Any) -> Settings:
    made = pipeline(base, **tables)
    half = len(values) // 2
    parts = [records(values[:half], "web", stamp=NOW), records(values[half:], "app", stamp=NOW)]
    micro_batch(made, 0, [[part] for part in parts if part.num_rows])
    return made


class Elements(HTMLParser):
    """The elements of a page, its text, its anchors, and those that it leads to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), f"{tag} has {name}"
            if name == "id":
                self.ids.append(value or "")
            if name == "href":
                self.links.append(value or "")

    def handle_data(self, data: str) -> None:
        self.text += data


def page(made: Settings, **options: Any) -> Elements:
    return Elements(write(made, made.state_dir, NOW, **options).read_text())


def test_the_page_says_what_its_numbers_are(tmp_path: Path) -> None:
    made = written(tmp_path, [*lines(), b"no JSON", b"neither", line(DAY, ms="many")])
    state = State(made.state_dir)
    state.path.mkdir(parents=True)
    for place in range(60):
        ended = DAY + timedelta(minutes=10 * place + (600 if place > 30 else 0))
        state.add(Progress(place, ended.isoformat(), 50_000 + place, 10**7, 1.5, 10 ** (place % 8)))
    found = page(made)
    for said in (
        "1,443 lines, 2 of them rejected",
        "2026-11-20 00:00:00 to 2026-11-21 01:15:00 UTC; each bar: 15 min",
        "144 of 1,441 parsed lines have an error level (9.99 %)",
        "2 lines that no parser took, or no rule let pass, by reason",
        "1 parsed lines with fields that did not fit their columns",
        "own: ms is not of its type (int)",
        "of 1,440 values of ms; each point",
        "2 sessions of host, by their beginning; a silence of 30 min ends one",
        "each of the last 60 micro-batches",
        "the newest line came",
    ):
        assert said in found.text, said
    titles = ("Volume", "Errors", "Rejected lines", "Fields that are null", "Heaviest: host", "Percentiles of ms")
    for title in (*titles, "Sessions", "Freshness", "Throughput", "Lag"):
        assert title in found.text, title
    assert found.names.count("details") == 8, "each question to events is there"
    assert {link.removeprefix("#") for link in found.links} == set(found.ids), "links lead to panels of the page"
    assert len(set(found.ids)) == len(found.ids)


def test_lines_from_before_1970_are_in_the_step_in_which_they_were(tmp_path: Path) -> None:
    first = datetime(1969, 12, 31, 23, 30, tzinfo=UTC)
    made = written(tmp_path, [line(first + timedelta(seconds=45 + 60 * place), host="h") for place in range(60)])
    text = write(made, made.state_dir, NOW).read_text()
    assert "60 lines, 0 of them rejected, 1969-12-31 23:30:30 to 1970-01-01 00:30:00 UTC; each bar: 30 s" in text
    asked = Asked(questions(made), made, (None, None), UTC)  # type: ignore[arg-type]
    rows = asked.questions.rows(f"select {asked.step} as at, count(*) as n from events group by 1 order by 1")
    assert [row["at"] for row in rows] == [place * 60_000_000 + 30_000_000 for place in range(-30, 30)]


def test_nothing_is_green_where_nothing_is_audited(tmp_path: Path) -> None:
    made = written(tmp_path, lines(1), audit={"topic": "counts"})
    text = write(made, made.state_dir, NOW).read_text()
    assert '<div class="unknown">audit<b>no counts were published: nothing is audited' in text
    assert 'class="good"' not in text
    count = {"topic": "web", "window_start_ms": int(NOW.timestamp() * 1000), "window_ms": 60_000, "count": 32}
    micro_batch(made, 1, [[records([json.dumps(count).encode()], "counts", stamp=NOW)]])
    found = write(made, made.state_dir, NOW + timedelta(hours=1)).read_text()
    assert '<div class="bad">audit<b>2 lost, 0 doubled in 1 windows' in found and "Audit: sent and arrived" in found
    assert "60 lines, 0 of them rejected" in found, "counts are no lines"


@pytest.mark.parametrize(
    ("hours", "odd", "said"),
    [
        (1, 0, "lines of 2026-11-20 00:00:00 to 2026-11-20 00:59:30 UTC; version"),
        (1, 11 * 365, "lines of 2026-11-20 00:00:00 to 2026-11-20 00:59:30 UTC; 1 lines are outside of this time"),
        (24, 11 * 365, "lines of 2026-11-20 00:00:00 to 2026-11-21 00:00:00 UTC; 1 lines are outside of this time"),
        (1 / 60, 0, "lines of 2026-11-20 00:00:00 to 2026-11-20 00:00:01 UTC; version"),
    ],
)
def test_axes_fit_what_is_there(tmp_path: Path, hours: float, odd: int, said: str) -> None:
    """An hour, a day or one line; one line of eleven years ago does not stretch them."""
    old = [line(DAY - timedelta(days=odd))] if odd else []
    assert said in page(written(tmp_path, [*lines(hours), *old])).text


def test_ten_years_fit_and_a_time_can_be_chosen(tmp_path: Path) -> None:
    made = written(tmp_path, [line(DAY - timedelta(days=10 * each)) for each in range(365)])
    text = page(made).text
    assert "365 lines, 0 of them rejected" in text and "2018-01" in text and "lines are outside" not in text
    bounds = (int((DAY - timedelta(days=15)).timestamp() * 1e6), int((DAY + timedelta(days=1)).timestamp() * 1e6))
    text = page(made, bounds=bounds).text
    assert "2 lines, 0 of them rejected" in text and "363 lines are outside of this time" in text


def test_texts_of_messages_are_no_markup(tmp_path: Path) -> None:
    made = written(tmp_path, [*lines(1), b"\xff" + HOSTILE.encode()])
    text = write(made, made.state_dir, NOW).read_text()
    found = Elements(text)
    assert "script" not in found.names and "img" not in found.names and HOSTILE[:30] in found.text
    assert "default-src 'none'" in text


def test_times_are_in_the_zone_that_is_asked_for(tmp_path: Path) -> None:
    made = written(tmp_path, lines(1))
    assert "2026-11-20 09:00:00 to 2026-11-20 09:59:30 JST" in page(made, zone=zone_of("Asia/Tokyo")).text
    with pytest.raises(BadValue, match="no time zone"):
        zone_of("Mars/Base")


def test_a_view_is_a_panel_with_its_sql(tmp_path: Path) -> None:
    (tmp_path / "views").mkdir()
    sql = "select start, host, count(*) as n from events group by all"
    (tmp_path / "views/hosts.sql").write_text(f"-- Lines of a host & hour.\n--\n-- window: 1h\n-- keys: host\n{sql}")
    made = written(tmp_path, lines(1), views={"path": "views"})
    found = page(made)
    assert "View hosts" in found.text and "Lines of a host & hour. It has no table yet." in found.text
    assert sql in found.text


def test_ticks_are_at_round_times_of_the_zone() -> None:
    def labels(first: datetime, length: timedelta, zone: str = "UTC") -> list[str]:
        first_us = int(first.timestamp() * 1e6)
        end_us = first_us + length // timedelta(microseconds=1)
        found = time_ticks(Span(first_us, end_us, 1_000_000), ZoneInfo(zone))
        assert 1 <= len(found) <= 9 and all(first_us <= at <= end_us for at, _ in found)
        return [label for _, label in found]

    assert labels(DAY, timedelta(hours=1)) == ["11-20", *(f"00:{each}0" for each in range(1, 6)), "01:00"]
    assert labels(DAY, timedelta(days=1), "Asia/Tokyo")[0] == "12:00"
    assert labels(DAY, timedelta(days=3650)) == ["2028-01", "2030-01", "2032-01", "2034-01", "2036-01"]
    assert labels(DAY, timedelta(seconds=5))[-1] == "00:00:05"


def test_what_people_read() -> None:
    assert [duration(each) for each in (90, 300, 3600, 172_800, 0.5)] == ["90 s", "5 min", "1 h", "2 d", "0.5 s"]
    assert [number(each) for each in (0, 1_234_567, 0.5, 12.345, 0.00012)] == [
        "0",
        "1,234,567",
        "0.5",
        "12.35",
        "1.2e-04",
    ]
    assert label_of([None, "a\x1bb"]) == "none, a\N{REPLACEMENT CHARACTER}b" and len(label_of(["x" * 99])) == 60
    assert [step_for(length * HOUR_US, 120) // 1_000_000 for length in (1, 24, 24 * 365)] == [30, 900, 604_800]


@pytest.mark.skipif(BROWSER is None, reason="no chromium: apt-get install chromium")
def test_a_browser_shows_the_page(tmp_path: Path) -> None:
    """It runs nothing of the messages' text, and lays out every chart within its width."""
    made = written(tmp_path, lines())
    path = write(made, made.state_dir, NOW)
    # Behind the page: whether its charts have a size, and how wide it is.  The page itself may run no script.
    probe = tmp_path / "probe.html"
    check = (
        "<script>addEventListener('load', () => {{ const d = document.querySelector('iframe').contentDocument;"
        "document.body.dataset.found = JSON.stringify([d.title, d.querySelectorAll('svg').length,"
        "[...d.querySelectorAll('svg')].filter(i => i.getBoundingClientRect().width > 500).length,"
        "d.documentElement.scrollWidth <= 1000]); }})</script><iframe width=1000 height=600 src='{}'></iframe>"
    )
    probe.write_text(f"<!doctype html><body>{check.format(path.as_uri())}</body>")
    assert BROWSER is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={tmp_path}/u"]
    flags += ["--allow-file-access-from-files", "--virtual-time-budget=5000"]
    done = subprocess.run([BROWSER, *flags, "--dump-dom", probe.as_uri()], capture_output=True, text=True, timeout=100)
    found = re.search(r'data-found="(.*?)"[ >]', done.stdout)
    assert found, done.stderr[-2000:]
    charts = path.read_text().count("<svg ")
    assert charts >= 5 and found[1].replace("&quot;", '"') == f'["p",{charts},{charts},true]'
