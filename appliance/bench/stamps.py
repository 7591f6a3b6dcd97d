"""The messages of all workloads: a stamp of 8 bytes, then zeros up to their size; and the sum that checks them.

The sum does not depend on the order.  ``c/kafka_client.c`` has the same.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

STAMP = struct.Struct("<Q")
_64 = (1 << 64) - 1


class Wrong(Exception):
    """Messages were lost, changed, repeated or out of order, or a client failed: no figure is of use."""


def message(stamp: int, size: int) -> bytes:
    return STAMP.pack(stamp) + bytes(size - STAMP.size)


def stamp_of(value: bytes) -> int:
    stamp: int = STAMP.unpack_from(value)[0]
    return stamp


def check(stamps: Iterable[int]) -> str:
    """The sum of the stamps, each mixed by splitmix64, as 16 hexadecimal digits.  No stamp that is sent counts as 0."""
    total = 0
    for stamp in stamps:
        stamp = (stamp + 0x9E3779B97F4A7C15) & _64
        stamp = ((stamp ^ (stamp >> 30)) * 0xBF58476D1CE4E5B9) & _64
        stamp = ((stamp ^ (stamp >> 27)) * 0x94D049BB133111EB) & _64
        total += stamp ^ (stamp >> 31)
    return f"{total & _64:016x}"
