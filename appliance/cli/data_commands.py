"""``appliance produce`` and ``appliance consume``: lines in, lines out.

``produce`` sends lines at once (it reads pipes as they fill, so ``tail -F`` works) and waits at the end until all are
delivered.  It ends at the first line that is not delivered, and reports how many were not.  ``--long-lines`` says what
becomes of a line that no message has room for.  ``consume`` flushes its
output before it commits, so that a group never skips a message that was not printed.

While a partition, a disk or an appliance is away, both continue with the others and report it (``waiting.py``).  Both
end in order on SIGINT, SIGTERM, a closed terminal and a closed pipe (``ending.py``).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from .. import units
from ..errors import ApplianceError, MessageTooLarge, Unavailable, UnknownPartition
from ..owners import open_as_owner
from ..wire.requests import EARLIEST, LATEST
from . import ending, output
from .invocation import any_bytes
from .live_names import complete_groups, complete_topics
from .messages.line_input import (
    LINE_BYTES_MAX,
    LineHeaders,
    LineMessage,
    LongLineReader,
    LongLines,
    Treatment,
    details_bytes,
    make_parse,
    parse_headers,
)
from .messages.message_text import MessageWriter
from .offset_spec import OffsetSpec, parse_offset_spec, resolve
from .target import ConnectOption, DataOption, JsonOption, address, cluster
from .waiting import TroubleWatch

if TYPE_CHECKING:
    from ..client import Producer

BATCH_MAX = 1000
JOIN_S_MAX = 10.0
"""How long --timeout waits until the group has assigned partitions to this member."""
CLOSE_S = 5.0
"""How long ``produce`` continues to deliver after it was ended or has failed."""
FilesArgument = Annotated[
    list[Path] | None, typer.Argument(metavar="[FILE]...", readable=False, help="Files; standard input if none, or -.")
]
KeySeparatorOption = Annotated[
    str | None,
    typer.Option(
        "--key-separator", metavar="TEXT", callback=any_bytes, help="What stands before it in a line is the key."
    ),
]
KeyOption = Annotated[
    str | None, typer.Option("--key", metavar="TEXT", callback=any_bytes, help="The key of all messages.")
]
AcksOption = Annotated[
    Literal["all", "1", "0"], typer.Option("--acks", help="A line counts as sent when flushed, written, gone.")
]
CodecOption = Annotated[
    Literal["none", "gzip", "snappy", "lz4", "zstd"], typer.Option("--codec", help="Compress batches.")
]
HeadersOption = Annotated[
    list[str] | None,
    typer.Option("--header", metavar="NAME=VALUE", callback=any_bytes, help="A header of all messages; repeatable."),
]
InputFormOption = Annotated[
    Literal["lines", "json", "file"],
    typer.Option("--input", help="A line is a value, or an object as consume --json prints; or each file is a value."),
]
ConsumeFormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="TEXT",
        callback=any_bytes,
        help="What a line looks like: %k key, %s value, %h headers, %T time in ms, %p partition, text between them.",
    ),
]
LongLinesOption = Annotated[
    Treatment,
    typer.Option(
        "--long-lines",
        help="Of a line for which a message has no room (max.message.bytes): end with 65, leave it out, "
        "leave its end out, or send it in pieces.  All but refuse are counted, told, and end with 0.",
    ),
]
ConsumerGroupOption = Annotated[
    str | None,
    typer.Option(
        "--group",
        metavar="G",
        autocompletion=complete_groups,
        help="Share the topic with others of this group, and commit.",
    ),
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="earliest|latest|TIME|OFFSET",
        help="Where to begin: also 2026-11-20T06:00, 06:00 or 15m.  A group goes on where it has committed. "
        "[dim]\\[default: latest, with --group earliest][/dim]",
    ),
]


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topics, help="Topic to send to.")],
    files: FilesArgument = None,
    key_separator: KeySeparatorOption = None,
    key: KeyOption = None,
    headers: HeadersOption = None,
    form: InputFormOption = "lines",
    template: ConsumeFormatOption = None,
    long_lines: LongLinesOption = "refuse",
    partition: Annotated[int | None, typer.Option("--partition", min=0, help="To this partition only.")] = None,
    acks: AcksOption = "all",
    codec: CodecOption = "none",
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send lines of files or of standard input, each as one message, without its line break (LF or CR LF).

    With --input json a line is an object with value, key, headers, timestamp and partition, all optional.  With --input
    file each file is one message, with all its line breaks.  --format reads what tail --format prints.

    [b]Examples[/b]

        appliance produce reports --input file report-1.pdf report-2.pdf --data /tmp/box

        appliance produce web prepared.txt --format '%T %k %h %s' --data /tmp/box

        appliance produce web /var/log/nginx/access.log --data /tmp/box

        tail -F app.log | appliance produce app --key-separator ' ' --acks 1 --long-lines cut

        echo done | appliance produce jobs --key 4711 --header source=web-1 --header level=info

        appliance consume web --from 1h --timeout 1 --json | appliance produce web-copy --input json

        echo '{"a": 1}' | appliance produce events --connect logs.example.net:9091 --json
    """
    general = parse_headers(headers or [])
    parse = _parse_of(form, long_lines, key, key_separator, general, template)
    paths = [] if files == [Path("-")] else files or []
    for path in paths:
        open_as_owner(path).close()  # all or none: a missing file is found before the first line is sent
    listener = address(data, connect)
    message_bytes_max = _message_bytes_max(topic, listener)
    long = LongLines(long_lines, message_bytes_max, details_bytes(None if key is None else os.fsencode(key), general))
    parsed = key_separator is not None or template is not None
    if form == "json" or (long_lines == "refuse" and (codec != "none" or parsed)):
        long.bytes_max = LINE_BYTES_MAX  # the message is refused, not the line
    from ..client import Producer

    begun = time.monotonic()
    producer = Producer(listener, acks=acks, codec=codec, client_name="appliance-produce")
    with ending.end_in_order(), _Sending(producer, listener, topic, partition, parse, long) as sending:
        for source in _contents(paths, long) if form == "file" else _sources(paths, long):
            sending.send(source)
        sending.finish()
    _summarize(topic, sending, long, time.monotonic() - begun, as_json=as_json)


