"""Forks the supervisor's children, watches them, sends them messages, and reaps them.

Epoll watches two descriptors of a child: its pidfd, which shows its end, and its control channel; of a process that the
nursery forks (:mod:`.nursery`) only the channel.  :mod:`.child_events` handles what :meth:`Children.on_event` yields.

A child that does not take its messages is killed, and so is one that hangs (:class:`Liveness`); then it is replaced
like any other.  Restarts are delayed, longer each time, while a process keeps dying within YOUNG_MS of its start.
"""

from __future__ import annotations

import logging
import os
import select
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...clock import now_ms, wall_s
from ...machine_limits import ADVICE, DESCRIPTORS, Measure, descriptors_of
from ...shared.heartbeats import Heart, Heartbeats, beat_ms
from ..control import Channel
from ..messages import TO_SUPERVISOR, Forked, FromChild, ProcessMessage, UnknownMessage
from .actions import REFUSALS, Action, Actions, surviving
from .fork import Child, Nursling, RoleName, fork

logger = logging.getLogger(__name__)

YOUNG_MS: Final = 10_000
DELAY_MS_FIRST: Final = 100
DELAY_MS_MAX: Final = 10_000
LACK_MS: Final = 5_000
"""How long a process counts as lacking room after it had none."""
WAITS_FOR_DEVICE: Final = "D"
REAPED_MAX: Final = 1_000
"""Orphans that are reaped at once; the others follow."""
AGAIN_MS: Final = 100
END_MS_MAX: Final = 5_000
"""How long killed processes may take to end."""
PROCESSES_MAX: Final = 1 << 17
"""Children at a time: a writer for each of the 100,000 partitions that topics.partitions_max allows, and the others."""

LISTENERS: Final = "listeners"
"""The listening sockets, which workers keep."""
LOCK: Final = "lock"
"""The lock of the data directory, kept by children that change files: no other supervisor starts while one lives."""


class ChildEnd(NamedTuple):
    """The end of a child; the status is negative for a signal, None if somebody else has it."""

    status: int | None


class Lack(NamedTuple):
    """A limit that a process has reached: it had no room for what it was sent."""

    limit: str
    since_s: float
    until_ms: int


RECENT_S: Final = 600
"""How long a death is remembered with its time."""
RECENT_MAX: Final = 10
"""Deaths of one process that are remembered with their times."""
RECENT_KEYS_MAX: Final = 1_000


class Deaths:
    """The last deaths of one process: seconds since 1970, the oldest first; its last exit status, None: not known."""

    def __init__(self) -> None:
        self.times_s: deque[float] = deque(maxlen=RECENT_MAX)
        self.status: int | None = None


class Restarts:
    """Counts the restarts of each role and key, and computes the delay of the next."""

    def __init__(self, clock_s: Callable[[], float] = wall_s) -> None:
        self._clock_s = clock_s
        self._counts: dict[tuple[str, Any], int] = {}
        self._delays: dict[tuple[str, Any], int] = {}
        self._recent: dict[tuple[str, Any], Deaths] = {}
        self.totals: Counter[str] = Counter()
        """Deaths by role, also of processes that are forgotten."""

    def count(self, role: str, key: Any) -> int:
        return self._counts.get((role, key), 0)

    def note_death(self, role: str, key: Any, lived_ms: int, status: int | None = None) -> int:
        """Note a death; returns the delay of the next start in ms, 0 for a process that had lived long."""
        name = (role, key)
        self._counts[name] = self._counts.get(name, 0) + 1
        self.totals[role] += 1
        deaths = self._recent[name] = self._recent.pop(name, Deaths())  # now the last one
        deaths.times_s.append(self._clock_s())
        deaths.status = status
        if len(self._recent) > RECENT_KEYS_MAX:
            del self._recent[next(iter(self._recent))]
        if lived_ms >= YOUNG_MS:
            self._delays.pop(name, None)
            return 0
        delay_ms = self._delays.get(name, 0)
        self._delays[name] = min(max(delay_ms * 2, DELAY_MS_FIRST), DELAY_MS_MAX)
        return delay_ms

    def note_status(self, role: str, key: Any, status: int) -> None:
        """Note the exit status of a process whose death is known already, from whoever has reaped it."""
        if (deaths := self._recent.get((role, key))) is not None:
            deaths.status = status

    def recent(self) -> Iterator[tuple[str, Any, Deaths]]:
        """The processes that have died within RECENT_S: role, key, deaths."""
        since_s = self._clock_s() - RECENT_S
        for (role, key), deaths in list(self._recent.items()):
            if deaths.times_s[-1] < since_s:
                del self._recent[role, key]
            else:
                yield role, key, deaths

    def forget(self, role: str, key: Any) -> None:
        for counts in (self._counts, self._delays, self._recent):
            counts.pop((role, key), None)


