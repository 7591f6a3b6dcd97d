"""Defines the nodes in ZooKeeper of brokers, topics, and groups: paths and values.  Bytes in, values out; no I/O::

    path                                            kind        value
    /brokers/ids/<id>                               ephemeral   BrokerInfo, JSON: listeners, and partitions stored there
    /brokers/topics/<topic>                         persistent  TopicInfo, JSON: partition -> brokers, settings, id
    /consumers/<group>/ids/<consumer>               ephemeral   Subscription, the paper's text (below)
    /consumers/<group>/owners/<topic>/<partition>   ephemeral   <consumer>-<stream number>
    /consumers/<group>/offsets/<topic>/<partition>  persistent  offset of the next message (below)

Other nodes: the coordinators of groups in ``claims.py``, transactions in ``transaction_nodes.py``, the cluster's id and
deleted topics in ``cluster_identity.py``, users, quotas and access rules in ``security_nodes.py``.

A subscription is one of these:

- ``{"topic": streams, ...}``, the paper's;
- ``*<streams>*<pattern>``: every topic whose whole name matches the pattern (``patterns.py``);
- ``!<streams>!<pattern>``: every topic whose name does not match;
- ``{"protocol": "kafka", "client": ..., "host": ..., "topics": {...}}``: a member that came through the Kafka listener.

An offset is ``{"offset": n, "topic_id": "...", "metadata": "..."}``.  ``topic_id`` is the id of its topic, so that a
topic created again under the same name is read from its beginning.  ``metadata`` is Kafka's commit metadata, if any.
The paper's plain number is read, too, as an offset in the present topic of that name.

Paths are built from checked names only.  A topic name that :mod:`appliance.names` does not allow raises
:class:`~.errors.InvalidTopic`.  Group and consumer names may hold any characters, so they are percent-encoded.  The
empty name of a group, which Kafka allows for committed offsets, is a single "%".  A value that cannot be read was
written by somebody else; it raises :class:`BadValue` with its path.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from ..catalog import check_id
from ..errors import BadValue, InvalidRequest
from ..names import OFFSET_MAX, TopicPartition, check_topic
from ..wire.bounds import STREAMS_MAX
from . import patterns

BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"
CONSUMERS = "/consumers"
GROUP_NAME_CHARACTERS_MAX = 1_000
NO_NAME = "%"
"""The path component of the empty name; encoded names have two digits behind each percent sign."""


class BrokerInfo(msgspec.Struct, frozen=True):
    """A live broker.  ``native`` and ``kafka``: its advertised listeners as text, "" without any.

    ``instance`` names the data directory.  A restarted broker recognises its earlier registration by it, and it
    distinguishes two brokers with one id.
    """

    instance: str
    host: str = ""
    native: str = ""
    kafka: str = ""
    partitions: dict[str, list[int]] = {}


class TopicInfo(msgspec.Struct, frozen=True):
    """A topic: for each partition its brokers (the first one leads), and its own settings as they are now.

    ``id`` is the topic's identity (see ``catalog``).  A topic that is deleted and created again has another id.
    """

    partitions: dict[int, list[int]]
    settings: dict[str, str] = {}
    id: str = ""


class Subscription(NamedTuple):
    """The topics of one group member: either ``topics`` (name -> number of streams) or a ``pattern``."""

    topics: dict[str, int] = {}  # noqa: RUF012 - never mutated
    pattern: str = ""
    streams: int = 1  # per matching topic, with a pattern
    exclude: bool = False  # subscribe to the topics that do not match the pattern
    protocol: str = "native"
    client: str = ""
    host: str = ""

    def streams_of(self, topic: str) -> int:
        """How many streams this member opens on ``topic``; 0 when it does not subscribe to it."""
        if not self.pattern:
            return self.topics.get(topic, 0)
        return self.streams if patterns.matches(self.pattern, topic) != self.exclude else 0


def broker(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def topic(name: str) -> str:
    check_topic(name)
    return f"{TOPICS}/{name}"


def group(name: str) -> str:
    return f"{CONSUMERS}/{encode_name(name)}"


def snapshot(group_name: str) -> str:
    """What the coordinator has stored of the group's members (``groups.snapshots``)."""
    return f"{group(group_name)}/snapshot"


