"""Replaces a JSON file in the data directory as a whole, also when the disk is full.

There are two files, each larger than its content (JSON may end in spaces).  The spare one is overwritten in place,
which needs no new blocks, and then exchanges names with the other (renameat2 with RENAME_EXCHANGE): a reader sees the
old content or the new one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from ... import libc

ROOM_BYTES: Final = 64 * 1024


class StateFile:
    """``path`` and its spare.  They are not synced: after a crash of the machine the old state has no use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._spare = path.with_name(path.name + ".spare")

    def replace(self, content: bytes) -> None:
        """Replace the content.

        Raises:
            OSError: the content is larger than the file, and the disk is full; the old content stays.
        """
        if not self._path.exists():
            self._fill(self._spare, content)
            self._spare.replace(self._path)
        self._fill(self._spare, content)
        try:
            libc.exchange_paths(self._spare, self._path)
        except OSError:
            self._spare.replace(self._path)  # a file system that cannot exchange

    def _fill(self, path: Path, content: bytes) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            room = os.fstat(fd).st_size
            if room < len(content):
                room = -(-2 * len(content) // ROOM_BYTES) * ROOM_BYTES
                os.posix_fallocate(fd, 0, room)
            os.pwrite(fd, content.ljust(room), 0)
        finally:
            os.close(fd)