class _Watched:
    __slots__ = ("heart", "held", "silent_ms")

    def __init__(self, heart: Heart, held: int) -> None:
        self.heart, self.held = heart, held
        self.silent_ms = 0


class Liveness:
    """Finds children that hang: their heartbeat has not moved for ``liveness.timeout_ms``.

    Every quarter of the timeout :meth:`Liveness.overdue` compares each cell with its last value.  If it is the same,
    the time since then counts, but at most that quarter, however long the supervisor itself was stopped or waited for a
    processor.  So a pause of the machine, or of the supervisor, costs a child at most one of the four quarters.

    A child whose main thread waits in the kernel for a device (state D) does not count as hanging: a disk may be slow,
    and such a process cannot be killed anyway.  Its silent time counts again when it has returned.  The silent time of
    a writer counts from when its pid is known: before that the nursery has to move.

    ``state_of(pid)``: the state of a process's main thread, as in /proc/<pid>/stat.
    """

    def __init__(
        self, heartbeats: Heartbeats, timeout_ms: int, clock_ms: Callable[[], int], state_of: Callable[[int], str]
    ) -> None:
        self._heartbeats = heartbeats
        self._timeout_ms = timeout_ms
        self.check_ms = beat_ms(timeout_ms)
        """How often to call :meth:`overdue`."""
        self._clock_ms = clock_ms
        self._state_of = state_of
        self._watched: dict[Child, _Watched] = {}
        self._checked_ms = clock_ms()

    def watch(self, child: Child, heart: Heart) -> None:
        """Count the silent time of a child, from its fork on."""
        self._watched[child] = _Watched(heart, self._heartbeats.seen(heart))

    def forget(self, child: Child) -> None:
        """Forget a child that was reaped."""
        watched = self._watched.pop(child, None)
        if watched is not None:
            self._heartbeats.give_back(watched.heart)

    def heart_of(self, child: Child) -> int:
        """The index of the cell of a child that is watched; -1: it is not."""
        watched = self._watched.get(child)
        return -1 if watched is None else watched.heart.index

    def overdue(self) -> Iterable[Child]:
        """The children that hang; each is returned at every check until it is gone."""
        now = self._clock_ms()
        charged_ms = min(now - self._checked_ms, self.check_ms)
        self._checked_ms = now
        hanging = []
        for child, watched in self._watched.items():
            if not child.pid:
                continue
            held = self._heartbeats.seen(watched.heart)
            if held != watched.held:
                watched.held, watched.silent_ms = held, 0
                continue
            watched.silent_ms += charged_ms
            if watched.silent_ms >= self._timeout_ms and self._state_of(child.pid) != WAITS_FOR_DEVICE:
                hanging.append(child)
        return hanging


def state_of(pid: int) -> str:
    """The state of a process's main thread; "" when it cannot be read."""
    try:
        return Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


