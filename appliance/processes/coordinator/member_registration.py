"""Registers the members of Kafka groups in the registries of the paper, in the background, as far as there is room.

:meth:`MemberRegistration.register` notes a changed group, with a function that describes its members: an entry in a
dictionary, which cannot fail.  One background task takes the groups one by one, writes the differences as ephemeral
nodes of the session, WINDOW in a transaction, and ends when no group is left.  After a question that ZooKeeper has not
answered, the groups that are left wait RETRY_S, or for :meth:`MemberRegistration.reconnected`.

Bounds: NODES_BYTES_MAX for all nodes together (the ensemble's heap allows for them), VALUE_BYTES_MAX for one value.
Members come before owners, so a group that is too large loses its owners first.  Only topics and partitions that exist
are registered, whatever a member subscribes to.

The registration is for people and tools.  The coordinator itself never reads it back for its own groups.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from ...catalog import Topic
from ...errors import ApplianceError, RequestTimedOut, Unavailable
from ...groups.store import RegisteredMember
from ...names import TopicPartition
from ...zookeeper import paths
from ...zookeeper.operations import (
    REQUEST_BYTES_MAX,
    Failed,
    Node,
    Operation,
    Refused,
    ask,
    create,
    delete,
    get,
    grouped,
    hold_ephemeral,
    multi,
    set_value,
)
from ...zookeeper.paths import Subscription
from .registry_session import RegistrySession

WINDOW: Final = 100
"""Nodes written by one operation; other requests are sent between two operations."""
NODES_BYTES_MAX: Final = 8 << 20
NODE_BYTES: Final = 300
"""Heap of ZooKeeper that a node takes besides path and value, rounded up."""
VALUE_BYTES_MAX: Final = 16 << 10
SETTLED_S_MAX: Final = 5.0
RETRY_S: Final = 1.0
UNCERTAIN: Final = b""
"""The value of a node that may be there: no member or owner has this one."""

MembersSource = Callable[[], Sequence[RegisteredMember]]
T = TypeVar("T")
log = logging.getLogger(__name__)


class MemberRegistration:
    """``topics``: those that exist; ``emptied`` is called with a group whose last member was unregistered."""

    def __init__(
        self,
        registry: RegistrySession,
        topics: Callable[[], Mapping[str, Topic]],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        emptied: Callable[[str], Coroutine[Any, Any, None]],
    ) -> None:
        self._registry, self._topics, self._spawn, self._emptied = registry, topics, spawn, emptied
        self._members: dict[str, MembersSource] = {}  # groups that have, or may have, something registered
        self._changed: dict[str, None] = {}
        self._nodes_of: dict[str, dict[str, bytes]] = {}  # group -> path -> value of our nodes in this session
        self._bytes = 0
        self._session_id = 0
        self._busy = False
        self._turn: str | None = None
        self._turn_over = asyncio.Event()
        self._again: asyncio.TimerHandle | None = None

    def register(self, group: str, members: MembersSource) -> None:
        """Register the group's members, as they are when its turn has come; none: unregister them."""
        self._members[group] = members
        self._changed[group] = None
        self._start()

    def count(self, group: str) -> int:
        """The number of its members, as the last call of :meth:`register` has it."""
        members = self._members.get(group)
        return 0 if members is None else len(members())

    async def settled(self, group: str) -> None:
        """Wait until what was noted of a group is registered.

        Raises:
            RequestTimedOut: it is not yet; try again.
        """
        self._start()
        try:
            async with asyncio.timeout(SETTLED_S_MAX):
                while group in self._changed or group == self._turn:
                    self._turn_over.clear()
                    await self._turn_over.wait()
        except TimeoutError:
            raise RequestTimedOut(f"the members of group {group!r} are not registered as they are now yet") from None

    def reconnected(self) -> None:
        """ZooKeeper is back, perhaps with a new session."""
        self._look_at_session()
        self._start()

    def _look_at_session(self) -> None:
        """In a new session everything has to be registered again."""
        if self._registry.session_id != self._session_id:
            self._session_id = self._registry.session_id
            self._nodes_of.clear()
            self._bytes = 0
            self._changed.update(dict.fromkeys(self._members))

    def _start(self) -> None:
        if self._changed and not self._busy:
            self._busy = True
            self._spawn(self._register_all())

    def _start_later(self) -> None:
        """The session may go on, so that nobody calls :meth:`reconnected`."""
        if self._again is not None:
            self._again.cancel()
        self._again = asyncio.get_running_loop().call_later(RETRY_S, self._start)

    async def _register_all(self) -> None:
        try:
            while self._changed:
                self._look_at_session()
                group = next(iter(self._changed))
                del self._changed[group]
                self._turn = group
                try:
                    await self._register_one(group)
                except Unavailable:
                    self._changed[group] = None
                    self._start_later()
                    return
                except ApplianceError as error:
                    log.warning("the members of group %r cannot be registered: %s", group, error)
                finally:
                    self._turn = None
                    self._turn_over.set()
        finally:
            self._busy = False

    async def _register_one(self, group: str) -> None:
        members = self._members[group]()
        session_id = self._registry.session_id
        before = self._nodes_of.setdefault(group, {})
        nodes = self._nodes(group, members, self._bytes - _size(before))
        gone = [path for path in before if path not in nodes]
        for some in _windows(dict.fromkeys(gone, b"")):
            await self._registry.ask(_delete_own(list(some), session_id))
            self._forget(before, some)
        for some in _windows({path: value for path, value in nodes.items() if before.get(path) != value}):
            there = {path for path in some if before.get(path, UNCERTAIN) != UNCERTAIN}
            self._note(before, dict.fromkeys(some, UNCERTAIN))  # also if no answer comes: then they are put again
            await self._registry.ask(_put(some, there, session_id))
            self._note(before, some)
        if not members:
            self._nodes_of.pop(group, None)
            await self._emptied(group)
            if group not in self._changed:  # else somebody has joined meanwhile
                del self._members[group]

    def _note(self, nodes: dict[str, bytes], values: Mapping[str, bytes]) -> None:
        self._forget(nodes, values)
        nodes |= values
        self._bytes += _size(values)

    def _forget(self, nodes: dict[str, bytes], some: Iterable[str]) -> None:
        for path in some:
            if path in nodes:
                self._bytes -= _size({path: nodes.pop(path)})

    def _nodes(self, group: str, members: Sequence[RegisteredMember], others_bytes: int) -> dict[str, bytes]:
        """The nodes of a group, in order of their importance, as far as there is room beside the others."""
        topics = self._topics()
        nodes: dict[str, bytes] = {}
        for member in members:
            subscribed = dict.fromkeys([topic for topic in member.topics if topic in topics], 1)
            value = b""
            for some in (subscribed, {}):
                subscription = Subscription(some, protocol="kafka", client=member.client_id, host=member.host)
                value = paths.encode_subscription(subscription)
                if len(value) <= VALUE_BYTES_MAX:
                    break
            nodes[paths.consumer(group, member.id)] = value
        for member in members:
            for topic, partition in member.partitions:
                if topic in topics and partition in topics[topic].partitions:
                    nodes[paths.owner(group, TopicPartition(topic, partition))] = paths.encode_owner(member.id, 0)
        room = NODES_BYTES_MAX - others_bytes
        for path in list(nodes):
            room -= _size({path: nodes[path]})
            if room < 0:
                del nodes[path]
        return nodes


