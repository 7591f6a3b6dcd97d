"""Reads the definitions of views: files of SQL, each with a comment at its head.

A view is a question to the table ``events`` whose answer is kept as a table.  Users read these files, change them and
add some of their own; ``example_views`` beside this module has some to begin with::

    -- Errors of each topic and hour, and their share.
    --
    -- window: 1h
    -- keys: topic
    -- cadence: 1m
    select start, topic, count(*) as lines, count_if(level in ('error', 'crit')) as errors
    from events
    where rejected is null
    group by start, topic

========  ===============================================================================================
window    Lines of one window decide its rows, and no other lines.  ``events`` has the column ``start``, the
          beginning of the window of each line (of multiples since 1970-01-01 UTC), and so has the answer.
keys      The columns that, with ``start``, tell rows apart.  May be left out: one row for each window.
cadence   How far a running pipeline lets the view fall behind, by default a minute: it is refreshed that often.
topic     Rows that a refresh has computed are also sent to this topic, as JSON; by default to none.
parts     The names of the two queries that ``with`` begins with, if lines may be divided among them.
========  ===============================================================================================

The file's name is that of the view.  The first paragraph of the comment says what it is.

A view with ``parts`` is kept without reading a line twice::

    -- window: 1h
    -- keys: host
    -- parts: counted, summed
    with counted as (select start, host, count(*) as n from events group by start, host),
    summed as (select start, host, sum(n) as n from counted group by start, host)
    select start, host, n from summed

Its first query is asked of the lines that have come, the second one of that answer and the earlier parts of the same
windows: its answer, which has the same columns, takes their place.  The rest is asked of the parts of a window.
Whoever says ``parts`` says that this is the same as asking at once: that the second query gives one answer, however
lines are divided and however often it was asked of its own answers.  Sums of counts do, and so do ``min``, ``max`` and
sketches that are merged; averages of averages do not.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from ...config_keys import DURATIONS_MS, parse_units
from ...errors import BadValue, UnknownKey

SUFFIX: Final = ".sql"
CADENCE_MS: Final = 60_000
WINDOW_MS_MAX: Final = 366 * 86_400_000
NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
COLUMN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TAKEN: Final = ("events", "live")
"""Names that `appliance sql` knows: see ``sql/pipeline_tables.py``."""
KEYS_OF_HEAD: Final = ("window", "keys", "cadence", "topic", "parts")
_ENTRY: Final = re.compile(r"([a-z]+)\s*:\s*(.*)")
_IGNORED: Final = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|--[^\n]*|/\*.*?\*/""", re.DOTALL)
"""What stands in a query and does not count: texts, quoted names, comments."""
_PARENTHESES: Final = re.compile(rf"{_IGNORED.pattern}|[()]", re.DOTALL)
"""Those of a query, and what may have some that do not count."""
_CHANGING: Final = re.compile(
    r"\b(?:(?:rand|randn|random|randstr|uniform|uuid|shuffle|monotonically_increasing_id|now|curdate"
    r"|unix_timestamp(?=\s*\(\s*\)))\s*\(|current_(?:date|time|timestamp)\b|localtimestamp\b)",
    re.IGNORECASE,
)
"""Functions whose value no line decides."""


class Parts(NamedTuple):
    """A query in three: ``each`` is asked of ``events``, and gives parts; ``merge`` of the table ``name`` of parts.

    ``rest`` is asked of the table ``merged``, which has the answer of ``merge``.
    """

    name: str
    each: str
    merged: str
    merge: str
    rest: str


@dataclass(frozen=True)
class View:
    """A definition; ``about``: what it is, in one paragraph; ``sql``: the whole query."""

    name: str
    about: str
    window_us: int
    keys: tuple[str, ...]
    cadence_ms: int
    sql: str
    topic: str = ""
    parts: Parts | None = None

    @property
    def meaning(self) -> str:
        """A digest of what its rows depend on."""
        names = [self.parts.name, self.parts.merged] if self.parts else []
        text = "\0".join([str(self.window_us), *self.keys, *names, self.sql])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def load_views(directory: Path) -> list[View]:
    """The views of a directory, in the order of their names.

    Raises:
        BadValue, UnknownKey: there is no such directory, or a file is wrong or cannot be read.
    """
    if not directory.is_dir():
        raise BadValue(
            f"views.path: there is no directory {directory}: `appliance pipeline example --views DIR` makes one"
        )
    views = [parse_view(path.stem, _text_of(path), str(path)) for path in sorted(directory.glob(f"*{SUFFIX}"))]
    lower: dict[str, str] = {}
    for view in views:
        if (other := lower.setdefault(view.name.lower(), view.name)) != view.name:
            raise BadValue(f"views {other} and {view.name} differ by case only: rename one of their files")
    return views


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadValue(f"{path}: byte {error.start} is not UTF-8: save the file in that encoding") from None
    except OSError as error:
        raise BadValue(f"{path}: it cannot be read: {error.strerror}") from None


