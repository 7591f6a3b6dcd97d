"""The APIs that need no speed, through kafka-python's protocol package: the only module that imports it.

Imported in the coordinator only (it costs 138 ms and 25 MB).  Usage::

    header, request = decode(frame)            # request.topics[0].name …: kafka-python's field names
    reply = encode({"error_code": 0, "groups": [...]}, *header.reply_to)

A response is a plain mapping, nested, with the field names of Kafka's message definitions in snake
case.  Fields that the version does not have are left out, missing ones get the default of the definition,
unknown names are a KeyError (our bug).  Requests are objects; a field that the version does not have reads as
its default.

kafka-python trusts its input: a negative length moves backwards, a varint never ends, a string beyond the
frame is silently short, and every tagged field copies the rest of the frame.  So each frame is first walked
over with the same definitions (:class:`_Walk`): every length and count is checked against the bytes that
are there, nulls against what the definition allows, and the elements of all arrays of one frame are at most
:data:`ELEMENTS_MAX`; only then is it decoded.  ``tests/test_wire_kafka_cold.py`` shows that what passes the
walk decodes, in bounded memory and time.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from kafka.protocol import admin, consumer, metadata, producer
from kafka.protocol.schemas.fields.codecs import String

from ...errors import ProtocolFault, UnsupportedVersion
from .apis import APIS, HOT

ELEMENTS_MAX: Final = 200_000
"""Array elements in one frame, of all its arrays together; a hundred bytes each once decoded."""
TAGS_MAX: Final = 100
"""Tagged fields in one frame.  No client sends any in these APIs; newer ones may."""
VARINT_BYTES_MAX: Final = 5

_PACKAGES: Final = (admin, consumer, metadata, producer)
_HEADER = struct.Struct(">hhih")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
assert _HEADER.size == 10


class Header(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str

    @property
    def reply_to(self) -> tuple[int, int, int]:
        """The last arguments of :func:`encode`."""
        return self.correlation_id, self.api_key, self.api_version


def _message(name: str) -> Any:
    for package in _PACKAGES:
        found = getattr(package, name, None)
        if found is not None:
            return found
    raise AssertionError(f"kafka-python has no {name}; it is pinned, so the table in apis.py is wrong")


_REQUESTS: Final = {key: _message(f"{api.name}Request") for key, api in APIS.items() if key not in HOT}
_RESPONSES: Final = {key: _message(f"{api.name}Response") for key, api in APIS.items() if key not in HOT}


def decode(frame: bytes | memoryview) -> tuple[Header, Any]:
    """One request frame without its size prefix → its header and kafka-python's request object.

    Raises:
        UnsupportedVersion: a known API in a version that is not advertised: answer :func:`encode_refusal`.
        ProtocolFault: not a request that can be answered: close the connection.
    """
    data = memoryview(frame)
    try:
        header, position = _decode_header(data)
        request_class = _REQUESTS[header.api_key]
        walk = _Walk(data)
        if header.api_version >= APIS[header.api_key].flexible_from:
            position = walk.skip_tags(position)
        walk.skip_struct(_plan(header.api_key, header.api_version), position)
        return header, request_class.decode(data[position:], version=header.api_version)
    except (struct.error, IndexError, ValueError) as error:
        raise ProtocolFault(f"malformed Kafka request: {error}") from error


def _decode_header(data: memoryview) -> tuple[Header, int]:
    key, version, correlation_id, client_id_size = _HEADER.unpack_from(data)
    api = APIS.get(key)
    if api is None or key in HOT:
        raise ProtocolFault(f"Kafka API {key} version {version} is not served; ApiVersions lists what is")
    position = _HEADER.size + max(client_id_size, 0)
    if position > len(data):
        raise ProtocolFault(f"client id of {client_id_size} bytes in a frame of {len(data)}")
    if not api.version_min <= version <= api.version_max:
        raise UnsupportedVersion(
            f"{api.name} version {version}: {api.version_min} to {api.version_max} are, see ApiVersions"
        )
    client_id = str(data[_HEADER.size : position], "utf-8")
    return Header(key, version, correlation_id, client_id), position


def encode(response: Mapping[str, Any], correlation_id: int, api_key: int, api_version: int) -> bytes:
    """A reply frame, size prefix included."""
    assert 0 <= api_version <= APIS[api_key].version_max
    response_class = _RESPONSES[api_key]
    fields = _values(response_class._struct, api_version, response)
    message = response_class(version=api_version, **fields)
    message.with_header(correlation_id=correlation_id)
    return bytes(message.encode(header=True, framed=True))


def encode_refusal(frame: bytes | memoryview, code: int) -> bytes:
    """The reply to a request whose version is not advertised: ``code`` in the response's top-level error
    field.

    A version above ours is answered in our highest one.  Raises ProtocolFault where the response has no such
    field: a Kafka broker closes the connection, too.
    """
    if len(frame) < _HEADER.size:
        raise ProtocolFault(f"frame of {len(frame)} bytes, shorter than a request header")
    key, version, correlation_id, _ = _HEADER.unpack_from(frame)
    response_class = _RESPONSES.get(key)
    if response_class is None or version < 0:
        raise ProtocolFault(f"Kafka API {key} version {version} is not served; ApiVersions lists what is")
    version = min(version, APIS[key].version_max)
    if not any(field.name == "error_code" for field in response_class._struct.untagged_fields(version)):
        raise ProtocolFault(f"{APIS[key].name} version {version} is not served; its reply has no error code")
    return encode({"error_code": code}, correlation_id, key, version)


def _values(definition: Any, version: int, values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of one struct that ``version`` has, arrays of structs turned into tuples in the wire's
    order.

    Tuples are kafka-python's fast path for arrays; they cannot carry tagged fields, of which the served
    versions have one (CreateTopics' TopicConfigErrorCode, 0 by default).
    """
    names, fields = _layout(definition, version)
    if not values.keys() <= names:
        raise KeyError(f"{definition._name} has no field {', '.join(sorted(values.keys() - names))}")
    out: dict[str, Any] = {}
    for name, default, inner in fields:
        value = values.get(name, default)
        if inner is not None and value is not None:
            value = [tuple(_values(inner, version, item).values()) for item in value]
        out[name] = value
    return out


