"""The ledger of the inputs: which line of which source is where, and what was refused or lost.

Each input publishes, per source and minute, a row as a JSON message of the topic ``ledger.topic``, keyed by the
source's name::

    {"input": "disk", "host": "web-1", "source": "/var/log/syslog", "number": 7, "store": "4f1e...",
     "minute": 1795219200,
     "lines": 120, "bytes": 18234, "messages": 120,
     "spans": [[topic, partition, offset, messages, start, stop, first line, lines, bytes], ...],
     "refused": {"reason": lines}, "gaps": [{"start": 10, "stop": 200 | null, "unit": "bytes", "reason": "..."}]}

``start`` and ``stop`` count bytes of a file, or messages of a sender or the journal since it began; ``bytes`` are those
of the file, with its line breaks, or of the values.  A span is a block whose messages have consecutive offsets.  Rows
may be published twice, after a kill: spans of equal ``store``, ``number`` and ``start`` are one if they have the same
offset, and lines that came twice if they have not.

What a ledger says of flushed blocks comes from the store, and from the log itself after a kill: it does not depend on
what a killed process had in memory.  Gaps and refusals are told as they happen, at the latest a minute later, and are
in the store within a second, together with the positions behind them: a kill may lose refusals of its last second, and
no gap of a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from ..client import Consumer, Producer
from ..clock import now_ms, wall_s
from ..errors import ApplianceError, StorageFault, UnknownPartition
from ..processes.messages import InputStats
from ..wire.requests import LATEST
from .positions import PositionStore, Span, Told, merged
from .recovery import POLL_S, Recovery, ends_of, read_logs

logger = logging.getLogger(__name__)

SPANS_MAX: Final = 2_000
"""Spans of one row; a source that sends more blocks in a minute has several rows."""
GAPS_MAX: Final = 10_000
"""Gaps that wait to be published; more are counted in the last one of their source and minute, whose first one always
waits."""
SOURCE_GAPS_MAX: Final = 2_000
"""Gaps of one source and minute, so that those that a sender causes hide nothing of another source."""
ROW_GAPS_MAX: Final = 1_000
"""Gaps of one row, some 200 bytes each; a source that lost more in a minute has several rows.  A row beyond
``max.message.bytes`` would be refused for ever, and with it all that waits behind it."""
ROW_BYTES_MAX: Final = 2 << 20
"""Size of a row that is read: whoever may write to the topic could make rows as large as it takes."""
NAME_CHARS_MAX: Final = 32 * 1024
"""A path of 4,096 bytes, each escaped, and a reason around it."""
MORE: Final = "; more of them"
GAP: Final = "gap"
REFUSED: Final = "refused"
"""Kinds of :class:`.positions.Told`."""
TROUBLE_S: Final = 60
REFUSING_MINUTES: Final = 5
"""How long a refusal is shown, and counts as one of lately."""
TROUBLES_MAX: Final = 50
"""Reasons that are in the log in a minute: some name what a sender has sent, such as an application."""
TROUBLE_CHARS_MAX: Final = 500
MORE_TROUBLES: Final = "for more reasons than are in the log each minute"


SourceName = Annotated[str, msgspec.Meta(max_length=NAME_CHARS_MAX)]
LedgerCount = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Gap(msgspec.Struct, frozen=True):
    """What was lost before it was read.  ``stop``: None: not known."""

    start: int
    stop: int | None
    unit: SourceName
    reason: SourceName


class PlacedBlock(NamedTuple):
    """A span of a row: a block of a source, and where it is in the log."""

    topic: SourceName
    partition: LedgerCount
    offset: LedgerCount
    messages: LedgerCount
    start: LedgerCount
    stop: LedgerCount
    first_line: LedgerCount
    lines: LedgerCount
    bytes: LedgerCount


class LedgerRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of the ledger's topic."""

    input: SourceName
    host: SourceName
    source: SourceName
    number: LedgerCount
    store: SourceName
    minute: Annotated[int, msgspec.Meta(ge=0, le=2**36)]
    lines: LedgerCount = 0
    bytes: LedgerCount = 0
    messages: LedgerCount = 0
    spans: Annotated[list[PlacedBlock], msgspec.Meta(max_length=SPANS_MAX)] = []
    refused: dict[SourceName, LedgerCount] = {}
    gaps: Annotated[list[Gap], msgspec.Meta(max_length=GAPS_MAX)] = []


