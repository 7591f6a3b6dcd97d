"""``appliance inputs``: adds and checks inputs, and answers from their ledger where every line is."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ..clock import now_ms
from ..config import load
from ..errors import BadValue, ConfigFault, InvalidRequest, UnknownPartition
from ..input_settings import NAME, TABLE, TYPES, WANTED_NAME
from ..owners import acting_as_owner
from ..units import counted
from . import ending, output
from .config_commands import toml_value
from .config_file import replace_config
from .health_commands import ask_to_reload, check_read
from .pipeline_file import load as load_pipeline
from .service_commands import ConfigOption, OverridesOption
from .target import ConnectOption, DataOption, JsonOption, address, cluster, data_dir, running_dir

if TYPE_CHECKING:
    from ..client import Consumer
    from ..inputs.ledger import LedgerReading, LedgerRow
    from ..processes.messages import InputStats

SERVICE_DATA = Path("/var/lib/appliance")
"""Where the service of the package has its data: its owner is who needs the rights."""
UNITS = Path("/etc/systemd/system")
PACKAGED = Path("/etc/appliance/appliance.toml")
"""The configuration of the packaged service."""
LISTED = {"files": "include", "journal": "matches"}
"""The key of what `add` is given, for types that do not listen."""
FIND_MS_MAX = 60_000
TEXT_MATCHES_MAX = 100
app = typer.Typer(no_args_is_help=True, help="Logs that are taken in without a shipper: add, check, account for.")


@app.command(name="list")
def list_(data: DataOption = None, as_json: JsonOption = False) -> None:
    """Show the inputs of a running appliance: what each has taken in since it began, and what it waits for.

    [b]Example[/b]

        appliance inputs list --data /tmp/box
    """
    rows = [{"input": name, **row} for name, row in _state(running_dir(data)).get("inputs", {}).items()]
    columns = ["input", "type", "topic", "state", "sources", "lines", "bytes", "refused", "gaps", "trouble"]
    output.print_rows(rows, columns, as_json=as_json)


@app.command()
def check(
    config: ConfigOption = None, settings: OverridesOption = None, data: DataOption = None, as_json: JsonOption = False
) -> None:
    """Check that the inputs of a configuration can begin: files that the service's user may read, addresses free.

    A file that the input refuses is named with the reason, as a link that another user has put among the logs.
    With --data as the owner of that directory, and not for addresses that its appliance has itself.
    Exit status 78 if something is in the way.

    [b]Example[/b]

        appliance inputs check --config /etc/appliance/appliance.toml --data /var/lib/appliance
    """
    from ..inputs.checks import findings
    from ..inputs.guard import Guard
    from ..inputs.service_rights import groups_of

    chosen, directory = load(config, settings or []), data_dir(data)
    state, guard = _state(directory), Guard.of_config(chosen, directory)
    rows = [
        {"input": finding.input, "what": finding.what, "state": finding.fault or "good", "todo": finding.todo}
        for name, input_settings in chosen.inputs.items()
        for finding in findings(
            name,
            input_settings,
            directory,
            _bound(state),
            guard,
            groups_of(state.get("pid")),
            state.get("inputs", {}).get(name, {}).get("further", 0),
        )
    ]
    if not rows and not as_json:
        output.say(f"{config or 'configuration'}: no inputs")
        return
    output.print_rows(rows, ["input", "what", "state", "todo"], as_json=as_json)
    if any(row["state"] != "good" for row in rows):
        raise typer.Exit(ConfigFault.exit_status)


def _state(directory: Path | None) -> dict[str, Any]:
    """What the appliance that serves a directory says of itself; nothing when none does."""
    if directory is None:
        return {}
    from ..status import read_state

    with acting_as_owner(directory):
        return read_state(directory) or {}


def _bound(state: Mapping[str, Any]) -> frozenset[str]:
    """The addresses of inputs that have all of theirs."""
    rows = [row for row in state.get("inputs", {}).values() if len(row["addresses"]) == len(row["listen"])]
    return frozenset(text for row in rows for text in row["listen"])


@app.command()
def add(
    kind: Annotated[str, typer.Argument(metavar="TYPE", help=f"One of {', '.join(TYPES)}.")],
    topic: Annotated[str, typer.Option("--topic", help="Topic, also a template such as logs-{app}.")],
    config: Annotated[
        Path,
        typer.Option(
            "--config", metavar="FILE.toml", readable=False, help="Configuration to add it to; made if there is none."
        ),
    ],
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATTERN|ADDRESS|MATCH", help="Of files; to listen at; of entries of the journal."),
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Name of the input; by default that of the topic.")] = "",
    keys: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A further key; repeatable.")
    ] = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add an input to a configuration file, check it, and with --data let the running appliance take it.

    Nothing is written when a key is wrong.

    [b]Examples[/b]

        appliance inputs add files '/var/log/*.log' --topic disk --config appliance.toml --data /var/lib/appliance

        appliance inputs add syslog udp://0.0.0.0:5514 --set allow=10.0.0.0/8 --topic net --config appliance.toml

        appliance inputs add journal _SYSTEMD_UNIT=ssh.service --topic ssh --config appliance.toml

        appliance inputs add http 127.0.0.1:8686 --topic web --set connections_max=100 --config appliance.toml
    """
    if kind not in TYPES:
        raise BadValue(f"{kind!r}: must be one of {', '.join(TYPES)}")
    chosen_name = name or re.sub(r"[^a-z0-9_-]", "-", re.sub("[{}]", "", topic).lower())
    if not NAME.fullmatch(chosen_name):
        raise BadValue(f"the name of an input, {chosen_name!r}, {WANTED_NAME}: give one with --name")
    values: list[tuple[str, object]] = [
        ("type", kind), ("topic", topic), *([(LISTED.get(kind, "listen"), tuple(what))] if what else []),
    ]  # fmt: skip
    values += [(key, value) for key, _, value in (word.partition("=") for word in keys or [])]
    with acting_as_owner(config.absolute().parent):
        text = config.read_text() if config.exists() else ""
        if config.exists() and chosen_name in load(config).inputs:
            raise InvalidRequest(f"{config} has an input {chosen_name!r} already: name this one with --name")
        table = "".join(f"{key} = {toml_value(value)}\n" for key, value in values)
        new = f"{text.rstrip()}\n\n[{TABLE}.{chosen_name}]\n{table}".lstrip()
        replace_config(config, new)
    if as_json:
        output.print_json({"config": str(config), "input": chosen_name, "reloaded": data is not None})
    else:
        output.say(f"{config}: [{TABLE}.{chosen_name}]")
    if data is not None:
        of_input = {key for key in load(config).flat() if key.startswith(f"{TABLE}.{chosen_name}.")}
        check_read(config, of_input, ask_to_reload(data))
        _tell_what_lacks(config, data)


