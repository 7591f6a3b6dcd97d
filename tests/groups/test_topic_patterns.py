"""appliance.groups.topic_patterns: whole names match, in RE2's syntax, within bounds."""

from __future__ import annotations

import pytest

from appliance.catalog import Topic
from appliance.groups import topic_patterns
from appliance.groups.consumer_group import TopicsView
from appliance.groups.topic_patterns import PATTERN_BYTES_MAX, SubscribedPatterns


def view(revision: int, *names: str) -> TopicsView:
    return TopicsView(revision, {name: Topic(name, {0: [0]}) for name in names})


@pytest.mark.parametrize(
    "pattern, found",
    [
        ("logs-.*", {"logs-web", "logs-mail"}),
        ("logs", set()),
        ("^(?i)LOGS-web$", {"logs-web"}),
        (r"[[:alpha:]]+", {"plain"}),
        (".*", {"logs-web", "logs-mail", "plain"}),
        ("", set()),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, found: set[str]) -> None:
    assert SubscribedPatterns().topics(pattern, view(1, "logs-web", "logs-mail", "plain")) == found


@pytest.mark.parametrize("pattern", ["(", r"(a)\1", "(?=a)", "a" * (PATTERN_BYTES_MAX + 1), "((a{99}){99}){9}"])
def test_what_is_no_pattern_or_too_large_is_refused(pattern: str) -> None:
    """Backward references and lookahead are what RE2 has not, since they may take for ever."""
    with pytest.raises(ValueError, match=r"pattern|bytes") as caught:
        SubscribedPatterns().topics(pattern, view(1, "a"))
    assert "b'" not in str(caught.value)


def test_a_pattern_is_matched_again_when_topics_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_patterns, "PATTERNS_MAX", 2)
    patterns = SubscribedPatterns()
    first = patterns.topics("a+", view(1, "a", "b"))
    assert patterns.topics("a+", view(1, "a", "aa")) is first, "the same revision"
    assert patterns.topics("a+", view(2, "a", "aa")) == {"a", "aa"}
    for other in ("b", "c", "a+"):
        patterns.topics(other, view(2, "a"))
    assert len(patterns._matched) == 2
