"""What a pipeline leaves undone is known until it is done, to its own status and to who looks after the appliance."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from appliance.cli.pipeline_file import load
from appliance.errors import BadValue
from appliance.names import PIPELINE_NOTE
from appliance.spark.pipeline.pipeline_status import status
from appliance.spark.pipeline.run import run
from appliance.spark.pipeline.settings import Alert, Settings, parse
from appliance.spark.pipeline.troubles import DEFINITIONS, LETTERS, VIEW, Troubles
from appliance.spark.pipeline.view_refresh import Refresher

from ...support.command_line import run as command
from ...support.pipelines import access, fill
from ...support.remedies import Remedy
from ...support.server import Server, wait_for
from ...support.topics import Topics
from ...support.webhook import Receiver, receiver
from .view_pipelines import COUNTS, Pipeline, line

__all__ = ["receiver"]

CONFIG = """\
[pipeline]
name = "{topic}"
bootstrap = "{bootstrap}"
[[source]]
topics = ["{topic}"]
parsers = ["access"]
[output]
path = "out"
[views]
path = "views"
"""


def incomplete(server: Server) -> dict[str, Any] | None:
    found = command("doctor", "--json", "--data", str(server.data_dir)).json
    return next((row for row in found if row["condition"] == "PipelineIncomplete"), None)


def told(made: Settings) -> list[str]:
    return [remark for remark in status(made).remarks if remark.startswith("view ")]


def test_a_view_that_fails_is_named_by_the_doctor_until_it_is_mended(
    spark: SparkSession,
    make_appliance: Callable[..., Server],
    topics_of: Callable[[Server], Topics],
    topic: str,
    tmp_path: Path,
) -> None:
    """Also when the run has ended; the remedy is the one that the doctor names."""
    server = make_appliance(**{"zookeeper.nodes": 1})
    topics = topics_of(server)
    server.wait_for_zookeeper()
    topics.create(topic)
    fill(topics, topic, [access(number) for number in range(100)])
    (tmp_path / "views").mkdir()
    view, config = tmp_path / "views/clients.sql", tmp_path / "p.toml"
    view.write_text(COUNTS.replace("host", "clint"))
    config.write_text(CONFIG.format(topic=topic, bootstrap=server.native))
    made = load(config, None, None)
    assert run(made, once=True, session=spark).rows == 100
    row = wait_for(lambda: incomplete(server), "the doctor to know of it")
    assert row["what"] == f"pipeline {topic} leaves work undone"
    assert row["why"].startswith("view clients: ") and "clint" in row["why"] and row["level"] == "warning"
    assert told(made) == [row["why"]]
    assert [each["text"] for each in command("pipeline", "views", str(config), "--json").json] == [row["why"]]
    view.write_text(COUNTS.replace("host", "client"))
    with Remedy(row, {"CONFIG.toml": config}) as remedy:
        refresh = shlex.split(remedy.take("appliance pipeline refresh"))  # Spark is in a process of its own
        subprocess.run([sys.executable, "-m", *refresh], check=True, capture_output=True)
        assert incomplete(server) is None and told(made) == []
        remedy.run(f"appliance groups delete pipeline-{topic}")


def test_an_alert_that_nobody_gets_is_a_trouble_until_somebody_does(
    spark: SparkSession, tmp_path: Path, receiver: Receiver
) -> None:
    pipeline = Pipeline(spark, tmp_path)
    counts = pipeline.define("counts", COUNTS)
    alert = Alert("counts", "n > 0", receiver.url, within_ms=10**13)
    pipeline.settings = msgspec.structs.replace(pipeline.settings, alert=(alert,))
    troubles = Troubles(pipeline.settings)
    pipeline.write(line(1))
    receiver.answers = [503]
    pipeline.refresh(counts)
    (why,) = troubles.reasons()
    assert "nobody is told: answered with 503" in why
    assert troubles.as_note() == f"{PIPELINE_NOTE}p: {why}"
    pipeline.refresh(counts)
    assert troubles.reasons() == [] and troubles.as_note() == ""


def test_what_is_over_is_forgotten(spark: SparkSession, tmp_path: Path) -> None:
    """A view that is mended, or is no more; definitions that can be read; letters of a run before."""
    pipeline = Pipeline(spark, tmp_path)
    broken = pipeline.define("broken", COUNTS.replace("host", "hots"))
    pipeline.write(line(1))
    troubles = Troubles(pipeline.settings)
    with pytest.raises(BadValue):
        Refresher(pipeline.spark, pipeline.settings).rebuild(broken)
    troubles.note(f"{VIEW}gone", "view gone: was wrong")
    troubles.note(DEFINITIONS, "no.sql: has no head")
    troubles.note(LETTERS, "letters are not sent")
    assert len(troubles.reasons()) == 4
    troubles.keep_views({"broken"})
    assert [why.partition(":")[0] for why in troubles.reasons()] == ["letters are not sent", "view broken"]
    assert len(Troubles(pipeline.settings).as_note()) < 1000
    troubles.note(LETTERS, "long " * 1000)
    assert len(troubles.as_note()) == 1000
    troubles.begin()
    assert troubles.reasons() == []


def test_who_cannot_note_a_trouble_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = {"pipeline": {"name": "p"}, "source": [{"topics": ["t"], "parsers": ["access"]}]}
    made = parse(given | {"output": {"path": "out"}}, tmp_path)
    made.state_dir.mkdir(parents=True)
    (made.state_dir / "troubles").write_text("in the way")
    Troubles(made).note(LETTERS, "they are not sent")
    assert "troubles" in caplog.text
