"""appliance.processes.handoff: interleavings of worker, writers and client around a handoff, with either side dying.

A real worker and two real writers run as processes that do one turn of their loop when they are told to; the test is
their supervisor and their client.  A schedule is a word over the steps of :func:`run`; every word of a length is run.

What must hold for each, whoever has the connection at its end: requests are stored in the order in which they were
sent, each once, in the topic that they name; what was answered is stored; replies come in the order of requests, and
none is missing unless somebody died; one process at most holds the connection.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import os
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from appliance.addresses import PLAINTEXT, Listener
from appliance.clock import wall_ms
from appliance.config import Config, NetworkSection, TopicSettings
from appliance.log import Log
from appliance.names import TopicPartition
from appliance.processes import network
from appliance.processes.control import Channel
from appliance.processes.messages import TO_SUPERVISOR, PartitionTable, SecurityPublished, WorkerChannel, WriterChannel
from appliance.processes.network import worker_connection
from appliance.processes.network.worker import NetworkWorker
from appliance.processes.writer.writer import Writer, WriterArguments, open_log
from appliance.records.decode import decode_values
from appliance.records.encode import encode_values
from appliance.security.security_state import SecurityState, pack
from appliance.shared import memory
from appliance.shared.doorbell import MarkedDoorbell
from appliance.shared.table import SEGMENTS_MAX, TABLE_BYTES, SegmentTable
from appliance.wire import native
from appliance.wire.frames import split

from ..support.long import LONG, chosen_size
from ..support.sockets import open_files, tcp_sockets

CONFIG: Final = Config(network=NetworkSection(arena_bytes=1 << 20, frame_bytes_max=1 << 18))
SETTINGS: Final = {"flush.messages": "0"}
X, Y, WORKER = "x", "y", "w"
ROUNDS_MAX: Final = 200
LENGTH: Final = chosen_size("INTERLEAVING_STEPS", 4, 5)
"""Of the words; those in which somebody dies have two steps fewer beside the death."""


class Stepped(NamedTuple):
    """A process that does a turn for every byte it is sent, and says so; and its control channel."""

    pid: int
    steps: socket.socket
    control: Channel

    def turn(self) -> None:
        self.steps.send(b"t")
        assert self.steps.recv(1) == b"."
        self.control.receive(TO_SUPERVISOR)  # what it tells its supervisor

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.steps.close()
        self.control.close()


def start(make: Callable[[Channel], Callable[[], None]], keep: Sequence[int] = ()) -> Stepped:
    """Fork a process; ``make`` returns its turn.  It keeps no descriptor but its own and ``keep``."""
    ours, theirs = socket.socketpair()
    control, its_control = Channel.pair()
    pid = os.fork()
    if pid == 0:
        try:
            gc.freeze()  # what is garbage here must not close descriptors that have got a new owner
            kept = {0, 1, 2, theirs.fileno(), its_control.fileno(), *keep}
            for fd in [int(name) for name in os.listdir("/proc/self/fd")]:  # noqa: PTH208
                if fd not in kept:
                    with contextlib.suppress(OSError):
                        os.close(fd)
            # pytest's stream and the file of its log had such descriptors, whose numbers tables may have from here on.
            sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
            logging.getLogger().handlers.clear()
            turn = make(its_control)
            theirs.send(b".")
            while theirs.recv(1):
                turn()
                theirs.send(b".")
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(1)
    theirs.close()
    its_control.close()
    assert ours.recv(1) == b"."
    return Stepped(pid, ours, control)


class Bench:
    """One worker, a writer for each topic, and what was sent and answered in all schedules."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._instance = f"test{os.getpid()}"
        self._tables = {topic: memory.create(self._instance, topic, TABLE_BYTES)[0] for topic in (X, Y)}
        self._doorbell = MarkedDoorbell()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.processes: dict[str, Stepped] = {}
        for topic in (X, Y):
            self._start_writer(topic)
        self._start_worker()
        self.sent: dict[str, list[bytes]] = {X: [], Y: []}
        self.acknowledged: dict[str, set[bytes]] = {X: set(), Y: set()}
        self.number = self.handed_over = 0
        self.least = 0.0
        """How many connections must have been handed over: half of those that were to be before their script begins."""

    def restart(self, what: str) -> None:
        """Kill a process, and put another in its place, as the supervisor does."""
        self.processes.pop(what).kill()
        if what == WORKER:
            self._start_worker()
        else:
            self._start_writer(what)
            self._connect(what)

    def _start_worker(self) -> None:
        self._arena, mapped = memory.create(self._instance, "arena", CONFIG.network.arena_bytes)
        mapped.close()
        listeners = [(Listener("native", PLAINTEXT, ""), self.listener)]
        known = [SecurityPublished(pack(SecurityState()))]  # without it, nothing starts
        arguments = network.WorkerArguments(
            *(CONFIG, self.path, 0, self._arena, listeners, self._doorbell, None), snapshot=known
        )

        def make(control: Channel) -> Callable[[], None]:
            worker = NetworkWorker(arguments, control)
            return lambda: worker.turn(0)

        worker = self.processes[WORKER] = start(make, (self.listener.fileno(), self._doorbell.fd))
        for topic, table in self._tables.items():
            worker.control.send(PartitionTable(TopicPartition(topic, 0), table))
            self._connect(topic)

    def _start_writer(self, topic: str) -> None:
        arguments = WriterArguments(CONFIG, self.path, topic, 0, SETTINGS, self._tables[topic], [self._doorbell])
        if not arguments.path.exists():  # as the opener does
            Log.open(arguments.path, arguments.topic_settings, lambda: 0).close()

        def make(control: Channel) -> Callable[[], None]:
            table = SegmentTable(memoryview(memory.attach(arguments.table_name)).cast("Q"))
            writer = Writer(arguments, control, table, open_log(arguments))
            writer.publish()
            return lambda: writer.turn(0)

        self.processes[topic] = start(make, (self._doorbell.fd,))

    def _connect(self, topic: str) -> None:
        left, right = Channel.pair()
        self.processes[WORKER].control.send(WriterChannel(TopicPartition(topic, 0)), (left.fileno(),))
        self.processes[topic].control.send(WorkerChannel(self._arena), (right.fileno(),))
        left.close()
        right.close()

    def everybody(self) -> None:
        for process in self.processes.values():
            process.turn()

    def holders(self, sock: socket.socket, *names: str) -> int:
        """How many of the processes, all or those with these names, hold the other end of a client's connection."""
        port = sock.getsockname()[1]
        ends = {each.file for each in tcp_sockets() if each.peer_port == port}
        pids = [self.processes[name].pid for name in names or self.processes]
        return sum(file in ends for pid in pids for file in open_files(pid))

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
        self.listener.close()
        memory.unlink_all(self._instance)


