"""appliance.cli: every command teaches, every fault ends with what to do and a documented exit status."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

from appliance import cli, errors
from appliance.cli import faults, starting
from appliance.cli.command_tree import MODULES, tree
from appliance.config import KEYS, load

from ..support.command_line import own_log_handlers

PAGE = (Path(__file__).parents[2] / "systemd" / "README.md").read_text()


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Run a command in this process; its exit status."""
    monkeypatch.setattr(sys, "argv", ["appliance", *words])
    with own_log_handlers(), pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def commands(command: Any, words: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    inner = getattr(command, "commands", None)
    if not inner:
        return [(words, command)]
    return [row for name, child in inner.items() for row in commands(child, (*words, name))]


COMMANDS = commands(get_command(tree()))


def test_the_forms_that_scripts_rely_on_are_there() -> None:
    assert {" ".join(words) for words, _ in COMMANDS} >= {
        *("start", "status", "produce", "consume", "demo"),
        *("topics create", "topics list", "topics describe", "topics alter", "topics delete"),
        *("groups list", "groups describe", "log dump", "log verify", "log repair", "config show", "config check"),
    }


@pytest.mark.parametrize("words, command", COMMANDS, ids=lambda value: value if isinstance(value, str) else "")
def test_help_teaches_with_examples(words: tuple[str, ...], command: Any) -> None:
    assert "Example" in command.help and "appliance " + " ".join(words) in command.help, words
    for parameter in command.params:
        assert getattr(parameter, "help", None) or parameter.name == "help", f"{words}: {parameter.name}"


def test_json_is_everywhere() -> None:
    """Except where there is nothing to print, or where a person or a file gets it."""
    without = {words for words, command in COMMANDS if not any("--json" in each.opts for each in command.params)}
    assert without == {
        ("start",),
        ("shell",),
        ("pipeline", "example"),
        ("groups", "export"),
    }


@pytest.mark.parametrize("words", [(), ("topics",), ("start",), ("consume",)])
def test_help_is_drawn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert run(monkeypatch, *words, "--help") == 0
    said = capsys.readouterr().out
    assert "Usage: appliance" in said
    assert words or all(str(status) in said for status in faults.EXIT_STATUSES)


def test_exit_statuses_are_documented() -> None:
    """Goal: help, systemd/README.md and errors agree.  Method: compare all three."""
    documented = {int(number): text for number, text in re.findall(r"^\| (\d+) \| (.+) \|$", PAGE, re.MULTILINE)}
    assert documented == faults.EXIT_STATUSES
    kinds = [value for value in vars(errors).values() if isinstance(value, type)]
    assert {kind.exit_status for kind in kinds if issubclass(kind, errors.ApplianceError)} <= set(documented)


def test_the_table_of_commands_has_all_of_them() -> None:
    """Words after a name in the same cell are of the same group: `appliance log dump`, `verify`."""
    table = PAGE.partition("| commands | do |\n|---|---|\n")[2].partition("\n\n")[0]
    listed = set()
    for row in table.splitlines():
        group: tuple[str, ...] = ()
        for name in re.findall(r"`([^`]+)`", row.split("|")[1]):
            words = [word for word in name.split() if not word.isupper() and not word[0].isupper()]
            if words[0] == "appliance":
                group, words = tuple(words[1:-1]), words[-1:]
            listed.add((*group, *words))
    assert listed == {words for words, _ in COMMANDS}


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--version") == 0
    assert re.fullmatch(r"appliance \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_config_show_prints_a_file_that_means_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Goal: every key documented with unit and default.  Method: read the output as a configuration."""
    changes = ["network.workers=3", "kafka.advertised=a:1", "topics.auto_create=false", "topics.retention.ms=-1"]
    words = [word for change in changes for word in ("--set", change)]
    assert run(monkeypatch, "config", "show", *words) == 0
    text = capsys.readouterr().out
    path = tmp_path / "appliance.toml"
    path.write_text(text)
    assert load(path) == load(None, changes)
    assert "default 604800000" in text
    assert all(key.about in text for key in KEYS.values())
    assert "0 = one per core, at most 64 (0 to 64)" in text and "(0, 1, 3)" in text and "(at least 1000)" in text
    assert set(tomllib.loads(text)) == {key.table for key in KEYS.values()}


def test_config_show_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "config", "show", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["key"] for row in rows] == list(KEYS)
    assert [(row["least"], row["most"]) for row in rows] == [(key.least, key.most) for key in KEYS.values()]


def test_config_check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("[network]\nworkers = 1\n")
    assert run(monkeypatch, "config", "check", "--config", str(path)) == 0
    assert "1 of" in capsys.readouterr().out
    path.write_text("[network]\nworker = 1\nidle_ms = 'x'\n")
    assert run(monkeypatch, "config", "check", "--config", str(path)) == 78
    said = capsys.readouterr().err
    assert "did you mean 'network.workers'" in said and "network.idle_ms = 'x'" in said


@pytest.mark.parametrize(
    "words, status, says",
    [
        (["status", "--data", "/nonexistent"], 66, "no such directory"),
        (["topics", "list", "--connect", "127.0.0.1:1"], 75, "appliance start"),
        (["topics", "list", "--connect", "nonsense"], 2, "host:port"),
        (["topics", "list", "--connect", "a:1", "--data", "/tmp"], 2, "give one of them"),
        (["topics", "create", "x", "--setting", "oops", "--connect", "127.0.0.1:1"], 2, "KEY=VALUE"),
        (["topics", "alter", "x", "--connect", "127.0.0.1:1"], 2, "nothing to change"),
        (["topics", "create"], 2, "Missing argument"),
        (["consume", "x", "--from", "whenever", "--connect", "127.0.0.1:1"], 2, "earliest, latest"),
        (["produce", "x", "/nonexistent", "--connect", "127.0.0.1:1"], 66, "/nonexistent: no such file"),
        (["produce", "x", "/etc/passwd", "--connect", "127.0.0.1:1"], 75, "appliance start"),
        (["produce", "x", "--acks", "2", "--connect", "127.0.0.1:1"], 2, "--acks"),
        (["start"], 2, "--data"),
        (["start", "--data", "/tmp/x", "--set", "network.wrkers=1"], 78, "did you mean 'network.workers'"),
        (["start", "--data", "/tmp/x", "--config", "/nonexistent.toml"], 78, "/nonexistent.toml"),
        (["start", "--data", "/etc/passwd"], 66, "is no directory"),
        (["bogus"], 2, "No such command"),
    ],
)
def test_faults_end_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], status: int, says: str
) -> None:
    assert run(monkeypatch, *words) == status
    streams = capsys.readouterr()
    assert says in streams.err and streams.out == ""
    assert "Traceback" not in streams.err


