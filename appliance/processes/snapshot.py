"""What network workers know of the cluster: brokers, topics, users, rules, quotas and what others have used.

They answer from it without a request to the coordinator.

The coordinator sends each worker the changes (:data:`.messages.SnapshotChange`) on the stream that also brings its
answers.  From :class:`.messages.SnapshotBegins` to :class:`.messages.SnapshotEnds` they replace everything.  A message
has at most TOPICS_PER_MESSAGE topics, so that none is large.

The coordinator needs some time to start, and clients that connect meanwhile should not wait for it.  So the workers of
a start begin with messages that the supervisor makes (:func:`changes_at_start`).  They say what the first ones of the
coordinator will: catalog and security state of the data directory, and no other brokers.  Nothing can change before the
coordinator has sent its own, which replace them; workers that are started later wait for those.

How stale can an answer be?  The coordinator writes a change to every worker's stream before it answers any later
request (:meth:`Publisher.changes`, called before each answer).  A worker reads its stream before it answers from the
snapshot.  So a client that has the answer to CreateTopics, DeleteTopics and the like sees the change on every
connection, whichever worker has it.  There are two exceptions:

* A worker that does not read its answers gets the changes when it does: its snapshot lacks the messages that are still
  in its socket.
* While the successor of a dead coordinator starts, workers use the last snapshot.

Both are harmless: a request for a partition that has moved is refused with a retriable error, and the client asks for
metadata again.  A change by another broker is sent as soon as this broker knows it.

A snapshot that is being replaced is used until the new one is complete.  Memory per worker: that of the catalog, twice
while it is replaced.  The coordinator keeps references only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, assert_never

from ..addresses import UNIX, Listener, first_with, parse_addresses, parse_listeners, unix_path
from ..catalog import Catalog, Topic
from ..config import Config, TopicDefaults, TopicSettings
from ..security.security_state import SecurityState, pack, unpack
from ..wire.kafka.metadata_reply import NO_LEADER, Broker
from ..wire.kafka.new_leaders import Leaders
from .messages import (
    Facts,
    FactsChanged,
    LimitsUsed,
    SecurityPublished,
    SnapshotBegins,
    SnapshotChange,
    SnapshotEnds,
    TopicsChanged,
    TopicsDeleted,
    UsageRow,
)

PROTOCOLS: Final = ("native", "kafka")
TOPICS_PER_MESSAGE: Final = 500


def brokers(
    broker_id: int, advertised: Mapping[str, str], peers: Mapping[int, Mapping[str, str]], listener: Listener
) -> list[Broker]:
    """See :meth:`appliance.broker.metadata_answers.Directory.brokers`; other arguments as in :class:`Facts`."""
    addresses = {peer: _address(listeners, listener) for peer, listeners in peers.items()}
    addresses[broker_id] = (not listener.unix and _address(advertised, listener)) or listener.address
    return [Broker(number, *_host_port(addresses[number])) for number in sorted(addresses) if addresses[number]]


def _host_port(address: str) -> tuple[str, int]:
    """As clients get it; the path of a Unix socket, and 0."""
    return (unix_path(address)[0], 0) if address.startswith(UNIX) else parse_addresses(address)[0]


def _address(listeners: Mapping[str, str], like: Listener) -> str:
    """The address of a listener with the protocol and the security of another; "" without one."""
    return first_with(like.security, parse_listeners(like.protocol, listeners.get(like.protocol, "")))


def advertised(config: Config) -> dict[str, str]:
    """See :class:`Facts`."""
    return {protocol: getattr(config, protocol).advertised for protocol in PROTOCOLS}


def changes_at_start(config: Config, catalog: Catalog, security: SecurityState, zookeeper: str) -> list[SnapshotChange]:
    """The changes of a snapshot before there is a coordinator.

    None at the first start of all: the coordinator makes the secret that logins need.
    """
    if not security.secret:
        return []
    here = advertised(config)
    facts = Facts(
        catalog.cluster, config.broker.id, config.topics.auto_create, zookeeper, here, {}, config.topic_defaults
    )
    return list(Publisher().changes(facts, catalog.topics, security))


class Publisher:
    """Remembers what one worker was sent; :meth:`changes` are the messages that bring its snapshot up to date."""

    def __init__(self) -> None:
        self._facts: Facts | None = None
        self._seen: Mapping[str, Topic] | None = None
        self._topics: dict[str, Topic] = {}
        self._security: SecurityState | None = None

    def changes(self, facts: Facts, topics: Mapping[str, Topic], security: SecurityState) -> Iterator[SnapshotChange]:
        """Messages with all changes since the last call.

        ``topics``, each topic in it and ``security`` are immutable: a change makes a new object, so identity shows what
        has changed.
        """
        first = self._facts is None
        if first:
            yield SnapshotBegins()
        if facts != self._facts:
            yield FactsChanged(facts)
        if security is not self._security:
            yield SecurityPublished(pack(security))
        if topics is not self._seen:
            gone = [name for name in self._topics if name not in topics]
            new = (topic for name, topic in topics.items() if self._topics.get(name) is not topic)
            while some := list(islice(new, TOPICS_PER_MESSAGE)):
                yield TopicsChanged(some)
            for start in range(0, len(gone), TOPICS_PER_MESSAGE):
                yield TopicsDeleted(gone[start : start + TOPICS_PER_MESSAGE])
        if first:
            yield SnapshotEnds()
        self._facts, self._seen, self._topics, self._security = facts, topics, dict(topics), security


class WorkerSnapshot:
    """The snapshot in a worker: :class:`appliance.broker.metadata_answers.Directory` once it is :attr:`complete`."""

    def __init__(
        self,
        on_security: Sequence[Callable[[SecurityState], None]] = (),
        on_usage: Callable[[list[UsageRow]], None] = lambda _: None,
    ) -> None:
        """Begin without anything.

        Args:
            on_security: each is called with each new state.
            on_usage: called with what clients of other workers have taken from their limits.
        """
        self._on_security, self._on_usage = on_security, on_usage
        self.complete = False
        self.revision = 0
        self.security = SecurityState()
        """Identity shows whether it has changed."""
        self._facts = self._next_facts = Facts("", -1, False, "", {}, {}, TopicDefaults())
        self._topics: dict[str, Topic] = {}
        self._next: dict[str, Topic] = self._topics
        """The same object as ``_topics``, except between the begin and the end of a whole one."""
        self.names: dict[bytes, str] = {}
        """Names of topics, by the 16 bytes of their ids.  Always the same object."""

    def apply_change(self, change: SnapshotChange) -> None:
        match change:
            case LimitsUsed(rows):
                self._on_usage(rows)
                return
            case SnapshotBegins():
                self._next = {}
            case FactsChanged(facts):
                self._next_facts = facts
            case SecurityPublished(packed):
                self.security = unpack(packed)
                for take in self._on_security:
                    take(self.security)
            case TopicsChanged(topics):
                self._rename([topic.name for topic in topics], topics)
                self._next.update((topic.name, topic) for topic in topics)
            case TopicsDeleted(names):
                self._rename(names, [])
                for name in names:
                    self._next.pop(name, None)
            case SnapshotEnds():
                self._topics = self._next
                self.names.clear()
                self._rename([], self._topics.values())
                self.complete = True
            case _:
                assert_never(change)
        if self._next is self._topics:
            self._facts = self._next_facts
            self.revision += 1

    def _rename(self, names: Iterable[str], topics: Iterable[Topic]) -> None:
        """These names are now those of these topics; not in a snapshot that is not whole yet."""
        if self._next is not self._topics:
            return
        for name in names:
            if (topic_before := self._topics.get(name)) is not None:
                self.names.pop(bytes.fromhex(topic_before.id), None)
        self.names.update((bytes.fromhex(topic.id), topic.name) for topic in topics)

    @property
    def broker_id(self) -> int:
        return self._facts.broker_id

    @property
    def cluster_id(self) -> str:
        return self._facts.cluster_id

    def identity(self) -> tuple[str, int]:
        """The ids of the cluster, "" while it is not known, and of this broker."""
        return self._facts.cluster_id, self._facts.broker_id

    @property
    def zookeeper(self) -> str:
        return self._facts.zookeeper

    @property
    def auto_create(self) -> bool:
        return self._facts.auto_create

    def brokers(self, listener: Listener) -> list[Broker]:
        facts = self._facts
        return brokers(facts.broker_id, facts.advertised, facts.peers, listener)

    def topics(self) -> Mapping[str, Topic]:
        return self._topics

    def leader(self, topic: Topic, partition: int) -> int:
        leader = topic.leader(partition)
        return leader if leader == self._facts.broker_id or leader in self._facts.peers else NO_LEADER

    def leaders(self, listener: Listener) -> Leaders:
        """Who leads what, for the clients of a listener."""
        return Leaders(lambda: self.broker_id, self._leader_of, lambda: self.brokers(listener))

    def _leader_of(self, name: str, partition: int) -> int | None:
        topic = self._topics.get(name)
        return None if topic is None or partition not in topic.partitions else self.leader(topic, partition)

    def settings(self, topic: Topic) -> TopicSettings:
        return self._facts.defaults.held_by(topic.name, topic.settings)
