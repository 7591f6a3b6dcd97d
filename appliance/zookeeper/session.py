"""Keeps one session with ZooKeeper, with a bound on every wait, and reports every loss of the session::

    kazoo's threads ──(inbox, eventfd)──▶ poll() in the owner's thread: replies, watches, states, deadlines

* Everything is asynchronous: :meth:`Session.poll` delivers the result of an operation given to :meth:`Session.submit`,
  within its time.  An operation that takes longer ends with :class:`~.errors.ZooKeeperAway`.  kazoo itself would block
  for ever while there is no quorum.
* Operations wait here while kazoo is not connected, and are dropped when their time is over (``tasks.py``).  So kazoo's
  queue cannot grow while ZooKeeper is away, and a write that was given up is not sent an hour later.
* A lease of our own shows when the session may be lost (``lease.py``), because kazoo reports that too late.  A
  heartbeat every third of the timeout extends the lease.
* When an operation or a callback raises, the next ``poll`` goes on with the others.
* Ephemeral nodes given to :meth:`Session.keep` are created again in every new session (``kept_nodes.py``).
* Watches are set again after every loss of the connection and whenever they fire (:class:`NodeWatch`).

Threads: any thread may call ``deliver`` and ``lease_left_ms``, only the owner everything else.  Fork before
``start``.  Times are milliseconds of the clock that is passed in.  Bound: ``operations_max`` operations waiting or
running.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from kazoo.protocol.states import EventType, WatchedEvent

from ..errors import ApplianceError
from .kazoo_link import KazooLink
from .kept_nodes import KeptNodes
from .lease import Lease, boot_clock_ms
from .login import ZooKeeperLogin
from .operations import Node, Operation, Refused, children, exists, get
from .tasks import OPERATION_TIMEOUT_MS, Task, Tasks

T = TypeVar("T")
log = logging.getLogger(__name__)


class SessionState(enum.Enum):
    CONNECTING = "connecting"  # no session yet
    CONNECTED = "connected"  # answered within the lease
    SUSPENDED = "suspended"  # the connection is gone, the session may live on
    LOST = "lost"  # the lease is over: give up everything that ephemeral nodes protected


class Session:
    """See the module's docstring.  ``name`` appears in log lines only.  ``login`` None: the ensemble is open."""

    def __init__(
        self,
        connect: str,
        timeout_ms: int,
        *,
        name: str = "",
        login: ZooKeeperLogin | None = None,
        clock_ms: Callable[[], int] = boot_clock_ms,
        operations_max: int = 1_000,
    ) -> None:
        self.state = SessionState.CONNECTING
        self.session_id = 0
        self.name = name
        self._timeout_ms, self._clock_ms = timeout_ms, clock_ms
        self._kazoo = KazooLink(connect, timeout_ms, name, login, self._kazoo_changed)
        self._lease = Lease(timeout_ms, clock_ms)
        self._tasks = Tasks(self._kazoo, self._lease, clock_ms, self.deliver, operations_max)
        self._kept = KeptNodes(self._tasks, clock_ms)
        self._watches: dict[NodeWatch, None] = {}
        self._listeners: list[Callable[[SessionState], None]] = []
        self._beat: Task | None = None
        self._beat_due_ms = 0
        self._inbox: deque[Callable[[], None]] = deque()
        self._event_fd = -1

    # --- life

    def start(self) -> None:
        """Begin to connect, and retry for ever.  Returns at once.  Starts threads: fork before."""
        self._event_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._kazoo.start()

    def set_connect(self, connect: str) -> None:
        """Use other addresses from the next attempt to connect on (the local ensemble has other ports)."""
        self._kazoo.set_connect(connect)

    def close(self, timeout_ms: int = 2_000) -> None:
        """End the session.  ZooKeeper, if it can be reached, deletes its ephemeral nodes at once."""
        self._tasks.cancel_all()
        self._kazoo.stop(timeout_ms)
        if self._event_fd >= 0:
            fd, self._event_fd = self._event_fd, -1
            os.close(fd)

    # --- the owner's loop

    def fileno(self) -> int:
        """Readable when :meth:`poll` has something to do."""
        return self._event_fd

    def wait_ms(self) -> int:
        """How long the owner may sleep before it must ``poll``, unless ``fileno`` becomes readable."""
        now = self._clock_ms()
        due = self._tasks.deadlines() + self._kept.deadlines()
        if self.state in (SessionState.CONNECTED, SessionState.SUSPENDED):
            due.append(self._lease.end_ms)
        if self._kazoo.live.is_set() and self._beat is None:
            due.append(self._beat_due_ms)
        renew_due_ms = self._kazoo.renew_due_ms(now)
        if renew_due_ms is not None:
            due.append(renew_due_ms)
        return max(0, min(due, default=now + 60_000) - now)

    def poll(self) -> None:
        """Deliver kazoo's replies, watches and changes of state, and do everything that is due."""
        with contextlib.suppress(BlockingIOError):  # woken by the clock
            os.eventfd_read(self._event_fd)
        callbacks_left = len(self._inbox)
        try:
            while callbacks_left:
                callbacks_left -= 1
                self._inbox.popleft()()
        finally:
            if callbacks_left:  # a callback has raised: the next poll runs the others
                self._ring()
        now = self._clock_ms()
        self._tasks.expire(now)
        if self.state in (SessionState.CONNECTED, SessionState.SUSPENDED) and now >= self._lease.end_ms:
            self._enter(SessionState.LOST)
        if self._kazoo.live.is_set() and self._beat is None and now >= self._beat_due_ms:
            self._send_beat(now)
        self._kept.retry_due(now)
        self._kazoo.renew_if_ended(now)

    def deliver(self, action: Callable[[], None]) -> None:
        """Have ``poll`` run ``action``.  Any thread may call it; kazoo's callbacks do."""
        self._inbox.append(action)
        self._ring()

    def _ring(self) -> None:
        fd = self._event_fd
        if fd >= 0:
            try:
                os.eventfd_write(fd, 1)
            except OSError as error:  # closed a moment ago
                log.debug("waking a closed session: %s", error)

    # --- what others ask for

    @property
    def lease_left_ms(self) -> int:
        """How long ZooKeeper certainly keeps this session and its ephemeral nodes."""
        return self._lease.left_ms

    def on_state(self, callback: Callable[[SessionState], None]) -> None:
        """Have ``poll`` report every change of state.  LOST always precedes a new session."""
        self._listeners.append(callback)

    def submit(
        self,
        operation: Operation[T],
        done: Callable[[T | ApplianceError], None],
        *,
        timeout_ms: int = OPERATION_TIMEOUT_MS,
        session_id: int | None = None,
    ) -> Task:
        """Run an operation.  ``poll`` calls ``done`` with its result or error within ``timeout_ms``.

        Args:
            session_id: run it in this session only (``self.session_id``); None: in any.

        Raises:
            ZooKeeperAway: too many operations wait already.
        """
        return self._tasks.submit(operation, done, timeout_ms, session_id)

    def submit_unbounded(self, operation: Operation[T], done: Callable[[T | ApplianceError], None]) -> Task:
        """As ``submit``, without timeout and outside of ``operations_max``: for watches, whose number is fixed."""
        return self._tasks.begin(operation, done)

    def watch_children(self, path: str, callback: Callable[[list[str] | None], None]) -> NodeWatch:
        return self._watch(NodeWatch(self, path, True, callback))

    def watch_value(self, path: str, callback: Callable[[bytes | None], None]) -> NodeWatch:
        return self._watch(NodeWatch(self, path, False, callback))

    def forget(self, watch: NodeWatch) -> None:
        self._watches.pop(watch, None)

    def keep(self, path: str, value: bytes, ours: Callable[[bytes], bool] = lambda _: False) -> None:
        """Keep an ephemeral node at ``path`` in this and every later session, until ``unkeep``.

        ``ours`` recognises, by its value, a node by an earlier session of ours: it is replaced.  While somebody else
        holds the node, one line is logged and creation is tried again.  A later call changes the value.
        """
        self._kept.keep(path, value, ours)

    def unkeep(self, path: str) -> None:
        """Stop keeping a node.  The caller deletes it, or the end of the session does."""
        self._kept.unkeep(path)

    def holds(self, path: str) -> bool:
        """Whether the kept node is in place in the current session, as far as is known."""
        return self._kept.holds(path)

    def _watch(self, watch: NodeWatch) -> NodeWatch:
        self._watches[watch] = None
        watch.ask()
        return watch

    # --- states and lease

    def _kazoo_changed(self, kazoo_state: str, session_id: int) -> None:  # in kazoo's thread: only hand over
        if kazoo_state == "CONNECTED":
            self.deliver(lambda: self._on_connected(session_id))
        else:
            self.deliver(lambda: self._on_disconnected(kazoo_state))

    def _on_connected(self, session_id: int) -> None:
        if session_id != self.session_id:
            if self.session_id and self.state is not SessionState.LOST:
                self._enter(SessionState.LOST)
            self.session_id = session_id
            self._kept.on_session(session_id)
        self._send_beat(self._clock_ms())  # CONNECTED begins when it is answered: from then on there is a lease
        self._tasks.resume()
        for watch in list(self._watches):
            watch.ask()

    def _on_disconnected(self, kazoo_state: str) -> None:
        if kazoo_state == "LOST" and self.state in (SessionState.CONNECTED, SessionState.SUSPENDED):
            self._enter(SessionState.LOST)
        elif self.state is SessionState.CONNECTED:
            self._enter(SessionState.SUSPENDED)

    def _enter(self, state: SessionState) -> None:
        level = logging.INFO if state is SessionState.CONNECTED else logging.WARNING
        log.log(level, "ZooKeeper session %s: %s -> %s", self.name, self.state.value, state.value)
        self.state = state
        if state is SessionState.LOST:
            self._lease.drop()
        for listener in self._listeners:
            listener(state)

    def _send_beat(self, now: int) -> None:
        """Send a heartbeat, whose reply extends the lease."""
        if self._beat is not None:
            self._beat.cancel()

        def beat() -> Operation[None]:
            yield [exists("/")]

        session_id = self.session_id

        def answered(result: object) -> None:
            self._beat = None
            self._beat_due_ms = self._clock_ms() + self._timeout_ms // 3
            alive = self._lease.left_ms > 0 and session_id == self._kazoo.live_id
            if not isinstance(result, ApplianceError) and alive and self.state is not SessionState.CONNECTED:
                self._enter(SessionState.CONNECTED)

        self._beat = self._tasks.begin(beat(), answered, now + self._timeout_ms, session_id)


