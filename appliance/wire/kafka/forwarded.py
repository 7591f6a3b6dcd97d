"""Decodes and encodes forwarded requests with kafka-python's protocol package (:mod:`.protocol_package`,
:mod:`.definitions`).

Only the coordinator imports this module.  Usage::

    header, request = decode(frame)            # request.topics[0].name …: kafka-python's field names
    reply = encode({"error_code": 0, "groups": [...]}, *header.reply_to)

A response is a plain mapping, nested, with the field names of Kafka's message definitions in snake
case.  Fields that the version lacks are left out, and missing fields get the
default of the definition.  An unknown name is a KeyError: a bug of ours.  Requests are objects; a field that the
version lacks has its default.

kafka-python trusts its input.  So :mod:`.walk` checks each frame with the same definitions before it is decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from ...errors import ProtocolFault, UnsupportedVersion
from ...names import CLIENT_ID_CHARACTERS_MAX
from ..bounds import PARTS_MAX_MIN
from . import definitions
from .apis import APIS, SERVED_BY_WORKERS
from .protocol_package import admin, codecs, consumer, metadata, producer
from .reply import MESSAGE_CHARACTERS_MAX
from .walk import Walk, WalkPlan, plan_of

ELEMENTS_PER_PARTITION: Final = 4
"""Array elements for one partition in a request: its topic, itself, and the numbers of its brokers."""
ELEMENTS_MAX: Final = ELEMENTS_PER_PARTITION * PARTS_MAX_MIN

_PACKAGES: Final = (admin, consumer, metadata, producer, definitions)
_HEADER = struct.Struct(">hhih")
assert _HEADER.size == 10
_FRAME_HEAD = struct.Struct(">ii")
"""Of a reply: its size, without these 4 bytes, and the correlation id."""
assert _FRAME_HEAD.size == 8
_SIZE_BYTES: Final = 4


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
        message = getattr(package, name, None)
        if message is not None:
            return message
    raise AssertionError(f"kafka-python has no {name}; it is pinned, so the table in apis.py is wrong")


_REQUESTS: Final = {key: _message(f"{api.name}Request") for key, api in APIS.items() if key not in SERVED_BY_WORKERS}
_RESPONSES: Final = {key: _message(f"{api.name}Response") for key, api in APIS.items() if key not in SERVED_BY_WORKERS}


def decode(frame: bytes | memoryview, elements_max: int = ELEMENTS_MAX) -> tuple[Header, Any]:
    """Decode a request frame, without its size prefix, to its header and kafka-python's request object.

    ``elements_max`` bounds the elements of all arrays of the frame: each takes about 10 us and 400 bytes.

    Raises:
        ClientFault: the version is not advertised (UnsupportedVersion), or a field is too large: answer with
            :func:`encode_refusal` and its code.
        ProtocolFault: the request cannot be answered: close the connection.
    """
    data = memoryview(frame)
    try:
        header, position = _decode_header(data)
        request_class = _REQUESTS[header.api_key]
        walk = Walk(data, elements_max)
        if header.api_version >= APIS[header.api_key].flexible_from:
            position = walk.skip_tags(position)
        walk.skip_struct(_plan(header.api_key, header.api_version), position)
        walk.check_bounds()
        return header, request_class.decode(data[position:], version=header.api_version)
    except (struct.error, IndexError, ValueError) as error:
        raise ProtocolFault(f"malformed Kafka request: {error}") from error


def _decode_header(data: memoryview) -> tuple[Header, int]:
    key, version, correlation_id, client_id_size = _HEADER.unpack_from(data)
    api = APIS.get(key)
    if api is None or key in SERVED_BY_WORKERS:
        raise ProtocolFault(f"Kafka API {key} version {version} is not served: see ApiVersions")
    position = _HEADER.size + max(client_id_size, 0)
    if position > len(data):
        raise ProtocolFault(f"client id of {client_id_size} bytes in a frame of {len(data)}")
    if not api.version_min <= version <= api.version_max:
        raise UnsupportedVersion(
            f"{api.name} version {version}: {api.version_min} to {api.version_max} are, see ApiVersions"
        )
    client_id = str(data[_HEADER.size : position], "utf-8")[:CLIENT_ID_CHARACTERS_MAX]
    return Header(key, version, correlation_id, client_id), position


def encode(response: Mapping[str, Any], correlation_id: int, api_key: int, api_version: int) -> bytes:
    """Encode a reply frame, with its size prefix."""
    encoder = _encoder(api_key, api_version)
    with codecs.EncodeBufferPool.acquire() as out:
        out.pos = _FRAME_HEAD.size + len(encoder.rest_of_header)
        out.buf[_FRAME_HEAD.size : out.pos] = encoder.rest_of_header
        encoder.write(_Fields(**_values(encoder.definition, api_version, response)), out)
        out.buf[: _FRAME_HEAD.size] = _FRAME_HEAD.pack(out.pos - _SIZE_BYTES, correlation_id)
        return bytes(out.result())


class _Fields(SimpleNamespace):
    """The fields of a response, which has no tagged ones.

    kafka-python's own class for a response sets each of them by the definition, which takes twice as long as all else.
    """

    tags = unknown_tags = None


class _Encoder(NamedTuple):
    """``rest_of_header``: what follows the correlation id.  ``write``: kafka-python's, to a buffer of its pool."""

    definition: Any
    rest_of_header: bytes
    write: Callable[[Any, Any], None]


