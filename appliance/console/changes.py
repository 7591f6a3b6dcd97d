"""Carries out what a visitor who is logged in may change: produce a message, move the offsets of a group.

The rights are those of the native listener's requests, checked here, since the console's own connection may do
everything.  Each change is written to the audit log with the visitor's name.
"""

from __future__ import annotations

import contextlib
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from ..client import EARLIEST, LATEST, Producer
from ..client.cluster_client import Cluster
from ..errors import InvalidRequest, UnknownGroup
from ..names import GROUP_CHARACTERS_MAX, TOPIC_PATTERN
from ..security.acls import Operation, ResourceType
from ..security.audit_log import Audit
from .administration import check_typed
from .visitors import Visitor

CLIENT_NAME: Final = "appliance-console"
REQUEST_MS_MAX: Final = 5_000
VALUE_CHARACTERS_MAX: Final = 1024 * 1024
MessageTopic = Annotated[str, Meta(pattern=TOPIC_PATTERN)]
PartitionNumber = Annotated[int, Meta(ge=0, le=999_999)]


class NewMessage(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    topic: MessageTopic
    partition: PartitionNumber | None = None
    key: Annotated[str, Meta(max_length=65_536)] | None = None
    value: Annotated[str, Meta(max_length=VALUE_CHARACTERS_MAX)]
    headers: Annotated[
        list[tuple[Annotated[str, Meta(max_length=1_000)], Annotated[str, Meta(max_length=10_000)]]],
        Meta(max_length=100),
    ] = []


class NewOffsets(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``to``: the beginning, the end, or with ``time_ms`` the first message of that time or later.

    ``confirm``: the name of the group, as the visitor has typed it.
    """

    group: Annotated[str, Meta(min_length=1, max_length=GROUP_CHARACTERS_MAX)]
    confirm: str
    topic: MessageTopic
    to: Literal["earliest", "latest", "time"]
    time_ms: Annotated[int, Meta(ge=0, le=2**62)] = 0


def produce(new_message: NewMessage, address: str, visitor: Visitor, audit: Audit) -> dict[str, Any]:
    """Produce one message, and wait until it is on the disk.

    Raises:
        NotPermitted: without the right to write.
        ApplianceError: it may have been written only if the error is retriable.
    """
    visitor.check_right(Operation.WRITE, ResourceType.TOPIC, new_message.topic, audit=audit, what="produce")
    with contextlib.closing(_cluster(address)) as cluster:  # a topic is not created by a mistyped name
        cluster.refresh([new_message.topic])
        cluster.topic(new_message.topic)
    key = None if new_message.key is None else new_message.key.encode()
    headers = tuple((name, value.encode()) for name, value in new_message.headers)
    with Producer(
        address, client_name=CLIENT_NAME, request_timeout_ms=REQUEST_MS_MAX, delivery_timeout_ms=REQUEST_MS_MAX
    ) as producer:
        value = new_message.value.encode()
        delivery = producer.send(new_message.topic, value, key=key, partition=new_message.partition, headers=headers)
        sent = delivery.result()
    audit.changed(
        visitor.access.principal,
        visitor.peer,
        "produce",
        topic=sent.topic,
        partition=sent.partition,
        offset=sent.offset,
    )
    return {"topic": sent.topic, "partition": sent.partition, "offset": sent.offset}


def move_offsets(new_offsets: NewOffsets, address: str, visitor: Visitor, audit: Audit) -> dict[str, Any]:
    """Move the committed offsets of a group without members in a topic.

    Raises:
        NotPermitted: without the right to read with the group, or to read the topic.
        InvalidRequest: the group has members, or its name was not typed.
        UnknownGroup, UnknownPartition: see the message.
    """
    visitor.check_right(Operation.READ, ResourceType.GROUP, new_offsets.group, audit=audit, what="move offsets")
    visitor.check_right(Operation.READ, ResourceType.TOPIC, new_offsets.topic, audit=audit, what="move offsets")
    check_typed(new_offsets.confirm, new_offsets.group)
    whens = {"earliest": EARLIEST, "latest": LATEST, "time": new_offsets.time_ms}
    with contextlib.closing(_cluster(address)) as cluster:
        groups = {row["group"]: row for row in cluster.admin("groups", {})}
        if new_offsets.group not in groups:
            raise UnknownGroup(f"there is no group {new_offsets.group!r}")
        if groups[new_offsets.group]["members"]:
            raise InvalidRequest(
                f"group {new_offsets.group!r} has {groups[new_offsets.group]['members']} members: stop them first"
            )
        cluster.refresh([new_offsets.topic])
        count = len(cluster.topic(new_offsets.topic).leaders)
        offsets = cluster.offsets({(new_offsets.topic, partition): whens[new_offsets.to] for partition in range(count)})
        rows = [[*part, offset] for part, offset in sorted(offsets.items())]
        cluster.admin("commit", {"group": new_offsets.group, "offsets": rows})
    for topic, partition, offset in rows:
        place = {"group": new_offsets.group, "topic": topic, "partition": partition, "offset": offset}
        audit.changed(visitor.access.principal, visitor.peer, "move offsets", **place)
    return {"partitions": len(rows)}


def _cluster(address: str) -> Cluster:
    return Cluster(address, client_name=CLIENT_NAME, request_timeout_ms=REQUEST_MS_MAX)
