"""Says which generation an unknown file is, or is a copy of, by its content and its name.

A *copy* is what rotation makes of a file before it truncates it.  While it is made it is told from another file only by
what it has so far, so what begins as a file that is read may be one, up to SHADOW_MS after it has grown.
:mod:`.files` has the rules.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Container, Iterator
from typing import Final, NamedTuple

from .file_access import IS_COMPRESSED, FileAccess, fits_or_close
from .generation import FileKey, Generation
from .generations import NEVER_READ, Generations
from .rotation import Directories
from .unpacking import unpacked_head

SHADOW_MS: Final = 60_000
"""How long a file that begins like another one, under a name that rotation gives, may be its copy."""


class _Shadow(NamedTuple):
    """A possible copy: since when it has not grown, its size, and what it is a copy of."""

    since_ms: float
    size: int
    of: Generation


class Recognizer:
    """Compares files with the generations that are known.  Files are open as ``fd``, and have ``key`` and ``path``."""

    def __init__(
        self, generations: Generations, directories: Directories, access: FileAccess, clock_ms: Callable[[], float]
    ) -> None:
        self._generations, self._directories = generations, directories
        self._access, self._clock_ms = access, clock_ms
        self._shadows: dict[FileKey, _Shadow] = {}

    def lost_generation(self, fd: int, key: FileKey, path: str) -> Generation | None:
        """The generation that lost its file, and goes on in this one.  Raises OSError."""
        size = os.fstat(fd).st_size
        same = self._generations.lost_of_file(key, path, fd)
        others = [
            generation
            for generation in (*self._generations.lost_like(path), *self._drained_like(path))
            if generation not in same
        ]
        for generation in (*same, *(generation for generation in others if key.may_be_copy_of(generation.key))):
            if generation.goes_on_in(fd, size) and (
                generation in same or generation.replaced or self._is_there(generation)
            ):
                return generation
        return next((generation for generation in same if generation.may_go_on_in(fd, size)), None)

    def over_generation(self, fd: int, key: FileKey, path: str, *, is_rotated: bool) -> Generation | None:
        """The generation that was over, and goes on in this file: it came back, or has more.  Raises OSError.

        Under a name that ``include`` has, only its own file, and only one that was read: others may begin as it does.
        """
        for generation in self.over_fitting(fd, key, path):
            is_own = generation.key == key or self._is_mounted_again(generation, key, path)
            if is_rotated or (is_own and generation.committed_line != NEVER_READ):
                return generation
        return None

    def over_fitting(self, fd: int, key: FileKey, path: str) -> Iterator[Generation]:
        """Those that are over, and that a file has the content of: by its inode, or by its name.  Raises OSError."""
        own = self._generations.over_of_file(key)
        others = self._generations.over_like(path)
        for generation in (
            *((own,) if own is not None else ()),
            *(generation for generation in others if generation.key != key and key.may_be_copy_of(generation.key)),
        ):
            fits = generation.identity.tail_stop > 0 and generation.identity.fits(fd, generation.identity.tail_stop)
            is_own = generation.key == key or self._is_mounted_again(generation, key, path)
            if fits and (is_own or self._is_there(generation)):
                yield generation

    @staticmethod
    def _is_mounted_again(generation: Generation, key: FileKey, path: str) -> bool:
        return generation.path == path and generation.key.is_on_another_device(key)

    def was_read(self, fd: int, path: str) -> bool:
        """Whether a file is a copy of one that was replaced, and has less than what was read of it.  Raises OSError."""
        size = os.fstat(fd).st_size
        return any(
            size < generation.committed and generation.is_source_of(fd, size) for generation in self._drained_like(path)
        )

    def _drained_like(self, path: str) -> list[Generation]:
        """Those that lost their content, are not on their way any more, and that ``path`` may be a copy of."""
        return [
            generation
            for generation in self._generations.read_like(path)
            if generation.replaced and not generation.in_flight
        ]

    def _is_there(self, generation: Generation) -> bool:
        """Whether its file is, perhaps with other content by now: else what has the same lines was not copied from it,
        or cannot be told from what was not."""
        if generation.key in self._generations.present:
            return True
        with contextlib.suppress(OSError):
            return any(FileKey.of_path(path) == generation.key for path, _ in self._directories.beside(generation.path))
        return False

    # ---- copies that are being made

    def is_shadow(self, fd: int, key: FileKey, path: str) -> bool:
        """Whether a file may be a copy of one that is about to be truncated, and waits then.  Raises OSError."""
        size, now = os.fstat(fd).st_size, self._clock_ms()
        read = (
            generation
            for generation in self._generations.read_like(path)
            if not generation.replaced or generation.in_flight
        )
        for generation in read:
            if key.may_be_copy_of(generation.key) and generation.may_become(fd, size):
                since, last_size, _ = self._shadows.get(key, (now, size, generation))
                # A copy grows while it is made, and never after.  One that outgrows the file is none.
                if size != last_size and size <= generation.seen_bytes:
                    since = now
                self._shadows[key] = _Shadow(since, size, generation)
                # How far one was read that was truncated is known once all of it is flushed.
                return now - since < SHADOW_MS or generation.replaced
        self._shadows.pop(key, None)
        return False

    def is_mere_copy(self, fd: int, key: FileKey) -> bool:
        """Whether somebody has made a copy of a file, and did not truncate it then.  Raises OSError."""
        shadow = self._shadows.get(key)
        if shadow is None:
            return False
        of, size = shadow.of, os.fstat(fd).st_size
        if self._generations.has_file(of) or of in self._generations.ending:
            return self._clock_ms() - shadow.since_ms >= SHADOW_MS and of.begins_with(fd, size)
        return of.is_source_of(fd, size)

    def forget_shadow(self, key: FileKey) -> None:
        """It is known which generation a file is."""
        self._shadows.pop(key, None)

    def keep_shadows(self, keys: Container[FileKey]) -> None:
        """Forget all but those of ``keys``: the others are not there any more."""
        self._shadows = {key: shadow for key, shadow in self._shadows.items() if key in keys}

    # ---- files of a generation

    def open_file_of(self, generation: Generation) -> tuple[int, str] | None:
        """The file that a generation goes on in, under a name that rotation gives, also where ``include`` has none:
        its descriptor and path."""
        generations = self._generations
        read = generations.present.keys() | {ending.key for ending in generations.ending if not ending.replaced}
        if not generation.committed:  # its first bytes are all that is known of it, which others may have as well
            read |= generations.over_keys()
        with contextlib.suppress(OSError):
            beside_it = [
                (path, status, FileKey.of_path(path)) for path, status in self._directories.beside(generation.path)
            ]
            if not generation.replaced and generation.key not in (key for _, _, key in beside_it):
                return None
            for path, status, key in beside_it:
                if key in read or not key.may_be_copy_of(generation.key):
                    continue
                if not generation.committed and generations.is_of_another_lost(generation, key):
                    continue
                fd, reason = self._access.try_open(path, key)
                is_own = key == generation.key and not generation.replaced
                fits = generation.may_go_on_in if is_own else generation.goes_on_in
                if reason:
                    if fd >= 0:
                        os.close(fd)
                elif fits_or_close(fits, fd, status.st_size):
                    return fd, path
        return None

    def is_read_as_copy(self, generation: Generation) -> bool:
        """Whether a later one reads the copy of a file that was truncated before anything of it was read."""
        if generation.committed or not generation.replaced:
            return False
        with contextlib.suppress(OSError):
            for path, status in self._directories.beside(generation.path):
                key = FileKey.of_path(path)
                if key == generation.key or not key.may_be_copy_of(generation.key):
                    continue
                if not any(owner.source > generation.source for owner in self._generations.of_file(key)):
                    continue
                fd, _ = self._access.try_open(path, key)
                if fd >= 0 and fits_or_close(generation.goes_on_in, fd, status.st_size):
                    os.close(fd)
                    return True
        return False

    def has_copy(self, generation: Generation) -> bool:
        """Whether a file beside it is a copy of one that was truncated, compressed or not."""
        with contextlib.suppress(OSError):
            for path, _ in self._directories.beside(generation.path):
                fd, reason = self._access.try_open(path, FileKey.of_path(path))
                if fd < 0:
                    continue
                with contextlib.closing(os.fdopen(fd, "rb", buffering=0)):
                    if reason == IS_COMPRESSED and generation.identity.is_head_of(unpacked_head(fd)):
                        return True
                    if not reason and generation.is_source_of(fd, os.fstat(fd).st_size):
                        return True
        return False
