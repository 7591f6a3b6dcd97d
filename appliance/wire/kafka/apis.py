"""Lists the Kafka APIs served, and their versions.  ApiVersions and the codecs use this table.

``tests/clients/README.md`` shows it.

The lowest versions suit librdkafka 2.0.2 (Debian 12), which needs certain old versions.  The highest ones of Produce,
OffsetCommit and OffsetFetch are those before topic ids replace topic names (13, 10, 10), as in Fetch 13.
Those of the transaction APIs are the last ones of Kafka's first transaction protocol (TV1).  Metadata has both names
and ids from 10 on.  It goes beyond 9, on which librdkafka fails with many small topics.  Produce 0 to 2 are listed
because librdkafka before 2.11.1 otherwise silently drops gzip, snappy and lz4.  Produce requests of these versions are
refused for each partition with UNSUPPORTED_VERSION.  An API that is missing here is not served.
"""

from __future__ import annotations

from typing import Final, NamedTuple

PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9
FIND_COORDINATOR: Final = 10
JOIN_GROUP: Final = 11
HEARTBEAT: Final = 12
LEAVE_GROUP: Final = 13
SYNC_GROUP: Final = 14
DESCRIBE_GROUPS: Final = 15
LIST_GROUPS: Final = 16
SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
DELETE_RECORDS: Final = 21
INIT_PRODUCER_ID: Final = 22
OFFSET_FOR_LEADER_EPOCH: Final = 23
ADD_PARTITIONS_TO_TXN: Final = 24
ADD_OFFSETS_TO_TXN: Final = 25
END_TXN: Final = 26
WRITE_TXN_MARKERS: Final = 27
TXN_OFFSET_COMMIT: Final = 28
DESCRIBE_ACLS: Final = 29
CREATE_ACLS: Final = 30
DELETE_ACLS: Final = 31
DESCRIBE_CONFIGS: Final = 32
ALTER_CONFIGS: Final = 33
DESCRIBE_LOG_DIRS: Final = 35
SASL_AUTHENTICATE: Final = 36
CREATE_PARTITIONS: Final = 37
DELETE_GROUPS: Final = 42
ELECT_LEADERS: Final = 43
INCREMENTAL_ALTER_CONFIGS: Final = 44
ALTER_PARTITION_REASSIGNMENTS: Final = 45
LIST_PARTITION_REASSIGNMENTS: Final = 46
OFFSET_DELETE: Final = 47
DESCRIBE_CLIENT_QUOTAS: Final = 48
ALTER_CLIENT_QUOTAS: Final = 49
DESCRIBE_USER_SCRAM_CREDENTIALS: Final = 50
ALTER_USER_SCRAM_CREDENTIALS: Final = 51
DESCRIBE_CLUSTER: Final = 60
DESCRIBE_PRODUCERS: Final = 61
DESCRIBE_TRANSACTIONS: Final = 65
LIST_TRANSACTIONS: Final = 66
CONSUMER_GROUP_HEARTBEAT: Final = 68
CONSUMER_GROUP_DESCRIBE: Final = 69
LIST_CONFIG_RESOURCES: Final = 74
DESCRIBE_TOPIC_PARTITIONS: Final = 75


class Api(NamedTuple):
    name: str
    version_min: int
    version_max: int
    flexible_from: int
    """First version with compact lengths and tagged fields; 99 = none so far."""


