"""The coordinator: the one process that speaks with ZooKeeper, and the one that answers cold requests.

It is one thread around asyncio's epoll loop.  asyncio and not a loop of our own, because nearly every request
here waits for somebody (the supervisor, ZooKeeper, other members of a group) with a deadline, several times
in a row: coroutines keep such a sequence in one readable function, and asyncio brings the flow control of
streams and the wake-up from other threads (kazoo's callbacks only call ``call_soon_threadsafe``, that is:
enqueue and ring).

Around the loop:

* the control channel to the supervisor (messages: see ``supervisor``);
* one stream per network worker.  The worker sends ``[token, door, listener, peer, frame]``, the answer is
  ``[token, reply frame]`` or ``[token, nil]`` (close that connection); ``[token]`` alone says that the
  connection is gone.  A worker that does not take its answers, or has REQUESTS_MAX unanswered, is not read
  any more.  Between the answers it is told what it answers Metadata from (``processes.snapshot``).

Killed, it is forked again: topics come back from the catalog and ZooKeeper, producer ids start a new
generation.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import msgpack
import msgspec

from ...addresses import parse_addresses
from ...catalog import Catalog, Topic
from ...config import Config
from ...errors import ApplianceError, ProtocolFault
from ...groups.group_coordinator import GroupCoordinator
from ...groups.messages import Limits as GroupLimits
from ...kafka_apis.dispatch import KafkaApis
from ...shared.heartbeats import Heart, alone
from ...wire.bounds import Limits
from ...wire.kafka import forwarded
from ...zookeeper.paths import BrokerInfo
from ...zookeeper.session import State
from ..child import give_back_memory
from ..control import Channel
from ..snapshot import SNAPSHOT, Facts, Publisher
from .admin import NativeDoor
from .cluster import Cluster
from .expiry import Expiry
from .partitions import Partitions
from .producer_ids import ProducerIds
from .registry import Registry
from .sweep import Sweep
from .topics import Topics

REQUESTS_MAX: Final = 8192
"""Unanswered requests of one worker."""
STREAM_OVERHEAD_BYTES: Final = 4096
"""What a message on a worker's stream may have around its frame."""

WILDCARDS: Final = ("0.0.0.0", "::")

Answer = Callable[[str, str, str, bytes], Coroutine[Any, Any, bytes | None]]
"""(door, listener, peer, frame) → reply frame, or None to close the connection."""

log = logging.getLogger(__name__)


def clock_ms() -> int:
    return time.time_ns() // 1_000_000


def run(config: Config, data_dir: Path, instance: str, channel: Channel, heart: Heart | None = None) -> None:
    """The coordinator process, until the supervisor says stop or is gone.

    Raises:
        StorageFault: the catalog cannot be read.
    """
    asyncio.run(_serve(config, data_dir, instance, channel, heart or alone()))


async def _serve(config: Config, data_dir: Path, instance: str, channel: Channel, heart: Heart) -> None:
    beating = asyncio.create_task(_beat(heart))
    try:
        await Coordinator(config, data_dir, instance, channel).serve()
    finally:
        beating.cancel()


async def _beat(heart: Heart) -> None:
    """Show that the loop turns."""
    while True:
        heart.beat()
        await asyncio.sleep(heart.beat_ms / 1000)


