"""The supervisor: creates what the others share, forks them, reaps them, stops them in order.

It has no threads, no kazoo, accepts no connection and touches no data: whatever crashes, it does not.  Signal handlers
only wake the loop.

Control messages (msgpack arrays; ``+fd`` travels with them)::

    to a worker        ["table", topic, partition, shm name]   ["drop", topic, partition]   ["stop"]
                       ["writer", topic, partition] +fd        ["retire", topic, partition]
                       ["coordinator"] +fd
    from a worker      ["need", topic, partition]              ["stats", {name: number}]
    to a writer        ["worker", arena name] +fd              ["settings", {...}]
                       ["cut", offset]                         ["retire"]
                       ["reload", {...}]
    from a writer      ["opened"]  ["idle"]  ["offline", reason]  ["closed"]
    from an opener     ["opened", [[topic, partition, error, message] ...]]
    from the remover   ["removed", [[topic, partition, error, message] ...]]
    to the coordinator ["table" | "drop", ...]  ["worker", index] +fd  ["doors", {...}]  ["zookeeper", connect]
                       ["done", token, rows]    ["reload", {...}]      ["stop"]
    from it            ["create", token, [[topic, partition, topic id, settings] ...]]
                       ["delete", token, [[topic, partition, topic id] ...]]
                       ["settings", [[topic, partition] ...], {...}]
                       ["cut", topic, partition, offset]        ["zookeeper", {...}]

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
from ...errors import AlreadyRunning, BadValue, ConfigFault, StorageFault, WriterGone
from ...log import identity
from ...shared import memory
from ...shared.doorbell import Doorbell
from ...shared.table import TABLE_BYTES, WORKERS_MAX
from .. import network, writer
from ..child import settle
from ..clock import now_ms, wall_s
from ..control import Channel
from . import opener, removal
from .children import Child, Restarts, fork
from .listeners import doors, listen
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
CLEAN_AGAIN_MS: Final = 60_000
"""So long after deleted files could not be removed they are tried again."""


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
        self._due: list[tuple[int, Callable[[], None]]] = []
        self._settings: dict[Key, dict[str, str]] = {}
        self._tables: dict[Key, str] = {}
        self._table_number = 0
        self._offline: dict[Key, str] = {}
        self._needed: set[Key] = set()
        self._opening: dict[Key, int] = {}
        self._topic_ids: dict[Key, str] = {}
        self._removals = removal.Removals()
        self._cleaner: Child | None = None
        self._orders: dict[int, Order] = {}
        self._arenas: dict[int, str] = {}
        self._worker_stats: dict[int, dict[str, int]] = {}
        self._zookeeper: dict[str, str] = {"connect": "", "state": "off"}
        self._zookeeper_awaited = True
        self._nodes: Nodes | None = None
        self._state = "starting"
        self._state_file = StateFile(data_dir / "state.json")
        self._state_dirty = True
        self._state_ms = 0
        self._watchdog_ms = 0
        self._signals: set[int] = set()
        self._listeners: list[tuple[str, socket.socket]] = []
        self._doors: dict[str, str] = {}
        self._doorbells: list[Doorbell] = []
        self._worker_count = min(config.network.workers or os.cpu_count() or 1, WORKERS_MAX)

    # ---- the program

    def run(self) -> int:
        for name in memory.unlink_all(self._instance):
            logger.info("removed shared memory of a killed instance: %s", name)
        _raise_file_limit()
        self._nodes = Nodes(self._config.zookeeper, self._data_dir, self._epoll, self._later)
        if self._nodes.connect:
            self._zookeeper = {"connect": self._nodes.connect, "state": "connecting"}
        self._listeners = listen(self._config)
        self._doors = doors(self._listeners)
        for topic, partition in self._hosted():
            self._add_table((topic.name, partition), topic.id, dict(topic.settings))
        self._doorbells = [Doorbell() for _ in range(self._worker_count)]
        self._handle_signals()
        self._nodes.start()
        gc.collect()
        gc.freeze()
        self._open_all(list(self._tables))
        for index in range(self._worker_count):
            self._fork_worker(index)
        self._fork_coordinator()
        self._clean()
        self._later(ZOOKEEPER_WAIT_MS, self._serve_without_zookeeper)
        while not self._signals & {signal.SIGTERM, signal.SIGINT}:
            self._turn()
            if self._state == "starting" and not self._opening and not self._awaits_zookeeper:
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
        self._write_state()  # before it is said, so that who reads the line finds it there
        doors = " ".join(f"{door}={address}" for door, address in self._doors.items())
        print(f"appliance: serving {doors} data={self._data_dir} pid={self._pid}", flush=True)
        self._notifier.tell("READY=1", f"STATUS=serving {len(self._tables)} partitions")

    def _turn(self) -> None:
        """Wait for something to happen, act on it, do what has become due."""
        events = self._epoll.poll(self._timeout_s())
        for fd, event in events:
            self._dispatch(fd, event)
        now = now_ms()
        due = [action for when, action in self._due if when <= now]
        self._due = [(when, action) for when, action in self._due if when > now]
        for action in due:
            action()
        if signal.SIGHUP in self._signals:
            self._signals.discard(signal.SIGHUP)
            self._reload_config()
        if self._notifier.watchdog_ms and now - self._watchdog_ms >= self._notifier.watchdog_ms:
            self._watchdog_ms = now
            self._notifier.tell("WATCHDOG=1")
        if self._state_dirty and now - self._state_ms >= STATE_MS:
            self._write_state()

    def _timeout_s(self) -> float:
        waits = [when - now_ms() for when, _ in self._due]
        if self._state_dirty:
            waits.append(STATE_MS)
        if self._notifier.watchdog_ms:
            waits.append(self._watchdog_ms + self._notifier.watchdog_ms - now_ms())
        return max(0, min(waits, default=3_600_000)) / 1000

    def _later(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._due.append((now_ms() + delay_ms, action))

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
            elif self._nodes is not None and fd in self._nodes:
                self._nodes.bury(fd, self._state == "stopping")
                self._state_dirty = True
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
            self._epoll.unregister(fd)
            del self._children[fd]

    def _tell(self, child: Child | None, message: list[Any], fds: tuple[int, ...] = ()) -> None:
        if child is None or child.channel.closed:
            return
        child.channel.send(message, fds)
        if child.channel.pending:
            self._epoll.modify(child.channel.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _tell_all(self, message: list[Any]) -> None:
        for child in (*self._workers.values(), self._coordinator):
            self._tell(child, message)

    # ---- children

    def _fork(self, role: str, key: Any, target: Callable[[Channel], int], keep: set[str]) -> Child:
        """Fork a child that keeps, of what only some need, ``keep`` (of "listeners", "lock")."""
        close: list[Callable[[], Any]] = [self._epoll.close, self._wakeup.close, self._wakeup_reader.close]
        assert self._nodes is not None
        close.append(self._nodes.close_in_child)
        close += [child.channel.close for child in self._children.values()]
        close += [lambda fd=child.pidfd: os.close(fd) for child in set(self._children.values())]  # type: ignore[misc]
        if "listeners" not in keep:
            close += [sock.close for _, sock in self._listeners]
        if "lock" not in keep:
            close.append(lambda: os.close(self._lock_fd))
        child = fork(role, key, now_ms(), close, target)
        self._children[child.pidfd] = self._children[child.channel.fileno()] = child
        self._epoll.register(child.pidfd, select.EPOLLIN)
        self._epoll.register(child.channel.fileno(), select.EPOLLIN)
        self._state_dirty = True
        return child

    def _fork_worker(self, index: int) -> None:
        """A worker with an arena of its own: writers may still read the one of the worker before."""
        name = memory.name_of(self._instance, f"arena{index}.{self._restarts.count('network', index)}")
        memory.create(name, self._config.network.arena_bytes).close()
        if index in self._arenas:
            memory.unlink(self._arenas[index])
        self._arenas[index] = name
        post = network.Post(self._config, self._data_dir, index, name, self._listeners, self._doorbells[index])
        pid = self._pid
        worker = self._fork("network", index, lambda channel: network.run(post, channel, pid), {"listeners"})
        self._workers[index] = worker
        for key, table_name in self._tables.items():
            self._tell(worker, ["table", *key, table_name])
        for key, child in self._writers.items():
            if not child.stopping:
                self._connect_writer(key, child, worker)
        self._connect_coordinator(worker)

    def _fork_writer(self, key: Key) -> None:
        if key in self._writers or key not in self._tables or key in self._offline or key in self._opening:
            return
        self._needed.discard(key)
        assignment = writer.Assignment(
            self._config, self._data_dir, *key, self._settings[key], self._tables[key], self._doorbells
        )
        pid = self._pid
        child = self._fork("writer", key, lambda channel: writer.run(assignment, channel, pid), {"lock"})
        self._writers[key] = child
        for worker in self._workers.values():
            self._connect_writer(key, child, worker)

    def _connect_writer(self, key: Key, child: Child, worker: Child) -> None:
        ours, theirs = Channel.pair()
        self._tell(child, ["worker", self._arenas[worker.key]], (theirs.fileno(),))
        self._tell(worker, ["writer", *key], (ours.fileno(),))
        ours.close()
        theirs.close()

    def _fork_coordinator(self) -> None:
        def target(channel: Channel) -> int:
            settle("coordinator", self._pid)
            from .. import coordinator  # asyncio, kazoo and the cold codecs: 25 MB that no other child needs

            coordinator.run(self._config, self._data_dir, self._instance, channel)
            return 0

        self._coordinator = self._fork("coordinator", 0, target, set())
        for key, name in self._tables.items():
            if key not in self._opening:
                self._tell(self._coordinator, ["table", *key, name])
        for worker in self._workers.values():
            self._connect_coordinator(worker)
        self._tell(self._coordinator, ["doors", self._doors])
        if self._zookeeper["connect"]:
            self._tell(self._coordinator, ["zookeeper", self._zookeeper["connect"]])

    def _connect_coordinator(self, worker: Child) -> None:
        if self._coordinator is None:
            return
        ours, theirs = socket.socketpair()
        self._tell(self._coordinator, ["worker", worker.key], (theirs.fileno(),))
        self._tell(worker, ["coordinator"], (ours.fileno(),))
        ours.close()
        theirs.close()

    def _bury(self, child: Child) -> None:
        """A child has ended: forget it, and fork another where one is wanted."""
        for fd in (child.pidfd, child.channel.fileno()):
            if self._children.pop(fd, None) is not None:
                self._epoll.unregister(fd)
        status = child.reap()
        child.channel.close()
        self._state_dirty = True
        expected = child.stopping or (child.role in ("opener", "remover", "cleaner") and status == 0)
        if not expected:
            logger.warning("%s %s (pid %d) ended with status %d", child.role, child.key, child.pid, status)
        match child.role:
            case "network":
                del self._workers[child.key]
                self._again(child, lambda: self._fork_worker(child.key))
            case "coordinator":
                self._coordinator = None
                self._again(child, self._fork_coordinator)
            case "writer":
                del self._writers[child.key]
                self._after_writer(child)
            case "opener":
                self._after_opener(child)
            case "remover":
                self._after_remover()
            case "cleaner":
                self._cleaner = None
                if status == 0:
                    self._clean()
                else:
                    self._later(CLEAN_AGAIN_MS, self._clean)

    def _again(self, child: Child, action: Callable[[], None]) -> None:
        if child.stopping or self._state == "stopping":
            return
        self._later(self._restarts.after_death(child, now_ms()), action)

    def _after_writer(self, child: Child) -> None:
        key: Key = child.key
        if key in self._removals:
            self._remove_when_ready()
        elif key in self._offline or self._state == "stopping":
            return
        elif not child.stopping:
            self._again(child, lambda: self._fork_writer(key))
        elif key in self._needed:
            self._fork_writer(key)

    # ---- what children say

    def _obey(self, child: Child, message: list[Any]) -> None:
        match message:
            case ["need", topic, partition]:
                self._needed.add((topic, partition))
                self._fork_writer((topic, partition))
            case ["stats", stats]:
                self._worker_stats[child.key] = stats
                self._state_dirty = True
            case ["idle"]:
                self._retire(child)
            case ["opened"]:
                self._state_dirty = True
            case ["opened", rows]:
                self._opened(rows)
            case ["removed", rows]:
                self._removed(rows)
            case ["offline", reason]:
                self._offline[child.key] = reason
                child.stopping = True
                self._state_dirty = True
            case ["create", token, rows]:
                self._create(token, [((topic, partition), *rest) for topic, partition, *rest in rows])
            case ["delete", token, rows]:
                self._delete(token, {(topic, partition): topic_id for topic, partition, topic_id in rows})
            case ["settings", rows, settings]:
                for topic, partition in rows:
                    self._settings[topic, partition] = settings
                    self._tell(self._writers.get((topic, partition)), ["settings", settings])
            case ["cut", topic, partition, offset]:
                self._fork_writer((topic, partition))
                self._tell(self._writers.get((topic, partition)), ["cut", offset])
            case ["zookeeper", state]:
                self._zookeeper = state
                self._state_dirty = True

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
        name = memory.name_of(self._instance, f"table{self._table_number}")
        self._table_number += 1
        memory.create(name, TABLE_BYTES).close()
        self._tables[key] = name
        self._topic_ids[key] = topic_id
        self._settings[key] = settings

    def _open_all(self, keys: list[Key]) -> None:
        """Deal partitions out to openers, no more of them than cores."""
        count = min(os.cpu_count() or 1, len(keys))
        for index in range(count):
            self._fork_opener(keys[index::count])

    def _fork_opener(self, keys: list[Key]) -> None:
        jobs = [Job(*key, self._topic_ids[key], self._settings[key], self._tables[key]) for key in keys]
        config, data_dir, pid = self._config, self._data_dir, self._pid
        for key in keys:
            self._opening[key] = self._opening.get(key, 0) + 1
        self._fork("opener", tuple(keys), lambda channel: opener.run(config, data_dir, jobs, channel, pid), {"lock"})

    def _opened(self, rows: list[list[Any]]) -> None:
        for topic, partition, error, reason in rows:
            key = (topic, partition)
            self._opening.pop(key, None)
            if key not in self._tables:  # deleted meanwhile
                continue
            if error:
                self._offline[key] = reason
            if self._state != "starting":
                for worker in self._workers.values():
                    self._tell(worker, ["table", *key, self._tables[key]])
            self._tell(self._coordinator, ["table", *key, self._tables[key]])
            self._advance_orders(key, error, reason)
            if key in self._needed:
                self._fork_writer(key)
        self._remove_when_ready()
        if self._state == "starting" and not self._opening:
            self._tell(self._coordinator, ["doors", self._doors])
        self._state_dirty = True

    def _after_opener(self, child: Child) -> None:
        """An opener that was killed: open what it has not reported, a bounded number of times."""
        left = [key for key in child.key if key in self._opening]
        again = [key for key in left if self._opening[key] < CREATE_ATTEMPTS_MAX]
        given_up = [key for key in left if key not in again]
        if given_up:
            self._opened([[*key, StorageFault.code, "opening it was interrupted"] for key in given_up])
        if again and self._state != "stopping":
            self._fork_opener(again)

    def _create(self, token: int, rows: list[tuple[Key, str, dict[str, str]]]) -> None:
        order = self._orders[token] = Order(token, {key for key, *_ in rows})
        new = []
        for key, topic_id, settings in rows:
            if key in self._removals or self._topic_ids.get(key, topic_id) != topic_id:
                order.finish(key, WriterGone.code, "an earlier topic of this name is still being removed: try again")
            elif key not in self._tables:
                self._add_table(key, topic_id, settings)
                new.append(key)
            elif key not in self._opening:
                order.finish(key, 0, "")
        if new:
            self._open_all(new)
        self._report(order)

    def _delete(self, token: int, rows: dict[Key, str]) -> None:
        order = self._orders[token] = Order(token, set(rows))
        for key, topic_id in rows.items():
            here = self._removals.id_of(key) or self._topic_ids.get(key, topic_id)
            if here != topic_id:  # a later topic has the name by now
                order.finish(key, 0, "")
                continue
            self._drop(key)
            # Without a table too: files may be left of a removal that an earlier instance did not finish.
            self._removals.add(key, topic_id)
        self._remove_when_ready()
        self._report(order)

    def _drop(self, key: Key) -> None:
        """Nobody is to see or to start this partition any more; its writer, if it has one, ends."""
        name = self._tables.pop(key, None)
        if name is not None:
            self._tell_all(["drop", *key])
            memory.unlink(name)
        self._offline.pop(key, None)
        self._needed.discard(key)
        if key in self._writers:
            self._retire(self._writers[key])

    def _remove_when_ready(self) -> None:
        """Free the names of partitions whose last writer has ended."""
        ready = self._removals.begin(lambda key: key in self._writers or key in self._opening)
        if ready:
            data_dir, pid = self._data_dir, self._pid
            target = lambda channel: removal.remove(data_dir, ready, channel, pid)  # noqa: E731
            self._fork("remover", tuple(ready), target, {"lock"})

    def _removed(self, rows: list[list[Any]]) -> None:
        for topic, partition, error, reason in rows:
            key = (topic, partition)
            self._removals.finish(key)
            self._settings.pop(key, None)
            self._topic_ids.pop(key, None)
            self._restarts.forget("writer", key)
            self._advance_orders(key, error, reason)
        self._state_dirty = True

    def _after_remover(self) -> None:
        """A remover that was killed has not told of everything; what it has set aside is to be deleted."""
        interrupted = self._removals.unreported
        self._removed([[*key, WriterGone.code, "removing it was interrupted"] for key in interrupted])
        self._remove_when_ready()
        self._clean()

    def _clean(self) -> None:
        """Delete what has been set aside, by one cleaner at a time; another one follows for what comes meanwhile."""
        if self._cleaner is not None or self._state == "stopping":
            return
        try:
            directories = identity.deleted(self._data_dir)
        except OSError as error:
            logger.error("%s: %s", self._data_dir, error.strerror)
            self._later(CLEAN_AGAIN_MS, self._clean)
            return
        if directories:
            pid = self._pid
            self._cleaner = self._fork("cleaner", 0, lambda _: removal.clean(directories, pid), set())

    def _advance_orders(self, key: Key, error: int, reason: str) -> None:
        for order in list(self._orders.values()):
            if key in order.left:
                order.finish(key, error, reason)
                self._report(order)

    def _report(self, order: Order) -> None:
        if not order.left:
            del self._orders[order.token]
            self._tell(self._coordinator, ["done", order.token, order.rows])

    # ---- ZooKeeper, configuration, state

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
        }
        try:
            self._state_file.replace(msgspec.json.encode(state))
        except OSError as error:  # a full disk must not end the supervisor
            logger.warning("state.json not written: %s", error.strerror)
        self._state_ms = now_ms()
        self._state_dirty = False

    # ---- the end

    def _stop(self) -> None:
        """Stop in order: take nothing new, answer, flush, mark clean, deregister; all within the time limit."""
        self._notifier.tell("STOPPING=1", "STATUS=stopping")
        logger.info("stopping")
        self._state = "stopping"
        self._write_state()
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
        assert self._nodes is not None
        self._nodes.ask_to_end()
        self._wait_until(lambda: not self._nodes, deadline_ms)

    def _wait_until(self, done: Callable[[], bool], deadline_ms: int) -> None:
        while not done() and now_ms() < deadline_ms:
            for fd, event in self._epoll.poll(max(0, deadline_ms - now_ms()) / 1000):
                self._dispatch(fd, event)

    def clean_up(self) -> None:
        """Leave nothing behind, however the run ended."""
        for child in set(self._children.values()):
            logger.warning("%s %s (pid %d) did not stop in time: killed", child.role, child.key, child.pid)
            child.kill()
            child.reap()
        self._children.clear()
        if self._nodes is not None:
            self._nodes.end()
        memory.unlink_all(self._instance)
        self._state = "stopped"
        self._writers.clear()
        self._write_state()


class Order:
    """A request of the coordinator about several partitions: answered when all are done."""

    def __init__(self, token: int, left: set[Key]) -> None:
        self.token = token
        self.left = left
        self.rows: list[list[Any]] = []

    def finish(self, key: Key, error: int, message: str) -> None:
        self.left.discard(key)
        self.rows.append([*key, error, message])


def _raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if sys.platform != "linux":  # pragma: no cover
    raise ImportError("epoll, eventfd, sendfile and pidfds are Linux")
