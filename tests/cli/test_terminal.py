"""What others have written never acts on a terminal: every command, through a pseudo-terminal, shows it as escapes.

The table of cases is compared with the commands that there are, so that a new command without a case fails.
"""

from __future__ import annotations

import ast
import json
import os
import pty
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance import cli
from appliance.client import GroupConsumer, Producer

from ..support.command_line import succeeding
from ..support.server import Server
from .test_cli import COMMANDS, run
from .test_output import acting

HOSTILE = (
    "x\x1b]0;title\x07\x1b[2J\x1b[1;31m\u202egnp.\u200b\x9b31m\x85\u2028\x7f\x08\rz\u0301" + "\u0301" * 9 + "\u2066"
)
TOPIC = "web"
CLEAR = "\x1b[H\x1b[2J"
RULE = ("--principal", "User:x", "--operation", "Read", "--group", HOSTILE)


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A context that one command makes is none of the next test's."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("home")))


class Room:
    """An appliance with a hostile group, member, rule and messages, and files with a hostile name and content."""

    def __init__(self, server: Server, files: Path) -> None:
        self.at = ("--connect", server.native)
        self.server = server
        self.data = files / HOSTILE
        self.partition = self.data / f"{TOPIC}-0"
        self.config = files / f"{HOSTILE}.toml"
        self.config.write_text(f"[network]\n{json.dumps(HOSTILE)} = 1\n")
        self.pipeline = files / f"{HOSTILE}-pipeline.toml"
        self.pipeline.write_text(f"[pipeline]\nname = {json.dumps(HOSTILE)}\n{json.dumps(HOSTILE)} = 1\n")
        self.sound = files / f"{HOSTILE}-sound.toml"
        self.sound.write_text(
            f'[pipeline]\nname = "p"\nbootstrap = "{server.native}"\n[[source]]\ntopics = ["{TOPIC}"]\n'
            f'parsers = ["plain"]\n[output]\npath = {json.dumps(HOSTILE)}\n'
        )
        self.positions = files / f"{HOSTILE}.json"
        position = {"topic": "t", "id": 32 * "0", "partition": 0, "offset": 1}
        group = {"group": HOSTILE, "offsets": [position]}
        self.positions.write_text(json.dumps({"format": "appliance group offsets", "version": 1, "groups": [group]}))
        self.password = files / f"{HOSTILE}.password"
        self.password.write_text("long secret\n")
        self.password.chmod(0o600)

    def copy(self) -> None:
        """The stopped likeness of the data directory, its log damaged."""
        self.data.mkdir()
        for path in self.server.data_dir.iterdir():
            if path.is_file() and path.suffix == ".json" and path.name != "state.json":
                shutil.copy(path, self.data)
        shutil.copytree(self.server.data_dir / self.partition.name, self.partition)
        log = next(self.partition.glob("*.log"))
        content = bytearray(log.read_bytes())
        content[-30] ^= 0xFF
        log.write_bytes(content)


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    from appliance.zookeeper import paths

    rights = {"security.authorizer": "acl", "security.super_users": "User:ANONYMOUS"}
    with Server(tmp_path_factory.mktemp("terminal") / "data", **{"zookeeper.nodes": 1}, **rights) as server:
        server.wait_for_zookeeper()
        made = Room(server, tmp_path_factory.mktemp("files"))
        succeeding("topics", "create", TOPIC, *made.at)
        text = HOSTILE.encode()
        with Producer(server.native) as producer:
            for value in (text, b"\xff\x1b[2J\x9b"):
                producer.send(TOPIC, value, key=text, headers=[(HOSTILE, text)], partition=0).result(60)
            producer.send(TOPIC, b"last", partition=0).result(60)
        made.copy()
        succeeding("users", "add", "known", "--password-file", str(made.password), *made.at)
        succeeding("acl", "add", *RULE, *made.at)
        zookeeper = server.zookeeper_client()
        zookeeper.start(30)
        member = {"protocol": "kafka", "client": HOSTILE, "host": HOSTILE, "topics": {TOPIC: 1}}
        zookeeper.create(paths.consumer("shown", HOSTILE), json.dumps(member).encode(), ephemeral=True, makepath=True)
        with GroupConsumer(server.native, HOSTILE) as consumer:
            (stream,) = consumer.create_message_streams({TOPIC: 1})[TOPIC]
            next(stream.messages(60))
            yield made
        zookeeper.stop()
        zookeeper.close()


