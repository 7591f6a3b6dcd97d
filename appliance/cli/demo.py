"""The demo: an appliance, a producer, a group of consumers of which one is killed, and the accounts at the end.

The order of things is fixed, so that the death of a consumer always falls into the middle of the work: half of
the lines are shipped, both consumers have read some of them, one is killed and a successor started, the rest is
shipped.  What comes back is compared with what was sent by :mod:`.demo_ledger`; where all of it lives and how it
is removed is :mod:`.demo_room`'s business.

Every wait has a limit that counts from the last progress, so a demo that hangs fails and says what it waited for.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from ..client import Producer
from ..client.cluster import Cluster
from ..errors import RequestTimedOut, Unavailable
from ..status import collect
from . import output
from .demo_ledger import Ledger, Spool, line_bytes
from .demo_logs import Plan, plan, shipped
from .demo_report import Report, show
from .demo_room import Room, clear_abandoned
from .demo_view import View

GROUP = "demo"
PARTITIONS = 4
STALL_S = 40.0
SESSION_MS = 4000
PIECE_LINES = 1000
POLL_S = 0.05


def run(files: list[Path], as_json: bool) -> int:
    """The whole demo; the exit status."""
    for left in clear_abandoned():
        output.remark(f"removed what a killed demo left behind: {left}")
    work = plan(files)
    previous = signal.signal(signal.SIGTERM, _interrupt)
    room = Room()
    try:
        report = Demo(room, work).run()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):  # a second Ctrl-C must not leave things half removed
            signal.signal(number, signal.SIG_IGN)
        left_behind = room.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, previous)
    report.leftovers = left_behind
    show(report, as_json)
    return 0 if report.good else 1


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


class Demo:
    def __init__(self, room: Room, work: Plan) -> None:
        self._room = room
        self._plan = work
        self._topics = sorted({source.topic for source in work.sources})
        self._ledger = Ledger()
        self._spools: dict[str, Spool] = {}
        self._consumers: dict[str, subprocess.Popen[bytes]] = {}
        self._first_read_s: dict[str, float] = {}
        self._view = View(work.lines)
        self._bootstrap = ""

    def run(self) -> Report:
        begun = time.monotonic()
        with self._view:
            state = self._start_appliance()
            self._view.say(f"appliance serves at {self._bootstrap} after {time.monotonic() - begun:.1f} s")
            names = ", ".join(f"{topic} with {PARTITIONS} partitions" for topic in self._topics)
            self._view.say(f"topics {names}")
            moved, killed_after = self._move()
            groups = self._wait_for_lag()
            for name in self._consumers:
                self._end(name)
            status = self._room.stop(self._appliance)
        return Report(
            plan=self._plan,
            topics=self._topics,
            accounts=self._ledger.accounts(),
            shares={name: spool.count for name, spool in self._spools.items()},
            lag=sum(row["lag_messages"] or 0 for row in groups),
            seconds=moved,
            kill=killed_after,
            doors=state,
            exit_status=status,
        )

    # ---- the appliance

    def _start_appliance(self) -> dict[str, str]:
        room = self._room
        settings = ["native.listen=127.0.0.1:0", "kafka.listen=127.0.0.1:0"]
        words = [word for setting in settings for word in ("--set", setting)]
        self._appliance = room.spawn("appliance", "start", "--data", str(room.data), *words, log="appliance")
        self._view.say("starting an appliance with three ZooKeeper nodes")
        self._until(lambda: "serving" in room.said("appliance"), "the appliance to serve")
        doors = dict(word.split("=", 1) for word in room.said("appliance").split() if "=" in word)
        self._bootstrap = doors["native"]
        self._until(lambda: collect(room.data)["zookeeper"]["state"] == "connected", "ZooKeeper to be connected")
        with self._asking() as cluster:
            for topic in self._topics:
                cluster.admin("create_topic", {"name": topic, "partitions": PARTITIONS})
        return doors

    @contextmanager
    def _asking(self) -> Iterator[Cluster]:
        cluster = Cluster(self._bootstrap, client_name="demo")
        try:
            yield cluster
        finally:
            cluster.close()

    # ---- consumers

    def _start_consumer(self, name: str) -> None:
        spool = self._room.path / f"{name}.spool"
        words = [self._bootstrap, GROUP, str(spool), str(SESSION_MS), *self._topics]
        self._consumers[name] = self._room.spawn("appliance.cli.demo_consumer", *words, log=name)
        self._spools[name] = Spool(spool)

    def _end(self, name: str) -> None:
        child = self._consumers[name]
        if child.poll() is None and self._room.stop(child):
            raise Unavailable(f"consumer {name} did not stop in order:\n{self._room.complaint(name)}")

    # ---- the work

    def _move(self) -> tuple[float, str]:
        """Ship everything, kill and replace a consumer half-way; seconds, and what is to be said of the kill."""
        self._start_consumer("first")
        self._start_consumer("second")
        lines = shipped(self._plan.sources)
        begun = time.monotonic()
        with Producer(self._bootstrap, client_name="demo") as producer:
            self._ship(producer, islice(lines, self._plan.lines // 2))
            producer.flush()
            both = lambda: all(self._spools[name].count for name in ("first", "second"))  # noqa: E731
            self._until(both, "both consumers to read")
            self._consumers.pop("first").kill()
            self._start_consumer("successor")
            killed = time.monotonic()
            self._view.say(f"killed the first consumer after {self._spools['first'].count:,} lines: SIGKILL")
            self._ship(producer, lines)
            producer.flush()
        self._until(lambda: self._spools["successor"].count > 0, "the successor to take over")
        took_over = f"its successor read its first line {self._first_read_s['successor'] - killed:.1f} s later"
        self._until(lambda: self._ledger.lines_out >= self._ledger.lines_in, "all lines to come back")
        return time.monotonic() - begun, took_over

    def _ship(self, producer: Producer, lines: Any) -> None:
        keys: dict[str, bytes] = {}
        for count, (source, number, text) in enumerate(lines, 1):
            key = keys.setdefault(source.name, source.name.encode())
            delivery = producer.send(source.topic, text, key=key, headers=[("line", b"%d" % number)])
            place = (self._topics.index(source.topic), delivery.partition)
            self._ledger.sent(place, line_bytes(key, number, text), len(text))
            if count % PIECE_LINES == 0:
                self._look()

    def _look(self) -> None:
        """Take in what the consumers have written down, and show how far things are."""
        for name, spool in self._spools.items():
            for entry in spool.news():
                self._ledger.received(*entry)
            if spool.count:
                self._first_read_s.setdefault(name, time.monotonic())
        self._view.at(self._ledger.lines_in, self._ledger.lines_out)

    def _wait_for_lag(self) -> list[dict[str, Any]]:
        """The group as the appliance sees it, once its last offsets are committed."""
        seen: list[dict[str, Any]] = []

        def caught_up() -> bool:
            seen[:] = cluster.admin("group", {"group": GROUP})["partitions"]
            return bool(seen) and not any(row["lag_messages"] for row in seen)

        with self._asking() as cluster:
            self._until(caught_up, "the group's lag to be 0")
        return seen

    def _until(self, done: Callable[[], bool], what: str) -> None:
        """Wait for ``done``, as long as lines keep coming or for STALL_S.

        Raises:
            RequestTimedOut: nothing happened for too long, or a process ended that should not have.
        """
        last, progress = time.monotonic(), -1
        while True:
            self._look()
            if self._tolerant(done):
                return
            count = sum(spool.count for spool in self._spools.values())
            if count != progress:
                last, progress = time.monotonic(), count
            for name, child in {"appliance": self._appliance, **self._consumers}.items():
                if child.poll() is not None:
                    raise Unavailable(f"{name} ended (status {child.returncode}):\n{self._room.complaint(name)}")
            if time.monotonic() - last > STALL_S:
                raise RequestTimedOut(
                    f"waited {STALL_S:.0f} s for {what}; the appliance's log ends with\n"
                    + self._room.complaint("appliance")
                )
            time.sleep(POLL_S)

    def _tolerant(self, done: Callable[[], bool]) -> bool:
        """A condition that cannot be asked for yet is not fulfilled yet."""
        try:
            return done()
        except Unavailable:
            return False
