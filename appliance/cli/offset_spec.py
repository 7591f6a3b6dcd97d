"""Parses the start of a read: ``earliest``, ``latest``, ``now``, an offset, a time or an age."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from typer import BadParameter

from ..config_keys import DURATIONS_MS
from ..names import OFFSET_MAX
from ..wire.requests import EARLIEST, LATEST

if TYPE_CHECKING:
    from ..client.cluster_client import Cluster

FORMS = "earliest, latest, now, an offset (4711), a time (2026-11-20T06:00, 06:00 today) or an age (15m, 2h, 7d)"


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
    if text == "now":
        return OffsetSpec(timestamp=_ms(now))
    if re.fullmatch("[0-9]+", text):
        if len(text) > 19 or int(text) > OFFSET_MAX:  # Python refuses to convert thousands of digits
            raise BadParameter(f"{text!r}: the largest offset is {OFFSET_MAX}")
        return OffsetSpec(offset=int(text))
    age = re.fullmatch(r"-?([0-9]{1,18})(ms|s|m|min|h|d|w)", text)
    if age:
        return OffsetSpec(timestamp=max(0, _ms(now) - int(age[1]) * DURATIONS_MS[age[2]]))
    clock = re.fullmatch(r"([0-9]{1,2})(:[0-9]{2}(?::[0-9]{2})?)", text)
    try:
        moment = datetime.fromisoformat(f"{now:%Y-%m-%d}T{clock[1]:0>2}{clock[2]}" if clock else text)
        return OffsetSpec(timestamp=max(0, _ms(moment if moment.tzinfo else moment.astimezone())))
    except (ValueError, OverflowError):  # 0001-01-01 is outside of what the time zone can be found for
        raise BadParameter(f"{text!r}: give {FORMS}") from None


def parse_moment(option: str, text: str, now: datetime) -> int:
    """A time or an age as ms since 1970, for an option that takes no offset; ``earliest`` is 0.

    Raises:
        BadParameter: it is none.
    """
    try:
        spec = parse_offset_spec(text, now)
    except BadParameter:
        spec = OffsetSpec(timestamp=LATEST)
    if spec.offset is not None or spec.timestamp == LATEST:
        raise BadParameter(f"{option} {text}: give a time (2026-11-20T06:00, 06:00 today) or an age (10m, 2h, 7d)")
    return max(0, spec.timestamp)


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
