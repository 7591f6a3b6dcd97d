"""appliance.wire.kafka.produce: requests of other codecs come out right, replies are byte for byte theirs."""

from __future__ import annotations

import random
import struct
from typing import Any
from uuid import NAMESPACE_DNS, UUID, uuid5

import pytest

from appliance.config import Config
from appliance.errors import InvalidRecord, ProtocolFault, UnknownPartition, UnknownTopicId
from appliance.wire.bounds import WireLimits
from appliance.wire.kafka import produce
from appliance.wire.kafka.apis import PRODUCE
from appliance.wire.kafka.codec import KafkaCodec
from appliance.wire.requests import Local, Produce, ProduceResult
from tests.support.kafka_messages import (
    SEEDS,
    decode_response,
    kio_request_again,
    message,
    mutated,
    name_read,
    random_values,
    request_frame,
    response_frame,
)

from ...support.long import chosen_size

NAMES: dict[bytes, str] = {}
"""The topics of all requests here that name them by their ids, but for those whose id is to be unknown."""
CODEC = KafkaCodec(WireLimits.from_config(Config()), NAMES)
VERSIONS = range(3, 14)
IDS_FROM = 13
INTERNAL = "__consumer_offsets"
MUTATIONS = chosen_size("FUZZ_MUTATIONS", 4_000)


def one(records: bytes | None = b"records", **changed: Any) -> dict[str, Any]:
    """One topic, one partition: the usual request, which has a faster way through the decoder."""
    part = {"index": 5, "records": records}
    values = {"acks": -1, "timeout_ms": 1500, "topic_data": [{"name": "logs", "partition_data": [part]}]}
    return {"transactional_id": None, **values, **changed}


def by_id(version: int, values: dict[str, Any]) -> dict[str, Any]:
    """The same request as this version says it: topics that have a name get an id."""
    if version < IDS_FROM:
        return values
    topics = [topic | {"topic_id": id_of(topic["name"])} for topic in values["topic_data"] if "name" in topic]
    for topic in topics:
        del topic["name"]
    return values | {"topic_data": topics or values["topic_data"]}


def id_of(name: str) -> UUID:
    topic_id = uuid5(NAMESPACE_DNS, name)
    NAMES[topic_id.bytes] = name
    return topic_id


def random_request(version: int, rng: random.Random) -> dict[str, Any]:
    """From version 13 on, every other topic id is known."""
    values = random_values(message(PRODUCE, "Request")._struct, version, rng)
    if version >= IDS_FROM:
        NAMES.update((topic["topic_id"].bytes, f"t{topic['topic_id'].hex}") for topic in values["topic_data"][::2])
    return values


def topic_read(topic: dict[str, Any]) -> str:
    """What the decoder makes of a topic's name or id."""
    return NAMES.get(topic["topic_id"].bytes, "") if "topic_id" in topic else name_read(topic["name"])


def frame_of(version: int, values: dict[str, Any], *args: Any, **header: Any) -> bytes:
    return request_frame(PRODUCE, version, by_id(version, values), *args, **header)


def decoded(version: int, values: dict[str, Any]) -> tuple[memoryview, Produce]:
    frame = memoryview(frame_of(version, values, correlation_id=42))
    request = CODEC.decode(frame)
    assert isinstance(request, Produce)
    return frame, request


