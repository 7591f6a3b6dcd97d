"""The three registries of the paper as operations: brokers and topics, group members and owners, offsets.

The classes build :mod:`operations`; a :class:`~.session.Session` carries them out, from an event loop
(``submit``) or blocking a thread (``call``), each within a bounded time.  Nothing here waits, and nothing
imports kazoo::

    topics = session.call(BrokerRegistry().topics())
    session.submit(offsets.commit("group", {part: CommittedOffset(42)}), done)

Values are those of :mod:`paths`.  A value that somebody else wrote and that cannot be read is logged and left
out of lists; asked for by name, it raises ``BadValue``.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from ..errors import BadValue, TopicExists, UnknownPartition, ZooKeeperAway
from ..names import TopicPartition, is_topic
from . import paths
from .operations import (
    ATTEMPTS_MAX,
    REQUEST_BYTES_MAX,
    Node,
    Operation,
    Refused,
    Request,
    ask,
    create,
    delete,
    get,
    hold_ephemeral,
    list_children,
    read_children,
    set_value,
)
from .paths import BrokerInfo, CommittedOffset, Subscription, TopicInfo

T = TypeVar("T")
log = logging.getLogger(__name__)

BROKER_BYTES_MAX = REQUEST_BYTES_MAX // 2
UNKNOWN_COMMITS_MAX = 64  # per partition: commits sent of which we never heard; an older one counts as foreign


class CancellableWatch(Protocol):
    def cancel(self) -> None: ...


class Watcher(Protocol):
    """The part of a session that watches."""

    def watch_children(self, path: str, callback: Callable[[list[str] | None], None]) -> CancellableWatch: ...
    def watch_value(self, path: str, callback: Callable[[bytes | None], None]) -> CancellableWatch: ...


class Keeper(Protocol):
    """The part of a session that keeps ephemeral nodes."""

    def keep(self, path: str, value: bytes, ours: Callable[[bytes], bool] = ...) -> None: ...


def _readable(decode: Callable[[str, bytes], T], path: str, value: bytes) -> T | None:
    try:
        return decode(path, value)
    except BadValue as error:
        log.error("%s", error)
        return None


# --- brokers and topics


class BrokerRegistry:
    """``/brokers``: which brokers live, which topics there are and where their partitions are stored."""

    def register(self, keeper: Keeper, broker_id: int, info: BrokerInfo) -> None:
        """Show this broker to the others, in every session from now on; again with another ``info`` changes
        it.

        A registration left by this data directory's former life (same ``instance``) is taken over.  While
        another instance holds the id, its registration stays and one line is logged; ours follows when it is
        gone.  Where the list of its partitions is more than ZooKeeper takes, the broker is registered without it:
        who leads what is in the topics' registrations.
        """

        def ours(value: bytes) -> bool:
            found = _readable(paths.decode_broker, paths.broker(broker_id), value)
            return found is None or found.instance == info.instance

        value = paths.encode_broker(info)
        if len(value) > BROKER_BYTES_MAX:
            log.warning("broker %d is registered without its partitions: they take %d bytes", broker_id, len(value))
            value = paths.encode_broker(msgspec.structs.replace(info, partitions={}))
        keeper.keep(paths.broker(broker_id), value, ours)

    def deregister(self, broker_id: int) -> Operation[None]:
        """Take the registration back (after ``Session.unkeep``)."""
        yield [delete(paths.broker(broker_id))]

    def brokers(self) -> Operation[dict[int, BrokerInfo]]:
        nodes = yield from read_children(paths.BROKER_IDS)
        found = {}
        for name, node in nodes.items():
            info = _readable(paths.decode_broker, f"{paths.BROKER_IDS}/{name}", node.value)
            if info is not None and name.isdecimal():
                found[int(name)] = info
        return found

    def topic_names(self) -> Operation[list[str]]:
        """The registered topics; names that no topic may have are somebody else's nodes and left out."""
        return [name for name in (yield from list_children(paths.TOPICS)) if is_topic(name)]

    def topics(self, names: Collection[str] | None = None) -> Operation[dict[str, TopicInfo]]:
        """The topics with these names (those that exist), or all."""
        wanted = (yield from self.topic_names()) if names is None else sorted(names)
        nodes = yield from ask([get(paths.topic(name)) for name in wanted])
        found = {}
        for name, node in zip(wanted, nodes, strict=True):
            info = _readable(paths.decode_topic, paths.topic(name), node.value) if isinstance(node, Node) else None
            if info is not None:
                found[name] = info
        return found

    def create_topic(self, name: str, info: TopicInfo) -> Operation[None]:
        """Register a new topic.  ``info.id`` must be unique to this call: it tells our success from
        another's.

        Raises:
            TopicExists: somebody else registered it, now or before.
        """
        assert info.id, "without an id our own creation, repeated, would look like somebody else's"
        (reply,) = yield from ask([create(paths.topic(name), paths.encode_topic(info))])
        if reply is not Refused.NODE_EXISTS:
            return
        existing = (yield from self.topics([name])).get(name)
        if existing is None or existing.id != info.id:
            raise TopicExists(f"topic {name!r} exists already")

    def alter_topic(self, name: str, change: Callable[[TopicInfo], TopicInfo]) -> Operation[TopicInfo]:
        """Replace a topic's description by ``change`` of it; the new one.  ``change`` may be applied
        repeatedly.

        Raises:
            UnknownPartition: there is no such topic.
            BadValue: what is registered cannot be read.
            Whatever ``change`` raises.
        """
        path = paths.topic(name)
        for _ in range(ATTEMPTS_MAX):
            (node,) = yield [get(path)]
            if node is Refused.NO_NODE:
                break
            before = paths.decode_topic(path, node.value)
            after = change(before)
            if after == before:
                return before
            (reply,) = yield [set_value(path, paths.encode_topic(after), node.version)]
            if not isinstance(reply, Refused):
                return after
        else:
            raise ZooKeeperAway(f"topic {name!r} keeps changing; try again")
        raise UnknownPartition(f"there is no topic {name!r}")

    def watch_brokers(self, watcher: Watcher, changed: Callable[[int, BrokerInfo | None], None]) -> WatchSet:
        """Tell each broker now and whenever its registration changes; None when it is gone."""

        def decoded(name: str, value: bytes | None) -> None:
            if not name.isdecimal():
                return
            if value is None:
                changed(int(name), None)
            elif (info := _readable(paths.decode_broker, f"{paths.BROKER_IDS}/{name}", value)) is not None:
                changed(int(name), info)

        return WatchSet(watcher, paths.BROKER_IDS, decoded)

    def watch_topics(self, watcher: Watcher, changed: Callable[[str, TopicInfo | None], None]) -> WatchSet:
        """Tell each topic now and whenever its registration changes; None when it is deleted."""

        def decoded(name: str, value: bytes | None) -> None:
            if not is_topic(name):
                log.error("%s/%s is no topic: no topic may have this name", paths.TOPICS, name)
            elif value is None:
                changed(name, None)
            elif (info := _readable(paths.decode_topic, paths.topic(name), value)) is not None:
                changed(name, info)

        return WatchSet(watcher, paths.TOPICS, decoded)


