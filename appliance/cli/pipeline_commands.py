"""``appliance pipeline``: checks and runs the Spark pipeline of a configuration file, shows its status, draws a report.

pyspark and its packages are imported when a command runs; if they are missing, the error says what to install.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import extras, units
from ..errors import ConfigFault
from ..owners import refuse_others_directory
from . import output, target
from .target import Connect, Data, Json

if TYPE_CHECKING:
    from ..spark.pipeline.pipeline_status import Summary
    from ..spark.pipeline.settings import Settings
    from ..spark.pipeline.state_directory import Progress

app = typer.Typer(no_args_is_help=True, help="Turn topics into tables, with Spark.")

Config = Annotated[
    Path, typer.Argument(metavar="CONFIG.toml", readable=False, help="What to read, how to parse it, where to write.")
]


@app.command()
def run(
    config: Config,
    once: Annotated[bool, typer.Option("--once", help="Read what there is now, then end.")] = False,
    data: Data = None,
    connect: Connect = None,
    as_json: Json = False,
) -> None:
    """Read topics, parse their lines, write tables, totals and dead letters; continues where it stopped.

    Each line is in the tables once, also after a process was killed.  Ctrl-C ends the pipeline in order.

    [b]Examples[/b]

        appliance pipeline example > web.toml

        appliance pipeline run web.toml --once
    """
    settings = load(config, data, connect)
    from ..spark.pipeline.run import run as run_pipeline

    with watching(settings.pipeline.name) as show:
        result = run_pipeline(settings, once=once, on_progress=show)
    if as_json:
        output.print_json(result.as_json())
        return
    seconds = max(result.seconds, 1e-9)
    output.remark(
        f"{result.rows:,} rows, {units.size(result.bytes)} in {result.batches} micro-batches, {result.seconds:.1f} s: "
        f"{result.rows / seconds:,.0f} rows/s, {result.bytes / seconds / 1e6:.1f} MB/s"
    )
    show_summary(result.summary, result.remark)


@app.command()
def example() -> None:
    """Print a configuration to start from.

    [b]Example[/b]

        appliance pipeline example > web.toml
    """
    for line in (files("appliance.spark.pipeline") / "example.toml").read_text().splitlines():
        output.say(line)


@app.command()
def status(config: Config, data: Data = None, connect: Connect = None, as_json: Json = False) -> None:
    """Show state, offsets, lag, rates and the content of the tables; also publishes the offsets as those of a group.

    States: never run, running, stopped, failed, refused (a run would be; `check` says more).

    [b]Example[/b]

        appliance pipeline status web.toml --json
    """
    settings = load(config, data, connect)
    from ..spark.pipeline.pipeline_status import status as ask

    found = ask(settings)
    if as_json:
        output.print_json(found.as_json())
        return
    rows = [each._asdict() for each in found.positions]
    output.print_rows(rows, ["topic", "partition", "offset", "end", "lag_bytes"], title="Offsets")
    doing = f"running as process {found.running}" if found.running else found.state
    rates = f"lately {found.rows_per_s:,.0f} rows/s, {found.bytes_per_s / 1e6:.1f} MB/s"
    number = "none" if found.batch is None else found.batch
    output.remark(f"{settings.pipeline.name}: {doing}, last micro-batch {number}, {rates}")
    show_summary(found.summary, *found.remarks)


@app.command()
def check(config: Config, data: Data = None, connect: Connect = None, as_json: Json = False) -> None:
    """Compare configuration, tables and topics, and say what a run would do.  Changes nothing.

    Exit status 0: it would run.  78: something is refused, or must be accepted first.

    [b]Example[/b]

        appliance pipeline check web.toml
    """
    settings = load(config, data, connect)
    from ..spark.pipeline.startup import check as compare
    from ..spark.pipeline.startup import raise_refused

    found = compare(settings)
    rows: list[dict[str, Any]] = [each._asdict() for each in found.findings]
    if as_json:
        ends = found.resumption.begun.ends.items()
        offsets = [{"topic": topic, "partition": part, "offset": offset} for (topic, part), offset in sorted(ends)]
        output.print_json({"findings": rows, "continues_at": offsets})
    else:
        output.print_rows(rows, ["subject", "effect", "text"], title="Findings")
    raise_refused(found)


@app.command()
def accept(config: Config, data: Data = None, connect: Connect = None, as_json: Json = False) -> None:
    """Accept what `check` shows as "accept": lost offsets, topics that were created again, wider types.

    Offsets: the tables record that they continue at the offsets that `check` names.  Wider types: all files of the
    table are rewritten.  The pipeline must not be running.

    [b]Example[/b]

        appliance pipeline accept web.toml
    """
    settings = load(config, data, connect)
    from ..spark.pipeline.startup import accept as accept_all

    rows: list[dict[str, Any]] = [each._asdict() for each in accept_all(settings)]
    output.print_rows(rows, ["subject", "effect", "text"], title="Accepted", as_json=as_json)


@app.command()
def report(
    config: Config,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="DIR", readable=False, help="Where to; by default the pipeline's state directory."
        ),
    ] = None,
    zone: Annotated[str, typer.Option("--zone", metavar="NAME", help="Time zone of all times: Europe/Berlin.")] = "UTC",
    as_json: Json = False,
) -> None:
    """Draw the tables: one self-contained HTML page, and one PNG.

    [b]Examples[/b]

        appliance pipeline report web.toml --to /var/www/reports

        appliance pipeline report web.toml --zone Europe/Berlin
    """
    settings = load(config, None, None)
    refuse_others_directory(directory or settings.state_dir)
    from ..spark.pipeline.report import write, zone_of

    page, picture = write(settings, directory or settings.state_dir, zone=zone_of(zone))
    if as_json:
        output.print_json({"html": str(page), "png": str(picture)})
        return
    output.say(page)
    output.say(picture)


def load(config: Path, data: Path | None, connect: str | None) -> Settings:
    """The settings of the file.  An appliance named on the command line replaces the file's.

    Raises:
        ConfigFault: Spark is not installed, or the file is wrong.
    """
    if missing := extras.missing("pyspark", "pyarrow", "numpy"):
        raise ConfigFault(f"the pipeline needs {', '.join(missing)}: {extras.install('spark')}")
    import msgspec

    from ..spark.pipeline.settings import load as load_file

    try:
        settings = load_file(config)
    except ConfigFault as error:
        raise type(error)(f"{error}\n  `appliance pipeline example` shows what there is") from None
    for directory in (settings.state_dir, settings.output.path):
        if "://" not in str(directory):  # not in an object store
            refuse_others_directory(Path(directory))
    if data is None and connect is None:
        return settings
    pipeline = msgspec.structs.replace(settings.pipeline, bootstrap=target.address(data, connect))
    return msgspec.structs.replace(settings, pipeline=pipeline)


def show_summary(summary: Summary, *remarks: str) -> None:
    rows: list[dict[str, Any]] = [
        {"what": f"parsed: {name}", "messages": count} for name, count in summary.parsed.items()
    ]
    rows += [{"what": f"dead letter: {reason}", "messages": count} for reason, count in summary.dead.items()]
    rows += [{"what": f"column null: {reason}", "messages": count} for reason, count in summary.nulled.items()]
    output.print_rows(rows, ["what", "messages"], title="Lines")
    if summary.audit is not None:
        output.remark(f"audit: {summary.audit}")
    if summary.events:
        output.remark(f"events: {summary.events}")
    for remark in filter(None, remarks):
        output.remark(remark)


@contextlib.contextmanager
def watching(name: str) -> Iterator[Callable[[Progress], None]]:
    """Shows a line with the progress of the micro-batches on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    console = Console(stderr=True)
    rows = 0
    with console.status(f"{name}: starting Spark") as line:

        def show(progress: Progress) -> None:
            nonlocal rows
            rows += progress.rows
            line.update(
                f"{name}: {rows:,} rows, now {progress.rows_per_s:,.0f} rows/s, {progress.bytes_per_s / 1e6:.1f} MB/s, "
                f"lag {units.size(progress.lag_bytes)}"
            )

        yield show


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="pipeline", rich_help_panel="Topics and groups")
