"""The package for rpm: it has what Debian's has, by rpm itself, and its life in a booted machine.

The machine is this one's distribution, whose rpm does not know what is installed: the package is installed without its
dependencies, which are compared with what this machine has.  ``APPLIANCE_RPM`` and ``APPLIANCE_DEB`` name packages that
are there already.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from systemd.packages import description

from ..support.booted import Machine
from ..support.packages import package, rpm_package
from ..support.server import wait_for

__all__ = ["package", "rpm_package"]  # fixtures

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

DATA = "/var/lib/appliance"
CONFIGURATION = "/etc/appliance/appliance.toml"
OF_DEBIAN = {"/usr/share/zsh/vendor-completions/_appliance": "/usr/share/zsh/site-functions/_appliance"}


def asked(path: Path, *words: str) -> list[str]:
    command = ["rpm", "-qp", *words, str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_it_has_the_files_of_the_other_package(package: Path, rpm_package: Path) -> None:
    listed = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(package)], check=True, capture_output=True).stdout
    names = subprocess.run(["tar", "-t"], input=listed, check=True, capture_output=True).stdout.decode().splitlines()
    files = {name.removeprefix(".") for name in names if not name.endswith("/")}
    directories = {name.removeprefix(".").removesuffix("/") for name in names if name.endswith("/")}
    own = set(asked(rpm_package, "--list"))
    assert {OF_DEBIAN.get(name, name) for name in files} - own == set()
    others = own - files - directories
    assert others == set(OF_DEBIAN.values()), "files of rpm's only"
    assert asked(rpm_package, "--queryformat", "[%{FILEUSERNAME}:%{FILEGROUPNAME}\\n]").count("root:root") == len(own)
    assert asked(rpm_package, "--configfiles") == [f"/{description.CONFIGURATION}"]


def test_what_it_needs_is_there(rpm_package: Path) -> None:
    needed = [line for line in asked(rpm_package, "--requires") if not line.startswith(("rpmlib(", "/bin/sh"))]
    paths = [name for name in needed if name.startswith("/")]
    libraries = [name.partition("(")[0] for name in needed if ".so" in name]
    assert any(path.startswith("/usr/bin/python3") for path in paths) and all(map(os.path.exists, paths))
    assert any(name.startswith("java-headless") for name in needed) and libraries
    cached = subprocess.run(["/sbin/ldconfig", "-p"], check=True, capture_output=True, text=True).stdout
    assert not [name for name in libraries if f"{name} (" not in cached]


def test_its_scripts_are_the_shared_ones(rpm_package: Path) -> None:
    text = "\n".join(asked(rpm_package, "--scripts"))
    (version,) = asked(rpm_package, "--queryformat", "%{VERSION}")
    for name in description.SCRIPTS:
        script = description.script("rpm", name, version).removeprefix("#!/bin/sh\n").strip()
        assert script in text, name


@pytest.fixture(scope="module")
def machine(rpm_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with Machine(tmp_path_factory.mktemp("machine"), [f"--bind-ro={rpm_package.parent}:/packages"]) as booted:
        if booted.run("sh", "-c", "command -v java", check=False).returncode:
            pytest.skip("what the package depends on is not installed here: a Java")
        yield booted


def rpm(machine: Machine, *words: str) -> None:
    machine.run("rpm", "--nodeps", *words, seconds_max=300)


def lines(machine: Machine) -> list[str]:
    return machine.said("appliance", "consume", "web", "--from", "earliest", "--timeout", "2").splitlines()


def test_it_is_installed_upgraded_and_removed(machine: Machine, rpm_package: Path) -> None:
    file = f"/packages/{rpm_package.name}"
    machine.run(
        "sh", "-c", "mkdir -p /etc/systemd/system-preset && echo 'disable *' > /etc/systemd/system-preset/0.preset"
    )
    rpm(machine, "--install", file)
    assert machine.property("appliance", "ActiveState") == "inactive", "started against the presets"
    assert machine.said("stat", "-c", "%U %a", DATA).split() == ["appliance", "700"]
    machine.run("systemctl", "enable", "--now", "appliance")
    machine.run("appliance", "topics", "create", "web")
    machine.run("appliance", "produce", "web", stdin="the first line\n")
    machine.run("sed", "-i", "s/^#free_bytes_min = .*/free_bytes_min = 0/", CONFIGURATION)
    pid = machine.property("appliance", "MainPID")
    rpm(machine, "--upgrade", "--force", file)
    assert machine.property("appliance", "MainPID") != pid, "the new release was not started"
    wait_for(lambda: machine.property("appliance", "ActiveState") == "active", "the service")
    assert "right, 1 of" in machine.said("appliance", "config", "check", "--config", CONFIGURATION)
    assert lines(machine) == ["the first line"]
    counted = machine.said("appliance", "sql", "select count(*) as lines from web", "--json")
    assert json.loads(counted) == {"lines": 1}
    note = machine.said("cat", f"{DATA}/format.json")
    machine.write(f"{DATA}/format.json", '{"format": 99, "release": "9.9"}\n')
    refused = machine.run("rpm", "--nodeps", "--upgrade", "--force", file, check=False, seconds_max=300)
    assert refused.returncode and "stay with 9.9 or newer" in refused.stderr
    machine.write(f"{DATA}/format.json", note)
    rpm(machine, "--erase", "appliance")
    assert machine.property("appliance", "ActiveState") in ("inactive", "failed")
    assert machine.run("pgrep", "-u", "appliance", check=False).returncode == 1, "a process is left"
    assert machine.run("test", "-e", "/opt/appliance", check=False).returncode
    assert machine.run("test", "-e", f"{DATA}/format.json", check=False).returncode == 0, "the messages are gone"
    assert "free_bytes_min = 0" in machine.said("cat", f"{CONFIGURATION}.rpmsave")
