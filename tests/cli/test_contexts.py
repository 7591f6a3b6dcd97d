"""``appliance contexts``: which appliance a command is about when it names none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from appliance.cli import contexts

from ..support.command_line import run, succeeding
from ..support.server import Server


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own; what a command puts into the environment is gone after the test."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("APPLIANCE_DATA", "APPLIANCE_CONNECT", contexts.VARIABLE):
        monkeypatch.setenv(name, "")
    return tmp_path


def rows() -> dict[str, tuple[str, str, bool]]:
    listed = succeeding("contexts", "list", "--json").json
    return {row["name"]: (row["data"], row["connect"], row["in_use"]) for row in listed}


def test_the_one_in_use_is_what_commands_are_about(
    appliance: Server, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rows() == {}
    succeeding("contexts", "add", "far", "--connect", appliance.native)
    succeeding("contexts", "add", "near", "--data", str(appliance.data_dir), "--use")
    assert rows() == {"far": ("", appliance.native, False), "near": (str(appliance.data_dir), "", True)}
    succeeding("topics", "create", topic)
    assert succeeding("status", "--json").json["data"] == str(appliance.data_dir)
    succeeding("contexts", "use", "far")
    assert topic in succeeding("topics", "list").out
    succeeding("contexts", "add", "gone", "--data", "/nowhere", "--use")
    assert run("topics", "list").status != 0
    assert topic in succeeding("topics", "list", "--connect", appliance.native).out, "the command line goes before it"
    monkeypatch.setenv(contexts.VARIABLE, "near")
    assert topic in succeeding("topics", "list").out
    assert rows()["near"][2] and not rows()["gone"][2]
    monkeypatch.setenv("APPLIANCE_DATA", "/nowhere")
    kept = (contexts.VARIABLE, "APPLIANCE_DATA")
    assert topic in run("topics", "list", keep=kept).out, "for one command: it goes before what is exported for all"
    monkeypatch.setenv("APPLIANCE_DATA", "")
    monkeypatch.setenv(contexts.VARIABLE, "nobody")
    said = run("topics", "list")
    assert said.status == 78 and "no context 'nobody'" in said.err
    monkeypatch.setenv(contexts.VARIABLE, "")
    succeeding("contexts", "remove", "gone")
    assert set(rows()) == {"far", "near"} and contexts.load().current == ""


def test_what_is_no_context_is_refused(home: Path) -> None:
    for words in (("add", "a/b", "--connect", "h:1"), ("use", "nobody"), ("remove", "nobody")):
        assert run("contexts", *words).status == 78
    for words in (("add", "a"), ("add", "a", "--connect", "h:1", "--data", "d"), ("add", "a", "--connect", "h:x")):
        assert run("contexts", *words).status == 2
    file = home / "appliance" / "contexts.json"
    assert not file.exists()
    file.parent.mkdir()
    for content in (b"{", b'{"version": 2}', b"\xff", json.dumps({"contexts": {"a b": {}}}).encode()):
        file.write_bytes(content)
        said = run("topics", "list")
        assert said.status == 78 and str(file) in said.err and "mend it" in said.err
        assert run("topics", "--help").status == 0
