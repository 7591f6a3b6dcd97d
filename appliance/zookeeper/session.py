"""One session with ZooKeeper: kazoo's threads kept at arm's length, every wait bounded, a lease of our own.

    kazoo's threads --(inbox, eventfd)--> poll() in the owner's thread: replies, watches, states, deadlines

* Everything is asynchronous: :meth:`Session.submit` an operation and be told its result, from
  :meth:`Session.poll`, within its time; or, in a client's thread, :meth:`Session.call` blocks, for that time
  at most.  What takes longer is :class:`ZooKeeperAway`.  kazoo itself would block for ever while there is no
  quorum.
* Nothing is handed to kazoo while it is not connected: operations wait here, and are dropped when their time
  is over. So kazoo's queue cannot grow while ZooKeeper is away, and a write that was given up is not made an
  hour later.  One that was on its way at that moment may still land; operations that mind carry a version
  (see ``OffsetRegistry``).
* kazoo tells that a session is lost only after it has reconnected.  Here a session counts as alive for
  ``timeout_ms`` after the *sending* of the last request that was answered, by a clock that runs on while the
  machine sleeps.  ZooKeeper cannot have expired the session before that, so when LOST is told, no other
  member can yet have taken what ephemeral nodes protect.  A heartbeat every third of the timeout keeps the
  lease up while all is well.
* One failing operation fails alone.  What ZooKeeper cannot take (a path, a size) is that operation's
  :class:`InvalidRequest` and is never sent; whatever an operation or a callback raises, ``poll`` goes on with the
  others when it is called again, and what the operation had taken of ``operations_max`` is free.
* Ephemeral nodes given to :meth:`Session.keep` are there again in every new session; watches are armed again
  after every loss of connection and whenever they fire, and tell what changed in between.

Threads: ``call`` is for any thread, everything else for the one that owns the session.  ``start`` after
forking. Times are milliseconds of the clock that is passed in.  Bounds: ``operations_max`` operations waiting
or running.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from kazoo import exceptions as refusals
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import EventType, KeeperState, WatchedEvent
from kazoo.retry import KazooRetry

from ..errors import ApplianceError, ConfigFault, InvalidRequest, ZooKeeperAway
from .operations import (
    Failed,
    Node,
    Operation,
    Refused,
    Request,
    check_request,
    children,
    exists,
    get,
    hold_ephemeral,
)

T = TypeVar("T")
log = logging.getLogger(__name__)

OPERATION_TIMEOUT_MS = 5_000
RENEW_MS = 2_000  # kazoo's thread has ended for so long: it was not about to start
RETRY_MS = 1_000  # between attempts to create an ephemeral node that somebody else holds

_REFUSED = {
    refusals.NoNodeError: Refused.NO_NODE,
    refusals.NodeExistsError: Refused.NODE_EXISTS,
    refusals.BadVersionError: Refused.BAD_VERSION,
    refusals.NotEmptyError: Refused.NOT_EMPTY,
}
_REPEAT = (refusals.ConnectionLoss, refusals.OperationTimeoutError)


def boot_clock_ms() -> int:
    """Milliseconds since boot, also those that the machine slept: a lease runs out during sleep too."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class State(enum.Enum):
    CONNECTING = "connecting"  # no session yet
    CONNECTED = "connected"  # answered within the lease
    SUSPENDED = "suspended"  # the connection is gone, the session may live on
    LOST = "lost"  # the lease is over: whatever ephemeral nodes protected must be given up


class Task:
    """An operation on its way.  ``cancel``: its result is not told any more, though its requests may still land."""

    def __init__(
        self, operation: Operation[Any], done: Callable[[Any], None], deadline_ms: int, session_id: int | None
    ) -> None:
        self.operation = operation
        self.done = done
        self.deadline_ms = deadline_ms
        self.session_id = session_id  # the only session it may run in; None: any
        self.requests: list[Request] = []
        self.replies: list[Any] = []
        self.waiting: set[int] = set()  # indexes of requests without a reply
        self.over = False
        self.forget: Callable[[Task], None] = lambda _: None

    def cancel(self) -> None:
        if not self.over:
            self.over = True
            self.forget(self)
            self.operation.close()