READ = ("--from", "earliest", "--max", "2")
CASES: dict[str, list[list[str]]] = {
    "start": [["--data", "{data}/x", "--set", f"{HOSTILE}=1"], ["--data", "{data}/x", "--config", "{config}"]],
    "status": [["--data", "{data}"], ["--data", "{data}", "--json"], ["--data", f"/nowhere/{HOSTILE}"]],
    "contexts list": [["--json"]],
    "contexts add": [[HOSTILE, "--connect", "a:1"], ["a", "--connect", HOSTILE]],
    "contexts use": [[HOSTILE]],
    "contexts remove": [[HOSTILE]],
    "clients": [["{at}"], ["--json", "{at}"], [HOSTILE, "{at}"], ["--data", f"/nowhere/{HOSTILE}"]],
    "health": [["--data", "{data}"], ["--data", "{data}", "--json"], ["--data", f"/nowhere/{HOSTILE}"]],
    "reload": [["--data", f"/nowhere/{HOSTILE}"]],
    "accept-clock": [["{at}"], ["--connect", HOSTILE]],
    "produce": [
        [HOSTILE, "{at}"],
        [TOPIC, f"/nowhere/{HOSTILE}", "{at}"],
        [TOPIC, "--header", HOSTILE, "{at}"],
        [TOPIC, "{config}", "--input", "json", "{at}"],
    ],
    "consume": [
        [TOPIC, *READ, "{at}"],
        [TOPIC, *READ, "--key-separator", ":", "{at}"],
        [TOPIC, *READ, "--json", "{at}"],
        [HOSTILE, "{at}"],
        [TOPIC, "--connect", HOSTILE],
        [TOPIC, "--from", HOSTILE, "{at}"],
    ],
    "ship": [[f"/nowhere/{HOSTILE}", "--topic", TOPIC, "{at}"]],
    "inputs list": [["--data", "{data}"], ["--data", f"/nowhere/{HOSTILE}"]],
    "inputs check": [["--config", "{config}"], ["--set", f"{HOSTILE}=1"]],
    "inputs add": [
        [HOSTILE, "x", "--topic", "t", "--config", "{config}"],
        ["files", HOSTILE, "--topic", HOSTILE, "--config", "{config}"],
    ],
    "inputs rights": [["--config", "{config}", "--data", "{data}"]],
    "inputs ledger": [["{at}"], [HOSTILE, "{at}"]],
    "inputs find": [[HOSTILE, "--line", "1", "{at}"]],
    "backup": [["{data}-backup", "--data", "{data}"], [f"/nowhere/{HOSTILE}", "--data", "{data}"], [HOSTILE]],
    "bench": [[HOSTILE]],
    "doctor": [["--data", "{data}"], ["{at}"], ["--json", "{at}"], ["--data", f"/nowhere/{HOSTILE}"]],
    "top": [["--count", "1", "--interval", "0.1", "{at}"], ["--data", f"/nowhere/{HOSTILE}"]],
    "report": [["{data}-report", "--data", "{data}"], [f"/nowhere/{HOSTILE}", "--data", "{data}"], [HOSTILE]],
    "shell": [["--connect", HOSTILE], ["{at}"]],
    "check": [["--data", f"/nowhere/{HOSTILE}", "--set", "zookeeper.nodes=0"], ["--set", f"{HOSTILE}=1"]],
    "tail": [
        [TOPIC, "{at}"],
        [TOPIC, "--headers", "--json", "{at}"],
        [TOPIC, "--headers", "--format", f"%t %k %s %h{HOSTILE.replace('%', '')}\\n", "{at}"],
        [HOSTILE, "{at}"],
        [TOPIC, "--grep", f"({HOSTILE}", "{at}"],
        [TOPIC, "--field", HOSTILE, "{at}"],
        [TOPIC, "--since", HOSTILE, "{at}"],
        [TOPIC, "--format", f"%{HOSTILE}", "{at}"],
    ],
    "demo": [[f"/nowhere/{HOSTILE}"]],
    "topics create": [[HOSTILE, "{at}"], ["t", "--setting", f"{HOSTILE}=1", "{at}"]],
    "topics list": [["{at}"]],
    "topics describe": [[HOSTILE, "{at}"]],
    "topics alter": [[HOSTILE, "--partitions", "2", "{at}"], [TOPIC, "--setting", f"retention.ms={HOSTILE}", "{at}"]],
    "topics trim": [[HOSTILE, "--before", "latest", "{at}"], [TOPIC, "--before", HOSTILE, "{at}"]],
    "topics delete": [[HOSTILE, "{at}"], [HOSTILE, "--yes", "{at}"]],
    "topics trash": [["{at}"], ["--json", "{at}"]],
    "topics undelete": [[HOSTILE, "{at}"], ["t", "--as", HOSTILE, "{at}"]],
    "topics restore": [["{data}", HOSTILE, "{at}"], [f"/nowhere/{HOSTILE}", TOPIC, "--as", "new", "{at}"]],
    "groups list": [["{at}"], ["--json", "{at}"]],
    "groups describe": [[HOSTILE, "{at}"], [HOSTILE, "--json", "{at}"], ["shown", "{at}"], [HOSTILE * 2, "{at}"]],
    "groups alter": [
        [HOSTILE, "--setting", "consumer.session.timeout.ms=60000", "{at}"],
        [HOSTILE, "--unset", HOSTILE, "--setting", f"{HOSTILE}=1", "--json", "{at}"],
    ],
    "groups reset": [[HOSTILE, "--topic", TOPIC, "--to", "earliest", "{at}"]],
    "transactions list": [["{at}"], ["--open", "--json", "{at}"], ["--connect", HOSTILE]],
    "transactions describe": [[HOSTILE, "{at}"], [HOSTILE, "--json", "{at}"], ["shown", "{at}"]],
    "transactions abort-hanging": [
        [HOSTILE, "--yes", "{at}"],
        [f"{HOSTILE}-0", "--yes", "{at}"],
        ["web-0", "--dry-run", "--json", "{at}"],
    ],
    "transactions abort": [["shown", "--dry-run", "{at}"], [HOSTILE, "--yes", "--json", "{at}"]],
    "groups delete": [[HOSTILE, "--dry-run", "{at}"], [HOSTILE * 2, "--yes", "{at}"]],
    "groups export": [["{at}"], [HOSTILE, "{at}"]],
    "groups import": [["{config}", "{at}"], [f"/nowhere/{HOSTILE}", "{at}"], ["{positions}", "--yes", "{at}"]],
    "offsets": [[TOPIC, "{at}"], [HOSTILE, "{at}"], [TOPIC, "--at", HOSTILE, "{at}"]],
    "users add": [
        [HOSTILE, "--password-file", "{password}", "{at}"],
        ["u", "--password-file", f"/nowhere/{HOSTILE}", "{at}"],
        ["u", "--password-file", "{config}", "{at}"],
    ],
    "users list": [["{at}"], ["--json", "{at}"]],
    "users password": [
        [HOSTILE, "--password-file", "{password}", "{at}"],
        ["known", "--password-file", f"/nowhere/{HOSTILE}", "{at}"],
    ],
    "users lock": [[HOSTILE, "{at}"], ["known", "--json", "{at}"]],
    "users unlock": [["known", "{at}"], [HOSTILE, "--without-password", "{at}"]],
    "users kick": [[HOSTILE, "--without-password", "{at}"]],
    "users expire": [["known", "--after", HOSTILE, "{at}"], ["known", "--after", "90d", "{at}"]],
    "users delete": [[HOSTILE, "{at}"]],
    "roles list": [["{at}"], ["--json", "{at}"]],
    "roles create": [["readers", "{at}"], [HOSTILE, "{at}"]],
    "roles grant": [["readers", "known", "{at}"], ["readers", HOSTILE, "--without-password", "{at}"]],
    "roles revoke": [["readers", HOSTILE, "{at}"], [HOSTILE, "known", "{at}"]],
    "roles delete": [["readers", "--dry-run", "{at}"], ["readers", "--yes", "--json", "{at}"]],
    "acl add": [
        [*RULE, "{at}"],
        [*RULE, "--json", "{at}"],
        [*RULE, "--host", HOSTILE, "{at}"],
        ["--principal", HOSTILE, "--operation", HOSTILE, "--topic", HOSTILE, "{at}"],
    ],
    "acl list": [["{at}"], ["--json", "{at}"], ["--group", HOSTILE, "{at}"]],
    "acl delete": [
        [*RULE, "{at}"],
        [*RULE, "--dry-run", "{at}"],
        ["--operation", HOSTILE, "--yes", "{at}"],
        [*RULE, "--yes", "{at}"],
    ],
    "quotas list": [["{at}"], ["--json", "{at}"], [HOSTILE, "{at}"]],
    "quotas set": [
        ["--user", HOSTILE, "--requests", "5", "{at}"],
        ["--client-id", HOSTILE, "--in", HOSTILE, "{at}"],
        ["--client-id", HOSTILE, "--in", "1MiB", "--json", "{at}"],
    ],
    "quotas delete": [
        ["--client-id", HOSTILE, "--dry-run", "{at}"],
        ["--client-id", HOSTILE, "--yes", "{at}"],
        ["--user", HOSTILE, "{at}"],
    ],
    "sql": [
        [f"select * from {TOPIC}", "{at}"],
        [f"select * from {TOPIC}", "--json", "{at}"],
        [f"select * from {TOPIC}", "--format", "csv", "{at}"],
        [f'select "{HOSTILE}" from {TOPIC}', "{at}"],
        [f'select 1 as "{HOSTILE}"', "{at}"],
        ["select 1", "--parser", HOSTILE, "{at}"],
        ["select 1", "--memory", HOSTILE, "{at}"],
    ],
    "log dump": [["{partition}"], ["{partition}", "--records"], ["{partition}", "--records", "--json"]],
    "log verify": [["{partition}"], ["{partition}", "--json"], [f"/nowhere/{HOSTILE}"]],
    "log repair": [[f"/nowhere/{HOSTILE}"], ["{partition}"]],
    "config set": [
        ["log.level", HOSTILE, "--config", "{config}"],
        [HOSTILE, "1", "--config", f"{{data}}-{'x'}.toml"],
        ["broker.host", HOSTILE, "--config", "{data}-x.toml", "--dry-run"],
    ],
    "config show": [["--config", "{config}"]],
    "config check": [["--config", "{config}"], ["--config", f"/nowhere/{HOSTILE}"]],
    "pipeline run": [["{pipeline}"]],
    "pipeline example": [[]],
    "pipeline status": [["{pipeline}"]],
    "pipeline check": [["{pipeline}"], ["{sound}"], ["{sound}", "--json"], [f"/nowhere/{HOSTILE}"]],
    "pipeline accept": [["{pipeline}"], ["{sound}"], [f"/nowhere/{HOSTILE}"]],
    "pipeline report": [["{pipeline}"]],
    "pipeline reparse": [["{pipeline}"], ["{sound}"], ["{sound}", "--since", HOSTILE]],
    "pipeline backfill": [["{pipeline}"], ["{sound}", "--dry-run"], ["{sound}", "--since", HOSTILE]],
    "pipeline forget": [["{pipeline}", "--where", HOSTILE], ["{sound}", "--where", HOSTILE, "--yes"]],
    "pipeline expire": [["{pipeline}", "--before", "-1d"], ["{sound}", "--before", HOSTILE]],
    "pipeline verify": [["{pipeline}"], ["{sound}"]],
    "pipeline views": [["{pipeline}"], ["{sound}"]],
    "pipeline refresh": [["{pipeline}"], ["{sound}", HOSTILE]],
    "pipeline rebuild": [["{pipeline}", "v"], ["{sound}", HOSTILE], ["{sound}", "v", "--since", HOSTILE]],
}


