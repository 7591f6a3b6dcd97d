"""Actions: what the supervisor does, and the machine may refuse for lack of processes, descriptors, memory or room.

An :class:`Action` has a name for people and *keys*: what it is still to be done for (workers, partitions, nodes).
Wanting a key does it at once.  When the machine refuses (REFUSALS), the key stays wanted, the action rests, and then
tries again: after DELAY_MS_MIN at first, twice as long each time, DELAY_MS_MAX at most.  The first refusal, every
change of its reason and the end of it are logged; ``status`` shows each action that is being refused.  So no refusal
ends the supervisor, and none has handling of its own.

Keys of one action rest together, since what they lack is mostly the same.  A round ends after REFUSED_KEYS_MAX
refusals, and a refused key goes behind the others, so that a thousand keys cost no more than three and none of them
keeps the others from being done.

Bounds: the actions are those that the supervisor defines, the keys of one are workers, partitions or nodes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final

from ...errors import StorageFault, Unavailable
from ...machine_limits import ADVICE, limit_of
from ..clock import now_ms, wall_s

logger = logging.getLogger(__name__)

DELAY_MS_MIN: Final = 100
DELAY_MS_MAX: Final = 5_000
REFUSED_KEYS_MAX: Final = 3

REFUSALS: Final = (OSError, MemoryError, Unavailable, StorageFault)
"""What the machine raises when it refuses.  Anything else is a bug, or a fault that a person must mend."""

UNDER_WAY: Final = object()


def reason_of(error: BaseException) -> str:
    """What is lacking, and what to do about it, on one line."""
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        limit = limit_of(error)
        return f"{where}{error.strerror or error}" + (f" ({limit}: {ADVICE[limit]})" if limit else "")
    if isinstance(error, MemoryError):
        return "out of memory"
    return " ".join(str(error).split())


class Action:
    """See the module's docstring.  ``do(key)`` does it, or raises one of REFUSALS and leaves nothing half done.

    ``do`` may also return UNDER_WAY: somebody else does it, and :meth:`done` or :meth:`refuse` says how it went.
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
        self._wanted: dict[Hashable, int] = {}  # key -> when it is due
        self._refused: set[Hashable] = set()  # not done since its last refusal
        self._reason = self._limit = ""
        self._rests_until_ms = self._delay_ms = 0
        self._attempts = 0
        self._since_s = 0.0
        self._running = False

    def __contains__(self, key: Hashable) -> bool:
        """Whether it is still to be tried for ``key``."""
        return key in self._wanted

    def want(self, key: Hashable = "", delay_ms: int = 0) -> None:
        """Do it for ``key``, now or after a delay, as soon as the machine allows."""
        self._wanted[key] = self._clock_ms() + delay_ms
        if not delay_ms:
            self.run()

    def drop(self, key: Hashable = "") -> None:
        """It is not wanted for ``key`` any more."""
        self._wanted.pop(key, None)
        self.done(key)

    def run(self) -> None:
        """Do it for the keys that are due, unless it rests."""
        now = self._clock_ms()
        if self._running or now < self._rests_until_ms:
            return
        due = [key for key, when in self._wanted.items() if when <= now]
        refusals = 0
        self._running = True
        try:
            for key in due:
                if self._wanted.get(key, now + 1) > now:  # dropped or put off by what was done before
                    continue
                del self._wanted[key]
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
        """It is done for ``key``."""
        if key not in self._refused:
            return
        self._refused.discard(key)
        if not self._refused:
            logger.info("no longer refused: %s", self.name)
            self._delay_ms = self._rests_until_ms = self._attempts = 0
            self._reason = self._limit = ""
            self._changed()

    def refuse(self, key: Hashable, reason: str, limit: str = "") -> None:
        """The machine refused it for ``key``: rest, then try again.  ``limit``: see :mod:`appliance.machine_limits`."""
        now = self._clock_ms()
        self._wanted.setdefault(key, now)
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
        """When to call :meth:`run` next; None when nothing is wanted."""
        if not self._wanted:
            return None
        return max(min(self._wanted.values()), self._rests_until_ms)

    def row(self) -> dict[str, Any] | None:
        """For ``status``, while it is refused: since when, how often, for how many keys, and why."""
        if not self._refused:
            return None
        return {
            "action": self.name,
            "waiting": len(self._refused),
            "since": self._since_s,
            "attempts": self._attempts,
            "reason": self._reason,
        }

    def limit(self) -> tuple[str, float] | None:
        """The limit of the machine that it is refused for, and since when, in seconds since 1970."""
        return (self._limit, self._since_s) if self._limit else None


class Actions:
    """All actions of the supervisor.  ``changed`` is called whenever :meth:`rows` may have changed."""

    def __init__(self, changed: Callable[[], None], clock_ms: Callable[[], int] = now_ms) -> None:
        self._all: list[Action] = []
        self._changed = changed
        self._clock_ms = clock_ms

    def define(self, name: str, do: Callable[[Any], object]) -> Action:
        """A new action; ``name`` completes "refused: ..."."""
        action = Action(name, do, self._clock_ms, self._changed)
        self._all.append(action)
        return action

    def run(self) -> None:
        """Do what has become due."""
        for action in self._all:
            action.run()

    def next_ms(self) -> int | None:
        """When something becomes due; None when nothing is wanted."""
        return min((when for action in self._all if (when := action.next_ms()) is not None), default=None)

    def rows(self) -> list[dict[str, Any]]:
        """For ``status``: what is being refused."""
        return [row for action in self._all if (row := action.row()) is not None]

    def limits(self) -> dict[str, float]:
        """The limits of the machine for which something is refused, each with the time of the first refusal."""
        found: dict[str, float] = {}
        for action in self._all:
            if (reached := action.limit()) is not None:
                limit, since_s = reached
                found[limit] = min(found.get(limit, since_s), since_s)
        return found


@contextlib.contextmanager
def surviving(what: str) -> Iterator[None]:
    """Carry on after a refusal of something that is not worth trying again: on the way out, above all."""
    try:
        yield
    except REFUSALS as error:
        logger.warning("refused: %s: %s", what, reason_of(error))


def _label(key: Hashable) -> str:
    """What a log line says of a key: a partition, several of them, a number, or nothing."""
    if key == "":
        return ""
    if isinstance(key, tuple) and all(isinstance(part, tuple) for part in key):
        first = "-".join(map(str, key[0])) if key else ""
        return f"{first} and {len(key) - 1} more: " if len(key) > 1 else f"{first}: "
    return "-".join(map(str, key)) + ": " if isinstance(key, tuple) else f"{key}: "
