"""Answers requests in a network worker from its snapshot of brokers and topics (:mod:`appliance.processes.snapshot`).

It answers Metadata and requests for a producer id of both listeners, and FindCoordinator if this broker is the only
one.  So producers, idempotent or not, and consumers with manually assigned partitions do not need the coordinator,
which may hang or be replaced meanwhile.  For all others it returns None, and they go to the coordinator: topics that
are to be created, transactional ids, groups of several brokers, malformed requests, and all requests before the first
snapshot has come.
"""

from __future__ import annotations

from typing import Final

from ...addresses import Listener
from ...broker.metadata_answers import MetadataAnswers
from ...broker.sequences import new_producer_id
from ...errors import ProtocolFault
from ...names import is_reserved, is_topic
from ...security.acls import Access, Operation, ResourceType
from ...wire import native
from ...wire.kafka import metadata as kafka
from ..snapshot import Snapshot

Question = native.MetadataRequest | native.AdminRequest | kafka.Question
INIT_PRODUCER: Final = "init_producer"
NO_ARGUMENTS: Final = b"\x80"
"""An empty map of msgpack."""


def _may_produce(access: Access) -> bool:
    """Whether a client may have a producer id."""
    return access.may(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER) or access.may_some(
        Operation.WRITE, ResourceType.TOPIC
    )


class SnapshotAnswers:
    """Decodes and answers requests from ``snapshot``.  ``parts_max``: topics that one request may name."""

    def __init__(self, snapshot: Snapshot, parts_max: int) -> None:
        self.snapshot = snapshot
        self._parts_max = parts_max
        self._answers = MetadataAnswers(self.snapshot)

    def asked(self, protocol: str, frame: memoryview) -> Question | None:
        """The question in a frame, if it is one that may be answered here."""
        if not self.snapshot.complete:
            return None
        if protocol == "kafka":
            return kafka.decode(frame, self._parts_max)
        try:
            request = native.decode_forwarded(frame)
        except ProtocolFault:
            return None
        if isinstance(request, native.MetadataRequest) or (
            request.verb == INIT_PRODUCER and bytes(request.arguments) == NO_ARGUMENTS
        ):
            return request
        return None

    def answer(self, question: Question, listener: Listener, access: Access) -> bytes | None:
        """The reply frame; None: the coordinator has to answer.  It also refuses what ``access`` does not permit."""
        if isinstance(question, native.AdminRequest | kafka.ProducerQuestion) and not _may_produce(access):
            return None
        match question:
            case native.MetadataRequest():
                reply = self._answers.native(question.topics, listener, access)
                return native.encode_frame([question.correlation, 0, reply])
            case native.AdminRequest():
                producer = {"producer_id": new_producer_id(), "epoch": 0}
                return native.encode_frame([question.correlation, 0, "", producer])
            case kafka.ProducerQuestion():
                return kafka.encode_producer(question, new_producer_id())
            case kafka.MetadataQuestion():
                return self._metadata(question, listener, access)
            case kafka.CoordinatorQuestion():
                if not all(access.may(Operation.DESCRIBE, ResourceType.GROUP, group) for group in question.groups):
                    return None
                brokers = self.snapshot.brokers(listener)
                return kafka.encode_coordinator(question, *brokers[0]) if len(brokers) == 1 else None

    def hidden(self, question: Question, access: Access) -> str:
        """The first topic in a question that :meth:`answer` refuses; "" when there is none."""
        if isinstance(question, native.MetadataRequest | kafka.MetadataQuestion):
            return self._answers.hidden(question.topics, access)
        return ""

    def _metadata(self, question: kafka.MetadataQuestion, listener: Listener, access: Access) -> bytes | None:
        known = self.snapshot.topics()
        if question.may_create and self.snapshot.auto_create:
            names = (topic for topic in question.topics or () if isinstance(topic, str))
            if any(name not in known and is_topic(name) and not is_reserved(name) for name in names):
                return None
        return self._answers.kafka(
            question.correlation_id,
            question.version,
            listener,
            question.topics,
            {},
            access,
            topic_operations=question.topic_operations,
            cluster_operations=question.cluster_operations,
        )
