"""What a group may set for its members of the consumer protocol: Kafka's settings of the resource GROUP (KIP-848).

They belong to a name, before there is such a group and after it is gone.  Bounds are those of the appliance's own
values, which hold for a group that does not set one itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ..config import BUILT_IN, KEYS, OF_CONFIGURATION
from ..errors import InvalidSetting
from .messages import Limits

HEARTBEAT: Final = "consumer.heartbeat.interval.ms"
SESSION: Final = "consumer.session.timeout.ms"
GROUP_KEYS: Final = {HEARTBEAT: KEYS["groups.consumer_heartbeat_ms"], SESSION: KEYS["groups.consumer_session_ms"]}
"""By Kafka's name of a group's setting: the key of the appliance's value."""
CONFIGURED_MAX: Final = 1_000
"""Groups that set something."""
OF_GROUP: Final = "group"

OwnSettings = Mapping[str, int]
"""What one group sets itself: ms by name."""


def values(own: OwnSettings, limits: Limits) -> dict[str, int]:
    """What holds for a group, in ms by name.  ``limits``: those of groups that set nothing."""
    return {HEARTBEAT: limits.consumer_heartbeat_ms, SESSION: limits.consumer_session_ms, **own}


def sources(own: OwnSettings, limits: Limits) -> dict[str, str]:
    """Where each of :func:`values` comes from: OF_GROUP, OF_CONFIGURATION or BUILT_IN."""
    return {
        name: OF_GROUP if name in own else BUILT_IN if value == GROUP_KEYS[name].default else OF_CONFIGURATION
        for name, value in values(own, limits).items()
    }


def limits_with(own: OwnSettings, limits: Limits) -> Limits:
    held = values(own, limits)
    return replace(limits, consumer_heartbeat_ms=held[HEARTBEAT], consumer_session_ms=held[SESSION])


def altered(own: OwnSettings, changes: Mapping[str, str | int | None], limits: Limits) -> dict[str, int]:
    """``own`` with other values; None takes one back.

    Raises:
        InvalidSetting: an unknown name, a value out of bounds, or a session that is over before the next heartbeat.
    """
    after = dict(own)
    for name, value in changes.items():
        if name not in GROUP_KEYS:
            raise InvalidSetting(f"unknown group setting {name!r}: a group may set {' and '.join(GROUP_KEYS)}")
        if value is None:
            after.pop(name, None)
            continue
        try:
            after[name] = GROUP_KEYS[name].parse(value)
        except ValueError as error:
            raise InvalidSetting(f"{name} = {value!r}: {error}") from None
    held = values(after, limits)
    if after and held[SESSION] <= held[HEARTBEAT]:
        raise InvalidSetting(f"{SESSION} ({held[SESSION]}) must be greater than {HEARTBEAT} ({held[HEARTBEAT]})")
    return after
