"""Roles: access rules under one name, which users are given and lose together.

A rule of a role is an access rule whose principal is ``Role:NAME``, so that it is stored, shown, added and deleted as
every other one, also by Kafka's tools.  Nobody logs in under such a principal: users and certificates are ``User:…``.
``SecurityState.roles`` says which users have a role; they may do what its rules allow, and may not what they deny.

Tools that know users only see what follows, too: :func:`effective` has each rule of a role once more for each of its
users.

The changes are functions from one state to the next, as in :mod:`.user_changes`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from ..errors import InvalidRequest, UnknownUser
from .acls import ANY, Acl, AclFilter
from .principals import principal_of, principal_of_role, role_of_principal
from .security_state import SecurityState
from .user_changes import StateChange, check_user

ROLES_MAX: Final = 1_000
GRANTS_MAX: Final = 10_000
"""Grants of all roles to users together.  Every worker holds all of them."""
EFFECTIVE_MAX: Final = 50_000
"""Rules of users and of roles, those once for each of their users: the longest answer to who may do what."""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


class EffectiveRule(NamedTuple):
    """``role``: through which it holds; "": it is stored so."""

    acl: Acl
    role: str = ""


def effective(state: SecurityState, chosen: AclFilter) -> Iterator[EffectiveRule]:
    """The rules that a filter selects: as they are stored, then those that users have through roles."""
    yield from (EffectiveRule(acl) for acl in state.acls if chosen.selects(acl))
    whoever = msgspec.structs.replace(chosen, principal=None)
    for acl in state.acls:
        role = role_of_principal(acl.principal)
        users = state.roles.get(role, ())
        if chosen.principal is not None:
            users = tuple(user for user in users if principal_of(user) == chosen.principal)
        if users and whoever.selects(acl):
            for user in users:
                yield EffectiveRule(msgspec.structs.replace(acl, principal=principal_of(user)), role)


def roles_of_principals(roles: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """The principals whose rules a principal has besides its own."""
    roles_by_principal: dict[str, list[str]] = {}
    for role in sorted(roles):
        for user in roles[role]:
            roles_by_principal.setdefault(principal_of(user), []).append(principal_of_role(role))
    return roles_by_principal


def checked(state: SecurityState) -> SecurityState:
    """The state, after a change of rules or roles.

    Raises:
        InvalidRequest: there are too many of them, or a rule is for a role that there is not.
    """
    if len(state.roles) > ROLES_MAX:
        raise InvalidRequest(f"{len(state.roles)} roles: {ROLES_MAX} at most")
    grants = sum(map(len, state.roles.values()))
    if grants > GRANTS_MAX:
        raise InvalidRequest(f"roles would be given to {grants} users: {GRANTS_MAX} at most, all roles together")
    rules = Counter(role_of_principal(acl.principal) for acl in state.acls)
    count = len(state.acls) + sum(rules[role] * len(users) for role, users in state.roles.items())
    if count > EFFECTIVE_MAX:
        raise InvalidRequest(
            f"{count} access rules, those of roles once for each of their users: {EFFECTIVE_MAX} at most; use prefixes"
        )
    return state


def created(name: str) -> StateChange:
    """A change that makes a role, without rules and users.

    Raises:
        InvalidRequest: the name is none, or, when the change is made, the role exists already.
    """
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"a role's name has 1 to 249 letters, digits, '.', '_' and '-', not {name!r:.300}")
    was_made = False

    def change(state: SecurityState) -> SecurityState:
        nonlocal was_made
        if name in state.roles and not was_made:
            raise InvalidRequest(f"there is a role {name!r} already: `appliance roles list` shows all")
        was_made = True
        if name not in state.roles:  # Kafka's tools may have left rules for it in ZooKeeper, where nobody is asked
            state = _without_rules(state, name)
        return checked(msgspec.structs.replace(state, roles={name: (), **state.roles}))

    return change


class RoleDeletion:
    """Deletes a role with its rules; may be called again, when others write meanwhile.

    ``users`` and ``rules``: what the role had in the last state that had it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._was_there = False
        self.users: tuple[str, ...] = ()
        self.rules: list[Acl] = []

    def __call__(self, state: SecurityState) -> SecurityState:
        """Raises InvalidRequest: there is no such role."""
        if self._name not in state.roles:
            if self._was_there:
                return state
            raise InvalidRequest(unknown_role(self._name))
        self._was_there = True
        whose = principal_of_role(self._name)
        self.users = state.roles[self._name]
        self.rules = [acl for acl in state.acls if acl.principal == whose]
        roles = {name: users for name, users in state.roles.items() if name != self._name}
        return msgspec.structs.replace(_without_rules(state, self._name), roles=roles)


def _without_rules(state: SecurityState, role: str) -> SecurityState:
    whose = principal_of_role(role)
    return msgspec.structs.replace(state, acls=tuple(acl for acl in state.acls if acl.principal != whose))


def regranted(name: str, grant: Collection[str], revoke: Collection[str], *, without_password: bool) -> StateChange:
    """A change that gives a role to users, and takes it from others.

    ``without_password``: also to users who have no password here, but log in with a certificate or a token.

    Raises, when the change is made:
        InvalidRequest: there is no such role, no user may have such a name, or there are too many.
        UnknownUser: nobody with a password here has the name, or a user has not had the role.
    """
    for user in grant:
        if user == ANY:
            raise InvalidRequest("a role is given to users one by one; a rule for everybody is one for User:*")
        check_user(user)
    taken: set[str] = set()

    def change(state: SecurityState) -> SecurityState:
        if name not in state.roles:
            raise InvalidRequest(unknown_role(name))
        own = set(state.roles[name])
        unknown = [user for user in grant if not (user in own or user in state.users or without_password)]
        if unknown:
            raise UnknownUser(
                f"there is no user {unknown[0]!r} with a password here; for one of a certificate or a token say"
                " --without-password"
            )
        lacking = [user for user in revoke if user not in own | taken]
        if lacking:
            raise UnknownUser(f"the user {lacking[0]!r} does not have the role {name!r}")
        taken.update(own.intersection(revoke))
        users = tuple(sorted((own | set(grant)) - set(revoke)))
        return checked(msgspec.structs.replace(state, roles={**state.roles, name: users}))

    return change


def unknown_role(name: str) -> str:
    return f"there is no role {name!r:.300}: `appliance roles list` shows all, `appliance roles create NAME` makes one"
