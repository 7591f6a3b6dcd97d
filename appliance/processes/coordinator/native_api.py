"""Answers the native requests that network workers forward: metadata and the admin verbs.

``wire/native.py`` specifies the frames, ``wire/native_admin.py`` the verbs.

The rights of an admin verb are checked before it is carried out (:func:`check_rights`); ``security/api_rights.py`` says
which they are.  Listings leave out what the client may not see by themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from ... import status
from ...broker.metadata_answers import MetadataAnswers
from ...broker.sequences import new_producer_id
from ...catalog import Topic
from ...errors import (
    ApplianceError,
    ClusterNotPermitted,
    GroupNotPermitted,
    InvalidRequest,
    NotPermitted,
    RequestTimedOut,
    TopicNotPermitted,
    TransactionalIdNotPermitted,
    UnknownGroup,
)
from ...groups.consumer_group import ConsumerState
from ...groups.group_coordinator import GroupCoordinator
from ...groups.group_state import State
from ...groups.store import Commit, RegisteredGroup
from ...health import host
from ...names import TopicPartition
from ...partition_states import damage_rows
from ...retention import lost_bytes
from ...security.acls import CLUSTER_NAME, Access, Operation, ResourceType, word
from ...security.api_rights import NATIVE_RIGHTS, How, Right
from ...security.authorizer import Authorizer
from ...security.principals import Origin
from ...security.rule_changes import NO_AUTHORIZER, Deletion, added, filter_from_words, from_words, words
from ...security.scram import decode_verifier
from ...security.user_changes import drop_verifiers, set_verifiers
from ...transactions.transaction_coordinator import TransactionCoordinator
from ...wire import native, native_admin
from ...wire.kafka.codes import Code
from ...wire.native_admin import (
    AddAcls,
    AlterTopic,
    CommitOffsets,
    CreateTopic,
    DeleteAcls,
    DeleteOffsets,
    DeleteRecords,
    ManyTopics,
    Nothing,
    OneGroup,
    OneTopic,
    OneUser,
    PutUser,
    RepairPartition,
    ReportDamage,
    RestoreTopic,
    SelectAcls,
    UndeleteTopic,
)
from ...wire.requests import ADMIN_API
from ...wire.sockets import LOCAL_SOCKET
from ...zookeeper import login
from .compaction_enforcer import CompactionEnforcer
from .known_groups import KnownGroups
from .measuring import Measured, Measurements
from .partitions import Partitions
from .registered_groups import RegisteredGroups
from .this_broker import ThisBroker
from .topics import Topics
from .transactions_native_api import TransactionsNativeApi
from .trash import Trash
from .trusted_clock import TrustedClock

STATES: Final = {
    State.EMPTY.value: "empty",
    State.PREPARING.value: "rebalancing",
    State.COMPLETING.value: "rebalancing",
    ConsumerState.ASSIGNING.value: "rebalancing",
    ConsumerState.RECONCILING.value: "rebalancing",
    State.STABLE.value: "stable",
    State.DEAD.value: "empty",
}
"""Ours by Kafka's; those of both protocols have the same names where they mean the same."""
ERRORS: Final[dict[ResourceType, type[NotPermitted]]] = {
    ResourceType.TOPIC: TopicNotPermitted,
    ResourceType.GROUP: GroupNotPermitted,
    ResourceType.TRANSACTIONAL_ID: TransactionalIdNotPermitted,
    ResourceType.CLUSTER: ClusterNotPermitted,
}
ARGUMENT_OF: Final = {
    ("alter_topic", Operation.ALTER_CONFIGS): "settings",
    ("alter_topic", Operation.ALTER): "partitions",
}
"""Rights that a verb needs only with this argument."""


def check_rights(verb: str, arguments: Any, access: Access, topics: Container[str]) -> None:
    """Check the rights of one request.

    Args:
        topics: those that there are.

    Raises:
        NotPermitted: the first right that is missing.
    """
    if access.unrestricted:
        return
    for right in _rights_for(verb, arguments):
        operation, resource, how = right
        if how is How.LISTED:
            continue
        if how is How.SUFFICES:
            if access.may(operation, resource):
                return
            continue
        if verb == "ensure_topic" and operation is Operation.CREATE and arguments.name in topics:
            continue
        _check(right, arguments, access)


