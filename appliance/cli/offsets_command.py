"""``appliance offsets``: which offset of each partition a time is at."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from ..wire.requests import EARLIEST, LATEST
from . import output
from .live_names import complete_topics
from .offset_spec import parse_offset_spec, resolve
from .target import ConnectOption, DataOption, JsonOption, cluster


def offsets(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topics, help="Topic to look in.")],
    at: Annotated[
        str,
        typer.Option("--at", metavar="TIME|earliest|latest", help="A time, such as 2026-11-20T06:00, 06:00 or 15m."),
    ] = "latest",
    partitions: Annotated[
        list[int] | None, typer.Option("--partition", min=0, help="Only this one; repeatable; all if not given.")
    ] = None,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the offset of the first message of each partition that is not older than a time.

    After the last message it is the end.

    [b]Examples[/b]

        appliance offsets web --at 06:00 --data /tmp/box

        appliance offsets web --at 2h --partition 0 --json
    """
    spec = parse_offset_spec(at, datetime.now().astimezone())
    if spec.offset is not None:
        raise typer.BadParameter(f"--at {at}: give a time, an age, earliest or latest")
    with cluster(data, connect) as asked:
        asked.refresh([topic])
        chosen = list(dict.fromkeys(partitions or range(len(asked.topic(topic).leaders))))
        parts = [(topic, number) for number in chosen]
        starts, ends = (asked.offsets(dict.fromkeys(parts, which)) for which in (EARLIEST, LATEST))
        offsets_there = resolve(asked, spec, parts)
    rows = [
        {
            "topic": topic,
            "partition": part[1],
            "offset": offsets_there[part],
            "start": starts[part],
            "end": ends[part],
        }
        for part in parts
    ]
    output.print_rows(rows, ["topic", "partition", "offset", "start", "end"], as_json=as_json)


def register(root: typer.Typer) -> None:
    root.command(rich_help_panel="Topics and groups")(offsets)
