"""Actions: steps of the supervisor that the machine may refuse for lack of processes, descriptors, memory or disk.

An :class:`Action` has a name for people, and *keys*: the workers, partitions or nodes for which it is still to be done.
``want`` runs the action for a key at once.  When the machine refuses (REFUSALS), the key stays wanted, and the action
is retried: after DELAY_MS_MIN at first, twice as long each time, at most DELAY_MS_MAX.  The first refusal, every change
of its reason and its end are logged; ``status`` shows each action that is refused.  So no refusal ends the supervisor,
and none needs its own handling.

The keys of one action are delayed together, since they usually lack the same resource.  A round ends after
REFUSED_KEYS_MAX refusals, and a refused key goes to the end.  So a thousand keys cost no more attempts than three, and
none of them blocks the others.

Bounds: the actions are those that the supervisor defines; the keys of one are workers, partitions or nodes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final

from ...clock import now_ms, wall_s
from ...errors import StorageFault, Unavailable
from ...machine_limits import ADVICE, limit_of

logger = logging.getLogger(__name__)

DELAY_MS_MIN: Final = 100
DELAY_MS_MAX: Final = 5_000
REFUSED_KEYS_MAX: Final = 3

REFUSALS: Final = (OSError, MemoryError, Unavailable, StorageFault)
"""Errors of a machine that refuses.  Any other error is a bug, or a fault that a person must repair."""

UNDER_WAY: Final = object()


def reason_of(error: BaseException) -> str:
    """The reason of a refusal, with advice, on one line."""
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        limit = limit_of(error)
        return f"{where}{error.strerror or error}" + (f" ({limit}: {ADVICE[limit]})" if limit else "")
    if isinstance(error, MemoryError):
        return "out of memory"
    return " ".join(str(error).split())


class Action:
    """Runs ``do(key)`` for wanted keys until it succeeds.

    ``do`` completes, or raises one of REFUSALS and leaves nothing half done.  It may also return UNDER_WAY: then a
    child does it, and the supervisor calls :meth:`done` or :meth:`refuse` later.
    """

    def __init__(
        self,
        name: str,
        do: Callable[[Any], object],
        clock_ms: Callable[[], int],
        changed: Callable[[], None],
    ) -> None:
        self.name = name
        self._do = do
        self._clock_ms = clock_ms
        self._changed = changed
        self._due_ms: dict[Hashable, int] = {}  # by key: when to run for it
        self._refused: set[Hashable] = set()  # not done since its last refusal
        self._reason = self._limit = ""
        self._rests_until_ms = self._delay_ms = 0
        self._attempts = 0
        self._since_s = 0.0
        self._running = False

    def __contains__(self, key: Hashable) -> bool:
        """Whether ``key`` waits for an attempt."""
        return key in self._due_ms

    def want(self, key: Hashable = "", delay_ms: int = 0) -> None:
        """Run the action for ``key``, now or after a delay, and retry until the machine allows it."""
        self._due_ms[key] = self._clock_ms() + delay_ms
        if not delay_ms:
            self.run_due()

    def drop(self, key: Hashable = "") -> None:
        """Forget ``key``."""
        self._due_ms.pop(key, None)
        self.done(key)

    def drop_all(self) -> None:
        """Forget all keys."""
        for key in [*self._due_ms]:
            self.drop(key)

    @property
    def is_wanted(self) -> bool:
        """Whether any key waits for an attempt."""
        return bool(self._due_ms)

    def run_due(self) -> None:
        """Run the action for the keys that are due, unless it is delayed."""
        now = self._clock_ms()
        if self._running or now < self._rests_until_ms:
            return
        due = [key for key, when in self._due_ms.items() if when <= now]
        refusals = 0
        self._running = True
        try:
            for key in due:
                if self._due_ms.get(key, now + 1) > now:  # dropped or put off by what was done before
                    continue
                del self._due_ms[key]
                try:
                    result = self._do(key)
                except REFUSALS as error:
                    self.refuse(key, reason_of(error), limit_of(error))
                    refusals += 1
                    if refusals == REFUSED_KEYS_MAX:
                        break
                else:
                    if result is not UNDER_WAY:
                        self.done(key)
        finally:
            self._running = False

    def done(self, key: Hashable = "") -> None:
        """Note that the action is done for ``key``; log the end of a refusal."""
        if key not in self._refused:
            return
        self._refused.discard(key)
        if not self._refused:
            logger.info("no longer refused: %s", self.name)
            self._delay_ms = self._rests_until_ms = self._attempts = 0
            self._reason = self._limit = ""
            self._changed()

    def refuse(self, key: Hashable, reason: str, limit: str = "") -> None:
        """Note a refusal for ``key``: retry after a delay.  ``limit``: see :mod:`appliance.machine_limits`."""
        now = self._clock_ms()
        self._due_ms.setdefault(key, now)
        if now >= self._rests_until_ms:  # the first one of this round
            self._delay_ms = min(max(2 * self._delay_ms, DELAY_MS_MIN), DELAY_MS_MAX)
            self._rests_until_ms = now + self._delay_ms
        self._attempts += 1
        if not self._refused:
            self._since_s = wall_s()
        self._refused.add(key)
        self._limit = limit
        if reason != self._reason:
            self._reason = reason
            logger.warning("refused: %s: %s%s; it is tried again", self.name, _label(key), reason)
            self._changed()

    def next_ms(self) -> int | None:
        """When to call :meth:`run_due` next; None when nothing is wanted."""
        if not self._due_ms:
            return None
        return max(min(self._due_ms.values()), self._rests_until_ms)

    def row(self) -> dict[str, Any] | None:
        """The row for ``status``; None while the action is not refused."""
        if not self._refused:
            return None
        return {
            "action": self.name,
            "waiting": len(self._refused),
            "since": self._since_s,
            "attempts": self._attempts,
            "reason": self._reason,
            "limit": self._limit,
        }

    def limit(self) -> tuple[str, float] | None:
        """The limit of the machine that causes the refusal, and its time in seconds since 1970."""
        return (self._limit, self._since_s) if self._limit else None


class Actions:
    """All actions of the supervisor.  ``changed`` is called whenever :meth:`rows` may have changed."""

    def __init__(self, changed: Callable[[], None], clock_ms: Callable[[], int] = now_ms) -> None:
        self._all: list[Action] = []
        self._changed = changed
        self._clock_ms = clock_ms

    def define(self, name: str, do: Callable[[Any], object]) -> Action:
        """Define an action; ``name`` completes "refused: ..."."""
        action = Action(name, do, self._clock_ms, self._changed)
        self._all.append(action)
        return action

    def run_due(self) -> None:
        for action in self._all:
            action.run_due()

    def next_ms(self) -> int | None:
        """When the next action is due; None when nothing is wanted."""
        return min((when for action in self._all if (when := action.next_ms()) is not None), default=None)

    def rows(self) -> list[dict[str, Any]]:
        """The rows for ``status``: one for each action that is refused."""
        return [row for action in self._all if (row := action.row()) is not None]

    def limits(self) -> dict[str, float]:
        """The limits of the machine that cause refusals, each with the time of the first refusal."""
        limits: dict[str, float] = {}
        for action in self._all:
            if (reached := action.limit()) is not None:
                limit, since_s = reached
                limits[limit] = min(limits.get(limit, since_s), since_s)
        return limits


@contextlib.contextmanager
def surviving(what: str) -> Iterator[None]:
    """Log a refusal of a step that is not retried, and continue; mostly used while stopping."""
    try:
        yield
    except REFUSALS as error:
        logger.warning("refused: %s: %s", what, reason_of(error))


def _label(key: Hashable) -> str:
    """The key in a log line: a partition, several partitions, a number, or nothing."""
    if key == "":
        return ""
    if isinstance(key, tuple) and all(isinstance(part, tuple) for part in key):
        first = "-".join(map(str, key[0])) if key else ""
        return f"{first} and {len(key) - 1} more: " if len(key) > 1 else f"{first}: "
    return "-".join(map(str, key)) + ": " if isinstance(key, tuple) else f"{key}: "
