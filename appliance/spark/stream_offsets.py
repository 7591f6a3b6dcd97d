"""Computes the offsets of a read, as Spark keeps them in its checkpoint.  Pure: no sockets, no clock.

There is one offset for each partition, that of the next record.  In the checkpoint they are JSON as the Kafka
connector's, ``{"topic": {"0": 4711}}``.  There may be one more entry, ``"@start"``, of the same form.

That entry closes a gap in Spark's interface.  Spark does not store ``initialOffset``, and requests it again when it
replays the first micro-batch after a crash.  If the start is "latest", it has moved by then, and the records between
would be lost.  Spark does store the *end* of a micro-batch before anything runs.  So the end has, under ``"@start"``,
the start of every partition that the checkpoint does not have yet: all partitions in the first micro-batch, later those
that were added to a topic.  A replay reads from there.  To have the entry stored at once, even while there is nothing
to read, the first end always differs from the start: the first micro-batch may be empty.

Offsets are bytes, so a limit in bytes is exact and a range may be split anywhere.  The reader of a part keeps the
records whose own offset lies in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final

from ..errors import OffsetOutOfRange
from ..log_access.ranges import Positions, Range, lost
from ..names import TopicPartition

START: Final = "@start"
"""No topic can have this name."""
SPLIT_BYTES_MIN: Final = 8 * 1024 * 1024
"""Smallest part into which a range is split only to keep all cores busy: starting a task costs more."""
PACKED_MAX: Final = 128
"""Most parts that one task reads, one after another."""


def to_json(
    positions: Mapping[TopicPartition, int], start: Mapping[TopicPartition, int] | None = None
) -> dict[str, Any]:
    """Encodes offsets.  ``start``: the first offsets of partitions that no earlier checkpoint has."""
    encoded: dict[str, Any] = {}
    for (topic, partition), offset in sorted(positions.items()):
        encoded.setdefault(topic, {})[str(partition)] = offset
    if start is not None:
        encoded[START] = to_json(start)
    return encoded


def from_json(encoded: Mapping[str, Any]) -> tuple[Positions, Positions | None]:
    """Decodes offsets, and those under ``"@start"`` if there are any."""
    start = encoded.get(START)
    positions = {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in encoded.items()
        if topic != START
        for partition, offset in partitions.items()
    }
    return positions, None if start is None else from_json(start)[0]


def initial(positions: Mapping[TopicPartition, int]) -> dict[str, Any]:
    """The result of ``initialOffset``: offsets with an empty ``"@start"``, which marks them as not stored yet."""
    return to_json(positions, {})


def is_initial(encoded: Mapping[str, Any]) -> bool:
    return encoded.get(START) == {}


def advance(start: Mapping[TopicPartition, int], heads: Mapping[TopicPartition, int], bytes_max: int) -> Positions:
    """The end of a read of at most ``bytes_max`` bytes (0: no limit) from ``start``, which has every key of ``heads``.

    Partitions share the limit in proportion to their unread bytes, so that none falls behind; the first ones get the
    remainder of rounding.  A deleted partition stays at its offset.  One that ends before its start was created again:
    it goes back to its head, and :func:`ranges` handles it.
    """
    waiting = {key: max(0, head - start[key]) for key, head in heads.items()}
    total = sum(waiting.values())
    if not bytes_max or total <= bytes_max:
        return {**start, **heads}
    shares = {key: bytes_left * bytes_max // total for key, bytes_left in waiting.items()}
    spare = bytes_max - sum(shares.values())
    for key, bytes_left in waiting.items():
        extra = min(spare, bytes_left - shares[key])
        shares[key] += extra
        spare -= extra
    return {**start, **{key: min(start[key], heads[key]) + share for key, share in shares.items()}}


TO_CONTINUE: Final = (
    "To continue with what is there: option failOnDataLoss=false; for a pipeline: `appliance pipeline accept CONFIG`, "
    "then run again"
)


@contextmanager
def saying_how_to_continue() -> Iterator[None]:
    """Adds TO_CONTINUE to the error about records that are gone."""
    try:
        yield
    except OffsetOutOfRange as error:
        raise OffsetOutOfRange(f"{error}. {TO_CONTINUE}") from None


@saying_how_to_continue()
def ranges(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    fail_on_data_loss: bool,
) -> list[Range]:
    """The ranges from ``start`` to ``end``, without records that are gone.

    Raises:
        OffsetOutOfRange: records are gone, and ``fail_on_data_loss``.
    """
    spans: list[Range] = []
    for key, stop in sorted(end.items()):
        first = start.get(key, earliest.get(key, 0))
        if key not in latest:
            if first < stop:
                lost(key, first, 0, fail_on_data_loss)
            continue
        if stop < first or stop > latest[key]:
            # The topic was deleted and created again: the offsets belong to the earlier one.
            lost(key, first, earliest[key], fail_on_data_loss)
            first, stop = earliest[key], min(max(stop, earliest[key]), latest[key])
        elif first < earliest[key] and first < stop:
            lost(key, first, earliest[key], fail_on_data_loss)
            first = earliest[key]
        if first < stop:
            spans.append(Range(*key, first, stop, latest[key]))
    return spans


def pack(parts: Sequence[Range], tasks: int, bytes_min: int, bytes_max: int) -> list[tuple[Range, ...]]:
    """Put small parts together, in their order, to about ``tasks`` groups of one size, of at most ``bytes_max``.

    A group has at least ``bytes_min``, unless it has PACKED_MAX parts: each costs a request.
    """
    total = sum(part.end - part.first for part in parts)
    target = min(bytes_max, max(bytes_min, -(-total // max(1, tasks))))
    groups: list[list[Range]] = []
    filled = 0
    for part in parts:
        size = part.end - part.first
        if not groups or filled + size > target or len(groups[-1]) >= PACKED_MAX:
            groups.append([])
            filled = 0
        groups[-1].append(part)
        filled += size
    return [tuple(group) for group in groups]


def behind_latest(progress: Mapping[str, Any]) -> dict[str, str]:
    """How far a stream's sources are behind, in the metrics of Spark's Kafka connector.  Offsets are bytes here.

    Args:
        progress: a report of the query, as ``json.loads(query.lastProgress.json)``.

    Empty where no source of this format has reported its latest offsets.
    """
    lags = []
    for source in progress["sources"]:
        end, latest = source.get("endOffset"), source.get("latestOffset")
        if isinstance(end, dict) and isinstance(latest, dict):
            reached = from_json(end)[0]
            lags += [max(0, offset - reached.get(key, 0)) for key, offset in from_json(latest)[0].items()]
    if not lags:
        return {}
    return {
        "minOffsetsBehindLatest": str(min(lags)),
        "maxOffsetsBehindLatest": str(max(lags)),
        "avgOffsetsBehindLatest": str(sum(lags) / len(lags)),
        "estimatedTotalBytesBehindLatest": str(sum(lags)),
    }


def split(whole: Iterable[Range], parts_min: int, cores: int, bytes_min: int, bytes_max: int) -> list[Range]:
    """Split ranges into about ``parts_min`` parts, none of them larger than ``bytes_max``.

    Without ``parts_min`` there is a part for each of the ``cores`` if there is so much to read: ``bytes_min`` for each.
    """
    spans = list(whole)
    total = sum(span.end - span.first for span in spans)
    if not total:
        return []
    count_wanted = parts_min or min(cores, max(1, total // bytes_min))
    target = max(1, min(bytes_max, -(-total // count_wanted)))
    parts: list[Range] = []
    for span in spans:
        size = span.end - span.first
        count = max(1, round(size / target)) if size <= bytes_max else -(-size // target)
        bounds = [span.first + size * index // count for index in range(count + 1)]
        parts += [
            Range(span.topic, span.partition, first, end, span.log_end)
            for first, end in pairwise(bounds)
            if first < end
        ]
    return parts
