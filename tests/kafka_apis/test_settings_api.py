"""appliance.kafka_apis.settings_api: settings are shown as Kafka shows them, and changed resource by resource."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.config import TOPIC_KEYS, load
from appliance.kafka_apis.settings_api import Resource, SettingSource
from appliance.kafka_settings import ACCEPTED, LONG_MAX, OURS, Kind
from appliance.names import NOTE_BYTES_MAX
from appliance.wire.kafka.apis import APIS
from appliance.wire.kafka.codes import Code

from ..support.kafka_apis_fixture import KEY, LISTENER, Client, FakeCluster, run

BROKER, TOPIC, GROUP = Resource.BROKER, Resource.TOPIC, Resource.GROUP
CURRENT = {name for name, accepted in ACCEPTED.items() if accepted.current}
SHOWN = (TOPIC_KEYS.keys() | CURRENT) - OURS


def cluster_with(name: str = "t", partitions: int = 2, **settings: str) -> FakeCluster:
    cluster = FakeCluster()
    cluster.add(name, partitions, **settings)
    return cluster


def versions(name: str) -> range:
    return range(APIS[KEY[name]].version_min, APIS[KEY[name]].version_max + 1)


def describe(cluster: FakeCluster, kind: int, name: str, keys: list[str] | None = None, **more: Any) -> Any:
    """The one result."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    return run(Client(cluster).ask("DescribeConfigs", resources=[resource], **more)).results[0]


@pytest.mark.parametrize("version", versions("DescribeConfigs"))
def test_describe_settings_in_every_version(version: int) -> None:
    asked = [(TOPIC, "t"), (BROKER, "1"), (BROKER, "2"), (BROKER, "x"), (TOPIC, "none"), (TOPIC, "a/b"), (GROUP, "g"),
             (Resource.CLIENT_METRICS, "c"), (Resource.BROKER_LOGGER, "1"), (Resource.BROKER_LOGGER, ""),
             (99, "x")]  # fmt: skip
    resources = [{"resource_type": kind, "resource_name": name, "configuration_keys": None} for kind, name in asked]
    reply = run(Client(cluster_with(retention_ms="3600000")).ask("DescribeConfigs", version, resources=resources))
    refused = Code.INVALID_REQUEST
    codes = [0, 0, refused, refused, 3, Code.INVALID_TOPIC_EXCEPTION, 0, 0, 0, refused, refused]
    assert [result.error_code for result in reply.results] == codes
    assert [bool(result.error_message) for result in reply.results] == [code != 0 for code in codes]
    rows = {config.name: config for config in reply.results[0].configs}
    assert rows.keys() == SHOWN
    assert (rows["retention.ms"].value, rows["retention.ms"].config_source) == ("3600000", SettingSource.TOPIC)
    (logger,) = reply.results[8].configs
    assert (logger.name, logger.value, logger.read_only) == ("root", "INFO", True)
    of_group = {config.name: (config.value, config.read_only) for config in reply.results[6].configs}
    assert of_group == {
        "consumer.heartbeat.interval.ms": ("5000", False),
        "consumer.session.timeout.ms": ("45000", False),
    }
    assert reply.results[7].configs == []


def test_only_what_is_asked_for_is_shown() -> None:
    cluster = cluster_with()
    assert [row.name for row in describe(cluster, TOPIC, "t", ["segment.bytes", "no.such"]).configs] == [
        "segment.bytes"
    ]
    assert len(describe(cluster, TOPIC, "t", []).configs) == len(SHOWN)
    (row,) = describe(cluster, TOPIC, "t", ["segment.bytes"]).configs
    assert row.synonyms == [] and row.documentation is None


