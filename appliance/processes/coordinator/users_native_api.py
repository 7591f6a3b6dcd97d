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

    async def list(self, wanted: Nothing, access: Access) -> list[dict[str, Any]]:
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
            mechanisms = {mechanism: one.iterations for mechanism, one in sorted(verifiers.items())}
            standing: dict[str, Any] = {"locked": account.locked, "expires_ms": account.expires_ms or None}
            standing |= {"expired": account.has_expired(now_ms), "roles": roles.get(name, [])}
            rows.append({"name": name, "mechanisms": mechanisms, **standing})
        return rows

    async def put(self, wanted: PutUser, access: Access) -> None:
        verifiers = {}
        for mechanism, text in wanted.verifiers.items():
            try:
                verifiers[mechanism] = decode_verifier(mechanism, text)
            except ValueError as error:
                raise InvalidRequest(f"user {wanted.name!r}: {error}") from None
        await self._broker.alter_security(set_verifiers(wanted.name, verifiers, new=wanted.new))

    async def alter(self, wanted: AlterUser, access: Access) -> None:
        change = alter_account(
            wanted.name,
            locked=wanted.locked,
            expires_ms=wanted.expires_ms,
            ended=uuid4().hex if wanted.kick or wanted.locked else "",
            without_password=wanted.without_password,
        )
        await self._broker.alter_security(change)

    async def delete(self, wanted: OneUser, access: Access) -> None:
        await self._broker.alter_security(drop_verifiers(wanted.name))
