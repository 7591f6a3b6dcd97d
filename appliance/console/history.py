"""Keeps points of the last hours for charts: what came into each topic, and how far each group was behind.

A point is taken each ``console.chart_ms``, also while no page is open, and POINTS_MAX are kept, in memory: the charts
begin anew when the console does.  All topics have the same times, and all groups::

    topics   bytes and messages per second, in the time since the point before; 0 where nothing came
    groups   messages and seconds that a group is behind, of all topics together; none where it was not measured

A topic has a series from the first message on that comes while the console looks, until POINTS_MAX points have brought
nothing.  There are SERIES_MAX of them.  Beyond that the one that has been idle for the longest gives way; where none is
idle a newcomer has none, and its chart says so instead of showing nothing as 0.  How far groups are behind is measured
as for the metrics (:mod:`appliance.metrics.lag_watch`), for as many groups.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Mapping
from math import isnan, nan
from typing import Annotated, Any, Final, NamedTuple

from msgspec import Meta, Struct

from ..errors import InvalidRequest
from ..metrics.lag_watch import Lag, Lags
from ..metrics.readings import Readings
from ..names import GROUP_CHARACTERS_MAX, TOPIC_PATTERN, TopicPartition
from ..security.acls import ResourceType
from ..shared.table import TableCounts

POINTS_MAX: Final = 360
SERIES_MAX: Final = 1_000

Point = tuple[float, float]


class PointsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """One of both."""

    topic: Annotated[str, Meta(pattern=TOPIC_PATTERN)] | None = None
    group: Annotated[str, Meta(min_length=1, max_length=GROUP_CHARACTERS_MAX)] | None = None

    @property
    def resource(self) -> tuple[ResourceType, str]:
        """Raises InvalidRequest."""
        if self.topic is not None and self.group is None:
            return ResourceType.TOPIC, self.topic
        if self.group is not None and self.topic is None:
            return ResourceType.GROUP, self.group
        raise InvalidRequest("points are those of one topic or of one group: name it")


class History:
    """The points of many names at the same times, of two numbers each."""

    def __init__(self, labels: tuple[str, str], absent: float) -> None:
        """``absent``: what both numbers are at a point that lacks a name; not a number: nothing is known."""
        self._labels, self._absent = labels, absent
        self._at_ms: deque[int] = deque(maxlen=POINTS_MAX)
        self._series: dict[str, array[float]] = {}
        """Both numbers of each of the last points, one after the other: 8 bytes a point."""
        self._points = 0
        """How many there were."""
        self._last: dict[str, int] = {}
        """The last point that each series has really got."""
        self._left_out: int | None = None
        """The last point that left out a name."""

    def note(self, at_ms: int, points: Mapping[str, Point]) -> None:
        """Keep the points of one time."""
        self._at_ms.append(at_ms)
        self._points += 1
        for name, series in self._series.items():
            series.extend(points.get(name, (self._absent, self._absent)))
            del series[: -2 * POINTS_MAX]
            if name in points:
                self._last[name] = self._points
        for name in [name for name, last in self._last.items() if self._is_old(last)]:
            self._remove(name)
        for name in points.keys() - self._series.keys():
            self._begin(name, points[name])

    def _is_old(self, point: int) -> bool:
        return point <= self._points - POINTS_MAX

    def _begin(self, name: str, point: Point) -> None:
        if len(self._series) >= SERIES_MAX:
            idle = min(self._last, key=self._last.__getitem__)
            if self._last[idle] == self._points:
                self._left_out = self._points
                return
            self._remove(idle)
        self._series[name], self._last[name] = array("f", point), self._points

    def _remove(self, name: str) -> None:
        del self._series[name], self._last[name]

    def points_of(self, name: str) -> dict[str, Any]:
        """``at_ms``, and a list for each label, with None where nothing is known."""
        count, series = len(self._at_ms), self._series.get(name, array("f"))
        hidden = self._left_out is not None and not self._is_old(self._left_out)
        absent = nan if name not in self._series and hidden else self._absent
        numbers = [absent] * (2 * count - len(series)) + series.tolist()
        known = [None if isnan(number) else round(number, 1) for number in numbers]
        return {"at_ms": list(self._at_ms), self._labels[0]: known[::2], self._labels[1]: known[1::2]}


class _Before(NamedTuple):
    at_s: float
    partitions: Mapping[TopicPartition, TableCounts]


class Recorder:
    """Takes the points; one thread at a time, others may ask for them.

    ``lags``: the last result of a watch of the lag.
    """

    def __init__(
        self,
        interval_s: float,
        clock: Callable[[], float],
        wall_s: Callable[[], float],
        lags: Callable[[], Lags | None],
    ) -> None:
        self._interval_s, self._clock, self._wall_s, self._lags = interval_s, clock, wall_s, lags
        self._topics = History(("bytes_per_s", "messages_per_s"), 0.0)
        self._groups = History(("lag_messages", "lag_seconds"), nan)
        self._before: _Before | None = None
        self._lags_ms: int | None = None
        """When those were measured that the last point of the groups has."""

    @property
    def wait_s(self) -> float:
        """How long it is until the next point."""
        if self._before is None:
            return 0.0
        return max(0.0, self._before.at_s + self._interval_s - self._clock())

    def note(self, readings: Readings) -> None:
        """Take the next point from what was read just now."""
        now_s, at_ms, before = self._clock(), round(self._wall_s() * 1000), self._before
        self._before = _Before(now_s, readings.partitions)
        if before is not None and now_s > before.at_s:
            self._topics.note(at_ms, _rates(before.partitions, readings.partitions, now_s - before.at_s))
        lags = self._lags()
        if lags is not None and lags.measured_ms != self._lags_ms:
            self._lags_ms = lags.measured_ms
            self._groups.note(at_ms, _behind(lags))

    def points_of(self, resource: ResourceType, name: str) -> dict[str, Any]:
        """The points of a topic or a group."""
        return (self._groups if resource == ResourceType.GROUP else self._topics).points_of(name)


def _rates(
    before: Mapping[TopicPartition, TableCounts], after: Mapping[TopicPartition, TableCounts], seconds: float
) -> dict[str, Point]:
    """Bytes and messages per second of the topics that have got some.

    A partition that was not there before has none: it may have been opened, with all that it has stored.
    """
    rates: dict[str, Point] = {}
    for part, counts in after.items():
        earlier = before.get(part)
        if earlier is None or earlier is counts or counts.high_watermark <= earlier.high_watermark:
            continue
        size, messages = rates.get(part.topic, (0.0, 0.0))
        size += (counts.high_watermark - earlier.high_watermark) / seconds
        rates[part.topic] = size, messages + max(0, counts.records - earlier.records) / seconds
    return rates


def _behind(lags: Lags) -> dict[str, Point]:
    """Messages and seconds that each group is behind."""
    totals: dict[str, Lag] = {}
    for (group, _), lag in lags.by_group.items():
        totals[group] = totals.get(group, Lag()).with_partition(lag)
    return {group: (float(lag.messages), lag.seconds) for group, lag in totals.items()}
