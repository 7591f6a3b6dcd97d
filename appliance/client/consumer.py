"""The consumer for explicit partitions: it reads what it is told to, from where it is told to.

    with Consumer("127.0.0.1:9091") as consumer:
        consumer.assign({("logs", 0): EARLIEST})
        for message in consumer.messages(timeout=1.0):    # never ends without a timeout
            ...
        for batch in consumer.fetch_batches(timeout=1.0): # the fast path: lists of values
            ...

A position is the offset of the next message; it moves when a message is handed out, and it is the consumer's
alone: nothing is stored (see ``group.py`` for that).  Offsets are byte positions in the partition's log, so
they grow by more than one from message to message where a batch begins; offset + 1 is always a valid position
after a message.

Every batch's checksum is verified (``check_crc``).  A damaged one raises
:class:`~appliance.errors.CorruptBatch` until the consumer is moved beyond it, or with ``on_corrupt="skip"``
is passed over and counted in ``corrupt_batches``.

What has been fetched and not decoded is at most ``buffer_bytes_max`` for a partition and ``total_bytes_max`` in all,
see ``fetcher.py``.

Not thread-safe, not fork-safe: make consumers after forking.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from ..errors import ApplianceError, BadValue, ClientFault, CorruptBatch, InvalidRequest
from ..records.batch import COUNT_AT, HEADER_BYTES, LENGTH_AT, LENGTH_END
from ..records.decode import Record, decode_batch, decode_values
from ..wire.requests import EARLIEST, LATEST
from .cluster_client import Cluster
from .fetcher import Chunk, Fetcher, FetchOptions, Place
from .troubles import Trouble

T = TypeVar("T")

RESETS: Final = ("earliest", "latest", "raise")
MEBIBYTE: Final = 1024 * 1024
RESOLVE_S: Final = 1.0
"""So often a partition is asked again where it begins."""


class Message(NamedTuple):
    """``timestamp``: ms since 1970."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Values(NamedTuple):
    """The values of consecutive messages; ``next_offset`` is the position after the last."""

    topic: str
    partition: int
    values: Sequence[bytes | None]
    next_offset: int


class Decoder:
    """Turns chunks into messages or values; decides about damaged batches."""

    def __init__(self, *, check_crc: bool, on_corrupt: str) -> None:
        _require(on_corrupt in ("raise", "skip"), f"on_corrupt={on_corrupt!r}: give 'raise' or 'skip'")
        self._check_crc = check_crc
        self._skip = on_corrupt == "skip"
        self.corrupt_batches = 0

    def values(self, chunk: Chunk) -> Values | None:
        """The next batch of the chunk; None when there is none left."""
        found = self._next(chunk, self._values)
        if found is None:
            return None
        values, next_offset = found
        unwanted = chunk.wanted - (next_offset - len(values))
        return Values(*chunk.fetched.place, values[unwanted:] if unwanted > 0 else values, next_offset)

    def messages(self, chunk: Chunk) -> list[Message] | None:
        """The next batch of the chunk; None when there is none left."""
        records = self._next(chunk, self._records)
        if records is None:
            return None
        topic, partition = chunk.fetched.place
        wanted = chunk.wanted
        if records[0].offset < wanted:
            records = [record for record in records if record.offset >= wanted]
        return [Message(topic, partition, *record) for record in records]

    def _values(self, chunk: Chunk) -> tuple[Sequence[bytes | None], int]:
        return decode_values(chunk.data, chunk.at, check_crc=self._check_crc)

    def _records(self, chunk: Chunk) -> list[Record]:
        return decode_batch(chunk.data, chunk.at, check_crc=self._check_crc)

    def _next(self, chunk: Chunk, decode: Callable[[Chunk], T]) -> T | None:
        data, stop = chunk.data, len(chunk.data)
        while chunk.at < stop:
            start = chunk.at
            size = int.from_bytes(data[start + LENGTH_AT : start + LENGTH_END], "big") + LENGTH_END
            sane = HEADER_BYTES <= size <= stop - start
            try:
                if not sane or not _in_place(chunk, start, size):
                    raise CorruptBatch("its header contradicts its place in the log")
                decoded = decode(chunk)
            except ClientFault as error:
                # Where the header cannot be believed nobody knows where the next batch begins.
                after = start + size if sane else stop
                if not self._skip:
                    topic, partition = chunk.fetched.place
                    raise CorruptBatch(
                        f"{topic}-{partition}: damaged batch at {chunk.position + start}: {error}; "
                        f"seek to {chunk.position + after} to go on behind it"
                    ) from None
                self.corrupt_batches += 1
                chunk.at = after
                continue
            chunk.at = start + size
            return decoded
        return None


