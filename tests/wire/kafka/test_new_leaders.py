"""appliance.wire.kafka.new_leaders: who leads what is stored elsewhere, as other codecs read it (KIP-951)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from appliance.catalog import LEADER_EPOCH
from appliance.config import Config
from appliance.errors import InvalidRecord, NotLeader, UnknownPartition
from appliance.wire.bounds import WireLimits
from appliance.wire.kafka.apis import FETCH, LIST_OFFSETS, PRODUCE
from appliance.wire.kafka.codec import KafkaCodec
from appliance.wire.kafka.codes import Code
from appliance.wire.kafka.metadata_reply import NO_LEADER, Broker
from appliance.wire.kafka.new_leaders import Leaders
from appliance.wire.requests import Fetch, FetchResult, Offsets, OffsetsResult, Produce, ProduceResult

from ...support.kafka_messages import decode_response, fill, kio_response_again, message, request_frame

HERE, THERE, DEAD, NOWHERE = range(4)
"""The partitions of the topic, by who leads them; the last one does not exist."""
LED_BY = {HERE: 1, THERE: 2, DEAD: NO_LEADER}
TOPIC_ID = UUID(int=7)
LEADERS = Leaders(
    lambda: 1,
    lambda topic, partition: LED_BY.get(partition) if topic == "logs" else None,
    lambda: [Broker(1, "here.example", 9092), Broker(2, "there.example", 9093)],
)
CODEC = KafkaCodec(WireLimits.from_config(Config()), {TOPIC_ID.bytes: "logs"}, leaders=LEADERS)
CODES = [UnknownPartition.code, NotLeader.code, NotLeader.code, UnknownPartition.code]


def decoded(api_key: int, version: int, **values: Any) -> Any:
    frame = request_frame(api_key, version, fill(message(api_key, "Request")._struct, version, values))
    return CODEC.decode(memoryview(frame))


def leaders_of(parts: list[Any]) -> list[tuple[int, int] | None]:
    return [part.current_leader and (part.current_leader.leader_id, part.current_leader.leader_epoch) for part in parts]


def check_named(reply: Any, parts: list[Any], names: bool) -> None:
    if names:
        assert leaders_of(parts) == [None, (2, LEADER_EPOCH), (NO_LEADER, LEADER_EPOCH), None]
        (node,) = reply.node_endpoints
        assert (node.node_id, node.host, node.port, node.rack) == (2, "there.example", 9093, None)
    else:
        assert not any(getattr(part, "current_leader", None) for part in parts)
        assert not getattr(reply, "node_endpoints", None)


def produced(version: int, partitions: list[int], results: list[ProduceResult]) -> bytes:
    rows = [{"index": partition, "records": b"r"} for partition in partitions]
    topic = {"topic_id": TOPIC_ID} if version >= 13 else {"name": "logs"}
    request = decoded(PRODUCE, version, acks=-1, timeout_ms=1, topic_data=[{**topic, "partition_data": rows}])
    assert isinstance(request, Produce)
    return CODEC.encode_produce(request, results)


@pytest.mark.parametrize("version", range(3, 14))
def test_produce(version: int) -> None:
    results = [ProduceResult(UnknownPartition.code, -1, -1, -1, "unknown")] * 4
    frame = produced(version, [HERE, THERE, DEAD, NOWHERE], results)
    reply = decode_response(PRODUCE, version, frame)
    parts = reply.responses[0].partition_responses
    assert [part.error_code for part in parts] == CODES
    check_named(reply, parts, version >= 10)
    assert kio_response_again(PRODUCE, version, frame) == frame
    assert decode_response(PRODUCE, version, CODEC.with_throttle(decoded_produce(version), frame, 70)) is not None


def decoded_produce(version: int) -> Produce:
    request = decoded(PRODUCE, version, acks=-1, timeout_ms=1, topic_data=[])
    assert isinstance(request, Produce)
    return request


@pytest.mark.parametrize("version", [9, 12, 13])
def test_the_usual_produce_request(version: int) -> None:
    """Of one partition, which has another way through the encoder; other errors and the throttle stay what they are."""
    elsewhere = produced(version, [THERE], [ProduceResult(UnknownPartition.code, -1, -1, -1)])
    reply = decode_response(PRODUCE, version, elsewhere)
    assert reply.responses[0].partition_responses[0].error_code == NotLeader.code
    assert [node.node_id for node in reply.node_endpoints or ()] == ([2] if version >= 10 else [])
    assert kio_response_again(PRODUCE, version, elsewhere) == elsewhere
    refused = produced(version, [THERE], [ProduceResult(InvalidRecord.code, -1, -1, -1, "why")])
    told = decode_response(PRODUCE, version, CODEC.with_throttle(decoded_produce(version), refused, 70))
    (part,) = told.responses[0].partition_responses
    assert (part.error_code, part.error_message, told.throttle_time_ms) == (InvalidRecord.code, "why", 70)
    assert not told.node_endpoints


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch(version: int) -> None:
    rows = [{"partition": number, "fetch_offset": 0, "partition_max_bytes": 9} for number in range(4)]
    topic = {"topic_id": TOPIC_ID} if version >= 13 else {"topic": "logs"}
    request = decoded(FETCH, version, max_bytes=99, session_epoch=-1, topics=[{**topic, "partitions": rows}])
    assert isinstance(request, Fetch)

    def encode(errors: list[int]) -> Any:
        pieces = CODEC.encode_fetch(request, [FetchResult(error, -1, -1, 0, ()) for error in errors])
        frame = b"".join(piece for piece in pieces if isinstance(piece, bytes))
        assert kio_response_again(FETCH, version, frame) == frame
        return decode_response(FETCH, version, frame)

    reply = encode([UnknownPartition.code] * 4)
    parts = reply.responses[0].partitions
    assert [part.error_code for part in parts] == CODES
    check_named(reply, parts, version >= 16)
    fenced = encode([Code.FENCED_LEADER_EPOCH, 0, 0, Code.UNKNOWN_LEADER_EPOCH])
    if version >= 16:
        assert leaders_of(fenced.responses[0].partitions) == [(1, LEADER_EPOCH), None, None, None]
        assert [(node.node_id, node.host) for node in fenced.node_endpoints] == [(1, "here.example")]


@pytest.mark.parametrize("version", [1, 5, 10])
def test_list_offsets(version: int) -> None:
    rows = [{"partition_index": number, "timestamp": -1} for number in range(4)]
    request = decoded(LIST_OFFSETS, version, replica_id=-1, topics=[{"name": "logs", "partitions": rows}])
    assert isinstance(request, Offsets)
    frame = CODEC.encode_offsets(request, [OffsetsResult(UnknownPartition.code, -1, -1, -1)] * 4)
    parts = decode_response(LIST_OFFSETS, version, frame).topics[0].partitions
    assert [part.error_code for part in parts] == CODES
