"""Forwards requests that a network worker does not answer itself to the coordinator, and sends the replies on.

Requests that a dead coordinator has not answered are sent to its successor.  A frame is sent to at most two
coordinators: when both have died, its connection is closed.  So one request cannot kill every coordinator.

The coordinator also sends a snapshot of brokers and topics (:mod:`appliance.processes.snapshot`), from which the worker
answers some requests itself (:class:`SnapshotAnswers`).

Bounds: ``FORWARDED_BYTES_MAX`` of frames that wait for their reply, and as much as one frame has for administrators.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

from ...addresses import Listener
from ...broker.metadata_answers import MetadataAnswers
from ...broker.sequences import new_producer_id
from ...errors import ProtocolFault
from ...names import is_reserved, is_topic
from ...security.acls import Access, Operation, ResourceType
from ...wire import native
from ...wire.kafka import metadata as kafka
from ...wire.requests import Forwarded
from ..message_stream import OVERHEAD_BYTES, REPLY_BYTES_MAX, MessageReader, packed
from ..messages import (
    FROM_COORDINATOR_STREAM,
    ForwardRequest,
    FromCoordinatorStream,
    LimitsTaken,
    RequestAnswered,
    SnapshotChange,
    UsageRow,
)
from ..snapshot import WorkerSnapshot
from .admission import Admission
from .connections import Connections
from .turn import Turn
from .worker_connection import Pending, WorkerConnection

WorkerQuestion = native.MetadataRequest | native.AdminRequest | kafka.Question
READ_BYTES: Final = 1 << 20
READS_MAX: Final = 16
"""Reads of the coordinator's stream at once: more than a socket holds."""
FORWARDED_BYTES_MAX: Final = 64 << 20
"""Frames of all connections that wait for the coordinator; a connection that would exceed it is closed."""
RESERVED_BYTES: Final = 1 << 20
FLUSHED_BYTES: Final = 8 << 10
"""What is sent to the coordinator goes at the end of the turn, which wakes it once, or when so much has come."""
METADATA: Final = "Metadata"
SENT_MAX: Final = 2
"""Coordinators that one frame is sent to: the first, and its successor if the first died before it answered."""
INIT_PRODUCER: Final = "init_producer"
NO_ARGUMENTS: Final = b"\x80"
"""An empty map of msgpack."""


def _reader() -> MessageReader[FromCoordinatorStream]:
    return MessageReader(FROM_COORDINATOR_STREAM, REPLY_BYTES_MAX + OVERHEAD_BYTES)


class _Frame:
    """A frame that waits for its reply, packed; ``sent``: to how many coordinators so far."""

    __slots__ = ("data", "pending", "sent")

    def __init__(self, pending: Pending, data: bytearray) -> None:
        self.pending, self.data, self.sent = pending, data, 0


