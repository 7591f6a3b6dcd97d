"""A real appliance whose wall clock jumps by ten days, both ways: nothing is deleted, and everybody is told.

The clock of its Python processes is moved by ``crash/skewed``; files keep the time of the machine.
"""

from __future__ import annotations

import re
import struct
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.client import Admin, Producer

from ..support.command_line import run, succeeding
from ..support.remedies import Remedy
from ..support.server import Server, wait_for

DAY_S = 86_400
COUNT = 200


class Skewed:
    """An appliance and its clock."""

    def __init__(self, directory: Path) -> None:
        self._clock = directory / "clock"
        self._clock.write_bytes(bytes(8))
        skewed = Path(__file__).parents[1] / "crash" / "skewed"
        environment = {"PYTHONPATH": str(skewed), "SKEW_FILE": str(self._clock)}
        settings = {"disk.check_ms": 100, "disk.free_bytes_min": 0, "metrics.listen": "127.0.0.1:0"}
        self.server = Server(directory / "data", environment=environment, **settings)
        self.at = ("--data", str(self.server.data_dir))

    def jump(self, days: int) -> None:
        with self._clock.open("r+b") as file:
            file.write(struct.pack("<q", days * DAY_S * 10**9))

    def fill(self) -> None:
        with Admin(self.server.native) as admin:
            admin.create_topic("logs", settings={"retention.ms": "7d", "segment.bytes": "1KiB"})
            admin.create_topic("deleted")
            admin.delete_topic("deleted")  # it can be brought back for a day
        with Producer(self.server.native) as producer:
            for number in range(COUNT):
                producer.send("logs", b"%d" % number)
                producer.flush()

    @property
    def messages(self) -> int:
        with Admin(self.server.native) as admin:
            return sum(row["messages"] for topic in admin.topics(["logs"]) for row in topic["partitions"])

    def wait_for_jump(self, days: int) -> None:
        def shown() -> bool:
            clock = self.server.state.get("clock")
            return clock is not None and round(clock["jump_ms"] / 1000 / DAY_S) == days

        wait_for(shown, f"a jump by {days} days to be shown")

    def checks(self, count: int) -> None:
        """Wait until retention has run at least so often: a topic that is too large is cut each time."""
        with Admin(self.server.native) as admin:
            for _ in range(count):
                admin.create_topic("probe", settings={"retention.bytes": "1KiB", "segment.bytes": "1KiB"})
                with Producer(self.server.native) as producer:
                    for number in range(40):
                        producer.send("probe", b"%d" % number * 60)
                        producer.flush()
                wait_for(lambda: admin.topics(["probe"])[0]["partitions"][0]["start"], "retention by size")
                admin.delete_topic("probe")
            assert "deleted" in {row["name"] for row in admin.trash()}


@pytest.fixture
def skewed(tmp_path: Path) -> Iterator[Skewed]:
    made = Skewed(tmp_path)
    with made.server:
        made.fill()
        yield made


@pytest.mark.parametrize("days", [10, -10])
def test_a_jump_at_run_time_deletes_nothing_and_is_told_until_it_is_over(skewed: Skewed, days: int) -> None:
    skewed.jump(days)
    skewed.wait_for_jump(days)
    skewed.checks(2)
    assert skewed.messages == COUNT
    way = "ahead" if days > 0 else "back"
    health = run("health", *skewed.at)
    assert health.status == 75 and f"the clock has jumped {way} by 10 d" in health.out
    assert f"the clock has jumped {way} by 10 d" in run("doctor", *skewed.at).out
    assert f"the clock has jumped {way} by 10 d" in run("status", *skewed.at).out
    assert f"jumped {way} by 10 d: nothing is deleted by it for 24 h" in skewed.server.log()
    with urllib.request.urlopen(f"http://{skewed.server.state['listeners']['metrics']}/metrics", timeout=30) as reply:
        (shown,) = re.findall(r"^appliance_clock_jump_seconds (\S+)$", reply.read().decode(), re.MULTILINE)
    assert float(shown) == pytest.approx(days * DAY_S, abs=60)
    skewed.jump(0)
    wait_for(lambda: run("health", *skewed.at).status == 0, "the jump to be over")
    assert skewed.messages == COUNT


@pytest.mark.parametrize("end", [Server.stop, Server.kill_supervisor])
@pytest.mark.parametrize("days", [10, -10])
def test_a_jump_across_a_restart(skewed: Skewed, days: int, end: Callable[[Server], object]) -> None:
    end(skewed.server)
    skewed.jump(days)
    skewed.server.start()
    skewed.wait_for_jump(days)
    skewed.checks(1)
    assert skewed.messages == COUNT


def test_an_operator_says_that_the_clock_is_right(skewed: Skewed) -> None:
    assert succeeding("accept-clock", *skewed.at).out == "the clock has not jumped\n"
    skewed.jump(10)
    skewed.wait_for_jump(10)
    wait_for(lambda: skewed.server.state["clock"]["kept_bytes"], "what is kept to be counted")
    shown = succeeding("accept-clock", "--dry-run", "--json", *skewed.at).json
    assert shown["kept_bytes"] > 0 and skewed.messages == COUNT
    (row,) = (row for row in run("doctor", "--json", *skewed.at).json if row["condition"] == "ClockJumped")
    with Remedy(row) as remedy:
        remedy.run("appliance accept-clock", "--yes")
    wait_for(lambda: skewed.messages == 0, "retention by age")
    skewed.checks(1)
    wait_for(lambda: run("health", *skewed.at).status == 0, "the jump to be over")
