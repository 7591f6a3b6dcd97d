"""The ledger of the inputs: which line of which source is where, and what was refused or lost.

Each input publishes, per source and minute, a row as a JSON message of the topic ``ledger.topic``, keyed by the
source's name::

    {"input": "disk", "host": "web-1", "source": "/var/log/syslog", "number": 7, "store": "4f1e...",
     "minute": 1795219200,
     "lines": 120, "bytes": 18234, "messages": 120,
     "spans": [[topic, partition, offset, messages, start, stop, first line, lines], ...],
     "refused": {"reason": lines}, "gaps": [{"start": 10, "stop": 200 | null, "unit": "bytes", "reason": "..."}]}

``start`` and ``stop`` count bytes of a file, or messages of a listener since it began.  A span is a block whose
messages have consecutive offsets.  Rows may be published twice, after a kill: spans of equal ``store``, ``number`` and
``start`` are one if they have the same offset, and lines that came twice if they have not.

What a ledger says of flushed blocks comes from the store, and from the log itself after a kill: it does not depend on
what a killed process had in memory.  Gaps and refusals are told as they happen, at the latest a minute later; a kill
may lose those of its last second.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from ..client import Consumer, Producer
from ..errors import ApplianceError
from ..processes.clock import now_ms, wall_s
from ..processes.messages import InputStats
from ..wire.requests import LATEST
from .positions import ORIGIN, Origin, PositionStore, Span, merged

logger = logging.getLogger(__name__)

SPANS_MAX: Final = 2_000
"""Spans of one row; a source that sends more blocks in a minute has several rows."""
GAPS_MAX: Final = 10_000
"""Gaps and refusals that wait to be published; more are counted in the last one."""
TROUBLE_S: Final = 60
TROUBLE_CHARS_MAX: Final = 500


class Gap(msgspec.Struct, frozen=True):
    """What was lost before it was read.  ``stop``: None: not known."""

    start: int
    stop: int | None
    unit: str
    reason: str


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of the ledger's topic."""

    input: str
    host: str
    source: str
    number: int
    store: str
    minute: int
    lines: int = 0
    bytes: int = 0
    messages: int = 0
    spans: list[tuple[str, int, int, int, int, int, int, int]] = []
    refused: dict[str, int] = {}
    gaps: list[Gap] = []


encode_row = msgspec.json.Encoder().encode
decode_row = msgspec.json.Decoder(Row).decode


