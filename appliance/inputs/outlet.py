"""Sends what inputs have read to topics, and tells the loop of the input when it is flushed.

The outlet of an input has one native producer with acks=all and idempotence.  A block of messages is one batch; many
are on their way at a time, up to IN_FLIGHT_BYTES_MAX, whatever their sources.  Whoever reads waits for room before
it reads on, so back-pressure goes to where the lines come from, and nothing is spooled.

Everything here but the producer's callbacks runs in one asyncio loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from ..client import Admin, Producer
from ..clock import now_ms
from ..errors import ApplianceError
from ..records.partitioner import partition_for

DELIVERY_TIMEOUT_MS: Final = 24 * 3600 * 1000
"""A block is not given up while the appliance is away: what it was read from waits behind it."""
IN_FLIGHT_BYTES_MAX: Final = 8 << 20
"""Bytes of one input: enough for the disk to flush in large pieces, and little beside 60 MB of Python."""
BUFFER_FACTOR: Final = 2
"""The producer's buffer holds a little more than a batch's bytes for each; it must never make the loop wait."""


ORIGIN_BYTES: Final = 300
"""Upper bound of the header ``origin``, and of that of a part."""


class Placed(NamedTuple):
    """Where a block is: flushed, its messages at ``offset`` and the offsets that follow."""

    topic: str
    partition: int
    offset: int
    messages: int


def make_producer(address: str, name: str, delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS) -> Producer:
    """A producer for an outlet with IN_FLIGHT_BYTES_MAX."""
    return Producer(
        address,
        linger_ms=0,
        buffer_bytes_max=BUFFER_FACTOR * IN_FLIGHT_BYTES_MAX,
        delivery_timeout_ms=delivery_timeout_ms,
        client_name=name,
    )


class Outlet:
    """Sends blocks of one input, many at a time, and says when each is flushed.  Make it in a running loop."""

    def __init__(self, producer: Producer, admin: Admin) -> None:
        """``producer``: from :func:`make_producer`; ``admin`` makes topics."""
        self._producer, self._admin = producer, admin
        self._loop = asyncio.get_running_loop()
        self._left_bytes = IN_FLIGHT_BYTES_MAX
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._finished: deque[tuple[asyncio.Future[Placed], int, int, ApplianceError | None, str, int, int]] = deque()
        self._woken = False

    @property
    def has_room(self) -> bool:
        return self._left_bytes > 0

    async def learn(self, topic: str) -> int:
        """Learn a topic, which is made if there is none; return the largest block that it takes, in bytes.

        Raises:
            ApplianceError: it cannot be used now, or never.
        """
        return min(await asyncio.to_thread(self._learn, topic), IN_FLIGHT_BYTES_MAX)

    def _learn(self, topic: str) -> int:
        self._admin.ensure_topic(topic)
        return self._producer.block_bytes_max(topic)

    def partition_of(self, topic: str, key: bytes) -> int:
        """The partition of a key, of a topic that was learned."""
        return partition_for(key, len(self._producer.partitions(topic)))

    def lasting_trouble(self, topic: str, lasting_s: float) -> ApplianceError | None:
        """What has kept a topic from taking anything for so long, such as a full disk; what was sent still waits."""
        for trouble in self._producer.troubles():
            part = trouble.topic_partition
            if (part is None or part[0] == topic) and now_ms() / 1000 - trouble.since_s >= lasting_s:
                return trouble.error
        return None

    async def room(self) -> None:
        """Wait until something may be sent.  Then send it before anything else is awaited."""
        while self._left_bytes <= 0:
            turn = self._loop.create_future()
            self._waiting.append(turn)
            await turn

    def send(
        self,
        topic: str,
        partition: int,
        values: list[bytes],
        tails: Sequence[bytes],
        *,
        keys: Sequence[bytes] | None = None,
        timestamp: int | None = None,
    ) -> asyncio.Future[Placed]:
        """Send a block; wait for :meth:`room` first.  The result comes when it is flushed.

        Raises:
            ApplianceError: the producer does not take it (MessageTooLarge, UnknownPartition, ClientBroken).
        """
        result: asyncio.Future[Placed] = self._loop.create_future()
        size = sum(map(len, values)) + sum(map(len, tails))
        count = len(values)

        def on_delivery(error: ApplianceError | None, name: str, number: int, offset: int) -> None:
            self._finished.append((result, size, count, error, name, number, offset))
            if not self._woken:  # one wake-up for all that finish together
                self._woken = True
                self._loop.call_soon_threadsafe(self._finish)

        self._producer.send_block(
            topic, partition, values, tails=tails, keys=keys, timestamp=timestamp, on_delivery=on_delivery
        )
        self._left_bytes -= size
        return result

    def _finish(self) -> None:
        self._woken = False
        while self._finished:
            result, size, count, error, topic, partition, offset = self._finished.popleft()
            self._left_bytes += size
            if result.cancelled():
                continue
            if error is not None:
                result.set_exception(error)
            else:
                result.set_result(Placed(topic, partition, offset, count))
        if self._left_bytes > 0:
            waiting, self._waiting = self._waiting, deque()
            for turn in waiting:  # all: one that has nothing to send any more must not keep the others
                if not turn.done():
                    turn.set_result(None)
