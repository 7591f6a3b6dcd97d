"""Patterns on values: on their letters where they are text, on their bytes where they are not."""

from __future__ import annotations

import re

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from appliance.spark.pipeline.value_patterns import matching, replaced

VALUES = st.lists(st.none() | st.text("aäß张\n ").map(str.encode) | st.binary(max_size=4), max_size=6)


@given(VALUES, st.sampled_from(["ä", "[äß]+", "^.{2}", "张|a"]))
def test_text_is_replaced_and_found_as_by_a_pattern_of_text(values: list[bytes | None], pattern: str) -> None:
    made = replaced(pa.array(values, pa.binary()), pattern, "x").to_pylist()
    found = matching(pa.array(values, pa.binary()), pattern).to_pylist()
    assert len(made) == len(found) == len(values)
    for value, new, hit in zip(values, made, found, strict=True):
        try:
            text = None if value is None else value.decode()
        except UnicodeDecodeError:
            continue
        assert (new, hit) == (
            (None, None) if text is None else (re.sub(pattern, "x", text).encode(), bool(re.search(pattern, text)))
        )


def test_what_is_no_text_is_replaced_byte_by_byte() -> None:
    values = pa.array([b"\xffpassword=secret\xfe", b"password=secret"])
    assert replaced(values, r"(password)=\w+", r"\1=*").to_pylist() == [b"\xffpassword=*\xfe", b"password=*"]