def flat(values: dict[str, Any]) -> list[tuple[str, int, bytes]]:
    return [
        (topic_read(topic), part["index"], part["records"] or b"")
        for topic in values["topic_data"]
        for part in topic["partition_data"]
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_of_other_codecs(version: int) -> None:
    for seed in SEEDS:
        values = random_request(version, random.Random(seed))
        values.update(transactional_id=None, acks=seed % 3 - 1)
        frame = memoryview(frame_of(version, values, correlation_id=seed))
        assert kio_request_again(PRODUCE, version, bytes(frame)) == frame
        request = CODEC.decode(frame)
        assert isinstance(request, Produce)
        assert (request.acks, request.timeout_ms) == (values["acks"], values["timeout_ms"])
        got = [(p.topic, p.partition, bytes(frame[p.start : p.stop])) for p in request.parts]
        assert got == flat(values)


@pytest.mark.parametrize("version", VERSIONS)
def test_internal_topics_take_messages_of_kafkas_tools_only(version: int) -> None:
    """As in Kafka.  Twice, because a topic that is known takes the faster way."""
    topics = [{"name": name, "partition_data": [{"index": 5, "records": b"some"}]} for name in ("logs", INTERNAL)]
    values = one(topic_data=topics)
    for _ in range(2):
        _, request = decoded(version, values)
        assert [(part.topic, part.stop - part.start) for part in request.parts] == [("logs", 4), (INTERNAL, 0)]
        written, empty = ProduceResult(0, 9, 10, 0), ProduceResult(InvalidRecord.code, -1, -1, -1, "nothing")
        reply = decode_response(PRODUCE, version, CODEC.encode_produce(request, [written, empty]))
        assert [topic.partition_responses[0].error_code for topic in reply.responses] == [0, 17]
        unknown = ProduceResult(UnknownPartition.code, -1, -1, -1)
        reply = decode_response(PRODUCE, version, CODEC.encode_produce(request, [written, unknown]))
        assert [topic.partition_responses[0].error_code for topic in reply.responses] == [0, 3]
        frame = memoryview(frame_of(version, values, client_id="__admin_client"))
        request = CODEC.decode(frame)
        assert isinstance(request, Produce) and [part.stop - part.start for part in request.parts] == [4, 4]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [1, 126, 127, 16_000, 300_000])
def test_the_usual_request_twice(version: int, size: int) -> None:
    """The second time its topic is known, which takes the faster way: nothing may differ."""
    values = one(bytes(size))
    for _ in range(2):
        frame, request = decoded(version, values)
        assert (request.acks, request.timeout_ms) == (-1, 1500)
        part = request.parts[0]
        assert part[:2] == ("logs", 5) and part.stop - part.start == size
        assert len(frame) - part.stop == (3 if version >= 9 else 0)
        reply = CODEC.encode_produce(request, [ProduceResult(0, 1, 2, 0)])
        assert decode_response(PRODUCE, version, reply).header.correlation_id == 42


@pytest.mark.parametrize("version", VERSIONS)
def test_replies_are_byte_for_byte_those_of_kafka_python(version: int) -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        values = random_request(version, rng)
        values.update(transactional_id=None, acks=1)
        _, request = decoded(version, values)
        results = [
            ProduceResult(
                rng.choice((0, 3)),
                rng.randrange(2**40),
                0,
                17,
                rng.choice(("", "größer", "x" * 200)),
                rng.choice((-1, 99)),
            )
            for _ in request.parts
        ]
        unknown = ProduceResult(UnknownTopicId.code, -1, -1, -1, "no topic has this id: ask for metadata")
        by_ids = request.topic_ids is not None
        row = iter(
            unknown if by_ids and not part.topic else result
            for part, result in zip(request.parts, results, strict=True)
        )
        expected = {
            "throttle_time_ms": 0,
            "responses": [
                {
                    **{key: topic[key] for key in ("name", "topic_id") if key in topic},
                    "partition_responses": [part_reply(part["index"], next(row)) for part in topic["partition_data"]],
                }
                for topic in values["topic_data"]
            ],
        }
        assert CODEC.encode_produce(request, results) == response_frame(PRODUCE, version, expected, 42)


def part_reply(index: int, result: ProduceResult) -> dict[str, Any]:
    return {
        "index": index,
        "error_code": result.error,
        "base_offset": result.base,
        "log_append_time_ms": result.append_ms,
        "log_start_offset": result.log_start,
        "record_errors": [],
        "error_message": result.message or None,
    }


def joined(version: int, one_frame: bytes, other: bytes) -> tuple[memoryview, Produce, bool]:
    """Two frames as they lie behind each other in the arena, and whether the second has joined the first."""
    memory = memoryview(one_frame + b"size" + other)
    first, shift = memory[: len(one_frame)], len(one_frame) + 4
    CODEC.decode(first)  # now its topic is known
    request = CODEC.decode(first)
    assert isinstance(request, Produce)
    return memory, request, CODEC.join(request, first, memory[shift:], shift)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("sizes", [(1, 1), (7, 300_000), (300_000, 126)])
