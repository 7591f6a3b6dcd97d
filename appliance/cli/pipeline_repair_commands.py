"""``appliance pipeline reparse``, ``backfill``, ``forget``, ``expire``, ``verify``: repair and remove events, add lines
from before the table began, and compare it with the topics."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..units import counted
from . import output
from .asking import DryRunOption, YesOption, confirm
from .pipeline_file import PipelineArgument, load
from .pipeline_results import show_result, watching
from .pipeline_view_commands import moment_us
from .target import ConnectOption, DataOption, JsonOption


def reparse(
    config: PipelineArgument,
    also_parsed: Annotated[
        bool, typer.Option("--all", help="Also lines that were parsed, from the table (output.raw) or their topics.")
    ] = False,
    since: Annotated[
        str, typer.Option("--since", metavar="2d|TIME", help="Only lines that arrived in the log from then on.")
    ] = "",
    until: Annotated[str, typer.Option("--until", metavar="2d|TIME", help="Only those that arrived before.")] = "",
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Parse lines of the table again after parsers have changed: those that were rejected, or all.

    Lines that the parsers take now become events, in one transaction; a killed one has changed nothing. With --all a
    new column is filled, too, as far as the table or the topics have the lines. Views follow
    with their next refresh. Dead letters that were sent stay as they are. The pipeline must not be running.

    [b]Examples[/b]

        appliance pipeline reparse web.toml

        appliance pipeline reparse web.toml --all --since 2d
    """
    bounds = {name: moment_us(f"--{name}", text) for name, text in (("since", since), ("until", until)) if text}
    settings = load(config, data, connect)
    from ..spark.pipeline.iceberg_table import follow_iceberg
    from ..spark.pipeline.reparse import reparse as parse_again

    reparsed = parse_again(settings, every=also_parsed, **{f"{name}_us": micros for name, micros in bounds.items()})
    follow_iceberg(settings)
    if as_json:
        output.print_json(reparsed._asdict())
        return
    taken = counted(reparsed.taken, "that was rejected is an event now", "that were rejected are events now")
    output.say(f"{counted(reparsed.lines, 'line was', 'lines were')} parsed again: {taken}")
    if reparsed.lost:
        lost = counted(reparsed.lost, "line that was an event is", "lines that were events are")
        output.remark(f"{lost} rejected now: a parser is stricter than it was")
    if reparsed.without:
        without = counted(reparsed.without, "line stays", "lines stay")
        output.remark(f"{without} as before: neither the table nor a topic has the bytes")


