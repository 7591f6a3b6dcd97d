"""``appliance doctor``, ``top`` and ``check``: their rules, and the commands against a real appliance that is ill."""

from __future__ import annotations

import json
import re
import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.diagnosis import machine_checks
from appliance.cli.diagnosis.activity import activity
from appliance.cli.diagnosis.samples import Sample, seen
from appliance.config import load
from appliance.health.findings import Finding, judge
from appliance.metrics.disk_forecast import Room
from appliance.metrics.readings import of_status
from appliance.status import NOTHING

from .command_line import run, succeeding
from .server import Server, stopped
from .terminal import Terminal

GIB = 1 << 30


def partition(topic: str, end: int = 0, state: str = "online", **more: Any) -> dict[str, Any]:
    sizes = {"start": 0, "end": end, "bytes": end, "messages": end}
    return {"topic": topic, "partition": 0, **sizes, "state": state} | more


def sample(at_s: float = 0.0, **changes: Any) -> Sample:
    """A healthy appliance with one worker, except for the changes of its status, or of the sample itself."""
    worker = {"role": "network", "pid": 10, "started": 0.0, "restarts": 0, "connections": 3}
    coordinator = {"role": "coordinator", "pid": 8, "started": 0.0, "restarts": 0}
    status: dict[str, Any] = NOTHING | {
        **{"state": "serving", "data": "/data", "pid": 9, "listeners": {}, "processes": [worker, coordinator]},
        **{"zookeeper": {"connect": "a:1", "state": "connected"}, "partitions": [partition("web")]},
    }
    room = changes.pop("room", Room(100 * GIB, 50 * GIB, 0, 0, 0))
    own = {name: changes.pop(name) for name in Sample._fields if name in changes}
    readings = of_status(status | changes, at_s)._replace(room=room)
    return Sample(readings, [], None, {10: 0.0}, {10: "S"}, Counter())._replace(**own)


def judged(before: Sample, now: Sample) -> list[Finding]:
    return judge(seen(before, now))


def only(before: Sample, now: Sample) -> Finding:
    (found,) = judged(before, now)
    return found


def test_a_healthy_appliance_has_no_findings() -> None:
    assert judged(sample(), sample(1.0)) == []


GROUP = {
    "group": "reports",
    "members": [{"id": "m", "client": "spark", "host": "10.0.0.7"}],
    "partitions": [{"topic": "web", "partition": 0, "lag_messages": 50_000, "lag_seconds": 90.0, "owner": "m"}],
}
LOSER = {
    "group": "re ports",
    "members": [],
    "partitions": [
        {"topic": "web", "partition": number, "lag_messages": 0, "lag_seconds": 0.0, "lost_bytes": 1024, "owner": ""}
        for number in range(2)
    ],
}
LIMIT = {"limit": "descriptors", "process": "network 0", "value": 100, "in_use": 99, "advice": "raise LimitNOFILE="}
LOW = {"limit": "disk.free_bytes_warn", "process": "", "value": 100, "in_use": 99, "advice": "make room"}
NODE = {"role": "zookeeper", "pid": 11, "started": 0.0, "restarts": 0}
RANGE = {"start": 5, "stop": 9, "file": "0.log", "position": 5, "reason": "CRC32C"}


