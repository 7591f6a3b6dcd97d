"""The journal of a real journald that is read into a topic by a real appliance, through rotations, kills and stops."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ..support.journald import Journald, journald
from ..support.server import Server, runs, wait_for
from .test_files_process import messages_of, rows_of


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journald]:
    with journald(tmp_path / "systemd") as running:
        yield running


def server_of(tmp_path: Path, **more: Any) -> Server:
    settings = {"type": "journal", "directory": str(tmp_path / "systemd" / "journal"), "topic": "host"} | more
    return Server(tmp_path / "data", **{f"inputs.host.{key}": value for key, value in settings.items()})


def entries(server: Server) -> list[dict[str, Any]]:
    return [msgspec.json.decode(value) for _, value, _ in messages_of(server, "host")]


def texts(server: Server) -> list[Any]:
    """The messages that tests have written: journald has some of its own."""
    return [one["MESSAGE"] for one in entries(server) if one.get("SYSLOG_IDENTIFIER") == "shop"]


def wait_for_all(server: Server, written: list[str]) -> None:
    wait_for(lambda: len(texts(server)) >= len(written), "the entries so far")


def number_of(cursor: str) -> int:
    return int(cursor.split(";")[1].removeprefix("i="), 16)


def gaps(server: Server) -> int:
    return int(server.state["inputs"]["host"]["gaps"])


def test_every_entry_is_in_the_topic_once_and_in_order_through_rotations_and_kills(
    journal: Journald, tmp_path: Path
) -> None:
    rng = random.Random(1)
    written: list[str] = []
    with server_of(tmp_path) as server:
        for turn in range(12):
            fresh = [f"{len(written) + at} {'x' * rng.randrange(300)}" for at in range(rng.randrange(1, 400))]
            written.extend(fresh)
            journal.write(text.encode() for text in fresh)
            if turn % 4 == 1:
                with suppress(ProcessLookupError):  # it has ended since
                    server.kill(server.pid_of("input"))
            elif turn % 4 == 2:
                journal.rotate()
            elif turn == 3:
                server.stop()
                server.start()
            elif turn == 7:
                server.kill_supervisor()
                server.start()
            if rng.random() < 0.3:
                wait_for_all(server, written)
        wait_for_all(server, written)
        assert texts(server) == written
        assert max(Counter(one["__CURSOR"] for one in entries(server)).values()) == 1
        assert not gaps(server)
        server.stop()
        server.start()
        rows = rows_of(server)
        assert sum(row.lines for row in rows) == len(entries(server))
        assert not [row for row in rows if row.gaps or row.refused]


def test_a_message_has_all_fields_and_the_headers_that_name_it(journal: Journald, tmp_path: Path) -> None:
    with server_of(tmp_path, message_bytes_max=8_192) as server:
        journal.write([b"two\nlines", b"\xff\0"], SYSLOG_FACILITY=b"3")
        journal.write([b"short"], COREDUMP=b"x" * 100_000)
        wait_for(lambda: len(texts(server)) == 3, "all entries")
        assert texts(server) == ["two\nlines", [255, 0], "short"]
        (first, _, cut) = [row for row in messages_of(server, "host") if row[2].get("app") == b"shop"]
        entry, headers = msgspec.json.decode(first[1]), first[2]
        assert {"_PID", "_BOOT_ID", "__CURSOR", "__REALTIME_TIMESTAMP", "_TRANSPORT"} <= entry.keys()
        assert (headers["severity"], headers["facility"]) == (b"info", b"daemon")
        assert headers["host"] == entry["_HOSTNAME"].encode()
        assert (headers["time"] or b"").startswith(b"20") and (headers["time"] or b"").endswith(b"Z")
        assert (msgspec.json.decode(cut[1])["COREDUMP"], cut[2]["cut"]) == (None, b"COREDUMP")
        wait_for(lambda: server.state["inputs"]["host"]["refused"] == 1, "the field to be counted")


def test_entries_that_were_removed_before_they_were_read_are_a_gap_with_their_numbers(
    journal: Journald, tmp_path: Path
) -> None:
    with server_of(tmp_path) as server:
        journal.write([b"first"])
        wait_for(lambda: texts(server) == ["first"], "the first entry")
        server.stop()
        journal.write(b"%d" % at for at in range(10))
        last = journal.cursors("SYSLOG_IDENTIFIER=shop")[0]
        journal.vacuum()
        journal.write([b"last"])
        server.start()
        wait_for(lambda: texts(server) == ["first", "last"], "the last entry")
        wait_for(lambda: gaps(server) == 1, "the gap to be shown")
        server.stop()
        server.start()
        ((gap,),) = [row.gaps for row in rows_of(server) if row.gaps]
        assert gap.unit == "sequence numbers"
        assert (gap.start, gap.stop) == (number_of(last) + 1, number_of(journal.cursors()[0]))


def test_with_start_end_and_matches_only_what_comes_and_is_asked_for_is_taken(
    journal: Journald, tmp_path: Path
) -> None:
    journal.write([b"before"])
    with server_of(tmp_path, start="end", matches="SYSLOG_IDENTIFIER=shop") as server:
        wait_for(lambda: server.state["inputs"]["host"]["sources"], "the input to follow")
        journal.write([b"other"], SYSLOG_IDENTIFIER=b"other")
        journal.write([b"after"])
        wait_for(lambda: texts(server) == ["after"], "the entry that was asked for")
        assert len(entries(server)) == 1
        assert not gaps(server)


PROGRAM = """#!/bin/sh
echo $$ >> "$0.pids"
case $(wc -l < "$0.pids") in
1) printf '__CURSOR=c1\nSYSLOG_IDENTIFIER=shop\nMESSAGE=1\n\n'
   echo 'No journal files were opened due to insufficient permissions.' >&2; exit 1 ;;
*) printf '__CURSOR=c1\nSYSLOG_IDENTIFIER=shop\nMESSAGE=1\n\n'
   printf '__CURSOR=c2\nSYSLOG_IDENTIFIER=shop\nMESSAGE=2\n\n'; exec sleep 1000 ;;
esac
"""


def test_a_journalctl_that_fails_is_begun_again_and_none_outlives_its_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "journalctl"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "systemd" / "journal").mkdir(parents=True)

    def children() -> list[int]:
        return [int(pid) for pid in (tmp_path / "journalctl.pids").read_text().split()]

    with server_of(tmp_path) as server:
        wait_for(lambda: "insufficient permissions" in server.state["inputs"]["host"]["trouble"], "the reason")
        wait_for(lambda: texts(server) == ["1", "2"], "both entries, each once")
        wait_for(lambda: "no files of a journal" in server.state["inputs"]["host"]["trouble"], "what is still amiss")
        server.kill(server.pid_of("input"))
        wait_for(lambda: len(children()) == 3 and not runs(children()[1]), "another one in its place")
        wait_for(lambda: server.pid_of("input"), "another input")
        server.stop()
        assert not [pid for pid in children() if runs(pid)]
