"""``appliance inputs``: from a file of the host to a line in a topic, and back from the ledger."""

from __future__ import annotations

import contextlib
import grp
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.config import load
from appliance.errors import OthersDirectory
from appliance.inputs.positions import PositionStore
from appliance.inputs.service_rights import DROP_IN, MARK, SOCKET, apply_units

from ..support.command_line import run, succeeding
from ..support.native_peer import Peer
from ..support.places import open_place
from ..support.server import Server, wait_for

OTHER = 54_321


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
        assert (said.out, place["message"]) == ("two\n", "there")
        for words, told in (
            ([str(log), "--line", "4"], "it has lines up to 3, and is published once a minute"),
            ([f"{log}.1", "--line", "1"], "it has no row of this source"),
            ([str(log), "--line", "2", "--until", "-1h"], "it has no row of this source"),
            ([str(log), "--line", "2", "--since", "7"], "--since 7: must be a time"),
        ):
            missing = run("inputs", "find", *words, *at)
            assert missing.status and told in missing.err
        text = ("inputs", "find", str(log), "--text", "o", "--json", *at)
        assert [(row["line"], row["text"]) for row in succeeding(*text).json] == [(1, "one"), (2, "two")]
        assert succeeding(*text).json[1]["offset"] == place["offset"]
        for words, told in (
            (["--text", "four"], "no line of "),
            (["--text", ""], "must not be empty"),
            (["--text", "o", "--line", "1"], "by --line or by --text"),
            ([], "by --line or by --text"),
        ):
            missing = run("inputs", "find", str(log), *words, *at)
            assert missing.status and told in missing.err.replace("\n", " ")
        find = ("inputs", "find", str(log), "--line", "2", "--json", *at)
        succeeding("topics", "trim", "disk", "--before", "latest", "--yes", *at)
        assert [place["message"] for place in succeeding(*find).json] == ["expired"]
        succeeding("topics", "delete", "disk", "--yes", *at)
        assert [place["message"] for place in succeeding(*find).json] == ["no topic"]
        assert "disk" not in succeeding("topics", "list", *at).out, "a question makes no topic"
        succeeding("topics", "create", "disk", *at)
        assert [place["message"] for place in succeeding(*find).json] == ["another log"]
        succeeding("produce", "disk", str(log), *at)
        assert [place["message"] for place in succeeding(*find).json] == ["another log"]
        missing = run(*text)
        assert missing.status and "not all of its messages are there" in missing.err


def test_an_appliance_that_reads_another_file_is_named(appliance: Server, tmp_path: Path) -> None:
    """It was started without one: what is added would never run."""
    config, at = tmp_path / "appliance.toml", ("--data", str(appliance.data_dir))
    for words in (
        ("inputs", "add", "files", "/var/log/none/*.log", "--topic", "disk"),
        ("config", "set", "topics.retention.ms", "14d"),
    ):
        said = run(*words, "--config", str(config), *at)
        assert said.status and f"start it with --config {config}" in said.err
        assert config.exists()


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
        (["files", "/logs/*.log", "--topic", "x", "--name", "a b"], "'a b', must be up to 31 of a-z"),
        (["syslog", "udp://10.0.0.1", "--topic", "net"], "listen = 'udp://10.0.0.1': must be one address with a port"),
        (["http", "127.0.0.1:99999", "--topic", "web"], "listen = '127.0.0.1:99999': must be one address with a port"),
        (["syslog", "tcp://[::1:5", "--topic", "net"], "listen = 'tcp://[::1:5': must be one address with a port"),
        (["syslog", f"tcp://{'a' * 64}:5", "--topic", "net"], "must have 1 to 63 characters"),
    ],
)
def test_a_wrong_input_is_not_written(tmp_path: Path, words: list[str], told: str) -> None:
    config = tmp_path / "appliance.toml"
    succeeding("inputs", "add", "files", "/var/log/x.log", "--topic", "old", "--config", str(config))
    before = config.read_bytes()
    said = run("inputs", "add", *words, "--config", str(config))
    assert said.status in (64, 65, 78) and told in said.err, said
    assert config.read_bytes() == before and [path.name for path in tmp_path.iterdir()] == [config.name]


def test_an_input_of_a_topic_with_other_letters_has_a_name_of_its_own(tmp_path: Path) -> None:
    config = tmp_path / "appliance.toml"
    for topic in ("Web.access", "logs-{file}"):
        succeeding("inputs", "add", "files", "/var/log/x.log", "--topic", topic, "--config", str(config))
    assert {name: one.topic for name, one in load(config).inputs.items()} == {
        "web-access": "Web.access",
        "logs-file": "logs-{file}",
    }


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


