"""The writer: owns one partition's files; the only process that writes them.

One turn of its loop takes everything that waits (descriptors of record batches in the workers' arenas), checks each
batch, places it at the next position, appends all with one ``writev``, and answers.  That is group commit.  What must
be on the disk first is handed to the flusher thread.  A message is readable (END) once flushed, unless the topic
leaves flushing to the operating system (``flush.messages=0``).

Messages on the channel of a network worker, msgpack arrays::

    worker → writer   [[token, acks, [start, stop, ...]] ...]      positions of requests' record batches in the arena
    writer → worker   [[token, [error, base, end, ...], {index: text}, append ms] ...]   three numbers per
                      request; text -1: for all; append ms: what LogAppendTime has given to all, else -1

No bundles at all say that a consumer waits for what is written: its flush need not be late for more.  ``["flush"]``
asks for a flush now, whatever the topic's policy: somebody has asked for the end of the log.  A bundle is answered
once; with acks=-1 when it is flushed.  The bundles of one worker are answered in any order, the requests in a bundle
all at once.  A closed channel means that the worker is gone and nobody wants the answers.  Bundles also come from
connections that workers have handed over (``handoff``).

Messages on the control channel: see ``supervisor``.
"""

from __future__ import annotations

import logging
import select
import socket
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from ...config import Config, TopicSettings
from ...errors import (
    ApplianceError,
    ClientFault,
    DiskFull,
    InvalidRequest,
    InvalidTimestamp,
    OutOfResources,
    StorageFault,
    Unavailable,
    is_lack,
)
from ...log import FlushTicket, Log
from ...records.batch import BatchInfo, check, place, stamp
from ...shared import memory
from ...shared.doorbell import Doorbell, fence
from ...shared.heartbeats import Heart, alone
from ...shared.table import (
    COUNT_DUPLICATES,
    COUNT_FLUSHES,
    COUNT_REFUSED,
    COUNT_RETIRED,
    DISK_FULL,
    OFFLINE,
    ONLINE,
    SEGMENTS_MAX,
    SegmentTable,
)
from ..answers import FOR_ALL, Answer
from ..child import settle
from ..clock import now_ms, wall_ms
from ..control import Channel
from .flusher import Flusher
from .handoff import CHECK_MS, Handoffs
from .link import Bundle, Link, Source
from .producers import Producers
from .retirement import remove_before

logger = logging.getLogger(__name__)

FLUSH_DELAY_MS: Final = 20
"""Maximum delay of a flush that no one waits for.  Waiting lets one flush cover more batches."""
RETIRE_MS_MAX: Final = 2_000
"""How long a writer that retires waits for the workers to let go."""
TEXTS_MAX: Final = 32
TEXT_CHARACTERS_MAX: Final = 400


class Assignment(NamedTuple):
    """What the supervisor tells a writer when it forks it."""

    config: Config
    data_dir: Path
    topic: str
    partition: int
    settings: dict[str, str]
    table_name: str
    doorbells: Sequence[Doorbell]
    heart: Heart = alone()

    @property
    def path(self) -> Path:
        return self.data_dir / f"{self.topic}-{self.partition}"

    @property
    def topic_settings(self) -> TopicSettings:
        return TopicSettings.parse(self.settings, self.config.topics.defaults)


class _Ready(NamedTuple):
    """The answer to one bundle."""

    source: Source
    acks: int
    token: Any
    answer: Answer


class _Handed(NamedTuple):
    """What the flusher is given: a ticket of the log, and how many records the log has up to its end."""

    ticket: FlushTicket
    records: int

    def sync(self) -> None:
        """Raises StorageFault: it is not on the disk, and never tried again."""
        self.ticket.sync()


def run(assignment: Assignment, control: Channel, supervisor_pid: int) -> int:
    """The writer process, from fork to exit; returns its exit status."""
    settle(f"wr {assignment.topic}-{assignment.partition}", supervisor_pid, 0)
    try:
        writer = Writer(assignment, control)
    except FileNotFoundError:  # of its table: the topic has been deleted since it was asked for
        return 0
    try:
        try:
            with assignment.heart.working():
                writer.open()
        except (ApplianceError, OSError) as error:
            if not is_lack(error):
                raise
            writer.wait_for_room(error)
            return Unavailable.exit_status
        writer.serve()
        with assignment.heart.working():
            writer.close()
    except StorageFault as error:
        writer.go_offline(error)
        return error.exit_status
    return 0


