"""appliance.inputs.text_search: each line of a source with a text is found where the ledger says, and no other one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.client import Consumer
from appliance.clock import now_ms
from appliance.inputs import text_search as module
from appliance.inputs.text_search import TextMatch, TextSearch

from ..support.server import Server, wait_for
from .test_files_process import Program, messages_of, rows_of, server_of


def found_in(server: Server, text: str, matches_max: int = 10_000, **more: Any) -> tuple[list[TextMatch], bool]:
    topics = more.get("topics", {"disk"})
    search = TextSearch(text, topics, matches_max, now_ms() + more.get("left_ms", 60_000))
    for row in rows_of(server):
        search.add(row)
        search.add(row)  # published twice
    with Consumer(server.native) as consumer:
        return search.matches(consumer), search.is_cut


def test_lines_with_a_text_are_found_among_those_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: two inputs of one topic read other files with the same lines; and much lies between two blocks."""
    monkeypatch.setattr(module, "NEAR_BYTES", 10_000)
    program, other = Program(tmp_path / "logs", seed=1), Program(tmp_path / "other", seed=1)
    more = {"type": "files", "include": f"{tmp_path}/other/*.log", "topic": "disk", "scan_ms": 200}
    server = server_of(tmp_path)
    server.settings |= {f"inputs.other.{key}": value for key, value in more.items()}
    with server:
        for _ in range(4):
            for one in (program, other):
                one.write(150)
            wait_for(lambda: len(messages_of(server, "disk")) == 2 * len(program.lines), "all lines")
        server.stop()
        server.start()
        published = rows_of(server)
        values = {offset: value for offset, value, _ in messages_of(server, "disk")}
        for name, text in itertools.product(("disk", "other"), ("7", "59", "9 x", "no such text")):  # one ends the log
            rows = [row for row in published if row.input == name]
            monkeypatch.setattr(f"{__name__}.rows_of", lambda _, rows=rows: rows)
            matches, is_cut = found_in(server, text)
            wanted = [(at + 1, line) for at, line in enumerate(program.lines) if text.encode() in line]
            assert ([(match.line, match.value) for match in matches], is_cut) == (wanted, False)
            assert all(values[match.offset] == match.value for match in matches)
        assert len(found_in(server, "7", matches_max=3)[0]) == 3
        cuts: list[Callable[[], tuple[list[TextMatch], bool]]] = [
            lambda: found_in(server, "7", topics=set()),
            lambda: found_in(server, "7", left_ms=-1),
        ]
        assert [cut() for cut in cuts] == [([], True)] * 2