def test_a_directory_without_a_pattern_of_its_files_is_named_with_one(tmp_path: Path) -> None:
    config, logs = tmp_path / "appliance.toml", tmp_path / "logs"
    logs.mkdir()
    config.write_text(f'[inputs.disk]\ntype = "files"\ninclude = ["{logs}/"]\ntopic = "disk"\n')
    said = run("inputs", "check", "--config", str(config), "--json")
    assert said.status == 78
    assert [(row["state"], row["todo"]) for row in said.json] == [("is a directory", f"name its files: {logs}/*")]


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


def test_files_are_shipped_once_however_often_the_command_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, positions = tmp_path / "logs/app.log", tmp_path / "positions"
    log.parent.mkdir()
    with Server(tmp_path / "data") as server:
        to = ("--topic", "app", "--positions", str(positions), "--data", str(server.data_dir), "--json")
        log.write_bytes(b"one\ntwo\nthr\n")
        counts = {"lines": 3, "bytes": 12, "messages": 3, "gaps": 0, "unfinished": 0}
        assert succeeding("ship", str(log), *to).json == counts
        log.rename(f"{log}.1")
        log.write_bytes(b"four\n")
        assert succeeding("ship", f"{log}*", *to).json["lines"] == 1
        assert succeeding("ship", f"{log}*", *to).json["lines"] == 0
        said = succeeding("consume", "app", "--from", "earliest", "--max", "4", "--data", str(server.data_dir))
        assert said.out == "one\ntwo\nthr\nfour\n"
        monkeypatch.chdir(log.parent)
        assert {row["source"] for row in succeeding("inputs", "ledger", log.name, *to[4:]).json} == {str(log)}
        places = succeeding("inputs", "find", log.name, "--line", "1", *to[4:]).json
        assert [place["message"] for place in places] == ["there", "there"]
        for name in ("", "a b", "app-{host}"):
            refused = run("ship", str(log), "--topic", name, *to[2:])
            assert refused.status == 65 and f"topic = {name!r}: must be the name of a topic" in refused.err
        absent = run("ship", str(tmp_path / "no.log"), *to)
        assert absent.status and "no such file" in absent.err


def test_a_position_is_of_a_file_a_topic_and_a_cluster(tmp_path: Path) -> None:
    first, second, positions = tmp_path / "first.log", tmp_path / "second.log", tmp_path / "positions"
    first.write_bytes(b"one\ntwo\n")
    second.write_bytes(b"three\n")
    with Server(tmp_path / "data") as server, Server(tmp_path / "other") as other:

        def shipped(file: Path, topic: str, box: Server) -> int:
            to = ("--topic", topic, "--positions", str(positions), "--data", str(box.data_dir), "--json")
            lines: int = succeeding("ship", str(file), *to).json["lines"]
            return lines

        assert shipped(first, "a", server) == 2
        assert shipped(second, "b", server) == 1
        assert shipped(first, "b", server) == 2
        assert shipped(first, "a", other) == 2
        with first.open("ab") as log:
            log.write(b"four\n")
        again = [(first, "a", server), (first, "b", server), (second, "b", server), (first, "a", other)]
        assert [shipped(*which) for which in again] == [1, 1, 0, 1]
        for box, topic, text in (
            (server, "a", "one two four"),
            (server, "b", "three one two four"),
            (other, "a", "one two four"),
        ):
            said = succeeding("consume", topic, "--from", "earliest", "--timeout", "2", "--data", str(box.data_dir))
            assert said.out.split() == text.split()


def test_a_line_that_is_being_written_is_one_message_for_whom_goes_on(tmp_path: Path) -> None:
    log, positions = tmp_path / "app.log", tmp_path / "positions"
    with Server(tmp_path / "data") as server:
        at = ("--data", str(server.data_dir))
        to = ("--topic", "app", "--positions", str(positions), *at)
        log.write_bytes(b"one\ntw")
        said = succeeding("ship", str(log), *to)
        assert f"{log}: its last line has no line break yet: 2 bytes wait" in said.err
        with log.open("ab") as file:
            file.write(b"o\nthr")
        told = succeeding("ship", str(log), *to, "--json").json
        assert (told["lines"], told["bytes"], told["unfinished"]) == (1, 4, 3)
        whole = succeeding("ship", str(log), "--topic", "whole", *at, "--json").json
        assert (whole["lines"], whole["unfinished"]) == (3, 0)
        log.unlink()
        log.write_bytes(b"four\n")
        assert succeeding("ship", str(log), *to, "--json").json["gaps"] == 1, "the ledger says that it is lost"
        for topic, text in (("app", "one two four"), ("whole", "one two thr")):
            got = succeeding("consume", topic, "--from", "earliest", "--timeout", "2", *at)
            assert got.out.split() == text.split()


