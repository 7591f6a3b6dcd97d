"""appliance.processes.writer.handed_over: requests taken and bytes returned make up the stream, split at frames."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID, uuid4

from hypothesis import given
from hypothesis import strategies as st

from appliance.config import Config, NetworkSection
from appliance.log.partition_directory import claim
from appliance.names import TopicPartition
from appliance.processes.answers import AppendAnswer
from appliance.processes.control import Channel
from appliance.processes.messages import FROM_WRITER, AppendRow, Carried, GivenBack, Handoff, Received, Unsent
from appliance.processes.writer.handed_over import CHECK_MS, TURNS_TO_KEEP, HandedOverConnections
from appliance.processes.writer.worker_link import AppendSource, WorkerLink
from appliance.shared.counters import LISTENERS
from appliance.shared.table import TABLE_BYTES, SegmentTable
from appliance.wire import native
from appliance.wire.frames import split
from appliance.wire.kafka.apis import PRODUCE

from ...support.kafka_messages import request_frame

BUFFER_BYTES = 2_048
TOKEN = 7
REQUESTS_MAX = 5


class Desk:
    """A writer that has taken over one connection, and both other ends: the client's, and the worker's channel."""

    def __init__(
        self, already: bytes = b"", acks: int = 1, protocol: str = "native", directory: Path = Path("none")
    ) -> None:
        """``already``: what the worker had received."""
        self.epoll = select.epoll()
        self.woken = 0
        ours, self.worker = Channel.pair()
        self.link = WorkerLink(ours, memoryview(b""), self.epoll)
        table = SegmentTable(memoryview(bytearray(TABLE_BYTES)).cast("Q"))
        config = Config(network=NetworkSection(requests_max=REQUESTS_MAX))
        self.handoffs = HandedOverConnections(
            TopicPartition("t", 0), config, table, self.epoll, threading.Lock(), self._wake, directory
        )
        self.client, self.server = socket.socketpair()
        self.client.setblocking(False)
        self.server.setblocking(False)
        self.fd = os.dup(self.server.fileno())
        handoff = Handoff(TOKEN, protocol, LISTENERS.index(protocol), acks, BUFFER_BYTES, already)
        self.handoffs.accept(self.link, handoff, self.fd, now_ms=0)

    def _wake(self) -> None:
        self.woken += 1

    def turns(self) -> list[tuple[AppendSource, AppendRow]]:
        """What the writer takes until there is nothing more to be read."""
        taken = []
        while any(fd == self.fd for fd, _ in self.epoll.poll(0)):
            taken += self.handoffs.take_requests(self.fd, 0)
        return taken

    def answer(self, taken: list[tuple[AppendSource, AppendRow]]) -> None:
        with self.handoffs.lock:
            for source, (token, _, _) in taken:
                source.answer([(token, AppendAnswer([0, 1, 2] * token.count, {}, -1))])

    def batches(self, taken: list[tuple[AppendSource, AppendRow]]) -> list[bytes]:
        return [
            bytes(source.arena[start:stop])
            for source, (_, _, positions) in taken
            for start, stop in zip(positions[::2], positions[1::2], strict=True)
        ]

    def replies(self) -> list[int]:
        """Correlation ids of what the client has been answered."""
        data = memoryview(received(self.client))
        return [native.decode_header(data[start:stop])[0][0] for start, stop in split(data, 0, len(data), 1 << 20)[0]]

    def given_back(self) -> tuple[bytes, bytes]:
        """(unsent replies, received bytes that nobody has taken), as the worker is told; nothing when it is not."""
        messages = self.worker.receive(FROM_WRITER)
        assert [message for message, fds in messages if fds] == [GivenBack(TOKEN)] == [messages[-1][0]]
        os.close(messages[-1][1][0])
        unsent = b"".join(message.data for message, _ in messages if isinstance(message, Unsent))
        return unsent, b"".join(message.data for message, _ in messages if isinstance(message, Received))

    def close(self) -> None:
        with self.handoffs.lock:
            self.handoffs.lose(self.link)
            self.link.close()
        self.worker.close()
        self.client.close()
        self.server.close()
        self.epoll.close()


@contextmanager
def desk(
    already: bytes = b"", acks: int = 1, protocol: str = "native", directory: Path = Path("none")
) -> Iterator[Desk]:
    made = Desk(already, acks, protocol, directory)
    try:
        yield made
    finally:
        made.close()


def received(sock: socket.socket) -> bytes:
    data = b""
    try:
        while more := sock.recv(1 << 16):
            data += more
    except BlockingIOError:
        pass
    return data


def produce(batch: bytes, correlation: int = 70_000, acks: int = 1, topic: str = "t") -> bytes:
    return native.encode_frame([native.PRODUCE, correlation, topic, 0, acks, 1_000], len(batch)) + batch


TOO_LARGE = b"\xff\xff\xff\xff"
UNUSUAL = [
    produce(b"x", acks=0),
    produce(b"x", acks=-1),
    produce(b"x", topic="u"),
    produce(bytes(3_000)),
    native.encode_frame([native.METADATA, 1, None]),
    native.encode_frame([99, 1]),
    b"\0\0\0\1x",
    TOO_LARGE,
]


@given(
    batches=st.lists(st.binary(min_size=1, max_size=300), max_size=20),
    behind=st.just(b"") | st.sampled_from(UNUSUAL).map(lambda frame: frame + produce(b"not to be taken")),
    already=st.integers(0, 40),
    steps=st.lists(st.integers(20, 700), min_size=1),
)
def test_nothing_of_the_stream_is_lost_or_taken_twice(
    batches: list[bytes], behind: bytes, already: int, steps: list[int]
) -> None:
    frames = [produce(batch, 70_000 + number) for number, batch in enumerate(batches)]
    stream = b"".join(frames) + behind
    first = stream[: min(already, len(frames[0]) - 1 if frames else 0)]
    with desk(first) as made:
        taken: list[bytes] = []
        rest = stream[len(first) :]
        for step in steps * (len(rest) + 1):
            made.client.send(rest[:step]) if rest else None
            rest = rest[step:]
            appends = made.turns()
            taken += made.batches(appends)
            made.answer(appends)
            if not rest:
                break
        assert made.replies() == [70_000 + number for number in range(len(taken))]
        made.handoffs.recall()
        made.handoffs.give_back()
        unsent, left = made.given_back()
        assert made.woken and unsent == b"" and not made.handoffs
        assert taken == batches[: len(taken)]
        assert left + received(made.server) == b"".join(frames[len(taken) :]) + behind
        assert len(taken) == len(batches) or behind.startswith(TOO_LARGE)  # what comes with that is not taken at all


def test_the_worker_is_told_how_many_bytes_a_connection_moves() -> None:
    with desk() as made:
        told = []
        for number, frame in enumerate((produce(b"one"), produce(b"and two"))):
            made.client.send(frame)
            made.answer(made.turns())
            made.handoffs.give_back_quiet(number * CHECK_MS + CHECK_MS)
            told += [row for message, _ in made.worker.receive(FROM_WRITER) for row in getattr(message, "rows", ())]
        replied = len(received(made.client))
        assert [row[:2] for row in told] == [(TOKEN, len(produce(b"one"))), (TOKEN, len(produce(b"and two")))]
        assert sum(row[2] for row in told) == replied
        made.client.send(produce(b"x"))
        made.answer(made.turns())
        made.handoffs.give_back()  # the second check has found that it brings few requests
        ((row, *_),) = [message.rows for message, _ in made.worker.receive(FROM_WRITER) if isinstance(message, Carried)]
        assert row == (TOKEN, 0, 0), "it has not been read any more"


def test_it_is_kept_until_all_is_answered() -> None:
    with desk(acks=-1) as made:
        made.client.send(produce(b"one", 70_001, acks=-1) + produce(b"two", 70_002, acks=-1) + UNUSUAL[0])
        taken = made.turns()
        made.handoffs.give_back()
        assert made.handoffs and not made.woken
        made.answer(taken)
        assert made.woken and made.replies() == [70_001, 70_002]
        made.handoffs.give_back()
        assert made.given_back() == (b"", UNUSUAL[0])


def test_it_is_not_read_while_too_much_is_unanswered() -> None:
    """And the bytes that it has brought are not stored over: they are written before the next turn."""
    with desk(acks=-1) as made:
        frame = produce(b"one", acks=-1)
        made.client.send(frame * (REQUESTS_MAX + 1))
        first = made.turns()
        made.client.send(frame)
        assert made.turns() == []
        made.answer(first)
        assert made.batches(made.turns()) == [b"one"]


def test_what_a_client_does_not_read_is_for_the_worker_to_send() -> None:
    with desk() as made:
        made.server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        count = 0
        while not made.woken:
            made.client.send(produce(b"one", 70_000 + count))
            made.answer(made.turns())
            count += 1
        made.handoffs.give_back()
        unsent, left = made.given_back()
        assert unsent and left == b""
        made.server.setblocking(True)
        answered = memoryview(received(made.client) + unsent)
        assert len(split(answered, 0, len(answered), 1 << 20)[0]) == count


def test_the_end_of_the_stream_and_silence_give_it_back() -> None:
    with desk() as made:
        made.client.shutdown(socket.SHUT_WR)
        assert made.turns() == []
        made.handoffs.give_back()
        assert made.given_back() == (b"", b"")
    with desk() as made:
        for sweep, turns in enumerate((0, TURNS_TO_KEEP, TURNS_TO_KEEP - 1), 1):
            assert not made.woken
            for _ in range(turns):
                made.client.send(produce(b"one"))
                made.answer(made.turns())
            made.handoffs.give_back_quiet(sweep * CHECK_MS)
        made.handoffs.give_back()
        assert made.given_back() == (b"", b"")


def test_the_answers_of_a_lost_worker_go_nowhere() -> None:
    with desk(acks=-1) as made:
        made.client.send(produce(b"one", acks=-1))
        taken = made.turns()
        with made.handoffs.lock:
            made.handoffs.lose(made.link)
        made.answer(taken)
        made.handoffs.give_back()
        assert not made.handoffs and made.worker.receive(FROM_WRITER) == []


def test_a_request_that_names_the_topic_by_its_id_is_taken(tmp_path: Path) -> None:
    """One that names another id brings the connection back: the topic may have been deleted and made again."""
    own, other = uuid4(), uuid4()
    claim(tmp_path / "t-0", own.hex)

    def request(topic_id: UUID) -> bytes:
        topic = {"topic_id": topic_id, "partition_data": [{"index": 0, "records": b"batch"}]}
        values = {"transactional_id": None, "acks": 1, "timeout_ms": 1_000, "topic_data": [topic]}
        frame = request_frame(PRODUCE, 13, values)
        return len(frame).to_bytes(4, "big") + frame

    with desk(protocol="kafka", directory=tmp_path / "t-0") as made:
        made.client.sendall(request(own) + request(own) + request(other))
        taken = made.turns()
        assert made.batches(taken) == [b"batch", b"batch"]
        made.answer(taken)
        made.handoffs.give_back()
        assert made.given_back() == (b"", request(other))
