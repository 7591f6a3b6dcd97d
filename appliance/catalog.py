"""The broker's own record of the cluster's topics: ``<data>/catalog.json``.

ZooKeeper's ``/brokers/topics`` is the cluster's truth whenever it can be reached; this file is what the
broker serves from when it cannot, and at every start before ZooKeeper has answered.  Layout::

    {"version": 1,
     "cluster": "Zp3…",                          which ensemble the topics belong to, "" before the first one
     "topics": {"logs": {"partitions": {"0": [1], "1": [2, 1]},     partition → broker ids, the first leads
                         "settings": {"retention.ms": "3600000"},   only what was set for this topic
                         "id": "5f0c…"}},
     "removals": [{"name": "old", "id": "77ab…", "partitions": [0], "whole": true}]}

``id`` is the topic's identity, 32 hexadecimal digits made at its creation: it tells a topic from an earlier or
later one of the same name, here, in ZooKeeper, in the directories of its partitions, in the positions of groups
and in Metadata.  ``removals`` are decisions that outlive a crash: see :class:`Removal`.  ``cluster`` tells a
topic that was deleted while this broker was away from an ensemble that lost its data or was never ours: only the
former may delete logs.

The coordinator alone stores the file; the supervisor reads it at start.  It is replaced as a whole (write,
fsync, rename, fsync of the directory), so a crash leaves the old or the new one and a damaged one means a
damaged disk.

Errors: :class:`InvalidTopic` for a bad name, :class:`StorageFault` for a file that cannot be read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import msgspec

from .errors import ApplianceError, InvalidTopic, StorageFault, disk_fault
from .names import TopicPartition, check_topic

FILE_NAME = "catalog.json"
LEADER_EPOCH = 0
"""Leader epoch of every partition, stamped on each batch that is stored: no partition changes its leader yet."""
VERSION = 1

_ID = re.compile(r"[0-9a-f]{32}")


class Removal(msgspec.Struct, frozen=True):
    """Partitions stored here, of the topic with this id, that are to be removed; decided, and not done yet.

    ``whole``: the topic goes with its registration and the positions of groups, and its name is free only when
    the removal has left the catalog.  Otherwise they are partitions that were to be added to a topic that stays.

    A creation is a removal first: it is noted before anything is made, and taken back in the same store that
    makes the topic known.  So whatever fails or dies in between is cleared away by its removal.
    """

    name: str
    id: str
    partitions: list[int]
    whole: bool = True


class Change(NamedTuple):
    """Put a topic, drop one by its name, note a removal, and forget one that is done."""

    put: Topic | None = None
    drop: str = ""
    note: Removal | None = None
    done: Removal | None = None


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
    removals: list[Removal] = []


class Catalog:
    """Topics by name.  Change the attributes freely, then :meth:`store`."""

    def __init__(
        self,
        path: Path,
        topics: dict[str, Topic],
        cluster: str = "",
        removals: Iterable[Removal] = (),
    ) -> None:
        self.path = path
        self.topics = topics
        self.cluster = cluster
        self.removals = list(removals)
        self.in_doubt = False
        """The last store failed: the file may say what was refused, until the next one."""

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
            topics[name] = Topic(name, partitions, entry.settings, check_id(entry.id))
        for removal in file.removals:
            check_topic(removal.name)
            check_id(removal.id)
        return cls(path, topics, file.cluster, file.removals)

    def store(self) -> None:
        """Replace the file; it is on the disk when this returns.

        Raises:
            DiskFull: no room, the old file stands.
            StorageFault: any other failure; which one stands is in doubt, so store again when the disk has recovered.
        """
        self.in_doubt = True
        topics = {}
        for name, topic in sorted(self.topics.items()):
            partitions = {str(partition): brokers for partition, brokers in sorted(topic.partitions.items())}
            topics[name] = _Entry(partitions, topic.settings, topic.id)
        file = _File(VERSION, self.cluster, topics, self.removals)
        replace_file(self.path, msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n")
        self.in_doubt = False

    def change(self, *changes: Change) -> None:
        """Carry out all changes in one store, or none of them.

        Raises:
            DiskFull, StorageFault: nothing is changed.
        """
        before = self.topics, self.removals
        self.topics, self.removals = dict(self.topics), list(self.removals)
        for put, drop, note, done in changes:
            self.topics.pop(drop, None)
            if put is not None:
                self.topics[put.name] = put
            if done in self.removals:
                self.removals.remove(done)
            if note is not None and note not in self.removals:
                self.removals.append(note)
        try:
            self.store()
        except ApplianceError:
            self.topics, self.removals = before
            raise

    def hosted(self, broker_id: int) -> list[TopicPartition]:
        """The partitions stored on a broker, sorted."""
        return sorted(
            TopicPartition(topic.name, partition)
            for topic in self.topics.values()
            for partition, brokers in topic.partitions.items()
            if broker_id in brokers
        )


def new_id() -> str:
    """The identity of a new topic."""
    return uuid4().hex


def check_id(topic_id: str) -> str:
    """The same id; it becomes a part of file names and of paths in ZooKeeper.

    Raises:
        ValueError: it is none.
    """
    if not _ID.fullmatch(topic_id):
        raise ValueError(f"topic id {topic_id!r:.50}: 32 hexadecimal digits are expected")
    return topic_id


def replace_file(path: Path, content: bytes) -> None:
    """Put ``content`` in place of a file so that a crash at any point leaves the old one or the new one.

    Raises:
        DiskFull: no room, the old file stands.
        StorageFault: the disk fails; the new file may stand already.
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
        with suppress(OSError):
            temporary.unlink(missing_ok=True)  # on a full disk its part of the content takes room
        raise disk_fault(error, path) from error
