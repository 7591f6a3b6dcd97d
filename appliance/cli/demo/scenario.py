"""Runs the demo: an appliance, a producer, a group of consumers of which one is killed, and a pipeline.

The order of the steps is fixed, so that the consumer always dies in the middle of the work:

1. Two consumers join the group.  Half of the lines are shipped.
2. When both have read some, the first is killed (SIGKILL) and a successor started.
3. Most of the rest is shipped.  The last tenth follows when the successor owns partitions.
4. :mod:`.ledger` compares the consumed lines with the shipped ones.
5. :mod:`.pipeline_step` writes the same lines to tables and audits them.
6. :mod:`.sandbox` stops every process and removes every file.

Every wait has a limit, which restarts with each progress.  A demo that hangs therefore fails, and its error says what
it waited for.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from ...client import Audit, Producer
from ...client.cluster_client import Cluster
from ...errors import RequestTimedOut, Unavailable, UnknownGroup
from ...status import collect
from .. import output
from . import pipeline_step
from .display import Display
from .ledger import DemoLedger, Spool, line_bytes
from .log_sources import LogSource, ShippingPlan, plan, shipped
from .results import Move, Results, show
from .sandbox import Sandbox, clear_abandoned

GROUP = "demo"
PARTITIONS = 4
STALL_S = 40.0
SESSION_MS = 4000
PIECE_LINES = 1000
BLOCK_LINES_MAX = 1000
BLOCKS_MIN = 1000
POLL_S = 0.05
AGAIN_S = 0.2
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


def run(files: list[Path], lines_min: int, pipeline: bool, as_json: bool) -> int:
    """Runs the whole demo and prints its results.  Returns the exit status."""
    for leftover in clear_abandoned():
        output.remark(f"removed what a killed demo left behind: {leftover}")
    work = plan(files, lines_min)
    handlers = {number: signal.signal(number, _interrupt) for number in INTERRUPTS}
    sandbox = Sandbox()
    try:
        results = Demo(sandbox, work, pipeline).run()
    finally:
        for number in INTERRUPTS:  # a second Ctrl-C must not interrupt the removal
            signal.signal(number, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)
        left_behind = sandbox.close()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    results.leftovers = left_behind
    show(results, as_json)
    return 0 if results.good else 1


def _interrupt(*_: object) -> NoReturn:
    """Raises KeyboardInterrupt, and again after AGAIN_S: the interpreter drops an exception in a fork's callback."""
    signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
    raise KeyboardInterrupt