def _message_bytes_max(topic: str, listener: str) -> int:
    """How large a message of a topic may be.

    Raises:
        UnknownPartition: there is no such topic.
        Unavailable: nobody is there; a producer would go on trying.
    """
    with cluster(None, listener) as asked:
        asked.refresh([topic])
        try:
            return int(asked.topic(topic).settings["max.message.bytes"])
        except UnknownPartition as error:
            quoted = shlex.quote(topic)
            makes = f"`appliance topics create {quoted}` makes it"
            raise UnknownPartition(f"{error}", remedy=f"`appliance topics list` shows what there is, {makes}") from None


def _parse_of(
    form: str,
    long_lines: str,
    key: str | None,
    key_separator: str | None,
    general: LineHeaders,
    template: str | None,
) -> Callable[[bytes], LineMessage] | None:
    """What makes a message of a line.

    Raises:
        BadParameter: options that contradict each other.
    """
    if key_separator == "":
        raise typer.BadParameter("--key-separator: must not be empty")
    if key_separator is not None and form == "json":
        raise typer.BadParameter("--key-separator: an object of --input json has its own key")
    if form == "json" and long_lines in ("cut", "split"):
        raise typer.BadParameter(f"--long-lines {long_lines}: a part of an object is none; give skip or refuse")
    if template is not None and (key_separator is not None or form != "lines"):
        raise typer.BadParameter("--format: says all of a line; give it without --key-separator and --input")
    if form == "file" and (key_separator is not None or long_lines in ("cut", "split")):
        raise typer.BadParameter("--input file: a part of a file is none; give --long-lines refuse or skip, and --key")
    if template is not None and long_lines in ("cut", "split"):
        raise typer.BadParameter(f"--long-lines {long_lines}: a part has not the form of --format; give skip or refuse")
    if key_separator is not None and long_lines == "split":
        raise typer.BadParameter(
            "--long-lines split: only the first piece would have its key; give cut, skip or refuse"
        )
    return make_parse(form, key, key_separator, general, template)


def _summarize(topic: str, sending: _Sending, long: LongLines, seconds: float, *, as_json: bool) -> None:
    summary = {"topic": topic, "messages": sending.count, "bytes": sending.size, "seconds": round(seconds, 3)}
    if as_json:
        output.print_json({**summary, "long_lines": long.count, "left_out_bytes": long.left_out_bytes})
        return
    rate = sending.count / max(seconds, 1e-9)
    output.remark(f"{units.counted(sending.count, 'message')}, {units.size(sending.size)}, {rate:,.0f} messages/s")
    if long.count:
        output.remark(
            f"{units.counted(long.count, 'long line')} ({long.treatment}), {units.size(long.left_out_bytes)} left out"
        )


