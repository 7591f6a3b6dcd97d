"""Claims the coordination of a group, and writes its committed offsets under that claim: operations, without I/O::

    path                                      kind        value
    /consumers/<group>                        persistent  GroupInfo, JSON; empty while nothing is known
    /consumers/<group>/claim-<epoch>          ephemeral   Claimant, JSON: the coordinator of the group
    /consumers/<group>/offsets/<topic>/<n>    persistent  a committed offset

A claim's epoch is a text that is never used again.  :func:`take` creates the node in one multi with a write to the
group's own node, at the version that was read together with the list of claims.  So when two brokers try at once, one
fails.  A claim by an earlier run of the same data directory is replaced.

Every write of :func:`write`, :func:`expire` and :func:`remove` is a multi that begins with a check of the claim's node.
ZooKeeper carries it out only while that claim exists, so a coordinator that lost its claim or its session cannot write.
Requests of one session are carried out in the order of sending.  A write that was given up therefore comes before all
later ones, or never.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from ..errors import BadValue, InvalidRequest, NotCoordinator, UnknownGroup, ZooKeeperAway
from ..names import TopicPartition, is_topic
from . import paths
from .group_registry import GroupRegistry
from .offset_registry import StoredOffset, read_offsets
from .operations import (
    ATTEMPTS_MAX,
    REQUEST_BYTES_MAX,
    Failed,
    Node,
    Operation,
    Refused,
    Request,
    ask,
    check,
    children,
    create,
    delete,
    exists,
    get,
    list_children,
    multi,
    set_value,
    sync,
)
from .paths import CommittedOffset

CLAIM: Final = "claim-"
PARTS_MAX: Final = 400
"""Most committed offsets in one multi."""
PARTS_BYTES_MAX: Final = REQUEST_BYTES_MAX // 2
PATH_BYTES_MAX: Final = 3_500
"""Most bytes of a committed offset's path.  Percent-encoding makes up to twelve bytes of a group name's character."""


class GroupInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of a group that outlives its members.

    ``active_ms``: when the group last had members, ms since 1970; 0 = never.
    """

    protocol_type: str = ""
    active_ms: int = 0


class Claimant(msgspec.Struct, frozen=True):
    """The broker that makes a claim.  ``instance`` names its data directory, as in the broker's registration."""

    broker: int
    instance: str


class Claimed(NamedTuple):
    """A claim of ours: its own node, and value and version of the node that is claimed.  Each claim adds 1 to it."""

    path: str
    value: bytes
    version: int


class Held(NamedTuple):
    """A claim of ours: its node, the group's GroupInfo, and the size in bytes of each committed offset's value."""

    path: str
    info: GroupInfo
    sizes: dict[TopicPartition, int]

    @property
    def group_path(self) -> str:
        return self.path.rpartition("/")[0]


class Seen(NamedTuple):
    """A group, read without a claim.

    ``members``: whether it has any, of either listener.  ``nodes``: those of its committed offsets, without values.
    """

    info: GroupInfo
    members: bool
    nodes: dict[TopicPartition, Node]


def decode_info(value: bytes) -> GroupInfo:
    """Decodes a group's node.  One that cannot be read counts as empty; the next coordinator replaces it."""
    try:
        return msgspec.json.decode(value, type=GroupInfo) if value else GroupInfo()
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return GroupInfo()


def take(group: str, claimant: Claimant, epoch: str, *, make: bool) -> Operation[Held | None]:
    """Claim a group.  One that does not exist is created; with ``make`` false the result is None instead.

    Raises:
        ZooKeeperAway: another coordinator has it, or it keeps changing.
    """
    claimed = yield from claim(paths.group(group), claimant, epoch, f"group {group!r}", make=make)
    if claimed is None:
        return None
    return Held(claimed.path, decode_info(claimed.value), (yield from _sizes(group)))


