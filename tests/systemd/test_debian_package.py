"""The Debian package in a booted machine: from ``apt install`` to the first line, and the life of the service after it.

The tests are steps of one life, in their order.  They take the package that ``make deb`` makes; ``APPLIANCE_DEB`` names
one that is there already.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ..support.booted import Machine
from ..support.packages import package
from ..support.server import wait_for

__all__ = ["package"]  # a fixture

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
DATA = "/var/lib/appliance"
CONFIGURATION = "/etc/appliance/appliance.toml"
FIRST_LINE_S_MAX = 180
GAP_MS_MAX = int(os.environ.get("GAP_MS_MAX", "20000"))
"""How long a restart may interrupt the acknowledgements of a producer; ``GAP_MS_MAX=1000`` on a machine at rest."""
ELECTION_S_MAX = 60
EXPOSURE_MAX = 14
"""Tenths, of ``systemd-analyze security``: 1.4."""


@pytest.fixture(scope="module")
def packages(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with old.deb, and new.deb: the same with a higher version."""
    directory = tmp_path_factory.mktemp("packages")
    shutil.copy(package, directory / "old.deb")
    tree = tmp_path_factory.mktemp("new") / "tree"
    subprocess.run(["dpkg-deb", "--raw-extract", str(package), str(tree)], check=True)
    control = tree / "DEBIAN" / "control"
    control.write_text(control.read_text().replace("\nVersion: ", "\nVersion: 1:"))
    packing = ["dpkg-deb", "--root-owner-group", "-Zzstd", "-z1", "--build", str(tree), str(directory / "new.deb")]
    subprocess.run(packing, check=True, capture_output=True)
    shutil.rmtree(tree)
    return directory


