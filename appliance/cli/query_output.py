"""Prints the rows of a query, or writes them to a file, batch by batch: as a table, JSON, CSV or Parquet."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal

import typer

from ..owners import refuse_others_directory
from ..sql.plain_rows import different, plain_rows
from . import output

if TYPE_CHECKING:
    import pyarrow as pa

    from ..sql.session import Result

Form = Literal["table", "json", "csv", "parquet"]
SUFFIXES: Final[dict[str, Form]] = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}
DRAWN_ROWS_MAX: Final = 1000
"""Most rows of a table on a terminal, which needs the widths of all of them before it draws the first."""


def form_of(named: Form | None, file: Path | None, *, as_json: bool) -> Form:
    """The form of the results: as named, else as the file's name says.

    Raises:
        BadParameter: options that contradict each other.
        OthersDirectory: root would write where another user may exchange names.
    """
    if as_json and named not in (None, "json"):
        raise typer.BadParameter(f"--json and --format {named}: give one of them")
    by_name = None if file is None else SUFFIXES.get(file.suffix)
    form = named or ("json" if as_json else by_name) or "table"
    if file is None and form == "parquet":
        raise typer.BadParameter("--format parquet: give --output FILE")
    if file is not None and form == "table":
        raise typer.BadParameter(f"--output {file}: give --format json, csv or parquet, or a name that ends so")
    if file is not None:
        refuse_others_directory(file.absolute().parent)
    return form


def show(result: Result, form: Form) -> None:
    """Print all rows."""
    if form == "table":
        _show_table(result)
        return
    for text in _texts(result, form):
        output.say_exactly(text)


def _show_table(result: Result) -> None:
    names = result.schema.names
    rows = (row for batch in result.batches for row in plain_rows(batch))
    if not sys.stdout.isatty():
        output.print_fields(names)
        for row in rows:
            output.print_fields([output.field(value) for value in row])
        return
    drawn = list(islice(rows, DRAWN_ROWS_MAX))
    columns = different(names)
    output.print_rows([dict(zip(columns, row, strict=True)) for row in drawn], columns)
    if next(rows, None) is not None:
        output.remark(f"the first {DRAWN_ROWS_MAX:,} rows; --format json or csv prints all, limit fewer")


def save(result: Result, form: Form, file: Path) -> int:
    """Write all rows into the file, which appears, or is replaced, when it is whole.  Returns their number.

    Raises:
        OSError: it cannot be written.
    """
    count = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal count
        for batch in result.batches:
            count += batch.num_rows
            yield batch

    with _replacing(file) as sink:
        if form == "parquet":
            import pyarrow.parquet as pq

            with pq.ParquetWriter(sink, result.schema) as writer:
                for batch in counted():
                    writer.write_batch(batch)
        else:
            for text in _texts(result._replace(batches=counted()), form):
                sink.write(text.encode(errors="surrogatepass"))
    return count


@contextmanager
def _replacing(file: Path) -> Iterator[BinaryIO]:
    number, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.absolute().parent)
    try:
        with os.fdopen(number, "wb") as sink:
            yield sink
            sink.flush()
            os.fsync(sink.fileno())
        Path(name).replace(file)
    finally:
        Path(name).unlink(missing_ok=True)


def _texts(result: Result, form: Form) -> Iterator[str]:
    """The rows as lines: a batch at a time."""
    if form == "json":
        names = different(result.schema.names)
        for batch in result.batches:
            rows = (dict(zip(names, row, strict=True)) for row in plain_rows(batch))
            yield "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
        return
    yield _csv([result.schema.names])
    for batch in result.batches:
        yield _csv([[_cell(value) for value in row] for row in plain_rows(batch)])


def _csv(rows: list[list[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value
