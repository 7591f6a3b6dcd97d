"""Checks the names and values that clients give: topics, groups, members, offset metadata.

The same rules hold for both listeners::

    name or value                           at most             error above it
    topic                                   249 characters      InvalidTopic; only [a-zA-Z0-9._-], not "." or ".."
    group                                   255 characters      InvalidGroup; never empty
    group instance (static member)          249 bytes           InvalidRequest
    protocol, protocol type                 255 bytes           InvalidRequest
    client id                               255 characters      none: it is only shown, and truncated
    metadata of a committed offset          4 KiB               OFFSET_METADATA_TOO_LARGE
    subscription, assignment of a member    256 KiB             GroupTooLarge
    partition                               2^31 - 1            that of a missing partition

The codecs apply the rules when they decode a request.  Other code may rely on them (a cache, a path in ZooKeeper, a
file).  For names from other sources it calls :func:`check_topic` or :func:`check_group`.

The bounds in bytes keep every value in ZooKeeper far below its limit of 1 MiB: a subscription grows at most threefold
as JSON.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, NamedTuple

from .errors import InvalidGroup, InvalidTopic

TOPIC_CHARACTERS_MAX: Final = 249
"""As Kafka: with ``-<partition>`` after it, a name still fits into a directory entry of 255 bytes."""
GROUP_CHARACTERS_MAX: Final = 255
TRANSACTIONAL_ID_CHARACTERS_MAX: Final = 255
INSTANCE_BYTES_MAX: Final = 249
PROTOCOL_BYTES_MAX: Final = 255
CLIENT_ID_CHARACTERS_MAX: Final = 255
NOTE_BYTES_MAX: Final = 4096
"""As Kafka's ``offset.metadata.max.bytes``."""
PIPELINE_NOTE: Final = "appliance pipeline "
"""How the metadata of offsets begins in which a pipeline says what it leaves undone; its name follows, and why."""
SUBSCRIPTION_BYTES_MAX: Final = 256 * 1024
ASSIGNMENT_BYTES_MAX: Final = 256 * 1024
PARTITION_MAX: Final = 2**31 - 1
OFFSET_MAX: Final = 2**63 - 1
"""Offsets, times and sizes have 63 bits in Kafka's protocol."""
INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})
"""Topics that Kafka uses itself.  They are created only on request, and marked as internal."""

TOPIC_PATTERN: Final = rf"\A(?!\.{{1,2}}\Z)[a-zA-Z0-9._-]{{1,{TOPIC_CHARACTERS_MAX}}}\Z"
_TOPIC: Final = re.compile(TOPIC_PATTERN)
_TOPIC_BYTES: Final = re.compile(TOPIC_PATTERN.encode())


def member_suffix(secret: str) -> str:
    """What the id of a native group's member ends with: who has the secret is this member."""
    return "-" + hashlib.sha256(secret.encode()).hexdigest()[:32]


class TopicPartition(NamedTuple):
    """A topic's name and the number of one of its partitions, from 0.  Equal to the plain tuple of both."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """As its directory is called, and as people call it."""
        return f"{self.topic}-{self.partition}"


def is_topic(name: str | bytes | memoryview) -> bool:
    """Whether a topic may have this name, given as text or as its bytes."""
    if isinstance(name, str):
        return _TOPIC.match(name) is not None
    return _TOPIC_BYTES.match(name) is not None


def check_topic(name: str) -> None:
    """Check the name of a topic.  The rules are Kafka's: all clients and file systems accept such names.

    Raises:
        InvalidTopic: the message names the broken rule.
    """
    if is_topic(name):
        return
    if not name or name in (".", ".."):
        raise InvalidTopic(f"topic name {name!r}: choose one that is not empty, '.' or '..'")
    if len(name) > TOPIC_CHARACTERS_MAX:
        raise InvalidTopic(f"topic name of {len(name)} characters: at most {TOPIC_CHARACTERS_MAX} are allowed")
    raise InvalidTopic(f"topic name {name!r}: use only letters, digits, '.', '_' and '-'")


def is_reserved(name: str) -> bool:
    """Whether a topic of this name is never created automatically: monitors look for Kafka's own topics."""
    return name.startswith("__")


def in_metrics(name: str) -> str:
    """The name of a topic in metrics, where "." and "_" are equal."""
    return name.replace(".", "_")


def check_group(name: str) -> None:
    """Check the name of a group, which may hold any characters, as in Kafka.

    Raises:
        InvalidGroup: it is empty or too long.
    """
    if not 0 < len(name) <= GROUP_CHARACTERS_MAX:
        raise InvalidGroup(f"a group's name has 1 to {GROUP_CHARACTERS_MAX} characters, not {len(name)}")
