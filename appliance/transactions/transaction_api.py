"""Answers the requests of transactional producers: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn.

InitProducerId without a transactional id is answered, too.  TxnOffsetCommit is in :mod:`.offsets_api`, and what tools
ask in :mod:`.lookup_api`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ..names import GROUP_CHARACTERS_MAX, TRANSACTIONAL_ID_CHARACTERS_MAX, TopicPartition
from ..security.acls import Operation, ResourceType
from ..wire.kafka.call import Answer, Call, Handler, rows_by_topic
from ..wire.kafka.codes import Code
from .transaction import NO_EPOCH, NO_ID, NOBODY, ProducerIdentity, TransactionPart
from .transaction_coordinator import TransactionCoordinator

FENCED_FROM: Final = {"InitProducerId": 4, "AddPartitionsToTxn": 2, "AddOffsetsToTxn": 2, "EndTxn": 2}
"""First version whose clients know PRODUCER_FENCED; earlier ones are told INVALID_PRODUCER_EPOCH."""


def named_as_known(api: str, version: int, code: Code) -> Code:
    """The error in the words of this version."""
    return Code.INVALID_PRODUCER_EPOCH if code is Code.PRODUCER_FENCED and version < FENCED_FROM[api] else code


class TransactionApi:
    """``timeout_ms_max``: the longest time-out that a producer may ask for."""

    def __init__(self, coordinator: TransactionCoordinator, timeout_ms_max: Callable[[], int]) -> None:
        self._coordinator, self._timeout_ms_max = coordinator, timeout_ms_max

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "InitProducerId": self._initialise,
            "AddPartitionsToTxn": self._add,
            "AddOffsetsToTxn": self._add_group,
            "EndTxn": self._end,
        }

    async def _initialise(self, call: Call) -> Answer:
        request = call.request
        name = request.transactional_id
        if name is None:
            return {"error_code": Code.NONE, "producer_id": self._coordinator.new_id(), "producer_epoch": 0}
        claimed = ProducerIdentity(request.producer_id, request.producer_epoch)
        code = self._refuse(call, name, claimed)
        if not code:
            outcome = await self._coordinator.initialise(
                name, request.transaction_timeout_ms, None if claimed == NOBODY else claimed
            )
            if not isinstance(outcome, Code):
                return {"error_code": Code.NONE, "producer_id": outcome.producer_id, "producer_epoch": outcome.epoch}
            code = named_as_known("InitProducerId", call.version, outcome)
        return {"error_code": code, "producer_id": NO_ID, "producer_epoch": NO_EPOCH}

    def _refuse(self, call: Call, name: str, claimed: ProducerIdentity) -> Code:
        half = (claimed.id == NO_ID) != (claimed.epoch == NO_EPOCH)
        if not call.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name):
            return Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if not 0 < len(name) <= TRANSACTIONAL_ID_CHARACTERS_MAX or half or min(claimed) < NO_ID:
            return Code.INVALID_REQUEST
        allowed = 0 < call.request.transaction_timeout_ms <= self._timeout_ms_max()
        return Code.NONE if allowed else Code.INVALID_TRANSACTION_TIMEOUT

    async def _add(self, call: Call) -> Answer:
        """Either all partitions are added or none."""
        request = call.request
        topics = self._coordinator.store.topics()
        codes: dict[TopicPartition, Code] = {}
        parts: list[TransactionPart] = []
        for topic in request.v3_and_below_topics:
            info = topics.get(topic.name)
            for number in topic.partitions:
                key = TopicPartition(topic.name, number)
                codes[key] = Code.NONE
                if not call.access.writable[topic.name]:
                    codes[key] = Code.TOPIC_AUTHORIZATION_FAILED
                elif info is None or number not in info.partitions:
                    codes[key] = Code.UNKNOWN_TOPIC_OR_PARTITION
                else:
                    parts.append(TransactionPart(topic.name, info.id, number))
        if any(codes.values()):
            codes = {key: code or Code.OPERATION_NOT_ATTEMPTED for key, code in codes.items()}
        else:
            producer = ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
            code = await self._coordinator.add_partitions(request.v3_and_below_transactional_id, producer, parts)
            codes = dict.fromkeys(codes, named_as_known("AddPartitionsToTxn", call.version, code))
        return {"results_by_topic_v3_and_below": added(codes)}

    async def _add_group(self, call: Call) -> Answer:
        request = call.request
        if not 0 < len(request.group_id) <= GROUP_CHARACTERS_MAX:
            return {"error_code": Code.INVALID_GROUP_ID}
        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        code = await self._coordinator.add_group(request.transactional_id, producer, request.group_id)
        return {"error_code": named_as_known("AddOffsetsToTxn", call.version, code)}

    async def _end(self, call: Call) -> Answer:
        request = call.request
        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        code = await self._coordinator.end(request.transactional_id, producer, request.committed)
        return {"error_code": named_as_known("EndTxn", call.version, code)}


def added(codes: Mapping[TopicPartition, int]) -> list[dict[str, Any]]:
    """The rows of an answer to AddPartitionsToTxn."""
    return rows_by_topic(codes, lambda code: {"partition_error_code": code}, "results_by_partition")
