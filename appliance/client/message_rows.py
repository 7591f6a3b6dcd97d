"""A message as JSON-like data, as ``appliance consume --json`` and the console's download write it."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from .decoder import Message


def json_row(message: Message) -> dict[str, Any]:
    """A message as JSON-like data; keys and values that are no UTF-8 are in base64, under another name."""
    row: dict[str, Any] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp,
        **_readable("key", message.key),
        **_readable("value", message.value),
    }
    if message.headers:
        row["headers"] = [{"name": name, **_readable("value", value)} for name, value in message.headers]
    return row


def _readable(name: str, value: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if value is None else value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(value or b"").decode()}
