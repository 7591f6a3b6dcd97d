"""Runs queries with DuckDB: gives it the tables that a query names, and says what is wrong with one.

DuckDB reads and writes no file and no address but the directory into which it spills, and those that are allowed; its
settings cannot be changed by a query.  It knows no variable of this process.  Its memory is bounded, and results are
batches that are made as they are taken.
"""

from __future__ import annotations

import difflib
import os
import re
import tempfile
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import astuple
from pathlib import Path
from shlex import quote
from typing import Any, Final, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from ..config_keys import MIB
from ..errors import ApplianceError, BadValue, InvalidRequest, UnknownPartition
from ..log_access.access import LogAccess
from ..log_access.arrow import SCHEMA, Decoder
from ..log_access.ranges import Range
from ..names import TopicPartition
from ..spark.pipeline.settings import Settings
from ..spark.pipeline.table_files import EVENTS
from ..wire.requests import EARLIEST, LATEST
from .beside import made_beside
from .line_columns import Guess, LineColumns, guessed
from .pipeline_tables import LIVE, Tables, tables_of
from .topic_table import Reading, TopicTable

MEMORY_BYTES: Final = 512 * MIB
MEMORY_BYTES_MIN: Final = 64 * MIB
SPILL_FACTOR: Final = 8
"""A query may spill so many times its memory to the disk."""
RETRY_MS: Final = 10_000
SAMPLE_BYTES: Final = 128 * 1024
"""So much of the end of a partition is looked at to choose a parser."""
SAMPLE_PARTITIONS_MAX: Final = 4
SAMPLE_ROWS_MAX: Final = 500
RESULT_ROWS: Final = 10_000
"""Most rows of a batch of results."""
TOPICS_SHOWN_MAX: Final = 20
_NO_TABLE = re.compile(r"Table with name (.+?) does not exist")
_NO_COLUMN = re.compile(r'(?:Referenced column|does not have a column named) "([^"]+)"')
_WORD = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_OPERANDS = frozenset(
    {
        *("select", "distinct", "from", "where", "qualify", "filter", "by", "on", "using", "having", "returning"),
        *("and", "or", "not", "when", "then", "else", "case", "between", "in", "like", "ilike", "is"),
    }
)
_OPERATORS = frozenset(",(=<>+-*/|&~^!.[:")
"""Words and ends of signs of SQL behind which an operand stands, not a clause."""


