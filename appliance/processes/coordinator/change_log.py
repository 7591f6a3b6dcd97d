"""Writes administrative changes of both listeners into the audit log: who, from where, what, of what, and how.

Each resource that a request has changed has a line of its own, with all that was changed of it: partitions, settings
with their values, the whole access rule, limits.  So nothing that one request names can take the room of something
else.  Topics that were made because a client asked for them have a line, too.  Verifiers of passwords are not shown.

What groups had not read of what was deleted is in the line of the deletion.

What was refused has another line (:class:`RefusalLog`).  What may have been done, since an answer did not come in time,
has one with ``error=`` and the code.

What the coordinator refuses for lack of a right has a line, too: who, from where, the first of it, and how much more
there was.  Workers write what they refuse themselves (``processes/network/admission.py``).  The reply decides: a client
that gets a code of REFUSED has a line, one per request.  What a listing leaves out was not asked for, and has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from typing import Any, Final

import msgspec

from ...errors import (
    ClusterNotPermitted,
    GroupNotPermitted,
    TopicNotPermitted,
    TransactionalIdNotPermitted,
    Unavailable,
    branch_codes,
)
from ...security.acls import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType, word
from ...security.audit_log import Audit, Reason
from ...security.principals import Origin
from ...security.verb_changes import DEFAULT_ENTITY, VERB_CHANGES, settings_field
from ...wire import native
from ...wire.frames import SIZE_BYTES
from ...wire.kafka.call import Call
from .unread import Unread, unread_fields

MAYBE_DONE: Final = branch_codes(Unavailable)
AUTO_CREATE: Final = "create topic on demand"
RESOURCES: Final = {2: "topic", 4: "broker", 8: "broker-logger", 16: "client-metrics", 32: "group"}
"""Kafka's ConfigResource.Type."""
MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
SET, DELETE, APPEND, SUBTRACT = range(4)
"""Kafka's AlterConfigOp.OpType."""

LoggedChange = tuple[int, dict[str, object]]
"""The error code of a part of an answer, and the fields of its line."""
ChangeFinder = Callable[[Any, Mapping[str, Any]], Iterator[LoggedChange]]
"""Finds the changes in a request and its answer."""
REFUSED: Final = frozenset(
    {TopicNotPermitted.code, GroupNotPermitted.code, ClusterNotPermitted.code, TransactionalIdNotPermitted.code}
)
NAMES: Final = ("name", "topic", "topic_id", "group_id", "key", "resource_name", "transactional_id")
"""The fields of a row of an answer that say what the row is about."""
ASKED: Final = ("group_id", "key", "transactional_id")
"""Fields of requests about one thing, whose answers may not name it."""


def _metadata(request: Any, answer: Mapping[str, Any]) -> Iterator[LoggedChange]:
    for row in answer["rows"]:
        if row.get("created"):
            yield 0, {"topic": row["name"], "partitions": row["created"]}


def _create_topics(request: Any, answer: Mapping[str, Any]) -> Iterator[LoggedChange]:
    asked = {topic.name: topic for topic in request.topics}
    for row in answer["rows"]:
        settings = settings_field((setting.name, setting.value) for setting in asked[row["name"]].configs)
        yield row["error_code"], {"topic": row["name"], "partitions": row.get("created", "-"), **settings}


def _delete_topics(request: Any, answer: Mapping[str, Any]) -> Iterator[LoggedChange]:
    for row in answer["responses"]:
        yield row["error_code"], {"topic": row["name"] or row["topic_id"]}


def _create_partitions(request: Any, answer: Mapping[str, Any]) -> Iterator[LoggedChange]:
    counts = {topic.name: topic.count for topic in request.topics}
    for row in answer["results"]:
        yield row["error_code"], {"topic": row["name"], "partitions": counts[row["name"]]}


def _delete_records(request: Any, answer: Mapping[str, Any]) -> Iterator[LoggedChange]:
    for topic in answer["topics"]:
        for row in topic["partitions"]:
            place = {"topic": topic["name"], "partition": row["partition_index"]}
            yield row["error_code"], {**place, "before": row["low_watermark"]}


def _write_markers(request: Any, answer: Mapping[str, Any]) -> Iterator[LoggedChange]:
    for marker, row in zip(request.markers, answer["markers"], strict=True):
        for topic in row["topics"]:
            for part in topic["partitions"]:
                place = {"topic": topic["name"], "partition": part["partition_index"]}
                ends = {"producer_id": marker.producer_id, "committed": marker.transaction_result}
                yield part["error_code"], {**place, **ends}


