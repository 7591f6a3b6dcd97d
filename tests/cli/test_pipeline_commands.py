"""``appliance pipeline`` without Spark running: configurations, what is refused, status and report of what is there."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from appliance.cli.pipeline_file import load
from appliance.spark.pipeline import topic_lines

from ..spark.pipeline.test_pipeline_sink import micro_batch, records
from ..support.command_line import run
from ..support.server import Server

pytest.importorskip("pyspark")


def test_the_example_can_be_started_from(tmp_path: Path) -> None:
    done = run("pipeline", "example")
    assert done.status == 0
    path = tmp_path / "p.toml"
    path.write_text(done.out)
    settings = load(path, None, "127.0.0.1:1234")
    assert settings.pipeline.bootstrap == "127.0.0.1:1234"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[pipelin]\n", "did you mean pipeline"),
        ('[pipeline]\nname = "p"\n', "source is missing"),
    ],
)
def test_a_wrong_configuration_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "p.toml"
    path.write_text(text)
    done = run("pipeline", "run", str(path))
    assert done.status == 78 and says in done.err
    assert run("pipeline", "run", str(tmp_path / "none.toml")).status == 66


def test_status_and_report_before_the_first_run(appliance: Server, tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text('[pipeline]\nname = "p"\n[[source]]\ntopics = ["t"]\nparsers = ["plain"]\n[output]\npath = "out"\n')
    done = run("pipeline", "status", str(path), "--json", "--connect", appliance.native)
    found = json.loads(done.out)
    assert (found["running"], found["batch"], found["positions"], found["parsed"]) == (None, None, [], 0)
    done = run("pipeline", "report", str(path), "--json")
    page = Path(json.loads(done.out)["html"])
    assert page.parent == tmp_path / "p.state" and "there is no table of events yet" in page.read_text()


def test_views_can_be_started_from(tmp_path: Path) -> None:
    """What a remedy says is what helps: from no views to views that only lack events."""
    path = tmp_path / "p.toml"
    text = '[pipeline]\nname = "p"\n[[source]]\ntopics = ["t"]\nparsers = ["plain"]\n[output]\npath = "out"\n'
    path.write_text(text)
    done = run("pipeline", "views", str(path))
    assert done.status == 78 and "`appliance pipeline example --views DIR`" in done.err
    path.write_text(text + f'[views]\npath = "{tmp_path / "v"}"\n')
    done = run("pipeline", "views", str(path))
    assert done.status == 78 and f"there is no directory {tmp_path / 'v'}" in done.err
    done = run("pipeline", "example", "--views", str(tmp_path / "v"))
    assert done.status == 0 and done.out.splitlines() == sorted(map(str, (tmp_path / "v").iterdir()))
    done = run("pipeline", "views", str(path))
    assert done.status == 78 and "`appliance pipeline run CONFIG.toml` makes it" in done.err
    done = run("pipeline", "example", "--views", str(tmp_path / "v"))
    assert done.status == 78 and "is there already" in done.err
    path.write_text(text.replace('"out"', '"s3://b/out"') + '[views]\npath = "v"\n')
    done = run("pipeline", "check", str(path))
    assert done.status == 78 and "views.path needs an output.path on a file system" in done.err


def test_a_corrected_parser_is_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a table that was written with one that takes nothing."""
    path = tmp_path / "p.toml"
    text = """
        [pipeline]
        name = "p"
        [[source]]
        topics = ["t"]
        parsers = ["logfmt"]
        [output]
        path = "out"
    """
    path.write_text(text)
    done = run("pipeline", "reparse", str(path))
    assert done.status == 78 and "`appliance pipeline run CONFIG.toml` makes it" in done.err
    micro_batch(load(path, None, None), 0, [[records([b"no pairs", b"none"], "t")]])
    path.write_text(text.replace("logfmt", "plain"))
    done = run("pipeline", "reparse", str(path))
    assert (done.status, done.out) == (0, "2 lines were parsed again: 2 that were rejected are events now\n")
    done = run("pipeline", "reparse", str(path), "--json")
    assert json.loads(done.out) == {"lines": 0, "taken": 0, "lost": 0, "without": 0, "files": 0}
    monkeypatch.setattr(topic_lines, "ASK_MS", 100)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        done = run("pipeline", "reparse", str(path), "--all", "--connect", f"127.0.0.1:{closed.getsockname()[1]}")
    assert done.status == 75 and "no connection to the appliance" in done.err, "the table does not have the lines"


def test_old_rows_expire(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text('[pipeline]\nname = "p"\n[[source]]\ntopics = ["t"]\nparsers = ["plain"]\n[output]\npath = "out"\n')
    micro_batch(load(path, None, None), 0, [[records([b"one", b"two"], "t")]])
    words = ("pipeline", "expire", str(path), "--before")
    assert run(*words, "2026-11-20T00:00Z", "--yes").out == "0 rows were removed\n"
    assert run(*words, "2026-11-21", "--dry-run").out == "2 rows would be removed\n"
    assert run(*words, "2026-11-21").status == 2, "nobody can be asked here"
    done = run(*words, "2026-11-21", "--yes", "--json")
    assert done.status == 0 and json.loads(done.out)["removed"] == 2, done.err
    assert "must be a time" in run(*words, "latest", "--yes").err


def test_a_person_is_forgotten(appliance: Server, tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(f"""
        [pipeline]
        name = "p"
        bootstrap = "{appliance.native}"
        [[source]]
        topics = ["no-such-topic"]
        parsers = ["logfmt"]
        [output]
        path = "out"
    """)
    lines = [b"host=ann level=info message=m", b"host=bob level=info message=m"]
    micro_batch(load(path, None, None), 0, [[records(lines, "no-such-topic")]])
    words = ("pipeline", "forget", str(path), "--where", "host = 'ann'")
    assert run(*words).status == 2, "nobody can be asked here"
    shown = json.loads(run(*words, "--dry-run", "--json").out)
    assert (shown["rows"], shown["removed"], shown["places"][0]["rows"]) == (1, 0, 1)
    assert [each["until"] for each in shown["remains"]] == ["7 days"]
    done = run(*words, "--yes")
    assert done.status == 0 and done.out.startswith("1 row was removed, with "), done.err
    again = json.loads(run(*words, "--yes", "--json").out)
    assert (again["rows"], again["removed"], again["places"]) == (0, 0, [])
    wrong = run(*words[:-1], "hots = 1", "--yes")
    assert wrong.status == 78 and "No field named hots" in wrong.err


@pytest.mark.parametrize("since", ["17", "earliest", "soon"])
def test_a_rebuild_is_from_a_time_on(tmp_path: Path, since: str) -> None:
    done = run("pipeline", "rebuild", str(tmp_path / "p.toml"), "errors", "--since", since)
    assert done.status in (2, 64, 78) and since in done.err and "Traceback" not in done.err
