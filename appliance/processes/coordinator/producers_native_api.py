"""Answers the native verbs of transactional producers; ``wire/native_admin.py`` specifies them.

The offsets of a native group's member are accepted while it owns their partitions.  They are pending before that is
looked at, and whoever takes the partitions over owns them before it asks whether their offsets are stable.  So one of
the two sees the other (KIP-447): the offsets are refused, or the next owner waits for the end of the transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
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
from ...security.acls import Access
from ...transactions.transaction import NO_EPOCH, NO_ID, NOBODY, PendingOffset, ProducerIdentity, TransactionPart
from ...transactions.transaction_coordinator import TransactionCoordinator
from ...wire.kafka.codes import Code
from ...wire.native_admin import AddOffsets, AddPartitions, EndTransaction, InitTransactions
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
    """
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
            "init_transactions": self.initialise,
            "add_partitions": self.add,
            "add_offsets": self.add_offsets,
            "end_transaction": self.end,
        }

    async def initialise(self, request: InitTransactions, access: Access) -> dict[str, int]:
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

    async def add(self, request: AddPartitions, access: Access) -> None:
        parts = [self._part(topic, partition) for topic, partition in request.partitions]
        _check(request.id, await self._coordinator.add_partitions(request.id, _producer(request), parts))

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
            owned = await self._owned(request.group, request.member)
            return Code.NONE if {pending.part.key for pending in offsets} <= set(owned) else Code.ILLEGAL_GENERATION

        producer = _producer(request)
        _check(request.id, await self._coordinator.add_group(request.id, producer, request.group))
        code = await self._coordinator.add_offsets(request.id, producer, request.group, offsets, check=owns)
        _check(request.id, code)

    async def end(self, request: EndTransaction, access: Access) -> None:
        _check(request.id, await self._coordinator.end(request.id, _producer(request), request.committed))

    def _part(self, topic: str, partition: int) -> TransactionPart:
        described = self._coordinator.store.topics().get(topic)
        if described is None or partition not in described.partitions:
            raise UnknownPartition(f"there is no partition {topic}-{partition}")
        return TransactionPart(topic, described.id, partition)


def _producer(request: AddPartitions | AddOffsets | EndTransaction) -> ProducerIdentity:
    return ProducerIdentity(request.producer_id, request.epoch)


def _check(transactional_id: str, code: Code) -> None:
    if code:
        raise _refusal(transactional_id, code)


def _refusal(transactional_id: str, code: Code) -> ApplianceError:
    error, text = REFUSALS.get(code, (ZooKeeperAway, "it is not coordinated now: that needs ZooKeeper"))
    return error(f"transaction {transactional_id!r}: {text}")
