"""Reads and commits offsets of groups in ZooKeeper, under ``/consumers/<group>/offsets``: as operations.

Members of native groups commit with :class:`OffsetRegistry`; a coordinator commits with :mod:`.claims`::

    offsets = OffsetRegistry()
    session.submit(offsets.commit("group", {TopicPartition("logs", 0): CommittedOffset(42)}), done)
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ..errors import ZooKeeperAway
from ..names import TopicPartition, is_topic
from . import paths
from .broker_registry import BrokerRegistry, readable
from .operations import ATTEMPTS_MAX, Node, Operation, Refused, Request, ask, create, get, list_children, set_value
from .paths import CommittedOffset, TopicInfo

UNKNOWN_COMMITS_MAX = 64
"""Most unanswered commits of a partition that are remembered.  An older one counts as somebody else's."""


class StoredOffset(NamedTuple):
    offset: int
    metadata: str
    committed_ms: int  # since 1970
    leader_epoch: int = -1


def read_offsets(
    group: str, parts: Collection[TopicPartition] | None = None
) -> Operation[dict[TopicPartition, StoredOffset]]:
    """The committed offsets of these partitions, or all of the group.

    Offsets in an earlier topic of the same name are left out: see ``CommittedOffset``.
    """
    wanted = (yield from _partitions(group)) if parts is None else sorted(parts)
    return _current(group, (yield from _read_nodes(group, wanted)))


class _Found(NamedTuple):
    """Nodes of offsets (or why there is none), and the present registrations of their topics."""

    nodes: dict[TopicPartition, Node | Refused]
    topics: dict[str, TopicInfo]


def _read_nodes(group: str, wanted: Sequence[TopicPartition]) -> Operation[_Found]:
    nodes = yield from ask([get(paths.offset(group, part)) for part in wanted])
    registered = yield from BrokerRegistry().topics({part.topic for part in wanted})
    return _Found(dict(zip(wanted, nodes, strict=True)), registered)


def _current(group: str, found: _Found) -> dict[TopicPartition, StoredOffset]:
    current = {}
    for part, node in found.nodes.items():
        if isinstance(node, Node):
            stored = readable(paths.decode_offset, paths.offset(group, part), node.value)
            now = found.topics[part.topic].id if part.topic in found.topics else ""
            if stored is not None and (not stored.topic_id or not now or stored.topic_id == now):
                current[part] = StoredOffset(stored.offset, stored.metadata, node.modified_ms, stored.leader_epoch)
    return current


def _partitions(group: str) -> Operation[list[TopicPartition]]:
    found = []
    for topic in filter(is_topic, (yield from list_children(paths.offsets(group)))):
        for name in (yield from list_children(paths.offsets(group, topic))):
            if name.isdecimal():
                found.append(TopicPartition(topic, int(name)))
    return sorted(found)


class _Progress:
    """The state of one partition's offset node, as far as this process knows it."""

    def __init__(self) -> None:
        self.version: int | None = None  # None: unknown; -1: there was no node
        self.stored = 0  # ticket of our newest commit that is known to be stored
        self.sent: list[tuple[int, bytes]] = []  # that one, and all later ones, which may not be answered yet

    def ticket_of(self, value: bytes) -> int:
        """The ticket of our newest commit of this value; 0: the value is not ours."""
        return max((ticket for ticket, sent in self.sent if sent == value), default=0)


class OffsetRegistry:
    """Reads and commits the offsets of native groups (a coordinator uses :mod:`.claims`).

    A commit is a compare-and-set on the node's version.  So ZooKeeper refuses a write that was given up and arrives
    after a newer one.  Use one object per process: of two concurrent commits of one partition the later call wins.

    Memory: one small entry per partition that this member has committed or read.
    """

    def __init__(self) -> None:
        self._progress: dict[str, dict[TopicPartition, _Progress]] = {}
        self._tickets = itertools.count(1)

    def read(
        self, group: str, parts: Collection[TopicPartition] | None = None
    ) -> Operation[dict[TopicPartition, StoredOffset]]:
        """As :func:`read_offsets`, without negative ones; also remembers the nodes' versions for later commits."""
        wanted = (yield from _partitions(group)) if parts is None else sorted(parts)
        found = yield from _read_nodes(group, wanted)
        for part, node in found.nodes.items():
            self._known(group, part).version = node.version if isinstance(node, Node) else -1
        return {part: stored for part, stored in _current(group, found).items() if stored.offset >= 0}

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset], *, overwrite: bool = False
    ) -> Operation[list[TopicPartition]]:
        """Store offsets.  Returns the partitions whose offsets were *not* stored.

        Args:
            overwrite: False: an offset that somebody else has stored since we last read or wrote it stays, and its
                partition is returned.  True: replace it too; for the caller that has checked that it is the owner.
        """
        ticket = next(self._tickets)
        left: dict[TopicPartition, bytes] = {}
        for part, committed in sorted(offsets.items()):
            left[part] = paths.encode_offset(committed)
            known = self._known(group, part)
            known.sent = [*known.sent[1 - UNKNOWN_COMMITS_MAX :], (ticket, left[part])]
        conflicts: list[TopicPartition] = []
        for _ in range(ATTEMPTS_MAX):
            unread = [part for part in left if self._known(group, part).version is None]
            yield from self._read_again(group, unread, {}, 0, True, [])
            left = {part: value for part, value in left.items() if self._known(group, part).stored < ticket}
            replies = yield from ask([self._write(group, part, value) for part, value in left.items()])
            refused = {}
            for (part, value), reply in zip(left.items(), replies, strict=True):
                if isinstance(reply, Refused):
                    refused[part] = value
                else:
                    self._stored(group, part, ticket, reply)
            left = yield from self._read_again(group, list(refused), refused, ticket, overwrite, conflicts)
            if not left:
                return conflicts
        raise ZooKeeperAway(f"offsets of group {group!r} keep changing; try again")

    def _known(self, group: str, part: TopicPartition) -> _Progress:
        return self._progress.setdefault(group, {}).setdefault(part, _Progress())

    def _write(self, group: str, part: TopicPartition, value: bytes) -> Request:
        path, version = paths.offset(group, part), self._known(group, part).version
        return create(path, value) if version is None or version < 0 else set_value(path, value, version)

    def _stored(self, group: str, part: TopicPartition, ticket: int, version: int) -> None:
        known = self._known(group, part)
        known.version = version
        known.stored = max(known.stored, ticket)
        known.sent = [(other, value) for other, value in known.sent if other >= known.stored]

    def _read_again(
        self,
        group: str,
        parts: list[TopicPartition],
        refused: dict[TopicPartition, bytes],
        ticket: int,
        overwrite: bool,
        conflicts: list[TopicPartition],
    ) -> Operation[dict[TopicPartition, bytes]]:
        """Read the nodes again.  Returns those of the ``refused`` writes that must be repeated."""
        nodes = yield from ask([get(paths.offset(group, part)) for part in parts])
        again: dict[TopicPartition, bytes] = {}
        for part, node in zip(parts, nodes, strict=True):
            known, value = self._known(group, part), refused.get(part)
            known.version = node.version if isinstance(node, Node) else -1
            if value is None:
                continue
            there = known.ticket_of(node.value) if isinstance(node, Node) else 0
            if isinstance(node, Node) and there >= ticket:
                self._stored(group, part, there, node.version)  # its reply was lost, or has not come yet
            elif overwrite or there or not isinstance(node, Node):
                again[part] = value
            else:
                conflicts.append(part)
        return again
