"""``appliance report``: one archive with what somebody who helps needs to know, without secrets and messages."""

from __future__ import annotations

import io
import os
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ... import units
from ...clock import wall_s
from ...owners import acting_as_owner
from .. import output
from ..service_commands import ConfigOption
from ..target import DataOption, JsonOption, data_dir

if TYPE_CHECKING:
    from .report_parts import ReportPart

MODE: Final = 0o600


def report(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE.tar.gz]", readable=False, help="A new file; by default named after the time, here."
        ),
    ] = None,
    data: DataOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write an archive for somebody who helps: configuration, status, findings, metrics, log, versions, sizes.

    Works whether the appliance runs or not.  No message is in it, and no secret: those that this host has (passwords,
    keys, tokens, verifiers) are masked wherever they stand, and so is what looks like one.  Names of topics, groups,
    users and clients, and addresses, are in it: look before you send it.  The configuration is the one that the
    appliance runs with, or that of --config.

    [b]Examples[/b]

        appliance report --data /var/lib/appliance

        appliance report /tmp/box.tar.gz --data /tmp/box --config appliance.toml
    """
    from .report_parts import collect_parts

    directory = data_dir(data)
    if directory is None:
        raise typer.BadParameter("name the data directory with --data, or in APPLIANCE_DATA")
    at = datetime.fromtimestamp(wall_s(), UTC)
    name = f"appliance-report-{at:%Y%m%dT%H%M%SZ}"
    target = file or Path(f"{name}.tar.gz")
    with acting_as_owner(directory):
        parts = collect_parts(directory, config)
    content = _archive(name, parts, at)
    _write(target, content)
    if as_json:
        rows = [{"name": part.name, "bytes": len(part.content), "missing": part.missing} for part in parts]
        output.print_json({"report": str(target), "bytes": len(content), "parts": rows})
        return
    output.say(f"{target}: {units.counted(len(content), 'byte')}, {units.counted(len(parts), 'file')}")
    for part in parts:
        if part.missing:
            output.remark(f"{part.name} is empty: {part.missing}")


def _write(target: Path, content: bytes) -> None:
    """Write a new file that nobody else may read.

    Raises:
        BadParameter: there is such a file.
        OSError: it cannot be written; there is none.
    """
    try:
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, MODE)
    except FileExistsError:
        raise typer.BadParameter(f"{target} exists: name a new file") from None
    try:
        with open(fd, "wb") as archive:  # noqa: PTH123 - a descriptor
            archive.write(content)
    except OSError:
        target.unlink()
        raise


def _archive(name: str, parts: list[ReportPart], at: datetime) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for part in parts:
            entry = tarfile.TarInfo(f"{name}/{part.name}")
            entry.size, entry.mode, entry.mtime = len(part.content), MODE, at.timestamp()
            archive.addfile(entry, io.BytesIO(part.content))
    return packed.getvalue()


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Looking after it")(report)
