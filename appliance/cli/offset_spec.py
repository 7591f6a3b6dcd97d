"""Parses the start of a read: ``earliest``, ``latest``, an offset, a time or an age."""

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

FORMS = "earliest, latest, an offset (4711), a time (2026-11-20T06:00, 06:00 today) or an age (-15m, -2h, -7d)"


class OffsetSpec(NamedTuple):
    """A start: either ``offset`` or ``timestamp`` (EARLIEST, LATEST or ms since 1970)."""

    offset: int | None = None
    timestamp: int = EARLIEST


def parse_offset_spec(text: str, now: datetime) -> OffsetSpec:
    """Parse one of the forms.  Ages count back from ``now``, and a time without a day is on that day.

    Raises:
        BadParameter: the text has none of the forms, which the message lists.
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


def resolve(cluster: Cluster, spec: OffsetSpec, parts: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """The offset in each partition; for a time after the last message, the end of the partition.

    Raises:
        BadParameter: one offset was given for several partitions.
        ApplianceError: an appliance cannot be reached, or answers with an error.
    """
    if spec.offset is not None:
        if len(parts) != 1:
            raise BadParameter(f"offset {spec.offset}: belongs to one partition; name it with --partition")
        return {parts[0]: spec.offset}
    return cluster.offsets(dict.fromkeys(parts, spec.timestamp))
