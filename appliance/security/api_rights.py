"""Lists the rights that each API of both listeners needs: the one table of what is checked.

An API needs every right of its row; ``how`` says what a missing one leads to::

    WHOLE     the request is refused: CLUSTER_, GROUP_ or TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    EACH      each named resource by itself is refused, the others are served: TOPIC_AUTHORIZATION_FAILED...
    LISTED    resources that were not named are left out of the answer
    SUFFICES  none: whoever has it does not need the next rights of the row
    SHOWN     a part of the answer is empty

The rows are those of Kafka's documentation, "Operations and resources on protocols"; the tests name the differences.
Rights of followers (ClusterAction) are missing, since there are none.  Who may use an API without a right may use it
before others have granted anything, but after logging in where the listener asks for that.

The native listener's rows have the names of its requests and of its admin verbs.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from .acls import Operation, ResourceType


class How(Enum):
    """See the module's docstring."""

    WHOLE = "the request is refused"
    EACH = "each named resource is refused by itself"
    LISTED = "left out of the answer"
    SUFFICES = "the rights after it are not needed"
    SHOWN = "a part of the answer is empty"


class Right(NamedTuple):
    operation: Operation
    resource: ResourceType
    how: How


Row = tuple[Right, ...]

_O, _R = Operation, ResourceType
_TOPIC, _GROUP, _CLUSTER, _TRANSACTIONAL = _R.TOPIC, _R.GROUP, _R.CLUSTER, _R.TRANSACTIONAL_ID
_FREE: Final[Row] = ()
_PRODUCER_ID: Final[Row] = (
    Right(_O.IDEMPOTENT_WRITE, _CLUSTER, How.SUFFICES),
    Right(_O.WRITE, _TOPIC, How.WHOLE),
)
"""To write to any topic is enough, as in Kafka since 3.0."""
_CREATE: Final[Row] = (Right(_O.CREATE, _CLUSTER, How.SUFFICES), Right(_O.CREATE, _TOPIC, How.EACH))
_GROUPS_LISTED: Final[Row] = (Right(_O.DESCRIBE, _CLUSTER, How.SUFFICES), Right(_O.DESCRIBE, _GROUP, How.LISTED))
_MEMBER: Final[Row] = (Right(_O.READ, _GROUP, How.WHOLE),)
_TRANSACTION: Final[Row] = (Right(_O.WRITE, _TRANSACTIONAL, How.WHOLE),)


def _cluster(operation: Operation) -> Row:
    return (Right(operation, _CLUSTER, How.WHOLE),)


def _each(operation: Operation, resource: ResourceType) -> Row:
    return (Right(operation, resource, How.EACH),)


KAFKA_RIGHTS: Final[dict[str, Row]] = {
    "Produce": (Right(_O.WRITE, _TRANSACTIONAL, How.EACH), *_each(_O.WRITE, _TOPIC)),
    "Fetch": _each(_O.READ, _TOPIC),
    "ListOffsets": _each(_O.DESCRIBE, _TOPIC),
    "Metadata": (Right(_O.DESCRIBE, _TOPIC, How.EACH), Right(_O.DESCRIBE, _TOPIC, How.LISTED), *_CREATE),
    "OffsetCommit": (Right(_O.READ, _GROUP, How.WHOLE), Right(_O.READ, _TOPIC, How.EACH)),
    "OffsetFetch": (
        Right(_O.DESCRIBE, _GROUP, How.EACH),
        Right(_O.DESCRIBE, _TOPIC, How.EACH),
        Right(_O.DESCRIBE, _TOPIC, How.LISTED),
    ),
    "FindCoordinator": (Right(_O.DESCRIBE, _GROUP, How.EACH), Right(_O.DESCRIBE, _TRANSACTIONAL, How.EACH)),
    "JoinGroup": _MEMBER,
    "Heartbeat": _MEMBER,
    "LeaveGroup": _MEMBER,
    "SyncGroup": _MEMBER,
    "ConsumerGroupHeartbeat": (
        *_MEMBER,
        Right(_O.DESCRIBE, _TOPIC, How.EACH),
        Right(_O.DESCRIBE, _TOPIC, How.LISTED),
    ),
    "ConsumerGroupDescribe": (Right(_O.DESCRIBE, _GROUP, How.EACH), Right(_O.DESCRIBE, _TOPIC, How.EACH)),
    "DescribeGroups": _each(_O.DESCRIBE, _GROUP),
    "ListGroups": _GROUPS_LISTED,
    "SaslHandshake": _FREE,
    "ApiVersions": _FREE,
    "CreateTopics": (*_CREATE, Right(_O.DESCRIBE_CONFIGS, _TOPIC, How.SHOWN)),
    "DeleteTopics": (Right(_O.DESCRIBE, _TOPIC, How.SHOWN), Right(_O.DELETE, _TOPIC, How.EACH)),
    "DeleteRecords": _each(_O.DELETE, _TOPIC),
    "InitProducerId": (Right(_O.WRITE, _TRANSACTIONAL, How.EACH), *_PRODUCER_ID),
    "OffsetForLeaderEpoch": _each(_O.DESCRIBE, _TOPIC),
    "DescribeAcls": _cluster(_O.DESCRIBE),
    "CreateAcls": _cluster(_O.ALTER),
    "DeleteAcls": _cluster(_O.ALTER),
    "DescribeConfigs": (
        Right(_O.DESCRIBE_CONFIGS, _CLUSTER, How.EACH),
        Right(_O.DESCRIBE_CONFIGS, _TOPIC, How.EACH),
        Right(_O.DESCRIBE_CONFIGS, _GROUP, How.EACH),
    ),
    "AlterConfigs": (
        Right(_O.ALTER_CONFIGS, _CLUSTER, How.EACH),
        Right(_O.ALTER_CONFIGS, _TOPIC, How.EACH),
        Right(_O.ALTER_CONFIGS, _GROUP, How.EACH),
    ),
    "DescribeLogDirs": _cluster(_O.DESCRIBE),
    "SaslAuthenticate": _FREE,
    "CreatePartitions": _each(_O.ALTER, _TOPIC),
    "DeleteGroups": _each(_O.DELETE, _GROUP),
    "ElectLeaders": _cluster(_O.ALTER),
    "IncrementalAlterConfigs": (
        Right(_O.ALTER_CONFIGS, _CLUSTER, How.EACH),
        Right(_O.ALTER_CONFIGS, _TOPIC, How.EACH),
        Right(_O.ALTER_CONFIGS, _GROUP, How.EACH),
    ),
    "AlterPartitionReassignments": _cluster(_O.ALTER),
    "ListPartitionReassignments": _cluster(_O.DESCRIBE),
    "OffsetDelete": (Right(_O.DELETE, _GROUP, How.WHOLE), Right(_O.READ, _TOPIC, How.EACH)),
    "DescribeClientQuotas": _cluster(_O.DESCRIBE_CONFIGS),
    "AlterClientQuotas": _cluster(_O.ALTER_CONFIGS),
    "DescribeUserScramCredentials": _cluster(_O.DESCRIBE),
    "AlterUserScramCredentials": _cluster(_O.ALTER),
    "DescribeCluster": (Right(_O.DESCRIBE, _CLUSTER, How.SHOWN),),
    "DescribeProducers": _each(_O.READ, _TOPIC),
    "AddPartitionsToTxn": (*_TRANSACTION, Right(_O.WRITE, _TOPIC, How.EACH)),
    "AddOffsetsToTxn": (*_TRANSACTION, *_MEMBER),
    "EndTxn": _TRANSACTION,
    "TxnOffsetCommit": (*_TRANSACTION, *_MEMBER, Right(_O.READ, _TOPIC, How.EACH)),
    "WriteTxnMarkers": _cluster(_O.ALTER),
    "DescribeTransactions": (
        Right(_O.DESCRIBE, _TRANSACTIONAL, How.EACH),
        Right(_O.DESCRIBE, _TOPIC, How.LISTED),
    ),
    "ListTransactions": (Right(_O.DESCRIBE, _TRANSACTIONAL, How.LISTED),),
    "ListConfigResources": _cluster(_O.DESCRIBE_CONFIGS),
    "DescribeTopicPartitions": (Right(_O.DESCRIBE, _TOPIC, How.EACH), Right(_O.DESCRIBE, _TOPIC, How.LISTED)),
}
"""By the name of the API (``wire/kafka/apis.py``)."""