def shown_name(name: str) -> str:
    r"""The name of a source as text: bytes of a file's name that are no UTF-8 are ``\xff``."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


encode_row = msgspec.json.Encoder().encode
decode_row = msgspec.json.Decoder(LedgerRow).decode


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
        self._take_told()
        self._troubles: dict[str, tuple[float, int]] = {}
        self._begun: set[tuple[str, int]] = {row[:2] for row in store.partitions()}
        self._beginning: dict[tuple[str, int], asyncio.Lock] = {}
        self._making: asyncio.Task[None] | None = None
        self._stats, self._unread = InputStats(), ""
        self._trouble_source = 0
        """The source whose trouble the stats have; 0: the input itself."""
        self._trouble_ends_s = self._refusing_ends_s = math.inf
        self._refused_by_minute: Counter[int] = Counter()  # of the last REFUSING_MINUTES

    def _take_told(self) -> None:
        """What an earlier process has told, and not published."""
        for told in self._store.told():
            key = told.source, told.name, told.minute
            if told.kind == GAP:
                self._waiting += 1
                self._gaps.setdefault(key, []).append(msgspec.json.decode(told.what, type=Gap))
            else:
                self._refused.setdefault(key, Counter())[told.at] = int(told.what)

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
            bytes=stats.bytes + span.bytes,
            messages=stats.messages + span.messages,
            trouble="" if self._trouble_source in (span.source, 0) else stats.trouble,
        )

    def note_sources(self, count: int) -> None:
        """Set how many files, or senders, there are."""
        self._stats = msgspec.structs.replace(self._stats, sources=count)

    def note_unread(self, reason: str) -> None:
        """A source is there and is not read at all; "": no longer."""
        self._unread = shown_name(reason)

    def stats(self) -> InputStats:
        """What this process has taken in, for ``status``."""
        now_s = now_ms() / 1000
        if now_s >= self._trouble_ends_s:
            self._stats = msgspec.structs.replace(self._stats, trouble="")
        if now_s >= self._refusing_ends_s:
            self._stats = msgspec.structs.replace(self._stats, refusing="")
        self._forget_refusals(int(now_s) // 60)
        return msgspec.structs.replace(
            self._stats,
            trouble=self._stats.trouble or self._unread,
            refused_lately=self._refused_by_minute.total(),
        )

    def note_gap(
        self,
        number: int,
        source: str,
        start: int,
        stop: int | None,
        unit: str,
        reason: str,
        *,
        is_one_of_many: bool = False,
    ) -> None:
        """Something of a source was lost before it could be read.

        What follows the last one of its minute, for the same reason, is one with it.
        ``is_one_of_many``: whoever sends may make any number of them, so only the first of a minute is in the log.
        """
        source, reason = shown_name(source), shown_name(reason)
        key = number, source, self.minute()
        if not (is_one_of_many and key in self._gaps):
            end = "?" if stop is None else stop
            logger.warning("%s: %s from %d to %s are lost: %s", source, unit, start, end, reason)
        rows = self._gaps.setdefault(key, [])
        follows = bool(rows) and (rows[-1].stop, rows[-1].unit, rows[-1].reason) == (start, unit, reason)
        self._stats = msgspec.structs.replace(self._stats, gaps=self._stats.gaps + (not follows))
        if follows:
            rows[-1] = Gap(rows[-1].start, stop, unit, reason)
        elif not rows or (self._waiting < GAPS_MAX and len(rows) < SOURCE_GAPS_MAX):
            self._waiting += 1
            rows.append(Gap(start, stop, unit, reason))
        else:
            last = rows[-1]
            until = None if last.stop is None else stop  # of a part it is not known: neither is it of all
            rows[-1] = Gap(last.start, until, unit, last.reason.removesuffix(MORE) + MORE)  # once, however many
        self._store.note_told(Told(*key, GAP, str(len(rows) - 1), msgspec.json.encode(rows[-1])))

    def note_refused(
        self, number: int, source: str, reason: str, lines: int, *, sender: str = "", told: str = ""
    ) -> None:
        """Lines that no topic takes, or that nobody may send.

        ``sender``, ``told``: who has sent them, and why they are refused, for people; by default source and reason.
        """
        self._stats = msgspec.structs.replace(self._stats, refused=self._stats.refused + lines)
        key = number, shown_name(source), self.minute()
        of_source = self._refused.setdefault(key, Counter())
        of_source[reason] += lines
        self._store.note_told(Told(*key, REFUSED, reason, b"%d" % of_source[reason]))
        self.note_turned_away(sender or source, told or reason, lines)

    def note_turned_away(self, source: str, reason: str, times: int = 1) -> None:
        """What is wrong with one sender, or too much of it: the input takes what others send."""
        source, reason = shown_name(source), shown_name(reason)
        self._stats = msgspec.structs.replace(self._stats, refusing=f"{source}: {reason}"[:TROUBLE_CHARS_MAX])
        now_s = now_ms() / 1000
        self._refusing_ends_s = now_s + REFUSING_MINUTES * 60
        minute = int(now_s) // 60
        self._forget_refusals(minute)
        self._refused_by_minute[minute] += times
        self._log(source, "is refused", reason)

    def _forget_refusals(self, minute: int) -> None:
        for old in [old for old in self._refused_by_minute if old <= minute - REFUSING_MINUTES]:
            del self._refused_by_minute[old]

    def note_trouble(self, number: int, source: str, reason: str, *, lasting_s: float = math.inf) -> None:
        """What keeps a source waiting: a line in the log each minute, for each reason.

        ``lasting_s``: it is over then, unless it is noted again; one whose end is not known is shown before it.
        """
        source, reason = shown_name(source), shown_name(reason)
        if lasting_s == math.inf or self._trouble_ends_s < math.inf or not self._stats.trouble:
            self._stats = msgspec.structs.replace(self._stats, trouble=f"{source}: {reason}"[:TROUBLE_CHARS_MAX])
            self._trouble_source, self._trouble_ends_s = number, now_ms() / 1000 + lasting_s
        self._log(source, "waits", reason)

    def _log(self, source: str, what: str, reason: str) -> None:
        now = now_ms() / 1000
        if reason not in self._troubles and len(self._troubles) >= TROUBLES_MAX:
            self._troubles = {told: row for told, row in self._troubles.items() if now - row[0] < TROUBLE_S}
            if len(self._troubles) >= TROUBLES_MAX:
                reason = MORE_TROUBLES
        since, count = self._troubles.get(reason, (now - TROUBLE_S, 0))
        if now - since >= TROUBLE_S:
            again = f" ({count} times more in the last minute)" if count else ""
            logger.warning("%s %s: %s%s", source, what, reason, again)
            self._troubles[reason] = now, 0
        else:
            self._troubles[reason] = since, count + 1

    def goes_on(self, number: int) -> None:
        """Drop the trouble of a source, or of the input itself (0): it goes on."""
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
            counts, lost = dict(refused.get(key, {})), gaps.get(key, [])
            rows.append(self._row(number, source, minute, gaps=lost[:ROW_GAPS_MAX], refused=counts))
            for start in range(ROW_GAPS_MAX, len(lost), ROW_GAPS_MAX):
                rows.append(self._row(number, source, minute, gaps=lost[start : start + ROW_GAPS_MAX]))
        if not rows:
            return
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(self._send(row, loop) for row in rows))
        self._store.drop_spans(before)
        for key in gaps:
            self._waiting -= len(self._gaps.pop(key))
        for key in refused:
            del self._refused[key]

    def _row(self, number: int, source: str, minute: int, **values: Any) -> LedgerRow:
        return LedgerRow(self._name, self._host, shown_name(source), number, self._store.id, 60 * minute, **values)

    def _rows(self, before: int) -> Iterable[LedgerRow]:
        names = self._store.names()
        for group in merged(self._store.spans(before)):
            for start in range(0, len(group), SPANS_MAX):
                spans = group[start : start + SPANS_MAX]
                yield self._row(
                    *(spans[0].source, names.get(spans[0].source, ""), spans[0].minute),
                    lines=sum(span.lines for span in spans),
                    bytes=sum(span.bytes for span in spans),
                    messages=sum(span.messages for span in spans),
                    spans=[PlacedBlock(*span[1:10]) for span in spans],
                )

    async def _send(self, row: LedgerRow, loop: asyncio.AbstractEventLoop) -> None:
        done: asyncio.Future[None] = loop.create_future()

        def on_delivery(error: ApplianceError | None, *_: object) -> None:
            loop.call_soon_threadsafe(_settle, done, error)

        value, key = encode_row(row), row.source.encode()
        await asyncio.to_thread(self._producer.send, self._topic, value, key=key, on_delivery=on_delivery)
        await done

    # ---- the log, after a kill

    async def begin_partition(self, topic: str, partition: int) -> None:
        """Note durably from which offset on a partition has blocks of this input, before the first is sent.

        Raises:
            ApplianceError: its end is not known.
        """
        if self._making is None:
            self._making = asyncio.create_task(self._make_topic())
        if (topic, partition) in self._begun:
            return
        part = topic, partition
        async with self._beginning.setdefault(part, asyncio.Lock()):  # the second one asks after blocks of the first
            if part in self._begun:
                return
            ends = await asyncio.to_thread(ends_of, self._bootstrap, [part])
            if part not in ends:
                raise UnknownPartition(f"there is no {topic}-{partition} any more")
            self._store.add_partition(*part, ends[part])
            self._begun.add(part)
            del self._beginning[part]

    async def _make_topic(self) -> None:
        """Have the ledger's topic before the first row, which an ordered end may bring: that has little time."""
        with contextlib.suppress(ApplianceError):  # publishing tries again, and tells
            await asyncio.to_thread(self._producer.partitions, self._topic)

    async def note_ends(self) -> None:
        """At an ordered end: nothing of this input is on its way, so recovery may begin at the end of each log."""
        parts = [row[:2] for row in self._store.partitions() if row[:2] in self._begun]
        with contextlib.suppress(ApplianceError):  # else it reads more
            ends = await asyncio.to_thread(ends_of, self._bootstrap, parts)
            self._store.set_offsets((*part, offset) for part, offset in ends.items())
        with contextlib.suppress(StorageFault):
            self._store.end_in_order()

    async def recover(self) -> None:
        """Take blocks into account that are in the log and not in the store (:mod:`.recovery`).

        A topic that was deleted has none.  Blocks that go to one of its name later are noted from its end then.

        Raises:
            ApplianceError: a log cannot be read.
        """
        clock_s = asyncio.get_running_loop().time
        recovery = Recovery(self._store, clock_s())
        before = set(recovery.starts)
        while True:
            found, ends = await asyncio.to_thread(read_logs, self._bootstrap, recovery.starts)
            if recovery.take(found, ends, self.minute(), clock_s()):
                break
            await asyncio.sleep(POLL_S)
        for topic in sorted({topic for topic, _ in before - recovery.starts.keys()}):
            logger.warning("topic %s was deleted: what it had of this input is not looked for", topic)
        self._begun.intersection_update(recovery.starts)
        if recovery.blocks_count:
            logger.info("%d blocks are in the log and were not noted: taken into account", recovery.blocks_count)
        self._store.begin()


