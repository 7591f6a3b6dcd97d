"""Where the demo lives: a temporary directory, the processes in it, and their removal, whatever happens.

Every demo holds a lock on ``owner`` in its directory.  A directory whose lock is free belongs to a demo that
was killed: its processes (known by the directory in their command line), its names in /dev/shm (known by the
inode of its data directory) and its files are removed at the next run, which is the only thing that can do it
after a SIGKILL.

Children are started in a session of their own, so that Ctrl-C reaches the demo alone and it can stop them in
order, and with a parent-death signal, so that they stop by themselves when it is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ..errors import Unavailable
from ..shared import memory

PREFIX = "appliance-demo-"
OWNER = "owner"
DATA = "data"
PR_SET_PDEATHSIG = 1
STOP_S = 30.0
POLL_S = 0.02
SETTLING_S = 2.0


class Room:
    """One demo's directory and children; leave it with :meth:`close`."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getuid()}-"))
        self.data = self.path / DATA
        self.data.mkdir()
        self._owner: IO[str] = (self.path / OWNER).open("w")
        fcntl.flock(self._owner, fcntl.LOCK_EX)
        self._children: list[subprocess.Popen[bytes]] = []
        self._instance = memory.instance_of(self.data)

    def spawn(self, *arguments: str, log: str, death_signal: int = signal.SIGTERM) -> subprocess.Popen[bytes]:
        """Run ``python -m <arguments>`` with its output in files of the directory."""

        def follow_parent() -> None:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)

        with (self.path / f"{log}.out").open("wb") as out, (self.path / f"{log}.log").open("wb") as err:
            child = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=follow_parent,
            )
        self._children.append(child)
        return child

    def said(self, log: str) -> str:
        """What a child has written to its standard output so far."""
        return (self.path / f"{log}.out").read_text(errors="replace")

    def complaint(self, log: str, lines: int = 12) -> str:
        """The end of a child's log, for a fault's message."""
        return "\n".join((self.path / f"{log}.log").read_text(errors="replace").splitlines()[-lines:])

    def stop(self, child: subprocess.Popen[bytes]) -> int:
        """End a child in order, and by force when that takes too long; its exit status."""
        child.send_signal(signal.SIGTERM)
        try:
            return child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            return child.wait()

    def close(self) -> list[str]:
        """Stop what still runs, last started first, and remove everything; says what needed force."""
        for child in reversed(self._children):
            if child.poll() is None:
                self.stop(child)
        leftovers = clear(self.path, self._instance)
        self._owner.close()
        return leftovers


def clear(room: Path, instance: str) -> list[str]:
    """Remove processes, shared memory and files of a demo; says which processes and names there were."""
    found = [f"process {pid}" for pid in processes_in(room)]
    deadline = time.monotonic() + STOP_S
    while pids := list(processes_in(room)):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise Unavailable(f"processes {pids} of {room} do not die")
        time.sleep(POLL_S)
    found += [f"/dev/shm{name}" for name in memory.unlink_all(instance)]
    shutil.rmtree(room, ignore_errors=True)
    return found


def processes_in(room: Path) -> Iterator[int]:
    """Pythons and Javas of ours that have the directory in their command line."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                named = f"{room}/".encode() in (entry / "cmdline").read_bytes()
                if named and (entry / "exe").readlink().name.startswith(("python", "java")):
                    yield int(entry.name)


def clear_abandoned() -> list[str]:
    """Remove what killed demos of this user left behind; names what was found."""
    found: list[str] = []
    for room in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}{os.getuid()}-*")):
        if time.time() - room.stat().st_mtime < SETTLING_S:  # its demo may not have taken the lock yet
            continue
        with contextlib.suppress(OSError), (room / OWNER).open("a") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a running demo holds it: leave that one alone
            instance = memory.instance_of(room / DATA) if (room / DATA).is_dir() else ""
            found += [str(room), *clear(room, instance or "none")]
    return found