def _tell_what_lacks(config: Path, data: Path) -> None:
    """Say what the running service cannot do for its inputs yet, and how it can."""
    from ..inputs.service_rights import groups_of, needed

    state = _state(data)
    lacking = needed(load(config), data, groups_of(state.get("pid")))
    rights = [f"the group {group}" for group in lacking.groups]
    rights += [text for text in lacking.addresses if text not in _bound(state)]
    if rights:
        output.remark(f"the service needs {', '.join(rights)}: appliance inputs rights --apply --config {config}")


@app.command()
def rights(
    config: Annotated[
        Path,
        typer.Option("--config", metavar="FILE.toml", readable=False, help="Configuration of the service."),
    ] = PACKAGED,
    data: DataOption = None,
    apply: Annotated[bool, typer.Option("--apply", help="Write the files, and restart the service.")] = False,
    units: Annotated[
        Path,
        typer.Option(
            "--units",
            metavar="DIR",
            readable=False,
            help="Write to this directory of units; another one than systemd's is left to you.",
        ),
    ] = UNITS,
    as_json: JsonOption = False,
) -> None:
    """Show what the service needs beyond its unit for its inputs, as files of systemd; with --apply give it that.

    Groups that read files or the journal (adm, systemd-journal) are in a drop-in of the service; ports below 1024 are
    bound by a socket unit. What no input needs any more is taken away.

    [b]Examples[/b]

        appliance inputs rights --config /etc/appliance/appliance.toml

        appliance inputs rights --config /etc/appliance/appliance.toml --apply
    """
    from ..inputs.service_rights import apply_units, needed, restart_service

    lacking = needed(load(config), data_dir(data) or SERVICE_DATA)
    texts = lacking.units(config)
    restarted = False
    if apply:
        apply_units(units, texts)
        restarted = units == UNITS and restart_service()
    if as_json:
        files = {str(units / name): text for name, text in texts.items() if text}
        output.print_json({**lacking._asdict(), "files": files, "written": apply, "restarted": restarted})
    elif not any(texts.values()):
        output.say("the inputs need nothing beyond the unit")
    elif not apply:
        output.say("\n".join(f"# {units / name}\n{text}" for name, text in texts.items() if text).rstrip())
    else:
        output.say("\n".join(str(units / name) for name, text in texts.items() if text))
    if apply and not restarted:
        output.remark("then: systemctl daemon-reload; systemctl restart appliance")


