"""What the groups need of the appliance: a store for offsets and members, and the brokers that share the groups.

The coordinator process implements :class:`GroupStore` over ZooKeeper, the tests with dictionaries.  Plain methods
answer from memory, also while ZooKeeper is away.  ``async`` ones may wait for ZooKeeper; their implementer keeps the
deadline and raises ``ZooKeeperAway`` within a few seconds, so that no client's request hangs.  All raise nothing but
:class:`~appliance.errors.ApplianceError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ..catalog import Topic
from ..errors import ApplianceError
from ..names import TopicPartition
from ..wire.kafka.metadata_reply import Broker


class Commit(NamedTuple):
    """A committed offset: the next message to read, and what Kafka's clients may store with it.

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
    """A group of the registries.  ``native``: its members use the native listener and rebalance themselves.

    ``protocol_type``: of the members that have committed, also when they are gone; "" when none ever has.
    """

    name: str
    native: bool
    members: tuple[RegisteredMember, ...]
    protocol_type: str = ""


class GroupStore(Protocol):
    @property
    def broker_id(self) -> int: ...

    def brokers(self, listener: str) -> Sequence[Broker]:
        """Live brokers with a Kafka listener, by id; this one always among them.

        ``listener`` is our address that the client connected to.
        """

    def topics(self) -> Mapping[str, Topic]: ...

    @property
    def leads(self) -> bool:
        """May this appliance coordinate groups now?  False while the lease of its ZooKeeper session is over."""

    async def claim(self, group: str) -> None:
        """Have the group for this appliance alone.  When that is over, :meth:`GroupCoordinator.lose` is called."""

    async def commit(
        self, group: str, offsets: Mapping[TopicPartition, Commit | None], protocol_type: str = ""
    ) -> Mapping[TopicPartition, ApplianceError]:
        """Store offsets, or (None) delete them; the result names those that were refused.

        Of several commits of one partition the last call wins.  Waits for ZooKeeper, but for a bounded time.
        ``protocol_type``: of the group that the committing member belongs to; "" for who is no member.
        """

    async def committed(
        self, group: str, partitions: Sequence[TopicPartition] | None
    ) -> Mapping[TopicPartition, Commit]:
        """Committed offsets of ``partitions``, or (None) all of the group; partitions without one are left out."""

    async def forget(self, group: str) -> None:
        """Delete the whole group from the registry."""

    async def groups(self) -> Sequence[RegisteredGroup]:
        """All groups in the registry, of either listener; their ``members`` may be left empty."""

    async def group(self, name: str) -> RegisteredGroup | None:
        """One group of the registry with its members; None when there is no such group."""

    def register(self, group: str, members: Callable[[], Sequence[RegisteredMember]]) -> None:
        """Have these as the group's members in the registry, when ZooKeeper permits; none: take them away.

        Called after every change; ``members`` is asked later, once for any number of changes.  Neither fails nor
        waits.
        """
