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
    topics          {names?}                              [{name, settings, sources, own, partitions: [PARTITION]}]
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
    group           {group}                               {group, protocol, state, members: [ROW],
                                                           partitions: [COMMITTED], settings, sources}
    alter_group     {group, settings}                     {group, settings, sources}; nil resets a setting
    offsets         {group, stable?: [[t, p]]}            [[topic, partition, offset]]; with ``stable``, of these only,
                                                           and not while a transaction may change one of them
    commit          {group, offsets: [[t, p, offset]]}    nil; stores all that is not refused
    delete_offsets  {group, partitions?: [[t, p]]}        nil; without partitions: the whole group
    group_coordinator {group}                             broker id: whom the members of a native group ask what follows
    join_group      {MEMBER, session_ms, topics?,         {lease_ms, epoch, kept: [[t, p]]}; registers a member, or
                     pattern?, streams?, exclude?}        changes what it subscribes to (``topics``: name -> how many
                                                          streams); ``kept``: what it has owned all the time
    group_registry  {MEMBER, epoch}                       {lease_ms, revision, members: [[id, topics, pattern, streams,
                                                          exclude]], topics: {name: [id, how many partitions]}}; the
                                                          topics are those that this member subscribes to
    claim_partitions {MEMBER, epoch,                      {lease_ms, refused: [[t, p]], offsets: [[t, p, offset]]}; all
                     partitions: [[t, p, stream]]}        of them, or none if others own the refused ones
    release_partitions {MEMBER, epoch,                    {lease_ms}; what the member does not own is passed over
                     partitions: [[t, p]]}
    commit_owned    {MEMBER, epoch,                       {lease_ms, refused: [[t, p]]}; those that the member does not
                     offsets: [[t, p, offset, id]]}       own, or in another topic than that with this id
    await_change    {MEMBER, epoch, revision, wait_ms}    {lease_ms, revision}; answered when the registry has another
                                                          revision, or after that time
    leave_group     {MEMBER, epoch}                       nil; releases what the member owns
    transactions    {}                                    [TRANSACTION]
    transaction     {id}                                  TRANSACTION and {parts: [[topic, partition]],
                                                           offsets: [[group, topic, partition, offset]]}
    abort_transaction {id}                                nil; its producer is fenced, and it is being aborted
    hanging_transactions {name, partition}                [{producer_id, epoch, first, last_ms}]: what is open there
                                                          and no coordinator knows of, from which offset, and the
                                                          largest timestamp of its last batch
    abort_hanging   {name, partition}                     nil; ends these
    init_transactions {id, timeout_ms, producer_id?,      {producer_id, epoch}; an earlier producer is fenced, its
                       epoch?}                            transaction aborted; the last two: who goes on (KIP-360)
    add_partitions  {PRODUCER, partitions: [[t, p]]}      nil; now batches of its transaction may be sent there
    add_offsets     {PRODUCER, group, member, secret,     nil; they are committed when the transaction is; the member
                     offsets: [[t, p, offset]]}           of the group has to own these partitions
    end_transaction {PRODUCER, committed}                 nil; answered when it is decided
    begin_passing   {}                                    text: the session of PASSED, which ends an earlier one
    transaction_steps {PASSED, producer: [id, epoch],     [text]: for each part the name of the error, "": none; opens
                     lead: [slot, epoch], marker?: [committed, the transaction there, or writes its marker
                     decided_ms, inherited], parts: [[t, topic id, p]]}
    open_at         {partitions: [[t, p]]}                {slots: [n], producers: [[t, p, [id, epoch], ongoing]]}; of
                                                          the slots that the broker that is asked coordinates
    pending_offsets {groups: [name]}                      {slots: [n], groups: [[[t, p]]]}; likewise, of each group
    announce_pending {group, id}                          nil; the id is given offsets of the group
    pass_offsets    {PASSED, id, producer, CONSUMER,      Kafka's code; offsets of a group whose coordinator asks
                     offsets: [[[t, topic id, p], offset, note, leader epoch]]}
    may_commit      {CONSUMER}                            Kafka's code; whether it is a member of its group
    take_offsets    {id, group, gone: [topic id]}         version of the transaction's node; commits what a prepared
                                                          transaction has of this group, but for topics that are gone
    pass_verb       {PASSED, verb, arguments}             as that verb answers, of a transactional id
    deleted_at_peer {id}                                  what a broker has of a deleted topic: topic, removal, trash
                                                          (one after the other), or nothing
    users           {}                                    [{name, mechanisms: {mechanism: iterations}, locked,
                                                           expires_ms?, expired, roles: [name]}]
    put_user        {name, verifiers, new}                nil; replaces all verifiers of the user
    delete_user     {name}                                nil
    quotas          {}                                    [QUOTA]
    put_quota       {QUOTA}                               nil; nil removes a limit, the others stay
    accept_clock    {}                                    {jump_ms}; believe the clock after a jump, 0: there is none
    acls            {FILTER}                              [ACL]; those that the filter selects, and with a field
                                                          ``role`` those that users have through one
    add_acls        {acls: [ACL]}                         nil
    delete_acls     {FILTER, dry_run?}                    [ACL]; those that were deleted, or would be
    roles           {}                                    [{name, users: [name], rules: [ACL]}]
    create_role     {name}                                nil; its rules are those of the principal "Role:NAME"
    alter_role      {name, grant?: [user],                nil; gives the role to users and takes it from users
                     revoke?: [user], without_password?}
    delete_role     {name, dry_run?}                      {users, rules}: what went with it, or would

    MEMBER          group, member, secret, sequence: see ``processes/coordinator/native_groups.py``
    PRODUCER        id, producer_id, epoch: as ``init_transactions`` has answered
    PASSED          passed: [session, number, lowest]: see ``processes/coordinator/peer_transactions.py``
    CONSUMER        consumer: [group, member id, instance, generation]
    ACL             {resource, name, pattern, principal, host, operation, permission}: Kafka's words as text
    FILTER          as ACL, all optional; pattern "Match": rules about the resource ``name``
    QUOTA           {user?, client_id?, limits: {key: per second}}: "" is all that have no quota of their own, nil
                    any; see ``security/quotas.py``
    PARTITION       {partition, leader, start, end, bytes, messages, state, dirty_ratio?}; the last one is the
                    share of a compacted log that no pass has seen, as of the last look of the broker that stores it
    TRASHED         {name, id, partitions, bytes, deleted_ms, until_ms, pending}; pending: its deletion goes on
    ROW             {id, client, host, partitions: [[topic, partition]], silent_s: for how long the coordinator has
                    not heard it, nil at another broker}
    TRANSACTION     {id, state: Kafka's word, producer_id, epoch, timeout_ms, open_ms: since when it is open, nil: it
                    is not, partitions: how many, groups: [group]}
    COMMITTED       {topic, partition, offset, end, lag_messages, lag_bytes, lag_seconds, lost_bytes, owner,
                    committed_ms: when the offset was committed, owned_ms: since when the owner has the partition, both
                    in ms since 1970, why: how it stands, in words}

