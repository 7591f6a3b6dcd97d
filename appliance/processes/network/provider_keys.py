"""Keeps the public keys of an identity provider: reads their file, or asks their URL, in a thread of its own.

Loading never waits in the worker's loop::

    state     keys            leaves it by
    empty     none            an attempt that succeeds: known;  one that fails: empty, RETRY_S later
    known     of the last     REFRESH_S later, or a token with a key that is not known: an attempt; one that fails
              success         leaves the keys as they are

Attempts are at least RETRY_S apart, whoever asks for them: tokens with invented keys cost the provider one request in
that time, and the worker nothing.  A login with a key that is not known waits for one attempt that begins after it
came, and then is refused; others go on.  ``attempts`` counts those that have ended.

Bounds: FETCH_S_MAX for an attempt, JWKS_BYTES_MAX of an answer; an answer that leads elsewhere is a fault.
"""

from __future__ import annotations

import http.client
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ...security.bearer_tokens import Keys, parse_keys
from ...web.pinned_connection import AddressRefused, PinnedConnection

log = logging.getLogger(__name__)

REFRESH_S: Final = 300
RETRY_S: Final = 5
FETCH_S_MAX: Final = 10
JWKS_BYTES_MAX: Final = 256 * 1024


class ProviderKeys:
    """The keys of a file or URL.  ``on_attempt`` is called in the thread after each attempt."""

    def __init__(self, place: str, on_attempt: Callable[[], None]) -> None:
        self._place, self._on_attempt = place, on_attempt
        self._keys: Keys = {}
        self._fetch_asked = threading.Event()
        self._said = ""
        self.attempts = 0
        self.begun = 0
        """How many attempts have begun."""
        threading.Thread(target=self._run, name="provider keys", daemon=True).start()

    def __call__(self) -> Keys:
        """The keys that are known now."""
        return self._keys

    def want(self) -> int:
        """Ask for another attempt, and return its number: it has ended when ``attempts`` is that."""
        number = self.begun + 1  # first: the thread clears the event before it counts
        self._fetch_asked.set()
        return number

    def _run(self) -> None:
        pause = threading.Event()  # which nobody sets: a sleep
        while True:
            self._fetch_asked.clear()
            self.begun += 1
            self._try()
            self.attempts = self.begun
            self._on_attempt()
            pause.wait(RETRY_S)
            self._fetch_asked.wait(max(0, REFRESH_S - RETRY_S) if self._keys else 0)

    def _try(self) -> None:
        try:
            text = read_keys(self._place)
            keys = parse_keys(text)
        except (OSError, ValueError, AddressRefused, http.client.HTTPException) as error:
            why = f"{type(error).__name__}: {error}" if isinstance(error, http.client.HTTPException) else str(error)
            if why != self._said:
                log.error("oauth.jwks = %s: %s; known are %d keys", self._place, why, len(self._keys))
            self._said = why
            return
        if self._said or keys.keys() != self._keys.keys():
            log.info("oauth.jwks = %s: %d keys", self._place, len(keys))
        self._said, self._keys = "", keys


def read_keys(place: str) -> bytes:
    """The text of a key set, from a file or an ``http`` or ``https`` URL.

    Raises:
        OSError, ValueError, AddressRefused, HTTPException: it cannot be had now, or is too large.
    """
    if place.startswith("/"):
        with Path(place).open("rb") as file:
            text = file.read(JWKS_BYTES_MAX + 1)
    else:
        text = _fetch(place)
    if len(text) > JWKS_BYTES_MAX:
        raise ValueError(f"has more than {JWKS_BYTES_MAX} bytes")
    return text


def _fetch(place: str) -> bytes:
    url = urlsplit(place)
    target = f"{url.path or '/'}{'?' if url.query else ''}{url.query}"
    headers = {"Accept": "application/json", "User-Agent": "appliance"}
    status, text = PinnedConnection(url, FETCH_S_MAX).exchange("GET", target, headers, JWKS_BYTES_MAX + 1)
    if status != http.client.OK:
        raise ValueError(f"answered with {status}")
    return text
