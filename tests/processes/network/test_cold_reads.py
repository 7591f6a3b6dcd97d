"""appliance.processes.network.cold_reads: what is not in memory is brought by threads, and nobody waits for it."""

from __future__ import annotations

import errno
import itertools
import os
import select
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from appliance.config import NetworkSection
from appliance.log.page_cache import Brought, FileToOpen, LogFile
from appliance.processes.connection import JOINED_BYTES_MAX, Lifetime
from appliance.processes.network import cold_reads
from appliance.processes.network import turn as turns
from appliance.processes.network.cold_reads import READ_BYTES_MIN, STRETCH_BYTES, ColdRead, ColdReads, read_stretch
from appliance.processes.network.connections import Connections
from appliance.processes.network.inbox import Buffers
from appliance.processes.network.turn import Turn
from appliance.processes.network.worker_connection import WorkerConnection
from appliance.records.batch import walk
from appliance.records.encode import encode_values
from appliance.wire import native
from appliance.wire.requests import FileRange

from ...support.certificates import make_certificates
from ...support.cold_files import drop, read_bytes
from ...support.native_peer import Peer
from ...support.server import Server
from ...wire.test_transport import Pair
from .test_sending import Plain, connection

SIZE = 3 * STRETCH_BYTES
DATA = os.urandom(SIZE)
BODY_AT = 61
"""Where the records of a batch begin, which nobody changes."""
PROBED_BYTES_MAX = 4 * 4096
"""What the kernel may begin to read where a read that is tried fails (``page_cache.TRUSTED``)."""
FAULT = OSError(errno.EIO, "the disk fails")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.write_bytes(DATA)
    return path


def cold(path: Path) -> LogFile:
    drop([path])
    file = LogFile(path)
    file.do_not_wait()
    return file


# ---- the queue


class Play:
    """One order of what readers, threads and the loop do.  Readers a and b ask for one, and for two stretches."""

    def __init__(self, file: LogFile) -> None:
        self.reads = ColdReads(threads_max=0)
        self._file = file
        self._connections = {"a": Lifetime(), "b": Lifetime()}
        self._reading: list[tuple[ColdRead, FileRange]] = []
        self.asked: Counter[str] = Counter()
        self.called: Counter[str] = Counter()
        self.forgotten: set[str] = set()

    def possible(self) -> Iterator[Callable[[], None]]:
        for reader in "ab":
            if not self.asked[reader]:
                yield lambda reader=reader: self.ask(reader)  # type: ignore[misc]
            elif reader not in self.forgotten:
                yield lambda reader=reader: self.forget(reader)  # type: ignore[misc]
        if self.reads._queue and len(self._reading) < 2:
            yield self.take
        for number in range(len(self._reading)):
            yield lambda number=number: self.put(number, None)  # type: ignore[misc]
        if len(self._reading) == 1:
            yield lambda: self.put(0, FAULT)
        if self.reads._brought:
            yield self.turn

    def ask(self, reader: str) -> None:
        self.asked[reader] += 1
        stretches = [FileRange(self._file, 0, STRETCH_BYTES * (1 if reader == "a" else 2))]
        self.reads.bring(reader, self._connections[reader], stretches, lambda: self.called.update(reader))

    def forget(self, reader: str) -> None:
        self.forgotten.add(reader)
        self._connections[reader].end()

    def take(self) -> None:
        asked, stretch = self.reads.take_stretch()
        assert asked.reader not in self.forgotten and stretch.count == STRETCH_BYTES
        self._reading.append((asked, stretch))

    def put(self, number: int, fault: OSError | None) -> None:
        asked, stretch = self._reading.pop(number)
        start, stop = stretch.position, stretch.position + (stretch.count if fault is None else 0)
        self.reads.put(asked, self._file, Brought(start, stop, stop, fault))
        if asked in self.reads._queue:
            assert list(self.reads._queue)[-1] is asked, "who has more waits behind the others"

    def turn(self) -> None:
        before = set(self.called)
        self.reads.on_event()
        assert not {reader for reader in set(self.called) - before if reader in self.forgotten}
        self.reads.end_turn()
        assert self._file.memory is not None and self._file.memory.brought == (0, 0)

    def end(self) -> None:
        """All that is left is done: whoever has asked, and was not forgotten, is called, once."""
        while self._reading:
            self.put(0, None)
        while self.reads._queue:
            self.take()
            self.put(0, None)
        if self.reads._brought:
            self.turn()
        wanted = set(self.asked) - self.forgotten
        assert {reader for reader in self.called if reader in wanted} == wanted
        assert set(self.called.values()) <= {1} and not self.reads.waiting
        os.close(self.reads.fd)


