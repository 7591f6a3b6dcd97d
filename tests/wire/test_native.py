"""appliance.wire.native: what is encoded is decoded, and anything else ends the connection with a ProtocolFault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from appliance.errors import FrameTooLarge, ProtocolFault, UnsupportedVersion
from appliance.wire import native
from appliance.wire.bounds import FETCH_BYTES_MAX, WireLimits
from appliance.wire.frames import split
from appliance.wire.requests import (
    ADMIN_API,
    Fetch,
    FetchPart,
    FetchResult,
    FileRange,
    Forwarded,
    Local,
    Offsets,
    OffsetsPart,
    OffsetsResult,
    Produce,
    ProducePart,
    ProduceResult,
)

from ..support.spending import spent_by

HELLO = [native.HELLO, 0, native.MAGIC, native.VERSION, "test"]
LIMITS = WireLimits(frame_bytes_max=100_000, forwarded_bytes_max=10_000, parts_max=1_000)
numbers = st.integers(-(2**63), 2**63 - 1)
u31 = st.integers(0, 2**31 - 1)
u32 = st.integers(0, 2**32 - 1)
names = st.text(max_size=20)


def body(header: list[Any], payload: bytes = b"") -> memoryview:
    frame = native.encode_frame(header, len(payload)) + payload
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return memoryview(frame)[4:]


def greeted() -> native.NativeCodec:
    codec = native.NativeCodec(3, LIMITS)
    assert isinstance(codec.decode(body(HELLO)), Local)
    return codec


@given(u32, names, u31, st.sampled_from([0, 1, -1]), u31, st.binary(max_size=50))
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


@given(u32, u31, u31, u31, st.lists(st.tuples(names, u31, numbers, u31), max_size=5))
def test_fetch(c: int, wait: int, low: int, high: int, parts: list[tuple[str, int, int, int]]) -> None:
    request = greeted().decode(body([native.FETCH, c, wait, low, high, parts]))
    assert request == Fetch(c, wait, low, min(high, FETCH_BYTES_MAX), [FetchPart(*part) for part in parts])


@given(u32, st.lists(st.tuples(names, u31, numbers, numbers), max_size=5))
def test_offsets(c: int, parts: list[tuple[str, int, int, int]]) -> None:
    assert greeted().decode(body([native.OFFSETS, c, parts])) == Offsets(c, [OffsetsPart(*part) for part in parts])


@pytest.mark.parametrize("header", [[native.METADATA, 5, None], [native.ADMIN, 5, "status", {}]])
def test_the_rest_is_for_the_coordinator(header: list[Any]) -> None:
    api = native.METADATA if header[0] == native.METADATA else ADMIN_API
    assert greeted().decode(body(header)) == Forwarded(5, api=api)


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
    decided = [FetchResult(0, 0, 99, 0, (), 70, [(7, 60)])]
    (told,) = codec.encode_fetch(Fetch(9, 0, 0, 0, [], committed=True), decided)
    assert isinstance(told, bytes)
    assert native.decode_header(memoryview(told)[4:])[0][2] == [[0, 0, 99, 0, 70, [[7, 60]]]]
    assert int.from_bytes(head[:4], "big") == len(head) - 4 + 50


def test_hello_comes_first_and_names_the_version() -> None:
    codec = native.NativeCodec(3, LIMITS)
    with pytest.raises(ProtocolFault, match="hello"):
        codec.decode(body([native.METADATA, 1, None]))
    refused = codec.decode(body([native.HELLO, 0, native.MAGIC, 99, "test"]))
    assert isinstance(refused, Local) and refused.close
    assert native.decode_header(memoryview(refused.reply)[4:])[0][1] == UnsupportedVersion.code


@given(st.binary(max_size=60))
@example(b"")
@example(b"\0\0\0\3\x91\x01")
def test_no_bytes_do_anything_but_a_protocol_fault(data: bytes) -> None:
    for codec in (native.NativeCodec(0, LIMITS), greeted()):
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
    assert isinstance(request, Produce | Fetch | Offsets | Forwarded)


GOOD: dict[str, list[Any]] = {
    "produce": [native.PRODUCE, 1, "t", 0, 1, 1000],
    "fetch": [native.FETCH, 1, 0, 0, 0, [["t", 0, 0, 0]]],
    "offsets": [native.OFFSETS, 1, [["t", 0, 0, 0]]],
    "metadata": [native.METADATA, 1, ["t"]],
    "admin": [native.ADMIN, 1, "status", {}],
}
U31, U32, I64 = range(2**31), range(2**32), range(-(2**63), 2**63)
FIELDS: dict[tuple[Any, ...], Any] = {  # where a field is, and what it takes: numbers of a range, or a type
    ("produce", 1): U32, ("produce", 2): str, ("produce", 3): U31, ("produce", 4): range(-1, 2), ("produce", 5): U31,
    ("fetch", 1): U32, ("fetch", 2): U31, ("fetch", 3): U31, ("fetch", 4): U31, ("fetch", 5): list,
    ("fetch", 5, 0): None, ("fetch", 5, 0, 0): str, ("fetch", 5, 0, 1): U31, ("fetch", 5, 0, 2): I64,
    ("fetch", 5, 0, 3): U31,
    ("offsets", 1): U32, ("offsets", 2): list, ("offsets", 2, 0): None, ("offsets", 2, 0, 0): str,
    ("offsets", 2, 0, 1): U31, ("offsets", 2, 0, 2): I64, ("offsets", 2, 0, 3): I64,
    ("metadata", 1): U32, ("metadata", 2): list | None, ("metadata", 2, 0): str,
    ("admin", 1): U32, ("admin", 2): str,
}  # fmt: skip
VALUES: list[Any] = [-1, 0, 2, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)]
VALUES += [
    True,
    1.0,
    1.5,
    None,
    "1",
    "n" * 249,
    "n" * 250,
    b"1",
    [],
    {},
    msgpack.ExtType(5, b"x"),
    msgpack.Timestamp(1),
]


def fits(value: Any, field: Any) -> bool:
    if isinstance(field, range):
        return type(value) is int and value in field
    return field is not None and isinstance(value, field) and value != "n" * 250


def put(header: list[Any], path: Sequence[int], value: Any) -> list[Any]:
    out = list(header)
    out[path[0]] = put(out[path[0]], path[1:], value) if len(path) > 1 else value
    return out


@pytest.mark.parametrize("place", FIELDS, ids=str)
def test_every_field_takes_what_fits_it_and_nothing_else(place: tuple[Any, ...]) -> None:
    kind, *path = place
    codec = greeted()
    for value in VALUES:
        frame = body(put(GOOD[kind], path, value))
        if fits(value, FIELDS[place]):
            codec.decode(frame)
        else:
            with pytest.raises(ProtocolFault):
                codec.decode(frame)


@pytest.mark.parametrize("kind", GOOD)
def test_more_or_fewer_fields_are_refused(kind: str) -> None:
    for header in (GOOD[kind][:-1], [*GOOD[kind], 0], GOOD[kind][:1]):
        with pytest.raises(ProtocolFault):
            greeted().decode(body(header))


def test_more_parts_than_allowed_are_refused() -> None:
    for header in (
        [native.OFFSETS, 1, [["t", 0, 0, 0]] * (LIMITS.parts_max + 1)],
        [native.FETCH, 1, 0, 0, 0, [["t", 0, 0, 0]] * (LIMITS.parts_max + 1)],
    ):
        with pytest.raises(ProtocolFault, match="1001 partitions"):
            greeted().decode(body(header))


def test_what_the_coordinator_answers_is_small() -> None:
    fits = [native.METADATA, 1, ["n" * 249] * 38]
    assert isinstance(greeted().decode(body(fits)), Forwarded)
    for header in ([native.METADATA, 1, ["n" * 249] * 40], [native.ADMIN, 1, "status", {"x": "n" * 10_000}]):
        with pytest.raises(FrameTooLarge):
            greeted().decode(body(header))


BOMBS = {
    "empty maps before hello": (False, b"\x93\x09\x01\xdd" + (8 << 20).to_bytes(4, "big") + b"\x80" * (8 << 20)),
    "empty maps": (True, b"\x93\x09\x01\xdd" + (8 << 20).to_bytes(4, "big") + b"\x80" * (8 << 20)),
    "parts that are not there": (True, b"\x93\x02\x01\xdd\xff\xff\xff\xff"),
    "100,000 empty parts": (True, b"\x93\x02\x01\xdd\x00\x01\x86\xa0" + b"\x90" * 100_000),
    "a deep argument": (True, b"\x94\x04\x01\xa1x" + b"\x91" * 8_000),
    "a deep map": (True, b"\x94\x04\x01\xa1x" + b"\x81" * 8_000),
    "an argument of 4 G elements": (True, b"\x94\x04\x01\xa1x\xdd\xff\xff\xff\xff"),
    "a name of 4 GB": (True, b"\x96\x00\x01\xdb\xff\xff\xff\xff"),
}


def decode_bomb(is_greeted: bool, frame: bytes) -> None:
    codec = greeted() if is_greeted else native.NativeCodec(0, LIMITS)
    codec.decode(memoryview(frame))


def test_no_header_takes_more_memory_than_its_bytes() -> None:
    frames = [(is_greeted, len(header).to_bytes(4, "big") + header) for is_greeted, header in BOMBS.values()]
    for name, spent in zip(BOMBS, spent_by(decode_bomb, frames), strict=True):
        assert spent.error == ProtocolFault.__name__, name
        assert spent.peak_bytes < 1 << 20, name


def test_a_login_keeps_what_the_client_has_said() -> None:
    codec = native.NativeCodec(0, LIMITS, mechanisms=["PLAIN"])
    hello = memoryview(native.encode_frame(HELLO))[4:]
    assert codec.decode(hello) and codec.first_bytes_max == native.HELLO_BYTES_MAX
    after = codec.logged_in()
    assert after.client_id(hello) == HELLO[4].encode() and after.first_bytes_max == LIMITS.frame_bytes_max
    with pytest.raises(ProtocolFault):  # a second hello is none
        after.decode(hello)


def test_the_first_frame_is_small() -> None:
    """A peer that has not said hello cannot make us hold more than that; what follows it may be large."""
    codec = native.NativeCodec(0, LIMITS)
    hello = native.encode_frame(HELLO)
    memory = memoryview(hello + native.encode_frame(GOOD["produce"], 50_000) + bytes(50_000))
    frames, _ = split(memory, 0, len(memory), LIMITS.frame_bytes_max, codec.first_bytes_max)
    assert len(frames) == 2 and codec.decode(memory[slice(*frames[0])]) and codec.decode(memory[slice(*frames[1])])
    assert codec.first_bytes_max == LIMITS.frame_bytes_max == native.NativeCodec(0, LIMITS, True).first_bytes_max
    with pytest.raises(FrameTooLarge, match="limit 4096"):
        split(memoryview(b"\0\0\x10\x01"), 0, 4, LIMITS.frame_bytes_max, native.NativeCodec(0, LIMITS).first_bytes_max)
