"""The network worker serves clients of all listeners with epoll.  It reads segments and never writes them.

One turn of the loop: wait; take the supervisor's messages, the writers' answers and the coordinator's replies; receive
from clients and start their requests; send append requests to the writers and replies to the clients.  Only epoll
blocks.

The parts, each with its own state::

    client_counts      who is connected
    acceptor           listeners, handshakes of TLS, refusals (places: connections by address and user)
    logins             messages of a login (provider_keys: those of tokens)
    revocations        ends of the connections of users who may not be connected any more
    admission          rights of clients, and their quotas (Meters)
    connections        receiving, order of requests, sending, closing
                       (processes/connection, worker_connection, inbox, transport: of one connection)
    memory_waits       which connections wait for memory, and for how long
    produce_requests   append requests to the writers, their answers (writer_link: one writer)
    handoffs           connections that writers serve themselves (relays: those with TLS)
    fetches            Fetch requests, at once or delayed (wait_lists)
    fetch_sessions     sessions of fetches
    offset_lookups     requests for offsets
    cold_reads         what of files is not in memory, for those who send it, fetch, or look up
    forwarder          requests that the coordinator answers, and those that the worker can (SnapshotAnswers)
    known_partitions   partitions that the supervisor has announced

A produce request goes from ``connections`` to ``produce_requests`` to ``writer_link`` and back.  A fetch goes from
``connections`` to ``fetches``, if need be to ``wait_lists``, and back.
"""

from __future__ import annotations

import logging
import select
import socket
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple, assert_never, get_args

from ...addresses import Listener
from ...clock import now_ms, wall_ms
from ...config import Config
from ...errors import BadValue
from ...libc import give_back_memory
from ...machine_limits import limit_of_map
from ...names import TopicPartition
from ...security.audit_log import Reason
from ...security.authorizer import Authorizer
from ...security.configuration import Tls
from ...security.local_users import user_of
from ...security.principals import ANONYMOUS, principal_of
from ...shared import memory
from ...shared.counters import Counters
from ...shared.doorbell import MarkedDoorbell
from ...shared.heartbeats import Heart, alone
from ...wire.bounds import WireLimits
from ...wire.listener_codecs import codec_of
from ...wire.requests import Fetch, Forwarded, Local, Login, Offsets, Produce, Request
from ...wire.transport import PlainTransport, Transport
from ..child import set_log_level
from ..connection import Starter
from ..control import Channel
from ..messages import (
    TO_WORKER,
    ClientsCounted,
    CoordinatorStreamOpened,
    DamageSuspected,
    FilesChanged,
    LimitReached,
    LimitsReached,
    LogLevel,
    PartitionDropped,
    PartitionTable,
    RangesDamaged,
    RefusalsReport,
    SnapshotChange,
    Stop,
    TlsChanged,
    ToWorker,
    Unreceivable,
    WorkerStats,
    WriterChannel,
    WriterNeeded,
    WriterRetires,
)
from ..snapshot import WorkerSnapshot
from ..tls_files import TlsFiles
from .acceptor import AcceptedConnection, Acceptor, ConnectionPlaces, Handshakes, giving_way
from .admission import Admission, Meters
from .client_counts import ClientCounts, connections_of
from .cold_reads import ColdReads
from .connections import Connections
from .fetch_sessions import FetchSessions
from .fetches import Fetches
from .forwarder import Forwarder, SnapshotAnswers
from .handoffs import Handoffs
from .inbox import Buffers, Inbox
from .known_partitions import KnownPartitions
from .logins import Logins
from .memory_waits import count_memory_waits
from .offset_lookups import OffsetLookups
from .produce_requests import ProduceRequests
from .relays import Relays
from .revocations import Revocations
from .turn import Turn
from .wait_lists import WaitLists
from .worker_connection import ClientSession, WorkerConnection

