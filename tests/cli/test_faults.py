"""cli.faults: the second line of an error is about its case, and names commands that exist."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import appliance
from appliance.cli import faults
from appliance.errors import (
    ApplianceError,
    BrokerAway,
    CorruptLog,
    DiskFull,
    MessageTooLarge,
    OffsetOutOfRange,
    UnknownGroup,
    UnknownPartition,
    UnknownUser,
    disk_fault,
    not_permitted,
)

from ..support.command_line import run
from ..support.remedies import commands_in, fault_of
from ..support.server import Server
from .test_statuses import alone

PACKAGE = Path(appliance.__file__).parent
SAMPLE = "1"
"""What stands for a value in a text: a name, an offset, a file."""


def texts() -> Iterator[tuple[str, str]]:
    """Module and text of all strings of the package, with SAMPLE in place of what is filled in."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if node in docstrings:
                continue
            if isinstance(node, ast.JoinedStr):
                parts = [str(one.value) if isinstance(one, ast.Constant) else SAMPLE for one in node.values]
                yield path.name, "".join(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield path.name, node.value


def test_commands_in_texts_exist() -> None:
    """A command in backticks, in a message or a remedy, has these options, and all arguments that it needs."""
    count, wrong = 0, []
    for module, text in texts():
        for words in commands_in(text):
            count += 1
            if (fault := fault_of([re.sub(r"^[A-Z]+$", SAMPLE, word) for word in words])) and "..." not in words:
                wrong.append(f"{module}: {fault}")
    assert not wrong and count > 50, "\n".join(wrong)


@pytest.mark.parametrize(
    "error, at, words",
    [
        (UnknownPartition("no topic 'web'"), ("--data", "/a b"), ["topics", "list", "--data", "/a b"]),
        (UnknownGroup("no group"), ("--connect", "h:1"), ["groups", "list", "--connect", "h:1"]),
        (UnknownUser("no user"), (), ["users", "list"]),
        (OffsetOutOfRange("too far", about="web-3"), (), ["topics", "describe", "web"]),
        (DiskFull("no room"), ("--data", "/d"), ["doctor", "--data", "/d"]),
        (BrokerAway("gone"), ("--data", "/d"), ["doctor", "--data", "/d"]),
        (CorruptLog("/d/web-0/0.log", 7, "CRC32C"), None, ["log", "verify", "/d/web-0"]),
    ],
)
def test_the_remedy_is_about_the_case(error: ApplianceError, at: faults.At | None, words: list[str]) -> None:
    first, *rest = commands_in(faults.remedy(error, at))
    assert first == words and not [one for one in (first, *rest) if fault_of(one)]


def test_a_message_that_names_a_command_needs_no_second_line() -> None:
    assert faults.remedy(BrokerAway("gone: `appliance status` says why"), ("--data", "/d")) == ""
    assert faults.remedy(MessageTooLarge("x"), ()) == ""
    assert faults.remedy(DiskFull("no room"), None) == "", "nothing runs that could be asked"


@pytest.mark.parametrize(
    "words, at",
    [
        (["topics", "list", "--data", "/d"], ("--data", "/d")),
        (["topics", "list", "--data=/d"], ("--data", "/d")),
        (["topics", "list", "--connect", "h:1", "--json"], ("--connect", "h:1")),
        (["topics", "list"], ()),
        (["topics", "list", "--data"], ()),
    ],
)
def test_the_appliance_of_a_command_line(monkeypatch: pytest.MonkeyPatch, words: list[str], at: faults.At) -> None:
    monkeypatch.delenv("APPLIANCE_DATA", raising=False)
    monkeypatch.delenv("APPLIANCE_CONNECT", raising=False)
    assert faults.named_in(words) == at
    monkeypatch.setenv("APPLIANCE_DATA", "/env")
    assert faults.named_in(words) == (at or ("--data", "/env"))


def test_what_is_not_there_is_listed_by_the_command_that_is_named(server_with_topic: Server) -> None:
    at = ("--data", str(server_with_topic.data_dir))
    for words in (("topics", "describe", "none"), ("consume", "none"), ("users", "delete", "none")):
        said = run(*words, *at)
        (command,) = commands_in(said.err)
        assert run(*command).status == 0, said
    said = run("consume", "web", "--from", "99999", *at)
    (command,) = commands_in(said.err)
    assert "partition" in run(*command).out, said


@pytest.fixture
def server_with_topic(appliance: Server) -> Server:
    run("topics", "create", "web", "--connect", appliance.native)
    return appliance


# ---- files of others


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to others")
def test_a_file_of_somebody_else_is_no_damage_and_its_remedy_gives_it_back(tmp_path: Path) -> None:
    """Method: root without its right to everything, as the service has none."""
    os.chown(tmp_path, 0, 0)
    data = tmp_path / "data"
    data.mkdir()
    catalog = data / "catalog.json"
    catalog.write_text('{"version": 1, "cluster": "", "topics": {}}')
    os.chown(catalog, 65534, 65534)
    catalog.chmod(0o600)
    start = ("start", "--data", str(data), "--set", "zookeeper.nodes=0", "--set", "native.listen=127.0.0.1:0")
    status, said = alone(*start, "--set", "kafka.listen=127.0.0.1:x", as_other=True)
    assert status == 78, "a wrong configuration comes first"
    status, said = alone(*start, "--set", "kafka.listen=127.0.0.1:0", as_other=True)
    assert status == 77 and f"{catalog}: not permitted to root: it belongs to nobody (mode 0600)" in said, said
    (chown,) = re.findall(r"`(chown [^`]*)`", said)
    subprocess.run(shlex.split(chown), check=True)
    assert catalog.stat().st_uid == 0


def test_whose_file_it_is_and_what_helps(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    text = str(not_permitted(file))
    assert f"`chmod u+rwX {file}`" in text, "it is ours, and closed to us"
    error = disk_fault(PermissionError(13, "no", str(file)), file)
    assert (error.exit_status, error.code) == (77, 56)
