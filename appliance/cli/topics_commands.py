"""``appliance topics``: create, list, describe, alter, trim, delete, undelete and restore topics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import units
from ..errors import ClientFault, TopicExists, Unavailable, UnknownPartition
from ..owners import acting_as_owner
from ..retention import lost_bytes
from ..wire.requests import EARLIEST, LATEST
from . import output
from .asking import DryRunOption, YesOption, confirm, how_many
from .live_names import complete_setting_names, complete_topics
from .offset_spec import FORMS, OffsetSpec, parse_offset_spec, resolve
from .target import ConnectOption, DataOption, JsonOption, TopicSettingsOption, cluster, data_dir, parse_settings

if TYPE_CHECKING:
    from ..client.cluster_client import Cluster

app = typer.Typer(
    no_args_is_help=True, help="Create, list, describe, alter, trim, delete, undelete and restore topics."
)

COLUMNS = ["name", "partitions", "messages", "bytes", "settings"]
YEAR_9999_S = 253_370_764_800
UNREAD_LINES_MAX = 5
"""Groups that a question names for each topic or partition."""

TopicArgument = Annotated[
    str, typer.Argument(metavar="NAME", autocompletion=complete_topics, help="Name of the topic.")
]
NewTopicArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the topic.")]


@app.command()
def create(
    name: NewTopicArgument,
    partitions: Annotated[
        int | None, typer.Option("--partitions", min=1, help="How many; topics.partitions if not given.")
    ] = None,
    settings: TopicSettingsOption = None,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
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
        of = f" with {units.counted(len(described[0]['partitions']), 'partition')}" if described else ""
        output.say(f"created {name}{of}")


@app.command(name="list")
def list_(data: DataOption = None, connect: ConnectOption = None, as_json: JsonOption = False) -> None:
    """List topics with their sizes.

    [b]Example[/b]

        appliance topics list --data /tmp/box --json | jq -r '.[].name'
    """
    with cluster(data, connect) as asked:
        rows = [_summary(topic) for topic in asked.admin("topics", {})]
    output.print_rows(rows, COLUMNS, as_json=as_json)


@app.command()
def describe(
    name: TopicArgument, data: DataOption = None, connect: ConnectOption = None, as_json: JsonOption = False
) -> None:
    """Show a topic's settings and the first and last offset of each partition.

    Each setting says where it comes from: the topic, a pattern of the configuration such as [topics."web-*"], the
    configuration, or the default of the program.

    Of a compacted topic also the share of each log that no pass of compaction has seen (dirty_ratio).

    [b]Example[/b]

        appliance topics describe web --data /tmp/box
    """
    with cluster(data, connect) as asked:
        described = [topic for topic in asked.admin("topics", {"names": [name]}) if topic["name"] == name]
    if not described:
        raise UnknownPartition(f"no topic {name!r} here")
    if as_json:
        output.print_json(described[0])
        return
    output.print_settings(described[0])
    columns = ["partition", "leader", "start", "end", "bytes", "messages", "state"]
    if any("dirty_ratio" in row for row in described[0]["partitions"]):
        columns.append("dirty_ratio")
    output.print_rows(described[0]["partitions"], columns, title=name)


@app.command()
def alter(
    name: TopicArgument,
    settings: TopicSettingsOption = None,
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
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
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
    name: TopicArgument,
    before: Annotated[
        str, typer.Option("--before", metavar="TIME|OFFSET|latest", help=f"Messages before this go: {FORMS}.")
    ],
    partitions: Annotated[
        list[int] | None, typer.Option("--partition", min=0, help="Only this one; repeatable; all if not given.")
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete the oldest messages of a topic, at once.

    Nothing reads them any more; files go by whole segments, so the disk may have room a little later.  It shows how
    many messages go, and groups that have not read all of them, with the bytes that they lose.

    [b]Examples[/b]

        appliance topics trim web --before 2d --dry-run

        appliance topics trim web --before latest --yes

        appliance topics trim web --before 4711 --partition 0
    """
    spec = parse_offset_spec(before, datetime.now().astimezone())
    with cluster(data, connect) as asked:
        rows = _trimmed(asked, name, spec, partitions)
        if not dry_run:
            if any(row["bytes"] for row in rows):
                lost = [
                    f"{name}-{row['partition']}: {units.counted(row['messages'], 'message')},"
                    f" {units.size(row['bytes'])}"
                    f"{_unread_text(row['unread'])}"
                    for row in rows
                    if row["bytes"]
                ]
                confirm(lost, f"Delete the messages of {name} before {before}?", yes=yes)
            for row in rows:
                at = {"name": name, "partition": row["partition"], "offset": row["before"]}
                asked.admin("delete_records", at, broker_id=asked.leader(name, row["partition"]))
    output.print_rows(rows, ["partition", "start", "before", "end", "messages", "bytes", "unread"], as_json=as_json)


