"""Lists the Kafka APIs served: one row for each, from which everything that depends on the API follows.

Who decodes and answers it (:class:`Server`), its versions in the reply to ApiVersions, the layout of headers and of
throttle times (:mod:`.throttle`), the rights that are asked (``security/api_rights.py``), the lines of the audit log,
and the table of the page for clients: ``python -m appliance.kafka_apis.client_page tests/clients/README.md``.

The lowest versions suit librdkafka 2.0.2 (Debian 12), which needs certain old versions.  The highest ones of the
transaction APIs are the last ones of Kafka's first transaction protocol (TV1).  Metadata has both names
and ids from 10 on.  It goes beyond 9, on which librdkafka fails with many small topics.  Produce 0 to 2 are listed
because librdkafka before 2.11.1 otherwise silently drops gzip, snappy and lz4.  Produce requests of these versions are
refused for each partition with UNSUPPORTED_VERSION.  An API that is missing here is not served.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from ...security.acls import Operation, ResourceType
from ...security.api_rights import (
    CREATE_RIGHTS,
    LISTED_GROUPS_RIGHTS,
    MEMBER_RIGHTS,
    NO_RIGHTS,
    PRODUCER_ID_RIGHTS,
    SEEN_TOPICS_RIGHTS,
    TRANSACTION_RIGHTS,
    How,
    NeededRights,
    Right,
    cluster_rights,
    config_rights,
    each_rights,
)

PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
OFFSET_COMMIT: Final = 8
FIND_COORDINATOR: Final = 10
JOIN_GROUP: Final = 11
SYNC_GROUP: Final = 14
SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
CREATE_TOPICS: Final = 19
INIT_PRODUCER_ID: Final = 22
DESCRIBE_CONFIGS: Final = 32
SASL_AUTHENTICATE: Final = 36
CONSUMER_GROUP_HEARTBEAT: Final = 68
"""The keys that other modules mention; all others are in their rows only."""

NEVER: Final = 99
"""Stands for a version that there is not yet."""
AT_THE_END: Final = -1


class Server(Enum):
    """The process that decodes and answers an API."""

    WORKER = "worker"
    """The network worker itself."""
    COORDINATOR = "coordinator"
    """Requests are forwarded (``forwarded.py``), unless the worker can answer them from its snapshot of metadata: most
    of Metadata, FindCoordinator and InitProducerId (``SnapshotAnswers``)."""


class Api(NamedTuple):
    key: int
    name: str
    version_min: int
    version_max: int
    flexible_from: int
    """First version with compact lengths and tagged fields."""
    rights: NeededRights
    throttle_from: int = 0
    """First version whose reply has a throttle time; NEVER also for replies that come before any quota holds."""
    throttle_at: int = 0
    """Bytes of the reply before the throttle time, after the header; AT_THE_END: it is the last field."""
    server: Server = Server.COORDINATOR
    changes: bool = False
    """Whether it changes something that an administrator may change, so that the audit log has a line."""
    note: str = ""
    """What clients should know, in the words of their page."""
    behind: str = ""
    """Why versions that Kafka has are not served, in the words of that page."""


_ROWS: Final = (
    Api(
        PRODUCE,
        "Produce",
        0,
        13,
        9,
        (
            Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, How.EACH),
            *each_rights(Operation.WRITE, ResourceType.TOPIC),
        ),
        throttle_from=1,
        throttle_at=AT_THE_END,
        server=Server.WORKER,
        note="topics by id from 13 on; 0 to 2 are listed for librdkafka < 2.11.1 and refused (UNSUPPORTED_VERSION)",
    ),
    Api(
        FETCH,
        "Fetch",
        4,
        18,
        12,
        each_rights(Operation.READ, ResourceType.TOPIC),
        throttle_from=1,
        server=Server.WORKER,
        note="with sessions; topics by id from 13 on",
    ),
    Api(
        LIST_OFFSETS,
        "ListOffsets",
        1,
        11,
        6,
        each_rights(Operation.DESCRIBE, ResourceType.TOPIC),
        throttle_from=2,
        server=Server.WORKER,
        note="-4 as the earliest, -5 and -6 none: all of a log is local",
    ),
    Api(
        METADATA,
        "Metadata",
        0,
        13,
        9,
        (*SEEN_TOPICS_RIGHTS, *CREATE_RIGHTS),
        throttle_from=3,
        changes=True,
        note="by the worker, from its snapshot, unless a topic is to be made",
    ),
    Api(
        OFFSET_COMMIT,
        "OffsetCommit",
        2,
        10,
        8,
        (Right(Operation.READ, ResourceType.GROUP, How.WHOLE), Right(Operation.READ, ResourceType.TOPIC, How.EACH)),
        throttle_from=3,
        note="topics by id from 10 on",
    ),
    Api(
        9,
        "OffsetFetch",
        1,
        10,
        6,
        (
            Right(Operation.DESCRIBE, ResourceType.GROUP, How.EACH),
            *SEEN_TOPICS_RIGHTS,
        ),
        throttle_from=3,
        note="topics by id from 10 on",
    ),
    Api(
        FIND_COORDINATOR,
        "FindCoordinator",
        0,
        6,
        3,
        (
            Right(Operation.DESCRIBE, ResourceType.GROUP, How.EACH),
            Right(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, How.EACH),
        ),
        throttle_from=1,
        note="by the worker where there is one broker",
    ),
    Api(
        JOIN_GROUP,
        "JoinGroup",
        0,
        8,
        6,
        MEMBER_RIGHTS,
        throttle_from=2,
        behind="9 lets a static leader skip its assignment (KIP-814); here it assigns again",
    ),
    Api(12, "Heartbeat", 0, 4, 4, MEMBER_RIGHTS, throttle_from=1),
    Api(13, "LeaveGroup", 0, 5, 4, MEMBER_RIGHTS, throttle_from=1),
    Api(SYNC_GROUP, "SyncGroup", 0, 5, 4, MEMBER_RIGHTS, throttle_from=1),
    Api(15, "DescribeGroups", 0, 6, 5, each_rights(Operation.DESCRIBE, ResourceType.GROUP), throttle_from=1),
    Api(16, "ListGroups", 0, 5, 3, LISTED_GROUPS_RIGHTS, throttle_from=1),
    Api(
        SASL_HANDSHAKE,
        "SaslHandshake",
        0,
        1,
        NEVER,
        NO_RIGHTS,
        throttle_from=NEVER,
        server=Server.WORKER,
        note="PLAIN, SCRAM-SHA-256, SCRAM-SHA-512",
    ),
    Api(
        API_VERSIONS,
        "ApiVersions",
        0,
        5,
        3,
        NO_RIGHTS,
        throttle_from=NEVER,
        server=Server.WORKER,
        note="unknown versions get the table in version 0 and error 35; who means another broker gets 129 (KIP-1242)",
    ),
    Api(
        CREATE_TOPICS,
        "CreateTopics",
        2,
        7,
        5,
        (*CREATE_RIGHTS, Right(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, How.SHOWN)),
        changes=True,
    ),
    Api(
        20,
        "DeleteTopics",
        1,
        6,
        4,
        (
            Right(Operation.DESCRIBE, ResourceType.TOPIC, How.SHOWN),
            Right(Operation.DELETE, ResourceType.TOPIC, How.EACH),
        ),
        changes=True,
    ),
    Api(
        21,
        "DeleteRecords",
        0,
        2,
        2,
        each_rights(Operation.DELETE, ResourceType.TOPIC),
        changes=True,
        note="to the offset; files go by whole segments",
    ),
    Api(
        INIT_PRODUCER_ID,
        "InitProducerId",
        0,
        5,
        2,
        (Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, How.EACH), *PRODUCER_ID_RIGHTS),
        note="by the worker, without a transactional id",
        behind="6 is for two-phase commit (KIP-939), which Kafka does not serve either unless told to",
    ),
    Api(
        23,
        "OffsetForLeaderEpoch",
        2,
        4,
        4,
        each_rights(Operation.DESCRIBE, ResourceType.TOPIC),
        throttle_from=2,
        note="one epoch",
    ),
    Api(
        24,
        "AddPartitionsToTxn",
        0,
        3,
        3,
        (*TRANSACTION_RIGHTS, Right(Operation.WRITE, ResourceType.TOPIC, How.EACH)),
        note="later versions are for brokers",
        behind="later ones are for brokers",
    ),
    Api(25, "AddOffsetsToTxn", 0, 4, 3, (*TRANSACTION_RIGHTS, *MEMBER_RIGHTS)),
    Api(
        26,
        "EndTxn",
        0,
        4,
        3,
        TRANSACTION_RIGHTS,
        behind="transactions of the second protocol (TV2, KIP-890) are not served",
    ),
    Api(
        27,
        "WriteTxnMarkers",
        1,
        1,
        1,
        cluster_rights(Operation.ALTER),
        throttle_from=NEVER,
        changes=True,
        note="for administrators",
        behind="transactions of the second protocol (TV2, KIP-890) are not served",
    ),
    Api(
        28,
        "TxnOffsetCommit",
        0,
        4,
        3,
        (*TRANSACTION_RIGHTS, *MEMBER_RIGHTS, Right(Operation.READ, ResourceType.TOPIC, How.EACH)),
        behind="transactions of the second protocol (TV2, KIP-890) are not served",
    ),
    Api(
        29,
        "DescribeAcls",
        1,
        3,
        2,
        cluster_rights(Operation.DESCRIBE),
        note="SECURITY_DISABLED while `security.authorizer` is ",
    ),
    Api(
        30,
        "CreateAcls",
        1,
        3,
        2,
        cluster_rights(Operation.ALTER),
        changes=True,
        note="SECURITY_DISABLED while `security.authorizer` is ",
    ),
    Api(
        31,
        "DeleteAcls",
        1,
        3,
        2,
        cluster_rights(Operation.ALTER),
        changes=True,
        note="SECURITY_DISABLED while `security.authorizer` is ",
    ),
    Api(
        DESCRIBE_CONFIGS,
        "DescribeConfigs",
        1,
        4,
        4,
        config_rights(Operation.DESCRIBE_CONFIGS),
    ),
    Api(
        33,
        "AlterConfigs",
        0,
        2,
        2,
        config_rights(Operation.ALTER_CONFIGS),
        changes=True,
    ),
    Api(35, "DescribeLogDirs", 1, 5, 2, cluster_rights(Operation.DESCRIBE)),
    Api(
        SASL_AUTHENTICATE,
        "SaslAuthenticate",
        0,
        2,
        2,
        NO_RIGHTS,
        throttle_from=NEVER,
        server=Server.WORKER,
        note="after SaslHandshake 0 also without it, as raw tokens",
    ),
    Api(37, "CreatePartitions", 0, 3, 2, each_rights(Operation.ALTER, ResourceType.TOPIC), changes=True),
    Api(
        42,
        "DeleteGroups",
        0,
        2,
        2,
        each_rights(Operation.DELETE, ResourceType.GROUP),
        changes=True,
        behind="3 adds the text of an error",
    ),
    Api(43, "ElectLeaders", 0, 2, 2, cluster_rights(Operation.ALTER), note="none is needed"),
    Api(
        44,
        "IncrementalAlterConfigs",
        0,
        1,
        1,
        config_rights(Operation.ALTER_CONFIGS),
        changes=True,
    ),
    Api(
        45,
        "AlterPartitionReassignments",
        0,
        1,
        0,
        cluster_rights(Operation.ALTER),
        note="a partition stays where it is",
    ),
    Api(46, "ListPartitionReassignments", 0, 0, 0, cluster_rights(Operation.DESCRIBE), note="none"),
    Api(
        47,
        "OffsetDelete",
        0,
        0,
        NEVER,
        (Right(Operation.DELETE, ResourceType.GROUP, How.WHOLE), Right(Operation.READ, ResourceType.TOPIC, How.EACH)),
        throttle_at=2,
        changes=True,
    ),
    Api(
        48, "DescribeClientQuotas", 0, 1, 1, cluster_rights(Operation.DESCRIBE_CONFIGS), note="of users and client ids"
    ),
    Api(
        49,
        "AlterClientQuotas",
        0,
        1,
        1,
        cluster_rights(Operation.ALTER_CONFIGS),
        changes=True,
        note="`producer_byte_rate`, `consumer_byte_rate`, and our `request_rate`",
    ),
    Api(50, "DescribeUserScramCredentials", 0, 0, 0, cluster_rights(Operation.DESCRIBE)),
    Api(
        51,
        "AlterUserScramCredentials",
        0,
        0,
        0,
        cluster_rights(Operation.ALTER),
        changes=True,
        note="4096 to 16384 iterations",
    ),
    Api(60, "DescribeCluster", 0, 2, 0, (Right(Operation.DESCRIBE, ResourceType.CLUSTER, How.SHOWN),)),
    Api(61, "DescribeProducers", 0, 0, 0, each_rights(Operation.READ, ResourceType.TOPIC)),
    Api(
        65,
        "DescribeTransactions",
        0,
        0,
        0,
        (
            Right(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, How.EACH),
            Right(Operation.DESCRIBE, ResourceType.TOPIC, How.LISTED),
        ),
    ),
    Api(66, "ListTransactions", 0, 2, 0, (Right(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, How.LISTED),)),
    Api(
        CONSUMER_GROUP_HEARTBEAT,
        "ConsumerGroupHeartbeat",
        0,
        1,
        0,
        (
            *MEMBER_RIGHTS,
            *SEEN_TOPICS_RIGHTS,
        ),
        note="assignors `uniform` and `range`",
    ),
    Api(
        69,
        "ConsumerGroupDescribe",
        0,
        1,
        0,
        (
            Right(Operation.DESCRIBE, ResourceType.GROUP, How.EACH),
            Right(Operation.DESCRIBE, ResourceType.TOPIC, How.EACH),
        ),
        note="groups that have members of the consumer protocol",
    ),
    Api(
        74,
        "ListConfigResources",
        0,
        1,
        0,
        cluster_rights(Operation.DESCRIBE_CONFIGS),
        note="version 0, client metrics: none",
    ),
    Api(75, "DescribeTopicPartitions", 0, 0, 0, SEEN_TOPICS_RIGHTS),
    Api(
        76,
        "ShareGroupHeartbeat",
        1,
        1,
        0,
        MEMBER_RIGHTS,
        note="refused with UNSUPPORTED_VERSION, as by a Kafka without share groups: clients say so, instead of waiting",
    ),
)

APIS: Final[dict[int, Api]] = {api.key: api for api in _ROWS}
"""By API key, in their order."""

API_KEYS: Final[dict[str, int]] = {api.name: api.key for api in _ROWS}

ADVERTISED: Final[dict[int, tuple[int, int]]] = {key: (api.version_min, api.version_max) for key, api in APIS.items()}
"""API key → (lowest, highest version), for the reply to ApiVersions."""

SERVED_BY_WORKERS: Final = frozenset(key for key, api in APIS.items() if api.server is Server.WORKER)