@pytest.mark.parametrize(
    "changes, condition, says, status",
    [
        ({"state": "stopped", "pid": None}, "Down", "does not run", 75),
        ({"state": "starting"}, "NotServing", "is starting", 75),
        ({"partitions": [partition("web", state="offline", reason="at 4711")]}, "PartitionOffline", "web-0", 74),
        ({"partitions": [partition("web", state="damaged", damaged=[RANGE])]}, "PartitionDamaged", "web-0", 74),
        ({"partitions": [partition("web", state="opening")]}, "PartitionOpening", "web-0: being opened", 75),
        ({"partitions": [partition("web", state="disk full", reason="/d/web-0: full")]}, "DiskFull", "web-0", 75),
        ({"zookeeper": {"connect": "a:1", "state": "suspended"}}, "ZooKeeperAway", "no quorum", 75),
        ({"states": {10: "T"}}, "ProcessHangs", "network hangs", 75),
        ({"cpu_s": {10: 0.99}}, "ProcessBusy", "network is busy", 0),
        ({"limits": [LIMIT]}, "LimitReached", "descriptors of network 0", 75),
        ({"limits": [LOW]}, "DiskLow", "less than disk.free_bytes_warn", 75),
        ({"refused": [{"action": "start writer", "reason": "no memory", "attempts": 3}]}, "ActionRefused", "start", 75),
        ({"refusals": {"certificate": 3}}, "ClientsRefused", "clients are refused: certificate", 0),
        ({"insecure": ["kafka 0.0.0.0:9092"]}, "InsecureListener", "no TLS", 0),
        ({"groups": [GROUP]}, "GroupLags", "group reports lags by 50,000 messages, 90 s", 0),
        ({"groups": [LOSER]}, "GroupLost", "2.0 KiB of web were removed before group re ports had read them", 0),
        ({"peers": Counter({"10.0.0.9": 900, "10.0.0.1": 1})}, "Flood", "10.0.0.9 floods", 0),
        ({"room": Room(100 * GIB, GIB, 0, 0, 0)}, "DiskFillsUp", "the disk is full soon", 0),
        ({"partitions": [partition("web", end=100 << 20)]}, "DiskFillsUp", "the disk is full in 9 min", 0),
    ],
)
def test_each_rule(changes: dict[str, Any], condition: str, says: str, status: int) -> None:
    found = only(sample(), sample(1.0, **changes))
    assert (found.condition.name, found.exit_status) == (condition, status) and says in found.what, found
    assert found.todo and found.page


def test_a_restart_is_a_warning_for_a_while() -> None:
    rows = sample().state["processes"]
    before = [rows[0], rows[1] | {"started": time.time() - 30, "restarts": 2}]
    found = only(sample(), sample(1.0, processes=before))
    assert found.what == "coordinator was started again" and "2 times" in found.why
    assert judged(sample(), sample(1.0, processes=[rows[0], before[1] | {"started": time.time() - 3600}])) == []


def test_nodes_that_stand_still_are_named() -> None:
    rows = sample().state["processes"]
    changes = {"zookeeper": {"connect": "a:1", "state": "lost"}, "processes": [*rows, NODE, NODE | {"pid": 12}]}
    found = only(sample(), sample(1.0, states={11: "S", 12: "T"}, **changes))
    assert "1 of 2 local nodes run, stopped are 12" in found.why


def test_activity_is_the_difference_of_two_samples() -> None:
    group = GROUP | {"partitions": [GROUP["partitions"][0] | {"lag_messages": 50_200}]}  # type: ignore[index]
    before = sample(groups=[GROUP], partitions=[partition("web", 1_000), partition("app", 0)])
    now = sample(2.0, groups=[group], partitions=[partition("web", 5_000), partition("app", 0)], cpu_s={10: 0.5})
    found = activity(before, now)
    assert (found["bytes_per_s"], found["messages_per_s"], found["connections"]) == (2_000, 2_000, 3)
    assert [row["topic"] for row in found["topics"]] == ["web", "app"]
    assert found["groups"][0]["change_per_s"] == 100 and found["processes"][0]["cpu"] == 0.25
    assert found["disk_full_s"] == round(50 * GIB / 2_000)


# ---- the commands


def doctor(server: Server, status: int) -> list[dict[str, Any]]:
    said = run("doctor", "--data", str(server.data_dir), "--json")
    assert said.status == status, said
    found: list[dict[str, Any]] = said.json
    return found