Any broker accepts these requests, except those with MEMBER, which only the group's coordinator answers.  Others pass
``commit`` and ``delete_offsets`` on to it, and verbs of a transactional id to the coordinator of that.
``forwarded`` marks a request that another broker has passed on.  From ``begin_passing`` to ``pass_verb`` only brokers
of the cluster may ask.

A topic's ``settings`` are those in force, and ``sources`` says for each where it comes from: "topic", "configuration"
or "default"; ``own`` are those set for this topic.  A group's ``protocol`` is that of its
members, native or kafka, "" without any; its ``state`` is stable, rebalancing or empty, or configured: it has nothing
but settings of its own.  ``settings`` are those in force for members of the consumer protocol, in ms, and ``sources``
says for each where it comes from: "group", "configuration" or "default".  Values that are not known now
(a partition is not readable, its broker does not answer) are nil.  An owned partition without a committed offset has
the lag of its whole log.  ``lost_bytes``: what was removed from the log before the group has read it, until the group
commits an offset beyond it.

``verifiers``: mechanism → text, as Kafka keeps it (``security/scram.py``); the client computes it, so no password comes
here.  ``new``: the user must not exist; else it must.

Errors: any :class:`~appliance.errors.ApplianceError` is answered with its code and message; wrong arguments are an
``InvalidRequest``; a frame of the wrong shape closes the connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from ..errors import InvalidRequest
from ..names import (
    GROUP_CHARACTERS_MAX,
    NOTE_BYTES_MAX,
    PARTITION_MAX,
    TOPIC_PATTERN,
    TRANSACTIONAL_ID_CHARACTERS_MAX,
)
from ..security.accounts import EXPIRY_MS_MAX
from ..security.acls import Operation, ResourceType
from ..security.api_rights import (
    CREATE_RIGHTS,
    LISTED_GROUPS_RIGHTS,
    MEMBER_RIGHTS,
    PRODUCER_ID_RIGHTS,
    SEEN_TOPICS_RIGHTS,
    TRANSACTION_RIGHTS,
    How,
    NeededRights,
    Right,
    cluster_rights,
    each_rights,
)
from ..value_faults import in_words
from .bounds import CHANGE_WAIT_MS_MAX, PARTS_MAX_MAX, STREAMS_MAX