class Client:
    """A connection that sends a script piece by piece, and knows what each of its requests is to be answered."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.sock = socket.create_connection(bench.listener.getsockname())
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.expected: list[tuple[int, str, bytes, int]] = []
        """Correlation, topic, the value that is then acknowledged, and how many this client has sent to the topic by
        then; a question about the end of a topic has no value."""
        self._sent = {X: 0, Y: 0}
        self.replies: list[list[Any]] = []
        self.hung_up = self.left = False
        """``left``: no worker had it when it settled."""
        self._received = b""
        self._count = 0
        self.pieces: list[bytes] = []
        self.sock.sendall(native.encode_frame([native.HELLO, 0, native.MAGIC, native.VERSION, "test"]))
        self.expected.append((0, "", b"", 0))

    def produce(self, topic: str, acks: int = 1) -> bytes:
        bench = self.bench
        value = b"%s %d %d" % (topic.encode(), bench.number, self._count)
        correlation = 70_000 + self._count
        self._count += 1
        bench.sent[topic].append(value)
        self._sent[topic] += 1
        if acks:
            self.expected.append((correlation, topic, value, self._sent[topic]))
        batch = encode_values([value], 1_000)
        return native.encode_frame([native.PRODUCE, correlation, topic, 0, acks, 10_000], len(batch)) + batch

    def ask(self, topic: str) -> bytes:
        """A question about the end of a topic, which everything before must have reached."""
        correlation = 70_000 + self._count
        self._count += 1
        self.expected.append((correlation, topic, b"", self._sent[topic]))
        return native.encode_frame([native.OFFSETS, correlation, [[topic, 0, -1, -1]]])

    def send_piece(self) -> None:
        if self.pieces and not self.hung_up:
            with contextlib.suppress(OSError):
                self.sock.sendall(self.pieces.pop(0))

    def listen(self) -> None:
        try:
            data = self.sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.hung_up = self.hung_up or not data
        received = memoryview(self._received + data)
        frames, parsed = split(received, 0, len(received), 1 << 20)
        self.replies += [native.decode_header(received[first:last])[0] for first, last in frames]
        self._received = bytes(received[parsed:])

    def settle(self) -> None:
        """Let everybody run until all is answered, or the connection has ended."""
        for _ in range(ROUNDS_MAX):
            self.send_piece()
            self.bench.everybody()
            self.left = self.left or not self.bench.holders(self.sock, WORKER)
            self.listen()
            if self.hung_up or (not self.pieces and len(self.replies) == len(self.expected)):
                return
        raise AssertionError(f"{len(self.replies)} of {len(self.expected)} replies after {ROUNDS_MAX} rounds")

    def check(self, died: bool) -> None:
        assert died or not self.hung_up
        ends, records = {X: 0, Y: 0}, {X: -1, Y: -1}
        for reply, (correlation, topic, value, count) in zip(self.replies, self.expected, strict=False):
            assert reply[0] == correlation, "replies are out of order"
            if not topic:
                continue
            assert died or reply[1] == 0, reply
            if value and not reply[1]:
                self.bench.acknowledged[topic].add(value)
                assert reply[3] > ends[topic]
                ends[topic] = reply[3]
            elif not value and not reply[2][0][0]:
                _, end, _, before_end = reply[2][0]
                assert end >= ends[topic], "an end is below what was acknowledged before"
                if records[topic] < 0:
                    records[topic] = before_end - count
                assert died or before_end - count == records[topic], "what was sent before has not taken effect"

    def close(self) -> None:
        self.sock.close()


def usual(client: Client) -> list[bytes]:
    """Requests for one topic, one of them in two halves, then something else, then more of them."""
    first, second = client.produce(X), client.produce(X)
    return [
        first,
        second[:20],
        second[20:] + client.produce(X),
        client.ask(X),
        client.produce(X) + client.produce(X),
    ]


def mixed(client: Client) -> list[bytes]:
    """acks=0 to another topic, whose writer may be slow, before and while the connection is worth handing over."""
    return [
        client.produce(Y, acks=0) + client.produce(X),
        client.produce(X),
        client.produce(Y, acks=0) + client.ask(Y),
        client.produce(X) + client.produce(X, acks=0),
        client.ask(X),
    ]


def silent(client: Client) -> list[bytes]:
    """acks=0 throughout, one of them in two halves, and questions that must not overtake them."""
    first, second = client.produce(X, acks=0), client.produce(X, acks=0)
    return [
        first + second[:20],
        second[20:] + client.produce(X, acks=0),
        client.produce(X, acks=0) + client.ask(X),
        client.produce(X, acks=0) + client.produce(Y, acks=0),
        client.ask(X) + client.ask(Y),
    ]


def elsewhere(client: Client) -> list[bytes]:
    """A new connection: acks=0 to another topic too, in one piece, at the time when it would leave."""
    return [
        client.produce(X, acks=0),
        client.produce(X, acks=0) + client.produce(Y, acks=0),
        b"",
        b"",  # a pause, after which nothing else is outstanding
        client.produce(X, acks=0),
        client.produce(X, acks=0),
        b"",
        client.produce(X, acks=0) + client.produce(X, acks=0),
        client.ask(X) + client.ask(Y),
    ]


def busy(client: Client) -> list[bytes]:
    """A new connection with something in flight at any time: it is not read until all is answered, and leaves."""
    first, second, third, fourth = [client.produce(X, acks=-1) for _ in range(4)]
    return [
        first,
        second + third + fourth[:20],
        fourth[20:] + client.produce(X, acks=-1),
        client.ask(X) + client.produce(X, acks=-1),
    ]


NEW: Final = (elsewhere, busy)
"""Scripts of connections that have not been handed over when they begin."""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(worker_connection, "TURNS_TO_HAND_OVER", 2)
    made = Bench(tmp_path)
    try:
        yield made
        check_logs(made)
    finally:
        made.close()


def run(bench: Bench, script: Callable[[Client], list[bytes]], word: Sequence[str]) -> None:
    """One schedule.  "c": the client sends a piece; a process does a turn, or in capitals dies and is replaced."""
    bench.number += 1
    client = Client(bench)
    acks = 0 if script is silent else 1
    client.pieces = [client.ask(X) + client.ask(Y)]
    if script not in NEW:
        client.pieces += [client.produce(X, acks), client.produce(X, acks)]  # then it is worth it
    client.settle()
    if not acks:  # nobody said that it has arrived
        bench.everybody()
        bench.everybody()
    assert not client.hung_up
    if script not in NEW:
        client.left = not bench.holders(client.sock, WORKER)  # it is on its way to the writer
    client.pieces = script(client)
    died = False
    for step in word:
        if step == "c":
            client.send_piece()
        elif step.isupper():
            bench.restart(step.lower())
            died = True
        else:
            bench.processes[step].turn()
    assert bench.holders(client.sock) <= 1
    client.settle()
    client.check(died)
    bench.handed_over += client.left
    bench.least += 0.5 * (script not in NEW)
    client.close()
    bench.everybody()
    bench.everybody()


def check_logs(bench: Bench) -> None:
    """What is in the logs: see the head of this module."""
    assert bench.handed_over > bench.least, "hardly any connection was handed over"
    while bench.processes:
        bench.processes.popitem()[1].kill()
    for topic in (X, Y):
        values = stored(bench.path / f"{topic}-0")
        assert len(values) == len(set(values)), "stored twice"
        assert bench.acknowledged[topic] <= set(values), "acknowledged, not stored"
        order = {value: index for index, value in enumerate(bench.sent[topic])}
        by_schedule: dict[bytes, list[int]] = {}
        for value in values:
            by_schedule.setdefault(value.split()[1], []).append(order[value])
        assert all(indices == sorted(indices) for indices in by_schedule.values()), "stored in another order"


def stored(path: Path) -> list[bytes]:
    log = Log.open(path, TopicSettings(), wall_ms, SEGMENTS_MAX)
    log.close(clean=True)
    values: list[bytes] = []
    for file in sorted(path.glob("*.log")):
        data = file.read_bytes()
        at = 0
        while at < len(data):
            size = 12 + struct.unpack_from(">i", data, at + 8)[0]
            values += [value or b"" for value in decode_values(data[at : at + size], 0)[0]]
            at += size
    return values


@pytest.mark.parametrize("script", [usual, mixed, silent, elsewhere, busy])
def test_every_interleaving(bench: Bench, script: Callable[[Client], list[bytes]]) -> None:
    for word in itertools.product("cwx", repeat=LENGTH):
        run(bench, script, word)


@pytest.mark.parametrize("dies", ["W", "X", "Y"])
@pytest.mark.parametrize("script", [usual, mixed, silent, elsewhere, busy])
def test_every_interleaving_in_which_somebody_dies(
    bench: Bench, script: Callable[[Client], list[bytes]], dies: str
) -> None:
    words = [
        ["c", *word[:at], dies, *word[at:]]
        for word in itertools.product("cwx", repeat=LENGTH - 2)
        for at in range(1, LENGTH - 1)
    ]
    for word in words if LONG else words[len(script.__name__) % 3 :: 3]:
        run(bench, script, word)
