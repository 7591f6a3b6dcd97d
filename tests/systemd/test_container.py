"""systemd/oci/Containerfile: its entry command runs as process 1, of a user without rights.

The image itself is not built: that takes a builder and a registry.  Here its command runs in a namespace of processes,
as the user that the image names.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from appliance.client import Admin, Consumer, Producer
from appliance.status import STATE_FILE

from ..support.server import runs, wait_for

FILE: Final = Path(__file__).parents[2] / "systemd/oci/Containerfile"
TOOLS: Final = ("unshare", "setpriv", "nsenter")
NAMESPACE: Final = ("unshare", "--pid", "--fork", "--mount-proc", "--")


def has_namespaces() -> bool:
    """Whether this machine lets root make them: a container itself may not."""
    if os.geteuid() != 0 or not all(map(shutil.which, TOOLS)):
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(
    not has_namespaces(), reason=f"needs root, namespaces of processes and {', '.join(TOOLS)}"
)
SETTINGS: Final = ("native.listen=127.0.0.1:0", "kafka.listen=127.0.0.1:0", "zookeeper.nodes=0", "network.workers=1")
WAIT_S: Final = 60


def instructions() -> dict[str, str]:
    """The last of each instruction of the file."""
    lines = FILE.read_text().replace("\\\n", " ").splitlines()
    words = (line.partition(" ") for line in lines if line and not line.startswith("#"))
    return {word: rest.strip() for word, _, rest in words}


def arguments_of(text: str, data_dir: Path, config: Path) -> list[str]:
    """A command of the image, with the paths and the Python of the test."""
    program, *arguments = json.loads(text)
    assert program == "appliance"
    paths = {"/var/lib/appliance": str(data_dir), "/etc/appliance/appliance.toml": str(config)}
    return [sys.executable, "-m", "appliance", *(paths.get(one, one) for one in arguments)]


class Container:
    """The entry command in a namespace of its own.  ``pid``: of its process 1, as the host numbers it."""

    def __init__(self, place: Path) -> None:
        self.data_dir, self._log = place / "data", place / "log"
        config = place / "appliance.toml"
        config.touch()
        found = instructions()
        self.uid, self.gid = map(int, found["USER"].split(":"))
        if not self.data_dir.exists():
            self.data_dir.mkdir(mode=0o700)
            os.chown(self.data_dir, self.uid, self.gid)
        sets = [word for setting in SETTINGS for word in ("--set", setting)]
        command = [*NAMESPACE, *self._as_user]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *arguments_of(found["ENTRYPOINT"], self.data_dir, config), *sets], stdout=log, stderr=log
            )
        self.pid = wait_for(self._first_child, "process 1")
        self._config = config

    @property
    def _as_user(self) -> list[str]:
        """Without any right but to read the Python that runs the tests, which may be root's."""
        reads = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
        return ["setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", "--clear-groups", *reads, "--no-new-privs"]

    def _first_child(self) -> int:
        pid = self.process.pid
        assert self.process.poll() is None, self.log()
        return int((Path(f"/proc/{pid}/task/{pid}/children").read_text().split() or ["0"])[0])

    def inside(self, *command: str) -> subprocess.CompletedProcess[str]:
        entering = ["nsenter", f"--target={self.pid}", "--pid", "--mount", "--", *self._as_user]
        return subprocess.run([*entering, *command], capture_output=True, text=True, timeout=WAIT_S, check=False)

    def is_healthy(self) -> bool:
        check = instructions()["HEALTHCHECK"].partition("CMD ")[2]
        return self.inside(*arguments_of(check, self.data_dir, self._config)).returncode == 0

    def log(self) -> str:
        return self._log.read_text()

    @property
    def state(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.data_dir / STATE_FILE).read_text())
        except (FileNotFoundError, ValueError):
            return {"state": ""}
        return found

    def pids(self) -> list[int]:
        """All processes of the namespace, as the host numbers them."""
        own = Path(f"/proc/{self.pid}/ns/pid")
        try:
            space = own.readlink()
        except FileNotFoundError:
            return []
        found = []
        for directory in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (directory / "ns/pid").readlink() == space:
                    found.append(int(directory.name))
        return found

    def end(self, number: int) -> int:
        """Send process 1 a signal; returns the status with which it ends."""
        os.kill(self.pid, number)
        return self.process.wait(WAIT_S)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that the user of the image reaches: pytest's own are for whoever runs it."""
    with tempfile.TemporaryDirectory(prefix="container-") as name:
        directory = Path(name)
        directory.chmod(0o711)
        yield directory


def test_the_entry_command_is_process_one_without_root(place: Path) -> None:
    container = Container(place)
    try:
        wait_for(lambda: container.state["state"] == "serving", "it to serve")
        assert container.state["pid"] == 1
        status = Path(f"/proc/{container.pid}/status").read_text()
        assert f"Uid:\t{container.uid}\t{container.uid}" in status and "NoNewPrivs:\t1" in status
        wait_for(container.is_healthy, "the check of health to succeed")
        address = container.state["listeners"]["native"]
        with Admin(address) as admin:
            admin.create_topic("web")
        with Producer(address) as producer:
            producer.send("web", b"kept").result(WAIT_S)
        # What ends without its parent is process 1's to reap: nobody else does, and the table of processes is bounded.
        assert container.inside("sh", "-c", "sleep 0.2 & exit 0").returncode == 0
        wait_for(lambda: "reaped the orphan" in container.log(), "an orphan to be reaped")
        everybody = container.pids()
        assert len(everybody) > 3
        assert container.end(signal.SIGKILL) != 0
        wait_for(lambda: not any(map(runs, everybody)), "all to end with process 1")
    finally:
        container.process.kill()
    again = Container(place)
    try:
        wait_for(lambda: again.state["state"] == "serving" and again.is_healthy(), "it to serve again")
        with Consumer(again.state["listeners"]["native"]) as consumer:
            consumer.assign_topic("web")
            assert [message.value for message in wait_for(lambda: consumer.poll(1.0), "the message")] == [b"kept"]
        assert again.end(getattr(signal, instructions()["STOPSIGNAL"])) == 0
        assert again.state["state"] == "stopped"
    finally:
        again.process.kill()


def test_the_page_names_what_the_image_has() -> None:
    """Paths, user and ports on the page are those of the file."""
    page = (FILE.parents[1] / "README.md").read_text()
    section = page.partition("### In a container")[2].partition("\n### ")[0]
    found = instructions()
    for name in (found["VOLUME"], found["USER"].partition(":")[0], *found["EXPOSE"].split()[2:]):
        assert name in section, name
