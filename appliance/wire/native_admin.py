"""Decodes the arguments of the native protocol's admin requests, and specifies their verbs.

``wire/native.py`` specifies the frames.  The verbs, their arguments and results (JSON-like)::

    create_topic    {name, partitions?, settings?}        {name, partitions}
    ensure_topic    {name}                                {name, partitions, created}; made if auto_create is on
    alter_topic     {name, settings?, partitions?}        {name, partitions}; nil resets a setting
    delete_topic    {name}                                {trash_ms}: how long it can be brought back
    trash           {}                                    [TRASHED]: deleted topics that can be brought back
    undelete_topic  {name, new_name?}                     {name, partitions, offsets: {group: how many}}; the last one
                                                          of that name, or the one with that id
    restore_topic   {name, id, partitions, settings}      as undelete_topic; one whose files of all partitions are in
                                                          the trash of the broker that is asked, and no catalog has it
    delete_records  {name, partition, offset}             nil; deletes what is before; only the leader does it
    topics          {names?}                              [{name, settings, own, partitions: [PARTITION]}]
    repair          {name, partition, cut?}               {actions: [text], start, end, hole_bytes, cut_bytes}; see
                                                          ``log/repair.py``: answered when the partition is back
    report_damage   {name, partition, start, stop}        [{start, stop, file, position, reason}]; somebody has met
                                                          damage in these offsets: the appliance looks itself, and
                                                          answers all damage of the partition; only the leader does it
    init_producer   {}                                    {producer_id, epoch}
    status          {}                                    see :mod:`appliance.status`; ``host`` is its machine
    clients         {}                                    who is connected: see :mod:`appliance.connected_clients`
    groups          {}                                    [{group, protocol, state, members: how many}]
    group_names     {}                                    [group]: one question to ZooKeeper, however many there are
    group           {group}                               {group, protocol, state, members: [MEMBER],
                                                           partitions: [COMMITTED]}
    offsets         {group}                               [[topic, partition, offset]]
    commit          {group, offsets: [[t, p, offset]]}    nil; stores all that is not refused
    delete_offsets  {group, partitions?: [[t, p]]}        nil; without partitions: the whole group
    transactions    {}                                    [TRANSACTION]
    transaction     {id}                                  TRANSACTION and {parts: [[topic, partition]],
                                                           offsets: [[group, topic, partition, offset]]}
    abort_transaction {id}                                nil; its producer is fenced, and it is being aborted
    users           {}                                    [{name, mechanisms: {mechanism: iterations}}]
    put_user        {name, verifiers, new}                nil; replaces all verifiers of the user
    delete_user     {name}                                nil
    zookeeper_login {}                                    {scheme, user, password} for members of native groups, who
                                                          register in ZooKeeper themselves; {}: it is open;
                                                          {local: path}: only trusted clients get it, ask there
    accept_clock    {}                                    {jump_ms}; believe the clock after a jump, 0: there is none
    acls            {FILTER}                              [ACL]; those that the filter selects
    add_acls        {acls: [ACL]}                         nil
    delete_acls     {FILTER, dry_run?}                    [ACL]; those that were deleted, or would be

    ACL             {resource, name, pattern, principal, host, operation, permission}: Kafka's words as text
    FILTER          as ACL, all optional; pattern "Match": rules about the resource ``name``
    PARTITION       {partition, leader, start, end, bytes, messages, state, dirty_ratio?}; the last one is the
                    share of a compacted log that no pass has seen, as of the last look of the broker that stores it
    TRASHED         {name, id, partitions, bytes, deleted_ms, until_ms, pending}; pending: its deletion goes on
    MEMBER          {id, client, host, partitions: [[topic, partition]]}
    TRANSACTION     {id, state: Kafka's word, producer_id, epoch, timeout_ms, open_ms: since when it is open, nil: it
                    is not, partitions: how many, groups: [group]}
    COMMITTED       {topic, partition, offset, end, lag_messages, lag_bytes, lag_seconds, lost_bytes, owner}

Any broker accepts these requests.  It passes ``commit`` and ``delete_offsets`` on to the group's coordinator.
``forwarded`` marks a request that another broker has passed on.

A topic's ``settings`` are those in force; ``own`` are those set for this topic.  A group's ``protocol`` is that of its
members, native or kafka, "" without any; its ``state`` is stable, rebalancing or empty.  Values that are not known now
(a partition is not readable, its broker does not answer) are nil.  An owned partition without a committed offset has
the lag of its whole log.  ``lost_bytes``: what was removed from the log before the group has read it, until the group
commits an offset beyond it.

``verifiers``: mechanism → text, as Kafka keeps it (``security/scram.py``); the client computes it, so no password comes
here.  ``new``: the user must not exist; else it must.

Errors: any :class:`~appliance.errors.ApplianceError` is answered with its code and message; wrong arguments are an
``InvalidRequest``; a frame of the wrong shape closes the connection.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from ..errors import InvalidRequest
from ..names import GROUP_CHARACTERS_MAX, PARTITION_MAX, TOPIC_PATTERN, TRANSACTIONAL_ID_CHARACTERS_MAX
from .bounds import PARTS_MAX_MAX

Name = Annotated[str, Meta(max_length=32_767)]
"""Any string of Kafka's protocol.  The code that uses the name checks whether it is legal."""
Names = Annotated[list[Name], Meta(max_length=PARTS_MAX_MAX)]
Offset = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Partition = Annotated[int, Meta(ge=0, le=PARTITION_MAX)]
Count = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Setting = Annotated[str, Meta(max_length=32_767)] | Offset
GroupName = Annotated[str, Meta(min_length=1, max_length=GROUP_CHARACTERS_MAX)]
TransactionalId = Annotated[str, Meta(min_length=1, max_length=TRANSACTIONAL_ID_CHARACTERS_MAX)]
TopicName = Annotated[str, Meta(pattern=TOPIC_PATTERN)]
ManySettings = Meta(max_length=1_000)
ManyPartitions = Meta(max_length=PARTS_MAX_MAX)


