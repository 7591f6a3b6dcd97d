"""The writer owns one partition's files: it is the only process that writes them.

One turn of its loop takes all waiting append requests (positions of record batches in the workers' arenas), checks each
batch, gives it the next offset, appends all with one ``writev``, and answers.  That is group commit.  Answers that need
a flush wait for it: see ``unflushed``.

This module is the program: open, the loop, close.  The parts::

    worker_link     the link to a network worker, and its messages
    handed_over     connections that workers have handed over
    appender        check, place, append
    unflushed       flushes, publishes and acknowledges written batches
    flusher         flushes in a thread, or in the loop
    producers       idempotent producers
    delete_before   retention and DeleteRecords

Messages on the control channel: see :mod:`appliance.processes.supervisor.child_events`.
"""

from __future__ import annotations

import logging
import os
import select
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, assert_never

from ...config import Config, TopicSettings
from ...errors import ApplianceError, DiskFull, OutOfResources, StorageFault, Unavailable, is_lack
from ...log import Log
from ...log.files import has_room
from ...machine_limits import DISK, limit_of
from ...names import TopicPartition
from ...partition_states import DISK_FULL, OFFLINE, ONLINE
from ...shared import memory
from ...shared.doorbell import Doorbell
from ...shared.heartbeats import Heart, alone
from ...shared.table import COUNT_RETIRED, SEGMENTS_MAX, SegmentTable
from ..child import set_log_level, set_name
from ..clock import now_ms, now_ns, wall_ms
from ..control import Channel
from ..messages import (
    FROM_WORKER,
    TO_WRITER,
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
    Recall,
    Refused,
    Reload,
    Retire,
    Roll,
    StoreProducers,
    WorkerChannel,
    WriterOpened,
)
from .appender import Appender
from .delete_before import delete_before
from .handed_over import CHECK_MS, HandedOverConnections
from .producers import Producers
from .unflushed import Unflushed
from .worker_link import Link, ReadyAnswer, Source

logger = logging.getLogger(__name__)

NAMED_MS: Final = 100
"""How long the writer answers acks=1 before it looks again whether its file still has its name."""
ROOM_CHECK_MS: Final = 1_000
"""How often a writer looks whether a full disk has room again, if nobody produces."""
ROOM_BYTES: Final = 1 << 16
"""The room that it looks for at least."""
RETIRE_MS_MAX: Final = 2_000
"""How long a writer that retires waits for the workers to close their channels."""


class WriterArguments(NamedTuple):
    """The arguments of a writer, with which the nursery forks it."""

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


def run(arguments: WriterArguments, control: Channel) -> int:
    """Run the writer process, from fork to exit; return its exit status.

    What it has from the nursery (:mod:`appliance.processes.supervisor.nursery`) makes it a child already, except that
    it is not killed when the supervisor dies: it closes its log in order, at the end of the control channel.
    """
    set_name(f"wr {arguments.topic}-{arguments.partition}")
    control.send(Forked(os.getpid()))
    try:
        writer = Writer(arguments, control)
    except FileNotFoundError:  # its table is gone: the topic has been deleted meanwhile
        return 0
    try:
        try:
            with arguments.heart.working():
                writer.open()
        except (ApplianceError, OSError) as error:
            if not is_lack(error):
                raise
            writer.wait_for_room(error)
            return Unavailable.exit_status
        writer.serve()
        with arguments.heart.working():
            writer.close()
    except StorageFault as error:
        writer.go_offline(error)
        return error.exit_status
    return 0


