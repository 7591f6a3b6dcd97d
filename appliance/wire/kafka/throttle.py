"""Tells clients for how long they are throttled: stores throttle_time_ms in encoded replies.

Where a reply has it, and from which version on, is in its API's row (``apis.py``).  The decoders and encoders of this
package know nothing of quotas: the time is known only when a reply is about to be sent, and is 0 nearly always.
"""

from __future__ import annotations

import struct
from typing import Final

from .apis import APIS, AT_THE_END

_TIME: Final = struct.Struct(">i")
_SIZE: Final = struct.Struct(">I")
_HEAD_BYTES: Final = 8
"""Size and correlation id, before the tagged fields of flexible versions."""


def with_throttle(reply: bytes, api_key: int, version: int, throttle_ms: int) -> bytes:
    """The reply frames, joined ones too, with this time; unchanged where the version has no such field.

    Unchanged, too, is a reply to Produce that ends with tagged fields, which name other brokers: the client asks these
    from then on.  If it goes on here, the next reply tells it.

    Args:
        reply: whole frames with their sizes, or of Fetch the part before the record batches.
    """
    api = APIS[api_key]
    if version < api.throttle_from:
        return reply
    told = bytearray(reply)
    flexible = version >= api.flexible_from
    if api.throttle_at != AT_THE_END:
        start = _HEAD_BYTES + flexible + api.throttle_at
        told[start : start + _TIME.size] = _TIME.pack(throttle_ms)
        return bytes(told)
    stop = 0
    while stop < len(told):
        stop += _SIZE.size + _SIZE.unpack_from(told, stop)[0]
        start = stop - flexible - _TIME.size
        if any(told[start:stop]):  # not the time, which is 0: the end of a broker's port (``new_leaders.py``)
            continue
        told[start : start + _TIME.size] = _TIME.pack(throttle_ms)
    return bytes(told)
