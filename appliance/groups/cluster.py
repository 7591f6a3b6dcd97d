"""What the Kafka door's cold APIs need to know of the appliance and to ask of it: one narrow interface.

The handlers in :mod:`appliance.groups.api` are pure: they look at the picture that :class:`Cluster` offers
and ask it for changes.  ``appliance.processes.coordinator`` implements it over the catalog, the segment
tables and ZooKeeper; the tests implement it with dictionaries.

Two kinds of methods:

* Pictures (``brokers``, ``topics``, ``extent`` …) answer at once from memory and never raise: they show the
  last known state also while ZooKeeper is away.
* Requests take ``done`` and answer later, by calling it **exactly once**, in the caller's thread, with the
  result or with an :class:`~appliance.errors.ApplianceError`; also at once, before the method returns, if
  the answer is known.  The implementer keeps the deadline: without ZooKeeper ``done`` gets ``ZooKeeperAway``
  within a few seconds, so no request of a client ever hangs.

Offsets are logical byte offsets.  Names and values of settings are Kafka's, as ``TopicSettings.as_kafka``
writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from appliance.errors import ApplianceError

Result = TypeVar("Result")
Done = Callable[[Result | ApplianceError], None]

TopicPartition = tuple[str, int]
NO_LEADER = -1


class Broker(NamedTuple):
    """A live appliance and the address of its Kafka door, as the asking client should see it."""

    id: int
    host: str
    port: int


class PartitionPlace(NamedTuple):
    """``brokers``: who stores the partition; ``leader``: the one that serves it, NO_LEADER while none can."""

    leader: int
    brokers: tuple[int, ...]


class Topic(NamedTuple):
    """``partitions[i]`` is partition i; ``settings`` holds only what was set for it, by Kafka name."""

    name: str
    partitions: tuple[PartitionPlace, ...]
    settings: Mapping[str, str]


class Extent(NamedTuple):
    """What can be read of a partition stored here: offsets [start, end); ``size`` is bytes on disk."""

    start: int
    end: int
    size: int


class Commit(NamedTuple):
    """A group's position: offset of the next message, and the note that Kafka clients may store with it."""

    offset: int
    metadata: str = ""


class RegisteredMember(NamedTuple):
    """A member as the registries show it: ``topics`` it subscribes to, ``partitions`` it owns."""

    id: str
    client_id: str
    host: str
    topics: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]


class RegisteredGroup(NamedTuple):
    """A group of the registries.  ``native``: its members use the native door and rebalance themselves."""

    name: str
    native: bool
    members: tuple[RegisteredMember, ...]


class Cluster(Protocol):
    # -- pictures ----------------------------------------------------------------------------------
    @property
    def broker_id(self) -> int: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def data_dir(self) -> str:
        """Absolute path, the one log directory that DescribeLogDirs shows."""

    @property
    def revision(self) -> int:
        """Grows with every change of ``topics()``, also of a leader: encoded metadata may be cached by it."""

    def brokers(self, listener: str) -> Sequence[Broker]:
        """Live appliances by ascending id, this one always among them.

        ``listener`` is the "host:port" of ours that the client connected to, so that a client which came
        through one network is not sent to an address of another.
        """

    def topics(self) -> Mapping[str, Topic]:
        """All topics of the cluster.  The caller does not change it and does not keep it."""

    def extent(self, topic: str, partition: int) -> Extent | ApplianceError:
        """``UnknownPartition``; ``NotLeader`` when stored elsewhere; ``StorageFault`` when it is offline."""

    def topic_defaults(self) -> Mapping[str, str]:
        """Every topic setting with the value that holds where a topic does not set it."""

    def disk_space(self) -> tuple[int, int]:
        """Bytes in all and bytes usable of the file system under ``data_dir``."""

    # -- topics ------------------------------------------------------------------------------------
    def create_topic(self, name: str, partitions: int, settings: Mapping[str, str], done: Done[None]) -> None:
        """``done`` comes when ``topics()`` shows the topic and its partitions can be produced to."""

    def delete_topic(self, name: str, done: Done[None]) -> None: ...

    def alter_topic(self, name: str, settings: Mapping[str, str | None], done: Done[None]) -> None:
        """Set, or with None take back, single settings; the others stay."""

    def add_partitions(self, name: str, count: int, done: Done[None]) -> None:
        """``count`` is the new total, larger than the present one."""

    def delete_records(self, topic: str, partition: int, offset: int, done: Done[int]) -> None:
        """Give up what lies before ``offset``; whole segments go: the new start (result) may be lower."""

    # -- groups ------------------------------------------------------------------------------------
    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, Commit],
        done: Done[Mapping[TopicPartition, ApplianceError]],
    ) -> None:
        """Store positions in the registry; the result names those that could not be stored."""

    def committed(
        self,
        group: str,
        partitions: Sequence[TopicPartition] | None,
        done: Done[Mapping[TopicPartition, Commit]],
    ) -> None:
        """Positions of the group, of ``partitions`` or (None) of all that it has; one without is left out."""

    def forget(self, group: str, partitions: Sequence[TopicPartition] | None, done: Done[None]) -> None:
        """Drop positions; with None the whole group goes from the registry."""

    def groups(self, done: Done[Sequence[str]]) -> None:
        """Names of all groups in the registry, of either door, with or without members."""

    def group(self, name: str, done: Done[RegisteredGroup | None]) -> None:
        """One group of the registry; None when there is no such group."""

    def register(self, group: str, members: Sequence[RegisteredMember]) -> None:
        """Show these as the group's members in the registry, when ZooKeeper permits; none: take them away.

        Called with the full list after every change; only the last one counts.
        """

    # -- producers ---------------------------------------------------------------------------------
    def producer_id(self, done: Done[int]) -> None:
        """A producer id that this cluster has never given out."""
