"""The Ansible role: run for real in a booted machine, and again, which changes nothing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..support.booted import Machine
from ..support.packages import package

__all__ = ["package"]  # a fixture

ROOT = Path(__file__).parents[2]
ROLES = ROOT / "systemd/ansible/roles"
DATA = "/var/lib/appliance"
CONFIGURATION = "/etc/appliance/appliance.toml"
PASSWORD = "longer than any floor"
ADDRESS, OTHER_ADDRESS = "127.0.0.1:19092", "127.0.0.1:19093"
RUN_S_MAX = 600

pytestmark = pytest.mark.skipif(
    shutil.which("ansible-playbook") is None, reason="there is no Ansible: apt-get install ansible-core"
)


def play(**values: Any) -> str:
    """A play of the role on the machine itself; JSON is YAML."""
    return json.dumps([{"hosts": "localhost", "connection": "local", "roles": [{"role": "appliance"} | values]}])


def test_its_example_is_right(tmp_path: Path) -> None:
    command = ["ansible-playbook", "--syntax-check", "-i", "localhost,", str(ROLES.parent / "site.yml")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_variable_is_described() -> None:
    described = set(re.findall(r"^(appliance_\w+):", (ROLES / "appliance/defaults/main.yml").read_text(), re.MULTILINE))
    tasks = "".join(path.read_text() for path in (ROLES / "appliance/tasks").iterdir())
    made = set(re.findall(r"(?:register|loop_var): (appliance_\w+)", tasks)) | {"appliance_waiting"}
    assert set(re.findall(r"\bappliance_\w+", tasks)) == described | made
    assert {name for name in described if f"`{name}`" in (ROOT / "systemd/README.md").read_text()} == described


class Controlled:
    """The machine, and what Ansible says of it."""

    def __init__(self, machine: Machine, package: Path) -> None:
        self.machine = machine
        self.values: dict[str, Any] = {
            "appliance_data": DATA,
            "appliance_config": CONFIGURATION,
            "appliance_package": f"/packages/{package.name}",
            "appliance_settings": {
                "topics.retention.ms": "14d",
                "kafka.listen": ADDRESS,
                "zookeeper.nodes": 1,
                "security.authorizer": "acl",
            },
            "appliance_users": [{"name": "shipper", "password": PASSWORD}],
            "appliance_rules": [
                {"principal": "User:shipper", "operations": ["Write", "Describe"], "topics": ["web"]},
            ],
            "appliance_topics": [{"name": "web", "partitions": 2, "settings": {"retention.ms": "7d"}}],
        }

    def run(self, *words: str, **changes: Any) -> tuple[int, str]:
        """Run the play; returns how many tasks have changed something, and all that was printed."""
        self.machine.write("/root/play.yml", play(**self.values | changes))
        environment = (f"ANSIBLE_ROLES_PATH={ROLES}", "ANSIBLE_NOCOLOR=1", "DEBIAN_FRONTEND=noninteractive")
        command = ("env", *environment, "ansible-playbook", "-i", "localhost,", "/root/play.yml", *words)
        done = self.machine.run(*command, check=False, seconds_max=RUN_S_MAX)
        recap = re.search(r"changed=(\d+).*failed=(\d+)", done.stdout)
        assert recap is not None and recap[2] == "0", done.stdout + done.stderr
        assert PASSWORD not in done.stdout + done.stderr
        return int(recap[1]), done.stdout


@pytest.fixture(scope="module")
def controlled(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    with Machine(tmp_path_factory.mktemp("machine"), [f"--bind-ro={package.parent}:/packages"]) as booted:
        booted.run("rm", "-f", "/usr/sbin/policy-rc.d")
        if booted.run("apt-get", "install", "--simulate", f"/packages/{package.name}", check=False).returncode:
            pytest.skip("what the package depends on is not installed here: python3, a Java")
        yield Controlled(booted, package)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_it_makes_what_is_described_and_then_changes_nothing(controlled: Controlled) -> None:
    machine = controlled.machine
    checked, _ = controlled.run("--check")
    assert checked and machine.run("test", "-e", "/usr/bin/appliance", check=False).returncode, "a check installed it"
    changed, said = controlled.run()
    assert changed and "restart that follows" not in said, "started before it was configured"
    assert machine.property("appliance", "ActiveState") == "active"
    assert machine.said("systemctl", "is-enabled", "appliance").strip() == "enabled"
    (topic,) = json.loads(machine.said("appliance", "topics", "list", "--json", "--data", DATA))
    assert topic["name"] == "web" and topic["partitions"] == 2 and topic["settings"] == {"retention.ms": "604800000"}
    (user,) = json.loads(machine.said("appliance", "users", "list", "--json", "--data", DATA))
    rules = json.loads(machine.said("appliance", "acl", "list", "--json", "--data", DATA))
    assert user["name"] == "shipper" and {rule["operation"] for rule in rules} == {"Write", "Describe"}
    assert ADDRESS in machine.said("appliance", "status", "--json", "--data", DATA)
    pid = machine.property("appliance", "MainPID")
    assert controlled.run()[0] == 0
    settings = controlled.values["appliance_settings"] | {"topics.retention.ms": "9d"}
    reloaded, said = controlled.run(appliance_settings=settings)
    assert reloaded == 1 and "restart that follows" not in said
    assert machine.property("appliance", "MainPID") == pid, "restarted for nothing"
    _, said = controlled.run(appliance_settings=settings | {"kafka.listen": OTHER_ADDRESS})
    assert "taken at the restart that follows: kafka.listen" in said
    assert machine.property("appliance", "MainPID") != pid
    assert OTHER_ADDRESS in machine.said("appliance", "status", "--json", "--data", DATA)
    assert not machine.said("find", "/tmp", "/var/tmp", "-name", "appliance-*"), "a password is left"
