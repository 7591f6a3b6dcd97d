"""Completes a word by the names of topics, groups, members, users and roles that the appliance has.

Completion reports no error: when the appliance does not answer within :data:`ANSWER_S`, no names are offered.  Names
with characters that a terminal or a shell would interpret are not offered either (:data:`OFFERED`).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from ..config import TopicSettings
from ..errors import ApplianceError
from .known_names import members_of, names_of
from .target import address

if TYPE_CHECKING:
    from ..client.cluster_client import Cluster

ANSWER_S: Final = 1.0
OFFERED: Final = re.compile(r"[\w.@%+:,/=-]{1,255}")
NAMES_MAX: Final = 1_000


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
    return _offered(context, incomplete, lambda cluster: names_of(cluster, verb))


def _offered(context: typer.Context, incomplete: str, ask: Callable[[Cluster], list[str]]) -> list[str]:
    """The names that there are within ANSWER_S; a thread that waits for longer is left to its own time limits."""
    names: list[str] = []
    thread = threading.Thread(target=lambda: names.extend(_ask(context, ask)), name="completion", daemon=True)
    thread.start()
    thread.join(ANSWER_S)
    found = [] if thread.is_alive() else names
    return [name for name in found if name.startswith(incomplete) and OFFERED.fullmatch(name)][:NAMES_MAX]


def _ask(context: typer.Context, ask: Callable[[Cluster], list[str]]) -> list[str]:
    from ..client.cluster_client import Cluster

    params = context.params
    timeout_ms = round(1000 * ANSWER_S)
    try:
        data = Path(params["data"]) if params.get("data") else None
        listener = address(data, params.get("connect"))
        cluster = Cluster(
            listener, client_name="appliance-cli", connect_timeout_ms=timeout_ms, request_timeout_ms=timeout_ms
        )
        try:
            return ask(cluster)
        finally:
            cluster.close()
    except (ApplianceError, OSError, typer.BadParameter):
        return []
