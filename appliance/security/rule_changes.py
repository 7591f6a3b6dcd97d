"""Changes the access rules of a security state; access rules in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..errors import InvalidRequest
from . import acls
from .acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType, parse, word
from .security_state import SecurityState

NO_AUTHORIZER = 'there are no access rules here: set security.authorizer = "acl"'


def added(state: SecurityState, new: Sequence[Acl]) -> SecurityState:
    """The state with these rules, which :func:`appliance.security.acls.check` has accepted.

    Raises:
        InvalidRequest: these are too many rules.
    """
    every = {*state.acls, *new}
    if len(every) > acls.ACLS_MAX:
        raise InvalidRequest(f"{len(every)} access rules: {acls.ACLS_MAX} at most; use prefixes, or User:*")
    return msgspec.structs.replace(state, acls=tuple(sorted(every)))


class Deletion:
    """Deletes rules; a function from state to state that may be called again, when others write meanwhile.

    ``deleted``: the rules of the last state that had some.
    """

    def __init__(self, chosen: Sequence[AclFilter]) -> None:
        self._chosen = chosen
        self.deleted: list[Acl] = []

    def __call__(self, state: SecurityState) -> SecurityState:
        selected: list[Acl] = []
        kept: list[Acl] = []
        for acl in state.acls:
            (selected if any(one.selects(acl) for one in self._chosen) else kept).append(acl)
        if selected:
            self.deleted = selected
        return msgspec.structs.replace(state, acls=tuple(kept))


def from_words(given: Any) -> Acl:
    """The rule with these words.

    Raises:
        InvalidRequest: the message says what is wrong.
    """
    acl = Acl(
        parse(ResourceType, given.resource),
        given.name,
        parse(PatternType, given.pattern),
        given.principal,
        given.host,
        parse(Operation, given.operation),
        parse(Permission, given.permission),
    )
    acls.check(acl)
    return acl


def filter_from_words(given: Any) -> AclFilter:
    """The filter with these words.  Raises InvalidRequest."""
    return AclFilter(
        parse(ResourceType, given.resource),
        given.name,
        parse(PatternType, given.pattern),
        given.principal,
        given.host,
        parse(Operation, given.operation),
        parse(Permission, given.permission),
    )


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
