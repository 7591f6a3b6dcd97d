"""No argument of any command ends it with a traceback, whatever its bytes are.

Method: for every argument and option of every command, a command line that is right but for that one value, which is
each of ``ARGUMENTS`` in turn: with ``LONG=1``, else every fourth one, beginning at another one for each argument.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from typer.main import get_command

from appliance.cli.command_tree import tree
from appliance.cli.faults import EXIT_STATUSES

from ..support.command_line import Said, run, succeeding
from ..support.long import LONG
from ..support.odd_values import ARGUMENTS
from ..support.server import Server


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A context that one command makes is none of the next test's."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("home")))


class Right(NamedTuple):
    """What makes a command line of a command right: its arguments by name, and options."""

    arguments: Mapping[str, list[str]] = MappingProxyType({})
    options: Mapping[str, str] = MappingProxyType({})


TOPIC = {"name": ["odd"]}
ALL_RIGHT: dict[str, Right] = {
    "start": Right(
        {}, {"--data": "none", "--set": "network.workers=many"}
    ),  # refused: a right one would serve for ever
    "produce": Right({"topic": ["odd"], "files": []}),
    "consume": Right({"topic": ["odd"]}, {"--timeout": "0.05", "--max": "1"}),
    "tail": Right({"topics": ["odd"]}),
    "top": Right({}, {"--count": "1", "--interval": "0.1"}),
    "backup": Right({"target": ["copy"]}),
    "demo": Right({"files": ["nothing"]}),
    "bench": Right({"questions": ["nothing"]}),
    "topics create": Right({"name": ["odd-2"]}),
    "topics describe": Right(TOPIC),
    "topics alter": Right(TOPIC, {"--setting": "retention.ms=7d"}),
    "topics trim": Right(TOPIC, {"--before": "earliest"}),
    "topics delete": Right({"names": ["nothing"]}),
    "groups describe": Right({"group": ["odd"]}),
    "groups reset": Right({"group": ["odd"]}, {"--topic": "odd", "--to": "earliest"}),
    "groups delete": Right({"groups": ["odd"]}),
    "transactions describe": Right({"transactional_id": ["odd"]}),
    "transactions abort": Right({"transactional_id": ["odd"]}),
    "transactions abort-hanging": Right({"name": ["odd-0"]}),
    "users add": Right({"name": ["odd"]}, {"--password-file": "password"}),
    "users password": Right({"name": ["odd"]}, {"--password-file": "password"}),
    "users lock": Right({"names": ["odd"]}),
    "users unlock": Right({"names": ["odd"]}),
    "users kick": Right({"names": ["odd"]}),
    "users expire": Right({"names": ["odd"]}, {"--after": "90d"}),
    "users delete": Right({"names": ["odd"]}),
    "pipeline run": Right({"config": ["none.toml"]}),
    "pipeline status": Right({"config": ["none.toml"]}),
    "pipeline check": Right({"config": ["none.toml"]}),
    "pipeline accept": Right({"config": ["none.toml"]}),
    "pipeline report": Right({"config": ["none.toml"]}),
    "pipeline reparse": Right({"config": ["none.toml"]}),
    "pipeline forget": Right({"config": ["none.toml"]}, {"--where": "odd"}),
    "pipeline expire": Right({"config": ["none.toml"]}, {"--before": "-1d"}),
    "pipeline verify": Right({"config": ["none.toml"]}),
    "pipeline views": Right({"config": ["none.toml"]}),
    "pipeline refresh": Right({"config": ["none.toml"]}),
    "pipeline rebuild": Right({"config": ["none.toml"], "view": ["errors"]}),
    "log dump": Right({"partition": ["odd-0"]}),
    "log verify": Right({"partitions": ["odd-0"]}),
    "log repair": Right({"partitions": ["odd-0"]}),
    "acl add": Right({}, {"--principal": "User:odd", "--operation": "Read", "--topic": "odd"}),
    "acl delete": Right({}, {"--principal": "User:odd"}),
}
"""Those of commands that need any; an option ``--data`` is added to all that have it."""


def commands(group: Any, *words: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *words, name)
        else:
            yield " ".join((*words, name)), command


SHOWS_BYTES = {"consume", "tail", "log dump"}
"""Their output is what messages contain, or what a format asks for."""
COMMANDS = dict(commands(get_command(tree())))


@pytest.fixture
def place(appliance: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of its own, and a topic of one line."""
    monkeypatch.chdir(tmp_path)
    password = tmp_path / "password"
    password.touch(0o600)
    password.write_text("a long password\n")
    if run("topics", "describe", "odd", "--connect", appliance.native).status:
        succeeding("topics", "create", "odd", "--connect", appliance.native)
        succeeding("produce", "odd", "--connect", appliance.native, stdin=b"a line\n")
    return tmp_path


def line(command: str, odd_param: Any, odd: str, data: str) -> list[str]:
    """A command line in which only one value is odd."""
    right = ALL_RIGHT.get(command, Right())
    options = dict(right.options)
    params = COMMANDS[command].params
    names = {name for param in params for name in param.opts}
    if "--data" in names and "--connect" not in odd_param.opts:
        options.setdefault("--data", data)
    words = command.split()
    for param in params:
        if param.param_type_name == "argument":
            words += [odd] if param is odd_param else right.arguments.get(param.name, [])
    if odd_param.param_type_name == "option":
        for name in odd_param.opts:
            options.pop(name, None)
        words += [f"{odd_param.opts[0]}={odd}"]
    if odd_param.name in ("timeout", "count_max", "interval", "watch") and "--connect" in names:
        del options["--data"]  # nobody sees the end of a very long time
        options["--connect"] = "127.0.0.1:1"
    return [*words, *(word for pair in options.items() for word in pair)]


