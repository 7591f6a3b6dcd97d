"""Watches a path permanently: sets ZooKeeper's watch, which fires once, again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from kazoo.protocol.states import EventType, WatchedEvent

from ..errors import ApplianceError
from .operations import Node, Operation, Refused, children, exists, get
from .tasks import Task


class Asker(Protocol):
    """The part of a session that a watch needs."""

    def submit_unbounded(self, operation: Operation[Any], done: Callable[[Any], None]) -> Task: ...
    def deliver(self, action: Callable[[], None]) -> None: ...
    def forget(self, watch: Watch) -> None: ...


class Watch:
    """Watches one path.  ``callback`` is called with its state at first, and again after each change.

    The state is a sorted list of names (children) or bytes (a value); None while there is no such node.  It may be the
    same as before: between two reads a member may have left and come back, and others may have acted on that.
    """

    def __init__(self, asker: Asker, path: str, want_children: bool, callback: Callable[[Any], None]) -> None:
        self.path, self._want_children, self._callback = path, want_children, callback
        self._asker = asker
        self._answer: object = self  # no answer yet
        self._pending: Task | None = None
        self._again = self._changed = self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._asker.forget(self)
        if self._pending is not None:
            self._pending.cancel()

    def ask(self) -> None:
        """Read the state (again).  Any number of calls during a read lead to one more read."""
        if self._cancelled or self._pending is not None:
            self._again = True
            return
        self._again = False
        self._pending = self._asker.submit_unbounded(self._read(), self._answered)

    def fired(self, event: WatchedEvent) -> None:  # in kazoo's thread
        if event.type != EventType.NONE:  # NONE: the connection is gone; the next one asks
            self._asker.deliver(self._ask_changed)

    def _ask_changed(self) -> None:
        self._changed = True
        self.ask()

    def _read(self) -> Operation[Any]:
        while True:
            wanted = children if self._want_children else get
            (reply,) = yield [wanted(self.path, self.fired)]
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
