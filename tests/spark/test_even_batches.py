"""Batches become even in rows; rows stay what and where they were."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from appliance.spark.even_batches import BYTES_MAX, ROWS_MAX, ROWS_MIN, even


@given(st.lists(st.sampled_from([0, 1, 5, ROWS_MIN - 1, ROWS_MIN, ROWS_MAX + 1, 3 * ROWS_MAX]), max_size=6))
def test_rows_stay_and_batches_are_even(sizes: list[int]) -> None:
    bounds = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
    given_batches = [
        pa.record_batch({"n": pa.array(range(first, first + size), pa.int64())})
        for first, size in zip(bounds, sizes, strict=False)
    ]
    found = list(even(given_batches))
    assert [row for batch in found for row in batch.column("n").to_pylist()] == list(range(sum(sizes)))
    assert all(batch.num_rows <= ROWS_MAX for batch in found)
    small = [batch for batch in found if batch.num_rows < ROWS_MIN]
    assert len(small) <= 1 + sum(size >= ROWS_MIN for size in sizes), "only before a large one, and at the end"


def test_small_batches_of_large_rows_are_not_put_together() -> None:
    batch = pa.record_batch({"v": pa.array([bytes(BYTES_MAX // 2 + 1)])})
    assert [each.num_rows for each in even([batch] * 3)] == [1, 1, 1]
