"""Keeps a little of the disk in reserve for what makes room: notes of deletions, and what retention stores first.

On a disk that is full to the last block nothing can be deleted in order: the catalog cannot note it.  So an appliance
keeps a file of RESERVE_BYTES, and gives it up when a deletion finds no room.  It is made again when there is plenty.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from .errors import DiskFull

logger = logging.getLogger(__name__)

RESERVE_NAME: Final = "reserve"
RESERVE_BYTES: Final = 4 << 20
PLENTY: Final = 16
"""The reserve is made while the disk has this many times as much free."""

T = TypeVar("T")


def fill(data_dir: Path) -> None:
    """Make the reserve, if there is none and the disk has plenty of room."""
    path = data_dir / RESERVE_NAME
    system = os.statvfs(data_dir)
    if path.exists() or system.f_bavail * system.f_frsize < PLENTY * RESERVE_BYTES:
        return
    temporary = path.with_name(f"{RESERVE_NAME}.tmp")
    try:
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, RESERVE_BYTES)
        finally:
            os.close(fd)
        temporary.rename(path)
    except OSError as error:
        logger.warning("no room could be kept in reserve for deletions: %s: %s", path, error.strerror)
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def with_reserve(data_dir: Path, do: Callable[[], T]) -> T:
    """Do something that makes room, if need be with the reserve.

    Args:
        do: completes, or raises DiskFull and leaves nothing behind.

    Raises:
        DiskFull: there is no reserve, or it is not enough.
    """
    try:
        return do()
    except DiskFull:
        if not _spend(data_dir / RESERVE_NAME):
            raise
        logger.warning("the disk of %s is full: a deletion uses the room in reserve", data_dir)
        return do()


def _spend(path: Path) -> bool:
    with contextlib.suppress(OSError):
        path.unlink()
        return True
    return False
