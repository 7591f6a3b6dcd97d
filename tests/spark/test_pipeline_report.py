"""The report: what its pictures say, that texts of messages stay texts, and the page in a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from appliance.errors import BadValue
from appliance.spark.pipeline import charts, pipeline_status, report, report_panels
from appliance.spark.pipeline.charts import Curve, duration, label_of, span, with_gaps
from appliance.spark.pipeline.report import write, zone_of
from appliance.spark.pipeline.settings import Settings, parse
from appliance.spark.pipeline.state_directory import Progress, State
from appliance.spark.pipeline.times import MICROS

HOSTILE = '<img src=x onerror="document.title=1"><script>document.title="owned"</script>$\\frac{1}$_\x1b[31m'
DAY = datetime(2026, 11, 20, tzinfo=UTC)
HOUR_US = 3_600_000_000
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def aggregate_table(settings: Settings, kind: str, rows: Sequence[dict[str, Any]]) -> pa.Table:
    """A stored table of this aggregate, made from events."""
    from appliance.spark.pipeline.aggregates import total

    (each,) = (one for one in settings.aggregate if one.name == kind)
    made = total(each, dict.fromkeys(each.by, pa.string()))
    events = {
        "time": pa.array([row["time"] for row in rows], MICROS),
        "host": pa.array([row["host"] for row in rows], pa.string()),
        "level": pa.array([row.get("level", "info") for row in rows], pa.string()),
        "seconds": pa.array([row.get("seconds", 0.1) for row in rows], pa.float64()),
    }
    table = pa.table(events)
    tasks = [made.partial(table.slice(first, 50)) for first in range(0, len(table), 50)]
    return made.finish(made.merge(tasks))


KINDS = [
    {"name": "count", "kind": "count", "by": ["host"], "window_ms": "1h"},
    {"name": "errors", "kind": "errors", "window_ms": "1h"},
    {"name": "top", "kind": "top", "by": ["host"], "window_ms": "6h", "keep": 3, "k": 5},
    {"name": "sessions", "kind": "sessions", "by": ["host"], "gap_ms": "10m"},
    {"name": "distinct", "kind": "distinct", "of": "host", "window_ms": "1h"},
    {"name": "percentiles", "kind": "percentiles", "of": "seconds", "window_ms": "1h"},
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A pipeline with a table of each kind: two days with a gap of ten hours, and a host with a hostile name."""
    settings = parse(
        {
            "pipeline": {"name": "p"},
            "source": [{"topics": ["web"], "parsers": ["plain"]}],
            "output": {"path": "out"},
            "aggregate": KINDS,
            "audit": {"topic": "audit"},
        },
        tmp_path_factory.mktemp("report"),
    )
    random = np.random.default_rng(7)
    rows = []
    for minute in range(0, 2880, 2):
        if not 800 < minute < 1400:
            for host in random.permutation([HOSTILE, "web-1", "web-2", "db_1", "_hidden", "日本"])[: 1 + minute % 6]:
                level = "error" if random.random() < 0.1 else "info"
                time = DAY + timedelta(minutes=minute)
                rows.append({"time": time, "host": str(host), "level": level, "seconds": random.lognormal(-2, 2)})
    tables = {each["name"]: aggregate_table(settings, str(each["name"]), rows) for each in KINDS}
    hours = [DAY + timedelta(hours=hour) for hour in range(48) if not 14 <= hour < 23]
    count = len(hours)
    columns: dict[str, Any] = {"date": [f"{each:%Y-%m-%d}" for each in hours], "start": hours}
    columns["end"] = [each + timedelta(hours=1) for each in hours]
    kinds = [("plain", "", 123_456, 10**7), ("", HOSTILE, 3, 10), ("plain", "plain: x is not a number", 7, 0)]
    ledger = {name: values * len(kinds) for name, values in columns.items()} | {"topic": ["web"] * len(kinds) * count}
    for place, name in enumerate(("parser", "reason", "rows", "bytes")):
        ledger[name] = [kind[place] for kind in kinds for _ in hours]
    tables["ledger"] = pa.table(ledger)
    tables["audit"] = pa.table(
        columns | {"topic": ["web"] * count, "arrived": [10] * count, "counted": [10] * (count - 1) + [12]}
    )
    monkeypatch = pytest.MonkeyPatch()
    for module in (report, report_panels, pipeline_status):
        monkeypatch.setattr(module, "read_total", lambda _, name: tables.get(name))
    state = State(settings.state_dir)
    state.path.mkdir(parents=True)
    for number in range(60):
        ended = DAY + timedelta(minutes=10 * number + (600 if number > 30 else 0))
        state.add(Progress(number, ended.isoformat(), 50_000 + number, 10**7, 1.5, 10 ** (number % 8)))
    yield settings
    monkeypatch.undo()


@pytest.fixture(scope="module")
def page(made: Settings) -> Path:
    page, picture = write(made, made.state_dir / "report", datetime(2026, 11, 22, 1, tzinfo=UTC))
    assert picture.read_bytes()[:4] == b"\x89PNG"
    return page


class Elements(HTMLParser):
    """The elements of a page, its text, and the anchors that it has and that it leads to."""

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


