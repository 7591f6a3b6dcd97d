"""appliance.wire.kafka.fetch: requests of other codecs come out right, replies are byte for byte theirs."""

from __future__ import annotations

import random
import struct
from typing import Any
from uuid import UUID

import pytest

from appliance.config import Config
from appliance.errors import ProtocolFault
from appliance.wire.bounds import FETCH_BYTES_MAX, WireLimits
from appliance.wire.kafka.apis import FETCH
from appliance.wire.kafka.codec import KafkaCodec
from appliance.wire.requests import Fetch, FetchPart, FetchResult, FileRange, Local, SessionReply
from tests.support.kafka_messages import (
    SEEDS,
    decode_response,
    kio_request_again,
    kio_response_again,
    message,
    name_read,
    random_values,
    request_frame,
    response_frame,
)

NAMES = {bytes([number]) * 16: f"topic-{number}" for number in range(1, 4)}
CODEC = KafkaCodec(WireLimits.from_config(Config()), NAMES)
VERSIONS = range(4, 19)
SESSION_VERSIONS = range(7, 19)
IDS_FROM = 13


class Segment:
    """Stands for an open file: a range of it is the bytes of its data."""

    fd = -1

    def __init__(self, data: bytes) -> None:
        self.data = data


def sent(pieces: list[bytes | FileRange]) -> bytes:
    """What the worker would write and sendfile."""
    out = b""
    for piece in pieces:
        if isinstance(piece, FileRange):
            assert isinstance(piece.file, Segment)
            out += piece.file.data[piece.position : piece.position + piece.count]
        else:
            out += piece
    return out


def random_request(version: int, seed: int) -> dict[str, Any]:
    values = random_values(message(FETCH, "Request")._struct, version, random.Random(seed))
    values.update(session_id=0, session_epoch=-1, isolation_level=seed % 2)
    for topic in values["topics"]:
        topic["partitions"] *= 3
        for part in topic["partitions"]:
            part["current_leader_epoch"] = -(seed % 2)
    values["topics"].append({"topic": "last", "partitions": []})
    if version >= IDS_FROM:
        for topic in [*values["topics"], *values["forgotten_topics_data"]]:
            topic.pop("topic", None)
            topic["topic_id"] = UUID(bytes=random.Random(seed).choice([*NAMES, bytes(16), bytes([9]) * 16]))
    return values


def topic_of(topic: dict[str, Any]) -> tuple[str, bytes]:
    """The name of a topic as decoded, and its id."""
    if "topic_id" in topic:
        return NAMES.get(topic["topic_id"].bytes, ""), topic["topic_id"].bytes
    return name_read(topic["topic"]), b""


def decoded(version: int, values: dict[str, Any]) -> Fetch | Local:
    frame = request_frame(FETCH, version, values, correlation_id=42)
    assert kio_request_again(FETCH, version, frame) == frame
    request = CODEC.decode(memoryview(frame))
    assert isinstance(request, Fetch | Local)
    return request


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_and_replies_of_other_codecs(version: int) -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        values = random_request(version, seed)
        request = decoded(version, values)
        flat = [
            (name, part["partition"], part["fetch_offset"], part["partition_max_bytes"], topic_id)
            for topic in values["topics"]
            for name, topic_id in [topic_of(topic)]
            for part in topic["partitions"]
        ]
        assert isinstance(request, Fetch) and request.session.is_full and request.parts == flat
        assert request.wait_ms_max == max(values["max_wait_ms"], 0)
        assert request.bytes_min == max(values["min_bytes"], 0)
        assert request.bytes_max == min(max(values["max_bytes"], 0), FETCH_BYTES_MAX)
        results = [random_result(rng) for _ in flat]
        if version >= IDS_FROM:
            unknown = FetchResult(100, -1, -1, 0, ())
            told = [result if part[0] else unknown for part, result in zip(flat, results, strict=True)]
        else:
            told = results
        frame = sent(CODEC.encode_fetch(request, results))
        assert frame == response_frame(FETCH, version, expected(values, told, seed % 2), 42)
        assert kio_response_again(FETCH, version, frame) == frame