class Result(NamedTuple):
    """``batches`` are made while they are taken, and only until the next query of the session."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


class Session:
    """Queries about the topics of one cluster.  Use as a context."""

    def __init__(
        self,
        bootstrap: str,
        *,
        parsers: Mapping[str, str] = {},
        pipelines: Sequence[Settings] = (),
        memory_bytes: int = MEMORY_BYTES,
        allowed: Sequence[Path] = (),
        as_bytes: bool = False,
        retry_ms: int = RETRY_MS,
        admitted: Callable[[list[str]], Collection[str]] | None = None,
    ) -> None:
        """``parsers``: by topic, "" for none; ``pipelines``: whose tables can be named.

        ``allowed``: directories and files that queries may read and write.

        ``retry_ms``: how long an appliance may be away.  ``admitted``: of topics that a query names, those that it may
        use; errors name no others.

        Raises:
            BadValue: too little memory.
        """
        if memory_bytes < MEMORY_BYTES_MIN:
            raise BadValue(f"memory: {memory_bytes} bytes: give at least {MEMORY_BYTES_MIN // MIB} MiB")
        self._address = bootstrap, retry_ms
        self._admitted = admitted
        self._parsers = parsers
        self._pipelines = {settings.pipeline.name: settings for settings in pipelines}
        self._parsed = {
            topic: settings for settings in pipelines for source in settings.source for topic in source.topics
        }
        self._as_bytes = as_bytes
        self._settings = (memory_bytes, allowed)
        self._lines: dict[str, LineColumns | None] = {}
        self._current: Generator[Any, None, None] = (item for item in list[Any]())
        self._registered: list[str] = []
        self.guesses: dict[str, Guess] = {}
        """The parsers that were chosen, by topic."""

    def __enter__(self) -> Session:
        with ExitStack() as opened:
            spill = opened.enter_context(tempfile.TemporaryDirectory(prefix="appliance-sql-"))
            self._duckdb = opened.enter_context(closing(connect(Path(spill), *self._settings)))
            opened.callback(lambda: self._current.close())
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def run(self, text: str) -> Result:
        """Begin a query.

        Raises:
            InvalidRequest: it is no query, or a wrong one.
            UnknownPartition: it names a table that there is not.
            ApplianceError: the appliance cannot be reached, or refuses.
        """
        self._current.close()
        self._current = made_beside(lambda: self._answer(quote_offset(text)), self._duckdb.interrupt)
        schema = next(self._current)
        assert isinstance(schema, pa.Schema), "the first item"
        return Result(schema, self._current)

    def _answer(self, text: str) -> Iterator[Any]:
        """The columns of the result, then its batches."""
        reading = Reading(*self._address)
        topics: list[str] = []
        try:
            for name in self._registered:
                self._duckdb.unregister(name)
            self._registered = []
            topics = self._register(reading, words(text))
            statements = self._duckdb.extract_statements(text)
            if len(statements) != 1:
                raise InvalidRequest(f"{len(statements)} statements: give one query")
            if self._admitted is not None and statements[0].type.name != "SELECT":
                # COPY, EXPORT and ATTACH may write where DuckDB puts what does not fit into memory, without a bound;
                # EXPLAIN ANALYZE and PIVOT run a COPY, too.
                raise InvalidRequest("only a query runs here, as `select count(*) from web`; others in a shell")
            relation = self._duckdb.sql(text)
            if relation is None:
                raise InvalidRequest("the statement has no result: give a query, as `select count(*) from web`")
            reader = relation.to_arrow_reader(RESULT_ROWS)
            yield reader.schema
            yield from reader
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise reading.error or explained(error, text, topics) from None

    def _register(self, reading: Reading, named: set[str]) -> list[str]:
        """Give DuckDB the topics among the names, each up to its end of now.  Returns the names of all topics."""
        access = reading.access()
        try:
            known = access.patiently(lambda: access.cluster.refresh(None)).topics
            topics = self._meant(named, known)
            keys = [TopicPartition(topic, number) for topic in topics for number in range(len(known[topic].leaders))]
            first, end = (access.offsets(dict.fromkeys(keys, when)) for when in (EARLIEST, LATEST))
            for topic in topics:
                ranges = [
                    Range(*key, first[key], end[key], end[key])
                    for key in keys
                    if key.topic == topic and first[key] < end[key]
                ]
                known_lines = topic in self._lines
                lines = self._lines[topic] if known_lines else self._choose(access, topic, ranges)
                if ranges:  # an empty topic says nothing of its lines: the next question looks again
                    self._lines[topic] = lines
                table = TopicTable(reading, ranges, lines, as_bytes=self._as_bytes)
                self._give(topic, table)
            lower = {name.lower() for name in named}
            for name, settings in self._pipelines.items():
                if name.lower() in lower:
                    self._give_tables(name, tables_of(settings, reading, access))
            return topics if self._admitted is not None else sorted(known)
        finally:
            access.close()

    def _meant(self, named: set[str], known: Iterable[str]) -> list[str]:
        """The topics that are named, and may be used: as they are written, else as SQL reads names, in any case.

        Raises:
            InvalidRequest: two topics differ by their case only, and both may be meant.  A topic that may not be used
                is not among them: its name is not told.
        """
        groups = _alike(named, known)
        topics = sorted(topic for group in groups for topic in group)
        if self._admitted is not None:
            topics = sorted(self._admitted(topics))
        for group in groups:
            if len(left := [topic for topic in group if topic in topics]) > 1:
                both = " and ".join(left[:2])
                raise InvalidRequest(f"{both}: SQL does not tell names by their case: name one of them")
        return topics

    def _give(self, name: str, table: Any) -> None:
        self._duckdb.register(name, table)
        self._registered.append(name)

    def _give_tables(self, name: str, tables: Tables) -> None:
        """The tables of a pipeline, in a schema of its name."""
        schema = quoted(name)
        self._duckdb.execute(f"create schema if not exists {schema}")
        inner = {table: f" {name}.{table}" for table in (*tables.stored, LIVE)}  # no topic has a blank in its name
        for table, rows in {**tables.stored, LIVE: tables.unread}.items():
            self._give(inner[table], rows)
        queries = {table: f"select * from {quoted(inner[table])}" for table in inner}
        if EVENTS in queries:
            queries[LIVE] = f"{queries[EVENTS]} union all by name {queries[LIVE]}"
        for table, query in queries.items():
            self._duckdb.execute(f"create or replace view {schema}.{quoted(table)} as {query}")

    def _choose(self, access: LogAccess, topic: str, ranges: Sequence[Range]) -> LineColumns | None:
        chosen = self._parsers.get(topic)
        if chosen == "":
            return None
        if chosen is None and topic in self._parsed:
            return LineColumns(self._parsed[topic], topic)
        guess = guessed(topic, sample(access, ranges), chosen or "")
        if guess is None:
            return None
        self.guesses[topic] = guess
        return LineColumns(guess.settings, topic)


def sample(access: LogAccess, ranges: Sequence[Range]) -> pa.RecordBatch | None:
    """Some of the newest records of a topic that have a value; None if there is none."""
    samples: list[pa.RecordBatch] = []
    longest = sorted(ranges, key=lambda part: part.first - part.end)[:SAMPLE_PARTITIONS_MAX]
    for topic, partition, first, end, log_end in map(astuple, longest):
        decoder = Decoder(topic, partition, max(first, end - SAMPLE_BYTES), end)
        part = Range(topic, partition, decoder.first, end, log_end)
        newest: deque[pa.RecordBatch] = deque(maxlen=SAMPLE_ROWS_MAX)
        for position, data in access.read(part, None, SAMPLE_BYTES, fail_on_data_loss=False):
            newest.extend(decoder.decode(data, position))
        rows = pa.Table.from_batches(newest, SCHEMA)
        rows = rows.filter(pc.field("value").is_valid())
        samples += rows.slice(max(0, len(rows) - SAMPLE_ROWS_MAX)).combine_chunks().to_batches()
    together = pa.Table.from_batches(samples, SCHEMA).combine_chunks().to_batches()
    return together[0] if together else None


def connect(spill: Path, memory_bytes: int, allowed: Sequence[Path]) -> duckdb.DuckDBPyConnection:
    """DuckDB, as the module's docstring describes it."""
    inner = duckdb.connect(
        config={
            "memory_limit": f"{memory_bytes}B",
            "temp_directory": str(spill),
            "max_temp_directory_size": f"{SPILL_FACTOR * memory_bytes}B",
            "threads": str(max(1, (os.cpu_count() or 1) // 2)),  # the other half is the appliance's
            "python_enable_replacements": "false",
            "allow_community_extensions": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
    )
    names = [str(path.absolute()) for path in allowed]
    inner.execute("set allowed_directories = $1", [[name for name in names if Path(name).is_dir()]])
    inner.execute("set allowed_paths = $1", [[name for name in names if not Path(name).is_dir()]])
    inner.execute("set enable_external_access = false")
    inner.execute("set lock_configuration = true")
    return inner


def quoted(name: str) -> str:
    """A name as SQL has it, whatever is in it."""
    return '"{}"'.format(name.replace('"', '""'))


def quote_offset(text: str) -> str:
    """The query with the column ``offset`` in quotes where an operand stands: the word also begins a clause of SQL.

    >>> quote_offset("select offset from web where offset > 5 limit 3 offset 1")
    'select "offset" from web where "offset" > 5 limit 3 offset 1'
    """
    pieces, end, before = [], 0, ""
    for start, kind, spelled in _tokens(text):
        word = spelled.lower()
        operand = before in _OPERANDS or (before and before[-1] in _OPERATORS)
        if word == "offset" and operand:
            pieces += [text[end:start], '"offset"']
            end = start + len(word)
        if kind != duckdb.token_type.comment:
            before = word
    return "".join([*pieces, text[end:]])


def words(text: str) -> set[str]:
    """All words of a query, without their quotes: among them are the names of its tables.

    DuckDB's own list of tables needs these to be there already, with their columns.
    """
    return {word[1:-1] if len(word) > 1 and word[0] in "\"'" else word for _, _, word in _tokens(text)}


def _tokens(text: str) -> Iterator[tuple[int, Any, str]]:
    """The tokens of a query: where each begins, its kind, and how it is spelled."""
    tokens = duckdb.tokenize(text)
    stops = [*(position for position, _ in tokens[1:]), len(text)][: len(tokens)]
    for (start, kind), stop in zip(tokens, stops, strict=True):
        yield start, kind, text[start:stop].strip()


def _alike(named: set[str], topics: Iterable[str]) -> list[list[str]]:
    """For each name that topics have in any case: those that are written so, or else all of them, in order."""
    lower = {name.lower() for name in named}
    groups: dict[str, list[str]] = {}
    for topic in sorted(topics):
        if topic.lower() in lower:
            groups.setdefault(topic.lower(), []).append(topic)
    return [[topic for topic in group if topic in named] or group for group in groups.values()]


def explained(error: Exception, text: str, topics: Sequence[str]) -> ApplianceError:
    """The error of DuckDB as one of ours; ``topics``: that there are."""
    message = re.sub(r"\s+\n", "\n", str(error)).strip()
    for topic in topics:
        bare = rf'(?<![\w."-]){re.escape(topic)}(?![\w."-])'
        if not _WORD.fullmatch(topic) and re.search(bare, text):
            return InvalidRequest(message, remedy=f'quote names that are no words: "{topic}"')
    if missing := _NO_TABLE.search(message):
        near = difflib.get_close_matches(missing[1], topics, 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"topics: {', '.join(topics[:TOPICS_SHOWN_MAX]) or 'none'}"
        return UnknownPartition(f"no topic {missing[1]!r}: {hint}")
    if column := _NO_COLUMN.search(message):
        return InvalidRequest(message, remedy=_column_remedy(column[1], message, text, topics))
    if "file system operations are disabled" in message:
        return InvalidRequest(message, remedy="name what a query may use with --allow PATH")
    if isinstance(error, duckdb.OutOfMemoryException):
        return InvalidRequest(message, remedy="give it more with --memory SIZE, or ask for less")
    return InvalidRequest(message)


def _column_remedy(column: str, message: str, text: str, topics: Sequence[str]) -> str:
    """What to do about a column that a topic does not have: a near one, and how to see all."""
    columns = re.findall(r'"([^"]+)"', message.partition("Candidate bindings")[2])
    near = difflib.get_close_matches(column, columns, 1, 0.6)
    hint = f"did you mean {near[0]!r}? " if near else ""
    asked = [topic for topic in topics if re.search(rf"(?<![\w.-]){re.escape(topic)}(?![\w.-])", text)]
    name = asked[0] if asked else "TOPIC"
    query = f"describe {name}" if _WORD.fullmatch(name) else f'describe "{name}"'
    return f"{hint}`appliance sql {quote(query)}` shows the columns"
