"""Reads the counts that producers publish: a message is a row of ``events``, and windows are summed by SQL over these.

The row of a count has the parser :data:`PARSER`, the time at which the window begins that was counted, and the message
as it is.  A message that is no count is rejected, as a line that no parser takes.

Sent messages are those of the counts.  Arrived ones are the rows of the counted topics, by the time of the record; of
an event of several lines each line counts, for which its row has their times in the column :data:`ARRIVALS`.

A window is compared where the table has both sides whole: it is later than what has expired, and than the first row of
each partition from before whose beginning the table has nothing, of the topic and of the counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta

from ...names import TopicPartition
from .event_questions import Questions, micros, step_of, text
from .events import calendar, rejected
from .expiry import Expired, expired
from .multiline import ARRIVALS
from .output_files import OutputFiles
from .schema_changes import conform
from .settings import Audit, Settings
from .tables import open_store
from .times import MICROS, MICROS_MAX

PARSER: Final = "audit"
NOTHING: Final = Expired()
WINDOWS: Final = pa.schema(
    [("topic", pa.string()), ("start", MICROS), ("end", MICROS), ("counted", pa.int64()), ("arrived", pa.int64())]
)


class Counts(msgspec.Struct):
    """A message of the audit topic, as ``appliance.client.audit`` writes it."""

    topic: Annotated[str, Meta(max_length=249)]
    window_start_ms: Annotated[int, Meta(ge=0, le=MICROS_MAX // 1000)]
    window_ms: Annotated[int, Meta(ge=1)]
    count: Annotated[int, Meta(ge=0, le=1 << 53)]
    server: str = ""


_decode = msgspec.json.Decoder(Counts).decode


def rows_of(batch: pa.RecordBatch, schema: pa.Schema, window_ms: int) -> pa.Table:
    """The messages of a batch as rows of the table with this schema."""
    starts: list[int | None] = []
    reasons: list[str | None] = []
    for value in batch.column("value").to_pylist():
        start, reason = _judged(value, window_ms)
        starts.append(start)
        reasons.append(reason)
    times = pa.array(starts, pa.int64()).cast(MICROS)
    whole = pa.Table.from_batches([batch])
    taken = whole.append_column("time", times).filter(pc.is_valid(times))
    dead = whole.append_column("reason", pa.array(reasons, pa.string())).filter(pc.is_null(times))
    columns = {name: taken.column(name) for name in ("topic", "partition", "offset", "time")}
    columns |= {"received": taken.column("timestamp"), "message": taken.column("value").cast(pa.string())}
    columns |= {"parser": pa.array([PARSER] * len(taken), pa.string())} | calendar(taken.column("time"))
    return pa.concat_tables([conform(pa.table(columns), schema), rejected(dead, schema)])


def _judged(value: bytes | None, window_ms: int) -> tuple[int | None, str | None]:
    """When the window begins, in microseconds; or why the message is no count."""
    try:
        counts = _decode(value or b"")
    except msgspec.DecodeError as error:
        return None, f"audit: {error}"
    if counts.window_ms > window_ms or window_ms % counts.window_ms:
        return None, f"audit: windows of {counts.window_ms} ms do not fit {window_ms} ms"
    return counts.window_start_ms * 1000, None


def windows_of(settings: Settings, asked: Questions | None) -> pa.Table:
    """As :func:`read_windows`, of a pipeline."""
    record = open_store(settings).recorded()
    beginnings = record.beginnings if record is not None else {}
    return read_windows(asked, settings.audit, expired(OutputFiles(settings.output)), beginnings)


def read_windows(
    asked: Questions | None,
    settings: Audit,
    gone: Expired = NOTHING,
    beginnings: Mapping[TopicPartition, int] = MappingProxyType({}),
) -> pa.Table:
    """Messages sent and arrived, of each topic that is counted and each window that can be compared.

    ``beginnings``: the offset from which on the table has each partition.
    """
    window_us = settings.window_ms * 1000
    counted: dict[tuple[str, int], int] = {}
    if asked is not None and settings.topic:
        condition = f"topic = {text(settings.topic)} and parser = {text(PARSER)}"
        # There is one of each server and window: too many to have all of them at a time.
        for batch in asked.batches(f"select message from events where {condition}"):
            for message in batch.column("message").to_pylist():
                counts = _decode(message)
                key = counts.topic, counts.window_start_ms * 1000 // window_us * window_us
                counted[key] = counted.get(key, 0) + counts.count
    arrived = _arrived(asked, sorted({topic for topic, _ in counted}), window_us) if asked is not None else {}
    begun_us = _begun(asked, sorted({topic for topic, _ in counted}), settings.topic, beginnings)
    judged = [key for key in {*counted, *arrived} if not gone.has_touched(*key) and key[1] > begun_us.get(key[0], -1)]
    rows = sorted(judged, key=lambda key: (key[1], key[0]))
    columns = [
        [topic for topic, _ in rows],
        pa.array([start for _, start in rows], pa.int64()).cast(MICROS),
        pa.array([start + window_us for _, start in rows], pa.int64()).cast(MICROS),
        [counted.get(key, 0) for key in rows],
        [arrived.get(key, 0) for key in rows],
    ]
    return pa.table(columns, schema=WINDOWS)


def _begun(
    asked: Questions | None, topics: list[str], counts: str, beginnings: Mapping[TopicPartition, int]
) -> dict[str, int]:
    """When the first row arrived of which earlier ones may be missing, by topic, in microseconds since 1970."""
    if asked is None or not topics or not any(beginnings.values()):
        return {}
    of_topics = f"topic in ({', '.join(map(text, [*topics, counts]))})"
    first = f"select topic, partition, min({micros('received')}) as first from events where {of_topics} group by 1, 2"
    begun: dict[str, int] = {}
    for row in asked.rows(first):
        if beginnings.get(TopicPartition(row["topic"], row["partition"]), 0):
            begun[row["topic"]] = max(begun.get(row["topic"], -1), row["first"])
    return {topic: max(begun.get(topic, -1), begun.get(counts, -1)) for topic in topics}


def _arrived(asked: Questions, topics: list[str], window_us: int) -> dict[tuple[str, int], int]:
    if not topics:
        return {}
    of_topics = f"topic in ({', '.join(map(text, topics))})"
    rows = f"select topic, received as at from events where {of_topics}"
    if ARRIVALS in asked.columns:
        rows = (
            f"{rows} and {ARRIVALS} is null union all "
            f"select topic, unnest({ARRIVALS}) as at from events where {of_topics} and {ARRIVALS} is not null"
        )
    counts = asked.rows(
        f"select topic, {step_of(micros('at'), window_us)} as start, count(*) as messages from ({rows}) group by 1, 2"
    )
    return {(row["topic"], row["start"]): row["messages"] for row in counts}
