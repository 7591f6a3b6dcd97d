"""Carries out admin verbs of the native protocol for who asks at the page: changes, and lists.

A change is one verb with its arguments (``wire/native_admin.py``), but for two: ``trim`` deletes the messages of all
partitions of a topic, and ``put_user`` comes with the password, which becomes verifiers here::

    verb            arguments                                        what has to be typed
    create_topic    {name, partitions?, settings?}                   nothing
    alter_topic     {name, partitions?, settings?}                   nothing
    delete_topic    {name}                                           the topic
    undelete_topic  {name or id, new_name?}                          nothing
    trim            {name, to: "latest" or "time", time_ms?}         the topic
    alter_group     {group, settings}                                nothing
    delete_offsets  {group}: the whole group                         the group
    put_user        {name, password, new}                            nothing
    alter_user      {name, locked?, expires_ms?, kick?}              nothing
    delete_user     {name}                                           the user
    create_role     {name}                                           nothing
    alter_role      {name, grant?, revoke?, without_password?}       nothing
    delete_role     {name}                                           the role
    add_acls        {acls: [ACL]}                                    nothing
    delete_acls     {FILTER with a principal}                        the principal
    put_quota       {QUOTA}                                          nothing

What cannot be undone needs ``confirm``: the name, as the visitor has typed it.  It is checked here, so that no mistake
of the page, and no program that leaves the question out, can delete anything unasked.

The rights are those of the verb (``security/verb_rights.py``), asked for the visitor, since the console's own
connection may do everything.  Each change has the line of the audit log that a client's has, with the visitor's name,
and each refusal too; a change that may have been made, since no answer came in time, has its error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from ..client import EARLIEST, LATEST
from ..client.cluster_client import Cluster
from ..errors import InvalidRequest, NotPermitted, Unavailable
from ..names import GROUP_CHARACTERS_MAX, TOPIC_PATTERN
from ..security.audit_log import Audit, Reason
from ..security.scram import PASSWORD_BYTES_MAX, check_password, encode_verifiers
from ..security.verb_changes import VERB_CHANGES
from ..security.verb_rights import check_rights
from ..value_faults import in_words
from ..wire import native_admin
from ..wire.native_admin import ManyTopics, Nothing, OneRole, OneTopic, OneUser, SelectAcls
from .visitors import Visitor

CLIENT_NAME: Final = "appliance-console"
REQUEST_MS_MAX: Final = 10_000
ROWS_MAX: Final = 200
"""Rows of one page of a list."""
Arguments = dict[str, Any]


class Trim(Struct, frozen=True, forbid_unknown_fields=True):
    """``to``: the end, or with ``time_ms`` the first message of that time or later."""

    name: Annotated[str, Meta(pattern=TOPIC_PATTERN)]
    to: Literal["latest", "time"]
    time_ms: Annotated[int, Meta(ge=0, le=2**62)] = 0


class WholeGroup(Struct, frozen=True, forbid_unknown_fields=True):
    group: Annotated[str, Meta(min_length=1, max_length=GROUP_CHARACTERS_MAX)]


class Password(Struct, frozen=True, forbid_unknown_fields=True):
    name: native_admin.AnyName
    password: Annotated[str, Meta(min_length=1, max_length=PASSWORD_BYTES_MAX)]
    new: bool

    def __repr__(self) -> str:
        return f"<Password of {self.name!r}>"


class Act(Struct, frozen=True, forbid_unknown_fields=True):
    """What the page asks for.  ``arguments`` is JSON."""

    verb: str
    arguments: msgspec.Raw
    confirm: str = ""


class ActKind(NamedTuple):
    """``arguments``: their type; ``typed``: what the visitor has to type; ``verb``: whose rights and audit line."""

    verb: str
    arguments: type[Struct]
    typed: Callable[[Any], str] | None = None


KINDS: Final[dict[str, ActKind]] = {
    "create_topic": ActKind("create_topic", native_admin.CreateTopic),
    "alter_topic": ActKind("alter_topic", native_admin.AlterTopic),
    "delete_topic": ActKind("delete_topic", OneTopic, lambda topic: str(topic.name)),
    "undelete_topic": ActKind("undelete_topic", native_admin.UndeleteTopic),
    "trim": ActKind("delete_records", Trim, lambda topic: str(topic.name)),
    "alter_group": ActKind("alter_group", native_admin.AlterGroup),
    "delete_offsets": ActKind("delete_offsets", WholeGroup, lambda group: str(group.group)),
    "put_user": ActKind("put_user", Password),
    "alter_user": ActKind("alter_user", native_admin.AlterUser),
    "delete_user": ActKind("delete_user", OneUser, lambda user: str(user.name)),
    "create_role": ActKind("create_role", OneRole),
    "alter_role": ActKind("alter_role", native_admin.AlterRole),
    "delete_role": ActKind("delete_role", OneRole, lambda role: str(role.name)),
    "add_acls": ActKind("add_acls", native_admin.AddAcls),
    "delete_acls": ActKind("delete_acls", SelectAcls, lambda selection: selection.principal or ""),
    "put_quota": ActKind("put_quota", native_admin.PutQuota),
}


def check_typed(typed: str, name: str) -> None:
    """Raises InvalidRequest: what was typed is not the name of what goes."""
    if not name or typed != name:
        raise InvalidRequest(f"to confirm, type its name: {name!r:.300}" if name else "say whose")


def check(verb: str, arguments: Any, visitor: Visitor, audit: Audit) -> None:
    """Check the rights of a visitor to a verb of the native protocol.

    Raises:
        NotPermitted: the first right that is missing; the audit log has it.
    """
    try:
        check_rights(verb, native_admin.VERBS[verb].rights, arguments, visitor.access, ())
    except NotPermitted as error:
        audit.refused(Reason.DENIED, visitor.access.principal, visitor.peer, what=f"{verb} {error.name}")
        if visitor.session is None:
            raise type(error)(f"{error}: log in as a user who may", error.name) from None
        raise


def carry_out(act: Act, address: str, visitor: Visitor, audit: Audit) -> Any:
    """Make a change; returns the result of the verb.

    Raises:
        InvalidRequest: no such verb, other arguments, or the name was not typed.
        NotPermitted: the visitor may not.
        ApplianceError: as the verb.
    """
    kind = KINDS.get(act.verb)
    if kind is None:
        raise InvalidRequest(f"unknown change {act.verb!r:.100}: use one of {', '.join(sorted(KINDS))}")
    try:
        arguments = msgspec.json.decode(act.arguments, type=kind.arguments)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{act.verb}: {in_words(error)}") from None
    check(kind.verb, arguments, visitor, audit)
    if kind.typed is not None:
        check_typed(act.confirm, kind.typed(arguments))
    with contextlib.closing(_cluster(address)) as cluster:
        if isinstance(arguments, Trim):
            return _trim(arguments, cluster, visitor, audit)
        return _ask(cluster, kind.verb, _given(arguments), visitor, audit)


def _given(arguments: Struct) -> Arguments:
    """The arguments of the native verb."""
    if isinstance(arguments, Password):
        check_password(arguments.password)
        secret = arguments.password.encode("utf-8", "surrogatepass")
        verifiers = encode_verifiers(secret)
        return {"name": arguments.name, "verifiers": verifiers, "new": arguments.new}
    fields: Arguments = msgspec.to_builtins(arguments)
    if isinstance(arguments, native_admin.CreateTopic) and arguments.partitions is None:
        del fields["partitions"]
    return fields


def _ask(
    cluster: Cluster, verb: str, arguments: Arguments, visitor: Visitor, audit: Audit, *, broker_id: int | None = None
) -> Any:
    """Ask the appliance, or this broker of its cluster, and write what was done."""
    result, more, unanswered = None, {}, None
    try:
        result = cluster.admin(verb, arguments, broker_id)
    except Unavailable as error:  # it may have been done
        unanswered, more = error, {"error": error.code}
    for fields in VERB_CHANGES[verb](arguments, result):
        audit.changed(visitor.access.principal, visitor.peer, verb, **fields, **more)
    if unanswered is not None:
        raise unanswered
    return result


def _trim(trim: Trim, cluster: Cluster, visitor: Visitor, audit: Audit) -> dict[str, int]:
    """Delete what is before a time, or all, partition by partition; returns the bytes that went.

    A time beyond the last message deletes all, as `appliance topics trim` does.
    """
    cluster.refresh([trim.name])
    parts = [(trim.name, number) for number in range(len(cluster.topic(trim.name).leaders))]
    starts = cluster.offsets(dict.fromkeys(parts, EARLIEST))
    befores = cluster.offsets(dict.fromkeys(parts, LATEST if trim.to == "latest" else trim.time_ms))
    gone = 0
    for part, before in befores.items():
        if before > starts[part]:
            arguments = {"name": trim.name, "partition": part[1], "offset": before}
            _ask(cluster, "delete_records", arguments, visitor, audit, broker_id=cluster.leader(*part))
            gone += before - starts[part]
    return {"bytes": gone}


# ---- lists


class ListQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """``text``: only rows that have it in a text; ``page``: from 0."""

    what: Literal["trash", "users", "roles", "acls", "quotas", "clients"]
    text: Annotated[str, Meta(max_length=1_000)] = ""
    page: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


def listed(query: ListQuery, address: str, visitor: Visitor, audit: Audit) -> dict[str, Any]:
    """A page of a list: its rows, ROWS_MAX at most, and how many there are in all.

    Raises:
        NotPermitted, ApplianceError: as the verb.
    """
    check(query.what, SelectAcls() if query.what == "acls" else Nothing(), visitor, audit)
    with contextlib.closing(_cluster(address)) as cluster:
        answer = cluster.admin(query.what, {})
    rows = answer["clients"] if isinstance(answer, dict) else answer
    if query.what == "roles":
        rows = [row | {"rules": len(row["rules"])} for row in rows]
    if sought := query.text.lower():
        rows = [row for row in rows if any(sought in text for text in _texts(row))]
    begin = query.page * ROWS_MAX
    others = answer["others"] if isinstance(answer, dict) else 0
    return {"rows": rows[begin : begin + ROWS_MAX], "total": len(rows), "page_rows": ROWS_MAX, "others": others}


def _texts(row: Mapping[str, Any]) -> Iterator[str]:
    for value in row.values():
        if isinstance(value, str):
            yield value.lower()
        elif isinstance(value, list):
            yield from (item.lower() for item in value if isinstance(item, str))


class TopicQuery(Struct, frozen=True, forbid_unknown_fields=True):
    topic: Annotated[str, Meta(pattern=TOPIC_PATTERN)]


def settings_of(query: TopicQuery, address: str, visitor: Visitor, audit: Audit) -> list[dict[str, str]]:
    """The settings that hold for a topic: ``name``, ``value``, and ``source``, where the value comes from.

    Raises:
        NotPermitted, UnknownPartition: see the message.
    """
    topics = ManyTopics(names=[query.topic])
    check("topics", topics, visitor, audit)
    with contextlib.closing(_cluster(address)) as cluster:
        (topic,) = cluster.admin("topics", {"names": topics.names})
    return [
        {"name": name, "value": str(value), "source": topic["sources"][name]}
        for name, value in sorted(topic["settings"].items())
    ]


def _cluster(address: str) -> Cluster:
    return Cluster(address, client_name=CLIENT_NAME, request_timeout_ms=REQUEST_MS_MAX)
