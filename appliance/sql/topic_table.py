"""A topic as a table: the records of some ranges of its partitions, with columns that DuckDB asks for.

Columns, in their order: ``partition``, ``offset``, ``timestamp`` (null for a record without one), ``key``, ``value``,
``headers`` (name to value; of several with one name the last, as Kafka's ``lastHeader``), then those of
:class:`~.line_columns.LineColumns`.  Keys, values and headers are texts, in which bytes that are not UTF-8 appear as
U+FFFD; or bytes, when asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ..errors import ApplianceError, CorruptBatch
from ..log_access.access import LogAccess
from ..log_access.arrow import TIMESTAMP, Decoder
from ..log_access.ranges import Positions, Range
from . import pushdown
from .line_columns import LineColumns

FETCH_BYTES: Final = 2 * 1024 * 1024
_NO_TIME: Final = pa.scalar(-1000, TIMESTAMP)
"""What a record without a timestamp has: -1 ms."""
_MESSAGE: Final = ("key", "value", "headers")


class Reading:
    """One run of a query: how it reaches the appliance, and the error that ended it, which DuckDB tells as a text."""

    def __init__(self, bootstrap: str, retry_ms: int) -> None:
        self._arguments = bootstrap, retry_ms
        self.error: ApplianceError | None = None

    def access(self) -> LogAccess:
        """Connections of one scan; scans of one query run at the same time."""
        return LogAccess(*self._arguments, "sql")


class _Scan(NamedTuple):
    """What DuckDB asks of a scan.  Arrow's own would read ahead, also where a query needs one row."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.schema, self.batches)


class LogTable(ds.Dataset):  # type: ignore[misc]
    """Ranges of logs as a data set of Arrow, which DuckDB asks for a scan with columns and a filter.

    It relies on the filter: rows for which it does not hold are not returned.
    """

    def __init__(self, reading: Reading, ranges: Sequence[Range], columns: pa.Schema, time_column: str) -> None:
        self._reading = reading
        self._ranges = ranges
        self._columns = columns
        self._time_column = time_column

    @property
    def schema(self) -> pa.Schema:
        return self._columns

    def scanner(self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_: Any) -> _Scan:
        """What DuckDB calls: the rows for which ``filter`` holds, with these columns."""
        asked = self._columns if columns is None else pa.schema([self._columns.field(name) for name in columns])
        needed = {*asked.names, *(pushdown.columns(filter, self._columns) if filter is not None else ())}
        return _Scan(asked, self._noting(self._scanned(asked, needed, filter)))

    def _noting(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from rows
        except ApplianceError as error:
            self._reading.error = error
            raise

    def _scanned(self, asked: pa.Schema, needed: set[str], filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        reads = pa.schema([field for field in self._columns if field.name in needed])
        access = self._reading.access()
        try:
            records = self._records(access, self._narrowed(access, filter), "headers" in needed)
            for rows in self._rows(records, reads):
                matching = rows if filter is None else rows.filter(filter)
                if matching.num_rows:
                    yield matching.select(asked.names)
        finally:
            access.close()

    def _narrowed(self, access: LogAccess, filter: pc.Expression | None) -> Sequence[Range]:
        """The parts of the ranges in which the filter may hold."""
        if filter is None:
            return self._ranges
        narrowed = []
        for part in self._ranges:
            first, end = pushdown.offsets(filter, self._columns, part.partition, part.first, part.end)
            if first < end:
                narrowed.append(Range(part.topic, part.partition, first, end, part.log_end))
        since_ms = pushdown.since_ms(filter, self._columns, self._time_column)
        if since_ms is None or not narrowed:
            return narrowed
        begins: Positions = access.offsets({part.key: since_ms for part in narrowed})
        return [
            Range(part.topic, part.partition, max(part.first, begins[part.key]), part.end, part.log_end)
            for part in narrowed
            if 0 <= begins[part.key] < part.end
        ]

    def _records(self, access: LogAccess, ranges: Sequence[Range], headers: bool) -> Iterator[pa.RecordBatch]:
        for part in ranges:

            def tell(offset: int, error: CorruptBatch, part: Range = part) -> None:
                access.report_damage(part.topic, part.partition, offset)
                raise error

            decoder = Decoder(part.topic, part.partition, part.first, part.end, headers=headers, on_corrupt=tell)
            # Not from the files of this host: the listener asks for rights.
            for position, data in access.read(part, None, FETCH_BYTES, fail_on_data_loss=False, on_damage=tell):
                yield from decoder.decode(data, position)

    def _rows(self, records: Iterator[pa.RecordBatch], reads: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of these records, with the columns ``reads``."""
        raise NotImplementedError


class TopicTable(LogTable):
    """See the module's docstring.  ``ranges``: at most one of each partition."""

    def __init__(
        self, reading: Reading, ranges: Sequence[Range], lines: LineColumns | None = None, *, as_bytes: bool = False
    ) -> None:
        kind = pa.binary() if as_bytes else pa.string()
        own = [("key", kind), ("value", kind), ("headers", pa.map_(pa.string(), kind))]
        columns = pa.schema([*pushdown.PLACE, *own, *(lines.fields if lines else [])])
        super().__init__(reading, ranges, columns, "timestamp")
        self._lines = lines
        self._as_bytes = as_bytes

    def _rows(self, records: Iterator[pa.RecordBatch], reads: pa.Schema) -> Iterator[pa.RecordBatch]:
        parsed = not {*reads.names} <= {*pushdown.PLACE.names, *_MESSAGE}
        for batch in records:
            lines = self._lines.parse(batch) if self._lines is not None and parsed else {}
            yield pa.record_batch([self._column(field, batch, lines) for field in reads], schema=reads)

    def _column(self, field: pa.Field, batch: pa.RecordBatch, lines: Mapping[str, pa.Array]) -> pa.Array:
        if field.name in _MESSAGE:
            values = batch.column(field.name)
            if field.name == "headers":
                return _header_maps(values, field.type)
            return values if self._as_bytes else texts(values)
        if field.name == "timestamp":
            times = batch.column("timestamp")
            return pc.if_else(pc.equal(times, _NO_TIME), None, times)
        if field.name in pushdown.PLACE.names:
            return batch.column(field.name)
        return lines[field.name]


def texts(values: pa.Array) -> pa.Array:
    """Bytes as texts: see the module's docstring."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_text(value) for value in values.to_pylist()], pa.string())


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def _header_maps(headers: pa.Array, kind: pa.DataType) -> pa.Array:
    as_text: Callable[[bytes | None], Any] = _text if pa.types.is_string(kind.item_type) else lambda value: value
    maps = [
        None if of_record is None else {header["key"]: as_text(header["value"]) for header in of_record}
        for of_record in headers.to_pylist()
    ]
    return pa.array([None if texts_of is None else list(texts_of.items()) for texts_of in maps], kind)
