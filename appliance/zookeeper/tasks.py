"""Runs operations over kazoo, within their time, from the owner's loop.

A :class:`Task` is one running operation.  :class:`Tasks` sends its requests while kazoo is connected and holds them
back otherwise, repeats those whose reply was lost, and passes the replies to the operation.  Nothing more is sent for
an operation that was given up.  Its last request may still be carried out, so operations for which that matters use a
version, or a claim (``claims.py``).

A failing operation does not affect others.  A path or size that ZooKeeper does not accept is never sent: its operation
ends with :class:`InvalidRequest`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ..errors import ApplianceError, InvalidRequest, ZooKeeperAway
from .kazoo_link import KazooLink, replies_of, reply_of
from .lease import Lease
from .multi_read import together
from .operations import Operation, Request, check_request

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

    Only the owner's thread may use it.
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

    def _send(self, task: Task, indexes: Sequence[int]) -> None:
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

        def landed(sent: list[int], result: Any) -> None:  # in kazoo's thread
            self._deliver(lambda: self._on_replies(task, requests, sent, result, sent_ms, session_id))

        for some, result in _issue(kazoo, requests, indexes):
            result.rawlink(lambda result, some=some: landed(some, result))

    def _on_replies(
        self, task: Task, requests: list[Request], sent: list[int], result: Any, sent_ms: int, session_id: int
    ) -> None:
        if task.over or task.requests is not requests:
            return
        try:
            replies = _replies(requests, sent, result)
        except ApplianceError as error:
            self._finish(task, error)
            return
        if replies is None:
            self._send(task, sent)
            return
        self._extend_lease(sent_ms, session_id)
        for index, reply in zip(sent, replies, strict=True):
            task.replies[index] = reply
        task.waiting.difference_update(sent)
        if not task.waiting:
            self._advance(task)

    def _finish(self, task: Task, result: Any) -> None:
        if not task.over:
            task.cancel()
            task.done(result)

    def _extend_lease(self, sent_ms: int, session_id: int) -> None:
        if session_id == self._kazoo.live_id:
            self._lease.extend(sent_ms)


def _issue(kazoo: KazooLink, requests: Sequence[Request], indexes: Sequence[int]) -> list[tuple[list[int], Any]]:
    """Send these requests, reads that follow each other as one; kazoo's results, with the requests they are for."""
    return [
        (some, kazoo.issue(requests[some[0]]) if len(some) == 1 else kazoo.issue_reads([requests[i] for i in some]))
        for some in together(requests, indexes)
    ]


def _replies(requests: Sequence[Request], sent: Sequence[int], result: Any) -> list[Any] | None:
    """The replies to requests that were sent as one; None: they must be sent again."""
    if len(sent) > 1:
        return replies_of([requests[index] for index in sent], result)
    reply = reply_of(requests[sent[0]].verb, result)
    return None if reply is None else [reply]