def random_result(rng: random.Random) -> FetchResult:
    size = rng.choice((0, 0, 1, 126, 127, 20_000))
    data = rng.randbytes(size)
    half = size // 2
    pieces: tuple[bytes | FileRange, ...] = ()
    if size:
        pieces = (data[:half], FileRange(Segment(b"head" + data + b"tail"), 4 + half, size - half))
    end = rng.randrange(2**60)
    aborted = [(rng.randrange(2**62), rng.randrange(2**60)) for _ in range(rng.choice((0, 0, 1, 200)))]
    return FetchResult(
        rng.choice((0, 0, 1, 3)), rng.randrange(2**40), end, size, pieces, rng.randrange(end + 1), aborted
    )


def expected(values: dict[str, Any], results: list[FetchResult], isolation: int) -> dict[str, Any]:
    rows = iter(results)
    return {
        "throttle_time_ms": 0,
        "error_code": 0,
        "session_id": 0,
        "responses": [
            {**name_in(t), "partitions": [part_reply(p, next(rows), isolation) for p in t["partitions"]]}
            for t in values["topics"]
        ],
    }


def name_in(topic: dict[str, Any]) -> dict[str, Any]:
    """What names a topic."""
    return {key: topic[key] for key in ("topic", "topic_id") if key in topic}


def part_reply(part: dict[str, Any], result: FetchResult, isolation: int) -> dict[str, Any]:
    return {
        "partition_index": part["partition"],
        "error_code": result.error,
        "high_watermark": result.high_watermark,
        "last_stable_offset": result.stable,
        "log_start_offset": result.log_start,
        "aborted_transactions": [
            {"producer_id": producer_id, "first_offset": first} for producer_id, first in result.aborted
        ]
        if isolation
        else None,
        "preferred_read_replica": -1,
        "records": sent(list(result.pieces)),
    }


@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_what_a_fetch_says_of_its_session(version: int) -> None:
    for seed in SEEDS:
        values = random_request(version, seed)
        values.update(session_id=seed, session_epoch=seed - 1)
        forgotten = [
            (topic["topic_id"].bytes if version >= IDS_FROM else name_read(topic["topic"]), number)
            for topic in values["forgotten_topics_data"]
            for number in topic["partitions"]
        ]
        request = decoded(version, values)
        assert isinstance(request, Fetch)
        by_id = version >= IDS_FROM
        assert request.session == (seed, seed - 1, forgotten if seed or by_id else [], by_id)
        assert request.session.is_full == (seed < 2)


@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_the_reply_of_a_session_names_what_it_has(version: int) -> None:
    """Parts of one topic come together, whatever their order."""
    request = decoded(version, {**empty(), "session_id": 5, "session_epoch": 3})
    assert isinstance(request, Fetch)
    rng = random.Random(version)
    topics = {name: bytes([number + 1]) * 16 for number, name in enumerate(("b", "a", "a" * 200))}
    named = [
        FetchPart(topic, number, 0, 1, topics[topic] if version >= IDS_FROM else b"")
        for topic, number in (("b", 1), ("a", 4), ("b", 0), ("a" * 200, 1))
    ]
    results = [random_result(rng) for _ in named]
    frame = sent(CODEC.encode_fetch(request, results, SessionReply(7, named)))
    rows = [(topic, [part for part in zip(named, results, strict=True) if part[0].topic == topic]) for topic in "ba"]
    rows.append(("a" * 200, [(named[3], results[3])]))
    values = {
        "throttle_time_ms": 0,
        "error_code": 0,
        "session_id": 7,
        "responses": [
            {
                **({"topic_id": UUID(bytes=topics[topic])} if version >= IDS_FROM else {"topic": topic}),
                "partitions": [part_reply({"partition": p.partition}, r, 0) for p, r in parts],
            }
            for topic, parts in rows
        ],
    }
    assert frame == response_frame(FETCH, version, values, 42)
    assert kio_response_again(FETCH, version, frame) == frame
    nothing = decode_response(FETCH, version, sent(CODEC.encode_fetch(request, [], SessionReply(7, []))))
    assert (nothing.session_id, nothing.error_code, nothing.responses) == (7, 0, [])
    refused = decode_response(FETCH, version, CODEC.refuse_fetch(request, 70))
    assert (refused.session_id, refused.error_code, refused.responses) == (0, 70, [])