def _alter_configs(request: Any, answer: Mapping[str, Any]) -> Iterator[LoggedChange]:
    """All settings of a resource are replaced by those that are named."""
    asked = {(resource.resource_type, resource.resource_name): resource for resource in request.resources}
    for row in answer["responses"]:
        resource = asked[row["resource_type"], row["resource_name"]]
        settings = settings_field((setting.name, setting.value) for setting in resource.configs)
        yield row["error_code"], {**_resource(row), **(settings or {"settings": "none"}), "others": "default"}


def _alter_some_configs(request: Any, answer: Mapping[str, Any]) -> Iterator[LoggedChange]:
    asked = {(resource.resource_type, resource.resource_name): resource for resource in request.resources}
    for row in answer["responses"]:
        resource = asked[row["resource_type"], row["resource_name"]]
        settings = [
            (
                setting.name,
                {SET: setting.value, APPEND: f"+{setting.value}", SUBTRACT: f"-{setting.value}"}.get(
                    setting.config_operation
                ),
            )
            for setting in resource.configs
        ]
        yield row["error_code"], {**_resource(row), **settings_field(settings)}


def _delete_groups(request: Any, answer: Mapping[str, Any]) -> Iterator[LoggedChange]:
    for row in answer["results"]:
        yield row["error_code"], {"group": row["group_id"]}


def _delete_group_offsets(request: Any, answer: Mapping[str, Any]) -> Iterator[LoggedChange]:
    for topic in answer.get("topics", ()):  # a group that there is not has none
        for row in topic["partitions"]:
            place = {"topic": topic["name"], "partition": row["partition_index"]}
            yield answer["error_code"] or row["error_code"], {"group": request.group_id, **place}


def _alter_credentials(request: Any, answer: Mapping[str, Any]) -> Iterator[LoggedChange]:
    for row in answer["results"]:
        for deletion in request.deletions:
            if deletion.name == row["user"]:
                yield (
                    row["error_code"],
                    {"user": deletion.name, "deleted": MECHANISMS.get(deletion.mechanism, deletion.mechanism)},
                )
        for upsertion in request.upsertions:
            if upsertion.name == row["user"]:
                mechanism = MECHANISMS.get(upsertion.mechanism, upsertion.mechanism)
                yield row["error_code"], {"user": upsertion.name, "set": mechanism, "iterations": upsertion.iterations}


def _create_acls(request: Any, answer: Mapping[str, Any]) -> Iterator[LoggedChange]:
    for row, rule in zip_longest(answer["results"], request.creations):
        fields = (rule.permission_type, rule.principal, rule.host, rule.operation, rule.resource_type)
        yield row["error_code"], _rule(*fields, rule.resource_pattern_type, rule.resource_name)


def _delete_acls(request: Any, answer: Mapping[str, Any]) -> Iterator[LoggedChange]:
    for result in answer["filter_results"]:
        for rule in result.get("matching_acls", ()):
            fields = (
                rule["permission_type"],
                rule["principal"],
                rule["host"],
                rule["operation"],
                rule["resource_type"],
            )
            yield (
                result["error_code"] or rule["error_code"],
                _rule(*fields, rule["pattern_type"], rule["resource_name"]),
            )


def _alter_quotas(request: Any, answer: Mapping[str, Any]) -> Iterator[LoggedChange]:
    for row, entry in zip_longest(answer["entries"], request.entries):
        entity = {part.entity_type: part.entity_name or DEFAULT_ENTITY for part in entry.entity}
        limits = {operation.key: "none" if operation.remove else operation.value for operation in entry.ops}
        yield row["error_code"], {**entity, **limits}


KAFKA_CHANGES: Final[dict[str, ChangeFinder]] = {
    "Metadata": _metadata,
    "CreateTopics": _create_topics,
    "DeleteTopics": _delete_topics,
    "CreatePartitions": _create_partitions,
    "DeleteRecords": _delete_records,
    "WriteTxnMarkers": _write_markers,
    "AlterConfigs": _alter_configs,
    "IncrementalAlterConfigs": _alter_some_configs,
    "DeleteGroups": _delete_groups,
    "OffsetDelete": _delete_group_offsets,
    "AlterUserScramCredentials": _alter_credentials,
    "CreateAcls": _create_acls,
    "DeleteAcls": _delete_acls,
    "AlterClientQuotas": _alter_quotas,
}
"""By API.  What a part of an answer says of a change is in the function."""


