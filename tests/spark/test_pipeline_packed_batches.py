"""Batches of records as rows of Spark, and back."""

from __future__ import annotations

import pyarrow as pa

from appliance.spark.pipeline.packed_batches import COLUMNS, PACKED, packed, unpacked

from .test_pipeline_pipeline_sink import records_at


def test_packed_batches_are_unpacked_as_they_were() -> None:
    batches = [records_at("t", 1, [(number, b"%d" % number) for number in range(count)]) for count in (3, 1, 5000)]
    rows = list(packed(batch.append_column("more", pa.nulls(len(batch))) for batch in batches))
    assert [row.schema.names for row in rows] == [PACKED.fieldNames()] * 3
    assert [row.column("count").to_pylist() for row in rows] == [[3], [1], [5000]]
    together = pa.Table.from_batches(rows).combine_chunks().to_batches()
    for found in (list(unpacked(rows)), list(unpacked(together))):
        assert found == [batch.select(COLUMNS) for batch in batches]


def test_a_slice_is_packed_without_the_rest() -> None:
    batch = records_at("t", 1, [(number, b"x" * 100) for number in range(1000)])
    (row,) = packed([batch.slice(10, 5)])
    assert len(row.column("records")[0].as_py()) < 5000
    assert next(unpacked([row])) == batch.slice(10, 5).select(COLUMNS)
