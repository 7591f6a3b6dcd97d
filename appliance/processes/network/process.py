"""The network worker: sockets of both doors, epoll, sendfile.  Touches segments for reading only.

One turn of the loop: obey the supervisor, take the writers' answers, look who was rung for, read what clients send,
hand bundles to the writers, send replies.  Nothing blocks but epoll.

Requests of one connection take effect in their order (``connection``).  A connection that does nothing but produce to
one partition is handed over to the partition's writer (:mod:`appliance.processes.handoff`).

A fetch that has nothing to give yet is parked (``longpoll``) until a writer rings or its time is up; so is a question
about the end of a log of which more is written than shown: what acks=1 has acknowledged is there for whoever asks.

Bounds: connections per worker (fewer where the system grants fewer descriptors), unanswered requests and unsent bytes
per connection, bytes received (``inbox``), ``REQUESTS_PER_TURN`` of one connection before others have their turn.
Reaching one of the last four stops reading from the connection; TCP tells the client.  Of all requests for offsets
together a turn looks into ``network.look_bytes_max`` of logs, and beyond that into one batch at most (16 MiB once
unpacked, 50,000 records): some 50 ms in all.  The rest waits for the next turn.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import select
import socket
from collections import OrderedDict, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...broker import plan
from ...config import Config, address_text
from ...errors import ApplianceError, ProtocolFault, StorageFault, UnknownPartition, WriterGone
from ...log import FileCache, LogReader
from ...shared import memory
from ...shared.doorbell import Doorbell
from ...shared.heartbeats import Heart, alone
from ...shared.table import OFFLINE, SegmentTable
from ...wire.bounds import Limits
from ...wire.listener_codecs import codec_of
from ...wire.requests import (
    EARLIEST,
    Cold,
    Fetch,
    FetchResult,
    Local,
    Offsets,
    Produce,
    ProduceResult,
    Request,
    decode_frames,
)
from ...wire.sockets import set_options
from .. import handoff
from ..child import give_back_memory, settle
from ..clock import now_ms
from ..control import Channel
from .connection import Connection, Pending
from .directory import LocalDirectory
from .inbox import Buffers, Inbox
from .links import Away, Bundle, CoordinatorLink, Target, WriterLink
from .longpoll import LongPoll, Parked, Place, Want, wants_of_fetch

logger = logging.getLogger(__name__)

OPEN_FILES_MAX: Final = 512
WAIT_MS_MAX: Final = 300_000
FLUSH_WAIT_MS: Final = 2_000
"""How long ListOffsets, and Fetch with max_wait 0, wait for the flush of what acks=1 has acknowledged."""
SWEEP_MS: Final = 1_000
REQUESTS_PER_TURN: Final = 100
"""Requests of one connection, produce requests alike counted once, before others have their turn."""
WRITER_PART_MAX: Final = 4
"""Once half of the arena is taken, no more than this part (a quarter) of it waits for one writer."""
SPARE_DESCRIPTORS: Final = 64
"""Descriptors that no connection gets: channels to processes that are started anew, segments in use."""
PARTS_PER_TURN: Final = 5_000
"""Parts of parked requests that are looked at again before others have their turn."""
CONTROL_RETRY_MS: Final = 10
"""How soon what the supervisor has not taken is sent again."""
STARVED_MS_MAX: Final = 500
"""How long connections wait for memory that an unfinished request of another keeps, before that one is closed."""
ACCEPT_PAUSE_MS: Final = 100
"""How long a worker that had to refuse a connection leaves the listeners to others."""
SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
COMPLAINTS_MAX: Final = 20
STATS_MS: Final = 5_000
MEMORY_MS: Final = 10_000
"""How often freed memory is given back."""


class Post(NamedTuple):
    """What the supervisor tells a worker when it forks it."""

    config: Config
    data_dir: Path
    number: int
    arena_name: str
    listeners: list[tuple[str, socket.socket]]
    doorbell: Doorbell
    heart: Heart = alone()


class Partition:
    """A partition as this worker holds it."""

    __slots__ = ("key", "link", "place", "reader", "table")

    def __init__(self, key: tuple[str, int], table: SegmentTable, reader: LogReader, in_hand_bytes_max: int) -> None:
        self.key = key
        self.table = table
        self.reader = reader
        self.link = WriterLink(f"{key[0]}-{key[1]}", in_hand_bytes_max)
        self.place = Place(table)


def run(post: Post, control: Channel, supervisor_pid: int) -> int:
    """The worker process, from fork to exit; returns its exit status."""
    settle(f"net {post.number}", supervisor_pid)
    worker = NetworkWorker(post, control)
    worker.serve()
    worker.drain()
    return 0


class NetworkWorker:
    def __init__(self, post: Post, control: Channel) -> None:
        self._post = post
        self._limits = post.config.network
        self._control = control
        self._memory = memoryview(memory.attach(post.arena_name))
        self._buffers = Buffers(self._memory, len(self._memory))
        self._files = FileCache(OPEN_FILES_MAX)
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._directory = LocalDirectory(Limits.of(post.config).parts_max)
        self._coordinator = CoordinatorLink(self._directory.snapshot.take)
        self._coordinator_waits = False
        self._connections: dict[int, Connection] = {}
        self._links: dict[int, Partition] = {}
        self._waiting: set[Partition] = set()
        self._long_poll = LongPoll(post.number)
        self._touched: dict[Connection, None] = {}
        self._bundled: dict[Partition, None] = {}
        self._starved: OrderedDict[Connection, None] = OrderedDict()
        """Connections that found no room for what they send, those that wait longest first."""
        self._starved_ms = 0
        self._lookups: deque[tuple[Pending, plan.Lookup]] = deque()
        self._look_bytes = self._limits.look_bytes_max
        """What is left for this turn to look into."""
        self._ready: dict[Connection, None] = {}
        """Connections with requests that can start in the next turn."""
        self._rung = False
        """Parked requests whose END has come are left over from the last turn."""
        self._away_count = self._away_bytes = 0
        self._refused = 0
        self._paused_ms = 0
        self._spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._complaints = self._complaints_ms = 0
        self._stopping = False
        self._now_ms = now_ms()
        self._sweep_ms = self._stats_ms = self._memory_ms = self._now_ms
        self._stats: tuple[int, int] = (0, 0)
        self._epoll = select.epoll()
        self._epoll.register(control.fileno(), select.EPOLLIN)
        self._epoll.register(post.doorbell.fd, select.EPOLLIN)
        self._listeners = {sock.fileno(): (door, sock) for door, sock in post.listeners}
        for fd in self._listeners:
            self._epoll.register(fd, select.EPOLLIN | select.EPOLLEXCLUSIVE)

    # ---- the loop

    def serve(self) -> None:
        """Until told to stop, or the supervisor is gone."""
        while not self._stopping and not self._control.closed:
            self.turn(self._timeout_s())

    def drain(self) -> None:
        """Answer what has been taken, then close; the supervisor bounds how long that may take."""
        if not self._paused_ms:
            self._watch_listeners(False)
        for _, sock in self._listeners.values():
            sock.close()
        self._listeners.clear()
        for parked in self._long_poll.everybody():
            self._answer_parked(parked)
        for connection in list(self._connections.values()):
            connection.hang_up = True
            connection.give_up(Cold)
            self._touched[connection] = None
        for partition in self._links.values():
            partition.link.recall()
        self._finish_turn()
        while (self._connections or self._away_count) and not self._control.closed:
            self.turn(0 if self._lookups else 0.1)

    def _timeout_s(self) -> float:
        if self._ready or self._lookups or self._rung or self._touched or self._bundled:
            return 0
        next_ms = self._now_ms + self._post.heart.beat_ms
        if self._connections or len(self._files):
            next_ms = min(next_ms, self._sweep_ms + SWEEP_MS)
        deadline_ms = self._long_poll.next_deadline_ms()
        if deadline_ms is not None:
            next_ms = min(next_ms, deadline_ms)
        if self._control.pending:
            next_ms = min(next_ms, self._now_ms + CONTROL_RETRY_MS)
        if self._paused_ms:
            next_ms = min(next_ms, self._paused_ms)
        if self._starved:
            next_ms = min(next_ms, self._starved_ms + STARVED_MS_MAX)
        return max(0, next_ms - now_ms()) / 1000

    def turn(self, timeout_s: float) -> None:
        """Wait for something to happen, act on it, send what is ready."""
        events = self._epoll.poll(timeout_s)
        self._post.heart.beat()
        self._now_ms = now_ms()
        if self._paused_ms and self._now_ms >= self._paused_ms:
            self._paused_ms = 0
            self._watch_listeners(True)
        self._look_bytes = self._limits.look_bytes_max
        self._look_up()
        if self._control.pending:
            self._control.flush()
        if self._ready:
            self._obey()
            self._touched.update(self._ready)
            self._ready = {}
        if self._rung:
            self._look_again()
        connections = self._connections
        control_fd = self._control.fileno()
        for fd, event in events:
            connection = connections.get(fd)
            if connection is not None:
                if event & (select.EPOLLHUP | select.EPOLLERR):
                    self._close(connection)
                    continue
                if event & select.EPOLLOUT:
                    self._touched[connection] = None
                if event & select.EPOLLIN:
                    self._read(connection)
            elif fd in self._links:
                self._take_answers(self._links[fd], event)
            elif fd == control_fd:
                self._obey()
            elif fd == self._post.doorbell.fd:
                self._post.doorbell.silence()
                self._look_again()
            elif fd in self._listeners:
                self._accept(*self._listeners[fd])
            elif self._coordinator.sock is not None and fd == self._coordinator.sock.fileno():
                self._take_replies(event)
        self._finish_turn()

    def _finish_turn(self) -> None:
        while self._bundled or self._touched:
            for partition in self._bundled:
                self._send_bundles(partition)
            self._bundled.clear()
            while self._touched:
                connection, _ = self._touched.popitem()
                self._advance(connection)
        if self._starved:
            self._feed_starved()
        parts = 0
        for parked in self._long_poll.expired(self._now_ms):
            self._answer_parked(parked)
            self._advance(parked.pending.connection)
            parts += parked.parts
            if parts >= PARTS_PER_TURN:
                break
        if self._now_ms - self._sweep_ms >= SWEEP_MS:
            self._sweep()

    # ---- what the supervisor says

    def _obey(self) -> None:
        for message, fds in self._control.receive():
            match message:
                case ["table", topic, partition, name]:
                    self._add_partition((topic, partition), name)
                case ["drop", topic, partition]:
                    self._drop_partition((topic, partition))
                case ["writer", topic, partition]:
                    self._join_writer((topic, partition), fds[0])
                case ["retire", topic, partition]:
                    self._retire_writer((topic, partition))
                case ["coordinator"]:
                    self._join_coordinator(fds[0])
                case ["refused", *_]:  # no descriptor left for it: the supervisor sends it again
                    self._control.send(message)
                case ["stop"]:
                    self._stopping = True

    def _partitions_of(self, parts: Sequence[tuple[Any, ...]]) -> list[Partition | None]:
        """The partition of each part of a request, which begins with topic and number; equal ones follow each other."""
        known = self._partitions
        found: list[Partition | None] = []
        last: tuple[Any, ...] | None = None
        partition: Partition | None = None
        for part in parts:
            key = part[:2]
            if key != last:
                last, partition = key, known.get(key)
            found.append(partition)
        return found

    def _looks_again(self, connection: Connection, partitions: Sequence[Partition | None]) -> bool:
        """Whether a request that names an unknown partition waits for a turn, so that the supervisor is heard first.

        It may have announced the partition since this turn began: the client has been told so by somebody else.
        """
        connection.looked = not connection.looked and None in partitions
        if connection.looked:
            self._ready[connection] = None
        return connection.looked

    def _add_partition(self, key: tuple[str, int], table_name: str) -> None:
        try:
            table = SegmentTable(memoryview(memory.attach(table_name)).cast("Q"))
        except FileNotFoundError:  # of a partition that was dropped since: the next message says so
            return
        except OSError:
            self._control.send(["refused", "table", *key])
            return
        table.set_wait(self._post.number, 0)  # a worker that was killed may have left that it waits
        path = self._post.data_dir / f"{key[0]}-{key[1]}"
        in_hand_bytes_max = len(self._memory) // WRITER_PART_MAX
        self._partitions[key] = Partition(key, table, LogReader(path, self._files), in_hand_bytes_max)

    def _drop_partition(self, key: tuple[str, int]) -> None:
        partition = self._partitions.pop(key, None)
        if partition is None:
            return
        partition.reader.forget()  # another log may come to live under this name
        error = UnknownPartition(f"{key[0]}-{key[1]} has been deleted")
        self._fail(partition, partition.link.take_waiting(), error.code, str(error))
        self._waiting.discard(partition)
        if partition.link.channel is not None:  # its writer stores into the arena until it has answered
            partition.link.retiring = True
            self._let_go(partition)
        for _, lookup in self._lookups:
            lookup.forget(partition)
        for parked in partition.place.parked:
            self._answer_parked(parked)

    def _join_writer(self, key: tuple[str, int], fd: int) -> None:
        sock = socket.socket(fileno=fd)
        partition = self._partitions.get(key)
        if partition is None:
            sock.close()
            return
        link = partition.link
        if link.channel is not None:
            self._lose_writer(partition)
        link.channel = Channel(sock)
        link.asked = link.retiring = False
        self._links[fd] = partition
        self._epoll.register(fd, select.EPOLLIN)
        self._bundled[partition] = None

    def _retire_writer(self, key: tuple[str, int]) -> None:
        partition = self._partitions.get(key)
        if partition is not None and partition.link.channel is not None:
            partition.link.retiring = True
            self._let_go(partition)

    def _let_go(self, partition: Partition) -> None:
        """Hang up on a retiring writer once it has answered everything."""
        if partition.link.retiring and partition.link.idle:
            self._lose_writer(partition)
            self._bundled[partition] = None

    def _join_coordinator(self, fd: int) -> None:
        if self._coordinator.sock is not None:
            self._epoll.unregister(self._coordinator.sock.fileno())
            self._coordinator.sock.close()
        outlived = self._coordinator.connect(socket.socket(fileno=fd))
        self._coordinator_waits = False
        self._epoll.register(fd, select.EPOLLIN)
        self._watch_coordinator()
        for pending in outlived:
            if not pending.connection.closed:
                self._hang_up(pending.connection, "two coordinators have ended before they could answer this request")

    # ---- clients

    def _accept(self, door: str, listener: socket.socket) -> None:
        try:
            sock, address = listener.accept()
        except OSError as error:
            if error.errno in SHORTAGES:
                self._refuse_for_lack(listener, error)
            return
        if len(self._connections) + self._away_count >= self._connections_max:
            self._refused += 1
            self._complain("connection of %s refused: network.connections_max reached", address[0])
            sock.close()
            self._pause_listeners()
            return
        try:
            sock.setblocking(False)
            set_options(sock, address[0])
            local = sock.getsockname()
        except OSError:  # gone already
            sock.close()
            return
        codec = codec_of(door, self._post.config)
        inbox = Inbox(self._buffers)
        self._add(Connection(sock, door, address_text(local), address_text(address), codec, inbox))

    @property
    def _connections_max(self) -> int:
        """``network.connections_max``, or fewer: descriptors are kept for segments and for links to writers."""
        granted, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        kept = OPEN_FILES_MAX + SPARE_DESCRIPTORS + 2 * len(self._partitions)
        return max(1, min(self._limits.connections_max, granted - kept))

    def _add(self, connection: Connection) -> None:
        """A connection is this worker's from now on."""
        connection.active_ms = self._now_ms
        connection.events = select.EPOLLIN
        fd = connection.sock.fileno()
        self._connections[fd] = connection
        self._epoll.register(fd, select.EPOLLIN)

    def _refuse_for_lack(self, listener: socket.socket, error: OSError) -> None:
        """Close a connection with the descriptor that is kept for that, so that its client is told now."""
        spare, self._spare = self._spare, -1
        with contextlib.suppress(OSError):
            if spare >= 0:
                os.close(spare)
                listener.accept()[0].close()
                self._refused += 1
        with contextlib.suppress(OSError):  # then the next shortage closes none
            self._spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._complain("connections are refused: %s: raise LimitNOFILE, or lower connections", str(error))
        self._pause_listeners()

    def _pause_listeners(self) -> None:
        """Who could not be served would only be refused: leave them to other workers for a moment."""
        if not self._paused_ms and self._listeners:
            self._paused_ms = self._now_ms + ACCEPT_PAUSE_MS
            self._watch_listeners(False)

    def _watch_listeners(self, watch: bool) -> None:
        for fd in self._listeners:
            if watch:
                self._epoll.register(fd, select.EPOLLIN | select.EPOLLEXCLUSIVE)
            else:
                self._epoll.unregister(fd)

    def _read(self, connection: Connection, first: bool = False) -> None:
        """Receive, and start what has come; ``first``: nobody has waited longer for room in the arena."""
        inbox = connection.inbox
        connection.active_ms = self._now_ms
        inbox.starved = bool(self._starved) and not first and not inbox
        if not inbox.starved:
            if not inbox.receive(connection.sock):
                self._close(connection)
                return
            if not self._take_frames(connection):
                return
        if inbox.starved:
            self._starve(connection)
        if inbox.starved or connection.stalled:
            self._watch(connection)

    def _starve(self, connection: Connection) -> None:
        """It waits until there is room for what it sends."""
        if not self._starved:
            self._starved_ms = self._now_ms
            for partition in self._links.values():
                partition.link.ask_for_room()
        self._starved.setdefault(connection)

    def _take_frames(self, connection: Connection) -> bool:
        """Start the whole requests that a connection has received, in order; False when it has been closed."""
        memory, inbox, codec = self._memory, connection.inbox, connection.codec
        connection.stalled = False
        left = REQUESTS_PER_TURN
        try:
            frames = inbox.frames(self._limits.frame_bytes_max, codec.first_bytes_max)
            for request, start, frame in decode_frames(codec, memory, frames):
                left -= 1
                if not left:
                    self._ready[connection] = None
                if not left or not self._start(connection, request, start, frame):
                    connection.stall(start, request.overlap)
                    break
                if connection.closed:
                    return False
        except ProtocolFault as error:
            self._hang_up(connection, str(error))
        if connection.closed:
            return False
        inbox.settle(self._now_ms, connection.stalled)
        if inbox.starved:
            self._starve(connection)
        return True

    def _start(self, connection: Connection, request: Request, start: int, frame: memoryview) -> bool:
        """Start a request; False: it has to wait, and whatever it waits for brings the connection back."""
        limits = self._limits
        if (
            connection.closed
            or connection.hang_up
            or not connection.may_start(request.overlap)
            or connection.unanswered > limits.requests_max
            or connection.out_bytes > limits.send_bytes_max
        ):
            return False
        if isinstance(request, Produce):
            return self._produce(connection, request, start)
        connection.forget_habit()
        pending = Pending(connection, request)
        match request:
            case Fetch() | Offsets():
                partitions = self._partitions_of(request.parts)
                if self._looks_again(connection, partitions):
                    return False
                connection.expect(pending)
                if isinstance(request, Fetch):
                    self._fetch(pending, request, partitions)
                else:
                    self._offsets(pending, request, partitions)
            case Local():
                connection.expect(pending)
                connection.answer(pending, [request.reply])
                connection.hang_up = connection.hang_up or request.close
            case Cold():
                connection.expect(pending)
                reply = self._answer_here(connection, frame)
                if reply is not None:
                    connection.answer(pending, [reply])
                else:
                    self._coordinator.ask(pending, frame)
                    self._watch_coordinator()
        self._touched[connection] = None
        return True

    def _answer_here(self, connection: Connection, frame: memoryview) -> bytes | None:
        """The answer to a question about brokers and topics, from all that the coordinator has told of them by now."""
        question = self._directory.asked(connection.door, frame)
        if question is None:
            return None
        if self._coordinator.sock is not None:
            self._take_replies(0)
        return self._directory.answer(question, connection.listener)

    # ---- produce

    def _produce(self, connection: Connection, request: Produce, start: int) -> bool:
        parts = request.parts
        partitions = self._partitions_of(parts)
        if self._looks_again(connection, partitions):
            return False
        for partition in partitions:
            if partition is not None and partition.link.is_full and self._buffers.crowded:
                partition.link.stalled[connection] = None
                partition.link.ask_for_room()
                return False
        pending = None
        if request.acks:
            pending = Pending(connection, request, request.count)
            pending.missing = len(parts)
            pending.results = [None] * len(parts)
            connection.expect(pending)
        else:
            connection.started += len(parts)
            connection.overlap = request.overlap
        extent = connection.inbox.extent
        assert extent is not None
        for index, ((_, _, part_start, part_stop), partition) in enumerate(zip(parts, partitions, strict=True)):
            if partition is None or partition.table.state == OFFLINE or part_start >= part_stop:
                self._refuse_part(connection, pending, index, request, partition)
                if connection.closed:
                    return True
                continue
            target = (connection, pending, index)
            part_start, part_stop = start + part_start, start + part_stop
            partition.link.add(request.acks, self._now_ms, request.timeout_ms, extent, part_start, part_stop, target)
            self._bundled[partition] = None
        if pending is not None and not parts:
            connection.answer(pending, [connection.codec.encode_produce(request, [])])
            self._touched[connection] = None
        partition = partitions[-1] if partitions and len(parts) == request.count else None
        self._consider_handing_over(connection, partition.link if partition is not None else None, request.acks)
        return True

    def _refuse_part(
        self, connection: Connection, pending: Pending | None, index: int, request: Produce, partition: Partition | None
    ) -> None:
        topic, number, *_ = request.parts[index]
        error: ApplianceError
        if partition is None:
            error = UnknownPartition(f"{topic}-{number} is not on this appliance: create it, or ask for metadata")
        elif partition.table.state == OFFLINE:
            error = StorageFault(f"{topic}-{number} is offline: see `appliance status`")
        else:
            error = plan.EMPTY_BATCH
        self._finish_part((connection, pending, index), ProduceResult(error.code, -1, -1, -1, str(error)))

    def _send_bundles(self, partition: Partition) -> None:
        link = partition.link
        link.send()
        if link.waiting:
            self._waiting.add(partition)
            if not link.asked and not link.retiring:
                link.asked = True
                self._control.send(["need", *partition.key])
        else:
            self._waiting.discard(partition)
            self._watch_channel(link)

    def _watch_channel(self, link: WriterLink) -> None:
        channel = link.channel
        if channel is not None and channel.pending and not channel.closed:
            self._epoll.modify(channel.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _take_answers(self, partition: Partition, event: int) -> None:
        link = partition.link
        channel = link.channel
        assert channel is not None
        if event & select.EPOLLOUT:
            channel.flush()
            if not channel.pending and not channel.closed:
                self._epoll.modify(channel.fileno(), select.EPOLLIN)
        log_start = partition.table.start
        answers, returned = link.receive()
        for bundle, answer in answers:
            link.release(bundle)
            if bundle.acks == 0 and not answer.texts:
                self._finish_unanswered(bundle.targets)
                continue
            for target, result in zip(bundle.targets, answer.results(log_start), strict=True):
                self._finish_part(target, result)
        if link.stalled:
            self._resume_stalled(link)
        if returned is not None:
            self._take_back(*returned)
        if channel.closed and channel is link.channel:  # no other writer has joined meanwhile
            self._lose_writer(partition)
            if link.waiting:
                self._bundled[partition] = None
        elif link.retiring:
            self._let_go(partition)

    def _finish_unanswered(self, targets: list[Target]) -> None:
        """Requests with acks=0 have taken effect."""
        for connection, _, _ in targets:
            connection.started -= 1
            if connection.stalled or connection.hand_over_to is not None:
                self._touched[connection] = None

    def _resume_stalled(self, link: WriterLink) -> None:
        """The writer has taken something: there is room for those that wait for it."""
        self._ready.update(link.stalled)
        link.stalled.clear()

    def _finish_part(self, target: Target, result: ProduceResult) -> None:
        connection, pending, index = target
        if connection.closed:
            return
        if pending is None:
            connection.started -= 1
            if result.error:  # nobody waits for a reply to acks=0: hanging up is the only way to tell
                self._hang_up(connection, f"produce with acks=0 failed: {result.message}")
            return
        pending.results[index] = result
        pending.missing -= 1
        if not pending.missing:
            reply = connection.codec.encode_produce(pending.request, pending.results)  # type: ignore[arg-type]
            connection.answer(pending, [reply])
            self._touched[connection] = None

    def _fail(self, partition: Partition, bundles: list[Bundle], code: int, message: str) -> None:
        link = partition.link
        for bundle in bundles:
            link.release(bundle)
            for target in bundle.targets:
                self._finish_part(target, ProduceResult(code, -1, -1, -1, message))
        self._resume_stalled(link)

    def _forget_channel(self, partition: Partition) -> None:
        channel = partition.link.channel
        if channel is not None:
            self._links.pop(channel.fileno(), None)
            self._epoll.unregister(channel.fileno())

    def _lose_writer(self, partition: Partition) -> None:
        self._forget_channel(partition)
        error = WriterGone(f"the writer of {partition.link.name} is being restarted: send again")
        bundles, away = partition.link.lose()
        self._fail(partition, bundles, error.code, str(error))
        for one in away:
            self._forget_away(one)
            self._complain("%s door: connection of %s ended with the writer that served it", one.door, one.peer)

    # ---- handing over

    def _consider_handing_over(self, connection: Connection, link: WriterLink | None, acks: int) -> None:
        """Another produce request, for one partition unless ``link`` is None."""
        if link is None or not acks:
            connection.forget_habit()
            return
        formed = connection.habit.is_formed(link, acks, self._now_ms)
        settles = connection.started <= len(connection.requests)  # no acks=0 waits for a writer, maybe another one
        connection.hand_over_to = link if formed and settles and link.may_hand_over else None
        if acks == 1 and connection.hand_over_to is not None:  # acks=all may be waiting for what is still to be read
            self._watch(connection)

    def _hand_over(self, connection: Connection) -> bool:
        """Send a settled connection to the writer, if it can still be done."""
        link = connection.hand_over_to
        assert link is not None
        buffer_bytes = max(connection.inbox.buffer_bytes, handoff.BUFFER_BYTES_MIN)
        room = self._limits.handoff_bytes_max - self._away_bytes
        if (
            link.may_hand_over
            and buffer_bytes <= room
            and len(connection.inbox) <= handoff.PIECE_BYTES
            and not self._stopping
        ):
            try:
                link.hand_over(connection, buffer_bytes)
            except OSError:  # no descriptor to be had
                connection.forget_habit()
                return False
            self._away_count += 1
            self._away_bytes += buffer_bytes
            self._watch_channel(link)
            self._close(connection)
            return True
        connection.forget_habit()
        return False

    def _take_back(self, away: Away, sock: socket.socket | None) -> None:
        """Go on where the writer has stopped."""
        self._forget_away(away)
        if sock is None:
            return
        sock.setblocking(False)
        inbox = Inbox(self._buffers, bytes(away.received))
        connection = Connection(sock, away.door, away.listener, away.peer, away.codec, inbox)
        if away.unsent:
            connection.put(bytes(away.unsent))
        connection.hang_up = self._stopping
        self._add(connection)
        if self._take_frames(connection):
            self._touched[connection] = None

    def _forget_away(self, away: Away) -> None:
        self._away_count -= 1
        self._away_bytes -= away.buffer_bytes

    # ---- fetch and offsets

    def _fetch(self, pending: Pending, request: Fetch, partitions: Sequence[Partition | None]) -> None:
        """Answer, or wait: for enough as long as the client says, and for the flush of what acks=1 has acknowledged."""
        results, size = plan.fetch(request, partitions)
        wait_ms = min(request.wait_ms_max, WAIT_MS_MAX)
        if size == 0 and (unshown := _unshown(request, partitions)):
            _ask_for_flush(unshown, now=wait_ms <= 0)
            wait_ms = wait_ms if wait_ms > 0 else FLUSH_WAIT_MS
        if 0 <= size < request.bytes_enough and wait_ms > 0 and not self._stopping:
            parked = Parked(pending, self._now_ms + wait_ms)
            if self._park_fetch(parked, request, partitions, results):
                return
            results, size = plan.fetch(request, partitions)
        self._reply_fetch(pending, request, results)

    def _park_fetch(
        self, parked: Parked, request: Fetch, partitions: Sequence[Partition | None], results: list[FetchResult]
    ) -> bool:
        wants = wants_of_fetch(request, _places(partitions), [result.end for result in results])
        return self._park(parked, wants)

    def _park(self, parked: Parked, wants: Sequence[Want]) -> bool:
        """False when what is waited for has come meanwhile."""
        waits = self._long_poll.park(parked, wants)
        parked.pending.connection.delayed = parked if waits else None
        return waits

    def _reply_fetch(self, pending: Pending, request: Fetch, results: list[FetchResult]) -> None:
        connection = pending.connection
        connection.delayed = None
        connection.answer(pending, connection.codec.encode_fetch(request, results))
        self._touched[connection] = None

    def _offsets(self, pending: Pending, request: Offsets, partitions: Sequence[Partition | None]) -> None:
        """Answer; first wait for the flush of what acks=1 has acknowledged."""
        wants = _wants_of_offsets(request, partitions)
        if wants and not self._stopping:
            _ask_for_flush(partitions, now=True)
            if self._park_offsets(Parked(pending, self._now_ms + FLUSH_WAIT_MS), wants):
                return
        self._reply_offsets(pending, request, partitions)

    def _park_offsets(self, parked: Parked, wants: list[Want]) -> bool:
        """Wait for those of these ENDs that have not come; False when all have."""
        while wants := [(place, end) for place, end in wants if place.table.end < end]:
            if self._park(parked, wants):
                return True
        return False

    def _reply_offsets(self, pending: Pending, request: Offsets, partitions: Sequence[Partition | None]) -> None:
        pending.connection.delayed = None
        self._lookups.append((pending, plan.Lookup(request, partitions)))
        self._look_up()

    def _look_up(self) -> None:
        """Answer requests about offsets, a slice of each in turn, as far as this turn may look into logs."""
        while self._lookups and self._look_bytes > 0:
            pending, lookup = self._lookups.popleft()
            connection = pending.connection
            if connection.closed:
                continue
            self._look_bytes -= lookup.look(self._look_bytes)
            if not lookup.done:
                self._lookups.append((pending, lookup))
                continue
            connection.answer(pending, [connection.codec.encode_offsets(lookup.request, lookup.results)])
            self._touched[connection] = None

    def _look_again(self) -> None:
        """A writer has rung: answer the requests whose END has come, as many as fit into a turn."""
        parts = 0
        self._rung = False
        for parked in self._long_poll.reached():
            self._rung = parts >= PARTS_PER_TURN
            if self._rung:
                return
            parts += parked.parts
            if parked.places:  # else it has been answered meanwhile
                self._retry_parked(parked)

    def _retry_parked(self, parked: Parked) -> None:
        """Answer, or go on waiting when several partitions together have not come to what is asked for."""
        request = parked.pending.request
        assert isinstance(request, Fetch | Offsets)
        wants = self._long_poll.wants_of(parked) if isinstance(request, Offsets) else []
        self._long_poll.unpark(parked)
        partitions = self._partitions_of(request.parts)
        if isinstance(request, Offsets):
            if not self._park_offsets(parked, wants):
                self._reply_offsets(parked.pending, request, partitions)
            return
        results, size = plan.fetch(request, partitions)
        if len(partitions) > 1 and 0 <= size < request.bytes_enough:
            if self._park_fetch(parked, request, partitions, results):
                return
            results, size = plan.fetch(request, partitions)
        self._reply_fetch(parked.pending, request, results)

    def _answer_parked(self, parked: Parked) -> None:
        """Answer with what there is."""
        self._long_poll.unpark(parked)
        request = parked.pending.request
        assert isinstance(request, Fetch | Offsets)
        if parked.pending.connection.closed:
            return
        partitions = self._partitions_of(request.parts)
        if isinstance(request, Offsets):
            self._reply_offsets(parked.pending, request, partitions)
        else:
            self._reply_fetch(parked.pending, request, plan.fetch(request, partitions)[0])

    # ---- coordinator

    def _watch_coordinator(self) -> None:
        """Ask epoll to tell when a full stream takes more: nothing else may come to flush it."""
        link = self._coordinator
        if link.sock is not None and link.pending != self._coordinator_waits:
            self._coordinator_waits = link.pending
            events = select.EPOLLIN | (select.EPOLLOUT if link.pending else 0)
            self._epoll.modify(link.sock.fileno(), events)

    def _take_replies(self, event: int) -> None:
        link = self._coordinator
        assert link.sock is not None
        if event & select.EPOLLOUT:
            link.flush()
            self._watch_coordinator()
        replies = link.receive()
        if replies is None:  # the supervisor sends us the next one
            return
        hears = False
        for pending, reply in replies:
            connection = pending.connection
            if connection.closed:
                continue
            if reply is None:
                self._hang_up(connection, "the request cannot be answered")
                continue
            connection.answer(pending, [reply])
            self._touched[connection] = None
            hears = hears or connection.stalled
        if hears:  # what has taken effect was announced to this worker before it was answered
            self._obey()

    # ---- sending, closing, watching

    def _advance(self, connection: Connection) -> None:
        """Send what is ready, start what had to wait, hand over what is worth it."""
        if connection.closed:
            return
        connection.collect()
        try:
            if connection.send():
                connection.active_ms = self._now_ms
        except OSError:
            self._close(connection)
            return
        if connection.hang_up and not connection.out and not connection.requests:
            self._close(connection)
            return
        if (
            connection.stalled
            and connection.may_start(connection.stalled_overlap)
            and connection not in self._ready
            and not self._take_frames(connection)
        ):
            return
        if connection.hand_over_to is not None and connection.settled and self._hand_over(connection):
            return
        self._watch(connection)

    def _watch(self, connection: Connection) -> None:
        """Ask epoll for what this connection can make use of."""
        limits = self._limits
        events = select.EPOLLOUT if connection.out else 0
        if (
            not connection.stalled
            and not connection.inbox.starved
            and not connection.hang_up
            and (connection.hand_over_to is None or connection.habit.acks != 1)
            and connection.unanswered <= limits.requests_max
            and connection.out_bytes <= limits.send_bytes_max
        ):
            events |= select.EPOLLIN
        if events != connection.events:
            connection.events = events
            self._epoll.modify(connection.sock.fileno(), events)

    def _feed_starved(self) -> None:
        """Give connections that found no room another try; none before those that wait longer.

        The oldest unfinished frame comes before all: while memory is used up only that may grow, so that it gets done.
        """
        oldest = self._buffers.oldest
        for connection in self._starved:
            if connection.inbox is oldest:
                self._feed(connection)
                break
        while self._starved and self._feed(next(iter(self._starved))):
            pass
        if self._starved and self._now_ms - self._starved_ms >= STARVED_MS_MAX:
            self._starved_ms = self._now_ms
            self._close_slowest()

    def _feed(self, connection: Connection) -> bool:
        """Whether a connection waits no more."""
        if not connection.closed:
            self._read(connection, first=True)
            if connection.inbox.starved:
                return False
            if not connection.closed:
                self._watch(connection)
        self._starved.pop(connection, None)
        self._starved_ms = self._now_ms
        return True

    def _close_slowest(self) -> None:
        """Others wait for memory: close who has kept an unfinished request in it longest."""
        oldest = self._buffers.oldest
        if oldest is None or oldest.starved or self._now_ms - oldest.frame_since_ms < STARVED_MS_MAX:
            return  # a starved one, which may always grow, is whole: it waits for writers, too
        for connection in self._connections.values():
            if connection.inbox is oldest:
                self._hang_up(connection, "its unfinished request keeps memory that others wait for")
                return

    def _complain(self, text: str, *arguments: str) -> None:
        """One line about a peer, COMPLAINTS_MAX a second: garbage at full speed must not fill the host's log."""
        if self._now_ms - self._complaints_ms >= 1_000:
            if self._complaints > COMPLAINTS_MAX:
                logger.warning("%d more connections refused or closed", self._complaints - COMPLAINTS_MAX)
            self._complaints, self._complaints_ms = 0, self._now_ms
        self._complaints += 1
        if self._complaints <= COMPLAINTS_MAX:
            logger.warning(text, *arguments)

    def _hang_up(self, connection: Connection, reason: str) -> None:
        """Close a connection for a reason that the log tells, after the replies that are ready."""
        self._complain("%s door: connection of %s closed: %s", connection.door, connection.peer, reason)
        connection.collect()
        try:
            connection.send()
        except OSError:
            pass  # it was closed by the peer already
        self._close(connection)

    def _close(self, connection: Connection) -> None:
        if connection.closed:
            return
        fd = connection.sock.fileno()
        del self._connections[fd]
        self._epoll.unregister(fd)
        self._starved.pop(connection, None)
        if connection.delayed is not None:
            self._long_poll.unpark(connection.delayed)
        if connection.started and connection.overlap != Produce.overlap:
            self._coordinator.forget(connection)
            self._watch_coordinator()
        connection.close()

    def _sweep(self) -> None:
        """Once a second while there are clients or open files: time limits, and numbers for the supervisor."""
        self._sweep_ms = now = self._now_ms
        limits = self._limits
        self._files.drop_unlinked()
        if now - self._memory_ms >= MEMORY_MS:
            self._memory_ms = now
            give_back_memory()
        for connection in list(self._connections.values()):
            since_ms = connection.inbox.frame_since_ms
            if since_ms and now - since_ms > limits.frame_ms_max and connection.events & select.EPOLLIN:
                self._hang_up(connection, "a frame was not completed within network.frame_ms_max")
            elif now - connection.active_ms > limits.idle_ms and (connection.out or not connection.requests):
                self._close(connection)
        for partition in list(self._waiting):
            error = WriterGone(f"{partition.link.name} has no writer: it is being recovered, send again")
            self._fail(partition, partition.link.take_expired(now), error.code, str(error))
            if not partition.link.waiting:
                self._waiting.discard(partition)
        stats = (len(self._connections) + self._away_count, self._refused)
        if stats != self._stats and now - self._stats_ms >= STATS_MS:
            self._stats, self._stats_ms = stats, now
            self._control.send(["stats", {"connections": stats[0], "refused": stats[1]}])


def _places(partitions: Sequence[Partition | None]) -> list[Place]:
    """Where a fetch may wait; one that names an unknown partition has its error and never does."""
    return [partition.place for partition in partitions if partition is not None]


def _wants_of_offsets(request: Offsets, partitions: Sequence[Partition | None]) -> list[Want]:
    """Where a question is about the end: all that is written."""
    return [
        (partition.place, partition.table.written)
        for part, partition in zip(request.parts, partitions, strict=True)
        if part.timestamp != EARLIEST and part.offset < 0 and partition is not None
    ]


def _unshown(request: Fetch, partitions: Sequence[Partition | None]) -> list[Partition]:
    """The partitions where what a fetch has not found is written, but not shown yet."""
    parts = zip(request.parts, partitions, strict=True)
    return [partition for part, partition in parts if partition is not None and part.offset < partition.table.written]


def _ask_for_flush(partitions: Sequence[Partition | None], now: bool) -> None:
    """Somebody has come for messages that are written but not shown yet: see :meth:`WriterLink.ask_for_flush`."""
    for partition in partitions:
        if partition is not None and (written := partition.table.written) > partition.table.end:
            partition.link.ask_for_flush(written, now)
