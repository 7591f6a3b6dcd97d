"""Removes a topic from ZooKeeper: its registration, and the groups' committed offsets in it.

Both are deleted only if they have the topic's id.  So any broker may repeat the operation at any time, even when a
later topic has the same name.
"""

from __future__ import annotations

from ..errors import BadValue, ZooKeeperAway
from . import cluster_identity, paths
from .operations import ATTEMPTS_MAX, Node, Operation, Refused, ask, children, delete, get, list_children


def retire_topic(name: str, topic_id: str) -> Operation[None]:
    """Mark a topic as deleted, then remove its registration, then the committed offsets of all groups in it.

    After a crash between two of these steps the mark is there.  Every broker that has the topic deletes it and repeats
    this operation.

    Raises:
        ZooKeeperAway: try again.
    """
    yield from cluster_identity.mark_deleted(topic_id, name)
    yield from _unregister(name, topic_id)
    yield from _forget_offsets(name, topic_id)


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
            return  # written by somebody else: left for a person to correct
        (reply,) = yield [delete(path, node.version)]
        if reply is not Refused.BAD_VERSION:
            return
    raise ZooKeeperAway(f"topic {name!r} keeps changing; try again")


def _forget_offsets(name: str, topic_id: str) -> Operation[None]:
    groups = yield from list_children(paths.CONSUMERS)
    parents = [paths.offsets(paths.decode_name(group), name) for group in groups]
    listed = yield from ask([children(parent) for parent in parents])
    found = {parent: names for parent, names in zip(parents, listed, strict=True) if not isinstance(names, Refused)}
    offsets = [f"{parent}/{number}" for parent, numbers in found.items() for number in sorted(numbers)]
    nodes = yield from ask([get(path) for path in offsets])
    yield from ask(
        [
            delete(path, node.version)
            for path, node in zip(offsets, nodes, strict=True)
            if isinstance(node, Node) and _is_of(path, node.value, topic_id)
        ]
    )
    yield from ask([delete(parent) for parent in found])  # refused where a later topic has committed offsets


def _is_of(path: str, value: bytes, topic_id: str) -> bool:
    try:
        return paths.decode_offset(path, value).topic_id == topic_id
    except BadValue:
        return False