def test_requests_alike_become_one_and_are_answered_as_each_by_itself(version: int, sizes: tuple[int, int]) -> None:
    frames = [frame_of(version, one(bytes([n]) * size), n) for n, size in enumerate(sizes, 41)]
    memory, request, done = joined(version, *frames)
    assert done and request.count == len(request.parts) == 2
    assert [bytes(memory[p.start : p.stop]) for p in request.parts] == [b")" * sizes[0], b"*" * sizes[1]]
    assert {part[:2] for part in request.parts} == {("logs", 5)}
    results = [ProduceResult(0, 7, 8, 0), ProduceResult(2, -1, -1, 0, "größer als erlaubt")]
    alone = [decoded(version, one())[1] for _ in frames]
    for number, each in enumerate(alone, 41):
        each.context[0][:] = [number]
    expected = [CODEC.encode_produce(each, [result]) for each, result in zip(alone, results, strict=True)]
    assert CODEC.encode_produce(request, results) == b"".join(expected)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "changed",
    [
        {"acks": 1},
        {"timeout_ms": 1501},
        {"transactional_id": "t"},
        {"topic_data": [{"name": "logt", "partition_data": [{"index": 5, "records": b"records"}]}]},
        {"topic_data": [{"name": "logs", "partition_data": [{"index": 6, "records": b"records"}]}]},
        {"topic_data": [{"name": "logs", "partition_data": [{"index": 5, "records": None}]}]},
        {"topic_data": [{"name": "logs", "partition_data": []}]},
        {"topic_data": []},
    ],
)
def test_requests_that_differ_stay_by_themselves(version: int, changed: dict[str, Any]) -> None:
    frames = frame_of(version, one()), frame_of(version, one(**changed))
    _, request, done = joined(version, *frames)
    assert not done and request.count == len(request.parts) == 1
    assert not joined(version, frames[0], frame_of(version, one(), client_id="tess"))[2]
    another = VERSIONS[version % len(VERSIONS)]
    assert not joined(version, frames[0], frame_of(another, one()))[2]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_cut_off_or_followed_by_tags_is_left_to_the_decoder(version: int) -> None:
    frame = frame_of(version, one())
    for stop in range(len(frame) - (version >= 9)):  # the request's own tags are nobody's business
        assert not joined(version, frame, frame[:stop])[2]
    if version >= 9:
        assert not joined(version, frame, frame[:-2] + b"\1\0\0\0")[2]


def test_whatever_joins_is_what_the_decoder_reads() -> None:
    """FUZZ_MUTATIONS=100000 is the full size."""
    rng = random.Random(19)
    count = 0
    for turn in range(MUTATIONS):
        version = VERSIONS[turn % len(VERSIONS)]
        first = frame_of(version, one())
        frame = mutated(first, rng)
        _, request, done = joined(version, first, frame)
        if done:
            count += 1
            alone = CODEC.decode(memoryview(frame))
            assert isinstance(alone, Produce)
            assert (alone.acks, alone.timeout_ms) == (request.acks, request.timeout_ms)
            (part,), shift = alone.parts, len(first) + 4
            assert request.parts[1:] == [part._replace(start=part.start + shift, stop=part.stop + shift)]
            assert request.context[0][1:] == alone.context[0]
    assert count > MUTATIONS // 100


def test_nothing_is_copied_and_the_records_may_be_null() -> None:
    for version in VERSIONS:
        _, request = decoded(version, one(records=None))
        assert request.parts[0].start == request.parts[0].stop


def test_the_usual_request_by_id_is_decoded_as_by_the_general_way() -> None:
    """Only that what joins others is known of it."""
    frame, fast = decoded(IDS_FROM, one(b"records"))
    body = struct.calcsize(">hhih") + len(b"test") + len(b"\0")  # behind the header, with the client id and no tags
    general = produce.decode(frame, body, 42, IDS_FROM, 100, NAMES)
    assert isinstance(general, Produce) and fast.topic_ids == general.topic_ids == {"logs": id_of("logs").bytes}
    assert fast.context[4] and not general.context[4]
    general.context = (*general.context[:4], fast.context[4], general.context[5])
    assert fast == general


