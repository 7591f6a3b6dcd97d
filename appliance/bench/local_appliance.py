"""Starts an appliance as a process of its own: ``appliance start``, by default on free ports and without ZooKeeper.

Benchmarks and tests start appliances this way.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..addresses import PLAINTEXT, first_with, parse_listeners
from . import accounts

START_S_MAX = 60
STOP_S_MAX = 60
ALONE = {"native.listen": "127.0.0.1:0", "kafka.listen": "127.0.0.1:0", "zookeeper.nodes": 0}


class NotServing(Exception):
    """The appliance ended, or printed nothing, instead of serving.  The text has its log."""


class LocalAppliance:
    """One appliance; its log is the file beside its data directory, with ``.log`` after the name.

    ``settings`` are keys of the configuration, over :data:`ALONE`.  ``within`` is a command that runs its arguments,
    such as ``unshare -m``: what it makes the appliance see of the file system is below ``root``.  ``environment`` goes
    over that of this process.
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
        self.settings = ALONE | settings
        self.log_path = data_dir.with_name(data_dir.name + ".log")
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> Self:
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

    def wait_serving(self) -> Self:
        """Wait for the line that the appliance prints when it serves.

        Raises:
            NotServing: it ends, or there is no such line within START_S_MAX.
        """
        assert self.process is not None and self.process.stdout is not None
        poll = select.poll()
        poll.register(self.process.stdout, select.POLLIN)
        line = self.process.stdout.readline() if poll.poll(START_S_MAX * 1000) else ""
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
        return first_with(security, parse_listeners(protocol, self.state["listeners"][protocol]))

    def pids(self, role: str = "") -> list[int]:
        """The processes with a role; all of them without one."""
        return [row["pid"] for row in self.state["processes"] if role in ("", row["role"])]

    def cpu_s(self, role: str = "") -> float:
        """User and system time so far, in s."""
        return sum(accounts.cpu_s(pid) for pid in self.pids(role))

    def pss_bytes(self, role: str = "") -> int:
        """Memory, pages that processes share counted once."""
        return sum(accounts.pss_bytes(pid) for pid in self.pids(role))

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        assert self.process is not None
        self.process.terminate()
        return self._wait()

    def kill(self) -> None:
        """SIGKILL to all its processes at once."""
        assert self.process is not None
        accounts.kill_tree(self.process.pid)
        self._wait()

    def _wait(self) -> int:
        assert self.process is not None and self.process.stdout is not None
        self.process.stdout.close()
        try:
            return self.process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            accounts.kill_tree(self.process.pid)  # else it would take processor and memory from all that follows
            raise

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop()
