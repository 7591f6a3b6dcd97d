"""Takes journals in that hosts upload, as ``systemd-journal-upload`` does: ``POST /upload``, many at a time.

The body is in the Journal Export Format and has no end while entries come: they are put as they arrive, and the answer
comes once all of them are flushed.  ``systemd-journal-upload`` begins a request when there are entries, ends it when it
has sent the last one, and stores its cursor when it is answered with 2xx; after any other answer, or none, it ends, is
started again by its unit, and sends from that cursor on.  So nothing is lost, and what was on its way may come twice,
with the same header ``cursor``.

A message is as one of the input ``journal`` (:mod:`.journal_blocks`), with one header more, ``cursor``.

journald numbers the entries of a host in one sequence: a number that is missing behind one that is flushed is a gap,
told once what follows it is flushed.  What came last of a sequence is remembered while the process lives.

Bounds: PUTS_MAX pieces of a body are on their way, the others are not read; SEQUENCES_MAX sequences are followed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ..records.encode import encode_headers
from .bodies import Rejected
from .intake import InputMessage
from .journal_blocks import (
    REMOVED,
    SEQUENCES_MAX,
    TAIL_BYTES_MAX,
    JournalGap,
    cursor_of,
    headers_of,
    json_of,
    sequence_number_of,
)
from .journal_export import ExportFault, ExportReader, JournalEntry

if TYPE_CHECKING:
    from .intake import Intake
    from .ledger import Ledger

CONTENT_TYPE: Final = "application/vnd.fdo.journal"
UPLOAD_PATH: Final = "/upload"
PUTS_MAX: Final = 16
"""Pieces of one body that are not flushed."""
FLUSH_MS_MAX: Final = 30_000
"""How long one of them may take."""


class JournalUploads:
    """What the uploads of one input share: the last sequence numbers, and where gaps are noted."""

    def __init__(self, intake: Intake, ledger: Ledger, *, entry_bytes_max: int, has_all: bool) -> None:
        """``has_all``: senders upload every entry of their journals, so one that is missing was lost."""
        self.intake, self.ledger = intake, ledger
        self.entry_bytes_max, self.has_all = entry_bytes_max, has_all
        self._flushed: dict[str, int] = {}  # the last number that is flushed, by the id of its sequence

    def flushed_number(self, sequence: str) -> int | None:
        return self._flushed.get(sequence)

    def note_flushed(self, host: str, numbers: dict[str, int], gaps: list[JournalGap]) -> None:
        for gap in gaps:
            self.ledger.note_gap(self.intake.number_of(host), host, *gap, is_one_of_many=True)
        for sequence, number in numbers.items():
            last = self._flushed.pop(sequence, 0)
            if len(self._flushed) >= SEQUENCES_MAX:
                del self._flushed[next(iter(self._flushed))]
            self._flushed[sequence] = max(last, number)


class Upload:
    """The body of one upload, from its first piece to :meth:`finish`."""

    def __init__(
        self, uploads: JournalUploads, host: str, place: Callable[[str, str], tuple[str, bytes | None]]
    ) -> None:
        """``place``: topic and key of messages of an application on a host."""
        self._uploads, self._host, self._place = uploads, host, place
        self._reader = ExportReader(uploads.entry_bytes_max)
        self._numbers: dict[str, int] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.entries = 0

    @property
    def held_bytes(self) -> int:
        """Memory for an entry that is not complete."""
        return self._reader.held_bytes

    async def feed(self, data: bytes) -> None:
        """Put the entries of the next piece of the body; wait while too many are on their way.

        Raises:
            Rejected, ApplianceError: an entry is none, or cannot be put; what was put before may be in the log.
        """
        try:
            entries = [entry for entry in self._reader.feed(data) if entry.fields]
        except ExportFault as error:
            raise Rejected(400, f"no Journal Export Format: {error}; entries before it were taken") from None
        by_topic: dict[str, list[InputMessage]] = {}
        gaps: list[JournalGap] = []
        numbers: dict[str, int] = {}
        cut = 0
        for entry in entries:
            self._compare(entry, numbers, gaps)
            cut += await self._add(entry, by_topic)
        if cut:
            self._uploads.ledger.note_refused(
                self._uploads.intake.number_of(self._host), self._host, "fields beyond message_bytes_max", cut
            )
        puts = [await self._uploads.intake.begin(self._host, topic, messages) for topic, messages in by_topic.items()]
        if puts:
            flushed = asyncio.ensure_future(self._settle(puts, numbers, gaps))
            flushed.add_done_callback(_look_at)
            self._waiting.append(flushed)
            self.entries += len(entries)
        await self._flush(PUTS_MAX)

    async def finish(self) -> None:
        """The body is complete: wait until everything is flushed.

        Raises:
            Rejected, ApplianceError: as :meth:`feed`, or the body ends within an entry.
        """
        await self._flush(0)
        if self._reader.is_within_entry:
            raise Rejected(400, "the upload ends within an entry; those before it were taken")

    async def _flush(self, pieces_max: int) -> None:
        """Wait until at most ``pieces_max`` pieces are on their way."""
        while len(self._waiting) > pieces_max:
            done, _ = await asyncio.wait([self._waiting[0]], timeout=FLUSH_MS_MAX / 1000)
            if not done:
                raise Rejected(503, f"not flushed within {FLUSH_MS_MAX} ms: send it again; some may be in the log")
            await self._waiting.popleft()

    async def _settle(self, puts: list[asyncio.Future[None]], numbers: dict[str, int], gaps: list[JournalGap]) -> None:
        results = await asyncio.gather(*puts, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        self._uploads.note_flushed(self._host, numbers, gaps)

    def _compare(self, entry: JournalEntry, numbers: dict[str, int], gaps: list[JournalGap]) -> None:
        """Note the number of an entry, and those that are missing before it."""
        numbered = sequence_number_of(entry.first("__CURSOR").decode("ascii", "replace"))
        if numbered is None or not self._uploads.has_all:
            return
        sequence, number = numbered
        last = self._numbers.get(sequence, self._uploads.flushed_number(sequence))
        if last is not None and number > last + 1:
            gaps.append(JournalGap(last + 1, number, "sequence numbers", REMOVED))
        if len(self._numbers) >= SEQUENCES_MAX and sequence not in self._numbers:
            del self._numbers[next(iter(self._numbers))]
        self._numbers[sequence] = numbers[sequence] = max(number, last or 0)

    async def _add(self, entry: JournalEntry, by_topic: dict[str, list[InputMessage]]) -> bool:
        """Make the message of an entry; return whether some of its fields did not fit."""
        app = (entry.first("SYSLOG_IDENTIFIER") or entry.first("_COMM")).decode("utf-8", "replace")
        host = entry.first("_HOSTNAME").decode("utf-8", "replace") or self._host
        topic, key = self._place(app, host)
        bytes_max = await self._uploads.intake.block_bytes_max(topic) - TAIL_BYTES_MAX
        value, cut = json_of(entry, min(self._uploads.entry_bytes_max, bytes_max))
        headers = headers_of(entry, cut)
        try:
            headers.append(("cursor", cursor_of(entry).encode()))
        except ExportFault:  # from a sender that has none: it is no position here
            pass
        by_topic.setdefault(topic, []).append(InputMessage(value, encode_headers(headers), key))
        return bool(cut)


def _look_at(done: asyncio.Future[None]) -> None:
    """Look at the result, which nobody waits for once another put has failed: asyncio would report it as forgotten."""
    if not done.cancelled():
        done.exception()
