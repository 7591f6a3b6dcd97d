"""appliance.cli.waiting and ending: a command that waits says why, goes on with the rest, and ends in order."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from appliance.cli import waiting
from appliance.cli.waiting import TroubleWatch
from appliance.client.troubles import Trouble, Troubles
from appliance.errors import BrokerAway, DiskFull, NotLeader, RequestTimedOut

from ..support.command_line import run, succeeding
from ..support.ready import readable
from ..support.server import Server, wait_for

LINES = [f"line {i}" for i in range(40)]


def started(*words: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "appliance", *words],
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A topic of two partitions; the log of the second one is damaged where consumers have read, so it is offline."""
    server = Server(tmp_path_factory.mktemp("damaged") / "data")
    with server:
        at = ("--data", str(server.data_dir))
        succeeding("topics", "create", "t", "--partitions", "2", *at)
        for partition in "01":
            for lines in (LINES[:20], LINES[20:]):
                succeeding("produce", "t", "--partition", partition, *at, stdin="\n".join(lines).encode())
        server.stop()
        (server.data_dir / "t-1" / "clean-shutdown").unlink()
        log = server.data_dir / "t-1" / f"{0:020d}.log"
        content = bytearray(log.read_bytes())
        content[100] ^= 0xFF
        log.write_bytes(content)
        server.start()
        wait_for(lambda: "t-1" in server.state["offline"], "the partition is offline")
        yield server


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "REPORT_AFTER_S", 0.1)


def test_consume_reads_what_it_can_and_names_what_it_cannot(damaged: Server) -> None:
    at = ("--data", str(damaged.data_dir))
    said = run("consume", "t", "--from", "earliest", "--timeout", "1.5", *at)
    assert said.out.splitlines() == LINES
    reason = damaged.state["offline"]["t-1"]
    assert said.status == 74 and f"waiting: t-1 is offline: {reason}" in said.err
    assert said.err.splitlines()[-2] == f"appliance: t-1 is offline: {reason}"
    assert "make room" not in said.err


def test_consume_ends_well_when_it_has_what_it_was_to_read(damaged: Server) -> None:
    at = ("--data", str(damaged.data_dir))
    said = run("consume", "t", "--from", "earliest", "--max", "40", *at)
    assert (said.status, said.out.splitlines()) == (0, LINES)


def test_produce_delivers_what_it_can_and_says_what_it_could_not(damaged: Server, monkeypatch: Any) -> None:
    from appliance.client import producer

    defaults = dict(producer.Producer.__init__.__kwdefaults__ or {}, delivery_timeout_ms=1_000)
    monkeypatch.setattr(producer.Producer.__init__, "__kwdefaults__", defaults)
    at = ("--data", str(damaged.data_dir))
    said = run("produce", "t", "--partition", "1", *at, stdin=b"a\nb\nc\n")
    reason = damaged.state["offline"]["t-1"]
    assert said.status == 74, said
    assert f"waiting: t-1 is offline: {reason} (3 lines on the way)" in said.err
    assert f"appliance: 3 of 3 lines were not delivered: t-1 is offline: {reason}" in said.err
    said = run("produce", "t", "--partition", "0", "--json", *at, stdin=b"a\nb\nc\n")
    assert (said.status, said.json["messages"]) == (0, 3)


