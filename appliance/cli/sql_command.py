"""``appliance sql``: a query over topics, as they are now, by DuckDB.

DuckDB and Arrow are imported when the command runs; if they are missing, the error says what to install.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .. import extras, units
from ..config_keys import SIZES, parse_units
from ..errors import ConfigFault, Unavailable
from . import ending, output
from .query_output import Form, form_of, save, show
from .target import ConnectOption, DataOption, JsonOption, address

if TYPE_CHECKING:
    from ..sql.session import Session


FollowOption = Annotated[
    float | None, typer.Option("--follow", min=0.1, metavar="S", help="Ask again after S seconds, until Ctrl-C.")
]
SqlFormatOption = Annotated[
    Form | None,
    typer.Option("--format", help="How rows are printed; in a pipe fields of a table are separated by tabs."),
]
SqlOutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output", metavar="FILE", readable=False, help="Write the rows to this file; its name may say the format."
    ),
]
ParsersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--parser",
        metavar="TOPIC=NAME",
        help="What makes columns of the lines of a topic, as json or access; TOPIC= for nothing; repeatable.  "
        "[dim]\\[default: what takes its newest lines][/dim]",
    ),
]
PipelinesOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--pipeline",
        metavar="CONFIG.toml",
        readable=False,
        help="A pipeline whose tables are asked: NAME.events, and NAME.live with what it has not read; repeatable.",
    ),
]
BytesOption = Annotated[bool, typer.Option("--bytes", help="Keys, values and headers as they are, not as texts.")]
MemoryOption = Annotated[
    str, typer.Option("--memory", metavar="SIZE", help="Memory of DuckDB; what has no room goes to the disk.")
]
AllowOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--allow", metavar="PATH", readable=False, help="A directory or file that the query may use; repeatable."
    ),
]


def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="One query; - reads it from standard input.")],
    follow: FollowOption = None,
    form: SqlFormatOption = None,
    file: SqlOutputOption = None,
    parsers: ParsersOption = None,
    pipelines: PipelinesOption = None,
    as_bytes: BytesOption = False,
    memory: MemoryOption = "512MiB",
    allowed: AllowOption = None,
    data: DataOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask topics with SQL, as DuckDB speaks it: all that has come until now, without a copy or a schema.

    A topic is a table with the columns partition, offset, timestamp, key, value, headers, and those that a parser makes
    of its lines: time, host, service, level, message, the fields of JSON.  Comparisons with offset, partition and
    timestamp decide what is read.  Quote names that are no words: "my.topic".  describe web shows the columns.

    [b]Examples[/b]

        appliance sql "select level, count(*) from app group by level" --data /tmp/box

        appliance sql "select * from web where timestamp > now() - interval 5 minutes and status >= 500" --follow 2

        appliance sql "select client, count(*) n from web group by client order by n desc limit 10" --json

        appliance sql "select * from web where timestamp >= '2026-11-20'" --output web.parquet

        appliance sql "select count(*) from web.live where status >= 500" --pipeline web.toml

        appliance sql "select w.* from web w join 'hosts.csv' h on w.host = h.name" --allow hosts.csv
    """
    if missing := extras.missing("duckdb", "pyarrow", "numpy"):
        raise ConfigFault(f"sql needs {', '.join(missing)}: {extras.install('sql')}")
    form = form_of(form, file, as_json=as_json)
    memory_bytes = parse_units(memory, SIZES)
    if memory_bytes is None:
        raise typer.BadParameter(f"--memory {memory}: give a size, such as 512MiB")
    text = sys.stdin.read() if query == "-" else query
    from ..spark.pipeline.settings import load
    from ..sql.session import Session

    session = Session(
        address(data, connect),
        parsers=_chosen(parsers or []),
        pipelines=[load(path) for path in pipelines or []],
        memory_bytes=memory_bytes,
        allowed=allowed or [],
        as_bytes=as_bytes,
    )
    with ending.end_in_order(), session:
        _ask(session, text, form, file)
        while follow is not None:
            threading.Event().wait(follow)
            try:
                _ask(session, text, form, file, again=True)
            except Unavailable as error:
                output.remark(f"appliance: {error}")


def _ask(session: Session, text: str, form: Form, file: Path | None, *, again: bool = False) -> None:
    topics_before = set(session.guesses)
    result = session.run(text)
    if sys.stderr.isatty():
        for topic, guess in session.guesses.items():
            if topic not in topics_before:
                output.remark(f"{topic}: {guess.parser} takes {guess.taken} of its {guess.seen} newest lines")
    if file is not None:
        count = save(result, form, file)
        output.remark(f"{file}: {units.counted(count, 'row')}, {units.size(file.stat().st_size)}")
        return
    if again and form == "table" and sys.stdout.isatty():
        output.clear()
    show(result, form)
    sys.stdout.flush()


def _chosen(assignments: list[str]) -> dict[str, str]:
    """``["web=access"]`` as a dictionary.

    Raises:
        BadParameter: not of that form, or no such parser.
    """
    from ..spark.pipeline.settings import BUILT_IN

    chosen = {}
    for text in assignments:
        topic, equals, parser = text.partition("=")
        if not equals or not topic or (parser and parser not in BUILT_IN):
            raise typer.BadParameter(f"--parser {text}: must be TOPIC=NAME, with one of {', '.join(BUILT_IN)}")
        chosen[topic] = parser
    return chosen


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Messages")(sql)
