"""``appliance start`` and ``appliance status``: runs an appliance, shows the state of one."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import units
from ..clock import wall_s
from ..config import KEYS
from ..health.findings import exit_status, wrong
from . import ending, output, starting
from .subject import CommandSubject
from .target import ConnectOption, DataOption, JsonOption, directory_path

if TYPE_CHECKING:
    from ..health.findings import Finding
    from ..metrics.readings import Readings


def _complete_key(incomplete: str) -> list[str]:
    return [f"{name}=" for name in KEYS if name.startswith(incomplete)]


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE.toml", readable=False, help="Configuration; `appliance config show` prints one."
    ),
]
OverridesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        autocompletion=_complete_key,
        help="One key, over what the file says, such as native.listen=127.0.0.1:0; repeatable.",
    ),
]


def start(
    data: Annotated[
        Path,
        typer.Option(
            "--data", metavar="DIR", readable=False, parser=directory_path, help="Where logs are kept; made if need be."
        ),
    ],
    config: ConfigOption = None,
    settings: OverridesOption = None,
) -> None:
    """Run an appliance in the foreground until SIGTERM or Ctrl-C.

    Prints one line to standard output when it serves, and its log to standard error.  SIGHUP reads the
    configuration again.

    [b]Examples[/b]

        appliance start --data /var/lib/appliance

        appliance start --data /tmp/box --set zookeeper.nodes=1 --set kafka.listen=127.0.0.1:9192

        appliance start --data box --set native.listen=127.0.0.1:0 --set kafka.listen=127.0.0.1:0
    """
    raise typer.Exit(starting.start(starting.StartOptions(data, config, settings or [])))


def status(
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
    watch: Annotated[
        float | None,
        typer.Option("--watch", metavar="SECONDS", min=0.2, help="Show it again and again, until Ctrl-C."),
    ] = None,
) -> None:
    """Show listeners, processes and partitions, of a running appliance or of a data directory.

    The exit status is that of [b]appliance health[/b]: 0, 75 or 74.

    [b]Examples[/b]

        appliance status --data /var/lib/appliance

        appliance status --connect logs.example.net:9091 --json

        appliance status --data /var/lib/appliance --watch 2
    """
    meter = RateMeter(CommandSubject(data, connect))
    if watch is None:
        if meter.reads and not as_json:
            meter.measure(RATES_S)
        raise typer.Exit(exit_status(_show_status(meter, as_json)))
    with ending.end_in_order():
        while True:
            if sys.stdout.isatty():
                output.clear()
            _show_status(meter, as_json)
            sys.stdout.flush()
            meter.measure(watch)


def _show_status(meter: RateMeter, as_json: bool) -> list[Finding]:
    """Print the status once; return what is wrong."""
    status, look = meter.subject.status()
    findings = wrong(meter.subject.seen(look))
    if as_json:
        output.print_json(status)
    else:
        _print_status(status, findings, meter.rates())
    return findings


RATES_S = 0.25
"""How long a single status looks at the counters."""


class RateMeter:
    """Measures rates of an appliance on this host, between two readings of its counters."""

    def __init__(self, subject: CommandSubject) -> None:
        self.subject = subject
        self._before = self._after = self._read()

    def _read(self) -> Readings | None:
        return self.subject.look().readings if self.subject.directory is not None else None

    @property
    def reads(self) -> bool:
        """Whether there is anything to read."""
        return self._after is not None and self._after.state is not None

    def measure(self, seconds: float) -> None:
        """Wait, then read again."""
        time.sleep(seconds)
        self._before, self._after = self._after, self._read()

    def rates(self) -> dict[str, float]:
        """Per second, by their names; nothing before there are two readings."""
        before, after = self._before, self._after
        if before is None or after is None or after.at_s <= before.at_s or after.state is None:
            return {}
        grown = after.totals.since(before.totals)._asdict()
        return {name: count / (after.at_s - before.at_s) for name, count in grown.items()}


def _print_status(seen: dict[str, Any], findings: list[Finding], rates: dict[str, float]) -> None:
    zookeeper = seen["zookeeper"]
    head = [("state", seen["state"]), ("data", seen["data"]), *seen["listeners"].items()]
    if seen["started"]:
        head.insert(1, ("version", f"{seen['version']}, up {duration(wall_s() - seen['started'])}"))
    if rates:
        sizes = (f"{units.size(int(rates[name]))}/s {what}" for name, what in _RATES_BYTES)
        numbers = (f"{rates[name]:.0f}/s {what}" for name, what in _RATES)
        head.append(("rates", ", ".join([*sizes, *numbers])))
    head += [("WRONG", finding.text) for finding in findings]
    if waiting := seen["reload"]["needs_restart"]:
        changes = ", ".join(f"{key}: {was} -> {now}" for key, was, now in waiting)
        head.append(("reload", f"needs a restart: {changes}"))
    if seen["reload"]["error"]:
        head.append(("reload", f"the last one changed nothing: {' '.join(seen['reload']['error'].split())}"))
    if seen["insecure"]:
        head.append(("INSECURE", f"open to other hosts without TLS and authentication: {', '.join(seen['insecure'])}"))
    head.append(("zookeeper", " ".join(filter(None, (zookeeper["state"], zookeeper["connect"])))))
    for name, value in head:
        if sys.stdout.isatty():
            output.say(f"{name:>10}  {value}")
        else:
            output.print_fields([f"{name}:", str(value)])
    _print_tables(seen)


def _print_tables(seen: dict[str, Any]) -> None:
    if seen["processes"]:
        output.say()
        columns = ["role", "topic", "partition", "pid", "started", "restarts"]
        rows = [
            {**row, "role": f"{row['role']} {row.get('input', '')}".strip(), "started": output.moment(row["started"])}
            for row in seen["processes"]
        ]
        output.print_rows(rows, columns, title="Processes")
    if seen["inputs"]:
        output.say()
        rows = [{"input": name, **row} for name, row in seen["inputs"].items()]
        output.print_rows(
            rows, ["input", "type", "topic", "state", "lines", "refused", "gaps", "trouble"], title="Inputs"
        )
    if seen["refused"]:
        output.say()
        rows = [{**row, "since": output.moment(row["since"])} for row in seen["refused"]]
        output.print_rows(rows, ["action", "waiting", "since", "attempts", "reason"], title="Refused by the machine")
    if seen["limits"]:
        output.say()
        rows = [{**row, "since": row["since"] and output.moment(row["since"])} for row in seen["limits"]]
        columns = ["limit", "process", "value", "in_use", "since", "advice"]
        output.print_rows(rows, columns, title="Limits reached")
    if seen["refusals"]:
        output.say()
        rows = [{"reason": reason, "count": count} for reason, count in seen["refusals"].items()]
        output.print_rows(rows, ["reason", "count"], title="Refused to clients")
    if seen["removals"]:
        output.say()
        output.print_rows(seen["removals"], ["topic", "partitions", "whole"], title="Being deleted")
    if trash := seen["trash"]["topics"]:
        output.say()
        held = f"{units.size(seen['trash']['bytes'])} in {units.counted(trash, 'deleted topic')}"
        output.say(f"trash: {held} that can be brought back: `appliance topics trash`")
    if seen["partitions"]:
        output.say()
        columns = ["topic", "partition", "start", "end", "bytes", "messages", "state"]
        if any("reason" in row for row in seen["partitions"]):
            columns.append("reason")
        output.print_rows(seen["partitions"], columns, title="Partitions")


_RATES_BYTES = (("received_bytes", "in"), ("fetched_bytes", "out"))
_RATES = (("messages", "messages"), ("requests", "requests"), ("errors", "errors"))


def duration(seconds: float) -> str:
    """A time for people: "3 d 4 h", "5 min 6 s"."""
    lengths = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    seconds_left = int(seconds)
    words: list[str] = []
    for name, size in lengths:
        count, seconds_left = divmod(seconds_left, size)
        if count or (name == "s" and not words):
            words.append(f"{count} {name}")
    return " ".join(words[:2])


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Running one")(start)
    app.command(rich_help_panel="Running one")(status)