MEMBER_CHARACTERS_MAX: Final = 500
MemberText = Annotated[str, Meta(max_length=MEMBER_CHARACTERS_MAX)]
SUBSCRIBED_TOPICS_MAX: Final = 10_000
PATTERN_CHARACTERS_MAX: Final = 1_000
Note = Annotated[str, Meta(max_length=NOTE_BYTES_MAX)]
AnyName = Annotated[str, Meta(max_length=32_767)]
"""Any string of Kafka's protocol.  The code that uses the name checks whether it is legal."""
Names = Annotated[list[AnyName], Meta(max_length=PARTS_MAX_MAX)]
Offset = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
PartitionNumber = Annotated[int, Meta(ge=0, le=PARTITION_MAX)]
Count = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
SettingValue = Annotated[str, Meta(max_length=32_767)] | Offset
GroupName = Annotated[str, Meta(min_length=1, max_length=GROUP_CHARACTERS_MAX)]
TransactionalId = Annotated[str, Meta(min_length=1, max_length=TRANSACTIONAL_ID_CHARACTERS_MAX)]
TopicName = Annotated[str, Meta(pattern=TOPIC_PATTERN)]
StreamCount = Annotated[int, Meta(ge=0, le=STREAMS_MAX)]
ManySettings = Meta(max_length=1_000)
ManyPartitions = Meta(max_length=PARTS_MAX_MAX)


class CreateTopic(msgspec.Struct, forbid_unknown_fields=True):
    name: AnyName
    partitions: Count | None = None
    settings: Annotated[dict[AnyName, SettingValue], ManySettings] = {}


class AlterTopic(msgspec.Struct, forbid_unknown_fields=True):
    name: AnyName
    settings: Annotated[dict[AnyName, SettingValue | None], ManySettings] = {}
    partitions: Count | None = None


class OneTopic(msgspec.Struct, forbid_unknown_fields=True):
    name: AnyName


class UndeleteTopic(msgspec.Struct, forbid_unknown_fields=True):
    name: AnyName
    new_name: AnyName = ""


class RestoreTopic(msgspec.Struct, forbid_unknown_fields=True):
    name: AnyName
    id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    partitions: Annotated[int, Meta(ge=1, le=PARTS_MAX_MAX)]
    settings: Annotated[dict[AnyName, SettingValue], ManySettings] = {}


class DeleteRecords(msgspec.Struct, forbid_unknown_fields=True):
    name: AnyName
    partition: PartitionNumber
    offset: Offset


class ManyTopics(msgspec.Struct, forbid_unknown_fields=True):
    names: Names | None = None