class WatchSet:
    """Watches the children of a path and the value of each child."""

    def __init__(self, watcher: Watcher, path: str, changed: Callable[[str, bytes | None], None]) -> None:
        self._watcher, self._path, self._changed = watcher, path, changed
        self._values: dict[str, CancellableWatch] = {}
        self._names = watcher.watch_children(path, self._listed)

    def cancel(self) -> None:
        self._names.cancel()
        for watch in self._values.values():
            watch.cancel()
        self._values.clear()

    def _listed(self, names: list[str] | None) -> None:
        present = set(names or ())
        for name in sorted(self._values.keys() - present):
            self._values.pop(name).cancel()
            self._changed(name, None)
        for name in sorted(present - self._values.keys()):
            self._values[name] = self._watcher.watch_value(f"{self._path}/{name}", functools.partial(self._told, name))

    def _told(self, name: str, value: bytes | None) -> None:
        # A value that is gone is told when the name leaves the list, once.
        if value is not None and name in self._values:
            self._changed(name, value)


# --- groups


class GroupRegistry:
    """``/consumers``: members and owners of groups.  No state of its own."""

    def groups(self) -> Operation[list[str]]:
        names = yield from list_children(paths.CONSUMERS)
        return sorted(paths.decode_name(name) for name in names)

    def members(self, group: str) -> Operation[dict[str, Subscription]]:
        """Consumer id -> subscription of every live member."""
        nodes = yield from read_children(paths.consumers(group))
        found = {}
        for name, node in nodes.items():
            consumer = paths.decode_name(name)
            path = paths.consumer(group, consumer)
            subscription = _readable(paths.decode_subscription, path, node.value)
            if subscription is not None:
                found[consumer] = subscription
        return found

    def owners(self, group: str) -> Operation[dict[TopicPartition, tuple[str, int]]]:
        """Partition -> (consumer id, stream number) of everything that is owned."""
        topics = yield from list_children(paths.owners(group))
        found: dict[TopicPartition, tuple[str, int]] = {}
        for topic in filter(is_topic, topics):
            nodes = yield from read_children(paths.owners(group, topic))
            for name, node in nodes.items():
                path = f"{paths.owners(group, topic)}/{name}"
                owner = _readable(paths.decode_owner, path, node.value)
                if owner is not None and name.isdecimal():
                    found[TopicPartition(topic, int(name))] = owner
        return found

    def join(self, group: str, consumer: str, subscription: Subscription, session_id: int) -> Operation[None]:
        """Register as a member for this session.  Consumer ids are unique, so a node under it is ours."""
        path, value = paths.consumer(group, consumer), paths.encode_subscription(subscription)
        yield from hold_ephemeral(path, value, session_id, lambda _: True)

    def leave(self, group: str, consumer: str) -> Operation[None]:
        yield [delete(paths.consumer(group, consumer))]

    def claim(
        self, group: str, wanted: Mapping[TopicPartition, tuple[str, int]], session_id: int
    ) -> Operation[list[TopicPartition]]:
        """Own partitions; those that somebody else owns already are returned.

        An owner node with our own text that is not of this session is left over from an earlier one of ours.
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
        """Give partitions up.  Only nodes that still carry our text are deleted."""
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
        """Remove what is empty of a group's nodes: one without members and positions leaves nothing behind."""
        for above in (paths.owners(group), paths.offsets(group)):
            below = yield from list_children(above)
            yield from ask([delete(f"{above}/{name}") for name in below])  # what is not empty stays
        yield from ask([delete(paths.owners(group)), delete(paths.offsets(group)), delete(paths.consumers(group))])
        yield [delete(paths.group(group))]


