"""Registers members and owners of groups in ZooKeeper, under ``/consumers``, and reads them: as operations."""

from __future__ import annotations

from collections.abc import Mapping

from ..names import TopicPartition, is_topic
from . import paths
from .broker_registry import readable
from .operations import Node, Operation, Refused, ask, create, delete, get, hold_ephemeral, list_children, read_children
from .paths import Subscription


class GroupRegistry:
    """``/consumers``: members and owners of groups.  It has no state."""

    def groups(self) -> Operation[list[str]]:
        return paths.decode_names((yield from list_children(paths.CONSUMERS)))

    def members(self, group: str) -> Operation[dict[str, Subscription]]:
        """Consumer id -> subscription of every live member."""
        nodes = yield from read_children(paths.consumers(group))
        found = {}
        for consumer in paths.decode_names(nodes):
            node = nodes[paths.encode_name(consumer)]
            path = paths.consumer(group, consumer)
            subscription = readable(paths.decode_subscription, path, node.value)
            if subscription is not None:
                found[consumer] = subscription
        return found

    def owners(self, group: str) -> Operation[dict[TopicPartition, tuple[str, int]]]:
        """Partition -> (consumer id, stream number) of every owned partition."""
        topics = yield from list_children(paths.owners(group))
        found: dict[TopicPartition, tuple[str, int]] = {}
        for topic in filter(is_topic, topics):
            nodes = yield from read_children(paths.owners(group, topic))
            for name, node in nodes.items():
                path = f"{paths.owners(group, topic)}/{name}"
                owner = readable(paths.decode_owner, path, node.value)
                if owner is not None and name.isdecimal():
                    found[TopicPartition(topic, int(name))] = owner
        return found

    def join(self, group: str, consumer: str, subscription: Subscription, session_id: int) -> Operation[None]:
        """Register as a member for this session.  Consumer ids are unique, so a node under it is ours."""
        path, value = paths.consumer(group, consumer), paths.encode_subscription(subscription)
        yield from hold_ephemeral(path, value, session_id, lambda _: True)

    def leave(self, group: str, consumer: str) -> Operation[None]:
        yield [delete(paths.consumer(group, consumer))]

    def own(
        self, group: str, wanted: Mapping[TopicPartition, tuple[str, int]], session_id: int
    ) -> Operation[list[TopicPartition]]:
        """Create our owner nodes.  Returns the partitions that somebody else owns already.

        An owner node with our text but of another session is left over from an earlier session of ours: it is replaced.
        """
        parts = sorted(wanted)
        texts = {part: paths.encode_owner(*wanted[part]) for part in parts}
        replies = yield from ask([create(paths.owner(group, part), texts[part], ephemeral=True) for part in parts])
        refused = []
        for part, reply in zip(parts, replies, strict=True):
            if reply is Refused.NODE_EXISTS:
                text = texts[part]
                held = yield from hold_ephemeral(paths.owner(group, part), text, session_id, text.__eq__)
                if not held:
                    refused.append(part)
        return refused

    def release(self, group: str, owned: Mapping[TopicPartition, tuple[str, int]]) -> Operation[None]:
        """Delete our owner nodes: those that still have our text."""
        parts = sorted(owned)
        nodes = yield from ask([get(paths.owner(group, part)) for part in parts])
        yield from ask(
            [
                delete(paths.owner(group, part), node.version)
                for part, node in zip(parts, nodes, strict=True)
                if isinstance(node, Node) and node.value == paths.encode_owner(*owned[part])
            ]
        )

    def prune(self, group: str) -> Operation[None]:
        """Delete the empty nodes of a group.  Nothing stays of a group without members and committed offsets."""
        for above in (paths.owners(group), paths.offsets(group)):
            below = yield from list_children(above)
            yield from ask([delete(f"{above}/{name}") for name in below])  # what is not empty stays
        yield from ask([delete(paths.owners(group)), delete(paths.offsets(group)), delete(paths.consumers(group))])
        yield [delete(paths.group(group))]
