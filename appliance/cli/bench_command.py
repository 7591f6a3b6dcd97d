"""Defines the command ``appliance bench``."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import Unavailable
from ..owners import refuse_others_directory
from . import ending, output
from .target import JsonOption

if TYPE_CHECKING:
    from ..bench.harness import BenchOptions
    from ..bench.measures import BenchResult


def _complete_question(incomplete: str) -> list[str]:
    from ..bench.runner import QUESTIONS

    return [name for name in QUESTIONS if name.startswith(incomplete)]


QuestionsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[QUESTION]...", autocompletion=_complete_question, help="Which; all if none is named."),
]
BrokersDirectoryOption = Annotated[
    Path | None,
    typer.Option(
        "--directory",
        metavar="DIR",
        readable=False,
        help="Where the brokers keep their data meanwhile: a disk to be measured; else a temporary one.",
    ),
]
PeersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--peer",
        metavar="NAME",
        help="Measure this broker, too, if it is installed: kafka, kafka-4.1, klite, rabbitmq, rabbitmq-stream, "
        "activemq, nats, redis, or all but the older Kafka; repeatable.",
    ),
]
ClientOption = Annotated[str, typer.Option("--client", help="The client of the Kafka protocol: c or python.")]
RoundsOption = Annotated[int, typer.Option("--rounds", min=1, max=100, help="Medians of so many rounds.")]
WorkloadsOption = Annotated[str, typer.Option("--only", metavar="WORD", help="Workloads whose name contains it.")]
BenchSettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A key of the appliance's configuration; repeatable."),
]
SmokeOption = Annotated[bool, typer.Option("--smoke", help="A small size, once: it only proves that all works.")]
LargeOption = Annotated[
    bool,
    typer.Option(
        "--large",
        help="Also what takes long or much room: 10,000 partitions, 10 and 50 GB to recover (60 GB of disk).",
    ),
]
ResultsOption = Annotated[
    Path | None,
    typer.Option("--results", metavar="DIR", readable=False, help="Write JSON there, and charts as SVG and PNG."),
]


def bench(
    questions: QuestionsArgument = None,
    directory: BrokersDirectoryOption = None,
    peers: PeersOption = None,
    client: ClientOption = "c",
    rounds: RoundsOption = 3,
    only: WorkloadsOption = "",
    settings: BenchSettingsOption = None,
    smoke: SmokeOption = False,
    large: LargeOption = False,
    results: ResultsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure an appliance on this host: produce, consume, delays, beside the limits of the machine and other brokers.

    Starts an appliance of its own, on free ports, with a temporary data directory in DIR, and stops it at the end.
    Takes minutes and all processors: run it on a host that does nothing else.  Messages that are lost, changed or out
    of order are an error.  Questions: kafka_rows, paper_figures, end_to_end, fan_out, many_clients, sizes, native_rows,
    java_tools, catch_up, many_partitions, many_connections, group_rebalances, crash_recovery, idle_costs.

    [b]Examples[/b]

        appliance bench native_rows --directory /var/lib

        appliance bench kafka_rows end_to_end --peer kafka --results results

        appliance bench --smoke --json
    """
    from ..bench import runner
    from ..bench.stamps import Wrong

    _among("question", questions or [], runner.QUESTIONS)
    options = _options(directory, peers or [], client, rounds, only, settings or [], smoke=smoke, large=large)
    chosen = questions or runner.QUESTIONS
    for place in filter(None, (options.directory, results)):
        refuse_others_directory(place)
    output.remark(_estimate(chosen, options, results))
    measured: list[BenchResult] = []

    def done(result: BenchResult) -> None:
        measured.append(result)
        if results is not None:
            _keep(result, results)
        if not as_json:
            _show(result)

    try:
        with ending.end_in_order():
            runner.run(chosen, options, output.remark, done)
    except Wrong as wrong:
        raise Unavailable(f"no result: {wrong}") from None
    if as_json:
        import msgspec

        output.print_json(msgspec.to_builtins(measured))


def _options(
    directory: Path | None,
    peers: list[str],
    client: str,
    rounds: int,
    only: str,
    settings: list[str],
    *,
    smoke: bool,
    large: bool,
) -> BenchOptions:
    from ..bench import brokers, queue_peers
    from ..bench.harness import BenchOptions
    from ..bench.kafka_clients import CLIENTS

    kafka, *before = brokers.KAFKA_PEERS
    everyone = (kafka, brokers.KLITE, *queue_peers.QUEUE_PEERS)
    _among("peer", peers, (*everyone, *before, "all"))
    _among("client", [client], tuple(CLIENTS))
    for setting in settings:
        if "=" not in setting:
            raise typer.BadParameter(f"{setting!r} is not KEY=VALUE", param_hint="--set")
    return BenchOptions(
        directory=(directory or Path(tempfile.gettempdir())).resolve(),
        rounds=rounds,
        smoke=smoke,
        large=large,
        only=only,
        client=client,
        peers=frozenset(peers) | (frozenset(everyone) if "all" in peers else frozenset()),
        settings=dict(setting.split("=", 1) for setting in settings),
    )


def _estimate(questions: Sequence[str], options: BenchOptions, results: Path | None) -> str:
    from ..bench import measures, runner

    stored = measures.stored(results, questions) if results is not None else {}
    minutes = runner.estimate_s(questions, options, stored) / 60
    return f"takes about {max(round(minutes), 1)} minutes; Ctrl-C ends it and keeps what was measured"


def _among(what: str, names: list[str], allowed: tuple[str, ...]) -> None:
    for name in names:
        if name not in allowed:
            raise typer.BadParameter(f"no {what} {name!r}; there are {', '.join(allowed)}")


def _keep(result: BenchResult, directory: Path) -> None:
    from ..bench import result_charts
    from ..bench.compiling import Missing

    result.store(directory)
    try:
        result_charts.draw(result, directory)
    except Missing as missing:
        output.remark(f"no charts, missing: {missing}")


def _show(result: BenchResult) -> None:
    from ..bench import result_tables

    output.print_rows(result_tables.rows(result), result_tables.columns(result), title=result.title)


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Looking after it")(bench)
