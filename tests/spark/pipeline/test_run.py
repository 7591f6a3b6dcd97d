"""The whole pipeline, with real Spark and a real appliance; its output is read without Spark."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from appliance.client import Audit, Consumer, Producer
from appliance.errors import AlreadyRunning, BadValue
from appliance.spark.pipeline.pipeline_status import status, summary
from appliance.spark.pipeline.report import write
from appliance.spark.pipeline.run import run
from appliance.spark.pipeline.settings import Settings
from appliance.spark.pipeline.startup import begin, output_lock
from appliance.spark.pipeline.state_directory import Progress, State
from appliance.spark.pipeline.tables import claim
from appliance.spark.spark_session import prepare_environment
from appliance.wire.requests import EARLIEST

from ...support.pipelines import access, events, fill, places, rejections, rows, settings
from ...support.server import Server, wait_for
from ...support.topics import Topics
from ..conftest import ROOT
from ..test_sink import stored

JUNK = [b"this is no access line", b"\xff\xfe\x00", b""]


def consumed(server: Server, topic: str, count: int) -> list[Any]:
    """Everything in a topic with one partition: ``count`` messages, and no more."""
    with Consumer(server.native) as consumer:
        consumer.assign({(topic, 0): EARLIEST})
        found: list[Any] = []
        wait_for(lambda: found.extend(consumer.poll(timeout=1)) or len(found) >= count, f"{count} messages of {topic}")
        return found


def test_lines_become_tables_and_a_second_run_adds_only_what_is_new(
    spark: SparkSession, topics: Topics, topic: str, tmp_path: Path
) -> None:
    topics.create(topic, partitions=2)
    lines = [access(number, 500 if number % 10 == 0 else 200) for number in range(2000)]
    fill(topics, topic, lines[:1000])
    fill(topics, topic, [*lines[1000:1500], *JUNK], partition=1)
    made = settings(
        tmp_path,
        topics,
        topic,
        source=[{"topics": [topic], "parsers": ["access"], "service": "web"}],
        dead_letters={"topic": f"{topic}-dead"},
        input={"trigger_bytes": "100KB"},
    )
    seen: list[Progress] = []
    result = run(made, once=True, session=spark, on_progress=seen.append)
    assert result.rows == sum(each.rows for each in seen) == 1503 and result.batches > 1
    fill(topics, topic, lines[1500:], partition=1)
    assert run(made, once=True, session=spark).rows == 500
    table = events(made)
    assert len(set(places(table))) == len(table) == 2000
    assert len(set(places(rows(made)))) == len(rows(made)) == 2003, "every line that was read is a row"
    assert sorted(table.column("path").to_pylist()) == sorted(f"/{number}" for number in range(2000))
    assert Counter(table.column("level").to_pylist()) == {"info": 1800, "error": 200}
    assert set(table.column("date").to_pylist()) == {"2026-11-20"}
    check_dead_letters(consumed(topics.server, f"{topic}-dead", 3), table, topic)
    check_rejections(made, consumed(topics.server, f"{topic}-dead", 3))
    check_status(made)


def test_a_run_with_nothing_new_does_nothing(spark: SparkSession, topics: Topics, topic: str, tmp_path: Path) -> None:
    """As from a timer, also before the first line has come."""
    topics.create(topic)
    made = settings(tmp_path, topics, topic, output={"path": "out"})
    for sent, fresh in ((0, 0), (10, 10), (10, 0)):
        fill(topics, topic, [access(number) for number in range(fresh)])
        result = run(made, once=True, session=spark)
        assert (result.rows, result.batches, len(events(made))) == (fresh, bool(fresh), sent)
        assert len(State(made.state_dir).history()) == bool(sent)


def check_dead_letters(messages: list[Any], table: Any, topic: str) -> None:
    assert [each.value for each in messages] == JUNK
    for message in messages:
        headers = dict(message.headers)
        assert (headers["topic"], headers["partition"]) == (topic.encode(), b"1")
        assert (1, int(headers["offset"])) not in places(table)
    reasons = [dict(message.headers)["reason"] for message in messages]
    assert reasons == [b"not a line of access", b"not UTF-8 text", b"not a line of access"]


def check_rejections(made: Settings, messages: list[Any]) -> None:
    """Table, topic of dead letters and status say the same of the lines that were rejected."""
    found = rejections(made)
    told = {(row["raw"], row["rejected"].encode(), b"%d" % row["offset"]) for row in found}
    headers = [dict(message.headers) for message in messages]
    assert told == {(each.value, of["reason"], of["offset"]) for each, of in zip(messages, headers, strict=True)}
    assert len(found) == 3 and {row["parser"] for row in found} == {row["service"] for row in found} == {None}
    assert summary(made).dead == Counter(row["rejected"] for row in found)


def check_status(made: Settings) -> None:
    found = status(made)
    assert found.as_json()["lag_bytes"] == 0 and found.summary.as_json()["parsed"] == 2000
    assert found.state == "stopped" and "without ZooKeeper" in found.remarks[0]
    assert found.summary.dead == {"not a line of access": 2, "not UTF-8 text": 1}
    page = write(made, Path(made.pipeline.state), datetime(2026, 11, 22, tzinfo=UTC)).read_text()
    assert "3 lines are outside of this time" in page, "a rejected line is at the time of its record, a day later"
    assert "2,000 lines, 0 of them rejected" in page and "200 of 2,000 parsed lines have an error level" in page


def test_the_audit_tells_what_was_lost_and_doubled(
    spark: SparkSession, topics: Topics, topic: str, tmp_path: Path
) -> None:
    """One line is taken away between producer and log, and one is sent behind the producer's back."""
    for name in (topic, f"{topic}-quiet", f"{topic}-audit"):
        topics.create(name)
    now_ms = 1_795_219_230_000
    clock = iter(range(now_ms, now_ms + 10**9, 10)).__next__
    with Producer(topics.server.native) as producer:
        with Audit(producer, f"{topic}-audit", server="web-1", clock_ms=clock) as audit:
            audit.send_many(topic, [access(number) for number in range(300)])
            for number in range(20):
                audit.send(f"{topic}-quiet", access(number), timestamp=now_ms + 60_000)
        producer.send(topic, access(1), timestamp=now_ms).result()
        lying = {"server": "x", "topic": f"{topic}-quiet", "window_start_ms": 1_795_219_260_000, "window_ms": 60_000}
        producer.send(f"{topic}-audit", json.dumps(lying | {"count": 1}).encode()).result()
        producer.send(f"{topic}-audit", b"no count").result()
    made = settings(
        tmp_path,
        topics,
        topic,
        source=[{"topics": [topic, f"{topic}-quiet"], "parsers": ["access"]}],
        audit={"topic": f"{topic}-audit"},
    )
    found = run(made, once=True, session=spark).summary
    windows_end = datetime(2026, 11, 21, 0, 2, tzinfo=UTC)
    young = summary(made, windows_end).audit
    assert young is not None and (young.lost, young.doubled, young.pending) == (0, 0, 2)
    later = windows_end + timedelta(milliseconds=made.audit.grace_ms)
    judged = summary(made, later).audit
    assert judged is not None and (judged.lost, judged.doubled, judged.faulty) == (1, 1, 2)
    assert [reason for reason in found.dead if reason.startswith("audit: ")] != []
    (fault,) = rejections(made)
    assert (fault["topic"], fault["raw"]) == (f"{topic}-audit", b"no count") and fault["rejected"].startswith("audit: ")


