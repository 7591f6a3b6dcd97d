"""Packs batches of records into rows of Spark, so that it moves bytes instead of records.

Between a pipeline's source and its sink nothing looks at the records.  But the JVM converts each row from Arrow, and
back to it, which took more CPU than parsing and storing the line.  So a row here is a whole batch, as an Arrow stream,
and the number of its records.

Spark puts up to ``maxRecordsPerBatch`` rows into one Arrow batch on its way to a Python worker: :data:`ROWS_SETTING`
must be 1, or memory would be needed for all of a task's records at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp")
"""Those of the records."""
PACKED: Final = StructType([StructField("records", BinaryType()), StructField("count", LongType())])
ROWS_SETTING: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"


def packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A batch with one row for each of these batches, of which it takes COLUMNS."""
    for batch in batches:
        wanted = batch.select(COLUMNS)
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, wanted.schema) as writer:
            writer.write_batch(wanted)
        whole = stream.getvalue()
        bounds = pa.py_buffer(np.array([0, whole.size], np.int32))
        records = pa.Array.from_buffers(pa.binary(), 1, [None, bounds, whole])
        yield pa.record_batch({"records": records, "count": pa.array([wanted.num_rows], pa.int64())})


def unpacked(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches that were packed, without a copy of their bytes."""
    for batch in rows:
        for value in batch.column("records"):
            yield from pa.ipc.open_stream(value.as_buffer())
