"""Writes the ephemeral nodes of native groups' members and owners under the claim on their group: as operations.

Each write is a multi that begins with a check of the claim's node, so a coordinator that has lost its claim or its
session changes nothing any more (``claims.py``).  The holder of the claim is the only writer.  So a node that stands
where it writes was left by an earlier session of its own or by the coordinator before, and is replaced.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from ..errors import NotCoordinator, ZooKeeperAway
from ..names import TopicPartition
from .group_registry import GroupRegistry
from .operations import (
    ATTEMPTS_MAX,
    REQUEST_BYTES_MAX,
    Failed,
    Node,
    Operation,
    Request,
    ask,
    check_version,
    create,
    delete,
    get,
    multi,
    sync,
)
from .paths import Subscription

PARTS_MAX: Final = 400
"""Most nodes that one multi replaces."""
BYTES_MAX: Final = REQUEST_BYTES_MAX // 2
NODE_BYTES: Final = 256
"""Bytes of the two requests that replace a node, besides its value and twice its path, rounded up."""


class Registered(NamedTuple):
    """What is registered of a native group: its members, and the partitions that they own with their streams."""

    members: dict[str, Subscription]
    owners: dict[TopicPartition, tuple[str, int]]


def read(group: str) -> Operation[Registered]:
    """The members and owners that the coordinator before, or an earlier life of this one, has left."""
    registry = GroupRegistry()
    yield [sync()]
    members = {
        member: subscription
        for member, subscription in (yield from registry.members(group)).items()
        if subscription.protocol == "native"
    }
    owners = (yield from registry.owners(group)) if members else {}
    return Registered(
        members, {part: (owner.member, owner.stream) for part, owner in owners.items() if owner.member in members}
    )


def put(claim: str, nodes: Mapping[str, bytes], session_id: int) -> Operation[None]:
    """Have these ephemeral nodes in this session.

    Args:
        claim: the path of the claim's node.

    Raises:
        NotCoordinator: the claim is gone.  Of many nodes, some may have been written.
    """
    for some in _chunks(nodes):
        for _ in range(ATTEMPTS_MAX):
            present = yield from ask([get(path) for path in some])
            parts: list[Request] = []
            for (path, value), node in zip(some.items(), present, strict=True):
                if isinstance(node, Node):
                    if node.owner == session_id and node.value == value:
                        continue
                    parts.append(delete(path, node.version))
                parts.append(create(path, value, ephemeral=True))
            if (yield from _under(claim, parts)):
                break
            yield from ask([create(above) for above in sorted({path.rpartition("/")[0] for path in some})])
        else:
            raise ZooKeeperAway(f"nodes like {next(iter(some))} keep changing; try again")


def remove(claim: str, nodes: Collection[str]) -> Operation[None]:
    """Delete these nodes, of whatever session.

    Raises:
        NotCoordinator: the claim is gone.  Of many nodes, some may have been deleted.
    """
    paths = list(nodes)
    for start in range(0, len(paths), PARTS_MAX):
        some = paths[start : start + PARTS_MAX]
        for _ in range(ATTEMPTS_MAX):
            present = yield from ask([get(path) for path in some])
            parts = [
                delete(path, node.version) for path, node in zip(some, present, strict=True) if isinstance(node, Node)
            ]
            if (yield from _under(claim, parts)):
                break
        else:
            raise ZooKeeperAway(f"nodes like {some[0]} keep changing; try again")


def _under(claim: str, parts: list[Request]) -> Operation[bool]:
    """Carry these out while the claim exists; False if a node is not as expected."""
    if not parts:
        return True
    (reply,) = yield [multi([check_version(claim, -1), *parts])]
    if not isinstance(reply, Failed):
        return True
    if reply.part_index == 0:
        raise NotCoordinator("this broker does not coordinate the group any more; try again")
    return False


def _chunks(nodes: Mapping[str, bytes]) -> Iterator[dict[str, bytes]]:
    some: dict[str, bytes] = {}
    room = BYTES_MAX
    for path, value in nodes.items():
        room -= NODE_BYTES + 2 * len(path) + len(value)
        if some and (room < 0 or len(some) == PARTS_MAX):
            yield some
            some, room = {}, BYTES_MAX
        some[path] = value
    if some:
        yield some
