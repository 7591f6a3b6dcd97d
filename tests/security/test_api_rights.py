"""The rows of the APIs say what Kafka's documentation says, with named differences."""

from __future__ import annotations

from appliance.security.acls import OPERATIONS, word
from appliance.security.api_rights import How
from appliance.wire import native_admin
from appliance.wire.kafka.apis import APIS

DOCUMENTED = """
Produce: Write TransactionalId, IdempotentWrite Cluster, Write Topic
Fetch: ClusterAction Cluster, Read Topic
ListOffsets: Describe Topic
Metadata: Describe Topic, Create Cluster, Create Topic
OffsetCommit: Read Group, Read Topic
OffsetFetch: Describe Group, Describe Topic
FindCoordinator: Describe Group, Describe TransactionalId
JoinGroup: Read Group
Heartbeat: Read Group
LeaveGroup: Read Group
SyncGroup: Read Group
DescribeGroups: Describe Group
ListGroups: Describe Cluster, Describe Group
SaslHandshake:
ApiVersions:
CreateTopics: Create Cluster, Create Topic
DeleteTopics: Delete Topic
DeleteRecords: Delete Topic
InitProducerId: Write TransactionalId, IdempotentWrite Cluster
OffsetForLeaderEpoch: ClusterAction Cluster, Describe Topic
DescribeAcls: Describe Cluster
CreateAcls: Alter Cluster
DeleteAcls: Alter Cluster
DescribeConfigs: DescribeConfigs Cluster, DescribeConfigs Topic
AlterConfigs: AlterConfigs Cluster, AlterConfigs Topic
DescribeLogDirs: Describe Cluster
SaslAuthenticate:
CreatePartitions: Alter Topic
DeleteGroups: Delete Group
ElectLeaders: ClusterAction Cluster
IncrementalAlterConfigs: AlterConfigs Cluster, AlterConfigs Topic
AlterPartitionReassignments: Alter Cluster
ListPartitionReassignments: Describe Cluster
OffsetDelete: Delete Group, Read Topic
DescribeClientQuotas: DescribeConfigs Cluster
AlterClientQuotas: AlterConfigs Cluster
DescribeUserScramCredentials: Describe Cluster
AlterUserScramCredentials: Alter Cluster
DescribeCluster: Describe Cluster
DescribeProducers: Read Topic
DescribeTransactions: Describe TransactionalId
AddPartitionsToTxn: Write TransactionalId, Write Topic
AddOffsetsToTxn: Write TransactionalId, Read Group
EndTxn: Write TransactionalId
WriteTxnMarkers: ClusterAction Cluster
TxnOffsetCommit: Write TransactionalId, Read Group, Read Topic
ListTransactions: Describe TransactionalId
ConsumerGroupHeartbeat: Read Group, Describe Topic
ConsumerGroupDescribe: Describe Group, Describe Topic
ListConfigResources: DescribeConfigs Cluster
DescribeTopicPartitions: Describe Topic
ShareGroupHeartbeat: Read Group
"""
"""Kafka 4.1, "Operations and resources on protocols"."""

DIFFERENT = {
    "Produce": (
        {"Write TransactionalId", "Write Topic"},
        "idempotence needs no right of its own (KIP-679)",
    ),
    "Fetch": ({"Read Topic"}, "no followers"),
    "OffsetForLeaderEpoch": ({"Describe Topic"}, "no followers"),
    "InitProducerId": (
        {"Write TransactionalId", "IdempotentWrite Cluster", "Write Topic"},
        "Write on any topic is enough, as Kafka's code has it since KIP-679",
    ),
    "CreateTopics": (
        {"Create Cluster", "Create Topic", "DescribeConfigs Topic"},
        "Kafka's code shows the settings of the new topic to those only who may describe them",
    ),
    "DeleteTopics": (
        {"Delete Topic", "Describe Topic"},
        "Kafka's code tells the name of a topic that was given by id to those only who may describe it",
    ),
    "ElectLeaders": ({"Alter Cluster"}, "what Kafka's code checks"),
    "WriteTxnMarkers": ({"Alter Cluster"}, "what Kafka's code checks of administrators, since KIP-664"),
    "DescribeTransactions": (
        {"Describe TransactionalId", "Describe Topic"},
        "Kafka's code shows those topics only that may be described",
    ),
    "DescribeConfigs": (
        {"DescribeConfigs Cluster", "DescribeConfigs Topic", "DescribeConfigs Group"},
        "groups have settings since 4.0",
    ),
    **dict.fromkeys(
        ("AlterConfigs", "IncrementalAlterConfigs"),
        ({"AlterConfigs Cluster", "AlterConfigs Topic", "AlterConfigs Group"}, "groups have settings since 4.0"),
    ),
}
"""API -> what is checked here, and why that is not what the page says."""


RIGHTS = {api.name: api.rights for api in APIS.values()}


def documented() -> dict[str, set[str]]:
    rows = (line.partition(":") for line in DOCUMENTED.strip().splitlines())
    return {name: {right.strip() for right in rights.split(",") if right.strip()} for name, _, rights in rows}


def test_the_rows_are_those_of_kafka() -> None:
    ours = {name: {f"{word(right.operation)} {word(right.resource)}" for right in row} for name, row in RIGHTS.items()}
    assert ours.keys() == documented().keys(), "each API has a line of Kafka's page"
    for name, page in documented().items():
        expected, why = DIFFERENT.get(name, (page, ""))
        assert ours[name] == expected, f"{name}: {why or 'see the page'}"
        assert not why or ours[name] != page, f"{name} is as on the page: no difference to name"


def test_rights_are_such_that_can_be_granted() -> None:
    for name, row in (RIGHTS | {verb.name: verb.rights for verb in native_admin.VERBS.values()}).items():
        for right in row:
            assert right.operation in OPERATIONS[right.resource], name
        if row and row[-1].how is How.SUFFICES:
            raise AssertionError(f"{name}: nothing follows a right that suffices")
