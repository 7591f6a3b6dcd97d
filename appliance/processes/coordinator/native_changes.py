"""Says what the admin verbs of the native protocol change, as fields of lines of the audit log.

Each resource that a verb changes has a line of its own.  The coordinator writes them for its clients
(:mod:`.change_log`), the console for those who are logged in at its page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

DEFAULT_ENTITY: Final = "<default>"


def settings_field(given: Iterable[tuple[str, Any]]) -> dict[str, object]:
    """``settings``: NAME=VALUE of each; None is the default.  Names and values of real settings have no blanks."""
    texts = [f"{name}={'default' if value is None else str(value).strip()}" for name, value in given]
    return {"settings": " ".join(texts)} if texts else {}


def _rows_of(
    name: str, fields: tuple[str, ...], shared: str
) -> Callable[[dict[str, Any], Any], Iterator[dict[str, object]]]:
    """The lines of a verb whose argument ``name`` has rows with these fields; ``shared`` is in all of them."""

    def lines(given: dict[str, Any], result: Any) -> Iterator[dict[str, object]]:
        rows = given.get(name)
        if rows is None:
            yield {shared: given[shared], name: "all"}
        for row in rows or ():
            yield {shared: given[shared], **dict(zip(fields, row, strict=True))}

    return lines


def _topic(given: dict[str, Any], result: Any) -> Iterator[dict[str, object]]:
    more = {key: given[key] for key in ("partition", "offset", "partitions") if given.get(key) is not None}
    if isinstance(result, dict) and "partitions" in result:
        more["partitions"] = result["partitions"]
    yield {"topic": given["name"], **more, **settings_field(given.get("settings", {}).items())}


def _undeleted(given: dict[str, Any], result: Any) -> Iterator[dict[str, object]]:
    partitions = {} if result is None else {"partitions": result["partitions"]}
    yield {"topic": given["name"], "as": given.get("new_name") or given["name"], **partitions}


def _ensured(given: dict[str, Any], result: Any) -> Iterator[dict[str, object]]:
    if result is not None and result["created"]:
        yield {"topic": given["name"], "partitions": result["partitions"]}


def _repaired(given: dict[str, Any], result: Any) -> Iterator[dict[str, object]]:
    done = {} if result is None else {key: result[key] for key in ("end", "hole_bytes", "cut_bytes")}
    cut = {"cut": "yes" if given.get("cut") else "no"}
    yield {"topic": given["name"], "partition": given["partition"], **cut, **done}


def _user(given: dict[str, Any], result: Any) -> Iterator[dict[str, object]]:
    sets = {"set": ",".join(sorted(given["verifiers"])), "new": "yes" if given["new"] else "no"}
    yield {"user": given["name"], **(sets if "verifiers" in given else {})}


def _altered_user(given: dict[str, Any], result: Any) -> Iterator[dict[str, object]]:
    done = {key: given[key] for key in ("locked", "expires_ms", "kick") if given.get(key) not in (None, False)}
    if given.get("locked") is False:
        done["locked"] = "no"
    yield {"user": given["name"], **{key: "yes" if value is True else value for key, value in done.items()}}


def _deleted_user(given: dict[str, Any], result: Any) -> Iterator[dict[str, object]]:
    yield {"user": given["name"]}


def _quota(given: dict[str, Any], result: Any) -> Iterator[dict[str, object]]:
    names = (("user", given.get("user")), ("client-id", given.get("client_id")))
    entity = {part: name or DEFAULT_ENTITY for part, name in names if name is not None}
    yield {**entity, **{key: "none" if rate is None else rate for key, rate in given["limits"].items()}}


RULE_FIELDS: Final = ("permission", "principal", "host", "operation", "resource", "pattern", "name")
RULE_DEFAULTS: Final = {"permission": "Allow", "host": "*", "pattern": "Literal"}


def _rules(rows: Any) -> Iterator[dict[str, object]]:
    for rule in rows or ():
        yield {field: (RULE_DEFAULTS | rule)[field] for field in RULE_FIELDS}


def _altered_role(given: dict[str, Any], result: Any) -> Iterator[dict[str, object]]:
    for done, users in (("granted", given.get("grant")), ("revoked", given.get("revoke"))):
        for user in users or ():
            yield {"role": given["name"], done: user}


def _deleted_role(given: dict[str, Any], result: Any) -> Iterator[dict[str, object]]:
    """The role, whom it was taken from, and each of its rules."""
    yield {"role": given["name"]}
    had = result or {"users": [], "rules": []}
    yield from ({"role": given["name"], "revoked": user} for user in had["users"])
    yield from _rules(had["rules"])


NATIVE_CHANGES: Final[dict[str, Callable[[dict[str, Any], Any], Iterator[dict[str, object]]]]] = {
    "create_topic": _topic,
    "ensure_topic": _ensured,
    "alter_topic": _topic,
    "delete_topic": _topic,
    "undelete_topic": _undeleted,
    "restore_topic": _topic,
    "delete_records": _topic,
    "repair": _repaired,
    "commit": _rows_of("offsets", ("topic", "partition", "offset"), "group"),
    "alter_group": lambda given, _: iter([{"group": given["group"], **settings_field(given["settings"].items())}]),
    "delete_offsets": _rows_of("partitions", ("topic", "partition"), "group"),
    "abort_transaction": lambda given, _: iter([{"transactional_id": given["id"]}]),
    "abort_hanging": _topic,
    "put_user": _user,
    "alter_user": _altered_user,
    "delete_user": _deleted_user,
    "put_quota": _quota,
    "accept_clock": lambda _, __: iter([{}]),
    "add_acls": lambda given, _: _rules(given["acls"]),
    "delete_acls": lambda _, result: _rules(result),
    "create_role": lambda given, _: iter([{"role": given["name"]}]),
    "alter_role": _altered_role,
    "delete_role": _deleted_role,
}
"""By verb: the lines of its arguments and its result, which is None after an error."""
