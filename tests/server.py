"""A real appliance for tests: the command ``appliance start`` as a process of its own, on free ports."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from appliance.addresses import PLAINTEXT, first_with, parse_listeners
from appliance.processes.supervisor.liveness import state_of
from appliance.shared import memory
from appliance.zookeeper.kazoo_link import kazoo_client
from appliance.zookeeper.login import LOCAL_USER, SECRET_FILE, Login

from .ready import readable

START_S_MAX = 30
STOP_S_MAX = 30
ALONE = {"zookeeper.nodes": 0}


class NotServing(Exception):
    """The appliance ended, or said nothing, instead of serving; the text holds its log."""


class Server:
    """``settings`` are keys of the configuration; without any it runs alone, with no ZooKeeper.

    ``within`` is a command that runs its arguments, such as ``unshare -m``: what it makes the appliance see of the file
    system is below ``root``.  ``environment`` goes over that of the test.
    """

    def __init__(
        self,
        data_dir: Path,
        config_file: Path | None = None,
        *,
        within: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.data_dir = data_dir
        self.config_file = config_file
        self.within, self.environment = within, dict(environment or {})
        addresses = {"native.listen": "127.0.0.1:0", "kafka.listen": "127.0.0.1:0", "network.workers": 2}
        self.settings = addresses | ALONE | settings
        self.log_path = data_dir.with_name(data_dir.name + ".log")
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> Server:
        self.launch()
        return self.wait_serving()

    def launch(self) -> None:
        command = [*self.within, sys.executable, "-m", "appliance", "start", "--data", str(self.data_dir)]
        if self.config_file is not None:
            command += ["--config", str(self.config_file)]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        with self.log_path.open("a") as log:
            environment = os.environ | self.environment
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)

    def wait_serving(self) -> Server:
        assert self.process is not None and self.process.stdout is not None
        line = self.process.stdout.readline() if readable(self.process.stdout, START_S_MAX) else ""
        if not line.startswith("appliance: serving"):
            self.process.terminate()
            raise NotServing(f"exit status {self._wait()}, said {line!r}\n{self.log()}")
        return self

    def log(self) -> str:
        return self.log_path.read_text()

    @property
    def root(self) -> Path:
        """The file system as the appliance sees it."""
        assert self.process is not None
        return Path(f"/proc/{self.process.pid}/root") if self.within else Path("/")

    @property
    def state(self) -> dict[str, Any]:
        path = self.root / self.data_dir.relative_to("/") / "state.json"
        state: dict[str, Any] = json.loads(path.read_text())
        return state

    @property
    def native(self) -> str:
        return self.address("native")

    @property
    def kafka(self) -> str:
        return self.address("kafka")

    def address(self, protocol: str, security: str = PLAINTEXT) -> str:
        """The address of a listener."""
        return first_with(security, parse_listeners(protocol, self.state["listeners"][protocol]))

    @property
    def zookeeper_login(self) -> Login:
        """How to log in to the local ensemble."""
        return Login("sasl", LOCAL_USER, (self.data_dir / SECRET_FILE).read_text().strip())

    def zookeeper_client(self) -> Any:
        """A kazoo client of the local ensemble, not started."""
        return kazoo_client(self.state["zookeeper"]["connect"], self.zookeeper_login)

    @property
    def zookeeper_access(self) -> dict[str, str]:
        """The settings of another appliance that uses the local ensemble of this one."""
        file = str(self.data_dir / SECRET_FILE)
        connect = self.state["zookeeper"]["connect"]
        return {"zookeeper.connect": connect, "zookeeper.user": LOCAL_USER, "zookeeper.password_file": file}

    def processes(self, role: str) -> list[dict[str, Any]]:
        return [row for row in self.state["processes"] if row["role"] == role]

    def pids(self, role: str) -> list[int]:
        return [row["pid"] for row in self.processes(role)]

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        if pid not in {row["pid"] for row in self.state["processes"]}:
            raise ProcessLookupError(f"process {pid} is not, or no longer, one of this appliance")
        os.kill(pid, number)

    def kill_supervisor(self) -> None:
        assert self.process is not None
        self.process.kill()
        self._wait()

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        assert self.process is not None
        self.process.terminate()
        return self._wait()

    def _wait(self) -> int:
        assert self.process is not None and self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait(STOP_S_MAX)

    def leftovers(self) -> list[str]:
        """Names in /dev/shm that belong to this data directory."""
        prefix = memory.name_of(memory.instance_of(self.data_dir), "")[1:]
        return [path.name for path in memory.SHM_DIR.iterdir() if path.name.startswith(prefix)]

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is None:
            return
        if self.process.poll() is None:
            self.stop()
        elif self.process.returncode < 0:  # killed, and nothing will be started here again to clean up
            memory.unlink_all(memory.instance_of(self.data_dir))


@contextmanager
def stopped(pid: int, *, may_die: bool = False) -> Iterator[None]:
    """A process stands still (SIGSTOP) until the end.  ``may_die``: somebody may kill it meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(lambda: state_of(pid) in ({"T", "Z", ""} if may_die else {"T"}), "the process to stand still")
        yield
    finally:
        with suppress(ProcessLookupError) if may_die else nullcontext():
            os.kill(pid, signal.SIGCONT)


def wait_for(condition: Any, what: str, seconds_max: float = 20) -> Any:
    """The first true value of ``condition()``, asked every 10 ms."""
    deadline = time.monotonic() + seconds_max
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds_max} s: {what}"
        select.select([], [], [], 0.01)