def test_the_page_says_what_its_numbers_are(page: Path) -> None:
    found = Elements(page.read_text())
    for said in (
        "2026-11-20 00:00 to 2026-11-22 00:00 UTC",
        "summed over 8 windows of 6 h",
        "counts are at most",
        "no value that is not listed has more than",
        "4,814,784 lines by the time of arrival",
        "each of the last 60 micro-batches",
        "a silence of 10 min ends one",
        "2 lost, 0 doubled",
    ):
        assert said in found.text, said
    panels = [
        "Volume",
        "Dead letters by reason",
        "Columns that are null, by reason",
        "Throughput",
        "Lag",
        "Audit",
        *(str(each["name"]) for each in KINDS),
    ]
    for title in panels:
        assert title in found.text, title
    assert found.names.count("img") == len(panels)
    assert {link.removeprefix("#") for link in found.links} <= set(found.ids), "links lead to panels of the page"
    assert len(set(found.ids)) == len(found.ids) and all(link.startswith("#") for link in found.links)


def test_dead_letters_are_not_columns_that_are_null(made: Settings) -> None:
    captions = {panel.title: panel.caption for panel in report_panels.panels(made, [], [], zone_of("UTC"))}
    assert captions["Dead letters by reason"].startswith(f"{39 * 3} lines")
    assert captions["Columns that are null, by reason"].startswith(f"{39 * 7} lines")


def test_texts_of_messages_are_no_markup(page: Path) -> None:
    text = page.read_text()
    found = Elements(text)
    assert "script" not in found.names and HOSTILE[:30] in found.text
    assert "default-src 'none'" in text


def test_times_are_in_the_zone_that_is_asked_for(made: Settings) -> None:
    (first, *_) = report_panels.panels(made, [], [], zone_of("Asia/Tokyo"))
    assert "2026-11-20 09:00 to 2026-11-22 09:00 JST" in first.caption
    with pytest.raises(BadValue, match="no time zone"):
        zone_of("Mars/Base")


def test_lines_have_gaps_where_there_is_no_data() -> None:
    hours = np.array([0, 1, 2, 7, 8]) * HOUR_US
    found = with_gaps(Curve("x", hours, np.arange(5.0)), HOUR_US)
    assert np.isnan(found.values).tolist() == [False, False, False, True, False, False]
    assert found.micros[3] == 3 * HOUR_US


@pytest.mark.parametrize(
    ("values", "logarithmic"), [([1, 2, 3], False), ([10, 900_000, 20, 30], True), ([0, 0, 5], False), ([0.0], False)]
)
def test_scales_are_logarithmic_where_the_data_asks_for_it(values: list[float], logarithmic: bool) -> None:
    with charts._pyplot() as pyplot:
        figure, axis = pyplot.subplots()
        micros = np.arange(len(values)) * HOUR_US
        charts.curves(axis, [Curve("x", micros, np.array(values, float))], "lines", UTC, HOUR_US)
        assert (axis.get_yscale() != "linear") == logarithmic
        assert ("logarithmic" in axis.get_ylabel()) == logarithmic
        assert axis.get_xlabel().startswith("1970-01-01 00:00 to") and axis.get_xlabel().endswith("UTC")
        assert axis.yaxis.get_major_formatter()(1_234_567, 0) == "1,234,567"
        pyplot.close(figure)


def test_what_people_read() -> None:
    assert [duration(each) for each in (90, 300, 3600, 172_800, 0.5)] == ["90 s", "5 min", "1 h", "2 d", "0.5 s"]
    assert span(0, 86_400_000_000, ZoneInfo("Europe/Berlin")) == "1970-01-01 01:00 to 1970-01-02 01:00 CET"
    assert label_of([None, "a\x1bb"]) == "none, a\N{REPLACEMENT CHARACTER}b" and len(label_of(["x" * 99])) == 40


@pytest.mark.skipif(BROWSER is None, reason="no chromium: apt-get install chromium")
def test_a_browser_shows_the_page(page: Path, tmp_path: Path) -> None:
    """It runs nothing of the messages' text, and lays out every picture."""
    # Behind the page: whether its pictures are loaded and how wide it is.  The page itself may run no script.
    probe = tmp_path / "probe.html"
    check = (
        "<script>addEventListener('load', () => {{ const d = document.querySelector('iframe').contentDocument;"
        "document.body.dataset.found = JSON.stringify([d.title, d.images.length,"
        "[...d.images].filter(i => i.complete && i.naturalWidth > 500).length,"
        "d.documentElement.scrollWidth <= 1000]); }})</script><iframe width=1000 height=600 src='{}'></iframe>"
    )
    probe.write_text(f"<!doctype html><body>{check.format(page.as_uri())}</body>")
    shot = tmp_path / "page.png"
    assert BROWSER is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={tmp_path}/u"]
    flags += ["--allow-file-access-from-files", "--virtual-time-budget=5000"]
    done = subprocess.run([BROWSER, *flags, "--dump-dom", probe.as_uri()], capture_output=True, text=True, timeout=100)
    found = re.search(r'data-found="(.*?)"[ >]', done.stdout)
    assert found, done.stderr[-2000:]
    pictures = page.read_text().count("<img ")
    assert found[1].replace("&quot;", '"') == f'["p",{pictures},{pictures},true]'
    subprocess.run(
        [BROWSER, *flags, "--window-size=1000,5200", f"--screenshot={shot}", page.as_uri()],
        capture_output=True, timeout=100, check=True,
    )  # fmt: skip
    assert shot.read_bytes()[:4] == b"\x89PNG"
