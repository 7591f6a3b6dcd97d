"""Runs a coordinator in a forked process; the test acts as its supervisor and its network worker.

The test's supervisor answers orders as the real one does, out of a model: a table in shared memory per
partition.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from appliance.addresses import PLAINTEXT, Listener
from appliance.catalog import Catalog
from appliance.config import Config
from appliance.log.partition_directory import directory_of, give, set_aside
from appliance.names import TopicPartition
from appliance.partition_states import ONLINE
from appliance.processes import coordinator
from appliance.processes.control import Channel
from appliance.processes.message_stream import MessageReader, packed
from appliance.processes.messages import (
    FROM_COORDINATOR_STREAM,
    TO_SUPERVISOR,
    ChangeSettings,
    CreatePartitions,
    DeleteBefore,
    DeletePartitions,
    ForwardRequest,
    Listening,
    OrderDone,
    PartitionDropped,
    PartitionOutcome,
    PartitionTable,
    Published,
    RequestAnswered,
    Roll,
    Shown,
    Stop,
    ToSupervisor,
    WorkerStreamOpened,
    ZooKeeperState,
)
from appliance.processes.snapshot import WorkerSnapshot
from appliance.security.principals import Origin
from appliance.shared import memory
from appliance.shared.table import TABLE_BYTES, SegmentTable
from appliance.wire import native

from .ready import reap, writable

LISTENER = "127.0.0.1:9091"
WAIT_S = 60


class Rig:
    """One appliance without its data path.  Use as a context manager; ``pump`` moves everything along."""

    def __init__(self, data_dir: Path, config: Config) -> None:
        self.data_dir, self.config = data_dir, config
        self.instance = memory.instance_of(data_dir) + f".{os.getpid()}"
        self.tables: dict[tuple[str, int], SegmentTable] = {}
        self.settings: dict[tuple[str, int], dict[str, str]] = {}
        self.ids: set[str] = set()
        self.deleted: list[tuple[str, int]] = []
        self.cuts: list[tuple[str, int, int]] = []
        self.rolls: list[tuple[str, int]] = []
        self.zookeeper: dict[str, str] = {}
        self.shown: dict[str, Any] = {}
        self.refusals: dict[tuple[str, int], tuple[str, str]] = {}
        self.silent = False  # a supervisor that has stopped answering
        self.answers_creations = True  # else partitions are made, and nobody hears of it
        self._names: dict[tuple[str, int], str] = {}
        self._correlation = 0
        self.replies: dict[int, bytes | None] = {}
        self.snapshot = WorkerSnapshot()

    # ---- starting and stopping

    def __enter__(self) -> Rig:
        for topic, partition in Catalog.load(self.data_dir).hosted(self.config.broker.id):
            self._open(topic, partition)
        self.fork()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for name in self._names.values():
            memory.unlink(name)

    def fork(self, listeners: dict[str, str] | None = None) -> None:
        self.channel, child_end = Channel.pair()
        stream, child_stream = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                self.channel.close()
                stream.close()
                coordinator.run(self.config, self.data_dir, self.instance, child_end)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        child_end.close()
        self.stream = stream
        self.stream.setblocking(False)
        self._reader = MessageReader(FROM_COORDINATOR_STREAM, 1 << 26)
        for (topic, partition), name in self._names.items():
            self.channel.send(PartitionTable(TopicPartition(topic, partition), name))
        self.channel.send(WorkerStreamOpened(0), [child_stream.fileno()])
        child_stream.close()
        self.channel.send(Listening(listeners or {"native": LISTENER}))

    def fork_again(self, listeners: dict[str, str]) -> None:
        self.kill()
        self.fork(listeners)

    def stop(self) -> int:
        """Ordered stop; the exit status."""
        if not self.pid:
            return 0
        self.channel.send(Stop())
        deadline = time.monotonic() + WAIT_S
        while self.channel.pending and writable(self.channel, max(0, deadline - time.monotonic())):
            self.channel.flush()
        return self._reap()

    def kill(self) -> None:
        assert self.pid > 0, "0 would be all of us"
        os.kill(self.pid, signal.SIGKILL)
        self._reap()

    def _reap(self) -> int:
        pid, self.pid = self.pid, 0
        try:
            return reap(pid)
        finally:
            self.channel.close()
            self.stream.close()

    # ---- the supervisor's part

    def _open(self, topic: str, partition: int) -> None:
        name, mapped = memory.create(self.instance, f"{topic}-{partition}", TABLE_BYTES)
        table = SegmentTable(memoryview(mapped).cast("Q"))
        table.publish([0], 0, 0, 0)
        table.set_state(ONLINE)
        self.tables[topic, partition], self._names[topic, partition] = table, name
        (self.data_dir / f"{topic}-{partition}").mkdir(exist_ok=True)

    def _on_message(self, message: ToSupervisor) -> None:
        match message:
            case CreatePartitions(token, rows):
                outcomes: list[PartitionOutcome] = []
                for (topic, partition), topic_id, settings, _new in rows:
                    error, text = self.refusals.get((topic, partition), ("", ""))
                    self.ids.add(topic_id)
                    if not error and (topic, partition) not in self.tables:
                        self._open(topic, partition)
                        self.settings[topic, partition] = settings
                        give(directory_of(self.data_dir, topic, partition), topic_id)
                        table = self._names[topic, partition]
                        self.channel.send(PartitionTable(TopicPartition(topic, partition), table))
                    outcomes.append((TopicPartition(topic, partition), error, text))
                if self.answers_creations:
                    self.channel.send(OrderDone(token, outcomes))
            case DeletePartitions(token, partitions, topic_id):
                assert len(topic_id) == 32
                for key in partitions:
                    self.deleted.append(key)
                    set_aside(self.data_dir, *key, topic_id)
                    if self.tables.pop(key, None) is not None:
                        memory.unlink(self._names.pop(key))
                        self.channel.send(PartitionDropped(key))
                self.channel.send(OrderDone(token, [(key, "", "") for key in partitions]))
            case ChangeSettings(partitions, settings):
                self.settings.update(dict.fromkeys(partitions, settings))
            case DeleteBefore((topic, partition), offset):
                self.cuts.append((topic, partition, offset))
            case Roll(key):
                self.rolls.append(key)
            case ZooKeeperState(connect, state):
                self.zookeeper = {"connect": connect, "state": state}
            case Shown(key, value):
                self.shown[key] = value
            case Published():
                pass
            case _:
                raise AssertionError(message)

    def pump(self, timeout_s: float = 0.05) -> None:
        """Take what has arrived from the coordinator, waiting a little for it."""
        sources: list[Any] = [self.stream] if self.silent else [self.channel, self.stream]
        poll = select.poll()  # select() knows no descriptors above 1023
        for source in sources:
            poll.register(source, select.POLLIN)
        if self.channel.pending:
            poll.register(self.channel, select.POLLOUT if self.silent else select.POLLIN | select.POLLOUT)
        ready = {fd for fd, _ in poll.poll(timeout_s * 1000)}
        self.channel.flush()
        if self.channel.fileno() in ready and not self.silent:
            for message, _ in self.channel.receive(TO_SUPERVISOR):
                self._on_message(message)
        if self.stream.fileno() in ready:
            data = self.stream.recv(1 << 20)
            assert data, "the coordinator is gone"
            self._reader.feed(data)
            while (message := self._reader.take_message()) is not None:
                if isinstance(message, RequestAnswered):
                    self.replies[message.token] = message.reply
                else:
                    self.snapshot.apply_change(message)

    def until(self, condition: Any, timeout_s: float = WAIT_S) -> None:
        """Pump until ``condition()`` holds."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "this did not happen in time"
            self.pump()

    # ---- the network worker's part

    def post(self, protocol: str, frame: bytes, listener: str = LISTENER) -> int:
        """Send a frame (without size prefix); the token to look for in ``replies``.

        What comes meanwhile is taken: the coordinator does not read from a worker that does not take its answers.
        """
        self._correlation += 1
        origin = Origin(Listener(protocol, PLAINTEXT, listener), "127.0.0.1:5")
        unsent = memoryview(packed(ForwardRequest(self._correlation, origin, frame)))
        while unsent:
            try:
                unsent = unsent[self.stream.send(unsent) :]
            except BlockingIOError:
                self.pump()
        return self._correlation

    def post_admin(self, verb: str, **arguments: Any) -> int:
        return self.post("native", native.encode_frame([native.ADMIN, 7, verb, arguments])[4:])

    def native(self, api: int, *fields: Any, listener: str = LISTENER) -> list[Any]:
        """The reply header to a native request, from its error on."""
        token = self.post("native", native.encode_frame([api, 7, *fields])[4:], listener)
        return self.result(token)

    def result(self, token: int) -> list[Any]:
        self.until(lambda: token in self.replies)
        reply = self.replies.pop(token)
        assert reply is not None, "the connection was to be closed"
        assert struct.unpack_from(">I", reply)[0] == len(reply) - 4
        header, _ = native.decode_header(memoryview(reply)[4:])
        assert header[0] == 7
        return header[1:]

    def admin(self, verb: str, **arguments: Any) -> Any:
        """The result of a verb that must succeed."""
        code, message, result = self.native(native.ADMIN, verb, arguments)
        assert code == 0, f"{verb}: {code} {message}"
        return result

    def refusal(self, verb: str, **arguments: Any) -> tuple[int, str]:
        """Code and message of a verb that must fail."""
        code, message, result = self.native(native.ADMIN, verb, arguments)
        assert code != 0 and result is None
        return code, message

    def metadata(self, *names: str, listener: str = LISTENER) -> dict[str, Any]:
        error, metadata = self.native(native.METADATA, list(names) or None, listener=listener)
        assert error == 0
        found: dict[str, Any] = metadata
        return found


def pump(rigs: Sequence[Rig], condition: Callable[[], Any], timeout_s: float = WAIT_S) -> None:
    """Move several appliances along until ``condition()`` holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "this did not happen in time"
        for rig in rigs:
            rig.pump(0.01)