def backfill(
    config: PipelineArgument,
    since: Annotated[
        str, typer.Option("--since", metavar="2d|TIME", help="Only lines that arrived in the log from then on.")
    ] = "",
    dry_run: DryRunOption = False,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring in lines that the topics have from before the table began, as with `input.starting = "latest"`.

    The newest come first, in commits of `input.trigger_bytes`; one that is stopped or killed goes on from there next
    time, and each line comes once. What was forgotten, or has expired, stays away, but older lines of a person who was
    forgotten come in: repeat `forget`. Views follow. The pipeline must not be running.

    [b]Examples[/b]

        appliance pipeline backfill web.toml --dry-run

        appliance pipeline backfill web.toml --since 7d
    """
    since_ms = moment_us("--since", since) // 1000 if since else None
    settings = load(config, data, connect)
    from ..spark.pipeline.backfill import backfill as bring_in
    from ..spark.pipeline.backfill import gaps

    there = gaps(settings, since_ms)
    rows: list[dict[str, Any]] = [gap._asdict() | {"bytes": gap.bytes} for gap in there]
    result = None
    if there and not dry_run:
        with watching(settings.pipeline.name) as show:
            result = bring_in(settings, since_ms=since_ms, on_progress=show)
    if as_json:
        output.print_json({"before": rows, "run": None if result is None else result.as_json()})
        return
    columns = ["topic", "partition", "first", "end", "bytes"]
    output.print_rows(rows, columns, title="Lines from before the table began")
    if result is not None:
        show_result(result)


def forget(
    config: PipelineArgument,
    where: Annotated[str, typer.Option("--where", metavar="SQL", help="Which rows of events: client = '10.0.0.1'.")],
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove a person's rows from events, views, and the files of earlier versions; say what else has their lines.

    Messages of topics stay until retention removes them, which is listed. Name a person in
    every column that may have them, also in rejected lines: arrow_cast(raw, 'Utf8') like '%ann%'. The pipeline must not
    be running. A command that was killed is repeated.

    [b]Examples[/b]

        appliance pipeline forget web.toml --where "client = '10.0.0.1'" --dry-run

        appliance pipeline forget web.toml --where "client = '10.0.0.1'" --yes
    """
    settings = load(config, None, None)
    from ..spark.pipeline.forget import find, remaining, remove_old_files, remove_rows, send_letters
    from ..spark.pipeline.iceberg_table import follow_iceberg
    from ..spark.pipeline.view_states import views_of

    places = find(settings, where)
    remains = remaining(settings, places)
    rows = sum(place.rows for place in places)
    effects = [
        f"{counted(place.rows, 'row')} of {place.topic}-{place.partition}, offsets {place.first} to {place.last}"
        for place in places
    ]
    removed = files = 0
    remarks: list[str] = []
    if not dry_run:
        confirm(effects or ["no rows; files of earlier versions"], "Remove them for good?", yes=yes)
        send_letters(settings)
        removed = remove_rows(settings, where)
        if views := views_of(settings):  # also where nothing was removed: an earlier call may have been killed here
            from ..spark.pipeline.view_refresh import refresher

            with refresher(settings) as refreshing:
                remarks = [refreshing.refresh(view).remark for view in views]
        follow_iceberg(settings)
        files = remove_old_files(settings)
        for remark in filter(None, remarks):
            output.remark(remark)
    if as_json:
        kept = [remainder._asdict() for remainder in remains]
        place_rows = [place._asdict() for place in places]
        output.print_json({"rows": rows, "removed": removed, "files": files, "places": place_rows, "remains": kept})
        return
    done = f"{counted(removed, 'row was', 'rows were')} removed, with {counted(files, 'file')} of earlier versions"
    output.say(f"{counted(rows, 'row')} would be removed" if dry_run else done)
    for effect in effects:
        output.remark(effect)
    output.print_rows(
        [remainder._asdict() for remainder in remains], ["where", "until"], title="What remains elsewhere"
    )


def expire(
    config: PipelineArgument,
    before: Annotated[
        str, typer.Option("--before", metavar="90d|TIME", help="Rows whose time is earlier: -90d, 2026-08-01.")
    ],
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove old rows from events: those whose time is before the one that is given.

    Their files stay for `output.keep_ms`, for readers of earlier versions. Views follow with their next refresh, so
    they lose these windows, too. The pipeline must not be running. A killed command has removed all of them or none.

    [b]Examples[/b]

        appliance pipeline expire web.toml --before 90d --dry-run

        appliance pipeline expire web.toml --before 90d --yes
    """
    micros = moment_us("--before", before)
    settings = load(config, None, None)
    from ..spark.pipeline.forget import expire_rows, find, older_than
    from ..spark.pipeline.iceberg_table import follow_iceberg

    predicate = older_than(micros)
    places = find(settings, predicate)
    rows = sum(place.rows for place in places)
    removed = 0
    if not dry_run:
        if places:
            confirm([f"{counted(rows, 'row')} with {predicate}"], "Remove them for good?", yes=yes)
        removed = expire_rows(settings, micros)
        follow_iceberg(settings)
    if as_json:
        output.print_json({"rows": rows, "removed": removed, "places": [place._asdict() for place in places]})
        return
    done = f"{counted(removed, 'row was', 'rows were')} removed"
    output.say(f"{counted(rows, 'row')} would be removed" if dry_run else done)
    for place in places:
        output.remark(f"{counted(place.rows, 'row')} of {place.topic}-{place.partition}, up to offset {place.last}")


def verify(
    config: PipelineArgument, data: DataOption = None, connect: ConnectOption = None, as_json: JsonOption = False
) -> None:
    """Compare events with the topics they were read from: which messages have no row, and which have two.

    From the start of each log, or where reading began, to where the table says it has read. Rows that were deleted on
    purpose are missing, too; unknown are rows without a message, of a log that was restored. Partitions of which
    nothing can be compared are left out, with the reason. Takes as long as reading the topics.

    The files of views, and of their parts, are read whole before, and compared with what the views' own logs say.

    Exit status 0: equal.  1: something is missing, or twice, or the table of a view is damaged.

    [b]Example[/b]

        appliance pipeline verify web.toml
    """
    settings = load(config, data, connect)
    from ..spark.pipeline.verify import verify as compare
    from ..spark.pipeline.view_check import check_views

    views = list(check_views(settings))
    of_views: list[dict[str, Any]] = [view._asdict() for view in views]
    if of_views and not as_json:
        output.print_rows(of_views, ["table", "state", "version", "files", "rows", "fault"], title="Views")
    comparisons = list(compare(settings))
    rows: list[dict[str, Any]] = [comparison._asdict() for comparison in comparisons]
    if as_json:
        output.print_json({"partitions": rows, "views": of_views})
    else:
        columns = ["topic", "partition", "first", "end", "messages", "rows", "missing", "twice", "unknown", "left_out"]
        output.print_rows(rows, columns, title="Events and topics")
    if not all(comparison.equal for comparison in comparisons) or any(view.fault for view in views):
        raise typer.Exit(1)


COMMANDS = (reparse, backfill, forget, expire, verify)