@pytest.mark.parametrize(
    "error, status",
    [(PermissionError(13, "no", "/x"), 77), (FileNotFoundError(2, "no", "/x"), 66), (OSError(5, "io"), 74)],
)
def test_faults_of_the_system(capsys: pytest.CaptureFixture[str], error: OSError, status: int) -> None:
    assert faults.report(error) == status
    assert capsys.readouterr().err.startswith("appliance: ")


def test_a_plain_start_imports_neither_typer_nor_the_client() -> None:
    """Goal: start to serving within 0.5 s.  Method: see what a wrong start has imported."""
    script = (
        "import sys; sys.argv = ['appliance', 'start', '--data', '/tmp/x', '--set', 'a=b']\n"
        "from appliance.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code, [name for name in sys.modules"
        " if name.split('.')[0] in ('typer', 'pydantic', 'rich', 'kazoo', 'kafka')"
        " or name.startswith(('appliance.client', 'appliance.cli.command_tree'))])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "78 []" and "unknown key 'a'" in done.stderr


START_WORDS = st.sampled_from(["--data", "--config", "--set", "--help", "/d", "a=b", "-", ""])
START_PAIRS = st.tuples(st.sampled_from(["--data", "--config", "--set"]), st.sampled_from(["/d", "a=b", "-", ""]))


@given(st.lists(START_WORDS, max_size=6) | st.lists(START_PAIRS, max_size=4).map(lambda pairs: [*sum(pairs, ())]))
def test_a_start_is_parsed_alike_with_typer_and_without(words: list[str]) -> None:
    found = starting.plain_options(words)
    if found is None:
        return
    context = get_command(tree("start")).commands["start"].make_context("start", list(words))  # type: ignore[attr-defined]
    data, config, settings = (context.params[name] for name in ("data", "config", "settings"))
    assert found == starting.StartOptions(data, config, [*settings])  # typer has () for none


def test_each_command_is_found_in_its_module() -> None:
    whole = list(get_command(tree()).commands)  # type: ignore[attr-defined]
    assert sorted(whole) == sorted(itertools.chain(*MODULES.values()))
    for commands in MODULES.values():
        assert tuple(get_command(tree(commands[0])).commands) == commands  # type: ignore[attr-defined]
    assert list(get_command(tree("strat")).commands) == whole  # type: ignore[attr-defined]
