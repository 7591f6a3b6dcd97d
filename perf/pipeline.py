"""How many lines per second does the pipeline parse and store, beside Spark SQL, and how fresh are its tables?

    python perf/pipeline.py [--smoke] [--rounds N] [--lines N] [--steps N] [--seconds N] [--only WORD]

Four topics with access lines, JSON, syslog and logfmt, with two partitions each, read by one session in local[2].

``mixed``: all lines from the topics to one table of events, exactly once, with the seven views of ``appliance pipeline
example --views``, from the start of the query to its end.  ``plain`` is the same without views.  ``within_batches`` is
the rate of the micro-batches alone, since Spark starts five kinds of Python processes before the first one.
``connector`` is Spark's own Kafka connector with the same parsing in Spark SQL, into Spark's Parquet sink, without
views: a query of Spark has one output.  All sides take turns in one JVM with both compilers; without ``connector`` it
has one, as that of a pipeline.  CPU is that of Spark (JVM and Python workers) and the appliance together,
in seconds per million lines.

``refresh``: a day of lines arrives in steps, each as large as what 20,000 lines a second are in a minute.  Five views
(errors, heaviest, distinct, percentiles, sessions) are refreshed as often as they say, by the windows that the steps
touched: after each step, or after so many of them as their cadence has minutes, and after the last one.  ``share`` is
their CPU relative to that of the ingestion of the same lines, both without that of the appliance; ``late_share`` is
that of the second half of the steps, when Java has compiled what is asked again and again.

``freshness``: while 20,000 lines a second arrive, how long it takes from when a line is sent until it is in committed
tables, with a trigger of half a second; ``freshness_of_views``: likewise beside five views that are refreshed every
minute, and until each of them has it.  These three run in a process of their own, freshness in the session that a
pipeline begins.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from _bench import headline, row
from spark import connector, cpu_of_all_s

from appliance.bench.accounts import cpu_s, tree
from appliance.bench.local_appliance import LocalAppliance
from appliance.cli.pipeline_view_commands import write_examples
from appliance.client import Admin, Producer
from appliance.spark.pipeline.batch_record import COMMIT_KEY, decode_record
from appliance.spark.pipeline.run import run
from appliance.spark.pipeline.settings import Settings, Views, parse
from appliance.spark.pipeline.view_refresh import refresher
from appliance.spark.pipeline.view_states import views_of
from appliance.spark.pipeline.view_table import BASIS_KEY
from appliance.spark.pipeline.view_table import VIEWS as VIEWS_OF_OUTPUT
from appliance.spark.spark_session import LASTING_JVM, LIGHT_JVM, build_session

DAY = datetime(2026, 11, 20, tzinfo=UTC)
DAY_S = 86_400
PARTITIONS = 2
RATE = 20_000
PER_S = 10_000
"""So many lines of a topic have times within a second, where nothing else is said."""
SETTLE_S_MAX = 120
FRESHNESS, FRESHNESS_OF_VIEWS, REFRESH = "freshness", "freshness_of_views", "refresh"
ALONE = (FRESHNESS, FRESHNESS_OF_VIEWS, REFRESH)
"""What has a process, an appliance and a session of its own."""
VIEWS = ("errors", "hosts", "distinct_hosts", "arrival", "sessions")
VIEWS_OF_A_MINUTE = ("volume", "errors", "hosts", "arrival", "rejected")
"""Those that are refreshed as often as a view is by default."""
ALL_VIEWS = (*VIEWS, "volume", "rejected")


def time_of(number: int, per_s: float) -> datetime:
    return DAY + timedelta(seconds=number / per_s)


def access(number: int, at: datetime) -> str:
    return (
        f"10.1.{number // 251 % 8}.{number % 251} - - [{at:%d/%b/%Y:%H:%M:%S} +0000] "
        f'"GET /page/{number % 5000} HTTP/1.1" {200 if number % 50 else 500} {number * 7919 % 90_000} '
        '"https://www.example.com/" "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101"'
    )


def app(number: int, at: datetime) -> str:
    return json.dumps(
        {
            "time": at.isoformat(timespec="milliseconds"),
            "level": "info" if number % 20 else "error",
            "host": f"web{number % 9}",
            "service": "shop",
            "message": f"order {number} accepted",
            "user": f"u{number % 3000}",
            "took_ms": number * 31 % 997 / 10,
        }
    )


def system(number: int, at: datetime) -> str:
    return (
        f"<{30 + number % 4}>{at:%b %d %H:%M:%S} host{number % 7} {('sshd', 'cron', 'kernel')[number % 3]}"
        f"[{number % 9999}]: Accepted publickey for user{number % 100} from 10.0.0.{number % 250} port 22 ssh2"
    )


def api(number: int, at: datetime) -> str:
    return (
        f"time={at:%Y-%m-%dT%H:%M:%S}Z level={('info', 'warn')[number % 2]} service=api "
        f'host=api{number % 5} msg="request done" route=/v1/items/{number % 700} took_ms={number % 500}.5'
    )


TOPICS: dict[str, Callable[[int, datetime], str]] = {"web": access, "app": app, "system": system, "api": api}


def columns_of_spark(lines: Any) -> Any:
    """The lines' columns, as the pipeline's parsers name them, in Spark SQL.  Each line is matched once."""
    from pyspark.sql import functions as f

    topic, text = f.col("topic"), f.col("value").cast("string")

    def groups(pattern: str, count: int) -> Any:
        return f.split(
            f.regexp_replace(text, pattern, "\x01".join(f"${number}" for number in range(1, count + 1))), "\x01"
        )

    web = (
        r'^(\S+) \S+ \S+ \[([^\]]+)\] "((?:[^"\\]|\\.)*)" (\d{3}) (\d+|-) '
        r'"((?:[^"\\]|\\.)*)" "((?:[^"\\]|\\.)*)".*$'
    )
    syslog = r"^<(\d{1,3})>([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) (\S+) ([^\s\[:]+)(?:\[(\d+)\])?: ?(.*)$"
    members = "time timestamp, level string, host string, service string, message string, user string, took_ms double"
    pair = f.lit(r'([\w.]+)=("[^"]*"|\S*)')
    cut = lines.select(
        *("topic", "partition", "offset", f.col("timestamp").alias("received")),
        f.when(topic == "web", groups(web, 7)).alias("w"),
        f.when(topic == "app", f.from_json(text, members)).alias("j"),
        f.when(topic == "system", groups(syslog, 6)).alias("s"),
        f.when(
            topic == "api",
            f.map_from_arrays(f.regexp_extract_all(text, pair, f.lit(1)), f.regexp_extract_all(text, pair, f.lit(2))),
        ).alias("a"),
    )
    w, j, s, a = (f.col(name) for name in "wjsa")
    severities = f.array(*map(f.lit, ("emerg", "alert", "crit", "error", "warning", "notice", "info", "debug")))
    status, priority = w[3].cast("int"), s[0].cast("int")

    def quoted(column: Any) -> Any:
        return f.regexp_replace(column, '^"|"$', "")

    columns = {
        "time": f.coalesce(
            f.to_timestamp(w[1], "dd/MMM/yyyy:HH:mm:ss Z"),
            j["time"],
            f.to_timestamp(f.concat(f.lit("2026 "), s[1]), "yyyy MMM dd HH:mm:ss"),
            a["time"].cast("timestamp"),
        ),
        "host": f.coalesce(j["host"], s[2], a["host"]),
        "service": f.coalesce(j["service"], s[3], a["service"]),
        "level": f.coalesce(
            f.when(status >= 500, "error").when(status >= 400, "warning").when(status >= 0, "info"),
            f.lower(j["level"]),
            f.element_at(severities, priority % 8 + 1),
            f.lower(a["level"]),
        ),
        "message": f.coalesce(w[2], j["message"], s[5], quoted(a["msg"])),
        "client": w[0],
        "method": f.split(w[2], " ")[0],
        "path": f.split(w[2], " ")[1],
        "protocol": f.split(w[2], " ")[2],
        "status": status.cast("bigint"),
        "bytes": w[4].cast("bigint"),
        "referer": w[5],
        "agent": w[6],
        "pid": s[4].cast("bigint"),
        "facility": (priority / 8).cast("int"),
        "user": j["user"],
        "route": a["route"],
        "took_ms": f.coalesce(j["took_ms"], a["took_ms"].cast("double")),
    }
    parsed = cut.select(
        "topic", "partition", "offset", "received", *(column.alias(name) for name, column in columns.items())
    )
    return parsed.withColumn("date", f.date_format("time", "yyyy-MM-dd")).withColumn("hour", f.hour("time"))


def made(base: Path, bootstrap: str, views: Collection[str], trigger: str = "10s") -> Settings:
    """``views``: the names of those that it has."""
    if views and not (base / "views").exists():
        for path in write_examples(base / "views"):
            if path.stem not in views:
                path.unlink()
    return parse(
        {
            "pipeline": {"name": "mixed", "bootstrap": bootstrap},
            "input": {"trigger_ms": trigger},
            "source": [
                {"topics": ["web"], "parsers": ["access"]},
                {"topics": ["app"], "parsers": ["app"]},
                {"topics": ["system"], "parsers": ["syslog"]},
                {"topics": ["api"], "parsers": ["api"]},
            ],
            "parser": {
                "app": {"kind": "json", "columns": {"user": "string", "took_ms": "float"}},
                "api": {"kind": "logfmt", "message": "msg", "columns": {"route": "string", "took_ms": "float"}},
            },
            "output": {"path": "tables"},
            "views": {"path": "views" if views else ""},
            "spark": {"spark.master": "local[2]"},
        },
        base,
    )


class Seconds(NamedTuple):
    all: float
    within_batches: float


class Contest:
    """Runs each side in turn over the same lines."""

    def __init__(self, spark: Any, broker: LocalAppliance, directory: Path, lines: int) -> None:
        self.spark, self.broker, self.directory, self.lines = spark, broker, directory, lines
        self._number = 0

    def fresh(self) -> Path:
        self._number += 1
        path = self.directory / f"out-{self._number}"
        path.mkdir()
        return path

    def ours(self, views: Collection[str]) -> Seconds:
        base = self.fresh()
        batches: list[float] = []
        start = time.perf_counter()
        settings = made(base, self.broker.native, views)
        result = run(
            settings, once=True, session=self.spark, on_progress=lambda progress: batches.append(progress.seconds)
        )
        seconds = time.perf_counter() - start
        assert sum(result.summary.parsed.values()) == self.lines, result.summary
        shutil.rmtree(base)
        return Seconds(seconds, sum(batches))

    def connector(self) -> Seconds:
        base = self.fresh()
        connection_options = {"kafka.bootstrap.servers": self.broker.kafka, "subscribe": ",".join(TOPICS)}
        start = time.perf_counter()
        lines = self.spark.readStream.format("kafka").options(**connection_options, startingOffsets="earliest").load()
        writer = columns_of_spark(lines).writeStream.format("parquet").partitionBy("topic", "date")
        writer = writer.option("path", str(base / "out")).option("checkpointLocation", str(base / "state"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        seconds = time.perf_counter() - start
        assert sum(progress["numInputRows"] for progress in query.recentProgress) == self.lines
        shutil.rmtree(base)
        return Seconds(
            seconds, sum(progress["durationMs"]["triggerExecution"] for progress in query.recentProgress) / 1000
        )

    def compare(self, sides: dict[str, Callable[[], Seconds]], rounds: int) -> None:
        rounds_by_side: dict[str, list[tuple[float, float, float]]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, once in sides.items():
                cpu = cpu_of_all_s()
                took = once()
                used = (cpu_of_all_s() - cpu) / self.lines * 1e6
                rounds_by_side[name].append((self.lines / took.all, self.lines / took.within_batches, used))
        for name, rounds_of_it in rounds_by_side.items():
            rates, within, cpus = zip(*rounds_of_it, strict=True)
            figures = {"lines_per_s": statistics.median(rates), "within_batches": statistics.median(within)}
            row(name, **figures, best=max(rates), cpu=statistics.median(cpus))


def fill(producer: Producer, first: int, count: int, per_s: float = PER_S) -> dict[tuple[str, int], int]:
    """Send lines to all topics in equal parts; returns the last offset of each partition.

    ``first``: the number of the first line of each topic; ``per_s``: how many of a topic have times within a second.
    """
    ends: dict[tuple[str, int], int] = {}
    sent = [
        (topic, producer.send_many(topic, [line(n, time_of(n, per_s)).encode() for n in range(start, at_most)]))
        for topic, line in TOPICS.items()
        for stop in [first + count // len(TOPICS)]
        for start in range(first, stop, 1000)
        for at_most in [min(start + 1000, stop)]
    ]
    producer.flush()
    for topic, deliveries in sent:
        for delivery in deliveries:
            place = delivery.result()
            ends[topic, place.partition] = max(ends.get((topic, place.partition), 0), place.offset)
    return ends


def cpu_of_spark_s(broker: LocalAppliance) -> float:
    """CPU of this process and Spark's; an appliance has work of its own at times of its own, as its scrubber."""
    its_own = tree(broker.process.pid)
    return sum(cpu_s(pid) for pid in tree(os.getpid()) if pid not in its_own)


