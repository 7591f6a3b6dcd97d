"""``appliance groups``: shows groups with their members, committed offsets and lag, and changes the offsets."""

from __future__ import annotations

import difflib
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from .. import units
from ..clock import wall_s
from ..errors import InvalidRequest, UnknownGroup
from ..groups.group_settings import GROUP_KEYS
from ..wire.requests import EARLIEST, LATEST
from . import group_positions, output
from .asking import DryRunOption, YesOption, confirm, how_many
from .live_names import complete_groups, complete_members, complete_topics
from .offset_spec import parse_offset_spec, resolve
from .target import ConnectOption, DataOption, JsonOption, cluster, parse_settings

if TYPE_CHECKING:
    from ..client.cluster_client import Cluster

app = typer.Typer(no_args_is_help=True, help="Look at groups of consumers, move their offsets, delete them.")

CONFIGURED: Final = "configured"
"""The state of a group that has nothing but settings of its own."""
PARTITION_COLUMNS: Final = (
    *("topic", "partition", "offset", "end", "lag_messages", "lag_bytes", "lag_seconds", "lost_bytes", "committed"),
    *("owner", "owned"),
)
NAMED_MAX: Final = 8
"""Partitions that are named in one line."""
SETTINGS_TITLE: Final = "Settings of members of the consumer protocol"


def complete_setting(incomplete: str) -> list[str]:
    return [name for name in GROUP_KEYS if name.startswith(incomplete)]


GroupArgument = Annotated[
    str, typer.Argument(metavar="GROUP", autocompletion=complete_groups, help="Name of the group.")
]


@app.command(name="list")
def list_(data: DataOption = None, connect: ConnectOption = None, as_json: JsonOption = False) -> None:
    """List groups of both listeners.

    [b]Example[/b]

        appliance groups list --data /tmp/box
    """
    with cluster(data, connect) as asked:
        rows = asked.admin("groups", {})
    output.print_rows(rows, ["group", "protocol", "state", "members"], as_json=as_json)