@pytest.mark.parametrize("command", COMMANDS)
def test_odd_values_are_used_or_refused(appliance: Server, place: Path, command: str) -> None:
    step = 1 if LONG else 4
    for number, param in enumerate(COMMANDS[command].params, list(COMMANDS).index(command)):
        if param.param_type_name == "option" and param.is_flag:
            continue
        for name, odd in list(ARGUMENTS.items())[number % step :: step]:
            if (command, param.name, name) == ("top", "count", "the largest of 64 bits"):
                continue  # right, and without an end
            words = line(command, param, odd, str(appliance.data_dir))
            try:
                said = run(*words, stdin=b"x\n")
            except Exception as error:
                raise AssertionError(f"{words}: {name}: {error!r}") from error
            assert_told(words, said)
            if command not in SHOWS_BYTES:
                assert all(each.isprintable() for each in said.out.replace("\t", " ").split("\n")), (words, said.out)


def assert_told(words: list[str], said: Said) -> None:
    assert said.status in EXIT_STATUSES and said.status not in (1, 70), (words, said)
    assert said.status in (0, 74, 75) or said.err, (words, said)
    assert all(each.isprintable() for each in said.err.splitlines()), (words, said.err)


@pytest.mark.parametrize("name", ["APPLIANCE_CONNECT", "APPLIANCE_DATA", "APPLIANCE_USER", "APPLIANCE_CA"])
@pytest.mark.parametrize("odd", ARGUMENTS)
def test_odd_values_of_the_environment_are_refused(place: Path, name: str, odd: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("APPLIANCE_PASSWORD_FILE", "password")
    monkeypatch.setenv(name, ARGUMENTS[odd])
    at = ["--connect", "SASL_SSL://127.0.0.1:1"] if name in ("APPLIANCE_USER", "APPLIANCE_CA") else []
    words = ["topics", "list", *at]
    assert_told(words, run(*words, keep=(name,)))


def test_values_may_be_any_bytes(appliance: Server, topic: str) -> None:
    """Goal: what goes into messages, and what is looked for in them, is what was typed."""
    at = ("--connect", appliance.native)
    succeeding("topics", "create", topic, *at)
    odd = os.fsdecode(b"\xdf")
    succeeding("produce", topic, "--key", f"k{odd}", "--header", f"h={odd}", *at, stdin=b"one \xdf\n")
    succeeding("produce", topic, "--key-separator", odd, *at, stdin=b"k2\xdftwo\n")
    said = run_bytes("tail", topic, "--grep", odd, "--format", f"%k {odd} %h %s\\n", *at)
    assert said == b"k\xdf \xdf h=\xdf one \xdf\n"
    said = run_bytes("consume", topic, "--from", "earliest", "--max", "2", "--key-separator", odd, *at)
    assert sorted(said.splitlines()) == [b"k2\xdftwo", b"k\xdf\xdfone \xdf"]
    succeeding("produce", topic, *at, stdin=b"a=\xdf b=1\n")
    assert run_bytes("tail", topic, "--field", f"a={odd}", *at) == b"a=\xdf b=1\n"


def run_bytes(*words: str) -> bytes:
    return succeeding(*words).out.encode(errors="surrogateescape")


SPELLINGS = [
    ("config set network.workers=4 --config x.toml", "config set network.workers 4 --config x.toml"),
    ("config set --config x.toml network.workers = 4", "config set --config x.toml network.workers 4"),
    ("config show --set network.workers 4", "config show --set network.workers=4"),
    ("start --data box --set network.workers = 4", "start --data box --set network.workers=4"),
    ("topics alter web --setting retention.ms 7d", "topics alter web --setting retention.ms=7d"),
    ("topics create web --setting=retention.ms 7d", "topics create web --setting retention.ms=7d"),
    ("produce --header kind a=b web", ""),
    ("topics restore /backup=web", "topics restore /backup web"),
    ("roles grant reader=alice", "roles grant reader alice"),
    ("config set network.workers --config x.toml", ""),
    ("config set a b c --config x.toml", ""),
]


@pytest.mark.parametrize(("words", "right"), SPELLINGS)
def test_a_key_and_its_value_written_otherwise_are_told_how(words: str, right: str) -> None:
    said = run(*words.split())
    if right:
        assert said.status == 2 and f"write `appliance {right}`" in said.err, said
    else:
        assert said.status in (2, 66, 75) and "write `" not in said.err, said


@pytest.mark.parametrize(
    ("words", "right"),
    [
        ("tail web --from 10m", "tail web --since 10m"),
        ("tail web --from=10m -f", "tail web --since=10m -f"),
        ("consume web --since 2h", "consume web --from 2h"),
        ("offsets web --since 06:00", "offsets web --at 06:00"),
        ("top --once --json", "top --count 1 --json"),
        ("consume web --lines 3", "consume web --max 3"),
    ],
)
def test_an_option_of_another_command_is_told_as_it_is_called_here(words: str, right: str) -> None:
    said = run(*words.split())
    assert said.status == 2 and f"write `appliance {right}`" in said.err, said


def test_each_pair_of_a_key_and_a_value_is_among_the_spellings() -> None:
    """Goal: a new option or command that takes one gets its line above, or is like one there."""
    params = [param for _, command in commands(get_command(tree())) for param in command.params]
    pairs = {name for param in params if "=" in (param.metavar or "") for name in param.opts}
    assert pairs == {"--set", "--setting", "--header", "--field", "--parser"}