class Children:
    """All children.  ``on_change`` is called when one has started or ended."""

    def __init__(
        self,
        epoll: select.epoll,
        timeout_ms: int,
        actions: Actions,
        on_change: Callable[[], None],
    ) -> None:
        """``timeout_ms``: a child whose heartbeat has not moved for so long hangs."""
        self._epoll = epoll
        self._timeout_ms = timeout_ms
        self._on_change = on_change
        self._by_fd: dict[int, Child] = {}  # each child by all descriptors of it that are watched
        self._fds: set[int] = set()  # the descriptors of all children that have not been reaped
        self._forked: set[int] = set()  # the pids of those of them that this process has forked
        self._unsent: set[Child] = set()  # those for which messages are queued, perhaps with descriptors
        self._close_in_child: list[tuple[str, Callable[[], object]]] = []
        self._heartbeats = Heartbeats(PROCESSES_MAX, timeout_ms)
        self._liveness = Liveness(self._heartbeats, timeout_ms, now_ms, state_of)
        self._check_hearts = actions.define("kill processes that hang", lambda _: self._kill_hanging())
        self._lacks: dict[Child, Lack] = {}
        self._end_lacks = actions.define("show what processes lack", lambda _: self._forget_lacks())
        self.restarts = Restarts()
        self.hangs: Counter[str] = Counter()
        """Processes that were killed because they hung, by role."""

    def __iter__(self) -> Iterator[Child]:
        """All children, by pid; 0: not known yet."""
        return iter(sorted(set(self._by_fd.values()), key=lambda child: child.pid))

    def heart_of(self, child: Child) -> int:
        """The index of the cell in which a child beats."""
        return self._liveness.heart_of(child)

    def served_ms(self, child: Child) -> int:
        """When a child has served somebody last (:meth:`appliance.shared.heartbeats.Heart.note_service`); 0: never."""
        return self._heartbeats.served_ms(self.heart_of(child))

    def seen(self, heart: int) -> int:
        """The value of a cell; a forked child sees the present one, too."""
        return self._heartbeats.seen_at(heart)

    # ---- forking

    def close_in_child(self, close: Callable[[], object], name: str = "") -> None:
        """Call ``close`` in every forked child, except in those that keep ``name`` (LISTENERS, LOCK)."""
        self._close_in_child.append((name, close))

    def fork(
        self,
        role: RoleName,
        key: Any,
        target: Callable[[Channel, Heart], int],
        keep: Collection[str] = (),
        work: bool = False,
    ) -> Child:
        """Fork a child and watch it.

        Args:
            keep: resources that this child keeps and others close: LISTENERS, LOCK.
            work: the child does one long piece of work and ends.

        Raises:
            REFUSALS: the machine refuses; nothing is left of the attempt.
        """

        def do_work(channel: Channel) -> int:
            with heart.working():
                return target(channel, heart)

        heart = self._heartbeats.take_cell()
        try:
            child = self._fork_watched(role, key, do_work if work else lambda channel: target(channel, heart), keep)
        except REFUSALS:
            self._heartbeats.give_back(heart)
            raise
        child.ends_by_itself = work
        self._forked.add(child.pid)
        self._add(child, heart)
        return child

    def awaits(self, pid: int) -> bool:
        """Whether a child of this process is reaped here."""
        return pid in self._forked

    def heart_at(self, index: int) -> Heart:
        """The heart of the process that beats in this cell, for a process that forks it."""
        return self._heartbeats.heart_at(index)

    def expect(self, role: RoleName, key: Any, order: Callable[[int, int], None]) -> Child:
        """Watch a process from the moment when ``order(cell, fd)`` has ordered it of the nursery.

        ``cell``: the index of the one that it beats in; ``fd``: its end of the control channel.

        Raises:
            REFUSALS: the machine refuses; nothing is left of the attempt.
        """
        heart = self._heartbeats.take_cell()
        try:
            ours, theirs = Channel.pair()
        except OSError:
            self._heartbeats.give_back(heart)
            raise
        child = Nursling(role, key, ours, now_ms())
        try:
            self._epoll.register(ours.fileno(), select.EPOLLIN)
            order(heart.index, theirs.fileno())  # last: it cannot be taken back
        except OSError:
            ours.close()
            self._heartbeats.give_back(heart)
            raise
        finally:
            theirs.close()
        self._add(child, heart)
        return child

    def _add(self, child: Child, heart: Heart) -> None:
        self._by_fd.update(dict.fromkeys(child.watched, child))
        self._fds |= child.watched
        self._liveness.watch(child, heart)
        self._on_change()

    def _fork_watched(self, role: RoleName, key: Any, target: Callable[[Channel], int], keep: Collection[str]) -> Child:
        def close_in_child() -> None:
            self._epoll.close()
            for name, close in self._close_in_child:
                if name not in keep:
                    close()
            for other in self._unsent:
                other.channel.close()
            _close_runs(self._fds)

        child = fork(role, key, now_ms(), close_in_child, target)
        try:
            for fd in child.watched:
                self._epoll.register(fd, select.EPOLLIN)
        except OSError:
            child.discard()  # a descriptor that is closed is not watched any more
            raise
        return child

    # ---- what they lack

    def note_lack(self, child: Child, limit: str, what: Any) -> None:
        """Note that a child had no room for a message, which is sent again: in the log once, and in :meth:`limits`."""
        lack = self._lacks.get(child)
        if lack is None or lack.limit != limit:
            text = "%s (pid %d) has no room for %s, and perhaps for others (%s: %s): they are sent again"
            logger.warning(text, _name(child), child.pid, what, limit, ADVICE[limit])
            lack = None
            self._on_change()
        self._lacks[child] = Lack(limit, lack.since_s if lack else wall_s(), now_ms() + LACK_MS)
        self._end_lacks.want(delay_ms=LACK_MS)

    def _forget_lacks(self) -> None:
        for child, lack in list(self._lacks.items()):
            if lack.until_ms <= now_ms():
                del self._lacks[child]
                logger.info("%s (pid %d) has room again", _name(child), child.pid)
        if self._lacks:
            self._end_lacks.want(delay_ms=LACK_MS)
        self._on_change()

    def limits(self) -> list[dict[str, Any]]:
        """For status: the limits that children have reached, measured."""
        rows = []
        for child, lack in self._lacks.items():
            use = descriptors_of(child.pid) if lack.limit == DESCRIPTORS else Measure(None, None)
            rows.append({"limit": lack.limit, "process": _name(child), **use._asdict(), "since": lack.since_s})
        return rows

    # ---- messages and ends

    def send(self, child: Child | None, message: ProcessMessage, fds: tuple[int, ...] = ()) -> None:
        """Send a control message; without a child, or to one that is gone, nothing is sent.

        Raises:
            OSError: its descriptors could not be sent.
        """
        if child is None or child.channel.closed:
            return
        child.channel.send(message, fds)
        if child.channel.closed:
            self._give_up(child)
        elif child.channel.pending:
            self._unsent.add(child)
            self._epoll.modify(child.channel.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def on_event(self, fd: int, event: int) -> Iterator[tuple[Child, FromChild | ChildEnd]]:
        """Handle an event of epoll; the descriptor may belong to a child that has been reaped since.

        Yields what its child has sent, and at last its end.  The caller handles each before it takes the next.
        """
        child = self._by_fd.get(fd)
        if child is None:
            return
        if event & select.EPOLLOUT:
            child.channel.flush()
            if not child.channel.pending:
                self._unsent.discard(child)
                if not child.channel.closed:
                    self._epoll.modify(child.channel.fileno(), select.EPOLLIN)
        try:
            for message, _ in child.channel.receive(TO_SUPERVISOR, rest=child.has_ended(fd, event)):
                if isinstance(message, Forked):
                    self._on_forked(child, message.pid)
                else:
                    yield child, message
        except UnknownMessage as bug:
            self.end_for_bug(child, bug)
        if child.has_ended(fd, event):
            yield child, self._reap(child)
        elif child.channel.closed:
            self._give_up(child)

    def end_for_bug(self, child: Child, bug: UnknownMessage) -> None:
        """Kill a child that has sent what it should not: it is started again; this process must not end for it."""
        logger.error("%s %s (pid %d): %s: killed", child.role, child.key, child.pid, bug)
        child.kill()

    def _on_forked(self, child: Child, pid: int) -> None:
        """Take the pid of a writer, which both the nursery and the writer tell."""
        if not child.pid:
            child.pid = pid
            self._on_change()

    def _give_up(self, child: Child) -> None:
        """Kill a child whose channel is closed: it does not take its messages, or has ended."""
        fd = child.channel.fileno()
        if isinstance(child, Nursling):
            self._epoll.modify(fd, 0)  # only its hang-up is of interest
        elif self._by_fd.pop(fd, None) is not None:
            self._epoll.unregister(fd)
        child.kill()  # harmless if it is ending: its exit status stays

    def _reap(self, child: Child) -> ChildEnd:
        self._fds -= child.watched
        self._unsent.discard(child)
        for fd in child.watched:
            if self._by_fd.pop(fd, None) is not None:
                self._epoll.unregister(fd)
        status = child.status = child.reap()
        if not isinstance(child, Nursling):  # whose pid may be another's by now
            self._forked.discard(child.pid)
        self._liveness.forget(child)
        self._lacks.pop(child, None)
        child.channel.close()
        self._on_change()
        if not child.stopping and not (child.ends_by_itself and status == 0):
            told = "" if status is None else f" with status {status}"
            logger.warning("%s %s (pid %d) ended%s", child.role, child.key, child.pid, told)
        return ChildEnd(status)

    def start_again(self, child: Child, start: Action, key: Any = "") -> None:
        """Start a child again that has ended, unless it was asked to."""
        if child.stopping:
            return
        lived_ms = now_ms() - child.started_ms
        start.want(key, self.restarts.note_death(child.role, child.key, lived_ms, child.status))

    def watch_hearts(self) -> None:
        """From now on kill children whose heartbeat has not moved for ``liveness.timeout_ms``."""
        self._check_hearts.want(delay_ms=self._liveness.check_ms)

    def _kill_hanging(self) -> None:
        self.watch_hearts()
        for child in self._liveness.overdue():
            logger.error(
                "%s %s (pid %d) has not moved for %d ms (liveness.timeout_ms): killed",
                *(child.role, child.key, child.pid, self._timeout_ms),
            )
            self.hangs[child.role] += 1
            child.kill()

    def kill_all(self) -> None:
        """Kill the children that are left, and wait END_MS_MAX for all of them together.

        After an ordered stop they have not ended in time; a start that fails has asked nobody.
        What waits for a device ends later.  The lock of the data directory is held until then.
        """
        children = list(self)
        for child in children:
            why = "did not stop in time" if child.stopping else "was not asked to stop"
            logger.warning("%s %s (pid %d) %s: killed", child.role, child.key, child.pid, why)
            with surviving("ending a process"):
                child.kill()
        deadline_ms = now_ms() + END_MS_MAX
        for child in children:
            with surviving("ending a process"):
                if child.ends_within(max(0, deadline_ms - now_ms())):
                    child.reap()
                else:
                    logger.error("%s %s (pid %d) has not ended yet", child.role, child.key, child.pid)
            child.channel.close()
        self._by_fd.clear()


class Orphans:
    """Reaps orphans: processes whose parent has ended, which the kernel gives to process 1 of a container, or a
    subreaper.

    When the supervisor is that, it gets the writers of a nursery that was killed, and whatever was started in the
    container beside the appliance.  Not reaped, each would keep its entry in the table of processes, which is bounded.

    The kernel names one process that has ended at a time.  A child that others wait for is left to them; until they
    have reaped it, at the event of its end, it may hide orphans, so they are looked for again a little later.

    ``awaited(pid)``: whether a child is reaped by others.
    """

    def __init__(self, actions: Actions, awaited: Callable[[int], bool]) -> None:
        self._awaited = awaited
        self._reap = actions.define("reap orphans", lambda _: self._reap_all())

    def reap(self) -> None:
        """Call it after a SIGCHLD."""
        self._reap.want()

    def _reap_all(self) -> None:
        for _ in range(REAPED_MAX):
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            if self._awaited(ended.si_pid):
                break
            _, status = os.waitpid(ended.si_pid, 0)
            logger.info("reaped the orphan %d, ended with status %d", ended.si_pid, os.waitstatus_to_exitcode(status))
        self._reap.want(delay_ms=AGAIN_MS)


def _name(child: Child) -> str:
    key = "-".join(map(str, child.key)) if isinstance(child.key, tuple) else child.key
    return f"{child.role} {key}"


def _close_runs(fds: Iterable[int]) -> None:
    """Close descriptors in a new child; those with neighbouring numbers take one system call.

    The objects that own them are not used, and not even looked at: each page that the child writes to, were it only a
    count of references, is copied.
    """
    ordered = sorted(fds)
    first = 0
    for place, fd in enumerate(ordered, 1):
        if place == len(ordered) or ordered[place] != fd + 1:
            os.closerange(ordered[first], fd + 1)
            first = place
