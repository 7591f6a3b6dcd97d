"""Answers the native requests that network workers forward: metadata and the admin verbs.

``wire/native.py`` specifies the frames, ``wire/native_admin.py`` the verbs.

The rights of an admin verb are checked before it is carried out (``security/verb_rights.py``); the verb's row
(``wire/native_admin.py``) says which they are.  Listings leave out what the client may not see by themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from ... import status
from ...broker.metadata_answers import MetadataAnswers
from ...broker.sequences import new_producer_id
from ...catalog import Topic
from ...errors import (
    ApplianceError,
    InvalidRequest,
    NotPermitted,
    RequestTimedOut,
    UnknownGroup,
    UnstableOffsets,
    ZooKeeperAway,
)
from ...groups import group_settings
from ...groups.consumer_group import ConsumerState
from ...groups.group_coordinator import GroupCoordinator
from ...groups.group_state import GroupState
from ...groups.store import Commit, RegisteredGroup
from ...health import host
from ...names import NOTE_BYTES_MAX, TopicPartition, check_group
from ...partition_states import damage_rows
from ...security.acls import Access, Operation, ResourceType
from ...security.authorizer import Authorizer
from ...security.principals import Origin
from ...security.verb_rights import check_rights
from ...wire import native, native_admin
from ...wire.kafka.codes import Code
from ...wire.native_admin import (
    AlterGroup,
    AlterTopic,
    CommitOffsets,
    CreateTopic,
    DeleteOffsets,
    DeleteRecords,
    GroupOffsets,
    ManyTopics,
    Nothing,
    OneGroup,
    OneTopic,
    OneTopicId,
    RepairPartition,
    ReportDamage,
    RestoreTopic,
    UndeleteTopic,
)
from ...wire.requests import ADMIN_API
from .compaction_enforcer import CompactionEnforcer
from .group_standing import GroupStanding, client_rates
from .known_groups import KnownGroups
from .measurements import Measured, Measurements
from .partitions import Partitions
from .registered_groups import RegisteredGroups
from .security_native_api import SecurityNativeApi
from .this_broker import ThisBroker
from .topics import Topics
from .trash import Trash
from .trusted_clock import TrustedClock

STATES: Final = {
    GroupState.EMPTY.value: "empty",
    GroupState.PREPARING.value: "rebalancing",
    GroupState.COMPLETING.value: "rebalancing",
    ConsumerState.ASSIGNING.value: "rebalancing",
    ConsumerState.RECONCILING.value: "rebalancing",
    GroupState.STABLE.value: "stable",
    GroupState.DEAD.value: "empty",
}
"""Ours by Kafka's; those of both protocols have the same names where they mean the same."""
CONFIGURED: Final = "configured"
"""The state of a group that has nothing but settings of its own."""
log = logging.getLogger(__name__)
VerbHandler = Callable[[Any, Access], Awaitable[Any]]
"""Takes the decoded arguments, and what the client may do."""


