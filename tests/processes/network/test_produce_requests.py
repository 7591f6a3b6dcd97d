"""appliance.processes.network.produce_requests and handoffs: connections that wait for a writer, or move to it."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.addresses import PLAINTEXT, Listener
from appliance.config import Config, NetworkSection
from appliance.errors import WriterGone
from appliance.partition_states import ONLINE
from appliance.processes.control import Channel
from appliance.processes.handoff import BUFFER_BYTES_MIN, PIECE_BYTES
from appliance.processes.messages import FROM_WORKER, Append, Appended, AppendRow, FlushNow, Handoff, Recall
from appliance.processes.network.acceptor import ConnectionPlaces
from appliance.processes.network.cold_reads import ColdReads
from appliance.processes.network.connections import Connections
from appliance.processes.network.handoffs import SETTLING_MS_MAX, Handoffs
from appliance.processes.network.inbox import Buffers, Inbox
from appliance.processes.network.known_partitions import KnownPartitions
from appliance.processes.network.memory_waits import MemoryWaits, count_memory_waits
from appliance.processes.network.produce_requests import ASKED_MS, NEEDED_MAX, ProduceRequests, WriterNeeds, _runs
from appliance.processes.network.relays import Relays
from appliance.processes.network.turn import Turn
from appliance.processes.network.worker_connection import (
    HANDOFF_RETRY_MS,
    TURNS_TO_HAND_OVER,
    ClientSession,
    WorkerConnection,
)
from appliance.processes.network.writer_link import WRITER_WAIT_MS_MAX, WRITER_WAIT_MS_MIN, HandedOver, WriterLink
from appliance.records.encode import encode_values
from appliance.shared.counters import Counters
from appliance.wire.frames import SIZE_BYTES
from appliance.wire.listener_codecs import codec_of
from appliance.wire.requests import Produce, ProducePart
from appliance.wire.transport import PlainTransport

ARENA_BYTES = 1 << 19
PLAIN = encode_values([b"plain"], 1_000)
NUMBERED = encode_values([b"numbered"], 1_000, producer_id=7, producer_epoch=0, base_sequence=0)


@dataclass(eq=False)
class KnownPartition:
    link: WriterLink
    table: SimpleNamespace
    key: tuple[str, int] = ("t", 0)


class Rig:
    """A worker's connections, and one partition, whose other end is ``writer``.

    Half of the arena is taken, so a connection waits while the writer has ``in_hand_bytes_max`` in hand.
    """

    def __init__(self, in_hand_bytes_max: int = 0, arena_bytes: int = ARENA_BYTES) -> None:
        self.turn = turn = Turn()
        epoll = select.epoll()
        self.buffers = Buffers(memoryview(bytearray(arena_bytes)), arena_bytes)
        assert self.buffers.arena.allocate(arena_bytes // 2) is not None
        self.buffers.memory[: len(PLAIN)] = PLAIN
        self.buffers.memory[len(PLAIN) : len(PLAIN) + len(NUMBERED)] = NUMBERED
        self.link = WriterLink("t-0", in_hand_bytes_max, epoll)
        table = SimpleNamespace(start=0, state=0, flushes_at_once=True)
        self.partition = cast(Any, KnownPartition(self.link, table))
        partitions = SimpleNamespace(
            partitions_of=lambda request: [self.partition] * len(request.parts), get=lambda key: self.partition
        )
        self.connections = Connections(
            *(turn, epoll, self.buffers, NetworkSection(), ColdReads()),
            handlers={},
            throttle=lambda _, reply: reply,
            on_unreadable=lambda piece: None,
        )
        self.places = ConnectionPlaces(turn, NetworkSection())
        handoffs = Handoffs(turn, self.connections, self.buffers, self.places, Relays(turn, epoll), 1 << 20)
        self.handoffs = handoffs
        known = cast(KnownPartitions, partitions)
        self.produce_requests = ProduceRequests(turn, self.connections, known, handoffs, self.buffers, lambda key: None)
        self._epoll = epoll
        self._sockets: list[socket.socket] = []

    def connection(self) -> WorkerConnection:
        ours, _ = self.pair()
        listener = Listener("native", PLAINTEXT, "")
        codec = codec_of("native", Config())
        made = WorkerConnection(
            *(PlainTransport(ours), listener, "", codec, Inbox(self.buffers), ClientSession()),
            counters=Counters().listener_counters(listener),
        )
        self.connections.add_connection(made)
        return made

    def pair(self) -> tuple[socket.socket, socket.socket]:
        ours, theirs = socket.socketpair()
        self._sockets += [ours, theirs]
        return ours, theirs

    def produce(self, connection: WorkerConnection, *, numbered: bool = False, timeout_ms: int = 0) -> bool:
        """Start a produce request with a batch of an idempotent producer, or another one."""
        start, stop = (len(PLAIN), len(PLAIN) + len(NUMBERED)) if numbered else (0, len(PLAIN))
        request = Produce([1], 1, timeout_ms, [ProducePart("t", 0, start, stop)])
        return self.produce_requests.start(connection, request, 0, memoryview(b""))

    def end_turn(self) -> None:
        self.produce_requests.send_all()
        self.connections.advance_touched()
        self.handoffs.hand_over_leaving()

    def appended(self) -> list[int]:
        """The positions of all batches that the writer has been sent."""
        return [position for _, _, positions in self.requests() for position in positions[::2]]

    def requests(self) -> list[AppendRow]:
        """All append requests that the writer has been sent."""
        messages = [message for message, _ in self.writer.receive(FROM_WORKER)]
        return [row for message in messages if isinstance(message, Append) for row in message.requests]

    def join_writer(self) -> None:
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.writer = Channel(right)
        self._sockets.append(right)
        self.produce_requests.join_writer(self.partition.key, left)

    def pass_time(self, ms: int = 1) -> None:
        """A new turn, so much later."""
        self.turn.end()
        self.turn.now_ms += ms
        self.turn.now_ns += ms * 1_000_000

    def is_read(self, connection: WorkerConnection) -> bool:
        self.connections.watch(connection)
        return bool(connection.events & select.EPOLLIN)

    def close(self) -> None:
        if self.link.channel is not None:
            self.link.disconnect(self.turn)
        self.turn.end()
        for sock in self._sockets:
            sock.close()
        self._epoll.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


def test_a_closed_connection_is_not_kept_by_a_writer_that_does_not_answer(rig: Rig) -> None:
    stays, goes = rig.connection(), rig.connection()
    assert not rig.produce(stays) and not rig.produce(goes)
    assert list(rig.link.waits_for_room) == [stays, goes]
    rig.connections.close(goes)
    assert list(rig.link.waits_for_room) == [stays]


def test_who_waits_for_a_writer_goes_on_when_it_answers(rig: Rig) -> None:
    waits = rig.connection()
    assert not rig.produce(waits)
    answered: Any = SimpleNamespace(link=rig.link)
    rig.produce_requests._fail(answered, [], cast(Any, None))
    assert not rig.link.waits_for_room and rig.connections.resumed


def test_who_is_passed_over_for_a_writers_room_has_waited_since_the_first_time(rig: Rig) -> None:
    """One answer of the writer wakes all that wait, and the first of them may take all the room again."""
    (waits,) = connections_at(rig, 1)
    answered: Any = SimpleNamespace(link=rig.link)
    for _ in range(2):
        assert not rig.produce(waits)
        waits.stalled = True
        rig.pass_time(1_000)
        counted = count_memory_waits(rig.connections.by_fd.values(), rig.turn.now_ms)
        rig.produce_requests._fail(answered, [], cast(Any, None))
    assert counted == MemoryWaits(stalled=1, longest_ms=2_000)
    rig.link._in_hand_bytes_max = ARENA_BYTES
    assert rig.produce(waits)
    assert count_memory_waits(rig.connections.by_fd.values(), rig.turn.now_ms) == MemoryWaits()


def kinds_sent(rig: Rig) -> list[type]:
    """Of the messages that the writer has been sent, in their order."""
    return [type(message) for message, _ in rig.writer.receive(FROM_WORKER)]


@pytest.mark.parametrize("waits_for", ["room at the writer", "room in the arena"])
def test_a_writer_is_asked_to_flush_behind_what_others_wait_for(waits_for: str) -> None:
    """Before it there would be nothing to flush, and a topic may delay its next flush for long."""
    rig = Rig(in_hand_bytes_max=1)
    rig.join_writer()
    first, second = connections_at(rig, 2)
    if waits_for == "room in the arena":
        rig.connections.starved.add(rig.connection())
    assert rig.produce(first)
    if waits_for == "room at the writer":
        assert not rig.produce(second)
    rig.end_turn()
    assert kinds_sent(rig) == [Append, FlushNow]
    rig.close()


def test_a_writer_is_not_asked_to_flush_while_nobody_waits(joined: Rig) -> None:
    (connection,) = connections_at(joined, 1)
    assert joined.produce(connection)
    joined.end_turn()
    assert kinds_sent(joined) == [Append]


def test_a_session_that_is_over_is_gated_as_soon_as_its_connection_comes_back(rig: Rig) -> None:
    """A busy producer would be handed over again before anybody looks."""
    rig.turn.begin()
    listener = Listener("native", PLAINTEXT, "")
    for deadline_ms, over in ((rig.turn.now_ms - 1, True), (rig.turn.now_ms + 1_000, False), (0, False)):
        session = ClientSession()
        session.log_in("User:alice", "PLAIN", deadline_ms)
        rig.places.enter(session)
        ours, _ = rig.pair()
        handed_over = HandedOver(
            listener, "", codec_of("native", Config()), session, Counters().listener_counters(listener), 0
        )
        rig.handoffs.served[handed_over] = None
        rig.handoffs.take_back(handed_over, ours)
        assert session.gated is over, deadline_ms


def read_with_extent(connection: WorkerConnection) -> None:
    """As if something had been received."""
    connection.inbox.extent = connection.inbox.extent or connection.inbox._buffers.allocate(1)


def busy(rig: Rig, acks: int = 1, turns: int = TURNS_TO_HAND_OVER) -> WorkerConnection:
    """A connection that has produced in so many turns, with two requests outstanding at any time."""
    connection = rig.connection()
    connection.started = 2
    connection.requests.extend([cast(Any, None)] * 2)
    for _ in range(turns):
        rig.pass_time()
        for _ in range(3):
            rig.handoffs.consider(connection, rig.partition, acks, 1)
    return connection


@pytest.fixture
def joined() -> Iterator[Rig]:
    """With a writer."""
    made = Rig(ARENA_BYTES)
    made.join_writer()
    yield made
    made.close()


def test_a_busy_connection_is_left_unread_after_turns_not_requests(joined: Rig) -> None:
    assert joined.is_read(busy(joined, turns=TURNS_TO_HAND_OVER - 1))
    assert not joined.is_read(busy(joined))


@pytest.mark.parametrize("acks", [1, -1])
def test_a_connection_that_is_left_unread_in_vain_is_read_for_long(joined: Rig, acks: int) -> None:
    connection = busy(joined, acks)
    joined.handoffs.check_timeouts()
    assert not joined.is_read(connection)
    joined.pass_time(SETTLING_MS_MAX + 1)
    joined.handoffs.check_timeouts()
    again_ms = joined.turn.now_ms + HANDOFF_RETRY_MS
    for begins_ms, reads in ((joined.turn.now_ms, True), (again_ms - 2 * TURNS_TO_HAND_OVER, True), (again_ms, False)):
        joined.pass_time(begins_ms - joined.turn.now_ms)
        for _ in range(TURNS_TO_HAND_OVER):
            joined.pass_time()
            joined.handoffs.consider(connection, joined.partition, acks, 1)
        assert joined.is_read(connection) is reads, begins_ms


def test_when_rights_change_all_are_read_and_those_elsewhere_called_back(joined: Rig) -> None:
    stays, leaves = busy(joined), busy(joined)
    leaves.started = 0
    leaves.requests.clear()
    joined.connections.leaving.append(leaves)
    joined.handoffs.hand_over_leaving()
    assert leaves.closed and isinstance(joined.writer.receive(FROM_WORKER)[0][0], Handoff)
    joined.produce_requests.recall()
    assert joined.is_read(stays) and stays.hand_over_to is None
    assert joined.writer.receive(FROM_WORKER) == [(Recall(), [])]


def test_who_was_about_to_leave_when_rights_changed_stays_and_is_read(joined: Rig) -> None:
    leaves = busy(joined)
    leaves.started = 0
    leaves.requests.clear()
    joined.connections.touched[leaves] = None
    joined.connections.advance_touched()
    assert joined.connections.leaving == [leaves]
    joined.produce_requests.recall()  # by a request of another connection, in the same turn
    joined.handoffs.hand_over_leaving()
    assert joined.is_read(leaves) and not leaves.closed and joined.handoffs.count == 0


def test_it_is_left_unread_only_if_it_can_move(joined: Rig) -> None:
    joined.partition.table.flushes_at_once = False  # it would wait for what is not read
    assert joined.is_read(busy(joined, acks=-1)) and not joined.is_read(busy(joined, acks=1))
    large = busy(joined, turns=TURNS_TO_HAND_OVER - 1)
    large.inbox = Inbox(joined.buffers, bytes(PIECE_BYTES + 1))  # of a frame that is not whole
    joined.pass_time()
    joined.handoffs.consider(large, joined.partition, 1, 1)
    assert joined.is_read(large)
    assert joined.link.channel is not None
    joined.link.channel.closed = True
    assert joined.is_read(busy(joined))


def test_a_connection_whose_frame_does_not_fit_a_writers_buffer_stays_for_long(joined: Rig) -> None:
    for frame_bytes, stays in ((BUFFER_BYTES_MIN + 1, True), (BUFFER_BYTES_MIN - SIZE_BYTES, False)):
        session = ClientSession()
        joined.places.enter(session)
        ours, _ = joined.pair()
        listener, codec = Listener("native", PLAINTEXT, ""), codec_of("native", Config(), greeted=True)
        handed_over = HandedOver(listener, "", codec, session, Counters().listener_counters(listener), BUFFER_BYTES_MIN)
        handed_over.received += frame_bytes.to_bytes(SIZE_BYTES, "big")
        joined.handoffs.served[handed_over] = None
        joined.handoffs.take_back(handed_over, ours)
        connection = joined.connections.by_fd[ours.fileno()]
        joined.connections.advance_touched()
        connection.started, connection.inbox = 2, Inbox(joined.buffers)
        connection.requests.extend([cast(Any, None)] * 2)
        for _ in range(TURNS_TO_HAND_OVER):
            joined.pass_time()
            joined.handoffs.consider(connection, joined.partition, 1, 1)
        assert joined.is_read(connection) is stays, frame_bytes


@pytest.mark.parametrize("notices", ["at its channel", "by its successor"])
def test_what_a_writer_answered_before_it_died_is_not_failed(joined: Rig, notices: str) -> None:
    connections = [joined.connection() for _ in range(3)]
    for connection in connections:
        read_with_extent(connection)
        assert joined.produce(connection)
        joined.produce_requests.send_all()
    pending = [connection.requests[0] for connection in connections]
    tokens = [token for token, _, _ in joined.requests()]
    for token in tokens[:2]:
        joined.writer.send(Appended([(token, [0, token, token + 1], {}, -1)]))
    joined.writer.close()
    joined.produce_requests.ask_for_room()  # cannot be sent: the end is known before the answers are
    assert joined.link.channel is not None and joined.link.channel.closed
    if notices == "by its successor":
        joined.join_writer()
    else:
        joined.produce_requests.on_event(joined.partition, select.EPOLLIN | select.EPOLLHUP)
    errors = [one.results[0].error for one in pending]
    assert errors == [0, 0, WriterGone.code]


def connections_at(joined: Rig, count: int) -> list[WorkerConnection]:
    connections = [joined.connection() for _ in range(count)]
    for connection in connections:
        read_with_extent(connection)
    return connections


def test_when_a_writer_dies_idempotent_producers_lose_their_connections_and_others_get_an_error() -> None:
    """Goal: nothing of an idempotent producer is appended behind a batch that died with a writer.

    Method: more of each client waits for the next writer when the first one's death is noticed.
    """
    rig = Rig(ARENA_BYTES, 4 * ARENA_BYTES)
    rig.join_writer()
    numbered, plain, late = connections_at(rig, 3)
    for connection, is_numbered in ((numbered, True), (plain, False)):
        assert rig.produce(connection, numbered=is_numbered)
    rig.end_turn()
    rig.produce_requests.retire_writer(rig.partition)
    for connection, is_numbered in ((numbered, True), (plain, False), (late, True)):
        assert rig.produce(connection, numbered=is_numbered)
        rig.end_turn()
    assert numbered.started == 2 and len(rig.link.waiting) == 3
    errors = [pending for pending in plain.requests]
    rig.writer.close()
    rig.produce_requests.on_event(rig.partition, select.EPOLLIN | select.EPOLLHUP)
    assert numbered.closed and not plain.closed and not late.closed
    assert [pending.results[0].error for pending in errors] == [WriterGone.code] * 2
    rig.join_writer()
    rig.end_turn()
    assert rig.appended() == [len(PLAIN)] and late.started == 1
    rig.close()


def test_what_waits_behind_an_expired_batch_of_the_same_client_expires_too() -> None:
    rig = Rig(ARENA_BYTES)
    first, second = connections_at(rig, 2)
    for connection, timeout_ms in ((first, 0), (second, WRITER_WAIT_MS_MAX), (first, WRITER_WAIT_MS_MAX)):
        assert rig.produce(connection, numbered=True, timeout_ms=timeout_ms)
        rig.end_turn()
    rig.pass_time(WRITER_WAIT_MS_MIN)
    rig.produce_requests.check_timeouts()
    assert first.started == 0 and second.started == 1 and not first.closed
    rig.join_writer()
    rig.end_turn()
    assert rig.appended() == [len(PLAIN)] and second.started == 1
    rig.close()


def test_a_writer_that_retires_gets_what_has_waited_for_it(joined: Rig) -> None:
    """Else one that is started and retires for another one would be started again for the same request, and so on."""
    joined.produce_requests.retire_writer(joined.partition)
    connection = joined.connection()
    read_with_extent(connection)
    assert joined.produce(connection)
    joined.produce_requests.send_all()
    assert joined.produce_requests.waiting == 1
    joined.join_writer()
    joined.produce_requests.retire_writer(joined.partition)
    assert joined.produce_requests.waiting == 0
    ((token, _, _),) = joined.requests()
    joined.writer.send(Appended([(token, [0, 0, 1], {}, -1)]))
    joined.produce_requests.on_event(joined.partition, select.EPOLLIN)
    assert not connection.requests[0].missing and joined.link.channel is None


def partition_numbered(number: int) -> Any:
    table = SimpleNamespace(state=ONLINE)
    return KnownPartition(cast(Any, None), table, cast(Any, SimpleNamespace(partition=number)))


class Asked(list[Any]):
    """Partitions that the supervisor was asked for a writer of, and those that have not come yet."""

    def __init__(self) -> None:
        self.turn = Turn()
        self.needs = WriterNeeds(self.turn, lambda key: self.append(key.partition))
        self.partitions: dict[int, Any] = {}

    def need(self, number: int, connection: Any) -> None:
        partition = self.partitions.setdefault(number, partition_numbered(number))
        self.needs.ask_for_writer(partition, connection)

    def come(self, number: int) -> None:
        self.needs.forget_partition(self.partitions.pop(number))

    @property
    def outstanding(self) -> list[int]:
        return [number for number in self if number in self.partitions]


@given(wanted=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 60)), max_size=80))
def test_writers_are_asked_for_few_at_a_time_and_for_each_connection_in_turn(wanted: list[tuple[str, int]]) -> None:
    """Goal: the n-th need of a connection is not behind the n+1st of another; none is forgotten, none asked twice."""
    asked = Asked()
    for number in range(1_000, 1_000 + NEEDED_MAX):
        asked.need(number, "before")
    rounds: dict[int, int] = {}
    counts = dict.fromkeys("abcd", 0)
    for connection, number in wanted:
        asked.need(number, connection)
        if number not in rounds:
            rounds[number] = counts[connection]
            counts[connection] += 1
    assert len(asked) == NEEDED_MAX
    while asked.outstanding:
        asked.come(asked.outstanding[0])
        assert len(asked.outstanding) <= NEEDED_MAX
    later = [rounds[number] for number in asked[NEEDED_MAX:]]
    assert later == sorted(later) and len(later) == len(rounds) == len(set(asked)) - NEEDED_MAX


def test_one_that_needs_one_writer_waits_for_few_of_another() -> None:
    asked = Asked()
    for number in range(10_000):
        asked.need(number, "greedy")
    assert len(asked) == NEEDED_MAX
    asked.need(10_000, "modest")
    asked.come(asked[0])
    asked.come(asked[1])
    assert 10_000 in asked
    asked.turn.now_ms += ASKED_MS
    asked.needs.check_timeouts()
    assert len(asked) == 2 * NEEDED_MAX + 2, "those that do not come keep nobody waiting"


def test_a_descriptor_is_open_until_the_turn_ends(joined: Rig) -> None:
    """Its number would be another's, for which an event of this turn may be left."""
    connection = joined.connection()
    assert joined.link.channel is not None
    channel = joined.link.channel
    joined.connections.disconnect(connection, "for a test")
    joined.produce_requests.retire_writer(joined.partition)
    assert connection.sock.fileno() >= 0 and channel.fileno() >= 0
    joined.turn.end()
    assert connection.sock.fileno() == channel.fileno() == -1


def test_parts_of_joined_requests_are_added_at_once_unless_one_is_empty() -> None:
    here: Any = object()
    alike = [ProducePart("t", 0, 10, 20), ProducePart("t", 0, 30, 50)]
    joined = Produce(None, 1, 0, alike, count=2)
    assert _runs(joined, 100, [here, here]) == [(0, 2, [110, 120, 130, 150], here)]
    several = Produce(None, 1, 0, alike)
    assert _runs(several, 100, [here, here]) == [(0, 1, [110, 120], here), (1, 1, [130, 150], here)]
    empty = Produce(None, 1, 0, [alike[0], ProducePart("t", 0, 30, 30)], count=2)
    assert _runs(empty, 100, [here, here]) == [(0, 1, [110, 120], here), (1, 1, [], here)]
    assert _runs(Produce(None, 1, 0, []), 100, []) == []