def test_a_group_shows_the_positions(
    spark: SparkSession,
    make_appliance: Callable[..., Server],
    topics_of: Callable[[Server], Topics],
    topic: str,
    tmp_path: Path,
) -> None:
    server = make_appliance(**{"zookeeper.nodes": 1})
    topics = topics_of(server)
    server.wait_for_zookeeper()
    topics.create(topic)
    fill(topics, topic, [access(number) for number in range(100)])
    made = settings(tmp_path, topics, topic)
    result = run(made, once=True, session=spark)
    assert result.remark == ""
    (row,) = topics.cluster.admin("group", {"group": f"pipeline-{topic}"})["partitions"]
    assert (row["topic"], row["lag_messages"]) == (topic, 0)


def test_what_cannot_be_is_refused_before_spark_is_asked(
    spark: SparkSession, topics: Topics, topic: str, tmp_path: Path
) -> None:
    topics.create(topic)
    fill(topics, topic, [access(number) for number in range(10)])
    made = settings(tmp_path, topics, topic)
    for lock in (State(made.state_dir).lock, output_lock(made)):
        with lock, pytest.raises(AlreadyRunning, match=str(os.getpid())):
            run(made, once=True, session=spark)
    claim(made)
    another = settings(tmp_path, topics, topic, pipeline={"name": "another", "bootstrap": topics.server.native})
    with pytest.raises(BadValue, match="is the output of pipeline"):
        run(another, once=True, session=spark)


