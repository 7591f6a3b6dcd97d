"""Counts what became of the lines of ``events``, file by file, and remembers it.

A file of the table never changes: what it has is counted once, whatever happens to the table.  The counts of a version
are those of its files, so asking again costs what has changed since.  They are in a file of the state directory, which
may be deleted.  Files that the table does not have any more have no place in it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ...durable_files import replace_file
from ...errors import BadValue
from .audit_counts import PARSER
from .columns import BYTE, VARYING
from .compaction import DeltaEvents, EventFile
from .events import COLUMN_ERRORS, REJECTED
from .multiline import LINES
from .output_files import OutputFiles
from .quality import BETWEEN, DROPS, UNEXPECTED
from .settings import Settings
from .table_files import EVENTS

REMEMBERED: Final = "counts.json"
PLAIN_REASON: Final = f"regexp_replace({REJECTED}, '{VARYING}', '')"
"""The reason of a line without what differs between lines, in SQL."""
REASONS_MAX: Final = 100
"""Reasons of rejection that are counted each, the most frequent ones of each file, and of all: whoever writes lines
chooses the names of unknown fields, which are in reasons."""
SUMMED_MAX: Final = 100 * REASONS_MAX
"""Reasons that are kept while those of all files are added up."""
OTHERS: Final = "other reasons"
COUNTED: Final = ("topic", "parser", REJECTED, COLUMN_ERRORS, UNEXPECTED, LINES)


class LineCounts(msgspec.Struct):
    """Numbers of lines.  ``parsed``: by topic and parser; the others by text."""

    parsed: dict[str, dict[str, int]] = {}
    rejected: dict[str, int] = {}
    column_errors: dict[str, int] = {}
    unexpected: dict[str, int] = {}

    def parsed_by(self, audit_topic: str) -> dict[str, int]:
        """Those that were parsed, by parser, without the counts of producers, which are no lines of anybody."""
        lines_by_parser: Counter[str] = Counter()
        for topic, parsers in self.parsed.items():
            for parser, lines in parsers.items():
                if (topic, parser) != (audit_topic, PARSER):
                    lines_by_parser[parser] += lines
        return ordered(lines_by_parser)


def ordered(counts: Mapping[str, int]) -> dict[str, int]:
    """The largest first."""
    return dict(sorted(counts.items(), key=lambda count: (-count[1], count[0])))


def line_counts(settings: Settings) -> LineCounts:
    """Those of the latest version of the table; none before the first one.

    Raises:
        BadValue: a file of the table is gone.
    """
    place = settings.state_dir / REMEMBERED
    earlier, files = _load(place), OutputFiles(settings.output)
    counts_by_file: dict[str, LineCounts] = {}
    for file in DeltaEvents(settings.output).event_files():
        counts = earlier.get(file.path)
        counts_by_file[file.path] = _of_file(files, file) if counts is None else counts
    if counts_by_file.keys() != earlier.keys():
        with suppress(OSError):  # whoever may not write there counts again
            place.parent.mkdir(parents=True, exist_ok=True)
            replace_file(place, msgspec.json.encode(counts_by_file), mode=None)
    return _added_up(counts_by_file.values())


def _load(place: Path) -> dict[str, LineCounts]:
    try:
        return msgspec.json.decode(place.read_bytes(), type=dict[str, LineCounts])
    except (OSError, msgspec.MsgspecError):
        return {}


def _of_file(files: OutputFiles, file: EventFile) -> LineCounts:
    try:
        opened = files.open_table(f"{EVENTS}/{file.path}")
        rows = opened.read([name for name in COUNTED if name in opened.schema.names])
    except FileNotFoundError:
        raise BadValue(f"{files.uri(EVENTS)} has no file {file.path} any more: ask again, or restore it") from None
    partition: dict[str, str | None] = json.loads(file.partition)
    for name in COUNTED:
        if name not in rows.column_names:
            value = pa.scalar(1, pa.int32()) if name == LINES else pa.scalar(partition.get(name), pa.string())
            rows = rows.append_column(name, pa.repeat(value, len(rows)))
    rows = rows.set_column(rows.schema.get_field_index(LINES), LINES, pc.fill_null(rows.column(LINES), 1))
    plain = pc.replace_substring_regex(rows.column(REJECTED), BYTE, "")
    rows = rows.set_column(rows.schema.get_field_index(REJECTED), REJECTED, plain)
    rejected = pc.is_valid(plain)
    parsed: dict[str, dict[str, int]] = {}
    for row in _grouped(rows.filter(pc.invert(rejected)), "topic", "parser"):
        parsed.setdefault(row["topic"], {})[row["parser"]] = row["lines_sum"]
    return LineCounts(
        parsed,
        _bounded({row[REJECTED]: row["lines_sum"] for row in _grouped(rows.filter(rejected), REJECTED)}),
        *(_by_text(rows.filter(pc.is_valid(rows.column(name))), name) for name in (COLUMN_ERRORS, UNEXPECTED)),
    )


def _grouped(rows: pa.Table, *keys: str) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = rows.group_by(keys).aggregate([(LINES, "sum"), ([], "count_all")]).to_pylist()
    return groups


def _by_text(rows: pa.Table, column: str) -> dict[str, int]:
    """The number of rows by each of the texts that a column has between semicolons."""
    rows_by_text: Counter[str] = Counter()
    for row in _grouped(rows, column):
        for text in row[column].split(BETWEEN):
            rows_by_text[text] += row["count_all"]
    return dict(rows_by_text)


def _added_up(counts: Iterable[LineCounts]) -> LineCounts:
    total = LineCounts({}, {}, {}, {})
    for file_counts in counts:
        for topic, parsers in file_counts.parsed.items():
            _add(total.parsed.setdefault(topic, {}), parsers)
        for name in ("rejected", "column_errors", "unexpected"):
            _add(getattr(total, name), getattr(file_counts, name))
        if len(total.rejected) > SUMMED_MAX:
            total.rejected = _bounded(total.rejected)
    total.rejected = _bounded(total.rejected)
    return LineCounts(total.parsed, *map(ordered, (total.rejected, total.column_errors, total.unexpected)))


def _bounded(lines: Mapping[str, int]) -> dict[str, int]:
    """Numbers of lines by reason, with all but the most frequent reasons as one.

    What rules have dropped has as many reasons as there are rules, and stays apart.
    """
    named = [reason for reason in ordered(lines) if reason != OTHERS and not reason.startswith(DROPS)]
    kept = {reason: count for reason, count in lines.items() if reason not in {*named[REASONS_MAX:]}}
    if named[REASONS_MAX:]:
        kept[OTHERS] = kept.get(OTHERS, 0) + sum(lines[reason] for reason in named[REASONS_MAX:])
    return kept


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for key, count in more.items():
        total[key] = total.get(key, 0) + count
