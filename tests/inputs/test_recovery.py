"""What a killed input had sent is not sent again, whenever it comes into the log: see the tables of ``recovery``."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from appliance.client import Consumer
from appliance.inputs.positions import BlockOrigin, FoundBlock, PositionStore
from appliance.inputs.recovery import POLL_S, SETTLE_S, SETTLE_S_MAX, Recovery
from appliance.wire.requests import LATEST

from ..support.server import Server, stopped, wait_for
from ..support.sockets import open_files

PART = ("t", 0)
NEVER = 1e9


def used_store(path: Path, *, ended: bool = False) -> tuple[PositionStore, int]:
    """One whose last process was killed; it has one source, of which nothing is noted."""
    store = PositionStore(path)
    (number,) = store.add_sources([("a", 0, 1, b"x")])
    store.add_partition(*PART, 0)
    store.begin()
    if ended:
        store.end_in_order()
    store.close()
    return PositionStore(path), number


def recover(store: PositionStore, number: int, arrivals: tuple[float, ...]) -> float:
    """Recover while blocks of ten bytes come into the log at these times, in order; when that is done, in s."""
    recovery, now_s = Recovery(store, 0.0), 0.0
    while True:
        there = [at for at, arrival in enumerate(arrivals) if arrival <= now_s]
        found = [
            FoundBlock(BlockOrigin(store.id, number, 10 * at, 10 * at + 10, at + 1, 1, "x"), *PART, 70 * at, 1, 9)
            for at in there
            if 70 * at >= recovery.starts[PART]
        ]
        if recovery.take(found, {PART: 70 * len(there)}, 0, now_s):
            return now_s
        now_s += POLL_S


@pytest.mark.parametrize("arrivals", [
    tuple(itertools.accumulate(steps))
    for steps in itertools.product((0.0, POLL_S, SETTLE_S - POLL_S, SETTLE_S + 2 * POLL_S, NEVER), repeat=3)
])  # fmt: skip
def test_recovery_waits_for_what_may_be_on_its_way(tmp_path: Path, arrivals: tuple[float, ...]) -> None:
    store, number = used_store(tmp_path / "store")
    done_s = recover(store, number, arrivals)
    before, awaited = 0.0, 0
    for arrival in arrivals:
        if arrival - before > SETTLE_S:
            break
        before, awaited = arrival, awaited + 1
    (source,) = store.sources()
    assert source.position == 10 * awaited and len(store.spans(1)) == awaited
    assert SETTLE_S <= done_s - before <= SETTLE_S + 2 * POLL_S
    store.close()


def test_what_ended_in_order_is_not_waited_for(tmp_path: Path) -> None:
    store, number = used_store(tmp_path / "store", ended=True)
    assert recover(store, number, (0.0, NEVER)) == 0.0
    assert store.sources()[0].position == 10
    store.close()


def test_blocks_that_never_cease_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, number = used_store(tmp_path / "store")
    done_s = recover(store, number, tuple(at / 10 for at in range(1_000)))
    assert SETTLE_S_MAX <= done_s <= SETTLE_S_MAX + POLL_S
    assert "another process that uses a copy" in caplog.text
    store.close()


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.long  # the writer goes on within SETTLE_S if no processor is short
def test_what_a_killed_input_had_sent_to_a_writer_that_stands_still_is_not_sent_again(tmp_path: Path) -> None:
    """Method: the writer goes on once the next process has begun to read files, or would have, without settling."""
    log, trace = tmp_path / "logs/app.log", tmp_path / "trace"
    log.parent.mkdir()
    settings = {"type": "files", "include": str(log), "topic": "disk", "scan_ms": 200}
    with Server(
        tmp_path / "data", **{"network.workers": 1}, **{f"inputs.disk.{key}": value for key, value in settings.items()}
    ) as server:

        def values() -> list[bytes]:
            with Consumer(server.native) as consumer:
                consumer.assign({("disk", 0): 0})
                end = consumer.offsets_at(LATEST)[("disk", 0)]
                found: list[bytes] = []
                while consumer.position("disk", 0) < end:
                    found += [message.value or b"" for message in consumer.poll(timeout=1.0)]
                return found

        log.write_bytes(b"first\n")
        wait_for(lambda: server.state["inputs"]["disk"]["lines"] == 1, "the first line")
        pid = server.pid_of("input")
        tracing = subprocess.Popen(
            ["strace", "-f", "-s", "65536", "-e", "trace=sendto,sendmsg", "-o", str(trace), "-p", str(pid)],
            stderr=subprocess.PIPE,
        )
        assert tracing.stderr is not None
        tracing.stderr.readline()  # it is attached
        with stopped(server.pid_of("writer")):
            with log.open("ab") as file:
                file.write(b"second\n")
            wait_for(lambda: trace.exists() and "second" in trace.read_text(), "it to be sent")
            server.kill(pid)
            tracing.wait(60)
            tracing.stderr.close()
            (next_pid,) = wait_for(lambda: [found for found in server.pids("input") if found != pid], "the next one")
            with suppress(AssertionError):
                wait_for(lambda: str(log) in open_files(next_pid), "it to read files", 0.15)
        with log.open("ab") as file:
            file.write(b"third\n")
        wait_for(lambda: b"third" in values(), "the third line")
        assert values() == [b"first", b"second", b"third"]
