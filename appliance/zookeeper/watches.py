"""Watches that stay: ZooKeeper's fire once, these are armed again and report what changed in between."""

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
    """A question about one path.  ``callback`` gets the answer once, and again each time something has changed.

    The answer is a sorted list of names (children) or bytes (a value); None while there is no such node.  It may be
    the same as before: a member that left and came back has left, and others may have acted on that.
    """

    def __init__(self, asker: Asker, path: str, want_children: bool, callback: Callable[[Any], None]) -> None:
        self.path, self._want_children, self._callback = path, want_children, callback
        self._asker = asker
        self._answer: object = self  # nothing was answered yet
        self._question_asked: Task | None = None
        self._again = self._changed = self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._asker.forget(self)
        if self._question_asked is not None:
            self._question_asked.cancel()

    def ask(self) -> None:
        """Ask (again); several reasons to ask while a question is open become one more question."""
        if self._cancelled or self._question_asked is not None:
            self._again = True
            return
        self._again = False
        self._question_asked = self._asker.submit_unbounded(self._question(), self._answered)

    def fired(self, event: WatchedEvent) -> None:  # in kazoo's thread
        if event.type != EventType.NONE:  # NONE: the connection is gone; the next one asks
            self._asker.deliver(self._ask_changed)

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
            (reply,) = yield [exists(self.path, self.fired)]  # the only way to notice when it appears
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
