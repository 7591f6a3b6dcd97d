"""appliance.records.avro: values as the specification encodes them; other bytes are refused."""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import BadValue
from appliance.records.avro import DEPTH_MAX, ITEMS_MAX, AvroSchema, NotEncoded


def schema(value: Any) -> AvroSchema:
    return AvroSchema(json.dumps(value).encode())


PAIR = {"type": "record", "name": "test", "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}]}
LIST = {"type": "record", "name": "LongList", "fields": [{"name": "next", "type": ["null", "LongList"]}]}


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        ("string", b"\x06foo", "foo"),
        (PAIR, b"\x36\x06foo", {"a": 27, "b": "foo"}),
        ({"type": "array", "items": "long"}, b"\x04\x06\x36\x00", [3, 27]),
        ({"type": "array", "items": "long"}, b"\x03\x04\x06\x36\x00", [3, 27]),
        ({"type": "map", "values": "boolean"}, b"\x02\x02a\x01\x00", {"a": True}),
        (["null", "string"], b"\x00", None),
        (["null", "string"], b"\x02\x02a", "a"),
        ({"type": "enum", "name": "Foo", "symbols": ["A", "B", "C", "D"]}, b"\x06", "D"),
        ({"type": "fixed", "name": "f", "size": 2}, b"\x00\xff", b64encode(b"\x00\xff").decode()),
        ("bytes", b"\x04\x00\xff", b64encode(b"\x00\xff").decode()),
        ("double", struct.pack("<d", -0.5), -0.5),
        ("float", struct.pack("<f", 0.25), 0.25),
        ("long", b"\x7f", -64),
        ("long", b"\x80\x01", 64),
        ({"type": "long", "logicalType": "timestamp-millis"}, b"\x02", 1),
        (LIST, b"\x02\x02\x00", {"next": {"next": {"next": None}}}),
    ],
)  # fmt: skip
def test_the_encoding_is_that_of_the_specification(kind: Any, data: bytes, value: Any) -> None:
    """The first ones are its examples."""
    assert schema(kind).decode(data) == value
    for cut in range(len(data)):
        with pytest.raises(NotEncoded):
            schema(kind).decode(data[:cut])
    with pytest.raises(NotEncoded, match="left behind"):
        schema(kind).decode(data + b"\x00")


def test_names_are_found_in_their_namespaces() -> None:
    inner = {"type": "enum", "name": "Kind", "symbols": ["x"]}
    fields = [{"name": "one", "type": inner}, {"name": "two", "type": "Kind"}, {"name": "three", "type": "shop.Kind"}]
    kind = {"type": "record", "name": "Order", "namespace": "shop", "fields": fields}
    assert schema(kind).decode(b"\x00\x00\x00") == {"one": "x", "two": "x", "three": "x"}


KINDS = st.recursive(
    st.sampled_from(["null", "boolean", "int", "long", "bytes", "string"]),
    lambda inner: st.one_of(
        inner.map(lambda one: {"type": "array", "items": one}), inner.map(lambda one: {"type": "map", "values": one})
    ),
)


@given(KINDS, st.binary(max_size=40))
def test_any_bytes_are_a_value_or_refused(kind: Any, data: bytes) -> None:
    try:
        json.dumps(schema(kind).decode(data))
    except NotEncoded:
        pass


def test_what_would_cost_much_is_refused() -> None:
    nulls = schema({"type": "array", "items": "null"})
    assert len(nulls.decode(b"\xc8\x01\x00")) == 100
    for many in (b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f", b"\xff" * 9 + b"\x01"):
        with pytest.raises(NotEncoded, match=f"more than {ITEMS_MAX}|64 bits"):
            nulls.decode(many + b"\x00")
    with pytest.raises(NotEncoded, match="within each other"):
        schema(LIST).decode(b"\x02" * (DEPTH_MAX + 1) + b"\x00")
    with pytest.raises(NotEncoded, match="too early"):
        schema("bytes").decode(b"\xfe\xff\xff\xff\x0f")


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{}", b"5", b'"Unknown"', b'{"type": "array"}', b"[" * 100_000, b'{"type": 5}', b"\xff"),
        b'{"type": "fixed", "name": "f", "size": "x"}',
    ],
)
def test_what_is_no_schema_is_refused(text: bytes) -> None:
    with pytest.raises(BadValue, match=r"^is no Avro schema: (?!is no)"):
        AvroSchema(text)
