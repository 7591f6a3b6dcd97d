"""Finds in the log what an earlier process of an input has sent and not noted, by the origins of the blocks.

=========  =====================================================  ===================================================
state      what it does                                           leaves it by
=========  =====================================================  ===================================================
reading    reads each log from where the store has taken origins  all ends are reached: *recovered* if the earlier
           into account to its end; who asks for an end waits     process ended in order, for then nothing of it is on
           until what is written is flushed                       its way; else *settling*
settling   reads on every POLL_S.  What a killed process had      SETTLE_S without a block of this input; or
           sent may not be written yet: it is in a socket, or     SETTLE_S_MAX, which is told: then another process
           in the hands of a worker or of a writer                goes on sending from the same positions
recovered  the input begins behind what was found
=========  =====================================================  ===================================================

=======================================================  ============================================================
a block that the killed process had sent                 then
=======================================================  ============================================================
did not reach the appliance, or its writer died with it  the input sends it again; it is there once
is in the log, or comes while recovery settles           the position is behind it: it is not sent again
comes later, since its writer or worker stood still for  the input sends it again: it is there twice, and in the
SETTLE_S                                                 ledger once
=======================================================  ============================================================
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from ..client import Consumer
from ..errors import UnknownPartition
from ..wire.requests import EARLIEST, LATEST
from .positions import BlockOrigin, FoundBlock, PositionStore

logger = logging.getLogger(__name__)

POLL_S: Final = 0.05
SETTLE_S: Final = 0.5
"""A killed input is started again within some ms.  What is in a socket then is written soon, unless no process of the
appliance gets a processor."""
SETTLE_S_MAX: Final = 10.0

Part = tuple[str, int]


class Recovery:
    """The states.  Whoever makes it reads the logs from ``starts`` on (:func:`read_logs`), and calls :meth:`take`."""

    def __init__(self, store: PositionStore, now_s: float) -> None:
        self._store = store
        self._settles = not store.ended_in_order
        self._began_s = self._found_s = now_s
        self.starts: dict[Part, int] = {row[:2]: row[2] for row in store.partitions()}
        """From where on each log is to be read; of those that there are, after the first time."""
        self.blocks_count = 0
        """Blocks that were taken into account."""

    def take(self, found: Iterable[FoundBlock], ends: Mapping[Part, int], minute: int, now_s: float) -> bool:
        """Take into account what was read up to ``ends``; return whether the input is recovered."""
        spans = self._store.recover(found, minute)
        self.starts = dict(ends)
        self.blocks_count += len(spans)
        if spans:
            self._found_s = now_s
        if not self._settles or not ends or now_s - self._found_s >= SETTLE_S:
            return True
        if now_s - self._began_s >= SETTLE_S_MAX:
            logger.warning(
                "%s: blocks from its positions still come %.0f s after the start: another process that uses a copy of"
                " this file sends the same",
                *(self._store.path, SETTLE_S_MAX),
            )
            return True
        return False


def read_logs(bootstrap: str, starts: Mapping[Part, int]) -> tuple[list[FoundBlock], dict[Part, int]]:
    """The blocks from these offsets to the present ends, and the ends; those of deleted topics are in neither.

    Raises:
        ApplianceError: a log cannot be read.
    """
    found: list[FoundBlock] = []
    if not starts:
        return found, {}
    with Consumer(bootstrap) as consumer:
        ends = _ends(consumer, list(starts))
        for part, end in ends.items():
            # One that ends before what was noted of it is another one of its name: it has blocks from its first one on.
            start = starts[part] if starts[part] <= end else EARLIEST
            if start != end:
                found += _blocks(consumer, *part, start, end)
    return found, ends


def ends_of(bootstrap: str, parts: list[Part]) -> dict[Part, int]:
    """The end of each partition that there is.  Raises ApplianceError."""
    if not parts:
        return {}
    with Consumer(bootstrap) as consumer:
        return _ends(consumer, parts)


def _ends(consumer: Consumer, parts: list[Part]) -> dict[Part, int]:
    try:
        return consumer.offsets_at(LATEST, parts)
    except UnknownPartition:
        ends: dict[Part, int] = {}
        for part in parts if len(parts) > 1 else ():
            ends |= _ends(consumer, [part])
        return ends


def _blocks(consumer: Consumer, topic: str, partition: int, start: int, end: int) -> list[FoundBlock]:
    consumer.assign({(topic, partition): start})
    found: list[FoundBlock] = []
    next_offset = -1  # of the block that was seen last
    while consumer.position(topic, partition) < end:
        for message in consumer.poll(timeout=1.0, messages_max=10_000):
            origin = BlockOrigin.read(message.headers)
            if message.offset >= end:
                continue
            size = len(message.value or b"")
            if origin is not None:
                found.append(FoundBlock(origin, topic, partition, message.offset, 1, size))
                next_offset = message.offset + 1
            elif message.offset == next_offset:  # of the same batch: there is a gap between batches
                last = found[-1]
                found[-1] = last._replace(messages=last.messages + 1, value_bytes=last.value_bytes + size)
                next_offset += 1
    return found