def consumers(group_name: str) -> str:
    return f"{group(group_name)}/ids"


def consumer(group_name: str, consumer_id: str) -> str:
    return f"{group(group_name)}/ids/{encode_name(consumer_id)}"


def owners(group_name: str, topic_name: str | None = None) -> str:
    return _topic_path(f"{group(group_name)}/owners", topic_name)


def owner(group_name: str, part: TopicPartition) -> str:
    return f"{owners(group_name, part.topic)}/{part.partition}"


def offsets(group_name: str, topic_name: str | None = None) -> str:
    return _topic_path(f"{group(group_name)}/offsets", topic_name)


def offset(group_name: str, part: TopicPartition) -> str:
    return offset_below(group(group_name), part)


def offset_below(group_path: str, part: TopicPartition) -> str:
    """The same below the path of the group's node."""
    check_topic(part.topic)
    return f"{group_path}/offsets/{part.topic}/{part.partition}"


def _topic_path(above: str, topic_name: str | None) -> str:
    if topic_name is None:
        return above
    check_topic(topic_name)
    return f"{above}/{topic_name}"


def encode_name(name: str) -> str:
    """A group's or consumer's name as one path component.

    Raises:
        InvalidRequest: the name is longer than GROUP_NAME_CHARACTERS_MAX.
    """
    if len(name) > GROUP_NAME_CHARACTERS_MAX:
        raise InvalidRequest(
            f"a group or consumer name has at most {GROUP_NAME_CHARACTERS_MAX} characters, not {len(name)}"
        )
    if not name:
        return NO_NAME
    # ZooKeeper refuses "." and ".." as components.
    encoded = quote(name, safe="", errors="surrogatepass")
    return encoded.replace(".", "%2E") if encoded in (".", "..") else encoded


def decode_name(component: str) -> str:
    """
    Raises:
        BadValue: it is no name that :func:`encode_name` has made.
    """
    try:
        name = "" if component == NO_NAME else unquote(component, errors="surrogatepass")
        if encode_name(name) == component:
            return name
    except (UnicodeError, InvalidRequest):
        pass
    raise BadValue(f"{component!r} in ZooKeeper is no name of a group or consumer")


def decode_names(components: Iterable[str]) -> list[str]:
    """The names, sorted; nodes that others have made, of whatever name, are left out."""
    names = []
    for component in components:
        with suppress(BadValue):
            names.append(decode_name(component))
    return sorted(names)


def encode_broker(info: BrokerInfo) -> bytes:
    return msgspec.json.encode(info)


def decode_broker(path: str, value: bytes) -> BrokerInfo:
    try:
        return msgspec.json.decode(value, type=BrokerInfo)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _unreadable(path, value, error) from None


def encode_topic(info: TopicInfo) -> bytes:
    return msgspec.json.encode(info)


def decode_topic(path: str, value: bytes) -> TopicInfo:
    try:
        info = msgspec.json.decode(value, type=TopicInfo)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _unreadable(path, value, error) from None
    if sorted(info.partitions) != list(range(len(info.partitions))) or not all(info.partitions.values()):
        raise _unreadable(path, value, "partitions must be numbered from 0, each with a broker")
    try:
        check_id(info.id)
    except ValueError as error:
        raise _unreadable(path, value, error) from None
    return info


def encode_subscription(subscription: Subscription) -> bytes:
    if subscription.protocol != "native":
        kept = {"protocol": subscription.protocol, "client": subscription.client, "host": subscription.host}
        return json.dumps({**kept, "topics": subscription.topics}).encode()
    if subscription.pattern:
        mark = "!" if subscription.exclude else "*"
        return f"{mark}{subscription.streams}{mark}{subscription.pattern}".encode()
    return json.dumps(subscription.topics).encode()