def refresh(spark: Any, broker: LocalAppliance, base: Path, lines: int, steps: int) -> None:
    """See the module's docstring.  What Spark compiles first, it has compiled before it is measured."""
    cpu_by_side_s = {"ingestion": 0.0} | dict.fromkeys(VIEWS, 0.0)
    late_s = dict(cpu_by_side_s)
    longest_s = 0.0
    per_topic = lines // len(TOPICS)
    with Producer(broker.native, acks=1) as producer:
        for step in range(-1, steps):  # the step before the first one is in an output of its own
            number = max(0, step) * per_topic // steps
            count = (max(0, step) + 1) * per_topic // steps - number
            if step != 0:
                fill(producer, number, count * len(TOPICS), per_topic / DAY_S)
            where = base / ("day" if step >= 0 else "before")
            where.mkdir(exist_ok=True)
            settings = made(where, broker.native, VIEWS)
            used_s, begun_s = {}, cpu_of_spark_s(broker)
            run(msgspec.structs.replace(settings, views=Views()), once=True, session=spark)
            used_s["ingestion"] = cpu_of_spark_s(broker) - begun_s
            started = time.perf_counter()
            with refresher(settings, spark) as refreshing:
                for view in views_of(settings):
                    if 0 <= step < steps - 1 and (step + 1) % (view.cadence_ms // 60_000):
                        continue
                    begun_s = cpu_of_spark_s(broker)
                    refreshing.refresh(view)
                    used_s[view.name] = cpu_of_spark_s(broker) - begun_s
            if step >= 0:
                for sums_s in (cpu_by_side_s, late_s) if step >= steps // 2 else (cpu_by_side_s,):
                    sums_s |= {name: sums_s[name] + used for name, used in used_s.items()}
                longest_s = max(longest_s, time.perf_counter() - started)
    share, late_share = (
        sum(sums_s[name] for name in VIEWS) / sums_s["ingestion"] for sums_s in (cpu_by_side_s, late_s)
    )
    figures = {name: used / lines * 1e6 for name, used in cpu_by_side_s.items()}
    row(
        "refresh of five views",
        share=share,
        late_share=late_share,
        longest_s=longest_s,
        steps=steps,
        **figures,
    )


class Lateness:
    """Notes when what was sent is in events, and in all views.

    Lines are sent as blocks.  A block is its time, and the last offset of each partition.
    """

    def __init__(self, settings: Settings, before: dict[tuple[str, int], int]) -> None:
        """``before``: the last offsets of what was sent before."""
        self._settings = settings
        self._waiting = {name: [(0.0, before)] for name in ("events", *(view.name for view in views_of(settings)))}
        self._ends: dict[int, dict[Any, int]] = {}
        """Of each version of events, up to where it has read."""
        self._versions = dict.fromkeys(self._waiting, 0)
        self.late_s: dict[str, list[float]] = {name: [] for name in self._waiting}

    @property
    def waits(self) -> bool:
        return any(self._waiting.values())

    def sent(self, at_s: float, last: dict[tuple[str, int], int]) -> None:
        for waiting in self._waiting.values():
            waiting.append((at_s, last))

    def forget(self) -> None:
        for late_s in self.late_s.values():
            late_s.clear()

    def look(self) -> None:
        for version, told in self._fresh("events", Path(self._settings.output.path) / "events"):
            if COMMIT_KEY in told:
                self._ends[version] = decode_record(told[COMMIT_KEY], "events").ends
                self._note("events", self._ends[version])
            else:
                self._ends[version] = self._ends.get(version - 1, {})
        for name in self.late_s.keys() - {"events"}:
            for _, told in self._fresh(name, Path(self._settings.output.path) / VIEWS_OF_OUTPUT / name):
                if BASIS_KEY in told:
                    self._note(name, self._ends.get(json.loads(told[BASIS_KEY])["version"], {}))

    def _fresh(self, name: str, table: Path) -> Iterator[tuple[int, dict[str, Any]]]:
        """The versions that have come, with what Delta's log says of their commits."""
        while (path := table / "_delta_log" / f"{self._versions[name]:020d}.json").exists():
            told = next(line for line in path.read_text().splitlines() if '"commitInfo"' in line)
            yield self._versions[name], json.loads(told)["commitInfo"]
            self._versions[name] += 1

    def _note(self, name: str, ends: Mapping[Any, int]) -> None:
        waiting, now_s = self._waiting[name], time.perf_counter()
        while waiting and all(ends.get(place, 0) > last for place, last in waiting[0][1].items()):
            self.late_s[name].append(now_s - waiting.pop(0)[0])


def freshness(
    broker: LocalAppliance, base: Path, last: dict[tuple[str, int], int], lines: int, seconds: int, views: bool
) -> None:
    """Lines arrive every 50 ms, once those of before are in the tables; it is noted when the tables have them."""
    settings = made(base, broker.native, VIEWS_OF_A_MINUTE if views else (), "500ms")
    lateness = Lateness(settings, last)

    def watch() -> None:
        while not over.wait(0.02):
            lateness.look()

    def feed() -> None:
        try:
            while lateness.waits:
                over.wait(0.1)
            lateness.forget()
            number, begun = lines, time.perf_counter()
            with Producer(broker.native, acks=1) as producer:
                while time.perf_counter() - begun < seconds:
                    sent = time.perf_counter()
                    lateness.sent(sent, fill(producer, number, RATE // 20))
                    number += RATE // 20 // len(TOPICS)
                    over.wait(max(0.0, sent + 0.05 - time.perf_counter()))
            while lateness.waits and time.perf_counter() - begun < seconds + SETTLE_S_MAX:
                over.wait(0.1)
        finally:
            over.set()
            os.kill(os.getpid(), signal.SIGTERM)  # as a pipeline that is stopped

    over = threading.Event()
    threads = [threading.Thread(target=target) for target in (watch, feed)]
    for thread in threads:
        thread.start()
    run(settings)
    for thread in threads:
        thread.join()
    assert not lateness.waits, "lines did not arrive in the tables"
    for name, late_s in lateness.late_s.items():
        late_s.sort()
        p50_s, p99_s = statistics.median(late_s), late_s[len(late_s) * 99 // 100]
        beside = ", beside views" if views and name == "events" else ""
        row(f"freshness of {name}{beside}", p50_s=p50_s, p99_s=p99_s, longest_s=late_s[-1], sent=len(late_s))


def alone(question: str, broker: LocalAppliance, base: Path, options: argparse.Namespace) -> None:
    if question == REFRESH:
        session = {"spark.master": "local[2]", "spark.driver.memory": "4g"}
        spark = build_session("perf", session, scratch=base / "spark", jvm=LASTING_JVM)
        try:
            steps = options.steps or max(2, options.lines // (60 * RATE))
            refresh(spark, broker, base, options.lines, steps)
        finally:
            spark.stop()
        return
    with Producer(broker.native, acks=1) as producer:
        last = fill(producer, 0, options.lines)
    freshness(broker, base, last, options.lines, options.seconds, views=question == FRESHNESS_OF_VIEWS)


def contest(broker: LocalAppliance, base: Path, options: argparse.Namespace) -> None:
    jars = connector(Path.home() / ".cache/appliance-perf/spark-kafka", may_fetch=not options.smoke)
    if not jars:
        print("without Spark's Kafka connector: its jars are not here", file=sys.stderr)
    settings = {"spark.master": "local[2]", "spark.driver.memory": "4g"}
    if jars:
        settings["spark.jars"] = ",".join(map(str, jars))
    with Producer(broker.native, acks=1) as producer:
        fill(producer, 0, options.lines)
    light = "" if jars and options.only in "connector" else LIGHT_JVM  # Spark SQL needs a JVM that is fast
    spark = build_session("perf", settings, scratch=base / "spark", jvm=light)
    contest = Contest(spark, broker, base, options.lines)
    sides: dict[str, Callable[[], Seconds]] = {
        "mixed": lambda: contest.ours(ALL_VIEWS),
        "plain": lambda: contest.ours(()),
    }
    if jars:
        sides["connector"] = contest.connector
    sides = {name: once for name, once in sides.items() if options.only in name}
    if options.smoke:
        sides = {"mixed": sides["mixed"]}
    try:
        for once in () if options.smoke else sides.values():
            once()  # warm-up
        contest.compare(sides, options.rounds)
    finally:
        spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lines", type=int, default=2_000_000)
    parser.add_argument("--steps", type=int, default=0, help="in which a day arrives; by default that of a minute each")
    parser.add_argument("--seconds", type=int, default=0, help="of the measurements of freshness")
    parser.add_argument("--only", default="", help=f"mixed, plain, connector, {', '.join(ALONE)}")
    options = parser.parse_args()
    if options.smoke:
        options.rounds, options.lines, options.seconds = 1, 8_000, 2
    options.seconds = options.seconds or (180 if options.only == FRESHNESS_OF_VIEWS else 30)
    headline("the pipeline", lines=options.lines, rounds=options.rounds, only=options.only or "all")
    with tempfile.TemporaryDirectory(prefix="perf-") as base, LocalAppliance(Path(base) / "data") as broker:
        with Admin(broker.native) as admin:
            for topic in TOPICS:
                admin.create_topic(topic, partitions=PARTITIONS)
        if options.only in ALONE:
            alone(options.only, broker, Path(base), options)
        else:
            contest(broker, Path(base), options)
    for question in () if options.only else ALONE:
        again = [sys.executable, __file__, "--only", question, *(["--smoke"] if options.smoke else [])]
        again += [] if question == REFRESH else ["--lines", str(min(options.lines, 100_000))]
        subprocess.run(again, check=True)


if __name__ == "__main__":
    main()
