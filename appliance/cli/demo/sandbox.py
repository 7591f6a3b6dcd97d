"""Owns the demo's temporary directory and its processes, and removes both at the end.

Every demo holds a lock on the file ``owner`` in its directory.  If the lock is free, the demo was killed, and could not
clean up.  The next demo then removes its processes (found by the directory in their command line), its names in
/dev/shm (found by the inode of its data directory) and its files.

Children run in sessions of their own: Ctrl-C reaches the demo only, which stops them in order.  They are started with
a parent-death signal, so that they end when the demo is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ... import libc
from ...errors import Unavailable
from ...owners import refuse_others_directory
from ...shared import memory

PREFIX = "appliance-demo-"
OWNER = "owner"
DATA = "data"
STOP_S = 30.0
POLL_S = 0.02
SETTLING_S = 2.0


class Sandbox:
    """The directory and the children of one demo; :meth:`close` removes them."""

    def __init__(self) -> None:
        """Raises OthersDirectory: root's TMPDIR is in a directory of another user."""
        refuse_others_directory(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getuid()}-"))
        self.data = self.path / DATA
        self.data.mkdir()
        self._owner: IO[str] = (self.path / OWNER).open("w")
        fcntl.flock(self._owner, fcntl.LOCK_EX)
        self._children: list[subprocess.Popen[bytes]] = []
        self._instance = memory.instance_of(self.data)

    def spawn(self, *arguments: str, log: str, death_signal: int = signal.SIGTERM) -> subprocess.Popen[bytes]:
        """Run ``python -m <arguments>`` with its output in files of the sandbox."""

        def follow_parent() -> None:
            libc.end_with_parent(death_signal)

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

    def output_of(self, log: str) -> str:
        """The standard output of a child so far."""
        return (self.path / f"{log}.out").read_text(errors="replace")

    def log_end_of(self, log: str, lines: int = 12) -> str:
        """The last lines of a child's log, for an error message."""
        return "\n".join((self.path / f"{log}.log").read_text(errors="replace").splitlines()[-lines:])

    def stop(self, child: subprocess.Popen[bytes]) -> int:
        """End a child with SIGTERM, after STOP_S with SIGKILL.  Returns its exit status."""
        child.send_signal(signal.SIGTERM)
        try:
            return child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            return child.wait()

    def close(self) -> list[str]:
        """Stop the children, last started first, and remove everything.  Returns what :func:`clear` has found."""
        for child in reversed(self._children):
            if child.poll() is None:
                self.stop(child)
        leftovers = clear(self.path, self._instance)
        self._owner.close()
        return leftovers


def clear(directory: Path, instance: str) -> list[str]:
    """Remove processes, shared memory and files of a demo.  Returns which processes and names there were."""
    removed = [f"process {pid}" for pid in processes_in(directory)]
    deadline = time.monotonic() + STOP_S
    while pids := list(processes_in(directory)):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise Unavailable(f"processes {pids} of {directory} do not die")
        time.sleep(POLL_S)
    removed += [f"/dev/shm{name}" for name in memory.unlink_all(instance)]
    shutil.rmtree(directory, ignore_errors=True)
    return removed


def processes_in(directory: Path) -> Iterator[int]:
    """Yields the pids of Python and Java processes that have the directory in their command line."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                named = f"{directory}/".encode() in (entry / "cmdline").read_bytes()
                if named and (entry / "exe").readlink().name.startswith(("python", "java")):
                    yield int(entry.name)


def clear_abandoned() -> list[str]:
    """Remove what killed demos of this user have left behind.  Returns what was found."""
    removed: list[str] = []
    for directory in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}{os.getuid()}-*")):
        seen = directory.lstat()
        if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.geteuid():  # everybody may make such names in /tmp
            continue
        if time.time() - seen.st_mtime < SETTLING_S:  # its demo may not have taken the lock yet
            continue
        with contextlib.suppress(OSError), (directory / OWNER).open() as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails for a running demo, which is left alone
            instance = memory.instance_of(directory / DATA) if (directory / DATA).is_dir() else ""
            removed += [str(directory), *clear(directory, instance or "none")]
    return removed
