"""systemd/README.md, "With pip": its lines make a service in a booted machine, and its last lines remove it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..support.booted import Machine

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "systemd" / "README.md").read_text()


def commands(heading: str, after: str = "") -> list[str]:
    """The commands in a part of the page, without their comments."""
    part = re.split(r"^#{2,3} ", PAGE.split(f"# {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    found = re.findall(r"^ *\$ (.*?)(?: +#.*)?$", part[part.index(after) :], flags=re.MULTILINE)
    assert found, heading
    return found


@pytest.fixture
def downloads(tmp_path: Path) -> Path:
    """What the commands would fetch, fetched here, since the machine has no network: packages, and wheels."""
    (apt,) = (line for line in commands("With pip") if line.startswith("apt-get install"))
    simulated = subprocess.run([*apt.split(), "--simulate"], capture_output=True, text=True)
    names = re.findall(r"^Inst (\S+)", simulated.stdout, flags=re.MULTILINE)
    if simulated.returncode or subprocess.run(["apt-get", "download", *names], cwd=tmp_path).returncode:
        pytest.skip("the packages cannot be downloaded")
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(tmp_path), str(ROOT), "hatchling"]
    if subprocess.run(wheel).returncode:
        pytest.skip("the wheels cannot be downloaded")
    for path in tmp_path.glob("appliance-*.whl"):
        path.unlink()
    tmp_path.chmod(0o755)  # apt reads as a user of its own
    return tmp_path


@pytest.fixture
def machine(downloads: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with Machine(tmp_path_factory.mktemp("machine"), [f"--bind-ro={downloads}:/downloads"]) as booted:
        yield booted


def test_the_steps_make_a_service_and_remove_it(machine: Machine) -> None:
    offline = f"export PIP_NO_INDEX=1 PIP_FIND_LINKS=/downloads DEBIAN_FRONTEND=noninteractive; cd {ROOT}; "
    for line in commands("With pip"):
        if line.startswith("apt-get install"):
            line = "! ls /downloads/*.deb || apt-get install --yes --no-install-recommends /downloads/*.deb"
        machine.shell(offline + line)
    assert machine.property("appliance", "ActiveState") == "active"
    machine.run("appliance", "topics", "create", "web")
    machine.run("appliance", "produce", "web", stdin="the first line\n")
    assert machine.said("appliance", "consume", "web", "--from", "earliest", "--max", "1") == "the first line\n"
    assert '"connected"' in machine.said("appliance", "status", "--json"), "no ZooKeeper"
    machine.run("systemctl", "stop", "appliance")
    said = machine.run("appliance", "doctor", "--json", "--data", "/var/lib/appliance", check=False).stdout
    machine.run("ls", *{row["page"].partition("#")[0] for row in json.loads(said)})
    machine.run("systemctl", "start", "appliance")
    for line in commands("Uninstall", after="What pip has installed"):
        machine.shell(line)
    assert not machine.said("find", "/opt", "/etc", "/var/lib", "/usr/local/bin", "-name", "appliance*")
    assert machine.run("id", "appliance", check=False).returncode