def _rights_for(verb: str, arguments: Any) -> Sequence[Right]:
    """The rights that a verb needs with these arguments; all of them, if they ask for nothing of it."""
    every = NATIVE_RIGHTS[verb]
    arguments_of = [(right, ARGUMENT_OF.get((verb, right.operation))) for right in every]
    return [right for right, name in arguments_of if not name or getattr(arguments, name)] or every


def _check(right: Right, arguments: Any, access: Access) -> None:
    operation, resource, how = right
    names = _names(resource, arguments)
    of_any_topic = how is How.WHOLE and resource is ResourceType.TOPIC and not hasattr(arguments, "group")
    if of_any_topic and not access.may_some(operation, resource):
        raise ClusterNotPermitted(_text(right, "any"), CLUSTER_NAME)
    for name in names:
        if not access.may(operation, resource, name):
            raise ERRORS[resource](_text(right, name), name)


def _names(resource: ResourceType, arguments: Any) -> list[str]:
    """The resources of a type that the arguments of a verb name."""
    if resource is ResourceType.CLUSTER:
        return [CLUSTER_NAME]
    if resource is ResourceType.GROUP:
        return [arguments.group] if hasattr(arguments, "group") else []
    if resource is ResourceType.TRANSACTIONAL_ID:
        return [arguments.id]
    if hasattr(arguments, "name"):
        return [arguments.name]
    rows = getattr(arguments, "offsets", None) or getattr(arguments, "partitions", None) or ()
    return [*(getattr(arguments, "names", None) or ()), *dict.fromkeys(row[0] for row in rows)]


def _text(right: Right, name: str) -> str:
    operation, resource, _ = right
    return f"not permitted: {word(operation)} on {word(resource).lower()} {name!r}"


