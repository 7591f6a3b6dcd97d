"""The whole pipeline, with real Spark and a real appliance; its output is read without Spark."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyspark
import pytest
from pyspark.sql import SparkSession

from appliance.client import Audit, Consumer, Producer
from appliance.errors import AlreadyRunning, BadValue, MessageTooLarge
from appliance.spark.pipeline.pipeline_status import heaviest, read_total, status, summary
from appliance.spark.pipeline.report import write
from appliance.spark.pipeline.run import run
from appliance.spark.pipeline.settings import Settings
from appliance.spark.pipeline.startup import output_lock
from appliance.spark.pipeline.state_directory import Progress, State
from appliance.spark.pipeline.tables import claim
from appliance.spark.spark_session import prepare_environment
from appliance.wire.requests import EARLIEST

from ..support.server import Server, wait_for
from .conftest import ROOT, Topics
from .pipelines import access, events, fill, places, settings
from .test_sink import stored

JUNK = [b"this is no access line", b"\xff\xfe\x00", b""]
AGGREGATES = [
    {"name": "errors", "kind": "errors", "by": ["service"], "window_ms": "1m"},
    {"name": "talkers", "kind": "top", "by": ["client"], "window_ms": "1d"},
    {"name": "visits", "kind": "sessions", "by": ["client"], "gap_ms": "10m"},
]


def consumed(server: Server, topic: str, count: int) -> list[Any]:
    """Everything in a topic with one partition: ``count`` messages, and no more."""
    with Consumer(server.native) as consumer:
        consumer.assign({(topic, 0): EARLIEST})
        found: list[Any] = []
        wait_for(lambda: found.extend(consumer.poll(timeout=1)) or len(found) >= count, f"{count} messages of {topic}")
        return found


@pytest.mark.parametrize("kind", [pytest.param("parquet", marks=pytest.mark.long), "delta"])
def test_lines_become_tables_and_a_second_run_adds_only_what_is_new(
    spark: SparkSession, topics: Topics, topic: str, tmp_path: Path, kind: str
) -> None:
    topics.create(topic, partitions=2)
    topics.create(f"{topic}-changes")
    lines = [access(number, 500 if number % 10 == 0 else 200) for number in range(2000)]
    fill(topics, topic, lines[:1000])
    fill(topics, topic, [*lines[1000:1500], *JUNK], partition=1)
    aggregates = [AGGREGATES[0] | {"topic": f"{topic}-changes"}, *AGGREGATES[1:]]
    made = settings(
        tmp_path,
        topics,
        topic,
        output={"path": "out", "format": kind},
        source=[{"topics": [topic], "parsers": ["access"], "service": "web"}],
        dead_letters={"topic": f"{topic}-dead"},
        aggregate=aggregates,
        input={"trigger_bytes": "100KB"},
    )
    seen: list[Progress] = []
    result = run(made, once=True, session=spark, on_progress=seen.append)
    assert result.rows == sum(each.rows for each in seen) == 1503 and result.batches > 1
    fill(topics, topic, lines[1500:], partition=1)
    assert run(made, once=True, session=spark).rows == 500
    table = events(made)
    assert len(set(places(table))) == len(table) == 2000
    assert sorted(table.column("path").to_pylist()) == sorted(f"/{number}" for number in range(2000))
    assert Counter(table.column("level").to_pylist()) == {"info": 1800, "error": 200}
    assert set(table.column("date").to_pylist()) == {"2026-11-20"}
    check_dead_letters(consumed(topics.server, f"{topic}-dead", 3), table, topic)
    check_totals(made, f"{topic}-changes", topics)


def test_dead_letters_are_not_repeated_after_an_older_output_was_restored(
    spark: SparkSession, topics: Topics, topic: str, tmp_path: Path
) -> None:
    for name in (topic, f"{topic}-dead"):
        topics.create(name)
    made = settings(tmp_path, topics, topic, dead_letters={"topic": f"{topic}-dead"})
    out, copy = Path(made.output.path), tmp_path / "copy"
    fill(topics, topic, [access(1), *JUNK[:1]])
    run(made, once=True, session=spark)
    shutil.copytree(out, copy)
    fill(topics, topic, [*JUNK[1:], access(2)])
    run(made, once=True, session=spark)
    shutil.rmtree(out)
    shutil.copytree(copy, out)
    fill(topics, topic, [b"a later one", access(3)])
    assert run(made, once=True, session=spark).rows == 5
    assert len(events(made)) == 3
    assert [each.value for each in stored(topics.server, f"{topic}-dead")] == [*JUNK, b"a later one"]


def check_dead_letters(messages: list[Any], table: Any, topic: str) -> None:
    assert [each.value for each in messages] == JUNK
    for message in messages:
        headers = dict(message.headers)
        assert (headers["topic"], headers["partition"]) == (topic.encode(), b"1")
        assert (1, int(headers["offset"])) not in places(table)
    reasons = [dict(message.headers)["reason"] for message in messages]
    assert reasons == [b"not a line of access", b"not UTF-8 text", b"not a line of access"]


def check_totals(made: Settings, changes: str, topics: Topics) -> None:
    errors, visits = read_total(made, "errors"), read_total(made, "visits")
    assert errors is not None and visits is not None
    rows = errors.to_pylist()
    assert len(rows) == 20 and all((row["count"], row["errors"]) == (100, 10) for row in rows)
    assert {round(row["error_rate"], 6) for row in rows} == {0.1}
    assert sum(each["count"] for each in heaviest(made, "talkers", 10).rows) == 2000
    assert len(visits) == 7 and sum(visits.column("count").to_pylist()) == 2000
    told = {}
    for message in consumed(topics.server, changes, 20):
        told[message.key] = json.loads(message.value)
    assert {row["count"] for row in told.values()} == {100}, "the newest under each key is right"
    found = status(made)
    assert found.as_json()["lag_bytes"] == 0 and found.summary.as_json()["parsed"] == 2000
    assert found.state == "stopped" and "without ZooKeeper" in found.remarks[0]
    assert found.summary.dead == {"not a line of access": 2, "not UTF-8 text": 1}
    page, picture = write(made, Path(made.pipeline.state), datetime(2026, 11, 22, tzinfo=UTC))
    assert picture.read_bytes()[:4] == b"\x89PNG" and "talkers" in page.read_text()


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
    with pytest.raises(BadValue, match="is written as parquet"):
        output = msgspec.structs.replace(made.output, format="delta")
        run(msgspec.structs.replace(made, output=output), once=True, session=spark)


def test_a_query_that_fails_says_why_and_can_go_on(
    spark: SparkSession, topics: Topics, topic: str, tmp_path: Path
) -> None:
    """The dead-letter topic takes no message as large as the line; then it does."""
    topics.create(topic)
    topics.create(f"{topic}-dead", max_message_bytes=200)
    fill(topics, topic, [access(1), b"x" * 1000])
    made = settings(tmp_path, topics, topic, dead_letters={"topic": f"{topic}-dead"})
    with pytest.raises(MessageTooLarge, match=r"^the query failed: .*max.message.bytes.*$") as told:
        run(made, once=True, session=spark)
    assert "\n" not in str(told.value) and "Traceback" in State(made.state_dir).failure.read_text()
    failed = status(made)
    assert (failed.state, failed.batch) == ("failed", None) and "failure.txt" in failed.remarks[-1]
    assert len(events(made)) == 0
    topics.cluster.admin("alter_topic", {"name": f"{topic}-dead", "settings": {"max.message.bytes": "10000"}})
    assert run(made, once=True, session=spark).summary.as_json()["dead_letters"] == 1
    assert len(events(made)) == 1


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
[[aggregate]]
name = "talkers"
kind = "count"
by = ["client"]
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

    ``test_pipeline_machine.py`` ends runs at every step without processes of their own.
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
        return any(out.glob("_staging/**/*.parquet"))

    def committed(count: int) -> bool:
        return len(list(out.glob("_commits/*.json"))) >= count

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
    assert not any(out.glob("_staging/*"))
