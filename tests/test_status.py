"""appliance.status: the same answer from a running appliance, a stopped one and a killed one."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.catalog import Catalog, Removal, Topic
from appliance.errors import NoDirectory
from appliance.status import collect, holder, read_state, removals

from .support.command_line import run, succeeding
from .support.server import Server, wait_for

ROLES = {"supervisor", "nursery", "network", "coordinator", "inspector", "scrubber", "writer"}
ROW = ("topic", "partition", "start", "end", "bytes", "messages")


def rows(seen: dict[str, Any]) -> list[tuple[object, ...]]:
    return [tuple(row[name] for name in ROW) for row in seen["partitions"]]


def settled(seen: dict[str, Any]) -> dict[str, Any] | None:
    """The status once the state file, which follows within 0.2 s, shows the writer and no opener."""
    roles = {row["role"] for row in seen["processes"]}
    online = {row["state"] for row in seen["partitions"]} == {"online"}
    return seen if online and roles == ROLES else None


def test_running_stopped_killed(make_appliance: Callable[..., Server]) -> None:
    server = make_appliance()
    at = ("--data", str(server.data_dir))
    succeeding("topics", "create", "web", "--partitions", "2", *at)
    succeeding("produce", "web", "--partition", "1", *at, stdin=b"a\nb\nc\n")
    assert collect(server.data_dir)["state"] == "serving"
    seen = wait_for(lambda: settled(collect(server.data_dir)), "the writer to be shown")
    local = f"unix:{server.data_dir}/native.sock"
    assert seen["listeners"] == {"native": server.native, "kafka": server.kafka, "local": local}
    assert (seen["pid"], seen["zookeeper"]["state"]) == (server.pid_of("supervisor"), "off")
    end = seen["partitions"][1]["end"]
    expected = [("web", 0, 0, 0, 0, 0), ("web", 1, 0, end, end, 3)]
    assert rows(seen) == expected
    assert run("status", "--connect", server.native, "--json").json["partitions"] == seen["partitions"]

    server.stop()
    stopped = run("status", "--json", *at)
    seen = stopped.json
    assert stopped.status == run("health", "-q", *at).status == 75
    assert (seen["state"], seen["pid"], seen["listeners"], seen["processes"]) == ("stopped", None, {}, [])
    assert rows(seen) == expected
    assert {row["state"] for row in seen["partitions"]} == {"stopped"}
    assert "stopped" in run("status", *at).out

    server.start()
    succeeding("produce", "web", "--partition", "1", *at, stdin=b"d\n")
    pids = [row["pid"] for row in server.state["processes"]]
    server.kill_supervisor()
    wait_for(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids[1:]), "orphans to end")
    seen = collect(server.data_dir)
    row = seen["partitions"][1]
    assert (seen["state"], seen["pid"]) == ("stopped", None)
    assert row["end"] > end
    # A writer that finds its supervisor gone has usually the time to close its log.
    assert (row["state"], row["messages"]) in (("stopped", 4), ("needs recovery", None))


def test_a_log_that_was_not_closed(tmp_path: Path) -> None:
    """Goal: without reading data, what can be known is shown and what cannot is null."""
    (tmp_path / "web-0").mkdir()
    (tmp_path / "web-0" / f"{100:020d}.log").write_bytes(bytes(50))
    (tmp_path / "web-0" / f"{150:020d}.log").write_bytes(bytes(7))
    catalog = Catalog.load(tmp_path)
    catalog.topics["web"] = Topic("web", {0: [0], 1: [0]}, {}, "a" * 32)
    catalog.store()
    (row,) = collect(tmp_path)["partitions"]
    assert row == {
        **{"topic": "web", "partition": 0, "start": 100, "end": 157, "bytes": 57},
        **{"messages": None, "state": "needs recovery"},
    }


def test_nothing_there() -> None:
    with pytest.raises(NoDirectory, match="would create it"):
        collect(Path("/nonexistent"))


def test_a_directory_that_nothing_has_served(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    assert collect(tmp_path)["partitions"] == []


def test_a_lock_file_of_a_dead_or_unwilling_process_is_no_holder(tmp_path: Path) -> None:
    for content in ("", "nonsense", "999999999", "1"):
        (tmp_path / "lock").write_text(content)
        assert holder(tmp_path) == 0


def test_deletions_that_are_not_complete_are_shown(tmp_path: Path) -> None:
    catalog = Catalog.load(tmp_path)
    catalog.removals = [
        Removal("old", "a" * 32, [1, 0]),
        Removal("new", "b" * 32, [0]),
        Removal("web", "c" * 32, [2], False),
    ]
    catalog.store()
    shown = removals(catalog, {"new-0": "/appliance.x.table.y"})  # this one is being created
    assert shown == [
        {"topic": "old", "partitions": [0, 1], "whole": True},
        {"topic": "web", "partitions": [2], "whole": False},
    ]
    assert [row["topic"] for row in collect(tmp_path)["removals"]] == ["old", "new", "web"]
    assert "Being deleted" not in run("status", "--data", str(tmp_path)).out
    assert "old\t0 1\tTrue" in run("status", "--data", str(tmp_path)).out


def test_it_is_shown_again_and_again_with_rates(appliance: Server) -> None:
    command = [sys.executable, "-m", "appliance", "status", "--data", str(appliance.data_dir), "--watch", "0.2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        lines: list[str] = []
        while sum(line.startswith("state:") for line in lines) < 3:
            lines.append(watching.stdout.readline())
            assert lines[-1], "it has ended"
        watching.send_signal(signal.SIGINT)
        watching.stdout.read()
        assert watching.wait(60) == 130
    assert any(line.startswith("rates:") and "/s in" in line for line in lines)
    assert any(line.startswith("version:") and " up " in line for line in lines)