_Layout = tuple[frozenset[str], list[tuple[str, Any, Any]]]
_LAYOUTS: Final[dict[tuple[int, int], _Layout]] = {}
"""By identity and version of a definition; as many as there are definitions, which live for ever."""


def _layout(definition: Any, version: int) -> _Layout:
    """All names of the struct's fields; name, default and, of an array of structs, the elements' definition
    of the untagged ones in ``version``."""
    layout = _LAYOUTS.get((id(definition), version))
    if layout is None:
        fields = [
            (field.name, field.default, field.array_of if field.is_struct_array() else None)
            for field in definition.untagged_fields(version)
        ]
        layout = _LAYOUTS[id(definition), version] = frozenset(definition.fields), fields
    return layout


# The walk over a request before it is decoded.


class _Step(NamedTuple):
    """One field: ``size`` > 0 bytes, or else a length (of ``element`` None: bytes) or count and what it
    counts."""

    name: str
    nullable: bool
    size: int = 0
    length_bytes: int = 0
    """2 or 4; 0 = a varint that holds length + 1."""
    element: _Plan | None = None


class _Plan(NamedTuple):
    steps: tuple[_Step, ...]
    flexible: bool


@lru_cache(maxsize=256)
def _plan(api_key: int, version: int) -> _Plan:
    return _struct_plan(_REQUESTS[api_key]._struct, version, version >= APIS[api_key].flexible_from)


def _struct_plan(definition: Any, version: int, flexible: bool) -> _Plan:
    steps = [_field_step(field, version, flexible) for field in definition.untagged_fields(version)]
    return _Plan(tuple(steps), flexible)


def _field_step(field: Any, version: int, flexible: bool) -> _Step:
    nullable = field.nullable_for_version_q(version)
    length_bytes = 0 if flexible else 4
    if field.is_struct_array():
        return _Step(field.name, nullable, 0, length_bytes, _struct_plan(field.array_of, version, flexible))
    if field.is_array():
        step = _field_step(field.array_of, version, flexible)._replace(nullable=False)
        element = _Plan((step,), flexible=False)
        return _Step(field.name, nullable, 0, length_bytes, element)
    assert not field.is_struct(), "no served request has a struct outside an array"
    if isinstance(field._type.size, int):
        return _Step(field.name, nullable, field._type.size)
    if isinstance(field._type, String) and not flexible:
        length_bytes = 2
    return _Step(field.name, nullable, 0, length_bytes)


class _Walk:
    """Steps over one frame.  Raises ProtocolFault, IndexError or struct.error where it is malformed."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._elements_left = ELEMENTS_MAX
        self._tags_left = TAGS_MAX

    def skip_struct(self, plan: _Plan, position: int) -> int:
        for step in plan.steps:
            if step.size:
                position += step.size
                continue
            length, position = self._length(step, position)
            if step.element is None:
                position += length
            else:
                self._elements_left -= length
                if self._elements_left < 0:
                    raise ProtocolFault(f"more than {ELEMENTS_MAX} array elements in one request")
                for _ in range(length):
                    position = self.skip_struct(step.element, position)
        if plan.flexible:
            position = self.skip_tags(position)
        if position > len(self._data):
            raise ProtocolFault(f"request needs {position} bytes, its frame has {len(self._data)}")
        return position

    def skip_tags(self, position: int) -> int:
        count, position = self._varint(position)
        self._tags_left -= count
        if self._tags_left < 0:
            raise ProtocolFault(f"more than {TAGS_MAX} tagged fields in one request")
        for _ in range(count):
            _, position = self._varint(position)
            size, position = self._varint(position)
            position += size
        return position

    def _length(self, step: _Step, position: int) -> tuple[int, int]:
        """The length or count at ``position``, 0 for null; every element takes a byte at least."""
        if step.length_bytes == 0:
            length, position = self._varint(position)
            length -= 1
        else:
            length = (_I16 if step.length_bytes == 2 else _I32).unpack_from(self._data, position)[0]
            position += step.length_bytes
        if length == -1 and step.nullable:
            return 0, position
        if not 0 <= length <= len(self._data) - position:
            raise ProtocolFault(f"{step.name}: length {length}, {len(self._data) - position} bytes are left")
        return length, position

    def _varint(self, position: int) -> tuple[int, int]:
        value = 0
        for shift in range(0, 7 * VARINT_BYTES_MAX, 7):
            byte = self._data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position
        raise ProtocolFault(f"varint longer than {VARINT_BYTES_MAX} bytes")
