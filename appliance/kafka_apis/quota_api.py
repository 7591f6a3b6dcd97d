"""Shows and changes quotas of users and client ids: DescribeClientQuotas, AlterClientQuotas."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

from ..errors import ApplianceError, InvalidRequest
from ..security.quotas import DEFAULT, ENTITY_TYPES, EntityPart, Quota, check_entity
from ..security.rule_changes import limited
from ..wire.kafka.call import Answer, Call, Handler, ReplyRow
from ..wire.kafka.codes import Code
from .appliance import SecurityStore

ADDRESS: Final = "ip"
"""Kafka's third type of entity.  Addresses have no quotas here."""


class Match(IntEnum):
    """What a filter wants of the entities of a type."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


class QuotaApi:
    def __init__(self, security: SecurityStore) -> None:
        self._security = security

    @property
    def handlers(self) -> dict[str, Handler]:
        return {"DescribeClientQuotas": self._describe, "AlterClientQuotas": self._alter}

    async def _describe(self, call: Call) -> Answer:
        request = call.request
        try:
            matches = _matches(request.components)
        except InvalidRequest as error:
            return {"error_code": error.code, "error_message": str(error), "entries": None}
        entries = [
            {"entity": _names(quota.entity), "values": [{"key": key, "value": rate} for key, rate in quota.limits]}
            for quota in self._security.state.quotas
            if _selects(matches, request.strict, quota)
        ]
        return {"error_code": Code.NONE, "entries": entries}

    async def _alter(self, call: Call) -> Answer:
        """Each entity by itself, as in Kafka."""
        return {"entries": [await self._alter_one(entry, call.request.validate_only) for entry in call.request.entries]}

    async def _alter_one(self, entry: Any, validate_only: bool) -> ReplyRow:
        names = [{"entity_type": part.entity_type, "entity_name": part.entity_name} for part in entry.entity]
        try:
            entity = check_entity((part.entity_type, part.entity_name) for part in entry.entity)
            limits = {limit.key: None if limit.remove else limit.value for limit in entry.ops}
            if len(limits) < len(entry.ops):
                raise InvalidRequest("each limit of an entity can be changed once")
            change = limited(entity, limits)
            if validate_only:
                change(self._security.state)
            else:
                await self._security.alter(change)
        except ApplianceError as error:
            return {"error_code": error.code, "error_message": str(error), "entity": names}
        return {"error_code": Code.NONE, "entity": names}


def _matches(components: Any) -> dict[str, tuple[Match, str]]:
    """By type of entity: which are wanted.  Raises InvalidRequest."""
    matches: dict[str, tuple[Match, str]] = {}
    for component in components:
        if component.entity_type not in (*ENTITY_TYPES, ADDRESS):
            raise InvalidRequest(f"{component.entity_type!r:.100} have no quotas: {', '.join(ENTITY_TYPES)} have")
        if component.entity_type in matches:
            raise InvalidRequest(f"{component.entity_type} is given twice")
        is_named = component.match is not None
        if component.match_type not in set(Match) or (component.match_type == Match.EXACT) != is_named:
            raise InvalidRequest("a filter has a name, the default, or any")
        matches[component.entity_type] = Match(component.match_type), component.match or ""
    return matches


def _selects(matches: dict[str, tuple[Match, str]], strict: bool, quota: Quota) -> bool:
    """Whether a quota is wanted.  ``strict``: its entity may have no other types than the filter."""
    names = dict(quota.entity)
    if strict and names.keys() != matches.keys():
        return False
    for entity_type, (match, name) in matches.items():
        if entity_type not in names:
            return False
        if match is not Match.ANY and names[entity_type] != (DEFAULT if match is Match.DEFAULT else name):
            return False
    return True


def _names(entity: tuple[EntityPart, ...]) -> list[ReplyRow]:
    return [{"entity_type": part, "entity_name": name or None} for part, name in entity]
