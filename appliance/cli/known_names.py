"""The names that an appliance knows, to complete a word and to correct one; the caller has a connection to it."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any, Final

from ..errors import ApplianceError

if TYPE_CHECKING:
    from ..client.cluster_client import Cluster

_FIELDS: Final = {"topics": "name", "groups": "group", "users": "name", "roles": "name", "transactions": "id"}
"""Admin verb -> the field of its rows that has the name."""


def names_of(cluster: Cluster, verb: str) -> list[str]:
    if verb == "topics":  # the metadata cost less than a description
        return sorted(cluster.refresh(None).topics)
    rows: list[dict[str, Any]] = cluster.admin(verb, {})
    return sorted(row[_FIELDS[verb]] for row in rows)


def members_of(cluster: Cluster, group: str) -> list[str]:
    return sorted(row["id"] for row in cluster.admin("group", {"group": group})["members"])


def did_you_mean(cluster: Cluster, verb: str, message: str) -> str:
    """The name that is nearest to the one quoted in the message of an error; "" if none is near."""
    quoted = re.search(r"'([^']+)'", message)
    if quoted is None:
        return ""
    try:
        near = difflib.get_close_matches(quoted[1], names_of(cluster, verb), 1)
    except ApplianceError:
        return ""
    return near[0] if near and near[0] != quoted[1] else ""
