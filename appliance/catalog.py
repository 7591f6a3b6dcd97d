"""The broker's own record of the cluster's topics: ``<data>/catalog.json``.

ZooKeeper's ``/brokers/topics`` is the cluster's truth whenever it can be reached; this file is what the
broker serves from when it cannot, and at every start before ZooKeeper has answered.  Layout::

    {"version": 1,
     "cluster": "Zp3…",                          which ensemble the topics belong to, "" before the first one
     "deleting": [["old", 0]],                   partitions to remove: the order outlives a crash
     "topics": {"logs": {"partitions": {"0": [1], "1": [2, 1]},     partition → broker ids, the first leads
                         "settings": {"retention.ms": "3600000"},   only what was set for this topic
                         "id": "5f0c…"}}}                     differs between topics of the same name

``id`` tells a topic from a later one of the same name.  ``cluster`` tells a topic that was deleted while
this broker was away from an ensemble that lost its data or was never ours: only the former may delete logs.

The coordinator alone stores the file; the supervisor reads it at start.  It is replaced as a whole (write,
fsync, rename, fsync of the directory), so a crash leaves the old or the new one and a damaged one means a
damaged disk.

Errors: :class:`InvalidTopic` for a bad name, :class:`StorageFault` for a file that cannot be read.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from .errors import DiskFull, InvalidTopic, StorageFault
from .names import check_topic

FILE_NAME = "catalog.json"
VERSION = 1


class Topic(msgspec.Struct, omit_defaults=True):
    """``partitions``: partition → ids of the brokers that store it, the first leads.

    ``settings``: only what was set for this topic; the broker's defaults apply to the rest.
    """

    name: str
    partitions: dict[int, list[int]] = {}
    settings: dict[str, str] = {}
    id: str = ""

    def leader(self, partition: int) -> int:
        """The broker that leads ``partition``; -1 when nobody does."""
        brokers = self.partitions.get(partition)
        return brokers[0] if brokers else -1


class _Entry(msgspec.Struct):
    partitions: dict[str, list[int]]
    settings: dict[str, str] = {}
    id: str = ""


class _File(msgspec.Struct):
    version: int
    cluster: str
    topics: dict[str, _Entry]
    deleting: list[tuple[str, int]] = []


class Catalog:
    """Topics by name.  Change the attributes freely, then :meth:`store`."""

    def __init__(
        self,
        path: Path,
        topics: dict[str, Topic],
        cluster: str = "",
        deleting: Iterable[tuple[str, int]] = (),
    ) -> None:
        self.path = path
        self.topics = topics
        self.cluster = cluster
        self.deleting = set(deleting)

    @classmethod
    def load(cls, data_dir: Path) -> Catalog:
        """Read the catalog of a data directory; a directory without one has no topics.

        Raises:
            StorageFault: the file is there and cannot be used.
        """
        path = data_dir / FILE_NAME
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return cls(path, {})
        except OSError as error:
            raise StorageFault(f"{path}: {error.strerror}") from error
        try:
            return cls._decode(path, content)
        except (msgspec.DecodeError, InvalidTopic, ValueError) as error:
            raise StorageFault(
                f"{path}: {error}; restore the file, or move it away to take the topics from ZooKeeper again"
            ) from error

    @classmethod
    def _decode(cls, path: Path, content: bytes) -> Catalog:
        file = msgspec.json.decode(content, type=_File)
        if file.version != VERSION:
            raise ValueError(f"version {file.version} is not known to this release")
        topics = {}
        for name, entry in file.topics.items():
            check_topic(name)
            partitions = {int(partition): brokers for partition, brokers in entry.partitions.items()}
            topics[name] = Topic(name, partitions, entry.settings, entry.id)
        return cls(path, topics, file.cluster, file.deleting)

    def store(self) -> None:
        """Replace the file; it is on the disk when this returns.

        Raises:
            DiskFull: no room, the old file stands.
            StorageFault: any other failure, likewise.
        """
        topics = {}
        for name, topic in sorted(self.topics.items()):
            partitions = {str(partition): brokers for partition, brokers in sorted(topic.partitions.items())}
            topics[name] = _Entry(partitions, topic.settings, topic.id)
        file = _File(VERSION, self.cluster, topics, sorted(self.deleting))
        replace_file(self.path, msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n")

    def hosted(self, broker_id: int) -> list[tuple[str, int]]:
        """The (topic, partition) pairs stored on a broker, sorted."""
        return sorted(
            (topic.name, partition)
            for topic in self.topics.values()
            for partition, brokers in topic.partitions.items()
            if broker_id in brokers
        )


def replace_file(path: Path, content: bytes) -> None:
    """Put ``content`` in place of a file so that a crash at any point leaves the old one or the new one.

    Raises:
        DiskFull: no room, the old file stands.
        StorageFault: any other failure, likewise.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise (DiskFull if full else StorageFault)(f"{path}: {error.strerror}") from error
