"""The supervisor: creates what the others share, forks them, reaps them, stops them in order.

It has no threads, no kazoo, accepts no connection and touches no data: whatever crashes, it does not.  Signal handlers
only wake the loop.  Whatever the machine may refuse is an action (``actions``): it is tried again and shown in
``status``, and the loop goes on.

Control messages (msgpack arrays; ``+fd`` travels with them)::

    to a worker        ["table", topic, partition, shm name]   ["drop", topic, partition]   ["stop"]
                       ["writer", topic, partition] +fd        ["retire", topic, partition]
                       ["coordinator"] +fd
    from a worker      ["need", topic, partition]              ["stats", {name: number}]
    from any of them   ["refused", ...]   a message of ours whose descriptors or memory the machine did not let it have
    to a writer        ["worker", arena name] +fd              ["settings", {...}]
                       ["cut", offset]                         ["retire"]         ["roll"]
                       ["reload", {...}]
    from a writer      ["opened"]  ["idle"]  ["offline", reason]  ["lacking", reason]  ["closed"]
    from an opener     ["opened", [[topic, partition, error, message] ...]]
    from the remover   ["removed", [[topic, partition, error, message] ...]]
    to the coordinator ["table" | "drop", ...]  ["worker", index] +fd  ["doors", {...}]  ["zookeeper", connect]
                       ["done", token, [[topic, partition, error, message] ...]]
                       ["reload", {...}]        ["stop"]
    from it            ["create", token, [[topic, partition, topic id, settings] ...]]
                       ["delete", token, [[topic, partition, topic id] ...]]
                       ["settings", [[topic, partition] ...], {...}]
                       ["cut", topic, partition, offset]        ["zookeeper", {...}]
                       ["roll", topic, partition]

``error`` is the name of a class of ``errors``, "" when it is done.

Orders carry the id of the topic, so that one for an earlier topic does nothing to a later one of the same name; how a
partition is removed, and what a crash leaves, is told in :mod:`.removal`.

A writer is forked when somebody needs it and retires when idle: the workers hang up first, so nothing is on its way
when it ends.  The data directory's lock is shared with the writers: as long as one of a killed instance lives, no other
supervisor can start, so one process writes a partition's files (I1).
"""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import platform
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from ...catalog import Catalog, Topic
from ...config import Config
from ...errors import AlreadyRunning, BadValue, ConfigFault, OutOfResources, StorageFault, WriterGone
from ...log import partition_directory
from ...shared import memory
from ...shared.doorbell import Doorbell
from ...shared.heartbeats import Heart, Heartbeats
from ...shared.table import OFFLINE, TABLE_BYTES, WORKERS_MAX, SegmentTable
from .. import network, writer
from ..child import settle
from ..clock import now_ms, wall_s
from ..control import Channel
from . import opener, removal
from .actions import REFUSALS, UNDER_WAY, Action, Actions, reason_of, surviving
from .children import Child, Restarts, fork
from .listeners import doors, listen
from .liveness import Liveness, state_of
from .nodes import Nodes
from .opener import Job
from .state_file import StateFile
from .systemd import Notifier

logger = logging.getLogger(__name__)

Key = tuple[str, int]

LOCK_WAIT_MS: Final = 10_000
"""How long a start waits for the last writers of a killed instance to end."""
STATE_MS: Final = 200
"""state.json is written at most this often."""
ZOOKEEPER_WAIT_MS: Final = 8_000
"""READY waits so long for ZooKeeper, so that topics can be created right after it; the doors are open before."""
CREATE_ATTEMPTS_MAX: Final = 3
PROCESSES_MAX: Final = 1 << 17
"""Children at a time: a writer for each of the 100,000 partitions that topics.partitions_max allows, and the others."""
CLEAN_AGAIN_MS: Final = 60_000
"""So long after deleted files could not be removed they are tried again."""
EVENT_REFUSED_S: Final = 0.1
"""How long the loop rests when handling an event was refused, in a way that no action takes care of."""
RECONNECT_MS: Final = 1_000
"""A child that had no descriptor left is sent the same one again so much later."""