class NativeApi:
    """Answers requests of all connections, side by side.

    ``kafka_groups``: what this coordinator keeps of groups of the Kafka listener.

    It has more than 20 methods: one for each verb.
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
        transactions: TransactionCoordinator,
        compaction: CompactionEnforcer,
    ) -> None:
        self._trash, self._compaction = trash, compaction
        self._broker, self._clock, self._known_groups = broker, clock, known_groups
        self._topics = topics
        self._partitions = partitions
        self._measurements = measurements
        self._groups = groups
        self._metadata = MetadataAnswers(broker)
        self._kafka_groups = kafka_groups
        self._authorizer = authorizer
        self._verbs: dict[str, Callable[[Any, Access], Awaitable[Any]]] = {
            "create_topic": self._create_topic,
            "ensure_topic": self._ensure_topic,
            "alter_topic": self._alter_topic,
            "delete_topic": self._delete_topic,
            "trash": self._list_trash,
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
            "offsets": self._offsets,
            "commit": self._commit,
            "delete_offsets": self._delete_offsets,
            **TransactionsNativeApi(transactions).verbs,
            "users": self._list_users,
            "put_user": self._put_user,
            "delete_user": self._delete_user,
            "zookeeper_login": self._zookeeper_login,
            "accept_clock": self._accept_clock,
            "acls": self._acls,
            "add_acls": self._add_acls,
            "delete_acls": self._delete_acls,
        }
        assert self._verbs.keys() == native_admin.VERBS.keys()
        self.on_error: Callable[[Origin, int, int], None] = lambda origin, api, count: None
        """Called with the API and the number of errors of an answer that is one."""
        self.on_refused: Callable[[Origin, str], object] = lambda origin, what: None
        """Called with what an answer refuses for lack of a right: the request, and a name."""

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
                self.on_refused(origin, f"Metadata {hidden}")
            return native.encode_frame([request.correlation, 0, reply])
        code, message, result = await self._admin(request.verb, request.arguments, access, origin)
        if code:
            self.on_error(origin, ADMIN_API, 1)
        return native.encode_frame([request.correlation, code, message, result])

    # ---- admin

    async def _admin(self, verb: str, given: msgspec.Raw, access: Access, origin: Origin) -> tuple[int, str, Any]:
        try:
            arguments = native_admin.decode_arguments(verb, given)
            check_rights(verb, arguments, access, self._broker.topics())
            return 0, "", await self._verbs[verb](arguments, access)
        except ApplianceError as error:
            if isinstance(error, NotPermitted):
                self.on_refused(origin, f"{verb} {error.name}")
            return error.code, str(error), None

    async def _create_topic(self, wanted: CreateTopic, access: Access) -> dict[str, Any]:
        return _brief(await self._topics.create(wanted.name, wanted.partitions, wanted.settings))

    async def _ensure_topic(self, wanted: OneTopic, access: Access) -> dict[str, Any]:
        topic, created = await self._topics.ensure(wanted.name)
        return {**_brief(topic), "created": created}

    async def _alter_topic(self, wanted: AlterTopic, access: Access) -> dict[str, Any]:
        return _brief(await self._topics.alter(wanted.name, wanted.settings, wanted.partitions))

    async def _delete_topic(self, wanted: OneTopic, access: Access) -> dict[str, int]:
        await self._broker.delete_topic(wanted.name)
        return {"trash_ms": self._broker.config.topics.trash_ms}

    async def _list_trash(self, wanted: Nothing, access: Access) -> list[dict[str, Any]]:
        return await self._trash.rows()

    async def _undelete_topic(self, wanted: UndeleteTopic, access: Access) -> dict[str, Any]:
        return await self._trash.undelete(wanted.name, wanted.new_name)

    async def _restore_topic(self, wanted: RestoreTopic, access: Access) -> dict[str, Any]:
        return await self._trash.restore(wanted.name, wanted.id, wanted.partitions, wanted.settings)

    async def _delete_records(self, wanted: DeleteRecords, access: Access) -> None:
        await self._broker.delete_records(wanted.name, wanted.partition, wanted.offset)

    async def _list_topics(self, wanted: ManyTopics, access: Access) -> list[dict[str, Any]]:
        names = wanted.names
        if names is None:
            names = [name for name in sorted(self._broker.topics()) if access.describable[name]]
        topics = [self._topics.get(name) for name in names]
        measured = await self._measurements.measure(
            {TopicPartition(topic.name, partition): None for topic in topics for partition in topic.partitions}
        )
        return [self._describe(topic, measured) for topic in topics]

    async def _repair(self, wanted: RepairPartition, access: Access) -> dict[str, Any]:
        return await self._partitions.repair(wanted.name, wanted.partition, wanted.cut)

    async def _report_damage(self, wanted: ReportDamage, access: Access) -> list[dict[str, Any]]:
        if not 0 <= wanted.start < wanted.stop:
            raise InvalidRequest(f"offsets {wanted.start} to {wanted.stop}: must be ascending, and 0 or more")
        rows = await self._partitions.report(wanted.name, wanted.partition, wanted.start, wanted.stop)
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
        own = self._topics.settings(topic).as_kafka()
        return {"name": topic.name, "settings": own, "own": topic.settings, "partitions": rows}

    async def _init_producer(self, wanted: Nothing, access: Access) -> dict[str, int]:
        return {"producer_id": new_producer_id(), "epoch": 0}

    async def _status(self, wanted: Nothing, access: Access) -> dict[str, Any]:
        return await asyncio.to_thread(_status_of, Path(self._broker.data_dir))

    async def _clients(self, wanted: Nothing, access: Access) -> dict[str, Any]:
        return await asyncio.to_thread(status.read_clients, Path(self._broker.data_dir))

    async def _accept_clock(self, wanted: Nothing, access: Access) -> dict[str, int]:
        if not self._clock.begun:
            raise RequestTimedOut("the clock has not been looked at yet: try again")
        return {"jump_ms": self._clock.believe(self._broker.config.disk.clock_jump_hold_ms)}

    async def _zookeeper_login(self, wanted: Nothing, access: Access) -> dict[str, str]:
        own = self._broker.zookeeper_login
        if own is None or access.trusted:
            return login.to_wire(own)
        return {"local": str(Path(self._broker.data_dir) / LOCAL_SOCKET)}

    # ---- users

    async def _list_users(self, wanted: Nothing, access: Access) -> list[dict[str, Any]]:
        return [
            {"name": name, "mechanisms": {mechanism: one.iterations for mechanism, one in sorted(verifiers.items())}}
            for name, verifiers in sorted(self._broker.security.users.items())
        ]

    async def _put_user(self, wanted: PutUser, access: Access) -> None:
        verifiers = {}
        for mechanism, text in wanted.verifiers.items():
            try:
                verifiers[mechanism] = decode_verifier(mechanism, text)
            except ValueError as error:
                raise InvalidRequest(f"user {wanted.name!r}: {error}") from None
        await self._broker.alter_security(set_verifiers(wanted.name, verifiers, new=wanted.new))

    async def _delete_user(self, wanted: OneUser, access: Access) -> None:
        await self._broker.alter_security(drop_verifiers(wanted.name))

    # ---- groups

    async def _list_groups(self, wanted: Nothing, access: Access) -> list[dict[str, Any]]:
        every = access.may(Operation.DESCRIBE, ResourceType.CLUSTER)
        registered = {group.name: group for group in await self._groups.groups()}
        kafka = self._kafka_groups
        names = registered.keys() | kafka.emptied().keys() | kafka.groups().keys() | set(kafka.consumers.names())
        groups = {name: self._of_both(name, registered.get(name)) for name in sorted(names)}
        return [
            {"group": name, **self._standing(group), "members": len(group.members)}
            for name, group in groups.items()
            if every or access.may(Operation.DESCRIBE, ResourceType.GROUP, name)
        ]

    async def _group_names(self, wanted: Nothing, access: Access) -> list[str]:
        every = access.may(Operation.DESCRIBE, ResourceType.CLUSTER)
        names = await self._groups.names()
        return [name for name in names if every or access.may(Operation.DESCRIBE, ResourceType.GROUP, name)]

    async def _group(self, wanted: OneGroup, access: Access) -> dict[str, Any]:
        registered = await self._groups.group(wanted.group)
        if registered is None and not self._is_kept(wanted.group):
            raise UnknownGroup(f"there is no group {wanted.group!r}")
        group = self._of_both(wanted.group, registered)
        committed = await self._committed(wanted.group)
        owners = {part: member.id for member in group.members for part in member.partitions}
        members = [
            {"id": member.id, "client": member.client_id, "host": member.host, "partitions": member.partitions}
            for member in group.members
        ]
        keys = {key for key in {*committed, *owners} if access.describable[key[0]]}
        offsets = {key: committed[key].offset if key in committed else None for key in sorted(keys)}
        measured = await self._measurements.measure({key: offset or 0 for key, offset in offsets.items()})
        rows = [
            {"topic": key.topic, "partition": key.partition, "offset": offset, "owner": owners.get(key, "")}
            | _lag(measured.get(key), offset)
            for key, offset in offsets.items()
        ]
        return {"group": group.name, **self._standing(group), "members": members, "partitions": rows}

    def _is_kept(self, name: str) -> bool:
        """Whether this coordinator knows the group as one of the Kafka listener."""
        return self._kafka_groups.has_members(name) or name in self._kafka_groups.emptied()

    def _of_both(self, name: str, registered: RegisteredGroup | None) -> RegisteredGroup:
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
        return RegisteredGroup(name, native=False, members=tuple(members))

    def _standing(self, group: RegisteredGroup) -> dict[str, str]:
        kept = self._kafka_groups.state(group.name)
        if kept:
            return {"protocol": "kafka", "state": STATES[kept]}
        if not group.members:
            return {"protocol": "", "state": STATES[State.EMPTY.value]}
        return {"protocol": "native" if group.native else "kafka", "state": STATES[State.STABLE.value]}

    async def _offsets(self, wanted: OneGroup, access: Access) -> list[list[Any]]:
        committed = await self._committed(wanted.group)
        may = access.describable
        return [[*key, commit.offset] for key, commit in sorted(committed.items()) if may[key.topic]]

    async def _committed(self, group: str) -> dict[TopicPartition, Commit]:
        """The committed offsets of a group, without the negative ones that Kafka's clients may store."""
        committed = await self._groups.committed(group, None)
        return {key: commit for key, commit in committed.items() if commit.offset >= 0}

    async def _commit(self, wanted: CommitOffsets, access: Access) -> None:
        offsets: dict[TopicPartition, Commit | None] = {}
        for topic, partition, offset in wanted.offsets:
            if offset < 0:
                raise InvalidRequest(f"offset {offset} of {topic}-{partition}: must be 0 or more")
            offsets[TopicPartition(topic, partition)] = Commit(offset)
        arguments = {"group": wanted.group, "offsets": wanted.offsets}
        if not await self._groups.carried_out_elsewhere(wanted.group, "commit", arguments, wanted.forwarded):
            for error in (await self._groups.commit(wanted.group, offsets)).values():
                raise error

    async def _delete_offsets(self, wanted: DeleteOffsets, access: Access) -> None:
        arguments = {"group": wanted.group, "partitions": wanted.partitions}
        if await self._groups.carried_out_elsewhere(wanted.group, "delete_offsets", arguments, wanted.forwarded):
            return
        if wanted.partitions is None:
            was_lost = self._known_groups.forget(wanted.group)
            try:
                await self._delete_group(wanted.group)
            except UnknownGroup:
                if not was_lost:
                    raise
        else:
            dropped = [TopicPartition(*key) for key in wanted.partitions]
            await self._groups.commit(wanted.group, dict.fromkeys(dropped))

    async def _delete_group(self, name: str) -> None:
        """Delete a group with all its offsets.

        Raises:
            InvalidRequest: it has members.
            UnknownGroup: there is no such group.
        """
        known = self._kafka_groups.delete(name)
        if known is Code.NON_EMPTY_GROUP:
            raise InvalidRequest(f"group {name!r} has live members; stop them first")
        try:
            await self._groups.forget(name)
        except UnknownGroup:
            if known is Code.GROUP_ID_NOT_FOUND:
                raise

    # ---- access rules

    async def _acls(self, wanted: SelectAcls, access: Access) -> list[dict[str, str]]:
        chosen = filter_from_words(wanted)
        return [words(acl) for acl in self._broker.security.acls if chosen.selects(acl)]

    async def _add_acls(self, wanted: AddAcls, access: Access) -> None:
        self._check_authorizer()
        new = [from_words(row) for row in wanted.acls]
        await self._broker.alter_security(lambda state: added(state, new))

    async def _delete_acls(self, wanted: DeleteAcls, access: Access) -> list[dict[str, str]]:
        deletion = Deletion([filter_from_words(wanted)])
        if wanted.dry_run:
            deletion(self._broker.security)
        else:
            self._check_authorizer()
            await self._broker.alter_security(deletion)
        return [words(acl) for acl in deletion.deleted]

    def _check_authorizer(self) -> None:
        """Raises InvalidRequest: nothing would enforce the rules."""
        if not self._broker.authorizes:
            raise InvalidRequest(NO_AUTHORIZER)


def _status_of(data_dir: Path) -> dict[str, Any]:
    """The status with what the machine says, so that whoever asks from another host judges by the same."""
    found = status.collect(data_dir)
    return found | {"host": host.look(data_dir, found).as_json()}


def _brief(topic: Topic) -> dict[str, Any]:
    return {"name": topic.name, "partitions": len(topic.partitions)}


def _extent(measured: Measured | None) -> dict[str, int | None]:
    if measured is None:
        return dict.fromkeys(("start", "end", "bytes", "messages"))
    start, end, messages, _ = measured
    return {"start": start, "end": end, "bytes": end - start, "messages": messages}


def _lag(measured: Measured | None, offset: int | None) -> dict[str, float | None]:
    end: dict[str, float | None] = {
        "end": None if measured is None else measured.end,
        "lost_bytes": None if measured is None else lost_bytes(offset, measured.start),
    }
    lag = (None, None, None) if measured is None or measured.lag is None else measured.lag
    return end | dict(zip(("lag_messages", "lag_bytes", "lag_seconds"), lag, strict=True))
