"""appliance.value_faults, with what msgspec really says."""

from __future__ import annotations

import enum
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from appliance.value_faults import in_words


class Level(enum.Enum):
    LOW = "low"


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern="^[a-z]+$", max_length=3)]
    count: Annotated[int, Meta(ge=0, le=9)] = 0
    level: Level = Level.LOW


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    inner: list[Inner]
    text: Annotated[str, Meta(min_length=1)] = "a"
    words: Annotated[list[str], Meta(max_length=2)] = []
    either: int | None = None


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"inner": [{"name": "A"}]}, "inner[0].name: has characters that are not allowed here, or another form"),
        ({"inner": [{"name": "abcd"}]}, "inner[0].name: must have at most 3 characters"),
        ({"inner": [{"name": 7}]}, "inner[0].name: must be text, and is a whole number"),
        ({"inner": [{"name": "a", "count": -1}]}, "inner[0].count: must be 0 or more"),
        ({"inner": [{"name": "a", "count": 10}]}, "inner[0].count: must be 9 or less"),
        ({"inner": [{"name": "a", "level": "up"}]}, "inner[0].level: 'up' is not one of the values that there are"),
        ({"inner": [{}]}, "inner[0]: name is missing"),
        ({}, "inner is missing"),
        ({"inner": [], "other": 1}, "other is not known here"),
        ({"inner": [], "text": ""}, "text: must not be empty"),
        ({"inner": [], "words": ["a", "b", "c"]}, "words: must have at most 2 entries"),
        ({"inner": [], "either": "x"}, "either: must be a whole number or nothing, and is text"),
        ([], "must be an object, and is a list"),
    ],
)
def test_what_msgspec_finds_is_said_in_words(value: Any, says: str) -> None:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert(value, Outer)
    assert in_words(raised.value) == says


def test_what_is_no_finding_of_a_value_stays() -> None:
    assert in_words(ValueError("any\ntext")) == "any\ntext"
