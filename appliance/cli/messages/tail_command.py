"""``appliance tail``: the newest messages of topics, merged by time, and what follows."""

from __future__ import annotations

import fnmatch
import os
import re
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ... import units
from ...errors import ApplianceError, UnknownPartition
from ...records.value_filter import make_select
from ...wire.requests import EARLIEST, LATEST
from .. import ending, output
from ..invocation import any_bytes
from ..live_names import complete_topics
from ..offset_spec import parse_moment
from ..target import ConnectOption, DataOption, JsonOption, address
from ..waiting import TroubleWatch
from .format_string import parse_format
from .message_text import MessageWriter

if TYPE_CHECKING:
    from ...client import Message
    from ...client.merged_reader import MergedReader, ReadSpan

TopicPartitions = list[tuple[str, int]]
COUNT: Final = 10
COUNT_MAX: Final = 100_000
NEW_TOPICS_S: Final = 5.0
"""How often ``-f`` looks for new topics that a pattern fits, and for new partitions."""
LinesOption = Annotated[
    int | None,
    typer.Option("-n", "--lines", min=0, max=COUNT_MAX, help="The last N of all.  [dim]\\[10; all with --since][/dim]"),
]
TailSinceOption = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="From then: 10m, 2h, 7d, 06:00, …")
]
TailUntilOption = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Up to then.  Not with -f.")]
GrepOption = Annotated[
    str | None,
    typer.Option("--grep", metavar="RE", callback=any_bytes, help="Only messages in whose value this is found."),
]
FieldsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--field",
        metavar="NAME=TEXT",
        callback=any_bytes,
        help="Only messages whose JSON or key=value text has this field; repeatable.",
    ),
]
TailFormatOption = Annotated[
    str | None,
    typer.Option(
        "--format", metavar="TEXT", callback=any_bytes, help="As kcat's -f: %t %p %o %T %k %s %h %S %K %R \\n"
    ),
]
TailPartitionsOption = Annotated[
    list[int] | None, typer.Option("--partition", min=0, help="Only this one; repeatable.")
]