class Watch:
    """A standing question.  ``callback`` gets the answer once, and again each time something has changed.

    The answer is a sorted list of names (children) or bytes (a value); None while there is no such node.  It may be
    the same as before: a member that left and came back has left, and others may have acted on that.
    """

    def __init__(self, session: Session, path: str, want_children: bool, callback: Callable[[Any], None]) -> None:
        self.path, self._want_children, self._callback = path, want_children, callback
        self._session = session
        self._answer: object = self  # nothing was answered yet
        self._question_asked: Task | None = None
        self._again = self._changed = self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._session.forget(self)
        if self._question_asked is not None:
            self._question_asked.cancel()

    def ask(self) -> None:
        """Ask (again); several reasons to ask while a question is open become one more question."""
        if self._cancelled or self._question_asked is not None:
            self._again = True
            return
        self._again = False
        self._question_asked = self._session.submit_unbounded(self._question(), self._answered)

    def fired(self, event: WatchedEvent) -> None:  # in kazoo's thread
        if event.type != EventType.NONE:  # NONE: the connection is gone; the next one asks
            self._session.deliver(self._ask_changed)

    def _ask_changed(self) -> None:
        self._changed = True
        self.ask()

    def _question(self) -> Operation[Any]:
        while True:
            wanted = children if self._want_children else get
            (reply,) = yield [wanted(self.path, self.fired)]
            if isinstance(reply, Node):
                return reply.value
            if reply is not Refused.NO_NODE:
                return sorted(reply)
            (reply,) = yield [exists(self.path, self.fired)]  # the only way to be told when it appears
            if reply is Refused.NO_NODE:
                return None

    def _answered(self, answer: object) -> None:
        self._question_asked = None
        if self._again:
            self.ask()
        if not isinstance(answer, ApplianceError) and (self._changed or answer != self._answer):
            self._answer = answer
            self._changed = False
            self._callback(answer)


class _Kept:
    """An ephemeral node that this session is to have."""

    def __init__(self, path: str, value: bytes, ours: Callable[[bytes], bool]) -> None:
        self.path, self.value, self.ours = path, value, ours
        self.task: Task | None = None
        self.held = False
        self.complained = False
        self.retry_ms: int | None = None