class Writer:
    """The loop of one writer."""

    def __init__(self, arguments: WriterArguments, control: Channel) -> None:
        self._arguments = arguments
        self._control, self._heart = control, arguments.heart
        self._table = SegmentTable(memoryview(memory.attach(arguments.table_name)).cast("Q"))
        self._links: dict[int, Link] = {}
        self._epoll = select.epoll()
        self._alarm = Doorbell()
        self._unflushed = Unflushed(self._table, arguments.doorbells, arguments.heart, wake=self._alarm.ring)
        self._handed_over = HandedOverConnections(
            TopicPartition(arguments.topic, arguments.partition),
            arguments.config,
            self._table,
            self._epoll,
            self._unflushed.lock,
            wake=self._alarm.ring,
        )
        self._named_ms = 0  # when it has last seen that its file has its name
        self._full = False  # whether the disk has no room, as the table shows and the supervisor knows
        self._lacking_bytes = self._room_checked_ms = 0  # while it is full: what was refused last; the last look
        self._retire_ms: int | None = None  # when it was asked to
        self._now_ms = self._quiet_since_ms = now_ms()  # _now_ms: of the end of the last turn

    # ---- opening and closing

    def open(self) -> None:
        """Recover the log and publish it.

        Raises:
            StorageFault: it cannot be trusted.
        """
        arguments, table = self._arguments, self._table
        settings = arguments.topic_settings
        log = Log.open(arguments.path, settings, wall_ms, SEGMENTS_MAX, may_make=False, steady_ms=now_ms)
        self._log = log
        self._producers = Producers(log, arguments.config.producers.ids_max)
        self._appender = Appender(log, self._producers, table)
        table.publish(log.bases, log.start, log.end_offset, log.records)
        table.set_log_end_offset(log.end_offset)
        table.set_flush_messages(log.settings.flush_messages)
        table.set_state(ONLINE)
        self._epoll.register(self._control.fileno(), select.EPOLLIN)
        self._epoll.register(self._alarm.fd, select.EPOLLIN)
        self._unflushed.open(log, self._producers)
        self._control.send(WriterOpened())

    def close(self) -> None:
        """Flush, answer, mark the log clean."""
        self._unflushed.close()
        self._producers.store_all()
        self._log.close(clean=True)
        self._table.set_state(ONLINE)  # nobody looks any more whether the disk is full
        self._control.send(LogClosed())

    def go_offline(self, error: StorageFault) -> None:
        """Set the partition offline and report the reason; the log can still be read."""
        logger.error("%s-%d is offline: %s", self._arguments.topic, self._arguments.partition, error)
        self._table.set_state(OFFLINE)
        self._control.send(Offline(str(error)))

    def wait_for_room(self, error: ApplianceError | OSError) -> None:
        """Report which resource is lacking to open the log; the supervisor starts another writer later."""
        limit = limit_of(error)
        if limit == DISK:
            self._table.set_state(DISK_FULL)
        self._control.send(Lacking(str(error), limit))

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
        arrived: list[tuple[Source, AppendRow]] = []
        for fd, event in events:
            if fd in handed_over:
                arrived += handed_over.take(fd, began_ns)
            elif fd in self._links:
                arrived += self._take(fd, event)
            else:
                unflushed.check()
                self._alarm.silence()
                handed_over.give_back()
                self._on_control()
        if arrived:
            self._heart.note_service(began_ns // 1_000_000)
            self._write(arrived)
        self._now_ms = now = now_ms()
        unflushed.flush_if_due(now, bool(arrived))
        handed_over.check(now)
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

    def _write(self, arrived: list[tuple[Source, AppendRow]]) -> None:
        """Check, append and answer the append requests that have arrived."""
        ready = self._appender.check(arrived)
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
        unflushed_all = not self._log.settings.flush_messages and any(one.acks == -1 for one in ready)
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

    def _take(self, fd: int, event: int) -> Iterable[tuple[Source, AppendRow]]:
        """Take one message of a worker; return its append requests."""
        link = self._links[fd]
        if event & select.EPOLLOUT:
            with self._unflushed.lock:
                link.flush()
        taken = link.channel.take(FROM_WORKER)
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
            case Refused(Handoff(token)):
                with self._unflushed.lock:
                    link.send(ConnectionLost(token))
            case Refused():
                raise AssertionError(message)  # nothing else from a worker has a descriptor
            case _:
                assert_never(message)
        return ()

    def _on_worker_gone(self, fd: int, link: Link) -> None:
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
            self._control.send(Refused(WorkerChannel(arena_name)))
            return
        self._links[fd] = Link(channel, arena, self._epoll)

    # ---- the supervisor

    def _on_control(self) -> None:
        for message, fds in self._control.receive(TO_WRITER):
            match message:
                case WorkerChannel(arena_name):
                    self._join(fds[0], arena_name)
                case Refused():  # no descriptor left for it: the supervisor sends it again
                    self._control.send(message)
                case ChangeSettings(_, settings):
                    self._change(self._arguments._replace(settings=settings))
                case Reload(config):
                    self._change(self._arguments._replace(config=config))
                case DeleteBefore(_, offset):
                    self._delete_before(offset)
                case Roll():
                    self._roll()
                case StoreProducers():
                    with self._heart.working():
                        self._unflushed.flush_and_wait()
                        self._producers.store_all()
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
