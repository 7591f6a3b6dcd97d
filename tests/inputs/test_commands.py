"""``appliance inputs``: from a file of the host to a line in a topic, and back from the ledger."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from appliance.config import load

from ..support.command_line import run, succeeding
from ..support.places import open_place
from ..support.server import Server, wait_for


def test_files_are_added_to_a_running_appliance_and_found_again(tmp_path: Path) -> None:
    config, log = tmp_path / "appliance.toml", tmp_path / "logs/app.log"
    log.parent.mkdir()
    config.write_text('[log]\nlevel = "info"  # kept\n')
    config.chmod(0o640)
    log.write_bytes(b"one\ntwo\nthree\n")
    with Server(tmp_path / "data", config) as server:
        at = ("--data", str(server.data_dir))
        added = ("inputs", "add", "files", f"{tmp_path}/logs/*.log", "--topic", "disk", "--config", str(config))
        assert "inputs.disk.topic:" in succeeding(*added, "--set", "scan_ms=200", *at).out
        assert config.read_text().startswith('[log]\nlevel = "info"  # kept\n\n[inputs.disk]\n')
        assert config.stat().st_mode & 0o777 == 0o640
        wait_for(lambda: server.state["inputs"]["disk"]["lines"] == 3, "the lines")
        (row,) = succeeding("inputs", "list", "--json", *at).json
        assert (row["state"], row["sources"], row["trouble"]) == ("running", 1, "")
        server.stop()  # the ledger of this minute is published
        server.start()
        assert [row["lines"] for row in succeeding("inputs", "ledger", str(log), "--json", *at).json] == [3]
        (place,) = succeeding("inputs", "find", str(log), "--line", "2", "--json", *at).json
        said = succeeding("consume", "disk", "--from", str(place["offset"]), "--max", "1", *at)
        assert said.out == "two\n"
        missing = run("inputs", "find", str(log), "--line", "4", *at)
        assert missing.status and "has no line 4" in missing.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["files", "logs/*.log", "--topic", "disk"], "must begin with /"),
        (["files", "/logs/*.log", "--topic", "no{x}"], "must be the name of a topic"),
        (["files", "/logs/*.log", "--topic", "disk", "--set", "event_start=("], "must be a pattern of RE2: missing )"),
        (["file", "/logs/*.log", "--topic", "disk"], "must be one of files"),
        (["files", "/logs/*.log", "--topic", "disk", "--set", "scan=1"], "did you mean 'scan_ms'"),
        (["syslog", "udp://127.0.0.1:1", "--topic", "net", "--set", "allow=10.0.0.1/8"], "must be written 10.0.0.0/8"),
        (["syslog", "http://127.0.0.1:1", "--topic", "net"], "must begin with one of udp://"),
        (["files", "--topic", "disk"], "include is missing"),
        (["journal", "ssh.service", "--topic", "host"], "must be such as _SYSTEMD_UNIT=ssh.service"),
        (["journal", "--topic", "host-{app}"], "must be the name of a topic\n"),
        (["journal", "--topic", "host", "--set", "directory=logs"], "must begin with /"),
        (["files", "/logs/*.log", "--topic", "old"], "has an input 'old' already"),
    ],
)
def test_a_wrong_input_is_not_written(tmp_path: Path, words: list[str], told: str) -> None:
    config = tmp_path / "appliance.toml"
    succeeding("inputs", "add", "files", "/var/log/x.log", "--topic", "old", "--config", str(config))
    before = config.read_bytes()
    said = run("inputs", "add", *words, "--config", str(config))
    assert said.status in (64, 65, 78) and told in said.err, said
    assert config.read_bytes() == before and [path.name for path in tmp_path.iterdir()] == [config.name]


def test_what_is_in_the_way_of_inputs_is_named_before_they_begin(tmp_path: Path) -> None:
    config = tmp_path / "appliance.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        succeeding("inputs", "add", "http", address, "--topic", "web", "--config", str(config))
        succeeding("inputs", "add", "files", f"{tmp_path}/*.log", "--topic", "disk", "--config", str(config))
        said = run("inputs", "check", "--config", str(config), "--json")
        assert said.status == 78
        states = {row["input"]: row["state"] for row in said.json}
        assert "the address is in use" in states["web"] and states["disk"] == "good"
    assert run("inputs", "check", "--config", str(config)).status == 0
    assert list(load(config).inputs) == ["web", "disk"]


def test_files_of_a_journal_that_the_service_cannot_read_are_named() -> None:
    with open_place() as tmp_path:
        config, journal, data = tmp_path / "appliance.toml", tmp_path / "journal", tmp_path / "data"
        where = ("--set", f"directory={journal}")
        succeeding("inputs", "add", "journal", "PRIORITY=3", "--topic", "host", *where, "--config", str(config))
        assert "no files of a journal" in run("inputs", "check", "--config", str(config)).out
        (journal / "id").mkdir(parents=True)
        for name in ("system", "user-1000"):
            (journal / "id" / f"{name}.journal").touch(0o600)
        assert "2 files" in succeeding("inputs", "check", "--config", str(config)).out
        if os.geteuid():
            pytest.skip("needs root, to be another user")
        data.mkdir()
        os.chown(data, 65534, 65534)
        os.chown(journal / "id" / "user-1000.journal", 65534, 65534)
        said = run("inputs", "check", "--config", str(config), "--data", str(data))
        assert said.status == 78
        assert "system.journal" in said.out and "systemd-journal" in said.out and "1 files" in said.out


def test_files_are_shipped_once_however_often_the_command_is_called(tmp_path: Path) -> None:
    log, positions = tmp_path / "logs/app.log", tmp_path / "positions"
    log.parent.mkdir()
    with Server(tmp_path / "data") as server:
        to = ("--topic", "app", "--positions", str(positions), "--data", str(server.data_dir), "--json")
        log.write_bytes(b"one\ntwo\nthr")
        assert succeeding("ship", str(log), *to).json == {"lines": 3, "bytes": 11, "messages": 3, "gaps": 0}
        log.rename(f"{log}.1")
        log.write_bytes(b"four\n")
        assert succeeding("ship", f"{log}*", *to).json["lines"] == 1
        assert succeeding("ship", f"{log}*", *to).json["lines"] == 0
        said = succeeding("consume", "app", "--from", "earliest", "--max", "4", "--data", str(server.data_dir))
        assert said.out == "one\ntwo\nthr\nfour\n"
        absent = run("ship", str(tmp_path / "no.log"), *to)
        assert absent.status and "no such file" in absent.err
