"""What the coordinator stores of a group, so that its members survive the coordinator: values, and their encoding.

A snapshot has what members were told, in one value, MessagePack: of a group of the classic protocol its last generation
with an assignment, of one of the consumer protocol its epochs, target and owners.  Times are not in it: every session
begins anew when a group is restored.  Waiting requests are not either: clients send them again.

A group whose members have gone has none.
"""

from __future__ import annotations

import msgspec

from ..errors import BadValue
from .assignors import IdAndNumber


class ClassicMember(msgspec.Struct, frozen=True, array_like=True):
    """``protocols``: name and metadata, in the member's order of preference."""

    id: str
    instance: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes


class ClassicSnapshot(msgspec.Struct, frozen=True, array_like=True, tag="classic"):
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: tuple[ClassicMember, ...]


class ConsumerMemberSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """``pattern``: its regular expression, which matched ``matched``; numbers in pairs: since which epoch.

    ``session_ms`` and ``protocols``, as in :class:`ClassicMember`: of a member of the classic protocol, else 0 and ().
    """

    id: str
    instance: str | None
    client_id: str
    client_host: str
    rack: str | None
    rebalance_ms: int
    topics: tuple[str, ...]
    pattern: str
    matched: tuple[str, ...]
    assignor: str
    epoch: int
    previous_epoch: int
    assigned: tuple[tuple[IdAndNumber, int], ...]
    revoking: tuple[tuple[IdAndNumber, int], ...]
    target: tuple[IdAndNumber, ...]
    waits: bool
    session_ms: int = 0
    protocols: tuple[tuple[str, bytes], ...] = ()


class ConsumerSnapshot(msgspec.Struct, frozen=True, array_like=True, tag="consumer"):
    """``names``: name by id of the topics that it knows; ``subscribed``: name, id and partitions at the last target."""

    epoch: int
    assignment_epoch: int
    assignor: str
    names: dict[str, str]
    subscribed: tuple[tuple[str, str, tuple[int, ...]], ...]
    members: tuple[ConsumerMemberSnapshot, ...]


GroupSnapshot = ClassicSnapshot | ConsumerSnapshot
_decoder: msgspec.msgpack.Decoder[GroupSnapshot] = msgspec.msgpack.Decoder(GroupSnapshot)


def encode(snapshot: GroupSnapshot) -> bytes:
    return msgspec.msgpack.encode(snapshot)


def decode(value: bytes) -> GroupSnapshot:
    """Raises BadValue: it is no snapshot."""
    try:
        return _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadValue(f"no snapshot of a group: {error}") from None
