"""Says what a pipeline's table has, and how far it is behind the topics, without Spark.

What became of the lines is counted once for each file of the table (``line_counts``); the audit is asked of the latest
version of ``events`` (``event_questions``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from ...client.admin import Admin
from ...errors import ApplianceError, ConfigFault
from ...log_access.ranges import Positions
from ...names import TopicPartition
from .audit_counts import windows_of
from .audit_verdicts import Verdict, verdict, windows
from .batch_record import BEGINNING, BatchRecord
from .event_questions import questions
from .letters import Letters
from .line_counts import line_counts
from .quality import DROPS
from .resume import TopicLog
from .settings import Settings
from .startup import ASK_MS, examine, output_lock, raise_refused, topic_logs
from .state_directory import State
from .table_files import EVENTS
from .tables import open_store, owner_of
from .troubles import Troubles
from .view_alerts import ViewAlerts
from .view_states import views_of

RATES_OVER: Final = 10
"""Number of micro-batches from which rates are computed."""
LETTERS_LATE: Final = timedelta(minutes=1)
"""A run sends dead letters within seconds of their commit, and tries for so long, or longer, if it cannot."""


class Summary(NamedTuple):
    """Counts of lines in the table of events."""

    parsed: dict[str, int]
    """By parser."""
    dead: dict[str, int]
    """Those that no parser took, or that a rule rejects, by reason."""
    dropped: dict[str, int]
    """Those that a rule has dropped, by rule."""
    unexpected: dict[str, int]
    """Parsed lines that fail a rule which only warns, by rule."""
    nulled: dict[str, int]
    """Parsed lines with columns that are null because their fields did not fit, by reason."""
    audit: Verdict | None
    events: str

    def as_json(self) -> dict[str, Any]:
        audit = None if self.audit is None else self.audit.as_json()
        return {
            "parsed": sum(self.parsed.values()),
            "dead_letters": sum(self.dead.values()),
            "by_parser": self.parsed,
            "by_reason": self.dead,
            "dropped": self.dropped,
            "unexpected": self.unexpected,
            "columns_nulled": self.nulled,
            "audit": audit,
            "events": self.events,
        }


EMPTY: Final = Summary({}, {}, {}, {}, {}, None, "")


def summary(settings: Settings, now: datetime | None = None) -> Summary:
    result = EMPTY._replace(events=f"{settings.output.path}/{EVENTS}")
    counts = line_counts(settings)
    drops = {rule: lines for rule, lines in counts.rejected.items() if rule.startswith(DROPS)}
    result = result._replace(
        parsed=counts.parsed_by(settings.audit.topic),
        dead={reason: lines for reason, lines in counts.rejected.items() if reason not in drops},
        dropped={rule.removeprefix(DROPS): lines for rule, lines in drops.items()},
        nulled=counts.column_errors,
        unexpected=counts.unexpected,
    )
    if settings.audit.topic:
        counted = windows_of(settings, questions(settings))
        judged = verdict(windows(counted, now or datetime.now(UTC), settings.audit.grace_ms))
        result = result._replace(audit=judged)
    return result


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
        lags = [position.lag_bytes for position in self.positions]
        return {
            "state": self.state,
            "running": self.running,
            "batch": self.batch,
            "lag_bytes": None if None in lags else sum(lag or 0 for lag in lags),
            "rows_per_s": round(self.rows_per_s, 1),
            "bytes_per_s": round(self.bytes_per_s),
            "remarks": self.remarks,
            "positions": [position._asdict() for position in self.positions],
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
    if record is not None and settings.dead_letters.topic:
        now = datetime.now(UTC)
        remarks += of_letters(Letters(settings), now - LETTERS_LATE if running is not None else now)
    remarks += Troubles(settings).reasons()
    if stop == "":
        with suppress(ConfigFault):  # what is wrong with the views is a trouble
            remarks += of_alerts(settings)
    recent = state.history()[-RATES_OVER:]
    seconds = sum(progress.seconds for progress in recent) or 1.0
    return Status(
        state=_state(running, stop, record, state),
        running=running,
        batch=record.batch if record is not None and record.batch > BEGINNING else None,
        positions=[_position(key, offset, logs or {}) for key, offset in sorted(positions.items())],
        rows_per_s=sum(progress.rows for progress in recent) / seconds,
        bytes_per_s=sum(progress.bytes for progress in recent) / seconds,
        remarks=[*([stop] if stop else []), *remarks],
        summary=summary(settings) if record is not None else EMPTY,
    )


def of_letters(letters: Letters, due: datetime) -> Iterator[str]:
    """What to tell of dead letters, where those of commits before ``due`` should have been sent."""
    late = [stamp for stamp in letters.waiting() if stamp <= due]
    if late:
        since = f"{min(late):%Y-%m-%d %H:%M:%S} UTC"
        yield f"dead letters of {len(late)} versions of {EVENTS} are not sent yet, since {since}"
    if letters.left_out:
        yield letters.left_out


def of_alerts(settings: Settings) -> Iterator[str]:
    """What to tell of windows of views that have met the conditions of alerts lately."""
    for view in views_of(settings):
        for alert, met, waiting in ViewAlerts(settings, view).standing():
            if met:
                of = f"{len(met)} windows" if len(met) > 1 else "a window"
                told = f"; nobody is told of {waiting} of them yet" if waiting else ""
                yield f"alert: {view.name}: {of} with {alert.when}, last {met[-1]:%Y-%m-%d %H:%M:%S} UTC{told}"


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
    """Commit the offsets as those of a group, with what is left undone, for monitoring.  Returns why not, or "".

    The pipeline itself continues from its tables, so a failure (as without ZooKeeper) is no error.
    """
    if not settings.group or not positions:
        return ""
    try:
        with Admin(settings.pipeline.bootstrap, client_name="pipeline", request_timeout_ms=ASK_MS) as admin:
            admin.commit(settings.group, positions, note=Troubles(settings).as_note())
    except ApplianceError as error:
        return f"offsets are not published: {error}"
    return ""


def publish_recorded(settings: Settings) -> str:
    """As :func:`publish`, of what the table has."""
    record = open_store(settings).recorded()
    return publish(settings, record.ends) if record is not None else ""
