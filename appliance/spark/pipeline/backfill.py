"""Brings in the lines that topics have from before a table began: of ``input.starting = "latest"``, or of a log that an
older copy has been put back into.

It is a run of the pipeline that goes back: the same tasks, and commits of the same kind, each with its offsets
(``back`` of a record, see ``batch_record``).  The newest lines come first, so what the table has of a partition is one
range at any time.  Whoever is killed goes back from there next time, and one that has ended finds nothing to do.  Lines
that the table has had, and that were forgotten or have expired since, are not from before its beginning: they stay
away.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import msgspec

from ...errors import BadValue
from ...log_access.access import LogAccess
from ...names import TopicPartition
from .batch_record import BatchRecord
from .resume import decide, lines_before
from .run import OnProgress, Result, run
from .settings import Settings
from .startup import ASK_MS, Beginning, begin, check, raise_refused
from .tables import open_store
from .topic_logs import read_logs


class Gap(NamedTuple):
    """Lines of a partition that the table does not have, from offset ``first`` to before ``end``, where it begins."""

    topic: str
    partition: int
    first: int
    end: int

    @property
    def bytes(self) -> int:
        """What they take in the log: offsets are bytes."""
        return self.end - self.first


def gaps(settings: Settings, since_ms: int | None = None) -> list[Gap]:
    """What :func:`backfill` would bring in.

    Raises:
        BadValue: there is no table, or a run would be refused.
        BrokerAway: the appliance is.
    """
    record = _recorded(settings)
    raise_refused(check(settings))
    return _gaps(settings, record, since_ms, ASK_MS)


def backfill(
    settings: Settings, *, since_ms: int | None = None, on_progress: OnProgress = lambda _: None, session: Any = None
) -> Result:
    """Bring in all lines from before the table begins, or those that arrived from a time on, in milliseconds.

    Raises:
        BadValue: as :func:`gaps`.
        AlreadyRunning, ApplianceError: as :func:`~.run.run`.
    """
    begin_with = partial(begin_back, since_ms=since_ms)
    return run(settings, once=True, begin_with=begin_with, on_progress=on_progress, session=session)


def begin_back(settings: Settings, since_ms: int | None = None) -> Beginning:
    """As :func:`~.startup.begin`, for a run that goes back.  Raises as :func:`gaps`."""
    record = _recorded(settings)
    beginning = begin(settings)
    floors: dict[str, dict[int, int]] = {}
    for gap in _gaps(settings, record, since_ms, settings.input.retry_ms):
        floors.setdefault(gap.topic, {})[gap.partition] = gap.first
    return msgspec.structs.replace(beginning, floors=floors)


def _recorded(settings: Settings) -> BatchRecord:
    record = open_store(settings).recorded()
    if record is None:
        raise BadValue(
            f"there is no table of events in {settings.output.path}, before which lines could come: "
            "`appliance pipeline run CONFIG.toml` makes it"
        )
    return record


def _gaps(settings: Settings, record: BatchRecord, since_ms: int | None, retry_ms: int) -> list[Gap]:
    access = LogAccess(settings.pipeline.bootstrap, retry_ms, "pipeline")
    try:
        logs = read_logs(access, settings.topics)
        before = lines_before(decide(record, logs, False).begun, logs)
        floors = {key: first for key, (first, _) in before.items()}
        if since_ms is not None:
            floors = _not_before(access, floors, since_ms)
        return [Gap(*key, floors[key], end) for key, (_, end) in before.items() if floors.get(key, end) < end]
    finally:
        access.close()


def _not_before(access: LogAccess, floors: dict[TopicPartition, int], since_ms: int) -> dict[TopicPartition, int]:
    """The offsets from which on lines arrived at this time; partitions whose lines are all older are left out."""
    at = access.offsets(dict.fromkeys(floors, since_ms))
    return {key: max(floor, at[key]) for key, floor in floors.items() if at[key] >= 0}
