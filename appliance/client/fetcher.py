"""Fetches partitions from their brokers, one request ahead of the decoding.

:class:`Fetcher` returns :class:`Chunk` objects, whole record batches as received, and continues after the last byte.
When a chunk arrives the next request is sent, so the broker works while the chunk is decoded.

Fetched data that are not decoded yet are bounded: for a partition by ``buffer_bytes_max`` (and one chunk), for all by
``total_bytes_max``.  Each partition has an equal share of the latter, at least :data:`SHARE_BYTES_MIN` or one batch.
So a partition that is not read does not stop others.  A broker gets one request at a time for all of its partitions, a
long poll.

Offsets are bytes: a reply starts with the batch that contains the requested offset, at byte P = base + N - S of the log
(N records, S bytes), so after B bytes the next offset is P + B.  If the first batch's header does not agree with the
request, the connection is closed.

Recoverable troubles (a broker is away, a partition is moved or offline) are waited out here, and the metadata are
refreshed.  ``troubles`` has them meanwhile.  The policy ``reset`` handles an offset out of range: ``earliest``,
``latest``, or None to raise.

Not thread-safe, except :meth:`Fetcher.wake`.  :meth:`Fetcher.poll` raises an error when there are no chunks to return:
OffsetOutOfRange, UnknownPartition (the topic is gone), ClientFault.  Fetching other partitions continues, and the error
is raised again as long as it lasts.
"""

from __future__ import annotations

import logging
import os
import select
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ..errors import (
    ApplianceError,
    BrokerAway,
    ClientFault,
    NotLeader,
    OffsetOutOfRange,
    ProtocolFault,
    RequestTimedOut,
    StorageFault,
    UnknownPartition,
    from_code,
)
from ..records.batch import HEADER_BYTES, end_offset, read_header
from ..records.markers import aborted_batches
from ..wire.native import FETCH
from .arguments import check_least, check_one_of, check_whole
from .broker_connection import BrokerConnection, ConnectionReply
from .cluster_client import Cluster, ClusterSnapshot
from .damage_reports import withheld_at
from .troubles import Troubles

logger = logging.getLogger(__name__)


BACKLOG_WAIT_MS: Final = 20
"""Length of long polls that leave out some partitions, because enough of their data waits to be decoded."""
BACKOFF_S: Final = 0.05
BACKOFF_S_MAX: Final = 1.0
PAUSE_S_MAX: Final = 0.5
SHARE_BYTES_MIN: Final = 64 * 1024
ISOLATIONS: Final = ("read_uncommitted", "read_committed")
UNTRUSTED: Final = (
    "the log is damaged from there on, or the partition is offline; it is tried again: `appliance doctor` says more"
)
"""What KAFKA_STORAGE_ERROR means in the reply to a fetch: a full disk does not refuse consumers."""


def reads_committed(isolation: str) -> bool:
    """Whether a level of isolation, one of :data:`ISOLATIONS`, leaves out what is not committed.

    Raises:
        BadValue: there is no such level.
    """
    check_one_of(ISOLATIONS, isolation=isolation)
    return isolation == ISOLATIONS[1]


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """Options of a fetcher.

    ``reset``: where to continue after an offset out of range; None raises.  ``committed``: read up to the last stable
    offset, and leave out what was aborted.  ``skips_damage``: go on behind what the appliance does not serve since it
    is damaged, and count it in ``withheld``; else wait until it is repaired.
    """

    bytes_max: int
    partition_bytes_max: int
    buffer_bytes_max: int
    total_bytes_max: int
    wait_ms_max: int
    bytes_min: int
    request_timeout_ms: int
    reset: str | None
    committed: bool = False
    skips_damage: bool = False

    def __post_init__(self) -> None:
        """
        Raises:
            BadValue: an option is out of bounds.
        """
        check_whole(0, fetch_bytes_max=self.bytes_max, partition_bytes_max=self.partition_bytes_max)
        check_whole(0, wait_ms_max=self.wait_ms_max, bytes_min=self.bytes_min)
        check_least(0, buffer_bytes_max=self.buffer_bytes_max, total_bytes_max=self.total_bytes_max)


