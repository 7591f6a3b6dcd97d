"""Takes the data directory for one supervisor: closes it to other users, and locks it."""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import time
from pathlib import Path
from typing import Final

from ...errors import AlreadyRunning
from ...log.files import DIRECTORY_MODE, FILE_MODE
from ...owners import refuse_others_directory
from ...status import LOCK_FILE
from ..clock import now_ms

logger = logging.getLogger(__name__)

UMASK: Final = 0o077
LOCK_WAIT_MS: Final = 10_000
"""How long a start waits for the last writers of a killed instance to end."""


def take_directory(data_dir: Path) -> None:
    """Make the data directory, close it to other users, and let nobody else read what this process makes.

    Files that an earlier release made for a group stay as they are: the directory hides them.

    Raises:
        OthersDirectory: root was to serve the directory of another user.
    """
    refuse_others_directory(data_dir)
    data_dir.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    os.umask(UMASK)
    mode = stat.S_IMODE(data_dir.stat().st_mode)
    if mode & UMASK:
        logger.warning("%s had mode %04o; it has %04o now, so that no other user can read it", data_dir, mode, 0o700)
        data_dir.chmod(DIRECTORY_MODE)


def lock(data_dir: Path) -> int:
    """Lock the data directory, for a supervisor or a repair without one; return the descriptor that holds the lock.

    It waits for the orphans of a killed supervisor to end.

    Raises:
        AlreadyRunning: another supervisor has it, or another process that does not end; the message says what to do.
    """
    fd = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    deadline_ms = now_ms() + LOCK_WAIT_MS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)  # it names a process that has ended, and perhaps another one that has its number now
            return fd
        except BlockingIOError:
            pid = os.pread(fd, 32, 0).decode(errors="replace").strip()
            reason = ""
            if pid and Path(f"/proc/{pid}").exists():
                reason = f"{data_dir} is in use by the appliance with pid {pid}: stop it, or give another --data"
            elif now_ms() > deadline_ms:
                file = data_dir / LOCK_FILE
                reason = (
                    f"{data_dir} is locked by a repair, by an appliance in another container, or by a process "
                    f"of an appliance that was killed (pid {pid or 'unknown'}) which hangs: see which with "
                    f"fuser -v {file}, wait for a repair, end what hangs with fuser --kill {file}, and try again"
                )
            if reason:
                os.close(fd)
                raise AlreadyRunning(reason) from None
            time.sleep(0.05)


def sign(lock_fd: int) -> None:
    """Write into the lock file that this process serves the directory."""
    os.pwrite(lock_fd, str(os.getpid()).encode(), 0)
