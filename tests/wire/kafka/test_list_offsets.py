"""appliance.wire.kafka.list_offsets: requests of other codecs come out right, replies are byte for byte theirs."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from appliance.config import Config
from appliance.errors import ProtocolFault
from appliance.wire.bounds import WireLimits
from appliance.wire.kafka.apis import LIST_OFFSETS
from appliance.wire.kafka.codec import KafkaCodec
from appliance.wire.requests import EARLIEST, LATEST, MAX_TIMESTAMP, Local, Offsets, OffsetsResult
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

CODEC = KafkaCodec(WireLimits.from_config(Config()))
VERSIONS = range(1, 12)


def asked(*timestamps: int) -> dict[str, Any]:
    parts = [
        {"partition_index": index, "current_leader_epoch": -1, "timestamp": timestamp}
        for index, timestamp in enumerate(timestamps)
    ]
    return {"replica_id": -1, "isolation_level": 0, "timeout_ms": 5, "topics": [{"name": "logs", "partitions": parts}]}


def decoded(version: int, values: dict[str, Any]) -> Offsets:
    frame = request_frame(LIST_OFFSETS, version, values, correlation_id=42)
    assert kio_request_again(LIST_OFFSETS, version, frame) == frame
    request = CODEC.decode(memoryview(frame))
    assert isinstance(request, Offsets)
    return request


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_and_replies_of_other_codecs(version: int) -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        values = random_values(message(LIST_OFFSETS, "Request")._struct, version, rng)
        values["topics"] += asked(LATEST, EARLIEST, 1_700_000_000_000)["topics"]
        for topic in values["topics"]:
            for part in topic["partitions"]:
                part["timestamp"] = max(part["timestamp"], EARLIEST)
                part["current_leader_epoch"] = rng.choice((-1, 0))
        request = decoded(version, values)
        flat = [
            (name_read(topic["name"]), part["partition_index"], part["timestamp"], -1)
            for topic in values["topics"]
            for part in topic["partitions"]
        ]
        assert request.parts == flat
        results = [OffsetsResult(rng.choice((0, 3)), rng.randrange(2**50), rng.randrange(2**41), 9) for _ in flat]
        frame = CODEC.encode_offsets(request, results)
        assert frame == response_frame(LIST_OFFSETS, version, expected(values, results), 42)
        assert kio_response_again(LIST_OFFSETS, version, frame) == frame


def expected(values: dict[str, Any], results: list[OffsetsResult]) -> dict[str, Any]:
    rows = iter(results)
    return {
        "throttle_time_ms": 0,
        "topics": [
            {"name": t["name"], "partitions": [part_reply(p, next(rows)) for p in t["partitions"]]}
            for t in values["topics"]
        ],
    }


def part_reply(part: dict[str, Any], result: OffsetsResult) -> dict[str, Any]:
    return {
        "partition_index": part["partition_index"],
        "error_code": result.error,
        "timestamp": -1 if part["timestamp"] in (EARLIEST, LATEST) else result.timestamp,
        "offset": result.offset,
        "leader_epoch": 0,
    }


def test_special_timestamps_are_known_from_their_version_on_and_others_are_refused() -> None:
    """-3 is the largest timestamp; -4 the earliest local offset, as all are; -5 the latest that is not, as none is.

    -6 is the earliest that waits to be stored elsewhere, as none does.
    """
    for version in VERSIONS:
        request = decoded(version, asked(MAX_TIMESTAMP, -4, -5, -6, -7, LATEST))
        largest = MAX_TIMESTAMP if version >= 7 else EARLIEST
        assert [part.timestamp for part in request.parts] == [largest, *[EARLIEST] * 4, LATEST]
        results = [OffsetsResult(0, 100 + i, 5, 0) for i in range(6)]
        parts = decode_response(LIST_OFFSETS, version, CODEC.encode_offsets(request, results)).topics[0].partitions
        first = (0, 100, 5) if version >= 7 else (35, -1, -1)
        second = (0, 101, -1) if version >= 8 else (35, -1, -1)
        third = (0, -1, -1) if version >= 9 else (35, -1, -1)
        rows = [(part.error_code, part.offset, part.timestamp) for part in parts]
        fourth = (0, -1, -1) if version >= 11 else (35, -1, -1)
        assert rows == [first, second, third, fourth, (35, -1, -1), (0, 105, -1)]
        unknown = CODEC.encode_offsets(request, [OffsetsResult(3, -1, -1, 0)] * 6)
        parts = decode_response(LIST_OFFSETS, version, unknown).topics[0].partitions
        assert [part.error_code for part in parts] == [3] * 6


def test_another_leader_epoch_is_refused_and_no_offset_has_none() -> None:
    for version in VERSIONS:
        values = asked(LATEST, LATEST, LATEST, 5)
        for part, epoch in zip(values["topics"][0]["partitions"], (0, 1, -2, -1), strict=True):
            part["current_leader_epoch"] = epoch
        request = decoded(version, values)
        results = [*[OffsetsResult(0, 100, -1, 0)] * 3, OffsetsResult(0, -1, -1, 0)]
        parts = decode_response(LIST_OFFSETS, version, CODEC.encode_offsets(request, results)).topics[0].partitions
        if version < 4:
            assert [part.error_code for part in parts] == [0] * 4
            continue
        rows = [(part.error_code, part.offset, part.leader_epoch) for part in parts]
        assert rows == [(0, 100, 0), (75, -1, -1), (74, -1, -1), (0, -1, -1)]
        unknown = CODEC.encode_offsets(request, [OffsetsResult(3, -1, -1, 0)] * 4)
        parts = decode_response(LIST_OFFSETS, version, unknown).topics[0].partitions
        assert [part.error_code for part in parts] == [3] * 4


def test_versions_that_are_not_ours_are_faults() -> None:
    for version in (0, 12):
        with pytest.raises(ProtocolFault, match=f"ListOffsets version {version}"):
            CODEC.decode(memoryview(struct.pack(">hhih", LIST_OFFSETS, version, 42, -1) + bytes(60)))


def test_nothing_asked_is_answered_at_once() -> None:
    for version in VERSIONS:
        frame = request_frame(LIST_OFFSETS, version, {**asked(), "topics": []})
        assert isinstance(CODEC.decode(memoryview(frame)), Local)
