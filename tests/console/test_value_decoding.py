"""appliance.console.value_decoding: values become JSON by their topic's rule, and nothing that is masked is left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory

from appliance.client import Message
from appliance.config import load
from appliance.console import message_search
from appliance.console.message_search import Query
from appliance.console.value_decoding import DECODED_BYTES_MAX, VALUE_BYTES_MAX, MessageViews
from appliance.errors import BadValue, InvalidRequest
from appliance.security.field_masks import FieldMasks

from .test_download import OneLog
from .test_message_search import search

PAYMENT = {
    "type": "record",
    "name": "Payment",
    "fields": [{"name": "id", "type": "long"}, {"name": "card", "type": "string"}],
}
RECORD = b"\x0e\x084111"
"""Payment 7 by card 4111."""


def descriptors() -> descriptor_pb2.FileDescriptorSet:
    """What protoc writes for a message shop.Order."""
    found = descriptor_pb2.FileDescriptorSet()
    file = found.file.add(name="shop.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    for number, (name, kind) in enumerate((("order_id", 3), ("card", 9)), 1):
        order.field.add(name=name, number=number, type=kind, label=1)  # type: ignore[arg-type]
    return found


def encoded_order() -> bytes:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptors().file:
        pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    encoded: bytes = kind(order_id=7, card="4111").SerializeToString()
    return encoded


def enclosed(type_name: str) -> tuple[bytes, bytes]:
    """Descriptors of a message shop.Parcel with a field of any type, and one that has an order of this type in it."""
    files = descriptors()
    files.file.add().ParseFromString(any_pb2.DESCRIPTOR.serialized_pb)
    file = files.file.add(
        name="parcel.proto", package="shop", syntax="proto3", dependency=["google/protobuf/any.proto"]
    )
    parcel = file.message_type.add(name="Parcel")
    parcel.field.add(name="inside", number=1, type=11, label=1, type_name=".google.protobuf.Any")  # type: ignore[arg-type]
    inside = any_pb2.Any(type_url=f"type.googleapis.com/{type_name}", value=encoded_order()).SerializeToString()
    return files.SerializeToString(), bytes([10, len(inside)]) + inside


def test_a_message_of_any_type_is_masked_or_hidden(tmp_path: Path) -> None:
    for name, value in (("shop.Order", {"order_id": "7", "card": "***"}), ("shop.Unheard", None)):
        text, parcel = enclosed(name)
        file = tmp_path / f"{name}.desc"
        file.write_bytes(text)
        decoded = shown(f"p: {file}#shop.Parcel", "p", parcel, "p: card")
        assert decoded is not None
        if value is None:
            assert decoded == b"***"
        else:
            assert json.loads(decoded)["inside"] == {"@type": f"type.googleapis.com/{name}", **value}


@pytest.fixture
def rules(tmp_path: Path) -> str:
    (tmp_path / "payment.avsc").write_text(json.dumps(PAYMENT))
    (tmp_path / "shop.desc").write_bytes(descriptors().SerializeToString())
    return f"m-*: msgpack; payments: {tmp_path}/payment.avsc; shop-*: {tmp_path}/shop.desc#shop.Order"


def shown(rules: str, topic: str, value: bytes | None, masks: str = "") -> bytes | None:
    view = MessageViews(rules, FieldMasks(masks)).view_of_topic(topic)
    return view.show_message(Message(topic, 0, 0, 0, None, value, ())).value


CASES: list[tuple[str, bytes, dict[str, Any]]] = [
    ("m-1", msgspec.msgpack.encode({"id": 7, "card": "4111"}), {"id": 7, "card": "4111"}),
    ("payments", RECORD, {"id": 7, "card": "4111"}),
    ("payments", b"\0\0\0\0\x05" + RECORD, {"id": 7, "card": "4111"}),
    ("payments", b"\xc3\x01" + bytes(8) + RECORD, {"id": 7, "card": "4111"}),
    ("payments", b"\x00\x00", {"id": 0, "card": ""}),
    ("shop-a", encoded_order(), {"order_id": "7", "card": "4111"}),
    ("shop-a", b"\0\0\0\0\x05\0" + encoded_order(), {"order_id": "7", "card": "4111"}),
    ("shop-a", b"\0\0\0\0\x05\x02\x00" + encoded_order(), {"order_id": "7", "card": "4111"}),
]


@pytest.mark.parametrize(("topic", "value", "expected"), CASES)
def test_values_become_json_and_are_masked_as_such(rules: str, topic: str, value: bytes, expected: Any) -> None:
    decoded = shown(rules, topic, value)
    assert decoded is not None and json.loads(decoded) == expected
    masked = shown(rules, topic, value, "*: card")
    assert masked is not None and json.loads(masked) == expected | {"card": "***"}


LONG = b"x" * (VALUE_BYTES_MAX + 1)


@pytest.mark.parametrize(
    ("topic", "value"),
    [
        *(("m-1", b"\xc1"), ("m-1", b"\x92\x01"), ("m-1", LONG)),
        *(("payments", b"\x0e\x0841"), ("payments", RECORD + b"\0"), ("payments", LONG)),
        *(("shop-a", b"\0\0"), ("shop-a", b"\x08"), ("shop-a", LONG)),
    ],
)
def test_what_cannot_be_decoded_stays_or_is_hidden(rules: str, topic: str, value: bytes) -> None:
    """Such bytes have no names, so nobody could find in them what a mask hides."""
    assert shown(rules, topic, value) is value
    assert shown(rules, topic, value, "*: card") == b"***"
    assert shown(rules, topic, None, "*: card") is None
    assert shown(rules, "other", value) is value


def test_bytes_with_what_is_masked_are_hidden() -> None:
    """As base64 nobody would find them by name."""
    for key, raw in (("raw", b'{"card": 4111}'), (b"card", "4111")):
        value = msgspec.msgpack.encode({key: raw, "id": 1})
        masked = shown("*: msgpack", "metrics", value, "*: card")
        assert masked is not None and list(json.loads(masked).values()) == ["***", 1]


def test_a_search_looks_at_what_is_shown(rules: str) -> None:
    log = OneLog(*(Message("web", 0, 0, 5, None, value, ()) for value in (RECORD, b"\x10\x084112")))
    view = MessageViews(rules, FieldMasks("")).view_of_topic("payments")
    for asked in ({"field": "id=7"}, {"text": '"4111"'}, {"match": '"id":7'}):
        found = search(Query(topics="web", **asked), log, view=view).step().messages  # type: ignore[arg-type]
        assert [message.value for message in found] == [b'{"id":7,"card":"4111"}']


@pytest.mark.parametrize("text", ["", "item"])
@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_values_that_become_much_longer_end_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: Any, text: str
) -> None:
    """Three bytes may say that there are 1,000 items, each with a name."""
    file = tmp_path / "items.avsc"
    item = {"type": "record", "name": "item", "fields": [{"name": "item", "type": "null"}]}
    file.write_text(json.dumps({"type": "array", "items": item}))
    view = MessageViews(f"*: {file}", FieldMasks("")).view_of_topic("web")
    log = OneLog(*(Message("web", 0, 0, 5, None, b"\xd0\x0f\x00", ()) for _ in range(5)))
    monkeypatch.setattr(message_search, "UNPACKED_BYTES_MAX", 28_000)
    offsets: list[int] = []
    query = Query(topics="web", order=order, text=text)
    while len(offsets) < 5:
        found = search(query, log, view=view).step()
        assert 1 <= len(found.messages) <= 2 and all(len(one.value or b"") == 14_001 for one in found.messages)
        offsets += [message.offset for message in found.messages]
        query = Query(topics="web", order=order, text=text, cursor=found.cursor)
    assert offsets == sorted({39, 79, 119, 159, 199}, reverse=order == "newest")


def test_a_value_that_would_become_too_long_stays(tmp_path: Path) -> None:
    file = tmp_path / "items.avsc"
    item = {"type": "enum", "name": "item", "symbols": ["x" * 2_000]}
    file.write_text(json.dumps({"type": "array", "items": item}))
    for count, is_decoded in ((500, True), (1_000, False)):
        value = bytes([count * 2 & 0x7F | 0x80, count >> 6]) + bytes(count + 1)
        message = Message("web", 0, 0, 5, None, value, ())
        shown_value = MessageViews(f"*: {file}", FieldMasks("")).view_of_topic("web").show_message(message).value
        assert (shown_value != value) is is_decoded and len(shown_value or b"") <= DECODED_BYTES_MAX


def test_a_file_is_read_again_when_it_has_changed(rules: str, tmp_path: Path) -> None:
    views = MessageViews(rules, FieldMasks(""))
    assert views.view_of_topic("payments").decode is views.view_of_topic("payments").decode
    file = tmp_path / "payment.avsc"
    file.write_text('"long"')
    assert views.view_of_topic("payments").show_message(Message("payments", 0, 0, 0, None, b"\x0e", ())).value == b"7"
    file.write_text("{")
    with pytest.raises(InvalidRequest, match=r"payment\.avsc: is no Avro schema"):
        views.view_of_topic("payments")
    file.unlink()
    with pytest.raises(InvalidRequest, match="No such file"):
        views.view_of_topic("payments")
    with pytest.raises(InvalidRequest, match=r"has no message shop\.None"):
        MessageViews(f"*: {tmp_path}/shop.desc#shop.None", FieldMasks("")).view_of_topic("web")


@pytest.mark.parametrize(
    "text", ["x", "x: json", "x: order.avsc", "x: /a.avsc#Name", "x: /a.desc", "x y: msgpack", "x:"]
)
def test_wrong_rules_are_refused(text: str) -> None:
    with pytest.raises(BadValue, match=r"console\.decode"):
        load(None, [f"console.decode={text}"])
