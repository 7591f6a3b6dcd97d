"""A topic of an input is deleted or made again, while the input runs or is away: it goes on, and loses nothing.

The offset from which an input recovers is then one of another log.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from appliance.client import Admin

from ..support.server import Server, runs, wait_for
from .test_files_process import Program, messages_of, rows_of, server_of


def values_of(server: Server) -> list[bytes]:
    return [value for _, value, _ in messages_of(server, "disk")]


def kill_input(server: Server) -> None:
    pid = server.pid_of("input")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not runs(pid), "the input to end")


@pytest.mark.parametrize("is_made_on_demand", [True, False])
def test_an_input_whose_topic_was_deleted_while_it_was_away_begins(tmp_path: Path, is_made_on_demand: bool) -> None:
    program = Program(tmp_path / "logs", seed=1)
    with server_of(tmp_path) as server, Admin(server.native) as admin:
        program.write(100)
        wait_for(lambda: len(values_of(server)) == 100, "the first lines")
    server.settings["topics.auto_create"] = is_made_on_demand
    server.settings["inputs.disk.topic"] = "other"
    with server, Admin(server.native) as admin:
        admin.delete_topic("disk")
    server.settings["inputs.disk.topic"] = "disk"
    with server, Admin(server.native) as admin:
        program.write(100)
        if not is_made_on_demand:
            wait_for(lambda: "no topic" in server.state["inputs"]["disk"]["trouble"], "it to be told")
            admin.create_topic("disk")
        wait_for(lambda: values_of(server), "the lines since then")
        wait_for(lambda: len(values_of(server)) >= 100, "the lines since then")
        assert values_of(server) == program.lines[100:]
        kill_input(server)
        program.write(100)
        wait_for(lambda: len(values_of(server)) >= 200, "what comes after a kill")
        assert values_of(server) == program.lines[100:]


def test_a_kill_doubles_nothing_of_a_topic_that_was_made_again(tmp_path: Path) -> None:
    """Goal: offsets that begin anew are no earlier ones.  What the old topic had is committed before it is deleted."""
    program = Program(tmp_path / "logs", seed=2)
    with server_of(tmp_path) as server, Admin(server.native) as admin:
        program.write(2_000)
        wait_for(lambda: server.state["inputs"]["disk"]["messages"] == 2_000, "the first lines to be committed")
        admin.delete_topic("disk")
        for _ in range(3):
            before = len(values_of(server))
            program.write(100)
            wait_for(lambda before=before: len(values_of(server)) >= before + 100, "the lines since then")
            kill_input(server)
        program.write(1)
        wait_for(lambda: program.lines[-1] in values_of(server), "the last line")
        assert values_of(server) == program.lines[2_000:]
        server.stop()
        server.start()
        assert sum(row.lines for row in rows_of(server)) == len(program.lines)