def test_positions_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    log, file = tmp_path / "app.log", tmp_path / "file"
    log.write_bytes(b"one\n")
    file.write_bytes(b"")
    with Server(tmp_path / "data") as server:
        to = ("--topic", "app", "--data", str(server.data_dir))
        assert "is a file" in run("ship", str(log), *to, "--positions", str(file)).err
        refused = run("ship", str(log), *to, "--positions", str(file / "below")).err
        assert "must be a directory" in refused
        succeeding("ship", str(log), *to, "--positions", str(tmp_path / "positions"))
        (store,) = (tmp_path / "positions").glob("*/app/positions.sqlite")
        with contextlib.closing(PositionStore(store)):
            assert (
                "another process has it open"
                in run("ship", str(log), *to, "--positions", str(tmp_path / "positions")).err
            )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_whoever_ends_it_has_what_was_shipped_in_the_ledger(tmp_path: Path, number: int) -> None:
    """As `systemctl stop`, a logout, and Ctrl-C do; without positions nobody else could tell the ledger later."""
    log, scratch = tmp_path / "app.log", tmp_path / "scratch"
    log.write_bytes(b"one\ntwo\n")
    scratch.mkdir()
    with Server(tmp_path / "data") as server:
        at = ("--data", str(server.data_dir))
        with Peer(server.native) as peer:
            peer.create("app")
        shipping = subprocess.Popen(
            [sys.executable, "-m", "appliance", "ship", str(log), "--topic", "app", "--follow", *at],
            env=os.environ | {"TMPDIR": str(scratch)},
            stderr=subprocess.PIPE,
        )
        said = succeeding("consume", "app", "--from", "earliest", "--max", "2", "--timeout", "60", *at)
        assert said.out == "one\ntwo\n"
        shipping.send_signal(number)
        assert b"stopped: what was read is flushed" in shipping.communicate(timeout=60)[1]
        assert shipping.returncode == 128 + number and not list(scratch.iterdir())
        (row,) = succeeding("inputs", "ledger", "--json", *at).json
        assert (row["source"], row["lines"], row["bytes"]) == (str(log), 2, 8)


def test_rights_are_those_that_inputs_need() -> None:
    """As the user of the service: a group only if it opens a file, and ports that only root may bind."""
    if os.geteuid():
        pytest.skip("needs root, to be another user")
    with open_place() as tmp_path:
        config, data, units = tmp_path / "appliance.toml", tmp_path / "data", tmp_path / "units"
        data.mkdir()
        units.mkdir()
        os.chown(data, 65534, 65534)
        (tmp_path / "open.log").touch(0o644)
        (tmp_path / "closed.log").touch(0o640)
        os.chown(tmp_path / "closed.log", 0, grp.getgrnam("adm").gr_gid)
        at = ("--config", str(config), "--data", str(data), "--units", str(units))
        succeeding("inputs", "add", "files", f"{tmp_path}/open.log", "--topic", "open", "--config", str(config))
        assert "nothing beyond the unit" in succeeding("inputs", "rights", *at).out
        succeeding("inputs", "add", "files", f"{tmp_path}/closed.log", "--topic", "closed", "--config", str(config))
        succeeding("inputs", "add", "syslog", "udp://0.0.0.0:514", "tcp://0.0.0.0:5514", "--topic", "net",
                   "--set", "allow=10.0.0.0/8", "--set", "processes=2", "--config", str(config))  # fmt: skip
        check = run("inputs", "check", "--config", str(config), "--data", str(data))
        assert check.status == 78 and check.out.count("inputs rights --apply") == 2
        said = succeeding("inputs", "rights", "--apply", "--json", *at)
        assert (said.json["groups"], said.json["addresses"]) == (["adm"], ["udp://0.0.0.0:514"] * 2)
        drop_in, socket_unit = units / "appliance.service.d/inputs.conf", units / "appliance-inputs.socket"
        assert "\n[Service]\nSupplementaryGroups=adm\nSockets=appliance-inputs.socket\n" in drop_in.read_text()
        assert (
            "ListenDatagram=0.0.0.0:514\n" * 2 + "ReusePort=yes\nFileDescriptorName=inputs\n" in socket_unit.read_text()
        )
        config.write_text("")
        socket_unit.write_text("[Socket]\nListenDatagram=514\n")
        assert "move it away" in run("inputs", "rights", "--apply", *at).err
        socket_unit.unlink()
        succeeding("inputs", "rights", "--apply", *at)
        assert not drop_in.exists() and not socket_unit.exists()


