"""The exit statuses that systemd/README.md lists, each from what really leads to it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.cli import faults
from appliance.errors import ApplianceError, ClientBroken
from appliance.processes.supervisor.children import state_of

from ..support.command_line import run, succeeding
from ..support.server import Server, wait_for
from ..support.terminal import Terminal
from .test_cli import COMMANDS

DESPITE_ROOT = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
"""root without the right to read what belongs to others."""


def alone(*words: str, as_other: bool = False) -> tuple[int, str]:
    """In a process of its own: the exit status, and what it says."""
    before = DESPITE_ROOT if as_other and os.geteuid() == 0 else []
    command = [*before, sys.executable, "-m", "appliance", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


class Place:
    """An appliance, and files to go wrong with."""

    def __init__(self, server: Server, path: Path) -> None:
        self.path = path
        self.native, self.kafka = server.native, server.kafka
        self.data = str(server.data_dir)
        self.config = path / "appliance.toml"
        self.config.write_text("[network]\nworkers = 1\n")
        self.locked = path / "locked"
        self.locked.mkdir()
        (self.locked / "appliance.toml").write_text("")
        self.damaged = path / "t-0"
        self.stopped = path / "stopped"
        self.stopped.mkdir()

    def lock(self) -> None:
        self.locked.chmod(0)
        if os.geteuid() == 0:
            os.chown(self.locked, 65534, 65534)

    def damage(self, source: Path) -> None:
        shutil.copytree(source, self.damaged)
        log = next(self.damaged.glob("*.log"))
        content = bytearray(log.read_bytes())
        content[-1] ^= 0xFF
        log.write_bytes(content)


@pytest.fixture(scope="module")
def place(appliance: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(appliance, tmp_path_factory.mktemp("statuses"))
    succeeding("topics", "create", "statuses", "--connect", appliance.native)
    succeeding("produce", "statuses", "--connect", appliance.native, stdin=b"a\nb\n")
    made.damage(appliance.data_dir / "statuses-0")
    made.lock()
    yield made
    made.locked.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(made.locked, 0, 0)


def reported(error: ApplianceError) -> int:
    return faults.report(error)


def ended_by(place: Place, number: int) -> int:
    """The status of a command that a signal ends, or the end of its pipe."""
    consuming = subprocess.Popen(
        [sys.executable, "-m", "appliance", "consume", "statuses", "--from", "earliest", "--connect", place.native],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert consuming.stdout is not None and consuming.stderr is not None
    assert consuming.stdout.readline() == b"a\n"
    if number == signal.SIGPIPE:
        consuming.stdout.close()
        succeeding("produce", "statuses", "--connect", place.native, stdin=b"c\n")
    else:
        consuming.send_signal(number)
    said = consuming.stderr.read()
    status = consuming.wait(60)
    assert b"Traceback" not in said, said
    consuming.stdout.close()
    consuming.stderr.close()
    return status


def answered(place: Place, answer: str) -> int:
    """The status of a deletion that asks, and gets this answer."""
    with Terminal("topics", "delete", "statuses", "--connect", place.native) as terminal:
        terminal.until("[y/N]")
        wait_for(lambda: state_of(terminal.pid) == "S", "it waits for the answer")
        terminal.type(answer)
        return terminal.wait()


def into_closed_pipe(*words: str) -> int:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        return subprocess.run([sys.executable, "-m", "appliance", *words], stdout=pipe, timeout=60).returncode


def taken(place: Place) -> int:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        listening = ("--set", f"native.listen={address}", "--set", "kafka.listen=127.0.0.1:0")
        status, said = alone("start", "--data", str(place.path / "taken"), *listening, "--set", "zookeeper.nodes=0")
    assert f"native.listen = {address}" in said and f"process {os.getpid()} (" in said, said
    return status


def tls_keys(place: Place, key: str) -> list[str]:
    return ["--set", f"tls.certificate={place.config}", "--set", f"tls.key={place.path / key}"]


Way = Callable[[Place], int]
WAYS: dict[int, dict[str, Way]] = {
    0: {"a right configuration": lambda p: run("config", "check", "--config", str(p.config)).status},
    1: {
        "anything else": lambda p: reported(ApplianceError("anything else")),
        "an answer that is no": lambda p: answered(p, "n\n"),
    },
    2: {
        "an unknown option": lambda p: run("status", "--what").status,
        "a question that nobody can answer": lambda p: (
            run("topics", "delete", "statuses", "--connect", p.native).status
        ),
        "a shell without a terminal": lambda p: run("shell", "--connect", p.native).status,
    },
    65: {
        "a bad name": lambda p: run("topics", "create", "a b", "--connect", p.native).status,
        "a line that is no message": lambda p: (
            run("produce", "statuses", "--input", "json", "--connect", p.native, stdin=b"{").status
        ),
    },
    66: {
        "no such topic": lambda p: run("topics", "describe", "nowhere", "--connect", p.native).status,
        "no such data directory": lambda p: run("status", "--data", str(p.path / "nowhere")).status,
        "no such data directory, for its log": lambda p: run("log", "verify", "--data", str(p.path / "no")).status,
        "a folder that is no partition": lambda p: run("log", "verify", str(p.path)).status,
        "a folder that is no data directory": lambda p: run("log", "verify", "--data", str(p.path)).status,
        "no partition to repair": lambda p: run("log", "repair", str(p.path)).status,
        "a file as data directory": lambda p: run("start", "--data", str(p.config)).status,
        "no topic that fits": lambda p: run("tail", "nowhere-*", "--connect", p.native).status,
        "no such data directory, for the doctor": lambda p: run("doctor", "--data", str(p.path / "no")).status,
        "no such file": lambda p: run("produce", "statuses", "/nowhere", "--connect", p.native).status,
        "no such password file": lambda p: (
            run("users", "add", "u", "--password-file", "/nowhere", "--connect", p.native).status
        ),
        "no such pipeline": lambda p: run("log", "dump", "/nowhere").status,
    },
    70: {"a bug": lambda p: reported(ClientBroken("a bug"))},
    74: {"a damaged log": lambda p: run("log", "verify", str(p.damaged)).status},
    75: {
        "not running, says the doctor": lambda p: run("doctor", "--data", str(p.stopped)).status,
        "not running": lambda p: run("topics", "list", "--connect", "127.0.0.1:1").status,
        "already running": lambda p: alone("start", "--data", p.data)[0],
        "an address that is taken": taken,
    },
    76: {
        "the Kafka listener": lambda p: run("topics", "list", "--connect", p.kafka).status,
        "the Kafka listener, to produce": lambda p: run("produce", "t", "--connect", p.kafka).status,
        "the Kafka listener, to consume": lambda p: run("consume", "t", "--connect", p.kafka).status,
    },
    77: {
        "somebody else's directory": lambda p: alone("start", "--data", str(p.locked / "data"), as_other=True)[0],
        "somebody else's directory itself": lambda p: alone("start", "--data", str(p.locked), as_other=True)[0],
        "somebody else's state": lambda p: alone("status", "--data", str(p.locked), as_other=True)[0],
        "somebody else's file": lambda p: alone(
            "produce", "t", str(p.locked / "x"), "--connect", p.native, as_other=True
        )[0],
        "somebody else's password": lambda p: alone(
            "users", "add", "u", "--password-file", str(p.locked / "x"), "--connect", p.native, as_other=True
        )[0],
    },
    78: {
        "a wrong key": lambda p: run("start", "--data", str(p.path / "x"), "--set", "network.worker=1").status,
        "a host without Java": lambda p: run("check", "--set", "zookeeper.java=/nowhere").status,
        "no such configuration": lambda p: run("config", "check", "--config", "/nowhere.toml").status,
        "a password file that others can read": lambda p: (
            run("users", "add", "u", "--password-file", str(p.config), "--connect", p.native).status
        ),
        "no such key of a listener with TLS": lambda p: (
            run("config", "check", *tls_keys(p, "nowhere.key"), "--set", "kafka.listen=SSL://127.0.0.1:0").status
        ),
        "a configuration that cannot be read": lambda p: alone(
            "config", "check", "--config", str(p.locked / "appliance.toml"), as_other=True
        )[0],
    },
    129: {"SIGHUP": lambda p: ended_by(p, signal.SIGHUP)},
    130: {"SIGINT": lambda p: ended_by(p, signal.SIGINT), "Ctrl-C as an answer": lambda p: answered(p, "\x03")},
    141: {
        "a closed pipe": lambda p: ended_by(p, signal.SIGPIPE),
        "a pipe closed before the results": lambda p: into_closed_pipe("config", "show"),
    },
    143: {"SIGTERM": lambda p: ended_by(p, signal.SIGTERM)},
}


def test_every_status_has_a_way_to_it() -> None:
    assert WAYS.keys() == faults.EXIT_STATUSES.keys()


@pytest.mark.parametrize("status, way", [(status, way) for status, ways in WAYS.items() for way in ways])
def test_the_table_holds(place: Place, status: int, way: str) -> None:
    assert WAYS[status][way](place) == status


def test_no_path_is_judged_before_the_command_sees_it() -> None:
    """Goal: what may not be read is 77 or 78, not wrong usage.  Method: look at every parameter that is a path."""
    for words, command in COMMANDS:
        for parameter in command.params:
            info: Any = parameter.type_descriptor
            if "Path" in str(info.annotation):
                assert not info.parameter_info.readable, f"{words}: {parameter.name}"


def test_the_unit_starts_again_for_what_passes_and_only_for_that() -> None:
    unit = (Path(__file__).parents[2] / "systemd" / "appliance.service").read_text()
    assert "RestartPreventExitStatus=77 78\n" in unit and "StartLimitIntervalSec=0\n" in unit


def test_kafkas_port_is_named_as_such(place: Place) -> None:
    said = run("topics", "list", "--connect", place.kafka)
    assert place.kafka in said.err and "native.listen" in said.err and "is an appliance running" not in said.err