def _trimmed(asked: Cluster, name: str, spec: OffsetSpec, chosen: list[int] | None) -> list[dict[str, Any]]:
    """What a trim deletes: of each partition its extent, the new start, the messages and bytes between the starts, and
    who had not read them.
    """
    asked.refresh([name])
    parts = [(name, partition) for partition in chosen or range(len(asked.topic(name).leaders))]
    starts = asked.offsets(dict.fromkeys(parts, EARLIEST))
    ends = asked.offsets(dict.fromkeys(parts, LATEST))
    spans = {
        part: (starts[part], min(max(offset, starts[part]), ends[part]))
        for part, offset in resolve(asked, spec, parts).items()
    }
    unread, messages = _unread(asked, spans), asked.messages_between(spans)
    return [
        {
            "partition": part[1],
            **{
                "start": start,
                "before": before,
                "end": ends[part],
                "messages": messages[part],
                "bytes": before - start,
            },
            "unread": unread and unread.get(part, {}),
        }
        for part, (start, before) in spans.items()
    ]


def _unread(
    asked: Cluster, spans: Mapping[tuple[str, int], tuple[int, int]]
) -> dict[tuple[str, int], dict[str, int]] | None:
    """Of each partition the groups that have not read all between two offsets, with the bytes that they have not read.

    Groups are those that the caller may see, with an offset committed.  None: they cannot be asked for.
    """
    unread_of: dict[tuple[str, int], dict[str, int]] = {}
    asked.refresh(sorted({topic for topic, _ in spans}))
    if not asked.snapshot.zookeeper or all(start == stop for start, stop in spans.values()):
        return unread_of  # without ZooKeeper no group has committed anything
    try:
        for row in asked.admin("groups", {}):
            for topic, number, committed in asked.admin("offsets", {"group": row["group"]}):
                start, stop = spans.get((topic, number), (0, 0))
                unread = lost_bytes(committed, stop) - lost_bytes(committed, start)
                if unread:
                    unread_of.setdefault((topic, number), {})[row["group"]] = unread
    except (ClientFault, Unavailable):
        return None
    return unread_of