@lru_cache(maxsize=256)
def _encoder(api_key: int, version: int) -> _Encoder:
    """There is one for each API and advertised version."""
    assert 0 <= version <= APIS[api_key].version_max
    response_class = _RESPONSES[api_key]
    definition, flexible = response_class._struct, response_class.flexible_version_q(version)
    example = response_class(version=version)
    example.with_header(correlation_id=0)
    header = bytes(example.encode_header(flexible=flexible))
    write = definition.compiled_encode_into(version, compact=flexible, tagged=flexible)
    return _Encoder(definition, header[_FRAME_HEAD.size - _SIZE_BYTES :], write)


def encode_refusal(frame: bytes | memoryview, code: int) -> bytes:
    """Encode the reply to a refused request: ``code`` in the top-level error field of the response.

    A version above ours is answered in our highest one.  Raises ProtocolFault where the response has no such field: a
    Kafka broker closes the connection, too.
    """
    if len(frame) < _HEADER.size:
        raise ProtocolFault(f"frame of {len(frame)} bytes, shorter than a request header")
    key, version, correlation_id, _ = _HEADER.unpack_from(frame)
    response_class = _RESPONSES.get(key)
    if response_class is None or version < 0:
        raise ProtocolFault(f"Kafka API {key} version {version} is not served: see ApiVersions")
    version = min(version, APIS[key].version_max)
    if not any(field.name == "error_code" for field in response_class._struct.untagged_fields(version)):
        raise ProtocolFault(f"{APIS[key].name} version {version} is not served; its reply has no error code")
    return encode({"error_code": code}, correlation_id, key, version)


def _values(definition: Any, version: int, values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of one struct that ``version`` has.  Arrays of structs become tuples, in the order of the wire.

    kafka-python encodes tuples faster.  They cannot hold tagged fields; the served versions have one, CreateTopics'
    TopicConfigErrorCode, which stays 0.
    """
    names, fields = _layout(definition, version)
    if not values.keys() <= names:
        raise KeyError(f"{definition._name} has no field {', '.join(sorted(values.keys() - names))}")
    out: dict[str, Any] = {}
    for name, default, inner in fields:
        value = values.get(name, default)
        if name == "error_message" and value:
            value = value[:MESSAGE_CHARACTERS_MAX]
        if inner is not None and value is not None:
            if inner.is_struct_array():
                value = [tuple(_values(inner.array_of, version, item).values()) for item in value]
            else:
                value = inner(version=version, **_values(inner, version, value))
        out[name] = value
    return out


_Layout = tuple[frozenset[str], list[tuple[str, Any, Any]]]
_LAYOUTS: Final[dict[tuple[int, int], _Layout]] = {}
"""By identity and version of a definition.  The definitions live for ever, so this is bounded by their number."""


def _layout(definition: Any, version: int) -> _Layout:
    """All names of the struct's fields, and (name, default, definition) of its untagged fields in ``version``.

    The definition is None except for structs and arrays of structs.  The default of an error message is null.
    """
    layout = _LAYOUTS.get((id(definition), version))
    if layout is None:
        fields = [
            (
                field.name,
                None if field.name == "error_message" and field.nullable_for_version_q(version) else field.default,
                field if field.is_struct_array() or field.is_struct() else None,
            )
            for field in definition.untagged_fields(version)
        ]
        layout = _LAYOUTS[id(definition), version] = frozenset(definition.fields), fields
    return layout


@lru_cache(maxsize=256)
def _plan(api_key: int, version: int) -> WalkPlan:
    """How to walk over a request; there is one plan for each API and advertised version."""
    return plan_of(_REQUESTS[api_key]._struct, api_key, version, version >= APIS[api_key].flexible_from)