def _resource(row: Mapping[str, Any]) -> dict[str, object]:
    return {RESOURCES.get(row["resource_type"], str(row["resource_type"])): row["resource_name"]}


def _word(kind: type[Permission | Operation | ResourceType | PatternType], number: int) -> str:
    """As people write it; the number itself where it means nothing: then the rule was refused."""
    try:
        return word(kind(number))
    except ValueError:
        return str(number)


def _rule(
    permission: int, principal: str, host: str, operation: int, resource: int, pattern: int, name: str
) -> dict[str, object]:
    return {
        "permission": _word(Permission, permission),
        "principal": principal,
        "host": host,
        "operation": _word(Operation, operation),
        "resource": _word(ResourceType, resource),
        "pattern": _word(PatternType, pattern),
        "name": name,
    }


NAMES_OF: Final = {"Metadata": AUTO_CREATE, "ensure_topic": AUTO_CREATE}
"""What is written instead of the name of an API or verb."""


DELETIONS: Final = frozenset({"delete_topic", "delete_records", "DeleteTopics", "DeleteRecords"})


class ChangeLog:
    """Notes the changes among the requests that the coordinator answers.

    ``take_unread``: who had not read what was deleted of a topic, or of one of its partitions, with bytes; None: it is
    not known.
    """

    def __init__(self, audit: Audit, take_unread: Callable[..., Unread | None]) -> None:
        self._audit, self._take_unread = audit, take_unread

    def on_kafka(self, api: str, call: Call, answer: Mapping[str, Any]) -> None:
        """Note the answer to a Kafka request, if it was a change."""
        changes = KAFKA_CHANGES.get(api)
        if changes is not None and not getattr(call.request, "validate_only", False):
            for code, fields in changes(call.request, answer):
                self._note(call.origin, api, code, fields)

    def on_native(self, origin: Origin, frame: bytes, reply: bytes) -> None:
        """Note the reply to a native request, if it was a change."""
        request = native.decode_forwarded(memoryview(frame))
        if not isinstance(request, native.AdminRequest) or request.verb not in VERB_CHANGES:
            return
        _, code, _, result = msgspec.msgpack.decode(memoryview(reply)[2 * SIZE_BYTES :])
        if code and code not in MAYBE_DONE:
            return
        arguments = msgspec.msgpack.decode(request.arguments)
        if not arguments.get("dry_run"):
            for fields in VERB_CHANGES[request.verb](arguments, result):
                self._note(origin, request.verb, code, fields)

    def _note(self, origin: Origin, what: str, code: int, fields: Mapping[str, object]) -> None:
        if code and code not in MAYBE_DONE:
            return
        more: dict[str, object] = {"error": code} if code else {}
        if what in DELETIONS:
            partition = {"partition": fields["partition"]} if "partition" in fields else {}
            more |= unread_fields(self._take_unread(fields["topic"], **partition))
        self._audit.changed(origin.principal, origin.peer, NAMES_OF.get(what, what), **fields, **more)


class RefusalLog:
    """Notes the refusals among the requests that the coordinator answers."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    def on_kafka(self, api: str, call: Call, answer: Mapping[str, Any]) -> None:
        """Note the answer to a Kafka request, if it refuses something."""
        refusals = [] if call.access.unrestricted else list(_refused(answer))
        if not refusals:
            return
        code, name = refusals[0]
        if code == ClusterNotPermitted.code:
            name = CLUSTER_NAME
        elif code != TopicNotPermitted.code:
            asked = (getattr(call.request, field, None) for field in ASKED)
            name = next((str(value) for value in asked if value), name)
        others = {"more": len(refusals) - 1} if len(refusals) > 1 else {}
        self._audit.refused(Reason.DENIED, call.origin.principal, call.origin.peer, what=f"{api} {name}", **others)

    def on_native(self, origin: Origin, what: str) -> None:
        """Note a refused native request: its verb, and the name of what was refused."""
        self._audit.refused(Reason.DENIED, origin.principal, origin.peer, what=what)


def _refused(answer: Mapping[str, Any], name: str = "") -> Iterator[tuple[int, str]]:
    """The codes of REFUSED in an answer, at any depth, and what each is about."""
    own = next((str(answer[field]) for field in NAMES if answer.get(field)), name)
    code = answer.get("error_code", 0)
    if code in REFUSED:
        yield int(code), own
        return
    for value in answer.values():
        for row in value if isinstance(value, list) else ():
            if isinstance(row, Mapping):
                yield from _refused(row, own)
