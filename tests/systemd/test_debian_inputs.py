"""From a fresh package to the first lines of inputs, by the commands of the page, in a booted machine.

The tests are steps of one life, in their order.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..support.booted import Machine
from ..support.packages import package
from ..support.server import wait_for

__all__ = ["package"]  # a fixture

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

PAGE = Path(__file__).parents[2] / "systemd/README.md"
CONFIGURATION = "/etc/appliance/appliance.toml"
HOST = "10.0.0.5"


def commands() -> list[list[str]]:
    """Those of the page that take logs in."""
    text = PAGE.read_text().partition("three commands take in")[2].partition("```console\n")[2].partition("```")[0]
    return [shlex.split(line.removeprefix("$ ")) for line in text.splitlines()]


@pytest.fixture(scope="module")
def machine(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A booted machine of the network 10.0.0.0/8, with a /var/log/syslog as Debian's rsyslog makes it."""
    with Machine(tmp_path_factory.mktemp("machine"), [f"--bind-ro={package.parent}:/packages"]) as booted:
        booted.run("rm", "-f", "/usr/sbin/policy-rc.d")
        if booted.run("apt-get", "install", "--simulate", f"/packages/{package.name}", check=False).returncode:
            pytest.skip("what the package depends on is not installed here: python3, a Java")
        booted.shell(f"ip address add {HOST}/8 dev lo")
        booted.shell(
            "install -m 0640 -o root -g adm /dev/null /var/log/syslog; echo 'first of the host' > /var/log/syslog"
        )
        booted.shell(f"DEBIAN_FRONTEND=noninteractive apt-get --yes --quiet install /packages/{package.name}")
        yield booted


def topic(machine: Machine, name: str) -> list[str]:
    read = ("appliance", "consume", name, "--from", "earliest", "--timeout", "2")
    return machine.run(*read, check=False).stdout.splitlines()


def test_three_commands_take_in_the_host_and_those_around_it(machine: Machine) -> None:
    assert len(commands()) == 3
    for words in commands():
        machine.run(*words)
    assert machine.property("appliance", "ActiveState") == "active"
    wait_for(lambda: topic(machine, "disk") == ["first of the host"], "the line of /var/log/syslog")
    for kind in ("-d", "-T"):
        machine.run("logger", "-n", HOST, "-P", "514", kind, f"by {kind}")
        wait_for(lambda kind=kind: any(f"by {kind}" in line for line in topic(machine, "net")), f"logger {kind}")
    said = machine.run("appliance", "inputs", "check", "--config", CONFIGURATION, "--data", "/var/lib/appliance")
    assert "cannot" not in said.stdout


def test_the_service_has_these_rights_and_no_more(machine: Machine) -> None:
    pid = machine.property("appliance", "MainPID")
    status = machine.said("cat", f"/proc/{pid}/status")
    capabilities = [line.split()[1] for line in status.splitlines() if line.startswith("Cap")]
    assert {int(value, 16) for value in capabilities} == {0}
    (groups,) = [line.split()[1:] for line in status.splitlines() if line.startswith("Groups:")]
    named = {machine.said("getent", "group", gid).partition(":")[0] for gid in groups}
    assert named == {"appliance", "adm"}


def test_what_is_sent_during_a_restart_waits(machine: Machine) -> None:
    machine.run("systemctl", "stop", "appliance")
    machine.run("logger", "-n", HOST, "-P", "514", "-d", "while it was stopped")
    machine.run("systemctl", "start", "appliance")
    wait_for(lambda: any("while it was stopped" in line for line in topic(machine, "net")), "the datagram")


def test_rights_that_no_input_needs_any_more_go(machine: Machine) -> None:
    machine.shell(f"sed -i '/^.inputs.disk/,$d' {CONFIGURATION}")
    said = json.loads(machine.said(*commands()[2], "--json"))
    assert said == {"groups": [], "addresses": [], "files": {}, "written": True, "restarted": True}
    left = machine.run("find", "/etc/systemd/system", "-name", "*inputs*", check=False)
    assert not left.stdout
    assert machine.property("appliance", "ActiveState") == "active"


def test_a_purge_leaves_nothing_of_them(machine: Machine) -> None:
    for words in commands():
        machine.run(*words)
    purge = "DEBIAN_FRONTEND=noninteractive apt-get --yes --quiet purge appliance"
    done: subprocess.CompletedProcess[str] = machine.run("bash", "-c", purge, seconds_max=300)
    assert done.returncode == 0
    assert not machine.said("find", "/etc/systemd", "-name", "appliance*")
