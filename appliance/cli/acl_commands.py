"""``appliance acl``: add, list and delete access rules."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any

import typer

from .. import units
from ..errors import ApplianceError
from ..security.acls import ANY, CLUSTER_NAME, OPERATIONS, Operation, ResourceType, parse, word
from . import output
from .asking import DryRunOption, YesOption, confirm, how_many
from .known_names import names_of
from .live_names import complete_groups, complete_topics
from .target import ConnectOption, DataOption, JsonOption, cluster

app = typer.Typer(
    no_args_is_help=True,
    help="""Add, list and delete access rules, which hold while security.authorizer is "acl".

    Who has no rule may do nothing, except super users (security.super_users).  A denial wins over any permission.

    A rule for Role:NAME is one of a role, for all users who have it: see [b]appliance roles[/b].""",
)

COLUMNS = ["principal", "host", "permission", "operation", "resource", "name", "pattern"]
EFFECTIVE_COLUMNS = [*COLUMNS, "role"]
"""With the role through which a user has the rule."""

PrincipalOption = Annotated[
    str | None, typer.Option("--principal", metavar="User:NAME", help="Whose; User:* is everybody.")
]
RuleTopicsOption = Annotated[
    list[str] | None, typer.Option("--topic", autocompletion=complete_topics, help="A topic; '*' is all; repeatable.")
]
RuleGroupsOption = Annotated[
    list[str] | None,
    typer.Option("--group", autocompletion=complete_groups, help="A group of consumers; '*' is all; repeatable."),
]
TransactionalIdsOption = Annotated[
    list[str] | None, typer.Option("--transactional-id", help="A transactional id; repeatable.")
]
ClusterOption = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
PrefixedOption = Annotated[bool, typer.Option("--prefixed", help="All whose names begin so.")]
OperationsOption = Annotated[
    list[str] | None,
    typer.Option("--operation", help="Read, Write, Create, Delete, Alter, Describe, ... or All; repeatable."),
]
HostOption = Annotated[
    str | None, typer.Option("--host", metavar="ADDRESS", help="Only from this address, or network: 10.0.0.0/8.")
]


@app.command()
def add(
    principal: Annotated[str, typer.Option("--principal", metavar="User:NAME", help="Whose; User:* is everybody.")],
    operations: OperationsOption = None,
    topics: RuleTopicsOption = None,
    groups: RuleGroupsOption = None,
    transactions: TransactionalIdsOption = None,
    of_cluster: ClusterOption = False,
    prefixed: PrefixedOption = False,
    deny: Annotated[bool, typer.Option("--deny", help="Deny it instead.")] = False,
    host: HostOption = None,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Allow or deny operations on topics, groups or the cluster.

    [b]Examples[/b]

        appliance acl add --principal User:shipper --operation Write --operation Create --topic web- --prefixed

        appliance acl add --principal User:reports --operation Read --topic web --group reports

        appliance acl add --principal User:bob --operation All --topic payroll --deny --host 10.0.0.7

        appliance acl add --principal Role:shippers --operation Write --topic web- --prefixed

    Read, Write, Delete and Alter include Describe.
    """
    named = _resources(topics, groups, transactions, of_cluster)
    if not named or not operations:
        raise typer.BadParameter("name an --operation, and a --topic, a --group, a --transactional-id or the --cluster")
    rules = []
    for resource, name in named:
        for text in operations:
            operation = parse(Operation, text)
            if operation not in (Operation.ALL, *OPERATIONS[resource]):
                fitting = ", ".join(word(operation) for operation in sorted(OPERATIONS[resource]))
                raise typer.BadParameter(
                    f"--operation {text}: a {word(resource).lower()} has {fitting}; give other resources by themselves"
                )
            rule = {"principal": principal, "operation": word(operation), "resource": word(resource), "name": name}
            rule |= {"host": host or "*", "permission": "Deny" if deny else "Allow"}
            rules.append(rule | {"pattern": "Prefixed" if prefixed and name != CLUSTER_NAME else "Literal"})
    with cluster(data, connect) as asked:
        asked.admin("add_acls", {"acls": rules})
        known = functools.cache(functools.partial(names_of, asked))  # asked once, however many names there are
        notes = [note for resource, name in named if (note := _not_there(known, resource, name, prefixed=prefixed))]
    output.remark(f"added {units.counted(len(rules), 'rule')}:")
    _print(rules, as_json)
    for note in dict.fromkeys(notes):
        output.remark(note)


