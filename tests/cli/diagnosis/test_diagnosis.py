"""``appliance doctor``, ``top`` and ``check``: their rules, and the commands against a real appliance that is ill."""

from __future__ import annotations

import json
import re
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from appliance.cli.diagnosis import machine_checks
from appliance.cli.diagnosis.activity import Sample, activity
from appliance.config import load
from appliance.health.findings import Finding, GroupsSeen, judge
from appliance.health.host import DiskRoom, Host, HostProcess
from appliance.metrics.looks import of_other_host, seen
from appliance.status import NOTHING

from ...support.command_line import run, succeeding
from ...support.server import Server, stopped
from ...support.terminal import Terminal

GIB = 1 << 30


def partition(topic: str, end: int = 0, state: str = "online", **more: Any) -> dict[str, Any]:
    sizes = {"start": 0, "end": end, "bytes": end, "messages": end}
    return {"topic": topic, "partition": 0, **sizes, "state": state} | more


PROCESSES = {8: HostProcess("S", 0.0), 10: HostProcess("S", 0.0)}


def sample(at_s: float = 0.0, **changes: Any) -> Sample:
    """A healthy appliance with one worker, except for changes of its status, of its machine, or of the sample."""
    worker = {"role": "network", "pid": 10, "started": 0.0, "restarts": 0, "connections": 3}
    coordinator = {"role": "coordinator", "pid": 8, "started": 0.0, "restarts": 0}
    status: dict[str, Any] = NOTHING | {
        **{"state": "serving", "data": "/data", "pid": 9, "listeners": {}, "processes": [worker, coordinator]},
        **{"zookeeper": {"connect": "a:1", "state": "connected"}, "partitions": [partition("web")]},
    }
    groups, peers, clients = changes.pop("groups", ()), changes.pop("peers", {}), changes.pop("clients", ())
    machine = Host(DiskRoom(100 * GIB, 50 * GIB), DiskRoom(GIB, GIB), PROCESSES)
    names = {
        "room": "disk",
        "host_processes": "processes",
        "shm": "shm",
        "synchronised": "synchronised",
        "logs": "logs",
    }
    own = {field: changes.pop(name) for name, field in names.items() if name in changes}
    host = msgspec.structs.replace(machine, **own)
    look = of_other_host(status | changes | {"host": host.as_json()}, at_s)
    return Sample(look._replace(peers=peers, clients=clients), groups)


def judged(before: Sample, now: Sample) -> list[Finding]:
    groups = GroupsSeen(now.groups, len(now.groups))
    return judge(seen(now.look, ("--data", "/data"), NOW_S, before.look, groups))


def only(before: Sample, now: Sample) -> Finding:
    (found,) = judged(before, now)
    return found


def test_a_healthy_appliance_has_no_findings() -> None:
    assert judged(sample(), sample(1.0)) == []