def run(config: Config, data_dir: Path, reload: Callable[[], Config] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status.

    Args:
        reload: reads the configuration again on SIGHUP; what can change while running then does.

    Raises:
        AlreadyRunning: another supervisor has this data directory.
        ConfigFault: an address, the ensemble or the machine does not allow it; says what to change.
        StorageFault: the catalog cannot be read.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        raise BadValue(f"{platform.machine()}: shared tables rely on the store order of x86-64: run it on one")
    data_dir.mkdir(parents=True, exist_ok=True)
    lock_fd = _lock(data_dir)
    supervisor = Supervisor(config, data_dir, lock_fd, reload)
    try:
        return supervisor.run()
    finally:
        supervisor.clean_up()


def _lock(data_dir: Path) -> int:
    """Take the data directory, or say who has it; wait for the orphans of a killed supervisor to end."""
    fd = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline_ms = now_ms() + LOCK_WAIT_MS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            pid = os.pread(fd, 32, 0).decode(errors="replace").strip()
            if Path(f"/proc/{pid}").exists() or now_ms() > deadline_ms:
                os.close(fd)
                raise AlreadyRunning(
                    f"{data_dir} is in use by the appliance with pid {pid}: stop it, or give another --data"
                ) from None
            time.sleep(0.05)
    os.ftruncate(fd, 0)
    os.pwrite(fd, str(os.getpid()).encode(), 0)
    return fd


class Supervisor:
    def __init__(self, config: Config, data_dir: Path, lock_fd: int, reload: Callable[[], Config] | None) -> None:
        self._config = config
        self._data_dir = data_dir
        self._lock_fd = lock_fd
        self._reload = reload
        self._pid = os.getpid()
        self._started_s = wall_s()
        self._instance = memory.instance_of(data_dir)
        self._notifier = Notifier(os.environ)
        self._epoll = select.epoll()
        self._children: dict[int, Child] = {}
        self._workers: dict[int, Child] = {}
        self._writers: dict[Key, Child] = {}
        self._coordinator: Child | None = None
        self._restarts = Restarts()
        self._heartbeats = Heartbeats(PROCESSES_MAX, config.liveness.timeout_ms)
        self._liveness = Liveness(self._heartbeats, config.liveness.timeout_ms, now_ms, state_of)
        self._actions = Actions(self._note_change)
        self._define_actions()
        self._settings: dict[Key, dict[str, str]] = {}
        self._tables: dict[Key, str] = {}
        self._unplaced: set[Key] = set()
        self._offline_table = ""
        self._offline: dict[Key, str] = {}
        self._needed: set[Key] = set()
        self._opening: dict[Key, int] = {}
        self._to_open: list[Key] = []
        self._topic_ids: dict[Key, str] = {}
        self._removals = removal.Removals()
        self._cleaner: Child | None = None
        self._disk_full: set[Key] = set()
        self._orders: dict[int, Order] = {}
        self._arenas: dict[int, str] = {}
        self._unused_arenas: set[int] = set()
        self._worker_stats: dict[int, dict[str, int]] = {}
        self._zookeeper: dict[str, str] = {"connect": "", "state": "off"}
        self._zookeeper_awaited = True
        ensemble = msgspec.structs.replace(config.zookeeper, heap_mb=config.heap_mb)
        self._nodes = Nodes(ensemble, data_dir, self._epoll, self._actions, self._use_zookeeper)
        self._state = "starting"
        self._state_file = StateFile(data_dir / "state.json")
        self._state_ms = 0
        self._watchdog_ms = 0
        self._signals: set[int] = set()
        self._listeners: list[tuple[str, socket.socket]] = []
        self._doors: dict[str, str] = {}
        self._doorbells: list[Doorbell] = []
        self._worker_count = min(config.network.workers or os.cpu_count() or 1, WORKERS_MAX)

    def _define_actions(self) -> None:
        """Name all that the machine may refuse."""
        define = self._actions.define
        self._place_tables = define("place partitions in /dev/shm", lambda _: self._place_all())
        self._open_again = define("open partitions", lambda _: self._reopen())
        self._start_worker = define("start network workers", self._fork_worker)
        self._start_coordinator = define("start the coordinator", lambda _: self._fork_coordinator())
        self._start_writer = define("start writers", self._fork_writer)
        self._start_opener = define("start openers", self._fork_opener)
        self._start_remover = define("start removers", self._fork_remover)
        self._start_cleaner = define("delete the files of deleted topics", lambda _: self._clean())
        self._connect_writer = define("connect workers and writers", lambda pair: self._join_writer(*pair))
        self._connect_coordinator = define("connect workers and the coordinator", self._join_coordinator)
        self._show_table = define("show partitions", lambda where: self._tell_table(*where))
        self._save_state = define("write state.json", lambda _: self._write_state())
        self._check_hearts = define("kill processes that hang", lambda _: self._kill_hanging())
        self._give_up_waiting = define("wait for ZooKeeper", lambda _: self._serve_without_zookeeper())

    # ---- the program

    def run(self) -> int:
        with surviving("removing what a killed instance left in /dev/shm"):
            for name in memory.unlink_all(self._instance):
                logger.info("removed shared memory of a killed instance: %s", name)
        _raise_file_limit()
        if self._config.zookeeper.connect or self._config.zookeeper.nodes:
            self._zookeeper = {"connect": self._config.zookeeper.connect, "state": "connecting"}
        self._nodes.prepare()
        self._listeners = listen(self._config)
        self._doors = doors(self._listeners)
        for topic, partition in self._hosted():
            key = (topic.name, partition)
            self._topic_ids[key], self._settings[key] = topic.id, dict(topic.settings)
            self._unplaced.add(key)
        self._doorbells = [Doorbell() for _ in range(self._worker_count)]
        self._handle_signals()
        self._nodes.start()
        gc.collect()
        gc.freeze()
        with surviving("making arenas"):  # before the tables: without workers nothing can be served
            self._make_offline_table()
            for index in range(self._worker_count):
                self._make_arena(index)
        if self._unplaced:
            self._place_tables.want()
        for index in range(self._worker_count):
            self._start_worker.want(index)
        self._start_coordinator.want()
        self._start_cleaner.want()
        self._check_hearts.want(delay_ms=self._liveness.check_ms)
        self._give_up_waiting.want(delay_ms=ZOOKEEPER_WAIT_MS)
        while not self._signals & {signal.SIGTERM, signal.SIGINT}:
            self._turn()
            if self._state == "starting" and self._workers and not self._opening and not self._awaits_zookeeper:
                self._serving()
        self._stop()
        return 0

    @property
    def _awaits_zookeeper(self) -> bool:
        return self._zookeeper_awaited and self._zookeeper["state"] not in ("off", "connected")

    def _hosted(self) -> list[tuple[Topic, int]]:
        catalog = Catalog.load(self._data_dir)
        return [(catalog.topics[topic], partition) for topic, partition in catalog.hosted(self._config.broker.id)]

    def _serving(self) -> None:
        self._state = "serving"
        self._save_state.want()  # before it is said, so that who reads the line finds it there
        doors = " ".join(f"{door}={address}" for door, address in self._doors.items())
        print(f"appliance: serving {doors} data={self._data_dir} pid={self._pid}", flush=True)
        self._notifier.tell("READY=1", f"STATUS=serving {len(self._tables)} partitions")

    def _turn(self) -> None:
        """Wait for something to happen, act on it, do what has become due."""
        self._deal_out()
        self._handle_events(self._timeout_s())
        self._deal_out()
        self._actions.run()
        if signal.SIGHUP in self._signals:
            self._signals.discard(signal.SIGHUP)
            self._reload_config()
        now = now_ms()
        if self._notifier.watchdog_ms and now - self._watchdog_ms >= self._notifier.watchdog_ms:
            self._watchdog_ms = now
            self._notifier.tell("WATCHDOG=1")

    def _handle_events(self, timeout_s: float) -> None:
        """Act on what happens within a time.  A refusal that no action takes care of costs one event, not the loop."""
        for fd, event in self._epoll.poll(timeout_s):
            try:
                self._dispatch(fd, event)
            except REFUSALS as error:
                logger.error("refused: handling an event: %s", reason_of(error), exc_info=error)
                select.select([], [], [], EVENT_REFUSED_S)  # it may come again at once

    def _timeout_s(self) -> float:
        deadlines_ms = [self._actions.next_ms()]
        if self._notifier.watchdog_ms:
            deadlines_ms.append(self._watchdog_ms + self._notifier.watchdog_ms)
        next_ms = min((when for when in deadlines_ms if when is not None), default=None)
        return 3_600 if next_ms is None else max(0, next_ms - now_ms()) / 1000

    def _note_change(self) -> None:
        """What ``status`` shows has changed: write it, but not more often than every STATE_MS."""
        if "" not in self._save_state:
            self._save_state.want(delay_ms=max(1, self._state_ms + STATE_MS - now_ms()))

    # ---- signals and sockets

    def _handle_signals(self) -> None:
        reading, self._wakeup = socket.socketpair()
        reading.setblocking(False)
        self._wakeup.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _: self._signals.add(number))
        self._wakeup_reader = reading
        self._epoll.register(reading.fileno(), select.EPOLLIN)

    def _dispatch(self, fd: int, event: int) -> None:
        child = self._children.get(fd)
        if child is None:
            if fd == self._wakeup_reader.fileno():
                self._wakeup_reader.recv(4096)
            elif fd in self._nodes:
                self._nodes.bury(fd, self._state == "stopping")
                self._note_change()
            return
        if event & select.EPOLLOUT:
            child.channel.flush()
            if not child.channel.pending and not child.channel.closed:
                self._epoll.modify(child.channel.fileno(), select.EPOLLIN)
        for message, _ in child.channel.receive():
            self._obey(child, message)
        if fd == child.pidfd:
            self._bury(child)
        elif child.channel.closed:
            self._give_up(child)

    def _tell(self, child: Child | None, message: list[Any], fds: tuple[int, ...] = ()) -> None:
        """Send a control message.

        Raises:
            OSError: its descriptors could not be sent.
        """
        if child is None or child.channel.closed:
            return
        child.channel.send(message, fds)
        if child.channel.closed:
            self._give_up(child)
        elif child.channel.pending:
            self._epoll.modify(child.channel.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _give_up(self, child: Child) -> None:
        """A child that does not take its messages, or has ended: nothing can be told to it any more."""
        if self._children.pop(child.channel.fileno(), None) is not None:
            self._epoll.unregister(child.channel.fileno())
            child.kill()  # no harm to one that is ending: its exit status stands

    def _tell_all(self, message: list[Any]) -> None:
        for child in (*self._workers.values(), self._coordinator):
            self._tell(child, message)

    # ---- children

    def _fork(self, role: str, key: Any, target: Callable[[Channel, Heart], int], keep: set[str]) -> Child:
        """Fork a child that keeps, of what only some need, ``keep`` (of "listeners", "lock")."""
        heart = self._heartbeats.take()
        try:
            child = self._fork_watched(role, key, lambda channel: target(channel, heart), keep)
        except REFUSALS:
            self._heartbeats.give_back(heart)
            raise
        self._liveness.watch(child, heart)
        return child

    def _fork_watched(self, role: str, key: Any, target: Callable[[Channel], int], keep: set[str]) -> Child:
        close: list[Callable[[], Any]] = [self._epoll.close, self._wakeup.close, self._wakeup_reader.close]
        close += [self._nodes.close_in_child, self._notifier.close]
        close += [child.channel.close for child in self._children.values()]
        close += [lambda fd=child.pidfd: os.close(fd) for child in set(self._children.values())]  # type: ignore[misc]
        if "listeners" not in keep:
            close += [sock.close for _, sock in self._listeners]
        if "lock" not in keep:
            close.append(lambda: os.close(self._lock_fd))
        child = fork(role, key, now_ms(), close, target)
        try:
            self._epoll.register(child.pidfd, select.EPOLLIN)
            self._epoll.register(child.channel.fileno(), select.EPOLLIN)
        except OSError:
            child.discard()  # a descriptor that is closed is not watched any more
            raise
        self._children[child.pidfd] = self._children[child.channel.fileno()] = child
        self._note_change()
        return child

    def _fork_for_work(self, role: str, key: Any, target: Callable[[Channel], int]) -> Child:
        """Fork a child that does one long work and ends."""

        def work(channel: Channel, heart: Heart) -> int:
            with heart.working():
                return target(channel)

        return self._fork(role, key, work, {"lock"} if role != "cleaner" else set())

    def _kill_hanging(self) -> None:
        """Kill what has not moved for ``liveness.timeout_ms``; as after any other death another one is started."""
        self._check_hearts.want(delay_ms=self._liveness.check_ms)
        for child in self._liveness.overdue():
            logger.error(
                "%s %s (pid %d) has not moved for %d ms (liveness.timeout_ms): killed",
                *(child.role, child.key, child.pid, self._config.liveness.timeout_ms),
            )
            child.kill()

    def _fork_worker(self, index: int) -> None:
        """A worker with an arena of its own: writers may still read the one of the worker before."""
        if index not in self._unused_arenas:
            self._make_arena(index)
        arena = self._arenas[index]
        listeners, doorbell = self._listeners, self._doorbells[index]
        arguments = network.WorkerArguments(self._config, self._data_dir, index, arena, listeners, doorbell)
        pid = self._pid

        def target(channel: Channel, heart: Heart) -> int:
            return network.run(arguments._replace(heart=heart), channel, pid)

        worker = self._fork("network", index, target, {"listeners"})
        self._unused_arenas.discard(index)
        self._workers[index] = worker
        for key, table_name in self._tables.items():
            self._tell(worker, ["table", *key, table_name])
        for key, child in self._writers.items():
            if not child.stopping:
                self._connect_writer.want((key, index))
        self._connect_coordinator.want(index)

    def _make_arena(self, index: int) -> None:
        """The old one goes first: its pages are free once the last writer has let go of them."""
        if index in self._arenas:
            memory.unlink(self._arenas.pop(index))
        self._arenas[index], mapped = memory.create(self._instance, f"arena{index}", self._config.network.arena_bytes)
        mapped.close()
        self._unused_arenas.add(index)

    def _fork_writer(self, key: Key) -> object:
        """The writer says itself whether it could open its log."""
        if key in self._writers or key not in self._tables or key in self._offline or key in self._opening:
            return None
        self._needed.discard(key)
        assignment = writer.Assignment(
            self._config, self._data_dir, *key, self._settings[key], self._tables[key], self._doorbells
        )
        pid = self._pid

        def target(channel: Channel, heart: Heart) -> int:
            return writer.run(assignment._replace(heart=heart), channel, pid)

        child = self._fork("writer", key, target, {"lock"})
        self._writers[key] = child
        for index in self._workers:
            self._connect_writer.want((key, index))
        return UNDER_WAY

    def _join_writer(self, key: Key, index: int) -> None:
        child, worker = self._writers.get(key), self._workers.get(index)
        if child is None or worker is None or child.stopping:
            return
        ours, theirs = Channel.pair()
        try:
            self._tell(worker, ["writer", *key], (ours.fileno(),))
            self._tell(child, ["worker", self._arenas[index]], (theirs.fileno(),))
        finally:
            ours.close()
            theirs.close()

    def _fork_coordinator(self) -> None:
        def target(channel: Channel, heart: Heart) -> int:
            settle("coordinator", self._pid)
            with heart.working():
                from .. import coordinator  # asyncio, kazoo and the cold codecs: 25 MB that no other child needs

            coordinator.run(self._config, self._data_dir, self._instance, channel, heart)
            return 0

        self._coordinator = self._fork("coordinator", 0, target, set())
        for key, name in self._tables.items():
            if key not in self._opening:
                self._tell(self._coordinator, ["table", *key, name])
        for index in self._workers:
            self._connect_coordinator.want(index)
        self._tell(self._coordinator, ["doors", self._doors])
        if self._zookeeper["connect"]:
            self._tell(self._coordinator, ["zookeeper", self._zookeeper["connect"]])

    def _join_coordinator(self, index: int) -> None:
        worker = self._workers.get(index)
        if self._coordinator is None or worker is None:
            return
        ours, theirs = socket.socketpair()
        with ours, theirs:
            self._tell(worker, ["coordinator"], (ours.fileno(),))
            self._tell(self._coordinator, ["worker", index], (theirs.fileno(),))

    def _bury(self, child: Child) -> None:
        """A child has ended: forget it, and fork another where one is wanted."""
        for fd in (child.pidfd, child.channel.fileno()):
            if self._children.pop(fd, None) is not None:
                self._epoll.unregister(fd)
        status = child.reap()
        self._liveness.forget(child)
        child.channel.close()
        self._note_change()
        expected = child.stopping or (child.role in ("opener", "remover", "cleaner") and status == 0)
        if not expected:
            logger.warning("%s %s (pid %d) ended with status %d", child.role, child.key, child.pid, status)
        match child.role:
            case "network":
                del self._workers[child.key]
                self._again(child, self._start_worker, child.key)
            case "coordinator":
                self._coordinator = None
                self._again(child, self._start_coordinator)
            case "writer":
                del self._writers[child.key]
                self._after_writer(child)
            case "opener":
                self._after_opener(child)
            case "remover":
                self._after_remover()
            case "cleaner":
                self._cleaner = None
                self._start_cleaner.want(delay_ms=CLEAN_AGAIN_MS if status else 0)

    def _again(self, child: Child, start: Action, key: Any = "") -> None:
        if child.stopping or self._state == "stopping":
            return
        start.want(key, self._restarts.after_death(child.role, child.key, now_ms() - child.started_ms))

    def _after_writer(self, child: Child) -> None:
        key: Key = child.key
        if key in self._removals:
            self._remove_when_ready()
        elif key in self._offline or self._state == "stopping":
            return
        elif not child.stopping:
            self._again(child, self._start_writer, key)
        elif key in self._needed:
            self._start_writer.want(key)

    # ---- what children say

    def _obey(self, child: Child, message: list[Any]) -> None:
        match message:
            case ["need", topic, partition]:
                self._needed.add((topic, partition))
                self._start_writer.want((topic, partition))
            case ["stats", stats]:
                self._worker_stats[child.key] = stats
                self._note_change()
            case ["idle"]:
                self._retire(child)
            case ["opened"]:
                self._start_writer.done(child.key)
                self._note_change()
            case ["lacking", reason]:
                child.stopping = True
                self._start_writer.refuse(child.key, reason)
            case ["opened", rows]:
                self._opened(rows)
            case ["removed", rows]:
                self._removed(rows)
            case ["offline", reason]:
                self._offline[child.key] = reason
                child.stopping = True
                self._note_change()
            case ["create", token, rows]:
                self._create(token, [((topic, partition), *rest) for topic, partition, *rest in rows])
            case ["delete", token, rows]:
                self._delete(token, {(topic, partition): topic_id for topic, partition, topic_id in rows})
            case ["settings", rows, settings]:
                for topic, partition in rows:
                    self._settings[topic, partition] = settings
                    self._tell(self._writers.get((topic, partition)), ["settings", settings])
            case ["cut", topic, partition, offset]:
                self._start_writer.want((topic, partition))
                self._tell(self._writers.get((topic, partition)), ["cut", offset])
            case ["roll", topic, partition]:
                self._start_writer.want((topic, partition))
                self._tell(self._writers.get((topic, partition)), ["roll"])
            case ["zookeeper", state]:
                self._zookeeper = state
                self._note_change()
            case ["refused", *refused]:
                self._send_again(child, refused)

    def _send_again(self, child: Child, refused: list[Any]) -> None:
        """A child had no descriptor or no memory for what we sent: send it anew, a little later."""
        logger.warning("%s %s (pid %d) has no room for %s: sent again", child.role, child.key, child.pid, refused)
        match child.role, refused:
            case "network", ["writer", topic, partition]:
                self._connect_writer.want(((topic, partition), child.key), RECONNECT_MS)
            case "network", ["coordinator"]:
                self._connect_coordinator.want(child.key, RECONNECT_MS)
            case "writer", ["worker", arena_name]:
                for index, name in self._arenas.items():
                    if name == arena_name:
                        self._connect_writer.want((child.key, index), RECONNECT_MS)
            case "coordinator", ["worker", index]:
                self._connect_coordinator.want(index, RECONNECT_MS)
            case "network" | "coordinator", ["table", topic, partition]:
                self._show_table.want((child.role, child.key, topic, partition), RECONNECT_MS)

    def _tell_table(self, role: str, index: int, topic: str, partition: int) -> None:
        name = self._tables.get((topic, partition))
        if name is not None:
            child = self._workers.get(index) if role == "network" else self._coordinator
            self._tell(child, ["table", topic, partition, name])

    def _retire(self, child: Child) -> None:
        """Ordered end of a writer: workers hang up when it has answered them, then it closes its log."""
        if child.stopping:
            return
        child.stopping = True
        for worker in self._workers.values():
            self._tell(worker, ["retire", *child.key])
        self._tell(child, ["retire"])

    # ---- partitions

    def _add_table(self, key: Key, topic_id: str, settings: dict[str, str]) -> None:
        self._tables[key], mapped = memory.create(self._instance, "table", TABLE_BYTES)
        mapped.close()
        self._topic_ids[key] = topic_id
        self._settings[key] = settings

    def _place_all(self) -> None:
        """Give every partition a table, or as many as there is room for; the others are offline until there is more.

        Raises:
            OutOfResources: there is no room for all.
        """
        placed: list[Key] = []
        try:
            for key in sorted(self._unplaced):
                self._add_table(key, self._topic_ids[key], self._settings[key])
                placed.append(key)
        except REFUSALS as error:
            left = len(self._unplaced) - len(placed)
            raise OutOfResources(f"{left} partitions are offline: {reason_of(error)}") from error
        finally:
            self._unplaced -= set(placed)
            for key in placed:
                self._offline.pop(key, None)
                for worker in self._workers.values():
                    self._tell(worker, ["table", *key, self._tables[key]])
            for key in self._unplaced:
                self._show_unplaced(key)
            if placed:
                self._open_all(placed)

    def _show_unplaced(self, key: Key) -> None:
        """A partition without a table of its own is shown in one that says offline, which all of them share."""
        self._offline[key] = "no room for its table in /dev/shm: enlarge it, or delete topics"
        if self._offline_table and key not in self._tables:
            self._tables[key] = self._offline_table
            self._tell_all(["table", *key, self._offline_table])

    def _make_offline_table(self) -> None:
        self._offline_table, mapped = memory.create(self._instance, "offline", TABLE_BYTES)
        with mapped, memoryview(mapped) as view, view.cast("Q") as cells:
            SegmentTable(cells).set_state(OFFLINE)

    def _remove_table(self, key: Key) -> None:
        """Room that comes back is noticed by the next try to place those that have none."""
        name = self._tables.pop(key, None)
        if name is not None:
            self._tell_all(["drop", *key])
            if name != self._offline_table:
                memory.unlink(name)
        self._start_writer.drop(key)
        self._unplaced.discard(key)
        self._disk_full.discard(key)
        self._offline.pop(key, None)
        if not self._unplaced:
            self._place_tables.drop()

    def _open_all(self, keys: list[Key]) -> None:
        """Have partitions opened, together with all others that are to be opened in this turn."""
        for key in keys:
            self._opening[key] = self._opening.get(key, 0) + 1
        self._to_open += keys

    def _deal_out(self) -> None:
        """Deal what is to be opened out to openers, no more of them than cores."""
        keys, self._to_open = self._to_open, []
        count = min(os.cpu_count() or 1, len(keys))
        for index in range(count):
            self._start_opener.want(tuple(keys[index::count]))

    def _fork_opener(self, keys: tuple[Key, ...]) -> None:
        present = [key for key in keys if key in self._tables]
        jobs = [Job(*key, self._topic_ids[key], self._settings[key], self._tables[key]) for key in present]
        config, data_dir, pid = self._config, self._data_dir, self._pid
        self._fork_for_work("opener", keys, lambda channel: opener.run(config, data_dir, jobs, channel, pid))
        for key in set(keys) - self._tables.keys():  # deleted while the machine refused the opener
            self._opening.pop(key, None)
        self._remove_when_ready()

    def _opened(self, rows: list[list[Any]]) -> None:
        for topic, partition, error, reason in rows:
            key = (topic, partition)
            self._opening.pop(key, None)
            if key not in self._tables:  # deleted meanwhile
                continue
            self._offline.pop(key, None)
            if error:
                self._offline[key] = reason
            if error == OutOfResources.__name__:
                self._disk_full.add(key)
            if self._state != "starting":
                for worker in self._workers.values():
                    self._tell(worker, ["table", *key, self._tables[key]])
            self._tell(self._coordinator, ["table", *key, self._tables[key]])
            self._advance_orders(key, error, reason)
            if key in self._needed:
                self._start_writer.want(key)
        self._remove_when_ready()
        if not self._opening:
            self._report_reopened()
            if self._state == "starting":
                self._tell(self._coordinator, ["doors", self._doors])
        self._note_change()

    def _after_opener(self, child: Child) -> None:
        """An opener that was killed: open what it has not reported, a bounded number of times."""
        left = [key for key in child.key if key in self._opening]
        again = [key for key in left if self._opening[key] < CREATE_ATTEMPTS_MAX]
        given_up = [key for key in left if key not in again]
        if given_up:
            self._opened([[*key, StorageFault.__name__, "opening it was interrupted"] for key in given_up])
        if again and self._state != "stopping":
            self._open_all(again)

    def _reopen(self) -> object:
        """Try again to open the partitions that a full disk kept from being opened."""
        keys = [key for key in self._disk_full if key in self._tables]
        self._disk_full.clear()
        if not keys:
            return None
        self._open_all(keys)
        return UNDER_WAY

    def _report_reopened(self) -> None:
        if self._disk_full:
            self._open_again.refuse("", self._offline[min(self._disk_full)])
        else:
            self._open_again.done()

    def _create(self, token: int, rows: list[tuple[Key, str, dict[str, str]]]) -> None:
        order = self._orders[token] = Order(token, {key for key, *_ in rows})
        new = []
        for key, topic_id, settings in rows:
            if key in self._removals or self._topic_ids.get(key, topic_id) != topic_id:
                order.finish(
                    key, WriterGone.__name__, "an earlier topic of this name is still being removed: try again"
                )
            elif key in self._tables:
                if key not in self._opening:
                    order.finish(key, "", "")
            else:
                try:
                    self._add_table(key, topic_id, settings)
                    new.append(key)
                except REFUSALS as error:
                    logger.warning("refused: making %s-%d: %s", *key, reason_of(error))
                    order.finish(key, OutOfResources.__name__, reason_of(error))
        if new:
            self._open_all(new)
        self._report(order)

    def _delete(self, token: int, rows: dict[Key, str]) -> None:
        order = self._orders[token] = Order(token, set(rows))
        for key, topic_id in rows.items():
            here = self._removals.id_of(key) or self._topic_ids.get(key, topic_id)
            if here != topic_id:  # a later topic has the name by now
                order.finish(key, "", "")
                continue
            self._drop(key)
            # Without a table too: files may be left of a removal that an earlier instance did not finish.
            self._removals.add(key, topic_id)
        self._remove_when_ready()
        self._report(order)

    def _drop(self, key: Key) -> None:
        """Nobody is to see or to start this partition any more; its writer, if it has one, ends."""
        self._remove_table(key)
        self._needed.discard(key)
        if key in self._writers:
            self._retire(self._writers[key])

    def _remove_when_ready(self) -> None:
        """Free the names of partitions whose last writer has ended."""
        ready = self._removals.begin(lambda key: key in self._writers or key in self._opening)
        if ready:
            self._start_remover.want(tuple(ready.items()))

    def _fork_remover(self, ids: tuple[tuple[Key, str], ...]) -> None:
        data_dir, pid = self._data_dir, self._pid
        keys = tuple(key for key, _ in ids)
        self._fork_for_work("remover", keys, lambda channel: removal.remove(data_dir, dict(ids), channel, pid))

    def _removed(self, rows: list[list[Any]]) -> None:
        for topic, partition, error, reason in rows:
            key = (topic, partition)
            self._removals.finish(key)
            self._settings.pop(key, None)
            self._topic_ids.pop(key, None)
            self._restarts.forget("writer", key)
            self._advance_orders(key, error, reason)
        self._note_change()

    def _after_remover(self) -> None:
        """A remover that was killed has not told of everything; what it has set aside is to be deleted."""
        interrupted = self._removals.unreported
        self._removed([[*key, WriterGone.__name__, "removing it was interrupted"] for key in interrupted])
        self._remove_when_ready()
        self._start_cleaner.want()

    def _clean(self) -> None:
        """Delete what has been set aside, by one cleaner at a time; another one follows for what comes meanwhile."""
        if self._cleaner is not None or self._state == "stopping":
            return
        directories = partition_directory.deleted(self._data_dir)
        if directories:
            pid = self._pid
            self._cleaner = self._fork_for_work("cleaner", 0, lambda _: removal.clean(directories, pid))

    def _advance_orders(self, key: Key, error: str, reason: str) -> None:
        for order in list(self._orders.values()):
            if key in order.left:
                order.finish(key, error, reason)
                self._report(order)

    def _report(self, order: Order) -> None:
        if not order.left:
            del self._orders[order.token]
            self._tell(self._coordinator, ["done", order.token, order.rows])

    # ---- ZooKeeper, configuration, state

    def _use_zookeeper(self, connect: str) -> None:
        """The local ensemble has got its addresses."""
        self._zookeeper = {"connect": connect, "state": "connecting"}
        self._tell(self._coordinator, ["zookeeper", connect])
        self._note_change()

    def _serve_without_zookeeper(self) -> None:
        """What is on the disk is served all the same; groups and new topics come when the ensemble does."""
        if self._state == "starting" and self._zookeeper["state"] != "connected":
            logger.warning("ZooKeeper (%s) does not answer yet", self._zookeeper["connect"])
            self._zookeeper_awaited = False

    def _reload_config(self) -> None:
        if self._reload is None:
            return
        self._notifier.tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            config = self._reload()
        except ConfigFault as error:
            logger.error("configuration not reloaded: %s", error)
        else:
            # Sockets, arenas and the ensemble stay as they were made; topic defaults, retention and limits change.
            self._config = config
            self._tell(self._coordinator, ["reload", msgspec.to_builtins(config)])
            for child in self._writers.values():
                self._tell(child, ["reload", msgspec.to_builtins(config)])
            logger.info("configuration reloaded")
        self._notifier.tell("READY=1")

    def _write_state(self) -> None:
        """Replace state.json: what `appliance status` and a start after us read."""
        processes = [{"role": "supervisor", "pid": self._pid, "started": self._started_s, "restarts": 0}]
        for child in sorted(set(self._children.values()), key=lambda child: child.pid):
            row: dict[str, Any] = {"role": child.role, "pid": child.pid, "started": child.started_s}
            row["restarts"] = self._restarts.count(child.role, child.key)
            if child.role == "writer":
                row["topic"], row["partition"] = child.key
            if child.role == "network":
                row |= self._worker_stats.get(child.key, {})
            processes.append(row)
        if self._nodes is not None:
            processes += self._nodes.rows()
        state = {
            "pid": self._pid,
            "instance": self._instance,
            "state": self._state,
            "doors": self._doors,
            "zookeeper": self._zookeeper,
            "processes": processes,
            "tables": {f"{topic}-{partition}": name for (topic, partition), name in self._tables.items()},
            "offline": {f"{topic}-{partition}": why for (topic, partition), why in self._offline.items()},
            "refused": self._actions.rows(),
        }
        self._state_ms = now_ms()
        self._state_file.replace(msgspec.json.encode(state))

    # ---- the end

    def _stop(self) -> None:
        """Stop in order: take nothing new, answer, flush, mark clean, deregister; all within the time limit."""
        self._notifier.tell("STOPPING=1", "STATUS=stopping")
        logger.info("stopping")
        self._state = "stopping"
        self._save_state.want()
        deadline_ms = now_ms() + self._config.stop.timeout_ms
        for worker in self._workers.values():
            worker.stopping = True
            self._tell(worker, ["stop"])
        self._wait_until(lambda: not self._workers, (now_ms() + deadline_ms) // 2)
        for child in list(self._writers.values()):
            self._retire(child)
        self._wait_until(lambda: not self._writers, deadline_ms)
        if self._coordinator is not None:
            self._coordinator.stopping = True
            self._tell(self._coordinator, ["stop"])
            self._wait_until(lambda: self._coordinator is None, deadline_ms)
        self._nodes.ask_to_end()
        self._wait_until(lambda: not self._nodes, deadline_ms)

    def _wait_until(self, done: Callable[[], bool], deadline_ms: int) -> None:
        while not done() and now_ms() < deadline_ms:
            self._handle_events(max(0, deadline_ms - now_ms()) / 1000)

    def clean_up(self) -> None:
        """Leave nothing behind, however the run ended."""
        for child in set(self._children.values()):
            logger.warning("%s %s (pid %d) did not stop in time: killed", child.role, child.key, child.pid)
            with surviving("ending a process"):
                child.kill()
                child.reap()
        self._children.clear()
        with surviving("ending ZooKeeper"):
            self._nodes.end()
        with surviving("removing shared memory"):
            memory.unlink_all(self._instance)
        self._state = "stopped"
        self._writers.clear()
        with surviving("writing state.json"):
            self._write_state()


class Order:
    """A request of the coordinator about several partitions: answered when all are done."""

    def __init__(self, token: int, left: set[Key]) -> None:
        self.token = token
        self.left = left
        self.rows: list[list[Any]] = []

    def finish(self, key: Key, error: str, message: str) -> None:
        self.left.discard(key)
        self.rows.append([*key, error, message])


def _raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if sys.platform != "linux":  # pragma: no cover
    raise ImportError("epoll, eventfd, sendfile and pidfds are Linux")