class CreateTopic(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    partitions: Count | None = None
    settings: Annotated[dict[Name, Setting], ManySettings] = {}


class AlterTopic(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    settings: Annotated[dict[Name, Setting | None], ManySettings] = {}
    partitions: Count | None = None


class OneTopic(msgspec.Struct, forbid_unknown_fields=True):
    name: Name


class UndeleteTopic(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    new_name: Name = ""


class RestoreTopic(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    partitions: Annotated[int, Meta(ge=1, le=PARTS_MAX_MAX)]
    settings: Annotated[dict[Name, Setting], ManySettings] = {}


class DeleteRecords(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    partition: Partition
    offset: Offset


class ManyTopics(msgspec.Struct, forbid_unknown_fields=True):
    names: Names | None = None


class OneGroup(msgspec.Struct, forbid_unknown_fields=True):
    group: GroupName


class OneTransaction(msgspec.Struct, forbid_unknown_fields=True):
    id: TransactionalId


class CommitOffsets(msgspec.Struct, forbid_unknown_fields=True):
    group: GroupName
    offsets: Annotated[list[tuple[Name, Partition, Offset]], ManyPartitions]
    forwarded: bool = False


class DeleteOffsets(msgspec.Struct, forbid_unknown_fields=True):
    group: GroupName
    partitions: Annotated[list[tuple[TopicName, Partition]], ManyPartitions] | None = None
    forwarded: bool = False


class PutUser(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    verifiers: Annotated[dict[Name, Name], Meta(min_length=1, max_length=2)]
    new: bool


class OneUser(msgspec.Struct, forbid_unknown_fields=True):
    name: Name


AclText = Annotated[str, Meta(max_length=1_000)]


class AclRow(msgspec.Struct, forbid_unknown_fields=True):
    """An access rule in words; see :class:`appliance.security.acls.Acl`."""

    resource: AclText
    name: AclText
    principal: AclText
    operation: AclText
    pattern: AclText = "Literal"
    host: AclText = "*"
    permission: AclText = "Allow"


class AddAcls(msgspec.Struct, forbid_unknown_fields=True):
    acls: Annotated[list[AclRow], Meta(max_length=1_000)]


class SelectAcls(msgspec.Struct, forbid_unknown_fields=True):
    resource: AclText = "Any"
    name: AclText | None = None
    pattern: AclText = "Any"
    principal: AclText | None = None
    host: AclText | None = None
    operation: AclText = "Any"
    permission: AclText = "Any"


class DeleteAcls(SelectAcls, forbid_unknown_fields=True):
    dry_run: bool = False


class RepairPartition(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    partition: Partition
    cut: bool = False


class ReportDamage(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    partition: Partition
    start: Offset
    stop: Offset


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    pass


VERBS: Final[dict[str, type[msgspec.Struct]]] = {
    "create_topic": CreateTopic,
    "ensure_topic": OneTopic,
    "alter_topic": AlterTopic,
    "delete_topic": OneTopic,
    "trash": Nothing,
    "undelete_topic": UndeleteTopic,
    "restore_topic": RestoreTopic,
    "delete_records": DeleteRecords,
    "topics": ManyTopics,
    "repair": RepairPartition,
    "report_damage": ReportDamage,
    "init_producer": Nothing,
    "status": Nothing,
    "clients": Nothing,
    "groups": Nothing,
    "group_names": Nothing,
    "group": OneGroup,
    "offsets": OneGroup,
    "commit": CommitOffsets,
    "delete_offsets": DeleteOffsets,
    "transactions": Nothing,
    "transaction": OneTransaction,
    "abort_transaction": OneTransaction,
    "users": Nothing,
    "put_user": PutUser,
    "delete_user": OneUser,
    "zookeeper_login": Nothing,
    "accept_clock": Nothing,
    "acls": SelectAcls,
    "add_acls": AddAcls,
    "delete_acls": DeleteAcls,
}
"""The type of the arguments of each verb."""


def decode_arguments(verb: str, given: msgspec.Raw) -> msgspec.Struct:
    """Decode the arguments of a verb.

    Raises:
        InvalidRequest: there is no such verb, or it takes other arguments.
    """
    arguments = VERBS.get(verb)
    if arguments is None:
        raise InvalidRequest(f"unknown admin verb {verb!r:.100}: use one of {', '.join(sorted(VERBS))}")
    try:
        return msgspec.msgpack.decode(given, type=arguments)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{verb}: {error}") from None