class OneGroup(msgspec.Struct, forbid_unknown_fields=True):
    group: GroupName


class ManyGroups(msgspec.Struct, forbid_unknown_fields=True):
    groups: Annotated[list[GroupName], ManyPartitions]


class AnnouncePending(msgspec.Struct, forbid_unknown_fields=True):
    group: GroupName
    id: TransactionalId


class AlterGroup(msgspec.Struct, forbid_unknown_fields=True):
    group: GroupName
    settings: Annotated[dict[AnyName, SettingValue | None], ManySettings]


class OneTransaction(msgspec.Struct, forbid_unknown_fields=True):
    id: TransactionalId


class InitTransactions(msgspec.Struct, forbid_unknown_fields=True):
    id: TransactionalId
    timeout_ms: Count
    producer_id: Offset = -1
    epoch: Count = -1


class TransactionalProducer(msgspec.Struct, forbid_unknown_fields=True):
    id: TransactionalId
    producer_id: Offset
    epoch: Count


class AddPartitions(TransactionalProducer, forbid_unknown_fields=True):
    partitions: Annotated[list[tuple[AnyName, PartitionNumber]], ManyPartitions]


class AddOffsets(TransactionalProducer, forbid_unknown_fields=True):
    group: GroupName
    member: MemberText
    secret: MemberText
    offsets: Annotated[list[tuple[AnyName, PartitionNumber, Offset]], ManyPartitions]

    def __repr__(self) -> str:
        return f"<AddOffsets of {self.member!r} in group {self.group!r} to {self.id!r}>"


class EndTransaction(TransactionalProducer, forbid_unknown_fields=True):
    committed: bool


ProducerRow = tuple[Offset, Count]
ConsumerRow = tuple[GroupName, AnyName, AnyName | None, Count]
PartRow = tuple[TopicName, AnyName, PartitionNumber]
OffsetRow = tuple[PartRow, Offset, AnyName, Count]


class Passed(msgspec.Struct, forbid_unknown_fields=True):
    passed: tuple[AnyName, Offset, Offset]


class TransactionSteps(Passed, forbid_unknown_fields=True):
    producer: ProducerRow
    lead: tuple[Count, Count]
    parts: Annotated[list[PartRow], ManyPartitions]
    marker: tuple[bool, Offset, bool] | None = None


class OpenAt(msgspec.Struct, forbid_unknown_fields=True):
    partitions: Annotated[list[tuple[TopicName, PartitionNumber]], ManyPartitions]


class PassOffsets(Passed, forbid_unknown_fields=True):
    id: TransactionalId
    producer: ProducerRow
    consumer: ConsumerRow
    offsets: Annotated[list[OffsetRow], ManyPartitions]


class MayCommit(msgspec.Struct, forbid_unknown_fields=True):
    consumer: ConsumerRow


class TakeOffsets(msgspec.Struct, forbid_unknown_fields=True):
    id: TransactionalId
    group: GroupName
    gone: Names


class PassVerb(Passed, forbid_unknown_fields=True):
    verb: AnyName
    arguments: msgspec.Raw

    def __repr__(self) -> str:
        return f"<PassVerb {self.verb!r}>"


class GroupOffsets(msgspec.Struct, forbid_unknown_fields=True):
    group: GroupName
    stable: Annotated[list[tuple[AnyName, PartitionNumber]], ManyPartitions] | None = None


class MemberRequest(msgspec.Struct, forbid_unknown_fields=True):
    group: GroupName
    member: MemberText
    secret: MemberText
    sequence: Annotated[int, Meta(ge=1, le=2**63 - 1)]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.member!r} in group {self.group!r}>"


class JoinGroup(MemberRequest, forbid_unknown_fields=True):
    session_ms: Count
    topics: Annotated[dict[TopicName, StreamCount], Meta(max_length=SUBSCRIBED_TOPICS_MAX)] = {}
    pattern: Annotated[str, Meta(max_length=PATTERN_CHARACTERS_MAX)] = ""
    streams: StreamCount = 1
    exclude: bool = False