class NativeApi:
    """Answers requests of all connections, side by side.

    ``kafka_groups``: what this coordinator keeps of groups of the Kafka listener.  ``more``: verbs of other
    classes; ``pending``: the partitions of a group whose offsets transactions may still change.  ``on_error`` is
    called with the API and the number of errors of an answer that is one; ``on_refused`` with what an answer refuses
    for lack of a right: the request, and a name.
    """

    def __init__(
        self,
        broker: ThisBroker,
        topics: Topics,
        partitions: Partitions,
        measurements: Measurements,
        groups: RegisteredGroups,
        kafka_groups: GroupCoordinator,
        authorizer: Authorizer,
        clock: TrustedClock,
        known_groups: KnownGroups,
        trash: Trash,
        more: Mapping[str, VerbHandler],
        pending: Callable[[str], Awaitable[Collection[TopicPartition] | None]],
        compaction: CompactionEnforcer,
        on_error: Callable[[Origin, int, int], None],
        on_refused: Callable[[Origin, str], object],
    ) -> None:
        self._on_error, self._on_refused = on_error, on_refused
        self._trash, self._compaction, self._pending = trash, compaction, pending
        self._broker, self._clock, self._known_groups = broker, clock, known_groups
        self._topics, self._partitions = topics, partitions
        self._measurements = measurements
        self._groups = groups
        self._metadata = MetadataAnswers(broker)
        self._kafka_groups = kafka_groups
        self._authorizer = authorizer
        self._verbs: dict[str, VerbHandler] = {
            "create_topic": self._create_topic,
            "ensure_topic": self._ensure_topic,
            "alter_topic": self._alter_topic,
            "delete_topic": self._delete_topic,
            "trash": self._list_trash,
            "deleted_at_peer": self._find_deleted,
            "undelete_topic": self._undelete_topic,
            "restore_topic": self._restore_topic,
            "delete_records": self._delete_records,
            "topics": self._list_topics,
            "repair": self._repair,
            "report_damage": self._report_damage,
            "init_producer": self._init_producer,
            "status": self._status,
            "clients": self._clients,
            "groups": self._list_groups,
            "group_names": self._group_names,
            "group": self._group,
            "alter_group": self._alter_group,
            "offsets": self._offsets,
            "commit": self._commit,
            "delete_offsets": self._delete_offsets,
            **more,
            "accept_clock": self._accept_clock,
            **SecurityNativeApi(broker).verbs,
        }
        assert self._verbs.keys() == native_admin.VERBS.keys()

    async def answer(self, frame: bytes, origin: Origin) -> bytes:
        """The reply to a forwarded frame.

        Raises:
            ProtocolFault: close the connection.
        """
        request = native.decode_forwarded(memoryview(frame))
        access = self._authorizer.access(origin)
        if isinstance(request, native.MetadataRequest):
            reply = self._metadata.native(request.topics, origin.listener, access)
            if hidden := self._metadata.hidden(request.topics, access):
                self._on_refused(origin, f"Metadata {hidden}")
            return native.encode_frame([request.correlation, 0, reply])
        code, message, result = await self._admin(request.verb, request.arguments, access, origin)
        if code:
            self._on_error(origin, ADMIN_API, 1)
        try:
            return native.encode_frame([request.correlation, code, message, result])
        except (ValueError, OverflowError) as error:  # UnicodeError is a ValueError
            log.error("%s: what is stored cannot be sent: %s", request.verb, error)
            self._on_error(origin, ADMIN_API, 1)
            text = f"{request.verb}: what is stored cannot be sent, see the log of the appliance"
            return native.encode_frame([request.correlation, InvalidRequest.code, text, None])

    # ---- admin

    async def _admin(self, verb: str, encoded: msgspec.Raw, access: Access, origin: Origin) -> tuple[int, str, Any]:
        try:
            arguments = native_admin.decode_arguments(verb, encoded)
            check_rights(verb, native_admin.VERBS[verb].rights, arguments, access, self._broker.topics())
            return 0, "", await self._verbs[verb](arguments, access)
        except ApplianceError as error:
            if isinstance(error, NotPermitted):
                self._on_refused(origin, f"{verb} {error.name}")
            return error.code, str(error), None

    async def _create_topic(self, request: CreateTopic, access: Access) -> dict[str, Any]:
        return _brief(await self._topics.create(request.name, request.partitions, request.settings))

    async def _ensure_topic(self, request: OneTopic, access: Access) -> dict[str, Any]:
        topic, created = await self._topics.ensure(request.name)
        return {**_brief(topic), "created": created}

    async def _alter_topic(self, request: AlterTopic, access: Access) -> dict[str, Any]:
        return _brief(await self._topics.alter(request.name, request.settings, request.partitions))

    async def _delete_topic(self, request: OneTopic, access: Access) -> dict[str, int]:
        await self._broker.delete_topic(request.name)
        return {"trash_ms": self._broker.config.topics.trash_ms}

    async def _list_trash(self, request: Nothing, access: Access) -> list[dict[str, Any]]:
        return await self._trash.rows()

    async def _find_deleted(self, request: OneTopicId, access: Access) -> str:
        return self._trash.find_deleted(request.id)

    async def _undelete_topic(self, request: UndeleteTopic, access: Access) -> dict[str, Any]:
        return await self._trash.undelete(request.name, request.new_name)

    async def _restore_topic(self, request: RestoreTopic, access: Access) -> dict[str, Any]:
        return await self._trash.restore(request.name, request.id, request.partitions, request.settings)

    async def _delete_records(self, request: DeleteRecords, access: Access) -> None:
        await self._broker.delete_records(request.name, request.partition, request.offset)

    async def _list_topics(self, request: ManyTopics, access: Access) -> list[dict[str, Any]]:
        names = request.names
        if names is None:
            names = [name for name in sorted(self._broker.topics()) if access.describable[name]]
        topics = [self._topics.get(name) for name in names]
        measured = await self._measurements.measure(
            {TopicPartition(topic.name, partition): None for topic in topics for partition in topic.partitions}
        )
        return [self._describe(topic, measured) for topic in topics]

    async def _repair(self, request: RepairPartition, access: Access) -> dict[str, Any]:
        return await self._partitions.repair(request.name, request.partition, request.cut)

    async def _report_damage(self, request: ReportDamage, access: Access) -> list[dict[str, Any]]:
        if not 0 <= request.start < request.stop:
            raise InvalidRequest(f"offsets {request.start} to {request.stop}: must be ascending, and 0 or more")
        rows = await self._partitions.report(request.name, request.partition, request.start, request.stop)
        return damage_rows(rows)

    def _describe(self, topic: Topic, measured: Mapping[TopicPartition, Measured]) -> dict[str, Any]:
        rows = []
        for partition in sorted(topic.partitions):
            key = TopicPartition(topic.name, partition)
            row = {
                "partition": partition,
                "leader": self._broker.leader(topic, partition),
                **_extent(measured.get(key)),
            }
            here = self._broker.broker_id in topic.partitions[partition]
            state = self._partitions.state(*key) if here else "elsewhere"
            compacted = self._compaction.rows.get(f"{topic.name}-{partition}")
            ratio = {"dirty_ratio": compacted["dirty_ratio"]} if compacted is not None else {}
            rows.append(row | {"state": state} | ratio)
        held, sources = self._topics.settings(topic), self._topics.defaults.sources(topic.name, topic.settings)
        return {
            **{"name": topic.name, "settings": held.as_kafka(), "sources": sources},
            **{"own": topic.settings, "partitions": rows},
        }

    async def _init_producer(self, request: Nothing, access: Access) -> dict[str, int]:
        return {"producer_id": new_producer_id(), "epoch": 0}

    async def _status(self, request: Nothing, access: Access) -> dict[str, Any]:
        return await asyncio.to_thread(_status_of, Path(self._broker.data_dir))

    async def _clients(self, request: Nothing, access: Access) -> dict[str, Any]:
        return await asyncio.to_thread(status.read_clients, Path(self._broker.data_dir))

    async def _accept_clock(self, request: Nothing, access: Access) -> dict[str, int]:
        if not self._clock.begun:
            raise RequestTimedOut("the clock has not been looked at yet: try again")
        return {"jump_ms": self._clock.believe(self._broker.config.disk.clock_jump_hold_ms)}

    # ---- groups

    async def _list_groups(self, request: Nothing, access: Access) -> list[dict[str, Any]]:
        every = access.may(Operation.DESCRIBE, ResourceType.CLUSTER)
        kafka = self._kafka_groups
        listed = await self._groups.groups(lambda name: not kafka.has_members(name))
        rows = {group.name: self._standing(group.name, group.native, group.members) for group in listed}
        natives = {group.name for group in listed if group.native}
        # Their last members may still be registered for a moment.
        rows |= {name: self._standing(name, False, 0) for name in kafka.emptied().keys() - natives}
        for name in kafka.groups().keys() | set(kafka.consumers.names()):
            rows[name] = self._standing(name, False, len(kafka.registration(name)))
        return [
            {"group": name, **rows[name]}
            for name in sorted(rows)
            if every or access.may(Operation.DESCRIBE, ResourceType.GROUP, name)
        ]

    async def _group_names(self, request: Nothing, access: Access) -> list[str]:
        every = access.may(Operation.DESCRIBE, ResourceType.CLUSTER)
        names = await self._groups.names()
        return [name for name in names if every or access.may(Operation.DESCRIBE, ResourceType.GROUP, name)]

    async def _group(self, request: OneGroup, access: Access) -> dict[str, Any]:
        registered = await self._groups.group(request.group)
        if registered is None and not self._is_kept(request.group):
            if request.group not in self._broker.group_settings.own:
                raise UnknownGroup(f"there is no group {request.group!r}")
            nothing = {"protocol": "", "state": CONFIGURED, "members": [], "partitions": []}
            return nothing | self._settings_of(request.group)
        group = self._current_group(request.group, registered)
        committed = await self._committed(request.group)
        heard = self._groups.native.heard(group.name) | self._kafka_groups.heard(group.name)
        state = self._standing(group.name, group.native, len(group.members))
        standing = GroupStanding(
            *(group, state["state"], committed, await self._groups.committed_ms(group.name), heard),
            self._broker.topics(),
        )
        parts = {part for part in standing.parts if access.describable[part.topic]}
        offsets = {part: committed[part].offset if part in committed else 0 for part in parts}
        measured = await self._measurements.measure(offsets)
        rows = await standing.rows(parts, measured, lambda: client_rates(Path(self._broker.data_dir)))
        return {**state, "members": standing.members(), "partitions": rows, **self._settings_of(group.name)}

    async def _alter_group(self, request: AlterGroup, access: Access) -> dict[str, Any]:
        check_group(request.group)
        await self._broker.group_settings.alter(request.group, request.settings)
        return self._settings_of(request.group)

    def _settings_of(self, group: str) -> dict[str, Any]:
        own, limits = self._broker.group_settings.own.get(group, {}), self._broker.group_settings.limits
        held, sources = group_settings.values(own, limits), group_settings.sources(own, limits)
        return {"group": group, "settings": held, "sources": sources}

    def _is_kept(self, name: str) -> bool:
        """Whether this coordinator knows the group as one of the Kafka listener."""
        return self._kafka_groups.has_members(name) or name in self._kafka_groups.emptied()

    def _current_group(self, name: str, registered: RegisteredGroup | None) -> RegisteredGroup:
        """The group as this coordinator keeps it, whose registration follows; else as it is registered."""
        if registered is not None and (registered.native or not self._is_kept(name)):
            return registered
        topics = self._broker.topics()
        members = [  # without what a leader has invented, as in the registration
            member._replace(
                partitions=tuple(
                    part
                    for part in member.partitions
                    if part.topic in topics and part[1] in topics[part.topic].partitions
                )
            )
            for member in self._kafka_groups.registration(name)
        ]
        owned_ms = registered.owned_ms if registered is not None else {}
        return RegisteredGroup(name, native=False, members=tuple(members), owned_ms=owned_ms)

    def _standing(self, name: str, native: bool, members: int) -> dict[str, Any]:
        """Protocol, state and number of members."""
        kept = self._kafka_groups.state(name)
        protocol, state = "", GroupState.EMPTY.value
        if kept:
            protocol, state = "kafka", kept
        elif members:
            protocol, state = "native" if native else "kafka", GroupState.STABLE.value
        return {"protocol": protocol, "state": STATES[state], "members": members}

    async def _offsets(self, request: GroupOffsets, access: Access) -> list[list[Any]]:
        if request.stable is not None:
            await self._check_stable(request.group, [TopicPartition(*key) for key in request.stable])
        committed = await self._committed(request.group)
        if request.stable is not None:
            committed = {key: commit for key, commit in committed.items() if key in set(request.stable)}
        may = access.describable
        return [[*key, commit.offset] for key, commit in sorted(committed.items()) if may[key.topic]]

    async def _check_stable(self, group: str, parts: Sequence[TopicPartition]) -> None:
        """Look before they are read: what a transaction that ends meanwhile commits is read then.

        Raises:
            UnstableOffsets: an open transaction may change the committed offset of one of these partitions.
            ZooKeeperAway: it is not known now which transactions there are.
        """
        pending = await self._pending(group)
        if pending is None:
            raise ZooKeeperAway("it is not known now which transactions there are: try again")
        for part in parts:
            if part in pending:
                raise UnstableOffsets(f"{part}: an open transaction may change the offset of group {group!r}")

    async def _committed(self, group: str) -> dict[TopicPartition, Commit]:
        """The committed offsets of a group, without the negative ones that Kafka's clients may store."""
        committed = await self._groups.committed(group, None)
        return {key: commit for key, commit in committed.items() if commit.offset >= 0}

    async def _commit(self, request: CommitOffsets, access: Access) -> None:
        offsets: dict[TopicPartition, Commit | None] = {}
        if len(request.note.encode()) > NOTE_BYTES_MAX:
            raise InvalidRequest(f"note: {len(request.note.encode())} bytes: at most {NOTE_BYTES_MAX}")
        for topic, partition, offset in request.offsets:
            if offset < 0:
                raise InvalidRequest(f"offset {offset} of {topic}-{partition}: must be 0 or more")
            offsets[TopicPartition(topic, partition)] = Commit(offset, request.note)
        arguments = {"group": request.group, "offsets": request.offsets, "note": request.note}
        if not await self._groups.carried_out_elsewhere(request.group, "commit", arguments, request.forwarded):
            for error in (await self._groups.commit(request.group, offsets)).values():
                raise error

    async def _delete_offsets(self, request: DeleteOffsets, access: Access) -> None:
        arguments = {"group": request.group, "partitions": request.partitions}
        if await self._groups.carried_out_elsewhere(request.group, "delete_offsets", arguments, request.forwarded):
            return
        if request.partitions is None:
            was_lost = self._known_groups.forget(request.group)
            try:
                await self._delete_group(request.group)
            except UnknownGroup:
                if not was_lost:
                    raise
        else:
            dropped = [TopicPartition(*key) for key in request.partitions]
            await self._groups.commit(request.group, dict.fromkeys(dropped))

    async def _delete_group(self, name: str) -> None:
        """Delete a group with all its offsets.

        Raises:
            InvalidRequest: it has members.
            UnknownGroup: there is no such group.
        """
        await self._kafka_groups.load(name)
        code = self._kafka_groups.delete(name)
        if code is Code.NON_EMPTY_GROUP:
            raise InvalidRequest(f"group {name!r} has live members; stop them first")
        try:
            await self._groups.forget(name)
        except UnknownGroup:
            if code is Code.GROUP_ID_NOT_FOUND:
                raise


def _status_of(data_dir: Path) -> dict[str, Any]:
    """The status with what the machine says, so that whoever asks from another host judges by the same."""
    shown = status.collect(data_dir)
    return shown | {"host": host.look_at_host(data_dir, shown).as_json()}


def _brief(topic: Topic) -> dict[str, Any]:
    return {"name": topic.name, "partitions": len(topic.partitions)}


def _extent(measured: Measured | None) -> dict[str, int | None]:
    if measured is None:
        return dict.fromkeys(("start", "end", "bytes", "messages"))
    start, end, messages, _ = measured
    return {"start": start, "end": end, "bytes": end - start, "messages": messages}
