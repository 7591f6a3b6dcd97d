"""Asks questions about the latest version of the table ``events``, or of a view's, in SQL, here and without Spark.

DataFusion, which comes with delta-rs, answers them: it reads the columns that a question names, and no others.  What a
question groups by fits into memory; the rows do not have to.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from ...errors import BadValue
from .output_files import LOG, OutputFiles
from .settings import Settings
from .table_files import EVENTS

SECOND_US = 1_000_000


class Questions:
    """Questions about one version of a table of a pipeline."""

    def __init__(self, table: Any, name: str = EVENTS) -> None:
        """``table``: as delta-rs has it; ``name``: that of it in questions."""
        from deltalake import QueryBuilder

        self._name = name
        self._query = QueryBuilder().register(name, table)
        self.columns: dict[str, pa.DataType] = {
            field.name: field.type for field in pa.schema(table.schema().to_arrow())
        }
        self.version = int(table.version())

    def ask(self, sql: str) -> pa.Table:
        """The answer.

        Raises:
            BadValue: the question is wrong, or a file of the table is gone.
        """
        with self._errors():
            return pa.table(self._query.execute(sql).read_all())

    def batches(self, sql: str) -> Iterator[pa.RecordBatch]:
        """As :meth:`ask`, piece by piece: for an answer of any length."""
        with self._errors():
            answer = iter(self._query.execute(sql))
        while True:
            with self._errors():
                batch = next(answer, None)
            if batch is None:
                return
            yield pa.record_batch(batch)

    def rows(self, sql: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.ask(sql).to_pylist()
        return rows

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # delta-rs has no kind of error for what DataFusion refuses
            raise BadValue(f"{self._name} cannot be asked: {' '.join(str(error).split())}") from None

    @property
    def lines(self) -> str:
        """The expression for how many lines a row has, in SQL."""
        return "coalesce(lines, 1)" if "lines" in self.columns else "1"


def questions(settings: Settings) -> Questions | None:
    """None before the table is there."""
    files = OutputFiles(settings.output)
    if not files.exists(f"{EVENTS}/{LOG}"):
        return None
    return Questions(files.delta_table(EVENTS))


def text(value: str) -> str:
    """A text as SQL has it."""
    return "'" + value.replace("'", "''") + "'"


def micros(column: str) -> str:
    """A column of times as whole microseconds since 1970, in SQL."""
    return f"arrow_cast({column}, 'Int64')"


def step_of(at: str, step_us: int) -> str:
    """The beginning of the step of time that a number of microseconds is in, in SQL; / does not round down."""
    return f"({at} - ({at} % {step_us} + {step_us}) % {step_us})"
