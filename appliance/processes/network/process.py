"""The network worker: sockets of both doors, epoll, sendfile.  Touches segments for reading only.

One turn of the loop: obey the supervisor, take the writers' answers, look who was rung for, read what clients send,
hand bundles to the writers, send replies.  Nothing blocks but epoll.

A connection that does nothing but produce to one partition is lent to the partition's writer (``writer.loan``).

A fetch that has nothing to give yet is parked (``longpoll``) until a writer rings or its time is up; so is a question
about the end of a log of which more is written than shown.

Bounds: connections per worker, unanswered requests and unsent bytes per connection, bytes received in the arena.
Reaching one of the last three stops reading from the connection; TCP tells the client.
"""

from __future__ import annotations

import logging
import select
import socket
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ...broker import plan
from ...config import Config, address_text
from ...errors import ApplianceError, ProtocolFault, StorageFault, UnknownPartition, WriterGone
from ...log import FileCache, LogReader
from ...shared import memory
from ...shared.arena import Arena
from ...shared.doorbell import Doorbell
from ...shared.table import OFFLINE, SegmentTable
from ...wire.doors import codec_of
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
from ..child import settle
from ..clock import now_ms
from ..control import Channel
from .connection import Borrower, Connection, Pending
from .links import Bundle, CoordinatorLink, Target, WriterLink
from .longpoll import LongPoll, Parked, Place, Want, wants_of_fetch

logger = logging.getLogger(__name__)

OPEN_FILES_MAX: Final = 512
WAIT_MS_MAX: Final = 300_000
FLUSH_WAIT_MS: Final = 50
"""So long a question about the end of a log, or a fetch that has no time, waits for a flush that is under way."""
SWEEP_MS: Final = 1_000
LENT_PART_MAX: Final = 4
"""No more than this part (a quarter) of the arena is lent with connections."""
COMPLAINTS_MAX: Final = 20
STATS_MS: Final = 5_000


class Post(NamedTuple):
    """What the supervisor tells a worker when it forks it."""

    config: Config
    data_dir: Path
    number: int
    arena_name: str
    listeners: list[tuple[str, socket.socket]]
    doorbell: Doorbell


