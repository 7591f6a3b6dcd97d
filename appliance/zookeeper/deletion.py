"""Removes a topic from ZooKeeper: its registration, and the groups' committed offsets in it.

Both are deleted only if they have the topic's id.  So any broker may repeat the operation at any time, even when a
later topic has the same name.

The offsets of a topic in the trash are kept beside the mark of its deletion (``cluster_identity.py``)::

    /brokers/deleted/<id>/<group>/<partition>    persistent    the committed offset
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final

from ..errors import BadValue, ZooKeeperAway
from . import cluster_identity, paths
from .operations import (
    ATTEMPTS_MAX,
    Node,
    Operation,
    Refused,
    ask,
    children,
    create,
    delete,
    get,
    list_children,
    multi,
    remove_tree,
    set_value,
)

NO_TOPIC: Final = "=changed"
"""The name of a node beside those of topics, which have no such name."""


def retire_topic(name: str, topic_id: str, *, trash: bool = False) -> Operation[None]:
    """Mark a topic as deleted, then remove its registration, then the committed offsets of all groups in it.

    ``trash``: the offsets are kept beside the mark.

    After a crash between two of these steps the mark is there.  Every broker that has the topic deletes it and repeats
    this operation.

    Raises:
        ZooKeeperAway: try again.
    """
    yield from cluster_identity.mark_deleted(topic_id, name)
    yield from _unregister(name, topic_id)
    yield from _forget_offsets(name, topic_id, trash)


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


def _forget_offsets(name: str, topic_id: str, trash: bool) -> Operation[None]:
    parents, offsets = yield from _offsets_in(name)
    gone = [(path, node) for path, node in offsets.items() if _is_of(path, node.value, topic_id)]
    if trash:
        yield from _store({_kept_path(topic_id, path): node.value for path, node in gone})
    yield from ask([delete(path, node.version) for path, node in gone])
    replies = yield from ask([delete(parent) for parent in parents])
    # refused where a later topic has committed offsets
    stay = [parent for parent, reply in zip(parents, replies, strict=True) if reply is Refused.NOT_EMPTY]
    yield from _mark_changed([parent.rpartition("/")[0] for parent in stay])


def _mark_changed(above: Collection[str]) -> Operation[None]:
    """Change the stamps (``claims.Stored``) of the groups with these ``offsets`` nodes, once the change is done.

    Offsets below a topic's node that stays, or was there before, are not to be seen in the stamp.
    """
    marks = [f"{path}/{NO_TOPIC}" for path in above]
    yield from ask([multi([create(mark), delete(mark)]) for mark in marks])


def _offsets_in(name: str) -> Operation[tuple[list[str], dict[str, Node]]]:
    """The committed offsets of all groups in topics of this name: the nodes above them, and they by their paths."""
    groups = yield from list_children(paths.CONSUMERS)
    parents = [paths.offsets(group, name) for group in paths.decode_names(groups)]
    listed = yield from ask([children(parent) for parent in parents])
    numbers_below = {
        parent: names for parent, names in zip(parents, listed, strict=True) if not isinstance(names, Refused)
    }
    offsets = [f"{parent}/{number}" for parent, numbers in numbers_below.items() for number in sorted(numbers)]
    nodes = yield from ask([get(path) for path in offsets])
    return list(numbers_below), {
        path: node for path, node in zip(offsets, nodes, strict=True) if isinstance(node, Node)
    }


def committed_in(name: str, topic_id: str) -> Operation[dict[tuple[str, int], int]]:
    """The committed offsets in a topic, by group and partition."""
    _, offsets = yield from _offsets_in(name)
    committed = {}
    for path, node in offsets.items():
        group, number = _group_and_number(path)
        if number.isdecimal() and _is_of(path, node.value, topic_id):
            committed[paths.decode_name(group), int(number)] = paths.decode_offset(path, node.value).offset
    return committed


def _kept_path(topic_id: str, path: str) -> str:
    """Where the offset at this path is kept."""
    group, number = _group_and_number(path)
    return f"{_kept(topic_id)}/{group}/{number}"


def _group_and_number(path: str) -> tuple[str, str]:
    """The names of the nodes of group and partition in the path of a committed offset."""
    group, _, _, number = path.removeprefix(f"{paths.CONSUMERS}/").split("/")
    return group, number


def _kept(topic_id: str) -> str:
    """Above the kept offsets of a topic: the mark of its deletion."""
    return f"{cluster_identity.DELETED}/{topic_id}"


def _store(values: dict[str, bytes]) -> Operation[None]:
    """Create nodes, or replace their values."""
    replies = yield from ask([create(path, value) for path, value in values.items()])
    there = [path for path, reply in zip(values, replies, strict=True) if reply is Refused.NODE_EXISTS]
    yield from ask([set_value(path, values[path], -1) for path in there])


def _store_unless_there(values: dict[str, bytes], topic_id: str) -> Operation[None]:
    """Store offsets of a topic where there are none of it; those of other topics of its name are replaced."""
    replies = yield from ask([create(path, value) for path, value in values.items()])
    taken = [path for path, reply in zip(values, replies, strict=True) if reply is Refused.NODE_EXISTS]
    nodes = yield from ask([get(path) for path in taken])
    yield from ask(
        [
            set_value(path, values[path], node.version)
            for path, node in zip(taken, nodes, strict=True)
            if isinstance(node, Node) and not _is_of(path, node.value, topic_id)
        ]
    )


def put_offsets_back(topic_id: str, name: str) -> Operation[dict[str, int]]:
    """Put the kept offsets of a topic in the trash to where groups find them.  Returns how many, by group.

    The topic gets this name, and is not registered yet.  What is found there with its id stays: it was committed later
    than what is kept (accepted before the deletion and stored after it), or put back by an earlier attempt.
    """
    kept = _kept(topic_id)
    groups = yield from list_children(kept)
    listed = yield from ask([children(f"{kept}/{group}") for group in groups])
    kept_offsets = [
        (paths.decode_name(group), number)
        for group, numbers in zip(groups, listed, strict=True)
        if not isinstance(numbers, Refused)
        for number in numbers
    ]
    nodes = yield from ask([get(f"{kept}/{paths.encode_name(group)}/{number}") for group, number in kept_offsets])
    values = {
        (group, number): node.value
        for (group, number), node in zip(kept_offsets, nodes, strict=True)
        if isinstance(node, Node)
    }
    to = {f"{paths.offsets(group, name)}/{number}": value for (group, number), value in values.items()}
    yield from _store_unless_there(to, topic_id)
    counts = Counter(group for group, _ in values)
    yield from _mark_changed([paths.offsets(group) for group in counts])
    return dict(counts)


def forget_deletion(topic_id: str, *, mark: bool) -> Operation[None]:
    """Remove the kept offsets of a topic that has left the trash; with ``mark`` the mark of its deletion, too.

    Without the mark, a broker that was away meanwhile finds nothing changed.  With it, that broker deletes the topic
    under its old name.
    """
    kept = _kept(topic_id)
    for group in (yield from list_children(kept)):
        yield from remove_tree(f"{kept}/{group}")
    if mark:
        yield from ask([delete(kept)])


def _is_of(path: str, value: bytes, topic_id: str) -> bool:
    try:
        return paths.decode_offset(path, value).topic_id == topic_id
    except BadValue:
        return False
