"""Where a read stands: positions per partition, as Spark keeps them in its checkpoint.  Pure: no sockets, no clock.

A position is the offset of the next record, one for each partition.  In the checkpoint they are JSON as the Kafka
connector's, ``{"topic": {"0": 4711}}``, and there may be one more entry, ``"@start"``, of the same form.

That entry answers a gap in Spark's interface: ``initialOffset`` is not stored, and is asked again when the first
micro-batch is replayed after a crash.  If it was "latest" then, it has moved since, and what lay between would be
lost.  The *end* of a micro-batch, however, is stored before anything runs.  So the end carries, under ``"@start"``, the
start of every partition that the checkpoint does not know yet (all of them in the first micro-batch; later those that
were added to a topic), and a replay reads from there.  To have it stored at once, even while there is nothing to
read, the first end always differs from the start: the first micro-batch may be empty.

Offsets are bytes, so a limit in bytes is exact and a range may be cut anywhere: whoever reads it keeps the records
whose own offset lies in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from ..errors import OffsetOutOfRange
from .options import Key

START: Final = "@start"
"""No topic can have this name."""
SPLIT_BYTES_MIN: Final = 8 * 1024 * 1024
"""Ranges are not cut smaller than this only to keep all cores busy: starting a task costs more."""

Positions = dict[Key, int]


@dataclass(frozen=True, slots=True)
class Range:
    """Records of one partition with offsets from ``first`` up to, without, ``end``.

    ``log_end``: where the whole log ended when this was planned, which is the end of a batch.
    """

    topic: str
    partition: int
    first: int
    end: int
    log_end: int


def to_json(positions: Mapping[Key, int], start: Mapping[Key, int] | None = None) -> dict[str, Any]:
    """``start``: positions from which partitions were begun that no earlier checkpoint knows."""
    encoded: dict[str, Any] = {}
    for (topic, partition), offset in sorted(positions.items()):
        encoded.setdefault(topic, {})[str(partition)] = offset
    if start is not None:
        encoded[START] = to_json(start)
    return encoded


def from_json(encoded: Mapping[str, Any]) -> tuple[Positions, Positions | None]:
    """Positions, and those under ``"@start"`` if there are any."""
    start = encoded.get(START)
    positions = {
        (topic, int(partition)): int(offset)
        for topic, partitions in encoded.items()
        if topic != START
        for partition, offset in partitions.items()
    }
    return positions, None if start is None else from_json(start)[0]


def initial(positions: Mapping[Key, int]) -> dict[str, Any]:
    """What ``initialOffset`` returns: positions marked as not stored yet, by an empty ``"@start"``."""
    return to_json(positions, {})


def is_initial(encoded: Mapping[str, Any]) -> bool:
    return encoded.get(START) == {}


def advance(start: Mapping[Key, int], heads: Mapping[Key, int], bytes_max: int) -> Positions:
    """How far to read at most ``bytes_max`` bytes (0: everything) from ``start``, which has every key of ``heads``.

    Partitions share the limit in proportion to what each has, so that none falls behind; what rounding leaves goes
    to those that come first.  A partition that is gone stays where it was.  One that ends before its start was made
    anew and goes back to its head, for :func:`ranges` to decide about.
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


def lost(key: Key, wanted: int, found: int, fail: bool) -> None:
    """Data between ``wanted`` and ``found`` is gone.

    Raises:
        OffsetOutOfRange: ``fail``: the user wants to know.
    """
    if fail:
        raise OffsetOutOfRange(
            f"{key[0]}-{key[1]}: offset {wanted} is gone, the log starts at {found}: retention was faster than this "
            "reader, or the topic was made anew. To go on from there: option failOnDataLoss=false"
        )


def ranges(
    start: Mapping[Key, int],
    end: Mapping[Key, int],
    earliest: Mapping[Key, int],
    latest: Mapping[Key, int],
    fail_on_data_loss: bool,
) -> list[Range]:
    """What lies between ``start`` and ``end`` and is still there.

    Raises:
        OffsetOutOfRange: something is not, and the user wants to know.
    """
    found: list[Range] = []
    for key, stop in sorted(end.items()):
        first = start.get(key, earliest.get(key, 0))
        if key not in latest:
            if first < stop:
                lost(key, first, 0, fail_on_data_loss)
            continue
        if stop < first or stop > latest[key]:
            # Positions from another life of this topic: what they point at is not what was meant.
            lost(key, first, earliest[key], fail_on_data_loss)
            first, stop = earliest[key], min(max(stop, earliest[key]), latest[key])
        elif first < earliest[key] and first < stop:
            lost(key, first, earliest[key], fail_on_data_loss)
            first = earliest[key]
        if first < stop:
            found.append(Range(*key, first, stop, latest[key]))
    return found


def split(whole: Iterable[Range], parts_min: int, cores: int, bytes_max: int) -> list[Range]:
    """Cut ranges so that there are about ``parts_min`` and none is larger than ``bytes_max``.

    Without ``parts_min`` there are enough for all ``cores`` when there is enough to read.
    """
    given = list(whole)
    total = sum(each.end - each.first for each in given)
    if not total:
        return []
    wanted = parts_min or min(cores, max(1, total // SPLIT_BYTES_MIN))
    target = max(1, min(bytes_max, -(-total // wanted)))
    parts: list[Range] = []
    for each in given:
        size = each.end - each.first
        count = max(1, round(size / target)) if size <= bytes_max else -(-size // target)
        cuts = [each.first + size * index // count for index in range(count + 1)]
        parts += [
            Range(each.topic, each.partition, first, end, each.log_end) for first, end in pairwise(cuts) if first < end
        ]
    return parts
