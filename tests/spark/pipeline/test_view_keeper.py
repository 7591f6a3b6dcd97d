"""A running pipeline keeps its views, each at its cadence; what is wrong with one is told once and harms no other."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from deltalake import CommitProperties, DeltaTable
from pyspark.sql import SparkSession

from appliance.spark.pipeline.pipeline_status import of_alerts
from appliance.spark.pipeline.run import run
from appliance.spark.pipeline.settings import Alert
from appliance.spark.pipeline.view_keeper import DIRECTORY, ViewKeeper
from appliance.spark.pipeline.view_states import views_lock
from appliance.spark.pipeline.view_table import BASIS_KEY, ViewTable

from ...support.pipelines import access, fill, settings
from ...support.server import wait_for
from ...support.topics import Topics
from ...support.webhook import Receiver, receiver
from .view_pipelines import COUNTS, Pipeline, line

__all__ = ["receiver"]


@pytest.fixture
def pipeline(spark: SparkSession, tmp_path: Path) -> Pipeline:
    return Pipeline(spark, tmp_path)


def test_each_view_has_its_cadence(pipeline: Pipeline) -> None:
    views = [pipeline.define(name, COUNTS.replace("1h\n", f"1h\n-- cadence: {name[1:]}\n")) for name in ("m1h", "m2h")]
    pipeline.write(line(1))
    keeper = ViewKeeper(pipeline.spark, pipeline.settings)
    begun_s = time.monotonic()
    keeper.look(begun_s)
    assert [pipeline.state(view) for view in views] == ["current", "current"]
    refreshed_s = time.monotonic()
    pipeline.write(line(2))
    keeper.look(begun_s + 1000)
    assert [pipeline.state(view) for view in views] == ["behind", "behind"]
    keeper.look(refreshed_s + 3599)
    assert [pipeline.state(view) for view in views] == ["current", "behind"], "when a row is so old, it is in the view"
    pipeline.write(line(3))
    with views_lock(pipeline.settings):
        keeper.look(begun_s + 5000)  # somebody else refreshes: later
    assert [pipeline.state(view) for view in views] == ["behind", "behind"]
    keeper.look(begun_s + 5000)
    assert [pipeline.state(view) for view in views] == ["current", "behind"]
    assert keeper.remark == ""


def test_what_is_wrong_is_told_once(pipeline: Pipeline, caplog: pytest.LogCaptureFixture) -> None:
    sound = pipeline.define("sound", COUNTS)
    pipeline.define("broken", COUNTS.replace("host", "hots"))
    pipeline.write(line(1))
    keeper = ViewKeeper(pipeline.spark, pipeline.settings)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            keeper.look(float("inf"))
    told = [each.getMessage() for each in caplog.records if each.name.startswith("appliance")]  # Spark tells it, too
    assert [each.partition(":")[0] for each in told] == ["view broken"]
    assert "hots" in keeper.remark and pipeline.state(sound) == "current"
    pipeline.define("broken", COUNTS)
    keeper.look(float("inf"))
    assert keeper.remark == ""
    (pipeline.base / "views" / "broken.sql").write_text("no head")
    keeper.look(float("inf"))
    assert "says no window" in keeper.remark


def test_whoever_refreshes_tells_of_alerts(pipeline: Pipeline, receiver: Receiver) -> None:
    """And a webhook that is away harms no view: it is told with the next refresh, though nothing has come."""
    counts = pipeline.define("counts", COUNTS)
    pipeline.settings = msgspec.structs.replace(pipeline.settings, alert=(Alert("counts", "n > 1", receiver.url),))
    now = datetime.now(UTC).isoformat().encode()
    pipeline.write(*[b"time=%s host=%s level=info message=m" % (now, host) for host in (b"a", b"a", b"b")])
    receiver.answers = [503, 503]
    assert "answered with 503" in pipeline.refresh(counts).remark, "so what comes next is done: other views, a removal"
    keeper = ViewKeeper(pipeline.spark, pipeline.settings)
    keeper.look(float("inf"))
    assert "nobody is told: answered with 503" in keeper.remark and pipeline.state(counts) == "current"
    keeper.look(float("inf"))
    assert keeper.remark == ""
    assert [[row["host"] for row in body["rows"]] for _, body in receiver.got] == [["a"]] * 3
    assert next(of_alerts(pipeline.settings)).startswith("alert: counts: a window with n > 1, last ")


def test_faults_of_any_kind_are_told(pipeline: Pipeline) -> None:
    """Somebody has written what no view writes: the library that reads it has errors of its own."""
    broken, sound = pipeline.define("broken", COUNTS), pipeline.define("sound", COUNTS)
    pipeline.write(line(1))
    keeper = ViewKeeper(pipeline.spark, pipeline.settings, at_end=True)
    keeper.look(float("inf"))
    foreign = DeltaTable(ViewTable(pipeline.settings.output, broken.name).uri)
    foreign.delete("true", commit_properties=CommitProperties(custom_metadata={BASIS_KEY: "{}"}))
    pipeline.write(line(2))
    with keeper:
        pass
    assert list(keeper.faults) == ["broken"] and "version" in keeper.remark
    assert pipeline.state(sound) == "current"
    (pipeline.base / "views" / "latin.sql").write_bytes("-- gr\xf6\xdfer".encode("latin-1"))
    keeper.look(float("inf"))
    assert "latin.sql: byte 5 is not UTF-8" in keeper.faults[DIRECTORY]


def test_a_running_thread_refreshes(pipeline: Pipeline) -> None:
    view = pipeline.define("counts", COUNTS)
    pipeline.write(line(1))
    with ViewKeeper(pipeline.spark, pipeline.settings):
        wait_for(lambda: pipeline.state(view) == "current", "the first refresh", 60)


def test_a_run_ends_with_current_views(spark: SparkSession, topics: Topics, topic: str, tmp_path: Path) -> None:
    topics.create(topic)
    (tmp_path / "v").mkdir()
    (tmp_path / "v/clients.sql").write_text(COUNTS.replace("host", "client"))
    made = settings(tmp_path, topics, topic, output={"path": "out"}, views={"path": "v"})
    fill(topics, topic, [access(number) for number in range(700)])
    for sent in (700, 800):
        result = run(made, once=True, session=spark)
        assert "view" not in result.remark
        table = DeltaTable(ViewTable(made.output, "clients").uri).to_pyarrow_table()
        assert sum(table.column("n").to_pylist()) == sent == result.summary.as_json()["parsed"]
        fill(topics, topic, [access(number) for number in range(700, 800)])
    (tmp_path / "v/clients.sql").write_text(COUNTS.replace("host", "hots"))
    broken = run(made, once=True, session=spark)
    assert broken.rows == 100 and "view clients: " in broken.remark, "the events are there all the same"
