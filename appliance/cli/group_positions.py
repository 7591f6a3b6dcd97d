"""The file of ``groups export`` and ``groups import``: committed offsets, with the ids of the topics that they are in::

    {"format": "appliance group offsets", "version": 1,
     "groups": [{"group": "reports",
                 "offsets": [{"topic": "web", "id": "4f0c…", "partition": 0, "offset": 4711}]}]}

An offset is a position in the log of one topic.  In another topic of the same name it would be in the middle of a
batch, or of other messages, so an import compares the ids.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from ..errors import InvalidRequest, UnknownPartition
from ..names import GROUP_CHARACTERS_MAX, OFFSET_MAX, PARTITION_MAX, TOPIC_PATTERN
from ..owners import open_as_owner
from ..value_faults import in_words
from ..wire.bounds import PARTS_MAX_MAX

FORMAT: Final = "appliance group offsets"
FILE_BYTES_MAX: Final = 64 << 20


class GroupPosition(Struct, forbid_unknown_fields=True):
    """A committed offset of a group; ``id``: of the topic."""

    topic: Annotated[str, Meta(pattern=TOPIC_PATTERN)]
    id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    partition: Annotated[int, Meta(ge=0, le=PARTITION_MAX)]
    offset: Annotated[int, Meta(ge=0, le=OFFSET_MAX)]


class _Group(Struct, forbid_unknown_fields=True):
    group: Annotated[str, Meta(min_length=1, max_length=GROUP_CHARACTERS_MAX)]
    offsets: Annotated[list[GroupPosition], Meta(max_length=PARTS_MAX_MAX)]


class _File(Struct, forbid_unknown_fields=True):
    format: Literal["appliance group offsets"]
    version: Literal[1]
    groups: list[_Group]


def exported(committed: Mapping[str, Sequence[tuple[str, int, int]]], topic_id: Callable[[str], str]) -> dict[str, Any]:
    """The content of the file, from (topic, partition, offset) by group; sorted.

    Offsets in topics that there are not any more (``topic_id`` raises UnknownPartition) are left out.
    """
    groups = []
    for group, rows in sorted(committed.items()):
        offsets = []
        for topic, partition, offset in sorted(rows):
            try:
                offsets.append({"topic": topic, "id": topic_id(topic), "partition": partition, "offset": offset})
            except UnknownPartition:
                continue
        groups.append({"group": group, "offsets": offsets})
    return {"format": FORMAT, "version": 1, "groups": groups}


def read(path: Path) -> dict[str, list[GroupPosition]]:
    """The positions of each group in a file; ``-`` is standard input.

    Raises:
        OSError: it cannot be read.
        InvalidRequest: it is no such file; the message says where it is wrong.
    """
    if str(path) == "-":
        content = sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
    else:
        with open_as_owner(path) as file:
            content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise InvalidRequest(f"{path}: larger than {FILE_BYTES_MAX} bytes")
    try:
        contents = msgspec.json.decode(content, type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path}: not what `appliance groups export` prints: {in_words(error)}") from None
    groups = {group.group: group.offsets for group in contents.groups}
    if len(groups) < len(contents.groups):
        raise InvalidRequest(f"{path}: a group is in it twice")
    for group, rows in groups.items():
        if len({(row.topic, row.partition) for row in rows}) < len(rows):
            raise InvalidRequest(f"{path}: a partition is twice in group {group!r}")
    return groups


def check_topics(positions: Mapping[str, Sequence[GroupPosition]], topic_id: Callable[[str], str]) -> None:
    """Check that the topics are those that the offsets were committed in.

    Raises:
        UnknownPartition: there is no topic of that name.
        InvalidRequest: there is another one.
    """
    for topic, id_then in {row.topic: row.id for rows in positions.values() for row in rows}.items():
        if topic_id(topic) != id_then:
            raise InvalidRequest(
                f"topic {topic!r} is another one now, in which these offsets mean nothing; "
                f"`appliance groups reset GROUP --topic {topic} --to TIME` moves a group by time"
            )