class Session:
    """See the module's docstring.  ``name`` appears in log lines only."""

    def __init__(
        self,
        connect: str,
        timeout_ms: int,
        *,
        name: str = "",
        clock_ms: Callable[[], int] = boot_clock_ms,
        operations_max: int = 1_000,
    ) -> None:
        self.state = State.CONNECTING
        self.session_id = 0
        self.name = name
        self._connect, self._timeout_ms, self._clock_ms = connect, timeout_ms, clock_ms
        self._operations_max = operations_max
        self._client: Any = None
        self._live = threading.Event()  # kazoo is connected
        self._ended_ms = 0  # since when kazoo's thread is gone
        self._live_id = 0  # the session kazoo is connected with, as its threads know it
        self._lease_end_ms = 0
        self._beat_due_ms = 0
        self._beat: Task | None = None
        self._inbox: deque[Callable[[], None]] = deque()
        self._event_fd = -1
        self._tasks: dict[Task, None] = {}
        self._held_back: dict[Task, None] = {}  # tasks whose requests wait for a connection
        self._watches: dict[Watch, None] = {}
        self._kept: dict[str, _Kept] = {}
        self._listeners: list[Callable[[State], None]] = []

    # --- life

    def start(self) -> None:
        """Begin to connect, and go on trying for ever.  Returns at once.  Threads start here: fork before."""
        self._event_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._start_kazoo()

    def _start_kazoo(self) -> None:
        kazoo_log = logging.getLogger(f"{__name__}.kazoo")
        kazoo_log.setLevel(logging.ERROR)  # one line per attempt to connect would fill a disk; we log the states
        retry = KazooRetry(max_tries=-1, delay=0.1, backoff=2, max_delay=1.0)
        self._client = KazooClient(
            hosts=self._connect,
            timeout=self._timeout_ms / 1000,
            connection_retry=retry,
            logger=kazoo_log,
        )
        self._client.add_listener(self._state_changed)
        self._client.start_async()

    def set_connect(self, connect: str) -> None:
        """Other addresses, from the next attempt to connect on (the local ensemble has moved)."""
        self._connect = connect
        if self._client is not None:
            self._client.set_hosts(connect)

    def close(self, timeout_ms: int = 2_000) -> None:
        """End the session: its ephemeral nodes go at once, if ZooKeeper can be reached."""
        for task in list(self._tasks):
            task.cancel()
        self._tasks.clear()
        if self._client is not None:
            # stop() joins kazoo's threads, which takes long while a connection attempt hangs: not in our
            # thread.
            stopper = threading.Thread(target=_stop_kazoo, args=[self._client], daemon=True)
            stopper.start()
            stopper.join(timeout_ms / 1000)
            self._client = None
        if self._event_fd >= 0:
            fd, self._event_fd = self._event_fd, -1
            os.close(fd)

    def _renew_if_ended(self, now: int) -> None:
        """Begin anew where kazoo's thread has ended by itself: an error of its own, or a refused authentication.

        The thread ends for good then ("xids do not match" after a lost quorum is one such error), and with it the
        session.  Whatever was asked has been told; what is kept and watched comes back with the new session.
        """
        if self._client is None or self._client.client_state != KeeperState.CLOSED:
            self._ended_ms = 0
        elif not self._ended_ms:
            self._ended_ms = now
        elif now - self._ended_ms >= RENEW_MS:
            log.warning("ZooKeeper session %s: its client has ended; starting another", self.name)
            self._ended_ms = 0
            threading.Thread(target=_stop_kazoo, args=[self._client], daemon=True).start()
            self._start_kazoo()

    # --- the owner's loop

    def fileno(self) -> int:
        """Readable when :meth:`poll` has something to do."""
        return self._event_fd

    def wait_ms(self) -> int:
        """How long the owner may sleep, unless ``fileno`` becomes readable, before it must ``poll``."""
        now = self._clock_ms()
        due = [task.deadline_ms for task in self._tasks if task.deadline_ms]
        due += [kept.retry_ms for kept in self._kept.values() if kept.retry_ms is not None]
        if self.state in (State.CONNECTED, State.SUSPENDED):
            due.append(self._lease_end_ms)
        if self._live.is_set() and self._beat is None:
            due.append(self._beat_due_ms)
        if self._client is not None and self._client.client_state == KeeperState.CLOSED:
            due.append((self._ended_ms or now) + RENEW_MS)
        return max(0, min(due, default=now + 60_000) - now)

    def run(self, wait_ms: int) -> None:
        """For an owner without a loop: sleep until something happens, ``wait_ms`` at most, then ``poll``."""
        poller = select.poll()
        poller.register(self._event_fd, select.POLLIN)
        poller.poll(min(wait_ms, self.wait_ms()))
        self.poll()

    def poll(self) -> None:
        """Deliver what kazoo has brought: replies, watches, changes of state; and see to everything that is
        due.
        """
        with contextlib.suppress(BlockingIOError):  # woken by the clock
            os.eventfd_read(self._event_fd)
        left = len(self._inbox)
        try:
            while left:
                left -= 1
                self._inbox.popleft()()
        finally:
            if left:  # a callback has raised: the others' turn comes with the next poll
                self._ring()
        now = self._clock_ms()
        for task in [task for task in self._tasks if 0 < task.deadline_ms <= now]:
            self._finish(task, ZooKeeperAway("ZooKeeper did not answer in time; try again"))
        if self.state in (State.CONNECTED, State.SUSPENDED) and now >= self._lease_end_ms:
            self._enter(State.LOST)
        if self._live.is_set() and self._beat is None and now >= self._beat_due_ms:
            self._send_beat(now)
        for kept in list(self._kept.values()):
            if kept.retry_ms is not None and now >= kept.retry_ms:
                self._establish(kept)
        self._renew_if_ended(now)

    def deliver(self, action: Callable[[], None]) -> None:
        """Have ``action`` run by ``poll``.  From any thread, kazoo's callbacks above all."""
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
        """For so long nobody can have taken what this session's ephemeral nodes protect."""
        return max(0, self._lease_end_ms - self._clock_ms())

    def on_state(self, callback: Callable[[State], None]) -> None:
        """Tell every change of state, from ``poll``.  A new session is always preceded by LOST."""
        self._listeners.append(callback)

    def submit(
        self,
        operation: Operation[T],
        done: Callable[[T | ApplianceError], None],
        *,
        timeout_ms: int = OPERATION_TIMEOUT_MS,
        session_id: int | None = None,
    ) -> Task:
        """Run an operation; ``done`` gets its result or error, from ``poll``, within ``timeout_ms``.

        Args:
            session_id: the only session in which the operation makes sense (``self.session_id``); None: any.

        Raises:
            ZooKeeperAway: too many operations wait already.
        """
        if len(self._tasks) >= self._operations_max:
            operation.close()
            raise ZooKeeperAway(f"{len(self._tasks)} operations wait for ZooKeeper already")
        return self._begin(Task(operation, done, self._clock_ms() + timeout_ms, session_id))

    def submit_unbounded(self, operation: Operation[T], done: Callable[[T | ApplianceError], None]) -> Task:
        """As ``submit``, waiting for ever and outside the limit: for watches, of which there is a fixed
        number.
        """
        return self._begin(Task(operation, done, 0, None))

    def call(
        self,
        operation: Operation[T],
        *,
        timeout_ms: int = OPERATION_TIMEOUT_MS,
        session_id: int | None = None,
    ) -> T:
        """Run an operation in the calling thread, which waits; arguments as for ``submit``.

        Raises:
            ZooKeeperAway: no answer within ``timeout_ms``, or ``session_id`` is over.
        """
        deadline_ms = self._clock_ms() + timeout_ms
        task = Task(operation, lambda _: None, deadline_ms, session_id)
        try:
            requests = next(operation)
            while True:
                requests = operation.send(self._ask_and_wait(task, requests))
        except StopIteration as finished:
            result: T = finished.value
            return result
        finally:
            operation.close()

    def watch_children(self, path: str, callback: Callable[[list[str] | None], None]) -> Watch:
        return self._watch(Watch(self, path, True, callback))

    def watch_value(self, path: str, callback: Callable[[bytes | None], None]) -> Watch:
        return self._watch(Watch(self, path, False, callback))

    def forget(self, watch: Watch) -> None:
        self._watches.pop(watch, None)

    def keep(self, path: str, value: bytes, ours: Callable[[bytes], bool] = lambda _: False) -> None:
        """Have an ephemeral node at ``path`` in this and every later session, until ``unkeep``.

        ``ours`` recognises by its value a node that an earlier session of ours left: it is replaced.  A node
        of somebody else is left alone; one line is logged, and it is tried again every RETRY_MS.  Calling it
        again with another value changes the node.
        """
        kept = self._kept.get(path)
        if kept is None:
            kept = self._kept[path] = _Kept(path, value, ours)
        kept.value, kept.ours = value, ours
        self._establish(kept)

    def unkeep(self, path: str) -> None:
        """Forget a kept node; deleting it is the caller's, or the session's end."""
        kept = self._kept.pop(path, None)
        if kept is not None and kept.task is not None:
            kept.task.cancel()

    def holds(self, path: str) -> bool:
        """Is the kept node in place in the current session, as far as we know?"""
        kept = self._kept.get(path)
        return kept is not None and kept.held

    # --- states and lease

    def _state_changed(self, kazoo_state: str) -> None:  # in kazoo's thread: only note and hand over
        if kazoo_state == "CONNECTED":
            session_id = int(self._client.client_id[0])
            self._live_id = session_id
            self._live.set()
            self.deliver(lambda: self._connected(session_id))
        else:
            self._live.clear()
            self.deliver(lambda: self._disconnected(kazoo_state))

    def _connected(self, session_id: int) -> None:
        if session_id != self.session_id:
            if self.session_id and self.state is not State.LOST:
                self._enter(State.LOST)
            self.session_id = session_id
            for kept in self._kept.values():
                kept.held = False
                self._establish(kept)
        self._send_beat(self._clock_ms())  # CONNECTED is told when it is answered: from then on there is a lease
        waiting, self._held_back = self._held_back, {}
        for task in waiting:
            self._send(task, sorted(task.waiting))
        for watch in list(self._watches):
            watch.ask()

    def _disconnected(self, kazoo_state: str) -> None:
        if kazoo_state == "LOST" and self.state in (State.CONNECTED, State.SUSPENDED):
            self._enter(State.LOST)
        elif self.state is State.CONNECTED:
            self._enter(State.SUSPENDED)

    def _enter(self, state: State) -> None:
        level = logging.INFO if state is State.CONNECTED else logging.WARNING
        log.log(level, "ZooKeeper session %s: %s -> %s", self.name, self.state.value, state.value)
        self.state = state
        if state is State.LOST:
            self._lease_end_ms = 0
        for listener in self._listeners:
            listener(state)

    def _send_beat(self, now: int) -> None:
        if self._beat is not None:
            self._beat.cancel()

        def beat() -> Operation[None]:
            yield [exists("/")]

        session_id = self.session_id

        def answered(result: object) -> None:
            self._beat = None
            self._beat_due_ms = self._clock_ms() + self._timeout_ms // 3
            alive = self._lease_end_ms > self._clock_ms() and session_id == self._live_id
            if not isinstance(result, ApplianceError) and alive and self.state is not State.CONNECTED:
                self._enter(State.CONNECTED)

        self._beat = self._begin(Task(beat(), answered, now + self._timeout_ms, session_id))

    def _extend_lease(self, sent_ms: int, session_id: int) -> None:
        if session_id == self._live_id and sent_ms + self._timeout_ms > self._lease_end_ms:
            self._lease_end_ms = sent_ms + self._timeout_ms

    # --- ephemeral nodes and watches

    def _establish(self, kept: _Kept) -> None:
        kept.retry_ms = None
        if self.session_id == 0:
            return  # _connected will
        if kept.task is not None:
            kept.task.cancel()

        def done(result: bool | ApplianceError) -> None:
            kept.task = None
            kept.held = result is True
            if not kept.held:
                kept.retry_ms = self._clock_ms() + RETRY_MS
                if result is False and not kept.complained:
                    log.error("%s is registered by somebody else; trying until it is gone", kept.path)
                kept.complained = result is False

        operation = hold_ephemeral(kept.path, kept.value, self.session_id, kept.ours)
        kept.task = self._begin(Task(operation, done, self._clock_ms() + OPERATION_TIMEOUT_MS, self.session_id))

    def _watch(self, watch: Watch) -> Watch:
        self._watches[watch] = None
        watch.ask()
        return watch

    # --- running operations

    def _begin(self, task: Task) -> Task:
        """Take a task on.  It starts in the next ``poll``, so nothing is told before its owner knows the task."""
        self._tasks[task] = None
        task.forget = self._forget_task
        self.deliver(lambda: self._advance(task))
        return task

    def _forget_task(self, task: Task) -> None:
        self._tasks.pop(task, None)
        self._held_back.pop(task, None)

    def _advance(self, task: Task) -> None:
        """Send the replies into the operation, and what it asks next to ZooKeeper."""
        if task.over:
            return
        outcome: Any = InvalidRequest("this cannot be carried out in ZooKeeper: see the log of the appliance")
        try:
            requests = task.operation.send(task.replies if task.requests else None)  # type: ignore[arg-type]
            while not requests:
                requests = task.operation.send([])
            for request in requests:
                check_request(request)
            task.requests, task.replies = requests, [None] * len(requests)
            task.waiting = set(range(len(requests)))
            outcome = task
        except StopIteration as finished:
            outcome = finished.value
        except ApplianceError as error:
            outcome = error
        finally:  # a bug in the operation is raised, when the one who waits for it has been told
            if outcome is not task:
                self._finish(task, outcome)
        if outcome is task:
            self._send(task, range(len(requests)))

    def _send(self, task: Task, indexes: Any) -> None:
        if task.over:
            return
        if not self._live.is_set():
            self._held_back[task] = None
            return
        if task.session_id not in (None, self._live_id):
            self._finish(task, ZooKeeperAway("the ZooKeeper session was lost"))
            return
        sent_ms, requests, session_id = self._clock_ms(), task.requests, self._live_id

        def landed(index: int, result: Any) -> None:
            self.deliver(lambda: self._landed(task, requests, index, result, sent_ms, session_id))

        for index in indexes:
            result = self._issue(requests[index])
            result.rawlink(lambda result, index=index: landed(index, result))

    def _landed(
        self, task: Task, requests: list[Request], index: int, result: Any, sent_ms: int, session_id: int
    ) -> None:
        if task.over or task.requests is not requests:
            return
        try:
            reply = _reply_of(requests[index].verb, result)
        except ApplianceError as error:
            self._finish(task, error)
            return
        if reply is None:
            self._send(task, [index])
            return
        self._extend_lease(sent_ms, session_id)
        task.replies[index] = reply
        task.waiting.discard(index)
        if not task.waiting:
            self._advance(task)

    def _finish(self, task: Task, result: Any) -> None:
        if not task.over:
            task.cancel()
            task.done(result)

    def _ask_and_wait(self, task: Task, requests: list[Request]) -> list[Any]:
        """The replies to ``requests``, waited for in the calling thread."""
        for request in requests:
            check_request(request)
        replies: list[Any] = [None] * len(requests)
        waiting = list(range(len(requests)))
        while waiting:
            left_ms = task.deadline_ms - self._clock_ms()
            if left_ms <= 0 or not self._live.wait(left_ms / 1000) or self._client is None:
                raise ZooKeeperAway(f"ZooKeeper at {self._connect} cannot be reached; try again")
            if task.session_id not in (None, self._live_id):
                raise ZooKeeperAway("the ZooKeeper session was lost")
            sent_ms, session_id = self._clock_ms(), self._live_id
            results = [(index, self._issue(requests[index])) for index in waiting]
            for index, result in results:
                result.wait(max(0, task.deadline_ms - self._clock_ms()) / 1000)
                replies[index] = _reply_of(requests[index].verb, result)
            if len(waiting) > sum(replies[index] is None for index in waiting):
                self._extend_lease(sent_ms, session_id)
            waiting = [index for index in waiting if replies[index] is None]
        return replies

    def _issue(self, request: Request) -> Any:
        """Hand one request to kazoo; an IAsyncResult."""
        client, path = self._client, request.path
        if request.verb == "get":
            return client.get_async(path, watch=request.watch)
        if request.verb == "exists":
            return client.exists_async(path, watch=request.watch)
        if request.verb == "children":
            return client.get_children_async(path, watch=request.watch)
        if request.verb == "create":
            return client.create_async(path, request.value, ephemeral=request.ephemeral)
        if request.verb == "set":
            return client.set_async(path, request.value, version=request.version)
        if request.verb == "sync":
            return client.sync_async(path)
        if request.verb == "multi":
            return _transaction(client, request.parts).commit_async()
        assert request.verb == "delete", request.verb
        return client.delete_async(path, version=request.version)


