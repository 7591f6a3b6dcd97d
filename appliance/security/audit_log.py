"""Writes the audit log, and counts refusals by reason.

One line per event, through the logger ``appliance.audit``, so that ``journalctl -u appliance -g audit:`` shows them::

    logged in: who=User:alice from=10.0.0.7:51234 listener=SASL_SSL mechanism=SCRAM-SHA-512
    refused: reason="bad credentials" who=User:alice from=10.0.0.7:51236 what=SCRAM-SHA-512
    changed: who=User:admin from=unix:4711 what=create_topic topic=web partitions=4
    read: who=User:alice from=10.0.0.7:51234 what=console topic=web

A field with anything but plain characters is written as a JSON string in ASCII, at most VALUE_CHARACTERS_MAX
characters of it, which is more than any name has that is accepted.  So a name that a client chose can neither end a
line, nor pass for another field, nor take the room of one.  Passwords, keys and verifiers are never passed to this
module.

Rates: at most REFUSED_MAX refusals of each reason are written per second and process, REFUSED_OF_ONE_MAX of them of one
host and user, and LOGINS_MAX logins, so that a flood of one kind or from one side does not hide another.  The others
are counted, and one line says how many.  Administrative changes are always written.  Who reads what is written once in
READS_WINDOW_MS for each user, host and thing that is read; its repeats are counted, and a line says how many.

Each process has one :class:`Audit`.  It sends :meth:`Audit.take_counts` to the supervisor now and then, which adds them
up for ``status``.
"""

from __future__ import annotations

import enum
import json
import logging
import re
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final

logger = logging.getLogger("appliance.audit")

REFUSED_MAX: Final = 40
REFUSED_OF_ONE_MAX: Final = 20
LOGINS_MAX: Final = 200
WINDOW_MS: Final = 1_000
READS_MAX: Final = 1_000
"""Different things that somebody reads, in one window."""
READS_WINDOW_MS: Final = 10_000
VALUE_CHARACTERS_MAX: Final = 2_000
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.:@/,=+*\[\]-]+")


class Reason(enum.StrEnum):
    """Why something was refused; the keys of ``refusals`` in ``status --json``."""

    BAD_CREDENTIALS = "bad credentials"  # also an unknown user: the two must not differ
    UNKNOWN_MECHANISM = "unknown mechanism"
    OUT_OF_ORDER = "out of order"  # a message of a login that does not belong there
    NOT_LOGGED_IN = "not logged in"
    SESSION_EXPIRED = "session expired"
    TLS_HANDSHAKE = "tls handshake"
    CERTIFICATE = "certificate"  # expired, revoked, unknown, incomplete or missing
    PLAIN_ON_TLS = "plain on tls"
    TLS_ON_PLAIN = "tls on plain"
    LOCKED = "locked"  # a user who is locked or has expired
    TIMEOUT = "timeout"  # of a handshake or a login
    DENIED = "denied"  # logged in, but without the right
    THROTTLED = "throttled"
    CONNECTIONS_PER_ADDRESS = "connections per address"
    CONNECTIONS_PER_USER = "connections per user"


class _Rate:
    """Counts the lines of one kind in the present second."""

    def __init__(self, what: str, lines_max: int, of_one_max: int) -> None:
        self.what, self.lines_max, self._of_one_max = what, lines_max, of_one_max
        self.since_ms = 0
        self._written: Counter[str] = Counter()
        self._left_out = 0

    def admits(self, whose: str) -> bool:
        """Count one event; whether its line may be written."""
        admitted = self._written.total() < self.lines_max and self._written[whose] < self._of_one_max
        if admitted:
            self._written[whose] += 1
        else:
            self._left_out += 1
        return admitted

    def begin(self, now_ms: int) -> int:
        """Begin another second; how many lines the last one has left out."""
        left_out = self._left_out
        self.since_ms, self._left_out = now_ms, 0
        self._written.clear()
        return left_out


