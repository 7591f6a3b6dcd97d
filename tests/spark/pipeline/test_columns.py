"""Conversions of whole columns, against those of one value at a time."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.spark.pipeline.columns import FROM_TEXTS, FROM_VALUE, no_dash
from appliance.spark.pipeline.settings import FieldType

digits = st.text("0123456789", min_size=1, max_size=20)
number = st.from_regex(r"[+-]?(\d{1,20}(\.\d{0,3})?|\.\d{1,3})([eE][+-]?\d{1,3})?", fullmatch=True, alphabet="+-.eE019")
other = st.text("+-.0x9eE éa", max_size=4)
texts = st.lists(st.none() | digits, max_size=5) | st.lists(st.none() | digits | number | other, max_size=5)


def shared(values: list[str | None]) -> pa.Array:
    """An array in the middle of the bytes that it shares."""
    return pa.array(["-", *values, "x"], pa.string()).slice(1, len(values))


@pytest.mark.parametrize("kind", ["int", "float"])
@given(values=texts)
def test_columns_are_converted_as_values_are(kind: FieldType, values: list[str | None]) -> None:
    one: Callable[[str], object] = FROM_VALUE[kind]
    wanted = [None if value is None else one(value) for value in values]
    assert FROM_TEXTS[kind](shared(values)).to_pylist() == wanted


def test_numbers_with_a_plus() -> None:
    assert FROM_TEXTS["int"](pa.array(["+5", "1", "+2.0"])).to_pylist() == [5, 1, 2]
    assert FROM_TEXTS["float"](pa.array(["+5", "+.5", "+1e3"])).to_pylist() == [5.0, 0.5, 1000.0]


def test_digits_that_are_too_many() -> None:
    found = FROM_TEXTS["int"](pa.array(["9" * 18, "9" * 19, "0" * 19]))
    assert found.to_pylist() == [10**18 - 1, None, None]


@given(st.lists(st.none() | st.sampled_from(["", "-", "a", "é", "--", "-a"]), max_size=5))
def test_only_a_dash_and_the_empty_text_are_no_value(values: list[str | None]) -> None:
    assert no_dash(shared(values)).to_pylist() == [None if value in ("", "-") else value for value in values]
