"""Reads Avro's binary encoding by a schema (Avro 1.12 specification, *Binary encoding*), as values that JSON has.

Bytes and fixed become base64, logical types the number or text below them.  A value is read whole or not at all.

Bounds: ITEMS_MAX values of any type, since an array of a billion nulls takes four bytes; DEPTH_MAX values within each
other, since a schema may contain itself.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from ..errors import BadValue

ITEMS_MAX: Final = 100_000
DEPTH_MAX: Final = 64
SCHEMA_BYTES_MAX: Final = 1 << 20
_PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})


class NotEncoded(ValueError):
    """The bytes are no value of the schema, or one beyond the bounds."""


class AvroSchema:
    """A schema, which :func:`decode` reads values by."""

    def __init__(self, text: bytes) -> None:
        """Raises BadValue: says what is wrong with the schema."""
        self._named: dict[str, Any] = {}
        try:
            if len(text) > SCHEMA_BYTES_MAX:
                raise BadValue(f"has more than {SCHEMA_BYTES_MAX} bytes")
            self._root = self._checked(msgspec.json.decode(text), "")
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # also a size that is no number
            raise BadValue(f"is no Avro schema: {error}") from None
        except (KeyError, TypeError, AttributeError) as error:
            raise BadValue(f"is no Avro schema: {type(error).__name__} {error}") from None

    def _checked(self, schema: Any, space: str) -> Any:
        """The schema with full names, and each name known before it is used."""
        if isinstance(schema, list):
            return [self._checked(branch, space) for branch in schema]
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return schema
            name = schema if "." in schema or not space else f"{space}.{schema}"
            if name not in self._named and schema in self._named:
                name = schema
            if name not in self._named:
                raise BadValue(f"is no Avro schema: there is no type {schema!r:.100}")
            return ("named", name)
        kind = schema["type"]
        if kind not in _NAMED:
            if kind == "array":
                return {"type": kind, "items": self._checked(schema["items"], space)}
            if kind == "map":
                return {"type": kind, "values": self._checked(schema["values"], space)}
            return self._checked(kind, space)
        name, space = _full_name(schema, space)
        checked: dict[str, Any] = {"type": kind}
        self._named[name] = checked
        if kind == "enum":
            checked["symbols"] = [str(symbol) for symbol in schema["symbols"]]
        elif kind == "fixed":
            checked["size"] = int(schema["size"])
        else:
            checked["fields"] = [
                (str(field["name"]), self._checked(field["type"], space)) for field in schema["fields"]
            ]
        return ("named", name)

    def decode(self, data: bytes) -> Any:
        """The value that is all of these bytes.

        Raises:
            NotEncoded: they are none.
        """
        reader = _Reader(data, self._named)
        value = reader.value(self._root, 0)
        if reader.at != len(data):
            raise NotEncoded("bytes are left behind the value")
        return value


def _full_name(schema: Mapping[str, Any], space: str) -> tuple[str, str]:
    """Name and namespace of a named type."""
    name = str(schema["name"])
    if "." in name:
        return name, name.rpartition(".")[0]
    space = str(schema.get("namespace", space))
    return (f"{space}.{name}" if space else name), space


class _Reader:
    def __init__(self, data: bytes, named: Mapping[str, Any]) -> None:
        self._data, self._named = data, named
        self.at = 0
        self._items = 0

    def value(self, schema: Any, depth: int) -> Any:
        self._items += 1
        if self._items > ITEMS_MAX or depth > DEPTH_MAX:
            raise NotEncoded(f"more than {ITEMS_MAX} values, or {DEPTH_MAX} within each other")
        if isinstance(schema, str):
            return self._PRIMITIVE[schema](self)
        if isinstance(schema, tuple):
            schema = self._named[schema[1]]
        if isinstance(schema, list):
            return self.value(schema[self._index(len(schema))], depth + 1)
        match schema["type"]:
            case "array":
                return [self.value(schema["items"], depth + 1) for _ in self._blocks()]
            case "map":
                return {self._string(): self.value(schema["values"], depth + 1) for _ in self._blocks()}
            case "enum":
                return schema["symbols"][self._index(len(schema["symbols"]))]
            case "fixed":
                return b64encode(self._take(schema["size"])).decode()
        return {name: self.value(kind, depth + 1) for name, kind in schema["fields"]}

    def _blocks(self) -> Any:
        """Counts the items of an array or map, block by block."""
        while count := self._long():
            if count < 0:  # the size of the block follows, for who wants to step over it
                count = -count
                self._long()
            for _ in range(count):
                yield None

    def _take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self._data):
            raise NotEncoded("the bytes end too early")
        self.at += size
        return self._data[self.at - size : self.at]

    def _long(self) -> int:
        result = shift = 0
        while True:
            byte = self._take(1)[0]
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (result >> 1) ^ -(result & 1)
            shift += 7
            if shift > 63:
                raise NotEncoded("a number has more than 64 bits")

    def _index(self, count: int) -> int:
        index = self._long()
        if not 0 <= index < count:
            raise NotEncoded("no such branch or symbol")
        return index

    def _string(self) -> str:
        try:
            return self._take(self._long()).decode()
        except UnicodeDecodeError:
            raise NotEncoded("a string is no UTF-8") from None

    def _boolean(self) -> bool:
        byte = self._take(1)[0]
        if byte > 1:
            raise NotEncoded("no boolean")
        return byte == 1

    _PRIMITIVE: Final[Mapping[str, Callable[[_Reader], Any]]] = {
        "null": lambda _: None,
        "boolean": _boolean,
        "int": _long,
        "long": _long,
        "float": lambda self: struct.unpack("<f", self._take(4))[0],
        "double": lambda self: struct.unpack("<d", self._take(8))[0],
        "bytes": lambda self: b64encode(self._take(self._long())).decode(),
        "string": _string,
    }