def test_what_kafka_does_not_have_is_shown_by_name_only_and_not_taken_back() -> None:
    cluster = cluster_with(flush_bytes="4096", retention_ms="5")
    assert "flush.bytes" not in {row.name for row in describe(cluster, TOPIC, "t").configs}
    (row,) = describe(cluster, TOPIC, "t", ["flush.bytes"]).configs
    assert (row.value, row.config_source) == ("4096", SettingSource.TOPIC)
    configs = [{"name": "segment.ms", "value": "7"}]
    resource = {"resource_type": TOPIC, "resource_name": "t", "configs": configs}
    (answer,) = run(Client(cluster).ask("AlterConfigs", resources=[resource], validate_only=False)).responses
    assert answer.error_code == 0 and cluster.all["t"].settings == {"flush.bytes": "4096", "segment.ms": "7"}


def test_never_flushing_is_said_in_kafkas_words() -> None:
    (row,) = describe(cluster_with(flush_messages="0"), TOPIC, "t", ["flush.messages"]).configs
    assert row.value == str(LONG_MAX)


def test_settings_say_where_they_come_from() -> None:
    """From the topic, the configuration file, or nowhere; the synonyms are what would hold otherwise."""
    cluster = cluster_with(retention_ms="5")
    cluster.config = load(overrides=["topics.retention.ms=7", "topics.segment.ms=8"])

    def synonyms(name: str) -> list[tuple[str, str, int]]:
        (row,) = describe(cluster, TOPIC, "t", [name], include_synonyms=True).configs
        synonyms_shown = [(each.name, each.value, each.source) for each in row.synonyms]
        assert (row.value, row.config_source) == synonyms_shown[0][1:]
        return synonyms_shown

    week = "604800000"
    broker_wide = [
        ("log.retention.ms", "7", SettingSource.STATIC_BROKER),
        ("log.retention.ms", week, SettingSource.DEFAULT),
    ]
    assert synonyms("retention.ms") == [("retention.ms", "5", SettingSource.TOPIC), *broker_wide]
    assert synonyms("segment.ms") == [
        ("log.roll.ms", "8", SettingSource.STATIC_BROKER),
        ("log.roll.ms", week, SettingSource.DEFAULT),
    ]
    assert synonyms("preallocate") == [("log.preallocate", "false", SettingSource.DEFAULT)]


def test_settings_explain_themselves_and_name_their_type() -> None:
    rows = {row.name: row for row in describe(cluster_with(), TOPIC, "t", include_documentation=True).configs}
    assert all(row.documentation for row in rows.values())
    types = {
        "retention.ms": Kind.LONG, "retention.bytes": Kind.LONG, "segment.bytes": Kind.INT, "preallocate": Kind.BOOLEAN,
        "max.message.bytes": Kind.INT, "cleanup.policy": Kind.LIST, "compression.type": Kind.STRING,
        "min.cleanable.dirty.ratio": Kind.DOUBLE, "message.timestamp.type": Kind.STRING, "flush.ms": Kind.LONG,
    }  # fmt: skip
    assert {name: rows[name].config_type for name in types} == types


def test_the_brokers_configuration() -> None:
    cluster = cluster_with()
    cluster.config = load(overrides=["topics.partitions=3", "topics.retention.ms=7", "network.idle_ms=90000"])
    result = describe(cluster, BROKER, "1", include_synonyms=True, include_documentation=True)
    rows = {row.name: row for row in result.configs}
    values = {
        "listeners": f"PLAINTEXT://{LISTENER.address}",
        "advertised.listeners": f"PLAINTEXT://{LISTENER.address}", "log.dirs": "/data",
        "num.partitions": "3", "broker.id": "0", "log.retention.ms": "7", "offsets.retention.minutes": "10080",
        "connections.max.idle.ms": "90000",
        "auto.create.topics.enable": "true", "default.replication.factor": "1", "min.insync.replicas": "1",
        "message.max.bytes": "1048588", "offset.metadata.max.bytes": str(NOTE_BYTES_MAX), "log.preallocate": "false",
        "log.cleanup.policy": "delete", "compression.type": "producer", "delete.topic.enable": "true",
    }  # fmt: skip
    assert {name: rows[name].value for name in values} == values
    sources = {
        name: rows[name].config_source for name in ("num.partitions", "delete.topic.enable", "log.segment.bytes")
    }
    assert list(sources.values()) == [SettingSource.STATIC_BROKER, SettingSource.DEFAULT, SettingSource.DEFAULT]
    assert [(synonym.value, synonym.source) for synonym in rows["num.partitions"].synonyms] == [("3", 4), ("1", 5)]
    assert all(row.read_only and row.documentation and not row.is_sensitive for row in rows.values())
    assert len(rows) == len(result.configs), "no name twice"
    assert describe(cluster, BROKER, "").configs == [], "nothing is set for all brokers"
    cluster.config = load(overrides=["kafka.advertised=logs.example:19092"])
    (row,) = describe(cluster, BROKER, "1", ["advertised.listeners"]).configs
    assert row.value == "PLAINTEXT://logs.example:19092"


