"""Bounds the numbers in requests, for the codecs of both listeners.

The bounds of names are in :mod:`appliance.names`.  A codec checks both while it decodes.  So later code gets only valid
numbers, and the values decoded from a frame are not larger than the frame allows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ..config import Config  # clients, which have none, import this module

PARTS_MAX_MIN: Final = 10_000
"""One request may always name this many partitions."""
PARTS_MAX_MAX: Final = 100_000
"""Largest value of ``topics.partitions_max``."""
STREAMS_MAX: Final = 1_000
"""Most streams of one member of a native group on one topic: every member computes the assignment of all of them."""
CHANGE_WAIT_MS_MAX: Final = 30_000
"""For how long a member of a native group may wait for a change of it at once."""
FETCH_BYTES_MAX: Final = 64 << 20
"""Largest size of the record batches in one reply.  A larger request is reduced to it, as with Kafka's
``fetch.max.bytes``."""


class WireLimits(NamedTuple):
    """The configured bounds of requests.

    ``frame_bytes_max``: of any frame; ``forwarded_bytes_max``: of a forwarded request; ``parts_max``: partitions in one
    request, counting repeats.
    """

    frame_bytes_max: int
    forwarded_bytes_max: int
    parts_max: int

    @classmethod
    def from_config(cls, config: Config) -> WireLimits:
        network = config.network
        forwarded_bytes_max = min(network.forwarded_bytes_max, network.frame_bytes_max)
        parts_max = max(PARTS_MAX_MIN, config.topics.partitions_max)
        return cls(network.frame_bytes_max, forwarded_bytes_max, parts_max)
