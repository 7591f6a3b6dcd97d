"""Writes into the audit log what the coordinator refuses for lack of a right: who, from where, the first of it, and how
much more there was.

Workers write what they refuse themselves (``processes/network/admission.py``).  The reply decides: a client that gets a
code of REFUSED has a line, one per request.  What a listing leaves out was not asked for, and has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ...errors import ClusterNotPermitted, GroupNotPermitted, TopicNotPermitted, TransactionalIdNotPermitted
from ...security.acls import CLUSTER_NAME
from ...security.audit_log import Audit, Reason
from ...security.principals import Origin
from ...wire.kafka.call import Call

REFUSED: Final = frozenset(
    {TopicNotPermitted.code, GroupNotPermitted.code, ClusterNotPermitted.code, TransactionalIdNotPermitted.code}
)
NAMES: Final = ("name", "topic", "topic_id", "group_id", "key", "resource_name", "transactional_id")
"""The fields of a row of an answer that say what the row is about."""
ASKED: Final = ("group_id", "key", "transactional_id")
"""Fields of requests about one thing, whose answers may not name it."""


class RefusalLog:
    """Notes the refusals among the requests that the coordinator answers."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    def on_kafka(self, api: str, call: Call, answer: Mapping[str, Any]) -> None:
        """Note the answer to a Kafka request, if it refuses something."""
        found = [] if call.access.unrestricted else list(_refused(answer))
        if not found:
            return
        code, name = found[0]
        if code == ClusterNotPermitted.code:
            name = CLUSTER_NAME
        elif code != TopicNotPermitted.code:
            asked = (getattr(call.request, field, None) for field in ASKED)
            name = next((str(value) for value in asked if value), name)
        others = {"more": len(found) - 1} if len(found) > 1 else {}
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
