"""Tracks the parts of a log that are not on the disk yet, and makes tickets with which another thread syncs them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ..durable_files import File, System
from ..errors import StorageFault
from .recovery import RecoveryPoint
from .segment import Segment


class FlushTicket:
    """Lists the files to sync to have the log on the disk up to ``end``, the log end offset at that moment."""

    __slots__ = ("_active", "_directory", "_point", "_system", "directory_changes", "end", "rolled")

    def __init__(
        self,
        active: Segment,
        rolled: tuple[File, ...],
        directory: File | None,
        directory_changes: int,
        point: RecoveryPoint,
        system: System,
    ) -> None:
        self.end = active.end
        self.rolled = rolled
        self.directory_changes = directory_changes
        self._active = active
        self._directory = directory
        self._point = point
        self._system = system

    def sync(self) -> None:
        """Sync the files of the ticket, and check that the active one is still the log's.

        Raises:
            StorageFault: a sync failed, or the file has lost its name.  Do not retry: the next sync may succeed without
                the lost pages.
        """
        try:
            for file in self.rolled:
                self._system.fdatasync(file.fd)
            self._system.fdatasync(self._active.log.fd)
            if self._directory is not None:
                self._system.fsync(self._directory.fd)
            self._active.check_named(self.end)
        except OSError as error:
            self._point.set_faulted()
            raise StorageFault(f"{self._active.log.path}: cannot be flushed: {error.strerror}") from error
        except StorageFault:
            self._point.set_faulted()
            raise


class Unsynced:
    """Sealed files, and changes of names in the directory, that are not known to be on the disk.

    The writer's loop calls all methods, except :meth:`on_synced`: the thread that syncs may call that one.
    """

    def __init__(self, directory: File) -> None:
        self._directory = directory
        self._files: dict[File, None] = {}
        self._changes = 0  # of names in the directory
        self._synced = 0  # changes that are on the disk
        self._needed = 0  # changes that must be on the disk before a file is unlinked

    def __bool__(self) -> bool:
        return bool(self._files) or self._synced < self._changes

    @property
    def names_needed(self) -> bool:
        """Whether names of the remaining segments may be missing on the disk."""
        return self._synced < self._needed

    def on_rolled(self, files: Iterable[File]) -> None:
        """A segment was sealed and another one created: ``files`` must be synced."""
        self._changes += 1
        self._needed = self._changes
        for file in files:
            self._files[file] = None

    def on_unlinked(self) -> None:
        self._changes += 1

    def files(self) -> tuple[File, ...]:
        return tuple(self._files)

    def keep_only(self, kept: Collection[File]) -> None:
        """Forget all other files: they were removed after a failed append."""
        for file in self.files():
            if file not in kept:
                self._files.pop(file, None)

    def ticket(self, active: Segment, point: RecoveryPoint, system: System) -> FlushTicket:
        """Make a ticket for the log up to its end, which lies in ``active``."""
        directory = self._directory if self._changes != self._synced else None
        return FlushTicket(active, self.files(), directory, self._changes, point, system)

    def on_synced(self, ticket: FlushTicket) -> None:
        for file in ticket.rolled:
            self._files.pop(file, None)
        self._synced = max(self._synced, ticket.directory_changes)