class NodeWatch:
    """Watches one path permanently: sets ZooKeeper's watch, which fires once, again and again.

    ``callback`` is called with the state of the path at first, and again after each change.

    The state is a sorted list of names (children) or bytes (a value); None while there is no such node.  It may be the
    same as before: between two reads a member may have left and come back, and others may have acted on that.
    """

    def __init__(self, session: Session, path: str, want_children: bool, callback: Callable[[Any], None]) -> None:
        self.path, self._want_children, self._callback = path, want_children, callback
        self._session = session
        self._answer: object = self  # no answer yet
        self._pending: Task | None = None
        self._again = self._changed = self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._session.forget(self)
        if self._pending is not None:
            self._pending.cancel()

    def ask(self) -> None:
        """Read the state (again).  Any number of calls during a read lead to one more read."""
        if self._cancelled or self._pending is not None:
            self._again = True
            return
        self._again = False
        self._pending = self._session.submit_unbounded(self._read(), self._answered)

    def fired(self, event: WatchedEvent) -> None:  # in kazoo's thread
        if event.type != EventType.NONE:  # NONE: the connection is gone; the next one asks
            self._session.deliver(self._ask_changed)

    def _ask_changed(self) -> None:
        self._changed = True
        self.ask()

    def _read(self) -> Operation[Any]:
        while True:
            read = children if self._want_children else get
            (reply,) = yield [read(self.path, self.fired)]
            if isinstance(reply, Node):
                return reply.value
            if reply is not Refused.NO_NODE:
                return sorted(reply)
            (reply,) = yield [exists(self.path, self.fired)]  # the only way to notice when it appears
            if reply is Refused.NO_NODE:
                return None

    def _answered(self, answer: object) -> None:
        self._pending = None
        if self._again:
            self.ask()
        if not isinstance(answer, ApplianceError) and (self._changed or answer != self._answer):
            self._answer = answer
            self._changed = False
            self._callback(answer)