def test_every_command_has_a_case() -> None:
    assert {" ".join(words) for words, _ in COMMANDS} == CASES.keys()


def on_terminal(monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """All that a command writes to a terminal, whether as a result or not."""
    ours, theirs = pty.openpty()
    seen: list[bytes] = []

    def read() -> None:
        while True:
            try:
                seen.append(os.read(ours, 65536))
            except OSError:  # nobody has the other end any more
                return

    reading = threading.Thread(target=read)
    reading.start()
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal, monkeypatch.context() as patch:
        for stream in ("stdout", "stderr"):
            patch.setattr(sys, stream, terminal)
        patch.setenv("TERM", "dumb")
        patch.setenv("NO_COLOR", "1")
        run(patch, *words)
        terminal.flush()
    reading.join()
    os.close(ours)
    return b"".join(seen).decode()


@pytest.mark.parametrize("command, words", [(name, words) for name, all_ in CASES.items() for words in all_])
def test_nothing_that_others_wrote_acts_on_a_terminal(
    room: Room, monkeypatch: pytest.MonkeyPatch, command: str, words: list[str]
) -> None:
    given: list[str] = []
    for word in words:
        given += room.at if word == "{at}" else [word.format(**vars(room)) if word.startswith("{") else word]
    said = on_terminal(monkeypatch, *command.split(), *given)
    assert said.strip(), "it says something"
    said = said.replace(CLEAR, "") if command == "top" else said
    assert not acting(said), f"{acting(said)!r} in {said!r}"


def test_values_are_raw_where_that_is_asked_for(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    said = on_terminal(monkeypatch, "consume", TOPIC, "--from", "earliest", "--max", "1", "--raw", *room.at)
    assert "\x1b[2J" in said
    piped = succeeding("consume", TOPIC, "--from", "earliest", "--max", "1", *room.at)
    assert piped.out == HOSTILE + "\n"


def test_json_says_the_same_in_a_pipe_and_on_a_terminal(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (("consume", TOPIC, *READ, "--json"), ("groups", "list", "--json")):
        piped = succeeding(*words, *room.at).out
        shown = on_terminal(monkeypatch, *words, *room.at)
        if words[0] == "consume":
            assert [json.loads(line) for line in shown.splitlines()] == [
                json.loads(line) for line in piped.splitlines()
            ]
            assert json.loads(piped.splitlines()[0])["value"] == HOSTILE
        else:
            assert json.loads(shown) == json.loads(piped)
            assert HOSTILE in {row["group"] for row in json.loads(shown)}


def test_only_one_module_of_the_command_line_prints() -> None:
    """Goal: no way past ``safe``.  Method: no other module calls print, or writes to the streams (but for values)."""
    for path in sorted(Path(cli.__file__).parent.rglob("*.py")):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        names = [ast.unparse(call.func) for call in calls]
        if path.name != "output.py":
            assert "print" not in names and "typer.echo" not in names, path.name
            assert path.name == "message_text.py" or not any("stdout" in name and "write" in name for name in names)