@app.command()
def describe(
    group: GroupArgument,
    member: Annotated[
        str | None,
        typer.Option("--member", metavar="ID", autocompletion=complete_members, help="Only what this member reads."),
    ] = None,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show why a group stands still, its members, offsets, last commits, and lag in messages, bytes and seconds.

    For each partition it says in words how the group stands in it: nobody reads, a member has not committed for hours,
    messages were removed before they were read.  lost_bytes are those; owned: since when the owner has the partition.

    [b]Examples[/b]

        appliance groups describe reports --data /tmp/box --json

        appliance groups describe reports --member reports_web1-1763800000000-1a2b3c4d
    """
    with cluster(data, connect) as asked:
        description = asked.admin("group", {"group": group})
    if member is not None:
        description = _only(description, member)
    if as_json:
        output.print_json(description)
        return
    output.say(f"{group}: {_standing(description)}")
    for line in _reasons(description["partitions"]):
        output.say(line)
    members = [
        {**member, "partitions": [f"{topic}-{number}" for topic, number in member["partitions"]]}
        for member in description["members"]
    ]
    if members:
        output.print_rows(members, ["id", "client", "host", "silent_s", "partitions"], title="Members")
    times = {"committed": "committed_ms", "owned": "owned_ms"}
    rows = [
        row | {name: None if row[of] is None else output.moment(row[of] // 1000) for name, of in times.items()}
        for row in description["partitions"]
    ]
    output.print_rows(rows, PARTITION_COLUMNS, title="Partitions")
    output.print_settings(description, title=SETTINGS_TITLE)


@app.command()
def alter(
    group: GroupArgument,
    settings: Annotated[
        list[str] | None,
        typer.Option("--setting", metavar="KEY=VALUE", autocompletion=complete_setting, help="A setting; repeatable."),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(
            "--unset",
            metavar="KEY",
            autocompletion=complete_setting,
            help="Give a setting back to the appliance's value; repeatable.",
        ),
    ] = None,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change settings of a group, there or not: session and heartbeat of its members of the consumer protocol.

    Members have them from their next heartbeat on. The keys are consumer.session.timeout.ms and
    consumer.heartbeat.interval.ms, as in Kafka. They stay when the group is deleted.

    [b]Examples[/b]

        appliance groups alter reports --setting consumer.session.timeout.ms=2m --data /tmp/box

        appliance groups alter reports --unset consumer.session.timeout.ms
    """
    changes: dict[str, str | None] = {**parse_settings(settings), **dict.fromkeys(unset or [])}
    if not changes:
        raise typer.BadParameter("nothing to change: give --setting KEY=VALUE or --unset KEY")
    with cluster(data, connect) as asked:
        altered = asked.admin("alter_group", {"group": group, "settings": changes})
    if as_json:
        output.print_json(altered)
    else:
        output.print_settings(altered, title=SETTINGS_TITLE)


def _only(description: dict[str, Any], member: str) -> dict[str, Any]:
    """What belongs to one member.

    Raises:
        UnknownGroup: the group has no such member.
    """
    ids = [row["id"] for row in description["members"]]
    if member not in ids:
        near = difflib.get_close_matches(member, ids, 1)
        hint = (
            f": did you mean {near[0]!r}?"
            if near
            else f": `appliance groups describe {description['group']}` shows them"
        )
        raise UnknownGroup(f"group {description['group']!r} has no member {member!r}{hint}")
    members = [row for row in description["members"] if row["id"] == member]
    return {
        **description,
        "members": members,
        "partitions": [row for row in description["partitions"] if row["owner"] == member],
    }


def _standing(description: dict[str, Any]) -> str:
    count = len(description["members"])
    if description["state"] == CONFIGURED:
        return "there is no such group yet, but settings for it"
    now = wall_s()
    parts = [description["state"], f"{description['protocol']} protocol" if count else ""]
    parts.append(units.counted(count, "member") if count else "no members")
    for what, field in (("last commit", "committed_ms"), ("last change of owners", "owned_ms")):
        times = [row[field] for row in description["partitions"] if row[field] is not None]
        if times:
            parts.append(f"{what} {units.duration(max(0.0, now - max(times) / 1000))} ago")
    return ", ".join(filter(None, parts))


def _reasons(rows: list[dict[str, Any]]) -> list[str]:
    """How the group stands in its partitions, those that stand alike on one line."""
    alike: dict[str, list[str]] = {}
    for row in rows:
        alike.setdefault(row["why"], []).append(f"{row['topic']}-{row['partition']}")
    return [
        f"  {', '.join(names[:NAMED_MAX])}{f' and {len(names) - NAMED_MAX:,} more' * (len(names) > NAMED_MAX)}: {why}"
        for why, names in alike.items()
    ]


@app.command()
def reset(
    group: GroupArgument,
    topic: Annotated[str, typer.Option("--topic", autocompletion=complete_topics, help="Topic to move the group in.")],
    to: Annotated[str, typer.Option("--to", metavar="earliest|latest|TIME|OFFSET", help="Where to.")],
    partitions: Annotated[
        list[int] | None,
        typer.Option("--partition", min=0, help="Only this one; repeatable; all if not given."),
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Also for a group that there is not yet.")] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change the committed offsets of a group without members; an offset outside of a partition becomes its nearest.

    [b]Examples[/b]

        appliance groups reset reports --topic web --to earliest --dry-run

        appliance groups reset reports --topic web --to 2026-11-20T06:00 --partition 0 --yes
    """
    spec = parse_offset_spec(to, datetime.now().astimezone())
    with cluster(data, connect) as asked:
        exists = _resting(asked, group)
        asked.refresh([topic])
        chosen = partitions or list(range(len(asked.topic(topic).leaders)))
        offsets = resolve(asked, spec, [(topic, number) for number in chosen])
        if not exists and not new:
            raise UnknownGroup(f"there is no group {group!r}: `appliance groups list` shows them; --new creates it")
        offsets = _inside(asked, offsets)
        before = _committed(asked, group) if exists else {}
        rows = [
            {"topic": part[0], "partition": part[1], "offset": offset, "before": before.get(part)}
            for part, offset in offsets.items()
        ]
        moved = [
            f"{row['topic']}-{row['partition']}: {output.field(row['before'])} becomes {row['offset']}"
            for row in rows
            if row["before"] != row["offset"]
        ]
        if moved and not dry_run:
            if before:
                confirm(moved, f"Move group {group} in {topic}?", yes=yes)
            asked.admin("commit", {"group": group, "offsets": [[*part, offset] for part, offset in offsets.items()]})
    output.print_rows(rows, ["topic", "partition", "offset", "before"], as_json=as_json)


@app.command()
def delete(
    groups: Annotated[
        list[str], typer.Argument(metavar="GROUP...", autocompletion=complete_groups, help="Groups without members.")
    ],
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete groups and their committed offsets.  Messages stay.

    [b]Examples[/b]

        appliance groups delete reports --dry-run

        appliance groups delete reports old-reports --yes
    """
    with cluster(data, connect) as asked:
        rows: list[dict[str, Any]] = []
        for group in dict.fromkeys(groups):
            if not _resting(asked, group) and not _is_lost(asked, group):
                raise UnknownGroup(f"there is no group {group!r}")
            offsets = _committed(asked, group)
            topics = sorted({topic for topic, _ in offsets})
            rows.append({"group": group, "topics": topics, "offsets": len(offsets)})
        if not dry_run:
            lost = [
                f"{row['group']}: {units.counted(row['offsets'], 'committed offset')} in {output.field(row['topics'])}"
                for row in rows
            ]
            confirm(lost, f"Delete {how_many(len(rows), 'group')}?", yes=yes)
            for row in rows:
                asked.admin("delete_offsets", {"group": row["group"]})
    output.print_rows(rows, ["group", "topics", "offsets"], as_json=as_json)


@app.command(name="export")
def export(
    groups: Annotated[
        list[str] | None, typer.Argument(metavar="[GROUP...]", autocompletion=complete_groups, help="All if not given.")
    ] = None,
    data: DataOption = None,
    connect: ConnectOption = None,
) -> None:
    """Print the committed offsets of groups as JSON, for a file that groups import reads.

    Offsets are places in the logs of this appliance, and belong to the topic with the id that is printed with them.

    [b]Examples[/b]

        appliance groups export > positions.json

        appliance groups export reports alerts --data /var/lib/appliance > before-the-change.json
    """
    with cluster(data, connect) as asked:
        there = asked.admin("group_names", {})
        names = list(dict.fromkeys(groups)) if groups else sorted(there)
        for name in names:
            if name not in there:
                raise UnknownGroup(f"there is no group {name!r}")
        committed = {name: asked.admin("offsets", {"group": name}) for name in names}
        asked.refresh({topic for rows in committed.values() for topic, _, _ in rows})
        exported = group_positions.exported(committed, lambda topic: asked.topic(topic).id)
    output.print_json(exported)


@app.command(name="import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", readable=False, help="What groups export has printed.")],
    chosen: Annotated[
        list[str] | None, typer.Option("--group", metavar="GROUP", help="Only this group; repeatable.")
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Commit the offsets of a file that groups export has printed, for groups without members.

    Everything is checked before the first group is changed: the groups have no members, and the topics are those that
    the offsets were committed in, not others of that name. An offset outside of its partition becomes the nearest one.
    Offsets of partitions that the file does not have stay as they are.

    [b]Examples[/b]

        appliance groups import positions.json --dry-run

        appliance groups import positions.json --group reports --yes --data /var/lib/appliance
    """
    positions = group_positions.read(file)
    if chosen:
        positions = {name: positions[name] for name in chosen if name in positions}
        if missing := [name for name in chosen if name not in positions]:
            raise UnknownGroup(f"{file} has no group {missing[0]!r}")
    with cluster(data, connect) as asked:
        before = {name: _committed(asked, name) if _resting(asked, name) else {} for name in positions}
        asked.refresh({row.topic for rows in positions.values() for row in rows})
        group_positions.check_topics(positions, lambda topic: asked.topic(topic).id)
        offsets = {
            name: _inside(asked, {(row.topic, row.partition): row.offset for row in rows})
            for name, rows in positions.items()
        }
        rows = [
            {"group": name, "topic": part[0], "partition": part[1], "offset": offset, "before": before[name].get(part)}
            for name, parts in offsets.items()
            for part, offset in parts.items()
        ]
        moved = [
            f"{row['group']} in {row['topic']}-{row['partition']}: {row['before']} becomes {row['offset']}"
            for row in rows
            if row["before"] not in (None, row["offset"])
        ]
        if not dry_run:
            if moved:
                confirm(moved, f"Move {how_many(len(offsets), 'group')}?", yes=yes)
            for name, parts in offsets.items():
                committed = [[*part, offset] for part, offset in parts.items()]
                if committed:
                    asked.admin("commit", {"group": name, "offsets": committed})
    output.print_rows(rows, ["group", "topic", "partition", "offset", "before"], as_json=as_json)


def _resting(asked: Cluster, group: str) -> bool:
    """Whether there is such a group.

    Raises:
        InvalidRequest: it has members, which would commit their own offsets again.
    """
    try:
        description = asked.admin("group", {"group": group})
    except UnknownGroup:
        return False
    if members := description["members"]:
        raise InvalidRequest(f"group {group!r} has {units.counted(len(members), 'running member')}: stop them first")
    return bool(description["state"] != CONFIGURED)


def _is_lost(asked: Cluster, group: str) -> bool:
    """Whether ZooKeeper has lost the offsets of this group: to delete it is to do without them."""
    lost = asked.admin("status", {})["cluster"].get("offsets_lost")
    return lost is not None and group in lost["groups"]


def _committed(asked: Cluster, group: str) -> dict[tuple[str, int], int]:
    return {(topic, partition): offset for topic, partition, offset in asked.admin("offsets", {"group": group})}


def _inside(asked: Cluster, offsets: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
    """Changes offsets outside of their partition to the nearest one inside, and prints which."""
    starts = asked.offsets(dict.fromkeys(offsets, EARLIEST))
    ends = asked.offsets(dict.fromkeys(offsets, LATEST))
    inside = {}
    for part, asked_for in offsets.items():
        offset = inside[part] = min(max(asked_for, starts[part]), ends[part])
        if offset != asked_for:
            name = f"{part[0]}-{part[1]}"
            output.remark(
                f"{name}: offset {asked_for} is outside of {starts[part]} to {ends[part]}; the group begins at {offset}"
            )
    return inside


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="groups", rich_help_panel="Topics and groups")
