"""appliance.cli.log_commands: look, verify, repair, as an operator would after a bad night."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.client import Producer

from ..support.command_line import run, succeeding
from ..support.log_batches import batch, filled
from ..support.server import Server, wait_for


@pytest.fixture
def stopped(make_appliance: Callable[..., Server]) -> Iterator[Server]:
    """A stopped appliance with one topic of two partitions, five batches of lines in the first."""
    server = make_appliance()
    at = ("--data", str(server.data_dir))
    succeeding("topics", "create", "web", "--partitions", "1", *at)
    for number in range(5):  # send_many puts all into one batch, however loaded the machine is
        lines = [b"line %d of batch %d" % (line, number) for line in range(20)]
        with Producer(server.native) as producer:
            producer.send_many("web", lines)
    succeeding("topics", "alter", "web", "--partitions", "2", *at)
    server.stop()
    yield server


def damage(server: Server, position: int, size: int) -> Path:
    path = server.data_dir / "web-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    for at in range(position, position + size):
        data[at] ^= 0xFF
    path.write_bytes(data)
    return path


def test_dump_shows_batches_and_records(stopped: Server) -> None:
    at = ("--data", str(stopped.data_dir))
    rows = [json.loads(line) for line in succeeding("log", "dump", "web-0", "--json", *at).out.splitlines()]
    assert sum(row["messages"] for row in rows) == 100
    assert all(row["offset"] == row["position"] + row["bytes"] - row["messages"] for row in rows)
    middle = str(rows[2]["offset"] + 1)
    index = sum(row["messages"] for row in rows[:2]) + 1
    said = succeeding("log", "dump", str(stopped.data_dir / "web-0"), "--from", middle, "--max", "1", "--records")
    lines = said.out.splitlines()
    assert lines[0].split("\t")[0] == "offset" and len(lines) == 1 + rows[2]["messages"]
    assert lines[2].split("\t")[0::3] == [middle, f"line {index % 20} of batch {index // 20}"]


def test_verify_names_file_and_position_and_repair_mends(stopped: Server) -> None:
    at = ("--data", str(stopped.data_dir))
    rows = succeeding("log", "verify", "--json", *at).json
    assert (rows[0]["partition"], rows[0]["state"], rows[0]["messages"]) == ("web-0", "sound", 100)
    assert succeeding("log", "repair", *at).out == "nothing to repair\n"
    before = [json.loads(line) for line in succeeding("log", "dump", "web-0", "--json", *at).out.splitlines()]
    third = before[2]["position"]
    path = damage(stopped, third + 62, 5)

    said = run("log", "verify", *at)
    assert said.status == 74 and f"{path}:{third}: corrupt" in said.err and "log repair" in said.err
    assert "corrupt" in said.out
    assert run("log", "verify", "web-1", *at).status == 0
    said = run("log", "dump", "web-0", *at)
    assert len(said.out.splitlines()) == 1 + len(before) - 1 and f"{path}:{third}: " in said.err

    size = before[2]["bytes"]
    said = succeeding("log", "repair", "web-0", "--dry-run", *at)
    assert f"web-0: {path}: {size} bytes at {third} become a hole: " in said.out
    assert run("log", "verify", *at).status == 74
    said = succeeding("log", "repair", "web-0", *at)
    assert f"offsets 0 to {before[-1]['offset'] + before[-1]['messages']} can be read" in said.out
    assert (path.parent / f"{path.name}.damaged-{third}").stat().st_size == size
    assert succeeding("log", "verify", *at).err == ""
    assert succeeding("log", "verify", "--json", *at).json[0]["holes"] == 1
    said = succeeding("log", "dump", "web-0", *at)
    assert f"{path}:{third}: a hole: {size} bytes at offset {third} are missing: record batch of" in said.err
    assert len(said.out.splitlines()) == 1 + len(before) - 1
    stopped.start()
    said = succeeding("consume", "web", "--from", "earliest", "--timeout", "0.3", *at)
    assert len(said.out.splitlines()) == sum(row["messages"] for row in before if row != before[2])


@pytest.mark.parametrize("value_bytes", [0, 1, 4, 17, 100])
def test_a_hole_of_any_size_says_which_bytes_are_missing(tmp_path: Path, value_bytes: int) -> None:
    """The smallest has no room for a reason at all."""
    path = tmp_path / "web-0"
    raws = [batch([b"before"]), batch([b"x" * value_bytes]), batch([b"behind"])]
    filled(path, raws).close()
    start, size = len(raws[0]), len(raws[1])
    file = path / f"{0:020d}.log"
    data = bytearray(file.read_bytes())
    data[start + 62 : start + 64] = b"??"
    file.write_bytes(data)
    succeeding("log", "repair", str(path))
    said = succeeding("log", "dump", str(path))
    hole = f"{file}:{start}: a hole: {size} bytes at offset {start} are missing: "
    assert said.err.startswith(hole) and said.err.removeprefix(hole).strip()
    assert len(said.out.splitlines()) == 1 + 2


def test_cut_ends_the_log_at_the_damage(stopped: Server) -> None:
    at = ("--data", str(stopped.data_dir))
    third = [json.loads(line) for line in succeeding("log", "dump", "web-0", "--json", *at).out.splitlines()][2]
    path = damage(stopped, third["position"] + 62, 5)
    assert run("log", "repair", "web-0", "--cut", *at).status == 2  # nobody can be asked here
    assert run("log", "verify", *at).status == 74
    said = succeeding("log", "repair", "web-0", "--cut", "--yes", "--json", *at)
    assert (said.json[0]["end"], said.json[0]["hole_bytes"]) == (third["position"], 0)
    assert (path.parent / f"{path.name}.cut-{third['position']}").exists()


def test_a_damaged_partition_is_offline_and_repaired_while_all_else_serves(stopped: Server) -> None:
    at = ("--data", str(stopped.data_dir))
    before = [json.loads(line) for line in succeeding("log", "dump", "web-0", "--json", *at).out.splitlines()]
    third = before[2]
    (stopped.data_dir / "web-0" / "clean-shutdown").unlink()
    path = damage(stopped, third["position"] + 62, 5)
    stopped.start()
    seen = run("status", "--json", *at)
    assert seen.status == run("health", *at).status == 74
    row = seen.json["partitions"][0]
    assert row["state"] == "offline" and str(third["position"]) in row["reason"] and path.name in row["reason"]
    succeeding("produce", "web", "--partition", "1", *at, stdin=b"still serving\n")
    (done,) = succeeding("log", "repair", "web-0", "--json", *at).json
    assert (done["partition"], done["hole_bytes"]) == ("web-0", third["bytes"])
    row = succeeding("status", "--json", *at).json["partitions"][0]
    assert (row["state"], row["end"]) == ("online", done["end"])
    succeeding("produce", "web", "--partition", "0", *at, stdin=b"back again\n")
    said = succeeding("consume", "web", "--partition", "0", "--from", "earliest", "--timeout", "0.3", *at)
    assert said.out.splitlines()[-1] == "back again"
    assert len(said.out.splitlines()) == 1 + sum(row["messages"] for row in before if row != third)
    assert succeeding("log", "repair", *at).out == "nothing to repair\n"


def test_a_repair_says_who_has_the_lock_when_it_is_no_appliance(
    stopped: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the writer of a killed one hangs: the pid in the file is nobody's, so nobody can be asked."""
    monkeypatch.setattr("appliance.processes.supervisor.supervisor.LOCK_WAIT_MS", 0)
    at = ("--data", str(stopped.data_dir))
    (third,) = [json.loads(line) for line in succeeding("log", "dump", "web-0", "--json", *at).out.splitlines()][2:3]
    damage(stopped, third["position"] + 62, 5)
    with (stopped.data_dir / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        said = run("log", "repair", "web-0", *at)
        assert said.status == 75 and f"fuser -v {stopped.data_dir / 'lock'}" in said.err
        assert run("status", "--json", *at).json["state"] == "stopped"
    (done,) = succeeding("log", "repair", "web-0", "--json", *at).json
    assert done["hole_bytes"] == third["bytes"]


def test_a_topic_is_all_of_its_partitions(stopped: Server, tmp_path: Path) -> None:
    at = ("--data", str(stopped.data_dir))
    for name in ("web", str(stopped.data_dir / "web")):
        rows = succeeding("log", "verify", name, "--json", *at).json
        assert [row["partition"] for row in rows] == ["web-0", "web-1"], name
    assert succeeding("log", "repair", "web", "web-0", *at).out == "nothing to repair\n"
    said = run("log", "dump", "web", *at)
    assert said.status == 2 and "web has 2 partitions: name one, such as web-0" in said.err
    for name, says in [
        ("web-7", "web-7: no such partition or topic in"),
        ("web-7", "web has 2, from web-0 on"),
        ("wep", "did you mean 'web'?"),
        ("zzz", "TOPIC-NUMBER, such as web-0"),
    ]:
        said = run("log", "verify", name, *at)
        assert said.status == 66 and says in said.err, said


@pytest.mark.parametrize("command", ["dump", "verify", "repair"])
def test_what_is_not_there(command: str, tmp_path: Path) -> None:
    said = run("log", command, "web-0", "--data", str(tmp_path))
    assert said.status == 66 and "web-0: no such" in said.err
    assert run("log", command).status == 2


def test_a_repaired_log_has_an_index_again(stopped: Server) -> None:
    """As dense as the one before: a log of 100 KB has several entries."""
    at = ("--data", str(stopped.data_dir))
    stopped.start()
    for number in range(5):
        succeeding("produce", "web", "--partition", "0", *at, stdin=b"%d" % number * 20_000 + b"\n")
    stopped.stop()
    log = stopped.data_dir / "web-0" / f"{0:020d}.log"
    index = log.with_suffix(".index")
    before = index.read_bytes()
    damage(stopped, log.stat().st_size - 100, 1)
    index.write_bytes(b"")
    succeeding("log", "repair", "web-0", *at)
    assert len(before) >= len(index.read_bytes()) >= len(before) // 2


def test_verify_and_repair_name_partitions_of_which_nothing_is_left(stopped: Server) -> None:
    """A directory, all segments of one, and a topic as a whole, while it does not run and while it does."""
    at = ("--data", str(stopped.data_dir))
    kept = succeeding("log", "verify", "--json", *at).json
    assert [row["partition"] for row in kept] == ["web-0", "web-1"]
    shutil.rmtree(stopped.data_dir / "web-1")
    for name in ("web-1", "web", None):
        said = run("log", "verify", *([name] if name else []), "--json", *at)
        rows = {row["partition"]: row for row in said.json}
        assert said.status == 74 and rows["web-1"]["state"] == "corrupt" and len(rows) == (1 if name == "web-1" else 2)
        assert rows["web-1"]["problems"][0]["reason"] == "the directory is missing"
        mended = run("log", "repair", *([name] if name else []), "--dry-run", *at)
        assert mended.status == 74 and "nothing to repair" not in mended.out
        assert f"{stopped.data_dir / 'web-1'}: the directory is missing: put it back, or start" in mended.err
    stopped.start()
    wait_for(lambda: "web-1" in stopped.state["offline"], "the loss to be seen")
    assert run("log", "verify", *at).status == 74
    planned = succeeding("log", "repair", "web", "--dry-run", *at)
    assert "an empty log begins where it ended" in planned.out and "can be read" not in planned.out
    assert "web-1: offsets 0 to 0 can be read" in succeeding("log", "repair", "web", "--yes", *at).out
    succeeding("log", "verify", *at)


def test_verify_names_a_partition_without_segments(stopped: Server) -> None:
    at = ("--data", str(stopped.data_dir))
    for path in (stopped.data_dir / "web-0").glob("*.log"):
        path.unlink()
    said = run("log", "verify", "--json", *at)
    assert said.status == 74 and [row["state"] for row in said.json] == ["corrupt", "sound"]