def test_in_every_order_a_reader_is_called_once_unless_it_is_forgotten(path: Path) -> None:
    """Method: all orders of so many steps; then whatever is left is done."""
    file, steps, orders = cold(path), 9, 0
    todo: list[list[int]] = [[]]
    while todo:
        choices = todo.pop()
        play = Play(file)
        for choice in choices:
            list(play.possible())[choice]()
        if len(choices) < steps:
            todo += [[*choices, number] for number in range(len(list(play.possible())))]
        play.end()
        orders += 1
    assert orders > 5_000


def test_threads_read_what_is_asked_and_begin_what_follows(path: Path) -> None:
    file, reads, called = cold(path), ColdReads(), []
    assert file.memory is not None
    reads.bring("a", Lifetime(), [FileRange(file, 100, 61)], lambda: called.append(file.sendable_bytes(100, SIZE)))
    assert select.select([reads.fd], [], [], 60)[0]
    reads.on_event()
    assert called == [READ_BYTES_MIN] and not reads.waiting
    assert not file.sendable_bytes(100 + READ_BYTES_MIN, 1), "it is on its way"
    reads.end_turn()
    assert file.read(61, 100) == DATA[100:161]


def test_a_stretch_is_read_up_to_its_fault_or_the_end_of_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, buffer = cold(path), memoryview(bytearray(STRETCH_BYTES))
    beyond = FileRange(file, SIZE - 100, STRETCH_BYTES)
    assert read_stretch(beyond, buffer) == (SIZE - 100, SIZE, SIZE, None)
    assert read_stretch(FileRange(file, 0, 1000), buffer) == (0, 1000, 3000, None)
    assert read_stretch(FileRange(file, SIZE - 3000, 1000), buffer) == (SIZE - 3000, SIZE - 2000, SIZE, None)
    preadv = os.preadv

    def failing(fd: int, buffers: list[Any], position: int) -> int:
        if position >= 8192:
            raise FAULT
        return preadv(fd, [buffers[0][: 8192 - position]], position)

    monkeypatch.setattr(cold_reads.os, "preadv", failing)
    assert read_stretch(FileRange(file, 100, 20_000), buffer) == (100, 8192, 8192, FAULT)


# ---- a connection that sends


class Sender:
    """A connection of a worker, and its client.  ``step`` plays one turn of the loop, without threads."""

    def __init__(self, certificates: Path | None, file: LogFile) -> None:
        self.pair: Any = Plain() if certificates is None else Pair(certificates, ssl.TLSVersion.TLSv1_3)
        if certificates is not None:
            self.pair.connect()
        self.epoll, self.turn, self.reads = select.epoll(), Turn(), ColdReads(threads_max=0)
        buffers = Buffers(memoryview(bytearray(1 << 16)), 1 << 16)
        self.unreadable: list[FileRange] = []
        self.connections = Connections(
            *(self.turn, self.epoll, buffers, NetworkSection(), self.reads),
            handlers={},
            throttle=lambda _, reply: reply,
            on_unreadable=self.unreadable.append,
        )
        self.connection: WorkerConnection = connection(self.pair.transport)
        self.connections.add_connection(self.connection)
        self.file, self.got = file, b""

    def step(self) -> None:
        """Handle what epoll reports, as the worker does."""
        self.turn.begin()
        for _, event in self.epoll.poll(0):
            assert event & select.EPOLLOUT
            self.connection.blocked = False
            self.connections.touched[self.connection] = None
        self.connections.advance_touched()
        self.reads.end_turn()
        self.turn.end()
        self.pair.to_client(1 << 16)
        self.got += self.pair.read()

    def put(self, *pieces: bytes | FileRange) -> None:
        for piece in pieces:
            self.connection.put(piece)
        self.connections.touched[self.connection] = None

    def bring(self, fault: OSError | None = None) -> None:
        """A thread reads what is asked for, and the loop notices."""
        asked, stretch = self.reads.take_stretch()
        if fault is None:
            brought = read_stretch(stretch, memoryview(bytearray(STRETCH_BYTES)))
        else:  # nothing is read: what is in memory would be sent
            brought = Brought(stretch.position, stretch.position, stretch.position, fault)
        self.reads.put(asked, stretch.file, brought)
        self.reads.on_event()

    def drain(self) -> None:
        """The client takes what was sent."""
        for _ in range(100):
            self.step()

    def close(self) -> None:
        self.pair.close()
        self.epoll.close()
        os.close(self.reads.fd)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    make_certificates(directory, "ca")
    make_certificates(directory, "server", "localhost")
    return directory


