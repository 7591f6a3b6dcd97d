"""``appliance clients``: who is connected, from where, and how much each sends and fetches."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .. import units
from ..owners import acting_as_owner
from ..security.principals import ANONYMOUS
from . import output
from .target import ConnectOption, DataOption, JsonOption, cluster, data_dir

COLUMNS = ("user", "host", "client_id", "software", "listener", "connections", "since")
NUMBERS = ("bytes_in", "bytes_out", "in_s", "out_s")
SEARCHED = ("user", "host", "client_id", "software", "listener")


def clients(
    text: Annotated[
        str, typer.Argument(metavar="[TEXT]", help="Only those with this in a name, an address or the listener.")
    ] = "",
    rows_max: Annotated[int, typer.Option("-n", min=1, max=10_000, help="How many at most.")] = 50,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show who is connected: user, address, client id, software, listener, and how much each moves.

    Those that move most now come first.  Bytes are of connections that are open, since they were opened; those per
    second are of the last seconds.  Each worker tells of its 200 clients that move most.

    [b]Examples[/b]

        appliance clients --data /var/lib/appliance

        appliance clients rsyslog -n 5 --json --data /var/lib/appliance
    """
    answer = _ask(data, connect)
    rows = [row for row in answer["clients"] if any(text in row[name] for name in SEARCHED)]
    if as_json:
        output.print_json({"clients": rows[:rows_max], "others": answer["others"]})
        return
    shown = [{**row, "user": _login(row["user"]), "since": output.moment(row["since"])} for row in rows[:rows_max]]
    output.print_rows(shown, [*COLUMNS, *NUMBERS])
    if len(rows) > rows_max:
        output.remark(f"{len(rows) - rows_max} more: -n {len(rows)} shows them")
    if answer["others"]:
        output.remark(f"{units.counted(answer['others'], 'connection')} of others that move less: not in the list")


def _login(user: str) -> str:
    return "not logged in" if user == ANONYMOUS else user


def _ask(data: Path | None, connect: str | None) -> dict[str, Any]:
    """Who is connected: from the data directory, which needs no free worker, or from the appliance at an address."""
    directory = None if connect else data_dir(data)
    if directory is not None and (data is None or connect is None):
        from ..status import read_clients

        with acting_as_owner(directory):
            return read_clients(directory)
    with cluster(data, connect) as asked:
        answer: dict[str, Any] = asked.admin("clients", {})
    return answer


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Running one")(clients)