class _Sending:
    """Sends lines to one topic.  Use as a context; leaving it reports how many were not delivered.

    Raises:
        ApplianceError: a line was not delivered; the message has the cause and the number of such lines.
    """

    def __init__(
        self,
        producer: Producer,
        listener: str,
        topic: str,
        partition: int | None,
        parse: Callable[[bytes], LineMessage] | None,
        long: LongLines,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._parse = parse
        self._long = long
        self._watch = TroubleWatch(
            listener, producer.troubles, lambda: f"{units.counted(self.undelivered, 'line')} on the way"
        )
        self.count = 0
        self.size = 0

    @property
    def undelivered(self) -> int:
        return self.count - self._producer.delivered

    def __enter__(self) -> _Sending:
        self._watch.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        cause = None
        try:
            failure = self._producer.failure
            if failure is not None and failure.error is not None:
                cause = self._watch.cause((failure.topic, failure.partition), _root(failure.error))
            self._producer.close(None if kind is None else CLOSE_S)
        finally:
            self._watch.__exit__()
            text = f"{self.undelivered:,} of {units.counted(self.count, 'line was', 'lines were')} not delivered"
            if self.undelivered and cause is None:
                output.remark(f"appliance: {text}")
        if cause is not None and self.undelivered and (error is None or isinstance(error, Unavailable)):
            raise type(cause)(f"{text}: {cause}") from None

    def send(self, lines: list[bytes]) -> None:
        if self._parse is None and self._partition is None:
            self.count += len(lines)
            self.size += sum(map(len, lines))
            self._producer.send_many(self._topic, lines)
        else:
            for line in lines:
                self._send_one(LineMessage(line) if self._parse is None else self._parse(line))
        self._check()

    def _send_one(self, message: LineMessage) -> None:
        size = len(message.value or b"") + details_bytes(message.key, message.headers)
        if self._long.treatment == "skip" and size > self._long.message_bytes_max:  # an object: its line is no measure
            self._long.add("the input", self.count + self._long.count + 1, size, size)
            return
        partition = message.partition if self._partition is None else self._partition
        self.count += 1
        self.size += len(message.value or b"")
        self._producer.send(
            self._topic,
            message.value,
            key=message.key,
            headers=message.headers,
            timestamp=message.timestamp,
            partition=partition,
        )

    def finish(self) -> None:
        self._producer.flush()
        self._check()

    def _check(self) -> None:
        failure = self._producer.failure
        if failure is not None and failure.error is not None:
            raise failure.error


def _root(error: ApplianceError) -> ApplianceError:
    """The appliance's error behind a timeout of the client, if there is one."""
    return error.__cause__ if isinstance(error.__cause__, ApplianceError) else error


def _contents(files: list[Path], long: LongLines) -> Iterator[list[bytes]]:
    """Yields the content of each file, or of standard input, as one message.

    Raises:
        MessageTooLarge: one has no room in a message, and --long-lines refuses it.
    """
    sources: list[Path | None] = [*files] or [None]
    for path in sources:
        name = "standard input" if path is None else str(path)
        with contextlib.nullcontext(sys.stdin.buffer) if path is None else open_as_owner(path) as file:
            content = file.read(long.bytes_max + 1)
            size = len(content) if path is None else max(len(content), os.fstat(file.fileno()).st_size)
        if len(content) <= long.bytes_max:
            yield [content]
        elif long.treatment == "skip":
            long.add(name, 1, size, size)
        else:
            raise MessageTooLarge(
                f"{name}: more than {long.bytes_max:,} bytes; max.message.bytes of the topic is"
                f" {long.message_bytes_max:,}: `--long-lines skip` leaves it out"
            )


def _sources(files: list[Path], long: LongLines) -> Iterator[list[bytes]]:
    """Yields the lines of all files, or of standard input, in lists, as they can be read."""
    if not files:
        yield from LongLineReader(sys.stdin.buffer, "standard input", long)
        return
    total = 0
    for path in files:
        with open_as_owner(path) as file:
            total += os.fstat(file.fileno()).st_size
    with output.progress("sending", total) as advance:
        for path in files:
            with open_as_owner(path) as file:
                for lines in LongLineReader(file, str(path), long):
                    yield lines
                    advance(sum(map(len, lines)) + len(lines))


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topics, help="Topic to read.")],
    group: ConsumerGroupOption = None,
    since: FromOption = None,
    partitions: Annotated[
        list[int] | None, typer.Option("--partition", min=0, help="Only this one; repeatable.  Not with --group.")
    ] = None,
    count_max: Annotated[int | None, typer.Option("--max", min=1, metavar="N", help="End after N messages.")] = None,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", min=0, metavar="S", help="End when nothing has come for S seconds."),
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", metavar="TEXT", callback=any_bytes, help="Print keys, with this behind them."),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Write values as they are, also to a terminal, which they may change.")
    ] = False,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print messages, one per line, until --max, --timeout or Ctrl-C.

    On a terminal, bytes that are no text are printed as escapes such as \\x1b.  A partition that cannot be read is
    reported and waited for.  With --json one object per line: topic, partition, offset, timestamp (ms since 1970), key,
    value, headers; keys and values that are not UTF-8 are in key_base64 and value_base64.

    To find messages by text, field or time: `appliance tail`.

    [b]Examples[/b]

        appliance consume web --data /tmp/box

        appliance consume web --from 1h --timeout 2 --json | jq -r .value

        appliance consume web --group reports --max 1000

        appliance consume web --from 4711 --partition 0 --max 1
    """
    spec = parse_offset_spec(since or ("earliest" if group else "latest"), datetime.now().astimezone())
    writer = MessageWriter(as_json=as_json, key_separator=key_separator, raw=raw)
    listener = address(data, connect)
    if group is None:
        _read(listener, topic, partitions, spec, ConsumeLimits(count_max, timeout), writer)
    elif spec.offset is not None:
        raise typer.BadParameter("--from: a group begins at a time, not at an offset; see groups reset")
    elif partitions:
        raise typer.BadParameter("--partition: a group divides the partitions itself; leave out --group or --partition")
    else:
        _read_as_group(listener, topic, group, spec, ConsumeLimits(count_max, timeout), writer)


class ConsumeLimits(NamedTuple):
    """When to end: after this many messages, or this many seconds without one."""

    count_max: int | None
    timeout: float | None


def _read(
    listener: str, topic: str, chosen: list[int] | None, spec: OffsetSpec, limits: ConsumeLimits, writer: MessageWriter
) -> None:
    from ..client import Consumer

    with cluster(None, listener) as asked:
        asked.refresh([topic])
        parts = [(topic, partition) for partition in chosen or range(len(asked.topic(topic).leaders))]
        offsets = None if spec.offset is None else resolve(asked, spec, parts)
    messages_left = limits.count_max
    with (
        ending.end_in_order(),
        Consumer(listener, client_name="appliance-consume", on_out_of_range="raise") as consumer,
    ):
        if offsets is None:
            consumer.assign(parts, at=spec.timestamp)
        else:
            consumer.assign(offsets)
        with TroubleWatch(listener, consumer.troubles) as watch:
            while messages_left is None or messages_left > 0:
                messages = consumer.poll(
                    limits.timeout, BATCH_MAX if messages_left is None else min(messages_left, BATCH_MAX)
                )
                if not messages:
                    _end(watch)
                    return
                writer.write(messages)
                messages_left = None if messages_left is None else messages_left - len(messages)


def _read_as_group(
    listener: str, topic: str, group: str, spec: OffsetSpec, limits: ConsumeLimits, writer: MessageWriter
) -> None:
    """Prints and flushes each message before it requests the next one, so only printed messages are committed."""
    from ..client import GroupConsumer

    with cluster(None, listener) as asked:
        asked.refresh([topic])
        asked.topic(topic)  # a group would wait for a topic that does not exist
    start = {EARLIEST: "earliest", LATEST: "latest"}.get(spec.timestamp, spec.timestamp)
    messages_left = limits.count_max
    with (
        ending.end_in_order(),
        GroupConsumer(listener, group, start=start, client_name="appliance-consume") as consumer,
        TroubleWatch(listener, consumer.troubles) as watch,
    ):
        (stream,) = consumer.create_message_streams({topic: 1})[topic]
        joining_until = time.monotonic() + JOIN_S_MAX
        while True:
            for message in stream.messages(limits.timeout):
                writer.write([message])
                messages_left = None if messages_left is None else messages_left - 1
                if messages_left == 0:
                    return
            if consumer.owned or time.monotonic() > joining_until:
                _end(watch)
                return


def _end(watch: TroubleWatch) -> None:
    """Ends after --timeout without a message.  Raises the error if a partition could not be read."""
    error = watch.error()
    if error is not None:
        raise error


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Messages")(produce)
    app.command(rich_help_panel="Messages")(consume)
