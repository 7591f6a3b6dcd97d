"""appliance.names: which names pass, as text and as bytes alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import InvalidGroup, InvalidTopic
from appliance.names import (
    GROUP_CHARACTERS_MAX,
    TopicPartition,
    check_group,
    check_topic,
    in_metrics,
    is_reserved,
    is_topic,
)


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


@pytest.mark.parametrize(
    "name, other, expected",
    [("a.b", "a_b", True), ("a_b", "a.b", True), ("a.b", "a.b", False), ("a.b", "a-b", False), ("a._b", "a_.b", True)],
)
def test_names_that_metrics_could_not_tell_apart(name: str, other: str, expected: bool) -> None:
    assert (name != other and in_metrics(name) == in_metrics(other)) == expected


def test_texts_have_a_partition_as_its_directory_is_called() -> None:
    assert f"{TopicPartition('web', 0)} is offline" == "web-0 is offline"


def test_reserved_names() -> None:
    assert [is_reserved(name) for name in ("__a", "__consumer_offsets", "_a", "a__")] == [True, True, False, False]


def test_groups() -> None:
    for name in ("a", "..", "a/b\0\x1b", "ü" * GROUP_CHARACTERS_MAX):
        check_group(name)
    for name in ("", "g" * (GROUP_CHARACTERS_MAX + 1)):
        with pytest.raises(InvalidGroup):
            check_group(name)