class Fetched:
    """One partition that is being fetched.  ``offset`` is the next one to request.

    The bytes that wait to be decoded are ``received_bytes`` (counted by the fetcher) - ``released_bytes`` (counted by
    the reader).  Each counter has one thread that changes it.
    """

    __slots__ = (
        "dropped",
        "end",
        "left_out",
        "log_start",
        "offset",
        "received_bytes",
        "released_bytes",
        "resume_s",
        "topic_partition",
        "wake",
    )

    def __init__(self, part: tuple[str, int], offset: int, wake: Callable[[], None]) -> None:
        self.topic_partition = part
        self.offset = offset
        self.wake = wake
        self.received_bytes = 0
        self.released_bytes = 0
        self.left_out = False  # of the last request, because enough data waited to be decoded
        self.dropped = False
        self.log_start = -1
        self.end = -1
        self.resume_s = 0.0


class Chunk:
    """Whole record batches of one partition: ``data[at:]`` is not decoded yet.

    ``requested_offset``: earlier records are not for the consumer.  ``start_offset`` is the offset of
    ``data[0]``.  ``aborted``: where the batches begin that are of aborted transactions.
    """

    __slots__ = ("aborted", "at", "data", "fetched", "requested_offset", "start_offset")

    def __init__(
        self,
        fetched: Fetched,
        data: memoryview,
        requested_offset: int,
        start_offset: int,
        aborted: frozenset[int] = frozenset(),
    ) -> None:
        self.fetched = fetched
        self.data = data
        self.requested_offset = requested_offset
        self.start_offset = start_offset
        self.aborted = aborted
        self.at = 0

    @property
    def stop_offset(self) -> int:
        return self.start_offset + len(self.data)

    def release(self) -> None:
        """Count the chunk as decoded, or as not wanted any more, to make room for another."""
        fetched = self.fetched
        fetched.released_bytes += len(self.data)
        if fetched.left_out:
            fetched.left_out = False
            fetched.wake()


