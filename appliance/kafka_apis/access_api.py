"""Shows, adds and deletes access rules: DescribeAcls, CreateAcls, DeleteAcls.

As in Kafka: a rule that is there already is added without an error; each filter of a deletion is answered with the
rules that it has deleted.  Rules of roles (:mod:`appliance.security.roles`) are shown as what they are, of the
principal ``Role:NAME``, and once more for each user of the role; only the former can be deleted.  Without an authorizer
all three are refused with SECURITY_DISABLED.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

from ..errors import ApplianceError, InvalidRequest
from ..security import acls
from ..security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from ..security.roles import effective
from ..security.rule_changes import NO_AUTHORIZER, RuleDeletion, added
from ..wire.kafka.call import Answer, Call, Handler, ReplyRow
from ..wire.kafka.codes import Code
from .appliance import Appliance

DISABLED: Final = {"error_code": Code.SECURITY_DISABLED, "error_message": NO_AUTHORIZER}

Number = TypeVar("Number", Operation, PatternType, Permission, ResourceType)


class AccessApi:
    def __init__(self, appliance: Appliance) -> None:
        self._appliance = appliance

    @property
    def handlers(self) -> dict[str, Handler]:
        return {"DescribeAcls": self._describe, "CreateAcls": self._create, "DeleteAcls": self._delete}

    async def _describe(self, call: Call) -> Answer:
        if not self._appliance.authorizes:
            return DISABLED | {"resources": []}
        chosen = _filter(call.request)
        rules_by_resource: dict[tuple[ResourceType, str, PatternType], list[ReplyRow]] = {}
        for acl in dict.fromkeys(rule.acl for rule in effective(self._appliance.security.state, chosen)):
            rules_by_resource.setdefault((acl.resource, acl.name, acl.pattern), []).append(_entry(acl))
        resources = [
            {"resource_type": resource, "resource_name": name, "pattern_type": pattern, "acls": rules}
            for (resource, name, pattern), rules in rules_by_resource.items()
        ]
        return {"error_code": Code.NONE, "resources": resources}

    async def _create(self, call: Call) -> Answer:
        if not self._appliance.authorizes:
            return {"results": [DISABLED for _ in call.request.creations]}
        new: list[Acl] = []
        rows: list[ReplyRow] = []
        for creation in call.request.creations:
            try:
                new.append(_acl(creation))
                rows.append({"error_code": Code.NONE})
            except InvalidRequest as error:
                rows.append(_fault(error))
        if new:
            try:
                await self._appliance.security.alter(lambda state: added(state, new))
            except ApplianceError as error:
                rows = [row if row["error_code"] else _fault(error) for row in rows]
        return {"results": rows}

    async def _delete(self, call: Call) -> Answer:
        if not self._appliance.authorizes:
            return {"filter_results": [DISABLED for _ in call.request.filters]}
        try:
            chosen = [_filter(filter_) for filter_ in call.request.filters]
        except InvalidRequest as error:
            return {"filter_results": [_fault(error) for _ in call.request.filters]}
        deletion = RuleDeletion(chosen)
        try:
            await self._appliance.security.alter(deletion)
        except ApplianceError as error:
            return {"filter_results": [_fault(error) for _ in chosen]}
        rows = []
        for filter_ in chosen:
            if message := deletion.refusal(filter_):
                rows.append(_fault(InvalidRequest(message)))
            else:
                matching = [_deleted(acl) for acl in deletion.deleted if filter_.selects(acl)]
                rows.append({"error_code": Code.NONE, "matching_acls": matching})
        return {"filter_results": rows}


def _filter(filter_: Any) -> AclFilter:
    """The filter of a request.  Raises InvalidRequest."""
    return AclFilter(
        _number(ResourceType, filter_.resource_type_filter),
        filter_.resource_name_filter,
        _number(PatternType, filter_.pattern_type_filter),
        filter_.principal_filter,
        filter_.host_filter,
        _number(Operation, filter_.operation),
        _number(Permission, filter_.permission_type),
    )


def _acl(row: Any) -> Acl:
    """Raises InvalidRequest."""
    acl = Acl(
        _number(ResourceType, row.resource_type),
        row.resource_name,
        _number(PatternType, row.resource_pattern_type),
        row.principal,
        row.host,
        _number(Operation, row.operation),
        _number(Permission, row.permission_type),
    )
    acls.check_rule(acl)
    return acl


def _number(kind: type[Number], number: int) -> Number:
    """Raises InvalidRequest: Kafka refuses numbers that it does not know, too."""
    try:
        return kind(number)
    except ValueError:
        raise InvalidRequest(f"{number} is no {kind.__name__}") from None


def _fault(error: ApplianceError) -> ReplyRow:
    return {"error_code": error.code, "error_message": str(error)}


def _entry(acl: Acl) -> ReplyRow:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }


def _deleted(acl: Acl) -> ReplyRow:
    return _entry(acl) | {
        "error_code": Code.NONE,
        "resource_type": acl.resource,
        "resource_name": acl.name,
        "pattern_type": acl.pattern,
    }
