"""The scrubber: damage in flushed data is found while nobody reads it, and only that range is out of service."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.disk_settings import Scrub
from appliance.errors import StorageFault
from appliance.log.files import index_path, log_path
from appliance.log.transactions import aborted_path
from appliance.processes.control import Channel
from appliance.processes.supervisor import scrubber
from appliance.processes.supervisor.scrubber import FILE_NAME, Scrubber
from appliance.records.encode import encode_values
from appliance.shared import memory
from appliance.shared.table import TABLE_BYTES, SegmentTable
from appliance.wire import native

from ...support.command_line import run, succeeding
from ...support.log_batches import RAWS, filled
from ...support.native_peer import Peer
from ...support.server import Server, wait_for
from ...support.transactional_copier import read_all
from ...support.transactions import COMMITTED, give

LINES = [b"line %d\n" % number for number in range(100)]


@pytest.fixture
def server(make_appliance: Callable[..., Server]) -> Server:
    """An appliance that reads its logs all the time, with a topic of five batches in its first partition."""
    server = make_appliance(**{"scrub.every_ms": 100, "scrub.bytes_per_second": 1 << 30})
    at = ("--data", str(server.data_dir))
    succeeding("topics", "create", "web", "--partitions", "2", *at)
    for start in range(0, len(LINES), 20):
        succeeding("produce", "web", "--partition", "0", *at, stdin=b"".join(LINES[start : start + 20]))
    return server


def batches(server: Server) -> list[dict[str, Any]]:
    said = succeeding("log", "dump", "web-0", "--json", "--data", str(server.data_dir))
    return [json.loads(line) for line in said.out.splitlines()]


def damage(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(b"\xa5" * 5)


def row(server: Server) -> dict[str, Any]:
    seen: dict[str, Any] = run("status", "--json", "--data", str(server.data_dir)).json["partitions"][0]
    return seen


def test_a_damaged_range_is_out_of_service_until_it_is_repaired(server: Server) -> None:
    at = ("--data", str(server.data_dir))
    rows = batches(server)
    third, before = rows[2], sum(row["messages"] for row in rows[:2])
    behind = before + third["messages"]
    file = log_path(server.data_dir / "web-0", 0)
    damage(file, third["position"] + 62)
    wait_for(lambda: row(server)["state"] == "damaged", "it is found")
    assert run("status", *at).status == 74
    seen = row(server)
    (found,) = seen["damaged"]
    assert seen["state"] == "damaged" and f"{file.name}:{third['position']}: " in seen["reason"]
    assert (found["start"], found["stop"]) == (third["position"], third["position"] + third["bytes"])
    assert f"web-0 is damaged: {file.name}:{third['position']}: " in server.log()

    said = run("consume", "web", "--partition", "0", "--from", "earliest", "--timeout", "0.5", *at)
    assert said.out.encode() == b"".join(LINES[:before])  # no line of a damaged batch
    assert said.status == 74 and f"web-0 is damaged: {file.name}:{third['position']}: " in said.err
    said = succeeding("consume", "web", "--partition", "0", "--from", str(found["stop"]), "--timeout", "0.5", *at)
    assert said.out.encode() == b"".join(LINES[behind:])
    succeeding("produce", "web", "--partition", "0", *at, stdin=b"it is written on\n")

    for pid in server.pids("network"):
        server.kill(pid)  # their successors are told
    assert (
        run("consume", "web", "--partition", "0", "--from", str(found["start"]), "--timeout", "0.5", *at).status == 74
    )
    server.stop()
    server.settings["scrub.every_ms"] = 3_600_000  # it is remembered, not found again
    server.start()
    wait_for(lambda: row(server)["state"] == "damaged", "the range is out of service again")

    succeeding("log", "repair", "web-0", *at)
    wait_for(lambda: row(server)["state"] == "online", "the status file shows it")
    assert "damaged" not in row(server)
    said = succeeding("consume", "web", "--partition", "0", "--from", "earliest", "--timeout", "0.5", *at)
    assert said.out.encode() == b"".join([*LINES[:before], *LINES[behind:], b"it is written on\n"])


def test_a_scrubber_that_dies_is_started_again(server: Server) -> None:
    pid = server.pid_of("scrubber")
    server.kill(pid)
    wait_for(lambda: server.pids("scrubber") not in ([], [pid]), "another one runs")
    wait_for(lambda: (server.data_dir / FILE_NAME).exists(), "it stores where it is")
    assert server.stop() == 0 and server.leftovers() == []


def test_a_wrong_index_is_mended_and_readers_look_again(tmp_path: Path) -> None:
    """Goal: what an index says wrong of the times of messages ends with the scrubber's next round.

    Method: the index of a sealed segment forgets its largest time; a worker is asked before and after.
    """
    config = tmp_path / "a.toml"
    config.write_text("[scrub]\nevery_ms = 3_600_000\n")
    with Server(tmp_path / "data", config) as server, Peer(server.native) as peer:
        peer.create("web", segment_bytes=1024)
        for number in range(8):
            assert peer.produce("web", encode_values([b"x" * 400], 1_000 + number))[0] == 0
        path = index_path(server.data_dir / "web-0", 0)
        right = path.read_bytes()
        first_ms, last_ms = 1_000, int.from_bytes(right[-16:-8], "little")

        def asked() -> int:
            header, _ = peer.call([native.OFFSETS, 4, [["web", 0, last_ms, -1]]])
            return int(header[2][0][2])

        path.write_bytes(right[:-16] + first_ms.to_bytes(8, "little") + right[-8:])
        assert asked() > last_ms, "a message of the next segment"
        config.write_text("[scrub]\nevery_ms = 100\n")
        succeeding("reload", "--data", str(server.data_dir))
        wait_for(lambda: f"an index was wrong, and is made anew from its segment: {path}:" in server.log(), "a round")
        assert path.read_bytes() == right
        wait_for(lambda: asked() == last_ms, "the worker looks again")
        assert run("status", "--data", str(server.data_dir)).status == 0, "it is no damage"


def test_an_index_of_aborted_transactions_that_is_gone_is_made_anew(tmp_path: Path) -> None:
    """Goal: what was aborted is seen by no reader of committed messages for longer than a round of the scrubber.

    Method: the index is removed while nothing runs, so nobody knows that there ever was one.
    """
    config = tmp_path / "a.toml"
    config.write_text("[scrub]\nevery_ms = 3_600_000\n")
    with Server(tmp_path / "data", config) as server:
        with Peer(server.native) as peer:
            peer.create("web", segment_bytes=1024)
        assert server.stop() == 0
        (tmp_path / "rig").mkdir()
        give(server, "web", tmp_path / "rig")
        with Peer(server.native) as peer:
            assert peer.produce("web", encode_values([b"x" * 900], 1_000), acks=-1)[0] == 0
        path = aborted_path(server.data_dir / "web-0", 0)
        right = path.read_bytes()
        assert [value for _, value in read_all(server, "web", 1)] == COMMITTED
        assert server.stop() == 0
        path.unlink()
        server.start()
        assert b"aborted" in [value for _, value in read_all(server, "web", 1)], "the gap that the scrubber closes"
        config.write_text("[scrub]\nevery_ms = 100\n")
        succeeding("reload", "--data", str(server.data_dir))
        wait_for(lambda: f"an index was wrong, and is made anew from its segment: {path}:" in server.log(), "a round")
        assert path.read_bytes() == right
        wait_for(lambda: [value for _, value in read_all(server, "web", 1)] == COMMITTED, "the workers look again")
        assert run("status", "--data", str(server.data_dir)).status == 0, "it is no damage"


def test_what_verify_finds_is_served_no_more(make_appliance: Callable[..., Server]) -> None:
    """Goal: the appliance need not find by itself what somebody else has.

    Method: a byte changes under it, without a trace in size and time, and nothing is scrubbed.
    """
    server = make_appliance(**{"scrub.bytes_per_second": 0})
    with Peer(server.native) as peer:
        peer.create("web", segment_bytes=1024)
        for number in range(8):
            assert peer.produce("web", encode_values([b"x" * 400], 1_000 + number), acks=-1)[0] == 0
        path = log_path(server.data_dir / "web-0", 0)
        before, data = path.stat(), bytearray(path.read_bytes())
        data[300] ^= 0xFF
        with path.open("r+b") as file:
            file.write(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        said = run("log", "verify", "--data", str(server.data_dir))
        assert said.status == 74 and "could not be told" not in said.err
        assert server.state["damaged"]["web-0"][0][2:4] == [path.name, 0]
        wait_for(lambda: peer.fetch("web", 0)[0][0] == StorageFault.code, "the workers to know")
        assert peer.produce("web", encode_values([b"more"], 1_000), acks=-1)[0] == 0
        succeeding("log", "repair", "web", "--data", str(server.data_dir))
        wait_for(lambda: not server.state["damaged"], "it to be served again")
        assert peer.fetch("web", 0)[0][0] == 0


def test_nothing_is_written_where_a_later_topic_of_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition is read for hours.  Method: another one, of the same content, takes its place meanwhile."""
    log = filled(tmp_path / "web-0", 3 * RAWS)
    state: dict[str, Any] = {"tables": {}, "offline": {}}
    monkeypatch.setattr(scrubber, "read_state", lambda _: state)
    names = []
    for _ in range(2):
        name, mapped = memory.create("scrubbingtest", "table", TABLE_BYTES)
        with mapped, memoryview(mapped) as view, view.cast("Q") as cells:
            SegmentTable(cells).publish(*log.summary)
        names.append(name)
    supervisor, control = Channel.pair()
    asked, is_replaced = itertools.count(1), True

    def clock_s() -> float:
        number = next(asked)
        if number == 4 and is_replaced:
            state["tables"]["web-0"] = names[1]
        return float(number)

    try:
        for is_replaced in (True, False):
            state["tables"]["web-0"], asked = names[0], itertools.count(1)
            index_path(log.path, 0).unlink(missing_ok=True)
            (tmp_path / FILE_NAME).unlink(missing_ok=True)
            Scrubber(Scrub(every_ms=10**9, bytes_per_second=1 << 30), tmp_path, control, clock_s)._round()
            assert index_path(log.path, 0).exists() != is_replaced
    finally:
        supervisor.close()
        control.close()
        log.close(clean=False)
        for name in names:
            memory.unlink(name)