@pytest.fixture(scope="module")
def machine(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A booted machine; its data directory is a file system of its own, which a test can fill."""
    with Machine(tmp_path_factory.mktemp("machine"), [f"--bind-ro={packages}:/packages"]) as booted:
        booted.run("rm", "-f", "/usr/sbin/policy-rc.d")
        booted.run("mkdir", "-p", DATA)
        booted.run("mount", "-t", "tmpfs", "-o", "size=300m", "tmpfs", DATA)
        if booted.run("apt-get", "install", "--simulate", "/packages/old.deb", check=False).returncode:
            pytest.skip("what the package depends on is not installed here: python3, a Java")
        yield booted


def apt(machine: Machine, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--yes", "--quiet", *words]
    return machine.run(*command, check=check, seconds_max=300)


def lines(machine: Machine, topic: str) -> list[str]:
    return machine.said("appliance", "consume", topic, "--from", "earliest", "--timeout", "2").splitlines()


@contextmanager
def load(machine: Machine, topic: str) -> Iterator[dict[str, Any]]:
    """A producer, and connections to both listeners; the dictionary holds the result at the end."""
    creating = ("appliance", "topics", "create", topic)  # waits for ZooKeeper, which may be electing after a restart
    wait_for(lambda: machine.run(*creating, check=False).returncode == 0, "the topic", ELECTION_S_MAX)
    script = f"cd {ROOT} && exec {sys.executable} -m tests.support.service_load {topic}"
    command = machine.command("bash", "-c", script)
    result: dict[str, Any] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = process.stdout.readline().strip()
        try:
            yield result
            wait_for(lambda: machine.property("appliance", "ActiveState") == "active", "the service")
            time_to_produce = time.monotonic() + 1
            wait_for(lambda: time.monotonic() > time_to_produce, "a second of load")
        finally:
            machine.run("kill", pid)  # its pid in there; a signal to nsenter would not reach it
            result.update(json.loads(process.communicate()[0]))
    print(topic, result)


def assert_nothing_lost(machine: Machine, topic: str, result: dict[str, Any]) -> None:
    found = [int(line) for line in lines(machine, topic)]
    assert result["acknowledged"] > 50
    assert found[: result["acknowledged"]] == list(range(result["acknowledged"])), "lost or repeated"


def test_from_nothing_to_the_first_line(machine: Machine) -> None:
    begun = time.monotonic()
    apt(machine, "install", "/packages/old.deb")
    assert machine.property("appliance", "ActiveState") == "active"
    machine.run("appliance", "topics", "create", "web")
    machine.run("appliance", "produce", "web", stdin="the first line\n")
    assert lines(machine, "web") == ["the first line"]
    took_s = time.monotonic() - begun
    print(f"from nothing to the first line: {took_s:.1f} s")
    assert took_s < FIRST_LINE_S_MAX
    assert "serving" in machine.property("appliance", "StatusText")
    assert machine.said("systemctl", "is-enabled", "appliance").strip() == "enabled"


def test_the_sandbox_is_tight_and_the_units_are_right(machine: Machine) -> None:
    analysed = ("systemd-analyze", "security", f"--threshold={EXPOSURE_MAX}", "--no-pager", "appliance")
    machine.run(*analysed)
    verified = machine.run("systemd-analyze", "verify", "appliance.service", "appliance-kafka.socket")
    assert "appliance" not in verified.stderr, verified.stderr
    assert machine.said("stat", "-c", "%U %a", DATA).split() == ["appliance", "700"]
    assert not machine.said("find", "/opt/appliance", "/usr/bin/appliance", "-perm", "/022", "-not", "-type", "l")


def test_the_page_that_the_doctor_names_is_there(machine: Machine) -> None:
    machine.run("systemctl", "stop", "appliance")
    done = machine.run("appliance", "doctor", "--json", "--data", DATA, check=False)
    pages = {row["page"] for row in json.loads(done.stdout)}
    assert pages and all(page.startswith("/usr/share/doc/appliance/systemd/README.md#") for page in pages)
    machine.run("ls", *(page.partition("#")[0] for page in pages))
    machine.run("systemctl", "start", "appliance")


def test_manual_and_completion_are_there(machine: Machine) -> None:
    assert "appliance-topics(1)" in machine.said("man", "-P", "cat", "appliance")
    assert "kafka.listen" in machine.said("man", "-P", "cat", "appliance.toml")
    completing = (
        "source /usr/share/bash-completion/completions/appliance; COMP_WORDS=(appliance topi); COMP_CWORD=1;"
        ' _appliance_completion appliance topi appliance; echo "${COMPREPLY[@]}"'
    )
    assert machine.shell(completing).split() == ["topics"]


def test_the_configuration_has_every_key_as_a_comment(machine: Machine) -> None:
    said = machine.said("appliance", "config", "check", "--config", CONFIGURATION)
    assert ": right, 0 of" in said
    changes = (
        "s/^#free_bytes_min = .*/free_bytes_min = 0/",
        's|^#listen = "127.0.0.1:9091".*|listen = "127.0.0.1:9091,unix:/run/appliance/native.sock?mode=0666"|',
    )
    machine.run("sed", "-i", "; ".join(changes), CONFIGURATION)
    said = machine.said("appliance", "config", "check", "--config", CONFIGURATION)
    assert ": right, 2 of" in said
    machine.run("systemctl", "restart", "appliance")
    other_user = ("runuser", "-u", "nobody", "--", "appliance", "topics", "list", "--json")
    assert json.loads(machine.said(*other_user, "--connect", "unix:/run/appliance/native.sock"))[0]["name"] == "web"


def test_a_restart_through_the_sockets_refuses_no_connection(machine: Machine) -> None:
    machine.run("systemctl", "stop", "appliance")
    machine.run("systemctl", "enable", "--now", "appliance-kafka.socket", "appliance-native.socket")
    machine.run("systemctl", "start", "appliance")
    with load(machine, "restarted") as result:
        for _ in range(3):
            machine.run("systemctl", "restart", "appliance")
    assert_nothing_lost(machine, "restarted", result)
    assert result["refused"] == 0 and result["connections"] > 500 and result["gap_ms_max"] <= GAP_MS_MAX


@contextmanager
def shipping(machine: Machine) -> Iterator[Callable[[], list[str]]]:
    """The package's set-up of rsyslog; yields a function that writes a hundred lines and returns all so far."""
    if machine.run("test", "-e", "/usr/lib/x86_64-linux-gnu/rsyslog/omkafka.so", check=False).returncode:
        pytest.skip("no rsyslog with omkafka: apt-get install rsyslog rsyslog-kafka")
    directory = "/usr/share/doc/appliance/tests/clients/shippers"
    machine.shell(f"mkdir -p /var/spool/rsyslog; sed s/HOST/127.0.0.1/ {directory}/rsyslog.conf > /root/rsyslog.conf")
    machine.run("systemd-run", "--unit=shipper", "rsyslogd", "-n", "-f", "/root/rsyslog.conf", "-i", "/run/shipper.pid")
    written: list[str] = []

    def write() -> list[str]:
        more = [f"line {number}" for number in range(len(written), len(written) + 100)]
        machine.run("tee", "-a", "/var/log/app.log", stdin="".join(f"{line}\n" for line in more))
        written.extend(more)
        return written

    yield write
    machine.run("systemctl", "stop", "shipper")


def test_a_shipper_loses_nothing_over_an_upgrade_and_restarts(machine: Machine) -> None:
    """Goal: the set-up of the package, as it is.  Method: lines before, between and after each of them."""
    with shipping(machine) as write:
        for action in (
            ("apt-get", "--yes", "--quiet", "install", "/packages/new.deb"),
            ("systemctl", "restart", "appliance"),
            ("apt-get", "--yes", "--quiet", "install", "--allow-downgrades", "/packages/old.deb"),
        ):
            write()
            begun = subprocess.Popen(machine.command("env", "DEBIAN_FRONTEND=noninteractive", *action))
            wait_for(lambda: write() and begun.poll() is not None, " ".join(action), 300)  # noqa: B023
            assert begun.returncode == 0
        written = write()
        wait_for(lambda: set(lines(machine, "app-logs")) >= set(written), "all lines", 120)


def test_an_upgrade_under_load_loses_nothing(machine: Machine) -> None:
    with load(machine, "upgraded") as result:
        apt(machine, "install", "/packages/new.deb")
    assert machine.said("dpkg-query", "-W", "-f", "${Version}", "appliance").startswith("1:")
    assert_nothing_lost(machine, "upgraded", result)
    assert result["refused"] == 0 and result["gap_ms_max"] <= GAP_MS_MAX


def test_a_downgrade_needs_a_format_that_the_old_release_knows(machine: Machine) -> None:
    note = machine.said("cat", f"{DATA}/format.json")
    machine.write(f"{DATA}/format.json", '{"format": 99, "release": "1:9.9"}\n')
    try:
        pid = machine.property("appliance", "MainPID")
        refused = apt(machine, "install", "--allow-downgrades", "/packages/old.deb", check=False)
        assert refused.returncode and "stay with 1:9.9 or newer" in refused.stdout + refused.stderr
        assert machine.property("appliance", "MainPID") == pid, "the service was touched"
        machine.run("systemctl", "restart", "appliance", check=False)
        assert machine.property("appliance", "ExecMainStatus") == "78"
        assert "install 1:9.9 or newer again" in machine.said("journalctl", "-u", "appliance", "--no-pager")
    finally:
        machine.write(f"{DATA}/format.json", note)
    machine.run("systemctl", "restart", "appliance")
    apt(machine, "install", "--allow-downgrades", "/packages/old.deb")
    assert not machine.said("dpkg-query", "-W", "-f", "${Version}", "appliance").startswith("1:")
    assert lines(machine, "web") == ["the first line"]


def test_the_watchdog_ends_a_supervisor_that_hangs(machine: Machine) -> None:
    machine.run("mkdir", "-p", "/run/systemd/system/appliance.service.d")
    machine.write("/run/systemd/system/appliance.service.d/watchdog.conf", "[Service]\nWatchdogSec=2\nRestartSec=0\n")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", "appliance")
    pid = machine.property("appliance", "MainPID")
    machine.run("kill", "-STOP", pid)

    def is_another() -> bool:
        main, state = (machine.property("appliance", name) for name in ("MainPID", "ActiveState"))
        return main not in ("0", pid) and state == "active"

    wait_for(is_another, "another supervisor", 60)
    assert lines(machine, "web") == ["the first line"]


def test_a_reload_takes_a_right_file_and_leaves_a_wrong_one(machine: Machine) -> None:
    machine.run("systemctl", "reload", "appliance")
    pid = machine.property("appliance", "MainPID")
    machine.run("sed", "-i", "s/^free_bytes_min = 0/free_bytes_min = much/", CONFIGURATION)
    machine.run("systemctl", "reload", "appliance", check=False)
    assert machine.property("appliance", "MainPID") == pid and lines(machine, "web") == ["the first line"]
    wait_for(lambda: "free_bytes_min" in machine.said("journalctl", "-u", "appliance", "--no-pager"), "the reason")
    machine.run("sed", "-i", "s/^free_bytes_min = much/free_bytes_min = 0/", CONFIGURATION)
    machine.run("systemctl", "reload", "appliance")


def test_a_full_disk_stops_producers_until_there_is_room(machine: Machine) -> None:
    filled = machine.run("bash", "-c", f"head -c 1G /dev/zero > {DATA}/filler", check=False)
    assert filled.returncode, "the disk is not full"
    line = "x" * 100_000 + "\n"
    refused = machine.run("timeout", "5", "appliance", "produce", "web", stdin=line, check=False)
    assert refused.returncode, "a line was taken on a full disk"
    assert machine.property("appliance", "ActiveState") == "active"
    machine.run("rm", f"{DATA}/filler")
    machine.run("appliance", "produce", "web", stdin="room again\n")
    assert lines(machine, "web")[-1] == "room again"


def test_a_backup_is_restored_as_the_manual_says(machine: Machine) -> None:
    before = lines(machine, "web")
    machine.run("mkdir", "/var/backups/appliance")
    machine.run("appliance", "backup", "/var/backups/appliance/monday", "--data", DATA)
    machine.run("appliance", "topics", "delete", "web", "--data", DATA, check=False)
    machine.run("systemctl", "stop", "appliance-kafka.socket", "appliance-native.socket", "appliance")
    machine.shell(f"find {DATA} -mindepth 1 -delete; cp -a /var/backups/appliance/monday/. {DATA}")
    assert machine.said("find", DATA, "-not", "-user", "appliance") == ""
    machine.run("systemctl", "start", "appliance-kafka.socket", "appliance-native.socket", "appliance")
    assert lines(machine, "web") == before


def test_removal_keeps_the_data_and_purge_does_not(machine: Machine) -> None:
    apt(machine, "remove", "appliance")
    assert machine.property("appliance", "ActiveState") in ("inactive", "failed")
    assert machine.run("test", "-e", "/opt/appliance", check=False).returncode
    assert machine.run("pgrep", "-u", "appliance", check=False).returncode == 1, "a process is left"
    assert machine.said("ls", CONFIGURATION, f"{DATA}/catalog.json")
    apt(machine, "install", "/packages/old.deb")
    assert lines(machine, "web")
    apt(machine, "purge", "appliance")
    assert machine.run("test", "-e", "/etc/appliance", check=False).returncode
    assert machine.said("find", DATA, "-mindepth", "1") == "", "messages are left"
    assert not machine.said("find", "/etc/systemd", "/usr/share/man/man1", "-name", "appliance*")