NOW_S = 1_000_000.0
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
NODE = {"role": "zookeeper", "pid": 11, "started": 0.0, "restarts": 0}
RANGE = {"start": 5, "stop": 9, "file": "0.log", "position": 5, "reason": "CRC32C"}
REFUSED = {"certificate": {"count": 3, "last": NOW_S - 20}}
BUSY = PROCESSES | {10: HostProcess("S", 0.99)}
STARVED = PROCESSES | {10: HostProcess("R", 0.4, delayed_s=0.55)}
STOPPED = PROCESSES | {10: HostProcess("T", 0.0)}


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
        ({"host_processes": STOPPED}, "ProcessHangs", "network hangs", 75),
        ({"host_processes": BUSY}, "ProcessBusy", "network is busy", 0),
        ({"host_processes": STARVED}, "ProcessBusy", "network is busy", 0),
        ({"limits": [LIMIT]}, "LimitReached", "descriptors of network 0", 75),
        ({"refused": [{"action": "start writer", "reason": "no memory", "attempts": 3}]}, "ActionRefused", "start", 75),
        ({"refusals_recent": REFUSED}, "ClientsRefused", "clients are refused: certificate", 0),
        ({"insecure": ["kafka 0.0.0.0:9092"]}, "InsecureListener", "no TLS", 0),
        ({"without_rules": ["kafka SASL_SSL://0.0.0.0:9093"]}, "NoAccessRules", "may do everything", 0),
        ({"groups": [GROUP]}, "GroupLags", "group reports lags by 50,000 messages, 90 s", 0),
        ({"reload": {"error": "line 3"}}, "ReloadFailed", "the last reload has failed", 0),
        ({"room": DiskRoom(100 * GIB, GIB, read_only=True)}, "DiskReadOnly", "nothing can be written to /", 75),
        ({"groups": [LOSER]}, "GroupLost", "2.0 KiB of web were removed before group re ports had read them", 0),
        ({"room": DiskRoom(100 * GIB, GIB)}, "DiskFillsUp", "the disk is full soon", 0),
        ({"room": DiskRoom(100 * GIB, 0)}, "DiskFull", "the disk is full", 75),
        ({"room": DiskRoom(100 * GIB, 9 * GIB), "disk": {"free_bytes_warn": 10 * GIB}}, "DiskLow", "10.0 GiB", 75),
        ({"shm": DiskRoom(GIB, 4096)}, "SharedMemoryFull", "/dev/shm is full", 75),
        ({"synchronised": False}, "ClockNotSynchronised", "not synchronised", 0),
        ({"partitions": [partition("web", end=100 << 20)]}, "DiskFillsUp", "the disk is full in 9 min", 0),
    ],
)
def test_each_rule(changes: dict[str, Any], condition: str, says: str, status: int) -> None:
    found = only(sample(), sample(1.0, **changes))
    assert (found.condition.name, found.exit_status) == (condition, status) and says in found.what, found
    assert found.todo and found.page


def test_deleted_topics_are_room_on_the_disk() -> None:
    """They go before any log, so nobody is told to trim one while they are enough."""
    little: dict[str, Any] = {"room": DiskRoom(100 * GIB, GIB)}
    assert judged(sample(), sample(1.0, **little, trash={"topics": 1, "bytes": 5 * GIB})) == []
    found = only(sample(), sample(1.0, **little, trash={"topics": 1, "bytes": 2 * GIB}))
    assert found.condition.name == "DiskFillsUp"
    assert found.why == "1.0 GiB of 100.0 GiB are free, and 2.0 GiB of deleted topics go first"
    web = [partition("web", end=100 << 20)]
    grows = only(sample(), sample(1.0, partitions=web, trash={"topics": 1, "bytes": 50 * GIB}))
    assert grows.what == "the disk is full in 17 min at this rate"
    assert grows.todo.endswith("shows who sends how much") and "`appliance clients" in grows.todo


def test_a_death_is_a_warning_for_a_while_and_several_are_worse() -> None:
    row = {"role": "writer", "topic": "web", "partition": 0, "status": -9, "times": [NOW_S - 700, NOW_S - 30]}
    found = only(sample(), sample(1.0, deaths=[row]))
    assert found.what == "writer of web-0 was started again" and "once" in found.why and "signal 9" in found.why
    assert "Killed process" in found.todo
    assert judged(sample(), sample(1.0, deaths=[row | {"times": [NOW_S - 700]}])) == []
    worse = only(sample(), sample(1.0, deaths=[row | {"times": [NOW_S - 9, NOW_S - 6, NOW_S - 3]}]))
    assert (worse.condition.name, worse.exit_status) == ("ProcessDies", 75) and "3 times" in worse.why


def test_refusals_are_over_when_none_comes_any_more() -> None:
    over = {"certificate": {"count": 3, "last": NOW_S - 301}}
    assert judged(sample(), sample(1.0, refusals={"certificate": 3}, refusals_recent=over)) == []


def test_nodes_that_stand_still_are_named() -> None:
    rows = sample().look.state["processes"]
    changes = {"zookeeper": {"connect": "a:1", "state": "lost"}, "processes": [*rows, NODE, NODE | {"pid": 12}]}
    nodes = PROCESSES | {11: HostProcess("S", 0.0), 12: HostProcess("T", 0.0)}
    found = only(sample(), sample(1.0, host_processes=nodes, **changes))
    assert "1 of 2 local nodes run, stopped are 12" in found.why and found.todo == "`kill -CONT 12`"


