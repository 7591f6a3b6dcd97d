"""Runs operations over kazoo, within their time, from the owner's loop or in a blocked thread.

A :class:`Task` is one running operation.  :class:`Tasks` sends its requests while kazoo is connected and holds them
back otherwise, repeats those whose reply was lost, and passes the replies to the operation.  Nothing more is sent for
an operation that was given up.  Its last request may still be carried out, so operations for which that matters use a
version (see ``OffsetRegistry``).

A failing operation does not affect others.  A path or size that ZooKeeper does not accept is never sent: its operation
ends with :class:`InvalidRequest`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from ..errors import ApplianceError, InvalidRequest, ZooKeeperAway
from .kazoo_link import KazooLink, reply_of
from .lease import Lease
from .operations import Operation, Request, check_request

T = TypeVar("T")

OPERATION_TIMEOUT_MS: Final = 5_000


class Task:
    """One running operation.  ``done`` is called once, with its result or error."""

    def __init__(
        self, operation: Operation[Any], done: Callable[[Any], None], deadline_ms: int, session_id: int | None
    ) -> None:
        self.operation = operation
        self.done = done
        self.deadline_ms = deadline_ms
        """0: none."""
        self.session_id = session_id
        """The only session it may run in; None: any."""
        self.requests: list[Request] = []
        self.replies: list[Any] = []
        self.waiting: set[int] = set()  # indexes of requests without a reply
        self.over = False
        self.forget: Callable[[Task], None] = lambda _: None

    def cancel(self) -> None:
        """End the operation without a call of ``done``.  Requests that were sent may still be carried out."""
        if not self.over:
            self.over = True
            self.forget(self)
            self.operation.close()


class Tasks:
    """Runs at most ``operations_max`` submitted tasks.  ``deliver`` has the owner's loop run a function.

    Only the owner's thread may use it, except for :meth:`call`.
    """

    def __init__(
        self,
        kazoo: KazooLink,
        lease: Lease,
        clock_ms: Callable[[], int],
        deliver: Callable[[Callable[[], None]], None],
        operations_max: int,
    ) -> None:
        self._kazoo = kazoo
        self._lease = lease
        self._clock_ms = clock_ms
        self._deliver = deliver
        self._operations_max = operations_max
        self._tasks: dict[Task, None] = {}
        self._held_back: dict[Task, None] = {}  # tasks whose requests wait for a connection

    def __len__(self) -> int:
        return len(self._tasks)

    def submit(
        self, operation: Operation[Any], done: Callable[[Any], None], timeout_ms: int, session_id: int | None
    ) -> Task:
        """Run an operation within ``timeout_ms``.

        Raises:
            ZooKeeperAway: too many operations wait already.
        """
        if len(self._tasks) >= self._operations_max:
            operation.close()
            raise ZooKeeperAway(f"{len(self._tasks)} operations wait for ZooKeeper already")
        return self.begin(operation, done, self._clock_ms() + timeout_ms, session_id)

    def begin(
        self,
        operation: Operation[Any],
        done: Callable[[Any], None],
        deadline_ms: int = 0,
        session_id: int | None = None,
    ) -> Task:
        """Run an operation outside of ``operations_max``.  It starts in the next ``poll``."""
        task = Task(operation, done, deadline_ms, session_id)
        self._tasks[task] = None
        task.forget = self._forget
        self._deliver(lambda: self._advance(task))
        return task

    def resume(self) -> None:
        """Send the requests that were held back: kazoo is connected."""
        held_back, self._held_back = self._held_back, {}
        for task in held_back:
            self._send(task, sorted(task.waiting))

    def deadlines(self) -> list[int]:
        return [task.deadline_ms for task in self._tasks if task.deadline_ms]

    def expire(self, now_ms: int) -> None:
        """End the tasks whose time is over."""
        for task in [task for task in self._tasks if 0 < task.deadline_ms <= now_ms]:
            self._finish(task, ZooKeeperAway("ZooKeeper did not answer in time; try again"))

    def cancel_all(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        self._tasks.clear()

    # --- one task

    def _forget(self, task: Task) -> None:
        self._tasks.pop(task, None)
        self._held_back.pop(task, None)

    def _advance(self, task: Task) -> None:
        """Pass the replies to the operation, and send its next requests."""
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
        finally:  # after a bug in the operation, too, its waiter gets an error before the bug is raised
            if outcome is not task:
                self._finish(task, outcome)
        if outcome is task:
            self._send(task, range(len(requests)))

    def _send(self, task: Task, indexes: Iterable[int]) -> None:
        if task.over:
            return
        kazoo = self._kazoo
        if not kazoo.live.is_set():
            self._held_back[task] = None
            return
        if task.session_id not in (None, kazoo.live_id):
            self._finish(task, ZooKeeperAway("the ZooKeeper session was lost"))
            return
        sent_ms, requests, session_id = self._clock_ms(), task.requests, kazoo.live_id

        def landed(index: int, result: Any) -> None:  # in kazoo's thread
            self._deliver(lambda: self._on_reply(task, requests, index, result, sent_ms, session_id))

        for index in indexes:
            result = kazoo.issue(requests[index])
            result.rawlink(lambda result, index=index: landed(index, result))

    def _on_reply(
        self, task: Task, requests: list[Request], index: int, result: Any, sent_ms: int, session_id: int
    ) -> None:
        if task.over or task.requests is not requests:
            return
        try:
            reply = reply_of(requests[index].verb, result)
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

    def _extend_lease(self, sent_ms: int, session_id: int) -> None:
        if session_id == self._kazoo.live_id:
            self._lease.extend(sent_ms)

    # --- in any thread

    def call(self, operation: Operation[T], timeout_ms: int, session_id: int | None) -> T:
        """Run an operation in the calling thread and return its result.

        Raises:
            ZooKeeperAway: no answer within ``timeout_ms``, or ``session_id`` is over.
        """
        deadline_ms = self._clock_ms() + timeout_ms
        try:
            requests = next(operation)
            while True:
                requests = operation.send(self._ask_and_wait(requests, deadline_ms, session_id))
        except StopIteration as finished:
            result: T = finished.value
            return result
        finally:
            operation.close()

    def _ask_and_wait(self, requests: list[Request], deadline_ms: int, only_session_id: int | None) -> list[Any]:
        """The replies to ``requests``.  Requests whose reply was lost are sent again."""
        for request in requests:
            check_request(request)
        kazoo = self._kazoo
        replies: list[Any] = [None] * len(requests)
        waiting = list(range(len(requests)))
        while waiting:
            left_ms = deadline_ms - self._clock_ms()
            if left_ms <= 0 or not kazoo.live.wait(left_ms / 1000) or not kazoo.started:
                raise ZooKeeperAway(f"ZooKeeper at {kazoo.connect} cannot be reached; try again")
            if only_session_id not in (None, kazoo.live_id):
                raise ZooKeeperAway("the ZooKeeper session was lost")
            sent_ms, session_id = self._clock_ms(), kazoo.live_id
            results = [(index, kazoo.issue(requests[index])) for index in waiting]
            for index, result in results:
                result.wait(max(0, deadline_ms - self._clock_ms()) / 1000)
                replies[index] = reply_of(requests[index].verb, result)
            if len(waiting) > sum(replies[index] is None for index in waiting):
                self._extend_lease(sent_ms, session_id)
            waiting = [index for index in waiting if replies[index] is None]
        return replies