APIS: Final[dict[int, Api]] = {
    PRODUCE: Api("Produce", 0, 12, 9),
    FETCH: Api("Fetch", 4, 17, 12),
    LIST_OFFSETS: Api("ListOffsets", 1, 11, 6),
    METADATA: Api("Metadata", 0, 13, 9),
    OFFSET_COMMIT: Api("OffsetCommit", 2, 9, 8),
    OFFSET_FETCH: Api("OffsetFetch", 1, 9, 6),
    FIND_COORDINATOR: Api("FindCoordinator", 0, 4, 3),
    JOIN_GROUP: Api("JoinGroup", 0, 7, 6),
    HEARTBEAT: Api("Heartbeat", 0, 4, 4),
    LEAVE_GROUP: Api("LeaveGroup", 0, 5, 4),
    SYNC_GROUP: Api("SyncGroup", 0, 5, 4),
    DESCRIBE_GROUPS: Api("DescribeGroups", 0, 5, 5),
    LIST_GROUPS: Api("ListGroups", 0, 5, 3),
    SASL_HANDSHAKE: Api("SaslHandshake", 0, 1, 99),
    API_VERSIONS: Api("ApiVersions", 0, 4, 3),
    CREATE_TOPICS: Api("CreateTopics", 2, 7, 5),
    DELETE_TOPICS: Api("DeleteTopics", 1, 6, 4),
    DELETE_RECORDS: Api("DeleteRecords", 0, 2, 2),
    INIT_PRODUCER_ID: Api("InitProducerId", 0, 5, 2),
    OFFSET_FOR_LEADER_EPOCH: Api("OffsetForLeaderEpoch", 2, 4, 4),
    ADD_PARTITIONS_TO_TXN: Api("AddPartitionsToTxn", 0, 3, 3),
    ADD_OFFSETS_TO_TXN: Api("AddOffsetsToTxn", 0, 4, 3),
    END_TXN: Api("EndTxn", 0, 4, 3),
    WRITE_TXN_MARKERS: Api("WriteTxnMarkers", 1, 1, 1),
    TXN_OFFSET_COMMIT: Api("TxnOffsetCommit", 0, 4, 3),
    DESCRIBE_ACLS: Api("DescribeAcls", 1, 3, 2),
    CREATE_ACLS: Api("CreateAcls", 1, 3, 2),
    DELETE_ACLS: Api("DeleteAcls", 1, 3, 2),
    DESCRIBE_CONFIGS: Api("DescribeConfigs", 1, 4, 4),
    ALTER_CONFIGS: Api("AlterConfigs", 0, 2, 2),
    DESCRIBE_LOG_DIRS: Api("DescribeLogDirs", 1, 4, 2),
    SASL_AUTHENTICATE: Api("SaslAuthenticate", 0, 2, 2),
    CREATE_PARTITIONS: Api("CreatePartitions", 0, 3, 2),
    DELETE_GROUPS: Api("DeleteGroups", 0, 2, 2),
    ELECT_LEADERS: Api("ElectLeaders", 0, 2, 2),
    INCREMENTAL_ALTER_CONFIGS: Api("IncrementalAlterConfigs", 0, 1, 1),
    ALTER_PARTITION_REASSIGNMENTS: Api("AlterPartitionReassignments", 0, 1, 0),
    LIST_PARTITION_REASSIGNMENTS: Api("ListPartitionReassignments", 0, 0, 0),
    OFFSET_DELETE: Api("OffsetDelete", 0, 0, 99),
    DESCRIBE_CLIENT_QUOTAS: Api("DescribeClientQuotas", 0, 1, 1),
    ALTER_CLIENT_QUOTAS: Api("AlterClientQuotas", 0, 1, 1),
    DESCRIBE_USER_SCRAM_CREDENTIALS: Api("DescribeUserScramCredentials", 0, 0, 0),
    ALTER_USER_SCRAM_CREDENTIALS: Api("AlterUserScramCredentials", 0, 0, 0),
    DESCRIBE_CLUSTER: Api("DescribeCluster", 0, 2, 0),
    DESCRIBE_PRODUCERS: Api("DescribeProducers", 0, 0, 0),
    DESCRIBE_TRANSACTIONS: Api("DescribeTransactions", 0, 0, 0),
    LIST_TRANSACTIONS: Api("ListTransactions", 0, 2, 0),
    CONSUMER_GROUP_HEARTBEAT: Api("ConsumerGroupHeartbeat", 0, 1, 0),
    CONSUMER_GROUP_DESCRIBE: Api("ConsumerGroupDescribe", 0, 1, 0),
    LIST_CONFIG_RESOURCES: Api("ListConfigResources", 0, 1, 0),
    DESCRIBE_TOPIC_PARTITIONS: Api("DescribeTopicPartitions", 0, 0, 0),
}

ADVERTISED: Final[dict[int, tuple[int, int]]] = {key: (api.version_min, api.version_max) for key, api in APIS.items()}
"""API key → (lowest, highest version), for the reply to ApiVersions."""

SERVED_BY_WORKERS: Final = frozenset({PRODUCE, FETCH, LIST_OFFSETS, SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE})
"""The network worker decodes and answers these itself.

The others are forwarded to the coordinator (``forwarded.py``), unless the worker can answer them from its snapshot of
metadata: most requests of Metadata, FindCoordinator and InitProducerId (``snapshot_answers``).
"""