class Audit:
    """The audit log of one process; any thread may write to it.

    ``clock_ms`` is monotonic.  ``on_pending`` is called with the first refusal after :meth:`take_counts`, in the thread
    of that, for a process without a periodic check: it calls ``take_counts`` soon, and not at once.
    """

    def __init__(self, clock_ms: Callable[[], int], on_pending: Callable[[], object] = lambda: None) -> None:
        self._clock_ms, self._on_pending = clock_ms, on_pending
        self._lock = threading.Lock()
        self._refusals = {
            reason: _Rate(f"refusals ({reason.value})", REFUSED_MAX, REFUSED_OF_ONE_MAX) for reason in Reason
        }
        self._logins = _Rate("logins", LOGINS_MAX, LOGINS_MAX)
        self._reads: dict[tuple[str, str, str], int] = {}
        """Who has read what in this window, and how often again: (who, host, the fields of the line)."""
        self._reads_since_ms = 0
        self._reads_left_out = 0
        self._counts: Counter[str] = Counter()

    def logged_in(self, who: str, peer: str, **details: object) -> None:
        """Note a login.

        Args:
            who: the principal, such as ``User:alice``.
            peer: the address of the client, or ``unix``.
            details: further fields, such as ``listener`` and ``mechanism``.
        """
        with self._lock:
            writes = self._may_write(self._logins, who)
        if writes:
            logger.info("%s", _line("logged in", who=who, **{"from": peer}, **details))

    def refused(self, reason: Reason, who: str, peer: str, **details: object) -> None:
        """Count a refusal and note it.  ``who`` is "" when nobody is known; the others as :meth:`logged_in`."""
        with self._lock:
            if not self._counts:
                self._on_pending()
            self._counts[reason.value] += 1
            writes = self._may_write(self._refusals[reason], f"{who} {_host(peer)}")
        if writes:
            logger.warning("%s", _line("refused", reason=reason.value, who=who or "-", **{"from": peer}, **details))

    def changed(self, who: str, peer: str, what: str, **details: object) -> None:
        """Note an administrative change that was carried out: ``what`` in words, ``details`` its arguments."""
        logger.info("%s", _line("changed", who=who, **{"from": peer}, what=what, **details))

    def read(self, who: str, peer: str, what: str, **details: object) -> None:
        """Note that somebody has read something; arguments as :meth:`changed`."""
        key = who, _host(peer), _fields(what=what, **details)
        with self._lock:
            self._end_reads(READS_WINDOW_MS)
            if key in self._reads:
                self._reads[key] += 1
            elif len(self._reads) >= READS_MAX:
                self._reads_left_out += 1
            else:
                self._reads[key] = 0
                logger.info("%s", _line("read", who=who, **{"from": peer}, what=what, **details))

    @property
    def pending(self) -> bool:
        """Whether :meth:`take_counts` has something to return."""
        return bool(self._counts)

    def take_counts(self) -> dict[str, int]:
        """The refusals by reason since the last call.  Also writes how many lines were left out; call it every second.

        Returns an empty dictionary when there was none.
        """
        with self._lock:
            for rate in (*self._refusals.values(), self._logins):
                self._end_window(rate)
            self._end_reads(READS_WINDOW_MS)
            taken, self._counts = dict(self._counts), Counter()
            return taken

    def _may_write(self, rate: _Rate, whose: str) -> bool:
        self._end_window(rate)
        return rate.admits(whose)

    def _end_reads(self, window_ms: int) -> None:
        """Write what was read again in a window that is over."""
        if self._clock_ms() - self._reads_since_ms < window_ms:
            return
        for (who, host, fields), again in self._reads.items():
            if again:
                logger.info("%s %s", _line("read", who=who, **{"from": host}, again=again), fields)
        if self._reads_left_out:
            logger.warning("%d more reads were not written (at most %d at a time)", self._reads_left_out, READS_MAX)
        self._reads, self._reads_left_out, self._reads_since_ms = {}, 0, self._clock_ms()

    def _end_window(self, rate: _Rate) -> None:
        now_ms = self._clock_ms()
        if now_ms - rate.since_ms >= WINDOW_MS and (left_out := rate.begin(now_ms)):
            logger.warning("%d more %s were not written (at most %d per second)", left_out, rate.what, rate.lines_max)


def _line(event: str, **fields: object) -> str:
    return f"{event}: {_fields(**fields)}"


def _fields(**fields: object) -> str:
    return " ".join(f"{name}={_text(value)}" for name, value in fields.items())


def _host(peer: str) -> str:
    """The address of a client without its port."""
    return peer.rpartition(":")[0]


def _text(value: object) -> str:
    text = str(value)
    if len(text) > VALUE_CHARACTERS_MAX:
        text = text[:VALUE_CHARACTERS_MAX] + "…"
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