def _unread_text(unread: Mapping[str, int] | None) -> str:
    """What a question says of the groups that have not read what goes."""
    if unread is None:
        return "; which groups have not read them is not known"
    worst = sorted(unread.items(), key=lambda row: (-row[1], row[0]))
    named = [f"{group} has not read {units.size(count)}" for group, count in worst[:UNREAD_LINES_MAX]]
    if len(worst) > UNREAD_LINES_MAX:
        others = units.counted(len(worst) - UNREAD_LINES_MAX, "other group has", "other groups have")
        named.append(f"{others} not read all either")
    return "".join(f"; {text}" for text in named)


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", autocompletion=complete_topics, help="Topics.")],
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete topics and all that is in them.

    They can be brought back for topics.trash_ms, one day if not set (`appliance topics undelete`), unless the disk
    needs their room. Groups that have not read all of them are shown with the bytes that they lose.

    [b]Examples[/b]

        appliance topics delete web --dry-run

        appliance topics delete web app --yes --data /tmp/box
    """
    with cluster(data, connect) as asked:
        described = {topic["name"]: topic for topic in asked.admin("topics", {"names": names})}
        spans = {
            (name, part["partition"]): (part["start"] or 0, part["end"] or 0)
            for name, topic in described.items()
            for part in topic["partitions"]
        }
        unread = _unread(asked, spans)
        rows = [_deleted_row(described[name], unread) for name in dict.fromkeys(names)]
        if dry_run:
            output.print_rows(rows, [*COLUMNS, "unread"], as_json=as_json)
            return
        lost = [f"{row['name']}: {_size_text(row)}{_unread_text(row['unread'])}" for row in rows]
        confirm(lost, f"Delete {how_many(len(rows), 'topic')}?", yes=yes)
        for row in rows:
            row["trash_ms"] = asked.admin("delete_topic", {"name": row["name"]})["trash_ms"]
            if not as_json:
                output.say(f"deleted {row['name']}")
    if as_json:
        output.print_json(rows)
    elif kept_ms := max(row["trash_ms"] for row in rows):
        again = "`appliance topics undelete NAME` brings it back"
        output.remark(f"kept for {units.duration(kept_ms / 1000)}, unless the disk needs the room: {again}")


TRASH_COLUMNS = ["name", "id", "partitions", "bytes", "deleted", "until"]


@app.command()
def trash(data: DataOption = None, connect: ConnectOption = None, as_json: JsonOption = False) -> None:
    """List deleted topics that can be brought back, the newest last.

    They go at the time in the last column, or earlier, the oldest first, when the disk needs their room. Bytes are
    those on the disk of the appliance that is asked.

    [b]Example[/b]

        appliance topics trash --data /tmp/box
    """
    with cluster(data, connect) as asked:
        rows = [
            {
                **row,
                "deleted": _time_text(row["deleted_ms"]),
                "until": _time_text(row["until_ms"]),
            }
            for row in asked.admin("trash", {})
        ]
    output.print_rows(rows, TRASH_COLUMNS, as_json=as_json)


def _time_text(at_ms: int) -> str:
    return datetime.fromtimestamp(min(at_ms / 1000, YEAR_9999_S)).astimezone().isoformat(" ", "seconds")


@app.command()
def undelete(
    name: Annotated[str, typer.Argument(metavar="NAME|ID", help="A deleted topic: the last one of that name.")],
    new_name: Annotated[str, typer.Option("--as", metavar="NEW", help="Bring it back under another name.")] = "",
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring a deleted topic back, with its messages, settings and the offsets that groups had committed.

    What does not come back: access rules for its name that were deleted meanwhile, and the offsets of groups that were
    deleted after it. Rules for the old name do not hold for a new one. If there is a topic of that name again, give
    another name with --as; if several of one name were deleted, name the id that `topics trash` shows.

    [b]Examples[/b]

        appliance topics undelete web

        appliance topics undelete web --as web-of-yesterday --data /tmp/box
    """
    back: dict[str, Any] = {}
    unknown: UnknownPartition | None = None
    with cluster(data, connect) as asked:
        try:
            back = asked.admin("undelete_topic", {"name": name, "new_name": new_name})
        except TopicExists as error:
            raise TopicExists(str(error), remedy=f"`appliance topics undelete {name} --as NEW`") from None
        except UnknownPartition as error:  # raised below: a topic that there is, is not what was meant
            unknown = error
    if unknown is not None:
        raise unknown
    _say_back(back, as_json)
    if not as_json:
        offsets = ", ".join(f"{output.safe(group)} ({number})" for group, number in sorted(back["offsets"].items()))
        output.remark(
            f"committed offsets of groups (in how many partitions): {offsets}" if offsets else "no group had read it"
        )