class Consumer:
    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_name: str = "",
        fetch_bytes_max: int = 4 * MEBIBYTE,
        partition_bytes_max: int = MEBIBYTE,
        buffer_bytes_max: int = 2 * MEBIBYTE,
        total_bytes_max: int = 64 * MEBIBYTE,
        wait_ms_max: int = 500,
        bytes_min: int = 1,
        request_timeout_ms: int = 30_000,
        on_out_of_range: str = "earliest",
        on_corrupt: str = "raise",
        check_crc: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        _require(on_out_of_range in RESETS, f"on_out_of_range={on_out_of_range!r}: one of {', '.join(RESETS)}")
        self._clock = clock
        self._cluster = Cluster(bootstrap, client_name=client_name, request_timeout_ms=request_timeout_ms)
        options = FetchOptions(
            bytes_max=fetch_bytes_max,
            partition_bytes_max=partition_bytes_max,
            buffer_bytes_max=buffer_bytes_max,
            total_bytes_max=total_bytes_max,
            wait_ms_max=wait_ms_max,
            bytes_min=bytes_min,
            request_timeout_ms=request_timeout_ms,
            reset=None if on_out_of_range == "raise" else on_out_of_range,
        )
        self._fetcher = Fetcher(self._cluster, options, clock=clock)
        self._decoder = Decoder(check_crc=check_crc, on_corrupt=on_corrupt)
        self._positions: dict[Place, int] = {}
        self._unresolved: dict[Place, int] = {}  # to begin at these times, as soon as their brokers can say where
        self._resolve_s = 0.0
        self._step = _Step(self)
        self._started: dict[Place, int] = {}
        self._chunks: deque[Chunk] = deque()
        self._ready: deque[Message] = deque()
        self._closed = False

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._fetcher.close()
            self._cluster.close()

    # ---- where to read

    def assign(self, partitions: Mapping[Place, int] | Iterable[Place], *, at: int = EARLIEST) -> None:
        """Read these partitions and no others.

        A partition that cannot say now where it begins is waited for while the others are read; ``troubles`` names it.

        Args:
            partitions: (topic, partition) -> offset, EARLIEST or LATEST; or partitions that all begin at ``at``.
            at: EARLIEST, LATEST or ms since 1970.

        Raises:
            UnknownPartition: there is no such partition.
        """
        wanted = dict(partitions) if isinstance(partitions, Mapping) else {}
        timed = {} if isinstance(partitions, Mapping) else dict.fromkeys(partitions, at)
        self._cluster.refresh({topic for topic, _ in [*wanted, *timed]})
        positions = {place: offset for place, offset in wanted.items() if offset >= 0}
        timed |= {place: offset for place, offset in wanted.items() if offset < 0}
        for place in positions:
            self._cluster.partition(*place)
        found, failed = self._cluster.try_offsets(timed)
        for error in failed.values():
            if not error.retriable:
                raise error
        positions |= found
        self._chunks.clear()
        self._ready.clear()
        self._fetcher.assign(positions)
        self._positions = positions
        self._started = dict(positions)
        self._unresolved = {place: timed[place] for place in failed}
        for place, error in failed.items():
            self._fetcher.troubles.begin(place, error)

    def troubles(self) -> list[Trouble]:
        """What this consumer waits for at the moment, the oldest first: brokers, partitions, metadata."""
        return self._fetcher.troubles.current()

    def assign_topic(self, topic: str, offset: int = EARLIEST) -> None:
        """Read all partitions that the topic has now."""
        self._cluster.refresh([topic])
        self.assign({(topic, partition): offset for partition in range(len(self._cluster.topic(topic).leaders))})

    def positions(self) -> dict[Place, int]:
        """The offset of the next message of every partition that is assigned; those that could not say yet where
        they begin are left out.
        """
        return dict(self._positions)

    def position(self, topic: str, partition: int) -> int:
        return self._positions[self._assigned((topic, partition))]

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on at ``offset``; the first message handed out is the first one at or after it."""
        place = self._assigned((topic, partition))
        if offset < 0:
            offset = self._cluster.offsets({place: offset})[place]
        self._ready = deque(message for message in self._ready if message[:2] != place)
        self._chunks = deque(chunk for chunk in self._chunks if chunk.fetched.place != place)
        self._fetcher.seek(place, offset)
        self._positions[place] = offset

    def seek_to_beginning(self, *places: Place) -> None:
        self._seek_all(places, EARLIEST)

    def seek_to_end(self, *places: Place) -> None:
        """Go on behind the last message that can be read now."""
        self._seek_all(places, LATEST)

    def seek_to_time(self, timestamp_ms: int, *places: Place) -> None:
        """Go on at the first message of that time or later; at the end where there is none."""
        if timestamp_ms < 0:
            raise InvalidRequest(f"timestamp {timestamp_ms}: give milliseconds since 1970")
        self._seek_all(places, timestamp_ms)

    def rewind(self, *places: Place) -> None:
        """Read once more what has been read since :meth:`assign`."""
        for place in places or tuple(self._positions):
            self.seek(*place, self._started[self._assigned(place)])

    def offsets_at(self, timestamp: int, places: Iterable[Place] | None = None) -> dict[Place, int]:
        """Offsets for EARLIEST, LATEST or a time in ms; of what is assigned, unless told otherwise."""
        asked = list(self._positions if places is None else places)
        self._cluster.refresh({topic for topic, _ in asked})
        return self._cluster.offsets(dict.fromkeys(asked, timestamp))

    def ends(self) -> dict[Place, int]:
        """Where each assigned partition ended when it last answered: the difference to the position is lag in
        bytes.  Costs nothing; ``offsets_at(LATEST)`` asks.
        """
        return self._fetcher.ends()

    @property
    def corrupt_batches(self) -> int:
        """Damaged batches that were skipped."""
        return self._decoder.corrupt_batches

    # ---- reading

    def fetch_batches(self, timeout: float | None = None) -> list[Values]:
        """What has arrived, waiting for something up to ``timeout`` seconds (None: for ever).

        Each :class:`Values` is one batch as it was produced, headers and keys left out.

        Raises:
            CorruptBatch, OffsetOutOfRange, UnknownPartition: see the message; good batches before come first.
        """
        deadline_s = None if timeout is None else self._clock() + timeout
        with self._step:
            moved = self._ready_values()
            try:
                while not any(values.values for values in moved):
                    if not self._chunks and not self._fetch(deadline_s):
                        break
                    self._decode_values(moved)
            except CorruptBatch:
                if not moved:
                    raise
            for values in moved:
                self._positions[values.topic, values.partition] = values.next_offset
            return [values for values in moved if values.values]

    def _decode_values(self, moved: list[Values]) -> None:
        """Decode the first chunk."""
        chunk = self._chunks[0]
        while not chunk.fetched.dropped and (values := self._decoder.values(chunk)) is not None:
            moved.append(values)
        self._chunks.popleft()
        if not chunk.fetched.dropped:
            chunk.release()

    def poll(self, timeout: float | None = None, messages_max: int = 500) -> list[Message]:
        """Up to ``messages_max`` messages, waiting for the first up to ``timeout`` seconds."""
        with self._step:
            self._fill(timeout)
            ready = self._ready
            messages = [ready.popleft() for _ in range(min(messages_max, len(ready)))]
            for message in messages:
                self._positions[message[:2]] = message.offset + 1
            return messages

    def messages(self, timeout: float | None = None) -> Iterator[Message]:
        """Message after message, for ever; ends when none has come for ``timeout`` seconds."""
        while True:
            if not self._ready or self._closed:
                with self._step:
                    self._fill(timeout)
                if not self._ready:
                    return
            ready = self._ready  # a seek replaces it
            message = ready.popleft()
            self._positions[message[:2]] = message.offset + 1
            yield message

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def _fill(self, timeout: float | None) -> None:
        """Decode until there is a message, waiting up to ``timeout`` seconds."""
        deadline_s = None if timeout is None else self._clock() + timeout
        while not self._ready:
            while self._chunks and not self._ready:
                chunk = self._chunks[0]
                messages = None if chunk.fetched.dropped else self._decoder.messages(chunk)
                if messages is None:
                    self._chunks.popleft().release()
                else:
                    self._ready += messages
            if self._ready or not self._fetch(deadline_s):
                return

    def _fetch(self, deadline_s: float | None) -> bool:
        """Wait for chunks; False when the time is up."""
        if self._unresolved and self._clock() >= self._resolve_s:
            self._resolve()
        left_s = None if deadline_s is None else deadline_s - self._clock()
        pause_s = left_s
        if self._unresolved:
            pause_s = RESOLVE_S if left_s is None else min(left_s, RESOLVE_S)
        self._chunks += self._fetcher.poll(pause_s)
        return bool(self._chunks) or deadline_s is None or self._clock() < deadline_s

    def _resolve(self) -> None:
        """Ask again where partitions begin that could not say."""
        self._resolve_s = self._clock() + RESOLVE_S
        troubles = self._fetcher.troubles
        try:
            self._cluster.refresh({topic for topic, _ in self._unresolved})
        except ApplianceError as error:
            troubles.begin("metadata", error)
            return
        found, failed = self._cluster.try_offsets(self._unresolved)
        for place, offset in found.items():
            del self._unresolved[place]
            troubles.end(place)
            self._fetcher.seek(place, offset)
            self._positions[place] = self._started[place] = offset
        for place, why in failed.items():
            if not why.retriable:
                raise why
            troubles.begin(place, why)

    def go_back(self, positions: Mapping[Place, int]) -> None:
        """Begin again there: an interrupt left a call in its middle, with messages that nobody has got."""
        self._positions.update(positions)
        self._chunks.clear()
        self._ready.clear()
        self._fetcher.disconnect()
        self._fetcher.assign(self._positions)

    def _ready_values(self) -> list[Values]:
        """Messages that were decoded for :meth:`messages`, when the caller changes to batches."""
        found: list[Values] = []
        for place, messages in itertools.groupby(self._ready, lambda message: message[:2]):
            run = list(messages)
            next_offset = run[-1].offset + 1
            values = [message.value for message in run]
            found.append(Values(place[0], place[1], values, next_offset))
        self._ready.clear()
        return found

    def _seek_all(self, places: Sequence[Place], timestamp: int) -> None:
        chosen = [self._assigned(place) for place in places] or list(self._positions)
        for place, offset in self._cluster.offsets(dict.fromkeys(chosen, timestamp)).items():
            self.seek(*place, offset)

    def _assigned(self, place: Place) -> Place:
        if place not in self._positions:
            raise InvalidRequest(f"{place[0]}-{place[1]} is not assigned to this consumer: assign it first")
        return place

    def check_usable(self) -> None:
        if self._closed:
            raise InvalidRequest("this consumer is closed")
        if not self._positions and not self._unresolved:
            raise InvalidRequest("nothing is assigned to this consumer: call assign first")


class _Step:
    """Around what a call does: takes it back when an interrupt leaves it in its middle, so that nothing is skipped."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._before: dict[Place, int] | None = None

    def __enter__(self) -> None:
        self._consumer.check_usable()
        self._take_back()
        self._before = self._consumer.positions()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not issubclass(kind, ApplianceError):
            self._take_back()
        self._before = None

    def _take_back(self) -> None:
        if self._before is not None:
            self._consumer.go_back(self._before)


def _in_place(chunk: Chunk, start: int, size: int) -> bool:
    """Whether the base offset, which no checksum covers, is what the place in the log says."""
    data = chunk.data
    base = int.from_bytes(data[start : start + LENGTH_AT], "big", signed=True)
    count = int.from_bytes(data[start + COUNT_AT : start + HEADER_BYTES], "big")
    return base + count == chunk.position + start + size


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise BadValue(text)


__all__ = ["EARLIEST", "LATEST", "Consumer", "Message", "Values"]
