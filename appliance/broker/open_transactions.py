"""Knows which producers are in a transaction at a partition, as the transaction coordinator has said.

What is said here is not in the log: a writer that has just been started knows nothing, until the coordinator has sent
it all again (``sent``).
"""

from __future__ import annotations

from ..errors import InvalidTransactionState, OutOfResources, StaleProducerEpoch, TransactionUnverified


class OpenTransactions:
    """The transactions that are open at one partition, at most ``ids_max`` of them."""

    def __init__(self, ids_max: int) -> None:
        self._ids_max = ids_max
        self._epochs: dict[int, int] = {}
        """By producer id, those that are in a transaction."""
        self.sent = False
        """Whether the coordinator has sent all that is open to this writer."""

    def open_transaction(self, producer_id: int, epoch: int) -> None:
        """Begin a transaction; again, nothing changes.

        Raises:
            OutOfResources: too many are open.
            StaleProducerEpoch: a newer incarnation of the producer is in one.
        """
        if len(self._epochs) >= self._ids_max and producer_id not in self._epochs:
            raise OutOfResources(f"{self._ids_max} transactions are open at one partition: try again later")
        self.check_epoch(producer_id, epoch)
        self._epochs[producer_id] = epoch

    def end_transaction(self, producer_id: int) -> None:
        """End a transaction; one that is not open stays so."""
        self._epochs.pop(producer_id, None)

    def check_batch(self, producer_id: int, epoch: int) -> None:
        """Check that a batch of a producer may be part of a transaction.

        Raises:
            InvalidTransactionState: it is in none.
            TransactionUnverified: that is not known: send the batch again.
        """
        if self._epochs.get(producer_id, -1) != epoch:
            if self.sent:
                raise InvalidTransactionState(f"producer {producer_id}, epoch {epoch}, is in no transaction here")
            raise TransactionUnverified(f"it is not known yet whether producer {producer_id} is in a transaction here")

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Raises StaleProducerEpoch: a newer incarnation of the producer is in a transaction."""
        open_epoch = self._epochs.get(producer_id, epoch)
        if epoch < open_epoch:
            raise StaleProducerEpoch(f"producer {producer_id}: epoch {epoch}, but {open_epoch} is in a transaction")
