"""Records which topic a partition's directory belongs to: a small file in it holds the topic's id::

    <data>/<topic>-<partition>/partition.metadata      two lines: "version: 0" and "topic_id: <32 digits>", as Kafka's
    <data>/<topic id>-<partition>.deleted/             a deleted partition, until its files are deleted

The readable name of a directory lets people and tools find a log by its topic.  The file in it distinguishes the topic
from an earlier or later one of the same name.  The file is durable before the first segment is made (:func:`claim`).
So a directory with a log and without the file was put there by a person on purpose: it is adopted.  A directory with
the id of *another* topic is refused and not changed.

Deletion first renames a directory (:func:`set_aside`) to a name that no partition can have: names of partitions end in
a number.  Only :func:`discard` deletes files, and only in a renamed directory.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ..catalog import check_id, replace_file
from ..errors import StorageFault, disk_fault
from ..names import is_topic
from .files import DIRECTORY_MODE, sync_directory

METADATA_NAME: Final = "partition.metadata"
DELETED_SUFFIX: Final = ".deleted"
METADATA_BYTES_MAX: Final = 4096
_ID_KEY: Final = "topic_id: "


def directory_of(data_dir: Path, topic: str, partition: int) -> Path:
    return data_dir / f"{topic}-{partition}"


def partitions_in(data_dir: Path) -> list[str]:
    """The names of the directories in a data directory that have, or had, the log of a partition."""
    found = []
    with os.scandir(data_dir) as entries:
        for entry in entries:
            topic, _, number = entry.name.rpartition("-")
            if is_topic(topic) and number.isdecimal() and (Path(entry.path) / METADATA_NAME).exists():
                found.append(entry.name)
    return sorted(found)


def deleted_directory(data_dir: Path, topic_id: str, partition: int) -> Path:
    return data_dir / f"{check_id(topic_id)}-{partition}{DELETED_SUFFIX}"


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
    found = topic_id_of(directory)
    if found == topic_id:
        return
    if found:
        raise StorageFault(
            f"{directory} holds the log of a topic with id {found}, an earlier one of this name, not of {topic_id}:"
            " move the directory away to begin with an empty log, or restore the catalog that goes with it"
        )
    try:
        if not directory.is_dir():
            directory.mkdir(DIRECTORY_MODE)
            sync_directory(directory.parent)
    except OSError as error:
        raise disk_fault(error, directory) from error
    replace_file(directory / METADATA_NAME, f"version: 0\n{_ID_KEY}{topic_id}\n".encode())


def set_aside(data_dir: Path, topic: str, partition: int, topic_id: str) -> None:
    """Rename a deleted partition's directory, if it exists and belongs to this topic.

    Atomic; may be repeated.  :func:`sync_directory` of ``data_dir`` makes it durable.  A directory of another topic
    stays.  One without an id belongs to this topic: its creation was interrupted (see :func:`claim`).

    Raises:
        StorageFault, OSError: it is still there.
    """
    directory = directory_of(data_dir, topic, partition)
    if directory.is_dir() and topic_id_of(directory) in (topic_id, ""):
        target = deleted_directory(data_dir, topic_id, partition)
        if target.exists():  # left by a crash during an earlier creation of the same partition
            shutil.rmtree(target)
        directory.rename(target)


def deleted(data_dir: Path) -> Sequence[Path]:
    """The directories that have been set aside."""
    with os.scandir(data_dir) as entries:
        names = [entry.name for entry in entries if entry.name.endswith(DELETED_SUFFIX) and entry.is_dir()]
    return [data_dir / name for name in sorted(names) if _is_deleted(name)]


def _is_deleted(name: str) -> bool:
    topic_id, _, partition = name.removesuffix(DELETED_SUFFIX).partition("-")
    try:
        check_id(topic_id)
    except ValueError:
        return False
    return partition.isdecimal()


def discard(directory: Path) -> None:
    """Delete a directory that has been set aside, with all files in it.

    Raises:
        OSError: some are still there.
    """
    assert _is_deleted(directory.name), f"{directory} was not set aside"
    shutil.rmtree(directory)
