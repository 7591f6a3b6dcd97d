"""Answers the native verbs about users; ``wire/native_admin.py`` specifies them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

from ...errors import InvalidRequest
from ...security.accounts import OPEN
from ...security.acls import Access
from ...security.scram import decode_verifier
from ...security.user_changes import alter_account, drop_verifiers, set_verifiers
from ...wire.native_admin import AlterUser, Nothing, OneUser, PutUser
from ..clock import wall_ms
from .this_broker import ThisBroker


class UsersNativeApi:
    def __init__(self, broker: ThisBroker) -> None:
        self._broker = broker
        self.verbs: dict[str, Callable[[Any, Access], Awaitable[Any]]] = {
            "users": self.list,
            "put_user": self.put,
            "alter_user": self.alter,
            "delete_user": self.delete,
        }

    async def list(self, request: Nothing, access: Access) -> list[dict[str, Any]]:
        """Users with passwords, and those of whom something is decided, or who have a role."""
        state, now_ms = self._broker.security, wall_ms()
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

    async def put(self, request: PutUser, access: Access) -> None:
        verifiers = {}
        for mechanism, text in request.verifiers.items():
            try:
                verifiers[mechanism] = decode_verifier(mechanism, text)
            except ValueError as error:
                raise InvalidRequest(f"user {request.name!r}: {error}") from None
        await self._broker.alter_security(set_verifiers(request.name, verifiers, new=request.new))

    async def alter(self, request: AlterUser, access: Access) -> None:
        change = alter_account(
            request.name,
            locked=request.locked,
            expires_ms=request.expires_ms,
            ended=uuid4().hex if request.kick or request.locked else "",
            without_password=request.without_password,
        )
        await self._broker.alter_security(change)

    async def delete(self, request: OneUser, access: Access) -> None:
        await self._broker.alter_security(drop_verifiers(request.name))