@app.command(name="list")
def list_(
    principal: PrincipalOption = None,
    topics: RuleTopicsOption = None,
    groups: RuleGroupsOption = None,
    transactions: TransactionalIdsOption = None,
    of_cluster: ClusterOption = False,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show access rules: all, those of a principal, or those that are about a topic or group (by prefix and '*', too).

    What a user has through a role is shown with the name of the role; rules for User:* are for everybody besides.

    [b]Examples[/b]

        appliance acl list --data /tmp/box

        appliance acl list --principal User:alice --data /tmp/box

        appliance acl list --topic web-frontend --json
    """
    filters = _filters(_resources(topics, groups, transactions, of_cluster), principal, pattern="Match")
    with cluster(data, connect) as asked:
        rows = [row for filter_ in filters for row in asked.admin("acls", filter_)]
    output.print_rows(rows, EFFECTIVE_COLUMNS, as_json=as_json)


@app.command()
def delete(
    principal: PrincipalOption = None,
    operations: OperationsOption = None,
    topics: RuleTopicsOption = None,
    groups: RuleGroupsOption = None,
    transactions: TransactionalIdsOption = None,
    of_cluster: ClusterOption = False,
    prefixed: PrefixedOption = False,
    host: HostOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete the access rules that have all of what is given.

    [b]Examples[/b]

        appliance acl delete --principal User:bob --dry-run

        appliance acl delete --principal User:reports --operation Read --topic web --yes
    """
    named = _resources(topics, groups, transactions, of_cluster)
    if not (named or principal or operations or host):
        raise typer.BadParameter("say which: by --principal, --operation, --topic, --group, --cluster or --host")
    filters = [
        filter_ | ({"operation": operation} if operation else {}) | ({"host": host} if host else {})
        for filter_ in _filters(named, principal, pattern="Prefixed" if prefixed else "Literal" if named else "Any")
        for operation in operations or [""]
    ]
    with cluster(data, connect) as asked:
        rows = [row for filter_ in filters for row in asked.admin("delete_acls", filter_ | {"dry_run": True})]
        if rows and not dry_run:
            shown = [" ".join(str(row[column]) for column in COLUMNS) for row in rows]
            confirm(shown, f"Delete {how_many(len(rows), 'rule')}?", yes=yes)
            rows = [row for filter_ in filters for row in asked.admin("delete_acls", filter_)]
    if rows:
        output.remark(f"{'would delete' if dry_run else 'deleted'} {units.counted(len(rows), 'rule')}:")
    else:
        output.remark("no rule has all of this, nothing is deleted: `appliance acl list` shows the rules")
    _print(rows, as_json)


def _not_there(known: Callable[[str], list[str]], resource: ResourceType, name: str, *, prefixed: bool) -> str:
    """Says so if a rule is about a topic or group that there is not; "" where that cannot be known.

    Such a rule is right before the first message comes, and else a typing error that nothing else would show.
    """
    verb = {ResourceType.TOPIC: "topics", ResourceType.GROUP: "groups"}.get(resource)
    if verb is None or name == ANY:
        return ""
    try:
        there = known(verb)
    except ApplianceError:
        return ""
    kind = word(resource).lower()
    if prefixed:
        found = any(one.startswith(name) for one in there)
        return "" if found else f"no {kind} begins with {name!r} yet: the rule applies to those that are made"
    return "" if name in there else f"there is no {kind} {name!r} yet: the rule applies when it is made"


def _resources(
    topics: list[str] | None, groups: list[str] | None, transactions: list[str] | None, of_cluster: bool
) -> list[tuple[ResourceType, str]]:
    named = [(ResourceType.TOPIC, name) for name in topics or ()]
    named += [(ResourceType.GROUP, name) for name in groups or ()]
    named += [(ResourceType.TRANSACTIONAL_ID, name) for name in transactions or ()]
    return named + [(ResourceType.CLUSTER, CLUSTER_NAME)] * of_cluster


def _filters(named: list[tuple[ResourceType, str]], principal: str | None, pattern: str) -> list[dict[str, Any]]:
    """Filters of the admin verbs: one for each resource, or one for all."""
    whose = {"principal": principal} if principal else {}
    if not named:
        return [whose]
    return [{"resource": word(resource), "name": name, "pattern": pattern} | whose for resource, name in named]


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    output.print_rows(rows, COLUMNS, as_json=as_json)


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="acl", rich_help_panel="Looking after it")
