"""appliance.cli.invocation: errors as JSON with --json, on standard error, and the nearest right name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from appliance.errors import UnknownPartition

from ..support.command_line import run, succeeding
from ..support.server import Server


def error_of(*words: str, stdin: bytes = b"") -> dict[str, Any]:
    """The object that a failing command prints."""
    said = run(*words, "--json", stdin=stdin)
    assert said.out == "", said
    found: dict[str, Any] = json.loads(said.err)["error"]
    assert found["exit_status"] == said.status != 0
    return found


@pytest.mark.parametrize(
    "words, kind, status",
    [
        (("topics", "describe", "nowhere"), "UnknownPartition", 66),
        (("topics", "create", "a b"), "InvalidTopic", 65),
        (("topics", "delete", "nowhere", "--yes"), "UnknownPartition", 66),
        (("topics", "alter", "x"), "UsageError", 2),
        (("topics", "lst"), "UsageError", 2),
        (("tail", "nowhere"), "UnknownPartition", 66),
        (("consume", "nowhere"), "UnknownPartition", 66),
        (("groups", "list"), "GroupsOff", 65),
    ],
)
def test_errors_are_objects(
    appliance: Server, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], kind: str, status: int
) -> None:
    at = () if "lst" in words else ("--connect", appliance.native)
    found = error_of(*words, *at)
    assert found["exit_status"] == status and found["message"]
    assert kind == "GroupsOff" or found["kind"] == kind


def test_other_errors_are_objects_too() -> None:
    assert error_of("status", "--data", "/nowhere")["kind"] == "NoDirectory"
    assert error_of("log", "verify", "/nowhere")["kind"] == "FileNotFoundError"
    assert error_of("config", "check", "--set", "network.worker=1")["exit_status"] == 78
    assert error_of("topics", "list", "--connect", "127.0.0.1:1")["advice"].startswith("start it with")


def test_a_name_behind_two_dashes_is_no_option(appliance: Server) -> None:
    said = run("topics", "describe", "--connect", appliance.native, "--", "--json")
    assert said.status == UnknownPartition.exit_status and said.err.startswith("appliance: ")


def test_the_nearest_name_is_offered(appliance: Server) -> None:
    at = ("--connect", appliance.native)
    succeeding("topics", "create", "access-log", *at)
    for words in (("topics", "describe", "acess-log"), ("consume", "access-logs"), ("produce", "aces-log")):
        assert "did you mean 'access-log'?" in run(*words, *at).err, words
    assert "Did you mean 'topics'" in run("topcs").err
    assert "--partitions" in run("topics", "create", "x", "--partition", "2", *at).err
    assert "did you mean" not in run("topics", "describe", "zzz", *at).err
