"""Where a line of a source is, by the rows of a ledger; and of one that is nowhere, what is known of it.

A ledger says where a line was flushed.  Whether the message is there today the topic says: its first offsets may have
expired, or it may have been deleted and made again since.

Bounds: LIVES_MAX lives of a source, the last ones; GAPS_MAX gaps of each.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable
from typing import Final, NamedTuple

from ..client import Consumer
from ..errors import ApplianceError
from ..wire.requests import EARLIEST, LATEST
from .ledger import Gap, LedgerRow, PlacedBlock
from .positions import BlockOrigin

LIVES_MAX: Final = 200
GAPS_MAX: Final = 20
FETCH_S: Final = 5.0
THERE: Final = "there"
EXPIRED: Final = "expired"
NO_TOPIC: Final = "no topic"
OTHER: Final = "another log"
COMPACTED: Final = "compacted"


class LinePlace(NamedTuple):
    """The messages [offset, to_offset] that a line is in; several if the block has other counts of both.

    ``life``: the number of the source in its store; ``minute``: when it was flushed, s since 1970.
    """

    store: str
    life: int
    block: PlacedBlock
    offset: int
    to_offset: int
    minute: int


class _Life:
    """``before``, ``behind``: the nearest lines that are known, and the bytes between which the line must be."""

    def __init__(self) -> None:
        self.places: dict[tuple[int, int], LinePlace] = {}
        self.before, self.at = 0, 0
        self.behind: int | None = None
        self.gaps: list[Gap] = []
        self.refused = 0


class LineSearch:
    """Takes the rows of one source, in the order in which they were published; some may come twice."""

    def __init__(self, source: str, line: int) -> None:
        """``line``: of a file, or message of a sender, from 1."""
        self._source, self._line = source, line
        self._lives: OrderedDict[tuple[str, int], _Life] = OrderedDict()

    def add(self, row: LedgerRow) -> None:
        life = self._lives.setdefault((row.store, row.number), _Life())
        self._lives.move_to_end((row.store, row.number))
        if len(self._lives) > LIVES_MAX:
            self._lives.popitem(last=False)
        for block in row.spans:
            last_line = block.first_line + max(block.lines, 1) - 1
            if last_line < self._line:
                if last_line > life.before:
                    life.before, life.at = last_line, block.stop
            elif block.first_line > self._line:
                life.behind = min(block.first_line, life.behind or block.first_line)
            else:
                life.places[block.start, block.offset] = self._place(row, block)
        life.gaps = [*life.gaps, *(gap for gap in row.gaps if gap not in life.gaps)][-GAPS_MAX:]
        life.refused += sum(row.refused.values())

    def _place(self, row: LedgerRow, block: PlacedBlock) -> LinePlace:
        is_each_one = block.messages == block.lines
        at = block.offset + self._line - block.first_line if is_each_one else block.offset
        last = at if is_each_one else block.offset + block.messages - 1
        return LinePlace(row.store, row.number, block, at, last, row.minute)

    def places(self) -> list[LinePlace]:
        """Where it is, the last life of the source first; several of one life came twice."""
        lives = reversed(self._lives.values())
        return [place for life in lives for place in sorted(life.places.values(), key=lambda place: place.offset)]

    def why_nowhere(self) -> str:
        """What is known of a line that has no place, of the last life of the source."""
        if not self._lives:
            return "it has no row of this source"
        life = next(reversed(self._lives.values()))
        lost = [gap for gap in life.gaps if gap.stop is None or gap.stop > life.at]
        parts = [f"{gap.unit} from {gap.start} to {'?' if gap.stop is None else gap.stop} are lost: {gap.reason}"
                 for gap in lost]  # fmt: skip
        if life.refused:
            parts.append(f"{life.refused} lines were refused")
        if life.behind is not None and not life.before:
            parts.insert(0, f"its rows begin with line {life.behind}: what is before was published earlier")
        elif life.behind is None:
            parts.insert(0, f"it has lines up to {life.before}, and is published once a minute")
        return "; ".join(parts) or "the lines before and after it are there, and it is neither lost nor refused"


def check_places(consumer: Consumer, places: Iterable[LinePlace], topics: Container[str]) -> dict[LinePlace, str]:
    """Whether the messages of each place are there: THERE, EXPIRED, COMPACTED, NO_TOPIC, OTHER, or why it cannot be
    known.

    ``topics``: all that there are; one that is none is not asked for, which would make it.
    """
    return {place: _check(consumer, place) if place.block.topic in topics else NO_TOPIC for place in places}


def _check(consumer: Consumer, place: LinePlace) -> str:
    """By the first message of its block, which says whose it is."""
    block = place.block
    part = block.topic, block.partition
    try:
        first_offset, end = (consumer.offsets_at(which, [part])[part] for which in (EARLIEST, LATEST))
        if place.offset >= end:
            return OTHER
        if place.to_offset < first_offset:
            return EXPIRED
        if block.offset < first_offset:  # the first message has expired, and with it what says so
            return THERE
        consumer.assign({part: block.offset})
        message = next(iter(consumer.poll(timeout=FETCH_S, messages_max=1)), None)
    except ApplianceError as error:
        return str(error)
    if message is None:
        return "no answer"
    if message.offset != block.offset:
        return COMPACTED
    origin = BlockOrigin.read(message.headers)
    is_own = origin is not None and origin[:3] == (place.store, place.life, block.start)
    return THERE if is_own else OTHER