def _stop_kazoo(client: Any) -> None:
    try:
        client.stop()
        client.close()
    except (refusals.KazooException, OSError) as error:
        log.debug("closing the ZooKeeper session: %s", error)


def _transaction(client: Any, parts: Iterable[Request]) -> Any:
    transaction = client.transaction()
    for part in parts:
        if part.verb == "create":
            transaction.create(part.path, part.value, ephemeral=part.ephemeral)
        elif part.verb == "set":
            transaction.set_data(part.path, part.value, part.version)
        elif part.verb == "check":
            transaction.check(part.path, part.version)
        else:
            assert part.verb == "delete", part.verb
            transaction.delete(part.path, part.version)
    return transaction


def _reply_of(verb: str, result: Any) -> Any:
    """What kazoo's result means to an operation; None when the request must be sent again.

    Raises:
        ZooKeeperAway: no answer (yet), or the session is over.
        ConfigFault: ZooKeeper refuses us; a person must change its permissions.
    """
    try:
        value = result.get(block=False)
    except tuple(_REFUSED) as refusal:
        return _REFUSED[type(refusal)]
    except _REPEAT:
        return None
    except KazooTimeoutError:
        raise ZooKeeperAway("ZooKeeper did not answer in time; try again") from None
    except refusals.BadArgumentsError as refusal:
        raise InvalidRequest(f"ZooKeeper does not take this: {refusal!r}") from None
    except (refusals.NoAuthError, refusals.AuthFailedError) as refusal:
        raise ConfigFault(f"ZooKeeper refuses access ({refusal!r}); correct its ACLs") from None
    except (refusals.KazooException, RuntimeError, OSError) as error:  # also what ends kazoo's own thread
        raise ZooKeeperAway(f"ZooKeeper cannot serve this now: {error!r}") from None
    if verb == "get":
        return _node(value[0], value[1])
    if verb == "exists":
        return Refused.NO_NODE if value is None else _node(b"", value)
    if verb == "children":
        return value
    if verb == "multi":
        return _reply_of_multi(value)
    return value.version if verb == "set" else 0


def _node(value: bytes, stat: Any) -> Node:
    return Node(value, stat.version, stat.ephemeralOwner, stat.mtime, stat.dataLength)


def _reply_of_multi(results: list[Any]) -> list[Any] | Failed:
    """``results``: of each part a path, a stat or True; or an error each, of which one is the reason."""
    for index, result in enumerate(results):
        if type(result) in _REFUSED:
            return Failed(index, _REFUSED[type(result)])
        if isinstance(result, (refusals.NoAuthError, refusals.AuthFailedError)):
            raise ConfigFault(f"ZooKeeper refuses access ({result!r}); correct its ACLs")
    failed = [result for result in results if isinstance(result, Exception)]
    if failed:
        raise ZooKeeperAway(f"ZooKeeper cannot serve this now: {failed[0]!r}")
    return [getattr(result, "version", 0) for result in results]