def _say_back(back: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        output.print_json(back)
        return
    count = back["partitions"]
    output.say(f"{back['name']} is back with {units.counted(count, 'partition')}")


@app.command()
def restore(
    backup: Annotated[
        Path, typer.Argument(metavar="BACKUP", readable=False, help="A directory that `appliance backup DIR` has made.")
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="A topic in it.")],
    new_name: Annotated[str, typer.Option("--as", metavar="NEW", help="Restore it under another name.")] = "",
    settings: TopicSettingsOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Restore one topic of a backup into a running appliance; everything else stays as it is.

    It is a new topic with the messages and the settings of the backup, and with what is known of idempotent producers.
    The offsets of groups are not restored: `appliance groups reset GROUP ...` sets them. Retention holds for the topic
    at once: if it is older than its retention.ms, give a longer one with --setting.

    [b]Examples[/b]

        appliance topics restore /var/backups/appliance/monday web --as web-of-monday --data /var/lib/appliance

        appliance topics restore /backup/box audit --setting retention.ms=-1 --data /tmp/box
    """
    from ..catalog import new_id
    from ..data_directory import copy_topic
    from ..log.partition_directory import discard_trash

    directory = data_dir(data)
    if directory is None:
        raise typer.BadParameter("name the data directory with --data, or in APPLIANCE_DATA")
    topic_id, target = new_id(), new_name or name
    with cluster(data, None) as asked:
        if target in {topic["name"] for topic in asked.admin("topics", {})}:
            raise TopicExists(f"there is a topic {target!r}", remedy="take another name with --as")
        topic, _ = copy_topic(backup, directory, name, topic_id)
        own = topic.settings | parse_settings(settings)
        arguments = {"name": target, "id": topic_id, "partitions": len(topic.partitions), "settings": own}
        try:
            back = asked.admin("restore_topic", arguments)
        except ClientFault:
            if topic_id not in {row["id"] for row in asked.admin("trash", {})}:  # refused: nobody knows this topic
                with acting_as_owner(directory):
                    discard_trash(directory, topic_id)
            raise
    _say_back(back, as_json)
    if not as_json:
        output.remark("offsets of groups are not restored: `appliance groups reset GROUP ...` sets them")


def _unread_of_topic(unread: Mapping[tuple[str, int], Mapping[str, int]] | None, name: str) -> dict[str, int] | None:
    """What groups have not read of a whole topic."""
    if unread is None:
        return None
    sums: Counter[str] = Counter()
    for (topic, _), groups in unread.items():
        if topic == name:
            sums.update(groups)
    return dict(sums)


def _deleted_row(topic: dict[str, Any], unread: Mapping[tuple[str, int], Mapping[str, int]] | None) -> dict[str, Any]:
    """What goes with a topic.  What a partition has that cannot be asked now is not known: None."""
    parts, row = topic["partitions"], _summary(topic)
    for size in ("messages", "bytes"):
        if any(part.get(size) is None for part in parts):
            row[size] = None
    are_known = all(part["end"] is not None for part in parts)
    return row | {"unread": _unread_of_topic(unread, topic["name"]) if are_known else None}


def _size_text(row: Mapping[str, Any]) -> str:
    messages = (
        "messages whose number is not known" if row["messages"] is None else units.counted(row["messages"], "message")
    )
    return messages if row["bytes"] is None else f"{messages}, {units.size(row['bytes'])}"


def _summary(topic: dict[str, Any]) -> dict[str, Any]:
    """The row of a topic.  Partitions of other appliances may lack sizes; the sums leave them out."""
    parts = topic["partitions"]
    sums = {name: sum(part.get(name) or 0 for part in parts) for name in ("messages", "bytes")}
    return {"name": topic["name"], "partitions": len(parts), **sums, "settings": topic["own"]}


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="topics", rich_help_panel="Topics and groups")
