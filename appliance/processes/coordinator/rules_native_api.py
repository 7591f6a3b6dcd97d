"""Answers the native verbs about access rules and roles; ``wire/native_admin.py`` specifies them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ...errors import InvalidRequest
from ...security.acls import Access
from ...security.principals import principal_of_role
from ...security.roles import RoleDeletion, created, regranted
from ...security.rule_changes import (
    NO_AUTHORIZER,
    RuleDeletion,
    added,
    effective_words,
    filter_from_words,
    from_words,
    words,
)
from ...wire.native_admin import AddAcls, AlterRole, DeleteAcls, DeleteRole, Nothing, OneRole, SelectAcls
from .this_broker import ThisBroker


class RulesNativeApi:
    def __init__(self, broker: ThisBroker) -> None:
        self._broker = broker
        self.verbs: dict[str, Callable[[Any, Access], Awaitable[Any]]] = {
            "acls": self.list_rules,
            "add_acls": self.add,
            "delete_acls": self.delete,
            "roles": self.list_roles,
            "create_role": self.create_role,
            "alter_role": self.alter_role,
            "delete_role": self.delete_role,
        }

    async def list_rules(self, request: SelectAcls, access: Access) -> list[dict[str, str]]:
        return effective_words(self._broker.security, filter_from_words(request))

    async def add(self, request: AddAcls, access: Access) -> None:
        self._check_authorizer()
        new = [from_words(row) for row in request.acls]
        await self._broker.alter_security(lambda state: added(state, new))

    async def delete(self, request: DeleteAcls, access: Access) -> list[dict[str, str]]:
        """Raises InvalidRequest: what would be deleted holds through a role, and so stays."""
        chosen = filter_from_words(request)
        deletion = RuleDeletion([chosen])
        if request.dry_run:
            deletion(self._broker.security)
        else:
            self._check_authorizer()
            await self._broker.alter_security(deletion)
        if message := deletion.refusal(chosen):
            raise InvalidRequest(message)
        return [words(acl) for acl in deletion.deleted]

    async def list_roles(self, request: Nothing, access: Access) -> list[dict[str, Any]]:
        state = self._broker.security
        rules: dict[str, list[dict[str, str]]] = {principal_of_role(name): [] for name in state.roles}
        for acl in state.acls:
            if acl.principal in rules:
                rules[acl.principal].append(words(acl))
        return [
            {"name": name, "users": users, "rules": rules[principal_of_role(name)]}
            for name, users in sorted(state.roles.items())
        ]

    async def create_role(self, request: OneRole, access: Access) -> None:
        self._check_authorizer()
        await self._broker.alter_security(created(request.name))

    async def alter_role(self, request: AlterRole, access: Access) -> None:
        self._check_authorizer()
        change = regranted(request.name, request.grant, request.revoke, without_password=request.without_password)
        await self._broker.alter_security(change)

    async def delete_role(self, request: DeleteRole, access: Access) -> dict[str, Any]:
        deletion = RoleDeletion(request.name)
        if request.dry_run:
            deletion(self._broker.security)
        else:
            self._check_authorizer()
            await self._broker.alter_security(deletion)
        return {"users": deletion.users, "rules": [words(acl) for acl in deletion.rules]}

    def _check_authorizer(self) -> None:
        """Raises InvalidRequest: nothing would enforce the rules."""
        if not self._broker.authorizes:
            raise InvalidRequest(NO_AUTHORIZER)
