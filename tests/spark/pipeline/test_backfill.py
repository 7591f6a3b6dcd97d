"""Lines from before a table began come in, each once, whoever is killed meanwhile; a real appliance, and Spark once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from appliance.client import Admin
from appliance.errors import AlreadyRunning, ApplianceError, BadValue
from appliance.spark.pipeline.backfill import backfill, begin_back, gaps
from appliance.spark.pipeline.forget import remove_rows
from appliance.spark.pipeline.settings import Settings
from appliance.spark.pipeline.startup import check, output_lock
from appliance.spark.pipeline.verify import verify

from ...support.command_line import run as command
from ...support.pipelines import STAMP_MS, access, fill, places, rejections, rows, settings
from ...support.topics import Topics
from .test_pipeline_source import paths, run, wanted
from .view_pipelines import COUNTS

STEP_BYTES = 10_000


def begun(topics: Topics, topic: str, base: Path, **more: Any) -> Settings:
    """A table that begins behind 300 lines and a rejected one in two partitions, and has 100 that came later."""
    topics.create(topic, partitions=2)
    fill(topics, topic, [*(access(number) for number in range(200)), b"?"], each=50)
    fill(topics, topic, [access(number) for number in range(200, 300)], partition=1, each=50)
    made = settings(base, topics, topic, input={"starting": "latest", "trigger_bytes": STEP_BYTES}, **more)
    assert list(run(made)) == []
    fill(topics, topic, [access(number) for number in range(300, 400)])
    assert list(run(made)) != [] and paths(made) == [f"/{number}" for number in range(300, 400)]
    return made


def steps(made: Settings) -> list[int]:
    return list(run(made, STEP_BYTES, beginning=begin_back(made)))


def check_complete(made: Settings, count: int = 400) -> None:
    """The table has each line of the topics once, by itself and compared with the topics."""
    assert paths(made) == wanted(count) and len(rejections(made)) == 1
    assert len(set(places(rows(made)))) == len(rows(made)) and all(part.equal for part in verify(made))


def told_before(made: Settings) -> list[tuple[str, str]]:
    return [(finding.effect, finding.text) for finding in check(made).findings if "before" in finding.text]


def test_it_goes_back_in_steps_after_which_anybody_may_be_stopped(topics: Topics, topic: str, tmp_path: Path) -> None:
    made = begun(topics, topic, tmp_path)
    ((effect, text),) = told_before(made)
    assert effect == "ok" and text.endswith("brings them in") and "in 2 partitions" in text
    sizes = [sum(gap.bytes for gap in gaps(made))]
    stopped = run(made, STEP_BYTES, beginning=begin_back(made))
    next(stopped)
    stopped.close()
    sizes.append(sum(gap.bytes for gap in gaps(made)))
    assert 0 < sizes[0] - sizes[1] <= STEP_BYTES, "the commit says how far it has gone back"
    assert all(part.equal for part in verify(made)), "what the table has of a partition is one range"
    fill(topics, topic, [access(400)])
    assert list(run(made)) != [], "a run goes on meanwhile"
    assert len(steps(made)) > 1
    check_complete(made, 401)
    version = DeltaTable(f"{made.output.path}/events").version()
    assert (gaps(made), steps(made), told_before(made)) == ([], [], [])
    assert DeltaTable(f"{made.output.path}/events").version() == version, "a repetition changes nothing"


def test_a_table_that_is_restored_meanwhile_gets_no_line_twice(topics: Topics, topic: str, tmp_path: Path) -> None:
    made = begun(topics, topic, tmp_path)
    table, beginning = f"{made.output.path}/events", begin_back(made)
    version = DeltaTable(table).version()
    goes_back = run(made, STEP_BYTES, beginning=beginning)
    next(goes_back)
    DeltaTable(table).restore(version)
    with pytest.raises(ApplianceError, match=r"from offset \d+ on, and micro-batch \d+ goes back from \d+"):
        next(goes_back)
    steps(made)
    check_complete(made)


def test_what_was_removed_stays_away(topics: Topics, topic: str, tmp_path: Path) -> None:
    made = begun(topics, topic, tmp_path)
    assert remove_rows(made, "path in ('/310', '/320')") == 2
    steps(made)
    assert paths(made) == [path for path in wanted(400) if path not in ("/310", "/320")]


def test_only_lines_of_a_time_and_those_that_there_are(topics: Topics, topic: str, tmp_path: Path) -> None:
    """50 lines have one time of arrival; a partition whose lines are all older is left out."""
    made = begun(topics, topic, tmp_path)
    assert [gap.partition for gap in gaps(made, STAMP_MS + 2000)] == [0]
    beginning = begin_back(made, STAMP_MS + 1000)
    with Admin(topics.server.native) as admin:
        (whole, _) = gaps(made, STAMP_MS)
        admin.delete_records(topic, 0, whole.first + 1)
    assert list(run(made, beginning=beginning)) != []
    assert paths(made) == [f"/{number}" for number in [*range(50, 200), *range(250, 400)]]


def test_what_cannot_go_back_is_refused(topics: Topics, topic: str, tmp_path: Path) -> None:
    topics.create(topic)
    made = settings(tmp_path, topics, topic)
    with pytest.raises(BadValue, match=r"there is no table of events .*`appliance pipeline run CONFIG.toml` makes it"):
        gaps(made)
    assert list(run(made)) == [] and gaps(made) == []
    with output_lock(made), pytest.raises(AlreadyRunning):
        backfill(made)
    topics.cluster.admin("delete_topic", {"name": topic})
    topics.create(topic)
    with pytest.raises(BadValue, match=r"created again .*`appliance pipeline accept` does so"):
        gaps(made)


def test_views_have_what_spark_has_brought_in(spark: SparkSession, topics: Topics, topic: str, tmp_path: Path) -> None:
    (tmp_path / "views").mkdir()
    (tmp_path / "views/hosts.sql").write_text(COUNTS)
    made = begun(topics, topic, tmp_path, views={"path": "views"})
    result = backfill(made, session=spark)
    assert result.rows == 301 and result.batches > 1 and "view" not in result.remark
    check_complete(made)
    counted = DeltaTable(f"{made.output.path}/views/hosts").to_pyarrow_table()
    assert sum(counted.column("n").to_pylist()) == 400
    config = tmp_path / "p.toml"
    config.write_text(
        f'[pipeline]\nname = "{topic}"\nbootstrap = "{topics.server.native}"\n[[source]]\ntopics = ["{topic}"]\n'
        'parsers = ["access"]\n[output]\npath = "out"\n'
    )
    for more in (["--dry-run"], []):
        done = command("pipeline", "backfill", str(config), "--json", *more)
        assert done.status == 0 and done.json == {"before": [], "run": None}