class KnownMember(MemberRequest, forbid_unknown_fields=True):
    epoch: MemberText


class ClaimPartitions(KnownMember, forbid_unknown_fields=True):
    partitions: Annotated[list[tuple[TopicName, PartitionNumber, StreamCount]], ManyPartitions]


class ReleasePartitions(KnownMember, forbid_unknown_fields=True):
    partitions: Annotated[list[tuple[TopicName, PartitionNumber]], ManyPartitions]


class CommitOwned(KnownMember, forbid_unknown_fields=True):
    offsets: Annotated[list[tuple[TopicName, PartitionNumber, Offset, AnyName]], ManyPartitions]


class AwaitChange(KnownMember, forbid_unknown_fields=True):
    revision: Offset
    wait_ms: Annotated[int, Meta(ge=0, le=CHANGE_WAIT_MS_MAX)]


class CommitOffsets(msgspec.Struct, forbid_unknown_fields=True):
    group: GroupName
    offsets: Annotated[list[tuple[AnyName, PartitionNumber, Offset]], ManyPartitions]
    note: Note = ""
    forwarded: bool = False


class DeleteOffsets(msgspec.Struct, forbid_unknown_fields=True):
    group: GroupName
    partitions: Annotated[list[tuple[TopicName, PartitionNumber]], ManyPartitions] | None = None
    forwarded: bool = False


class PutUser(msgspec.Struct, forbid_unknown_fields=True):
    name: AnyName
    verifiers: Annotated[dict[AnyName, AnyName], Meta(min_length=1, max_length=2)]
    new: bool


class AlterUser(msgspec.Struct, forbid_unknown_fields=True):
    name: AnyName
    locked: bool | None = None
    expires_ms: Annotated[int, Meta(ge=0, le=EXPIRY_MS_MAX)] | None = None
    kick: bool = False
    without_password: bool = False


class OneUser(msgspec.Struct, forbid_unknown_fields=True):
    name: AnyName


class PutQuota(msgspec.Struct, forbid_unknown_fields=True):
    user: AnyName | None = None
    client_id: AnyName | None = None
    limits: Annotated[dict[AnyName, float | None], Meta(max_length=16)] = {}


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


class OneRole(msgspec.Struct, forbid_unknown_fields=True):
    name: AnyName


class DeleteRole(OneRole, forbid_unknown_fields=True):
    dry_run: bool = False


class AlterRole(OneRole, forbid_unknown_fields=True):
    grant: Annotated[list[AnyName], Meta(max_length=1_000)] = []
    revoke: Annotated[list[AnyName], Meta(max_length=1_000)] = []
    without_password: bool = False


class RepairPartition(msgspec.Struct, forbid_unknown_fields=True):
    name: AnyName
    partition: PartitionNumber
    cut: bool = False


class ReportDamage(msgspec.Struct, forbid_unknown_fields=True):
    name: AnyName
    partition: PartitionNumber
    start: Offset
    stop: Offset


class HangingIn(msgspec.Struct, forbid_unknown_fields=True):
    name: AnyName
    partition: PartitionNumber


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    pass


class OneTopicId(msgspec.Struct, forbid_unknown_fields=True):
    id: str


class Verb(NamedTuple):
    """The row of an admin verb: all that depends on it follows from here.

    ``changes``: it changes something that an administrator may change, so that the audit log has a line.
    """

    name: str
    arguments: type[msgspec.Struct]
    rights: NeededRights
    changes: bool = False


