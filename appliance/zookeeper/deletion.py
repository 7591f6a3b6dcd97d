"""Taking a topic out of ZooKeeper: its registration, and the positions that groups have in it.

Both are compared with the topic's id before they are deleted, so the operation may be repeated at any time, by any
broker, also when a later topic has the same name already.
"""

from __future__ import annotations

from ..errors import BadValue, ZooKeeperAway
from . import cluster_identity, paths
from .operations import ATTEMPTS_MAX, Node, Operation, Refused, ask, children, delete, get, list_children


def retire_topic(name: str, topic_id: str) -> Operation[None]:
    """Mark a topic as deleted, then remove what is registered about it, then the positions of all groups in it.

    A crash between two of these steps leaves a mark: every broker that has the topic deletes it, and repeats this.

    Raises:
        ZooKeeperAway: try again.
    """
    yield from cluster_identity.mark_deleted(topic_id, name)
    yield from _unregister(name, topic_id)
    yield from _forget_positions(name, topic_id)


def _unregister(name: str, topic_id: str) -> Operation[None]:
    path = paths.topic(name)
    for _ in range(ATTEMPTS_MAX):
        (node,) = yield [get(path)]
        if not isinstance(node, Node):
            return
        try:
            if paths.decode_topic(path, node.value).id != topic_id:
                return
        except BadValue:
            return  # somebody else's, and only a person can say what it means
        (reply,) = yield [delete(path, node.version)]
        if reply is not Refused.BAD_VERSION:
            return
    raise ZooKeeperAway(f"topic {name!r} keeps changing; try again")


def _forget_positions(name: str, topic_id: str) -> Operation[None]:
    groups = yield from list_children(paths.CONSUMERS)
    parents = [paths.offsets(paths.decode_name(group), name) for group in groups]
    listed = yield from ask([children(parent) for parent in parents])
    found = {parent: names for parent, names in zip(parents, listed, strict=True) if not isinstance(names, Refused)}
    positions = [f"{parent}/{number}" for parent, numbers in found.items() for number in sorted(numbers)]
    nodes = yield from ask([get(path) for path in positions])
    yield from ask(
        [
            delete(path, node.version)
            for path, node in zip(positions, nodes, strict=True)
            if isinstance(node, Node) and _is_of(path, node.value, topic_id)
        ]
    )
    yield from ask([delete(parent) for parent in found])  # refused where a later topic has positions


def _is_of(path: str, value: bytes, topic_id: str) -> bool:
    try:
        return paths.decode_offset(path, value).topic_id == topic_id
    except BadValue:
        return False