def tail(
    topics: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC...", autocompletion=complete_topics, help="Topics, or patterns such as 'web-*'."),
    ],
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what arrives.")] = False,
    count: LinesOption = None,
    since: TailSinceOption = None,
    until: TailUntilOption = None,
    pattern: GrepOption = None,
    ignore_case: Annotated[bool, typer.Option("-i", "--ignore-case", help="For --grep.")] = False,
    fields: FieldsOption = None,
    partitions: TailPartitionsOption = None,
    form: TailFormatOption = None,
    headers: Annotated[bool, typer.Option("--headers", help="Print headers before the value.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Values as they are, also to a terminal.")] = False,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the newest messages of topics in the order of their times, and with -f what follows.

    A terminal also shows times, partitions, and colours by level.  A pipe gets values, one on a line.  -n with --grep
    or --field counts the messages that fit.  A message without a time goes with the one before it in its partition.

    [b]Examples[/b]

        appliance tail web -f

        appliance tail 'web-*' app --since 10m --grep 'timeout|refused'

        appliance tail app -n 100 --field level=error --json

        appliance tail web --since 06:00 --until 06:15 --format '%T %k %s\\n'
    """
    now = datetime.now().astimezone()
    begin, end = _moment("--since", since, now), _moment("--until", until, now)
    if follow and end is not None:
        raise typer.BadParameter("--until: -f has no end; leave out one of them")
    select = _select(pattern, fields or [], ignore_case=ignore_case)
    formatted = None if form is None else parse_format(form)
    from ...client.merged_reader import MergedReader

    listener = address(data, connect)
    with (
        ending.end_in_order(),
        MergedReader(listener, client_name="appliance-tail", select=select) as reader,
        TroubleWatch(listener, reader.troubles) as watch,
    ):
        parts = _chosen(reader, topics, partitions)
        prefix = "partition" if len(parts) > 1 or follow else "time"
        writer = MessageWriter(as_json=as_json, form=formatted, headers=headers, prefix=prefix, raw=raw)
        spans = _spans(reader, parts, begin, end)
        _print_past(reader, writer, spans, _count(count, begin, end), begin, end)
        error = _report(reader, watch)
        if follow:
            starts = {part: span.stop for part, span in spans.items()}
            _follow(reader, writer, starts, topics if partitions is None else [])
    if error is not None:
        raise error


def _select(
    pattern: str | None, fields: Sequence[str], *, ignore_case: bool
) -> Callable[[Sequence[bytes | None]], list[int]] | None:
    """What chooses the values of a batch; None when every message is wanted."""
    search = None
    if pattern is not None:
        try:
            search = re.compile(os.fsencode(pattern), re.IGNORECASE if ignore_case else 0).search
        except re.error as error:
            raise typer.BadParameter(f"--grep {pattern!r}: no regular expression: {error}") from None
    try:
        return make_select(search, fields)
    except ValueError as error:
        raise typer.BadParameter(f"--field {error}") from None


def _count(count: int | None, begin: int | None, end: int | None) -> int | None:
    """How many messages; None for all."""
    return COUNT if count is None and begin is None and end is None else count


def _moment(option: str, text: str | None, now: datetime) -> int | None:
    """A time in ms since 1970."""
    return None if text is None else parse_moment(option, text, now)


def _chosen(reader: MergedReader, topics: list[str], partitions: list[int] | None) -> TopicPartitions:
    """The partitions of the named topics and of those that a pattern fits, in this order.

    Raises:
        UnknownPartition: there is no such topic or partition, or no topic that a pattern fits.
    """
    reader.cluster.refresh(None)
    existing = sorted(reader.cluster.snapshot.topics)
    parts: TopicPartitions = []
    for name in topics:
        fitting = fnmatch.filter(existing, name) if _is_pattern(name) else [name]
        if not fitting:
            raise UnknownPartition(f"no topic fits {name!r}")
        for topic in fitting:
            count = len(reader.cluster.topic(topic).leaders)
            for partition in partitions or range(count):
                reader.cluster.partition(topic, partition)
                parts.append((topic, partition))
    return list(dict.fromkeys(parts))


def _is_pattern(name: str) -> bool:
    return any(character in name for character in "*?[")


def _spans(
    reader: MergedReader, parts: TopicPartitions, begin: int | None, end: int | None
) -> dict[tuple[str, int], ReadSpan]:
    """The offsets of the times.  A partition that cannot be read is left out and reported."""
    from ...client.merged_reader import ReadSpan

    starts, failed = reader.cluster.try_offsets(dict.fromkeys(parts, EARLIEST if begin is None else begin))
    ends, more = reader.cluster.try_offsets(dict.fromkeys(starts, LATEST if end is None else end))
    reader.left_out |= failed | more
    return {part: ReadSpan(starts[part], ends[part]) for part in ends}


def _print_past(
    reader: MergedReader,
    writer: MessageWriter,
    spans: dict[tuple[str, int], ReadSpan],
    count: int | None,
    begin: int | None,
    end: int | None,
) -> None:
    lists = reader.between(spans) if count is None else iter([reader.last(count, spans)])
    within = _Within(begin, end)
    for messages in lists:
        writer.write(filter(within.has, messages))


class _Within:
    """Whether messages are of a time: times in a log need not grow, so some of a span may be older or newer.

    A message without a time is where the one before it in its partition is.
    """

    def __init__(self, begin: int | None, end: int | None) -> None:
        self._first, self._last = begin or 0, 2**63 if end is None else end
        self._before: dict[tuple[str, int], bool] = {}

    def has(self, message: Message) -> bool:
        part = (message.topic, message.partition)
        if message.timestamp >= 0:
            self._before[part] = self._first <= message.timestamp < self._last
        return self._before.get(part, True)


def _follow(reader: MergedReader, writer: MessageWriter, starts: dict[tuple[str, int], int], topics: list[str]) -> None:
    """Prints what arrives, also in topics and partitions that are made meanwhile."""
    followed = dict(starts)
    look_s = time.monotonic() + NEW_TOPICS_S
    for messages in reader.follow(starts):
        if messages:
            writer.write(messages)
        if topics and time.monotonic() > look_s:
            look_s = time.monotonic() + NEW_TOPICS_S
            for part in _chosen(reader, topics, None):
                if part not in followed:
                    followed[part] = 0
                    reader.also_follow(part, 0)


def _report(reader: MergedReader, watch: TroubleWatch) -> ApplianceError | None:
    """Says what was left out.  Returns the error of the first partition that could not be read."""
    if reader.large_batches:
        from ...client.merged_reader import UNPACKED_BYTES_MAX
        from ...records.decode import BYTES_MAX

        limit = units.size(UNPACKED_BYTES_MAX)
        too_large = units.counted(
            reader.large_batches,
            f"batch that unpacks to more than {limit} was",
            f"batches that unpack to more than {limit} were",
        )
        output.remark(f"{too_large} left out: `appliance consume TOPIC` reads up to {units.size(BYTES_MAX)}")
    if reader.corrupt_batches:
        damaged = units.counted(reader.corrupt_batches, "damaged batch was", "damaged batches were")
        output.remark(f"{damaged} left out: `appliance log verify` shows where")
    causes = [watch.cause(part, error) for part, error in reader.left_out.items()]
    for cause in causes:
        output.remark(f"left out: {cause}")
    return causes[0] if causes else None


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Messages")(tail)