CHECK_MS: Final = 1_000
"""How often time limits are checked while something happens."""
REST_MS: Final = 2_500
"""How often they are checked while nothing happens, but there are clients or open files: as often as a worker beats."""
CONTROL_RETRY_MS: Final = 10
"""How soon queued messages to the supervisor are sent again."""
UPLOADS_PER_ARENA: Final = 2
"""The private memory for unfinished requests, in arenas; clients on slow links wait until some of it is free."""
HANG_UP: Final = select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP
"""Events that end a connection."""
STATS_MS: Final = 5_000
STILL_MS: Final = 500
"""How long an ordered stop waits for replies that can be cut, and for clients that do not take theirs."""
MEMORY_MS: Final = 10_000
"""How often freed memory is given back to the system."""


logger = logging.getLogger(__name__)


class WorkerArguments(NamedTuple):
    """The arguments of a worker, with which the supervisor forks it."""

    config: Config
    data_dir: Path
    number: int
    arena_name: str
    listeners: list[tuple[Listener, socket.socket]]
    doorbell: MarkedDoorbell
    tls: TlsFiles | None
    page_name: str = ""
    """Of its counters; "": nobody reads them."""
    heart: Heart = alone()
    tables: Sequence[ToWorker] = ()
    """Messages about the partitions that exist: a worker answers for them from its first turn."""
    snapshot: Sequence[SnapshotChange] = ()
    """Messages of the snapshot to begin with."""


def run(arguments: WorkerArguments, control: Channel) -> int:
    """Run the worker process, from fork to exit; return its exit status."""
    with arguments.heart.working():  # it maps a table for each partition
        worker = NetworkWorker(arguments, control)
    worker.serve()
    worker.drain()
    return 0


