"""Children, as the supervisor sees them, and how it forks one.  :mod:`.children` has all of them."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import sys
from collections.abc import Callable
from typing import Any, Final, Literal

from ...clock import wall_s
from ..control import Channel

logger = logging.getLogger(__name__)

EXIT_BUG: Final = 70  # EX_SOFTWARE

SideRole = Literal["console", "metrics", "alerts"]
"""Roles beside the data path (:mod:`.side_processes`)."""
RoleName = (
    Literal["nursery", "network", "coordinator", "inspector", "scrubber", "input", "opener", "remover", "cleaner"]
    | Literal["repairer", "compactor", "writer"]
    | SideRole
)
"""What a child is for: :mod:`.roles` has a row for each, :class:`.child_events.ChildEvents` a case for its end."""


class Child:
    """One forked process, whose pidfd shows its end.

    ``key`` tells children of a role apart: a worker's index, a writer's partition.  ``ends_by_itself``: it does one
    piece of work and then exits with 0.  ``stopping``: it has been asked to end.  ``status``: of the end, negative for
    a signal; None while it runs, and of one that somebody else reaps.
    """

    def __init__(self, role: RoleName, key: Any, pid: int, pidfd: int, channel: Channel, started_ms: int) -> None:
        self.role, self.key = role, key
        self.pid, self.pidfd = pid, pidfd
        self.channel = channel
        self.started_ms = started_ms
        self.started_s = wall_s()
        self.stopping = self.ends_by_itself = False
        self.status: int | None = None

    @property
    def watched(self) -> set[int]:
        """The descriptors that epoll watches."""
        return {self.pidfd, self.channel.fileno()}

    def has_ended(self, fd: int, event: int) -> bool:
        """Whether an event of epoll shows its end."""
        return fd == self.pidfd

    def ends_within(self, timeout_ms: int) -> bool:
        """Wait for its end; whether it has ended."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(timeout_ms))

    def reap(self) -> int | None:
        """The exit status, negative for a signal; waits for its end."""
        _, status = os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        return os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def discard(self) -> None:
        """End a child that the supervisor cannot watch."""
        self.kill()
        self.reap()
        self.channel.close()


class Nursling(Child):
    """A process that :mod:`.nursery` forks.  Its channel shows its end: nobody else holds the other side.

    ``pid`` is 0 until the nursery or the process has told it.  It needs no pidfd: as long as its channel is open the
    pid is its own.
    """

    def __init__(self, role: RoleName, key: Any, channel: Channel, started_ms: int) -> None:
        super().__init__(role, key, 0, -1, channel, started_ms)

    @property
    def watched(self) -> set[int]:
        return {self.channel.fileno()}

    def has_ended(self, fd: int, event: int) -> bool:
        return bool(event & select.EPOLLHUP)

    def ends_within(self, timeout_ms: int) -> bool:
        poll = select.poll()
        poll.register(self.channel.fileno(), 0)
        return bool(poll.poll(timeout_ms))

    def reap(self) -> None:
        """Nothing is left to do: its parent is the nursery, which has its exit status."""

    def kill(self) -> None:
        """Kill it, unless its pid is not known yet.

        Raises:
            OSError: no descriptor is left for that.
        """
        if not self.pid:
            return
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(self.pid)
            try:
                if not self.ends_within(0):  # so the process that the pidfd is of was this one
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)


def fork(
    role: RoleName, key: Any, started_ms: int, close_in_child: Callable[[], None], target: Callable[[Channel], int]
) -> Child:
    """Fork a child that runs ``target`` with its end of the control channel; the result is its exit status.

    ``close_in_child`` closes the descriptors that the child must not keep.  An inherited end of another child's channel
    would hide that child's death from its peers.

    Raises:
        OSError: the machine has no process or no descriptor left; nothing is left of the attempt.
    """
    ours, theirs = Channel.pair()
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        pid = os.fork()
    except OSError:
        ours.close()
        theirs.close()
        raise
    if pid == 0:
        status = EXIT_BUG
        try:
            ours.close()
            close_in_child()
            status = target(theirs)
        except BaseException:
            logger.exception("%s %s: a bug ends this process", role, key)
        finally:
            sys.stderr.flush()
            os._exit(status)
    theirs.close()
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        ours.close()
        os.kill(pid, signal.SIGKILL)  # our child and not reaped, so the pid cannot be reused
        os.waitpid(pid, 0)
        raise
    return Child(role, key, pid, pidfd, ours, started_ms)
