"""Shows, adds and deletes access rules: DescribeAcls, CreateAcls, DeleteAcls.

As in Kafka: a rule that is there already is added without an error; each filter of a deletion is answered with the
rules that it has deleted.  Without an authorizer all three are refused with SECURITY_DISABLED.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

from ..errors import ApplianceError, InvalidRequest
from ..security import acls
from ..security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from ..security.rule_changes import NO_AUTHORIZER, Deletion, added
from ..wire.kafka.call import Answer, Call, Handler
from ..wire.kafka.codes import Code
from .appliance import Appliance

DISABLED: Final = {"error_code": Code.SECURITY_DISABLED, "error_message": NO_AUTHORIZER}

Row = dict[str, Any]
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
        found: dict[tuple[ResourceType, str, PatternType], list[Row]] = {}
        for acl in self._appliance.security.acls:
            if chosen.selects(acl):
                found.setdefault((acl.resource, acl.name, acl.pattern), []).append(_entry(acl))
        resources = [
            {"resource_type": resource, "resource_name": name, "pattern_type": pattern, "acls": rules}
            for (resource, name, pattern), rules in found.items()
        ]
        return {"error_code": Code.NONE, "resources": resources}

    async def _create(self, call: Call) -> Answer:
        if not self._appliance.authorizes:
            return {"results": [DISABLED for _ in call.request.creations]}
        new: list[Acl] = []
        rows: list[Row] = []
        for creation in call.request.creations:
            try:
                new.append(_acl(creation))
                rows.append({"error_code": Code.NONE})
            except InvalidRequest as error:
                rows.append(_fault(error))
        if new:
            try:
                await self._appliance.alter_security(lambda state: added(state, new))
            except ApplianceError as error:
                rows = [row if row["error_code"] else _fault(error) for row in rows]
        return {"results": rows}

    async def _delete(self, call: Call) -> Answer:
        if not self._appliance.authorizes:
            return {"filter_results": [DISABLED for _ in call.request.filters]}
        try:
            chosen = [_filter(one) for one in call.request.filters]
        except InvalidRequest as error:
            return {"filter_results": [_fault(error) for _ in call.request.filters]}
        deletion = Deletion(chosen)
        try:
            await self._appliance.alter_security(deletion)
        except ApplianceError as error:
            return {"filter_results": [_fault(error) for _ in chosen]}
        deleted = deletion.deleted
        return {
            "filter_results": [
                {"error_code": Code.NONE, "matching_acls": [_deleted(acl) for acl in deleted if one.selects(acl)]}
                for one in chosen
            ]
        }


def _filter(given: Any) -> AclFilter:
    """The filter of a request.  Raises InvalidRequest."""
    return AclFilter(
        _number(ResourceType, given.resource_type_filter),
        given.resource_name_filter,
        _number(PatternType, given.pattern_type_filter),
        given.principal_filter,
        given.host_filter,
        _number(Operation, given.operation),
        _number(Permission, given.permission_type),
    )


def _acl(given: Any) -> Acl:
    """Raises InvalidRequest."""
    acl = Acl(
        _number(ResourceType, given.resource_type),
        given.resource_name,
        _number(PatternType, given.resource_pattern_type),
        given.principal,
        given.host,
        _number(Operation, given.operation),
        _number(Permission, given.permission_type),
    )
    acls.check(acl)
    return acl


def _number(kind: type[Number], number: int) -> Number:
    """Raises InvalidRequest: Kafka refuses numbers that it does not know, too."""
    try:
        return kind(number)
    except ValueError:
        raise InvalidRequest(f"{number} is no {kind.__name__}") from None


def _fault(error: ApplianceError) -> Row:
    return {"error_code": error.code, "error_message": str(error)}


def _entry(acl: Acl) -> Row:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }


def _deleted(acl: Acl) -> Row:
    return _entry(acl) | {
        "error_code": Code.NONE,
        "resource_type": acl.resource,
        "resource_name": acl.name,
        "pattern_type": acl.pattern,
    }
