"""``appliance pipeline``: checks and runs the Spark pipeline of a configuration file, shows its status, writes a page.

pyspark and its packages are imported when a command runs; if they are missing, the error says what to install.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from ..owners import refuse_others_directory
from . import output, pipeline_repair_commands, pipeline_view_commands
from .pipeline_file import PipelineArgument, load
from .pipeline_results import show_result, show_summary, watching
from .pipeline_view_commands import moment_us
from .target import ConnectOption, DataOption, JsonOption

app = typer.Typer(no_args_is_help=True, help="Turn topics into tables, with Spark.")
for command in (*pipeline_view_commands.COMMANDS, *pipeline_repair_commands.COMMANDS):
    app.command()(command)


@app.command()
def run(
    config: PipelineArgument,
    once: Annotated[bool, typer.Option("--once", help="Read what there is now, then end.")] = False,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read topics, parse their lines, write tables and dead letters; continues where it stopped.

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
    show_result(result)


@app.command()
def example(
    views: Annotated[
        Path | None,
        typer.Option("--views", metavar="DIR", readable=False, help="Write views to start from, NAME.sql, into it."),
    ] = None,
) -> None:
    """Print a configuration to start from, or write views to start from.

    [b]Examples[/b]

        appliance pipeline example > web.toml

        appliance pipeline example --views views
    """
    if views is not None:
        for path in pipeline_view_commands.write_examples(views):
            output.say(path)
        return
    for line in (files("appliance.spark.pipeline") / "example.toml").read_text().splitlines():
        output.say(line)


@app.command()
def status(
    config: PipelineArgument, data: DataOption = None, connect: ConnectOption = None, as_json: JsonOption = False
) -> None:
    """Show state, offsets, lag, rates and the content of the tables; also publishes the offsets as those of a group.

    States: never run, running, stopped, failed, refused (a run would be; `check` says more).

    [b]Example[/b]

        appliance pipeline status web.toml --json
    """
    settings = load(config, data, connect)
    from ..spark.pipeline.pipeline_status import status as ask

    current = ask(settings)
    if as_json:
        output.print_json(current.as_json())
        return
    rows = [position._asdict() for position in current.positions]
    output.print_rows(rows, ["topic", "partition", "offset", "end", "lag_bytes"], title="Offsets")
    doing = f"running as process {current.running}" if current.running else current.state
    rates = f"lately {current.rows_per_s:,.0f} rows/s, {current.bytes_per_s / 1e6:.1f} MB/s"
    number = "none" if current.batch is None else current.batch
    output.remark(f"{settings.pipeline.name}: {doing}, last micro-batch {number}, {rates}")
    show_summary(current.summary, *current.remarks)


@app.command()
def check(
    config: PipelineArgument, data: DataOption = None, connect: ConnectOption = None, as_json: JsonOption = False
) -> None:
    """Compare configuration, tables and topics, and say what a run would do.  Changes nothing.

    Exit status 0: it would run.  78: something is refused, or must be accepted first.

    [b]Example[/b]

        appliance pipeline check web.toml
    """
    settings = load(config, data, connect)
    from ..spark.pipeline.startup import check as compare
    from ..spark.pipeline.startup import raise_refused

    examination = compare(settings)
    rows: list[dict[str, Any]] = [finding._asdict() for finding in examination.findings]
    if as_json:
        ends = examination.resumption.begun.ends.items()
        offsets = [{"topic": topic, "partition": part, "offset": offset} for (topic, part), offset in sorted(ends)]
        output.print_json({"findings": rows, "continues_at": offsets})
    else:
        output.print_rows(rows, ["subject", "effect", "text"], title="Findings")
    raise_refused(examination)


@app.command()
def accept(
    config: PipelineArgument, data: DataOption = None, connect: ConnectOption = None, as_json: JsonOption = False
) -> None:
    """Accept what `check` shows as "accept": lost offsets, topics that were created again, wider types.

    Offsets: the tables record that they continue at the offsets that `check` names.  Wider types: all files of the
    table are rewritten.  The pipeline must not be running.

    [b]Example[/b]

        appliance pipeline accept web.toml
    """
    settings = load(config, data, connect)
    from ..spark.pipeline.startup import accept as accept_all

    rows: list[dict[str, Any]] = [finding._asdict() for finding in accept_all(settings)]
    output.print_rows(rows, ["subject", "effect", "text"], title="Accepted", as_json=as_json)


@app.command()
def report(
    config: PipelineArgument,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="DIR", readable=False, help="Where to; by default the pipeline's state directory."
        ),
    ] = None,
    zone: Annotated[str, typer.Option("--zone", help="Time zone of the page, as Europe/Berlin.")] = "UTC",
    since: Annotated[str, typer.Option("--since", metavar="2d|TIME", help="Only lines of from then on.")] = "",
    until: Annotated[str, typer.Option("--until", metavar="2d|TIME", help="Only lines of before.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Write a page of what is asked daily: volume, errors, heaviest, percentiles, sessions, freshness, lag, audit.

    One self-contained HTML file. Each panel has its question, in SQL; views have panels, too.

    [b]Examples[/b]

        appliance pipeline report web.toml --to /var/www/reports

        appliance pipeline report web.toml --zone Europe/Berlin --since 1d
    """
    first, end = (moment_us(name, text) if text else None for name, text in (("--since", since), ("--until", until)))
    settings = load(config, None, None)
    refuse_others_directory(directory or settings.state_dir)
    from ..spark.pipeline.report import write, zone_of

    page = write(settings, directory or settings.state_dir, zone=zone_of(zone), bounds=(first, end))
    if as_json:
        output.print_json({"html": str(page)})
        return
    output.say(page)


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="pipeline", rich_help_panel="Topics and groups")