OWNER_RIGHTS: Final[NeededRights] = (*MEMBER_RIGHTS, Right(Operation.READ, ResourceType.TOPIC, How.EACH))
"""Of a member of a group, with the topics that it names."""
PEER_RIGHTS: Final[NeededRights] = cluster_rights(Operation.CLUSTER_ACTION)
"""Of another broker of the cluster; nobody else may ask, whatever rights it has."""
_ROWS: Final = (
    Verb("create_topic", CreateTopic, CREATE_RIGHTS, changes=True),
    Verb(
        "ensure_topic",
        OneTopic,
        (Right(Operation.DESCRIBE, ResourceType.TOPIC, How.EACH), *CREATE_RIGHTS),
        changes=True,
    ),
    Verb(
        "alter_topic",
        AlterTopic,
        (
            Right(Operation.ALTER_CONFIGS, ResourceType.TOPIC, How.EACH),
            Right(Operation.ALTER, ResourceType.TOPIC, How.EACH),
        ),
        changes=True,
    ),
    Verb("delete_topic", OneTopic, each_rights(Operation.DELETE, ResourceType.TOPIC), changes=True),
    Verb("trash", Nothing, cluster_rights(Operation.DESCRIBE)),
    Verb("undelete_topic", UndeleteTopic, cluster_rights(Operation.ALTER), changes=True),
    Verb("restore_topic", RestoreTopic, cluster_rights(Operation.ALTER), changes=True),
    Verb("delete_records", DeleteRecords, each_rights(Operation.DELETE, ResourceType.TOPIC), changes=True),
    Verb("topics", ManyTopics, SEEN_TOPICS_RIGHTS),
    Verb("repair", RepairPartition, cluster_rights(Operation.ALTER), changes=True),
    Verb("report_damage", ReportDamage, each_rights(Operation.READ, ResourceType.TOPIC)),
    Verb("init_producer", Nothing, PRODUCER_ID_RIGHTS),
    Verb("status", Nothing, cluster_rights(Operation.DESCRIBE)),
    Verb("clients", Nothing, cluster_rights(Operation.DESCRIBE)),
    Verb("groups", Nothing, LISTED_GROUPS_RIGHTS),
    Verb("group_names", Nothing, LISTED_GROUPS_RIGHTS),
    Verb("group", OneGroup, each_rights(Operation.DESCRIBE, ResourceType.GROUP)),
    Verb("alter_group", AlterGroup, each_rights(Operation.ALTER_CONFIGS, ResourceType.GROUP), changes=True),
    Verb(
        "offsets",
        GroupOffsets,
        (
            Right(Operation.DESCRIBE, ResourceType.GROUP, How.WHOLE),
            Right(Operation.DESCRIBE, ResourceType.TOPIC, How.LISTED),
        ),
    ),
    Verb(
        "commit",
        CommitOffsets,
        (Right(Operation.READ, ResourceType.GROUP, How.WHOLE), Right(Operation.READ, ResourceType.TOPIC, How.WHOLE)),
        changes=True,
    ),
    Verb(
        "delete_offsets",
        DeleteOffsets,
        (Right(Operation.DELETE, ResourceType.GROUP, How.WHOLE), Right(Operation.READ, ResourceType.TOPIC, How.WHOLE)),
        changes=True,
    ),
    Verb("group_coordinator", OneGroup, MEMBER_RIGHTS),
    Verb("join_group", JoinGroup, OWNER_RIGHTS),
    Verb("group_registry", KnownMember, MEMBER_RIGHTS),
    Verb("claim_partitions", ClaimPartitions, OWNER_RIGHTS),
    Verb("release_partitions", ReleasePartitions, MEMBER_RIGHTS),
    Verb("commit_owned", CommitOwned, OWNER_RIGHTS),
    Verb("await_change", AwaitChange, MEMBER_RIGHTS),
    Verb("leave_group", KnownMember, MEMBER_RIGHTS),
    Verb("transactions", Nothing, (Right(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, How.LISTED),)),
    Verb(
        "transaction",
        OneTransaction,
        (
            Right(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, How.EACH),
            Right(Operation.DESCRIBE, ResourceType.TOPIC, How.LISTED),
        ),
    ),
    Verb("abort_transaction", OneTransaction, cluster_rights(Operation.ALTER), changes=True),
    Verb("hanging_transactions", HangingIn, cluster_rights(Operation.DESCRIBE)),
    Verb("abort_hanging", HangingIn, cluster_rights(Operation.ALTER), changes=True),
    Verb("init_transactions", InitTransactions, TRANSACTION_RIGHTS),
    Verb(
        "add_partitions",
        AddPartitions,
        (*TRANSACTION_RIGHTS, Right(Operation.WRITE, ResourceType.TOPIC, How.EACH)),
    ),
    Verb(
        "add_offsets",
        AddOffsets,
        (*TRANSACTION_RIGHTS, *MEMBER_RIGHTS, Right(Operation.READ, ResourceType.TOPIC, How.WHOLE)),
    ),
    Verb("end_transaction", EndTransaction, TRANSACTION_RIGHTS),
    Verb("begin_passing", Nothing, PEER_RIGHTS),
    Verb("transaction_steps", TransactionSteps, PEER_RIGHTS),
    Verb("open_at", OpenAt, PEER_RIGHTS),
    Verb("pending_offsets", ManyGroups, PEER_RIGHTS),
    Verb("announce_pending", AnnouncePending, PEER_RIGHTS),
    Verb("pass_offsets", PassOffsets, PEER_RIGHTS),
    Verb("may_commit", MayCommit, PEER_RIGHTS),
    Verb("take_offsets", TakeOffsets, PEER_RIGHTS),
    Verb("pass_verb", PassVerb, PEER_RIGHTS),
    Verb("deleted_at_peer", OneTopicId, PEER_RIGHTS),
    Verb("users", Nothing, cluster_rights(Operation.DESCRIBE)),
    Verb("put_user", PutUser, cluster_rights(Operation.ALTER), changes=True),
    Verb("alter_user", AlterUser, cluster_rights(Operation.ALTER), changes=True),
    Verb("delete_user", OneUser, cluster_rights(Operation.ALTER), changes=True),
    Verb("quotas", Nothing, cluster_rights(Operation.DESCRIBE_CONFIGS)),
    Verb("put_quota", PutQuota, cluster_rights(Operation.ALTER_CONFIGS), changes=True),
    Verb("accept_clock", Nothing, cluster_rights(Operation.ALTER), changes=True),
    Verb("acls", SelectAcls, cluster_rights(Operation.DESCRIBE)),
    Verb("add_acls", AddAcls, cluster_rights(Operation.ALTER), changes=True),
    Verb("delete_acls", DeleteAcls, cluster_rights(Operation.ALTER), changes=True),
    Verb("roles", Nothing, cluster_rights(Operation.DESCRIBE)),
    Verb("create_role", OneRole, cluster_rights(Operation.ALTER), changes=True),
    Verb("alter_role", AlterRole, cluster_rights(Operation.ALTER), changes=True),
    Verb("delete_role", DeleteRole, cluster_rights(Operation.ALTER), changes=True),
)

