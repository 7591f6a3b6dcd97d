"""The metrics themselves: complete, bounded, and what rules and dashboard ask for exists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from appliance.health import host
from appliance.health.host import Host, HostProcess
from appliance.metrics.disk_forecast import DiskForecast, Room
from appliance.metrics.exposition import DAMAGED_MAX, OTHERS, TOPICS_MAX, Exposition, ReadingCollector, Watched
from appliance.metrics.lag_watch import Lag, Lags
from appliance.metrics.metrics_server import HeartWatch
from appliance.metrics.readings import NO_REQUESTS, Readings, Totals
from appliance.names import TopicPartition
from appliance.shared.counters import GAUGE_NAMES, LISTENERS, RequestCounts
from appliance.shared.table import PartitionCounters, TableCounts

HERE = Path(__file__).parents[2] / "systemd" / "prometheus"
PROMTOOL = shutil.which("promtool")
STATE: dict[str, Any] = {
    **{
        "state": "serving",
        "version": "1",
        "started": 5.0,
        "insecure": [],
        "without_rules": [],
        "offline": {"t-1": "damaged"},
    },
    "processes": [{"role": "network", "pid": 1}, {"role": "network", "pid": 2}, {"role": "coordinator", "pid": 3}],
    **{"restarts": {"network": 2}, "hangs": {"network": 1}, "zookeeper": {"state": "connected"}},
    "limits": [{"limit": "disk"}],
    "faults": [{"role": "coordinator", "reason": "/a.json: damaged", "todo": "restore it"}],
    "cluster": {"leaderless": [{"broker": 2, "partitions": 7}], "rival": None, "offsets_lost": {"count": 3}},
    "refused": [{"action": "start writers", "waiting": 3}],
    "refusals": {"throttled": 4},
    "retention": {"size": 6},
    "inputs": {
        "disk": {
            "state": "running",
            "trouble": "topic disk: the disk is full",
            "refusing": "",
            "sources": 3,
            "refused_lately": 4,
        }
        | {"lines": 10, "bytes": 900, "messages": 9, "refused": 2, "gaps": 1},
    },
    "clock": {"jump_ms": -5_000, "believed": 9, "kept_bytes": 0},
    "transactions": {"ids": 9, "open": 2, "late": 1, "hanging": 3, "hanging_in": ["t-1"]}
    | {"oldest": {"id": "x", "state": "Ongoing", "since": 5}},
    "tls": {"error": "bad mode", "files": [{"key": "tls.certificate", "file": "/a.pem", "expires": 7.0}]},
    "damaged": {"web-1-0": [[100, 150, "0.log", 100, "CRC32C"], [200, 210, "0.log", 200, "CRC32C"]]},
}
MACHINE = Host(
    shm=host.DiskRoom(1000, 400),
    processes={1: HostProcess("S", 1.5), 2: HostProcess("R", 2.0), 3: HostProcess("S", 0.5)},
)
ROOM = Room(size=1000, free=600, logs=300, cap=500, reserve=100)


def partition(**changes: Any) -> TableCounts:
    counters = PartitionCounters(*(2,) * 7)
    base = TableCounts(0, 0, 80, 100, 1, 7, counters, 3, (1,) * 19, 5, {}, 40, 4)
    return base._replace(**changes)


def readings(topics: int = 1) -> Readings:
    requests = {("kafka", "Produce"): RequestCounts((1,) * 19, 19_000_000_000, 2, 5)}
    return Readings(
        100.0,
        STATE,
        {TopicPartition(f"topic-{index:04}", 0): partition() for index in range(topics)},
        requests,
        dict.fromkeys(LISTENERS, (10, 20)),
        {"0": dict.fromkeys(GAUGE_NAMES, 3)},
        NO_REQUESTS._replace(buckets=(2,) * 19),
        ROOM,
    )


def exposed(taken: Readings) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    lags = Lags({("readers", "topic-0000"): Lag(5, 50, 1.5, 7)}, 0, 0)
    text = Exposition().write(ReadingCollector(taken, Watched(lags, 2.0, 3_600.0, {"network": 0.5}, MACHINE))).decode()
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_numbers_arrive_under_their_names() -> None:
    found = exposed(readings())
    kafka = (("api", "Produce"), ("listener", "kafka"))
    disk = (("input", "disk"),)
    assert [found[f"appliance_input_{name}"][disk] for name in ("up", "waits", "sources")] == [1, 1, 3]
    assert [found[f"appliance_input_{name}_total"][disk] for name in ("lines", "refused", "gaps")] == [10, 2, 1]
    assert found["appliance_requests_total"][kafka] == 24
    assert found["appliance_request_errors_total"][kafka] == 2
    assert found["appliance_request_seconds_count"][kafka] == 19
    assert found["appliance_request_seconds_sum"][kafka] == 19
    buckets = found["appliance_request_seconds_bucket"]
    assert sorted(buckets.values()) == list(range(1, 20)), "each bucket has those below it, too"
    assert buckets[(("api", "Produce"), ("le", "+Inf"), ("listener", "kafka"))] == 19
    topic = (("topic", "topic-0000"),)
    assert found["appliance_topic_messages_total"][topic] == 7
    assert found["appliance_topic_unflushed_bytes"][topic] == 20
    assert found["appliance_group_lag_seconds"][(("group", "readers"), *topic)] == 1.5
    assert found["appliance_group_lost_bytes"][(("group", "readers"), *topic)] == 7
    removed = found["appliance_retention_removed_bytes_total"]
    assert removed == {(("reason", reason),): count for reason, count in (("age", 0), ("size", 6), ("room", 0))}
    assert found["appliance_clock_jump_seconds"] == {(): -5.0}
    assert [found[f"appliance_transactions_{key}"][()] for key in ("ids", "open", "late", "hanging")] == [9, 2, 1, 3]
    assert found["appliance_process_restarts_total"][(("role", "network"),)] == 2
    assert found["appliance_process_restarts_total"][(("role", "coordinator"),)] == 0
    assert found["appliance_partitions"][(("state", "offline"),)] == 1
    assert found["appliance_zookeeper_state"][(("state", "connected"),)] == 1
    assert found["appliance_disk_seconds_until_full"][()] == 3_600
    assert found["appliance_certificate_expiry_timestamp_seconds"] == {(("file", "/a.pem"),): 7.0}
    assert found["appliance_certificates_unusable"] == {(): 1}
    assert found["appliance_process_cpu_seconds_total"][(("role", "network"),)] == 3.5
    assert found["appliance_shared_memory_free_bytes"] == {(): 400}
    assert found["appliance_partitions_without_leader"] == {(("broker", "2"),): 7}
    assert (found["appliance_groups_without_offsets"], found["appliance_broker_id_taken"]) == ({(): 3}, {(): 0})
    assert found["appliance_process_faults"] == {(("role", "coordinator"),): 1}


def test_topics_are_bounded_and_nothing_is_lost() -> None:
    found = exposed(readings(TOPICS_MAX + 5))
    messages = found["appliance_topic_messages_total"]
    assert len(messages) == TOPICS_MAX + 1
    assert messages[(("topic", OTHERS),)] == 5 * 7
    assert sum(messages.values()) == (TOPICS_MAX + 5) * 7


def test_damage_is_shown_by_partition_and_bounded() -> None:
    found = exposed(readings())
    place = (("partition", "0"), ("topic", "web-1"))
    assert found["appliance_partition_damaged_ranges"] == {place: 2}
    assert found["appliance_partition_damaged_bytes"] == {place: 60}
    assert found["appliance_partitions"][(("state", "damaged"),)] == 1
    many = {f"web-{number}": [[0, 7, "0.log", 0, "CRC32C"]] for number in range(DAMAGED_MAX + 5)}
    found = exposed(readings()._replace(state=STATE | {"damaged": many}))
    assert len(found["appliance_partition_damaged_bytes"]) == DAMAGED_MAX + 1
    assert found["appliance_partition_damaged_bytes"][(("partition", ""), ("topic", OTHERS))] == 5 * 7
    assert found["appliance_partitions"][(("state", "damaged"),)] == DAMAGED_MAX + 5


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.booleans()), min_size=1, max_size=6))
def test_what_stands_still_is_not_written_again_and_nothing_is_stale(steps: list[tuple[int, int, bool]]) -> None:
    """A snapshot has the same text, whatever was written before it."""
    exposition = Exposition()
    for topics, messages, stopped in steps:
        taken = readings(topics)
        changed = {key: partition(records=messages) for key in list(taken.partitions)[:1]}
        taken = taken._replace(partitions={**taken.partitions, **changed}, state=None if stopped else STATE)
        snapshot = ReadingCollector(taken, Watched())
        assert exposition.write(snapshot) == Exposition().write(snapshot)


def test_nothing_runs() -> None:
    empty = Readings(1.0, None, {}, {}, {}, {}, NO_REQUESTS, ROOM)
    text = Exposition().write(ReadingCollector(empty, Watched())).decode()
    assert not re.search("^appliance_disk_seconds_until_full ", text, re.MULTILINE)
    assert list(text_string_to_metric_families(text))


def test_rates_are_never_negative() -> None:
    assert Totals(5, 5, 5, 5, 5).since(Totals(7, 1, 5, 0, 0)) == Totals(0, 4, 0, 5, 5)


def test_how_long_ago_a_process_has_beaten() -> None:
    cells = [5, 5, 5]
    rows = [{"pid": pid, "role": "network" if pid < 3 else "writer", "heart": pid - 1} for pid in (1, 2, 3)]
    watch = HeartWatch(cells.__getitem__)
    watch.note_beats([*rows, {"pid": 9, "role": "zookeeper"}], 0)
    cells[0] += 1
    watch.note_beats(rows, 2_000)
    assert watch.ages_s(rows, 3_000) == {"network": 3.0, "writer": 3.0}
    cells[1] += 1
    watch.note_beats(rows[:2], 4_000)
    assert watch.ages_s(rows, 4_000) == {"network": 2.0}, "what is gone has no age"
    watch.note_beats([{**rows[0], "pid": 7}], 9_000)
    assert watch.ages_s([{**rows[0], "pid": 7}], 9_000) == {"network": 0.0}, "another process in the same cell"


# ---- the disk


def test_how_long_the_room_lasts() -> None:
    assert Room(100, 40, 0, 0, 20, trash=30).left == 50, "deleted topics make room"
    forecast = DiskForecast()
    assert forecast.seconds_until_full(0, ROOM) is None
    forecast.note(0, ROOM)
    assert forecast.seconds_until_full(59, ROOM) is None
    assert forecast.seconds_until_full(100, ROOM) == float("inf")
    fuller = ROOM._replace(free=500, logs=400)  # 100 in 100 s; 400 are left on the disk, 100 below the cap
    assert forecast.seconds_until_full(100, fuller) == 100
    assert forecast.seconds_until_full(100, fuller._replace(cap=0)) == 400
    assert forecast.seconds_until_full(100, fuller._replace(free=100)) == 0
    moved = fuller._replace(cap=0, free=400, trash=100)  # a topic was deleted meanwhile: nothing is lost by it
    assert forecast.seconds_until_full(100, moved) == 400
    for minute in range(1, 3000):
        forecast.note(60.0 * minute, ROOM)
    assert forecast.seconds_until_full(60.0 * 2999, fuller) == pytest.approx(86_400, rel=0.01)


# ---- rules and dashboard


def selectors(expression: str) -> list[tuple[str, set[str]]]:
    """The metrics of an expression, each with the labels that it selects by."""
    found = re.findall(r"\b(appliance_\w+)(?:\{([^}]*)\})?", expression)
    return [(name, set(re.findall(r"(\w+)\s*[=!]~?", labels))) for name, labels in found]


def rules() -> list[str]:
    return re.findall(r"^ +expr: (.+)$", (HERE / "alerts.yml").read_text(), re.MULTILINE)


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads((HERE / "dashboard.json").read_text())["panels"] if panel["type"] != "row"]


def test_rules_and_dashboard_ask_for_what_there_is() -> None:
    found = exposed(readings())
    asked = [target["expr"] for panel in panels() for target in panel["targets"]]
    variables = json.loads((HERE / "dashboard.json").read_text())["templating"]["list"]
    asked += [one["query"]["query"] for one in variables if one["type"] == "query"]
    names = set()
    for expression in [*rules(), *asked]:
        for name, labels in selectors(expression):
            assert name in found, f"{expression}: no metric {name}"
            known = {label for key in found[name] for label, _ in key}
            assert labels <= known | {"instance", "job"}, f"{expression}: {name} has the labels {known}"
            names.add(name)
        for braces in re.findall(r"\bby \(([^)]*)\)", expression):
            assert {word.strip() for word in braces.split(",")} <= {
                "instance",
                "le",
                "api",
                "listener",
                "reason",
                "state",
            }
    assert len(names) >= 30, "they use most of them"


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    """Ids are unique, panels lie beside each other and have data, every variable that is used exists."""
    model = json.loads((HERE / "dashboard.json").read_text())
    assert model["schemaVersion"] >= 36 and model["uid"] and model["title"]
    ids = [panel["id"] for panel in model["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in model["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
    variables = {one["name"] for one in model["templating"]["list"]} | {"__rate_interval"}
    for panel in panels():
        assert panel["targets"] and len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        assert set(re.findall(r"\$\{?(\w+)", json.dumps(panel))) <= variables, panel["title"]


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool: apt-get install prometheus")
def test_prometheus_takes_rules_configuration_and_metrics(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    for kind, name in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
        done = subprocess.run([PROMTOOL, "check", kind, HERE / name], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
    watched = Watched(Lags({("g", "t"): Lag(1, 1, 1.0)}, 0, 0), 1.0, 1.0, {"network": 1.0})
    text = Exposition().write(ReadingCollector(readings(), watched))
    done = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
