"""``appliance pipeline views``, ``refresh``, ``rebuild``: the views of a pipeline, which are SQL over its events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import BadValue
from ..owners import refuse_others_directory
from . import output
from .offset_spec import parse_offset_spec
from .pipeline_file import PipelineArgument, load
from .target import JsonOption

if TYPE_CHECKING:
    from ..spark.pipeline.settings import Settings
    from ..spark.pipeline.view_refresh import Refreshed
    from ..spark.pipeline.view_table import Ranges

STATES: dict[str, str] = {
    "current": "",
    "behind": "its changed windows are computed by the next refresh",
    "new": "computed by the next refresh",
    "changed": "its file has changed: computed whole by the next refresh",
    "orphan": "its file is gone: nobody refreshes its table; put the file back, or delete the directory",
    "unknown": "what it comes from is not known any more: computed whole by the next refresh",
}
ViewArgument = Annotated[str, typer.Argument(metavar="VIEW", help="Name of its file, without .sql.")]


def views(config: PipelineArgument, as_json: JsonOption = False) -> None:
    """List the views: how far each is behind the events, what the next refresh does, and why the last one failed.

    A view is a file of SQL in the directory `views.path`, over the table `events`; its answer is kept as a table, in
    `views` beside that of the events. `appliance pipeline example --views DIR` writes some to start from.

    [b]Example[/b]

        appliance pipeline views web.toml
    """
    settings = load(config, None, None)
    from ..spark.pipeline.event_versions import EventVersions
    from ..spark.pipeline.troubles import Troubles
    from ..spark.pipeline.view_states import orphans, state_of

    definitions, troubles = defined(settings), Troubles(settings)
    events = EventVersions(settings.output)
    rows: list[dict[str, Any]] = []
    for view in definitions:
        view_state = state_of(settings, view, events)
        rows.append(
            {
                "view": view.name,
                "state": view_state.state,
                "version": None if view_state.basis is None else view_state.basis.version,
                "behind": view_state.behind,
                "window_ms": view.window_us // 1000,
                "cadence_ms": view.cadence_ms,
                "keys": ", ".join(view.keys),
                "text": troubles.of_view(view.name) or STATES[view_state.state] or view.about,
            }
        )
    rows += [{"view": name, "state": "orphan", "text": STATES["orphan"]} for name in orphans(settings)]
    columns = ["view", "state", "version", "behind", "window_ms", "cadence_ms", "keys", "text"]
    output.print_rows(rows, columns, title=f"Views of events version {events.latest}", as_json=as_json)


def refresh(
    config: PipelineArgument,
    view: Annotated[str, typer.Argument(metavar="[VIEW]", help="Only this one.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Make views current: compute the windows whose events have changed, all windows where that is not known.

    A running pipeline does so by itself, at the `cadence` of each view, and `run --once` at its end.

    [b]Example[/b]

        appliance pipeline refresh web.toml errors
    """
    settings = load(config, None, None)
    from ..spark.pipeline.view_refresh import refresher
    from ..spark.pipeline.view_states import view_of

    definitions = [view_of(settings, view)] if view else defined(settings)
    with refresher(settings) as refreshing:
        show([refreshing.refresh(definition) for definition in definitions], as_json)


def rebuild(
    config: PipelineArgument,
    view: ViewArgument,
    since: Annotated[
        str, typer.Option("--since", metavar="2d|TIME", help="Only windows from then on; rows before stay.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Compute a view again from the events, whole or from a time on, in one transaction.

    Needed only where something outside of the events decides: a table that its SQL reads has changed, or a new query
    is to hold from a time on and rows before it stay as they were. Changed events and files are noticed by `refresh`.

    [b]Examples[/b]

        appliance pipeline rebuild web.toml errors

        appliance pipeline rebuild web.toml errors --since 2026-11-01
    """
    since_us = moment_us("--since", since) if since else None
    settings = load(config, None, None)
    from ..spark.pipeline.view_refresh import refresher
    from ..spark.pipeline.view_states import view_of

    definition = view_of(settings, view)
    with refresher(settings) as refreshing:
        show([refreshing.rebuild(definition, since_us)], as_json)


COMMANDS = (views, refresh, rebuild)


def defined(settings: Settings) -> Sequence[Any]:
    """The views of the pipeline.  Raises BadValue if there is none."""
    from ..spark.pipeline.view_states import views_of

    if definitions := views_of(settings):
        return definitions
    raise BadValue(
        'the pipeline has no views: `appliance pipeline example --views DIR` writes some, and `[views] path = "DIR"` '
        "in its file names them"
    )


def show(refreshed: Sequence[Refreshed], as_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {
            "view": view.name,
            "was": view.state,
            "version": view.version,
            "replaced": spoken(view.ranges),
            "rows": view.rows,
            "seconds": round(view.seconds, 1),
        }
        for view in refreshed
    ]
    output.print_rows(rows, ["view", "was", "version", "replaced", "rows", "seconds"], title="Views", as_json=as_json)
    for view in refreshed:
        if view.remark:
            output.remark(view.remark)


def spoken(ranges: Ranges | None) -> str:
    """What was replaced."""
    if ranges is None:
        return "all"
    if not ranges:
        return "nothing"
    first, last = (datetime.fromtimestamp(time_us / 1e6, UTC).isoformat() for time_us in (ranges[0][0], ranges[-1][1]))
    return f"{first} to {last}" + (f", in {len(ranges)} pieces" if len(ranges) > 1 else "")


def moment_us(option: str, text: str) -> int:
    """Raises BadValue if it is no time."""
    spec = parse_offset_spec(text, datetime.now().astimezone())
    if spec.offset is not None or spec.timestamp < 0:
        raise BadValue(f"{option} {text}: must be a time, such as 2d or 2026-11-25T08:00")
    return spec.timestamp * 1000


def write_examples(directory: Path) -> list[Path]:
    """Write the views that come with the pipeline.

    Raises:
        BadValue: one of the files is there.
    """
    refuse_others_directory(directory)
    texts = {file.name: file.read_text() for file in (files("appliance.spark.pipeline") / "example_views").iterdir()}
    if there := [name for name in sorted(texts) if (directory / name).exists()]:
        raise BadValue(f"{directory / there[0]} is there already: name another directory, or remove it")
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (directory / name).write_text(text)
    return [directory / name for name in sorted(texts)]
