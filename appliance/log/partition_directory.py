"""Records which topic a partition's directory belongs to: a small file in it holds the topic's id::

    <data>/<topic>-<partition>/partition.metadata      two lines: "version: 0" and "topic_id: <32 digits>", as Kafka's
    <data>/<topic id>-<partition>.trash/               a deleted partition that can come back (``catalog.TrashedTopic``)
    <data>/<topic id>-<partition>.deleted/             a deleted partition, until its files are deleted

The readable name of a directory lets people and tools find a log by its topic.  The file in it distinguishes the topic
from an earlier or later one of the same name.  The file is durable before the first segment is made (:func:`claim`).
So a directory with a log and without the file was put there by a person on purpose: it is adopted.  A directory with
the id of *another* topic is refused and not changed.

Deletion first renames a directory (:func:`set_aside`) to a name that no partition can have: names of partitions end in
a number.  Only :func:`discard` deletes files, and only in a directory that is called ``.deleted``.  One in the trash
gets that name by :func:`throw_away`, or its old one by :func:`take_back`.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from ..catalog import check_id
from ..durable_files import DIRECTORY_MODE, replace_data_file, sync_directory
from ..errors import StorageFault, disk_fault
from ..names import TopicPartition, is_topic

METADATA_NAME: Final = "partition.metadata"
DELETED_SUFFIX: Final = ".deleted"
TRASH_SUFFIX: Final = ".trash"
METADATA_BYTES_MAX: Final = 4096
_ID_KEY: Final = "topic_id: "


def directory_of(data_dir: Path, topic: str, partition: int) -> Path:
    return data_dir / f"{topic}-{partition}"


def partitions_in(data_dir: Path) -> list[TopicPartition]:
    """The partitions that have, or had, a log in a data directory, sorted."""
    partitions = []
    with os.scandir(data_dir) as entries:
        for entry in entries:
            topic, _, number = entry.name.rpartition("-")
            if is_topic(topic) and number.isdecimal() and (Path(entry.path) / METADATA_NAME).exists():
                partitions.append(TopicPartition(topic, int(number)))
    return sorted(partitions)


def deleted_directory(data_dir: Path, topic_id: str, partition: int) -> Path:
    return data_dir / f"{check_id(topic_id)}-{partition}{DELETED_SUFFIX}"


def trash_directory(data_dir: Path, topic_id: str, partition: int) -> Path:
    return data_dir / f"{check_id(topic_id)}-{partition}{TRASH_SUFFIX}"


def exist_in(data_dir: Path) -> bool:
    """Whether a data directory has directories of partitions, of any topic."""
    return next(data_dir.glob(f"*-*/{METADATA_NAME}"), None) is not None


def topic_id_of(directory: Path) -> str:
    """The id of the topic whose log is in a directory; "" without the file.

    Raises:
        StorageFault: the file cannot be read, or holds no id.
    """
    path = directory / METADATA_NAME
    try:
        with path.open("rb") as file:
            lines = file.read(METADATA_BYTES_MAX).decode("ascii").splitlines()
        (text,) = (line.removeprefix(_ID_KEY) for line in lines if line.startswith(_ID_KEY))
        return check_id(text)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise disk_fault(error, path) from error
    except ValueError as error:
        raise StorageFault(f"{path}: {error}: the file must hold the id of the topic") from error


def claim(directory: Path, topic_id: str) -> None:
    """Make the directory of a partition, or check that it belongs to this topic.

    When this returns, the directory and its file are on the disk.

    Raises:
        StorageFault: it belongs to another topic, or the disk fails; nothing in it is changed.
        DiskFull: no room.
    """
    claimed_id = topic_id_of(directory)
    if claimed_id == topic_id:
        return
    if claimed_id:
        raise StorageFault(
            f"{directory} holds the log of a topic with id {claimed_id}, an earlier one of this name, not of"
            f" {topic_id}: move the directory away to begin with an empty log, or restore the catalog that goes with it"
        )
    try:
        if not directory.is_dir():
            directory.mkdir(DIRECTORY_MODE)
            sync_directory(directory.parent)
    except OSError as error:
        raise disk_fault(error, directory) from error
    give(directory, topic_id)


def give(directory: Path, topic_id: str) -> None:
    """Say durably that a directory belongs to this topic.

    Raises:
        DiskFull, StorageFault: it may still belong to nobody, or to another one.
    """
    replace_data_file(directory / METADATA_NAME, f"version: 0\n{_ID_KEY}{topic_id}\n".encode())


def set_aside(data_dir: Path, topic: str, partition: int, topic_id: str, *, trash: bool = False) -> None:
    """Rename a deleted partition's directory, if it exists and belongs to this topic.

    Atomic; may be repeated.  :func:`sync_directory` of ``data_dir`` makes it durable.  A directory of another topic
    stays.  One without an id belongs to this topic: its creation was interrupted (see :func:`claim`).

    Args:
        trash: its files are kept.

    Raises:
        StorageFault, OSError: it is still there.
    """
    directory = directory_of(data_dir, topic, partition)
    if directory.is_dir() and topic_id_of(directory) in (topic_id, ""):
        kept = trash_directory(data_dir, topic_id, partition)
        target = kept if trash else deleted_directory(data_dir, topic_id, partition)
        if target.exists():  # left by a crash during an earlier creation of the same partition
            _discard_soon(data_dir, target)
        directory.rename(target)


def _discard_soon(data_dir: Path, directory: Path) -> None:
    topic_id, partition = _parsed(directory.name, directory.suffix)
    target = deleted_directory(data_dir, topic_id, partition)
    if target.exists():
        shutil.rmtree(target)
    if directory != target:
        directory.rename(target)


def take_back(data_dir: Path, topic: str, partition: int, topic_id: str) -> None:
    """Give a partition's directory that is in the trash the name of a partition again, durably.

    Nothing is done without one, or where a directory has that name already.

    Raises:
        OSError: it is still in the trash, or may be after a power loss.
    """
    directory, kept = directory_of(data_dir, topic, partition), trash_directory(data_dir, topic_id, partition)
    if not directory.exists() and kept.is_dir():
        kept.rename(directory)
        sync_directory(data_dir)


def throw_away(data_dir: Path, topic_id: str) -> None:
    """Take a topic's directories out of the trash, durably, so that their files can be deleted.  May be repeated.

    Raises:
        OSError: some are still in the trash.
    """
    kept = [directory for trashed_id, directory in trashed_directories(data_dir) if trashed_id == topic_id]
    for directory in kept:
        _discard_soon(data_dir, directory)
    if kept:
        sync_directory(data_dir)


def discard_trash(data_dir: Path, topic_id: str) -> None:
    """Delete the directories of a topic that no catalog has had, and their files."""
    for trashed_id, directory in trashed_directories(data_dir):
        if trashed_id == topic_id:
            shutil.rmtree(directory)


def trashed_directories(data_dir: Path) -> list[tuple[str, Path]]:
    """The directories in the trash, with the ids of their topics."""
    return [(_parsed(path.name, TRASH_SUFFIX)[0], path) for path in _set_aside_as(data_dir, TRASH_SUFFIX)]


def partition_in_trash(directory: Path) -> int:
    """The number of the partition whose directory in the trash this is."""
    return _parsed(directory.name, TRASH_SUFFIX)[1]


def trash_bytes(data_dir: Path) -> dict[str, int]:
    """The room that is taken in the trash, by topic id."""
    sizes: Counter[str] = Counter()
    for topic_id, directory in trashed_directories(data_dir):
        sizes[topic_id] += _disk_bytes(directory)
    return dict(sizes)


def leaving_bytes(data_dir: Path) -> int:
    """The room that files take which are to be deleted."""
    return sum(map(_disk_bytes, deleted(data_dir)))


def _disk_bytes(directory: Path) -> int:
    """The room that the files of a directory take on the disk; 0 for one that is gone."""
    total = 0
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def deleted(data_dir: Path) -> Sequence[Path]:
    """The directories whose files are to be deleted."""
    return list(_set_aside_as(data_dir, DELETED_SUFFIX))


def _set_aside_as(data_dir: Path, suffix: str) -> Iterator[Path]:
    with os.scandir(data_dir) as entries:
        names = [entry.name for entry in entries if entry.name.endswith(suffix) and entry.is_dir()]
    return (data_dir / name for name in sorted(names) if _is_set_aside(name, suffix))


def _is_set_aside(name: str, suffix: str) -> bool:
    try:
        _parsed(name, suffix)
    except ValueError:
        return False
    return True


def _parsed(name: str, suffix: str) -> tuple[str, int]:
    """The topic's id and the partition in the name of a directory that was set aside.

    Raises:
        ValueError: it is none.
    """
    topic_id, _, partition = name.removesuffix(suffix).partition("-")
    if not name.endswith(suffix) or not partition.isdecimal():
        raise ValueError(name)
    return check_id(topic_id), int(partition)


def discard(directory: Path) -> None:
    """Delete a directory that has been set aside, and is not in the trash, with all files in it.

    Raises:
        OSError: some are still there.
    """
    assert _is_set_aside(directory.name, DELETED_SUFFIX), f"{directory} was not set aside"
    shutil.rmtree(directory)