def test_dead_letters_that_are_too_large_stop_nothing(
    spark: SparkSession, topics: Topics, topic: str, tmp_path: Path
) -> None:
    """Neither the pipeline nor the letters behind them."""
    topics.create(topic)
    topics.create(f"{topic}-dead", max_message_bytes=400)
    fill(topics, topic, [access(1), secrets.token_bytes(1000), b"no line"])
    made = settings(tmp_path, topics, topic, dead_letters={"topic": f"{topic}-dead"})
    result = run(made, once=True, session=spark)
    told = f"1 dead letters were left out: they are larger than max.message.bytes of {topic}-dead allows"
    assert told in result.remark and result.summary.as_json()["dead_letters"] == 2
    assert len(events(made)) == 1
    assert any(told in each for each in status(made).remarks)
    (letter,) = stored(topics.server, f"{topic}-dead")
    assert letter.value == b"no line" and len(rows(made)) == 3


def test_a_query_that_fails_says_why_and_can_go_on(
    spark: SparkSession, topics: Topics, topic: str, tmp_path: Path
) -> None:
    """The file of a lookup is away; then it is there."""
    topics.create(topic)
    lookup = tmp_path / "hosts.csv"
    lookup.write_text("client,team\n10.0.0.1,core\n")
    fill(topics, topic, [access(1)])
    made = settings(tmp_path, topics, topic, lookup=[{"file": str(lookup), "key": "client"}])
    beginning = begin(made)
    lookup.unlink()  # between the check of the driver and the tasks
    with pytest.raises(BadValue, match=r"^the query failed: lookup .*hosts.csv.*$") as told:
        run(made, once=True, begin_with=lambda _: beginning, session=spark)
    assert "\n" not in str(told.value) and "Traceback" in State(made.state_dir).failure.read_text()
    lookup.write_text("client,team\n10.0.0.1,core\n")
    failed = status(made)
    assert (failed.state, failed.batch) == ("failed", None) and "failure.txt" in failed.remarks[-1]
    assert len(events(made)) == 0
    run(made, once=True, session=spark)
    assert events(made).column("team").to_pylist() == ["core"]


# ---- drivers of their own

CONFIG = """\
[pipeline]
name = "own-driver"
bootstrap = "{bootstrap}"
[input]
trigger_bytes = "1MB"
trigger_ms = 200
[[source]]
topics = ["{topic}"]
parsers = ["access"]
[output]
path = "out"
[dead_letters]
topic = "{topic}-dead"
[spark]
"spark.master" = "local[2]"
"""


