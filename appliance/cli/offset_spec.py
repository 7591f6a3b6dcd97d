"""Parses where to begin reading: ``earliest``, ``latest``, an offset, a time or an age."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from typer import BadParameter

from ..config_keys import DURATIONS_MS
from ..wire.requests import EARLIEST, LATEST

if TYPE_CHECKING:
    from ..client.cluster_client import Cluster

Place = tuple[str, int]
FORMS = "earliest, latest, an offset (4711), a time (2026-11-20T06:00, 06:00 today) or an age (-15m, -2h, -7d)"


class OffsetSpec(NamedTuple):
    """Either ``offset`` or ``timestamp`` (EARLIEST, LATEST or ms since 1970)."""

    offset: int | None = None
    timestamp: int = EARLIEST


def parse_offset_spec(text: str, now: datetime) -> OffsetSpec:
    """``now`` is what ages count back from; its day and zone complete a time that has none.

    Raises:
        BadParameter: says which forms there are.
    """
    if text in ("earliest", "latest"):
        return OffsetSpec(timestamp=EARLIEST if text == "earliest" else LATEST)
    if text.isdecimal():
        return OffsetSpec(offset=int(text))
    age = re.fullmatch(r"-(\d+)(ms|s|m|min|h|d|w)", text)
    if age:
        return OffsetSpec(timestamp=max(0, _ms(now) - int(age[1]) * DURATIONS_MS[age[2]]))
    clock = re.fullmatch(r"\d{1,2}:\d\d(:\d\d)?", text)
    try:
        moment = datetime.fromisoformat(f"{now:%Y-%m-%d}T{text.zfill(5)}" if clock else text)
    except ValueError:
        raise BadParameter(f"{text!r}: give {FORMS}") from None
    return OffsetSpec(timestamp=max(0, _ms(moment if moment.tzinfo else moment.astimezone())))


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def resolve(cluster: Cluster, spec: OffsetSpec, places: Sequence[Place]) -> dict[Place, int]:
    """The offset in each partition; for a time after the last message, the end of the partition.

    Raises:
        BadParameter: one offset for several partitions.
        ApplianceError: an appliance cannot be reached, or refuses.
    """
    if spec.offset is not None:
        if len(places) != 1:
            raise BadParameter(f"offset {spec.offset}: belongs to one partition; name it with --partition")
        return {places[0]: spec.offset}
    return cluster.offsets(dict.fromkeys(places, spec.timestamp))
