"""Chooses the partition of a key with murmur2, as Kafka's Java client does, so that all clients agree."""

from __future__ import annotations

import struct

_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_SEED = 0x9747B28C


def murmur2(data: bytes) -> int:
    """The 32-bit hash of ``org.apache.kafka.common.utils.Utils.murmur2``, as an unsigned number."""
    length = len(data)
    words = length >> 2
    hashed = _SEED ^ length
    for word in struct.unpack_from(f"<{words}I", data):
        word = word * _M & _MASK
        hashed = (hashed * _M & _MASK) ^ ((word ^ word >> 24) * _M & _MASK)
    if tail := data[words << 2 :]:
        hashed = (hashed ^ int.from_bytes(tail, "little")) * _M & _MASK
    hashed = (hashed ^ hashed >> 13) * _M & _MASK
    return hashed ^ hashed >> 15


def partition_for(key: bytes, partitions: int) -> int:
    """The partition of ``key`` in a topic of ``partitions``: the hash without its sign bit, modulo."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
