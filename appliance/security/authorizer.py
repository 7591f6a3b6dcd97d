"""Gives each client of a process its access, by the rules in force."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final
from weakref import WeakValueDictionary

from .acls import Access, Acl, Rights
from .local_users import administrators
from .principals import Origin, parse_super_users, principal_of
from .roles import roles_of_principals
from .security_state import SecurityState

ACL: Final = "acl"
"""The value of ``security.authorizer`` with which access rules are enforced."""
KEPT_MAX: Final = 64
"""What a client's names cost is bounded by ``acls.Decisions``."""


class Authorizer:
    """The rights that hold now.  Root, and the user of the service, may do everything through a Unix socket.

    Clients with the same rights share an :class:`Access`, which lives as long as one of them, and while it is one of
    the newest KEPT_MAX: a process without connections of its own asks for it with each request.
    """

    def __init__(self, kind: str, super_users: str, without_acl: bool) -> None:
        """See ``security.authorizer``, ``security.super_users`` and ``security.allow_everyone_if_no_acl``."""
        self.enforced = kind == ACL
        self._super_users = parse_super_users(super_users)
        self._administrators = frozenset(map(principal_of, administrators()))
        self._without_acl = without_acl
        self._acls: Iterable[Acl] = ()
        self._roles: Mapping[str, tuple[str, ...]] = {}
        self._shared: WeakValueDictionary[tuple[str, str], Access] = WeakValueDictionary()
        self._newest: deque[Access] = deque(maxlen=KEPT_MAX)
        self.rights = self._new_rights()
        """Replaced by each change of the rules."""

    def _new_rights(self) -> Rights:
        roles = roles_of_principals(self._roles)
        return Rights(self._acls, self._super_users, without_acl=self._without_acl, enforced=self.enforced, roles=roles)

    def enforce(self, state: SecurityState) -> bool:
        """Enforce the rules and roles of a state; return whether any access that was given may be another now."""
        if (state.acls, state.roles) == (self._acls, self._roles):
            return False
        self._acls, self._roles = state.acls, state.roles
        self.rights = self._new_rights()
        self._shared = WeakValueDictionary()
        self._newest.clear()
        return self.enforced

    def access(self, origin: Origin) -> Access:
        """What a client may do."""
        if origin.listener.unix and origin.principal in self._administrators:
            return Access(self.rights, origin.principal, origin.host, administrator=True)
        key = origin.principal, self.rights.effective_host(origin.host)
        access = self._shared.get(key)
        if access is None:
            access = self._shared[key] = self.rights.access(*key)
            self._newest.append(access)
        return access
