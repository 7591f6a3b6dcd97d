"""Answers OffsetCommit, OffsetFetch and OffsetDelete."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from ..catalog import Topic
from ..errors import ApplianceError, NotCoordinator
from ..names import NOTE_BYTES_MAX, TopicPartition
from ..security.acls import Operation, ResourceType
from ..wire.kafka.call import Answer, Call, Encoded, Handler, error_row, retriable, rows_by_topic
from ..wire.kafka.codes import Code
from ..wire.kafka.metadata_reply import asked_id, topic_id
from ..wire.kafka.reply import ReplyEncoder
from . import consumer_protocol
from .group_coordinator import GroupCoordinator
from .store import Commit, GroupStore

OF_CONSUMERS_FROM: Final = 9
"""Version of OffsetCommit and OffsetFetch from which they have the epoch of a member of the consumer protocol."""
OUTDATED: Final = (Code.STALE_MEMBER_EPOCH, Code.ILLEGAL_GENERATION)
"""Of a member with an older epoch in a group of the consumer protocol: it may have some partitions since then."""
IDS_FROM: Final = 10
"""Version of both from which they name topics by their ids."""
THROTTLED_FROM: Final = 3
"""Version of OffsetCommit from which its reply begins with the throttle time."""
FLEXIBLE_FROM: Final = 8
THROTTLE_BYTES: Final = 4
PARTITION: Final = struct.Struct(">ih")
"""Of the reply to OffsetCommit: its number, and the error."""


T = TypeVar("T")


class _Asked(NamedTuple):
    """A topic of a request.  ``name`` None: it was given by an id that no topic has."""

    name: str | None
    topic: Any


class OffsetsApi:
    """Stores and reads committed offsets, of members and of consumers that do not join.

    ``pending``: the partitions whose committed offset in a group may be changed by an open transaction; None: it is not
    known now.
    """

    def __init__(
        self,
        coordinator: GroupCoordinator,
        store: GroupStore,
        pending: Callable[[str], Awaitable[Collection[TopicPartition] | None]],
    ) -> None:
        self._coordinator, self._store, self._pending = coordinator, store, pending
        self._membership, self._consumers = coordinator.membership, coordinator.consumers
        self._names: dict[str, str] = {}
        self._names_revision = -1

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "OffsetCommit": self._commit,
            "OffsetFetch": self._fetch,
            "OffsetDelete": self._delete,
        }

    async def _commit(self, call: Call) -> Answer:
        """Commit offsets.  Without a lease a commit waits: librdkafka would resend a refused one after newer ones."""
        request = call.request
        name = request.group_id
        error = self._coordinator.refuse(name, call.listener, nameless=True, without_lease=Code.NONE)
        if not error:  # also of who is no member: while the group has some, it may not commit
            unloaded = await self._coordinator.load(name, unavailable=Code.NOT_COORDINATOR)  # see _write
            if request.member_id or request.generation_id_or_member_epoch >= 0:
                error = unloaded
        error = error or self._refusal(call)
        changes: dict[TopicPartition, Commit | None] = {}
        codes: dict[TopicPartition, int] = {}
        topics = self._store.topics()
        asked = self._named(request.topics, call.version)
        for topic_name, topic in asked:
            if topic_name is None:
                continue
            for part in topic.partitions:
                key = TopicPartition(topic_name, part.partition_index)
                note = part.committed_metadata or ""
                described = topics.get(topic_name)
                codes[key] = error
                if error in OUTDATED and described is not None and self._consumers.get(name) is not None:
                    codes[key] = self._consumers.commit_code(
                        name,
                        request.member_id,
                        request.generation_id_or_member_epoch,
                        (described.id, part.partition_index),
                    )
                if codes[key]:
                    continue
                codes[key] = refuse_offset(call, key, described, note)
                if not codes[key]:
                    changes[key] = Commit(part.committed_offset, note, max(-1, part.committed_leader_epoch))
        if changes:
            codes |= await self._write(name, changes)
        if call.version < IDS_FROM:
            rows = rows_by_topic(codes, error_row)
        else:
            rows = [_topic_row(topic, "partitions", codes, Code.UNKNOWN_TOPIC_ID, error_row) for topic in asked]
        return encode_committed(call, rows)

    def _named(self, topics: Iterable[Any], version: int) -> list[_Asked]:
        """Topics of a request, by names or by ids, each with its name; None: no topic has this id."""
        if version < IDS_FROM:
            return [_Asked(topic.name, topic) for topic in topics]
        if self._names_revision != self._store.revision:
            self._names_revision = self._store.revision
            self._names = {topic.id: name for name, topic in self._store.topics().items()}
        return [_Asked(self._names.get(asked_id(topic.topic_id).hex), topic) for topic in topics]

    def _refusal(self, call: Call) -> Code:
        """Why a commit is refused.  STALE_MEMBER_EPOCH: ask for each partition."""
        request, name = call.request, call.request.group_id
        epoch = request.generation_id_or_member_epoch
        consumers = self._consumers.get(name)
        if consumers is not None:
            member = consumers.members.get(request.member_id)
            if call.version < OF_CONSUMERS_FROM and epoch >= 0 and member is not None and member.classic is None:
                return Code.UNSUPPORTED_VERSION
            return self._consumers.commit_code(name, request.member_id, epoch)
        if self._membership.get(name) is None and epoch >= 0 and call.version >= OF_CONSUMERS_FROM:
            return Code.UNKNOWN_MEMBER_ID  # of either protocol: it joins again
        return self._membership.may_commit(
            name, request.member_id, request.group_instance_id, epoch, self._coordinator.now_ms()
        )

    async def _write(self, name: str, changes: Mapping[TopicPartition, Commit | None]) -> dict[TopicPartition, int]:
        """Store offsets; return the codes of those that could not be stored.

        NOT_COORDINATOR is the only retriable code that is answered: librdkafka resends such commits after newer ones of
        the same partition, and would undo these.  It does not resend after REBALANCE_IN_PROGRESS; after so long without
        ZooKeeper the group is dissolved, and has to be joined again anyway.
        """
        group = self._membership.get(name)
        member_of = group.protocol_type if group is not None and group.members else ""
        if self._consumers.get(name) is not None:
            member_of = consumer_protocol.TYPE
        try:
            refused = await self._store.commit(name, changes, member_of)
        except ApplianceError as error:
            refused = dict.fromkeys(changes, error)
        return {
            key: Code.NOT_COORDINATOR
            if isinstance(error, NotCoordinator)
            else retriable(error, Code.REBALANCE_IN_PROGRESS)
            for key, error in refused.items()
        }

    async def _fetch(self, call: Call) -> Answer:
        if call.version >= 8:
            groups = [
                {"group_id": group.group_id, **await self._fetch_one(group.group_id, group.topics, call, group)}
                for group in call.request.groups
            ]
            return {"groups": groups}
        return await self._fetch_one(call.request.group_id, call.request.topics, call)

    async def _fetch_one(self, name: str, topics: Any, call: Call, asks: Any = None) -> dict[str, Any]:
        """The answer about one group.  ``asks``: who asks, from version 9 on, if it is a member."""
        keys = asked = None
        if topics is not None:
            asked = self._named(topics, call.version)
            keys = [
                TopicPartition(topic_name, number)
                for topic_name, topic in asked
                if topic_name is not None
                for number in topic.partition_indexes
            ]
        if not call.may(Operation.DESCRIBE, ResourceType.GROUP, name):
            return self._refused(keys or (), Code.GROUP_AUTHORIZATION_FAILED, call.version)
        unready = Code.COORDINATOR_LOAD_IN_PROGRESS  # Java's consumer takes COORDINATOR_NOT_AVAILABLE for fatal here
        error: int = self._coordinator.refuse(name, call.listener, nameless=True, without_lease=unready)
        if not error and asks is not None and asks.member_id is not None and asks.member_epoch >= 0:
            error = await self._coordinator.load(name, unavailable=unready)
            error = error or self._check_member(name, asks.member_id, asks.member_epoch, keys or ())
        committed: Mapping[TopicPartition, Commit] = {}
        unstable: Collection[TopicPartition] = ()
        if not error and call.request.require_stable:  # before the reading: what is committed meanwhile may be read
            pending = await self._pending(name)
            if pending is None:
                error = unready
            else:
                unstable = set(pending)
        if not error:
            try:
                committed = await self._store.committed(name, None if keys is None else self._existing(keys))
            except ApplianceError as fault:
                error = retriable(fault, Code.COORDINATOR_LOAD_IN_PROGRESS)
        if error:
            return self._refused(keys or (), error, call.version)
        may = call.access.describable
        if keys is None:
            keys = [key for key in {**committed, **dict.fromkeys(unstable)} if may[key[0]]]
        rows = {
            key: _row(None, Code.TOPIC_AUTHORIZATION_FAILED)
            if not may[key[0]]
            else _row(None, Code.UNSTABLE_OFFSET_COMMIT)
            if key in unstable
            else _row(committed.get(key))
            for key in keys
        }
        fields: dict[str, Any] = {
            "topics": rows_by_topic(rows, dict) if call.version < IDS_FROM else self._rows_with_ids(asked, rows)
        }
        return fields | {"error_code": Code.NONE} if call.version >= 2 else fields

    def _rows_with_ids(
        self, asked: Iterable[_Asked] | None, rows: Mapping[TopicPartition, dict[str, Any]]
    ) -> list[Any]:
        """``rows`` by the ids of topics: of those that were asked for, else of all that there are."""
        if asked is not None:
            unknown = _row(None, Code.UNKNOWN_TOPIC_ID)
            return [_topic_row(topic, "partition_indexes", rows, unknown, dict) for topic in asked]
        topics = self._store.topics()
        there = {key: row for key, row in rows.items() if key[0] in topics}
        return [topic | {"topic_id": topic_id(topics[topic["name"]])} for topic in rows_by_topic(there, dict)]

    def _check_member(self, name: str, member_id: str, epoch: int, keys: Iterable[TopicPartition]) -> Code:
        """Whether this is a member of its group; of a group that is not here nobody is, so that it joins again.

        As for commits, an older epoch is good for partitions that have been the member's since then.
        """
        if self._membership.get(name) is not None:
            return Code.NONE  # the classic protocol has no epochs of members
        code = self._consumers.commit_code(name, member_id, epoch)
        if code is Code.STALE_MEMBER_EPOCH:
            topics = self._store.topics()
            parts = [(topics[key.topic].id, key.partition) for key in keys if key.topic in topics]
            codes = {self._consumers.commit_code(name, member_id, epoch, part) for part in parts}
            return Code.NONE if codes == {Code.NONE} else code
        return code

    @staticmethod
    def _refused(keys: Iterable[TopicPartition], error: int, version: int) -> dict[str, Any]:
        """The answer about one group with nothing but an error, which old versions have in each partition."""
        if version >= 2:
            return {"error_code": error, "topics": []}
        return {"topics": rows_by_topic({key: _row(None, error) for key in keys}, dict)}

    def _existing(self, keys: Iterable[TopicPartition]) -> list[TopicPartition]:
        """The existing partitions, once each: names that a client invents are neither looked up nor remembered."""
        topics = self._store.topics()
        return [key for key in dict.fromkeys(keys) if key[0] in topics and key[1] in topics[key[0]].partitions]

    async def _delete(self, call: Call) -> Answer:
        name = call.request.group_id
        keys = [
            TopicPartition(topic.name, part.partition_index)
            for topic in call.request.topics
            for part in topic.partitions
        ]
        error: int = self._coordinator.refuse(name, call.listener) or await self._coordinator.load(
            name, unavailable=Code.COORDINATOR_LOAD_IN_PROGRESS
        )
        subscribed: set[str] = set()
        group = self._membership.get(name)
        if error:
            return {"error_code": error}
        if group is not None and group.members:
            if group.protocol_type != consumer_protocol.TYPE:
                return {"error_code": Code.NON_EMPTY_GROUP}
            for member in group.members.values():
                for offer in member.protocols:
                    subscribed.update(consumer_protocol.subscribed_topics(offer.data))
        consumers = self._consumers.get(name)
        if consumers is not None:
            subscribed.update(key.topic for key in keys if consumers.subscribes(key.topic))
        has_members = self._coordinator.has_members(name)
        try:
            registered = await self._store.group(name)
            if registered is None and not has_members and name not in self._coordinator.emptied():
                return {"error_code": Code.GROUP_ID_NOT_FOUND}
            if registered is not None and registered.native:
                subscribed.update(topic for member in registered.members for topic in member.topics)
            may = call.access.readable
            free = [key for key in self._existing(keys) if key[0] not in subscribed and may[key[0]]]
            if free and registered is not None:
                for fault in (await self._store.commit(name, dict.fromkeys(free))).values():
                    raise fault
        except ApplianceError as fault:
            return {"error_code": retriable(fault, Code.COORDINATOR_LOAD_IN_PROGRESS)}
        codes = dict.fromkeys(keys, Code.UNKNOWN_TOPIC_OR_PARTITION) | dict.fromkeys(free, Code.NONE)
        codes |= {key: Code.GROUP_SUBSCRIBED_TO_TOPIC for key in keys if key[0] in subscribed}
        codes |= {key: Code.TOPIC_AUTHORIZATION_FAILED for key in keys if not may[key[0]]}
        rows = rows_by_topic(codes, error_row)
        return {"error_code": Code.NONE, "topics": rows}


def encode_committed(call: Call, topics: Sequence[Mapping[str, Any]]) -> Encoded:
    """The reply to OffsetCommit: no request is answered as often by the coordinator."""
    reply = ReplyEncoder(flexible=call.version >= FLEXIBLE_FROM)
    tags, errors, served = reply.tags, [], 0
    parts = [] if call.version < THROTTLED_FROM else [bytes(THROTTLE_BYTES)]
    parts.append(reply.count(len(topics)))
    for topic in topics:
        rows = topic["partitions"]
        parts.append(reply.string(topic["name"]) if call.version < IDS_FROM else asked_id(topic["topic_id"]).bytes)
        parts.append(reply.count(len(rows)))
        parts += [PARTITION.pack(row["partition_index"], row["error_code"]) + tags for row in rows]
        parts.append(tags)
        refused = sum([row["error_code"] != 0 for row in rows])
        served += len(rows) - refused
        if refused:
            errors.append(dict(topic))
    parts.append(tags)
    return Encoded(reply.frame(call.correlation_id, parts), errors, served)


def refuse_offset(call: Call, key: TopicPartition, topic: Topic | None, note: str) -> Code:
    """Why an offset cannot be committed in this partition of ``topic``, None: there is none.  NONE: it can."""
    if not call.access.readable[key.topic]:
        return Code.TOPIC_AUTHORIZATION_FAILED
    if topic is None or key.partition not in topic.partitions:
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    return Code.OFFSET_METADATA_TOO_LARGE if len(note.encode()) > NOTE_BYTES_MAX else Code.NONE


def _topic_row(
    asked: _Asked,
    partitions: str,
    rows: Mapping[TopicPartition, T],
    unknown: T,
    fields: Callable[[T], Mapping[str, Any]],
) -> dict[str, Any]:
    """The rows of a topic that was asked for by its id, in the order of its ``partitions``."""
    partition_rows = []
    for requested in getattr(asked.topic, partitions):
        number = requested if isinstance(requested, int) else requested.partition_index
        row = unknown if asked.name is None else rows[TopicPartition(asked.name, number)]
        partition_rows.append({"partition_index": number, **fields(row)})
    return {"topic_id": asked.topic.topic_id, "partitions": partition_rows}


def _row(commit: Commit | None, error: int = Code.NONE) -> dict[str, Any]:
    """The fields of one partition in an answer to OffsetFetch."""
    offset, note, epoch = commit or Commit(-1)
    return {"committed_offset": offset, "committed_leader_epoch": epoch, "metadata": note, "error_code": error}