def test_acks_0_has_no_reply() -> None:
    _, request = decoded(7, one(acks=0))
    assert CODEC.encode_produce(request, [ProduceResult(0, 1, 2, 0)]) == b""


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("changed", "code", "why"),
    [({"acks": 2}, 21, "acks=2"), ({"acks": -2}, 21, "acks=-2")],
)
def test_what_is_refused_is_answered_for_each_partition(
    version: int, changed: dict[str, Any], code: int, why: str
) -> None:
    reply = CODEC.decode(memoryview(frame_of(version, one(**changed), correlation_id=42)))
    assert isinstance(reply, Local) and not reply.close
    part = decode_response(PRODUCE, version, reply.reply).responses[0].partition_responses[0]
    assert (part.index, part.error_code, part.base_offset) == (5, code, -1)
    if version >= 8:
        assert why in part.error_message


@pytest.mark.parametrize("version", VERSIONS)
def test_a_transactional_id_is_read(version: int) -> None:
    frame = frame_of(version, one(transactional_id="täx"))
    request = CODEC.decode(memoryview(frame))
    assert isinstance(request, Produce) and request.transactional_id == "täx"
    assert [part.partition for part in request.parts] == [5]
    other = CODEC.decode(memoryview(frame_of(version, one())))
    assert isinstance(other, Produce) and other.transactional_id is None
    with pytest.raises(ProtocolFault):
        CODEC.decode(memoryview(frame[:-40]))


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_message_sets_are_refused_in_the_layout_of_their_version(version: int) -> None:
    body = struct.pack(">hhih", PRODUCE, version, 9, -1)
    body += struct.pack(">hiih4siii3s", 1, 1000, 1, 4, b"logs", 1, 5, 3, b"old")
    reply = CODEC.decode(memoryview(body))
    assert isinstance(reply, Local)
    answer = struct.pack(">iih4siihq", 9, 1, 4, b"logs", 1, 5, 35, -1)
    answer += struct.pack(">q", -1) if version == 2 else b""
    answer += struct.pack(">i", 0) if version else b""
    assert reply.reply == struct.pack(">i", len(answer)) + answer


def test_a_version_above_ours_ends_the_connection() -> None:
    with pytest.raises(ProtocolFault, match="Produce version 14"):
        CODEC.decode(memoryview(struct.pack(">hhih", PRODUCE, 14, 1, -1) + bytes(50)))


def test_a_refused_request_without_reply_closes_the_connection() -> None:
    reply = CODEC.decode(memoryview(request_frame(PRODUCE, 2, one(acks=0))))
    assert reply == Local(b"", close=True)


HEAD = struct.pack(">hhih", PRODUCE, 7, 1, -1) + struct.pack(">hhi", -1, 1, 1000)
HOSTILE = {
    "null topics": HEAD + struct.pack(">i", -1),
    "2 billion topics": HEAD + struct.pack(">i", 2**31 - 1) + bytes(100),
    "2 billion partitions": HEAD + struct.pack(">ih4si", 1, 4, b"logs", 2**31 - 1) + bytes(100),
    "negative name": HEAD + struct.pack(">ih", 1, -7) + bytes(100),
    "name beyond the frame": HEAD + struct.pack(">ih", 1, 500) + bytes(100),
    "records beyond the frame": HEAD + struct.pack(">ih4siii", 1, 4, b"logs", 1, 0, 100) + bytes(99),
    "more partitions than we take": HEAD + struct.pack(">ih4si", 1, 4, b"logs", 200_000) + bytes(1_600_000),
}


@pytest.mark.parametrize("frame", HOSTILE.values(), ids=HOSTILE)
def test_hostile_frames(frame: bytes) -> None:
    for _ in range(2):
        with pytest.raises(ProtocolFault):
            CODEC.decode(memoryview(frame))
