"""Tells the appliance of damage that a reader has met, which is named then, and asks it what it does not serve."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from ..errors import ApplianceError
from .cluster_client import Cluster

EVERY_S: Final = 60.0
"""One report of a partition in this time: behind the first damage, the scrubber looks at all of it."""
ANSWER_MS_MAX: Final = 2_000
"""How long a reader waits for the appliance, which reads the offsets itself."""


def withheld_at(cluster: Cluster, topic: str, partition: int, offset: int) -> dict[str, Any] | None:
    """The offsets that the appliance knows to be damaged, and does not serve, among which this one is; None: it is not.

    Returns:
        start, stop, file, position, reason.
    """
    with suppress(ApplianceError):
        for row in cluster.report_damage(topic, partition, offset, offset + 1, timeout_ms=ANSWER_MS_MAX):
            if row["start"] <= offset < row["stop"]:
                return row
    return None


def report(cluster: Cluster, topic: str, partition: int, start: int, stop: int) -> None:
    """The bytes from offset ``start`` to ``stop`` are no sound record batch.  Never raises: a report is a courtesy."""
    with suppress(ApplianceError):
        cluster.report_damage(topic, partition, start, stop, timeout_ms=ANSWER_MS_MAX)


class DamageReports:
    """Reports of one client, at most one for a partition in :data:`EVERY_S`."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._next_s: dict[tuple[str, int], float] = {}

    def report(self, topic: str, partition: int, start: int, stop: int) -> None:
        """As :func:`report`, unless one of the partition was sent lately."""
        now_s = self._clock()
        if now_s < self._next_s.get((topic, partition), now_s):
            return
        self._next_s[topic, partition] = now_s + EVERY_S
        report(self._cluster, topic, partition, start, stop)
