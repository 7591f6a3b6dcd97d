"""Removes the rows of a person, or of anything that a predicate names, from what a pipeline keeps of its lines.

1. :func:`find` says which rows those are, and where else their lines are: nothing is changed.
2. :func:`remove_rows` deletes them from events, in one transaction.
3. Views are refreshed: they compute the windows of these rows again.
4. :func:`remove_old_files` removes the files in which earlier versions of events and views have them.

Dead letters that wait are sent before the second step and the last one: their lines are in these files.

Rows of before a time (:func:`older_than`) expire by the second step alone, and the views by their next refresh: their
files go as those of other versions do.

Each step may be repeated, and so may all of them after a kill: the first one finds nothing then, and the others go on.
What is left is not the pipeline's to remove: messages of topics, until retention does it, and what Delta's log says of
removed files.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from ...client.admin import Admin
from ...errors import BadValue
from ...names import TopicPartition
from .event_versions import EventVersions
from .expiry import expired, store_expired
from .letters import Letters
from .output_files import LOG, OutputFiles
from .resume import TopicLog
from .settings import Settings
from .startup import output_lock, topic_logs
from .table_files import EVENTS
from .times import EPOCH
from .view_states import orphans, views_lock, views_of
from .view_table import PARTS, VIEWS, ViewTable

log = logging.getLogger(__name__)
FORGOTTEN_KEY: Final = "appliance.forgotten"
ADVICE: Final = (
    "rows cannot be deleted by it: compare times with text, as received >= '2026-11-20T00:00:00Z', "
    "and leave out now(), random() and queries within it"
)


class Place(NamedTuple):
    """Rows of one partition of a topic; ``first``, ``last``: offsets; ``newest_us``: when the last one arrived."""

    topic: str
    partition: int
    rows: int
    rejected: int
    first: int
    last: int
    newest_us: int


class Remains(NamedTuple):
    """What holds these lines still, or may do so; ``until``: when that ends by itself."""

    where: str
    until: str


def find(settings: Settings, predicate: str) -> list[Place]:
    """The rows for which a predicate of SQL is true, by partition.

    Raises:
        BadValue: there is no table, or the predicate is wrong.
    """
    from deltalake import QueryBuilder

    table = _events(settings)
    query = (
        'select topic, partition, count(*) as rows, count(rejected) as rejected, min("offset") as first, '
        f'max("offset") as last, max(received) as newest from {EVENTS} where ({predicate}) '
        "group by topic, partition order by topic, partition"
    )
    with _ErrorsOf(predicate):
        # Only what is right without parentheses, too, is one expression: "a) or (b" is right within them.
        QueryBuilder().register(EVENTS, table).execute(f"select 1 from {EVENTS} where {predicate} limit 0").read_all()
        counted = pa.table(QueryBuilder().register(EVENTS, table).execute(query).read_all())
    with _ErrorsOf(predicate, ADVICE):
        _rehearse(table, predicate)
    newest = counted.column("newest").cast(pa.int64()).to_pylist()
    return [
        Place(**row, newest_us=micros)
        for row, micros in zip(counted.drop_columns(["newest"]).to_pylist(), newest, strict=True)
    ]


def older_than(micros: int) -> str:
    """The predicate for rows of before a time, in microseconds since 1970."""
    return f"time < '{EPOCH + timedelta(microseconds=micros):%Y-%m-%dT%H:%M:%S.%fZ}'"


def send_letters(settings: Settings) -> None:
    """Send the dead letters that wait.

    Raises:
        AlreadyRunning: the pipeline is running.
        ApplianceError: they cannot be sent.
    """
    with output_lock(settings):
        Letters(settings).send_waiting()


def expire_rows(settings: Settings, before_us: int) -> int:
    """Delete the rows of before this time.  Returns and raises as :func:`remove_rows`."""
    return remove_rows(settings, older_than(before_us), before_us)


def _note(settings: Settings, before_us: int, places: Sequence[Place]) -> None:
    """Remember that these rows expire, for those who compare the table with what was sent."""
    files = OutputFiles(settings.output)
    earlier = expired(files)
    now = msgspec.structs.replace(earlier, before_us=max(before_us, earlier.before_us))
    for place in places:
        now = now.and_of(TopicPartition(place.topic, place.partition), place.last, place.newest_us)
    store_expired(files, now)


def remove_rows(settings: Settings, predicate: str, before_us: int | None = None) -> int:
    """Delete these rows from events.  Returns their number.  ``before_us``: they expire, being older.

    Raises:
        AlreadyRunning: the pipeline is running.
        BadValue: as :func:`find`; or other rows were deleted than it finds, and earlier versions have them still.
    """
    from deltalake import CommitProperties

    with output_lock(settings):
        places = find(settings, predicate)
        matching = sum(place.rows for place in places)
        if not matching:
            return 0
        if before_us is not None:
            _note(settings, before_us, places)
        done = CommitProperties(custom_metadata={FORGOTTEN_KEY: "1"})  # the predicate may name the person
        table = _events(settings)
        version = table.version()
        with _ErrorsOf(predicate, "nothing was deleted"):
            # Without parentheses delta-rs takes the first expression only, and says nothing about the rest.
            removed = int(table.delete(f"({predicate})", commit_properties=done)["num_deleted_rows"])
        if removed != matching:
            raise BadValue(
                f"--where {predicate!r}: {removed:,} rows were deleted, {matching:,} were found: look at {EVENTS}, and "
                f"go back to its version {version} if they are the wrong ones; its files are still there"
            )
        return removed


class _ErrorsOf:
    """Raises BadValue for what the libraries of tables raise, which have no kind of error in common."""

    def __init__(self, predicate: str, advice: str = "") -> None:
        self._predicate = predicate
        self._advice = advice

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        # A panic of Rust is a BaseException, as what ends a process is.
        if kind is not None and not issubclass(kind, KeyboardInterrupt | SystemExit | GeneratorExit):
            first = str(error).strip().partition("\n")[0]  # what comes below may be a trace
            parts = [f"--where {self._predicate!r}", " ".join(first.split()), self._advice]
            raise BadValue(": ".join(filter(None, parts))) from None


def _rehearse(table: Any, predicate: str) -> None:
    """Delete from a table like this one: what may stand in a query may not always stand in a delete."""
    from deltalake import DeltaTable, write_deltalake

    schema = pa.schema([field.with_nullable(True) for field in pa.schema(table.schema().to_arrow())])
    row = pa.table([pa.nulls(1, field.type) for field in schema], schema=schema)  # nothing of a person
    with tempfile.TemporaryDirectory(prefix="appliance-") as directory:
        write_deltalake(directory, row, partition_by=table.metadata().partition_columns)
        DeltaTable(directory).delete(f"({predicate})")


def remove_old_files(settings: Settings) -> int:
    """Remove all files of events and views that the latest versions do not need.  Returns their number.

    Raises:
        AlreadyRunning: the pipeline is running, or views are refreshed.
        ApplianceError: dead letters wait that need these files, and cannot be sent.
    """
    removed = 0
    with output_lock(settings), views_lock(settings):
        Letters(settings).send_waiting()
        views = Path(settings.output.path) / VIEWS
        tables = [_events(settings)]
        for directory in sorted(views.iterdir()) if views.exists() else ():
            if (directory / LOG).exists():
                names = [directory.name, f"{directory.name}/{PARTS}"]
                tables += (ViewTable(settings.output, name).opened() for name in names if (views / name / LOG).exists())
            else:
                log.warning("%s is no table of a view: nothing is removed from it", directory)
        for table in tables:
            removed += len(table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True))
    return removed


def remaining(settings: Settings, places: Sequence[Place]) -> list[Remains]:
    """Where else lines of these rows are.

    Raises:
        ApplianceError: the appliance cannot be reached.
    """
    remains = [
        Remains(f"table of the view {name}, which is not refreshed: there is no {name}.sql", "its directory is deleted")
        for name in orphans(settings)
    ]
    remains += (
        Remains(f"rows of the view {view.name} in topic {view.topic}", "its retention")
        for view in views_of(settings)
        if places and view.topic
    )
    if places:
        logs = topic_logs(settings, only=sorted({place.topic for place in places}))
        with Admin(settings.pipeline.bootstrap, client_name="pipeline") as admin:
            kept = {row["name"]: row["settings"] for row in admin.topics(sorted(logs))}
        remains += (_of_place(place, logs, kept) for place in places if _is_there(place, logs))
        if settings.dead_letters.topic:  # also of lines that parsers take now: they may have been rejected before
            remains.append(Remains(f"dead letters in topic {settings.dead_letters.topic}", "its retention"))
        remains.append(Remains("lowest and highest values of removed files, in the logs of the tables", "7 days"))
    return remains


def _is_there(place: Place, logs: Mapping[str, TopicLog]) -> bool:
    start, _ = logs[place.topic].bounds.get(place.partition, (0, 0)) if place.topic in logs else (0, 0)
    return place.topic in logs and start <= place.last


def _of_place(place: Place, logs: Mapping[str, TopicLog], kept: Mapping[str, Mapping[str, Any]]) -> Remains:
    first = max(place.first, logs[place.topic].bounds[place.partition][0])
    key = TopicPartition(place.topic, place.partition)
    retention_ms = int(kept.get(place.topic, {}).get("retention.ms", -1))
    until = "its retention by size, or somebody deletes them"
    if retention_ms >= 0:
        gone = datetime.fromtimestamp(place.newest_us / 1e6 + retention_ms / 1000, UTC)
        until = f"{gone.isoformat(timespec='seconds')} or later, with their segment"
    return Remains(f"messages of {key.topic}-{key.partition}, offsets {first} to {place.last}", until)


def _events(settings: Settings) -> Any:
    """The table.  Raises BadValue if there is none."""
    EventVersions(settings.output)  # says what there is not
    return OutputFiles(settings.output).delta_table(EVENTS)
