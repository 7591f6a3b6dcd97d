"""Makes a producer's requests for metadata and producer ids.

These requests block, so the sending thread makes them, without the producer's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final

from ..errors import ApplianceError, ClientFault, UnknownPartition
from .cluster_client import Cluster
from .partition_queue import BACKOFF_DOUBLINGS_MAX
from .troubles import Troubles

METADATA_AGE_S: Final = 60.0
"""Age at which metadata are requested again: partitions may have been added."""

REFUSED_S: Final = 5.0
"""How soon to ask again for a topic that was not made."""


class BackgroundRequests:
    """Collects the requests that are needed, and makes them.  Attributes are changed with ``lock`` held."""

    def __init__(
        self,
        cluster: Cluster,
        lock: threading.Lock,
        troubles: Troubles,
        *,
        backoff_s: float,
        backoff_s_max: float,
        jitter: Callable[[], float],
        now_s: float,
    ) -> None:
        self.stale_topics: set[str] = set()
        """Something is sent to them, and what is known of them is wrong."""
        self._aged_topics: set[str] = set()
        self._needed: set[str] = set()  # of those that are requested now, the stale ones
        self._refused_s: dict[str, float] = {}  # when a topic was not made
        self._now_s = now_s
        self.wants_id = False
        """Batches wait for a producer id, or for being in a transaction."""
        self.producer_id = -1
        self._cluster = cluster
        self._lock = lock
        self._troubles = troubles
        self._backoff_s, self._backoff_s_max, self._jitter = backoff_s, backoff_s_max, jitter
        self._failures = 0
        self._aged_s = now_s + METADATA_AGE_S
        self._resume_s = 0.0

    @property
    def due_s(self) -> float:
        """When the next request is due, as far as is known."""
        return self._resume_s if self.stale_topics or self._aged_topics or self.wants_id else self._aged_s

    def take_due(self, now_s: float, partitions: Iterable[tuple[str, int]]) -> set[str] | None:
        """The topics to refresh now; an empty set if only a producer id is needed; None if nothing is due.

        ``partitions`` are those in use.  Their topics are refreshed when the metadata are old.
        """
        if now_s >= self._aged_s and self._cluster.snapshot.topics:
            self._aged_s = now_s + METADATA_AGE_S
            self._aged_topics.update(topic for topic, _ in partitions)
        if now_s < self._resume_s or not (self.stale_topics or self._aged_topics or self.wants_id):
            return None
        self._now_s, self._resume_s = now_s, now_s + self._backoff_s
        topics = self.stale_topics | self._aged_topics
        self._needed, self.stale_topics, self._aged_topics = self.stale_topics, set(), set()
        return topics

    def make(self, topics: set[str], identify: Callable[[], None]) -> None:
        """Make the requests, without the lock.  Those that fail are due again after a back-off.

        ``identify`` asks for what those batches wait for that want an id.

        A topic that something is sent to, and that was deleted, may be made again, as at its first message.
        """
        try:
            if topics:
                snapshots = self._cluster.refresh(topics).topics
                existing = {name for name, row in snapshots.items() if row.error != UnknownPartition.code}
                self._make_again(topics & self._needed - existing)
                if self._troubles:
                    self._troubles.note_progress("metadata")
            if self.wants_id:
                identify()
            self._failures = 0
        except ApplianceError as error:
            self._troubles.note_trouble("metadata", error)
            doubled = min(self._failures, BACKOFF_DOUBLINGS_MAX)
            self._failures += 1
            backoff_s = min(self._backoff_s * 2**doubled, self._backoff_s_max) * self._jitter()
            with self._lock:
                self._resume_s = self._now_s + backoff_s
                self.stale_topics |= topics

    def _make_again(self, gone: set[str]) -> None:
        """Let the appliance make topics, as at their first message; what is sent to those that are not made waits."""
        made: list[str] = []
        for name in gone:
            if self._refused_s.get(name, -REFUSED_S) + REFUSED_S <= self._now_s:
                try:
                    self._cluster.admin("ensure_topic", {"name": name})
                    made.append(name)
                except ClientFault:  # not permitted, or topics are not made on demand
                    self._refused_s[name] = self._now_s
        if made:
            self._cluster.refresh(made)

    def ensure_id(self) -> None:
        """Get a producer id if there is none yet, in the calling thread."""
        if self.producer_id < 0:
            producer_id, _ = self.ask_id()
            with self._lock:
                self.producer_id = producer_id

    def ask_id(self) -> tuple[int, int]:
        """A new producer id, and its epoch."""
        result = self._cluster.admin("init_producer", {})
        return int(result["producer_id"]), int(result["epoch"])
