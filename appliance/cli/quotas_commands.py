"""``appliance quotas``: list, set and delete what users and client ids may use per second."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import typer

from ..config_keys import SIZES, parse_units
from ..security.quotas import BYTES_IN, BYTES_OUT, REQUESTS
from ..units import size
from . import output
from .asking import DryRunOption, YesOption, confirm, how_many
from .live_names import complete_users
from .target import ConnectOption, DataOption, JsonOption, cluster

app = typer.Typer(
    no_args_is_help=True,
    help="""List, set and delete what users and client ids may use per second.

    Who uses more is slowed down, and not refused.  The quota that names most of a client holds: user and client id,
    the user, the default of users, the client id, the default of client ids.""",
)

COLUMNS = ["user", "client_id", "in", "out", "requests"]
DEFAULT_TEXT: Final = "(default)"
ANY_TEXT: Final = "(any)"

UserOption = Annotated[
    str | None, typer.Option("--user", metavar="NAME", autocompletion=complete_users, help="Clients of this user.")
]
DefaultUserOption = Annotated[
    bool, typer.Option("--default-user", help="Clients of each user that has no quota of its own.")
]
ClientIdOption = Annotated[
    str | None, typer.Option("--client-id", metavar="ID", help="Clients that call themselves this.")
]
DefaultClientIdOption = Annotated[
    bool, typer.Option("--default-client-id", help="Clients of each client id that has no quota of its own.")
]


@app.command(name="list")
def list_(
    text: Annotated[str, typer.Argument(metavar="[TEXT]", help="Only those with this in a name.")] = "",
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show all quotas.  Nobody is limited who has none.

    [b]Examples[/b]

        appliance quotas list --data /tmp/box

        appliance quotas list ship --json
    """
    with cluster(data, connect) as asked:
        rows = [
            row for row in asked.admin("quotas", {}) if text in (row["user"] or "") + "\n" + (row["client_id"] or "")
        ]
    _print(rows, as_json)


@app.command(name="set")
def set_(
    user: UserOption = None,
    default_user: DefaultUserOption = False,
    client_id: ClientIdOption = None,
    default_client_id: DefaultClientIdOption = False,
    bytes_in: Annotated[
        str | None, typer.Option("--in", metavar="SIZE", help="Bytes produced per second, such as 10MiB.")
    ] = None,
    bytes_out: Annotated[
        str | None, typer.Option("--out", metavar="SIZE", help="Bytes fetched per second, such as 50MiB.")
    ] = None,
    requests: Annotated[str | None, typer.Option("--requests", metavar="NUMBER", help="Requests per second.")] = None,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Limit what a user, a client id, or a user with a client id may use.  Limits that are not given stay.

    [b]Examples[/b]

        appliance quotas set --user shipper --in 10MiB --requests 500

        appliance quotas set --default-user --out 50MiB

        appliance quotas set --user shipper --client-id replay --in 1MiB
    """
    entity = _entity(user, default_user, client_id, default_client_id)
    rates = {BYTES_IN: _size(bytes_in, "--in"), BYTES_OUT: _size(bytes_out, "--out"), REQUESTS: _number(requests)}
    limits = {key: rate for key, rate in rates.items() if rate is not None}
    if not limits:
        raise typer.BadParameter("say how much: --in SIZE, --out SIZE, --requests NUMBER")
    with cluster(data, connect) as asked:
        asked.admin("put_quota", {**entity, "limits": limits})
        rows = [row for row in asked.admin("quotas", {}) if _is_of(row, entity)]
    _print(rows, as_json)


@app.command()
def delete(
    user: UserOption = None,
    default_user: DefaultUserOption = False,
    client_id: ClientIdOption = None,
    default_client_id: DefaultClientIdOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a quota.  What its clients owe already, they wait for.

    [b]Examples[/b]

        appliance quotas delete --user shipper --dry-run

        appliance quotas delete --default-client-id --yes
    """
    entity = _entity(user, default_user, client_id, default_client_id)
    with cluster(data, connect) as asked:
        rows = [row for row in asked.admin("quotas", {}) if _is_of(row, entity)]
        if rows and not dry_run:
            shown = [" ".join(f"{name}={value}" for name, value in _shown(row).items()) for row in rows]
            confirm(shown, f"Delete {how_many(len(rows), 'quota')}?", yes=yes)
            for row in rows:
                asked.admin("put_quota", {**entity, "limits": dict.fromkeys(row["limits"])})
    _print(rows, as_json)


def _entity(user: str | None, default_user: bool, client_id: str | None, default_client_id: bool) -> dict[str, str]:
    """Whose quota, as the admin verb has it."""
    if (user is not None and default_user) or (client_id is not None and default_client_id):
        raise typer.BadParameter("a name or the default, not both")
    if user == "" or client_id == "":
        raise typer.BadParameter("a name is not empty")
    named = {"user": "" if default_user else user, "client_id": "" if default_client_id else client_id}
    entity = {part: name for part, name in named.items() if name is not None}
    if not entity:
        raise typer.BadParameter("say whose: --user, --default-user, --client-id or --default-client-id")
    return entity


def _is_of(row: dict[str, Any], entity: dict[str, str]) -> bool:
    return all(row[part] == entity.get(part) for part in ("user", "client_id"))


def _size(text: str | None, option: str) -> float | None:
    if text is None:
        return None
    number = parse_units(text, SIZES)
    if number is None or number <= 0:
        raise typer.BadParameter(f"{option} {text!r:.100}: must be a number of bytes above 0, such as 1048576 or 1MiB")
    return float(number)


def _number(text: str | None) -> float | None:
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,15}(\.\d{1,9})?", text, re.ASCII):
        raise typer.BadParameter(f"--requests {text!r:.100}: must be a number, such as 500 or 0.5")
    return float(text)


def _shown(row: dict[str, Any]) -> dict[str, str]:
    limits = row["limits"]
    names = {part: ANY_TEXT if row[part] is None else row[part] or DEFAULT_TEXT for part in ("user", "client_id")}
    amounts = {
        name: f"{size(round(limits[key]))}/s" if key in limits else ""
        for name, key in (("in", BYTES_IN), ("out", BYTES_OUT))
    }
    return {**names, **amounts, "requests": f"{limits[REQUESTS]:g}/s" if REQUESTS in limits else ""}


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    output.print_rows(rows if as_json else [_shown(row) for row in rows], COLUMNS, as_json=as_json)


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="quotas", rich_help_panel="Looking after it")
