"""Writes administrative changes of both listeners into the audit log: who, from where, what, and of what.

A line is written for a request that has changed something.  What was refused of it is counted in the line; settings,
verifiers and offsets are not shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from ...security.acls import Operation, Permission, ResourceType, word
from ...security.audit_log import Audit
from ...security.principals import Origin
from ...wire import native
from ...wire.frames import SIZE_BYTES
from ...wire.kafka.call import Call

KAFKA_CHANGES: Final = frozenset(
    {
        *(
            "CreateTopics",
            "DeleteTopics",
            "CreatePartitions",
            "DeleteRecords",
            "AlterConfigs",
            "IncrementalAlterConfigs",
        ),
        *("DeleteGroups", "OffsetDelete", "AlterUserScramCredentials", "CreateAcls", "DeleteAcls", "AlterClientQuotas"),
    }
)
NATIVE_CHANGES: Final = frozenset(
    {
        *("create_topic", "alter_topic", "delete_topic", "delete_records", "commit", "delete_offsets"),
        *("put_user", "delete_user", "add_acls", "delete_acls", "zookeeper_login", "accept_clock"),
    }
)
NAMES: Final = ("name", "resource_name", "group_id", "user")
"""The fields of a row of an answer that may say what the row is about."""
NAMES_MAX: Final = 10
RULES: Final = "matching_acls"
WORDS: Final = ("permission", "principal", "operation", "resource", "name")
"""The fields of access rules that are shown, over the native protocol and over Kafka's."""
RULE: Final = ("permission_type", "principal", "operation", "resource_type", "resource_name")


class ChangeLog:
    """Notes the changes among the requests that the coordinator answers."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    def on_kafka(self, api: str, call: Call, answer: Mapping[str, Any]) -> None:
        """Note the answer to a Kafka request, if it was a change."""
        if api not in KAFKA_CHANGES or getattr(call.request, "validate_only", False):
            return
        rows = _rows(answer)
        if api == "CreateAcls":  # its answer says nothing about the rules
            rows = [
                {**row, RULES: [{field: getattr(rule, field) for field in RULE}]}
                for row, rule in zip(rows, call.request.creations, strict=False)
            ]
        done = [row for row in rows if not row.get("error_code") and not _refused_inside(row)]
        if not done or answer.get("error_code"):
            return
        names = [name for row in done[:NAMES_MAX] for name in _names(row)]
        self._audit.changed(
            *(call.origin.principal, call.origin.peer, api),
            names=",".join(names),
            done=len(done),
            refused=len(rows) - len(done),
        )

    def on_native(self, origin: Origin, frame: bytes, reply: bytes) -> None:
        """Note the reply to a native request, if it was a change."""
        request = native.decode_forwarded(memoryview(frame))
        if not isinstance(request, native.AdminRequest) or request.verb not in NATIVE_CHANGES:
            return
        _, code, _, result = msgspec.msgpack.decode(memoryview(reply)[2 * SIZE_BYTES :])
        if code or (request.verb == "zookeeper_login" and "password" not in result):
            return
        given = msgspec.msgpack.decode(request.arguments)
        if given.get("dry_run"):
            return
        shown = {name: given[name] for name in ("name", "group") if name in given}
        if request.verb in ("add_acls", "delete_acls"):
            rules = given.get("acls", ()) if request.verb == "add_acls" else result
            shown = {
                "names": ",".join(" ".join(rule.get(part, "Allow") for part in WORDS) for rule in rules[:NAMES_MAX])
            }
        self._audit.changed(origin.principal, origin.peer, request.verb, **shown)


def _rows(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows of an answer: its only array."""
    arrays = [value for value in answer.values() if isinstance(value, list)]
    return arrays[0] if arrays else []


def _names(row: Mapping[str, Any]) -> Iterator[str]:
    """What a row is about: names, clients with quotas, access rules."""
    yield from (str(row[name]) for name in NAMES if row.get(name))
    yield from (part["entity_name"] or "<default>" for part in row.get("entity", ()))
    for rule in row.get(RULES, ())[:NAMES_MAX]:
        permission, principal, operation, resource, name = (rule[field] for field in RULE)
        words = (
            word(Permission(permission)),
            principal,
            word(Operation(operation)),
            word(ResourceType(resource)),
            name,
        )
        yield " ".join(words)


def _refused_inside(row: Mapping[str, Any]) -> bool:
    """Whether all that a row has, such as the partitions of a topic, was refused."""
    inner = _rows(row)
    return bool(inner) and all(isinstance(each, Mapping) and each.get("error_code") for each in inner)