def test_an_appliance_that_is_away_is_named_and_waited_for(make_appliance: Callable[..., Server], topic: str) -> None:
    server = make_appliance()
    at = ("--connect", server.native)
    succeeding("topics", "create", topic, *at)
    producing = started("produce", topic, *at, stdin=subprocess.PIPE)
    assert producing.stdin is not None and producing.stderr is not None
    producing.stdin.write(b"one\n")
    producing.stdin.flush()
    port = server.native.rpartition(":")[2]
    wait_for(lambda: succeeding("consume", topic, "--from", "earliest", "--max", "1", *at).out, "it is there")
    assert server.stop() == 0
    producing.stdin.write(b"two\n")
    producing.stdin.flush()
    assert readable(producing.stderr, 20)
    assert b"waiting: " in producing.stderr.readline()
    server.settings["native.listen"] = f"127.0.0.1:{port}"
    server.start()
    producing.stdin.close()
    rest = producing.stderr.read().decode()
    assert producing.wait(60) == 0, rest
    assert "going on" in rest and len(rest.splitlines()) < 8, rest
    said = succeeding("consume", topic, "--from", "earliest", "--max", "2", *at)
    assert said.out.split() == ["one", "two"]
    producing.stderr.close()
    assert producing.stdout is not None
    producing.stdout.close()


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("ending") / "data", **{"zookeeper.nodes": 1}) as server:
        server.wait_for_zookeeper()
        yield server


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE])
def test_a_member_commits_and_leaves_however_it_is_ended(grouped: Server, topic: str, number: int) -> None:
    at = ("--data", str(grouped.data_dir))
    succeeding("topics", "create", topic, *at)
    succeeding("produce", topic, *at, stdin=b"a\nb\nc\n")
    reading = started("consume", topic, "--group", topic, *at)
    assert reading.stdout is not None and reading.stderr is not None
    assert [reading.stdout.readline() for _ in range(3)] == [b"a\n", b"b\n", b"c\n"]
    if number == signal.SIGPIPE:
        reading.stdout.close()
        succeeding("produce", topic, *at, stdin=b"d\n")
    else:
        reading.send_signal(number)
    said = reading.stderr.read().decode()
    assert (reading.wait(60), "Traceback" in said) == (128 + number, False), said
    reading.stderr.close()
    reading.stdout.close()
    rows = {row["group"]: row for row in succeeding("groups", "list", "--json", *at).json}
    assert (rows[topic]["state"], rows[topic]["members"]) == ("empty", 0)
    rest = succeeding("consume", topic, "--group", topic, "--timeout", "1.5", *at).out
    # The reader has asked for more, so all but the last of what it was given is done at least.
    assert rest in ("", "c\n", "d\n", "c\nd\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_produce_delivers_what_it_has_read_when_it_is_ended(appliance: Server, topic: str, number: int) -> None:
    at = ("--data", str(appliance.data_dir))
    succeeding("topics", "create", topic, *at)
    producing = started("produce", topic, *at, stdin=subprocess.PIPE)
    assert producing.stdin is not None
    producing.stdin.write(b"one\ntwo\n")
    producing.stdin.flush()
    wait_for(
        lambda: run("consume", topic, "--from", "earliest", "--max", "2", "--timeout", "1", *at).out, "it is there"
    )
    producing.send_signal(number)
    out, said = producing.communicate(timeout=60)
    assert (producing.returncode, out, b"Traceback" in said) == (128 + number, b"", False), said


def test_a_watch_says_a_trouble_once_and_when_it_is_over(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    troubles = Troubles(lambda: 100.0)
    watch = TroubleWatch("127.0.0.1:1", troubles.current, lambda: "7 lines on their way")
    troubles.note_trouble(("t", 1), NotLeader("nobody leads t-1"))
    watch._report(100.05)
    assert capsys.readouterr().err == ""
    for now_s in (100.2, 101.0, 120.0):
        watch._report(now_s)
    assert capsys.readouterr().err == "waiting: nobody leads t-1 (7 lines on their way)\n"
    watch._report(130.3)
    assert capsys.readouterr().err.startswith("waiting: ")
    troubles.note_progress(("t", 1))
    watch._report(131.0)
    assert capsys.readouterr().err == "going on: t-1\n"


def test_troubles_log_a_line_for_each_change(caplog: pytest.LogCaptureFixture) -> None:
    """Goal: an outage of seconds is told in a few lines.  Method: what an outage does a hundred times."""
    now = [0.0]
    troubles = Troubles(lambda: now[0])
    for attempt in range(100):
        now[0] += 0.1
        troubles.note_trouble("appliance 0", BrokerAway(f"attempt {attempt}"))
        troubles.note_trouble("metadata", BrokerAway(f"attempt {attempt}"))
        troubles.note_trouble(("t", 0), RequestTimedOut("x") if attempt < 50 else DiskFull("y"))
    assert [trouble.subject for trouble in troubles.current()] == ["appliance 0", "metadata", ("t", 0)]
    assert isinstance(troubles.current()[0], Trouble) and ("t", 0) in troubles
    for subject in ("appliance 0", "metadata", ("t", 0), "metadata"):
        troubles.note_progress(subject)
    assert not troubles and len(caplog.records) == 7
    assert "continuing after 9.9 s" in caplog.text


def test_output_of_json_lines_is_one_object_each(damaged: Server) -> None:
    at = ("--data", str(damaged.data_dir))
    said = run("consume", "t", "--from", "earliest", "--max", "40", "--json", *at)
    assert [json.loads(line)["value"] for line in said.out.splitlines()] == LINES