class Ledger:
    """Collects and publishes the rows of one input."""

    def __init__(
        self, name: str, host: str, topic: str, store: PositionStore, producer: Producer, bootstrap: str
    ) -> None:
        """``bootstrap``: where the log is read, to recover."""
        self._name, self._host, self._topic = name, host, topic
        self._store, self._producer, self._bootstrap = store, producer, bootstrap
        self._gaps: dict[tuple[int, str, int], list[Gap]] = {}
        self._refused: dict[tuple[int, str, int], Counter[str]] = {}
        self._waiting = 0
        self._troubles: dict[str, tuple[float, int]] = {}
        self._begun: set[tuple[str, int]] = {row[:2] for row in store.partitions()}
        self._stats, self._unread = InputStats(), ""
        self._trouble_source = 0
        """The source whose trouble the stats have; 0: the input itself."""

    @staticmethod
    def minute() -> int:
        return int(wall_s()) // 60

    # ---- what happens

    def note(self, span: Span) -> None:
        """A block is flushed; the store has it soon."""
        stats = self._stats
        self._stats = msgspec.structs.replace(
            stats,
            lines=stats.lines + span.lines,
            bytes=stats.bytes + span.stop - span.start,
            messages=stats.messages + span.messages,
            trouble="" if self._trouble_source in (span.source, 0) else stats.trouble,
        )

    def note_sources(self, count: int) -> None:
        """How many files, or senders, there are."""
        self._stats = msgspec.structs.replace(self._stats, sources=count)

    def note_unread(self, reason: str) -> None:
        """A source is there and is not read at all; "": no longer."""
        self._unread = reason

    def stats(self) -> InputStats:
        """What this process has taken in, for ``status``."""
        return msgspec.structs.replace(self._stats, trouble=self._stats.trouble or self._unread)

    def gap(self, number: int, source: str, start: int, stop: int | None, unit: str, reason: str) -> None:
        """Something of a source was lost before it could be read."""
        logger.warning("%s: %s from %d to %s are lost: %s", source, unit, start, "?" if stop is None else stop, reason)
        self._stats = msgspec.structs.replace(self._stats, gaps=self._stats.gaps + 1)
        rows = self._gaps.setdefault((number, source, self.minute()), [])
        if self._waiting < GAPS_MAX:
            self._waiting += 1
            rows.append(Gap(start, stop, unit, reason))
        elif rows and stop is not None:
            last = rows[-1]
            rows[-1] = Gap(last.start, stop, unit, f"{last.reason}; more of them")

    def refused(self, number: int, source: str, reason: str, lines: int) -> None:
        """Lines that no topic takes."""
        self._stats = msgspec.structs.replace(self._stats, refused=self._stats.refused + lines)
        self._refused.setdefault((number, source, self.minute()), Counter())[reason] += lines

    def trouble(self, number: int, source: str, reason: str) -> None:
        """What keeps a source waiting: a line in the log each minute, for each reason."""
        self._stats = msgspec.structs.replace(self._stats, trouble=f"{source}: {reason}"[:TROUBLE_CHARS_MAX])
        self._trouble_source = number
        now = now_ms() / 1000
        since, count = self._troubles.get(reason, (now - TROUBLE_S, 0))
        if now - since >= TROUBLE_S:
            again = f" ({count} times more in the last minute)" if count else ""
            logger.warning("%s waits: %s%s", source, reason, again)
            if len(self._troubles) > 100:
                self._troubles.clear()
            self._troubles[reason] = now, 0
        else:
            self._troubles[reason] = since, count + 1

    def goes_on(self, number: int) -> None:
        """A source, or the input itself, waits for nothing any more."""
        if self._trouble_source in (number, 0):
            self._stats = msgspec.structs.replace(self._stats, trouble="")

    # ---- publishing

    async def publish(self, everything: bool = False) -> None:
        """Publish the minutes that are over (``everything``: this one, too) and forget what is flushed.

        Raises:
            ApplianceError: not all could be published; it is tried again with the next.
        """
        before = self.minute() + everything
        rows = list(self._rows(before))
        gaps = {key: value for key, value in self._gaps.items() if key[2] < before}
        refused = {key: value for key, value in self._refused.items() if key[2] < before}
        for key in gaps.keys() | refused.keys():
            number, source, minute = key
            counts = dict(refused.get(key, {}))
            rows.append(self._row(number, source, minute, gaps=gaps.get(key, []), refused=counts))
        if not rows:
            return
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(self._send(row, loop) for row in rows))
        self._store.drop_spans(before)
        for key in gaps:
            self._waiting -= len(self._gaps.pop(key))
        for key in refused:
            del self._refused[key]

    def _row(self, number: int, source: str, minute: int, **values: Any) -> Row:
        return Row(self._name, self._host, source, number, self._store.id, 60 * minute, **values)

    def _rows(self, before: int) -> Iterable[Row]:
        names = self._store.names()
        for group in merged(self._store.spans(before)):
            for start in range(0, len(group), SPANS_MAX):
                spans = group[start : start + SPANS_MAX]
                yield self._row(
                    *(spans[0].source, names.get(spans[0].source, ""), spans[0].minute),
                    lines=sum(span.lines for span in spans),
                    bytes=sum(span.stop - span.start for span in spans),
                    messages=sum(span.messages for span in spans),
                    spans=[span[1:9] for span in spans],
                )

    async def _send(self, row: Row, loop: asyncio.AbstractEventLoop) -> None:
        done: asyncio.Future[None] = loop.create_future()

        def on_delivery(error: ApplianceError | None, *_: object) -> None:
            loop.call_soon_threadsafe(_settle, done, error)

        value, key = encode_row(row), row.source.encode("utf-8", "surrogateescape")
        await asyncio.to_thread(self._producer.send, self._topic, value, key=key, on_delivery=on_delivery)
        await done

    # ---- the log, after a kill

    async def begin_partition(self, topic: str, partition: int) -> None:
        """Note durably from which offset on a partition has blocks of this input, before the first is sent.

        Raises:
            ApplianceError: its end is not known.
        """
        if (topic, partition) in self._begun:
            return
        part = topic, partition
        ends = await asyncio.to_thread(self._ends, [part])
        self._store.add_partition(*part, ends[part])
        self._begun.add((topic, partition))

    async def note_ends(self) -> None:
        """At an ordered end: nothing of this input is on its way, so recovery may begin at the end of each log."""
        parts = [row[:2] for row in self._store.partitions()]
        with contextlib.suppress(ApplianceError):  # else it reads more
            ends = await asyncio.to_thread(self._ends, parts)
            self._store.raise_offsets((*part, offset) for part, offset in ends.items())

    def _ends(self, parts: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
        if not parts:
            return {}
        with Consumer(self._bootstrap) as consumer:
            return consumer.offsets_at(LATEST, parts)

    async def recover(self) -> list[Span]:
        """Take blocks into account that are in the log and not in the store.

        Raises:
            ApplianceError: a log cannot be read.
        """
        found = await asyncio.to_thread(self._origins, self._store.partitions())
        spans = self._store.recover(found, self.minute())
        if spans:
            logger.info("%d blocks are in the log and were not noted: taken into account", len(spans))
        return spans

    def _origins(self, rows: list[tuple[str, int, int]]) -> list[tuple[Origin, str, int, int, int]]:
        """The blocks of this and other inputs from these offsets on."""
        found: list[tuple[Origin, str, int, int, int]] = []
        if rows:
            with Consumer(self._bootstrap) as consumer:
                for topic, partition, offset in rows:
                    found += _origins(consumer, topic, partition, offset)
        return found


def read_rows(consumer: Consumer, topic: str, timestamp: int) -> Iterator[Row]:
    """The rows of a ledger from a time on (ms since 1970, or EARLIEST), each once, as far as they are there now.

    Raises:
        UnknownPartition: no input has published anything yet.
    """
    consumer.assign_topic(topic)
    ends = consumer.offsets_at(LATEST)
    consumer.assign(list(ends), at=timestamp)
    seen: set[bytes] = set()
    while any(consumer.positions().get(part, 0) < end for part, end in ends.items()):
        for message in consumer.poll(timeout=1.0, messages_max=10_000):
            value = message.value or b""
            digest = hashlib.blake2b(value, digest_size=16).digest()
            if digest in seen:  # published twice, after a kill
                continue
            seen.add(digest)
            try:
                yield decode_row(value)
            except msgspec.MsgspecError:
                logger.warning("%s-%d at %d: no row of a ledger", topic, message.partition, message.offset)


def _settle(done: asyncio.Future[None], error: ApplianceError | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def _origins(consumer: Consumer, topic: str, partition: int, offset: int) -> list[tuple[Origin, str, int, int, int]]:
    """The blocks of a log from an offset to its present end: origin, place, offset and number of the messages."""
    consumer.assign({(topic, partition): offset})
    end = consumer.offsets_at(LATEST)[topic, partition]
    found: list[tuple[Origin, str, int, int, int]] = []
    next_offset = -1  # of the block that was seen last
    while consumer.position(topic, partition) < end:
        for message in consumer.poll(timeout=1.0, messages_max=10_000):
            header = message.headers[0] if message.headers else ("", None)
            origin = Origin.decode(header[1]) if header[0] == ORIGIN and header[1] is not None else None
            if origin is not None:
                found.append((origin, topic, partition, message.offset, 1))
                next_offset = message.offset + 1
            elif message.offset == next_offset:  # of the same batch: there is a gap between batches
                found[-1] = (*found[-1][:4], found[-1][4] + 1)
                next_offset += 1
    return found