# --- offsets


class StoredOffset(NamedTuple):
    offset: int
    metadata: str
    committed_ms: int  # since 1970
    leader_epoch: int = -1


def read_offsets(
    group: str, parts: Collection[TopicPartition] | None = None
) -> Operation[dict[TopicPartition, StoredOffset]]:
    """The stored offsets of these partitions, or of all that the group has.

    One that was stored for an earlier topic of the same name is none: see ``CommittedOffset``.
    """
    wanted = (yield from _partitions(group)) if parts is None else sorted(parts)
    return _current(group, (yield from _read_nodes(group, wanted)))


class _Found(NamedTuple):
    """Nodes of offsets (or why there is none), and the topics of that name as they are registered now."""

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
            stored = _readable(paths.decode_offset, paths.offset(group, part), node.value)
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
    """What this process knows of one partition's offset node."""

    def __init__(self) -> None:
        self.version: int | None = None  # None: unknown; -1: there was no node
        self.stored = 0  # ticket of the newest commit that we know to be stored
        self.sent: list[tuple[int, bytes]] = []  # that one, and all later ones: on their way, or never heard of again

    def ticket_of(self, value: bytes) -> int:
        """Our newest commit of this value; 0: it is not one of ours."""
        return max((ticket for ticket, sent in self.sent if sent == value), default=0)


class OffsetRegistry:
    """``/consumers/<group>/offsets`` as a member of a native group writes it (a coordinator: see :mod:`.claims`).

    A commit is a compare-and-set on the node's version, so that a write that was given up, and lands when a
    newer one is already there, is refused by ZooKeeper.  One object per process; its commits are ordered by
    the call: when two are under way for one partition, the later call wins, and the earlier is quietly
    superseded.

    Memory: one small entry per partition that this member has committed or read.
    """

    def __init__(self) -> None:
        self._progress: dict[str, dict[TopicPartition, _Progress]] = {}
        self._tickets = itertools.count(1)

    def read(
        self, group: str, parts: Collection[TopicPartition] | None = None
    ) -> Operation[dict[TopicPartition, StoredOffset]]:
        """The stored offsets of these partitions, or of all that the group has.

        One that was stored for an earlier topic of the same name is none: see ``CommittedOffset``.
        """
        wanted = (yield from _partitions(group)) if parts is None else sorted(parts)
        found = yield from _read_nodes(group, wanted)
        for part, node in found.nodes.items():
            self._known(group, part).version = node.version if isinstance(node, Node) else -1
        return _current(group, found)

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset], *, overwrite: bool = False
    ) -> Operation[list[TopicPartition]]:
        """Store offsets; the partitions that were *not* stored are returned.

        Args:
            overwrite: False is for a group member: where somebody else has stored an offset since we last
                read or wrote it, theirs stays and the partition is returned (we no longer own it).  True is
                for the one who has seen to it that it is the owner: only our own older writes are kept from
                winning.
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
            yield from self._look(group, unread, {}, 0, True, [])
            left = {part: value for part, value in left.items() if self._known(group, part).stored < ticket}
            replies = yield from ask([self._write(group, part, value) for part, value in left.items()])
            refused = {}
            for (part, value), reply in zip(left.items(), replies, strict=True):
                if isinstance(reply, Refused):
                    refused[part] = value
                else:
                    self._stored(group, part, ticket, reply)
            left = yield from self._look(group, list(refused), refused, ticket, overwrite, conflicts)
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

    def _look(
        self,
        group: str,
        parts: list[TopicPartition],
        refused: dict[TopicPartition, bytes],
        ticket: int,
        overwrite: bool,
        conflicts: list[TopicPartition],
    ) -> Operation[dict[TopicPartition, bytes]]:
        """Read the nodes anew; of the ``refused`` writes those that are to be tried again."""
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
