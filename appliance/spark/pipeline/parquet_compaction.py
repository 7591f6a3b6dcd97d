"""Compacts the events of a Parquet output by exchanging directories.

Readers of Parquet list a directory and read every file in it, so a file that is put together must appear at the moment
at which its sources go.  No file system does that for several files, but Linux exchanges two directories at one moment
(renameat2 with RENAME_EXCHANGE: ext4, xfs, btrfs, tmpfs).  So a new directory of the partition is built outside of the
table, with the new file and hard links to all others, and then takes the place of the old one.

A reader sees each row once, before and after.  One that has opened its files goes on reading them.  One that has listed
them before the exchange, and opens them after it, gets "file not found", and has to list them again; it never gets a
part.  Delta has no such moment.

:func:`moving` excludes the renames of a commit during an exchange.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ... import libc
from ...errors import BadValue
from .compaction import EventFile, write_together
from .output_files import OutputFiles
from .settings import Output
from .table_files import EVENTS, sync_directories

FRESH: Final = "_compaction"
TASK: Final = 99_999
"""Stands in the name of a file for the number of a task, which is smaller."""


class ParquetEvents:
    errors: tuple[type[Exception], ...] = ()

    def __init__(self, root: Path, settings: Output) -> None:
        self._root = root
        self._settings = settings

    def event_files(self) -> list[EventFile]:
        found = []
        for path in (self._root / EVENTS).rglob("[!._]*.parquet"):
            place = path.relative_to(self._root / EVENTS)
            status = path.stat()
            found.append(EventFile(str(place.parent), str(place), status.st_size, status.st_mtime_ns // 1_000_000))
        return found

    def swap(self, sources: Sequence[EventFile]) -> int:
        old = self._root / EVENTS / sources[0].partition
        paths = [self._root / EVENTS / each.path for each in sources]
        fresh = self._root / FRESH / uuid.uuid4().hex
        fresh.mkdir(parents=True)
        try:
            files = OutputFiles(self._settings)
            name = str((fresh / _name(paths, old)).relative_to(self._root))
            write_together(files, [str(path.relative_to(self._root)) for path in paths], name, self._settings)
            with moving(self._root):
                left = {path.name for path in old.iterdir()} - {path.name for path in paths}
                for name in left:
                    os.link(old / name, fresh / name)
                if not all(path.exists() for path in paths) or len(list(fresh.iterdir())) != len(left) + 1:
                    raise FileNotFoundError(f"{old}: its files are not those that were listed")
                sync_directories({fresh})
                exchange(old, fresh)
                sync_directories({old.parent, fresh.parent})
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return 1

    def vacuum(self) -> int:
        """Removes what a compaction that was killed has left; there are no old versions."""
        with moving(self._root):
            shutil.rmtree(self._root / FRESH, ignore_errors=True)
        return 0


def _name(sources: Sequence[Path], directory: Path) -> str:
    """A name like those of the sources, with the last of their micro-batches."""
    batch = max(int(path.name.split("-")[0]) for path in sources)
    names = (f"{batch:09d}-{TASK:05d}-{number:04d}.parquet" for number in range(10_000))
    return next(name for name in names if not (directory / name).exists())


@contextmanager
def moving(root: Path, *, forbidden: bool = False) -> Iterator[None]:
    """Only one process at a time changes the names in the tables; ``forbidden``: none does, for those who read them."""
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH if forbidden else fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def exchange(one: Path, other: Path) -> None:
    """Give each directory the other's name, at one moment.

    Raises:
        BadValue: the file system cannot do it.
    """
    try:
        libc.exchange_paths(one, other)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOSYS):
            raise BadValue(
                f"the file system of {one} cannot exchange directories, so Parquet files cannot be compacted there: "
                'set output.compact_ms = 0, or use output.format = "delta"'
            ) from None
        raise
