"""Refuses requests whose client lacks a right that the whole request needs, before their handler runs.

``security/api_rights.py`` says which right that is.  The handlers themselves refuse single topics and groups of a
request, and leave out what a client may not see.
"""

from __future__ import annotations

from typing import Any, Final

from ..names import TopicPartition
from ..security.acls import CLUSTER_NAME, ResourceType
from ..security.api_rights import KAFKA_RIGHTS, How, Right
from ..transactions.lookup_api import refused_marker
from ..transactions.transaction_api import added
from ..wire.kafka.call import Answer, Call
from ..wire.kafka.codes import Code

NAMELESS_FROM: Final = 7
"""Version of JoinGroup from which the protocol of a refused member is null."""
CODES: Final = {
    ResourceType.TOPIC: Code.CLUSTER_AUTHORIZATION_FAILED,  # a right on any topic, in place of one on the cluster
    ResourceType.GROUP: Code.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: Code.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def refusal(api: str, call: Call) -> Answer | None:
    """The answer to a request that its client may not send; None: handle it."""
    if call.access.unrestricted:
        return None
    if api == "InitProducerId" and call.request.transactional_id is not None:
        return None  # the right to the id is all that it needs
    for right in KAFKA_RIGHTS[api]:
        if right.how is How.SUFFICES and call.may(right.operation, right.resource):
            return None
        if right.how is How.WHOLE and not _has(right, call):
            return _answer(api, call, CODES[right.resource])
    return None


def _has(right: Right, call: Call) -> bool:
    if right.resource is ResourceType.TOPIC:
        return call.access.may_some(right.operation, right.resource)
    return call.may(right.operation, right.resource, _name(right.resource, call.request))


def _name(resource: ResourceType, request: Any) -> str:
    """Which one the whole request is about."""
    name = CLUSTER_NAME
    if resource is ResourceType.GROUP:
        name = request.group_id
    elif resource is ResourceType.TRANSACTIONAL_ID:
        old = getattr(request, "v3_and_below_transactional_id", None)
        name = request.transactional_id if old is None else old
    return name


def _answer(api: str, call: Call, code: Code) -> Answer:
    """The error where the reply has it: at its top, or in each row."""
    request = call.request
    row: dict[str, Any] = {"error_code": code, "error_message": "not permitted on the cluster"}
    match api:
        case "JoinGroup":
            nothing = None if call.version >= NAMELESS_FROM else ""
            return {"error_code": code, "protocol_name": nothing, "member_id": request.member_id, "members": []}
        case "AddPartitionsToTxn":
            parts = [
                TopicPartition(topic.name, each) for topic in request.v3_and_below_topics for each in topic.partitions
            ]
            return {"results_by_topic_v3_and_below": added(dict.fromkeys(parts, code))}
        case "WriteTxnMarkers":
            return {"markers": [refused_marker(marker, code) for marker in request.markers]}
        case "OffsetCommit" | "TxnOffsetCommit":
            return {
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [
                            {"partition_index": each.partition_index, "error_code": code} for each in topic.partitions
                        ],
                    }
                    for topic in request.topics
                ]
            }
        case "CreateAcls":
            return {"results": [row for _ in request.creations]}
        case "DeleteAcls":
            return {"filter_results": [row for _ in request.filters]}
        case "AlterClientQuotas":
            names = ("entity_type", "entity_name")
            return {
                "entries": [
                    row | {"entity": [{name: getattr(part, name) for name in names} for part in entry.entity]}
                    for entry in request.entries
                ]
            }
        case "AlterUserScramCredentials":
            users = [change.name for change in (*request.deletions, *request.upsertions)]
            return {"results": [row | {"user": name} for name in dict.fromkeys(users)]}
        case "DescribeAcls" | "DescribeClientQuotas" | "DescribeUserScramCredentials":
            return row
    return {"error_code": code}
