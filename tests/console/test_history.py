"""appliance.console.history: points of topics and groups, their bounds, and what is not known."""

from __future__ import annotations

import sys
from math import nan
from typing import Any

import pytest

from appliance.console import history
from appliance.console.history import POINTS_MAX, History, PointsQuery, Recorder
from appliance.errors import InvalidRequest
from appliance.metrics.lag_watch import Lag, Lags
from appliance.metrics.readings import NO_COUNTS, Readings, of_status
from appliance.names import TopicPartition
from appliance.security.acls import ResourceType
from appliance.status import NOTHING

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP


def test_names_have_the_same_times_and_what_is_absent_is_nothing_or_not_known() -> None:
    topics, groups = History(("a", "b"), 0.0), History(("a", "b"), nan)
    for kept in (topics, groups):
        for at_ms, points in ((1, {}), (2, {"x": (7.0, 1.5)}), (3, {}), (4, {"x": (8.0, 0.0)})):
            kept.note(at_ms, points)
    assert topics.points_of("x") == {"at_ms": [1, 2, 3, 4], "a": [0, 7, 0, 8], "b": [0, 1.5, 0, 0]}
    assert groups.points_of("x") == {"at_ms": [1, 2, 3, 4], "a": [None, 7, None, 8], "b": [None, 1.5, None, 0]}
    assert topics.points_of("y")["a"] == [0, 0, 0, 0] and groups.points_of("y")["a"] == [None] * 4


def test_the_last_points_are_kept_and_who_has_none_is_forgotten() -> None:
    kept = History(("a", "b"), 0.0)
    kept.note(0, {"idle": (1.0, 1.0)})
    for at_ms in range(1, POINTS_MAX):
        kept.note(at_ms, {"busy": (float(at_ms), 0.0)})
    assert kept.points_of("idle")["a"] == [1.0, *[0.0] * (POINTS_MAX - 1)]
    kept.note(POINTS_MAX, {"busy": (float(POINTS_MAX), 0.0)})
    assert kept.points_of("busy")["at_ms"] == list(range(1, POINTS_MAX + 1)) == kept.points_of("busy")["a"]
    assert list(kept._series) == ["busy"] and sys.getsizeof(kept._series["busy"]) < 8 * 1.2 * POINTS_MAX + 200


def test_with_too_many_names_the_longest_idle_gives_way_and_who_has_no_place_is_not_shown_as_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "SERIES_MAX", 2)
    kept = History(("a", "b"), 0.0)
    kept.note(1, {"x": (1.0, 0.0)})
    kept.note(2, {"y": (2.0, 0.0)})
    kept.note(3, {"z": (3.0, 0.0)})
    assert set(kept._series) == {"y", "z"} and kept.points_of("other")["a"] == [0, 0, 0]
    kept.note(4, {"y": (1.0, 0.0), "z": (1.0, 0.0), "x": (1.0, 0.0)})
    assert kept.points_of("x")["a"] == kept.points_of("other")["a"] == [None] * 4
    assert kept.points_of("y")["a"] == [0, 2, 0, 1], "who came earlier keeps its place"
    for at_ms in range(5, 5 + POINTS_MAX):
        kept.note(at_ms, {})
    assert kept.points_of("x")["a"] == [0] * POINTS_MAX


def _readings(**counts: tuple[int, int]) -> Readings:
    """Topics of one partition, by (high watermark, messages)."""
    parts = {
        TopicPartition(topic, 0): NO_COUNTS._replace(high_watermark=end, records=records)
        for topic, (end, records) in counts.items()
    }
    return of_status(NOTHING | {"pid": 1, "partitions": []}, 0.0)._replace(partitions=parts)


def test_points_are_rates_and_the_lag_of_all_topics() -> None:
    now = 0.0
    lags: Lags | None = None
    recorder = Recorder(60, lambda: now, lambda: 1_000 + now, lambda: lags)
    assert recorder.wait_s == 0
    recorder.note(_readings(web=(100, 10), app=(0, 0)))
    assert recorder.wait_s == 60
    now = 50
    assert recorder.wait_s == 10
    lags = Lags({("g", "web"): Lag(3, 30, 5.0), ("g", "app"): Lag(4, 40, 2.0)}, 1, 0)
    recorder.note(_readings(web=(600, 15), app=(0, 0), new=(1_000_000, 1_000)))
    now = 100
    recorder.note(_readings(web=(600, 15), app=(0, 0), new=(1_000_050, 1_100)))

    def of(resource: ResourceType, name: str) -> dict[str, Any]:
        return recorder.points_of(resource, name)

    times = {"at_ms": [1_050_000, 1_100_000]}
    assert of(TOPIC, "web") == times | {"bytes_per_s": [10, 0], "messages_per_s": [0.1, 0]}
    assert of(TOPIC, "app") == times | {"bytes_per_s": [0, 0], "messages_per_s": [0, 0]}
    assert of(TOPIC, "new")["bytes_per_s"] == [0, 1], "what was stored before it was seen is no rate"
    assert of(GROUP, "g") == {"at_ms": [1_050_000], "lag_messages": [7], "lag_seconds": [5]}, "measured once"
    assert of(GROUP, "web")["lag_messages"] == [None]


@pytest.mark.parametrize("query", [PointsQuery(), PointsQuery(topic="web", group="g")])
def test_points_are_those_of_one(query: PointsQuery) -> None:
    with pytest.raises(InvalidRequest, match="name it"):
        query.resource  # noqa: B018
