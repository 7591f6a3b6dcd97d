"""The interface of the groups to the appliance: a store for offsets and members, and the brokers that share the groups.

The coordinator process implements :class:`GroupStore` over ZooKeeper, the tests with dictionaries.  Plain methods
answer from memory, also while ZooKeeper is away.  ``async`` methods may wait for ZooKeeper; they raise
``ZooKeeperAway`` within a few seconds, so that no client's request hangs.  All raise only
:class:`~appliance.errors.ApplianceError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ..addresses import Listener
from ..catalog import Topic
from ..errors import ApplianceError
from ..names import TopicPartition
from ..wire.kafka.metadata_reply import Broker


class Commit(NamedTuple):
    """A committed offset: that of the next message to read.

    Kafka's clients may store a note with it, and the leader epoch of the last message read (-1: not known).
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class RegisteredMember(NamedTuple):
    """A registered member: the ``topics`` that it subscribes to, the ``partitions`` that it owns."""

    id: str
    client_id: str
    host: str
    topics: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]


class RegisteredGroup(NamedTuple):
    """A registered group.  ``native``: its members use the native listener and rebalance themselves.

    ``protocol_type``: of the members that have committed, also after they have left; "" when none has.  ``owned_ms``:
    since when a partition is its owner's, in ms since 1970.
    """

    name: str
    native: bool
    members: tuple[RegisteredMember, ...]
    protocol_type: str = ""
    owned_ms: Mapping[TopicPartition, int] = {}


class ListedGroup(NamedTuple):
    """A group of a list: as :class:`RegisteredGroup`, with the number of its members."""

    name: str
    native: bool
    members: int
    protocol_type: str = ""


class GroupStore(Protocol):
    @property
    def broker_id(self) -> int: ...

    def brokers(self, listener: Listener) -> Sequence[Broker]:
        """See :meth:`appliance.broker.metadata_answers.Directory.brokers`; ``listener`` is a Kafka listener."""

    def topics(self) -> Mapping[str, Topic]: ...

    @property
    def revision(self) -> int:
        """Grows with every change of :meth:`topics`; it may grow without one."""

    @property
    def leads(self) -> bool:
        """Whether this appliance may coordinate groups now; false while the lease of its ZooKeeper session is over."""

    def is_native(self, group: str) -> bool:
        """Whether this appliance knows native members of the group."""

    async def claim(self, group: str, *, make: bool = True) -> bytes:
        """Claim the group for this appliance.  When the claim is over, :meth:`.GroupCoordinator.lose` is called.

        Args:
            make: also one that does not exist.

        Returns:
            The snapshot that the coordinator before has saved, to the first call under each claim; else b"".
        """

    async def save(self, group: str, snapshot: bytes | None) -> None:
        """Store the snapshot of a group that is claimed, so that the next coordinator finds it; None: there is none."""

    async def commit(
        self, group: str, offsets: Mapping[TopicPartition, Commit | None], protocol_type: str = ""
    ) -> Mapping[TopicPartition, ApplianceError]:
        """Store offsets, or (None) delete them; the result names those that were refused.

        Of several commits of one partition the last call wins.  Waits for ZooKeeper, but for a bounded time.
        ``protocol_type``: of the group that the committing member belongs to; "" for other clients.
        """

    async def committed(
        self, group: str, partitions: Sequence[TopicPartition] | None
    ) -> Mapping[TopicPartition, Commit]:
        """Committed offsets of ``partitions``, or (None) all of the group; partitions without one are left out."""

    async def forget(self, group: str) -> None:
        """Delete the whole group from the registry."""

    async def groups(self, selects: Callable[[str], bool]) -> Sequence[ListedGroup]:
        """The registered groups of either listener that ``selects`` chooses by name; others cost next to nothing."""

    async def group(self, name: str) -> RegisteredGroup | None:
        """One group of the registry with its members; None when there is no such group."""

    def register(self, group: str, members: Callable[[], Sequence[RegisteredMember]]) -> None:
        """Register these as the group's members, once ZooKeeper is there; none: unregister them.

        Called after every change; ``members`` is called later, once for any number of changes.  Never fails or waits.
        """
