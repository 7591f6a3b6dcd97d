"""appliance.kafka_apis.settings_reply: replies by hand are what other codecs read and write."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.config import TopicSettings, load
from appliance.kafka_apis.settings_reply import (
    Created,
    Described,
    ReplyOptions,
    SettingSource,
    encode_created,
    encode_described,
    encode_new_topic,
    encode_settings,
    encode_topic,
    kafkas_settings,
)
from appliance.wire.kafka.apis import APIS, CREATE_TOPICS, DESCRIBE_CONFIGS
from appliance.wire.kafka.reply import MESSAGE_CHARACTERS_MAX

from ..support.kafka_apis_fixture import Client, FakeCluster, run
from ..support.kafka_messages import decode_response, kio_response_again

OWN = (("message.downconversion.enable", "false"), ("preallocate", "false"), ("retention.ms", "5"))
BASE = load(overrides=["topics.segment.ms=8"]).topics.defaults


def versions(key: int) -> range:
    return range(APIS[key].version_min, APIS[key].version_max + 1)


@pytest.mark.parametrize("version", versions(DESCRIBE_CONFIGS))
@pytest.mark.parametrize("synonyms", [False, True])
@pytest.mark.parametrize("documentation", [False, True])
def test_described_settings_are_read_by_others(version: int, synonyms: bool, documentation: bool) -> None:
    options = ReplyOptions(version, synonyms, documentation)
    results = [
        Described(2, "größer", 0, "", encode_topic(OWN, BASE, options)),
        Described(4, "x" * 200, 42, "an error", b""),
        Described(32, "", 0, "", encode_settings([], options)),
    ]
    frame = encode_described(7, version, results)
    assert kio_response_again(DESCRIBE_CONFIGS, version, frame) == frame
    reply = decode_response(DESCRIBE_CONFIGS, version, frame)
    heads = [
        (result.resource_type, result.resource_name, result.error_code, result.error_message)
        for result in reply.results
    ]
    assert heads == [(2, "größer", 0, None), (4, "x" * 200, 42, "an error"), (32, "", 0, None)]
    assert reply.header.correlation_id == 7 and reply.results[1].configs == reply.results[2].configs == []
    expected = kafkas_settings(OWN, BASE)
    assert len(reply.results[0].configs) == len(expected)
    for row, setting in zip(reply.results[0].configs, expected, strict=True):
        first = setting.synonyms[0]
        assert (row.name, row.value, row.config_source) == (setting.name, first.value, first.source)
        assert [(synonym.name, synonym.value, synonym.source) for synonym in row.synonyms] == list(
            setting.synonyms
        ) * synonyms
        if version >= 3:
            assert (row.config_type, row.documentation) == (setting.kind, setting.about if documentation else None)


@pytest.mark.parametrize("version", versions(CREATE_TOPICS))
def test_created_topics_are_read_by_others(version: int) -> None:
    topics = [
        Created("größer", partitions=3, replicas=1, settings=encode_new_topic(OWN, BASE)),
        Created("x", 17, "why"),
    ]
    frame = encode_created(7, version, topics)
    assert kio_response_again(CREATE_TOPICS, version, frame) == frame
    made, refused = decode_response(CREATE_TOPICS, version, frame).topics
    assert (made.name, made.error_code, made.error_message) == ("größer", 0, None)
    assert (refused.name, refused.error_code, refused.error_message) == ("x", 17, "why")
    if version >= 5:
        assert (made.num_partitions, made.replication_factor) == (3, 1)
        assert (refused.num_partitions, refused.replication_factor, refused.configs) == (-1, -1, [])
        rows = {row.name: (row.value, row.config_source) for row in made.configs}
        assert rows["retention.ms"] == ("5", SettingSource.TOPIC) and rows["segment.ms"] == (
            "8",
            SettingSource.STATIC_BROKER,
        )


def test_topics_that_set_the_same_are_encoded_once() -> None:
    options = ReplyOptions(4, True, True)
    encoded = encode_topic(OWN, BASE, options)
    assert encode_topic(tuple(OWN), load(overrides=["topics.segment.ms=8"]).topics.defaults, options) is encoded
    assert encode_topic(OWN, TopicSettings(), options) != encoded != encode_topic(OWN[1:], BASE, options)


def test_a_resource_is_described_once_however_often_it_is_asked_for() -> None:
    """Otherwise a small request has an answer of any size."""
    resources: list[dict[str, Any]] = [{"resource_type": 4, "resource_name": "1", "configuration_keys": None}] * 1_000
    reply = run(Client(FakeCluster()).ask("DescribeConfigs", resources=resources))
    assert len(reply.results) == 1


@pytest.mark.parametrize("version", versions(CREATE_TOPICS))
def test_what_a_client_sends_is_quoted_within_bounds(version: int) -> None:
    client = Client(FakeCluster())
    name = "\0" * 30_000
    config = {"name": name, "value": "1"}
    new_topic = {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": [config]}
    (row,) = run(client.ask("CreateTopics", version, topics=[new_topic])).topics
    assert row.error_code == 40 and len(row.error_message) == MESSAGE_CHARACTERS_MAX
    resource = {"resource_type": 2, "resource_name": name, "configs": []}
    (row,) = run(client.ask("AlterConfigs", 0, resources=[resource])).responses
    assert row.error_code == 17 and 0 < len(row.error_message) <= MESSAGE_CHARACTERS_MAX
