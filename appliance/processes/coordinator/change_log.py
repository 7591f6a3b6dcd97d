"""Writes administrative changes of both listeners into the audit log: who, from where, what, and of what.

A line is written for a request that has changed something.  What was refused of it is counted in the line; settings,
verifiers and offsets are not shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ...security.audit_log import Audit
from ...security.principals import Origin
from ...wire import native
from ...wire.frames import SIZE_BYTES
from ...wire.kafka.call import Answer, Call

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
        *("put_user", "delete_user", "add_acls", "delete_acls", "zookeeper_login"),
    }
)
NAMES: Final = ("name", "resource_name", "group_id", "user")
"""The fields of a row of an answer that may say what the row is about."""
NAMES_MAX: Final = 10


class ChangeLog:
    """Notes the changes among the requests that the coordinator answers."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    def on_kafka(self, api: str, call: Call, answer: Answer) -> None:
        """Note the answer to a Kafka request, if it was a change."""
        if api not in KAFKA_CHANGES or isinstance(answer, bytes) or getattr(call.request, "validate_only", False):
            return
        rows = _rows(answer)
        done = [row for row in rows if not row.get("error_code") and not _refused_inside(row)]
        if not done or answer.get("error_code"):
            return
        names = [str(row[name]) for row in done[:NAMES_MAX] for name in NAMES if row.get(name)]
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
        _, code, *_ = msgspec.msgpack.decode(memoryview(reply)[2 * SIZE_BYTES :])
        if code:
            return
        given = msgspec.msgpack.decode(request.arguments)
        shown = {name: given[name] for name in ("name", "group") if name in given}
        self._audit.changed(origin.principal, origin.peer, request.verb, **shown)


def _rows(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows of an answer: its only array."""
    arrays = [value for value in answer.values() if isinstance(value, list)]
    return arrays[0] if arrays else []


def _refused_inside(row: Mapping[str, Any]) -> bool:
    """Whether all that a row has, such as the partitions of a topic, was refused."""
    inner = _rows(row)
    return bool(inner) and all(isinstance(each, Mapping) and each.get("error_code") for each in inner)