class Coordinator:
    """The composition of this process, and the routes between its sockets and its parts."""

    def __init__(self, config: Config, data_dir: Path, instance: str, channel: Channel) -> None:
        self._config = config
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._bug: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._workers: dict[int, WorkerStream] = {}
        self._partitions = Partitions(self._send)
        self._registry = Registry(
            config,
            f"{instance}@{socket.gethostname()}",  # inodes alone repeat between copies of one machine
            describe=self._describe,
            on_state=self._zookeeper_changed,
            on_connected=self._on_connected,
            on_brokers=self._brokers_changed,
            on_topic=lambda name, info: self._topics.told(name, info),
        )
        catalog = Catalog.load(data_dir)
        self._topics = Topics(config, catalog, self._partitions, self._registry, self._spawn, clock_ms)
        self._cluster = Cluster(
            config,
            data_dir,
            self._topics,
            self._partitions,
            self._registry,
            ProducerIds(data_dir, config.broker.id, random.SystemRandom().randrange),
            self._spawn,
            clock_ms,
        )
        elements_max = forwarded.ELEMENTS_PER_PARTITION * Limits.of(config).parts_max
        self._groups = GroupCoordinator(self._cluster, GroupLimits(), lambda: uuid4().hex)
        self._kafka = KafkaApis(self._cluster, self._groups, self._cluster, elements_max)
        self._cluster.positions.on_lost = self._groups.lose
        self._cluster.positions.has_members = self._groups.has_members
        self._native = NativeDoor(self._cluster, self._groups.groups)
        positions = self._cluster.positions
        self._expiry = Expiry(self._registry, positions, self._cluster.coordinates, clock_ms)
        self._sweep = Sweep(data_dir, self._topics, self._partitions, clock_ms)
        self._topics.on_change = self._publish_soon
        self._publishing = False

    async def serve(self) -> None:
        self._loop.add_reader(self._channel.fileno(), self._on_control)
        if self._config.zookeeper.connect:
            self._registry.connect(self._config.zookeeper.connect)
        else:
            self._topics.found_cluster()
        self._spawn(self._maintain())
        try:
            await self._stopped.wait()
        finally:
            self._loop.remove_reader(self._channel.fileno())
            for worker in self._workers.values():
                worker.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._groups.close()
            self._kafka.close()
            self._registry.close()
        if self._bug is not None:
            raise self._bug

    # ---- the supervisor

    def _send(self, message: Sequence[Any]) -> None:
        self._channel.send(message)
        if self._channel.pending:
            self._loop.add_writer(self._channel.fileno(), self._flush_control)

    def _flush_control(self) -> None:
        self._channel.flush()
        if not self._channel.pending:
            self._loop.remove_writer(self._channel.fileno())

    def _on_control(self) -> None:
        for message, fds in self._channel.receive():
            self._obey(message, fds)
        if self._channel.closed:  # the supervisor is gone, and with it all that we coordinate
            self._stopped.set()

    def _obey(self, message: list[Any], fds: list[int]) -> None:
        match message:
            case ["table", topic, partition, name]:
                self._partitions.attach(topic, partition, name)
            case ["drop", topic, partition]:
                self._partitions.drop(topic, partition)
                self._cluster.forget_files(topic, partition)
            case ["done", token, rows]:
                self._partitions.done(token, rows)
            case ["worker", index]:
                self._spawn(self._attach_worker(index, fds.pop(0)))
            case ["refused", *_]:  # no descriptor left for it: the supervisor sends it again
                self._send(message)
            case ["doors", doors]:  # follows the tables: now we know what is missing
                self._cluster.doors = doors
                self._registry.announce()
                self._spawn(self._topics.reconcile())
            case ["zookeeper", connect]:
                self._registry.connect(connect)
            case ["reload", given]:
                self._reload(msgspec.convert(given, Config))
            case ["stop"]:
                self._stopped.set()
            case _:
                log.warning("unknown message from the supervisor: %.200r", message)
        for fd in fds:
            os.close(fd)

    def _reload(self, config: Config) -> None:
        """Take what can change while running: defaults of topics, limits of the disk, advertised addresses."""
        self._config = config
        self._cluster.reload(config)
        self._topics.reload(config)
        self._registry.announce()
        self._publish_soon()

    async def _maintain(self) -> None:
        """From time to time: do what was left undone, and remove what is too old."""
        while True:
            await asyncio.sleep(self._config.disk.check_ms / 1000)
            self._cluster.forget_unlinked_files()
            give_back_memory()
            duties = (
                self._topics.reconcile,
                lambda: self._sweep.run(self._config),
                self._cluster.positions.tidy,
                self._expire,
            )
            for duty in duties:
                try:
                    await duty()
                except ApplianceError as error:
                    log.error("%s", error)

    async def _expire(self) -> None:
        await self._expiry.run(self._config.offsets.retention_ms, int(self._loop.time() * 1000))

    # ---- ZooKeeper

    def _zookeeper_changed(self, connect: str, state: str) -> None:
        """Tell the supervisor, which waits for it with READY: connected is not before we know which cluster this is."""
        if state != State.CONNECTED.value or self._cluster.cluster_id:
            self._send(["zookeeper", {"connect": connect, "state": state}])
        self._publish_soon()

    def _on_connected(self) -> None:
        self._cluster.positions.new_session()  # at once: nobody is answered for a group that may be another's
        self._spawn(self._connected())

    def _brokers_changed(self) -> None:
        self._publish_soon()
        self._spawn(self._cluster.positions.review())

    async def _connected(self) -> None:
        known = self._cluster.cluster_id
        try:
            await self._topics.synchronise()
        finally:
            if not known:
                self._send(["zookeeper", {"connect": self._registry.connect_string, "state": self._registry.state}])
        await self._cluster.reconnected()
        await self._expire()

    def _describe(self) -> BrokerInfo | None:
        """What this broker is registered as; None before it serves."""
        doors = self._cluster.doors
        if not doors:
            return None
        stored: dict[str, list[int]] = {}
        for topic, partition in self._topics.catalog.hosted(self._config.broker.id):
            stored.setdefault(topic, []).append(partition)
        host = self._config.broker.host or socket.gethostname()
        native, kafka = (self._address(door, host) for door in ("native", "kafka"))
        return BrokerInfo(self._registry.instance, host, native, kafka, stored)

    def _address(self, door: str, host: str) -> str:
        """Where others reach a door: as configured, else where it listens; "" when it is closed."""
        listening = parse_addresses(self._cluster.doors.get(door, ""))
        advertised: str = getattr(self._config, door).advertised
        if advertised or not listening:
            return advertised
        bound, port = listening[0]
        shown = host if bound in WILDCARDS else bound
        return f"[{shown}]:{port}" if ":" in shown else f"{shown}:{port}"

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run in the background; a fault that is nobody's answer is logged, a bug ends the process."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, ApplianceError):
            log.error("%s", error)
        elif error is not None:
            self._bug = self._bug or error
            self._stopped.set()

    # ---- the network workers

    async def _attach_worker(self, index: int, fd: int) -> None:
        """A new incarnation of worker ``index``; the stream of the old one has seen its EOF, or will."""
        stream = WorkerStream(self._answer, self._publish, Limits.of(self._config).forwarded_bytes_max)
        await self._loop.create_unix_connection(lambda: stream, sock=socket.socket(fileno=fd))
        old = self._workers.pop(index, None)
        if old is not None:
            old.close()
        self._workers[index] = stream
        self._publish()

    def _publish_soon(self) -> None:
        """Something has changed that no request has asked for, or that has not been answered yet."""
        if not self._publishing:
            self._publishing = True
            self._loop.call_soon(self._publish)

    def _publish(self, due: WorkerStream | None = None) -> None:
        """Bring the snapshots of the workers up to date; of those that do not take what they are sent, only ``due``."""
        self._publishing = False
        state, topics = self._cluster.state, self._topics.catalog.topics
        behind = [one for one in self._workers.values() if one.told != state and (one is due or not one.congested)]
        if behind:
            facts = self._cluster.facts
            for stream in behind:
                stream.publish(state, facts, topics)

    async def _answer(self, door: str, listener: str, peer: str, frame: bytes) -> bytes | None:
        try:
            if door == "kafka":
                return await self._kafka.answer(frame, listener, peer)
            return await self._native.answer(frame, listener)
        except ProtocolFault as error:
            log.info("%s door: closing the connection of %s: %s", door, peer, error)
            return None


