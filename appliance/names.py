"""The rules for what clients name and store: topics, groups, members, notes.  One table, for both listeners.

    what                                    at most             error beyond it
    topic                                   249 characters      InvalidTopic; only [a-zA-Z0-9._-], not "." or ".."
    group                                   255 characters      InvalidGroup; never empty
    group instance (static member)          249 bytes           InvalidRequest
    protocol, protocol type                 255 bytes           InvalidRequest
    client id                               255 characters      none: it is only shown, so a longer one is cut
    note stored with a committed offset     4 KiB               OFFSET_METADATA_TOO_LARGE
    subscription, assignment of a member    256 KiB             GroupTooLarge
    partition                               2^31 - 1            as a partition that does not exist

The codecs apply them where a request is decoded.  Whoever keeps a name (a cache, a path in ZooKeeper, a file) may
rely on the rule, and calls :func:`check_topic` or :func:`check_group` where a name comes in some other way.

The bounds in bytes keep every value that is stored in ZooKeeper far below the 1 MiB that it takes: a subscription
grows at most threefold when it is written as JSON.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from .errors import InvalidGroup, InvalidTopic

TOPIC_CHARACTERS_MAX: Final = 249
"""As Kafka: with ``-<partition>`` behind it, a name still fits into a directory entry of 255 bytes."""
GROUP_CHARACTERS_MAX: Final = 255
INSTANCE_BYTES_MAX: Final = 249
PROTOCOL_BYTES_MAX: Final = 255
CLIENT_ID_CHARACTERS_MAX: Final = 255
NOTE_BYTES_MAX: Final = 4096
"""As Kafka's ``offset.metadata.max.bytes``."""
SUBSCRIPTION_BYTES_MAX: Final = 256 * 1024
ASSIGNMENT_BYTES_MAX: Final = 256 * 1024
PARTITION_MAX: Final = 2**31 - 1
INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})
"""Topics that Kafka keeps for itself.  Here they are made only by whoever asks for that, and marked as internal."""

TOPIC_PATTERN: Final = rf"\A(?!\.{{1,2}}\Z)[a-zA-Z0-9._-]{{1,{TOPIC_CHARACTERS_MAX}}}\Z"
_TOPIC: Final = re.compile(TOPIC_PATTERN)
_TOPIC_BYTES: Final = re.compile(TOPIC_PATTERN.encode())


class TopicPartition(NamedTuple):
    """A topic's name and the number of one of its partitions, from 0.  Equal to the plain tuple of both."""

    topic: str
    partition: int


def is_topic(name: str | bytes | memoryview) -> bool:
    """Whether a topic may have this name, given as text or as its bytes."""
    if isinstance(name, str):
        return _TOPIC.match(name) is not None
    return _TOPIC_BYTES.match(name) is not None


def check_topic(name: str) -> None:
    """Topic names are Kafka's: every client and every file system can spell them.

    Raises:
        InvalidTopic: says which rule is broken.
    """
    if is_topic(name):
        return
    if not name or name in (".", ".."):
        raise InvalidTopic(f"topic name {name!r}: choose one that is not empty, '.' or '..'")
    if len(name) > TOPIC_CHARACTERS_MAX:
        raise InvalidTopic(f"topic name of {len(name)} characters: at most {TOPIC_CHARACTERS_MAX} are allowed")
    raise InvalidTopic(f"topic name {name!r}: use only letters, digits, '.', '_' and '-'")


def is_reserved(name: str) -> bool:
    """Whether a topic of this name is never made just because somebody asks for it: monitors look for Kafka's own."""
    return name.startswith("__")


def collides(name: str, other: str) -> bool:
    """Whether two topics would have one name in metrics, where "." and "_" are the same."""
    return name != other and name.replace(".", "_") == other.replace(".", "_")


def check_group(name: str) -> None:
    """Group names may hold any characters, as in Kafka.

    Raises:
        InvalidGroup: it is empty or too long.
    """
    if not 0 < len(name) <= GROUP_CHARACTERS_MAX:
        raise InvalidGroup(f"a group's name has 1 to {GROUP_CHARACTERS_MAX} characters, not {len(name)}")
