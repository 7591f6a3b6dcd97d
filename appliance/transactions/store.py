"""The interface of the transactions to the appliance: a store for their states, the writers, and who shares them.

The coordinator process implements both over ZooKeeper and the supervisor, the tests with dictionaries.  Plain methods
answer from memory.  ``async`` ones may wait, for a bounded time, and raise only
:class:`~appliance.errors.ApplianceError`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from ..catalog import Topic
from ..names import TopicPartition
from .transaction import ProducerIdentity, Transaction, TransactionPart

UNDECIDED_MS: Final = -1
"""The time of a marker that no coordinator has decided: an administrator's."""


class TransactionStore(Protocol):
    @property
    def serves(self) -> bool:
        """Whether there can be transactions at all: there is a ZooKeeper, and no other appliance in the ensemble."""

    @property
    def leads(self) -> bool:
        """Whether this appliance may coordinate now; false while the lease of its ZooKeeper session is over."""

    def epoch(self, transactional_id: str) -> int:
        """The coordinator's epoch for this id: higher than that of everybody who coordinated it before."""

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


class MarkerWriters(Protocol):
    async def open(self, part: TransactionPart, producer: ProducerIdentity) -> None:
        """Let a partition take batches of the producer's transaction.

        Raises:
            Unavailable: not known whether it has been done; it is safe to ask again.
            UnknownPartition: there is none.
        """

    async def mark(
        self,
        part: TransactionPart,
        producer: ProducerIdentity,
        coordinator_epoch: int,
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

    async def abort_hanging(self, partition: TopicPartition, known_producers: Callable[[], Collection[int]]) -> None:
        """End what is open in a partition but for transactions of ``known_producers``.  Raises as :meth:`open`."""