class WorkerStream(asyncio.Protocol):
    """The stream of one network worker: requests in, answers out, bounded both ways."""

    def __init__(self, answer: Answer, publish: Callable[[WorkerStream], None], frame_bytes_max: int) -> None:
        """``publish``: called before each answer, so that the worker learns of what the answer tells before it."""
        self.told: tuple[Any, ...] = ()  # the state that the worker's snapshot is of
        self.congested = False
        self._answer = answer
        self._publish = publish
        self._publisher = Publisher()
        self._tasks: set[asyncio.Task[bytes | None]] = set()
        self._unpacker = msgpack.Unpacker(max_buffer_size=2 * (frame_bytes_max + STREAM_OVERHEAD_BYTES))
        self._transport: asyncio.Transport | None = None
        self._unanswered = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None

    def close(self) -> None:
        """Nobody is there for the answers; what was asked is done all the same."""
        if self._transport is not None:
            self._transport.abort()

    def publish(self, state: tuple[Any, ...], facts: Facts, topics: Mapping[str, Topic]) -> None:
        """Tell the worker what has changed since it was told last."""
        self.told = state
        if self._transport is not None:
            for message in self._publisher.changes(facts, topics):
                self._transport.write(msgpack.packb([SNAPSHOT, message]))

    def data_received(self, data: bytes) -> None:
        self._unpacker.feed(data)
        self._take()

    def pause_writing(self) -> None:
        self.congested = True
        self._throttle()

    def resume_writing(self) -> None:
        self.congested = False
        self._publish(self)
        self._take()

    def _take(self) -> None:
        """Start what has arrived, as far as there is room."""
        while not self._full:
            try:
                message = next(self._unpacker)
            except StopIteration:
                break
            if len(message) == 1:
                continue
            self._unanswered += 1
            self._serve(*message)
        self._throttle()

    @property
    def _full(self) -> bool:
        return self.congested or self._unanswered >= REQUESTS_MAX

    def _throttle(self) -> None:
        if self._transport is None:
            return
        if self._full:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _serve(self, token: int, door: str, listener: str, peer: str, frame: bytes) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(door, listener, peer, frame))
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._answered(token, door, peer, task))

    def _answered(self, token: int, door: str, peer: str, task: asyncio.Task[bytes | None]) -> None:
        """Send the reply.  A bug in answering closes that connection: the same frame, sent again, would find
        it again, so it must not end the process that all others need.
        """
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("%s door: a request of %s cannot be answered", door, peer, exc_info=error)
        reply = None if task.cancelled() or error is not None else task.result()
        self._publish(self)
        if self._transport is not None:
            self._transport.write(msgpack.packb([token, reply]))
        was_full = self._full
        self._unanswered -= 1
        if was_full and not self._full:
            self._take()