NATIVE_RIGHTS: Final[dict[str, Row]] = {
    "produce": _each(_O.WRITE, _TOPIC),
    "fetch": _each(_O.READ, _TOPIC),
    "offsets of partitions": _each(_O.DESCRIBE, _TOPIC),
    "metadata": (Right(_O.DESCRIBE, _TOPIC, How.EACH), Right(_O.DESCRIBE, _TOPIC, How.LISTED)),
    "hello": _FREE,
    "login": _FREE,
    "create_topic": _CREATE,
    "ensure_topic": (Right(_O.DESCRIBE, _TOPIC, How.EACH), *_CREATE),
    "alter_topic": (Right(_O.ALTER_CONFIGS, _TOPIC, How.EACH), Right(_O.ALTER, _TOPIC, How.EACH)),
    "delete_topic": _each(_O.DELETE, _TOPIC),
    "trash": _cluster(_O.DESCRIBE),
    "undelete_topic": _cluster(_O.ALTER),
    "restore_topic": _cluster(_O.ALTER),
    "delete_records": _each(_O.DELETE, _TOPIC),
    "topics": (Right(_O.DESCRIBE, _TOPIC, How.EACH), Right(_O.DESCRIBE, _TOPIC, How.LISTED)),
    "repair": _cluster(_O.ALTER),
    "report_damage": _each(_O.READ, _TOPIC),
    "init_producer": _PRODUCER_ID,
    "status": _cluster(_O.DESCRIBE),
    "clients": _cluster(_O.DESCRIBE),
    "groups": _GROUPS_LISTED,
    "group_names": _GROUPS_LISTED,
    "group": _each(_O.DESCRIBE, _GROUP),
    "offsets": (Right(_O.DESCRIBE, _GROUP, How.WHOLE), Right(_O.DESCRIBE, _TOPIC, How.LISTED)),
    "commit": (Right(_O.READ, _GROUP, How.WHOLE), Right(_O.READ, _TOPIC, How.WHOLE)),
    "delete_offsets": (Right(_O.DELETE, _GROUP, How.WHOLE), Right(_O.READ, _TOPIC, How.WHOLE)),
    "transactions": (Right(_O.DESCRIBE, _TRANSACTIONAL, How.LISTED),),
    "transaction": (Right(_O.DESCRIBE, _TRANSACTIONAL, How.EACH), Right(_O.DESCRIBE, _TOPIC, How.LISTED)),
    "abort_transaction": _cluster(_O.ALTER),
    "users": _cluster(_O.DESCRIBE),
    "put_user": _cluster(_O.ALTER),
    "delete_user": _cluster(_O.ALTER),
    "zookeeper_login": _cluster(_O.CLUSTER_ACTION),
    "accept_clock": _cluster(_O.ALTER),
    "acls": _cluster(_O.DESCRIBE),
    "add_acls": _cluster(_O.ALTER),
    "delete_acls": _cluster(_O.ALTER),
}
"""By the name of the request (``wire/native.py``) or of the admin verb (``wire/native_admin.py``)."""
