"""Says by inotify in which directories and files something has happened, so that they are looked at sooner."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import itertools
import logging
import os
from collections.abc import Iterable
from typing import Final

from inotify_simple import INotify, flags

logger = logging.getLogger(__name__)

WATCHES_MAX: Final = 10_000
HINTS_MAX: Final = 10_000
WATCHED: Final = flags.MODIFY | flags.CREATE | flags.MOVED_FROM | flags.MOVED_TO | flags.DELETE


class Hints:
    """Says by inotify in which directories and files something has happened; nothing relies on it."""

    def __init__(self, include: Iterable[str], wake: asyncio.Event) -> None:
        self._wake = wake
        self._paths: set[str] = set()
        self.has_new_names = False
        self._directories: dict[int, str] = {}
        self._fixed = {os.path.dirname(pattern) for pattern in include if not glob.has_magic(os.path.dirname(pattern))}
        self._inotify: INotify | None = None
        try:
            self._inotify = INotify(nonblocking=True)
        except OSError as error:  # no instance is left: fs.inotify.max_user_instances
            logger.warning("inotify: %s: new lines are seen every scan_ms", error.strerror)

    def __enter__(self) -> Hints:
        if self._inotify is not None:
            asyncio.get_running_loop().add_reader(self._inotify.fileno(), self._read)
        return self

    def __exit__(self, *_: object) -> None:
        if self._inotify is not None:
            asyncio.get_running_loop().remove_reader(self._inotify.fileno())
            self._inotify.close()

    def watch(self, directories: Iterable[str]) -> None:
        """Watch these, at most WATCHES_MAX."""
        self.has_new_names = False
        if self._inotify is None:
            return
        watched = set(self._directories.values())
        for directory in itertools.islice((self._fixed | set(directories)) - watched, WATCHES_MAX - len(watched)):
            with contextlib.suppress(OSError):  # gone, or fs.inotify.max_user_watches is reached
                self._directories[self._inotify.add_watch(directory, WATCHED)] = directory

    def _read(self) -> None:
        assert self._inotify is not None
        for event in self._inotify.read(timeout=0):
            if event.mask & flags.IGNORED:
                self._directories.pop(event.wd, None)
            elif event.mask & (flags.Q_OVERFLOW | flags.CREATE | flags.MOVED_FROM | flags.MOVED_TO | flags.DELETE):
                self.has_new_names = True
            if event.name and event.wd in self._directories and len(self._paths) < HINTS_MAX:
                self._paths.add(os.path.join(self._directories[event.wd], event.name))
        self._wake.set()

    def take_paths(self) -> set[str]:
        """The paths that were named since the last call."""
        paths, self._paths = self._paths, set()
        return paths
