"""appliance.names: which names pass, as text and as bytes alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import InvalidGroup, InvalidTopic
from appliance.names import GROUP_CHARACTERS_MAX, check_group, check_topic, is_topic


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", ".a", "..a", "a."])
def test_good_topics(name: str) -> None:
    check_topic(name)
    assert is_topic(name.encode())


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ü", "x" * 250, "a\n", ".\n", "..\n", "a\0", "\ud800"])
def test_bad_topics(name: str) -> None:
    with pytest.raises(InvalidTopic):
        check_topic(name)
    assert not is_topic(memoryview(name.encode("utf-8", "surrogatepass")))


@given(st.text(st.sampled_from("aZ9._-/ \nü"), max_size=5))
def test_text_and_bytes_agree(name: str) -> None:
    legal = all(letter in "aZ9._-" for letter in name)
    assert is_topic(name) == is_topic(name.encode()) == (legal and name not in ("", ".", ".."))


def test_groups() -> None:
    for name in ("a", "..", "a/b\0\x1b", "ü" * GROUP_CHARACTERS_MAX):
        check_group(name)
    for name in ("", "g" * (GROUP_CHARACTERS_MAX + 1)):
        with pytest.raises(InvalidGroup):
            check_group(name)
