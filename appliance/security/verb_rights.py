"""Checks the rights that an admin verb of the native protocol needs with its arguments.

The verb's row in ``wire/native_admin.py`` says which they are.  The coordinator asks here for a native client, the
console for who is logged in at its page, so both may do the same.  Rights of the kind LISTED are left to who makes the
listing.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, Final

from ..errors import (
    ClusterNotPermitted,
    GroupNotPermitted,
    NotPermitted,
    TopicNotPermitted,
    TransactionalIdNotPermitted,
)
from .acls import CLUSTER_NAME, Access, Operation, ResourceType, word
from .api_rights import How, NeededRights, Right

ERRORS: Final[dict[ResourceType, type[NotPermitted]]] = {
    ResourceType.TOPIC: TopicNotPermitted,
    ResourceType.GROUP: GroupNotPermitted,
    ResourceType.TRANSACTIONAL_ID: TransactionalIdNotPermitted,
    ResourceType.CLUSTER: ClusterNotPermitted,
}
ARGUMENT_OF: Final = {
    ("alter_topic", Operation.ALTER_CONFIGS): "settings",
    ("alter_topic", Operation.ALTER): "partitions",
}
"""Rights that a verb needs only with this argument."""


def check_rights(verb: str, needed: NeededRights, arguments: Any, access: Access, topics: Container[str]) -> None:
    """Check the rights of one request.

    Args:
        needed: by the verb's row.
        topics: those that there are.

    Raises:
        NotPermitted: the first right that is missing.
    """
    if access.unrestricted:
        return
    for right in _rights_for(verb, needed, arguments):
        operation, resource, how = right
        if how is How.LISTED:
            continue
        if how is How.SUFFICES:
            if access.may(operation, resource):
                return
            continue
        if verb == "ensure_topic" and operation is Operation.CREATE and arguments.name in topics:
            continue
        _check(right, arguments, access)


def _rights_for(verb: str, needed: NeededRights, arguments: Any) -> Sequence[Right]:
    """The rights that a verb needs with these arguments; all of them, if they ask for nothing of it."""
    arguments_of = [(right, ARGUMENT_OF.get((verb, right.operation))) for right in needed]
    return [right for right, name in arguments_of if not name or getattr(arguments, name)] or needed


def _check(right: Right, arguments: Any, access: Access) -> None:
    operation, resource, how = right
    names = _names(resource, arguments)
    of_any_topic = how is How.WHOLE and resource is ResourceType.TOPIC and not hasattr(arguments, "group")
    if of_any_topic and not access.may_some(operation, resource):
        raise ClusterNotPermitted(_text(right, "any"), CLUSTER_NAME)
    for name in names:
        if not access.may(operation, resource, name):
            raise ERRORS[resource](_text(right, name), name)


def _names(resource: ResourceType, arguments: Any) -> list[str]:
    """The resources of a type that the arguments of a verb name."""
    if resource is ResourceType.CLUSTER:
        return [CLUSTER_NAME]
    if resource is ResourceType.GROUP:
        return [arguments.group] if hasattr(arguments, "group") else []
    if resource is ResourceType.TRANSACTIONAL_ID:
        return [arguments.id]
    if hasattr(arguments, "name"):
        return [arguments.name]
    rows = getattr(arguments, "offsets", None) or getattr(arguments, "partitions", None) or ()
    named = getattr(arguments, "names", None) or getattr(arguments, "topics", None) or ()
    return [*named, *dict.fromkeys(row[0] for row in rows)]


def _text(right: Right, name: str) -> str:
    operation, resource, _ = right
    return f"not permitted: {word(operation)} on {word(resource).lower()} {name!r}"
