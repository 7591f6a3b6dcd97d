"""Changes the access rules and quotas of a security state; access rules in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from shlex import quote
from typing import Any

import msgspec

from ..errors import InvalidRequest
from . import acls
from .acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType, parse, word
from .principals import ROLES, role_of_principal, user_of_principal
from .quotas import EntityPart, changed
from .roles import EffectiveRule, checked, effective, unknown_role
from .security_state import SecurityState

NO_AUTHORIZER = 'there are no access rules here: set security.authorizer = "acl"'


def added(state: SecurityState, new: Sequence[Acl]) -> SecurityState:
    """The state with these rules, which :func:`appliance.security.acls.check_rule` has accepted.

    Raises:
        InvalidRequest: these are too many rules, or one is for a role that there is not.
    """
    for acl in new:
        role = role_of_principal(acl.principal)
        if acl.principal.startswith(ROLES) and role not in state.roles:
            raise InvalidRequest(unknown_role(role))
    every = {*state.acls, *new}
    if len(every) > acls.ACLS_MAX:
        raise InvalidRequest(f"{len(every)} access rules: {acls.ACLS_MAX} at most; use prefixes, or User:*")
    return checked(msgspec.structs.replace(state, acls=tuple(sorted(every))))


class RuleDeletion:
    """Deletes rules; a function from state to state that may be called again, when others write meanwhile.

    ``deleted``: the rules of the last state that had some.  Those that users have through a role are rules of the role.
    """

    def __init__(self, chosen: Sequence[AclFilter]) -> None:
        self._chosen = chosen
        self._state = SecurityState()
        self.deleted: list[Acl] = []

    def refusal(self, chosen: AclFilter) -> str:
        """Why nothing was deleted that the filter selects: users have it through a role; "": that is not so."""
        if any(chosen.selects(acl) for acl in self.deleted):
            return ""
        return next((_remedy(rule) for rule in effective(self._state, chosen) if rule.role), "")

    def __call__(self, state: SecurityState) -> SecurityState:
        self._state = state
        selected: list[Acl] = []
        kept: list[Acl] = []
        for acl in state.acls:
            (selected if any(chosen.selects(acl) for chosen in self._chosen) else kept).append(acl)
        if selected:
            self.deleted = selected
        return msgspec.structs.replace(state, acls=tuple(kept))


def _remedy(rule: EffectiveRule) -> str:
    user = quote(user_of_principal(rule.acl.principal))
    return f"a rule of the role {rule.role!r}: `appliance roles revoke {rule.role} {user}` takes the role from the user"


def limited(
    entity: tuple[EntityPart, ...], limits: Mapping[str, float | None]
) -> Callable[[SecurityState], SecurityState]:
    """A change that sets these limits of an entity, or (None) removes them.

    Raises, when the change is made:
        InvalidRequest: see :func:`appliance.security.quotas.changed`.
    """

    def change(state: SecurityState) -> SecurityState:
        return msgspec.structs.replace(state, quotas=tuple(changed(state.quotas, entity, limits)))

    return change


def from_words(rule: Any) -> Acl:
    """The rule with these words.

    Raises:
        InvalidRequest: the message says what is wrong.
    """
    acl = Acl(
        parse(ResourceType, rule.resource),
        rule.name,
        parse(PatternType, rule.pattern),
        rule.principal,
        rule.host,
        parse(Operation, rule.operation),
        parse(Permission, rule.permission),
    )
    acls.check_rule(acl)
    return acl


def filter_from_words(rule: Any) -> AclFilter:
    """The filter with these words.  Raises InvalidRequest."""
    return AclFilter(
        parse(ResourceType, rule.resource),
        rule.name,
        parse(PatternType, rule.pattern),
        rule.principal,
        rule.host,
        parse(Operation, rule.operation),
        parse(Permission, rule.permission),
    )


def effective_words(state: SecurityState, chosen: AclFilter) -> list[dict[str, str]]:
    """The rules that a filter selects, and those that users have through roles, with the name as ``role``."""
    return [words(acl) | ({"role": role} if role else {}) for acl, role in effective(state, chosen)]


def words(acl: Acl) -> dict[str, str]:
    """A rule as :func:`from_words` reads it."""
    return {
        "principal": acl.principal,
        "host": acl.host,
        "permission": word(acl.permission),
        "operation": word(acl.operation),
        "resource": word(acl.resource),
        "name": acl.name,
        "pattern": word(acl.pattern),
    }
