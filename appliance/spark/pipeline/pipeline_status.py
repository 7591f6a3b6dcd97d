"""Reads a pipeline's results and lag from its files and from the appliance, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ...client.admin import Admin
from ...errors import ApplianceError, ConfigFault
from ...names import TopicPartition
from ..stream_offsets import Positions
from .audit_verdicts import Verdict, verdict, windows
from .batch_record import BEGINNING, BatchRecord
from .resume import TopicLog
from .settings import Settings
from .space_saving import Ranking, heaviest_of_all
from .startup import examine, output_lock, raise_refused, topic_logs
from .state_directory import State
from .table_files import EVENTS
from .tables import open_store, owner_of

RATES_OVER: Final = 10
"""Number of micro-batches from which rates are computed."""
ASK_MS: Final = 5_000


class Summary(NamedTuple):
    """Counts of the rows in the output."""

    parsed: dict[str, int]
    """Rows by parser."""
    dead: dict[str, int]
    """Dead letters by reason."""
    nulled: dict[str, int]
    """Columns of parsed lines that are null because their fields did not fit, by reason."""
    bytes: int
    audit: Verdict | None
    events: str

    def as_json(self) -> dict[str, Any]:
        audit = None if self.audit is None else self.audit.as_json()
        return {
            "parsed": sum(self.parsed.values()),
            "dead_letters": sum(self.dead.values()),
            "bytes": self.bytes,
            "by_parser": self.parsed,
            "by_reason": self.dead,
            "columns_nulled": self.nulled,
            "audit": audit,
            "events": self.events,
        }


EMPTY: Final = Summary({}, {}, {}, 0, None, "")


def read_total(settings: Settings, name: str) -> pa.Table | None:
    """All rows of a table of totals; None when there are none."""
    return open_store(settings).read(name)


def summary(settings: Settings, now: datetime | None = None) -> Summary:
    ledger = read_total(settings, "ledger")
    parsed: dict[str, int] = {}
    dead: dict[str, int] = {}
    nulled: dict[str, int] = {}
    size = 0
    if ledger is not None:
        found = ledger.group_by(["parser", "reason"]).aggregate([("rows", "sum")])
        for row in found.sort_by([("rows_sum", "descending")]).to_pylist():
            counts = parsed if not row["reason"] else nulled if row["parser"] else dead
            counts[row["reason"] or row["parser"]] = row["rows_sum"]
        size = pc.sum(ledger.column("bytes")).as_py() or 0
    audit = None
    if settings.audit.topic:
        audit = verdict(windows(read_total(settings, "audit"), now or datetime.now(UTC), settings.audit.grace_ms))
    return Summary(parsed, dead, nulled, size, audit, f"{settings.output.path}/{EVENTS}")


def heaviest(settings: Settings, name: str, most: int) -> Ranking:
    """See :func:`~.space_saving.heaviest_of_all`."""
    table = read_total(settings, name)
    by = next(list(each.by) for each in settings.aggregate if each.name == name)
    return Ranking([], 0) if table is None else heaviest_of_all(table, by, most)


class Position(NamedTuple):
    """One partition's offset.  ``end`` and ``lag_bytes`` are None while the appliance is away."""

    topic: str
    partition: int
    offset: int
    end: int | None
    lag_bytes: int | None


class Status(NamedTuple):
    """``state``: "never run", "running", "stopped", "failed" or "refused" (a run would be)."""

    state: str
    running: int | None
    batch: int | None
    positions: list[Position]
    rows_per_s: float
    bytes_per_s: float
    remarks: list[str]
    """Why it is refused or failed, why ends are not known, or offsets were not published."""
    summary: Summary

    def as_json(self) -> dict[str, Any]:
        lags = [each.lag_bytes for each in self.positions]
        return {
            "state": self.state,
            "running": self.running,
            "batch": self.batch,
            "lag_bytes": None if None in lags else sum(lag or 0 for lag in lags),
            "rows_per_s": round(self.rows_per_s, 1),
            "bytes_per_s": round(self.bytes_per_s),
            "remarks": self.remarks,
            "positions": [each._asdict() for each in self.positions],
            **self.summary.as_json(),
        }


def status(settings: Settings) -> Status:
    """The present status.  Also publishes the offsets."""
    state = State(settings.state_dir)
    running = output_lock(settings).holder()
    remarks: list[str] = []
    record, logs, stop = None, None, ""
    try:
        owner_of(settings)
        record = open_store(settings).recorded()
        logs = topic_logs(settings, ASK_MS)
        if running is None:
            raise_refused(examine(settings, open_store(settings), logs))
    except ConfigFault as error:
        stop = str(error)
    except ApplianceError as error:
        remarks.append(f"ends are not known: {error}")
    positions = record.ends if record is not None else {}
    if positions and logs is not None and (remark := publish(settings, positions)):
        remarks.append(remark)
    if running is None and state.failure.exists():
        remarks.append(f"the last run failed: the whole report is in {state.failure}")
    recent = state.history()[-RATES_OVER:]
    seconds = sum(each.seconds for each in recent) or 1.0
    return Status(
        state=_state(running, stop, record, state),
        running=running,
        batch=record.batch if record is not None and record.batch > BEGINNING else None,
        positions=[_position(key, offset, logs or {}) for key, offset in sorted(positions.items())],
        rows_per_s=sum(each.rows for each in recent) / seconds,
        bytes_per_s=sum(each.bytes for each in recent) / seconds,
        remarks=[*([stop] if stop else []), *remarks],
        summary=summary(settings) if record is not None else EMPTY,
    )


def _state(running: int | None, stop: str, record: BatchRecord | None, state: State) -> str:
    if running is not None:
        return "running"
    if stop:
        return "refused"
    if record is None:
        return "never run"
    return "failed" if state.failure.exists() else "stopped"


def _position(key: TopicPartition, offset: int, logs: Mapping[str, TopicLog]) -> Position:
    topic, partition = key
    bounds = logs[topic].bounds.get(partition) if topic in logs else None
    end = bounds[1] if bounds is not None else None
    return Position(topic, partition, offset, end, None if end is None else max(0, end - offset))


def publish(settings: Settings, positions: Positions) -> str:
    """Commit the offsets as those of a group, for monitoring.  Returns why that failed, or "".

    The pipeline itself continues from its tables, so a failure (as without ZooKeeper) is no error.
    """
    if not settings.group or not positions:
        return ""
    try:
        with Admin(settings.pipeline.bootstrap, client_name="pipeline", request_timeout_ms=ASK_MS) as admin:
            admin.commit(settings.group, positions)
    except ApplianceError as error:
        return f"offsets are not published: {error}"
    return ""