@pytest.fixture(params=["plain", "TLS"])
def sender(path: Path, certificates: Path, request: pytest.FixtureRequest) -> Iterator[Sender]:
    one = Sender(certificates if request.param == "TLS" else None, cold(path))
    yield one
    one.close()


@pytest.mark.parametrize("size", [JOINED_BYTES_MAX // 2, SIZE - 1000])
def test_a_reply_waits_for_the_disk_and_what_was_before_it_does_not(sender: Sender, size: int) -> None:
    """Goal: an acknowledgement is not held back with the header of a reply whose bytes are not there, nor does the
    loop turn while it waits for them.
    """
    sender.put(b"acknowledged", b"header", FileRange(sender.file, 1000, size), b"next")
    sender.step()
    sender.step()
    assert sender.got == b"acknowledged" + b"header"
    assert sender.connection.cold is not None and not sender.connection.events & select.EPOLLOUT
    brought = 0
    while sender.connection.out:
        if sender.connection.cold is not None:
            before = sender.connection.active_ms
            sender.bring()
            brought += 1
            assert sender.connection.active_ms >= before
        sender.step()
    sender.drain()
    assert sender.got == b"acknowledgedheader" + DATA[1000 : 1000 + size] + b"next"
    assert 1 <= brought <= 4 and not sender.reads.waiting


def test_what_is_in_memory_is_looked_for_once_while_a_client_takes_it(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And again when the client has taken its time: the kernel may have dropped it."""
    os.pread(sender.file.fd, SIZE, 0)
    looks: list[int] = []
    sendable_bytes = LogFile.sendable_bytes

    def counted(file: LogFile, position: int, count: int) -> int:
        looks.append(position)
        return sendable_bytes(file, position, count)

    monkeypatch.setattr(LogFile, "sendable_bytes", counted)
    now_ms = itertools.count(10_000_000, 1)
    monkeypatch.setattr(turns, "now_ns", lambda: next(now_ms) * 1_000_000)
    sender.turn.begin()
    sender.put(b"header", FileRange(sender.file, 0, 1 << 20), FileRange(sender.file, 100, 1 << 20))
    for _ in range(10):
        sender.step()
    assert sender.connection.out and looks == [0]
    monkeypatch.setattr(turns, "now_ns", lambda: 2 * 10_000_000 * 1_000_000)
    sender.step()
    assert len(looks) == 2
    while sender.connection.out:
        sender.step()
    sender.drain()
    assert sender.got == b"header" + DATA[: 1 << 20] + DATA[100 : 100 + (1 << 20)]


def test_a_disk_that_fails_ends_the_connection_and_is_told_of(sender: Sender) -> None:
    reply = FileRange(sender.file, 0, SIZE)
    sender.put(b"header", reply)
    sender.step()
    sender.bring(FAULT)
    sender.step()
    assert sender.connection.closed and sender.unreadable == [reply]


def test_nothing_comes_of_what_a_closed_connection_has_asked_for(sender: Sender) -> None:
    """Before a thread takes it, while it reads, and when it has read."""
    sender.put(FileRange(sender.file, 0, SIZE))
    sender.step()
    asked, stretch = sender.reads.take_stretch()
    sender.connections.close(sender.connection)
    assert not sender.reads.waiting
    sender.reads.put(asked, stretch.file, Brought(0, STRETCH_BYTES, STRETCH_BYTES, None))
    sender.reads.on_event()
    assert not sender.connections.touched and not sender.reads._queue


def test_a_segment_that_is_removed_meanwhile_is_sent(sender: Sender, path: Path) -> None:
    sender.put(FileRange(sender.file, 0, STRETCH_BYTES))
    sender.step()
    path.unlink()
    sender.file = None  # type: ignore[assignment]
    sender.bring()
    while sender.connection.out:
        sender.step()
    sender.drain()
    assert sender.got == DATA[:STRETCH_BYTES]


def test_the_names_of_a_file_are_looked_up_by_a_thread(tmp_path: Path) -> None:
    """Goal: a reader whose file is not open is called when it can be opened, or when it cannot."""
    there, missing = FileToOpen(tmp_path / "there"), FileToOpen(tmp_path / "missing")
    (tmp_path / "there").touch()
    reads, connection, called = ColdReads(), Lifetime(), list[FileToOpen]()
    for to_open in (there, missing):
        reads.bring(to_open, connection, [FileRange(to_open, 0, 0)], partial(called.append, to_open))
    while len(called) < 2:
        assert select.select([reads.fd], [], [], 60)[0]
        reads.on_event()
    assert there.tried and missing.tried and not reads.waiting


def test_a_file_that_is_too_short_ends_the_connection(sender: Sender) -> None:
    sender.put(FileRange(sender.file, SIZE - 100, JOINED_BYTES_MAX + 1))
    for _ in range(4):
        if sender.connection.cold is not None:
            sender.bring()
        if not sender.connection.closed:
            sender.step()
    assert sender.connection.closed and len(sender.unreadable) == 1


# ---- a worker


def test_the_loop_of_a_worker_reads_nothing_from_the_disk(make_appliance: Callable[..., Server]) -> None:
    """Goal: fetches of any size and look-ups by time get all that there is, and only threads have waited for it."""
    server = make_appliance(**{"network.workers": 1, "topics.segment.bytes": 4 << 20})
    batches = [encode_values([os.urandom(1_000) for _ in range(300)], 1_000 + number) for number in range(40)]
    bodies = [one[BODY_AT:] for one in batches]
    with Peer(server.native) as peer, Peer(server.native) as other:
        peer.create("t")
        ends = [peer.produce("t", one, acks=-1)[2] for one in batches]
        pid = server.pid_of("network")
        for bytes_max in (50_000, 1 << 20, 1 << 26):
            drop(server.data_dir.glob("t-0/*.*"))
            before = read_bytes(pid, pid)
            offset, got = 0, b""
            while offset < ends[-1]:
                (error, _, _, size), data = peer.fetch("t", offset, bytes_max=bytes_max)
                assert error == 0 and size, "it has the bytes, whenever they come"
                offset, got = offset + size, got + data
            assert [got[at + BODY_AT : at + size] for at, size, _ in walk(memoryview(got), 0, len(got))] == bodies
            assert read_bytes(pid, pid) - before <= PROBED_BYTES_MAX
        drop(server.data_dir.glob("t-0/*.*"))
        before = read_bytes(pid, pid)
        for number in (0, 17, 39):
            header, _ = other.call([native.OFFSETS, 4, [["t", 0, 1_000 + number, -1]]])
            assert header[2][0][:2] == [0, ends[number] - 300]
        assert read_bytes(pid, pid) - before <= PROBED_BYTES_MAX
        threads = [int(one.name) for one in Path(f"/proc/{pid}/task").iterdir()]
        assert sum(read_bytes(pid, thread) for thread in threads if thread != pid) > 3 * len(b"".join(batches)) // 2
