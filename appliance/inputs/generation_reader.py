"""Reads the new bytes of a generation into messages, sends them, and takes as committed what is flushed.

A block of lines is one batch, whose first message has the header ``origin``.  What cannot be sent is read again, from
what is flushed on.

Bounds: READ_BYTES at a time, TURN_BYTES before other files have their turn; and what the outlet has room for.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import Final

from ..errors import ApplianceError, StorageFault
from ..records.encode import encode_headers
from .files_settings import FilesSettings
from .generation import HEAD_BYTES, NOT_SEEN, TAIL_BYTES, FileState, Generation, Identity
from .in_order import InOrder
from .ledger import Ledger
from .lines import Block, Encoding, LineReader
from .outlet import ORIGIN_BYTES, Outlet, Placed
from .positions import ORIGIN, BlockOrigin, PositionStore, Span
from .rotation import key_of
from .topic_lookup import TopicLookup
from .unpacking import Unpacker

READ_BYTES: Final = 256 * 1024
TURN_BYTES: Final = 4 * READ_BYTES
"""How much of one file is read before others have their turn."""
RETRY_MS: Final = 2_000
_BOMS: Final[tuple[tuple[bytes, Encoding], ...]] = ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))


class ReadOutcome(Enum):
    """How a turn of reading ended."""

    MORE = auto()
    """There may be more to read."""
    ENOUGH = auto()
    """There is nothing more for now, no room, or a fault."""
    REPLACED = auto()
    """The file has other content than what was read of it."""


class GenerationReader:
    """Reads generations whose file, plain or compressed, is open."""

    def __init__(
        self,
        settings: FilesSettings,
        store: PositionStore,
        outlet: Outlet,
        ledger: Ledger,
        clock_ms: Callable[[], float],
    ) -> None:
        self._settings, self._store, self._outlet, self._ledger = settings, store, outlet, ledger
        self._clock_ms = clock_ms
        self._topics = TopicLookup(outlet, ledger, clock_ms)

    async def read(self, generation: Generation, until_ms: float) -> ReadOutcome:
        """Read up to TURN_BYTES of a file, waiting for room in the outlet until then."""
        generation.is_at_end, generation.fault = False, ""
        unpacker = generation.unpacker
        try:
            if unpacker is None and not self._is_whole(generation):  # seen also as long as its topic takes nothing
                return ReadOutcome.REPLACED
            if generation.reader is None and not await self._prepare(generation, until_ms):
                return ReadOutcome.ENOUGH
            if unpacker is None:
                return await self._read_plain(generation, until_ms)
            return await self._read_packed(generation, unpacker, until_ms)
        except OSError as error:
            path = generation.path if unpacker is None else unpacker.path
            fault = f"cannot be read: {error.strerror}"
            self.fail(generation, fault if unpacker is None else f"{path} {fault}")
            generation.fault = f"{path} {fault}"
            return ReadOutcome.ENOUGH

    async def _read_plain(self, generation: Generation, until_ms: float) -> ReadOutcome:
        """Raises OSError."""
        reader = generation.reader
        assert reader is not None
        for _ in range(TURN_BYTES // READ_BYTES):
            if not await self._has_room(until_ms) or generation.reader is not reader:
                return ReadOutcome.ENOUGH
            if not self._is_whole(generation):
                return ReadOutcome.REPLACED
            if generation.in_flight and generation.in_flight.has_failed:
                return ReadOutcome.ENOUGH
            read_bytes = os.pread(generation.fd, READ_BYTES, generation.read_at)
            if not read_bytes:
                self._note_end(generation)
                return ReadOutcome.ENOUGH
            self._feed(generation, reader, read_bytes)
        return ReadOutcome.MORE

    async def _read_packed(self, generation: Generation, unpacker: Unpacker, until_ms: float) -> ReadOutcome:
        """As :meth:`_read_plain`, of a compressed file, whose bytes before the position are unpacked first."""
        reader = generation.reader
        assert reader is not None
        for _ in range(TURN_BYTES // READ_BYTES):
            if not await self._has_room(until_ms) or generation.reader is not reader:
                return ReadOutcome.ENOUGH
            if generation.in_flight and generation.in_flight.has_failed:
                return ReadOutcome.ENOUGH
            unpacked = b""
            if unpacker.position == generation.read_at:
                unpacked = unpacker.read(READ_BYTES)
            else:
                unpacker.skip_to(generation.read_at, READ_BYTES)
                generation.last_bytes = unpacker.recent
            if unpacked:
                self._feed(generation, reader, unpacked)
            elif unpacker.is_over:
                self._note_end(generation)
                return ReadOutcome.ENOUGH
            await asyncio.sleep(0)
        return ReadOutcome.MORE

    def _note_end(self, generation: Generation) -> None:
        generation.is_dirty, generation.is_at_end = False, True
        self._end_event_when_late(generation)

    def _feed(self, generation: Generation, reader: LineReader, new_bytes: bytes) -> None:
        """Send the lines that end in what was read."""
        if generation.read_at == len(generation.head):
            generation.head += new_bytes[: HEAD_BYTES - len(generation.head)]
        generation.read_at += len(new_bytes)
        recent = generation.last_bytes + new_bytes
        generation.last_bytes = recent[-TAIL_BYTES:]
        generation.changed_ms = self._clock_ms()
        blocks = reader.feed(new_bytes)
        if not blocks:  # the beginning of a line: its file, or a copy, is to be known by it
            generation.mark(generation.read_at, recent)
        self._send(generation, blocks, recent)

    async def _has_room(self, until_ms: float) -> bool:
        """Wait for room in the outlet, until then."""
        if self._outlet.has_room:
            return True
        wait_ms = until_ms - self._clock_ms()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if wait_ms == math.inf else max(0, wait_ms) / 1000):
                await self._outlet.room()
                return True
        return False

    async def _prepare(self, generation: Generation, until_ms: float) -> bool:
        """Learn the topic, waiting until then, and make the reader; False: not now."""
        settings = self._settings
        try:
            topic = settings.topic_of(generation.path)
            place = await self._topics.place_of(topic, key_of(generation.path), until_ms)
        except ApplianceError as error:
            self.fail(generation, str(error))
            return False
        if place is None:
            return False
        generation.topic, generation.partition = topic, place.partition
        generation.tail = encode_headers(settings.headers_of(generation.path))
        record_bytes = 24 + len(generation.tail)
        room = place.block_bytes_max - record_bytes - ORIGIN_BYTES
        self._begin_head(generation)
        generation.reader = LineReader(
            generation.committed,
            generation.committed_line,
            encoding=self._encoding(generation),
            message_bytes_max=min(settings.message_bytes_max, room - record_bytes),
            block_bytes_max=room,
            record_bytes=record_bytes,
            starts=settings.starts,
            is_blank=generation.committed_line == 1 and not generation.head.strip(b"\0"),
        )
        generation.read_at, generation.last_bytes = generation.committed, b""
        return True

    def _begin_head(self, generation: Generation) -> None:
        """The first bytes, as far as they were read."""
        generation.head = b""
        if generation.unpacker is not None:
            generation.head = generation.unpacker.head[: generation.committed]
            return
        with contextlib.suppress(OSError):
            generation.head = os.pread(generation.fd, min(HEAD_BYTES, generation.committed), 0)

    def _encoding(self, generation: Generation) -> Encoding:
        if self._settings.encoding == "utf-16":
            head = os.pread(generation.fd, 2, 0) if generation.unpacker is None else generation.unpacker.head[:2]
            return next((encoding for bom, encoding in _BOMS if head == bom), "utf-16-le")
        return self._settings.encoding  # type: ignore[return-value]  # checked with the settings

    def _is_whole(self, generation: Generation) -> bool:
        """Whether the file still has what was read of it.  Raises OSError."""
        status = os.fstat(generation.fd)
        looked = FileState.of(status)
        if looked == generation.looked:
            return True
        count = len(generation.last_bytes)
        is_whole = (
            status.st_size >= generation.read_at
            and generation.marks[-1].has_head(generation.fd)  # also of what was read, and could not be sent
            and (
                os.pread(generation.fd, count, generation.read_at - count) == generation.last_bytes
                if count
                else generation.identity.fits(generation.fd, generation.committed)
            )
        )
        if is_whole:
            generation.looked = looked
            generation.seen_bytes = max(generation.seen_bytes, status.st_size)
        return is_whole

    def _end_event_when_late(self, generation: Generation) -> None:
        reader = generation.reader
        if reader is not None and reader.awaits_event:
            if self._clock_ms() - generation.changed_ms >= self._settings.event_ms:
                self._send(generation, reader.end_event())
            else:
                generation.is_dirty = True

    def send_rest(self, generation: Generation) -> None:
        """Send the line without an end that is held back, for nothing follows."""
        if generation.reader is not None and generation.reader.held_bytes:
            self._send(generation, generation.reader.finish())

    def _send(self, generation: Generation, blocks: list[Block], recent: bytes = b"") -> None:
        """Send each block as a batch; ``recent``: bytes up to where the file was read, if more than ``last_bytes``."""
        for block in blocks:
            if generation.fd >= 0 or generation.unpacker is not None:
                generation.mark(block.stop, recent or generation.last_bytes)
            if block.skipped:
                self._skip(generation, block)
                continue
            future: asyncio.Future[Placed] = asyncio.get_running_loop().create_future()
            identity = generation.marks[-1].encode().decode()
            origin = BlockOrigin(self._store.id, generation.source, *block[1:5], identity).encode()
            headers = [*self._settings.headers_of(generation.path)]
            if block.part:
                headers.append(("part", b"%d" % block.part))
            first = encode_headers([(ORIGIN, origin), *headers])
            tails = [generation.tail] * len(block.values)
            tails[0] = first
            try:
                future = self._outlet.send(generation.topic, generation.partition, block.values, tails)
            except ApplianceError as error:
                future.set_exception(error)
            if generation.in_flight is None:
                generation.in_flight = InOrder(
                    partial(self._note_flushed, generation), lambda error: self.fail(generation, str(error))
                )
            generation.in_flight.add_block((block, generation.marks[-1]), future)

    def _skip(self, generation: Generation, block: Block) -> None:
        """Tell of the first bytes of a file that are in no message, and commit that before anything behind them is
        sent: the log has no origin that a recovery could go on from."""
        at = generation.source, generation.path, block.start, block.stop
        self._ledger.note_gap(*at, "bytes", "NUL bytes at the beginning", is_one_of_many=True)
        self._note_flushed(generation, (block, generation.marks[-1]), Placed("", 0, 0, 0))
        with contextlib.suppress(StorageFault):  # it stays noted, and the process tells when it tries again
            self._store.commit()

    def _note_flushed(self, generation: Generation, sent: tuple[Block, Identity], placed: Placed) -> None:
        """Note that a block is flushed, and so is all before it."""
        block, identity = sent
        generation.committed, generation.committed_line = block.stop, block.first_line + block.lines
        generation.identity = identity._replace(key=generation.key)  # it may go on in a copy since
        row = generation.row(ended=False)
        if placed.messages:
            span = Span(generation.source, *placed, *block[1:5], block.stop - block.start, self._ledger.minute())
            self._ledger.note(span)
            self._store.note(row, span)
        else:
            self._store.note(row)

    def fail(self, generation: Generation, reason: str) -> None:
        """Read it again later, from what is flushed on."""
        self._ledger.note_trouble(generation.source, generation.path, reason)
        generation.retry_ms = self._clock_ms() + RETRY_MS
        generation.is_dirty, generation.is_at_end = True, False
        if not generation.in_flight:
            self.rewind(generation)

    def rewind(self, generation: Generation) -> None:
        """Read it from what is flushed on, and look at its file anew."""
        generation.reader = None
        generation.read_at = generation.committed
        generation.last_bytes = b""
        generation.looked = NOT_SEEN
