"""appliance.zookeeper.patterns: what ``re`` says, in bounded time; what it does not know is refused by name."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import BadValue
from appliance.zookeeper import patterns
from appliance.zookeeper.patterns import CHARACTERS_MAX, DEPTH_MAX, Pattern

NAME_CHARACTERS_MAX = 249

ATOMS = st.sampled_from(["a", "b", r"\.", ".", "[ab]", "[^a]", r"\d", "[a-c]", r"\W", "[-a]", "[b.-]", "1"])


def _bigger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    grouped = inner.map(lambda text: f"({text})")
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join),
        st.tuples(grouped, st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,2}", "*?", "+?"])).map("".join),
        st.tuples(inner, st.sampled_from(["=", "!"]), inner).map(lambda t: f"(?{t[1]}{t[2]}){t[0]}"),
        inner.map(lambda text: f"(?:{text})"),
        inner.map(lambda text: f"^{text}"),
        inner.map(lambda text: f"{text}$"),
    )


PATTERNS = st.recursive(ATOMS, _bigger, max_leaves=8)


@given(PATTERNS, st.lists(st.text(alphabet="ab.1-", max_size=7), max_size=5))
def test_it_says_what_re_says(text: str, names: list[str]) -> None:
    pattern = Pattern(text)
    for name in names:
        assert pattern.matches(name) == (re.fullmatch(text, name) is not None), (text, name)


@given(st.text(alphabet="ab(|)[]{}*+?^$\\.-,12<>:=!PdwWb", max_size=20))
def test_what_it_takes_means_what_re_means_by_it(text: str) -> None:
    """Goal: no text is read in two ways.  Method: any text at all; what both take must match alike."""
    try:
        pattern = Pattern(text)
    except BadValue:
        return
    compiled = re.compile(text)
    for name in ("", "a", "b", "ab", "aab", "ba", "1", "a-b", "{1}", "a.b"):
        assert pattern.matches(name) == (compiled.fullmatch(name) is not None), (text, name)


HOSTILE = [
    "(a+)+b",
    "(a|a)*b",
    "(a*)*(a*)*(a*)*b",
    "((((a+)+)+)+)+b",
    "(.*a){20}b",
    "(a?){1000}b",
    "((a{1000}){1000}){1000}",
    "((?!(a+)+b)a+)+b",
    ".*.*.*.*.*.*.*.*.*b",
    "|".join(["a" * 20] * 40),
    "(" * DEPTH_MAX + "a*" + ")*" * DEPTH_MAX + "b",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_pattern_takes_long(text: str) -> None:
    pattern = Pattern(text)
    begun = time.thread_time()
    for name in ("a" * NAME_CHARACTERS_MAX, "a" * 100 + "b" + "a" * 100):
        assert not pattern.matches(name)
    assert time.thread_time() - begun < 0.5


@pytest.mark.parametrize(
    "text",
    [
        *("(", ")", "[", "[]", "a**", "*a", "a{", "a{2", "a{3,2}", "a{1001}", "a{99999999999}", "a|*"),
        *(
            r"(a)\1",
            "(?<=a)b",
            "(?i)a",
            r"\bword",
            r"\Z",
            "(?P<x",
            "(?",
            "\\",
            "[b-a]",
            "[\x00-\U0010ffff]",
            r"[a-\d]",
            "^*",
        ),
        "a" * (CHARACTERS_MAX + 1),
        "(" * (DEPTH_MAX + 1) + "a" + ")" * (DEPTH_MAX + 1),
        "(" * 900,
    ],
)
def test_what_it_does_not_know_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadValue, match="pattern"):
        Pattern(text)


def test_ordinary_patterns() -> None:
    assert patterns.matches("web|app", "app") and not patterns.matches("web|app", "apps")
    assert patterns.matches(r"logs\.(eu|us)-\d+", "logs.eu-12")
    assert patterns.matches("(?!internal-).*", "orders") and not patterns.matches("(?!internal-).*", "internal-x")
    assert patterns.matches("(?P<team>[a-z]+)_.*", "team_topic")
    assert patterns.matches("", "") and not patterns.matches("", "a")
