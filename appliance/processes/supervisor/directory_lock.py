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
from ...status import LOCK_FILE
from ..clock import now_ms

logger = logging.getLogger(__name__)

UMASK: Final = 0o077
LOCK_WAIT_MS: Final = 10_000
"""How long a start waits for the last writers of a killed instance to end."""


def take_directory(data_dir: Path) -> None:
    """Make the data directory, close it to other users, and let nobody else read what this process makes.

    Files that an earlier release made for a group stay as they are: the directory hides them.
    """
    data_dir.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    os.umask(UMASK)
    mode = stat.S_IMODE(data_dir.stat().st_mode)
    if mode & UMASK:
        logger.warning("%s had mode %04o; it has %04o now, so that no other user can read it", data_dir, mode, 0o700)
        data_dir.chmod(DIRECTORY_MODE)


def lock(data_dir: Path) -> int:
    """Lock the data directory; wait for the orphans of a killed supervisor to end.

    Raises:
        AlreadyRunning: another supervisor has it, or an orphan that does not end; the message says which.
    """
    fd = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    deadline_ms = now_ms() + LOCK_WAIT_MS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            pid = os.pread(fd, 32, 0).decode(errors="replace").strip()
            if Path(f"/proc/{pid}").exists():
                os.close(fd)
                raise AlreadyRunning(
                    f"{data_dir} is in use by the appliance with pid {pid}: stop it, or give another --data"
                ) from None
            if now_ms() > deadline_ms:
                os.close(fd)
                raise AlreadyRunning(
                    f"{data_dir}: a process of the appliance that was killed (pid {pid}) hangs: "
                    f"end it with fuser --kill {data_dir / LOCK_FILE}, and start again"
                ) from None
            time.sleep(0.05)
    os.ftruncate(fd, 0)
    os.pwrite(fd, str(os.getpid()).encode(), 0)
    return fd
