"""Reads and checks a pipeline's settings, one TOML file.  The structs below document its keys, defaults and bounds::

    [pipeline]            name, address of the appliance, directory of the state
    [input]               start, size and interval of micro-batches
    [[source]]            topics, and the parsers of their lines
    [parser.NAME]         a parser of one's own: json, logfmt or regex
    [[lookup]]            columns added from a table or a GeoIP database
    [[quality]]           conditions that lines should meet, and what becomes of others
    [output]              path of the tables, how they are divided and kept
    [iceberg]             catalogue in which the table is one of Iceberg, too
    [dead_letters]        topic of the lines that no parser takes
    [audit]               counts that producers publish
    [views]               directory of queries whose answers are kept as tables
    [[alert]]             a view and a condition of its rows: windows of which a webhook is told
    [spark]               settings passed to Spark unchanged

``example.toml`` beside this module shows most of them.  A key's unit is in its name: ``_bytes`` also takes "64MiB",
``_ms`` also "30s" or "7d".  Paths are relative to the file.

Errors: UnknownKey offers the nearest known name; BadValue names the key and the valid values.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from ...alert_settings import fault_of_webhook, needs_tls, split_webhook
from ...config_keys import DURATIONS_MS, GIB, MIB, SIZES, parse_units, read_toml
from ...errors import BadValue, UnknownKey
from ...value_faults import in_words

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]
Milliseconds = Annotated[int, Meta(ge=1, le=366 * 86_400_000)]
FieldType = Literal["string", "int", "float", "bool"]
OnError = Literal["null", "dead_letter"]
BUILT_IN: Final = (
    *("syslog", "syslog5424", "journald", "access", "nginx_error", "apache_error", "postgresql", "java"),
    *("dpkg", "alternatives", "cri", "docker", "iis", "cef", "json", "logfmt", "plain"),
)
DROPPED: Final = "dropped"
"""What the reason of a line that a rule has dropped begins with, where those of others have the name of a parser."""


class Pipeline(Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    bootstrap: str = "127.0.0.1:9091"
    state: str = ""
    """Directory of temporary files and the history that `status` shows; by default ``NAME.state`` beside the file."""
    group: str = ""
    """Group under which offsets are published for monitoring; by default ``pipeline-NAME``, "-" for none."""


class Input(Struct, frozen=True, forbid_unknown_fields=True):
    starting: Literal["earliest", "latest"] = "earliest"
    trigger_bytes: Annotated[int, Meta(ge=1, le=64 * GIB)] = 256 * MIB
    """Most bytes of a micro-batch."""
    trigger_ms: Milliseconds = 10_000
    fail_on_data_loss: bool = True
    corrupt_batch: Literal["fail", "skip"] = "fail"
    retry_ms: Milliseconds = 120_000
    """How long to wait for an appliance that is away."""


class Redaction(Struct, frozen=True, forbid_unknown_fields=True):
    pattern: str
    """RE2; every match in a line is replaced, before anything else happens to the line."""
    replacement: str = "***"
    r"""May refer to groups of the pattern, as \1."""


FIRST_LINES: Final = {
    "java": r"^\[?(?:\d{4}-\d\d-\d\d[T ]|\d\d/\d\d/\d\d |\d\d-[A-Z][a-z]{2}-\d{4} )\d\d:\d\d:\d\d",
    "postgresql": r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})? \S+ \[\d+\]",
}
"""How a line begins that begins an event: one with the time of its parser."""


class Multiline(Struct, frozen=True, forbid_unknown_fields=True):
    start: str = ""
    """RE2 that matches first lines only.  Lines of a partition up to the next one are joined."""
    format: Literal["", "java", "postgresql"] = ""
    """Whose first lines these are, instead of ``start``."""
    lines_max: Annotated[int, Meta(ge=2, le=100_000)] = 500
    bytes_max: Annotated[int, Meta(ge=1, le=64 * MIB)] = MIB
    """An event that would exceed one of these bounds ends, and its remaining lines make the next one."""

    @property
    def first_line(self) -> str:
        """The pattern of first lines."""
        return self.start or FIRST_LINES[self.format]


class Source(Struct, frozen=True, forbid_unknown_fields=True):
    topics: Annotated[tuple[str, ...], Meta(min_length=1)]
    parsers: Annotated[tuple[str, ...], Meta(min_length=1)]
    """In this order; the first that takes a line wins."""
    zone: str = "UTC"
    """Time zone of timestamps without one."""
    encoding: Literal["utf-8", "latin-1", "iso-8859-15", "windows-1252"] = "utf-8"
    """Of lines that are no UTF-8.  UTF-16 has line ends of its own: an input for files converts it (its `encoding`)."""
    host: str = ""
    """Host of lines without one."""
    service: str = ""
    redact: tuple[Redaction, ...] = ()
    """Also applies to dead letters."""
    multiline: Multiline | None = None


class Column(Struct, frozen=True, forbid_unknown_fields=True):
    """A column of a parser; only its type may stand for it."""

    type: FieldType = "string"
    field: str = ""
    """Where its value is: a path in JSON (http.request.id, items.0), a key of logfmt, a group; default: its name."""
    on_error: OnError | Literal[""] = ""
    """By default that of the parser."""


class Parser(Struct, frozen=True, forbid_unknown_fields=True):
    kind: Literal["json", "logfmt", "regex"]
    pattern: str = ""
    """regex only, RE2: named groups become columns."""
    columns: dict[str, FieldType | Column] = {}
    time: str = "time"
    """Field that has the time of the event, with a path as in columns; likewise the next four."""
    host: str = "host"
    service: str = "service"
    level: str = "level"
    message: str = "message"
    time_formats: tuple[str, ...] = ()
    """Tried in this order: names as in times.FORMATS, and formats of strptime; by default all names."""
    on_error: OnError = "null"
    """If a field does not fit its column: null, and counted; or the whole line is a dead letter."""
    time_on_error: OnError = "null"
    """Where the time is null, the event has that of its record."""
    levels: dict[str, str] = {}
    """Further spellings of levels, as "30" = "warning" for Python's numbers."""
    rest: str = ""
    """json and logfmt: a column that maps the names of all other fields to their texts."""
    unknown: Literal["rescue", "add", "fail"] = "rescue"
    """json and logfmt, of other fields: they go to ``rest``, if there is one; or each becomes a column, as text (see
    ``unknown_fields.py``); or the line is a dead letter."""