def test_doctor_finds_what_is_broken(make_appliance: Callable[..., Server]) -> None:
    """A worker that stands still; an appliance that does not run."""
    server = make_appliance()
    at = ("--connect", server.native)
    succeeding("topics", "create", "web", *at)
    succeeding("produce", "web", *at, stdin=b"a\nb\n")
    assert not any(row["level"] == "critical" for row in doctor(server, 0))
    with stopped(server.pid_of("network")):
        found = doctor(server, 75)
        assert "network hangs" in {row["what"] for row in found}
    server.stop()
    found = doctor(server, 75)
    assert "the appliance does not run" in {row["what"] for row in found}
    for row in found:
        page, _, part = row["page"].partition("#")
        headings = re.findall(r"^#+ (.+)$", Path(page).read_text(), re.MULTILINE)
        assert part in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    server.start()
    assert run("doctor", "--data", "/nowhere").status == 66
    assert run("doctor", "--connect", "127.0.0.1:1").status == 75
    succeeding("doctor", "--connect", server.native)


def test_top_in_a_pipe_and_on_a_terminal(appliance: Server, topic: str) -> None:
    at = ("--data", str(appliance.data_dir))
    succeeding("topics", "create", topic, *at)
    said = succeeding("top", "--interval", "0.1", "--count", "2", "--json", *at)
    first, second = map(json.loads, said.out.splitlines())
    assert first["state"] == second["state"] == "serving" and first["disk_free"] > 0
    assert topic in {row["topic"] for row in second["topics"]}
    assert "messages_per_s" in succeeding("top", "--interval", "0.1", *at).out
    with Terminal("top", "--interval", "0.2", *at) as terminal:
        terminal.until("Processes")
        terminal.type("q")
        assert terminal.wait() == 0
    with Terminal("top", "--interval", "0.2", *at) as terminal:
        terminal.until("Processes")
        terminal.type("\x03")
        assert terminal.wait() == 130


def test_check_says_what_a_start_would_lack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = ("--set", "zookeeper.nodes=0", "--data", str(tmp_path / "not" / "yet"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listen = ("--set", f"kafka.listen=127.0.0.1:{port}", "--set", "native.listen=127.0.0.1:0")
        said = run("check", *alone, *listen, "--json")
        rows = {row["check"]: row for row in said.json}
        assert said.status == 78 and rows["kafka.listen"]["state"] == "wrong"
        assert f"port {port} is taken" in rows["kafka.listen"]["found"]
        assert {"kernel", "/dev/shm", "descriptors", "fdatasync", "java", "clock"} <= rows.keys()
        assert re.match(r"\d+\.\d\d ms for 4 KiB", rows["fdatasync"]["found"])
    free = ("--set", "kafka.listen=127.0.0.1:0", "--set", "native.listen=127.0.0.1:0")
    succeeding("check", *alone, *free)
    lacking = run("check", *free, "--set", "zookeeper.java=/nowhere", "--data", str(tmp_path), "--json")
    assert lacking.status == 78 and not (tmp_path / "not").exists()
    assert run("check", "--set", "network.worker=1").status == 78


@pytest.mark.parametrize("version, state", [("1.8.0_302", "wrong"), ("11.0.2", "ok"), ("21", "ok")])
def test_a_java_that_is_too_old_is_wrong(tmp_path: Path, version: str, state: str) -> None:
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2022-04-19' >&2\n")
    java.chmod(0o755)
    found = {row.check: row for row in machine_checks.run_checks(load(None, [f"zookeeper.java={java}"]), tmp_path)}
    assert found["java"].state == state, found["java"]
    assert state == "ok" or ("Java 8" in found["java"].found and "Java 11 or newer" in found["java"].advice)


def test_a_kernel_that_is_too_old_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("platform.release", lambda: "5.2.0-generic")
    rows = {row.check: row for row in machine_checks.run_checks(load(None, ["zookeeper.nodes=0"]), tmp_path)}
    assert rows["kernel"].state == "wrong" and "5.3" in rows["kernel"].advice
