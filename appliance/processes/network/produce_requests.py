"""Turns produce requests into append requests, sends them to the writers, and makes the replies.

:class:`Connections` receives a produce request and calls :meth:`ProduceRequests.start`, which adds its parts to the
open append requests of their partitions.  At the end of the turn :meth:`ProduceRequests.send_all` sends these to the
writers.  When a writer answers, :meth:`ProduceRequests.on_event` fills in the results; the last one makes the reply.

A worker asks the supervisor for a writer when it has something to append and there is none.  More partitions may need
one than writers may run, so it asks for few at a time, for each connection in turn (:class:`WriterNeeds`): a client
that produces to a thousand idle partitions delays others by the start of a few writers.

While half of the arena is taken, a request waits (``stalled``) if the partition's writer uses its share of the arena,
or has still to come while half of the arena waits for such writers already.

A writer holds what it has in hand until its next flush, which a topic may delay for long.  So while somebody waits for
memory, whatever a writer is sent is to be flushed at once: it is asked for that behind the append requests, never
before them, when there would be nothing to flush.

When a writer dies, what it has not answered may be in the log or not, and its successor may get what the same clients
have sent behind it.  An idempotent producer is promised that nothing overtakes and nothing is doubled.  So its
connection ends, as all those to a leader that dies do in Kafka, and it sends everything again, in order.  Other clients
are answered WriterGone.
"""

from __future__ import annotations

import select
import socket
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from operator import ge
from typing import Final

from ...broker import plan
from ...errors import (
    ApplianceError,
    StorageFault,
    TopicNotPermitted,
    TransactionalIdNotPermitted,
    UnknownPartition,
    WriterGone,
)
from ...names import TopicPartition
from ...partition_states import OFFLINE, OPENING
from ...records.batch import has_producer
from ...wire.requests import Produce, ProduceResult
from ..answers import acks_0_failure
from .connections import Connections
from .handoffs import Handoffs
from .inbox import Buffers
from .known_partitions import KnownPartitions, WorkerPartition
from .turn import Turn
from .worker_connection import Pending, WorkerConnection
from .writer_link import APPEND_PARTS_MAX, AppendRequest, Reaction, Target, WriterLink

NEEDED_MAX: Final = 32
"""Writers that a worker waits for at a time: those that may open their logs at a time, and as many behind them."""
ASKED_MS: Final = 5_000


class WriterNeeds:
    """The partitions that need a writer, by the connection that has brought the first append request.

    ``request_writer`` asks the supervisor for one.  Those that are asked for and do not come for ASKED_MS, since their
    logs are recovered or something is lacking, are waited for no longer: others are asked for.
    """

    def __init__(self, turn: Turn, request_writer: Callable[[TopicPartition], None]) -> None:
        self._turn, self._request_writer = turn, request_writer
        self._asked: dict[WorkerPartition, int] = {}
        """When the supervisor was asked for a writer of these, the earliest first."""
        self._uncounted: set[WorkerPartition] = set()
        """Asked for, and not counted among those that are on their way: still opening, or not there after ASKED_MS."""
        self._queues: OrderedDict[WorkerConnection, OrderedDict[WorkerPartition, None]] = OrderedDict()
        """Partitions to ask for later, by connection; the one whose turn is next first."""
        self._queue_of: dict[WorkerPartition, OrderedDict[WorkerPartition, None]] = {}

    def ask_for_writer(self, partition: WorkerPartition, connection: WorkerConnection) -> None:
        """Ask for a writer of this partition, now or when it is its turn."""
        if partition in self._asked or partition in self._uncounted or partition in self._queue_of:
            return
        if partition.table.state == OPENING:  # the supervisor starts it once the log is open
            self._uncounted.add(partition)
            self._request_writer(partition.key)
            return
        queue = self._queue_of[partition] = self._queues.setdefault(connection, OrderedDict())
        queue[partition] = None
        self._ask()

    def forget_partition(self, partition: WorkerPartition) -> None:
        """It has a writer, or needs none any more."""
        self._asked.pop(partition, None)
        self._uncounted.discard(partition)
        if (queue := self._queue_of.pop(partition, None)) is not None:
            queue.pop(partition)
        self._ask()

    def check_timeouts(self) -> None:
        """Wait no longer for those that do not come."""
        for partition, asked_ms in list(self._asked.items()):
            if self._turn.now_ms - asked_ms < ASKED_MS:
                break
            del self._asked[partition]
            self._uncounted.add(partition)
        self._ask()

    def _ask(self) -> None:
        while self._queues and len(self._asked) < NEEDED_MAX:
            connection, queue = self._queues.popitem(last=False)
            if not queue:
                continue
            partition, _ = queue.popitem(last=False)
            del self._queue_of[partition]
            if queue:
                self._queues[connection] = queue  # behind the others
            self._asked[partition] = self._turn.now_ms
            self._request_writer(partition.key)


