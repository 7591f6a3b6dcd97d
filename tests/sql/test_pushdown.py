"""appliance.sql.pushdown: what a filter leaves of a log has every row for which it holds, and little else."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.sql import pushdown

SCHEMA = pa.schema([*pushdown.PLACE, ("value", pa.string())])
offset_, partition_, timestamp_, value_ = (ds.field(name) for name in ("offset", "partition", "timestamp", "value"))
END = 40


def at(ms: int) -> pa.Scalar:
    return pa.scalar(ms * 1000, SCHEMA.field("timestamp").type)


def in_(field: pc.Expression, values: list[int], kind: pa.DataType) -> pc.Expression:
    """As DuckDB writes ``in (...)``."""
    members = pc.is_in(field, pa.array(values, kind))
    return pc.if_else(field.is_valid(), members, pa.scalar(None, pa.bool_()))


COMPARISONS = [
    lambda field, value: field == value,
    lambda field, value: field != value,
    lambda field, value: field < value,
    lambda field, value: field <= value,
    lambda field, value: field > value,
    lambda field, value: field >= value,
]
offsets = st.integers(-2, END + 2)
leaves = st.one_of(
    st.builds(lambda compare, value: compare(offset_, value), st.sampled_from(COMPARISONS), offsets),
    st.builds(
        lambda compare, value: compare(partition_, pa.scalar(value, pa.int32())),
        st.sampled_from(COMPARISONS),
        st.integers(0, 3),
    ),
    st.builds(lambda compare, ms: compare(timestamp_, at(ms)), st.sampled_from(COMPARISONS), st.integers(1, 60)),
    st.builds(lambda values: in_(offset_, values, pa.int64()), st.lists(offsets, max_size=3)),
    st.builds(lambda values: in_(partition_, values, pa.int32()), st.lists(st.integers(0, 3), max_size=3)),
    st.sampled_from([value_ == "x", value_.is_null(), timestamp_.is_null(), timestamp_.is_valid(), offset_.is_valid()]),
)
filters = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        inner.map(lambda a: ~a),
    ),
    max_leaves=5,
)
rows = st.lists(
    st.tuples(
        st.integers(0, 3), st.integers(0, END - 1), st.none() | st.integers(0, 60), st.sampled_from(["x", "y", None])
    ),
    max_size=30,
)


@given(filters, rows)
def test_no_row_is_left_out_for_which_a_filter_holds(
    wanted: pc.Expression, rows: list[tuple[int, int, int | None, str]]
) -> None:
    table = pa.table(
        [
            pa.array([row[0] for row in rows], pa.int32()),
            pa.array([row[1] for row in rows], pa.int64()),
            pa.array([None if row[2] is None else row[2] * 1000 for row in rows], SCHEMA.field("timestamp").type),
            pa.array([row[3] for row in rows], pa.string()),
        ],
        schema=SCHEMA,
    )
    since_ms = pushdown.since_ms(wanted, SCHEMA)
    bounds = [pushdown.offsets(wanted, SCHEMA, partition, 0, END) for partition in range(4)]
    for row in table.filter(wanted).to_pylist():
        first, end = bounds[row["partition"]]
        assert first <= row["offset"] < end
        assert since_ms is None or row["timestamp"].timestamp() * 1000 >= since_ms


@pytest.mark.parametrize(
    "wanted, found",
    [
        (offset_ >= 7, (7, END)),
        ((offset_ > 7) & (offset_ <= 9), (8, 10)),
        ((offset_ == 3) & (value_ == "x"), (3, 4)),
        ((offset_ == 3) | (offset_ == 30), (3, 31)),
        (in_(offset_, [5, 6], pa.int64()), (5, 7)),
        ((partition_ == pa.scalar(1, pa.int32())) & (offset_ < 9), (0, 0)),
        (in_(partition_, [1, 2], pa.int32()), (0, 0)),
        (offset_ >= END, (0, 0)),
        (value_ == "x", (0, END)),
    ],
)
def test_only_the_offsets_are_left_that_a_filter_names(wanted: pc.Expression, found: tuple[int, int]) -> None:
    assert pushdown.offsets(wanted, SCHEMA, 0, 0, END) == found


@pytest.mark.parametrize(
    "wanted, found",
    [
        (timestamp_ >= at(1_795_219_200_000), 1_795_219_200_000),
        (timestamp_ == at(5), 5),
        ((timestamp_ > at(5)) & (timestamp_ < at(9)) & (value_ == "x"), 5),
        (timestamp_ < at(9), None),
        (value_ == "x", None),
        ((timestamp_ > at(5)) | timestamp_.is_null(), None),  # those without a time lie anywhere
    ],
)
def test_only_the_time_is_left_that_a_filter_names(wanted: pc.Expression, found: int | None) -> None:
    assert pushdown.since_ms(wanted, SCHEMA) == found


def test_the_bounds_of_large_logs_are_found() -> None:
    end = 1 << 62
    assert pushdown.offsets(offset_ == end - 5, SCHEMA, 0, 3, end) == (end - 5, end - 4)


def test_the_columns_are_found_that_a_filter_compares() -> None:
    assert pushdown.columns((value_ == "x") | (offset_ > 3), SCHEMA) == {"value", "offset"}
    assert pushdown.columns(in_(partition_, [1], pa.int32()), SCHEMA) == {"partition"}
