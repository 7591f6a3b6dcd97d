"""Stores the cluster's id, and marks of deleted topics, which distinguish a deletion from lost data::

    path                       kind         value
    /cluster/id                persistent   text, chosen once by the first broker
    /brokers/deleted/<id>      persistent   name of the topic that had this id; offsets below: see ``deletion.py``

A topic that is missing from ``/brokers/topics`` was deleted while a broker was away, or ZooKeeper lost its data.  A
broker may delete its logs in the first case only.  So a deletion first stores a mark under the topic's id (see
:class:`~.paths.TopicInfo`).  A topic that is missing without a mark is registered again by any broker that knows it.

Marks are dropped after MARK_MS.  A broker that was away for longer brings its topics back, and a person can delete them
again.  The opposite mistake could not be undone.
"""

from __future__ import annotations

from typing import Final

from ..errors import ZooKeeperAway
from .operations import ATTEMPTS_MAX, Node, Operation, Refused, ask, create, exists, get, read_children, remove_tree

CLUSTER_ID: Final = "/cluster/id"
DELETED: Final = "/brokers/deleted"
MARK_MS: Final = 90 * 86_400_000


def cluster_id(own: str) -> Operation[str]:
    """Returns the cluster's id.  Stores ``own`` as the id if there is none yet."""
    for _ in range(ATTEMPTS_MAX):
        (node,) = yield [get(CLUSTER_ID)]
        if isinstance(node, Node):
            return node.value.decode("utf-8", "replace")
        (reply,) = yield from ask([create(CLUSTER_ID, own.encode())])
        if not isinstance(reply, Refused):
            return own
    raise ZooKeeperAway(f"{CLUSTER_ID} keeps changing; try again")


def stored_cluster_id() -> Operation[str]:
    """The cluster's id that ZooKeeper has; "" when it has none, because it is new, or has lost its data."""
    (node,) = yield [get(CLUSTER_ID)]
    return node.value.decode("utf-8", "replace") if isinstance(node, Node) else ""


def mark_deleted(topic_id: str, name: str) -> Operation[None]:
    """Store the mark that the topic with this id is deleted on purpose.  Repeating it is no error."""
    yield from ask([create(f"{DELETED}/{topic_id}", name.encode())])


def is_deleted(topic_id: str) -> Operation[bool]:
    (node,) = yield [exists(f"{DELETED}/{topic_id}")]
    return isinstance(node, Node)


def drop_marks(before_ms: int) -> Operation[int]:
    """Remove the marks made before a time (ms since 1970).  Returns how many."""
    marks = yield from read_children(DELETED)
    old = [name for name, node in marks.items() if node.modified_ms < before_ms]
    for name in old:
        yield from remove_tree(f"{DELETED}/{name}")
    return len(old)