def claim(path: str, claimant: Claimant, epoch: str, what: str, *, make: bool) -> Operation[Claimed | None]:
    """Claim what the node ``path`` stands for, ``what`` in texts; see :func:`take`."""
    own = f"{path}/{CLAIM}{epoch}"
    for _ in range(ATTEMPTS_MAX):
        node, names = yield [get(path), children(path)]
        if isinstance(node, Refused) or isinstance(names, Refused):
            if not make:
                return None
            yield from ask([create(path)])
            continue
        others = [f"{path}/{name}" for name in names if name.startswith(CLAIM)]
        if own in others:  # created already: the reply was lost
            return Claimed(own, node.value, node.version)
        leftovers = yield from _our_leftovers(what, others, claimant)
        parts = [set_value(path, node.value, node.version), *(delete(left, 0) for left in leftovers)]
        (reply,) = yield [multi([*parts, create(own, msgspec.json.encode(claimant), ephemeral=True)])]
        if not isinstance(reply, Failed):
            return Claimed(own, node.value, node.version + 1)
    raise ZooKeeperAway(f"the coordinator of {what} keeps changing; try again")


def _our_leftovers(what: str, others: list[str], claimant: Claimant) -> Operation[list[str]]:
    leftovers = []
    for path, node in zip(others, (yield from ask([get(path) for path in others])), strict=True):
        if not isinstance(node, Node):
            continue
        try:
            holder = msgspec.json.decode(node.value, type=Claimant)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise BadValue(f"ZooKeeper node {path} is no claim of a coordinator: delete it") from None
        if holder != claimant:
            raise ZooKeeperAway(f"broker {holder.broker} still coordinates {what}; try again")
        leftovers.append(path)
    return leftovers


def _sizes(group: str) -> Operation[dict[TopicPartition, int]]:
    nodes = yield from offset_nodes(group)
    return {part: node.size for part, node in nodes.items()}


def offset_nodes(group: str) -> Operation[dict[TopicPartition, Node]]:
    """The nodes of all committed offsets of a group, without their values."""
    topics = [name for name in (yield from list_children(paths.offsets(group))) if is_topic(name)]
    listed = yield from ask([children(paths.offsets(group, topic)) for topic in topics])
    parts = [
        TopicPartition(topic, int(name))
        for topic, names in zip(topics, listed, strict=True)
        if not isinstance(names, Refused)
        for name in names
        if name.isdecimal()
    ]
    nodes = yield from ask([exists(paths.offset(group, part)) for part in parts])
    return {part: node for part, node in zip(parts, nodes, strict=True) if isinstance(node, Node)}


def read(group: str, parts: Collection[TopicPartition] | None) -> Operation[dict[TopicPartition, StoredOffset]]:
    """The committed offsets of these partitions, or all of the group.  Needs no claim.

    The ``sync`` makes all earlier writes visible, whichever node of the ensemble answers.
    """
    yield [sync()]
    return (yield from read_offsets(group, parts))


def write(
    group: str,
    held: Held,
    changes: Mapping[TopicPartition, CommittedOffset | None],
    info: GroupInfo | None = None,
) -> Operation[None]:
    """Store committed offsets, delete those that are None, store ``info`` if given.  Updates ``held.sizes``.

    Raises:
        NotCoordinator: the claim is gone.  Of a large write, earlier parts may have been carried out.
    """
    if info is not None:
        (reply,) = yield [multi([check(held.path, -1), set_value(paths.group(group), msgspec.json.encode(info), -1)])]
        if isinstance(reply, Failed):
            raise _lost(group)
    values = {part: None if to is None else paths.encode_offset(to) for part, to in sorted(changes.items())}
    for some in _chunks(values):
        for _ in range(ATTEMPTS_MAX):
            (reply,) = yield [multi([check(held.path, -1), *offset_requests(group, held, some)])]
            if not isinstance(reply, Failed):
                break
            if reply.part_index == 0:
                raise _lost(group)
            yield from read_again(group, held, some)
        else:
            raise ZooKeeperAway(f"offsets of group {group!r} keep changing; try again")
        note_sizes(held, some)


def note_sizes(held: Held, values: Mapping[TopicPartition, bytes | None]) -> None:
    """These offsets are stored, or deleted."""
    for part, value in values.items():
        if value is None:
            held.sizes.pop(part, None)
        else:
            held.sizes[part] = len(value)


