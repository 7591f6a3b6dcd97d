"""What the Kafka door's cold APIs need to know of the appliance and to ask of it: one narrow interface.

The handlers look at the picture that :class:`Cluster` offers and ask it for changes.  The coordinator process
implements it over topics, partitions and the registry in ZooKeeper; the tests implement it with dictionaries.

Two kinds of methods.  Plain ones answer from memory: they show the last known state also while ZooKeeper is
away. ``async`` ones may wait for others (the supervisor, ZooKeeper).  Their implementer keeps the deadline:
without ZooKeeper they raise ``ZooKeeperAway`` within a few seconds, so that no client's request ever
hangs.  Both raise nothing but :class:`~appliance.errors.ApplianceError`.

Offsets are logical byte offsets.  Names and values of settings are Kafka's, as ``TopicSettings.as_kafka`` has
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from appliance.catalog import Topic
from appliance.config import Config, TopicSettings
from appliance.errors import ApplianceError
from appliance.names import TopicPartition

NO_LEADER = -1


class Broker(NamedTuple):
    """A live appliance and the address of its Kafka door, as the asking client should see it."""

    id: int
    host: str
    port: int


class Extent(NamedTuple):
    """What is in a partition stored here: offsets [start, end).

    ``end`` is the log end offset: it covers what acks=1 has acknowledged, flushed and shown to readers or not.
    """

    start: int
    end: int


class Commit(NamedTuple):
    """A group's position: offset of the next message, and what Kafka's clients may store with it.

    That is a note, and the leader epoch of the last message read (-1: not known).
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class RegisteredMember(NamedTuple):
    """A member as the registries show it: ``topics`` it subscribes to, ``partitions`` it owns."""

    id: str
    client_id: str
    host: str
    topics: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]


class RegisteredGroup(NamedTuple):
    """A group of the registries.  ``native``: its members use the native door and rebalance themselves.

    ``protocol_type``: of the members that have committed, also when they are gone; "" when none ever has.
    """

    name: str
    native: bool
    members: tuple[RegisteredMember, ...]
    protocol_type: str = ""


class Directory(Protocol):
    """Which brokers and topics there are: what metadata is answered from."""

    @property
    def broker_id(self) -> int: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def zookeeper(self) -> str:
        """Where members of native groups meet; "" without an ensemble."""

    @property
    def revision(self) -> int:
        """Another number after every change of ``topics()`` and of a leader: what is encoded may be kept by it."""

    def brokers(self, listener: str, door: str = "kafka") -> Sequence[Broker]:
        """Live brokers with this door, by id; this one always among them.

        ``listener`` is our address that the client connected to: a client that came through one network is
        not sent to an address of another, unless the configuration says what to tell.
        """

    def topics(self) -> Mapping[str, Topic]: ...

    def leader(self, topic: Topic, partition: int) -> int:
        """The live broker that serves a partition, NO_LEADER while none can."""

    def settings(self, topic: Topic) -> TopicSettings:
        """What holds for a topic: its own settings over the defaults."""


class Cluster(Directory, Protocol):
    # -- the appliance and its peers ------------------------------------------------------------------

    @property
    def config(self) -> Config:
        """What this appliance runs with now."""

    @property
    def listening(self) -> str:
        """The Kafka listener's addresses, "host:port,..."; "" before it serves."""

    @property
    def data_dir(self) -> str:
        """Absolute path, the one log directory that DescribeLogDirs shows."""

    def disk_space(self) -> tuple[int, int]:
        """Bytes in all and bytes usable of the file system under ``data_dir``."""

    def producer_id(self) -> int:
        """A producer id that this cluster has never given out."""

    # -- topics ---------------------------------------------------------------------------------------

    def default_settings(self) -> TopicSettings: ...

    def extent(self, topic: str, partition: int) -> Extent:
        """Raises UnknownPartition (also when stored elsewhere), Unavailable, StorageFault (offline)."""

    @property
    def auto_create(self) -> bool:
        """Are topics made that a client asks for and that do not exist?"""

    async def create_topic(self, name: str, partitions: int | None, settings: Mapping[str, str]) -> None:
        """Returns when the topic can be produced to; ``partitions`` None: as many as configured."""

    def check_topic(self, name: str, partitions: int | None, settings: Mapping[str, str]) -> None:
        """Raises what ``create_topic`` would raise at once, and changes nothing."""

    def check_settings(self, settings: Mapping[str, str]) -> None:
        """Raises what ``alter_topic`` would raise for these."""

    async def delete_topic(self, name: str) -> None: ...

    async def alter_topic(self, name: str, settings: Mapping[str, str | None]) -> None:
        """Set, or with None take back, single settings; the others stay."""

    async def add_partitions(self, name: str, count: int) -> None:
        """``count`` is the new total, larger than the present one."""

    async def delete_records(self, topic: str, partition: int, offset: int) -> int:
        """Give up what lies before ``offset``, which is in the partition's extent; the new start, once it holds."""

    # -- groups in the registry -----------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """May this appliance coordinate groups now?  False while the lease of its ZooKeeper session is over."""

    async def claim(self, group: str) -> None:
        """Have the group for this appliance alone.  When that is over, :meth:`GroupApi.lose` is told."""

    async def commit(
        self, group: str, offsets: Mapping[TopicPartition, Commit | None], protocol_type: str = ""
    ) -> Mapping[TopicPartition, ApplianceError]:
        """Store positions, or (None) drop them; the result names those that were refused.

        Of several commits of one partition the last call wins.  Waits for ZooKeeper, but for a bounded time.
        ``protocol_type``: of the group that the committing member belongs to; "" for who is no member.
        """

    async def committed(
        self, group: str, partitions: Sequence[TopicPartition] | None
    ) -> Mapping[TopicPartition, Commit]:
        """Positions of ``partitions``, or (None) of all that the group has; those without are left out."""

    async def forget(self, group: str) -> None:
        """The whole group goes from the registry."""

    async def groups(self) -> Sequence[RegisteredGroup]:
        """All groups in the registry, of either door, with or without members; ``members`` may be left
        empty.
        """

    async def group(self, name: str) -> RegisteredGroup | None:
        """One group of the registry with its members; None when there is no such group."""

    def register(self, group: str, members: Callable[[], Sequence[RegisteredMember]]) -> None:
        """Show these as the group's members in the registry, when ZooKeeper permits; none: take them away.

        Called after every change; ``members`` is asked later, once for any number of changes.  Neither fails nor
        waits.
        """
