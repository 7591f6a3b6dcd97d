"""Files that are read into a topic by a real appliance, through rotations, kills and stops."""

from __future__ import annotations

import gzip
import random
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from appliance.client import Consumer
from appliance.errors import UnknownPartition
from appliance.inputs.ledger import LedgerRow, once
from appliance.wire.requests import LATEST

from ..support.long import LONG
from ..support.server import Server, wait_for

MESSAGES_MAX = 1_000_000


def server_of(tmp_path: Path, **more: Any) -> Server:
    settings = {
        "type": "files",
        "include": f"{tmp_path}/logs/*.log",
        "topic": "disk",
        "scan_ms": 200,
        "rotate_ms": 200,
    } | more
    return Server(tmp_path / "data", **{f"inputs.disk.{key}": value for key, value in settings.items()})


def messages_of(server: Server, topic: str) -> list[tuple[int, bytes, dict[str, bytes | None]]]:
    """Offset, value and headers of all messages of a topic's only partition."""
    with Consumer(server.native) as consumer:
        try:
            consumer.assign({(topic, 0): 0})
        except UnknownPartition:
            return []
        end = consumer.offsets_at(LATEST)[topic, 0]
        found: list[tuple[int, bytes, dict[str, bytes | None]]] = []
        while consumer.position(topic, 0) < end:
            found += [(one.offset, one.value or b"", dict(one.headers)) for one in consumer.poll(timeout=1.0)]
        return found


class Program:
    """Writes numbered lines to a file, and rotates it as programs and logrotate do."""

    def __init__(self, directory: Path, seed: int) -> None:
        directory.mkdir()
        self.path, self.rng = directory / "app.log", random.Random(seed)
        self.lines: list[bytes] = []
        self.generations: list[list[bytes]] = [[]]
        self.rotations = 0

    def write(self, count: int) -> None:
        fresh = [b"%d %s" % (len(self.lines) + at, b"x" * self.rng.randrange(300)) for at in range(count)]
        self.lines += fresh
        self.generations[-1] += fresh
        with self.path.open("ab") as file:
            for line in fresh:
                file.write(line + b"\n")

    def _older(self, suffix: str = "") -> Path:
        self.rotations += 1
        return self.path.with_name(f"app.log.{self.rotations}{suffix}")

    def rename(self) -> None:
        self.path.rename(self._older())

    def copy_and_truncate(self) -> None:
        shutil.copyfile(self.path, self._older())
        with self.path.open("r+b") as file:
            file.truncate()

    def rename_and_compress(self) -> None:
        older = self._older()
        self.path.rename(older)
        with gzip.open(self._older(".gz"), "wb") as file:
            file.write(older.read_bytes())

    def rotate(self) -> None:
        self.generations.append([])
        self.rng.choice([self.rename, self.copy_and_truncate, self.rename_and_compress])()


KINDS = {
    "rename": Program.rename,
    "copytruncate": Program.copy_and_truncate,
    "compress": Program.rename_and_compress,
}
ROTATIONS = 200 if LONG else 6


def strike(server: Server, turn: int) -> None:
    """The input is killed, the appliance killed, or stopped in order."""
    if turn % 4 == 1:
        with suppress(ProcessLookupError):  # it has ended since
            server.kill(server.pid_of("input"))
    elif turn % 12 == 3:
        server.kill_supervisor()
        server.start()
    elif turn % 12 == 7:
        server.stop()
        server.start()


@pytest.mark.parametrize("kind", KINDS)
def test_rotations_of_one_kind_without_a_look_between_them_lose_and_double_nothing(tmp_path: Path, kind: str) -> None:
    program = Program(tmp_path / "logs", seed=5)
    with server_of(tmp_path, include=f"{tmp_path}/logs/app.log") as server:
        program.write(1)
        wait_for(lambda: len(messages_of(server, "disk")) == 1, "the first line")
        for turn in range(ROTATIONS):
            program.write(program.rng.randrange(1, 200))
            program.generations.append([])
            KINDS[kind](program)
            strike(server, turn)
        program.write(1)
        wait_for(lambda: len(messages_of(server, "disk")) >= len(program.lines), "all lines", 120)
        counts = Counter(value for _, value, _ in messages_of(server, "disk"))
        assert [line for line in program.lines if counts[line] != 1] == []
        server.stop()
        server.start()
        assert sum(row.lines for row in rows_of(server)) == len(program.lines)
        sizes = {gap.stop for row in rows_of(server) for gap in row.gaps}
        assert sizes <= {None}, "at most what is not known: no bytes were lost"


def flushed(server: Server) -> int:
    return sum(row["messages"] for row in server.state["inputs"].values())


