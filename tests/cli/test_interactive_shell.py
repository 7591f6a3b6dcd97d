"""``appliance shell`` in a real pseudo-terminal; completion of live names there, in bash, zsh and fish."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.cli import live_names
from appliance.cli.command_tree import tree
from appliance.cli.interactive_shell import completions
from appliance.cli.live_names import OFFERED
from appliance.client.cluster_client import Cluster

from ..support.command_line import run, succeeding
from ..support.server import Server
from ..support.terminal import Terminal


def test_a_session(appliance: Server, topic: str, tmp_path: Path) -> None:
    """Goal: commands run, Tab completes a live name, errors show their status, Ctrl-C and Ctrl-D do what they do."""
    at = ("--data", str(appliance.data_dir))
    succeeding("topics", "create", f"{topic}-long-name", *at)
    environment = {"XDG_STATE_HOME": str(tmp_path), "PROMPT_TOOLKIT_NO_CPR": "1"}
    with Terminal("shell", *at, environment=environment) as terminal:
        terminal.until("appliance>")
        terminal.type(f"topics describe {topic}-lo\t")
        terminal.until("ng-name")  # only what is new on the screen is written
        terminal.type("\r")
        terminal.until("retention.ms ")
        terminal.type("topics describe nothing\r")
        terminal.until("appliance [66]>")
        terminal.type("start\r")
        terminal.until("process of its own")
        terminal.type("topics list 'open\r")
        terminal.until("No closing quotation")
        terminal.until("appliance [2]>")
        terminal.type("\x03")
        terminal.type("exit\r")
        assert terminal.wait() == 0
    history = tmp_path / "appliance" / "history"
    assert "topics describe nothing" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0
    with Terminal("shell", *at, environment=environment) as terminal:
        terminal.until("appliance>")
        terminal.type("\x04")
        assert terminal.wait() == 0


def test_without_a_terminal_or_an_appliance_there_is_no_shell(appliance: Server) -> None:
    said = run("shell", "--connect", appliance.native)
    assert said.status == 2 and "needs a terminal" in said.err
    with Terminal("shell", "--data", "/nowhere") as terminal:
        assert terminal.wait() == 66


def test_words_are_completed_from_the_tree_and_the_appliance(appliance: Server, topic: str) -> None:
    at = f"--connect {appliance.native}"
    succeeding("topics", "create", f"{topic}-x", *at.split())

    def words(line: str) -> set[str]:
        return {value for value, _, _ in completions(tree(), line)}

    assert words("topi") == {"topics"}
    assert words(f"topics describe {at} {topic}") == {f"{topic}-x"}
    assert words(f"consume {at} {topic}") == {f"{topic}-x"}
    assert f"{topic}-x" in words(f"groups reset g {at} --topic ")
    assert words("topics create x --setting retention.b") == {"retention.bytes="}
    assert words("topics alter x --unset retention.m") == {"retention.ms"}
    assert words("topics describe --connect 127.0.0.1:1 x") == set(), "nobody answers: silent"
    assert words("topics describe 'open") == set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_live_names(appliance: Server, topic: str, shell: str) -> None:
    """What the completion script of each shell calls."""
    succeeding("topics", "create", f"{topic}-y", "--connect", appliance.native)
    line = f"appliance topics describe {topic}"
    asking = {"_APPLIANCE_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": line}
    asking |= {"COMP_WORDS": line, "COMP_CWORD": "3", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    environment = os.environ | asking | {"APPLIANCE_CONNECT": appliance.native}
    program = "from appliance.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert f"{topic}-y" in done.stdout, done


def test_nobody_waits_for_an_appliance_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: Tab is answered in a second.  Method: one that accepts and says nothing, with each step's own limit."""
    monkeypatch.setattr("appliance.client.cluster_client.Cluster.__init__", patient(Cluster.__init__))
    monkeypatch.setattr(live_names, "ANSWER_S", 0.2)
    app = tree()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        line = f"topics describe --connect 127.0.0.1:{silent.getsockname()[1]} "
        begun_s = time.monotonic()
        assert list(completions(app, line)) == []
        assert time.monotonic() - begun_s < 5.0


def patient(init: Callable[..., None]) -> Callable[..., None]:
    """Lets each step take much longer than all together may."""

    def made(self: Cluster, listener: str, **options: Any) -> None:
        init(self, listener, **options | {"connect_timeout_ms": 10_000, "request_timeout_ms": 10_000})

    return made


def test_a_name_that_could_act_is_not_offered() -> None:
    for name in ("a b", "x;reboot", "$(x)", "\x1b[2J", "`x`", "a'b", ""):
        assert not OFFERED.fullmatch(name)
    assert OFFERED.fullmatch("web-1.access_log")