def client(host: str, bytes_in_s: float, user: str = "User:ANONYMOUS", client_id: str = "loader") -> dict[str, Any]:
    return {"host": host, "user": user, "client_id": client_id, "in_s": bytes_in_s, "out_s": 0.0}


def flood_of(clients: list[dict[str, Any]]) -> Finding:
    all_found = judged(sample(), sample(1.0, host_processes=BUSY, clients=clients))
    (found,) = (one for one in all_found if one.condition.name == "Flood")
    return found


PROXY = Counter({"10.0.0.9": 900, "10.0.0.1": 1})


def test_who_floods_harms_others() -> None:
    """Neither many connections nor many bytes are a flood by themselves; nor is who moves little while others do."""
    much = [client("10.0.0.9", 9e6), client("10.0.0.1", 1e3)]
    names = lambda **changes: {one.condition.name for one in judged(sample(), sample(1.0, **changes))}  # noqa: E731
    assert names(peers=PROXY) == names(clients=much) == names(peers=PROXY, clients=much) == set()
    assert names(limits=[LIMIT]) == {"LimitReached"}
    assert names(limits=[LIMIT], peers=Counter({"10.0.0.9": 9, "10.0.0.1": 9})) == {"LimitReached"}
    assert names(limits=[LIMIT], peers=PROXY) == {"LimitReached", "Flood"}
    assert names(host_processes=BUSY) == names(host_processes=BUSY, peers=PROXY) == {"ProcessBusy"}
    assert names(host_processes=BUSY, clients=much[:1]) == {"ProcessBusy"}, "nobody else is there"
    flood = next(
        one for one in judged(sample(), sample(1.0, host_processes=BUSY, clients=much)) if "floods" in one.what
    )
    assert "8.6 MiB of 8.6 MiB per second" in flood.why
    assert "quotas set --client-id loader --in 4500000 --requests 100 --data /data" in flood.todo
    named = [client("10.0.0.9", 9e6, "User:web"), client("10.0.0.1", 1e3)]
    flood = next(
        one for one in judged(sample(), sample(1.0, host_processes=BUSY, clients=named)) if "floods" in one.what
    )
    assert "quotas set --user web" in flood.todo


def test_jobs_may_be_busy_until_they_are_done() -> None:
    """They take what others leave; who serves clients has to have something left."""
    others = [{"role": role, "pid": 1, "started": 0.0, "restarts": 0} for role in ("network", "coordinator")]
    for role, count in (("compactor", 0), ("scrubber", 0), ("writer", 1)):
        row = {"role": role, "pid": 10, "started": 0.0, "restarts": 0, "topic": "web", "partition": 0}
        assert len(judged(sample(), sample(1.0, host_processes=BUSY, processes=[*others, row]))) == count, role


def test_groups_that_lag_are_one_finding() -> None:
    small = GROUP["partitions"][0] | {"lag_messages": 20_000}  # type: ignore[index]
    others = [GROUP | {"group": f"g{number}", "partitions": [small]} for number in range(12)]
    found = only(sample(), sample(1.0, groups=[*others, GROUP]))
    assert found.what == "13 groups lag, reports the most: by 50,000 messages, 90 s"
    assert "then g0 by 20,000 messages, 90 s, g1" in found.why and "and 9 more" in found.why
    assert found.todo.startswith("`appliance groups describe reports --data /data` says why; then ")
    assert found.groups == ("reports", *(f"g{number}" for number in range(12))), "pages show it at each of them"


def test_activity_is_the_difference_of_two_samples() -> None:
    group = GROUP | {"partitions": [GROUP["partitions"][0] | {"lag_messages": 50_200}]}  # type: ignore[index]
    before = sample(groups=[GROUP], partitions=[partition("web", 1_000), partition("app", 0)])
    spent = PROCESSES | {10: HostProcess("S", 0.5)}
    two = [partition("web", 5_000), partition("app", 0)]
    now = sample(2.0, groups=[group], partitions=two, host_processes=spent)
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
