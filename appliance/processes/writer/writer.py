"""The writer owns one partition's files: it is the only process that writes them.

One turn of its loop takes one message of each worker (append requests: positions of record batches in its arena),
checks each batch, gives it the next offset, appends all with one ``writev`` for each segment and 1,024 batches, and
answers.  That is group commit.  Answers that need a flush wait for it: see ``unflushed``.

This module is the program: open, the loop, close.  The parts::

    worker_link     the link to a network worker, and its messages
    handed_over     connections that workers have handed over
    unflushed       flushes, in a thread or in the loop; publishes and acknowledges written batches
    producers       idempotent producers

Of transactions it knows what the coordinator tells it (``broker.open_transactions``) and what the log has open
(``log.transactions``); it appends their markers between two turns, and answers when they are flushed
(:class:`FlushedSteps`).

:class:`Appender` checks the record batches of a turn, gives each its offset, and appends all.  :func:`delete_before`
deletes the records before an offset, for retention and for DeleteRecords, in these steps:

1. Flush, and raise the high watermark, if needed: the log start offset is never above the high watermark.
2. Store a snapshot of the producers that covers the removed segments: it replaces the headers of their batches.
3. Store the new log start offset durably, and publish it.
4. Flush the names of the remaining segments, if they are new.
5. Remove the files; a worker in the middle of a sendfile keeps its open files.

A full disk prevents only the removal of the active segment, which needs room for the next one.
"""

from __future__ import annotations

import logging
import os
import select
import socket
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, assert_never

from ...broker.open_transactions import OpenTransactions
from ...broker.sequences import NOT_OPEN
from ...clock import now_ms, now_ns, wall_ms
from ...config import Config, TopicSettings
from ...durable_files import has_room
from ...errors import (
    ApplianceError,
    ClientFault,
    DiskFull,
    DuplicateSequence,
    InvalidRecord,
    InvalidRequest,
    InvalidTimestamp,
    InvalidTransactionState,
    OutOfResources,
    StorageFault,
    TransactionCoordinatorFenced,
    TransactionUnverified,
    Unavailable,
    is_lack,
)
from ...log import Log
from ...machine_limits import DISK, limit_of
from ...names import TopicPartition
from ...partition_states import DISK_FULL, OFFLINE, ONLINE
from ...records.batch import (
    LOG_APPEND_TIME,
    NOT_FOR_CLIENTS,
    TRANSACTIONAL,
    BatchHeader,
    check_batch,
    place,
    restamp,
)
from ...records.keyed import check_keys
from ...records.markers import Marker, make_marker
from ...records.validation import check_records, unpacked_bytes_max
from ...reserve import with_reserve
from ...shared import memory
from ...shared.doorbell import Doorbell, MarkedDoorbell, slot_of
from ...shared.heartbeats import Heart, alone
from ...shared.table import COUNT_DUPLICATES, COUNT_REFUSED, COUNT_RETIRED, SEGMENTS_MAX, SegmentTable
from ..answers import FOR_ALL, AppendAnswer
from ..child import set_log_level, set_name
from ..control import Channel
from ..messages import (
    FROM_WORKER,
    TO_WRITER,
    AbortHanging,
    Append,
    AppendRow,
    ChangeSettings,
    ConnectionLost,
    DeleteBefore,
    FlushNow,
    FlushSoon,
    Forked,
    Handoff,
    Idle,
    Lacking,
    LogClosed,
    LogFull,
    Offline,
    OpenTransaction,
    Recall,
    Reload,
    Retire,
    Roll,
    SegmentSwapped,
    StoreProducers,
    SwapSegment,
    TransactionsSent,
    TransactionStep,
    Unreceivable,
    WorkerChannel,
    WriteMarker,
    WriterOpened,
)
from .handed_over import CHECK_MS, HandedOverConnections
from .producers import Producers
from .unflushed import Unflushed
from .worker_link import AppendSource, ReadyAnswer, WorkerLink

logger = logging.getLogger(__name__)

