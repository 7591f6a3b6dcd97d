"""Answers the native verbs about quotas; ``wire/native_admin.py`` specifies them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ...errors import InvalidRequest
from ...security.acls import Access
from ...security.quotas import CLIENT_ID, USER, check_entity
from ...security.rule_changes import limited
from ...wire.native_admin import Nothing, PutQuota
from .this_broker import ThisBroker


class QuotasNativeApi:
    def __init__(self, broker: ThisBroker) -> None:
        self._broker = broker
        self.verbs: dict[str, Callable[[Any, Access], Awaitable[Any]]] = {"quotas": self.list, "put_quota": self.put}

    async def list(self, request: Nothing, access: Access) -> list[dict[str, Any]]:
        rows = []
        for quota in self._broker.security.quotas:
            names = dict(quota.entity)
            rows.append({"user": names.get(USER), "client_id": names.get(CLIENT_ID), "limits": dict(quota.limits)})
        return rows

    async def put(self, request: PutQuota, access: Access) -> None:
        """Set limits of an entity, or (nil) remove them.

        Raises:
            InvalidRequest: there is no such entity or limit, or nothing is to be changed.
        """
        if not request.limits:
            raise InvalidRequest("name at least one limit of the quota")
        named = ((USER, request.user), (CLIENT_ID, request.client_id))
        entity = check_entity((part, name or None) for part, name in named if name is not None)
        await self._broker.alter_security(limited(entity, request.limits))
