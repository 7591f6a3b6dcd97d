"""The coordinator is the only process with a ZooKeeper session.  It answers the forwarded requests.

It is one thread with asyncio's epoll loop.  Nearly every request here waits several times, with a deadline, for the
supervisor, for ZooKeeper or for other members of a group: a coroutine keeps such a sequence in one readable function.
asyncio also brings flow control for streams, and timers.  kazoo's threads only enqueue and ring an eventfd that the
loop polls (:mod:`.registry_session`).

The loop serves the control channel to the supervisor (``messages`` has what goes over it), and one stream per network
worker (:mod:`.worker_stream`).

When it dies, the supervisor forks a new one: topics come back from the catalog and ZooKeeper.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, assert_never

from ...catalog import Catalog
from ...clock import now_ms, wall_ms, wall_s
from ...config import Config
from ...errors import ApplianceError, ProtocolFault, Unavailable
from ...groups.messages import Limits as GroupLimits
from ...kafka_apis.handlers import KafkaApis
from ...libc import give_back_memory
from ...log.partition_directory import directory_of
from ...log.recovery import boot_id
from ...security.audit_log import Audit
from ...security.authorizer import Authorizer
from ...security.principals import Origin
from ...shared import memory
from ...shared.counters import Counters
from ...shared.heartbeats import Heart, alone
from ...wire.bounds import WireLimits
from ...wire.kafka import forwarded
from ...wire.kafka.call import Call
from ...zookeeper.cluster_identity import stored_cluster_id
from ...zookeeper.login import login_of
from ...zookeeper.paths import BrokerInfo
from ...zookeeper.session import SessionState
from ..child import set_log_level
from ..control import Channel
from ..messages import (
    TO_COORDINATOR,
    ConnectZooKeeper,
    FilesChanged,
    Judged,
    Listening,
    OrderDone,
    PartitionDropped,
    PartitionTable,
    Published,
    RefusalsReport,
    Reload,
    RepairDone,
    Shown,
    Stop,
    ToCoordinator,
    ToSupervisor,
    TransactionStep,
    Unreceivable,
    UsageRow,
    WorkerStreamOpened,
    WriterStarted,
    ZooKeeperState,
)
from .change_log import ChangeLog, RefusalLog
from .cluster_watch import ClusterWatch
from .compaction_enforcer import CompactionEnforcer
from .configured_groups import ConfiguredGroups
from .expiry import Expiry
from .hanging_transactions import HangingTransactions
from .known_groups import KnownGroups
from .live_brokers import LiveBrokers
from .measurements import Measurements
from .native_api import NativeApi
from .native_members_api import NativeMembersApi
from .partitions import Partitions
from .peer_transactions_api import PeerTransactionsApi
from .registered_groups import RegisteredGroups
from .registered_transactions import RegisteredTransactions
from .registry_session import (
    BrokersChanged,
    GroupSettingsChanged,
    RegistryEvent,
    RegistrySession,
    RivalReplaced,
    SecurityChanged,
    SessionStateChanged,
    SessionWorks,
    TopicChanged,
)
from .retention_enforcer import RetentionEnforcer
from .security_registry import SecurityRegistry
from .this_broker import ThisBroker
from .topic_steps import TopicSteps
from .topic_sync import TopicSync
from .topics import Topics
from .transactions_native_api import ProducersNativeApi, TransactionsNativeApi
from .trash import WATCH_S, Trash
from .trusted_clock import TrustedClock, newest_log_ms
from .unread import UnreadBytes
from .worker_stream import WorkerStream

log = logging.getLogger(__name__)

REFUSALS_S: Final = 1
"""How long refusals are counted before the supervisor gets their numbers."""


def run(
    config: Config, data_dir: Path, instance: str, channel: Channel, heart: Heart | None = None, page: str = ""
) -> None:
    """Run the coordinator process until the supervisor stops it or is gone.

    Args:
        page: the name of its counters; "": nobody reads them.

    Raises:
        StorageFault: the catalog cannot be read.
    """
    counters = Counters(memoryview(memory.attach(page)).cast("Q") if page else None)
    asyncio.run(_serve(config, data_dir, instance, channel, heart or alone(), counters))


async def _serve(
    config: Config, data_dir: Path, instance: str, channel: Channel, heart: Heart, counters: Counters
) -> None:
    beating = asyncio.create_task(heart.beat_in_loop())
    try:
        await Coordinator(config, data_dir, instance, channel, counters).serve()
    finally:
        beating.cancel()


def owner_of(instance: str, config: Config, host: str, boot: tuple[int, int]) -> str:
    """A name for the data directory with this ``instance``, by which this broker knows what it registered earlier.

    Copies of one machine have the same inodes, and some the same host name: what such a one has registered in an
    ensemble of others is not ours.  They were booted apart.  After a reboot of our own our earlier registration is a
    stranger's, too, until its session is over.
    """
    booted = f"/{boot[0]:016x}{boot[1]:016x}" if config.zookeeper.connect else ""
    return f"{instance}@{host}{booted}"


class Coordinator:
    """Composes the parts of this process, and connects them with its sockets.

    Most of its attributes are these parts, and most of its methods are called by one of them.
    """

    def __init__(
        self, config: Config, data_dir: Path, instance: str, channel: Channel, counters: Counters | None = None
    ) -> None:
        self._config, self._data_dir = config, data_dir
        self._counters = counters or Counters()
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._bug: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._workers: dict[int, WorkerStream] = {}
        self._clock = TrustedClock(data_dir, lambda report: self._send(Shown("clock", report)))
        self._audit = Audit(now_ms, lambda: self._loop.call_later(REFUSALS_S, self._send_refusals))
        self._partitions = Partitions(self._send)
        self._registry = RegistrySession(
            config,
            owner_of(instance, config, socket.gethostname(), boot_id()),
            describe=self._registration,
            login=partial(login_of, config.zookeeper, data_dir),
            on_event=self._on_registry_event,
            clock_s=wall_s,
        )
        self._known_groups = KnownGroups(data_dir, wall_s)
        self._security = SecurityRegistry(data_dir, self._registry, self._spawn, self._on_security)
        security = config.security
        self._authorizer = Authorizer(security.authorizer, security.super_users, security.allow_everyone_if_no_acl)
        self._authorizer.enforce(self._security.state)
        self._brokers = LiveBrokers(config, self._registry, lambda: self._security.state.secret)
        self._catalog = Catalog.load(data_dir)
        self._cluster_watch = ClusterWatch(
            *(config.broker.id, self._catalog, self._registry, self._known_groups, wall_s),
            send=lambda facts: self._send(Shown("cluster", facts)),
        )
        self._publishing = False
        self._transactions_shown: dict[str, Any] = {}
        self._compose_topics(config)
        self._compose_groups(config, data_dir)
        self._compose_upkeep(data_dir)
        self._compose_apis(config, data_dir)

    def _compose_topics(self, config: Config) -> None:
        broker_id, partitions, registry = config.broker.id, self._partitions, self._registry
        self._steps = steps = TopicSteps(
            *(broker_id, self._catalog, partitions, registry, config.topic_defaults, config.topics.trash_ms),
            deletion_ms=self._clock.judging_ms,
            on_change=self._on_topics,
        )
        self._topic_sync = TopicSync(broker_id, steps, partitions, registry, self._spawn, self._clock.judging_ms)
        self._topics = Topics(config, steps, partitions, registry, self._topic_sync.synchronise_one)

    def _compose_groups(self, config: Config, data_dir: Path) -> None:
        topics, partitions, registry, brokers = self._topics, self._partitions, self._registry, self._brokers
        limits = GroupLimits(
            consumer_session_ms=config.groups.consumer_session_ms,
            consumer_heartbeat_ms=config.groups.consumer_heartbeat_ms,
            upgrades=config.groups.migration in ("bidirectional", "upgrade"),
            downgrades=config.groups.migration in ("bidirectional", "downgrade"),
        )
        self._configured = ConfiguredGroups(
            registry, limits, self._spawn, lambda own: self._groups.members.set_own(own)
        )
        self._broker = ThisBroker(
            *(config, data_dir, brokers, topics, partitions, registry, self._security, self._configured)
        )
        self._groups = RegisteredGroups(
            *(registry, brokers, self._broker.topics, lambda: topics.revision, self._spawn, self._clock.now_ms),
            offsets_max=config.committed_max,
            limits=limits,
            restored_ms=config.zookeeper.session_timeout_ms,
        )
        self._kafka_groups, self._native_groups = self._groups.members, self._groups.native
        self._expiry = Expiry(
            *(registry, self._groups.offsets, brokers.coordinates, self._clock),
            *(self._groups.has_members, self._kafka_groups.load),
        )
        self._transactions = RegisteredTransactions(
            *(registry, self._groups, brokers, config.transactions.ids_max, self._clock.now_ms),
            send=self._send,
            spawn=self._spawn,
        )

    def _compose_upkeep(self, data_dir: Path) -> None:
        """Compose what removes: the trash, retention, compaction."""
        topics, partitions, registry = self._topics, self._partitions, self._registry
        transactions, producers_of = self._transactions.coordinator, self._broker.producers
        self._hanging = HangingTransactions(partitions, transactions, producers_of)
        self._trash = Trash(
            *(data_dir, topics, self._steps, partitions, registry, self._brokers, self._clock),
            steady_ms=lambda: int(self._loop.time() * 1000),
            on_change=lambda report: self._send(Shown("trash", report)),
            on_back=lambda topic: self._spawn(self._hanging.end(topic)),
        )
        self._retention = RetentionEnforcer(
            *(data_dir, topics, partitions, self._trash, self._clock, UnreadBytes(registry)),
            on_removed=lambda removed: self._send(Shown("retention", removed)),
        )
        self._compaction = CompactionEnforcer(
            *(data_dir, topics, partitions, self._retention, self._clock),
            show=lambda rows: self._send(Shown("compaction", rows)),
        )

    def _compose_apis(self, config: Config, data_dir: Path) -> None:
        topics, partitions, transactions = self._topics, self._partitions, self._transactions.coordinator
        self._measurements = Measurements(data_dir, partitions, topics, self._brokers, wall_ms)
        self._change_log = ChangeLog(self._audit, self._broker.take_unread)
        self._refusal_log = RefusalLog(self._audit)
        self._kafka = KafkaApis(
            *(self._broker, self._kafka_groups, self._groups, transactions, self._authorizer),
            on_answer=self._on_kafka_answer,
            on_errors=self._on_errors,
            elements_max=forwarded.ELEMENTS_PER_PARTITION * WireLimits.from_config(config).parts_max,
        )
        members = NativeMembersApi(self._native_groups, self._brokers.coordinator, enabled=self._registry.enabled)
        producers = ProducersNativeApi(
            transactions, lambda: self._config.transactions.timeout_ms_max, self._groups.owned_by
        )
        peers = PeerTransactionsApi(
            *(transactions, self._transactions.store, self._transactions.writers, self._kafka_groups),
            *(self._transactions.peers, self._brokers.coordinates),
            TransactionsNativeApi(transactions, self._hanging).of_ids | producers.verbs,
        )
        self._native = NativeApi(
            self._broker,
            topics,
            partitions,
            self._measurements,
            self._groups,
            self._kafka_groups,
            self._authorizer,
            self._clock,
            self._known_groups,
            self._trash,
            TransactionsNativeApi(transactions, self._hanging).of_partitions | peers.verbs | members.verbs,
            transactions.all_pending,
            self._compaction,
            on_error=self._on_errors,
            on_refused=self._refusal_log.on_native,
        )

    async def serve(self) -> None:
        self._loop.add_reader(self._channel.fileno(), self._on_control)
        if self._config.zookeeper.connect:
            self._registry.connect(self._config.zookeeper.connect)
        else:
            self._topic_sync.found_cluster()
        self._spawn(self._look_at_clock())
        self._spawn(self._maintain())
        self._spawn(self._watch_room())
        try:
            await self._stopped.wait()
        finally:
            self._loop.remove_reader(self._channel.fileno())
            for worker in self._workers.values():
                worker.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._clock.begun:
                self._clock.look_again(self._config.disk.clock_jump_hold_ms)
                self._clock.save()
            self._kafka_groups.close()
            self._transactions.coordinator.close()
            self._kafka.close()
            self._cluster_watch.close()
            self._brokers.connections.close()
            self._known_groups.note(self._broker.cluster_id, self._groups.offsets.topics())
            self._registry.close(leave_nodes=self._native_groups.keeps)
        if self._bug is not None:
            raise self._bug

    # ---- the supervisor

    def _send(self, message: ToSupervisor) -> None:
        self._channel.send(message)
        if self._channel.pending:
            self._loop.add_writer(self._channel.fileno(), self._flush_control)

    def _send_refusals(self) -> None:
        self._send(RefusalsReport(self._audit.take_counts()))

    def _flush_control(self) -> None:
        self._channel.flush()
        if not self._channel.pending:
            self._loop.remove_writer(self._channel.fileno())

    def _on_control(self) -> None:
        for message, fds in self._channel.receive(TO_COORDINATOR):
            self._on_message(message, fds)
        self._transactions.writers.tell_waiting()
        if self._channel.closed:  # the supervisor is gone, and with it all other processes
            self._stopped.set()

    def _on_message(self, message: ToCoordinator, fds: list[int]) -> None:
        match message:
            case PartitionTable(partition, name):
                self._partitions.attach(partition, name)
            case PartitionDropped(partition):
                self._partitions.drop(partition)
                self._measurements.forget_files(*partition)
            case FilesChanged(partition):
                self._measurements.forget_files(*partition)
                self._retention.forget(partition)
            case OrderDone():
                self._partitions.on_order_done(message)
            case RepairDone():
                self._partitions.on_repair_done(message)
            case Judged():
                self._partitions.on_judged(message)
            case WriterStarted():
                self._transactions.writers.on_writer_started(message)
            case TransactionStep():
                self._transactions.writers.on_step(message)
            case WorkerStreamOpened(index):
                self._spawn(self._attach_worker(index, fds[0]))
            case Unreceivable():  # no descriptor left for it: the supervisor sends it again
                self._send(message)
            case Listening(listeners):  # comes after the tables: now the missing partitions are known
                self._brokers.listening = listeners
                self._registry.announce()
                self._spawn(self._topic_sync.reconcile())
            case ConnectZooKeeper(connect):
                self._registry.connect(connect)
            case Reload(config):
                self._reload(config)
            case Stop():
                self._stopped.set()
            case _:
                assert_never(message)

    def _reload(self, config: Config) -> None:
        """Take the settings that may change while running: topic defaults, disk limits, advertised addresses."""
        self._config = config
        set_log_level(config.log.level)
        self._broker.reload(config)
        self._brokers.reload(config)
        self._groups.offsets.count.offsets_max = config.committed_max
        self._transactions.coordinator.ids_max = config.transactions.ids_max
        self._topics.reload(config)
        self._registry.announce()
        self._publish_soon()

    async def _maintain(self) -> None:
        """Every ``disk.check_ms``: repeat unfinished changes, enforce retention, release claims, expire offsets."""
        while True:
            await asyncio.sleep(self._config.disk.check_ms / 1000)
            self._measurements.forget_unlinked_files()
            give_back_memory()
            steps = (
                self._look_at_clock,
                self._topic_sync.reconcile,
                self._security.repeat,
                self._configured.repeat,
                lambda: self._trash.empty_old(self._config),
                lambda: self._retention.run(self._config),
                self._compaction.run,
                self._groups.offsets.claims.tidy,
                self._look_at_transactions,
                self._expire,
            )
            for step in steps:
                try:
                    await step()
                except ApplianceError as error:
                    log.error("%s", error)

    async def _watch_room(self) -> None:
        """Empty the trash before a disk is full: that takes less than ``disk.check_ms``."""
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                await self._trash.make_room(self._config)
            except ApplianceError as error:
                log.error("%s", error)
                await asyncio.sleep(self._config.disk.check_ms / 1000)

    async def _look_at_transactions(self) -> None:
        """Forget ids that nobody uses, and say which transactions stay open, and where some hang."""
        settings = self._config.transactions
        await self._hanging.note_stuck()
        report = self._transactions.report(settings.open_ms_warn) | self._hanging.report()
        if report != self._transactions_shown:
            self._transactions_shown = report
            self._send(Shown("transactions", report))
        await self._transactions.coordinator.expire(settings.expiration_ms)

    async def _look_at_clock(self) -> None:
        """Compare the wall clock with the trusted time, which nothing is deleted without."""
        hold_ms = self._config.disk.clock_jump_hold_ms
        if self._clock.begun:
            self._clock.look_again(hold_ms)
            return
        hosted = [directory_of(self._data_dir, *key) for key in self._catalog.hosted(self._config.broker.id)]
        newest_ms = await asyncio.to_thread(newest_log_ms, hosted)
        if not self._clock.begun:
            self._clock.begin(newest_ms, hold_ms)

    async def _expire(self) -> None:
        await self._look_at_clock()
        await self._expiry.run(self._config.offsets.retention_ms, int(self._loop.time() * 1000))
        self._known_groups.note(self._broker.cluster_id, self._groups.offsets.topics())
        self._cluster_watch.look_soon()

    # ---- ZooKeeper

    def _registration(self) -> BrokerInfo | None:
        return self._brokers.registration(self._catalog.hosted(self._config.broker.id))

    def _on_registry_event(self, event: RegistryEvent) -> None:
        match event:
            case SessionStateChanged(connect, state):
                self._on_zookeeper_state(connect, state)
            case SessionWorks():
                self._on_connected()
            case BrokersChanged():
                self._on_brokers()
            case TopicChanged(name, info):
                self._topic_sync.on_topic(name, info)
            case SecurityChanged():
                self._security.on_changed()
            case GroupSettingsChanged():
                self._configured.on_changed()
            case RivalReplaced():
                self._spawn(self._connected())
            case _:
                assert_never(event)

    def _on_zookeeper_state(self, connect: str, state: str) -> None:
        """Report the state to the supervisor; CONNECTED only once the cluster id is known, since READY waits for it."""
        if state != SessionState.CONNECTED.value or self._broker.cluster_id:
            self._send(ZooKeeperState(connect, state))
        self._publish_soon()

    def _on_connected(self) -> None:
        self._groups.offsets.claims.new_session()  # before any answer: another broker may have our groups now
        self._transactions.review()
        self._known_groups.begin()
        self._spawn(self._connected())

    def _on_brokers(self) -> None:
        self._native_groups.on_brokers()
        self._cluster_watch.look_soon()
        self._publish_soon()
        self._spawn(self._groups.offsets.claims.review())
        self._transactions.review()
        self._spawn(self._transactions.load())

    def _on_topics(self) -> None:
        self._native_groups.on_topics()
        self._cluster_watch.look_soon()
        self._publish_soon()

    def _on_security(self) -> None:
        self._authorizer.enforce(self._security.state)
        self._publish_soon()

    async def _connected(self) -> None:
        cluster_id = self._broker.cluster_id
        try:
            await self._security.synchronise()
            await self._configured.synchronise()
            self._known_groups.compare(await self._registry.ask(stored_cluster_id()))
            await self._topic_sync.synchronise()
        finally:
            if not cluster_id:
                self._send(ZooKeeperState(self._registry.connect_string, self._registry.state))
        await self._groups.reconnected()
        self._spawn(self._transactions.load())
        await self._expire()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run in the background: log an ApplianceError, end the process at a bug."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, Unavailable):  # it is tried again
            log.info("%s", error)
        elif isinstance(error, ApplianceError):
            log.error("%s", error)
        elif error is not None:
            self._bug = self._bug or error
            self._stopped.set()

    # ---- the network workers

    async def _attach_worker(self, index: int, fd: int) -> None:
        """Connect a new incarnation of worker ``index``, and close the stream of the old one."""
        frame_bytes_max = WireLimits.from_config(self._config).forwarded_bytes_max
        stream = WorkerStream(self._answer, self._publish, self._on_usage, frame_bytes_max)
        await self._loop.create_unix_connection(lambda: stream, sock=socket.socket(fileno=fd))
        old = self._workers.pop(index, None)
        if old is not None:
            old.close()
        self._workers[index] = stream
        self._publish()
        self._send(Published())

    def _on_usage(self, worker: WorkerStream, rows: Sequence[UsageRow]) -> None:
        for stream in self._workers.values():
            if stream is not worker:
                stream.send_usage(rows)

    def _publish_soon(self) -> None:
        """Publish a change in the next turn of the loop; an answer that comes first publishes it itself."""
        if not self._publishing:
            self._publishing = True
            self._loop.call_soon(self._publish)

    def _publish(self, due: WorkerStream | None = None) -> None:
        """Bring the snapshots of the workers up to date; congested workers are skipped, except ``due``."""
        self._publishing = False
        state, topics, security = self._broker.state, self._catalog.topics, self._security.state
        behind = [
            stream
            for stream in self._workers.values()
            if stream.published != state and (stream is due or not stream.congested)
        ]
        if behind:
            facts = self._broker.facts
            for stream in behind:
                stream.publish(state, facts, topics, security)

    def _on_kafka_answer(self, api: str, call: Call, answer: Mapping[str, Any]) -> None:
        self._change_log.on_kafka(api, call, answer)
        self._refusal_log.on_kafka(api, call, answer)

    def _on_errors(self, origin: Origin, api: int, count: int) -> None:
        """Count errors in an answer; the worker counts the request and its time."""
        self._counters.listener_counters(origin.listener).failed(api, count)

    async def _answer(self, origin: Origin, frame: bytes) -> bytes | None:
        try:
            if origin.listener.protocol == "kafka":
                return await self._kafka.answer(frame, origin)
            reply = await self._native.answer(frame, origin)
            self._change_log.on_native(origin, frame, reply)
            return reply
        except ProtocolFault as error:
            log.info("%s listener: closing the connection of %s: %s", origin.listener.protocol, origin.peer, error)
            return None