class Demo:
    """Runs the demo once in a sandbox, and checks what came out."""

    def __init__(self, sandbox: Sandbox, work: ShippingPlan, pipeline: bool) -> None:
        self._sandbox = sandbox
        self._plan = work
        self._pipeline = pipeline
        self._topics = sorted({source.topic for source in work.sources})
        self._ledger = DemoLedger()
        self._spools: dict[str, Spool] = {}
        self._appliance: subprocess.Popen[bytes] | None = None
        self._consumers: dict[str, subprocess.Popen[bytes]] = {}
        self._first_read_s: dict[str, float] = {}
        self._display = Display(work.lines)
        self._bootstrap = ""
        self._shipping_s = 0.0

    def run(self) -> Results:
        begun = time.monotonic()
        with self._display:
            appliance = self._start_appliance()
            self._display.say(f"appliance serves at {self._bootstrap} after {time.monotonic() - begun:.1f} s")
            names = ", ".join(f"{topic} with {PARTITIONS} partitions" for topic in self._topics)
            self._display.say(f"topics {names}")
            move = self._ship_and_kill()
            groups = self._wait_for_lag()
            for name in self._consumers:
                self._end(name)
            tables = self._tables()
            status = self._sandbox.stop(appliance)
        return Results(
            plan=self._plan,
            topics=self._topics,
            accounts=self._ledger.accounts(),
            shares={name: spool.count for name, spool in self._spools.items()},
            lag=sum(row["lag_messages"] or 0 for row in groups),
            move=move,
            tables=tables,
            exit_status=status,
        )

    # ---- the appliance

    def _start_appliance(self) -> subprocess.Popen[bytes]:
        sandbox = self._sandbox
        settings = ["native.listen=127.0.0.1:0", "kafka.listen=127.0.0.1:0"]
        words = [word for setting in settings for word in ("--set", setting)]
        appliance = sandbox.spawn("appliance", "start", "--data", str(sandbox.data), *words, log="appliance")
        self._appliance = appliance
        self._display.say("starting an appliance with a ZooKeeper node")
        self._wait_until(lambda: "serving" in sandbox.output_of("appliance"), "the appliance to serve")
        listeners = dict(word.split("=", 1) for word in sandbox.output_of("appliance").split() if "=" in word)
        self._bootstrap = listeners["native"]
        self._wait_until(
            lambda: collect(sandbox.data)["zookeeper"]["state"] == "connected", "ZooKeeper to be connected"
        )
        with self._connected() as cluster:
            for topic in self._topics:
                cluster.admin("create_topic", {"name": topic, "partitions": PARTITIONS})
            cluster.admin("create_topic", {"name": pipeline_step.AUDIT, "partitions": 1})
        return appliance

    @contextmanager
    def _connected(self) -> Iterator[Cluster]:
        cluster = Cluster(self._bootstrap, client_name="demo")
        try:
            yield cluster
        finally:
            cluster.close()

    # ---- consumers

    def _start_consumer(self, name: str) -> None:
        spool = self._sandbox.path / f"{name}.spool"
        words = [self._bootstrap, GROUP, str(spool), str(SESSION_MS), *self._topics]
        self._consumers[name] = self._sandbox.spawn("appliance.cli.demo.spooling_consumer", *words, log=name)
        self._spools[name] = Spool(spool)

    def _end(self, name: str) -> None:
        child = self._consumers[name]
        if child.poll() is None and self._sandbox.stop(child):
            raise Unavailable(f"consumer {name} did not stop in order:\n{self._sandbox.log_end_of(name)}")

    # ---- the work

    def _ship_and_kill(self) -> Move:
        """Ship everything, kill a consumer half-way, and wait until all lines are consumed."""
        self._start_consumer("first")
        self._start_consumer("second")
        lines = shipped(self._plan.sources)
        with (
            Producer(self._bootstrap, client_name="demo") as sender,
            Audit(sender, pipeline_step.AUDIT) as producer,
            self._connected() as cluster,
        ):
            self._wait_until(lambda: len(self._owners(cluster)) == len(self._consumers), "both consumers to join")
            begun = time.monotonic()
            self._ship(producer, islice(lines, self._plan.lines // 2))
            self._wait_until(lambda: self._has_read("first") and self._has_read("second"), "both consumers to read")
            before = self._owners(cluster)
            self._consumers.pop("first").kill()
            killed = time.monotonic()
            self._start_consumer("successor")
            self._display.say(
                f"killed the first consumer after {self._spools['first'].count:,} lines (SIGKILL); "
                f"its partitions are free when its ZooKeeper session is over, within {SESSION_MS / 1000:.0f} s"
            )
            self._ship(producer, islice(lines, self._plan.lines * 4 // 10))
            # The last tenth is shipped when the successor owns partitions, so that it certainly has lines to read.
            self._wait_until(lambda: bool(self._owners(cluster) - before), "the successor to get partitions")
            self._ship(producer, lines)
        self._wait_until(lambda: self._has_read("successor"), "the successor to read")
        self._wait_until(lambda: self._ledger.lines_out >= self._ledger.lines_in, "all lines to come back")
        return Move(
            seconds=time.monotonic() - begun,
            shipping_s=self._shipping_s,
            takeover_s=self._first_read_s["successor"] - killed,
        )

    def _has_read(self, name: str) -> bool:
        return self._spools[name].count > 0

    def _owners(self, cluster: Cluster) -> set[str]:
        """The ids of the members that own partitions, from the appliance."""
        try:
            members = cluster.admin("group", {"group": GROUP})["members"]
        except UnknownGroup:  # until the first has joined
            return set()
        return {member["id"] for member in members if member["partitions"]}

    def _ship(self, producer: Audit, lines: Iterable[tuple[LogSource, int, bytes]]) -> None:
        """Sends lines.  The lines of one block of a file have one key, so they stay together and in order."""
        begun = time.monotonic()
        block_lines = max(1, min(BLOCK_LINES_MAX, self._plan.lines // BLOCKS_MIN))
        for count, (source, number, text) in enumerate(lines, 1):
            key = f"{source.name}:{number // block_lines}".encode()
            delivery = producer.send(source.topic, text, key=key, headers=[("line", b"%d" % number)])
            partition = (self._topics.index(source.topic), delivery.partition)
            self._ledger.sent(partition, line_bytes(key, number, text), len(text))
            if count % PIECE_LINES == 0:
                self._read_spools()
        producer.flush()
        self._shipping_s += time.monotonic() - begun

    def _tables(self) -> pipeline_step.DemoTables | None:
        """Runs the pipeline.  Returns None when it is not wanted, or its packages are missing."""
        if not self._pipeline:
            return None
        if without := pipeline_step.missing():
            self._display.say(f"no pipeline: {without}")
            return None
        self._display.say("the pipeline reads the same lines with Spark")
        return pipeline_step.run(self._sandbox, self._bootstrap, self._topics)

    def _read_spools(self) -> None:
        """Reads what the consumers have written to their spools, and shows the progress."""
        for name, spool in self._spools.items():
            for entry in spool.news():
                self._ledger.received(*entry)
            if spool.count:
                self._first_read_s.setdefault(name, time.monotonic())
        self._display.show_counts(self._ledger.lines_in, self._ledger.lines_out)

    def _wait_for_lag(self) -> list[dict[str, Any]]:
        """Waits until the group has committed its last offsets.  Returns the partitions of the group."""
        seen: list[dict[str, Any]] = []

        def caught_up() -> bool:
            seen[:] = cluster.admin("group", {"group": GROUP})["partitions"]
            return bool(seen) and not any(row["lag_messages"] for row in seen)

        with self._connected() as cluster:
            self._wait_until(caught_up, "the group's lag to be 0")
        return seen

    def _wait_until(self, done: Callable[[], bool], what: str) -> None:
        """Waits for ``done`` until no line was consumed for STALL_S.

        Raises:
            RequestTimedOut: no line was consumed for STALL_S.
            Unavailable: a process has ended.
        """
        last, progress = time.monotonic(), -1
        while True:
            self._read_spools()
            if self._is_true(done):
                return
            count = sum(spool.count for spool in self._spools.values())
            if count != progress:
                last, progress = time.monotonic(), count
            for name, child in {"appliance": self._appliance, **self._consumers}.items():
                if child is not None and child.poll() is not None:
                    raise Unavailable(f"{name} ended (status {child.returncode}):\n{self._sandbox.log_end_of(name)}")
            if time.monotonic() - last > STALL_S:
                raise RequestTimedOut(
                    f"waited {STALL_S:.0f} s for {what}; the appliance's log ends with\n"
                    + self._sandbox.log_end_of("appliance")
                )
            time.sleep(POLL_S)

    def _is_true(self, done: Callable[[], bool]) -> bool:
        """Whether ``done`` returns true; false while the appliance is unavailable."""
        try:
            return done()
        except Unavailable:
            return False
