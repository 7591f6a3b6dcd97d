"""The interface of the transactions to the appliance: a store for their states, the writers, and who shares them.

The coordinator process implements both over ZooKeeper and the supervisor, the tests with dictionaries.  Plain methods
answer from memory.  ``async`` ones may wait, for a bounded time, and raise only
:class:`~appliance.errors.ApplianceError`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from ..catalog import Topic
from ..names import TopicPartition
from ..wire.kafka.codes import Code
from .transaction import PendingOffset, ProducerIdentity, Transaction, TransactionPart

UNDECIDED_MS: Final = -1
"""The time of a marker that no coordinator has decided: an administrator's."""


class Lead(NamedTuple):
    """By which right a coordinator acts: ids belong to slots, and each next coordinator of one has a higher epoch."""

    slot: int
    epoch: int


NO_SLOT: Final = -1
"""Instead of a slot: it is no coordinator that acts, but an administrator."""


class OpenProducer(NamedTuple):
    """Who is in a transaction in a partition; not ``is_ongoing``: it is about to end."""

    partition: TopicPartition
    producer: ProducerIdentity
    is_ongoing: bool


class Committer(NamedTuple):
    """Who commits offsets in a transaction, as it says itself (KIP-447)."""

    group: str
    member_id: str
    instance: str | None
    generation: int

    @property
    def is_anonymous(self) -> bool:
        """Whether it says nothing: it may commit, as before KIP-447."""
        return self.generation < 0 and not self.member_id and self.instance is None


class TransactionStore(Protocol):
    @property
    def serves(self) -> bool:
        """Whether there can be transactions at all: there is a ZooKeeper."""

    @property
    def leads(self) -> bool:
        """Whether this appliance may coordinate now; false while the lease of its ZooKeeper session is over."""

    def owner_of(self, transactional_id: str) -> str:
        """What is coordinated, of which an id is a part: a name for ``coordinator_of``."""

    def coordinates(self, transactional_id: str) -> bool:
        """Whether this appliance is to coordinate an id, by the appliances that live."""

    def lead(self, transactional_id: str) -> Lead:
        """By which right this appliance acts for an id that it coordinates.

        Raises:
            NotCoordinator: it does not coordinate it any more.
        """

    async def put(self, transactional_id: str, transaction: Transaction | None) -> None:
        """Store the state of an id, or (None) delete it; it is durable when this returns.

        Raises:
            Unavailable: it may or may not be stored.
        """

    async def complete(self, transactional_id: str, before: Transaction, after: Transaction) -> None:
        """Store the end of a transaction, and in the same step the offsets that ``before`` commits.

        Raises:
            Unavailable: both may or may not be stored; the same call again finds that out.
        """

    def topics(self) -> Mapping[str, Topic]: ...

    # -- the other appliances of the ensemble

    async def open_elsewhere(self, partitions: Collection[TopicPartition]) -> list[OpenProducer]:
        """Who is in transactions there that others coordinate.

        Raises:
            Unavailable: some that are not known here are not known elsewhere either, now.
        """

    async def pending_elsewhere(self, group: str) -> Collection[TopicPartition]:
        """The partitions whose committed offset transactions may change that others coordinate.  Raises as above."""

    async def announce_pending(self, group: str, transactional_id: str) -> None:
        """Tell a group's coordinator that an id of ours is given offsets of the group, unless that is this one.

        Clients of Kafka send them there, so that it knows.

        Raises:
            ApplianceError: it may not know.
        """

    def groups_elsewhere(self, transaction: Transaction) -> list[str]:
        """The groups of its offsets that others coordinate."""

    async def hand_over(self, transactional_id: str, transaction: Transaction, group: str) -> None:
        """Have the coordinator of a group commit its offsets, which are taken from the stored ``transaction``.

        Raises:
            Unavailable: it may or may not be done; the same call again finds that out.
        """

    async def add_offsets_elsewhere(
        self, transactional_id: str, producer: ProducerIdentity, consumer: Committer, offsets: Sequence[PendingOffset]
    ) -> Code:
        """TxnOffsetCommit of an id that another appliance coordinates; of a group that this one does."""


class MarkerWriters(Protocol):
    async def open(self, part: TransactionPart, producer: ProducerIdentity, lead: Lead) -> None:
        """Let a partition take batches of the producer's transaction.

        Raises:
            Unavailable: not known whether it has been done; it is safe to ask again.
            UnknownPartition: there is none.
        """

    async def mark(
        self,
        part: TransactionPart,
        producer: ProducerIdentity,
        lead: Lead,
        committed: bool,
        decided_ms: int,
        inherited: bool,
    ) -> None:
        """End the transaction in a partition: the marker is flushed when this returns.  Raises as :meth:`open`.

        Args:
            decided_ms: :attr:`.Transaction.changed_ms` of the decision; UNDECIDED_MS: it is no coordinator's.
            inherited: an earlier coordinator has decided it.  Where the producer's last marker is of this decision or a
                later one, what is open is a later transaction, of which nobody knows: it is aborted.
        """

    async def abort_hanging(self, partition: TopicPartition) -> None:
        """End what is open in a partition and no coordinator knows of.  Raises as :meth:`open`."""
