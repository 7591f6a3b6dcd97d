"""The supervisor creates shared memory, forks the other processes, reaps them, and stops them in order.

It has no threads and no ZooKeeper client, accepts no connection and reads no logs: a crash of another process does not
end it.  Signal handlers only wake the loop.  Every step that the machine may refuse is an action (:mod:`.actions`): it
is retried and shown in ``status``, and the loop goes on.

This module is the program: start, loop, reload, stop.  A restart interrupts clients from the end of the old workers to
the first writer of the new ones, so all that can be done before or after that is not done between::

    state      since                           messages are served   what is done
    starting   the sockets are bound           soon                  openers, workers and coordinator are forked; once
                                                                     they serve, or after HEAD_START_MS, the others:
                                                                     nodes, side processes, cleaner
    serving    all partitions are opened, and  yes                   the scrubber is forked
               ZooKeeper is there, or late
    stopping   SIGTERM or SIGINT               yes                   the others end, the coordinator, then the nodes
                                               no                    workers answer and end, writers flush and end
    stopped    all have ended

The parts::

    children           forks, watches, sends to, reaps all children, and in containers those whose parent has ended
    child_events       handles their messages, and their ends; carries out orders of the coordinator
    workers            network workers, their arenas and doorbells
    certificates       the files of the TLS listeners, loaded again when they change
    coordinator_child  the coordinator and the state of ZooKeeper
    writers, nursery   a writer per partition that is in use; the nursery forks them
    hosted, opening    the partitions: their tables in /dev/shm, and the openers that open them
    removal            partitions that are deleted: their names, then their files
    outages            partitions that are repaired, or whose files somebody has touched, and how they come back
    inspection         the inspector, which looks whether files are there, and the damage that it has found
    scrubber           reads all logs slowly, to find damage
    compactions        the process that compacts logs
    nodes              the local ZooKeeper
    side_processes     servers beside the data path: console, metrics
    inputs             processes that take logs in
    status_report      state.json, for ``status`` (state_file: how it is replaced)
    reloads            what a reload changes

The supervisor shares the data directory's lock with the writers: no other supervisor can start while a writer of a
killed instance lives, so only one process writes a partition's files.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import logging
import os
import platform
import resource
import select
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from ...addresses import Listener
from ...catalog import Catalog
from ...clock import now_ms
from ...config import Config
from ...data_directory import check_small_files, foreign_partitions, take_format
from ...durable_files import DIRECTORY_MODE, FILE_MODE
from ...errors import AlreadyRunning, BadValue, ConfigFault, OutOfResources, StorageFault
from ...launch import Launch
from ...libc import give_back_memory
from ...machine_limits import ADVICE, DESCRIPTORS, connections_granted, descriptors_granted, limit_of
from ...names import TopicPartition
from ...owners import refuse_others_directory
from ...security import security_file
from ...shared import memory
from ...status import LOCK_FILE, forget_failed_start
from ...zookeeper.login import login_of
from ..messages import LogLevel
from ..snapshot import changes_at_start
from .actions import REFUSALS, Actions, reason_of, surviving
from .certificates import Certificates
from .child_events import ChildEvents
from .children import LOCK, Children, Orphans
from .compactions import Compactions
from .coordinator_child import CoordinatorChild
from .fork import SideRole
from .hosted import Hosted, HostedPartition
from .inputs import PASSED_NAME, Inputs, RunInput
from .inspection import Inspection
from .listeners import LOCAL, PASSED, insecure, listen, remove_sockets, texts, without_rules
from .nodes import Nodes
from .opening import Opening
from .outages import Outages
from .reloads import Reloads
from .removal import Removals
from .roles import Role
from .scrubber import Scrubbing
from .side_processes import Serve, SideProcesses
from .status_report import RefusalCounts, StatusReport
from .systemd import Notifier, inherited_listeners
from .workers import Workers
from .writers import Writers

logger = logging.getLogger(__name__)

HEAD_START_MS: Final = 1_000
"""How long the others wait at most for what serves messages: a recovery may take minutes."""
EVENT_REFUSED_S: Final = 0.1
"""How long the loop waits after a refusal, outside of any action, while handling an event."""
UMASK: Final = 0o077
LOCK_WAIT_MS: Final = 10_000
"""How long a start waits for the last writers of a killed instance to end."""


def take_directory(data_dir: Path) -> None:
    """Make the data directory, close it to other users, and let nobody else read what this process makes.

    Files that an earlier release made for a group stay as they are: the directory hides them.

    Raises:
        OthersDirectory: root was to serve the directory of another user.
    """
    refuse_others_directory(data_dir)
    data_dir.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    os.umask(UMASK)
    mode = stat.S_IMODE(data_dir.stat().st_mode)
    if mode & UMASK:
        logger.warning("%s had mode %04o; it has %04o now, so that no other user can read it", data_dir, mode, 0o700)
        data_dir.chmod(DIRECTORY_MODE)


def lock(data_dir: Path) -> int:
    """Lock the data directory, for a supervisor or a repair without one; return the descriptor that holds the lock.

    It waits for the orphans of a killed supervisor to end.

    Raises:
        AlreadyRunning: another supervisor has it, or another process that does not end; the message says what to do.
    """
    fd = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    deadline_ms = now_ms() + LOCK_WAIT_MS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)  # it names a process that has ended, and perhaps another one that has its number now
            return fd
        except BlockingIOError:
            pid = os.pread(fd, 32, 0).decode(errors="replace").strip()
            reason = ""
            if pid and Path(f"/proc/{pid}").exists():
                reason = f"{data_dir} is in use by the appliance with pid {pid}: stop it, or give another --data"
            elif now_ms() > deadline_ms:
                file = data_dir / LOCK_FILE
                reason = (
                    f"{data_dir} is locked by a repair, by an appliance in another container, or by a process "
                    f"of an appliance that was killed (pid {pid or 'unknown'}) which hangs: see which with "
                    f"fuser -v {file}, wait for a repair, end what hangs with fuser --kill {file}, and try again"
                )
            if reason:
                os.close(fd)
                raise AlreadyRunning(reason) from None
            time.sleep(0.05)


def sign(lock_fd: int) -> None:
    """Write into the lock file that this process serves the directory."""
    os.pwrite(lock_fd, str(os.getpid()).encode(), 0)


class Signals:
    """Notes signals: the handlers only record them and wake the loop, through a socket."""

    def __init__(self) -> None:
        self._noted: set[int] = set()
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)

    def handle(self, *numbers: int) -> None:
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, lambda number, _: self._noted.add(number))

    def __contains__(self, number: int) -> bool:
        return number in self._noted

    def discard(self, number: int) -> None:
        self._noted.discard(number)

    def fileno(self) -> int:
        return self._reader.fileno()

    def drain(self) -> None:
        self._reader.recv(4096)

    def close(self) -> None:
        """In a forked child."""
        self._reader.close()
        self._writer.close()


def run(
    config: Config,
    data_dir: Path,
    launch: Launch,
    reload: Callable[[], Config],
    side_roles: Mapping[SideRole, Serve],
    run_input: RunInput,
) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status.

    Args:
        launch: how this process was started, for whoever has to look at it or start it again.
        reload: reads the configuration again on SIGHUP; settings that may change while running are then applied.
        side_roles: see :mod:`.side_processes`.
        run_input: see :mod:`.inputs`.

    Raises:
        AlreadyRunning: another supervisor has this data directory.
        ConfigFault: an address, the ensemble or the machine cannot be used, or a newer release has changed the data
            directory; the message has what to change.
        OutOfResources: the machine lacks a resource for the start; the message has how to get more.
        StorageFault: a file at the top of the directory is damaged, is gone, or belongs to somebody else.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        raise BadValue(f"{platform.machine()}: shared tables rely on the store order of x86-64: run it on one")
    with _starting():
        take_directory(data_dir)
        lock_fd = lock(data_dir)
        sign(lock_fd)
        forget_failed_start(data_dir)
        take_format(data_dir)
        check_small_files(data_dir, config)
        supervisor = Supervisor(config, data_dir, launch, lock_fd, reload, side_roles, run_input)
    try:
        with _starting():
            supervisor.prepare()
        return supervisor.run()
    finally:
        supervisor.clean_up()


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """Let a start that reaches a limit of the machine fail: nothing is served yet, and its caller can start again.

    Raises:
        OutOfResources: for any error that comes from a limit of the machine.
    """
    try:
        yield
    except (OSError, StorageFault) as error:
        limit = limit_of(error)
        if not limit:
            raise
        raise OutOfResources(f"cannot start: {error} ({limit}): {ADVICE[limit]}") from error


class Supervisor:
    """The program.  Most of its attributes are the parts listed in the module's docstring."""

    def __init__(
        self,
        config: Config,
        data_dir: Path,
        launch: Launch,
        lock_fd: int,
        reload: Callable[[], Config],
        side_roles: Mapping[SideRole, Serve],
        run_input: RunInput,
    ) -> None:
        self._config, self._data_dir, self._reload = config, data_dir, reload
        self._instance = memory.instance_of(data_dir)
        self._notifier = Notifier(os.environ)
        self._watchdog_ms, self._signals = 0, Signals()
        self._listeners: list[tuple[Listener, socket.socket]] = []
        self._epoll = select.epoll()
        self._epoll.register(self._signals.fileno(), select.EPOLLIN)

        self._actions = actions = Actions(self._on_change)
        self._hosted = hosted = Hosted()
        self._children = children = Children(
            self._epoll,
            config.liveness.timeout_ms,
            actions,
            on_change=self._on_change,
        )
        common = (config, data_dir, self._instance, hosted, children, actions)
        self._workers = Workers(*common, on_started=lambda index: self._child_events.on_worker_started(index))
        self._certificates = Certificates(config, actions, self._workers, self._on_change)
        self._coordinator = CoordinatorChild(*common, self._workers)
        self._scrubbing = Scrubbing(config, data_dir, children, actions)
        among = (data_dir, hosted, children, actions, self._workers, self._coordinator, self._on_answer)
        self._inspection = Inspection(*among, self._scrubbing)
        self._opening = Opening(*common, self._workers, self._coordinator, self._inspection)
        self._writers = Writers(config, data_dir, hosted, children, actions, self._workers, self._on_change)
        self._compactions = Compactions(*among[:-1], self._writers)
        self._outages = Outages(*among, self._writers, self._opening, self._inspection, self._compactions)
        rewriters = [self._outages.repairers, self._compactions.role]
        self._removals = Removals(data_dir, hosted, children, actions, self._writers, rewriters)
        self._sides = SideProcesses(side_roles, config, data_dir, children, actions)
        self._inputs = Inputs(run_input, config, data_dir, children, actions)
        refusals = RefusalCounts()
        self._child_events = ChildEvents(
            *(hosted, children, self._workers, self._coordinator, self._writers, self._opening, self._removals),
            *(self._outages, self._compactions, self._inspection, self._scrubbing, self._sides, self._inputs),
            *(self._on_change, refusals),
        )
        ensemble = msgspec.structs.replace(config.zookeeper, heap_mb=config.heap_mb)
        self._nodes = Nodes(ensemble, data_dir, self._epoll, actions, self._on_zookeeper_prepared, self._on_change)
        self._orphans = Orphans(actions, lambda pid: children.awaits(pid) or self._nodes.awaits(pid))
        self._others = actions.define("start what is not on the data path", lambda _: self._start_others())
        self._report = StatusReport(
            data_dir,
            self._instance,
            launch,
            *(hosted, children, actions, self._workers, self._writers, self._coordinator, self._nodes),
            self._notifier,
            *(Reloads(config), self._certificates, self._inspection, self._inputs, refusals, self._compactions),
        )
        self._close_in_children(lock_fd)

    def _close_in_children(self, lock_fd: int) -> None:
        self._children.close_in_child(lambda: os.close(lock_fd), LOCK)
        for mine in (self._signals.close, self._nodes.close_in_child, self._notifier.close):
            self._children.close_in_child(mine)

    def _on_change(self) -> None:
        self._report.on_change()

    def _on_answer(self) -> None:
        """Let ``status`` show a change before somebody is told that it has been made."""
        self._report.write_now()

    # ---- the program

    def prepare(self) -> None:
        """Create everything that comes before the first fork; errors of configuration and machine are raised here.

        Raises:
            OSError, ConfigFault, StorageFault: see :func:`run`.
        """
        with surviving("removing what killed instances left in /dev/shm"):
            for name in memory.unlink_all(self._instance) + memory.sweep():
                logger.info("removed shared memory of a killed instance: %s", name)
        with surviving("marking our shared memory as ours"):
            owner_fd = memory.own(self._instance)
            self._children.close_in_child(lambda: os.close(owner_fd))
        _raise_file_limit()
        if self._config.zookeeper.connect:
            login_of(self._config.zookeeper, self._data_dir)
        self._nodes.prepare()
        passed = inherited_listeners(os.environ, tuple(PASSED), (PASSED_NAME,))
        self._listeners = listen(self._config, self._data_dir, passed)
        self._inputs.adopt(passed.get(PASSED_NAME, []))
        self._certificates.prepare(any(listener.tls for listener, _ in self._listeners))
        self._sides.prepare()
        self._report.disk, self._report.low = self._config.disk, _low_limits(self._config, self._writers.count_max)
        self._report.listeners = texts(self._listeners, self._data_dir) | self._sides.listeners
        self._report.insecure = insecure(self._listeners, self._config) + self._sides.insecure
        self._report.without_rules = without_rules(self._listeners, self._config)
        catalog = Catalog.load(self._data_dir)
        self._report.watch_foreign(foreign_partitions(self._data_dir, catalog, self._config.broker.id))
        for name, partition in catalog.hosted(self._config.broker.id):
            topic = catalog.topics[name]
            self._hosted[TopicPartition(name, partition)] = HostedPartition(topic.id, dict(topic.settings))
        self._workers.prepare(self._listeners, self._certificates.files)
        with surviving("making the first snapshot of workers"):
            security = security_file.load(self._data_dir / security_file.FILE_NAME)
            connect = self._coordinator.zookeeper["connect"]
            self._workers.snapshot = changes_at_start(self._config, catalog, security, connect)
        self._signals.handle(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT comes, then stop; return the exit status."""
        self._start()
        while signal.SIGTERM not in self._signals and signal.SIGINT not in self._signals:
            self._turn()
            if "" in self._others and self._serves_messages:
                self._others.want()
            if self._report.state == "starting" and self._is_ready:
                self._on_serving()
        self._stop()
        return 0

    @property
    def _serves_messages(self) -> bool:
        return bool(self._workers) and not self._hosted.opening and self._coordinator.published

    @property
    def _is_ready(self) -> bool:
        return bool(self._workers) and not self._hosted.opening and not self._coordinator.awaits_zookeeper

    def _start(self) -> None:
        """Start what clients need to produce and fetch, which is all that a restart interrupts; the others follow."""
        give_back_memory()  # of the bytes that were imported: 2.4 MB in 0.3 ms
        gc.freeze()  # what has been imported is never looked at again, here and in the children
        self._writers.start()
        with surviving("making arenas"):  # before the tables: without workers nothing can be served
            self._opening.make_offline_table()
            self._workers.make_arenas()
        self._opening.start()
        self._opening.start_openers()
        self._workers.start()
        self._coordinator.start(texts(self._listeners, self._data_dir))
        self._children.watch_hearts()
        self._others.want(delay_ms=HEAD_START_MS)

    def _start_others(self) -> None:
        """Start what is not on the data path: its Javas would take the processors from those that are."""
        self._inspection.role.start("")
        self._nodes.start()
        self._coordinator.begin_wait()
        self._sides.start()
        self._inputs.start()
        self._removals.clean()

    def _on_serving(self) -> None:
        self._coordinator.end_wait()
        self._scrubbing.role.start("")
        self._report.enter("serving")  # before the line is printed, so that a reader of the line finds this state
        listeners = " ".join(f"{name}={text}" for name, text in self._report.listeners.items() if name != LOCAL)
        print(f"appliance: serving {listeners} data={self._data_dir} pid={os.getpid()}", flush=True)
        self._notifier.send("READY=1")

    def _turn(self) -> None:
        """Wait for events, handle them, run the actions that are due."""
        self._opening.start_openers()
        self._handle_events(self._timeout_s())
        self._opening.start_openers()
        self._actions.run_due()
        if signal.SIGHUP in self._signals:
            self._signals.discard(signal.SIGHUP)
            self._reload_config()
        now = now_ms()
        if self._notifier.watchdog_ms and now - self._watchdog_ms >= self._notifier.watchdog_ms:
            self._watchdog_ms = now
            self._notifier.send("WATCHDOG=1")

    def _timeout_s(self) -> float:
        deadlines_ms = [self._actions.next_ms()]
        if self._notifier.watchdog_ms:
            deadlines_ms.append(self._watchdog_ms + self._notifier.watchdog_ms)
        next_ms = min((when for when in deadlines_ms if when is not None), default=None)
        return 3_600 if next_ms is None else max(0, next_ms - now_ms()) / 1000

    def _handle_events(self, timeout_s: float) -> None:
        """Wait for events and handle them.  A refusal outside of any action loses that event; the loop goes on."""
        for fd, event in self._epoll.poll(timeout_s):
            try:
                if fd == self._signals.fileno():
                    self._signals.drain()
                elif fd in self._nodes:
                    self._nodes.on_end(fd)
                else:
                    for child, what in self._children.on_event(fd, event):
                        self._child_events.handle(child, what)
            except REFUSALS as error:
                logger.error("refused: handling an event: %s", reason_of(error), exc_info=error)
                select.select([], [], [], EVENT_REFUSED_S)  # the event may come again at once
        if signal.SIGCHLD in self._signals:
            self._signals.discard(signal.SIGCHLD)
            self._orphans.reap()
        self._removals.start_remover()
        self._outages.go_on()

    # ---- ZooKeeper and the configuration

    def _on_zookeeper_prepared(self, connect: str) -> None:
        self._coordinator.use_zookeeper(connect)
        self._on_change()

    def _reload_config(self) -> None:
        """Read the configuration again: :mod:`.reloads` says which keys change."""
        self._notifier.send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            config = self._reload()
        except ConfigFault as error:
            logger.error("configuration not reloaded: %s", error)
            self._report.reloads.fail(str(error))
        else:
            self._config = config = self._report.reloads.note_config(config)
            self._report.disk = config.disk
            self._workers.reload(config)
            self._certificates.reload(config)
            self._opening.reload(config)
            self._coordinator.reload(config)
            self._writers.reload(config)
            self._sides.reload(config)
            self._inputs.reload(config)
            self._scrubbing.reload(config)
            self._workers.send_all(LogLevel(config.log.level))
        self._report.write_now()
        self._notifier.send("READY=1")

    # ---- the end

    def _stop(self) -> None:
        """Stop everything within ``stop.timeout_ms``: first what clients that produce and fetch can do without."""
        self._notifier.send("STOPPING=1")
        logger.info("stopping")
        self._report.enter("stopping")
        begun_ms, timeout_ms = now_ms(), self._config.stop.timeout_ms
        self._stop_others(begun_ms + timeout_ms // 4)
        self._workers.stop()
        self._wait_until(lambda: not self._workers, begun_ms + timeout_ms // 2)
        self._writers.stop()
        self._wait_until(lambda: self._writers.stopped, begun_ms + timeout_ms)

    def _stop_others(self, deadline_ms: int) -> None:
        """Stop what is not on the data path, in this order since the coordinator ends its session with ZooKeeper.

        Meanwhile workers and writers serve.  What has not ended by the deadline is killed at the end.
        """
        self._others.drop()
        self._inputs.stop()
        # They may still need to make a topic, and the others need time, too.
        self._wait_until(lambda: self._inputs.role.all_gone, now_ms() + (deadline_ms - now_ms()) // 2)
        self._sides.stop()
        self._coordinator.stop()
        roles: list[Role[Any]] = [self._scrubbing.role, self._compactions.role, self._inspection.role]
        roles += [self._outages.repairers, self._opening.openers, self._removals.removers, self._removals.cleaners]
        for role in roles:
            role.stop()
        roles.append(self._coordinator.role)
        self._wait_until(lambda: self._sides.stopped and all(role.all_gone for role in roles), deadline_ms)
        self._nodes.stop()
        self._wait_until(lambda: not self._nodes, deadline_ms)

    def _wait_until(self, done: Callable[[], bool], deadline_ms: int) -> None:
        """Handle events until ``done()``, as :meth:`_turn` does; what serves goes on."""
        while not done() and (left_ms := deadline_ms - now_ms()) > 0:
            self._handle_events(min(self._timeout_s(), left_ms / 1000))
            self._opening.start_openers()
            self._actions.run_due()

    def clean_up(self) -> None:
        """Remove processes and shared memory, however the run ended."""
        self._children.kill_all()
        with surviving("ending ZooKeeper"):
            self._nodes.end()
        with surviving("removing shared memory"):
            memory.unlink_all(self._instance)
        remove_sockets(self._listeners)
        self._sides.close()
        self._inputs.close()
        self._report.state = "stopped"
        with surviving("writing state.json"):
            self._report.write()


def _low_limits(config: Config, writers_max: int) -> list[dict[str, Any]]:
    """The limits of the machine that are below what the configuration allows."""
    connections, connections_max = connections_granted(), config.network.connections_max
    if connections >= connections_max:
        return []
    allows = (
        f"about {connections:,} connections to each worker, where network.connections_max is {connections_max:,},"
        f" and {writers_max:,} writers at a time"
    )
    return [{"limit": DESCRIPTORS, "value": descriptors_granted(), "allows": allows, "advice": ADVICE[DESCRIPTORS]}]


def _raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if sys.platform != "linux":  # pragma: no cover
    raise ImportError("epoll, eventfd, sendfile and pidfds are Linux")
