"""Makes a backup of a data directory while an appliance serves it: sealed segments as hard links, all else as copies.

What a backup has is what a crash of the processes would leave, and a start recovers it in the same way.  So it has
everything that was flushed before the backup began.  It needs no lock and asks the appliance nothing, because each part
is copied in an order that recovery can use:

1. ZooKeeper's files before the logs: no committed offset lies behind the end of a log.  In each node snapshots before
   transaction logs, and these before the epochs: ZooKeeper refuses logs that are newer than its epoch.
2. The catalog before the partitions.  A partition that is deleted meanwhile is left out.
3. In each partition the recovery point before the segments: everything that it trusts is in them.  The end of the
   active segment may be a torn batch, which recovery truncates.
   Retention stores the new start in the recovery point and then removes segments.  So when a segment is missing, the
   partition is started over.
   Compaction replaces sealed segments by files without messages that have a later one, which is in a sealed segment
   then.  So segments are copied until none has been sealed meanwhile.

The file of a sealed segment never changes, so the link and the log can share it.  Indexes of active segments are left
out: recovery rebuilds them.  The backup has another name (``.partial``) until all of it is on the disk.

One topic of a backup goes into the trash of a data directory that an appliance may serve (:func:`copy_topic`), from
where that appliance takes it as a topic of its own.  It gets a new id: the topic of the backup may still be there.

Root makes backups of directories of another user.  It makes and names the new directory in a directory of its own.
All else, reading and writing, it does as that user, to whom the new directory is given: both may be changed by programs
of that user meanwhile, and these gain nothing by it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..catalog import FILE_NAME as CATALOG_NAME
from ..catalog import Catalog, Topic
from ..connected_clients import CLIENTS_FILE
from ..durable_files import DIRECTORY_MODE, FILE_MODE, sync_directory
from ..errors import AlreadyRunning, BadValue, NoDirectory, UnknownPartition, disk_fault
from ..health.undelivered import ALERTS_FILE
from ..log.files import index_path, log_path, sizes
from ..log.partition_directory import METADATA_NAME, directory_of, discard_trash, give, trash_directory
from ..log.recovery import POINT_NAME
from ..owners import Owner, acting_as_owner, keeper_of, refuse_others_directory
from ..reserve import RESERVE_NAME
from ..status import FAILED_START_FILE, LOCK_FILE, STATE_FILE
from .data_format import check_format

PARTIAL_SUFFIX: Final = ".partial"
ATTEMPTS_MAX: Final = 5
"""How often a partition is started over because retention removed a segment in the middle of the copy."""
NO_LINK: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP})
ENSEMBLE: Final = "zookeeper"
STAGING: Final = "restoring"
"""Where a topic is copied to before it is in the trash."""
LEFT_OUT: Final = frozenset(
    {LOCK_FILE, STATE_FILE, CLIENTS_FILE, ALERTS_FILE, FAILED_START_FILE, CATALOG_NAME, RESERVE_NAME}
)


@dataclass(slots=True)
class Backup:
    """What a backup has, in partitions and bytes.  ``left_out``: directories of partitions deleted meanwhile."""

    path: Path
    partitions: int = 0
    linked_bytes: int = 0
    copied_bytes: int = 0
    left_out: int = 0


def back_up(data_dir: Path, target: Path) -> Backup:
    """Make a backup of ``data_dir``, served or not, in the new directory ``target``.

    Raises:
        BadValue: ``target`` exists, or is inside of the data directory.
        OthersDirectory: it would be in a directory of somebody who is neither root nor the owner of the data.
        ConfigFault: the data directory has a newer format.
        DiskFull, StorageFault: the disk of the target has no room, or fails; nothing is left of the backup.
        NoDirectory: no appliance has used the data directory.
    """
    with acting_as_owner(data_dir):
        if not (data_dir / LOCK_FILE).exists():
            raise NoDirectory(
                f"{data_dir}: no appliance has been started here",
                remedy="name the directory of `appliance start --data DIR`",
            )
        check_format(data_dir)
        source = data_dir.resolve()
    owner = keeper_of(data_dir)
    if keeper_of(target) != owner:
        refuse_others_directory(target)
    partial = target.with_name(target.name + PARTIAL_SUFFIX)
    with acting_as_owner(target):  # changes something only where that is the owner of the data, too
        for path in (target, partial):
            if path.exists():
                raise BadValue(f"{path} exists: name a new directory, or delete it first")
        if target.resolve().is_relative_to(source):
            raise BadValue(f"{target} is inside of the data directory: name a directory beside it")
        try:
            return _make(data_dir, partial, target, owner)
        except OSError as error:
            raise disk_fault(error, partial) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)  # there only if something failed


def _make(data_dir: Path, partial: Path, target: Path, owner: Owner) -> Backup:
    """Raises OSError: nothing of the backup has its final name."""
    partial.mkdir(DIRECTORY_MODE, parents=True)
    directory_fd = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    through = f"/proc/self/fd/{directory_fd}"  # the owner of the data may not be able to come there by its path
    try:
        if os.geteuid() == 0 and owner.uid:
            os.fchown(directory_fd, owner.uid, owner.gid)
        with acting_as_owner(data_dir):
            made = _Copy(data_dir, Path(through), Backup(target)).make()
    except OSError as error:
        error.filename = str(error.filename or partial).replace(through, str(partial))
        raise
    finally:
        os.close(directory_fd)
    partial.rename(target)
    sync_directory(target.parent)
    return made


def copy_topic(backup: Path, data_dir: Path, name: str, topic_id: str) -> tuple[Topic, Backup]:
    """Copy a topic of a backup into the trash of a data directory, as that of a topic with this new id.

    Nothing else of the directory changes.  What an interrupted call has left is removed by the next one.

    Raises:
        NoDirectory: it is no backup.
        UnknownPartition: there is no such topic in it.
        BadValue: it has not all of its partitions.
        AlreadyRunning: another topic is being restored there.
        ConfigFault: the backup has a newer format.
        DiskFull, StorageFault: the disk has no room, or fails; nothing is left of the copy.
    """
    made = Backup(data_dir)
    staging = data_dir / STAGING
    with acting_as_owner(data_dir):
        topic = _topic_in(backup, name)
        try:
            staging.mkdir(DIRECTORY_MODE, exist_ok=True)
            fd = os.open(staging, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                _hold(fd, staging)
                _stage(_Copy(backup, staging, made), staging, topic, topic_id)
            finally:
                os.close(fd)
        except OSError as error:
            raise disk_fault(error, staging) from error
    return topic, made


def _stage(copy: _Copy, staging: Path, topic: Topic, topic_id: str) -> None:
    """Copy a topic, and put it into the trash when all of it is there.  Nothing stays in ``staging``."""
    data_dir = staging.parent
    is_complete = False
    try:
        for leftover in staging.iterdir():
            shutil.rmtree(leftover)
        for number in topic.partitions:
            copy.copy_partition(directory_of(Path(), topic.name, number).name)
        for number in topic.partitions:
            directory = directory_of(staging, topic.name, number)
            give(directory, topic_id)
            directory.rename(trash_directory(data_dir, topic_id, number))
        sync_directory(data_dir)
        is_complete = True
    finally:
        if not is_complete:
            discard_trash(data_dir, topic_id)
        shutil.rmtree(staging, ignore_errors=True)


def _topic_in(backup: Path, name: str) -> Topic:
    if not (backup / CATALOG_NAME).is_file():
        raise NoDirectory(f"{backup}: no backup: it has no {CATALOG_NAME}")
    check_format(backup)
    topics = Catalog.load(backup).topics
    topic = topics.get(name)
    if topic is None:
        raise UnknownPartition(f"there is no topic {name!r} in {backup}: it has {', '.join(sorted(topics)) or 'none'}")
    for number, brokers in sorted(topic.partitions.items()):
        if not directory_of(backup, name, number).is_dir():
            raise BadValue(
                f"{backup} has not {name}-{number}, which was on broker {brokers[0]}: only a topic that one appliance"
                " has stored can be restored by itself"
            )
    return topic


def _hold(fd: int, staging: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise AlreadyRunning(f"{staging}: another topic is being restored here: wait for its end") from None


class _Copy:
    """One backup in the making, or a part of one on its way back."""

    def __init__(self, source: Path, target: Path, made: Backup) -> None:
        self._source, self._target, self._made = source, target, made

    def make(self) -> Backup:
        self._copy_ensemble()
        self._copy(CATALOG_NAME, missing_ok=True)
        self._copy_each(path.name for path in sorted(self._source.iterdir()) if _is_state(path))
        for topic in Catalog.load(self._target).topics.values():
            for partition in topic.partitions:
                directory = directory_of(self._source, topic.name, partition)
                if directory.is_dir():
                    self.copy_partition(directory.name)
        sync_directory(self._target)
        return self._made

    # ---- a partition

    def copy_partition(self, name: str) -> None:
        for _ in range(ATTEMPTS_MAX):
            before = self._made.linked_bytes, self._made.copied_bytes
            if self._try_partition(name):
                self._made.partitions += 1
                return
            shutil.rmtree(self._target / name)
            self._made.linked_bytes, self._made.copied_bytes = before
        self._made.left_out += 1

    def _try_partition(self, name: str) -> bool:
        """Copy a partition; return whether its segments are complete."""
        self._mkdir(name)
        self._copy_each([f"{name}/{POINT_NAME}", f"{name}/{METADATA_NAME}"])
        linked: set[int] = set()
        active = -1
        while True:
            try:
                bases = list(sizes(self._source / name)[0])
            except FileNotFoundError:
                return False
            if not bases or bases[-1] == active:
                break
            active = bases.pop()
            for base in bases:
                if base not in linked:
                    linked.add(base)
                    (self._target / log_path(Path(name), base)).unlink(missing_ok=True)  # it was the active one
                    self._link(index_path(Path(name), base))
                    if not self._link(log_path(Path(name), base)):
                        return False
            if not self._copy(log_path(Path(name), active), missing_ok=True):
                return False
        sync_directory(self._target / name)
        return (self._source / name).is_dir()

    # ---- ZooKeeper

    def _copy_ensemble(self) -> None:
        """Copy passwords, ports and data of the local nodes, if there are any; the rest is written at each start."""
        ensemble = self._source / ENSEMBLE
        if not ensemble.is_dir():
            return
        self._mkdir(ENSEMBLE)
        self._copy_each(f"{ENSEMBLE}/{path.name}" for path in sorted(ensemble.iterdir()) if path.is_file())
        for node in sorted(ensemble.glob("node-*")):
            data = f"{ENSEMBLE}/{node.name}/data"
            for name in (f"{ENSEMBLE}/{node.name}", data, f"{data}/version-2"):
                self._mkdir(name)
            self._copy_each([f"{data}/myid", *_files_in_order(node / "data" / "version-2", f"{data}/version-2")])
            sync_directory(self._target / data / "version-2")

    # ---- files

    def _mkdir(self, name: str) -> None:
        (self._target / name).mkdir(DIRECTORY_MODE)

    def _copy_each(self, names: Iterable[str]) -> None:
        for name in names:
            self._copy(name, missing_ok=True)

    def _link(self, name: Path) -> bool:
        """Link a file, or copy it where that is not possible; return whether it is still there."""
        try:
            os.link(self._source / name, self._target / name)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno not in NO_LINK:
                raise
            return self._copy(name, missing_ok=True)
        self._made.linked_bytes += (self._target / name).stat().st_size
        return True

    def _copy(self, name: str | Path, *, missing_ok: bool) -> bool:
        """Copy the bytes that a file has now, durably, with its times; return whether it is there."""
        try:
            source = os.open(self._source / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            if missing_ok:
                return False
            raise
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        copied = 0
        try:
            status = os.fstat(source)
            target = os.open(self._target / name, flags, FILE_MODE)
            try:
                for position, stop in _stretches(source, status.st_size):
                    os.lseek(target, position, os.SEEK_SET)
                    while position < stop and (count := os.sendfile(target, source, position, stop - position)):
                        position += count
                        copied += count
                # If it was truncated meanwhile, recovery takes what there is.
                os.ftruncate(target, min(status.st_size, os.fstat(source).st_size))
                os.fsync(target)
            finally:
                os.close(target)
        finally:
            os.close(source)
        os.utime(self._target / name, ns=(status.st_atime_ns, status.st_mtime_ns))
        self._made.copied_bytes += copied
        return True


def _stretches(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Yields the parts [start, stop) of a file that take room on the disk: compaction leaves others."""
    stop = 0
    while stop < size:
        try:
            start = os.lseek(fd, stop, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing is behind
                return
            start, stop = stop, size  # the file system has no such question
        else:
            stop = min(size, os.lseek(fd, start, os.SEEK_HOLE))
        if start < stop:
            yield start, stop


def _is_state(path: Path) -> bool:
    """Whether a file of the data directory belongs to its state, and not to a running process."""
    return path.is_file() and not path.name.startswith(tuple(LEFT_OUT)) and path.suffix != ".tmp"


def _files_in_order(directory: Path, prefix: str) -> Iterator[str]:
    """ZooKeeper's files in the order in which they have to be copied."""
    order = ("snapshot.", "log.", "currentEpoch", "acceptedEpoch")
    names = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    for kind in order:
        yield from (f"{prefix}/{name}" for name in names if name.startswith(kind) and not name.endswith(".tmp"))
