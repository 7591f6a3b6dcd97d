"""``appliance transactions``: shows transactions of producers, and aborts one that stays open.

What ZooKeeper has lost is in no list, and stays open in the logs: ``abort-hanging`` aborts it, partition by partition.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from ..errors import InvalidTransactionState
from ..units import counted, duration
from . import output
from .asking import DryRunOption, YesOption, confirm, how_many
from .live_names import complete_transactions
from .target import ConnectOption, DataOption, JsonOption, cluster

ONGOING: Final = "Ongoing"
"""The only state in which a transaction can be aborted, by Kafka's word."""

app = typer.Typer(
    no_args_is_help=True, help="Look at transactions of producers, abort one, or what ZooKeeper has lost of them."
)

TransactionalIdArgument = Annotated[
    str, typer.Argument(metavar="ID", autocompletion=complete_transactions, help="transactional.id of the producer.")
]


@app.command(name="list")
def list_(
    only_open: Annotated[bool, typer.Option("--open", help="Only those that are open now.")] = False,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
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
def describe(
    transactional_id: TransactionalIdArgument,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a transactional id, with the partitions and committed offsets of its transaction.

    [b]Example[/b]

        appliance transactions describe payments-1 --data /tmp/box
    """
    with cluster(data, connect) as asked:
        transaction = asked.admin("transaction", {"id": transactional_id})
    if as_json:
        output.print_json(transaction)
        return
    output.print_rows([_shown(transaction)], ["id", "state", "open", "producer_id", "epoch", "timeout"])
    parts = [{"topic": topic, "partition": number} for topic, number in transaction["parts"]]
    output.print_rows(parts, ["topic", "partition"], title="Partitions")
    names = ["group", "topic", "partition", "offset"]
    offsets = [dict(zip(names, row, strict=True)) for row in transaction["offsets"]]
    output.print_rows(offsets, names, title="Offsets")


@app.command()
def abort(
    transactional_id: TransactionalIdArgument,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Abort an open transaction, as when its time is up.  Its producer is fenced: it has to begin anew.

    [b]Example[/b]

        appliance transactions abort payments-1 --dry-run
    """
    with cluster(data, connect) as asked:
        transaction = asked.admin("transaction", {"id": transactional_id})
        if transaction["state"] != ONGOING:  # before anybody is asked, and for a dry run as for the real one
            raise InvalidTransactionState(
                f"transaction {transactional_id!r} cannot be aborted: it is {transaction['state']}"
            )
        if not dry_run:
            lost = f"{transactional_id}: {transaction['state']}, {counted(transaction['partitions'], 'partition')}"
            confirm([lost], "Abort this transaction?", yes=yes)
            asked.admin("abort_transaction", {"id": transactional_id})
    output.print_rows([transaction], ["id", "producer_id", "epoch", "partitions", "groups"], as_json=as_json)


@app.command(name="abort-hanging")
def abort_hanging(
    name: Annotated[str, typer.Argument(metavar="TOPIC-N", help="Partition that readers cannot read to its end.")],
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Abort what is open in a partition's log, and no coordinator knows of: what ZooKeeper knew of it is lost.

    Transactions that are shown by [b]appliance transactions list[/b] stay open.

    [b]Examples[/b]

        appliance transactions abort-hanging payments-0 --dry-run

        appliance transactions abort-hanging payments-0 --yes
    """
    topic, _, number = name.rpartition("-")
    if not topic or not number.isdecimal():
        raise typer.BadParameter(f"{name!r}: name a partition, as web-0")
    place = {"name": topic, "partition": int(number)}
    with cluster(data, connect) as asked:
        hanging = asked.admin("hanging_transactions", place)
        if hanging and not dry_run:
            lost = [f"{name}: of producer {row['producer_id']}, open from offset {row['first']}" for row in hanging]
            confirm(lost, f"Abort {how_many(len(hanging), 'transaction')}?", yes=yes)
            asked.admin("abort_hanging", place)
    output.print_rows(hanging, ["producer_id", "epoch", "first", "last_ms"], as_json=as_json)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return row | {
        "open": "" if row["open_ms"] is None else duration(row["open_ms"] / 1000),
        "timeout": duration(row["timeout_ms"] / 1000),
    }


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="transactions", rich_help_panel="Topics and groups")
