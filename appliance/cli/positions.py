"""Where to begin reading, as people say it: ``earliest``, ``latest``, a time or an offset."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from typer import BadParameter

from ..config import DURATIONS_MS
from ..wire.requests import EARLIEST, LATEST

if TYPE_CHECKING:
    from ..client.cluster import Cluster

Place = tuple[str, int]
FORMS = "earliest, latest, an offset (4711), a time (2026-11-20T06:00, 06:00 today) or an age (-15m, -2h, -7d)"


class Position(NamedTuple):
    """Either ``offset`` or ``timestamp`` (EARLIEST, LATEST or ms since 1970)."""

    offset: int | None = None
    timestamp: int = EARLIEST


def parse_position(text: str, now: datetime) -> Position:
    """``now`` is what ages count back from; its day and zone complete a time that has none.

    Raises:
        BadParameter: says which forms there are.
    """
    if text in ("earliest", "latest"):
        return Position(timestamp=EARLIEST if text == "earliest" else LATEST)
    if text.isdecimal():
        return Position(offset=int(text))
    age = re.fullmatch(r"-(\d+)(ms|s|m|min|h|d|w)", text)
    if age:
        return Position(timestamp=max(0, _ms(now) - int(age[1]) * DURATIONS_MS[age[2]]))
    clock = re.fullmatch(r"\d{1,2}:\d\d(:\d\d)?", text)
    try:
        moment = datetime.fromisoformat(f"{now:%Y-%m-%d}T{text.zfill(5)}" if clock else text)
    except ValueError:
        raise BadParameter(f"{text!r} is no position: give {FORMS}") from None
    return Position(timestamp=max(0, _ms(moment if moment.tzinfo else moment.astimezone())))


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def resolve(cluster: Cluster, position: Position, places: Sequence[Place]) -> dict[Place, int]:
    """The offset of a position in each partition; a time after the last message is the end.

    Raises:
        BadParameter: one offset for several partitions.
        ApplianceError: an appliance cannot be reached, or refuses.
    """
    if position.offset is not None:
        if len(places) != 1:
            raise BadParameter(f"offset {position.offset}: belongs to one partition; name it with --partition")
        return {places[0]: position.offset}
    return cluster.offsets(dict.fromkeys(places, position.timestamp))
