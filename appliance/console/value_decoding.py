"""Decodes values of messages into JSON by what ``console.decode`` says of their topics, then hides what is masked.

A rule has a pattern of topics and how their values are written; the first one that fits a topic holds::

    metrics-*: msgpack; orders: /etc/appliance/order.avsc; shop-*: /etc/appliance/shop.desc#shop.Order

``.avsc`` is a schema of Avro; another file has the descriptors of Protobuf (``protoc --include_imports
--descriptor_set_out``), and behind ``#`` the full name of the message.  Before both, the magic byte and the number of a
schema registry are passed over, and so is the head of Avro's single objects; no registry is asked.

A value that is longer than VALUE_BYTES_MAX, as JSON longer than DECODED_BYTES_MAX, or none of its schema, stays as it
is; where something of its topic is masked, it is hidden, since its bytes have no names to find.  Files are read when
they are needed first, and again when they have changed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from ..client import Message
from ..errors import BadValue, InvalidRequest
from ..records.avro import AvroSchema, NotEncoded
from ..security.field_masks import HIDDEN, FieldMask, FieldMasks
from ..topic_rules import MSGPACK, parse_decodings

VALUE_BYTES_MAX: Final = 128 * 1024
DECODED_BYTES_MAX: Final = 1024 * 1024
"""Size of a decoded value as JSON: an item of an array may take no byte by its schema, but in JSON it has its names."""
SCHEMA_BYTES_MAX: Final = 4 * 1024 * 1024
MAGIC: Final = b"\0"
"""What serializers with a schema registry write first, before the number of the schema in 4 bytes."""
FRAME_BYTES: Final = 5
SINGLE_OBJECT: Final = b"\xc3\x01"
SINGLE_OBJECT_BYTES: Final = 10

Decode = Callable[[bytes], Any]
"""Returns what JSON has; raises ValueError, or an error of msgspec, for bytes that are none."""


class MessageView(NamedTuple):
    """How the messages of a topic are shown."""

    decode: Decode | None = None
    mask: FieldMask | None = None

    @property
    def is_plain(self) -> bool:
        """Whether they are shown as they are."""
        return self.decode is None and self.mask is None

    def show_message(self, message: Message) -> Message:
        value, headers, key = message.value, message.headers, message.key
        if self.decode is not None and value is not None:
            decoded = self._decoded(value)
            value = decoded if decoded is not None else HIDDEN if self.mask is not None else value
        if self.mask is not None:
            value, key, headers = self.mask.value(value), self.mask.value(key), self.mask.headers(headers)
        return message._replace(key=key, value=value, headers=headers)

    def _decoded(self, value: bytes) -> bytes | None:
        assert self.decode is not None
        if len(value) > VALUE_BYTES_MAX:
            return None
        try:
            decoded = self.decode(value)
            shown = msgspec.json.encode(decoded if self.mask is None else self.mask.decoded(decoded))
        except (ValueError, TypeError, msgspec.MsgspecError, RecursionError, OverflowError):
            return None
        return shown if len(shown) <= DECODED_BYTES_MAX else None


class MessageViews:
    """The views of all topics.  ``decode``: the text of ``console.decode``."""

    def __init__(self, decode: str, masks: FieldMasks) -> None:
        """Raises BadValue: says what is wrong with the text."""
        self.change(decode, masks)

    def change(self, decode: str, masks: FieldMasks) -> None:
        """Show messages so from now on.  Raises BadValue, as at first."""
        self._rules, self._masks = parse_decodings(decode), masks

    def view_of_topic(self, topic: str) -> MessageView:
        """Raises InvalidRequest: a file cannot be read, or has no schema."""
        how = next((how for pattern, how in self._rules if pattern.fullmatch(topic)), "")
        return MessageView(_decoder(how) if how else None, self._masks.mask_of_topic(topic))


def _decoder(how: str) -> Decode:
    """Raises InvalidRequest: the file cannot be read, or has no schema."""
    if how == MSGPACK:
        return msgspec.msgpack.decode
    path, _, name = how.partition("#")
    try:
        status = Path(path).stat()
        return _read_schema(path, name, (status.st_mtime_ns, status.st_ino, status.st_size))
    except OSError as error:
        raise InvalidRequest(f"console.decode: {path}: {error.strerror}") from None
    except BadValue as error:
        raise InvalidRequest(f"console.decode: {path}: {error}") from None


@lru_cache(100)
def _read_schema(path: str, name: str, stamp: tuple[int, int, int]) -> Decode:
    """Raises OSError, BadValue."""
    with Path(path).open("rb") as file:
        text = file.read(SCHEMA_BYTES_MAX + 1)
    if len(text) > SCHEMA_BYTES_MAX:
        raise BadValue(f"has more than {SCHEMA_BYTES_MAX} bytes")
    return _protobuf(text, name) if name else _avro(text)


def _avro(text: bytes) -> Decode:
    schema = AvroSchema(text)

    def decode(value: bytes) -> Any:
        heads = [FRAME_BYTES] * value.startswith(MAGIC) + [SINGLE_OBJECT_BYTES] * value.startswith(SINGLE_OBJECT)
        for head in heads:
            try:
                return schema.decode(value[head:])
            except NotEncoded:
                pass  # its first field may begin so
        return schema.decode(value)

    return decode


def _protobuf(text: bytes, name: str) -> Decode:
    """Raises BadValue."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message, message_factory
    except ImportError:
        raise BadValue("needs the extra inputs, which has protobuf") from None
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(text).file:
            pool.Add(file)
        kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except (message.DecodeError, TypeError, KeyError) as error:
        raise BadValue(f"has no message {name}: {error}") from None

    def decode(value: bytes) -> Any:
        try:
            decoded = kind.FromString(value[_frame_end(value) :])
            # With the pool also what is in an `Any` is decoded, and masked, if its type is among the descriptors.
            return json_format.MessageToDict(decoded, preserving_proto_field_name=True, descriptor_pool=pool)
        except (message.DecodeError, json_format.SerializeToJsonError) as error:
            raise ValueError(str(error)) from None

    return decode


def _frame_end(value: bytes) -> int:
    """Where the message begins: behind the magic byte, which none begins with, the number and the path to its type."""
    if not value.startswith(MAGIC):
        return 0
    at = FRAME_BYTES
    count, at = _varint(value, at)
    for _ in range(count):
        _, at = _varint(value, at)
    return at


def _varint(value: bytes, at: int) -> tuple[int, int]:
    """A zigzag number that counts something, and where it ends.  Raises ValueError."""
    if at >= len(value) or value[at] >= 0x80 or value[at] & 1:
        raise ValueError("no path to a type")
    return value[at] >> 1, at + 1
