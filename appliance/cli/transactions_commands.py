"""``appliance transactions``: shows transactions of Kafka's producers, and aborts one that stays open."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..units import duration
from . import output
from .asking import DryRun, Yes, confirm
from .live_names import complete_transactions
from .target import Connect, Data, Json, cluster

app = typer.Typer(no_args_is_help=True, help="Look at transactions of producers, abort one.")

Id = Annotated[
    str, typer.Argument(metavar="ID", autocompletion=complete_transactions, help="transactional.id of the producer.")
]


@app.command(name="list")
def list_(
    only_open: Annotated[bool, typer.Option("--open", help="Only those that are open now.")] = False,
    data: Data = None,
    connect: Connect = None,
    as_json: Json = False,
) -> None:
    """List transactional ids: the state of each, and for how long its transaction has been open.

    Readers with isolation.level=read_committed get nothing behind the beginning of an open transaction.

    [b]Examples[/b]

        appliance transactions list --data /tmp/box

        appliance transactions list --open --json
    """
    with cluster(data, connect) as asked:
        rows = [row for row in asked.admin("transactions", {}) if row["open_ms"] is not None or not only_open]
    if as_json:
        output.print_json(rows)
        return
    columns = ["id", "state", "open", "producer_id", "epoch", "partitions", "groups"]
    output.print_rows([_shown(row) for row in rows], columns)


@app.command()
def describe(transactional_id: Id, data: Data = None, connect: Connect = None, as_json: Json = False) -> None:
    """Show a transactional id, with the partitions and committed offsets of its transaction.

    [b]Example[/b]

        appliance transactions describe payments-1 --data /tmp/box
    """
    with cluster(data, connect) as asked:
        found = asked.admin("transaction", {"id": transactional_id})
    if as_json:
        output.print_json(found)
        return
    output.print_rows([_shown(found)], ["id", "state", "open", "producer_id", "epoch", "timeout"])
    parts = [{"topic": topic, "partition": number} for topic, number in found["parts"]]
    output.print_rows(parts, ["topic", "partition"], title="Partitions")
    names = ["group", "topic", "partition", "offset"]
    offsets = [dict(zip(names, row, strict=True)) for row in found["offsets"]]
    output.print_rows(offsets, names, title="Offsets")


@app.command()
def abort(
    transactional_id: Id,
    dry_run: DryRun = False,
    yes: Yes = False,
    data: Data = None,
    connect: Connect = None,
    as_json: Json = False,
) -> None:
    """Abort an open transaction, as when its time is up.  Its producer is fenced: it has to begin anew.

    [b]Example[/b]

        appliance transactions abort payments-1 --dry-run
    """
    with cluster(data, connect) as asked:
        found = asked.admin("transaction", {"id": transactional_id})
        if not dry_run:
            lost = f"{transactional_id}: {found['state']}, {found['partitions']} partitions"
            confirm([lost], "Abort this transaction?", yes=yes)
            asked.admin("abort_transaction", {"id": transactional_id})
    output.print_rows([found], ["id", "producer_id", "epoch", "partitions", "groups"], as_json=as_json)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return row | {
        "open": "" if row["open_ms"] is None else duration(row["open_ms"] / 1000),
        "timeout": duration(row["timeout_ms"] / 1000),
    }


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="transactions", rich_help_panel="Topics and groups")
