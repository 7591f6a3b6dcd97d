"""Files that rotation made between two scans, or while nothing ran, under names that no ``include`` matches."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, KeysView, Mapping

from .file_access import IS_COMPRESSED, FileAccess
from .generation import FileKey, Identity
from .generations import NEVER_READ, Generations
from .packed import PackedFiles
from .recognition import Recognizer
from .rotation import Looks, Patterns, Rotated
from .unpacking import has_compressed_name


class RotatedFiles:
    """Says which files of rotated names are to be read; those that cannot be yet wait, and are said again.

    In the first scan of all, whatever has such a name was there before, and is not read.
    """

    def __init__(
        self,
        patterns: Patterns,
        looks: Looks,
        access: FileAccess,
        generations: Generations,
        recognizer: Recognizer,
        packed: PackedFiles,
        waiting: Iterable[tuple[int, int, int]],
    ) -> None:
        """``waiting``: the keys of the files of rotated names that waited when an earlier process ended."""
        self._patterns, self._looks, self._access = patterns, looks, access
        self._generations, self._recognizer, self._packed = generations, recognizer, packed
        self._waited_before = {FileKey(*key) for key in waiting}
        self._waiting: dict[FileKey, Rotated] = {}
        self._places: dict[FileKey, Rotated] = {}  # of files that are over, under the names that rotation gave them
        self._has_scanned = False  # this process

    def keys(self) -> KeysView[FileKey]:
        """Of those that wait."""
        return self._waiting.keys()

    def waits(self, key: FileKey) -> bool:
        return key in self._waiting

    def files_to_read(self, paths: Mapping[FileKey, str], now_ms: float, *, is_first: bool) -> dict[FileKey, str]:
        """The files to begin, or to go on with, and their paths, in the order in which they changed.

        ``paths``: what the patterns name.  A compressed one is left to :class:`.packed.PackedFiles`.
        """
        rotated = {key: file for key, file in self._waiting.items() if file.is_there}
        keys_before = self._waiting.keys() | self._waited_before
        for file in self._patterns.rotated(self._looks.since_ns if self._has_scanned else 0):
            if file.key in keys_before or is_first or file.status.st_mtime_ns >= self._looks.since_ns:
                rotated[file.key] = file
            if not has_compressed_name(file.path):
                self._places[file.key] = file
        self._has_scanned = True
        self._waited_before.clear()
        rotated |= self._grown()
        named = {key for key, path in paths.items() if not self._access.is_noted_as_compressed(path)}
        read_elsewhere = named | {generation.key for generation in self._generations.read}
        self._waiting = {
            key: file
            for key, file in sorted(rotated.items(), key=lambda row: row[1].status.st_mtime_ns)
            if key not in read_elsewhere
            and stat.S_ISREG(file.status.st_mode)
            and not self._pass_over(file, now_ms, is_first=is_first)
        }
        self._generations.number_unread()
        return {key: file.path for key, file in self._waiting.items()}

    def forget_read(self) -> None:
        """Those that are read by now do not wait any more."""
        self._waiting = {key: file for key, file in self._waiting.items() if key not in self._generations.present}

    def _grown(self) -> dict[FileKey, Rotated]:
        """Files that are over and have more than was read of them: programs go on writing to one that was renamed."""
        ending = {generation.key for generation in self._generations.ending}
        grown: dict[FileKey, Rotated] = {}
        for key, place in list(self._places.items()):
            over = self._generations.over_of_file(key)
            if key in self._generations.present or (over is None and key not in ending):
                del self._places[key]
                continue
            try:
                status = os.lstat(place.path)
            except OSError:
                status = None
            if status is None or (status.st_dev, status.st_ino) != key[:2]:  # its directory has changed: seen then
                del self._places[key]
            elif over and over.committed_line != NEVER_READ and status.st_size > over.identity.tail_stop:
                grown[key] = place._replace(status=status)
        return grown

    def _pass_over(self, file: Rotated, now_ms: float, *, is_first: bool) -> bool:
        """Whether a file of a rotated name is not to be read: it was before, there at first, or is compressed."""
        fd, reason = self._access.try_open(file.path, file.key)
        if fd < 0:
            return is_first
        with contextlib.closing(os.fdopen(fd, "rb", buffering=0)), contextlib.suppress(OSError):
            if reason == IS_COMPRESSED:
                if not is_first:
                    self._packed.add_file(file, now_ms, fd, is_new=True)
                return True
            if self._patterns.is_excluded(file.path):  # what is compressed is read, though patterns exclude it
                return True
            size = os.fstat(fd).st_size
            for generation in self._recognizer.over_fitting(fd, file.key, file.path):
                if generation.identity.tail_stop == size or generation.committed_line == NEVER_READ:
                    return True
            if is_first or self._recognizer.is_mere_copy(fd, file.key):
                self._generations.pass_unread(file.path, Identity.at_position(fd, size))
                return True
        return False