def _lost(group: str) -> NotCoordinator:
    return NotCoordinator(f"this broker does not coordinate group {group!r} any more; try again")


def offset_requests(group: str, held: Held, values: Mapping[TopicPartition, bytes | None]) -> Iterator[Request]:
    """The parts of a multi that store these offsets, or delete those that are None, by what is known of them."""
    for part, value in values.items():
        path, there = paths.offset(group, part), part in held.sizes
        if value is not None:
            yield set_value(path, value, -1) if there else create(path, value)
        elif there:
            yield delete(path)


def read_again(group: str, held: Held, values: Mapping[TopicPartition, bytes | None]) -> Operation[None]:
    """Correct ``held.sizes`` after a write that found other nodes than expected; create missing parents."""
    topics = {part.topic for part, value in values.items() if value is not None}
    yield from ask([create(paths.offsets(group, topic)) for topic in sorted(topics)])
    nodes = yield from ask([exists(paths.offset(group, part)) for part in values])
    for part, node in zip(values, nodes, strict=True):
        if isinstance(node, Node):
            held.sizes.setdefault(part, node.size)
        else:
            held.sizes.pop(part, None)


def _chunks(values: Mapping[TopicPartition, bytes | None]) -> Iterator[dict[TopicPartition, bytes | None]]:
    some: dict[TopicPartition, bytes | None] = {}
    left = PARTS_BYTES_MAX
    for part, value in values.items():
        left -= PATH_BYTES_MAX + len(value or b"")
        if some and (left < 0 or len(some) == PARTS_MAX):
            yield some
            some, left = {}, PARTS_BYTES_MAX
        some[part] = value
    if some:
        yield some


def expire(group: str, held: Held, old: Mapping[TopicPartition, Node]) -> Operation[int]:
    """Delete committed offsets that have not changed since they were read.  Returns how many.

    Raises:
        NotCoordinator: the claim is gone.
    """
    gone = 0
    for part, node in sorted(old.items()):
        (reply,) = yield [multi([check(held.path, -1), delete(paths.offset(group, part), node.version)])]
        if isinstance(reply, Failed) and reply.part_index == 0:
            raise _lost(group)
        if not isinstance(reply, Failed):
            held.sizes.pop(part, None)
            gone += 1
    return gone


def release(held: Held) -> Operation[None]:
    """Delete the claim.  The committed offsets stay."""
    yield [delete(held.path)]


def withdraw(group: str, claimant: Claimant) -> Operation[None]:
    """Delete every claim of this broker on the group, also one whose creation was never answered."""
    path = paths.group(group)
    theirs = [f"{path}/{name}" for name in (yield from list_children(path)) if name.startswith(CLAIM)]
    value = msgspec.json.encode(claimant)
    for own, node in zip(theirs, (yield from ask([get(path) for path in theirs])), strict=True):
        if isinstance(node, Node) and node.value == value:
            yield [delete(own)]


def vacate(group: str, held: Held) -> Operation[None]:
    """Delete the claim and the group's empty nodes.  Nothing stays of a group without offsets and members."""
    yield from release(held)
    yield from GroupRegistry().prune(group)


def remove(group: str, held: Held) -> Operation[None]:
    """Delete a group with all its committed offsets, then the claim.

    Raises:
        InvalidRequest: it has live members; stop them first.
        NotCoordinator: the claim is gone.
    """
    members = yield from list_children(paths.consumers(group))
    if members:
        raise InvalidRequest(f"group {group!r} has {len(members)} live members; stop them first")
    held.sizes.update((yield from _sizes(group)))
    yield from write(group, held, dict.fromkeys(held.sizes))
    yield from vacate(group, held)


def look(group: str) -> Operation[Seen]:
    """Read a group.

    Raises:
        UnknownGroup: there is no such group.
    """
    node, members = yield [get(paths.group(group)), children(paths.consumers(group))]
    if isinstance(node, Refused):
        raise UnknownGroup(f"there is no group {group!r}")
    found = yield from offset_nodes(group)
    return Seen(decode_info(node.value), not isinstance(members, Refused) and bool(members), found)
