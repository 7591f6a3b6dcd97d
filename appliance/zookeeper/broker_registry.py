"""Registers brokers and topics in ZooKeeper, under ``/brokers``, and reads them: as operations.

The three registries build operations (:mod:`.operations`).  A :class:`~.session.Session` runs them within a bounded
time, from an event loop.  Nothing here waits or imports kazoo::

    session.submit(BrokerRegistry().topics(), on_topics)

Values are those of :mod:`paths`.  A value that cannot be read was written by somebody else.  It is logged and left out
of lists; ``alter_topic`` raises ``BadValue`` for it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ..errors import BadValue, TopicExists, UnknownPartition, ZooKeeperAway
from ..names import is_topic
from . import paths
from .operations import (
    ATTEMPTS_MAX,
    REQUEST_BYTES_MAX,
    Node,
    Operation,
    Refused,
    ask,
    create,
    get,
    list_children,
    read_children,
    set_value,
)
from .paths import BrokerInfo, TopicInfo

if TYPE_CHECKING:
    from .session import NodeWatch, Session

T = TypeVar("T")
log = logging.getLogger(__name__)

BROKER_BYTES_MAX = REQUEST_BYTES_MAX // 2


def readable(decode: Callable[[str, bytes], T], path: str, value: bytes) -> T | None:
    """Decodes a node's value.  One that cannot be read is logged; the result is None."""
    try:
        return decode(path, value)
    except BadValue as error:
        log.error("%s", error)
        return None


class BrokerRegistry:
    """``/brokers``: the live brokers, and the topics with the brokers of their partitions."""

    def register(self, session: Session, broker_id: int, info: BrokerInfo) -> None:
        """Registers this broker in this and every later session.  A later call changes ``info``.

        A registration by an earlier run of this data directory (same ``instance``) is replaced.  While another
        instance holds the id, its registration stays and one line is logged; ours follows when it is gone.  A list of
        partitions that is too large for ZooKeeper is left out: the topics' registrations name the leaders as well.
        """

        def ours(value: bytes) -> bool:
            registered = readable(paths.decode_broker, paths.broker(broker_id), value)
            return registered is None or registered.instance == info.instance

        value = paths.encode_broker(info)
        if len(value) > BROKER_BYTES_MAX:
            log.warning("broker %d is registered without its partitions: they take %d bytes", broker_id, len(value))
            value = paths.encode_broker(msgspec.structs.replace(info, partitions={}))
        session.keep(paths.broker(broker_id), value, ours)

    def brokers(self) -> Operation[dict[int, BrokerInfo]]:
        nodes = yield from read_children(paths.BROKER_IDS)
        brokers = {}
        for name, node in nodes.items():
            info = readable(paths.decode_broker, f"{paths.BROKER_IDS}/{name}", node.value)
            if info is not None and name.isdecimal():
                brokers[int(name)] = info
        return brokers

    def topic_names(self) -> Operation[list[str]]:
        """The registered topics.  Nodes whose name is no valid topic name are left out."""
        return [name for name in (yield from list_children(paths.TOPICS)) if is_topic(name)]

    def topics(self, names: Collection[str] | None = None) -> Operation[dict[str, TopicInfo]]:
        """The topics with these names (those that exist), or all."""
        topic_names = (yield from self.topic_names()) if names is None else sorted(names)
        nodes = yield from ask([get(paths.topic(name)) for name in topic_names])
        topics = {}
        for name, node in zip(topic_names, nodes, strict=True):
            info = readable(paths.decode_topic, paths.topic(name), node.value) if isinstance(node, Node) else None
            if info is not None:
                topics[name] = info
        return topics

    def create_topic(self, name: str, info: TopicInfo) -> Operation[None]:
        """Register a new topic.  ``info.id`` must be unique to this call: it identifies our own node after a retry.

        Raises:
            TopicExists: the name is registered with another id.
        """
        assert info.id, "without an id a retry could not recognise its own node"
        (reply,) = yield from ask([create(paths.topic(name), paths.encode_topic(info))])
        if reply is not Refused.NODE_EXISTS:
            return
        existing = (yield from self.topics([name])).get(name)
        if existing is None or existing.id != info.id:
            raise TopicExists(f"topic {name!r} exists already")

    def alter_topic(self, name: str, change: Callable[[TopicInfo], TopicInfo]) -> Operation[TopicInfo]:
        """Apply ``change`` to a topic's registration, several times if others write meanwhile.  Returns the new one.

        Raises:
            UnknownPartition: there is no such topic.
            BadValue: the registration cannot be read.
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

    def watch_brokers(self, session: Session, changed: Callable[[int, BrokerInfo | None], None]) -> WatchSet:
        """Call ``changed`` for each broker now and after each change of its registration; None when it is gone."""

        def decoded(name: str, value: bytes | None) -> None:
            if not name.isdecimal():
                return
            if value is None:
                changed(int(name), None)
            elif (info := readable(paths.decode_broker, f"{paths.BROKER_IDS}/{name}", value)) is not None:
                changed(int(name), info)

        return WatchSet(session, paths.BROKER_IDS, decoded)

    def watch_topics(self, session: Session, changed: Callable[[str, TopicInfo | None], None]) -> WatchSet:
        """Call ``changed`` for each topic now and after each change of its registration; None when it is deleted."""

        def decoded(name: str, value: bytes | None) -> None:
            if not is_topic(name):
                log.error("%s/%s is no topic: no topic may have this name", paths.TOPICS, name)
            elif value is None:
                changed(name, None)
            elif (info := readable(paths.decode_topic, paths.topic(name), value)) is not None:
                changed(name, info)

        return WatchSet(session, paths.TOPICS, decoded)


class WatchSet:
    """Watches the children of a path and the value of each child."""

    def __init__(self, session: Session, path: str, changed: Callable[[str, bytes | None], None]) -> None:
        self._session, self._path, self._changed = session, path, changed
        self._values: dict[str, NodeWatch] = {}
        self._names = session.watch_children(path, self._listed)

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
            self._values[name] = self._session.watch_value(
                f"{self._path}/{name}", functools.partial(self._on_value, name)
            )

    def _on_value(self, name: str, value: bytes | None) -> None:
        # A deleted node is reported once, when its name leaves the list.
        if value is not None and name in self._values:
            self._changed(name, value)
