"""A real appliance for tests, which they may kill, stop and cut off."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from appliance.bench.local_appliance import LocalAppliance, NotServing
from appliance.log.tools import is_partition
from appliance.processes.supervisor.children import state_of
from appliance.shared import memory
from appliance.zookeeper.kazoo_link import kazoo_client
from appliance.zookeeper.login import LOCAL_USER, SECRET_FILE, ZooKeeperLogin

from .derived import compare
from .zookeeper_fixture import QUICK_JAVA

__all__ = ["NotServing", "Server", "children", "runs", "stopped", "wait_for"]


class Server(LocalAppliance):
    """An appliance with two workers that tests may break; its local ensemble does not wait for the disk."""

    def __init__(self, data_dir: Path, config_file: Path | None = None, **settings: Any) -> None:
        super().__init__(data_dir, config_file, **{"network.workers": 2, "zookeeper.java": QUICK_JAVA} | settings)

    def wait_for_zookeeper(self) -> None:
        """Wait until its coordinator has a session; the Javas of a local ensemble start slowly on a busy machine."""
        wait_for(lambda: self.state["zookeeper"].get("state") == "connected", "a session with ZooKeeper", 120)

    @property
    def zookeeper_login(self) -> ZooKeeperLogin:
        """How to log in to the local ensemble."""
        return ZooKeeperLogin("sasl", LOCAL_USER, (self.data_dir / SECRET_FILE).read_text().strip())

    def zookeeper_client(self) -> Any:
        """A kazoo client of the local ensemble, not started."""
        return kazoo_client(self.state["zookeeper"]["connect"], self.zookeeper_login)

    @property
    def zookeeper_access(self) -> dict[str, str]:
        """The settings of another appliance that uses the local ensemble of this one."""
        file = str(self.data_dir / SECRET_FILE)
        connect = self.state["zookeeper"]["connect"]
        return {"zookeeper.connect": connect, "zookeeper.user": LOCAL_USER, "zookeeper.password_file": file}

    def wait_for_tables(self, topic: str, partitions: int = 1) -> None:
        """Wait until state.json has the segment tables of a new topic: it is written a moment later."""
        names = {f"{topic}-{number}" for number in range(partitions)}
        wait_for(lambda: names <= set(self.state["tables"]), f"the tables of {topic} to be shown")

    def processes(self, role: str) -> list[dict[str, Any]]:
        return [row for row in self.state["processes"] if row["role"] == role]

    def pid_of(self, role: str) -> int:
        """The process with a role, as soon as state.json shows it: that is written up to 0.2 s after a change.

        It is the first one of those roles that several have.
        """

        def found() -> list[int]:
            return [pid for pid in self.pids(role) if runs(pid)]  # not one that has just been killed

        pids: list[int] = wait_for(found, f"a process with the role {role} to be shown")
        assert role in ("network", "writer", "zookeeper") or len(pids) == 1, f"{role}: {pids}"
        return pids[0]

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        if pid not in {row["pid"] for row in self.state["processes"]}:
            raise ProcessLookupError(f"process {pid} is not, or no longer, one of this appliance")
        os.kill(pid, number)

    def stop(self) -> int:
        """As of any appliance; and what it had derived of its logs is what their files give."""
        status = super().stop()
        if status == 0:
            for directory in self.data_dir.iterdir():
                if directory.is_dir() and is_partition(directory):
                    differences = compare(directory)
                    assert not differences, f"derived otherwise than recovered: {differences}"
        return status

    def kill_supervisor(self) -> None:
        assert self.process is not None
        self.process.kill()
        self._wait()

    def leftovers(self) -> list[str]:
        """Names in /dev/shm that belong to this data directory."""
        prefix = memory.name_of(memory.instance_of(self.data_dir), "")[1:]
        return [path.name for path in memory.SHM_DIR.iterdir() if path.name.startswith(prefix)]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if (
            self.process is not None and self.process.returncode < 0
        ):  # killed, and nothing will be started here again to clean up
            memory.unlink_all(memory.instance_of(self.data_dir))


def children(server: Server, name: str) -> list[int]:
    """Pids of the processes of this appliance with a process name; writers are the nursery's children."""
    assert server.process is not None
    pids = children_of(server.process.pid)
    return [pid for pid in pids + [pid for child in pids for pid in children_of(child)] if comm(pid) == name]


def children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def runs(pid: int) -> bool:
    """Whether a process exists, and has not ended."""
    return state_of(pid) not in ("", "Z", "X")


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


def wait_for(condition: Any, what: str, seconds_max: float = 60) -> Any:
    """The first true value of ``condition()``, asked every 10 ms."""
    deadline = time.monotonic() + seconds_max
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds_max} s: {what}"
        select.select([], [], [], 0.01)


def secret_in(data_dir: Path) -> bytes:
    """The secret that the brokers of this one's cluster share; empty before it knows it."""
    stored = msgspec.json.decode((data_dir / "security.json").read_bytes())
    return msgspec.convert(stored["state"]["secret"], bytes)
