"""Judges events by the rules of ``[[quality]]``: conditions in SQL that lines should meet, each by itself.

DuckDB computes them, in the process of the task, over the columns of a batch.  A rule is one expression as in the
queries of ``appliance sql``.  It is computed with DuckDB's TRY, which refuses what does not depend on one line alone
(aggregates, windows, other tables, chance), and makes null of what cannot be computed for a line, as the number of a
text that is none.  As with SQL's own CHECK, a line fails where the rule is false, and passes where it is null.

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

from collections.abc import Mapping, Sequence
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
        self._query = f"select {tried} from rows"

    def _check(self, rule: Quality) -> None:
        import duckdb

        self._duckdb.register("rows", self._schema.empty_table())
        try:
            kinds = self._duckdb.sql(f"select {_tried(rule)} from rows").types
        except duckdb.Error as error:
            said = str(error).split("\n")[0]
            raise BadValue(f"quality: expect = {rule.expect!r}: {said}") from None
        if len(kinds) > 1:
            raise BadValue(f"quality: expect = {rule.expect!r}: it is more than one expression")
        if str(kinds[0]) != "BOOLEAN":
            raise BadValue(f"quality: expect = {rule.expect!r}: it is {kinds[0]}: give a condition, true or false")

    def judge(self, columns: Mapping[str, pa.Array], good: pa.Array) -> Judgement:
        """Judge lines; ``good``: which of them a parser took, the others fail nothing."""
        count = len(good)
        unexpected, reasons = (np.full(count, None, object) for _ in range(2))
        self._duckdb.register("rows", pa.table([columns[name] for name in self._schema.names], schema=self._schema))
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