@pytest.mark.parametrize("version", VERSIONS)
def test_another_leader_epoch_is_refused(version: int) -> None:
    rows = [
        {
            "partition": number,
            "current_leader_epoch": epoch,
            "fetch_offset": 9,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": 100,
        }
        for number, epoch in enumerate((-1, 0, 1, -2, 1))
    ]
    topic = {"topic_id": UUID(bytes=bytes([1]) * 16)} if version >= IDS_FROM else {"topic": "logs"}
    request = decoded(version, {**empty(), "topics": [{**topic, "partitions": rows}]})
    assert isinstance(request, Fetch)
    if version < 9:
        assert [part.offset for part in request.parts] == [9] * 5
        return
    assert [part.offset for part in request.parts] == [9, 9, -1, -1, -1], "where no log has anything"
    assert request.refused == {2: 75, 3: 74, 4: 75}


def empty() -> dict[str, Any]:
    return {
        "replica_id": -1,
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 1_000_000,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": 0,
        "topics": [],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def test_tagged_fields_are_skipped() -> None:
    """Version 12 with a tag in each place that may have one."""
    tag = b"\1\x63\2ab"
    part = struct.pack(">iiqiqi", 7, -1, 9, -1, -1, 100)
    body = struct.pack(">hhih", FETCH, 12, 42, -1) + tag
    body += struct.pack(">iiiibii", -1, 500, 1, 1000, 0, 0, -1)
    body += b"\2\5logs\3" + part + tag + part + b"\0" + tag + b"\1\1" + tag
    request = CODEC.decode(memoryview(body))
    assert isinstance(request, Fetch) and request.parts == [("logs", 7, 9, 100, b"")] * 2


def test_a_version_above_ours_gets_a_code_and_one_below_is_a_fault() -> None:
    reply = CODEC.decode(memoryview(struct.pack(">hhih", FETCH, 19, 42, -1) + bytes(60)))
    assert isinstance(reply, Local)
    assert decode_response(FETCH, 18, reply.reply).error_code == 35
    with pytest.raises(ProtocolFault, match="Fetch version 3"):
        CODEC.decode(memoryview(struct.pack(">hhih", FETCH, 3, 42, -1) + bytes(60)))


HEAD = struct.pack(">hhih", FETCH, 4, 1, -1) + struct.pack(">iiiib", -1, 100, 1, 1000, 0)
HEAD_12 = struct.pack(">hhihx", FETCH, 12, 1, -1) + struct.pack(">iiiibii", -1, 100, 1, 1000, 0, 0, -1)
HOSTILE = {
    "2 billion topics": HEAD + struct.pack(">i", 2**31 - 1) + bytes(100),
    "2 billion partitions": HEAD + struct.pack(">ih4si", 1, 4, b"logs", 2**31 - 1) + bytes(100),
    "2 billion partitions to forget": struct.pack(">hhih", FETCH, 7, 1, -1)
    + struct.pack(">iiiibiiiih4si", -1, 100, 1, 1000, 0, 5, 1, 0, 1, 4, b"logs", 2**31 - 1)
    + bytes(100),
    "endless varint": HEAD_12 + b"\xff" * 100_000,
    "many tags": HEAD_12 + b"\2\5logs\1" + b"\xff\xff\3" + bytes(100_000),
    "tag beyond the frame": HEAD_12 + b"\2\5logs\1" + b"\1\1\x7f",
    "more partitions than we take": HEAD + struct.pack(">ih4si", 1, 4, b"logs", 200_000) + bytes(3_200_000),
    "the same in several topics": HEAD
    + struct.pack(">i", 2)
    + 2 * (struct.pack(">h4si", 4, b"logs", 60_000) + bytes(960_000)),
}


@pytest.mark.parametrize("frame", HOSTILE.values(), ids=HOSTILE)
def test_hostile_frames(frame: bytes) -> None:
    with pytest.raises(ProtocolFault):
        CODEC.decode(memoryview(frame))
