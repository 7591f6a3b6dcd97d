"""Random Kafka messages by kafka-python's definitions, and kio as the independent opinion on their bytes."""

from __future__ import annotations

import io
import random
import uuid
from collections.abc import Mapping
from typing import Any

from kafka.protocol import admin, consumer, metadata, producer, sasl
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from appliance.names import is_topic
from appliance.wire.kafka import definitions
from appliance.wire.kafka.apis import APIS
from appliance.wire.kafka.metadata_reply import NO_ID
from appliance.wire.kafka.primitives import NO_TOPIC

from . import newer_messages

SEEDS = range(8)
EDGES = range(7)
ERROR_CODES = (0, 0, 3, 15, 25, 36)


def message(api_key: int, kind: str) -> Any:
    """kafka-python's class, or ours of newer versions; ``kind`` is Request or Response."""
    name = APIS[api_key].name + kind
    packages = (newer_messages, admin, consumer, metadata, producer, sasl, definitions)
    return next(getattr(package, name) for package in packages if hasattr(package, name))


def name_read(name: str) -> str:
    """What our decoders make of a topic's name."""
    return name if is_topic(name) else NO_TOPIC


class Edge(random.Random):
    """Chooses the same of the values at hand in each field: zeros, empty ones, the greatest, one past a length."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self._number = number

    def choice(self, seq: Any) -> Any:
        return seq[self._number % len(seq)]


def random_values(definition: Any, version: int, rng: random.Random) -> dict[str, Any]:
    """A value for every untagged field of the struct in this version; nested structs as dicts."""
    return {field.name: _value(field, version, rng) for field in definition.untagged_fields(version)}


def _value(field: Any, version: int, rng: random.Random) -> Any:
    if field.nullable_for_version_q(version) and rng.random() < 0.2:
        return None
    if field.is_struct():
        return random_values(field, version, rng)
    if field.is_struct_array():
        return [random_values(field.array_of, version, rng) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    if field.is_array():
        return [_simple(field.array_of, rng) for _ in range(rng.choice((0, 1, 2, 130)))]
    return _simple(field, rng)


def _simple(field: Any, rng: random.Random) -> Any:
    kind = field._type_str.removeprefix("[]")
    if field.name.endswith("error_code"):
        return rng.choice(ERROR_CODES)
    if field.name.endswith("_ms"):
        return rng.choice((0, 1, 30_000))
    if kind == "string":
        return rng.choice(("", "a", "topic-name", "größer", "n" * 126, "n" * 127, "n" * 249))
    if kind in ("bytes", "records"):
        return rng.randbytes(rng.choice((0, 1, 126, 127, 20_000)))
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "float64":
        return rng.choice((0.0, -1.5, 1e300))
    if kind == "uuid":
        return rng.choice((NO_ID, uuid.UUID(int=rng.getrandbits(128))))
    if kind == "bitfield":
        return None
    bits = int(kind.removeprefix("u").removeprefix("int")) - 1
    return rng.choice((0, 1, -1, 5, 2**bits - 1, -(2**bits), rng.randrange(2**bits)))


def build(definition: Any, version: int, values: dict[str, Any], cls: Any) -> Any:
    """kafka-python's object for the values."""
    fields: dict[str, Any] = {}
    for field in definition.untagged_fields(version):
        value = values[field.name]
        if value is not None and field.is_struct_array():
            value = [build(field.array_of, version, item, field.data_class) for item in value]
        if value is not None and field.is_struct():
            value = build(field, version, value, field.data_class)
        fields[field.name] = None if value == NO_ID else value  # as kafka-python reads zeros
    return cls(version=version, **fields)


def fill(definition: Any, version: int, values: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` with the definition's defaults for the fields of this version that are not given."""
    names = {field.name for field in definition.untagged_fields(version)}
    assert values.keys() <= set(definition.fields), values.keys() - set(definition.fields)
    filled: dict[str, Any] = {}
    for field in definition.untagged_fields(version):
        value = values.get(field.name, field.default)
        if field.is_struct_array() and value is not None:
            value = [fill(field.array_of, version, item) for item in value]
        if field.is_struct() and value is not None:
            value = fill(field, version, value)
        filled[field.name] = value
    assert names == filled.keys()
    return filled


def request_frame(
    api_key: int,
    version: int,
    values: dict[str, Any],
    correlation_id: int = 7,
    client_id: str | None = "test",
) -> bytes:
    """A request as a client sends it, without the size prefix."""
    cls = message(api_key, "Request")
    request = build(cls._struct, version, values, cls)
    request.with_header(correlation_id=correlation_id, client_id=client_id)
    return bytes(request.encode(header=True))


def response_frame(api_key: int, version: int, values: dict[str, Any], correlation_id: int = 7) -> bytes:
    """A reply as kafka-python would send it, size prefix included."""
    cls = message(api_key, "Response")
    response = build(cls._struct, version, values, cls)
    response.with_header(correlation_id=correlation_id)
    return bytes(response.encode(header=True, framed=True))


def decode_response(api_key: int, version: int, frame: bytes) -> Any:
    """A reply, size prefix included, as kafka-python reads it."""
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return message(api_key, "Response").decode(frame, version=version, header=True, framed=True)


def mutated(frame: bytearray, rng: random.Random) -> bytearray:
    """The API key stays, so that every API is hit; one to four bytes, a cut or an insertion elsewhere."""
    out = bytearray(frame)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(2, max(len(out), 3))
        match rng.randrange(4):
            case 0 if place < len(out):
                out[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 1:
                out[place : place + rng.randint(1, 8)] = b""
            case 2:
                out[place:place] = rng.randbytes(rng.randint(1, 8))
            case _:
                out[place : place + 4] = rng.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xfe", b"\xff" * 4))
    return out


def kio_request_again(api_key: int, version: int, frame: bytes) -> bytes:
    """What kio makes of a request frame, encoded by kio again: must be the same bytes."""
    return _again(load_request_schema(api_key, version), frame)


def kio_response_again(api_key: int, version: int, frame: bytes) -> bytes:
    """The same for a reply; ``frame`` with its size prefix."""
    return frame[:4] + _again(load_response_schema(api_key, version), frame[4:])


def _again(schema: Any, frame: bytes) -> bytes:
    header, header_bytes = entity_reader(schema.__header_schema__)(frame, 0)
    body, body_bytes = entity_reader(schema)(frame, header_bytes)
    assert header_bytes + body_bytes == len(frame)
    out = io.BytesIO()
    entity_writer(schema.__header_schema__)(out, header)
    entity_writer(schema)(out, body)
    return out.getvalue()