# ---- the ledger

LedgerSinceOption = Annotated[str, typer.Option("--since", metavar="2d|TIME", help="Rows from then on.")]
LedgerTopicOption = Annotated[str, typer.Option("--ledger", help="The topic of the ledger (ledger.topic).")]


LedgerPipelineOption = Annotated[
    Path | None,
    typer.Option(
        "--pipeline",
        readable=False,
        metavar="CONFIG.toml",
        help="Say what became of the lines in its table of events.",
    ),
]


@app.command()
def ledger(
    source: Annotated[str, typer.Argument(metavar="[SOURCE]", help="A file or a sender; all if not given.")] = "",
    since: LedgerSinceOption = "-1d",
    topic: LedgerTopicOption = "ledger",
    pipeline: LedgerPipelineOption = None,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what each source gave: lines and bytes read, where they are, what was refused, and what was lost.

    The ledger is published once a minute.  With --json every row as it is in the topic.

    With --pipeline: of the messages of each source those that the table has not read yet, its rows, those that no
    parser took, messages that have no row, and rows too many.

    [b]Examples[/b]

        appliance inputs ledger --data /tmp/box

        appliance inputs ledger /var/log/syslog --since 2h --data /tmp/box

        appliance inputs ledger --pipeline web.toml --data /tmp/box
    """
    name = _name_of(source)
    rows = [row for row in _rows(data, connect, topic, since) if name in ("", row.source)]
    if pipeline is not None:
        _print_audit(rows, pipeline, data, connect, as_json)
        return
    if as_json:
        import msgspec

        output.print_json([msgspec.to_builtins(row) for row in rows])
        return
    shown = [
        {
            "input": name,
            "source": path,
            "lines": sum(row.lines for row in of_source),
            "bytes": sum(row.bytes for row in of_source),
            "messages": sum(row.messages for row in of_source),
            "refused": sum(sum(row.refused.values()) for row in of_source),
            "gaps": sum(len(row.gaps) for row in of_source),
            "in": _places(of_source),
        }
        for (name, path), of_source in _group_by_source(rows).items()
    ]
    output.print_rows(shown, ["input", "source", "lines", "bytes", "messages", "refused", "gaps", "in"])
    gaps = [
        {"source": row.source, "from": gap.start, "to": "?" if gap.stop is None else gap.stop, "unit": gap.unit,
         "reason": gap.reason, "at": _moment(row.minute)}
        for row in rows
        for gap in row.gaps
    ]  # fmt: skip
    if gaps:
        output.print_rows(gaps, ["source", "from", "to", "unit", "reason", "at"], title="Lost before it was read")


def _print_audit(
    rows: Sequence[LedgerRow], pipeline: Path, data: Path | None, connect: str | None, as_json: bool
) -> None:
    settings = load_pipeline(pipeline, data, connect)
    from ..spark.pipeline.input_audit import Block, audit

    of_sources = _group_by_source(rows)
    sent = {key: [Block(*span[:4]) for row in some for span in row.spans] for key, some in of_sources.items()}
    shown = [
        {
            "input": name,
            "source": path,
            "lines": sum(row.lines for row in of_sources[name, path]),
            "bytes": sum(row.bytes for row in of_sources[name, path]),
            "gaps": sum(len(row.gaps) for row in of_sources[name, path]),
            "messages": sum(block.messages for block in set(sent[name, path])),
            **judged._asdict(),
        }
        for (name, path), judged in audit(settings, sent).items()
    ]
    columns = [
        "input",
        "source",
        "lines",
        "bytes",
        "gaps",
        "messages",
        "before",
        "unread",
        "rows",
        "rejected",
        "expired",
        "missing",
        "twice",
    ]
    output.print_rows(shown, columns, title="From the ledger to the table of events", as_json=as_json)


@app.command()
def find(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A file, or a sender as the ledger names it.")],
    line: Annotated[int | None, typer.Option("--line", min=1, help="Number of the line of the file, from 1.")] = None,
    text: Annotated[str | None, typer.Option("--text", help="What the lines have in them.")] = None,
    since: LedgerSinceOption = "-7d",
    until: Annotated[str, typer.Option("--until", metavar="1d|TIME", help="Rows from before then.")] = "latest",
    topic: LedgerTopicOption = "ledger",
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say in which topic, partition and offset a line is, and whether the message is there still.

    A file that was rotated has as many lines with a number as it had lives: each is a row, the last one first.
    A line of an event of several lines is in the message of the event.  Messages of a sender are counted from 1 since
    the input knows it.

    The column `message` says there, expired (by the retention of the topic), compacted, no topic (it was deleted), or
    another log (it was made again since).  A line that is nowhere is an error that says what is known of it: lost,
    refused, not published yet, or from before the ledger.  A search takes a minute at most: --since and --until say
    where.

    With --text it reads the messages of the source, and says which lines have the text: their numbers, and where they
    are; the first 100.

    Bytes of a name that are no UTF-8 are \\xff, as `appliance inputs ledger` shows them.

    [b]Examples[/b]

        appliance inputs find /var/log/syslog --line 17 --data /tmp/box

        appliance inputs find 10.0.0.7 --line 1200 --since 3h --until 2h --data /tmp/box

        appliance inputs find /var/log/syslog --text "Out of memory" --since 1d --data /tmp/box
    """
    from ..inputs.ledger import LedgerReading

    if (line is None) == (text is None):
        raise typer.BadParameter("say which line: by --line or by --text")
    listener = address(data, connect)
    topics = _topics(listener)
    if topic not in topics:
        raise UnknownPartition(f"there is no topic {topic}: no input has published anything yet")
    reading = LedgerReading(until_ms=now_ms() + FIND_MS_MAX)
    search = _Search(_name_of(source), topic, since, until, listener, topics, reading)
    columns, rows = _find_text(search, text or "") if line is None else _find_line(search, line)
    output.print_rows(rows, columns, as_json=as_json)


class _Search(NamedTuple):
    """What `find` looks for, and where: the source ``name`` in rows of the topic ``ledger``."""

    name: str
    ledger: str
    since: str
    until: str
    listener: str
    topics: Collection[str]
    reading: LedgerReading

    def rows(self, consumer: Consumer) -> Iterator[LedgerRow]:
        from ..inputs.ledger import published_rows

        since, until = _timestamp("--since", self.since), _timestamp("--until", self.until)
        return published_rows(consumer, self.ledger, since, self.reading, source=self.name, until=until)


def _find_line(search: _Search, line: int) -> tuple[list[str], list[dict[str, Any]]]:
    from ..client import Consumer
    from ..inputs.line_search import LineSearch, check_places

    line_search = LineSearch(search.name, line)
    with Consumer(search.listener, client_name="appliance-inputs") as consumer:
        for row in search.rows(consumer):
            line_search.add(row)
        places = line_search.places()
        states = check_places(consumer, places, search.topics)
    rest = "; not all of it was read: give a later --since, or an earlier --until" if search.reading.is_cut else ""
    if not places:
        raise InvalidRequest(
            f"the ledger has no line {line} of {search.name} since {search.since}: {line_search.why_nowhere()}{rest};"
            " `appliance inputs ledger` shows which sources it has"
        )
    rows = [
        {"topic": place.block.topic, "partition": place.block.partition, "offset": place.offset,
         "to_offset": place.to_offset, "message": states[place], "life": place.life, "from_byte": place.block.start,
         "to_byte": place.block.stop, "at": _moment(place.minute)}
        for place in places
    ]  # fmt: skip
    return ["topic", "partition", "offset", "to_offset", "message", "life", "at"], rows


def _find_text(search: _Search, text: str) -> tuple[list[str], list[dict[str, Any]]]:
    from ..client import Consumer
    from ..inputs.text_search import TextSearch

    if not text:
        raise typer.BadParameter("--text: must not be empty")
    text_search = TextSearch(text, search.topics, TEXT_MATCHES_MAX, now_ms() + FIND_MS_MAX)
    with Consumer(search.listener, client_name="appliance-inputs") as consumer:
        for row in search.rows(consumer):
            text_search.add(row)
        matches = text_search.matches(consumer)
    rest = "not all of its messages are there, or could be read: give a later --since, or an earlier --until"
    is_cut = text_search.is_cut or search.reading.is_cut
    if not matches:
        raise InvalidRequest(
            f"no line of {search.name} that the ledger has since {search.since} has this text"
            f"{f'; {rest}' if is_cut else ''}; `appliance inputs ledger` shows which sources it has"
        )
    if is_cut:
        output.remark(rest)
    elif len(matches) == TEXT_MATCHES_MAX:
        output.remark(f"these are the first {TEXT_MATCHES_MAX}; there may be more")
    rows = [
        {"line": match.line, "topic": match.block.block.topic, "partition": match.block.block.partition,
         "offset": match.offset, "life": match.block.life, "at": _moment(match.block.minute),
         "text": match.value.decode("utf-8", "backslashreplace")}
        for match in matches
    ]  # fmt: skip
    return ["line", "topic", "partition", "offset", "life", "at", "text"], rows


def ship(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Files, or patterns of them in quotes.")],
    topic: Annotated[str, typer.Option("--topic", help="Topic to send to; made if there is none.")],
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what comes, through rotation, until Ctrl-C.")
    ] = False,
    positions: Annotated[
        Path | None,
        typer.Option(
            "--positions",
            metavar="DIR",
            readable=False,
            file_okay=False,
            help="Directory that remembers what was sent to which topic of which cluster; go on there.",
        ),
    ] = None,
    topic_of_ledger: LedgerTopicOption = "ledger",
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send files to an appliance, here or elsewhere, each line once, as the input of type files does.

    With --positions a second call sends only what is new, also after a kill and a rotation.  A position belongs to a
    file, a topic as it is given and a cluster: another topic, or another cluster, gets the file from its beginning.

    A last line without a line break may be one that is being written.  With --positions it waits for the rest of it: a
    later call sends the whole line, and this one says how many bytes wait.  Without --positions it is sent as it is.

    [b]Examples[/b]

        appliance ship app.log --topic app --data /tmp/box

        appliance ship '/var/log/*.log' --topic disk --follow --positions shipped --connect logs.example.net:9091
    """
    from ..inputs.ship import Shipment, check, total_bytes
    from ..inputs.ship import ship as ship_files

    listener = address(data, connect)
    with cluster(None, listener) as asked:  # fails at once when nobody is there; a producer would go on trying
        asked.refresh(())
    total, told_bytes = total_bytes(files), 0
    with output.progress("shipped", total) as advance:

        def on_progress(now: InputStats) -> None:
            nonlocal told_bytes
            advance(now.bytes - told_bytes)
            told_bytes = now.bytes

        shipment = Shipment(
            listener, files, topic, positions, topic_of_ledger, follow, data_dir=None if connect else data_dir(data)
        )
        check(shipment)
        try:
            stats, unfinished = ending.run_in_order(ship_files(shipment, on_progress))
        except (KeyboardInterrupt, ending.CommandEnded):
            output.remark(f"stopped: what was read is flushed{'' if positions else '; --positions would remember it'}")
            raise
    _print_shipped(topic, stats, unfinished, as_json)


def _print_shipped(topic: str, stats: InputStats, unfinished: Mapping[str, int], as_json: bool) -> None:
    row = {"lines": stats.lines, "bytes": stats.bytes, "messages": stats.messages, "gaps": stats.gaps}
    if as_json:
        output.print_json({**row, "unfinished": sum(unfinished.values())})
    else:
        sizes = f"{counted(stats.lines, 'line')}, {counted(stats.bytes, 'byte')}"
        output.say(f"{topic}: {sizes} of {counted(stats.sources, 'file')}")
    for path, count in unfinished.items():
        output.remark(f"{path}: its last line has no line break yet: {count:,} bytes wait for a later call")


def _rows(data: Path | None, connect: str | None, topic: str, since: str) -> Iterator[LedgerRow]:
    """The rows of the ledger from a time on, each once."""
    from ..client import Consumer
    from ..inputs.ledger import read_rows

    timestamp = _timestamp("--since", since)
    with Consumer(address(data, connect), client_name="appliance-inputs") as consumer:
        yield from read_rows(consumer, topic, timestamp)


def _topics(listener: str) -> Collection[str]:
    """All topics: a question about one would make it."""
    with cluster(None, listener) as asked:
        return asked.refresh(None).topics


def _timestamp(option: str, text: str) -> int:
    from .offset_spec import parse_offset_spec

    spec = parse_offset_spec(text, datetime.now().astimezone())
    if spec.offset is not None:
        raise BadValue(f"{option} {text}: must be a time, such as 2h or 2026-11-25T08:00")
    return spec.timestamp


def _name_of(source: str) -> str:
    """What the ledger calls a source, which may be given as a file beside the shell."""
    from ..inputs.ledger import shown_name

    return shown_name(str(Path(source).absolute()) if source and Path(source).exists() else source)


def _group_by_source(rows: Sequence[LedgerRow]) -> dict[tuple[str, str], list[LedgerRow]]:
    by_source: dict[tuple[str, str], list[LedgerRow]] = {}
    for row in rows:
        by_source.setdefault((row.input, row.source), []).append(row)
    return by_source


def _places(rows: Sequence[LedgerRow]) -> str:
    """The partitions of some rows, each with its first and last offset."""
    ranges: dict[tuple[str, int], tuple[int, int]] = {}
    for row in rows:
        for topic, partition, offset, messages, *_ in row.spans:
            first, last = ranges.get((topic, partition), (offset, offset))
            ranges[topic, partition] = min(first, offset), max(last, offset + messages - 1)
    return ", ".join(f"{topic}-{partition} {first} to {last}" for (topic, partition), (first, last) in ranges.items())


def _moment(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M}"


def register(root: typer.Typer) -> None:
    root.command(rich_help_panel="Messages")(ship)
    root.add_typer(app, name="inputs", rich_help_panel="Topics and groups")
