"""appliance.wire.native: what is encoded is decoded, and anything else ends the connection with a ProtocolFault."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from appliance.errors import ProtocolFault, UnsupportedVersion
from appliance.wire import native
from appliance.wire.requests import (
    Cold,
    Fetch,
    FetchPart,
    FetchResult,
    FileRange,
    Local,
    Offsets,
    OffsetsPart,
    OffsetsResult,
    Produce,
    ProducePart,
    ProduceResult,
)

HELLO = [native.HELLO, 0, native.MAGIC, native.VERSION, "test"]
numbers = st.integers(-(2**63), 2**63 - 1)
names = st.text(max_size=20)


def body(header: list[Any], payload: bytes = b"") -> memoryview:
    frame = native.encode_frame(header, len(payload)) + payload
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return memoryview(frame)[4:]


def greeted() -> native.NativeCodec:
    codec = native.NativeCodec(broker_id=3, frame_bytes_max=1_000)
    assert isinstance(codec.decode(body(HELLO)), Local)
    return codec


@given(numbers, names, numbers, st.sampled_from([0, 1, -1]), numbers, st.binary(max_size=50))
def test_produce(c: int, topic: str, partition: int, acks: int, timeout: int, batches: bytes) -> None:
    frame = body([native.PRODUCE, c, topic, partition, acks, timeout], batches)
    request = greeted().decode(frame)
    assert isinstance(request, Produce)
    (part,) = request.parts
    assert (request.context, request.acks, request.timeout_ms) == ([c], acks, timeout)
    assert part == ProducePart(topic, partition, len(frame) - len(batches), len(frame))
    assert frame[part.start : part.stop] == batches


correlations = st.integers(2**16, 2**32 - 1)  # what msgpack packs as the client does, in five bytes


@given(correlations, correlations, names, st.integers(0, 99), st.sampled_from([0, 1, -1]), st.binary(max_size=50))
def test_produce_requests_alike_become_one(a: int, b: int, topic: str, partition: int, acks: int, batch: bytes) -> None:
    codec = greeted()
    frames = [body([native.PRODUCE, c, topic, partition, acks, 500], batch + bytes([c % 256])) for c in (a, b)]
    memory = memoryview(b"".join(frames))
    first, shift = memory[: len(frames[0])], len(frames[0])
    request = codec.decode(first)
    assert isinstance(request, Produce) and codec.join(request, first, memory[shift:], shift)
    assert request.count == 2 and request.context == [a, b]
    assert {part[:2] for part in request.parts} == {(topic, partition)}
    assert [bytes(memory[p.start : p.stop]) for p in request.parts] == [batch + bytes([c % 256]) for c in (a, b)]
    results = [ProduceResult(0, 1, 2, 0), ProduceResult(2, -1, -1, 0, "refused")]
    one, other = results
    alone = [codec.encode_produce(Produce([a], 1, 0, []), [one]), codec.encode_produce(Produce([b], 1, 0, []), [other])]
    assert codec.encode_produce(request, results) == b"".join(alone)


@pytest.mark.parametrize(
    "other",
    [
        [native.PRODUCE, 70_001, "u", 0, 1, 500],
        [native.PRODUCE, 70_001, "t", 1, 1, 500],
        [native.PRODUCE, 70_001, "t", 0, -1, 500],
        [native.PRODUCE, 70_001, "t", 0, 1, 501],
        [native.PRODUCE, 5, "t", 0, 1, 500],
        [native.METADATA, 70_001, None],
        [],
    ],
)
def test_requests_that_differ_stay_by_themselves(other: list[Any]) -> None:
    codec = greeted()
    first = body([native.PRODUCE, 70_000, "t", 0, 1, 500], b"batch")
    request = codec.decode(first)
    assert isinstance(request, Produce)
    for frame in (body(other, b"batch"), body(other)[:-1], body(other)[:3]):
        assert not codec.join(request, first, frame, 100)
    assert request.count == len(request.parts) == 1


@given(numbers, numbers, numbers, numbers, st.lists(st.tuples(names, numbers, numbers, numbers), max_size=5))
def test_fetch(c: int, wait: int, low: int, high: int, parts: list[tuple[str, int, int, int]]) -> None:
    request = greeted().decode(body([native.FETCH, c, wait, low, high, parts]))
    assert request == Fetch(c, wait, low, high, [FetchPart(*part) for part in parts])


@given(numbers, st.lists(st.tuples(names, numbers, numbers, numbers), max_size=5))
def test_offsets(c: int, parts: list[tuple[str, int, int, int]]) -> None:
    assert greeted().decode(body([native.OFFSETS, c, parts])) == Offsets(c, [OffsetsPart(*part) for part in parts])


@pytest.mark.parametrize("header", [[native.METADATA, 5, None], [native.ADMIN, 5, "status", {}]])
def test_the_rest_is_for_the_coordinator(header: list[Any]) -> None:
    assert greeted().decode(body(header)) == Cold(5)


def test_replies() -> None:
    class Segment:
        fd = 9

    codec = greeted()
    produced = codec.encode_produce(Produce([7], 1, 0, []), [ProduceResult(0, 10, 20, 0)])
    assert native.decode_header(memoryview(produced)[4:])[0] == [7, 0, 10, 20, 0, ""]
    offsets = codec.encode_offsets(Offsets(8, []), [OffsetsResult(0, 1, 2, 3)])
    assert native.decode_header(memoryview(offsets)[4:])[0] == [8, 0, [[0, 1, 2, 3]]]
    piece = FileRange(Segment(), 100, 50)
    results = [FetchResult(1, 0, 90, 0, ()), FetchResult(0, 0, 99, 50, (piece,))]
    head, *pieces = codec.encode_fetch(Fetch(9, 0, 0, 0, []), results)
    assert pieces == [piece] and isinstance(head, bytes)
    assert native.decode_header(memoryview(head)[4:])[0] == [9, 0, [[1, 0, 90, 0], [0, 0, 99, 50]]]
    assert int.from_bytes(head[:4], "big") == len(head) - 4 + 50


def test_hello_comes_first_and_names_the_version() -> None:
    codec = native.NativeCodec(broker_id=3, frame_bytes_max=1_000)
    with pytest.raises(ProtocolFault, match="hello"):
        codec.decode(body([native.METADATA, 1, None]))
    refused = codec.decode(body([native.HELLO, 0, native.MAGIC, 99, "test"]))
    assert isinstance(refused, Local) and refused.close
    assert native.decode_header(memoryview(refused.reply)[4:])[0][1] == UnsupportedVersion.code


@given(st.binary(max_size=60))
@example(b"")
@example(b"\0\0\0\3\x91\x01")
def test_no_bytes_do_anything_but_a_protocol_fault(data: bytes) -> None:
    for codec in (native.NativeCodec(0, 1_000), greeted()):
        try:
            codec.decode(memoryview(data))
        except ProtocolFault:
            continue


shapes = st.recursive(
    st.none() | st.booleans() | numbers | names | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)


@given(st.sampled_from([0, 1, 2, 3, 4, 9, 5, -1]), st.lists(shapes, max_size=6))
def test_no_shape_does_either(api: int, fields: list[Any]) -> None:
    try:
        request = greeted().decode(body([api, 1, *fields]))
    except ProtocolFault:
        return
    assert isinstance(request, Produce | Fetch | Offsets | Cold)


def test_more_parts_than_allowed_are_refused() -> None:
    parts = [["t", 0, 0, 0]] * (native.PARTS_MAX + 1)
    with pytest.raises(ProtocolFault):
        greeted().decode(body([native.OFFSETS, 1, parts]))
