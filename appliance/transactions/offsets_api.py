"""Answers TxnOffsetCommit: offsets of a group that are committed when the transaction of a producer is.

They wait in the transaction's own state, and change nothing of the group before its end.  The group's coordinator is
asked whether the producer's consumer is a member still (KIP-447), which fences a producer whose partitions have gone
to another one.

Clients send it to the group's coordinator.  If another appliance coordinates the transactional id, it is passed on, and
that one asks back whether the member is one, once the offsets are pending there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from ..errors import ApplianceError
from ..groups.group_coordinator import GroupCoordinator
from ..groups.offsets_api import refuse_offset
from ..names import TopicPartition
from ..wire.kafka.call import Answer, Call, Handler, error_row, rows_by_topic
from ..wire.kafka.codes import Code
from .store import Committer
from .transaction import PendingOffset, ProducerIdentity, TransactionPart
from .transaction_coordinator import TransactionCoordinator

log = logging.getLogger(__name__)

_CODES: Final = {
    Code.PRODUCER_FENCED: Code.INVALID_PRODUCER_EPOCH,  # as from the log of offsets, in Kafka
    Code.CONCURRENT_TRANSACTIONS: Code.COORDINATOR_LOAD_IN_PROGRESS,
}


class TransactionOffsetsApi:
    def __init__(self, coordinator: TransactionCoordinator, groups: GroupCoordinator) -> None:
        self._coordinator, self._groups = coordinator, groups

    @property
    def handlers(self) -> dict[str, Handler]:
        return {"TxnOffsetCommit": self._commit}

    async def _commit(self, call: Call) -> Answer:
        request = call.request
        error = self._groups.refuse(request.group_id, call.listener)
        if not error and (request.member_id or request.generation_id >= 0):
            error = await self._groups.load(request.group_id)
        consumer = Committer(request.group_id, request.member_id, request.group_instance_id, request.generation_id)
        error = error or refuse_consumer(self._groups, consumer)
        codes: dict[TopicPartition, Code] = {}
        offsets: list[PendingOffset] = []
        topics = self._coordinator.store.topics()
        for topic in request.topics:
            info = topics.get(topic.name)
            for row in topic.partitions:
                key = TopicPartition(topic.name, row.partition_index)
                note = row.committed_metadata or ""
                codes[key] = error or refuse_offset(call, key, info, note)
                if info is not None and not codes[key]:
                    part = TransactionPart(topic.name, info.id, row.partition_index)
                    epoch = max(-1, row.committed_leader_epoch)
                    offsets.append(PendingOffset(request.group_id, part, row.committed_offset, note, epoch))
        if offsets:
            producer = ProducerIdentity(request.producer_id, request.producer_epoch)
            code = await self._add(request.transactional_id, producer, consumer, offsets)
            codes |= dict.fromkeys((offset.part.key for offset in offsets), _CODES.get(code, code))
        return {"topics": rows_by_topic(codes, error_row)}

    async def _add(
        self, transactional_id: str, producer: ProducerIdentity, consumer: Committer, offsets: Sequence[PendingOffset]
    ) -> Code:
        store = self._coordinator.store
        if not store.serves or store.coordinates(transactional_id):
            return await self._coordinator.add_offsets(transactional_id, producer, consumer.group, offsets)
        try:
            return await store.add_offsets_elsewhere(transactional_id, producer, consumer, offsets)
        except ApplianceError as error:
            log.info("offsets of group %r wait for transaction %r: %s", consumer.group, transactional_id, error)
            return Code.COORDINATOR_LOAD_IN_PROGRESS


def refuse_consumer(groups: GroupCoordinator, consumer: Committer) -> Code:
    """Why a consumer may not commit offsets of its group, which is loaded here.  Who says nothing may."""
    if consumer.is_anonymous:
        return Code.NONE
    name, member_id, instance, generation = consumer
    if groups.consumers.get(name) is not None:
        code = groups.consumers.commit_code(name, member_id, generation)
        return Code.ILLEGAL_GENERATION if code is Code.STALE_MEMBER_EPOCH else code
    return groups.membership.may_commit(name, member_id, instance, generation, groups.now_ms())
