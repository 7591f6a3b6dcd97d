"""``appliance topics``: create, list, describe, alter, trim and delete topics."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import units
from ..errors import UnknownPartition
from ..wire.requests import EARLIEST, LATEST
from . import output
from .asking import DryRun, Yes, confirm, how_many
from .live_names import complete_setting_names, complete_topics
from .offset_spec import FORMS, OffsetSpec, parse_offset_spec, resolve
from .target import Connect, Data, Json, Settings, cluster, parse_settings

if TYPE_CHECKING:
    from ..client.cluster_client import Cluster

app = typer.Typer(no_args_is_help=True, help="Create, list, describe, alter, trim and delete topics.")

COLUMNS = ["name", "partitions", "messages", "bytes", "settings"]

Name = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_topics, help="Name of the topic.")]
NewName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the topic.")]


@app.command()
def create(
    name: NewName,
    partitions: Annotated[
        int | None, typer.Option("--partitions", min=1, help="How many; topics.partitions if not given.")
    ] = None,
    settings: Settings = None,
    data: Data = None,
    connect: Connect = None,
    as_json: Json = False,
) -> None:
    """Create a topic.

    [b]Examples[/b]

        appliance topics create web --partitions 4

        appliance topics create audit --setting retention.ms=365d --setting flush.messages=1 --data /tmp/box
    """
    arguments: dict[str, Any] = {"name": name, "settings": parse_settings(settings)}
    if partitions is not None:
        arguments["partitions"] = partitions
    with cluster(data, connect) as asked:
        asked.admin("create_topic", arguments)
        described = asked.admin("topics", {"names": [name]})
    if as_json:
        output.print_json(described[0] if described else {"name": name})
    else:
        count = len(described[0]["partitions"]) if described else partitions
        output.say(f"created {name} with {count} partition{'s' if count != 1 else ''}")


@app.command(name="list")
def list_(data: Data = None, connect: Connect = None, as_json: Json = False) -> None:
    """List topics with their sizes.

    [b]Example[/b]

        appliance topics list --data /tmp/box --json | jq -r '.[].name'
    """
    with cluster(data, connect) as asked:
        rows = [_summary(topic) for topic in asked.admin("topics", {})]
    output.print_rows(rows, COLUMNS, as_json=as_json)


@app.command()
def describe(name: Name, data: Data = None, connect: Connect = None, as_json: Json = False) -> None:
    """Show a topic's settings and the first and last offset of each partition.

    [b]Example[/b]

        appliance topics describe web --data /tmp/box
    """
    with cluster(data, connect) as asked:
        found = [topic for topic in asked.admin("topics", {"names": [name]}) if topic["name"] == name]
    if not found:
        raise UnknownPartition(f"no topic {name!r} here")
    if as_json:
        output.print_json(found[0])
        return
    for setting, value in sorted(found[0]["settings"].items()):
        output.say(f"{setting}={value}")
    output.print_rows(
        found[0]["partitions"],
        ["partition", "leader", "start", "end", "bytes", "messages", "state"],
        title=name,
    )


@app.command()
def alter(
    name: Name,
    settings: Settings = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(
            "--unset",
            metavar="KEY",
            autocompletion=complete_setting_names,
            help="Give a setting back to the default; repeatable.",
        ),
    ] = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", min=1, help="More partitions; they cannot become fewer.")
    ] = None,
    data: Data = None,
    connect: Connect = None,
    as_json: Json = False,
) -> None:
    """Change settings of a topic, or give it more partitions.

    [b]Examples[/b]

        appliance topics alter web --setting retention.bytes=10GiB --unset retention.ms

        appliance topics alter web --partitions 8

    With more partitions, keys go to other partitions than before.
    """
    changes: dict[str, str | None] = {**parse_settings(settings), **dict.fromkeys(unset or [])}
    if not changes and partitions is None:
        raise typer.BadParameter("nothing to change: give --setting KEY=VALUE, --unset KEY or --partitions N")
    arguments: dict[str, Any] = {"name": name, "settings": changes}
    if partitions is not None:
        arguments["partitions"] = partitions
    with cluster(data, connect) as asked:
        altered = asked.admin("alter_topic", arguments)
    if as_json:
        output.print_json(altered)
    else:
        output.say(f"altered {name}")


@app.command()
def trim(
    name: Name,
    before: Annotated[
        str, typer.Option("--before", metavar="TIME|OFFSET|latest", help=f"Messages before this go: {FORMS}.")
    ],
    partitions: Annotated[
        list[int] | None, typer.Option("--partition", min=0, help="Only this one; repeatable; all if not given.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    data: Data = None,
    connect: Connect = None,
    as_json: Json = False,
) -> None:
    """Delete the oldest messages of a topic, at once.

    Nothing reads them any more; files go by whole segments, so the disk may have room a little later.

    [b]Examples[/b]

        appliance topics trim web --before -2d --dry-run

        appliance topics trim web --before latest --yes

        appliance topics trim web --before 4711 --partition 0
    """
    spec = parse_offset_spec(before, datetime.now().astimezone())
    with cluster(data, connect) as asked:
        rows = _trimmed(asked, name, spec, partitions)
        if not dry_run:
            if any(row["bytes"] for row in rows):
                lost = [f"{name}-{row['partition']}: {units.size(row['bytes'])}" for row in rows if row["bytes"]]
                confirm(lost, f"Delete the messages of {name} before {before}?", yes=yes)
            for row in rows:
                at = {"name": name, "partition": row["partition"], "offset": row["before"]}
                asked.admin("delete_records", at, broker_id=asked.leader(name, row["partition"]))
    output.print_rows(rows, ["partition", "start", "before", "end", "bytes"], as_json=as_json)


def _trimmed(asked: Cluster, name: str, spec: OffsetSpec, chosen: list[int] | None) -> list[dict[str, Any]]:
    """What a trim deletes: of each partition its extent, the new start and the bytes between the starts."""
    asked.refresh([name])
    parts = [(name, partition) for partition in chosen or range(len(asked.topic(name).leaders))]
    starts = asked.offsets(dict.fromkeys(parts, EARLIEST))
    ends = asked.offsets(dict.fromkeys(parts, LATEST))
    rows = []
    for part, offset in resolve(asked, spec, parts).items():
        before = min(max(offset, starts[part]), ends[part])
        extent = {"start": starts[part], "before": before, "end": ends[part], "bytes": before - starts[part]}
        rows.append({"partition": part[1], **extent})
    return rows


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", autocompletion=complete_topics, help="Topics.")],
    dry_run: DryRun = False,
    yes: Yes = False,
    data: Data = None,
    connect: Connect = None,
    as_json: Json = False,
) -> None:
    """Delete topics and all that is in them, at once.

    [b]Examples[/b]

        appliance topics delete web --dry-run

        appliance topics delete web app --yes --data /tmp/box
    """
    with cluster(data, connect) as asked:
        found = {topic["name"]: _summary(topic) for topic in asked.admin("topics", {"names": names})}
        rows = [found[name] for name in dict.fromkeys(names)]
        if dry_run:
            output.print_rows(rows, COLUMNS, as_json=as_json)
            return
        lost = [f"{row['name']}: {row['messages']:,} messages, {units.size(row['bytes'])}" for row in rows]
        confirm(lost, f"Delete {how_many(len(rows), 'topic')}?", yes=yes)
        for row in rows:
            asked.admin("delete_topic", {"name": row["name"]})
            if not as_json:
                output.say(f"deleted {row['name']}")
    if as_json:
        output.print_json(rows)


def _summary(topic: dict[str, Any]) -> dict[str, Any]:
    """The row of a topic.  Partitions of other appliances may lack sizes; the sums leave them out."""
    parts = topic["partitions"]
    sums = {name: sum(part.get(name) or 0 for part in parts) for name in ("messages", "bytes")}
    return {"name": topic["name"], "partitions": len(parts), **sums, "settings": topic["own"]}


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="topics", rich_help_panel="Topics and groups")
