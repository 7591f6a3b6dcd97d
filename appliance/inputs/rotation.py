"""Which files the patterns of an input name, and which others rotation has made of such files.

A name that rotation gives has a number, a date or ``old`` behind the name of the file (``app.log.1``,
``app.log-20261125``), or a date or ``old`` before its suffix (``app-20261125.log``; ``app-2.log`` is the log of another
program), and may end as compressed files do.  Content decides what such a file is (:mod:`.files`); names only say where
to look.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import glob
import math
import os
import re
import stat
from collections.abc import Hashable, Iterable, Iterator
from operator import itemgetter
from typing import Final, Generic, NamedTuple, TypeVar

from ..clock import file_clock_ns
from .generation import FileKey
from .unpacking import without_suffix

_CLOSED: Final = (errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE)
_TAG: Final = re.compile(r"\d[\dTZ_.:+-]*|old")
_DATE_DIGITS_MIN: Final = 6
_ROTATED: Final = re.compile(r"([.-]\d+)+$")
NAMES_SETTLE_NS: Final = 100_000_000
"""How long ago a directory must have changed: a change in the same tick of the kernel has the same time."""


class Rotated(NamedTuple):
    """A file that rotation has made of ``base``, as its name says."""

    path: str
    base: str
    status: os.stat_result
    key: FileKey

    @property
    def is_there(self) -> bool:
        """Whether the file still has this name."""
        with contextlib.suppress(OSError):
            return FileKey.of_path(self.path) == self.key
        return False


class Looks:
    """When a file must have changed that no scan has seen: ``since_ns``, in the time of files.

    That is the start of the scan before the last one.  One scan may miss a file that is renamed while it lists the
    names; the next one sees it under the new name.
    """

    def __init__(self, since_ns: int | None) -> None:
        """``since_ns``: as an earlier process left it; None: all is new, and nothing was rotated before."""
        self._is_first = since_ns is None
        self.since_ms, self.since_ns = -math.inf, since_ns or 0
        self._start: tuple[float, int] | None = None  # of the last scan
        self._began = 0.0, 0

    def begin(self, now_ms: float, file_clock_ns: int) -> None:
        """A scan begins: by a steady clock, and by that of files, which may have been set back since the last one."""
        self._began = now_ms, file_clock_ns
        self.since_ns = min(self.since_ns, file_clock_ns)
        if self._is_first:
            self._is_first, self.since_ns = False, file_clock_ns
        if self._start is not None:
            since_ms, since_ns = self._start
            self._start = since_ms, min(since_ns, file_clock_ns - int(1e6 * (now_ms - since_ms)))
            if self.since_ms > -math.inf:
                self.since_ns = min(self.since_ns, file_clock_ns - int(1e6 * (now_ms - self.since_ms)))

    def end(self) -> None:
        if self._start is not None:
            self.since_ms, self.since_ns = self._start
        self._start = self._began


class Patterns(NamedTuple):
    """Of paths; those of ``exclude`` without a slash are of names.  ``**`` follows no symbolic links."""

    include: tuple[str, ...]
    exclude: tuple[str, ...]

    def paths(self) -> list[str]:
        """The paths that match a pattern and no exclusion, each once, in order."""
        paths: dict[str, None] = {}
        for pattern in self.include:
            if "**" in pattern:
                paths |= dict.fromkeys(_walk(pattern))
            else:
                paths |= dict.fromkeys(glob.glob(pattern))
        return sorted(path for path in paths if not self.is_excluded(path))

    def closed(self) -> dict[str, str]:
        """What cannot be looked into, so that nobody knows which paths match: directories, and why."""
        faults: dict[str, str] = {}
        for pattern in self.include:
            for path, error in _closed(pattern):
                if not self.is_excluded(path) and not self.is_excluded(f"{path}/"):
                    faults[path] = error.strerror or "cannot be looked into"
        return faults

    def rotated(self, since_ns: int) -> Iterator[Rotated]:
        """The files that rotation has made of such paths, whether they match or not; also excluded ones.

        Only of directories in which a name was made, or given up, since then (ns since 1970, as files have it).
        """
        directories = {directory for pattern in self.include for directory in _directories(pattern)}
        for directory in sorted(directories):
            with contextlib.suppress(OSError):  # gone, or not to be read: told where its files are looked for
                if os.stat(directory).st_mtime_ns < since_ns:
                    continue
                for name in os.listdir(directory):
                    bases = (os.path.join(directory, base) for base in base_names(name))
                    base = next((base for base in bases if self._matches(base)), None)
                    if base is not None:
                        path = os.path.join(directory, name)
                        with contextlib.suppress(OSError):
                            yield Rotated(path, base, os.stat(path, follow_symlinks=False), FileKey.of_path(path))

    def _matches(self, path: str) -> bool:
        if self.is_excluded(path):
            return False
        directory, name = os.path.split(path)
        for pattern in self.include:
            if "**" in pattern:
                if path.startswith(pattern.partition("**")[0]) and _is_below(path, pattern):
                    return True
                continue
            parent, name_pattern = os.path.split(pattern)
            if fnmatch.fnmatch(name, name_pattern) and fnmatch.fnmatch(directory, parent):
                return True
        return False

    def is_excluded(self, path: str) -> bool:
        name = os.path.basename(path)
        return any(
            fnmatch.fnmatch(path, pattern) or ("/" not in pattern and fnmatch.fnmatch(name, pattern))
            for pattern in self.exclude
        )


def _directories(pattern: str) -> Iterable[str]:
    if "**" in pattern:
        return (directory for directory, _, _ in os.walk(pattern.partition("**")[0] or "."))
    parent = os.path.dirname(pattern)
    return glob.glob(parent) if glob.has_magic(parent) else [parent or "."]


def _closed(pattern: str) -> Iterator[tuple[str, OSError]]:
    """Directories on the way of a pattern that cannot be listed, or searched, as far as it has to be."""
    if "**" in pattern:
        faults: list[OSError] = []
        top = pattern.partition("**")[0] or "."
        yield from _closed(os.path.join(top, "*"))
        for _ in os.walk(top, onerror=faults.append):
            pass
        yield from ((os.path.normpath(str(fault.filename)), fault) for fault in faults if fault.errno in _CLOSED)
        return
    parent, name = os.path.split(pattern)
    if glob.has_magic(parent):
        yield from _closed(parent)
    for directory in _directories(pattern):
        try:
            if glob.has_magic(name):
                os.scandir(directory).close()
            else:
                os.lstat(os.path.join(directory, name))
        except OSError as error:
            if error.errno in _CLOSED:
                yield directory, error


def _walk(pattern: str) -> Iterable[str]:
    top, _, _ = pattern.partition("**")
    for directory, _, names in os.walk(top or "."):
        for name in names:
            path = os.path.join(directory, name)
            if _is_below(path, pattern):
                yield path


def _is_below(path: str, pattern: str) -> bool:
    top, _, rest = pattern.partition("**")
    return fnmatch.fnmatch(path[len(top) :], "*" + rest.lstrip("/") if rest.strip("/") else "*")


# ---- names that rotation gives


def base_names(name: str) -> Iterator[str]:
    """The names that a file may have had before rotation gave it this one."""
    plain = without_suffix(name)
    if plain != name:
        yield plain
    yield from _without_tag(plain)
    stem, suffix = os.path.splitext(plain)
    for base in _without_tag(stem) if suffix else ():
        tag = stem[len(base) + 1 :]
        if tag == "old" or sum(map(str.isdigit, tag)) >= _DATE_DIGITS_MIN:
            yield base + suffix


def _without_tag(name: str) -> Iterator[str]:
    for at, letter in enumerate(name):
        if at and letter in ".-" and _TAG.fullmatch(name, at + 1):
            yield name[:at]


def key_of(path: str) -> bytes:
    """What decides on the partition of a file: the name that it had before it was rotated."""
    return _ROTATED.sub("", path).encode("utf-8", "surrogateescape")


def _is_rotation_of(path: str, base: str) -> bool:
    stem, suffix = os.path.splitext(base)
    return path != base and (
        path.startswith((f"{base}.", f"{base}-"))
        or (path.startswith((f"{stem}-", f"{stem}.")) and without_suffix(path).endswith(suffix))
    )


def is_like(path: str, other: str) -> bool:
    """Whether rotation may give one name to what had the other, also after it was rotated: ``app.log.2``, ``.1``.

    More names than :func:`base_names` takes: it is asked where the content is known, too.
    """
    return path != other and (_is_rotation_of(path, other) or _is_rotation_of(path, _ROTATED.sub("", other)))


T = TypeVar("T", bound=Hashable)


class LikeNames(Generic[T]):
    """What has names, found by the names that rotation may give it: not by asking each of thousands."""

    def __init__(self) -> None:
        self._of_base: dict[str, dict[T, None]] = {}
        self._rows: dict[T, tuple[int, str]] = {}
        self._count = 0

    def add(self, item: T, path: str) -> None:
        """``path``: its only name from now on."""
        self.discard(item)
        self._count += 1
        self._rows[item] = self._count, path
        for base in _bases_of(path):
            self._of_base.setdefault(base, {})[item] = None

    def discard(self, item: T) -> None:
        _, path = self._rows.pop(item, (0, ""))
        for base in _bases_of(path) if path else ():
            del self._of_base[base][item]
            if not self._of_base[base]:
                del self._of_base[base]

    def like(self, path: str) -> list[T]:
        """Those that rotation may have given the name ``path``, in the order in which they were added."""
        items = {item for base in _stems_of(path) for item in self._of_base.get(base, ())}
        return [
            item
            for _, name, item in sorted(((*self._rows[item], item) for item in items), key=itemgetter(0))
            if is_like(path, name)
        ]


def _bases_of(path: str) -> set[str]:
    return {path, _ROTATED.sub("", path)}


def _stems_of(path: str) -> set[str]:
    """Whatever :func:`_is_rotation_of` may say yes to."""
    stems = {path[:at] for at, letter in enumerate(path) if letter in ".-"}
    plain = without_suffix(path)
    suffixes = {name[name.rfind(".") :] for name in (path, plain)}
    return stems | {stem + suffix for stem in stems for suffix in suffixes}


class Directories:
    """The files beside others.  A directory is listed again once a name in it may have changed."""

    def __init__(self) -> None:
        self._listed: dict[str, tuple[int, dict[str, list[str]]]] = {}

    def forget(self) -> None:
        self._listed.clear()

    def beside(self, path: str) -> Iterator[tuple[str, os.stat_result]]:
        """The file ``path``, and those beside it with a name that is like its name.  Raises OSError."""
        directory, name = os.path.split(path)
        by_stem = self._by_stem(directory or ".")
        names = dict.fromkeys(other for base in _bases_of(name) for other in by_stem.get(base, ()))
        for other in (name, *(other for other in names if is_like(other, name))):
            beside_it = os.path.join(directory, other)
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(beside_it)
                if stat.S_ISREG(status.st_mode):
                    yield beside_it, status

    def _by_stem(self, directory: str) -> dict[str, list[str]]:
        changed_ns = os.stat(directory).st_mtime_ns
        listed_ns, by_stem = self._listed.get(directory, (-1, {}))
        if listed_ns == changed_ns:
            return by_stem
        is_settled = changed_ns + NAMES_SETTLE_NS < file_clock_ns()
        by_stem = {}
        for name in os.listdir(directory):
            for stem in _stems_of(name):
                by_stem.setdefault(stem, []).append(name)
        self._listed[directory] = changed_ns if is_settled else -1, by_stem
        return by_stem
