"""appliance.launch: the remedy fits how an appliance runs; what it names is carried out."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from appliance.launch import JOURNAL, Launch

from .support.command_line import run, succeeding
from .support.remedies import commands_in
from .support.server import Server, wait_for


def todo(server: Server, condition: str) -> str:
    rows = run("doctor", "--json", "--data", str(server.data_dir)).json
    return next((str(row["todo"]) for row in rows if row["condition"] == condition), "")


def test_by_hand_the_log_is_read_where_it_goes(tmp_path: Path) -> None:
    """Goal: no journal is named that has nothing.  Method: a process dies, and what the remedy names says so."""
    with Server(tmp_path / "data", **{"metrics.listen": "127.0.0.1:0"}) as server:
        pid = server.pid_of("metrics")
        server.kill(pid)
        wait_for(lambda: server.pids("metrics") not in ([], [pid]), "another one")
        remedy = wait_for(lambda: todo(server, "ProcessRestarted"), "the death to be found")
        assert "journalctl" not in remedy, remedy
        said = subprocess.run(shlex.split(remedy.split("`")[-2]), capture_output=True, text=True, check=True)
        assert f"(pid {pid}) ended with status -9" in said.stdout, said
        succeeding("report", str(tmp_path / "report.tar.gz"), "--data", str(server.data_dir))


def test_what_was_stopped_starts_again_as_it_was(tmp_path: Path) -> None:
    """With its configuration and its settings, from any directory."""
    config = tmp_path / "the appliance.toml"
    config.write_text("[topics]\npartitions = 3\n")
    server = Server(tmp_path / "data", config)
    with server:
        server.stop()
        remedy = todo(server, "Down")
        assert str(config) in remedy and "zookeeper.nodes=0" in remedy
        (start,) = commands_in(remedy)
        again = subprocess.Popen([sys.executable, "-m", "appliance", *start], cwd="/", stdout=subprocess.PIPE)
        try:
            assert again.stdout is not None and again.stdout.readline().startswith(b"appliance: serving")
            assert not todo(server, "Down")
            succeeding("topics", "create", "web", "--data", str(server.data_dir))
            described = succeeding("topics", "describe", "web", "--json", "--data", str(server.data_dir)).json
            assert len(described["partitions"]) == 3
        finally:
            again.terminate()
            again.communicate()


def test_a_start_that_fails_is_repeated_as_it_was(tmp_path: Path) -> None:
    config = tmp_path / "appliance.toml"
    config.write_text("[network]\nworkers = many\n")
    server = Server(tmp_path / "data", config)
    (tmp_path / "data").mkdir(mode=0o700)
    server.launch()
    assert server.process is not None and server.process.wait(60) == 78
    server.stop()  # closes its pipe
    remedy = todo(server, "Down")
    assert f"--config {config}" in remedy and f"--data {tmp_path}/data" in remedy, remedy


@pytest.mark.parametrize("output", ["pipe", "terminal", "nowhere"])
def test_output_that_is_no_file_is_named_for_what_it_is(tmp_path: Path, output: str) -> None:
    leader, follower = os.openpty()
    stderr = {"pipe": subprocess.PIPE, "terminal": follower, "nowhere": subprocess.DEVNULL}[output]
    name = {"pipe": "what has started it", "terminal": os.ttyname(follower), "nowhere": "/dev/null"}[output]
    server = Server(tmp_path / "data")
    words = [sys.executable, "-m", "appliance", "start", "--data", str(server.data_dir)]
    words += [word for key, value in server.settings.items() for word in ("--set", f"{key}={value}")]
    server.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=stderr, text=True)
    log = server.process.stderr
    reader = threading.Thread(target=log.read if log else lambda: None)
    reader.start()
    try:
        server.wait_serving()
        os.kill(server.pid_of("scrubber"), signal.SIGKILL)
        remedy = wait_for(lambda: todo(server, "ProcessRestarted"), "the death to be found")
        assert name in remedy and "journalctl" not in remedy, remedy
    finally:
        server.stop()
        reader.join(60)
        if log:
            log.close()
        os.close(leader)
        os.close(follower)


def test_of_a_service_its_unit_is_named() -> None:
    """A real one is in test_bad_days of systemd."""
    launch = Launch(("start", "--data", "/srv"), "box.service", JOURNAL)
    assert launch.start == "`systemctl start box.service`"
    assert launch.read_log() == "`journalctl -u box.service -n 50`"
    assert launch.read_log("audit.*bad credentials") == "`journalctl -u box.service -g 'audit.*bad credentials'`"
    assert "journalctl -k" in launch.read_kernel_log
