"""What becomes of a table's columns when the configuration changes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from appliance.spark.pipeline.schema_changes import compare, conform

KINDS = [pa.int32(), pa.int64(), pa.float64(), pa.string()]


def test_columns_are_added_at_the_end_and_never_dropped() -> None:
    stored = pa.schema([("a", pa.string()), ("b", pa.int64())])
    found = compare(stored, pa.schema([("c", pa.bool_()), ("a", pa.string())]))
    assert found.schema == pa.schema([("a", pa.string()), ("b", pa.int64()), ("c", pa.bool_())])
    assert (found.added, found.dropped, found.widened, found.refused) == (("c",), ("b",), (), ())
    rows = conform(pa.table({"c": [True], "a": ["x"]}), found.schema)
    assert rows.to_pylist() == [{"a": "x", "b": None, "c": True}]


@pytest.mark.parametrize("stored", KINDS)
@pytest.mark.parametrize("wanted", KINDS)
def test_every_pair_of_widths(stored: pa.DataType, wanted: pa.DataType) -> None:
    found = compare(pa.schema([("a", stored)]), pa.schema([("a", wanted)]))
    wider = KINDS.index(wanted) > KINDS.index(stored)
    assert [str(each) for each in found.widened] == (
        [f"column 'a' is {stored} in the table and {wanted} in the configuration"] if wider else []
    )
    assert not found.refused and found.schema.field("a").type == KINDS[max(map(KINDS.index, (stored, wanted)))]
    value = conform(pa.table({"a": pa.array([7, None]).cast(wanted)}), found.schema).column("a").to_pylist()
    assert value == [pa.scalar(7).cast(found.schema.field("a").type).as_py(), None]


@pytest.mark.parametrize("other", [pa.bool_(), pa.timestamp("us", "UTC"), pa.list_(pa.string())])
def test_another_type_is_refused(other: pa.DataType) -> None:
    for stored, wanted in ((pa.string(), other), (other, pa.string()), (other, pa.int64())):
        found = compare(pa.schema([("a", stored)]), pa.schema([("a", wanted)]))
        assert [(each.name, each.stored, each.configured) for each in found.refused] == [("a", stored, wanted)]
        assert not found.widened


def test_a_value_without_an_exact_double_is_no_double() -> None:
    schema = pa.schema([("a", pa.float64())])
    assert conform(pa.table({"a": [1 << 53]}), schema).column("a").to_pylist() == [float(1 << 53)]
    with pytest.raises(pa.ArrowInvalid):
        conform(pa.table({"a": [(1 << 53) + 1]}), schema)
