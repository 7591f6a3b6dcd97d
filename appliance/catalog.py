"""Stores the broker's own copy of the cluster's topics: ``<data>/catalog.json``.

ZooKeeper's ``/brokers/topics`` is authoritative while it can be reached.  Otherwise, and at each start until ZooKeeper
answers, the broker uses this file.  Layout::

    {"version": 1,
     "cluster": "Zp3…",                          the ensemble of the topics, "" before the first one
     "topics": {"logs": {"partitions": {"0": [1], "1": [2, 1]},     partition → broker ids, the first leads
                         "settings": {"retention.ms": "3600000"},   only those set for this topic
                         "id": "5f0c…"}},
     "removals": [{"name": "old", "id": "77ab…", "partitions": [0], "whole": true, "trash": true}],
     "trash": [{"name": "old", "id": "77ab…", "partitions": {"0": [1]}, "settings": {}, "deleted_ms": 1763800000000}]}

``id`` is the topic's identity: 32 hexadecimal digits made at its creation.  It distinguishes a topic from an earlier or
later one of the same name: here, in ZooKeeper, in the directories of its partitions, in the committed offsets of groups
and in Metadata.  ``removals`` are decisions that survive a crash: see :class:`Removal`.  ``trash`` has the deleted
topics that can come back: see :class:`TrashedTopic`.  ``cluster`` protects logs: a
topic that is missing in ZooKeeper is deleted only if the ensemble is the same.  An ensemble that lost its data, or
another one, deletes no logs.

Only the coordinator stores the file; the supervisor reads it at start.  It is replaced as a whole (write, fsync,
rename, fsync of the directory).  So a crash leaves the old or the new file, and a damaged file means a damaged disk.

There may be thousands of topics, of which a change touches a few.  So who stores the file keeps the bytes of each
topic, and what is asked of all topics at each creation is counted as they come and go.

Errors: :class:`InvalidTopic` for a bad name, :class:`~.errors.StorageFault` for a file that cannot be read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar
from uuid import uuid4

import msgspec

from .durable_files import replace_data_file
from .errors import ApplianceError, InvalidTopic, damaged_file, disk_fault
from .names import TopicPartition, check_topic, in_metrics
from .reserve import with_reserve

FILE_NAME = "catalog.json"
LEADER_EPOCH = 0
"""Leader epoch of every partition, stored in each batch: no partition changes its leader yet."""
VERSION = 1

R = TypeVar("R")
_ID = re.compile(r"[0-9a-f]{32}")


class Removal(msgspec.Struct, frozen=True):
    """A decision to remove partitions stored here, of the topic with this id, that is not carried out yet.

    ``whole``: the topic is removed with its registration and committed offsets.  Its name is free again when the
    catalog no longer has the removal.  Otherwise the partitions belong to a topic that stays: adding them has failed.

    A creation begins with a removal, which is stored before anything is made.  The store that adds the topic drops the
    removal.  So after a failure or a crash in between, the removal deletes the remains.

    ``trash``: the files are kept, as those of the :class:`TrashedTopic` that was stored together with the removal.
    """

    name: str
    id: str
    partitions: list[int]
    whole: bool = True
    trash: bool = False


class TrashedTopic(msgspec.Struct, frozen=True):
    """A deleted topic whose files are kept under its id (``log/partition_directory.py``), so that it can come back.

    It is stored by the store that deletes the topic, and leaves with the one that puts the topic back, or before its
    files are deleted.  ``deleted_ms``: by the trusted time, 0 while that is not known.
    """

    name: str
    id: str
    partitions: dict[int, list[int]]
    settings: dict[str, str] = {}
    deleted_ms: int = 0


class CatalogChange(NamedTuple):
    """A change of the catalog: put a topic, drop one by its name, note a removal, and delete one that is done.

    ``trash``: a topic for the trash, in place of one with the same id.  ``forget``: the id of one that leaves it; one
    that is ``put`` leaves it, too.
    """

    put: Topic | None = None
    drop: str = ""
    note: Removal | None = None
    done: Removal | None = None
    trash: TrashedTopic | None = None
    forget: str = ""


class Topic(msgspec.Struct, omit_defaults=True):
    """A topic.  ``partitions``: partition → ids of the brokers that store it; the first one leads.

    ``settings``: only those set for this topic; the broker's defaults apply to the others.
    """

    name: str
    partitions: dict[int, list[int]] = {}
    settings: dict[str, str] = {}
    id: str = ""

    def leader(self, partition: int) -> int:
        """The id of the broker that leads ``partition``; -1 without one."""
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
    trash: list[TrashedTopic] = []


class Catalog:
    """Holds and stores the topics by name.

    Topics change by :meth:`change`.  Those and the trashed ones are immutable: a change puts another object in place.
    """

    def __init__(
        self,
        path: Path,
        topics: dict[str, Topic],
        cluster: str = "",
        removals: Iterable[Removal] = (),
        trash: Iterable[TrashedTopic] = (),
    ) -> None:
        self.path = path
        self.topics = topics
        self.cluster = cluster
        self.removals = list(removals)
        self.trash = list(trash)
        """In the order of their deletions."""
        self.in_doubt = False
        """Whether the last store failed: until the next one, the file may hold the failed change."""
        self.partition_counts = Counter[int]()
        """How many partitions each broker stores."""
        self._in_metrics: dict[str, frozenset[str]] = {}
        """Topics whose names have a "." or a "_", by their name in metrics: no others can have one in common."""
        self._topic_rows, self._trash_rows = _Rows(_member), _Rows(_element)
        for topic in topics.values():
            self._note_present(topic)

    @classmethod
    def load(cls, data_dir: Path) -> Catalog:
        """Read the catalog of a data directory; a directory without one has no topics.

        Raises:
            StorageFault: the file exists and cannot be used.
        """
        path = data_dir / FILE_NAME
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return cls(path, {})
        except OSError as error:
            raise disk_fault(error, path) from error
        try:
            return cls._decode(path, content)
        except (msgspec.DecodeError, InvalidTopic, ValueError) as error:
            raise damaged_file(path, error) from error

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
        for name, topic_id in [(removal.name, removal.id) for removal in file.removals] + [
            (deleted.name, deleted.id) for deleted in file.trash
        ]:
            check_topic(name)
            check_id(topic_id)
        return cls(path, topics, file.cluster, file.removals, file.trash)

    def store(self) -> None:
        """Replace the file durably.

        Raises:
            DiskFull: no room; the old file remains.
            StorageFault: any other failure.  Either file may remain: store again when the disk has recovered.
        """
        self.in_doubt = True
        replace_data_file(self.path, self._encode())
        self.in_doubt = False

    def _encode(self) -> bytes:
        topics = self._topic_rows.of(self.topics, sorted(self.topics))
        removals = b",".join(map(_element, self.removals))
        trashed = {topic.id: topic for topic in self.trash}
        trash = self._trash_rows.of(trashed, trashed)
        head = b'{\n "version": %d,\n "cluster": %s' % (VERSION, msgspec.json.encode(self.cluster))
        return head + b',\n "topics": {%s},\n "removals": [%s],\n "trash": [%s]}\n' % (topics, removals, trash)

    def change(self, *changes: CatalogChange) -> None:
        """Make all changes in one store, or none of them.  On a full disk, removals use what is kept in reserve.

        Raises:
            DiskFull, StorageFault: no change is made.
        """
        before = self.topics, self.removals, self.trash
        self.topics, self.removals, self.trash = dict(self.topics), list(self.removals), list(self.trash)
        for change in changes:
            self._make(change)
        only_removes = all(change.put is None and (change.drop or change.done or change.forget) for change in changes)
        try:
            if only_removes:
                with_reserve(self.path.parent, self.store)
            else:
                self.store()
        except ApplianceError:
            self.topics, self.removals, self.trash = before
            raise
        for name in {change.drop for change in changes} | {change.put.name for change in changes if change.put}:
            if (gone := before[0].get(name)) is not None:
                self._note_gone(gone)
            if (present := self.topics.get(name)) is not None:
                self._note_present(present)

    def _note_present(self, topic: Topic) -> None:
        for brokers in topic.partitions.values():
            self.partition_counts.update(brokers)
        if (key := in_metrics(topic.name)) != topic.name or "_" in key:
            self._in_metrics[key] = self._in_metrics.get(key, frozenset()) | {topic.name}

    def _note_gone(self, topic: Topic) -> None:
        for brokers in topic.partitions.values():
            self.partition_counts.subtract(brokers)
        key = in_metrics(topic.name)
        if left := self._in_metrics.pop(key, frozenset()) - {topic.name}:
            self._in_metrics[key] = left

    def namesake(self, name: str) -> str | None:
        """Another topic that would have the same name in metrics as one of this name."""
        return min(self._in_metrics.get(in_metrics(name), frozenset()) - {name}, default=None)

    def _make(self, change: CatalogChange) -> None:
        put, drop, note, done, trash, forget = change
        self.topics.pop(drop, None)
        if put is not None:
            self.topics[put.name] = put
            forget = put.id
        if done in self.removals:
            self.removals.remove(done)
        if note is not None and note not in self.removals:
            self.removals.append(note)
        at = next(
            (index for index, deleted in enumerate(self.trash) if trash and deleted.id == trash.id), len(self.trash)
        )
        if trash is not None:
            self.trash[at : at + 1] = [trash]
        self.trash = [deleted for deleted in self.trash if not forget or deleted.id != forget]

    def hosted(self, broker_id: int) -> list[TopicPartition]:
        """The partitions that a broker stores, sorted."""
        return sorted(
            TopicPartition(topic.name, partition)
            for topic in self.topics.values()
            for partition, brokers in topic.partitions.items()
            if broker_id in brokers
        )


def _member(topic: Topic) -> bytes:
    """A topic in the file, on a line of its own."""
    partitions = {str(partition): brokers for partition, brokers in sorted(topic.partitions.items())}
    entry = msgspec.json.encode(_Entry(partitions, topic.settings, topic.id))
    return b"\n  %s: %s" % (msgspec.json.encode(topic.name), entry)


def _element(value: Removal | TrashedTopic) -> bytes:
    return b"\n  " + msgspec.json.encode(value)


class _Rows(Generic[R]):
    """The bytes of objects as the file has them, kept from one store to the next: most have not changed."""

    def __init__(self, encode: Callable[[R], bytes]) -> None:
        self._encode = encode
        self._objects: dict[str, R] = {}
        self._bytes: dict[str, bytes] = {}

    def of(self, objects: Mapping[str, R], order: Iterable[str]) -> bytes:
        """The bytes of all objects, in this order of their keys."""
        for key in self._objects.keys() - objects.keys():
            del self._bytes[key]
        for key, value in objects.items():
            if self._objects.get(key) is not value:
                self._bytes[key] = self._encode(value)
        self._objects = dict(objects)
        return b",".join(map(self._bytes.__getitem__, order))


def new_id() -> str:
    """Make the id of a new topic."""
    return uuid4().hex


def check_id(topic_id: str) -> str:
    """Check and return a topic id, which becomes part of file names and of paths in ZooKeeper.

    Raises:
        ValueError: it is not one.
    """
    if not _ID.fullmatch(topic_id):
        raise ValueError(f"topic id {topic_id!r:.50}: 32 hexadecimal digits are expected")
    return topic_id
