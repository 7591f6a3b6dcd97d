"""Reaps orphans: processes whose parent has ended, which the kernel gives to process 1 of a container, or a subreaper.

When the supervisor is that, it gets the writers of a nursery that was killed, and whatever was started in the container
beside the appliance.  Not reaped, each would keep its entry in the table of processes, which is bounded.

The kernel names one process that has ended at a time.  A child that others wait for is left to them; until they have
reaped it, at the event of its end, it may hide orphans, so they are looked for again a little later.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Final

from .actions import Actions

logger = logging.getLogger(__name__)

REAPED_MAX: Final = 1_000
"""Orphans that are reaped at once; the others follow."""
AGAIN_MS: Final = 100


class Orphans:
    """``awaited(pid)``: whether a child is reaped by others."""

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
