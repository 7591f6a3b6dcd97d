"""``appliance roles``: names for sets of access rules, which users are given and lose together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..security.principals import principal_of_role
from ..units import counted
from . import output
from .acl_commands import COLUMNS
from .asking import DryRunOption, YesOption, confirm
from .live_names import complete_roles, complete_users
from .target import ConnectOption, DataOption, JsonOption, cluster

app = typer.Typer(
    no_args_is_help=True,
    help="""List, create, delete, grant and revoke roles: sets of access rules under a name.

    The rules of a role are those for Role:NAME: `appliance acl add --principal Role:NAME`, `acl list`, `acl delete`.
    They hold for all users who have the role, beside their own.""",
)

RoleArgument = Annotated[str, typer.Argument(metavar="ROLE", autocompletion=complete_roles, help="Name of the role.")]
RoleUsersArgument = Annotated[
    list[str],
    typer.Argument(metavar="USER...", autocompletion=complete_users, help="Users, without the `User:` before them."),
]


@app.command(name="list")
def list_(data: DataOption = None, connect: ConnectOption = None, as_json: JsonOption = False) -> None:
    """List roles, with their users and the number of their rules; with --json the rules themselves.

    [b]Examples[/b]

        appliance roles list --data /tmp/box

        appliance acl list --principal Role:shippers
    """
    with cluster(data, connect) as asked:
        roles = asked.admin("roles", {})
    if not as_json:
        roles = [{"name": role["name"], "users": role["users"], "rules": len(role["rules"])} for role in roles]
    output.print_rows(roles, ["name", "users", "rules"], as_json=as_json)


@app.command()
def create(
    role: RoleArgument, data: DataOption = None, connect: ConnectOption = None, as_json: JsonOption = False
) -> None:
    """Create a role, without rules and users.

    [b]Example[/b]

        appliance roles create shippers --data /tmp/box

        appliance acl add --principal Role:shippers --operation Write --topic web- --prefixed --data /tmp/box

        appliance roles grant shippers web1 web2 --data /tmp/box
    """
    with cluster(data, connect) as asked:
        asked.admin("create_role", {"name": role})
    _report({"role": role}, f"created {role}", as_json)


@app.command()
def grant(
    role: RoleArgument,
    users: RoleUsersArgument,
    without_password: Annotated[
        bool,
        typer.Option(
            "--without-password",
            help="Also to a user without a password here: the subject of a certificate, or the claim of a token.",
        ),
    ] = False,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a role to users.  It holds at once, on open connections, too.

    [b]Examples[/b]

        appliance roles grant shippers web1 web2 --data /tmp/box

        appliance roles grant shippers "CN=web,O=example" --without-password
    """
    change = {"name": role, "grant": users, "without_password": without_password}
    _alter(change, {"role": role, "granted": users}, f"gave {role} to", users, data, connect, as_json)


@app.command()
def revoke(
    role: RoleArgument,
    users: RoleUsersArgument,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a role from users.  Their own rules, and those of their other roles, stay.

    [b]Example[/b]

        appliance roles revoke shippers web2 --data /tmp/box
    """
    change = {"name": role, "revoke": users}
    _alter(change, {"role": role, "revoked": users}, f"took {role} from", users, data, connect, as_json)


@app.command()
def delete(
    role: RoleArgument,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a role with its rules.  Users lose what they may through it, and are denied what it denies no more.

    [b]Examples[/b]

        appliance roles delete shippers --dry-run --data /tmp/box

        appliance roles delete shippers --yes --data /tmp/box
    """
    with cluster(data, connect) as asked:
        had = asked.admin("delete_role", {"name": role, "dry_run": True})
        if not dry_run:
            effects = [f"taken from {user}" for user in had["users"]]
            effects += [" ".join(str(rule[column]) for column in COLUMNS) for rule in had["rules"]]
            confirm(effects, f"Delete {principal_of_role(role)} with {counted(len(had['rules']), 'rule')}?", yes=yes)
            had = asked.admin("delete_role", {"name": role})
    if as_json:
        output.print_json({"role": role, **had})
        return
    output.say(f"{'would delete' if dry_run else 'deleted'} {role}, which {counted(len(had['users']), 'user')} had")
    output.print_rows(had["rules"], COLUMNS)


def _alter(
    change: dict[str, Any],
    done: dict[str, Any],
    said: str,
    users: list[str],
    data: Path | None,
    connect: str | None,
    as_json: bool,
) -> None:
    with cluster(data, connect) as asked:
        asked.admin("alter_role", change)
    _report(done, f"{said} {', '.join(users)}", as_json)


def _report(done: dict[str, Any], said: str, as_json: bool) -> None:
    if as_json:
        output.print_json(done)
    else:
        output.say(said)


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="roles", rich_help_panel="Who may do what")