def test_what_an_input_refuses_to_read_is_named_and_gives_the_service_no_group() -> None:
    """Links that another user has put among his logs: to a file that a group would open, and to what nobody reads."""
    if os.geteuid():
        pytest.skip("needs root, to be another user")
    with open_place() as tmp_path:
        config, data, logs, units = (tmp_path / name for name in ("appliance.toml", "data", "logs", "units"))
        for directory in (data, logs, units):
            directory.mkdir()
        (data / "security.json").touch(0o600)
        (tmp_path / "closed").touch(0o640)
        os.chown(tmp_path / "closed", 0, grp.getgrnam("adm").gr_gid)
        os.mkfifo(logs / "pipe.log", 0o644)
        (logs / "good.log").touch(0o644)
        (logs / "of-service.log").symlink_to(logs / "good.log")
        for name, target in (("theirs", tmp_path / "closed"), ("soft", data / "security.json")):
            (logs / f"{name}.log").symlink_to(target)
            os.chown(logs / f"{name}.log", OTHER, OTHER, follow_symlinks=False)
        (logs / "hard.log").hardlink_to(data / "security.json")
        for path in (data, data / "security.json"):
            os.chown(path, 65534, 65534)
        os.chown(logs / "of-service.log", 65534, 65534, follow_symlinks=False)
        at = ("--config", str(config), "--data", str(data))
        succeeding("inputs", "add", "files", f"{logs}/*.log", "--topic", "disk", "--config", str(config))
        said = run("inputs", "check", "--json", *at)
        states = {Path(row["what"]).name: row["state"] for row in said.json}
        assert said.status == 78 and states == {
            "hard.log": "is a file of the data directory",
            "pipe.log": "is no regular file",
            "soft.log": f"is a symbolic link of the user {OTHER} to a file of nobody",
            "theirs.log": f"is a symbolic link of the user {OTHER} to a file of root",
            "*.log: 2 files": "good",
        }
        assert "nothing beyond the unit" in succeeding("inputs", "rights", *at, "--units", str(units)).out


def test_a_directory_that_cannot_be_looked_into_is_named() -> None:
    """Not as one that has no file yet."""
    if os.geteuid():
        pytest.skip("needs root, to be another user")
    with open_place() as tmp_path:
        config, data = tmp_path / "appliance.toml", tmp_path / "data"
        data.mkdir()
        for name in ("closed", "left-out", "open"):
            (tmp_path / "logs" / name / "deep").mkdir(parents=True)
            (tmp_path / "logs" / name / "app.log").touch(0o644)
        closed, left_out = tmp_path / "logs/closed", tmp_path / "logs/left-out"
        closed.chmod(0o700)
        left_out.chmod(0o700)
        os.chown(data, 65534, 65534)
        at = ("--config", str(config), "--data", str(data))
        logs = str(tmp_path / "logs")
        includes = ["closed/app.log", "closed/*.log", "*/*.log", "*/deep/*.log", "**/*.log", "closed/**"]
        for number, include in enumerate(includes):
            succeeding("inputs", "add", "files", f"{logs}/{include}", "--topic", f"t{number}",
                       "--set", f"exclude={left_out}/*", "--config", str(config))  # fmt: skip
        said = run("inputs", "check", "--json", *at)
        faults = [(row["input"], row["what"], row["state"]) for row in said.json if row["state"] != "good"]
        assert said.status == 78
        assert faults == [(f"t{number}", str(closed), "Permission denied") for number in range(len(includes))]
        closed.chmod(0o755)
        assert "Permission denied" not in run("inputs", "check", *at).out


@pytest.mark.parametrize("theirs", ["", "appliance.service.d", "appliance-inputs.socket"])
def test_root_writes_no_units_where_another_user_has_put_a_link(theirs: str) -> None:
    if os.geteuid():
        pytest.skip("needs root, to be another user")
    with open_place() as tmp_path:
        units, roots = tmp_path / "units", tmp_path / "roots"
        units.mkdir()
        roots.mkdir()
        if theirs:
            (units / theirs).symlink_to(roots if theirs.endswith(".d") else roots / "unit")
        os.chown(units / theirs, OTHER, OTHER, follow_symlinks=False)
        texts = {DROP_IN: f"{MARK}\n", SOCKET: f"{MARK}\n"}
        with pytest.raises(OthersDirectory, match=f"user {OTHER} may exchange"):
            apply_units(units, texts)
        assert not list(roots.iterdir()) and [one.name for one in units.iterdir()] == ([theirs] if theirs else [])
