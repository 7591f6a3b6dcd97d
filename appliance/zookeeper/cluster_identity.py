"""Which cluster this is, and which topics were deleted: what tells a deletion from a loss.

    path                       kind         value
    /cluster/id                persistent   text, chosen once by the first broker
    /brokers/deleted/<id>      persistent   name of the topic that had this id

A topic that is missing from ``/brokers/topics`` may have been deleted while a broker was away, or ZooKeeper
may have lost its data.  Only the former may cost a broker its logs, so a deletion leaves a mark under the
topic's id (see :class:`~.paths.TopicInfo`), before the topic itself goes.  A topic that is missing without a
mark is registered again by whoever knows it.  Marks are dropped after MARK_MS: a broker that was away for
longer brings its topics back, which a person can delete again; the other mistake could not be undone.
"""

from __future__ import annotations

from typing import Final

from ..errors import ZooKeeperAway
from .operations import ATTEMPTS_MAX, Node, Operation, Refused, ask, create, delete, exists, get, read_children

CLUSTER_ID: Final = "/cluster/id"
DELETED: Final = "/brokers/deleted"
MARK_MS: Final = 90 * 86_400_000


def cluster_id(own: str) -> Operation[str]:
    """The cluster's id; ``own`` becomes it when there is none yet."""
    for _ in range(ATTEMPTS_MAX):
        (node,) = yield [get(CLUSTER_ID)]
        if isinstance(node, Node):
            return node.value.decode("utf-8", "replace")
        (reply,) = yield from ask([create(CLUSTER_ID, own.encode())])
        if not isinstance(reply, Refused):
            return own
    raise ZooKeeperAway(f"{CLUSTER_ID} keeps changing; try again")


def mark_deleted(topic_id: str, name: str) -> Operation[None]:
    """Note that the topic with this id is deleted on purpose; noting it twice is no error."""
    yield from ask([create(f"{DELETED}/{topic_id}", name.encode())])


def is_deleted(topic_id: str) -> Operation[bool]:
    (node,) = yield [exists(f"{DELETED}/{topic_id}")]
    return isinstance(node, Node)


def drop_marks(before_ms: int) -> Operation[int]:
    """Remove the marks made before a time (ms since 1970); how many."""
    marks = yield from read_children(DELETED)
    old = [name for name, node in marks.items() if node.modified_ms < before_ms]
    yield from ask([delete(f"{DELETED}/{name}") for name in old])
    return len(old)