class Partition:
    """A partition as this worker holds it."""

    __slots__ = ("key", "link", "place", "reader", "table")

    def __init__(self, key: tuple[str, int], table: SegmentTable, reader: LogReader) -> None:
        self.key = key
        self.table = table
        self.reader = reader
        self.link = WriterLink(f"{key[0]}-{key[1]}")
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
        self._arena = Arena(len(self._memory))
        self._files = FileCache(OPEN_FILES_MAX)
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._coordinator = CoordinatorLink()
        self._coordinator_waits = False
        self._connections: dict[int, Connection] = {}
        self._links: dict[int, Partition] = {}
        self._waiting: set[Partition] = set()
        self._long_poll = LongPoll(post.number)
        self._touched: dict[Connection, None] = {}
        self._bundled: dict[Partition, None] = {}
        self._starved: OrderedDict[Connection, None] = OrderedDict()
        self._lent: set[Connection] = set()
        self._lent_bytes_max = self._arena.size_bytes // LENT_PART_MAX
        self._refused = 0
        self._complaints = self._complaints_ms = 0
        self._stopping = False
        self._now_ms = now_ms()
        self._sweep_ms = self._stats_ms = self._now_ms
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
            self._turn(self._epoll.poll(self._timeout_s()))

    def drain(self) -> None:
        """Answer what has been taken, then close; the supervisor bounds how long that may take."""
        for door_socket in self._listeners.values():
            self._epoll.unregister(door_socket[1].fileno())
            door_socket[1].close()
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
        while self._connections and not self._control.closed:
            self._turn(self._epoll.poll(0.1))

    def _timeout_s(self) -> float:
        next_ms = self._sweep_ms + SWEEP_MS if self._connections or len(self._files) else self._now_ms + 3_600_000
        deadline_ms = self._long_poll.next_deadline_ms()
        if deadline_ms is not None:
            next_ms = min(next_ms, deadline_ms)
        return max(0, next_ms - now_ms()) / 1000

    def _turn(self, events: list[tuple[int, int]]) -> None:
        self._now_ms = now_ms()
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
        for partition in self._bundled:
            self._send_bundles(partition)
        self._bundled.clear()
        while self._touched:
            connection, _ = self._touched.popitem()
            self._write(connection)
        if self._starved:
            self._feed_starved()
        for parked in self._long_poll.expired(self._now_ms):
            self._answer_parked(parked)
            self._write(parked.pending.connection)
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
                case ["stop"]:
                    self._stopping = True

    def _partition(self, key: tuple[str, int]) -> Partition | None:
        """A partition, also one that the supervisor has announced and we have not been told of yet in this turn."""
        partition = self._partitions.get(key)
        if partition is None:
            self._obey()
            partition = self._partitions.get(key)
        return partition

    def _add_partition(self, key: tuple[str, int], table_name: str) -> None:
        table = SegmentTable(memoryview(memory.attach(table_name)).cast("Q"))
        path = self._post.data_dir / f"{key[0]}-{key[1]}"
        self._partitions[key] = Partition(key, table, LogReader(path, self._files))

    def _drop_partition(self, key: tuple[str, int]) -> None:
        partition = self._partitions.pop(key, None)
        if partition is None:
            return
        partition.reader.forget()  # another log may come to live under this name
        error = UnknownPartition(f"{key[0]}-{key[1]} has been deleted")
        self._fail(partition.link.take_waiting(), error.code, str(error))
        self._waiting.discard(partition)
        if partition.link.channel is not None:  # its writer stores into the arena until it has answered
            partition.link.retiring = True
            self._let_go(partition)
        for parked in list(partition.place.wanted):
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
        except OSError:
            return
        if len(self._connections) >= self._limits.connections_max:
            self._refused += 1
            self._complain("connection of %s refused: network.connections_max reached", address[0])
            sock.close()
            return
        sock.setblocking(False)
        set_options(sock, address[0])
        codec = codec_of(door, self._post.config)
        local = sock.getsockname()
        connection = Connection(sock, door, address_text(local), address_text(address), codec)
        connection.active_ms = self._now_ms
        connection.events = select.EPOLLIN
        self._connections[sock.fileno()] = connection
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _read(self, connection: Connection) -> None:
        connection.active_ms = self._now_ms
        if connection.starved:
            connection.starved = False
            self._settle(connection)
        if not connection.starved:
            if not connection.receive(self._memory, self._arena):
                self._close(connection)
                return
            if not self._take_frames(connection):
                return
        if connection.starved or connection.unanswered > self._limits.requests_max:
            self._watch(connection)

    def _take_frames(self, connection: Connection) -> bool:
        """Deal with the whole frames that a connection has received, in order; False when it has been closed."""
        memory = self._memory
        try:
            frames = connection.frames(memory, self._limits.frame_bytes_max)
            for request, start, frame in decode_frames(connection.codec, memory, frames):
                if connection.closed or connection.hang_up:
                    break
                if isinstance(request, Produce):
                    self._produce(connection, request, start)
                else:
                    self._request(connection, request, frame)
        except ProtocolFault as error:
            self._hang_up(connection, str(error))
        if connection.closed:
            return False
        self._settle(connection)
        return True

    def _settle(self, connection: Connection) -> None:
        connection.settle(self._memory, self._arena, self._now_ms)
        if connection.starved:
            self._starved[connection] = None

    def _request(self, connection: Connection, request: Request, frame: memoryview) -> None:
        connection.forget_habit()
        match request:
            case Fetch():
                pending = Pending(connection, request)
                connection.expect(pending)
                self._fetch(pending, request)
            case Offsets():
                pending = Pending(connection, request)
                connection.expect(pending)
                self._offsets(pending, request)
            case Local():
                pending = Pending(connection, request)
                pending.reply = [request.reply]
                connection.expect(pending)
                connection.hang_up = connection.hang_up or request.close
            case Cold():
                pending = Pending(connection, request)
                connection.expect(pending)
                self._coordinator.ask(pending, frame)
                self._watch_coordinator()
        self._touched[connection] = None

    # ---- produce

    def _produce(self, connection: Connection, request: Produce, start: int) -> None:
        pending = None
        if request.acks:
            pending = Pending(connection, request, request.count)
            pending.missing = len(request.parts)
            pending.results = [None] * len(request.parts)
            connection.expect(pending)
        extent = connection.extent
        assert extent is not None
        partition: Partition | None = None
        for index, (topic, number, part_start, part_stop) in enumerate(request.parts):
            partition = self._partition((topic, number))
            if partition is None or partition.table.state == OFFLINE or part_start >= part_stop:
                self._refuse_part(connection, pending, index, request, partition)
                continue
            bundle = partition.link.bundle(request.acks, self._now_ms, request.timeout_ms)
            bundle.add(extent, start + part_start, start + part_stop, (connection, pending, index))
            self._bundled[partition] = None
        if pending is not None and not request.parts:
            pending.reply = [connection.codec.encode_produce(request, [])]
            self._touched[connection] = None
        link = partition.link if partition is not None and len(request.parts) == request.count else None
        self._consider_lending(connection, link, request.acks)

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

    def _watch_channel(self, link: Borrower) -> None:
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
            bundle.release()
            if bundle.acks == 0 and not answer.texts:
                continue
            for target, result in zip(bundle.targets, answer.results(log_start), strict=True):
                self._finish_part(target, result)
        if returned is not None:
            self._take_back(returned)
        if channel.closed:
            self._lose_writer(partition)
            if link.waiting:
                self._bundled[partition] = None
        elif link.retiring:
            self._let_go(partition)

    def _finish_part(self, target: Target, result: ProduceResult) -> None:
        connection, pending, index = target
        if connection.closed:
            return
        if pending is None:
            if result.error:  # nobody waits for a reply to acks=0: hanging up is the only way to tell
                self._hang_up(connection, f"produce with acks=0 failed: {result.message}")
            return
        pending.results[index] = result
        pending.missing -= 1
        if not pending.missing:
            pending.reply = [connection.codec.encode_produce(pending.request, pending.results)]  # type: ignore[arg-type]
            self._touched[connection] = None

    def _fail(self, bundles: list[Bundle], code: int, message: str) -> None:
        for bundle in bundles:
            bundle.release()
            for target in bundle.targets:
                self._finish_part(target, ProduceResult(code, -1, -1, -1, message))

    def _forget_channel(self, partition: Partition) -> None:
        channel = partition.link.channel
        if channel is not None:
            self._links.pop(channel.fileno(), None)
            self._epoll.unregister(channel.fileno())

    def _lose_writer(self, partition: Partition) -> None:
        self._forget_channel(partition)
        error = WriterGone(f"the writer of {partition.link.name} is being restarted: send again")
        bundles, lent = partition.link.lose()
        self._fail(bundles, error.code, str(error))
        for connection in lent:
            self._hang_up(connection, f"the writer of {partition.link.name}, which served it, is gone")

    # ---- lending

    def _consider_lending(self, connection: Connection, link: WriterLink | None, acks: int) -> None:
        """Another produce request, for one partition unless ``link`` is None."""
        if link is None or not acks:
            connection.forget_habit()
            return
        formed = connection.habit.is_formed(link, acks, self._now_ms)
        connection.borrower = link if formed and link.may_lend else None
        if acks == 1 and connection.borrower is not None:  # acks=all may be waiting for what is still to be read
            self._watch(connection)

    def _lend(self, connection: Connection) -> None:
        """Everything is answered: to the borrower, if it can still be done."""
        link = connection.borrower
        assert link is not None
        lent_bytes = sum(one.extent_bytes for one in self._lent)
        if link.may_lend and not connection.starved and not self._stopping and lent_bytes < self._lent_bytes_max:
            extent = connection.lend(self._arena)
            if extent is not None:
                self._lent.add(connection)
                self._epoll.unregister(connection.sock.fileno())
                link.lend(connection, extent)
                self._watch_channel(link)
                return
        connection.forget_habit()

    def _take_back(self, connection: Connection) -> None:
        """Go on where the writer has stopped."""
        self._lent.discard(connection)
        connection.active_ms = self._now_ms
        connection.events = 0
        self._epoll.register(connection.sock.fileno(), 0)
        if self._take_frames(connection):
            self._touched[connection] = None

    # ---- fetch and offsets

    def _fetch(self, pending: Pending, request: Fetch) -> None:
        """Answer, or wait: for enough as long as the client says, and a little for what acks=1 may have told of."""
        partitions = [self._partition(part[:2]) for part in request.parts]
        results, size = plan.fetch(request, partitions)
        wait_ms = min(request.wait_ms_max, WAIT_MS_MAX)
        if size == 0 and (unshown := _unshown(request, partitions)):
            _ask_for_flush(unshown)
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
        return self._long_poll.park(parked, wants)

    def _reply_fetch(self, pending: Pending, request: Fetch, results: list[FetchResult]) -> None:
        connection = pending.connection
        pending.reply = connection.codec.encode_fetch(request, results)
        self._touched[connection] = None

    def _offsets(self, pending: Pending, request: Offsets) -> None:
        """Answer; first wait a little for the flush of what is written, which acks=1 may have told of already."""
        partitions = [self._partition(part[:2]) for part in request.parts]
        wants = _wants_of_offsets(request, partitions)
        if wants and not self._stopping:
            _ask_for_flush(partitions)
            if self._park_offsets(Parked(pending, self._now_ms + FLUSH_WAIT_MS), wants):
                return
        self._reply_offsets(pending, request, partitions)

    def _park_offsets(self, parked: Parked, wants: list[Want]) -> bool:
        """Wait for those of these ENDs that have not come; False when all have."""
        while wants := [(place, end) for place, end in wants if place.table.end < end]:
            if self._long_poll.park(parked, wants):
                return True
        return False

    def _reply_offsets(self, pending: Pending, request: Offsets, partitions: Sequence[Partition | None]) -> None:
        connection = pending.connection
        results = [plan.offsets(part, partition) for part, partition in zip(request.parts, partitions, strict=True)]
        pending.reply = [connection.codec.encode_offsets(request, results)]
        self._touched[connection] = None

    def _look_again(self) -> None:
        """A writer has rung: answer the requests whose END has come."""
        for parked in self._long_poll.reached():
            self._retry_parked(parked)

    def _retry_parked(self, parked: Parked) -> None:
        """Answer, or go on waiting when several partitions together have not come to what is asked for."""
        request = parked.pending.request
        assert isinstance(request, Fetch | Offsets)
        wants = self._long_poll.wants_of(parked) if isinstance(request, Offsets) else []
        self._long_poll.unpark(parked)
        partitions = [self._partition(part[:2]) for part in request.parts]
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
        partitions = [self._partition(part[:2]) for part in request.parts]
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
        for pending, reply in replies:
            connection = pending.connection
            if connection.closed:
                continue
            if reply is None:
                self._hang_up(connection, "the request cannot be answered")
                continue
            pending.reply = [reply]
            self._touched[connection] = None

    # ---- sending, closing, watching

    def _write(self, connection: Connection) -> None:
        if connection.closed or connection.lent:
            return
        connection.collect()
        try:
            connection.send()
        except OSError:
            self._close(connection)
            return
        if connection.hang_up and not connection.out and not connection.requests:
            self._close(connection)
            return
        if connection.borrower is not None and not connection.out and not connection.requests:
            self._lend(connection)
        if not connection.lent:
            self._watch(connection)

    def _watch(self, connection: Connection) -> None:
        """Ask epoll for what this connection can make use of."""
        limits = self._limits
        events = select.EPOLLOUT if connection.out else 0
        if (
            not connection.starved
            and not connection.hang_up
            and (connection.borrower is None or connection.habit.acks != 1)
            and connection.unanswered <= limits.requests_max
            and connection.out_bytes <= limits.send_bytes_max
        ):
            events |= select.EPOLLIN
        if events != connection.events:
            connection.events = events
            self._epoll.modify(connection.sock.fileno(), events)

    def _feed_starved(self) -> None:
        """Give connections that found the arena full another try, in the order in which they came."""
        for _ in range(len(self._starved)):
            if self._arena.used_bytes >= self._arena.size_bytes:
                return
            connection, _ = self._starved.popitem(last=False)
            if not connection.closed:
                self._read(connection)
                if not connection.closed and not connection.starved:
                    self._watch(connection)

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
        if connection.lent:
            self._lent.discard(connection)
        else:
            self._epoll.unregister(fd)
        self._starved.pop(connection, None)
        for parked in self._long_poll.of(connection):
            self._long_poll.unpark(parked)
        self._coordinator.forget(connection)
        self._watch_coordinator()
        connection.close()

    def _sweep(self) -> None:
        """Once a second while there are clients or open files: time limits, and numbers for the supervisor."""
        self._sweep_ms = now = self._now_ms
        limits = self._limits
        self._files.drop_unlinked()
        for connection in set(self._connections.values()) - self._lent:
            if connection.frame_since_ms and now - connection.frame_since_ms > limits.frame_ms_max:
                self._hang_up(connection, "a frame was not completed within network.frame_ms_max")
            elif now - connection.active_ms > limits.idle_ms and not connection.requests:
                self._close(connection)
        for partition in list(self._waiting):
            error = WriterGone(f"{partition.link.name} has no writer: it is being recovered, send again")
            self._fail(partition.link.take_expired(now), error.code, str(error))
            if not partition.link.waiting:
                self._waiting.discard(partition)
        stats = (len(self._connections), self._refused)
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


def _ask_for_flush(partitions: Sequence[Partition | None]) -> None:
    """Somebody has come for messages that are written but not shown yet: their flush need not be late for more."""
    for partition in partitions:
        if partition is not None and partition.table.written > partition.table.end:
            partition.link.ask_for_flush()
