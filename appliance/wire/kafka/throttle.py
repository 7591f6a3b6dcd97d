"""Tells clients for how long they are throttled: stores throttle_time_ms in encoded replies.

It is the first field of a reply, after the header; in Produce the last one.  OffsetDelete has its error before it.
Versions before those of ``SINCE`` do not have it.  The decoders and encoders of this package know nothing of quotas:
the time is known only when a reply is about to be sent, and is 0 nearly always.
"""

from __future__ import annotations

import struct
from typing import Final

from .apis import (
    API_VERSIONS,
    APIS,
    DESCRIBE_GROUPS,
    FETCH,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    SYNC_GROUP,
    WRITE_TXN_MARKERS,
)

SINCE: Final = {
    PRODUCE: 1,
    FETCH: 1,
    LIST_OFFSETS: 2,
    METADATA: 3,
    OFFSET_COMMIT: 3,
    OFFSET_FETCH: 3,
    FIND_COORDINATOR: 1,
    JOIN_GROUP: 2,
    HEARTBEAT: 1,
    LEAVE_GROUP: 1,
    SYNC_GROUP: 1,
    OFFSET_FOR_LEADER_EPOCH: 2,
    DESCRIBE_GROUPS: 1,
    LIST_GROUPS: 1,
}
"""The first version of a reply with the field; 0 for all others."""
WITHOUT: Final = frozenset({API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE, WRITE_TXN_MARKERS})
"""Replies without the field, or that come before any quota holds."""
_TIME: Final = struct.Struct(">i")
_SIZE: Final = struct.Struct(">I")
_HEAD_BYTES: Final = 8
"""Size and correlation id, before the tagged fields of flexible versions."""


def with_throttle(reply: bytes, api_key: int, version: int, throttle_ms: int) -> bytes:
    """The reply frames, joined ones too, with this time; unchanged where the version has no such field.

    Args:
        reply: whole frames with their sizes, or of Fetch the part before the record batches.
    """
    if api_key in WITHOUT or version < SINCE.get(api_key, 0):
        return reply
    told = bytearray(reply)
    flexible = version >= APIS[api_key].flexible_from
    if api_key != PRODUCE:
        start = _HEAD_BYTES + flexible + 2 * (api_key == OFFSET_DELETE)
        told[start : start + _TIME.size] = _TIME.pack(throttle_ms)
        return bytes(told)
    stop = 0
    while stop < len(told):
        stop += _SIZE.size + _SIZE.unpack_from(told, stop)[0]
        start = stop - flexible - _TIME.size
        told[start : start + _TIME.size] = _TIME.pack(throttle_ms)
    return bytes(told)
