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
    def __init__(self, coordinator: TransactionCoordinator, hanging: HangingTransactions) -> None:
        self._coordinator, self._hanging = coordinator, hanging
        self.verbs: dict[str, Callable[[Any, Access], Awaitable[Any]]] = {
            "transactions": self.list,
            "transaction": self.describe,
            "abort_transaction": self.abort,
            "hanging_transactions": self.hanging,
            "abort_hanging": self.abort_hanging,
        }

    async def list(self, wanted: Nothing, access: Access) -> list[dict[str, Any]]:
        self._check()
        return [
            self._row(name, one)
            for name, one in sorted(self._coordinator.all().items())
            if access.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name)
        ]

    async def describe(self, wanted: OneTransaction, access: Access) -> dict[str, Any]:
        one = self._find(wanted.id)
        shown = access.describable
        parts = [part.key for part in one.parts if shown[part.topic]]
        offsets = [(each.group, *each.part.key, each.offset) for each in one.offsets if shown[each.part.topic]]
        return self._row(wanted.id, one) | {"parts": parts, "offsets": offsets}

    async def abort(self, wanted: OneTransaction, access: Access) -> None:
        """Abort it as if its time was up.

        Raises:
            UnknownTransactionalId: there is none.
            InvalidTransactionState: it is not Ongoing.
            ZooKeeperAway: try again.
        """
        one = self._find(wanted.id)
        code = await self._coordinator.abort(wanted.id)
        if code is Code.INVALID_TXN_STATE:
            raise InvalidTransactionState(f"transaction {wanted.id!r} cannot be aborted: it is {one.state.value}")
        if code:
            raise ZooKeeperAway(f"transaction {wanted.id!r} cannot be aborted now: try again")

    async def hanging(self, wanted: HangingIn, access: Access) -> Sequence[dict[str, Any]]:
        """Raises as :meth:`HangingTransactions.of`."""
        return [
            {"producer_id": one.id, "epoch": one.epoch, "first": one.open_from, "last_ms": one.timestamp_ms}
            for one in await self._hanging.of(self._partition(wanted))
        ]

    async def abort_hanging(self, wanted: HangingIn, access: Access) -> None:
        """Raises as :meth:`TransactionCoordinator.abort_hanging`."""
        await self._coordinator.abort_hanging(self._partition(wanted))

    def _partition(self, wanted: HangingIn) -> TopicPartition:
        known = self._coordinator.store.topics().get(wanted.name)
        if known is None or wanted.partition not in known.partitions:
            raise UnknownPartition(f"there is no partition {wanted.name}-{wanted.partition}")
        return TopicPartition(wanted.name, wanted.partition)

    def _find(self, transactional_id: str) -> Transaction:
        self._check()
        one = self._coordinator.get(transactional_id)
        if one is None:
            raise UnknownTransactionalId(f"there is no transactional id {transactional_id!r}")
        return one

    def _check(self) -> None:
        if self._coordinator.unknown():
            raise ZooKeeperAway("it is not known yet which transactions there are: try again")

    def _row(self, name: str, one: Transaction) -> dict[str, Any]:
        return {
            "id": name,
            "state": one.state.value,
            "producer_id": one.producer_id,
            "epoch": one.epoch,
            "timeout_ms": one.timeout_ms,
            "open_ms": max(0, self._coordinator.clock_ms() - one.started_ms) if one.is_open else None,
            "partitions": len(one.parts),
            "groups": list(one.groups),
        }
