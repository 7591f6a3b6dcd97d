"""Answers the native verbs about transactions: of their producers, and of those who look after them.

``wire/native_admin.py`` specifies the verbs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final

from ...errors import (
    ApplianceError,
    ConcurrentTransactions,
    IllegalGeneration,
    InvalidRequest,
    InvalidTransactionState,
    OffsetsFull,
    ProducerFenced,
    UnknownPartition,
    UnknownTransactionalId,
    ZooKeeperAway,
)
from ...names import TopicPartition
from ...security.acls import Access, Operation, ResourceType
from ...transactions.transaction import (
    NO_EPOCH,
    NO_ID,
    NOBODY,
    PendingOffset,
    ProducerIdentity,
    Transaction,
    TransactionPart,
)
from ...transactions.transaction_coordinator import TransactionCoordinator
from ...wire.kafka.codes import Code
from ...wire.native_admin import (
    AddOffsets,
    AddPartitions,
    EndTransaction,
    HangingIn,
    InitTransactions,
    Nothing,
    OneTransaction,
)
from .hanging_transactions import HangingTransactions
from .native_groups import check_secret

REFUSALS: Final[dict[Code, tuple[type[ApplianceError], str]]] = {
    Code.PRODUCER_FENCED: (ProducerFenced, "another producer has this id now, or the transaction took too long"),
    Code.INVALID_PRODUCER_ID_MAPPING: (UnknownTransactionalId, "its producer is not known any more"),
    Code.CONCURRENT_TRANSACTIONS: (ConcurrentTransactions, "the one before it is about to end: try again"),
    Code.INVALID_TXN_STATE: (InvalidTransactionState, "no transaction is open, or it has ended otherwise"),
    Code.INVALID_COMMIT_OFFSET_SIZE: (OffsetsFull, "it commits too many offsets"),
    Code.POLICY_VIOLATION: (InvalidRequest, "it has too many partitions, or there are too many transactional ids"),
    Code.ILLEGAL_GENERATION: (IllegalGeneration, "another member of the group owns one of the partitions"),
}


class ProducersNativeApi:
    """The verbs of transactional producers.

    The offsets of a native group's member are accepted while it owns their partitions.  They are pending before that is
    looked at, and whoever takes the partitions over owns them before it asks whether their offsets are stable.  So one
    of the two sees the other (KIP-447): the offsets are refused, or the next owner waits for the transaction to end.

    Args:
        timeout_ms_max: the longest time-out that a producer may ask for.
        owned: the partitions that a member of a native group owns; all that ZooKeeper has stored before counts.
    """

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        timeout_ms_max: Callable[[], int],
        owned: Callable[[str, str], Awaitable[Collection[TopicPartition]]],
    ) -> None:
        self._coordinator, self._timeout_ms_max, self._owned = coordinator, timeout_ms_max, owned
        self.verbs: dict[str, Callable[[Any, Access], Awaitable[Any]]] = {
            "init_transactions": self.init_transactions,
            "add_partitions": self.add_partitions,
            "add_offsets": self.add_offsets,
            "end_transaction": self.end_transaction,
        }

    async def init_transactions(self, request: InitTransactions, access: Access) -> dict[str, int]:
        claimed = ProducerIdentity(request.producer_id, request.epoch)
        if (claimed.id == NO_ID) != (claimed.epoch == NO_EPOCH) or min(claimed) < NO_ID:
            raise InvalidRequest(f"producer {claimed.id} with epoch {claimed.epoch}: give both, or none")
        longest_ms = self._timeout_ms_max()
        if not 0 < request.timeout_ms <= longest_ms:
            raise InvalidRequest(f"a time-out of {request.timeout_ms} ms: give 1 to {longest_ms}")
        outcome = await self._coordinator.initialise(
            request.id, request.timeout_ms, None if claimed == NOBODY else claimed
        )
        if isinstance(outcome, Code):
            raise _refusal(request.id, outcome)
        return {"producer_id": outcome.producer_id, "epoch": outcome.epoch}

    async def add_partitions(self, request: AddPartitions, access: Access) -> None:
        parts = [self._part(topic, partition) for topic, partition in request.partitions]
        _check_code(request.id, await self._coordinator.add_partitions(request.id, _producer(request), parts))

    async def add_offsets(self, request: AddOffsets, access: Access) -> None:
        check_secret(request.group, request.member, request.secret)
        offsets = [
            PendingOffset(request.group, self._part(topic, partition), offset)
            for topic, partition, offset in request.offsets
        ]
        for pending in offsets:
            if pending.offset < 0:
                raise InvalidRequest(
                    f"offset {pending.offset} of {pending.part.topic}-{pending.part.partition}: must be 0 or more"
                )

        async def owns() -> Code:
            await self._coordinator.store.announce_pending(request.group, request.id)
            owned = await self._owned(request.group, request.member)
            return Code.NONE if {pending.part.key for pending in offsets} <= set(owned) else Code.ILLEGAL_GENERATION

        producer = _producer(request)
        _check_code(request.id, await self._coordinator.add_group(request.id, producer, request.group))
        code = await self._coordinator.add_offsets(request.id, producer, request.group, offsets, check=owns)
        _check_code(request.id, code)

    async def end_transaction(self, request: EndTransaction, access: Access) -> None:
        _check_code(request.id, await self._coordinator.end(request.id, _producer(request), request.committed))

    def _part(self, topic: str, partition: int) -> TransactionPart:
        described = self._coordinator.store.topics().get(topic)
        if described is None or partition not in described.partitions:
            raise UnknownPartition(f"there is no partition {topic}-{partition}")
        return TransactionPart(topic, described.id, partition)


class TransactionsNativeApi:
    """The verbs of those who look after transactions.

    ``of_ids``: verbs about transactional ids, those of this appliance; ``of_partitions``: about partitions here.
    """

    def __init__(self, coordinator: TransactionCoordinator, hanging: HangingTransactions) -> None:
        self._coordinator, self._hanging = coordinator, hanging
        self.of_ids: dict[str, Callable[[Any, Access], Awaitable[Any]]] = {
            "transactions": self.list_transactions,
            "transaction": self.describe_transaction,
            "abort_transaction": self.abort_transaction,
        }
        self.of_partitions: dict[str, Callable[[Any, Access], Awaitable[Any]]] = {
            "hanging_transactions": self.list_hanging,
            "abort_hanging": self.abort_hanging,
        }

    async def list_transactions(self, request: Nothing, access: Access) -> list[dict[str, Any]]:
        self._check_loaded()
        return [
            self._row(name, transaction)
            for name, transaction in sorted(self._coordinator.all().items())
            if access.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name)
        ]

    async def describe_transaction(self, request: OneTransaction, access: Access) -> dict[str, Any]:
        transaction = self._find(request.id)
        shown = access.describable
        parts = [part.key for part in transaction.parts if shown[part.topic]]
        offsets = [
            (pending.group, *pending.part.key, pending.offset)
            for pending in transaction.offsets
            if shown[pending.part.topic]
        ]
        return self._row(request.id, transaction) | {"parts": parts, "offsets": offsets}

    async def abort_transaction(self, request: OneTransaction, access: Access) -> None:
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

    async def list_hanging(self, request: HangingIn, access: Access) -> Sequence[dict[str, Any]]:
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
        self._check_loaded()
        transaction = self._coordinator.get(transactional_id)
        if transaction is None:
            raise UnknownTransactionalId(f"there is no transactional id {transactional_id!r}")
        return transaction

    def _check_loaded(self) -> None:
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


def _producer(request: AddPartitions | AddOffsets | EndTransaction) -> ProducerIdentity:
    return ProducerIdentity(request.producer_id, request.epoch)


def _check_code(transactional_id: str, code: Code) -> None:
    if code:
        raise _refusal(transactional_id, code)


def _refusal(transactional_id: str, code: Code) -> ApplianceError:
    error, text = REFUSALS.get(code, (ZooKeeperAway, "it is not coordinated now: that needs ZooKeeper"))
    return error(f"transaction {transactional_id!r}: {text}")