class LedgerReading:
    """How much of a ledger is read for one question.

    ``parts_max``: spans, gaps and reasons; ``until_ms``: by :func:`.now_ms`.
    ``unreadable``: messages that are no rows; ``is_cut``: there is more than was read.
    """

    def __init__(
        self,
        rows_max: float = math.inf,
        bytes_max: float = math.inf,
        parts_max: float = math.inf,
        until_ms: float = math.inf,
    ) -> None:
        self._rows_left, self._bytes_left, self._parts_left = rows_max, bytes_max, parts_max
        self._until_ms = until_ms
        self.unreadable, self.is_cut = 0, False

    def row(self, value: bytes) -> LedgerRow | None:
        """The row that a message is, if it is one and may still be taken."""
        self._bytes_left -= len(value)
        row = _row_of(value)
        self._rows_left -= 1
        if row is None:
            self.unreadable += 1
        else:
            self._parts_left -= len(row.spans) + len(row.gaps) + len(row.refused)
        return None if self.is_late() else row

    def is_late(self) -> bool:
        """Whether nothing more is to be read."""
        smallest_rest = min(self._rows_left, self._bytes_left, self._parts_left)
        self.is_cut = self.is_cut or smallest_rest < 0 or now_ms() >= self._until_ms
        return self.is_cut