@pytest.mark.parametrize("types, expected", [
    ([], [("1", 4), ("1", 8), ("a", 2), ("t", 2)]), ([2], [("a", 2), ("t", 2)]), ([4, 16, 32], [("1", 4)]),
    ([99], None),
])  # fmt: skip
def test_what_has_settings_is_listed(types: list[int], expected: list[tuple[str, int]] | None) -> None:
    cluster = cluster_with()
    cluster.add("a")
    client = Client(cluster)
    reply = run(client.ask("ListConfigResources", resource_types=types))
    assert reply.error_code == (0 if expected is not None else Code.UNSUPPORTED_VERSION)
    assert [(row.resource_name, row.resource_type) for row in reply.config_resources] == (expected or [])
    assert run(client.ask("ListConfigResources", 0)).config_resources == []  # client metrics


def change(*configs: tuple[Any, ...], name: str = "t", resource_type: int = TOPIC) -> list[dict[str, Any]]:
    rows = [dict(zip(("name", "value", "config_operation"), config, strict=False)) for config in configs]
    return [{"resource_type": resource_type, "resource_name": name, "configs": rows}]


@pytest.mark.parametrize("version", versions("AlterConfigs"))
def test_alter_replaces_everything(version: int) -> None:
    cluster = cluster_with(retention_ms="5", segment_ms="7")
    reply = run(Client(cluster).ask("AlterConfigs", version, resources=change(("retention.ms", "9"))))
    assert reply.responses[0].error_code == 0
    assert cluster.all["t"].settings == {"retention.ms": "9"}


@pytest.mark.parametrize("version", versions("IncrementalAlterConfigs"))
def test_incremental_alter_leaves_the_rest(version: int) -> None:
    cluster = cluster_with(retention_ms="5", segment_ms="7")
    resources = change(("retention.ms", "9", 0), ("segment.ms", None, 1))
    reply = run(Client(cluster).ask("IncrementalAlterConfigs", version, resources=resources))
    assert reply.responses[0].error_code == 0
    assert cluster.all["t"].settings == {"retention.ms": "9"}


