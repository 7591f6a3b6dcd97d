"""``appliance pipeline`` without Spark running: configurations, what is refused, status and report of what is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from appliance.cli import pipeline_commands

from ..support.command_line import run
from ..support.server import Server

pytest.importorskip("pyspark")


def test_the_example_can_be_started_from(tmp_path: Path) -> None:
    done = run("pipeline", "example")
    assert done.status == 0
    path = tmp_path / "p.toml"
    path.write_text(done.out)
    settings = pipeline_commands.load(path, None, "127.0.0.1:1234")
    assert settings.pipeline.bootstrap == "127.0.0.1:1234"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[pipelin]\n", "did you mean pipeline"),
        ('[pipeline]\nname = "p"\n', "missing required field `source`"),
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
    assert page.parent == tmp_path / "p.state" and "0 lines parsed" in page.read_text()