def _size(nodes: Mapping[str, bytes]) -> int:
    return sum(NODE_BYTES + len(path) + len(value) for path, value in nodes.items())


def _windows(nodes: Mapping[str, bytes]) -> Iterable[dict[str, bytes]]:
    """In each what one transaction takes."""
    return grouped(nodes, lambda path, value: create(path, value).size, WINDOW, REQUEST_BYTES_MAX // 2)


def _put(nodes: Mapping[str, bytes], there: Collection[str], session_id: int) -> Operation[None]:
    """Create or replace these ephemeral nodes, also those that an earlier session of ours has left.

    ``there``: of these we know that this session has them.
    """
    (reply,) = yield [
        multi(
            set_value(path, value, -1) if path in there else create(path, value, ephemeral=True)
            for path, value in nodes.items()
        )
    ]
    if not isinstance(reply, Failed):
        return
    # One is not as it is known, or has no parent yet.
    replies = yield from ask([create(path, value, ephemeral=True) for path, value in nodes.items()])
    for (path, value), reply in zip(nodes.items(), replies, strict=True):
        if reply is Refused.NODE_EXISTS:
            yield from hold_ephemeral(path, value, session_id, lambda _: True)


def _delete_own(some: list[str], session_id: int) -> Operation[None]:
    """Delete those of these nodes that this session owns."""
    nodes = yield from ask([get(path) for path in some])
    ours = [path for path, node in zip(some, nodes, strict=True) if isinstance(node, Node) and node.owner == session_id]
    (reply,) = (yield [multi(delete(path) for path in ours)]) if ours else (None,)
    if isinstance(reply, Failed):  # one has gone meanwhile
        yield from ask([delete(path) for path in ours])