class ProduceRequests:
    """Starts produce requests, and serves the links to the writers of all partitions.

    ``request_writer`` asks the supervisor for a partition's writer.
    """

    def __init__(
        self,
        turn: Turn,
        connections: Connections,
        partitions: KnownPartitions,
        handoffs: Handoffs,
        buffers: Buffers,
        request_writer: Callable[[TopicPartition], None],
    ) -> None:
        self._turn = turn
        self._connections = connections
        self._partitions = partitions
        self._handoffs = handoffs
        self._buffers = buffers
        self._needs = WriterNeeds(turn, request_writer)
        self.by_fd: dict[int, WorkerPartition] = {}
        """The partitions that have a writer, by the descriptor of its channel."""
        self.to_send: dict[WorkerPartition, None] = {}
        """The partitions with append requests to send at the end of this turn."""
        self._waiting: dict[WorkerPartition, int] = {}
        """The partitions whose append requests wait for a writer, and how many bytes of the arena these hold."""
        self._waiting_bytes = 0
        self._awaited_writers: set[WorkerPartition] = set()
        """The partitions without a writer that connections wait for with their next request."""

    @property
    def waiting(self) -> int:
        """How many partitions have append requests that wait for a writer."""
        return len(self._waiting)

    @property
    def in_hand_bytes(self) -> int:
        """Bytes of the arena that writers have not answered for, and that wait for writers."""
        return sum(partition.link.in_hand_bytes for partition in {*self.by_fd.values(), *self._waiting})

    # ---- requests

    def start(self, connection: WorkerConnection, request: Produce, start: int, frame: memoryview) -> bool:
        """Add the record batches of a request to append requests.

        Returns:
            False when it has to wait: for a writer with too many unanswered bytes, or for the next turn.
        """
        parts = request.parts
        partitions = self._partitions.partitions_of(request)
        if self._connections.defer_for_announcement(connection, request, partitions):
            return False
        for partition in partitions if self._buffers.crowded else ():
            if partition is None:
                continue
            if partition.link.is_full:
                self._stall(connection, partition.link)
                self.to_send[partition] = None
                return False
            if self._may_not_wait(partition):
                self._stall(connection, partition.link)
                self._awaited_writers.add(partition)
                self._needs.ask_for_writer(partition, connection)
                return False
        connection.memory_since_ms = 0
        pending = None
        if request.acks:
            pending = Pending(connection, request, request.count)
            pending.missing = len(parts)
            pending.results = [None] * len(parts)
            connection.begin_request(pending)
        else:
            connection.started += len(parts)
            connection.counters.unanswered(Produce.api, request.count)
            connection.overlap = request.overlap
        extent = connection.inbox.extent
        assert extent is not None
        now_ms = self._turn.now_ms
        for index, count, positions, partition in _runs(request, start, partitions):
            if partition is None or partition.table.state == OFFLINE or not positions:
                for number in range(index, index + count):
                    self._refuse_part(connection, pending, number, request, partition)
                if connection.closed:
                    return True
                continue
            target = (connection, pending, index, count)
            partition.link.add_batches(request.acks, now_ms, request.timeout_ms, extent, positions, target)
            self.to_send[partition] = None
        if pending is not None and not parts:
            self._connections.answer(pending, [connection.codec.encode_produce(request, [])])
        partition = partitions[-1] if partitions and len(parts) == request.count else None
        self._handoffs.consider(connection, partition, request.acks, len(parts))
        return True

    def _stall(self, connection: WorkerConnection, link: WriterLink) -> None:
        """Let the connection's next request wait for the link."""
        connection.wait_for_memory(self._turn.now_ms)
        link.waits_for_room[connection] = None
        connection.own(link, partial(link.waits_for_room.pop, connection))

    def _may_not_wait(self, partition: WorkerPartition) -> bool:
        """Whether the partition has no writer, and what waits for writers takes half of the arena already."""
        link = partition.link
        much = 2 * self._waiting_bytes >= self._buffers.arena.size_bytes
        return much and (link.channel is None or link.retiring) and partition.table.state != OFFLINE

    def _refuse_part(
        self,
        connection: WorkerConnection,
        pending: Pending | None,
        index: int,
        request: Produce,
        partition: WorkerPartition | None,
    ) -> None:
        topic, number, *_ = request.parts[index]
        error: ApplianceError
        if request.id_denied:
            error = TransactionalIdNotPermitted(f"not permitted: Write on id {request.transactional_id!r}")
        elif index in request.denied:
            error = TopicNotPermitted(f"not permitted: Write on topic {topic!r}")
        elif partition is None:
            error = UnknownPartition(f"{topic}-{number} is not on this appliance: create it, or ask for metadata")
        elif partition.table.state == OFFLINE:
            error = StorageFault(f"{topic}-{number} is offline: see `appliance status`")
        else:
            error = plan.EMPTY_BATCH
        self._finish((connection, pending, index, 1), [ProduceResult(error.code, -1, -1, -1, str(error))])

    # ---- to the writers

    def send_all(self) -> None:
        """Send the append requests of this turn; ask for the writers that are missing."""
        starves = bool(self._connections.starved.waiting)
        for partition in self.to_send:
            link = partition.link
            link.send()
            if starves or link.waits_for_room:
                link.ask_for_room()
            self._note_waiting(partition)
            if link.waiting and not link.retiring:
                self._needs.ask_for_writer(partition, link.waiting[0].targets[0][0])
        self.to_send.clear()

    def _note_waiting(self, partition: WorkerPartition) -> None:
        """Note how much waits for a writer of the partition now."""
        self._waiting_bytes -= self._waiting.pop(partition, 0)
        if partition.link.waiting:
            self._waiting[partition] = partition.link.in_hand_bytes
            self._waiting_bytes += partition.link.in_hand_bytes

    def ask_for_room(self) -> None:
        """Ask all writers to flush, so that they release the arena."""
        for partition in self.by_fd.values():
            partition.link.ask_for_room()

    def recall(self) -> None:
        """Ask all writers to give their connections back, and hand none over that was about to be."""
        self._handoffs.keep_all()
        for partition in self.by_fd.values():
            partition.link.recall()

    # ---- their answers

    def on_event(self, partition: WorkerPartition, event: int) -> None:
        """Take one message of a partition's writer; with EPOLLOUT send queued messages first."""
        link = partition.link
        channel = link.channel
        assert channel is not None
        if event & select.EPOLLOUT:
            link.flush()
        received = link.receive()
        if received is not None:
            self._take(partition, received)
        if channel is link.channel and (channel.closed or (link.retiring and link.idle)):
            self._lose_writer(partition)

    def _take(self, partition: WorkerPartition, received: Reaction) -> None:
        """Take one message of a writer."""
        link, log_start = partition.link, partition.table.start
        answers, returned = received
        for append, answer in answers:
            link.release(append)
            if append.acks == 0 and not answer.texts:
                self._finish_unanswered(append.targets)
                continue
            results = answer.results(log_start)
            at = 0
            for target in append.targets:
                following = at + target[3]
                self._finish(target, results[at:following])
                at = following
        if link.waits_for_room:
            self._resume_stalled(link)
        if returned is not None:
            self._handoffs.take_back(*returned)

    def _finish_unanswered(self, targets: Iterable[Target]) -> None:
        """Count requests with acks=0 as done."""
        for connection, _, _, count in targets:
            connection.started -= count
            if connection.stalled or connection.hand_over_to is not None:
                self._connections.touched[connection] = None

    def _finish(self, target: Target, results: list[ProduceResult]) -> None:
        """Take the results of the parts of a target."""
        connection, pending, index, count = target
        if connection.closed:
            return
        failed = [result for result in results if result[0]]
        if failed:
            connection.counters.failed(Produce.api, len(failed))
        if pending is None:
            connection.started -= count
            if failed:
                self._connections.disconnect(connection, acks_0_failure(failed[0].message))
            else:  # it may wait for this: another connection's part of the append request has failed
                self._connections.touched[connection] = None
            return
        pending.results[index : index + count] = results
        pending.missing -= count
        if not pending.missing:
            reply = connection.codec.encode_produce(pending.request, pending.results)  # type: ignore[arg-type]
            self._connections.answer(pending, [reply])

    def _resume_stalled(self, link: WriterLink) -> None:
        """Resume the connections that wait for this writer: it has released a part of the arena."""
        for connection in link.waits_for_room:
            connection.disown(link)
            self._connections.resume_next_turn(connection)
        link.waits_for_room.clear()

    def _fail(self, partition: WorkerPartition, appends: list[AppendRequest], error: ApplianceError) -> None:
        """Answer append requests with an error, because no writer will answer them."""
        link = partition.link
        for append in appends:
            link.release(append)
            for target in append.targets:
                self._finish(target, [ProduceResult(error.code, -1, -1, -1, str(error))] * target[3])
        self._resume_stalled(link)

    def check_timeouts(self) -> None:
        """Fail append requests that have waited too long for a writer; end settling that takes too long."""
        self._handoffs.check_timeouts()
        self._needs.check_timeouts()
        for partition in list(self._waiting):
            link = partition.link
            error = WriterGone(f"{link.name} has no writer: it is being recovered, send again")
            self._fail(partition, link.take_expired(self._turn.now_ms), error)
            self._note_waiting(partition)
            if not link.waiting:
                self._needs.forget_partition(partition)
        for partition in list(self._awaited_writers):  # it may be offline by now; whoever has to wait on does
            self._end_stall(partition)

    def fail_unopened(self) -> None:
        """Fail what waits for logs that are not open yet: the appliance stops, and nobody opens them any more."""
        for partition in list(self._waiting):
            if partition.table.state == OPENING:
                link = partition.link
                error = WriterGone(f"{link.name} is not open yet, and the appliance stops: send again")
                self._fail(partition, link.take_waiting(), error)
                self._note_waiting(partition)
                self._needs.forget_partition(partition)

    def recall_expired(self) -> None:
        """Take connections back from writers whose session is over."""
        for partition in self.by_fd.values():
            partition.link.recall_expired(self._turn.now_ms)

    # ---- writers come and go

    def join_writer(self, key: TopicPartition, sock: socket.socket) -> None:
        """Connect a partition with its new writer."""
        partition = self._partitions.get(key)
        if partition is None:
            sock.close()
            return
        if partition.link.channel is not None:
            self._lose_writer(partition)
        self.by_fd[sock.fileno()] = partition
        partition.link.connect(sock)
        self._needs.forget_partition(partition)
        self.to_send[partition] = None
        self._end_stall(partition)

    def _end_stall(self, partition: WorkerPartition) -> None:
        self._awaited_writers.discard(partition)
        self._resume_stalled(partition.link)

    def retire_writer(self, partition: WorkerPartition) -> None:
        """Send nothing more to a writer, and close the channel once it has answered everything."""
        if partition.link.channel is not None:
            partition.link.retire()
            self._note_waiting(partition)
            if partition.link.idle:
                self._lose_writer(partition)

    def _lose_writer(self, partition: WorkerPartition) -> None:
        """Fail the unanswered append requests of a writer whose channel has ended.

        Its last messages are taken before: what it has answered took effect, though a message to it may have failed.
        """
        link = partition.link
        assert link.channel is not None
        self.by_fd.pop(link.channel.fileno(), None)
        last = list(iter(link.receive, None))
        appends, handed_over = link.disconnect(self._turn)
        for received in last:
            self._take(partition, received)
        appends += link.take_behind(appends)
        for connection in self._idempotent(appends):
            self._connections.disconnect(connection, f"the writer of {link.name} has died with batches of it")
        self._fail(partition, appends, WriterGone(f"the writer of {link.name} is being restarted: send again"))
        for lost in handed_over:
            self._handoffs.on_lost(lost)
        self.to_send[partition] = None  # what waits needs another writer

    def _idempotent(self, appends: Iterable[AppendRequest]) -> set[WorkerConnection]:
        """The open connections with batches of idempotent producers in these append requests."""
        memory, idempotent = self._buffers.memory, set()
        for append in appends:
            at = 0
            for connection, _, _, count in append.targets:
                starts = append.positions[at : at + 2 * count : 2]
                at += 2 * count
                if not connection.closed and any(has_producer(memory, start) for start in starts):
                    idempotent.add(connection)
        return idempotent

    def on_deleted(self, partition: WorkerPartition) -> None:
        """Fail the append requests that wait for a writer, and retire the one that is connected.

        The writer reads the arena until it has answered, so append requests that it has are not failed.
        """
        error = UnknownPartition(f"{partition.link.name} has been deleted")
        self._fail(partition, partition.link.take_waiting(), error)
        self._note_waiting(partition)
        self._needs.forget_partition(partition)
        self.retire_writer(partition)


def _runs(
    request: Produce, start: int, partitions: list[WorkerPartition | None]
) -> list[tuple[int, int, list[int], WorkerPartition | None]]:
    """Parts that can be added together: index of the first, count, positions in the arena, partition.

    All parts of joined requests are one run, others a run each.  A part without batches has no positions.
    """
    parts = request.parts
    if len(parts) == request.count <= APPEND_PARTS_MAX:
        positions = [start + position for part in parts for position in part[2:]]
        if not any(map(ge, positions[::2], positions[1::2])):
            return [(0, len(parts), positions, partitions[0])]
    return [
        (index, 1, [start + first, start + stop] if first < stop else [], partition)
        for index, ((_, _, first, stop), partition) in enumerate(zip(parts, partitions, strict=True))
    ]