def _row_of(value: bytes) -> LedgerRow | None:
    if len(value) > ROW_BYTES_MAX:
        return None
    try:
        return decode_row(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def read_rows(
    consumer: Consumer, topic: str, timestamp: int, reading: LedgerReading | None = None
) -> Iterator[LedgerRow]:
    """The rows of a ledger from a time on (ms since 1970, or EARLIEST), each once, as far as they are there now.

    Raises:
        UnknownPartition: no input has published anything yet.
    """
    return once(published_rows(consumer, topic, timestamp, reading or LedgerReading()))


def once(rows: Iterable[LedgerRow]) -> Iterator[LedgerRow]:
    """Rows without the spans and gaps of earlier ones: a kill lets them be published twice, also with others."""
    spans: set[tuple[str, int, int, int]] = set()
    others: set[bytes] = set()
    for row in rows:
        fresh = [span for span in row.spans if (row.store, row.number, span.start, span.offset) not in spans]
        spans.update((row.store, row.number, span.start, span.offset) for span in fresh)
        rest = encode_row(msgspec.structs.replace(row, spans=[], lines=0, bytes=0, messages=0))
        has_more = (row.gaps or row.refused) and (digest := _digest(rest)) not in others
        if has_more:
            others.add(digest)
        if fresh or has_more:
            yield msgspec.structs.replace(
                row,
                lines=sum(span.lines for span in fresh),
                bytes=sum(span.bytes for span in fresh),
                messages=sum(span.messages for span in fresh),
                spans=fresh,
                gaps=row.gaps if has_more else [],
                refused=row.refused if has_more else {},
            )


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def published_rows(
    consumer: Consumer, topic: str, timestamp: int, reading: LedgerReading, *, source: str = "", until: int = LATEST
) -> Iterator[LedgerRow]:
    """The rows as they are in the topic, some twice; of one source, if it is given.

    ``until``: ms since 1970, of those that were published before then.

    Raises:
        UnknownPartition: no input has published anything yet.
    """
    consumer.assign_topic(topic)
    ends = consumer.offsets_at(until)
    key = source.encode()
    consumer.assign(list(ends), at=timestamp)
    told = False
    while any(consumer.positions().get(part, 0) < end for part, end in ends.items()) and not reading.is_late():
        for message in consumer.poll(timeout=1.0, messages_max=10_000):
            if source and (message.key != key or message.offset >= ends[message.topic, message.partition]):
                continue
            row = reading.row(message.value or b"")
            if reading.is_cut:
                return
            if row is not None:
                yield row
            elif not told:  # once: whoever may write to the topic could fill the log
                told = True
                logger.warning("%s-%d at %d: no row of a ledger", topic, message.partition, message.offset)


def _settle(done: asyncio.Future[None], error: ApplianceError | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
