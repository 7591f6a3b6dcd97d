"""Checks what a program passes to the client, so that a wrong argument is named at the call.

What goes over the wire unchecked would close the connection there, and look like an appliance that is away.  Each check
returns what it has checked, and raises before anything is sent or changed::

    InvalidTopic, InvalidGroup    a name that no topic or group can have
    InvalidRequest                any other argument of a verb: of another type, or out of bounds
    BadValue                      an option of a constructor

``True`` is no number here, as it is none on the wire.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from ..errors import BadValue, InvalidGroup, InvalidRequest, InvalidTopic
from ..names import (
    CLIENT_ID_CHARACTERS_MAX,
    OFFSET_MAX,
    PARTITION_MAX,
    TRANSACTIONAL_ID_CHARACTERS_MAX,
    check_group,
    check_topic,
)

MS_MAX: Final = 2**31 - 1
"""Of a time to wait: what poll(2) and the wire take, 24 days."""
SECONDS_MAX: Final = MS_MAX // 1000
TopicAndNumber = tuple[str, int]


NAMES_KEPT_MAX: Final = 10_000
_topic_names: set[str] = set()
"""Names that were found good: a producer asks for each message."""


def topic_name(value: Any) -> str:
    if type(value) is str and value in _topic_names:
        return value
    if not isinstance(value, str):
        raise InvalidTopic(f"topic {shown(value)}: give a text, not {_kind(value)}")
    check_topic(value)
    if len(_topic_names) >= NAMES_KEPT_MAX:
        _topic_names.clear()
    _topic_names.add(value)
    return value


def group_name(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidGroup(f"group {shown(value)}: give a text, not {_kind(value)}")
    check_group(value)
    if not _encodable(value):
        raise InvalidGroup(f"group {shown(value)}: it has half of a surrogate pair, which no text in UTF-8 has")
    return value


def whole(name: str, value: Any, least: int, most: int) -> int:
    """A whole number in [least, most]."""
    if type(value) is not int or not least <= value <= most:
        raise InvalidRequest(f"{name}={shown(value)}: give a whole number from {least} to {most}")
    return value


def partition_number(value: Any) -> int:
    return whole("partition", value, 0, PARTITION_MAX)


def part(value: Any) -> TopicAndNumber:
    """A (topic, partition)."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise InvalidRequest(f"partition {shown(value)}: give a pair of a topic and a number")
    return topic_name(value[0]), partition_number(value[1])


def parts(values: Any) -> list[TopicAndNumber]:
    """Several of (topic, partition)."""
    return [part(value) for value in several("partitions", values)]


def offsets(values: Any, least: int = 0) -> dict[TopicAndNumber, int]:
    """(topic, partition) → offset, at least ``least``."""
    if not isinstance(values, Mapping):
        raise InvalidRequest(f"offsets {shown(values)}: give a mapping of (topic, partition) to offset")
    checked = {}
    for pair, offset in values.items():
        topic, number = part(pair)
        checked[topic, number] = whole(f"offset of {topic}-{number}", offset, least, OFFSET_MAX)
    return checked


def several(name: str, values: Any) -> Collection[Any]:
    """Any iterable but a text, which would be taken for its characters."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidRequest(f"{name} {shown(values)}: give several, as a list")
    return values if isinstance(values, Collection) else list(values)


def mapping(name: str, values: Any) -> dict[Any, Any]:
    """A mapping or None, which is an empty one."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise InvalidRequest(f"{name} {shown(values)}: give a mapping")
    return dict(values)


def seconds(value: Any) -> float | None:
    """A time to wait; None: for ever."""
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value <= SECONDS_MAX:  # not a number compares with nothing
        raise InvalidRequest(f"timeout={shown(value)}: give seconds from 0 to {SECONDS_MAX}, or None to wait for ever")
    return float(value)


def text(name: str, value: Any) -> str:
    """Any text that has bytes in UTF-8."""
    if not isinstance(value, str) or not _encodable(value):
        raise InvalidRequest(f"{name} {shown(value)}: give a text")
    return value


def truth(name: str, value: Any) -> bool:
    if type(value) is not bool:
        raise InvalidRequest(f"{name}={shown(value)}: give True or False")
    return value


def function(name: str, value: Any) -> Callable[..., object] | None:
    if value is not None and not callable(value):
        raise InvalidRequest(f"{name}={shown(value)}: give a function")
    callback: Callable[..., object] | None = value
    return callback


# ---- options of constructors


def check_least(least: float, **options: Any) -> None:
    """Check options that are numbers, which may have fractions.

    Raises:
        BadValue: one is not, or is less than ``least``.
    """
    for name, value in options.items():
        # Compared with a float's largest: of a larger int neither isfinite() nor a division makes a float.
        if type(value) not in (int, float) or not least <= value <= sys.float_info.max:
            raise BadValue(f"{name}={shown(value)}: must be a number of at least {least}")


def check_whole(least: int, **options: Any) -> None:
    """Check options that are whole numbers, at most what the wire takes.

    Raises:
        BadValue: one is not, or is out of bounds.
    """
    for name, value in options.items():
        if type(value) is not int or not least <= value <= MS_MAX:
            raise BadValue(f"{name}={shown(value)}: must be a whole number from {least} to {MS_MAX}")


def check_one_of(allowed: Collection[str], **options: Any) -> None:
    """Check options that are words.

    Raises:
        BadValue: one is none of those allowed.
    """
    for name, value in options.items():
        if not isinstance(value, str) or value not in allowed:
            raise BadValue(f"{name}={shown(value)}: give one of {', '.join(allowed)}")


def check_truth(**options: Any) -> None:
    """Check options that are True or False: a text such as "no" would count as True.

    Raises:
        BadValue: one is neither.
    """
    for name, value in options.items():
        if type(value) is not bool:
            raise BadValue(f"{name}={shown(value)}: give True or False")


def check_functions(**options: Any) -> None:
    """Raises BadValue: one of these options cannot be called."""
    for name, value in options.items():
        if not callable(value):
            raise BadValue(f"{name}={shown(value)}: give a function")


def check_texts(**options: Any) -> None:
    """Check options that are texts, of which the system makes names of files.

    Raises:
        BadValue: one is no text, or one that no file can have as its name.
    """
    for name, value in options.items():
        if not isinstance(value, str) or not _encodable(value) or "\0" in value:
            raise BadValue(f"{name}={shown(value)}: give a text")


def check_client_name(value: Any) -> None:
    """Raises BadValue: a client cannot have this name."""
    if not isinstance(value, str) or len(value) > CLIENT_ID_CHARACTERS_MAX or not _encodable(value):
        raise BadValue(f"client_name={shown(value)}: must be a text of at most {CLIENT_ID_CHARACTERS_MAX} characters")


def check_transactional_id(value: Any) -> None:
    """Raises BadValue: a producer cannot have this id."""
    if not isinstance(value, str) or not 0 < len(value) <= TRANSACTIONAL_ID_CHARACTERS_MAX or not _encodable(value):
        most = TRANSACTIONAL_ID_CHARACTERS_MAX
        raise BadValue(f"transactional_id={shown(value)}: must be a text of 1 to {most} characters")


def shown(value: Any) -> str:
    """The beginning of what a program has passed, for an error."""
    try:
        return f"{value!r:.100}"
    except ValueError:  # Python writes no int of more than 4300 digits
        return f"{type(value).__name__} with a number of too many digits"


def _encodable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__
