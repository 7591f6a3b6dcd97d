"""Answers the native verbs about users, access rules, roles and quotas; ``wire/native_admin.py`` specifies them.

Whatever changes is one change of the stored security state (``security/rule_changes.py``, ``user_changes.py``,
``roles.py``), made by :meth:`.SecurityRegistry.alter`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

from ...clock import wall_ms
from ...errors import InvalidRequest
from ...security.accounts import OPEN
from ...security.acls import Access
from ...security.principals import principal_of_role
from ...security.quotas import CLIENT_ID, USER, check_entity
from ...security.roles import RoleDeletion, created, regranted
from ...security.rule_changes import (
    NO_AUTHORIZER,
    RuleDeletion,
    added,
    effective_words,
    filter_from_words,
    from_words,
    limited,
    words,
)
from ...security.scram import decode_verifier
from ...security.user_changes import alter_account, drop_verifiers, set_verifiers
from ...wire.native_admin import (
    AddAcls,
    AlterRole,
    AlterUser,
    DeleteAcls,
    DeleteRole,
    Nothing,
    OneRole,
    OneUser,
    PutQuota,
    PutUser,
    SelectAcls,
)
from .this_broker import ThisBroker


class SecurityNativeApi:
    def __init__(self, broker: ThisBroker) -> None:
        self._broker = broker
        self.verbs: dict[str, Callable[[Any, Access], Awaitable[Any]]] = {
            "users": self.list_users,
            "put_user": self.put_user,
            "alter_user": self.alter_user,
            "delete_user": self.delete_user,
            "acls": self.list_rules,
            "add_acls": self.add_rules,
            "delete_acls": self.delete_rules,
            "roles": self.list_roles,
            "create_role": self.create_role,
            "alter_role": self.alter_role,
            "delete_role": self.delete_role,
            "quotas": self.list_quotas,
            "put_quota": self.put_quota,
        }

    # ---- users

    async def list_users(self, request: Nothing, access: Access) -> list[dict[str, Any]]:
        """Users with passwords, and those of whom something is decided, or who have a role."""
        state, now_ms = self._broker.security.state, wall_ms()
        decided = {name for name, account in state.accounts.items() if account.locked or account.expires_ms}
        roles: dict[str, list[str]] = {}
        for role in sorted(state.roles):
            for name in state.roles[role]:
                roles.setdefault(name, []).append(role)
        rows = []
        for name in sorted(state.users.keys() | decided | roles.keys()):
            account, verifiers = state.accounts.get(name, OPEN), state.users.get(name, {})
            mechanisms = {mechanism: verifier.iterations for mechanism, verifier in sorted(verifiers.items())}
            standing: dict[str, Any] = {"locked": account.locked, "expires_ms": account.expires_ms or None}
            standing |= {"expired": account.has_expired(now_ms), "roles": roles.get(name, [])}
            rows.append({"name": name, "mechanisms": mechanisms, **standing})
        return rows

    async def put_user(self, request: PutUser, access: Access) -> None:
        verifiers = {}
        for mechanism, text in request.verifiers.items():
            try:
                verifiers[mechanism] = decode_verifier(mechanism, text)
            except ValueError as error:
                raise InvalidRequest(f"user {request.name!r}: {error}") from None
        await self._broker.security.alter(set_verifiers(request.name, verifiers, new=request.new))

    async def alter_user(self, request: AlterUser, access: Access) -> None:
        change = alter_account(
            request.name,
            locked=request.locked,
            expires_ms=request.expires_ms,
            ended=uuid4().hex if request.kick or request.locked else "",
            without_password=request.without_password,
        )
        await self._broker.security.alter(change)

    async def delete_user(self, request: OneUser, access: Access) -> None:
        await self._broker.security.alter(drop_verifiers(request.name))

    # ---- access rules

    async def list_rules(self, request: SelectAcls, access: Access) -> list[dict[str, str]]:
        return effective_words(self._broker.security.state, filter_from_words(request))

    async def add_rules(self, request: AddAcls, access: Access) -> None:
        self._check_authorizer()
        new = [from_words(row) for row in request.acls]
        await self._broker.security.alter(lambda state: added(state, new))

    async def delete_rules(self, request: DeleteAcls, access: Access) -> list[dict[str, str]]:
        """Raises InvalidRequest: what would be deleted holds through a role, and so stays."""
        chosen = filter_from_words(request)
        deletion = RuleDeletion([chosen])
        if request.dry_run:
            deletion(self._broker.security.state)
        else:
            self._check_authorizer()
            await self._broker.security.alter(deletion)
        if message := deletion.refusal(chosen):
            raise InvalidRequest(message)
        return [words(acl) for acl in deletion.deleted]

    # ---- roles

    async def list_roles(self, request: Nothing, access: Access) -> list[dict[str, Any]]:
        state = self._broker.security.state
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
        await self._broker.security.alter(created(request.name))

    async def alter_role(self, request: AlterRole, access: Access) -> None:
        self._check_authorizer()
        change = regranted(request.name, request.grant, request.revoke, without_password=request.without_password)
        await self._broker.security.alter(change)

    async def delete_role(self, request: DeleteRole, access: Access) -> dict[str, Any]:
        deletion = RoleDeletion(request.name)
        if request.dry_run:
            deletion(self._broker.security.state)
        else:
            self._check_authorizer()
            await self._broker.security.alter(deletion)
        return {"users": deletion.users, "rules": [words(acl) for acl in deletion.rules]}

    def _check_authorizer(self) -> None:
        """Raises InvalidRequest: nothing would enforce the rules."""
        if not self._broker.authorizes:
            raise InvalidRequest(NO_AUTHORIZER)

    # ---- quotas

    async def list_quotas(self, request: Nothing, access: Access) -> list[dict[str, Any]]:
        rows = []
        for quota in self._broker.security.state.quotas:
            names = dict(quota.entity)
            rows.append({"user": names.get(USER), "client_id": names.get(CLIENT_ID), "limits": dict(quota.limits)})
        return rows

    async def put_quota(self, request: PutQuota, access: Access) -> None:
        """Set limits of an entity, or (nil) remove them.

        Raises:
            InvalidRequest: there is no such entity or limit, or nothing is to be changed.
        """
        if not request.limits:
            raise InvalidRequest("name at least one limit of the quota")
        named = ((USER, request.user), (CLIENT_ID, request.client_id))
        entity = check_entity((part, name or None) for part, name in named if name is not None)
        await self._broker.security.alter(limited(entity, request.limits))
