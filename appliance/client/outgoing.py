"""Checks what is to be sent, before any of it is put into a batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..errors import InvalidRequest
from ..names import OFFSET_MAX
from ..records.encode import Headers
from .arguments import function, partition_number, several, shown, text, topic_name, whole
from .delivery import OnDelivery

PLAIN_BYTES = 24
"""Upper bound of the bytes that a plain record takes besides its value."""

_outgoing = tuple.__new__  # twice as fast as the constructor of a NamedTuple


class OutgoingMessage(NamedTuple):
    """One message that can be sent.  ``timestamp``: ms since 1970; None: when it is put into a batch.

    ``plain``: it has a value and nothing else.  ``size``: upper bound of its bytes in a batch.
    """

    topic: str
    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp: int | None
    partition: int | None
    on_delivery: OnDelivery | None
    plain: bool
    size: int


def outgoing(
    topic: str,
    value: bytes | None,
    key: bytes | None,
    headers: Headers,
    timestamp: int | None,
    partition: int | None,
    on_delivery: OnDelivery | None,
) -> OutgoingMessage:
    """
    Raises:
        InvalidTopic, InvalidRequest: it cannot be sent.
    """
    topic_name(topic)
    if on_delivery is not None:
        function("on_delivery", on_delivery)
    if partition is not None:
        partition_number(partition)
    size = PLAIN_BYTES
    if value is not None:
        if type(value) is not bytes:
            value = _as_bytes(value, "value")
        size += len(value)
    if key is not None:
        if type(key) is not bytes:
            key = _as_bytes(key, "key")
        size += len(key)
    if headers != () or timestamp is not None:
        _check_details(headers, timestamp)
        for name, detail in headers:
            size += PLAIN_BYTES + 4 * len(name) + (len(detail) if detail is not None else 0)
    plain = timestamp is None and key is None and not headers and value is not None
    return _outgoing(OutgoingMessage, (topic, value, key, headers, timestamp, partition, on_delivery, plain, size))


def plain_values(values: Iterable[bytes]) -> list[bytes]:
    """Values that can be sent.

    Raises:
        InvalidRequest: one cannot.
    """
    listed = values if isinstance(values, list) else list(several("values", values))
    if set(map(type, listed)) <= {bytes}:
        return listed
    return [_as_bytes(value, "value") for value in listed]


def check_block(
    values: list[bytes], tails: Sequence[bytes], keys: Sequence[bytes] | None, timestamp: int | None
) -> None:
    """
    Raises:
        InvalidRequest: these cannot be sent as one batch.
    """
    for what, column in (("values", values), ("tails", tails), ("keys", values if keys is None else keys)):
        if not isinstance(column, list | tuple) or not set(map(type, column)) <= {bytes} or len(column) != len(values):
            raise InvalidRequest(f"{what} of a block: give a list of bytes, as many as values")
    if not values:
        raise InvalidRequest("a block has at least one message")
    if timestamp is not None:
        _check_timestamp(timestamp)


def _as_bytes(value: Any, what: str) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidRequest(f"a message's {what} is bytes, not {type(value).__name__}: encode it first")


def _check_timestamp(timestamp: int) -> None:
    whole("timestamp, in ms since 1970,", timestamp, 0, OFFSET_MAX)


def _check_details(headers: Headers, timestamp: int | None) -> None:
    if timestamp is not None:
        _check_timestamp(timestamp)
    if not isinstance(headers, tuple | list):
        raise InvalidRequest(f"headers {shown(headers)}: give a list of pairs of a name and bytes (or None)")
    for pair in headers:
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str)):
            raise InvalidRequest(f"header {shown(pair)}: give pairs of a name and bytes (or None)")
        text("header", pair[0])
        if not isinstance(pair[1], bytes | None):
            raise InvalidRequest(f"header {pair[0]!r}: its value is bytes or None")
