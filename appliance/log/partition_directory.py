"""Whose log a directory holds: the id of the topic, in a small file in the directory of each partition.

    <data>/<topic>-<partition>/partition.metadata      two lines: "version: 0" and "topic_id: <32 digits>", as Kafka's
    <data>/<topic id>-<partition>.deleted/             the directory of a deleted partition, until its files are gone

A directory keeps its readable name, so that people and tools find a log by its topic; the file in it tells the
logs of a topic from those of an earlier or later one of the same name.  The file is durable before the first
segment is made (:func:`claim`), so a directory with a log and without it is not ours: somebody put it there, on
purpose, and it is taken over.  A directory with the id of *another* topic is refused and left as it is.

A deleted directory is renamed first (:func:`set_aside`), to a name that no partition can have: those end in a
number.  Only :func:`discard` deletes files, and only under such a name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ..catalog import check_id, replace_file
from ..errors import StorageFault, disk_fault
from .files import DIRECTORY_MODE, sync_directory

METADATA_NAME: Final = "partition.metadata"
DELETED_SUFFIX: Final = ".deleted"
METADATA_BYTES_MAX: Final = 4096
_ID_KEY: Final = "topic_id: "


def directory_of(data_dir: Path, topic: str, partition: int) -> Path:
    return data_dir / f"{topic}-{partition}"


def deleted_directory(data_dir: Path, topic_id: str, partition: int) -> Path:
    return data_dir / f"{check_id(topic_id)}-{partition}{DELETED_SUFFIX}"


def topic_id_of(directory: Path) -> str:
    """The id of the topic whose log is in a directory; "" when nothing says so.

    Raises:
        StorageFault: the file is there, and says nothing that can be read.
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
        raise StorageFault(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise StorageFault(f"{path}: {error}: it should say whose log this is") from error


def claim(directory: Path, topic_id: str) -> None:
    """Make the directory of a partition, or make sure that it is this topic's.

    When this returns, the directory and its identity are on the disk.

    Raises:
        StorageFault: it belongs to another topic, or the disk fails; nothing in it is touched.
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
    """Take a deleted partition's directory away from its name, if it is there and is this topic's.

    Atomic, may be repeated; :func:`sync_directory` of ``data_dir`` makes it durable.  A directory of another topic is
    left alone; one that says nothing is the beginning of ours (see :func:`claim`).

    Raises:
        StorageFault, OSError: it is still there.
    """
    directory = directory_of(data_dir, topic, partition)
    if directory.is_dir() and topic_id_of(directory) in (topic_id, ""):
        target = deleted_directory(data_dir, topic_id, partition)
        if target.exists():  # what a crash has left of an earlier attempt to make the same partition
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
