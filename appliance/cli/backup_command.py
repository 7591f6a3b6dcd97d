"""``appliance backup``: a backup of a data directory, made while the appliance serves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import units
from . import output
from .target import DataOption, JsonOption, data_dir


def backup(
    target: Annotated[
        Path, typer.Argument(metavar="DIR", readable=False, help="A new directory, best on the same file system.")
    ],
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a backup of a data directory, while the appliance serves it or when it is stopped.

    Segments that do not change any more are hard links, so a backup on the same file system takes little room and
    seconds. Everything else is copied: ends of logs, topics, users, committed offsets. To protect against the loss of
    the disk, copy the backup to another one (`rsync -aH`). To restore, stop the appliance and copy the backup into
    the place of the data directory.

    [b]Examples[/b]

        appliance backup /var/lib/appliance-backups/monday --data /var/lib/appliance

        appliance backup /backup/box --data /tmp/box --json
    """
    from ..data_directory import back_up

    source = data_dir(data)
    if source is None:
        raise typer.BadParameter("name the data directory with --data, or in APPLIANCE_DATA")
    made = back_up(source, target.resolve())  # of `.` the name, too
    if as_json:
        output.print_json(
            {
                "backup": str(made.path),
                "partitions": made.partitions,
                "linked_bytes": made.linked_bytes,
                "copied_bytes": made.copied_bytes,
                "left_out": made.left_out,
            }
        )
        return
    sizes = f"{units.size(made.linked_bytes)} linked, {units.size(made.copied_bytes)} copied"
    output.say(f"{made.path}: {units.counted(made.partitions, 'partition')}, {sizes}")
    if made.left_out:
        output.remark(
            f"{units.counted(made.left_out, 'partition was', 'partitions were')} deleted meanwhile, not in it"
        )


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Looking after it")(backup)
