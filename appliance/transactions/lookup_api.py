"""Answers what tools ask about transactions: DescribeTransactions, ListTransactions, WriteTxnMarkers.

WriteTxnMarkers ends a transaction in single partitions, for an administrator who has found one there that its
coordinator does not know (KIP-664); between brokers Kafka uses it, too, and we do not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from ..errors import ApplianceError
from ..groups.topic_patterns import compiled
from ..names import TopicPartition
from ..security.acls import Operation, ResourceType
from ..wire.kafka.call import Answer, Call, Handler, error_row, rows_by_topic
from ..wire.kafka.codes import Code
from .store import NO_SLOT, UNDECIDED_MS, Lead
from .transaction import ProducerIdentity, Transaction, TransactionPart, TransactionState
from .transaction_coordinator import TransactionCoordinator

STATES: Final = frozenset({*(state.value for state in TransactionState), "PrepareEpochFence"})
"""Kafka's names of all states."""


class TransactionLookupApi:
    def __init__(self, coordinator: TransactionCoordinator) -> None:
        self._coordinator = coordinator

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "DescribeTransactions": self._describe,
            "ListTransactions": self._list,
            "WriteTxnMarkers": self._mark,
        }

    async def _describe(self, call: Call) -> Answer:
        rows = [{"transactional_id": name} | self._row(call, name) for name in call.request.transactional_ids]
        return {"transaction_states": rows}

    def _row(self, call: Call, name: str) -> dict[str, Any]:
        if not name:
            return {"error_code": Code.INVALID_REQUEST}
        if not call.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name):
            return {"error_code": Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
        code = self._coordinator.unknown(name)
        transaction = self._coordinator.get(name)
        if code or transaction is None:
            return {"error_code": code or Code.TRANSACTIONAL_ID_NOT_FOUND}
        topics: dict[str, list[int]] = {}
        for part in transaction.parts:
            if call.access.describable[part.topic]:
                topics.setdefault(part.topic, []).append(part.partition)
        return {
            "error_code": Code.NONE,
            "transaction_state": transaction.state.value,
            "transaction_timeout_ms": transaction.timeout_ms,
            "transaction_start_time_ms": transaction.started_ms or -1,
            "producer_id": transaction.producer_id,
            "producer_epoch": transaction.epoch,
            "topics": [{"topic": topic, "partitions": numbers} for topic, numbers in topics.items()],
        }

    async def _list(self, call: Call) -> Answer:
        request = call.request
        code = self._coordinator.unknown()
        if code:
            return {"error_code": code}
        try:
            matches = compiled(request.transactional_id_pattern or ".*")
        except ValueError:
            return {"error_code": Code.INVALID_REGULAR_EXPRESSION}
        states, ids, now_ms = set(request.state_filters), set(request.producer_id_filters), self._coordinator.clock_ms()

        def is_selected(name: str, transaction: Transaction) -> bool:
            long = request.duration_filter < 0 or (
                transaction.is_open and now_ms - transaction.started_ms > request.duration_filter
            )
            return (
                (not states or transaction.state.value in states)
                and (not ids or transaction.producer_id in ids)
                and long
                and matches(name)
                and call.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name)
            )

        rows = [
            {
                "transactional_id": name,
                "producer_id": transaction.producer_id,
                "transaction_state": transaction.state.value,
            }
            for name, transaction in sorted(self._coordinator.all().items())
            if is_selected(name, transaction)
        ]
        unknown = sorted(states - STATES)
        return {"error_code": Code.NONE, "unknown_state_filters": unknown, "transaction_states": rows}

    async def _mark(self, call: Call) -> Answer:
        markers = []
        for marker in call.request.markers:
            keys = _keys(marker)
            codes = await asyncio.gather(*(self._mark_one(marker, key) for key in keys))
            markers.append(_marker(marker, dict(zip(keys, codes, strict=True))))
        return {"markers": markers}

    async def _mark_one(self, marker: Any, key: TopicPartition) -> int:
        topic = self._coordinator.store.topics().get(key.topic)
        if topic is None or key.partition not in topic.partitions:
            return Code.UNKNOWN_TOPIC_OR_PARTITION
        producer = ProducerIdentity(marker.producer_id, marker.producer_epoch)
        try:
            part = TransactionPart(key.topic, topic.id, key.partition)
            decision = marker.transaction_result, UNDECIDED_MS, False
            lead = Lead(NO_SLOT, marker.coordinator_epoch)
            await self._coordinator.writers.mark(part, producer, lead, *decision)
        except ApplianceError as error:
            return error.code
        return Code.NONE


def refused_marker(marker: Any, code: Code) -> dict[str, Any]:
    """The row of an answer to WriteTxnMarkers about a marker that is refused in each partition."""
    return _marker(marker, dict.fromkeys(_keys(marker), code))


def _keys(marker: Any) -> list[TopicPartition]:
    return [TopicPartition(topic.name, number) for topic in marker.topics for number in topic.partition_indexes]


def _marker(marker: Any, codes: Mapping[TopicPartition, int]) -> dict[str, Any]:
    return {"producer_id": marker.producer_id, "topics": rows_by_topic(codes, error_row)}
