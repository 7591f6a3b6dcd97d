"""Judges events by the rules of ``[[quality]]``: conditions in SQL that lines should meet, each by itself.

DuckDB computes them, in the process of the task, over the columns of a batch.  A rule is one expression as in the
queries of ``appliance sql``.  It is computed with DuckDB's TRY, which refuses what does not depend on one line alone
(aggregates, windows, other tables, chance), and makes null of what cannot be computed for a line, as the number of a
text that is none.  As with SQL's own CHECK, a line fails where the rule is false, and passes where it is null.  A rule
that says the same of every line is refused: it is a mistake, as ``status = 200 or 301``.

==========  =====================================================================================================
on_failure  what becomes of a line that fails
==========  =====================================================================================================
warn        it stays as it is, and its column ``unexpected`` has the rule
reject      it is rejected, as one that no parser takes: with the reason, its bytes, and a dead letter
drop        its content goes; its row stays without any, with the reason, since each line that was read has a row
==========  =====================================================================================================

The first rule that drops or rejects a line decides.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ... import extras
from ...errors import BadValue
from .settings import DROPPED, Quality

UNEXPECTED: Final = "unexpected"
"""The column of the rules that a line has failed, and stays; the text of column errors separates several."""
BETWEEN: Final = "; "
DROPS: Final = f"{DROPPED}: "
MEMORY: Final = "256MB"
ROWS: Final = "rows"
"""What the lines are called in DuckDB."""
NO_ROWS: Final = '"EMPTY_RESULT"'
"""What DuckDB plans where a condition is true of no row, whatever rows there are."""


class Judgement(NamedTuple):
    """``unexpected``: a text or null for each line; ``reasons``: why it is dropped or rejected, or null."""

    unexpected: pa.Array
    reasons: pa.Array


class Rules:
    """The rules of one pipeline; ``columns``: those of the events, by name.

    Raises:
        BadValue: a rule cannot be computed over these columns; or DuckDB is not installed.
    """

    def __init__(self, rules: Sequence[Quality], columns: Mapping[str, pa.DataType]) -> None:
        self._rules = rules
        self._schema = pa.schema(list(columns.items()))
        if not rules:
            return
        if extras.missing("duckdb"):
            raise BadValue(f"[[quality]] needs duckdb, here and where tasks run: {extras.install('sql')}")
        self._duckdb = connected()
        for rule in rules:
            self._check(rule)
        tried = ", ".join(f"coalesce(not {_tried(rule)}, false) as f{number}" for number, rule in enumerate(rules))
        self._query = f"select {tried} from {ROWS}"

    def _check(self, rule: Quality) -> None:
        import duckdb

        self._duckdb.register(ROWS, self._schema.empty_table())
        try:
            kinds = self._duckdb.sql(f"select {_tried(rule)} from {ROWS}").types
        except duckdb.Error as error:
            said = str(error).split("\n")[0]
            raise BadValue(f"quality: expect = {rule.expect!r}: {said}") from None
        if len(kinds) > 1:
            raise BadValue(f"quality: expect = {rule.expect!r}: it is more than one expression")
        if str(kinds[0]) != "BOOLEAN":
            raise BadValue(f"quality: expect = {rule.expect!r}: it is {kinds[0]}: give a condition, true or false")
        if fault := self._fault_of_names(rule) or self._fault_of_constant(rule):
            raise BadValue(f"quality: expect = {rule.expect!r}: {fault}")

    def _fault_of_names(self, rule: Quality) -> str:
        """Which name is none of a column, or that there is none, or "".

        An unknown column does not get so far, except for those with the name of something that DuckDB has, as ``user``.
        """
        import duckdb

        select = f"select (\n{rule.expect}\n)"
        ((tree,),) = self._duckdb.execute("select json_serialize_sql(?)", [select]).fetchall()
        named = {name.lower() for name in _column_names(json.loads(tree))}
        columns = {ROWS, *map(str.lower, self._schema.names)}
        if not named & columns:
            return "it names no column: they are written without quotes, or in double ones"
        for name in sorted(named - columns):
            with suppress(duckdb.Error):  # a part of a column, or what a function calls the parts of a list
                self._duckdb.execute("select " + '"' + name.replace('"', '""') + '"')
                return f"there is no column {name!r}"
        return ""

    def _fault_of_constant(self, rule: Quality) -> str:
        """Why a condition says the same of every line, or "".

        DuckDB's optimizer tells, which knows that ``status = 200 or 301``, or ``status = null``, is never false: it
        plans to read nothing.
        """
        for negation, verb in (("not", "fail"), ("", "meet")):
            explained = f"explain (format json) select 1 from {ROWS} where {negation} (\n{rule.expect}\n)"
            ((_, plan),) = self._duckdb.execute(explained).fetchall()
            if NO_ROWS in plan:
                return f"no line can {verb} it"
        return ""

    def judge(self, columns: Mapping[str, pa.Array], good: pa.Array) -> Judgement:
        """Judge lines; ``good``: which of them a parser took, the others fail nothing."""
        count = len(good)
        unexpected, reasons = (np.full(count, None, object) for _ in range(2))
        self._duckdb.register(ROWS, pa.table([columns[name] for name in self._schema.names], schema=self._schema))
        failed = self._duckdb.sql(self._query).to_arrow_table()
        staying = np.asarray(good.to_numpy(zero_copy_only=False))
        for rule, column in zip(self._rules, failed.columns, strict=True):
            fails = staying & column.to_numpy()
            if rule.on_failure == "warn":
                for line in np.flatnonzero(fails):
                    before = unexpected[line]
                    unexpected[line] = rule.expect if before is None else f"{before}{BETWEEN}{rule.expect}"
            else:
                reasons[fails] = reason_of(rule)
                staying = staying & ~fails
        unexpected[~staying] = None
        return Judgement(pa.array(unexpected, pa.string()), pa.array(reasons, pa.string()))


def reason_of(rule: Quality) -> str:
    """What the column ``rejected`` says of a line that a rule has dropped or rejected."""
    return f"{DROPS}{rule.expect}" if rule.on_failure == "drop" else f"not as expected: {rule.expect}"


def is_dropped(rejected: Any) -> Any:
    """Which lines were dropped, by their column ``rejected``; false where that is null."""
    return pc.fill_null(pc.starts_with(rejected, DROPS), fill_value=False)


def _column_names(node: Any) -> Iterator[str]:
    """The names of columns, and of parts of them, in an expression, as DuckDB's parser has it."""
    match node:
        case {"class": "COLUMN_REF", "column_names": list(names)}:
            yield from names
        case {"class": "STAR"}:
            yield ROWS
        case dict():
            for member in node.values():
                yield from _column_names(member)
        case list():
            for member in node:
                yield from _column_names(member)


def _tried(rule: Quality) -> str:
    return f"try((\n{rule.expect}\n))"  # the line break ends a comment


def connected() -> Any:
    """DuckDB with nothing but the rows that it is given."""
    import duckdb

    inner = duckdb.connect(
        config={
            "threads": "1",  # the others have tasks of their own; and the order of rows stays
            "memory_limit": MEMORY,
            "enable_external_access": "false",
            "python_enable_replacements": "false",
        }
    )
    inner.execute("set TimeZone = 'UTC'")  # the hour of a time is that of column hour, whatever zone the host has
    inner.execute("set lock_configuration = true")
    return inner
