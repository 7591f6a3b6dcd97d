"""appliance.config_keys: values with units, and a named fault for every other text."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from appliance.config import KEYS
from appliance.config_keys import DURATIONS_MS, SIZES


@given(st.integers(-(10**12), 10**12), st.sampled_from(sorted(SIZES)), st.sampled_from(["", " "]))
def test_sizes(count: int, unit: str, gap: str) -> None:
    key = KEYS["disk.bytes_max"]
    text = f"{count}{gap}{unit}"
    if count < 0:
        with pytest.raises(ValueError, match="at least 0"):
            key.parse(text)
    else:
        assert key.parse(text) == key.parse(text.upper()) == count * SIZES[unit]


@given(st.integers(1, 10**6), st.sampled_from(sorted(DURATIONS_MS)))
def test_durations(count: int, unit: str) -> None:
    assert KEYS["topics.segment.ms"].parse(f"{count}{unit}") == count * DURATIONS_MS[unit]


@example("0_")
@given(st.text())
def test_any_text_is_a_value_or_a_named_fault(text: str) -> None:
    for key in KEYS.values():
        try:
            key.parse(text)
        except ValueError as error:
            assert "must" in str(error)