class CoordinatorLink:
    """The stream to the coordinator, of :mod:`~appliance.processes.messages`.

    ``on_snapshot`` takes the messages of the snapshot, which come on the same stream.

    A dead coordinator is an EOF (:meth:`receive` returns None).  A frame counts as sent as soon as there is a
    coordinator to send it to, whether the socket has taken it yet or not.
    """

    def __init__(self, on_snapshot: Callable[[SnapshotChange], None]) -> None:
        self.sock: socket.socket | None = None
        self._on_snapshot = on_snapshot
        self._out = bytearray()
        self._reader = _reader()
        self._frames: dict[int, _Frame] = {}
        self._frames_bytes = 0
        self._token = 0

    @property
    def pending(self) -> bool:
        """Whether bytes wait for the socket."""
        return bool(self._out)

    def connect(self, sock: socket.socket) -> list[Pending]:
        """Connect a new coordinator, and send it the frames that the old one has not answered.

        Returns the requests that have been sent to SENT_MAX coordinators already: they will not be answered.
        """
        sock.setblocking(False)
        self.sock = sock
        self._reader = _reader()
        expired = [token for token, frame in self._frames.items() if frame.sent >= SENT_MAX]
        given_up = [self._drop(token) for token in expired]
        self._out.clear()
        for frame in self._frames.values():
            self._enqueue(frame)
        self.flush()
        return given_up

    def _enqueue(self, frame: _Frame) -> None:
        frame.sent += 1
        self._out += frame.data

    def _drop(self, token: int) -> Pending:
        frame = self._frames.pop(token)
        self._frames_bytes -= len(frame.data)
        return frame.pending

    def forward(self, pending: Pending, frame: memoryview) -> int:
        """Send a frame to the coordinator with the next :meth:`flush`, or keep it for the next one; return its token.

        Raises:
            ProtocolFault: unanswered frames take FORWARDED_BYTES_MAX already.
        """
        connection = pending.connection
        bytes_max = FORWARDED_BYTES_MAX + (RESERVED_BYTES if connection.session.administrator else 0)
        if self._frames_bytes + len(frame) > bytes_max:
            raise ProtocolFault("too much waits for the coordinator already")
        self._token += 1
        data = packed(ForwardRequest(self._token, connection.origin, bytes(frame)))
        forwarded = self._frames[self._token] = _Frame(pending, data)
        self._frames_bytes += len(data)
        if self.sock is not None:
            self._enqueue(forwarded)
            if len(self._out) >= FLUSHED_BYTES:
                self.flush()
        return self._token

    @property
    def may_report(self) -> bool:
        """Whether there is a coordinator, and it reads: for one that does not, reports would only pile up."""
        return self.sock is not None and not self._out

    def report(self, rows: list[UsageRow]) -> None:
        """Tell the other workers, through the coordinator, what clients have taken from their limits."""
        assert self.may_report
        self._out += packed(LimitsTaken(rows))

    def abandon(self, token: int) -> None:
        """Forget a frame whose reply nobody wants any more; it is dropped when it comes."""
        self._drop(token)

    def flush(self) -> None:
        """Send as much as the socket takes; a lost coordinator shows at the next receive."""
        try:
            while self._out and self.sock is not None:
                del self._out[: self.sock.send(self._out)]
        except BlockingIOError:
            return
        except OSError:
            self._out.clear()

    def disconnect(self) -> socket.socket:
        """Forget the socket of a coordinator that is gone; the caller closes it."""
        assert self.sock is not None
        sock, self.sock = self.sock, None
        self._out.clear()
        return sock

    def _read(self) -> bytes | None:
        """Read once; b"" at the end of the stream, None when nothing has come."""
        assert self.sock is not None
        try:
            return self.sock.recv(READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def receive(self) -> list[tuple[Pending, bytes | None]] | None:
        """Replies that have arrived (None: that request cannot be answered); None: the coordinator is gone."""
        assert self.sock is not None
        data = self._read()
        if data == b"":
            return None
        for reads in range(READS_MAX):
            if not data:  # nothing more; the end of the stream shows again at the next call
                break
            self._reader.feed(data)
            more = len(data) == READ_BYTES and reads + 1 < READS_MAX
            data = self._read() if more else None
        replies = []
        while (message := self._reader.take_message()) is not None:
            match message:
                case RequestAnswered(token, reply):
                    if token in self._frames:
                        replies.append((self._drop(token), reply))
                case _:
                    self._on_snapshot(message)
        return replies


def _may_produce(access: Access) -> bool:
    """Whether a client may have a producer id."""
    return access.may(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER) or access.may_some(
        Operation.WRITE, ResourceType.TOPIC
    )


class SnapshotAnswers:
    """Decodes and answers requests from ``snapshot``.  ``parts_max``: topics that one request may name.

    It answers Metadata and requests for a producer id of both listeners, and FindCoordinator if this broker is the only
    one.  So producers, idempotent or not, and consumers with manually assigned partitions do not need the coordinator,
    which may hang or be replaced meanwhile.  For all others it returns None, and they go to the coordinator: topics
    that are to be created, transactional ids, groups of several brokers, malformed requests, and all requests before
    the first snapshot has come.
    """

    def __init__(self, snapshot: WorkerSnapshot, parts_max: int) -> None:
        self.snapshot = snapshot
        self._parts_max = parts_max
        self._answers = MetadataAnswers(self.snapshot)

    def asked(self, protocol: str, frame: memoryview) -> WorkerQuestion | None:
        """The question in a frame, if it is one that may be answered here."""
        if not self.snapshot.complete:
            return None
        if protocol == "kafka":
            return kafka.decode(frame, self._parts_max)
        try:
            request = native.decode_forwarded(frame)
        except ProtocolFault:
            return None
        if isinstance(request, native.MetadataRequest) or (
            request.verb == INIT_PRODUCER and bytes(request.arguments) == NO_ARGUMENTS
        ):
            return request
        return None

    def answer(self, question: WorkerQuestion, listener: Listener, access: Access) -> bytes | None:
        """The reply frame; None: the coordinator has to answer.  It also refuses what ``access`` does not permit."""
        if isinstance(question, native.AdminRequest | kafka.ProducerQuestion) and not _may_produce(access):
            return None
        match question:
            case native.MetadataRequest():
                reply = self._answers.native(question.topics, listener, access)
                return native.encode_frame([question.correlation, 0, reply])
            case native.AdminRequest():
                producer = {"producer_id": new_producer_id(), "epoch": 0}
                return native.encode_frame([question.correlation, 0, "", producer])
            case kafka.ProducerQuestion():
                return kafka.encode_producer(question, new_producer_id())
            case kafka.MetadataQuestion():
                return self._metadata(question, listener, access)
            case kafka.CoordinatorQuestion():
                if not all(access.may(Operation.DESCRIBE, ResourceType.GROUP, group) for group in question.groups):
                    return None
                brokers = self.snapshot.brokers(listener)
                return kafka.encode_coordinator(question, *brokers[0]) if len(brokers) == 1 else None

    def hidden(self, question: WorkerQuestion, access: Access) -> str:
        """The first topic in a question that :meth:`answer` refuses; "" when there is none."""
        if isinstance(question, native.MetadataRequest | kafka.MetadataQuestion):
            return self._answers.hidden(question.topics, access)
        return ""

    def _metadata(self, question: kafka.MetadataQuestion, listener: Listener, access: Access) -> bytes | None:
        topics = self.snapshot.topics()
        if question.may_create and self.snapshot.auto_create:
            names = (topic for topic in question.topics or () if isinstance(topic, str))
            if any(name not in topics and is_topic(name) and not is_reserved(name) for name in names):
                return None
        return self._answers.kafka(
            question.correlation_id,
            question.version,
            listener,
            question.topics,
            {},
            access,
            topic_operations=question.topic_operations,
            cluster_operations=question.cluster_operations,
        )


class Forwarder:
    """Starts requests that are forwarded, and sends the replies on.

    ``read_announcements`` reads what the supervisor has sent.
    """

    def __init__(
        self,
        turn: Turn,
        connections: Connections,
        answers: SnapshotAnswers,
        epoll: select.epoll,
        read_announcements: Callable[[], None],
        admission: Admission,
    ) -> None:
        self._turn, self._connections = turn, connections
        self._answers = answers
        self._epoll = epoll
        self._read_announcements = read_announcements
        self._admission = admission
        self._link = CoordinatorLink(answers.snapshot.apply_change)
        self._waits = False
        """The socket is full; epoll reports when it takes more."""
        self.fd = -1
        """Descriptor of the stream to the coordinator, which epoll watches; -1: there is none."""

    def connect(self, fd: int) -> None:
        """Connect a coordinator that has been started."""
        if self._link.sock is not None:
            self._disconnect()
        given_up = self._link.connect(socket.socket(fileno=fd))
        self.fd, self._waits = fd, False
        self._epoll.register(fd, select.EPOLLIN)
        self._watch()
        for pending in given_up:  # all before any: one of them may end the connection of others
            pending.connection.disown(pending)
        for pending in given_up:
            if not pending.connection.closed:
                reason = "two coordinators have ended before they could answer this request"
                self._connections.disconnect(pending.connection, reason)

    def start(self, connection: WorkerConnection, request: Forwarded, start: int, frame: memoryview) -> bool:
        """Answer from the snapshot, or forward."""
        pending = Pending(connection, request)
        connection.begin_request(pending)
        reply = self._answer(connection, frame)
        if reply is not None:
            self._connections.answer(pending, [reply])
        else:
            connection.own(pending, partial(self._link.abandon, self._link.forward(pending, frame)))
        return True

    def _answer(self, connection: WorkerConnection, frame: memoryview) -> bytes | None:
        """The reply from the snapshot, after reading its latest messages; None: the coordinator has to answer."""
        question = self._answers.asked(connection.listener.protocol, frame)
        if question is None:
            return None
        self.read_snapshot()
        access = self._admission.access(connection)
        reply = self._answers.answer(question, connection.listener, access)
        if reply is not None and not access.unrestricted and (hidden := self._answers.hidden(question, access)):
            self._admission.refuse(connection, f"{METADATA} {hidden}")
        return reply

    def read_snapshot(self) -> None:
        """Read what the coordinator has sent."""
        if self._link.sock is not None:
            self.on_event(0)

    @property
    def may_report(self) -> bool:
        """See :attr:`CoordinatorLink.may_report`."""
        return self._link.may_report

    def report(self, rows: list[UsageRow]) -> None:
        """See :meth:`CoordinatorLink.report`."""
        self._link.report(rows)

    def end_turn(self) -> None:
        """Send what this turn has for the coordinator."""
        if self._link.pending:
            if not self._waits:  # else epoll tells when the socket takes more
                self._link.flush()
            self._watch()

    def on_event(self, event: int) -> None:
        """Take replies; with EPOLLOUT send the remaining bytes first."""
        link = self._link
        if event & select.EPOLLOUT:
            link.flush()
            self._watch()
        replies = link.receive()
        if replies is None:  # the supervisor sends the next one
            self._disconnect()
            return
        some_stalled = False
        for pending, _ in replies:  # all before any: one reply may end the connection of others
            pending.connection.disown(pending)
        for pending, reply in replies:
            connection = pending.connection
            if connection.closed:
                continue
            if reply is None:
                self._connections.disconnect(connection, "the request cannot be answered")
                continue
            self._connections.answer(pending, [reply])
            some_stalled = some_stalled or connection.stalled
        if some_stalled:  # the changes of a request were announced to this worker before its reply was sent
            self._read_announcements()

    def _disconnect(self) -> None:
        """The coordinator is gone."""
        self._epoll.unregister(self.fd)
        self._turn.close_at_end(self._link.disconnect().close)
        self.fd = -1

    def _watch(self) -> None:
        """Let epoll report when a full stream takes more: perhaps no later event would flush it."""
        link = self._link
        if link.sock is not None and link.pending != self._waits:
            self._waits = link.pending
            self._epoll.modify(self.fd, select.EPOLLIN | (select.EPOLLOUT if link.pending else 0))