class Lookup(Struct, frozen=True, forbid_unknown_fields=True):
    file: str
    """A CSV or Parquet file, the directory of a Delta table, or a GeoIP database: see ``lookups.py``."""
    key: str
    """Column of the events and of the file; with a database of networks: that of the addresses."""
    columns: tuple[str, ...] | dict[str, str] = ()
    """Columns of the file to add; by default all but the key.  With other names: { name = "column of the file" }."""
    sql: str = ""
    """A query over the table ``file``, whose answer takes its place."""


class Quality(Struct, frozen=True, forbid_unknown_fields=True):
    expect: Annotated[str, Meta(min_length=1, max_length=150, pattern=r"^[^;]+$")]
    """A condition in SQL over the columns of a line: see ``quality.py``."""
    on_failure: Literal["warn", "drop", "reject"] = "warn"
    """Of lines for which it is false; where it is null, they pass."""


class Output(Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    partition_by: tuple[str, ...] = ("topic", "date")
    compression: Literal["zstd", "snappy", "lz4", "gzip", "none"] = "zstd"
    storage: dict[str, str] = {}
    """Options of an object store, when ``path`` is a URL: see ``output_files.py``."""
    raw: bool = False
    """Keep the whole line, as column ``line``."""
    sort_by: tuple[str, ...] = ()
    """Columns by which the rows of a file are sorted, so that readers can leave out parts of it."""
    target_bytes: Annotated[int, Meta(ge=MIB, le=16 * GIB)] = 128 * MIB
    """Size of the files that small ones are put together to."""
    compact_ms: Annotated[int, Meta(ge=0, le=366 * 86_400_000)] = 300_000
    """How often small files are put together; 0: never."""
    settle_ms: Milliseconds = 3_600_000
    """A partition to which nothing was added for so long gets rid of all of its small files."""
    keep_ms: Annotated[int, Meta(ge=0, le=3660 * 86_400_000)] = 7 * 86_400_000
    """How long files stay that were put together, for readers of older versions; whole hours, and at least 6, so that
    files of a micro-batch that is not committed yet stay."""
    buffer_bytes: Annotated[int, Meta(ge=MIB, le=4 * GIB)] = 64 * MIB
    """Events that a task keeps in memory before it writes files."""


class Iceberg(Struct, frozen=True, forbid_unknown_fields=True):
    catalogue: str = ""
    """A file of SQLite, or the URL of a REST catalogue, with a table of Iceberg of the files of events (see
    ``iceberg_table.py``); "" = none."""
    table: Annotated[str, Meta(pattern=r"^([A-Za-z0-9_-]+\.[A-Za-z0-9_.-]+)?$")] = ""
    """Its name there, with that of a namespace before it; by default ``NAME.events``."""

    @property
    def file(self) -> Path | None:
        """The file of SQLite; None where there is no catalogue, or one with a URL."""
        return Path(self.catalogue) if self.catalogue and not is_url(self.catalogue) else None


class DeadLetters(Struct, frozen=True, forbid_unknown_fields=True):
    topic: str = ""
    """"" counts them only."""


class Audit(Struct, frozen=True, forbid_unknown_fields=True):
    topic: str = ""
    """Where producers publish their counts; "" = no audit."""
    window_ms: Milliseconds = 60_000
    """The window of the producers."""
    grace_ms: Milliseconds = 120_000
    """A window is judged when its end is this old."""


class Views(Struct, frozen=True, forbid_unknown_fields=True):
    path: str = ""
    """Directory of the definitions, NAME.sql (see ``view_definitions.py``); "" = no views."""


class Alert(Struct, frozen=True, forbid_unknown_fields=True):
    view: str
    when: Annotated[str, Meta(min_length=1, max_length=500)]
    """A condition in SQL over the columns of the view, as ``error_rate > 0.05 and lines > 100``."""
    webhook: Annotated[str, Meta(min_length=1)]
    """URL that gets a POST of JSON (see ``view_alerts.py``), or the path of a file (0600) with it, for a secret one."""
    within_ms: Milliseconds = 3_600_000
    """Nothing is told of windows that have ended before."""


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    pipeline: Pipeline
    source: Annotated[tuple[Source, ...], Meta(min_length=1)]
    output: Output
    input: Input = Input()
    parser: dict[str, Parser] = {}
    lookup: tuple[Lookup, ...] = ()
    quality: tuple[Quality, ...] = ()
    iceberg: Iceberg = Iceberg()
    dead_letters: DeadLetters = DeadLetters()
    audit: Audit = Audit()
    views: Views = Views()
    alert: tuple[Alert, ...] = ()
    spark: dict[str, str] = {}

    @property
    def topics(self) -> list[str]:
        """All topics that are read."""
        named = [topic for source in self.source for topic in source.topics]
        return list(dict.fromkeys([*named, *filter(None, [self.audit.topic])]))

    @property
    def state_dir(self) -> Path:
        return Path(self.pipeline.state)

    @property
    def group(self) -> str:
        """ "" when offsets are not published."""
        return "" if self.pipeline.group == "-" else self.pipeline.group or f"pipeline-{self.pipeline.name}"

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()


def is_url(path: str) -> bool:
    """Whether a path is a URL: that of an output in an object store."""
    return "://" in path


def fault_of_catalogue(url: str) -> str:
    """Why the URL of a REST catalogue is refused, or ""."""
    try:
        parts = split_webhook(url)
    except ValueError as error:
        return str(error)
    return "leads to another host without TLS, with what logs in: take https://" if needs_tls(parts) else ""


def decode(text: str) -> Settings:
    return msgspec.json.decode(text, type=Settings)


def load(path: Path) -> Settings:
    """Read, complete and check a file.

    Raises:
        UnknownKey, BadValue: a setting is wrong, or the file is.
        OSError: the file cannot be read.
    """
    return parse(read_toml(path), path.parent.resolve(), str(path))


def parse(entries: Mapping[str, Any], base: Path, where: str = "pipeline") -> Settings:
    """As :func:`load`, from the content of a file; ``base``: the directory to which paths are relative."""
    cleaned = _clean(Settings, dict(entries), where, "")
    try:
        settings = msgspec.convert(cleaned, Settings)
    except msgspec.ValidationError as error:
        raise BadValue(f"{where}: {in_words(error)}") from None
    _check(settings, where)
    return _completed(settings, base)


def _clean(struct: type[Struct], entries: Mapping[str, Any], where: str, place: str) -> dict[str, Any]:
    """Converts texts with units to numbers, and raises UnknownKey for unknown keys."""
    hints = get_type_hints(struct)
    cleaned = {}
    for key, value in entries.items():
        if key not in hints:
            near = difflib.get_close_matches(key, hints, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(hints)}"
            raise UnknownKey(f"{where}: unknown key {place}{key}: {hint}")
        cleaned[key] = _value(hints[key], key, value, where, f"{place}{key}")
    return cleaned


def _value(hint: Any, key: str, value: Any, where: str, place: str) -> Any:
    inner = next(_structs(hint), None)
    origin = get_origin(get_args(hint)[0] if get_origin(hint) is Annotated else hint)
    if inner is not None and isinstance(value, list) and origin is tuple:
        return [
            _clean(inner, item, where, f"{place}[{index}].") if isinstance(item, dict) else item
            for index, item in enumerate(value)
        ]
    if inner is not None and isinstance(value, dict):
        if origin is dict:
            named = value.items()
            return {k: _clean(inner, v, where, f"{place}.{k}.") if isinstance(v, dict) else v for k, v in named}
        return _clean(inner, value, where, f"{place}.")
    if isinstance(value, str) and key.endswith(("_ms", "_bytes")):
        return _number(value, DURATIONS_MS if key.endswith("_ms") else SIZES, where, place)
    if key == "spark" and isinstance(value, dict):
        return dict(_flat(value))
    return value


def _structs(hint: Any) -> Iterator[type[Struct]]:
    if isinstance(hint, type) and get_origin(hint) is None and issubclass(hint, Struct):
        yield hint
    elif get_origin(hint) in (Annotated, tuple, dict, Union, types.UnionType):
        for argument in get_args(hint):
            yield from _structs(argument)


def _number(text: str, units: Mapping[str, int], where: str, place: str) -> int:
    number = parse_units(text, units)
    if number is None or number < 0:
        raise BadValue(f"{where}: {place} = {text!r}: a whole number, with one of {' '.join(filter(None, units))}")
    return number


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields dotted names and texts for Spark: TOML nests ``spark.sql.x = 1`` by its dots."""
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flat(value, f"{name}.")
        else:
            dotted = name if name.startswith("spark.") else f"spark.{name}"
            yield dotted, str(value).lower() if isinstance(value, bool) else str(value)


def _check(settings: Settings, where: str) -> None:
    """Check that the settings fit each other."""
    parsers = [*BUILT_IN, *settings.parser]
    for source in settings.source:
        for name in source.parsers:
            if name not in parsers:
                near = difflib.get_close_matches(name, parsers, 1, 0.5)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(parsers)}"
                raise UnknownKey(f"{where}: no parser {name!r}: {hint}")
        if (several := source.multiline) is not None and bool(several.start) == bool(several.format):
            raise BadValue(f"{where}: source.multiline: start or format says which lines begin events: one of both")
    topics = [topic for source in settings.source for topic in source.topics]
    for topic in topics:
        if topics.count(topic) > 1:
            raise BadValue(f"{where}: topic {topic!r} is in two sources: which parsers are its?")
        if topic in (settings.audit.topic, settings.dead_letters.topic):
            raise BadValue(f"{where}: topic {topic!r} is a source, and audit or dead_letters: it would feed itself")
    for name, parser in settings.parser.items():
        if name == DROPPED:
            raise BadValue(f"{where}: parser.{name}: rules of [[quality]] say that: choose another name")
        if (parser.kind == "regex") != bool(parser.pattern):
            raise BadValue(f"{where}: parser.{name}: a pattern is for kind regex, and needed there")
    if settings.output.storage and not is_url(settings.output.path):
        raise BadValue(f"{where}: output.storage is for a URL in output.path, as s3://bucket/tables")
    if settings.views.path and is_url(settings.output.path):
        raise BadValue(f"{where}: views.path needs an output.path on a file system")
    if is_url(settings.iceberg.catalogue) and (fault := fault_of_catalogue(settings.iceberg.catalogue)):
        raise BadValue(f"{where}: iceberg.catalogue {fault}")
    for alert in settings.alert:
        if is_url(alert.webhook) and (fault := fault_of_webhook(alert.webhook, allow_insecure=False)):
            raise BadValue(f"{where}: alert.webhook {fault}")


def _completed(settings: Settings, base: Path) -> Settings:
    replace = msgspec.structs.replace
    pipeline = settings.pipeline
    iceberg, table = settings.iceberg, settings.iceberg.table or f"{pipeline.name.replace('.', '_')}.events"
    state = base / (pipeline.state or f"{pipeline.name}.state")
    return replace(
        settings,
        pipeline=replace(pipeline, state=str(state)),
        output=settings.output
        if is_url(settings.output.path)
        else replace(settings.output, path=str(base / settings.output.path)),
        iceberg=replace(iceberg, table=table)
        if iceberg.file is None
        else replace(iceberg, table=table, catalogue=str(base / iceberg.file)),
        views=replace(settings.views, path=str(base / settings.views.path) if settings.views.path else ""),
        lookup=tuple(replace(lookup, file=str(base / lookup.file)) for lookup in settings.lookup),
        alert=tuple(
            alert if is_url(alert.webhook) else replace(alert, webhook=str(base / alert.webhook))
            for alert in settings.alert
        ),
    )
