"""appliance.spark.options: the connector's names and rules, and a helpful refusal of everything else."""

from __future__ import annotations

from pathlib import Path

import pytest

import appliance.spark
from appliance.errors import BadValue, ConfigFault, UnknownKey
from appliance.spark.options import INSTEAD, SAME, Bound, Selection, sink_options, source_options
from appliance.wire.requests import EARLIEST, LATEST

BATCH = {"subscribe": "logs"}


def test_defaults_of_batch_and_stream() -> None:
    batch = source_options(BATCH, streaming=False)
    assert batch.starting == Bound(special=EARLIEST)
    assert batch.ending == Bound(special=LATEST, latest_if_later=False)
    assert batch.bootstrap == "127.0.0.1:9091" and batch.fail_on_data_loss and not batch.include_headers
    assert source_options(BATCH, streaming=True).starting == Bound(special=LATEST)


def test_names_have_no_case() -> None:
    parsed = source_options({"SUBSCRIBE": "a, b", "MAXBYTESPERTRIGGER": "2MiB", "includeheaders": "TRUE"}, True)
    assert parsed.selection == Selection(topics=("a", "b"))
    assert parsed.trigger_bytes_max == 2 << 20 and parsed.include_headers


def test_ways_to_select() -> None:
    assigned = source_options({"assign": '{"a": [0, 2]}'}, False).selection
    assert [assigned.wants("a", number) for number in range(3)] == [True, False, True]
    matching = source_options({"subscribePattern": "app-.*"}, False).selection
    assert matching.wants("app-1", 9) and not matching.wants("my-app-1", 0)


def test_bounds() -> None:
    given = {"startingOffsets": '{"a": {"0": 23, "1": -2}}', "endingOffsets": '{"a": {"0": 99, "1": -1}}'}
    parsed = source_options(BATCH | given, False)
    assert parsed.starting.offsets == {("a", 0): 23, ("a", 1): -2}
    assert parsed.ending.offsets == {("a", 0): 99, ("a", 1): -1}
    by_time = source_options(BATCH | given | {"startingOffsetsByTimestamp": '{"a": {"0": 5}}'}, False)
    assert by_time.starting == Bound(timestamps={("a", 0): 5})
    timed = source_options(BATCH | {"startingTimestamp": "7", "startingOffsetsByTimestamp": '{"a": {"0": 5}}'}, False)
    assert timed.starting == Bound(timestamp=7)
    late = source_options(BATCH | {"startingTimestamp": "7", "startingOffsetsByTimestampStrategy": "latest"}, True)
    assert late.starting.latest_if_later


