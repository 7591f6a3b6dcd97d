"""Answers the native verbs about transactions; ``wire/native_admin.py`` specifies them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ...errors import InvalidTransactionState, UnknownPartition, UnknownTransactionalId, ZooKeeperAway
from ...names import TopicPartition
from ...security.acls import Access, Operation, ResourceType
from ...transactions.transaction import Transaction
from ...transactions.transaction_coordinator import TransactionCoordinator
from ...wire.kafka.codes import Code
from ...wire.native_admin import HangingIn, Nothing, OneTransaction
from .hanging_transactions import HangingTransactions


class TransactionsNativeApi:
    """``of_ids``: verbs about transactional ids, those of this appliance; ``of_partitions``: about partitions here."""

    def __init__(self, coordinator: TransactionCoordinator, hanging: HangingTransactions) -> None:
        self._coordinator, self._hanging = coordinator, hanging
        self.of_ids: dict[str, Callable[[Any, Access], Awaitable[Any]]] = {
            "transactions": self.list,
            "transaction": self.describe,
            "abort_transaction": self.abort,
        }
        self.of_partitions: dict[str, Callable[[Any, Access], Awaitable[Any]]] = {
            "hanging_transactions": self.hanging,
            "abort_hanging": self.abort_hanging,
        }

    async def list(self, request: Nothing, access: Access) -> list[dict[str, Any]]:
        self._check()
        return [
            self._row(name, transaction)
            for name, transaction in sorted(self._coordinator.all().items())
            if access.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name)
        ]

    async def describe(self, request: OneTransaction, access: Access) -> dict[str, Any]:
        transaction = self._find(request.id)
        shown = access.describable
        parts = [part.key for part in transaction.parts if shown[part.topic]]
        offsets = [
            (pending.group, *pending.part.key, pending.offset)
            for pending in transaction.offsets
            if shown[pending.part.topic]
        ]
        return self._row(request.id, transaction) | {"parts": parts, "offsets": offsets}

    async def abort(self, request: OneTransaction, access: Access) -> None:
        """Abort it as if its time was up.

        Raises:
            UnknownTransactionalId: there is none.
            InvalidTransactionState: it is not Ongoing.
            ZooKeeperAway: try again.
        """
        transaction = self._find(request.id)
        code = await self._coordinator.abort(request.id)
        if code is Code.INVALID_TXN_STATE:
            raise InvalidTransactionState(
                f"transaction {request.id!r} cannot be aborted: it is {transaction.state.value}"
            )
        if code:
            raise ZooKeeperAway(f"transaction {request.id!r} cannot be aborted now: try again")

    async def hanging(self, request: HangingIn, access: Access) -> Sequence[dict[str, Any]]:
        """Raises as :meth:`HangingTransactions.find`."""
        return [
            {
                "producer_id": producer.id,
                "epoch": producer.epoch,
                "first": producer.open_from,
                "last_ms": producer.timestamp_ms,
            }
            for producer in await self._hanging.find(self._partition(request))
        ]

    async def abort_hanging(self, request: HangingIn, access: Access) -> None:
        """Raises as :meth:`TransactionCoordinator.abort_hanging`."""
        await self._coordinator.abort_hanging(self._partition(request))

    def _partition(self, request: HangingIn) -> TopicPartition:
        described = self._coordinator.store.topics().get(request.name)
        if described is None or request.partition not in described.partitions:
            raise UnknownPartition(f"there is no partition {request.name}-{request.partition}")
        return TopicPartition(request.name, request.partition)

    def _find(self, transactional_id: str) -> Transaction:
        self._check()
        transaction = self._coordinator.get(transactional_id)
        if transaction is None:
            raise UnknownTransactionalId(f"there is no transactional id {transactional_id!r}")
        return transaction

    def _check(self) -> None:
        if self._coordinator.unknown():
            raise ZooKeeperAway("it is not known yet which transactions there are: try again")

    def _row(self, name: str, transaction: Transaction) -> dict[str, Any]:
        return {
            "id": name,
            "state": transaction.state.value,
            "producer_id": transaction.producer_id,
            "epoch": transaction.epoch,
            "timeout_ms": transaction.timeout_ms,
            "open_ms": max(0, self._coordinator.clock_ms() - transaction.started_ms) if transaction.is_open else None,
            "partitions": len(transaction.parts),
            "groups": list(transaction.groups),
        }
