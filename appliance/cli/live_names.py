"""Asks the appliance for the names of topics, groups, members, users and roles, to complete a word and to correct one.

Completion reports no error: when the appliance does not answer within :data:`ANSWER_MS`, no names are offered.  Names
with characters that a terminal or a shell would interpret are not offered either (:data:`OFFERED`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from ..config import TopicSettings
from ..errors import ApplianceError
from .target import address

if TYPE_CHECKING:
    from ..client.cluster_client import Cluster

ANSWER_MS: Final = 1_000
OFFERED: Final = re.compile(r"[\w.@%+:,/=-]{1,255}")
NAMES_MAX: Final = 1_000
_VERBS: Final = {"topics": "name", "groups": "group", "users": "name", "roles": "name", "transactions": "id"}
"""Admin verb -> the field of its rows that has the name."""


def complete_topics(context: typer.Context, incomplete: str) -> list[str]:
    return _live(context, "topics", incomplete)


def complete_groups(context: typer.Context, incomplete: str) -> list[str]:
    return _live(context, "groups", incomplete)


def complete_members(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of the members of the group that the line names already.

    While the value of an option is missing, the words before it are not arguments yet: they are in ``context.args``.
    """
    group = context.params.get("group") or next(iter(context.args), "")
    return _offered(context, incomplete, lambda cluster: members_of(cluster, group)) if group else []


def complete_users(context: typer.Context, incomplete: str) -> list[str]:
    return _live(context, "users", incomplete)


def complete_roles(context: typer.Context, incomplete: str) -> list[str]:
    return _live(context, "roles", incomplete)


def complete_transactions(context: typer.Context, incomplete: str) -> list[str]:
    return _live(context, "transactions", incomplete)


def complete_setting_names(incomplete: str) -> list[str]:
    return [name for name in TopicSettings().as_kafka() if name.startswith(incomplete)]


def _live(context: typer.Context, verb: str, incomplete: str) -> list[str]:
    return _offered(context, incomplete, lambda cluster: _names(cluster, verb))


def _offered(context: typer.Context, incomplete: str, ask: Callable[[Cluster], list[str]]) -> list[str]:
    from ..client.cluster_client import Cluster

    params = context.params
    try:
        data = Path(params["data"]) if params.get("data") else None
        listener = address(data, params.get("connect"))
        cluster = Cluster(
            listener, client_name="appliance-cli", connect_timeout_ms=ANSWER_MS, request_timeout_ms=ANSWER_MS
        )
        try:
            names = ask(cluster)
        finally:
            cluster.close()
    except (ApplianceError, OSError, typer.BadParameter):
        return []
    return [name for name in names if name.startswith(incomplete) and OFFERED.fullmatch(name)][:NAMES_MAX]


def _names(cluster: Cluster, verb: str) -> list[str]:
    if verb == "topics":  # the metadata cost less than a description
        return sorted(cluster.refresh(None).topics)
    rows: list[dict[str, Any]] = cluster.admin(verb, {})
    return sorted(row[_VERBS[verb]] for row in rows)


def members_of(cluster: Cluster, group: str) -> list[str]:
    return sorted(row["id"] for row in cluster.admin("group", {"group": group})["members"])


def did_you_mean(cluster: Cluster, verb: str, message: str) -> str:
    """The name that is nearest to the one quoted in the message of an error; "" if none is near."""
    quoted = re.search(r"'([^']+)'", message)
    if quoted is None:
        return ""
    try:
        near = difflib.get_close_matches(quoted[1], _names(cluster, verb), 1)
    except ApplianceError:
        return ""
    return near[0] if near and near[0] != quoted[1] else ""