@pytest.mark.long
def test_a_cluster_runs_it_unchanged(topics: Topics, topic: str, tmp_path: Path) -> None:
    """``spark-submit`` to a master with two workers, whose executors are processes of their own."""
    topics.create(topic, partitions=4)
    topics.create(f"{topic}-dead")
    for partition in range(4):
        fill(topics, topic, [access(partition * 1000 + number) for number in range(1000)], partition)
    fill(topics, topic, [b"junk"])
    config = CONFIG.format(bootstrap=topics.server.native, topic=topic).partition("[spark]")[0]
    (tmp_path / "p.toml").write_text(config)
    prepare_environment()
    home = Path(pyspark.__file__).parent
    done = subprocess.run(
        [str(home / "bin" / "spark-submit"), "--master", "local-cluster[2,1,1024]",
         "--conf", "spark.driver.host=127.0.0.1", str(ROOT / "appliance/spark/pipeline/__main__.py"),
         str(tmp_path / "p.toml"), "--once"],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    shutil.rmtree(home / "work")  # what executors leave
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)
    assert (result["parsed"], result["dead_letters"]) == (4000, 1)
    made = settings(tmp_path, topics, topic)
    assert sorted(events(made).column("path").to_pylist()) == sorted(f"/{number}" for number in range(4000))
    executors = set(re.findall(r"Registered executor .* with ID (\d+)", done.stderr))
    assert executors == {"0", "1"}, done.stderr[-3000:]


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts ``appliance pipeline run`` in a process group of its own."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "appliance", "pipeline", "run", str(tmp_path / "p.toml"), "--json", *words]
        with (tmp_path / "driver.log").open("ab") as log, (tmp_path / "result.json").open("wb") as result:
            started.append(subprocess.Popen(command, cwd=ROOT, stdout=result, stderr=log, start_new_session=True))
        return started[-1]

    yield start
    for child in started:
        if child.poll() is None:  # a number that was reaped may be another's by now
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def parsed(made: Settings) -> int:
    return sum(summary(made).parsed.values())


@pytest.mark.long
def test_a_killed_driver_writes_everything_once(
    topics: Topics, topic: str, tmp_path: Path, driver: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """Killed in the middle of a first micro-batch's tasks, after a commit, and later once more.

    ``test_machine.py`` ends runs at every step without processes of their own.
    """
    topics.create(topic, partitions=2)
    topics.create(f"{topic}-dead")
    lines = [access(number) for number in range(30_000)]
    junk = [b"junk %d" % number for number in range(300)]
    fill(topics, topic, [*lines[:15_000], *junk[:150]], each=1000)
    fill(topics, topic, [*junk[150:], *lines[15_000:29_000]], partition=1, each=1000)
    (tmp_path / "p.toml").write_text(CONFIG.format(bootstrap=topics.server.native, topic=topic))
    out = tmp_path / "out"

    def staged() -> bool:
        return any(out.glob("events/*.parquet"))

    def committed(count: int) -> bool:
        return len(list(out.glob("events/_delta_log/*.json"))) > count

    for moment in (staged, lambda: committed(1), lambda: committed(3)):
        child = driver("--once")

        def reached(child: Any = child, moment: Any = moment) -> bool:
            assert child.poll() is None, (tmp_path / "driver.log").read_text()[-2000:]
            return bool(moment())

        wait_for(reached, "the moment to kill", 120)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    said = (tmp_path / "driver.log").stat().st_size
    last = driver()
    made = settings(tmp_path, topics, topic, pipeline={"name": "own-driver", "bootstrap": topics.server.native})
    wait_for(lambda: parsed(made) == 29_000, "everything that is there to be parsed", 120)
    fill(topics, topic, lines[29_000:])
    wait_for(lambda: parsed(made) == 30_000, "what has come since to be parsed", 60)
    last.terminate()
    assert last.wait(60) == 0, (tmp_path / "driver.log").read_text()[-2000:]
    assert json.loads((tmp_path / "result.json").read_text())["parsed"] == 30_000
    assert "BrokenPipeError" not in (tmp_path / "driver.log").read_text()[said:]
    table = events(made)
    assert sorted(table.column("path").to_pylist()) == sorted(f"/{number}" for number in range(30_000))
    assert len(set(places(table))) == 30_000
    assert sorted(each.value for each in consumed(topics.server, f"{topic}-dead", 300)) == sorted(junk)