@pytest.mark.parametrize(
    ("given", "streaming", "says"),
    [
        ({}, False, "none is given"),
        ({"subscribe": "a", "assign": '{"a": [0]}'}, False, "subscribe and assign together"),
        ({"subscribe": " , "}, False, "at least one topic"),
        ({"subscribePattern": "("}, False, "subscribePattern"),
        ({"assign": '["a"]'}, False, "use JSON like"),
        ({"assign": '{"a": 1}'}, False, "assign"),
        (BATCH | {"startingOffsets": "latest"}, False, "would read nothing"),
        (BATCH | {"startingOffsets": '{"logs": {"0": -1}}'}, False, "would read nothing"),
        (BATCH | {"startingOffsets": '{"logs": {"0": -3}}'}, False, "offsets start at -2"),
        (BATCH | {"startingOffsets": '{"logs": {"0": "x"}}'}, False, "not a whole number"),
        (BATCH | {"startingOffsets": '{"logs": {"x": 1}}'}, False, "startingOffsets"),
        (BATCH | {"startingOffsets": "17"}, False, "use earliest, latest or JSON"),
        (BATCH | {"endingOffsets": "earliest"}, False, "would read nothing"),
        (BATCH | {"endingOffsets": "latest"}, True, "a stream has no end"),
        (BATCH | {"endingTimestamp": "5"}, True, "a stream has no end"),
        (BATCH | {"startingTimestamp": "yesterday"}, False, "whole number"),
        (BATCH | {"failOnDataLoss": "maybe"}, False, "use true or false"),
        (BATCH | {"maxBytesPerTrigger": "lots"}, True, "number of bytes"),
        (BATCH | {"maxBytesPerTrigger": "0"}, True, "number of bytes"),
        (BATCH | {"minPartitions": "0"}, False, "from 1"),
        (BATCH | {"corruptBatch": "ignore"}, False, "one of fail, skip"),
        (BATCH | {"bootstrap.servers": "nowhere:port"}, False, "host:port"),
    ],
)
def test_bad_values_are_named(given: dict[str, str], streaming: bool, says: str) -> None:
    with pytest.raises(BadValue, match=says):
        source_options(given, streaming)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("subscribbe", "did you mean subscribe"),
        ("startingofsets", "did you mean startingOffsets"),
        ("fetchOffset.numRetries", "use retryTimeoutMs, the time for all attempts together"),
        ("kafka.sasl.jaas.config", "SSL://host:9091"),
        ("kafka.value.deserializer", "keys and values are bytes"),
        ("kafka.interceptor.classes", "has no meaning here"),
        ("maxOffsetsPerTrigger", "maxBytesPerTrigger: offsets are bytes"),
        ("kafka.enable.auto.commit", "checkpoint keeps the offsets"),
        ("zzz", "known: bootstrap.servers"),
    ],
)
def test_unknown_names_get_the_nearest(name: str, says: str) -> None:
    with pytest.raises(UnknownKey, match=says):
        source_options(BATCH | {name: "1"}, streaming=False)


def test_names_of_the_connector_that_mean_the_same() -> None:
    given = {"kafka.bootstrap.servers": "h:1", "kafkaConsumer.pollTimeoutMs": "7"}
    parsed = source_options(BATCH | given | {"kafka.max.partition.fetch.bytes": "9"}, streaming=False)
    assert (parsed.bootstrap, parsed.retry_timeout_ms, parsed.fetch_bytes_max) == ("h:1", 7, 9)
    sink = sink_options({"topic": "out", "kafka.acks": "1", "kafka.compression.type": "lz4", "kafka.batch.size": "64k"})
    assert (sink.acks, sink.codec, sink.batch_bytes_max) == (1, "lz4", 65536)
    with pytest.raises(BadValue, match=r"kafka\.acks and acks mean the same"):
        sink_options({"topic": "out", "kafka.acks": "1", "acks": "all"})


def test_options_that_change_nothing_are_named_in_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    harmless = {"kafka.client.id": "job", "group.id": "g", "kafka.LINGER.ms": "5", "kafka.isolation.level": "x"}
    assert source_options(BATCH | harmless, streaming=False) == source_options(BATCH, streaming=False)
    (record,) = caplog.records
    assert record.getMessage().endswith(": group.id, kafka.client.id, kafka.isolation.level, kafka.linger.ms")
    with pytest.raises(UnknownKey, match="did you mean subscribe"):
        source_options(BATCH | harmless | {"subscribbe": "x"}, streaming=False)


def test_the_page_has_every_name_of_the_connector() -> None:
    page = (Path(appliance.spark.__file__).parent / "README.md").read_text()
    for name in (*SAME, *INSTEAD):
        assert f"`{name}`" in page, name


def test_what_spark_puts_among_the_options_is_no_typo() -> None:
    sink_options({"topic": "out", "checkpointlocation": "/tmp/x", "path": "x"})


def test_sink() -> None:
    parsed = sink_options({"topic": "out", "acks": "1", "compression": "ZSTD", "batchBytes": "64k", "sortRows": "true"})
    assert (parsed.topic, parsed.acks, parsed.codec, parsed.batch_bytes_max) == ("out", 1, "zstd", 65536)
    assert parsed.sort_rows
    for given in ({"acks": "0"}, {"compression": "lzma"}, {"topik": "out"}):
        with pytest.raises(ConfigFault):
            sink_options(given)
