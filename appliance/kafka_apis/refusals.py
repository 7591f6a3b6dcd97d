"""Refuses requests whose client lacks a right that the whole request needs, before their handler runs.

The API's row (``wire/kafka/apis.py``) says which right that is.  The handlers themselves refuse single topics and
groups of a request, and leave out what a client may not see.  What one of them answers without having asked any such
right of its row is not sent (:func:`check_asked`): a handler that forgets to ask tells nobody anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..errors import ProtocolFault
from ..names import TopicPartition
from ..security.acls import CLUSTER_NAME, NotedAccess, ResourceType
from ..security.api_rights import How, Right
from ..transactions.lookup_api import refused_marker
from ..transactions.transaction_api import added
from ..wire.kafka.apis import INIT_PRODUCER_ID, Api
from ..wire.kafka.call import Answer, Call, Encoded
from ..wire.kafka.codes import Code

ASKED_BY_HANDLERS: Final = (How.EACH, How.LISTED, How.SUFFICES)
NAMELESS_FROM: Final = 7
"""Version of JoinGroup from which the protocol of a refused member is null."""
CODES: Final = {
    ResourceType.TOPIC: Code.CLUSTER_AUTHORIZATION_FAILED,  # a right on any topic, in place of one on the cluster
    ResourceType.GROUP: Code.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: Code.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def refusal(api: Api, call: Call) -> Answer | None:
    """The answer to a request that its client may not send; None: handle it."""
    if call.access.unrestricted:
        return None
    if api.key == INIT_PRODUCER_ID and call.request.transactional_id is not None:
        return None  # the right to the id is all that it needs
    for right in api.rights:
        if right.how is How.SUFFICES and call.may(right.operation, right.resource):
            return None
        if right.how is How.WHOLE and not _has(right, call):
            return _answer(api.name, call, CODES[right.resource])
    return None


def check_asked(api: Api, access: NotedAccess, answer: Answer) -> None:
    """Check that a handler has asked a right before it has served what its client names, or has listed something.

    An answer without rows, or where each has an error, serves nothing; nor does a row that has only the name that the
    client has sent and no rows in it, as for a topic without partitions.  An answer without any rows is one row where
    all rights of the API are asked by its handler, as the coordinator of one group.  A handler that encodes says
    what it has served.

    Raises:
        ProtocolFault: it has asked none; the client is not answered.
    """
    if access.unrestricted:
        return
    to_ask = {right[:2] for right in api.rights if right.how in ASKED_BY_HANDLERS}
    if to_ask and not to_ask & access.asked and _is_served(api, answer):
        raise ProtocolFault(f"the handler of {api.name} has not asked what its client may do: nothing is answered")


def _is_served(api: Api, answer: Answer) -> bool:
    if isinstance(answer, Encoded):
        return answer.served > 0
    is_row = not any(isinstance(value, list) for value in answer.values())
    if is_row and all(right.how is How.EACH for right in api.rights):
        return not answer.get("error_code")
    return _serves(answer)


def _serves(fields: Mapping[str, Any]) -> bool:
    """Whether any row of an answer, at any depth, is without an error."""
    for rows in fields.values():
        for row in rows if isinstance(rows, list) else ():
            if not isinstance(row, dict) or row.get("error_code"):
                continue
            lists = [value for value in row.values() if isinstance(value, list)]
            if not lists or _serves(row):
                return True
            if not any(lists) and len(row) > len(lists) + 1:  # the state of a group without members, say
                return True
    return False


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
                TopicPartition(topic.name, number)
                for topic in request.v3_and_below_topics
                for number in topic.partitions
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
                            {"partition_index": part.partition_index, "error_code": code} for part in topic.partitions
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
