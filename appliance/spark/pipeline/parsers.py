"""Parses lines into columns: one parser for each kind of log, each for a whole Arrow array at once.

Every event has the common columns ``time host service level message``; a parser may add typed ones of its own.  A line
that a parser does not take is not matched, and may get a reason.  No line raises an error::

    syslog              RFC 3164 as sent (<PRI>), and as files hold it, also with an ISO time: facility, pid
    syslog5424          RFC 5424: facility, pid, msgid, structured
    access              nginx and Apache, common and combined: client, user, method, path, status, bytes, ...
    dpkg, alternatives  what Debian's tools write to /var/log: action, state, package, version, ...
    json, logfmt        fields as configured; regex: named groups
    plain               any line, as its message

Regular expressions run in RE2 (linear time, so no line can stall a task), in C++.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import BadValue
from .settings import FieldType, Parser, Source
from .times import MICROS, Style, Times

COMMON: Final = {
    "time": MICROS,
    "host": pa.string(),
    "service": pa.string(),
    "level": pa.string(),
    "message": pa.string(),
}
TYPES: Final[dict[FieldType, pa.DataType]] = {
    "string": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
}
PYTHON: Final[dict[FieldType, type]] = {"string": str, "int": int, "float": float, "bool": bool}
SEVERITIES: Final = pa.array(["emerg", "alert", "crit", "error", "warning", "notice", "info", "debug"])
FACILITIES: Final = pa.array(
    [
        *("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp"),
        *("ntp", "audit", "alert", "clock"),
        *(f"local{number}" for number in range(8)),
    ]
)
LEVELS: Final = {
    "err": "error",
    "warn": "warning",
    "information": "info",
    "critical": "crit",
    "fatal": "crit",
    "emergency": "emerg",
    "panic": "emerg",
}
ERRORS: Final = pa.array(["emerg", "alert", "crit", "error"])
"""Levels that count as errors."""


class Parsed(NamedTuple):
    """The result for the given lines.  ``columns`` are null where a line is not matched.

    ``reasons``: why lines are not matched, if the parser knows more than that.
    """

    matched: pa.Array
    columns: dict[str, pa.Array]
    reasons: pa.Array | None = None


class LineParser(Protocol):
    name: str
    fields: Mapping[str, pa.DataType]
    """The columns that it adds to the common ones."""

    def parse(self, lines: pa.Array, received: datetime) -> Parsed: ...


Convert = Callable[[pa.Array], pa.Array]


def integers(texts: pa.Array) -> pa.Array:
    """Converts to whole numbers; null for other texts."""
    fits = pc.match_substring_regex(texts, r"^[+-]?\d{1,18}$")
    return pc.if_else(fits, texts, None).cast(pa.int64())


def floats(texts: pa.Array) -> pa.Array:
    fits = pc.match_substring_regex(texts, r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$")
    return pc.if_else(fits, texts, None).cast(pa.float64())


def booleans(texts: pa.Array) -> pa.Array:
    lower = pc.utf8_lower(texts)
    yes, no = (pc.is_in(lower, pa.array(words)) for words in (["true", "yes", "1"], ["false", "no", "0"]))
    return pc.if_else(yes, True, pc.if_else(no, False, pa.scalar(None, pa.bool_())))


CONVERT: Final[dict[FieldType, Convert]] = {
    "string": lambda texts: texts,
    "int": integers,
    "float": floats,
    "bool": booleans,
}


def no_dash(texts: pa.Array) -> pa.Array:
    """Null for "-" and for the empty text."""
    return pc.if_else(pc.is_in(texts, pa.array(["-", ""])), None, texts)


def levels(texts: pa.Array) -> pa.Array:
    """Converts levels to one spelling each."""
    encoded = pc.utf8_lower(texts).dictionary_encode()
    spelled = [LEVELS.get(text, text) for text in encoded.dictionary.to_pylist()]
    return pa.array(spelled, pa.string()).take(encoded.indices)


@dataclass
class Regex:
    """Converts named groups to columns.  ``after`` completes columns that do not follow from one group each."""

    name: str
    pattern: str
    times: Times
    convert: Mapping[str, Convert] = field(default_factory=dict)
    fields: Mapping[str, pa.DataType] = field(default_factory=dict)
    after: Callable[[dict[str, pa.Array]], dict[str, pa.Array]] = lambda columns: columns
    strict: frozenset[str] = frozenset()
    """Groups whose text must be convertible, else the line is not matched."""

    def parse(self, lines: pa.Array, received: datetime) -> Parsed:
        found = pc.extract_regex(lines, self.pattern)
        matched = pc.is_valid(found)
        columns: dict[str, pa.Array] = {}
        bad: dict[str, pa.Array] = {}
        if found.null_count == len(found):
            return Parsed(matched, columns)
        # Children of a struct do not know which of its rows are null.
        texts = {each.name: pc.struct_field(found, [index]) for index, each in enumerate(found.type)}
        for name, group in texts.items():
            if name == "time":
                columns[name] = self.times.parse(no_dash(group), received)
                bad[name] = pc.and_(pc.is_null(columns[name]), pc.and_(pc.is_valid(no_dash(group)), matched))
                continue
            columns[name] = self.convert.get(name, no_dash)(group)
            if name in self.strict:
                given = pc.is_valid(no_dash(group))
                bad[name] = pc.and_(pc.is_null(columns[name]), pc.and_(given, matched))
        if not any(pc.any(wrong).as_py() for wrong in bad.values()):
            return Parsed(matched, self.after(columns))
        reasons = pa.nulls(len(lines), pa.string())
        for name, wrong in bad.items():
            why = "is not a time" if name == "time" else f"is not of its type ({self.fields[name]})"
            reasons = pc.if_else(wrong, f"{self.name}: {name} {why}", reasons)
            matched = pc.and_not(matched, wrong)
        blanked = {name: pc.if_else(matched, column, None) for name, column in self.after(columns).items()}
        return Parsed(matched, blanked, reasons)


PID: Final = {"pid": pa.int64()}
PRI: Final = {"facility": pa.string()} | PID
_SYSLOG = (
    r"^(?:<(?P<pri>\d{1,3})>)?"
    r"(?P<time>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,6})?|\d{4}-\d\d-\d\dT\S+) "
    r"(?P<host>[^\s:\[\]]+) (?P<service>[^\s\[:]+)(?:\[(?P<pid>\d+)\])?: ?(?P<message>(?s:.*))$"
)
_SYSLOG5424 = (
    r"^<(?P<pri>\d{1,3})>1 (?P<time>\S+) (?P<host>\S+) (?P<service>\S+) (?P<pid>\S+) "
    r'(?P<msgid>\S+) (?P<structured>-|(?:\[[^ \]="]+(?: [^ \]="]+="(?:[^"\\\]]|\\.)*")*\])+)'
    r"(?: \x{FEFF}?(?P<message>(?s:.*)))?$"
)
_ACCESS = (
    r'^(?P<client>\S+) \S+ (?P<user>\S+) \[(?P<time>[^\]]+)\] "(?P<request>(?:[^"\\]|\\.)*)" '
    r"(?P<status>\d{3}) (?P<bytes>\d+|-)"
    r'(?: "(?P<referer>(?:[^"\\]|\\.)*)" "(?P<agent>(?:[^"\\]|\\.)*)"(?P<extra> .*)?)?$'
)
_REQUEST = r"^(?P<method>[A-Z]+) (?P<path>\S+)(?: (?P<protocol>HTTP/[\d.]+))?$"
_ACCESS_FIELDS = {
    **{name: pa.string() for name in ("client", "user", "method", "path", "protocol")},
    "status": pa.int64(),
    "bytes": pa.int64(),
    **{name: pa.string() for name in ("referer", "agent", "extra")},
}
_DPKG = (
    r"^(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?P<message>(?:startup \S+ \S+)|"
    r"(?:(?P<status>status) (?P<state>\S+)|"
    r"(?P<action>install|upgrade|configure|trigproc|triggers|remove|purge|disappear))"
    r" (?P<package>\S+) (?P<version>\S+)(?: (?P<new>\S+))?|conffile \S+ \S+)$"
)
_DPKG_FIELDS = {name: pa.string() for name in ("action", "state", "package", "version", "version_new")}
_ALTERNATIVES = r"^(?P<service>update-alternatives) (?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d): (?P<message>.*)$"


def _priority(columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """Replaces a syslog priority by facility and level; null for a priority above 191, the largest."""
    number = columns.pop("pri")
    number = pc.if_else(pc.less_equal(number, 191), number, None)
    severity, facility = pc.bit_wise_and(number, 7), pc.shift_right(number, 3)
    return columns | {"level": SEVERITIES.take(severity), "facility": FACILITIES.take(facility)}


def _access(columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """Sets the level from the status and the message to the request line.

    Requests repeat, so each different one is parsed once.
    """
    requests = columns["request"].dictionary_encode()
    words = pc.extract_regex(requests.dictionary, _REQUEST)
    whole = pc.is_valid(words)
    for index, name in enumerate(("method", "path", "protocol")):
        columns[name] = pc.if_else(whole, no_dash(pc.struct_field(words, [index])), None).take(requests.indices)
    status = columns["status"]
    level = pc.if_else(
        pc.greater_equal(status, 500), "error", pc.if_else(pc.greater_equal(status, 400), "warning", "info")
    )
    return columns | {"level": level, "message": columns.pop("request")}


def _dpkg(columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
    action = pc.coalesce(columns["action"], columns.pop("status"))
    service = pc.if_else(pc.is_valid(columns["time"]), "dpkg", pa.scalar(None, pa.string()))
    return columns | {"action": action, "service": service, "version_new": columns.pop("new")}


@dataclass
class Json:
    """Parses JSON objects with typed fields; other fields are ignored.  A number in quotes is a number."""

    name: str
    settings: Parser
    times: Times

    def __post_init__(self) -> None:
        own: dict[str, FieldType] = dict(self.settings.columns)
        self.fields: Mapping[str, pa.DataType] = {name: TYPES[kind] for name, kind in own.items()}
        self._from = _sources(self.settings)
        wanted: dict[str, Any] = {}
        for column, source in self._from.items():
            wanted[source] = str | int | float | None if column == "time" else str | None
        wanted |= {name: PYTHON[kind] | None for name, kind in own.items()}
        self._names = list(wanted)
        attributes = [f"f{number}" for number in range(len(wanted))]
        members = [(name, kind, None) for name, kind in zip(attributes, wanted.values(), strict=True)]
        renamed = dict(zip(attributes, wanted, strict=True))
        shape = msgspec.defstruct("Line", members, rename=renamed)
        self._decode = msgspec.json.Decoder(shape, strict=False).decode

    def parse(self, lines: pa.Array, received: datetime) -> Parsed:
        rows: list[Any] = []
        reasons: list[str | None] = []
        decode = self._decode
        for line in lines.to_pylist():
            try:
                rows.append(decode(line))
                reasons.append(None)
            except (msgspec.DecodeError, UnicodeEncodeError, TypeError) as error:
                rows.append(None)
                reasons.append(f"{self.name}: {error}")
        values = {
            name: [None if row is None else getattr(row, f"f{number}") for row in rows]
            for number, name in enumerate(self._names)
        }
        types = {name: TYPES[kind] for name, kind in self.settings.columns.items()}
        return _fielded(self, values, types, reasons, received)


def _sources(settings: Parser) -> dict[str, str]:
    """Common column → field that it is taken from."""
    return {name: getattr(settings, name) for name in COMMON}


def _fielded(
    parser: Json | Logfmt,
    values: dict[str, list[Any]],
    types: Mapping[str, pa.DataType],
    reasons: list[str | None],
    received: datetime,
) -> Parsed:
    """Builds columns from lists of fields.  A line with an invalid time gets a reason."""
    columns = {name: pa.array(values[name], kind) for name, kind in types.items()}
    for name, source in _sources(parser.settings).items():
        texts = pa.array([None if each is None else str(each) for each in values[source]], pa.string())
        columns[name] = (
            parser.times.parse(texts, received) if name == "time" else levels(texts) if name == "level" else texts
        )
        if name == "time":
            for index in pc.indices_nonzero(pc.and_(pc.is_null(columns[name]), pc.is_valid(texts))).to_pylist():
                reasons[index] = f"{parser.name}: {source} is not a time"
    if reasons.count(None) == len(reasons):
        return Parsed(pa.array([True] * len(reasons), pa.bool_()), columns)
    why = pa.array(reasons, pa.string())
    matched = pc.is_null(why)
    return Parsed(matched, {name: pc.if_else(matched, each, None) for name, each in columns.items()}, why)


_PAIRS = re.compile(r'([^\s="]+)=("[^"\\]*(?:\\.[^"\\]*)*"|[^\s"]*)').findall
_ESCAPED = re.compile(r"\\(.)")


@dataclass
class Logfmt:
    """Parses ``key=value key="value with blanks"``."""

    name: str
    settings: Parser
    times: Times

    def __post_init__(self) -> None:
        own = self.settings.columns
        self.fields: Mapping[str, pa.DataType] = {name: TYPES[kind] for name, kind in own.items()}

    def parse(self, lines: pa.Array, received: datetime) -> Parsed:
        rows: list[dict[str, str]] = [dict(_PAIRS(line or "")) for line in lines.to_pylist()]
        reasons = [None if row else f"{self.name}: no key=value" for row in rows]
        names = [*_sources(self.settings).values(), *self.settings.columns]
        values: dict[str, list[Any]] = {name: [_unquoted(row.get(name)) for row in rows] for name in names}
        types = {}
        for name, kind in self.settings.columns.items():
            texts = pa.array(values[name], pa.string())
            converted = CONVERT[kind](texts)
            values[name], types[name] = converted.to_pylist(), converted.type
            for index in pc.indices_nonzero(pc.and_(pc.is_null(converted), pc.is_valid(texts))).to_pylist():
                reasons[index] = f"{self.name}: {name} is not of its type ({converted.type})"
        return _fielded(self, values, types, reasons, received)


def _unquoted(text: str | None) -> str | None:
    if text and text[0] == '"':
        return _ESCAPED.sub(r"\1", text[1:-1])
    return text


@dataclass
class Plain:
    """Takes every line."""

    name: str = "plain"
    fields: Mapping[str, pa.DataType] = field(default_factory=dict)

    def parse(self, lines: pa.Array, received: datetime) -> Parsed:
        return Parsed(pc.is_valid(lines), {"message": lines})


def build(name: str, source: Source, own: Mapping[str, Parser]) -> LineParser:
    """The parser of that name, for lines of ``source``.

    Raises:
        BadValue: an invalid pattern or an unknown time zone.
    """

    def times(style: Style) -> Times:
        try:
            return Times(style, source.zone)
        except (KeyError, ValueError, OSError) as error:
            raise BadValue(f"zone = {source.zone!r}: no such time zone: {error}") from None

    if name in own:
        return _own(name, own[name], times("any"))
    pid: dict[str, Convert] = {"pid": integers}
    pri: dict[str, Convert] = pid | {"pri": integers}
    match name:
        case "syslog":
            return Regex(name, _SYSLOG, times("rfc3164"), pri, PRI, _priority)
        case "syslog5424":
            named = {"msgid": pa.string(), "structured": pa.string()}
            return Regex(name, _SYSLOG5424, times("any"), pri, PRI | named, _priority)
        case "access":
            numbers: dict[str, Convert] = {"status": integers, "bytes": integers}
            return Regex(name, _ACCESS, times("clf"), numbers, _ACCESS_FIELDS, _access)
        case "dpkg":
            return Regex(name, _DPKG, times("any"), {}, _DPKG_FIELDS, _dpkg)
        case "alternatives":
            return Regex(name, _ALTERNATIVES, times("any"))
        case "plain":
            return Plain()
    assert name in ("json", "logfmt"), "settings have been checked"
    return _own(name, Parser(kind="json" if name == "json" else "logfmt"), times("any"))


def _own(name: str, settings: Parser, times: Times) -> LineParser:
    if clash := set(settings.columns) & set(COMMON):
        raise BadValue(
            f"parser.{name}: {', '.join(sorted(clash))}: has a column already; say which field it is taken from"
        )
    if settings.kind == "json":
        return Json(name, settings, times)
    if settings.kind == "logfmt":
        return Logfmt(name, settings, times)
    return _own_regex(name, settings, times)


def _own_regex(name: str, settings: Parser, times: Times) -> Regex:
    try:
        groups = {each.name for each in pc.extract_regex(pa.array([""]), settings.pattern).type}
    except pa.ArrowInvalid as error:
        raise BadValue(f"parser.{name}: pattern = {settings.pattern!r}: {error}") from None
    renamed = {source: column for column, source in _sources(settings).items() if source in groups}
    columns: dict[str, FieldType] = {group: settings.columns.get(group, "string") for group in groups - set(renamed)}
    for column in settings.columns:
        if column not in groups:
            raise BadValue(f"parser.{name}: no group of the pattern is named {column}")
    pattern = settings.pattern
    for group, column in renamed.items():
        pattern = pattern.replace(f"(?P<{group}>", f"(?P<{column}>").replace(f"(?<{group}>", f"(?P<{column}>")
    convert = {group: CONVERT[kind] for group, kind in columns.items()}
    if "level" in renamed.values():
        convert["level"] = levels
    return Regex(
        name,
        pattern,
        times,
        convert,
        {group: TYPES[kind] for group, kind in columns.items()},
        strict=frozenset(group for group, kind in columns.items() if kind != "string"),
    )