def parse_view(name: str, text: str, where: str) -> View:
    """The view of a file's content; ``where`` is named in errors."""
    if not NAME.fullmatch(name):
        raise BadValue(f"{where}: {name!r} is no name of a view: letters, digits and _, with a letter first")
    if name.lower() in TAKEN:
        raise BadValue(f"{where}: {name!r} is a table of the pipeline itself: give the file another name")
    about, entries, sql = _split(text, where)
    if "window" not in entries:
        raise BadValue(f"{where}: its head says no window: add a line as `-- window: 1h`")
    window_ms = _duration("window", entries["window"], where)
    keys = tuple(key.strip() for key in entries.get("keys", "").split(",") if key.strip())
    for key in keys:
        if not COLUMN.fullmatch(key) or key == "start":
            raise BadValue(f"{where}: keys: {key!r}: name columns of the answer other than start, with commas between")
    if not sql:
        raise BadValue(f"{where}: there is no query below its head")
    if changing := _CHANGING.search(_IGNORED.sub(" ", sql)):
        name = changing[0].strip("( ")
        raise BadValue(
            f"{where}: {name!r} gives something else each time, and a row must be the same whenever it is computed: "
            "use times of lines, as time and received"
        )
    cadence = entries.get("cadence")
    cadence_ms = CADENCE_MS if cadence is None else _duration("cadence", cadence, where)
    parts = _divided(entries["parts"], sql, where) if "parts" in entries else None
    return View(name, about, window_ms * 1000, keys, cadence_ms, sql, entries.get("topic", ""), parts)


def _divided(entry: str, sql: str, where: str) -> Parts:
    """The query in three, behind each of the two queries with which it begins."""
    names = [name.strip() for name in entry.split(",")]
    fault = BadValue(
        f"{where}: parts: {entry!r}: name the two queries with which its query begins, as `parts: counted, summed` for "
        "`with counted as (select …), summed as (select … from counted)`"
    )
    if len(names) != 2 or any(not COLUMN.fullmatch(name) or name.lower() in TAKEN for name in names):
        raise fault
    rest, queries = sql, []
    for before, name in zip((r"with\s+", r",\s*"), names, strict=True):
        query = _first_query(before + name, rest)
        if query is None:
            raise fault
        queries.append(query[0])
        rest = query[1]
    rest = f"with {rest[1:].lstrip()}" if rest.startswith(",") else rest
    return Parts(names[0], queries[0], names[1], queries[1], rest)


def _first_query(before: str, text: str) -> tuple[str, str] | None:
    """The query in the parentheses with which a text begins, and what follows; None: it begins with something else."""
    begin = re.match(rf"{before}\s+as\s*\(", text, re.IGNORECASE)
    depth = 1
    for found in _PARENTHESES.finditer(text, begin.end()) if begin else ():
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if begin and depth == 0:
            return text[begin.end() : found.start()].strip(), text[found.end() :].lstrip()
    return None


def _split(text: str, where: str) -> tuple[str, dict[str, str], str]:
    """The first paragraph of the head, its entries, and the query."""
    lines = text.lstrip().splitlines()
    count = next((at for at, line in enumerate(lines) if not line.startswith("--")), len(lines))
    head = [line.removeprefix("--").strip() for line in lines[:count]]
    entries: dict[str, str] = {}
    about: list[str] = []
    ended = False
    for line in head:
        entry = _ENTRY.fullmatch(line)
        if entry is not None and entry[1] in entries:
            raise BadValue(f"{where}: its head says {entry[1]} twice")
        if entry is not None and entry[1] in KEYS_OF_HEAD:
            entries[entry[1]] = entry[2].strip()
        elif entry is not None and not about:
            raise UnknownKey(f"{where}: unknown key {entry[1]!r} in its head: known: {', '.join(KEYS_OF_HEAD)}")
        ended = ended or entry is not None or (bool(about) and not line)
        if not ended:
            about.append(line)
    return " ".join(filter(None, about)), entries, "\n".join(lines[count:]).strip().rstrip(";").rstrip()


def _duration(key: str, text: str, where: str) -> int:
    duration_ms = parse_units(text, DURATIONS_MS)
    if duration_ms is None or not 0 < duration_ms <= WINDOW_MS_MAX:
        raise BadValue(f"{where}: {key}: {text!r}: a duration up to 366 days, as 30s, 1m, 1h or 7d")
    return duration_ms
