"""What a request may ask for, in numbers: the bounds that the codecs of both listeners share.

Names have theirs in :mod:`appliance.names`.  A codec applies both while it decodes, so that nothing behind it sees a
number that does not fit its use, and no frame makes it build more than its bytes hold.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ..config import Config

PARTS_MAX_MIN: Final = 10_000
"""So many partitions one request may always name."""
PARTS_MAX_MAX: Final = 100_000
"""As many as one appliance may be configured to hold."""
FETCH_BYTES_MAX: Final = 64 << 20
"""Of record batches in one reply; who asks for more gets so much, as with Kafka's ``fetch.max.bytes``."""


class Limits(NamedTuple):
    """The configured bounds of requests.

    ``frame_bytes_max`` of any frame; ``forwarded_bytes_max`` of one that the coordinator answers; ``parts_max``
    partitions in one request, each time that one is named.
    """

    frame_bytes_max: int
    forwarded_bytes_max: int
    parts_max: int

    @classmethod
    def of(cls, config: Config) -> Limits:
        network = config.network
        forwarded_bytes_max = min(network.forwarded_bytes_max, network.frame_bytes_max)
        parts_max = max(PARTS_MAX_MIN, config.topics.partitions_max)
        return cls(network.frame_bytes_max, forwarded_bytes_max, parts_max)
