"""Compares passwords of PLAIN with verifiers in a thread, since that takes milliseconds.

PBKDF2 runs without Python's lock, so the worker's loop goes on meanwhile.  One thread does one password at a time;
``WAITING_MAX`` may wait, about a third of a second with the most iterations that a verifier may have.  The thread is
NICENESS nicer than the loop: who tries passwords, which needs no login, does not take half of a core from all others.

A password that was right is remembered as long as its verifier, as an HMAC with a key that only this process has.  So
a client that connects again and again costs microseconds, also while others try passwords.  Wrong ones are never
remembered: each costs its sender a turn in the queue.
"""

from __future__ import annotations

import hmac
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Final

from ...security.login_exchange import PlainCheck
from ..child import lower_priority_of_thread

WAITING_MAX: Final = 64
NICENESS: Final = 10
"""A tenth of the loop's share of a busy core, by the weights of Linux."""
REMEMBERED_MAX: Final = 4096
KEY_BYTES: Final = 32


class PlainChecks:
    """The queue and the thread, which begins with the first password.  ``fd`` is readable when results are there."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._key = os.urandom(KEY_BYTES)
        self._right: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()
        """(user, stored key) → HMAC of the password; the last used is last."""
        self._waiting: deque[tuple[PlainCheck, Any]] = deque()
        self._results: deque[tuple[Any, PlainCheck, bool]] = deque()
        self._wanted = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def is_remembered(self, check: PlainCheck) -> bool:
        """Whether this password was right for this verifier before."""
        key = check.user, check.verifier.stored_key
        known = self._right.get(key)
        if known is None or not hmac.compare_digest(known, self._digest(check)):
            return False
        self._right.move_to_end(key)
        return True

    def begin(self, check: PlainCheck, token: Any) -> bool:
        """Compare in the thread; False when too many wait already.  :meth:`take` returns the result with ``token``."""
        if len(self._waiting) >= WAITING_MAX:
            return False
        self._waiting.append((check, token))
        self._wanted.release()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="passwords", daemon=True)
            self._thread.start()
        return True

    def take(self, done: Callable[[Any, bool], None]) -> None:
        """Call ``done`` with the token and the result of each comparison that has ended."""
        os.eventfd_read(self.fd)
        while self._results:
            token, check, right = self._results.popleft()
            if right:
                self._right[check.user, check.verifier.stored_key] = self._digest(check)
                while len(self._right) > REMEMBERED_MAX:
                    self._right.popitem(last=False)
            done(token, right)

    def _digest(self, check: PlainCheck) -> bytes:
        return hmac.digest(self._key, check.verifier.salt + check.password, "sha256")

    def _run(self) -> None:
        lower_priority_of_thread(NICENESS)
        while True:
            self._wanted.acquire()
            check, token = self._waiting.popleft()
            self._results.append((token, check, check.run()))
            os.eventfd_write(self.fd, 1)
