"""Compares tables, plan and topics at the start of a run, and makes the tables ready for it.

:func:`examine` changes nothing: ``appliance pipeline check`` shows what it finds.  :func:`begin` refuses what it
cannot resolve, adds columns, and returns what source and sink of the query need.  :func:`accept` records what a person
has accepted: lost offsets, topics that were created again, and wider types::

    finding     effect
    ==========  =========================================================
    ok          as before
    changes     the run does it: new columns, tables, topics, a repetition
    accept      refused until ``appliance pipeline accept``
    refused     refused until somebody changes the configuration or files
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec
import pyarrow as pa

from ... import units
from ...client.admin import Admin
from ...errors import BadValue, UnknownPartition
from ...names import TopicPartition
from ...wire.requests import EARLIEST, LATEST
from ..access import Access
from .aggregates import build
from .batch_record import BatchRecord, TableDefinition, decode_schema, encode_schema, load_plan
from .earlier_letters import Earlier, LetterTopic, fits, look
from .events import Transform
from .output_files import OutputFiles
from .resume import Resumption, TopicLog, decide
from .schema_changes import SchemaChange, compare
from .settings import Settings
from .state_directory import PidLock
from .table_files import EVENTS
from .tables import LOCK, Store, claim, open_store, owner_of

ACCEPT: Final = "appliance pipeline accept"
PARSING: Final = "parsing"
"""Of what the rows of events depend on: a digest of all that decides what becomes of a line."""
NOT_MEANING: Final = ("name", "topic", "k", "keep")
"""Keys of an aggregate that may change: its rows do not depend on them."""


class Finding(NamedTuple):
    """One result of the comparison."""

    subject: str
    effect: Literal["ok", "changes", "accept", "refused"]
    text: str


class Beginning(msgspec.Struct, frozen=True):
    """What source and sink of a query need.  ``committed``: the record behind which the first micro-batch comes.

    ``columns``: those of events; ``run``: the id of this run; ``replay``: the plan to repeat first; ``letters``: the
    dead letters that are there already, None without a topic of dead letters.
    """

    identity: str
    committed: BatchRecord
    replay: BatchRecord | None
    columns: str
    run: str
    letters: Earlier | None = None

    @property
    def schema(self) -> pa.Schema:
        return decode_schema(self.columns)

    def run_of(self, batch: int) -> str:
        """The run that planned a micro-batch."""
        return self.replay.run if self.replay is not None and batch == self.replay.batch else self.run

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()


def decode_beginning(text: str) -> Beginning:
    return msgspec.json.decode(text, type=Beginning)


class Examination(NamedTuple):
    """``schema``: the columns of events afterwards; ``widened``: tables to rewrite, with their columns afterwards."""

    findings: tuple[Finding, ...]
    resumption: Resumption
    schema: pa.Schema
    widened: Mapping[str, pa.Schema]

    def with_effect(self, effect: str) -> list[Finding]:
        return [each for each in self.findings if each.effect == effect]


def output_lock(settings: Settings) -> PidLock:
    """Held by whoever writes the tables; with an object store, which has no locks: on the host of the state."""
    files = OutputFiles(settings.output)
    return PidLock((Path(files.uri()) if files.local else settings.state_dir) / LOCK)


def topic_logs(settings: Settings, retry_ms: int | None = None, only: list[str] | None = None) -> dict[str, TopicLog]:
    """The topics of the sources (or these) as the appliance has them.  A topic that does not exist is left out."""
    access = Access(settings.pipeline.bootstrap, settings.input.retry_ms if retry_ms is None else retry_ms)
    try:
        return read_logs(access, settings.topics if only is None else only)
    finally:
        access.close()


def read_logs(access: Access, topics: list[str]) -> dict[str, TopicLog]:
    """As :func:`topic_logs`, with given connections."""
    found = access.topics(topics)
    keys = [TopicPartition(name, partition) for name, topic in found.items() for partition in range(len(topic.leaders))]
    starts = access.offsets(dict.fromkeys(keys, EARLIEST))
    ends = access.offsets(dict.fromkeys(keys, LATEST))
    bounds: dict[str, dict[int, tuple[int, int]]] = {name: {} for name in found}
    for key in keys:
        # They were not read at the same time: retention may have come between.
        bounds[key.topic][key.partition] = starts[key], max(starts[key], ends[key])
    return {name: TopicLog(topic.id, bounds[name]) for name, topic in found.items()}


def examine(settings: Settings, store: Store, logs: Mapping[str, TopicLog]) -> Examination:
    """Compare everything; see the module's docstring.

    Raises:
        BadValue: the tables contradict each other.
    """
    store.check()
    record = store.recorded()
    wanted = Transform(settings).schema
    stored = store.schema(EVENTS)
    change = compare(stored, wanted) if stored is not None else SchemaChange(wanted, (), (), (), ())
    there = {topic: logs.get(topic, TopicLog("", {})) for topic in settings.topics}
    resumption = decide(
        record, load_plan(OutputFiles(settings.output)), store.unfinished(), there, settings.input.starting == "latest"
    )
    findings = [*_of_topics(settings, resumption, record, logs), *_of_columns(EVENTS, change)]
    widened = {EVENTS: change.schema} if change.widened else {}
    if record is not None:
        findings += [*_of_partitioning(settings, record), *_of_parsing(settings, record)]
    for name, total in build(settings, change.schema).items():
        known = store.schema(name)
        if known is None:
            if record is not None and name not in record.tables:
                findings.append(Finding(name, "changes", "a new table: lines that were read before are not in it"))
            continue
        meant = record.tables[name].meaning if record is not None and name in record.tables else None
        of_total = compare(known, total.schema)
        findings += _of_total(settings, name, meant, of_total)
        if of_total.widened:
            widened[name] = of_total.schema
    return Examination(tuple(findings), resumption, change.schema, widened)


def _of_topics(
    settings: Settings, resumption: Resumption, record: BatchRecord | None, logs: Mapping[str, TopicLog]
) -> list[Finding]:
    findings = []
    for each in resumption.conflicts:
        subject = f"{each.topic}-{each.partition}"
        if each.resumed is None:
            findings.append(Finding(subject, "refused", str(each)))
        elif settings.input.fail_on_data_loss:
            findings.append(Finding(subject, "accept", f"{each}; accepted, it continues at {each.resumed}"))
        else:
            findings.append(Finding(subject, "changes", f"{each}; it continues at {each.resumed}"))
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
    if resumption.replay is not None:
        text = f"micro-batch {resumption.replay.batch}, which was interrupted, is repeated with the same offsets"
        findings.append(Finding("plan", "changes", text))
    return findings


def _beginning(resumption: Resumption, log: TopicLog, topic: str) -> str:
    """Where a topic is read from at first, and how much there is."""
    left = sum(end - resumption.begun.ends[TopicPartition(topic, number)] for number, (_, end) in log.bounds.items())
    if not left:
        return "its end on"
    return f"its start on: {units.size(left)} in {len(log.bounds)} partitions"


def _of_columns(table: str, change: SchemaChange) -> list[Finding]:
    findings = [Finding(table, "changes", f"column {name!r} is added, null until now") for name in change.added]
    findings += [Finding(table, "ok", f"column {name!r} is kept, null from now on") for name in change.dropped]
    findings += [Finding(table, "accept", f"{each}; accepted, the table is rewritten") for each in change.widened]
    advice = "give it another name, or use another output.path"
    findings += [Finding(table, "refused", f"{each}: {advice}") for each in change.refused]
    return findings


def _of_partitioning(settings: Settings, record: BatchRecord) -> list[Finding]:
    known = record.tables.get(EVENTS)
    was, now = known.meaning.get("partition_by") if known else None, list(settings.output.partition_by)
    if was is None or was == now:
        return []
    text = (
        f"the table is partitioned by {', '.join(was) or 'nothing'}, output.partition_by is {', '.join(now) or 'none'}"
    )
    return [Finding(EVENTS, "refused", f"{text}: put it back, or use another output.path")]


def _of_parsing(settings: Settings, record: BatchRecord) -> list[Finding]:
    known = record.tables.get(EVENTS)
    was = known.meaning.get(PARSING) if known else None
    if was is None or was == _meaning(settings, EVENTS)[PARSING]:
        return []
    text = "its parsers have changed: lines that were read before stay as they are, dead letters too"
    return [Finding(EVENTS, "changes", text)]


def _of_total(settings: Settings, name: str, meant: Mapping[str, Any] | None, change: SchemaChange) -> list[Finding]:
    begin_anew = f"give the aggregate another name, or delete {Path(settings.output.path) / name} to begin it anew"
    changed = [key for key, value in _meaning(settings, name).items() if meant is not None and meant.get(key) != value]
    if changed:
        return [
            Finding(name, "refused", f"{', '.join(changed)} changed, and totals cannot be computed again: {begin_anew}")
        ]
    if change.added or change.dropped or change.refused:
        different = ", ".join([*change.added, *change.dropped, *(each.name for each in change.refused)])
        return [Finding(name, "refused", f"the table has other columns ({different}): {begin_anew}")]
    return [Finding(name, "accept", f"{each}; accepted, the table is rewritten") for each in change.widened]


def _meaning(settings: Settings, table: str) -> dict[str, Any]:
    """The settings that the rows of a table depend on, as JSON has them."""
    if table == EVENTS:
        parsing = msgspec.json.encode((settings.source, settings.parser, settings.lookup))
        digest = hashlib.blake2b(parsing, digest_size=8).hexdigest()
        return {"partition_by": list(settings.output.partition_by), PARSING: digest}
    if table == "audit":
        return {"window_ms": settings.audit.window_ms}
    for aggregate in settings.aggregate:
        if aggregate.name == table:
            keys = msgspec.json.decode(msgspec.json.encode(aggregate))
            return {key: value for key, value in keys.items() if key not in NOT_MEANING}
    return {}


def definitions(
    settings: Settings, schema: pa.Schema, before: Mapping[str, TableDefinition]
) -> dict[str, TableDefinition]:
    """The tables of a pipeline whose events have this schema; ``before``: also those that it wrote once."""
    schemas = {EVENTS: schema} | {name: total.schema for name, total in build(settings, schema).items()}
    now = {name: TableDefinition(encode_schema(each), _meaning(settings, name)) for name, each in schemas.items()}
    return {**before, **now}


def begin(settings: Settings) -> Beginning:
    """Make everything ready for a run.

    Raises:
        BadValue: something is refused, or must be accepted first.
        UnknownPartition: a topic does not exist, and the appliance does not create it.
    """
    identity = claim(settings)
    store = open_store(settings, identity)
    store.prepare()
    record = store.recorded()
    lost = record.read if record is not None and settings.input.fail_on_data_loss else ()
    ensure_topics(settings, lost)
    logs, letters = topic_logs(settings), settings.dead_letters.topic
    if not letters:
        return begin_from(settings, identity, logs)
    return begin_from(settings, identity, logs, LetterTopic(settings), topic_logs(settings, only=[letters])[letters])


def ensure_topics(settings: Settings, read: Collection[str]) -> None:
    """Create missing topics, if the appliance creates topics automatically.  ``read``: those never to be created.

    A topic that was read and is gone has lost its messages: that must be accepted first.
    """
    wanted = [*settings.topics, settings.dead_letters.topic, *(each.topic for each in settings.aggregate)]
    with Admin(settings.pipeline.bootstrap, client_name="pipeline") as admin:
        there = {topic["name"] for topic in admin.topics()}
        for name in dict.fromkeys(filter(None, wanted)):
            if name not in there and name not in read:
                try:
                    admin.ensure_topic(name)
                except UnknownPartition as error:
                    raise UnknownPartition(f"there is no topic {name!r}: `appliance topics create {name}`") from error


def begin_from(
    settings: Settings,
    identity: str,
    logs: Mapping[str, TopicLog],
    letters: LetterTopic | None = None,
    letters_log: TopicLog | None = None,
) -> Beginning:
    """As :func:`begin`, with the topics that were found."""
    found = examine(settings, open_store(settings, identity), logs)
    raise_refused(found)
    store = open_store(settings, identity, found.schema)
    store.extend(EVENTS, found.schema)
    recorded = found.resumption.begun
    begun = msgspec.structs.replace(recorded, tables=definitions(settings, found.schema, recorded.tables))
    earlier, replay, run = None, found.resumption.replay, run_id(settings)
    if letters is not None and letters_log is not None:
        earlier = look(letters, begun, letters_log)
        begun = msgspec.structs.replace(begun, dead=earlier.ranges)
        if replay is not None and not (
            same_settings(replay.run, run) and fits(replay.dead, letters_log) and not earlier.ahead_of(replay.ends)
        ):
            # Other dead letters, or later ones, may have been sent since: its producers cannot go on.
            replay = msgspec.structs.replace(replay, run=run, dead=earlier.ranges)
    if found.resumption.first:
        store.commit(begun, [])
    elif found.resumption.conflicts or begun.tables != recorded.tables:
        store.amend(begun, {})
    return Beginning(identity, begun, replay, encode_schema(found.schema), run, earlier)


def run_id(settings: Settings) -> str:
    """The id of a new run.  It shows with which settings the run was made."""
    digest = hashlib.blake2b(settings.encode().encode(), digest_size=8).hexdigest()
    return f"{uuid.uuid4().hex}.{digest}"


def same_settings(run: str, other: str) -> bool:
    return run.rpartition(".")[2] == other.rpartition(".")[2]


def raise_refused(found: Examination) -> None:
    """Raises BadValue with the first finding that stops a run, and the number of the others."""
    refused, unaccepted = found.with_effect("refused"), found.with_effect("accept")
    stops = [*refused, *unaccepted]
    if not stops:
        return
    first = stops[0]
    more = f" (and {len(stops) - 1} more: `appliance pipeline check CONFIG` shows them)" if len(stops) > 1 else ""
    remedy = "" if refused else f": `{ACCEPT}` does so"
    raise BadValue(f"{first.subject}: {first.text}{remedy}{more}")


def check(settings: Settings) -> Examination:
    """What a run would find.  Raises BadValue if tables or settings contradict each other."""
    owner_of(settings)
    return check_from(settings, topic_logs(settings))


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
        open_store(settings, identity).prepare()
        ensure_topics(settings, ())
        return accept_from(settings, identity, topic_logs(settings))


def accept_from(settings: Settings, identity: str, logs: Mapping[str, TopicLog]) -> list[Finding]:
    found = examine(settings, open_store(settings, identity), logs)
    if refused := found.with_effect("refused"):
        raise BadValue(f"{refused[0].subject}: {refused[0].text}")
    accepted = found.with_effect("accept")
    if accepted:
        store = open_store(settings, identity, found.schema)
        begun = found.resumption.begun
        record = msgspec.structs.replace(begun, tables=definitions(settings, found.schema, begun.tables))
        try:
            store.amend(record, found.widened)
        except pa.ArrowInvalid as error:
            raise BadValue(f"the table cannot be rewritten, and is as it was: {error}") from None
        store.extend(EVENTS, found.schema)
    return accepted