class Writer:
    def __init__(self, assignment: Assignment, control: Channel) -> None:
        self._assignment = assignment
        self._settings = assignment.topic_settings
        self._control = control
        self._doorbells = assignment.doorbells
        self._table = SegmentTable(memoryview(memory.attach(assignment.table_name)).cast("Q"))
        self._flusher = Flusher(self._flushed, self._flush_failed)
        self._links: dict[int, Link] = {}
        self._epoll = select.epoll()
        self._fault: Exception | None = None
        self._retire_ms: int | None = None  # since when it has been told to
        self._quiet_since_ms = now_ms()
        self._alarm = Doorbell()
        key = (assignment.topic, assignment.partition)
        self._handoffs = Handoffs(
            key, assignment.config, self._table, self._epoll, self._flusher.lock, wake=self._alarm.ring
        )
        self._last_base = self._append_ms = -1
        # What is written, or waits for a flush, and is not handed to the flusher yet.
        self._unflushed_records = self._unflushed_bytes = self._unflushed_since_ms = 0
        self._unflushed_answers: list[_Ready] = []
        self._flush_asked = self._flush_now = False

    # ---- opening and closing

    def open(self) -> None:
        """Recover the log and show it.

        Raises:
            StorageFault: it cannot be trusted.
        """
        assignment = self._assignment
        log = self._log = Log.open(assignment.path, self._settings, wall_ms, SEGMENTS_MAX, steady_ms=now_ms)
        self._producers = Producers(log, assignment.config.producers.ids_max)
        self._sequences = self._producers.sequences
        self._last_base = log.bases[-1]
        self._table.publish(log.bases, log.start, log.written, log.records)
        self._table.set_written(log.written)
        self._table.set_state(ONLINE)
        self._expose(log.written, log.records)
        self._epoll.register(self._control.fileno(), select.EPOLLIN)
        self._epoll.register(self._alarm.fd, select.EPOLLIN)
        self._flusher.start()
        self._control.send(["opened"])

    def close(self) -> None:
        """Flush, answer, mark the log clean."""
        if self._log.written > self._log.flushed:
            with self._flusher.lock:
                self._hand_over()
        self._flusher.stop()
        if self._fault is not None:
            raise self._fault
        self._producers.store_all()
        self._log.close(clean=True)
        self._control.send(["closed"])

    def go_offline(self, error: StorageFault) -> None:
        """Say why this partition takes nothing any more; readers keep what they have."""
        logger.error("%s-%d is offline: %s", self._assignment.topic, self._assignment.partition, error)
        self._table.set_state(OFFLINE)
        self._control.send(["offline", str(error)])

    def wait_for_room(self, error: ApplianceError | OSError) -> None:
        """Say why this partition takes nothing yet; the supervisor starts another writer, later and later."""
        self._table.set_state(DISK_FULL)
        self._control.send(["lacking", str(error)])

    # ---- the loop: wait, take, write, answer

    def serve(self) -> None:
        """Until the supervisor is gone, or has told us to retire and every worker has let go.

        Raises:
            StorageFault: a write or a flush failed in a way that cannot be tried again.
        """
        while not self._control.closed and not self._may_end:
            self.turn(self._timeout_s())

    @property
    def _may_end(self) -> bool:
        """Whether all workers have let go of a retiring writer, or have had RETIRE_MS_MAX to do so.

        A worker that hangs must not keep others from the partition.  It finds its channel closed, as if the writer
        had been killed: what it has asked for since is refused with a retriable error.
        """
        return self._retire_ms is not None and (not self._links or now_ms() - self._retire_ms >= RETIRE_MS_MAX)

    def turn(self, timeout_s: float) -> None:
        """Wait for something to happen, take it, write, flush, answer.  Raises StorageFault, as :meth:`serve`."""
        handoffs = self._handoffs
        idle = not self._unflushed_since_ms and not handoffs
        events = self._epoll.poll(timeout_s)
        if self._control.pending:
            self._control.flush()
        self._assignment.heart.beat()
        arrived: list[tuple[Source, Bundle]] = []
        for fd, event in events:
            if fd in handoffs:
                arrived += handoffs.take(fd)
            elif fd in self._links:
                arrived += self._take(fd, event)
            elif self._fault is not None:
                raise self._fault
            else:
                self._alarm.silence()
                handoffs.give_back()
                self._obey()
        if arrived:
            self._write(arrived)
        self._flush_if_due()
        if handoffs:
            handoffs.check(now_ms())
        if events or not idle or handoffs:
            self._quiet_since_ms = now_ms()
        elif now_ms() - self._quiet_since_ms >= self._assignment.config.writer.idle_ms:
            self._quiet_since_ms = now_ms()
            self._control.send(["idle"])

    def _timeout_s(self) -> float:
        if self._unflushed_since_ms:
            delay_ms = self._settings.flush_ms
            if self._unflushed_records >= self._settings.flush_messages:
                delay_ms = min(delay_ms, FLUSH_DELAY_MS)
            return max(0, min(self._unflushed_since_ms + delay_ms - now_ms(), self._assignment.heart.beat_ms)) / 1000
        wait_ms = min(self._assignment.config.writer.idle_ms, self._assignment.heart.beat_ms)
        if self._retire_ms is not None:
            wait_ms = min(wait_ms, RETIRE_MS_MAX)
        return (min(wait_ms, CHECK_MS) if self._handoffs else wait_ms) / 1000

    def _take(self, fd: int, event: int) -> Iterable[tuple[Source, Bundle]]:
        """The bundles that a worker has sent."""
        link = self._links[fd]
        if event & select.EPOLLOUT:
            with self._flusher.lock:
                link.flush()
        message, fds = link.channel.take()
        match message:
            case None:
                if link.channel.closed:
                    self._part(fd, link)
            case []:
                self._flush_asked = True
            case ["flush"]:
                self._flush_now = True
            case ["handoff", *terms] | ["refused", "handoff", *terms]:
                self._handoffs.accept(link, terms, fds, now_ms())
                if self._retire_ms is not None:
                    self._handoffs.recall()
            case ["recall"]:
                self._handoffs.recall(link)
            case _:
                return [(link, bundle) for bundle in message]
        return ()

    def _part(self, fd: int, link: Link) -> None:
        """The worker has hung up, or is gone."""
        del self._links[fd]
        with self._flusher.lock:
            self._handoffs.lose(link)
            link.close()

    def _obey(self) -> None:
        for message, fds in self._control.receive():
            match message:
                case ["worker", arena_name]:
                    self._join(fds[0], arena_name)
                case ["refused", *_]:  # no descriptor left for it: the supervisor sends it again
                    self._control.send(message)
                case ["settings", settings]:
                    self._assignment = self._assignment._replace(settings=settings)
                    self._settings = self._log.settings = self._assignment.topic_settings
                case ["reload", config]:
                    self._assignment = self._assignment._replace(config=msgspec.convert(config, Config))
                    self._settings = self._log.settings = self._assignment.topic_settings
                case ["cut", offset]:
                    self._cut(offset)
                case ["roll"]:
                    self._roll()
                case ["retire"]:
                    self._retire_ms = now_ms()
                    self._handoffs.recall()

    def _join(self, fd: int, arena_name: str) -> None:
        channel = Channel(socket.socket(fileno=fd))
        try:
            arena = memoryview(memory.attach(arena_name))
        except FileNotFoundError:  # the worker died meanwhile; its successor is announced next
            channel.close()
            return
        except OSError:
            channel.close()
            self._control.send(["refused", "worker", arena_name])
            return
        self._links[fd] = Link(channel, arena, self._epoll)

    def _cut(self, offset: int) -> None:
        """Let the log start at ``offset``, at most its end, and remove the segments before it.

        Raises:
            StorageFault: the disk fails.
        """
        try:
            with self._assignment.heart.working():  # a slow disk: it waits for flushes
                count = remove_before(self._log, self._producers, offset, self._flush_and_wait, self._show_start)
        except (DiskFull, OutOfResources) as error:  # the sweep asks again
            logger.warning("%s: not all is removed: %s", self._assignment.path, error)
            return
        self._table.count(COUNT_RETIRED, count)

    def _roll(self) -> None:
        """Seal the active segment, so that it can go."""
        if len(self._log.bases) < SEGMENTS_MAX:
            try:
                self._log.roll()
            except (DiskFull, OutOfResources) as error:
                logger.warning("%s: not rolled: %s", self._assignment.path, error)
            with self._flusher.lock:
                self._show_segments()

    def _show_start(self) -> None:
        with self._flusher.lock:
            self._table.retire_before(self._log.start)  # a full table has no row for a new segment before that
            self._show_segments()
            self._table.retire_before(self._log.start)

    def _flush_and_wait(self) -> None:
        """Wait until all that is written is flushed and shown, and the flusher at rest."""
        with self._flusher.lock:
            self._hand_over()
        self._flusher.drain()
        if self._fault is not None:
            raise self._fault

    # ---- writing

    def _write(self, arrived: list[tuple[Source, Bundle]]) -> None:
        """Check, place, append and answer everything that has arrived."""
        group: list[tuple[memoryview, BatchInfo]] = []
        ready: list[_Ready] = []
        refused = 0
        position = self._log.written
        self._append_ms = wall_ms() if self._settings.message_timestamp_type == "LogAppendTime" else -1
        for source, (token, acks, positions) in arrived:
            arena = source.arena
            results: list[int] = []
            messages: dict[int, str] = {}
            for index in range(0, len(positions), 2):
                try:
                    base, end, position = self._admit(arena, positions[index], positions[index + 1], position, group)
                    results += (0, base, end)
                except ClientFault as error:
                    refused += 1
                    results += (error.code, -1, -1)
                    if len(messages) < TEXTS_MAX:
                        messages[index // 2] = str(error)[:TEXT_CHARACTERS_MAX]
            ready.append(_Ready(source, acks, token, Answer(results, messages, self._append_ms)))
        if refused:
            self._table.count(COUNT_REFUSED, refused)
        if group:
            log = self._log
            written, records = log.written, log.records
            try:
                log.append(group)
            except (DiskFull, OutOfResources, StorageFault) as error:
                self._append_failed(error, ready)
                return
            self._appended(len(group), log.written - written, log.records - records)
        self._answer(ready)

    def _admit(
        self, arena: memoryview, start: int, stop: int, position: int, group: list[tuple[memoryview, BatchInfo]]
    ) -> tuple[int, int, int]:
        """Check one request's batches and add them to the group, all or none.

        Returns:
            Offset of the first record, offset after the last, and the position of what comes next.

        Raises:
            ClientFault: the request is refused.
        """
        settings = self._settings
        bytes_max = settings.max_message_bytes
        info = check(arena, start, stop, bytes_max)
        size, count, max_timestamp, _, producer_id, epoch, sequence, _ = info
        end = position + size
        if size < stop - start:
            return self._admit_several(arena, start, stop, position, group)
        if max_timestamp < -1:
            raise InvalidTimestamp(f"largest timestamp is {max_timestamp} ms: must be -1 (none) or later")
        if producer_id >= 0:
            if sequence < 0:
                raise InvalidRequest(f"producer {producer_id}: base sequence {sequence}")
            repeat = self._sequences.check(producer_id, epoch, sequence, count)
            if repeat is not None:
                self._table.count(COUNT_DUPLICATES, 1)
                return *repeat, position
            self._sequences.record(producer_id, epoch, sequence, count, end - count, end)
        if self._append_ms >= 0:
            stamp(arena, start, size, self._append_ms)
        place(arena, start, position, size, count)
        group.append((arena[start:stop], info))
        return end - count, end, end

    def _admit_several(
        self, arena: memoryview, start: int, stop: int, position: int, group: list[tuple[memoryview, BatchInfo]]
    ) -> tuple[int, int, int]:
        """The same for a request of several batches, which an idempotent producer never sends."""
        admitted: list[tuple[memoryview, BatchInfo]] = []
        first_base, at = -1, start
        while at < stop:
            info = check(arena, at, stop, self._settings.max_message_bytes)
            if info.producer_id >= 0:
                raise InvalidRequest("an idempotent producer sends one batch per partition and request")
            _, end, position = self._admit(arena, at, at + info.size, position, admitted)
            if first_base < 0:
                first_base = end - info.count
            at += info.size
        group += admitted
        return first_base, position, position

    def _appended(self, batches: int, size: int, records: int) -> None:
        log, table = self._log, self._table
        self._sequences.commit()
        self._show_segments()
        table.set_written(log.written)
        if table.state == DISK_FULL:
            table.set_state(ONLINE)
        table.count_group(batches, size)
        if self._settings.flush_messages:
            self._unflushed_records += records
            self._unflushed_bytes += size
            self._unflushed_since_ms = self._unflushed_since_ms or now_ms()
        else:
            with self._flusher.lock:
                self._expose(log.written, log.records)
        if self._producers.due:
            with self._flusher.lock:
                self._producers.freeze()
                if not self._settings.flush_messages:  # nobody waits for it, but recovery starts there
                    self._hand_over()

    def _show_segments(self) -> None:
        bases = self._log.bases
        for base in bases[bisect_right(bases, self._last_base) :]:
            self._table.add_segment(base)
            self._last_base = base

    def _append_failed(self, error: DiskFull | OutOfResources | StorageFault, ready: list[_Ready]) -> None:
        """Nothing of the group is in the log: say so to everybody in it."""
        self._sequences.rollback()
        texts = {FOR_ALL: str(error)[:TEXT_CHARACTERS_MAX]}
        with self._flusher.lock:
            for source, _, token, answer in ready:
                refusal = Answer([error.code, -1, -1] * (len(answer.numbers) // 3), texts, -1)
                source.answer([(token, refusal)])
        if isinstance(error, StorageFault):
            raise error
        if isinstance(error, DiskFull) and self._table.state != DISK_FULL:
            logger.warning("%s: %s", self._assignment.path, error)
            self._table.set_state(DISK_FULL)

    # ---- answering and flushing

    def _answer(self, ready: list[_Ready]) -> None:
        """Answer now what waits for no flush."""
        if self._settings.flush_messages:
            unflushed = [one for one in ready if one.acks == -1]
            if unflushed:
                self._unflushed_answers += unflushed
                self._unflushed_since_ms = self._unflushed_since_ms or now_ms()
                ready = [one for one in ready if one.acks != -1]
        if ready:
            with self._flusher.lock:
                _send(ready)

    def _flush_if_due(self) -> None:
        if not self._unflushed_since_ms:
            self._flush_now = False
            return
        settings = self._settings
        waited_ms = now_ms() - self._unflushed_since_ms
        due = (
            self._unflushed_records >= settings.flush_messages
            or (not self._unflushed_records and self._unflushed_answers)
            or waited_ms >= settings.flush_ms
            or self._flush_now
        )
        if due and waited_ms < FLUSH_DELAY_MS and not (self._unflushed_answers or self._flush_asked or self._flush_now):
            fence()  # WRITTEN before the wait cells: a worker that parks meanwhile sees it and asks
            due = self._table.anybody_waits(len(self._doorbells))
        if due or (settings.flush_bytes and self._unflushed_bytes >= settings.flush_bytes):
            with self._flusher.lock:
                self._hand_over()

    def _hand_over(self) -> None:
        handed = _Handed(self._log.flush_begin(), self._log.records)
        self._flusher.hand_over(handed, self._unflushed_answers)
        self._unflushed_answers = []
        self._unflushed_records = self._unflushed_bytes = self._unflushed_since_ms = 0
        self._flush_asked = self._flush_now = False

    def _flushed(self, handed: _Handed, waiting: list[_Ready]) -> Callable[[], None] | None:
        """In the flusher's thread: everything below the ticket's end is on the disk."""
        self._log.flush_done(handed.ticket)
        self._table.count(COUNT_FLUSHES, 1)
        if handed.ticket.end > self._log.exposed:
            self._expose(handed.ticket.end, handed.records)
        _send(waiting)
        snapshot = self._producers.take()
        return None if snapshot is None else partial(self._producers.store, snapshot)

    def _flush_failed(self, error: Exception) -> None:
        """In the flusher's thread: let the loop end this process; what waits is never acknowledged."""
        self._fault = error
        self._alarm.ring()

    def _expose(self, end: int, records: int) -> None:
        """Show everything below ``end`` to readers and wake those that wait for it."""
        self._log.expose(end)
        self._table.publish_end(end, records)
        fence()
        for worker in self._table.waiting(len(self._doorbells), end):
            self._doorbells[worker].ring()


def _send(ready: Sequence[_Ready]) -> None:
    """All answers to one source at once.  Call with the flusher's lock held."""
    by_source: dict[Source, list[tuple[Any, Answer]]] = {}
    for source, _, token, answer in ready:
        by_source.setdefault(source, []).append((token, answer))
    for source, answers in by_source.items():
        source.answer(answers)