def rows_of(server: Server) -> list[LedgerRow]:
    return list(once(msgspec.json.decode(value, type=LedgerRow) for _, value, _ in messages_of(server, "ledger")))


def test_every_line_is_in_the_topic_once_and_in_order_through_rotations_and_kills(tmp_path: Path) -> None:
    """Method: the input is killed, the appliance is stopped or killed, at any moment between and after rotations."""
    program = Program(tmp_path / "logs", seed=1)
    with server_of(tmp_path) as server:
        for turn in range(24):
            program.write(program.rng.randrange(1, 400))
            if not turn or program.rng.random() < 0.5:
                wait_for(lambda: len(messages_of(server, "disk")) >= len(program.lines), "the lines so far")
            program.rotate()
            program.write(program.rng.randrange(1, 400))
            if turn % 3 == 1:
                with suppress(ProcessLookupError):  # it has ended since
                    server.kill(server.pid_of("input"))
            elif turn % 8 == 3:
                server.stop()
                server.start()
            elif turn % 8 == 7:
                server.kill_supervisor()
                server.start()
        wait_for(lambda: len(messages_of(server, "disk")) >= len(program.lines), "all lines")
        got = messages_of(server, "disk")
        counts = Counter(value for _, value, _ in got)
        assert [line for line in program.lines if counts[line] != 1] == []
        offsets = {value: offset for offset, value, _ in got}
        for lines in program.generations:
            assert sorted(lines, key=offsets.__getitem__) == lines


def test_the_ledger_says_where_every_line_is(tmp_path: Path) -> None:
    program = Program(tmp_path / "logs", seed=2)
    with server_of(tmp_path) as server:
        for _ in range(3):
            program.write(200)
            wait_for(lambda: len(messages_of(server, "disk")) == len(program.lines), "all lines")
            program.rename()
        server.stop()
        server.start()
        rows = rows_of(server)
        assert sum(row.lines for row in rows) == len(program.lines)
        assert sum(row.bytes for row in rows) == sum(len(line) + 1 for line in program.lines)
        assert not [row for row in rows if row.gaps or row.refused]
        stored = {offset: value for offset, value, _ in messages_of(server, "disk")}
        offsets = sorted(stored)
        spans = sorted(span for row in rows for span in row.spans)
        assert sum(span[3] for span in spans) == len(offsets)
        for topic, partition, offset, count, start, stop, _, lines, size in spans:
            assert (topic, partition, count) == ("disk", 0, lines)
            first = offsets.index(offset)
            values = [stored[at] for at in offsets[first : first + count]]
            assert sum(len(value) + 1 for value in values) == stop - start == size


@pytest.mark.parametrize("kind", ["truncated", "removed"])
def test_what_vanishes_before_it_is_read_is_a_gap_with_its_bytes(tmp_path: Path, kind: str) -> None:
    """Method: the input is stopped (SIGSTOP would be seen as hanging) while the file is written and goes."""
    program = Program(tmp_path / "logs", seed=3)
    server = server_of(tmp_path)
    with server:
        program.write(10)
        wait_for(lambda: len(messages_of(server, "disk")) == 10, "the first lines")
        server.stop()
        program.write(10)
        if kind == "removed":
            program.path.unlink()
        else:
            program.path.write_bytes(b"")
        seen = sum(len(line) + 1 for line in program.lines[:10])
        server.start()
        wait_for(lambda: server.state["inputs"]["disk"]["gaps"], "the gap to be told")
        server.stop()
        server.start()
        gaps = [gap for row in rows_of(server) for gap in row.gaps]
        assert [(gap.start, gap.stop, gap.unit) for gap in gaps] == [(seen, None, "bytes")]


def test_an_event_of_several_lines_is_one_message_whenever_the_input_is_killed(tmp_path: Path) -> None:
    program = Program(tmp_path / "logs", seed=4)
    events = [b"2026-11-25 fault %d\n  at a\n  at b" % number for number in range(6)]
    with server_of(tmp_path, event_start="^2026-", event_ms=60_000) as server:
        for number, event in enumerate(events):
            with program.path.open("ab") as file:
                file.write(event + b"\n")
            # The last event may go on: it is in the topic once the next one has begun.
            wait_for(lambda number=number: len(messages_of(server, "disk")) == number, "the events before")
            with suppress(ProcessLookupError):
                server.kill(server.pid_of("input"))
        server.stop()
        server.start()
        with program.path.open("ab") as file:
            file.write(b"2026-11-25 the end\n")
        wait_for(lambda: len(messages_of(server, "disk")) == len(events), "all events")
        assert [value for _, value, _ in messages_of(server, "disk")] == events