def decode_subscription(path: str, value: bytes) -> Subscription:
    try:
        text = value.decode()
        if text[:1] in ("*", "!"):
            count, pattern = text[1:].split(text[0], 1)
            patterns.parse(pattern)
            return Subscription(pattern=pattern, streams=_streams(int(count)), exclude=text[0] == "!")
        fields = msgspec.json.decode(value, type=dict[str, int | str | dict[str, int]])
        protocol = fields.get("protocol", "")
        topics = fields.get("topics", {}) if protocol and isinstance(protocol, str) else fields
        checked = msgspec.convert(topics, dict[str, int])
        for count_streams in checked.values():
            _streams(count_streams)
        if topics is fields:
            return Subscription(checked)
        return Subscription(
            checked,
            protocol=str(protocol),
            client=str(fields.get("client", "")),
            host=str(fields.get("host", "")),
        )
    except (ValueError, BadValue) as error:  # msgspec's errors and UnicodeDecodeError are ValueErrors
        raise _unreadable(path, value, error) from None


class CommittedOffset(NamedTuple):
    """The offset of the next message to read, with the fields that Kafka's clients may store with it.

    ``offset``: negative ones, which Kafka's clients may store, too, mean nothing to native groups.
    ``topic_id``: the id of its topic; "" for a plain number, which holds for any topic of that name.
    ``leader_epoch``: of the last message read; -1 when it is not known.
    """

    offset: int
    metadata: str = ""
    topic_id: str = ""
    leader_epoch: int = -1


class _Offset(msgspec.Struct, omit_defaults=True):
    offset: int
    metadata: str = ""
    topic_id: str = ""
    leader_epoch: int = -1


def encode_offset(committed: CommittedOffset) -> bytes:
    if committed == CommittedOffset(committed.offset):
        return b"%d" % committed.offset
    return msgspec.json.encode(_Offset(*committed))


_OFFSETS: Final = msgspec.json.Decoder(_Offset)


def parse_offset(value: bytes) -> CommittedOffset:
    """Raises ValueError, of which msgspec's errors and UnicodeDecodeError are some."""
    stored = _OFFSETS.decode(value) if value[:1] == b"{" else _Offset(int(value))
    if not -OFFSET_MAX <= stored.offset <= OFFSET_MAX:
        raise ValueError("no offset of 64 bits")
    return CommittedOffset(stored.offset, stored.metadata, stored.topic_id, stored.leader_epoch)


def decode_offset(path: str, value: bytes) -> CommittedOffset:
    try:
        return parse_offset(value)
    except ValueError as error:
        raise _unreadable(path, value, error) from None


def encode_owner(consumer_id: str, stream: int) -> bytes:
    return f"{consumer_id}-{stream}".encode("utf-8", "surrogatepass")


def decode_owner(path: str, value: bytes) -> tuple[str, int]:
    try:
        consumer_id, stream = value.decode("utf-8", "surrogatepass").rsplit("-", 1)
        return consumer_id, _check_least(0, int(stream))
    except ValueError as error:
        raise _unreadable(path, value, error) from None


def _streams(count: int) -> int:
    if count > STREAMS_MAX:
        raise ValueError(f"{count} streams: {STREAMS_MAX} at most")
    return _check_least(0, count)


def _check_least(least: int, value: int) -> int:
    if value < least:
        raise ValueError(f"{value} is less than {least}")
    return value


def _unreadable(path: str, value: bytes, why: object) -> BadValue:
    shown = value[:80] + (b"..." if len(value) > 80 else b"")
    return BadValue(f"ZooKeeper node {path} holds {shown!r}, which cannot be read: {why}; correct or delete the node")
