"""Looks at files and opens them for an input, and keeps why a path is not read, for its status."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Final

from ..errors import FileNotPermitted
from .generation import FileKey
from .guard import Guard
from .unpacking import has_compressed_name, is_compressed

logger = logging.getLogger(__name__)

IS_COMPRESSED: Final = "is compressed"
"""Which is as it should be: what it has was read before, or is read there."""


def fits_or_close(fits: Callable[[int, int], bool], fd: int, size: int) -> bool:
    """Whether an open file fits, by its descriptor and size; if not, or if the disk fails, it is closed.

    Raises:
        OSError: the disk fails.
    """
    does_fit = False
    try:
        does_fit = fits(fd, size)
    finally:
        if not does_fit:
            os.close(fd)
    return does_fit


class FileAccess:
    """Looks at files and opens them, as far as ``guard`` permits it; each reason why not is logged once."""

    def __init__(self, guard: Guard, unread_max: int) -> None:
        """``unread_max``: how many paths are kept with the reason why they are not read."""
        self._guard, self._unread_max = guard, unread_max
        self._unread: dict[str, str] = {}  # paths that are not read, and why
        self._closed: Mapping[str, str] = {}  # directories that cannot be looked into, and why
        self._barred: set[FileKey] = set()

    def begin_scan(self, closed: Mapping[str, str]) -> None:
        """``closed``: directories that cannot be looked into, and why."""
        self._guard.begin_scan()
        self._barred.clear()
        for path in closed.keys() - self._closed.keys():
            logger.warning("%s is not read: %s", path, closed[path])
        self._closed = closed

    def end_scan(self) -> str:
        """What is not read, in one line; empty if everything is."""
        for path in [path for path in self._unread if not os.path.lexists(path) and not self.is_hidden(path)]:
            del self._unread[path]
        reasons = {**self._closed, **self._unread}.items()
        lines = [f"{path}: {reason}" for path, reason in reasons if reason != IS_COMPRESSED]
        more = f", and {len(lines) - 1} more files" if lines[1:] else ""
        return f"{lines[0]}{more}" if lines else ""

    def look(self, path: str) -> tuple[os.stat_result, FileKey] | None:
        """The status of a file; None: it cannot be looked at, or is not to be, which is noted."""
        try:
            return self._guard.look(path)
        except OSError as error:
            self.note_unread(path, error.strerror or "cannot be looked at")
        except FileNotPermitted as error:
            self.note_unread(path, str(error))
        return None

    def open(self, path: str, key: FileKey) -> int:
        """The descriptor of a file that is to be read; -1: it is not, or cannot be, which is noted."""
        fd, reason = self.try_open(path, key)
        if reason:
            self.note_unread(path, reason)
            if fd >= 0:
                os.close(fd)
            return -1
        if self._unread.pop(path, ""):
            logger.info("%s can be read", path)
        return fd

    def open_compressed(self, path: str, key: FileKey) -> int:
        """The descriptor of a compressed file; -1: it is none, or cannot be opened."""
        fd, reason = self.try_open(path, key)
        if fd >= 0 and reason != IS_COMPRESSED:
            os.close(fd)
            return -1
        return fd

    def try_open(self, path: str, key: FileKey) -> tuple[int, str]:
        """The descriptor, if it could be opened, and why it is not to be read."""
        fd = -1
        try:
            fd = self._guard.open(path)
            if FileKey.of_fd(fd) != key:
                return fd, "was replaced in this moment"
            head = os.pread(fd, 6, 0)
            is_packed = is_compressed(head) or (not head and has_compressed_name(path))  # or will be, in a moment
            return fd, IS_COMPRESSED if is_packed else ""
        except FileNotPermitted as error:
            return fd, str(error)
        except OSError as error:
            self.bar(key)
            return fd, error.strerror or "cannot be read"

    def bar(self, key: FileKey) -> None:
        """Note that a file is there, and cannot be read in this scan."""
        self._barred.add(key)

    def is_barred(self, key: FileKey) -> bool:
        """Whether a file is there, and could not be read in this scan."""
        return key in self._barred

    def note_unread(self, path: str, reason: str) -> None:
        if self._unread.get(path) != reason and len(self._unread) < self._unread_max:
            self._unread[path] = reason
            logger.warning("%s is not read: %s", path, reason)

    def note_read(self, path: str) -> None:
        """A path is read, whatever kept it from that before."""
        self._unread.pop(path, "")

    def is_noted_as_compressed(self, path: str) -> bool:
        """Whether a path is not read because it is compressed."""
        return self._unread.get(path) == IS_COMPRESSED

    def is_hidden(self, path: str) -> bool:
        """Whether it cannot be known if there is such a file, as in a directory that cannot be read now."""
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            self.note_unread(path, error.strerror or "cannot be looked at")
            return True
        return False
