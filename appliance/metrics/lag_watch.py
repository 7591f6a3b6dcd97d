"""Measures how far groups are behind, in a thread, so that no scrape and no page waits for it.

Committed offsets come from the coordinator, over the Unix socket in the data directory, one group at a time; everything
else from the tables and indexes.  A round is followed by a pause of at least PAUSE_S (or what was asked for), and of
PAUSE_RATIO times as long as the round took: so it costs less than 1 % of a core, however many groups and partitions
there are.  A partition is measured again only when its committed offset, its start or its end has changed.

Each broker measures the partitions that it stores.  Bounds: GROUPS_MAX groups, those with the first names.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..client.admin import Admin
from ..clock import now_ms, wall_ms
from ..errors import ApplianceError, OffsetOutOfRange, StorageFault, WriterGone
from ..log import FileCache, LogReader
from ..machine_limits import open_files_max
from ..names import TopicPartition
from ..retention import lost_bytes
from ..status import read_state
from .readings import open_table

GROUPS_MAX: Final = 500
PAUSE_S: Final = 10
PAUSE_RATIO: Final = 150
PAUSE_S_MAX: Final = 600
FILES_MAX: Final = 64
ASK_MS: Final = 10_000

logger = logging.getLogger(__name__)


class Lag(NamedTuple):
    """How far a group is behind in a topic.

    ``seconds``: the age of the oldest message that it has not read.  ``lost_bytes``: what was removed before that.
    """

    messages: int = 0
    bytes: int = 0
    seconds: float = 0.0
    lost_bytes: int = 0

    def with_partition(self, other: Lag) -> Lag:
        return Lag(
            self.messages + other.messages,
            self.bytes + other.bytes,
            max(self.seconds, other.seconds),
            self.lost_bytes + other.lost_bytes,
        )


class Lags(NamedTuple):
    """The result of a round: ``measured_ms`` is its monotonic time, ``left_out`` how many groups are too many."""

    by_group: Mapping[tuple[str, str], Lag]
    measured_ms: int
    left_out: int


class _Known(NamedTuple):
    """What was measured for (committed offset, log start offset, high watermark); the time is the next message's."""

    of: tuple[int, int, int]
    messages: int
    bytes: int
    timestamp_ms: int


class LagWatch:
    """Measures again and again.  ``lags``: the last result, None before the first; another thread may read it."""

    def __init__(self, data_dir: Path, client_name: str, pause_s: float = PAUSE_S) -> None:
        """``client_name``: as which the appliance is asked; ``pause_s``: the least pause after a round."""
        self._data_dir, self._client_name, self._pause_s = data_dir, client_name, pause_s
        self._files = FileCache(open_files_max(FILES_MAX))
        self._known: dict[tuple[str, TopicPartition], _Known] = {}
        self.lags: Lags | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lag", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            began_ms = now_ms()
            try:
                self.lags = self.measure()
            except ApplianceError as error:
                logger.info("lag is not measured: %s", error)
            took_s = (now_ms() - began_ms) / 1000
            self._stop.wait(max(self._pause_s, min(PAUSE_RATIO * took_s, PAUSE_S_MAX)))

    def measure(self) -> Lags:
        """One round.

        Raises:
            ApplianceError: nobody answers.
        """
        state = read_state(self._data_dir)
        local = str(state["listeners"].get("local", "")) if state else ""
        if not local or not state or state["zookeeper"].get("state") != "connected":
            self._known.clear()
            return Lags({}, now_ms(), 0)
        lags: dict[tuple[str, str], Lag] = {}
        known_parts: dict[tuple[str, TopicPartition], _Known] = {}
        with Admin(local, client_name=self._client_name, request_timeout_ms=ASK_MS) as admin:
            groups = admin.group_names()
            for group in groups[:GROUPS_MAX]:
                for (topic, number), offset in admin.offsets(group).items():
                    part = TopicPartition(topic, number)
                    measured = self._measure(group, part, state, offset)
                    if measured is None:
                        continue
                    known_parts[group, part] = measured
                    (_, start, _), messages, size, since_ms = measured
                    age_ms = max(0, wall_ms() - since_ms) if size and since_ms >= 0 else 0  # -1: it has no time
                    lag = Lag(messages, size, age_ms / 1000, lost_bytes(offset, start))
                    lags[group, topic] = lags.get((group, topic), Lag()).with_partition(lag)
        self._known = known_parts
        self._files.drop_unlinked()
        return Lags(lags, now_ms(), max(0, len(groups) - GROUPS_MAX))

    def _measure(self, group: str, part: TopicPartition, state: Mapping[str, Any], offset: int) -> _Known | None:
        """None when the partition is not here, or its log cannot be read now."""
        try:
            with open_table(state, part) as table:
                (bases, start, end, _), appended = table.snapshot(), table.records
            at = min(max(offset, start), end)
            before = self._known.get((group, part))
            of = (offset, start, end)
            if before is not None and before.of == of:
                return before
            if at >= end:
                return _Known(of, 0, 0, 0)
            reader = LogReader(self._data_dir.absolute() / f"{part.topic}-{part.partition}", self._files)
            timestamp, records = reader.time_and_count(bases, end, at)
        except (WriterGone, StorageFault, OffsetOutOfRange, OSError):
            return None
        return _Known(of, max(0, appended - records), end - at, timestamp)


def as_json(lags: Lags | None) -> list[dict[str, Any]]:
    """Rows for people: group, topic, and the fields of :class:`Lag`."""
    rows = sorted((lags.by_group if lags else {}).items())
    return [{"group": group, "topic": topic, **lag._asdict()} for (group, topic), lag in rows]