class _Link:
    """One broker: the connection to it, and the request in flight."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.connection: BrokerConnection | None = None
        self.asked: list[tuple[Fetched, int]] = []  # in flight: partition and offset
        self.deadline_s = 0.0
        self.resume_s = 0.0
        self.failures = 0
        self.events = 0


class Fetcher:
    """See the module's docstring."""

    def __init__(self, cluster: Cluster, options: FetchOptions, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.troubles = Troubles(clock)
        self.withheld = 0
        self._cluster = cluster
        self._options = options
        self._clock = clock
        self._partitions: dict[tuple[str, int], Fetched] = {}
        self._links: dict[int, _Link] = {}
        self._led: dict[int, deque[Fetched]] | None = None  # by broker; None: to be computed again
        self._led_snapshot: ClusterSnapshot | None = None
        self._stale_topics: set[str] = set()
        self._refresh_s = 0.0
        self._trouble: ApplianceError | None = None
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, select.EPOLLIN)

    def disconnect(self) -> None:
        """Drop all connections.  Requests in flight are made again."""
        for link in self._links.values():
            self._disconnect(link)

    def close(self) -> None:
        self.disconnect()
        self._epoll.close()
        fd, self._wake_fd = self._wake_fd, -1
        os.close(fd)

    def wake(self) -> None:
        """End a :meth:`poll` that waits.  Any thread may call it."""
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    # ---- what to fetch

    def assign(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Fetch these partitions from these offsets, and no others."""
        for part in self._partitions.keys() - offsets.keys():
            self.remove_partition(part)
        for part, offset in offsets.items():
            self.seek(part, offset)

    def seek(self, part: tuple[str, int], offset: int) -> None:
        """Fetch this partition from ``offset``.  Earlier chunks and replies are dropped."""
        self.remove_partition(part)
        self._partitions[part] = Fetched(part, offset, self.wake)

    def remove_partition(self, part: tuple[str, int]) -> None:
        fetched = self._partitions.pop(part, None)
        if fetched is not None:
            fetched.dropped = True
        self.troubles.forget(part)
        self._led = None

    def next_offset(self, part: tuple[str, int]) -> int:
        """The offset behind all that has arrived, or where ``reset`` continues."""
        return self._partitions[part].offset

    def ends(self) -> dict[tuple[str, int], int]:
        """How far each partition can be read, by its last reply; partitions without a reply are left out."""
        return {part: fetched.end for part, fetched in self._partitions.items() if fetched.end >= 0}

    # ---- fetching

    def poll(self, timeout_s: float | None) -> list[Chunk]:
        """The chunks that have arrived; waits up to ``timeout_s`` for some.  Empty after that, or after ``wake``."""
        deadline_s = None if timeout_s is None else self._clock() + timeout_s
        while True:
            now_s = self._clock()
            chunks: list[Chunk] = []
            for link in list(self._links.values()):
                self._receive(link, chunks, now_s)
            self._ask_all(now_s)
            if chunks:
                return chunks
            if self._trouble is not None:
                trouble, self._trouble = self._trouble, None
                raise trouble
            pause_s = PAUSE_S_MAX
            if any(fetched.resume_s > now_s for fetched in self._partitions.values()) or self._stale_topics:
                pause_s = BACKOFF_S
            if deadline_s is not None:
                pause_s = min(pause_s, deadline_s - now_s)
                if pause_s <= 0:
                    return []
            for fd, _ in self._epoll.poll(pause_s):
                if fd == self._wake_fd:
                    os.eventfd_read(fd)
                    return []

    def _ask_all(self, now_s: float) -> None:
        """Send a request to every broker that has none of ours."""
        if self._stale_topics and now_s >= self._refresh_s:
            self._refresh(now_s)
        if self._led is None or self._led_snapshot is not self._cluster.snapshot:
            self._find_leaders()
        assert self._led is not None
        for broker_id, led in self._led.items():
            link = self._links.get(broker_id)
            if link is None:
                link = self._links[broker_id] = _Link(broker_id)
            if not link.asked and now_s >= link.resume_s:
                self._ask(link, led, now_s)
            elif link.asked and now_s >= link.deadline_s:
                self._on_link_failed(link, RequestTimedOut(f"{link.connection} did not answer a fetch in time"), now_s)

    def _ask(self, link: _Link, led: deque[Fetched], now_s: float) -> None:
        options = self._options
        share = max(SHARE_BYTES_MIN, options.total_bytes_max // max(1, len(self._partitions)))
        buffer_bytes_max = min(options.buffer_bytes_max, share // 2)  # the other half of the share is for the reply
        room: list[Fetched] = []
        for fetched in led:
            if now_s < fetched.resume_s:
                continue
            fetched.left_out = True  # before the comparison: a release in between must wake us
            if fetched.received_bytes - fetched.released_bytes < buffer_bytes_max:
                fetched.left_out = False
                room.append(fetched)
        if not room:
            return
        led.rotate(-1)  # the broker fills the reply in this order: next time another partition is first
        try:
            if link.connection is None:
                link.connection = self._cluster.dial(self._cluster.address(link.broker_id))
            connection = link.connection
            wait_ms = options.wait_ms_max if len(room) == len(led) else BACKLOG_WAIT_MS
            part_bytes_max = min(options.partition_bytes_max, share // 2)
            parts = [[*f.topic_partition, f.offset, part_bytes_max] for f in room]
            committed = (True,) if options.committed else ()
            connection.post(FETCH, wait_ms, options.bytes_min, options.bytes_max, parts, *committed)
            connection.flush()
        except BrokerAway as error:
            self._on_link_failed(link, error, now_s)
            return
        link.asked = [(f, f.offset) for f in room]
        link.deadline_s = now_s + (wait_ms + options.request_timeout_ms) / 1000
        self._watch(link)

    def _watch(self, link: _Link) -> None:
        assert link.connection is not None
        events = select.EPOLLIN | (select.EPOLLOUT if link.connection.wants_write else 0)
        if events != link.events:
            (self._epoll.modify if link.events else self._epoll.register)(link.connection.fileno(), events)
            link.events = events

    def _receive(self, link: _Link, chunks: list[Chunk], now_s: float) -> None:
        connection = link.connection
        if connection is None:
            return
        try:
            if connection.connecting or connection.wants_write:
                connection.flush()
                self._watch(link)
            for reply in connection.receive():
                self._on_reply(link, reply, chunks, now_s)
        except (BrokerAway, ProtocolFault, ClientFault) as error:
            self._on_link_failed(link, error, now_s)

    def _on_reply(self, link: _Link, reply: ConnectionReply, chunks: list[Chunk], now_s: float) -> None:
        asked, link.asked = link.asked, []
        if link.failures:
            link.failures = 0
            self.troubles.note_progress(_name(link))
        rows = reply.header[2]
        if len(rows) != len(asked):
            raise ProtocolFault(f"{link.connection} answered {len(rows)} partitions, {len(asked)} were requested")
        at = 0
        refused: list[tuple[Fetched, int]] = []
        for (fetched, offset), (code, log_start, end, size, *of_transactions) in zip(asked, rows, strict=True):
            data = reply.payload[at : at + size]
            at += size
            if fetched.dropped:
                continue
            fetched.log_start, fetched.end = log_start, of_transactions[0] if of_transactions else end
            if code:
                refused.append((fetched, code))
                continue
            if self.troubles and fetched.topic_partition in self.troubles:
                self.troubles.note_progress(fetched.topic_partition)
            if size:
                start_offset = start_offset_of(data, offset)
                fetched.offset = start_offset + size
                fetched.received_bytes += size
                aborted = of_transactions[1] if of_transactions else ()
                out = frozenset(start_offset + at for at in aborted_batches(data, aborted)) if aborted else frozenset()
                chunks.append(Chunk(fetched, data, offset, start_offset, out))
        for fetched, code in refused:
            self._on_refused(fetched, code, now_s)

    # ---- troubles

    def _on_refused(self, fetched: Fetched, code: int, now_s: float) -> None:
        topic, partition = fetched.topic_partition
        fetched.resume_s = now_s + BACKOFF_S
        if code == StorageFault.code and self._options.skips_damage:
            row = withheld_at(self._cluster, topic, partition, fetched.offset)
            if row is not None:
                logger.warning("%s-%d: skipped up to %d: %s", topic, partition, row["stop"], row["reason"])
                self.withheld += 1
                fetched.offset, fetched.resume_s = row["stop"], now_s
                return
        where = f"{topic}-{partition} at offset {fetched.offset}"
        error = StorageFault(f"{where}: {UNTRUSTED}") if code == StorageFault.code else from_code(code, about=where)
        if isinstance(error, OffsetOutOfRange):
            reset = self._options.reset
            text = f"{topic}-{partition}: offset {fetched.offset} is outside of {fetched.log_start}..{fetched.end}"
            if reset is None:
                self._trouble = OffsetOutOfRange(f"{text}; seek to another one", about=f"{topic}-{partition}")
                return
            fetched.offset = fetched.log_start if reset == "earliest" else fetched.end
            fetched.resume_s = now_s
            logger.warning("%s: continuing at %d (%s)", text, fetched.offset, reset)
        elif isinstance(error, NotLeader | UnknownPartition):
            self._stale_topics.add(topic)
            self._led = None
            self.troubles.note_trouble(fetched.topic_partition, error)
        elif isinstance(error, ClientFault):
            self._trouble = error
        else:
            fetched.resume_s = now_s + BACKOFF_S_MAX
            self.troubles.note_trouble(fetched.topic_partition, error)

    def _on_link_failed(self, link: _Link, error: ApplianceError, now_s: float) -> None:
        self.troubles.note_trouble(_name(link), error)
        link.resume_s = now_s + min(BACKOFF_S * 2 ** min(link.failures, 10), BACKOFF_S_MAX)
        link.failures += 1
        self._disconnect(link)
        self._led = None
        self._stale_topics.update(part[0] for part in self._partitions)

    def _disconnect(self, link: _Link) -> None:
        link.asked = []
        link.events = 0
        if link.connection is not None:
            link.connection.close()  # epoll forgets it by itself
            link.connection = None

    def _refresh(self, now_s: float) -> None:
        """Refresh the metadata of the stale topics."""
        self._refresh_s = now_s + BACKOFF_S_MAX
        topics, self._stale_topics = self._stale_topics, set()
        try:
            self._cluster.refresh(topics)
            self.troubles.note_progress("metadata")
        except ApplianceError as error:
            self._stale_topics |= topics
            self.troubles.note_trouble("metadata", error)

    def _find_leaders(self) -> None:
        self._led_snapshot = self._cluster.snapshot
        self._led = {}
        for part, fetched in self._partitions.items():
            try:
                broker_id = self._cluster.leader(*part)
            except ApplianceError as error:
                self._stale_topics.add(part[0])
                if not error.retriable:
                    self._trouble = error
                else:
                    self.troubles.note_trouble(part, error)
                continue
            self._led.setdefault(broker_id, deque()).append(fetched)


def _name(link: _Link) -> str:
    return f"appliance {link.broker_id}"


def start_offset_of(data: memoryview, offset: int) -> int:
    """The offset of the first byte of ``data``, whose first batch ends behind ``offset``: emptied ones are left out."""
    if len(data) >= HEADER_BYTES:
        stop, size = end_offset(data, 0), read_header(data, 0).size
        if 0 <= stop - size <= stop and offset < stop:
            return stop - size
    raise ProtocolFault(f"the reply to a fetch at {offset} does not contain that offset")