NAMED_MS: Final = 100
"""How long the writer answers acks=1 before it looks again whether its file still has its name."""
ROOM_CHECK_MS: Final = 1_000
"""How often a writer looks whether a full disk has room again, if nobody produces."""
ROOM_BYTES: Final = 1 << 16
"""The room that it looks for at least."""
RETIRE_MS_MAX: Final = 2_000
"""How long a writer that retires waits for the workers to close their channels."""
FUTURE_MS_MAX: Final = 3_600_000
"""A header whose largest timestamp is further in the future is not believed without a look at the records."""
TEXTS_MAX: Final = 32
TEXT_CHARACTERS_MAX: Final = 400

_new = tuple.__new__  # twice as fast as the constructor of a NamedTuple


class Appender:
    """Appends to one log.  Call :meth:`admit_batches`, then :meth:`append`; after an error of that, :meth:`refuse`."""

    def __init__(self, log: Log, producers: Producers, table: SegmentTable, transactions: OpenTransactions) -> None:
        self._log, self._table, self._transactions = log, table, transactions
        self._sequences = producers.sequences
        self._last_base = log.bases[-1]
        self._group: list[tuple[memoryview, BatchHeader]] = []
        self._bytes_max = 0
        """The maximum size of a batch in this turn."""
        self._append_ms = -1
        """The timestamp of all batches of this turn with LogAppendTime, else -1."""
        self._validates = self._compacts = True
        """Whether the records of all batches of this turn are checked, and need keys."""
        self._future_ms = 0

    def admit_batches(self, arrived: list[tuple[AppendSource, AppendRow]]) -> list[ReadyAnswer]:
        """Check and place all batches that have arrived; return the answers, valid after :meth:`append`."""
        group: list[tuple[memoryview, BatchHeader]] = []
        self._group = group
        ready: list[ReadyAnswer] = []
        refused = parts = 0
        settings = self._log.settings
        position = self._log.end_offset
        self._bytes_max = settings.max_message_bytes
        now_ms = wall_ms()
        self._append_ms = now_ms if settings.message_timestamp_type == "LogAppendTime" else -1
        self._compacts, self._future_ms = settings.compacts, now_ms + FUTURE_MS_MAX
        self._validates = settings.message_validate or self._compacts
        for source, (token, acks, positions) in arrived:
            arena = source.arena
            parts += len(positions) // 2
            results: list[int] = []
            messages: dict[int, str] = {}
            for index in range(0, len(positions), 2):
                try:
                    base, end, position = self._admit(arena, positions[index], positions[index + 1], position, group)
                    results += (0, base, end)
                except (ClientFault, TransactionUnverified) as error:
                    if isinstance(error, DuplicateSequence):
                        self._table.count(COUNT_DUPLICATES, 1)
                    else:
                        refused += 1
                    results += (error.code, -1, -1)
                    if len(messages) < TEXTS_MAX:
                        messages[index // 2] = str(error)[:TEXT_CHARACTERS_MAX]
            answer: AppendAnswer = _new(AppendAnswer, (results, messages, self._append_ms))
            ready.append(_new(ReadyAnswer, (source, acks, token, answer)))
        self._table.count_parts(parts)
        if refused:
            self._table.count(COUNT_REFUSED, refused)
        return ready

    def append(self) -> tuple[int, int]:
        """Append the batches that :meth:`admit_batches` has placed, and publish the log end offset.

        Returns:
            The number of bytes and records that were appended.

        Raises:
            DiskFull, OutOfResources, StorageFault: nothing was appended.
        """
        group, self._group = self._group, []
        if not group:
            return 0, 0
        log = self._log
        size, records = log.append(group)
        for began in self._sequences.commit():
            log.transactions.note_batch(*began)
        self._show_appended(len(group), size)
        return size, records

    def _show_appended(self, batches: int, size: int) -> None:
        if self._log.bases[-1] != self._last_base:
            self.show_segments()
        self._table.set_log_end_offset(self._log.end_offset)
        self._table.count_group(batches, size)

    def append_marker(self, producer_id: int, epoch: int, marker: Marker, decided_ms: int) -> int:
        """End the transaction of a producer in the log; return the marker's size, 0 if nothing of it is there.

        Raises:
            StaleProducerEpoch: a newer incarnation of the producer has written.
            TransactionCoordinatorFenced: a newer coordinator has ended a transaction of it.
            DiskFull, OutOfResources, StorageFault: nothing was appended.
        """
        coordinator_epoch = self._sequences.check_epoch(producer_id, epoch)
        if marker.coordinator_epoch < coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"producer {producer_id}: coordinator epoch {marker.coordinator_epoch} after {coordinator_epoch}"
            )
        log = self._log
        batch, header = make_marker(producer_id, epoch, marker, decided_ms)
        stop = log.end_offset + header.size
        aborted = log.transactions.aborted(producer_id, stop)
        if aborted is None:
            return 0
        view = memoryview(batch)
        place(view, 0, log.end_offset, header.size, header.span)
        is_first = log.append_marker(view, header, None if marker.committed else aborted)
        log.transactions.note_marker(producer_id, stop)
        self._sequences.record_marker(producer_id, epoch, marker.coordinator_epoch, stop, header.max_timestamp)
        if is_first:
            self._table.note_aborted()
        self._show_appended(1, header.size)
        return header.size

    def refuse(self, error: ApplianceError, ready: list[ReadyAnswer]) -> list[ReadyAnswer]:
        """Forget the placed batches; return refusals in place of the answers."""
        self._sequences.rollback()
        texts = {FOR_ALL: str(error)[:TEXT_CHARACTERS_MAX]}
        return [
            refused._replace(answer=AppendAnswer([error.code, -1, -1] * (len(refused.answer.numbers) // 3), texts, -1))
            for refused in ready
        ]

    def _admit(
        self, arena: memoryview, start: int, stop: int, position: int, group: list[tuple[memoryview, BatchHeader]]
    ) -> tuple[int, int, int]:
        """Check the batches of one part and add them to the group, all or none.

        Returns:
            Offset of the first record, offset after the last, and the offset of the next batch.

        Raises:
            ClientFault: the part is refused.
            TransactionUnverified: it is to come again.
        """
        header = check_batch(arena, start, stop, self._bytes_max)
        size, count, max_timestamp, first_timestamp, producer_id, epoch, sequence, attributes, _ = header
        end = position + size
        if size < stop - start:
            return self._admit_several(arena, start, stop, position, group)
        if attributes & NOT_FOR_CLIENTS:
            raise _unsettable(attributes)
        begins = position if attributes & TRANSACTIONAL else NOT_OPEN
        if producer_id >= 0:
            if sequence < 0:
                raise InvalidRecord(f"producer {producer_id}: base sequence {sequence}")
            repeat = self._sequences.check_sequence(producer_id, epoch, sequence, count)
            if repeat is not None:
                self._table.count(COUNT_DUPLICATES, 1)
                return *repeat, position
            self._check_transaction(producer_id, epoch, sequence, begins != NOT_OPEN)
        elif begins != NOT_OPEN:
            raise InvalidRecord("a transactional batch without a producer")
        if self._validates or not first_timestamp <= max_timestamp <= self._future_ms:
            # Some clients leave the largest timestamp out (sarama).  Kafka corrects it, too.
            max_timestamp = check_records(arena, start, header, unpacked_bytes_max(self._bytes_max))
        if self._compacts:
            check_keys(arena[start:stop], header, unpacked_bytes_max(self._bytes_max))
        if max_timestamp < -1:
            raise InvalidTimestamp(f"largest timestamp is {max_timestamp} ms: must be -1 (none) or later")
        if self._append_ms >= 0:
            header = restamp(arena, start, header, self._append_ms, attributes | LOG_APPEND_TIME)
        elif max_timestamp != header.max_timestamp:
            header = restamp(arena, start, header, max_timestamp, attributes)
        if producer_id >= 0:
            self._sequences.record(producer_id, epoch, sequence, count, end - count, end, header.max_timestamp, begins)
        place(arena, start, position, size, count)
        group.append((arena[start:stop], header))
        return end - count, end, end

    def _check_transaction(self, producer_id: int, epoch: int, sequence: int, is_transactional: bool) -> None:
        """Check that a batch is part of the transaction that its producer is in, if it is in one.

        Raises:
            InvalidTransactionState, TransactionUnverified: see :class:`.OpenTransactions`.
        """
        sequences = self._sequences
        if is_transactional:
            if not sequences.is_open(producer_id, epoch):
                try:
                    self._transactions.check_batch(producer_id, epoch)
                except TransactionUnverified:
                    sequences.note_refused(producer_id, epoch, sequence)
                    raise
        elif sequences.is_open(producer_id):
            raise InvalidTransactionState(f"producer {producer_id} is in a transaction, of which this is no part")

    def _admit_several(
        self, arena: memoryview, start: int, stop: int, position: int, group: list[tuple[memoryview, BatchHeader]]
    ) -> tuple[int, int, int]:
        """As :meth:`_admit`, for a part with several batches, which an idempotent producer never sends."""
        admitted: list[tuple[memoryview, BatchHeader]] = []
        first_base, at = -1, start
        while at < stop:
            header = check_batch(arena, at, stop, self._bytes_max)
            if header.producer_id >= 0:
                raise InvalidRequest("an idempotent producer sends one batch per partition and request")
            _, end, position = self._admit(arena, at, at + header.size, position, admitted)
            if first_base < 0:
                first_base = end - header.count
            at += header.size
        group += admitted
        return first_base, position, position

    def show_segments(self) -> None:
        """Add the log's new segments to the table."""
        bases = self._log.bases
        for base in bases[bisect_right(bases, self._last_base) :]:
            self._table.add_segment(base)
            self._last_base = base


def _unsettable(attributes: int) -> InvalidTimestamp | InvalidRecord:
    """The error for attributes of a batch that a client must not set."""
    if attributes & LOG_APPEND_TIME:
        return InvalidTimestamp("a batch with LogAppendTime, which only a broker may set: send it with CreateTime")
    return InvalidRecord(f"a batch with attributes {attributes & 0xFFFF:#06x}, some of which mean nothing")


class FlushedSteps:
    """Steps of transactions whose records are flushed, until the loop sends the coordinator their answers.

    It takes the place of a connection in :class:`Unflushed`, which calls :meth:`answer`: a step is its own token.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        """``wake`` lets the loop :meth:`take_answered` them."""
        self._wake = wake
        self._done: deque[TransactionStep] = deque()

    def answer(self, answers: Sequence[tuple[Any, AppendAnswer]]) -> None:
        self._done.extend(step for step, _ in answers)
        self._wake()

    def take_answered(self) -> Iterator[TransactionStep]:
        while self._done:
            yield self._done.popleft()


NO_NUMBERS: Final = AppendAnswer([], {}, -1)


class WriterArguments(NamedTuple):
    """The arguments of a writer, with which the nursery forks it."""

    config: Config
    data_dir: Path
    topic: str
    partition: int
    settings: dict[str, str]
    table_name: str
    doorbells: Sequence[MarkedDoorbell]
    heart: Heart = alone()

    @property
    def path(self) -> Path:
        return self.data_dir / f"{self.topic}-{self.partition}"

    @property
    def topic_settings(self) -> TopicSettings:
        return self.config.topic_defaults.held_by(self.topic, self.settings)


def run(arguments: WriterArguments, control: Channel) -> int:
    """Run the writer process, from fork to exit; return its exit status.

    What it has from the nursery (:mod:`appliance.processes.supervisor.nursery`) makes it a child already, except that
    it is not killed when the supervisor dies: it closes its log in order, at the end of the control channel.
    """
    set_name(f"wr {arguments.topic}-{arguments.partition}")
    control.send(Forked(os.getpid()))
    try:
        table = SegmentTable(memoryview(memory.attach(arguments.table_name)).cast("Q"))
    except FileNotFoundError:  # the topic has been deleted meanwhile
        return 0
    try:
        try:
            with arguments.heart.working():
                writer = Writer(arguments, control, table, open_log(arguments))
                writer.publish()
        except (ApplianceError, OSError) as error:
            if not is_lack(error):
                raise
            limit = limit_of(error)
            if limit == DISK:
                table.set_state(DISK_FULL)
            control.send(Lacking(str(error), limit))  # the supervisor starts another writer later
            return Unavailable.exit_status
        writer.serve()
        with arguments.heart.working():
            writer.close()
    except StorageFault as error:
        logger.error("%s-%d is offline: %s", arguments.topic, arguments.partition, error)
        table.set_state(OFFLINE)  # the log can still be read
        control.send(Offline(str(error)))
        return error.exit_status
    return 0


def open_log(arguments: WriterArguments) -> Log:
    """Recover the log.

    Raises:
        StorageFault: it cannot be trusted.
        DiskFull: there is no room for the little that opening writes.
    """
    settings = arguments.topic_settings
    return Log.open(arguments.path, settings, wall_ms, SEGMENTS_MAX, may_make=False, steady_ms=now_ms)


class Writer:
    """The loop of one writer."""

    def __init__(self, arguments: WriterArguments, control: Channel, table: SegmentTable, log: Log) -> None:
        self._arguments = arguments
        self._control, self._heart = control, arguments.heart
        self._table, self._log = table, log
        self._producers = Producers(log, arguments.config.producers.ids_max)
        self._transactions = OpenTransactions(arguments.config.producers.ids_max)
        self._appender = Appender(log, self._producers, table, self._transactions)
        self._links: dict[int, WorkerLink] = {}
        self._epoll = select.epoll()
        self._alarm = Doorbell()
        slot = slot_of(arguments.topic, arguments.partition)
        self._unflushed = Unflushed(
            table, log, self._producers, arguments.doorbells, slot, arguments.heart, self._alarm.ring
        )
        self._handed_over = HandedOverConnections(
            TopicPartition(arguments.topic, arguments.partition),
            arguments.config,
            self._table,
            self._epoll,
            self._unflushed.lock,
            wake=self._alarm.ring,
            directory=arguments.path,
        )
        self._steps = FlushedSteps(wake=self._alarm.ring)
        self._named_ms = 0  # when it has last seen that its file has its name
        self._full = False  # whether the disk has no room, as the table shows and the supervisor knows
        self._lacking_bytes = self._room_checked_ms = 0  # while it is full: what was refused last; the last look
        self._retire_ms: int | None = None  # when it was asked to
        self._now_ms = self._quiet_since_ms = now_ms()  # _now_ms: of the end of the last turn

    # ---- opening and closing

    def publish(self) -> None:
        """Let readers see the log, and workers send append requests."""
        log, table = self._log, self._table
        table.publish(*log.summary)
        table.set_log_end_offset(log.end_offset)
        table.set_flush_messages(log.settings.flush_messages)
        table.set_state(ONLINE)
        self._epoll.register(self._control.fileno(), select.EPOLLIN)
        self._epoll.register(self._alarm.fd, select.EPOLLIN)
        self._unflushed.start()
        self._control.send(WriterOpened())

    def close(self) -> None:
        """Flush, answer, mark the log clean."""
        self._unflushed.close()
        self._producers.store_all()
        self._send_steps()
        self._log.close(clean=True)
        self._table.set_state(ONLINE)  # nobody looks any more whether the disk is full
        self._control.send(LogClosed())

    # ---- the loop: wait, take, write, answer

    def serve(self) -> None:
        """Serve until the supervisor is gone, or the writer retires and every worker has closed its channel.

        Raises:
            StorageFault: a write or a flush failed in a way that cannot be retried.
        """
        while not self._control.closed and not self._may_end:
            self.turn(self._timeout_s())

    @property
    def _may_end(self) -> bool:
        """Whether all workers have closed their channels to a retiring writer, or RETIRE_MS_MAX has passed.

        A worker that hangs must not keep others from the partition.  It finds its channel closed, as if the writer had
        been killed, and answers its later append requests with a retriable error.
        """
        return self._retire_ms is not None and (not self._links or now_ms() - self._retire_ms >= RETIRE_MS_MAX)

    def turn(self, timeout_s: float) -> None:
        """Wait for append requests, write, flush, answer.  Raises StorageFault, as :meth:`serve`."""
        handed_over, unflushed = self._handed_over, self._unflushed
        idle = not unflushed.since_ms and not handed_over
        events = self._epoll.poll(timeout_s)
        began_ns = now_ns()
        if self._control.pending:
            self._control.flush()
        self._heart.beat()
        arrived: list[tuple[AppendSource, AppendRow]] = []
        for fd, event in events:
            if fd in handed_over:
                arrived += handed_over.take_requests(fd, began_ns)
            elif fd in self._links:
                arrived += self._take(fd, event)
            else:
                unflushed.raise_fault()
                self._alarm.silence()
                self._send_steps()
                handed_over.give_back()
                self._on_control()
        if arrived:
            self._heart.note_service(began_ns // 1_000_000)
            self._write(arrived)
        self._now_ms = now = now_ms()
        unflushed.flush_if_due(now, bool(arrived))
        handed_over.give_back_quiet(now)
        if self._full and now - self._room_checked_ms >= ROOM_CHECK_MS:
            self._look_for_room()
        if events or not idle:
            self._quiet_since_ms = now
        elif now - self._quiet_since_ms >= self._arguments.config.writer.idle_ms:
            self._quiet_since_ms = now
            self._control.send(Idle())

    def _timeout_s(self) -> float:
        beat_ms = self._heart.beat_ms
        if self._unflushed.since_ms:
            return min(self._unflushed.due_in_ms(self._now_ms), beat_ms) / 1000
        wait_ms = min(self._arguments.config.writer.idle_ms, beat_ms, ROOM_CHECK_MS if self._full else beat_ms)
        if self._retire_ms is not None:
            wait_ms = min(wait_ms, RETIRE_MS_MAX)
        return (min(wait_ms, CHECK_MS) if self._handed_over else wait_ms) / 1000

    def _write(self, arrived: list[tuple[AppendSource, AppendRow]]) -> None:
        """Check, append and answer the append requests that have arrived."""
        ready = self._appender.admit_batches(arrived)
        try:
            size, records = self._appender.append()
        except (DiskFull, OutOfResources, StorageFault) as error:
            self._lacking_bytes = sum(sum(positions[1::2]) - sum(positions[::2]) for _, (_, _, positions) in arrived)
            self._on_append_failed(error, self._appender.refuse(error, ready))
            return
        if size:
            self._check_named(ready)
            self._unflushed.on_appended(size, records)
            if self._full:
                self._show_full("")
        self._unflushed.answer(ready)

    def _check_named(self, ready: list[ReadyAnswer]) -> None:
        """Check that the log's file still has its name, where answers do not wait for a flush, which checks it, too.

        Raises:
            StorageFault: it has not; these answers are never sent.
        """
        unflushed_all = not self._log.settings.flush_messages and any(answer.acks == -1 for answer in ready)
        if unflushed_all or self._now_ms - self._named_ms >= NAMED_MS:
            self._named_ms = self._now_ms
            self._log.check_named()

    def _on_append_failed(self, error: DiskFull | OutOfResources | StorageFault, refusals: list[ReadyAnswer]) -> None:
        """Refuse all append requests of the turn, none of which is in the log; go on unless the disk fails."""
        self._unflushed.refuse(refusals)
        if isinstance(error, StorageFault):
            raise error
        if isinstance(error, DiskFull) and not self._full:
            logger.warning("%s: %s", self._arguments.path, error)
            self._show_full(str(error))

    def _look_for_room(self) -> None:
        """See whether what was refused last would find room now: the state ends with its cause."""
        self._room_checked_ms = self._now_ms
        if has_room(self._arguments.path, max(self._lacking_bytes, ROOM_BYTES)):
            self._show_full("")

    def _show_full(self, reason: str) -> None:
        """Report that the disk has no room for the log, and with "" that it has again."""
        self._full = bool(reason)
        self._room_checked_ms = now_ms()
        self._table.set_state(DISK_FULL if reason else ONLINE)
        self._control.send(LogFull(reason))

    # ---- workers

    def _take(self, fd: int, event: int) -> Iterable[tuple[AppendSource, AppendRow]]:
        """Take one message of a worker; return its append requests."""
        link = self._links[fd]
        if event & select.EPOLLOUT:
            with self._unflushed.lock:
                link.flush()
        taken = link.channel.take_message(FROM_WORKER)
        if taken is None:
            if link.channel.closed:
                self._on_worker_gone(fd, link)
            return ()
        message, fds = taken
        match message:
            case Append(requests):
                return [(link, row) for row in requests]
            case FlushSoon():
                self._unflushed.ask(now=False)
            case FlushNow():
                self._unflushed.ask(now=True)
            case Handoff():
                self._handed_over.accept(link, message, fds[0], now_ms())
                if self._retire_ms is not None:
                    self._handed_over.recall()
            case Recall():
                self._handed_over.recall(link)
            case Unreceivable(Handoff(token)):
                with self._unflushed.lock:
                    link.send(ConnectionLost(token))
            case Unreceivable():
                raise AssertionError(message)  # nothing else from a worker has a descriptor
            case _:
                assert_never(message)
        return ()

    def _on_worker_gone(self, fd: int, link: WorkerLink) -> None:
        """Close the link to a worker that has closed its channel, or has died."""
        del self._links[fd]
        with self._unflushed.lock:
            self._handed_over.lose(link)
            link.close()

    def _join(self, fd: int, arena_name: str) -> None:
        """Link to a worker."""
        channel = Channel(socket.socket(fileno=fd))
        try:
            arena = memoryview(memory.attach(arena_name))
        except FileNotFoundError:  # the worker died meanwhile; its successor is announced next
            channel.close()
            return
        except OSError:
            channel.close()
            self._control.send(Unreceivable(WorkerChannel(arena_name)))
            return
        self._links[fd] = WorkerLink(channel, arena, self._epoll)

    # ---- the supervisor

    def _on_control(self) -> None:
        for message, fds in self._control.receive(TO_WRITER):
            match message:
                case WorkerChannel(arena_name):
                    self._join(fds[0], arena_name)
                case Unreceivable():  # no descriptor left for it: the supervisor sends it again
                    self._control.send(message)
                case ChangeSettings(_, settings):
                    self._change(self._arguments._replace(settings=settings))
                case Reload(config):
                    self._change(self._arguments._replace(config=config))
                case DeleteBefore(_, offset):
                    self._delete_before(offset)
                case Roll():
                    self._roll()
                case SwapSegment(partition, base):
                    self._swap(partition, base)
                case StoreProducers():
                    with self._heart.working():
                        self._unflushed.flush_and_wait()
                        self._producers.store_all()
                case OpenTransaction() | WriteMarker() | AbortHanging():
                    self._step(message)
                case TransactionsSent():
                    self._transactions.sent = True
                case Retire():
                    self._retire_ms = now_ms()
                    self._handed_over.recall()
                case _:
                    assert_never(message)

    def _change(self, arguments: WriterArguments) -> None:
        self._arguments = arguments
        self._log.settings = settings = arguments.topic_settings
        self._table.set_flush_messages(settings.flush_messages)
        set_log_level(arguments.config.log.level)

    def _delete_before(self, offset: int) -> None:
        """Move the log start offset to ``offset``, at most to the end, and remove the segments before it.

        Raises:
            StorageFault: the disk fails.
        """
        try:
            with self._heart.working():  # it waits for flushes, and the disk may be slow
                count = delete_before(
                    self._log, self._producers, offset, self._unflushed.flush_and_wait, self._show_start
                )
        except (DiskFull, OutOfResources) as error:  # retention orders it again
            logger.warning("%s: not all is removed: %s", self._arguments.path, error)
            return
        self._table.count(COUNT_RETIRED, count)

    def _swap(self, partition: TopicPartition, base: int) -> None:
        """Put a compacted segment in its place.

        Raises:
            StorageFault: the disk fails.
        """
        try:
            with self._heart.working():
                done = swap_segment(self._log, self._producers, base, self._unflushed.flush_and_wait)
        except (DiskFull, OutOfResources) as error:  # the compactor asks again
            logger.warning("%s: a compacted segment is not in its place yet: %s", self._arguments.path, error)
            return
        self._control.send(SegmentSwapped(partition, base, done))

    def _step(self, message: OpenTransaction | WriteMarker | AbortHanging) -> None:
        """Begin or end a transaction, and say so: that it has ended, when all of that is flushed and published.

        Raises:
            StorageFault: the disk fails.
        """
        step = TransactionStep(message.partition, message.token, "")
        try:
            if not isinstance(message, OpenTransaction):
                if isinstance(message, WriteMarker):
                    self._end_transaction(message)
                else:
                    self._abort_hanging(message.known_producers)
                self._unflushed.answer_flushed(ReadyAnswer(self._steps, -1, step, NO_NUMBERS))
                return
            self._producers.sequences.check_epoch(message.producer_id, message.epoch)
            self._transactions.open_transaction(message.producer_id, message.epoch)
        except (ClientFault, DiskFull, OutOfResources) as fault:
            step.error = type(fault).__name__
        self._control.send(step)

    def _end_transaction(self, message: WriteMarker) -> None:
        """Raises StaleProducerEpoch, TransactionCoordinatorFenced, DiskFull, OutOfResources, StorageFault."""
        self._transactions.check_epoch(message.producer_id, message.epoch)
        # ZooKeeper's state may be older than the log, in a backup: what is open here has begun after that end.
        ended_ms = self._producers.sequences.ended_ms(message.producer_id)
        is_later = message.inherited and ended_ms >= message.decided_ms
        marker = Marker(message.committed and not is_later, message.coordinator_epoch)
        decided_ms = max(ended_ms, message.decided_ms)
        size = self._appender.append_marker(message.producer_id, message.epoch, marker, decided_ms)
        self._transactions.end_transaction(message.producer_id)
        if size:
            self._unflushed.on_appended(size, 1)

    def _abort_hanging(self, known_producers: Collection[int]) -> None:
        """Raises as :meth:`_end_transaction`; the producers before are done."""
        for producer_id, epoch, coordinator_epoch in self._producers.sequences.producers_in_transactions():
            if producer_id not in known_producers:
                ended_ms = self._producers.sequences.ended_ms(producer_id)  # no coordinator's decision is before it
                marker = Marker(False, coordinator_epoch)
                size = self._appender.append_marker(producer_id, epoch, marker, ended_ms)
                self._transactions.end_transaction(producer_id)
                self._unflushed.on_appended(size, 1)
                path = self._arguments.path
                logger.warning("%s: the transaction of producer %d, which nobody knows, is aborted", path, producer_id)

    def _send_steps(self) -> None:
        """Say which transactions have ended."""
        for step in self._steps.take_answered():
            self._control.send(step)

    def _show_start(self) -> None:
        with self._unflushed.lock:
            self._table.retire_before(self._log.start)  # a full table has no row for a new segment before that
            self._appender.show_segments()
            self._table.retire_before(self._log.start)

    def _roll(self) -> None:
        """Seal the active segment, so that it can be removed."""
        if len(self._log.bases) < SEGMENTS_MAX:
            try:
                self._log.roll()
            except (DiskFull, OutOfResources) as error:
                logger.warning("%s: not rolled: %s", self._arguments.path, error)
            with self._unflushed.lock:
                self._appender.show_segments()


def swap_segment(log: Log, producers: Producers, base: int, flush: Callable[[], None]) -> bool:
    """Put what compaction has written in the place of a sealed segment; see :meth:`.Log.swap`.

    The later messages for which some have gone may be in any sealed segment, so these have to be on the disk.  And the
    headers of the messages that have gone are not there any more to derive the producers from.

    Raises:
        DiskFull, OutOfResources: call it again when there is room.
        StorageFault: the disk fails.
    """
    bases = log.bases
    following = next((later for later in bases if later > base), base)
    covered = producers.covers_to(following)
    if base in bases and (not covered or log.flushed < bases[-1]):
        flush()
        if not covered:
            with_reserve(log.path.parent, producers.store_before_removal)
    return log.swap(base)


def delete_before(
    log: Log, producers: Producers, offset: int, flush: Callable[[], None], show: Callable[[], None]
) -> int:
    """Move the log start offset to ``offset``, at most to the log end offset; return how many files were removed.

    Args:
        flush: waits until everything written is flushed and published, and the flusher is idle.
        show: publishes the log's segments and its start.

    Raises:
        DiskFull: files are left; the next call removes them.
        StorageFault: the disk fails.
    """
    offset = min(offset, log.end_offset)
    covered = producers.covers(log.first_base(offset))
    if offset > min(log.high_watermark, log.flushed) or not covered:
        flush()
    if not covered:
        try:
            with_reserve(log.path.parent, producers.store_before_removal)
        except DiskFull as error:  # without more room, nothing can be written at all
            logger.warning("%s: producers without later batches will be forgotten: %s", log.path, error)
    log.retire_before(offset)
    show()
    if log.must_flush_to_unlink:
        flush()
    return log.unlink_retired()
