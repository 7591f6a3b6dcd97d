"""Encodes counts, strings and tags for replies that are encoded by hand, in both generations of the protocol."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ...records.varints import unsigned
from .primitives import I16, I32

MESSAGE_CHARACTERS_MAX: Final = 1_000
"""Largest length of an error message, which may quote a client's input."""


@dataclass(frozen=True, slots=True)
class ReplyEncoder:
    """Encodes the parts of replies; ``flexible`` versions have compact lengths and tags."""

    flexible: bool

    def count(self, count: int | None) -> bytes:
        """The length of an array, None for null."""
        if self.flexible:
            return unsigned(0 if count is None else count + 1)
        return I32.pack(-1 if count is None else count)

    def string(self, text: str | None) -> bytes:
        if text is None:
            return b"\0" if self.flexible else b"\xff\xff"
        encoded = text.encode()
        return (unsigned(len(encoded) + 1) if self.flexible else I16.pack(len(encoded))) + encoded

    def message(self, text: str | None) -> bytes:
        """An error message, shortened to MESSAGE_CHARACTERS_MAX; "" is null: there is no error."""
        return self.string(text[:MESSAGE_CHARACTERS_MAX] if text else None)

    def numbers(self, numbers: Sequence[int]) -> bytes:
        return self.count(len(numbers)) + struct.pack(f">{len(numbers)}i", *numbers)

    @property
    def tags(self) -> bytes:
        """An empty section of tagged fields."""
        return b"\0" if self.flexible else b""

    def frame(self, correlation_id: int, parts: Sequence[bytes]) -> bytes:
        """The reply frame, with size and header."""
        body = b"".join((I32.pack(correlation_id), self.tags, *parts))
        return I32.pack(len(body)) + body