class NetworkWorker:
    """The loop, and the parts that it connects: most of its attributes."""

    def __init__(self, arguments: WorkerArguments, control: Channel) -> None:
        self._config, self._doorbell, self._heart = arguments.config, arguments.doorbell, arguments.heart
        self._control, self._tls = control, arguments.tls
        limits = arguments.config.network
        arena = memoryview(memory.attach(arguments.arena_name))
        self._buffers = buffers = Buffers(arena, UPLOADS_PER_ARENA * len(arena))
        self._epoll, self._turn = epoll, turn = select.epoll(), Turn()
        self._wait_lists = wait_lists = WaitLists(arguments.number, turn.is_over)
        self._partitions = partitions = KnownPartitions(
            *(arguments.data_dir, arguments.number, len(arena), epoll),
            suspect=lambda key, start, stop: control.send(DamageSuspected(key, start, stop)),
        )
        self._acceptor = Acceptor(arguments.listeners, limits.connections_max, epoll, turn)
        self._handshakes = Handshakes(turn, epoll, arguments.config.tls, self._add)
        self._counters = _counters(arguments.page_name)
        self._cold_reads = cold_reads = ColdReads()
        self._meters = Meters(turn)
        handlers: dict[type[Request], Starter] = {}
        self._connections = connections = Connections(
            *(turn, epoll, buffers, limits, cold_reads, handlers, self._meters.throttle, partitions.suspect_range)
        )
        self._places = places = ConnectionPlaces(turn, limits)
        self._relays = relays = Relays(turn, epoll)
        self._handoffs = Handoffs(turn, connections, buffers, places, relays, limits.handoff_bytes_max)
        self._produce_requests = ProduceRequests(
            turn, connections, partitions, self._handoffs, buffers, lambda key: control.send(WriterNeeded(key))
        )
        self._lookups = OffsetLookups(turn, connections, partitions, wait_lists, cold_reads, limits.look_bytes_max)
        security = arguments.config.security
        authorizer = Authorizer(security.authorizer, security.super_users, security.allow_everyone_if_no_acl)
        asked = Admission(turn, connections, authorizer, handlers, self._meters, self._produce_requests.recall)
        self._revocations = Revocations(
            turn, connections, self._handoffs.served, self._produce_requests.recall, wall_ms
        )
        snapshot = WorkerSnapshot([asked.on_security, self._revocations.on_security], self._meters.on_usage)
        self._snapshot, self._topic_names, self._identity = snapshot, snapshot.names, snapshot.identity
        answers = SnapshotAnswers(snapshot, WireLimits.from_config(arguments.config).parts_max)
        sessions = FetchSessions(turn, partitions, wait_lists, asked.access)
        self._fetches = Fetches(turn, connections, partitions, wait_lists, sessions, cold_reads)
        self._forwarder = Forwarder(turn, connections, answers, epoll, self._read_announcements, asked)
        self._logins = Logins(
            *(turn, connections, places, epoll, snapshot, self._forwarder.read_snapshot, self._revocations.refusal),
            arguments.config,
        )
        self._fill_handlers(asked)
        assert handlers.keys() == set(get_args(Request)), "each kind of request is started by somebody"
        self._control_fd = control.fileno()
        for fd in (self._control_fd, self._doorbell.fd, cold_reads.fd):
            epoll.register(fd, select.EPOLLIN)
        self._acceptor.count_descriptors()
        self._client_counts = ClientCounts(turn, lambda rows, others: control.send(ClientsCounted(rows, others)))
        self._check_ms = self._stats_ms = self._memory_ms = turn.now_ms
        self._checks_every_ms, self._heap_used = REST_MS, False
        self._stats, self._limits = (0, 0), list[LimitReached]()
        for change in arguments.snapshot:
            snapshot.apply_change(change)
        for message in arguments.tables:
            self._on_announcement(message, [])

    def _fill_handlers(self, admission: Admission) -> None:
        """Say what starts each kind of request: here, and nowhere else."""
        free: dict[type[Request], Starter] = {Local: self._connections.answer_local, Login: self._logins.start}
        guarded: dict[type[Request], Starter] = {
            Produce: self._produce_requests.start,
            Fetch: self._fetches.start,
            Offsets: self._lookups.start,
            Forwarded: self._forwarder.start,
        }
        admission.fill_handlers(free, guarded)

    # ---- the loop

    def serve(self) -> None:
        """Serve until the supervisor stops the worker, or is gone."""
        while not self._turn.stopping and not self._control.closed:
            self.turn(self._timeout_s())

    def drain(self) -> None:
        """Answer started requests, then close.

        After STILL_MS only answers to produce requests are waited for, and only by clients that take them.  The
        supervisor limits the time that writers may take for them.
        """
        self._acceptor.close()
        self._handshakes.close()
        self._wait_lists.answer_all()
        self._connections.close_when_sent(unanswered=Forwarded)
        self._produce_requests.recall()
        self._produce_requests.fail_unopened()
        self._finish_turn()
        begun_ms = self._turn.now_ms
        while (self._connections.by_fd or self._handoffs.count) and not self._control.closed:
            self.turn(0 if self._lookups.unfinished or self._fetches.unfinished else 0.1)
            if self._turn.now_ms - begun_ms >= STILL_MS:
                self._connections.close_unmoved(STILL_MS)
                self._turn.end()

    def turn(self, timeout_s: float) -> None:
        """Wait for events, handle them, send append requests and replies."""
        events = self._epoll.poll(timeout_s)
        if events:
            self._checks_every_ms = CHECK_MS
        self._begin_turn()
        connections, produce_requests = self._connections, self._produce_requests
        for fd, event in events:
            connection = connections.by_fd.get(fd)
            if connection is not None:
                if event & HANG_UP:
                    connections.close(connection)
                    continue
                if event & select.EPOLLOUT:
                    connection.blocked = False
                    connections.touched[connection] = None
                if event & select.EPOLLIN:
                    connections.read(connection)
            elif fd in produce_requests.by_fd:
                produce_requests.on_event(produce_requests.by_fd[fd], event)
            elif fd in self._relays.by_fd:
                self._relays.on_event(fd, event)
            elif fd == self._control_fd:
                self._read_announcements()
            elif fd == self._doorbell.fd:
                self._wait_lists.retry_reached(self._doorbell.take_marked())
            elif fd in self._handshakes.by_fd:
                self._handshakes.on_event(fd)
            elif fd in self._acceptor.by_fd:
                self._accept(fd)
            elif fd == self._forwarder.fd:
                self._forwarder.on_event(event)
                self._revocations.end_noted()  # before a request of theirs starts, which may have waited for this
            elif fd == self._logins.fd:
                self._logins.on_event()
            elif fd == self._cold_reads.fd:
                self._cold_reads.on_event()
        self._finish_turn()

    def _begin_turn(self) -> None:
        """Continue the work that earlier turns have left."""
        self._heart.beat()
        self._turn.begin()
        if self._acceptor.resume_ms:
            self._acceptor.resume()
        self._lookups.begin_turn()
        if self._meters.active:
            unmuted, taken = self._meters.begin_turn(self._forwarder.may_report)
            self._connections.touched.update(dict.fromkeys(unmuted))
            if taken:
                self._forwarder.report(taken)
        self._handshakes.begin_turn()
        if self._connections.unread:
            self._connections.read_unread()
        if self._control.pending:
            self._control.flush()
        if self._connections.resumed:
            self._read_announcements()
            self._connections.start_resumed()
        if self._wait_lists.unfinished:
            self._wait_lists.retry_ready()
        if self._fetches.unfinished:
            self._fetches.go_on()

    def _finish_turn(self) -> None:
        """Send the append requests and replies of this turn; each may lead to more of both."""
        self._wait_lists.answer_expired(self._turn.now_ms)
        self._logins.answer_due()
        self._revocations.end_noted()
        while self._produce_requests.to_send or self._connections.touched:
            if self._produce_requests.to_send:
                self._produce_requests.send_all()
            self._connections.advance_touched()
            if self._connections.leaving:
                self._handoffs.hand_over_leaving()
        if self._connections.waits_for_memory:
            self._connections.feed_waiting()
        if self._connections.wants_room:
            self._connections.wants_room = False
            self._produce_requests.ask_for_room()
        if self._turn.now_ms - self._check_ms >= self._checks_every_ms:
            self._check_timeouts()
        self._cold_reads.end_turn()
        self._forwarder.end_turn()
        self._turn.end()

    def _timeout_s(self) -> float:
        """How long epoll may wait."""
        connections = self._connections
        if (
            connections.resumed
            or connections.touched
            or connections.unread
            or self._produce_requests.to_send
            or self._lookups.unfinished
            or self._wait_lists.unfinished
            or self._fetches.unfinished
        ):
            return 0
        now = self._turn.now_ms
        next_ms = now + self._heart.beat_ms
        happened = self._checks_every_ms == CHECK_MS  # since the last check, which is to count what it has left
        has_some = connections.by_fd or self._handshakes.by_fd or len(self._partitions.files)
        if happened or has_some or self._turn.audit.pending:
            next_ms = min(next_ms, self._check_ms + self._checks_every_ms)
        for deadline_ms in (self._wait_lists.next_deadline_ms(), self._logins.due_ms, connections.memory_due_ms):
            if deadline_ms is not None:
                next_ms = min(next_ms, deadline_ms)
        if self._meters.active:
            next_ms = min(next_ms, self._meters.next_ms(now))
        if self._control.pending:
            next_ms = min(next_ms, now + CONTROL_RETRY_MS)
        if self._acceptor.resume_ms:
            next_ms = min(next_ms, self._acceptor.resume_ms)
        return max(0, next_ms - now_ms()) / 1000

    # ---- messages of the supervisor

    def _read_announcements(self) -> None:
        """Read the supervisor's messages."""
        for message, fds in self._control.receive(TO_WORKER):
            self._on_announcement(message, fds)

    def _on_announcement(self, message: ToWorker, fds: list[int]) -> None:
        match message:
            case PartitionTable(key, name):
                self._add_partition(key, name)
            case PartitionDropped(key):
                self._drop_partition(key)
            case RangesDamaged(key, ranges):
                if (partition := self._partitions.get(key)) is not None:
                    partition.damaged = ranges
            case FilesChanged(key):
                if (partition := self._partitions.get(key)) is not None:
                    partition.reader.forget()
            case WriterChannel(key):
                self._produce_requests.join_writer(key, socket.socket(fileno=fds[0]))
            case WriterRetires(key):
                if (partition := self._partitions.get(key)) is not None:
                    self._produce_requests.retire_writer(partition)
            case CoordinatorStreamOpened():
                self._forwarder.connect(fds[0])
            case Unreceivable():  # no descriptor left for it: the supervisor sends it again
                self._control.send(message)
            case TlsChanged(tls):
                self._load_tls(tls)
            case LogLevel(level):
                set_log_level(level)
            case Stop():
                self._turn.stopping = True
            case _:
                assert_never(message)

    def _add_partition(self, key: TopicPartition, table_name: str) -> None:
        try:
            self._partitions.add_partition(key, table_name)
        except FileNotFoundError:  # the partition was dropped since: the next message reports it
            return
        except OSError as error:
            self._control.send(Unreceivable(PartitionTable(key, table_name), limit_of_map(error)))

    def _drop_partition(self, key: TopicPartition) -> None:
        partition = self._partitions.remove_partition(key)
        if partition is None:
            return
        self._produce_requests.on_deleted(partition)
        self._lookups.on_deleted(partition)
        self._wait_lists.drop(partition.wait_list)

    # ---- clients come and go

    def _accept(self, fd: int) -> None:
        accepted = self._acceptor.accept(fd, self._connection_count, self._descriptors)
        if accepted is None:
            return
        has_room = self._places.admits_address(accepted, self._handshakes.count_of(accepted.site))
        if not has_room and not self._make_room(accepted):
            self._places.refuse_address(accepted)
            return
        if accepted.listener.tls:
            assert self._tls is not None, "the supervisor loads the files if a listener has TLS"
            self._handshakes.begin_handshake(accepted, self._tls.context)
        else:
            user = user_of(accepted.uid) if accepted.listener.unix else ""
            self._add(PlainTransport(accepted.sock), accepted, user)

    def _make_room(self, accepted: AcceptedConnection) -> bool:
        """Whether a connection of the same address gives way to one that is to log in: one of the larger crowd.

        Of those that have not logged in, and of those that have not completed their handshake.
        """
        site, listener = accepted.site, accepted.listener
        strangers = self._places.strangers_of(site) if listener.sasl else ()
        handshakes = self._handshakes.count_of(site) if listener.sasl or listener.tls else 0
        if strangers and len(strangers) >= handshakes:
            self._push_out(giving_way(strangers))
        elif handshakes:
            self._handshakes.push_out_one_of(site)
        return bool(strangers or handshakes)

    def _push_out(self, stranger: WorkerConnection) -> None:
        self._turn.audit.refused(Reason.TIMEOUT, "", stranger.peer, what="pushed out before its login")
        self._connections.close(stranger)

    def _add(self, transport: Transport, accepted: AcceptedConnection, user: str) -> None:
        """Add a connection that can be used, with its first principal; one with TLS has completed its handshake.

        That is ``user``, whom its certificate or Unix socket names, else ANONYMOUS.  On a listener with SASL the
        session is gated until a login succeeds (:mod:`.logins`), which makes its user the principal.
        """
        listener, peer = accepted.listener, accepted.peer
        mechanisms = self._logins.mechanisms if listener.sasl else ()
        login_by_ms = self._turn.now_ms + self._config.security.login_ms_max if listener.sasl else 0
        names, identity, leaders = self._topic_names, self._identity, self._snapshot.leaders(listener)
        codec = codec_of(listener.protocol, self._config, False, mechanisms, names, identity, leaders)
        inbox = Inbox(self._buffers)
        principal = principal_of(user) if user else ANONYMOUS
        session = ClientSession(principal, login_by_ms, accepted.host, accepted.administrator, self._turn.now_ms)
        refusal = "" if listener.sasl or accepted.administrator else self._revocations.refusal(principal)
        if refusal:
            self._turn.audit.refused(Reason.LOCKED, principal, peer, what=refusal)
        if refusal or not self._places.admits(session, principal, peer):
            transport.close()
            return
        crowded = self._places.crowded_out(self._acceptor.places(self._descriptors)) if session.gated else None
        if crowded is not None:
            self._push_out(crowded)
        counters = self._counters.listener_counters(listener)
        connection = WorkerConnection(transport, listener, peer, codec, inbox, session, counters)
        self._places.hold(connection)
        self._connections.add_connection(connection)
        if user and listener.tls:
            where = f"{listener.protocol} {listener.security}"
            self._turn.audit.logged_in(principal, peer, listener=where, mechanism="certificate")
        if transport.pending:
            self._connections.read(connection)

    def _load_tls(self, config: Tls) -> None:
        """Load the files again: the supervisor could."""
        self._handshakes.reload(config)
        try:
            if self._tls is not None:
                self._tls.load(config)
        except BadValue as error:
            logger.error("new connections get the old certificate: %s", error)

    def _check_timeouts(self) -> None:
        """Check time limits, and send numbers to the supervisor."""
        self._check_ms = now = self._turn.now_ms
        self._heap_used = self._heap_used or self._checks_every_ms == CHECK_MS
        self._checks_every_ms = REST_MS
        self._partitions.files.drop_unlinked()
        if self._heap_used and now - self._memory_ms >= MEMORY_MS:
            self._memory_ms, self._heap_used = now, False
            give_back_memory()
        self._connections.check_timeouts()
        self._handshakes.check_timeouts()
        self._revocations.check_timeouts()
        self._produce_requests.check_timeouts()
        self._produce_requests.recall_expired()
        self._logins.check_timeouts()
        count = self._connection_count
        limits = self._acceptor.limits(count, self._descriptors)
        if limits != self._limits:
            self._limits = limits
            self._control.send(LimitsReached(limits))
        self._counters.set_gauges(self._gauges())
        if refusals := self._turn.audit.take_counts():
            self._control.send(RefusalsReport(refusals))
        self._client_counts.count_connections(
            chain(connections_of(self._connections.by_fd.values()), connections_of(self._handoffs.served))
        )
        stats = (count, self._acceptor.refused)
        if stats != self._stats and now - self._stats_ms >= STATS_MS:
            self._stats, self._stats_ms = stats, now
            self._control.send(WorkerStats(*stats))

    @property
    def _connection_count(self) -> int:
        return len(self._connections.by_fd) + self._handoffs.count

    @property
    def _descriptors(self) -> int:
        """Descriptors for other things than connections: those that files may take, and those that are in use.

        A connection that a writer serves has none here, unless it is relayed: then it has two.
        """
        elsewhere = 2 * self._relays.count - self._handoffs.count
        links, handshakes = len(self._produce_requests.by_fd), len(self._handshakes.by_fd)
        return self._partitions.open_files_max + links + handshakes + elsewhere

    def _gauges(self) -> list[int]:
        connections, buffers = self._connections, self._buffers
        clients = [len(connections.by_fd), self._handoffs.count, len(self._handshakes.by_fd), self._meters.muted]
        memory_waits = count_memory_waits(connections.by_fd.values(), self._turn.now_ms)
        waiting = [self._wait_lists.waiting, self._produce_requests.waiting]
        arena_bytes = [buffers.arena.used_bytes, self._produce_requests.in_hand_bytes, buffers.arena.size_bytes]
        beside_bytes = [buffers.private_bytes, buffers.reserved_bytes]
        return [*clients, *memory_waits, *waiting, *arena_bytes, *beside_bytes, self._acceptor.refused]


def _counters(page_name: str) -> Counters:
    """Counters in a page of shared memory, or in none without a name."""
    return Counters(memoryview(memory.attach(page_name)).cast("Q") if page_name else None)
