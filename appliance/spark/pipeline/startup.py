"""Compares table and topics at the start of a run, and makes the table ready for it.

:func:`examine` changes nothing: ``appliance pipeline check`` shows what it finds.  :func:`begin` refuses what it
cannot resolve, adds columns, and returns what source and sink of the query need.  :func:`accept` records what a person
has accepted: lost offsets, topics that were created again, and wider types::

    finding     effect
    ==========  =========================================================
    ok          as before
    changes     the run does it: new columns, topics
    accept      refused until ``appliance pipeline accept``
    refused     refused until somebody changes the configuration or files
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec
import pyarrow as pa

from ... import units
from ...client.admin import Admin
from ...errors import BadValue, UnknownPartition
from ...log_access.access import LogAccess
from ...names import TopicPartition
from .batch_record import BatchRecord, decode_schema, encode_schema
from .delta_store import DeltaStore
from .events import Transform
from .iceberg_table import fault_of_iceberg
from .letters import Letters
from .output_files import OutputFiles
from .resume import Resumption, TopicLog, decide, lines_before
from .schema_changes import SchemaChange, compare
from .settings import Settings
from .state_directory import PidLock
from .table_files import EVENTS
from .tables import LOCK, claim, open_store, owner_of
from .topic_logs import read_logs
from .unknown_fields import adds_columns
from .view_alerts import fault_of
from .view_states import views_of
from .view_table import ViewTable
from .writable_places import refuse_unwritable

ACCEPT: Final = "appliance pipeline accept"
BACKFILL: Final = "appliance pipeline backfill"
ASK_MS: Final = 5_000
"""How long a person waits for an appliance that is away; a run waits for ``input.retry_ms``."""


class Finding(NamedTuple):
    """One result of the comparison."""

    subject: str
    effect: Literal["ok", "changes", "accept", "refused"]
    text: str


class Beginning(msgspec.Struct, frozen=True):
    """What source and sink of a query need.  ``committed``: the record behind which the first micro-batch comes.

    ``columns``: those of events; ``run``: the id of this run.  ``floors``: the offsets, by topic and partition, down to
    which it goes back from where the table begins; None: it goes on.
    """

    identity: str
    committed: BatchRecord
    columns: str
    run: str
    floors: dict[str, dict[int, int]] | None = None

    @property
    def schema(self) -> pa.Schema:
        return decode_schema(self.columns)

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()


def decode_beginning(text: str) -> Beginning:
    return msgspec.json.decode(text, type=Beginning)


class Examination(NamedTuple):
    """``schema``: the columns of events afterwards; ``widened``: whether its files are rewritten for them."""

    findings: tuple[Finding, ...]
    resumption: Resumption
    schema: pa.Schema
    widened: bool

    def with_effect(self, effect: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.effect == effect]


def output_lock(settings: Settings) -> PidLock:
    """Held by whoever writes the tables; with an object store, which has no locks: on the host of the state."""
    files = OutputFiles(settings.output)
    return PidLock((Path(files.uri()) if files.local else settings.state_dir) / LOCK)


def topic_logs(settings: Settings, retry_ms: int | None = None, only: list[str] | None = None) -> dict[str, TopicLog]:
    """The topics of the sources (or these) as the appliance has them.  A topic that does not exist is left out."""
    retry_ms = settings.input.retry_ms if retry_ms is None else retry_ms
    access = LogAccess(settings.pipeline.bootstrap, retry_ms, "pipeline")
    try:
        return read_logs(access, settings.topics if only is None else only)
    finally:
        access.close()


def examine(settings: Settings, store: DeltaStore, logs: Mapping[str, TopicLog]) -> Examination:
    """Compare everything; see the module's docstring.

    Raises:
        BadValue: the tables contradict each other.
    """
    record = store.recorded()
    configured = Transform(settings).schema
    stored = store.stored_schema
    change = compare(stored, configured) if stored is not None else SchemaChange(configured, (), (), (), ())
    there = {topic: logs.get(topic, TopicLog("", {})) for topic in settings.topics}
    resumption = decide(record, there, settings.input.starting == "latest")
    findings = [
        *_of_topics(settings, resumption, record, logs),
        *_of_columns(change, adds_columns(settings)),
        *_of_alerts(settings),
    ]
    if fault := fault_of_iceberg(settings):
        findings.append(Finding("iceberg", "refused", fault))
    if record is not None:
        findings += [*_of_partitioning(settings, store.partitioned_by), *_of_parsing(settings, record)]
    return Examination(tuple(findings), resumption, change.schema, bool(change.widened))


def _of_topics(
    settings: Settings, resumption: Resumption, record: BatchRecord | None, logs: Mapping[str, TopicLog]
) -> list[Finding]:
    findings = []
    for conflict in resumption.conflicts:
        subject = f"{conflict.topic}-{conflict.partition}"
        if settings.input.fail_on_data_loss:
            findings.append(Finding(subject, "accept", f"{conflict}; accepted, it continues at {conflict.resumed}"))
        else:
            findings.append(Finding(subject, "changes", f"{conflict}; it continues at {conflict.resumed}"))
    for topic in settings.topics:
        if topic not in logs and (record is None or topic not in record.read):
            findings.append(
                Finding(topic, "changes", "there is no such topic: it is created, if the appliance does that")
            )
        elif record is None or topic not in record.read:
            new = "" if record is None else "a new topic: "
            findings.append(
                Finding(topic, "changes", f"{new}it is read from {_beginning(resumption, logs[topic], topic)}")
            )
    return findings if record is None else [*findings, *_of_lines_before(resumption, logs)]


def _of_lines_before(resumption: Resumption, logs: Mapping[str, TopicLog]) -> list[Finding]:
    """What the topics have from before the table began."""
    before = lines_before(resumption.begun, logs)
    sizes = [(key.topic, end - first) for key, (first, end) in before.items()]
    findings = []
    for topic in dict(sizes):
        parts = [size for of, size in sizes if of == topic]
        where = f"in {len(parts)} partitions" if len(parts) > 1 else "in a partition"
        text = f"{units.size(sum(parts))} {where} are from before the table began: `{BACKFILL} CONFIG.toml` brings"
        findings.append(Finding(topic, "ok", f"{text} them in"))
    return findings


def _beginning(resumption: Resumption, log: TopicLog, topic: str) -> str:
    """Where a topic is read from at first, and how much there is."""
    unread_bytes = sum(
        end - resumption.begun.ends[TopicPartition(topic, number)] for number, (_, end) in log.bounds.items()
    )
    if not unread_bytes:
        return "its end on"
    return f"its start on: {units.size(unread_bytes)} in {len(log.bounds)} partitions"


def _of_columns(change: SchemaChange, adds: bool) -> list[Finding]:
    findings = [Finding(EVENTS, "changes", f"column {name!r} is added, null until now") for name in change.added]
    later = "has unknown fields of its name from now on" if adds else "is kept, null from now on"
    findings += [Finding(EVENTS, "ok", f"column {name!r} {later}") for name in change.dropped]
    findings += [
        Finding(EVENTS, "accept", f"{column_change}; accepted, the table is rewritten")
        for column_change in change.widened
    ]
    advice = "give it another name, or use another output.path"
    findings += [Finding(EVENTS, "refused", f"{column_change}: {advice}") for column_change in change.refused]
    return findings


def _of_partitioning(settings: Settings, was: tuple[str, ...]) -> list[Finding]:
    now = settings.output.partition_by
    if was == now:
        return []
    text = (
        f"the table is partitioned by {', '.join(was) or 'nothing'}, output.partition_by is {', '.join(now) or 'none'}"
    )
    return [Finding(EVENTS, "refused", f"{text}: put it back, or use another output.path")]


def _of_parsing(settings: Settings, record: BatchRecord) -> list[Finding]:
    if record.parsing in ("", parsing_of(settings)):
        return []
    text = "its parsers or rules have changed: lines that were read before stay as they are, until"
    text += " `appliance pipeline reparse CONFIG.toml`"
    return [Finding(EVENTS, "changes", text)]


def _of_alerts(settings: Settings) -> list[Finding]:
    """Alerts of views that there are not, or whose columns do not have the condition."""
    findings = []
    views = {view.name: view for view in views_of(settings)} if settings.alert else {}
    for alert in settings.alert:
        text = ""
        if alert.view not in views:
            text = f"there is no view {alert.view!r}: there are {', '.join(views) or 'none: views.path names them'}"
        else:
            table = ViewTable(settings.output, alert.view)
            if (basis := table.basis()) is not None and basis.meaning == views[alert.view].meaning:
                text = fault_of(table, alert)
        if text:
            findings.append(Finding(f"alert {alert.when}", "refused", text))
    return findings


def parsing_of(settings: Settings) -> str:
    """A digest of all settings that decide what becomes of a line."""
    parsing = msgspec.json.encode((settings.source, settings.parser, settings.lookup, settings.quality))
    return hashlib.blake2b(parsing, digest_size=8).hexdigest()


def begin(settings: Settings) -> Beginning:
    """Make everything ready for a run.

    Raises:
        BadValue: something is refused, or must be accepted first.
        UnknownPartition: a topic does not exist, and the appliance does not create it.
    """
    identity = claim(settings)
    store = open_store(settings, identity)
    record = store.recorded()
    lost = record.read if record is not None and settings.input.fail_on_data_loss else ()
    ensure_topics(settings, lost)
    return begin_from(settings, identity, topic_logs(settings))


def ensure_topics(settings: Settings, read: Collection[str]) -> None:
    """Create missing topics, if the appliance creates topics automatically.  ``read``: those never to be created.

    A topic that was read and is gone has lost its messages: that must be accepted first.
    """
    topics = [*settings.topics, settings.dead_letters.topic]
    with Admin(settings.pipeline.bootstrap, client_name="pipeline") as admin:
        there = {topic["name"] for topic in admin.topics()}
        for name in dict.fromkeys(filter(None, topics)):
            if name not in there and name not in read:
                try:
                    admin.ensure_topic(name)
                except UnknownPartition as error:
                    raise UnknownPartition(f"there is no topic {name!r}: `appliance topics create {name}`") from error


def begin_from(settings: Settings, identity: str, logs: Mapping[str, TopicLog]) -> Beginning:
    """As :func:`begin`, with the topics that were found."""
    examination = examine(settings, open_store(settings, identity), logs)
    raise_refused(examination)
    store = open_store(settings, identity, examination.schema)
    store.extend(examination.schema)
    Letters(settings).begin()
    recorded, run = examination.resumption.begun, uuid.uuid4().hex
    begun = msgspec.structs.replace(recorded, parsing=parsing_of(settings))
    if examination.resumption.first:
        store.commit(begun, [])
    elif examination.resumption.conflicts or begun.parsing != recorded.parsing:
        store.amend(begun)
    return Beginning(identity, begun, encode_schema(examination.schema), run)


def raise_refused(examination: Examination) -> None:
    """Raises BadValue with the first finding that stops a run, and the number of the others."""
    refused, unaccepted = examination.with_effect("refused"), examination.with_effect("accept")
    stops = [*refused, *unaccepted]
    if not stops:
        return
    first = stops[0]
    more = f" (and {len(stops) - 1} more: `appliance pipeline check CONFIG` shows them)" if len(stops) > 1 else ""
    remedy = "" if refused else f": `{ACCEPT}` does so"
    raise BadValue(f"{first.subject}: {first.text}{remedy}{more}")


def check(settings: Settings) -> Examination:
    """What a run would find.

    Raises:
        BadValue: tables or settings contradict each other, or this user could not write what a run writes.
        BrokerAway: the appliance is.
    """
    refuse_unwritable(settings)
    owner_of(settings)
    return check_from(settings, topic_logs(settings, ASK_MS))


def check_from(settings: Settings, logs: Mapping[str, TopicLog]) -> Examination:
    return examine(settings, open_store(settings), logs)


def accept(settings: Settings) -> list[Finding]:
    """Record what must be accepted, and rewrite tables for wider types.  Returns what was accepted.

    Raises:
        AlreadyRunning: the pipeline is running.
        BadValue: something is refused that cannot be accepted.
        UnknownPartition: as :func:`begin`.
    """
    with output_lock(settings):
        identity = claim(settings)
        ensure_topics(settings, ())
        return accept_from(settings, identity, topic_logs(settings, ASK_MS))


def accept_from(settings: Settings, identity: str, logs: Mapping[str, TopicLog]) -> list[Finding]:
    examination = examine(settings, open_store(settings, identity), logs)
    if refused := examination.with_effect("refused"):
        raise BadValue(f"{refused[0].subject}: {refused[0].text}")
    accepted = examination.with_effect("accept")
    if accepted:
        store = open_store(settings, identity, examination.schema)
        begun = examination.resumption.begun
        record = msgspec.structs.replace(begun, parsing=parsing_of(settings))
        try:
            store.amend(record, examination.schema if examination.widened else None)
        except pa.ArrowInvalid as error:
            raise BadValue(f"the table cannot be rewritten, and is as it was: {error}") from None
        store.extend(examination.schema)
    return accepted