@pytest.mark.parametrize(
    "resources, error",
    [
        (change(("no.such", "9", 0)), Code.INVALID_CONFIG),
        (change(("retention.ms", "soon", 0)), Code.INVALID_CONFIG),
        (change(("retention.ms", None, 0)), Code.INVALID_REQUEST),
        (change(("cleanup.policy", "compress", 0)), Code.INVALID_CONFIG),
        (change(("cleanup.policy", "delete", 3)), Code.INVALID_CONFIG),
        (change(("min.cleanable.dirty.ratio", "1.01", 0)), Code.INVALID_CONFIG),
        (change(("compression.type", "gzip", 0)), Code.INVALID_CONFIG),
        (change(("min.insync.replicas", "2", 0)), Code.INVALID_CONFIG),
        (change(("retention.ms", "9", 2)), Code.INVALID_CONFIG),
        (change(("retention.ms", "9", 7)), Code.INVALID_REQUEST),
        (change(("retention.ms", "9", 0), ("retention.ms", "8", 0)), Code.INVALID_REQUEST),
        (change(("retention.ms", "9", 0), name="none"), Code.UNKNOWN_TOPIC_OR_PARTITION),
        (change(("retention.ms", "9", 0), name="a/b"), Code.INVALID_TOPIC_EXCEPTION),
        (change(("log.retention.ms", "9", 0), name="1", resource_type=BROKER), Code.INVALID_REQUEST),
        (change(("log.retention.ms", None, 1), name="2", resource_type=BROKER), Code.INVALID_REQUEST),
        (change(("root", "DEBUG", 0), name="1", resource_type=Resource.BROKER_LOGGER), Code.INVALID_REQUEST),
        (change(("x", None, 1), name="1", resource_type=99), Code.INVALID_REQUEST),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_changes_that_are_refused(resources: list[dict[str, Any]], error: int, validate_only: bool) -> None:
    cluster = cluster_with(retention_ms="5")
    reply = run(Client(cluster).ask("IncrementalAlterConfigs", resources=resources, validate_only=validate_only))
    assert reply.responses[0].error_code == error and reply.responses[0].error_message
    assert cluster.all["t"].settings == {"retention.ms": "5"}


def test_validating_changes_nothing() -> None:
    cluster = cluster_with()
    resources = change(("retention.ms", "9", 0), ("segment.ms", None, 1))
    reply = run(Client(cluster).ask("IncrementalAlterConfigs", resources=resources, validate_only=True))
    assert reply.responses[0].error_code == 0 and cluster.all["t"].settings == {}


def test_one_bad_resource_does_not_spoil_the_others() -> None:
    cluster = cluster_with(retention_ms="5")
    cluster.add("u")
    resources = change(("no.such", "1", 0), ("segment.ms", "7", 0)) + change(("retention.ms", "9", 0), name="u")
    reply = run(Client(cluster).ask("IncrementalAlterConfigs", resources=resources))
    assert [row.error_code for row in reply.responses] == [Code.INVALID_CONFIG, 0]
    assert (cluster.all["t"].settings, cluster.all["u"].settings) == ({"retention.ms": "5"}, {"retention.ms": "9"})


@pytest.mark.parametrize("api", ["AlterConfigs", "IncrementalAlterConfigs"])
def test_a_resource_that_is_given_twice_is_refused_and_answered_once(api: str) -> None:
    cluster = cluster_with(retention_ms="5")
    reply = run(Client(cluster).ask(api, resources=change(("retention.ms", "9")) * 3))
    assert [(row.resource_name, row.error_code) for row in reply.responses] == [("t", Code.INVALID_REQUEST)]
    assert cluster.all["t"].settings == {"retention.ms": "5"}


@pytest.mark.parametrize("kind, name", [(TOPIC, "t"), (BROKER, "1"), (BROKER, ""), (GROUP, "g")])
def test_taking_back_what_is_not_set_changes_nothing(kind: int, name: str) -> None:
    """As in Kafka, whatever its name: tools take back what they might have set."""
    cluster = cluster_with(retention_ms="5")
    resources = change(("no.such", None, 1), ("segment.ms", None, 1), name=name, resource_type=kind)
    reply = run(Client(cluster).ask("IncrementalAlterConfigs", resources=resources))
    assert (reply.responses[0].error_code, reply.responses[0].error_message) == (0, None)
    assert cluster.all["t"].settings == {"retention.ms": "5"}


SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


def changed_group(
    client: Client, *configs: tuple[Any, ...], api: str = "IncrementalAlterConfigs", name: str = "g", **more: Any
) -> Any:
    """The one answer."""
    resources = change(*configs, name=name, resource_type=GROUP)
    return run(client.ask(api, resources=resources, **more)).responses[0]


def test_a_group_has_settings_before_there_is_such_a_group() -> None:
    cluster = cluster_with()
    client = Client(cluster)
    assert changed_group(client, (SESSION, "60000", 0), validate_only=True).error_code == 0
    assert not cluster.group_settings.own
    assert changed_group(client, (SESSION, "60000", 0)).error_code == 0
    rows = {row.name: row for row in describe(cluster, GROUP, "g", include_synonyms=True).configs}
    synonyms = [(row.name, row.value, row.source) for row in rows[SESSION].synonyms]
    assert synonyms == [
        (SESSION, "60000", SettingSource.GROUP),
        (f"group.{SESSION}", "45000", SettingSource.DEFAULT),
    ]
    held = {name: (row.value, row.config_source, row.read_only) for name, row in rows.items()}
    assert held == {
        SESSION: ("60000", SettingSource.GROUP, False),
        HEARTBEAT: ("5000", SettingSource.DEFAULT, False),
    }
    assert describe(cluster, GROUP, "other").configs[1].value == "45000"
    listed = run(client.ask("ListConfigResources", resource_types=[GROUP])).config_resources
    assert [(row.resource_name, row.resource_type) for row in listed] == [("g", GROUP)]

    assert changed_group(client, (HEARTBEAT, "1000"), api="AlterConfigs").error_code == 0
    assert cluster.group_settings.own["g"] == {HEARTBEAT: 1_000}, "what is not given returns to its default"
    assert changed_group(client, (HEARTBEAT, None, 1), (SESSION, None, 1)).error_code == 0
    assert not cluster.group_settings.own["g"]


@pytest.mark.parametrize("name, configs, code", [
    ("g", [(SESSION, "999", 0)], Code.INVALID_CONFIG), ("g", [(SESSION, "1800001", 0)], Code.INVALID_CONFIG),
    ("g", [(HEARTBEAT, "99", 0)], Code.INVALID_CONFIG), ("g", [(HEARTBEAT, "600001", 0)], Code.INVALID_CONFIG),
    ("g", [(SESSION, "soon", 0)], Code.INVALID_CONFIG), ("g", [(SESSION, "5000", 0)], Code.INVALID_CONFIG),
    ("g", [(HEARTBEAT, "45000", 0)], Code.INVALID_CONFIG), ("g", [("share.session.timeout.ms", "45000", 0)],
     Code.INVALID_CONFIG), ("g", [(SESSION, "60000", 2)], Code.INVALID_CONFIG),
    ("g", [(SESSION, None, 0)], Code.INVALID_REQUEST), ("g", [(SESSION, "60000", 9)], Code.INVALID_REQUEST),
    ("", [(SESSION, "60000", 0)], Code.INVALID_REQUEST), ("g" * 256, [(SESSION, "60000", 0)], Code.INVALID_GROUP_ID),
])  # fmt: skip
@pytest.mark.parametrize("validate_only", [True, False])
def test_what_a_group_cannot_set_is_refused(
    name: str, configs: list[tuple[Any, ...]], code: Code, validate_only: bool
) -> None:
    cluster = cluster_with()
    answer = changed_group(Client(cluster), *configs, name=name, validate_only=validate_only)
    assert (answer.error_code, bool(answer.error_message)) == (code, True)
    assert not cluster.group_settings.own


def test_lists_are_edited() -> None:
    cluster, name = cluster_with(), "leader.replication.throttled.replicas"
    client = Client(cluster)
    for operation, value, expected in ((2, "0:1", "0:1"), (2, "1:1,0:1", "0:1,1:1"), (3, "0:1,5:5", "1:1")):
        reply = run(client.ask("IncrementalAlterConfigs", resources=change((name, value, operation))))
        assert reply.responses[0].error_code == 0
        assert cluster.all["t"].settings == {name: expected}


def test_what_kafka_4_has_no_more_is_shown_where_it_is_set() -> None:
    cluster = cluster_with(message_downconversion_enable="false")
    (row,) = describe(cluster, TOPIC, "t", ["message.downconversion.enable"]).configs
    assert (row.value, row.config_source) == ("false", SettingSource.TOPIC)