VERBS: Final[dict[str, Verb]] = {verb.name: verb for verb in _ROWS}
RETIRED: Final = {
    "zookeeper_login": "members of native groups do not log in to ZooKeeper any more, and nobody gets its password:"
    " install the client of this version, which needs no more than the right to read the group"
}
"""Verbs that clients of earlier versions ask for, and what these should do instead."""


def check_arguments(verb: str, arguments: Mapping[str, Any]) -> None:
    """Check the arguments of a verb before they are sent.  A verb that is not known here is left to the appliance.

    Raises:
        InvalidRequest: it takes other arguments.
    """
    row = VERBS.get(verb)
    if row is None:
        return
    try:
        msgspec.convert(arguments, row.arguments)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{verb}: {in_words(error)}") from None


def decode_arguments(verb: str, arguments: msgspec.Raw) -> msgspec.Struct:
    """Decode the arguments of a verb.

    Raises:
        InvalidRequest: there is no such verb, or it takes other arguments.
    """
    row = VERBS.get(verb)
    if row is None:
        if verb in RETIRED:
            raise InvalidRequest(RETIRED[verb])
        raise InvalidRequest(f"unknown admin verb {verb!r:.100}: use one of {', '.join(sorted(VERBS))}")
    try:
        return msgspec.msgpack.decode(arguments, type=row.arguments)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{verb}: {in_words(error)}") from None
