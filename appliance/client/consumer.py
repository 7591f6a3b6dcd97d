"""The consumer for explicit partitions: it reads the partitions that it is given, from given offsets.

Example::

    with Consumer("127.0.0.1:9091") as consumer:
        consumer.assign({("logs", 0): EARLIEST})
        for message in consumer.messages(timeout=1.0):  # never ends without a timeout
            ...
        for batch in consumer.fetch_batches(timeout=1.0):  # the fast path: lists of values
            ...

The consumer's *position* in a partition (Kafka's word) is the offset of the next message.  It moves when a message is
handed out, and is not stored anywhere (``group.py`` commits offsets).  Offsets are bytes in the partition's log: they
grow by one within a batch, and by more at the start of a batch.  After a message, offset + 1 is always a valid
position.

Every batch's checksum is verified (``check_crc``).  A damaged batch raises :class:`~appliance.errors.CorruptBatch`
until the consumer seeks beyond it, and so does one that unpacks to more than ``unpacked_bytes_max``.  With
``on_corrupt="skip"`` it is skipped and counted in ``corrupt_batches`` or ``large_batches``.  The appliance is told of
damage either way, so that ``doctor`` names it.

With ``isolation="read_committed"`` messages of transactions are handed out when these are committed, and never if they
are aborted: the consumer reads up to the first open transaction, which is the end for it.

Fetched data that are not decoded yet are bounded by ``buffer_bytes_max`` for a partition and ``total_bytes_max`` in
all: see ``fetcher.py``.  What one call decodes is bounded by ``unpacked_bytes_max`` and one batch, and by its timeout.

Not thread-safe: a call is refused while another thread is in one.  Not fork-safe: make consumers after forking.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from ..errors import ApplianceError, CorruptBatch, InvalidRequest
from ..names import OFFSET_MAX
from ..records.decode import BYTES_MAX
from ..wire.requests import EARLIEST, LATEST
from . import arguments
from .arguments import check_functions, check_one_of
from .client_security import ClientSecurity
from .cluster_client import Cluster
from .damage_reports import DamageReports
from .decoder import ChunkDecoder, Message, Values
from .fetcher import Chunk, Fetcher, FetchOptions, reads_committed
from .lifetime import inherited, refuse_in_children
from .troubles import Trouble

RESETS: Final = ("earliest", "latest", "raise")
MEBIBYTE: Final = 1024 * 1024
RESOLVE_S: Final = 1.0
"""Interval of the requests for start offsets that could not be found yet."""


class Consumer:
    """See the module's docstring; the methods are called as those of Kafka's consumer."""

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
        isolation: str = "read_uncommitted",
        on_out_of_range: str = "earliest",
        on_corrupt: str = "raise",
        check_crc: bool = True,
        unpacked_bytes_max: int = BYTES_MAX,
        security: ClientSecurity | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_one_of(RESETS, on_out_of_range=on_out_of_range)
        check_functions(clock=clock)
        self._clock = clock
        committed = reads_committed(isolation)
        self._cluster = Cluster(
            bootstrap, security, client_name=client_name, request_timeout_ms=request_timeout_ms, committed=committed
        )
        options = FetchOptions(
            bytes_max=fetch_bytes_max,
            partition_bytes_max=partition_bytes_max,
            buffer_bytes_max=buffer_bytes_max,
            total_bytes_max=total_bytes_max,
            wait_ms_max=wait_ms_max,
            bytes_min=bytes_min,
            request_timeout_ms=request_timeout_ms,
            reset=None if on_out_of_range == "raise" else on_out_of_range,
            committed=committed,
            skips_damage=on_corrupt == "skip",
        )
        self._fetcher = Fetcher(self._cluster, options, clock=clock)
        self._unpacked_bytes_max = unpacked_bytes_max
        reports = DamageReports(self._cluster, clock)
        self._decoder = ChunkDecoder(reports, unpacked_bytes_max, check_crc=check_crc, on_corrupt=on_corrupt)
        self._positions: dict[tuple[str, int], int] = {}
        self._unresolved: dict[tuple[str, int], int] = {}  # start times whose offsets are not known yet
        self._resolve_s = 0.0
        self._step = _Step(self)
        self._started: dict[tuple[str, int], int] = {}
        self._chunks: deque[Chunk] = deque()
        self._ready: deque[Message] = deque()
        self._moved: list[Values] = []  # decoded, and not handed out yet
        self._interrupted = False
        self._paused: set[tuple[str, int]] = set()
        self._closed = False
        self._inherited = False
        refuse_in_children(self)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._fetcher.close()
            self._cluster.close()

    def disown(self) -> None:
        """In a forked child: refuse every call.  What has arrived is for the parent."""
        self._inherited = True
        self._ready.clear()
        self._chunks.clear()

    # ---- where to read

    def assign(
        self, partitions: Mapping[tuple[str, int], int] | Iterable[tuple[str, int]], *, at: int = EARLIEST
    ) -> None:
        """Read these partitions and no others.

        A partition whose start offset cannot be found now is read later; ``troubles`` names it meanwhile.

        Args:
            partitions: (topic, partition) -> offset, EARLIEST or LATEST; or partitions that all begin at ``at``.
            at: EARLIEST, LATEST or ms since 1970.

        Raises:
            UnknownPartition: there is no such partition.
        """
        self._check_open()
        arguments.whole("at", at, EARLIEST, OFFSET_MAX)
        requested: dict[tuple[str, int], int] = {}
        timed: dict[tuple[str, int], int] = {}
        if isinstance(partitions, Mapping):
            requested = arguments.offsets(partitions, EARLIEST)
        else:
            timed = dict.fromkeys(arguments.parts(partitions), at)
        self._cluster.refresh({topic for topic, _ in [*requested, *timed]})
        positions = {part: offset for part, offset in requested.items() if offset >= 0}
        timed |= {part: offset for part, offset in requested.items() if offset < 0}
        for part in positions:
            self._cluster.partition(*part)
        resolved, failed = self._cluster.try_offsets(timed)
        for error in failed.values():
            if not error.retriable:
                raise error
        positions |= resolved
        self._chunks.clear()
        self._ready.clear()
        self._moved.clear()
        self._fetcher.assign(positions)
        self._positions = positions
        self._paused.clear()
        self._started = dict(positions)
        self._unresolved = {part: timed[part] for part in failed}
        for part, error in failed.items():
            self._fetcher.troubles.note_trouble(part, error)

    def troubles(self) -> list[Trouble]:
        """What this consumer waits for at the moment, the oldest first: brokers, partitions, metadata."""
        return self._fetcher.troubles.current()

    def assign_topic(self, topic: str, offset: int = EARLIEST) -> None:
        """Read all partitions that the topic has now."""
        self._check_open()
        arguments.whole("offset", offset, EARLIEST, OFFSET_MAX)
        self._cluster.refresh([arguments.topic_name(topic)])
        self.assign({(topic, partition): offset for partition in range(len(self._cluster.topic(topic).leaders))})

    def positions(self) -> dict[tuple[str, int], int]:
        """The offset of the next message of every assigned partition whose start offset is known."""
        return dict(self._positions)

    def position(self, topic: str, partition: int) -> int:
        return self._positions[self._assigned((topic, partition))]

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Continue with the first message at or after ``offset``."""
        part = self._assigned((topic, partition))
        if arguments.whole("offset", offset, EARLIEST, OFFSET_MAX) < 0:
            offset = self._cluster.offsets({part: offset})[part]
        self._drop(part)
        if part not in self._paused:
            self._fetcher.seek(part, offset)
        self._positions[part] = offset

    def pause(self, *parts: tuple[str, int]) -> None:
        """Hand out nothing of these partitions, or of all, until :meth:`resume`: what has arrived is fetched again.

        A paused partition stays assigned, and keeps its position; :meth:`assign` ends all pauses.
        """
        for part in self._chosen(parts):
            self._paused.add(part)
            self._drop(part)
            self._fetcher.remove_partition(part)

    def resume(self, *parts: tuple[str, int]) -> None:
        """Hand out these partitions again, or all that are paused, from where they were."""
        for part in self._chosen(parts):
            if part in self._paused:
                self._paused.remove(part)
                self._fetcher.seek(part, self._positions[part])

    def paused(self) -> set[tuple[str, int]]:
        """The partitions that :meth:`pause` has stopped and :meth:`resume` has not started again."""
        return set(self._paused)

    def _drop(self, part: tuple[str, int]) -> None:
        self._ready = deque(message for message in self._ready if message[:2] != part)
        self._moved = [values for values in self._moved if values[:2] != part]
        self._chunks = deque(chunk for chunk in self._chunks if chunk.fetched.topic_partition != part)

    def seek_to_beginning(self, *parts: tuple[str, int]) -> None:
        self._seek_all(parts, EARLIEST)

    def seek_to_end(self, *parts: tuple[str, int]) -> None:
        """Continue behind the last message that can be read now."""
        self._seek_all(parts, LATEST)

    def seek_to_time(self, timestamp_ms: int, *parts: tuple[str, int]) -> None:
        """Continue with the first message of that time or later; at the end if there is none."""
        arguments.whole("timestamp_ms, in milliseconds since 1970,", timestamp_ms, 0, OFFSET_MAX)
        self._seek_all(parts, timestamp_ms)

    def rewind(self, *parts: tuple[str, int]) -> None:
        """Read again everything since :meth:`assign`."""
        for part in self._chosen(parts):
            self.seek(*part, self._started[part])

    def offsets_at(self, timestamp: int, parts: Iterable[tuple[str, int]] | None = None) -> dict[tuple[str, int], int]:
        """Offsets for EARLIEST, LATEST or a time in ms; by default of the assigned partitions."""
        arguments.whole("timestamp", timestamp, EARLIEST, OFFSET_MAX)
        asked = list(self._positions) if parts is None else arguments.parts(parts)
        self._cluster.refresh({topic for topic, _ in asked})
        return self._cluster.offsets(dict.fromkeys(asked, timestamp))

    def ends(self) -> dict[tuple[str, int], int]:
        """The high watermark of each assigned partition in its last reply.  Minus the position, it is the lag in bytes.

        Makes no request; ``offsets_at(LATEST)`` does.
        """
        return self._fetcher.ends()

    @property
    def corrupt_batches(self) -> int:
        """Damaged batches that were skipped, and ranges of them that the appliance does not serve."""
        return self._decoder.corrupt_batches + self._fetcher.withheld

    @property
    def large_batches(self) -> int:
        """Batches that were skipped since they unpack to more than ``unpacked_bytes_max``."""
        return self._decoder.large_batches

    @property
    def unpacked_bytes(self) -> int:
        """What all batches so far have unpacked to, with what Python needs for each record."""
        return self._decoder.unpacked_bytes

    # ---- reading

    def fetch_batches(self, timeout: float | None = None) -> list[Values]:
        """The batches that have arrived; waits up to ``timeout`` seconds for the first one (None: for ever).

        Each :class:`Values` is one batch as it was produced, without headers and keys.

        Raises:
            CorruptBatch, OffsetOutOfRange, UnknownPartition: see the message.  Earlier good batches are returned first.
        """
        timeout = arguments.seconds(timeout)
        with self._step:
            self._fill_values(timeout)
            return self.take_batches()

    def _fill_values(self, timeout: float | None) -> None:
        """Decode batches until one has values, waiting up to ``timeout`` seconds."""
        deadline_s = None if timeout is None else self._clock() + timeout
        moved = self._moved
        moved += self._ready_values()
        try:
            while not any(values.values for values in moved):
                if not self._chunks and not self._fetch(deadline_s):
                    break
                if self._chunks:
                    self._decode_values(moved)
                if deadline_s is not None and self._clock() >= deadline_s:
                    break
        except CorruptBatch:
            if not moved:
                raise

    def _decode_values(self, moved: list[Values]) -> None:
        """Decode the first chunk, or as much of it as a call may."""
        chunk = self._chunks[0]
        enough = self._decoder.unpacked_bytes + self._unpacked_bytes_max
        while not chunk.fetched.dropped and (values := self._decoder.values(chunk)) is not None:
            moved.append(values)
            if self._decoder.unpacked_bytes >= enough:
                return
        self._chunks.popleft()
        if not chunk.fetched.dropped:
            chunk.release()
            moved.append(Values(*chunk.fetched.topic_partition, (), chunk.stop_offset))  # holes may be at its end

    def poll(self, timeout: float | None = None, messages_max: int = 500) -> list[Message]:
        """Up to ``messages_max`` messages; waits up to ``timeout`` seconds for the first one."""
        timeout = arguments.seconds(timeout)
        arguments.whole("messages_max", messages_max, 1, OFFSET_MAX)
        with self._step:
            self._fill(timeout)
            return self.take_messages(messages_max)

    def messages(self, timeout: float | None = None) -> Iterator[Message]:
        """Yields messages for ever, or until nothing has come for ``timeout`` seconds."""
        return self._messages(arguments.seconds(timeout))

    def _messages(self, timeout: float | None) -> Iterator[Message]:
        while True:
            if not self._ready or self._closed:
                before = self._decoder.unpacked_bytes
                with self._step:
                    self._fill(timeout)
                if not self._ready:
                    if self._decoder.unpacked_bytes != before:  # its time went into batches that were stepped over
                        continue
                    return
            ready = self._ready  # a seek replaces it
            message = ready.popleft()
            self._positions[message[:2]] = message.offset + 1
            yield message

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    # ---- in two steps, for ``aio``: one waits and hands out nothing, the other one hands out and never waits

    def prepare(self) -> None:
        """Wait for messages and decode some, until :meth:`interrupt`."""
        with self._step:
            self._fill(None)

    def take_messages(self, messages_max: int) -> list[Message]:
        """Hand out up to so many messages of those that are decoded."""
        ready = self._ready
        messages = [ready.popleft() for _ in range(min(messages_max, len(ready)))]
        for message in messages:
            self._positions[message[:2]] = message.offset + 1
        return messages

    @property
    def messages_ready(self) -> bool:
        """Whether there is something for :meth:`take_messages`."""
        return bool(self._ready)

    def prepare_batches(self) -> None:
        """As :meth:`prepare`, for :meth:`take_batches`."""
        with self._step:
            self._fill_values(None)

    def take_batches(self) -> list[Values]:
        """Hand out the batches that are decoded."""
        moved, self._moved = self._moved, []
        for values in moved:
            self._positions[values.topic, values.partition] = values.next_offset
        return [values for values in moved if values.values]

    @property
    def batches_ready(self) -> bool:
        """Whether there is something for :meth:`take_batches`."""
        return any(values.values for values in self._moved)

    def interrupt(self) -> None:
        """Have the other thread's wait end, which has begun or is about to.  Any thread may call it."""
        self._interrupted = True
        self._fetcher.wake()

    def abort(self) -> None:
        """Have all requests fail, and the other thread's wait end: this consumer is about to be closed."""
        self._cluster.abort()
        self.interrupt()

    def _fill(self, timeout: float | None) -> None:
        """Decode until there is a message, waiting up to ``timeout`` seconds."""
        if self._moved:  # decoded for batches that nobody has taken
            self.go_back(self._positions)
        deadline_s = None if timeout is None else self._clock() + timeout
        looked = False
        while not self._ready:
            while self._chunks and not self._ready:
                if deadline_s is not None and looked and self._clock() >= deadline_s:
                    return
                looked = True
                chunk = self._chunks[0]
                messages = None if chunk.fetched.dropped else self._decoder.messages(chunk)
                if messages is None:
                    self._chunks.popleft().release()
                    if not chunk.fetched.dropped:  # batches without messages may be at its end
                        self._positions[chunk.fetched.topic_partition] = chunk.stop_offset
                elif messages:
                    self._ready += messages
                else:  # it was stepped over
                    self._positions[chunk.fetched.topic_partition] = chunk.start_offset + chunk.at
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
        if self._chunks:
            return True
        if self._interrupted:
            self._interrupted = False
            return False
        return deadline_s is None or self._clock() < deadline_s

    def _resolve(self) -> None:
        """Request the start offsets that could not be found before."""
        self._resolve_s = self._clock() + RESOLVE_S
        troubles = self._fetcher.troubles
        try:
            self._cluster.refresh({topic for topic, _ in self._unresolved})
        except ApplianceError as error:
            troubles.note_trouble("metadata", error)
            return
        resolved, failed = self._cluster.try_offsets(self._unresolved)
        for part, offset in resolved.items():
            del self._unresolved[part]
            troubles.note_progress(part)
            self._fetcher.seek(part, offset)
            self._positions[part] = self._started[part] = offset
        for part, why in failed.items():
            if not why.retriable:
                raise why
            troubles.note_trouble(part, why)

    def go_back(self, positions: Mapping[tuple[str, int], int]) -> None:
        """Continue at these offsets: an interrupted call had taken messages and did not return them."""
        self._positions.update(positions)
        self._chunks.clear()
        self._ready.clear()
        self._moved.clear()
        self._fetcher.disconnect()
        self._fetcher.assign({part: at for part, at in self._positions.items() if part not in self._paused})

    def _ready_values(self) -> list[Values]:
        """Messages that were decoded for :meth:`messages` before the caller changed to batches."""
        batches: list[Values] = []
        for part, messages in itertools.groupby(self._ready, lambda message: message[:2]):
            run = list(messages)
            next_offset = run[-1].offset + 1
            values = [message.value for message in run]
            batches.append(Values(part[0], part[1], values, next_offset))
        self._ready.clear()
        return batches

    def _seek_all(self, parts: Sequence[tuple[str, int]], timestamp: int) -> None:
        for part, offset in self._cluster.offsets(dict.fromkeys(self._chosen(parts), timestamp)).items():
            self.seek(*part, offset)

    def _chosen(self, parts: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        self._check_open()
        return [self._assigned(part) for part in parts] or list(self._positions)

    def _assigned(self, part: tuple[str, int]) -> tuple[str, int]:
        self._check_open()
        part = arguments.part(part)
        if part not in self._positions:
            raise InvalidRequest(f"{part[0]}-{part[1]} is not assigned to this consumer: assign it first")
        return part

    def check_usable(self) -> None:
        self._check_open()
        if not self._positions and not self._unresolved:
            raise InvalidRequest("nothing is assigned to this consumer: call assign first")

    def _check_open(self) -> None:
        if self._inherited:
            raise inherited("consumer", self._cluster.pid)
        if self._closed:
            raise InvalidRequest("this consumer is closed")


class _Step:
    """Context of one call, by one thread at a time.

    After an interrupt it restores the positions from before, so that nothing is skipped.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._before: dict[tuple[str, int], int] | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._consumer.check_usable()
        if not self._lock.acquire(blocking=False):
            raise InvalidRequest("another thread is in a call of this consumer: make one for each thread")
        if self._before is not None:  # an interrupt came before the last call had released it
            self._lock.release()
        self._take_back()
        self._before = self._consumer.positions()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not issubclass(kind, ApplianceError):
            self._take_back()
        self._before = None
        self._lock.release()

    def _take_back(self) -> None:
        if self._before is not None:
            self._consumer.go_back(self._before)
