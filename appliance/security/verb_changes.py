"""Says what the admin verbs of the native protocol change, as fields of lines of the audit log.

Each resource that a verb changes has a line of its own.  The coordinator writes them for its clients
(``processes/coordinator/change_log.py``), the console for those who are logged in at its page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

DEFAULT_ENTITY: Final = "<default>"


def settings_field(settings: Iterable[tuple[str, Any]]) -> dict[str, object]:
    """``settings``: NAME=VALUE of each; None is the default.  Names and values of real settings have no blanks."""
    texts = [f"{name}={'default' if value is None else str(value).strip()}" for name, value in settings]
    return {"settings": " ".join(texts)} if texts else {}


def _rows_of(
    name: str, fields: tuple[str, ...], shared: str
) -> Callable[[dict[str, Any], Any], Iterator[dict[str, object]]]:
    """The lines of a verb whose argument ``name`` has rows with these fields; ``shared`` is in all of them."""

    def lines(arguments: dict[str, Any], result: Any) -> Iterator[dict[str, object]]:
        rows = arguments.get(name)
        if rows is None:
            yield {shared: arguments[shared], name: "all"}
        for row in rows or ():
            yield {shared: arguments[shared], **dict(zip(fields, row, strict=True))}

    return lines


def _topic(arguments: dict[str, Any], result: Any) -> Iterator[dict[str, object]]:
    more = {key: arguments[key] for key in ("partition", "offset", "partitions") if arguments.get(key) is not None}
    if isinstance(result, dict) and "partitions" in result:
        more["partitions"] = result["partitions"]
    yield {"topic": arguments["name"], **more, **settings_field(arguments.get("settings", {}).items())}


def _undeleted(arguments: dict[str, Any], result: Any) -> Iterator[dict[str, object]]:
    partitions = {} if result is None else {"partitions": result["partitions"]}
    yield {"topic": arguments["name"], "as": arguments.get("new_name") or arguments["name"], **partitions}


def _ensured(arguments: dict[str, Any], result: Any) -> Iterator[dict[str, object]]:
    if result is not None and result["created"]:
        yield {"topic": arguments["name"], "partitions": result["partitions"]}


def _repaired(arguments: dict[str, Any], result: Any) -> Iterator[dict[str, object]]:
    done = {} if result is None else {key: result[key] for key in ("end", "hole_bytes", "cut_bytes")}
    cut = {"cut": "yes" if arguments.get("cut") else "no"}
    yield {"topic": arguments["name"], "partition": arguments["partition"], **cut, **done}


def _user(arguments: dict[str, Any], result: Any) -> Iterator[dict[str, object]]:
    sets = {"set": ",".join(sorted(arguments["verifiers"])), "new": "yes" if arguments["new"] else "no"}
    yield {"user": arguments["name"], **(sets if "verifiers" in arguments else {})}


def _altered_user(arguments: dict[str, Any], result: Any) -> Iterator[dict[str, object]]:
    done = {key: arguments[key] for key in ("locked", "expires_ms", "kick") if arguments.get(key) not in (None, False)}
    if arguments.get("locked") is False:
        done["locked"] = "no"
    yield {"user": arguments["name"], **{key: "yes" if value is True else value for key, value in done.items()}}


def _deleted_user(arguments: dict[str, Any], result: Any) -> Iterator[dict[str, object]]:
    yield {"user": arguments["name"]}


def _quota(arguments: dict[str, Any], result: Any) -> Iterator[dict[str, object]]:
    names = (("user", arguments.get("user")), ("client-id", arguments.get("client_id")))
    entity = {part: name or DEFAULT_ENTITY for part, name in names if name is not None}
    yield {**entity, **{key: "none" if rate is None else rate for key, rate in arguments["limits"].items()}}


RULE_FIELDS: Final = ("permission", "principal", "host", "operation", "resource", "pattern", "name")
RULE_DEFAULTS: Final = {"permission": "Allow", "host": "*", "pattern": "Literal"}


def _rules(rows: Any) -> Iterator[dict[str, object]]:
    for rule in rows or ():
        yield {field: (RULE_DEFAULTS | rule)[field] for field in RULE_FIELDS}


def _altered_role(arguments: dict[str, Any], result: Any) -> Iterator[dict[str, object]]:
    for done, users in (("granted", arguments.get("grant")), ("revoked", arguments.get("revoke"))):
        for user in users or ():
            yield {"role": arguments["name"], done: user}


def _deleted_role(arguments: dict[str, Any], result: Any) -> Iterator[dict[str, object]]:
    """The role, whom it was taken from, and each of its rules."""
    yield {"role": arguments["name"]}
    had = result or {"users": [], "rules": []}
    yield from ({"role": arguments["name"], "revoked": user} for user in had["users"])
    yield from _rules(had["rules"])


VERB_CHANGES: Final[dict[str, Callable[[dict[str, Any], Any], Iterator[dict[str, object]]]]] = {
    "create_topic": _topic,
    "ensure_topic": _ensured,
    "alter_topic": _topic,
    "delete_topic": _topic,
    "undelete_topic": _undeleted,
    "restore_topic": _topic,
    "delete_records": _topic,
    "repair": _repaired,
    "commit": _rows_of("offsets", ("topic", "partition", "offset"), "group"),
    "alter_group": lambda arguments, _: iter(
        [{"group": arguments["group"], **settings_field(arguments["settings"].items())}]
    ),
    "delete_offsets": _rows_of("partitions", ("topic", "partition"), "group"),
    "abort_transaction": lambda arguments, _: iter([{"transactional_id": arguments["id"]}]),
    "abort_hanging": _topic,
    "put_user": _user,
    "alter_user": _altered_user,
    "delete_user": _deleted_user,
    "put_quota": _quota,
    "accept_clock": lambda _, __: iter([{}]),
    "add_acls": lambda arguments, _: _rules(arguments["acls"]),
    "delete_acls": lambda _, result: _rules(result),
    "create_role": lambda arguments, _: iter([{"role": arguments["name"]}]),
    "alter_role": _altered_role,
    "delete_role": _deleted_role,
}
"""By verb: the lines of its arguments and its result, which is None after an error."""
