"""Reads members and owners of groups in ZooKeeper, under ``/consumers``, and prunes empty groups: as operations."""

from __future__ import annotations

from typing import NamedTuple

from ..names import TopicPartition, is_topic
from . import paths
from .broker_registry import readable
from .operations import Operation, ask, delete, list_children, read_children
from .paths import Subscription


class RegisteredOwner(NamedTuple):
    """The member that owns a partition, with the number of its stream.  ``since_ms``: since 1970.

    It is later than the truth if the node was written again, in a new session of its coordinator.
    """

    member: str
    stream: int
    since_ms: int


class GroupRegistry:
    """``/consumers``: members and owners of groups.  It has no state."""

    def groups(self) -> Operation[list[str]]:
        return paths.decode_names((yield from list_children(paths.CONSUMERS)))

    def members(self, group: str) -> Operation[dict[str, Subscription]]:
        """Consumer id -> subscription of every live member."""
        nodes = yield from read_children(paths.consumers(group))
        subscriptions = {}
        for consumer in paths.decode_names(nodes):
            node = nodes[paths.encode_name(consumer)]
            path = paths.consumer(group, consumer)
            subscription = readable(paths.decode_subscription, path, node.value)
            if subscription is not None:
                subscriptions[consumer] = subscription
        return subscriptions

    def owners(self, group: str) -> Operation[dict[TopicPartition, RegisteredOwner]]:
        """The owner of every owned partition."""
        topics = yield from list_children(paths.owners(group))
        owners: dict[TopicPartition, RegisteredOwner] = {}
        for topic in filter(is_topic, topics):
            nodes = yield from read_children(paths.owners(group, topic))
            for name, node in nodes.items():
                path = f"{paths.owners(group, topic)}/{name}"
                owner = readable(paths.decode_owner, path, node.value)
                if owner is not None and name.isdecimal():
                    owners[TopicPartition(topic, int(name))] = RegisteredOwner(*owner, node.modified_ms)
        return owners

    def prune(self, group: str) -> Operation[None]:
        """Delete the empty nodes of a group.  Nothing stays of a group without members and committed offsets.

        What a coordinator has stored of its members is theirs: only who holds the claim deletes it (``claims.vacate``).
        """
        for above in (paths.owners(group), paths.offsets(group)):
            below = yield from list_children(above)
            yield from ask([delete(f"{above}/{name}") for name in below])  # what is not empty stays
        yield from ask([delete(paths.owners(group)), delete(paths.offsets(group)), delete(paths.consumers(group))])
        yield [delete(paths.group(group))]
